"""The run's side of the ledger: which windows are charged before their steps, when they are settled, when epochs close."""

import hashlib
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from attest.attestation import CommonTerms
from attest.gate.admission import Form, SharedTerms
from attest.keys import generate, load_private_key, save_private_key
from attest.policy import Policy
from attest.registry import Registry
from dptrain.clipping.resolver import Resolution
from dptrain.data.slots import Slot, Slots
from dptrain.errors import NotPrivateUse, ResumeRefused
from dptrain.parallel.ranks import ALONE, Ranks, error_of, joined, named, parted
from dptrain.record.earlier_runs import Earlier
from dptrain.record.pin import PinRecord
from dptrain.record.registry_watch import RegistryWatch, cited_roots
from ledger.accountants import to_micro_up
from ledger.errors import BudgetExceeded
from ledger.leaves import Charge, HeaderSpec
from ledger.leaves.weights import WeightRecord, frozen_digest
from ledger.log.followed import Followed, contents_of, news_of
from ledger.log.ledger import AdmitSpec, Ledger
from ledger.note import NoteSigner
from ledger.replay import Replay
from ledger.storage.beside import delete_secrets, read_public, write_public
from ledger.storage.fsck import set_unfinished_aside, set_unused_aside
from ledger.storage.place import Place
from ledger.storage.store import exists

_FRESH, _RESUMING = b"fresh", b"resuming"

SHORT: Final = 4
"""Windows of one step with which an attempt begins; the next ones have at most as many steps as ran before in it."""


