"""Registries that grew while a run went on: what the run took in is in REGISTRY leaves, and it is held to that.

The liar has the log's key. It may leave out that it took a state in: then what it did by the state is found, and a revocation
that it ignored is a qualifier. What it says to have taken in binds it.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from attest.errors import RegistryRefused
from attest.keys import public_bytes
from attest.registry import RegistryLog, RegistryWalk
from attest.withdrawal import CLASS_NOT_GRANTED, KEY_REVOKED
from ledger.audit import AuditReport, verify_export
from ledger.errors import ExportRefused, LeafRefused, LedgerClosed
from ledger.leaves import Registry, decode_leaf, encode_leaf
from ledger.log import Ledger
from tests.attacks.test_ledger_attacks_bounds import CAROL, enrolled
from tests.ledger.told_runs import Told, signed_by, two_windows
from tests.worlds.attested_ledgers import (
    CLASSES,
    NOT_BEFORE,
    AttestedDriver,
    attested_admission,
    attested_header,
    put_registry,
    registry,
    registry_bytes,
)
from tests.worlds.ledgers import OWNER_KEY, SIGNER, START
from tests.worlds.registries import RegistryBytes, continued, load, registry_file

Change = Callable[[RegistryLog], object]


def audit(export: Path, **options) -> AuditReport:
    """As an auditor who pinned the owner's key."""
    return verify_export(export, [SIGNER.vkey], owner_key=public_bytes(OWNER_KEY), minimum_size=1, **options)


def grown(*changes: Change) -> RegistryBytes:
    """The registry of these runs after changes of its owner."""
    return continued(registry_bytes(), OWNER_KEY, *changes)


def root_of(data: RegistryBytes, back: int = 0) -> bytes:
    return load(data, OWNER_KEY).roots[-1 - back]


def alice_revoked(log: RegistryLog) -> object:
    return log.revoke("alice", at=START + 6, now=START + 6)


def alice_without_sensitive(log: RegistryLog) -> object:
    return log.grant("alice", classes=["open"], cap=None, now=START + 6)


def carol_enrolled(log: RegistryLog) -> object:
    return enrolled(CAROL, now=START + 6)(log)


def told_of(*changes: Change, life=None) -> tuple[Told, bytes]:
    """An honest run whose registry has these changes, and the root of its last state; with a life between its two windows."""
    told, data = Told.honest(), grown(*changes)
    told.registry = bytes(data)

    def lived(driver: AttestedDriver) -> None:
        driver.steps(1)
        driver.now = START + 10
        life(driver, told, root_of(data))
        two_windows(driver)

    if life is not None:
        told.life = lived
    return told, root_of(data)


def take(driver: AttestedDriver, root: bytes) -> None:
    driver.ledger.take_registry(root, now=driver.tick())


def withdraw(driver: AttestedDriver, told: Told, places: tuple[int, ...], reason: str, evidence: bytes) -> None:
    for place in places:
        driver.ledger.withdraw(told.specs[place].descriptor_hash, reason, evidence, now=driver.tick())


ALICE = (1, 3)
"""Places of what alice signed: the second of class open, and the second of class sensitive."""


def obeyed(driver: AttestedDriver, told: Told, root: bytes) -> None:
    take(driver, root)
    withdraw(driver, told, ALICE, KEY_REVOKED, root)


def grant_obeyed(driver: AttestedDriver, told: Told, root: bytes) -> None:
    take(driver, root)
    withdraw(driver, told, ALICE[1:], CLASS_NOT_GRANTED, root)


def grant_obeyed_after_the_clock_was_set_back(driver: AttestedDriver, told: Told, root: bytes) -> None:
    _taken_in_ahead(driver, root)
    withdraw(driver, told, ALICE[1:], CLASS_NOT_GRANTED, root)


def _taken_in_ahead(driver: AttestedDriver, root: bytes) -> None:
    """The state is taken in by a clock that is ahead, and a CLOCK leaf takes that back."""
    driver.now = START + 1000
    take(driver, root)
    driver.ledger.set_clock("clock was ahead", now=START + 20)
    driver.now = START + 20


