"""One step as a graph: the hook form, traced through the router and autograd, and compiled by torch's inductor.

Nothing here knows a gradient formula. The user's loss runs once on fake tensors (shapes without values) while the router is
armed; what its hooks and autograd would do to real ones is recorded as a graph, so the hook form stays the one source of
truth. Parameters, buffers, inputs, weights and the random numbers of the forward are inputs of the graph. An operation that
needs a value to decide what to do next cannot be recorded and raises.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch._inductor
import torch._inductor.config
from torch import nn
from torch._guards import TracingContext
from torch._inductor.cpu_vec_isa import pick_vec_isa
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from dptrain import native
from dptrain.clipping.fast import Pieces
from dptrain.data.microbatch import Microbatch
from dptrain.gradients import matmul
from dptrain.kernels import attention, reductions
from dptrain.routing import building
from dptrain.routing.repeated import Loss
from dptrain.routing.router import Router
from dptrain.routing.router import _Armed as Armed
from dptrain.sandbox import Sandbox
from dptrain.sandbox.draws import Generators, Request
from dptrain.sandbox.learnt import Place


class NotTraceable(Exception):
    """The step cannot be made into a graph; the text says why, in words for a notice."""


@dataclass(frozen=True)
class _Slot:
    """Locates one piece among the outputs of a graph: its tensors follow one another, the rest of it is constant."""

    index: int
    kind: type
    tensors: tuple[str, ...]
    constants: dict[str, Any]


@dataclass(frozen=True)
class StepGraph:
    """A compiled (parameters, buffers, inputs, weight, random numbers) -> (losses, pieces)."""

    run: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
    slots: tuple[_Slot, ...]
    draws: tuple[tuple[Place, Request], ...] = ()
    """The random numbers that it takes, in the order of its inputs."""

    def __call__(self, values: list[torch.Tensor], sandbox: Sandbox | None = None) -> tuple[torch.Tensor, Pieces]:
        """Losses (B,) and pieces.

        Args:
            values: as :func:`values_of` makes them. sandbox: in which the rows of ``values`` are entered.
        """
        drawn = [] if sandbox is None else [sandbox.numbers_of(*draw) for draw in self.draws]
        aside = nullcontext() if sandbox is None else sandbox.aside()
        # The graph casts where the trace did.
        with torch.no_grad(), torch.autocast(values[0].device.type, enabled=False), aside:
            outputs = iter(self.run([*values, *drawn]))
            losses = next(outputs)
            pieces: Pieces = {}
            for slot in self.slots:
                tensors = {name: next(outputs) for name in slot.tensors}
                pieces.setdefault(slot.index, []).append(slot.kind(**tensors, **slot.constants))
        return losses, pieces


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers as they are now, each tensor once."""
    return {name: value.detach() for name, value in (*model.named_parameters(), *model.named_buffers())}


class _Given:
    """Random numbers as inputs of a graph: by place, with what the trace asked for in the end."""

    def __init__(self, inputs: dict[Place, torch.Tensor]) -> None:
        self._inputs = inputs
        self.asked: dict[Place, Request] = {}

    def __call__(self, place: Place, asked: Request) -> torch.Tensor:
        found = self._inputs.get(place)
        kind = torch.bool if asked.kind == "keep" else torch.int64 if asked.kind == "integer" else asked.dtype
        if found is None or found.shape != asked.shape or found.dtype != kind:
            raise NotTraceable(f"the forward draws other random numbers than in the probes (in {place[0]!r})")
        self.asked[place] = asked
        return found


