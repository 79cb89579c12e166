"""The logical step: draw, microbatches, release, optimizer, each inside a window that the ledger has charged."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from dptrain.data.microbatch import Microbatch
from dptrain.engine.release import Phase
from dptrain.errors import NonFinite

if TYPE_CHECKING:
    from dptrain.engine.private_training import PrivateTraining


class Steps:
    """Exactly T logical steps, empty draws included; iterate once.

    Before the first step, the user's own loop runs a few probe microbatches: they look like any other, carry no charge and
    change nothing.
    """

    def __init__(self, engine: "PrivateTraining") -> None:
        self._engine = engine

    def __len__(self) -> int:
        return max(0, self._engine.policy.steps - self._engine.start_step)

    def __iter__(self) -> Iterator["LogicalStep"]:
        engine = self._engine
        with _progress(len(self), engine.show_progress) as advance:
            for number in range(engine.start_step + 1, engine.policy.steps + 1):
                yield LogicalStep(engine, number)
                engine.end_step(number)
                advance()
        engine.finish()


class LogicalStep:
    """One logical step: iterate it for its microbatches, then call ``optimizer.step()``."""

    def __init__(self, engine: "PrivateTraining", number: int) -> None:
        self._engine = engine
        self.number = number

    def __iter__(self) -> Iterator[Microbatch]:
        engine = self._engine
        engine.gradients.require(Phase.IDLE, f"step {self.number} was started")
        engine.check()
        if not engine.begun:
            yield from engine.probe.run()
            engine.probe.began(self.number)
            engine.begin()
        elif engine.probe.due(self.number, engine.policy.epoch_steps):
            yield from engine.probe.again()
        chosen = engine.begin_step(self.number)
        for planned in chosen:
            with engine.microbatch(planned, self.number) as rows:
                yield rows
                engine.require_consumed(self.number)
        engine.release(self.number)


def check_parameters(tensors: Sequence[tuple[str, torch.Tensor]], step: int) -> None:
    """Refuses to go on from parameters that are not finite; they are private releases, so this reveals nothing more."""
    for name, parameter in tensors:
        if not bool(torch.isfinite(parameter).all()):
            raise NonFinite(
                "PARAMETER_NOT_FINITE",
                f"parameter {name!r} is not finite after step {step}: the update diverged; lower the learning rate, and resume "
                "from the last checkpoint (steps taken since are charged)",
            )


@contextmanager
def _progress(total: int, shown: bool | None) -> Iterator[Callable[[], None]]:
    """A progress bar on standard error, by default on a terminal only; it shows public numbers."""
    if not (sys.stderr.isatty() if shown is None else shown):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("private training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("steps", total=total)
        yield lambda: bar.advance(task)
