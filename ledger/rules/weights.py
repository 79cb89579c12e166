"""What the model digest of an EPOCH leaf commits to: every tensor of the model, each by its own digest.

The digest is an RFC 6962 root over one record per tensor, so 32 bytes in the leaf stand for all of them, and whoever is given
the records can say which tensor of a file is the one that the epoch ended with. Neither side needs torch for that: a record
holds what a safetensors file says of a tensor, dtype as that format spells it and SHA-256 of its little-endian bytes in
row-major order.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from attest import cbor
from attest.errors import AttestError
from ledger.errors import LeafRefused
from ledger.leaves import checks
from ledger.merkle import root

MAX_RECORDS: Final = 1 << 26
"""Bytes of all records of a model; one takes about 150."""

MAX_NAME: Final = 1024
"""Characters of a tensor's name."""

_HASH: Final = 32


@dataclass(frozen=True, slots=True)
class WeightRecord:
    """One tensor of a model: a parameter, trained or not, or a buffer that is saved with them.

    Attributes:
        names: its names in the model, the first one first, tied ones behind it, then those under which the libraries that save
            the model write it.
        adapter: the adapter that it belongs to, None for none. Libraries leave the adapter's name out of the names in its file.
        trained: whether the run trained it.
        dtype: as safetensors spells it.
        shape: sizes.
        sha256: of its bytes.
        sources: first names of the tensors of the model that it is computed from to be saved; empty for those themselves.
    """

    names: tuple[str, ...]
    adapter: str | None
    trained: bool
    dtype: str
    shape: tuple[int, ...]
    sha256: bytes
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checks.rows(self.names, "names of a tensor", str, least=1)
        if not all(0 < len(name) <= MAX_NAME for name in self.names) or len(set(self.names)) != len(self.names):
            sentence = f"names of a tensor: expected different ones of 1..{MAX_NAME} characters, got {self.names!a:.200}"
            raise LeafRefused("TYPE", sentence)
        if self.adapter is not None and type(self.adapter) is not str:
            raise LeafRefused("TYPE", f"adapter of a tensor: expected its name or nothing, got {self.adapter!a:.80}")
        checks.flag(self.trained, "trained")
        checks.text(self.dtype, "dtype of a tensor", longest=20)
        checks.rows(self.shape, "shape of a tensor", int)
        for size in self.shape:
            checks.uint(size, "size in a shape")
        checks.octets(self.sha256, "digest of a tensor", _HASH)
        checks.rows(self.sources, "sources of a tensor", str)

    def row(self) -> list[Any]:
        """Returns the record as the array that is encoded."""
        shape, sources = list(self.shape), list(self.sources)
        return [list(self.names), self.adapter, self.trained, self.dtype, shape, self.sha256, sources]

    @classmethod
    def of(cls, row: Any) -> "WeightRecord":
        """Reads a record from its decoded CBOR array.

        Raises:
            LeafRefused: it is none.
        """
        if type(row) is not list or len(row) != 7 or [type(row[place]) for place in (0, 4, 6)] != [list] * 3:
            raise LeafRefused("TYPE", f"expected the record of a tensor, got {row!a:.80}")
        return cls(tuple(row[0]), row[1], row[2], row[3], tuple(row[4]), row[5], tuple(row[6]))


def ordered(records: Iterable[WeightRecord]) -> tuple[WeightRecord, ...]:
    """Returns records in the one order that they are committed to in: by their first name.

    Raises:
        LeafRefused: two have the same first name, or there is none.
    """
    found = tuple(sorted(records, key=lambda record: record.names[0]))
    if not found or len({record.names[0] for record in found}) != len(found):
        raise LeafRefused("TYPE", "records of a model: expected at least one, each of a name of its own")
    return found


def model_digest(records: Iterable[WeightRecord]) -> bytes:
    """Returns the digest that an EPOCH leaf holds of a model.

    Guarantee: two models have one digest only if they have the same tensors, bit for bit, under the same names (or SHA-256 is
    broken).

    Args:
        records: of all its tensors, in any order.

    Returns:
        The RFC 6962 root over the canonical CBOR of the records, in order of their first names.
    """
    return root([cbor.encode(record.row()) for record in ordered(records)])


def frozen_digest(records: Iterable[WeightRecord], names: Collection[str]) -> bytes | None:
    """Returns the digest over the frozen parameters of a model, which a header and every EPOCH leaf hold.

    Guarantee: two models have one such digest only if they have the same frozen parameters, bit for bit, under the same names
    (or SHA-256 is broken).

    Args:
        records: of all its tensors, in any order. Counted are those that were not trained and are not computed from others.
        names: of the model's parameters; a record whose first name is not among them is left out, such as that of a buffer,
            which a forward may write.

    Returns:
        As `model_digest`; None without such a parameter.
    """
    own = [record for record in records if not record.trained and not record.sources and record.names[0] in names]
    return model_digest(own) if own else None


def write_records(records: Iterable[WeightRecord]) -> bytes:
    """Returns records as one CBOR array."""
    return cbor.encode([record.row() for record in ordered(records)])


def read_records(data: bytes) -> tuple[WeightRecord, ...]:
    """Reads what `write_records` wrote.

    Raises:
        LeafRefused: it is nothing of the kind.
    """
    try:
        rows = cbor.decode(data, max_size=MAX_RECORDS)
    except AttestError as error:
        raise LeafRefused(error.code, f"records of a model: {error.sentence}") from error
    if type(rows) is not list:
        raise LeafRefused("TYPE", "records of a model: expected an array")
    found = tuple(WeightRecord.of(row) for row in rows)
    if ordered(found) != found:
        raise LeafRefused("TYPE", "records of a model: expected them in order of their names")
    return found
