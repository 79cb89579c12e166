"""Keeps a budget log: reserves before anything is computed, commits what was computed, and closes epochs.

Over 600 lines: all that appends shares one turn and its two syncs, and a reader must see in one place that nothing goes around.

Life of a reservation: (1) the process takes the turn on its machine (`ledger.budget.mark`) and a transaction in which nobody
writes; (2) it reads what others appended since it last looked, and adds it up under the same rules as an auditor; (3) it
compares the tree and the mark with what it has; (4) the charge is held against the caps, and refused above one; (5) the
RESERVE or TEXT leaf, and notices of thresholds, are committed durably, and the mark moves; (6) only then does `reserve`
return, and only then may a model be called. Every failure on the way is an error: nothing is computed then.

What is durable when `reserve` returns, should the power fail right then: the leaf and its notices, by the sync of the
database's own log that ended the transaction; and after it the mark, by a sync of its own, so that an older copy of the
database is told. That log is made large ahead and overwritten, which changes neither of these syncs: only the file system has
no new size to write down. Threads that ask at once share a turn (`ledger.budget.group_commit`): their leaves stand in one
transaction, each judged behind those before it, and none hears anything before both syncs. A settlement given to
`settle_later` is in memory alone until the next turn: whoever loses it frees nothing.
"""

import hashlib
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Final

from attest.attestation import Attestation
from attest.errors import FileRefused
from attest.files import atomic_write, read_limited
from attest.schema.cards import card
from attest.schema.plain import BACK_SECONDS, machine_time, utc
from ledger.budget import mark
from ledger.budget.counted import Admitting, Shares, own_texts, require_cited
from ledger.budget.generation import CONTRIBUTIONS, GenerationRule, OverRuns, class_of
from ledger.budget.group_commit import GroupCommit
from ledger.budget.leaves import (
    ACCOUNTANT,
    CONTRIBUTION,
    SESSION,
    Beside,
    Cap,
    Commit,
    Delivered,
    Epoch,
    Header,
    Leaf,
    Mechanism,
    Notice,
    Reference,
    Reserve,
    Text,
    Withdrawn,
    decode_leaf,
    encode_leaf,
    is_budget,
)
from ledger.budget.mark import Reached
from ledger.budget.rho import cap_nano
from ledger.budget.state import BudgetState
from ledger.budget.units import SECRET_SIZE, Unit
from ledger.errors import (
    BudgetExhausted,
    LeafRefused,
    LedgerBehind,
    LedgerBusy,
    LedgerClosed,
    LedgerCorrupt,
    LedgerError,
    LedgerForked,
    LedgerWrongRun,
    NoteError,
    StorageFailed,
)
from ledger.merkle import Frontier, leaf_hash
from ledger.note import MAX_NOTE_SIZE, NoteSigner, checkpoint_text, open_note, parse_checkpoint, sign_note
from ledger.replay.earlier_runs import SpentRegistry
from ledger.storage.place import Place, store_of
from ledger.storage.store import Row

if TYPE_CHECKING:
    from ledger.storage.sql.statements import SqlStore, Turn

THRESHOLDS: Final = (50, 80, 100)
"""Percentages of a cap that the privacy officer is told of, unless a spec says others."""

LATER: Final = 1024
"""Most settlements that wait for a turn; the next one takes a turn of its own."""

_SECRET: Final = "budget"
"""Key under which the secret of the units is kept beside the leaves; it goes into no export."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpec:
    """Says what a new budget log rests on.

    Attributes:
        caps: (epsilon in 1e-6, delta in 1e-12) by kind of unit: ``user``, ``corpus``, ``contribution``, and ``session`` only
            beside one of these.
        mechanisms: what releases cost (`ledger.budget.rho`).
        thresholds: percentages at which the privacy officer is told.
        beside: training ledgers that the budget stands beside.
        generation: rules of a signed policy by which contributions make texts (`GenerationRule.of`). With rules a contribution
            pays only behind `BudgetLog.admit`, in texts of as many contributions as its rule says; without, contributions are
            the operator's own records.
        over_runs: runs that count where a contribution, or its class, has a limit over all runs; None for a log that admits
            nobody with such a limit.
    """

    caps: dict[str, tuple[int, int]]
    mechanisms: Sequence[Mechanism]
    thresholds: Sequence[int] = THRESHOLDS
    beside: Sequence[Beside] = ()
    generation: Sequence[GenerationRule] = ()
    over_runs: OverRuns | None = None
    log_id: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(SECRET_SIZE), repr=False)

    def header(self, origin: str, vkey: str, now: int) -> Header:
        """Returns leaf 0. Raises LeafRefused: something in it is out of range; AccountantError: a cap is worth nothing."""
        caps = tuple(Cap(unit, *pair, cap_nano(*pair)) for unit, pair in sorted(self.caps.items()))
        mechanisms = tuple(sorted(self.mechanisms, key=lambda item: item.name))
        units_hash = hashlib.sha256(self.secret).digest()
        thresholds = tuple(sorted(self.thresholds))
        rules = tuple(sorted(self.generation, key=lambda rule: rule.name))
        fixed = caps, mechanisms, thresholds, units_hash, tuple(self.beside), rules
        return Header(now, origin, vkey, self.log_id, ACCOUNTANT, *fixed, self.over_runs)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Shows that releases were paid for: what a mechanism asks for before it computes.

    Attributes:
        seq: position of the RESERVE or TEXT leaf.
        releases: how many may be computed.
        rho_nano: of each, in 1e-9 of rho; of a text for each contribution.
        request: identifier of the request, 16 bytes.
    """

    seq: int
    releases: int
    rho_nano: int
    request: bytes


