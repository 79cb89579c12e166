"""Vectors of exports: honest ones with what they cost, and lies that each differ from one of them."""

from typing import Any

from tests.vectors.conformance.beside import LIVES
from tests.vectors.conformance.judged import judged
from tests.vectors.conformance.lies import Lie
from tests.vectors.conformance.lies_of_runs import LIES
from tests.vectors.conformance.several import RUNS, files_of
from tests.vectors.conformance.written import Files, bytes_of, changed, changes, text_of


def honest(name: str) -> dict[str, Any]:
    """Returns the vector of an honest export."""
    run = RUNS[name]
    files = files_of(run.of or name)
    told = judged(files, run.pins, list(map(files_of, run.earlier)), run.withdrawals, figures=True)
    assert told["verdict"] == run.verdict, (name, told)
    row = {"name": name, "title": run.title, "pins": run.pins.to_json()} | _given(list(run.earlier), run.withdrawals) | told
    base = run.of or run.like
    return row | ({"base": base, "changes": changes(files, files_of(base))} if base else {"files": text_of(files)})


def lie(name: str) -> dict[str, Any]:
    """Returns the vector of a lie."""
    one = LIES[name]
    base = files_of(RUNS[one.base].of or one.base)
    files = one.change(dict(base))
    earlier, withdrawals = _earlier(one), RUNS[one.base].withdrawals if one.withdrawals is None else one.withdrawals
    pins = one.pins or RUNS[one.base].pins
    told = judged(files, pins, [other for _, other in earlier], withdrawals)
    codes = {code for code, _ in told.get("findings", ())}
    assert told["verdict"] == one.verdict and one.code in codes, (name, one.code, told)
    assert files != base or one.pins is not None or one.earlier is not None or one.withdrawals is not None, name
    made = changes(files, base)
    assert changed(base, made) == files
    row = {"name": name, "title": one.title, "base": one.base, "pins": pins.to_json()}
    row |= _given([as_told for as_told, _ in earlier], withdrawals)
    return row | {"verdict": one.verdict, "findings": [list(found) for found in told["findings"]], "changes": made}


def _given(earlier: list[str | dict[str, Any]], withdrawals: Files) -> dict[str, Any]:
    """Returns what the reader of a vector gives besides an export, where there is any."""
    told: dict[str, Any] = {"earlier": earlier} if earlier else {}
    return told | ({"withdrawals": text_of(withdrawals)} if withdrawals else {})


def _earlier(one: Lie) -> list[tuple[str | dict[str, Any], Files]]:
    """Returns the other exports that the reader of a lie is given: as a vector tells them, and their files."""
    found: list[tuple[str | dict[str, Any], Files]] = []
    for item in RUNS[one.base].earlier if one.earlier is None else one.earlier:
        if isinstance(item, str):
            found.append((item, files_of(item)))
        else:
            base, change = item
            files = change(dict(files_of(base)))
            found.append(({"base": base, "changes": changes(files, files_of(base))}, files))
    return found


def files_in(row: dict[str, Any], honest: dict[str, dict[str, Any]]) -> Files:
    """Returns the files of a vector; `honest` has the rows of honest exports, and of budgets, by name."""
    return changed(files_in(honest[row["base"]], honest), row["changes"]) if "base" in row else bytes_of(row["files"])


def earlier_in(row: dict[str, Any], honest: dict[str, dict[str, Any]]) -> list[Files]:
    """Returns the files of the other exports that the reader of a vector is given."""
    return [files_in(honest[item] if isinstance(item, str) else item, honest) for item in row.get("earlier", ())]


def withdrawals_in(row: dict[str, Any]) -> Files:
    """Returns the signed withdrawals that the reader of a vector is given."""
    return bytes_of(row.get("withdrawals", {}))


def budgets() -> list[dict[str, Any]]:
    """Returns the exports of budgets of texts that readers of runs are given."""
    return [{"name": name, "files": text_of(files_of(name))} for name in LIVES]


def vectors() -> dict[str, Any]:
    """Returns all vectors of exports."""
    return {"budgets": budgets(), "honest": list(map(honest, RUNS)), "lies": list(map(lie, LIES))}
