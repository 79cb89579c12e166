"""Says what a plan costs, and what its clip norm would be worth under other relations; without torch and without a model."""

from typing import Any

from dptrain.inference.invisibleink import formulas
from dptrain.inference.invisibleink.plan import Plan
from ledger.budget.rho import NANO, epsilon_of_rho


def figures(plan: Plan, *, batches: dict[str | None, int] | None = None, cap_nano: int | None = None,
            minibatch: int | None = None) -> dict[str, Any]:  # fmt: skip
    """Returns the figures of a plan, each under the name that `dptrain generate --plan --json` has for it.

    Args:
        batches: number of batches by label, where the references are known. cap_nano: most that a contribution may spend.
        minibatch: rows of one call of the model, None for all.
    """
    size = minibatch or plan.batch + 1
    cost = plan.tokens * plan.nano_rho
    each = 1 if cap_nano is None else cap_nano // cost
    found: dict[str, Any] = {
        "batch": plan.batch,
        "tokens": plan.tokens,
        "temperature": plan.tau,
        "top_k": plan.k,
        "delta": plan.delta,
        "adjacency": plan.adjacency,
        "records": plan.records,
        "clip_norm": plan.clip,
        "nano_rho_per_token": plan.nano_rho,
        "nano_rho_per_text": cost,
        "rho_per_token": plan.nano_rho / NANO,
        "rho_per_text": plan.rho,
        "epsilon": plan.epsilon,
        "epsilon_cap": plan.epsilon if cap_nano is None else epsilon_of_rho(cap_nano / NANO, plan.delta),
        "epsilon_under": _others(plan),
        "forward_rows_per_token": -(-(plan.batch + 1) // size) * size,
        "guarantee": plan.sentence,
    }
    if batches is not None:
        by_label = [{"label": label, "batches": count, "texts_at_most": count * each} for label, count in batches.items()]
        found["references_by_label"] = by_label
        found["batches"] = sum(batches.values())
        found["texts_at_most"] = sum(batches.values()) * each
    return found


def queries_paid(plan: Plan, cap_nano: int) -> dict[str, Any]:
    """Returns for how many queries the budget of a corpus pays, and the epsilon of all of them after some: costs of queries
    that retrieve from one corpus add up."""
    cost = plan.tokens * plan.nano_rho
    most = cap_nano // cost
    some = sorted({*(10**power for power in range(len(str(most)))), most} - {0})
    after = [{"queries": count, "epsilon": epsilon_of_rho(count * cost / NANO, plan.delta)} for count in some if count <= most]
    return {"queries_at_most": most, "epsilon_after": after}


def _others(plan: Plan) -> dict[str, float]:
    """Returns the epsilon of the same clip norm under each relation; drawing from all tokens costs what drawing from k does."""
    found = {}
    for name in formulas.ADJACENCIES:
        found[name] = _epsilon(plan, name, 1)
        if plan.records > 1:
            found[f"{name}, {plan.records} of one person"] = _epsilon(plan, name, plan.records)
    found["k = all"] = _epsilon(plan, plan.adjacency, plan.records)
    return found


def _epsilon(plan: Plan, adjacency: str, records: int) -> float:
    nano = formulas.nano_rho(plan.clip, plan.batch, plan.tau, adjacency=adjacency, records=records)
    return epsilon_of_rho(plan.tokens * nano / NANO, plan.delta)
