"""Watches a growing ledger for one contributor: what it says of their contributions, and what calls for an alarm.

An export is held against what contributors have of their own: attestations and withdrawals that they signed, and what earlier
exports said (`ledger.proofs.memory`). Every other figure is the audit's, and as good as its verdict.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from attest import sign1
from attest.attestation import Attestation
from attest.descriptor import SignedDescriptor
from attest.fixed_point import from_micro
from attest.schema.plain import utc
from attest.withdrawal import PASSING, Withdrawal
from ledger.audit import AuditReport, verify_export
from ledger.audit.findings import Word
from ledger.audit.given import begin, follow, read_export
from ledger.audit.withdrawals import counts_texts
from ledger.leaves import Admit, Withdraw
from ledger.proofs.membership import Admitted, name_member
from ledger.proofs.memory import hold_against_memory
from ledger.proofs.prover import ExportReader
from ledger.replay.earlier_texts import WITHDRAWN
from ledger.retention import RetainedReplay
from ledger.views.trace import restored

ALARMS: Final[dict[str, Word]] = {
    "WITHDRAWAL_MISSING": Word(
        "you signed a withdrawal longer ago than --delay, and no leaf enters it",
        "hand it in again, or ask for a newer export",
        code=3,
    ),
    "WITHDRAWAL_REASON": Word(
        "your withdrawal was entered after you signed it, for another reason; `expired` binds no later run",
        "ask the operator to enter what you signed",
        code=3,
    ),
    "BOUNDS": Word(
        "it is recorded with another class, clip norm, noise multiplier, cap, limit, content, key or corpus than you signed",
        "ask the corpus owner; proof files show what is recorded",
        code=4,
    ),
    "MEMBER": Word(
        "a member record that you gave shows you in none of these ledgers",
        "give the export of its ledger, and your attestations; else ask the operator",
        code=4,
    ),
    "UNSIGNED": Word(
        "something was admitted under your key that is in none of the attestations given",
        "look for a file that you left out; else revoke the key (dptrain attest revoke)",
        code=5,
    ),
    "BEHIND": Word("the ledger is smaller than it was", "publish the evidence file that is named", code=6),
    "FORKED": Word("the ledger has another history than it had", "publish the evidence file that is named", code=6),
    "CITED": Word(
        "a run cites the ledger as lost at fewer leaves than it had", "publish the evidence file that is named", code=6
    ),
}
"""Alarms, each with its exit code; of several the highest counts. Whatever else fails an audit is 1."""

FAILED: Final = 1
"""Exit code where an export failed its audit, so that nothing can be said of it."""


@dataclass(frozen=True, slots=True)
class Mine:
    """Holds a contribution that the contributor signed: where it was found, its bounds in the clear, and its commitments."""

    name: str
    signed: SignedDescriptor
    descriptor_hash: bytes
    attestation_hash: bytes
    key_id: bytes

    @classmethod
    def of(cls, name: str, attestation: Attestation) -> "Mine":
        """Reads an attestation of one's own, whose signature is not verified; raises AttestError where it is none."""
        found = SignedDescriptor.from_cbor(attestation.descriptor)
        headers = sign1.parse(attestation.sign1)
        return cls(name, found, found.digest(), attestation.digest(), headers.key_id)

    @property
    def bounds(self) -> "Bounds":
        """Returns its bounds as its contributor signed them."""
        return Bounds(self.signed.admissibility_class, *self.signed.bounds, *self.signed.limit)


@dataclass(frozen=True, slots=True)
class Terminus:
    """A WITHDRAW leaf: its position, its time in POSIX seconds, and the reason that it gives."""

    seq: int
    time: int
    reason: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """Holds what was signed or recorded of one contribution: the class, and integers in the units of an ADMIT leaf."""

    class_name: str
    clip_micro: int
    sigma_micro: int
    max_occurrences: int
    max_epsilon_micro: int
    max_delta_pico: int


