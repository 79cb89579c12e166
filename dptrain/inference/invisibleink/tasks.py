"""Reads a generation task: a file with the prompts of a text, and the place that a reference has in one of them.

    system = "You are a chatbot"                         # optional
    public = "Write a fake review of a {kind}."
    private = "[[Here is a review: {reference}. ]]Write a fake review of a {kind}."
    opening = "I went there"                             # optional: words that every text begins with
    labels = ["kind"]                                    # optional: public words, given with each text
    reference_tokens = 256                               # a reference is cut to this many

``[[A||B]]`` in the private prompt stands for A where there is a reference, and for B, or nothing, where there is none. So a
null reference has a prompt of its own: it has to be the public one, byte for byte, which is what the sensitivity of C/B rests
on (Property 1). Words in braces that are no label are refused. No text of a reference or label is read as a template.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from attest.files import read_limited
from dptrain.errors import ConfigError

REFERENCE: Final = "reference"
"""Name of the place of the reference."""

MOST_BYTES: Final = 1 << 16
"""Bounds a task's file."""

_GROUP = re.compile(r"\[\[(.*?)(?:\|\|(.*?))?\]\]", re.DOTALL)
_PLACE = re.compile(r"\{([a-z_]+)\}")
_TEXTS = ("public", "private", "system", "opening")
_KEYS = {*_TEXTS, "labels", "reference_tokens"}


