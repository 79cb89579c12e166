"""Holds a store to the promise of `ledger.storage.store`, for whoever writes one.

`check_store` drives stores through the calls that a ledger makes, and through the failures that a store has to survive: refused
rows, a second writer, a reader beside a writer, and processes that are killed while they append. It compares what it reads
with what must be there after each of them.

It cannot cut the power. That a commit reaches the disk before it returns is for the author to show, as `tests/fault` does for
SQLite.
"""

import gc
import multiprocessing
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

from ledger.errors import LedgerBusy, LedgerCorrupt, LedgerError, StoreUnfit
from ledger.leaves.attestations import unpack
from ledger.merkle import Frontier, leaf_hash
from ledger.storage.place import Place, store_of
from ledger.storage.store import (
    ADMIT_KIND,
    LOCK_TIMEOUT_SECONDS,
    SUMMARY_KIND,
    Aggregated,
    Attested,
    Row,
    Store,
    create_store,
    exists,
    open_store,
)
from ledger.tiles import Subtree

Fresh = Callable[[], Place]
"""Returns a place where nothing lies yet, another at every call."""

PROMISE: Final = {
    "CREATE": "a fresh place is empty; a ledger is created once, and never over another",
    "ORDER": "leaves follow one another, one, some or thousands in a call; gaps, repetitions and a wrong size are refused",
    "ATOMIC": "an append that is refused in its last part, or whose rows break off, leaves nothing",
    "ONE_WRITER": "a second writer is refused, a reader cannot append, each writer has a larger fence, an old head is refused",
    "PREFIX": "a snapshot stays at its moment while a writer goes on",
    "DURABLE": "what was appended is there when the ledger is opened again: leaves, notes, terms, attestations",
    "CRASH": "processes are killed while they append: what was reported is there, and beyond it nothing or one whole append",
    "NOTE": "signature lines are appended to a checkpoint note, and nothing else happens to it",
    "PRUNE": "bodies go where retention lets them, and nowhere else",
    "DROP": "hashes go where retention lets them, and nowhere else",
    "ASIDE": "an unfinished ledger is set aside or discarded, and another can be created in its place",
}
"""Parts of the promise, by the code of the `StoreUnfit` that says which was broken: what is tried."""

_OTHER_KIND: Final = 2
"""Leaves that are never pruned, as CHARGE."""

_SIGNATURE_LINE: Final = "\u2014 anne.example AAAA\n".encode()


class Record(NamedTuple):
    """Everything that a store holds of a ledger."""

    head: bytes
    rows: tuple[Row, ...] = ()
    notes: tuple[tuple[int, bytes], ...] = ()
    pruned_before: int = 0
    hashes_before: int = 0
    aggregates: tuple[Aggregated, ...] = ()
    terms: tuple[tuple[int, bytes], ...] = ()
    attested: tuple[Attested, ...] = ()


def check_store(fresh: Fresh, *, kills: int = 5, seed: int = 0) -> None:
    """Checks that a registered store keeps its promise.

    Args:
        fresh: returns an empty place of the store, another at every call.
        kills: processes that are killed while they append; each is a fork of this one.
        seed: decides when they are killed.

    Raises:
        StoreUnfit: the code, one of `PROMISE`, names the part that was broken; the sentence says what was found and expected.
    """
    for check in (_creates, _appends, _appends_whole, _one_writer, _readers, _reopens, _notes, _prunes, _drops, _gives_way):
        check(fresh)
    _survives_kills(fresh, kills, random.Random(seed))


def _creates(fresh: Fresh) -> None:
    place = fresh()
    _require(not exists(place), "CREATE", f"{place.shown} is said to exist; expected nothing at a fresh place")
    _refused(lambda: open_store(place, read_only=True), LedgerError, "CREATE", "opening a ledger that is not there", "MISSING")
    with closing(create_store(place)) as store:
        _require(store.fence > 0, "CREATE", f"the writer's fence is {store.fence}; expected a number above 0")
        _expect(store, Record(Frontier().to_bytes()), "CREATE", "a ledger was created")
        _grow(store, Frontier(), 1)
        before = _record(store)
    _require(exists(place), "CREATE", f"{place.shown} is said not to exist after a leaf was appended")
    _refused(lambda: create_store(place), LedgerError, "CREATE", "creating a ledger over another", "EXISTS")
    with closing(open_store(place, read_only=True)) as store:
        _expect(store, before, "CREATE", "creating another over it was refused")


