"""Writes and reads checkpoints of several files: shards of torch's distributed checkpoint, and states of accelerate.

Every rank writes the rows that it has. The table of files with their sizes and digests is the ``state.pt`` of such a
checkpoint, as JSON. The ledger's key signs its digest, so the pin covers all files. Another number of processes reads them too.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch
from torch import nn

from dptrain.blocks.shards import is_shard, like, own_part
from dptrain.parallel.ranks import Ranks
from dptrain.record.pin import PIN, STATE, Table, opened_file
from ledger.errors import PinRefused

SHARDS: Final = "shards"
"""Folder of the shards in a checkpoint."""

REGISTERED: Final = "registered.pt"
"""States of what is registered beside model and optimizer, and settings of the latter."""


def lies_over_ranks(model: nn.Module) -> bool:
    """Tells whether a model has parameters of which every rank has some rows."""
    return any(is_shard(parameter) for parameter in model.parameters())


def write(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Writes the rows of model and optimizer that this rank has; every rank calls it.

    Raises:
        OSError, RuntimeError: a disk refuses, at any rank.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    states: dict[str, Any] = {"model": get_model_state_dict(model)}
    if optimizer.state:  # without any, torch would take a step to make some
        states["optimizer"] = get_optimizer_state_dict(model, optimizer)
    try:
        dcp.save(states, checkpoint_id=folder / SHARDS)
    except CheckpointException as error:  # which is no Exception
        raise RuntimeError(str(error).partition("\n")[0]) from error


def read(folder: Path, settings: Mapping[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks) -> None:
    """Loads model and optimizer from shards that were verified (`verified`).

    Args:
        settings: what `settings_of` told of the optimizer.

    Raises:
        ValueError, RuntimeError, KeyError: they do not fit this model and optimizer.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_model_state_dict, set_state_dict

    values, states = get_state_dict(model, optimizer)
    wanted: dict[str, Any] = {"model": values} | ({"optimizer": states} if settings["states"] else {})
    try:
        dcp.load(wanted, checkpoint_id=folder / SHARDS, no_dist=ranks.size == 1)
    except CheckpointException as error:
        raise ValueError(str(error).partition("\n")[0]) from error
    if settings["states"]:
        set_state_dict(model, optimizer, model_state_dict=values, optim_state_dict=states)
        return
    set_model_state_dict(model, values)
    for group, saved in zip(optimizer.param_groups, settings["groups"], strict=True):
        group.update(saved)


def settings_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns whether an optimizer has states, and the settings of its groups."""
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return {"states": bool(optimizer.state), "groups": groups}


def table_of(folder: Path, name_of: str = "") -> bytes:
    """Returns the table of all files in a folder, as bytes of JSON, after they were flushed to the disk.

    Args:
        name_of: the name that the folder will have, where it is another one yet.
    """
    found: Table = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if name not in (STATE, PIN):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                found[name] = [os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()]
    return json.dumps({"folder": name_of or folder.name, "files": found}).encode()


@contextmanager
def verified(folder: Path, table: Table, ranks: Ranks) -> Iterator[Path]:
    """Opens the files of a folder that are in its table, and yields a folder of our own in which they lie.

    Guarantee: what is read there are the files that were digested, under whatever name others lie in ``folder`` meanwhile, and
    no file besides. No byte of one was parsed before all were held against sizes and digests, at this rank.

    Raises:
        PinRefused: code STATE_CHANGED or STATE_MISSING, at every rank.
    """
    with ExitStack() as stack:
        own = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dptrain-state-")))
        wrong = ""
        try:
            for name, (size, digest) in table.items():
                file = stack.enter_context(opened_file(folder / name, size, digest))
                place = own / name
                if not place.resolve().is_relative_to(own.resolve()):
                    raise PinRefused("STATE_CHANGED", f"{name!r} is no path in {folder}")
                place.parent.mkdir(parents=True, exist_ok=True)
                _put(file, place)
        except PinRefused as error:
            wrong = f"{error.code} {error.sentence}"
        for told in ranks.texts(wrong):
            if told:
                code, _, sentence = told.partition(" ")
                raise PinRefused(code, sentence)
        yield own


def _put(file: BinaryIO, place: Path) -> None:
    """Makes an open file readable under a path: by its descriptor where the system has a name for that, else as a copy."""
    named = Path(f"/proc/self/fd/{file.fileno()}")
    if named.exists():
        place.symlink_to(named)
        return
    with open(place, "wb") as into:
        shutil.copyfileobj(file, into)


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
