"""Numbers of contributions, or targets, given by hand per class: `sensitive=10000`."""

import math
from collections.abc import Iterable

import typer

from attest.policy import Policy


def count_of(text: str, rules: Policy) -> tuple[str, int]:
    """A class of the policy and a number of contributions.

    Raises:
        typer.BadParameter: The text is not CLASS=N. PolicyRefused: The policy has no such class.
    """
    name, _, count = text.partition("=")
    if not (count.isascii() and count.isdigit()):
        raise typer.BadParameter(f"{text!r} is not CLASS=N, for example {rules.classes[0].name}=10000")
    rules.class_rule(name)
    return name, int(count)


def goals_of(texts: Iterable[str], rules: Policy) -> dict[str, float]:
    """Epsilon per private class, from `2` for all of them or `sensitive=2` for one; what names a class counts before the rest.

    Raises:
        typer.BadParameter: A text is neither, or no positive finite number. PolicyRefused: The policy has no such class.
    """
    everywhere: float | None = None
    found: dict[str, float] = {}
    private = [rule.name for rule in rules.classes if not rule.public]
    for text in texts:
        name, given, value = text.rpartition("=")
        try:
            goal = float(value)
        except ValueError as error:
            raise typer.BadParameter(f"{text!r} is not an epsilon, nor CLASS=EPSILON, for example {private[0]}=2") from error
        if not 0.0 < goal < math.inf:
            raise typer.BadParameter(f"a target epsilon is a positive finite number, got {value}")
        if given:
            rules.class_rule(name)
            found[name] = goal
        else:
            everywhere = goal
    return ({name: everywhere for name in private} if everywhere is not None else {}) | found
