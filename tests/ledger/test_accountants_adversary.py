"""`pld` against contour integrals that share nothing with it, and its error bounds against the worst that they allow for."""

import math
from dataclasses import replace as with_
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant

from ledger.accountants import Phase, gaussian
from ledger.accountants.phases import merged
from ledger.accountants.pld import composed as pld
from ledger.accountants.pld import losses, tilted

MOST = 1 << 22
H = 1e-3


def exponents(s, z, q, direction, order):
    """Log of density times e^(order loss), up to a constant, and the loss; directions: remove, add, replace."""
    rest = math.log1p(-q) if q < 1.0 else -math.inf
    up, down = (np.logaddexp(rest, math.log(q) + sign * s / z - 0.5 / z / z) for sign in (1.0, -1.0))
    weight, loss = ((up, up), (0.0 * up, -up), (up, up - down))[direction]
    return weight + order * loss - 0.5 * s * s, loss


def divergence(phases, epsilon, direction):
    """1/(2 pi i) times the integral of e^(K(t) - t epsilon) / (t (t + 1)) along Re t = a, for any a > 0 (here the saddle)."""

    def tilted_by(order):
        held = []
        for z, q, steps in phases:
            wide = np.linspace(-15.0 - 3.0 / z * (order + 1.0), 15.0 + 3.0 / z * (order + 1.0), 20_001)
            over = wide[exponents(wide, z, q, direction, order)[0] > np.max(exponents(wide, z, q, direction, order)[0]) - 75.0]
            s = np.linspace(over[0], over[-1], 3000)
            e, loss = exponents(s, z, q, direction, order)
            w = np.exp(e - e.max())
            log = float(e.max()) + math.log(float(w.sum()) * (s[1] - s[0]) / math.sqrt(2.0 * math.pi))
            held.append((w / w.sum(), loss, steps, log))
        mean = sum(n * float(w @ loss) for w, loss, n, _ in held)
        variance = sum(n * float(w @ (loss - w @ loss) ** 2) for w, loss, n, _ in held)
        return held, mean, variance

    low, high = math.log(1e-3), math.log(1e4)
    for _ in range(24):
        order = math.exp(0.5 * (low + high))
        low, high = (low, math.log(order)) if tilted_by(order)[1] > epsilon + 1 / order else (math.log(order), high)
    held, _, variance = tilted_by(order)
    step = min(0.25 / math.sqrt(variance + order**-2 + (1.0 + order) ** -2), order / 5.0)
    y = step * np.arange(600)
    logs = sum(n * (np.log(np.exp(1j * np.outer(y, loss - w @ loss)) @ w) + 1j * y * (w @ loss)) for w, loss, n, _ in held)
    values = np.exp(logs - 1j * y * epsilon) / ((order + 1j * y) * (order + 1.0 + 1j * y))
    assert abs(values[-1]) < 1e-9 * abs(values[0]), "the integral has ended"
    log = math.fsum(n * log for _, _, n, log in held) - order * epsilon
    return math.exp(log) * step / math.pi * float(np.sum(values.real) - 0.5 * values.real[0])


SCHEDULES = [
    ((1.0, 0.01, 1000),),
    ((2.0, 0.3, 50),),
    ((12.0, 0.9, 20_000),),
    ((1.5, 0.2, 30), (0.9, 0.05, 100), (6.0, 1.0, 9)),
    ((2.4, 0.002, 36), (1.5, 0.03, 3000), (3.1, 0.6, 13), (1.9, 0.8, 33), (6.8, 0.03, 1300)),
]


@pytest.mark.one_in(9)
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.05])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("replace", [False, True])
def test_the_divergence_at_what_is_returned_is_at_most_delta(schedule, delta, replace):
    epsilon = pld.epsilon_of_phases(merged([Phase(*phase) for phase in schedule]), delta, replace=replace)
    found = max(divergence(schedule, epsilon, direction) for direction in ((2,) if replace else (0, 1)))
    assert found <= delta * (1.0 + 1e-10)
    assert found >= delta * (1.0 - 2e-2), "and tight"


@pytest.mark.one_in(99)
@pytest.mark.parametrize("direction", [0, 1])
def test_each_direction_alone_is_bounded(direction):
    """Adding is left out where removing is shown to cost more, so that no test above sees it alone."""
    for (z, q, steps), delta in (((1.0, 0.05, 400), 1e-6), ((4.0, 0.7, 60), 1e-9)):
        epsilon = tilted.epsilon([(losses.one_step(z, q, 1e-4)[direction], steps)], 1e-4, delta, MOST)
        assert delta * (1.0 - 1e-3) <= divergence([(z, q, steps)], epsilon, direction) <= delta * (1.0 + 1e-10)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(("z", "q"), [(1.0, 0.01), (0.5, 0.6), (7.0, 1.0), (0.7, 1.0 - 1e-15)])
