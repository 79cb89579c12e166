"""Lies over runs of which nothing says any more who stayed: what can be held against nothing must be said to be told.

Runs are written with the log's key and folded: closed, vouched for behind the close, and without the ADMIT leaf of anybody.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from attest import signed_file
from attest.withdrawal import Withdrawal, sign_withdrawal
from ledger.accountants import to_micro_up
from ledger.audit import AuditReport, verify_export
from ledger.audit.verify import earlier_run
from ledger.leaves import Previous
from ledger.log import Ledger
from ledger.note import NoteSigner
from ledger.proofs.monitoring import watch
from ledger.replay.contributions import AdmitSpec
from ledger.replay.earlier_runs import SpentRegistry
from tests.worlds.ledgers import (
    OTHER_KEY,
    OWNER_KEY,
    SIGNER,
    START,
    Driver,
    admission,
    descriptor,
    header_spec,
    signed_policy,
)
from tests.worlds.retained_ledgers import ANNA, BEN, vouched_for

SECOND = NoteSigner("ledger.example/run2", OTHER_KEY)
KEYS = [SIGNER.vkey, SECOND.vkey]
LIMIT = {"max_epsilon_micro": 1_900_000, "max_delta_pico": 10**6}


class Exports(NamedTuple):
    """One run before and after the admissions of everybody went."""

    whole: Path
    folded: Path


def run(
    base: Path, signer: NoteSigner, life: Callable[[Driver], None], *, later: int = 0, previous: tuple[Previous, ...] = ()
) -> Exports:
    """A run that lives so, closes two epochs more, and is folded; it begins ``later`` seconds after the first one."""
    policy = signed_policy(retention_epochs=1, auditors=(ANNA.vkey, BEN.vkey), auditor_quorum=2)
    spec = header_spec(policy, previous=previous, run_id=bytes([later % 251]) * 16)
    place = base / signer.name.rpartition("/")[2]
    place.mkdir(parents=True)
    with Ledger.create(place / "ledger.db", spec, signer, now=START + later) as ledger:
        driver = Driver(ledger, now=START + later, streams=later)
        life(driver)
        driver.epoch()
        for _ in range(2):
            driver.steps(1)
            driver.epoch()
        ledger.summarise(now=driver.tick())
        ledger.finish(now=driver.tick())
        vouched_for(driver, ANNA, BEN)
        whole = ledger.export(place / "whole")
        ledger.prune(who_stays=True)
        return Exports(whole, ledger.export(place / "folded"))


def admitting(*specs: AdmitSpec, steps: int = 1, withdrawn: tuple[int, ...] = ()) -> Callable[[Driver], None]:
    """A life of a run."""

    def life(driver: Driver) -> None:
        driver.admit(*specs)
        driver.steps(1)
        for n in withdrawn:
            driver.withdraw(n)
        driver.steps(steps)

    return life


def counting(*exports: Path) -> SpentRegistry:
    return SpentRegistry([earlier_run(export, KEYS) for export in exports])


def carrying(registry: SpentRegistry, spec: AdmitSpec) -> AdmitSpec:
    return replace(spec, carried_micro=to_micro_up(registry.carried(spec.descriptor_hash, 1e-6, spec)))


def codes(report: AuditReport) -> set[str]:
    return {found.code for found in report.findings}


@pytest.mark.parametrize(
    ("lie", "code"),
    [("carried", "CARRIED"), ("left out", "EARLIER_LEFT_OUT"), ("limit", "BUDGET"), ("withdrawn", "EARLIER_WITHDRAWN")],
)
def test_what_was_wrong_of_several_runs_before_folding_is_told_after_it(tmp_path, lie, code):
    """The leaves that would show it are gone, and auditors vouch for one ledger alone: no verdict may say that it holds."""
    limit = LIMIT if lie == "limit" else {}
    gone = (1,) if lie == "withdrawn" else ()
    first = run(tmp_path, SIGNER, admitting(admission(1, **limit), admission(2, **limit), steps=7, withdrawn=gone))
    registry = counting(first.whole)
    specs = [admission(n, **limit) for n in (1, 2)]
    if lie in ("limit", "withdrawn"):
        specs = [carrying(registry, spec) for spec in specs]
    previous = () if lie == "left out" else registry.previous
    second = run(tmp_path, SECOND, admitting(*specs, steps=7), later=1000, previous=previous)
    whole, folded = (verify_export(export, KEYS, earlier=[first.whole]) for export in second)
    assert whole.verdict == "FAILED" and code in codes(whole)
    assert folded.verdict != "FAILED" and "EARLIER_TOLD" in folded.qualifiers
    assert ("LIMITS_ALONE" in folded.qualifiers) == (lie == "limit")


@pytest.mark.parametrize("epsilon", [1.9, 9.0], ids=["exceeded", "with room"])
def test_a_limit_that_may_be_exceeded_with_what_was_spent_in_a_folded_run_is_told(tmp_path, epsilon):
    """The admission says what was spent before, and no leaf says in which run: the limit is held against this run alone."""
    limit = LIMIT | {"max_epsilon_micro": int(epsilon * 10**6)}
    first = run(tmp_path, SIGNER, admitting(admission(1, **limit), admission(2, **limit), steps=7))
    registry = counting(first.whole)
    specs = [carrying(registry, admission(n, **limit)) for n in (1, 2)]
    second = run(tmp_path, SECOND, admitting(*specs, steps=7), later=1000, previous=registry.previous)
    third = NoteSigner("ledger.example/run3", OTHER_KEY)
    both, stranger = counting(first.whole, second.whole), admission(7, "sensitive")
    last = run(tmp_path, third, admitting(stranger), later=2000, previous=both.previous)
    keys, exceeded = [*KEYS, third.vkey], epsilon < 2
    for named, folded in (
        [verify_export(second.whole, keys, earlier=[export]) for export in first],
        [verify_export(last.whole, keys, earlier=[export, second.whole]) for export in first],
    ):
        assert ("BUDGET" in codes(named)) == exceeded
        assert folded.findings == () and ("EARLIER_TOLD" in folded.qualifiers) == exceeded


def test_an_honest_run_does_not_fail_because_another_was_folded_since(tmp_path):
    """Newcomers of a run that counts it, and a run with which it shares nobody: what nothing shows is told."""
    first = run(tmp_path, SIGNER, admitting(admission(1), admission(2)))
    registry = counting(first.whole)
    cases = {"counted": registry.previous, "apart": ()}
    for name, previous in cases.items():
        specs = [carrying(registry, spec) for spec in (admission(5, "sensitive"), admission(6))]
        second = run(tmp_path / name, SECOND, admitting(*specs), later=1000, previous=previous)
        before, since = (verify_export(second.whole, KEYS, earlier=[export]) for export in first)
        assert before.findings == since.findings == () and "EARLIER_TOLD" not in before.qualifiers
        assert "EARLIER_TOLD" in since.qualifiers
        both = verify_export(second.folded, KEYS, earlier=[first.folded])
        assert both.findings == (), "names that stand in for others are those of nobody"


def test_runs_that_share_somebody_who_may_have_stayed_are_apart_though_all_have_left(tmp_path):
    first = run(tmp_path, SIGNER, admitting(admission(1)))
    second = run(tmp_path, SECOND, admitting(admission(1), admission(2), withdrawn=(1, 2)), later=1000)
    third = NoteSigner("ledger.example/run3", OTHER_KEY)
    for name, export in first._asdict().items():
        registry = counting(export, second.whole)
        specs = [carrying(registry, admission(5))]
        last = run(tmp_path / name, third, admitting(*specs), later=2000, previous=registry.previous)
        report = verify_export(last.whole, [*KEYS, third.vkey], earlier=[export, second.whole])
        assert report.findings == () and "EARLIER_APART" in report.qualifiers


def test_a_signed_withdrawal_that_no_leaf_enters_is_told_of_whoever_may_have_stayed(tmp_path):
    """By the auditor with a qualifier, and to the contributor with an alarm."""
    exports = run(tmp_path, SIGNER, admitting(admission(1), admission(2)))
    given = tmp_path / "withdrawals"
    given.mkdir()
    for corpus in ("notes", "others"):
        said = Withdrawal(descriptor_hash=descriptor(1), corpus=corpus, time=START + 1, reason_code="contributor")
        signed_file.write(given / f"{corpus}.cose", *sign_withdrawal(said, OWNER_KEY, signer="owner"))
    said = replace(said, corpus="notes")
    for export in exports:
        report = verify_export(export, KEYS, withdrawals=given)
        assert report.findings == () and "WITHDRAWAL_UNENTERED" in report.qualifiers
        seen = watch([export], KEYS, [], [("one.cose", said)], delay=60, now=START + 86_400)
        assert [alarm.code for alarm in seen.alarms] == ["WITHDRAWAL_MISSING"]


@pytest.mark.parametrize("turn", [1, -1])
def test_of_two_exports_of_one_ledger_that_counts_which_names_more(tmp_path, turn):
    """In whatever order they are given: an auditor who kept what was before does not lose by being shown what is left."""
    first = run(tmp_path, SIGNER, admitting(admission(1), admission(2), steps=7))
    second = run(tmp_path, SECOND, admitting(admission(1)), later=1000, previous=counting(first.whole).previous)
    assert codes(verify_export(second.whole, KEYS, earlier=[first.folded])) == set()
    assert codes(verify_export(second.whole, KEYS, earlier=first[::turn])) == {"CARRIED"}
