"""Writes what the documentation says of a policy from its declaration: ``python -m attest.policy.pages docs``.

A test compares the pages with what is written here, so that neither says what the other does not.
"""

import sys
from typing import Final

from attest.documents import declarations
from attest.documents.groups import Many, Named
from attest.documents.pages import (
    Pages,
    bytes_table,
    cddl_map,
    cddl_named,
    cddl_row,
    settings_table,
    table,
    with_section,
    with_tables,
    write_pages,
)
from attest.policy.classes import ClassRule
from attest.policy.depth import DepthRule
from attest.policy.noise import NoisePhase
from attest.policy.rules import Policy
from attest.policy.unbuilt import ANY, UNBUILT
from attest.policy.uses import DecodingRule, ReadRule

_PLACES: Final = {
    "Top level": "",
    "`[noise]`": "noise",
    "`[sampling]`": "sampling",
    "`[floors]`": "floors",
    "`[gate]`": "gate",
    "`[ledger]`": "ledger",
    "`[isolation]`": "isolation",
}
"""Headings of policy.md by the table of policy.toml that they explain."""

_CLASSES: Final = "`[[class]]`, one per admissibility class"
_UNBUILT: Final = "Specified, not built yet"


def policy_page(page: str) -> str:
    """Returns policy.md with its tables as the declaration has them."""
    for heading, place in _PLACES.items():
        page = with_tables(page, heading, [settings_table(Policy, place)])
    page = with_tables(page, _CLASSES, [settings_table(ClassRule)])
    refused = table(("setting", "word", "what it will be", "parameters"), _unbuilt_rows())
    return with_tables(page, _UNBUILT, [refused, settings_table(ReadRule), settings_table(DecodingRule)])


def formats_page(page: str) -> str:
    """Returns formats.md with the tables of the policy's bytes as the declaration has them."""
    return with_tables(page, "Policy", [bytes_table(Policy), bytes_table(ClassRule)])


def cddl_page(page: str) -> str:
    """Returns attestation.cddl with the part on the policy as the declaration has it."""
    return with_section(page, "policy", cddl())


def cddl() -> str:
    """Returns the rules of a policy in CDDL."""
    budgets = "noise-budgets = [embeddings: weight, layers: weight, head: weight]\n"
    named = [item.kind for item in declarations(Policy)]
    words = [kind for kind in (k.kind if isinstance(k, Many) else k for k in named) if isinstance(kind, Named)]
    return "\n".join(
        [
            f"; Written from the declaration (python -m attest.policy.pages docs).\n{cddl_map(Policy)}",
            "; From this step on, up to the next phase, the noise is that of the presets times a scale in units of 1e-6.\n"
            + cddl_row(NoisePhase),
            "; In units of 1e-6; without them one clip norm binds over all blocks of a class.\n" + budgets,
            *(f"; A word, its parameters, and what else belongs to it.\n{cddl_named(kind)}" for kind in words),
            cddl_map(ClassRule),
            "; Exactly one of the labels 1 to 4.\n" + cddl_map(DepthRule),
            cddl_map(ReadRule),
            cddl_map(DecodingRule),
        ]
    )


PAGES: Final[Pages] = {
    "policy.md": policy_page,
    "formats.md": formats_page,
    "attestation.cddl": cddl_page,
}


def _unbuilt_rows() -> list[tuple[str, str, str, str]]:
    """Returns the words that are refused by name, with their parameters and what they will mean."""
    taken: dict[tuple[str, str], type | None] = {}
    for item in declarations(Policy):
        kind = item.kind.kind if isinstance(item.kind, Many) else item.kind
        if isinstance(kind, Named):
            key = item.key if isinstance(item.kind, Many) else f"{item.key}.{kind.word}"
            taken |= {(key, word): cls for word, cls in kind.cls.PARAMETERS.items()}
    rows = []
    for key, words in UNBUILT.items():
        for word, told in words.items():
            cls = taken.get((key, word))
            fields = "" if cls is None else " ".join(f"`{item.key}`: {item.sentence}" for item in declarations(cls))
            rows.append((f"`{key}`", "whatever it says" if word == ANY else f"`{word}`", told, fields))
    return rows


if __name__ == "__main__":
    write_pages(PAGES, sys.argv[1])
