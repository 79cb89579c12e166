"""Answers queries over a corpus: one text each, from the references that a query retrieves; the corpus pays for every one."""

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from attest.files import atomic_write
from dptrain.errors import ConfigError, ResumeRefused
from dptrain.inference.invisibleink.retrieval import QUERY, read_queries, words_of_queries
from dptrain.inference.invisibleink.run.run import Made, Run
from ledger.errors import BudgetExhausted

if TYPE_CHECKING:
    from dptrain.inference.invisibleink.generator import InvisibleInk, Stream

QUERIES: Final = "queries.jsonl"
"""File of a run's folder that has the queries which were asked in it."""


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
