"""Compares gradients with the noise, from the norms of public gradients."""

import difflib
import fnmatch
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attest.policy import ClassRule, Policy
from dptrain.errors import ConfigError
from dptrain.planning.layout import BlockPlan
from dptrain.planning.plan import Plan, class_blocks

_MOST_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Signal:
    """One block of one class, at scale 1 of the noise.

    Attributes:
        norm: Of a public gradient in the block.
        clipped: This norm after the clip of a contribution at the class's presets.
        std: Noise of the block.
        of_one: clipped / std: one contribution beside the noise in its own direction.
        of_step: The same for all contributions that a step draws on average, if all gradients pointed the same way: no more is
            possible. None if their number is unknown.
        of_run: The same over all steps, each weighted as suits its noise.
    """

    name: str
    block: str
    norm: float
    clipped: float
    std: float
    of_one: float
    of_step: float | None
    of_run: float | None


def read_norms(path: Path) -> dict[str, float]:
    """Reads norms of gradients by block, or by class and block: `{"layer.0": 0.3, "sensitive/head": 1.2, "layer.*": 0.2}`.

    Raises:
        ConfigError: Code GRADIENT_NORMS for a file that is no such JSON object.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError("GRADIENT_NORMS", f"{path} has more than {_MOST_BYTES} bytes, expected a norm per block")
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError("GRADIENT_NORMS", f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict) or not found:
        raise ConfigError("GRADIENT_NORMS", f'{path} holds no object; expected {{"layer.0": 0.3, "head": 1.2}}, say')
    for name, norm in found.items():
        real = isinstance(norm, int | float) and not isinstance(norm, bool)
        if not real or not 0.0 <= norm < 1e300:
            raise ConfigError("GRADIENT_NORMS", f"the norm of {name!r} is {norm!r}, expected a finite number, 0 or more")
    return {name: float(norm) for name, norm in found.items()}


def signals(policy: Policy, plan: Plan, norms: Mapping[str, float], counts: Mapping[str, int] | None) -> list[Signal]:
    """Compares signal with noise per private class and block.

    Args:
        norms: As `read_norms` gives them; a name beats a pattern, and with a class beats without.
        counts: Contributions per class, None if unknown.

    Raises:
        ConfigError: Code GRADIENT_NORMS for a block without a norm, or a name that is no block.
    """
    blocks = [block.name for block in plan.blocks]
    for name in norms:
        _require_known(name, blocks, [item.name for item in plan.classes])
    found = []
    for item in plan.classes:
        rule, own = policy.class_rule(item.name), class_blocks(plan, item.name)
        given = [_norm(norms, item.name, block.name) for block in own]
        kept = _clipped(rule, own, given)
        per_step = None if counts is None else item.sampling_rate / policy.sampling.groups * counts.get(item.name, 0)
        # Steps of scale a count 1/a^2 each where what they release is added up as suits its noise.
        run = math.sqrt(sum(phase.steps / phase.scale**2 for phase in plan.phases))
        for block, norm, clipped in zip(own, given, kept, strict=True):
            one = clipped / block.std
            step = None if per_step is None else one * per_step
            found.append(
                Signal(item.name, block.name, norm, clipped, block.std, one, step, None if step is None else step * run)
            )
    return found


def as_json(found: Sequence[Signal]) -> list[dict[str, Any]]:
    """Returns what `--json` prints."""
    return [
        {
            "class": item.name,
            "block": item.block,
            "gradient_norm": item.norm,
            "clipped_norm": item.clipped,
            "std": item.std,
            "signal_of_one": item.of_one,
            "signal_of_step": item.of_step,
            "signal_of_run": item.of_run,
        }
        for item in found
    ]


def _clipped(rule: ClassRule, blocks: Sequence[BlockPlan], norms: Sequence[float]) -> list[float]:
    """Returns norms after the clip: one for all blocks, or with budgets one for each."""
    if any(block.share for block in blocks):
        whole = math.sqrt(sum(block.share**2 for block in blocks))
        return [min(norm, rule.bounds.clip_norm * block.share / whole) for block, norm in zip(blocks, norms, strict=True)]
    total = math.sqrt(sum(norm * norm for norm in norms))
    factor = min(1.0, rule.bounds.clip_norm / total) if total else 1.0
    return [factor * norm for norm in norms]


def _norm(norms: Mapping[str, float], name: str, block: str) -> float:
    for key in (f"{name}/{block}", block):
        if key in norms:
            return norms[key]
    for key, norm in norms.items():
        if fnmatch.fnmatchcase(f"{name}/{block}", key) or fnmatch.fnmatchcase(block, key):
            return norm
    raise ConfigError(
        "GRADIENT_NORMS", f"there is no norm for block {block}, which class {name} may touch; add {block!r}, or a pattern"
    )


def _require_known(name: str, blocks: Sequence[str], classes: Sequence[str]) -> None:
    known = [*blocks, *(f"{item}/{block}" for item in classes for block in blocks)]
    if name in known or any(fnmatch.fnmatchcase(item, name) for item in known):
        return
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    raise ConfigError("GRADIENT_NORMS", f"{name!r} is no block of this plan; the nearest is {near!r}")