class Recorder:
    """Owns the ledger of a run: when to charge, settle and close, and under which key.

    Of several processes rank 0 writes, and the others follow: whatever is recorded returns at every rank with the same leaves
    replayed there, or raises at every rank what it raised at rank 0.

    Guarantee: a step's draw happens only after the window that contains it is durably charged, at every rank.

    Attributes:
        name, vkey: origin and verifier key of the ledger.
        signer: the ledger's key; at rank 0 alone.
    """

    signer: NoteSigner

    def __init__(
        self,
        place: Place,
        key_path: str | os.PathLike[str] | None,
        origin: str,
        resume: bool,
        owner_public: bytes,
        earlier: Earlier,
        ranks: Ranks = ALONE,
    ) -> None:
        self.place = place
        self.owner_public = owner_public
        self.ranks = ranks
        self._writer: Ledger | None = None
        self._followed: Followed | None = None
        told = parted(ranks.first(lambda: self._begin(key_path, origin, resume, earlier)))
        self.resuming, self.name, self.vkey = told[0] == _RESUMING, told[1].decode(), told[2].decode()
        if self.resuming and not ranks.leads:
            self._followed = Followed(told[3])
        self._window: Charge | None = None
        self._charged = 0
        self._commitment = b""

    def _begin(self, key_path: str | os.PathLike[str] | None, origin: str, resume: bool, earlier: Earlier) -> bytes:
        """Finds the ledger and its key, and tells the other ranks what is there."""
        place = self.place
        set_unfinished_aside(place)
        found = exists(place)
        if found and not resume and (key := Path(key_path or place.key)).exists():
            found = set_unused_aside(place, NoteSigner(origin, load_private_key(key))) is None
        if found and not resume:
            raise ResumeRefused(
                "LEDGER_EXISTS",
                f"{place.shown} already holds a run; pass resume=True (--resume) to continue it, or name another ledger for a "
                "new run",
            )
        self.signer = _signer(Path(key_path) if key_path else place.key, origin, place, make=not found)
        self._writer = Ledger.open(place, self.signer) if found else None
        try:
            if self._writer is not None and self._writer.finished:
                self._delete_left()
            self._publish()
            self._spent = earlier.registry(None if self._writer is None else self._writer.header.previous, self.owner_public)
            shared = contents_of(self._writer) if self._writer is not None and self.ranks.size > 1 else b""
        except BaseException:
            self.close()
            raise
        return joined([_RESUMING if found else _FRESH, self.signer.name.encode(), self.signer.vkey.encode(), shared])

    @property
    def ledger(self) -> Ledger | Followed:
        """Returns the ledger of the run for reading."""
        found = self._writer or self._followed
        if found is None:
            raise ResumeRefused(
                "NOT_BEGUN", "a new ledger is made when the first step begins, after the start-up probes; run a step first"
            )
        return found

    @property
    def writer(self) -> Ledger:
        """Returns the ledger of the run at rank 0, which alone has it open."""
        found = self.ledger
        if not isinstance(found, Ledger):
            raise ResumeRefused("RANK", f"rank {self.ranks.rank} follows the ledger that rank 0 writes; ask rank 0")
        return found

    def lead(self, action: Callable[[], object]) -> None:
        """Runs at rank 0 what appends to the ledger, and brings every rank to the leaves that it has then.

        Raises:
            RanksError: a process is gone. LedgerCorrupt: code FOLLOWED, what arrived is not what rank 0 wrote. Also whatever
                the action raised at rank 0.
        """
        if self.ranks.size == 1:
            action()
            return
        raised: list[Exception] = []

        def run() -> None:
            try:
                action()
            except Exception as error:
                raised.append(error)

        def told() -> bytes:
            news = self._told(run)
            return joined([news, named(raised[0]) if raised else b""])  # what was appended before an error is told as well

        news, failure = parted(self.ranks.first(told))
        if self.ranks.leads:
            if raised:
                raise raised[0]
            return
        if news and self._followed is None:
            self._followed = Followed(news)
        elif news and self._followed is not None:
            self._followed.take(news)
        if failure:
            raise error_of(failure)

    def _told(self, action: Callable[[], object]) -> bytes:
        """Runs an action that appends; returns what the other ranks must hear of it."""
        before = self._writer
        if before is None:
            action()
            return b"" if self._writer is None else contents_of(self._writer)
        with before.listening() as heard:
            action()
        return news_of(heard, before)

    @property
    def begun(self) -> bool:
        """Tell if there is a ledger already."""
        return (self._writer or self._followed) is not None

    def state(self, header: HeaderSpec, now: int) -> Replay:
        """Returns what the ledger says so far; before it begins, of a run with this header and no leaf behind it."""
        if self.begun:
            return self.ledger.state
        return Replay(header.header(origin=self.name, log_vkey=self.vkey, time=now), lambda size: b"")

    def require_open(self) -> None:
        """Refuses a run that is over. Raises ResumeRefused: code FINISHED."""
        if self.ledger.finished:
            raise ResumeRefused(
                "FINISHED",
                f"the run of {self.place.shown} is over: its ledger was closed after {self.ledger.state.position} steps, and "
                "can be exported. Another run spends epsilon of its own: name another ledger or directory for it",
            )

    def begin_at(self, clock: Callable[[], int], *, accepted: bool = False) -> int:
        """Returns the time by the clock of rank 0, POSIX seconds, after :meth:`require_clock` there."""

        def time() -> bytes:
            now = clock()
            self.require_clock(now, accepted=accepted)
            return str(now).encode()

        return int(self.ranks.first(time))

    def admitting(self, watch: RegistryWatch) -> Registry:
        """Returns the state of the registry that contributions are judged by, the same at every rank.

        Raises:
            RegistryRefused: as `RegistryWatch.at_admission`; the registry of a rank lacks the state that rank 0 judges by.
        """
        found: list[Registry] = []

        def judged() -> bytes:
            found.append(watch.at_admission(cited_roots(self.writer) if self.resuming else ()))
            return found[0].root()

        root = self.ranks.first(judged)
        return found[0] if found else watch.at(root)

    def require_clock(self, now: int, *, accepted: bool = False) -> None:
        """Refuses, before anything is written, a clock that ran far ahead since the last leaf of the run, or is behind it.

        Args:
            now: POSIX seconds.
            accepted: whether the user says that this clock is right though it ran far ahead.

        Raises:
            LeafRefused: code CLOCK_JUMP or CLOCK (`ledger.log.ledger.Ledger.require_clock`).
        """
        if self._writer is not None:
            if accepted:
                self._writer.accept_clock(now)
            self._writer.require_clock(now)

    def plan(self, header: HeaderSpec, slots: Sequence[Slot], now: int) -> None:
        """Holds a new run against what its contributions may spend over all runs; writes nothing.

        Raises:
            BudgetExceeded: the run could spend more of a contribution than it signed for all runs.
        """
        self._steps = header.rules
        self.lead(lambda: self._plan(header, slots, now))

    def _plan(self, header: HeaderSpec, slots: Sequence[Slot], now: int) -> None:
        header = replace(header, previous=self._spent.previous)
        leaf = header.header(origin=self.signer.name, log_vkey=self.signer.vkey, time=now)
        names = [rule.name for rule in self._steps.classes]
        if not self._spent.previous:
            # Without earlier runs the plan of a contribution follows from its bounds and limits, which a form shares.
            try:
                self._spent.require_within(leaf, _one_of_each_form(slots, names))
                return
            except BudgetExceeded:
                pass  # who else is beyond a limit is counted below
        self._spent.require_within(leaf, _admissions(slots, names))

    def open(self, header: HeaderSpec, slots: Sequence[Slot], now: int) -> int | None:
        """Creates the ledger with its admissions and returns attempt 0; for a resumed run checks it and returns None.

        Raises:
            ResumeRefused: the ledger is of another policy, model or schedule.
            BudgetExceeded: as :meth:`plan`.
        """
        self._steps = header.rules
        fresh = not self.begun
        self.lead(lambda: self._open(header, slots, now))
        return self.ledger.state.attempt if fresh else None

    def _open(self, header: HeaderSpec, slots: Sequence[Slot], now: int) -> None:
        names = [rule.name for rule in self._steps.classes]
        if self._writer is None:
            self._plan(header, slots, now)
            header = replace(header, previous=self._spent.previous)
            self._writer = Ledger.create(self.place, header, self.signer, now=now)
        else:
            _require_same(self._writer, header)
        ledger = self._writer
        if not ledger.state.contributions:
            if len(self._spent.previous) != len(ledger.header.previous):
                raise ResumeRefused(
                    "EARLIER", "the header cites earlier runs and nobody is admitted yet; name their ledgers again"
                )
            found = _admissions(slots, names)
            ledger.admit(map(self._carried, found) if ledger.header.previous else found, now=now)
        ledger.withdraw_all(self._spent.withdrawn_among(ledger.state.contributions), now=now)

    def _publish(self) -> None:
        """Writes the verifier keys of the ledger where none are; of a resumed run refuses a file without the one that signs."""
        path, vkey = self.place.public, self.signer.vkey
        known = read_public(path)
        if vkey in known:
            return
        if known and self._writer is not None:
            raise ResumeRefused(
                "PUBLIC_KEY",
                f"{path} does not name {vkey}, the key that signs this ledger: somebody changed it. Whoever is given such a "
                "file checks another's signatures; remove it to have it written anew, and tell those who have it",
            )
        write_public(path, [vkey] if self._writer is None else self._writer.state.keys.vkeys)

    def _carried(self, admission: AdmitSpec) -> AdmitSpec:
        """Returns an admission with what its contribution spent before."""
        if self._steps.classes[admission.profile_id].public:
            return admission
        before = self._spent.carried(admission.descriptor_hash, self.ledger.header.delta, admission)
        return replace(admission, carried_micro=to_micro_up(before))

    def admitted(self) -> Collection[bytes]:
        """Returns the descriptor hashes in the order of their admission, each read when somebody asks for it."""
        return self.ledger.state.contributions

    def resume(self, from_step: int, pin: PinRecord | None, threads: int | None, now: int) -> int:
        """Starts a new attempt after ``from_step``; every re-executed step is charged again. Warns where they run short.

        ``threads`` are those of a process from here on, where the checkpoint was written with another number.
        """
        self.lead(lambda: self.writer.resume(from_step, None if pin is None else pin.pin, now=now, threads=threads))
        left = self._steps_left(from_step)
        if self.ranks.leads and from_step + left < self._steps.steps:
            end, steps = from_step + left, self._steps.steps
            earliest = self.ledger.state.order.earliest_resume(self.ledger.state.charged)
            warnings.warn(
                f"the policy pays for {left} more steps, so this attempt ends at step {end} of {steps}; only from a checkpoint "
                f"at step {earliest} or later is the last step in reach. Another run may sign more redo_steps",
                stacklevel=3,
            )
        return self.ledger.state.attempt

    def _steps_left(self, step: int) -> int:
        """Returns how many steps the policy still pays for after `step`, over all attempts."""
        return self.ledger.state.order.steps_left(step, self.ledger.state.charged)

    def commit_stream(self, commitment: bytes) -> None:
        """Takes the hiding commitment to this attempt's noise key; windows derive their public stream ids from it."""
        self._commitment = commitment

    def needs_charge(self, step: int) -> bool:
        return self._window is None or step >= self._window.first_step + self._window.n_steps

    def at_epoch_end(self, step: int) -> bool:
        return step % self._steps.epoch_steps == 0 or step == self._steps.steps

    def at_window_end(self, step: int) -> bool:
        return self._window is not None and step == self._window.first_step + self._window.n_steps - 1

    def charge(self, step: int, now: int, before: Callable[[], object] = lambda: None) -> None:
        """Durably charges the window that starts at ``step``: to the end of the window, the epoch or the phase.

        The first windows of an attempt are short (`SHORT`): a fault of a loop shows early, and costs little then. Windows of
        two steps are short as they are.

        Args:
            before: records what must stand before the charge, as who leaves the pool; rank 0 runs it.
        """

        def charged() -> None:
            before()
            epoch_end = -(-step // self._steps.epoch_steps) * self._steps.epoch_steps
            left = self._steps_left(step - 1)
            phase_end = self.ledger.header.phases.last_step(step)  # of the last phase: the horizon
            grown = 1 << min(max(0, self._charged - SHORT + 1), 30) if SHORT and self._steps.window_steps > 2 else 1 << 30
            count = min(self._steps.window_steps, grown, epoch_end - step + 1, phase_end - step + 1, max(1, left))
            stream = hashlib.sha256(self._commitment + step.to_bytes(8, "big")).digest()[:16]
            self.writer.charge(step, count, now=now, noise_stream=stream)

        self.lead(charged)
        self._window = self.ledger.state.open_window
        self._charged += 1

    def draw(self, step: int, drawn: Sequence[int], now: int) -> None:
        """Records who takes part in a step, durably, where the policy makes that public."""
        self.lead(lambda: self.writer.draw(step, drawn, now=now))

    def require_noise(self, step: int, stds: Sequence[float] | None) -> None:
        """Holds the noise that a step is about to run with against what the ledger charged for it.

        Args:
            stds: effective standard deviation per class, in the policy's order; None where the draw decides it.

        Raises:
            NotPrivateUse: the step would run with other noise than it is accounted with.
        """
        window = self.ledger.state.open_window
        charged = () if window is None else tuple(row.min_std for row in window.classes)
        if stds is not None and tuple(stds) != charged:
            raise NotPrivateUse(
                "NOISE_OF_STEP", f"step {step} would run with noise {tuple(stds)} per class, the ledger charged {charged}"
            )

    def settle(self, step: int, now: int) -> None:
        window = self._window
        assert window is not None
        self.lead(lambda: self.writer.settle(window, step - window.first_step + 1, now=now))

    def close_epoch(self, step: int, weights: Iterable[WeightRecord], isolation: str, now: int) -> None:
        """Closes an epoch that ended with these weights; the records of their tensors are kept beside the ledger."""
        records = tuple(weights)
        frozen = frozen_digest(records, self.ledger.header.stack.names)
        self.ranks.agree({"the weights": b"".join(record.sha256 for record in records)})

        def closed() -> None:
            digest = self.writer.keep_weights(records)
            self.writer.close_epoch(step, digest, isolation=isolation, frozen_digest=frozen, now=now)

        self.lead(closed)

    def finish(self, step: int, weights: Callable[[], Iterable[WeightRecord]], isolation: str, now: int) -> None:
        """Settles what is open with the steps that were released, closes the last epoch and the run; once.

        The weights are asked for only if there is an epoch to close.

        Raises:
            LedgerReplaced: the ledger that was written is no longer the one under its name.
        """
        self.lead(self.require_in_place)
        if self.ledger.finished:
            return
        run = self.ledger.state
        if run.open_window is not None:
            self.settle(step, now)
        if run.charged > (run.epochs[-1].charged if run.epochs else 0):
            self.close_epoch(step, weights(), isolation, now)
        self.lead(lambda: self.writer.finish(now=now))

    def require_in_place(self) -> None:
        """Refuses to end well if the ledger that was written is no longer the one under its name."""
        if self._writer is not None:
            self._writer.require_in_place()

    def delete_secrets(self) -> None:
        """Deletes what a run keeps secret beside its ledger until it is over; rank 0 does. Raises StorageFailed."""
        if self.ranks.leads:
            delete_secrets(self.place)

    def _delete_left(self) -> None:
        """Deletes what a run left that was killed between the last leaf of its ledger and the end, and says so."""
        left = delete_secrets(self.place)
        if left:
            names = " and ".join(map(str, left))
            warnings.warn(
                f"deleted {names}: the run was over, and had ended before it did so itself. With the releases it tells what "
                "nobody should know; if anybody could read it, or it is in a backup, see to that",
                stacklevel=2,
            )

    def export(self, directory: str | os.PathLike[str], registry: Path | None = None) -> Path:
        """Writes the record of the run with what contributors signed, and the registry, for an auditor; rank 0 does."""
        if not self.ranks.leads:
            return Path(directory)
        return Path(self.writer.export(Path(directory), registry=registry))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _signer(key_path: Path, origin: str, place: Place, *, make: bool) -> NoteSigner:
    """Returns the signer of a run, whose key is made where it is not there; of one that began before only if its key is."""
    if not make and not key_path.exists():
        raise ResumeRefused(
            "KEY_MISSING", f"{place.shown} holds a run, and its key is not at {key_path}; name its key, or its state directory"
        )
    place.make_state_directory()
    if not key_path.exists():
        save_private_key(key_path, generate())
    return NoteSigner(origin, load_private_key(key_path))


def by_terms(slots: Sequence[Slot], policy: Policy) -> Slots:
    """Returns slots with those of equal class, bounds and limits next to each other, and else in the order of the corpus.

    A new run admits in this order, so that what its ledger keeps of pruned admissions grows with how many terms there are.
    """
    classes = [rule.name for rule in policy.classes]

    def key(form: Form, resolution: Resolution) -> tuple[int, ...]:
        bounds, limits = _quoted(form, resolution, classes)
        return *bounds[1:], *limits

    return Slots.of(slots).grouped_by(key)


def _quoted(form: Form, resolution: Resolution, classes: list[str]) -> tuple[tuple[Any, ...], tuple[int, int]]:
    """Returns class, its place and bounds, and the limit over runs, that the ledger quotes of a form."""
    signed, name = form.descriptor, resolution.class_name
    return (name, classes.index(name), *signed.bounds), signed.limit


def _admissions(slots: Sequence[Slot], classes: list[str], indices: Iterable[int] | None = None) -> Iterator[AdmitSpec]:
    """Yields what the ledger records of slots, of all or of some, one at a time; slots of one form share what they can."""
    slots, shared = Slots.of(slots), SharedTerms()
    known: dict[Form, tuple[tuple[Any, ...], tuple[int, ...], CommonTerms, bytes]] = {}
    for index in range(len(slots)) if indices is None else indices:
        form = slots.form(index)
        if form not in known:
            own, limit = _quoted(form, slots.resolution(index), classes)
            known[form] = own, (0, *limit), shared.of(form.sample), form.sample.key_id
        bounds, limits, terms, key_id = known[form]
        descriptor_hash, attestation_hash, anchor, signature = slots.quoted(index)
        yield AdmitSpec(descriptor_hash, *bounds, attestation_hash, key_id, anchor, *limits, (terms, signature))


def _one_of_each_form(slots: Sequence[Slot], classes: list[str]) -> Iterator[AdmitSpec]:
    """Yields what the ledger records of one slot of each form: the others differ in digests, anchor and signature alone."""
    _, firsts = np.unique(Slots.of(slots).numbers, return_index=True)
    return _admissions(slots, classes, np.sort(firsts).tolist())


def _require_same(ledger: Ledger, header: HeaderSpec) -> None:
    found = ledger.header
    for what, old, new in (
        ("policy", found.policy_payload, header.policy.payload),
        ("key of the corpus owner", found.owner_key, header.owner_key),
        ("model structure", found.model_fingerprint, header.model_fingerprint),
        ("layer stack", found.stack, header.stack),
        ("schedule of blocks", found.blocks, header.blocks),
        ("account of its numerics", found.exactness_note, header.exactness_note),
        ("privacy mode", found.private, header.private),
        ("state of the registry", found.registry_root, header.registry_root),
        ("word on isolation by its optimizer", found.isolation, header.isolation),
        ("randomness of forward passes", found.randomness, header.randomness),
    ):
        if old != new:
            raise ResumeRefused(
                "ANOTHER_RUN",
                f"the ledger was opened with another {what}; resume with the policy, model, optimizer and noise_generator that "
                "started the run, or start a new one",
            )
    if header.frozen_digest not in (None, found.frozen_digest):
        raise ResumeRefused(
            "FROZEN", "frozen parameters are not those that the run began with; resume with the weights it began with"
        )
