"""Opening a run from a run file: private, or the comparison without privacy."""

import sys
from typing import Any

from attest.schema.plain import visible
from dptrain.engine.private_training import PrivateTraining
from dptrain.runconfig import RunConfig
from dptrain.tasks.without_privacy import WithoutPrivacy


def open_run(
    config: RunConfig,
    accelerator: Any,
    *,
    resume: bool = False,
    clock_jump_ok: bool = False,
    kept_reading: bool = True,
    privacy: bool = True,
) -> PrivateTraining | WithoutPrivacy:
    """Calls ``PrivateTraining.open`` with what the run file says.

    Args:
        config: the run. accelerator: see ``PrivateTraining.open``. resume: continue an interrupted run.
        clock_jump_ok: the clock is right though it ran far ahead since the last leaf, as for ``PrivateTraining.open``.
        kept_reading: spare signatures that verified before, as for ``PrivateTraining.open``.
        privacy: False for the comparison run, which must not be released.

    Raises:
        DptrainError, AttestError, LedgerError: as ``PrivateTraining.open``.
    """
    if privacy:
        how = {"resume": resume, "clock_jump_ok": clock_jump_ok, "kept_reading": kept_reading}
        run = PrivateTraining.open(**config.opening, accelerator=accelerator, **how)
        if run.reading is not None and run.reading.told:
            print(visible(run.reading.told), file=sys.stderr)
        return run
    return WithoutPrivacy(config.data, microbatch=config.run.microbatch, accelerator=accelerator, seed=config.run.seed)
