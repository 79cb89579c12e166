"""`dptrain generate`: texts from private references.

* `command`: the command and its options. `asked`: what they come to: a plan, references, a budget.
* `making`: makes the texts, and shows them. `shown`: the figures of a plan, and what a run made, in words.
"""

from dptrain.cli.generate.command import generate

__all__ = ["generate"]


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
