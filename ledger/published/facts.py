"""Defines what the documents of a release say, and what a manifest records of them so that they can be written again."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal, localcontext
from fractions import Fraction
from typing import ClassVar, Final, NamedTuple

from attest.fixed_point import MICRO
from attest.schema import check_fields, declared
from attest.schema.cards import card_of
from attest.schema.plain import visible
from attest.schema.quick import Array, OneOf, Row, Spelled, Text
from ledger.audit.findings import QUALIFIERS, VERDICTS, Verdict
from ledger.errors import ReleaseRefused
from ledger.leaves import Header
from ledger.leaves.kinds import WORDS, Checked, words
from ledger.replay.influence import Artifact, ClassFigures
from ledger.views.attacker import CASES, FALSE_ALARMS

FORM: Final = "1"
"""Number of the wording. Whoever changes one byte of what is written raises it: an older release is written as it was."""

PATHS: Final = ("DISCLOSURE.md", "MODEL_CARD.md", "README.md", "bom.cdx.json", "disclosure.json")
"""Paths of documents, in order."""

MAX_DESCRIPTION: Final = 4000
MAX_LISTED: Final = 100


PATTERNS: Final = {
    "license": "[a-z0-9][a-z0-9.+-]{0,63}",
    "language": "[a-z]{2,3}",
    "base-model": "[A-Za-z0-9][A-Za-z0-9._/-]{0,191}",
    "tag": "[A-Za-z0-9][A-Za-z0-9._:/ +-]{0,99}",
}
"""Texts of the front matter of a card, each by its name in CDDL; none is long, and none has a quote or a line feed."""

AUDITED: Final = ("FULL", "SUMMARISED", "TOLD")
"""Verdicts with which documents are written."""

ALWAYS: Final = frozenset(("UNCOMPARED", "UNPINNED"))
"""Qualifiers of an audit by whoever has pinned the ledger's key, and neither owner nor size."""

_DOCUMENT: Final = OneOf(PATHS, "MANIFEST", "document")


_LICENSE: Final = Spelled(PATTERNS["license"], "a license as the Hub spells it", "license", "ABOUT")
_LANGUAGE: Final = Spelled(PATTERNS["language"], "a code of ISO 639", "language", "ABOUT")
_BASE_MODEL: Final = Spelled(PATTERNS["base-model"], "the name of a model of the Hub", "base-model", "ABOUT")
_TAG: Final = Spelled(PATTERNS["tag"], "a tag", "tag", "ABOUT")
_MOST: Final = f"at most {MAX_LISTED}"


@dataclass(frozen=True, slots=True)
class About(Checked):
    """Holds what the releaser types about a model; no audit says anything of it."""

    CDDL: ClassVar = "about"
    name: str = declared(1, words(96), "Name of the model.")
    description: str | None = declared(
        2,
        Text("tstr", MAX_DESCRIPTION, "ABOUT"),
        "What the model is, in the releaser's words.",
        default=None,
        nil=True,
        rule=f"visible characters and line feeds, at most {MAX_DESCRIPTION}",
    )
    license: str | None = declared(3, _LICENSE, "Its license.", default=None, nil=True)
    language: tuple[str, ...] = declared(4, Array(_LANGUAGE, code="ABOUT"), "Its languages.", default=(), rule=_MOST)
    base_model: tuple[str, ...] = declared(
        5, Array(_BASE_MODEL, code="ABOUT"), "Models that it was trained from.", default=(), rule=_MOST
    )
    tags: tuple[str, ...] = declared(6, Array(_TAG, code="ABOUT"), "Tags.", default=(), rule=_MOST)

    def __post_init__(self) -> None:
        check_fields(self, ReleaseRefused)
        for name in ("language", "base_model", "tags"):
            if len(getattr(self, name)) > MAX_LISTED:
                raise ReleaseRefused("ABOUT", f"{name} has {len(getattr(self, name))} entries, at most {MAX_LISTED} are kept")
        if self.description is not None and visible(self.description, lines=True) != self.description:
            raise ReleaseRefused("ABOUT", "the description has characters that nobody sees; type it again without them")


