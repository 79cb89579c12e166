"""Say what follows from a policy, in words that its owner can read to the contributors, and which mistakes it likely holds.

`consequence` is the form of one finding, `case` what is known beside the policy, `facts`, `class_mistakes`,
`policy_mistakes` and `auditors` are the findings, `fixes` the values that mend them, `survey` counts a corpus on disk.
"""

from dptrain.cli.advice.auditors import AUDITOR_RULES
from dptrain.cli.advice.case import Case, CorpusSize
from dptrain.cli.advice.class_mistakes import ANY_CLASS_RULES, CLASS_RULES
from dptrain.cli.advice.facts import facts
from dptrain.cli.advice.findings import Change, Consequence
from dptrain.cli.advice.policy_mistakes import POLICY_RULES

__all__ = ["Case", "Change", "Consequence", "CorpusSize", "consequences"]


def consequences(case: Case) -> tuple[Consequence, ...]:
    """Facts and likely mistakes, class by class in the order of the policy, then what holds for all of it."""
    found = [*facts(case)]
    found += [item for planned in case.plan.classes for rule in CLASS_RULES for item in rule(case, planned)]
    found += [item for planned in case.plan.reaches for rule in ANY_CLASS_RULES for item in rule(case, planned)]
    found += [item for whole in (*AUDITOR_RULES, *POLICY_RULES) for item in whole(case)]
    order = [*(rule.name for rule in case.policy.classes), None]
    return tuple(item for name in order for item in found if item.class_name == name)
