"""Writes the public numbers of a run while it goes on: a line a step in a file, and the same numbers to any logger.

Nothing that follows from private rows is among them. Where draws are secret, no time is, and what is written comes at moments
that the ledger tells too: when a window is settled, and when a checkpoint is saved.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attest.schema.cards import card_of
from dptrain.errors import ConfigError
from dptrain.record.earlier_runs import Where

Line = dict[str, Any]
"""Public numbers of a step by their names, such as ``step`` and ``epsilon/CLASS``; and the run that they are of."""

Send = Callable[[Line], object]
"""Takes the numbers of a step."""


@dataclass(frozen=True)
class Metrics:
    """Says where the public numbers of a run go, step by step.

    Attributes:
        path: file of JSON lines, one a step; made if it is not there. None for no file.
        every: steps that it divides are written, and the last one of the run.
        send: called with the numbers of each of these steps, for TensorBoard, W&B, or any other logger.

    Raises:
        ConfigError: code METRICS, neither a file nor a function, or no number of steps.
    """

    path: Where | None = None
    every: int = 1
    send: Send | None = None

    _repr_html_ = card_of

    def __post_init__(self) -> None:
        if not (self.path is None or isinstance(self.path, str | os.PathLike)):
            raise ConfigError("METRICS", f"metrics is {self.path!r}, expected a path, a function, or dptrain.Metrics")
        if self.path is None and not callable(self.send):
            raise ConfigError("METRICS", f"metrics has no path, and send is {self.send!r}; give one of them at least")
        if type(self.every) is not int or self.every < 1:
            raise ConfigError("METRICS", f"metrics.every is {self.every!r}, expected 1 step or more")

    @classmethod
    def of(cls, given: "Metrics | Where | Send | None") -> "Metrics | None":
        """Returns the wishes of a user who named a file or a function alone; those that are given stay."""
        if given is None or isinstance(given, Metrics):
            return given
        return cls(send=given) if callable(given) else cls(given)


class MetricsLog:
    """Keeps the lines of a run in agreement with its ledger.

    Guarantee: a step stands in the file once. A line is written whole, behind the charge of its step and before a checkpoint
    that holds the step. A resumed run cuts off the lines behind the step from which it goes on. A file of anything else is
    refused before a charge, and is left as it was.

    Args:
        wanted: where numbers go; None for nowhere. steps: of the whole run.
    """

    def __init__(self, wanted: Metrics | None, steps: int) -> None:
        self._wanted = wanted
        self._steps = steps
        self._path = None if wanted is None or wanted.path is None else Path(wanted.path)
        self._noted = self._end = 0
        self._unwritten: list[Line] = []
        self._untold: list[Line] = []

    def require(self, run: str | None) -> None:
        """Refuses a file that holds lines of something else.

        Args:
            run: name of the run, as its lines have it; None before a ledger is made.

        Raises:
            ConfigError: code METRICS, with the number of the line.
        """
        for _ in self._kept(run):
            pass

    def begin(self, run: str, step: int) -> None:
        """Cuts the file to the steps of this run up to the one behind which it goes on. Raises as `require`."""
        self._noted = step
        if self._path is None:
            return
        self._end = sum(len(line) for line, number in self._kept(run) if number <= step)
        if len(self._bytes()) > self._end:
            _write(self._path, self._end, b"")

    def due(self, step: int) -> bool:
        """Tells whether the numbers of a step are wanted and not noted yet."""
        wanted = self._wanted
        return wanted is not None and step > self._noted and (step % wanted.every == 0 or step == self._steps)

    def note(self, line: Line) -> None:
        """Takes the numbers of a step that is done, to be written later."""
        if self._path is not None:
            self._unwritten.append(line)
        self._untold.append(line)
        self._noted = line["step"]

    def write(self) -> None:
        """Writes to the disk what was noted; where that fails, warns, keeps it for the next time, and leaves no half a line."""
        if self._path is None or not self._unwritten:
            return
        data = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in self._unwritten)
        try:
            end = _write(self._path, self._end, data)
        except OSError as error:
            warnings.warn(f"public numbers could not be written to {self._path} ({error}); the run goes on", stacklevel=2)
        else:
            self._end, self._unwritten = end, []

    def tell(self) -> None:
        """Sends what was noted to the user's function, whose exceptions end the loop as any of its own do."""
        while self._untold:
            line = self._untold.pop(0)
            if self._wanted is not None and self._wanted.send is not None:
                self._wanted.send(dict(line))

    def _bytes(self) -> bytes:
        try:
            return b"" if self._path is None else self._path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise ConfigError("METRICS", f"cannot read {self._path}: {error.strerror or error}; name another file") from error

    def _kept(self, run: str | None) -> Iterator[tuple[bytes, int]]:
        """Yields whole lines and their steps; what an end of power left of the last line is none.

        Raises:
            ConfigError: code METRICS, a line that is none of this run, or out of order.
        """
        last = 0
        for place, line in enumerate(self._bytes().splitlines(keepends=True), start=1):
            if not line.endswith(b"\n"):
                return
            found = _read(line)
            number = found.get("step")
            if run is None or found.get("run") != run or type(number) is not int or number <= last:
                raise ConfigError(
                    "METRICS",
                    f"line {place} of {self._path} is no line of this run; name another file, or move this one away",
                )
            last = number
            yield line, number


def flat(of_classes: Mapping[str, Mapping[str, float | None]]) -> dict[str, float]:
    """Returns numbers by ``figure/class`` from figures by class, without those that are not there.

    Args:
        of_classes: by figure, the number of each class; None for a public class, of which nothing is promised.
    """
    return {f"{name}/{of}": value for name, row in of_classes.items() for of, value in row.items() if value is not None}


def by_group(rates: Sequence[float]) -> dict[str, float]:
    """Returns learning rates by name: one where all groups of an optimizer have it in common, else that of each group."""
    if len(set(rates)) <= 1:
        return {"learning_rate": rates[0]} if rates else {}
    return {f"learning_rate/{place}": rate for place, rate in enumerate(rates)}


def _write(path: Path, end: int, data: bytes) -> int:
    """Writes bytes, durably, where those that are known to be whole end; what lies behind, of a write that failed, goes.

    Returns:
        Where they end now.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "wb", buffering=0) as stream:
        end = min(end, stream.seek(0, os.SEEK_END))
        stream.truncate(end)
        stream.seek(end)
        try:
            left = memoryview(data)
            while left:
                left = left[stream.write(left) :]
            os.fsync(stream.fileno())
        except OSError:
            stream.truncate(end)
            raise
    return end + len(data)


def _read(line: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
