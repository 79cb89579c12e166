"""Lays a product B A h over the slots of a ciphertext, as sums of turned and scaled copies (baby steps and giant steps).

The state stands in all slots with period P, the width. With r the rank, a power of two, and k a slot:

* z: sum over i < r of A[k mod r, (k + i) mod P] · h[(k + i) mod P] has a part of z[k mod r]; turning by r, 2r, ..., P/2 and
  adding gives all of it, with period r.
* delta: sum over i < r of B[k, (k + i) mod r] · z[(k + i) mod r], with period P.

Each of these sums is the product of a matrix by its diagonals (Halevi and Shoup 2014, "Algorithms in HElib", section 4). With
i = b j + i', the copies turned by i' < b are made one from the other, and the sums over i' of each j are turned by Horner's
rule: sum_j turn^(bj)(inner_j) = inner_0 + turn^b(inner_1 + turn^b(...)). So all turns are by powers of two, and 11 keys for a
width of 2048 serve every rank.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dptrain.inference.he.scheme import SLOTS

Array = npt.NDArray[np.float64]


def baby_steps(rank: int) -> int:
    """Returns b, the power of two at or above the root of the rank: b - 1 baby steps and r / b - 1 giant ones."""
    return 1 << (rank.bit_length() // 2)


def folds(rank: int, width: int) -> tuple[int, ...]:
    """Returns by how many slots parts of z are turned before they are added: r, 2r, ..., P/2."""
    return tuple(rank << power for power in range((width // rank).bit_length() - 1))


def periodic(values: Array, width: int) -> Array:
    """Returns the values of all slots: a vector with zeros up to the width, again and again."""
    padded = np.zeros(width)
    padded[: len(values)] = values
    return np.tile(padded, SLOTS // width)


def inward(a_RP: Array) -> Iterator[Array]:
    """Yields r diagonals of A (r x P), each over all slots and turned back by its giant step."""
    rank, width = a_RP.shape
    slot = np.arange(SLOTS)
    for i in range(rank):
        yield _turned_back(a_RP[slot % rank, (slot + i) % width], i, rank)


def outward(b_PR: Array) -> Iterator[Array]:
    """Yields r diagonals of B (P x r), each over all slots and turned back by its giant step."""
    width, rank = b_PR.shape
    slot = np.arange(SLOTS)
    for i in range(rank):
        yield _turned_back(b_PR[slot % width, (slot + i) % rank], i, rank)


def _turned_back(diagonal: Array, i: int, rank: int) -> Array:
    return np.roll(diagonal, i - i % baby_steps(rank))
