"""Keeps the inputs of a module's call as autograd keeps them, and starts graphs where nothing trainable came before.

Where a call is no more than a linear map of its input, a node of autograd keeps that and hands over what comes back
(:class:`Nodes`); what it computes stands in :mod:`dptrain.kernels.nodes`.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from torch.utils.checkpoint import CheckpointFunction

from dptrain.gradients import matmul
from dptrain.gradients.registry import Call
from dptrain.kernels.nodes import Map, multiplied, serves
from dptrain.kernels.way import way
from dptrain.routing.sites import Site
from dptrain.sandbox import Entry, Sandbox


class _Keep(torch.autograd.Function):
    """Keeps values the way autograd keeps what a backward pass needs: a checkpoint may drop them and compute them again, and
    a value that is changed in place afterwards is an error, not a wrong gradient. Nothing flows through it."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, anchor: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*values)
        return anchor.new_zeros(())

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> None:
        raise AssertionError("nothing is computed from what _Keep returns")


def _kept_by_a_node(anchor: torch.Tensor, values: Sequence[torch.Tensor]) -> Callable[[], tuple[torch.Tensor, ...]]:
    node: Any = _Keep.apply(anchor, *values).grad_fn
    return lambda: node.saved_tensors


def _kept_alone(anchor: torch.Tensor, values: Sequence[torch.Tensor]) -> Callable[[], tuple[torch.Tensor, ...]]:
    saved = [torch._C._autograd._make_saved_tensor(value, False) for value in values]
    return lambda: tuple(one.unpack() for one in saved)


keep = _kept_alone if hasattr(torch._C._autograd, "_make_saved_tensor") else _kept_by_a_node
"""Keeps tensors as autograd does, and returns what gives them back: where torch offers that by itself, without a node."""


class Kept:
    """The inputs of one call, out of sight of the graph; :meth:`call` gives them back, at most once per backward pass."""

    def __init__(
        self,
        args: tuple,
        kwargs: dict,
        anchor: torch.Tensor,
        contributions: int,
        examples: int,
        draws: tuple[Entry, ...] = (),
    ) -> None:
        self._counts = contributions, examples
        self._spec: TreeSpec | None = None
        values: list[torch.Tensor] = []
        if len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor):
            values.append(args[0])
        else:
            leaves, self._spec = tree_flatten((args, kwargs))
            places: dict[int, int] = {}
            self._leaves: list[object] = []
            for leaf in leaves:
                if isinstance(leaf, torch.Tensor):
                    if id(leaf) not in places:
                        places[id(leaf)] = len(values)
                        values.append(leaf)
                    leaf = _Place(places[id(leaf)])
                self._leaves.append(leaf)
        self.below = any(value.requires_grad for value in values)
        """Tells whether something lies below that gradients of the inputs go to."""
        self._draws = draws
        self._values = keep(anchor, [value.detach() for value in values])
        device = values[0].device.type if values else "cpu"
        self._autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None

    def call(self, output: int, wanted: frozenset[str], tied: frozenset[str]) -> Call:
        values = self._values()
        args, kwargs = values, {}
        if self._spec is not None:
            leaves = [values[leaf.index] if isinstance(leaf, _Place) else leaf for leaf in self._leaves]
            args, kwargs = tree_unflatten(leaves, self._spec)
        return Call(
            args, kwargs, *self._counts, output=output, autocast=self._autocast, draws=self._draws, wanted=wanted, tied=tied
        )


@dataclass(frozen=True)
class _Place:
    index: int


class Tap(torch.autograd.Function):
    """Identity that starts a graph at a value nothing trainable came before."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, value: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(value)  # the value itself, not a view: what follows may work in place; it must be nobody else's
        return value

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> tuple[None, None]:
        return None, None


def in_reentrant_checkpoint() -> bool:
    """Tells whether this runs inside the forward of a checkpoint with ``use_reentrant=True``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is CheckpointFunction.forward.__code__:
            return True
        frame = frame.f_back
    return False


# ------------------------------------------------------------------------------------------------------ linear maps as nodes

class Straight:
    """The one input of a call that a node keeps; :meth:`call` is as that of :class:`Kept`."""

    below = True

    def __init__(self, value: torch.Tensor, contributions: int, examples: int) -> None:
        self._value, self._counts = value, (contributions, examples)

    def call(self, output: int, wanted: frozenset[str], tied: frozenset[str]) -> Call:
        return Call((self._value,), {}, *self._counts, output=output, wanted=wanted, tied=tied)


class Begun(Protocol):
    """The microbatch under way.

    Attributes:
        entering: the site whose call has just begun, and its input. passed: names of sites whose call goes on, and whose
            gradients are taken already. order: names of the sites that ran.
    """

    serial: int
    contributions: int
    examples: int
    order: list[str]
    entering: tuple[Site, torch.Tensor] | None
    passed: set[str]


