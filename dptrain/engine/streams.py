"""Opens the random streams of an attempt: fresh keys, and the draws of earlier attempts counted towards every cap."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from attest.policy import Policy
from attest.policy.sampling import POISSON
from attest.schedule.turns import Order
from dptrain.data.contributions import Pool
from dptrain.data.sampling import OrderedSampler, PoissonSampler, Sampler
from dptrain.noise import KeyStream, Mechanism, Source, mechanism_of
from dptrain.record.recorder import Recorder
from dptrain.record.sealed import SealedStore


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
    test_key: bytes | None,
    generator: str = "host",
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
    noise_key = test_key or KeyStream.fresh_master()
    sampling_key = test_key or KeyStream.fresh_master()
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
        sampler = OrderedSampler(Order(policy, recorder.run_id, recorder.admitted_classes()), caps)
        sampler.occurrences[:] = recorder.occurrences()
    sampler.close(pool.indices(recorder.withdrawn()))
    noise = noise_of(policy, recorder.run_id, attempt, noise_key, generator, bits=bits)
    return Streams(noise, sampler, sealed)


def _poisson_sampler(
    recorder: Recorder, sealed: SealedStore, attempt: int, key: bytes, rates: Sequence[Fraction], caps: Sequence[int]
) -> PoissonSampler:
    """Returns the sampler of an attempt; where a cap asks for it, with earlier draws counted and its key sealed."""

    def sampler_of(number: int, key: bytes) -> PoissonSampler:
        return PoissonSampler(KeyStream("sampling", recorder.run_id, number, key), rates, caps)

    sampler = sampler_of(attempt, key)
    if not sampler.capped:
        return sampler
    for past in range(attempt):
        charged = list(recorder.charged_in(past))
        if not charged:
            continue  # an attempt that was never charged has drawn nobody, and may have ended before its key was sealed
        earlier = sampler_of(past, sealed.master(past))
        earlier.occurrences[:] = sampler.occurrences
        for step in charged:
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
