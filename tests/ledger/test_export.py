"""Exports: every file accounted for, every byte under a check, every number recomputed."""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir

import pytest
from spends import changing, with_rows

from attest import cbor
from attest.keys import public_bytes
from ledger import layout, tiles
from ledger.audit import verify_export
from ledger.errors import ExportRefused, StorageFailed
from ledger.leaves import MAX_LEAF_SIZE, Admit, Charge, Epoch, Header, Settle, Spend, decode_leaf, encode_leaf
from ledger.log import Ledger
from ledger.merkle import leaf_hash, root
from ledger.note import NoteSigner, checkpoint_text, sign_note
from ledger.trust import auditors_policy
from tests.reference.hash_tiles import hash_tiles
from tests.worlds.ledgers import LOG_KEY, OTHER_KEY, OWNER_KEY, SIGNER, START, Driver, admission, descriptor, header_spec

VKEYS = [SIGNER.vkey]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """The export of one whole run."""
    base = tmp_path_factory.mktemp("run")
    with Ledger.create(base / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        Driver(ledger).whole_run()
        return ledger.export(base / "export")


@pytest.fixture
def export(source, tmp_path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "copy"))


def files(directory: Path) -> list[str]:
    return sorted(p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file())


def stored_leaves(directory: Path) -> list[bytes]:
    bundles = sorted((directory / "tile" / "entries").rglob("*"))
    data = next(p for p in bundles if p.is_file())
    width = int(data.name) if data.parent.name.endswith(".p") else 256
    return tiles.split_bundle(data.read_bytes(), width)


def write(directory: Path, leaves: list[bytes], signer: NoteSigner = SIGNER) -> Path:
    """Writes leaves as an export that is right in everything but, perhaps, their meaning."""
    shutil.rmtree(directory)
    directory.mkdir()
    contents = {
        "checkpoint": sign_note(checkpoint_text(signer.name, len(leaves), root(leaves)), signer),
        "policy": auditors_policy(SIGNER.vkey).text(),
        layout.entries_path(0, len(leaves)): tiles.entry_bundle(leaves),
        **dict(hash_tiles([leaf_hash(leaf) for leaf in leaves])),
    }
    for name, data in contents.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)
    return directory


def rebuilt(directory: Path, change) -> list[bytes]:
    """The leaves of an export after ``change(seq, leaf)``."""
    return [encode_leaf(change(seq, decode_leaf(data))) for seq, data in enumerate(stored_leaves(directory))]


def seq_of(directory: Path, kind, nth: int = 0) -> int:
    return [s for s, data in enumerate(stored_leaves(directory)) if isinstance(decode_leaf(data), kind)][nth]


def wheres(report) -> set[str]:
    return {finding.where for finding in report.findings}


def codes(report) -> set[str]:
    return {finding.code for finding in report.findings}


def test_an_honest_export_verifies(export):
    report = verify_export(export, VKEYS, owner_key=public_bytes(OWNER_KEY))
    assert (report.verdict, report.findings) == ("TOLD", ())
    assert report.origin == SIGNER.name and report.finished and report.charged == 16
    assert [c.name for c in report.classes] == ["open", "sensitive"]
    assert all(c.epsilon_replace > c.epsilon > 0 for c in report.classes)
    assert [row.step for row in report.epochs] == [8, 16]
    assert "1 withdrawal names a contribution that no ADMIT leaf names" in report.notes
    assert report.to_json()["verdict"] == "TOLD"


def test_the_layout_is_tlog_tiles(export):
    size = verify_export(export, VKEYS).size
    assert files(export) == sorted(layout.file_paths(size))
    assert files(export) == sorted(["checkpoint", "policy", f"tile/0/000.p/{size}", f"tile/entries/000.p/{size}"])


def flip_every_byte(export: Path) -> int:
    """Changes each byte, one at a time: the verdict is never anything but FAILED, and the file is named. Returns how many."""
    flips = 0
    for name in files(export):
        target = export / name
        original = target.read_bytes()
        for position in range(len(original)):
            changed = bytearray(original)
            changed[position] ^= 1 << (position % 8)
            target.write_bytes(bytes(changed))
            report = verify_export(export, VKEYS)
            assert report.verdict == "FAILED"
            assert wheres(report) == {name}, (name, position, report.findings)
        target.write_bytes(original)
        flips += len(original)
    assert verify_export(export, VKEYS).verdict == "TOLD"
    return flips


