"""An adapter that is applied through its r coordinates: exact without noise, and sqrt(d / r) better with it."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dptrain.errors import ConfigError  # noqa: E402
from dptrain.inference import GaussianRelease, RankSpace, Worth  # noqa: E402
from dptrain.inference.rank_space import shrinkage  # noqa: E402
from tests.inference.test_states import Meter  # noqa: E402

D, R = 1536, 32


@pytest.fixture(scope="module")
def adapter() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.standard_normal((R, D)) / math.sqrt(D), rng.standard_normal((D, R)) / math.sqrt(R)


def test_what_comes_out_is_a_function_of_r_released_numbers(adapter: tuple[np.ndarray, np.ndarray]) -> None:
    A, B = adapter
    space = RankSpace(A, B, scaling=2.0, shrink=0.25)
    h = np.random.default_rng(0).standard_normal(D)
    meter = Meter()
    paid = GaussianRelease(1.0, adjacency="replace_one", delta=1e-5, sigma=4.0, tokens=2).answer(meter)
    found = space.release(paid, h)
    assert found.state.shape == (D,) and found.number == 1 and paid.made == 1 and meter.asked[0][0] == 2
    z = np.linalg.lstsq(0.5 * B, found.state, rcond=None)[0]
    assert np.allclose(0.5 * B @ z, found.state)
    step = 4.0 * 2.0**-32
    assert np.abs(z / step - np.rint(z / step)).max() < 0.05
    assert np.allclose(space.expand(A @ h), 0.25 * 2.0 * B @ A @ h) and space.rank == R


def test_at_equal_guarantee_the_error_is_less_by_the_root_of_d_over_r(adapter: tuple[np.ndarray, np.ndarray]) -> None:
    """38.8 and 5.60 were measured for each unit of noise over clip norm, a gain of 6.9; a clip at the typical norm is meant."""
    A, B = adapter
    rng, errors = np.random.default_rng(1), {"state": [], "rank": []}
    states = rng.standard_normal((120, D))
    clip_h, clip_z = float(np.linalg.norm(states, axis=1).max()), float(np.linalg.norm(states @ A.T, axis=1).max())
    space = RankSpace(A, B)
    for clip, where in ((clip_h, "state"), (clip_z, "rank")):
        paid = GaussianRelease(clip, adjacency="replace_null", delta=1e-5, sigma=clip, tokens=120).answer(Meter())
        for h in states:
            clear = B @ A @ h
            delta = B @ A @ paid.release(h).state if where == "state" else space.release(paid, h).state
            errors[where].append(float(np.linalg.norm(delta - clear) / np.linalg.norm(clear)))
    state = float(np.mean(errors["state"])) / (clip_h / math.sqrt(D))
    rank = float(np.mean(errors["rank"])) / (clip_z / math.sqrt(R))
    assert state == pytest.approx(38.8, rel=0.1) and rank == pytest.approx(5.6, rel=0.1)
    assert state / rank == pytest.approx(math.sqrt(D / R), rel=0.15)


def test_the_factor_is_the_best_there_is_and_goes_to_zero_with_the_budget() -> None:
    rng = np.random.default_rng(5)
    z = rng.standard_normal((4000, 8)) * np.linspace(3.0, 0.5, 8)
    lengths = np.linalg.norm(z, axis=1, keepdims=True)
    clipped = z * np.minimum(1.0, 4.0 / lengths)
    factors = []
    for sigma in (0.1, 1.0, 4.0, 100.0):
        factor = shrinkage(z, Worth(4.0, sigma, 1e-5, 1, "replace_one"))
        near = [share * factor for share in (0.98, 1.0, 1.02)]
        risk = [float(np.mean(np.sum((f * clipped - z) ** 2, 1)) + f * f * 8 * sigma**2) for f in near]
        assert risk[1] < risk[0] and risk[1] < risk[2] and risk[1] < float(np.mean(lengths**2))
        factors.append(factor)
    assert factors == sorted(factors, reverse=True) and factors[0] > 1.0 and factors[-1] < 1e-3


def test_tensors_go_the_way_of_arrays(adapter: tuple[np.ndarray, np.ndarray]) -> None:
    A, B = (torch.from_numpy(each).float() for each in adapter)
    paid = GaussianRelease(1.0, adjacency="replace_one", delta=1e-5, sigma=4.0).answer(Meter())
    found = RankSpace(A, B).release(paid, torch.ones(D)).state
    assert found.shape == (D,) and found.dtype is torch.float32


def test_what_does_not_fit_is_refused(adapter: tuple[np.ndarray, np.ndarray]) -> None:
    A, B = adapter
    with pytest.raises(ConfigError, match=r"ADAPTER: A has shape \(r, d\)"):
        RankSpace(A, B.T)
    for factor in (-1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="SHRINK"):
            RankSpace(A, B, shrink=factor)
    paid = GaussianRelease(1.0, adjacency="replace_one", delta=1e-5, sigma=4.0).answer(Meter())
    with pytest.raises(ConfigError, match=r"STATE: a state has shape \(1536,\)"):
        RankSpace(A, B).release(paid, np.ones(D + 1))
    assert paid.made == 0
    for public in (np.ones(3), np.ones((0, 3)), np.array([[math.nan]])):
        with pytest.raises(ConfigError, match="PUBLIC_STATES"):
            shrinkage(public, paid.worth)
