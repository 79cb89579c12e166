"""Keeps beside the ledger what the noise of later steps is made of, and takes it up again when a run is resumed.

Noise that is correlated between steps has a state: noise of the last steps, or what the next one is made of. With the releases
it tells sums of gradients as they were before noise, of as many steps as it has buffers. So it lies where keys lie, for its
owner alone, and never in a checkpoint, which others may be given. The pin of the checkpoint of that step has its digest, under
the ledger's key. Every rank writes what it has, and another number of ranks reads it too.
"""

import hashlib
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import torch

from dptrain.errors import ResumeRefused
from dptrain.parallel.ranks import Ranks
from dptrain.record.folders import Whole, private_file
from dptrain.record.pin import STATE, PinRecord, folder_name, found, noise_table
from dptrain.record.shard_files import table_of, verified

KEEP: Final = 2
"""States kept, as many as checkpoints; older ones are removed after a newer one is durable."""


class NoiseStates:
    """Writes and reads the states of a run's noise.

    Args:
        directory: beside the ledger; made for its owner alone with the first state. correlated: whether steps share noise.
    """

    def __init__(self, directory: Path, ranks: Ranks, *, correlated: bool) -> None:
        self._directory, self._ranks, self._correlated = directory, ranks, correlated

    def save(self, step: int, tensors: Mapping[str, torch.Tensor], pinned: Collection[int] = ()) -> bytes:
        """Writes the state after a step durably, and keeps ``KEEP``: it and the newest others; every rank calls it.

        Args:
            tensors: what this rank has. pinned: steps of checkpoints that are there, whose states stay besides.

        Returns:
            SHA-256 of the table of its files, which the pin of the step's checkpoint has to name.

        Raises:
            StorageFailed: the disk is full or fails; nothing half-written stays under the name of a step.
        """
        whole = Whole(self._directory, step, "the state of the noise")

        def write(aside: Path) -> None:
            with private_file(aside / self._file) as file:
                torch.save(dict(tensors), file)

        def end(aside: Path) -> bytes:
            table = table_of(aside, whole.final.name)
            with private_file(aside / STATE) as file:
                file.write(table)
            return hashlib.sha256(table).digest()

        digest = whole.together(self._ranks, write, end)
        if self._ranks.leads:  # of a later step too, where a run went back
            others = [path for number, path in found(self._directory) if path != whole.final and number not in pinned]
            for old in others[: 1 - KEEP]:
                shutil.rmtree(old, ignore_errors=True)
        return digest

    def restored(self, pin: PinRecord | None) -> dict[str, torch.Tensor] | None:
        """Reads the state after the step of the checkpoint that a run goes on from; every rank calls it.

        Guarantee: what is read are the files that the pin names, byte for byte; none was parsed before all were checked.

        Returns:
            What this rank has, where as many ranks wrote it; else what all had. None where there is none.

        Raises:
            PinRefused: code NOISE_STATE, there is none, or another one. STATE_CHANGED, STATE_MISSING: its files are others.
            ResumeRefused: code NOISE_STATE, it cannot be read, or the pin names none although steps share noise.
        """
        if pin is None:
            return None
        if pin.noise_sha256 is None:
            if not self._correlated:
                return None
            raise ResumeRefused(
                "NOISE_STATE",
                f"the pin of the checkpoint of step {pin.step} names no state of the noise, and that of the next step is made "
                "of it; go on from another checkpoint",
            )
        folder = self._directory / folder_name(pin.step)
        table = noise_table(folder, pin.noise_sha256)
        with verified(folder, table, self._ranks) as own:
            names = [self._file] if len(table) == self._ranks.size else sorted(table)
            held: dict[str, torch.Tensor] = {}
            try:
                for name in names:
                    held |= torch.load(own / name, map_location="cpu", weights_only=True)
            except (OSError, ValueError, RuntimeError) as error:
                raise ResumeRefused("NOISE_STATE", f"cannot read the state of the noise in {folder} ({error})") from error
            return held

    @property
    def _file(self) -> str:
        return f"rank-{self._ranks.rank}.pt"
