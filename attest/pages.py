"""Writes what the documentation says of a descriptor from its declaration: ``python -m attest.pages docs``.

The pages on the policy are written by `attest.policy.pages`, those on the documents of a ledger by `ledger.pages`.
"""

import re
import sys
from typing import Final

from attest.descriptor import SignedDescriptor
from attest.documents.pages import Pages, cddl_map, fields_table, with_tables, write_pages


def formats_page(page: str) -> str:
    """Returns formats.md with the table of a descriptor as the declaration has it."""
    return with_tables(page, "Attestation", [fields_table("of the", {"descriptor": SignedDescriptor})])


def cddl_page(page: str) -> str:
    """Returns attestation.cddl with the rule of a descriptor as the declaration has it."""
    return re.sub(
        r"^descriptor = \{\n.*?^\}\n", lambda _: cddl_map(SignedDescriptor), page, count=1, flags=re.MULTILINE | re.DOTALL
    )


PAGES: Final[Pages] = {"formats.md": formats_page, "attestation.cddl": cddl_page}


if __name__ == "__main__":
    write_pages(PAGES, sys.argv[1])
