"""Offers texts from references: which may be asked for, who pays, and whether the rows were found to be independent.

A generation is open when the rows of every public shape that its labels can have were tested on the model that serves it. A
test that fails closes it for good: its running texts end, and requests are refused before anything is paid.
"""

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch

from attest.fixed_point import MICRO, PICO
from dptrain.errors import ConfigError, DptrainError, NotPrivateUse, without_text
from dptrain.inference.invisibleink.generator import InvisibleInk
from dptrain.inference.invisibleink.paying import PaidBefore
from dptrain.inference.invisibleink.pool import Batch, Pool
from dptrain.inference.invisibleink.references import References
from dptrain.inference.invisibleink.retrieval import QUERY, Corpus, Lexical, Retrieval, checked
from dptrain.inference.invisibleink.rows import Prompts
from dptrain.inference.invisibleink.run.purse import payer
from dptrain.serve.artifacts import Artifacts
from dptrain.serve.config import FromReferences, ServeConfig
from dptrain.serve.decoding import Served
from dptrain.serve.generations.drawing import Drawing
from dptrain.serve.generations.sources import (
    enter_withdrawals,
    parted,
    plan_of,
    references_of,
    require_header,
    require_rule,
    salt_of,
    spent_of,
    task_of,
)
from dptrain.serve.metrics import Metrics
from dptrain.serve.wire import NO_QUERIES, Refused
from ledger.budget.log import BudgetLog
from ledger.budget.rho import NANO, epsilon_of_rho
from ledger.errors import BudgetExhausted, LeafRefused
from ledger.replay.earlier_runs import SpentRegistry

LOG = logging.getLogger("dptrain.serve")

MOST_SHAPES: Final = 4096
"""Most combinations of words of one generation."""

_TRIES: Final = 64
"""Batches that other servers may be quicker to pay for, before a request is told to come again."""


@dataclass(frozen=True)
class _Read:
    """Holds what was read of the references at one time: the batches of them, their accounts, and whether their texts were
    signed, so that an account is that of one text for good."""

    pool: Pool
    accounts: frozenset[bytes]
    signed: bool


