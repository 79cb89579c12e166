"""Turns the options of `dptrain generate` into a task, a plan, references and a budget; without torch."""

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from attest.corpus import open_corpus
from attest.keys import load_public_key
from attest.policy import SignedPolicy
from dptrain.cli.gate import _remember, _withdrawn
from dptrain.cli.generate.shown import plan_text
from dptrain.cli.inputs import beside, read_registry, read_signed_policy
from dptrain.cli.options import wrong_if
from dptrain.cli.output import counting
from dptrain.cli.results import Result, Told
from dptrain.errors import ConfigError
from dptrain.inference.invisibleink import Plan, Task
from dptrain.inference.invisibleink.formulas import require_mean
from dptrain.inference.invisibleink.partition import require_hashed
from dptrain.inference.invisibleink.pool import Pool
from dptrain.inference.invisibleink.references import References
from dptrain.inference.invisibleink.run.figures import figures
from dptrain.inference.invisibleink.run.purse import CONTRIBUTION, Purse, cap_of
from dptrain.inference.invisibleink.run.setting import going_on
from dptrain.inference.invisibleink.run.withdrawing import Withdrawing
from dptrain.inference.invisibleink.run.withdrawing import beside as withdrawals_beside
from dptrain.record.earlier_runs import Earlier
from ledger.budget.log import BudgetLog
from ledger.errors import AccountantError
from ledger.leaves import Previous
from ledger.replay.earlier_runs import SpentRegistry
from ledger.storage.place import Place

DATA_CLASS: Final = "data-class"
"""Stands with `--labels` for the signed data class."""

_OWN: Final = {"epsilon": "--epsilon", "delta": "--delta", "batch": "--batch", "tokens": "--tokens", "tau": "--tau",
               "top_k": "--top-k"}  # fmt: skip
"""Numbers that the owner of references gives, and that a signed rule has of attested ones."""

_NEEDED: Final = ("epsilon", "delta", "batch", "tokens")

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
    budget: Path | None
    budget_key: Path | None
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
        if self.adjacency == "retrieval":
            sentence = "the references of a run are fixed beforehand by a salted hash, and nothing is retrieved"
            raise AccountantError("ADJACENCY", f"{sentence}; --plan says under another relation what retrieval would cost")
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
        wrong_if(self.budget is not None and "://" in str(self.budget), "--budget names a file")
        wrong_if(self.label is not None and self.labels is None, "--label goes with --labels: a public list of id and label")
        wrong_if(self.one and self.texts is not None, "--one makes one text more, --texts says how many are there at the end")
        rows = self.numbers.batch + 1
        wrong_if(self.minibatch is not None and self.minibatch > rows, f"--minibatch is {self.minibatch}, of {rows} rows")

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
            return References.read(self.references, salt=salt, labels=self.labels)
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
        return Plan.for_epsilon(
            epsilon, delta=delta, batch=batch, tokens=tokens, tau=1.0 if self.tau is None else self.tau,
            k=None if top == "all" else int(top), adjacency=self.adjacency, records=self.records,
        )  # fmt: skip

    def purse(self, folder: Path) -> Purse:
        """Returns where the budget lies: that of attested references beside their policy, for all runs of it."""
        shared = None if self.policy is None else self.policy.with_name(f"{self.policy.stem}.budget.db")
        return Purse.of(folder, self.budget or shared, self.budget_key)

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
            return Earlier(self.earlier, keys=self.earlier_key or ()).registry(cites, owner)

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
    there = known and purse.log.exists()
    cap = _cap_there(purse.log) if there and asked.signed is None else cap_of(plan, references, asked.epsilon)
    data: dict[str, Any] = figures(plan, batches=batches, cap_nano=cap, minibatch=asked.minibatch)
    if references is not None:
        data |= {"references": len(references), "refused": dict(references.refused), "cautions": asked.cautions(references)}
        if there and (left := _left(purse.log, asked, references, salt)) is not None:
            data["texts_left"] = left
    return Told(data, plan_text(data))


def _left(path: Path, asked: Asked, references: References, salt: bytes) -> int | None:
    """Returns how many texts a log holds that is there already; None where some reference is to be admitted to it first."""
    with BudgetLog.open(Place.of(path), read_only=True) as log:
        if references.rule is not None and not all(log.account(one.unit) in log.state.admitted for one in references):
            return None
        pool = Pool(references, asked.numbers, log, salt)
        return sum(pool.left(label) for label in pool.sizes if asked.label in (None, label))


def _cap_there(log: Path) -> int:
    with BudgetLog.open(Place.of(log), read_only=True) as found:
        return found.header.cap(CONTRIBUTION) or 0

