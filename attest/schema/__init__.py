"""Signed documents that are declared once: fields with label, kind, range, unit and sentence, and all forms that follow.

A document is a frozen dataclass whose fields are `declared`. From the declaration follow its check, its strict CBOR, its TOML
and its JSON, and the tables and the CDDL in the documentation. A new field is one declaration, and the rule that uses it.

* `declare`: what is said of a field. `kinds`: single values. `groups`: values made of values. `quick`: both, of leaves.
* `wire`: CBOR, and what all documents share that are signed by themselves. `text`: TOML and JSON.
* `plain`: checks of integers, bytes, identifiers and times, commitments to values, and all of them as people see them.
"""

from attest.schema.declare import Checked, Declared, check_by_word, check_fields, declarations, declared, derived

__all__ = ["Checked", "Declared", "check_by_word", "check_fields", "declarations", "declared", "derived"]


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
