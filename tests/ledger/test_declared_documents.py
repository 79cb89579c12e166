"""A field of a ledger's documents is declared once: check, bytes, CDDL and tables follow, and pages say what is declared."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from attest import cbor
from attest.schema import declarations
from attest.schema.quick import Quick
from attest.schema.wire import decode_row
from ledger.errors import LeafRefused
from ledger.leaves import Admit, Draw, Header, Resume, Withdraw, decode_leaf, encode_leaf
from ledger.leaves.codec import RECORDS
from ledger.release.manifest import Manifest
from ledger.replay.influence import Artifact
from ledger.replay.summaries import Aggregate, Member
from tests.pages.documents import labelled
from tests.pages.leaves import PAGES, rows_in

DOCS = Path(__file__).resolve().parents[2] / "docs"
LEAVES = sorted(RECORDS.values(), key=lambda leaf: leaf.KIND)
ROWS = [cls for document in (Header, *LEAVES, Manifest) for cls in rows_in(document).values()]
TIME = 1_700_000_000
SAID = {
    "above0": lambda value: type(value) is int and 1 <= value < 2**63,
    "uint63": lambda value: type(value) is int and 0 <= value < 2**63,
    "0..999999999999": lambda value: type(value) is int and 0 <= value < 10**12,
    "leaf-time": lambda value: type(value) is int and 1577836800 <= value <= 253402300799,
    "sha256": lambda value: type(value) is bytes and len(value) == 32,
    "bstr .size 8": lambda value: type(value) is bytes and len(value) == 8,
    "id": lambda value: (
        type(value) is str and 1 <= len(value) <= 64 and set(value) <= set("abcdefghijklmnopqrstuvwxyz0123456789._/-")
    ),
}
"""What the words of the schema mean."""

ADMIT = Admit(5, TIME, bytes(32), "open", 0, 1, 1, 0, bytes(32), bytes(8), bytes(32), 0, 0, 0)


@pytest.mark.parametrize("cls", [*LEAVES, Manifest, Aggregate, Member, *ROWS], ids=lambda cls: cls.__name__)
def test_every_field_is_declared_and_explained_in_the_order_of_its_bytes(cls):
    items = declarations(cls)
    assert [item.name for item in items] == [item.name for item in fields(cls)]
    labels = [0, 2, *range(3, len(items) + 1)] if cls in LEAVES else list(range(1, len(items) + 1))
    assert [item.label for item in items] == labels
    for item in items:
        assert item.sentence[0].isupper() or item.sentence.startswith("`"), item.name
        assert item.sentence.endswith("."), item.name


def test_the_header_has_a_field_or_what_follows_from_others_for_every_key():
    assert [item.label for item in labelled(Header)] == list(range(31))
    assert {item.name for item in declarations(Header)} == {item.name for item in fields(Header) if item.init}
    assert all(item.sentence.endswith(".") for item in labelled(Header))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_is_declared(name):
    page = (DOCS / name).read_text()
    assert PAGES[name](page) == page, "write it again: python -m tests.pages"


@pytest.mark.parametrize(
    "value",
    [1577836799, 1577836800, 253402300799, 253402300800, 10**12 - 1, 10**12, -1, 0, 1, 2**63 - 1, 2**63, True, False, 1.0, -0.5,
     float("nan"), float("inf"), None, "", "open", "x\n", "a" * 65, b"", bytes(8), bytes(32), bytes(33),
     (), (1,), (2, 1), (1.0,), (True,), [], "\u00e9"],
    ids=repr,
)  # fmt: skip
def test_a_field_takes_what_its_words_in_CDDL_say_and_the_compiled_test_what_each_check_takes(value):
    for item in declarations(Admit):
        try:
            replace(ADMIT, **{item.name: value})
            taken = True
        except LeafRefused as refused:
            taken = refused.code == "RANGE" and "holds at a delta" in refused.sentence  # a rule over two fields
        kind = item.kind
        assert isinstance(kind, Quick) and kind.fits(value) is taken, item.name
        assert SAID[kind.cddl](value) is taken, item.name


def test_fields_that_need_each_other_are_null_together():
    resume = Resume(5, TIME, 1, 0, None, None, None)
    assert replace(resume, pinned_size=4, pinned_root=bytes(32)).pinned_size == 4
    for changes in ({"pinned_size": 4}, {"pinned_root": bytes(32)}):
        with pytest.raises(LeafRefused):
            replace(resume, **changes)
    withdraw = Withdraw(5, TIME, bytes(32), None, "contributor", bytes(32))
    assert replace(withdraw, admit_seq=3).member is None
    with pytest.raises(LeafRefused) as refused:
        replace(withdraw, member=(bytes(32),))
    assert refused.value.code == "RANGE" and "admit_seq" in refused.value.sentence


def test_a_refusal_names_field_and_leaf_and_says_what_was_found():
    with pytest.raises(LeafRefused) as refused:
        replace(ADMIT, anchor=bytes(31))
    assert refused.value.code == "TYPE" and refused.value.sentence == "anchor of admit: expected 32 bytes, got 31 bytes"
    with pytest.raises(LeafRefused) as refused:
        Draw(5, TIME, 1, 1, (2, 1), (1.0,))
    assert refused.value.code == "ORDER" and "drawn of draw" in refused.value.sentence


def test_a_leaf_keeps_its_bytes():
    data = encode_leaf(ADMIT)
    assert cbor.decode(data) == {
        0: 5, 1: 1, 2: TIME, 3: bytes(32), 4: "open", 5: 0, 6: 1, 7: 1, 8: 0, 9: bytes(32), 10: bytes(8),
        11: bytes(32), 12: 0, 13: 0, 14: 0,
    }  # fmt: skip
    assert decode_leaf(data) == ADMIT


@pytest.mark.parametrize("blocks", [{}, "01", None, [True], [0.0], [-1]], ids=repr)
def test_the_blocks_of_a_released_artifact_are_numbers_in_an_array_and_nothing_else(blocks):
    assert decode_row(Artifact, ["full", [0, 1], [True]], "an artifact", LeafRefused) == Artifact("full", (0, 1), (True,))
    with pytest.raises(LeafRefused) as refused:
        decode_row(Artifact, ["full", blocks, [True]], "an artifact", LeafRefused)
    assert refused.value.code in ("TYPE", "RANGE") and "blocks of artifact" in refused.value.sentence
