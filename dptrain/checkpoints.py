"""Model checkpoints that know their place in the ledger.

A checkpoint is a directory ``step-00000012`` with ``state.pt`` (model, optimizer and registered states) and ``pin.json``
(origin, size, root, header digest of the ledger, and the step). It is written aside, flushed and renamed, so a crash leaves
the previous one whole; it never holds a key.
"""

import json
import os
import pickle
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attest.files import sync_directory
from dptrain.errors import ResumeRefused
from dptrain.pin import PinRecord
from dptrain.recording import Recorder
from ledger.errors import StorageFailed

KEEP = 2
"""Checkpoints kept; older ones are removed after a newer one is durable."""

_NAME = re.compile(r"step-([0-9]{8})")


def save(
    directory: Path, pin: PinRecord, model: nn.Module, optimizer: torch.optim.Optimizer, registered: Sequence[Any]
) -> Path:
    """Writes a checkpoint durably and removes all but the newest ``KEEP``; ``registered`` objects have a ``state_dict``.

    Raises:
        StorageFailed: the disk is full or fails; nothing half-written stays under a checkpoint's name.
    """
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "registered": [item.state_dict() for item in registered],
    }
    final = directory / f"step-{pin.step:08d}"
    aside = directory / f".{final.name}.{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        with open(aside / "state.pt", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        with open(aside / "pin.json", "w") as file:
            json.dump(asdict(pin), file)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(aside)
        if final.exists():
            shutil.rmtree(final)
        os.rename(aside, final)
        sync_directory(directory)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        shutil.rmtree(aside, ignore_errors=True)
        raise StorageFailed(
            "STORAGE", f"could not write the checkpoint {final} ({error}); free space and resume from the previous checkpoint"
        ) from error
    for _, old in found(directory)[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def found(directory: Path) -> list[tuple[int, Path]]:
    """(step, path) of the complete checkpoints of a directory, oldest first."""
    if not directory.is_dir():
        return []
    hits = [(m, path) for path in directory.iterdir() if (m := _NAME.fullmatch(path.name)) and (path / "pin.json").is_file()]
    return sorted((int(m.group(1)), path) for m, path in hits)


def restore(
    directory: Path, recorder: Recorder, model: nn.Module, optimizer: torch.optim.Optimizer, registered: Sequence[Any]
) -> PinRecord | None:
    """Loads the newest checkpoint of a resumed run, after the ledger has shown that it is not behind it.

    Returns:
        The pin of the checkpoint, or None where there is none to load.

    Raises:
        ResumeRefused: checkpoints of another run, or a state that does not fit.
        LedgerBehind, LedgerForked, LedgerWrongRun: the ledger does not contain the checkpoint's past.
    """
    available = found(directory)
    if not recorder.resuming:
        if available:
            raise ResumeRefused(
                "CHECKPOINTS_OF_ANOTHER_RUN",
                f"{directory} holds checkpoints, but this ledger is new; resume the old run, or use another directory",
            )
        return None
    if not available:
        return None
    pin, state = load(available[-1][1])
    recorder.check_pin(pin)
    try:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        for item, saved in zip(registered, state["registered"], strict=True):
            item.load_state_dict(saved)
    except (KeyError, ValueError, RuntimeError) as error:
        raise ResumeRefused(
            "CHECKPOINT_MISFIT", f"the checkpoint {available[-1][1]} does not fit this model and optimizer ({error})"
        ) from error
    return pin


def load(path: Path) -> tuple[PinRecord, dict[str, Any]]:
    """Reads a checkpoint back.

    Raises:
        ResumeRefused: unreadable or not a checkpoint.
    """
    try:
        pin = PinRecord(**json.loads((path / "pin.json").read_text()))
        state = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
    except (OSError, ValueError, TypeError, RuntimeError, pickle.UnpicklingError) as error:
        raise ResumeRefused(
            "CHECKPOINT_UNREADABLE", f"cannot read the checkpoint {path} ({error}); remove it to resume from an older one"
        ) from error
    return pin, state
