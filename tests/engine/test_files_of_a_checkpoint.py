"""Checkpoints of several files: only what was digested is read, whatever lies under the names by then."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from dptrain.parallel import ALONE  # noqa: E402
from dptrain.parallel.ranks import Ranks  # noqa: E402
from dptrain.record.pin import Table  # noqa: E402
from dptrain.record.shard_files import table_of, verified  # noqa: E402
from ledger.errors import PinRefused  # noqa: E402

FILES = {"shards/0.distcp": b"rows of rank 0", "shards/1.distcp": b"rows of rank 1", "registered.pt": b"states"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "step-00000002"
    for name, data in FILES.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(data)
    return made


def table(folder: Path) -> Table:
    found: Table = json.loads(table_of(folder))["files"]
    return found


class Two(Ranks):
    """Rank 0 of two, of which the other one says the same or has found something."""

    size = 2

    def __init__(self, other: str = "") -> None:
        self.other = other

    def texts(self, own: str) -> list[str]:
        return [own, self.other]


def test_what_is_read_is_what_was_digested_though_other_files_take_the_names(folder: Path) -> None:
    files = table(folder)
    (folder / "more.pkl").write_bytes(b"nobody pinned this")
    with verified(folder, files, ALONE) as own:
        for name in FILES:
            (folder / "other").write_bytes(b"something else")
            (folder / "other").rename(folder / name)
        read = {path.relative_to(own).as_posix(): path.read_bytes() for path in own.rglob("*") if path.is_file()}
        assert read == FILES, "exactly the files of the table"
    assert not own.exists()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("fault", ["changed", "shorter", "longer", "missing"])
def test_a_file_that_is_not_the_pinned_one_is_refused_before_anything_is_read(folder: Path, name: str, fault: str) -> None:
    files, path = table(folder), folder / name
    data = path.read_bytes()
    path.unlink()
    if fault != "missing":
        path.write_bytes({"changed": b"X" + data[1:], "shorter": data[:-1], "longer": data + b"X"}[fault])
    with pytest.raises(PinRefused) as refused, verified(folder, files, ALONE):
        pytest.fail("it was opened")
    assert refused.value.code in ("STATE_CHANGED", "STATE_MISSING")


def test_what_another_rank_finds_is_refused_here_too(folder: Path) -> None:
    with verified(folder, table(folder), Two()):
        pass
    with (
        pytest.raises(PinRefused, match="STATE_MISSING: shards/1"),
        verified(folder, table(folder), Two("STATE_MISSING shards/1")),
    ):
        pytest.fail("it was opened")


@pytest.mark.parametrize("name", ["../registered.pt", "shards/../../outside"])
def test_a_name_that_leads_out_of_the_folder_is_refused(folder: Path, name: str) -> None:
    files = table(folder)
    (folder.parent / "registered.pt").write_bytes(FILES["registered.pt"])
    (folder.parent / "outside").write_bytes(FILES["registered.pt"])
    with pytest.raises(PinRefused, match="STATE_CHANGED"), verified(folder, {name: files["registered.pt"]}, ALONE):
        pytest.fail("it was opened")
