"""Attacks on retention by the numbers of the design's list, and the failure cases of its section on it, by name.

Each is tried against the defence that it names: what is altered here is altered with the log's own key, so that hashes and
signatures hold and nothing but that defence can refuse.
"""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ledger import tiles
from ledger.audit import verify_export
from ledger.errors import LeafRefused, LedgerCorrupt, RetentionRefused
from ledger.export import write_export
from ledger.leaves import Charge, Epoch, Leaf, Spend, Summary, SummaryKind, Withdraw, decode_leaf, encode_leaf
from ledger.log import Ledger
from ledger.merkle import Frontier, leaf_hash
from ledger.note import checkpoint_text, sign_note
from ledger.replay.summaries import set_root
from tests.worlds.ledgers import SIGNER, Driver, admission, descriptor
from tests.worlds.retained_ledgers import (
    ANNA,
    BEN,
    export_of,
    forged_export,
    grown,
    is_pruned,
    leaves_of,
    pruned_run,
    vouched_for,
)

KEYS = [SIGNER.vkey]


@pytest.fixture
def run(tmp_path: Path):
    """Three closed epochs, of which the policy lets the first two be summarised."""
    driver = grown(tmp_path / "ledger.db")
    yield driver
    driver.ledger.close()


def judged(leaves: list[Leaf], directory: Path) -> tuple[str, list[tuple[str, str]]]:
    """What an auditor says of leaves under a checkpoint that the log signed."""
    report = verify_export(forged_export(leaves, directory), KEYS)
    return report.verdict, [(found.code, found.where) for found in report.findings]


def refused_by_writer(run: Driver, leaf: Summary) -> LeafRefused:
    """What the writer's own replay says of a SUMMARY leaf; nothing is appended."""
    size = run.ledger.size
    with pytest.raises(LeafRefused) as caught, run.ledger._file.appending(run.now):
        run.ledger._file.stage(leaf)
    assert run.ledger.size == size
    return caught.value


def proposed(run: Driver) -> Summary:
    return run.ledger.state.tally.propose(run.ledger.size, run.now)[0]


def lowered(row):
    return replace(row, sum_epsilon_micro=row.sum_epsilon_micro - 1)


FORGED = {
    "class_total_lowered": lambda s: replace(s, classes=(lowered(s.classes[0]), *s.classes[1:])),
    "largest_epsilon_lowered": lambda s: replace(
        s, classes=(replace(s.classes[0], max_epsilon_micro=s.classes[0].max_epsilon_micro - 1), *s.classes[1:])
    ),
    "largest_epsilon_raised": lambda s: replace(
        s, classes=(replace(s.classes[0], max_epsilon_micro=s.classes[0].max_epsilon_micro + 1), *s.classes[1:])
    ),
    "epsilon_of_a_private_class_left_out": lambda s: replace(
        s, classes=(replace(s.classes[0], sum_epsilon_micro=None, max_epsilon_micro=None), *s.classes[1:])
    ),
    "fewer_contributions": lambda s: replace(s, classes=(replace(s.classes[0], contributions=3), *s.classes[1:])),
    "more_active": lambda s: replace(s, classes=(replace(s.classes[0], active=3), *s.classes[1:])),
    "more_variance": lambda s: replace(s, classes=(replace(s.classes[0], max_variance=2.0), *s.classes[1:])),
    "less_variance": lambda s: replace(s, classes=(replace(s.classes[0], min_variance=0.5), *s.classes[1:])),
    "fewer_steps_charged": lambda s: replace(s, classes=(replace(s.classes[0], charged=8), *s.classes[1:])),
    "fewer_occurrences": lambda s: replace(s, classes=(replace(s.classes[0], occurrences=1), *s.classes[1:])),
    "a_class_left_out": lambda s: replace(s, classes=s.classes[:1]),
    "leaves_of_another_kind": lambda s: replace(
        s,
        kinds=tuple(
            SummaryKind(row.kind, row.count + (row.kind == Charge.KIND) - (row.kind == Withdraw.KIND)) for row in s.kinds
        ),
    ),
    "another_set": lambda s: replace(s, set_root=bytes(32)),
    "another_subtree": lambda s: replace(s, subtree_roots=(bytes(32), *s.subtree_roots[1:])),
    "a_subtree_left_out": lambda s: replace(s, subtree_roots=s.subtree_roots[:-1]),
    "a_summary_before_the_first": lambda s: replace(s, previous=1),
}


