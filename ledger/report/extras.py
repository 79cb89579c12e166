"""Reads what the operator alone tells: what the gate admitted and refused, and how good the model is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ledger.errors import LedgerError

_MAX_COUNT: Final = 2**63

MAX_TABLES: Final = 8


class ExtrasRefused(LedgerError, ValueError):
    """Raised where an operator's extra for the report has not the form that the report takes."""


@dataclass(frozen=True, slots=True)
class Extras:
    """Holds what the operator tells.

    Attributes:
        admitted: contributions that the gate admitted, by class.
        refused: contributions that it refused, by reason code.
        examples: refusals one by one, each a row by column; at most `ledger.report.rows.MAX_EXAMPLES` are shown.
        results: rows of results, by column.
        tables: further tables of results, rows by column, by caption; at most `MAX_TABLES`.
    """

    admitted: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    examples: Sequence[Mapping[str, Any]] = ()
    results: Sequence[Mapping[str, Any]] = ()
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def has_gate(self) -> bool:
        """Tells whether anything was said of the gate."""
        return bool(self.admitted or self.refused or self.examples)


def read_extras(extras: Mapping[str, Any] | None) -> Extras:
    """Reads ``{"gate": {"admitted": {class: n}, "refused": {code: n}, "examples": [...]}, "results": [...],
    "tables": {caption: [...]}}``, all optional.

    The gate's own JSON may stand under ``gate``: its ``refusals`` are taken as examples. A single result may be a mapping.

    Raises:
        ExtrasRefused: a count is no count, or a row no row.
    """
    given = extras or {}
    gate = _mapping(given.get("gate"), "gate")
    examples = gate.get("examples", gate.get("refusals"))
    results = given.get("results")
    rows = [{"refusal": row} if isinstance(row, str) else row for row in _rows(examples, "gate.examples")]
    return Extras(
        admitted=_read_counts(gate.get("admitted"), "gate.admitted"),
        refused=_read_counts(gate.get("refused"), "gate.refused"),
        examples=[_mapping(row, "a row of gate.examples") for row in rows],
        results=[
            _mapping(row, "a row of results")
            for row in ([results] if isinstance(results, Mapping) else _rows(results, "results"))
        ],
        tables=_read_tables(given.get("tables")),
    )


def _read_tables(value: Any) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    found = _mapping(value, "tables")
    if len(found) > MAX_TABLES:
        raise ExtrasRefused("EXTRAS", f"tables are {len(found)}, expected at most {MAX_TABLES}")
    return {
        caption: [_mapping(row, f"a row of tables[{caption!r:.80}]") for row in _rows(rows, f"tables[{caption!r:.80}]")]
        for caption, rows in found.items()
    }


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ExtrasRefused("EXTRAS", f"{what} is {value!r:.80}, expected an object")
    return value


def _rows(value: Any, what: str) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise ExtrasRefused("EXTRAS", f"{what} is {value!r:.80}, expected a list")
    return value


def _read_counts(value: Any, what: str) -> Mapping[str, int]:
    found = _mapping(value, what)
    for name, count in found.items():
        if type(count) is not int or not 0 <= count < _MAX_COUNT:
            raise ExtrasRefused("EXTRAS", f"{what} of {name!r:.80} is {count!r:.80}, expected a count")
    return found
