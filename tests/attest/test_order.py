"""Turns in a signed order: the field of the policy, who is due when, and the dearest turns that an order allows."""

import itertools
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

from attest.errors import PolicyRefused
from attest.policy import Policy, SamplingRule
from attest.policy.sampling import period
from attest.schedule.turns import Order, dearest_turns, permutation

RUN = bytes(range(16))
TEXT = """
corpus = "notes"
delta = 1e-6
steps = 23
normalizer = 4
disclosure = "occurrences_public"
{extra}
[[class]]
name = "open"
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = {first}
depth = {{ from = 0.0, to = 1.0 }}
[[class]]
name = "sensitive"
clip_norm = 0.5
noise_multiplier = 2.0
sampling_rate = {second}
depth = {{ from = 0.5, to = 1.0 }}
"""


def policy(order="cyclic", first='"1/7"', second="0.25") -> Policy:
    return Policy.from_toml(TEXT.format(extra=f'sampling = {{ order = "{order}" }}', first=first, second=second))


def refusal(**changes) -> str:
    with pytest.raises(PolicyRefused) as caught:
        replace(policy(), **changes)
    assert caught.value.code == "RANGE"
    return caught.value.sentence


@pytest.mark.parametrize("order", ["cyclic", "shuffled"])
def test_an_order_is_signed_and_read_back(order):
    found = policy(order)
    assert Policy.from_cbor(found.to_cbor()) == found
    assert found.to_cbor() != replace(found, sampling=SamplingRule()).to_cbor()
    assert [period(rule.sampling_rate) for rule in found.classes] == [7, 4]


def test_poisson_is_the_absence_of_the_field():
    """What was signed before has the bytes and the meaning that it had, and there is one way to say it."""
    plain = Policy.from_toml(TEXT.format(extra="", first="0.1", second="0.3"))
    assert plain.sampling == SamplingRule("poisson") and plain == policy("poisson", "0.1", "0.3")
    from attest import cbor

    fields = cbor.decode(plain.to_cbor())
    assert 26 not in fields
    with pytest.raises(PolicyRefused) as caught:
        Policy.from_cbor(cbor.encode(fields | {26: ["poisson", {}]}))
    assert caught.value.code == "CBOR_NONCANONICAL"
    for odd in (["random", {}], 1, None, ["CYCLIC", {}], "cyclic", ["cyclic"], ["cyclic", {1: 1}], ["cyclic", {}, None]):
        with pytest.raises(PolicyRefused):
            Policy.from_cbor(cbor.encode(fields | {26: odd}))


def test_an_order_asks_for_public_occurrences():
    assert "disclosure = 'occurrences_public'" in refusal(disclosure="secret_poisson")
    with pytest.raises(PolicyRefused) as caught:
        SamplingRule("random")
    assert "expected one of poisson, cyclic, shuffled" in caught.value.sentence


@pytest.mark.parametrize(
    "rate, nearest",
    [("0.3", '"1/4" and "1/3"'), ("0.7", '"1/2" and 1'), ("0.033", '"1/31" and "1/30"'), ("0.999999", '"1/2" and 1')],
)
def test_a_rate_without_a_period_names_the_nearest(rate, nearest):
    with pytest.raises(PolicyRefused) as caught:
        policy(second=rate)
    assert caught.value.sentence.endswith(f"the nearest that have one are {nearest}")
    policy("poisson", second=rate)
    with pytest.raises(PolicyRefused):
        period(Fraction(rate))


@pytest.mark.parametrize(
    "text", ['"0/7"', '"7/2"', '"1/0"', '"1/07"', '" 1/7"', '"1/7.0"', '"0.5"', '"1/99999999999999999999"', "true"]
)
def test_quotes_hold_a_ratio_of_whole_numbers_alone(text):
    with pytest.raises(PolicyRefused):
        policy("poisson", first=text)


def test_a_ratio_is_signed_and_shown_as_it_is():
    found = policy("poisson", first='"2/7"')
    assert found.classes[0].sampling_rate == Fraction(2, 7) and 'sampling_rate = "2/7"' in found.to_toml()


CLASSES = [0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0]  # 14 of class 0, 7 of class 1


@pytest.mark.parametrize("order", ["cyclic", "shuffled"])
def test_everybody_is_due_once_in_each_period_in_steps_of_like_sizes(order):
    turns = Order(policy(order), RUN, CLASSES)
    due = {step: turns.due(step) for step in range(1, 57)}
    assert all(found == sorted(set(found)) for found in due.values())
    for place, length in ((0, 7), (1, 4)):
        members = [number for number, own in enumerate(CLASSES) if own == place]
        for first in range(1, 57, length):
            own = [[n for n in due[step] if CLASSES[n] == place] for step in range(first, first + length)]
            assert sorted(itertools.chain(*own)) == members
            sizes = [len(step) for step in own]
            assert max(sizes) - min(sizes) <= 1


