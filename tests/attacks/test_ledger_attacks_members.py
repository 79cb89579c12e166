"""Attacks on closed runs of which nothing says any more who stayed: with the log's own key, and on the files beside them."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from ledger.audit import verify_export
from ledger.errors import LeafRefused, StorageFailed
from ledger.export import Pruned, write_export
from ledger.leaves import Admit, Withdraw, decode_leaf, encode_leaf
from ledger.log import Ledger
from ledger.merkle import Frontier, leaf_hash
from ledger.note import checkpoint_text, parse_checkpoint, sign_note
from ledger.replay.summaries import Aggregate
from ledger.storage.store import Row
from tests.worlds.ledgers import SIGNER, Driver, admission, descriptor
from tests.worlds.retained_ledgers import ANNA, BEN, grown, is_pruned, vouched_for

KEYS = [SIGNER.vkey]


@pytest.fixture
def run(tmp_path: Path):
    """A closed run without the admissions of anybody; contributions 1, 3 and 5 stayed."""
    driver = grown(tmp_path / "ledger.db")
    driver.ledger.summarise(now=driver.tick())
    vouched_for(driver, ANNA, BEN)
    driver.steps(1)
    driver.epoch()
    driver.ledger.finish(now=driver.tick())
    vouched_for(driver, ANNA, BEN)
    driver.ledger.prune(who_stays=True)
    yield driver
    driver.ledger.close()


def parts(ledger: Ledger) -> tuple[list[Row], Pruned]:
    pruned = ledger.pruned()
    assert pruned is not None
    with ledger.rows() as rows:
        return list(rows), pruned


def judged(ledger: Ledger, rows: list[Row], pruned: Pruned, directory: Path) -> tuple[str, set[str]]:
    """What an auditor says of rows under a checkpoint that the log's key signs."""
    frontier = Frontier()
    for row in rows:
        frontier.append(row.leaf_hash)
    note = sign_note(checkpoint_text(SIGNER.name, len(rows), frontier.root()), SIGNER)
    report = verify_export(
        write_export(ledger.header, rows, note, directory, keys=ledger.state.keys, pruned=pruned), KEYS
    )
    return report.verdict, {found.code for found in report.findings}


def with_withdrawal(
    ledger: Ledger, rows: list[Row], name: bytes, seq: int | None, member: tuple[bytes, ...] | None
) -> list[Row]:
    """Another WITHDRAW leaf at the end, whatever it says."""
    leaf = Withdraw(len(rows), ledger.state.last_time, name, seq, "contributor", bytes(32), member)
    body = encode_leaf(leaf)
    return [*rows, Row(leaf.seq, leaf.KIND, leaf_hash(body), body)]


def test_the_logs_key_withdraws_nobody_as_another(run, tmp_path):
    """A pruned position that a leaf names without showing it, shows falsely, or shows by the record of somebody else."""
    ledger, (rows, pruned) = run.ledger, parts(run.ledger)
    one, other = ledger.member(descriptor(1)), ledger.member(descriptor(5))
    assert one is not None and other is not None
    shown = (one.member.content_anchor, *one.path)
    forged = {
        "unshown": (descriptor(1), 1, None),
        "stranger": (descriptor(77), 1, shown),
        "stranger-unshown": (descriptor(77), 1, None),
        "content": (descriptor(1), 1, (bytes(32), *one.path)),
        "path": (descriptor(1), 1, (one.member.content_anchor, bytes(32))),
        "place": (descriptor(1), 13, shown),
        "class": (descriptor(1), 3, shown),
        "other": (descriptor(5), 13, shown),
        "no-admission": (descriptor(1), 5, shown),
    }
    for what, (name, seq, member) in forged.items():
        verdict, codes = judged(ledger, with_withdrawal(ledger, rows, name, seq, member), pruned, tmp_path / what)
        assert verdict == "FAILED" and codes & {"MEMBER", "UNVOUCHED", "WITHDRAW"}, (what, codes)
    right = with_withdrawal(ledger, rows, descriptor(1), 1, shown)
    assert judged(ledger, right, pruned, tmp_path / "right") == ("SUMMARISED", set())
    nothing = with_withdrawal(ledger, rows, descriptor(1), None, None)
    assert judged(ledger, nothing, pruned, tmp_path / "nothing") == ("SUMMARISED", set()), "the contributor's proof tells"


def test_a_member_is_withdrawn_once_and_does_not_stand_again(run, tmp_path):
    ledger = run.ledger
    one = ledger.member(descriptor(1))
    ledger.withdraw(descriptor(1), "contributor", bytes(32), now=run.tick(), member=one)
    rows, pruned = parts(ledger)
    assert one is not None
    shown = (one.member.content_anchor, *one.path)
    verdict, codes = judged(ledger, with_withdrawal(ledger, rows, descriptor(1), 1, shown), pruned, tmp_path / "twice")
    assert (verdict, codes) == ("FAILED", {"WITHDRAW", "MEMBER"})
    body = encode_leaf(replace(decode_leaf(rows[-1].body), descriptor_hash=descriptor(1)))
    again = admission(1)
    admit = Admit(len(rows), ledger.state.last_time, *(getattr(again, field.name) for field in fields(Admit)[2:]))
    data = encode_leaf(admit)
    standing = [*rows, Row(admit.seq, admit.KIND, leaf_hash(data), data)]
    verdict, codes = judged(ledger, standing, pruned, tmp_path / "standing")
    assert verdict == "FAILED" and {"CLOSED", "WITHDRAWN"} <= codes and body