class Offered:
    """Is one generation of the server's file.

    Attributes:
        name, table: of the file. plan: the numbers of each text.
        most: epsilon and delta of all texts of one reference.
        closed: why it answers nobody any more, None while it does.
    """

    def __init__(
        self, name: str, table: FromReferences, log: BudgetLog, spent: SpentRegistry | None = None
    ) -> None:
        """Reads task and references; no model is needed.

        Args:
            spent: what contributions spent in the ledgers that the log counts.

        Raises:
            ConfigError: what does not fit together, by its name. Else as `references_of` and `plan_of`.
        """
        self.name, self.table, self.task = name, table, task_of(name, table)
        self._log, self._salt, self._spent = log, salt_of(table), spent
        references = references_of(table, self._salt)
        self.plan = plan_of(table, references.rule)
        cap = next(each for each in log.header.caps if each.unit == payer(self.plan))
        cost, most = self.plan.tokens * self.plan.nano_rho, cap.rho_nano
        self.most = cap.epsilon_micro / MICRO, cap.delta_pico / PICO
        if references.rule is not None and references.rule.generation is not None:
            most = min(most, references.rule.generation.max_rho_nano)
            self.most = epsilon_of_rho(most / NANO, self.plan.delta), self.plan.delta
        if cost > most:
            whom = "the corpus" if table.retrieve else "each reference"
            sentence = f"a text of generations.{name} costs {whom} {cost} (1e-9 rho), and the cap is {most}"
            raise ConfigError("SERVE_VALUE", f"{sentence}: none could ever be paid; lower epsilon, clip or tokens")
        self._take(references)
        self._unread: Refused | None = None
        self.closed: Refused | None = None
        self._ink: InvisibleInk | None = None
        self._dropped = False
        self._lengths: dict[tuple[tuple[str, str], ...], int] = {}
        self._checking = threading.Lock()

    def reread(self) -> None:
        """Reads the references again, and contributions through the gate.

        Guarantee: once it returns, no text is drawn of a reference that is not there any more, or whose text is another or null
        now, and one that runs ends before its next token. Nor is one drawn under a signed rule that the log does not have. What
        could not be read draws nothing until it can; the log says why, and `problem` that it is so.

        Which running texts end follows from public facts. Of contributions it is those of one that is gone: what it says is
        signed for good. Where references are the owner's own, every running text ends at every reading, whatever is in it: to
        end those alone whose references have other texts now would tell, unpaid, what a payload was before.
        """
        try:
            self._take(references_of(self.table, self._salt))
        except Exception as error:
            sentence = "the references of this generation could not be read again, and nothing is drawn until they can"
            self._unread = Refused(503, "server_refuses", "UNREAD", f"{sentence}; the operator's log says why")
            told = error if isinstance(error, ConfigError) else getattr(error, "code", type(error).__name__)
            LOG.error("generation %s: its references were not read again: %s", self.name, told)
        else:
            self._unread = None

    def _take(self, references: References) -> None:
        """Takes references in but those that were withdrawn, and admits contributions to the log behind what was signed."""
        require_rule(references, self._log.header)
        self._log.refresh()
        enter_withdrawals(self.table, references, self._log)
        gone, left_out = self._log.state.withdrawn, Counter(references.refused)
        references = _only(references, [self._log.account(one.unit) not in gone for one in references])
        if references.rule is not None:
            refused = self._log.admit(references.attestations, spent=self._spent, shares=references.shares).refused
            left_out += Counter(error.code for error in refused.values())
            references = _only(references, [self._log.account(one.unit) in self._log.state.admitted for one in references])
        if not len(references):
            raise ConfigError("REFERENCES", f"of the references of generations.{self.name} none is left ({_told(left_out)})")
        LOG.info("generation %s has %d references; left out: %s", self.name, len(references), _told(left_out))
        accounts = frozenset(self._log.account(one.unit) for one in references)
        self._read = _Read(Pool(references, self.plan, self._log, self._salt), accounts, references.rule is not None)

    @property
    def pool(self) -> Pool:
        """Gives out the batches that can pay, of the references as they were read last."""
        return self._read.pool

    def words(self) -> Iterator[dict[str, str]]:
        """Yields every choice of labels. Raises ConfigError: code SERVE_VALUE, there are too many."""
        names = list(self.table.labels)
        lists = [self.table.labels[name] for name in names]
        count = 1
        for each in lists:
            count *= len(each)
        if count > MOST_SHAPES:
            sentence = f"the labels of generations.{self.name} have {count} combinations"
            raise ConfigError("SERVE_VALUE", f"{sentence}, at most {MOST_SHAPES} are tested; give fewer words")
        for chosen in itertools.product(*lists):
            yield dict(zip(names, chosen, strict=True))

    def check(self, served: Served) -> None:
        """Tests the rows at all shapes that labels can have, with a model, and opens the generation.

        Guarantee: no text is drawn before the rows of every shape that the labels can have were found to be independent, on
        the very model that draws; a test that fails closes the generation.

        Raises:
            Refused: 503, the code of what was found.
        """
        with self._checking:
            if self.closed is not None:
                raise self.closed
            if self._ink is not None and self._ink.model is served.model:
                return
            torch.set_num_threads(1)  # as the threads that draw
            if self.table.compile:
                LOG.info("generation %s compiles a step for each length of its rows, which takes a while", self.name)
            try:
                ink = InvisibleInk(
                    served.model,
                    served.tokenizer,
                    self.task,
                    self.plan,
                    minibatch=self.table.minibatch,
                    compile=self.table.compile,
                    recheck_every=self.table.recheck_every,
                )
                ink.ends = served.stops
                tested: set[int] = set()
                for labels in self.words():
                    length = Prompts(served.tokenizer, self.task, labels).length
                    self._lengths[_key(labels)] = length
                    if length not in tested:
                        ink.check(labels)
                        tested.add(length)
            except Exception as error:
                raise self._close(error) from error
            self._ink, self._dropped = ink, False
            LOG.info("generation %s is open: rows of %d lengths are independent", self.name, len(tested))

    def forget(self) -> None:
        """Lets the model go, as it was withdrawn; should rights admit it again, it is tested before it draws."""
        self._ink, self._dropped = None, True

    @property
    def problem(self) -> str | None:
        """Returns why it draws no texts now, None where it does; a model that was withdrawn is no problem of the server."""
        if (refused := self.closed or self._unread) is not None:
            return refused.code
        return None if self._ink is not None or self._dropped else "NOT_CHECKED"

    def require_usable(self) -> None:
        """Raises Refused: 503, it was closed."""
        if (refused := self.closed or self._unread) is not None:
            raise refused

    def require_open(self) -> InvisibleInk:
        """Returns what draws. Raises Refused: 503, code NOT_CHECKED, rows are tested still; or why it was closed."""
        self.require_usable()
        ink = self._ink
        if ink is None:
            sentence = "the rows of this generation are being tested, and no text is drawn before"
            raise Refused(503, "server_busy", "NOT_CHECKED", f"{sentence}; ask again when /readyz is 200", after=5)
        return ink

    @property
    def asks(self) -> int | None:
        """Returns the most characters of a query; None where requests have none."""
        return None

    def require_words(self, labels: Mapping[str, str], query: str | None = None) -> dict[str, str]:
        """Returns the public words of a text: the labels of a request. Raises Refused: 400, code LABELS, others than the lists
        have; QUERY, it has a query."""
        if query is not None:
            sentence = "the references of this generation do not follow from a query"
            raise Refused(400, "invalid_request_error", "QUERY", f"{sentence}; leave it out: it would be heeded nowhere")
        lists = self.table.labels
        if set(labels) != set(lists) or any(labels[name] not in words for name, words in lists.items()):
            sentence = f"this generation has the labels {', '.join(sorted(lists)) or 'none'}, each with a public list of words"
            raise Refused(400, "invalid_request_error", "LABELS", f"{sentence}; GET /v1/models has the lists")
        return dict(labels)

    def draw(self, labels: dict[str, str]) -> Drawing:
        """Pays for a text by the next batch that can, and returns what computes it.

        Guarantee: returns only when every reference of the batch has durably paid for T tokens, and none is made into a prompt
        before; a refusal computes nothing. Where what was paid for cannot begin, nothing goes back, but where a test of the
        rows failed.

        Raises:
            BudgetExhausted: no batch is left that can pay. Refused: 503, as `require_open`, or code BUSY.
        """
        ink = self.require_open()
        label = next(iter(labels.values())) if parted(self.table) else None
        read = self._read
        batch, paid = self._pay(read.pool, label)
        torch.set_num_threads(1)  # rows are tested again here now and then
        try:
            text = ink.stream([one.text for one in batch], paid, labels=labels)
        except NotPrivateUse as error:
            raise self._close(error) from error
        accounts = frozenset(self._log.account(one.unit) for one in batch)
        return Drawing(text, self._lengths[_key(labels)], partial(self._require, read, accounts))

    def _pay(self, pool: Pool, label: str | None) -> tuple[Batch, PaidBefore]:
        """Returns the next batch that can pay, once it has. Raises as `draw`."""
        plan = self.plan
        for _ in range(_TRIES):
            batch, meter = pool.take(label)
            try:
                receipt = meter.reserve(plan.tokens, mechanism=plan.mechanism, nano_rho=plan.nano_rho)
            except BudgetExhausted:  # another server paid for these meanwhile
                continue
            except LeafRefused as error:
                if error.code not in ("WITHDRAWN", "EXPIRED"):
                    raise
                continue
            return batch, PaidBefore(meter, receipt)
        sentence = "other servers are quicker to pay for the references that are left"
        raise Refused(503, "server_busy", "BUSY", f"{sentence}; ask again in a second", after=1)

    def _require(self, read: _Read, accounts: frozenset[bytes]) -> None:
        """Ends a text before its next token where its generation was closed, a reference is gone or withdrawn, or references
        that nobody signed were read again."""
        self.require_usable()
        now, withdrawn = self._read, self._log.state.withdrawn
        if (now is not read and not read.signed) or not accounts <= now.accounts or not accounts.isdisjoint(withdrawn):
            sentence = "references were read again, or one of this text was withdrawn, while it was computed"
            raise Refused(403, "rights_refused", "WITHDRAWN", f"{sentence}; ask for another text")

    def privacy(self) -> dict[str, Any]:
        """Returns what an answer says of its text."""
        epsilon, delta = self.most
        return {
            "statement": self.plan.sentence,
            "epsilon": self.plan.epsilon,
            "delta": self.plan.delta,
            "adjacency": self.plan.adjacency,
            "protects": "one reference",
            "does_not_protect": "the request with its labels, the prompts of the task, and what the model was trained on",
            "all_texts": {"epsilon": epsilon, "delta": delta},
        }

    def left(self) -> int:
        """Returns how many texts the log still pays for, where none ends early."""
        return sum(self.pool.left(label) for label in self.pool.sizes)

    def _close(self, error: Exception) -> Refused:
        """Closes the generation, and returns the refusal that everybody hears from now on."""
        code = getattr(error, "code", type(error).__name__)
        LOG.error("generation %s is closed: %s", self.name, error if isinstance(error, DptrainError) else without_text(error))
        sentence = "a self-test of this generation failed, and it is closed; the operator's log says what was found"
        self._ink = None
        self.closed = Refused(503, "server_refuses", str(code), sentence)
        return self.closed


