"""Bodies and hashes that the ledger cannot do without are still there after it was asked to drop them, and it goes on.

What may go is decided elsewhere (`ledger.log.retaining`); here the appender is asked for what it must not do, as by a
mistake there. The database would let it: its triggers know of positions and kinds, not of auditors or of what leaves mean.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from ledger.errors import LedgerCorrupt
from ledger.log import Ledger
from ledger.replay.summaries import Aggregate
from ledger.storage.store import Aggregated
from tests.worlds.ledgers import SIGNER, Driver, descriptor
from tests.worlds.retained_ledgers import ANNA, BEN, grown, vouched_and_older, vouched_for


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


def left(ledger: Ledger) -> set[int]:
    """The ADMIT leaves that the summary lets go."""
    return {ledger.state.contributions[descriptor(n)].seq for n in (2, 4, 6)}


def standing(ledger: Ledger, seqs: set[int]) -> list[Aggregated]:
    """What stands for ADMIT leaves."""
    kept = ((aggregate, seq) for aggregate, seq in ledger.state.tally.summarised if any(map(aggregate.covers, seqs)))
    return [Aggregated(aggregate.first, aggregate.end, seq, aggregate.to_bytes()) for aggregate, seq in kept]


def prune(ledger: Ledger, seqs: set[int], aggregates: list[Aggregated] | None = None) -> int:
    """Asks the appender itself."""
    end = ledger.state.tally.summaries[0].end
    return ledger._file.prune(end, seqs, standing(ledger, seqs) if aggregates is None else aggregates)


def vouched_for_twice(ledger: Ledger) -> None:
    vouched_for(Driver(ledger, now=ledger.state.last_time + 1), ANNA, BEN)


def test_nothing_goes_for_which_nobody_vouches(summarised):
    refused(summarised, "UNVOUCHED", lambda: prune(summarised, left(summarised)))


def test_no_admission_of_who_stays_goes(summarised):
    """An aggregate has its bounds as those of any other; the run is not closed."""
    vouched_for_twice(summarised)
    stays = summarised.state.contributions[descriptor(1)].seq
    refused(summarised, "UNVOUCHED", lambda: prune(summarised, left(summarised) | {stays}))


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"first": 2}, "INDEX"),
        ({"members_root": bytes(32)}, "REPLAY"),
        ({"clip_micro": 999_999}, "REPLAY"),
        ({"sigma_micro": 1_000_001}, "REPLAY"),
        ({"class_index": 1}, "REPLAY"),
        ({"max_occurrences": 5}, "REPLAY"),
        ({"carried_micro": 5}, "REPLAY"),
    ],
    ids=str,
)
def test_no_admission_goes_for_which_an_aggregate_of_others_stands(summarised, changes, code):
    vouched_for_twice(summarised)
    one, *rest = standing(summarised, left(summarised))
    forged = replace(one, record=replace(Aggregate.from_bytes(one.record), **changes).to_bytes())
    refused(summarised, code, lambda: prune(summarised, left(summarised), [forged, *rest]))


def test_no_hash_goes_before_the_policy_lets_it(tmp_path):
    driver = vouched_and_older(tmp_path / "ledger.db", tmp_path, retention_hash_epochs=9)
    driver.ledger.prune()
    end = driver.ledger.pruned_before
    refused(driver.ledger, "HORIZON", lambda: driver.ledger._file.drop_hashes(end))


def test_an_aggregate_that_stands_for_nothing_is_found(summarised):
    """Who can write the database could else leave rows there that no summary commits to."""
    vouched_for_twice(summarised)
    driver = Driver(summarised, now=summarised.state.last_time + 1, streams=500)
    driver.steps(1)
    driver.epoch()
    place, forged = summarised.place, Aggregate(900, 1, 0, 1, 1, 0, 0, 0, 0, bytes(32)).to_bytes()
    prune(summarised, left(summarised))
    summarised.close()
    with closing(sqlite3.connect(place.target)) as connection, connection:
        connection.execute("INSERT INTO aggregate SELECT 900, 901, summary_seq, ? FROM aggregate LIMIT 1", (forged,))
    with pytest.raises(LedgerCorrupt, match="1 aggregates stand for leaves that were not pruned") as found:
        Ledger.open(place, SIGNER)
    assert found.value.code == "UNVOUCHED"
