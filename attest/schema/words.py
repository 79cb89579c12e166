"""Words of a field that installed packages may add to: what the format specifies, and beside it what others provide.

A word that the format specifies stands in CDDL, pages and completions. A provided one has a dot, ``provider.word``, so that no
later version of the format can mean something else by it. Nobody without the provider reads a document that says it.
"""

import json
import re
import site
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Generic, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

from attest.errors import Refused

NOT_INSTALLED: Final = "NOT_INSTALLED"
"""Code of the refusal of a provided word whose provider is not there."""

ENTRY_POINTS: Final = "dptrain.mechanisms"
"""Group of entry points that are loaded for a provided word; each is named by the word, and registers it when it is loaded."""

_FORM: Final = re.compile(r"[a-z][a-z0-9_]{0,39}\.[a-z][a-z0-9_]{0,39}")

V = TypeVar("V")


class Words(Mapping[str, V], Generic[V]):
    """Maps words to what they mean. Iterating gives those that the format specifies; `provided` has the others.

    Args:
        specified: the words of the format.
    """

    def __init__(self, specified: Mapping[str, V]) -> None:
        self._specified = dict(specified)
        self.provided: dict[str, V] = {}
        self.failures: dict[str, str] = {}

    def __getitem__(self, word: str) -> V:
        return self._specified[word] if word in self._specified else self.provided[word]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specified)

    def __len__(self) -> int:
        return len(self._specified)

    def __contains__(self, word: object) -> bool:
        return word in self._specified or word in self.provided or (is_foreign(word) and self._load(str(word)))

    def specifies(self, word: str) -> bool:
        """Tells whether the format has a word."""
        return word in self._specified

    def provide(self, word: str, value: V) -> None:
        """Adds a word that an installed package provides.

        Raises:
            ValueError: it has no dot, or the form of no word.
        """
        if not is_foreign(word):
            raise ValueError(f"a provided word is written provider.word, both of a-z, 0-9 and _, got {word!r}")
        self.provided[word] = value

    def _load(self, word: str) -> bool:
        """Loads what was installed under a word, and nothing else that lies on the path: a stranger's document may lie in a
        stranger's folder, which the reader works in and where anything may call itself a package."""
        installed = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
        for package in metadata.distributions(path=installed):
            for point in package.entry_points.select(group=ENTRY_POINTS, name=word):
                try:
                    _check_installed(point.module.partition(".")[0], package, installed)
                    point.load()
                except Exception as error:
                    self.failures[word] = f"{type(error).__name__}: {error}"
        return word in self.provided


def _check_installed(name: str, package: metadata.Distribution, installed: Sequence[str]) -> None:
    """Refuses a top-level module that the path gives from elsewhere than where its package was installed; runs nothing of it.

    Of an editable install the folder counts that its installer wrote down (PEP 610). Raises ImportError.
    """
    spec, told = find_spec(name), json.loads(package.read_text("direct_url.json") or "{}")
    editable = [url2pathname(urlsplit(told["url"]).path)] if told.get("dir_info", {}).get("editable") else []
    folders = [Path(folder).resolve() for folder in (*installed, *editable)]
    parts = [] if spec is None else [spec.origin] if spec.origin else spec.submodule_search_locations or []
    for place in parts:
        if not any(Path(place).resolve().is_relative_to(folder) for folder in folders):
            raise ImportError(f"{name} was not installed where Python finds it first; start in another folder: {place!r}")


def is_foreign(word: object) -> bool:
    """Tells whether a word has the form of provided ones."""
    return type(word) is str and _FORM.fullmatch(word) is not None


def check_among(word: object, words: Mapping[str, object], told: object, error: Refused, no_text: str = "RANGE") -> None:
    """Refuses what is no word of a field.

    Guarantee:
        On return the meaning of the word is known to this process: a word whose provider is not installed is refused by name.
        Code is loaded for a word only from where Python installs packages, and only as a package names that very word.

    Raises:
        error: code RANGE, `no_text` for what is no text; `NOT_INSTALLED` for a word of the form of provided ones that nothing
            installed provides.
    """
    if type(word) is str and word in words:
        return
    if isinstance(words, Words) and is_foreign(word):
        sentence = f"unknown {told} {word!r}: install what provides it, as an entry point of {ENTRY_POINTS!r}, or import that"
        if word in words.failures:
            sentence += f"; what is installed cannot be loaded: {words.failures[word]:.200}"
        raise error(NOT_INSTALLED, sentence)
    code = "RANGE" if type(word) is str else no_text
    raise error(code, f"{told} is {ascii(word)[:60]}, expected one of {', '.join(words)}")
