"""Draws the masks of SpecAugment by address, in models of sound of transformers that draw them from numpy.

The library draws for one row after the other, and one number for all of them, so that a mask would follow from who else is in
the microbatch. While a pass is entered, each row draws its own instead, from the same distribution, and hidden states are
masked as the library masks them in a row alone: a mask lies on the frames that the row has, whatever padding is around. This
stands in for one text of the library's code, known by its digest. A class with other code, of another version or a user's own,
is left as it is, and refused for what it draws.

Source: Park et al. (arXiv:1904.08779); ``_compute_mask_indices`` of transformers.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from dptrain.errors import UnsupportedModule
from dptrain.sandbox.library.known import is_known

METHOD = "_mask_hidden_states"
_DRAWS = "_compute_mask_indices"
_COPIES = "__reduce_ex__"
_STANDS = "_dptrain_masks_by_address"

_DIGESTS = {
    METHOD: "cc663ef4010041bc9830d213eb67c5da08a12b166eb8f4cea5945832b35189c5",
    _DRAWS: "daa2e020a4ae2ae2b664d25749b2a0e1e9ebe341cced9c82bf1f1fab8049c044",
}
"""SHA-256 of the source of what is stood in for."""

_DEFAULTS: dict[str, tuple[Any, ...]] = {METHOD: (None, None), _DRAWS: (None, 0)}

Company = tuple[int | None, bool, bool]
"""The public length of the rows of a microbatch, whether they are the probes', and whether a row is alone in every one."""


