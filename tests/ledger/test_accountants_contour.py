"""The short sum of `pld` against the transform, against 25 digits, and against every bound that it states on itself."""

import math
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest

from ledger.accountants import Phase, renyi
from ledger.accountants.pld import composed as pld
from ledger.accountants.pld import contour, losses, tilted
from ledger.accountants.pld import contour as sampled
from ledger.accountants.pld.contour import Step

INTERVAL = pld.INTERVAL
CASES = [
    (1.234, 0.01, 1000, 1e-6),
    (1.234, 0.01, 10_000, 1e-6),
    (3.21, 0.02, 40, 1e-6),
    (20.0, 0.2, 1000, 1e-9),
    (1.0, 0.5, 64, 1e-6),
    (2.0, 0.02, 100_000, 1e-6),
    (0.787, 0.0176, 13_146, 1e-6),
    (2.218, 0.0119, 93, 1e-10),
    (0.941, 0.00908, 169, 2e-12),
    (8.15, 0.0164, 68_878, 1e-10),
]


def by_transform(held, delta):
    """Both directions on the grid of losses."""
    directions = zip(*(losses.one_step(z, q, INTERVAL) for z, q, _ in held), strict=True)
    parts = [[(part, steps) for part, (_, _, steps) in zip(own, held, strict=True)] for own in directions]
    return max(tilted.epsilon(own, INTERVAL, delta, pld.MAX_POINTS) for own in parts)


@pytest.mark.one_in(7)
@pytest.mark.parametrize(("z", "q", "steps", "delta"), CASES)
def test_the_short_sum_says_what_the_transform_says(z, q, steps, delta):
    """A Gaussian of interval^2 / 6 per step is what the grid adds; without it the figures would be apart by more."""
    found = contour.epsilon([(z, q, steps)], 0.0, INTERVAL, delta)
    assert found == pytest.approx(by_transform([(z, q, steps)], delta), abs=4e-7)
    without = contour.epsilon([(z, q, steps)], 0.0, 1e-9, delta)
    assert without == math.inf or without < found


def test_phases_and_a_gaussian_beside_them_compose_alike():
    held, delta = [(1.1, 0.02, 300), (2.5, 0.02, 4000), (9.0, 0.02, 800)], 1e-7
    assert contour.epsilon(held, 0.0, INTERVAL, delta) == pytest.approx(by_transform(held, delta), abs=4e-7)
    beside = by_transform([*held, (1.0 / 0.7, 1.0, 1)], delta)
    # The grid adds to the Gaussian, too, once.
    assert contour.epsilon(held, math.sqrt(0.49 + INTERVAL**2 / 6), INTERVAL, delta) == pytest.approx(beside, abs=4e-7)


def exact_log_moment(step, s):
    """K(s) of one step to the working precision."""
    z, q = mp.mpf(step.z), mp.mpf(step.q)
    power = 1 + s if step.removing else -s

    def density(x):
        return mp.npdf(x) * mp.exp(power * mp.log1p(q * mp.expm1(x / z - 1 / (2 * z * z))))

    centre = float(mp.re(power)) / step.z if step.removing else 0.0
    ends = [-16, -8, -4, -2, 0, *(k for k in (2, 4, 8, 16, 24, 32, 48, 64) if k < centre + 14), centre + 16]
    return mp.log(mp.quad(density, ends, maxdegree=8))


def exact_divergence(steps, mu2, epsilon, tilt):
    """The inversion integral by trapezoid rules far finer than those under test, with 25 digits and none of their bounds."""
    with mp.workdps(25):
        h, total, k = mp.mpf(2) * mp.pi / 40, mp.mpf(0), 0
        noise = [mp.mpf(place) / 16 for place in range(-16 * 13, 16 * 30)]
        laws = []
        for step in steps:
            z, q = mp.mpf(step.z), mp.mpf(step.q)
            laws.append([(mp.npdf(x) / 16, mp.log1p(q * mp.expm1(x / z - 1 / (2 * z * z)))) for x in noise])
        while True:
            s = tilt + mp.mpc(0, 1) * h * k
            log = mp.mpf(mu2) * s * (s + 1) / 2
            for step, law in zip(steps, laws, strict=True):
                power = 1 + s if step.removing else -s
                log += step.steps * mp.log(mp.fsum(density * mp.exp(power * logs) for density, logs in law))
            term = mp.exp(log - s * epsilon) / (s * (s + 1))
            total += (1 if k == 0 else 2) * mp.re(term)
            if k and abs(term) < mp.mpf(10) ** -18 * abs(total):
                return total * h / (2 * mp.pi)
            k += 1


