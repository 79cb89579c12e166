"""Reads contributions, collates them to rows, and holds every microbatch to the same shapes, types and plain values."""

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from attest.corpus import Contents
from dptrain.data.contributions import Pool
from dptrain.data.microbatch import Collate, Microbatch, build, row_names
from dptrain.data.packing import Drawn, Planned, plan
from dptrain.errors import ConfigError, CoupledModel, DptrainError, NotPrivateUse, without_text
from dptrain.sandbox import Sandbox
from dptrain.sandbox.addresses import owner_tag, shared_tag
from dptrain.sandbox.draws import Generators

ALONE = 32
"""Contributions collated alone before a run, to see that shapes do not follow content."""

TOGETHER = 256
"""Contributions collated at a time when all are checked before a run."""


class Feeder:
    """Rows of planned microbatches.

    Guarantee: ``decode`` and ``collate`` see one contribution at a time, so that no row holds anything of another. What they
    draw from the common generators of torch, Python and numpy is a function of (seed, step, contribution, example): ``decode``
    is tried under the seed of the step, and where the generators moved, only what it returns under the seed of the
    contribution counts; and as soon as ``collate`` draws, it is called for one example at a time, under a seed of that
    example. Whether others draw changes none of it. The generators stand afterwards where they stood.

    Args:
        pool: the contributions. collate: the user's. device: where the rows go. rows: the most in one microbatch, or None.
        sandbox: of the run; its numbers seed what collate draws, and where draws of contributions are secret, a generator of
            the user's own is refused.
    """

    def __init__(self, pool: Pool, collate: Collate, device: torch.device, rows: int | None, sandbox: Sandbox) -> None:
        self.pool = pool
        require_length(collate, pool.lengths)
        self._collate = collate
        self._device = device
        self._rows = rows
        self._sandbox = sandbox
        self._looks: dict[int | None, Looks] = {}
        self._draws = False
        self._decode_draws = False
        self.likes: dict[int | None, Microbatch] = {}
        """By public length, a microbatch of which only keys, shapes and types count: what rows look like."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the collated tensors, once something was collated."""
        return tuple(next(iter(self._looks.values()))[0]) if self._looks else ()

    def planned(self, planned: Planned, step: int) -> Microbatch:
        """Reads and collates a microbatch of a step.

        Raises:
            ContentChanged, ConfigError, CoupledModel: as reading, collating and the check of shapes.
        """
        return self._collated(planned, self._examples(planned.slots, step), step)

    def check(self, progress: Callable[[int], None] | None = None) -> None:
        """Decodes and collates every contribution before the ledger opens.

        Args:
            progress: called now and then with the number of contributions read so far.

        Found later, one that cannot be read would stop the run at the step that drew it, and so tell who was drawn.

        Guarantee: of an error that a content raises, the refusal tells the type and the line, never the text.

        Raises:
            ContentChanged, CoupledModel, NotPrivateUse, ConfigError: code COLLATE names the contribution that fails.
        """
        count = len(self.pool)
        together = (range(i, min(i + TOGETHER, count)) for i in range(0, count, TOGETHER))
        for slots in itertools.chain(([index] for index in spread(count, ALONE)), together):
            try:
                self._try_out(slots)
                if progress is not None:
                    progress(slots[-1] + 1)
                continue
            except DptrainError:
                raise
            except Exception as error:
                raised = without_text(error)
            raise ConfigError("COLLATE", self._culprit(slots, raised))  # outside of except, so that no traceback has the text

    def records(
        self, records: Sequence[list[Any]], names: Sequence[bytes], length: int | None = None, step: int = 0
    ) -> Microbatch:
        """Collates examples that are nobody's private ones, for the start-up probes; one contribution each, of one length."""
        examples = max(map(len, records))
        rows = self._built(list(records), row_names(names, examples), step, rows_each=examples, length=length)
        self._require_looks(rows)
        return rows

    def _try_out(self, slots: Sequence[int]) -> None:
        contents = dict(zip(slots, self._examples(slots, 0), strict=True))
        drawn = [Drawn(i, 0, len(contents[i]), self.pool.length(i)) for i in slots]
        for planned in plan(drawn, TOGETHER, self._rows):
            rows = self._collated(planned, [contents[i] for i in planned.slots], 0)
            if len(slots) == 1 and self._sandbox.secret:
                self._require_repeatable(rows, self._collated(planned, self._examples(planned.slots, 0), 0))

    def _examples(self, slots: Sequence[int], step: int) -> list[list[Any]]:
        """Decodes contributions, each from the same standing of the generators or, where it draws, under a seed of its own."""
        generators = Generators()
        common = self._sandbox.numbers.seed_of(shared_tag(step), "decode")
        try:
            with self.pool.reading() as contents:
                generators.seed(common)
                if not self._decode_draws:
                    # Nobody drew where the generators stand behind the last one as they stood before the first.
                    found, raised = self._tried(slots, contents)
                    if not generators.moved():
                        if raised is not None:
                            raise raised
                        return [self.pool.counted(index, each) for index, each in zip(slots, found, strict=True)]
                    self._decode_draws = True  # spares trying all at once from here on, and changes nothing else
                return [self._decoded(index, step, common, contents, generators) for index in slots]
        finally:
            generators.restore()

    def _decoded(self, index: int, step: int, common: int, contents: Contents, generators: Generators) -> list[Any]:
        """Decodes one contribution, twice if it draws."""
        generators.seed(common, watched=False)  # how they stand then is known from the first time
        found, raised = self._tried([index], contents)
        if generators.moved():
            owner = owner_tag(step, self.pool.slots.descriptor_hash(index))
            generators.seed(self._sandbox.numbers.seed_of(owner, "decode"), watched=False)
            return self.pool.counted(index, self.pool.decoded(index, contents))
        if raised is not None:
            raise raised
        return self.pool.counted(index, found[0])

    def _tried(self, slots: Sequence[int], contents: Contents) -> tuple[list[list[Any]], Exception | None]:
        """Decodes contributions one after the other, up to the first that raises; returns what it raised too."""
        found = []
        try:
            for index in slots:
                found.append(self.pool.decoded(index, contents))
        except Exception as error:
            return found, error
        return found, None

    def _collated(self, planned: Planned, contents: list[list[Any]], step: int) -> Microbatch:
        whole, first = None, 0
        if planned.part is not None:
            first = planned.part[0]
            whole, contents = len(contents[0]), [contents[0][slice(*planned.part)]]
        owners = [self.pool.slots.descriptor_hash(i) for i in planned.slots]
        names = row_names(owners, planned.examples, first=first, fill=planned.fill)
        sizes = {"rows_each": planned.examples, "whole": whole, "fill": planned.fill, "length": planned.length}
        rows = self._built(contents, names, step, **sizes)
        self._require_looks(rows)
        return rows

    def _built(self, contents: Sequence[list[Any]], names: tuple[bytes, ...], step: int, **sizes: Any) -> Microbatch:
        generators, length = Generators(), sizes["length"]
        collate = self._collate if length is None else partial(self._collate, length=length)
        try:
            if not self._draws:
                rows = build(contents, _Apart(collate, sizes["rows_each"]), self._device, names, **sizes)
                self._draws = generators.moved()
            if self._draws:
                seeds = [self._sandbox.numbers.seed_of(owner_tag(step, name), "collate") for name in names]
                rows = build(contents, _Apart(collate, 1, seeds, generators), self._device, names, **sizes)
        finally:
            generators.restore()
        return rows

    def _require_looks(self, rows: Microbatch) -> None:
        found = _looks(rows.inputs)
        for other in itertools.islice(self._looks.values(), 1):  # perhaps of another length
            require_alike(_names_and_types(other), _names_and_types(found))
        if rows.length not in self._looks:
            self._looks[rows.length], self.likes[rows.length] = found, rows
        require_alike(self._looks[rows.length], found)

    @staticmethod
    def _require_repeatable(rows: Microbatch, again: Microbatch) -> None:
        for key, value in rows.inputs.items():
            other = again.inputs[key]
            if isinstance(value, torch.Tensor) and not bool(((value == other) | ((value != value) & (other != other))).all()):
                raise NotPrivateUse(
                    "COLLATE_RANDOM",
                    f"decode or collate gave two different {key!r} for one contribution: it draws from a generator of its own, "
                    "so that its numbers depend on who was drawn before; draw from the common generators of torch, random or "
                    'numpy.random, which are seeded for every example, or sign disclosure = "occurrences_public"',
                )

    def _culprit(self, slots: Sequence[int], raised: str) -> str:
        """Names the first contribution of a batch that cannot be decoded or collated by itself."""
        for index in slots:
            try:
                self._try_out([index])
            except DptrainError:
                raise
            except Exception as own:
                where = self.pool.slots.locator(index)
                return (
                    f"decode or collate fails on the contribution in {where.source!r} at byte {where.offset} "
                    f"({without_text(own)}; its text may repeat the content and is not shown); mend them or leave the "
                    "contribution out of the corpus"
                )
        return (
            f"collate fails on a batch whose examples it takes one by one ({raised}; its text may repeat contents and is not "
            "shown); make it a function of the examples alone"
        )


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
        looks = _looks(first)
        for other in found[1:]:
            require_alike(looks, _looks(other))
        return {key: _joined([each[key] for each in found]) for key in first}


def _joined(values: list[Any]) -> Any:
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


def _looks(collated: Mapping[str, Any]) -> Looks:
    tensors = {key: value for key, value in collated.items() if isinstance(value, torch.Tensor)}
    shapes = {key: tuple(value.shape[1:]) for key, value in tensors.items()}
    types = {key: value.dtype for key, value in tensors.items()}
    return shapes, types, {key: value for key, value in collated.items() if not isinstance(value, (torch.Tensor, list))}


def _names_and_types(looks: Looks) -> Any:
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


def spread(count: int, wanted: int) -> list[int]:
    """Returns up to ``wanted`` of ``count`` slots, evenly over the pool: fixed positions, not a draw."""
    return sorted({round(k * (count - 1) / (wanted - 1)) for k in range(wanted)}) if count else []
