"""Says a release in the words and formats of others: model card, answers to NIST SP 800-226, ML-BOM, and sigstore bundles.

Everything is written from `Facts`: what a signed manifest, the header of its ledger and an audit say. So whoever checks a
release writes it again and compares the bytes.
"""

from collections.abc import Callable, Sequence
from typing import Final

from ledger.published.bom import bom
from ledger.published.card import MARK, card
from ledger.published.disclosure import disclosure_json, disclosure_page
from ledger.published.facts import About, Facts, Listed, Publication

CARD: Final = "README.md"
OTHER_CARD: Final = "MODEL_CARD.md"
"""Name of the card in a directory that has a README.md of its own."""

PAGE: Final = "DISCLOSURE.md"
ANSWERS: Final = "disclosure.json"
BOM: Final = "bom.cdx.json"

WRITERS: Final[dict[str, Callable[[Facts, Sequence[Listed]], str]]] = {
    CARD: lambda facts, files: card(facts),
    OTHER_CARD: lambda facts, files: card(facts),
    PAGE: lambda facts, files: disclosure_page(facts),
    ANSWERS: lambda facts, files: disclosure_json(facts),
    BOM: bom,
}
"""Documents by their path in a release, each with what writes it; the last one lists all other files."""


SAID: Final = (
    ("`README.md`, or `MODEL_CARD.md` beside one of the model's own", "model card of the Hugging Face Hub", "`bom.cdx.json`"),
    ("`DISCLOSURE.md`, `disclosure.json`", "answers to NIST SP 800-226; each says whose word it is", "`bom.cdx.json`"),
    ("`model.pub`", "field 19 in PEM", "`bom.cdx.json`"),
    ("`bom.cdx.json`", "CycloneDX 1.6 ML-BOM of all files but itself and `model.sig`", "`model.sig`"),
    ("`model.sig`", "bundle of OpenSSF model signing over all files but itself and git's", "`release.cose`"),
    ("`release.cose`", "the manifest, with all files above", "`release.sigstore.json`"),
    ("`release.sigstore.json`", "bundle of the manifest's statement (in-toto), about `release.cose` and all files", "nothing"),
)
"""Files that are written into a release, in this order: path, content, and the first file that has the digest."""


def written(path: str, facts: Facts, files: Sequence[Listed]) -> bytes:
    """Returns the bytes of a document. `files`: what the ML-BOM lists; others say nothing of files."""
    return WRITERS[path](facts, files).encode()


__all__ = [
    "ANSWERS", "BOM", "CARD", "MARK", "OTHER_CARD", "PAGE", "SAID", "WRITERS", "About", "Facts", "Listed", "Publication",
    "written",
]  # fmt: skip


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
