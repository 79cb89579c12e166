"""A reader for the published vectors beside it."""

import json
from pathlib import Path
from typing import Any


def vectors(name: str) -> Any:
    """A vector file by name, without its suffix."""
    return json.loads((Path(__file__).parent / f"{name}.json").read_text())
