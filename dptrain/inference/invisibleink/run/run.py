"""Makes the texts of a run, one after the other, and goes on where an earlier run in the same folder ended."""

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Final

from attest.files import atomic_write
from dptrain.errors import ResumeRefused
from dptrain.inference.invisibleink.pool import Pool
from dptrain.inference.invisibleink.run.purse import Purse
from dptrain.inference.invisibleink.run.setting import FILE, Setting, keep_references
from dptrain.inference.invisibleink.run.texts import Text, Texts
from ledger import layout
from ledger.budget.log import BudgetLog
from ledger.budget.mark import only_one
from ledger.errors import BudgetExhausted, LeafRefused, LedgerError
from ledger.note import open_note, parse_checkpoint

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from dptrain.inference.invisibleink.generator import InvisibleInk, Stream
    from dptrain.inference.invisibleink.retrieval import Corpus

EXPORT: Final = "export"
PUBLIC: Final = "budget.pub"
LOCK: Final = ".lock"


@dataclass(frozen=True, slots=True)
class Made:
    """Says what a run has made.

    Attributes:
        texts: whole ones in the folder. new: of these, by this call. lost: begun and paid for, and not there: a crash or a
            signal cut them. tokens: of all whole texts. exhausted: whether the budget holds no further text of some label that
            was asked for. stopped: whether the call was told to stop.
    """

    texts: int
    new: int
    lost: int
    tokens: int
    exhausted: bool
    stopped: bool


