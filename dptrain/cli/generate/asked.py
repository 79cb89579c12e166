"""Turns the options of `dptrain generate` into a task, a plan, references and a budget; without torch."""

import json
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import typer

from attest.corpus import open_corpus
from attest.keys import load_public_key
from attest.policy import SignedPolicy
from dptrain.cli.gate import _remember, _withdrawn
from dptrain.cli.generate.shown import plan_text
from dptrain.cli.inputs import beside, read_registry, read_signed_policy
from dptrain.cli.options import wrong_if
from dptrain.cli.output import counted, counting, warned
from dptrain.cli.results import Result, Told
from dptrain.errors import ConfigError
from dptrain.inference.invisibleink import Plan, Task
from dptrain.inference.invisibleink.formulas import require_mean
from dptrain.inference.invisibleink.partition import require_hashed
from dptrain.inference.invisibleink.pool import Pool
from dptrain.inference.invisibleink.references import References, field_of_labels
from dptrain.inference.invisibleink.retrieval import (
    ADJACENCY,
    ATTESTED,
    CORPUS,
    Corpus,
    Lexical,
    Retrieval,
    one_query,
    read_queries,
    words_of_queries,
)
from dptrain.inference.invisibleink.run.figures import figures, queries_paid
from dptrain.inference.invisibleink.run.purse import CONTRIBUTION, Purse, cap_of
from dptrain.inference.invisibleink.run.setting import going_on
from dptrain.inference.invisibleink.run.texts import TEXTS
from dptrain.inference.invisibleink.run.withdrawing import Withdrawing
from dptrain.inference.invisibleink.run.withdrawing import beside as withdrawals_beside
from dptrain.record.earlier_runs import Earlier
from ledger.budget.log import BudgetLog
from ledger.errors import LedgerError
from ledger.leaves import Previous
from ledger.replay.earlier_runs import SpentRegistry
from ledger.storage.place import Place

DATA_CLASS: Final = "data-class"
"""Stands with `--labels` for the signed data class."""

_OWN: Final = {"epsilon": "--epsilon", "delta": "--delta", "batch": "--batch", "tokens": "--tokens", "tau": "--tau",
               "top_k": "--top-k"}  # fmt: skip
"""Numbers that the owner of references gives, and that a signed rule has of attested ones."""

_NEEDED: Final = ("epsilon", "delta", "batch", "tokens")

_RETRIEVING: Final = {"queries": "--queries", "query": "--query", "share": "--share", "weights": "--weights"}

