"""What a contribution may say to be noticed, or to stop a run; and the null that stands beside each."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.guarantees.hostile.scene import FAR, WIDTH


def null(examples: list[dict]) -> list[dict]:
    """The same contribution with a harmless payload whose loss has gradient zero."""
    return [{**each, "weight": 0.0} for each in examples]


@dataclass(frozen=True)
class Kind:
    """A hostile payload.

    Attributes:
        change: of one example. zero: whether the contribution counts as zero; else it is clipped like any other.
    """

    change: Callable[[dict], dict]
    zero: bool = True

    def __call__(self, examples: list[dict]) -> list[dict]:
        """The last example of the contribution says it; the others are as they were."""
        return [*examples[:-1], self.change(examples[-1])]


def _word(value: int) -> Callable[[dict], dict]:
    return lambda each: {**each, "ids": [*each["ids"][:2], value, *each["ids"][3:]]}


def _label(value: int) -> Callable[[dict], dict]:
    return lambda each: {**each, "label": value}


def _numbers(*values: float) -> Callable[[dict], dict]:
    return lambda each: {**each, "x": [values[place % len(values)] for place in range(WIDTH)]}


KINDS = {
    "infinite loss": Kind(lambda each: {**each, "offset": float("inf")}),
    "word out of range": Kind(_word(10**6)),
    "word below zero": Kind(_word(-1)),
    "label out of range": Kind(_label(99)),
    "label below zero": Kind(_label(-5)),
    "group out of range": Kind(lambda each: {**each, "group": 7}),
    "wrong branch": Kind(lambda each: {**each, "x": [10 * FAR, *each["x"][1:]]}, zero=False),
    "NaN": Kind(_numbers(float("nan"))),
    "1e38": Kind(_numbers(1e38), zero=False),
    "1e38 that overflows": Kind(_numbers(3.4e38, -3.4e38)),
}