@pytest.mark.parametrize("forgery", FORGED)
@pytest.mark.one_in(3)
def test_B25_a_forged_summary_is_refused_by_writer_and_auditor(run, tmp_path, forgery):
    """A forged total under the right root: the root is the log's own, what the leaves say is not what it says."""
    forged = FORGED[forgery](proposed(run))
    assert refused_by_writer(run, forged).code == "SUMMARY"
    assert judged([*leaves_of(run.ledger), forged], tmp_path / "e") == ("FAILED", [("SUMMARY", f"seq {forged.seq}")])


def resized(leaf: Summary, first: int, end: int) -> Summary:
    kinds = (SummaryKind(1, end - first),)
    return replace(leaf, first=first, end=end, kinds=kinds)


def test_a_range_with_an_open_window_is_refused(run, tmp_path):
    """A range ends behind an EPOCH leaf and nowhere else: behind none of them is a window open."""
    leaf, leaves = proposed(run), leaves_of(run.ledger)
    charge = next(found.seq for found in leaves if isinstance(found, Charge))
    forged = resized(leaf, 1, charge + 1)
    assert refused_by_writer(run, forged).code == "SUMMARY_RANGE"
    assert judged([*leaves, forged], tmp_path / "e") == ("FAILED", [("SUMMARY_RANGE", f"seq {forged.seq}")])


def test_a_range_past_the_horizon_is_refused(run, tmp_path):
    """P beyond H: the policy keeps one epoch, so that the last one may not be summarised."""
    leaf, leaves = proposed(run), leaves_of(run.ledger)
    forged = resized(leaf, 1, next(found.seq for found in reversed(leaves) if isinstance(found, Epoch)) + 1)
    assert refused_by_writer(run, forged).code == "SUMMARY_HORIZON"
    assert judged([*leaves, forged], tmp_path / "e") == ("FAILED", [("SUMMARY_HORIZON", f"seq {forged.seq}")])


@pytest.mark.parametrize("first", [2, 5])
def test_a_gap_before_the_first_range_is_refused(run, first):
    leaf = proposed(run)
    assert refused_by_writer(run, resized(leaf, first, leaf.end)).code == "SUMMARY_RANGE"


def test_overlapping_and_gapped_ranges_are_refused(run, tmp_path):
    done = run.ledger.summarise(now=run.tick())
    run.steps(1)
    run.epoch()
    run.steps(1)
    run.epoch()
    leaf, leaves = proposed(run), leaves_of(run.ledger)
    middle = next(found.seq for found in leaves if isinstance(found, Epoch) and found.number == 3) + 1
    for n, (first, end) in enumerate(((1, leaf.end), (done.end - 1, leaf.end), (done.end + 1, leaf.end), (middle, leaf.end))):
        forged = resized(leaf, first, end)
        assert refused_by_writer(run, forged).code == "SUMMARY_RANGE"
        assert judged([*leaves, forged], tmp_path / str(n)) == ("FAILED", [("SUMMARY_RANGE", f"seq {forged.seq}")])


def test_a_second_summary_for_one_range_is_refused(run, tmp_path):
    done = run.ledger.summarise(now=run.tick())
    again = replace(done, seq=done.seq + 1, previous=done.seq)
    assert refused_by_writer(run, again).code == "SUMMARY_RANGE"
    leaves = leaves_of(run.ledger)
    assert judged([*leaves, again], tmp_path / "e") == ("FAILED", [("SUMMARY_RANGE", f"seq {again.seq}")])


def test_B27_a_summary_names_nobody(run, tmp_path):
    """Nothing in it is of one person: counts, sums, and a root over records that are not in it."""
    body = repr(run.ledger.summarise(now=run.tick()))
    for n in (1, 2, 3, 4, 5, 6, 99):
        assert repr(descriptor(n)) not in body


