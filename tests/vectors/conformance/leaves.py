"""Vectors of leaves: of every kind valid ones with their fields, and bytes that are no leaf."""

import hashlib
import struct
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any, Final

from attest import cbor
from attest.schedule.geometry import FRAMES
from attest.schedule.reads import FORWARDS
from attest.schema.plain import EARLIEST, MAX_TIME
from ledger import tiles
from ledger.errors import LedgerError
from ledger.leaves import HeaderSpec, Release, decode_leaf, encode_leaf
from ledger.leaves.header import Previous
from ledger.merkle import leaf_hash
from tests.attacks.test_ledger_attacks_depth import ADAPTERS, ATTENTION, BAND, policy
from tests.vectors.conformance import consenting, correlated, geometries, groups, narrowed
from tests.vectors.conformance.honest import RUNS
from tests.vectors.conformance.values import told
from tests.worlds.ledgers import (
    OTHER_KEY,
    SIGNER,
    START,
    DepthRule,
    NoteSigner,
    header_spec,
    parameter,
    signed_policy,
    stack_of,
)

KINDS: Final = {
    0: "HEADER",
    1: "ADMIT",
    2: "CHARGE",
    3: "SETTLE",
    4: "SPEND",
    5: "WITHDRAW",
    6: "SUMMARY",
    7: "KEY",
    8: "EPOCH",
    9: "RESUME",
    10: "RELEASE",
    11: "CLOSE",
    12: "DRAW",
    13: "CLOCK",
    14: "REGISTRY",
    15: "COEFFICIENTS",
}
MAX: Final = 2**63 - 1

SMALL = stack_of(1, parameter("layers.0.weight", 6))
"""The least model that both classes touch."""


def _item(data: bytes) -> Any:
    return cbor.decode(data, max_size=1 << 16)


def _row(name: str, data: bytes) -> dict[str, Any]:
    fields = _item(data)
    return {
        "name": name,
        "kind": KINDS[fields[1]],
        "cbor": data.hex(),
        "hash": leaf_hash(data).hex(),
        "fields": [told(value) for value in fields.values()],
    }


def _named(origin: str) -> str:
    return NoteSigner(origin, OTHER_KEY).vkey


def _headers() -> Iterator[tuple[str, HeaderSpec]]:
    """Yields headers of models and policies that say something special."""
    masked = policy(sensitive=DepthRule(band=BAND, heads=(0,), experts=(1,)))
    adapters = policy(open=DepthRule(adapter="one"), sensitive=DepthRule(adapter="two"))
    earlier = NoteSigner("ledger.example/run0", OTHER_KEY)
    cited = Previous(earlier.name, 12, bytes(32), hashlib.sha256(b"leaf 0").digest(), earlier.vkey, "spent")
    lost = Previous("ledger.example/lost", 3, bytes(32), bytes(32), _named("ledger.example/lost"), "compromised")
    texts = replace(cited, origin="ledger.example/texts", log_vkey=_named("ledger.example/texts"), reason="texts")
    yield "the smallest model", header_spec(stack=SMALL)
    yield "heads and experts", header_spec(masked, stack=ATTENTION)
    yield "adapters", header_spec(adapters, stack=ADAPTERS)
    yield "earlier ledgers", header_spec(stack=SMALL, previous=(cited, lost))
    yield "a budget of texts", header_spec(stack=SMALL, previous=(cited, texts))
    weak = {"isolation": "one norm over all blocks", "randomness": "unaddressed", "unprobed": ("a.bias", "b")}
    for rule in (correlated.BANDS, correlated.BUFFERS, correlated.DENSE):
        yield f"noise of {rule.name}", header_spec(signed_policy(**correlated.under(rule)), stack=SMALL)
    yield from geometries.headers()
    yield from narrowed.headers()
    yield from consenting.headers()
    yield "draws from groups", header_spec(signed_policy(**groups.under(groups.THREE)), stack=SMALL)
    yield "what the trainer says", header_spec(stack=SMALL, frozen_digest=bytes(range(32)), **weak)


