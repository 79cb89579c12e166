"""Holds what waits to be appended: rows and attestations in blocks of memory, as they were added."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import pytest

from attest.attestation import SIGNATURE_SIZE, CommonTerms
from ledger.leaves import Admit, Charge
from ledger.merkle import leaf_hash
from ledger.replay.contributions import AdmitSpec
from ledger.storage.appender import StagedAttested, StagedRows
from ledger.storage.sql import sqlite
from ledger.storage.store import Attested, Row
from tests.worlds.attested_ledgers import attested_admission, attested_run
from tests.worlds.ledgers import START

ROWS = [Row(5 + n, Charge.KIND if n % 3 else Admit.KIND, leaf_hash(b"%d" % n), b"body" * (n % 4)) for n in range(9)]
ATTESTED = [Attested(5 + n, b"terms of %d" % (n % 2), bytes([n]) * SIGNATURE_SIZE) for n in range(9)]


@pytest.mark.parametrize(("made", "added"), [(StagedRows, ROWS), (StagedAttested, ATTESTED)])
def test_what_is_staged_is_read_as_it_was_added_in_order_at_once_and_one_by_one(made, added):
    staged = made()
    assert list(staged) == [] and not staged
    for count, one in enumerate(added, start=1):
        staged.add(one)
        assert list(staged) == [staged[place] for place in range(count)] == added[:count]
    assert staged[-1] == added[-1] and staged[2:7:2] == added[2:7:2] and len(staged) == 9
    assert all(type(value) is not bytearray for one in staged for value in one), "what a store keeps does not change"
    with pytest.raises(IndexError):
        staged[9]


def test_leaf_hashes_of_staged_rows_are_theirs():
    staged = StagedRows()
    for row in ROWS:
        staged.add(row)
    assert list(staged.leaf_hashes()) == [row.leaf_hash for row in ROWS]


def sharing_terms(count: int) -> Iterator[AdmitSpec]:
    """Admissions of two contributors, with one object of terms for each, as a gate hands them on."""
    known: dict[bytes, CommonTerms] = {}
    for n in range(1, count + 1):
        spec = attested_admission(n)
        terms, signature = spec.attestation
        yield replace(spec, attestation=(known.setdefault(terms.to_cbor(), terms), signature))


def test_admitting_takes_less_than_600_bytes_of_memory_a_contribution_at_its_peak(tmp_path, monkeypatch):
    """All of an admission is one transaction, and what waits for it lies in blocks; as objects it took 1,100."""
    monkeypatch.setattr(sqlite, "READ_BATCH", 256)  # or rows on their way to the database would all be one batch
    peaks = []
    for count in (1 << 9, 1 << 11):
        folder = tmp_path / str(count)
        folder.mkdir()
        driver = attested_run(folder / "ledger.db")
        tracemalloc.start()
        try:
            driver.ledger.admit(sharing_terms(count), now=START)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
            driver.ledger.close()
    assert (peaks[1] - peaks[0]) / ((1 << 11) - (1 << 9)) < 600, peaks
