"""Holds what a check found: findings with their repairs, and whether a run would take what was checked."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from dptrain.errors import DptrainError


class NotChecked(DptrainError):
    """Refuses what cannot be checked: there is no model, or no rows that it takes."""


class Effect(StrEnum):
    """Names what becomes of something in a private run."""

    REFUSED = "refused"
    WEAKENED = "weakened"
    """The run goes on, and what it promises is weaker, or something private leaves it by another way."""
    CHANGED = "changed"
    """The run goes on as promised, and does this in another way."""


@dataclass(frozen=True)
class Finding:
    """One thing that a private run would refuse, or do otherwise.

    Attributes:
        effect: what becomes of it. code: that of the run's own refusal, where there is one.
        where: modules and tensors of a model by name, or a place in a script. sentence: what was found, and what to do.
        repair: Python that takes its place; empty where nothing was found that helps.
    """

    effect: Effect
    code: str
    where: str
    sentence: str
    repair: str = ""


@dataclass(frozen=True)
class Checked:
    """The verdict on a model or a script.

    Attributes:
        subject: what was checked. findings: in the order in which they are met. notes: what else to know, and what is unseen.
    """

    subject: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @property
    def accepted(self) -> bool:
        """Tells whether nothing was found that is refused or weakened."""
        return all(item.effect is Effect.CHANGED for item in self.findings)

    def verdict(self) -> str:
        """Says in a sentence what a private run would say."""
        counts = [(sum(item.effect is effect for item in self.findings), effect.value) for effect in Effect]
        told = ", ".join(f"{count} {word}" for count, word in counts if count)
        return f"A private run needs other lines here: {told}." if told else "Nothing was found that a private run refuses."

    def __str__(self) -> str:
        """Returns the findings, a line each with its repair below, then the verdict and the notes."""
        return "\n".join((self.subject, *map(shown, self.findings), self.verdict(), *self.notes))


@dataclass(frozen=True)
class CheckedScript(Checked):
    """The verdict on a program that was read and not run.

    Attributes:
        private: whether it opens a private run already.
    """

    private: bool


@dataclass(frozen=True)
class CheckedModel(Checked):
    """The verdict of the start of a run on a model.

    Attributes:
        parameters: how many numbers the model holds. trained: how many of them a run would train.
        left: how many it would train after the repairs; None where they do not suffice.
        rows: what the model was given, by name: type and sizes of one row. made_up: whether the run made the rows up.
        loss: what stood for the loss.
        under: by a word of a policy, the code by which a run under it would refuse the model besides; None where it would not.
    """

    parameters: int
    trained: int
    left: int | None
    rows: dict[str, str]
    made_up: bool
    loss: str
    under: dict[str, str | None]

    @property
    def mended(self) -> bool | None:
        """Tells whether a run takes the model after the repairs; None where it takes it as it is."""
        return (self.left is not None) if self.findings else None

    @property
    def repairs(self) -> tuple[str, ...]:
        """Returns the lines of Python that were tried, in their order; write them before the optimizer is made."""
        return tuple(dict.fromkeys(item.repair for item in self.findings if item.repair))

    def verdict(self) -> str:
        """Says in a sentence what a private run would say."""
        if not self.findings:
            return "A private run takes this model as it is."
        if self.left is None:
            tried = " These lines were tried, and do not suffice:" if self.repairs else ""
            return "A private run refuses this model." + "\n    ".join((tried, *self.repairs))
        share = f"{self.left:,} of {self.trained:,} parameters"
        told = f"A private run refuses this model as it is, and takes it after these lines, which leave {share} to train:"
        return "\n    ".join((told, *self.repairs))


def shown(finding: Finding) -> str:
    """Returns a finding as a person reads it: what and where, and below it the repair."""
    head = f"{finding.code} at {finding.where}: {finding.sentence}" if finding.where else f"{finding.code}: {finding.sentence}"
    return f"{head}\n    {finding.repair}" if finding.repair else head


def quoted(names: list[str], most: int = 3) -> Iterator[str]:
    """Yields names, and of many how many others there are."""
    yield from names[:most]
    if len(names) > most:
        yield f"{len(names) - most} others"