def make_graph(router: Router, model: nn.Module, outer: nn.Module, loss: Loss, rows: Microbatch, armed: Armed) -> StepGraph:
    """Traces and compiles the step for microbatches like ``rows`` and the active blocks of ``armed``.

    Args:
        model: the module whose parameters are scheduled. outer: what the loss is given, the model or what wraps it.

    Raises:
        NotTraceable: something on the way depends on values, or on what a graph does not see.
    """
    state = state_of(model)
    slots: list[_Slot] = []
    tensors = [key for key, value in rows.inputs.items() if isinstance(value, torch.Tensor)]
    holder = _Holder(model)
    sandbox = router.sandbox
    expected = {} if sandbox is None else sandbox.layouts.expected(len(rows.names))
    asked: dict[Place, Request] = {}

    def step(values: list[torch.Tensor]) -> list[torch.Tensor]:
        given = iter(values)
        swapped = {f"model.{name}": next(given) for name in state}
        inputs = {**rows.inputs, **{key: next(given) for key in tensors}}
        fake = dataclasses.replace(rows, inputs=inputs, weight=next(given))
        numbers = _Given(dict(zip(expected, given, strict=True)))
        numbers.asked = asked
        slots.clear()
        asked.clear()
        holder.body = lambda: _one_backward(router, loss, outer, fake, armed, slots, numbers)
        return functional_call(holder, swapped, ())

    values = [*values_of(state, rows), *(_like(request) for request in expected.values())]
    loops = {id(site): dict(vars(site.rule)) for site in router.sites}
    hosts = Generators(with_torch=False)
    try:
        graph = make_fx(step, tracing_mode="fake")(values)
    except Exception as error:
        raise NotTraceable(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}") from error
    finally:
        for site in router.sites:
            vars(site.rule).update(loops[id(site)])  # what a rule learns from a trace is not what it learns from a run
        if sandbox is not None:
            sandbox.kept.look()
    if hosts.moved():
        raise NotTraceable("the forward draws from Python's random or numpy's, and a graph would repeat one draw for ever")
    _require_no_constants(graph, state)
    free_views(graph)
    if any(_draws(node) for node in graph.graph.nodes):
        raise NotTraceable("the forward draws random numbers that have no address")
    if values[0].device.type == "cpu":
        use_kernels(graph)
    outside = nullcontext() if sandbox is None else sandbox.aside()
    try:
        # The compiler is no part of the user's program.
        with outside, torch.autocast(values[0].device.type, enabled=False), building.best_alone(), _kept(), building.together():
            run = torch._inductor.compile(graph, [values])
    except Exception as error:
        raise NotTraceable(f"inductor: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}") from error
    return StepGraph(run, tuple(slots), tuple((place, asked.get(place, request)) for place, request in expected.items()))


@contextmanager
def _kept() -> Iterator[None]:
    """Lets the compiler keep what it makes for later processes, in a directory that is the user's alone.

    It keeps graphs whose shapes it can reason about, static ones among them; without a shape environment it would keep machine
    code alone, which is half of its work. What it keeps is for one kind of processor, which its own key does not name. A
    directory of the user's choice (``TORCHINDUCTOR_CACHE_DIR``) is taken as it is.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True)
    with building.kept_in(_own_folder), torch._guards.tracing(TracingContext(mode)):
        yield


@cache
def _own_folder() -> str:
    """Returns a directory for graphs of this processor that is the user's alone, or one for the life of this process."""
    place = building.own_place()
    with building.best_alone(), building.kept_in(lambda: str(place / "instructions")):
        found = pick_vec_isa()
    told = f"{type(found).__name__} {found} {found.build_arch_flags() if found else ''}"  # its repr may name places in memory
    kind = hashlib.sha256(native.processor() + told.encode()).hexdigest()[:32]
    return str(place / f"graphs-{kind}")


def _like(asked: Request) -> torch.Tensor:
    """A tensor of the shape and type that the numbers asked for have."""
    dtype = torch.bool if asked.kind == "keep" else torch.int64 if asked.kind == "integer" else asked.dtype
    return torch.zeros(asked.shape, dtype=dtype, device=asked.device)


def values_of(state: Mapping[str, torch.Tensor], rows: Microbatch) -> list[torch.Tensor]:
    """Inputs of a graph, in its order."""
    inputs = [value for value in rows.inputs.values() if isinstance(value, torch.Tensor)]
    return [*state.values(), *inputs, rows.weight]


