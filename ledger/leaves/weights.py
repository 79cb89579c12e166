"""Commits to a model in the digest of an EPOCH leaf: every tensor, each by its own digest.

The digest is an RFC 6962 root over one record per tensor, so 32 bytes in the leaf stand for all of them, and whoever is given
the records can say which tensor of a file is the one that the epoch ended with. Neither side needs torch for that: a record
holds what a safetensors file says of a tensor, dtype as that format spells it and SHA-256 of its little-endian bytes in
row-major order.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

from attest import cbor
from attest.schema import check_fields, declared, wire
from attest.schema.quick import Array, Text
from ledger.errors import LeafRefused
from ledger.leaves.kinds import SHA256, TEXT, TRUTH, UINT, Checked, as_leaf, words
from ledger.merkle import root

MAX_RECORDS: Final = 1 << 26
"""Bytes of all records of a model; one takes about 150."""

MAX_NAME: Final = 1024
"""Characters of a tensor's name."""


@dataclass(frozen=True, slots=True)
class WeightRecord(Checked):
    """One tensor of a model: a parameter, trained or not, or a buffer that is saved with them."""

    CDDL: ClassVar = "weight-record"
    names: tuple[str, ...] = declared(
        1,
        Array(Text("tensor-name", MAX_NAME), 1),
        "Its names in the model, the first one first, tied ones behind it, then those under which the libraries that save the"
        " model write it.",
        rule="each once",
    )
    adapter: str | None = declared(
        2,
        TEXT,
        "The adapter that it belongs to, null for none. Libraries leave the adapter's name out of the names in its file.",
        nil=True,
    )
    trained: bool = declared(3, TRUTH, "Whether the run trained it.")
    dtype: str = declared(4, words(20), "As safetensors spells it.")
    shape: tuple[int, ...] = declared(5, Array(UINT), "Sizes.")
    sha256: bytes = declared(6, SHA256, "SHA-256 of its bytes.")
    sources: tuple[str, ...] = declared(
        7,
        Array(TEXT),
        "First names of the tensors of the model that it is computed from to be saved; empty for those themselves.",
        default=(),
    )

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)
        if len(set(self.names)) != len(self.names):
            raise LeafRefused("TYPE", f"names of a tensor: expected different ones, got {self.names!a:.200}")


def ordered(records: Iterable[WeightRecord]) -> tuple[WeightRecord, ...]:
    """Returns records in the one order that they are committed to in: by their first name. Raises LeafRefused: two have the
    same first name, or there is none."""
    found = tuple(sorted(records, key=lambda record: record.names[0]))
    if not found or len({record.names[0] for record in found}) != len(found):
        raise LeafRefused("TYPE", "records of a model: expected at least one, each of a name of its own")
    return found


def model_digest(records: Iterable[WeightRecord]) -> bytes:
    """Returns the digest that an EPOCH leaf holds of a model.

    Guarantee: two models have one digest only if they have the same tensors, bit for bit, under the same names (or SHA-256 is
    broken).

    Returns:
        The RFC 6962 root over the canonical CBOR of the records, in order of their first names.
    """
    return root([cbor.encode(wire.encode_row(record)) for record in ordered(records)])


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
    return cbor.encode([wire.encode_row(record) for record in ordered(records)])


def read_records(data: bytes) -> tuple[WeightRecord, ...]:
    """Reads what `write_records` wrote. Raises LeafRefused: it is nothing of the kind."""
    with as_leaf(what="records of a model: "):
        rows = cbor.decode(data, max_size=MAX_RECORDS)
    if type(rows) is not list:
        raise LeafRefused("TYPE", "records of a model: expected an array")
    found = tuple(wire.decode_row(WeightRecord, row, "the record of a tensor", LeafRefused) for row in rows)
    if ordered(found) != found:
        raise LeafRefused("TYPE", "records of a model: expected them in order of their names")
    return found
