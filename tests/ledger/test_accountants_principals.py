"""Contributions of one person that differ, at long horizons: what bounds may not lose."""

import math

import pytest

from ledger import accountants
from ledger.accountants import Phase, gaussian


def test_the_longest_member_counts_in_full_beside_a_short_one():
    """A second contribution that was there for a few steps never lowers what the first one spent."""
    long, short = Phase(2.0, 0.02, 300), Phase(4.0, 0.01, 5)
    both = accountants.epsilon_of_principal([long, short], 1e-6)
    assert both > accountants.epsilon(2.0, 0.02, 300, 1e-6)
    assert both == accountants.epsilon_of_principal([short, long], 1e-6)


def test_one_member_without_noise_leaves_no_bound_for_any():
    for members in ([Phase(0.0, 0.1, 5), Phase(1.0, 0.1, 5)], [Phase(3.0, 1.0, 5), Phase(0.0, 0.1, 1)]):
        assert accountants.epsilon_of_principal(members, 1e-6) == math.inf
    absent = [Phase(0.0, 0.1, 0), Phase(0.0, 0.0, 5), Phase(3.0, 1.0, 1)]
    assert accountants.epsilon_of_principal(absent, 1e-6) == gaussian.epsilon_of_mu(1 / 3.0, 1e-6), "they were never there"


@pytest.mark.parametrize("delta", [1e-12, 1e-11])
def test_rounding_of_a_long_composition_never_lowers_the_figure_of_a_group(delta):
    """Two contributions drawn nearly always, over 10^5 steps: the transform alone would say up to 0.9 percent too little."""
    z, q, steps = 2000.0, 1 - 1e-13, 10**5
    found = accountants.epsilon_group(z, q, steps, 2, delta)
    assert found >= gaussian.epsilon_of_mu(2 * math.sqrt(steps) / z, delta) * (1 - 1e-9)


def test_content_replacement_counts_twice_the_shift_of_every_phase_sampled_or_not():
    """Beside a sampled phase, one that is not sampled has two payloads at twice the clip norm as well."""
    sampled, whole = Phase(2.0, 0.01, 10), Phase(2.0, 1.0, 1)
    alone = gaussian.epsilon_of_mu(2 / 2.0, 1e-6)
    found = accountants.epsilon_of_phases([sampled, whole], 1e-6, replace=True)
    assert alone <= found <= gaussian.epsilon_of_mu(2 * math.sqrt(11) / 2.0, 1e-6)
    assert found > accountants.epsilon_of_phases([sampled, whole], 1e-6)
