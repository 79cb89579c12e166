"""Describes a run in public words: the ledger's header with the structure of the model, and public figures per class."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from attest.policy import ClassRule, Policy
from attest.policy.sampling import period
from attest.schedule import waste
from attest.schedule.blocks import derive
from attest.schedule.turns import dearest_turns
from attest.schema.cards import by_name, card_of
from attest.schema.rounding import at_most
from dptrain.clipping.resolver import Schedule
from dptrain.data.slots import Slots
from dptrain.record.metrics import Line, by_group, flat
from ledger.accountants import likely_occurrences, turns_under
from ledger.leaves import HeaderBlock
from ledger.replay.state import RunState


def block_rows(policy: Policy, schedule: Schedule) -> tuple[HeaderBlock, ...]:
    """Returns the blocks that a run with this schedule has, those without classes behind the others."""
    rows = [HeaderBlock(b.name, b.coordinates, b.classes, b.std, b.share) for b in schedule.blocks]
    untouched = (block for block in derive(policy.classes, schedule.stack.named()) if not block.classes)
    return (*rows, *(HeaderBlock(block.name, block.coordinates, (), 0.0) for block in untouched))


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
        planned: epsilon at the end of the horizon, under zero-out adjacency, steps that were charged in vain included.
        delta: of all three.
    """

    spent: float
    spent_replaced: float
    planned: float
    delta: float

    def _repr_html_(self) -> str:
        return card_of(_upward(self))


class Epsilons(dict[str, Epsilon | None]):
    """Holds the figures of every class by its name; None for a public class, to which nothing is promised."""

    def _repr_html_(self) -> str:
        return by_name("epsilon", {name: found and _upward(found) for name, found in self.items()}, "public")


def _upward(found: Epsilon) -> Epsilon:
    """Returns figures of six digits, as a card shows them: none is below the one that it stands for."""
    spent, replaced, planned = (
        value if math.isinf(value) else float(at_most(value, 6)) for value in (found.spent, found.spent_replaced, found.planned)
    )
    return Epsilon(spent, replaced, planned, found.delta)


def summary(
    policy: Policy, run: RunState, charged: int, schedule: Schedule, slots: Slots, isolation: str
) -> list[dict[str, Any]]:
    """Returns the public figures per class, for tables: epsilon of a contribution with the class's preset bounds.

    ``isolation`` says of the whole run whether statement A has held so far, or why not.

    Those of a public class about privacy are None: no number would be true. Where occurrences are public, epsilons so far are
    those of the contribution that spent most, and the planned one is for as many draws as one in a million exceeds. Where noise
    varies over the run, multipliers are the least of its phases, and epsilons count the steps of each at its own.

    Args:
        run: what the ledger says so far. charged: steps that it charged. slots: contributions of the run.
    """
    rows = []
    for place, rule in enumerate(policy.classes):
        forms = [number for number, found in enumerate(slots.resolutions()) if found.class_name == rule.name]
        members = slots.take(np.flatnonzero(np.isin(slots.numbers, forms)))
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


def _to_the_end(run: RunState) -> tuple[int, ...]:
    """Returns the steps per phase that will have been charged at the horizon: those so far, and those to come."""
    window, phases = run.open_window, run.header.phases
    done = run.position if window is None else window.first_step + window.n_steps - 1
    spent = run.expenditure
    to_come = spent.count_steps(done + 1, phases.steps - done)
    return spent.dearest_steps(map(int.__add__, run.charged_phases, to_come))


def _promises(policy: Policy, run: RunState, place: int, rule: ClassRule, members: Slots) -> dict[str, float]:
    descriptors = [members.forms[number].descriptor for number in set(members.numbers.tolist())]
    signed = {found.bounds for found in descriptors} or {rule.bounds}
    # Per phase the weakest of all members, whose epsilon is at least that of any of them.
    weakest = tuple(map(min, zip(*(run.expenditure.multipliers(place, bounds) for bounds in signed), strict=True)))
    phases = run.header.phases
    if policy.disclosure == "occurrences_public":
        named = map(members.descriptor_hash, range(len(members) if run.contributions else 0))  # none before the run begins
        loss = max((run.contributions[name].loss for name in named), default=0.0)
        if not policy.sampling.turns:
            planned = likely_occurrences(float(rule.sampling_rate), policy.steps) / min(weakest) ** 2
        else:
            turns = turns_under(policy, rule.sampling_rate)
            if turns is None:
                planned = dearest_turns(policy.sampling.name, period(rule.sampling_rate), phases.horizon, weakest).loss
            else:
                planned = turns.most() / min(weakest) ** 2
        spent = [run.expenditure.of_loss(value) for value in (loss, 4 * loss, planned)]
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
