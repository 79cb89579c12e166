"""Resolve an admission into a noise schedule and the slices of the model that its data may touch.

A class without a mask may touch everything within its depth. A class with a mask may touch a coordinate only if the mask names
every owner of it (:mod:`dptrain.blocks.slices`). A key-value head needs all query heads that read it, and what the heads share
needs all of them. The router of experts is open only to classes without a mask (:func:`attest.blocks.pieces`).
"""

import difflib
import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from attest.descriptor import TRAIN, ContributionDescriptor, SignedBounds
from attest.errors import AdmissionRefused, PolicyRefused, ValueRefused
from attest.gate import Admission
from attest.gate.checks import check_bounds, check_purpose
from attest.policy import ClassRule, Policy
from attest.schedule import allocation, blocks, effective_multiplier, realised_std, scheduled_std
from attest.schedule.blocks import Piece, StackBlock, mask
from attest.schedule.geometry import couples_of
from attest.schedule.reads import read_blocks
from attest.schedule.stack import Kind, Stack, numbers
from dptrain.blocks.adapters import require_adapter
from dptrain.blocks.slices import Part, owned
from dptrain.blocks.stack import LayerStack, Tensor
from dptrain.errors import NotPrivateUse, UnsupportedPolicy

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
    """Name what lacks known owners: any layer that a class may touch for heads, all layers for experts; None if nothing
    does.
    """
    layers = [layer for layer in stack.layers if any(_within(alias, layer) for alias in touched)]
    known = stack.owners.get(kind, {})
    bare = [layer for layer in layers if not any(_within(path, layer) for path in known)]
    if kind == "heads":
        return repr(bare[0]) if bare else None
    return "any layer that it may touch" if len(bare) == len(layers) else None


def _within(name: str, path: str) -> bool:
    return not path or name == path or name.startswith(path + ".")


@dataclass(frozen=True)
class Block:
    """Tensors, or parts of them, masked as one. ``std`` is s_l, the noise standard deviation on the SUM of clipped gradients.

    It is 0.0 if only public classes may touch the block, and then no gradient of a private contribution is ever in it.
    ``adapter`` names the adapter that all tensors belong to, if the policy binds a class to it; else None. ``share`` weighs,
    in 1e-6, what part of the clip norms of classes the block gets; 0 where the policy divides none.
    """

    name: str
    positions: tuple[int, ...]
    tensors: tuple[Tensor, ...]
    classes: tuple[str, ...]
    std: float
    adapter: str | None = None
    share: int = 0

    @property
    def coordinates(self) -> int:
        return sum(tensor.coordinates for tensor in self.tensors)


@dataclass(frozen=True)
class Resolution:
    """The rights of one admission: its profile (indices of blocks) and the noise that protects it.

    ``multiplier`` is the effective z of the contribution under the schedule of its class, which carries no count of
    occurrences; None for a ``public`` contribution, which is not clipped, and about which nothing is promised.
    """

    class_name: str
    profile: tuple[int, ...]
    bounds: SignedBounds
    multiplier: float | None

    @property
    def public(self) -> bool:
        return self.bounds.public


