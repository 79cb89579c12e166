"""The second horizon on both databases: hashes of long pruned leaves go, and all that can still be said stays as it was."""

import pytest
from test_pruning import told

from ledger.audit import verify_export
from ledger.errors import LedgerCorrupt, LedgerError, ProofError, RetentionRefused
from ledger.leaves import Resume, Summary, decode_leaf
from ledger.log import Ledger
from ledger.log.pinned import Pin
from ledger.merkle import verify_consistency, verify_inclusion, verify_inclusion_hash
from ledger.proofs.cosigning import cosign_export
from ledger.proofs.memory import Memory
from ledger.proofs.prover import ExportReader, consistency_proof, inclusion_proof
from ledger.storage.appender import droppable
from ledger.storage.store import Row
from tests.worlds.ledgers import SIGNER, START, admission
from tests.worlds.retained_ledgers import ANNA, BEN, CLEO, crowded, crowded_and_pruned, hashes_gone, is_pruned, vouched_for

KEYS = [SIGNER.vkey]


def rows_of(ledger: Ledger) -> list[Row]:
    with ledger.rows() as rows:
        return list(rows)


@pytest.fixture
def before(place, tmp_path):
    """Pruned, and past the second horizon."""
    driver = crowded_and_pruned(place, tmp_path)
    driver.steps(1)
    driver.epoch()
    yield driver
    driver.ledger.close()


@pytest.mark.one_in(99)
def test_only_hashes_of_pruned_leaves_go_and_into_subtrees_that_no_checkpoint_cuts(before):
    old = rows_of(before.ledger)
    end = before.ledger.state.tally.summaries[0].end
    gone = before.ledger.drop_hashes()
    new = rows_of(before.ledger)
    assert before.ledger.hashes_before == before.ledger.pruned_before == end
    assert gone == sum(bool(row.leaf_hash) for row in old) - sum(bool(row.leaf_hash) for row in new) > 15
    pinned = {row.seq: decode_leaf(row.body).pinned_size for row in new if row.kind == Resume.KIND}
    assert len(pinned) == 1
    for a, b in zip(old, new, strict=True):
        assert (a.seq, a.kind, a.body) == (b.seq, b.kind, b.body)
        if b.body or b.seq >= end:
            assert (b.level, b.leaf_hash) == (0, a.leaf_hash), "what was not pruned keeps its hash"
        elif not b.leaf_hash:
            first = b.seq >> b.level << b.level
            assert new[first].leaf_hash and new[first].level == b.level
            for cut in (*before.ledger._file.checkpoints, *pinned.values()):
                assert not first < cut < first + (1 << b.level)
    assert max(row.level for row in new) >= 3


@pytest.mark.one_in(99)
def test_all_that_the_ledger_says_and_every_root_and_proof_of_what_stays_is_as_before(before, backend):
    ledger = before.ledger
    said, sizes = told(ledger), sorted(ledger._file.checkpoints)
    roots = {size: ledger._file.root_at(size) for size in range(1, ledger.size + 1)}
    hashes = [row.leaf_hash for row in rows_of(ledger)]
    ledger.drop_hashes()
    ledger.close()
    with Ledger.open(backend.place, SIGNER, recompute=True) as ledger:
        assert told(ledger) == said
        tree = ledger._file._subtrees
        lost = {row.seq for row in rows_of(ledger) if row.level}
        for new in sizes:
            assert ledger._file.root_at(new) == roots[new]
            for old in (size for size in sizes if size <= new):
                verify_consistency(old, new, consistency_proof(tree.node, old, new), roots[old], roots[new])
            for seq in set(range(new)) - lost:
                verify_inclusion_hash(hashes[seq], seq, new, inclusion_proof(tree.node, seq, new), roots[new])
        for seq in lost:
            with pytest.raises(ProofError, match="HASHES_GONE"):
                inclusion_proof(tree.node, seq, ledger.size)
        inside = next(row.seq for row in rows_of(ledger) if row.level and not row.leaf_hash)
        with pytest.raises(ProofError, match="HASHES_GONE"):
            ledger._file.root_at(inside)
    with Ledger.open(backend.place, read_only=True) as ledger:
        assert told(ledger) == said


