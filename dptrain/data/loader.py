"""Feeds a run: reads contributions, collates them to rows, and holds every microbatch to the same shapes, types and values."""

import itertools
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from dptrain.data.contributions import Pool
from dptrain.data.microbatch import Collate, Microbatch, row_names, to_device
from dptrain.data.packing import Planned
from dptrain.data.reader import Looks, Reader, joined, looks_of, names_and_types, require_alike, require_length
from dptrain.data.workers import Asked, CannotSend, Done, Task, Workers, planned_check
from dptrain.errors import ConfigError, DptrainError, NotPrivateUse, without_text
from dptrain.sandbox import Sandbox

ALONE = 32
"""Contributions collated alone before a run, to see that shapes do not follow content."""

TOGETHER = 256
"""Contributions collated at a time when all are checked before a run."""


class FeedingNotice(UserWarning):
    """Workers that were asked for do not decode."""


class Feeder:
    """Rows of planned microbatches.

    Guarantee: rows are those of `dptrain.data.reader.Reader`, and the same to the bit whether this process makes them or a
    worker does. Whatever a worker cannot do, or does otherwise than this process would, this process does again, at the place
    where it would have done it: an error has its place, type and text. Workers are asked for contributions that are drawn
    already, and for no others.

    Args:
        pool: the contributions. collate: the user's. device: where the rows go. rows: the most in one microbatch, or None.
        sandbox: of the run; its numbers seed what collate draws, and where draws of contributions are secret, a generator of
            the user's own is refused.
        workers: processes that decode and collate ahead; 0 for none. prefetch: microbatches that each of them holds.
    """

    def __init__(
        self,
        pool: Pool,
        collate: Collate,
        device: torch.device,
        rows: int | None,
        sandbox: Sandbox,
        workers: int = 0,
        prefetch: int = 2,
    ) -> None:
        self.pool = pool
        require_length(collate, pool.lengths)
        self._reader = Reader(pool.corpus, pool.decode, collate)
        self._device = device
        self._rows = rows
        self._sandbox = sandbox
        self._looks: dict[int | None, Looks] = {}
        self._ahead: deque[tuple[int, Planned, tuple[Asked, ...]]] = deque()
        self._told = False
        self._alone: list[tuple[Planned, Microbatch]] = []
        self.likes: dict[int | None, Microbatch] = {}
        """By public length, a microbatch of which only keys, shapes and types count: what rows look like."""
        self.workers: Workers | None = None
        if workers:
            try:
                self.workers = Workers(workers, prefetch, pool.corpus, pool.decode, collate)
            except CannotSend as error:
                self._do_without(error)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the collated tensors, once something was collated."""
        return tuple(next(iter(self._looks.values()))[0]) if self._looks else ()

    def close(self) -> None:
        """Ends the workers."""
        self._ahead.clear()
        if self.workers is not None:
            self.workers.close()
            self.workers = None

    # ------------------------------------------------------------------------------------------------------------ a step

    @property
    def hungry(self) -> bool:
        """Tells whether workers could hold more microbatches than are expected of them."""
        return self._usable() and self.workers is not None and len(self._ahead) < self.workers.most

    def expect(self, planned: Sequence[Planned], step: int) -> None:
        """Has workers begin with microbatches of a step that is drawn; `planned` takes them in this order.

        Raises:
            FeedingFailed: code WORKER, a worker has ended.
        """
        if self._alike():
            self._ahead.extend((step, one, ()) for one in planned)
            self._send()

    def planned(self, planned: Planned, step: int) -> Microbatch:
        """Returns the rows of a microbatch of a step: reads and collates it, or takes it from the workers that did.

        Raises:
            ContentChanged, ConfigError, CoupledModel: as reading, collating and the check of shapes.
            FeedingFailed: code WORKER, a worker has ended.
        """
        done = self._taken(planned, step)
        if done and (rows := self._accepted(done, planned)) is not None:
            return rows
        return self._collated(planned, self._examples(planned.slots, step), step)

    def _taken(self, planned: Planned, step: int) -> list[Done]:
        """Returns what workers made of a microbatch; nothing where none was asked."""
        if not any(place[:2] == (step, planned) for place in self._ahead):
            return []
        while self._ahead[0][:2] != (step, planned):
            self._forget()
        asked = self._ahead.popleft()[2]
        if self.workers is None:
            return []
        done = [self.workers.take(one, self._device) for one in asked]
        self._send()
        return done

    def _accepted(self, done: Sequence[Done], planned: Planned) -> Microbatch | None:
        """Returns the rows of the answers, where this process would have made the same; else None."""
        if failed := [one for one in done if one.failed is not None]:
            self._tell(failed[0])
            return None
        if not self._note(done):
            return None
        parts = [one.rows for one in done if one.rows is not None]
        try:
            counts = [count for one in done for count in one.counts]
            for index, count in zip(planned.slots, counts, strict=True):
                self.pool.count(index, self.pool.entry(index), count)
            for part in parts:
                self._require_looks(part.length, looks_of(part.inputs))
        except Exception:
            return None
        inputs = {key: joined([part[key] for part in parts]) if len(parts) > 1 else value for key, value in parts[0].items()}
        return Microbatch(
            {k: to_device(v, self._device) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()},
            sum(part.contributions for part in parts),
            planned.examples,
            torch.cat([part.weight for part in parts]),
            tuple(name for part in parts for name in part.names),
            planned.length,
        )

    def _note(self, done: Sequence[Done]) -> bool:
        """Takes note of who drew; tells whether answers are what this process gives, which may know of a draw by now."""
        reader = self._reader
        reader.decode_draws = reader.decode_draws or any(one.draws[0] for one in done)
        reader.collate_draws = reader.collate_draws or any(one.draws[1] for one in done)
        return all(one.draws[1] == reader.collate_draws for one in done)

    def _send(self) -> None:
        """Hands workers what is expected next, as much as they take."""
        for place, (step, planned, asked) in enumerate(self._ahead):
            if not asked:
                if self.workers is None or not self.workers.room:
                    return
                parts = _parts(planned, len(self.workers)) if self.workers.idle else [planned]
                sent = tuple(self.workers.ask(self._task(one.slots, one, step)) for one in parts)
                self._ahead[place] = step, planned, sent

    def _task(self, slots: Sequence[int], planned: Planned | None, step: int) -> Task:
        entries = tuple(map(self.pool.entry, slots))
        draws = self._reader.decode_draws, self._reader.collate_draws
        return Task(entries, planned, step, self._sandbox.numbers.seed, draws, (TOGETHER, self._rows))

    def _forget(self) -> None:
        for asked in self._ahead.popleft()[2]:
            if self.workers is not None:
                self.workers.drop(asked)

    def _usable(self) -> bool:
        """Tells whether there are workers, and all have started; those that cannot are done without."""
        try:
            return self.workers is not None and self.workers.ready
        except CannotSend as error:
            self._do_without(error)
            return False

    def _do_without(self, why: CannotSend) -> None:
        self.close()
        warnings.warn(
            FeedingNotice(
                f"decode and collate run in this process, and not in workers: {why}; give functions that other processes can "
                "load, or leave out workers"
            ),
            stacklevel=2,
        )

    def _tell(self, done: Done) -> None:
        """Says once that a worker fails; where this process fails too, its error follows."""
        if not self._told:
            self._told = True
            notice = f"decode or collate failed in a worker ({done.failed}), and this process does what it could not do"
            warnings.warn(FeedingNotice(notice), stacklevel=2)

    # ------------------------------------------------------------------------------------------------------ before a run

    def check(self, progress: Callable[[int], None] | None = None) -> None:
        """Decodes and collates every contribution before the ledger opens.

        Args:
            progress: called now and then with the number of contributions read so far.

        Found later, one that cannot be read would stop the run at the step that drew it, and so tell who was drawn.

        Guarantee: of an error that a content raises, the refusal tells the type and the line, never the text.

        Raises:
            ContentChanged, CoupledModel, NotPrivateUse, ConfigError: code COLLATE names the contribution that fails.
            FeedingFailed: code WORKER, a worker has ended.
        """
        for slots, asked in self._handed_out():
            try:
                if asked is None or not self._seen(slots, asked):
                    self._try_out(slots)
                if progress is not None:
                    progress(slots[-1] + 1)
                continue
            except DptrainError:
                raise
            except Exception as error:
                raised = without_text(error)
            raise ConfigError("COLLATE", self._culprit(slots, raised))  # outside of except, so that no traceback has the text

    def _handed_out(self) -> Iterator[tuple[Sequence[int], Asked | None]]:
        """Yields all contributions in the order in which they are tried, with what workers were asked about them.

        Those that are tried alone, this process tries; meanwhile workers start.
        """
        count = len(self.pool)
        yield from (([index], None) for index in spread(count, ALONE))
        waiting: deque[tuple[Sequence[int], Asked]] = deque()
        for start in range(0, count, TOGETHER):
            slots = range(start, min(start + TOGETHER, count))
            if not self._alike() or self.workers is None:
                yield slots, None
                continue
            while waiting and not self.workers.room:
                yield waiting.popleft()
            waiting.append((slots, self.workers.ask(self._task(slots, None, 0))))
        yield from waiting

    def _alike(self) -> bool:
        """Tells whether there are workers, and each makes of what was tried alone what this process made of it.

        One that does not (its strings have other hashes, say, and decode uses them) would give a contribution other rows in
        one step than in another; then all are done without.
        """
        alone = self._alone
        if not self._usable() or self.workers is None:
            return False
        self._alone = []
        for planned, rows in alone:
            task = self._task(planned.slots, planned, 0)
            for asked in self.workers.ask_each(task):
                done = self.workers.take(asked, torch.device("cpu"))
                if done.rows is not None and not _same(rows, done.rows):
                    self._do_without(CannotSend("they give other rows in another process than here"))
                    return False
        return True

    def _seen(self, slots: Sequence[int], asked: Asked) -> bool:
        """Tells whether a worker found contributions to be what this process would find them; else it tries them itself."""
        assert self.workers is not None
        done = self.workers.take(asked, torch.device("cpu"))
        if done.failed is not None or not self._note([done]) or any(length not in self._looks for length, _ in done.looks):
            return False
        try:
            for index, count in zip(slots, done.counts, strict=True):
                self.pool.count(index, self.pool.entry(index), count)
            for length, found in done.looks:
                self._require_looks(length, found)
        except Exception:
            return False
        return True

    def _try_out(self, slots: Sequence[int]) -> None:
        contents = self._examples(slots, 0)
        entries = [self.pool.entry(index) for index in slots]
        for plan in planned_check(entries, [len(each) for each in contents], TOGETHER, self._rows):
            planned = replace(plan, slots=tuple(slots[place] for place in plan.slots))
            rows = self._collated(planned, [contents[place] for place in plan.slots], 0)
            if len(slots) == 1 and self.workers is not None:
                self._alone.append((planned, rows))
            if len(slots) == 1 and self._sandbox.secret:
                self._require_repeatable(rows, self._collated(planned, self._examples(planned.slots, 0), 0))

    # --------------------------------------------------------------------------------------------------- in this process

    def records(
        self, records: Sequence[list[Any]], names: Sequence[bytes], length: int | None = None, step: int = 0
    ) -> Microbatch:
        """Collates examples that are nobody's private ones, for the start-up probes; one contribution each, of one length."""
        examples = max(map(len, records))
        names, numbers = row_names(names, examples), self._sandbox.numbers
        rows = self._reader.built(list(records), names, step, numbers, self._device, rows_each=examples, length=length)
        self._require_rows(rows)
        return rows

    def _examples(self, slots: Sequence[int], step: int) -> list[list[Any]]:
        """Decodes contributions, and notes how many examples they have."""
        entries = [self.pool.entry(index) for index in slots]
        found = self._reader.examples(entries, step, self._sandbox.numbers)
        for index, entry, each in zip(slots, entries, found, strict=True):
            self.pool.count(index, entry, len(each))
        return found

    def _collated(self, planned: Planned, contents: list[list[Any]], step: int) -> Microbatch:
        entries = [self.pool.entry(index) for index in planned.slots]
        rows = self._reader.rows(planned, entries, contents, step, self._sandbox.numbers, self._device)
        self._require_rows(rows)
        return rows

    def _require_rows(self, rows: Microbatch) -> None:
        self._require_looks(rows.length, looks_of(rows.inputs))
        self.likes.setdefault(rows.length, rows)

    def _require_looks(self, length: int | None, found: Looks) -> None:
        for other in itertools.islice(self._looks.values(), 1):  # perhaps of another length
            require_alike(names_and_types(other), names_and_types(found))
        require_alike(self._looks.setdefault(length, found), found)

    @staticmethod
    def _require_repeatable(rows: Microbatch, again: Microbatch) -> None:
        for key, value in rows.inputs.items():
            if isinstance(value, torch.Tensor) and not _equal(value, again.inputs[key]):
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