def test_both_worlds_keep_their_mass_on_any_grid(z, q, replace):
    """What is shared between two points adds up under both worlds; shares in the wrong place, or other weights, do not."""
    for interval in (1e-3, 0.07, 0.5):
        for step in losses.one_step(z, q, interval, replace):
            at = (step.lower + np.arange(len(step.probs))) * interval
            assert float(np.sum(step.probs)) == pytest.approx(1.0, abs=1e-13)
            assert float(step.probs @ np.exp(-at)) == pytest.approx(1.0, abs=1e-13)
            assert np.all(step.probs >= 0.0)


@pytest.mark.parametrize("steps", [800, 20_000])
@pytest.mark.parametrize("replace", [False, True])
def test_many_unsampled_steps_beside_sampled_ones_have_a_figure(steps, replace):
    """Losses below -709 of the unsampled part: e^-loss is no double there."""
    delta = 1e-6
    both = pld.epsilon_of_phases((Phase(1.0, 0.01, 1000), Phase(1.0, 1.0, steps)), delta, replace=replace)
    alone = gaussian.epsilon_of_mu((2.0 if replace else 1.0) * math.sqrt(steps), delta)
    assert alone < both <= gaussian.epsilon_of_mu((2.0 if replace else 1.0) * math.sqrt(steps + 1000), delta)
    if not replace:
        assert both < 1.05 * alone


def test_what_is_spent_without_sampling_in_the_millions_is_not_composed(monkeypatch):
    monkeypatch.setattr(losses, "one_step", None)
    pld._steps.cache_clear()
    phases = (Phase(0.25, 1.0, 125_000), Phase(3.5, 0.1, 1000))
    for replace in (False, True):
        both = pld.epsilon_of_phases(phases, 1e-6, replace=replace)
        assert gaussian.epsilon_of_mu((2.0 if replace else 1.0) * math.sqrt(2e6), 1e-6) <= both < 1e7


def test_spread_sums_go_to_a_coarser_grid_and_long_distributions_are_not_kept(monkeypatch):
    phases = (Phase(1.0, 0.3, 3000), Phase(1.1, 0.3, 3000))
    fine = pld.epsilon_of_phases(phases, 1e-6)
    monkeypatch.setattr(pld, "MAX_POINTS", 1 << 18)
    coarse = pld.epsilon_of_phases(phases, 1e-6)
    assert fine <= coarse <= fine * (1.0 + 1e-5)
    monkeypatch.undo()
    kept = pld._steps.cache_info().currsize
    monkeypatch.setattr(pld, "KEPT_POINTS", 1000)
    assert pld.epsilon_of_phases([Phase(0.9, 0.0123, 77)], 1e-6) > 0.0
    assert pld._steps.cache_info().currsize == kept


def cyclic_power(masses, n):
    """n-fold cyclic convolution, exactly: fractions in, integers over 2^(200 n) out."""
    whole = [int(Fraction(float(p)) * 2**200) for p in masses]
    size, result = len(whole), np.array([1] + [0] * (len(whole) - 1), dtype=object)
    for _ in range(n):
        full = np.convolve(result, np.array(whole, dtype=object))
        result = np.append(full[:size], [0] * (2 * size - len(full[:size]) - len(full[size:])))[:size]
        result[: len(full) - size] += full[size:]
    return result, 2 ** (200 * n)


@pytest.mark.parametrize("n", [7, 40])
def test_the_bound_on_a_sum_s_masses_covers_the_worst_transform_of_its_model_and_no_less(monkeypatch, n):
    """All coefficients off by what the model allows, so turned that one mass has all of it: half of the bound would not do."""
    size, spot = 64, 11
    masses = 5e-3 / size * np.random.default_rng(n).random(size)
    masses[5] += 1.0 - math.fsum(masses)
    straight = np.fft.rfft
    allowed = 8.0 * losses.UNIT * math.log2(size)

    def worst(values):
        exact = straight(values)
        turned = np.exp(2j * np.pi * np.arange(len(exact)) * spot / size)
        return exact + allowed / turned / (exact / np.abs(exact)) ** (n - 1)

    monkeypatch.setattr(np.fft, "rfft", worst)
    sums, (most, norm) = tilted._convolved([(tilted._transformed(masses, size), n)], size)
    monkeypatch.undo()
    exact, scale = cyclic_power(masses, n)
    errors = np.array([float(Fraction(float(s)) - Fraction(int(v), scale)) for s, v in zip(sums, exact, strict=True)])
    assert 0.6 * most < np.max(np.abs(errors)) <= most
    assert 0.6 * norm < np.linalg.norm(errors) <= norm


