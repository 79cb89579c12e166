"""Describes a run in public words: the ledger's header with the structure of the model, and public figures per class."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from attest.policy import ClassRule, Policy
from attest.schedule import waste
from attest.schedule.blocks import derive
from attest.schedule.geometry import couples_of
from attest.schema.cards import by_name, card_of
from attest.schema.rounding import at_most
from dptrain.clipping.resolver import Schedule
from dptrain.data.slots import Slots
from dptrain.record.metrics import Line, by_group, flat
from ledger.leaves import HeaderBlock
from ledger.replay.budgets import foreseen_loss
from ledger.replay.influence import planned_steps
from ledger.replay.state import RunState


def block_rows(policy: Policy, schedule: Schedule) -> tuple[HeaderBlock, ...]:
    """Returns the blocks that a run with this schedule has, those without classes behind the others."""
    rows = [HeaderBlock(b.name, b.coordinates, b.classes, b.std, b.share) for b in schedule.blocks]
    untouched = (block for block in derive(policy.classes, schedule.stack.named()) if not block.classes)
    return (*rows, *(HeaderBlock(block.name, block.coordinates, (), 0.0) for block in untouched))


def ranks_of(schedule: Schedule) -> dict[str, int]:
    """Returns the rank of every pair of the stack that has a geometry, by the name of its factor ``lora_B``."""
    policy, stack = schedule.policy, schedule.stack.named()
    if policy is None or not policy.geometry:
        return {}
    shapes = {tensor.name: tensor.parameter.shape for tensor in schedule.stack.tensors}
    names = [stack.tensors[couple.a].names for couple in couples_of(policy, stack)]
    return {own[0]: next(shapes[name][1] for name in own if name in shapes) for own in names}


def fingerprint(model: nn.Module, schedule: Schedule) -> bytes:
    """Returns SHA-256 over names, shapes and types of all parameters and the block of each: the structure, not the values.

    Of a parameter that is split, the block of every part, with its slice.
    """
    places: dict[str, list[str]] = {}
    for block in schedule.blocks:
        for tensor in block.tensors:
            where = block.name if tensor.part is None else f"{tensor.part} {block.name}"
            for alias in tensor.aliases:
                places.setdefault(alias, []).append(where)
    named = model.named_parameters(remove_duplicate=False)
    lines = sorted(f"{name} {tuple(p.shape)} {p.dtype} {'; '.join(places.get(name, ['-']))}\n" for name, p in named)
    return hashlib.sha256("".join(lines).encode()).digest()


@dataclass(frozen=True)
class Epsilon:
    """Says what a contribution of a class, with the preset bounds or stronger ones, has spent and will have spent.

    Attributes:
        spent: epsilon so far, under zero-out adjacency: the contribution is there, or adds nothing.
        spent_replaced: epsilon so far where the content of the contribution is replaced by another.
        planned: epsilon at the end of the horizon, under zero-out adjacency, steps that were charged in vain so far included.
        delta: of all four.
        if_all_redone: the most that ``planned`` can come to: every step that the policy lets be done again is done again.
    """

    spent: float
    spent_replaced: float
    planned: float
    delta: float
    if_all_redone: float

    def _repr_html_(self) -> str:
        return card_of(_upward(self))


class Epsilons(dict[str, Epsilon | None]):
    """Holds the figures of every class by its name; None for a public class, to which nothing is promised."""

    def _repr_html_(self) -> str:
        return by_name("epsilon", {name: found and _upward(found) for name, found in self.items()}, "public")


def _upward(found: Epsilon) -> Epsilon:
    """Returns figures of six digits, as a card shows them: none is below the one that it stands for."""
    spent, replaced, planned, redone = (
        value if math.isinf(value) else float(at_most(value, 6))
        for value in (found.spent, found.spent_replaced, found.planned, found.if_all_redone)
    )
    return Epsilon(spent, replaced, planned, found.delta, redone)


def summary(
    policy: Policy, run: RunState, charged: int, schedule: Schedule, slots: Slots, isolation: str
) -> list[dict[str, Any]]:
    """Returns the public figures per class, for tables: epsilon of a contribution with the class's preset bounds.

    ``isolation`` says of the whole run whether statement A has held so far, or why not.

    Those of a public class about privacy are None: no number would be true. Where occurrences are public, epsilons so far are
    those of the contribution that spent most, and the planned one is for as many draws as one in a million exceeds, or for the
    dearest turns of an order. Where noise varies over the run, multipliers are the least of its phases, and epsilons count the
    steps of each at its own.

    Guarantee: the planned epsilon counts the steps that were charged in vain so far, and is never below what was spent.

    Args:
        run: what the ledger says so far. charged: steps that it charged. slots: contributions of the run.
    """
    rows = []
    for place, rule in enumerate(policy.classes):
        members = _members(rule, slots)
        row = {
            "class": rule.name,
            "public": rule.public,
            "admitted": len(members),
            "blocks": [schedule.blocks[index].name for index in schedule.profiles[rule.name]],
            "sampling_rate": float(rule.sampling_rate),
            "steps_charged": charged,
            "delta": float(policy.delta),
            "isolation": isolation,
        }
        rows.append(row | (dict.fromkeys(PROMISES) if rule.public else _promises(policy, run, place, rule, members)))
    return rows


def numbers(
    policy: Policy,
    run: RunState,
    rows: Sequence[Mapping[str, Any]],
    *,
    step: int,
    stds: Mapping[str, float],
    rates: Sequence[float],
    now: int,
) -> Line:
    """Returns the public numbers of a step that is done: what the ledger says, and what the step ran with.

    Guarantee: nothing in them follows from private rows or from secret draws. A time is among them only where occurrences are
    public, and then it is one of the clock whose times the ledger has. Learning rates are those that
    `dptrain.engine.refusals.public_rates` lets through: of a scheduler's own function it is assumed that it counts steps.

    Args:
        run: what the ledger says so far. rows: of :func:`summary`. stds: noise per block on the sum of the step.
        rates: learning rates of the optimizer's groups; none where something that may follow from private rows set them.
        now: POSIX seconds.
    """
    figures = {"epsilon": "epsilon", "epsilon_planned": "epsilon_planned", "noise_multiplier": "effective_multiplier"}
    line: Line = {
        "run": run.header.run_id.hex(),
        "attempt": run.attempt,
        "step": step,
        "steps": policy.steps,
        "charged": run.charged,
        "delta": float(policy.delta),
        **flat({name: {row["class"]: row[key] for row in rows} for name, key in figures.items()}),
        **flat({"noise_std": stds}),
        **by_group(rates),
    }
    return line | ({"time": now} if run.header.occurrences_public else {})


PROMISES = (
    "clip_norm",
    "noise_multiplier",
    "effective_multiplier",
    "waste",
    "epsilon",
    "epsilon_replace",
    "epsilon_planned",
)
"""Figures of :func:`summary` about the privacy of a class: None in a public one, which has none."""


def _charged_to(run: RunState) -> int:
    """Returns the last step that the running attempt has charged, or the one that it went on behind."""
    window = run.open_window
    return run.position if window is None else window.last_step


def _to_the_end(run: RunState) -> tuple[int, ...]:
    """Returns the steps per phase that will have been charged at the horizon: those so far, and those to come."""
    done, phases, spent = _charged_to(run), run.header.phases, run.expenditure
    to_come = spent.count_steps(done + 1, phases.steps - done)
    return spent.dearest_steps(map(int.__add__, run.charged_phases, to_come))


def if_all_redone(policy: Policy, run: RunState, slots: Slots) -> dict[str, float]:
    """Returns per private class the most that a run of the policy can spend of a contribution, under zero-out adjacency.

    Guarantee: an upper bound for whoever signed the preset bounds or stricter ones, whichever steps are done again, as many as
    the policy allows. Where draws are random and public one contribution in a million exceeds it.

    Args:
        run: what the ledger says so far. slots: contributions of the run.
    """
    found, spent = {}, run.expenditure
    for place, rule in enumerate(policy.classes):
        if rule.public:
            continue
        weakest = _weakest(run, place, rule, _members(rule, slots))
        if policy.disclosure == "occurrences_public":
            found[rule.name] = spent.of_loss(_foreseen(policy, run, rule, weakest, policy.redo_steps))
        else:
            levels = spent.copies.most(policy.redo_steps)
            found[rule.name] = spent.of_group(place, weakest, spent.dearest_steps(planned_steps(run)), levels=levels)
    return found


def _members(rule: ClassRule, slots: Slots) -> Slots:
    forms = [number for number, found in enumerate(slots.resolutions()) if found.class_name == rule.name]
    return slots.take(np.flatnonzero(np.isin(slots.numbers, forms)))


def _weakest(run: RunState, place: int, rule: ClassRule, members: Slots) -> tuple[float, ...]:
    """Returns per phase the weakest of all members, whose epsilon is at least that of any of them."""
    descriptors = [members.forms[number].descriptor for number in set(members.numbers.tolist())]
    signed = {found.bounds for found in descriptors} or {rule.bounds}
    return tuple(map(min, zip(*(run.expenditure.multipliers(place, bounds) for bounds in signed), strict=True)))


def _foreseen(policy: Policy, run: RunState, rule: ClassRule, weakest: tuple[float, ...], redo: int) -> float:
    return foreseen_loss(policy, rule.sampling_rate, run.header.phases.horizon, weakest, redo=redo)


def _promises(policy: Policy, run: RunState, place: int, rule: ClassRule, members: Slots) -> dict[str, float]:
    weakest = _weakest(run, place, rule, members)
    if policy.disclosure == "occurrences_public":
        named = map(members.descriptor_hash, range(len(members) if run.contributions else 0))  # none before the run begins
        loss = max((run.contributions[name].loss for name in named), default=0.0)
        planned = _foreseen(policy, run, rule, weakest, run.charged - _charged_to(run))
        spent = [run.expenditure.of_loss(value) for value in (loss, 4 * loss, max(loss, planned))]
    else:
        charged = run.expenditure.dearest_steps(run.charged_phases)
        spent = [
            run.expenditure.of_group(place, weakest, charged),
            run.expenditure.replace_of_group(place, weakest, charged),
            run.expenditure.of_group(place, weakest, _to_the_end(run)),
        ]
    values = (
        rule.bounds.clip_norm,
        rule.bounds.noise_multiplier,
        min(weakest),
        waste(min(run.expenditure.multipliers(place, rule.bounds)), rule.bounds.noise_multiplier),
        *spent,
    )
    return dict(zip(PROMISES, values, strict=True))