@pytest.mark.one_in(9)
@pytest.mark.parametrize(("z", "q", "steps", "delta"), [(1.5, 0.3, 12, 1e-6), (2.0, 0.1, 400, 1e-9)])
@pytest.mark.parametrize("removing", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_bound_holds_to_25_digits_and_is_tight(z, q, steps, delta, removing):
    step = Step(z, q, steps, removing=removing)
    mu2 = steps * INTERVAL**2 / 6
    found, saddle = contour._of_direction([step], mu2, delta)
    exact = exact_divergence([step], mu2, found, 0.9 * saddle)
    assert exact <= delta * (1 + 1e-15), "a bound"
    assert exact >= delta * (1 - 1e-6), "and hardly more than that"


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("z", "q"), [(0.8, 0.02), (1.5, 0.3), (12.0, 0.05)])
@pytest.mark.parametrize("removing", [True, False])
def test_every_transform_lies_within_the_error_that_it_states(z, q, removing):
    tilt, reach = 3.0, 30.0
    step = Step(z, q, 1, removing=removing)
    law = step.nodes(tilt, reach)
    for t in (0.0, 0.3, 4.0, 17.0, reach):
        found = complex(law.masses @ np.exp(1j * t * law.losses)) * math.exp(law.log_mass)
        with mp.workdps(25):
            exact = mp.exp(exact_log_moment(step, mp.mpc(tilt, t)))
            assert abs(mp.mpc(found) - exact) <= law.error * float(mp.exp(exact_log_moment(step, mp.mpf(tilt)))), t
    assert law.error < 1e-11


@pytest.mark.parametrize(("z", "q"), [(0.8, 0.02), (1.5, 0.3), (12.0, 0.05)])
@pytest.mark.parametrize(("tilt", "removing"), [(0.4, True), (6.0, True), (0.4, False), (6.0, False)])
def test_no_transform_is_above_the_envelope_by_which_the_sum_is_cut(z, q, tilt, removing):
    step = Step(z, q, 1, removing=removing)
    law = step.nodes(tilt, 400.0)
    for shift in (0.15, 0.5, 1.0, 2.0):
        envelope, before = step.envelope(tilt, shift), 0.0
        for t in np.geomspace(0.01, 400.0, 300):
            found = abs(complex(law.masses @ np.exp(1j * t * law.losses)))
            stated = envelope.log(float(t))
            assert found <= math.exp(stated) + law.error and stated <= before, (shift, t)
            before = stated
        assert envelope.log(1e6) < -1.0, "and it does fall"


def test_what_is_off_in_the_mass_of_one_step_counts_once_a_step():
    """At this tilt that is 4e-12: in a thousand steps more than the rounding of the sum of their logarithms."""
    step = Step(3.058939116298402, 0.0004689464810221882, 1, removing=True)
    tilt = 158.588438
    worst = 0.0
    for k in range(12):
        own = replace(step, z=step.z + k * 1e-5)
        law = own.nodes(tilt, 0.1)
        with mp.workdps(30):
            worst = max(worst, float(abs(log_mass_by_sums(own, tilt) - law.log_mass)) / law.mass_error)
    assert 0.0 < worst < 1.0
    total = contour._log_mass([replace(step, steps=1000)], [law], 0.0, tilt)
    assert total >= 1000 * (law.log_mass + law.mass_error)


def log_mass_by_sums(step, tilt):
    """K of one step being removed, by a sum over points four times as close, to the working precision."""
    z, q, h = mp.mpf(step.z), mp.mpf(step.q), mp.mpf(1) / 8
    points = (h * k for k in range(-8 * 13, int(8 * ((1 + tilt) / step.z + 13))))
    powers = ((x, (1 + mp.mpf(tilt)) * mp.log1p(q * mp.expm1(x / z - 1 / (2 * z * z)))) for x in points)
    return mp.log(mp.fsum(mp.exp(power - x * x / 2) for x, power in powers) * h / mp.sqrt(2 * mp.pi))


