"""Depth: the layer stack of a model, and where each trainable tensor lies in it.

Depth 0 is the input side. A tensor has one *position* per place that uses it: ``EMBEDDINGS`` (below layer 0), a layer
index, or ``HEAD`` (above the last layer: final norm, pooler, classifier, language-model head). A tied tensor has several.

A model of several *towers* (an image and a text encoder, say) has one stack per tower, each with its own depths; a *place*
is then a tower and a position in it.
"""

import inspect
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn

from attest.errors import ValueRefused
from attest.schedule import stack as named
from attest.schedule.stack import EMBEDDINGS, HEAD, NO_TOWER, Place, StackTensor, Tower
from dptrain.blocks.adapters import Adapter, find_adapters
from dptrain.blocks.heads import Unknown, find_experts, find_heads
from dptrain.blocks.slices import ROUTER, Division, Kind, Part, owned
from dptrain.errors import UnsupportedModule


@dataclass(frozen=True)
class Tensor:
    """A trainable parameter, or a part of one: its canonical name, all its names, and the places that use it.

    Attributes:
        adapter: the adapter that all its names lie in, None for a tensor of the model itself.
        divisions: how its coordinates fall to heads or experts, one for all uses if they agree; of a tied tensor whose uses
            do not agree, one per use, none of which splits it. Empty for an ordinary tensor.
        part: the slice of the parameter that is meant, None for all of it.
    """

    name: str
    aliases: tuple[str, ...]
    places: tuple[Place, ...]
    parameter: nn.Parameter
    adapter: str | None = None
    divisions: tuple[Division, ...] = ()
    part: Part | None = None

    @property
    def positions(self) -> tuple[int, ...]:
        return tuple(sorted({position for _, position in self.places}))

    @property
    def shape(self) -> torch.Size:
        return self.parameter.shape if self.part is None else self.part.shape(self.parameter.shape)

    @property
    def coordinates(self) -> int:
        return self.shape.numel()

    def select(self, value: torch.Tensor) -> torch.Tensor:
        """Select the part of a value, shaped like the parameter, that belongs to this tensor."""
        return value if self.part is None else self.part.select(value)


@dataclass(frozen=True)
class LayerStack:
    """The ordered layers of a model and the trainable tensors placed on them.

    Attributes:
        layers: names of the layers; of all towers, one tower after the other, if there are several.
        tensors: the trainable tensors.
        towers: the towers of a model that is seen as several stacks; empty for one stack.
        adapters: the adapters of the model by name.
        untrained: the parameters that are not trainable, likewise placed; none without an element.
        owners: number of query heads of every attention module and of experts of every expert block, by kind and name.
        unknown: modules that seem to hold heads or experts of a kind that is not known, by kind.
        as_towers: the same model seen as several stacks, where layers were found by structure and there are several; for
            policies that name no depths.
    """

    layers: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    towers: tuple[Tower, ...] = ()
    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    untrained: tuple[Tensor, ...] = ()
    owners: Mapping[Kind, Mapping[str, int]] = field(default_factory=dict)
    unknown: Mapping[Kind, tuple[Unknown, ...]] = field(default_factory=dict)
    as_towers: "LayerStack | None" = None

    def position_of(self, module_name: str) -> int | None:
        """Position of a module by its name; None where the name says nothing about depth (a container of the stack)."""
        for index, layer in enumerate(self.layers):
            if module_name == layer or module_name.startswith(layer + "."):
                return index
        return None

    def tower_of(self, module_name: str) -> str:
        """Name of the tower that a module lies in, ``NO_TOWER`` for none."""
        for tower in self.towers:
            if module_name == tower.root or module_name.startswith(tower.root + "."):
                return tower.name
        return NO_TOWER

    def named(self) -> named.Stack:
        """Returns the same stack by name: what the ledger's header says of it, and what blocks are made of.

        Raises:
            UnsupportedModule: code NO_LAYER_STACK, names and places contradict each other.
        """
        towers = self.towers or (Tower(NO_TOWER, "", self.layers),)
        try:
            tensors = [*_described(self.tensors, True), *_described(self.untrained, False)]
            return named.Stack(towers, tuple(sorted(tensors, key=lambda tensor: tensor.names)))
        except ValueRefused as error:
            raise UnsupportedModule("NO_LAYER_STACK", f"the stack cannot be recorded: {error.sentence}") from error