def test_cyclic_keeps_the_step_and_shuffled_does_not():
    fixed, fresh = (Order(policy(order), RUN, CLASSES) for order in ("cyclic", "shuffled"))
    assert [fixed.due(step) for step in range(1, 29)] == [fixed.due(step) for step in range(29, 57)]
    # The second of class 0, and so number 2 of all, in the second step of every period of 7.
    assert [step for step in range(1, 29) if 2 in fixed.due(step)] == [2, 9, 16, 23]
    assert [fresh.due(step) for step in range(1, 29)] != [fresh.due(step) for step in range(29, 57)]


def test_turns_depend_on_the_run_and_not_on_what_was_asked_before():
    """Who resumes in the middle of a period, or goes back to an earlier one, has the turns of who never stopped."""
    one, other = (Order(policy("shuffled"), RUN, CLASSES) for _ in range(2))
    forward = [one.due(step) for step in range(1, 24)]
    assert [other.due(step) for step in range(23, 0, -1)][::-1] == forward
    assert [Order(policy("shuffled"), bytes(16), CLASSES).due(step) for step in range(1, 24)] != forward


def test_the_permutation_is_that_of_the_format():
    """A fixed value, which other implementations can hold themselves against (docs/formats)."""
    import hashlib

    stream = hashlib.shake_256(b"dptrain.order/1\x00" + RUN + b"\0\0\0\x01" + b"\0\0\0\0\0\0\0\x02").digest(8 * 9)
    words = [int.from_bytes(stream[8 * i : 8 * i + 8], "little") for i in range(9)]
    assert permutation(RUN, 1, 2, 9) == [words.index(word) for word in sorted(words)]
    assert permutation(RUN, 1, 2, 0) == []


def test_places_of_a_shuffle_are_uniform():
    """Chi-square over 4000 periods of 8: a place drawn twice as often as another would show."""
    counts = Counter((j, place) for p in range(4000) for place, j in enumerate(permutation(RUN, 0, p, 8)))
    score = sum((counts[j, place] - 500) ** 2 / 500 for j in range(8) for place in range(8))
    assert score < 49 + 6 * (2 * 49) ** 0.5


def brute(order, length, steps, multipliers, cap):
    """All offsets in all periods, one after the other."""
    losses = [1 / z**2 for z, count in zip(multipliers, steps, strict=True) for _ in range(count)]
    periods = [losses[start : start + length] for start in range(0, len(losses), length)]
    if order == "shuffled":
        chosen = [[max(own) for own in periods]]
    else:
        chosen = [[own[offset] for own in periods if offset < len(own)] for offset in range(length)]
    best = max(sum(own) for own in chosen)
    if cap:
        best = max(sum(sorted(own, reverse=True)[:cap]) for own in chosen)
    return best, max(map(len, chosen))


@pytest.mark.parametrize("order", ["cyclic", "shuffled"])
@pytest.mark.parametrize(
    "steps, multipliers",
    [((23,), (1.0,)), ((5, 1, 13, 4), (2.0, 1.0, 3.0, 1.5)), ((9, 2, 12), (1.0, 9.0, 1.1)), ((8, 1, 14), (1.0, 0.6, 9.0))],
)
@pytest.mark.parametrize("length", [1, 2, 3, 5, 7, 11, 22, 23, 24, 1000])
def test_the_dearest_turns_are_the_dearest(order, steps, multipliers, length):
    loss, most = brute(order, length, steps, multipliers, 0)
    found = dearest_turns(order, length, steps, multipliers)
    assert found.loss == pytest.approx(loss, rel=1e-12) and found.count <= most == -(-sum(steps) // length)
    if len(steps) == 1:
        assert found.count == most and found.loss == most
    for cap in (1, 2, 4, 100):
        capped = dearest_turns(order, length, steps, multipliers, cap)
        assert capped.count <= cap and capped.loss <= found.loss
        assert capped.loss == pytest.approx(brute(order, length, steps, multipliers, cap)[0], rel=1e-12)


def test_a_cap_has_its_own_dearest_offset():
    """Many cheap turns at one offset, one dear turn at another: without a cap the first is dearer, with one the second."""
    steps, multipliers = (1,) * 11, (1.0, 0.5, 1.0, *(9.0, 1.0) * 4)
    found = [dearest_turns("cyclic", 2, steps, multipliers, cap).loss for cap in (0, 1, 5)]
    assert found == pytest.approx([6.0, 4.0, 5.0]) == [brute("cyclic", 2, steps, multipliers, cap)[0] for cap in (0, 1, 5)]


def test_long_runs_are_counted_and_not_walked():
    found = dearest_turns("shuffled", 1000, (10**9 - 1, 1), (2.0, 1.0))
    assert (found.count, found.loss) == (10**6, (10**6 - 1) / 4 + 1)
    found = dearest_turns("cyclic", 1000, (10**9 - 1, 1), (2.0, 1.0))
    assert (found.count, found.loss) == (10**6, (10**6 - 1) / 4 + 1)
