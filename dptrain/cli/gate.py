"""`dptrain gate`: verify the attestations of a corpus, and keep the reading for the run over it."""

import contextlib
import json as json_text
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attest.corpus import Corpus, Extent, Item, Shard, ShardNumber, open_corpus
from attest.corpus.records import SUFFIX
from attest.descriptor import TRAIN
from attest.errors import KeyRefused, RegistryRefused
from attest.files import atomic_writer
from attest.gate import Admitted, Gate, GateReport, ReasonCode, Refused, run_gate
from attest.gate.reading import KeptReading, Verified
from attest.gate.verdicts import MergedReading, ShardReading
from attest.keys import generate, load_private_key, save_private_key
from attest.policy import Policy, SignedPolicy
from attest.registry import Registry
from attest.schema.plain import utc, visible
from dptrain.cli.inputs import OwnerKey, Purpose, RegistryFile, read_registry, read_signed_policy
from dptrain.cli.ledger.place import LedgerKey, StateDirectory, checked, place_of
from dptrain.cli.options import argument, file_argument, file_option, moment, option, wrong_if
from dptrain.cli.output import counted, counting, styled, table
from dptrain.cli.results import Result, Shown, pick
from dptrain.progress import attestations_in, progress_bar
from dptrain.record.registry_watch import cited_roots, memories_of, memory_of, reading_beside

if TYPE_CHECKING:
    from ledger.storage.place import Place

ForLedger = Annotated[
    str | None,
    option(
        "Ledger of the run that trains on it, there or to come. Signatures that verify are kept beside it, for the next "
        "reading; its key is made if there is none.",
        "--for",
        metavar="LEDGER",
    ),
]
OneShard = Annotated[
    str | None,
    option("Judge this shard of the corpus alone, 3/8 for the third of eight, and write its --verdicts.", metavar="K/N"),
]
Verdicts = Annotated[Path | None, option("Where the verdicts of the --shard go.", metavar="FILE", dir_okay=False)]
Merged = Annotated[
    list[Path] | None,
    option("Judge the corpus by the verdicts of all shards: a file, or a folder of them; repeat.", metavar="PATH", exists=True),
]
VerdictKey = Annotated[
    Path | None, file_option("KEY", "Private key that the shards and their merge share, for nothing else.", "--verdict-key")
]
NoKeptReading = Annotated[bool, option("Verify every signature, whatever was kept, and keep nothing.", "--no-kept-reading")]


@dataclass(frozen=True)
class Sharing:
    """Says which part a command has in a judgement by shards: to judge one of them, to merge all, or none."""

    shard: str | None
    verdicts: Path | None
    merge: list[Path] | None
    key: Path | None

    def refuse_wrong_use(self, now: int | None, ledger: str | None) -> None:
        """Refuses options that do not go together."""
        wrong_if(self.shard is not None and self.merge, "--shard judges one part, --merge joins all; give one of them")
        wrong_if((self.shard is None) != (self.verdicts is None), "--shard K/N and --verdicts FILE go together")
        if self.shard is None and not self.merge:
            wrong_if(self.key is not None, "--verdict-key is for --shard and --merge; give it with one of them")
            return
        wrong_if(self.key is None, "give --verdict-key, one for all shards and the merge; 'dptrain attest keygen' makes one")
        if self.verdicts is not None:
            wrong_if(now is None, "all shards are judged at one time; give each of them the same --now TIME")
            wrong_if(ledger is not None, "a shard is judged without a ledger; give --ledger or --for with --merge")
            wrong_if(not self.verdicts.parent.is_dir(), f"there is no folder {self.verdicts.parent}; make it first")

    def reading(
        self,
        corpus: Corpus,
        signed: SignedPolicy,
        registry: Registry,
        now: int | None,
        kept: KeptReading | None,
        purpose: str = TRAIN,
    ) -> tuple[Iterable[Item], Verified | None]:
        """Returns what to judge and what to remember of it: `kept`, where no shards are judged."""
        if self.key is None:
            return corpus, kept
        key = load_private_key(self.key)
        if self.shard is not None and self.verdicts is not None and now is not None:
            part = Shard(corpus, ShardNumber.parse(self.shard), Extent.of(corpus))
            return part, ShardReading(part, signed, registry, now, self.verdicts, key, purpose=purpose)
        paths = [path for given in self.merge or () for path in _verdict_files(given)]
        extent = Extent.of(corpus)
        return corpus, MergedReading(paths, signed, registry, extent, key, now=now, into=kept, purpose=purpose)