def _appends(fresh: Fresh) -> None:
    with closing(create_store(fresh())) as store:
        frontier, rows, notes = Frontier(), list[Row](), list[tuple[int, bytes]]()
        for count in (1, 3, 5_000, 2):
            note = None if count == 3 else b"note of %d\n" % count
            rows += _grow(store, frontier, count, note=note)
            notes += [] if note is None else [(frontier.size, note)]
            _expect(store, Record(frontier.to_bytes(), tuple(rows), tuple(notes)), "ORDER", f"{len(rows)} leaves were appended")
        end = frontier.size
        wrong = {
            "a row that leaves a gap": _rows(end + 1, 1),
            "a row of the past": _rows(end - 1, 1),
            "a row twice": _rows(end, 1) * 2,
            "a row without a body": [_rows(end, 1)[0]._replace(body=None)],  # type: ignore[arg-type]
        }
        for what, given in wrong.items():
            later = _with(frontier, given)
            _refused(partial(store.append, given, later), LedgerError, "ORDER", what)
            _expect(store, Record(frontier.to_bytes(), tuple(rows), tuple(notes)), "ORDER", f"{what} was refused")
        ahead = _with(frontier, _rows(end, 2))
        _refused(lambda: store.append(_rows(end, 1), ahead), LedgerBusy, "ORDER", "a head of another size", "HEAD_MOVED")
        rows += _grow(store, frontier, 1)
        _expect(store, Record(frontier.to_bytes(), tuple(rows), tuple(notes)), "ORDER", "a leaf followed what was refused")


def _appends_whole(fresh: Fresh) -> None:
    with closing(create_store(fresh())) as store:
        frontier = Frontier()
        _grow(store, frontier, 3)
        before, first = _record(store), frontier.size
        rows = [*_rows(first, 2, ADMIT_KIND), *_rows(first + 2, 1)]
        attested = [Attested(seq, b"terms", bytes(64)) for seq in (first, first + 2)]  # the second is of no ADMIT leaf
        later = _with(frontier, rows)
        _refused(
            lambda: store.append(rows, later, b"a note\n", attested), LedgerCorrupt, "ATOMIC", "an attestation of no ADMIT leaf"
        )
        _expect(store, before, "ATOMIC", "an append was refused in its last part")
        rows = _rows(first, 20)
        try:
            store.append(_Torn(rows), _with(frontier, rows))
        except (_TornError, LedgerError):
            pass
        else:
            raise StoreUnfit("ATOMIC", "an append whose rows could not be read to their end was reported as done")
        _expect(store, before, "ATOMIC", "an append broke off while its rows were read")
        _grow(store, frontier, 1)


def _one_writer(fresh: Fresh) -> None:
    place = fresh()
    frontier = Frontier()
    with closing(create_store(place)) as store:
        _grow(store, frontier, 2)
        first = store.fence
        _refused(lambda: open_store(place, read_only=False), LedgerBusy, "ONE_WRITER", "a second writer beside the first")
        with closing(open_store(place, read_only=True)) as reader:
            _require(reader.fence == 0, "ONE_WRITER", f"a reader has the fence {reader.fence}, expected 0")
            later = _with(frontier, _rows(frontier.size, 1))
            _refused(lambda: reader.append(_rows(frontier.size, 1), later), LedgerError, "ONE_WRITER", "an append by a reader")
        _grow(store, frontier, 1)
    with closing(open_store(place, read_only=False)) as store:
        _require(store.fence > first, "ONE_WRITER", f"the next writer has the fence {store.fence}, the one before it {first}")
        _expect(store, Record(frontier.to_bytes(), tuple(_rows(0, 3))), "ONE_WRITER", "another writer took over")
        stale = Frontier()
        stale.extend([row.leaf_hash for row in _rows(0, 2)])
        again = _rows(2, 1)
        _refused(
            lambda: store.append(again, _with(stale, again)), LedgerBusy, "ONE_WRITER", "an append to an old head", "HEAD_MOVED"
        )


