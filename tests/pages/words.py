"""Writes what pages say of an audit, of alarms, and of the answer to a trace, from the code that has these words."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ledger.audit.earlier import INHERITED, UNSHOWN
from ledger.audit.findings import BEYOND, QUALIFIERS, VERDICTS, Word
from ledger.proofs.monitoring import ALARMS, FAILED
from tests.pages.documents import Pages, table
from tests.pages.marked import cell, filled

_ANSWERS: Final = Path(__file__).resolve().parents[1] / "frozen"
_GROUPS: Final = ("ledger-audit", "ledger-read", "release")
_TRACE: Final = "dptrain ledger trace "


def verdicts() -> str:
    """Returns the verdicts, each of which beats all below it."""
    rows = [(name, cell(word.sentence), cell(word.remedy), str(word.code)) for name, word in reversed(VERDICTS.items())]
    return table(("verdict", "it says", "what you can do", "exit code"), rows)


def qualifiers() -> str:
    """Returns the qualifiers in the order of the registry, and those that a run has from others."""
    rows = [(name, cell(word.sentence), cell(word.remedy)) for name, word in QUALIFIERS.items()]
    counted, others = (", ".join(name for name in QUALIFIERS if name in words) for words in (INHERITED, UNSHOWN))
    handed = f"* A run inherits of runs that it counts, given with `--earlier`: {counted}.\n"
    handed += f"* Of earlier ones that it does not cite: {others}.\n"
    return table(("qualifier", "it says", "what you can do"), rows) + f"\n{handed}"


def beyond() -> str:
    """Returns the list of what no audit can find."""
    return "".join(f"* {fact}{'.' if fact == BEYOND[-1] else ';'}\n" for fact in BEYOND)


def alarms() -> str:
    """Returns the exit codes of a monitor, the alarms of one code that say and ask for one thing in one row."""
    rows = [("0", "", "nothing to say", ""), _failed(VERDICTS["FAILED"])]
    rows += [(str(word.code), f"`{code}`", cell(word.sentence), cell(word.remedy)) for code, word in ALARMS.items()]
    return table(("exit code", "alarm", "it says", "what you can do"), rows)


def _failed(word: Word) -> tuple[str, str, str, str]:
    return str(FAILED), "code of the finding", cell(f"the export is FAILED: {word.sentence}"), cell(word.remedy)


def trace_keys() -> str:
    """Returns the keys of a trace as JSON, by the place where they stand, as the frozen answers have them."""
    groups = (json.loads((_ANSWERS / f"{group}.json").read_text(encoding="utf-8")) for group in _GROUPS)
    found: dict[str, dict[str, None]] = {}
    for case in (case for cases in groups for case in cases.values()):
        if case["command"].startswith(_TRACE) and case["exit"] == 0:
            _collect(case["answer"], "", found)
    rows = [(f"`{place}`" if place else "the answer", ", ".join(f"`{key}`" for key in keys)) for place, keys in found.items()]
    return table(("of", "keys"), rows)


def _collect(value: Mapping[str, Any], place: str, found: dict[str, dict[str, None]]) -> None:
    """Notes the keys of an object, and of the objects in it."""
    found.setdefault(place, {}).update(dict.fromkeys(value))
    for key, inner in value.items():
        for one, ending in _objects(inner):
            _collect(one, f"{place}.{key}{ending}".lstrip("."), found)


def _objects(value: Any) -> Iterable[tuple[Mapping[str, Any], str]]:
    if isinstance(value, dict):
        return [(value, "")]
    return [(item, "[]") for item in value if isinstance(item, dict)] if isinstance(value, list) else []


PAGES: Final[Pages] = {
    "auditors.md": lambda page: filled(page, verdicts(), qualifiers(), beyond()),
    "contributors.md": lambda page: filled(page, alarms()),
    "tracing.md": lambda page: filled(page, trace_keys()),
}
