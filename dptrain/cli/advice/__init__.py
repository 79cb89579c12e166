"""Say what follows from a policy, in words that its owner can read to the contributors, and which mistakes it likely holds.

`case` is what is known beside the policy, `findings` the form of what is found and the values that mend it, `classes` and
`policies` are the checks.
"""

from dataclasses import replace

from dptrain.cli.advice import classes
from dptrain.cli.advice.case import Case, CorpusSize
from dptrain.cli.advice.findings import Change, Consequence
from dptrain.cli.advice.policies import CHECKS

__all__ = ["Case", "Change", "Consequence", "CorpusSize", "consequences"]


def consequences(case: Case) -> tuple[Consequence, ...]:
    """Facts and likely mistakes, class by class in the order of the policy, then what holds for all of it."""
    checks = {planned.name: (planned, (*classes.PRIVATE, *classes.ANY)) for planned in case.plan.classes}
    checks |= {planned.name: (planned, (*classes.PUBLIC, *classes.ANY)) for planned in case.plan.public}
    found = []
    for rule in case.policy.classes:
        planned, own = checks[rule.name]
        found += [replace(item, class_name=rule.name) for check in own for item in check(case, planned)]
    return (*found, *(item for check in CHECKS for item in check(case)))


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
