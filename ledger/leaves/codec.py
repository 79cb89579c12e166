"""Leaves to bytes and back: strict CBOR maps ``{0: seq, 1: kind, 2: time, 3: ...}`` with every key present."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final, get_args

from attest import cbor
from attest.attestation import around
from attest.errors import AttestError
from attest.policy import Policy
from attest.schedule.stack import SCHEMA as DEPTH_SCHEMA
from attest.schema import wire
from attest.schema.words import NOT_INSTALLED
from ledger.accountants.table import OWN_LIBRARIES
from ledger.errors import LeafRefused
from ledger.leaves import records
from ledger.leaves.header import SCHEMA, AccountantInfo, Header, HeaderBlock
from ledger.leaves.kinds import as_leaf

Record = (
    records.Admit
    | records.Charge
    | records.Settle
    | records.Spend
    | records.Withdraw
    | records.Epoch
    | records.Resume
    | records.Close
    | records.Draw
    | records.Summary
    | records.Key
    | records.Release
    | records.Clock
    | records.Registry
    | records.Coefficients
)
Leaf = Header | Record

MAX_LEAF_SIZE: Final = 65_535
"""An entry bundle prefixes each leaf with a 16-bit length (C2SP tlog-tiles, "Log entries")."""

_AROUND_ROWS: Final = 32
"""Bytes that a SPEND leaf may take beside its rows: heads of map and array, keys, kind, position and time."""

DIGEST: Final = 32
"""Bytes of a digest, a commitment or a hash in a leaf."""

RECORDS: Final[dict[int, type[Any]]] = {kind.KIND: kind for kind in get_args(Record)}


def encode_leaf(leaf: Leaf) -> bytes:
    """Returns the canonical bytes of a leaf: what is hashed, stored and exported. Raises LeafRefused: if they do not fit an
    entry bundle."""
    if type(leaf) is records.Admit:
        return _ADMITS.encode(leaf)
    value = _header_map(leaf) if isinstance(leaf, Header) else _record_map(leaf)
    data = cbor.encode(value)
    if len(data) > MAX_LEAF_SIZE:
        what = "; the model has too many parameters or blocks for a header" if isinstance(leaf, Header) else ""
        raise LeafRefused("SIZE", f"a leaf takes at most {MAX_LEAF_SIZE} bytes, got {len(data)}{what}")
    return data


class AdmitForms:
    """Encodes ADMIT leaves; those that differ in position and digests alone share the bytes around these.

    Guarantee: `encode` returns what the general encoder writes for every leaf: that encodes the first of each form, and makes
    the bytes that the others share.
    """

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        # None stands for a form that was met once: to make its bytes pays only if it comes back.
        self._known: dict[tuple[Any, ...], tuple[bytes, bytes, bytes, bytes] | None] = {}

    def encode(self, leaf: records.Admit) -> bytes:
        """Returns the canonical bytes of an ADMIT leaf; they always fit an entry bundle."""
        form = _admit_form(leaf)
        known = self._known.get(form)
        if known is None:
            if form not in self._known:
                if len(self._known) >= self._most:
                    self._known.clear()
                self._known[form] = None
                return cbor.encode(_record_map(leaf))
            known = self._known[form] = self._made(leaf)
        before, between, behind, after = known
        seq = leaf.seq
        place = b"\x1a" + seq.to_bytes(4, "big") if 1 << 16 <= seq < 1 << 32 else cbor.encode(seq)
        digests = leaf.descriptor_hash, between, leaf.attestation_hash, behind, leaf.anchor
        return b"".join((_ADMIT_HEAD, place, before, *digests, after))

    @staticmethod
    def _made(leaf: records.Admit) -> tuple[bytes, bytes, bytes, bytes]:
        """Returns what the general encoder writes around digests, by random marks that no other field can hold."""
        marks = {label: os.urandom(DIGEST) for label in _ADMIT_DIGESTS}
        data = cbor.encode(_record_map(leaf) | marks).removeprefix(_ADMIT_HEAD + cbor.encode(leaf.seq))
        before, between, behind, after = around(data, *marks.values())
        return before, between, behind, after


_admit_form = attrgetter(
    *(item.name for item in fields(records.Admit) if item.name not in ("seq", "descriptor_hash", "attestation_hash", "anchor"))
)
_ADMIT_HEAD: Final = bytes((0xA0 + len(fields(records.Admit)) + 1, 0))
"""Head of the map that an ADMIT leaf is, and key 0."""

_ADMIT_DIGESTS: Final = (3, 9, 11)
"""Keys of descriptor hash, attestation hash and anchor in that map."""

_ADMITS: Final = AdmitForms()


def spend_leaves(seq: int, time: int, rows: Iterable[records.SpendRow]) -> Iterator[records.Spend]:
    """Yields the SPEND leaves that hold these rows, each with as many as fit, the first at position ``seq``."""
    taken: list[records.SpendRow] = []
    size = 0
    for row in rows:
        needed = len(cbor.encode(wire.encode_row(row)))
        if size + needed > MAX_LEAF_SIZE - _AROUND_ROWS:
            yield records.Spend(seq, time, tuple(taken))
            seq, taken, size = seq + 1, [], 0
        taken.append(row)
        size += needed
    if taken:
        yield records.Spend(seq, time, tuple(taken))


def coefficient_leaves(header: Header) -> Iterator[records.Coefficients]:
    """Yields the leaves with the coefficients of the noise that a header is complete with; none where its policy has no digest
    of them."""
    data, most = header.policy.mechanism.coefficients or b"", records.MOST_PART
    for place, begin in enumerate(range(0, len(data), most), start=1):
        yield records.Coefficients(place, header.time, data[begin : begin + most])


def read_header(entries: Iterable[bytes]) -> Header:
    """Reads the header of a ledger, and behind it the coefficients of its noise where the policy has their digest.

    Args:
        entries: leaves from the first on; no more are taken than that needs.

    Raises:
        LeafRefused: code HEADER, the first leaf is none. COEFFICIENTS, those of the digest do not follow. As `decode_leaf`.
    """
    leaves = iter(entries)
    header = decode_leaf(next(leaves, b""))
    if not isinstance(header, Header):
        raise LeafRefused("HEADER", "the first leaf is not a header", seq=0)
    data = bytearray()
    while not header.complete and len(data) < header.awaited:
        part = next(leaves, b"")
        leaf = decode_leaf(part) if peek_kind(part) == records.Coefficients.KIND else None
        if not isinstance(leaf, records.Coefficients):
            raise header.lacking(len(data), 1)
        data += leaf.data
    if not header.complete:
        header.complete_with(bytes(data))
    return header


def peek_kind(data: bytes) -> int | None:
    """Returns the kind that a leaf other than the header says, without reading all of it; None for what is too short.

    Of a leaf that `decode_leaf` accepts it is the kind. Anything else may give any number.
    """
    at = 3 + (0 if len(data) < 3 or data[2] & 31 < 24 else 1 << (data[2] & 31) - 24)
    return data[at + 1] if at + 1 < len(data) else None


def decode_leaf(data: bytes) -> Leaf:
    """Reads a leaf.

    Guarantee: Accepts exactly the bytes that `encode_leaf` writes for some valid leaf, and no others.

    Raises:
        LeafRefused: if the bytes are not canonical, a field is missing, unknown or of the wrong type, or the kind is not one of
            this version.
    """
    value = _values(data)
    kind = value[1] if len(value) > 1 else None
    if type(kind) is int and kind == Header.KIND:
        header = _header(value)
        if encode_leaf(header) != data:
            sentence = "what blocks or the stack refer to is unused, repeated, or not in order of first use"
            raise LeafRefused("SCHEMA", f"a field of the header does not follow from the others, or {sentence}")
        return header
    if type(kind) is not int or kind not in RECORDS:
        raise LeafRefused("KIND", f"this version reads leaf kinds 0 and {sorted(RECORDS)}, got {kind!r:.40}")
    del value[1]
    record: Record = wire.decode_row(RECORDS[kind], value, "what a leaf holds beside its kind", LeafRefused, code="SCHEMA")
    return record


def _record_map(leaf: Record) -> dict[int, Any]:
    values = wire.encode_row(leaf)
    values.insert(1, leaf.KIND)
    return dict(enumerate(values))


def _values(data: bytes) -> list[Any]:
    """Returns the values of the map that a leaf is, in order of its keys 0, 1, 2, ..."""
    try:
        if len(data) <= MAX_LEAF_SIZE and (values := cbor.record_values(data)) is not None:
            return values
        value = cbor.decode(data, max_size=MAX_LEAF_SIZE)
    except AttestError as error:
        raise LeafRefused(error.code, f"a leaf is strict CBOR: {error.sentence}") from error
    if type(value) is not dict or any(type(key) is not int for key in value) or list(value) != list(range(len(value))):
        raise LeafRefused("SCHEMA", "a leaf is a map with the keys 0, 1, 2, ... and none left out")
    return list(value.values())


def _header_map(header: Header) -> dict[int, Any]:
    """Groups the blocks, one group per distinct set of classes, noise and share; a model has many blocks and few of
    these.

    Groups say their share where the policy has budgets.
    """
    order = {rule.name: index for index, rule in enumerate(header.policy.classes)}
    groups: dict[tuple[tuple[str, ...], float, int], int] = {}
    for block in header.blocks:
        groups.setdefault((block.classes, block.std, block.share), len(groups))
    budgets = header.policy.noise_budgets is not None
    # Fields are told by their places, so that an empty one stands before one that does not.
    last = 30 if header.reads is not None else 29 if header.geometry is not None else 28
    before: dict[int, Any] = {28: []} if last > 28 and not header.turns else {}
    before |= {29: None} if last > 29 and header.geometry is None else {}
    return wire.encode_map(header) | {
        0: 0,
        1: Header.KIND,
        3: SCHEMA,
        11: header.amplification,
        13: [[[order[name] for name in classes], std, *([share] if budgets else [])] for classes, std, share in groups],
        14: [[block.name, block.coordinates, groups[block.classes, block.std, block.share]] for block in header.blocks],
        25: DEPTH_SCHEMA,
        **before,
    }


def _header(value: list[Any]) -> Header:
    schema = value[3] if len(value) > 3 else None
    if schema != SCHEMA:
        if isinstance(schema, str) and schema.startswith("dptrain.budget/"):
            sentence = "this is a budget log, where the ledger of a training run was expected"
            how = "'dptrain ledger verify' reads an export of it, 'dptrain ledger withdraw' enters withdrawals"
            raise LeafRefused("SCHEMA", f"{sentence}; {how}")
        raise LeafRefused("SCHEMA", f"the ledger has the schema {schema!r:.40}, this version reads {SCHEMA}")
    if len(value) not in (28, 29, 30, 31):
        expected = "a header has 28 fields, or 29 with noise that is correlated, or 30 with a geometry, or 31 with reads"
        raise LeafRefused("SCHEMA", f"{expected}, got {len(value)}")
    if value[25] != DEPTH_SCHEMA:
        sentence = f"blocks follow from the rule {value[25]!r:.40}, this version has {DEPTH_SCHEMA}"
        raise LeafRefused("DEPTH_SCHEMA", sentence)
    fields = dict(enumerate(value))
    if len(value) > 30 and value[29] is None:
        del fields[29]
    fields[14] = _blocks(value[13], value[14], _policy(value[5], value[15]))
    header: Header = wire.decode_fields(Header, fields, LeafRefused)
    return header


def _policy(payload: Any, accountant: Any) -> Policy:
    try:
        policy = Policy.from_cbor(payload)
    except AttestError as error:
        code, named = "POLICY", ""
        if error.code == NOT_INSTALLED:
            about: AccountantInfo = wire.decode_row(AccountantInfo, accountant, "the accountant", LeafRefused, code="SCHEMA")
            own = about.library in OWN_LIBRARIES
            code, named = NOT_INSTALLED, "" if own else f"; the header names {about.library} {about.version}"
        raise LeafRefused(code, f"the policy in the header is refused: {error.sentence}{named}") from error
    with as_leaf("POLICY_UNSUPPORTED"):
        return policy.for_training()


def _blocks(groups: Any, rows: Any, policy: Policy) -> tuple[HeaderBlock, ...]:
    if type(groups) is not list or type(rows) is not list:
        raise LeafRefused("SCHEMA", "groups and blocks are arrays")
    names = [rule.name for rule in policy.classes]
    sets: list[tuple[tuple[str, ...], list[Any]]] = []
    for group in groups:
        indices, *noise = _row(group, 2 if policy.noise_budgets is None else 3)
        if type(indices) is not list:
            raise LeafRefused("SCHEMA", "a group lists class indices")
        sets.append((tuple(names[_index(index, len(names))] for index in indices), noise))
    blocks = []
    for row in rows:
        name, coordinates, group = _row(row, 3)
        classes, noise = sets[_index(group, len(sets))]
        blocks.append(HeaderBlock(name, coordinates, classes, *noise))
    return tuple(blocks)


def _row(value: Any, width: int) -> list[Any]:
    if type(value) is not list or len(value) != width:
        raise LeafRefused("SCHEMA", f"expected an array of {width} items, got {value!r:.80}")
    return value


def _index(value: Any, size: int) -> int:
    if type(value) is not int or not 0 <= value < size:
        raise LeafRefused("SCHEMA", f"expected an index below {size}, got {value!r:.40}")
    return value