def _verdict_files(given: Path) -> list[Path]:
    """Returns the files that an option names: one, or all of a folder whose names do not begin with a dot."""
    if not given.is_dir():
        return [given]
    return sorted(path for path in given.iterdir() if path.is_file() and not path.name.startswith("."))


@dataclass(frozen=True)
class Keeping:
    """Says where the reading of a command is kept: beside which ledger, if beside any, and under which key of it.

    With `make` the key of a ledger that is still to come is made here.
    """

    ledger: str | None
    key: Path | None = None
    state: Path | None = None
    make: bool = False

    @property
    def there(self) -> bool:
        """Tells whether the ledger has begun."""
        from ledger.storage.store import exists

        return self.ledger is not None and exists(place_of(self.ledger, self.state))

    def reading(self, signed: SignedPolicy, registry: Registry) -> KeptReading | None:
        """Opens the kept reading; None where there is no ledger, or no key of it at hand. Raises KeyRefused: A key that was
        named cannot be read, or a new one cannot be written."""
        if self.ledger is None:
            return None
        place = place_of(self.ledger, self.state)
        if place.beside is None:
            return None
        path = self.key or place.key
        if not path.exists():
            if not self.make or self.there:
                return None
            place.make_state_directory()
            save_private_key(path, generate())
        try:
            return reading_beside(place, load_private_key(path), signed, registry)
        except KeyRefused:
            if self.key is not None or self.make:
                raise
            return None  # A gate that only asks for withdrawals needs no key, nor the right to read one.


def as_json(reading: KeptReading | None) -> dict[str, Any]:
    """Returns what a command with `--json` says of the kept reading; nothing if there is none."""
    if reading is None:
        return {}
    return {"kept_reading": {"path": str(reading.path), "spared": reading.spared, "told": reading.told or None}}


def sentences(reading: KeptReading | None) -> list[str]:
    """Returns what a command says of the kept reading: what it spared, and why it did not spare more."""
    if reading is None:
        return []
    spared = [f"{reading.spared} signatures had been verified before, as kept in {reading.path}"] if reading.spared else []
    return spared + ([reading.told] if reading.told else [])


def gate(
    policy: Annotated[Path, file_argument("POLICY.cose", "Policy signed by the corpus owner.")],
    corpus: Annotated[Path, argument("Directory, or one piece of data.", metavar="CORPUS", exists=True)],
    owner_key: OwnerKey = None,
    registry: RegistryFile = None,
    purpose: Annotated[Purpose, option("What the contributions are to be used for.")] = Purpose.train,
    ledger: Annotated[
        str | None, option("Refuse what was withdrawn in this ledger, a file or a URL.", metavar="LEDGER", callback=checked)
    ] = None,
    made_for: ForLedger = None,
    key: LedgerKey = None,
    state: StateDirectory = None,
    no_kept_reading: NoKeptReading = False,
    shard: OneShard = None,
    verdicts: Verdicts = None,
    merge: Merged = None,
    verdict_key: VerdictKey = None,
    now: Annotated[int | None, moment("Moment of admission; default: now.")] = None,
    limit: Annotated[int, option("Refusals that are listed; --json and --refusals list all.", min=0)] = 20,
    refusals: Annotated[
        Path | None, option("Write every refusal as a line of JSON.", metavar="FILE.jsonl", dir_okay=False)
    ] = None,
    workers: Annotated[
        int | None, option("Processes that verify signatures; default: one per processor.", min=1, max=1024)
    ] = None,
) -> "Judged":
    """Judge every contribution as training would, or generation: admitted per class, refused per reason.

    The corpus is read as a stream, so its size does not matter. No data is changed: training judges again when it starts, goes
    on with what is admitted, and leaves out the rest. With --purpose generate it admits what texts may be generated from: what
    was signed for that, in classes of the policy that have it; a reading is kept for training alone. Which state of the
    registry was used is remembered beside the corpus, and an older one is refused from then on. With a ledger, which signatures
    verified is kept beside it, under its key; contents are hashed, and all else is judged, at every reading.

    Exit code 0 if everything was admitted, 1 if anything was refused, 2 for wrong use. A shard ends with 0 once its verdicts
    are written: what is refused is said by the merge.

    A large corpus is judged in shards, by processes on any machines; docs/large.md says how.

    Before training, and whenever data has arrived: what would be admitted, what refused, and why. Whoever has registry.names
    beside the registry can run it; contributors, who have not, use `attest verify` and `attest show`.

    Example: `dptrain gate policy.cose corpus/`
    """
    if ledger is not None and made_for is not None:
        raise typer.BadParameter("give --ledger for a run that has begun, or --for for any run; not both")
    training = purpose is Purpose.train
    wrong_if(made_for is not None and not training, "--for keeps a reading for a run of training; leave it out, or --purpose")
    sharing = Sharing(shard, verdicts, merge, verdict_key)
    sharing.refuse_wrong_use(now, ledger or made_for)
    keeping = Keeping(made_for or ledger, key, state, make=made_for is not None)
    ledger = ledger or (made_for if keeping.there else None)
    signed = read_signed_policy(policy, owner_key)
    known = read_registry(policy, registry, owner_key)
    withdrawn = _withdrawn(ledger, known)
    # Beside a ledger lies the reading of its run, which trains: another use neither takes nor replaces it.
    reading = None if no_kept_reading or not training else keeping.reading(signed, known)
    data = open_corpus(corpus)
    items, remember = sharing.reading(data, signed, known, now, reading, purpose.value)
    moment_of_admission = remember.now if isinstance(remember, MergedReading) else int(time.time()) if now is None else now
    judging = Gate(signed.policy, known, workers=workers, remember=remember, purpose=purpose.value)
    _remember(known, data, ledger)
    judged = Judged(moment_of_admission, judging.registry_root, reading, remember, purpose=purpose.value)
    started = time.monotonic()
    # Opened before judging, which may take long: a place that cannot be written is told at once.
    with contextlib.nullcontext() if refusals is None else atomic_writer(refusals) as stream:
        with progress_bar("judging", lambda: attestations_in(corpus)) as progress:
            for outcome in judging.judge(items, now=moment_of_admission, withdrawn=withdrawn, progress=progress):
                judged.add(outcome, limit)
        if isinstance(remember, MergedReading):
            remember.finish()
        if stream is not None:
            stream.writelines(judged.lines())
    if isinstance(remember, ShardReading):
        remember.keep()
    if reading is not None:
        reading.keep()
    judged.seconds = time.monotonic() - started
    _tell_waiting(None if made_for is None and ledger is None else place_of(made_for or ledger, state))
    return judged