class Host(Protocol):
    """The router, as far as nodes know it.

    Attributes:
        fused, sandbox, sites, verified: those of the router.
    """

    fused: Any
    sandbox: Sandbox | None
    sites: list[Site]
    verified: frozenset[str] | None

    @property
    def begun(self) -> Begun | None:
        """Returns the armed microbatch."""

    @property
    def learnt(self) -> bool:
        """Tells whether rows were learnt, and are not fixed yet."""

    def wanted(self, site: Site) -> frozenset[str]:
        """Names the tensors of a site of which something is captured."""

    def on_grad(self, serial: int, site: Site, kept: Any, place: int, wanted: frozenset[str], grad: torch.Tensor) -> None:
        """Splits the gradient that came back to an output."""

    def aside(self) -> AbstractContextManager[None]:
        """Enters the room of our own operations."""


class Nodes:
    """Computes linear maps of one router's model by nodes, where a call of one is no more than its input and what comes back.

    Guarantee: the gradient of a call is taken once, by the node or by the hooks; what a node hands over goes the way of what
    hooks bring. A call that begins with one tensor and multiplies another is made by its module.
    """

    def __init__(self, router: Host) -> None:
        self._router = router
        self._alone = {id(site.module): site for site in router.sites if not site.method}
        self._trained = frozenset(id(site.module) for site in router.sites)

    def passing(
        self, modules: Sequence[nn.Module], x: torch.Tensor, others: Sequence[nn.Module] = ()
    ) -> "_Passed | None":
        """Returns what takes the gradients of maps that a node computes in their place; None where they must be called.

        They are, wherever a call is more: rows are learnt, a checkpoint drops values, a program sees what autograd saves, or
        every operation.

        Args:
            others: what the node computes besides, and takes nothing of, which none of them may train.
        """
        router = self._router
        armed, sandbox = router.begun, router.sandbox
        if armed is None or router.learnt or sandbox is None or sandbox.learning or router.fused.by_themselves:
            return None
        if torch._C._current_graph_task_id() != -1 or torch._C._autograd._top_saved_tensors_default_hooks(True):
            return None
        if x.dim() < 2 or x.shape[0] != armed.contributions * armed.examples:
            return None
        if any(id(module) in self._trained for module in others) or not sandbox.innermost(functions=bool(others)):
            return None
        found = [self._alone.get(id(module)) for module in modules]
        passed = [site for site in found if site is not None and self._passes_by(site)]
        return _Passed(router, armed, passed) if len(passed) == len(modules) else None

    def _passes_by(self, site: Site) -> bool:
        """Tells whether all that matters of a call of this site is its input, and what comes back to its output."""
        rule, verified = site.rule, self._router.verified
        if not rule.product or rule.foreign or rule.given.found or not (rule.open and rule.given.fixed):
            return False
        if verified is not None and site.name not in verified:
            return False
        return bool(self._router.wanted(site))

    def multiplied(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, turned: bool
    ) -> torch.Tensor | None:
        """Computes the linear map of the site whose call has just begun by a node, if that is all it does; else nothing."""
        armed = self._router.begun
        if armed is None or armed.entering is None or way.torch_alone:
            return None
        with torch._C.DisableTorchFunction():  # nobody is asked about attributes
            site, into = armed.entering
            own = site.module._parameters
            if own.get("weight") is not weight or own.get("bias") is not bias or not serves(x, weight, bias):
                return None
            if x is not into and not _turned_over(x, into):
                return None
            taken = self.passing((site.module,), into)
            if taken is None:
                return None
            armed.passed.add(site.name)  # it stays the one that began: a mode of others may ask twice, and use either
            linear = Map(weight.t() if turned else weight, bias)
        return multiplied(x, into.shape, linear, matmul.product, taken)


class _Passed:
    """Takes inputs and output gradients of maps of one microbatch that are not called."""

    def __init__(self, router: Host, armed: Begun, sites: Sequence[Site]) -> None:
        self._router, self._sites = router, sites
        self._serial, self._counts = armed.serial, (armed.contributions, armed.examples)
        self._apart = router.sandbox is not None and not router.sandbox.marking
        self._wanted = [router.wanted(site) for site in sites]

    def aside(self) -> AbstractContextManager[None]:
        """Enters the room of our own operations, unless content is followed from tensor to tensor."""
        return self._router.aside() if self._apart else nullcontext()

    def note(self) -> None:
        """Notes that the maps were computed."""
        armed = self._router.begun
        if armed is not None and armed.serial == self._serial:
            armed.order.extend(site.name for site in self._sites)

    def take(self, place: int, x: torch.Tensor, grad: torch.Tensor) -> None:
        """Hands the gradient of one map to its rule."""
        site = self._sites[place]
        self._router.on_grad(self._serial, site, Straight(x, *self._counts), 0, self._wanted[place], grad)


def _turned_over(x: torch.Tensor, into: torch.Tensor) -> bool:
    """Tells whether x is all of another tensor, seen as a matrix."""
    return (
        x.dim() == 2 and type(into) is torch.Tensor and x.data_ptr() == into.data_ptr() and x.numel() == into.numel()
        and x.shape[-1:] == into.shape[-1:] and x.dtype == into.dtype and x.is_contiguous() and into.is_contiguous()
    )  # fmt: skip