@pytest.fixture
def pruned(tmp_path: Path):
    """A ledger that was pruned as it may be, and its file."""
    driver = pruned_run(tmp_path / "pruned.db")
    driver.path = tmp_path / "pruned.db"
    yield driver
    driver.ledger.close()


def tampered(driver: Driver, *statements: str) -> LedgerCorrupt:
    """What opening says after statements by somebody who has dropped the triggers first."""
    driver.ledger.close()
    with closing(sqlite3.connect(driver.path)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            assert connection.execute(statement).rowcount > 0
        connection.commit()
    with pytest.raises(LedgerCorrupt) as caught:
        Ledger.open(driver.path, SIGNER)
    return caught.value


def retained(export: Path) -> tuple[Path, list[bytes]]:
    """The bundle of a small pruned export that has its stand-ins, and its entries."""
    (path,) = (path for path in (export / "retained").rglob("*") if path.is_file() and path.name != "notes")
    return path, tiles.split_bundle(path.read_bytes(), None)


def verdict_with(export: Path, entries: list[bytes]) -> tuple[str, set[str]]:
    retained(export)[0].write_bytes(tiles.entry_bundle(entries))
    report = verify_export(export, KEYS)
    return report.verdict, {found.code for found in report.findings}


def test_B24_a_withdrawal_is_not_erased_by_pruning(pruned, tmp_path):
    """Every WITHDRAW leaf stays, for those whose ADMIT leaf went too; neither database nor auditor takes less."""
    ledger = pruned.ledger
    with ledger.rows() as rows:
        kept = {decode_leaf(row.body).descriptor_hash for row in rows if row.kind == Withdraw.KIND and row.body}
    assert kept == {descriptor(n) for n in (2, 4, 6, 99)}
    assert [row.seq for row in verify_export(export_of(pruned, tmp_path / "e"), KEYS).withdrawals] == sorted(
        ledger.state.withdrawals.values()
    )
    seq = ledger.state.withdrawals[descriptor(4)]
    ledger.close()
    with closing(sqlite3.connect(pruned.path)) as connection, pytest.raises(sqlite3.IntegrityError, match="only bodies"):
        connection.execute(f"UPDATE entry SET body = NULL WHERE seq = {seq}")
    error = tampered(pruned, f"UPDATE entry SET body = NULL WHERE seq = {seq}")
    assert (error.code, error.seq) == ("PRUNED", seq)


def test_B24_a_withdrawal_that_stands_as_pruned_in_an_export_fails_the_audit(pruned, tmp_path):
    """A pruned WITHDRAW: the leaf hash still folds to the root, so only the meaning tells."""
    export = export_of(pruned, tmp_path / "e")
    entries = retained(export)[1]
    for n in (4, 99):
        forged = list(entries)
        forged[pruned.ledger.state.withdrawals[descriptor(n)]] = b""
        assert verdict_with(export, forged)[0] == "FAILED"
    assert verdict_with(export, entries) == ("TOLD", set())


def test_a_withdrawal_after_pruning_is_answered_as_before(pruned):
    """Whoever left is known as before: repeated withdrawals change nothing, and what was spent is still told."""
    ledger, spent = pruned.ledger, pruned.ledger.epsilon(descriptor(4))
    size = ledger.size
    assert (
        ledger.withdraw(descriptor(4), "contributor", bytes(32), now=pruned.tick()) == ledger.state.withdrawals[descriptor(4)]
    )
    assert ledger.size == size and spent > 0
    with pytest.raises(LeafRefused, match="WITHDRAWN"):
        pruned.admit(admission(4, "sensitive"))


def test_B25_nothing_is_deleted_before_a_quorum_vouches(run):
    run.ledger.summarise(now=run.tick())
    run.steps(1)
    run.epoch()
    for who in ((), (ANNA,), (ANNA, ANNA)):
        vouched_for(run, *who)
        with pytest.raises(RetentionRefused, match="UNVOUCHED"):
            run.ledger.prune()
    vouched_for(run, BEN)
    assert run.ledger.prune() == 3


def test_B25_the_word_of_a_quorum_is_in_the_export_or_the_audit_fails(pruned, tmp_path):
    export = export_of(pruned, tmp_path / "e")
    notes = export / "retained" / "notes"
    kept = notes.read_bytes()
    (note,) = tiles.split_bundle(kept, None)
    lines = note.split(b"\n")
    cases = {
        b"": {"UNVOUCHED"},
        tiles.entry_bundle([b"\n".join(lines[:-2]) + b"\n"]): {"UNVOUCHED"},
        tiles.entry_bundle([note.replace(b"/ben/summary-v1", b"/zed/summary-v1")]): {"UNVOUCHED"},
        tiles.entry_bundle([sign_note(checkpoint_text(SIGNER.name, 40, bytes(32)), SIGNER)]): {"ROOT", "UNVOUCHED"},
        kept[:-1]: {"BUNDLE", "UNVOUCHED"},
    }
    for data, codes in cases.items():
        notes.write_bytes(data)
        report = verify_export(export, KEYS)
        assert (report.verdict, {found.code for found in report.findings}) == ("FAILED", codes)


def test_B26_bodies_that_nobody_vouched_for_are_missed_at_opening(pruned):
    """Pruned early, or outside a summary, by somebody who got past the triggers."""
    late = next(row.seq for row in rows_of(pruned) if row.kind == Spend.KIND and row.body)
    error = tampered(pruned, f"UPDATE entry SET body = NULL WHERE seq = {late}")
    assert (error.code, error.seq) == ("PRUNED", late)


def test_B26_a_boundary_past_what_was_vouched_for_is_corrupt(pruned):
    size = pruned.ledger.size
    assert tampered(pruned, f"UPDATE head SET pruned_before = {size}").code == "UNVOUCHED"


def test_B26_the_body_of_who_is_active_is_missed(pruned):
    """An ADMIT leaf below P of a contribution that stays, in an aggregate that is there: the run goes on."""
    seq = pruned.ledger.state.contributions[descriptor(1)].seq
    error = tampered(pruned, f"UPDATE entry SET body = NULL WHERE seq = {seq}")
    assert error.code == "UNVOUCHED" and "is not closed" in error.sentence


def test_B26_a_forged_aggregate_for_who_is_active_is_refused(pruned):
    """Also where the aggregate is the very one to which the summary commits."""
    seq = pruned.ledger.state.contributions[descriptor(3)].seq
    found, said = next(item for item in pruned.ledger.state.tally.summarised if item[0].covers(seq))
    error = tampered(
        pruned,
        f"UPDATE entry SET body = NULL WHERE seq = {seq}",
        f"INSERT INTO aggregate VALUES ({found.first}, {found.end}, {said}, x'{found.to_bytes().hex()}')",
    )
    assert error.code == "UNVOUCHED" and "is not closed" in error.sentence


@pytest.mark.parametrize(
    "change",
    [
        {"members_root": bytes(32)},
        {"class_index": 0},
        {"clip_micro": 500_000},
        {"clip_micro": 250_001},
        {"sigma_micro": 5_000_000},
        {"max_occurrences": 0},
        {"carried_micro": 5},
        {"max_epsilon_micro": 5, "max_delta_pico": 1},
        {"first": 3},
        {"first": 3, "count": 2},
        {"count": 2},
    ],
    ids=str,
)
@pytest.mark.one_in(3)
def test_an_aggregate_altered_is_found_by_writer_and_auditor(pruned, tmp_path, change):
    """Bounds lowered or raised, another class, more leaves than there are, others as members."""
    seq = pruned.ledger.state.contributions[descriptor(4)].seq
    found = next(aggregate for aggregate, _ in pruned.ledger.state.tally.summarised if aggregate.covers(seq))
    assert (found.first, found.count, found.class_index) == (4, 1, 1)
    forged = replace(found, **change)
    export = export_of(pruned, tmp_path / "e")
    entries = retained(export)[1]
    assert entries[seq] == found.to_bytes()
    entries[seq] = forged.to_bytes()
    verdict, codes = verdict_with(export, entries)
    record = f"UPDATE aggregate SET record = x'{forged.to_bytes().hex()}' WHERE first = {seq}"
    assert verdict == "FAILED" and codes
    assert tampered(pruned, record).code in ("REPLAY", "LEAF", "INDEX")


def test_the_logs_key_cannot_lower_an_aggregate_once_auditors_vouched(pruned, tmp_path):
    """A summary that commits to other terms is another leaf, under another root, and what auditors said is of the first one."""
    ledger, pruned_parts = pruned.ledger, pruned.ledger.pruned()
    with ledger.rows() as rows:
        kept = list(rows)
    wrong = [
        replace(found, clip_micro=found.clip_micro // 2) if found.covers(4) else found
        for found, _ in ledger.state.tally.summarised
    ]
    said = ledger.state.tally.summaries[0]
    body = encode_leaf(replace(said, set_root=set_root(wrong)))
    kept[said.seq] = kept[said.seq]._replace(body=body, leaf_hash=leaf_hash(body))
    frontier = Frontier()
    for row in kept:
        frontier.append(row.leaf_hash)
    note = sign_note(checkpoint_text(SIGNER.name, len(kept), frontier.root()), SIGNER)
    forged = replace(pruned_parts, aggregates=[found for found in wrong if any(map(found.covers, ledger.state.pruned))])
    for name, notes in (("stale", pruned_parts.notes), ("none", [])):
        export = write_export(
            ledger.header, kept, note, tmp_path / name, keys=ledger.state.keys, pruned=replace(forged, notes=notes)
        )
        report = verify_export(export, KEYS)
        assert report.verdict == "FAILED" and "UNVOUCHED" in {found.code for found in report.findings}


def test_a_pruned_admission_is_not_given_to_another_by_a_forged_withdrawal(pruned, tmp_path):
    """The log's key may sign that somebody else had been admitted there: the pools that were charged tell who it was."""
    with pruned.ledger.rows() as rows:
        kept = list(rows)
    gone = next(row for row in kept if row.kind == Withdraw.KIND and decode_leaf(row.body).descriptor_hash == descriptor(4))
    leaf = decode_leaf(gone.body)
    assert isinstance(leaf, Withdraw) and leaf.admit_seq == 4
    body = encode_leaf(replace(leaf, descriptor_hash=descriptor(77)))
    kept[gone.seq] = gone._replace(body=body, leaf_hash=leaf_hash(body))
    frontier = Frontier()
    for row in kept:
        frontier.append(row.leaf_hash)
    note = sign_note(checkpoint_text(SIGNER.name, len(kept), frontier.root()), SIGNER)
    export = write_export(
        pruned.ledger.header, kept, note, tmp_path / "e", keys=pruned.ledger.state.keys, pruned=pruned.ledger.pruned()
    )
    report = verify_export(export, KEYS)
    assert report.verdict == "FAILED"
    assert "CHARGE_CLASS" in {found.code for found in report.findings}, "the pools before tell who was in them"


def test_every_changed_byte_of_what_is_retained_fails_the_audit(pruned, tmp_path):
    export = export_of(pruned, tmp_path / "e")
    path, entries = retained(export)
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        assert verify_export(export, KEYS).verdict == "FAILED", at
    path.write_bytes(data)
    assert is_pruned(verify_export(export, KEYS)) and entries


def test_B27_what_stays_of_who_left_leads_to_nobody(pruned, tmp_path):
    """No key id, attestation or commitment to a content; with the nonce gone no descriptor hash is of anybody."""
    export = export_of(pruned, tmp_path / "e")
    pruned.ledger.close()
    files = [*sorted(export.rglob("*")), *tmp_path.glob("pruned.db*")]
    data = b"".join(path.read_bytes() for path in files if path.is_file())
    for n in (2, 4, 6):
        gone = admission(n)
        assert gone.key_id not in data and gone.attestation_hash not in data and gone.anchor not in data
    assert admission(1).key_id in data


def rows_of(driver: Driver) -> list:
    with driver.ledger.rows() as rows:
        return list(rows)
