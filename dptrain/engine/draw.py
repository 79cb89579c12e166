"""Samples the contributions of a step from the random streams of an attempt, and plans its microbatches."""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from attest.descriptor import SignedBounds
from attest.errors import FileRefused
from attest.files import atomic_write, read_limited
from attest.fixed_point import MICRO
from attest.policy import Policy
from attest.schedule import Phases, phase_std
from attest.schedule.turns import Order
from dptrain.clipping.resolver import Resolution, Schedule
from dptrain.data.contributions import Pool
from dptrain.data.packing import Drawn, Planned, by_reads, dealt, in_order, in_step, plan
from dptrain.data.sampling import OrderedSampler, PoissonSampler, Sampler, any_capped, groups
from dptrain.engine.options import Microbatches, NoiseSource
from dptrain.errors import ResumeRefused, UnsupportedPolicy
from dptrain.noise import KeyStream, Mechanism, Source, mechanism_of
from dptrain.parallel.ranks import ALONE, Ranks, joined, parted
from dptrain.record.recorder import Recorder
from dptrain.routing import Bounds, bounds_of
from ledger.errors import LedgerError
from ledger.log import Ledger
from ledger.log.pinned import MAX_PINNED
from ledger.storage.beside import DRAW_KEYS

SEALED = "dptrain.draws/1"

NOTHING = (SignedBounds(MICRO, MICRO), ())
"""Bounds and profile of a contribution that only fills up a microbatch: it may touch no block."""


class SealedStore:
    """Keeps the sampling keys of attempts beside the ledger: what a run must remember about its draws, and nobody may read.

    With a cap on occurrences, a resumed run must know how often each slot was already drawn. Draws are a function of the
    sampling key, so the keys of past attempts are kept (mode 0600) until the run ends, when the file is deleted. Other keys
    would count other draws: the file is signed with the ledger's key and pinned to it. Noise keys are not
    among them; what correlated noise keeps from step to step, of a dense strategy its keys, has a place of its own
    (`dptrain.record.noise_states`).

    Guarantee: a key that is read is the one that this ledger's run wrote for that attempt. Where it is missing, or anybody
    changed the file, no draw is counted by another: the run is refused.
    """

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self._path = path
        self._ledger = ledger

    def add(self, attempt: int, master: bytes) -> None:
        """Records the sampling key of an attempt before its first draw.

        Raises:
            ResumeRefused: the keys of earlier attempts were changed.
        """
        keys = self._read() | {attempt: master}
        data = self._ledger.sign_pinned(SEALED, [[number, key] for number, key in sorted(keys.items())])
        atomic_write(self._path, data, mode=0o600)

    def master(self, attempt: int) -> bytes:
        """Sampling key of an earlier attempt.

        Raises:
            ResumeRefused: it is missing, or the file was changed, so caps on occurrences could be exceeded.
        """
        found = self._read().get(attempt)
        if found is None:
            raise self._refused(f"the sampling key of attempt {attempt} is not in {self._path}")
        return found

    def _read(self) -> dict[int, bytes]:
        if not self._path.exists():
            return {}
        try:
            _, rows = self._ledger.open_pinned(read_limited(self._path, MAX_PINNED, "store of sampling keys"), SEALED)
        except (LedgerError, FileRefused) as error:
            raise self._refused(f"{self._path} is not what this run wrote: {error.sentence}") from error
        return {attempt: key for attempt, key in rows}

    def _refused(self, found: str) -> ResumeRefused:
        return ResumeRefused(
            "SEALED_STORE",
            f"{found}: contributions with max_occurrences could be drawn more often than signed; restore the file or start a "
            "new run",
        )


@dataclass(frozen=True)
class Streams:
    """Holds noise, sampler and sealed store of one attempt."""

    noise: Mechanism
    sampler: Sampler
    sealed: SealedStore | None


