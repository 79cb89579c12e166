"""What leaves of a state: clipped in whole numbers, noised with fresh normals on the lattice, and paid for before."""

import copy
import math
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

torch = pytest.importorskip("torch")

from dptrain.errors import ConfigError, NotPaid  # noqa: E402
from dptrain.inference import Answer, GaussianRelease, epsilon_of  # noqa: E402
from dptrain.inference.release import clipped_steps, normal_steps  # noqa: E402
from ledger.errors import AccountantError  # noqa: E402

BITS = 32
MANY = 1 << 30


@dataclass(frozen=True)
class Paid:
    releases: int


@dataclass
class Meter:
    """Grants up to a cap in nano-rho, and keeps what it was asked."""

    cap: int = 1 << 62
    asked: list[tuple[int, str, int]] = field(default_factory=list)

    def reserve(self, releases: int, *, mechanism: str, nano_rho: int) -> Paid:
        if releases * nano_rho > self.cap:
            raise PermissionError("exhausted")
        self.cap -= releases * nano_rho
        self.asked.append((releases, mechanism, nano_rho))
        return Paid(releases)


def answer(sigma: float = 2.0, clip: float = 1.0, tokens: int = MANY) -> Answer:
    return GaussianRelease(clip, adjacency="replace_null", delta=1e-5, sigma=sigma, tokens=tokens).answer(Meter())


