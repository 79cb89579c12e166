"""One finding about a policy: a fact, or a warning with the settings that would mend it."""

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Change:
    """A setting of `policy.toml` and a value that was computed for it, for example `steps` and `2000`."""

    setting: str
    value: str

    def __str__(self) -> str:
        return f"{self.setting} = {self.value}"


@dataclass(frozen=True, slots=True)
class Consequence:
    """One sentence about what follows from a policy.

    Attributes:
        level: `fact`, or `warning` for a likely mistake.
        code: Stable name for scripts.
        class_name: The class it is about, None for the whole policy.
        sentence: For a person.
        changes: Settings that mend a warning, all of them together; empty if no number can.
    """

    level: Literal["fact", "warning"]
    code: str
    class_name: str | None
    sentence: str
    changes: tuple[Change, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The finding for `--json`."""
        return {
            "level": self.level,
            "code": self.code,
            "class": self.class_name,
            "sentence": self.sentence,
            "changes": [{"setting": item.setting, "value": item.value} for item in self.changes],
        }


def fact(code: str, sentence: str, class_name: str | None = None) -> Consequence:
    """Something that follows, good or bad."""
    return Consequence("fact", code, class_name, sentence)


def warning(code: str, sentence: str, *changes: Change, class_name: str | None = None) -> Consequence:
    """A likely mistake, and what would mend it."""
    return Consequence("warning", code, class_name, sentence, changes)