@dataclass(frozen=True)
class Schedule:
    """The policy bound to a model: blocks in order of depth, and each class's profile.

    Every trainable coordinate is in exactly one block, or frozen.

    Guarantee: for every private class k the effective noise, of :meth:`class_std`, is at least ``sigma_k * C_k``, up to one
    rounding: the least std of its blocks, or S_k where the policy has budgets. A contribution clipped to its signed bounds is
    protected at its signed noise multiplier or better (docs/mechanism, Theorems 1 and 7).
    """

    stack: LayerStack
    blocks: tuple[Block, ...]
    profiles: dict[str, tuple[int, ...]]
    frozen: tuple[Tensor, ...]
    public: frozenset[str] = frozenset()
    policy: Policy | None = None
    reads: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    """By class, the adapters that its forward reads beside the base; None, and no entry, for the whole model."""

    pairs: tuple[tuple[int, int], ...] = ()
    """Places among the tensors of all blocks, in their order, of ``lora_B`` and ``lora_A`` of every pair with a geometry."""

    @property
    def coordinates(self) -> int:
        return sum(block.coordinates for block in self.blocks)

    @cached_property
    def read_sets(self) -> tuple[frozenset[str] | None, ...]:
        """Returns what forwards of classes read, each set once, in the policy's order of classes; None is the whole model."""
        return tuple(dict.fromkeys(self.reads.get(name) for name in self.profiles))

    def read_by(self, class_name: str) -> int:
        """Returns the place among `read_sets` of what the forward of a class reads."""
        return self.read_sets.index(self.reads.get(class_name))

    def lowest_position(self, class_name: str) -> int:
        """Depth of the lowest position that a class may touch: what its backward pass costs."""
        return min(min(self.blocks[index].positions) for index in self.profiles[class_name])

    def class_std(self, class_name: str, stds: Sequence[float] | None = None) -> float:
        """Effective noise of a class: the S in its multiplier, max(sigma_i, S / C_i).

        Args:
            stds: noise per block, where it is not the schedule's.
        """
        own = self.profiles[class_name]
        shares = [] if class_name in self.public else [self.blocks[index].share for index in own]
        return allocation.effective_std([self.blocks[index].std if stds is None else stds[index] for index in own], shares)

    @cached_property
    def _class_stds(self) -> dict[str, float]:
        return {name: self.class_std(name) for name in self.profiles}

    def realised_stds(self, drawn: Iterable[ContributionDescriptor]) -> tuple[float, ...]:
        """Noise per block of a step in which these are drawn, with injection per sample: each brings (sigma_i C_i)^2.

        Public contributions bring none; a block that nobody drawn may touch has none.
        """
        own: dict[str, int] = {}
        for descriptor in drawn:
            name = descriptor.admissibility_class
            if name not in self.public:
                own[name] = own.get(name, 0) + descriptor.bounds.variance
        return tuple(realised_std(sum(own.get(name, 0) for name in block.classes)) for block in self.blocks)

    def resolve(self, admission: Admission) -> Resolution:
        """Returns noise schedule and depth profile of an admission; they depend on its class and signed bounds alone.

        Guarantee: what is resolved signed to be trained on, in a class that is for training, and bounds that its class and the
        corpus take, whoever admitted it: the clip norm is at most, and the noise multiplier at least, the preset of the class.
        Public classes resolve what signed that it is public.

        Raises:
            NotPrivateUse: with the code of the gate (CLASS_UNKNOWN, PURPOSE, CLIP_ABOVE_CLASS, NOISE_BELOW_CLASS,
                CLIP_BELOW_FLOOR, NOISE_BELOW_FLOOR, BOUNDS_NOT_PUBLIC, EXAMPLES), the gate would refuse it; PUBLIC_UNSIGNED,
                this schedule calls a class public that the policy does not, or the reverse; NO_POLICY, it was bound to no
                policy.
        """
        descriptor = admission.descriptor
        name, bounds = descriptor.admissibility_class, descriptor.bounds
        self._require_bounds(admission)
        public = name in self.public
        if public is not bounds.public:
            raise NotPrivateUse(
                "PUBLIC_UNSIGNED",
                f"class {name!r} is {'' if public else 'not '}public, and contribution "
                f"{admission.descriptor_hash.hex()[:16]}... signs the contrary; the gate refuses such, run it again",
            )
        profile = self.profiles[name]
        multiplier = None if public else effective_multiplier(bounds, [self._class_stds[name]])
        return Resolution(name, profile, bounds, multiplier)

    def _require_bounds(self, admission: Admission) -> None:
        """Raises NotPrivateUse for an admission that its class does not take."""
        descriptor, policy = admission.descriptor, self.policy
        who = f"contribution {admission.descriptor_hash.hex()[:16]}..."
        if policy is None:
            raise NotPrivateUse("NO_POLICY", f"no policy judges {who}; make the schedule with dptrain.clipping.resolver.bind")
        rule = policy.find_class(descriptor.admissibility_class)
        if rule is None or rule.name not in self.profiles:
            known = ", ".join(self.profiles)
            sentence = f"{who} is of class {descriptor.admissibility_class!r}, the policy trains {known}"
            raise NotPrivateUse("CLASS_UNKNOWN", f"{sentence}; the gate refuses such, run it again")
        try:
            check_purpose(descriptor, rule, TRAIN)
            check_bounds(descriptor, rule, policy)
        except AdmissionRefused as error:
            raise NotPrivateUse(error.code, f"{who}: {error.sentence}; the gate refuses such, run it again") from error


