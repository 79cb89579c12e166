"""Vectors of budget logs: leaves, whole logs that hold and that lie, hashes of units, and what caps are worth."""

import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from attest import cbor
from ledger.budget import Unit
from ledger.budget.leaves import Header, Leaf, Reference, Reserve, Text, Withdrawn, decode_leaf, encode_leaf
from ledger.budget.rho import cap_nano
from ledger.budget.state import BudgetState
from ledger.errors import BudgetExhausted, LeafRefused
from ledger.merkle import leaf_hash, root
from tests.vectors.conformance.values import told
from tests.worlds import generating
from tests.worlds.budget_lies import LIES, lived

NOT_BY_LEAVES: Final = ("a cap worth more than it says", "another origin", "another key", "two headers", "no header")
"""Lies that the replay of the leaves behind a header does not find, or that are not of such a leaf."""


MADE: Final = {"honest": lived, "generated": generating.generated, "counting": generating.counting}
"""Logs that hold: one of users, one of contributions that make texts, one that counts runs besides."""


@cache
def honest(name: str = "honest") -> tuple[Leaf, ...]:
    """Returns the leaves of a log that holds."""
    with tempfile.TemporaryDirectory() as folder, MADE[name](Path(folder) / "b.db") as log:
        return tuple(decode_leaf(row.body) for row in log.rows(log.size))


def leaves() -> Iterator[dict[str, Any]]:
    """Yields every leaf of the honest log with its fields, and of the other one those that it alone has."""
    alone = [leaf for leaf in honest("generated") if isinstance(leaf, Header | Reference | Text | Withdrawn)]
    for leaf in (*honest(), *alone):
        body = encode_leaf(leaf)
        values = list(cbor.decode(body, max_size=1 << 16).values())
        name = f"{leaf.seq} {type(leaf).__name__.upper()}" + (" of contributions" if leaf in alone else "")
        yield {"name": name, "cbor": body.hex(), "hash": leaf_hash(body).hex(), "fields": [told(value) for value in values]}
    body = encode_leaf(honest("counting")[0])
    values = list(cbor.decode(body, max_size=1 << 16).values())
    fields = [told(value) for value in values]
    yield {"name": "0 HEADER that counts runs", "cbor": body.hex(), "hash": leaf_hash(body).hex(), "fields": fields}


def invalid() -> Iterator[dict[str, Any]]:
    """Yields bytes that are no leaf, each by itself."""
    header, reserve = (next(leaf for leaf in honest() if isinstance(leaf, kind)) for kind in (Header, Reserve))
    ruled = honest("generated")[0]
    kinds = (Reference, Withdrawn, Text)
    reference, withdrawn, text = (next(leaf for leaf in honest("generated") if isinstance(leaf, kind)) for kind in kinds)
    rule = list(cbor.decode(encode_leaf(ruled), max_size=1 << 16)[13][0])
    counts = honest("counting")[0]
    (cited,), (limit,) = cbor.decode(encode_leaf(counts), max_size=1 << 16)[14]
    changes: dict[str, tuple[Leaf, dict[int, Any]]] = {
        "position 0 behind a header": (reserve, {0: 0}),
        "a kind of a run": (reserve, {1: 2}),
        "a unit of another kind": (reserve, {3: "team"}),
        "a user under a corpus": (reserve, {5: "corpus", 6: bytes(32)}),
        "a parent without its kind": (reserve, {6: bytes(32)}),
        "a session under nothing": (reserve, {3: "session"}),
        "a session under a session": (reserve, {3: "session", 5: "session", 6: bytes(32)}),
        "a session under a contribution": (reserve, {3: "session", 5: "contribution", 6: bytes(32)}),
        "a contribution that pays alone": (reserve, {3: "contribution"}),
        "a contribution under a corpus": (reserve, {3: "contribution", 5: "corpus", 6: bytes(32)}),
        "no release": (reserve, {8: 0}),
        "a release for nothing": (reserve, {9: 0}),
        "a release for true": (reserve, {9: True}),
        "a cost beyond 2^63": (reserve, {8: 1 << 40, 9: 1 << 40}),
        "a short request": (reserve, {10: bytes(15)}),
        "a field more": (reserve, {11: 0}),
        "another schema": (header, {3: "dptrain.budget/2"}),
        "another accountant": (header, {7: "pld"}),
        "no caps": (header, {8: []}),
        "sessions alone": (header, {8: [["session", 1, 1, 1]]}),
        "caps that descend": (header, {8: [["user", 1, 1, 1], ["corpus", 1, 1, 1]]}),
        "a cap of delta 1": (header, {8: [["user", 1, 10**12, 1]]}),
        "a mechanism for nothing": (header, {9: [["token", 0, False, "a token"]]}),
        "two mechanisms of a name": (header, {9: [["token", 1, False, "a"], ["token", 2, False, "a"]]}),
        "thresholds that descend": (header, {10: [80, 50]}),
        "a threshold of 0": (header, {10: [0]}),
        "a threshold above all": (header, {10: [101]}),
        "a key of another name": (header, {4: "another"}),
        "no rules where their key stands": (ruled, {13: []}),
        "two rules of a class": (ruled, {13: [rule, rule]}),
        "a rule without references": (ruled, {13: [[*rule[:2], 0, *rule[3:]]]}),
        "a rule without a field": (ruled, {13: [rule[:-1]]}),
        "a rule of a short digest": (ruled, {13: [[bytes(31), *rule[1:]]]}),
        "rules and no cap of contributions": (ruled, {8: [["user", 1, 1, 1]]}),
        "null where runs that count stand": (counts, {14: None}),
        "a ledger that is counted twice": (counts, {14: [[cited, cited], []]}),
        "a ledger that counts in no known way": (counts, {14: [[[*cited[:5], "seen"]], []]}),
        "a limit of a class without a rule": (counts, {14: [[], [["open", *limit[1:]]]]}),
        "two limits of a class": (counts, {14: [[], [limit, limit]]}),
        "a limit of the class that texts alone could pass": (counts, {14: [[], [[limit[0], 2_300_000, limit[2]]]]}),
        "runs that count and no rules": (counts, {13: []}),
        "a reference without a descriptor": (reference, {4: b""}),
        "a reference with a long message": (reference, {5: bytes(1025)}),
        "a reference of no class": (reference, {3: ""}),
        "a withdrawal of a short digest": (withdrawn, {3: bytes(31)}),
        "a withdrawal of a name": (withdrawn, {3: "ab" * 32}),
        "a text of nobody": (text, {3: []}),
        "a text of one contribution": (text, {3: bytes(32)}),
        "a text of a short digest": (text, {3: [bytes(31)]}),
        "a text of one contribution twice": (text, {3: [bytes(32), bytes(32)]}),
        "a text of contributions that descend": (text, {3: [bytes([1]) * 32, bytes(32)]}),
        "a text of no tokens": (text, {5: 0}),
        "a text for nothing": (text, {6: 0}),
        "a text beyond 2^63": (text, {5: 1 << 31, 6: 1 << 31}),
        "a text of a short request": (text, {7: bytes(15)}),
    }
    for name, (leaf, change) in changes.items():
        value = cbor.decode(encode_leaf(leaf), max_size=1 << 16) | change
        yield {"name": name, "cbor": cbor.encode(value).hex(), "code": refused(cbor.encode(value))}
    body = encode_leaf(reserve)
    for name, data in {"a byte more": body + b"\0", "a byte less": body[:-1], "a field less": _shorter(body)}.items():
        yield {"name": name, "cbor": data.hex(), "code": refused(data)}