def valid() -> Iterator[dict[str, Any]]:
    """Yields leaves of every kind."""
    for name, spec in _headers():
        yield _row(f"header: {name}", encode_leaf(spec.header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)))
    seen: set[str] = set()
    for run in (
        "withdrawal",
        "resumed",
        "budgets",
        "public class",
        "noise per sample",
        "limit",
        "key changed",
        "clock set back",
        "registry changed",
        "pruned",
        "a member withdrawn",
        "bands, some gone",
        "dense",
    ):
        for path, data in (RUNS | correlated.RUNS)[run].files().items():
            if not path.startswith(("tile/entries/", "retained/0")):
                continue
            for body in tiles.split_bundle(data, None):
                fields = _item(body)
                if type(fields) is list:
                    continue  # what stands in for a pruned leaf
                # One of each kind from each run, and for each form of it: what is null, and how long lists are.
                gone = [key for key, value in fields.items() if value is None]
                form = f"{fields[1]} {gone} {[len(value) for value in fields.values() if type(value) is list]}"
                if form not in seen and (fields[1] or run == "budgets"):
                    seen.add(form)
                    yield _row(f"{KINDS[fields[1]].lower()}: {run}, leaf {fields[0]}", body)
    yield _row("release: weights of step 8", encode_leaf(Release(12, START, 8, 12, *(bytes([n]) * 32 for n in range(4)))))
    admit = _admit()
    for name, changes in _EDGES.items():
        yield _row(f"admit: {name}", cbor.encode(admit | changes))


def _admit() -> dict[int, Any]:
    files = RUNS["poisson"].files()
    (bundle,) = (data for path, data in files.items() if path.startswith("tile/entries/"))
    return _item(tiles.split_bundle(bundle, None)[1])


_EDGES: dict[str, dict[int, Any]] = {
    "the first moment that a leaf can have": {2: EARLIEST},
    "the last one": {2: MAX_TIME - 1},
    "largest numbers": {0: MAX, 5: MAX, 6: MAX, 7: MAX, 8: MAX, 12: MAX, 13: MAX, 14: 10**12 - 1},
    "a class name of 64 characters": {4: "a" * 64},
}

_WRONG: dict[type, list[Any]] = {
    int: [-1, MAX + 1, "1"],
    str: [b"open", 1, "\u00e9"],
    bytes: ["text", None, b"", bytes(33)],
    float: [1, -1.0],
    bool: [0],
    list: [{}, None],
    dict: [[], None],
    type(None): [-1, "text"],
}
"""Values to put in the place of one of a type: most of them are refused there."""