@dataclass(frozen=True, slots=True)
class Publication(Checked):
    """Says which documents stand beside the weights, and what they say that neither ledger nor manifest does."""

    CDDL: ClassVar = "publication"
    form: str = declared(1, OneOf((FORM,), "SCHEMA"), "Number of the wording.")
    version: str = declared(2, WORDS, "Version of dptrain that wrote them.")
    documents: tuple[str, ...] = declared(
        3, Array(_DOCUMENT, 1, ascending=True, code="MANIFEST"), "Their paths.", rule="ascending, each once"
    )
    verdict: Verdict = declared(
        4,
        OneOf(AUDITED, "MANIFEST", "audit-verdict"),
        "What an audit of the cited leaves said to who has the ledger's key alone.",
    )
    qualifiers: tuple[str, ...] = declared(
        5,
        Array(OneOf(tuple(QUALIFIERS), "MANIFEST", "qualifier"), ascending=True, code="MANIFEST"),
        "What weakens it, with what weakens this release ([auditors](../auditors.md#what-an-audit-says)).",
        rule="ascending, each once; UNCOMPARED and UNPINNED among them",
    )
    about: About = declared(6, Row(About, "MANIFEST"), "What the releaser types.")

    def __post_init__(self) -> None:
        check_fields(self, ReleaseRefused)
        if missing := sorted(ALWAYS - set(self.qualifiers)):
            told = f"the recorded audit leaves out {', '.join(missing)}, which every audit by the ledger's key alone says"
            raise ReleaseRefused("MANIFEST", f"{told}; believe no document of this release")


class Listed(NamedTuple):
    """A file as the ML-BOM lists it."""

    path: str
    sha256: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Holds all that documents may say. Fields are those of the manifest, but for

    Attributes:
        header: leaf 0 of the ledger.
        publication: what is recorded for the documents alone.
        weights: what the files have to do with the weights of the run, in one word.
        signed: whether `model.sig` lies beside the weights.
    """

    header: Header
    publication: Publication
    origin: str
    log_vkey: str
    time: int
    step: int
    size: int
    root: bytes
    header_digest: bytes
    delta: str
    horizon: bool
    withdrawn: int
    classes: tuple[ClassFigures, ...]
    artifacts: tuple[Artifact, ...]
    statements: tuple[str, ...]
    weights: str
    signed: bool

    _repr_html_ = card_of

    def spent(self, artifact: Artifact) -> Iterator[tuple[ClassFigures, bool]]:
        """Yields the classes, each with whether its influence may be in an artifact."""
        return zip(self.classes, artifact.influenced_by, strict=True)

    @property
    def verdict(self) -> str:
        """Returns what the verdict says, in full."""
        return VERDICTS[self.publication.verdict].sentence


def recognised(epsilon_micro: int, delta: str) -> int:
    """Returns in how many of `CASES` cases the best attacker recognises a contribution, as `ledger.views.attacker.hits` does.

    It is computed in decimals of fixed precision, so that every machine writes one document.
    """
    fraction, alarms = Fraction(delta), Decimal(str(FALSE_ALARMS))
    with localcontext(Context(prec=40)):
        epsilon, part = Decimal(epsilon_micro) / MICRO, Decimal(fraction.numerator) / fraction.denominator
        first = alarms * epsilon.exp() + part if epsilon < 100 else Decimal(1)
        second = 1 - (-epsilon).exp() * (1 - part - alarms)
        return int((CASES * min(Decimal(1), first, second)).to_integral_value(ROUND_CEILING))


def decimal(micro: int) -> str:
    """Returns a number of millionths, exactly: `1.5`, `0.000001`, `3`."""
    whole, part = divmod(micro, MICRO)
    return f"{whole}.{part:06d}".rstrip("0").rstrip(".") if part else str(whole)
