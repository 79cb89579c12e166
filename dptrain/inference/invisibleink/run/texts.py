"""Keeps the texts of a run: one line of JSON each, appended and synced whole, and how many texts were begun."""

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from attest.files import atomic_write, sync_directory
from dptrain.errors import ResumeRefused

TEXTS: Final = "texts.jsonl"
BEGUN: Final = "begun.json"

QUERY: Final = "query"
"""Stands in the place of ``label`` in texts that answer queries."""


@dataclass(frozen=True, slots=True)
class Text:
    """Holds a text of a run. Which references it was made from is not said.

    Attributes:
        number: from 1 on, in the order in which texts were begun.
        label: public, of its references; None without labels. The id of its query where there is one.
        text: with the opening words of the task. tokens: how many were drawn. finish: ``stop``, at an end token, or ``length``.
    """

    number: int
    label: str | None
    text: str
    tokens: int
    finish: str


class Texts:
    """Appends to the texts of a run.

    Guarantee: a text is in the file whole and synced when `append` returns, and what a crash cut is taken away by the next run.
    `note` is durable when it returns, so a text that was begun and is not in the file is known to be lost.

    Args:
        label: under which name the label of a text stands in the file.

    Attributes:
        whole: texts in the file. of_label: how many of them each label has. tokens: of all of them.
        begun: number of the last text that was begun.
        places: by label, where its batches go on.
    """

    def __init__(self, folder: Path, label: str = "label") -> None:
        """Raises ResumeRefused: code TEXTS, a line in the file is no text of a run, or the note of what was begun is none."""
        self._path, self._begun, self._label = folder / TEXTS, folder / BEGUN, label
        self.whole = self.tokens = self.begun = 0
        self.of_label = Counter[str | None]()
        self.places: dict[str | None, int] = {}
        end = self._read()
        self._read_begun()
        self._stream = open(self._path, "ab")  # noqa: SIM115 - closed by `close`
        if self._stream.tell() > end:
            self._stream.truncate(end)
        os.fsync(self._stream.fileno())
        sync_directory(folder)

    @property
    def lost(self) -> int:
        """Returns how many texts were begun, paid for, and are not there."""
        return self.begun - self.whole

    def note(self, begun: int, places: Mapping[str | None, int]) -> None:
        """Notes how many texts were begun, one more before anything is paid for it, and where each label goes on."""
        self.begun, self.places = begun, dict(places)
        told = {"begun": begun, "places": [[label, place] for label, place in self.places.items()]}
        atomic_write(self._begun, f"{json.dumps(told)}\n".encode())

    def append(self, text: Text) -> None:
        """Writes a text that has ended."""
        named = {self._label if key == "label" else key: value for key, value in asdict(text).items()}
        self._stream.write(f"{json.dumps(named, ensure_ascii=False)}\n".encode())
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self.whole += 1
        self.of_label[text.label] += 1
        self.tokens += text.tokens

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()

    def _read(self) -> int:
        """Counts the whole texts; returns where the last one ends."""
        end, keys = 0, ("number", self._label, "text", "tokens", "finish")
        if not self._path.exists():
            return end
        with open(self._path, "rb") as stream:
            for place, line in enumerate(stream, 1):
                if not line.endswith(b"\n"):
                    break  # cut by a crash
                found = _object(line)
                if tuple(found) != keys or not isinstance(found["number"], int) or not isinstance(found["tokens"], int):
                    raise ResumeRefused("TEXTS", f"{self._path}, line {place} is no text of a run; restore the file")
                self.whole += 1
                self.of_label[found[self._label]] += 1
                self.tokens += found["tokens"]
                self.begun = max(self.begun, found["number"])
                end += len(line)
        return end

    def _read_begun(self) -> None:
        if not self._begun.exists():
            return
        found = _object(self._begun.read_bytes())
        begun, places = found.get("begun"), found.get("places")
        if not isinstance(begun, int) or not isinstance(places, list) or not all(_is_place(one) for one in places):
            raise ResumeRefused("TEXTS", f"{self._begun} says not how many texts were begun; restore it, or begin another run")
        self.begun, self.places = max(self.begun, begun), {label: place for label, place in places}


def _is_place(one: Any) -> bool:
    return isinstance(one, list) and len(one) == 2 and isinstance(one[1], int) and one[1] >= 0


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
