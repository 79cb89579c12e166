"""Chooses the sums that keep the exactness level of a policy, and refuses models that no such sums can serve."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from attest.policy import Policy
from dptrain.blocks.stack import LayerStack, Tensor
from dptrain.clipping.certified import CertifiedSums
from dptrain.clipping.fast import FastSums, Sums
from dptrain.clipping.resolver import Schedule
from dptrain.errors import UnsupportedPolicy
from dptrain.geometry.charts import Charts
from ledger.accountants.table import TABLE
from ledger.leaves.numerics import least_multiplier


def level_of(policy: Policy) -> dict[str, Any]:
    """Returns what a router must know of a policy."""
    return {
        "exactness": policy.exactness,
        "least_multiplier": least_multiplier(policy),
        "noise_family": policy.mechanism.name,
    }


def refuse_uncertifiable(exactness: str, stack: LayerStack) -> None:
    """Refuses what ``certified`` cannot be said of: experts, even frozen ones.

    Tokens of all contributions of a microbatch are gathered for an expert, so the shapes of its products follow the content of
    all, and with them the rounding of each one's activations. Integers of one contribution would depend on another's content.

    Raises:
        UnsupportedPolicy: the model routes tokens to experts.
    """
    if exactness != "certified":
        return
    found = [*stack.owners.get("experts", ()), *(item.path for item in stack.unknown.get("experts", ()))]
    if found:
        raise UnsupportedPolicy(
            "EXPERTS_CERTIFIED",
            f"the policy asks for exactness 'certified', but {found[0]!r} routes tokens to experts: the shapes of its products "
            "depend on the content of the whole microbatch, and so does the rounding of everybody's gradient; sign exactness = "
            '"fast", or train a model without experts',
        )


def refuse_skipped_masks(exactness: str, model: nn.Module, names: Iterable[str]) -> None:
    """Refuses, at ``certified``, attention that takes another path when no row of the microbatch is padded.

    ``transformers`` leaves a mask out for its faster kinds of attention if it is true everywhere: whether one contribution is
    padded then decides which kernel computes the others, and moves their integers by rounding.

    Args:
        names: of the collated tensors.

    Raises:
        UnsupportedPolicy: a mask is collated, and the model's attention may leave it out.
    """
    mask = next((name for name in names if "mask" in name), None)
    if exactness != "certified" or mask is None:
        return
    for name, module in model.named_modules():
        kind = getattr(getattr(module, "config", None), "_attn_implementation", None)
        if kind not in (None, "eager"):
            raise UnsupportedPolicy(
                "MASK_SKIPPED",
                f"the policy asks for exactness 'certified', but attention of kind {kind!r} ({name or 'the model'}) skips "
                f"{mask!r} when no row is padded, so that one contribution's padding changes how others are rounded; call "
                'model.set_attn_implementation("eager")',
            )


def sums_for(
    exactness: str,
    schedule: Schedule,
    tensors: Sequence[tuple[int, Tensor]],
    precision: torch.dtype,
    least_multiplier: float,
    noise_family: str = "gaussian",
    charts: Charts | None = None,
) -> Sums:
    """Returns the sums of a level that a policy names.

    Raises:
        ValueError: no such level, or a family of noise that it cannot carry.
    """
    if exactness == "fast":
        if "fast" not in TABLE[noise_family].exactness:
            raise ValueError(f"noise of family {noise_family!r} is added to integers, which sums at level 'fast' are not")
        return FastSums(schedule, tensors, precision, charts)
    if charts:
        raise ValueError("coordinates of a tangent geometry are summed at level 'fast'")
    if exactness == "certified":
        return CertifiedSums(schedule, tensors, precision, least_multiplier, noise_family)
    raise ValueError(f"no exactness level {exactness!r}; there are 'fast' and 'certified'")
