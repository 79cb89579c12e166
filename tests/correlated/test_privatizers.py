"""Noise by itself: nested tensors of any type, one state for one release, and epsilon of the whole."""

import copy
import math
import pickle
from collections import namedtuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dptrain.errors import ConfigError, NotPrivateUse  # noqa: E402
from dptrain.noise import KeyStream, LatticeGaussian, Step  # noqa: E402
from dptrain.noise.correlated import Privatizer, dense, toeplitz  # noqa: E402
from ledger import accountants  # noqa: E402
from ledger.accountants.correlated import ONCE, BandedInverse, Buffered, Participation, Toeplitz, identity, sensitivity  # noqa: E402
from ledger.errors import AccountantError  # noqa: E402

N, KEY = 8, b"\x05" * 32
BANDED = Toeplitz(tuple(toeplitz.optimal_coefficients(N, 3)))
Pair = namedtuple("Pair", "weight bias")


def privatizer(strategy=BANDED, **changes) -> Privatizer:
    return Privatizer(strategy, **({"steps": N, "noise_multiplier": 1.5, "clip_norm": 2.0, "key": KEY} | changes))


def test_an_optimizer_steps_on_what_it_returns():
    model = torch.nn.Linear(3, 2)
    model.bias.requires_grad = False
    noise = Privatizer(BANDED, steps=N, noise_multiplier=0.5)
    state, optimizer = noise.init(model), torch.optim.SGD(model.parameters(), lr=0.1)
    assert state.form == (("weight", (2, 3)),)
    before = model.weight.detach().clone()
    for _ in range(N):
        noisy, state = noise.release({"weight": torch.zeros(2, 3)}, state)
        model.weight.grad = noisy["weight"]
        optimizer.step()
    assert state.step == N and not torch.equal(model.weight, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_types_and_forms_stay_and_noise_is_drawn_in_float64(dtype):
    sums = {
        "a": torch.randn(4, 5).to(dtype),
        "b": [torch.randn(3).to(dtype), (torch.randn(()).to(dtype),)],
        "c": Pair(torch.randn(5, 4).to(dtype).t(), torch.zeros(0, dtype=dtype)),
    }
    before = sums["a"].clone()
    noise = privatizer()
    noisy, state = noise.release(sums, noise.init(sums))
    assert type(noisy["c"]) is Pair and type(noisy["b"][1]) is tuple and noisy["c"].weight.shape == (4, 5)
    assert noisy["a"].dtype is dtype and noisy["c"].bias.shape == (0,) and torch.equal(sums["a"], before)
    plain = LatticeGaussian(KeyStream("noise", b"alone", 0, KEY)).normals(1, 0, 0, 20).view(4, 5)
    expected = sums["a"].double() + 3.0 * noise._noise.norm * plain
    if dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(noisy["a"], expected.to(dtype))  # rounded once, the sum and its noise together
    assert (noisy["a"].double() - expected).abs().max() <= 1e-8 + torch.finfo(dtype).eps * expected.abs().max()
    assert state.kept.buffers[0, 0].dtype is torch.float64 and state.kept.buffers[0, 0].shape == (2, 20)


def test_bfloat16_sums_get_noise_of_more_than_its_values():
    noise = privatizer(steps=N)
    state = noise.init(torch.zeros(200_000, dtype=torch.bfloat16))
    noisy, _ = noise.release(torch.zeros(200_000, dtype=torch.bfloat16), state)
    scaled = noisy.double() / (3.0 * noise._noise.norm)
    assert scaled.abs().max() > 4.0 and abs(float(scaled.std()) - 1.0) < 0.01 and len(noisy.unique()) > 1000


def test_the_result_is_the_sum_and_one_element_of_noise():
    """Equal noise whatever the sum: each output is its own input and noise that depends on the address alone."""
    sums = torch.randn(300, dtype=torch.float64)
    zeros = [privatizer(), privatizer()]
    states = [noise.init(sums) for noise in zeros]
    for step in range(N):
        with_sums, states[0] = zeros[0].release(sums * step, states[0])
        alone, states[1] = zeros[1].release(torch.zeros_like(sums), states[1])
        assert (with_sums - alone - sums * step).abs().max() < 1e-8


def test_scaling_the_deviation_is_scaling_the_strategy():
    sums = torch.zeros(100, dtype=torch.float64)
    found = []
    for strategy, multiplier in ((BANDED, 1.5), (BANDED, 3.0), (Toeplitz(tuple(4.0 * c for c in BANDED.coefficients)), 1.5)):
        noise = privatizer(strategy, noise_multiplier=multiplier)
        found.append(noise.release(sums, noise.init(sums))[0])
    assert (2 * found[0] - found[1]).abs().max() < 1e-8 and (found[0] - found[2]).abs().max() < 1e-8


def test_a_state_is_good_for_one_release():
    noise = privatizer()
    first = noise.init(torch.zeros(3))
    _, second = noise.release(torch.zeros(3), first)
    with pytest.raises(NotPrivateUse, match="tell their difference"):
        noise.release(torch.ones(3), first)
    noise.release(torch.zeros(3), second)
    for again in (lambda: noise.init(torch.zeros(3)), lambda: noise.load_state_dict(noise.state_dict(second))):
        with pytest.raises(NotPrivateUse) as refused:
            again()
        assert refused.value.code == "STATE_SPENT"
    assert "kept" not in repr(second) and "key" not in repr(noise).lower()
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            copied(second)


def test_two_states_of_one_privatizer_are_not_both_released_from():
    noise = privatizer()
    one, other = noise.init(torch.zeros(3)), noise.init(torch.zeros(3))
    noise.release(torch.zeros(3), one)
    with pytest.raises(NotPrivateUse, match="one Privatizer is one run"):
        noise.release(torch.ones(3), other)
    with pytest.raises(ConfigError, match="no state to go on from"):
        privatizer().release(torch.zeros(3), one)


def test_a_release_that_fails_half_way_spends_the_state(monkeypatch):
    noise = privatizer()
    state = noise.init([torch.zeros(3), torch.zeros(3)])
    release, calls = noise._noise.release, []

    def failing(*given):
        calls.append(given)
        if len(calls) == 2:
            raise MemoryError
        return release(*given)

    monkeypatch.setattr(noise._noise, "release", failing)
    with pytest.raises(MemoryError):
        noise.release([torch.zeros(3), torch.zeros(3)], state)
    with pytest.raises(NotPrivateUse):
        noise.release([torch.ones(3), torch.ones(3)], state)
    with pytest.raises(NotPrivateUse, match="save the one that release returned"):
        noise.state_dict(state)
    again = noise._noise.init(())
    with pytest.raises(ValueError, match="contiguous"):
        release(torch.zeros(3, 2, dtype=torch.float64).t(), again, Step(1, 5, 1.0, 1.0))
    for number in (0, 1, 2):
        with pytest.raises(ValueError, match="failed half-way"):
            release(torch.zeros(6, dtype=torch.float64), again, Step(number, 5, 1.0, 1.0))
    with pytest.raises(ValueError, match="failed half-way"):
        noise._noise.state_dict(again)


def test_keys_are_fresh_and_long():
    sums = torch.zeros(50, dtype=torch.float64)
    drawn = []
    for _ in range(3):
        noise = privatizer(key=None)
        drawn.append(noise.release(sums, noise.init(sums))[0])
        assert len(noise._noise._stream.master) == 32
    assert not any(torch.equal(drawn[i], drawn[j]) for i in range(3) for j in range(i))
    torch.manual_seed(0), np.random.seed(0)
    one = privatizer(key=None)
    torch.manual_seed(0), np.random.seed(0)
    two = privatizer(key=None)
    assert not torch.equal(one.release(sums, one.init(sums))[0], two.release(sums, two.init(sums))[0])


RESUMED = {
    "banded": BANDED,
    "normalised": Toeplitz(BANDED.coefficients, N),
    "independent": identity(),
    "inverse": BandedInverse((1.0, -0.5, -0.125)),
    "buffers": Buffered((0.9,), (0.3,)),
    "dense": dense.optimize(N),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("stops", [(1,), (4,), (2, 5, 6)])
@pytest.mark.parametrize("name", RESUMED)
def test_a_run_that_goes_on_elsewhere_has_the_covariance_of_one_that_stays(name, stops):
    """Every process has a key of its own: C times the noise is independent still, of a dense strategy too."""
    strategy, worlds = RESUMED[name], 30_000
    sums = {"a": torch.zeros(worlds, dtype=torch.float64)}
    noise = privatizer(strategy, key=None)
    state, found = noise.init(sums), []
    for step in range(N):
        if step in stops:
            held = {name: tensor.clone() for name, tensor in noise.state_dict(state).items()}
            noise = privatizer(strategy, key=None)
            state = noise.load_state_dict(held)
        noisy, state = noise.release(sums, state)
        found.append(noisy["a"].numpy())
    whitened = strategy.matrix(N) @ np.array(found) / (3.0 * noise._noise.norm)
    assert np.abs(whitened @ whitened.T / worlds - np.eye(N)).max() < 5.0 * math.sqrt(2.0 / worlds)
    keys = [name for name in noise.state_dict(state) if name.startswith("key ")]
    assert len(keys) == (len(stops) + 1 if name == "dense" else 0)


def test_a_saved_state_is_a_copy():
    noise = privatizer()
    state = noise.init(torch.zeros(5))
    _, state = noise.release(torch.zeros(5), state)
    held = noise.state_dict(state)
    before = {name: tensor.clone() for name, tensor in held.items()}
    other = privatizer(key=None)
    again = other.load_state_dict(held)
    noise.release(torch.zeros(5), state)
    assert all(torch.equal(held[name], before[name]) for name in held)
    other.release(torch.zeros(5), again)
    assert all(torch.equal(held[name], before[name]) for name in held)


def test_a_key_does_not_come_back_by_a_third_hand():
    first, second = privatizer(), privatizer(key=None)
    _, state = first.release(torch.zeros(5), first.init(torch.zeros(5)))
    passed = second.state_dict(second.load_state_dict(first.state_dict(state)))
    with pytest.raises(NotPrivateUse, match="had the key of this Privatizer already"):
        privatizer().load_state_dict(passed)


def test_states_of_others_are_refused():
    noise = privatizer()
    state = noise.init(torch.zeros(5))
    _, state = noise.release(torch.zeros(5), state)
    held = noise.state_dict(state)
    near = Toeplitz((*BANDED.coefficients[:-1], BANDED.coefficients[-1] * 0.999))
    with pytest.raises(ConfigError, match="another strategy"):
        privatizer(near, key=None).load_state_dict(held)
    fresh = privatizer(key=None)
    assert fresh.load_state_dict(held).step == 1
    for changes in ({"steps": N - 1}, {"noise_multiplier": 5.0}, {"clip_norm": 1.0}):
        with pytest.raises(ConfigError, match="noise multiplier or clip norm"):
            privatizer(key=None, **changes).load_state_dict(held)
    for strategy in (identity(), Toeplitz(BANDED.coefficients, N)):
        with pytest.raises(ConfigError, match="another strategy"):
            privatizer(strategy, key=None).load_state_dict(held)
    with pytest.raises(NotPrivateUse, match="make one without `key`"):
        privatizer().load_state_dict(held)
    for changes, told in (
        ({"step": None}, "no state"),
        ({"step": torch.tensor(2)}, "other tensors or steps"),
        ({"buffers 0 0": torch.zeros(2, 6, dtype=torch.float64)}, "other tensors or steps"),
        ({"buffers 0 0": None, "step 0 0": None}, "other tensors or steps"),
        ({"shape 0": torch.tensor([6])}, "other tensors or steps"),
        ({"buffers 0 0": torch.zeros(2, 5)}, "float64"),
        ({"form 0": None}, "no state"),
    ):
        tensors = {name: tensor for name, tensor in (held | changes).items() if tensor is not None}
        with pytest.raises(ConfigError, match=told):
            privatizer(key=None).load_state_dict(tensors)
    whole = privatizer(RESUMED["dense"])
    _, state = whole.release(torch.zeros(5), whole.init(torch.zeros(5)))
    held = whole.state_dict(state)
    with pytest.raises(ConfigError, match="lacks the keys"):
        tensors = {name: tensor for name, tensor in held.items() if not name.startswith("key ")}
        privatizer(RESUMED["dense"], key=None).load_state_dict(tensors)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"a": torch.zeros(4)}, r"'a': got shape \(4,\), expected shape \(3,\)"),
        ({"a": torch.zeros(3), "b": torch.zeros(3)}, "'b': got shape .* expected no such tensor"),
        ({"b": torch.zeros(3)}, "'a': got no such tensor"),
        ([torch.zeros(3)], "'a': got no such tensor"),
        ({"a": None}, "a: got NoneType, .* zeros for no gradient"),
        (torch.nn.Linear(3, 1).parameters(), "list()"),
        ({"a": torch.zeros(3, dtype=torch.int64)}, "real numbers"),
    ],
)
def test_other_sums_are_refused_and_the_state_is_good_still(given, told):
    noise = privatizer()
    state = noise.init({"a": torch.zeros(3)})
    with pytest.raises(ConfigError, match=told):
        noise.release(given, state)
    assert not state.spent
    noise.release({"a": torch.zeros(3)}, state)


