"""Holds a LoRA pair for a product under encryption: checked, scaled, filled up to a power of two, and balanced."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dptrain.errors import ConfigError
from dptrain.inference.he.scheme import GAIN, NORM, RANK, WIDTHS

Array = npt.NDArray[np.float64]

_LONGER = 4.0
"""By how much A is made longer and B shorter than equally long ones. Noise of turning z comes into the answer times B, the
rounding of B times z: of 1, 4, 16, ..., 1024 this one gave the least error at ranks of 2, 8, 32 and 64, or near it."""


@dataclass(frozen=True, eq=False)
class Adapter:
    """A pair of factors that answers scaling · B A h.

    Attributes:
        A: lora_A.weight of peft, r x n.
        B: lora_B.weight of peft, m x r. m and n are at most 2048, r at most 64.
        scaling: alpha / r, or alpha / sqrt(r) under rsLoRA (Kalajdzievski 2023, arXiv:2312.03732).
        gain: An upper bound on |entry of the answer| / |state|: the largest row of |scaling| · |B| · (norms of the rows of A).

    Raises:
        ConfigError: `ADAPTER_SHAPE`, `ADAPTER_NOT_FINITE`, `ADAPTER_ZERO` or `ADAPTER_GAIN`.
    """

    A: Array
    B: Array
    scaling: float
    gain: float = field(init=False)
    balanced: tuple[Array, Array] = field(init=False, repr=False)
    """A and scaling · B with zeros up to a rank that is a power of two, and scaled against each other by powers of two in each
    rank: the error then does not hang on how the pair shares its product."""

    def __post_init__(self) -> None:
        A, B = as_array(self.A), as_array(self.B)
        object.__setattr__(self, "A", A)
        object.__setattr__(self, "B", B)
        shaped = A.ndim == B.ndim == 2 and A.shape[0] == B.shape[1]
        if not shaped or not (0 < A.shape[0] <= RANK and 0 < A.shape[1] <= WIDTHS[-1] and 0 < B.shape[0] <= WIDTHS[-1]):
            raise ConfigError(
                "ADAPTER_SHAPE",
                f"A is {_by(A)} and B {_by(B)}; A is r x n and B m x r, r at most {RANK}, m and n at most {WIDTHS[-1]}; "
                "give lora_A.weight and lora_B.weight of a linear layer",
            )
        if not (np.isfinite(A).all() and np.isfinite(B).all() and np.isfinite(self.scaling)):
            raise ConfigError("ADAPTER_NOT_FINITE", "A, B or the scaling is not finite; give an adapter of finite numbers")
        scaled = B * self.scaling
        of_a, of_b = np.linalg.norm(A, axis=1), np.linalg.norm(scaled, axis=0)
        live = (of_a > 0) & (of_b > 0)
        if not live.any():
            raise ConfigError("ADAPTER_ZERO", "the product of the adapter is zero (as peft begins); serve the base without it")
        gain = float((np.abs(scaled) @ of_a).max())
        object.__setattr__(self, "gain", gain)
        if gain > GAIN:
            raise ConfigError(
                "ADAPTER_GAIN",
                f"an entry of the answer may be {gain:.3g} times as long as the state, at most {GAIN:g} fits under a state of "
                f"{NORM:g}; divide the scaling by a power of two here, and multiply what is decrypted",
            )
        powers = _LONGER * np.exp2(np.round(np.log2(np.where(live, of_b, 1.0) / np.where(live, of_a, 1.0)) / 2)) * live
        rank = 1 << (len(powers) - 1).bit_length()
        inner, outer = np.zeros((rank, A.shape[1])), np.zeros((B.shape[0], rank))
        inner[: len(powers)] = A * powers[:, None]
        outer[:, : len(powers)] = scaled / np.where(live, powers, np.inf)
        object.__setattr__(self, "balanced", (inner, outer))

    @classmethod
    def of_layer(cls, layer: Any, name: str = "default") -> "Adapter":
        """Returns the adapter of a linear layer of peft, with peft's own scaling (alpha / r, or rsLoRA's).

        Args:
            layer: `peft.tuners.lora.Linear`. name: The adapter's, as peft has it.

        Raises:
            ConfigError: `ADAPTER_SHAPE` where the layer has no such pair, or more than it: DoRA, a bias of its own.
        """
        try:
            inner, outer, scaling = layer.lora_A[name], layer.lora_B[name], layer.scaling[name]
        except (AttributeError, KeyError) as error:
            raise ConfigError(
                "ADAPTER_SHAPE", f"{type(layer).__name__} has no LoRA pair named {name!r}; give a linear layer of peft"
            ) from error
        more = getattr(layer, "lora_variant", {}).get(name) or getattr(layer, "use_dora", {}).get(name)
        if more or getattr(outer, "bias", None) is not None:
            raise ConfigError(
                "ADAPTER_SHAPE", f"adapter {name!r} is more than a pair (DoRA, or a bias); give a plain one"
            )
        return cls(inner.weight, outer.weight, float(scaling))

    @property
    def width(self) -> int:
        """Returns the least width at which both sides fit: that of the keys of a client for this adapter."""
        return next(width for width in WIDTHS if width >= max(self.A.shape[1], self.B.shape[0]))


def as_array(values: Any) -> Array:
    """Returns values of numpy, torch (any type, any device) or a list in double precision."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    return np.array(values, dtype=np.float64)


def _by(values: Array) -> str:
    return " x ".join(map(str, values.shape)) or "a number"
