"""Contributors of a registry: those enrolled in runs as columns of bytes, the others as objects, all of them as one mapping."""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from attest.registry.digest_index import DigestIndex
from attest.registry.names import Names
from attest.registry.packed_names import PackedNames
from attest.registry.records import Contributor
from attest.registry.runs import Run

_NONE = 2**32 - 1


class Enrolled(Mapping[str, Contributor]):
    """Contributors by their commitments in hex, in order of their enrolment, and the keys of all of them.

    A contributor who was enrolled in a run takes 64 bytes and two places in an index. It is made an object when somebody asks
    for it, and is kept as one once something of it is changed.
    """

    def __init__(self) -> None:
        self._single: dict[str, Contributor] = {}
        self._holders: dict[bytes, str] = {}
        self._order: list[Run | str] = []
        self._runs: list[Run] = []
        self._starts: list[int] = []
        self._in_runs = self._size = 0
        self._names = self._keys = DigestIndex()

    def copy(self) -> "Enrolled":
        """Returns these contributors as they are now, to go their own way from here."""
        other = Enrolled()
        other._single, other._holders = self._single.copy(), self._holders.copy()
        other._order, other._runs, other._starts = self._order.copy(), self._runs.copy(), self._starts.copy()
        other._in_runs, other._size = self._in_runs, self._size
        other._names, other._keys = self._names, self._keys
        return other

    @property
    def has_runs(self) -> bool:
        """Tells whether contributors are kept as columns."""
        return bool(self._runs)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, name: str) -> Contributor:
        single = self._single.get(name)
        if single is not None:
            return single
        row = self._row(name)
        if row is None:
            raise KeyError(name)
        run, number = self.place(row)
        return run.contributor(number)

    def __contains__(self, name: object) -> bool:
        return name in self._single or (type(name) is str and self._row(name) is not None)

    def __setitem__(self, name: str, contributor: Contributor) -> None:
        if name not in self:
            self._order.append(name)
            self._size += 1
        self._single[name] = contributor

    def __iter__(self) -> Iterator[str]:
        for item in self._order:
            if isinstance(item, str):
                yield item
            else:
                yield from (item.name(number) for number in range(len(item)))

    def holder(self, key: bytes) -> str | None:
        """Returns the commitment to whose key it is, in hex; None if it is nobody's."""
        known = self._holders.get(key)
        row = self._keys.row(key) if known is None and self._runs else None
        if row is None:
            return known
        run, number = self.place(row)
        return run.name(number) if run.key(number) == key else None

    def claim(self, key: bytes, name: str) -> None:
        """Takes in that a key, which is nobody's yet, is a contributor's."""
        self._holders[key] = name

    def take(self, runs: Sequence[Run]) -> bool:
        """Takes in runs of contributors, all or none; True where all of them and all of their keys are new.

        Guarantee: a contributor or a key that is there, or that stands twice in the runs, is never taken.
        """
        names, keys = b"".join(run.names for run in runs), b"".join(run.keys for run in runs)
        if self._holders and any(keys[at : at + 32] in self._holders for at in range(0, len(keys), 32)):
            return False
        if self._single and any(names[at : at + 32].hex() in self._single for at in range(0, len(names), 32)):
            return False
        more_names, more_keys = self._names.extended(names, self._in_runs), self._keys.extended(keys, self._in_runs)
        if more_names is None or more_keys is None:
            return False
        self._names, self._keys = more_names, more_keys
        for run in runs:
            self._starts.append(self._in_runs)
            self._runs.append(run)
            self._order.append(run)
            self._in_runs += len(run)
            self._size += len(run)
        return True

    def _row(self, name: str) -> int | None:
        """The row of a contributor who was enrolled in a run."""
        if not self._runs:
            return None
        try:
            row = self._names.row(bytes.fromhex(name)) if len(name) == 64 else None
        except ValueError:
            return None
        if row is None:
            return None
        run, number = self.place(row)
        return row if run.name(number) == name else None

    def place(self, row: int) -> tuple[Run, int]:
        """Returns the run in which a row lies, and its place there."""
        at = bisect_right(self._starts, row) - 1
        return self._runs[at], row - self._starts[at]


class Opened(Mapping[str, Contributor]):
    """The contributors of a registry by their names, where all of these are known; immutable.

    Args:
        enrolled: The contributors by commitment; not changed any more.
        names: What opens all of the commitments.
        packed: The names in their order.
        singles: Those who are objects, by name, with their names.
        numbers: For each run the places of its names in that order.
        rows: For each name the row of its contributor, `_NONE` if it is in no run.
    """

    def __init__(
        self,
        enrolled: Enrolled,
        names: Names,
        packed: PackedNames,
        singles: dict[str, Contributor],
        numbers: "list[array[int]]",
        rows: "array[int]",
    ) -> None:
        self._enrolled, self._names, self._packed, self._singles = enrolled, names, packed, singles
        self._numbers, self._rows = numbers, rows

    @classmethod
    def of(cls, enrolled: Enrolled, names: Names) -> "Opened | None":
        """Returns contributors by name; None if a name is missing, or one that is known does not open what it should.

        Guarantee: each name opens the commitment of its contributor, and its principal the commitment to that.
        """
        packed = names.packed
        if packed is None:
            return None
        import numpy as np

        numbers, rows = list["array[int]"](), np.full(len(packed), _NONE, np.uint32)
        for start, run in zip(enrolled._starts, enrolled._runs, strict=True):
            found = packed.numbers(run.names, _NONE)
            if (found == _NONE).any():
                return None
            rows[found] = np.arange(start, start + len(run), dtype=np.uint32)
            numbers.append(array("I", found.tobytes()))
            if run.principals is not None and any(names.opened(run.contributor(number)) is None for number in range(len(run))):
                return None
        singles: dict[str, Contributor] = {}
        for contributor in enrolled._single.values():
            opened = names.opened(contributor)
            if opened is None:
                return None
            singles[opened.name] = opened
        return cls(enrolled, names, packed, singles, numbers, array("I", rows.tobytes()))

    def __len__(self) -> int:
        return len(self._enrolled)

    def __getitem__(self, name: str) -> Contributor:
        single = self._singles.get(name)
        if single is not None:
            return single
        number = self._packed.find(name) if type(name) is str else None
        row = _NONE if number is None else self._rows[number]
        if number is None or row == _NONE:
            raise KeyError(name)
        run, place = self._enrolled.place(row)
        return run.named(place, name, None if run.principals is None else self._packed.entry(number)[2])

    def __iter__(self) -> Iterator[str]:
        numbers = iter(self._numbers)
        for item in self._enrolled._order:
            if isinstance(item, str):
                opened = self._names.opened(self._enrolled[item])
                yield opened.name if opened is not None else item
                continue
            for number in next(numbers):
                yield self._packed.at(number)

    def holder(self, key: bytes) -> Contributor | None:
        """Returns the contributor whose key it is, by its 32 raw bytes; None if it is nobody's."""
        name = self._enrolled.holder(key)
        return None if name is None else self._names.opened(self._enrolled[name])