class Spectrum:
    """Stands in for the method that masks, in every module of a model that has it; :meth:`detach` leaves no trace.

    Guarantee: the mask of a row is a function of the numbers drawn for that row and of its own length; of no other row. The
    length is how many frames the row's own attention mask shows. Without one it is the width of the microbatch, which has to be
    that of the probes.

    Args:
        company: tells of the microbatch under way.
    """

    def __init__(self, model: nn.Module, company: Callable[[], Company] = lambda: (None, True, True)) -> None:
        self._modules = {module: name for name, module in model.named_modules() if _known(type(module))}
        self._company = company
        self._widths: dict[tuple[str, int | None], int] = {}

    def attach(self) -> None:
        for module in self._modules:
            vars(module)[_STANDS] = self._masked
            vars(module).setdefault(METHOD, partial(self._masked, module))  # a method of the user's own, or a router's, stays
            vars(module).setdefault(_COPIES, partial(_reduced, module))

    def detach(self) -> None:
        for module in self._modules:
            for key in _ours(module):
                del vars(module)[key]

    def _masked(
        self,
        module: Any,
        hidden_states: torch.Tensor,
        mask_time_indices: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if mask_time_indices is None and attention_mask is None and _draws_time(module):
            self._require_width(module, hidden_states.shape[1])
        return masked(module, hidden_states, mask_time_indices, attention_mask, public=self._company()[1])

    def _require_width(self, module: nn.Module, width: int) -> None:
        """Raises UnsupportedModule for rows without an attention mask that are not as wide as those of the probes."""
        length, public, alone = self._company()
        if alone:
            return
        place = self._modules[module], length
        seen = self._widths.setdefault(place, width) if public else self._widths.get(place)
        if width == seen:
            return
        raise UnsupportedModule(
            "UNSEEN_WIDTH",
            f"module {place[0]!r} masks rows of {width} frames without an attention_mask, and {seen or 'none'} at the start, "
            "expected as many in every microbatch: the mask of a contribution would depend on who else was drawn; "
            "give it the attention_mask, keep all rows at one length, or set apply_spec_augment=False",
        )


def function_of(module: nn.Module, method: str) -> Callable[..., Any]:
    """Returns what a method runs: the function of its class, or what stands in for it while a pass is entered."""
    standing = vars(module).get(_STANDS) if method == METHOD else None
    return standing or getattr(type(module), method)


def masked(
    module: Any,
    hidden_states: torch.Tensor,
    mask_time_indices: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    *,
    public: bool = True,
) -> torch.Tensor:
    """Masks hidden states (B, T, D) over time and over features, as the configuration of the module says.

    Args:
        mask_time_indices: the mask (B, T), where it is given. attention_mask: (B, T), nonzero for what is no padding.
        public: whether the width of the rows may be told, so that spans are refused that fit in no row of this width.

    Raises:
        ValueError: a span is shorter than one place, or longer than a row.
    """
    config, found = module.config, hidden_states
    if not getattr(config, "apply_spec_augment", True):
        return hidden_states
    rows, length, width = hidden_states.shape
    time = mask_time_indices
    if time is None and _draws_time(module):
        kept = None if attention_mask is None else attention_mask.to(found.device).expand(rows, length) != 0
        lengths = torch.full((rows,), length, device=found.device) if kept is None else kept.sum(-1)
        if public:
            _require_room(config.mask_time_length, length)
        time = spans(lengths, length, config.mask_time_prob, config.mask_time_length, config.mask_time_min_masks)
        if kept is not None:  # the n-th place is the n-th frame of the row
            time = time.gather(1, (kept.cumsum(-1) - 1).clamp_min(0)) & kept
    if time is not None:
        found = torch.where(time.bool()[..., None], module.masked_spec_embed.to(found.dtype), found)
    if config.mask_feature_prob > 0 and module.training:
        _require_room(config.mask_feature_length, width)
        whole = torch.full((rows,), width, device=found.device)
        features = spans(whole, width, config.mask_feature_prob, config.mask_feature_length, config.mask_feature_min_masks)
        found = found.masked_fill(features[:, None], 0.0)
    return found


def spans(lengths: torch.Tensor, size: int, share: float, span: int, least: int) -> torch.Tensor:
    """Draws a mask of spans for every row, (B, size).

    Spans begin at different places, and may overlap. Their number rounds ``share * length / span`` up or down at random; there
    are no more than fit in the row side by side.

    Guarantee: the first places of a row, up to its length, are the same under any ``size`` from there on.

    Args:
        lengths: (B,), of the rows. share: of a row that is masked, at most. span: length of a span. least: number of spans.
    """
    # One number rounds, the others say in which order places are taken.
    numbers = torch.rand(len(lengths), size + 1, device=lengths.device)
    count = (share * lengths.double() / span + numbers[:, 0]).floor().clamp_min(least)
    count = torch.minimum(count, (lengths // span).double())
    starts = lengths - (span - 1)
    place = torch.arange(size, device=lengths.device)
    order = numbers[:, 1:].masked_fill(place >= starts[:, None], 2.0).argsort(dim=-1, stable=True).argsort(-1)
    begun = (order < count[:, None]).to(torch.int32).cumsum(-1)
    return (begun - nn.functional.pad(begun, (span, 0))[:, :size]) > 0


def _draws_time(module: Any) -> bool:
    """Tells whether masks over time are drawn where none are given."""
    config = module.config
    return bool(getattr(config, "apply_spec_augment", True) and config.mask_time_prob > 0 and module.training)


def _require_room(span: int, size: int) -> None:
    if not 1 <= span <= size:
        raise ValueError(f"spans of length {span} were asked for in rows of {size}, expected 1 to {size}")


def _ours(module: nn.Module) -> list[str]:
    """Returns the keys of a module by which it is stood in for."""
    found = [_STANDS] if _STANDS in vars(module) else []
    for key, own in ((METHOD, Spectrum._masked), (_COPIES, _reduced)):
        standing = vars(module).get(key)
        if isinstance(standing, partial) and getattr(standing.func, "__func__", standing.func) is own:
            found.append(key)
    return found


def _reduced(module: nn.Module, protocol: Any) -> Any:
    """Takes a module apart for a copy, which is nobody's in a pass, and masks as the library does."""
    made = type(module).__reduce_ex__(module, protocol)
    if not isinstance(made, tuple) or len(made) < 3 or not isinstance(made[2], dict):
        return made
    ours = _ours(module)
    return (*made[:2], {key: value for key, value in made[2].items() if key not in ours}, *made[3:])


def _known(kind: type) -> bool:
    """Tells whether the code of a class is that which :func:`masked` stands in for."""
    method = vars(kind).get(METHOD)
    if method is None or not kind.__module__.startswith("transformers."):
        return False
    library = vars(sys.modules[kind.__module__])
    return all(
        is_known(value, _DIGESTS[name], _DEFAULTS[name], library)
        for name, value in ((METHOD, method), (_DRAWS, library.get(_DRAWS)))
    )