def test_tensors_are_known_by_name_and_not_by_place():
    noise, other = privatizer(), privatizer()
    form = {"a": torch.zeros(3), "b": torch.zeros(3)}
    states = [noise.init(form), other.init(form)]
    one, _ = noise.release(form, states[0])
    turned, _ = other.release({"b": form["b"], "a": form["a"]}, states[1])
    assert list(turned) == ["b", "a"] and all(torch.equal(one[name], turned[name]) for name in form)
    with pytest.raises(ConfigError, match="a name of its own"):
        privatizer().init({"a.b": torch.zeros(3), "a": {"b": torch.zeros(3)}})


def test_a_sum_that_lies_over_processes_is_refused():
    class DTensor(torch.Tensor):
        pass

    noise = privatizer()
    state = noise.init(torch.zeros(3))
    with pytest.raises(ConfigError) as refused:
        noise.release(torch.zeros(3).as_subclass(DTensor), state)
    assert refused.value.code == "NOISE_SHARDED"


def test_no_step_behind_the_last():
    noise = privatizer()
    state = noise.init(torch.zeros(3))
    for _ in range(N):
        _, state = noise.release(torch.zeros(3), state)
    held = noise.state_dict(state)
    other = privatizer(key=None)
    for one, again in ((noise, state), (other, other.load_state_dict(held))):
        with pytest.raises(ConfigError, match="all 8 steps are released"):
            one.release(torch.zeros(3), again)