def forked(work: Callable[[], bytes]) -> bytes:
    """What a forked child says, at most 1000 bytes."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, work())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    return os.read(reader, 1000)


def within(steps: np.ndarray, clip: float, step: float) -> bool:
    return sum(int(each) ** 2 for each in steps.tolist()) <= (Fraction(clip) / Fraction(step)) ** 2


# ---- the clip


@settings(max_examples=300, deadline=None)
@given(
    arrays.arrays(np.float64, st.integers(1, 40), elements=st.floats(allow_nan=True, allow_infinity=True)),
    st.floats(1e-3, 1e3),
    st.floats(0.02, 1e3),
)
def test_the_norm_of_any_state_is_within_the_clip_norm_in_whole_numbers(values: np.ndarray, clip: float, s: float) -> None:
    step = clip * s * 2.0**-BITS
    steps = clipped_steps(values, clip, step)
    assert np.array_equal(steps, np.rint(steps)) and within(steps, clip, step)


@pytest.mark.parametrize("length", [1, 7, 1536, 100_000])
def test_a_long_state_keeps_its_direction_and_reaches_the_clip_norm(length: int) -> None:
    values = np.random.default_rng(length).standard_normal(length) * 177.0
    step = 0.3 * 2.0**-BITS
    steps = clipped_steps(values, 1.0, step)
    assert within(steps, 1.0, step)
    assert np.linalg.norm(steps) * step == pytest.approx(1.0, rel=1e-6)
    assert np.allclose(steps * step, values / np.linalg.norm(values), atol=1e-9)


def test_a_short_state_is_left_as_it_is_up_to_a_lattice_step() -> None:
    values = np.array([0.3, -0.4, 0.05])
    step = 0.5 * 2.0**-BITS
    assert np.abs(clipped_steps(values, 1.0, step) * step - values).max() < step


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_state_that_is_not_finite_counts_as_none(bad: float) -> None:
    """An error would tell of it; and the release is noise alone."""
    assert not clipped_steps(np.array([1.0, bad, 3.0]), 1.0, 2.0**-BITS).any()
    released = answer().release(np.array([1.0, bad, 3.0])).state
    assert np.isfinite(released).all() and released.all()


def test_states_of_any_size_are_clipped_without_overflow() -> None:
    step = 2.0**-BITS
    for values in ([1e308, 1e308, -1e308], [5e-324, 0.0, 0.0], [1e308, 1e-308, 0.0], [0.0, 0.0, 0.0]):
        assert within(clipped_steps(np.array(values), 1.0, step), 1.0, step)
    assert clipped_steps(np.array([1e308, 0.0]), 1.0, step)[0] == pytest.approx(2.0**BITS, rel=1e-9)


# ---- the noise


@pytest.fixture(scope="module")
def drawn() -> np.ndarray:
    """4000 releases of one state of 25 numbers that the clip shortens, at sigma 2: shape (4000, 25)."""
    paid = answer()
    return np.stack([paid.release(STATE).state for _ in range(4000)])


STATE = np.arange(1.0, 26.0)
CLIPPED = STATE / np.linalg.norm(STATE)


def test_what_leaves_is_the_clipped_state_in_the_mean_and_sigma_squared_in_the_covariance(drawn: np.ndarray) -> None:
    """False alarms about 1e-7 for each of 25 means and 325 covariances; noise that is clipped has another covariance."""
    n = len(drawn)
    noise = drawn - CLIPPED
    assert np.abs(noise.mean(axis=0)).max() * math.sqrt(n) / 2.0 < 5.5
    covariance = noise.T @ noise / n / 4.0
    assert np.abs(np.diag(covariance) - 1.0).max() * math.sqrt(n / 2) < 5.5
    assert np.abs(covariance - np.diag(np.diag(covariance))).max() * math.sqrt(n) < 5.5
    assert abs(float(np.mean(noise**2)) / 4.0 - 1.0) * math.sqrt(noise.size / 2) < 5


def test_noise_is_normal_and_that_of_one_release_says_nothing_of_the_next(drawn: np.ndarray) -> None:
    stats = pytest.importorskip("scipy.stats")
    noise = (drawn - CLIPPED) / 2.0
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-7
    following = (noise[1:] * noise[:-1]).mean() * math.sqrt(noise[1:].size)
    assert abs(following) < 5.5
    assert len(np.unique(noise.ravel())) == noise.size


def test_every_release_is_a_whole_number_of_steps_with_all_its_low_bits_drawn(drawn: np.ndarray) -> None:
    """The leak of Mironov (2012) is a support that depends on the state. Here it is the lattice, whatever the state."""
    step = 2.0 * 2.0**-BITS
    whole = np.rint(drawn / step)
    assert np.array_equal(whole * step, drawn)
    for bits in (1, 4, 8):
        counts = np.bincount(whole.ravel().astype(np.int64) % (1 << bits), minlength=1 << bits)
        expected = drawn.size / (1 << bits)
        chi = float(((counts - expected) ** 2 / expected).sum())
        assert chi < (1 << bits) + 6 * math.sqrt(2 * (1 << bits)) + 20  # false alarms below 1e-7


def test_no_seed_of_any_library_reaches_the_noise() -> None:
    seen = []
    for _ in range(3):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        seen.append(answer().release(np.zeros(4)).state.tobytes())
    assert len(set(seen)) == 3


def test_every_release_has_a_key_of_its_own_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    given_out: list[bytes] = []
    ask = os.urandom

    def urandom(size: int) -> bytes:
        given_out.append(ask(size))
        return given_out[-1]

    monkeypatch.setattr(os, "urandom", urandom)
    paid = answer()
    for made in range(1, 6):
        paid.release(np.zeros(3))
        assert sum(len(each) == 32 for each in given_out) == made
    assert len(set(given_out)) == len(given_out)


@pytest.mark.slow
def test_processes_that_start_alike_and_those_that_are_forked_draw_different_noise() -> None:
    program = "from dptrain.inference.release import normal_steps; print(normal_steps(3).tolist())"
    apart = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120) for _ in range(2)]
    assert all(one.returncode == 0 for one in apart) and apart[0].stdout != apart[1].stdout
    normal_steps(3)
    theirs = forked(lambda: normal_steps(3).tobytes())
    assert len(theirs) == 24 and theirs != normal_steps(3).tobytes()


def test_a_state_longer_than_a_chunk_repeats_nothing() -> None:
    noise = normal_steps((1 << 16) + 1000)
    assert len(noise) == (1 << 16) + 1000 and not np.intersect1d(noise[: 1 << 16], noise[1 << 16 :]).size > 5


# ---- forms of states


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_tensor_comes_back_in_its_form_and_is_left_as_it_was(kind: torch.dtype) -> None:
    state = torch.ones(2, 3, dtype=kind, requires_grad=True)
    released = answer().release(state).state
    assert released.dtype is kind and released.shape == (2, 3) and not released.requires_grad
    assert torch.equal(state, torch.ones(2, 3, dtype=kind)) and not torch.equal(released, state)


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
def test_an_array_comes_back_in_its_form_and_is_left_as_it_was(kind: type) -> None:
    state = np.ones((2, 3), kind)
    released = answer().release(state).state
    assert released.dtype == kind and released.shape == (2, 3) and (state == 1).all()


@pytest.mark.parametrize(
    "state",
    [[1.0, 2.0], 1.0, None, np.ones(3, int), np.ones(3, complex), np.ones(0), torch.ones(3, dtype=torch.int64), torch.ones(0)],
)
def test_what_is_no_state_is_refused_and_not_counted(state: Any) -> None:
    paid = answer(tokens=1)
    with pytest.raises(ConfigError, match="STATE: a state is an array or tensor of floating-point numbers"):
        paid.release(state)
    assert paid.made == 0


# ---- what is paid


def test_an_answer_is_reserved_whole_before_anything_is_released() -> None:
    meter = Meter()
    release = GaussianRelease(1.0, adjacency="replace_one", delta=1e-5, epsilon=8.0, tokens=256)
    assert release.worth.sigma == pytest.approx(19.2, rel=1e-3) and not meter.asked
    paid = release.answer(meter)
    assert meter.asked == [(256, release.worth.mechanism, release.worth.nano_rho)]
    total = 256 * release.worth.nano_rho * 1e-9
    mu = math.sqrt(2.0 * total)
    assert mu == pytest.approx(math.sqrt(256) * 2.0 / release.worth.sigma, rel=1e-6)
    found = paid.release(np.ones(3))
    assert found.number == 1 and found.worth.epsilon == pytest.approx(8.0) and found.worth.releases == 256
    assert "two inputs" in found.worth.sentence and len(meter.asked) == 1


def test_two_inputs_pay_four_times_what_one_against_none_does() -> None:
    paid = {}
    for adjacency in ("replace_null", "replace_one"):
        meter = Meter()
        release = GaussianRelease(3.0, adjacency=adjacency, delta=1e-5, sigma=5.0)
        release.answer(meter)
        paid[adjacency] = meter.asked[0][2]
        assert release.worth.epsilon == epsilon_of(5.0, 1e-5, 3.0 if adjacency == "replace_null" else 6.0)
    assert paid == {"replace_null": 180_000_000, "replace_one": 720_000_000}


def test_no_more_states_leave_than_were_reserved_however_many_threads_ask() -> None:
    paid = answer(tokens=20)

    def ask(_: int) -> bool:
        try:
            paid.release(np.ones(5))
        except NotPaid as refused:
            assert refused.code == "NOT_RESERVED"
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(60))) == 20
    assert paid.made == 20


def test_an_answer_is_counted_in_one_place_and_not_in_copies_of_it() -> None:
    paid = answer(tokens=3)

    def ask() -> bytes:
        try:
            paid.release(np.zeros(3))
        except NotPaid as refused:
            return refused.code.encode()
        return b"released"

    assert forked(ask) == b"OTHER_PROCESS" and ask() == b"released"
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="pickled or copied"):
            duplicate(paid)


@pytest.mark.parametrize("receipt", [None, True, 1, object(), Paid(2), Paid(True), Paid("3")])  # type: ignore[arg-type]
def test_without_a_receipt_of_as_many_there_is_no_answer(receipt: Any) -> None:
    class Gives:
        def reserve(self, releases: int, *, mechanism: str, nano_rho: int) -> Any:
            return receipt

    release = GaussianRelease(1.0, adjacency="replace_one", delta=1e-5, epsilon=1.0, tokens=3)
    with pytest.raises(NotPaid, match="RECEIPT"):
        release.answer(Gives())
    with pytest.raises(NotPaid, match="RECEIPT"):
        Answer(release.worth, Gives())


def test_an_exhausted_budget_refuses_before_there_is_anything_to_release_with() -> None:
    release = GaussianRelease(1.0, adjacency="replace_one", delta=1e-5, epsilon=1.0, tokens=4)
    meter = Meter(cap=4 * release.worth.nano_rho)
    release.answer(meter)
    with pytest.raises(PermissionError, match="exhausted"):
        release.answer(meter)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"sigma": 0.0}, "SIGMA"), ({"sigma": -1.0}, "SIGMA"), ({"sigma": math.inf}, "SIGMA"),
        ({"sigma": 1e-9}, "NOTHING_HIDDEN"),
        ({"epsilon": 1e6}, "NOTHING_HIDDEN"), ({"epsilon": 0.0}, "EPSILON"), ({"epsilon": 1.0, "tokens": 0}, "RELEASES"),
        ({"sigma": 1.0, "tokens": True}, "RELEASES"), ({"sigma": 1.0, "clip": math.inf}, "CLIP_NORM"),
        ({"sigma": 1.0, "clip": 0.0}, "CLIP_NORM"), ({"sigma": 1.0, "adjacency": "none"}, "ADJACENCY"),
        ({"sigma": 1.0, "delta": 0.0}, "DELTA"), ({}, "SIGMA_OR_EPSILON"), ({"sigma": 1.0, "epsilon": 1.0}, "SIGMA_OR_EPSILON"),
        ({"sigma": 1e280, "clip": 1.0}, "SIGMA"),
    ],
)  # fmt: skip
def test_no_option_releases_in_clear(given: dict[str, Any], code: str) -> None:
    with pytest.raises((AccountantError, ConfigError)) as refused:
        GaussianRelease(**{"clip": 1.0, "adjacency": "replace_one", "delta": 1e-5, **given})
    assert refused.value.code == code


def pairs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    yield np.array([1e3, 0.0, 0.0]), np.array([-1e3, 0.0, 0.0])
    yield np.array([5.0, 5.0, 5.0]), -np.array([5.0, 5.0, 5.0])


@pytest.mark.slow
def test_opposite_states_are_told_apart_no_better_than_two_inputs_allow() -> None:
    """The likelihood ratio at 4000 answers a side: more power than mu = 2C/sigma has would show a fault, as less would."""
    sigma, n = 2.0, 4000
    for one, other in pairs():
        paid = answer(sigma=sigma)
        along = one / np.linalg.norm(one)
        hits = sum(float(paid.release(one).state @ along) > 0.0 for _ in range(n)) / n
        false = sum(float(paid.release(other).state @ along) > 0.0 for _ in range(n)) / n
        advantage = math.erf(1.0 / sigma / math.sqrt(2.0))  # Phi(mu/2) - Phi(-mu/2) at mu = 2C / sigma
        assert abs(hits - false - advantage) < 5 * math.sqrt(0.5 / n)
