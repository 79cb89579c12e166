"""Fixed point: exact, bounded, and closed to everything that is no decimal."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attest.errors import ValueRefused
from attest.fixed_point import from_micro, to_fraction, to_micro


def test_rounding_directions():
    for value in ("1.2345675", Decimal("1.2345675")):
        assert to_micro(value, rounding="down") == 1234567
        assert to_micro(value, rounding="up") == 1234568
        with pytest.raises(ValueRefused) as caught:
            to_micro(value, rounding="exact")
        assert caught.value.code == "RANGE"
    assert to_micro("-0.0000005", rounding="down") == -1
    assert to_micro("-0.0000005", rounding="up") == 0
    for rounding in ("down", "up", "exact"):
        assert to_micro("1.1", rounding=rounding) == 1_100_000
        assert to_micro(3, rounding=rounding) == 3_000_000
        assert to_micro("1e-6", rounding=rounding) == 1


@given(st.decimals(allow_nan=False, allow_infinity=False, places=9, min_value=-1000, max_value=1000))
def test_rounding_brackets_the_value(value):
    low, high = to_micro(value, rounding="down"), to_micro(value, rounding="up")
    assert Fraction(low, 10**6) <= Fraction(value) <= Fraction(high, 10**6)
    assert high - low in (0, 1)


@given(st.integers(-(2**53), 2**53))
def test_from_micro_is_the_nearest_double(count):
    assert from_micro(count) == float(Fraction(count, 10**6))


@pytest.mark.parametrize("value", [1.0, float("nan"), True, None, b"1", 1j, [1], Fraction(1, 2)], ids=repr)
def test_other_types_are_refused(value):
    with pytest.raises(ValueRefused) as caught:
        to_micro(value, rounding="down")
    assert caught.value.code == "TYPE"
    with pytest.raises(ValueRefused):
        from_micro(value)


@pytest.mark.parametrize(
    "text",
    [
        "nan",
        "NaN",
        "inf",
        "-Infinity",
        "sNaN",
        "1_000",
        "0x10",
        "1.",
        ".5",
        "1e",
        "1e999",
        "\u0661",
        "\uff11",
        "1,5",
        "--1",
        "+1",
        "",
        " 1",
        "1 ",
        "1\n",
        "1" * 41,
        "9e90",
        "1e-99999",
    ],
)
def test_text_that_is_no_plain_decimal_is_refused(text):
    with pytest.raises(ValueRefused) as caught:
        to_micro(text, rounding="down")
    assert caught.value.code == "RANGE"


@pytest.mark.parametrize(
    "text", ["NaN", "Infinity", "-Infinity", "sNaN", "1e999999999", "1e-999999999", "9223372036855"]
)
def test_decimals_that_are_not_finite_or_too_large_are_refused_quickly(text):
    with pytest.raises(ValueRefused) as caught:
        to_micro(Decimal(text), rounding="down")
    assert caught.value.code == "RANGE"


def test_unknown_rounding_and_huge_integers_are_refused():
    with pytest.raises(ValueRefused):
        to_micro("1", rounding="nearest")
    with pytest.raises(ValueRefused):
        to_micro(10**200, rounding="down")
    assert to_fraction("0.004") == Fraction(1, 250)
