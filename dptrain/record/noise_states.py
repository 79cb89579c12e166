"""Keep beside the ledger what the noise of later steps is made of, and take it up again when a run is resumed.

Noise that is correlated between steps has a state: noise of the last steps, or what the next one is made of. With the releases
it tells sums of gradients as they were before noise, of as many steps as it has buffers. So it lies where keys lie, for its
owner alone, and never in a checkpoint, which others may be given. The pin of the checkpoint of that step has its digest, under
the ledger's key. Every rank writes what it has, and another number of ranks reads it too.
"""

import hashlib
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import torch

from attest.files import make_private_directory, sync_directory
from dptrain.errors import ResumeRefused
from dptrain.parallel.ranks import Ranks
from dptrain.record.pin import STATE, folder_name, found, noise_table
from dptrain.record.shard_files import table_of, verified
from ledger.errors import StorageFailed

KEEP: Final = 2
"""States kept, as many as checkpoints; older ones are removed after a newer one is durable."""

def save(
    directory: Path, step: int, tensors: Mapping[str, torch.Tensor], ranks: Ranks, pinned: Collection[int] = ()
) -> bytes:
    """Writes the state of the noise after a step durably, and keeps ``KEEP``: it and the newest others; every rank calls it.

    Args:
        directory: beside the ledger; made for its owner alone. tensors: what this rank has. pinned: steps of checkpoints that
            are there, whose states stay besides.

    Returns:
        SHA-256 of the table of its files, which the pin of the step's checkpoint has to name.

    Raises:
        StorageFailed: the disk is full or fails; nothing half-written stays under the name of a step.
    """
    final = directory / folder_name(step)
    ranks.all(b"", "the state of the noise is saved with a checkpoint")
    aside = Path(os.fsdecode(ranks.first(lambda: os.fsencode(_begun(directory, final)))))
    failed = ""
    try:
        descriptor = os.open(aside / _file(ranks.rank), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            torch.save(dict(tensors), file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        failed = str(error) or type(error).__name__
    wrong = next(filter(None, ranks.texts(failed)), None)

    def end() -> bytes:
        try:
            if wrong is not None:
                raise OSError(wrong)
            table = table_of(aside, final.name)
            descriptor = os.open(aside / STATE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "wb") as file:
                file.write(table)
                file.flush()
                os.fsync(file.fileno())
            sync_directory(aside)
            if final.exists():
                shutil.rmtree(final)
            os.rename(aside, final)
            sync_directory(directory)
        except OSError as error:
            raise _not_written(final, error) from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        # Of a later step too, where a run went back.
        others = [path for number, path in found(directory) if path != final and number not in pinned]
        for old in others[: 1 - KEEP]:
            shutil.rmtree(old, ignore_errors=True)
        return hashlib.sha256(table).digest()

    return ranks.first(end)


def restored(directory: Path, step: int, digest: bytes, ranks: Ranks) -> dict[str, torch.Tensor]:
    """Reads the state of the noise after a step; every rank calls it.

    Guarantee: what is read are the files whose table has this digest, byte for byte; none was parsed before all were checked.

    Returns:
        What this rank has, where as many ranks wrote it; else what all had.

    Raises:
        PinRefused: code NOISE_STATE, there is none, or another one. STATE_CHANGED, STATE_MISSING: its files are others.
        ResumeRefused: code NOISE_STATE, it cannot be read.
    """
    folder = directory / folder_name(step)
    table = noise_table(folder, digest)
    with verified(folder, table, ranks) as own:
        names = [_file(ranks.rank)] if len(table) == ranks.size else sorted(table)
        held: dict[str, torch.Tensor] = {}
        try:
            for name in names:
                held |= torch.load(own / name, map_location="cpu", weights_only=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise ResumeRefused("NOISE_STATE", f"cannot read the state of the noise in {folder} ({error})") from error
        return held


def destroy(directory: Path) -> None:
    """Deletes all states, at the end of the run. Raises StorageFailed: they could not be deleted."""
    try:
        if directory.exists():
            shutil.rmtree(directory)
    except OSError as error:
        sentence = f"could not delete {directory} ({error}), which with the releases tells noise; delete it yourself"
        raise StorageFailed("STORAGE", sentence) from error


def _file(rank: int) -> str:
    return f"rank-{rank}.pt"


def _begun(directory: Path, final: Path) -> Path:
    """Makes the folder in which a state is written aside."""
    aside = directory / f".{final.name}.{os.getpid()}"
    try:
        if not directory.is_dir():
            directory.parent.mkdir(parents=True, exist_ok=True)
            make_private_directory(directory)
        for left in directory.glob(".step-*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        make_private_directory(aside)
    except OSError as error:
        raise _not_written(final, error) from error
    return aside


def _not_written(final: Path, error: Exception) -> StorageFailed:
    sentence = f"could not write the state of the noise {final} ({error})"
    return StorageFailed("STORAGE", f"{sentence}; free space and resume from the previous checkpoint")
