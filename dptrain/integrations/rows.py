"""Examples of a run, and how they become rows of one length, so that no example shapes the rows of another."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from dptrain.data.contributions import Pool
from dptrain.data.slots import Slots
from dptrain.engine.private_training import PrivateTraining

_FILL = {"labels": -100, "special_tokens_mask": 1}
"""Fills up columns of tokens: the pad token for `input_ids`, zero for all others."""


class FixedLength:
    """A collator that drops columns, brings the tokens of every example to one length, and calls the user's collator.

    Collators pad to the longest example of a batch by default. Here every example has the full length before they see it.

    Args:
        collator: the user's, or the default one. columns: kept columns; None for all. length: tokens of a row; None to leave
            them as they are. pad: the pad token. left: whether padding goes before the tokens.
    """

    def __init__(
        self, collator: Callable[[list[Any]], Any], columns: Collection[str] | None, length: int | None, pad: int, left: bool
    ) -> None:
        self._collator = collator
        self._columns = columns
        self._length = length
        self._pad = pad
        self._left = left

    def __call__(self, examples: list[Any], length: int | None = None) -> dict[str, Any]:
        """Collates examples, in the public length of their contributions where they have one."""
        if not all(isinstance(example, Mapping) for example in examples):
            return dict(self._collator(examples))
        rows = [self._row(example, length or self._length) for example in examples]
        found = dict(self._collator(rows))
        if "attention_mask" in rows[0]:  # some collators make one that takes padding for tokens
            found["attention_mask"] = torch.as_tensor(np.asarray([row["attention_mask"] for row in rows]))
        return found

    def _row(self, example: Mapping[str, Any], length: int | None) -> dict[str, Any]:
        row = {key: value for key, value in example.items() if self._columns is None or key in self._columns}
        tokens = row.get("input_ids")
        if length is None or tokens is None or np.ndim(tokens) != 1:
            return row
        count = len(tokens)
        row.setdefault("attention_mask", [1] * count)
        return {key: self._fitted(key, value, length) if _as_long(value, count) else value for key, value in row.items()}

    def _fitted(self, key: str, value: Any, length: int) -> Any:
        cut = list(value[:length])
        fill = [self._pad if key == "input_ids" else _FILL.get(key, 0)] * (length - len(cut))
        return fill + cut if self._left else cut + fill


def _as_long(value: Any, count: int) -> bool:
    return isinstance(value, list | tuple | np.ndarray | torch.Tensor) and np.ndim(value) == 1 and len(value) == count


def contributions_of(private: PrivateTraining) -> Iterator[tuple[bytes, list[Any]]]:
    """Yields the contributions that were admitted: the hash of each content, and its examples."""
    opened = private.opened
    pool = Pool(opened.corpus, opened.decode, Slots.unresolved(opened.gate.admitted), private.policy)
    with pool.reading() as contents:
        for index in range(len(pool)):
            yield pool.slots.content_hash(index), pool.decoded(index, contents)
