"""A loss that no content can stop: a microbatch that raises is repeated contribution by contribution, and who raises counts
as zero.

What raises because of a payload would tell that it was drawn, and anybody could stop a run. The repetition needs the loss as a
function: a loop that computes losses itself can only be stopped.
"""

import dataclasses
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from dptrain.clipping.fast import Bounds, Pieces
from dptrain.data.microbatch import Microbatch
from dptrain.errors import CoupledModel, DptrainError, LossShape
from dptrain.routing import pystate
from dptrain.routing.router import Router
from dptrain.routing.synthetic_rows import ProbeRows, hint, raised

Loss = Callable[[nn.Module, Microbatch], torch.Tensor]

_KERNELS = {
    SDPBackend.FLASH_ATTENTION: torch.backends.cuda.flash_sdp_enabled,
    SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.mem_efficient_sdp_enabled,
    SDPBackend.MATH: torch.backends.cuda.math_sdp_enabled,
    SDPBackend.CUDNN_ATTENTION: torch.backends.cuda.cudnn_sdp_enabled,
}
"""Tells of each kind of attention whether it may run, on any device."""


class _Around:
    """Holds under which autocast a call is made, by which kernels of attention, and who sees what autograd saves."""

    def __init__(self, rows: Microbatch) -> None:
        self._kind = rows.weight.device.type
        self._autocast = torch.is_autocast_enabled(self._kind), torch.get_autocast_dtype(self._kind)
        self._kernels = [kernel for kernel, may in _KERNELS.items() if may()]
        self._hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Makes it so again."""
        enabled, dtype = self._autocast
        hooks = torch.autograd.graph.saved_tensors_hooks(*self._hooks) if self._hooks else nullcontext()
        with torch.autocast(self._kind, dtype=dtype, enabled=enabled), sdpa_kernel(self._kernels), hooks:
            yield


def _state_of(model: nn.Module) -> tuple[Hashable, ...]:
    """Returns what a call of the model may read besides: state of its modules, modes of others, and settings of torch."""
    modes = (type(mode) for mode in (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()))
    others = tuple(mode for mode in modes if not mode.__module__.startswith("dptrain."))
    settings = torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    return tuple(pystate.of_model(model)), others, settings


@dataclass
class _Made:
    """Holds the last call of this loss, and what came of it.

    The losses are the caller's to keep: a reference would keep their graph, and what its hooks hold, up to the next call.
    """

    model: nn.Module
    rows: Microbatch
    losses: weakref.ref[torch.Tensor]
    armed: object
    """The microbatch that was armed then."""
    around: _Around
    """What stood around it: the loop may have left that when contributions are repeated, in its backward pass."""
    state: tuple[Hashable, ...] | None = None
    """In the probes: all else that it may read and a loop may change (`_state_of`)."""


class RepeatedLoss:
    """A per-example loss that is repeated for every contribution alone where it raises for all of them together.

    Guarantee: in a private microbatch no exception of ``function``, of the model or of the backward pass gets out, unless rows
    that are nobody's raise too. A contribution that raises alone adds nothing; the others add what they add alone, under the
    random numbers that they would have had together.

    Args:
        router: the router of the run. function: ``(model, rows) -> losses`` of shape (B,). probe: rows that are nobody's.
        whole: repeat in microbatches of the same shape, filled up, as exactness ``certified`` asks for.
        together: ranks gather parameters together, so that none can repeat anything by itself: what raises gets out, as in a
            loop that computes losses itself.
    """

    def __init__(
        self, router: Router, function: Loss, probe: ProbeRows | None, *, whole: bool = False, together: bool = False
    ) -> None:
        self.function = function
        self.together = together
        self._router = router
        self._probe = probe
        self._whole = whole
        self._made: _Made | None = None
        self._raised = False
        self._passed = False
        """Tells whether a probe of several rows did not raise."""

    def __call__(self, model: nn.Module, rows: Microbatch) -> torch.Tensor:
        """Losses of ``rows``, shape (B,); NaN without a graph where the microbatch has to be repeated."""
        self._made, self._raised = None, False
        router = self._router
        if not router.armed or not torch.is_grad_enabled() or not isinstance(rows, Microbatch):
            return self.function(model, rows)
        if router.probing:
            losses = self._probed(model, rows)
            self._made = _Made(model, rows, weakref.ref(losses), router._armed, _Around(rows), _state_of(model))
            return losses
        try:
            losses = self.function(model, rows)
            router.require_losses(losses)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            if self.together:
                raise
            losses = self.failed(model, rows, error)
        self._made = _Made(model, rows, weakref.ref(losses), router._armed, _Around(rows))
        return losses

    def _probed(self, model: nn.Module, rows: Microbatch) -> torch.Tensor:
        """Losses of a probe; what raises on rows that were made up asks for others."""
        try:
            losses = self.function(model, rows)
            self._passed = self._passed or len(rows.names) > 1
            return losses
        except (DptrainError, torch.OutOfMemoryError, MemoryError):
            raise
        except (NameError, AttributeError, TypeError, ImportError) as error:  # of the program, whatever the rows are
            if self._probe is not None and self._probe.made_up:
                error.add_note(f"PROBE_NEEDED: {hint('the loss raised this')}")
            raise
        except Exception as error:
            if len(rows.names) == 1 and self._passed:
                raise CoupledModel(
                    "REPLACEMENT",
                    f"the loss raises where a microbatch holds one example alone ({type(error).__name__}: {error}), so what an "
                    "example adds would depend on whether others were drawn; a squeeze() without a dimension does that, say",
                ) from error
            if self._probe is None or not self._probe.made_up:
                raise
            if self._probe.ignores:  # labels that are to be ignored, to a loss that knows none
                return self._probed(model, self._probe.without_ignored(rows))
            raise raised(error) from error

    def failed(self, model: nn.Module, rows: Microbatch, error: Exception) -> torch.Tensor:
        """Returns what stands for losses of rows that raise; raises the error again if it is not their doing."""
        self._require_content(model, error, rows.length)
        self._raised = True
        losses = torch.full((len(rows.names),), torch.nan, device=rows.weight.device)
        self._made = _Made(model, rows, weakref.ref(losses), self._router._armed, _Around(rows))
        return losses

    def made(self, losses: torch.Tensor) -> bool:
        """Tells whether these losses are the last ones of this loss, if it was called in the armed microbatch.

        Raises:
            LossShape: code LOSS_CHANGED, they were made from them. A repetition would not know how.
            CoupledModel: code LOSS_CONTEXT, in the probes: the model is in another state by now. A repetition would be, too,
                so that a contribution whose row raises would change what the others add.
        """
        if self._made is None or self._made.armed is not self._router._armed:
            return False
        if losses is not self._made.losses():
            raise LossShape(
                "LOSS_CHANGED",
                "backward() got losses that are not the very tensor that private.loss returned; what scales a loss or adds to "
                "it belongs inside the function given to loss()",
            )
        if self._made.state is not None and self._made.state != _state_of(self._made.model):
            raise CoupledModel(
                "LOSS_CONTEXT",
                "between private.loss and backward() the state of the model, a mode, or a setting of torch changed (by a "
                "`with` around the loss alone, say), and where a row raises, the others would be computed again without it; "
                "call backward() inside of it too, or move it into the function given to loss()",
            )
        return True

    @property
    def raised(self) -> bool:
        """Tells whether the last call raised, so that its microbatch has to be repeated."""
        return self._raised

    def require_content(self, error: Exception) -> None:
        """Raises what a backward pass over rows that are nobody's raises, if it does."""
        assert self._made is not None
        with self._made.around.enter():
            self._require_content(self._made.model, error, self._made.rows.length)

    def alone(self, bounds: Bounds) -> Iterator[tuple[Pieces | None, Bounds]]:
        """Forward and backward pass of every contribution by itself: its pieces, None where it raises, and its bounds."""
        assert self._made is not None
        model, rows, around = self._made.model, self._made.rows, self._made.around
        router = self._router
        self._made, self._raised = None, False
        for i, signed in enumerate(bounds.signed):
            own = Bounds([signed], bounds.permitted_NG[i : i + 1])
            if not bool(own.permitted_NG.any()):
                continue  # it only fills up
            single = rows.alone(i, rows.contributions if self._whole else 1)
            pieces: Pieces | None = None
            try:
                with router.rearmed(single):
                    with around.enter():
                        losses = self.function(model, single)
                    router.require_losses(losses)
                    router.backward(losses, single.weight)
                    pieces = cut(router.pieces, slice(1))
            except (torch.OutOfMemoryError, MemoryError):
                raise
            except Exception:
                pieces = None
            yield pieces, own

    def _require_content(self, model: nn.Module, error: Exception, length: int | None) -> None:
        """Raises if rows that are nobody's, of this length, raise as well: then it is the program that fails, and says so."""
        if self._probe is None:
            raise error
        names = [b"again" + place.to_bytes(4, "big") for place in range(2)]
        with self._router.aside():
            rows = self._probe.microbatch(range(2), names, length)
        try:
            with self._router.rearmed(rows):
                losses = self.function(model, rows)
                self._router.require_losses(losses)
                self._router.backward(losses, rows.weight)
        except Exception as own:
            raise own from None


def cut(pieces: Pieces, share: slice) -> Pieces:
    """Cuts pieces down to some contributions."""
    return {
        index: [
            dataclasses.replace(piece, **{k: v[share] for k, v in vars(piece).items() if isinstance(v, torch.Tensor)})
            for piece in found
        ]
        for index, found in pieces.items()
    }