@dataclass(frozen=True, slots=True)
class WatchedRow:
    """Tells of one contribution in one ledger.

    Attributes:
        name: where its attestation was found; of one that is known by its withdrawal alone, the name of that file.
        seq: position of its ADMIT leaf, None where it was not admitted.
        time: POSIX seconds of that leaf, None likewise and where it was pruned.
        signed: its bounds as its contributor signed them, None where the attestation was not given.
        recorded: its bounds as the ADMIT leaf, or what stands in for it, says them; None where it was not admitted.
        epsilon: what it has spent in this ledger by the audit's figures; None in a public class and where it was not admitted.
        carried: what its ADMIT leaf says that it had spent in earlier runs.
        asked: POSIX seconds of the earliest signed withdrawal that was given, None without one.
        unnamed: where it is not known to have been admitted there, how many contributions stayed of whom the ledger says no
            names any more; it may be one of them, which its member record shows.
    """

    name: str
    descriptor_hash: str
    origin: str
    seq: int | None
    time: int | None
    signed: Bounds | None
    recorded: Bounds | None
    steps: int
    epsilon: float | None
    carried: float
    withdrawn: Terminus | None
    asked: int | None
    unnamed: int = 0


@dataclass(frozen=True, slots=True)
class Alarm:
    """Says something that the contributor should act on. `code`: a key of `ALARMS`, or the code of a finding of the audit."""

    code: str
    export: str
    seq: int | None
    sentence: str

    @property
    def exit_code(self) -> int:
        """Returns the exit code that it asks for."""
        return ALARMS[self.code].code if self.code in ALARMS else FAILED


@dataclass(frozen=True, slots=True)
class Watched:
    """Tells what a look at some exports found.

    Attributes:
        rows: a row per contribution and ledger that says something of it, or says of some no more who they are; and one per
            contribution of which there is none.
        reports: the audit of each export, in the order of their sizes.
    """

    rows: tuple[WatchedRow, ...]
    alarms: tuple[Alarm, ...]
    reports: tuple[AuditReport, ...]

    @property
    def exit_code(self) -> int:
        """Returns 0 where there is nothing to say, else the highest of the alarms', so that a fork outranks a late withdrawal.
        """
        return max((alarm.exit_code for alarm in self.alarms), default=0)

    def to_json(self) -> dict[str, Any]:
        """Returns a form that ``json.dumps`` takes."""
        ledgers = [
            {"origin": item.origin, "size": item.size, "verdict": item.verdict, "qualifiers": list(item.qualifiers)}
            for item in self.reports
        ]
        alarms = [asdict(alarm) for alarm in self.alarms]
        return {"contributions": [asdict(row) for row in self.rows], "alarms": alarms, "ledgers": ledgers}


def watch(
    exports: Sequence[Path],
    keys: Sequence[str],
    mine: Sequence[Mine],
    withdrawals: Sequence[tuple[str, Withdrawal]] = (),
    members: Sequence[Admitted] = (),
    *,
    delay: int,
    now: int,
    key_ids: Iterable[bytes] = (),
    remember: Path | None = None,
    owner_key: bytes | None = None,
) -> Watched:
    """Audits exports, and says what they hold of one contributor.

    Guarantee: Without an alarm every export passed its audit and extends what was remembered of its ledger; no ADMIT leaf that
    is there names a key of the contributor and a contribution that is not among ``mine``; each contribution of ``mine`` that
    was admitted is recorded with the class, clip norm, noise multiplier, cap, limit, content and corpus that its contributor
    signed; and each signed withdrawal that is older than ``delay`` and names an admitted contribution is entered, with its own
    reason unless something else ended the contribution before it was signed. Of ADMIT leaves that were pruned nothing tells the
    key; and whom they admitted who stayed until a run was closed, the member record alone.

    Args:
        exports: directories; of several exports of one ledger the largest is told, and all must be one history.
        withdrawals: what the contributor withdrew, each behind the name of its file.
        members: the member records of contributions, as `ledger prove --kind summary` hands them out.
        delay: seconds after its signing by which a withdrawal must be entered.
        key_ids: further keys of the contributor, by their short names, beside those that signed ``mine``.
        remember: directory that keeps the largest checkpoint per ledger (`ledger.proofs.memory`); None remembers nothing.

    Raises:
        LedgerCorrupt, NoteError: an export has no checkpoint that can be read.
        StorageFailed: the memory cannot be read or written.
        ExportChanged: files changed while they were read.
    """
    alarms: list[Alarm] = []
    reports: list[AuditReport] = []
    latest: dict[str | None, tuple[Path, AuditReport]] = {}
    with TemporaryDirectory() as temporary:
        memory = Path(temporary) if remember is None else remember
        for path in sorted(exports, key=lambda item: ExportReader(item).size):
            report = verify_export(path, keys, owner_key=owner_key, now=now)
            report = hold_against_memory(report, path, memory, keys)
            reports.append(report)
            if report.verdict == "FAILED":
                found = report.findings[0]
                alarms.append(Alarm(found.code, str(path), None, f"{found.where}: {found.sentence}"))
            else:
                latest[report.origin] = (path, report)
    look = _Look(mine, withdrawals, {*key_ids, *(item.key_id for item in mine)}, members, delay, now, alarms)
    for path, report in latest.values():
        look.at(path, report)
    look.require_members(exports)
    return Watched(look.rows(), tuple(alarms), tuple(reports))