def _readers(fresh: Fresh) -> None:
    place, frontier = fresh(), Frontier()
    with closing(create_store(place)) as store:
        _grow(store, frontier, 3, note=b"one\n")
        before = _record(store)
        with closing(open_store(place, read_only=True)) as reader:
            with reader.snapshot() as snapshot:
                head = snapshot.head().to_bytes()
                _grow(store, frontier, 40, note=b"two\n")
                found = (head, tuple(snapshot.rows()), tuple(sorted(snapshot.checkpoints().items())))
                seen = snapshot.head().to_bytes()
            if found != before[:3] or seen != head:
                sentence = f"a snapshot of {len(before.rows)} leaves shows {len(found[1])} after a writer went on"
                raise StoreUnfit("PREFIX", f"{sentence}; it has to stay at its moment")
            _expect(reader, _record(store), "PREFIX", "a writer went on")


def _reopens(fresh: Fresh) -> None:
    place, frontier = fresh(), Frontier()
    with closing(create_store(place)) as store:
        before = _with_admissions(store, frontier)
        _expect(store, before, "DURABLE", "admissions were appended")
        store.require_in_place()
    for read_only in (True, False, True):
        with closing(open_store(place, read_only=read_only)) as store:
            _expect(store, before, "DURABLE", f"the ledger was opened again, to {'read' if read_only else 'write'}")
            with store.snapshot() as snapshot:
                numbers = [number for number, _ in snapshot.terms()][::-1]
                found = snapshot.terms_at(numbers)
                _require(found == [dict(snapshot.terms())[n] for n in numbers], "DURABLE", "terms_at and terms differ")
                missing = len(numbers) + 5
                _refused(
                    partial(snapshot.terms_at, [missing]), LedgerCorrupt, "DURABLE", "terms that nobody stored", "ATTESTATION"
                )


def _notes(fresh: Fresh) -> None:
    with closing(create_store(fresh())) as store:
        frontier, note = Frontier(), b"text\n\n\xe2\x80\x94 log AAAA\n"
        rows = _grow(store, frontier, 2, note=note)
        before = _record(store)
        blank = note + b"\n" + _SIGNATURE_LINE
        for changed in (note[:-1], note[:5] + b"x" + note[6:], _SIGNATURE_LINE + note, note + b"a line\n", blank):
            _refused(partial(store.put_note, 2, changed), LedgerCorrupt, "NOTE", "a note that is changed")
            _expect(store, before, "NOTE", "a changed note was refused")
        _refused(lambda: store.put_note(1, note), LedgerError, "NOTE", "a note where none is stored", "NO_CHECKPOINT")
        signed = note + _SIGNATURE_LINE
        store.put_note(2, signed)
        _expect(store, Record(frontier.to_bytes(), tuple(rows), ((2, signed),)), "NOTE", "a signature line was appended")


def _prunes(fresh: Fresh) -> None:
    place, frontier = fresh(), Frontier()
    with closing(create_store(place)) as store:
        before, size = _with_admissions(store, frontier), frontier.size
        kept, wider = (Aggregated(0, end, _SUMMARY, b"record") for end in (_ADMITTED, _SUMMARY))
        wrong: dict[str, tuple[int, list[int], list[Aggregated]]] = {
            "a body without an aggregate": (_ADMITTED, [1], []),
            "a leaf that is never pruned": (_SUMMARY, [_ADMITTED], [wider]),
            "a body past the last summary": (size, [1], [kept]),
            "a body past what is pruned": (2, [5], [kept]),
            "a leaf that is not there": (_ADMITTED, [1, size + 7], [kept]),
        }
        for what, given in wrong.items():
            _refused(partial(store.prune, size, *given), LedgerCorrupt, "PRUNE", what)
            _expect(store, before, "PRUNE", f"{what} was refused")
        _refused(
            lambda: store.prune(size - 1, _ADMITTED, [1], [kept]), LedgerBusy, "PRUNE", "a head of another size", "HEAD_MOVED"
        )
        store.prune(size, _ADMITTED, [0, 1, 2, 3], [kept])
        after = before._replace(
            rows=tuple(row._replace(body=b"") if row.seq < 4 else row for row in before.rows),
            pruned_before=_ADMITTED,
            aggregates=(kept,),
            terms=((0, b""), *before.terms[1:]),  # leaves 0 to 3 alone had these terms
            attested=before.attested[4:],
        )
        _expect(store, after, "PRUNE", "four bodies went")
    with closing(open_store(place, read_only=True)) as store:
        _expect(store, after, "PRUNE", "four bodies went and the ledger was opened again")


