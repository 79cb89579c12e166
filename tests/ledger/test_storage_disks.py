"""A ledger's file lies on a local disk: the deepest mount decides, and network file systems are refused."""

from pathlib import Path

import pytest

from ledger.errors import StorageFailed
from ledger.log import Ledger
from ledger.storage import disks
from tests.worlds.ledgers import SIGNER, START, header_spec

MOUNTS = [
    "/dev/vda / ext4 rw 0 0",
    "proc /proc proc rw 0 0",
    "filer:/home /home nfs4 rw 0 0",
    "tmpfs /home/anne/fast tmpfs rw 0 0",
    "//share /mnt/with\\040blank cifs rw 0 0",
    "anne@far: /mnt/far fuse.sshfs rw 0 0",
    "/dev/vdb /srv ext4 rw 0 0",
    "filer:/srv /srv nfs rw 0 0",
    "broken",
]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/ledger.db", "ext4"),
        ("/home/ledger.db", "nfs4"),
        ("/homework/ledger.db", "ext4"),
        ("/home/anne/fast/ledger.db", "tmpfs"),
        ("/mnt/with blank/ledger.db", "cifs"),
        ("/mnt/far/deep/er/ledger.db", "fuse.sshfs"),
        ("/srv/ledger.db", "nfs"),
    ],
)
def test_the_deepest_mount_decides(path, kind):
    assert disks.file_system(Path(path), MOUNTS) == kind
    assert (kind in disks.NETWORK) == (kind not in ("ext4", "tmpfs"))


def test_no_ledger_is_created_or_opened_on_a_network_file_system(tmp_path, monkeypatch):
    path = tmp_path / "ledger.db"
    Ledger.create(path, header_spec(), SIGNER, now=START).close()
    mounts = tmp_path / "mounts"
    mounts.write_text(f"filer:/ {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(disks, "MOUNTS", mounts)
    for act in (
        lambda: Ledger.open(path, SIGNER),
        lambda: Ledger.open(path),
        lambda: Ledger.create(tmp_path / "new.db", header_spec(), SIGNER, now=START),
    ):
        with pytest.raises(StorageFailed) as found:
            act()
        assert found.value.code == "NETWORK_DISK"
    assert not (tmp_path / "new.db").exists()
    monkeypatch.setattr(disks, "MOUNTS", tmp_path / "absent")
    Ledger.open(path, SIGNER).close()
