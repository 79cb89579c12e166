"""Write and open model checkpoints that know their place in the ledger.

A checkpoint is a directory ``step-00000012`` with ``state.pt`` (model, optimizer and registered states) and ``pin.cose``: where
the ledger stood, the step, and the digest of ``state.pt``, signed with the ledger's key (`dptrain.record.pin`). It is written
aside, flushed and renamed, so a crash leaves the previous one whole. It never holds a key, and only its owner may read it.
"""

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn

from attest.files import sync_directory
from dptrain.errors import ResumeRefused
from dptrain.parallel.ranks import ALONE, Ranks
from dptrain.record import shard_files
from dptrain.record.folders import Whole, not_written, private_file
from dptrain.record.pin import (
    HOW_ON,
    PIN,
    STATE,
    PinRecord,
    found,
    open_record,
    opened_state,
    read_record,
    table_in,
)
from dptrain.record.recorder import Recorder
from ledger.errors import PinRefused
from ledger.log import Ledger
from ledger.log.pinned import Pin

KEEP = 2
"""Checkpoints kept; older ones are removed after a newer one is durable."""


def save(
    directory: Path,
    step: int,
    sign: Callable[[int, bytes], bytes],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    registered: Sequence[Any],
    ranks: Ranks = ALONE,
) -> Path:
    """Writes a checkpoint durably and removes all but the newest ``KEEP``.

    Of several ranks the first writes it. Where parameters lie over ranks, each writes its rows, and all must call this.

    The states are digested while they are written: they are neither read again nor held in memory a second time.

    Args:
        directory: where checkpoints lie; made for its owner alone. step: last step in the states.
        sign: makes the pin of size and SHA-256 of the states. registered: objects that have a ``state_dict``.

    Raises:
        StorageFailed: the disk is full or fails; nothing half-written stays under a checkpoint's name.
        LedgerReplaced: the ledger that it would be pinned to is lost; no checkpoint is written.
    """
    whole = Whole(directory, step, "the checkpoint")
    registered_states = [item.state_dict() for item in registered]
    if not shard_files.lies_over_ranks(model):
        if ranks.leads:
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "registered": registered_states}
            whole.begin()
            with whole.named() as aside:
                _sign_states(aside, lambda file: torch.save(states, file), sign)
            _keep_newest(directory)
        return whole.final
    beside = {"registered": registered_states, "settings": shard_files.settings_of(optimizer)}

    def end(aside: Path) -> bytes:
        _write_beside(aside, beside)
        _sign_states(aside, lambda file: file.write(shard_files.table_of(aside, whole.final.name)), sign)
        return b""

    whole.together(ranks, lambda aside: shard_files.write(aside, model, optimizer), end)
    if ranks.leads:
        _keep_newest(directory)
    return whole.final


def _write_beside(folder: Path, states: dict[str, Any]) -> None:
    """Writes what belongs beside shards, or beside what accelerate writes, into a folder."""
    (folder / shard_files.REGISTERED).unlink(missing_ok=True)
    with private_file(folder / shard_files.REGISTERED) as file:
        torch.save(states, file)


def _sign_states(folder: Path, write: Callable[[Any], object], sign: Callable[[int, bytes], bytes]) -> None:
    """Writes ``state.pt``, digests it meanwhile, and writes its pin."""
    with private_file(folder / STATE) as file:
        written = _Digesting(file)
        write(written)
    with private_file(folder / PIN) as file:
        file.write(sign(written.size, written.sha256.digest()))


def _keep_newest(directory: Path) -> None:
    for _, old in found(directory)[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)


