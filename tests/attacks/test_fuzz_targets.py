"""The fuzz targets hold for their seeds and for a few hundred mutations each; `make fuzz` goes on from there."""

import random
import time

import pytest

from fuzz.targets import LIMIT, TARGETS, BrokenInvariant, timed


def mutated(rng, data):
    """A few random edits."""
    changed = bytearray(data or b"\x00")
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed))
        changed[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(4))
        changed = changed or bytearray(1)
    return bytes(changed)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_holds_for_its_seeds_and_some_mutations(name):
    rng, target = random.Random(name), TARGETS[name]
    for seed in target.seeds:
        assert len(seed) <= target.longest
        target.run(seed)
    for _ in range(300 if target.seconds == LIMIT else 60):
        target.run(mutated(rng, rng.choice(target.seeds)))


def test_a_slow_input_breaks_an_invariant():
    def slow(data: bytes) -> None:
        end = time.thread_time() + 1.2 * LIMIT
        while time.thread_time() < end:
            pass

    with pytest.raises(BrokenInvariant):
        timed(slow)(b"x")
    timed(lambda data: time.sleep(1.2 * LIMIT))(b"x")  # that another process had the machine is nothing
