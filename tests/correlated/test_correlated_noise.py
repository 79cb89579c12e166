"""Correlated noise as it is released: C times the noise is independent, in any parts, in order, and each number once."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dptrain.noise import KeyStream, LatticeGaussian, Step  # noqa: E402
from dptrain.noise.correlated import CorrelatedGaussian, dense, toeplitz  # noqa: E402
from dptrain.noise.correlated.gaussian import MOST_AMPLIFIED, amplified  # noqa: E402
from ledger.accountants.correlated import (  # noqa: E402
    ONCE,
    Banded,
    BandedInverse,
    Buffered,
    Dense,
    Toeplitz,
    identity,
    sensitivity,
)
from ledger.errors import AccountantError  # noqa: E402

N, KEY = 12, b"\x07" * 32
RNG = np.random.default_rng(3)
ROWS = tuple(tuple(row) for row in np.concatenate([np.ones((N, 1)), 0.5 * RNG.random((N, 2))], axis=1))
STRATEGIES = {
    "identity": identity(),
    "half": Toeplitz((0.5,)),
    "banded": Toeplitz(tuple(toeplitz.optimal_coefficients(N, 4))),
    "normalised": Toeplitz(tuple(toeplitz.optimal_coefficients(N, 4)), N),
    "general": Banded(ROWS),
    "not normalised": Banded(ROWS, normalized=False),
    "inverse": BandedInverse(tuple(toeplitz.banded_inverse_square_root(N, 3))),
    "inverse scaled": BandedInverse((2.0, -1.0, -0.25)),
    "buffers": Buffered((0.9, 0.4), (0.3, 0.2)),
    "dense": Dense(np.tril(RNG.random((N, N))) + np.eye(N)),
    "optimum": dense.optimize(N, 4),
}


def noise_of(strategy, steps: int = N) -> CorrelatedGaussian:
    return CorrelatedGaussian(KeyStream("noise", b"run", 0, KEY), strategy, steps)


def streamed(strategy, size: int = 40, std: float = 1.0) -> np.ndarray:
    """The noise of all steps, in units of the deviation, shape (N, size)."""
    mechanism = noise_of(strategy)
    state, found = mechanism.init(()), []
    for step in range(1, N + 1):
        total = torch.zeros(size, dtype=torch.float64)
        found.append(mechanism.release(total, state, Step(step, 3, std, 1.0)).numpy() / std)
    return np.array(found)


def independent(size: int = 40) -> np.ndarray:
    """The normals Z that it is made of, shape (N, size)."""
    plain = LatticeGaussian(KeyStream("noise", b"run", 0, KEY))
    return np.array([plain.normals(step, 3, 0, size).numpy() for step in range(1, N + 1)])


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_noise_is_that_of_the_matrix(name):
    strategy = STRATEGIES[name]
    norm = np.sqrt(strategy.norms_squared(N).max())
    expected = norm * np.linalg.solve(strategy.matrix(N), independent())
    assert np.abs(streamed(strategy) - expected).max() < 1e-9  # a lattice step is 2.3e-10


@pytest.mark.parametrize(
    "strategy",
    [identity(), Toeplitz((0.5,)), Toeplitz((0.5,), N), BandedInverse((1.0,)), Buffered((), ()), Dense(np.eye(N))],
    ids=repr,
)
def test_strategies_without_memory_have_the_bits_of_independent_noise(strategy):
    plain, ours = LatticeGaussian(KeyStream("noise", b"run", 0, KEY)), noise_of(strategy)
    state = ours.init(())
    for step in range(1, 4):
        sums = torch.randn(1000, dtype=torch.float64)
        told = plain.release(sums.clone(), None, Step(step, 0, 0.7, 8.0))
        assert torch.equal(ours.release(sums.clone(), state, Step(step, 0, 0.7, 8.0)), told)
    assert ours.buffers == 0


@pytest.mark.parametrize("name", ["banded", "normalised", "inverse", "buffers", "optimum"])
def test_covariance_over_steps_is_that_of_the_noising_matrix_on_its_left(name):
    """M M^T for M = C^-1, as rows of noise are M Z; M^T M is another matrix."""
    strategy = STRATEGIES[name]
    norm = np.sqrt(strategy.norms_squared(N).max())
    noising = norm * np.linalg.inv(strategy.matrix(N))
    draws = 40_000
    noise = streamed(strategy, draws, std=2.5)
    found, wanted = noise @ noise.T / draws, noising @ noising.T
    scale = np.sqrt(np.outer(np.diagonal(wanted), np.diagonal(wanted)) + wanted**2) / np.sqrt(draws)
    assert np.abs((found - wanted) / scale).max() < 5.0
    other = noising.T @ noising
    assert np.abs((found - other) / scale).max() > 20.0
    whitened = strategy.matrix(N) @ noise / norm
    assert np.abs(whitened @ whitened.T / draws - np.eye(N)).max() < 5.0 * np.sqrt(2.0 / draws)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", STRATEGIES)
def test_bits_do_not_depend_on_the_parts_in_which_a_tensor_comes(name, monkeypatch):
    size = (1 << 16) + 37
    sums = [torch.randn(size, dtype=torch.float64) for _ in range(4)]

    def released(cuts: list[int]) -> torch.Tensor:
        mechanism = noise_of(STRATEGIES[name])
        state, found = mechanism.init(()), []
        for number, total in enumerate(sums, 1):
            parts = []
            for begin, end in pairwise(cuts):
                where = Step(number, 0, 1.3, 4.0, offset=begin, size=size)
                parts.append(mechanism.release(total[begin:end].clone(), state, where))
            found.append(torch.cat(parts))
        return torch.stack(found)

    whole = released([0, size])
    assert torch.equal(released([0, 11, 30_001, size]), whole)
    monkeypatch.setattr("dptrain.noise.correlated.recurrences.BLOCK", 1000)
    assert torch.equal(released([0, size]), whole)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_state_that_was_written_goes_on_as_if_it_had_not(name):
    strategy = STRATEGIES[name]
    whole, first = streamed(strategy), noise_of(strategy)
    state = first.init(())
    for step in range(1, 6):
        first.release(torch.zeros(40, dtype=torch.float64), state, Step(step, 3, 1.0, 1.0))
    kept = {key: tensor.clone() for key, tensor in first.state_dict(state).items()}
    assert sum(tensor.numel() * 8 for key, tensor in kept.items() if key.startswith("buffers")) == first.buffers * 40 * 8
    second = noise_of(strategy)
    again = second.load_state_dict(kept)
    for step in range(6, N + 1):
        total = second.release(torch.zeros(40, dtype=torch.float64), again, Step(step, 3, 1.0, 1.0))
        assert np.array_equal(total.numpy(), whole[step - 1])


def test_what_is_no_state_is_refused():
    mechanism = noise_of(STRATEGIES["banded"])
    good = {"step 0 0": torch.tensor(2), "buffers 0 0": torch.zeros(3, 5, dtype=torch.float64)}
    mechanism.load_state_dict(good)
    for changes, told in (
        ({"step 0 0": None}, "different tensors"),
        ({"buffers 0 0": None}, "different tensors"),
        ({"buffers 0 0": torch.zeros(3, 5)}, "float64"),
        ({"buffers 0 0": torch.zeros(2, 5, dtype=torch.float64)}, "3 buffers"),
        ({"key": torch.zeros(3)}, "no part"),
        ({"step 0 -1": torch.tensor(1)}, "no part"),
    ):
        tensors = {key: tensor for key, tensor in (good | changes).items() if tensor is not None}
        with pytest.raises(ValueError, match=told):
            mechanism.load_state_dict(tensors)


def test_steps_come_in_order_and_end():
    mechanism = noise_of(STRATEGIES["banded"])
    state = mechanism.init(())

    def release(number: int, **where: int) -> None:
        mechanism.release(torch.zeros(8, dtype=torch.float64), state, Step(number, 0, 1.0, 1.0, **where))

    with pytest.raises(ValueError, match="out of turn, expected step 1"):
        release(2)
    release(1)
    with pytest.raises(ValueError, match="out of turn, expected step 2"):
        release(1)
    with pytest.raises(ValueError, match="out of turn, expected step 2"):
        release(3)
    with pytest.raises(ValueError, match="once per step, got 2 draws"):
        release(2, draws=2)
    for number in range(2, N + 1):
        release(number)
    with pytest.raises(ValueError, match="made for 12 steps"):
        release(N + 1)
    with pytest.raises(ValueError, match="comes back with 9"):
        mechanism = noise_of(STRATEGIES["banded"])
        other = mechanism.init(())
        mechanism.release(torch.zeros(8, dtype=torch.float64), other, Step(1, 1, 1.0, 1.0))
        mechanism.release(torch.zeros(9, dtype=torch.float64), other, Step(2, 1, 1.0, 1.0))


@pytest.mark.parametrize("name", STRATEGIES)
def test_no_number_of_noise_comes_twice(name):
    mechanism = noise_of(STRATEGIES[name])
    state, found = mechanism.init(()), []
    for step in range(1, N + 1):
        for lane in range(3):
            total = torch.zeros(500, dtype=torch.float64)
            found.append(mechanism.release(total, state, Step(step, lane, 1.0, 1.0)).numpy())
    assert len(np.unique(np.concatenate(found))) >= 3 * 500 * N - 3  # of 18,000 on a lattice of 2^-32 some may meet


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_rows_of_the_inverse_are_bounded(name):
    strategy = STRATEGIES[name]
    rows = np.sqrt(np.square(np.linalg.inv(strategy.matrix(N))).sum(axis=1))
    bound = amplified(strategy, N)
    assert bound >= rows.max() * (1 - 1e-12)
    if name not in ("normalised", "inverse", "inverse scaled"):
        assert bound == pytest.approx(rows.max())


def test_noise_that_would_leave_the_lattice_is_refused():
    growing = Toeplitz((1.0, 2.5))
    assert amplified(growing, 10) < MOST_AMPLIFIED < amplified(growing, 20)
    with pytest.raises(AccountantError, match="smaller rows") as refused:
        noise_of(growing, 20)
    assert refused.value.code == "STRATEGY"
    with pytest.raises(AccountantError, match="made for 12 steps"):
        noise_of(STRATEGIES["normalised"], N + 1)


def test_column_norms_are_those_of_the_matrix_and_not_of_its_coefficients():
    """A column-normalised strategy whose coefficients have norm 1/2 has no less noise; run past its steps it is refused."""
    scaled = noise_of(Toeplitz((0.5,), N))
    state = scaled.init(())
    noise = scaled.release(torch.zeros(40, dtype=torch.float64), state, Step(1, 3, 1.0, 1.0)).numpy()
    assert np.abs(noise - independent()[0]).max() < 1e-9
    assert sensitivity(Toeplitz((0.5,), N), N, ONCE).value == pytest.approx(1.0)


def test_a_streaming_recurrence_of_ones_own_is_its_matrix():
    def init_multiply(like: np.ndarray) -> np.ndarray:
        return np.zeros_like(like)

    def multiply_next(z: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = z - 0.5 * last
        return x, x

    found = dense.materialized(init_multiply, multiply_next, N)
    assert np.allclose(found.matrix(N), Toeplitz((1.0, 0.5)).matrix(N))
    noise = streamed(found)
    assert np.abs(noise - streamed(Toeplitz((1.0, 0.5)))).max() < 1e-9
    for broken, told in (
        (lambda z, last: (z * 0.0, last), "positive"),
        (lambda z, last: (z * np.nan, last), "finite"),
        (lambda z, last: (z[:-1], last), "shape"),
        (lambda z, last: (z + np.roll(z, 1), last), "lower triangular"),
        (lambda z, last: (z * np.abs(z), last), "not linear"),
        (lambda z, last: z, "does not run"),
    ):
        with pytest.raises(AccountantError, match=told):
            dense.materialized(init_multiply, broken, N)
    with pytest.raises(AccountantError, match="ten digits"):
        Dense(np.eye(3), 2 * np.eye(3))


def test_several_threads_take_turns():
    mechanism, size = noise_of(STRATEGIES["banded"]), 5000
    state, found = mechanism.init(()), {}

    def release(lane: int, step: int) -> None:
        total = torch.zeros(size, dtype=torch.float64)
        found[lane, step] = mechanism.release(total, state, Step(step, lane, 1.0, 1.0))

    with ThreadPoolExecutor(4) as pool:
        for step in range(1, N + 1):
            list(pool.map(partial(release, step=step), range(4)))
    alone = noise_of(STRATEGIES["banded"])
    state = alone.init(())
    for step in range(1, N + 1):
        for lane in range(4):
            total = torch.zeros(size, dtype=torch.float64)
            assert torch.equal(alone.release(total, state, Step(step, lane, 1.0, 1.0)), found[lane, step])


def test_a_state_is_cut_for_other_parts_of_a_tensor_and_one_that_lacks_some_is_refused():
    """Saved by two parts, taken up by three others: the bits of one that was never cut."""
    whole, cut, again = (noise_of(STRATEGIES["banded"]) for _ in range(3))
    states = [noise.init([torch.Size([40])]) for noise in (whole, cut)]
    for step in (1, 2, 3):
        released = [torch.zeros(40, dtype=torch.float64) for _ in range(2)]
        whole.release(released[0], states[0], Step(step, 0, 1.0, 1.0))
        for begin, end in ((0, 13), (13, 40)):
            cut.release(released[1][begin:end], states[1], Step(step, 0, 1.0, 1.0, offset=begin, size=40))
        assert torch.equal(*released)
    kept = cut.state_dict(states[1])
    state = again.load_state_dict(kept)
    assert {key: value.tolist() for key, value in again.state_dict(state).items()} == {
        key: value.tolist() for key, value in kept.items()
    }
    for step in (4, 5):
        released = [torch.zeros(40, dtype=torch.float64) for _ in range(2)]
        whole.release(released[0], states[0], Step(step, 0, 1.0, 1.0))
        for begin, end in ((0, 7), (7, 31), (31, 40)):
            again.release(released[1][begin:end], state, Step(step, 0, 1.0, 1.0, offset=begin, size=40))
        assert torch.equal(*released)
    some = {key: value for key, value in kept.items() if not key.endswith(" 13")}
    lacking = noise_of(STRATEGIES["banded"]).load_state_dict(some)
    with pytest.raises(ValueError, match="has not all of coordinates 7 to 31"):
        noise_of(STRATEGIES["banded"]).release(
            torch.zeros(24, dtype=torch.float64), lacking, Step(4, 0, 1.0, 1.0, offset=7, size=40)
        )
    mixed = dict(kept) | {"step 0 13": torch.tensor(2)}
    with pytest.raises(ValueError, match="different tensors or steps"):
        noise_of(STRATEGIES["banded"]).load_state_dict(mixed)
