"""End programs as commands end: one object of JSON, or an expected error as one line and exit code 1."""

import errno
import json
import math
import os
import sys
from collections.abc import Callable
from typing import Any

from attest.errors import AttestError
from attest.schema.plain import visible
from dptrain.errors import DptrainError
from ledger.errors import LedgerError


def quiet_libraries() -> None:
    """Turns off the progress bars and notices of ``transformers``; for programs, never on import."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def print_json(data: dict[str, Any]) -> None:
    """Print one JSON object. JSON has no infinity: an unbounded epsilon is printed as the string "inf"."""
    print(json.dumps(_finite(data), indent=2, allow_nan=False))


REFUSALS = (AttestError, LedgerError, DptrainError, OSError)
"""Errors that a person is told of in one line; any other is a fault of our own."""


def refusal(error: Any) -> dict[str, Any]:
    """Returns what `--json` says of an expected error; raises it again where it is a pipe that nobody reads any more."""
    if isinstance(error, OSError):
        if error.errno == errno.EPIPE:
            raise error
        sentence = f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
        return {"code": "IO", "sentence": sentence}
    nearest = getattr(error, "nearest", None)
    return {"code": str(error.code), "sentence": error.sentence} | ({} if nearest is None else {"nearest": nearest})


def launched_rank() -> int:
    """Returns the number of this process among those that a launcher started; 0 for one that was started alone.

    It is what ``torchrun``, ``accelerate launch`` and others set before the program begins (``RANK``).
    """
    told = os.environ.get("RANK", "")
    return int(told) if told.isdecimal() else 0


def guarded(work: Callable[[], int], *, as_json: bool = False) -> int:
    """Runs ``work`` and returns its exit code; a refusal is shown and becomes 1, a fault of our own propagates.

    Of several processes the first one answers as one alone would. Others tell a refusal of theirs on the error stream, as a
    launcher may end the first one before it says anything.

    Args:
        work: the program. as_json: show a refusal as the commands do with ``--json``.
    """
    try:
        return work()
    except REFUSALS as error:
        told = refusal(error)
    rank = launched_rank()
    if as_json and not rank:
        print_json({"error": told})
    else:
        print(f"{f'rank {rank}: ' * bool(rank)}{told['code']}: {visible(told['sentence'])}", file=sys.stderr)
    return 1


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