def _shorter(body: bytes) -> bytes:
    value = cbor.decode(body, max_size=1 << 16)
    return cbor.encode({key: item for key, item in value.items() if key < 10})


def refused(data: bytes) -> str:
    """Returns the code under which bytes are refused as a leaf."""
    try:
        decode_leaf(data)
    except LeafRefused as error:
        return error.code
    raise ValueError("the leaf is accepted")


def logs() -> Iterator[dict[str, Any]]:
    """Yields both logs that hold, and of each lie how it goes on behind leaves of one of them, up to where it is found."""
    told = {
        "honest": (LIES, NOT_BY_LEAVES),
        "generated": (generating.LIES, generating.BY_PAPERS),
        "counting": (generating.COUNTED_LIES, ()),
    }
    for of, (lies, left_out) in told.items():
        yield {"name": of, "of": of, **log_row([encode_leaf(leaf) for leaf in honest(of)], 0)}
        for name, (change, _) in lies.items():
            if name not in left_out:
                found = change(list(honest(of)))
                kept = next(at for at, pair in enumerate(zip_longest(found, honest(of))) if pair[0] != pair[1])
                yield {"name": name, "of": of, **log_row([encode_leaf(leaf) for leaf in found], kept)}


def log_row(bodies: list[bytes], kept: int) -> dict[str, Any]:
    """Returns what becomes of a log. `kept`: how many leaves it has of the honest one."""
    header = decode_leaf(bodies[0])
    assert isinstance(header, Header)
    state = BudgetState(header)
    for at, body in enumerate(bodies[1:], start=1):
        try:
            state.apply(decode_leaf(body))
        except (LeafRefused, BudgetExhausted) as error:
            shown = [body.hex() for body in bodies[kept : at + 1]]
            return {"kept": kept, "leaves": shown, "answer": "refused", "at": at, "code": error.code}
    spent = {account.hex(): found.spent for account, found in sorted(state.accounts.items())}
    told = {"root": root(bodies).hex(), "spent": spent, "accounts_root": state.accounts_root().hex()}
    return {"kept": kept, "leaves": [body.hex() for body in bodies[kept:]], "answer": "accepted", **told}


def units() -> Iterator[dict[str, Any]]:
    """Yields units with the hashes that they have in leaves."""
    secret, anna, letters = bytes(range(32)), Unit("user", "anna"), Unit("corpus", "letters")
    sessions, digest = (Unit("session", "1", anna), Unit("session", "1", letters)), Unit("contribution", bytes(range(32)).hex())
    for unit in (anna, letters, *sessions, Unit("user", "letters"), digest):
        names = [unit.kind, unit.name, *([unit.parent.kind, unit.parent.name] if unit.parent else [])]
        yield {"secret": secret.hex(), "names": names, "hash": unit.hashed(secret).hex()}


def caps() -> Iterator[dict[str, Any]]:
    """Yields epsilons and deltas with the most rho that they are worth."""
    for epsilon, delta in ((1_000_000, 10**7), (10_000_000, 10**6), (123, 10**9), (8_000_000, 10**7), (100_000, 10**4)):
        yield {"epsilon_micro": epsilon, "delta_pico": delta, "rho_nano": cap_nano(epsilon, delta)}


def vectors() -> dict[str, Any]:
    """Returns the file."""
    made = {"leaves": leaves, "invalid": invalid, "logs": logs, "units": units, "caps": caps}
    return {name: list(make()) for name, make in made.items()}
