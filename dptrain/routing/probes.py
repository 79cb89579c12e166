"""Probe whether every contribution's gradient is exact, and a function of that contribution alone.

P0: the router's weighted sums equal autograd's own gradient, tensor by tensor. P1 (cross-sample Jacobian): the loss of the last
example has exactly zero gradient at every other example's activations. P2 (company): a contribution's loss and gradient norms
are the same whoever else is in the microbatch, and wherever it stands there. P1 is blind to counts and capacity drops, P2 sees
them. A probe of heads holds masks to the model: does a head move only the coordinates that it owns? The rows belong to nobody
(:mod:`dptrain.routing.synthetic_rows`). :mod:`dptrain.engine.start` runs the probes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from dptrain.blocks.heads import projections
from dptrain.blocks.shards import local, own_part, whole
from dptrain.blocks.slices import Run
from dptrain.blocks.stack import EMBEDDINGS, HEAD, NO_TOWER, LayerStack
from dptrain.clipping.fast import FastSums, Pieces
from dptrain.clipping.resolver import Schedule
from dptrain.errors import CoupledModel, NonFinite, UnsupportedModule, UnsupportedPolicy
from dptrain.gradients.registry import described
from dptrain.routing.router import Router

P0_TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-3}
P2_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
HALF_TOLERANCE = 5e-2
"""P0 and P2 where modules compute in half precision: both sides round products to 8 bits in different orders."""

ROUNDING = {torch.float64: 2.0**-44, torch.float32: 2.0**-16}
HALF_ROUNDING = 2.0**-6
"""Rounding may leave this much of a gradient that is zero in theory (the bias of attention keys, say), over the norm of its
absolute summands."""

SMALL = 1e-3
"""A gradient below so much of the largest tensor's may be rounding noise, which is then measured."""

NOISE = 32.0
"""Rounding in microbatches of other shapes is at most so many times that of one backward pass."""

STRETCH = 8.0
"""Activations are stretched by this factor, to find couplings that only outliers set off."""


@dataclass(frozen=True)
class Seen:
    """Holds what P2 compares of one contribution: its loss, and its gradient norm in every tensor; none where no gradient was
    formed."""

    loss: float
    norms: torch.Tensor | None = None


@dataclass(frozen=True)
class Exact:
    """Holds what P0 found: norms (N, tensors), their scale of rounding (tensors,), tensors whose gradient was nothing but
    rounding, and those of them that had none at all."""

    norms: torch.Tensor
    rounding: torch.Tensor
    silent: tuple[str, ...]
    absent: tuple[str, ...]


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


class Truth:
    """Takes gradients by autograd's own hand, whole; where parameters lie over ranks, another takes this rank's rows of them.

    Attributes:
        factor: what the losses of this rank count, a power of two; ranks differ in it, so that no rank's own is that of all.
        shares: by tensor, what a sum over ranks is multiplied by to be a gradient of autograd's, float64.
        sharded: whether parameters lie over ranks.
    """

    factor = 1.0
    sharded = False

    def __init__(self, router: Router) -> None:
        self._router = router
        self.shares = torch.ones(len(router.tensors), dtype=torch.float64)

    @property
    def reducing(self) -> frozenset[int]:
        """Returns ids of leaves whose ``grad`` is on the way to the ranks that keep its rows, and stays until it is there."""
        return frozenset()

    def gradients(self, losses: torch.Tensor, weight: torch.Tensor, indices: Sequence[int]) -> list[torch.Tensor | None]:
        """Returns gradients of weighted losses for tensors of the schedule, None where they reach none; the graph stays."""
        tensors = [self._router.tensors[index][1] for index in indices]
        with self._router.muted(), self._router.inside():
            found = gradients(losses, [self._router.leaf(tensor.parameter) for tensor in tensors], weight)
        return [None if value is None else tensor.select(value) for tensor, value in zip(tensors, found, strict=True)]

    def sums(self) -> FastSums:
        """Makes empty sums, which lie as those of a step do."""
        return FastSums(self._router.schedule, self._router.tensors, self._router.precision)

    def comparable(self, index: int, total: torch.Tensor) -> torch.Tensor:
        """Returns the sum of a tensor, float64, in the form of its gradient by :meth:`gradients`; it may be written."""
        return total

    def over_ranks(self, numbers: torch.Tensor) -> torch.Tensor:
        """Returns numbers of what lies here as sums over all that is compared."""
        return numbers

    def refuse_layout(self, losses: torch.Tensor, weight: torch.Tensor, index: int) -> None:
        """Raises UnsupportedModule where a tensor is off because its rows lie elsewhere, not because of its gradient."""