def judge(
    rules: Policy,
    policy: Path,
    corpus: Path,
    registry: Path | None,
    now: int | None,
    owner_key: Path | None,
    kept: Callable[[Registry], KeptReading | None] | None = None,
) -> tuple[GateReport, KeptReading | None]:
    """Run the gate over a corpus, with the kept reading that `kept` opens for its registry; returns that too."""
    known = read_registry(policy, registry, owner_key)
    reading = None if kept is None else kept(known)
    data = open_corpus(corpus)
    _remember(known, data, None)
    when = int(time.time()) if now is None else now
    with progress_bar("judging", lambda: attestations_in(corpus)) as progress:
        report = run_gate(data, rules, known, now=when, progress=progress, remember=reading)
    if reading is not None:
        reading.keep()
    return report, reading


@dataclass
class Judged(Result):
    """Shows what the gate said of a corpus: counts, and the first refusals; all are in a file, for there may be very many."""

    now: int
    root: bytes
    reading: KeptReading | None
    shards: Verified | None = None
    seconds: float = 0.0
    purpose: str = TRAIN
    admitted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    contributors: Counter[str] = field(default_factory=Counter)
    first: list[dict[str, Any]] = field(default_factory=list)
    spool: Any = field(default_factory=tempfile.TemporaryFile)

    def add(self, outcome: Admitted | Refused, limit: int) -> None:
        """Counts one more, and keeps a refusal where there are fewer than so many."""
        if isinstance(outcome, Admitted):
            self.admitted[outcome.admission.admissibility_class] += 1
            self.contributors[outcome.admission.contributor] += 1
            return
        at = outcome.locator
        told = pick(outcome.refusal, "code sentence contributor descriptor_hash")
        told |= {"source": at.source if at else None, "offset": at.offset if at else None}
        self.refused[str(outcome.refusal.code)] += 1
        if len(self.first) < limit:
            self.first.append(told)
        self.spool.write(json_text.dumps(told).encode() + b"\n")

    def lines(self) -> Iterator[bytes]:
        """Yields every refusal as a line of JSON."""
        self.spool.seek(0)
        yield from self.spool

    @property
    def exit_code(self) -> int:
        return bool(self.refused) and not isinstance(self.shards, ShardReading)

    def of_shards(self) -> dict[str, Any]:
        """Returns what a command with `--json` says of shards; nothing where the corpus was judged whole."""
        found = self.shards
        if isinstance(found, ShardReading):
            number, shards = found.shard
            return {"shard": {"number": number, "of": shards, "path": str(found.path), "attestations": len(found)}}
        if isinstance(found, MergedReading):
            return {"merged": {"shards": found.setting.shards, "spared": found.spared, "checked": found.checked}}
        return {}

    def text(self) -> Iterator[Shown]:
        admitted, refused = self.admitted.total(), self.refused.total()
        use = "" if self.purpose == TRAIN else f" to {self.purpose}"
        yield f"{admitted} admitted{use}, {refused} refused, at {utc(self.now)}"
        for name, count in sorted(self.admitted.items()):
            yield styled("green", "  admitted", f" {name}: {count}")
        for code, count in sorted(self.refused.items()):
            yield styled("red", "  refused", f" {code}: {count}. {ReasonCode[code].meaning}")
        if self.first:
            rows = table("where", "reason", "sentence")
            rows.columns[1].justify = rows.columns[2].justify = "left"
            for row in self.first:
                # A file's name is whatever its contributor chose: escape sequences for the terminal, say.
                where = "(no content)" if row["source"] is None else f"{visible(row['source'])} at {row['offset']}"
                rows.add_row(where, row["code"], row["sentence"])
            yield rows
            if refused > len(self.first):
                yield f"... and {refused - len(self.first)} more; --refusals FILE.jsonl writes all"
        if not admitted and not refused:
            yield f"nothing to judge: the corpus holds no data; attestations of X lie beside it in X{SUFFIX}"
        whose = f"from {counted(len(self.contributors), 'contributor')}, " if admitted else ""
        yield f"{whose}judged in {self.seconds:.1f} s against registry root {self.root.hex()}"
        if isinstance(self.shards, ShardReading):
            yield f"this is shard {self.shards.shard} alone; its verdicts, for gate --merge, are in {self.shards.path}"
        if isinstance(self.shards, MergedReading):
            spared = counted(self.shards.spared, "signature")
            shards = counted(self.shards.setting.shards, "shard")
            yield f"{spared} had been verified in {shards}, as holders of the verdict key say"
        yield from sentences(self.reading)

    def print_json(self) -> None:
        """Prints one JSON object; the list of refusals comes last and is copied line by line, since it may be long."""
        head = {
            "purpose": self.purpose,
            "now": self.now,
            "registry_root": self.root.hex(),
            "contributors": len(self.contributors),
            "admitted": dict(sorted(self.admitted.items())),
            "refused": dict(sorted(self.refused.items())),
            **as_json(self.reading),
            **self.of_shards(),
        }
        typer.echo(json_text.dumps(head, indent=2)[:-2] + ',\n  "refusals": [', nl=False)
        for number, line in enumerate(self.lines()):
            typer.echo(f"{',' if number else ''}\n    {line.decode().rstrip()}", nl=False)
        typer.echo("\n  ]\n}" if self.refused else "]\n}")