_ATTESTED: Final = {"class_name": "--class", "field": "--field", "owner_key": "--owner-key", "registry": "--registry",
                    "ledger": "--ledger", "withdrawal": "--withdrawal", "earlier": "--earlier", "earlier_key": "--earlier-key",
                    "now": "--now"}  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """Holds the options, each under its own name."""

    task: str
    corpus: list[Path] | None
    model: str | None
    references: Path | None
    queries: Path | None
    query: str | None
    share: int | None
    weights: Path | None
    epsilon: float | None
    delta: float | None
    batch: int | None
    tokens: int | None
    out: Path | None
    tau: float | None
    top_k: str | None
    texts: int | None
    labels: str | None
    label: str | None
    word: list[str] | None
    records: int
    adjacency: str
    partition: str
    aggregation: str
    budget: str | None
    budget_key: Path | None
    state: Path | None
    minibatch: int | None
    compile: bool
    dtype: str
    device: str | None
    plan: bool
    one: bool
    policy: Path | None
    class_name: str | None
    field: str | None
    owner_key: Path | None
    registry: Path | None
    ledger: str | None
    withdrawal: list[Path] | None
    earlier: list[str] | None
    earlier_key: list[Path] | None
    now: int | None
    json: bool

    def refuse_wrong_use(self) -> None:
        """Refuses options that do not go together, and ways of making texts for which no proof holds.

        Raises:
            typer.BadParameter: wrong use. ConfigError: code PARTITION, LABEL_PRIVATE. AccountantError: code AGGREGATION or
                ADJACENCY.
        """
        require_hashed(self.partition)
        require_mean(self.aggregation)
        if self.retrieves:
            self._refuse_beside_queries()
        else:
            flags = [flag for name, flag in _RETRIEVING.items() if getattr(self, name) is not None]
            wrong_if(flags, f"{' and '.join(flags)} goes with --adjacency {ADJACENCY}: else nothing is retrieved")
        if self.policy is not None:
            wrong_if(self.references is not None, "--references are your own, --policy is for attested ones; give one of them")
            wrong_if(not self.corpus, "with --policy give the corpus: directories, or data with attestations beside them")
            wrong_if(self.class_name is None, "with --policy give --class, whose generation rule has the numbers")
            given = [flag for name, flag in _OWN.items() if getattr(self, name) is not None]
            given += ["--records"] * (self.records != 1) + ["--adjacency"] * (self.adjacency != "zero-out")
            sentence = "attested references were signed for the numbers of their class"
            wrong_if(given, f"{sentence}; leave out {' and '.join(given)}")
            wrong_if(self.labels not in (None, DATA_CLASS), f"attested references have one public label: --labels {DATA_CLASS}")
        else:
            wrong_if(bool(self.corpus), "a corpus of attested references goes with --policy; your own go with --references")
            flags = [flag for name, flag in _ATTESTED.items() if getattr(self, name) not in (None, [])]
            wrong_if(flags, f"{' and '.join(flags)} goes with --policy")
            missing = [_OWN[name] for name in _NEEDED if getattr(self, name) is None]
            sentence = "none has a default: all are public, and chosen without looking at references"
            wrong_if(missing, f"{' and '.join(missing)} missing; {sentence}")
            if self.labels == DATA_CLASS:
                sentence = "rows of your own have no signed data class, and what stands in a row is part of the payload"
                raise ConfigError("LABEL_PRIVATE", f"{sentence}; give a public list of id and label")
        wrong_if(self.budget_key is not None and self.budget is None, "--budget-key goes with --budget")
        wrong_if(self.state is not None and self.budget is None, "--state goes with --budget on a server")
        wrong_if(self.label is not None and self.labels is None, "--label goes with --labels: a public list of id and label")
        wrong_if(self.one and self.texts is not None, "--one makes one text more, --texts says how many are there at the end")
        rows = self.numbers.batch + 1
        wrong_if(self.minibatch is not None and self.minibatch > rows, f"--minibatch is {self.minibatch}, of {rows} rows")

    @property
    def retrieves(self) -> bool:
        """Tells whether each query retrieves its references."""
        return self.adjacency == ADJACENCY

    def _refuse_beside_queries(self) -> None:
        if self.policy is not None:
            raise ConfigError("ADJACENCY", ATTESTED)
        if self.labels is not None or self.label is not None:
            sentence = "labels form batches, and a query takes its references from the whole corpus, so that there are none"
            raise ConfigError("LABELS", f"{sentence}; leave --labels out")
        wrong_if(self.share is None, "--share missing: the number of queries that --epsilon is for; each costs an N-th of it")
        wrong_if(self.queries is not None and self.query is not None, "--queries is a list, --query a single one; give one")
        wrong_if(self.texts is not None, "each query has one text; give --queries with those that are to be answered")

    @cached_property
    def asking(self) -> dict[str, str]:
        """Returns the queries, by id. Raises ConfigError: as `read_queries` and `words_of_queries`."""
        found = one_query(self.query) if self.query is not None else {} if self.queries is None else read_queries(self.queries)
        words_of_queries(self.prompts, found, self.words)
        return found

    @cached_property
    def score(self) -> Lexical:
        """Returns what scores documents. Raises ConfigError: code WEIGHTS."""
        return Lexical() if self.weights is None else Lexical.read(self.weights)

    @cached_property
    def prompts(self) -> Task:
        """Reads the task. Raises ConfigError: as `Task.read` and `Task.shipped`."""
        from_file = self.task.endswith(".toml") or Path(self.task).is_file()
        return Task.read(self.task) if from_file else Task.shipped(self.task)

    @cached_property
    def words(self) -> dict[str, str]:
        """Returns the public words of all texts."""
        found = {}
        for text in self.word or ():
            name, given, word = text.partition("=")
            wrong_if(not (given and name and word), f"{text!r} is not NAME=WORD, for example kind=letter")
            wrong_if(name in found, f"--word {name} is given twice")
            found[name] = word
        return found

    @cached_property
    def signed(self) -> SignedPolicy | None:
        """Reads the signed policy; None where references are the owner's own."""
        return None if self.policy is None else read_signed_policy(self.policy, self.owner_key)

    def rows(self, salt: bytes) -> References:
        """Reads the references, or judges them at the gate. Raises: as `References.read` and `References.admitted`."""
        if self.signed is None:
            wrong_if(self.references is None, "give --references, or --policy with --class and a corpus")
            found = References.read(self.references, salt=salt, labels=self.labels)
            if self.labels is not None and (name := field_of_labels(self.references, found)) is not None:
                sentence = f"the labels of {self.labels} are those of the field {name!r:.40} of the rows, for every id"
                how = "labels that were taken out of payloads break the guarantee: a text that changes would change batches"
                warned(f"{sentence}; {how}. They may stand where the list was public before the rows were written")
            return found
        assert self.policy is not None and self.class_name is not None
        registry = read_registry(self.policy, self.registry, self.owner_key)
        corpora = [open_corpus(path) for path in self.corpus or ()]
        for one in corpora:
            _remember(registry, one, self.ledger)
        now = int(time.time()) if self.now is None else self.now
        with counting("judging"):
            return References.admitted(
                corpora, self.signed, registry, self.class_name, now=now, by_data_class=self.labels == DATA_CLASS,
                field=self.field or "text", withdrawn=_withdrawn(self.ledger, registry),
            )  # fmt: skip

    def batches(self, references: References, salt: bytes) -> dict[str | None, int]:
        """Returns how many batches each label has, that of `--label` alone where it was given.

        Raises:
            ConfigError: code BATCH or LABELS; LABEL, no batch has the label that was given.
        """
        for label in references.labels:
            self.prompts.words(label, self.words)
        found = {label: len(rows) for label, rows in references.batches(self.numbers.batch, salt).items()}
        if self.label is None:
            return found
        if not found.get(self.label):
            has = ", ".join(repr(label) for label, count in found.items() if count)
            raise ConfigError("LABEL", f"no batch of references has the label {self.label!r:.80}; those that have: {has:.400}")
        return {self.label: found[self.label]}

    def cautions(self, references: References) -> list[str]:
        """Says what is not wrong and a reader should know."""
        told = []
        if references.absent is not None:
            told.append(f"no row has the field {references.absent!r:.80}, so that all references are null: name the right one")
        if self.numbers.delta * len(references) >= 1:
            sentence = f"delta {self.numbers.delta:g} is not below one over {len(references)} references"
            told.append(f"{sentence}: publishing one whole would be within such a promise; take less than a tenth of that")
        return told

    def brought(self) -> str:
        """Returns what an auditor of attested references brings, as options of `dptrain ledger verify`."""
        if self.policy is None:
            return ""
        owner = self.owner_key or self.policy.with_name("owner.pub")
        registry = self.registry or self.policy.with_name("registry.cbor")
        return f" --owner-key {owner} --policy {self.policy} --registry {registry}"

    @cached_property
    def numbers(self) -> Plan:
        """Returns the numbers. Raises AccountantError: one is out of range. ConfigError: code CLASS."""
        if self.signed is not None:
            rule = next((one for one in self.signed.policy.classes if one.name == self.class_name), None)
            if rule is None or rule.generation is None:
                raise ConfigError("CLASS", f"the policy has no class {self.class_name!r:.80} with a generation rule")
            return Plan.of_rule(rule.generation, delta=float(self.signed.policy.delta))
        epsilon, delta, batch, tokens = (getattr(self, name) for name in _NEEDED)
        top = "50" if self.top_k is None else self.top_k
        wrong_if(not (top == "all" or (top.isascii() and top.isdigit())), f"--top-k is a whole number or all, got {top!r:.40}")
        found = Plan.for_epsilon(
            epsilon, delta=delta, batch=batch, tokens=tokens * (self.share or 1), tau=1.0 if self.tau is None else self.tau,
            k=None if top == "all" else int(top), adjacency=self.adjacency, records=self.records,
        )  # fmt: skip
        return replace(found, tokens=tokens)

    def purse(self, folder: Path) -> Purse:
        """Returns where the budget lies: that of attested references beside their policy, for all runs of it.

        Raises:
            typer.BadParameter: the URL names no log, or has no state directory.
        """
        shared = None if self.policy is None else self.policy.with_name(f"{self.policy.stem}.budget.db")
        try:
            return Purse.of(folder, self.budget or shared, self.budget_key, self.state)
        except LedgerError as error:
            raise typer.BadParameter(error.sentence) from error

    def spent(self, cites: tuple[Previous, ...] | None) -> SpentRegistry | None:
        """Returns what contributions spent in the earlier ledgers; None where none were named.

        Args:
            cites: ledgers that a log counts that is there already; None of a new one.

        Raises:
            As `Earlier.registry`.
        """
        if self.policy is None or not self.earlier:
            return None
        owner = load_public_key(beside(self.policy, self.owner_key, "owner.pub", "--owner-key"))
        with counting("reading earlier ledgers"):
            found = Earlier(self.earlier, keys=self.earlier_key or ()).registry(cites, owner)
        if cites is None and self.signed is not None:
            found.require_countable(self.signed.policy.corpus, int(time.time()))
        return found

    def withdrawing(self, log: BudgetLog, references: References) -> Withdrawing | None:
        """Returns what enters withdrawals of attested references into a log. Raises: as `open_registry`."""
        if self.signed is None:
            return None
        assert self.policy is not None
        owner = load_public_key(beside(self.policy, self.owner_key, "owner.pub", "--owner-key"))
        registry = read_registry(self.policy, self.registry, self.owner_key)
        given = {"files": self.withdrawal or (), "folders": withdrawals_beside(log)}
        return Withdrawing(log, owner, registry, references=references, **given)