def open_streams(
    recorder: Recorder,
    pool: Pool,
    policy: Policy,
    attempt: int,
    source: NoiseSource,
    *,
    bits: int,
) -> Streams:
    """Draws fresh keys (or takes the test key), commits to the noise key, and replays the draws of earlier attempts.

    Guarantee: noise and sampling keys of an attempt come from the operating system and were never used before; only a hiding
    commitment, SHA-256 over key and 32 random bytes, reaches the ledger. With caps, every draw that an earlier attempt may
    have made counts, so no contribution is drawn more often than it signed. Turns in an order have no key, and their past is
    what the ledger recorded. Of several ranks the first draws the keys; the others get them in memory, one for each purpose.

    Args:
        bits: b of the lattice s * 2^-b on which the sums are integers, where the noise is integers of another family.
    """
    run_id = recorder.ledger.header.run_id
    signed = [form.descriptor for form in pool.slots.forms]
    rates = [policy.class_rule(descriptor.admissibility_class).sampling_rate for descriptor in signed]
    caps, forms = [descriptor.max_occurrences for descriptor in signed], pool.slots.numbers
    leads, poisson = recorder.ranks.leads, not policy.sampling.turns
    sealed = SealedStore(recorder.place.side(DRAW_KEYS), recorder.writer) if leads else None
    signed_alike = rates, caps, forms, _group_of(recorder, policy.sampling.groups)

    def begin() -> bytes:
        """Draws the keys, counts the draws of earlier attempts, and returns what the other ranks must know."""
        noise_key, sampling_key = (source.insecure_test_key or KeyStream.fresh_master() for _ in range(2))
        recorder.commit_stream(hashlib.sha256(b"dptrain.stream/1\x00" + noise_key + os.urandom(32)).digest())
        drawn = b""
        if poisson and sealed is not None:
            drawn = _drawn_before(recorder, sealed, attempt, sampling_key, signed_alike)
        return joined([noise_key, sampling_key, drawn])

    noise_key, sampling_key, drawn = parted(recorder.ranks.first(begin))
    sampler: Sampler
    if poisson:
        sampler = PoissonSampler(KeyStream("sampling", run_id, attempt, sampling_key), *signed_alike)
        if drawn:
            sampler.occurrences[:] = np.frombuffer(drawn, dtype="<i8")
    else:
        entries = recorder.ledger.state.register.by_number  # in the order of admission, as slots are
        sampler = OrderedSampler(Order(policy, run_id, [entry.class_index for entry in entries]), caps, forms)
        sampler.occurrences[:] = np.fromiter((entry.occurrences for entry in entries), dtype=np.int64, count=len(entries))
    sampler.close(pool.indices(recorder.ledger.state.withdrawals))
    noise = noise_of(policy, run_id, attempt, noise_key, source.generator, bits=bits)
    if recorder.ranks.size > 1 and not getattr(noise, "addressed", False):
        raise UnsupportedPolicy(
            "NOISE_RANKS",
            f"{type(noise).__name__} does not say that it draws the noise of a coordinate from its address alone, and each of "
            f"{recorder.ranks.size} ranks draws that of a part; give it an attribute addressed = True if its release takes "
            "Step.offset and Step.size into account, or train in one process",
        )
    return Streams(noise, sampler, sealed)


def _group_of(recorder: Recorder, groups: int) -> tuple[int, np.ndarray] | None:
    """Returns the group of every slot, by the order of admission in its class; None where steps draw from all."""
    if groups == 1:
        return None
    entries = recorder.ledger.state.register.by_number  # in the order of admission, as slots are
    return groups, np.fromiter((entry.slot % groups for entry in entries), dtype=np.uint32, count=len(entries))


def _drawn_before(
    recorder: Recorder,
    sealed: SealedStore,
    attempt: int,
    key: bytes,
    signed: tuple[Sequence[Fraction], Sequence[int], np.ndarray, tuple[int, np.ndarray] | None],
) -> bytes:
    """Returns how often each slot was drawn in earlier attempts, int64, and seals the key of this one; empty without caps.
    `signed`: rates, caps, forms and turns of `PoissonSampler`."""

    def sampler_of(number: int, key: bytes) -> PoissonSampler:
        return PoissonSampler(KeyStream("sampling", recorder.ledger.header.run_id, number, key), *signed)

    _, caps, forms, _ = signed
    if not any_capped(caps, forms):
        return b""
    occurrences = np.zeros(len(forms), dtype="<i8")
    for past in range(attempt):
        windows = [window for window in recorder.ledger.state.windows if window.attempt == past]
        if not windows:
            continue  # an attempt that was never charged has drawn nobody, and may have ended before its key was sealed
        earlier = sampler_of(past, sealed.master(past))
        earlier.occurrences[:] = occurrences
        for window in windows:
            for step in range(window.first_step, window.first_step + window.n_steps):
                earlier.draw(step)
        occurrences[:] = earlier.occurrences
    sealed.add(attempt, key)
    return occurrences.tobytes()


def noise_of(policy: Policy, run_id: bytes, attempt: int, key: bytes, generator: str = "host", *, bits: int) -> Mechanism:
    """Returns the noise that a policy asks for, from a key.

    Args:
        generator: ``host``, or ``device`` for Gaussian noise drawn where the sums are. bits: as for :func:`open_streams`.
    """
    draws = policy.noise_microbatches or 1
    rule = policy.mechanism
    return mechanism_of(rule.name, Source(run_id, attempt, key, bits, draws, generator, rule, policy.steps))