@pytest.mark.one_in(99)
def test_an_export_says_that_hashes_are_gone_and_the_figures_of_the_full_one(before, tmp_path):
    full = verify_export(before.ledger.export(tmp_path / "full"), KEYS)
    gone = {row.seq for row in rows_of(before.ledger) if not row.body}
    before.ledger.drop_hashes()
    lost = {row.seq for row in rows_of(before.ledger) if row.level}
    export = before.ledger.export(tmp_path / "lean")
    lean = verify_export(export, KEYS)
    assert is_pruned(full) and is_pruned(lean) and lean.findings == ()
    assert (lean.classes, lean.epochs, lean.withdrawals, lean.root_hex) == (
        full.classes,
        full.epochs,
        full.withdrawals,
        full.root_hex,
    )
    assert [(row.pruned, row.hashes_gone) for row in lean.summaries] == [(len(gone), len(lost))]
    assert any(f"the hashes of {len(lost)} of these are gone too" in note for note in lean.notes)
    assert not any("hashes" in note for note in full.notes)
    assert (export / "retained" / "nodes").is_file() and not (export / "tile" / "0" / "000").exists()


@pytest.mark.one_in(99)
def test_proofs_from_an_export_without_hashes(before, tmp_path):
    full = ExportReader(before.ledger.export(tmp_path / "full"))
    kept = {seq: inclusion_proof(full.node, seq, full.size) for seq in range(full.size)}
    sizes = sorted(before.ledger._file.checkpoints)
    before.ledger.drop_hashes()
    lost = {row.seq for row in rows_of(before.ledger) if row.level}
    lean = ExportReader(before.ledger.export(tmp_path / "lean"))
    for seq in range(full.size):
        if seq in lost:
            with pytest.raises(ProofError, match=r"HASHES_GONE.*proof file, or an export, made before"):
                inclusion_proof(lean.node, seq, lean.size)
            with pytest.raises(ProofError, match="PRUNED"):
                lean.leaf(seq)
        else:
            assert inclusion_proof(lean.node, seq, lean.size) == kept[seq]
    for seq in set(range(full.size)) - {row.seq for row in rows_of(before.ledger) if not row.body}:
        verify_inclusion(lean.leaf(seq), seq, lean.size, kept[seq], lean.claimed.root)
    for size in sizes:
        assert consistency_proof(lean.node, size, lean.size) == consistency_proof(full.node, size, full.size)


@pytest.mark.one_in(99)
def test_a_ledger_without_hashes_goes_on(before, backend, tmp_path):
    """More epochs, a second summary, pruning and going of hashes; auditors follow it from an early checkpoint on."""
    memory = Memory(tmp_path / "memory", CLEO.vkey)
    cosign_export(tmp_path / "early", KEYS, CLEO, memory, now=START + 5_000, first=True)
    before.ledger.drop_hashes()
    before.ledger.close()
    with Ledger.open(backend.place, SIGNER) as ledger:
        before.ledger = ledger
        ledger.resume(ledger.state.position, ledger.pin(), now=before.tick())
        for n in range(19, 24):
            before.withdraw(n)
        before.admit(admission(500))
        before.steps(1)
        before.epoch()
        before.steps(1)
        before.epoch()
        second = ledger.summarise(now=before.tick())
        vouched_for(before, ANNA, BEN)
        for _ in range(3):
            before.steps(1)
            before.epoch()
        ledger.prune()
        first, level = [row.level for row in rows_of(ledger)], max(row.level for row in rows_of(ledger))
        said = told(ledger)
        assert ledger.drop_hashes() > 0 and told(ledger) == said
        assert ledger.hashes_before == second.end
        again = [row.level for row in rows_of(ledger)]
        assert all(b >= a for a, b in zip(first, again, strict=True)) and max(again) >= level
        assert sum(b > a > 0 for a, b in zip(first, again, strict=True)), "what went before was joined with what went now"
        with pytest.raises(RetentionRefused, match="NOT_PRUNED"):
            ledger.drop_hashes()
        export = ledger.export(tmp_path / "lean")
        report = verify_export(export, KEYS)
        assert is_pruned(report) and report.findings == ()
        cosigned = cosign_export(export, KEYS, CLEO, memory, now=START + 6_000)
        assert is_pruned(cosigned.report)


def test_pins_of_model_checkpoints_can_be_kept(path, tmp_path):
    """One that lies among ADMIT leaves that go, and that no RESUME leaf cites."""
    driver = crowded_and_pruned(path, tmp_path, retention_hash_epochs=1)
    with driver.ledger as ledger:
        pins = [Pin(ledger.header.origin, size, ledger._file.root_at(size), ledger.header_digest) for size in (6, 17)]
        assert ledger.drop_hashes(keep=[pins[0].size]) > 0
        ledger.check_pin(pins[0])
        with pytest.raises(ProofError, match="HASHES_GONE"):
            ledger.check_pin(pins[1])


