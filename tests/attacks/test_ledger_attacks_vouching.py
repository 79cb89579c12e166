"""Attacks on auditors who vouch: what is hidden from them must not be counted as what they saw."""

from dataclasses import replace
from pathlib import Path

import pytest

from ledger import tiles
from ledger.audit import verify_export
from ledger.errors import CosignRefused
from ledger.leaves import Admit, decode_leaf
from ledger.log import Ledger
from ledger.proofs.cosigning import cosign_export
from ledger.proofs.memory import Memory
from ledger.retention import MEMBER, statements, summary_keys
from tests.worlds.attested_ledgers import AttestedDriver, attested_admission
from tests.worlds.ledgers import SIGNER, START, Driver
from tests.worlds.retained_ledgers import ANNA, BEN, CLEO, export_of, retaining_spec, vouched_for

KEYS = [SIGNER.vkey]


def of_bob(n: int):
    """An admission under terms that all of these share, so that none are without a use where one is hidden."""
    return attested_admission(n, contributor="bob")


def vouched_by(who, export: Path, base: Path):
    memory = Memory(base / who.name.replace("/", "-"), who.vkey)
    return cosign_export(export, KEYS, who, memory, now=START + 5000, first=True, summary=True)


def summarised(driver: Driver, *who) -> int:
    """Summarises what is due, has it vouched for, and closes one more epoch; returns the position of the summary."""
    leaf = driver.ledger.summarise(now=driver.tick())
    vouched_for(driver, *who)
    driver.steps(1)
    driver.epoch()
    return leaf.seq


@pytest.fixture
def empty_first(tmp_path) -> tuple[Driver, int, int]:
    """A run whose first summarised range has no body that may go; the second range is pruned."""
    driver = AttestedDriver(Ledger.create(tmp_path / "ledger.db", retaining_spec(attested=True), SIGNER, now=START))
    driver.epoch()
    driver.admit(*map(attested_admission, (1, 2, 3)))
    driver.steps(1)
    driver.withdraw(2)
    driver.epoch()
    first = summarised(driver, ANNA, BEN)
    second = summarised(driver, ANNA, BEN)
    assert driver.ledger.prune() > 0
    yield driver, first, second
    driver.ledger.close()


def test_an_auditor_vouches_for_no_range_whose_bodies_it_never_saw_though_an_earlier_one_is_whole(empty_first, tmp_path):
    """`since` speaks for every later summary too: it begins behind the last of which anything is gone."""
    driver, first, second = empty_first
    export = export_of(driver, tmp_path / "lean")
    report = verify_export(export, KEYS)
    assert report.verdict == "SUMMARISED" and [row.pruned > 0 for row in report.summaries] == [False, True]
    assert [row.whole for row in report.summaries] == [True, False]
    with pytest.raises(CosignRefused, match="NO_SUMMARY"):
        vouched_by(CLEO, export, tmp_path)
    third = driver.ledger.summarise(now=driver.tick()).seq
    done = vouched_by(CLEO, export_of(driver, tmp_path / "later"), tmp_path)
    assert statements(driver.ledger.header, done.note) == {CLEO.name: third} and done.vouched == (third,)
    driver.ledger.add_signatures(done.note, summary_keys(driver.ledger.header))
    assert driver.ledger.vouchers == {first: (ANNA.name, BEN.name), second: (ANNA.name, BEN.name), third: (CLEO.name,)}


def test_an_auditor_vouches_for_no_withdrawal_whose_admission_is_hidden_in_an_earlier_range(tmp_path):
    """A WITHDRAW leaf of the second range names an ADMIT leaf of the first: that leaf is one of the bodies it speaks for."""
    driver = AttestedDriver(Ledger.create(tmp_path / "ledger.db", retaining_spec(attested=True), SIGNER, now=START))
    driver.admit(*map(of_bob, (1, 2, 3)))
    driver.steps(1)
    driver.withdraw(3)
    driver.epoch()
    driver.steps(1)
    driver.withdraw(2)
    driver.epoch()
    summarised(driver, ANNA, BEN)
    assert driver.ledger.prune() > 0
    second = summarised(driver, ANNA, BEN)
    honest = export_of(driver, tmp_path / "honest")
    hidden = export_of(driver, tmp_path / "hidden")
    record, place = driver.ledger.state.tally.summarised[0][0], driver.ledger.state.contributions[of_bob(2).descriptor_hash].seq
    assert (record.first, record.count, place) == (1, 3, 2)
    driver.ledger.close()
    assert statements(driver.ledger.header, vouched_by(CLEO, honest, tmp_path / "one").note)[CLEO.name] == second
    (path,) = (path for path in (hidden / "retained").rglob("*") if path.is_file() and path.name != "notes")
    entries = tiles.split_bundle(path.read_bytes(), None)
    assert isinstance(decode_leaf(entries[place]), Admit) and entries[place + 1] == record.to_bytes()
    entries[place : place + 2] = [record.to_bytes(), MEMBER]
    path.write_bytes(tiles.entry_bundle(entries))
    (signed,) = (path for path in (hidden / "attestations" / "signed").rglob("*") if path.is_file())
    shown = tiles.split_bundle(signed.read_bytes(), None)
    shown[place : place + 2] = [b"", b""]
    signed.write_bytes(tiles.entry_bundle(shown))
    report = verify_export(hidden, KEYS)
    assert report.verdict == "SUMMARISED", "a quorum vouches for the withdrawal, so this much of it may be left out"
    assert [(row.pruned > 0, row.whole) for row in report.summaries] == [(True, False), (False, False)]
    with pytest.raises(CosignRefused, match="NO_SUMMARY"):
        vouched_by(CLEO, hidden, tmp_path / "two")
    entries[place] = replace(record, clip_micro=record.clip_micro + 1).to_bytes()
    path.write_bytes(tiles.entry_bundle(entries))
    assert verify_export(hidden, KEYS).verdict == "FAILED"
