"""Several runs over one corpus: what a contribution spent in all of them, who may go on, and what an auditor recomputes."""

from dataclasses import replace
from pathlib import Path

import pytest

from ledger.accountants import MICRO, Phase, epsilon_occurrences, epsilon_of_phases, to_micro_up
from ledger.audit import verify_export
from ledger.audit.verify import earlier_run
from ledger.errors import ExportChanged, LeafRefused
from ledger.leaves import Previous
from ledger.log import Ledger
from ledger.note import NoteSigner
from ledger.replay.budgets import Spending, composed
from ledger.replay.earlier_runs import SpentRegistry
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START, Driver, admission, descriptor, header_spec

SECOND = NoteSigner("ledger.example/run2", OTHER_KEY)
KEYS = [SIGNER.vkey, SECOND.vkey]


def spending(z: float = 2.0, q: float = 0.02, steps: int = 100, name: str = "pld", family: str = "gaussian") -> Spending:
    return Spending(name, family, (Phase(z, q, steps),))


def test_runs_compose_exactly_and_are_dearer_than_one_and_cheaper_than_their_sum():
    one, other = spending(), spending(z=3.0, steps=50)
    both = composed([one, other], 1e-6)
    assert both == epsilon_of_phases([Phase(2.0, 0.02, 100), Phase(3.0, 0.02, 50)], 1e-6)
    assert max(one.epsilon(1e-6), other.epsilon(1e-6)) < both < one.epsilon(1e-6) + other.epsilon(1e-6)
    assert composed([one], 1e-6) == one.epsilon(1e-6) and composed([], 1e-6) == 0.0
    assert composed([spending(steps=100)] * 2, 1e-6) == spending(steps=200).epsilon(1e-6)
    assert composed([one, Spending("pld", "gaussian")], 1e-6) == one.epsilon(1e-6)


@pytest.mark.parametrize("other", [spending(name="rdp"), spending(name="moments"), spending(family="laplace")])
def test_runs_of_other_accountants_or_families_share_delta(other):
    """Each at half of it, or both by their divergences: never less than either alone, nor more than both at half of it."""
    one = spending()
    both = composed([one, other], 1e-6)
    assert max(one.epsilon(1e-6), other.epsilon(1e-6)) < both <= one.epsilon(5e-7) + other.epsilon(5e-7)
    assert composed([one, other], 1e-12) < 1.5 * (one.epsilon(1e-12) + other.epsilon(1e-12))  # there are no halves of 1e-12


def test_public_occurrences_compose_as_releases():
    gaussian = Spending("pld", "gaussian", loss=0.5)
    assert composed([gaussian, gaussian], 1e-6) == pytest.approx(epsilon_occurrences(1.0, 1e-6), abs=2e-6)
    skellam = Spending("rdp", "skellam", loss=0.5)
    assert composed([skellam, skellam], 1e-6) == epsilon_occurrences(1.0, 1e-6, "rdp", family="skellam")


def finished(path: Path, signer: NoteSigner, specs, export: Path, windows: int = 2, **header) -> Path:
    with Ledger.create(path, header_spec(**header), signer, now=START) as ledger:
        driver = Driver(ledger, streams=0 if signer is SIGNER else 1000)  # no noise stream serves two runs
        driver.admit(*specs)
        driver.steps(windows)
        driver.epoch()
        ledger.finish(now=driver.tick())
        return ledger.export(export)


@pytest.fixture
def first(tmp_path) -> Path:
    return finished(tmp_path / "one.db", SIGNER, [admission(1), admission(2), admission(3, "sensitive")], tmp_path / "one")


def second(tmp_path, first, carried=None, export="two", windows=2, **changes):
    """A run that counts the first one."""
    registry = SpentRegistry([earlier_run(first, KEYS)])
    specs = [
        replace(
            admission(n, **changes),
            carried_micro=to_micro_up(registry.carried(descriptor(n), 1e-6)) if carried is None else carried,
        )
        for n in (1, 9)
    ]
    if carried is not None:
        specs = specs[:1]
    return finished(tmp_path / f"{export}.db", SECOND, specs, tmp_path / export, windows=windows, previous=registry.previous)


def test_an_auditor_with_the_earlier_export_recomputes_what_was_spent(tmp_path, first):
    export = second(tmp_path, first)
    report = verify_export(export, KEYS, earlier=[first])
    assert report.verdict == "TOLD", report.findings
    assert any("counted with ledger.example/run1" in note for note in report.notes)
    alone = verify_export(export, KEYS)
    assert alone.verdict == "TOLD" and any("ledger.example/run1 (spent" in note for note in alone.notes)


def test_what_a_run_carries_is_what_the_earlier_one_recorded(first):
    registry = SpentRegistry([earlier_run(first, KEYS)])
    spent = registry.carried(descriptor(1), 1e-6)
    assert to_micro_up(spent) == to_micro_up(epsilon_of_phases([Phase(1.0, 0.02, 8)], 1e-6))
    assert registry.carried(descriptor(99), 1e-6) == 0.0
    assert [item.origin for item in registry.previous] == [SIGNER.name]


