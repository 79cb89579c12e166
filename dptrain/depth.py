"""Depth: the layer stack of a model, and where each trainable tensor lies in it.

Depth 0 is the input side. A tensor has one *position* per place that uses it: ``EMBEDDINGS`` (below layer 0), a layer
index, or ``HEAD`` (above the last layer: final norm, pooler, classifier, language-model head). A tied tensor has several.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from dptrain.errors import UnsupportedModule

EMBEDDINGS = -1
"""Position of everything below layer 0."""

HEAD = 1 << 30
"""Position of everything above the last layer."""


@dataclass(frozen=True)
class Tensor:
    """A trainable parameter: its canonical name, all names it is known by, and the positions that use it."""

    name: str
    aliases: tuple[str, ...]
    positions: tuple[int, ...]
    parameter: nn.Parameter

    @property
    def coordinates(self) -> int:
        return self.parameter.numel()


@dataclass(frozen=True)
class LayerStack:
    """The ordered layers of a model and the trainable tensors placed on them."""

    layers: tuple[str, ...]
    tensors: tuple[Tensor, ...]

    def position_of(self, module_name: str) -> int | None:
        """Position of a module by its name; None where the name says nothing about depth (a container of the stack)."""
        for index, layer in enumerate(self.layers):
            if module_name == layer or module_name.startswith(layer + "."):
                return index
        return None


def find_layer_names(model: nn.Module) -> tuple[str, ...]:
    """Names of the layers, lowest first: the longest outermost ``ModuleList`` or ``Sequential`` of modules of one class.

    Ties go to the list with more parameters. This finds the stack of Hugging Face encoders and decoders (BERT, GPT-2,
    Llama, ViT and their kin) without knowing their names.

    Raises:
        UnsupportedModule: no such list; give ``layers=`` by name.
    """
    best: tuple[int, int, str, nn.Module] | None = None
    seen: list[str] = []
    for name, module in model.named_modules():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)) or len(module) == 0:
            continue
        kinds = {type(child) for child in module}
        size = sum(p.numel() for p in module.parameters())
        if len(kinds) != 1 or size == 0 or (isinstance(module, nn.Sequential) and len(module) < 2):
            continue
        if any(not outer or name.startswith(outer + ".") for outer in seen):
            continue  # a list inside a layer (experts, heads) is not the stack
        seen.append(name)
        if best is None or (len(module), size) > best[:2]:
            best = (len(module), size, name, module)
    if best is None:
        raise UnsupportedModule(
            "NO_LAYER_STACK",
            f"found no list of like modules in {type(model).__name__}; pass layers= with the name of the list, or the "
            "names of the layers in order of depth",
        )
    _, _, name, module = best
    return tuple(f"{name}.{child}" if name else child for child, _ in module.named_children())


def resolve_layer_names(model: nn.Module, layers: str | Sequence[str] | None) -> tuple[str, ...]:
    """Layer names from what the user gave: nothing (found by structure), the name of a list, or the names themselves."""
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


def layer_stack(model: nn.Module, layers: str | Sequence[str] | None = None) -> LayerStack:
    """Places every trainable tensor of a model on its layer stack.

    Outside the stack a tensor is below it if it is registered before the first layer's tensors, and above it otherwise;
    the probes at start check that the modules really run in that order.

    Args:
        model: any module; only tensors with ``requires_grad`` are placed.
        layers: see :func:`resolve_layer_names`.

    Raises:
        UnsupportedModule: no stack, or nothing to train.
    """
    names = resolve_layer_names(model, layers)
    stack = LayerStack(names, ())
    aliases: dict[int, list[str]] = {}
    tensors: dict[int, nn.Parameter] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            aliases.setdefault(id(parameter), []).append(name)
            tensors[id(parameter)] = parameter
    if not tensors:
        raise UnsupportedModule("NOTHING_TO_TRAIN", "no parameter of the model has requires_grad=True")
    module_order = [name for name, _ in model.named_modules()]
    first_layer = min(module_order.index(name) for name in names)
    before = set(module_order[:first_layer])
    placed = []
    for key, parameter in tensors.items():
        positions = tuple(sorted({p for name in aliases[key] for p in _positions(stack, name, before)}))
        placed.append(Tensor(aliases[key][0], tuple(aliases[key]), positions, parameter))
    return LayerStack(names, tuple(placed))


def _positions(stack: LayerStack, parameter_name: str, before: set[str]) -> tuple[int, ...]:
    owner = parameter_name.rpartition(".")[0]
    inside = stack.position_of(owner)
    if inside is not None:
        return (inside,)
    if any(not owner or layer.startswith(owner + ".") for layer in stack.layers):
        # Owned by a module that contains the stack: nothing says whether it acts below or above the layers, so a
        # profile must permit both.
        return (EMBEDDINGS, HEAD)
    return (EMBEDDINGS,) if owner in before else (HEAD,)


def position_name(position: int) -> str:
    """``embeddings``, ``layer.3`` or ``head``."""
    if position == EMBEDDINGS:
        return "embeddings"
    return "head" if position == HEAD else f"layer.{position}"