def bind(policy: Policy, stack: LayerStack) -> Schedule:
    """Binds a policy to a layer stack.

    A tied tensor is in a profile only if every position (and, for a name set or an adapter, every name) that uses it is.
    Tensors and parts that no class may touch are returned as ``frozen``: they get no gradient and no noise, and no step of the
    optimizer moves them.

    Blocks only ever split what classes may touch alike: the noise of a block depends on its classes alone, so naming the
    blocks of an adapter changes no bound (docs/mechanism, Corollary 1).

    Guarantee: a class that is not for training has no profile, adds nothing to the noise of a block and opens no tensor.

    Raises:
        UnsupportedPolicy: a profile that this build cannot honour, is out of range, matches nothing or touches nothing; code
            PURPOSE, no class is for training.
        UnsupportedModule: an adapter that a class is bound to cannot be trained as it stands.
    """
    policy = trained(policy)
    if stack.as_towers is not None and all(rule.depth.kind in ("set", "adapter") for rule in policy.classes):
        stack = stack.as_towers  # no rule speaks of depths, so nothing hangs on which stack they would count in
    named = stack.named()
    described = {name: tensor for tensor in named.tensors for name in tensor.names}
    for rule in policy.classes:
        _require_bindable(rule, stack)
        permits = blocks.permission(rule.depth, named)
        require_masks(rule, stack, lambda tensor, permits=permits: permits(described[tensor.name]))
    derived = blocks.derive(policy.classes, named)
    order = {tensor.name: place for place, tensor in enumerate(stack.tensors)}
    places = [next((order[name] for name in tensor.names if name in order), None) for tensor in named.tensors]

    def cut(pieces: Iterable[Piece]) -> tuple[Tensor, ...]:
        found = [(place, piece) for piece in pieces if (place := places[piece.tensor]) is not None]
        return tuple(_cut(stack.tensors[place], piece) for place, piece in sorted(found, key=lambda item: item[0]))

    rules = {rule.name: rule for rule in policy.classes}
    made = [
        Block(
            block.name,
            block.positions,
            cut(block.pieces),
            block.classes,
            scheduled_std([rules[name] for name in block.classes]),
            block.adapter,
        )
        for block in derived
        if block.classes
    ]
    profiles = {
        rule.name: tuple(index for index, block in enumerate(made) if rule.name in block.classes) for rule in policy.classes
    }
    for rule in policy.classes:
        if not profiles[rule.name]:
            raise UnsupportedPolicy("EMPTY_PROFILE", _why_empty(rule, stack))
    public = frozenset(rule.name for rule in policy.classes if rule.public)
    if policy.noise_budgets is not None:
        made = _budgeted(policy, policy.noise_budgets, made, derived)
    frozen = cut(piece for block in derived if not block.classes for piece in block.pieces)
    scheduled = {tensor.name: lane for lane, tensor in enumerate(t for block in made for t in block.tensors)}
    lanes = {place: scheduled.get(stack.tensors[own].name) for place, own in enumerate(places) if own is not None}
    pairs = _pairs(policy, named, derived, lanes)
    return Schedule(stack, tuple(made), profiles, frozen, public, policy, _reads(policy, named, derived), pairs)


def trained(policy: Policy) -> Policy:
    """Returns a policy with the classes that are for training alone. Raises UnsupportedPolicy: code PURPOSE, there is none."""
    try:
        return policy.for_training()
    except PolicyRefused as error:
        raise UnsupportedPolicy(error.code, error.sentence) from error


def _reads(policy: Policy, stack: Stack, derived: Sequence[StackBlock]) -> dict[str, frozenset[str] | None]:
    """Returns the adapters that the forward of each class reads, None for the whole model.

    Raises:
        UnsupportedPolicy: code READS, what the policy says does not fit the model.
    """
    try:
        read_blocks(policy.classes, stack, derived)
    except ValueRefused as error:
        raise UnsupportedPolicy(error.code, error.sentence) from error
    return {rule.name: None if rule.reads is None else frozenset(rule.reads.adapters) for rule in policy.classes}


def _pairs(
    policy: Policy, stack: Stack, derived: Sequence[StackBlock], lanes: Mapping[int, int | None]
) -> tuple[tuple[int, int], ...]:
    """Returns the places among scheduled tensors of the factors of every pair that a class may touch.

    Raises:
        UnsupportedPolicy: code GEOMETRY, the geometry of the policy does not fit the model.
    """
    try:
        couples = couples_of(policy, stack, derived)
    except ValueRefused as error:
        raise UnsupportedPolicy(error.code, error.sentence) from error
    found = ((lanes.get(couple.a), lanes.get(couple.b)) for couple in couples)
    return tuple((up, down) for up, down in found if up is not None and down is not None)


def _cut(tensor: Tensor, piece: Piece) -> Tensor:
    """Returns a tensor, or the part of it that a piece has."""
    if piece.owners is None:
        return tensor
    (division,) = tensor.divisions
    assert division.dim is not None and tensor.part is None
    runs = [run for run in division.runs if owned(run) in piece.owners]
    return replace(tensor, part=Part.of(division.dim, runs))


