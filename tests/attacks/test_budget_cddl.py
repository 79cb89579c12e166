"""`docs/budget.cddl` against the leaves of a log and bad ones, by an independent implementation of CDDL (`pycddl`)."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pycddl
import pytest

from attest import cbor
from tests.attacks.test_cddl import for_the_tool

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAMES = ("attestation.cddl", "ledger.cddl", "budget.cddl")
TEXT = "".join((DOCS / name).read_text() for name in NAMES)
VECTORS = DOCS.parent / "tests" / "vectors" / "conformance" / "budgets.json"
NAMED = ("reserve", "commit", "epoch", "notice", "delivered", "reference", "withdrawn", "text")
KINDS = {0: "header", **dict(enumerate(NAMED, start=32))}
ITEMS = {8: "budget-cap", 9: "budget-mechanism", 12: "budget-beside", 13: "budget-generation"}
"""Items of the arrays of a header, which `pycddl` 0.6 does not hold one by one."""

BEYOND = {"LIMIT", "LOG_KEY", "ORDER", "PARENT", "PREVIOUS", "RULE_CAP", "SESSION_ALONE"}
"""What a leaf is refused for and CDDL cannot say."""

COUNTED = (
    "a cost beyond 2^63",
    "no rules where their key stands",
    "a reference without a descriptor",
    "a reference with a long message",
    "runs that count and no rules",
    "a text beyond 2^63",
)
"""Leaves with too much of something, or with nothing of it, that the tool does not count."""


@cache
def schema(rule: str) -> pycddl.Schema:
    arrays = re.sub(r"\[\d*\*\d* (?:budget-[a-z]+|1\.\.100)\]", "[* any]", for_the_tool(TEXT))
    return pycddl.Schema(f"start = {rule}\n{arrays}")


def fits(rule: str, value: Any) -> bool:
    try:
        schema(rule).validate_cbor(cbor.encode(value))
    except pycddl.ValidationError:
        return False
    return True


def valid(data: bytes) -> bool:
    value = cbor.decode(data, max_size=1 << 16)
    rule = KINDS.get(value.get(1))
    if rule == "reserve":  # the tool takes what fits one of two maps in some keys and the other in the rest
        rule = f"plain-budget-{rule}" if value.get(5) is None else f"full-budget-{rule}"
    elif rule is not None:
        rule = f"budget-{rule}"
    if rule is None or not fits(rule, value):
        return False
    if rule == "budget-text":
        return bool(value[3]) and all(fits("budget-account", account) for account in value[3])
    if rule != "budget-header":
        return True
    told = all(fits(item, row) for place, item in ITEMS.items() for row in value.get(place, []))
    return told and bool(value[8] and value[9]) and all(fits("1..100", percent) for percent in value[10])


def vectors(kind: str) -> list[dict[str, Any]]:
    return json.loads(VECTORS.read_text())[kind]


def test_the_three_schemas_are_read_as_one_and_define_no_name_twice() -> None:
    pycddl.Schema(TEXT)
    names = [name for file in NAMES for name in re.findall(r"^([a-z][a-z0-9-]*) =", (DOCS / file).read_text(), re.MULTILINE)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("row", vectors("leaves"), ids=lambda row: row["name"])
def test_every_leaf_of_a_log_is_an_instance(row: dict[str, Any]) -> None:
    assert valid(bytes.fromhex(row["cbor"]))


@pytest.mark.parametrize("row", vectors("invalid"), ids=lambda row: row["name"])
def test_what_is_no_leaf_is_no_instance_but_for_what_cddl_cannot_say(row: dict[str, Any]) -> None:
    data = bytes.fromhex(row["cbor"])
    try:
        found = valid(data)
    except Exception:
        found = False  # it is no CBOR
    assert not found or row["code"] in BEYOND or row["name"] in COUNTED