def planned(asked: Asked) -> Result:
    """Returns the figures of `--plan`; no file of a run is written."""
    asked.refuse_wrong_use()
    if asked.retrieves:
        return planned_queries(asked)
    plan, references, batches = asked.numbers, None, None
    _ = asked.prompts, asked.words  # what is wrong with them is told without references too
    purse = asked.purse(asked.out or Path())
    known = asked.out is not None or asked.budget is not None or asked.signed is not None
    if asked.references is not None or asked.signed is not None:
        salt = purse.salt(make=False) if known else bytes(32)
        references = asked.rows(salt).within_limits()
        if asked.out is not None:
            references = going_on(asked.out, references)
        batches = asked.batches(references, salt)
    there = known and purse.exists
    cap = _cap_there(purse.log, CONTRIBUTION) if there and asked.signed is None else cap_of(plan, references, asked.epsilon)
    data: dict[str, Any] = figures(plan, batches=batches, cap_nano=cap, minibatch=asked.minibatch)
    if references is not None:
        data |= {"references": len(references), "refused": dict(references.refused), "cautions": asked.cautions(references)}
        if there and (left := _left(purse.log, asked, references, salt)) is not None:
            data["texts_left"] = left
        most = data.get("texts_left", data["texts_at_most"]) + (_whole(asked.out, asked.label) if there and asked.out else 0)
        if asked.texts is not None and asked.texts > most:
            sentence = f"--texts asks for {counted(asked.texts, 'text')}, references and budget are good for {most:,} at most"
            data["cautions"].append(f"{sentence}: lower it, or B, or give more references")
    return Told(data, plan_text(data))


