"""What an ADMIT leaf may say, bound by bound, at the last value that is right and the first that is not."""

from dataclasses import replace

import pytest

from attest.descriptor import PUBLIC_BOUNDS
from ledger.leaves import Admit, Header, Previous
from ledger.note import NoteSigner
from ledger.replay import Replay
from ledger.replay.permits import admission_problems
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START, descriptor, header_spec, signed_policy

OTHER = NoteSigner("ledger.example/run0", OTHER_KEY)
EARLIER = Previous(OTHER.name, 9, bytes(32), bytes(range(32)), OTHER.vkey, "spent")


def header(*, public: bool = False, previous: tuple[Previous, ...] = ()) -> Header:
    """Two classes with bounds, or ``open`` as a public one."""
    rules = signed_policy().policy.classes
    if public:
        bounds = {"clip_norm_micro": PUBLIC_BOUNDS.clip_micro, "noise_multiplier_micro": PUBLIC_BOUNDS.sigma_micro}
        rules = (replace(rules[0], public=True, **bounds), rules[1])
    policy = signed_policy(classes=rules, min_clip_norm_micro=1_000)
    return header_spec(policy, previous=previous).header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)


def codes(header: Header, **changes) -> list[str]:
    rule = header.policy.classes[0]
    fields = {
        "seq": 1,
        "time": START,
        "descriptor_hash": descriptor(1),
        "class_name": "open",
        "profile_id": 0,
        "clip_micro": rule.clip_norm_micro,
        "sigma_micro": rule.noise_multiplier_micro,
        "max_occurrences": 0,
        "attestation_hash": bytes(32),
        "key_id": bytes(8),
        "anchor": bytes(32),
        "carried_micro": 0,
        "max_epsilon_micro": 0,
        "max_delta_pico": 0,
    }
    return [problem.code for problem in admission_problems(Admit(**fields | changes), header, 0)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"profile_id": 1}, ["PROFILE"]),
        ({"clip_micro": 1_000_001}, ["CLIP"]),
        ({"clip_micro": 1_000}, []),
        ({"clip_micro": 999}, ["CLIP"]),
        ({"sigma_micro": 1_000_001}, []),
        ({"sigma_micro": 999_999}, ["NOISE"]),
        ({"max_epsilon_micro": 1, "max_delta_pico": 1}, []),
    ],
)
def test_the_bounds_of_the_policy_hold_to_the_unit(changes, expected):
    assert codes(header(), **changes) == expected


@pytest.mark.parametrize(
    ("public", "previous", "expected"),
    [(False, (EARLIER,), []), (False, (), ["CARRIED"]), (True, (EARLIER,), ["CARRIED"]), (True, (), ["CARRIED"])],
)
def test_something_is_carried_only_from_runs_that_are_counted_and_by_who_has_an_epsilon(public, previous, expected):
    found = header(public=public, previous=previous)
    assert codes(found, carried_micro=1) == expected
    assert codes(found) == []


def test_who_is_public_signed_neither_a_limit_nor_bounds():
    found = header(public=True)
    assert codes(found, max_epsilon_micro=1, max_delta_pico=1) == ["BUDGET"]
    assert codes(found, clip_micro=PUBLIC_BOUNDS.clip_micro - 1) == ["PUBLIC"]
    assert codes(found, sigma_micro=PUBLIC_BOUNDS.sigma_micro + 1) == ["PUBLIC"]


def test_bounds_are_judged_again_wherever_one_of_them_differs(monkeypatch):
    """A replay remembers with which bounds and limits nothing was wrong; it remembers nothing else."""
    found = header(previous=(EARLIER,))
    rule = found.policy.classes[0]
    right = {"clip_micro": rule.clip_norm_micro, "sigma_micro": rule.noise_multiplier_micro, "class_name": "open"}
    wrong = [
        {"profile_id": 1}, {"clip_micro": 1_000_001}, {"clip_micro": 999}, {"sigma_micro": 999_999},
        {"max_epsilon_micro": 1, "max_delta_pico": 1},
    ]  # fmt: skip
    limit = {"max_epsilon_micro": 10**9, "max_delta_pico": 1}
    wrong.append({"carried_micro": 10**9 + 1, **limit})
    for most in (0, 1, 4096):
        monkeypatch.setattr("ledger.replay.replay.MOST_ADMISSIBLE", most)
        run = Replay(found, lambda size: bytes(32))
        for changes in ({}, *wrong, limit, *wrong, {"max_occurrences": 5}, {}):
            fields = {"profile_id": 0, "max_occurrences": 0, "carried_micro": 0, "max_epsilon_micro": 0, "max_delta_pico": 0}
            leaf = Admit(
                seq=run.size, time=START, descriptor_hash=descriptor(run.size), attestation_hash=bytes(32), key_id=bytes(8),
                anchor=bytes(32), **(fields | right | changes),
            )  # fmt: skip
            assert bool(run.apply(leaf)) is (changes in wrong), (most, changes)
