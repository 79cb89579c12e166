"""Pairs of LoRA factors under the geometry of a policy: which tensors of a stack they are, and what their noise adds up to.

Trainer, writer of a header and auditor take the pairs from this one room. Names, sizes and blocks of the tensors follow from
policy and stack; the rank of a pair is what the trainer says of it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from attest.errors import ValueRefused
from attest.policy import Policy
from attest.schedule.blocks import StackBlock, derive
from attest.schedule.stack import Stack, StackTensor

FRAMES: Final = "dptrain.frames/1"
"""The rule by which frames follow from a pair: orthonormal bases of the column spaces of its two factors, as these are at the
start of a step, of as many columns as the rank that they have there. A pair of which a factor has a rank above 0 and below that
of the pair keeps the coordinates of its factors in that step, and so does one in which nothing is noised."""

GEOMETRY: Final = "GEOMETRY"
"""Code of every refusal here."""

_A: Final = "lora_B"
"""Word of the name of factor A, of m rows and r columns: what the layer multiplies by last."""

_B: Final = "lora_A"
"""Word of the name of the transpose of factor B, of n rows and r columns."""

_APART: Final = {
    "lora_embedding_A": "a factor of an embedding, whose gradient is no matrix product",
    "lora_embedding_B": "a factor of an embedding, whose gradient is no matrix product",
    "lora_magnitude_vector": "the magnitude of DoRA, which makes the output depend on more than the product of two factors",
}
"""Words of the names of tensors beside which no pair of the adapter is one, with what they are."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Describes two factors that move along the tangent space of their product ``Z = A B^T``.

    Attributes:
        a: place of ``lora_B`` among the tensors of the stack: factor A, of m rows.
        b: place of ``lora_A``: the transpose of factor B, of n rows.
        rank: columns r of both factors.
        m: rows of A, the outputs of the layer.
        n: rows of B, the inputs of it.
        block: place of the block that both lie in, among those of `attest.schedule.blocks.derive`.
    """

    a: int
    b: int
    rank: int
    m: int
    n: int
    block: int

    @property
    def coordinates(self) -> int:
        """Returns r (m + n): how many numbers are clipped, summed and noised, the same as those of the two factors."""
        return self.rank * (self.m + self.n)

    @property
    def energy(self) -> int:
        """Returns k (m + n - k) for k = min(r, m, n): the dimension of the tangent space at a product of full rank.

        It is the expected squared norm of noise of unit variance once the release is projected. Source of the dimension:
        Vandereycken, Low-Rank Matrix Completion by Riemannian Optimization (2013), Proposition 2.1.
        """
        k = min(self.rank, self.m, self.n)
        return k * (self.m + self.n - k)


class Sized(Protocol):
    """Holds how large a block is."""

    @property
    def coordinates(self) -> int: ...


@dataclass(frozen=True, slots=True)
class BlockEnergy:
    """Adds up a block in which pairs lie.

    Attributes:
        block: its place.
        pairs: how many pairs lie in it.
        coordinates: all coordinates of the block, which are clipped and noised: the energy of noise of unit variance on them.
        energy: what is left of that once the tangents of its pairs are projected; other tensors keep all of theirs.
    """

    block: int
    pairs: int
    coordinates: int
    energy: int


def energies_of(pairs: Iterable[Pair], blocks: Sequence[Sized]) -> tuple[BlockEnergy, ...]:
    """Returns what the noise of blocks with pairs adds up to, ascending by block, for noise of unit variance.

    Args:
        pairs: those of `pairs_of`.
        blocks: all blocks of the model, those of `attest.schedule.blocks.derive` or of a header.
    """
    own: dict[int, list[Pair]] = {}
    for pair in pairs:
        own.setdefault(pair.block, []).append(pair)
    found = []
    for place, here in sorted(own.items()):
        size = blocks[place].coordinates
        found.append(BlockEnergy(place, len(here), size, size - sum(pair.coordinates - pair.energy for pair in here)))
    return tuple(found)


class Couple(NamedTuple):
    """Names two factors by their places in a stack, ``lora_B`` first, and the place of the block that both lie in."""

    a: int
    b: int
    block: int


def couples_of(policy: Policy, stack: Stack, blocks: Sequence[StackBlock] | None = None) -> tuple[Couple, ...]:
    """Finds the pairs of a model under the geometry of a policy, ascending by the place of ``lora_B``.

    Guarantee: the couples are all trained tensors ``P.lora_B.ADAPTER.weight`` and ``P.lora_A.ADAPTER.weight`` of the adapters
    that the policy gives a geometry. Each tensor has one name and lies in that adapter. Both of a couple lie whole in one
    block. Every adapter that the policy names has one. No other factor of these adapters is trained.

    Args:
        policy: what has `geometry` and classes.
        stack: the tensors by name.
        blocks: the blocks of policy and stack, where they are at hand.

    Raises:
        ValueRefused: code GEOMETRY, with the tensor or the adapter that is not so.
    """
    if not policy.geometry:
        return ()
    present = dict.fromkeys(tensor.adapter for tensor in stack.tensors if tensor.adapter is not None)
    named = {name for rule in policy.geometry for name in rule.adapters or ()}
    every = any(rule.adapters is None for rule in policy.geometry)
    adapters = set(present) if every else named
    found: dict[tuple[tuple[str, ...], str], dict[str, int]] = {}
    for place, tensor in enumerate(stack.tensors):
        factor = _factor(tensor, adapters, every=every) if tensor.trained else None
        if factor is not None:
            found.setdefault((factor.outer, factor.adapter), {})[factor.word] = place
    for (outer, adapter), own in found.items():
        _check_partner(stack, outer, adapter, own)
    for adapter in sorted(named - {adapter for _, adapter in found}):
        there = f"the model has {', '.join(present)}" if present else "the model has no adapter"
        raise _refused(f"adapter {adapter!r} of [[geometry]] has no trained LoRA pair in this model ({there}); leave it out")
    if not found:
        raise _refused("[[geometry]] finds no trained LoRA pair in this model; leave it out, or train a LoRA adapter")
    within = derive(policy.classes, stack) if blocks is None else blocks
    return tuple(sorted(_placed(stack, within, [(own[_A], own[_B]) for own in found.values()])))


def pairs_of(
    policy: Policy, stack: Stack, ranks: Mapping[str, int], blocks: Sequence[StackBlock] | None = None
) -> tuple[Pair, ...]:
    """Returns the pairs of a model under the geometry of a policy, ascending by the place of ``lora_B``; none without one.

    Guarantee: as `couples_of`, and every rank divides the coordinates of both factors of its pair.

    Args:
        policy: what has `geometry` and classes.
        stack: the tensors by name.
        ranks: the rank of every pair, and of nothing else, by the name of its tensor ``lora_B``.
        blocks: the blocks of policy and stack, where they are at hand.

    Raises:
        ValueRefused: code GEOMETRY, as `couples_of`; or a rank is missing, does not fit, or is of no pair.
    """
    found = []
    left = dict(ranks)
    for a, b, block in couples_of(policy, stack, blocks):
        first, second = stack.tensors[a], stack.tensors[b]
        name = first.names[0]
        rank = left.pop(name, None)
        if rank is None:
            raise _refused(f"pair {name} has no rank; expected one for every pair of the geometry")
        sizes = first.coordinates, second.coordinates
        if type(rank) is not int or rank < 1 or any(size < rank or size % rank for size in sizes):
            told = f"the rank of pair {name} is {rank!a:.40}"
            raise _refused(f"{told}, expected a whole number that divides the {sizes[0]} and {sizes[1]} coordinates of it")
        found.append(Pair(a, b, rank, sizes[0] // rank, sizes[1] // rank, block))
    for name in left:
        raise _refused(f"there is a rank of {name!a:.120}, which is no pair under the geometry of the policy; leave it out")
    return tuple(found)


class _Factor(NamedTuple):
    """Says of a tensor which factor of which pair it is; `outer`: the words of its name before that."""

    outer: tuple[str, ...]
    word: str
    adapter: str


def _factor(tensor: StackTensor, adapters: set[str], *, every: bool) -> _Factor | None:
    """Returns which factor a trained tensor is; None for one that keeps its own coordinates.

    Args:
        adapters: those that have the geometry. every: all adapters have it, whatever they are named.
    """
    marked = [(name, *found) for name in tensor.names if (found := _marked(name)) is not None]
    if tensor.adapter not in adapters:
        for name, _, word, rest in marked:
            adapter = rest.removesuffix(".weight")
            if word in (_A, _B) and rest != adapter and (adapter in adapters or (every and tensor.adapter is None)):
                owner = "the model itself" if tensor.adapter is None else f"adapter {tensor.adapter!r}"
                raise _refused(f"parameter {name} is of adapter {adapter!r} by its name, and of {owner} in the stack")
        return None
    for name, outer, word, rest in marked:
        if word in _APART:
            raise _refused(f"parameter {name} is {_APART[word]}; leave adapter {tensor.adapter!r} out of [[geometry]]")
        if word == _A and rest == f"{tensor.adapter}.bias":
            continue
        if rest != f"{tensor.adapter}.weight":
            raise _refused(
                f"parameter {name} is a LoRA factor, and is not named P.{word}.{tensor.adapter}.weight, so that it has no"
                f" partner; leave adapter {tensor.adapter!r} out of [[geometry]]"
            )
        if len(tensor.names) != 1:
            raise _refused(
                f"parameter {name} has {len(tensor.names)} names, and the factors of a pair are tensors of their own; give"
                f" every layer its own, or leave adapter {tensor.adapter!r} out of [[geometry]]"
            )
        return _Factor(outer, word, str(tensor.adapter))
    return None


def _marked(name: str) -> tuple[tuple[str, ...], str, str] | None:
    """Parts a name at its last word that is LoRA's: the words before it, the word, and what stands behind."""
    words = name.split(".")
    for at in range(len(words) - 1, -1, -1):
        if words[at] in (_A, _B) or words[at] in _APART:
            return tuple(words[:at]), words[at], ".".join(words[at + 1 :])
    return None