@pytest.mark.parametrize(
    ("z", "q", "steps", "delta"),
    [
        (17.786977647170406, 0.003160292769289832, 15, 3.815246812887529e-10),
        (8.024250341404676, 0.0014350750184737632, 474, 1.3335532452735116e-12),
        (27.925410496762364, 0.012607559291532223, 1, 1.451259176016619e-11),
    ],
)
def test_a_saddle_between_two_modes_is_left_to_the_transform(z, q, steps, delta):
    """Under some tilt a drawn contribution outweighs all else at once: no mean is near epsilon, and no period is found."""
    assert contour.epsilon([(z, q, steps)], 0.0, INTERVAL, delta) == math.inf
    assert pld.epsilon_of_phases([Phase(z, q, steps)], delta) == by_transform([(z, q, steps)], delta)


@pytest.mark.parametrize("period", [0.5, 0.7, 1.0, 3.0])
def test_a_short_period_only_adds(period):
    """What the trapezoid rule adds are divergences: whatever period is chosen, the figure is a bound."""
    steps, mu2, delta = [Step(1.234, 0.01, 1000, removing=True)], 1000 * INTERVAL**2 / 6, 1e-6
    saddle, guess = contour._saddle(steps, mu2, delta)
    tilt, best = contour._line(steps, mu2, delta, saddle, guess, math.inf)
    value = contour._sum(steps, mu2, tilt, 4.0 * best).solve(delta, guess)[0]
    assert contour._sum(steps, mu2, tilt, period * best).solve(delta, guess)[0] >= value - 1e-9


def test_errors_count():
    """What was lost is part of the divergence; a sum that forgot it would say less."""
    steps, mu2, delta = [Step(1.234, 0.01, 1000, removing=True)], 1000 * INTERVAL**2 / 6, 1e-6
    saddle, guess = contour._saddle(steps, mu2, delta)
    found = contour._sum(steps, mu2, *contour._line(steps, mu2, delta, saddle, guess, math.inf))
    value, share = found.solve(delta, guess)
    more, larger = replace(found, lost=found.lost + 0.01 * float(np.abs(found.parts[0]))).solve(delta, guess)
    assert 0.0 < share < 1e-6 < larger and more > value + 1e-5


@pytest.mark.parametrize(
    ("z", "q", "steps"),
    [(1.0, 1e-4, 1000), (0.5, 0.01, 1000), (1.0, 0.9, 1000), (1.0, 0.01, 2), (40.0, 0.01, 10)],
    ids=["narrow losses", "steep losses", "a high rate", "few steps", "next to nothing spent"],
)
def test_where_figures_would_differ_or_cost_more_the_transform_is_asked(z, q, steps):
    assert contour.epsilon([(z, q, steps)], 0.0, INTERVAL, 1e-6) == math.inf


def test_a_renyi_bound_is_asked_only_where_it_could_be_smaller(monkeypatch):
    """At q/z of one interval the grid adds a sixth to mu^2."""
    phases = (Phase(10.0, 1e-3, 9_000_000),)
    assert pld.epsilon_of_phases(phases, 1e-6) == renyi.epsilon(phases, 1e-6)
    monkeypatch.setattr(renyi, "epsilon", None)
    assert 1.43 < pld.epsilon_of_phases([Phase(1.234, 0.01, 1000)], 1e-6) < 1.44


def test_no_law_is_made_of_more_points_than_memory_should_hold(monkeypatch):
    """In the direction that adds they grow as the square of the tilt, which is sought up to 1e9."""
    with pytest.raises(sampled.TooLong, match="points at tilt 1e"):
        Step(0.88, 0.0214, 1, removing=False).tilted(1e8)
    assert math.isfinite(contour.epsilon([(1.0, 0.01, 1000)], 0.0, 1e-4, 1e-6))
    monkeypatch.setattr(sampled, "MOST_POINTS", 16)
    assert contour.epsilon([(1.0, 0.01, 1000)], 0.0, 1e-4, 1e-6) == math.inf, "the transform is asked"