class Retrieved(Offered):
    """Is a generation whose references follow from the query of each request, out of the whole corpus, which pays.

    Guarantee: T tokens of a query are reserved before a document is looked at. A text ends before its next token where the
    corpus was read again while it was computed, whether anything changed and whichever documents it has: that it ends tells
    nothing of what was retrieved, and nothing of what a document was.
    """

    def __init__(self, name: str, table: FromReferences, log: BudgetLog) -> None:
        """Reads weights, task and corpus. Raises ConfigError: code WEIGHTS; else as `Offered`."""
        self._score = Lexical() if table.weights is None else Lexical.read(table.weights)
        super().__init__(name, table, log)

    def _take(self, references: References) -> None:
        self._now = Corpus(Retrieval(references, self._score), self.plan, self._log)
        LOG.info("generation %s has a corpus of %d documents", self.name, len(references))

    @property
    def asks(self) -> int | None:
        """Returns the most characters of a query."""
        return self.table.most_query

    def words(self) -> Iterator[dict[str, str]]:
        """Yields every choice of labels, with the shortest query; rows of other lengths are tested when they are first met,
        before they draw."""
        return ({**words, QUERY: "a"} for words in super().words())

    def require_words(self, labels: Mapping[str, str], query: str | None = None) -> dict[str, str]:
        """Returns the labels and the query of a request. Raises Refused: 400, code LABELS or QUERY."""
        words = super().require_words(labels)
        if query is None or len(query) > self.table.most_query:
            sentence = f"this generation retrieves references by a query of at most {self.table.most_query} characters"
            raise Refused(400, "invalid_request_error", "QUERY", f"{sentence}; give one, which is public")
        return {**words, QUERY: checked(query)}

    def draw(self, labels: dict[str, str]) -> Drawing:
        """Pays for a query, retrieves its references, and returns what computes its text.

        Raises:
            Refused: 403, code EXHAUSTED, the corpus cannot pay; 503, as `require_open`, or code RETRIEVAL, a document has no
                score, of which the operator's log has the code and nobody a word. ConfigError: code ROOM.
        """
        ink, corpus = self.require_open(), self._now
        torch.set_num_threads(1)  # rows of a new length are tested here
        try:
            text = corpus.stream(ink, labels[QUERY], labels=labels)
        except BudgetExhausted:
            raise Refused(403, "privacy_budget_exhausted", "EXHAUSTED", NO_QUERIES) from None
        except NotPrivateUse as error:
            raise self._close(error) from error
        except ConfigError as error:
            if error.code != "SCORE":
                raise
            LOG.error("generation %s could not retrieve: %s", self.name, error.code)
            sentence = "this query could not be answered; the operator's log says why"
            raise Refused(503, "server_refuses", "RETRIEVAL", sentence) from None
        return Drawing(text, ink._prompts(labels).length, partial(self._require_corpus, corpus))

    def _require_corpus(self, corpus: Corpus) -> None:
        self.require_usable()
        if self._now is not corpus:
            sentence = "the corpus was read again while this text was computed"
            raise Refused(403, "rights_refused", "WITHDRAWN", f"{sentence}; ask again")

    def privacy(self) -> dict[str, Any]:
        """Returns what an answer says of its text."""
        unprotected = "the request with its query and labels, the prompts of the task, and what the model was trained on"
        return super().privacy() | {"protects": "one document of the corpus", "does_not_protect": unprotected}

    def left(self) -> int:
        """Returns for how many queries the log still pays, where no text ends early."""
        return self._now.left() or 0


