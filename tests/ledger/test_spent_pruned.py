"""Totals over runs of which leaves were pruned: the same as from the whole export, and said to rest on auditors' word."""

from dataclasses import replace

import pytest

from ledger.accountants import MICRO, to_micro_up
from ledger.audit import verify_export
from ledger.audit.verify import earlier_run
from ledger.log import Ledger
from ledger.note import NoteSigner
from ledger.replay.earlier_runs import SpentRegistry
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START, Driver, admission, descriptor, header_spec, signed_policy
from tests.worlds.retained_ledgers import ANNA, AUDITORS, BEN, grown, is_pruned, vouched_for

SECOND = NoteSigner("ledger.example/run2", OTHER_KEY)
KEYS = [SIGNER.vkey, SECOND.vkey]
EVERYBODY = range(1, 7)


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """A closed run with leavers, whole and pruned."""
    base = tmp_path_factory.mktemp("runs")
    driver = grown(base / "one.db")
    ledger = driver.ledger
    ledger.summarise(now=driver.tick())
    vouched_for(driver, ANNA, BEN)
    driver.steps(1)
    driver.epoch()
    ledger.finish(now=driver.tick())
    whole = ledger.export(base / "whole")
    ledger.prune()
    pruned = ledger.export(base / "pruned")
    ledger.close()
    return base, whole, pruned


def counting(export) -> SpentRegistry:
    return SpentRegistry([earlier_run(export, KEYS)])


def test_what_was_spent_is_recomputed_from_what_stays(exports):
    _, whole, pruned = exports
    assert [is_pruned(verify_export(export, KEYS)) for export in (whole, pruned)] == [False, True]
    assert counting(whole).previous == counting(pruned).previous
    for delta in (1e-9, 1e-6, 1e-2):
        found = [[counting(export).carried(descriptor(n), delta) for n in EVERYBODY] for export in (whole, pruned)]
        assert found[0] == found[1] and (delta > 1e-3 or min(found[0]) > 0)
    limits = [[ledger.of(descriptor(n)).limits for n in EVERYBODY] for ledger in counting(pruned)._ledgers]
    assert limits == [[()] * 6]


def later(base, registry, name, *specs):
    """A later run, which enters again what was withdrawn before."""
    with Ledger.create(base / f"{name}.db", header_spec(previous=registry.previous), SECOND, now=START + 500) as ledger:
        driver = Driver(ledger, now=START + 500)
        driver.admit(*specs)
        ledger.withdraw_all(registry.withdrawn_among(ledger.state.contributions), now=driver.tick())
        driver.steps(1)
        driver.epoch()
        ledger.finish(now=driver.tick())
        return ledger.export(base / name)


def test_a_run_that_counts_a_pruned_one_is_summarised_and_every_lie_is_found_as_before(exports):
    base, whole, pruned = exports
    registry = counting(pruned)
    # 2 left in the first epoch: the body of its ADMIT leaf is gone.
    right = to_micro_up(registry.carried(descriptor(2), 1e-6))
    honest = later(base, registry, "honest", admission(2, carried_micro=right))
    reports = [verify_export(honest, KEYS, earlier=[export]) for export in (whole, pruned)]
    assert [report.verdict for report in reports] == ["TOLD", "TOLD"] and [*map(is_pruned, reports)] == [False, True]
    told = [note for note in reports[1].notes if "the bodies of" in note and SIGNER.name in note]
    assert len(told) == 1 and "leaves 1 to" in told[0] and ANNA.name in told[0]
    totals = [[note for note in report.notes if note.startswith("class")] for report in reports]
    assert totals[0] == totals[1] and len(totals[0]) == 1
    lie = later(base, registry, "lie", admission(2, carried_micro=right - 4))
    limit = {"max_epsilon_micro": 50 * MICRO, "max_delta_pico": 10**6}
    other = later(base, registry, "other", admission(2, carried_micro=right, **limit))
    for export, code in ((lie, "CARRIED"), (other, "LIMIT")):
        for given in (whole, pruned):
            assert [found.code for found in verify_export(export, KEYS, earlier=[given]).findings] == [code]


def test_anybody_counts_with_the_steps_of_who_stayed_longest(tmp_path):
    """Under equal terms the last to be admitted may have left first: what the others spent is no less for that."""
    with Ledger.create(tmp_path / "one.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1), admission(2))
        driver.steps(1)
        driver.withdraw(2)
        driver.steps(5)
        driver.epoch()
        ledger.finish(now=driver.tick())
        registry = counting(ledger.export(tmp_path / "one"))
    (most,) = registry.of_anybody(admission(7))
    assert most.spent.epsilon(1e-6) == registry.carried(descriptor(1), 1e-6) > registry.carried(descriptor(2), 1e-6)


def test_a_pruned_run_may_itself_count_earlier_ones(exports, tmp_path):
    """The run under audit is the pruned one, and what it says was carried is in its aggregates."""
    first = later(tmp_path, SpentRegistry(), "first", admission(2), admission(1))
    registry = SpentRegistry([earlier_run(first, KEYS)])
    carried = {n: to_micro_up(registry.carried(descriptor(n), 1e-6)) for n in (1, 2)}
    for lie, codes in ((0, []), (4, ["CARRIED"])):
        policy = signed_policy(retention_epochs=1, auditors=AUDITORS, auditor_quorum=2)
        spec = header_spec(policy, previous=registry.previous)
        driver = Driver(Ledger.create(tmp_path / f"{lie}.db", spec, SIGNER, now=START + 900), now=START + 900)
        driver.admit(*(replace(admission(n), carried_micro=carried[n] - lie * (n == 2)) for n in (1, 2)))
        driver.steps(1)
        driver.withdraw(2)
        for _ in range(3):
            driver.steps(1)
            driver.epoch()
        driver.ledger.summarise(now=driver.tick())
        vouched_for(driver, ANNA, BEN)
        driver.steps(1)
        driver.epoch()
        driver.ledger.prune()
        export = driver.ledger.export(tmp_path / f"pruned{lie}")
        driver.ledger.close()
        report = verify_export(export, KEYS, earlier=[first])
        assert [found.code for found in report.findings] == codes
        assert report.verdict == "FAILED" if lie else is_pruned(report)
