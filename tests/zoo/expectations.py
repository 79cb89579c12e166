"""The committed expectation of every family: what a run's start says of it, why, and what a user can do.

``expected.toml`` holds one table per family (``library`` and ``random`` are verdicts) and one per reason. A verdict that is
not ``exact`` has a reason. A reason says whether the refusal is ``right`` (nobody could take the family), a ``limit`` (it is
named honestly; a further rule would take it), ``wrong`` (the engine should take the family, or names a wrong cause), or a
``fault`` (the engine passes what it should not, or breaks), and what should become of it.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.zoo.families import ZOO
from tests.zoo.family import VARIANTS
from tests.zoo.judge import Result
from tests.zoo.start import EXACT

PLACE = Path(__file__).with_name("expected.toml")

JUDGEMENTS = ("right", "limit", "wrong", "fault")


@dataclass(frozen=True)
class Reason:
    """Why families are not taken.

    Attributes:
        codes: verdicts it explains. judgement: one of :data:`JUDGEMENTS`. why: for a reader of the documents. do: what helps
            today. should: what the engine should do, where the judgement is not ``right``.
    """

    codes: tuple[str, ...]
    judgement: str
    why: str
    do: str
    should: str = ""


@dataclass(frozen=True)
class Expected:
    """Verdicts by variant; ``layers`` and ``probe`` are what a run needs to pass; ``slow`` are classes on the generic path."""

    verdicts: Mapping[str, str]
    layers: str | tuple[str, ...] | None = None
    probe: bool = False
    slow: tuple[str, ...] = ()
    reason: str = ""

    @property
    def exact(self) -> bool:
        return all(verdict == EXACT for verdict in self.verdicts.values())


@dataclass(frozen=True)
class Expectations:
    families: Mapping[str, Expected] = field(default_factory=dict)
    reasons: Mapping[str, Reason] = field(default_factory=dict)


def read(place: Path = PLACE) -> Expectations:
    """Reads ``expected.toml``."""
    if not place.exists():
        return Expectations()
    table = tomllib.loads(place.read_text())
    reasons = {
        name: Reason(tuple(r["codes"]), r["judgement"], r["why"], r["do"], r.get("should", ""))
        for name, r in table.get("reason", {}).items()
    }
    families = {}
    for name, entry in table.get("family", {}).items():
        layers = entry.get("layers")
        families[name] = Expected(
            {variant: entry[variant] for variant in VARIANTS},
            tuple(layers) if isinstance(layers, list) else layers,
            entry.get("probe", False),
            tuple(entry.get("slow", ())),
            entry.get("reason", ""),
        )
    return Expectations(families, reasons)


def write(expected: Expectations, place: Path = PLACE) -> None:
    """Writes ``expected.toml``, families in the order of the zoo."""

    def quote(text: str) -> str:
        return json.dumps(text, ensure_ascii=False)

    def listed(items: Sequence[str]) -> str:
        return "[" + ", ".join(map(quote, items)) + "]"

    head = "# What a run's start says of every family. tests/zoo/expectations.py explains the fields; `make zoo` compares."
    lines = [head, ""]
    for name, reason in expected.reasons.items():
        lines.append(f"[reason.{name}]")
        lines.append(f"codes = {listed(reason.codes)}")
        lines.append(f"judgement = {quote(reason.judgement)}")
        lines += [f"{key} = {quote(getattr(reason, key))}" for key in ("why", "do", "should") if getattr(reason, key)]
        lines.append("")
    for name in [n for n in ZOO if n in expected.families]:
        entry = expected.families[name]
        lines.append(f"[family.{quote(name)}]")
        lines += [f"{variant} = {quote(entry.verdicts[variant])}" for variant in VARIANTS]
        if entry.layers is not None:
            lines.append(f"layers = {quote(entry.layers) if isinstance(entry.layers, str) else listed(entry.layers)}")
        if entry.probe:
            lines.append("probe = true")
        if entry.slow:
            lines.append(f"slow = {listed(entry.slow)}")
        if entry.reason:
            lines.append(f"reason = {quote(entry.reason)}")
        lines.append("")
    place.write_text("\n".join(lines))


def of(results: Sequence[Result]) -> dict[str, Expected]:
    """What results say, in the form of expectations."""
    found: dict[str, Expected] = {}
    for name in dict.fromkeys(result.family for result in results):
        own = {result.variant: result for result in results if result.family == name}
        first = next(iter(own.values()))
        found[name] = Expected(
            {variant: own[variant].verdict if variant in own else "" for variant in VARIANTS},
            next((r.layers for r in own.values() if r.layers is not None and r.verdict == EXACT), None),
            any(r.probe for r in own.values()),
            first.slow,
        )
    return found


def accepted(results: Sequence[Result], known: Expectations) -> Expectations:
    """Expectations with these results in them; a reason stays where it explains the verdict, else the first that does."""
    families = dict(known.families)
    for name, entry in of(results).items():
        old = families.get(name)
        verdicts = {v: entry.verdicts[v] or (old.verdicts[v] if old else "") for v in VARIANTS}
        bad = [verdict for verdict in verdicts.values() if verdict != EXACT]
        fitting = [r for r, reason in known.reasons.items() if bad and set(bad) <= set(reason.codes)]
        reason = old.reason if old and old.reason in fitting else next(iter(fitting), "")
        families[name] = replace(entry, verdicts=verdicts, reason=reason)
    return Expectations({name: families[name] for name in ZOO if name in families}, known.reasons)


def differences(results: Sequence[Result], known: Expectations) -> list[str]:
    """One sentence per family and variant whose verdict, layers or probe are not what is expected."""
    found = []
    for result in results:
        expected = known.families.get(result.family)
        if expected is None:
            found.append(f"{result.family}: no expectation is written; found {result.verdict}")
        elif result.verdict != (wanted := expected.verdicts[result.variant]):
            found.append(f"{result.family} ({result.variant}): expected {wanted}, found {result.verdict}. {result.sentence}")
        elif result.verdict == EXACT and (result.layers, result.probe) != (expected.layers, expected.probe):
            found.append(
                f"{result.family} ({result.variant}): expected layers={expected.layers!r}, probe={expected.probe}; found "
                f"layers={result.layers!r}, probe={result.probe}"
            )
    return found
