"""Bodies and hashes that the ledger cannot do without are still there after it was asked to drop them, and it goes on.

What may go is decided elsewhere (`ledger.operating.retaining`); here the appender is asked for what it must not do, as by a
mistake there. The database would let it: its triggers know of positions and kinds, not of auditors or of what leaves mean.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from ledger.errors import LedgerCorrupt
from ledger.log import Ledger
from ledger.storage.store import Anchor
from tests.ledger.ledger_runs import SIGNER, Driver, admission, descriptor
from tests.ledger.retained_runs import ANNA, BEN, grown, vouched_and_older, vouched_for


def contents(ledger: Ledger) -> list[tuple[bytes, bytes]]:
    """Bodies and hashes of all leaves."""
    with ledger.rows() as rows:
        return [(row.body, row.leaf_hash) for row in rows]


@pytest.fixture
def summarised(tmp_path) -> Iterator[Ledger]:
    """A ledger with a summary for which nobody has vouched."""
    driver = grown(tmp_path / "ledger.db")
    driver.ledger.summarise(now=driver.tick())
    yield driver.ledger
    driver.ledger.close()


def refused(ledger: Ledger, code: str, drop) -> None:
    before = contents(ledger)
    with pytest.raises(LedgerCorrupt) as found:
        drop()
    assert found.value.code == code and contents(ledger) == before
    place = ledger.place
    ledger.sign_checkpoint()  # the handle goes on
    ledger.close()
    with Ledger.open(place, SIGNER, recompute=True) as again:
        assert contents(again) == before


def anchors(ledger: Ledger) -> dict[int, Anchor]:
    """What stands for the ADMIT leaves that the summary lets go."""
    seq = ledger.state.tally.summaries[0].seq
    records = (record for _, record in ledger.state.tally.summarised.values())
    return {record.first_seq: Anchor(record.descriptor_hash, seq, record.to_bytes()) for record in records}


def vouched_for_twice(ledger: Ledger) -> None:
    vouched_for(Driver(ledger, now=ledger.state.last_time + 1), ANNA, BEN)


def test_nothing_goes_for_which_nobody_vouches(summarised):
    end = summarised.state.tally.summaries[0].end
    refused(summarised, "UNVOUCHED", lambda: summarised._file.prune(end, anchors(summarised)))


def test_no_admission_of_who_stays_goes(summarised):
    """A record can be made of it as of any other; no summary commits to one."""
    vouched_for_twice(summarised)
    right, stays = anchors(summarised), summarised.state.contributions[descriptor(1)]
    like = next(record for _, record in summarised.state.tally.summarised.values() if record.descriptor_hash == descriptor(2))
    record = replace(like, descriptor_hash=descriptor(1), first_seq=stays.seq, content_anchor=admission(1).anchor)
    end, seq = summarised.state.tally.summaries[0].end, next(iter(right.values())).summary_seq
    wrong = right | {stays.seq: Anchor(descriptor(1), seq, record.to_bytes())}
    refused(summarised, "UNVOUCHED", lambda: summarised._file.prune(end, wrong))


def test_no_admission_goes_for_which_another_stands(summarised):
    vouched_for_twice(summarised)
    end, right = summarised.state.tally.summaries[0].end, anchors(summarised)
    (first, one), (_, other) = sorted(right.items())[:2]
    crossed = right | {first: Anchor(one.descriptor_hash, one.summary_seq, other.record)}
    refused(summarised, "LEAF", lambda: summarised._file.prune(end, crossed))


def test_no_hash_goes_before_the_policy_lets_it(tmp_path):
    driver = vouched_and_older(tmp_path / "ledger.db", tmp_path, retention_hash_epochs=9)
    driver.ledger.prune()
    end = driver.ledger.pruned_before
    refused(driver.ledger, "HORIZON", lambda: driver.ledger._file.drop_hashes(end))


def test_an_anchor_that_stands_for_nothing_is_found(summarised):
    """Who can write the database could else leave records there that no summary commits to."""
    vouched_for_twice(summarised)
    driver = Driver(summarised, now=summarised.state.last_time + 1, streams=500)
    driver.steps(1)
    driver.epoch()
    end, place = summarised.state.tally.summaries[0].end, summarised.place
    summarised._file.prune(end, anchors(summarised))
    summarised.close()
    with closing(sqlite3.connect(place.target)) as connection, connection:
        connection.execute("INSERT INTO anchor SELECT zeroblob(32), summary_seq, record FROM anchor LIMIT 1")
    with pytest.raises(LedgerCorrupt, match="1 anchors stand for leaves that were not pruned") as found:
        Ledger.open(place, SIGNER)
    assert found.value.code == "UNVOUCHED"
