"""`docs/serving.cddl` against rights and bad ones, by an independent implementation of CDDL (`pycddl`)."""

import json
import re
from pathlib import Path
from typing import Any

import pycddl
import pytest

from attest import cbor
from tests.attacks.test_cddl import for_the_tool

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAMES = ("attestation.cddl", "ledger.cddl", "serving.cddl")
TEXT = "".join((DOCS / name).read_text() for name in NAMES)
ROWS = json.loads((DOCS.parent / "tests" / "vectors" / "conformance" / "serving.json").read_text())["rights"]

BEYOND = ("longer", "twice", "out of order", "has one item more")
"""What CDDL cannot say, or `pycddl` does not hold: spans, order, and how many items an array has."""


def fits(rule: str, value: Any) -> bool:
    arrays = re.sub(r"\[\*64 [a-z-]+\]", "[* any]", for_the_tool(TEXT))
    try:
        pycddl.Schema(f"start = {rule}\n{arrays}").validate_cbor(cbor.encode(value))
    except pycddl.ValidationError:
        return False
    return True


def valid(value: Any) -> bool:
    if type(value.get(1)) is not str or not fits("rights", value):  # other types in place of a text make the tool panic
        return False
    return all(fits("allowed-class", row) for row in value[7]) and all(fits("id", name) for name in value[12])


def test_the_schemas_are_read_as_one_and_define_no_name_twice() -> None:
    pycddl.Schema(TEXT)
    names = [name for file in NAMES for name in re.findall(r"^([a-z][a-z0-9-]*) =", (DOCS / file).read_text(), re.MULTILINE)]
    assert len(names) == len(set(names))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_rights_are_instances_and_what_is_malformed_is_none_but_for_what_cddl_cannot_say(row: dict[str, Any]) -> None:
    try:
        payload, _ = cbor.decode(bytes.fromhex(row["envelope"]))
        found = valid(cbor.decode(payload))
    except Exception:
        found = False  # it is no CBOR
    assert found == (row["code"] not in ("MALFORMED", "LIFETIME") if row["answer"] == "refused" else True) or (
        found and any(words in row["name"] for words in BEYOND)
    )