class Run:
    """An open folder of a run; one process has it open at a time.

    Guarantee: a text is paid for, in full and durably, before the first forward pass, and stands in the folder whole or not at
    all. One that was cut is spent: its batch is drawn from again only where the budget of every contribution holds it. Which
    batch a text comes from, and how many there are, follows from what is public.

    Attributes:
        texts: what is there. pool: gives out batches. log: pays.
    """

    by: ClassVar = "label"
    """Name of the label of a text in its file."""

    def __init__(
        self, folder: Path, setting: Setting, pool: "Pool | Corpus", purse: Purse, before: Callable[[], object] = lambda: None
    ) -> None:
        """Args: before: called before each text is paid for; it enters withdrawals.

        Raises:
            ResumeRefused: as `Setting.keep`, and `Texts`; code RUN_OPEN, another process has the folder open.
        """
        self.folder, self.pool, self._purse, self._before = folder, pool, purse, before
        self._alone: AbstractContextManager[bool] = only_one(folder / LOCK)
        if not self._alone.__enter__():
            self._alone.__exit__(None, None, None)
            raise ResumeRefused("RUN_OPEN", f"another process makes texts in {folder}; wait for it, or take another folder")
        try:
            setting.keep(folder)
            keep_references(folder, pool.references)
            self.texts = Texts(folder, self.by)
        except BaseException:
            self._alone.__exit__(None, None, None)
            raise
        pool.go_on(self.texts.places)

    @property
    def log(self) -> BudgetLog:
        """The budget log."""
        return self.pool.log

    def generate(
        self,
        ink: "InvisibleInk",
        *,
        texts: int | None = None,
        label: str | None = None,
        words: Mapping[str, str] | None = None,
        stop: Callable[[], bool] = lambda: False,
        told: Callable[[int], None] | None = None,
        piece: Callable[[str], None] | None = None,
    ) -> Made:
        """Makes texts until so many whole ones are there, or the budget holds no more.

        Args:
            texts: in the folder at the end, of the label where one is named; None for as many as there are batches.
            label: alone; None for all in turn.
            words: public words of the task that are the same for all texts.
            stop: asked after every token; a text under way is closed then, spent for what was computed, and not written.
            told: called with the number of whole texts. piece: called with every piece of a text as it is released.

        Raises:
            ConfigError: as `Pool.take` and `Task.words`. Else as `InvisibleInk.stream`.
        """
        sizes = {each: size for each, size in self.pool.sizes.items() if size and label in (None, each)}
        if not sizes:
            self.pool.take(label)  # which says why there is none
        wanted = sum(sizes.values()) if texts is None else texts
        given = {each: ink.task.words(each, words) for each in sizes}  # what is wrong with one is told before anything is paid
        before, exhausted, stopped = self.texts.whole, set[str | None](), False
        for each in self._turns(sizes, exhausted):
            if self.texts_of(label) >= wanted or (stopped := stop()):
                break
            self._before()
            try:
                stream = self._begun(ink, each, given[each])
            except BudgetExhausted:
                exhausted.add(each)
                continue
            if stopped := self._made(stream, each, stop, piece):
                break
            if told is not None:
                told(self.texts.whole)
        found = self.texts
        short = bool(exhausted) and self.texts_of(label) < wanted and not stopped
        return Made(found.whole, found.whole - before, found.lost, found.tokens, short, stopped)

    def texts_of(self, label: str | None) -> int:
        """Returns how many whole texts a label has; all of them for None."""
        return self.texts.whole if label is None else self.texts.of_label[label]

    def finish(self) -> Path:
        """Closes the epoch of the log, and writes its export into the folder, with the key to verify it; returns the folder of
        the export."""
        export = self.folder / EXPORT
        self.log.refresh()  # which writes what waits to be settled
        signed, written = self.log.checkpoint(), export / layout.CHECKPOINT
        complete = parse_checkpoint(open_note(signed, [self.log.header.log_vkey]).text).size == self.log.size
        if not (complete and written.is_file() and written.read_bytes() == signed):
            self._purse.close(self.log, export)
        atomic_write(self.folder / PUBLIC, f"{self.log.header.log_vkey}\n".encode())
        return export

    def close(self) -> None:
        """Closes the folder and the log; what was settled is written."""
        self.texts.close()
        self.log.close()
        self._alone.__exit__(None, None, None)

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _turns(self, sizes: Mapping[str | None, int], exhausted: set[str | None]) -> Iterator[str | None]:
        """Yields labels in turn, each as often as it has batches, over and over, behind the texts that were begun; those that
        are exhausted no more."""
        order = [label for turn in range(max(sizes.values())) for label, size in sizes.items() if turn < size]
        for place in itertools.count(self.texts.begun):
            if exhausted.issuperset(sizes):
                return
            label = order[place % len(order)]
            if label not in exhausted:
                yield label

    def _begun(self, ink: "InvisibleInk", label: str | None, words: Mapping[str, str]) -> "Stream":
        """Pays for the next text of a label, after it was noted that it begins; where nothing was paid, whatever the reason,
        that is taken back."""
        number, places, request = self.texts.begun, dict(self.texts.places), secrets.token_bytes(16)
        try:
            while True:
                batch, meter = self.pool.take(label)
                self.texts.note(number + 1, self.pool.places)
                try:
                    return ink.stream([one.text for one in batch], replace(meter, request=request), labels=words)
                except (BudgetExhausted, LeafRefused) as error:  # another process was faster
                    if not self.pool.overtaken(batch, error):
                        raise
        except BaseException:
            if self.texts.begun > number and not self._paid(request):
                self.texts.note(number, places)
            raise

    def _paid(self, request: bytes) -> bool:
        """Tells whether a reservation stands, or may stand where the log cannot be read."""
        try:
            self.log.refresh()
        except LedgerError:
            return True
        return any(one.request == request for one in self.log.state.open.values())

    def _made(
        self, stream: "Stream", label: str | None, stop: Callable[[], bool], piece: Callable[[str], None] | None
    ) -> bool:
        """Draws a text and writes it; returns whether it was told to stop before the end."""
        for token in stream:
            if piece is not None:
                piece(token.text)
            if stream.finish is None and stop():
                stream.close()
                return True
        assert stream.finish is not None
        self.texts.append(Text(self.texts.begun, label, stream.text, len(stream.tokens), stream.finish))
        return False


def prepared(folder: Path) -> Path:
    """Makes the folder of a run where there is none.

    Raises:
        ResumeRefused: code RUN_FOLDER, it has files and none of them is of a run.
    """
    folder.mkdir(exist_ok=True)
    files = {path.name for path in folder.iterdir()} - {LOCK}
    if files and files.isdisjoint((FILE, "budget.db", "budget.salt")):
        raise ResumeRefused("RUN_FOLDER", f"{folder} has files, and none of a run; name a folder that is new or empty")
    return folder
