"""Masks of heads and experts: which classes may touch which coordinates of a tensor that its depth permits to them.

A class without a mask may touch all of what its depth permits. A class with one may touch a coordinate only if its mask has
every owner of it (:mod:`dptrain.parts`): a key-value head needs all query heads that read it, what the heads share needs all
of them, and the router of experts is open only to classes without a mask.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from attest.policy import ClassRule, DepthRule
from dptrain.depth import LayerStack, Tensor
from dptrain.errors import UnsupportedPolicy
from dptrain.parts import ROUTER, Division, Kind, Part, Run
from dptrain.ranges import numbers

KINDS: tuple[Kind, ...] = ("heads", "experts")

Label = tuple[str, tuple[int, ...]]
"""What of a layer a block is: ``heads`` or ``experts`` with their numbers, ``attention`` for what heads of several blocks
share, ``router``; an empty name for what no mask divides."""

UNDIVIDED: Label = ("", ())


@dataclass(frozen=True)
class Share:
    """Coordinates of one tensor that the same classes may touch; ``classes`` may be empty."""

    tensor: Tensor
    classes: tuple[str, ...]
    label: Label


def label_name(label: Label) -> str:
    """``heads 0-3``, ``attention``, ``experts 5``, ``router``, or nothing."""
    what, which = label
    return f"{what} {numbers(which)}" if which else what


def mask(depth: DepthRule, kind: Kind) -> frozenset[int] | None:
    """The heads or experts that a rule permits, None for all."""
    found = depth.heads if kind == "heads" else depth.experts
    return None if found is None else frozenset(found)


def shares(tensor: Tensor, rules: Sequence[ClassRule]) -> Iterator[Share]:
    """A tensor cut into what the same classes may touch; every coordinate lies in exactly one share.

    Args:
        rules: the classes to which their depth permits the tensor.
    """
    divisions = [d for d in tensor.divisions if any(mask(rule.depth, d.kind) is not None for rule in rules)]
    if not divisions:
        yield Share(tensor, tuple(rule.name for rule in rules), UNDIVIDED)
        return
    if len(tensor.divisions) > 1:  # tied, and its uses divide it differently: needed whole by each of them
        names = [rule.name for rule in rules if all(_permits(rule, d.kind, d.runs[0]) for d in divisions)]
        yield Share(tensor, tuple(names), (_shared(divisions[0]), ()))
        return
    division = divisions[0]
    by_classes: dict[tuple[str, ...], list[Run]] = {}
    for run in division.runs:
        names = [rule.name for rule in rules if _permits(rule, division.kind, run)]
        by_classes.setdefault(tuple(names), []).append(run)
    for classes, runs in by_classes.items():
        label = _label(division, runs, classes, rules)
        if len(by_classes) == 1:
            yield Share(tensor, classes, label)
        else:
            assert division.dim is not None and tensor.part is None
            part = Part.of(division.dim, runs)
            yield Share(replace(tensor, part=part), classes, label)


def _permits(rule: ClassRule, kind: Kind, run: Run) -> bool:
    own = mask(rule.depth, kind)
    return own is None or run.owners <= own


def _label(division: Division, runs: Sequence[Run], classes: tuple[str, ...], rules: Sequence[ClassRule]) -> Label:
    owners = frozenset().union(*(run.owners for run in runs))
    if owners == ROUTER:
        return ("router", ())
    alike = tuple(
        owner
        for owner in range(division.count)
        if classes == tuple(rule.name for rule in rules if (own := mask(rule.depth, division.kind)) is None or owner in own)
    )
    if owners <= frozenset(alike):
        return (division.kind, alike)
    return (_shared(division), ())


def _shared(division: Division) -> str:
    return "attention" if division.kind == "heads" else "router"


def require_masks(rule: ClassRule, stack: LayerStack, permits: Callable[[DepthRule, Tensor], bool]) -> None:
    """Refuses a mask of heads or experts that cannot be told apart in this model.

    Args:
        permits: whether the depth of a rule permits a tensor.

    Raises:
        UnsupportedPolicy: HEADS_UNKNOWN, HEAD_RANGE, EXPERTS_UNKNOWN or EXPERT_RANGE.
    """
    touched = [alias for tensor in stack.tensors if permits(rule.depth, tensor) for alias in tensor.aliases]
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