def test_the_euclidean_bound_holds_if_both_transforms_err_the_same_way(monkeypatch):
    """Norms of both errors add up: that of the sum of their bounds, coefficient by coefficient, would be too small."""
    size = 4096
    masses = np.zeros(size)
    masses[:: size // 16] = 1.0 / 16.0
    there, back = np.fft.rfft, np.fft.irfft
    allowed = 8.0 * losses.UNIT * math.log2(size)
    error = np.zeros(size // 2 + 1, dtype=complex)

    def forward(values):
        error[:] = allowed * np.exp(2j * np.pi * np.random.default_rng(0).random(len(error)))
        return there(values) + error

    def inverse(values, count):
        exact, wrong = back(values, count), back(error, count)
        return exact + wrong / np.linalg.norm(wrong) * allowed * np.linalg.norm(exact)

    monkeypatch.setattr(np.fft, "rfft", forward)
    monkeypatch.setattr(np.fft, "irfft", inverse)
    sums, (_, norm) = tilted._convolved([(tilted._transformed(masses, size), 1)], size)
    assert np.linalg.norm(sums - masses) <= norm


@pytest.mark.parametrize("steps", [1, 2, 1000])
def test_masses_that_are_too_small_by_their_slack_are_made_up_for(steps):
    """Exact masses all larger by ``slack`` is what the bound must hold for; epsilon, the short cut and the tail's bound."""
    part, delta = losses.one_step(0.8, 0.05, H)[0], 1e-6
    slack = 1e-2 / steps
    said = [(with_(part, slack=slack), steps)]
    true = [(with_(part, slack=0.0, probs=part.probs * (1.0 + slack)), steps)]
    bare = tilted.epsilon([(part, steps)], H, delta, MOST)
    low, high = (tilted.epsilon(parts, H, delta, MOST) for parts in (true, said))
    assert low - 1e-10 * max(1.0, low) <= high <= low + 1e-5
    assert low > bare + 1e-6, "and it shows"
    tails = [tilted._beyond(parts, H, round(1.5 * bare / H), 5.0, 500.0, tilted.Laws(), 0.0) for parts in (true, said)]
    assert tails[0] * (1.0 - 1e-9) <= tails[1] <= tails[0] * (1.0 + 1e-4)
    edges = []
    for parts in (true, said):
        ends = [bare, 3.0 * bare + 1.0]
        while ends[1] - ends[0] > 1e-8:
            middle = 0.5 * (ends[0] + ends[1])
            ends[tilted.covers(parts, H, delta, middle)] = middle
        edges.append(ends[1])
    assert edges[0] - 1e-5 <= edges[1] <= edges[0] + 2e-3


@pytest.mark.parametrize("after", [0.5, 2.0])
def test_what_lies_outside_the_window_is_counted(monkeypatch, after):
    """A window that ends too soon: its bound may be loose, but is one; so is one that folds both sides in."""
    parts, delta = [(losses.one_step(1.0, 0.05, 1e-2)[0], 200)], 1e-6
    value = tilted.epsilon(parts, 1e-2, delta, MOST)
    monkeypatch.setattr(tilted, "_BEFORE", 1.0)
    monkeypatch.setattr(tilted, "_AFTER", after)
    monkeypatch.setattr(tilted, "_ENOUGH", 1.0)
    monkeypatch.setattr(tilted, "_beyond", lambda *_: 0.5 * delta)
    half = tilted.epsilon(parts, 1e-2, delta, MOST)
    monkeypatch.setattr(tilted, "_beyond", lambda *_: 0.0)
    none = tilted.epsilon(parts, 1e-2, delta, MOST)
    assert half > none + 1e-4
    assert after < 2.0 or half > value


def test_a_tail_s_bound_is_above_the_tail():
    part = losses.one_step(1.0, 0.3, 1e-2)[0]
    sums, _ = tilted._convolved([(tilted._transformed(part.probs, 1 << 17), 30)], 1 << 17)
    for place in (500, 1000, 2000):
        exact = float(np.sum(sums[place - 30 * part.lower :]))
        assert exact <= tilted._beyond([(part, 30)], 1e-2, place, 2.0, 300.0, tilted.Laws(), 0.0)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("point", [(1.0, 0.001, 30, 1e-9), (0.8, 0.001, 30, 1e-5), (0.5, 1e-4, 30, 1e-5)])
def test_what_wraps_round_from_a_far_second_mode_adds_nothing(point):
    """Sums of rarely sampled steps: most of the tilted mass may lie far above epsilon, where a short window cuts it off."""
    z, q, steps, delta = point
    loss = PLDAccountant().compose(PoissonSampledDpEvent(q, GaussianDpEvent(z)), steps)
    assert pld.epsilon_of_phases([Phase(z, q, steps)], delta) == pytest.approx(loss.get_epsilon(delta), rel=3e-6)
