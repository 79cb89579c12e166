"""Replaces what is new in every run, and prose, by words that still say its form."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROSE = frozenset({"condition", "notes", "sentence", "sentences", "statements", "unseen", "words"})
"""Keys of sentences for people. Kept is that there is one, or how many there are; their wording may change."""

EXPLAINED = frozenset({"exactness"})
"""Keys of a word with its explanation behind a colon. The word is kept."""

_FRESH: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"\+([0-9a-f]{8})\+([0-9A-Za-z+/]{40,}={0,2})"), lambda found: f"+<hex 8>+<base64 {len(found[2])}>"),
    (re.compile(r"dpt_[0-9A-Za-z_-]{43}"), lambda found: "dpt_<base64 43>"),
    (re.compile(r"127\.0\.0\.1:[0-9]+"), lambda found: "127.0.0.1:<port>"),
    (re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{8,}(?![0-9A-Za-z])"), lambda found: f"<hex {len(found[0])}>"),
    (re.compile(r"(?<![0-9A-Za-z+/])[0-9A-Za-z+/]{43}=(?![0-9A-Za-z+/=])"), lambda found: "<base64 44>"),
    (re.compile(r"(?<=opacus )[0-9]+(\.[0-9]+)+"), lambda found: "<version>"),
)
"""Patterns of verifier keys, tokens, ports, hashes and identifiers, other digests, and versions of other libraries."""


@dataclass(frozen=True)
class Normaliser:
    """Normalises the answer of one command.

    Attributes:
        directory: where the command ran; its path becomes ``<path>``.
        measured: the word for each measured number, by the keys that lead to it, such as ``measured.peak_bytes``.
    """

    directory: Path
    measured: Mapping[str, str]

    def of(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """Returns the normalised value at a path of keys. Indexes of lists are no part of a path."""
        word = self.measured.get(".".join(path))
        if word is not None:
            assert isinstance(value, int | float), f"{path} is no number: {value!r}"
            return word
        if isinstance(value, list):
            return [self.of(item, path) for item in value]
        if isinstance(value, str):
            return self._string(value, path[-1] if path else "")
        return self._object(value, path) if isinstance(value, dict) else value

    def _object(self, value: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, item in value.items():
            word = self._text(key)
            while word in found:
                word += "'"
            found[word] = self.of(item, (*path, key))
        return found

    def _string(self, value: str, key: str) -> str:
        if key in EXPLAINED and ": " in value:
            return f"{value.partition(': ')[0]}: <sentence>"
        return "<sentence>" if key in PROSE else self._text(value)

    def _text(self, text: str) -> str:
        text = text.replace(str(self.directory), "<path>")
        for pattern, word in _FRESH:
            text = pattern.sub(word, text)
        return text
