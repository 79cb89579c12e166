"""Rows that are nobody's, for the probes: made up from the shapes and types of what ``collate`` returns, and from nothing
else."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from dptrain.data.microbatch import Microbatch
from dptrain.errors import ConfigError, without_text

HOW_TO = (
    "give prepare(probe=[...]) a few raw records of your own, as bytes that decode and collate can read (they are used in the "
    "probes alone, and are nobody's contribution), or contributions of a public class"
)


def needed(why: str) -> ConfigError:
    """Makes the error for rows that are made up and do not serve."""
    return ConfigError("PROBE_NEEDED", f"the start-up probes run on rows that are made up, and {why}; {HOW_TO}")


def raised(error: Exception) -> ConfigError:
    """Makes the error for a loss that raises on rows that are made up: its own exception, then what else it may be about."""
    told = f"{without_text(error)}: {error}" if str(error) else without_text(error)
    return ConfigError("PROBE_NEEDED", f"{told}; {hint('the loss raised this')}")


def hint(what: str) -> str:
    """Says of what happened on rows that are made up that their values may be the cause, and what to do then."""
    return (
        f"{what} on rows that are made up for the start-up probes; if it is about their values (zeros and ones, labels of "
        f"{IGNORED} among them), {HOW_TO}"
    )


class ProbeRows:
    """Contents by number, and microbatches of them; the same number is the same content in whatever company.

    Args:
        likes: a collated microbatch of every public length, the longest first, of which keys, shapes and types count.
        device: where rows go.
        records: collated records of the user, or of public contributions, one row each and in every length; None to make rows
            up. In some of them an attention mask hides nothing, as in some of those that are made up.
    """

    def __init__(self, likes: Sequence[Microbatch], device: torch.device, records: Sequence[Microbatch] | None = None) -> None:
        self.made_up = records is None
        self.lengths = tuple(like.length for like in likes)
        like = likes[0]
        self.ignores = self.made_up and any(map(_labels_of_parts, like.inputs, like.inputs.values()))
        """Tells whether some of the labels that are made up are `IGNORED`: until it shows that the loss knows no such label."""
        self.shortest = 1 if self.made_up and any(_named(key, "mask") for key in like.inputs) else SHOWN
        """Counts what the shortest mask shows: one alone, until it shows that the loss needs more."""
        self.gave_up = False
        """Tells whether labels were made up that the loss does not know."""
        self._likes = {like.length: like for like in likes}
        self._device = device
        self._records = None if records is None else {found.length: found for found in records}
        if records is not None:
            return
        for key, value in like.inputs.items():
            if value is not None and not isinstance(value, torch.Tensor):
                raise needed(f"collate returns {key!r} as a {type(value).__name__}, which cannot be made up")

    def microbatch(self, contents: Sequence[int], names: Sequence[bytes], length: int | None = None) -> Microbatch:
        """One contribution of one example per content, under these names; None stands for the longest."""
        length = self.lengths[0] if length is None else length
        source = (self._likes if self._records is None else self._records)[length]
        inputs: dict[str, Any] = {}
        for place, key in enumerate(source.inputs):
            rows = [self._row(source, place, key, content) for content in contents]
            inputs[key] = torch.stack(rows).to(self._device) if isinstance(rows[0], torch.Tensor) else rows[0]
        weight = torch.ones(len(contents), dtype=torch.float64)
        return Microbatch(inputs, len(contents), 1, weight, tuple(names), length)

    def filled(self, contributions: int, examples: int, turn: int = 0, length: int | None = None) -> Microbatch:
        """A microbatch of a given size and length; other contents in every turn."""
        count = contributions * examples
        contents = range(1000 + turn * count, 1000 + (turn + 1) * count)
        rows = self.microbatch(contents, [b"filled" + content.to_bytes(8, "big") for content in contents], length)
        weight = torch.full((count,), 1.0 / examples, dtype=torch.float64)
        return Microbatch(rows.inputs, contributions, examples, weight, rows.names, rows.length)

    def _row(self, source: Microbatch, place: int, key: str, content: int) -> Any:
        value = source.inputs[key]
        if self._records is not None:
            if not isinstance(value, torch.Tensor):
                return value
            row = value[content % source.contributions]
            # Models leave a mask out where it hides nothing, and may mean another thing by that: some rows hide nothing.
            mask = "attention_mask" in key.lower() and row.dim() > 0 and not row.is_floating_point()
            return torch.ones_like(row) if mask and content % KINDS == 0 else row
        if value is None:
            return None
        generator = torch.Generator().manual_seed(content * 1009 + place)
        row = made_up(value.shape[1:], value.dtype, generator, kind=content % KINDS, mask=self.shortest * _named(key, "mask"))
        if row.dtype == torch.bool and _named(key, "mask") and "pad" in key.lower():
            row = ~row  # as torch has it: what is true is left out
        if self.ignores and _labels_of_parts(key, value) and content % KINDS in IGNORING:
            row[..., int(torch.randint(SHOWN, row.shape[-1], (), generator=generator)) :] = IGNORED
        return row

    @property
    def extremes(self) -> tuple[bool, bool]:
        """Tells what is made up that a loss may not take, and that can be given up: labels to be ignored, masks of one."""
        return self.ignores, self.shortest < SHOWN

    def give_up(self) -> None:
        """Makes up something less from now on: no mask of one token, then no labels that are to be ignored."""
        if self.shortest < SHOWN:
            self.shortest = SHOWN
        elif self.ignores:
            self.ignores, self.gave_up = False, True

    def without_ignored(self, rows: Microbatch) -> Microbatch:
        """Gives up both, and gives these rows without labels that are to be ignored."""
        self.give_up()
        self.give_up()
        inputs = {
            key: value.masked_fill(value == IGNORED, 0) if _labels_of_parts(key, value) else value
            for key, value in rows.inputs.items()
        }
        return replace(rows, inputs=inputs)


KINDS = 4
"""Kinds of rows. Were all of one kind, what they have in common (the largest entry, say) would hide what they share."""

SMALL = 1
"""The kind of zeros and small numbers."""

LARGE = 2
"""The kind of ones and large numbers."""

IGNORED = -100
"""The label of what a loss leaves out; without any, what a loss counts of the others would be the same in all rows."""

IGNORING = (1, 3)
"""Kinds of rows in which the last labels are `IGNORED`."""

SHOWN = 2
"""Counts what any mask shows then, and what always has a label: the first, and one that is left where labels are shifted."""

_ONES = (0.5, 0.0, 1.0, 0.5)
_SCALES = (1.0, 0.25, 4.0, 1.0)


def made_up(
    shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator, *, kind: int = 0, mask: int = 0
) -> torch.Tensor:
    """One row: integers of 0 and 1, booleans, normal numbers; a mask is ones and then zeros, at least one of the former.

    Args:
        kind: 0 for a mask of ones throughout and fair integers, 1 for a mask that hides nearly all, zeros and small numbers, 2
            for ones and large numbers, 3 for fair integers under any mask. A single number is fair in every kind.
        mask: what the shortest shows, if it is a mask.
    """
    if mask and shape and shape[-1]:
        some = int(torch.randint(min(SHOWN, shape[-1]), shape[-1] + 1, (), generator=generator))
        length = {0: shape[-1], SMALL: min(mask, shape[-1])}.get(kind, some)
        return (torch.arange(shape[-1]) < length).expand(*shape).to(dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).mul_(_SCALES[kind]).to(dtype)
    return (torch.rand(tuple(shape), generator=generator) < (_ONES[kind] if shape else 0.5)).to(dtype)


def _labels_of_parts(key: str, value: Any) -> bool:
    """Tells whether a collated tensor holds labels of parts of every row, of its tokens say."""
    if not _named(key, "label") or not isinstance(value, torch.Tensor):
        return False
    return value.dtype in _SIGNED and value.dim() > 1 and value.shape[-1] > SHOWN


def _named(key: str, what: str) -> bool:
    """Tells whether a key says that it holds masks, or labels; the last word counts (``labels_mask``, ``masked_lm_labels``)."""
    places = {word: key.lower().rfind(word) for word in ("mask", "label")}
    return places[what] >= 0 and places[what] == max(places.values())


_SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
