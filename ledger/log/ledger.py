"""The life of a ledger: created, charged window by window, closed epoch by epoch, finished. The one way to append."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, fields
from itertools import islice
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any

from attest.withdrawal import EXPIRED, PASSING
from ledger.errors import (
    ExportRefused,
    LeafRefused,
    LedgerBehind,
    LedgerClosed,
    LedgerError,
    LedgerForked,
    LedgerWrongRun,
    StorageFailed,
)
from ledger.export import read_registry, write_export
from ledger.leaves import (
    Admit,
    Charge,
    Close,
    Draw,
    Epoch,
    Header,
    HeaderSpec,
    Registry,
    Resume,
    Settle,
    Withdraw,
    decode_leaf,
    encode_leaf,
    spend_leaves,
)
from ledger.leaves.attestations import Framings, misfit
from ledger.log.pinned import Pin, open_pinned, sign_pinned
from ledger.log.readings import Examining, Readings
from ledger.log.retaining import Retaining
from ledger.log.signing import Releasing, Signing
from ledger.merkle import Frontier, leaf_hash
from ledger.note import NoteSigner, checkpoint_text, sign_note
from ledger.replay.contributions import AdmitSpec
from ledger.replay.summaries import ShownMember
from ledger.storage import highwater
from ledger.storage.appender import Appender
from ledger.storage.opening import create_store, open_store
from ledger.storage.place import Place
from ledger.storage.store import Attested, Row

_admission = attrgetter(*(field.name for field in fields(AdmitSpec) if field.name != "attestation"))


@dataclass(frozen=True, slots=True)
class Window:
    """A window of steps that has been paid for."""

    id: int
    first_step: int
    n_steps: int
    attempt: int


class Ledger(Retaining, Releasing, Signing, Examining, Readings):
    """An open ledger.

    Every method that appends returns once its leaves are durable and the signer's high-water file knows of them. When it
    raises, none of its leaves is in the ledger, with two exceptions that can only over-count: the high-water file could not
    be written, which comes after the leaves are safe, or the commit itself failed, or the database was lost during it (codes
    COMMIT_UNKNOWN, STORAGE, IO, UNLINKED, REPLACED), and reopening tells. After a failed write the handle refuses everything:
    open the ledger again.
    For one thread of one process.
    """

    def __init__(self, appender: Appender) -> None:
        """Use `create` or `open`."""
        self._file = appender
        # Noise keys live in the memory of one process, so charging goes on only in an attempt begun by this one.
        self._may_charge = not appender.replay.windows
        self._accepted_time = 0

    @classmethod
    def create(
        cls,
        ledger: str | os.PathLike[str] | Place,
        header: HeaderSpec,
        signer: NoteSigner,
        *,
        now: int,
        state: str | os.PathLike[str] | None = None,
    ) -> "Ledger":
        """Creates a ledger with its header leaf.

        Args:
            ledger: a new file on a local disk, or a ``postgresql://`` URL (`ledger.storage.place`).
            header: what the run rests on.
            signer: the ledger's key; its name is the ledger's origin.
            now: POSIX seconds.
            state: local directory for the signer's own record, where the ledger is on a server.

        Raises:
            LedgerError: if the ledger exists, or its URL or state directory will not do.
            LeafRefused: if the header contradicts itself or its policy cannot be accounted for.
        """
        leaf = header.header(origin=signer.name, log_vkey=signer.vkey, time=now)
        body = encode_leaf(leaf)
        place = Place.of(ledger, state)
        mark = highwater.path_of(place)
        if highwater.exists(place):
            raise LedgerError("EXISTS", f"{mark} exists: it belongs to a ledger that is not here")
        place.make_state_directory()
        store = create_store(place)
        try:
            frontier = Frontier()
            frontier.append(leaf_hash(body))
            note = sign_note(checkpoint_text(leaf.origin, 1, frontier.root()), signer)
            store.append([Row(0, Header.KIND, leaf_hash(body), body)], frontier, note)
            highwater.write(place, signer, 1, frontier.root())
            return cls(Appender(store, signer))
        except BaseException:
            # Where even that fails, as on a lost connection, what is left is found unfinished at the next start.
            with suppress(StorageFailed):
                store.discard()
            mark.unlink(missing_ok=True)
            raise

    @classmethod
    def open(
        cls,
        ledger: str | os.PathLike[str] | Place,
        signer: NoteSigner | None = None,
        *,
        state: str | os.PathLike[str] | None = None,
        expect_header: bytes | None = None,
        read_only: bool = False,
        recompute: bool = False,
    ) -> "Ledger":
        """Opens a ledger and checks all of it, the recorded epsilons only if asked: they take the accountant's time.

        Args:
            ledger: the ledger file, or a ``postgresql://`` URL (`ledger.storage.place`).
            signer: the ledger's key; without it the ledger is opened for reading.
            state: local directory of the signer's own record, where the ledger is on a server. Readers may do without it,
                and then do not compare with that record.
            expect_header: SHA-256 of leaf 0, as pinned elsewhere.
            read_only: open for reading although a signer is given.
            recompute: compute every recorded epsilon again.

        Raises:
            LedgerCorrupt: the file contradicts itself.
            LedgerBehind: it is shorter than its own or the signer's record says, or the signer's record is gone.
            LedgerForked: it has another history than the signer's record; both are written to ``.fork-evidence`` beside it.
            LedgerWrongRun: header or key are not the expected ones.
            LedgerBusy: another process is writing it.
            StorageFailed: the database cannot be read, or is not set up to keep what it commits.
        """
        place, reading = Place.of(ledger, state), read_only or signer is None
        # Read before the leaves: a writer elsewhere commits leaves first, so the mark is never ahead of them.
        mark = None if reading and place.beside is None else highwater.read_bytes(place)
        store = open_store(place, read_only=reading)
        try:
            appender = Appender(store, None if read_only else signer, recompute=recompute)
            appender.check_identity(signer, expect_header, mark)
            appender.check_highwater(mark)
            return cls(appender)
        except BaseException:
            store.close()
            raise

    def close(self) -> None:
        """Gives up the database and the writer's lock. The run stays open; see `finish`."""
        self._file.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def require_clock(self, now: int) -> None:
        """Refuses to go on by a clock that ran far ahead since the last leaf, before anything is written by it.

        Guarantee:
            Where the run was not closed, no leaf of it (an admission, charge, draw, settlement, epoch or resumption, the close,
            a withdrawal of what expired) is dated more than `ledger.replay.signer.JUMP_SECONDS` after the leaf before it,
            unless `accept_clock` was called. A signed withdrawal, a release and what else the signer enters is never asked
            about: it may come years later.

        Args:
            now: POSIX seconds.

        Raises:
            LeafRefused: code CLOCK_JUMP, or CLOCK for a clock behind the last leaf, with both times and what to do; RANGE for
                what is no time of a leaf.
        """
        if not self.finished:
            self.state.timeline.require_no_jump(self._file.time_at(now), self._accepted_time)

    def accept_clock(self, now: int) -> None:
        """Says that a clock is right though it ran far ahead since the last leaf; a later jump is asked about again.

        Args:
            now: what it says, POSIX seconds.
        """
        self._accepted_time = now

    def epsilon(self, descriptor_hash: bytes) -> float:
        """Returns what an admitted contribution has spent by now.

        Raises:
            LeafRefused: if it was never admitted, or is public: nothing is promised then, and no number says so.
        """
        contribution = self.state.contributions.get(descriptor_hash)
        if contribution is None:
            raise LeafRefused("UNKNOWN", f"no contribution {descriptor_hash.hex()} was admitted")
        return self.state.epsilon(contribution)

    @contextmanager
    def rows(self) -> Iterator[Iterator[Row]]:
        """Opens the leaves of this ledger, in order, for reading inside a ``with`` block."""
        with self._file.store.snapshot() as snapshot:
            yield islice(snapshot.rows(), self.size)

    def withdrawal_leaves(self) -> list[Withdraw]:
        """Returns all WITHDRAW leaves in order; a contribution has two where a signed one followed one of a passing reason."""
        if not self.state.withdrawals:
            return []
        with self.rows() as rows:
            leaves = [decode_leaf(row.body) for row in rows if row.kind == Withdraw.KIND]
        return [leaf for leaf in leaves if isinstance(leaf, Withdraw)]

    def admit(self, admissions: Iterable[AdmitSpec], *, now: int) -> range:
        """Admits contributions, all or none; returns their positions.

        Guarantee:
            Where an admission brings its attestation, that makes exactly the descriptor and the message whose digests its leaf
            quotes, and is durable with the leaf.

        Raises:
            LeafRefused: code ATTESTATION, terms, anchor and signature make something else; or as the rules have it.
            LedgerClosed, LedgerBusy, StorageFailed: as for appending.
        """
        framings = Framings()
        with self._running(now) as time:
            first = self.size
            for place, spec in enumerate(admissions):
                self._file.stage(Admit(first + place, time, *_admission(spec)))
                if spec.attestation is not None:
                    self._attach(first + place, spec, framings)
        return range(first, self.size)

    def charge(self, first_step: int, n_steps: int, *, now: int, noise_stream: bytes) -> Window:
        """Pays for a window of steps.

        Guarantee:
            When this returns, the charge is durable: whatever happens to the process, the steps count in full. No step
            of the window may run, nor its sample be drawn, before.

        Args:
            first_step: last released step plus one; steps count from 1.
            n_steps: at most the policy's window length.
            now: POSIX seconds.
            noise_stream: 16 bytes that name the key stream of the window's noise, never used before.

        Raises:
            HorizonExceeded: the policy pays for no more steps.
            LeafRefused: the window does not continue the run, another is open, or the noise stream was used before.
            StorageFailed: the disk refused; the steps must not run.
        """
        if not self._may_charge:
            raise LeafRefused("RESUME_FIRST", "another process charged this ledger; call resume() before charging")
        with self._running(now) as time:
            run = self.state
            window = len(run.windows) + 1
            place = (window, run.attempt, first_step, n_steps)
            fence = self._file.store.fence
            self._file.stage(Charge(self.size, time, *place, run.charge_classes(), noise_stream, fence))
        return Window(window, first_step, n_steps, run.attempt)

    def draw(self, step: int, drawn: Iterable[int], *, now: int) -> None:
        """Records who takes part in a step, where the policy makes occurrences public.

        Guarantee:
            When this returns, the occurrences are durable: whatever happens to the process, they count. The step must not
            run before. A step that was charged and never drawn costs nobody anything.

        Args:
            step: the next step of the open window.
            drawn: numbers of the contributions drawn, in the order of their admission, from 0.
            now: POSIX seconds.

        Raises:
            LeafRefused: draws are secret in this ledger, no window is open, or the step is not the next one; code SIZE if so
                many were drawn that they do not fit into one leaf.
        """
        with self._running(now) as time:
            window, numbers = self.state.open_window, tuple(sorted(drawn))
            place = 0 if window is None else window.window
            variances = self.state.draw_variances(numbers, step)
            self._file.stage(Draw(self.size, time, place or 1, step, numbers, variances))

    def settle(self, window: Window, steps_released: int, *, now: int, variances: Sequence[float] | None = None) -> None:
        """Records that a window has run.

        Args:
            window: as returned by `charge`.
            steps_released: steps whose result was used. Fewer than charged ends the attempt; nothing is refunded.
            now: POSIX seconds.
            variances: smallest realised noise variance per class, in the policy's order; by default what the schedule, or
                with injection per sample the recorded draws, give.
        """
        with self._running(now) as time:
            realised = self.state.settle_variances() if variances is None else tuple(variances)
            self._file.stage(Settle(self.size, time, window.id, steps_released, realised))

    def withdraw(
        self, descriptor_hash: bytes, reason: str, evidence_hash: bytes, *, now: int, member: ShownMember | None = None
    ) -> int:
        """Takes a contribution out of its pool from the next charge on; also after the run was closed.

        A hash that was never admitted is recorded as matching nothing, and bars a later admission. Repeating a
        withdrawal changes nothing. Where the ADMIT leaf of a contribution is gone, the leaf shows by a member record that it
        was there; without one it is recorded as a hash that matches nothing, and takes effect as any other.

        Args:
            descriptor_hash: the contribution.
            reason: reason code, such as ``contributor`` or ``expired``.
            evidence_hash: SHA-256 of the signed withdrawal, or of the operator's record.
            now: POSIX seconds.
            member: its member record, where its ADMIT leaf is gone; by default that of the members file beside the ledger.

        Returns:
            The position of its first WITHDRAW leaf: from there on it was in no pool.

        Raises:
            LeafRefused: code MEMBER, the record is none of this contribution, or of no member.
        """
        self.withdraw_all([(descriptor_hash, reason, evidence_hash)], now=now, member=member)
        return self.state.withdrawals[descriptor_hash]

    def withdraw_all(
        self, withdrawn: Iterable[tuple[bytes, str, bytes]], *, now: int, member: ShownMember | None = None
    ) -> None:
        """Takes contributions out as `withdraw` does, all of them in one transaction.

        Args:
            withdrawn: descriptor hash, reason code and evidence hash of each; the first for a contribution stands, but that one
                which somebody signed follows one of `attest.withdrawal.PASSING`.
            now: POSIX seconds.
            member: as for `withdraw`, of one of them.

        Raises:
            LeafRefused: code CLOCK_JUMP, something is said to have expired by a clock that `require_clock` refuses.
            LedgerClosed, LedgerBusy, StorageFailed: as for appending.
        """
        fresh: dict[bytes, tuple[bytes, str, bytes]] = {}
        for item in withdrawn:
            name, signed = item[0], item[1] not in PASSING
            if name not in self.state.withdrawals or (name in self.state.passing and signed):
                before = fresh.setdefault(name, item)
                if signed and before[1] in PASSING:
                    fresh[name] = item
        if not fresh:
            return
        if any(reason == EXPIRED for _, reason, _ in fresh.values()):
            self.require_clock(now)
        with self._file.appending(now, checkpoint=self.finished) as time:
            for seq, (descriptor_hash, reason, evidence_hash) in enumerate(fresh.values(), start=self.size):
                contribution = self.state.contributions.get(descriptor_hash)
                admit_seq = None if contribution is None else contribution.seq
                shown = (member or self.member(descriptor_hash)) if contribution is None else None
                told = None
                if shown is not None:
                    admit_seq, told = shown.member.seq, (shown.member.content_anchor, *shown.path)
                self._file.stage(Withdraw(seq, time, descriptor_hash, admit_seq, reason, evidence_hash, told))

    def take_registry(self, root: bytes, *, now: int) -> bool:
        """Records that the run goes by a later state of the contributor registry from here on.

        Guarantee: when this returns, the REGISTRY leaf is durable, before whatever the run does by that state. Whether the
            state extends the one before is for the caller to know, who read the registry, and for auditors, who have it.

        Args:
            root: of the state; nothing is written for that which is in force.
            now: POSIX seconds.

        Returns:
            Whether a leaf was written.

        Raises:
            LeafRefused: code REGISTRY, the run went by this state before a later one; CLOSED, the run is over.
            LedgerClosed, LedgerBusy, StorageFailed: as for appending.
        """
        known = self.state.registry_roots[-1]
        if root == known:
            return False
        with self._file.appending(now) as time:
            self._file.stage(Registry(self.size, time, known, root))
        return True

    def close_epoch(
        self, step: int, model_digest: bytes, *, isolation: str, now: int, frozen_digest: bytes | None = None
    ) -> bytes:
        """Records what contributions have spent, a row for each group that changed, and signs a checkpoint over it.

        Args:
            step: last released step.
            model_digest: digest of the model after it, as `keep_weights` returns it.
            isolation: `ledger.leaves.header.HELD`, or the first reason why statement A did not hold in every step so far.
            now: POSIX seconds.
            frozen_digest: digest of the frozen parameters, as the header commits to them.

        Returns:
            The signed checkpoint note, for publication.
        """
        with self._running(now, checkpoint=True) as time:
            run = self.state
            for leaf in spend_leaves(self.size, time, list(run.spend_rows())):
                self._file.stage(leaf)
            number = len(run.epochs) + 1
            totals = run.totals()
            self._file.stage(Epoch(run.size, time, number, step, run.charged, totals, model_digest, isolation, frozen_digest))
        return self.checkpoint

    def resume(self, from_step: int, pin: Pin | None, *, now: int) -> int:
        """Begins a new attempt from a model checkpoint; a window left open stays charged in full.

        Args:
            from_step: last step that the model checkpoint contains, 0 to start again.
            pin: the pin stored in the model checkpoint; needed unless from_step is 0.
            now: POSIX seconds.

        Returns:
            The number of the attempt, which the noise and sampling keys of its steps must be fresh for.

        Raises:
            LedgerBehind, LedgerForked, LedgerWrongRun: the pin is not of this ledger's past.
        """
        if pin is not None:
            self.check_pin(pin)
        with self._running(now) as time:
            size, root = (None, None) if pin is None else (pin.size, pin.root)
            self._file.stage(Resume(self.size, time, self.state.attempt + 1, from_step, size, root))
        self._may_charge = True
        return self.state.attempt

    def finish(self, *, now: int) -> bytes:
        """Closes the run and returns the signed checkpoint. Only withdrawals may follow."""
        with self._running(now, checkpoint=True) as time:
            self._file.stage(Close(self.size, time, self.state.position, self.state.charged))
        return self.checkpoint

    def pin(self) -> Pin:
        """Returns what a model checkpoint saved now must remember."""
        return Pin(self.header.origin, self.size, self.root, self.header_digest)

    def check_pin(self, pin: Pin) -> None:
        """Checks that a pinned tree is a prefix of this ledger.

        Raises:
            LedgerWrongRun: the pin is of another ledger.
            LedgerBehind: this ledger is shorter: its tail was lost or it was rolled back.
            LedgerForked: this ledger has another history of that size.
            ProofError: code HASHES_GONE; the hashes of the leaves about that size are gone, so nobody can tell.
        """
        if (pin.origin, pin.header_digest) != (self.header.origin, self.header_digest):
            raise LedgerWrongRun("WRONG_RUN", f"the pin is of run {pin.origin!r}, or of another header of that name")
        if pin.size > self.size:
            raise LedgerBehind("BEHIND", f"{pin.size} leaves were pinned, the ledger has {self.size}; restore its tail")
        if self._file.root_at(pin.size) != pin.root:
            raise LedgerForked("FORKED", f"the first {pin.size} leaves are not those that were pinned")

    def sign_pinned(self, kind: str, values: Sequence[Any]) -> bytes:
        """Signs what a run will read again when it is resumed, pinned to this ledger as it is now (`ledger.log.pinned`).

        Args:
            kind: what it is and its version.
            values: what it holds, as CBOR has it.

        Raises:
            LedgerReplaced: as `require_in_place`: nothing is pinned to a ledger that is lost.
            LedgerClosed: the ledger was opened for reading, or the handle is closed.
        """
        signer = self._file.require_signer()
        self.require_in_place()
        return sign_pinned(kind, self.pin(), values, signer)

    def open_pinned(self, data: bytes, kind: str) -> tuple[Pin, list[Any]]:
        """Verifies what `sign_pinned` wrote, under the key that signed this ledger then, and that it is of its past.

        Raises:
            PinRefused: it is not signed by that key, malformed, or of another kind.
            LedgerWrongRun, LedgerBehind, LedgerForked, ProofError: as `check_pin`.
        """
        pin, values = open_pinned(data, kind, self.state.keys)
        self.check_pin(pin)
        return pin, values

    def require_in_place(self) -> None:
        """Checks that the database that is open is still the one under the ledger's name, as this handle left it.

        Guarantee:
            Every method that appends asks before and after it writes, so none returns for leaves that went into a file or a
            table without a name. This method asks without writing: at the end of a run, say.

        Raises:
            LedgerReplaced: code UNLINKED, REPLACED or OVERWRITTEN. The handle refuses everything from then on; the sentence
                says what is recorded, where a copy of it lies, and how to resume.
        """
        self._file.require_in_place()

    def export(self, directory: str | Path, *, registry: Path | None = None, attestations: bool = True) -> Path:
        """Writes the ledger as a static directory that anyone can audit offline (`ledger.export.write_export`).

        Args:
            directory: where to put it; must not exist.
            registry: the contributor registry of the run, to go with it; the names beside it do not.
            attestations: whether what contributors signed goes with it. Without, an audit can only repeat what is told.

        Raises:
            ExportRefused: the run was not private, something is in the way, or code REGISTRY (`ledger.export.read_registry`).
            LedgerCorrupt, StorageFailed: as `write_export`.
        """
        self.require_in_place()
        known = None if registry is None else read_registry(self.header, Path(registry), self.state.registry_roots)
        if self.size not in self._file.checkpoints:
            if self._file.signer is None:
                raise ExportRefused("UNSIGNED", "leaves follow the last checkpoint; open the ledger with its key")
            with self._file.appending(self.state.last_time, checkpoint=True):
                pass
        told = self.pruned()
        with self._file.store.snapshot() as snapshot:
            rows, signed = islice(snapshot.rows(), self.size), snapshot if attestations else None
            beside: dict[str, Any] = {"keys": self.state.keys, "pruned": told, "snapshot": signed, "registry": known}
            return write_export(self.header, rows, self.checkpoint, Path(directory), **beside)

    def _attach(self, seq: int, spec: AdmitSpec, framings: Framings) -> None:
        """Queues the attestation of a staged ADMIT leaf, checked against it."""
        assert spec.attestation is not None
        terms, signature = spec.attestation
        framing, data = framings.of(terms)
        wrong = misfit(spec, framing, signature)
        if wrong is not None:
            sentence = f"the attestation of {spec.descriptor_hash.hex()} is not what its ADMIT leaf would quote: {wrong}"
            raise LeafRefused("ATTESTATION", f"{sentence}; admit what the gate admitted")
        self._file.attach(Attested(seq, data, signature))

    def _running(self, now: int, *, checkpoint: bool = False) -> AbstractContextManager[int]:
        if self.finished:
            raise LedgerClosed("FINISHED", "the run is closed: no admission, charge, draw or epoch is recorded any more")
        self.require_clock(now)
        return self._file.appending(now, checkpoint=checkpoint)
