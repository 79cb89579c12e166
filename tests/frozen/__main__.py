"""Writes golden answers anew, after a change that was meant.

    python -m tests.frozen --update              every golden file
    python -m tests.frozen --update ledger plan  some of them

Prints each difference that it writes. Without `--update` nothing is written, and a difference is exit code 1.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.frozen import golden
from tests.frozen.scenario import run_scenario
from tests.frozen.scenarios import SCENARIOS
from tests.frozen.tree import exits, tree

TABLES = {golden.COMMANDS: tree, golden.EXITS: exits}
GROUPS = [*TABLES, *SCENARIOS]


def main(argv: Sequence[str] | None = None) -> int:
    """Compares golden files with what the commands say now, and writes those that differ where that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.frozen", description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", help=f"which: {', '.join(GROUPS)}; default: all")
    parser.add_argument("--update", action="store_true", help="write what differs")
    arguments = parser.parse_args(argv)
    wanted = arguments.groups or GROUPS
    unknown = sorted(set(wanted) - set(GROUPS))
    if unknown:
        parser.error(f"there is no group {', '.join(unknown)}")
    return int(any([_one(name, update=arguments.update) for name in wanted]))


def _one(name: str, *, update: bool) -> bool:
    """Compares one golden file, and writes it if asked; says whether it differs still."""
    found = _found(name)
    if found is None:
        return False
    lines = list(golden.differences(golden.read(name), found))
    for line in lines:
        print(f"{name}: {line}")
    if lines and update:
        golden.write(name, found)
    return bool(lines) and not update


def _found(name: str) -> dict[str, Any] | None:
    """Returns what the commands of a group say now; nothing where this machine lacks what they need."""
    if name in TABLES:
        return TABLES[name]()
    scenario = SCENARIOS[name]
    missing = scenario.missing()
    if missing is not None:
        print(f"{name}: left as it is, {missing}")
        return None
    with tempfile.TemporaryDirectory(prefix="frozen-") as directory:
        return run_scenario(scenario, Path(directory).resolve())


if __name__ == "__main__":
    raise SystemExit(main())
