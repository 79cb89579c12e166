"""`dptrain plan`: schedule, effective multipliers, epsilon and waste, before anything is spent."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from attest.gate import GateReport
from attest.policy import Policy
from dptrain.cli.files import OwnerKey, PolicyFile, RegistryFile, read_policy, read_signed_policy
from dptrain.cli.gate import judge
from dptrain.cli.output import JsonFlag, console, moment, number, print_json, styled, table
from dptrain.cli.planning import BoundPlan, Plan, bound_plan, class_stds, make_plan
from dptrain.support import unsupported


def plan(
    policy: PolicyFile,
    corpus: Annotated[
        Path | None, typer.Argument(metavar="CORPUS", exists=True, help="Count and judge this corpus as well.")
    ] = None,
    layers: Annotated[int, typer.Option(min=1, max=4096, help="Layers of the model.")] = 12,
    owner_key: OwnerKey = None,
    registry: RegistryFile = None,
    now: Annotated[int | None, moment("Moment of admission; default: now.")] = None,
    json: JsonFlag = False,
) -> None:
    """Show what a policy gives each class: noise per block, effective multiplier, epsilon, waste, expected draws.

    With a corpus, contributions are admitted as in training and their own signed bounds are accounted; the policy must
    be signed for that. Layers are counted without loading a model: blocks are embeddings, layer.0 ..., head.
    """
    rules = read_signed_policy(policy, owner_key).policy if corpus else read_policy(policy, owner_key)[0]
    planned = make_plan(rules, layers)
    report = judge(rules, policy, corpus, registry, now, None, owner_key) if corpus else None
    bounds = _signed_bounds(rules, planned, report) if report else {}
    if json:
        print_json(_as_json(rules, planned, report, bounds))
    else:
        _print(rules, planned, report, bounds)


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    app.command()(plan)


def _signed_bounds(policy: Policy, planned: Plan, report: GateReport) -> dict[str, list[tuple[int, BoundPlan]]]:
    """Per class: how many admitted contributions signed which bounds, most exposed first."""
    groups: dict[str, Counter[tuple[int, int]]] = {}
    for item in report.admitted:
        signed = item.admission.descriptor
        if signed.public:
            continue
        pair = (signed.noise_multiplier_micro, signed.clip_norm_micro)
        groups.setdefault(signed.admissibility_class, Counter())[pair] += 1
    bounds = {}
    for name, pairs in groups.items():
        rule, stds = policy.class_rule(name), class_stds(planned, name)
        found = [(count, bound_plan(policy, rule, sigma, clip, stds)) for (sigma, clip), count in pairs.items()]
        bounds[name] = sorted(found, key=lambda item: item[1].effective_multiplier)
    return bounds


def _print(policy: Policy, planned: Plan, report: GateReport | None, bounds: dict[str, list[tuple[int, BoundPlan]]]) -> None:
    out = console()
    out.print(f"corpus {policy.corpus}, {policy.steps} steps, delta {float(policy.delta):g}, {policy.accountant}")
    rows = table("class", "sigma", "z", "waste", "epsilon", "if content replaced", "if all redone", "draws of each")
    for item in planned.classes:
        preset = item.preset
        rows.add_row(
            item.name,
            number(preset.noise_multiplier),
            number(preset.effective_multiplier),
            f"{preset.waste:.2f}",
            number(preset.epsilon),
            number(preset.epsilon_replace),
            number(preset.epsilon_with_redo),
            number(item.expected_draws),
        )
    for public in planned.public:
        rows.add_row(public.name, *["public"] * 6, number(public.expected_draws))
    out.print(rows)
    literal = policy.noise_injection == "per_sample"
    given = "what is sure beforehand" if literal else "what the schedule gives"
    out.print(f"sigma: noise multiplier asked for; z: {given}; waste: z / sigma")
    if policy.disclosure == "occurrences_public":
        out.print(
            "occurrences are public: the ledger says who was drawn, and each occurrence counts in full. Epsilons here are for "
            "as many draws as one contribution in a million exceeds; what each spends is known only afterwards"
        )
    blocks = table("block", "noise std on the sum", "classes")
    for block in planned.blocks:
        blocks.add_row(block.name, number(block.std) if block.std else "none: public", ", ".join(block.classes))
    out.print(blocks)
    if literal:
        out.print(
            "noise is brought by those drawn, (sigma C)^2 of variance each: the noise of a step follows its draw, and the "
            "noise per block above is what the most demanding class brings, once"
        )
    else:
        out.print(f"noise energy against uniform noise in the same blocks: {planned.noise_energy_ratio:.0%}")
    for rule in policy.classes:
        if rule.depth.adapter is not None:
            out.print(
                f"class {rule.name} is bound to adapter {rule.depth.adapter!r}: it touches the parameters of that adapter "
                "alone, in every layer that has them; the ledger names it in their blocks"
            )
    if planned.lower_bounds:
        out.print(
            "bound to names, an adapter, heads or experts: multipliers are lower bounds, epsilons upper bounds, until a "
            "model is seen"
        )
    if report is not None:
        _print_corpus(policy, report, bounds)
    for sentence in unsupported(policy):
        out.print(styled("red", "✗", f" {sentence}"))


def _print_corpus(policy: Policy, report: GateReport, bounds: dict[str, list[tuple[int, BoundPlan]]]) -> None:
    out = console()
    rows = table("class", "signed by", "sigma", "clip norm", "z", "epsilon", "if content replaced")
    for name, groups in sorted(bounds.items()):
        for count, bound in groups:
            rows.add_row(
                name,
                str(count),
                number(bound.noise_multiplier),
                number(bound.clip_norm),
                number(bound.effective_multiplier),
                number(bound.epsilon),
                number(bound.epsilon_replace),
            )
    public = sum(item.admission.descriptor.public for item in report.admitted)
    if public:
        rows.add_row("public classes", str(public), *["public"] * 5)
    out.print(rows)
    per_step = _expected_per_step(policy, report)
    out.print(f"{len(report.admitted)} admitted, {len(report.refused)} refused; {number(per_step)} drawn per step on average")
    if not 0.1 <= per_step / policy.normalizer <= 10:
        far = f" sums are divided by the normalizer {policy.normalizer}, far from {number(per_step)}; this scales the learning "
        out.print(styled("yellow", "!", far + "rate and touches no guarantee"))


def _expected_per_step(policy: Policy, report: GateReport) -> float:
    counts = report.counts()["admitted"]
    return float(sum(policy.class_rule(name).sampling_rate * count for name, count in counts.items()))


def _as_json(
    policy: Policy,
    planned: Plan,
    report: GateReport | None,
    bounds: dict[str, list[tuple[int, BoundPlan]]],
) -> dict[str, Any]:
    data: dict[str, Any] = {
        "corpus": policy.corpus,
        "delta": float(policy.delta),
        "accountant": policy.accountant,
        "adjacency": policy.adjacency,
        "disclosure": policy.disclosure,
        "noise_injection": policy.noise_injection,
        "steps": policy.steps,
        "redo_steps": policy.redo_steps,
        **asdict(planned),
        "unsupported": list(unsupported(policy)),
    }
    if report is not None:
        data["gate"] = report.counts()
        data["expected_contributions_per_step"] = _expected_per_step(policy, report)
        data["signed_bounds"] = {
            name: [{"contributions": count, **asdict(bound)} for count, bound in groups] for name, groups in bounds.items()
        }
    return data