def planned_queries(asked: Asked) -> Result:
    """Returns the figures of `--plan` where each query retrieves its references."""
    plan, purse = asked.numbers, asked.purse(asked.out or Path())
    _ = asked.score  # what is wrong with the weights is told here too
    there = (asked.out is not None or asked.budget is not None) and purse.exists
    cap = _cap_there(purse.log, CORPUS.kind) if there else cap_of(plan, None, asked.epsilon)
    data: dict[str, Any] = figures(plan, cap_nano=cap, minibatch=asked.minibatch)
    data |= queries_paid(plan, cap) | {"queries": len(asked.asking), "cautions": []}
    if there:
        with BudgetLog.open(purse.log, read_only=True) as log:
            data["queries_left"] = Corpus(Retrieval(References(())), plan, log).left()
    if asked.references is not None:
        found = asked.rows(bytes(32))
        data |= {"references": len(found), "cautions": asked.cautions(found)}
    if len(asked.asking) > (paid := data.get("queries_left", data["queries_at_most"])):
        sentence = f"{len(asked.asking)} queries are asked, and the budget of the corpus pays for {paid:,} of T tokens each"
        data["cautions"].append(f"{sentence}: what texts that end early give back may pay for some of the others")
    return Told(data, plan_text(data))


def _whole(folder: Path, label: str | None) -> int:
    """Returns how many whole texts a run has, of a label where one is named."""
    path = folder / TEXTS
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return sum(line.endswith(b"\n") and label in (None, json.loads(line).get("label")) for line in lines)


def _left(path: Place, asked: Asked, references: References, salt: bytes) -> int | None:
    """Returns how many texts a log holds that is there already; None where some reference is to be admitted to it first."""
    with BudgetLog.open(path, read_only=True) as log:
        if references.rule is not None and not all(log.account(one.unit) in log.state.admitted for one in references):
            return None
        pool = Pool(references, asked.numbers, log, salt)
        return sum(pool.left(label) for label in pool.sizes if asked.label in (None, label))


def _cap_there(log: Place, unit: str) -> int:
    with BudgetLog.open(log, read_only=True) as found:
        return found.header.cap(unit) or 0

