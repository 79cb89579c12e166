"""Builds sdist and wheel of the commit that is checked out, with bills of materials and provenance; `make dist`.

Nothing but the commit goes in: it is unpacked beside the work tree, and the wheel is built from the sdist. Times are those of
the commit, owners and modes are set. So two builds by one set of tools give equal bytes (tests/supply/test_dist.py).
"""

import argparse
import gzip
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from publish.lock import ROOT
from publish.statement import PLACEHOLDER, bill, digest, provenance, repository, sums

EPOCH = "SOURCE_DATE_EPOCH"


class NotPublished(SystemExit):
    """Ends the program with what was found and what to do."""


def git(*words: str, root: Path = ROOT) -> str:
    """Returns what a git command prints."""
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout


def revision() -> tuple[str, int]:
    """Returns the hash of the commit and its time. Raises NotPublished: tracked files differ from it."""
    changed = git("status", "--porcelain", "--untracked-files=no").splitlines()
    if changed:
        raise NotPublished(f"{len(changed)} tracked files differ from the commit ({changed[0][3:]}, ...); commit them first")
    return git("rev-parse", "HEAD").strip(), int(git("log", "-1", "--format=%ct"))


def unpack(archive: io.BytesIO | Path, folder: Path) -> None:
    """Unpacks regular files and folders of an archive, under modes that no umask changes."""
    with tarfile.open(fileobj=archive) if isinstance(archive, io.BytesIO) else tarfile.open(archive) as tar:
        for member in tar.getmembers():
            target = (folder / member.name).resolve()
            if not target.is_relative_to(folder.resolve()) or not (member.isreg() or member.isdir()):
                raise NotPublished(f"{member.name} is no regular file below the archive; an sdist holds no other")
            tar.extract(member, folder, filter="data")
            target.chmod(_mode(member))


def even(sdist: Path, epoch: int, target: Path) -> None:
    """Writes an sdist anew in the order of names, with one time, one owner and two modes."""
    with (
        tarfile.open(sdist) as old,
        target.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=raw, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            member.mode, member.mtime, member.pax_headers = _mode(member), epoch, {}
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            new.addfile(member, old.extractfile(member) if member.isreg() else None)


def _mode(member: tarfile.TarInfo) -> int:
    return 0o755 if member.isdir() or member.mode & 0o100 else 0o644


def left_out(tracked: Iterable[str], sdist: Path) -> list[str]:
    """Returns which tracked files an sdist lacks."""
    with tarfile.open(sdist) as tar:
        inside = {name.partition("/")[2] for name in tar.getnames()}
    return sorted(set(tracked) - inside)


def build(kind: str, source: Path, folder: Path, epoch: int) -> Path:
    """Builds an sdist or a wheel with the tools of this environment; returns its path."""
    command = [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", str(folder), str(source)]
    environment = os.environ | {EPOCH: str(epoch), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise NotPublished(f"the {kind} does not build:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    (made,) = folder.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return made


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m publish.dist", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where everything is written (default: dist/)")
    parser.add_argument("--builder", metavar="URI", help="who builds, for the provenance (default: this target, by hand)")
    chosen = parser.parse_args()
    commit, epoch = revision()
    os.umask(0o022)  # backends make files of their own
    chosen.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        source, made, unpacked = (Path(folder) / name for name in ("source", "made", "unpacked"))
        for path in (source, made, unpacked):
            path.mkdir()
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        unpack(io.BytesIO(archive), source)
        rough = build("sdist", source, made, epoch)
        missing = left_out(git("ls-tree", "-r", "--name-only", commit).splitlines(), rough)
        if missing:
            told = ", ".join(missing[:5])
            raise NotPublished(f"the sdist lacks {len(missing)} tracked files ({told}); add them to MANIFEST.in")
        sdist = chosen.out / rough.name
        even(rough, epoch, sdist)
        unpack(sdist, unpacked)
        wheel = build("wheel", unpacked / sdist.name.removesuffix(".tar.gz"), made, epoch)
        final = chosen.out / wheel.name
        final.write_bytes(wheel.read_bytes())
    bills = [bill(name, final, epoch, chosen.out) for name in ("base", "train")]
    statement = provenance([final, sdist], commit, epoch, chosen.builder or f"{repository()}#make-dist", chosen.out)
    listed = sums([final, sdist, *bills, statement], chosen.out)
    for path in (final, sdist, *bills, statement, listed):
        print(f"{digest(path)}  {path.name}")
    if PLACEHOLDER in repository():
        print(f"not for publication: {PLACEHOLDER} stands for the address of the project (SECURITY.md)", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
