"""Writes what the documentation says of what contributors sign from its declaration: ``python -m attest.pages docs``.

The pages on the policy are written by `attest.policy.pages`, those on the documents of a ledger by `ledger.pages`.
"""

import sys
from typing import Final

from attest.anchor import ContentAnchor
from attest.descriptor import Opening, SignedDescriptor
from attest.documents.pages import Pages, cddl_map, fields_table, with_rule, with_tables, write_pages
from attest.withdrawal import Withdrawal


def formats_page(page: str) -> str:
    """Returns formats.md with the tables that are declared."""
    attestation = [fields_table("of the", {"descriptor": SignedDescriptor}), fields_table("of the", {"opening": Opening})]
    page = with_tables(page, "Attestation", attestation)
    page = with_tables(page, "Content anchor", [fields_table("of the", {"anchor": ContentAnchor})])
    return with_tables(page, "Withdrawal", [fields_table("of the", {"withdrawal": Withdrawal})])


def cddl_page(page: str) -> str:
    """Returns attestation.cddl with the rules that are declared."""
    for cls in (SignedDescriptor, Opening, ContentAnchor, Withdrawal):
        page = with_rule(page, cls.CDDL, cddl_map(cls))
    return page


PAGES: Final[Pages] = {"formats.md": formats_page, "attestation.cddl": cddl_page}


if __name__ == "__main__":
    write_pages(PAGES, sys.argv[1])
