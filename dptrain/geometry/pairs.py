"""Finds the LoRA pairs of a model: modules that peft gave two factors, each a linear map."""

from dataclasses import dataclass

import torch
from torch import nn

from dptrain.blocks.shards import is_shard
from dptrain.errors import UnsupportedModule

FLOATS = (torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class LoraPair:
    """A pair of factors of one module and one adapter: Z = A B^T, of which the forward adds ``scaling`` times.

    Attributes:
        module: path of the adapted module. adapter: its name in peft.
        a, b: names of the parameters ``lora_B.ADAPTER.weight`` and ``lora_A.ADAPTER.weight``.
        A: parameter of m x r. Bt: parameter of r x n, the transpose of B.
        scaling: alpha / r, or alpha / sqrt(r) of rsLoRA.
    """

    module: str
    adapter: str
    a: str
    b: str
    A: nn.Parameter
    Bt: nn.Parameter
    scaling: float

    @property
    def rank(self) -> int:
        return int(self.A.shape[1])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Returns m, n and r."""
        return int(self.A.shape[0]), int(self.Bt.shape[1]), self.rank

    @property
    def kind(self) -> tuple[object, ...]:
        """Returns what pairs have in common that move as one batch."""
        return (*self.shape, self.A.dtype, self.A.device)


def refuse_sharded(name: str, *factors: torch.Tensor) -> None:
    """Raises UnsupportedModule, code GEOMETRY_SHARDED, for factors of which every rank has some rows."""
    if any(is_shard(factor) for factor in factors):
        raise UnsupportedModule(
            "GEOMETRY_SHARDED",
            f"the pair of {name!r} lies over several ranks (fully_shard), and its frames need both factors whole; wrap the "
            "model in DistributedDataParallel, or sign a policy without geometry",
        )


def require_matrices(first: str, second: str, A: torch.Tensor, Bt: torch.Tensor) -> None:
    """Raises UnsupportedModule, code GEOMETRY_PAIR, for factors that are no two matrices of one rank in one wide type."""
    if A.dim() != 2 or Bt.dim() != 2 or A.shape[1] != Bt.shape[0] or A.dtype not in FLOATS or A.dtype is not Bt.dtype:
        raise UnsupportedModule(
            "GEOMETRY_PAIR",
            f"{first!r} and {second!r} have shapes {tuple(A.shape)} and {tuple(Bt.shape)} of {A.dtype}, expected (m, r) and "
            "(r, n) in float32: pairs of linear layers have a tangent geometry, those of convolutions and tables have not; "
            "adapt linear layers alone, and load adapters with autocast_adapter_dtype=True",
        )


def find_pairs(model: nn.Module) -> tuple[LoraPair, ...]:
    """Returns the pairs of a model both of whose factors are trainable, in the order of its modules.

    Raises:
        UnsupportedModule: code GEOMETRY_PAIR, factors in half precision, whose retraction would be lost in rounding;
            GEOMETRY_SHARDED, factors that lie over ranks.
    """
    found = []
    for path, module in model.named_modules():
        ups, downs = (module._modules.get(name) for name in ("lora_B", "lora_A"))
        if not isinstance(ups, nn.ModuleDict) or not isinstance(downs, nn.ModuleDict):
            continue
        for adapter in ups:
            up, down = ups[adapter], downs._modules.get(adapter)
            if not isinstance(up, nn.Linear) or not isinstance(down, nn.Linear):
                continue
            if not (up.weight.requires_grad and down.weight.requires_grad):
                continue
            refuse_sharded(path, up.weight, down.weight)
            prefix = f"{path}." if path else ""
            a, b = (f"{prefix}{side}.{adapter}.weight" for side in ("lora_B", "lora_A"))
            if up.weight.dtype not in FLOATS or down.weight.dtype is not up.weight.dtype:
                raise UnsupportedModule(
                    "GEOMETRY_PAIR",
                    f"factors of {path!r} are {up.weight.dtype} and {down.weight.dtype}, expected float32: a step along the "
                    "tangent space would be lost in rounding; load it with autocast_adapter_dtype=True, peft's default",
                )
            scaling = float(getattr(module, "scaling", {}).get(adapter, 1.0))
            if not isinstance(up.weight, nn.Parameter) or not isinstance(down.weight, nn.Parameter):
                raise UnsupportedModule(
                    "GEOMETRY_PAIR",
                    f"factors of {path!r} are computed from other tensors (weight_norm, a parametrization), and a step along "
                    "the tangent space writes them; remove the parametrization",
                )
            found.append(LoraPair(path, adapter, a, b, up.weight, down.weight, scaling))
    return tuple(found)