def _withdrawn(ledger: str | None, registry: Registry) -> frozenset[bytes]:
    """Returns what was withdrawn in a ledger, whose run must have begun with this registry or an earlier state of it."""
    if ledger is None:
        return frozenset()
    from ledger.log import Ledger

    place = place_of(ledger, None)
    with counting(f"reading {place.shown}"), Ledger.open(place, read_only=True) as log:
        for root in cited_roots(log):
            if not registry.extends(root):
                raise RegistryRefused(
                    "REGISTRY_ROOT",
                    f"the ledger {place.shown!r} cites a registry of root {root.hex()}, which the one given does not extend; it"
                    " is another one, or was cut back: get the latest from the owner",
                )
        return frozenset(log.state.withdrawals)


def _tell_waiting(place: "Place | None") -> None:
    """Says on standard error of signed withdrawals that lie beside a ledger, there or to come, and that no leaf enters yet."""
    if place is None or place.beside is None:
        return
    folder = place.side(".withdrawals")
    waiting = len(list(folder.glob("*.cose"))) if folder.is_dir() else 0
    if waiting:
        told = f"{counted(waiting, 'withdrawal')} in {folder} {'waits' if waiting == 1 else 'wait'} for the run"
        typer.echo(f"note: {told}, which enters them before its next window; they are not among these refusals", err=True)


def _remember(registry: Registry, corpus: Corpus, ledger: str | None) -> None:
    """Refuses a registry that is older than one that was used before, and remembers it for the corpus.

    What is beside a ledger its run writes, and a gate only reads.
    """
    kept = memory_of(corpus)
    for memory in [kept] if ledger is None else memories_of(place_of(ledger, None), corpus):
        memory.check(registry)
    kept.keep(registry)