def test_nobody_is_shown_to_be_a_member_whose_admission_is_there(tmp_path):
    """The leaf says whom it admitted: a record beside it would be a second word about one thing."""
    driver = grown(tmp_path / "ledger.db")
    with driver.ledger as ledger:
        ledger.summarise(now=driver.tick())
        driver.ledger.finish(now=driver.tick())
        one = ledger.member(descriptor(1))
        assert one is not None
        told = (one.member.content_anchor, *one.path)
        leaf = Withdraw(ledger.size, driver.tick(), descriptor(1), 1, "contributor", bytes(32), told)
        (problem,) = ledger.state.apply(leaf)
    assert problem.code == "MEMBER" and "is there" in problem.sentence


def test_the_logs_key_lets_nobody_go_who_stays_in_a_run_that_goes_on(run, tmp_path):
    """Without its CLOSE leaf the same export is refused, whatever auditors said of the summary."""
    ledger, (rows, pruned) = run.ledger, parts(run.ledger)
    assert ledger.finished
    verdict, codes = judged(ledger, rows[:-1], pruned, tmp_path / "open")
    assert verdict == "FAILED" and "UNVOUCHED" in codes


def test_the_logs_key_lets_nobody_go_who_stayed_on_words_from_before_the_close(run, tmp_path):
    """Such words say nothing of the last charges: attestations may have ended before these, and nobody could find that."""
    ledger, (rows, pruned) = run.ledger, parts(run.ledger)
    closed_at = ledger.state.closed_at
    assert closed_at is not None and judged(ledger, rows, pruned, tmp_path / "whole") == ("SUMMARISED", set())
    sizes = [parse_checkpoint(note.decode().partition("\n\n")[0] + "\n").size for note in pruned.notes]
    early = [note for note, size in zip(pruned.notes, sizes, strict=True) if size <= closed_at]
    assert 0 < len(early) < len(sizes)
    assert judged(ledger, rows, replace(pruned, notes=early), tmp_path / "early") == ("FAILED", {"UNVOUCHED"})


@pytest.mark.one_in(99)
@pytest.mark.parametrize(
    "change",
    [
        {"clip_micro": 1},
        {"sigma_micro": 9_000_000},
        {"class_index": 1},
        {"count": 1},
        {"carried_micro": 7},
        {"members_root": bytes(32)},
    ],
    ids=str,
)
def test_an_aggregate_of_who_stayed_is_not_altered(run, tmp_path, change):
    """Lowered bounds, another class, fewer members, or others."""
    rows, pruned = parts(run.ledger)
    forged = [replace(found, **change) if found.first == 1 else found for found in pruned.aggregates]
    if "count" in change:  # the second one needs an aggregate of its own
        forged.append(Aggregate(2, 1, *pruned.aggregates[0].terms, bytes(32)))
    verdict, codes = judged(run.ledger, rows, replace(pruned, aggregates=forged), tmp_path / "e")
    assert verdict == "FAILED" and codes


def test_a_failure_while_everybody_goes_leaves_all(tmp_path, monkeypatch):
    """The members file is written before; bodies and aggregates go and come in one transaction."""
    driver: Driver = grown(tmp_path / "ledger.db")
    ledger = driver.ledger
    ledger.summarise(now=driver.tick())
    ledger.finish(now=driver.tick())
    vouched_for(driver, ANNA, BEN)

    def fails(*_: object) -> None:
        raise StorageFailed("IO", "the disk is full")

    with monkeypatch.context() as patched, pytest.raises(StorageFailed):
        patched.setattr(ledger._file.store, "prune", fails)
        ledger.prune(who_stays=True)
    ledger.close()
    with Ledger.open(tmp_path / "ledger.db", SIGNER, recompute=True) as again:
        with again.rows() as rows:
            assert all(row.body for row in rows)
        assert again.prune(who_stays=True) == 6
        report = verify_export(again.export(tmp_path / "e"), KEYS)
    assert is_pruned(report)


def test_a_members_file_of_lies_finds_nobody(run):
    """Its records are held against the summary: an exchanged name is refused, and nothing is written."""
    members, size = run.ledger.place.side(".members"), run.ledger.size
    told = members.read_text()
    members.write_text(told.replace(descriptor(1).hex(), descriptor(77).hex()))
    for name in (descriptor(77), descriptor(5)):
        if name == descriptor(5):
            members.write_text(told.replace(admission(5).anchor.hex(), bytes(32).hex()))
        with pytest.raises(LeafRefused, match="MEMBER"):
            run.ledger.withdraw(name, "contributor", bytes(32), now=run.tick())
    assert run.ledger.size == size
