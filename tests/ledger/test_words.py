"""The words of an audit: one registry, which verdicts, qualifiers, exit codes, pages and documents take theirs from."""

import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import get_args

import pytest

from attest.keys import public_bytes
from ledger.audit import QUALIFIERS, VERDICTS, Verdict, verify, verify_export
from ledger.audit.bounds import bounds_are_signed
from ledger.audit.findings import BEYOND, BoundsEvidence, exit_code, headline, weakest
from ledger.audit.remarks import Remarks
from ledger.log import Ledger
from ledger.report import write_report
from tests.ledger.told_runs import Told
from tests.worlds.ledgers import OWNER_KEY, SIGNER, START, Driver, admission, header_spec, parameter, signed_policy, stack_of
from tests.worlds.retained_ledgers import AUDITORS, pruned_run

DOCS = Path(__file__).resolve().parents[2] / "docs"
KEYS = [SIGNER.vkey]


def closed(base: Path, **header) -> Path:
    """An export of a closed run."""
    with Ledger.create(base / "ledger.db", header_spec(**header), SIGNER, now=START) as ledger:
        driver = Driver(ledger, isolation=ledger.header.isolation)
        driver.admit(admission(1))
        driver.steps()
        driver.epoch()
        ledger.finish(now=driver.tick())
        return ledger.export(base / "export")


def audit(export: Path, **options):
    return verify_export(export, KEYS, **({"owner_key": public_bytes(OWNER_KEY), "minimum_size": 2} | options))


def test_verdicts_stand_from_the_strongest_to_the_weakest_and_the_weakest_counts():
    assert tuple(VERDICTS) == get_args(Verdict) == ("FULL", "SUMMARISED", "TOLD", "SIGNED", "FAILED")
    for stronger, weaker in combinations(VERDICTS, 2):
        assert weakest((weaker, stronger)) == weakest((stronger, weaker)) == weaker


def test_only_a_failure_and_a_bare_signature_end_with_an_error_unless_full_is_asked_for():
    assert {verdict: exit_code(verdict) for verdict in VERDICTS} == {
        "FULL": 0, "SUMMARISED": 0, "TOLD": 0, "SIGNED": 1, "FAILED": 1,
    }  # fmt: skip
    assert {verdict for verdict in VERDICTS if not exit_code(verdict, require_full=True)} == {"FULL"}
    assert exit_code("SIGNED", signature_only=True) == 0
    assert exit_code("SIGNED", signature_only=True, require_full=True) == 1
    assert exit_code("FAILED", signature_only=True) == 1


def test_a_failure_is_told_alone():
    assert headline("TOLD", ("OPEN", "UNPINNED")) == "TOLD (OPEN, UNPINNED)"
    assert (headline("FULL", ()), headline("FAILED", ("OPEN",))) == ("FULL", "FAILED")


def test_no_word_is_made_up_beside_the_registry():
    with pytest.raises(KeyError):
        Remarks().qualify("SOMEWHAT")


def test_the_page_for_auditors_has_every_word_as_the_registry_says_it():
    page = (DOCS / "auditors.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([A-Z_]+) \| (.*) \|$", page, re.MULTILINE))
    told = {word: f"{found.sentence} | {found.remedy}" for word, found in QUALIFIERS.items()}
    told |= {word: f"{found.sentence} | {found.remedy} | {found.code}" for word, found in VERDICTS.items()}
    assert rows == told
    assert [word for word in rows if word in VERDICTS] == list(reversed(VERDICTS)), "which beats which"
    assert all(f"* {sentence}" in page for sentence in BEYOND)


def test_without_attestations_the_bounds_are_told_and_with_them_the_verdict_is_full(tmp_path):
    assert audit(closed(tmp_path)).verdict == "TOLD"
    assert audit(Told.honest().export(tmp_path / "signed")).verdict == "FULL"


@pytest.mark.parametrize("changes", [{"attested": False}, {"registry_root": None}, {"held": 3}, {"admits": 0, "held": 0}])
def test_bounds_are_signed_where_each_admission_holds_under_a_registry(changes):
    """One function decides; whatever comes to derive bounds from signatures has to say so there."""
    signed = BoundsEvidence(admits=4, pruned=0, held=4, attested=True, keys=2, registry_root="00")
    assert bounds_are_signed(signed) and not bounds_are_signed(replace(signed, **changes))


def test_bounds_are_vouched_for_where_every_admission_is_gone_and_not_where_one_is_left():
    gone = BoundsEvidence(admits=0, pruned=4, held=0, attested=False, keys=0, registry_root=None)
    assert bounds_are_signed(gone) and not bounds_are_signed(replace(gone, admits=1))


def test_a_pruned_ledger_is_summarised_where_the_bounds_of_who_is_left_are_signed(tmp_path, monkeypatch):
    with pruned_run(tmp_path / "pruned.db").ledger as ledger:
        pruned = ledger.export(tmp_path / "pruned")
    assert audit(pruned).verdict == "TOLD" and "PRUNED" in audit(pruned).qualifiers, "the operator's word is the weaker one"
    monkeypatch.setattr(verify, "bounds_are_signed", lambda bounds: True)
    assert audit(pruned).verdict == "SUMMARISED"


def test_every_run_has_the_words_that_weaken_it_and_no_other(tmp_path):
    def words(name: str, options=None, **header) -> set[str]:
        (tmp_path / name).mkdir()
        return set(audit(closed(tmp_path / name, **header), **(options or {})).qualifiers)

    plain = {"FROZEN_TOLD", "NO_AUDITORS"}
    assert words("plain") == plain
    assert words("unpinned", {"owner_key": None}) == plain | {"UNPINNED"}
    assert words("uncompared", {"minimum_size": None}) == plain | {"UNCOMPARED"}
    assert words("unaddressed", randomness="unaddressed") == plain | {"UNADDRESSED"}
    assert words("unprobed", unprobed=("layers.0.gate",)) == plain | {"UNPROBED"}
    assert words("weakened", isolation="the optimizer mixes tensors") == plain | {"ISOLATION_WEAKENED"}
    auditors = signed_policy(auditors=AUDITORS, auditor_quorum=2)
    assert words("auditors", policy=auditors) == {"FROZEN_TOLD", "NO_QUORUM"}
    assert words("trained", stack=stack_of(4, parameter("layers.0.weight"), parameter("layers.2.weight"))) == {"NO_AUDITORS"}


def test_an_open_run_and_one_with_limits_over_runs_say_so(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1, max_epsilon_micro=50_000_000, max_delta_pico=1_000_000))
        driver.steps()
        driver.withdraw(1)
        report = audit(ledger.export(tmp_path / "export"))
    assert report.qualifiers == ("FROZEN_TOLD", "LIMITS_ALONE", "NO_AUDITORS", "OPEN", "WITHDRAWALS_TOLD")
    assert report.to_json()["qualifiers"] == report.qualifiers


def test_the_report_shows_every_qualifier_with_what_it_says_and_what_to_do(tmp_path):
    export = closed(tmp_path)
    report = replace(audit(export), qualifiers=tuple(sorted(QUALIFIERS)))
    page = write_report(export, tmp_path / "report.html", report=report).read_text(encoding="utf-8")
    page = page.replace("&#x27;", "'")
    for word, found in QUALIFIERS.items():
        assert page.count(word) >= 2 and found.sentence in page and found.remedy in page, word
    assert all(sentence in page for sentence in BEYOND)
    failed = write_report(export, tmp_path / "failed.html", report=replace(report, verdict="FAILED"))
    assert "id='qualifiers'" not in failed.read_text(encoding="utf-8")