@pytest.mark.parametrize(
    ("changes", "code"), [({"retention_hash_epochs": 0}, "RETENTION"), ({"retention_hash_epochs": 5}, "TOO_EARLY")]
)
def test_hashes_stay_where_the_policy_keeps_them_or_their_epochs_are_young(path, tmp_path, changes, code):
    with crowded_and_pruned(path, tmp_path, **changes).ledger as ledger:
        old = rows_of(ledger)
        with pytest.raises(RetentionRefused) as caught:
            ledger.drop_hashes()
        assert caught.value.code == code and rows_of(ledger) == old
        if code == "TOO_EARLY":
            assert "5 epochs, and 2 follow leaf" in caught.value.sentence and "3 more must close" in caught.value.sentence


def test_hashes_of_leaves_that_were_not_pruned_stay(path, tmp_path):
    """Past the horizon by number, and still not pruned."""
    driver = crowded(path, tmp_path)
    with driver.ledger as ledger:
        ledger.summarise(now=driver.tick())
        for _ in range(4):
            driver.steps(1)
            driver.epoch()
        with pytest.raises(RetentionRefused, match="NOT_PRUNED"):
            ledger.drop_hashes()
        vouched_for(driver, ANNA, BEN)
        with pytest.raises(RetentionRefused, match="NOT_PRUNED"):
            ledger.drop_hashes()
        ledger.prune()
        assert ledger.drop_hashes() > 0


def test_a_reader_drops_nothing(path, tmp_path):
    driver = crowded_and_pruned(path, tmp_path, retention_hash_epochs=1)
    driver.ledger.close()
    with Ledger.open(path, read_only=True) as ledger, pytest.raises(LedgerError, match="READ_ONLY"):
        ledger.drop_hashes()


FIRST = "(SELECT min(seq) FROM entry WHERE level > 1)"
SOME = "x'" + "ab" * 32 + "'"
ATTACKS = {
    "a root altered": f"UPDATE entry SET leaf = {SOME} WHERE seq = {FIRST}",
    "a root gone": f"UPDATE entry SET leaf = NULL WHERE seq = {FIRST}",
    "a hash inside": f"UPDATE entry SET leaf = {SOME} WHERE seq = {FIRST} + 1",
    "a lower level": f"UPDATE entry SET level = 1 WHERE seq = {FIRST}",
    "a higher level": "UPDATE entry SET level = level + 1 WHERE level = (SELECT max(level) FROM entry)",
    "a huge level": f"UPDATE entry SET level = 62 WHERE seq = {FIRST}",
    "a level out of nothing": "UPDATE entry SET level = 1 WHERE seq = (SELECT max(seq) FROM entry)",
    "no level any more": "UPDATE entry SET level = 0",
    "a leaf hash gone": "UPDATE entry SET leaf = NULL WHERE seq = (SELECT max(seq) - 3 FROM entry)",
    "hashes_before lowered": "UPDATE head SET hashes_before = 4",
    "hashes_before raised": "UPDATE head SET hashes_before = pruned_before + 1",
    "a leaf that is there": f"UPDATE entry SET body = x'00' WHERE seq = {FIRST}",
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_database_whose_subtrees_were_altered_is_corrupt(before, backend, attack):
    before.ledger.drop_hashes()
    before.ledger.close()
    backend.edit(ATTACKS[attack])
    with pytest.raises(LedgerCorrupt):
        Ledger.open(backend.place, SIGNER)
    with pytest.raises(LedgerCorrupt):
        Ledger.open(backend.place, read_only=True)


@pytest.mark.one_in(99)
def test_subtrees_over_leaves_that_the_policy_keeps_are_corrupt(place, backend, tmp_path):
    """Hashes went by hand, an epoch too early: the roots are right, and the horizon is not."""
    driver = crowded_and_pruned(place, tmp_path, retention_hash_epochs=4)
    with driver.ledger as ledger:
        end = ledger.pruned_before
        with ledger._file.store.snapshot() as snapshot:
            subtrees = list(droppable(snapshot, end, ledger._file.checkpoints))
        ledger._file.store.drop_hashes(ledger.size, end, subtrees)
    with pytest.raises(LedgerCorrupt, match="HORIZON"):
        Ledger.open(backend.place, SIGNER)


def test_a_summary_that_follows_names_the_subtrees_of_its_range(before):
    """A range that begins behind gone hashes is summarised as ever."""
    before.ledger.drop_hashes()
    leaf = before.ledger.summarise(now=before.tick())
    assert isinstance(leaf, Summary) and leaf.first == before.ledger.hashes_before


def test_the_helpers_do_what_they_say(path, tmp_path):
    with hashes_gone(path, tmp_path).ledger as ledger:
        assert ledger.hashes_before == ledger.pruned_before > 0