@dataclass(frozen=True)
class Task:
    """Holds the prompts of a task. All of it is public, and chosen without looking at references.

    Guarantee: a null reference renders the public prompt byte for byte, for all labels.

    Attributes:
        public: prompt without a reference. private: with a place for one. reference_tokens: to which a reference is cut.
        system: system prompt; empty for none. opening: words that every text begins with, free of charge.
        labels: names of public words that prompts have places for.

    Raises:
        ConfigError: code TASK, a key, a place or a group that cannot be; NULL_REFERENCE, null renders something else.
    """

    public: str
    private: str
    reference_tokens: int
    system: str = ""
    opening: str = ""
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not all(isinstance(getattr(self, key), str) for key in _TEXTS) or not self.public:
            raise ConfigError("TASK", f"{', '.join(_TEXTS)} are texts, and the public prompt is not empty")
        count = self.reference_tokens
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 1 << 20:
            raise ConfigError("TASK", f"reference_tokens is {count!r}; expected a whole number from 1 on: a public length")
        good = all(isinstance(one, str) and _PLACE.fullmatch(f"{{{one}}}") for one in self.labels)
        if not good or REFERENCE in self.labels or len(set(self.labels)) != len(self.labels):
            sentence = f"labels are names of a-z and _, each once, and none is {REFERENCE!r}"
            raise ConfigError("TASK", f"{sentence}; got {list(self.labels)!r:.80}")
        self._check_places()
        if _chosen(self.private, null=True) != self.public:
            raise ConfigError(
                "NULL_REFERENCE",
                f"without a reference the private prompt reads {_chosen(self.private, null=True)!r:.200}, the public one "
                f"{self.public!r:.200}; they have to be equal: put what differs into [[with a reference||without]]",
            )

    @classmethod
    def read(cls, path: str | Path) -> "Task":
        """Reads the file of a task.

        Raises:
            ConfigError: code TASK, it is no TOML, or has unknown keys; else as `Task`. FileRefused: it cannot be read.
        """
        return cls._of(read_limited(Path(path), MOST_BYTES, "task"), str(path))

    @classmethod
    def shipped(cls, name: str) -> "Task":
        """Reads one of the tasks that come along: those of the paper's tables 5 and 11 (`names`).

        Raises:
            ConfigError: code TASK, there is none of this name.
        """
        if name not in names():
            raise ConfigError("TASK", f"no task is named {name!r:.40}; there are {', '.join(names())}")
        return cls._of((_shelf() / f"{name}.toml").read_bytes(), name)

    def render(self, reference: str | None, labels: Mapping[str, str] | None = None) -> str:
        """Returns the prompt of a reference.

        Args:
            reference: its text; None or empty is null. labels: by name, all of them.

        Raises:
            ConfigError: code LABELS, other names than the task has.
        """
        given = dict(labels or {})
        if set(given) != set(self.labels) or not all(isinstance(one, str) for one in given.values()):
            raise ConfigError("LABELS", f"labels given are {sorted(given)!r:.80}, the task has {sorted(self.labels)!r:.80}")
        text = self.private if reference else self.public
        if reference:
            given[REFERENCE] = reference
        chosen = _chosen(text, null=False) if reference else text
        return _PLACE.sub(lambda found: given[found[1]], chosen)

    def frame(self, labels: Mapping[str, str] | None = None) -> str:
        """Returns the prompt of a reference without its text: what its length adds to is public. Raises ConfigError: LABELS."""
        mark = "\0"
        return self.render(mark, labels).replace(mark, "")

    def words(self, label: str | None, given: Mapping[str, str] | None = None) -> dict[str, str]:
        """Returns the public words of a text, by name, from the label of its references and words that are given for all.

        A label is the one word that is not given; where there are more, it reads ``name=word, name=word``. A task without
        places for words takes any label, which then says only whose references are together.

        Args:
            label: None where references have none.

        Raises:
            ConfigError: code LABELS, a word is missing, unknown, or given twice.
        """
        found = dict(given or {})
        open_ = [name for name in self.labels if name not in found]
        if unknown := sorted(set(found) - set(self.labels)):
            sentence = f"the task has no place for {', '.join(unknown):.80}"
            raise ConfigError("LABELS", f"{sentence}; it has {sorted(self.labels)!r:.80}")
        if label is not None and len(open_) == 1:
            found[open_[0]] = label
        elif label is not None and open_:
            pairs = [part.partition("=") for part in label.split(", ")]
            found |= {name: word for name, _, word in pairs if name in open_}
        if missing := [name for name in self.labels if not found.get(name)]:
            sentence = f"the task has places for {', '.join(missing):.80}"
            raise ConfigError("LABELS", f"{sentence}, and nothing says the words; give them for all texts, or by public labels")
        return found

    @property
    def digest(self) -> str:
        """SHA-256 of all that the task says, in hex."""
        said = [getattr(self, name) for name in ("public", "private", "reference_tokens", "system", "opening", "labels")]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()

    def _check_places(self) -> None:
        known = set(self.labels)
        private, public = _PLACE.findall(_chosen(self.private, null=False)), _PLACE.findall(self.public)
        for name in (*private, *public):
            if name != REFERENCE and name not in known:
                near = get_close_matches(name, [REFERENCE, *known], 1)
                how = f"write {{{near[0]}}}, if that is meant" if near else f"add it to labels, or leave {{{name}}} out"
                raise ConfigError("TASK", f"the prompts have a place {{{name}}}, which is no label of the task; {how}")
        if REFERENCE in public or REFERENCE in _PLACE.findall(_chosen(self.private, null=True)):
            sentence = f"{{{REFERENCE}}} stands outside of [[ ]], so that it is there without a reference too"
            raise ConfigError("TASK", f"{sentence}; put it, and what belongs to it, into [[ ]] in the private prompt")
        if private.count(REFERENCE) != 1:
            sentence = f"the private prompt has {private.count(REFERENCE)} places {{{REFERENCE}}}"
            raise ConfigError("TASK", f"{sentence}; expected one, within [[ ]]")
        if any(mark in text for text in (self.public, _GROUP.sub("", self.private)) for mark in ("[[", "]]")):
            raise ConfigError("TASK", "[[ and ]] stand in pairs in the private prompt alone")

    @classmethod
    def _of(cls, data: bytes, name: str) -> "Task":
        try:
            table: dict[str, Any] = tomllib.loads(data.decode())
        except ValueError as error:
            raise ConfigError("TASK", f"{name} is no TOML: {error}") from error
        missing = {"public", "private", "reference_tokens"} - table.keys()
        if unknown := sorted(table.keys() - _KEYS):
            near = get_close_matches(unknown[0], _KEYS, 1)
            how = f"{near[0]} is known" if near else f"known are {', '.join(sorted(_KEYS))}"
            raise ConfigError("TASK", f"{name} has the unknown key {unknown[0]!r:.80}; {how}")
        if missing:
            raise ConfigError("TASK", f"{name} lacks {' and '.join(sorted(missing))}; a task says it")
        if not isinstance(table.get("labels", []), list):
            raise ConfigError("TASK", f"{name} has labels {table['labels']!r:.80}; expected a list of names")
        return cls(**{**table, "labels": tuple(table.get("labels", ()))})


def names() -> list[str]:
    """Returns the names of the tasks that come along."""
    return sorted(_stems())


def _stems() -> Iterator[str]:
    return (one.name.removesuffix(".toml") for one in _shelf().iterdir() if one.name.endswith(".toml"))


def _shelf() -> Any:
    return files("dptrain.inference.invisibleink") / "shipped"


def _chosen(text: str, *, null: bool) -> str:
    return _GROUP.sub(lambda found: (found[2] or "") if null else found[1], text)
