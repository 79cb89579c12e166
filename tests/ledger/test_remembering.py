"""What a reader remembers of ledgers: the largest checkpoint of each, on disk, for nobody else to read."""

import shutil
import stat
from pathlib import Path

import pytest

from ledger.audit import verify_export
from ledger.errors import StorageFailed
from ledger.log import Ledger
from ledger.note import Cosigner, NoteSigner, checkpoint_text, peek_checkpoint, sign_note
from ledger.proofs.cosigning import cosign_export
from ledger.proofs.memory import Memory, hold_against_memory, parse_evidence
from ledger.proofs.prover import ExportReader
from ledger.tiles import KeptNodes
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START, Driver, admission, header_spec
from tests.worlds.retained_ledgers import crowded_and_pruned

NEW = NoteSigner(SIGNER.name, OTHER_KEY)


@pytest.fixture(scope="module")
def exports(tmp_path_factory) -> dict[str, Path]:
    """One ledger at three sizes; between the last two its key was changed."""
    base = tmp_path_factory.mktemp("run")
    with Ledger.create(base / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1))
        driver.steps()
        driver.epoch()
        made = {"small": ledger.export(base / "small")}
        driver.steps()
        driver.epoch()
        made["large"] = ledger.export(base / "large")
        ledger.rotate_key(NEW, now=driver.tick())
        driver.steps()
        driver.epoch()
        return made | {"rotated": ledger.export(base / "rotated")}


def seen(export: Path, memory: Path, *keys: str):
    keys = keys or (SIGNER.vkey,)
    return hold_against_memory(verify_export(export, keys), export, memory, keys)


def size_in(memory: Path) -> int:
    return peek_checkpoint(Memory(memory, kind="seen").path(SIGNER.name).read_bytes()).size


def test_the_largest_checkpoint_is_remembered_and_no_smaller_one(exports, tmp_path):
    memory = tmp_path / "deep" / "seen"
    sizes = []
    for name in ("small", "large", "small", "rotated", "large"):
        report = seen(exports[name], memory)
        sizes.append(size_in(memory))
        behind = sizes[-1] > report.size
        assert (report.verdict == "FAILED") == behind and [found.code for found in report.findings] == ["BEHIND"] * behind
    assert sizes == sorted(sizes) and len(set(sizes)) == 3


def test_what_is_remembered_is_for_its_owner_alone(exports, tmp_path):
    seen(exports["small"], tmp_path / "seen")
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "seen").iterdir()}
    assert set(files.values()) == {0o600} and stat.S_IMODE((tmp_path / "seen").stat().st_mode) == 0o700


def test_an_export_from_before_the_key_was_changed_is_behind_with_evidence(exports, tmp_path):
    """The old key is pinned, and leads to no newer one in the older export."""
    assert seen(exports["rotated"], tmp_path / "seen").verdict == "TOLD"
    assert [found.code for found in seen(exports["large"], tmp_path / "seen").findings] == ["BEHIND"]
    (evidence,) = (tmp_path / "seen").glob("*.evidence")
    shown = parse_evidence(evidence.read_bytes())
    assert peek_checkpoint(shown.remembered).size > peek_checkpoint(shown.offered).size


def test_an_export_that_fails_is_not_remembered(exports, tmp_path):
    broken = Path(shutil.copytree(exports["small"], tmp_path / "broken"))
    (broken / "tile" / "extra").write_bytes(b"")
    assert seen(broken, tmp_path / "seen").verdict == "FAILED"
    assert not (tmp_path / "seen").exists()


def test_a_memory_that_cannot_be_written_is_an_error_and_no_verdict(exports, tmp_path, monkeypatch):
    def full_disk(path, data, mode):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ledger.proofs.memory.atomic_write", full_disk)
    with pytest.raises(StorageFailed, match="MEMORY"):
        seen(exports["small"], tmp_path / "seen")


def test_a_memory_that_is_no_checkpoint_fails_and_is_left_as_it_is(exports, tmp_path):
    memory = Memory(tmp_path / "seen", kind="seen")
    (tmp_path / "seen").mkdir()
    memory.path(SIGNER.name).write_text("nothing")
    assert [found.code for found in seen(exports["small"], tmp_path / "seen").findings] == ["MEMORY"]
    assert memory.path(SIGNER.name).read_text() == "nothing"


def test_one_directory_holds_what_was_seen_and_what_was_cosigned(exports, tmp_path):
    anna = Cosigner("auditor.example/anna", OTHER_KEY)
    memory = Memory(tmp_path / "both", anna.vkey)
    seen(exports["small"], tmp_path / "both")
    cosign_export(exports["small"], [SIGNER.vkey], anna, memory, now=START + 9, first=True)
    seen(exports["large"], tmp_path / "both")
    assert memory.read(SIGNER.name).checkpoint.size < size_in(tmp_path / "both")


def test_an_export_that_cannot_show_that_it_extends_what_is_remembered_fails(tmp_path):
    """The hashes about that size are gone, so that nothing tells a fork from an honest history: no verdict but FAILED."""
    driver = crowded_and_pruned(tmp_path / "ledger.db", tmp_path)
    driver.steps(1)
    driver.epoch()
    driver.ledger.drop_hashes()
    export = driver.ledger.export(tmp_path / "export")
    report = verify_export(export, [SIGNER.vkey])
    reader = ExportReader(export)
    nodes = KeptNodes((export / "retained" / "nodes").read_bytes(), reader.size)
    inside = next(node.first + 1 for node in nodes if node.level > 1)
    memory = Memory(tmp_path / "memory", kind="seen")
    with memory.locked():
        memory.keep(SIGNER.name, sign_note(checkpoint_text(SIGNER.name, inside, bytes(32)), SIGNER))
    held = hold_against_memory(report, export, tmp_path / "memory", [SIGNER.vkey])
    assert (held.verdict, [found.code for found in held.findings]) == ("FAILED", ["HASHES_GONE"])
