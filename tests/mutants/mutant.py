"""A mutant: one promise of the engine broken by an edit of one place, and the test that must see it."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mutant:
    """One edit.

    Attributes:
        promise: what is broken, in words. file: below the root. old: text that stands there once. new: what takes its place.
        test: node id of the test that must fail; a function stands for all of its cases.
    """

    promise: str
    file: str
    old: str
    new: str
    test: str

    def source(self) -> str:
        """The file with the edit.

        Raises:
            ValueError: the text does not stand there exactly once, so that nobody knows what the edit would do.
        """
        text = (ROOT / self.file).read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.promise}: {self.old!r} stands {text.count(self.old)} times in {self.file}, expected once")
        return text.replace(self.old, self.new)