@pytest.mark.parametrize(
    "changes", [{"noise_multiplier": 0.0}, {"noise_multiplier": -1.0}, {"clip_norm": math.inf}, {"key": b"k"}]
)
def test_bad_numbers_are_refused(changes):
    with pytest.raises(ConfigError):
        privatizer(**changes)
    with pytest.raises(ConfigError, match="no tensor"):
        privatizer().init({})


def test_epsilon_is_that_of_one_gaussian_of_the_sensitivity():
    delta = 1e-5
    assert privatizer().epsilon(delta, ONCE) == pytest.approx(accountants.epsilon(1.5, 1.0, 1, delta), rel=1e-3)
    plain = privatizer(identity())
    assert plain.epsilon(delta, Participation(1)) == pytest.approx(accountants.epsilon(1.5, 1.0, N, delta), rel=1e-3)
    three, scaled = Participation(3), privatizer(Toeplitz(BANDED.coefficients, N))
    assert scaled.sensitivity(three) == pytest.approx(math.sqrt(3))
    assert privatizer().sensitivity(three) < scaled.sensitivity(three)  # its last columns are cut off
    assert scaled.epsilon(delta, three) == pytest.approx(accountants.epsilon(1.5, 1.0, 3, delta), rel=1e-3)
    assert scaled.epsilon(delta, three) >= accountants.epsilon(1.5, 1.0, 3, delta)
    dearer = privatizer().epsilon(delta, Participation(1))
    assert dearer > privatizer().epsilon(delta, Participation(2)) > privatizer().epsilon(delta, three)
    assert privatizer().epsilon(delta, ONCE, lost=[(2, 4)]) > privatizer().epsilon(delta, ONCE)
    for lost in ([(4, 2)], [(2, 2)], [(-1, 2)], [(2, N + 1)]):
        with pytest.raises(AccountantError, match="lost steps"):
            privatizer().epsilon(delta, ONCE, lost=lost)
    with pytest.raises(AccountantError, match="Participation"):
        privatizer().epsilon(delta, 3)
    told = privatizer()
    told.init(torch.zeros(7))
    assert told.epsilon(delta, ONCE) < privatizer().epsilon(delta, ONCE) == told.epsilon(delta, ONCE, coordinates=1 << 40)
    for factor in (7.0, 0.1):
        scaled = Toeplitz(tuple(factor * c for c in BANDED.coefficients))
        assert privatizer(scaled).epsilon(delta, Participation(2)) == pytest.approx(
            privatizer().epsilon(delta, Participation(2))
        )
    one, both = (privatizer().epsilon(delta, ONCE, lost=lost) for lost in ([(2, 4)], [(2, 4), (2, 4)]))
    assert both > one
    wide = privatizer(identity(), noise_multiplier=64.0)
    margin = 1.0 + 64.0 * 2.0**20 * 2.0**-32
    assert wide.epsilon(delta, ONCE, coordinates=1 << 40) == pytest.approx(
        accountants.epsilon(64.0 / margin, 1.0, 1, delta), rel=1e-6
    )
    with pytest.raises(ConfigError, match="1 coordinate or more"):
        wide.epsilon(delta, ONCE, coordinates=-1)


def test_ignoring_that_contributions_come_back_would_understate():
    """Shows it for six bands and a contribution in every step: by a factor above two."""
    strategy = Toeplitz(tuple(toeplitz.optimal_coefficients(24, 6)))
    once, often = (sensitivity(strategy, 24, participation).value for participation in (ONCE, Participation(1)))
    assert often > 2 * math.sqrt(24) * once


def test_banded_noise_at_equal_epsilon_is_better_over_a_long_run():
    n, period = 128, 16
    best = Toeplitz(tuple(toeplitz.optimal_coefficients(n, period)))
    participation = Participation(period)
    energy = {
        strategy: sensitivity(strategy, n, participation).value ** 2 * toeplitz.error(np.array(strategy.coefficients), n)
        for strategy in (identity(), best)
    }
    assert energy[best] < 0.15 * energy[identity()]
    assert Step(1, 0, 1.0, 1.0).draws == 1
