"""The accountant prv: opacus's figure where it has one and it lies in the bracket, the top of the bracket where not."""

import itertools
import math

import pytest

import dptrain.accounting as plugged
from ledger import accountants
from ledger.accountants import Phase, prv

opacus = pytest.importorskip("opacus")
opacus_prv = pytest.importorskip("dptrain.opacus_prv")


@pytest.fixture(autouse=True)
def _as_it_was():
    plugged.register()
    yield
    plugged.register()


@pytest.mark.one_in(99)
@pytest.mark.parametrize(
    ("z", "q", "steps", "expected"),
    [
        (1.0, 0.01, 1000, 1.838),
        (2.0, 0.01, 10000, 2.173),
        (4.0, 0.001, 10000, 0.0866),
        (4.0, 0.1, 1000, 3.455),
        (0.6, 0.1, 1000, 78.66),
    ],
)
def test_golden_values(z, q, steps, expected):
    value = accountants.epsilon(z, q, steps, 1e-5, "prv")
    assert value == pytest.approx(expected, abs=6e-4 if expected < 10 else 6e-3)
    assert value == plugged.epsilon((Phase(z, q, steps),), 1e-5), "opacus's own"


@pytest.mark.one_in(99)
@pytest.mark.parametrize(("z", "q", "steps"), [(1.0, 0.01, 1000), (3.0, 0.01, 20_000), (0.8, 0.2, 30)])
def test_a_smoother_grid_has_opacus_s_figure(z, q, steps):
    theirs = opacus.accountants.PRVAccountant()
    theirs.history = [(z, q, steps)]
    expected = theirs.get_epsilon(1e-6, eps_error=plugged.EPS_ERROR, delta_error=1e-6 * plugged.DELTA_ERROR)
    assert plugged.epsilon((Phase(z, q, steps),), 1e-6) == pytest.approx(expected, abs=1e-5)


