"""Several runs over one corpus: what a contribution spent in all of them, who may go on, and what an auditor recomputes."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from ledger_runs import OTHER_KEY, SIGNER, START, Driver, admission, descriptor, header_spec, signed_policy

from ledger.accountants import MICRO, Phase, epsilon_of_phases, to_micro_up
from ledger.audit import verify_export
from ledger.audit.earlier import earlier_run, verify_with_earlier
from ledger.errors import BudgetExceeded, ExportChanged, LeafRefused
from ledger.leaves import Previous
from ledger.log import Ledger
from ledger.note import NoteSigner
from ledger.rules.spent import Account, SpentRegistry, account_of, horizon_account, total

SECOND = NoteSigner("ledger.example/run2", OTHER_KEY)
KEYS = [SIGNER.vkey, SECOND.vkey]


def account(z: float = 2.0, q: float = 0.02, steps: int = 100, delta: int = 10**6, name: str = "pld") -> Account:
    phases = (Phase(z, q, steps),)
    return Account(Fraction(1, delta), name, "gaussian", phases, epsilon_of_phases(phases, 1 / delta, name))


def test_runs_of_one_delta_compose_exactly_and_are_dearer_than_one_and_cheaper_than_their_sum():
    one, other = account(), account(z=3.0, steps=50)
    both = total([one, other])
    assert both.epsilon == epsilon_of_phases([Phase(2.0, 0.02, 100), Phase(3.0, 0.02, 50)], 1e-6)
    assert max(one.epsilon, other.epsilon) < both.epsilon < one.epsilon + other.epsilon == both.summed
    assert both.delta == Fraction(1, 10**6) and both.summed_delta == Fraction(2, 10**6)
    assert total([one]).epsilon == one.epsilon and total([]).epsilon == 0.0
    assert total([account(steps=100)] * 2).epsilon == account(steps=200).epsilon


@pytest.mark.parametrize("other", [account(delta=10**5), account(name="rdp"), replace(account(), phases=None)])
def test_runs_of_other_deltas_or_accountants_add_up(other):
    one = account()
    both = total([one, other])
    assert both.epsilon == one.epsilon + other.epsilon == both.summed
    assert both.delta == one.delta + other.delta


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
            carried_micro=registry.carried(descriptor(n)).micro if carried is None else carried,
        )
        for n in (1, 9)
    ]
    if carried is not None:
        specs = specs[:1]
    return finished(tmp_path / f"{export}.db", SECOND, specs, tmp_path / export, windows=windows, previous=registry.previous)


def test_an_auditor_with_the_earlier_export_recomputes_what_was_spent(tmp_path, first):
    export = second(tmp_path, first)
    report = verify_with_earlier(export, KEYS, [first])
    assert report.verdict == "FULL", report.findings
    assert any("counted with ledger.example/run1" in note for note in report.notes)
    alone = verify_export(export, KEYS)
    assert alone.verdict == "FULL" and any("ledger.example/run1 (spent" in note for note in alone.notes)


def test_what_a_run_carries_is_what_the_earlier_one_recorded(first):
    registry = SpentRegistry([earlier_run(first, KEYS)])
    spent = registry.carried(descriptor(1))
    assert spent.micro == to_micro_up(epsilon_of_phases([Phase(1.0, 0.02, 8)], 1e-6))
    assert registry.carried(descriptor(99)).epsilon == 0.0
    assert [item.origin for item in registry.previous] == [SIGNER.name]


def test_an_understatement_fails_and_an_overstatement_does_not(tmp_path, first):
    right = SpentRegistry([earlier_run(first, KEYS)]).carried(descriptor(1)).micro
    for carried, verdict in ((right - 4, "FAILED"), (0, "FAILED"), (right + 1000, "FULL")):
        export = second(tmp_path, first, carried=carried, export=f"two{carried}")
        assert verify_export(export, KEYS).verdict == "FULL"  # by itself it cannot be told
        report = verify_with_earlier(export, KEYS, [first])
        assert report.verdict == verdict and [finding.code for finding in report.findings] in ([], ["CARRIED"])


def test_a_cited_run_that_is_missing_behind_or_another_one_fails(tmp_path, first):
    with Ledger.open(tmp_path / "one.db", SIGNER) as ledger:
        Driver(ledger, now=START + 99).withdraw(2)
        grown = ledger.export(tmp_path / "grown")
    export = second(tmp_path, grown)
    codes = {"missing": [], "behind": [first]}
    for given, expected in zip(codes.values(), ("EARLIER_MISSING", "EARLIER_BEHIND"), strict=True):
        report = verify_with_earlier(export, KEYS, given)
        assert report.verdict == "FAILED" and [finding.code for finding in report.findings] == [expected]
    assert verify_with_earlier(export, KEYS, [grown]).verdict == "FULL"
    older = second(tmp_path, first, export="older")
    assert verify_with_earlier(older, KEYS, [grown]).verdict == "FULL"  # it only grew
    unpinned = verify_with_earlier(older, [SECOND.vkey], [grown])
    assert [finding.code for finding in unpinned.findings] == ["EARLIER"]


def test_another_history_of_a_cited_run_is_a_fork_and_a_compromised_one_may_not_grow(tmp_path, first):
    (cited,) = SpentRegistry([earlier_run(first, KEYS)]).previous
    specs = [replace(admission(9), descriptor_hash=descriptor(9))]
    for name, previous, code in (
        ("forked", replace(cited, root=bytes(32)), "EARLIER_FORKED"),
        ("shorter", replace(cited, size=3, reason="compromised"), "EARLIER_FORKED"),
    ):
        export = finished(tmp_path / f"{name}.db", SECOND, specs, tmp_path / name, previous=(previous,))
        report = verify_with_earlier(export, KEYS, [first])
        assert [finding.code for finding in report.findings] == [code]
    with Ledger.open(tmp_path / "one.db", SIGNER) as ledger:
        Driver(ledger, now=START + 99).withdraw(2)
        grown = ledger.export(tmp_path / "grown")
    lost = finished(tmp_path / "lost.db", SECOND, specs, tmp_path / "lost", previous=(replace(cited, reason="compromised"),))
    assert verify_with_earlier(lost, KEYS, [first]).verdict == "FULL"
    assert [item.code for item in verify_with_earlier(lost, KEYS, [grown]).findings] == ["EARLIER_COMPROMISED"]


def header(steps: int = 40):
    spec = header_spec(signed_policy(steps=steps))
    return spec.header(origin=SECOND.name, log_vkey=SECOND.vkey, time=START)


def test_a_run_that_could_exceed_a_signed_limit_is_refused_with_the_steps_that_would_not(first):
    registry = SpentRegistry([earlier_run(first, KEYS)])
    whole = registry.with_run(descriptor(1), horizon_account(header(), admission(1)))
    limit = to_micro_up(whole.epsilon)
    registry.require_within(header(), [admission(1, max_epsilon_micro=limit), admission(9)])
    with pytest.raises(BudgetExceeded) as refused:
        registry.require_within(header(), [admission(1, max_epsilon_micro=limit - 2000)])
    nearest = refused.value.nearest
    assert refused.value.code == "BUDGET" and 0 < nearest < 40 and f"{nearest} steps" in refused.value.sentence
    registry.require_within(header(nearest), [admission(1, max_epsilon_micro=limit - 2000)])
    with pytest.raises(BudgetExceeded):
        registry.require_within(header(nearest + 1), [admission(1, max_epsilon_micro=limit - 2000)])
    with pytest.raises(BudgetExceeded) as refused:
        registry.require_within(header(), [admission(1, max_epsilon_micro=registry.carried(descriptor(1)).micro)])
    assert refused.value.nearest == 0 and "not one step" in refused.value.sentence
    # Without an earlier run the limit holds for this one by itself.
    SpentRegistry().require_within(header(), [admission(1, max_epsilon_micro=limit - 2000)])


def test_the_horizon_bounds_what_a_run_really_spends(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1), admission(2, "sensitive", clip_micro=250_000))
        driver.steps(10)
        for n, name, changes in ((1, "open", {}), (2, "sensitive", {"clip_micro": 250_000})):
            found = account_of(ledger.state, ledger.state.contributions[descriptor(n)])
            assert found is not None
            most = horizon_account(ledger.header, admission(n, name, **changes))
            assert found.epsilon < most.epsilon


def test_a_limit_that_was_exceeded_all_the_same_fails_the_audit_of_both_runs(tmp_path, first):
    registry = SpentRegistry([earlier_run(first, KEYS)])
    before = registry.carried(descriptor(1)).micro
    export = second(tmp_path, first, carried=before, max_epsilon_micro=before + 10, windows=4)
    report = verify_with_earlier(export, KEYS, [first])
    assert [finding.code for finding in report.findings] == ["BUDGET"]


def test_the_ledger_refuses_a_limit_that_is_used_up_and_carried_epsilon_without_an_earlier_run(tmp_path, first):
    with Ledger.create(tmp_path / "a.db", header_spec(), SECOND, now=START) as ledger:
        with pytest.raises(LeafRefused) as refused:
            Driver(ledger).admit(admission(1, carried_micro=5))
        assert refused.value.code == "CARRIED"
    previous = SpentRegistry([earlier_run(first, KEYS)]).previous
    with Ledger.create(tmp_path / "b.db", header_spec(previous=previous), SECOND, now=START) as ledger:
        with pytest.raises(LeafRefused) as refused:
            Driver(ledger).admit(admission(1, carried_micro=5, max_epsilon_micro=4))
        assert refused.value.code == "BUDGET"
        Driver(ledger).admit(admission(1, carried_micro=5, max_epsilon_micro=6))


def test_an_earlier_run_that_is_not_full_is_refused(tmp_path, first):
    with pytest.raises(LeafRefused) as refused:
        earlier_run(first, [SECOND.vkey])
    assert refused.value.code == "EARLIER"
    assert isinstance(earlier_run(first, KEYS).cited, Previous) and MICRO == 10**6


def test_an_export_that_is_swapped_between_its_audit_and_its_use_is_refused(tmp_path, first, monkeypatch):
    """The audit sees one directory, what is counted is read from it afterwards: here another history in its place."""
    from ledger.audit import earlier

    other = finished(tmp_path / "other.db", SIGNER, [admission(1)], tmp_path / "other", windows=1)
    export = second(tmp_path, first)
    audited = verify_export(first, KEYS)
    monkeypatch.setattr(earlier, "verify_export", lambda *args, **named: audited)
    with pytest.raises(ExportChanged):
        earlier_run(other, KEYS)
    report = verify_with_earlier(export, KEYS, [first])
    assert [finding.code for finding in report.findings] == ["CHANGED"]


def test_steps_charged_to_a_run_after_it_was_counted_fail_the_audit(tmp_path):
    with Ledger.create(tmp_path / "one.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1))
        driver.steps(1)
        early = ledger.export(tmp_path / "early")
        driver.steps(2)
        late = ledger.export(tmp_path / "late")
    export = second(tmp_path, early)
    assert verify_with_earlier(export, KEYS, [early]).verdict == "FULL"
    assert [item.code for item in verify_with_earlier(export, KEYS, [late]).findings] == ["EARLIER_GREW"]


def test_totals_are_not_recomputed_from_a_pruned_export(tmp_path, first, monkeypatch):
    from ledger.audit import earlier

    summarised = replace(verify_export(first, KEYS), verdict="SUMMARISED")
    monkeypatch.setattr(earlier, "verify_export", lambda *args, **named: summarised)
    assert [item.code for item in verify_with_earlier(first, KEYS, []).findings] == ["PRUNED"]
    with pytest.raises(LeafRefused) as refused:
        earlier_run(first, KEYS)
    assert refused.value.code == "EARLIER"
