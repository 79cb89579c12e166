"""`docs/ledger.cddl` against real leaves, releases, receipts and pins, and bad ones, by an independent implementation."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pycddl
import pytest

from attest import cbor
from attest.errors import AttestError
from fuzz.exports import LEAVES, MANIFEST, PINNED, RECORDS
from ledger.leaves import codec, kinds
from ledger.leaves.weights import MAX_NAME
from ledger.replay.signer import DOMAIN, statement
from ledger.retention import MEMBER
from tests.attacks.test_cddl import for_the_tool
from tests.attacks.test_cddl import valid as valid_in_the_first
from tests.vectors.conformance.leaves import KINDS

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "attestation.cddl").read_text() + (DOCS / "ledger.cddl").read_text()
VECTORS = DOCS.parent / "tests" / "vectors" / "conformance"

PRELUDE = {"bool", "bstr", "false", "float", "float64", "int", "nil", "null", "true", "tstr", "uint"}

ITEMS: dict[str, dict[int, str]] = {
    "header": {13: "group", 14: "block", 21: "earlier"},
    "geometry": {1: "pair"},
    "reads": {1: "class-reads"},
    "stack": {1: "tower", 2: "division", 3: "form", 4: "parameter"},
    "tower": {2: "name-in-parts"},
    "division": {2: "part"},
    "form": {3: "place"},
    "charge": {7: "charged-class"},
    "spend": {3: "row"},
    "summary": {5: "summary-kind", 6: "summary-class"},
    "epoch": {6: "epoch-class"},
    "manifest": {11: "released-file", 14: "released-class", 15: "released-block", 16: "artifact"},
    "released-file": {3: "tensor"},
    "weights": {3: "weight-record"},
    "publication": {2: "document", 4: "qualifier"},
    "about": {3: "language", 4: "base-model", 5: "tag"},
}
"""Rules of the items of arrays, by the rule and the place of the array in it. `pycddl` 0.6 takes an array in which one item
fits for one in which all do, and reads a choice in an item wrongly: arrays are held against `any`, and their items by
themselves."""


def tool_text() -> str:
    """The schemas as `pycddl` reads them rightly."""
    names = "|".join(sorted({name for own in ITEMS.values() for name in own.values()}, key=len, reverse=True))
    text = re.sub(r"  form: file-form,\n  names: .*\n", "", TEXT)
    return re.sub(rf"\[(1?\*) (?:{names})\]", r"[\1 any]", for_the_tool(text))


@cache
def schema(rule: str) -> pycddl.Schema:
    return pycddl.Schema(f"start = {rule}\n{tool_text()}")


def passes(rule: str, data: bytes) -> bool:
    """Whether bytes are an instance of a rule, the items of arrays aside; what makes the tool itself break off is none."""
    try:
        schema(rule).validate_cbor(data)
    except pycddl.ValidationError:
        return False
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return False
    return True


def valid(rule: str, value: Any) -> bool:
    """Whether a value is an instance of a rule, and the items of its arrays are of theirs."""
    if rule == "released-file":  # it reads no array wrongly that has one choice in it, and this one has two
        *value, form, names = value
        if not (valid("file-form", form) and all(valid("tstr", name) for name in names)):
            return False
    if rule == "withdraw":  # the tool takes what fits one of two maps in some keys and the other in the rest
        rule = "plain-withdraw" if value.get(7) is None else "full-withdraw"
    if not passes(rule, cbor.encode(value)):
        return False
    if rule == "header":
        held = {26: "stack", 29: "geometry", 30: "reads"}
        if not all(valid(name, value[place]) for place, name in held.items() if value.get(place) is not None):
            return False
    inner = ((value[place], name) for place, name in ITEMS.get(rule, {}).items() if value[place] is not None)
    return all(valid(name, item) for items, name in inner for item in items)


def rule_of(value: Any) -> str:
    """The rule of a leaf, by its kind."""
    return KINDS[value[1]].lower()


@cache
def vectors(name: str) -> dict[str, Any]:
    return json.loads((VECTORS / f"{name}.json").read_text())


def item(data: bytes) -> Any:
    return cbor.decode(data, max_size=1 << 20)


def test_the_schemas_are_read_as_they_stand():
    pycddl.Schema(TEXT)


def test_no_name_is_defined_in_both_schemas_but_that_of_the_types():
    first, second = (
        set(re.findall(r"^([a-z][a-z0-9-]*) =", (DOCS / name).read_text(), re.MULTILINE))
        for name in ("attestation.cddl", "ledger.cddl")
    )
    assert not first & second and "document-type /=" in TEXT


def test_every_leaf_of_the_vectors_and_of_a_long_run_is_an_instance():
    for row in vectors("leaves")["valid"]:
        value = item(bytes.fromhex(row["cbor"]))
        assert valid(rule_of(value), value), row["name"]
    for data in LEAVES.values():
        assert valid(rule_of(item(data)), item(data))
    assert {rule_of(item(bytes.fromhex(row["cbor"]))) for row in vectors("leaves")["valid"]} == {
        name.lower() for name in KINDS.values()
    }


BEYOND = {
    "POLICY": "what the bytes of the policy say",
    "POLICY_UNSUPPORTED": "what the policy asks for, or whether a class is for training",
    "DEPTH_NARROWER": "which classes may touch a block",
    "DEPTH_DROPPED": "which blocks follow",
    "ORDER": "that items ascend",
    "STACK": "what a stack refers to",
    "LOG_KEY": "how a verifier key is spelled",
    "ACCOUNTANT_VERSION": "which accountants there are",
    "SCHEDULE": "how much noise a block has",
    "NUMERICS": "the words on numerics",
    "GEOMETRY": "which pairs follow, and whether there are any",
    "READS": "what classes read, and whether the policy says so",
    "TURNS": "what turns add up to",
}
"""Codes of what no schema can say of a leaf."""

BEYOND_RANGES = (
    r"is \{'float': -1.0\}$",
    r"^clock: takes nothing back$",
    r"^registry: a state that is in force$",
    r"^admit: a (limit without its delta|delta without its limit)$",
    r"^summary: field 5 has one item (less|more)$",
    r"^summary: field (3|4) is ",
    r"^header: field (18|13\.0\.1) is ",
    r"^header: turns that add up to less than nothing$",
    r"^header: pairs (none of them|that are null)$",
    r"^header: reads (of no block|left out, with 29 fields)$",
    r"^header: (places of classes as in the policy|the place of a class that is not for training)$",
    r"^coefficients: field 3 is text$",
)
"""Names of leaves that are refused for how two of their fields go together, for a place that no class has, or for a float
below 0; `pycddl` 0.6 takes text for a byte string whose size has a range, and an array of nothing for one with an item at
least."""


def test_leaves_that_are_none_are_no_instances_where_a_schema_can_say_it():
    told = 0
    for row in vectors("leaves")["invalid"]:
        try:
            value = item(bytes.fromhex(row.get("cbor", "")))
        except AttestError:
            continue  # bytes are no matter of a schema
        if type(value) is not dict or type(value.get(1)) is not int or value[1] not in KINDS:
            continue
        if row["code"] in BEYOND or any(re.search(pattern, row["name"]) for pattern in BEYOND_RANGES):
            continue
        assert not refused_by_shape_alone(value), row["name"]
        told += 1
    assert told > 300


def refused_by_shape_alone(value: Any) -> bool:
    """Whether a value passes the schema; one in which an array is missing where items are looked for does not."""
    try:
        return valid(rule_of(value), value)
    except (LookupError, TypeError):
        return False


def test_releases_are_instances_and_changed_ones_are_none_where_a_schema_can_say_it():
    payload = item(MANIFEST)[0]
    assert valid("manifest", item(payload)) and valid("signed-release", item(MANIFEST))
    if item(payload)[18] is not None:
        assert valid("weights", item(payload)[18])
    told = 0
    for row in vectors("proofs")["releases"]:
        data = bytes.fromhex(row["release"])
        if row["answer"] == "accepted" or not row["name"].startswith(("field", "a ", "the last")) or "bit" in row["name"]:
            continue
        try:
            value = item(item(data)[0])
            found = valid("manifest", value)
        except (AttestError, LookupError, TypeError):
            continue
        told += not found
    assert told >= 3


def test_aggregates_member_records_and_what_both_keys_sign_are_instances():
    for data in RECORDS:
        assert valid("aggregate", item(data))
    told = 0
    for row in vectors("proofs")["aggregates"]:
        if row["answer"] == "refused" and row["name"] not in ("a limit without its delta", "a delta without its limit"):
            try:
                assert not valid("aggregate", item(bytes.fromhex(row["aggregate"]))), row["name"]
            except AttestError:
                continue
            told += 1
    assert told > 12 and valid("another-member", item(MEMBER))
    for row in vectors("proofs")["members"]:
        record = item(bytes.fromhex(row["member"]))
        assert valid("member-record", record) and not valid("member-record", record[:2])
    header = next(item(bytes.fromhex(row["cbor"])) for row in vectors("leaves")["valid"] if row["kind"] == "HEADER")
    spoken = statement(codec.decode_leaf(cbor.encode(header)), 7, header[9], header[9])
    assert spoken.startswith(DOMAIN) and valid("key-change", item(spoken.removeprefix(DOMAIN)))


def test_receipts_are_instances_and_what_says_otherwise_is_none():
    for row in vectors("proofs")["receipts"]:
        data = bytes.fromhex(row["receipt"])
        if not data.startswith(b"\xd2") or data.endswith(b"\x00"):
            continue
        protected, unprotected, _, _ = item(data[1:])
        shapes = [
            passes("receipt", data),
            valid("receipt-header", item(protected)),
            all(valid("inclusion", item(part)) for part in unprotected[396][-1]),
        ]
        shape = row["name"] in ("another tree algorithm", "another type", "an unknown label", "no path", "two proofs")
        assert all(shapes) is not shape, row["name"]


def test_pinned_files_are_instances():
    for data in PINNED:
        payload, message = item(data)
        assert valid("signed-pinned", [payload, message])
        protected = item(message[1:])[0]
        assert passes("protected-header", protected) and not valid_in_the_first("protected-header", protected)
    fields = item(item(PINNED[0])[0])
    checkpoint = {key: value for key, value in fields.items() if key < 6} | {1: "dptrain.checkpoint/1"}
    taken = checkpoint | {6: 12, 7: 0, 8: "held", 9: 6, 10: bytes(32)}
    assert valid("pinned", taken | {11: None}) and valid("pinned", taken | {11: bytes(32)}) and not valid("pinned", taken)
    draws = checkpoint | {1: "dptrain.draws/1"}
    assert valid("pinned", draws | {6: [0, bytes(32)], 7: [1, bytes(32)]})
    assert not valid("pinned", checkpoint | {6: 12}) and not valid("pinned", fields)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("uint63", 0, kinds.MAX_UINT), ("above0", 1, kinds.MAX_UINT), ("leaf-time", 1577836800, 253402300799)],
)
def test_the_limits_of_the_schema_are_those_of_the_code(name, low, high):
    assert re.search(rf"^{name} = {low}\.\.{high}\b", TEXT, re.MULTILINE)
    for value in (low, high):
        assert valid(name, value)
    assert not valid(name, low - 1) and kinds.REASON == 200 and MAX_NAME == 1024


def test_every_name_that_a_rule_uses_is_defined():
    """`pycddl` takes a name that is nowhere defined, as of a kind that is new, for one that nothing matches."""
    text = re.sub(r'"[^"]*"|;.*', "", TEXT)
    defined = set(re.findall(r"^([a-z][a-z0-9-]*)(?:<[^>]*>)?\s*/?/?=", text, re.M))
    generic = set(re.findall(r"<([a-z][a-z0-9-]*)>\s*=", text))
    used = set(re.findall(r"(?<![.\w-])([a-z][a-z0-9-]*)(?![\w-]|\s*:)", text))
    assert used - defined - generic - PRELUDE == set()