class Drawing:
    """Draws the contributions of every step; the rest follows from a draw by public numbers alone.

    Every rank makes the whole draw, from the run's keys, and takes the contributions that are dealt to it.
    """

    def __init__(
        self,
        policy: Policy,
        schedule: Schedule,
        pool: Pool,
        streams: Streams,
        size: Microbatches,
        ranks: Ranks = ALONE,
        together: bool = False,
    ) -> None:
        """`together`: whether ranks gather parameters together, so that each goes as deep as the one that goes deepest."""
        self._together = together
        self._pool = pool
        self._schedule = schedule
        self._sampler = streams.sampler
        self._policy = policy
        self._size = size
        self._ranks = ranks
        self._phases = Phases.of(policy)
        self._scheduled: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = {}
        self._lowest = {name: schedule.lowest_position(name) for name in schedule.profiles}
        self._reads = {name: schedule.read_by(name) for name in schedule.profiles}

    def close(self, indices: Iterable[int]) -> None:
        """Draws these slots no more."""
        self._sampler.close(indices)

    def draw(self, number: int) -> list[int]:
        """Slots that take part in a step, those that may reach lowest first."""
        return sorted((int(i) for i in self._sampler.draw(number)), key=lambda i: (self._depth(i), i))

    def planned(self, drawn: Sequence[int]) -> list[Planned]:
        """Microbatches of this rank, of a draw.

        Public contributions come last, in microbatches of their own; how the others are split does not depend on them.
        """
        pool, ranks = self._pool, self._ranks
        found = [
            Drawn(slot, self._depth(slot), pool.size(slot), pool.length(slot), self._reads[self._resolution(slot).class_name])
            for slot in drawn
        ]
        public = {slot: self._resolution(slot).public for slot in drawn}
        plans = [microbatches_of(found, public, self._policy, self._size, rank, ranks.size) for rank in range(ranks.size)]
        return in_step(plans, ranks.rank, self._blocks if self._together else None)

    def noise(self, number: int, drawn: Sequence[int]) -> tuple[tuple[float, ...], tuple[float, ...] | None]:
        """Standard deviations of the noise of a step: per block, and effective ones per class, in the order of the policy.

        They are the schedule's in the phase of the step. With injection per sample those drawn bring them, and there is nothing
        per class to hold against what was charged: None.
        """
        if self._policy.noise_injection == "per_sample":
            descriptors = [self._pool.slots.form(slot).descriptor for slot in drawn]
            return self._schedule.realised_stds(descriptors), None
        scale = self._phases.scale_micro(number)
        if scale not in self._scheduled:
            stds = tuple(phase_std(block.std, scale) for block in self._schedule.blocks)
            self._scheduled[scale] = stds, tuple(self._schedule.class_std(name, stds) for name in self._schedule.profiles)
        return self._scheduled[scale]

    def bounds(self, planned: Planned) -> Bounds:
        """Signed bounds and masks of the rows of a microbatch; of one that is idle, those of its rows all the same."""
        found = [self._resolution(slot) for slot in planned.slots]
        rows = [(resolution.bounds, resolution.profile) for resolution in found] + [NOTHING] * planned.fill
        return bounds_of(rows, len(self._schedule.blocks))

    def _blocks(self, planned: Planned) -> set[int]:
        return {block for slot in planned.slots for block in self._resolution(slot).profile}

    def _resolution(self, slot: int) -> Resolution:
        return self._pool.slots.resolution(slot)

    def _depth(self, slot: int) -> int:
        return self._lowest[self._resolution(slot).class_name]


def microbatches_of(
    drawn: Sequence[Drawn],
    public: Mapping[int, bool] | Sequence[bool],
    policy: Policy,
    size: Microbatches,
    rank: int = 0,
    ranks: int = 1,
) -> list[Planned]:
    """Plans the microbatches of one rank, of a draw; public contributions last, in microbatches of their own.

    How private contributions are split does not depend on public ones. They are dealt whole, in turns by their length and
    depth, so that ranks have nearly the same to do; those whose classes read other parts of the model, by themselves. At
    ``certified`` microbatches are those of one process, and are dealt whole: rounding may follow from the place of a row in it,
    and so it is the same on any number of ranks. Where noise is injected per microbatch, the policy's groups of a draw are
    dealt, so that they are counted over all ranks.

    Args:
        drawn: those that may reach lowest first. public: by slot, whether it is of a public class; these never fill up.
    """
    fill = policy.exactness == "certified"
    private = [one for one in drawn if not public[one.slot]]
    of_all = [one for one in drawn if public[one.slot]]

    def mine(some: Sequence[Drawn]) -> list[Planned]:
        alike = (sorted(own, key=in_order)[rank::ranks] for own in by_reads(some))
        return [made for own in alike for made in plan(own, size.contributions, size.rows)]

    shared = plan(of_all, size.contributions, size.rows) if fill else mine(of_all)
    if policy.noise_microbatches is not None:
        own = groups(private, policy.noise_microbatches)[rank::ranks]
        planned = [made for group in own for made in plan(group, size.contributions, size.rows, fill=fill)]
        return planned + (dealt(shared, rank, ranks) if fill else shared)
    if fill:
        return dealt(plan(private, size.contributions, size.rows, fill=True) + shared, rank, ranks)
    return mine(private) + shared
