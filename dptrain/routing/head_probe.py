"""A probe at the start of a run: do the heads compute from what the tables say is theirs?

Between the projections of an attention module and the input of its output projection lies the attention itself. There the
gradient of one head's output must vanish, exactly, at every query, key and value that is attributed to other heads. The
probe looks at the modules whose heads a policy tells apart, in the model at hand, so a layout that a library changes under
the same class name is found before anything is charged. It is blind to torch's own attention, which calls no projection.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from dptrain.errors import UnsupportedPolicy
from dptrain.heads import projections
from dptrain.parts import Run
from dptrain.resolver import Schedule


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
                    if bool((grad.narrow(-1, run.start, run.stop - run.start) != 0).any()):
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