class _Digesting:
    """A file that digests what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = 0
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes) -> int:
        count = self._file.write(data)
        self.sha256.update(data)
        self.size += count
        return count

    def flush(self) -> None:
        self._file.flush()


def restore(
    directory: Path, recorder: Recorder, model: nn.Module, optimizer: torch.optim.Optimizer, registered: Sequence[Any]
) -> PinRecord | None:
    """Loads the newest checkpoint of a resumed run, after the ledger has shown that it is not behind it.

    Guarantee: what is loaded is what this run saved, byte for byte, at the step and the place in the ledger that it is loaded
    for. Nothing is loaded before signature, past and digest were checked, and nothing was charged.

    Returns:
        The pin of the checkpoint, or None where there is none to load.

    Raises:
        ResumeRefused: checkpoints of another run, or a state that does not fit.
        PinRefused: a checkpoint that was changed, swapped with another, or is not whole.
        LedgerBehind, LedgerForked, LedgerWrongRun: the ledger does not contain the checkpoint's past.
    """
    told = recorder.ranks.first(lambda: _newest(directory, recorder))
    if not told:
        return None
    name, record = _heard(told)
    path = directory / name
    table = table_in(_state_head(path, record), path)
    try:
        if table is not None:
            with shard_files.verified(path, table, recorder.ranks) as own:
                beside = _beside(own)
                shard_files.read(own, beside["settings"], model, optimizer, recorder.ranks)
                saved_states = beside["registered"]
        else:
            state = _loaded(path, record)
            _require_settings(optimizer.state_dict(), state["optimizer"])
            values, moments = state["model"], state["optimizer"]
            if shard_files.lies_over_ranks(model):
                values, moments = shard_files.cut(model, optimizer, state)
            model.load_state_dict(values)
            optimizer.load_state_dict(moments)
            saved_states = state["registered"]
        for item, saved in zip(registered, saved_states, strict=True):
            item.load_state_dict(saved)
    except (KeyError, ValueError, RuntimeError) as error:
        raise ResumeRefused(
            "CHECKPOINT_MISFIT", f"the checkpoint {path} does not fit this model and optimizer ({error})"
        ) from error
    return record


def _state_head(path: Path, record: PinRecord) -> bytes:
    """Returns ``state.pt`` where it is a table, else its first byte; it was held against its pin."""
    with opened_state(path, record) as file:
        head = file.read(1)
        return head + file.read() if head == b"{" else head


def _beside(own: Path) -> dict[str, Any]:
    states: dict[str, Any] = torch.load(own / shard_files.REGISTERED, map_location="cpu", weights_only=True)
    return states


def _newest(directory: Path, recorder: Recorder) -> bytes:
    """Finds the newest checkpoint, holds its pin against the ledger, and returns what every rank must know of it."""
    available = found(directory)
    if not recorder.resuming:
        if available:
            raise ResumeRefused(
                "CHECKPOINTS_OF_ANOTHER_RUN",
                f"{directory} holds checkpoints, but this ledger is new; resume the old run, or use another directory",
            )
        return b""
    if not available:
        return b""
    path = available[-1][1]
    return _said(path.name, read_record(recorder.writer, path))


def _said(name: str, record: PinRecord) -> bytes:
    """Returns a pin that rank 0 verified, for the others."""
    pin = record.pin
    told = [name, pin.size, pin.root.hex(), pin.origin, pin.header_digest.hex(), record.step, record.attempt]
    noise = None if record.noise_sha256 is None else record.noise_sha256.hex()
    return json.dumps([*told, record.isolation, record.state_bytes, record.state_sha256.hex(), noise]).encode()


def _heard(told: bytes) -> tuple[str, PinRecord]:
    name, size, root, origin, header, step, attempt, isolation, length, digest, noise = json.loads(told)
    pin = Pin(origin, size, bytes.fromhex(root), bytes.fromhex(header))
    noise_digest = None if noise is None else bytes.fromhex(noise)
    return name, PinRecord(pin, step, attempt, isolation, length, bytes.fromhex(digest), noise_digest)


def pin_folder(
    folder: Path, step: int, sign: Callable[[int, bytes], bytes], registered: Sequence[Any], ranks: Ranks
) -> Path:
    """Pins what another library wrote into a folder: its files, and states beside them, under the ledger's key.

    All ranks call it, after each has written its files.

    Raises:
        StorageFailed: the disk is full or fails.
    """
    ranks.all(b"", "a state of accelerate is pinned")
    states = {"registered": [item.state_dict() for item in registered]}

    def pinned() -> bytes:
        try:
            for name in (STATE, PIN):
                (folder / name).unlink(missing_ok=True)
            _write_beside(folder, states)
            _sign_states(folder, lambda file: file.write(shard_files.table_of(folder)), sign)
            sync_directory(folder)
        except (OSError, RuntimeError) as error:
            raise not_written("the state", folder, error) from error
        return b""

    ranks.first(pinned)
    return folder


def open_folder(
    folder: Path, recorder: Recorder, load: Callable[[str], object], registered: Sequence[Any]
) -> PinRecord:
    """Verifies a folder that was pinned by `pin_folder`, lets ``load`` read it, and restores the states beside it.

    Guarantee: ``load`` reads a folder of our own with exactly the files that were pinned, and the ledger holds the past that
    the pin names.

    Raises:
        PinRefused, LedgerBehind, LedgerForked, LedgerWrongRun, ResumeRefused: as `restore`.
    """

    def told() -> bytes:
        if not recorder.resuming:
            raise ResumeRefused("STATE_OF_ANOTHER_RUN", f"{folder} is a state of a run that began, and this ledger is new")
        return _said(folder.name, open_record(recorder.writer, folder / PIN))

    _, record = _heard(recorder.ranks.first(told))
    table = table_in(_state_head(folder, record), folder)
    if table is None:
        raise PinRefused("PIN", f"{folder} is a checkpoint and no state of accelerate; leave state= out to go on from it")
    try:
        with shard_files.verified(folder, table, recorder.ranks) as own:
            load(str(own))
            for item, saved in zip(registered, _beside(own)["registered"], strict=True):
                item.load_state_dict(saved)
    except (KeyError, ValueError, RuntimeError) as error:
        raise ResumeRefused("CHECKPOINT_MISFIT", f"the state {folder} does not fit this run ({error})") from error
    return record


def _require_settings(own: dict[str, Any], saved: dict[str, Any]) -> None:
    """Refuses the state of an optimizer of another kind, which torch would load. Raises ValueError."""
    for group, other in zip(own["param_groups"], saved["param_groups"], strict=True):
        if group.keys() - {"initial_lr"} != other.keys() - {"initial_lr"}:
            raise ValueError(f"its optimizer has the settings {sorted(other)}, this one {sorted(group)}")


def load(path: Path, ledger: Ledger) -> tuple[PinRecord, dict[str, Any]]:
    """Reads a checkpoint back from its directory, if the ledger holds the past that its pin names.

    Raises:
        PinRefused: as `dptrain.record.pin.read_record` and `dptrain.record.pin.opened_state`.
        ResumeRefused: the states are those that were saved, and cannot be read here.
    """
    record = read_record(ledger, path)
    return record, _loaded(path, record)


def _loaded(path: Path, record: PinRecord) -> dict[str, Any]:
    """Returns the states of a checkpoint whose pin was verified."""
    try:
        with opened_state(path, record) as file:
            states: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
            return states
    except (OSError, ValueError, TypeError, RuntimeError, pickle.UnpicklingError) as error:
        raise ResumeRefused("CHECKPOINT_UNREADABLE", f"cannot read the checkpoint {path} ({error}); {HOW_ON}") from error