def _equal(value: torch.Tensor, other: torch.Tensor) -> bool:
    """Tells whether tensors hold the same numbers; NaN is the same as NaN."""
    return bool(((value == other) | ((value != value) & (other != other))).all())


def _same(rows: Microbatch, other: Microbatch) -> bool:
    """Tells whether two microbatches hold the same rows."""
    for key, value in rows.inputs.items():
        if isinstance(value, torch.Tensor):
            found = other.inputs.get(key)
            if not isinstance(found, torch.Tensor) or found.shape != value.shape or not _equal(value.cpu(), found):
                return False
        elif other.inputs.get(key) != value:
            return False
    return rows.inputs.keys() == other.inputs.keys()

def _parts(planned: Planned, count: int) -> list[Planned]:
    """Splits a microbatch that is waited for among workers; collate is called for one contribution at a time anyway."""
    if planned.fill or planned.part is not None:
        return [planned]
    slots, count = planned.slots, min(count, len(planned.slots))
    edges = [place * len(slots) // count for place in range(count + 1)]
    return [replace(planned, slots=slots[start:stop]) for start, stop in itertools.pairwise(edges)]


def spread(count: int, wanted: int) -> list[int]:
    """Returns up to ``wanted`` of ``count`` slots, evenly over the pool: fixed positions, not a draw."""
    return sorted({round(k * (count - 1) / (wanted - 1)) for k in range(wanted)}) if count else []