def _paths(value: Any, at: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Yields the places of all items in a map, the first two of each list."""
    items = value.items() if type(value) is dict else enumerate(value)
    for key, item in items:
        if type(value) is list and key > 1:
            return
        yield (*at, key)
        if type(item) in (list, dict):
            yield from _paths(item, (*at, key))


def _with(value: Any, path: tuple[int, ...], new: Any) -> Any:
    changed = deepcopy(value)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return changed


def _at(value: Any, path: tuple[int, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def mutations(fields: dict[int, Any], *, each: int = 9) -> Iterator[tuple[str, bytes]]:
    """Yields a map with one value of another type, range or length, with one too many, or one missing.

    Args:
        fields: the map, its keys ascending.
        each: how many values are tried at a place at most.
    """
    for path in _paths(fields):
        old, where = _at(fields, path), "field " + ".".join(map(str, path))
        for new in _WRONG[type(old)][:each]:
            if new != old or type(new) is not type(old):
                yield f"{where} is {str(told(new))[:40]}", cbor_of(_with(fields, path, new))
        if type(old) is list and old:
            for what, new in (("has one item less", old[:-1]), ("has one item more", [*old, old[-1]])):
                yield f"{where} {what}", cbor_of(_with(fields, path, new))
    last = max(fields)
    yield "the last field is missing", cbor_of({key: value for key, value in fields.items() if key != last})
    yield "a field too many", cbor_of(fields | {last + 1: 0})
    yield "a key is left out", cbor_of({key + (key == last): value for key, value in fields.items()})


def _values(kind: int, fields: dict[int, Any]) -> Iterator[tuple[str, bytes]]:
    """Yields leaves with something wrong in their values."""
    yield from mutations(fields)
    last = max(fields)
    yield "a key is text", cbor_of({**{k: v for k, v in fields.items() if k != last}, "x": fields[last]})
    yield "a second before 2020", cbor_of(fields | {2: EARLIEST - 1})
    yield "the year 10000", cbor_of(fields | {2: MAX_TIME})
    if kind:
        yield "the position of a header", cbor_of(fields | {0: 0})


def cbor_of(value: Any) -> bytes:
    """Encodes what `attest.cbor` does not: integers of more than 63 bits, in the shortest head."""
    if type(value) is dict:
        return _head(5, len(value)) + b"".join(cbor_of(key) + cbor_of(item) for key, item in value.items())
    if type(value) is list:
        return _head(4, len(value)) + b"".join(map(cbor_of, value))
    if type(value) is int and value > MAX:
        return _head(0, value)
    return cbor.encode(value)


def _head(major: int, argument: int) -> bytes:
    for size, info in ((1, 24), (2, 25), (4, 26), (8, 27)):
        if argument < 24:
            return bytes([major << 5 | argument])
        if argument < 256**size:
            return bytes([major << 5 | info]) + argument.to_bytes(size, "big")
    raise ValueError(argument)


def _bytes(fields: dict[int, Any], data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields other encodings of a leaf, none of them deterministic, and what is no single item."""
    pairs = [cbor.encode(key) + cbor.encode(value) for key, value in fields.items()]
    count = len(pairs)
    head = _head(5, count)
    yield "nothing", b""
    yield "a byte behind it", data + b"\x00"
    yield "cut by a byte", data[:-1]
    yield "a map of indefinite length", b"\xbf" + b"".join(pairs) + b"\xff"
    yield "a count in a longer head", b"\xb8" + bytes([count]) + b"".join(pairs)
    yield "a position in a longer head", head + b"\x00\x18" + bytes([fields[0]]) + b"".join(pairs[1:])
    yield "a key in a longer head", head + b"\x18" + pairs[0] + b"".join(pairs[1:])
    yield "keys out of order", head + pairs[1] + pairs[0] + b"".join(pairs[2:])
    yield "a key twice", _head(5, count + 1) + pairs[0] + b"".join(pairs)
    yield "a tagged item", b"\xc1" + data
    yield "an array", _head(4, count) + b"".join(cbor.encode(value) for value in fields.values())
    yield "undefined in place of a value", head + b"".join(pairs[:-1]) + cbor.encode(count - 1) + b"\xf7"
    yield "65 536 bytes", data + bytes(65_536 - len(data))


def _other_bytes() -> Iterator[tuple[str, bytes]]:
    """Yields encodings of floats and texts that are not deterministic, kinds that are none, and rows out of order."""
    settle = {0: 6, 1: 3, 2: START, 3: 1, 4: 4}
    start = _head(5, 6) + b"".join(cbor.encode(key) + cbor.encode(value) for key, value in settle.items()) + b"\x05\x82"
    half, single, double = b"\xf9\x3c\x00", b"\xfa" + struct.pack(">f", 1.0), b"\xfb" + struct.pack(">d", 1.0)
    for name, float_ in (
        ("a float in 32 bits", single),
        ("a float in 64 bits", double),
        ("infinity", b"\xf9\x7c\x00"),
        ("NaN", b"\xf9\x7e\x00"),
    ):
        yield f"settle: {name}", start + half + float_
    close = {0: 11, 1: 11, 2: START, 3: 8, 4: 8}
    for kind in (15, -1, 255, "11", True):
        yield f"kind {kind!r}", cbor.encode(close | {1: kind})
    clock = {0: 6, 1: 13, 2: START, 3: START + 5, 4: "ahead"}
    yield "clock: takes nothing back", cbor.encode(clock | {3: START})
    yield "clock: no reason", cbor.encode(clock | {4: ""})
    yield "clock: a reason of two lines", cbor.encode(clock | {4: "a\nb"})
    yield "clock: text that is no UTF-8", cbor.encode(clock)[:-6] + b"\x65\xff\xfe\xfd\xfc\xfb"
    draw = {0: 6, 1: 12, 2: START, 3: 1, 4: 1, 5: [0, 2], 6: [1.0]}
    yield "draw: out of order", cbor.encode(draw | {5: [2, 0]})
    yield "draw: somebody twice", cbor.encode(draw | {5: [0, 0]})
    resume = {0: 6, 1: 9, 2: START, 3: 1, 4: 0, 5: 3, 6: None, 7: None}
    yield "resume: a size without a root", cbor.encode(resume)
    yield "resume: no threads at all", cbor.encode(resume | {5: None, 7: 0})
    withdraw = {0: 6, 1: 5, 2: START, 3: bytes(32), 4: 1, 5: "contributor", 6: bytes(32), 7: [bytes(32)]}
    yield "withdraw: a member at no position", cbor.encode(withdraw | {4: None})
    yield "withdraw: a member without its content anchor", cbor.encode(withdraw | {7: []})
    yield "withdraw: a member with 65 hashes", cbor.encode(withdraw | {7: [bytes(32)] * 65})
    yield "withdraw: a hash of a member of 31 bytes", cbor.encode(withdraw | {7: [bytes(32), bytes(31)]})
    yield "registry: a state that is in force", cbor.encode({0: 6, 1: 14, 2: START, 3: bytes(32), 4: bytes(32)})
    admit = _admit()
    yield "admit: a limit without its delta", cbor.encode(admit | {13: 1})
    yield "admit: a delta without its limit", cbor.encode(admit | {14: 1})
    yield "admit: a delta of 1", cbor.encode(admit | {13: 1, 14: 10**12})
    for name in ("Open", "open ", "", "a" * 65, "s\u0435nsitive"):
        yield f"admit: class {name[:12]!a}", cbor.encode(admit | {4: name})
    spec = header_spec(signed_policy(**correlated.under(correlated.BANDS)), stack=SMALL)
    header = _item(encode_leaf(spec.header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)))
    one, other = header[28]
    for name, turns in (
        ("of a period of 0", [[0, *one[1:]], other]),
        ("that add up to a number that is whole", [[one[0], 3, one[2]], other]),
        ("that add up to less than nothing", [[one[0], -3.0, one[2]], other]),
        ("without what one more adds", [one[:2], other[:2]]),
        ("that are null", None),
    ):
        yield f"header: turns {name}", cbor.encode(header | {28: turns})
    yield "header: a field behind turns", cbor.encode(header | {29: []})
    tangent = geometries.spec().header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)
    for name, fields in geometries.false_headers(_item(encode_leaf(tangent))):
        yield f"header: pairs {name}", cbor.encode(fields)
    for name, bad in _unpaired():
        yield f"header: {name}", bad
    apart = narrowed.spec().header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)
    for name, fields in narrowed.false_headers(_item(encode_leaf(apart))):
        yield f"header: reads {name}", cbor.encode(fields)
    for name, bad in _unread():
        yield f"header: reads and {name}", bad
    ((_, beside),) = consenting.headers()
    generating = _item(encode_leaf(beside.header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)))
    for name, fields in consenting.false_headers(generating):
        yield f"header: {name}", cbor.encode(fields)