@dataclass(frozen=True, slots=True)
class Admissions:
    """Says what became of contributions that were to be admitted to generation.

    Attributes:
        admitted: digests of those whom the log took now, in the order in which they were given.
        refused: why it took another not, by its digest; ``code`` says it in a word, as of
            `ledger.budget.state.BudgetState.check_reference`.
    """

    admitted: tuple[bytes, ...]
    refused: Mapping[bytes, LeafRefused]


@dataclass(frozen=True, slots=True)
class _Asked:
    """Holds what `BudgetLog.reserve` was asked for, by one thread."""

    unit: Unit
    mechanism: str
    releases: int
    rho_nano: int
    request: bytes
    now: int | None


@dataclass(frozen=True, slots=True)
class _AskedText:
    """Holds what `BudgetLog.reserve_text` was asked for: of all accounts, or of none."""

    accounts: tuple[bytes, ...]
    mechanism: str
    releases: int
    rho_nano: int
    request: bytes
    now: int | None


@dataclass(frozen=True, slots=True)
class _Ended:
    """Holds what `BudgetLog.commit` was asked for."""

    reserved: int
    computed: int
    now: int | None


_Wanted = _Asked | _AskedText | _Ended
_Given = Reservation | Commit


@dataclass(frozen=True, slots=True)
class Balance:
    """Says what a unit has spent of its cap, open reservations included, in 1e-9 of rho; None where its kind has no cap."""

    spent: int
    cap: int | None