class _Holder(nn.Module):
    """Gives a function of no module a forward, so that the model below can be run with other tensors."""

    dptrain_transparent = True
    """It is no module of the user's, by whose name random numbers would be addressed."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.body: Callable[[], list[torch.Tensor]]

    def forward(self) -> list[torch.Tensor]:
        return self.body()


def _one_backward(
    router: Router, loss: Loss, outer: nn.Module, rows: Microbatch, armed: Armed, slots: list[_Slot], given: _Given
) -> list[torch.Tensor]:
    """Forward and backward pass of one microbatch; losses and the tensors of all pieces, which ``slots`` describes."""
    with router.rearmed(rows, armed, given), _fake_anchor(router):
        if router.sandbox is not None:
            router.sandbox.kept.look()  # the tensors that stand in for those of the model are not written either
        losses = loss(outer, rows)
        router.require_losses(losses)
        router.backward(losses, rows.weight)
        outputs = [losses.detach()]
        for index in sorted(router.pieces):
            for piece in router.pieces[index]:
                parts = {item.name: getattr(piece, item.name) for item in dataclasses.fields(piece)}
                found = tuple(name for name, value in parts.items() if isinstance(value, torch.Tensor))
                slots.append(_Slot(index, type(piece), found, {k: v for k, v in parts.items() if k not in found}))
                outputs += [parts[name] for name in found]
                if any(parts[name].shape[0] != rows.contributions for name in found):
                    raise NotTraceable(f"a piece of {router.tensors[index][1].name!r} has no row per contribution")
    return outputs


@contextmanager
def _fake_anchor(router: Router) -> Iterator[None]:
    """An anchor of the trace's own; one from outside would become a constant."""
    anchor = router._anchor
    router._anchor = torch.zeros((), requires_grad=True)
    if router.sandbox is not None:
        router.sandbox.own(router._anchor)
    try:
        yield
    finally:
        router._anchor = anchor


def _require_no_constants(graph: GraphModule, state: Mapping[str, torch.Tensor]) -> None:
    """Raises for a tensor that went into the graph as a constant and is not a plain number written in the code."""
    for node in graph.graph.nodes:
        if node.op != "get_attr":
            continue
        value = getattr(graph, node.target)
        if not isinstance(value, torch.Tensor) or value.numel() > 64 or any(value is other for other in state.values()):
            raise NotTraceable(f"a tensor of shape {tuple(getattr(value, 'shape', ()))} would be frozen into the graph")


