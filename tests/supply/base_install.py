"""Names the distributions of the base install, and runs a process that finds nothing else."""

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
OURS = ("attest", "ledger", "dptrain")

# Run before anything else is imported: neither modules nor metadata of other distributions are found.
BLOCK = """
import re, sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in GONE else self.finder.find_spec(name, path, target)

    def find_distributions(self, *context):
        found = getattr(self.finder, "find_distributions", lambda *_: ())(*context)
        return (one for one in found if re.sub("[-_.]+", "-", one.name).lower() in KEPT)

sys.meta_path[:] = map(Without, sys.meta_path)
"""


def declared() -> list[Requirement]:
    """Returns what pyproject.toml asks for without extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [Requirement(line) for line in project["dependencies"]]


def closure() -> set[str]:
    """Returns the names of all distributions that these bring along."""
    found: set[str] = set()
    waiting = declared()
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        if name in found or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        waiting += [Requirement(line) for line in metadata.requires(name) or ()]
    return found


def modules(*, inside: bool) -> set[str]:
    """Returns the top-level modules that are installed here and in the base install too, or are not in that."""
    kept = closure()
    owners = metadata.packages_distributions()
    here = {top for top, names in owners.items() if any(canonicalize_name(name) in kept for name in names)} | set(OURS)
    return here if inside else set(owners) - here


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program that finds the base install alone."""
    text = f"GONE, KEPT = {modules(inside=False)!r}, {closure() | {'dptrain'}!r}\n{BLOCK}{program}"
    return subprocess.run([sys.executable, "-c", text, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=240)


def dptrain(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in the base install."""
    return run("from dptrain.cli import main\nsys.argv = ['dptrain', *sys.argv[1:]]\nmain()\n", *words)
