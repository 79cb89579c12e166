"""Answers queries over a corpus: one text each, from the references that a query retrieves; the corpus pays for every one."""

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from attest.files import atomic_write, read_limited
from dptrain.errors import ConfigError, ResumeRefused
from dptrain.inference.invisibleink.paying import BudgetMeter
from dptrain.inference.invisibleink.plan import Plan
from dptrain.inference.invisibleink.references import References, read_object
from dptrain.inference.invisibleink.retrieval import CORPUS, QUERY, Retrieval, checked
from dptrain.inference.invisibleink.run.run import Made, Run
from ledger.budget.log import BudgetLog
from ledger.errors import BudgetExhausted

if TYPE_CHECKING:
    from dptrain.inference.invisibleink.generator import InvisibleInk, Stream
    from dptrain.inference.invisibleink.tasks import Task

QUERIES: Final = "queries.jsonl"
"""File of a run's folder that has the queries which were asked in it."""

_MOST_BYTES: Final = 1 << 28
_ROW: Final = '{"id": "...", "text": "..."}'


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
        if not isinstance(one, str) or not one or not isinstance(text, str):
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


@dataclass(frozen=True)
class Corpus:
    """Stands where a run of batches has its pool: retrieves for one query at a time, and has the corpus pay.

    Attributes:
        retrieval: of its documents. plan: the numbers. log: pays.
    """

    retrieval: Retrieval
    plan: Plan
    log: BudgetLog

    @property
    def references(self) -> References:
        """All documents."""
        return self.retrieval.references

    def go_on(self, places: Mapping[str | None, int]) -> None:
        """Does nothing: queries have names, and no turns."""

    def left(self) -> int | None:
        """Returns for how many queries the budget holds T tokens now; None without a cap."""
        self.log.refresh()
        left = self.log.state.left(CORPUS.kind, self.log.account(CORPUS), now=self.log.state.last_time)
        return None if left is None else max(0, left) // (self.plan.tokens * self.plan.nano_rho)

    def stream(
        self, ink: "InvisibleInk", query: str, *, labels: Mapping[str, str], request: bytes | None = None
    ) -> "Stream":
        """Pays for a query, retrieves, and returns the iterator of its tokens. Raises as `Retrieval.stream`."""
        return self.retrieval.stream(ink, query, BudgetMeter(self.log, (CORPUS,), request), labels=labels)


class Answers(Run):
    """Is a run whose texts answer queries, one each.

    Guarantee: T tokens of a query are reserved from the corpus, durably, before a document is looked at; each attempt pays for
    itself, one that a crash cut too. Which queries are answered follows from their list and the budget alone.
    """

    by: ClassVar = QUERY

    def answer(
        self,
        ink: "InvisibleInk",
        queries: Mapping[str, str],
        *,
        words: Mapping[str, str] | None = None,
        most: int | None = None,
        stop: Callable[[], bool] = lambda: False,
        told: Callable[[int], None] | None = None,
        piece: Callable[[str], None] | None = None,
    ) -> Made:
        """Answers the queries that have no whole text yet, in order, until the budget holds no more.

        Args:
            queries: text by id. words: public words of the task that are the same for all. most: texts of this call.
            stop, told, piece: as `Run.generate`.

        Raises:
            ResumeRefused: code RUN_QUERIES, an id stood for another query in this folder.
            ConfigError: as `words_of_queries`, or of a prompt, before anything is paid. Else as `Retrieval.stream`.
        """
        given = words_of_queries(ink.task, queries, words or {})
        for one, labels in given.items():
            try:
                ink._prompts(labels)
            except ConfigError as error:
                raise ConfigError(error.code, f"query {one!r:.80}: {error.sentence}") from error
        self._keep(queries)
        before, exhausted, stopped = self.texts.whole, False, False
        for one in self._open(queries, most):
            if stopped := stop():
                break
            if exhausted := self.pool.left() == 0:
                break
            try:
                stream = self._asked(ink, queries[one], given[one])
            except BudgetExhausted:
                exhausted = True
                break
            if stopped := self._made(stream, one, stop, piece):
                break
            if told is not None:
                told(self.texts.whole)
        found = self.texts
        return Made(found.whole, found.whole - before, found.lost, found.tokens, exhausted, stopped)

    def unanswered(self, queries: Mapping[str, str]) -> list[str]:
        """Returns the ids of queries that have no whole text, in order."""
        return [one for one in queries if not self.texts.of_label[one]]

    def _open(self, queries: Mapping[str, str], most: int | None) -> Iterator[str]:
        yield from self.unanswered(queries)[:most]

    def _asked(self, ink: "InvisibleInk", query: str, labels: Mapping[str, str]) -> "Stream":
        """Pays for a query, after it was noted that a text begins; where nothing was paid, that is taken back."""
        number, request = self.texts.begun, secrets.token_bytes(16)
        self.texts.note(number + 1, {})
        try:
            return self.pool.stream(ink, query, labels=labels, request=request)
        except BaseException:
            if not self._paid(request):
                self.texts.note(number, {})
            raise

    def _keep(self, queries: Mapping[str, str]) -> None:
        """Writes the queries into the folder, behind those of earlier calls."""
        path = self.folder / QUERIES
        known = read_queries(path) if path.exists() else {}
        if other := [one for one, text in queries.items() if known.get(one, text) != text]:
            sentence = f"{path} has another query under the id {other[0]!r:.80}"
            raise ResumeRefused("RUN_QUERIES", f"{sentence}; ask a new one under an id of its own")
        rows: list[dict[str, Any]] = [{"id": one, "text": text} for one, text in {**known, **queries}.items()]
        atomic_write(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode())
