"""Lays a product B A h over the slots of a ciphertext, as sums of turned and scaled copies (baby steps and giant steps).

Let P be the width, r the rank (a power of two), and k a slot. The state stands c times in the slots, copy q turned by q, so
that slot q P + l has h[(l + q) mod P]; all that has the period c P.

* z: sum over i = 0, c, 2c, ... < r of A[k mod r, col(k + i)] · h[col(k + i)], where col says which entry a slot has. Turning by
  r, 2r, ..., c P / 2 and adding gives z[k mod r] in every slot: for row j, copy q has the columns l with (l - j) mod c = q.
  Twice the copies halve the products of the dearest level, for one more turn at the next.
* delta: sum over i < r of B[k mod P, (k + i) mod r] · z[(k + i) mod r], with period P.

Each of these sums is the product of a matrix by its diagonals (Halevi and Shoup 2014, "Algorithms in HElib", section 4). The n
terms are in groups of b: the b copies of the vector are made one from the other, and the groups are turned by Horner's rule,
group 0 + turn(group 1 + turn(group 2 + ...)). So all turns are by powers of two, and 12 keys for a width of 2048 serve every
rank.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dptrain.inference.he.scheme import SLOTS, copies

Array = npt.NDArray[np.float64]


def baby_steps(terms: int) -> int:
    """Returns b, a power of two near the root of the number of terms: b - 1 baby steps and n / b - 1 giant ones."""
    return 1 << (terms.bit_length() // 2)


def folds(rank: int, width: int) -> tuple[int, ...]:
    """Returns by how many slots parts of z are turned before they are added: r, 2r, ..., c P / 2."""
    return tuple(rank << power for power in range((copies(width) * width // rank).bit_length() - 1))


def repeated(values: Array, width: int) -> Array:
    """Returns the values of all slots: a vector with zeros up to the width, in turned copies."""
    padded = np.zeros(width)
    padded[: len(values)] = values
    return padded[_columns(width)]


def inward(a_RP: Array) -> Iterator[Array]:
    """Yields the diagonals of A (r x P) over all slots, each turned back by its giant step."""
    rank, width = a_RP.shape
    slot, number, columns = np.arange(SLOTS), copies(width), _columns(width)
    terms = max(1, rank // number)
    twice = max(1, number // rank)  # below a rank of c, so many copies have the same columns of a row
    for term in range(terms):
        diagonal = a_RP[slot % rank, np.roll(columns, -term * number)] / twice
        yield np.roll(diagonal, _giant(term, terms) * number)


def outward(b_PR: Array) -> Iterator[Array]:
    """Yields r diagonals of B (P x r) over all slots, each turned back by its giant step."""
    width, rank = b_PR.shape
    slot = np.arange(SLOTS)
    for term in range(rank):
        yield np.roll(b_PR[slot % width, (slot + term) % rank], _giant(term, rank))


def _columns(width: int) -> npt.NDArray[np.int64]:
    """Returns which entry of the state each slot has."""
    slot = np.arange(SLOTS)
    return (slot + slot // width % copies(width)) % width


def _giant(term: int, terms: int) -> int:
    return term - term % baby_steps(terms)