def test_an_understatement_fails_and_an_overstatement_does_not(tmp_path, first):
    right = to_micro_up(SpentRegistry([earlier_run(first, KEYS)]).carried(descriptor(1), 1e-6))
    for carried, verdict in ((right - 4, "FAILED"), (0, "FAILED"), (right + 1000, "TOLD")):
        export = second(tmp_path, first, carried=carried, export=f"two{carried}")
        assert verify_export(export, KEYS).verdict == "TOLD"  # by itself it cannot be told
        report = verify_export(export, KEYS, earlier=[first])
        assert report.verdict == verdict and [finding.code for finding in report.findings] in ([], ["CARRIED"])


def test_a_cited_run_that_is_missing_behind_or_another_one_fails(tmp_path, first):
    with Ledger.open(tmp_path / "one.db", SIGNER) as ledger:
        Driver(ledger, now=START + 99).withdraw(2)
        grown = ledger.export(tmp_path / "grown")
    export = second(tmp_path, grown)
    codes = {"missing": [], "behind": [first]}
    for given, expected in zip(codes.values(), ("EARLIER_MISSING", "EARLIER_BEHIND"), strict=True):
        report = verify_export(export, KEYS, earlier=given)
        assert report.verdict == "FAILED" and [finding.code for finding in report.findings] == [expected]
    assert verify_export(export, KEYS, earlier=[grown]).verdict == "TOLD"
    older = second(tmp_path, first, export="older")
    assert verify_export(older, KEYS, earlier=[grown]).verdict == "TOLD"  # it only grew
    unpinned = verify_export(older, [SECOND.vkey], earlier=[grown])
    assert [finding.code for finding in unpinned.findings] == ["EARLIER"]


def test_another_history_of_a_cited_run_is_a_fork_and_a_compromised_one_may_not_grow(tmp_path, first):
    (cited,) = SpentRegistry([earlier_run(first, KEYS)]).previous
    specs = [replace(admission(9), descriptor_hash=descriptor(9))]
    for name, previous, code in (
        ("forked", replace(cited, root=bytes(32)), "EARLIER_FORKED"),
        ("shorter", replace(cited, size=3, reason="compromised"), "EARLIER_FORKED"),
    ):
        export = finished(tmp_path / f"{name}.db", SECOND, specs, tmp_path / name, previous=(previous,))
        report = verify_export(export, KEYS, earlier=[first])
        assert [finding.code for finding in report.findings] == [code]
    with Ledger.open(tmp_path / "one.db", SIGNER) as ledger:
        Driver(ledger, now=START + 99).withdraw(2)
        grown = ledger.export(tmp_path / "grown")
    lost = finished(tmp_path / "lost.db", SECOND, specs, tmp_path / "lost", previous=(replace(cited, reason="compromised"),))
    assert verify_export(lost, KEYS, earlier=[first]).verdict == "TOLD"
    assert [item.code for item in verify_export(lost, KEYS, earlier=[grown]).findings] == ["EARLIER_COMPROMISED"]


def test_an_earlier_run_that_failed_its_audit_is_refused(tmp_path, first):
    with pytest.raises(LeafRefused) as refused:
        earlier_run(first, [SECOND.vkey])
    assert refused.value.code == "EARLIER"
    assert isinstance(earlier_run(first, KEYS).cited, Previous) and MICRO == 10**6


def test_an_export_that_is_swapped_between_its_audit_and_its_use_is_refused(tmp_path, first, monkeypatch):
    """The audit sees one directory, what is counted is read from it afterwards: here another history in its place."""
    from ledger.audit import verify
    from ledger.audit.earlier import hold_against_earlier

    other = finished(tmp_path / "other.db", SIGNER, [admission(1)], tmp_path / "other", windows=1)
    export = second(tmp_path, first)
    audited = verify_export(first, KEYS)
    monkeypatch.setattr(verify, "verify_export", lambda *args, **named: audited)
    with pytest.raises(ExportChanged):
        earlier_run(other, KEYS)
    report = hold_against_earlier(audited, export, [first], lambda path: audited)
    assert [finding.code for finding in report.findings] == ["CHANGED"]


def test_a_run_that_was_not_closed_when_it_was_counted_fails_the_audit(tmp_path):
    """More could be charged to it: whichever of its exports is shown, what it charged later counts nowhere."""
    with Ledger.create(tmp_path / "one.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1))
        driver.steps(1)
        early, size, root = ledger.export(tmp_path / "early"), ledger.size, ledger.root
        driver.steps(2)
        driver.epoch()
        ledger.finish(now=driver.tick())
        late = ledger.export(tmp_path / "late")
    with pytest.raises(LeafRefused) as refused:
        earlier_run(early, KEYS)
    assert refused.value.code == "EARLIER_OPEN"
    (whole,) = SpentRegistry([earlier_run(late, KEYS)]).previous
    cited = replace(whole, size=size, root=root)
    export = finished(tmp_path / "two.db", SECOND, [admission(1, carried_micro=10**6)], tmp_path / "two", previous=(cited,))
    for given in (early, late):
        assert [item.code for item in verify_export(export, KEYS, earlier=[given]).findings] == ["EARLIER_OPEN"]
