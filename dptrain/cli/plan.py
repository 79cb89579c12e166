"""`dptrain plan`: schedule, effective multipliers, epsilon and waste, before anything is spent."""

import functools
import math
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from decimal import Decimal
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from attest.gate import GateReport
from attest.policy import Policy
from attest.policy.mechanism import GAUSSIAN
from attest.schema.rounding import rounded_up
from dptrain.accounting import unsupported
from dptrain.cli import inputs
from dptrain.cli.advice import Case
from dptrain.cli.advice.classes import touched
from dptrain.cli.advice.findings import repeated
from dptrain.cli.advice.policies import OF_PLANS
from dptrain.cli.complete import class_counts, models
from dptrain.cli.gate import ForLedger, Keeping, NoKeptReading, as_json, judge, sentences
from dptrain.cli.ledger.place import LedgerKey, StateDirectory
from dptrain.cli.options import argument, file_option, folder_option, moment, option, parse_count, wrong_if
from dptrain.cli.output import amount, counted, counting, duration, number, size, styled, table, table_of
from dptrain.cli.results import Shown, Told, pick
from dptrain.geometry.energy import DESIGNS
from dptrain.geometry.over_rank import BlockNoise, NoiseOverRank, noise_over_rank, sentences_of
from dptrain.geometry.shapes import Shape, parse_shapes, read_adapter
from dptrain.planning import changes, figures, scaling, targets
from dptrain.planning.layout import BlockPlan, kind, span
from dptrain.planning.per_rank import STATES, PerRank, Ranks, per_rank, rest_of
from dptrain.planning.picture import phase_picture, plan_picture, rank_picture
from dptrain.planning.plan import GroupPlan, Plan, make_plan, signed_groups, totals
from dptrain.planning.scaling import ASSUMED, MODELS, TOKENS, Step, seconds
from dptrain.planning.signal import Signal, read_norms, signals
from dptrain.planning.signal import as_json as signals_json
from dptrain.planning.targets import Solution
from dptrain.tasks.runconfig import RunConfig

Quantity = StrEnum("Quantity", ["MULTIPLIER", "STEPS", "RATE", "NORMALIZER"])
"""Names for what `--solve` finds."""


