"""Canaries whose scores know the correlation: what an attacker sees who reads all releases agrees with what is claimed.

Every coordinate is a world of its own: the canary adds the clip norm to it in the steps of its set, or nothing. The best score
of an attacker is the release, multiplied by C, along C u: all that it can know of the canary, by one number.
"""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dptrain.noise.correlated import Privatizer, blt, dense, toeplitz  # noqa: E402
from ledger import accountants  # noqa: E402
from ledger.accountants.correlated import ONCE, Participation, Toeplitz, identity  # noqa: E402

N, WORLDS, Z, CLIP = 24, 40_000, 3.0, 0.5
DELTA = 1e-5
PERIOD = 6
COLUMN = tuple(toeplitz.optimal_coefficients(N, PERIOD))
STRATEGIES = {
    "independent": identity(),
    "banded": Toeplitz(COLUMN),
    "normalised": Toeplitz(COLUMN, N),
    "buffers": blt.optimize(N, 2),
    "dense": dense.optimize(N),
}


def score(noise: Privatizer, steps: list[int], *, present: bool) -> np.ndarray:
    """The attacker's scores of all worlds, in deviations of its noise."""
    strategy, state = noise.strategy, noise.init(torch.zeros(WORLDS, dtype=torch.float64))
    released = []
    for step in range(N):
        total = torch.full((WORLDS,), CLIP if present and step in steps else 0.0, dtype=torch.float64)
        noisy, state = noise.release(total, state)
        released.append(noisy.numpy())
    matrix = strategy.matrix(N)
    moved = matrix[:, steps].sum(axis=1) * CLIP
    deviation = Z * CLIP * math.sqrt(float(strategy.norms_squared(N).max()))
    return moved @ (matrix @ np.array(released)) / (np.linalg.norm(moved) * deviation)


def seen(strategy, steps: list[int]) -> float:
    """The distance mu between the two worlds that the scores show."""
    with_it, without = (
        score(Privatizer(strategy, steps=N, noise_multiplier=Z, clip_norm=CLIP), steps, present=present)
        for present in (True, False)
    )
    assert abs(without.std() - 1.0) < 0.02 and abs(with_it.std() - 1.0) < 0.02
    return float(with_it.mean() - without.mean())


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", STRATEGIES)
def test_what_canaries_show_is_what_is_claimed_and_no_more(name):
    strategy, participation = STRATEGIES[name], Participation(PERIOD, fixed=True)
    noise = Privatizer(strategy, steps=N, noise_multiplier=Z, clip_norm=CLIP)
    claimed = noise.sensitivity(participation) / Z
    shown = max(seen(strategy, list(range(first, N, PERIOD))) for first in (0, PERIOD - 1))
    error = 4.0 * math.sqrt(2.0 / WORLDS)
    assert claimed - 2 * error < shown < claimed + error
    assert noise.epsilon(DELTA, participation) >= accountants.epsilon(1.0 / (shown - error), 1.0, 1, DELTA)


def test_canaries_refute_a_claim_that_forgets_that_contributions_come_back():
    noise = Privatizer(STRATEGIES["banded"], steps=N, noise_multiplier=Z, clip_norm=CLIP)
    shown = seen(STRATEGIES["banded"], list(range(0, N, PERIOD)))
    assert accountants.epsilon(1.0 / (shown - 0.05), 1.0, 1, DELTA) > noise.epsilon(DELTA, ONCE)


def test_canaries_in_every_step_refute_a_claim_of_bands_apart():
    noise = Privatizer(STRATEGIES["banded"], steps=N, noise_multiplier=Z, clip_norm=CLIP)
    shown = seen(STRATEGIES["banded"], list(range(N)))
    assert accountants.epsilon(1.0 / (shown - 0.05), 1.0, 1, DELTA) > noise.epsilon(DELTA, Participation(PERIOD))
    assert shown < noise.sensitivity(Participation(1)) / Z + 0.05
