"""Runs a model over the rows of a text: their prompts once, then one common token for all rows a step, with a cache.

The shape of every call is public. Rows may be divided into minibatches of one size; the last is filled up with copies of the
public row, so that none is dropped and none is smaller.
"""

import inspect
from typing import Any

import numpy as np
import torch

from dptrain.errors import ConfigError
from dptrain.inference.invisibleink.rows import Rows


class Forward:
    """Gives the logits of all rows, a token at a time; of one text.

    Guarantee: the logits of every row are returned, in the order of the rows, whatever the size of minibatches.

    Args:
        model: causal language model of transformers, in evaluation. steps: most tokens behind the prompts.
        minibatch: rows of one call of the model; None for all.
    """

    def __init__(self, model: Any, rows: Rows, steps: int, minibatch: int | None = None) -> None:
        count, length = rows.ids.shape
        self._model, self._count, self._size = model, count, minibatch or count
        device = model.device
        places = [place if place < count else 0 for place in range(-(-count // self._size) * self._size)]
        chunks = [places[start : start + self._size] for start in range(0, len(places), self._size)]
        self._ids = [rows.ids[chunk].to(device) for chunk in chunks]
        behind = torch.ones((self._size, steps), dtype=torch.long)
        self._masks = [torch.cat([rows.mask[chunk], behind], 1).to(device) for chunk in chunks]
        self._caches: list[Any] = [None] * len(chunks)
        self._length, self._steps = length, steps
        self._takes = _takes(model)
        ends = [mask[:, :length].sum(1, keepdim=True) for mask in self._masks]
        self._next = ends  # position of the next token in each row

    @torch.inference_mode()
    def begin(self) -> np.ndarray:
        """Runs the prompts, and returns the logits behind them: float32, shape (B + 1, V)."""
        found = []
        for number, ids in enumerate(self._ids):
            mask = self._masks[number][:, : self._length]
            found.append(self._call(number, ids, mask, (mask.cumsum(1) - 1).clamp(min=0)))
        return self._joined(found)

    @torch.inference_mode()
    def step(self, token: int) -> np.ndarray:
        """Appends one token to all rows, and returns the logits behind it: float32, shape (B + 1, V)."""
        found = []
        self._length += 1
        for number in range(len(self._ids)):
            ids = torch.full((self._size, 1), token, device=self._ids[number].device)
            found.append(self._call(number, ids, self._masks[number][:, : self._length], self._next[number]))
            self._next[number] = self._next[number] + 1
        return self._joined(found)

    def _call(self, number: int, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        more: dict[str, Any] = {}
        if "position_ids" in self._takes:
            more["position_ids"] = positions
        if "logits_to_keep" in self._takes:
            more["logits_to_keep"] = 1
        out = self._model(
            input_ids=ids, attention_mask=mask, past_key_values=self._caches[number], use_cache=True, return_dict=True, **more
        )
        if out.past_key_values is None:
            raise ConfigError("CACHE", "the model keeps no cache of keys and values; use one that does")
        self._caches[number] = out.past_key_values
        return out.logits[:, -1]

    def _joined(self, found: list[torch.Tensor]) -> np.ndarray:
        whole = found[0] if len(found) == 1 else torch.cat(found)
        return whole[: self._count].float().cpu().numpy()  # float32 holds bfloat16 and float16 exactly


def _takes(model: Any) -> frozenset[str]:
    """Returns the names of what a model's forward takes; those of what lies below an adapter, for one of peft."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return frozenset(inspect.signature(inner.forward).parameters)
