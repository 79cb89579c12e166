"""Attacks on several runs over one corpus: what a log that signs everything itself may leave out of what was spent before."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger.accountants import Phase, epsilon_of_phases
from ledger.audit.earlier import earlier_run, verify_with_earlier
from ledger.leaves import Previous
from ledger.log import Ledger
from ledger.note import NoteSigner
from ledger.rules.spent import Account, SpentRegistry, total
from tests.ledger.ledger_runs import OTHER_KEY, SIGNER, START, Driver, admission, descriptor, header_spec, signed_policy

SECOND = NoteSigner("ledger.example/run2", OTHER_KEY)
THIRD = NoteSigner("ledger.example/run3", Ed25519PrivateKey.from_private_bytes(bytes(range(3, 35))))
KEYS = [SIGNER.vkey, SECOND.vkey, THIRD.vkey]


def finished(base: Path, name: str, signer: NoteSigner, *specs, streams: int = 0, **header) -> Path:
    """A closed run of two windows, exported; every run of these tests draws other noise unless it says 0 twice."""
    with Ledger.create(base / f"{name}.db", header_spec(**header), signer, now=START) as ledger:
        driver = Driver(ledger, streams=streams)
        driver.admit(*specs)
        driver.steps(2)
        driver.epoch()
        ledger.finish(now=driver.tick())
        return ledger.export(base / name)


def counting(*exports: Path) -> SpentRegistry:
    return SpentRegistry([earlier_run(export, KEYS) for export in exports])


def carrying(registry: SpentRegistry):
    return replace(admission(1), carried_micro=registry.carried(descriptor(1)).micro)


def codes(export: Path, *earlier: Path) -> list[str]:
    report = verify_with_earlier(export, KEYS, earlier)
    assert report.verdict == ("FAILED" if report.findings else "FULL")
    return [found.code for found in report.findings]


def test_a_run_that_an_earlier_run_counted_may_not_be_left_out(tmp_path):
    """A spent, B counted A, C counts B alone: what A spent would be in no figure of C."""
    first = finished(tmp_path, "one", SIGNER, admission(1))
    registry = counting(first)
    second = finished(tmp_path, "two", SECOND, carrying(registry), streams=10, previous=registry.previous)
    for given, expected in (((second,), ["EARLIER_UNCITED"]), ((first, second), [])):
        registry = counting(*given)
        name = f"three{len(given)}"
        third = finished(tmp_path, name, THIRD, carrying(registry), streams=20, previous=registry.previous)
        assert codes(third, first, second) == expected


def test_an_earlier_run_is_cited_under_its_own_name_and_key(tmp_path):
    """By its digest alone a compromised ledger could be cited under another name, and its lost key be used on."""
    first = finished(tmp_path, "one", SIGNER, admission(1))
    registry = counting(first)
    (cited,) = registry.previous
    other = NoteSigner("other.example/run", THIRD.private_key)
    lies: list[Previous] = [
        replace(cited, origin=other.name, log_vkey=other.vkey, reason="compromised"),
        replace(cited, log_vkey=NoteSigner(SIGNER.name, THIRD.private_key).vkey, reason="compromised"),
    ]
    for n, lie in enumerate(lies):
        signer = SIGNER if n == 0 else NoteSigner("heir.example", SIGNER.private_key)
        export = finished(tmp_path, f"lie{n}", signer, carrying(registry), streams=10, previous=(lie,))
        report = verify_with_earlier(export, [*KEYS, signer.vkey], [first])
        assert [found.code for found in report.findings] == ["EARLIER_NAME"]


def test_draws_after_an_earlier_run_was_counted_fail_though_no_step_is_charged(tmp_path):
    """Where draws are public the DRAW leaf spends, not the CHARGE leaf: a run that is cited between them spent nothing yet."""
    policy = signed_policy(disclosure="occurrences_public")
    with Ledger.create(tmp_path / "one.db", header_spec(policy), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1))
        window = driver.charge()
        early = ledger.export(tmp_path / "early")
        for step in range(1, 5):
            ledger.draw(step, [0], now=driver.tick())
        ledger.settle(window, 4, now=driver.tick())
        driver.epoch()
        ledger.finish(now=driver.tick())
        whole = ledger.export(tmp_path / "whole")
    registry = counting(early)
    second = finished(tmp_path, "two", SECOND, carrying(registry), streams=10, previous=registry.previous)
    assert codes(second, whole) == ["EARLIER_GREW"]
    # Against the older export nothing can be found, and the report says what that leaves open.
    assert any("was not closed" in note for note in verify_with_earlier(second, KEYS, [early]).notes)


def test_noise_of_an_earlier_run_is_not_used_again(tmp_path):
    """The same stream in two runs: the difference of two releases would have no noise."""
    first = finished(tmp_path, "one", SIGNER, admission(1))
    registry = counting(first)
    second = finished(tmp_path, "two", SECOND, carrying(registry), previous=registry.previous)
    assert codes(second, first) == ["NOISE_REUSED"]


def test_runs_that_spend_nothing_by_themselves_compose_all_the_same():
    """Each has epsilon 0 at its delta, which it has used up for that: left out, any number of them would be free."""
    phases = (Phase(1.0, 1e-7, 20),)
    delta = Fraction(1, 10**6)
    one = Account(delta, "pld", "gaussian", phases, epsilon_of_phases(phases, float(delta), "pld"))
    assert one.epsilon == 0.0
    many = total([one] * 50)
    assert many.epsilon == epsilon_of_phases([Phase(1.0, 1e-7, 1000)], float(delta), "pld") > 0.0
    assert many.summed_delta == 50 * delta
    other = replace(one, delta=Fraction(1, 10**5), epsilon=0.0)
    assert total([one, other]).delta == one.delta + other.delta