def carol_admitted(driver: AttestedDriver, told: Told, root: bytes) -> None:
    take(driver, root)
    _admit_carol(driver, told)


def _admit_carol(driver: AttestedDriver, told: Told) -> None:
    told.add(signed_by(CAROL, 9))
    driver.ledger.admit([replace(told.specs.pop(), attestation=None)], now=driver.tick())


HONEST: list[tuple[Change, Callable]] = [
    (alice_revoked, obeyed),
    (alice_without_sensitive, grant_obeyed),
    (alice_without_sensitive, grant_obeyed_after_the_clock_was_set_back),
    (carol_enrolled, carol_admitted),
    (carol_enrolled, lambda driver, told, root: take(driver, root)),
]


@pytest.mark.parametrize(("change", "life"), HONEST)
def test_a_run_that_takes_a_later_state_in_and_goes_by_it_is_full(tmp_path, change, life):
    told, _ = told_of(change, life=life)
    report = audit(told.export(tmp_path))
    assert (report.verdict, report.findings) == ("FULL", ()) and "KEY_REVOKED" not in report.qualifiers
    assert any("took in 1 later states" in note for note in report.notes)


def revocation_ignored(driver: AttestedDriver, told: Told, root: bytes) -> None:
    take(driver, root)


def ignored_after_the_clock_was_set_back(driver: AttestedDriver, told: Told, root: bytes) -> None:
    _taken_in_ahead(driver, root)


def one_of_two_kept(driver: AttestedDriver, told: Told, root: bytes) -> None:
    take(driver, root)
    withdraw(driver, told, ALICE[:1], KEY_REVOKED, root)


def barred_who_is_supported(driver: AttestedDriver, told: Told, root: bytes) -> None:
    take(driver, root)
    withdraw(driver, told, (0,), KEY_REVOKED, root)


def barred_before_it_was_taken_in(driver: AttestedDriver, told: Told, root: bytes) -> None:
    """What the run did shows that it had the later state, and no leaf says so."""
    withdraw(driver, told, ALICE, KEY_REVOKED, driver.ledger.state.registry_roots[-1])


def admitted_before_it_was_taken_in(driver: AttestedDriver, told: Told, root: bytes) -> None:
    _admit_carol(driver, told)


def invented_state(driver: AttestedDriver, told: Told, root: bytes) -> None:
    take(driver, b"\x77" * 32)


LIES: list[tuple[Change, Callable, str]] = [
    (alice_revoked, revocation_ignored, "BARRED"),
    (alice_revoked, one_of_two_kept, "BARRED"),
    (alice_without_sensitive, revocation_ignored, "BARRED"),
    (alice_without_sensitive, ignored_after_the_clock_was_set_back, "BARRED"),
    (alice_revoked, barred_who_is_supported, "NOT_BARRED"),
    (alice_revoked, barred_before_it_was_taken_in, "NOT_BARRED"),
    (carol_enrolled, admitted_before_it_was_taken_in, "KEY_UNKNOWN"),
    (carol_enrolled, invented_state, "REGISTRY_ROOT"),
]


@pytest.mark.parametrize(("change", "life", "code"), LIES, ids=[life.__name__ for _, life, _ in LIES])
def test_A24_what_a_run_does_against_the_state_that_it_took_in_is_found(tmp_path, change, life, code):
    told, _ = told_of(change, life=life)
    report = audit(told.export(tmp_path))
    assert report.verdict == "FAILED" and code in {item.code for item in report.findings}, report.findings


def test_A24_a_revocation_that_no_leaf_says_to_have_been_taken_in_is_a_qualifier(tmp_path):
    told, _ = told_of(alice_revoked, life=lambda driver, told, root: None)
    report = audit(told.export(tmp_path))
    assert report.verdict == "FULL" and "KEY_REVOKED" in report.qualifiers


