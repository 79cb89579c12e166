"""Writes the tables of docs/mechanism, or runs the tests that hold the guarantees and looks whether each reaches its code.

    python -m tests.claims             writes the pages
    python -m tests.claims --run       runs the tests named in held.toml, and names guarantees whose code none of them entered
"""

import argparse
import sys

from tests.claims import page
from tests.claims.reached import unreached


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.claims", description=__doc__.partition("\n")[0])
    parser.add_argument("--run", action="store_true", help="run the tests and look whether each reaches its code")
    parser.add_argument("--only", default="", help="guarantees whose name contains this")
    asked = parser.parse_args()
    if asked.run:
        left = unreached(asked.only)
        for name in left:
            print(f"{name}: no test named for it entered its code")
        return 1 if left else 0
    try:
        written = page.written()
    except LookupError as error:
        print(error, file=sys.stderr)
        return 1
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
