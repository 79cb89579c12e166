"""`dptrain plan`: schedule, effective multipliers, epsilon and waste, before anything is spent."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from attest.gate import GateReport
from attest.gate.reading import KeptReading
from attest.policy import Policy, SignedPolicy
from attest.registry import Registry
from dptrain.accounting import unsupported
from dptrain.cli.complete import class_counts
from dptrain.cli.gate import ForLedger, Keeping, NoKeptReading, as_json, judge, sentences
from dptrain.cli.inputs import (
    OwnerKey,
    PlotFile,
    PolicyFile,
    RegistryFile,
    count_of,
    goals_of,
    read_policy,
    read_signed_policy,
    require_plot,
)
from dptrain.cli.ledger.place import LedgerKey, StateDirectory
from dptrain.cli.options import argument, file_option, option
from dptrain.cli.output import counting, moment, styled
from dptrain.cli.plan import show
from dptrain.cli.results import Shown, Told
from dptrain.cli.train import load_training
from dptrain.planning import changes, figures, targets
from dptrain.planning.plan import GroupPlan, Plan, make_plan, signed_groups, totals
from dptrain.planning.signal import Signal, read_norms, signals
from dptrain.planning.signal import as_json as signals_json

_LAYERS = 12
"""Layers of a stack where nobody says how many there are."""


class Quantity(StrEnum):
    """Names what `--solve` finds."""

    MULTIPLIER = "multiplier"
    STEPS = "steps"
    RATE = "rate"
    NORMALIZER = "normalizer"


def plan(
    policy: PolicyFile,
    corpus: Annotated[Path | None, argument("Count and judge this corpus as well.", metavar="CORPUS", exists=True)] = None,
    layers: Annotated[int | None, option("Layers of the model; default: those of --measure's, or 12.", min=1, max=4096)] = None,
    contributions: Annotated[
        list[str] | None,
        option(
            "Contributions of a class, where there is no corpus; repeat. Others have none.",
            metavar="CLASS=N",
            autocompletion=class_counts,
        ),
    ] = None,
    gradient_norms: Annotated[
        Path | None,
        file_option("NORMS.json", "Norms of PUBLIC gradients per block, or class/block: shows signal against noise."),
    ] = None,
    measure: Annotated[
        Path | None, file_option("RUN.toml", "Time a few steps of this run on random payloads; needs the train extra.")
    ] = None,
    target_epsilon: Annotated[
        list[str] | None,
        option(
            "Say what to change for an epsilon of at most E, of all or of one; repeat.",
            metavar="[CLASS=]E",
            autocompletion=class_counts,
        ),
    ] = None,
    solve: Annotated[
        Quantity | None,
        option(
            "multiplier (default), steps or rate; or normalizer, which touches no guarantee and needs no target.",
            metavar="WHAT",
        ),
    ] = None,
    what_if: Annotated[
        list[str] | None, option("Compare with a policy that says KEY=VALUE,KEY=VALUE; repeat for more.", metavar="CHANGES")
    ] = None,
    plot: PlotFile = None,
    owner_key: OwnerKey = None,
    registry: RegistryFile = None,
    now: Annotated[int | None, moment("Moment of admission; default: now.")] = None,
    made_for: ForLedger = None,
    key: LedgerKey = None,
    state: StateDirectory = None,
    no_kept_reading: NoKeptReading = False,
) -> Told:
    """Show what a policy gives each class: noise per block, effective multiplier, epsilon, waste, expected draws.

    With a corpus, contributions are admitted as in training and their own signed bounds are accounted; the policy must
    be signed for that. Layers are counted without loading a model: blocks are embeddings, layer.0 ..., head.

    Nothing is charged, and nothing written but what `--plot` names, the reading that is kept with `--for` and, beside a corpus,
    which state of the registry was used.

    Example: `dptrain plan policy.toml --layers 12`
    """
    signed = read_signed_policy(policy, owner_key) if corpus else None
    rules = signed.policy if signed else read_policy(policy, owner_key)[0]
    goals = _goals(target_epsilon or [], solve, rules)
    others = _others(rules, what_if or [])
    require_plot(plot)
    run = _run_file(measure)
    norms = None if gradient_norms is None else read_norms(gradient_norms)
    by_hand = dict(count_of(text, rules) for text in contributions or [])
    reading = _Reading(None if no_kept_reading else signed, Keeping(made_for, key, state, make=True))
    report = judge(rules, policy, corpus, registry, now, None, owner_key, reading.open) if corpus else None
    counts = _counts(report, by_hand)
    cost = None if run is None else load_training("dptrain.planning.measure").measure(rules, run, counts)
    layers = layers or (_LAYERS if cost is None else cost.layers)
    with counting("computing epsilon"):
        planned = make_plan(rules, layers)
        groups = signed_groups(rules, planned, report) if report else {}
        ratios = None if norms is None else signals(rules, planned, norms, counts)
        solution = _solve(rules, goals, solve, counts, layers)
        compared = [(text, other, make_plan(other, layers)) for text, other in others]
    if plot is not None:
        terms = f"delta {float(rules.delta):g}, {rules.accountant}, {rules.adjacency}"
        drawn = figures.plan_figure(planned, f"{rules.corpus}: {rules.steps:,} steps", terms)
        drawn.write(plot, figures.plan_tables(planned, terms))
    data = _as_json(rules, planned, report, groups, ratios, counts)
    data |= {} if solution is None else {"solution": solution.as_json()}
    data |= {} if cost is None else {"measured": asdict(cost)}
    data |= as_json(reading.found)
    if compared:
        data["what_if"] = [
            {
                "change": text,
                **_as_json(other, plan_then, None, {}, None, None),
                "differences": show.differences_json(rules, planned, other, plan_then),
            }
            for text, other, plan_then in compared
        ]

    def text() -> Iterator[Shown]:
        if compared:
            yield from show.comparison_text(rules, planned, compared)
        elif solution is not None:
            yield from show.solution_text(solution, policy)
        else:
            yield from show.plan_text(rules, planned)
            if report is not None:
                yield from show.corpus_text(rules, report, groups)
                yield from sentences(reading.found)
        if ratios is not None:
            yield from show.signals_text(planned, ratios)
        if cost is not None:
            yield from show.cost_text(rules, planned, cost)
        if plot is not None:
            yield f"wrote {plot}"
        yield from (styled("red", "✗", f" {sentence}") for sentence in unsupported(rules))

    return Told(data, text())


class _Reading:
    """The kept reading of a plan, opened once the registry is known.

    Args:
        signed: The policy; None to keep nothing.
        keeping: Where.
    """

    def __init__(self, signed: SignedPolicy | None, keeping: Keeping) -> None:
        self.found: KeptReading | None = None
        self._signed = signed
        self._keeping = keeping

    def open(self, registry: Registry) -> KeptReading | None:
        """Opens it; None where nothing is kept."""
        if self._signed is not None:
            self.found = self._keeping.reading(self._signed, registry)
        return self.found


def _goals(texts: list[str], solve: Quantity | None, rules: Policy) -> dict[str, float]:
    if solve is Quantity.NORMALIZER and texts:
        raise typer.BadParameter("the normalizer touches no epsilon; leave out --target-epsilon, or solve for another quantity")
    if solve not in (None, Quantity.NORMALIZER) and not texts:
        raise typer.BadParameter(f"--solve {solve} needs a --target-epsilon")
    return goals_of(texts, rules)


def _others(rules: Policy, texts: list[str]) -> list[tuple[str, Policy]]:
    """Returns the policies to compare with."""
    text_of_rules = rules.to_toml()
    return [(text, changes.changed(rules, tomllib.loads(text_of_rules, parse_float=Decimal), text)) for text in texts]


def _run_file(path: Path | None) -> Any:
    if path is None:
        return None
    from dptrain.tasks.runconfig import RunConfig

    return RunConfig.load(path)


def _counts(report: GateReport | None, by_hand: Mapping[str, int]) -> dict[str, int] | None:
    """Returns contributions per class: admitted ones, corrected by what was given by hand; None if nobody said."""
    if report is None and not by_hand:
        return None
    admitted = report.counts()["admitted"] if report is not None else {}
    return {**admitted, **by_hand}


def _solve(
    rules: Policy, goals: dict[str, float], solve: Quantity | None, counts: dict[str, int] | None, layers: int
) -> targets.Solution | None:
    if solve is Quantity.NORMALIZER:
        if counts is None:
            raise typer.BadParameter("--solve normalizer needs a CORPUS, or --contributions CLASS=N for its classes")
        return targets.solve_normalizer(rules, counts, layers)
    return targets.solve(rules, goals, (solve or Quantity.MULTIPLIER).value, layers) if goals else None


def _as_json(
    policy: Policy,
    planned: Plan,
    report: GateReport | None,
    groups: Mapping[str, list[GroupPlan]],
    ratios: list[Signal] | None,
    counts: Mapping[str, int] | None,
) -> dict[str, Any]:
    data: dict[str, Any] = {
        "corpus": policy.corpus,
        "delta": float(policy.delta),
        "accountant": policy.accountant,
        "adjacency": policy.adjacency,
        "disclosure": policy.disclosure,
        "noise_family": policy.mechanism.name,
        "noise_injection": policy.noise_injection,
        "steps": policy.steps,
        "redo_steps": policy.redo_steps,
        "normalizer": policy.normalizer,
        **asdict(planned),
        "totals": [asdict(total) for total in totals(policy, planned)],
        "unsupported": list(unsupported(policy)),
    }
    if counts is not None:
        data["expected_contributions_per_step"] = show.expected_per_step(policy, counts)
    if report is not None:
        data["gate"] = report.counts()
        data["signed_bounds"] = {
            name: [{"contributions": item.contributions, **asdict(item.bound)} for item in found]
            for name, found in groups.items()
        }
    if ratios is not None:
        data["signals"] = signals_json(ratios)
    return data
