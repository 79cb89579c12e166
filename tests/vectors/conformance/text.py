"""How vectors are written: JSON with a row a line, so that a change of one is a change of a line."""

import json
from typing import Any


def text_of(vectors: dict[str, Any]) -> str:
    """Returns the text of a file of vectors: each of its lists with a row a line."""
    parts = []
    for name, value in vectors.items():
        rows = value if type(value) is list else [value]
        lines = ",\n".join(_line(row) for row in rows)
        parts.append(f'"{name}": [\n{lines}\n]' if type(value) is list else f'"{name}": {_line(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _line(row: Any) -> str:
    return json.dumps(row, ensure_ascii=True, separators=(", ", ": "))
