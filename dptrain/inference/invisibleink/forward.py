"""Runs a model over the rows of a text: their prompts once, then one common token for all rows a step, with a cache.

The shape of every call is public. Rows may be divided into minibatches of one size; the last is filled up with copies of the
public row, so that none is dropped and none is smaller.
"""

import inspect
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from dptrain.errors import ConfigError
from dptrain.inference.invisibleink.rows import Rows

if TYPE_CHECKING:
    from dptrain.inference.invisibleink.decoding.graph import StepGraph

NEAR: Final = 1e-4, 2e-2
"""Accepted distance between two forms' logits, in their deviations, largest of all; of float32, and of shorter types."""

GRAPH_NEAR: Final = 1e-3, 1e-1
"""Likewise of the compiled step, by the length of each row's difference, which does not grow with the vocabulary."""

COLUMNS: Final = 128
"""Logits of a row that are compared over a whole text, at least, where there are as many."""

EARLY: Final = 3
"""Tokens of which all logits are compared."""


@dataclass(frozen=True)
class Form:
    """Says how tokens behind the prompts go through a model. The plain form, without any of these, is right for every model.

    Attributes:
        wide: with masks of four dimensions, which are made once and not anew at every token.
        kept: with keys and values in buffers of the public length L + T, which are made once and not anew at every token.
        graph: the compiled step, over those buffers; None for a call of the model.
    """

    wide: bool = False
    kept: bool = False
    graph: "StepGraph | None" = None