class _Look:
    """Makes one pass over the latest export of every ledger."""

    def __init__(
        self,
        mine: Sequence[Mine],
        withdrawals: Sequence[tuple[str, Withdrawal]],
        key_ids: set[bytes],
        members: Sequence[Admitted],
        delay: int,
        now: int,
        alarms: list[Alarm],
    ) -> None:
        self._mine = {item.descriptor_hash: item for item in mine}
        self._asked: dict[bytes, list[tuple[str, Withdrawal]]] = {}
        for name, said in sorted(withdrawals, key=lambda item: item[1].time):
            self._asked.setdefault(said.descriptor_hash, []).append((name, said))
        self._key_ids, self._delay, self._now, self._alarms = key_ids, delay, now, alarms
        self._rows: dict[bytes, list[WatchedRow]] = {name: [] for name in (*self._mine, *self._asked)}
        self._members = {item.shown.member.descriptor_hash: item for item in members}
        self._shown: set[bytes] = set()

    def rows(self) -> tuple[WatchedRow, ...]:
        """Returns all rows, those of one contribution together; what no ledger admitted has one that says so."""
        return tuple(row for name, rows in self._rows.items() for row in rows or (self._row(name, "", None, None, None),))

    def at(self, path: Path, report: AuditReport) -> None:
        """Reads an export that passed its audit."""
        given = read_export(path)
        given.require(report)
        run = begin(given.leaves, recompute=False)
        admitted: dict[bytes, Admit] = {}
        ended: dict[bytes, Withdraw] = {}
        for leaf, _ in follow(run, given.leaves):
            if isinstance(leaf, Admit):
                if leaf.descriptor_hash in self._rows:
                    admitted[leaf.descriptor_hash] = leaf
                elif leaf.key_id in self._key_ids and not run.is_pruned(leaf.seq):
                    self._unsigned(path, leaf)
            elif isinstance(leaf, Withdraw) and leaf.descriptor_hash in self._rows:
                ended[leaf.descriptor_hash] = leaf  # a signed one may follow one of a passing reason
        for name, member in self._members.items():
            if name in self._rows and name not in admitted and name_member(run, member):
                admitted[name] = restored(run.contributions[name], run.header.time)
        self._shown |= admitted.keys()
        for name in self._rows:
            admit, end = admitted.get(name), ended.get(name)
            if admit is None and end is None and not any(run.register.unnamed):
                continue
            if admit is not None:
                self._compare(path, run, admit)
            self._withdrawal(path, run, name, admit, end)
            self._rows[name].append(self._row(name, run.header.origin, run, admit, end))

    def require_members(self, exports: Sequence[Path]) -> None:
        """Raises an alarm for every member record that shows nothing in any export."""
        for name in self._members.keys() - self._shown:
            told = f"the member record of {name.hex()} shows it in none of these ledgers, nor does an ADMIT leaf"
            how = "give the export of its ledger, and every attestation file; else ask the operator who stayed there"
            self._alarm("MEMBER", exports[0], None, f"{told}; {how}")

    def _row(
        self, name: bytes, origin: str, run: RetainedReplay | None, admit: Admit | None, end: Withdraw | None
    ) -> WatchedRow:
        mine, asked = self._mine.get(name), self._asked.get(name, [])
        found = None if run is None or admit is None else run.contributions[name]
        steps, epsilon = 0, None
        if run is not None and found is not None:
            steps, epsilon = run.steps(found), None if run.is_public(found) else run.epsilon(found)
        pruned = run is not None and admit is not None and run.is_pruned(admit.seq)
        return WatchedRow(
            name=mine.name if mine is not None else asked[0][0],
            descriptor_hash=name.hex(),
            origin=origin,
            seq=None if admit is None else admit.seq,
            time=None if admit is None or pruned else admit.time,
            signed=None if mine is None else mine.bounds,
            recorded=None if admit is None else _recorded(admit),
            steps=steps,
            epsilon=epsilon,
            carried=0.0 if admit is None else from_micro(admit.carried_micro),
            withdrawn=None if end is None else Terminus(end.seq, end.time, end.reason),
            asked=asked[0][1].time if asked else None,
            unnamed=0 if run is None or admit is not None else sum(run.register.unnamed),
        )

    def _alarm(self, code: str, path: Path, seq: int | None, sentence: str) -> None:
        self._alarms.append(Alarm(code, str(path), seq, sentence))

    def _unsigned(self, path: Path, leaf: Admit) -> None:
        told = f"{leaf.descriptor_hash.hex()} was admitted as signed by your key {leaf.key_id.hex()}"
        how = "give every attestation file that you have; if you signed no such thing, revoke the key and ask the corpus owner"
        self._alarm("UNSIGNED", path, leaf.seq, f"{told}, and none of the attestations that you gave is of it; {how}")

    def _compare(self, path: Path, run: RetainedReplay, admit: Admit) -> None:
        """Holds an admission against what was signed."""
        mine = self._mine.get(admit.descriptor_hash)
        if mine is None:
            return
        signed, recorded = asdict(mine.bounds), asdict(_recorded(admit))
        wrong = [f"{what} {value} is recorded as {recorded[what]}" for what, value in signed.items() if value != recorded[what]]
        corpus = run.header.policy.corpus
        if mine.signed.corpus != corpus:
            wrong.append(f"the corpus {mine.signed.corpus!r} is recorded as {corpus!r}")
        if not run.is_pruned(admit.seq):
            wrong += [
                f"the {what} is another one"
                for what, there, here in (
                    ("attestation", admit.attestation_hash, mine.attestation_hash),
                    ("key", admit.key_id, mine.key_id),
                    ("commitment to the content", admit.anchor, mine.signed.content),
                )
                if there != here
            ]
        if wrong:
            told = "; ".join(wrong)
            which = f"{mine.name} ({mine.descriptor_hash.hex()})"
            self._alarm("BOUNDS", path, admit.seq, f"{which} is not recorded as it was signed: {told}; ask the corpus owner")

    def _withdrawal(self, path: Path, run: RetainedReplay, name: bytes, admit: Admit | None, end: Withdraw | None) -> None:
        """Holds what was withdrawn against what the ledger says."""
        corpus = run.header.policy.corpus
        said = next(((file, item) for file, item in self._asked.get(name, ()) if item.corpus == corpus), None)
        if said is None:
            return
        file, item = said
        told = f"{name.hex()} was withdrawn by {file}, signed {utc(item.time)},"
        if end is None or (end.reason in PASSING and end.time < item.time):
            if self._now > item.time + self._delay and (admit is not None or any(run.register.unnamed)):
                last = f"the last leaf of this export is of {utc(run.last_time)}"
                how = "hand it to the operator again, or ask for a newer export"
                if end is not None:
                    how += f" (leaf {end.seq}, {end.reason!r}, binds no later run)"
                self._alarm("WITHDRAWAL_MISSING", path, None, f"{told} and no leaf enters it; {last}; {how}")
            return
        reasons = {other.reason_code for _, other in self._asked[name] if other.corpus == corpus}
        if end.reason == WITHDRAWN and counts_texts(run.header):
            return  # from a budget that the run counts, which says no reason; it binds later runs
        if end.reason not in reasons and end.time >= item.time and self._now > item.time + self._delay:
            how = "so entered it may not bind later runs: ask the operator to enter what you signed"
            told = f"{told} for the reason {item.reason_code!r}, and the leaf says {end.reason!r}"
            self._alarm("WITHDRAWAL_REASON", path, end.seq, f"{told}; {how}")


def _recorded(admit: Admit) -> Bounds:
    return Bounds(admit.class_name, *admit.bounds, *admit.limit)
