"""Counts the state of the house: circles, arrows, sizes, surface and prose; ``make house``.

python -m tests.house                        a table, of the whole product and of each package
python -m tests.house --against v0.1         beside the state of a revision, with ratios
python -m tests.house --root ../other        another source tree in place of this one
python -m tests.house --list upward circles  which they are; without names: all that can be listed
"""

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.house.layers import ROOT
from tests.house.measures import MEASURES, Found, measured

State = Mapping[str, Mapping[str, Found]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.house", description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="source tree to count (default: this one)")
    parser.add_argument("--against", metavar="REVISION", help="revision of the tree's repository to stand beside it")
    parser.add_argument("--json", action="store_true", help="numbers and what they count, as JSON")
    parser.add_argument("--list", nargs="*", metavar="KEY", help="name what these numbers count (keys of --json)")
    asked = parser.parse_args()
    states: dict[str, State] = {}
    try:
        if asked.against:
            with revision(asked.root, asked.against) as old:
                states[asked.against] = measured(old)
        states["here"] = measured(asked.root)
    except (FileNotFoundError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if asked.json:
        print(json.dumps({name: _as_json(state) for name, state in states.items()}, indent=1))
        return 0
    print("\n".join(table(states)))
    if asked.list is not None:
        print("\n".join(listing(states["here"], asked.list)))
    return 0


@contextmanager
def revision(root: Path, name: str) -> Iterator[Path]:
    """A folder with the tree of a revision, for as long as the context is open.

    Raises:
        ValueError: if the repository of `root` has no such revision.
    """
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["git", "-C", str(root), "archive", "--format=tar", name], capture_output=True)
        if done.returncode:
            raise ValueError(f"git has no tree of {name}: {done.stderr.decode().strip()}; name a revision of {root}")
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as files:
            files.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # from 3.11.4 on
        yield Path(folder)


def table(states: Mapping[str, State]) -> list[str]:
    """Lines of the table: a column for each part of the product and state, and a ratio where there are two states."""
    parts = list(states["here"])
    columns = [*states, *(["ratio"] if len(states) > 1 else [])]
    wide = max(7, *map(len, columns)) + 1
    lines = [" " * 41 + "".join(f"{part:^{wide * len(columns)}}" for part in parts)]
    if len(columns) > 1:
        lines.append(" " * 41 + "".join(f"{column:>{wide}}" for _ in parts for column in columns))
    for measure in MEASURES:
        cells = []
        for part in parts:
            values = [state[part][measure.key].value for state in states.values()]
            cells += map(_number, values)
            if len(values) > 1:
                before, now = values
                cells.append(f"{now / before:.2f}" if before and now is not None else "")
        lines.append(f"{measure.label:<34}{measure.aim:<7}" + "".join(f"{cell:>{wide}}" for cell in cells))
    return lines


def listing(state: State, keys: list[str]) -> Iterator[str]:
    for measure in MEASURES:
        names = state["product"][measure.key].names
        if names and (not keys or measure.key in keys):
            yield f"\n{measure.key}: {measure.label.strip()}"
            yield from (f"  {name}" for name in names)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value}"


def _as_json(state: State) -> dict[str, dict[str, dict[str, object]]]:
    return {
        part: {key: {"value": found.value, **({"names": found.names} if found.names else {})} for key, found in numbers.items()}
        for part, numbers in state.items()
    }


if __name__ == "__main__":
    sys.exit(main())
