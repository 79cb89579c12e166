"""Microbatches of whole contributions: what a training loop sees between the draw and the loss."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dptrain.errors import ConfigError

Collate = Callable[..., Mapping[str, Any]]
"""Examples to a mapping of tensors with the example in dimension 0, of shapes that do not depend on the content.

Where the policy offers public lengths it is called with ``length=``, the tokens that every example is padded or cut to.
"""

Decode = Callable[[bytes], list[Any]]
"""Content bytes of a contribution to its examples."""


def json_examples(content: bytes) -> list[Any]:
    """Examples of a JSON contribution: an array is several examples, anything else is one.

    Raises:
        ConfigError: the bytes are not JSON; it does not repeat them.
    """
    try:
        value = json.loads(content)
    except ValueError as error:
        raise ConfigError(
            "DECODE",
            f"a contribution is not JSON ({type(error).__name__}); pass decode= to prepare() for other contents",
        ) from None
    return value if isinstance(value, list) else [value]


@dataclass(frozen=True)
class Microbatch(Mapping[str, Any]):
    """Collated examples of N contributions with M rows each; behaves as the mapping that ``collate`` returned.

    ``weight`` has shape (N * M,): 1/m_i for the m_i examples of contribution i, 0 for rows that only pad it to M. At exactness
    ``certified`` some contributions at the end may only fill up the microbatch: all their rows weigh 0. Of a contribution
    with more examples than fit, a microbatch holds a part, each row still weighing 1/m_i. ``names`` says whose row each is
    (:func:`row_names`): random numbers of the forward are addressed by it. ``length`` is the public length of all its
    contributions, None where the policy offers none.
    """

    inputs: dict[str, Any]
    contributions: int
    examples: int
    weight: torch.Tensor
    names: tuple[bytes, ...]
    length: int | None = None

    def __getitem__(self, key: str) -> Any:
        return self.inputs[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.inputs)

    def __len__(self) -> int:
        return len(self.inputs)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def alone(self, contribution: int, contributions: int = 1) -> "Microbatch":
        """One of its contributions in a microbatch of its own, filled up to ``contributions`` by copies that weigh nothing."""
        own = slice(contribution * self.examples, (contribution + 1) * self.examples)
        inputs = {
            key: torch.cat([value[own]] * contributions) if isinstance(value, torch.Tensor) else value
            for key, value in self.inputs.items()
        }
        weight = torch.cat((self.weight[own], self.weight.new_zeros((contributions - 1) * self.examples)))
        names = self.names[own] + row_names((), self.examples, fill=contributions - 1)
        return Microbatch(inputs, contributions, self.examples, weight, names, self.length)


def row_names(owners: Sequence[bytes], examples: int, *, first: int = 0, fill: int = 0) -> tuple[bytes, ...]:
    """Whose row every row of a microbatch is: contribution and example, or a number for rows that only fill it up.

    Args:
        owners: hash of the descriptor of each contribution. examples: rows of each. first: number of the first example, where
            the microbatch holds a part of a contribution. fill: further contributions that only fill up.
    """
    whose = [*owners, *(b"fill" + place.to_bytes(4, "big") for place in range(fill))]
    return tuple(owner + (first + row).to_bytes(4, "big") for owner in whose for row in range(examples))


def to_device(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies a tensor to where the run is; to an accelerator from pinned memory, without waiting for the copy.

    The allocator of pinned memory keeps the source until the copy is over.
    """
    if device.type == "cpu" or value.device.type != "cpu":
        return value.to(device)
    return pinned(value, device).to(device, non_blocking=True)


def pinned(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns a tensor in memory that a device copies by itself, where it has such memory."""
    return value if device.type != "cuda" or value.is_pinned() else value.pin_memory()


def build(
    contributions: Sequence[list[Any]],
    collate: Collate,
    device: torch.device,
    names: Sequence[bytes] = (),
    *,
    rows_each: int | None = None,
    whole: int | None = None,
    fill: int = 0,
    length: int | None = None,
) -> Microbatch:
    """Collates contributions; each is padded to M rows by repeating its own first one.

    Args:
        names: whose row each row is, those that pad and fill included; none where nobody asks.
        rows_each: M; default the largest number of examples. whole: where ``contributions`` is one part of a contribution, the
            number of examples of all its parts. fill: contributions to add that weigh nothing and repeat the first example.
        length: the public length of all of them, which ``collate`` knows already.

    Raises:
        ConfigError: a contribution without examples, or a collate that does not return tensors per example.
    """
    largest = rows_each or max(len(examples) for examples in contributions)
    rows: list[Any] = []
    weight: list[float] = []
    for examples in contributions:
        if not examples:
            raise ConfigError("EMPTY_CONTRIBUTION", "a contribution decodes to no example; expected one or more")
        if len(examples) > largest:
            raise ValueError(f"{len(examples)} examples do not fit {largest} rows; rows of others would be taken for its own")
        rows += examples + [examples[0]] * (largest - len(examples))
        weight += [1.0 / (whole or len(examples))] * len(examples) + [0.0] * (largest - len(examples))
    rows += rows[:1] * (fill * largest)
    weight += [0.0] * (fill * largest)
    collated = collate(rows)
    if not isinstance(collated, Mapping):
        raise ConfigError("COLLATE", f"collate returned {type(collated).__name__}, expected a mapping of names to tensors")
    inputs = {}
    for key, value in collated.items():
        if isinstance(value, torch.Tensor):
            if value.shape[:1] != (len(rows),):
                raise ConfigError(
                    "COLLATE",
                    f"collate gave {key!r} the shape {tuple(value.shape)} for {len(rows)} examples: dimension 0 must be the "
                    "example",
                )
            value = to_device(value, device)
        inputs[key] = value
    weights = torch.tensor(weight, dtype=torch.float64)
    return Microbatch(inputs, len(contributions) + fill, largest, weights, tuple(names), length)
