"""Experts: which tensors, or which slices of packed tensors, belong to which expert of a mixture.

Expert blocks are found by structure: a module with a child that holds experts, either a list of modules or, as transformers 5
packs them, a module with tensors of shape (experts, ...). Children called ``shared...`` serve every token and count as
ordinary tensors of the layer. All else in the block (gate, router, their biases) decides which tokens an expert sees, so it
belongs to no expert: a class that wrote it could starve or flood the experts of other classes. Only a class without a mask of
experts may touch it.
"""

import re
from collections.abc import Iterator

from torch import nn

from dptrain.blocks.heads import Unknown
from dptrain.blocks.slices import ROUTER, Division, Run, divided

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
