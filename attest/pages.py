"""Writes what the documentation says of what contributors sign from its declaration: ``python -m attest.pages docs``.

The pages on the policy are written by `attest.policy.pages`, those on the documents of a ledger by `ledger.pages`.
"""

import sys
from typing import Final

from attest.anchor import ContentAnchor
from attest.descriptor import MAX_COUNT, Opening, SignedDescriptor
from attest.documents import declarations
from attest.documents.pages import (
    Pages,
    cddl_map,
    cddl_row,
    fields_table,
    said_of,
    table,
    with_rule,
    with_section,
    with_tables,
    write_pages,
)
from attest.registry.actions import ACTION, ACTIONS
from attest.registry.entries import Entry
from attest.registry.statements import KeyStatement
from attest.withdrawal import Withdrawal


def formats_page(page: str) -> str:
    """Returns formats.md with the tables that are declared."""
    attestation = [fields_table("of the", {"descriptor": SignedDescriptor}), fields_table("of the", {"opening": Opening})]
    page = with_tables(page, "Attestation", attestation)
    page = with_tables(page, "Content anchor", [fields_table("of the", {"anchor": ContentAnchor})])
    page = with_tables(page, "Withdrawal", [fields_table("of the", {"withdrawal": Withdrawal})])
    return with_tables(page, "Registry", registry_tables())


def registry_tables() -> list[str]:
    """Returns the tables of a registry in their order: the entry, what actions do, their fields, and the key statement."""
    acts = {f"{act.CODE} {act.CDDL}": act for act in ACTIONS}
    does = [(str(act.CODE), act.CDDL, said_of(act)) for act in ACTIONS]
    return [
        fields_table("of the", {"entry": Entry}),
        table(("code", "action", "what it does"), does),
        fields_table("action", acts, key="place", least=1),
        fields_table("of the", {"key statement": KeyStatement}),
    ]


def registry_cddl() -> str:
    """Returns the rules of a registry in CDDL."""
    nil = dict.fromkeys(item.kind.cddl for act in ACTIONS for item in declarations(act) if item.nil)
    names = [act.CDDL for act in ACTIONS]
    return "\n".join(
        [
            f"; Written from the declaration (python -m attest.pages docs).\n{cddl_map(Entry)}",
            f"{ACTION.cddl} = {' / '.join(names)}\n",
            *(f"; {said_of(act)}\n{cddl_row(act)}" for act in ACTIONS),
            f"cap = 0..{MAX_COUNT}\n" + "".join(f"{name}-or-nil = {name} / nil\n" for name in nil),
            cddl_map(KeyStatement),
            "; registry.names, the owner's file beside registry.cbor and in no export, is a CBOR sequence of these, by name.\n"
            "registry-name = [name: id, salt: bstr .size 16, principal: id / nil]\n",
        ]
    )


def cddl_page(page: str) -> str:
    """Returns attestation.cddl with the rules that are declared."""
    for cls in (SignedDescriptor, Opening, ContentAnchor, Withdrawal):
        page = with_rule(page, cls.CDDL, cddl_map(cls))
    return with_section(page, "registry", registry_cddl())


PAGES: Final[Pages] = {"formats.md": formats_page, "attestation.cddl": cddl_page}


if __name__ == "__main__":
    write_pages(PAGES, sys.argv[1])
