"""Counts entities of texts: those of court cases by rules for TAB's types, those of medical texts by a tagger of the hub.

The rules know English court language and nothing else. How well they find what annotators of TAB marked is measured by
`against_gold`; counts of written and of held-out texts are made by the same rules, and only their differences are told.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

MEDNER: Final = "blaze999/Medical-NER"
"""Name on the hub of the tagger that the InvisibleInk page counts with; it is neither installed nor fetched here."""

COUNTED: Final = (
    "THERAPEUTIC_PROCEDURE", "DIAGNOSTIC_PROCEDURE", "DETAILED_DESCRIPTION", "DISEASE_DISORDER", "SIGN_SYMPTOM", "SEVERITY",
    "DISTANCE", "DOSAGE", "LAB_VALUE", "MEDICATION", "COREFERENCE", "ADMINISTRATION", "BIOLOGICAL_STRUCTURE",
)  # fmt: skip
"""The 13 classes of its table 7 that are counted."""

_MONTH: Final = "January|February|March|April|May|June|July|August|September|October|November|December"
_NAME: Final = r"[A-ZÇĞİÖŞÜÉ][\w'’çğıöşüé-]+"
_STATE: Final = (
    "Turkey|Türkiye|Poland|United Kingdom|Austria|Germany|Sweden|France|Switzerland|Spain|Denmark|Norway|Ireland|Belgium|"
    "San Marino|Liechtenstein"
)
RULES: Final = {
    "CODE": r"\bnos?\. ?\d+/\d+(?:(?:,| and) \d+/\d+)*|\b\d{3,6}/\d{2}\b",
    "DATETIME": rf"\b(?:\d{{1,2}} )?(?:{_MONTH})(?: \d{{4}})?\b|\b\d{{1,2}}/\d{{1,2}}/\d{{4}}\b|\bin (?:19|20)\d\d\b",
    "PERSON": rf"\b(?:Mr|Mrs|Ms|Miss|Dr|Judge)\.? (?:[A-Z]\.[- ]?)*{_NAME}(?: {_NAME})*|CASE OF .+? v\.",
    "DEM": (
        r"\b(?:Turkish|Polish|British|Austrian|German|Swedish|French|Swiss|Spanish|Danish|Norwegian|Irish|Belgian)"
        r"(?= (?:national|citizen))|\b(?:lawyer|solicitor|barrister|advocate)s?\b"
    ),
    "LOC": rf"(?i:\b(?:{_STATE})\b)|\b(?:practising|living|residing|lives|born) in {_NAME}|\bSTRASBOURG\b",
    "ORG": (
        rf"\b(?:{_NAME} ){{1,4}}(?:Court|Office|Ministry|Police|Prison|Hospital|Tribunal|Commission|Authority)\b"
        r"|\bMinistry of (?:[A-Z]\w+ ?)+|\bthe [A-Z]\w+ Government\b|\b(?:FIRST|SECOND|THIRD|FOURTH|FIFTH) SECTION\b"
    ),
    "QUANTITY": (
        r"(?:\b(?:EUR|TRL|PLN|GBP|ATS|DEM|SEK)|[€£$]) ?\d[\d,.]*|\b\d[\d,.]* (?:euros?|per cent|years?|months?|days?)\b"
    ),
}  # fmt: skip
"""Patterns by type of TAB; its MISC has none."""

_FOUND: Final = {kind: re.compile(pattern) for kind, pattern in RULES.items()}


def spans(text: str) -> list[tuple[int, int, str]]:
    """Returns begin, end and type of what the rules find."""
    return [(found.start(), found.end(), kind) for kind, rule in _FOUND.items() for found in rule.finditer(text)]


def counts(texts: Sequence[str]) -> dict[str, float]:
    """Returns how many entities of each type a text has, on average."""
    total = Counter(kind for text in texts for _, _, kind in spans(text))
    return {kind: total[kind] / max(1, len(texts)) for kind in RULES}


def against_gold(path: Path) -> dict[str, dict[str, float]]:
    """Returns by type how many spans of TAB's annotators overlap one of ours of the type, and the other way round.

    Args:
        path: rows with ``text`` and ``mask``, a list of begin, end and type.
    """
    hit, gold, right, ours = (Counter[str]() for _ in range(4))
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        mine, theirs = spans(row["text"]), [(begin, end, kind) for begin, end, kind in row["mask"]]
        for one, others, meets, every in ((theirs, mine, hit, gold), (mine, theirs, right, ours)):
            for begin, end, kind in one:
                every[kind] += 1
                meets[kind] += any(b < end and begin < e and k == kind for b, e, k in others)
    return {kind: {"found": hit[kind] / max(1, gold[kind]), "right": right[kind] / max(1, ours[kind])} for kind in RULES}


def medical(texts: Sequence[str], tagger: Any = None) -> dict[str, float]:
    """Returns how many entities of the 13 counted classes a text has, on average.

    Args:
        tagger: maps a text to entities with ``entity_group``; None loads `MEDNER` from the hub, which needs a network.
    """
    if tagger is None:
        from transformers import pipeline

        tagger = pipeline("token-classification", model=MEDNER, aggregation_strategy="simple")
    total = Counter(found["entity_group"] for text in texts for found in tagger(text))
    return {kind: total[kind] / max(1, len(texts)) for kind in COUNTED}
