"""Writes requirements/*.lock: every version that is installed, with the hashes of its files; `make lock`.

python -m publish.lock                  pins stay where they still fit
python -m publish.lock --upgrade        the newest of everything
python -m publish.lock --check          say which locks no longer fit pyproject.toml, and write nothing

A lock holds for every platform and every Python that pyproject.toml allows, and names no index. Torch is in none: which build
is wanted depends on the machine (`TORCH` in the Makefile), and mirrors have other builds under one version. What torch alone
brings for GPUs is left out with it.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "requirements"
LEAST_PYTHON = "3.11"

BY_HAND = re.compile(r"(torch|triton|nvidia|cuda)(-[a-z0-9-]+)?==")
"""Packages that `TORCH` installs, each at the beginning of a line."""


@dataclass(frozen=True)
class Lock:
    """One file.

    Attributes:
        name: of the file, without its ending.
        extras: of dptrain.
        source: what is asked for, below the root.
    """

    name: str
    extras: tuple[str, ...] = ()
    source: str = "pyproject.toml"

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.lock"


LOCKS = (
    Lock("base"),
    Lock("train", ("train",)),
    Lock("test", ("train", "minilm", "dev")),
    Lock("release", source="requirements/release.in"),
)


def written(lock: Lock, *, upgrade: bool, constraints: Sequence[str] = ()) -> str:
    """Returns the text of a lock, with the pins that it has where they still fit.

    Raises:
        subprocess.CalledProcessError: the resolver found nothing that fits; it has said why.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lock"
        if lock.path.is_file():
            file.write_text(lock.path.read_text(encoding="utf-8"), encoding="utf-8")
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes"]
        command += ["--python-version", LEAST_PYTHON, "--no-header", "--no-annotate", "--no-emit-index-url"]
        command += [f"--extra={name}" for name in lock.extras] + [f"--constraint={path}" for path in constraints]
        command += ["--upgrade"] * upgrade + ["--output-file", str(file), lock.source]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return headed(lock, file.read_text(encoding="utf-8"))


def headed(lock: Lock, text: str) -> str:
    """Returns a lock with what it is for, without what is installed by hand."""
    extras = f"[{','.join(lock.extras)}]" if lock.extras else ""
    asked = f"dptrain{extras}" if lock.source == "pyproject.toml" else lock.source
    head = f"# {asked} without torch, for every platform; written by `make lock`.\n"
    items = re.split(r"^(?=\S)", text, flags=re.M)
    return head + "".join(item for item in items if item.strip() and not item.startswith("#") and not BY_HAND.match(item))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m publish.lock", description=__doc__.splitlines()[0])
    parser.add_argument("--upgrade", action="store_true", help="take the newest of everything")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a lock does not fit")
    parser.add_argument("--constraint", action="append", default=[], metavar="FILE", help="versions that must be kept to")
    chosen = parser.parse_args()
    stale = []
    for lock in LOCKS:
        text = written(lock, upgrade=chosen.upgrade, constraints=chosen.constraint)
        if lock.path.is_file() and lock.path.read_text(encoding="utf-8") == text:
            continue
        stale.append(lock.path.name)
        if not chosen.check:
            lock.path.write_text(text, encoding="utf-8")
    did = "no longer fits pyproject.toml; run make lock" if chosen.check else "written"
    print("\n".join(f"requirements/{name}: {did}" for name in stale) or "every lock is as it was")
    return int(bool(stale) and chosen.check)


if __name__ == "__main__":
    sys.exit(main())
