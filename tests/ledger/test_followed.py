"""A ledger that another process writes: followed leaf by leaf, and refused where it is another one than its writer tells."""

import struct

import pytest

from ledger.errors import LedgerCorrupt, LedgerError
from ledger.log import Ledger
from ledger.log.followed import Followed, contents_of, news_of
from ledger.merkle import leaf_hash
from tests.worlds.ledgers import SIGNER, START, Driver, admission, header_spec
from tests.worlds.retained_ledgers import crowded_and_pruned


def told(driver: Driver, action) -> bytes:
    with driver.ledger.listening() as heard:
        action()
    return news_of(heard, driver.ledger)


def driver_at(path) -> Driver:
    path.mkdir(exist_ok=True)
    driver = Driver(Ledger.create(path / "ledger.db", header_spec(), SIGNER, now=START))
    driver.admit(admission(1), admission(2))
    return driver


def same(followed: Followed, driver: Driver) -> bool:
    state, other = followed.state, driver.ledger.state
    return (followed.size, followed.root, state.charged, state.attempt, list(state.withdrawals)) == (
        driver.ledger.size, driver.ledger.root, other.charged, other.attempt, list(other.withdrawals)
    )  # fmt: skip


def test_a_follower_has_the_state_and_root_of_its_writer_after_every_message(tmp_path):
    driver = driver_at(tmp_path)
    followed = Followed(contents_of(driver.ledger))
    assert same(followed, driver) and followed.header == driver.ledger.header
    for action in (lambda: driver.steps(2), lambda: driver.withdraw(1), driver.epoch, lambda: driver.steps(1)):
        followed.take(told(driver, action))
        assert same(followed, driver)
    followed.take(told(driver, lambda: None))
    assert same(followed, driver) and not followed.finished
    assert [w.first_step for w in followed.state.windows] == [w.first_step for w in driver.ledger.state.windows]


def test_a_follower_takes_a_ledger_of_which_leaves_are_gone(tmp_path):
    driver = crowded_and_pruned(tmp_path / "ledger.db", tmp_path)
    followed = Followed(contents_of(driver.ledger))
    assert (followed.size, followed.root) == (driver.ledger.size, driver.ledger.root)


def test_news_that_are_not_what_was_written_are_refused(tmp_path):
    driver = driver_at(tmp_path)
    whole = contents_of(driver.ledger)
    news = told(driver, lambda: driver.charge())
    length = struct.calcsize(">Q32sQ")
    cases = {
        "another root": news[:8] + bytes(32) + news[40:],
        "another size": (driver.ledger.size + 1).to_bytes(8, "big") + news[8:],
        "a leaf left out": news[:40] + (0).to_bytes(8, "big"),
        "a changed leaf": news[: length + 8] + bytes([news[length + 8] ^ 1]) + news[length + 9 :],
        "a leaf twice": news[:40] + (2).to_bytes(8, "big") + 2 * news[length:],
    }
    for changed in cases.values():
        with pytest.raises(LedgerError):
            Followed(whole).take(changed)
    Followed(whole).take(news)


@pytest.mark.parametrize("place", [60, 400, -40])
def test_contents_with_a_changed_byte_are_refused_or_change_nothing(tmp_path, place):
    driver = driver_at(tmp_path)
    data = bytearray(contents_of(driver.ledger))
    data[place] ^= 1
    with pytest.raises((LedgerError, struct.error, ValueError)):
        Followed(bytes(data))


def test_a_follower_whose_leaves_contradict_the_run_is_refused(tmp_path):
    first = driver_at(tmp_path)
    followed = Followed(contents_of(first.ledger))
    charged = told(first, lambda: first.charge())
    followed.take(charged)
    with pytest.raises(LedgerCorrupt, match="FOLLOWED"):
        followed.take(charged)


def test_leaves_that_contradict_the_run_are_refused_though_size_and_root_are_right(tmp_path):
    """As a writer would tell that left a rule out: one window is charged twice, and the tree is over both leaves."""
    driver = driver_at(tmp_path)
    charged = told(driver, lambda: driver.charge())
    once, twice = Followed(contents_of(driver.ledger)), Followed(contents_of(driver.ledger))
    body = charged[52:]
    assert charged[48:52] == len(body).to_bytes(4, "big") and leaf_hash(body) != once.root
    once._loaded.frontier.append(leaf_hash(body))
    news = struct.pack(">Q32sQI", once.size, once.root, 1, len(body)) + body
    with pytest.raises(LedgerCorrupt, match="FOLLOWED: a leaf of the writer contradicts the run"):
        twice.take(news)
