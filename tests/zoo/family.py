"""One model family: how a user would build it, collate its records and write its loss per example."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

Rows = Mapping[str, Any]
Loss = Callable[[nn.Module, Rows], torch.Tensor]
"""``(model, rows) -> losses`` of shape (B,), one per example."""

Layers = str | tuple[str, ...] | None
"""What goes to ``prepare(layers=...)``."""

SEED = 20

LIBRARY = "library"
RANDOM = "random"
VARIANTS = (LIBRARY, RANDOM)
"""``library``: weights as the library initialises them. ``random``: every weight random, nothing closed or zero."""


@dataclass(frozen=True)
class Family:
    """A declaration; nothing in it knows of private training.

    Attributes:
        name: of the family, as the documents list it. kind: heading under which they list it.
        make: builds the model as the library makes it: its own dropout, initial weights and attention.
        record: seed to a JSON record, one example. collate: examples to tensors. loss: losses per example.
        layers: what a user may pass as ``layers=``, in the order of trying; None is what is found by structure.
        frozen: parameters whose names contain one of these are not trained, as a user does whom a refusal advised it.
        model: class of the model, for the documents. note: what else a reader must know to do the same.
        settle: what a user does to the model after ``train()``, as a refusal advised it.
        shallow: whether all that trains lies below the first layer, so that a policy must open that depth to every class.
        draw: another draw of the random weights, where the usual one kills every unit, or where the naive loop's own gradients
            in float32 and float64 differ by more than the tolerance.
    """

    name: str
    kind: str
    make: Callable[[], nn.Module]
    record: Callable[[int], Any]
    collate: Callable[[list[Any]], dict[str, Any]]
    loss: Loss
    layers: tuple[Layers, ...] = (None,)
    frozen: tuple[str, ...] = ()
    model: str = ""
    note: str = ""
    settle: Callable[[nn.Module], object] | None = None
    shallow: bool = False
    draw: int = 0

    def build(self, variant: str = LIBRARY) -> nn.Module:
        """The model in training mode, the same at every call."""
        torch.manual_seed(SEED)
        model = self.make().train()
        for name, parameter in model.named_parameters():
            if any(part in name for part in self.frozen):
                parameter.requires_grad_(False)
        if self.settle is not None:
            self.settle(model)
        if variant == RANDOM:
            randomise(model, SEED + self.draw)
        return model

    def rows(self, count: int, start: int = 0) -> dict[str, Any]:
        """Collated rows of ``count`` records."""
        return dict(self.collate([self.record(start + i) for i in range(count)]))


def randomise(model: nn.Module, seed: int = SEED, std: float = 0.1) -> None:
    """Gives every weight a random value; what is constant at first (norms, biases, gates) moves away from its constant."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_floating_point():
                continue
            first = float(parameter.flatten()[0]) if parameter.numel() else 0.0
            centre = first if bool((parameter == first).all()) else 0.0
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float32).to(parameter.dtype)
            parameter.copy_(centre + std * drawn)


def hf(name: str, options: Mapping[str, Any] | None = None, /, **more: Any) -> Callable[[], nn.Module]:
    """Builder of a model class of transformers from its own configuration class, with only sizes set."""
    values = {**(options or {}), **more}

    def make() -> nn.Module:
        import transformers

        kind = getattr(transformers, name)
        return kind(kind.config_class(**values))

    return make


def named(families: Sequence[Family]) -> dict[str, Family]:
    """Families by name.

    Raises:
        ValueError: two have one name.
    """
    found = {family.name: family for family in families}
    if len(found) != len(families):
        names = [family.name for family in families]
        raise ValueError(f"families declared twice: {sorted({name for name in names if names.count(name) > 1})}")
    return found


__all__ = ["LIBRARY", "RANDOM", "VARIANTS", "Family", "Layers", "Loss", "Rows", "hf", "named", "randomise", "replace"]