def test_E1_every_byte_of_an_export_counts(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        run = Driver(ledger)
        run.admit(admission(1))
        run.steps()
        run.epoch()
        export = ledger.export(tmp_path / "export")
    assert flip_every_byte(export) > 1500


@pytest.mark.slow
def test_E1_every_byte_of_an_export_of_two_tiles_counts(tmp_path):
    """Whole and partial entry bundles, whole and partial hash tiles, and a tile of the level above."""
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        run = Driver(ledger)
        run.admit(*(admission(n) for n in range(256)))
        run.charge()
        export = ledger.export(tmp_path / "export")
    assert {"tile/0/000", "tile/0/001.p/2", "tile/1/000.p/1", "tile/entries/000", "tile/entries/001.p/2"} <= set(files(export))
    print(f"{flip_every_byte(export)} flips, undetected 0")


def test_E1_missing_truncated_and_grown_files_are_named(export):
    for name in files(export):
        target = export / name
        original = target.read_bytes()
        target.unlink()
        assert name in wheres(verify_export(export, VKEYS))
        for data in (b"", original[:-1], original + b"\0", original * 2):
            target.write_bytes(data)
            report = verify_export(export, VKEYS)
            assert report.verdict == "FAILED" and name in wheres(report)
        target.write_bytes(original)


UNKNOWN = ["extra", "tile/0/001", "tile/entries/000", "tile/0/000", "tile/1/000.p/1", "Checkpoint"]


@pytest.mark.parametrize("name", UNKNOWN)
def test_E1_unknown_files_are_named(export, name):
    (export / name).parent.mkdir(parents=True, exist_ok=True)
    (export / name).write_bytes(b"")
    report = verify_export(export, VKEYS)
    assert report.verdict == "FAILED" and wheres(report) == {name} and codes(report) == {"UNKNOWN_FILE"}


def test_E2_links_devices_and_empty_directories_are_refused(export, tmp_path):
    name = next(n for n in files(export) if n.startswith("tile/entries"))
    moved = tmp_path / "moved"
    shutil.move(export / name, moved)
    (export / name).symlink_to(moved)
    assert verify_export(export, VKEYS).verdict == "FAILED"
    (export / name).unlink()
    os.mkfifo(export / name)
    assert verify_export(export, VKEYS).verdict == "FAILED"
    (export / name).unlink()
    shutil.move(moved, export / name)
    (export / "empty").mkdir()
    assert wheres(verify_export(export, VKEYS)) == {"empty/"}


def test_E1_swapped_tiles_are_found(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        run = Driver(ledger)
        run.admit(*(admission(n) for n in range(1100)))
        run.steps()
        run.epoch()
        export = ledger.export(tmp_path / "export")
    assert verify_export(export, VKEYS).verdict == "TOLD"
    assert {"tile/0/000", "tile/0/001", "tile/1/000.p/4", "tile/entries/003"} <= set(files(export))
    first, second = export / "tile/0/000", export / "tile/0/001"
    a, b = first.read_bytes(), second.read_bytes()
    first.write_bytes(b)
    second.write_bytes(a)
    assert wheres(verify_export(export, VKEYS)) == {"tile/0/000", "tile/0/001"}


@pytest.mark.parametrize("bad", [[], ["nonsense"], [NoteSigner(SIGNER.name, OTHER_KEY).vkey], [SIGNER.vkey + "x"]])
def test_without_the_right_key_nothing_is_believed(export, bad):
    report = verify_export(export, bad)
    assert report.verdict == "FAILED" and report.size is None


def test_another_owner_is_named(export):
    assert codes(verify_export(export, VKEYS, owner_key=public_bytes(OTHER_KEY))) == {"OWNER"}


def test_a_checkpoint_of_another_origin_under_the_same_key_is_refused(export):
    other = NoteSigner("ledger.example/run2", LOG_KEY)
    write(export, stored_leaves(export), other)
    report = verify_export(export, [*VKEYS, other.vkey])
    assert {"ORIGIN", "LOG_KEY"} <= codes(report)


def test_an_understated_epsilon_is_named_though_the_tree_is_signed(export):
    target = seq_of(export, Spend, 1)

    def understate(seq, leaf):
        return with_rows(leaf, lambda row: replace(row, epsilon_micro=row.epsilon_micro - 2), 2) if seq == target else leaf

    report = verify_export(write(export, rebuilt(export, understate)), VKEYS)
    assert report.verdict == "FAILED"
    assert [f.where for f in report.findings if f.code == "SPEND_EPSILON"] == [f"seq {target}"]


def test_an_overstated_epsilon_is_named_too(export):
    target = seq_of(export, Spend, 0)

    def overstate(seq, leaf):
        return with_rows(leaf, lambda row: replace(row, epsilon_micro=row.epsilon_micro + 3), 0) if seq == target else leaf

    assert "SPEND_EPSILON" in codes(verify_export(write(export, rebuilt(export, overstate)), VKEYS))


LIES = {
    "fewer steps charged": (Charge, lambda leaf: replace(leaf, n_steps=3)),
    "smaller pool": (Charge, lambda leaf: _row(leaf, pool_count=0)),
    "other pool root": (Charge, lambda leaf: _row(leaf, pool_root=bytes(32))),
    "smaller sampling rate": (Charge, lambda leaf: _row(leaf, q_den=5000)),
    "larger multiplier": (Charge, lambda leaf: _row(leaf, sigma_micro=9_000_000)),
    "more noise than scheduled": (Charge, lambda leaf: _row(leaf, min_std=9.0)),
    "less noise realised": (Settle, lambda leaf: replace(leaf, variances=(0.5, 2.25))),
    "more steps released": (Settle, lambda leaf: replace(leaf, steps_released=5)),
    "stricter bound than signed": (Admit, lambda leaf: replace(leaf, sigma_micro=9_000_000)),
    "looser bound than the class": (Admit, lambda leaf: replace(leaf, sigma_micro=1)),
    "other class": (Admit, lambda leaf: replace(leaf, class_name="sensitive")),
    "lower epoch total": (Epoch, lambda leaf: replace(leaf, charged=1)),
    "later epoch step": (Epoch, lambda leaf: replace(leaf, step=9)),
    "time runs back": (Settle, lambda leaf: replace(leaf, time=START - 1)),
    "spend over fewer steps": (Spend, changing(0, steps=1)),
    "other seq": (Settle, lambda leaf: replace(leaf, seq=leaf.seq + 1)),
}


# These contradict nothing yet: the SETTLE, or the SPEND that they were meant to lower, gives them away.
CONSISTENT_IN_THEMSELVES = {"fewer steps charged", "stricter bound than signed"}


def _row(leaf, **changes):
    return replace(leaf, classes=(replace(leaf.classes[0], **changes), *leaf.classes[1:]))


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_a_signed_lie_is_named_by_its_seq(export, lie):
    kind, change = LIES[lie]
    target = seq_of(export, kind)
    leaves = rebuilt(export, lambda seq, leaf: change(leaf) if seq == target else leaf)
    report = verify_export(write(export, leaves), VKEYS)
    assert report.verdict == "FAILED"
    if lie not in CONSISTENT_IN_THEMSELVES:
        assert f"seq {target}" in wheres(report)


@pytest.mark.parametrize("kind", [Admit, Charge, Settle, Spend, Epoch])
def test_a_left_out_leaf_is_found_though_the_rest_is_renumbered_and_signed(export, kind):
    target = seq_of(export, kind)
    leaves = [decode_leaf(data) for data in stored_leaves(export)]
    kept = [leaf for leaf in leaves if leaf.seq != target]
    renumbered = [leaf if seq == 0 else replace(leaf, seq=seq) for seq, leaf in enumerate(kept)]
    assert verify_export(write(export, [encode_leaf(leaf) for leaf in renumbered]), VKEYS).verdict == "FAILED"


def test_a_header_with_less_noise_than_the_max_rule_is_refused(export):
    leaves = stored_leaves(export)
    half = leaves[0].replace(b"\xf9\x3e\x00", b"\xf9\x3a\x00", 1)  # 1.5 -> 0.75 in binary16
    assert half != leaves[0]
    report = verify_export(write(export, [half, *leaves[1:]]), VKEYS)
    assert codes(report) == {"SCHEDULE"} and wheres(report) == {"seq 0"}


def test_random_bytes_and_foreign_leaves_never_raise(export):
    leaves = stored_leaves(export)
    for bad in (b"", b"\xff" * 40, leaves[0] + b"\0", b"\xa0", hashlib.sha256(b"").digest(), leaves[1]):
        for place in (0, 5):
            changed = [*leaves[:place], bad, *leaves[place + 1 :]]
            assert verify_export(write(export, changed), VKEYS).verdict == "FAILED"


def test_E3_a_huge_signed_size_fails_fast(export):
    note = sign_note(checkpoint_text(SIGNER.name, 1 << 62, bytes(32)), SIGNER)
    (export / "checkpoint").write_bytes(note)
    assert codes(verify_export(export, VKEYS)) == {"MISSING_FILE"}


def test_no_directory_no_verdict(tmp_path):
    assert verify_export(tmp_path / "nowhere", VKEYS).verdict == "FAILED"
    (tmp_path / "file").write_bytes(b"")
    assert verify_export(tmp_path / "file", VKEYS).verdict == "FAILED"


def test_an_open_run_says_so(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        run = Driver(ledger)
        run.admit(admission(1))
        run.charge()
        report = verify_export(ledger.export(tmp_path / "export"), VKEYS)
    assert report.verdict == "TOLD" and not report.finished
    assert report.classes[0].epsilon > 0 and report.classes[0].steps == 4
    assert len(report.notes) == 6 and {"OPEN", "FROZEN_TOLD"} <= set(report.qualifiers)


def test_a_run_with_a_test_key_is_never_exported(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.db", header_spec(private=False), SIGNER, now=START)
    with ledger, pytest.raises(ExportRefused):
        ledger.export(tmp_path / "export")
    assert not (tmp_path / "export").exists()


def test_an_export_is_never_written_over_something(run, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(ExportRefused):
        run.ledger.export(tmp_path / "there")


def test_an_export_that_cannot_be_written_leaves_nothing(run, tmp_path, monkeypatch):
    def full(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageFailed):
        run.ledger.export(tmp_path / "export")
    assert not [p for p in tmp_path.iterdir() if "export" in p.name]


def test_no_contributor_or_path_enters_a_leaf(export):
    for data in stored_leaves(export)[1:]:
        assert b"contributor-" not in data and gettempdir().encode() not in data
    assert isinstance(decode_leaf(stored_leaves(export)[0]), Header)
    assert descriptor(1) in stored_leaves(export)[1]


def test_verify_runs_where_torch_cannot_be_imported(source):
    program = (
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch': raise ModuleNotFoundError('blocked', name='torch')\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "from ledger.audit import verify_export\n"
        f"report = verify_export({str(source)!r}, {VKEYS!r})\n"
        "assert report.verdict == 'TOLD', report.findings\n"
        "assert not any(name.startswith('sqlalchemy') or name == 'ledger.storage' for name in sys.modules)\n"
    )
    root_dir = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root_dir, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_headline_names_the_accountant_that_computed_and_no_other_is_written(export):
    """Who holds the log's key may write any library into the header: it is a finding, and nowhere a fact."""
    assert verify_export(export, VKEYS).accountant.startswith("pld (dptrain pld-")
    leaves = stored_leaves(export)
    fields = cbor.decode(leaves[0], max_size=MAX_LEAF_SIZE)
    fields[15] = [fields[15][0], "nist", fields[15][2], "exact"]
    report = verify_export(write(export, [cbor.encode(fields), *leaves[1:]]), VKEYS)
    assert report.accountant is None and codes(report) == {"ACCOUNTANT_VERSION"}