def _drops(fresh: Fresh) -> None:
    with closing(create_store(fresh())) as store:
        frontier = Frontier()
        _with_admissions(store, frontier)
        store.prune(frontier.size, _ADMITTED, [0, 1, 2, 3], [Aggregated(0, _ADMITTED, _SUMMARY, b"record")])
        before, size, root = _record(store), frontier.size, leaf_hash(b"a root")
        wrong = {
            "hashes of leaves that are there": (_ADMITTED, Subtree(4, 2, root)),
            "hashes past those that may go": (2, Subtree(0, 2, root)),
            "hashes past what is pruned": (size, Subtree(0, 2, root)),
            "a subtree that is not aligned": (_ADMITTED, Subtree(1, 1, root)),
        }
        for what, (limit, subtree) in wrong.items():
            _refused(partial(store.drop_hashes, size, limit, [subtree]), LedgerCorrupt, "DROP", what)
            _expect(store, before, "DROP", f"{what} was refused")
        for level in (1, 2):  # the second swallows the first
            store.drop_hashes(size, 1 << level, [Subtree(0, level, root)])
            inside = {seq: Row(seq, ADMIT_KIND, b"" if seq else root, b"", level) for seq in range(1 << level)}
            expected = tuple(inside.get(row.seq, row) for row in before.rows)
            after = before._replace(rows=expected, hashes_before=1 << level)
            _expect(store, after, "DROP", f"a root stands for {1 << level} hashes")


def _gives_way(fresh: Fresh) -> None:
    place = fresh()
    with closing(create_store(place)) as store:
        _grow(store, Frontier(), 1)
    aside = store_of(place).set_aside(place)
    _require(bool(aside) and not exists(place), "ASIDE", f"{place.shown} is still there after it was set aside as {aside!r}")
    store = create_store(place)
    store.discard()
    _require(not exists(place), "ASIDE", f"{place.shown} is still there after its creator discarded it")
    with closing(create_store(place)) as store:
        _grow(store, Frontier(), 1)


def _survives_kills(fresh: Fresh, kills: int, moments: random.Random) -> None:
    place = fresh()
    with closing(create_store(place)) as store:
        fence = store.fence
    for _ in range(kills):
        told = _killed(place, moments)
        with closing(_opened(place)) as store:
            found = _record(store)
            size = len(found.rows)
            _require(
                size in (told, _next(told)),
                "CRASH",
                f"a killed writer was told of {told} leaves, and {size} are there; expected {told}, or the {_next(told)} that "
                "it was appending",
            )
            whole = _with(Frontier(), _rows(0, size))
            _require(found == Record(whole.to_bytes(), tuple(_rows(0, size))), "CRASH", f"{size} leaves are not as appended")
            _require(
                store.fence > fence, "CRASH", f"the fence {store.fence} follows {fence} after a kill; expected a larger one"
            )
            fence = store.fence


def _killed(place: Place, moments: random.Random) -> int:
    """Kills a process that appends, at a random moment; returns the last size that it was told of."""
    context = multiprocessing.get_context("fork")
    sizes, sent = context.Pipe(duplex=False)
    child, told = context.Process(target=_append_for_ever, args=(place, sent)), 0
    child.start()
    sent.close()
    try:
        for _ in range(moments.randrange(1, 12)):
            told = sizes.recv()
        time.sleep(moments.random() * 0.01)
        child.kill()
        while True:
            told = sizes.recv()
    except (EOFError, OSError):  # the pipe ends with the process
        pass
    finally:
        child.kill()
        child.join()
    if child.exitcode != -signal.SIGKILL:
        raise StoreUnfit("CRASH", "a process that appends leaves ended by itself; its error stands in the output")
    return told


def _append_for_ever(place: Place, sizes: "Connection[Any, Any]") -> None:
    """Appends until it is killed, and sends the size after each append that returned."""
    gc.disable()  # what this process shares with its parent must not be closed here
    store = open_store(place, read_only=False)
    with store.snapshot() as snapshot:
        frontier = snapshot.head()
    while True:
        sizes.send(frontier.size)
        _grow(store, frontier, _next(frontier.size) - frontier.size)


