"""Figures about privacy on the screen: an epsilon is never shown smaller than it is, noise never larger."""

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from attest.schema.rounding import at_least
from dptrain.cli.output import spent

POSITIVE = st.floats(min_value=1e-12, max_value=1e12)


@given(POSITIVE, st.integers(2, 8))
def test_an_epsilon_is_never_shown_smaller_and_noise_never_larger(value, digits):
    assert Decimal(spent(value, digits)) >= Decimal(value) >= Decimal(at_least(value, digits))
    unit = Decimal(10) ** (1 - digits)  # in decimals: 1.001e-05 is one unit above 1e-05, which as a double is not quite 1e-05
    assert Decimal(spent(value, digits)) <= Decimal(value) * (1 + unit)
    assert Decimal(at_least(value, digits)) >= Decimal(value) * (1 - unit)


def test_what_has_no_figure_is_told_in_words_or_as_infinity():
    assert (spent(None), spent(0.0), spent(float("inf")), at_least(float("inf"))) == ("public", "0", "∞", "∞")
    assert (spent(1.5), at_least(1.5), spent(1.00000001), at_least(0.99999999)) == ("1.5", "1.5", "1.00001", "0.9999")
