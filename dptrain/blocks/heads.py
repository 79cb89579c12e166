"""Heads and experts: which coordinates belong to which query head of an attention module, or to which expert of a mixture.

Layouts are known by the class of the module, of the transformers library or torch itself, and checked against the shapes at
hand; the tests perturb the coordinates of each head in every class listed here and see no other head's output change. A
class that is not listed, or a shape that does not fit, is an obstacle: a policy that masks heads there is refused.

What belongs to a query head: its rows of the query projection and bias, its columns of the output projection, and the rows
of the key and value head that it reads, if it alone reads them. A key-value head that several query heads read needs all of
them. Whatever else lies in the attention module (bias of the output projection, norms over heads, position biases, the
factor of a LoRA adapter that all heads share) needs all heads.

Expert blocks are found by structure: a module with a child that holds experts, either a list of modules or, as transformers 5
packs them, a module with tensors of shape (experts, ...). Children called ``shared...`` serve every token and count as
ordinary tensors of the layer. All else in the block (gate, router, their biases) decides which tokens an expert sees, so it
belongs to no expert: a class that wrote it could starve or flood the experts of other classes. Only a class without a mask of
experts may touch it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from dptrain.blocks.slices import ROUTER, Division, Kind, Run, divided, shared


@dataclass(frozen=True)
class Separate:
    """Query, key, value and output projections of their own, by their names below the attention module."""

    query: str = "q_proj"
    key: str = "k_proj"
    value: str = "v_proj"
    output: str = "o_proj"


@dataclass(frozen=True)
class Fused:
    """One projection for queries, keys and values.

    ``grouped``: its outputs are, per key-value head, the query heads that read it, the key head, the value head; otherwise
    all query heads, then all key heads, then all value heads.
    """

    projection: str
    output: str
    grouped: bool


@dataclass(frozen=True)
class Unknown:
    """A part of the model whose owners cannot be told, and why."""

    path: str
    sentence: str


_OUT = Separate(output="out_proj")
_BERT = Separate("self.query", "self.key", "self.value", "output.dense")
_T5 = Separate("q", "k", "v", "o")

LAYOUTS: dict[str, Separate | Fused] = {
    **dict.fromkeys(
        (
            "CohereAttention", "DeiTAttention", "Dinov2Attention", "GemmaAttention", "Gemma2Attention", "Gemma3Attention",
            "GptOssAttention", "GraniteAttention", "LlamaAttention", "MistralAttention", "MixtralAttention", "Qwen2Attention",
            "Qwen2MoeAttention", "Qwen3Attention", "Qwen3MoeAttention", "SmolLM3Attention", "StableLmAttention",
            "Starcoder2Attention", "ViTAttention",
        ),
        Separate(),
    ),
    **dict.fromkeys(
        ("BartAttention", "CLIPAttention", "GPTJAttention", "GPTNeoSelfAttention", "OPTAttention", "SiglipAttention",
         "WhisperAttention"),
        _OUT,
    ),
    **dict.fromkeys(("BertAttention", "ElectraAttention", "RobertaAttention", "XLMRobertaAttention"), _BERT),
    "AlbertAttention": Separate("query", "key", "value", "dense"),
    "DistilBertSelfAttention": Separate("q_lin", "k_lin", "v_lin", "out_lin"),
    "PhiAttention": Separate(output="dense"),
    "T5Attention": _T5,
    "MPNetSelfAttention": _T5,
    "BloomAttention": Fused("query_key_value", "dense", grouped=True),
    "GPTNeoXAttention": Fused("query_key_value", "dense", grouped=True),
    "PersimmonAttention": Fused("query_key_value", "dense", grouped=True),
    "GPT2Attention": Fused("c_attn", "c_proj", grouped=False),
    "ModernBertAttention": Fused("Wqkv", "Wo", grouped=False),
    "MptAttention": Fused("Wqkv", "out_proj", grouped=False),
    "Phi3Attention": Fused("qkv_proj", "o_proj", grouped=False),
}  # fmt: skip
"""Layout by class name in transformers; those that follow a configuration (Falcon, GPTBigCode) are in :func:`_layout`."""

_COUNTS = ("num_attention_heads", "num_heads", "n_heads", "n_head")


def find_heads(model: nn.Module) -> tuple[dict[str, Division], dict[str, int], tuple[Unknown, ...]]:
    """Divisions of the tensors of all attention modules, by every name of a parameter.

    Returns:
        Divisions by parameter name; the number of query heads by name of the attention module; what looks like attention and
        is not known.
    """
    divisions: dict[str, Division] = {}
    counts: dict[str, int] = {}
    unknown: list[Unknown] = []
    inside: list[str] = []
    for path, module in model.named_modules(remove_duplicate=False):
        if any(path.startswith(outer) for outer in inside):
            continue
        kind = type(module)
        layout = _layout(module)
        torchs = kind is nn.MultiheadAttention
        if layout is None and not torchs:
            if _looks_like_attention(module) and any(True for _ in module.parameters()):
                unknown.append(Unknown(path, f"{path!r} ({kind.__name__}) is attention of a kind whose heads are not known"))
            continue
        inside.append(f"{path}." if path else "")
        try:
            count, own = _of_torch(module) if layout is None else _of_layout(module, layout)
        except _Mismatch as error:
            unknown.append(Unknown(path, f"{path!r} ({kind.__name__}) is not laid out as this build knows it: {error}"))
            continue
        counts[path] = count
        for name, _ in module.named_parameters(remove_duplicate=False):
            divisions[f"{path}.{name}" if path else name] = own.get(name, shared("heads", count))
    return divisions, counts, tuple(entry for entry in unknown if not _contains_known(model, entry.path, counts))


def _contains_known(model: nn.Module, path: str, counts: dict[str, int]) -> bool:
    """Tell if this only wraps known attention, with a norm beside it (T5's ``T5LayerSelfAttention``)."""
    known = [f"{name}." for name in counts if name.startswith(f"{path}.")]
    named = model.get_submodule(path).named_parameters(prefix=path)
    return bool(known) and all(p.dim() == 1 or any(name.startswith(own) for own in known) for name, p in named)


@dataclass(frozen=True)
class Projections:
    """The projections of a known attention module: owners of their outputs by name, and the name of the output projection."""

    heads: int
    outputs: Mapping[str, tuple[Run, ...]]
    output: str


def projections(module: nn.Module) -> Projections | None:
    """The projections of an attention module of transformers that :func:`find_heads` knows, None for any other."""
    layout = _layout(module)
    if layout is None:
        return None
    heads, own = _of_layout(module, layout)
    names = dict(_projections(layout))
    output = names.pop("output")
    weights = {name: _Projection(name, _find(module, name)).path for name in names.values()}
    return Projections(heads, {name: own[f"{path}.weight"].runs for name, path in weights.items()}, output)


class _Mismatch(Exception):
    """Raised where a module does not fit the layout."""


def _layout(module: nn.Module) -> Separate | Fused | None:
    kind = type(module)
    if not kind.__module__.startswith("transformers."):
        return None
    config = getattr(module, "config", None)
    if kind.__name__ == "FalconAttention":
        grouped = bool(config.new_decoder_architecture) or not config.multi_query
        return Fused("query_key_value", "dense", grouped)
    if kind.__name__ == "GPTBigCodeAttention" and not getattr(module, "is_cross_attention", False):
        return Fused("c_attn", "c_proj", grouped=not getattr(module, "multi_query", False))
    if kind.__name__ == "GPT2Attention" and getattr(module, "is_cross_attention", False):
        return None  # its c_attn has keys and values alone
    return LAYOUTS.get(kind.__name__)


def _looks_like_attention(module: nn.Module) -> bool:
    name = type(module).__name__
    return "Attention" in name or "Attn" in name


def _of_layout(module: nn.Module, layout: Separate | Fused) -> tuple[int, dict[str, Division]]:
    heads = _heads(module)
    projections = {name: projection for name, projection in _projections(layout)}
    found = {name: _find(module, projection) for name, projection in projections.items()}
    output = _Projection(projections["output"], found["output"])
    if output.inputs % heads:
        raise _Mismatch(f"{output.inputs} inputs of its output projection for {heads} heads")
    width = output.inputs // heads
    own = output.columns("heads", heads, [(frozenset({h}), width) for h in range(heads)])
    if isinstance(layout, Fused):
        fused = _Projection(layout.projection, found["fused"])
        readers = _readers(heads, (fused.outputs / width - heads) / 2)
        queries = [(frozenset({h}), width) for h in range(heads)]
        pairs = [(group, width) for group in readers]
        if layout.grouped:
            order = [entry for group in readers for entry in ([queries[h] for h in sorted(group)] + 2 * [(group, width)])]
        else:
            order = [*queries, *pairs, *pairs]
        own |= fused.rows("heads", heads, order)
        return heads, own
    query, key, value = (_Projection(projections[name], found[name]) for name in ("query", "key", "value"))
    if query.outputs != heads * width or key.outputs != value.outputs:
        raise _Mismatch(f"q, k and v have {query.outputs}, {key.outputs}, {value.outputs} outputs for {heads} heads of {width}")
    readers = _readers(heads, key.outputs / width)
    own |= query.rows("heads", heads, [(frozenset({h}), width) for h in range(heads)])
    for projection in (key, value):
        own |= projection.rows("heads", heads, [(group, width) for group in readers])
    return heads, own


def _projections(layout: Separate | Fused) -> Iterator[tuple[str, str]]:
    if isinstance(layout, Fused):
        yield "fused", layout.projection
    else:
        yield from (("query", layout.query), ("key", layout.key), ("value", layout.value))
    yield "output", layout.output


def _heads(module: nn.Module) -> int:
    """Query heads, as the module or its configuration says; a container (BERT's) asks the module inside."""
    for holder in (module, getattr(module, "self", None), getattr(module, "config", None)):
        for name in _COUNTS:
            found = getattr(holder, name, None)
            if type(found) is int and found > 0:
                return found
    raise _Mismatch("the number of its heads is nowhere to be read")


def _readers(heads: int, groups: float) -> list[frozenset[int]]:
    """The query heads that read each key-value head: as many neighbours each."""
    if groups < 1 or groups != int(groups) or heads % int(groups):
        raise _Mismatch(f"{groups:g} key-value heads for {heads} query heads")
    each = heads // int(groups)
    return [frozenset(range(g * each, (g + 1) * each)) for g in range(int(groups))]


def _find(module: nn.Module, path: str) -> nn.Module:
    for name in path.split("."):
        module = getattr(module, name, None)
        if not isinstance(module, nn.Module):
            raise _Mismatch(f"it has no {path!r}")
    return module


class _Projection:
    """A linear map from features to features: torch's Linear, the Conv1D of transformers, or LoRA around either."""

    def __init__(self, path: str, module: nn.Module) -> None:
        self.path = path
        self.adapters: list[str] = []
        if type(module).__module__.startswith("peft.tuners.lora.") and isinstance(
            getattr(module, "base_layer", None), nn.Module
        ):
            self.adapters = list(module.lora_A)
            module, self.path = module.base_layer, f"{path}.base_layer"
        self.outer = path
        kind = type(module)
        turned = kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")
        plain = isinstance(module, nn.Linear) and (kind.forward is nn.Linear.forward or kind.__name__ == "FalconLinear")
        weight = getattr(module, "weight", None)
        if not (turned or plain) or not isinstance(weight, nn.Parameter) or weight.dim() != 2:
            raise _Mismatch(f"{path!r} is a {kind.__name__}, expected a Linear")
        self.output_dim = 1 if turned else 0
        self.outputs = weight.shape[self.output_dim]
        self.inputs = weight.shape[1 - self.output_dim]

    def rows(self, kind: Kind, count: int, owners: list[tuple[frozenset[int], int]]) -> dict[str, Division]:
        """Divide the output side: rows of the weight and the bias, and of LoRA's second factor."""
        if sum(length for _, length in owners) != self.outputs:
            raise _Mismatch(f"{self.outputs} outputs of {self.outer!r}, expected {sum(length for _, length in owners)}")
        found = {
            f"{self.path}.weight": divided(kind, count, self.output_dim, owners),
            f"{self.path}.bias": divided(kind, count, 0, owners),
        }
        for adapter in self.adapters:
            found[f"{self.outer}.lora_B.{adapter}.weight"] = divided(kind, count, 0, owners)
            found[f"{self.outer}.lora_B.{adapter}.bias"] = divided(kind, count, 0, owners)
        return found

    def columns(self, kind: Kind, count: int, owners: list[tuple[frozenset[int], int]]) -> dict[str, Division]:
        """Divide the input side: columns of the weight, and of LoRA's first factor."""
        found = {f"{self.path}.weight": divided(kind, count, 1 - self.output_dim, owners)}
        for adapter in self.adapters:
            found[f"{self.outer}.lora_A.{adapter}.weight"] = divided(kind, count, 1, owners)
        return found


def _of_torch(module: nn.MultiheadAttention) -> tuple[int, dict[str, Division]]:
    """torch's own attention; its learned extra key and value (``add_bias_kv``) count as shared."""
    heads, width = module.num_heads, module.head_dim
    each = [(frozenset({h}), width) for h in range(heads)]
    own = {"out_proj.weight": divided("heads", heads, 1, each)}
    for name in ("in_proj_weight", "in_proj_bias"):
        own[name] = divided("heads", heads, 0, [*each, *each, *each])
    for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
        own[name] = divided("heads", heads, 0, each)
    return heads, own


_NUMBER = re.compile(r"(?:expert_?)?(\d+)")


def find_experts(model: nn.Module) -> tuple[dict[str, Division], dict[str, int], tuple[Unknown, ...]]:
    """Divisions of the tensors of all expert blocks, by every name of a parameter.

    Returns:
        Divisions by parameter name; the number of experts by name of the expert block; what looks like experts and is not
        known.
    """
    divisions: dict[str, Division] = {}
    counts: dict[str, int] = {}
    unknown: list[Unknown] = []
    known: list[str] = []
    for path, module in model.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        children = list(_holders(module))
        if not children:
            if _looks_like_experts(module) and not any(path.startswith(outer) for outer in known):
                unknown.append(Unknown(path, f"{path!r} ({type(module).__name__}) holds experts of a kind that is not known"))
            continue
        known.append(prefix)
        own = dict(_owned(children))
        sizes = {division.count for division in own.values()}
        problem = "experts of no one number" if len(sizes) != 1 else _mixed(module)
        missing = [name for child, held in children for name in _names(child, held) if name not in own]
        if problem or missing:
            why = problem or f"{missing[0]!r} is not divided by expert"
            unknown.append(Unknown(path, f"{path!r} ({type(module).__name__}) is not laid out as this build knows it: {why}"))
            continue
        counts[path] = count = sizes.pop()
        for name, _ in module.named_parameters(remove_duplicate=False):
            if name in own:
                divisions[prefix + name] = own[name]
            elif not name.startswith("shared"):
                divisions[prefix + name] = Division("experts", count, None, (Run(ROUTER, 0, 0),))
    return divisions, counts, tuple(unknown)


def _holders(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Children that hold experts."""
    for name, child in module.named_children():
        kind = type(child)
        packed = kind.__name__.endswith("Experts") and kind.__module__.startswith("transformers.")
        listed = name == "experts" and isinstance(child, (nn.ModuleList, nn.ModuleDict))
        if (packed or listed) and not name.startswith("shared") and any(True for _ in child.parameters()):
            yield name, child


def _owned(children: list[tuple[str, nn.Module]]) -> Iterator[tuple[str, Division]]:
    """Names below the expert block, and the experts that own them; nothing for a tensor that does not tell."""
    for name, child in children:
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            listed = list(child.named_children())
            for key, expert in listed:
                match = _NUMBER.fullmatch(key)
                if match is None or int(match[1]) >= len(listed):
                    continue
                for inner, _ in expert.named_parameters(remove_duplicate=False):
                    division = Division("experts", len(listed), None, (Run(frozenset({int(match[1])}), 0, 0),))
                    yield f"{name}.{key}.{inner}", division
        else:
            count = getattr(child, "num_experts", None)
            for inner, parameter in child.named_parameters(remove_duplicate=False):
                if "." not in inner and type(count) is int and parameter.dim() > 1 and parameter.shape[0] == count:
                    yield f"{name}.{inner}", divided("experts", count, 0, [(frozenset({e}), 1) for e in range(count)])


def _names(name: str, child: nn.Module) -> Iterator[str]:
    yield from (f"{name}.{inner}" for inner, _ in child.named_parameters(remove_duplicate=False))


def _mixed(module: nn.Module) -> str:
    """Why the other tensors of this module cannot be taken for its router; empty if they can."""
    for name, child in module.named_children():
        if any("Attention" in type(inner).__name__ for inner in child.modules()):
            return f"it holds attention beside the experts ({name!r})"
    return ""


def _looks_like_experts(module: nn.Module) -> bool:
    name = type(module).__name__
    held = any(True for _ in module.parameters(recurse=False))
    return held and bool(re.search(r"Experts?(?![a-z])|TopK(?:Router|Gating)|Top\dRouter", name))
