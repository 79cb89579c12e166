"""Samples the contributions of a step from the random streams of an attempt, and plans its microbatches."""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from attest.descriptor import SignedBounds
from attest.errors import FileRefused
from attest.files import atomic_write, read_limited
from attest.fixed_point import MICRO
from attest.policy import Policy
from attest.policy.sampling import POISSON
from attest.schedule import Phases, phase_std
from attest.schedule.turns import Order
from dptrain.clipping.resolver import Resolution, Schedule
from dptrain.data.contributions import Pool
from dptrain.data.packing import Drawn, Planned, plan
from dptrain.data.sampling import OrderedSampler, PoissonSampler, Sampler, groups
from dptrain.engine.options import Microbatches, NoiseSource
from dptrain.errors import ResumeRefused
from dptrain.noise import KeyStream, Mechanism, Source, mechanism_of
from dptrain.record.recorder import Recorder
from dptrain.routing import Bounds, bounds_of
from ledger.errors import LedgerError
from ledger.log import Ledger
from ledger.log.pinned import MAX_PINNED

SEALED = "dptrain.draws/1"

NOTHING = (SignedBounds(MICRO, MICRO), ())
"""Bounds and profile of a contribution that only fills up a microbatch: it may touch no block."""


class SealedStore:
    """Keeps the sampling keys of attempts beside the ledger: what a run must remember about its draws, and nobody may read.

    With a cap on occurrences, a resumed run must know how often each slot was already drawn. Draws are a function of the
    sampling key, so the keys of past attempts are kept (mode 0600) until the run ends, when the file is deleted. Other keys
    would count other draws: the file is signed with the ledger's key and pinned to it. Noise keys are never written anywhere.

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

    def destroy(self) -> None:
        """Deletes the store at the end of the run."""
        if self._path.exists():
            os.remove(self._path)

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
    sealed: SealedStore


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
    what the ledger recorded.

    Args:
        bits: b of the lattice s * 2^-b on which the sums are integers, where the noise is integers of another family.
    """
    run_id = recorder.ledger.header.run_id
    noise_key, sampling_key = (source.insecure_test_key or KeyStream.fresh_master() for _ in range(2))
    recorder.commit_stream(hashlib.sha256(b"dptrain.stream/1\x00" + noise_key + os.urandom(32)).digest())
    signed = [form.descriptor for form in pool.slots.forms]
    rates_of = [policy.class_rule(descriptor.admissibility_class).sampling_rate for descriptor in signed]
    caps_of = [descriptor.max_occurrences for descriptor in signed]
    numbers = pool.slots.numbers.tolist()
    rates, caps = [rates_of[number] for number in numbers], [caps_of[number] for number in numbers]
    sealed = SealedStore(recorder.place.side(".sealed"), recorder.ledger)
    sampler: Sampler
    if policy.sampling.name == POISSON:
        sampler = _poisson_sampler(recorder, sealed, attempt, sampling_key, rates, caps)
    else:
        entries = recorder.ledger.state.contributions.values()  # in the order of admission, as slots are
        sampler = OrderedSampler(Order(policy, run_id, [entry.class_index for entry in entries]), caps)
        sampler.occurrences[:] = [entry.occurrences for entry in entries]
    sampler.close(pool.indices(recorder.ledger.state.withdrawals))
    noise = noise_of(policy, run_id, attempt, noise_key, source.generator, bits=bits)
    return Streams(noise, sampler, sealed)


def _poisson_sampler(
    recorder: Recorder, sealed: SealedStore, attempt: int, key: bytes, rates: Sequence[Fraction], caps: Sequence[int]
) -> PoissonSampler:
    """Returns the sampler of an attempt; where a cap asks for it, with earlier draws counted and its key sealed."""

    def sampler_of(number: int, key: bytes) -> PoissonSampler:
        return PoissonSampler(KeyStream("sampling", recorder.ledger.header.run_id, number, key), rates, caps)

    sampler = sampler_of(attempt, key)
    if not sampler.capped:
        return sampler
    for past in range(attempt):
        windows = [window for window in recorder.ledger.state.windows if window.attempt == past]
        if not windows:
            continue  # an attempt that was never charged has drawn nobody, and may have ended before its key was sealed
        earlier = sampler_of(past, sealed.master(past))
        earlier.occurrences[:] = sampler.occurrences
        for window in windows:
            for step in range(window.first_step, window.first_step + window.n_steps):
                earlier.draw(step)
        sampler.occurrences[:] = earlier.occurrences
    sealed.add(attempt, key)
    return sampler


def noise_of(policy: Policy, run_id: bytes, attempt: int, key: bytes, generator: str = "host", *, bits: int) -> Mechanism:
    """Returns the noise that a policy asks for, from a key.

    Args:
        generator: ``host``, or ``device`` for Gaussian noise drawn where the sums are. bits: as for :func:`open_streams`.
    """
    draws = policy.noise_microbatches or 1
    return mechanism_of(policy.mechanism.name, Source(run_id, attempt, key, bits, draws, generator))


class Drawing:
    """Draws the contributions of every step; the rest follows from a draw by public numbers alone."""

    def __init__(
        self,
        policy: Policy,
        schedule: Schedule,
        pool: Pool,
        streams: Streams,
        size: Microbatches,
    ) -> None:
        self._pool = pool
        self._schedule = schedule
        self._sampler = streams.sampler
        self._policy = policy
        self._size = size
        self._phases = Phases.of(policy)
        self._scheduled: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = {}
        self._lowest = {name: schedule.lowest_position(name) for name in schedule.profiles}

    def close(self, indices: Iterable[int]) -> None:
        """Draws these slots no more."""
        self._sampler.close(indices)

    def draw(self, number: int) -> list[int]:
        """Slots that take part in a step, those that may reach lowest first."""
        return sorted((int(i) for i in self._sampler.draw(number)), key=lambda i: (self._depth(i), i))

    def planned(self, drawn: Sequence[int]) -> list[Planned]:
        """Microbatches of a draw.

        Public contributions come last, in microbatches of their own; how the others are split does not depend on them.
        """
        pool = self._pool
        found = [Drawn(slot, self._depth(slot), pool.size(slot), pool.length(slot)) for slot in drawn]
        public = {slot: self._resolution(slot).public for slot in drawn}
        return microbatches_of(found, public, self._policy, self._size)

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
        """Signed bounds and masks of the rows of a microbatch."""
        found = [self._resolution(slot) for slot in planned.slots]
        rows = [(resolution.bounds, resolution.profile) for resolution in found] + [NOTHING] * planned.fill
        return bounds_of(rows, len(self._schedule.blocks))

    def _resolution(self, slot: int) -> Resolution:
        return self._pool.slots.resolution(slot)

    def _depth(self, slot: int) -> int:
        return self._lowest[self._resolution(slot).class_name]


def microbatches_of(
    drawn: Sequence[Drawn], public: Mapping[int, bool] | Sequence[bool], policy: Policy, size: Microbatches
) -> list[Planned]:
    """Plans the microbatches of a draw, public contributions last, in microbatches of their own.

    How private contributions are split does not depend on public ones.

    Args:
        drawn: those that may reach lowest first. public: by slot, whether it is of a public class; these never fill up.
    """
    private = groups([one for one in drawn if not public[one.slot]], policy.noise_microbatches or 1)
    fill = policy.exactness == "certified"
    planned = [made for group in private for made in plan(group, size.contributions, size.rows, fill=fill)]
    return planned + plan([one for one in drawn if public[one.slot]], size.contributions, size.rows)
