"""Probes at the start of a run: is every contribution's gradient exact, and a function of that contribution alone?

Three checks over up to four extra microbatches of real contributions, before anything is charged. Only pass or refuse leaves
them: no message carries a number that was computed from content. P0: the router's weighted sums equal autograd's own
gradient. P1 (cross-sample Jacobian): the loss of one example has exactly zero gradient at every other example's
activations. P2 (replacement): replacing one contribution leaves the losses and gradient norms of all others as they were.
P1 is blind to counts and capacity drops, P2 sees them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from dptrain.depth import EMBEDDINGS, HEAD, NO_TOWER, LayerStack
from dptrain.errors import CoupledModel, NonFinite, UnsupportedModule
from dptrain.routing.router import Router
from dptrain.routing.sums import FastSums

P0_TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-3}
P2_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
HALF_TOLERANCE = 5e-2
"""P0 under autocast: both sides round products to 8 bits in different orders."""


@dataclass(frozen=True)
class ProbeRecord:
    """What P2 compares: losses (N,) and squared norms per block (N, G) of one probe microbatch."""

    losses: torch.Tensor
    norms_sq: torch.Tensor


def snapshot_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all buffers, to see whether a forward changes one."""
    return {name: value.detach().clone() for name, value in model.named_buffers()}


def check_buffers(model: nn.Module, before: dict[str, torch.Tensor]) -> None:
    """Refuses a model whose forward in training writes state that later contributions read."""
    for name, value in model.named_buffers():
        old = before.get(name)
        if old is not None and (old.shape != value.shape or not torch.equal(old, value)):
            raise CoupledModel(
                "BUFFER_CHANGES",
                f"forward changed the buffer {name!r}: state written by one contribution is read by others; freeze it (eval())",
            )


def check_order(order: Sequence[str], stack: LayerStack, router: Router) -> None:
    """Refuses a model whose modules do not run in the order of depth that the profiles assume."""
    places = {}
    for site in router.sites:
        found = {place for i in site.tensors.values() for place in router.tensors[i][1].places}
        if len(found) == 1:  # a tied tensor, or one that acts on every layer, says nothing about order
            places[site.name] = found.pop()
    inside: dict[str, list[int]] = {}
    for i, name in enumerate(order):
        if stack.position_of(name) is not None:
            inside.setdefault(stack.tower_of(name), []).append(i)
    if not inside:
        return
    first, last = min(ran[0] for ran in inside.values()), max(ran[-1] for ran in inside.values())
    for i, name in enumerate(order):
        tower, place = places.get(name, (NO_TOWER, 0))
        if tower != NO_TOWER and tower not in inside:
            continue  # no layer of this tower is scheduled, so nothing tells where it runs
        begins, ends = (inside[tower][0], inside[tower][-1]) if tower in inside else (first, last)
        if (place == HEAD and i < begins) or (place == EMBEDDINGS and i > ends):
            side = "above the last layer" if place == HEAD else "below layer 0"
            raise UnsupportedModule(
                "DEPTH_ORDER",
                f"module {name!r} counts as {side} by its place in the model, but runs on the other side of the layers "
                f"{stack.layers[0]!r}..{stack.layers[-1]!r}; pass layers= so that depth follows the order of execution (a "
                "model of several stacks: the names of its lists of layers)",
            )


