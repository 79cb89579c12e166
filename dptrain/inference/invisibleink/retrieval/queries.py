"""Reads public queries, and gives each its place in a task: the public word ``{query}``."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attest.files import read_limited
from dptrain.errors import ConfigError
from dptrain.inference.invisibleink.references import encodes, read_object

if TYPE_CHECKING:
    from dptrain.inference.invisibleink.tasks import Task

QUERY: Final = "query"
"""Public word of a task that stands for the query."""

MOST_QUERY: Final = 4096
"""Characters of a query."""

_MOST_BYTES: Final = 1 << 28
_ROW: Final = '{"id": "...", "text": "..."}'


def checked(query: str) -> str:
    """Returns a query that can be asked.

    Raises:
        ConfigError: code QUERY, it is empty, too long, or has what no prompt can have.
    """
    if not isinstance(query, str) or not query.strip() or len(query) > MOST_QUERY:
        raise ConfigError("QUERY", f"a query is a text of 1 to {MOST_QUERY} characters, and not all of them spaces")
    if "\0" in query or any("\ud800" <= char <= "\udfff" for char in query):
        raise ConfigError("QUERY", "a query has a zero, or half of a character, which no prompt can have; take it out")
    return query


def read_queries(path: Path) -> dict[str, str]:
    """Reads public queries: JSONL with ``id`` and ``text`` each, in order; other fields are ignored.

    Raises:
        ConfigError: code QUERIES, a line is none, or an id stands twice; QUERY, as `checked`. FileRefused: it cannot be read.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(read_limited(path, _MOST_BYTES, "list of queries").split(b"\n"), 1):
        if not line.strip():
            continue
        row = read_object(line, path, number, "QUERIES", _ROW)
        one, text = row.get("id"), row.get("text")
        if not isinstance(one, str) or not one or not encodes(one) or not isinstance(text, str):
            raise ConfigError("QUERIES", f"{path}, line {number}: expected an id and a text: {_ROW}")
        if one in found:
            raise ConfigError("QUERIES", f"{path}, line {number}: its id stood on a line before; give each its own")
        try:
            found[one] = checked(text)
        except ConfigError as error:
            raise ConfigError("QUERY", f"{path}, line {number}: {error.sentence}") from None
    if not found:
        raise ConfigError("QUERIES", f"{path} has no queries; one is a line {_ROW}")
    return found


def one_query(text: str) -> dict[str, str]:
    """Returns one query under an id that follows from it. Raises ConfigError: code QUERY."""
    return {f"q-{hashlib.sha256(checked(text).encode()).hexdigest()[:12]}": text}


def words_of_queries(task: "Task", queries: Mapping[str, str], given: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Returns the public words of the text of each query: those that are given for all, and the query itself.

    Raises:
        ConfigError: code QUERY, the task has no place for it, or its word is given; LABELS, as `Task.words`.
    """
    if QUERY not in task.labels:
        sentence = f"the task has no place for a query; write {{{QUERY}}} into both of its prompts, and labels = [{QUERY!r}]"
        raise ConfigError("QUERY", f"{sentence}: it is a public word, given with each text")
    if QUERY in given:
        raise ConfigError("QUERY", f"the word {QUERY} is that of each query; leave --word {QUERY} out")
    return {one: task.words(None, {**given, QUERY: text}) for one, text in queries.items()}
