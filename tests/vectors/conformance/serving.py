"""Vectors of rights envelopes, read by the gate `house/gate` for one client at one time."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from attest import cbor, sign1
from attest.keys import public_bytes
from ledger.errors import LedgerError
from ledger.serving import open_rights
from tests.vectors.conformance.leaves import mutations
from tests.vectors.conformance.values import told
from tests.worlds.serving import GRANTER, HOLDER, NAME, NOW, STRANGER, envelope, signed

OPEN = 4_000_000


GATE: dict[str, Any] = {
    "key": public_bytes(GRANTER).hex(), "audience": NAME, "holder": HOLDER, "now": NOW, "revoked": [],
}  # fmt: skip
"""What the reader brings, where a row says nothing else."""


def _row(name: str, data: bytes, **changes: Any) -> dict[str, Any]:
    """Returns an envelope with what its reader brings that is another, and the answer."""
    brought = GATE | changes
    row = {"name": name, "envelope": data.hex(), **changes}
    revoked = [bytes.fromhex(serial) for serial in brought["revoked"]]
    try:
        found = open_rights(
            data, [public_bytes(GRANTER)], brought["audience"], brought["now"], holder=brought["holder"], revoked=revoked
        )
    except LedgerError as error:
        return row | {"answer": "refused", "code": error.code}
    return row | {"answer": "accepted", "fields": told(cbor.decode(found.envelope.to_cbor()))}


def _signed(payload: bytes, typ: str = sign1.TYP_RIGHTS) -> bytes:
    return cbor.encode([payload, sign1.sign(payload, GRANTER, contributor="data-office", typ=typ)])


def rights() -> Iterator[dict[str, Any]]:
    """Yields envelopes that hold and that do not."""
    data = signed({"open": OPEN, "sensitive": None})
    yield _row("as it should be", data)
    yield _row("nothing allowed", signed({}, told=False, generation=()))
    yield _row("all allowed", signed({"open": 0, "public": 10**15}, withdrawn=True, untied=True, code=True))
    yield _row("in its last second", data, now=NOW + 3599)
    yield _row("a second before", data, now=NOW - 3601)
    yield _row("when it has expired", data, now=NOW + 3600)
    yield _row("revoked", data, revoked=["ff" * 16, bytes(range(16)).hex()])
    yield _row("another one is revoked", data, revoked=["ff" * 16])
    yield _row("for another gate", data, audience="house")
    yield _row("of another client", data, holder="client-8")
    yield _row("by another key", signed(key=STRANGER))
    yield _row("the longest", signed(not_before=NOW, expires=NOW + 7_776_000))
    fields = cbor.decode(envelope({"open": OPEN, "sensitive": None}).to_cbor())
    for name, changes in {
        "a second longer": {5: NOW, 6: NOW + 7_776_001},
        "an epsilon too large": {7: [["open", 10**15 + 1]]},
        "an epsilon that is a float": {7: [["open", 4.0]]},
        "a class twice": {7: [["open", 1], ["open", 2]]},
        "classes out of order": {7: [["sensitive", 1], ["open", 1]]},
        "generation classes out of order": {12: ["b", "a"]},
        "another version": {1: "dptrain.rights/2"},
    }.items():
        yield _row(name, _signed(cbor.encode(fields | changes)))
    for typ in (sign1.TYP_ATTESTATION, sign1.TYP_RELEASE):
        yield _row(f"signed as {typ}", _signed(envelope().to_cbor(), typ))
    for name, bad in islice(mutations(fields, each=1), 0, None, 4):
        found = _row(name, _signed(bad))
        if found["answer"] == "refused":
            yield found
    yield _row("a byte behind it", data + b"\0")
    yield _row("a head that is longer", b"\x98\x02" + data[1:])


def vectors() -> dict[str, Any]:
    """Returns the file."""
    return {"gate": GATE, "rights": list(rights())}
