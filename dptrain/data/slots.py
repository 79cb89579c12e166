"""The slots of a pool: admissions with what each may do, in columns, so that a million of them fit into little memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from attest.gate.admission import ROW_SIZE, Admission, Admitted, AdmittedRows, Form

if TYPE_CHECKING:
    from attest.corpus.records import Locator
    from dptrain.clipping.resolver import Resolution

_PREFIX = 8


@dataclass(frozen=True, slots=True)
class Slot:
    """One admitted contribution and what it may do; None before there is a schedule to resolve it against."""

    admitted: Admitted
    resolution: "Resolution"

    @property
    def descriptor_hash(self) -> bytes:
        return self.admitted.admission.descriptor_hash


class Slots(Sequence[Slot]):
    """Slots in order; reads like a sequence of `Slot`, each of which is made when somebody asks for it.

    Args:
        rows: admissions.
        resolutions: what each form of these admissions may do, by its number; None before there is a schedule.
        places: places of the slots among the rows; None for all of them in their order.
    """

    def __init__(
        self, rows: AdmittedRows, resolutions: Sequence["Resolution | None"] | None = None, places: np.ndarray | None = None
    ) -> None:
        self._rows = rows
        self._resolutions = [None] * len(rows.forms) if resolutions is None else list(resolutions)
        self._places = places
        self._order: tuple[np.ndarray, np.ndarray] | None = None

    @classmethod
    def of(cls, slots: Sequence[Slot]) -> "Slots":
        """Returns slots in columns, which may be there already."""
        if isinstance(slots, Slots):
            return slots
        rows, resolutions = AdmittedRows(), []
        for slot in slots:
            rows.append(slot.admitted, alone=True)
            resolutions.append(slot.resolution)
        return cls(rows, resolutions)

    @classmethod
    def unresolved(cls, admitted: Iterable[Admitted]) -> "Slots":
        """Returns slots before there is a schedule: they can be read, and that is all."""
        return cls(admitted if isinstance(admitted, AdmittedRows) else AdmittedRows(admitted))

    def __len__(self) -> int:
        return len(self._rows) if self._places is None else len(self._places)

    @overload
    def __getitem__(self, index: int) -> Slot: ...
    @overload
    def __getitem__(self, index: slice) -> "Slots": ...
    def __getitem__(self, index: int | slice) -> "Slot | Slots":
        if isinstance(index, slice):
            return self.take(range(len(self))[index])
        place = self._place(range(len(self))[index])
        return Slot(self._rows[place], self._resolutions[self._rows.numbers[place]])

    def __iter__(self) -> Iterator[Slot]:
        return (self[index] for index in range(len(self)))

    @property
    def forms(self) -> Sequence[Form]:
        """Returns the forms of the admissions, of all rows."""
        return self._rows.forms

    @property
    def numbers(self) -> np.ndarray:
        """Returns the number of the form of every slot."""
        found = np.array(self._rows.numbers, dtype=np.uint32)
        return found if self._places is None else found[self._places]

    def take(self, indices: Sequence[int] | np.ndarray) -> "Slots":
        """Returns these slots, in this order."""
        places = np.asarray(indices, dtype=np.int64)
        return Slots(self._rows, self._resolutions, places if self._places is None else self._places[places])

    def grouped_by(self, key: Callable[[Form, "Resolution"], Any]) -> "Slots":
        """Returns the slots with those of equal keys next to each other, in order of who comes first, and as they stood.

        Args:
            key: of a form and what it may do.
        """
        keys = [key(form, found) for form, found in zip(self.forms, self.resolutions(), strict=True)]
        ranks = {value: rank for rank, value in enumerate(dict.fromkeys(keys))}
        found = np.array([ranks[value] for value in keys], dtype=np.int64)[self.numbers]
        return self if np.all(found[1:] >= found[:-1]) else self.take(np.argsort(found, kind="stable"))

    def places_in(self, other: "Slots") -> np.ndarray:
        """Returns where each of these slots stands among others of the same rows, which hold it too."""
        assert self._rows is other._rows
        standing = np.full(len(self._rows), -1, dtype=np.int64)
        standing[slice(None) if other._places is None else other._places] = np.arange(len(other))
        found = standing if self._places is None else standing[self._places]
        assert np.all(found >= 0)
        return found

    def form_number(self, index: int) -> int:
        """Returns the number of the form of a slot's admission."""
        return self._rows.numbers[self._place(index)]

    def resolution(self, index: int) -> "Resolution":
        """Returns what a slot may do."""
        return self._resolutions[self.form_number(index)]

    def resolutions(self) -> list["Resolution"]:
        """Returns what every form may do, by its number."""
        return self._resolutions

    def class_names(self) -> list[str]:
        """Returns the name of the class of every slot."""
        names = [found.class_name for found in self.resolutions()]
        return [names[number] for number in self.numbers.tolist()]

    def form(self, index: int) -> Form:
        """Returns the form of a slot's admission."""
        return self._rows.form(self._place(index))

    def admission(self, index: int) -> Admission:
        """Returns the admission of a slot."""
        return self._rows.admission(self._place(index))

    def locator(self, index: int) -> "Locator":
        """Returns where the content of a slot lies."""
        return self._rows.locator(self._place(index))

    def content_hash(self, index: int) -> bytes:
        """Returns the SHA-256 of the content of a slot, as signed."""
        return self._rows.content_hash(self._place(index))

    def descriptor_hash(self, index: int) -> bytes:
        """Returns the hash of the descriptor of a slot."""
        return self._rows.descriptor_hash(self._place(index))

    def quoted(self, index: int) -> tuple[bytes, bytes, bytes, bytes]:
        """Returns what a ledger quotes of a slot alone (`AdmittedRows.quoted`)."""
        return self._rows.quoted(self._place(index))

    def find(self, descriptor_hash: bytes) -> int | None:
        """Returns the slot of a descriptor; None if it has none."""
        if self._order is None:
            self._order = self._sorted()
        firsts, order = self._order
        wanted = np.frombuffer(descriptor_hash[:_PREFIX].ljust(_PREFIX, b"\0"), dtype=">u8")[0]
        for at in range(int(np.searchsorted(firsts, wanted)), len(firsts)):
            if firsts[at] != wanted:
                return None
            index = int(order[at])
            if self.descriptor_hash(index) == descriptor_hash:
                return index
        return None

    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first bytes of the descriptor hashes as ascending numbers, and whose each one is."""
        packed = np.frombuffer(self._rows.packed, dtype=np.uint8).reshape(-1, ROW_SIZE)[:, :_PREFIX]
        firsts = np.ascontiguousarray(packed).view(">u8").ravel().astype(np.uint64)
        if self._places is not None:
            firsts = firsts[self._places]
        order = np.argsort(firsts, kind="stable")
        return firsts[order], order

    def _place(self, index: int) -> int:
        return index if self._places is None else int(self._places[index])