def _described(tensors: Sequence[Tensor], trained: bool) -> Iterator[StackTensor]:
    for tensor in tensors:
        divisions = tuple(_by_weight(division) for division in tensor.divisions)
        yield StackTensor(tuple(sorted(tensor.aliases)), tensor.coordinates, tensor.places, tensor.adapter, divisions, trained)


def _by_weight(division: Division) -> named.Division:
    """Returns the same division without indices: which owners have what part of the coordinates."""
    weights: Counter[tuple[int, int]] = Counter()
    for run in division.runs:
        if ROUTER.isdisjoint(run.owners):
            weights[owned(run)] += 1 if division.dim is None else run.stop - run.start
    common = math.gcd(*weights.values())
    entries = tuple(sorted((first, stop, weight // common) for (first, stop), weight in weights.items()))
    return named.Division(division.kind, division.count, entries)


def find_layer_names(model: nn.Module) -> tuple[str, ...]:
    """Names of the layers, lowest first: the longest outermost ``ModuleList`` or ``Sequential`` of modules of one class.

    Ties go to the list with more parameters. This finds the stack of Hugging Face encoders and decoders (BERT, GPT-2,
    Llama, ViT and their kin) without knowing their names.

    Raises:
        UnsupportedModule: no such list; give ``layers=`` by name.
    """
    found = _lists(model)
    if not found:
        raise UnsupportedModule(
            "NO_LAYER_STACK",
            f"found no list of like modules in {type(model).__name__}; pass layers= with the name of the list, or the "
            "names of the layers in order of depth",
        )
    name = max(found, key=lambda key: (len(found[key]), sum(p.numel() for p in found[key].parameters())))
    return _children(name, found[name])


def _lists(model: nn.Module) -> dict[str, nn.ModuleList | nn.Sequential]:
    """The outermost lists of like modules with parameters, by name: what can be a stack."""
    found: dict[str, nn.ModuleList | nn.Sequential] = {}
    for name, module in model.named_modules():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)) or len(module) == 0:
            continue
        kinds = {type(child) for child in module}
        size = sum(p.numel() for p in module.parameters())
        if len(kinds) != 1 or size == 0 or (isinstance(module, nn.Sequential) and len(module) < 2):
            continue
        if any(not outer or name.startswith(outer + ".") for outer in found):
            continue  # a list inside a layer (experts, heads) is not the stack
        found[name] = module
    return found


def _children(name: str, module: nn.Module) -> tuple[str, ...]:
    return tuple(f"{name}.{child}" if name else child for child, _ in module.named_children())


def resolve_layer_names(
    model: nn.Module, layers: str | Sequence[str] | None, *, any_order: bool = False
) -> tuple[str, ...]:
    """Layer names from what the user gave: nothing (found by structure), the name of a list, or the names themselves.

    Where the order does not matter, a model without a stack has the modules for layers that hold its tensors themselves.
    """
    if layers is None and any_order and not _lists(model):
        own = [name for name, module in model.named_modules() if any(True for _ in module.parameters(recurse=False))]
        return tuple(own) if own and own[0] else find_layer_names(model)
    if layers is None:
        return find_layer_names(model)
    modules = dict(model.named_modules())
    if isinstance(layers, str):
        if layers not in modules:
            raise UnsupportedModule("NO_LAYER_STACK", f"the model has no module named {layers!r}")
        children = [f"{layers}.{child}" for child, _ in modules[layers].named_children()]
        if not children:
            raise UnsupportedModule("NO_LAYER_STACK", f"module {layers!r} has no children to serve as layers")
        return tuple(children)
    missing = [name for name in layers if name not in modules]
    if missing or not layers:
        raise UnsupportedModule("NO_LAYER_STACK", f"layers= names modules that the model does not have: {missing}")
    return tuple(layers)


Ran = Mapping[str, tuple[int, int]]
"""When each module ran in a forward: where its first and its last call stand among all calls."""


def order_of(model: nn.Module, inputs: Mapping[str, object]) -> Ran:
    """Runs a forward without gradients and says when each module ran in it; empty if the model cannot be called like that.

    Args:
        inputs: by name; those that ``forward`` has no name for are left out.
    """
    ran: dict[str, tuple[int, int]] = {}
    calls = 0

    def note(name: str, module: nn.Module, args: tuple) -> None:
        nonlocal calls
        ran[name] = (ran.get(name, (calls, calls))[0], calls)
        calls += 1

    parameters = inspect.signature(model.forward).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    named = {name: value for name, value in inputs.items() if name in parameters or (takes_any and name != "labels")}
    handles = [module.register_forward_pre_hook(partial(note, name)) for name, module in model.named_modules()]
    try:
        with torch.no_grad():
            model(**named)
    except Exception:  # whatever the model makes of it: the user's own loop may call it otherwise
        return {}
    finally:
        for handle in handles:
            handle.remove()
    return ran


def layer_stack(
    model: nn.Module, layers: str | Sequence[str] | None = None, ran: Ran | None = None, *, any_order: bool = False
) -> LayerStack:
    """Places every trainable tensor of a model on its layer stack.

    Outside the stack a tensor is below it if its module ran before the first layer, above it if it ran after the last, and at
    both ends if it ran in between. Where that is not known the order of registration decides; the probes at the start check
    that the modules really run in the order that was found. Prefixes of an adapter act on every layer, its virtual tokens
    below the first.

    Args:
        model: any module; only tensors with ``requires_grad`` are placed.
        layers: see :func:`resolve_layer_names`; or the names of several ``ModuleList``s, one per tower.
        ran: see :func:`order_of`. any_order: every class may touch everything, so that a model needs no stack.

    Raises:
        UnsupportedModule: no stack, or nothing to train.
    """
    modules = dict(model.named_modules())
    lists = () if layers is None or isinstance(layers, str) else tuple(layers)
    if len(lists) > 1 and all(isinstance(modules.get(name), nn.ModuleList) for name in lists):
        return _placed(model, (), _towers(lists, modules), ran or {})
    names = resolve_layer_names(model, layers, any_order=any_order)
    found = tuple(_lists(model)) if layers is None else ()
    as_towers = _placed(model, (), _towers(found, modules), ran or {}) if len(found) > 1 else None
    return _placed(model, names, (), ran or {}, as_towers)


def _towers(lists: Sequence[str], modules: Mapping[str, nn.Module]) -> tuple[Tower, ...]:
    """One tower per list. Its root is the shortest prefix that no other list shares; its name leaves out what all share.

    Raises:
        UnsupportedModule: a list is empty, given twice, or lies inside another.
    """
    paths = [name.split(".") for name in lists]
    towers = []
    for path in paths:
        others = [other for other in paths if other is not path]
        shared = [_common(path, other) for other in others]
        name = ".".join(path)
        if max(shared) == len(path) or not _children(name, modules[name]) or path in others:
            raise UnsupportedModule(
                "NO_LAYER_STACK", f"list {name!r} is empty, given twice, or holds another of the lists {list(lists)}"
            )
        root, label = path[: max(shared) + 1], path[min(shared) : max(shared) + 1]
        towers.append(Tower(".".join(label), ".".join(root), _children(name, modules[name])))
    return tuple(towers)


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _placed(
    model: nn.Module, names: tuple[str, ...], towers: tuple[Tower, ...], ran: Ran, as_towers: LayerStack | None = None
) -> LayerStack:
    """The stack of ``names``, or of ``towers``, with the tensors of the model placed on it."""
    layers = names or tuple(layer for tower in towers for layer in tower.layers)
    stack = LayerStack(layers, (), towers)
    aliases: dict[int, list[str]] = {}
    tensors: dict[int, nn.Parameter] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), []).append(name)
        tensors[id(parameter)] = parameter
    if not any(parameter.requires_grad for parameter in tensors.values()):
        raise UnsupportedModule("NOTHING_TO_TRAIN", "no parameter of the model has requires_grad=True")
    order = {name: i for i, (name, _) in enumerate(model.named_modules())}  # a shared module has its first name only
    adapters = find_adapters(model)
    head_divisions, heads, unknown_heads = find_heads(model)
    expert_divisions, experts, unknown_experts = find_experts(model)
    divisions = head_divisions | expert_divisions
    placed = []
    for key, parameter in tensors.items():
        own = aliases[key]
        places = tuple(sorted({place for name in own for place in _places(stack, name, order, adapters, ran)}))
        adapter = next((a.name for a in adapters.values() if a.tensors.issuperset(own)), None)
        placed.append(Tensor(own[0], tuple(own), places, parameter, adapter, _division(own, divisions)))
    return LayerStack(
        layers,
        tuple(tensor for tensor in placed if tensor.parameter.requires_grad),
        towers,
        adapters,
        tuple(tensor for tensor in placed if not tensor.parameter.requires_grad and tensor.coordinates),
        owners={"heads": heads, "experts": experts},
        unknown={"heads": unknown_heads, "experts": unknown_experts},
        as_towers=as_towers,
    )


