"""Writes and reads the shards of a checkpoint, as torch's distributed checkpoint has them, and digests their files.

Every rank writes the rows that it has. The table of files with their sizes and digests lies in the checkpoint's ``state.pt``,
whose digest the ledger's key signs: so the pin covers all shards. Another number of processes reads them as well.
"""

import hashlib
import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from dptrain.blocks.shards import is_shard, like, own_part
from dptrain.parallel.ranks import Ranks
from dptrain.record.pin import HOW_ON
from ledger.errors import PinRefused

SHARDS: Final = "shards"
"""Folder of the shards in a checkpoint, and the name of their table in ``state.pt``."""

Table = dict[str, list[Any]]
"""Size and SHA-256 in hex of every file, by name."""


def lies_over_ranks(model: nn.Module) -> bool:
    """Tells whether a model has parameters of which every rank has some rows."""
    return any(is_shard(parameter) for parameter in model.parameters())


def write(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Writes the rows of model and optimizer that this rank has; every rank calls it."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    values, states = get_state_dict(model, optimizer)
    dcp.save({"model": values, "optimizer": states}, checkpoint_id=folder / SHARDS)


def table_of(folder: Path, without: Collection[str] = ()) -> Table:
    """Returns the table of all files in a folder and the folders in it, after they were flushed to the disk.

    Args:
        without: names that are left out.
    """
    found: Table = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if name not in without:
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                found[name] = [os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()]
    return found


def require(folder: Path, table: Table, ranks: Ranks) -> None:
    """Holds files against their table, each file by one rank.

    Raises:
        PinRefused: code STATE_CHANGED or STATE_MISSING, at every rank.
    """
    wrong = _wrong(folder, dict(sorted(table.items())[ranks.rank :: ranks.size]))
    if first := next(filter(None, ranks.texts(wrong)), None):
        code = "STATE_MISSING" if first.startswith("cannot read") else "STATE_CHANGED"
        raise PinRefused(code, f"{first}; restore it, or {HOW_ON}")


def read(folder: Path, table: Table, model: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks) -> None:
    """Loads model and optimizer from shards, after all of them were found to be those of the table.

    Guarantee: no byte of a shard is parsed before every file was held against its size and digest, each by one rank.

    Raises:
        PinRefused: code STATE_CHANGED or STATE_MISSING, at every rank.
        ValueError, RuntimeError, KeyError: they do not fit this model and optimizer.
    """
    require(folder / SHARDS, table, ranks)
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    values, states = get_state_dict(model, optimizer)
    try:
        dcp.load({"model": values, "optimizer": states}, checkpoint_id=folder / SHARDS, no_dist=ranks.size == 1)
    except CheckpointException as error:  # which is no Exception
        raise ValueError(str(error)) from error
    set_state_dict(model, optimizer, model_state_dict=values, optim_state_dict=states)


def cut(model: nn.Module, optimizer: torch.optim.Optimizer, states: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the states of a whole model and its optimizer as those of this rank's rows."""
    held = model.state_dict(keep_vars=True)
    values = {
        name: like(held[name], own_part(held[name], value)) if name in held else value
        for name, value in states["model"].items()
    }
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in states["optimizer"]["param_groups"] for number in group["params"]]
    named = dict(zip(numbers, parameters, strict=True))

    def of(parameter: torch.Tensor, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
            return like(parameter, own_part(parameter, value))
        return value

    moved = {
        number: {key: of(named[number], value) for key, value in state.items()}
        for number, state in states["optimizer"]["state"].items()
    }
    return values, {**states["optimizer"], "state": moved}


def _wrong(folder: Path, table: Table) -> str:
    """Says what is wrong with files; empty if nothing is."""
    for name, (size, digest) in table.items():
        path = folder / name
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                if (
                    not path.resolve().is_relative_to(folder.resolve())
                    or not stat.S_ISREG(status.st_mode)
                    or status.st_size != size
                ):
                    return f"{path} is no file of {size} bytes, as the checkpoint says; it has {status.st_size}"
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    return f"{path} has another digest than the checkpoint says: other states"
        except OSError as error:
            return f"cannot read {path}: {error.strerror or error}"
    return ""
