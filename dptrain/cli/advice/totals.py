"""What a limit of epsilon over all runs means for a class, and whether a run can begin under it at all."""

import math
from collections.abc import Iterator

from dptrain.cli.advice.case import Case
from dptrain.cli.advice.consequence import Consequence, fact, warning
from dptrain.cli.advice.fixes import in_class, rounded
from dptrain.planning.plan import ClassPlan
from dptrain.planning.rounding import at_most
from dptrain.planning.totals import ClassTotal, total_of


def total_over_runs(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    """A limit over all runs, or one that not even this run keeps."""
    total = total_of(case.policy, planned)
    if total is None:
        return
    if total.used > total.limit:
        limit = [] if math.isinf(total.used) else [in_class(planned.name, "max_epsilon_total", rounded(total.used, 3, up=True))]
        yield warning(
            "TOTAL_EXCEEDED",
            f"max_epsilon_total is {total.limit:g}, and this run by itself could use {at_most(total.used)} of it, with all "
            f"{case.policy.redo_steps} steps that may be done again: it cannot begin. More noise, fewer steps or fewer "
            "redo_steps mend it, or a larger limit",
            *limit,
            class_name=planned.name,
        )
        return
    yield fact(
        "TOTAL",
        f"over all runs together a contribution may spend epsilon {total.limit:g} at delta {float(case.policy.delta):g}, "
        f"whatever later policies say: this run could use {at_most(total.used)}, every step that may be done again included, "
        f"and {repeated(total)}. No run begins that could exceed it",
        planned.name,
    )


def repeated(total: ClassTotal) -> str:
    """How many runs like this one fit into a limit, in words."""
    if total.runs is None:
        return "any number of such runs fit"
    if total.runs == 1:
        return "no second run like it fits"
    return f"{total.runs:,} runs like it fit one after the other"