def _budgeted(
    policy: Policy, budgets: tuple[int, int, int], made: Sequence[Block], derived: Sequence[StackBlock]
) -> list[Block]:
    """The same blocks with their shares, and with the noise that these need.

    Raises:
        UnsupportedPolicy: code PROGRAMME, the bounds of the classes are too far apart to be settled.
    """
    shared = [
        replace(block, share=blocks.clip_share(named, budgets) if block.std else 0)
        for block, named in zip(made, derived, strict=False)
    ]
    try:
        stds = allocation.budget_stds(policy.classes, shared).stds
    except ValueRefused as error:
        raise UnsupportedPolicy(error.code, f"[noise.budgets]: {error.sentence}") from error
    return [replace(block, std=std) for block, std in zip(shared, stds, strict=True)]


def _require_bindable(rule: ClassRule, stack: LayerStack) -> None:
    """Raises for a depth rule that speaks of something which this model does not have."""
    depth = rule.depth
    if depth.adapter is not None:
        require_adapter(stack.adapters, depth.adapter, rule.name)
    if depth.layers is not None and len(stack.towers) > 1:
        names = ", ".join(tower.name for tower in stack.towers)
        raise UnsupportedPolicy(
            "LAYERS_OF_SEVERAL_STACKS",
            f"class {rule.name!r} names layers {list(depth.layers)}, but the model has {len(stack.towers)} stacks ({names}); "
            f'use set = ["{stack.towers[0].layers[depth.layers[0] % len(stack.towers[0].layers)]}.*", ...]',
        )
    if depth.layers is not None and max(depth.layers) >= len(stack.layers):
        raise UnsupportedPolicy(
            "LAYER_RANGE", f"the policy names layers {list(depth.layers)}; the model has {len(stack.layers)} layers"
        )
    known = [alias for tensor in stack.tensors for alias in tensor.aliases]
    for pattern in depth.patterns or ():
        if any(fnmatch.fnmatchcase(name, pattern) for name in known):
            continue
        untrained = (alias for tensor in stack.untrained for alias in tensor.aliases)
        still = next((name for name in untrained if fnmatch.fnmatchcase(name, pattern)), None)
        if still is not None:
            raise UnsupportedPolicy(
                "PATTERN_UNTRAINED",
                f"class {rule.name!r}: {pattern!r} matches only parameters that are not trainable (first: {still!r}); set "
                "requires_grad on them before prepare(), or sign a policy without the pattern",
            )
        near = " or ".join(repr(name) for name in nearest(pattern, known))
        raise UnsupportedPolicy(
            "PATTERN_MATCHES_NOTHING",
            f"class {rule.name!r}: {pattern!r} matches the name of no parameter of this model; patterns are matched from the "
            f"first to the last character of a name, nearest: {near}",
        )


def _why_empty(rule: ClassRule, stack: LayerStack) -> str:
    """Why a class may touch nothing."""
    patterns = rule.depth.patterns or ()
    for tensor in stack.tensors:
        missing = [alias for alias in tensor.aliases if not _matches(alias, patterns)]
        if patterns and len(missing) < len(tensor.aliases):
            hit = next(alias for alias in tensor.aliases if _matches(alias, patterns))
            return (
                f"class {rule.name!r} may touch no trainable tensor: {hit!r} is tied to {missing[0]!r}, which none of its "
                "patterns matches; add a pattern for it, or untie them"
            )
    return (
        f"class {rule.name!r} may touch no trainable tensor of this model ({len(stack.layers)} layers); check its depth rule "
        "and which parameters are trainable"
    )


def nearest(pattern: str, names: Sequence[str], wanted: int = 3) -> list[str]:
    """The patterns of whole modules (or names of parameters) that look most like a pattern that matches nothing."""
    literal = max(re.split(r"[*?\[\]]+", pattern), key=len).strip(".").lower()
    width = literal.count(".") + 1
    scores: dict[str, float] = {}
    for name in names:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            shown = ".".join(parts[:end]) + (".*" if end < len(parts) else "")
            if shown not in scores:
                tail = ".".join(parts[max(0, end - width) : end]).lower()
                alike = difflib.SequenceMatcher(None, literal, tail).ratio()
                common = len(literal) if tail.startswith(literal) else 0  # "vision" is meant by "vision_model"
                scores[shown] = alike + (common > 0) - 0.01 * end
    return sorted(scores, key=lambda shown: (-scores[shown], shown))[:wanted]


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
