"""Lies about what was spent by group: every one is told with the log's own key, so that hashes and signatures hold.

A run of two classes, in which somebody leaves, somebody comes, and an epoch passes without a step. Whoever holds the key of the
log changes one SPEND leaf of it, or several to fit, and the totals of the EPOCH leaves with them; writer and auditor alike find
it by what the other leaves say.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ledger.audit import verify_export
from ledger.errors import LeafRefused
from ledger.leaves import Epoch, Leaf, Spend, SpendRow, decode_leaf, encode_leaf
from ledger.log import Ledger
from ledger.merkle import root
from ledger.replay import Replay
from tests.ledger.spends import rows_of, three_epochs
from tests.worlds.ledgers import SIGNER, START, Driver, admission, descriptor, header_spec, signed_policy
from tests.worlds.retained_ledgers import forged_export, leaves_of

Rows = tuple[SpendRow, ...]
ORDER = {"SPEND_ORDER", "EPOCH_ORDER"}


@pytest.fixture(scope="module")
def leaves(tmp_path_factory) -> list[Leaf]:
    """`three_epochs` of unattested admissions."""
    path = tmp_path_factory.mktemp("spend") / "ledger.db"
    with Ledger.create(path, header_spec(), SIGNER, now=START) as ledger:
        three_epochs(Driver(ledger), admission)
        return leaves_of(ledger)


def spends(leaves: list[Leaf]) -> list[int]:
    return [seq for seq, leaf in enumerate(leaves) if isinstance(leaf, Spend)]


def with_leaf(leaves: list[Leaf], epoch: int, change: Callable[[Rows], Rows]) -> list[Leaf]:
    """The leaves with other rows in one epoch, none at all if nothing is left of them; renumbered."""
    place = spends(leaves)[epoch]
    spend = leaves[place]
    assert isinstance(spend, Spend)
    rows = change(spend.rows)
    kept = [replace(spend, rows=rows)] if rows else []
    told = [*leaves[:place], *kept, *leaves[place + 1 :]]
    return [leaf if not seq else replace(leaf, seq=seq) for seq, leaf in enumerate(told)]


def found(leaves: list[Leaf], folder: Path) -> set[str]:
    """The codes that the auditor finds; the replay of a writer finds no others."""
    report = verify_export(forged_export(leaves, folder / "export"), [SIGNER.vkey])
    codes = {item.code for item in report.findings}
    assert (report.verdict == "FAILED") == bool(codes)
    run, refused = Replay(leaves[0], lambda size: bytes(32)), set()
    for leaf in leaves[1:]:
        refused |= {problem.code for problem in run.apply(decode_leaf(encode_leaf(leaf)))}
    assert refused == codes
    return codes


def changed(place: int, **fields: object) -> Callable[[Rows], Rows]:
    return lambda rows: tuple(replace(row, **fields) if at == place else row for at, row in enumerate(rows))


def less(place: int, by: int = 2) -> Callable[[Rows], Rows]:
    return lambda rows: tuple(
        replace(row, epsilon_micro=row.epsilon_micro - by) if at == place else row for at, row in enumerate(rows)
    )


def who_left(rows: Rows) -> int:
    return [row.window_until for row in rows].index(1)


def without(rows: Rows, place: int) -> Rows:
    return rows[:place] + rows[place + 1 :]


def moved(rows: Rows) -> Rows:
    """One of the first group, whose noise is least, told among those who signed more noise."""
    (strict,) = (row for row in rows if row.sigma_micro == 4_000_000)
    (many,) = (row for row in rows if row.sigma_micro == 1_000_000)
    assert many.count == 2 and strict.count == 1
    fewer = replace(many, count=1, members_root=root([descriptor(1)]))
    more = replace(strict, count=2, members_root=root([descriptor(2), descriptor(4)]))
    return tuple({many: fewer, strict: more}.get(row, row) for row in rows)


LIES: dict[str, tuple[int, Callable[[Rows], Rows], set[str]]] = {
    "too small an epsilon": (0, less(0), {"SPEND_EPSILON"}),
    "too small an epsilon of who left": (1, lambda rows: less(who_left(rows))(rows), {"SPEND_EPSILON"}),
    "too large an epsilon": (0, less(1, -3), {"SPEND_EPSILON"}),
    "a group left out": (0, lambda rows: rows[1:], {"SPEND_ORDER", "EPOCH_ORDER"}),
    "the last group left out": (0, lambda rows: rows[:-1], {"EPOCH_ORDER"}),
    "every group left out": (0, lambda rows: (), {"EPOCH_ORDER"}),
    "who left is left out": (1, lambda rows: without(rows, who_left(rows)), {"SPEND_ORDER", "EPOCH_ORDER"}),
    "unchanged though steps were charged": (1, lambda rows: rows[1:], {"SPEND_ORDER", "EPOCH_ORDER"}),
    "unchanged though somebody came": (2, lambda rows: rows[1:], {"SPEND_ORDER", "EPOCH_ORDER"}),
    "a member counted out": (0, changed(0, count=1), {"SPEND"}),
    "a member kept out of the root": (0, changed(0, count=1, members_root=root([descriptor(1)])), {"SPEND"}),
    "members in another order": (0, changed(0, members_root=root([descriptor(2), descriptor(1)])), {"SPEND"}),
    "a member moved to a milder group": (0, moved, {"SPEND"}),
    "a group that came later": (0, changed(0, window_before=1), {"SPEND_ORDER"}),
    "a group that left": (0, changed(0, window_until=0), {"SPEND_ORDER"}),
    "more noise than was signed": (0, changed(0, sigma_micro=5_000_000), {"SPEND_ORDER"}),
    "a cap that nobody signed": (0, changed(0, max_occurrences=1), {"SPEND_ORDER"}),
    "less spent before": (0, changed(0, carried_micro=1), {"SPEND_ORDER"}),
    "another limit": (0, changed(0, max_epsilon_micro=5, max_delta_pico=5), {"SPEND_ORDER"}),
    "occurrences that nobody may know": (0, changed(0, occurrences=1, loss=0.5), {"SPEND_ORDER"}),
    "fewer steps": (0, changed(0, steps=1), {"SPEND"}),
    "another variance": (0, changed(0, variance=9.0), {"SPEND"}),
    "a row repeated": (0, lambda rows: (rows[0], *rows), {"SPEND_ORDER", "EPOCH_ORDER"}),
    "the last row repeated": (0, lambda rows: (*rows, rows[-1]), {"SPEND_ORDER"}),
    "rows in another order": (0, lambda rows: rows[::-1], {"SPEND_ORDER", "EPOCH_ORDER"}),
}


def test_what_the_log_recorded_is_right(leaves, tmp_path):
    assert found(leaves, tmp_path) == set()
    assert [len(leaves[seq].rows) for seq in spends(leaves)] == [3, 5, 2], "in the last epoch one came and one left"


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_a_group_is_found_by_writer_and_auditor(leaves, tmp_path, lie):
    epoch, change, codes = LIES[lie]
    told = with_leaf(leaves, epoch, change)
    assert told != leaves
    codes_found = found(told, tmp_path)
    follow = {"EPOCH"} | (ORDER if codes & ORDER else set())
    assert codes <= codes_found <= codes | follow, "what is out of order here is missed there, and in the next epoch"


def test_a_row_that_says_nothing_new_is_refused(leaves, tmp_path):
    """A group that did not change since its last row has no other: nobody can be told twice, or hide behind many rows."""
    last = spends(leaves)[-1]
    again = next(row for row in leaves[spends(leaves)[-2]].rows if row.sigma_micro == 4_000_000)
    rows = sorted((*leaves[last].rows, again), key=lambda row: (row.profile_id, row.sigma_micro))
    assert "SPEND_ORDER" in found(with_leaf(leaves, -1, lambda _: tuple(rows)), tmp_path)


def test_rows_of_one_epoch_lie_in_as_many_leaves_as_the_log_likes_and_mean_the_same(leaves, tmp_path):
    place = spends(leaves)[1]
    rows = leaves[place].rows
    parts = [replace(leaves[place], rows=rows[at : at + 2]) for at in range(0, len(rows), 2)]
    told = [*leaves[:place], *parts, *leaves[place + 1 :]]
    told = [leaf if not seq else replace(leaf, seq=seq) for seq, leaf in enumerate(told)]
    assert found(told, tmp_path) == set()
    swapped = [*told[:place], *reversed(told[place : place + len(parts)]), *told[place + len(parts) :]]
    swapped = [leaf if not seq else replace(leaf, seq=seq) for seq, leaf in enumerate(swapped)]
    assert "SPEND_ORDER" in found(swapped, tmp_path / "swapped")


def test_a_total_that_hides_the_largest_epsilon_is_found(leaves, tmp_path):
    place = next(seq for seq, leaf in enumerate(leaves) if isinstance(leaf, Epoch))
    epoch = leaves[place]
    lower = replace(epoch.classes[0], max_epsilon_micro=epoch.classes[0].max_epsilon_micro - 1)
    told = [*leaves[:place], replace(epoch, classes=(lower, *epoch.classes[1:])), *leaves[place + 1 :]]
    assert found(told, tmp_path) == {"EPOCH"}


def test_the_loss_of_public_draws_cannot_be_told_smaller(tmp_path):
    policy = signed_policy(disclosure="occurrences_public")
    with Ledger.create(tmp_path / "ledger.db", header_spec(policy), SIGNER, now=START) as ledger:
        run = Driver(ledger)
        run.admit(admission(1), admission(2), admission(3))
        window = run.charge(2)
        for step, drawn in ((1, (0, 1)), (2, (0,))):
            ledger.draw(step, drawn, now=run.tick())
        ledger.settle(window, 2, now=run.tick())
        run.epoch()
        leaves = leaves_of(ledger)
    rows = rows_of(leaves)
    assert [(row.occurrences, row.count) for row in rows] == [(0, 1), (1, 1), (2, 1)]
    assert found(leaves, tmp_path / "honest") == set()
    for number, change in enumerate((changed(2, loss=rows[1].loss), changed(2, occurrences=1), less(2))):
        lied = found(with_leaf(leaves, 0, change), tmp_path / str(number))
        assert lied & {"SPEND_ORDER", "SPEND_EPSILON"}


def test_the_writer_refuses_to_append_another_row(tmp_path, leaves):
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        run = Driver(ledger)
        run.admit(admission(1), admission(2))
        run.steps(1)
        (row,) = ledger.state.spend_rows()
        size = ledger.size
        lower, fewer = replace(row, epsilon_micro=row.epsilon_micro - 2), replace(row, count=1)
        for wrong, code in ((lower, "SPEND_EPSILON"), (fewer, "SPEND")):
            with pytest.raises(LeafRefused) as refused, ledger._file.appending(run.tick()) as time:
                ledger._file.stage(Spend(ledger.size, time, (wrong,)))
            assert refused.value.code == code and ledger.size == size
