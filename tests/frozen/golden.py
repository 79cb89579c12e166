"""Reads and writes golden files, and compares answers with them."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PLACE = Path(__file__).parent

COMMANDS, EXITS = "commands", "exits"
"""The golden files with the tree of commands, and with the exit codes that verdicts and alarms have."""

_WIDTH = 128
"""Columns of a golden file."""

_RELATIVE, _NOTHING = 1e-8, 1e-15
"""By how much numbers with a fraction may differ: how a processor rounds the last bits of a transform is no promise, and with
it the search for an epsilon ends some 5e-11 elsewhere."""


def path_of(name: str) -> Path:
    """Returns the golden file of a group."""
    return PLACE / f"{name}.json"


def read(name: str) -> Any:
    """Returns what a golden file holds; nothing where it is missing."""
    path = path_of(name)
    return json.loads(path.read_text()) if path.exists() else {}


def write(name: str, found: Mapping[str, Any]) -> None:
    """Writes a golden file anew, with keys in the order that it has, so that only what changed differs."""
    path_of(name).write_text(_rendered(_ordered(read(name), found)) + "\n")


def _ordered(kept: Any, found: Any) -> Any:
    """Returns what was found, with known keys first and in their order."""
    if isinstance(kept, dict) and isinstance(found, dict):
        return {key: _ordered(kept.get(key), found[key]) for key in [key for key in kept | found if key in found]}
    if isinstance(kept, list) and isinstance(found, list):
        return [_ordered(kept[i] if i < len(kept) else None, item) for i, item in enumerate(found)]
    return found


def differences(kept: Any, found: Any, where: str = "") -> Iterator[str]:
    """Yields a line for each difference: keys that are gone or new, other types, other values, other lengths of lists.

    The order of keys counts for nothing, that of lists does.
    """
    if isinstance(kept, dict) and isinstance(found, dict):
        for key in kept | found:
            place = f"{where} / {key}" if where else key
            if key not in found:
                yield f"{place}: gone; it was {_short(kept[key])}"
            elif key not in kept:
                yield f"{place}: new; it is {_short(found[key])}"
            else:
                yield from differences(kept[key], found[key], place)
    elif isinstance(kept, list) and isinstance(found, list):
        if len(kept) != len(found):
            yield f"{where}: {len(kept)} items became {len(found)}"
        for index, (one, other) in enumerate(zip(kept, found, strict=False)):
            yield from differences(one, other, f"{where} [{index}]")
    elif type(kept) is not type(found) or not _equal(kept, found):
        yield f"{where}: {_short(kept)} became {_short(found)}"


def _equal(kept: Any, found: Any) -> bool:
    return math.isclose(kept, found, rel_tol=_RELATIVE, abs_tol=_NOTHING) if isinstance(kept, float) else kept == found


def _rendered(value: Any, indent: int = 0, column: int = 0) -> str:
    """Returns JSON with what fits into a line on one line, and everything else an item a line."""
    line = json.dumps(value, ensure_ascii=False)
    if column + len(line) < _WIDTH or not isinstance(value, dict | list) or not value:
        return line
    margin = " " * (indent + 1)
    if isinstance(value, dict):
        rows = [(f"{margin}{json.dumps(key, ensure_ascii=False)}: ", item) for key, item in value.items()]
    else:
        rows = [(margin, item) for item in value]
    text = ",\n".join(head + _rendered(item, indent + 1, len(head)) for head, item in rows)
    opened, closed = "{}" if isinstance(value, dict) else "[]"
    return f"{opened}\n{text}\n{' ' * indent}{closed}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:97]}..."
