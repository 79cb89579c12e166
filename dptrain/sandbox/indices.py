"""Index operations made total: an index that is out of range stops no run, and its contribution counts as zero.

Plain torch raises on such an index (a GPU gives up the whole process), in the step that draws the contribution and after the
charge: it would tell that it was drawn, and anybody could stop a run. Here the index is brought into range. Where the result
is a floating-point number it becomes NaN, which reaches the loss of the row, and a row whose loss is not finite counts as
zero. Where it is an integer, the row is marked instead. What is written to a place out of range is dropped.

Lengths that say where one row ends and the next begins (targets of a CTC loss one after another, offsets of bags) can
contradict each other. Then nobody can say whose entry is whose, and all rows count as zero.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

_aten = torch.ops.aten

Bad = Callable[[torch.Tensor], bool]
"""Is told which indices of an operation are out of range, bool, of their shape; says whether there may be any."""


class Total:
    """The index operations, each as a function of (func, args, kwargs) that cannot fail on a value.

    Args:
        found: asked where the result can carry NaN. marked: asked where it cannot, so that rows have to be marked; asked for
            every such operation, in the order of the forward. In a graph, whose values nobody knows yet, both say yes.
    """

    def __init__(self, found: Bad, marked: Bad) -> None:
        self._found = found
        self._marked = marked
        self.handlers: dict[Any, Callable[[Any, tuple, dict], Any]] = {
            _aten.embedding.default: self._embedding,
            _aten.embedding_renorm_.default: self._renorm,
            _aten.embedding_dense_backward.default: self._embedding_backward,
            _aten.gather.default: self._along,
            _aten.index_select.default: self._along,
            _aten.take.default: self._take,
            _aten.index.Tensor: self._index,
            _aten._unsafe_index.Tensor: self._index,
            _aten.nll_loss_forward.default: self._nll,
            _aten.nll_loss2d_forward.default: self._nll,
            _aten.nll_loss_backward.default: self._nll_backward,
            _aten.nll_loss2d_backward.default: self._nll_backward,
            _aten.multi_margin_loss.default: self._margin,
            _aten.multi_margin_loss_backward.default: self._margin_backward,
            _aten.multilabel_margin_loss_forward.default: self._labels,
            _aten.multilabel_margin_loss_backward.default: self._labels_backward,
            _aten._ctc_loss.default: self._ctc,
            _aten._ctc_loss.Tensor: self._ctc,
            _aten._ctc_loss_backward.default: self._ctc_backward,
            _aten._ctc_loss_backward.Tensor: self._ctc_backward,
            _aten._use_cudnn_ctc_loss.default: _no,
            _aten._use_cudnn_ctc_loss.Tensor: _no,
            _aten._embedding_bag.default: self._bag,
            _aten._embedding_bag_forward_only.default: self._bag,
            _aten._embedding_bag_backward.default: self._bag_backward,
            _aten._embedding_bag_per_sample_weights_backward.default: self._bag_weights_backward,
            _aten.bincount.default: self._count,
            _aten.binary_cross_entropy.default: self._binary,
            _aten.binary_cross_entropy_backward.default: self._binary_backward,
            _aten.scatter.src: self._write_along,
            _aten.scatter.value: self._write_along,
            _aten.scatter_.src: self._write_along,
            _aten.scatter_.value: self._write_along,
            _aten.scatter.reduce: self._write_along,
            _aten.scatter.value_reduce: self._write_along,
            _aten.scatter_.reduce: self._write_along,
            _aten.scatter_.value_reduce: self._write_along,
            _aten.scatter_add.default: self._write_along,
            _aten.scatter_add_.default: self._write_along,
            _aten.scatter_reduce.two: self._write_along,
            _aten.scatter_reduce_.two: self._write_along,
            _aten.index_add.default: self._write_along,
            _aten.index_add_.default: self._write_along,
            _aten.index_copy.default: self._write_along,
            _aten.index_copy_.default: self._write_along,
            _aten.index_reduce.default: self._write_along,
            _aten.index_reduce_.default: self._write_along,
            _aten.index_fill.int_Scalar: self._fill,
            _aten.index_fill.int_Tensor: self._fill,
            _aten.index_fill_.int_Scalar: self._fill,
            _aten.index_fill_.int_Tensor: self._fill,
            _aten.put.default: self._put_flat,
            _aten.put_.default: self._put_flat,
            _aten.index_put.default: self._put,
            _aten.index_put_.default: self._put,
            _aten._index_put_impl_.default: self._put,
            _aten._unsafe_index_put.default: self._put,
            _aten.masked_scatter.default: self._scatter_masked,
            _aten.masked_scatter_.default: self._scatter_masked,
            _aten.masked_scatter_backward.default: self._scatter_masked_backward,
        }

    # ------------------------------------------------------------------------------------------------------------ reading

    def _embedding(self, func: Any, args: tuple, kwargs: dict) -> Any:
        table, index = args[:2]
        bad = _outside(index, table.shape[0])
        if not self._found(bad):
            return func(*args, **kwargs)
        out = func(table, _inside(index, bad), *args[2:], **kwargs)
        return out.masked_fill(bad[..., None], torch.nan)

    def _renorm(self, func: Any, args: tuple, kwargs: dict) -> Any:
        table, index = args[:2]
        bad = _outside(index, table.shape[0])
        return func(table, _inside(index, bad) if self._found(bad) else index, *args[2:], **kwargs)

    def _embedding_backward(self, func: Any, args: tuple, kwargs: dict) -> Any:
        grad, index, rows = args[:3]
        bad = _outside(index, rows)
        if not self._found(bad):
            return func(*args, **kwargs)
        return func(grad.masked_fill(bad[..., None], 0.0), _inside(index, bad), *args[2:], **kwargs)

    def _along(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """``gather`` and ``index_select``."""
        source, dim, index = args[:3]
        bad = _outside(index, source.shape[dim] if source.dim() else 1)
        if not self._mends(source, bad):
            return func(*args, **kwargs)
        out = func(source, dim, _inside(index, bad), *args[3:], **kwargs)
        if func is _aten.index_select.default and source.dim():
            bad = bad.view(-1, *(1,) * (source.dim() - dim % source.dim() - 1))
        return self._stained(out, bad)

    def _take(self, func: Any, args: tuple, kwargs: dict) -> Any:
        source, index = args
        bad = (index >= source.numel()) | (index < -source.numel())
        if not self._mends(source, bad):
            return func(*args, **kwargs)
        return self._stained(func(source, _inside(index, bad)), bad)

    def _index(self, func: Any, args: tuple, kwargs: dict) -> Any:
        source, indices = args[:2]
        bad = _outside_any(source, indices)
        if bad is None or not self._mends(source, bad):
            return func(*args, **kwargs)
        out = func(source, [_inside_of(source, dim, index) for dim, index in enumerate(indices)], *args[2:], **kwargs)
        return self._stained(out, _placed(bad, indices, out))

    def _nll(self, func: Any, args: tuple, kwargs: dict) -> Any:
        scores, target, weight, reduction, ignored = args
        bad = _outside_classes(scores, target, ignored)
        if not self._found(bad):
            return func(*args, **kwargs)
        out, total = func(scores, _inside(target, bad), weight, reduction, ignored)
        return (out.masked_fill(bad if reduction == 0 else bad.any(), torch.nan), total)

    def _nll_backward(self, func: Any, args: tuple, kwargs: dict) -> Any:
        grad, scores, target, weight, reduction, ignored, total = args
        bad = _outside_classes(scores, target, ignored)
        if not self._found(bad):
            return func(*args, **kwargs)
        return func(grad, scores, _inside(target, bad), weight, reduction, ignored, total)

    def _margin(self, func: Any, args: tuple, kwargs: dict) -> Any:
        scores, target = args[:2]
        bad = _outside(target, scores.shape[-1])
        if not self._found(bad):
            return func(*args, **kwargs)
        out = func(scores, _inside(target, bad), *args[2:], **kwargs)
        return out.masked_fill(bad if out.shape == bad.shape else bad.any(), torch.nan)

    def _margin_backward(self, func: Any, args: tuple, kwargs: dict) -> Any:
        grad, scores, target = args[:3]
        bad = _outside(target, scores.shape[-1])
        return func(grad, scores, _inside(target, bad) if self._found(bad) else target, *args[3:], **kwargs)

    def _labels(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """``multilabel_margin_loss``, whose labels end at the first -1."""
        scores, target, reduction = args
        bad = _outside_labels(scores, target)
        if not self._found(bad):
            return func(*args, **kwargs)
        out, is_target = func(scores, _inside(target, bad), reduction)
        rows = bad.any(-1)
        return (out.masked_fill(rows if out.shape == rows.shape else rows.any(), torch.nan), is_target)

    def _labels_backward(self, func: Any, args: tuple, kwargs: dict) -> Any:
        grad, scores, target = args[:3]
        bad = _outside_labels(scores, target)
        return func(grad, scores, _inside(target, bad) if self._found(bad) else target, *args[3:], **kwargs)

    def _ctc(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Torch does not look at the labels: one out of range reads the scores of another row, and writes their gradient."""
        aligned = _aligned(*args[:4])
        if aligned is None or not self._found(aligned[0]):
            return func(*args, **kwargs)
        bad, *inside = aligned
        out, paths = func(args[0], *inside, *args[4:], **kwargs)
        return (out.masked_fill(bad, torch.nan), paths)

    def _ctc_backward(self, func: Any, args: tuple, kwargs: dict) -> Any:
        grad, scores = args[:2]
        aligned = _aligned(*args[1:5])
        if aligned is None or not self._found(aligned[0]):
            return func(*args, **kwargs)
        return func(grad, scores, *aligned[1:], *args[5:], **kwargs)

    def _bag(self, func: Any, args: tuple, kwargs: dict) -> Any:
        table, index, offsets = args[:3]
        bad, starts = _outside_bags(index, offsets, table.shape[0])
        if not self._found(bad):
            return func(*args, **kwargs)
        out, *rest = func(table, _inside(index, bad[: len(index)]), starts, *args[3:], **kwargs)
        return (out.masked_fill(_bags_of(bad, starts, len(out)), torch.nan), *rest)

    def _bag_backward(self, func: Any, args: tuple, kwargs: dict) -> Any:
        grad, index, offsets = args[:3]
        bad, starts = _outside_bags(index, offsets, args[6])
        if not self._found(bad):
            return func(*args, **kwargs)
        grad = grad.masked_fill(_bags_of(bad, starts, len(grad)), 0.0)
        return func(grad, _inside(index, bad[: len(index)]), starts, *args[3:], **kwargs)

    def _bag_weights_backward(self, func: Any, args: tuple, kwargs: dict) -> Any:
        grad, table, index, offsets = args[:4]
        bad, starts = _outside_bags(index, offsets, table.shape[0])
        if not self._found(bad):
            return func(*args, **kwargs)
        return func(grad, table, _inside(index, bad[: len(index)]), starts, *args[4:], **kwargs)

    def _count(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """``bincount``: what is below zero is not counted."""
        index, weights = args[0], args[1] if len(args) > 1 else None
        bad = index < 0
        if not self._marked(bad):
            return func(*args, **kwargs)
        return func(index[~bad], None if weights is None else weights[~bad], *args[2:], **kwargs)

    def _binary(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Its input is no index, but it raises just so where a probability is not between 0 and 1."""
        chance = args[0]
        bad = ~((chance >= 0) & (chance <= 1))
        if not self._found(bad):
            return func(*args, **kwargs)
        out = func(chance.masked_fill(bad, 0.5), *args[1:], **kwargs)
        return out.masked_fill(bad if out.shape == bad.shape else bad.any(), torch.nan)

    def _binary_backward(self, func: Any, args: tuple, kwargs: dict) -> Any:
        grad, chance = args[:2]
        bad = ~((chance >= 0) & (chance <= 1))
        return func(grad, chance.masked_fill(bad, 0.5) if self._found(bad) else chance, *args[2:], **kwargs)

    # ------------------------------------------------------------------------------------------------------------ writing

    def _write_along(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Scatters and their kin: a destination out of range lies in a slice of its own, which is cut off again."""
        target, dim, index = args[:3]
        bad = _outside(index, target.shape[dim] if target.dim() else 1)
        if not self._marked(bad) or not target.dim():
            return func(*args, **kwargs)
        size = target.shape[dim]
        longer = torch.cat((target, target.narrow(dim, 0, 1) if size else target.new_zeros(_one_at(target, dim))), dim)
        written = func(longer, dim, torch.where(bad, size, index), *args[3:], **kwargs).narrow(dim, 0, size)
        return target.copy_(written) if func._schema.is_mutable else written.contiguous()

    def _fill(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """``index_fill``, which alone of them counts what is below zero from the end."""
        target, dim, index = args[:3]
        size = target.shape[dim] if target.dim() else 1
        index = torch.where((index < 0) & (index >= -size), index + size, index)
        return self._write_along(func, (target, dim, index, *args[3:]), kwargs)

    def _put_flat(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """``put``, which is the way back of ``take``."""
        target, index = args[:2]
        size = target.numel()
        bad = (index >= size) | (index < -size)
        if not self._marked(bad):
            return func(*args, **kwargs)
        longer = torch.cat((target.reshape(-1), target.new_zeros(1)))
        place = torch.where(bad, size, torch.where(index < 0, index + size, index))
        written = func(longer, place, *args[2:], **kwargs).narrow(0, 0, size).view(target.shape)
        return target.copy_(written) if func._schema.is_mutable else written

    def _put(self, func: Any, args: tuple, kwargs: dict) -> Any:
        target, indices, values = args[:3]
        bad = _outside_any(target, indices)
        if bad is None or not self._marked(bad):
            return func(*args, **kwargs)
        # One more place along the first dimension that is indexed by number; all that is out of range goes there.
        first = next(dim for dim, index in enumerate(indices) if _numbers(index))
        size = target.shape[first]
        longer = torch.cat((target, target.new_zeros(_one_at(target, first))), first)
        inside = [_inside_of(target, dim, index) for dim, index in enumerate(indices)]
        negative = torch.where(inside[first] < 0, inside[first] + size, inside[first])
        inside[first] = torch.where(bad, size, negative.expand(bad.shape))
        written = func(longer, inside, values, *args[3:], **kwargs).narrow(first, 0, size)
        return target.copy_(written) if func._schema.is_mutable else written.contiguous()

    def _scatter_masked(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """``masked_scatter``, which deals one source out over the rows, in their order.

        A row whose mask shows more or less than its share would take what is the next one's, and move all behind it. Each takes
        its own share, and one that asked for another counts as zero; where there are no equal shares, all do.
        """
        target, mask, source = args
        if not func._schema.is_mutable:  # torch spreads it, too: over rows, if it is one for all
            target = target.expand(torch.broadcast_shapes(target.shape, mask.shape))
        dealt = _dealt(target.shape, mask, source.numel())
        if dealt is None or not self._mends(target, dealt[0]):
            return func(*args, **kwargs)
        bad, own = dealt
        out = self._stained(_aten.masked_scatter.default(target, own, source), bad.view(-1, *(1,) * (target.dim() - 1)))
        return target.copy_(out) if func._schema.is_mutable else out

    def _scatter_masked_backward(self, func: Any, args: tuple, kwargs: dict) -> Any:
        grad, mask, sizes = args
        dealt = _dealt(grad.shape, mask, math.prod(sizes))
        if dealt is None or not self._found(dealt[0]):
            return func(*args, **kwargs)
        return func(grad, dealt[1], sizes)

    # ------------------------------------------------------------------------------------------------------------ helpers

    def _mends(self, source: torch.Tensor, bad: torch.Tensor) -> bool:
        return (self._found if _carries_nan(source) else self._marked)(bad)

    @staticmethod
    def _stained(out: torch.Tensor, bad: torch.Tensor) -> torch.Tensor:
        return out.masked_fill(bad, torch.nan) if _carries_nan(out) else out

    def one_hot(self, index: torch.Tensor, classes: int) -> torch.Tensor:
        """``torch.nn.functional.one_hot`` with a row of zeros for what is out of range, as its own form for graphs has it."""
        self._marked(_outside(index, classes))
        return (index.unsqueeze(-1) == torch.arange(classes, device=index.device)).to(torch.int64)


def _carries_nan(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _outside(index: torch.Tensor, size: int) -> torch.Tensor:
    return (index < 0) | (index >= size)


def _inside(index: torch.Tensor, bad: torch.Tensor) -> torch.Tensor:
    return index.masked_fill(bad, 0)


def _dealt(shape: torch.Size, mask: torch.Tensor, numbers: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Tells which rows of a tensor ask for another share of so many numbers than an equal one, and gives a mask by which each
    takes its own; None where torch refuses the shapes.

    Where the numbers do not go into equal shares, or a row has no room for its own, all rows are such, and take what they can.
    """
    if not shape or not shape[0] or mask.dtype != torch.bool or torch.broadcast_shapes(shape, mask.shape) != shape:
        return None
    share, rest = divmod(numbers, shape[0])
    wanted = mask.expand(shape).flatten(1) if len(shape) > 1 else mask.expand(shape)[:, None]
    bad = (wanted.sum(1) != share) | (rest > 0)
    first = torch.arange(wanted.shape[1], device=mask.device) < share
    return bad, torch.where(bad[:, None], first, wanted).view(shape)


def _outside_classes(scores: torch.Tensor, target: torch.Tensor, ignored: int) -> torch.Tensor:
    classes = scores.shape[1] if scores.dim() > 1 else scores.shape[0]
    return _outside(target, classes) & (target != ignored)


def _outside_labels(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (target < -1) | (target >= scores.shape[-1])


def _no(func: Any, args: tuple, kwargs: dict) -> bool:
    """To the question whether cuDNN takes a CTC loss: it would follow from the lengths of a row, for all of them."""
    return False


def _aligned(
    scores: torch.Tensor, targets: torch.Tensor, frames: Any, counts: Any
) -> tuple[torch.Tensor, torch.Tensor, Any, Any] | None:
    """Bring the targets and lengths that a CTC loss aligns into range.

    Args:
        scores: (frames, rows, classes). targets: (rows, longest), or those of all rows one after another.
        frames: of every row, a tensor or numbers. counts: of the labels of every row.

    Returns:
        Rows in which a label or a length was out of range, and then targets, frames and counts. None where the shapes do not
        fit, which torch refuses by itself.
    """
    wanted, said = (torch.as_tensor(value, device=targets.device).long().reshape(-1) for value in (frames, counts))
    rows = scores.shape[1:2]
    fits = scores.dim() == 3 and rows.numel() > 0 and wanted.shape == said.shape == rows
    if not fits or not (targets.dim() == 1 or (targets.dim() == 2 and targets.shape[:1] == rows)):
        return None
    long, longest = scores.shape[0], targets.shape[-1]
    inside, spelt = wanted.clamp(0, long), said.clamp(0, longest)
    bad = (inside != wanted) | (spelt != said)
    place = torch.arange(longest, device=targets.device)
    if targets.dim() == 2:
        own = place < spelt[:, None]
    else:
        ends = spelt.cumsum(0)
        bad = bad | (ends[-1] != longest)
        ends = torch.cat((ends[:-1].clamp_max(longest), ends.new_full((1,), longest)))
        spelt = ends.diff(prepend=ends.new_zeros(1))
        own = (place < ends[:, None]) & (place >= (ends - spelt)[:, None])
    outside = _outside(targets, scores.shape[2])
    bad = bad | (own & outside).any(1)
    return bad, _inside(targets, outside), _as_given(inside, frames), _as_given(spelt, counts)


def _as_given(lengths: torch.Tensor, given: Any) -> Any:
    return lengths.view(given.shape).to(given) if isinstance(given, torch.Tensor) else lengths.tolist()


def _outside_bags(index: torch.Tensor, offsets: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Entries of bags that are out of range, and behind them beginnings of bags; and the beginnings brought into range."""
    starts = torch.cat((offsets.new_zeros(1), offsets[1:].clamp(0, len(index)))).cummax(0).values[: len(offsets)]
    return torch.cat((_outside(index, size), starts != offsets)), starts


def _bags_of(bad: torch.Tensor, starts: torch.Tensor, bags: int) -> torch.Tensor:
    """Bags that hold an entry out of range, (bags, 1); all of them where bags do not begin one after another."""
    entries, astray = bad[: len(bad) - len(starts)], bad[len(bad) - len(starts) :]
    bag = torch.searchsorted(starts, torch.arange(len(entries), dtype=starts.dtype, device=starts.device), right=True) - 1
    held = starts.new_zeros(len(starts)).index_add(0, bag, entries.to(starts.dtype)) > 0
    return (held | astray.any())[:bags, None]


def _numbers(index: torch.Tensor | None) -> bool:
    return index is not None and index.dtype not in (torch.bool, torch.uint8)


def _outside_any(source: torch.Tensor, indices: Any) -> torch.Tensor | None:
    """Mask over the common shape of the indices; None where nothing is indexed by number."""
    found = None
    if any(index is not None and not _numbers(index) for index in indices):
        return None  # masks beside numbers: their common shape follows content, and no model is known to do it
    for dim, index in enumerate(indices):
        if index is not None:
            bad = (index >= source.shape[dim]) | (index < -source.shape[dim])
            found = bad if found is None else found | bad
    return found


def _inside_of(source: torch.Tensor, dim: int, index: torch.Tensor | None) -> torch.Tensor | None:
    if index is None:
        return None
    return torch.where((index >= source.shape[dim]) | (index < -source.shape[dim]), 0, index)


def _placed(bad: torch.Tensor, indices: Any, out: torch.Tensor) -> torch.Tensor:
    """The mask where the indexed dimensions lie in the result: where the first was, or in front if they are apart."""
    places = [dim for dim, index in enumerate(indices) if index is not None]
    start = places[0] if places == list(range(places[0], places[-1] + 1)) else 0
    return bad.view(*bad.shape, *(1,) * (out.dim() - start - bad.dim()))


def _one_at(value: torch.Tensor, dim: int) -> list[int]:
    sizes = list(value.shape)
    sizes[dim] = 1
    return sizes
