"""How programs outside the command tree end: expected errors as one line (or one JSON object) and exit code 1."""

import sys
from collections.abc import Callable

from attest.errors import AttestError
from attest.schema.plain import visible
from dptrain.cli.output import print_json
from dptrain.errors import DptrainError
from ledger.errors import LedgerError


def quiet_libraries() -> None:
    """Turns off the progress bars and notices of ``transformers``; for programs, never on import."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def guarded(work: Callable[[], int], *, as_json: bool = False) -> int:
    """Runs ``work`` and returns its exit code; a refusal is shown and becomes 1, a fault of our own propagates.

    Args:
        work: the program. as_json: show a refusal as the commands do with ``--json``.
    """
    try:
        return work()
    except (AttestError, LedgerError, DptrainError) as error:
        code, sentence = str(error.code), error.sentence
    except BrokenPipeError:
        raise
    except OSError as error:
        code, sentence = "IO", f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
    if as_json:
        print_json({"error": {"code": code, "sentence": sentence}})
    else:
        print(f"{code}: {visible(sentence)}", file=sys.stderr)
    return 1