def _unpaired() -> Iterator[tuple[str, bytes]]:
    """Yields headers whose models have no such pairs as their geometry asks for: what is checked is not asked here."""
    for name, tensors, changes in geometries.unpaired():
        spec = geometries.spec(*tensors, **changes)
        plain = replace(spec, ranks={}, policy=signed_policy(**({"geometry": ()} | _without_geometry(changes))))
        fields = _item(encode_leaf(plain.header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)))
        order = [tensor.names[0] for tensor in spec.stack.tensors]
        first, second = (tensor.names[0] for tensor in (geometries.B, geometries.A))
        rows = [[order.index(first), order.index(second), 2]] if {first, second} <= set(order) else geometries.ROWS[:1]
        told = {5: spec.policy.payload, 6: spec.policy.sign1, 28: [], 29: [FRAMES, rows]}
        yield name, cbor.encode(fields | told)


def _unread() -> Iterator[tuple[str, bytes]]:
    """Yields headers whose models do not fit the reads of their policy: what is checked is not asked here."""
    for name, tensors, changes in narrowed.unread():
        free = tuple(replace(rule, reads=None) for rule in changes["classes"])
        plain = narrowed.spec(*tensors, classes=free)
        fields = _item(encode_leaf(plain.header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)))
        said = signed_policy(**changes)
        told = {5: said.payload, 6: said.sign1, 28: [], 29: None, 30: [FORWARDS, narrowed.ROWS]}
        yield name, cbor.encode(fields | told)


def _without_geometry(changes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in changes.items() if key != "geometry"}


def _code(data: bytes) -> str | None:
    """How our reader refuses bytes; None if it takes them."""
    try:
        decode_leaf(data)
    except LedgerError as error:
        return error.code
    return None


def invalid(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields bytes that are no leaf: of each kind those made of its first valid one."""
    done: set[str] = set()
    for row in rows:
        if row["kind"] in done:
            continue
        done.add(row["kind"])
        data = bytes.fromhex(row["cbor"])
        fields = _item(data)
        made = list(_values(fields[1], fields))
        if row["kind"] in ("CLOSE", "ADMIT"):
            made += _bytes(fields, data)
        kept = [(name, bad, code) for name, bad in made if (code := _code(bad)) is not None]
        if row["kind"] == "HEADER":
            kept = kept[::18]
        yield from (_refused(f"{row['kind'].lower()}: {name}", bad, code) for name, bad, code in kept)
    for name, bad in _other_bytes():
        code = _code(bad)
        assert code is not None, name
        yield _refused(name, bad, code)


def _refused(name: str, data: bytes, code: str) -> dict[str, Any]:
    if len(data) > 60_000:
        return {"name": name, "start": data[:400].hex(), "then_zeros": len(data) - 400, "answer": "refused", "code": code}
    return {"name": name, "cbor": data.hex(), "answer": "refused", "code": code}


def bytes_of(row: dict[str, Any]) -> bytes:
    """Returns the bytes of a vector."""
    return bytes.fromhex(row["cbor"]) if "cbor" in row else bytes.fromhex(row["start"]) + bytes(row["then_zeros"])


def vectors() -> dict[str, Any]:
    """Returns all vectors of leaves."""
    rows = list(valid())
    return {"valid": rows, "invalid": list(invalid(rows))}
