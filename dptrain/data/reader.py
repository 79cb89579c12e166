"""Decodes and collates a planned microbatch, in this process or in a worker."""

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from attest.corpus import Contents, Corpus
from dptrain.data.contributions import Entry
from dptrain.data.microbatch import Collate, Decode, Microbatch, build, row_names
from dptrain.data.packing import Planned
from dptrain.errors import ConfigError, CoupledModel
from dptrain.sandbox.addresses import Numbers, owner_tag, shared_tag
from dptrain.sandbox.draws import Generators


class Reader:
    """Calls ``decode`` and ``collate``.

    Guarantee: they see one contribution at a time, so that no row holds anything of another. What they draw from the common
    generators of torch, Python and numpy is a function of (seed, step, contribution, example): ``decode`` is tried under the
    seed of the step, and where the generators moved, only what it returns under the seed of the contribution counts; and as
    soon as ``collate`` draws, it is called for one example at a time, under a seed of that example. Whether others draw changes
    none of it. The generators stand afterwards where they stood.

    Args:
        corpus: where contents lie. decode, collate: the user's.

    Attributes:
        decode_draws: whether `decode` drew before: then all at once is not tried. It changes nothing else.
        collate_draws: whether `collate` drew before.
    """

    def __init__(self, corpus: Corpus, decode: Decode, collate: Collate) -> None:
        self._corpus = corpus
        self._decode = decode
        self._collate = collate
        self.decode_draws = False
        self.collate_draws = False

    def examples(self, entries: Sequence[Entry], step: int, numbers: Numbers) -> list[list[Any]]:
        """Decodes contributions, each from the same standing of the generators or, where it draws, under a seed of its own.

        Args:
            numbers: of the run, whose seed enters.

        Raises:
            ContentChanged: as `Entry.content` and `Entry.require`. Whatever ``decode`` raises.
        """
        generators = Generators()
        common = numbers.seed_of(shared_tag(step), "decode")
        try:
            with self._corpus.contents() as contents:
                generators.seed(common)
                if not self.decode_draws:
                    # Nobody drew where the generators stand behind the last one as they stood before the first.
                    found, raised = self._tried(entries, contents)
                    if not generators.moved():
                        if raised is not None:
                            raise raised
                        return [_counted(entry, each) for entry, each in zip(entries, found, strict=True)]
                    self.decode_draws = True
                return [self._decoded(entry, step, common, contents, generators, numbers) for entry in entries]
        finally:
            generators.restore()

    def rows(
        self,
        planned: Planned,
        entries: Sequence[Entry],
        contents: list[list[Any]],
        step: int,
        numbers: Numbers,
        device: torch.device,
    ) -> Microbatch:
        """Collates the examples of a microbatch.

        Args:
            contents: what each of its contributions decoded to. numbers: of the run. device: where the rows go.

        Raises:
            ConfigError, CoupledModel: as `build`, and a collate of several shapes. Whatever ``collate`` raises.
        """
        whole, first = None, 0
        if planned.part is not None:
            first = planned.part[0]
            whole, contents = len(contents[0]), [contents[0][slice(*planned.part)]]
        owners = [entry.owner for entry in entries]
        names = row_names(owners, planned.examples, first=first, fill=planned.fill)
        sizes = {"rows_each": planned.examples, "whole": whole, "fill": planned.fill, "length": planned.length}
        return self.built(contents, names, step, numbers, device, **sizes)

    def built(
        self,
        contents: Sequence[list[Any]],
        names: tuple[bytes, ...],
        step: int,
        numbers: Numbers,
        device: torch.device,
        **sizes: Any,
    ) -> Microbatch:
        """Collates examples of rows that have names; ``sizes`` as for `build`."""
        generators, length = Generators(), sizes["length"]
        collate = self._collate if length is None else partial(self._collate, length=length)
        try:
            if not self.collate_draws:
                rows = build(contents, _Apart(collate, sizes["rows_each"]), device, names, **sizes)
                self.collate_draws = generators.moved()
            if self.collate_draws:
                seeds = [numbers.seed_of(owner_tag(step, name), "collate") for name in names]
                rows = build(contents, _Apart(collate, 1, seeds, generators), device, names, **sizes)
        finally:
            generators.restore()
        return rows

    def _decoded(
        self, entry: Entry, step: int, common: int, contents: Contents, generators: Generators, numbers: Numbers
    ) -> list[Any]:
        """Decodes one contribution, twice if it draws."""
        generators.seed(common, watched=False)  # how they stand then is known from the first time
        found, raised = self._tried([entry], contents)
        if generators.moved():
            generators.seed(numbers.seed_of(owner_tag(step, entry.owner), "decode"), watched=False)
            return _counted(entry, self._decode(entry.content(contents)))
        if raised is not None:
            raise raised
        return _counted(entry, found[0])

    def _tried(self, entries: Sequence[Entry], contents: Contents) -> tuple[list[list[Any]], Exception | None]:
        """Decodes contributions one after the other, up to the first that raises; returns what it raised too."""
        found = []
        try:
            for entry in entries:
                found.append(self._decode(entry.content(contents)))
        except Exception as error:
            return found, error
        return found, None


