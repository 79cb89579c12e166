"""Keeps a ledger, the one way to append; over 600 lines, for every call of an operator stands here with its promise.

A ledger is created, charged window by window, closed epoch by epoch, and finished. The work of the longer calls stands beside
the class as functions (`retaining`, `examining`, `pinned`, `ledger.storage.appender`).
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import fields
from itertools import islice
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any

from attest.schema.cards import card
from attest.schema.plain import BACK_SECONDS, utc
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
from ledger.export import Pruned, read_registry, write_export
from ledger.leaves import (
    Admit,
    Charge,
    Clock,
    Close,
    Draw,
    Epoch,
    Header,
    HeaderSpec,
    Leaf,
    Registry,
    Release,
    Resume,
    Settle,
    Summary,
    Withdraw,
    coefficient_leaves,
    decode_leaf,
    encode_leaf,
    spend_leaves,
)
from ledger.leaves.attestations import Framings, misfit
from ledger.leaves.weights import WeightRecord
from ledger.log import retaining
from ledger.log.examining import Examination, examine
from ledger.log.pinned import Pin, open_pinned, sign_pinned
from ledger.merkle import Frontier, leaf_hash
from ledger.note import NoteSigner, checkpoint_text, sign_note
from ledger.replay import Replay
from ledger.replay.contributions import AdmitSpec
from ledger.replay.signer import rotation
from ledger.replay.summaries import ShownMember
from ledger.storage import fsck, highwater
from ledger.storage.appender import Appender
from ledger.storage.beside import keep_weights, weights_of
from ledger.storage.place import Place
from ledger.storage.store import Attested, Row, create_store, open_store

_admission = attrgetter(*(field.name for field in fields(AdmitSpec) if field.name != "attestation"))


class Ledger:
    """An open ledger.

    Every method that appends returns once its leaves are durable and the signer's high-water file knows of them. When it
    raises, none of its leaves is in the ledger, with two exceptions that can only over-count: the high-water file could not
    be written, which comes after the leaves are safe, or the commit itself failed, or the database was lost during it (codes
    COMMIT_UNKNOWN, STORAGE, IO, UNLINKED, REPLACED), and reopening tells. After a failed write the handle refuses everything:
    open the ledger again. For one thread of one process.

    Everywhere ``now`` is the time of the leaves, in POSIX seconds. Besides what it says, every method that appends raises
    LedgerClosed for a handle or a run that takes no more leaves, LedgerBusy where another writer went on, LedgerReplaced where
    the database lost its name, and StorageFailed where disk or server refused.
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
        """Creates a ledger with its header leaf, and those with the coefficients of its noise where the policy has a digest.

        Args:
            ledger: a new file on a local disk, or a ``postgresql://`` URL (`ledger.storage.place`).
            header: what the run rests on.
            signer: the ledger's key; its name is the ledger's origin.
            state: local directory for the signer's own record, where the ledger is on a server.

        Raises:
            LedgerError: if the ledger exists, or its URL or state directory will not do.
            LeafRefused: if the header contradicts itself or its policy cannot be accounted for.
        """
        leaf = header.header(origin=signer.name, log_vkey=signer.vkey, time=now)
        leaves: list[Leaf] = [leaf, *coefficient_leaves(leaf)]
        bodies = [encode_leaf(item) for item in leaves]
        rows = [Row(item.seq, item.KIND, leaf_hash(body), body) for item, body in zip(leaves, bodies, strict=True)]
        place = Place.of(ledger, state)
        mark = highwater.path_of(place)
        if highwater.exists(place):
            raise LedgerError("EXISTS", f"{mark} exists: it belongs to a ledger that is not here")
        place.make_state_directory()
        store = create_store(place)
        try:
            frontier = Frontier()
            for row in rows:
                frontier.append(row.leaf_hash)
            note = sign_note(checkpoint_text(leaf.origin, len(rows), frontier.root()), signer)
            store.append(rows, frontier, note)
            highwater.write(place, signer, len(rows), frontier.root())
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
            LeafRefused: code NOT_INSTALLED or ACCOUNTANT_VERSION, what computes the figures is not here; the file may be sound.
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

    def __repr__(self) -> str:
        """Says which ledger it is, and how far its run is."""
        return f"<Ledger {self.header.origin}: {self._told()}>"

    def _repr_html_(self) -> str:
        return card("Ledger", [("origin", self.header.origin), ("run", self._told())])

    def _told(self) -> str:
        run = self.state
        steps = f"step {run.position} of {run.header.policy.steps}, {run.charged} charged"
        return f"{steps}, {'finished' if self.finished else 'open'}"

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def place(self) -> Place:
        """Place of the ledger."""
        return self._file.store.place

    @property
    def header(self) -> Header:
        """Leaf 0."""
        return self.state.header

    @property
    def size(self) -> int:
        """Number of leaves."""
        return self._file.size

    @property
    def root(self) -> bytes:
        """Root of the tree over all leaves."""
        return self._file.frontier.root()

    @property
    def state(self) -> Replay:
        """The replayed run, for reading: windows, epochs, contributions, totals."""
        return self._file.replay

    @property
    def header_digest(self) -> bytes:
        """SHA-256 of leaf 0."""
        return self._file.header_digest

    @property
    def finished(self) -> bool:
        """True once the run was closed."""
        return self.state.closed

    @property
    def checkpoint_sizes(self) -> list[int]:
        """The sizes over which a signed checkpoint is kept, ascending."""
        return sorted(self._file.checkpoints)

    @property
    def checkpoint(self) -> bytes:
        """The latest signed checkpoint note."""
        return self._file.checkpoints[max(self._file.checkpoints)]

    def require_clock(self, now: int) -> None:
        """Refuses to go on by a clock that ran far ahead since the last leaf, before anything is written by it.

        Guarantee: Where the run was not closed, no leaf of it (an admission, charge, draw, settlement, epoch or resumption, the
        close, a withdrawal of what expired) is dated more than `ledger.replay.signer.JUMP_SECONDS` after the leaf before it,
        unless `accept_clock` was called. A signed withdrawal, a release and what else the signer enters is never asked about:
        it may come years later.

        Raises:
            LeafRefused: code CLOCK_JUMP, or CLOCK for a clock behind the last leaf, with both times and what to do; RANGE for
                what is no time of a leaf.
        """
        if not self.finished:
            self.state.timeline.require_no_jump(self._file.time_at(now), self._accepted_time)

    def accept_clock(self, now: int) -> None:
        """Says that a clock is right though it ran far ahead since the last leaf; a later jump is asked about again."""
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

    @contextmanager
    def contents(self) -> Iterator[fsck.Contents]:
        """Opens all that is stored of this ledger for reading inside a ``with`` block; see `ledger.log.followed`."""
        with self._file.store.snapshot() as snapshot:
            yield fsck.Contents.of(snapshot)

    @contextmanager
    def listening(self) -> Iterator[list[bytes]]:
        """Yields a list that every leaf appended inside the block is added to, as bytes, once it is durable."""
        heard: list[bytes] = []
        self._file.listeners.append(heard)
        try:
            yield heard
        finally:
            self._file.listeners.remove(heard)

    def withdrawal_leaves(self) -> list[Withdraw]:
        """Returns all WITHDRAW leaves in order; a contribution has two where a signed one followed one of a passing reason."""
        if not self.state.withdrawals:
            return []
        with self.rows() as rows:
            leaves = [decode_leaf(row.body) for row in rows if row.kind == Withdraw.KIND]
        return [leaf for leaf in leaves if isinstance(leaf, Withdraw)]

    def admit(self, admissions: Iterable[AdmitSpec], *, now: int) -> range:
        """Admits contributions, all or none; returns their positions.

        Guarantee: Where an admission brings its attestation, that makes exactly the descriptor and the message whose digests
        its leaf quotes, and is durable with the leaf.

        Raises:
            LeafRefused: code ATTESTATION, terms, anchor and signature make something else; or as the rules have it.
        """
        framings = Framings()
        with self._running(now) as time:
            first = self.size
            for place, spec in enumerate(admissions):
                self._file.stage(Admit(first + place, time, *_admission(spec)))
                if spec.attestation is not None:
                    terms, signature = spec.attestation
                    framing, data = framings.of(terms)
                    if wrong := misfit(spec, framing, signature):
                        name = spec.descriptor_hash.hex()
                        sentence = f"the attestation of {name} is not what its ADMIT leaf would quote: {wrong}"
                        raise LeafRefused("ATTESTATION", f"{sentence}; admit what the gate admitted")
                    self._file.attach(Attested(first + place, data, signature))
        return range(first, self.size)

    def charge(self, first_step: int, n_steps: int, *, now: int, noise_stream: bytes) -> Charge:
        """Pays for a window of steps, and returns its CHARGE leaf.

        Guarantee: When this returns, the charge is durable: whatever happens to the process, the steps count in full. No step
        of the window may run, nor its sample be drawn, before.

        Args:
            first_step: last released step plus one; steps count from 1.
            n_steps: at most the policy's window length.
            noise_stream: 16 bytes that name the key stream of the window's noise, never used before.

        Raises:
            HorizonExceeded: the policy pays for no more steps.
            LeafRefused: the window does not continue the run, another is open, or the noise stream was used before.
            StorageFailed: the disk refused; the steps must not run.
        """
        if not self._may_charge:
            raise LeafRefused("RESUME_FIRST", "another process charged this ledger; call resume() before charging")
        with self._running(now) as time:
            run, fence = self.state, self._file.store.fence
            place = (len(run.windows) + 1, run.attempt, first_step, n_steps)
            leaf = Charge(self.size, time, *place, run.charge_classes(), noise_stream, fence)
            self._file.stage(leaf)
        return leaf

    def draw(self, step: int, drawn: Iterable[int], *, now: int) -> None:
        """Records who takes part in a step, where the policy makes occurrences public.

        Guarantee: When this returns, the occurrences are durable: whatever happens to the process, they count. The step must
        not run before. A step that was charged and never drawn costs nobody anything.

        Args:
            step: the next step of the open window.
            drawn: numbers of the contributions drawn, in the order of their admission, from 0.

        Raises:
            LeafRefused: draws are secret in this ledger, no window is open, or the step is not the next one; code SIZE if so
                many were drawn that they do not fit into one leaf.
        """
        with self._running(now) as time:
            window, numbers = self.state.open_window, tuple(sorted(drawn))
            place = 0 if window is None else window.window
            variances = self.state.draw_variances(numbers, step)
            self._file.stage(Draw(self.size, time, place or 1, step, numbers, variances))

    def settle(self, window: Charge, steps_released: int, *, now: int, variances: Sequence[float] | None = None) -> None:
        """Records that a window has run.

        Args:
            window: as returned by `charge`.
            steps_released: steps whose result was used. Fewer than charged ends the attempt; nothing is refunded.
            variances: smallest realised noise variance per class, in the policy's order; by default what the schedule, or
                with injection per sample the recorded draws, give.
        """
        with self._running(now) as time:
            realised = self.state.settle_variances() if variances is None else tuple(variances)
            self._file.stage(Settle(self.size, time, window.window, steps_released, realised))

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
            member: as for `withdraw`, of one of them.

        Raises:
            LeafRefused: code CLOCK_JUMP, something is said to have expired by a clock that `require_clock` refuses.
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

        Returns:
            Whether a leaf was written.

        Raises:
            LeafRefused: code REGISTRY, the run went by this state before a later one; CLOSED, the run is over.
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

    def resume(self, from_step: int, pin: Pin | None, *, now: int, threads: int | None = None) -> int:
        """Begins a new attempt from a model checkpoint; a window left open stays charged in full.

        Args:
            from_step: last step that the model checkpoint contains, 0 to start again.
            pin: the pin stored in the model checkpoint; needed unless from_step is 0.
            threads: threads of a process from here on, where the model checkpoint was written with another number.

        Returns:
            The number of the attempt, which the noise and sampling keys of its steps must be fresh for.

        Raises:
            LedgerBehind, LedgerForked, LedgerWrongRun: the pin is not of this ledger's past.
        """
        if pin is not None:
            self.check_pin(pin)
        with self._running(now) as time:
            size, root = (None, None) if pin is None else (pin.size, pin.root)
            self._file.stage(Resume(self.size, time, self.state.attempt + 1, from_step, size, root, threads))
        self._may_charge = True
        return self.state.attempt

    def finish(self, *, now: int) -> bytes:
        """Closes the run and returns the signed checkpoint. Only withdrawals may follow."""
        with self._running(now, checkpoint=True) as time:
            self._file.stage(Close(self.size, time, self.state.position, self.state.charged))
        return self.checkpoint

    def add_signatures(self, note: bytes, verifier_keys: Sequence[str]) -> bytes:
        """Stores the signatures of others, such as auditors' cosignatures, below a checkpoint of this ledger.

        Guarantee: When this returns, the stored note is what it was, byte for byte, and behind it those lines of ``note`` that
        verify under one of the keys, each key once; durably. Nothing signed is ever taken away or changed.

        Args:
            note: a copy of one of this ledger's checkpoints, with signatures added.
            verifier_keys: keys whose signatures count.

        Returns:
            The note as it is stored now.

        Raises:
            NoteError: the note is malformed or not signed by the ledger's key, or a signature does not verify.
            LedgerForked: the ledger's key signed another history in it; both notes are kept as evidence.
            LedgerWrongRun: it is a checkpoint of another ledger.
            LedgerError: code NO_CHECKPOINT if this ledger has no checkpoint of that size.
        """
        return self._file.add_signatures(note, verifier_keys)

    def rotate_key(self, successor: NoteSigner, *, now: int) -> bytes:
        """Hands the ledger over to another key, also after the run was closed; from now on this handle signs with it.

        Guarantee: When this returns, the KEY leaf and a checkpoint over it that both keys signed are durable. Checkpoints of
        that size or more by the old key alone are refused by every reader of the leaves from then on.

        Args:
            successor: the new key, under the ledger's own name. Keep it safe before calling this: afterwards nothing else
                can append to the ledger.

        Returns:
            The checkpoint that both keys signed, for publication.

        Raises:
            LeafRefused: code LOG_KEY, the new key has another name, signed this ledger before, or is an auditor's.
        """
        with self._file.appending(now, checkpoint=True, successor=successor) as time:
            signer = self._file.require_signer()
            self._file.stage(rotation(self.header, self.size, time, signer, successor))
        return self._file.checkpoints[self._file.size]

    def set_clock(self, reason: str, *, now: int) -> Clock:
        """Takes back times that a wrong clock put ahead, so that the ledger can go on; also after the run was closed.

        Guarantee: When this returns, the CLOCK leaf and a signed checkpoint over it are durable. Nothing else changes: no leaf
        before it is altered, what was charged counts, and who was withdrawn, as expired too, stays withdrawn.

        Args:
            reason: why, in printable ASCII of at most 200 characters; everybody who audits the ledger reads it.
            now: POSIX seconds by the clock that is right.

        Returns:
            The leaf.

        Raises:
            LeafRefused: code CLOCK_UNNEEDED, the clock is not behind the last leaf by more than a writer bears anyway; TYPE or
                RANGE for a reason or a time that no leaf has.
        """
        last = self.state.last_time
        if now >= last - BACK_SECONDS:
            sentence = f"the clock says {utc(now)} and the last leaf is of {utc(last)}: the ledger can go on as it is"
            raise LeafRefused("CLOCK_UNNEEDED", f"{sentence}, and no time has to be taken back")
        leaf = Clock(self._file.size, now, last, reason)
        with self._file.appending(now, checkpoint=True, back=True):
            self._file.stage(leaf)
        return leaf

    @property
    def signer(self) -> NoteSigner:
        """The ledger's key, which also signs the manifests of its releases.

        Raises:
            LedgerClosed: the ledger was opened for reading, or the handle is closed.
        """
        return self._file.require_signer()

    def keep_weights(self, records: Iterable[WeightRecord]) -> bytes:
        """Keeps the records of a model's tensors beside the ledger, for a release to cite, and returns its model digest.

        Guarantee: when this returns, the records are durable, so that no EPOCH leaf with this digest is without them. They are
        no secret beyond the weights themselves, and nothing rests on them: whoever reads them folds them to the digest again.

        Args:
            records: of all tensors of the model, in any order.

        Raises:
            StorageFailed: the disk refused.
        """
        return keep_weights(self.place, records)

    def weights_of(self, digest: bytes) -> tuple[WeightRecord, ...] | None:
        """Returns the records that a model digest commits to, None if they are not here.

        Raises:
            LedgerCorrupt: code WEIGHTS, the file of that digest holds something else.
        """
        return weights_of(self.place, digest)

    def sign_checkpoint(self) -> bytes:
        """Returns a signed checkpoint over all leaves, the stored one if there is one of that size."""
        if self.size not in self._file.checkpoints:
            with self._file.appending(self.state.last_time, checkpoint=True):
                pass
        return self._file.checkpoints[self.size]

    def record_release(self, manifest_digest: bytes, artifacts_digest: bytes, step: int, *, now: int) -> int:
        """Records that weights are released, also after the run was closed; nothing was appended since the manifest was made.

        Guarantee: when this returns, the RELEASE leaf and a signed checkpoint over it are durable.

        Args:
            manifest_digest: SHA-256 of the file `release.cose`, which cites the checkpoint over all leaves so far.
            artifacts_digest: digest over the files, as the manifest says it.
            step: last released step of the run.

        Returns:
            The position of the leaf: the size of the checkpoint that the manifest cites.

        Raises:
            LeafRefused: code RELEASE, it is another step.
        """
        seq, tree = self._file.size, self._file.frontier.root()
        gone = self.state.releases.withdrawals_root
        with self._file.appending(now, checkpoint=True) as time:
            self._file.stage(Release(seq, time, step, seq, tree, manifest_digest, artifacts_digest, gone))
        return seq

    @property
    def pruned_before(self) -> int:
        """Position below which bodies may be gone; 0 where everything is there."""
        return self._file.pruned_before

    @property
    def hashes_before(self) -> int:
        """Position below which leaf hashes of pruned leaves may be gone; 0 where all are there."""
        return self._file.hashes_before

    @property
    def vouchers(self) -> dict[int, tuple[str, ...]]:
        """Names of the policy's auditors who vouch for each SUMMARY leaf, by its position and as of this machine's clock."""
        return retaining.vouchers_of(self._file)

    def pruned(self) -> Pruned | None:
        """Returns what stands in for pruned leaves; None where everything is there."""
        return retaining.pruned(self._file)

    def summarise(self, *, now: int) -> Summary:
        """Appends the SUMMARY leaf over all epochs past the policy's horizon, under a signed checkpoint; also after the close.

        Guarantee: When this returns, leaf and checkpoint are durable. Every field of the leaf is recomputed by whoever opens or
        audits the ledger, while the bodies of the range are there.

        Raises:
            LeafRefused: code RETENTION if the policy keeps everything, NOTHING_DUE if no epoch is past the horizon.
        """
        with self._file.appending(now, checkpoint=True) as time:
            leaf, _ = self.state.tally.propose(self._file.size, time)
            self._file.stage(leaf)
        return leaf

    def prune(self, *, who_stays: bool = False) -> int:
        """Drops the bodies that vouched summaries speak for; returns how many went.

        Guarantee: A body goes only if it is of an ADMIT leaf whose aggregate stays, and of a contribution that has left, or
        that never did in a run that is closed; if this leaf and the WITHDRAW leaf lie below the end of a summary for which a
        quorum of the policy's auditors vouches, in signatures that this ledger keeps; and if the ledger without it replays to
        the same figures. All go, or none. Who stayed is in the members file beside the ledger before its leaf goes.

        Args:
            who_stays: whether the ADMIT leaves of who never left go too, once the run is closed and a quorum of the auditors
                vouches below a checkpoint that covers the close.

        Raises:
            RetentionRefused: code RETENTION if the policy keeps everything, NO_AUDITORS if it names nobody who could vouch,
                NO_SUMMARY without one that is not pruned yet, UNVOUCHED if too few vouch for it, TOO_EARLY if no epoch closed
                since, RUNNING if who stays in a run that is not closed is to go.
            LedgerError: code STATE, who stays is to go and there is no place for the members file.
            LedgerCorrupt: the ledger could not do without the bodies; nothing is gone.
        """
        return retaining.prune(self._file, who_stays=who_stays)

    def drop_hashes(self, *, keep: Iterable[int] = ()) -> int:
        """Drops hashes of leaves that were pruned long ago, but for the roots of their subtrees; returns how many went.

        Guarantee: A hash goes only if the body of its leaf is gone; if the leaf lies in a summarised range that as many closed
        epochs follow as the signed policy asks for (``retention_hash_epochs``); and into an aligned subtree that has leaves of
        that kind alone. So every leaf that is left stays under the signed roots, and every stored checkpoint keeps its root,
        its consistency proofs and the inclusion proofs of what is left. Lost are inclusion proofs of pruned leaves that nobody
        keeps in a file. All go, or none; the ledger without them was replayed whole before.

        Args:
            keep: sizes whose roots must still be made, such as those that model checkpoints pin.

        Raises:
            RetentionRefused: code RETENTION if the policy keeps hashes, NOT_PRUNED if no range has lost its bodies whose hashes
                are still there, TOO_EARLY if too few epochs follow it.
            LedgerCorrupt: the ledger could not do without the hashes; nothing is gone.
        """
        return retaining.drop_hashes(self._file, keep=keep)

    def member(self, descriptor_hash: bytes) -> ShownMember | None:
        """Returns what shows that a contribution is a member of an aggregate, from its leaves or from the members file.

        None where neither has it, or no SUMMARY leaf speaks for its ADMIT leaf yet.

        Raises:
            LedgerCorrupt: code MEMBERS, the file cannot be read.
        """
        return retaining.member(self._file, descriptor_hash)

    def examine(self) -> Examination:
        """Checks what opening does not read: pages of the database, attestations, lines of auditors, public key file, weights.

        Guarantee: with what opening has checked, no byte that changes what a reader of the ledger could see goes unnamed. Not
        meant are the word on which process wrote last (``lease``), lines under a checkpoint by keys that the policy does not
        name, comments in the public key file, and blanks and quotes in the text that made a table. ADMIT leaves without an
        attestation are named in a note: whoever admitted had none.

        Raises:
            LedgerCorrupt: the database is too damaged to be checked.
            StorageFailed: it, or the disk beside it, cannot be read.
        """
        return examine(self._file)

    def pin(self) -> Pin:
        """Returns what a model checkpoint that is saved now must remember."""
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

        Guarantee: Every method that appends asks before and after it writes, so none returns for leaves that went into a file
        or a table without a name. This method asks without writing: at the end of a run, say.

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
        if self.size not in self._file.checkpoints and self._file.signer is None:
            raise ExportRefused("UNSIGNED", "leaves follow the last checkpoint; open the ledger with its key")
        self.sign_checkpoint()
        told = self.pruned()
        with self._file.store.snapshot() as snapshot:
            rows, signed = islice(snapshot.rows(), self.size), snapshot if attestations else None
            beside: dict[str, Any] = {"keys": self.state.keys, "pruned": told, "snapshot": signed, "registry": known}
            return write_export(self.header, rows, self.checkpoint, Path(directory), **beside)

    def _running(self, now: int, *, checkpoint: bool = False) -> AbstractContextManager[int]:
        if self.finished:
            raise LedgerClosed("FINISHED", "the run is closed: no admission, charge, draw or epoch is recorded any more")
        self.require_clock(now)
        return self._file.appending(now, checkpoint=checkpoint)