def _made(name: str, table: FromReferences, log: BudgetLog, spent: SpentRegistry | None) -> Offered:
    return Retrieved(name, table, log) if table.retrieve else Offered(name, table, log, spent)


class Generations:
    """Holds all generations of a server, and tests them in a thread of its own."""

    def __init__(self, config: ServeConfig, artifacts: Artifacts, log: BudgetLog, metrics: Metrics) -> None:
        """Reads tasks and references; `start` tests rows.

        Raises:
            ConfigError: code MECHANISM or SALT, the log is not one for these; else as `Offered`.
        """
        require_header(config, log.header)
        spent = spent_of(config, log.header)
        self.all: dict[str, Offered] = {name: _made(name, table, log, spent) for name, table in config.generations.items()}
        for each in self.all.values():
            for _ in each.words():
                break
        self._artifacts, self._metrics, self._log = artifacts, metrics, log
        self._stopped, self._tested = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._check_all, name="check", daemon=True)

    def start(self) -> None:
        """Begins to test the rows of all."""
        self._thread.start()

    def of(self, name: str) -> Offered:
        """Returns a generation. Raises Refused: 404, code GENERATION."""
        found = self.all.get(name)
        if found is None:
            sentence = "there is no such generation"
            raise Refused(404, "invalid_request_error", "GENERATION", f"{sentence}; GET /v1/models lists them")
        return found

    def draw(self, offered: Offered, artifact: str, labels: dict[str, str]) -> Drawing:
        """Draws by the artifact that rights admit; one that left memory is loaded and tested before. Raises as `Offered`."""
        if self._tested.is_set():
            offered.check(self._artifacts.model(artifact))
        return offered.draw(labels)

    def problems(self) -> list[str]:
        """Returns which generations are not open, and why; empty once all are."""
        return [f"generation {each.name}: {each.problem}" for each in self.all.values() if each.problem is not None]

    def drop(self, artifacts: set[str]) -> None:
        """Lets models go that were withdrawn."""
        for each in self.all.values():
            if each.table.artifact in artifacts:
                each.forget()

    def told(self) -> list[dict[str, Any]]:
        """Returns a row for each, for the operator's page."""
        return [
            {
                "name": each.name,
                "left": each.left(),
                "epsilon": each.plan.epsilon,
                "delta": each.plan.delta,
                "refused": self._metrics.refused_texts(each.name),
                "problem": each.problem,
            }
            for each in self.all.values()
        ]

    def reread(self) -> None:
        """Reads the references of all again."""
        for each in self.all.values():
            each.reread()

    def close(self) -> None:
        """Ends the thread once its test has ended."""
        self._stopped.set()

    def _check_all(self) -> None:
        for each in self.all.values():
            if self._stopped.is_set():
                return
            with suppress(Refused):  # it is closed, and told of
                try:
                    served = self._artifacts.model(each.table.artifact)
                except Exception as error:
                    raise each._close(error) from error
                each.check(served)
        self._tested.set()


def _only(references: References, kept: list[bool]) -> References:
    """Returns some of the references, with what was signed of them."""
    rows, signed = (tuple(itertools.compress(each, kept)) for each in (references.rows, references.attestations))
    return replace(references, rows=rows, attestations=signed)


def _told(left_out: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {code}" for code, count in sorted(left_out.items())) or "none"


def _key(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))