@pytest.mark.one_in(99)
@pytest.mark.parametrize(
    ("phases", "delta"),
    [
        ([(1.0, 0.01, 1000)], 1e-6),
        ([(3.0, 0.01, 20_000)], 1e-9),
        ([(0.8, 0.2, 30)], 1e-3),
        ([(0.3, 1e-4, 7)], 1e-5),
        ([(2.0, 1.0, 50)], 1e-5),
        ([(12.0, 0.97, 2)], 0.3),
        ([(1.0, 0.5, 1)], 1e-5),
        ([(5.0, 0.01, 10)], 0.3),  # epsilon lies below the middle of the grid
        ([(1.0, 0.01, 301), (2.0, 0.05, 100), (4.0, 0.05, 1), (5.0, 1.0, 2)], 1e-6),
    ],
)
def test_every_bit_is_opacus_s_own_on_that_grid(phases, delta):
    """A step's losses are computed where they are neither impossible nor all below, and nothing changes."""
    from opacus.accountants.analysis.prv import Domain

    theirs = opacus.accountants.PRVAccountant()
    theirs.history = phases
    domain_of = theirs._get_domain

    def smooth(**asked):
        found = domain_of(**asked)
        more = opacus_prv.smooth(found.size) - found.size
        return Domain(found.t_min - found.dt * (more // 2), found.t_max + found.dt * (more - more // 2), found.size + more)

    theirs._get_domain = smooth
    expected = theirs.get_epsilon(delta, eps_error=plugged.EPS_ERROR, delta_error=delta * plugged.DELTA_ERROR)
    assert plugged.epsilon([Phase(*phase) for phase in phases], delta) == expected


def test_a_power_has_every_bit_of_opacus_s_composition():
    import numpy as np
    from opacus.accountants.analysis.prv import DiscretePRV, Domain
    from opacus.accountants.analysis.prv.compose import _compose_fourier

    masses = np.random.default_rng(1).dirichlet(np.ones(9))
    for length, times in ((1024, 1), (1024, 2), (1024, 99), (1000, 100), (1000, 12_345)):
        step = DiscretePRV(np.concatenate([np.zeros(length - 9), masses]), Domain(-1.0, 1.0, length, 0.25))
        expected, found = _compose_fourier(step, times), opacus_prv.repeated(step, times)
        assert np.array_equal(found.pmf, expected.pmf) and found.domain == expected.domain


def test_the_next_smooth_number_is_the_next():
    for length in (1, 2, 3, 7, 97, 101, 1021, 2049, 65_537):
        whole = next(n for n in itertools.count(max(2, length)) if n % 2 == 0 and 60**40 % n == 0)
        assert opacus_prv.smooth(length) == whole


def test_no_grid_has_a_large_prime_factor(monkeypatch):
    seen = []
    repeated = opacus_prv.repeated
    monkeypatch.setattr(opacus_prv, "repeated", lambda step, times: seen.append(len(step)) or repeated(step, times))
    for steps in (999, 1000, 1013):
        plugged.epsilon((Phase(1.0, 0.01, steps),), 1e-6)
        length = seen.pop()
        assert length % 2 == 0
        for prime in (2, 3, 5):
            while length % prime == 0:
                length //= prime
        assert length == 1


def test_opacus_s_figure_of_one_unsampled_release_and_ours():
    assert plugged.epsilon((Phase(1.0, 1.0, 1),), 1e-5) == pytest.approx(4.387, abs=6e-4)
    assert accountants.epsilon(1.0, 1.0, 1, 1e-5, "prv") == accountants.epsilon(1.0, 1.0, 1, 1e-5), "exact"


def test_phases():
    phases = [Phase(1.0, 0.01, 300), Phase(2.0, 0.05, 100)]
    least = accountants.epsilon_of_phases(phases, 1e-6)
    value = accountants.epsilon_of_phases(phases, 1e-6, "prv")
    assert least < value <= least + prv.WIDTH
    assert value == plugged.epsilon(accountants.phases.merged(phases), 1e-6)


@pytest.mark.parametrize(
    "found", [None, 0.0, 1e-3, math.inf, -math.inf, math.nan], ids=["none", "zero", "too small", "inf", "-inf", "nan"]
)
def test_whatever_lies_outside_the_bracket_becomes_its_top(found):
    accountants.register_prv(lambda phases, delta: found, plugged.about)
    least = accountants.epsilon(1.0, 0.01, 1000, 1e-5)
    assert accountants.epsilon(1.0, 0.01, 1000, 1e-5, "prv") == least + prv.WIDTH


def test_a_figure_below_pld_is_never_recorded():
    """Opacus's domain can be too small for its tails; what it then says is less than is true."""
    least = accountants.epsilon(1.0, 0.01, 1000, 1e-5)
    accountants.register_prv(lambda phases, delta: least * (1 - 1e-9), plugged.about)
    assert accountants.epsilon(1.0, 0.01, 1000, 1e-5, "prv") == least + prv.WIDTH


@pytest.mark.parametrize("error", [ValueError, RuntimeError, MemoryError, OverflowError, ZeroDivisionError])
def test_no_error_of_the_library_passes(monkeypatch, error):
    from opacus.accountants import PRVAccountant

    def broken(*_, **__):
        raise error("no")

    monkeypatch.setattr(PRVAccountant, "get_epsilon", broken)
    assert plugged.epsilon((Phase(1.0, 0.01, 10),), 1e-5) is None


@pytest.mark.parametrize("phase", [Phase(0.29, 0.1, 10), Phase(1.0, 0.5, 10**6), Phase(1.0, 0.01, 10**12)])
def test_what_would_take_too_long_is_not_begun(monkeypatch, phase):
    from opacus.accountants import PRVAccountant

    monkeypatch.setattr(PRVAccountant, "get_epsilon", lambda *_, **__: pytest.fail("begun"))
    assert plugged.epsilon((phase,), 1e-5) is None


def test_the_grid_is_about_as_long_as_foretold(monkeypatch):
    from opacus.accountants import prv as module

    seen = []
    create = module.Domain.create_aligned.__func__
    monkeypatch.setattr(module.Domain, "create_aligned", classmethod(lambda cls, *a: seen.append(d := create(cls, *a)) or d))
    for phase in (Phase(1.0, 0.01, 1000), Phase(0.5, 0.2, 50), Phase(5.0, 0.01, 20_000)):
        plugged.epsilon((phase,), 1e-6)
        assert 0.5 < seen.pop().size / plugged.points((phase,), 1e-6) < 2.0


def test_the_parameters_of_opacus_are_those_that_auditors_know():
    assert plugged.about()[2] == prv.SOURCES["opacus"]
    accountants.check_recorder(*accountants.describe("prv"))


def test_the_header_tells_who_computed():
    name, library, version, parameters = accountants.describe("prv")
    assert (name, library, version) == ("prv", "opacus", f"{opacus.__version__}+pld-2"), "the bracket has a version too"
    assert "eps_error=0.01" in parameters and "bracket=pld-2+0..0.02" in parameters and len(parameters) <= 200
    prv._plugged.clear()
    assert accountants.describe("prv")[1:3] == ("dptrain", "pld-2")


def test_without_opacus_the_top_of_the_bracket_counts(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "opacus.accountants", None)
    accountants.core.cached.cache_clear()
    assert accountants.epsilon(1.0, 0.01, 1000, 1e-5, "prv") == accountants.epsilon(1.0, 0.01, 1000, 1e-5) + prv.WIDTH
