"""What is on a disk, and which disks a file with a write-ahead log may lie on: those of this machine.

SQLite's log needs memory that the processes using it share (sqlite.org/wal.html), and locks that work. Network file systems
give neither, and lose commits without a word.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ledger.errors import StorageFailed

NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda", "fuse.sshfs", "fuse.s3fs"})
"""File systems over a network, by the names that the kernel gives them."""

MOUNTS: Final = Path("/proc/self/mounts")


def is_there(path: Path) -> bool:
    """Tells whether something lies at a path; a disk that cannot tell has not said no.

    Raises:
        StorageFailed: code IO.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StorageFailed("IO", f"cannot tell whether {path} is there: {error.strerror or error}; mend the disk") from error
    return True


def require_local(path: Path) -> None:
    """Refuses a place on a network file system; where the system does not tell, lets it pass.

    Raises:
        StorageFailed: code NETWORK_DISK.
    """
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    kind = file_system(path.resolve(), lines)
    if kind in NETWORK:
        raise StorageFailed(
            "NETWORK_DISK", f"{path} is on a network file system ({kind}), which loses commits; use a local disk, or PostgreSQL"
        )


def file_system(path: Path, mounts: Iterable[str]) -> str | None:
    """Returns the kind of file system of the deepest mount point above an absolute path; later mounts hide earlier ones.

    Args:
        path: need not exist.
        mounts: lines as in ``/proc/self/mounts`` (fstab(5)): device, mount point with octal escapes, kind, and more.
    """
    found, depth = None, -1
    for line in mounts:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(fields[1].encode().decode("unicode_escape"))
        if len(point.parts) >= depth and path.is_relative_to(point):
            found, depth = fields[2], len(point.parts)
    return found
