"""Writes the pages of errors: every code that the source can raise, with what is said beside it as cause and cure.

They are made when the site is built and not kept in the repository. Messages change with the code, and a page that was written
once would have to be written again with each of them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape

from publish.site.codes import CLOSE, OPEN, PACKAGES, Place, every
from publish.site.cures import CURES

OF: Mapping[str, str] = {
    "attest": "Keys, attestations, policies, registries and the gate",
    "ledger": "Accountants, ledgers, exports, audits and releases",
    "dptrain": "Planning, training and the command line",
}
"""Subjects of the pages of errors, by package."""

BY_ROOM: tuple[tuple[str, str], ...] = (
    ("attest/schema", "error of the document that is read"),
    ("attest/cbor", "CborError"),
    ("attest/gate", "refusal of the gate"),
    ("attest", "error of the document that is read"),
    ("ledger/audit", "finding of an audit"),
    ("ledger/release", "finding of a release check"),
    ("ledger/storage/checking", "StoreUnfit"),
    ("ledger/storage", "finding of fsck"),
    ("ledger/log/examining", "finding of fsck"),
    ("ledger/proofs/monitoring", "alarm of the monitor"),
    ("ledger/proofs", "refusal of a proof or a cosignature"),
    ("ledger", "refusal of a leaf"),
    ("dptrain/checks", "finding of dptrain check"),
    ("dptrain/cli/advice", "finding of policy check"),
    ("dptrain", "refusal of a run"),
)
"""Carriers of codes that no class names, by the beginning of the file."""

NAMED: Mapping[str, str] = {
    "ReasonCode": "reason of the gate", "Refusal": "refusal of the gate", "Consequence": "finding of policy check",
    "QUALIFIERS": "qualifier of a verdict", "VERDICTS": "verdict", "Finding": "finding", "Obstacle": "AdapterRefused",
    "Judgement": "what evidence shows", "Previous": "refusal of the gate", "Told": "finding of an audit",
}  # fmt: skip
"""Plain names of what carries a code."""


def carried_by(place: Place) -> str:
    """Returns what carries a code, in words."""
    if place.kind in NAMED:
        return NAMED[place.kind]
    if place.kind[:1].isupper() and not place.kind.isupper() and place.kind not in ("OneOf", "PreparedRun"):
        return place.kind
    return next(word for start, word in BY_ROOM if place.file.startswith(start))


def shown(sentence: str) -> str:
    """Returns a sentence as Markdown: placeholders in italics, everything else as it stands."""
    text = re.sub(r"([\\`*_\[\]#|~^])", r"\\\1", escape(sentence, quote=False))
    return text.replace(OPEN, "<em>").replace(CLOSE, "</em>").replace("\n", " ")


def said(place: Place) -> str:
    """Returns cause and cure of a place, and where it is. Raises KeyError: its carrier has no cure in `CURES`."""
    cure = shown(_sentence(place.cure or CURES[carried_by(place)]))
    where = f"<small>{carried_by(place)}, {shown(place.file)}</small>"
    return f'* {shown(_sentence(place.cause))} <span class="cure">{cure}</span> {where}'


def _sentence(text: str) -> str:
    """Returns a text with a capital in front and a full stop behind it."""
    begun = text[:1].upper() + text[1:] if text[:1].isalpha() else text
    return begun if begun.endswith((".", "?", "!")) else f"{begun}."


def page_of(package: str, places: Iterable[Place]) -> str:
    """Returns the page of a package: a section for each room, in it each code with everything that is said beside it."""
    mine = [place for place in places if place.file.startswith(f"{package}/")]
    codes = {place.code for place in mine}
    lines = [f"# Errors of `{package}`", "", f"{OF[package]}: {len(codes)} codes. *Slanted words* stand for what is found.", ""]
    for room in sorted({place.room for place in mine}):
        lines += [f"## {room}", ""]
        for code in sorted({place.code for place in mine if place.room == room}):
            sentences = {place.sentence: place for place in mine if place.room == room and place.code == code}
            lines += [f"### {code} {{ #{anchor(room, code)} }}", "", *map(said, sentences.values()), ""]
    return "\n".join(lines)


def anchor(room: str, code: str) -> str:
    """Returns where a code of a room stands on its page."""
    return f"{room.replace('/', '-')}-{code.lower()}"


def index(places: Iterable[Place]) -> str:
    """Returns the page that has every code once, in order, with links to where it is explained."""
    every_place = tuple(places)
    codes = sorted({place.code for place in every_place})
    lines = [
        "# Every error code",
        "",
        f"{len(codes)} codes in {len({place.room for place in every_place})} rooms, read from the source when this site was "
        "built. A message has the code first, then cause and cure. Programs find it in `error.code`, and "
        "with `--json` in `code`. Verdicts, their qualifiers and the reasons of the gate are below in full.",
        "",
        *_in_full("Verdicts of an audit", "VERDICTS", every_place),
        *_in_full("What weakens a verdict", "QUALIFIERS", every_place),
        *_in_full("Reasons of the gate", "ReasonCode", every_place),
    ]
    for letter in sorted({code[0] for code in codes}):
        lines += [f"## {letter}", ""]
        for code in (code for code in codes if code[0] == letter):
            rooms = sorted({place.room for place in every_place if place.code == code})
            links = ", ".join(f"[{room}](errors-{room.split('/')[0]}.md#{anchor(room, code)})" for room in rooms)
            lines.append(f"* `{code}`: {links}")
        lines.append("")
    return "\n".join(lines)


def _in_full(title: str, kind: str, places: tuple[Place, ...]) -> Iterator[str]:
    yield from (f"## {title}", "")
    yield from (f"* **`{place.code}`** {shown(_sentence(place.sentence))}" for place in places if place.kind == kind)
    yield ""


def pages() -> dict[str, str]:
    """Returns the pages of errors by their paths in the site."""
    places = every()
    made = {f"reference/errors-{package}.md": page_of(package, places) for package in PACKAGES}
    return {"reference/errors.md": index(places), **made}