def test_A24_a_revocation_dated_ahead_binds_from_its_time_on(tmp_path):
    """The state that the run took in says it; the first window behind it may still have the contributions, the second not."""

    def life(driver: AttestedDriver, told: Told, root: bytes) -> None:
        take(driver, root)
        driver.steps(1)
        driver.now = START + 100

    told, _ = told_of(lambda log: log.revoke("alice", at=START + 50, now=START + 6), life=life)
    findings = audit(told.export(tmp_path)).findings
    assert {item.code for item in findings} == {"BARRED"} and len(findings) == 2, "both windows behind that time, none before"


def test_a_lower_cap_counts_for_who_comes_later_and_for_nobody_before(tmp_path):
    def life(driver: AttestedDriver, told: Told, root: bytes) -> None:
        take(driver, root)

    told, _ = told_of(lambda log: log.grant("alice", classes=list(CLASSES), cap=1, now=START + 6), life=life)
    assert audit(told.export(tmp_path)).verdict == "FULL"


# --- The leaf -------------------------------------------------------------------------------------------


@pytest.fixture
def driver(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", attested_header(), SIGNER, now=START) as ledger:
        made = AttestedDriver(ledger)
        made.admit(attested_admission(1), attested_admission(2))
        yield made


def test_a_leaf_is_written_for_another_state_and_for_no_state_twice(driver):
    size = driver.ledger.size
    assert not driver.ledger.take_registry(registry().root(), now=driver.tick()) and driver.ledger.size == size
    one, two = b"\x01" * 32, b"\x02" * 32
    assert driver.ledger.take_registry(one, now=driver.tick()) and driver.ledger.take_registry(two, now=driver.tick())
    assert driver.ledger.state.registry_roots == [registry().root(), one, two]
    for back in (one, registry().root()):
        with pytest.raises(LeafRefused, match="REGISTRY"):
            driver.ledger.take_registry(back, now=driver.tick())
    leaf = Registry(9, START, one, two)
    assert decode_leaf(encode_leaf(leaf)) == leaf
    with pytest.raises(LeafRefused):
        Registry(9, START, one, one)


def test_a_leaf_that_does_not_go_on_from_the_state_in_force_is_found(driver):
    found = driver.ledger.state.apply(Registry(driver.ledger.size, driver.now, b"\x09" * 32, b"\x01" * 32))
    assert [problem.code for problem in found] == ["REGISTRY"]


def test_no_run_takes_a_registry_in_once_it_is_over(driver):
    driver.steps(1)
    driver.epoch()
    driver.ledger.finish(now=driver.tick())
    with pytest.raises((LeafRefused, LedgerClosed)):
        driver.ledger.take_registry(b"\x01" * 32, now=driver.tick())


def test_no_export_is_made_with_a_registry_that_lacks_a_state_which_the_run_took_in(driver, tmp_path):
    data = grown(carol_enrolled)
    driver.ledger.take_registry(root_of(data), now=driver.tick())
    with pytest.raises(ExportRefused, match="by which the run went"):
        driver.ledger.export(tmp_path / "old", registry=put_registry(tmp_path))
    assert driver.ledger.export(tmp_path / "new", registry=put_registry(tmp_path, data)).is_dir()


def test_a_walk_goes_forward_alone_and_verifies_every_entry_on_the_way():
    data = grown(carol_enrolled, alice_revoked)
    roots = load(data, OWNER_KEY).roots
    walk = RegistryWalk(data, public_bytes(OWNER_KEY))
    for place in (0, 2, len(roots) - 1):
        state = walk.to(roots[place])
        assert state is not None and state.roots == roots[: place + 1]
        assert walk.to(roots[place]).root() == roots[place], "where it stands it may be asked again"
    assert walk.to(roots[0]) is None
    other = registry_file(CAROL, NOT_BEFORE)
    with pytest.raises(RegistryRefused):
        RegistryWalk(other, public_bytes(OWNER_KEY)).to(load(other, CAROL).root())
