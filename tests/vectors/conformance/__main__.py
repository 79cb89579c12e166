"""Writes the vectors beside this file: `python -m tests.vectors.conformance`, again to the same bytes.

Everything is derived from fixed keys, times, salts and run ids. With names of files as arguments only these are written.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.vectors.conformance import budgets, documents, exports, figures, leaves, proofs, serving
from tests.vectors.conformance.text import text_of

FILES: Final[dict[str, Callable[[], Any]]] = {
    "budgets": budgets.vectors,
    "documents": documents.vectors,
    "exports": exports.vectors,
    "leaves": leaves.vectors,
    "numbers": figures.vectors,
    "proofs": proofs.vectors,
    "serving": serving.vectors,
}


def main(names: list[str]) -> None:
    """Writes the files of these names, all without any."""
    for name in names or FILES:
        (Path(__file__).parent / f"{name}.json").write_text(text_of(FILES[name]()))


if __name__ == "__main__":
    main(sys.argv[1:])