def _counted(entry: Entry, found: list[Any]) -> list[Any]:
    entry.require(len(found))
    return found


class _Apart:
    """A collate that is called for a few rows at a time, and what it returns put one after the other.

    Args:
        size: rows of each call. seeds: of the generators before each call; None to leave them alone.
    """

    def __init__(
        self, collate: Collate, size: int, seeds: Sequence[int] | None = None, generators: Generators | None = None
    ) -> None:
        self._collate = collate
        self._size = size
        self._seeds = seeds
        self._generators = generators

    def __call__(self, rows: list[Any]) -> Mapping[str, Any]:
        found: list[Mapping[str, Any]] = []
        for start in range(0, len(rows), self._size):
            if self._seeds is not None and self._generators is not None:
                self._generators.seed(self._seeds[start])
            found.append(self._collate(rows[start : start + self._size]))
        first = found[0]
        if len(found) == 1 or not isinstance(first, Mapping):
            return first  # what is no mapping is refused where it is built
        looks = looks_of(first)
        for other in found[1:]:
            require_alike(looks, looks_of(other))
        return {key: joined([each[key] for each in found]) for key in first}


def joined(values: list[Any]) -> Any:
    """Puts what collate returned of some rows under one name behind each other: tensors, or lists; else the first value."""
    if isinstance(values[0], torch.Tensor):
        return torch.cat(values)
    return [item for value in values for item in value] if isinstance(values[0], list) else values[0]


Looks = tuple[dict[str, tuple[int, ...]], dict[str, torch.dtype], dict[str, Any]]
"""Shapes of collated tensors without dimension 0, their types, and values that are neither tensor nor list; by name."""

_UNLIKE = (
    (
        "PADDING",
        "the collated {key!r} has shape {one} per example with one content and {other} with another: padding to the longest of "
        "a batch lets one contribution shape the others; pad to a fixed length",
    ),
    (
        "COLLATE_TYPE",  # joined, all rows would have the widest
        "the collated {key!r} is {one} for one contribution and {other} for another, so that one of them decides the type of "
        "all rows of a microbatch, and may stop the step that draws it; give dtype= in collate",
    ),
    (
        "COLLATE_VALUE",  # all rows would share the first's
        "collate gives {key!r} one value for one contribution and another for another one, and a microbatch has one for all; "
        "make it a tensor with the example in dimension 0, or a constant",
    ),
)


def looks_of(collated: Mapping[str, Any]) -> Looks:
    tensors = {key: value for key, value in collated.items() if isinstance(value, torch.Tensor)}
    shapes = {key: tuple(value.shape[1:]) for key, value in tensors.items()}
    types = {key: value.dtype for key, value in tensors.items()}
    return shapes, types, {key: value for key, value in collated.items() if not isinstance(value, (torch.Tensor, list))}


def names_and_types(looks: Looks) -> Any:
    """Returns the looks without sizes and plain values, which may be others in rows of another length."""
    shapes, *types, _ = looks
    return dict.fromkeys(shapes, ()), *types, {}


def require_alike(expected: Looks, found: Looks) -> None:
    """Refuses collated rows whose shapes, types or plain values follow the content.

    Raises:
        CoupledModel: code PADDING, COLLATE_TYPE or COLLATE_VALUE, naming the tensor or value.
    """
    for (code, sentence), known, now in zip(_UNLIKE, expected, found, strict=True):
        for key in sorted({*known, *now}):
            one, other = known.get(key), now.get(key)
            if one != other:
                raise CoupledModel(code, sentence.format(key=key, one=one, other=other))


def require_length(collate: Collate, lengths: Sequence[int | None]) -> None:
    """Refuses a collate that cannot be told to which length examples are padded or cut.

    Raises:
        ConfigError: code COLLATE.
    """
    if lengths in ((), (None,)):
        return
    try:
        inspect.signature(collate).bind([], length=1)
    except (TypeError, ValueError):
        raise ConfigError(
            "COLLATE",
            f"the contributions have public lengths ({', '.join(map(str, lengths))} tokens), and collate takes none; write "
            "collate(examples, length), and pad or cut every example to that length",
        ) from None
