"""Attacks by time, A20 and A21: validity of attestations and keys, and clocks that run wrong.

Unless a test says otherwise, an outcome is asked of `decide` and of `run_gate`, and both must say the same (`Scene.code`).
"""

import time
from dataclasses import replace
from decimal import Decimal

import pytest

from attest.gate import Seen, run_gate
from attest.schema.plain import MAX_TIME
from tests.attacks.scene import (
    signed,
)
from tests.worlds.gate import (
    NOW,
)
from tests.worlds.registries import with_key

DAY = 86400


# --- A20: validity ----------------------------------------------------------

VALIDITY = {
    "now = start - 1": ({}, NOW - 1001, "NOT_YET_VALID"),
    "now = start": ({}, NOW - 1000, "ADMITTED"),
    "now = end - 1": ({}, NOW + 999, "ADMITTED"),
    "now = end": ({}, NOW + 1000, "EXPIRED"),
    "now = end + 1": ({}, NOW + 1001, "EXPIRED"),
    "one second, now = start": ({8: NOW, 9: NOW + 1}, NOW, "ADMITTED"),
    "one second, now = end": ({8: NOW, 9: NOW + 1}, NOW + 1, "EXPIRED"),
    "empty": ({8: NOW, 9: NOW}, NOW, "WINDOW"),
    "end before start": ({8: NOW, 9: NOW - 1}, NOW, "WINDOW"),
    "as long as the class allows": ({8: NOW, 9: NOW + 90 * DAY}, NOW, "ADMITTED"),
    "a second longer than the class allows": ({8: NOW, 9: NOW + 90 * DAY + 1}, NOW, "WINDOW"),
    "from 1970": ({8: 0}, NOW, "WINDOW"),
    "to the year 10000": ({9: MAX_TIME - 1}, NOW, "WINDOW"),
    "in the year 10000": ({9: MAX_TIME}, NOW, "RANGE"),
    "to the year 10^9": ({9: 31556952 * 10**9}, NOW, "RANGE"),
    "start in milliseconds": ({8: NOW * 1000}, NOW, "RANGE"),
    "end in milliseconds": ({9: NOW * 1000}, NOW, "RANGE"),
    "start as float": ({8: float(NOW - 1000)}, NOW, "TYPE"),
    "start with milliseconds as float": ({8: NOW - 1000 + 0.123}, NOW, "TYPE"),
    "end with milliseconds as float": ({9: NOW + 0.999}, NOW, "TYPE"),
    "date as text": ({8: "2027-01-15T08:00:00Z"}, NOW, "TYPE"),
    "start negative": ({8: -1}, NOW, "RANGE"),
}


@pytest.mark.parametrize("name", VALIDITY)
def test_A20_validity_is_half_open_whole_seconds_and_bounded(scene, name):
    changes, now, code = VALIDITY[name]
    assert scene.code(signed(changes), now=now) == code


@pytest.mark.parametrize(("class_window", "policy_window", "allowed"), [(None, 1000, 1000), (500, 1000, 500), (1000, 500, 500)])
def test_A20_the_shorter_of_the_windows_of_class_and_policy_holds(scene, class_window, policy_window, allowed):
    rules = tuple(replace(rule, max_window=class_window) for rule in scene.policy.classes)
    policy = replace(scene.policy, classes=rules, max_window=policy_window)
    assert scene.code(signed({8: NOW, 9: NOW + allowed}), policy=policy) == "ADMITTED"
    assert scene.code(signed({8: NOW, 9: NOW + allowed + 1}), policy=policy) == "WINDOW"


@pytest.mark.parametrize(
    "edge", [(NOW, NOW + 1, "ADMITTED"), (NOW + 1, NOW + 2, "KEY_NOT_VALID"), (NOW - 1, NOW, "KEY_NOT_VALID")]
)
def test_A20_the_validity_of_keys_is_half_open_too(scene, edge):
    start, end, code = edge
    registry = with_key(scene.registry, "alice", not_before=start, not_after=end)
    assert scene.code(signed(), registry=registry) == code


# --- A21: clocks ----------------------------------------------------------


def test_A21_a_clock_more_than_a_minute_behind_the_last_admission_is_CLOCK(scene):
    for back, code in ((0, "ADMITTED"), (60, "ADMITTED"), (61, "CLOCK"), (10**6, "CLOCK")):
        assert scene.code(signed(), seen=Seen(latest=NOW + back)) == code


def test_A21_batches_remember_the_latest_admission_and_refusals_do_not_move_it(scene):
    seen = Seen()
    assert scene.codes([(signed(content=b"1"), b"1")], seen=seen, now=NOW + 500) == ["ADMITTED"]
    assert scene.codes([(signed(content=b"2"), b"2")], seen=seen, now=NOW + 5000) == ["EXPIRED"]
    assert scene.codes([(signed(content=b"3"), b"3")], seen=seen, now=NOW + 440) == ["ADMITTED"]
    assert scene.codes([(signed(content=b"4"), b"4")], seen=seen, now=NOW + 439) == ["CLOCK"]


def test_A21_one_batch_has_one_time(scene, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: pytest.fail("the gate must not read the clock"))
    report = run_gate([], scene.policy, scene.registry, now=NOW)
    assert report.now == NOW


@pytest.mark.parametrize("now", [-1, float(NOW), True, None, str(NOW), NOW * 1000, float("nan"), 2**63, Decimal(NOW)], ids=repr)
def test_A21_a_clock_that_reads_no_whole_seconds_is_CLOCK(scene, now):
    assert str(scene.outcome(signed(), now=now).code) == "CLOCK"
