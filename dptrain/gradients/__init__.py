"""Per-sample gradients in their cheapest exact form: one rule a layer.

Its rooms register the project's own rules. Those known by their structure serve in the order of these imports.
"""

from dptrain.gradients import attention, whole_modules, rules, generic  # noqa: F401, I001
from dptrain.gradients.rule_check import check_gradient_rule
from dptrain.gradients.forms import Dense, Form, Gather, Outer
from dptrain.gradients.registry import Call, Rule, gradient_rule

__all__ = ["Call", "Dense", "Form", "Gather", "Outer", "Rule", "check_gradient_rule", "gradient_rule"]


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
