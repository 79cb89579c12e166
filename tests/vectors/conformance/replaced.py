"""Runs in the place of honest ones: by the same name and key, with another life, or citing something else."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ledger.leaves import Header, Previous
from tests.vectors.conformance.several import RUNS, LaterRun, files_of
from tests.vectors.conformance.written import Files, Pieces


def another(name: str, **changes: Any) -> Callable[[Files], Files]:
    """Returns the files of an honest run that is changed, in the place of those of the base."""
    return lambda _: replace(RUNS[name], **changes).files()


def cited(name: str, **changes: Any) -> Callable[[Files], Files]:
    """Returns the files of a run whose first citation says something else."""

    def make(_: Files) -> Files:
        run = RUNS[name]
        assert isinstance(run, LaterRun)
        honest = Pieces.of(files_of(name)).leaves[0]
        assert isinstance(honest, Header)
        previous: tuple[Previous, ...] = (replace(honest.previous[0], **changes), *honest.previous[1:])
        return replace(run, header={"previous": previous}).files()

    return make
