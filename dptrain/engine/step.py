"""The logical step: charge, draw, one microbatch after the other, release, optimizer, settle.

Training, the measurement of a plan and the comparison without privacy run this loop. They differ in its `Parts`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Generic, TypeVar

import torch

from attest.schema.cards import card
from dptrain.blocks.forwards import Forwards, Reads
from dptrain.blocks.shards import local
from dptrain.data.microbatch import Microbatch
from dptrain.errors import NonFinite, StepOrder
from dptrain.gradients import matmul
from dptrain.parallel.ranks import ALONE, Ranks
from dptrain.progress import progress_bar
from dptrain.routing import Router
from dptrain.sandbox import Loop, Sandbox
from ledger.leaves.numerics import FASTEST

Planned = TypeVar("Planned")
"""Plan of a microbatch, before anything of it is read."""


class Parts(ABC, Generic[Planned]):
    """Does what a step is made of, in this order; where nothing is charged or recorded, these methods do nothing.

    So a null recorder draws, loads and releases alone: the measurement of a plan, and the comparison without privacy.
    """

    def ready(self, number: int) -> Iterator[Microbatch]:
        """Checks that a step may begin, and yields the microbatches of probes that are due before it."""
        yield from ()

    def charge(self, number: int) -> None:
        """Durably charges the window of a step, unless it is charged already."""

    @abstractmethod
    def draw(self, number: int) -> Sequence[Planned]:
        """Samples the contributions of a step, and plans its microbatches."""

    @abstractmethod
    def load(self, planned: Planned, number: int) -> AbstractContextManager[Microbatch]:
        """Reads, collates and arms a microbatch; at its end the backward pass must be over."""

    @abstractmethod
    def release(self, number: int) -> None:
        """Turns the sums of a step into gradients in ``p.grad``."""

    def settle(self, number: int) -> None:
        """Settles a step that the optimizer has taken."""

    def finish(self) -> None:
        """Ends the run."""

    def told(self) -> str:
        """Says in a few words how it stands; empty where there is nothing to say."""
        return ""


class LogicalStep(Generic[Planned]):
    """One logical step: iterate it for its microbatches, then call ``optimizer.step()``.

    Attributes:
        number: from 1. begun: whether it was ready, so that it may be charged and drawn.
    """

    def __init__(self, parts: Parts[Planned], number: int) -> None:
        self._parts = parts
        self.number = number
        self.begun = False

    def __iter__(self) -> Iterator[Microbatch]:
        parts, number = self._parts, self.number
        yield from parts.ready(number)
        self.begun = True
        parts.charge(number)
        for planned in parts.draw(number):
            with parts.load(planned, number) as rows:
                yield rows  # the loop runs forward, and `backward`: route, clip, accumulate
        parts.release(number)


class Steps(Generic[Planned]):
    """Exactly T logical steps, empty draws included. A loop that was left between two steps, or behind the optimizer's, is gone
    on with by another one over these steps.

    Before the first step, the user's own loop runs a few probe microbatches: they look like any other, carry no charge and
    change nothing.

    Args:
        parts: what a step does. first: number of the first step. last: that of the last. title: of the progress bar.
        shown: whether there is a bar on a terminal.
    """

    def __init__(self, parts: Parts[Planned], first: int, last: int, title: str, shown: bool = True) -> None:
        self._parts = parts
        self._numbers = range(first, last + 1)
        self._title = title
        self._shown = shown
        self._left: LogicalStep[Planned] | None = None
        self._over = False

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: object) -> LogicalStep[Planned]:
        """Refuses to be a data set: a step is charged when it begins, and begins in its order."""
        raise StepOrder(
            "STEPS_IN_ORDER",
            "steps are taken one after the other, by `for step in steps`, and cannot be picked as items of a data set; a "
            "Trainer takes the run itself: dptrain.integrations.transformers.PrivateTrainer(private=...)",
        )

    def __iter__(self) -> Iterator[LogicalStep[Planned]]:
        """Yields the steps that are to be taken yet.

        Raises:
            StepOrder: code STEP_LEFT, an earlier loop was left inside a step; STEPS_OVER, all were taken.
        """
        numbers = self._to_take()
        with progress_bar(self._title, lambda: len(self), shown=self._shown, told=self._parts.told) as progress:
            for number in numbers:
                self._left = step = LogicalStep(self._parts, number)
                yield step
                if self._left is not step:
                    raise StepOrder(
                        "STEPS_IN_ORDER", f"two loops run over these steps, and the other went on from step {number}; keep one"
                    )
                self._settle(number)  # the loop called optimizer.step()
                if progress is not None:
                    progress(number - self._numbers.start + 1)
        self._over = True
        self.finish()

    def _to_take(self) -> range:
        """Settles a step behind which a loop was left, and returns the numbers that come."""
        if self._over:
            raise StepOrder(
                "STEPS_OVER",
                f"all steps of this {self._title} were taken, and it has ended; another run takes another ledger or directory, "
                "and a prepare() of its own",
            )
        left = self._left
        if left is not None and left.begun:
            try:
                self._settle(left.number)
            except StepOrder as error:
                if error.code != "STEP_ORDER":
                    raise
                raise StepOrder(
                    "STEP_LEFT",
                    f"an earlier loop was left inside step {left.number}, which cannot be gone on with here; open the run "
                    "again (in a notebook: run the cells with open(..., resume=True) or own(), with prepare(), and with the "
                    f"loop), and it goes on behind step {left.number - 1}",
                ) from error
        start = self._numbers.start if self._left is None else self._left.number
        return range(start, self._numbers.stop)

    def _settle(self, number: int) -> None:
        """Settles a step; the next one is then the one that is left."""
        self._parts.settle(number)
        self._left = LogicalStep(self._parts, number + 1)

    def __repr__(self) -> str:
        """Says what these are, and which comes next."""
        return f"<Steps: {self._title}, {self._stands()}>"

    def _repr_html_(self) -> str:
        return card("Steps", [(self._title, self._stands())])

    def _stands(self) -> str:
        coming, last = self._numbers.start if self._left is None else self._left.number, self._numbers.stop - 1
        return f"{last} steps, over" if self._over else f"step {coming} of {last} is next" if coming <= last else "at its end"

    def finish(self) -> None:
        """Closes the ledger and destroys every key and what was sealed; the loop over the steps ends so.

        Called earlier, it ends the run there: a window that is still open is settled with the steps that were released. Before
        the first step of a new run there is nothing to end, and once it has ended, nothing more.
        """
        self._parts.finish()


class UnderWay:
    """Holds the microbatch that is under way: armed, and in the sandbox until its backward pass is over."""

    def __init__(
        self,
        sandbox: Sandbox,
        router: Router,
        forwards: Forwards,
        rest: Callable[[], None] = lambda: None,
        products: str = FASTEST,
    ) -> None:
        """Takes what a microbatch runs in.

        Args:
            rest: brings the parameters back to where they lie between microbatches, where a wrapper moves them. products: on
                whose kernels it computes, as of `Microbatches`.
        """
        self._products = products
        self._sandbox = sandbox
        self._router = router
        self._forwards = forwards
        self._rest = rest
        self._entered = ExitStack()
        self.rows: Microbatch | None = None

    @contextmanager
    def enter(
        self,
        rows: Microbatch,
        step: int,
        permitted_NG: torch.Tensor,
        reach: frozenset[int] | None = None,
        reads: Reads = None,
        holding: matmul.Holding | None = None,
        **options: Any,
    ) -> Iterator[Microbatch]:
        """Arms a microbatch and runs it in the sandbox.

        Guarantee: from here until its backward pass is over, recomputation included, no module of an adapter runs that is not
        among `reads`.

        Args:
            step: its number; 0 in the probes. permitted_NG, reach: as for `Router.arm`. reads: adapters that its forward reads;
                None for the whole model. holding: what holds its products to torch's, in probes. options: of `Sandbox.enter`.

        Raises:
            StepOrder: code BACKWARD_MISSING, the loop moved on without a backward pass.
        """
        loop = Loop.around(LogicalStep.__iter__.__code__)
        self._rest()
        with ExitStack() as self._entered:
            self._entered.enter_context(self._forwards.reading(reads))
            matmul.begin(self._entered, self._products, holding)
            self._entered.callback(matmul.end, self._entered)
            self._entered.enter_context(self._router.fused.inside(self._products))
            self._entered.enter_context(self._sandbox.enter(step, rows.names, loop=loop, length=rows.length, **options))
            self._router.arm(rows.contributions, rows.examples, permitted_NG, reach)
            self.rows = rows
            yield rows
            if self.rows is not None:
                raise StepOrder(
                    "BACKWARD_MISSING",
                    f"a microbatch of step {step} was not given to private.backward(); every microbatch must be, or its "
                    "contributions would be charged and unused",
                )

    @contextmanager
    def backward(self, rows: Microbatch) -> Iterator[None]:
        """Runs the backward pass of the microbatch; it is over when the block ends, and leaves the sandbox.

        Raises:
            StepOrder: these rows are another microbatch, or the sandbox was left before.
        """
        if self.rows is None or rows is not self.rows:
            raise StepOrder(
                "WRONG_ROWS", "backward() got rows that are not the current microbatch; call it once, inside `for rows in step`"
            )
        if not self._sandbox.active:
            raise StepOrder(
                "MICROBATCH_LEFT",
                "the microbatch was left before backward() got its losses: something drew random numbers, wrote the model or "
                "decided by a tensor while neither the loop that took the microbatch nor the model was running, or the "
                "iterator over the step is gone. Do this in the loop itself, or in a function that it calls",
            )
        try:
            yield
        finally:
            self.leave()
        self.rows = None

    def leave(self) -> None:
        """Leaves the sandbox, if a microbatch is in it."""
        self._entered.close()


def check_parameters(tensors: Sequence[tuple[str, torch.Tensor]], step: int, ranks: Ranks = ALONE) -> None:
    """Refuses to go on from parameters that are not finite; they are private releases, so this reveals nothing more.

    Args:
        ranks: those that all call this, where each may have rows of its own.
    """
    bad = next((k for k, (_, parameter) in enumerate(tensors) if not _finite(local(parameter))), None)
    found = [int.from_bytes(one, "big") for one in ranks.all((len(tensors) if bad is None else bad).to_bytes(8, "big"))]
    if min(found) < len(tensors):
        raise NonFinite(
            "PARAMETER_NOT_FINITE",
            f"parameter {tensors[min(found)][0]!r} is not finite after step {step}: the update diverged; lower the learning "
            "rate, and resume from the last checkpoint (steps taken since are charged)",
        )


def _finite(values: torch.Tensor) -> bool:
    """Tells whether all of them are finite; only a sum that is not has them looked at one by one."""
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())