def _division(names: Sequence[str], divisions: Mapping[str, Division]) -> tuple[Division, ...]:
    """Divisions of a tensor of these names: it can be split only if every use divides it alike."""
    found = {divisions.get(name) for name in names}
    if len(found) == 1:
        return tuple(division for division in found if division is not None)
    return tuple(divisions[name].whole() for name in names if name in divisions)


def _places(
    stack: LayerStack, parameter_name: str, order: Mapping[str, int], adapters: Mapping[str, Adapter], ran: Ran
) -> tuple[Place, ...]:
    for adapter in adapters.values():
        if parameter_name in adapter.every_layer:
            towers = stack.towers or (Tower(NO_TOWER, "", stack.layers),)
            return tuple((tower.name, index) for tower in towers for index in range(len(tower.layers)))
        if parameter_name in adapter.below:
            return ((NO_TOWER, EMBEDDINGS),)
    owner = parameter_name.rpartition(".")[0]
    name = stack.tower_of(owner)
    tower = next((t for t in stack.towers if t.name == name), None)
    layers = tower.layers if tower is not None else stack.layers
    for index, layer in enumerate(layers):
        if owner == layer or owner.startswith(layer + "."):
            return ((name, index),)
    if any(not owner or layer.startswith(owner + ".") for layer in layers):
        # Owned by a module that contains the stack: nothing says whether it acts below or above the layers, so a
        # profile must permit both.
        return ((name, EMBEDDINGS), (name, HEAD))
    if tower is None and stack.towers:
        first = [min(order[layer] for layer in each.layers) for each in stack.towers]
        if min(first) < order.get(owner, -1) < max(first):  # after one tower and before another: both ends, as above
            return ((name, EMBEDDINGS), (name, HEAD))
    if owner in ran and all(layer in ran for layer in layers):
        first, last = min(ran[layer][0] for layer in layers), max(ran[layer][1] for layer in layers)
        begins, ends = ran[owner]
        if ends < first or begins > last:
            return ((name, EMBEDDINGS if ends < first else HEAD),)
        return ((name, EMBEDDINGS), (name, HEAD))  # in between, or on both sides
    below = owner in order and order[owner] < min(order[layer] for layer in layers)
    return ((name, EMBEDDINGS if below else HEAD),)