def plan(
    policy: inputs.PolicyFile,
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
    processes: Annotated[
        int | None, option("Predict memory and communication of a rank of N; needs sizes of the model.", metavar="N", min=1)
    ] = None,
    sharded: Annotated[
        bool, option("With --processes: parameters in shards (FSDP2), not whole on every rank (DDP).", "--sharded")
    ] = False,
    model: Annotated[
        str | None,
        option(
            "With --processes: sizes of a known model, and seconds of a step on H100s.", metavar="NAME", autocompletion=models
        ),
    ] = None,
    parameters: Annotated[
        int | None, option("With --processes: parameters of the model, 124M say.", metavar="P", parser=parse_count)
    ] = None,
    trained: Annotated[
        int | None, option("With --parameters: those that train; default: all.", metavar="D", parser=parse_count)
    ] = None,
    microbatch: Annotated[
        int | None, option("With --parameters: contributions of a microbatch; default: 16.", metavar="N", min=1)
    ] = None,
    adapter: Annotated[
        Path | None, folder_option("ADAPTER", "Draw noise over rank for the LoRA pairs of this adapter, which peft saved.")
    ] = None,
    shapes: Annotated[
        str | None,
        option(
            "Draw noise over rank for LoRA pairs of layers of these shapes, outputs first.", metavar="MxN[xCOUNT],..."
        ),
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
    plot: inputs.PlotFile = None,
    owner_key: inputs.OwnerKey = None,
    registry: inputs.RegistryFile = None,
    now: Annotated[int | None, moment("Moment of admission; default: now.")] = None,
    made_for: ForLedger = None,
    key: LedgerKey = None,
    state: StateDirectory = None,
    no_kept_reading: NoKeptReading = False,
) -> Told:
    """Show what a policy gives each class: noise per block, effective multiplier, epsilon, waste, expected draws.

    With a corpus, contributions are admitted as in training and their own signed bounds are accounted; the policy must
    be signed for that. Layers are counted without loading a model: blocks are embeddings, layer.0 ..., head.
    Strategies of noise that is correlated between steps are compared by `dptrain policy noise`.

    For LoRA pairs, of `--adapter`, of `--shapes`, or of a model with them, it draws over rank how much noise reaches their
    product in a step: with both factors noised, with `lora_A` frozen, and with `geometry = "lora_tangent"`.

    Nothing is charged, and nothing written but what `--plot` names, the reading that is kept with `--for` and, beside a corpus,
    which state of the registry was used.

    Example: `dptrain plan policy.toml --layers 12`
    """
    signed = inputs.read_signed_policy(policy, owner_key) if corpus else None
    whole = signed.policy if signed else inputs.read_policy(policy, owner_key)[0]
    rules = whole.for_training()
    if solve is Quantity.NORMALIZER and target_epsilon:
        sentence = "the normalizer touches no epsilon; leave out --target-epsilon, or solve for another quantity"
        raise typer.BadParameter(sentence)
    wrong_if(solve not in (None, Quantity.NORMALIZER) and not target_epsilon, f"--solve {solve} needs a --target-epsilon")
    goals = inputs.goals_of(target_epsilon or [], rules)
    asked, text_of_rules = what_if or [], rules.to_toml()
    others = [(text, changes.changed(rules, tomllib.loads(text_of_rules, parse_float=Decimal), text)) for text in asked]
    inputs.require_plot(plot)
    given = {"--measure": measure, "--model": model, "--parameters": parameters, "--trained": trained}
    given |= {"--microbatch": microbatch}
    _require_sizes(processes, sharded, given)
    wrong_if(adapter is not None and shapes is not None, "--adapter and --shapes both say what pairs there are; leave one out")
    given_pairs, left_out = read_adapter(adapter) if adapter is not None else (parse_shapes(shapes) if shapes else (), 0)
    run = None if measure is None else RunConfig.load(measure)
    norms = None if gradient_norms is None else read_norms(gradient_norms)
    by_hand = dict(inputs.count_of(text, rules) for text in contributions or [])
    keeping, report, kept = Keeping(made_for, key, state, make=True), None, None
    if corpus is not None:
        open_kept = None if no_kept_reading or signed is None else functools.partial(keeping.reading, signed)
        report, kept = judge(whole, policy, corpus, registry, now, owner_key, open_kept)
    # Admitted ones, corrected by what was given by hand; None if nobody said.
    counts = None if report is None and not by_hand else (report.counts()["admitted"] if report else {}) | by_hand
    if solve is Quantity.NORMALIZER and counts is None:
        raise typer.BadParameter("--solve normalizer needs a CORPUS, or --contributions CLASS=N for its classes")
    cost = None if run is None else inputs.load_training("dptrain.planning.measure").measure(rules, run, counts)
    layers = layers or (cost.layers if cost is not None else MODELS[model].layers if model else 12)
    ranks = per = step = None
    if processes is not None:
        drawn = float(rules.normalizer) if counts is None else expected_per_step(rules, counts)
        sizes = _sizes(rules, run, cost, given)
        ranks = Ranks(processes=processes, contributions=drawn, layers=layers, sharded=sharded, **sizes)
        rest = None if cost is None else rest_of(cost.peak_bytes, ranks, libraries=cost.device == "cpu")
        per, step = per_rank(ranks, rest), seconds(MODELS[model], ranks, ASSUMED, TOKENS) if model else None
    with counting("computing epsilon"):
        planned = make_plan(rules, layers)
        groups = signed_groups(rules, planned, report) if report else {}
        ratios = None if norms is None else signals(rules, planned, norms, counts)
        solution = targets.solve(rules, goals, (solve or Quantity.MULTIPLIER).value, layers) if goals else None
        if solve is Quantity.NORMALIZER and counts is not None:
            solution = targets.solve_normalizer(rules, counts, layers)
        compared = [(text, other, make_plan(other, layers)) for text, other in others]
    if plot is not None:
        terms = f"delta {float(rules.delta):g}, {rules.accountant}, {rules.adjacency}"
        drawn = figures.plan_figure(planned, f"{rules.corpus}: {rules.steps:,} steps", terms)
        drawn.write(plot, figures.plan_tables(planned, terms))
    pairs = given_pairs or (cost.pairs if cost is not None else MODELS[model].pairs if model else ())
    over = noise_over_rank(_with_noise(rules, planned, pairs)) if pairs else None
    pair_blocks = cost.pair_blocks if cost is not None and not given_pairs else ()
    data = _as_json(rules, planned) | as_json(kept)
    if counts is not None:
        data["expected_contributions_per_step"] = expected_per_step(rules, counts)
    if report is not None:
        data["gate"] = report.counts()
        data["signed_bounds"] = {
            name: [{"contributions": item.contributions, **asdict(item.bound)} for item in found]
            for name, found in groups.items()
        }
    if ratios is not None:
        data["signals"] = signals_json(ratios)
    if solution is not None:
        data["solution"] = solution.as_json()
    if cost is not None:
        data["measured"] = {key: value for key, value in asdict(cost).items() if key not in ("pairs", "pair_blocks")}
    if ranks is not None and per is not None:
        data["ranks"] = scaling.as_json(ranks, per, step)
    if over is not None:
        told = {"policy": design_of(rules), "left_out": left_out, "blocks": [asdict(block) for block in pair_blocks]}
        data["noise_over_rank"] = over.as_json() | told
    if compared:
        data["what_if"] = [
            {"change": text, **_as_json(other, then), "differences": changes.differences(rules, planned, other, then)}
            for text, other, then in compared
        ]

    def text() -> Iterator[Shown]:
        if compared:
            yield from comparison_text(rules, planned, compared)
        elif solution is not None:
            yield from solution_text(solution, policy)
        else:
            yield from plan_text(rules, planned)
            if report is not None:
                yield from corpus_text(rules, report, groups)
                yield from sentences(kept)
        if ratios is not None:
            yield from signals_text(planned, ratios)
        if cost is not None:
            yield from cost_text(rules, planned, cost)
        if ranks is not None and per is not None:
            yield from ranks_text(ranks, per, step)
        if over is not None:
            yield from over_rank_text(over, design_of(rules), pair_blocks, left_out)
        if plot is not None:
            yield f"wrote {plot}"
        yield from (styled("red", "✗", f" {sentence}") for sentence in unsupported(rules))

    return Told(data, text())


def _as_json(policy: Policy, planned: Plan) -> dict[str, Any]:
    names = "corpus accountant adjacency disclosure noise_injection steps redo_steps normalizer"
    return pick(policy, names) | {
        "delta": float(policy.delta),
        "noise_family": policy.mechanism.name,
        **asdict(planned),
        "totals": [asdict(total) for total in totals(policy, planned)],
        "unsupported": list(unsupported(policy)),
    }


OWN = (
    "own variance: of the noise per step and coordinate that the bounds of such a contribution would need by themselves, "
    "(z* C)^2; z* is what it signed, or what its limit of epsilon needs for the draws expected. A block gets what its classes "
    "need, however often anybody is drawn"
)


def plan_text(policy: Policy, planned: Plan) -> Iterator[Shown]:
    """Yields the picture, the classes, the blocks, and what to know about either."""
    yield f"corpus {policy.corpus}, {policy.steps} steps, delta {float(policy.delta):g}, {policy.accountant}\n"
    yield lambda glyphs: [*plan_picture(planned, glyphs), *phase_picture(planned.phases, glyphs)]
    rows = table_of(
        planned.classes,
        {
            "class": lambda item: item.name,
            "clip": lambda item: number(item.preset.clip_norm),
            "sigma": lambda item: number(item.preset.noise_multiplier),
            "z": lambda item: number(item.preset.effective_multiplier),
            "waste": lambda item: f"{item.preset.waste:.2f}",
            "epsilon": lambda item: rounded_up(item.preset.epsilon),
            "if content replaced": lambda item: rounded_up(item.preset.epsilon_replace),
            "if all redone": lambda item: rounded_up(item.preset.epsilon_with_redo),
            "draws of each": lambda item: amount(item.expected_draws),
            "95 % between": lambda item: f"{item.draws.low} and {item.draws.high}",
            "own variance": lambda item: _variance(item.preset.sufficient_variance),
        },
    )
    for public in planned.public:
        draws = f"{public.draws.low} and {public.draws.high}"
        rows.add_row(public.name, *["public"] * 7, amount(public.expected_draws), draws, "public")
    yield rows
    given = "what is sure beforehand" if policy.noise_injection == "per_sample" else "what the schedule gives"
    given += ", where the noise is least" if len(planned.phases) > 1 else ""
    yield f"sigma: noise multiplier asked for; z: {given}; waste: z / sigma; epsilons rounded up"
    yield OWN
    for total in totals(policy, planned):
        yield (
            f"class {total.name}: epsilon {total.limit:g} over all runs together, of which this one could use "
            f"{rounded_up(total.used)} with every step done again; {repeated(total) if total.runs else 'so it cannot begin'}"
        )
    yield from _blocks_text(planned)
    if policy.noise_budgets is not None:
        yield (
            f"clip norms are divided among blocks: noise energy is {planned.noise_energy_of_max_rule:.0%} of one clip over all "
            f"of them, within {planned.noise_energy_gap:.1e} of the least for these budgets (convex programme)"
        )
    case = Case(policy, planned)
    for item in planned.reaches:
        if policy.class_rule(item.name).depth.adapter is not None:
            yield f"class {item.name}: its gradient reaches {touched(case, item)}; the ledger names the adapter in their blocks"
    yield from (item.sentence for check in OF_PLANS for item in check(case))


def corpus_text(policy: Policy, report: GateReport, groups: Mapping[str, Sequence[GroupPlan]]) -> Iterator[Shown]:
    """Yields what each group of admitted contributions with the same bounds gets."""
    bounds = [(name, item.contributions, item.bound) for name, found in sorted(groups.items()) for item in found]
    capped = any(bound.max_occurrences for _, _, bound in bounds)
    cap = {"at most": lambda row: f"{row[2].max_occurrences} draws" if row[2].max_occurrences else "any"}
    rows = table_of(
        bounds,
        {
            "class": lambda row: row[0],
            "signed by": lambda row: str(row[1]),
            "sigma": lambda row: number(row[2].noise_multiplier),
            "clip norm": lambda row: number(row[2].clip_norm),
            **(cap if capped else {}),
            "z": lambda row: number(row[2].effective_multiplier),
            "epsilon": lambda row: rounded_up(row[2].epsilon),
            "if content replaced": lambda row: rounded_up(row[2].epsilon_replace),
            "draws expected": lambda row: amount(row[2].expected_draws),
            "own variance": lambda row: _variance(row[2].sufficient_variance),
        },
    )
    public = sum(item.admission.descriptor.public for item in report.admitted)
    if public:
        rows.add_row("public classes", str(public), *["public"] * (8 if capped else 7))
    yield rows
    per_step = expected_per_step(policy, report.counts()["admitted"])
    yield f"{len(report.admitted)} admitted, {len(report.refused)} refused; {number(per_step)} drawn per step on average"
    if not 0.1 <= per_step / policy.normalizer <= 10:
        far = f" sums are divided by the normalizer {policy.normalizer}, far from {number(per_step)}; this scales the learning "
        yield styled("yellow", "!", far + "rate and touches no guarantee (--solve normalizer)")


def signals_text(planned: Plan, found: Sequence[Signal]) -> Iterator[Shown]:
    """Yields signal against noise, neighbouring layers with like figures as one row."""
    alike = groupby(found, key=lambda item: (item.name, kind(item.block), item.norm, item.std))
    yield table_of(
        [list(part) for _, part in alike],
        {
            "class": lambda part: part[0].name,
            "block": lambda part: span([item.block for item in part]),
            "gradient": lambda part: number(part[0].norm),
            "after clip": lambda part: number(part[0].clipped),
            "noise": lambda part: number(part[0].std),
            "one": lambda part: number(part[0].of_one, 3),
            "a step": lambda part: "?" if part[0].of_step is None else amount(part[0].of_step),
            "the run": lambda part: "?" if part[0].of_run is None else amount(part[0].of_run),
        },
    )
    yield (
        "signal over noise in the direction of the signal: of one contribution, of all that a step draws on average, of all "
        "steps, if all gradients pointed the same way. No more is possible; the norms must be of public gradients"
    )
    if any(item.of_step is None for item in found):
        yield "?: give a CORPUS or --contributions CLASS=N, so that it is known how many a step draws"


def cost_text(policy: Policy, planned: Plan, cost: Any) -> Iterator[Shown]:
    """Yields time and memory as `dptrain.planning.measure` found them, per class by the depth of its band."""
    rows = table_of(
        sorted(cost.classes, key=lambda item: -item.layers),
        {
            "class": lambda item: item.name,
            "layers": lambda item: f"top {item.layers} of {cost.layers}",
            "parameters": lambda item: amount(item.coordinates),
            "drawn per step": lambda item: number(item.contributions_per_step),
            "each": lambda item: duration(item.seconds_per_contribution),
            "a step": lambda item: duration(item.seconds_per_step),
            "share": lambda item: f"{item.share:.0%}",
        },
    )
    noise = cost.fixed_seconds
    rows.add_row("noise, optimizer", "", amount(cost.trained), "", "", duration(noise), f"{noise / cost.seconds_per_step:.0%}")
    yield rows
    yield (
        f"a step takes {duration(cost.seconds_per_step)}, the run of {policy.steps:,} steps {duration(cost.seconds_per_run)};"
        f" peak memory {size(cost.peak_bytes)} on {cost.device}, {counted(cost.threads, 'thread')}, microbatches of"
        f" {cost.microbatch}"
    )
    yield (
        "measured on random payloads of one example each: no private data was read, no ledger opened, nothing charged. "
        f"{amount(cost.trained)} of {amount(cost.parameters)} parameters are trained; noise energy"
        f" {cost.noise_energy_ratio:.0%} of uniform noise, with the sizes of this model"
    )
    if cost.layers != planned.layers:
        note = f" the model has {counted(cost.layers, 'layer')}, and the plan above counts {planned.layers}; leave out --layers"
        yield styled("yellow", "!", note)
    if cost.assumed:
        yield (
            f"nobody said how many contributions there are: {policy.normalizer} per step are assumed, the normalizer; give a "
            "CORPUS or --contributions CLASS=N"
        )


def _require_sizes(processes: int | None, sharded: bool, given: Mapping[str, Any]) -> None:
    """Refuses wrong use unless one option says the sizes of the model where ranks are predicted, and none where not."""
    for name, value in {"--sharded": sharded or None, **given}.items():
        needless = value is not None and processes is None and name != "--measure"
        wrong_if(needless, f"{name} needs --processes N, the number of ranks")
    said = [name for name in ("--measure", "--model", "--parameters") if given[name] is not None]
    wrong_if(
        processes is not None and len(said) != 1,
        f"--processes needs the sizes of the model from one place, and has {' and '.join(said) or 'none'}; give --measure "
        "RUN.toml, --model NAME, or --parameters P with --trained D where not all of them train",
    )
    for name in ("--trained", "--microbatch"):
        wrong_if(given[name] is not None and said != ["--parameters"], f"{name} goes with --parameters; leave it out")
    known = given["--model"] is None or given["--model"] in MODELS
    wrong_if(not known, f"no sizes are known of {given['--model']!r}, only of {', '.join(MODELS)}; give --parameters")


def _sizes(policy: Policy, run: RunConfig | None, cost: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sizes of a step from what was measured, a known model or what was said by hand; and how it is summed."""
    found = {"certified": policy.exactness == "certified", "public": any(rule.public for rule in policy.classes)}
    if run is not None:
        found |= {"half": run.run.mixed_precision == "bf16", "state_bytes": STATES[run.optimizer.name]}
        return found | {"parameters": cost.parameters, "trained": cost.trained, "microbatch": cost.microbatch}
    if given["--model"] is not None:
        return found | {"half": True, **pick(MODELS[given["--model"]], "parameters trained microbatch outside largest")}
    whole, part = given["--parameters"], given["--trained"]
    return found | {"parameters": whole, "trained": whole if part is None else part, "microbatch": given["--microbatch"] or 16}


def ranks_text(ranks: Ranks, per: PerRank, step: Step | None) -> Iterator[Shown]:
    """Yields memory and communication of a rank, with the formula of every part and the values of its letters."""
    yield (
        f"predicted for each of {counted(ranks.processes, 'rank')} under {'FSDP2' if ranks.sharded else 'DDP'}: at most "
        f"{counted(ranks.each, 'contribution')} of {number(ranks.contributions)} a step, microbatches of {ranks.microbatch}"
    )
    for what, amounts in (("memory", per.memory), ("sent in a step", per.sent)):
        columns = {what: lambda one: one.name, "when": lambda one: one.when, "bytes": lambda one: size(one.bytes)}
        yield table_of(amounts, columns | {"formula": lambda one: one.formula})
    values = {letter: value for one in (*per.memory, *per.sent) for letter, value in one.inputs.items()}
    yield ", ".join(f"{letter} = {value:,}" for letter, value in values.items())
    without = "" if per.complete else ", without activations"
    yield f"peak {size(per.peak_bytes)}{without}: what is there always, and at the {per.peak_at}"
    yield (
        f"sent in a step {size(per.sent_bytes)}, and as much received; without privacy {size(per.plain_bytes)}. Over the links "
        f"of H100s, by their sheet: {duration(scaling.communication(ranks, ASSUMED))}"
    )
    if step is not None:
        parts = {"compute": step.compute, "communication": step.communication, "noise": step.noise, "ledger": step.ledger}
        yield "predicted step on H100s: " + ", ".join(f"{name} {duration(value)}" for name, value in parts.items())
        yield (
            f"together {duration(step.seconds)}, {number(step.ratio, 2)} times one without privacy, at {TOKENS} tokens a "
            "contribution. Nobody has measured it; docs/scaling.md has the inputs"
        )


def _with_noise(policy: Policy, planned: Plan, pairs: Sequence[Shape]) -> list[Shape]:
    """Returns pairs with the noise of a release, at scale 1, where one figure is that of all of them; else without any.

    Noise that is drawn per sample differs from step to step, and that of other families is no Gaussian of the schedule's size.
    """
    stds = {block.std for block in planned.blocks if block.std}
    plain = policy.mechanism.name == GAUSSIAN and policy.noise_injection == "scheduled"
    std = stds.pop() / policy.normalizer if len(stds) == 1 and plain else None
    return [replace(pair, std=pair.std if plain and pair.std is not None else std) for pair in pairs]


def design_of(policy: Policy) -> str:
    """Names the line of the picture that a policy draws."""
    return "tangent" if policy.geometry else "factors"


def over_rank_text(over: NoiseOverRank, design: str, blocks: Sequence[BlockNoise], left_out: int) -> Iterator[Shown]:
    """Yields noise on the product of LoRA pairs over ranks, by design, and what stands for the norms of their factors."""
    unit = ", in tau" if over.relative else ""
    yield f"noise over rank, on Z = A B^T of {counted(over.pairs, 'LoRA pair')} in one step{unit}"
    yield lambda glyphs: rank_picture(over, glyphs)
    columns = {one: lambda at, one=one: number(getattr(at.noise, one)) for one in DESIGNS}
    yield table_of(over.at, {"rank": lambda at: at.label, **columns})
    yield from sentences_of(over, design)
    if blocks:
        alike = groupby(blocks, key=lambda one: (kind(one.name), replace(one, name="")))
        yield table_of(
            [list(part) for _, part in alike],
            {
                "block": lambda part: span([one.name for one in part]),
                "pairs in each": lambda part: str(part[0].pairs),
                "noise std on the sum": lambda part: number(part[0].std),
                "coordinates": lambda part: f"{part[0].coordinates:,}",
                "noise energy after projection": lambda part: f"{part[0].energy:,} std^2",
            },
        )
    if left_out:
        yield f"left out: {counted(left_out, 'tensor')} of no pair of linear layers, or beside a magnitude (DoRA)"


def solution_text(solution: Solution, path: Path) -> Iterator[Shown]:
    """Yields the lines to change, and what every class gets then."""
    if not solution.lines:
        yield "nothing to change"
    for line in solution.lines:
        yield f'[[class]] name = "{line.where}"' if line.where else "at the top of the policy"
        yield styled("red", f"-   {line.key} = {line.old}")
        yield styled("green", f"+   {line.key} = {line.new}")
    if solution.solve == "normalizer":
        yield (
            "\nthe normalizer divides the noised sum of every step: this is the number of contributions that a step draws on "
            "average. It scales the learning rate and touches no guarantee"
        )
        return
    yield table_of(
        solution.classes,
        {
            "class": lambda item: item.name,
            "at most": lambda item: "" if item.target is None else f"{item.target:g}",
            "epsilon now": lambda item: rounded_up(item.epsilon_before, 6),
            "epsilon then": lambda item: rounded_up(item.epsilon, 6),
            "waste then": lambda item: f"{item.waste:.2f}",
        },
    )
    if solution.solve == "multiplier":
        yield (
            "multipliers are those that each class brings by itself; noise of others in blocks that it shares lowers its"
            " epsilon further. Least is wasted where classes that share blocks have equal products of clip norm and noise"
            " multiplier"
        )
    if solution.lines:
        text = ", ".join(line.assignment for line in solution.lines)
        yield f"to compare: dptrain plan {shlex.quote(str(path))} --what-if {shlex.quote(text)}"


def comparison_text(policy: Policy, planned: Plan, others: Sequence[tuple[str, Policy, Plan]]) -> Iterator[Shown]:
    """Yields the plans side by side; what differs from the first is marked."""
    names = ["as it is", *(f"what if {index}" if len(others) > 1 else "what if" for index in range(1, len(others) + 1))]
    for name, (text, _, _) in zip(names[1:], others, strict=True):
        yield f"{name}: {text}"
    base, *columns = [changes.figures(policy, planned), *(changes.figures(other, plan) for _, other, plan in others)]
    rows = table("", *names)
    section = None
    for key in dict.fromkeys(key for column in (base, *columns) for key in column):
        if key[0] != section:
            section = key[0]
            rows.add_row(styled("bold", section) if section else "", *[""] * len(names))
        old, cells = base.get(key), []
        for column in columns:
            new = column.get(key)
            text = _shown(key[1], new) + _change(old, new)
            cells.append(styled("bold yellow", text) if changes.differs(old, new) else text)
        rows.add_row(f"  {key[1]}", _shown(key[1], old), *cells)
    yield rows
    yield "*: differs. Nothing was written; a policy that differs must be signed anew"


def _variance(value: float | None) -> str:
    """Returns a variance; there is none where no multiplier keeps what was signed, or the family has no variance."""
    return "none" if value is None else number(value)


def expected_per_step(policy: Policy, counts: Mapping[str, int]) -> float:
    """Returns how many contributions a step draws on average."""
    mean = policy.sampling.mean_rate
    return float(sum(mean(policy.class_rule(name).sampling_rate) * count for name, count in counts.items()))


def _shown(name: str, value: float | str | None) -> str:
    if value is None:
        return "-"
    if name.startswith("epsilon"):
        return rounded_up(float(value))
    return value if isinstance(value, str) else number(value) if isinstance(value, float) else f"{value:,}"


def _change(base: float | str | None, value: float | str | None) -> str:
    if not changes.differs(base, value):
        return ""
    numbers = isinstance(base, int | float) and isinstance(value, int | float) and math.isfinite(base) and math.isfinite(value)
    return f" * ({value / base - 1:+.0%})" if numbers and base else " *"


def _blocks_text(planned: Plan) -> Iterator[Shown]:
    """Yields noise per block, neighbouring layers with the same classes and noise as one row."""
    divided = any(block.share for block in planned.blocks)
    rows = table("block", "noise std on the sum", *(["weight in clips"] if divided else []), "classes")
    for _, same in groupby(planned.blocks, key=lambda block: (kind(block.name), block.std, block.share, block.classes)):
        part: list[BlockPlan] = list(same)
        first = part[0]
        rows.add_row(
            span([block.name for block in part]),
            number(first.std) if first.std else "none: public",
            *([f"{first.share / 1e6:g}"] if divided else []),
            ", ".join(first.classes),
        )
    yield rows