class Forward:
    """Gives the logits of all rows, a token at a time; of one text.

    Guarantee: the logits of every row are returned, in the order of the rows, whatever the size of minibatches. All rows of a
    text go through the model in one form, and no other text reads or writes its keys and values.

    Args:
        model: causal language model of transformers, in evaluation. steps: most tokens behind the prompts.
        minibatch: rows of one call of the model; None for all.
        form: how tokens behind the prompts go through; `form_of` finds the fastest that a model takes.
    """

    def __init__(self, model: Any, rows: Rows, steps: int, minibatch: int | None = None, form: Form = Form()) -> None:
        count, length = rows.ids.shape
        self._model, self._count, self._size = model, count, minibatch or count
        device = model.device
        places = [place if place < count else 0 for place in range(-(-count // self._size) * self._size)]
        chunks = [places[start : start + self._size] for start in range(0, len(places), self._size)]
        self._ids = [rows.ids[chunk].to(device) for chunk in chunks]
        behind = torch.ones((self._size, steps), dtype=torch.long)
        self._masks = [torch.cat([rows.mask[chunk], behind], 1).to(device) for chunk in chunks]
        self._caches: list[Any] = [None] * len(chunks)
        self._behind = [_wide(model, mask) for mask in self._masks] if form.wide else self._masks
        if form.graph is not None:
            self._behind = [_closed(mask, length) for mask in self._behind]
        self._length, self._room, self._form = length, length + steps, form
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
            if self._form.kept:
                from dptrain.inference.invisibleink.decoding.buffers import keep

                keep(self._caches[number], self._length, self._room)
        return self._joined(found)

    @torch.inference_mode()
    def step(self, token: int) -> np.ndarray:
        """Appends one token to all rows, and returns the logits behind it: float32, shape (B + 1, V)."""
        found = []
        self._length += 1
        for number in range(len(self._ids)):
            if self._form.graph is not None:
                found.append(self._form.graph.run(self.inputs(number, token), self.buffers(number)))
            else:
                ids = torch.full((self._size, 1), token, device=self._ids[number].device)
                found.append(self._call(number, ids, self._behind[number][..., : self._length], self._next[number]))
            self._next[number] = self._next[number] + 1
        return self._joined(found)

    def inputs(self, number: int, token: int) -> tuple[torch.Tensor, ...]:
        """Returns what a graph takes for a token of a minibatch: ids, mask, positions and place; all of public shape."""
        device, place = self._ids[number].device, self._length - 1
        self._behind[number][..., place] = 0.0 if self._form.wide else 1
        ids = torch.full((self._size, 1), token, device=device)
        return ids, self._behind[number], self._next[number], torch.tensor([place], device=device)

    def buffers(self, number: int) -> list[torch.Tensor]:
        """Returns the buffers of a minibatch: keys and values of each layer in turn."""
        return [one for layer in self._caches[number].layers for one in layer.whole]

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


def form_of(model: Any, rows: Rows, steps: int, minibatch: int | None = None, *, compile: bool = False) -> Form:
    """Returns the fastest form that a model takes; the compiled one where that is asked for, and no other then.

    Guarantee: a form gives the logits of the plain one, up to rounding, over a whole text, in rows of one token and in the
    longest that are served too.

    Args:
        rows: with padding, in which there is nobody's text. steps: most tokens behind the prompts. minibatch: as `Forward`.

    Raises:
        ConfigError: code COMPILE, the model has no compiled form here; says what was found.
    """
    rows, why = _of_all_lengths(rows), dict[Form, str | None]()
    truth = _seen(model, rows, steps, minibatch, Form())
    tried = [Form(wide, kept) for wide in ((True, False) if _may_be_wide(model) else (False,)) for kept in (True, False)]
    for form in tried:
        why[form] = None if form == Form() else _why_not(model, rows, steps, minibatch, form, truth)
        if why[form] is None:
            break
    if not compile:
        return form
    from dptrain.inference.invisibleink.decoding.graph import LEAVE, StepGraph

    if not form.kept:
        sentence = f"keys and values of this model go into no buffers of one length ({why[replace(form, kept=True)]})"
        raise ConfigError("COMPILE", f"{sentence}; {LEAVE}")
    found = replace(form, graph=StepGraph(model, *_shapes(model, rows, steps, minibatch, form), _takes(model)))
    far = _distance(truth[1], _columns(_tokens(model, rows, steps, minibatch, found)))
    if far > GRAPH_NEAR[not _exact(model)]:
        sentence = f"the compiled step gives other logits than the model, by {far:.2g} of their length"
        raise ConfigError("COMPILE", f"{sentence}; {LEAVE}")
    return found


def reads_wide_masks(model: Any, rows: Rows, minibatch: int | None = None, steps: int = EARLY) -> bool:
    """Tells whether a model gives the same logits, up to rounding, with masks of four dimensions.

    Guarantee: False where it was not seen to; masks of two dimensions are right for every model, and slower.

    Args:
        rows: with padding, in which there is nobody's text. steps: tokens behind the prompts that are compared.
    """
    if not _may_be_wide(model):
        return False
    rows = _of_all_lengths(rows)
    truth = _seen(model, rows, steps, minibatch, Form())
    return _why_not(model, rows, steps, minibatch, Form(wide=True), truth) is None


def _may_be_wide(model: Any) -> bool:
    """Tells whether a mask of four dimensions says all of what a model attends to."""
    config = model.config.get_text_config()
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    return getattr(config, "sliding_window", None) is None and layers == {"full_attention"}


def _of_all_lengths(rows: Rows) -> Rows:
    """Returns the rows with others among them: of L - 1 tokens, of one, and as long as they were, in turn.

    What a model takes from the length of its buffers, a window say, moves long rows alone.
    """
    mask, length = rows.mask.clone(), rows.mask.shape[1]
    for first, kept in ((0, length - 1), (1, 1)):
        mask[first::3] = 0
        mask[first::3, length - kept :] = 1
    return Rows(rows.ids, mask, ())


def _why_not(
    model: Any, rows: Rows, steps: int, minibatch: int | None, form: Form, truth: tuple[np.ndarray, np.ndarray]
) -> str | None:
    """Says why a form is not that of a model; None where it gives the logits of the plain form, which `_seen` found."""
    try:
        found = _seen(model, rows, steps, minibatch, form)
    except (ValueError, TypeError, RuntimeError, IndexError, AttributeError, ImportError) as error:
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.200}"
    if not all(np.isfinite(one).all() for one in (*truth, *found)):
        return "logits that are not finite"
    near = np.abs(truth[0] - found[0]).max() <= NEAR[not _exact(model)] * np.std(truth[0])
    return None if near and _distance(truth[1], found[1]) <= GRAPH_NEAR[not _exact(model)] else "other logits"


def _seen(model: Any, rows: Rows, steps: int, minibatch: int | None, form: Form) -> tuple[np.ndarray, np.ndarray]:
    """Returns all logits behind the first `EARLY` tokens, and some behind every one."""
    early: list[np.ndarray] = []

    def told() -> Iterator[np.ndarray]:
        for logits in _tokens(model, rows, steps, minibatch, form):
            if len(early) < EARLY:
                early.append(logits)
            yield logits

    some = _columns(told())
    return np.stack(early), some


def _tokens(model: Any, rows: Rows, steps: int, minibatch: int | None, form: Form) -> Iterator[np.ndarray]:
    """Yields the logits behind each of some tokens that stand for a text."""
    forward = Forward(model, rows, steps, minibatch, form)
    forward.begin()
    for token in range(1, steps + 1):
        yield forward.step(token % 3 + 1)


def _columns(logits: Iterable[np.ndarray]) -> np.ndarray:
    """Returns some `COLUMNS` of the logits of each token, evenly spread: a vocabulary is large, and a text is long."""
    return np.stack([one[:, :: max(1, one.shape[1] // COLUMNS)].copy() for one in logits])


def _distance(truth: np.ndarray, found: np.ndarray) -> float:
    """Returns the largest length of a row's difference, in lengths of the row about its mean; infinite for no number."""
    size = np.linalg.norm(truth - truth.mean(-1, keepdims=True), axis=-1)
    far = float((np.linalg.norm(found - truth, axis=-1) / np.maximum(size, 1e-30)).max())
    return far if math.isfinite(far) else math.inf


def _shapes(
    model: Any, rows: Rows, steps: int, minibatch: int | None, form: Form
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Returns what a step takes, inputs and buffers: shapes and types alone, so that none of it is there twice."""
    made = Forward(model, rows, steps, minibatch, form)
    made.begin()
    inputs, buffers = ([torch.empty_like(one, device="meta") for one in all_] for all_ in (made.inputs(0, 0), made.buffers(0)))
    return inputs, buffers


def _exact(model: Any) -> bool:
    return next(model.parameters()).dtype in (torch.float32, torch.float64)


def _wide(model: Any, mask: torch.Tensor) -> torch.Tensor:
    """Returns what is added to scores, shape (m, 1, 1, L + T): nothing, or the least number where there is padding."""
    kind = next(model.parameters()).dtype
    least = torch.full_like(mask, torch.finfo(kind).min, dtype=kind)
    return least.masked_fill(mask.bool(), 0.0)[:, None, None, :]


def _closed(mask: torch.Tensor, length: int) -> torch.Tensor:
    """Returns a mask, of either kind, whose places behind the prompts are closed until they are written."""
    closed = mask.clone()
    closed[..., length:] = torch.finfo(mask.dtype).min if mask.dim() == 4 else 0
    return closed


def _takes(model: Any) -> frozenset[str]:
    """Returns the names of what a model's forward takes; those of what lies below an adapter, for one of peft."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return frozenset(inspect.signature(inner.forward).parameters)