def _draws(node: Node) -> bool:
    """Tells whether an operation draws random numbers; attention without dropout only could."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", argument.default_value)
            return given != 0.0
    return True


def free_views(graph: GraphModule) -> None:
    """Lets a view be a copy where inductor chooses strides of its own, under which it is no view any more.

    Views of anything that is changed in place stay as they are: there, view and copy are not the same.
    """
    aten = torch.ops.aten
    roots: dict[Node, Node] = {}
    changed: set[Node] = set()
    for node in graph.graph.nodes:
        roots[node] = node
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        for spec, value in zip(node.target._schema.arguments, node.args, strict=False):
            if spec.alias_info is None or not isinstance(value, Node):
                continue
            roots[node] = roots[value]
            if spec.alias_info.is_write:
                changed.add(roots[value])
    for node in graph.graph.nodes:
        if node.target in (aten.view.default, aten._unsafe_view.default) and roots[node] not in changed:
            node.target = aten.reshape.default
    graph.recompile()


# --------------------------------------------------------------------------------------------------- by the fastest kernels

_LIBRARY = torch.library.Library("dptrain", "DEF")
_LIBRARY.define("rows(Tensor x_MK, Tensor y_NK, Tensor? bias_N) -> Tensor")
_LIBRARY.define("rows_each(Tensor x_BMK, Tensor y_BNK) -> Tensor")


def _plain(x: torch.Tensor) -> torch.Tensor:
    return x if x.is_contiguous() or x.t().is_contiguous() else x.contiguous()


def _rows(x_MK: torch.Tensor, y_NK: torch.Tensor, bias_N: torch.Tensor | None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(_plain(x_MK), _plain(y_NK), bias_N, "none", [], "")


def _rows_each(x_BMK: torch.Tensor, y_BNK: torch.Tensor) -> torch.Tensor:
    out = _rows_each_shape(x_BMK, y_BNK)
    for i in range(len(x_BMK)):
        out[i] = _rows(x_BMK[i], y_BNK[i], None)
    return out


def _rows_shape(x_MK: torch.Tensor, y_NK: torch.Tensor, bias_N: torch.Tensor | None) -> torch.Tensor:
    return x_MK.new_empty(x_MK.shape[0], y_NK.shape[0])


def _rows_each_shape(x_BMK: torch.Tensor, y_BNK: torch.Tensor) -> torch.Tensor:
    return x_BMK.new_empty(x_BMK.shape[0], x_BMK.shape[1], y_BNK.shape[1])


_LIBRARY.define("outer(Tensor a_NTD, Tensor b_NTP) -> Tensor")
_LIBRARY.define("attention(Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float? scale) -> (Tensor, Tensor)")
_LIBRARY.define(
    "attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor logs, Tensor? mask, bool causal, "
    "float? scale) -> (Tensor, Tensor, Tensor)"
)
_LIBRARY.define("products(Tensor x_BMK, Tensor y_BKN) -> Tensor")
_LIBRARY.impl("products", attention.multiply_by, "CPU")
_LIBRARY.impl("products", lambda x, y: x.new_empty(x.shape[0], x.shape[1], y.shape[2]), "Meta")
_LIBRARY.impl("attention", attention.attend_by, "CPU")
_LIBRARY.impl("attention", lambda q, k, v, mask, causal, scale: attention.shapes(q), "Meta")
_LIBRARY.impl("attention_backward", attention.attend_back_by, "CPU")
_LIBRARY.impl("attention_backward", lambda grad, q, k, *others: attention.shapes_back(q, k), "Meta")
_LIBRARY.impl("outer", reductions.outer_of, "CPU")
_LIBRARY.impl("outer", reductions.outer_shape, "Meta")
_LIBRARY.impl("rows", _rows, "CPU")
_LIBRARY.impl("rows", _rows_shape, "Meta")
_LIBRARY.impl("rows_each", _rows_each, "CPU")
_LIBRARY.impl("rows_each", _rows_each_shape, "Meta")


def use_kernels(graph: GraphModule) -> int:
    """Sends operations of a graph to the fastest kernels at hand: attention and products in pairs to :mod:`attention` of
    `dptrain.kernels`, other large float32 products to oneDNN, for the reasons in :mod:`dptrain.gradients.matmul`.

    Returns:
        How many operations changed hands.
    """
    changed = 0
    for node in list(graph.graph.nodes):
        with graph.graph.inserting_before(node):
            found = _attended(node) or _multiplied(graph, node)
            if found is None:
                continue
            new = graph.graph.call_function(*found)
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        graph.graph.erase_node(node)
        changed += 1
    graph.graph.lint()
    graph.recompile()
    return changed


_Called = tuple[torch._ops.OpOverload, tuple[Any, ...]]


def _attended(node: Node) -> _Called | None:
    """Returns the kernel of attention, and its factors, that computes what an operation does; None if none does."""
    ours = torch.ops.dptrain
    if node.target is attention.PAIRS and attention.serves_pairs(*(one.meta["val"] for one in node.args), traced=True):
        return ours.products.default, node.args
    if node.target is attention.FORWARD:
        factors, (dropped, causal) = node.args[:3], (*node.args[3:], 0.0, False)[:2]
        operator, tensors = ours.attention, factors
    elif node.target is attention.BACKWARD:
        factors, (dropped, causal) = node.args[:6], node.args[6:]
        operator, tensors = ours.attention_backward, (*factors[1:], factors[0])
    else:
        return None
    mask, scale = node.kwargs.get("attn_mask"), node.kwargs.get("scale")
    values, of_mask = [one.meta["val"] for one in tensors], None if mask is None else mask.meta["val"]
    if dropped or not attention.serves(*values, causal=causal, mask=of_mask, traced=True):
        return None
    return operator.default, (*factors, mask, causal, scale)


def _multiplied(graph: GraphModule, node: Node) -> _Called | None:
    """Returns the product of oneDNN that computes what an operation does; None if it is none, or a small one."""
    aten, ours = torch.ops.aten, torch.ops.dptrain
    bias = None
    if not matmul.enabled():
        return None
    if node.target in (aten.mm.default, aten.bmm.default):
        x, y = node.args
    elif node.target is aten.addmm.default and not node.kwargs and node.args[0].meta["val"].dim() == 1:
        bias, x, y = node.args
    else:
        return None
    shape, inner = node.meta["val"].shape, x.meta["val"].shape[-1]
    if node.meta["val"].dtype != torch.float32 or shape[-2] * shape[-1] * inner < matmul.WORTHWHILE:
        return None
    turned = graph.graph.call_function(aten.transpose.int, (y, -2, -1))
    turned.meta["val"] = y.meta["val"].transpose(-2, -1)
    return (ours.rows_each.default, (x, turned)) if node.target is aten.bmm.default else (ours.rows.default, (x, turned, bias))