class BudgetLog:
    """An open budget log. Any number of processes may have it open and reserve; threads of one that reserve at once share a
    turn. Not for use across a fork: open it in each process.

    Guarantee: the sum of what any unit has reserved and not got back never passes its cap, over all processes, restarts and
    sessions, as long as the database and the mark keep what they synced. A reservation is durable when `reserve` returns.
    Nothing but a COMMIT leaf frees anything, and that no more than was never computed.

    Everywhere ``now`` is POSIX seconds, that of this machine without. A call may raise besides what it says LedgerBehind,
    LedgerForked, LedgerCorrupt, LedgerReplaced, LedgerBusy or StorageFailed: the log is not what it was, or cannot be written;
    then nothing may be computed. After all of these but LedgerBusy the handle refuses everything: open the log again.
    """

    def __init__(self, store: "SqlStore", place: Place, header: Header, secret: bytes, *, read_only: bool) -> None:
        """Use `create` or `open`."""
        self.place, self.header, self.read_only = place, header, read_only
        self._store, self._secret = store, secret
        self._process, self._lock, self._broken = os.getpid(), threading.RLock(), False
        self._state, self._own = BudgetState(header), own_texts(header)
        self._frontier = Frontier()
        self._frontier.append(leaf_hash(encode_leaf(header)))
        self._root = (1, self._frontier.root())
        self._roots = dict([self._root])  # of the sizes that were signed
        self._later: dict[int, Commit] = {}
        self._together: GroupCommit[_Wanted, _Given] = GroupCommit(self._serve_all)

    @classmethod
    def create(
        cls,
        ledger: str | os.PathLike[str] | Place,
        spec: BudgetSpec,
        signer: NoteSigner,
        *,
        now: int | None = None,
        state: str | os.PathLike[str] | None = None,
    ) -> "BudgetLog":
        """Creates a log with its header and a first checkpoint, and opens it.

        Args:
            ledger: a new file on a local disk, or a ``postgresql://`` URL. state: a local directory for the mark of one on a
                server.
            signer: the log's key; its name is the log's origin.

        Raises:
            LedgerError: code EXISTS. LeafRefused, AccountantError: as `BudgetSpec.header`.
        """
        place = Place.of(ledger, state)
        header = spec.header(signer.name, signer.vkey, machine_time() if now is None else now)
        body, frontier = encode_leaf(header), Frontier()
        frontier.append(leaf_hash(body))
        note = sign_note(checkpoint_text(header.origin, 1, frontier.root()), signer)
        if mark.path_of(place).exists():
            raise LedgerError("EXISTS", f"{mark.path_of(place)} exists: it belongs to a log that is not here")
        place.make_state_directory()
        kind = _shared(place)
        made = kind.create(place)
        try:
            made.close()
            store = kind.open_shared(place, read_only=False)
            try:
                with mark.taken_over(place) as held:
                    with store.turn("creating the log") as turn:
                        turn.keep(_SECRET, spec.secret.hex())
                        turn.append([Row(0, Header.KIND, leaf_hash(body), body)], frontier, note)
                    held.write(Reached(1, frontier.root(), store.identity))
                _keep_note(place, note)
            finally:
                store.close()
        except BaseException:
            with suppress(LedgerError):
                made.discard()
            mark.path_of(place).unlink(missing_ok=True)
            raise
        return cls.open(place)

    @classmethod
    def open(
        cls,
        ledger: str | os.PathLike[str] | Place,
        *,
        state: str | os.PathLike[str] | None = None,
        log_key: str | None = None,
        read_only: bool = False,
    ) -> "BudgetLog":
        """Opens a log and adds up all its leaves.

        Args:
            log_key: verifier key that the header must have, where the caller knows it.
            read_only: for looking and exporting alone; one on a server then needs no state directory, and no mark tells
                whether it was put back.

        Raises:
            LedgerError: code MISSING. LedgerWrongRun: it is another log. LedgerBehind: code MARK_MISSING, COPIED or BEHIND.
            LedgerForked: its history is not the one that was marked. LedgerCorrupt: it is no budget log, or damaged.
        """
        place = Place.of(ledger, state)
        store = _shared(place).open_shared(place, read_only=read_only)
        try:
            header, secret = _begun(store)
            if log_key is not None and header.log_vkey != log_key:
                raise LedgerWrongRun("WRONG_KEY", f"the log is signed by {header.log_vkey}, {log_key} was pinned")
            log = cls(store, place, header, secret, read_only=read_only)
            log.refresh()
        except BaseException:
            store.close()
            raise
        return log

    @property
    def state(self) -> BudgetState:
        """Returns what the leaves add up to, as far as this process has read them."""
        return self._state

    @property
    def size(self) -> int:
        """Number of leaves, likewise."""
        return self._frontier.size

    @property
    def root(self) -> bytes:
        """Root over these."""
        if self._root[0] != self.size:
            self._root = (self.size, self._frontier.root())
        return self._root[1]

    def account(self, unit: Unit) -> bytes:
        """Returns the hash of a unit in leaves and notices."""
        return unit.hashed(self._secret)

    def refresh(self) -> None:
        """Reads what was appended since this process last looked."""
        with self._guarded():
            if self.read_only:
                # Of a log on a server that is read without a state directory nothing here tells what it had reached.
                marked = None if self.place.beside is None else mark.read(self.place)
                with self._store.turn("reading the log") as turn:
                    head = turn.head()
                    reached = marked or Reached(head.size, head.root(), self._store.identity)
                    if marked is not None:
                        mark.Held(-1, marked, str(mark.path_of(self.place))).require(self._store.identity, head.size)
                    self._catch_up(turn, reached, head)
            else:
                with self._turn("reading the log"):
                    pass

    def balance(self, unit: Unit) -> Balance:
        """Returns what a unit has spent, as the log stands now."""
        self.refresh()
        account = self.account(unit)
        return Balance(self._state.spent(account), self._state.cap(unit.kind, account))

    def admit(
        self,
        attestations: Iterable[Attestation],
        *,
        spent: SpentRegistry | None = None,
        shares: Shares | None = None,
        now: int | None = None,
    ) -> Admissions:
        """Admits contributions to generation, each under the rule of its class, all whom the log takes in one turn.

        Guarantee: each that is admitted was signed for generation, as `ledger.budget.state.BudgetState.check_reference` says,
        by the leaf that is durable when this returns; and in a log that counts runs nothing that it may pay passes a limit of
        epsilon over all runs (`ledger.budget.counted.Admitting`). One that is refused keeps nobody else out. Whether the
        signatures verify under keys of contributors is the gate's to find before (`attest.gate`), and an auditor's after: the
        log keeps what was signed, and has no registry.

        Args:
            attestations: those that the gate admitted. Who was admitted before is passed over.
            spent: the runs that the header cites; where it cites any, nobody new is admitted without.
            shares: by registry and policy; with them nobody has more contributions in the log than those allow.

        Returns:
            Who was admitted now, and who was refused, and why.

        Raises:
            LeafRefused: code RULE, the header has no rules of generation; EARLIER, the header counts ledgers and these are
                other ones.
        """
        if not self.header.generation:
            raise LeafRefused("RULE", "the header has no rules of generation: contributions are records of the operator's here")
        if spent is not None:
            require_cited(self.header, spent)
        wanted = {hashlib.sha256(one.descriptor).digest(): one for one in attestations}
        judge = Admitting(self._state, self._own, spent, shares)
        new = [account for account in wanted if account not in self._state.admitted]
        wrong = {account: judge.refusal(account, wanted[account]) for account in new}  # takes long, and no turn
        admitted: list[bytes] = []
        refused: dict[bytes, LeafRefused] = {}
        with self._guarded(), self._turn("admitting") as append:
            time = self._time(now)
            judge.count()
            for account in new:
                one, why = wanted[account], wrong[account]
                if account in self._state.admitted:
                    continue
                try:
                    leaf = Reference(self._state.size, time, class_of(one), one.descriptor, one.sign1)
                    self._state.check_reference(leaf)
                    if why is not None:
                        raise why
                    judge.require_share(leaf)
                    append(leaf)
                except LeafRefused as error:  # a leaf that is refused changes nothing
                    refused[account] = error
                else:
                    judge.took(leaf)
                    admitted.append(account)
        return Admissions(tuple(admitted), refused)

    def withdraw(self, contribution: Unit | bytes, *, now: int | None = None) -> None:
        """Records that a contribution was withdrawn; one that was withdrawn before stays so.

        Guarantee: when this returns nothing is reserved for it any more, by any process. Reservations that are open may still
        be computed; what was generated stays generated.

        Args:
            contribution: or its digest. It need not have been admitted: then it never is.

        Raises:
            LeafRefused: code UNIT, it is no contribution.
        """
        if isinstance(contribution, Unit) and contribution.kind != CONTRIBUTION:
            raise LeafRefused("UNIT", f"a {contribution.kind} is not withdrawn; expected a contribution, or its digest")
        account = self.account(contribution) if isinstance(contribution, Unit) else contribution
        with self._guarded(), self._turn("withdrawing") as append:
            if account not in self._state.withdrawn:
                append(Withdrawn(self._state.size, self._time(now), account))

    def reserve(
        self,
        unit: Unit,
        mechanism: str,
        releases: int,
        *,
        rho_nano: int | None = None,
        request: bytes | None = None,
        now: int | None = None,
    ) -> Reservation:
        """Pays for releases before any of them is computed; call it before the model, and the model only when it returns.

        Args:
            unit: who pays; of a session the unit above it pays too. Contributions pay by `reserve_text`.
            mechanism: its name in the header.
            releases: 1 or more: an answer of T tokens is T releases.
            rho_nano: of each, in 1e-9 of rho, where the mechanism lets the request set it; else that of the header.
            request: 16 bytes; random without.

        Raises:
            BudgetExhausted: a cap would be passed; nothing is charged. LeafRefused: no such mechanism, or a wrong value.
        """
        if unit.kind == CONTRIBUTION:
            raise LeafRefused("UNIT", "contributions pay for a text, all that it has together: by reserve_text")
        name = secrets.token_bytes(16) if request is None else request
        self._require_own_process()
        paid = self._together.ask(_Asked(unit, mechanism, releases, self._rho_of(mechanism, rho_nano), name, now))
        assert isinstance(paid, Reservation)
        return paid

    def reserve_text(
        self,
        units: Sequence[Unit],
        mechanism: str,
        releases: int,
        *,
        rho_nano: int | None = None,
        request: bytes | None = None,
        now: int | None = None,
    ) -> Reservation:
        """Pays for a text from every contribution that it has a reference of, with one leaf; `commit` ends it for all.

        Guarantee: when it returns, every one of them has paid, durably; where it is refused none has. With rules of generation
        in the header they are exactly as many as a text of their rule has references, and all were admitted under that one.

        Args:
            units: the contributions, each once, in whatever order; at most `CONTRIBUTIONS`, which one leaf names.
            mechanism, releases, rho_nano, request: as of `reserve`; each contribution pays for all releases.

        Raises:
            BudgetExhausted: one of them would pass its cap. LeafRefused: code UNITS, none is given, one twice, one that is no
                contribution, or more than a leaf names; else as `ledger.budget.state.BudgetState.check_reserve`.
        """
        if not 1 <= len(units) <= CONTRIBUTIONS or len(set(units)) != len(units):
            sentence = f"{len(units)} contributions pay for a text, expected 1 to {CONTRIBUTIONS}, each once"
            raise LeafRefused("UNITS", f"{sentence}: a leaf names all of them; take fewer references")
        if other := next((unit.kind for unit in units if unit.kind != CONTRIBUTION), None):
            raise LeafRefused("UNITS", f"a {other} is to pay for a text as a contribution does; expected contributions alone")
        name = secrets.token_bytes(16) if request is None else request
        self._require_own_process()
        accounts = tuple(sorted(self.account(unit) for unit in units))
        asked = _AskedText(accounts, mechanism, releases, self._rho_of(mechanism, rho_nano), name, now)
        paid = self._together.ask(asked)
        assert isinstance(paid, Reservation)
        return paid

    def commit(self, reservation: Reservation | int, computed: int, *, now: int | None = None) -> None:
        """Ends a reservation, and frees what was never computed.

        What was computed counts, whether it was sent or not. A reservation whose process died stays whole: whoever finds it in
        ``state.open`` may commit it, knowing what was computed.

        Args:
            reservation: or the position of its leaf.
            computed: releases computed, at most those reserved.

        Raises:
            LeafRefused: code COMMITTED or COMPUTED.
        """
        seq = reservation.seq if isinstance(reservation, Reservation) else reservation
        self._require_own_process()
        self._together.ask(_Ended(seq, computed, now))

    def settle_later(self, reservation: Reservation, computed: int, *, now: int | None = None) -> None:
        """Ends a reservation as `commit` does, with the next turn of this handle, or when it is closed, without a sync now.

        Guarantee: until then the reservation counts whole, and where the process dies first it does for good: nothing is freed
        that is not in the log. Any call that looks at the log as it stands takes a turn, `balance` and `refresh` among them. A
        reservation that another process ended meanwhile stays as that one said.

        Raises:
            LeafRefused: code COMMITTED or COMPUTED, as far as this process knows.
        """
        self._require_own_process()
        seq, time = reservation.seq, machine_time() if now is None else now
        leaf = Commit(seq + 1, time, seq, computed)
        if computed > reservation.releases:
            sentence = f"{computed} releases were computed, {reservation.releases} were paid for"
            raise LeafRefused("COMPUTED", f"{sentence}; reserve before computing", seq=seq)
        if (seq < self._state.size and seq not in self._state.open) or self._later.setdefault(seq, leaf) is not leaf:
            raise LeafRefused("COMMITTED", f"leaf {seq} is no open reservation; it was committed before, or is none", seq=seq)
        if len(self._later) >= LATER:
            self.refresh()

    def close_epoch(self, signer: NoteSigner, *, now: int | None = None) -> Epoch:
        """Appends the totals, signs the tree behind them, and keeps the checkpoint for its signer beside the log.

        Raises:
            LedgerWrongRun: code WRONG_KEY, the key is not the log's.
            LedgerBehind, LedgerForked: the log does not extend the last checkpoint that was kept, or that is gone.
        """
        if signer.vkey != self.header.log_vkey:
            raise LedgerWrongRun("WRONG_KEY", f"the key given is {signer.vkey}, the log is signed by {self.header.log_vkey}")
        with self._guarded():
            with self._turn("closing an epoch", signer) as append:
                self._check_kept()
                leaf = self._state.epoch(self._state.size, self._time(now))
                append(leaf)
            self._roots[self.size] = self.root
            try:
                _keep_note(self.place, self._signed(signer))
            except StorageFailed:
                self._broken = True
                raise
        return leaf

    def deliver(self, send: Callable[[Notice], None], *, now: int | None = None) -> int:
        """Hands every notice that was not delivered to the privacy officer, in order, and records that it was.

        Guarantee: each notice is in the log once, and is handed over until `send` has returned for it. A process that dies
        between the two hands it over again: its position in the log is the key by which a receiver drops the second. One
        process of a machine delivers at a time; call it on one machine.

        Args:
            send: takes a notice to its reader, and raises if it did not arrive; `ledger.budget.notices.webhook` makes one.

        Returns:
            How many were delivered; 0 too where another process delivers.
        """
        delivered = 0
        with mark.only_one(self.place.side(".notices")) as alone:
            if not alone:
                return 0
            self.refresh()
            for seq, notice in sorted(self._state.undelivered.items()):
                send(notice)
                with self._guarded(), self._turn("recording a delivery") as append:
                    append(Delivered(self._state.size, self._time(now), seq))
                delivered += 1
        return delivered

    def checkpoint(self) -> bytes:
        """Returns the last signed checkpoint."""
        with self._guarded(), self._store.turn("reading the checkpoints") as turn:
            return max(turn.checkpoints().items())[1]

    def rows(self, size: int) -> list[Row]:
        """Returns the first leaves as they are stored."""
        with self._guarded(), self._store.turn("reading the leaves") as turn:
            return [row for row in turn.rows_from(0) if row.seq < size]

    def close(self) -> None:
        """Gives up the database. What is reserved stays reserved; what waits to be settled is, if it can be written."""
        if os.getpid() == self._process:
            with suppress(LedgerError), self._guarded():
                if self._later:
                    with self._turn("settling"):
                        pass
        self._broken = True
        self._store.close()

    def __enter__(self) -> "BudgetLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _repr_html_(self) -> str:
        return card("Budget log", [("origin", self.header.origin), ("leaves", self.size), ("units", len(self._state.accounts))])

    def _require_own_process(self) -> None:
        if os.getpid() != self._process:
            raise LedgerClosed("FORKED", "this log was opened before the process was forked; open it in each process")

    def _rho_of(self, mechanism: str, asked: int | None) -> int:
        """Returns the rho of a release: what was asked for, else that of the header."""
        known = self.header.mechanism(mechanism)
        return (known.rho_nano if known is not None else 1) if asked is None else asked

    def _serve_all(self, group: "list[_Wanted]") -> "list[_Given | LedgerError]":
        """Judges what threads asked for in order, in one turn; returns what each is told, once all of it is durable."""
        answers: list[_Given | LedgerError] = []
        with self._guarded(), self._turn("reserving") as append:
            for asked in group:
                match asked:
                    case _Ended():
                        answers.append(self._end(asked, append))
                    case _Asked() | _AskedText():
                        answers.append(self._reserve(asked, append))
        return answers

    def _end(self, asked: _Ended, append: Callable[[Leaf], None]) -> Commit | LeafRefused:
        try:
            leaf = Commit(self._state.size, self._time(asked.now), asked.reserved, asked.computed)
            append(leaf)  # a leaf that is refused changes nothing
        except LeafRefused as error:
            return error
        return leaf

    def _reserve(self, asked: _Asked | _AskedText, append: Callable[[Leaf], None]) -> Reservation | LedgerError:
        try:
            leaf = self._leaf_of(asked)
            self._state.check_reserve(leaf)
        except LeafRefused as error:
            return error
        except BudgetExhausted as error:
            self._tell_refused(leaf, error, append)
            return error
        append(leaf)
        while due := next(self._state.due(), None):
            append(Notice(self._state.size, leaf.time, *due))
        return Reservation(leaf.seq, leaf.releases, leaf.rho_nano, leaf.request)

    def _leaf_of(self, asked: _Asked | _AskedText) -> Reserve | Text:
        paid = asked.mechanism, asked.releases, asked.rho_nano, asked.request
        if isinstance(asked, _AskedText):
            return Text(self._state.size, self._time(asked.now), asked.accounts, *paid)
        unit, above, time = asked.unit, asked.unit.parent, self._time(asked.now)
        above_kind, above_account = (above.kind, self.account(above)) if above else (None, None)
        return Reserve(self._state.size, time, unit.kind, self.account(unit), above_kind, above_account, *paid)

    def _settle(self, append: Callable[[Leaf], None]) -> list[int]:
        """Appends the settlements that wait; returns what need not wait any longer once they are durable."""
        settled = list(self._later.items())
        for seq, leaf in settled:
            paid = self._state.open.get(seq)
            if paid is not None and leaf.computed <= paid.releases:
                append(replace(leaf, seq=self._state.size, time=max(leaf.time, self._state.last_time)))
        return [seq for seq, _ in settled]

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Keeps out other threads, and a handle that failed or was forked."""
        self._require_own_process()
        with self._lock:
            if self._broken:
                raise LedgerClosed("HANDLE", "this handle was closed, or failed; open the log again")
            yield

    @contextmanager
    def _turn(self, doing: str, signer: NoteSigner | None = None) -> Iterator[Callable[[Leaf], None]]:
        """Gives a function that appends leaves; they are durable, all of them, when the turn has ended without an error.

        Settlements that wait are appended first, and stay where the body is refused before it appends anything.
        """
        if self.read_only:
            raise LedgerClosed("READ_ONLY", "this log was opened for reading; open it for writing")
        rows: list[Row] = []

        def append(leaf: Leaf) -> None:
            body = encode_leaf(leaf)
            self._state.apply(leaf)
            rows.append(Row(leaf.seq, leaf.KIND, leaf_hash(body), body))

        ready = False
        refused: LedgerError | None = None
        try:
            with mark.turn(self.place) as held:
                reached = held.reached
                assert reached is not None
                with self._store.turn(doing) as turn:
                    head = turn.head()
                    held.require(self._store.identity, head.size)
                    self._catch_up(turn, reached, head)
                    ready = True
                    settled = self._settle(append)
                    ridden = len(rows)
                    try:
                        yield append
                    except LedgerError as error:
                        if not ridden or len(rows) > ridden:
                            raise
                        refused = error
                    ready = False
                    if rows:
                        self._frontier.extend([row.leaf_hash for row in rows])
                        turn.append(rows, self._frontier, None if signer is None or refused else self._signed(signer))
                if rows or reached.size < self.size:
                    held.write(Reached(self.size, self.root, self._store.identity))
                for seq in settled:
                    self._later.pop(seq, None)
        except BaseException as error:
            # A leaf that was refused before anything was taken in leaves the handle as it was, as does a busy database.
            self._broken = bool(rows) or not (ready or isinstance(error, LedgerBusy))
            raise
        if refused is not None:
            raise refused

    def _signed(self, signer: NoteSigner) -> bytes:
        """Returns the checkpoint of the tree as it stands, signed."""
        return sign_note(checkpoint_text(self.header.origin, self.size, self.root), signer)

    def _catch_up(self, turn: "Turn", reached: Reached, head: Frontier) -> None:
        """Takes in what others appended, and holds the tree against the stored head and the mark."""
        if head.size < self.size:
            sentence = f"{self.place.shown} has {head.size} leaves, this process has read {self.size}"
            raise LedgerBehind("BEHIND", f"{sentence}: an older copy was put in its place")
        for row in turn.rows_from(self.size) if head.size > self.size else ():
            self._check_mark(reached)
            if row.seq != self.size or leaf_hash(row.body) != row.leaf_hash:
                raise LedgerCorrupt("LEAF", f"leaf {self.size} is gone, or does not hash to what is stored", seq=self.size)
            try:
                leaf = decode_leaf(row.body)
                if row.kind != leaf.KIND:
                    raise LeafRefused("KIND", f"the leaf has kind {leaf.KIND}, stored is {row.kind}")
                self._state.apply(leaf, totals=False)
            except (LeafRefused, BudgetExhausted) as error:
                raise LedgerCorrupt(error.code, f"leaf {row.seq} cannot stand there: {error.sentence}", seq=row.seq) from error
            self._frontier.append(row.leaf_hash)
            if isinstance(leaf, Epoch):
                self._roots[self.size] = self.root
        self._check_mark(reached)
        if head.to_bytes() != self._frontier.to_bytes() or head.size != self.size:
            raise LedgerCorrupt("HEAD", "the leaves do not give the stored head; a leaf is missing or was changed")

    def _check_mark(self, reached: Reached) -> None:
        if reached.size == self.size and reached.root != self.root:
            sentence = f"the log has another history of {reached.size} leaves than {mark.path_of(self.place)} says"
            raise LedgerForked("FORKED", f"{sentence}; put back the one that was marked")

    def _check_kept(self) -> None:
        """Holds the log against the newest checkpoint that its signer kept, before that signs again."""
        path = self.place.side(".highwater")
        try:
            kept = read_limited(path, MAX_NOTE_SIZE, "high-water file")
            found = parse_checkpoint(open_note(kept, [self.header.log_vkey]).text)
        except (FileRefused, NoteError) as error:
            sentence = f"{path} is no checkpoint that the log's key signed: {error.sentence}"
            raise LedgerBehind("HIGHWATER", f"{sentence}; restore it, for without it a fork would not be seen") from error
        if found.size > self.size:
            sentence = f"the signer signed {found.size} leaves, the log has {self.size}"
            raise LedgerBehind("BEHIND", f"{sentence}: an old copy, or its tail was lost; put back the one with all of them")
        if found.origin != self.header.origin or self._roots.get(found.size) != found.root:
            raise LedgerForked("FORKED", f"the signer signed another history of {found.size} leaves; {path} has it")

    def _time(self, now: int | None) -> int:
        """Returns the time of leaves appended now; raises LeafRefused, code CLOCK, for a clock behind the last one."""
        clock, last = machine_time() if now is None else now, self._state.last_time
        if clock < last - BACK_SECONDS:
            sentence = f"the clock says {utc(clock)}, the last leaf {utc(last)}"
            raise LeafRefused("CLOCK", f"{sentence}; set the clock right: nothing is paid for before")
        return max(clock, last)

    def _tell_refused(self, leaf: Reserve | Text, error: BudgetExhausted, append: Callable[[Leaf], None]) -> None:
        """Appends the notice of the first refusal of a unit. A session has none: whoever makes up names would fill the log."""
        account = error.account
        found = None if account is None else self._state.accounts.get(account)
        if account is not None and error.unit != SESSION and (found is None or 0 not in found.told):
            append(Notice(self._state.size, leaf.time, error.unit, account, 0, error.spent))


def is_log(place: Place) -> bool:
    """Tells whether a budget log lies in a place, by its first leaf alone; nothing is verified.

    Guarantee: False only where nothing is there, or where what is there has another first leaf, or none. A server that is down
    tells nothing, and who took that for an empty place would begin a budget anew.

    Raises:
        StorageFailed: it cannot be reached, or read. LedgerBusy: others hold it. LedgerCorrupt: it is damaged, or no ledger.
    """
    found = store_of(place)
    from ledger.storage.sql.statements import SqlStore  # of the store extra, as in `_shared`

    if not issubclass(found, SqlStore):
        return False
    try:
        store = found.open_shared(place, read_only=True)
    except LedgerError as error:
        if error.code == "MISSING":
            return False
        raise
    try:
        with store.turn("reading the header") as turn:
            first = next(iter(turn.rows_from(0)), None)
    finally:
        store.close()
    return first is not None and is_budget(first.body)


def adopt(
    ledger: str | os.PathLike[str] | Place, checkpoint: bytes, log_key: str, *, state: str | os.PathLike[str] | None = None
) -> BudgetLog:
    """Makes a mark for a log that has none here: one that was moved, or one on a server that a further machine writes.

    What was spent stays spent: nothing in the log changes. But a mark is what tells a log that was put back from an old copy,
    so give the newest checkpoint that the signer has, which lies beside its log (``.highwater``), and see that no other copy of
    the log goes on.

    Args:
        checkpoint: signed note; the log must extend it. log_key: verifier key that signed it.

    Raises:
        NoteError: the note does not verify. LedgerBehind: the log has fewer leaves than the note, or than the mark that is
            there. LedgerForked: it has another history. LedgerCorrupt: it is damaged.
    """
    place = Place.of(ledger, state)
    found = parse_checkpoint(open_note(checkpoint, [log_key]).text)
    place.make_state_directory()
    store = _shared(place).open_shared(place, read_only=False)
    try:
        header, secret = _begun(store)
        if (header.origin, header.log_vkey) != (found.origin, log_key):
            raise LedgerWrongRun("WRONG_RUN", f"the checkpoint is of {found.origin!r}, the log is {header.origin!r}")
        log = BudgetLog(store, place, header, secret, read_only=False)
        with mark.taken_over(place) as held, store.turn("adopting the log") as turn:
            told, head = Reached(found.size, found.root, store.identity), turn.head()
            for reached in (told, *([held.reached] if held.reached else [])):
                if reached.size > head.size:
                    sentence = f"{reached.size} leaves were signed or marked, the log has {head.size}"
                    raise LedgerBehind("BEHIND", f"{sentence}: an old copy, or its tail was lost; put back the one with all")
            log._catch_up(turn, told, head)
            if held.reached is not None:
                again = BudgetLog(store, place, header, secret, read_only=False)
                again._catch_up(turn, held.reached, head)
            held.write(Reached(log.size, log.root, store.identity))
        if not place.side(".highwater").exists():
            _keep_note(place, checkpoint)
    except BaseException:
        store.close()
        raise
    return log


def _shared(place: Place) -> "type[SqlStore]":
    """Returns the store of a place; raises StorageFailed, code SHARED, for one that has a single writer."""
    found = store_of(place)
    from ledger.storage.sql.statements import SqlStore  # of the store extra, which who verifies an export goes without

    if not issubclass(found, SqlStore):
        raise StorageFailed("SHARED", f"the store of {place.kind}:// takes one writer; keep a budget in SQLite or PostgreSQL")
    return found


def _begun(store: "SqlStore") -> tuple[Header, bytes]:
    """Returns the header of a log, and the secret of its units."""
    with store.turn("reading the header") as turn:
        first = next(iter(turn.rows_from(0)), None)
        kept = turn.kept(_SECRET)
    try:
        header = None if first is None else decode_leaf(first.body)
    except LeafRefused as error:
        raise LedgerCorrupt("HEADER", f"this is no budget log: {error.sentence}", seq=0) from error
    if not isinstance(header, Header):
        raise LedgerCorrupt("HEADER", "this is no budget log: it has no header; its creation may have ended too early", seq=0)
    secret = bytes.fromhex(kept) if kept is not None and len(kept) == 2 * SECRET_SIZE else b""
    if hashlib.sha256(secret).digest() != header.units_hash:
        raise LedgerCorrupt("SECRET", "the secret of the units is not the one that the header has; restore the database whole")
    return header, secret


def _keep_note(place: Place, note: bytes) -> None:
    """Keeps the newest checkpoint beside the log, for its signer."""
    path = place.side(".highwater")
    try:
        atomic_write(path, note)
    except OSError as error:
        raise StorageFailed("HIGHWATER", f"cannot write {path}: {error.strerror or error}; mend the disk") from error
