"""What `pld` computes against exact figures: masses to 30 digits, sums in integers, the transform's model of rounding."""

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest

from ledger.accountants import gaussian
from ledger.accountants.phases import Phase
from ledger.accountants.pld import composed as pld
from ledger.accountants.pld import losses, tilted

MOST = 1 << 24


def density(s):
    return mp.exp(-s * s / 2) / mp.sqrt(2 * mp.pi)


def exact_masses(z, q, interval, replace, place):
    """Mass at the ``place``th point of removing (and of adding), by integrals of hats in e^loss, to 30 digits."""
    z, q, c = mp.mpf(z), mp.mpf(q), 1 / (2 * mp.mpf(z) ** 2)

    def above(s):
        return 1 - q + q * mp.exp(s / z - c)

    def below(s):
        return 1 - q + q * mp.exp(-s / z - c) if replace else mp.mpf(1)

    def where(loss):
        if replace:
            s = z * (loss / 2 + mp.asinh(mp.exp(c) * (1 - q) / q * mp.sinh(loss / 2)))
        elif mp.exp(loss) <= 1 - q:
            return mp.mpf(-losses.SPAN)
        else:
            s = z * (mp.log((mp.exp(loss) - (1 - q)) / q) + c)
        assert mp.almosteq(above(s) / below(s), mp.exp(loss), 1e-25)
        return s

    low, middle, high = (mp.mpf(interval) * (place + k) for k in (-1, 0, 1))
    ends = [min(max(where(x), -losses.SPAN), losses.SPAN + 1 / z) for x in (low, middle, high)]
    up = lambda s: (above(s) - mp.exp(low) * below(s)) / (mp.exp(middle) - mp.exp(low)) * density(s)  # noqa: E731
    down = lambda s: (mp.exp(high) * below(s) - above(s)) / (mp.exp(high) - mp.exp(middle)) * density(s)  # noqa: E731
    mass = mp.quad(up, mp.linspace(ends[0], ends[1], 9)) + mp.quad(down, mp.linspace(ends[1], ends[2], 9))
    return mp.exp(middle) * mass, mass


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("z", "q", "interval", "replace"),
    [
        (1.0, 0.01, 1e-3, False),
        (0.5, 0.3, 0.05, False),
        (4.0, 1e-3, 1e-4, False),
        (2.0, 1.0, 1e-2, False),
        (1.0, 0.2, 0.02, True),
    ],
)
def test_the_masses_of_one_step_are_what_they_are_said_to_be(z, q, interval, replace):
    steps = losses.one_step(z, q, interval, replace)
    removing = steps[0]
    with mp.workdps(40):
        low = removing.lower
        held = [place for place in range(low, low + len(removing.probs)) if removing.probs[place - low] > 1e-25]
        for place in sorted({held[1], held[2], -1, 0, 1, 3, held[-1] // 2} & set(held)):
            found = removing.probs[place - low]
            removed, added = exact_masses(z, q, interval, replace, place)
            # A shift of the grid's points by `shift` moves masses by that over the interval, beside their own slack.
            allowed = removing.slack + 4.0 * removing.shift / interval
            assert found > 0.0 and abs(float(found / removed - 1)) <= allowed, place
            if not replace:
                assert abs(float(steps[1].probs[-place - steps[1].lower] / added - 1)) <= allowed, place


@pytest.mark.parametrize("q", [1e-3, 0.05, 0.7, 1.0])
@pytest.mark.parametrize("z", [0.4, 1.0, 6.0])
def test_one_step_dominates_the_closed_form_in_both_directions(z, q):
    """Up to rounding no divergence on the grid is below the mechanism's, and none above it by more than the grid explains."""
    interval = 1e-3
    c = 0.5 / z / z
    for direction, step in enumerate(losses.one_step(z, q, interval)):
        at_points = (step.lower + np.arange(len(step.probs))) * interval
        for epsilon in (-0.0995, -0.0123, 0.0, 0.00031, 0.0507, 0.4444, 2.2222):
            with mp.workdps(30):
                ratio = (mp.exp(epsilon if direction == 0 else -epsilon) - (1 - mp.mpf(q))) / q
                s = z * (mp.log(ratio) + c) if ratio > 0 else mp.mpf("-inf")
                null, shifted = mp.ncdf(s), mp.ncdf(s - 1 / mp.mpf(z))
                mixed = (1 - mp.mpf(q)) * null + q * shifted
                exact = 1 - mixed - mp.exp(epsilon) * (1 - null) if direction == 0 else null - mp.exp(epsilon) * mixed
                exact = float(max(exact, 0))
            over = at_points > epsilon
            found = step.infinity + float(step.probs[over] @ -np.expm1(epsilon - at_points[over]))
            assert found >= exact * (1.0 - 1e-9) - 1e-25, (direction, epsilon)
            assert found <= exact + interval, (direction, epsilon)


def power(masses, n):
    """n-fold convolution of integers, exactly."""
    result = np.array([1], dtype=object)
    for _ in range(n):
        result = np.convolve(result, masses)
    return result


def exact_divergence(parts, interval, epsilon):
    """The divergence at epsilon of the sum, of masses as they are, in integers and then 60 digits."""
    bits, total, lower = 0, np.array([1], dtype=object), 0
    for part, steps in parts:
        whole = np.array([int(Fraction(float(p)) * 2**400) for p in part.probs], dtype=object)
        total = np.convolve(total, power(whole, steps))
        bits += 400 * steps
        lower += steps * part.lower
    with mp.workdps(60):
        h, at, value = mp.mpf(interval), mp.mpf(epsilon), mp.mpf(0)
        for place, mass in enumerate(total, start=lower):
            if place * h > at and mass:
                value += (1 - mp.exp(at - place * h)) * mp.mpf(mass)
        return value / mp.mpf(2) ** bits


@pytest.mark.one_in(6)
@pytest.mark.parametrize("delta", [1e-3, 1e-12, 1e-20])
@pytest.mark.parametrize("case", [((1.0, 0.1, 8),), ((0.8, 0.02, 5), (2.0, 0.5, 4))])
@pytest.mark.parametrize("direction", [0, 1])
def test_the_bound_holds_against_sums_in_integers_and_is_tight(case, delta, direction):
    """Without the tilt a transform loses 1e-16, and could say nothing at all of a delta of 1e-20."""
    interval = 0.1
    parts = [(losses.one_step(z, q, interval)[direction], steps) for z, q, steps in case]
    epsilon = tilted.epsilon(parts, interval, delta, MOST)
    at = epsilon - math.fsum(steps * part.shift for part, steps in parts)
    exact = exact_divergence(parts, interval, at) + math.fsum(steps * part.infinity for part, steps in parts)
    assert exact <= delta, "a bound"
    assert epsilon == 0.0 or exact >= delta * (1.0 - 1e-4), "and hardly more than that"
    assert exact >= delta * (1.0 - 1e-7) or epsilon < 1e-6 or delta < 1e-12


@pytest.mark.parametrize("delta", [1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize(("z", "steps"), [(2000.0, 10**6), (200.0, 20_000), (5.0, 50)])
def test_many_steps_nearly_unsampled_never_fall_below_the_closed_form(z, steps, delta):
    """At a million steps and 1e-12 dp-accounting's own composition says 0.3 less than is true."""
    interval = 1e-4
    exact = gaussian.epsilon_of_mu(math.sqrt(steps) / z, delta)
    for part in losses.one_step(z, 1 - 1e-13, interval):
        found = tilted.epsilon([(part, steps)], interval, delta, MOST)
        assert exact * (1.0 - 1e-9) <= found <= exact * (1.0 + (5e-3 if steps == 10**6 else 1e-4))


@pytest.mark.parametrize("size", [1 << 4, 1 << 9, 1 << 12])
def test_the_transform_rounds_less_than_its_model(size):
    """Every coefficient is off by at most 8 u log2(size) for masses that add up to 1, here against 30 digits."""
    rng = np.random.default_rng(size)
    for masses in (rng.random(size), np.exp(-0.5 * np.arange(size)), np.eye(1, size, size // 3)[0]):
        masses = masses / math.fsum(masses)
        found = np.fft.rfft(masses)
        back = np.fft.irfft(found, size)
        allowed = 8.0 * losses.UNIT * math.log2(size)
        with mp.workdps(25):
            for k in (1, 2, size // 5):
                turn = -2j * mp.pi * k / size
                exact = mp.fsum(mp.mpf(float(p)) * mp.exp(turn * j) for j, p in enumerate(masses) if p > 0.0)
                assert abs(complex(found[k]) - exact) <= allowed
        assert np.max(np.abs(back - masses)) <= allowed * (1.0 + float(np.sum(np.abs(found))) * 2.0 / size)


CASES = [(1.0, 0.01, 1000, 1e-6), (0.8, 0.002, 100_000, 1e-6), (20.0, 0.2, 1000, 1e-9), (5.0, 1e-4, 20_000, 1e-11)]


@pytest.mark.parametrize(("z", "q", "steps", "delta"), CASES)
def test_other_transforms_and_tilts_move_epsilon_by_less_than_an_auditor_allows(monkeypatch, z, q, steps, delta):
    """Another machine: longer transforms, another tilt, all coefficients off by all that the model allows."""
    parts = [(losses.one_step(z, q, 1e-4)[0], steps)]
    value = tilted.epsilon(parts, 1e-4, delta, MOST)
    found = []
    with monkeypatch.context() as patch:
        patch.setattr(tilted, "_AFTER", 24.0)
        found.append(tilted.epsilon(parts, 1e-4, delta, MOST))
    tilt = tilted._tilt_for(parts, 1e-4, delta)
    for factor in (0.9, 1.1):
        with monkeypatch.context() as patch:
            patch.setattr(tilted, "_tilt_for", lambda *_, factor=factor: tilt * factor)
            found.append(tilted.epsilon(parts, 1e-4, delta, MOST))
    straight, rng = np.fft.rfft, np.random.default_rng(1)

    def rounded(values):
        exact = straight(values)
        return exact + 8.0 * losses.UNIT * math.log2(len(values)) * np.exp(2j * np.pi * rng.random(len(exact)))

    with monkeypatch.context() as patch:
        patch.setattr(np.fft, "rfft", rounded)
        found.append(tilted.epsilon(parts, 1e-4, delta, MOST))
    assert max(found) - min(found) < 1e-6 and abs(found[0] - value) < 4e-7
    assert all(abs(other - value) < 5e-7 for other in found), found


@pytest.mark.parametrize(("z", "q", "steps", "delta"), CASES)
def test_the_bound_without_a_transform_says_nothing_that_is_not_so(z, q, steps, delta):
    for part in losses.one_step(z, q, 1e-4):
        parts = [(part, steps)]
        value = tilted.epsilon(parts, 1e-4, delta, MOST)
        assert not tilted.covers(parts, 1e-4, delta, value * (1.0 - 1e-6))
        assert tilted.covers(parts, 1e-4, delta, 2.0 * value + 1.0)


def test_both_directions_count(monkeypatch):
    """Where adding costs more than removing (it hardly ever does), that is what is said."""
    monkeypatch.setattr(pld, "_steps", lambda *arguments: losses.one_step(*arguments)[::-1])
    swapped = pld.epsilon_of_phases([Phase(1.0, 0.01, 1000)], 1e-6)
    monkeypatch.undo()
    assert swapped == pld.epsilon_of_phases([Phase(1.0, 0.01, 1000)], 1e-6)
