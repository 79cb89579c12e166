"""The logical step: draw, microbatches, release, optimizer, each inside a window that the ledger has charged."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from dptrain.engine.release import Phase
from dptrain.errors import NonFinite, StepOrder
from dptrain.feeding import spread
from dptrain.microbatch import Microbatch
from dptrain.routing.head_probe import HeadProbe
from dptrain.routing.probes import ProbeRecord, check_buffers, check_exact, check_order, check_replacement, snapshot_buffers

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
        if not engine.probed:
            yield from engine.probe.run()
            engine.probed = True
        chosen = engine.begin_step(self.number)
        for done, planned in enumerate(chosen):
            with engine.drawing.randomness(self.number, planned, len(chosen) - done):
                rows = engine.arm(planned)
                yield rows
                _require_consumed(engine, self.number)
        engine.release(self.number)


def _require_consumed(engine: "PrivateTraining", number: int) -> None:
    """Raises if the loop moved on without a backward pass for its microbatch."""
    if engine.current is not None:
        raise StepOrder(
            "BACKWARD_MISSING",
            f"a microbatch of step {number} was not given to private.backward(); every microbatch must be, or its "
            "contributions would be charged and unused",
        )


class Probe:
    """Runs the start-up probes through the user's own loss, as a few extra microbatches."""

    def __init__(self, engine: "PrivateTraining") -> None:
        self._engine = engine
        self.active = False
        self._norms: torch.Tensor | None = None
        self._losses: torch.Tensor | None = None
        self._ran: set[str] = set()

    def run(self) -> Iterator[Microbatch]:
        """Yields the probe microbatches; raises if a probe refuses the model."""
        engine = self._engine
        slots = spread(len(engine.pool), 5)
        if not slots:
            return
        base, fresh = slots[:3], slots[3:]
        swaps: list[
            tuple[int, list[int]]
        ] = []  # every row once: what is shared may be one row's alone (the largest value, say)
        for row in (1, 0, 2)[: len(base)] if len(base) > 1 else ():
            other = fresh.pop() if fresh else base[(row + 1) % len(base)]
            swaps.append((row, [*base[:row], other, *base[row + 1 :]]))
        before = snapshot_buffers(engine.model)
        rewind = _generators(engine.device)
        records = []
        for chosen in (base, *(swapped for _, swapped in swaps)):
            rewind()
            yield from self._one(chosen, slots)
            assert self._losses is not None and self._norms is not None
            records.append(ProbeRecord(self._losses, self._norms))
        check_buffers(engine.model, before)
        engine.router.verified = frozenset(self._ran)
        for (row, _), record in zip(swaps, records[1:], strict=True):
            exact = engine.policy.exactness == "certified" and engine.device.type == "cpu"
            check_replacement(records[0], record, row, engine.router.precision, exact=exact)

    def _one(self, slots: Sequence[int], among: Sequence[int]) -> Iterator[Microbatch]:
        """One probe microbatch, with parameters in autograd so that its own gradient can be compared."""
        engine = self._engine
        rows = engine.feeder.probe(slots, among)
        everything = torch.ones(len(slots), len(engine.schedule.blocks), dtype=torch.bool)
        parameters = [tensor.parameter for _, tensor in engine.router.tensors]
        for parameter in parameters:
            parameter.requires_grad_(True)
        handles = [p.register_post_accumulate_grad_hook(_drop_grad) for p in parameters]
        engine.router.arm(rows.contributions, rows.examples, everything)
        self._heads = HeadProbe(engine.model, engine.schedule)
        self.active = True
        engine.current = rows
        try:
            yield rows
            _require_consumed(engine, 0)
        finally:
            self.active = False
            self._heads.close()
            engine.router.disarm()
            for parameter in parameters:
                parameter.requires_grad_(False)
                parameter.grad = None
            for handle in handles:
                handle.remove()

    def backward(self, losses: torch.Tensor, rows: Microbatch) -> None:
        """What ``private.backward`` does inside a probe microbatch: checks, and leaves no gradient."""
        engine = self._engine
        engine.router.require_losses(losses)
        self._ran.update(engine.router.order)
        check_order(engine.router.order, engine.schedule.stack, engine.router)
        self._heads.check()
        half = torch.is_autocast_enabled("cpu") or engine.mixed_precision
        self._norms = check_exact(engine.router, losses, rows.weight, half)
        weighted = losses.detach().double().cpu() * rows.weight
        self._losses = weighted.view(rows.contributions, rows.examples).sum(1)


def _generators(device: torch.device) -> Callable[[], None]:
    """Puts torch's generators back to where they stand now, so that probes see the same dropout."""
    state = torch.get_rng_state()
    on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def rewind() -> None:
        torch.set_rng_state(state)
        if on_device is not None:
            torch.cuda.set_rng_state(on_device, device)

    return rewind


def _drop_grad(parameter: torch.Tensor) -> None:
    """Should the loop run a backward pass of its own on a probe microbatch, its gradient is gone before anyone sees it."""
    parameter.grad = None


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