def _check_partner(stack: Stack, outer: tuple[str, ...], adapter: str, own: Mapping[str, int]) -> None:
    if len(own) == 2:
        return
    ((word, place),) = own.items()
    other = ".".join((*outer, _B if word == _A else _A, adapter, "weight"))
    name = stack.tensors[place].names[0]
    raise _refused(
        f"parameter {name} has no partner: {other} is not trained, or not there; train both factors, or leave adapter"
        f" {adapter!r} out of [[geometry]]"
    )


def _placed(stack: Stack, blocks: Sequence[StackBlock], couples: Iterable[tuple[int, int]]) -> Iterator[Couple]:
    """Yields couples with their block; refuses those that blocks cut, or that lie in two."""
    lying: dict[int, list[int]] = {}
    for number, part in enumerate(blocks):
        for piece in part.pieces:
            lying.setdefault(piece.tensor, []).append(number)
    for a, b in couples:
        for place in (a, b):
            if len(lying[place]) != 1:
                own = ", ".join(blocks[number].name for number in lying[place][:4])
                raise _refused(
                    f"parameter {stack.tensors[place].names[0]} of a pair is cut by a mask of heads or experts into {own}; a"
                    " pair is clipped and noised whole: give these classes no mask, or leave the adapter out of [[geometry]]"
                )
        (block,), (other,) = lying[a], lying[b]
        if block != other:
            names = f"{stack.tensors[a].names[0]} lies in {blocks[block].name}, and its partner in {blocks[other].name}"
            raise _refused(
                f"parameter {names}; a depth permits both factors of a pair, or neither. If what was found are no layers, name"
                " them (layers=)"
            )
        yield Couple(a, b, block)


def _refused(sentence: str) -> ValueRefused:
    return ValueRefused(GEOMETRY, sentence)
