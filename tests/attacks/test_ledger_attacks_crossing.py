"""Contributions of several runs that do not fit each other: one content twice, and one descriptor that says two things.

The liar signs both ledgers. What a run carries it carries by descriptor hash: a content under another hash begins at nothing.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from ledger.audit import verify_export
from ledger.leaves import Admit
from ledger.replay.contributions import AdmitSpec
from tests.attacks.test_ledger_attacks_earlier import KEYS, SECOND, THIRD, carrying, codes, counting, finished
from tests.worlds.ledgers import SIGNER, admission, descriptor
from tests.worlds.retained_ledgers import forged_export, leaves_of


def two_runs(base: Path, spec: AdmitSpec, *, cited: bool = True) -> list[str]:
    """What an auditor finds of a second run that admits this, given the first, which admitted contribution 1."""
    first = finished(base, "one", SIGNER, admission(1))
    if not cited:
        return codes(finished(base, "two", SECOND, spec, streams=10), first)
    registry = counting(first)
    spec = replace(spec, carried_micro=carrying(registry).carried_micro)
    return codes(finished(base, "two", SECOND, spec, streams=10, previous=registry.previous), first)


def test_the_same_contribution_in_two_runs_is_in_order(tmp_path):
    assert two_runs(tmp_path, admission(1)) == []


OTHERWISE = {
    "stricter noise": {"sigma_micro": 2_000_000},
    "smaller clip": {"clip_micro": 500_000},
    "invented cap": {"max_occurrences": 1},
    "another content": {"anchor": b"\x05" * 32},
    "another class": {"class_name": "sensitive", "profile_id": 1, "clip_micro": 500_000, "sigma_micro": 3_000_000},
}


@pytest.mark.one_in(7)
@pytest.mark.parametrize("lie", OTHERWISE)
def test_one_descriptor_that_says_something_else_in_another_run_is_found(tmp_path, lie):
    assert "EARLIER_TERMS" in two_runs(tmp_path, replace(admission(1), **OTHERWISE[lie]))


@pytest.mark.parametrize("cited", [True, False])
def test_one_content_under_another_descriptor_carries_nothing_and_is_found(tmp_path, cited):
    """Cited or not: what began before and shares a content counts."""
    lie = replace(admission(1), descriptor_hash=descriptor(9), attestation_hash=b"\x09" * 32)
    assert two_runs(tmp_path, lie, cited=cited) == ["EARLIER_ANCHOR"]


def test_runs_that_are_given_are_held_against_each_other_too(tmp_path):
    """The lie stands between two earlier runs, both of which this one counts."""
    first = finished(tmp_path, "one", SIGNER, admission(1))
    lie = replace(admission(1), descriptor_hash=descriptor(9), attestation_hash=b"\x09" * 32)
    second = finished(tmp_path, "two", SECOND, lie, streams=10)
    registry = counting(first, second)
    third = finished(tmp_path, "three", THIRD, admission(5), streams=20, previous=registry.previous)
    assert codes(third, first, second) == ["EARLIER_ANCHOR"]


def test_a_content_that_was_signed_anew_is_another_contribution_and_no_fault(tmp_path):
    anew = replace(admission(1), descriptor_hash=descriptor(9), anchor=b"\x11" * 32, attestation_hash=b"\x09" * 32)
    assert two_runs(tmp_path, replace(anew, carried_micro=0), cited=False) == []


# --- Within one run --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lie", "code"),
    [
        ({"descriptor_hash": descriptor(9), "attestation_hash": b"\x09" * 32}, "DUPLICATE_CONTENT"),
        ({"descriptor_hash": descriptor(9), "anchor": b"\x09" * 32}, "REPLAYED"),
        ({"attestation_hash": b"\x09" * 32, "anchor": b"\x09" * 32}, "REPLAYED"),
    ],
)
def test_one_contribution_admitted_twice_under_two_names_is_found(tmp_path, run, lie, code):
    """By its content, by its attestation, or by its descriptor."""
    run.admit(admission(1))
    run.steps(1)
    again = replace(admission(1), **lie)
    leaves = leaves_of(run.ledger)
    fields = {name: getattr(again, name) for name in AdmitSpec.__slots__ if name != "attestation"}
    leaves.append(Admit(len(leaves), run.tick(), **fields))
    report = verify_export(forged_export(leaves, tmp_path / "lie"), KEYS)
    assert report.verdict == "FAILED" and code in {item.code for item in report.findings}
