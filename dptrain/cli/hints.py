"""Wrong use, told helpfully: what a missing file would be and which command writes it, and which name was likely meant."""

import difflib
from pathlib import Path
from typing import Any

from dptrain.cli.complete import paths, suffixes_of

WRITTEN_BY = {
    "KEY": "'dptrain attest keygen NAME' writes one",
    "PUB": "'dptrain attest keygen' writes it; its owner hands it out",
    "POLICY": "'dptrain policy init' writes one to start from",
    "POLICY.toml": "'dptrain policy init' writes one to start from",
    "POLICY.cose": "'dptrain policy sign' writes it; the corpus owner hands it out",
    "REGISTRY": "'dptrain registry init' starts one; the corpus owner hands it out",
    "DATA.attest": "'dptrain attest sign DATA' writes it",
    "WITHDRAWAL": "'dptrain attest withdraw' writes it",
    "LEDGER": "training writes it",
    "LEDGER.db": "training writes it",
    "EXPORT": "'dptrain ledger export' writes it",
    "MODEL": "training writes it",
    "PROOF": "'dptrain ledger prove' writes it",
    "NOTE": "'dptrain ledger cosign' writes it",
    "RUN.toml": "recipes/ has examples",
}
"""Where a file comes from, by the metavar of the parameter that takes it."""


def explain(error: Any) -> None:
    """Extend, in place, the message of a `typer.BadParameter` about a parameter that is missing or names no file."""
    parameter = getattr(error, "param", None)
    if parameter is None:
        return
    metavar = parameter.metavar or ""
    if not error.message:
        # A parameter that was not given at all: its help says what it is.
        error.message = getattr(parameter, "help", None) or ""
    elif "does not exist" in error.message:
        path = _quoted(error.message)
        near = _nearest(path, metavar) if path else None
        hint = f"is {near} meant?" if near else WRITTEN_BY.get(metavar, "")
        error.message = error.message.rstrip(".") + (f"; {hint}" if hint else "")


def _quoted(message: str) -> str | None:
    parts = message.split("'")
    return parts[1] if len(parts) == 3 else None


def _nearest(path: str, metavar: str) -> str | None:
    """A file of the right kind in the same folder whose name is much like this one."""
    folder = path[: len(path) - len(Path(path).name)]
    kinds = suffixes_of(metavar)
    names = list(paths(folder, kinds)) if kinds else []
    found = difflib.get_close_matches(path, names, n=1, cutoff=0.75)
    return found[0] if found else None
