"""Masks of heads and experts: which of them a model must have for a policy that names some.

A class without a mask may touch all of what its depth permits. A class with one may touch a coordinate only if its mask has
every owner of it (:mod:`dptrain.parts`): a key-value head needs all query heads that read it, what the heads share needs all
of them, and the router of experts is open only to classes without a mask (:func:`attest.schedule.blocks.pieces`).
"""

from collections.abc import Callable, Sequence

from attest.policy import ClassRule
from attest.schedule.blocks import mask
from attest.schedule.stack import Kind, numbers
from dptrain.depth import LayerStack, Tensor
from dptrain.errors import UnsupportedPolicy

KINDS: tuple[Kind, ...] = ("heads", "experts")


def require_masks(rule: ClassRule, stack: LayerStack, permits: Callable[[Tensor], bool]) -> None:
    """Refuses a mask of heads or experts that cannot be told apart in this model.

    Args:
        permits: whether the depth of the rule permits a tensor.

    Raises:
        UnsupportedPolicy: HEADS_UNKNOWN, HEAD_RANGE, EXPERTS_UNKNOWN or EXPERT_RANGE.
    """
    touched = [alias for tensor in stack.tensors if permits(tensor) for alias in tensor.aliases]
    for kind in KINDS:
        own = mask(rule.depth, kind)
        if own is None:
            continue
        one = kind[:-1].upper()
        for unknown in stack.unknown.get(kind, ()):
            if any(_within(alias, unknown.path) for alias in touched):
                raise UnsupportedPolicy(
                    f"{one}S_UNKNOWN",
                    f"class {rule.name!r} may touch {kind} {numbers(sorted(own))} alone, but {unknown.sentence}; sign a policy "
                    f"without {kind} for these layers, or freeze the module",
                )
        found = {path: count for path, count in stack.owners.get(kind, {}).items() if any(_within(a, path) for a in touched)}
        for path, count in found.items():
            if max(own) >= count:
                raise UnsupportedPolicy(
                    f"{one}_RANGE", f"class {rule.name!r} names {kind} {numbers(sorted(own))}; {path!r} has {count}, from 0"
                )
        missing = _without(kind, touched, stack)
        if missing is not None:
            raise UnsupportedPolicy(
                f"{one}S_UNKNOWN",
                f"class {rule.name!r} may touch {kind} {numbers(sorted(own))} alone, but no {kind} are known in {missing}; "
                f"sign a policy without {kind} for it",
            )


def _without(kind: Kind, touched: Sequence[str], stack: LayerStack) -> str | None:
    """What lacks known owners: for heads any layer that a class may touch, for experts all of them; None if nothing does."""
    layers = [layer for layer in stack.layers if any(_within(alias, layer) for alias in touched)]
    known = stack.owners.get(kind, {})
    bare = [layer for layer in layers if not any(_within(path, layer) for path in known)]
    if kind == "heads":
        return repr(bare[0]) if bare else None
    return "any layer that it may touch" if len(bare) == len(layers) else None


def _within(name: str, path: str) -> bool:
    return not path or name == path or name.startswith(path + ".")
