"""Vectors of exports: honest ones with what they cost, and lies that each differ from one of them."""

from typing import Any

from tests.vectors.conformance.honest import RUNS
from tests.vectors.conformance.judged import judged
from tests.vectors.conformance.lies import LIES
from tests.vectors.conformance.written import Files, changed, changes, text_of


def honest(name: str, files: Files) -> dict[str, Any]:
    """Returns the vector of an honest export."""
    run = RUNS[name]
    told = judged(files, run.pins, figures=True)
    assert told["verdict"] == run.verdict, (name, told)
    return {"name": name, "title": run.title, "pins": run.pins.to_json(), **told, "files": text_of(files)}


def lie(name: str, base: Files) -> dict[str, Any]:
    """Returns the vector of a lie."""
    one = LIES[name]
    files = one.change(dict(base))
    pins = one.pins or RUNS[one.base].pins
    told = judged(files, pins)
    codes = {code for code, _ in told.get("findings", ())}
    assert told["verdict"] == one.verdict and one.code in codes, (name, one.code, told)
    assert files != base or one.pins is not None, name
    made = changes(files, base)
    assert changed(base, made) == files
    return {
        "name": name,
        "title": one.title,
        "base": one.base,
        "pins": pins.to_json(),
        "verdict": one.verdict,
        "findings": [list(found) for found in told["findings"]],
        "changes": made,
    }


def vectors() -> dict[str, Any]:
    """Returns all vectors of exports."""
    files = {name: run.files() for name, run in RUNS.items()}
    return {
        "honest": [honest(name, made) for name, made in files.items()],
        "lies": [lie(name, files[one.base]) for name, one in LIES.items()],
    }
