"""Runs the blocks of one page, and says where its folder is: `python -m tests.docs docs/policy.md`."""

import sys
import tempfile
from pathlib import Path

from tests.docs.blocks import ROOT
from tests.docs.running import Failed, Page

folder = Path(tempfile.mkdtemp(prefix="page-"))
page = Page(sys.argv[1], folder / "page")
try:
    page.run((ROOT / sys.argv[1]).read_text(encoding="utf-8"))
except Failed as error:
    print(error, f"\nin {page.work}", sep="\n", file=sys.stderr)
    sys.exit(1)
print(f"{page.ran} blocks run, {len(page.left)} not, in {page.work}")
