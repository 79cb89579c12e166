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
        wide: whether tokens go with masks of four dimensions, which are made once and not anew at every token
            (`reads_wide_masks`).
    """

    def __init__(self, model: Any, rows: Rows, steps: int, minibatch: int | None = None, *, wide: bool = False) -> None:
        count, length = rows.ids.shape
        self._model, self._count, self._size = model, count, minibatch or count
        device = model.device
        places = [place if place < count else 0 for place in range(-(-count // self._size) * self._size)]
        chunks = [places[start : start + self._size] for start in range(0, len(places), self._size)]
        self._ids = [rows.ids[chunk].to(device) for chunk in chunks]
        behind = torch.ones((self._size, steps), dtype=torch.long)
        self._masks = [torch.cat([rows.mask[chunk], behind], 1).to(device) for chunk in chunks]
        self._caches: list[Any] = [None] * len(chunks)
        self._behind = [_wide(model, mask) for mask in self._masks] if wide else self._masks
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
            mask = self._behind[number][..., : self._length]
            found.append(self._call(number, ids, mask, self._next[number]))
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


def reads_wide_masks(model: Any, rows: Rows, minibatch: int | None = None) -> bool:
    """Tells whether a model gives the same logits, up to rounding, with masks of four dimensions.

    Guarantee: False where it was not seen to; masks of two dimensions are right for every model, and slower.

    Args:
        rows: with padding, in which there is nobody's text.
    """
    config = model.config.get_text_config()
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    if getattr(config, "sliding_window", None) is not None or layers != {"full_attention"}:
        return False
    found = []
    try:
        for wide in (False, True):
            forward = Forward(model, rows, 3, minibatch, wide=wide)
            forward.begin()
            found.append(np.stack([forward.step(token) for token in (1, 2, 3)]))
    except (ValueError, TypeError, RuntimeError, IndexError, AttributeError):  # a model that takes no such mask
        return False
    near = 1e-4 if next(model.parameters()).dtype == torch.float32 else 2e-2
    finite = all(np.isfinite(one).all() for one in found)
    return finite and bool(np.abs(found[0] - found[1]).max() <= near * np.std(found[0]))


def _wide(model: Any, mask: torch.Tensor) -> torch.Tensor:
    """Returns what is added to scores, shape (m, 1, 1, L + T): nothing, or the least number where there is padding."""
    kind = next(model.parameters()).dtype
    least = torch.full_like(mask, torch.finfo(kind).min, dtype=kind)
    return least.masked_fill(mask.bool(), 0.0)[:, None, None, :]


def _takes(model: Any) -> frozenset[str]:
    """Returns the names of what a model's forward takes; those of what lies below an adapter, for one of peft."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return frozenset(inspect.signature(inner.forward).parameters)