def check_exact(router: Router, losses: torch.Tensor, example_weight: torch.Tensor, truth: Truth | None = None) -> Exact:
    """P1, then P0: sum_i w_i g_i from the router equals autograd's own gradient of sum_i w_i loss_i, tensor by tensor.

    An error counts against the norm of what is expected and, where that cancels, against the rounding of its summands; not
    against other tensors, behind which a small one could be missing altogether.

    Guarantee: our sums are formed one tensor at a time, and each is forgotten once it is compared. Where parameters lie over
    ranks, sums go the way of a step, each rank compares its rows, and all ranks come to one verdict.

    Args:
        losses: (N * M,) from a forward in which the scheduled parameters required gradients. example_weight: as in
            :meth:`Router.backward`. truth: takes autograd's own gradients; default: whole.

    Raises:
        UnsupportedModule: names the tensor.
        NonFinite: a gradient of autograd's own is NaN or infinite.
    """
    contributions = router.contributions
    examples = len(losses) // contributions
    # Weights and signs differ, so that swapping two contributions shows. Powers of two leave rounding as it is: a gradient that
    # is nothing but rounding (behind attention whose values are all alike, say) is the same on both sides.
    number = torch.arange(contributions)
    mix = 2.0 ** (number % 4 - 1).double() * (1 - 2 * ((number + number // 4) % 2))
    truth = truth or Truth(router)
    mix *= truth.factor
    per_example = (mix.repeat_interleave(examples).to(losses.device) * example_weight).to(losses)
    _check_jacobian(losses, router)
    exact = truth.gradients(losses, per_example, range(len(router.tensors)))
    sizes = truth.over_ranks(_squares(exact)).sqrt()
    if not bool(sizes.isfinite().all()):
        raise NonFinite(
            "GRADIENT_NOT_FINITE",
            "gradients of the rows given for the probes are NaN or infinite before the first step, expected finite ones; a "
            "root or a quotient at zero does that, whatever becomes of it later: add a small number (nothing was charged)",
        )
    noise = _noise_of(truth, exact, sizes, losses, per_example)
    router.measure_reach()
    router.backward(losses, example_weight, retain_graph=truth.sharded)  # the layout may be asked for
    half = router.half or losses.dtype in (torch.bfloat16, torch.float16)
    tolerance = HALF_TOLERANCE if half else P0_TOLERANCE[router.precision]
    probed, pieces = truth.sums(), router.pieces
    norms = norms_of(probed.squares(pieces), contributions, len(router.tensors))
    gaps = _squares(_gaps(truth, probed, pieces, exact, mix[:, None].expand(-1, len(router.schedule.blocks))))
    rounding = rounding_of(router, half)
    errors, floors = truth.over_ranks(gaps).sqrt(), truth.over_ranks(rounding.double() * truth.factor) * truth.shares
    silent, absent = [], []
    for index, (_, tensor) in enumerate(router.tensors):
        size, error, floor = float(sizes[index]), float(errors[index]), float(floors[index])
        if not error <= tolerance * size + floor:
            truth.refuse_layout(losses, per_example, index)
            cause, cure = _likely_cause(router, index)
            raise UnsupportedModule(
                "GRADIENT_MISMATCH",
                f"tensor {tensor.name!r}: the per-contribution gradients do not add up to autograd's own; {cause}"
                f"{_IN_HALF if half else ''}. {cure}",
            )
        if size <= max(floor, float(noise[index])):
            silent.append(tensor.name)
        if size == 0.0:
            absent.append(tensor.name)
    return Exact(norms, torch.maximum(rounding, noise.to(rounding)), tuple(silent), tuple(absent))


def _squares(values: Iterable[torch.Tensor | None]) -> torch.Tensor:
    """Squared norms, float64 (tensors,); zero for None."""
    found = [0.0 if value is None else float(value.double().square().sum()) for value in values]
    return torch.tensor(found, dtype=torch.float64)


def _gaps(
    truth: Truth, probed: FastSums, pieces: Pieces, exact: list[torch.Tensor | None], coefficients_NG: torch.Tensor
) -> Iterator[torch.Tensor]:
    """Yields sums less autograd's own gradients, tensor by tensor, and forgets both."""
    for index in range(len(exact)):
        found = pieces.pop(index, None)
        if found is not None:
            probed.accumulate({index: found}, coefficients_NG)
        total = truth.comparable(index, probed.take_one(index))
        expected, exact[index] = exact[index], None
        yield total if expected is None else total.sub_(expected.to(total.dtype))


def _likely_cause(router: Router, index: int) -> tuple[str, str]:
    """Tells what may make a gradient another one than autograd's, and what to do: a rule that came from elsewhere, first."""
    for site in router.sites:
        if index in site.tensors.values() and site.rule.foreign:
            return (
                f"the gradient rule registered for {described(site.name, site.module)} is probably wrong",
                "Hold it to dptrain.check_gradient_rule, which tells where",
            )
    return "it is probably used without calling the module that owns it", "Freeze it or use it through its module"


def _noise_of(
    truth: Truth, exact: Sequence[torch.Tensor | None], sizes: torch.Tensor, losses: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """Measures what rounding leaves of small gradients, by a backward pass that rounds otherwise; (tensors,).

    A gradient that cancels in front of its module (of keys of attention, over tokens that are all but equal) is rounding noise
    many times larger than its own summands tell.
    """
    small = [index for index in range(len(sizes)) if 0.0 < sizes[index] < SMALL * sizes.max()]
    noise = torch.zeros(len(sizes), dtype=torch.float64)
    if small:
        odd = 0.7  # no power of two
        again = truth.gradients(losses, weight * odd, small)
        pairs = ((value, exact[index]) for index, value in zip(small, again, strict=True))
        gaps = _squares(None if one is None or other is None else one / odd - other for one, other in pairs)
        noise[small] = NOISE * truth.over_ranks(gaps).sqrt()
    return noise


_IN_HALF = ", or half precision is too coarse for it (autocast, or a model in bfloat16: train in float32 then)"


def gradients(
    output: torch.Tensor, inputs: Sequence[torch.Tensor], weight: torch.Tensor | None = None
) -> Sequence[torch.Tensor | None]:
    """Gradients of an output, None for inputs that it does not reach; the graph stays."""
    try:
        return torch.autograd.grad(output, inputs, weight, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        if "use_reentrant" not in str(error):
            raise
    # A reentrant checkpoint knows full backward passes only; what comes by is seen by hooks.
    found: dict[int, torch.Tensor] = {}
    handles = [value.register_hook(partial(_gather, found, place)) for place, value in enumerate(inputs)]
    try:
        torch.autograd.backward([output], [weight], retain_graph=True)
    finally:
        for handle in handles:
            handle.remove()
    return [found.get(place) for place in range(len(inputs))]


def _gather(found: dict[int, torch.Tensor], place: int, grad: torch.Tensor) -> None:
    found[place] = grad if place not in found else found[place] + grad


def rounding_of(router: Router, half: bool) -> torch.Tensor:
    """Bounds what rounding may leave of the gradient of every tensor, by the armed microbatch's backward pass; (tensors,)."""
    unit = HALF_ROUNDING if half else ROUNDING[router.precision]
    reach = router.reach
    return torch.tensor([unit * reach.get(router.first_of(index), 0.0) for index in range(len(router.tensors))])


def norms_of(squares: Mapping[int, torch.Tensor], contributions: int, tensors: int) -> torch.Tensor:
    """Gradient norms (N, tensors) from squares by tensor."""
    table = torch.zeros(contributions, tensors, dtype=torch.float64)
    for index, square in squares.items():
        table[:, index] = square.sqrt()
    return table


def _check_jacobian(losses: torch.Tensor, router: Router) -> None:
    """P1 on the graph of a probe microbatch: what the last loss says of the other rows.

    The last, since what goes through the rows in order (a layer that takes examples for time) ends there.
    """
    rows, taps = len(losses), router.taps
    if rows < 2 or not taps:
        return
    with router.inside():
        grads = gradients(losses[-1], [tap for _, tap, _ in taps])
    for (name, _, at), value in zip(taps, grads, strict=True):
        others = None if value is None else value.narrow(at, 0, rows - 1)
        # What is not finite shows in the comparison with autograd's own gradient, and says nothing of who reads whom.
        if others is not None and bool((others.isfinite() & (others != 0)).any()):
            raise CoupledModel(
                "CROSS_SAMPLE_GRADIENT",
                f"the loss of one example depends on other examples of the batch (seen at {name!r}): in-batch negatives, "
                "batch statistics or a loss over the batch; make each loss a function of its own example",
            )


def check_company(
    first: Mapping[bytes, Seen], second: Mapping[bytes, Seen], tolerance: float, rounding: torch.Tensor
) -> None:
    """P2: contributions that both microbatches have must show the same loss and norms in both.

    Args:
        first, second: by name of the contribution. tolerance: relative; 0 for equality to the last bit. rounding: (tensors,),
            what a norm may differ by besides.

    Raises:
        CoupledModel: code REPLACEMENT; ROW_ROUNDING where only the last bits differ and none may.
    """
    both = [name for name in first if name in second]
    if not both:
        return
    losses = torch.tensor([[seen[name].loss for name in both] for seen in (first, second)], dtype=torch.float64)
    _require_same("loss", losses[0], losses[1], tolerance, torch.zeros(()))
    norms = [(a, b) for a, b in ((first[name].norms, second[name].norms) for name in both) if a is not None and b is not None]
    if norms:
        slack = rounding if tolerance else torch.zeros(())
        _require_same("gradient", *(torch.stack(side) for side in zip(*norms, strict=True)), tolerance, slack)


@contextmanager
def spoiled(router: Router, reads: frozenset[str] | None) -> Iterator[tuple[str, ...]]:
    """Fills the trained tensors of adapters that are not read with NaN, yields their names, and puts all back bit for bit.

    Whatever uses one of these tensors then, in any way, is NaN too.
    """
    unread = () if reads is None else (t for _, t in router.tensors if t.adapter is not None and t.adapter not in reads)
    own = {id(tensor.parameter): tensor for tensor in unread}
    kept = [(local(tensor.parameter), local(tensor.parameter).detach().clone()) for tensor in own.values()]
    try:
        with torch.no_grad():
            for parameter, _ in kept:
                parameter.fill_(torch.nan)
        yield tuple(sorted({str(tensor.adapter) for tensor in own.values()}))
    finally:
        with torch.no_grad():
            for parameter, before in kept:
                parameter.copy_(before)


def check_unread(before: Mapping[bytes, Seen], after: Mapping[bytes, Seen], tolerance: float, adapters: Sequence[str]) -> None:
    """P3: what a forward is not to read does not show in its losses.

    Args:
        before, after: by name of the contribution, with those adapters as they are and spoiled. tolerance: relative.

    Raises:
        UnsupportedModule: code READS.
    """
    for name, seen in before.items():
        if abs(seen.loss - after[name].loss) <= tolerance * max(1.0, abs(seen.loss)):
            continue
        raise UnsupportedModule(
            "READS",
            f"the loss of a class follows from adapters that its reads leave out ({', '.join(adapters)}), though their modules "
            "did not run: the loop, the loss or a hook uses their tensors; use no parameter of the model beside its forward, "
            "or sign a policy whose reads name them",
        )


def _require_same(what: str, a: torch.Tensor, b: torch.Tensor, tolerance: float, slack: torch.Tensor) -> None:
    finite = torch.isfinite(a) & torch.isfinite(b)
    gap = torch.where(finite, (a - b).abs(), 0.0)
    size = torch.where(finite, a.abs(), 0.0)
    # A gradient rounds by what cancels in it, which larger ones tell; a loss by itself, or by terms of size one.
    size = size.amax(0) if what == "gradient" else torch.maximum(size, size.amax(0).clamp_max(1.0))
    same = bool((finite | (a.isnan() == b.isnan())).all())
    allowed = size.clamp_min(1e-12)
    if same and bool((gap <= tolerance * allowed + slack).all()):
        return
    if same and not tolerance and bool((gap <= P2_TOLERANCE[torch.float32] * allowed).all()):
        raise CoupledModel("ROW_ROUNDING", _ROW_ROUNDING.format(what))
    raise CoupledModel(
        "REPLACEMENT",
        f"replacing one contribution changed the {what} of another: something is shared by the batch (a mean over all "
        "tokens, a capacity, running statistics, random numbers in no order of rows); make each loss a function of its own "
        "example",
    )


_ROW_ROUNDING = (
    "replacing one contribution changed the {} of another in its last bits, which exactness certified does not allow: kernels "
    "that round a row by the place where it stands do that (MKL on processors of AMD), or something small that the batch "
    "shares. Set MKL_CBWR=AUTO in the environment before Python starts; if that does not help, make each loss a function of "
    "its own example, or choose exactness fast"
)


@contextmanager
def opened_gates(router: Router, seed: int) -> Iterator[None]:
    """Moves every trained tensor a little, and puts it back bit for bit: behind a gate that starts at zero nothing shows.

    Entries move by a tenth of the size of their tensor; a tensor of zeros by a fixed small amount.
    """
    parameters = list({id(tensor.parameter): tensor.parameter for _, tensor in router.tensors}.values())
    kept = [local(parameter).detach().clone() for parameter in parameters]
    try:
        with torch.no_grad():
            for place, parameter in enumerate(parameters):
                size = float(whole(parameter).detach().double().square().mean().sqrt())
                step = 0.1 * size if size > 0.0 else 0.02
                generator = torch.Generator().manual_seed(seed + place)
                offset = own_part(parameter, torch.randn(parameter.shape, generator=generator).mul_(step))
                local(parameter).add_(offset.to(local(parameter)))
        yield
    finally:
        with torch.no_grad():
            for parameter, before in zip(parameters, kept, strict=True):
                local(parameter).copy_(before)


@contextmanager
def stretched(router: Router, seed: int) -> Iterator[None]:
    """Stretches trained vectors (the weights of norms, say) unevenly, so that some columns of activations come near any bound
    that outliers are told by; and puts them back bit for bit."""
    vectors = {id(t.parameter): t.parameter for _, t in router.tensors if t.parameter.dim() == 1}.values()
    kept = [local(parameter).detach().clone() for parameter in vectors]
    try:
        with torch.no_grad():
            for place, parameter in enumerate(vectors):
                generator = torch.Generator().manual_seed(seed + place)
                factor = own_part(parameter, STRETCH ** torch.rand(parameter.shape, generator=generator))
                local(parameter).mul_(factor.to(local(parameter)))
        yield
    finally:
        with torch.no_grad():
            for parameter, before in zip(vectors, kept, strict=True):
                local(parameter).copy_(before)


@dataclass
class _Watched:
    """One attention module: what each projection gave, who owns its outputs, and what went into the output projection."""

    path: str
    heads: int
    owners: Mapping[str, tuple[Run, ...]]
    made: dict[str, torch.Tensor] = field(default_factory=dict)
    joined: torch.Tensor | None = None


class HeadProbe:
    """Watches one forward of the probe microbatch; :meth:`check` runs while its graph lives."""

    def __init__(self, model: nn.Module, schedule: Schedule) -> None:
        split = {
            alias
            for tensor in (*(t for block in schedule.blocks for t in block.tensors), *schedule.frozen)
            if tensor.part is not None and any(division.kind == "heads" for division in tensor.divisions)
            for alias in tensor.aliases
        }
        self._watched: list[_Watched] = []
        self._handles: list[RemovableHandle] = []
        for path in schedule.stack.owners.get("heads", {}) if split else ():
            found = projections(model.get_submodule(path))
            if found is None or not any(name.startswith(f"{path}.") for name in split):
                continue
            watched = _Watched(path, found.heads, found.outputs)
            self._watched.append(watched)
            for name in found.outputs:
                module = model.get_submodule(f"{path}.{name}")
                self._handles.append(module.register_forward_hook(_keep_made(watched, name)))
            joined = model.get_submodule(f"{path}.{found.output}")
            self._handles.append(joined.register_forward_pre_hook(_keep_joined(watched)))

    def close(self) -> None:
        """Watches no more, and forgets what it saw."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for watched in self._watched:
            watched.joined, watched.made = None, {}

    def check(self) -> None:
        """Raises UnsupportedPolicy, code HEADS_MISMATCH, for the first module whose heads are not as attributed."""
        seen = [(watched, watched.joined, watched.made) for watched in self._watched]
        self.close()
        for watched, joined, made in seen:
            if joined is None or not joined.requires_grad or len(made) < len(watched.owners):
                continue  # it did not run, or below everything that is trained
            self._check_one(watched, joined, made)

    def _check_one(self, watched: _Watched, joined: torch.Tensor, made: Mapping[str, torch.Tensor]) -> None:
        width = joined.shape[-1] // watched.heads
        sources = {name: value for name, value in made.items() if value.requires_grad}
        for lit in _lit(watched.heads):
            weight = torch.zeros_like(joined)
            for head in lit:
                own = weight.narrow(-1, head * width, width)
                own.copy_(torch.linspace(0.5, 1.5, own.numel(), dtype=own.dtype, device=own.device).view(own.shape))
            grads = torch.autograd.grad(joined, list(sources.values()), weight, retain_graph=True, allow_unused=True)
            for name, grad in zip(sources, grads, strict=True):
                for run in watched.owners[name]:
                    if grad is None or not run.owners.isdisjoint(lit):
                        continue
                    if int((grad.narrow(-1, run.start, run.stop - run.start) != 0).sum()):  # a number: no truth of the program
                        raise UnsupportedPolicy(
                            "HEADS_MISMATCH",
                            f"outputs {run.start} to {run.stop - 1} of {watched.path}.{name} count as those of query heads "
                            f"{sorted(run.owners)}, but reach others: this version of the module is laid out in another way; "
                            "sign a policy without heads for it",
                        )


def _lit(heads: int) -> Iterator[frozenset[int]]:
    """Sets of heads such that for any two different heads one set has the first and not the second."""
    for bit in range(max(1, (heads - 1).bit_length())):
        for value in (0, 1):
            lit = frozenset(h for h in range(heads) if h >> bit & 1 == value)
            if lit and len(lit) < heads:
                yield lit


def _keep_made(watched: _Watched, name: str) -> Callable:
    def keep(module: nn.Module, args: tuple, output: object) -> None:
        if isinstance(output, torch.Tensor) and torch.is_grad_enabled():
            watched.made.setdefault(name, output)

    return keep


def _keep_joined(watched: _Watched) -> Callable:
    def keep(module: nn.Module, args: tuple) -> None:
        if watched.joined is None and args and isinstance(args[0], torch.Tensor) and torch.is_grad_enabled():
            watched.joined = args[0]

    return keep