def _opened(place: Place) -> Store:
    """Opens a ledger to write; a server may hold the lock of a killed writer for a moment."""
    deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while True:
        try:
            return open_store(place, read_only=False)
        except LedgerBusy:
            if time.monotonic() > deadline:
                raise StoreUnfit("CRASH", "the lock of a killed writer is still held after ten seconds") from None
            time.sleep(0.05)


def _next(size: int) -> int:
    """Returns the size after the next append to a ledger of a size."""
    return size + 1 + size % 7


_ADMITTED: Final = 8
"""ADMIT leaves of `_with_admissions`; behind them stands a leaf that is never pruned, and then the SUMMARY leaf."""

_SUMMARY: Final = _ADMITTED + 1


def _with_admissions(store: Store, frontier: Frontier) -> Record:
    """Appends admissions with attestations, a summary and more; returns what must be there."""
    rows = [*_rows(0, _ADMITTED, ADMIT_KIND), *_rows(_ADMITTED, 1), *_rows(_SUMMARY, 1, SUMMARY_KIND), *_rows(_SUMMARY + 1, 2)]
    attested = [Attested(seq, b"terms %d" % (seq // 4), bytes([seq]) * 64) for seq in range(_ADMITTED)]
    for part, signed in ((rows[:5], attested[:5]), (rows[5:], attested[5:])):
        frontier.extend([row.leaf_hash for row in part])
        store.append(part, frontier, b"note of %d\n" % frontier.size, signed)
    notes = tuple((size, b"note of %d\n" % size) for size in (5, len(rows)))
    terms = ((0, b"terms 0"), (1, b"terms 1"))
    return Record(frontier.to_bytes(), tuple(rows), notes, terms=terms, attested=tuple(attested))


def _rows(first: int, count: int, kind: int = _OTHER_KIND) -> list[Row]:
    bodies = (b"leaf %d" % seq * (1 + seq % 40) for seq in range(first, first + count))
    return [Row(seq, kind, leaf_hash(body), body) for seq, body in enumerate(bodies, start=first)]


def _with(frontier: Frontier, rows: Sequence[Row]) -> Frontier:
    later = frontier.copy()
    later.extend([row.leaf_hash for row in rows])
    return later


def _grow(store: Store, frontier: Frontier, count: int, *, note: bytes | None = None) -> list[Row]:
    rows = _rows(frontier.size, count)
    frontier.extend([row.leaf_hash for row in rows])
    store.append(rows, frontier, note)
    return rows


def _record(store: Store) -> Record:
    with store.snapshot() as snapshot:
        terms = tuple(snapshot.terms())
        by_number = dict(terms)
        kept = ((seq, *unpack(data)) for seq, data in snapshot.attestations())
        return Record(
            snapshot.head().to_bytes(),
            tuple(snapshot.rows()),
            tuple(sorted(snapshot.checkpoints().items())),
            snapshot.pruned_before(),
            snapshot.hashes_before(),
            tuple(snapshot.aggregates()),
            terms,
            tuple(Attested(seq, by_number.get(number, b""), signature) for seq, number, signature in kept),
        )


def _require(holds: bool, code: str, sentence: str) -> None:
    if not holds:
        raise StoreUnfit(code, sentence)


def _expect(store: Store, expected: Record, code: str, when: str) -> None:
    """Compares all that a store holds with what must be there."""
    found = _record(store)
    for name, here, there in zip(Record._fields, found, expected, strict=True):
        _require(here == there, code, f"after {when}, {name} reads {here!a:.200}; expected {there!a:.200}")


def _refused(call: Callable[[], object], kind: type[LedgerError], code: str, what: str, expected: str | None = None) -> None:
    """Requires that a call is refused with a typed error, and with its code where one is expected."""
    try:
        call()
    except kind as error:
        told = expected is None or error.code == expected
        _require(told, code, f"{what} is refused with the code {error.code}; expected {expected}")
        return
    except Exception as error:
        raise StoreUnfit(code, f"{what} ends with {error!r:.200}; expected {kind.__name__}") from error
    raise StoreUnfit(code, f"{what} is accepted; expected {kind.__name__}")


class _TornError(Exception):
    """Ends the reading of rows in their midst."""


class _Torn(list[Row]):
    """Rows that break off while they are read."""

    def __iter__(self) -> Iterator[Row]:
        yield from self[: len(self) // 2]
        raise _TornError
