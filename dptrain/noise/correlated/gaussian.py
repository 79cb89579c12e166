"""Adds Gaussian noise that is correlated between steps: row t of s C^-1 Z, on the integer lattice of independent noise.

A strategy is scaled to a largest column norm of 1 before its noise is: the scheduled deviation s then means for one occurrence
what it means with independent noise, and a contribution that may take part more often pays by the sensitivity of the strategy.

Clipped sums are rounded to the lattice, and so is the noise: what is released is a rounding of g_t + s (C^-1 Z)_t, and the
noise is a function of Z alone. So the law is that of rounding the ideal release row by row, whatever the strategy
(docs/mechanism, Theorem 2).
"""

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch

from dptrain.noise.correlated.recurrences import BLOCK, Recurrence, recurrence_of
from dptrain.noise.correlated.toeplitz import inverse
from dptrain.noise.keystream import KeyStream
from dptrain.noise.lattice import LatticeGaussian
from dptrain.noise.mechanism import Step
from dptrain.noise.normals import AT_A_TIME
from ledger.accountants.correlated import BandedInverse, Dense, Strategy, Toeplitz
from ledger.accountants.correlated.strategies import CODE, require
from ledger.accountants.table import LATTICE_BITS
from ledger.errors import AccountantError

MOST_AMPLIFIED: Final = 2.0**14
"""Largest deviation of a step's noise in scheduled deviations: beyond, the lattice would end within reach of the noise."""

_SCALE: Final = 2.0**LATTICE_BITS
_FAILED: Final = -1
_HALF: Final = "a release failed half-way, so that the buffers are those of no step; go on from an earlier state"


@dataclass(eq=False)
class Kept:
    """Keeps what the noise of later steps is made of: secret, as with the releases it tells the last sums.

    Attributes:
        step: steps released so far, by tensor and place in it. buffers: float64, shape (buffers, coordinates), for each of
            them.
        streams: of a dense strategy, from which step on the normals are those of which stream; the last is that of the attempt.
        loaded: the step that a state was loaded of, 0 for none. saved: its buffers, until the parts of the next step have taken
            theirs: these may be cut otherwise, where another number of ranks goes on.
    """

    step: dict[tuple[int, int], int] = field(default_factory=dict)
    buffers: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict, repr=False)
    streams: list[tuple[int, KeyStream]] = field(default_factory=list, repr=False)
    loaded: int = 0
    saved: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict, repr=False)