def check_exact(router: Router, losses: torch.Tensor, example_weight: torch.Tensor, half: bool) -> torch.Tensor:
    """P1, then P0: sum_i w_i g_i from the router equals autograd's own gradient of sum_i w_i loss_i, tensor by tensor.

    Args:
        losses: (N * M,) from a forward in which the scheduled parameters required gradients. example_weight: as in
            :meth:`Router.backward`.

    Returns:
        Squared norms (N, G), for P2.

    Raises:
        UnsupportedModule: names the tensor, and how far off it is.
        NonFinite: the losses are not finite before the first step.
    """
    if not bool(torch.isfinite(losses).all()):
        raise NonFinite(
            "LOSS_NOT_FINITE",
            "losses are NaN or infinite before the first step, expected finite ones; check the loss function, the labels and "
            "the initial weights (nothing was charged)",
        )
    contributions = router.contributions
    examples = len(losses) // contributions
    mix = torch.linspace(0.5, 1.5, contributions, dtype=torch.float64)
    mix[1::2] *= -1.0  # signs differ, so swapping two contributions shows
    per_example = (mix.repeat_interleave(examples).to(losses.device) * example_weight).to(losses)
    parameters = [tensor.parameter for _, tensor in router.tensors]
    _check_jacobian(losses, router.taps)
    with router.muted():
        truth = torch.autograd.grad(losses, parameters, per_example, retain_graph=True, allow_unused=True)
    router.backward(losses, example_weight, retain_graph=True)
    probed = FastSums(router.schedule, router.tensors, router.precision)
    norms = probed.norms_sq(router.pieces, contributions)
    probed.accumulate(router.pieces, mix[:, None].expand_as(norms))
    sums = list(probed.take())
    router.disarm()
    scale = max((float(g.double().norm()) for g in truth if g is not None), default=0.0)
    tolerance = HALF_TOLERANCE if half else P0_TOLERANCE[router.precision]
    for (_, tensor), expected, found in zip(router.tensors, truth, sums, strict=True):
        exact = torch.zeros_like(found) if expected is None else tensor.select(expected).to(found.dtype)
        error = float((found - exact).double().norm())
        if not error <= tolerance * max(float(exact.double().norm()), 1e-3 * scale):
            raise UnsupportedModule(
                "GRADIENT_MISMATCH",
                f"tensor {tensor.name!r}: the per-contribution gradients do not add up to autograd's own; it is probably used "
                "without calling the module that owns it. Freeze it or use it through its module",
            )
    return norms


def _check_jacobian(losses: torch.Tensor, taps: list[tuple[str, torch.Tensor]]) -> None:
    """P1 on the graph of a probe microbatch."""
    rows = len(losses)
    if rows < 2 or not taps:
        return
    for j in (0, rows - 1):
        grads = torch.autograd.grad(losses[j], [tap for _, tap in taps], retain_graph=True, allow_unused=True)
        for (name, _), value in zip(taps, grads, strict=True):
            if value is None:
                continue
            others = torch.cat([value[:j], value[j + 1 :]])
            if bool((others != 0).any()):
                raise CoupledModel(
                    "CROSS_SAMPLE_GRADIENT",
                    f"the loss of one example depends on other examples of the batch (seen at {name!r}): in-batch negatives, "
                    "batch statistics or a loss over the batch; make each loss a function of its own example",
                )


def check_shapes(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> None:
    """Refuses collated shapes (without dimension 0) that follow the content: padding to the longest of a batch, say.

    Raises:
        CoupledModel: code PADDING, naming the tensor.
    """
    for key in sorted({*expected, *found}):
        if expected.get(key) != found.get(key):
            raise CoupledModel(
                "PADDING",
                f"the collated {key!r} has shape {expected.get(key)} per example with one content and {found.get(key)} with "
                "another: padding to the longest of a batch lets one contribution shape the others; pad to a fixed length",
            )


def check_replacement(
    first: ProbeRecord, second: ProbeRecord, replaced: int, dtype: torch.dtype, *, exact: bool = False
) -> None:
    """P2: all contributions but ``replaced`` must show the same losses and norms in both records; ``exact``: to the last bit.

    Raises:
        CoupledModel: code REPLACEMENT.
    """
    keep = torch.ones(len(first.losses), dtype=torch.bool)
    keep[replaced] = False
    tolerance = 0.0 if exact else P2_TOLERANCE[dtype]
    for what, a, b in (("loss", first.losses, second.losses), ("gradient norm", first.norms_sq, second.norms_sq)):
        gap, size = (a - b)[keep].abs(), a[keep].abs()
        # Every block on its own scale, or a small block's coupling would hide behind a large one.
        if not bool((gap <= tolerance * size.amax(0).clamp_min(1e-12)).all()):
            raise CoupledModel(
                "REPLACEMENT",
                f"replacing one contribution changed the {what} of another: something is shared by the batch (a mean over all "
                "tokens, a capacity, running statistics); make each loss a function of its own example",
            )
