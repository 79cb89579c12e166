"""Writes the pages of the docs that say what is declared or computed, or pages of the same names in another folder.

python -m tests.pages            docs/, as ``make pages`` does
python -m tests.pages OTHER

Tests compare docs/ with what is written here, so that neither pages nor declarations say what the other does not.
"""

import sys
from pathlib import Path

from tests.pages import attacks, documents, guides, interfaces, leaves, lies, rooms, scaling, words

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
for pages in (module.PAGES for module in (attacks, documents, guides, interfaces, leaves, lies, rooms, scaling, words)):
    for name, write in pages.items():
        page = folder / name
        page.write_text(write(page.read_text(encoding="utf-8")), encoding="utf-8")