class CorrelatedGaussian(LatticeGaussian):
    """Adds row t of s C^-1 Z to the clipped sum of step t + 1, for a strategy C of a number of steps.

    Guarantee: what :meth:`release` adds to coordinate ``o`` of a tensor is ``gamma`` times the rounded row of C^-1 Z, of
    normals Z that are a function of (key, step, tensor, o) alone, each the only one of its address; bits do not depend on the
    parts in which a tensor comes. Steps are released in order, each once, and none behind the last that the strategy is made
    for.

    Args:
        stream: of the normals. strategy: C. steps: of the run.

    Raises:
        AccountantError: code STRATEGY, a strategy of fewer steps, or one whose noise would leave the lattice.
    """

    def __init__(self, stream: KeyStream, strategy: Strategy, steps: int) -> None:
        super().__init__(stream, 2 * AT_A_TIME)  # normals and buffers of a turn stay in the caches of a core
        self.strategy, self.steps = strategy, steps
        self.norm = checked_norm(strategy, steps)
        """Largest column norm: what C is divided by. Sensitivities are divided by this very number."""
        dense = isinstance(strategy, Dense)
        self._rows: np.ndarray | None = strategy.inverted if isinstance(strategy, Dense) else None
        self._recurrence: Recurrence | None = None if dense else recurrence_of(strategy, steps)
        self._turn = threading.Lock()
        self._now: torch.Tensor | None = None
        self._streams: list[tuple[int, KeyStream]] = []

    @property
    def buffers(self) -> int:
        """Returns float64 numbers that are kept for every coordinate."""
        return 0 if self._recurrence is None else self._recurrence.buffers

    def init(self, shapes: Sequence[torch.Size]) -> Any:
        """Returns what is known before the first step: nothing. Buffers are made where a part of a tensor is released."""
        return Kept(streams=[(0, self._stream)])

    def state_dict(self, state: Any) -> Mapping[str, torch.Tensor]:
        """Returns steps and buffers by tensor and place, and of a dense strategy its keys: to be sealed as keys are.

        Raises:
            ValueError: a release failed half-way.
        """
        kept: Kept = state
        if _FAILED in kept.step.values():
            raise ValueError(_HALF)
        keys = {
            f"key {begin} {stream.attempt}": torch.frombuffer(bytearray(stream.master), dtype=torch.uint8)
            for begin, stream in (kept.streams if self._rows is not None else [])
        }
        buffers, steps = (kept.buffers, kept.step) if kept.step else (kept.saved, dict.fromkeys(kept.saved, kept.loaded))
        told = keys | {f"step {lane} {offset}": torch.tensor(step) for (lane, offset), step in steps.items()}
        return told | {f"buffers {lane} {offset}": held.clone() for (lane, offset), held in buffers.items()}

    def load_state_dict(self, tensors: Mapping[str, torch.Tensor]) -> Kept:
        """Returns the state that `state_dict` gave, to go on with under the stream of this attempt; of several ranks all that
        they gave, or what this one has.

        Raises:
            ValueError: a tensor is missing, is of another form, or is no part of such a state.
        """
        kept, keys = Kept(), []
        for name, tensor in tensors.items():
            kind, *place = name.split(" ")
            if kind not in ("step", "buffers", "key") or len(place) != 2 or not all(part.isdigit() for part in place):
                raise ValueError(f"{name!r} is no part of the state of correlated noise")
            key = int(place[0]), int(place[1])
            if kind == "step":
                kept.step[key] = int(tensor)
            elif kind == "key":
                keys.append((*key, bytes(tensor.tolist())))
            elif tensor.dtype is not torch.float64 or tensor.ndim != 2 or len(tensor) != self.buffers:
                raise ValueError(
                    f"{name} has {tensor.dtype} and shape {tuple(tensor.shape)}, expected float64 and {self.buffers} buffers"
                )
            else:
                kept.buffers[key] = tensor.clone()
        if kept.step.keys() != kept.buffers.keys() or len(set(kept.step.values())) > 1:
            raise ValueError("the state of correlated noise has steps and buffers of different tensors or steps")
        now = max(kept.step.values(), default=0)
        if now < 0:
            raise ValueError("the state of correlated noise is that of a release which failed half-way")
        kept.streams = [
            (begin, KeyStream(self._stream.purpose, self._stream.run, attempt, master))
            for begin, attempt, master in sorted(keys)
            if begin < now
        ]
        if self._rows is not None and now and [begin for begin, _ in kept.streams][:1] != [0]:
            raise ValueError("the state of a dense strategy lacks the keys of its steps")
        kept.streams.append((now, self._stream))
        kept.loaded, kept.saved = now, kept.buffers
        kept.buffers, kept.step = {}, {}
        return kept

    def release(self, clipped_sum: torch.Tensor, state: Any, step: Step) -> torch.Tensor:
        """Turns a clipped sum into its private release, in place; see `dptrain.noise.mechanism.Mechanism`.

        Several threads take their turns. A release that raises leaves a state that is good for nothing.

        Raises:
            ValueError: as `OnHost.release_`; several draws in a step; a step out of turn, or behind the last.
        """
        if step.draws != 1:
            raise ValueError(f"correlated noise is drawn once per step, got {step.draws} draws")
        kept: Kept = state
        place = step.lane, step.offset
        with self._turn:
            if kept.loaded and step.number == kept.loaded + 1 and place not in kept.step:
                kept.buffers[place], kept.step[place] = _cut(kept.saved, place, clipped_sum.numel()), kept.loaded
            elif step.number == kept.loaded + 2:
                kept.saved = {}
            taken = kept.step.get(place, 0)
            if taken == _FAILED:
                raise ValueError(_HALF)
            if step.number != taken + 1:
                told = f"expected step {taken + 1}: its noise depends on those before"
                raise ValueError(f"step {step.number} is out of turn, {told}")
            if step.number > self.steps:
                raise ValueError(f"the strategy is made for {self.steps} steps, and this is step {step.number}")
            if place not in kept.buffers:
                kept.buffers[place] = torch.zeros(self.buffers, clipped_sum.numel(), dtype=torch.float64)
            self._now, self._streams = kept.buffers[place], kept.streams
            if self._now.shape[1] != clipped_sum.numel():
                raise ValueError(f"a part of {self._now.shape[1]} coordinates comes back with {clipped_sum.numel()}")
            kept.step[place] = _FAILED  # until it is done
            try:
                released = super().release(clipped_sum, None, step)
            finally:
                self._now = None
            kept.step[place] = step.number
        return released

    def noise(self, step: int, lane: int, start: int, count: int, draws: int) -> np.ndarray:
        """Returns the normals that the noise of a chunk is made of in this step: of a dense strategy, its whole row."""
        if self._rows is None:
            return self.gaussian(step, lane, start, count, draws).numpy()
        total, row = np.zeros(count), self._rows[step - 1]
        for place in np.flatnonzero(row).tolist():
            stream = next(stream for begin, stream in reversed(self._streams) if begin <= place)
            drawn = self.normals(place + 1, lane, start, count, stream).numpy()
            drawn *= row[place]
            total += drawn
        return total

    def placed(self, noise: np.ndarray, step: int, first: int) -> np.ndarray:
        """Returns the correlated noise of some coordinates in lattice steps, rounded."""
        if self._recurrence is not None:
            assert self._now is not None
            self._recurrence.next(step - 1, noise, self._now.numpy()[:, first : first + len(noise)])
        noise *= _SCALE * self.norm
        return np.rint(noise, out=noise)


def _cut(saved: Mapping[tuple[int, int], torch.Tensor], place: tuple[int, int], count: int) -> torch.Tensor:
    """Returns the buffers of a part of a tensor, of those of the parts in which it came before.

    Raises:
        ValueError: they do not have all of it.
    """
    lane, offset = place
    found, at, end = [], offset, offset + count
    for (own, begin), buffers in sorted(saved.items(), key=lambda item: item[0]):
        behind = min(begin + buffers.shape[1], end)
        if own == lane and begin <= at < behind:
            found.append(buffers[:, at - begin : behind - begin])
            at = behind
    if at != end:
        raise ValueError(f"the state of correlated noise has not all of coordinates {offset} to {end} of tensor {lane}")
    if len(found) == 1 and found[0].is_contiguous():
        return found[0]
    return torch.cat(found, dim=1)


def checked_norm(strategy: Strategy, steps: int) -> float:
    """Returns the largest column norm of a strategy that noise of some steps can be made of.

    Raises:
        AccountantError: code STRATEGY, a strategy of fewer steps, one whose noise would leave the lattice, or a dense one whose
            inverse is not known so well as its sensitivity says.
    """
    require(strategy, steps)
    if isinstance(strategy, Dense) and not strategy.known_slack(steps) <= strategy.slack(steps):
        told = f"its inverse in float64 is off by {strategy.known_slack(steps):.3g}, and {strategy.slack(steps):.3g} counts"
        raise AccountantError(CODE, f"the strategy cannot be turned over so well as its sensitivity says: {told}")
    norm = math.sqrt(float(strategy.norms_squared(steps).max()))
    grown = norm * amplified(strategy, steps)
    if not grown <= MOST_AMPLIFIED:
        told = f"a step's noise would have {grown:.3g} scheduled deviations, at most {MOST_AMPLIFIED:g}"
        raise AccountantError(CODE, f"{told}; take a strategy whose inverse has smaller rows")
    return norm


def amplified(strategy: Strategy, steps: int) -> float:
    """Returns the largest norm of a row of C^-1 over some steps, of columns that are scaled one by one a bound of it."""
    if isinstance(strategy, Dense):
        return float(np.sqrt(np.square(strategy.inverted[:steps, :steps]).sum(axis=1)).max())
    if isinstance(strategy, BandedInverse):
        return float(np.linalg.norm(strategy.coefficients))
    column = strategy.common(steps)
    if column is not None:
        return float(np.linalg.norm(inverse(np.trim_zeros(column, "b"), steps)))
    if isinstance(strategy, Toeplitz):
        return float(np.linalg.norm(inverse(strategy.coefficients, steps)) / strategy.scales(steps).min())
    recurrence = recurrence_of(strategy, steps)
    rows = np.zeros(steps)
    for begin in range(0, steps, BLOCK):  # every column is one of its own
        units = np.arange(begin, min(begin + BLOCK, steps))
        held = np.zeros((recurrence.buffers, len(units)))
        for t in range(steps):
            values = np.where(units == t, 1.0, 0.0)
            recurrence.next(t, values, held)
            rows[t] += values @ values
    return float(np.sqrt(rows.max()))
