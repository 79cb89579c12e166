"""A field is declared once: check, bytes, text and pages follow, and the pages say what the declaration says."""

import ast
import tomllib
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attest import cbor
from attest.errors import PolicyRefused
from attest.policy import ClassRule, DepthRule, NoisePhase, Policy
from attest.policy.classes import DecodingRule, ReadRule
from attest.policy.mechanism import Bands, Buffers
from attest.policy.sampling import Bins, Groups, Separation, Sizes, Truncation
from attest.schema import check_fields, declarations, declared
from attest.schema.groups import Inline, Many, Tables
from attest.schema.kinds import Days, Exact, Flag, Identifier, Scaled, Whole, Word
from attest.schema.text import as_json, parse_document, write_document
from attest.schema.wire import Payload
from tests.pages.documents import PAGES, bytes_table, cddl_map, settings_table

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaf:
    CDDL: ClassVar = "leaf"
    TELLS: ClassVar = ("name", " of leaf {}")

    name: str = declared(1, Identifier(), "A name.")
    size_micro: int = declared(2, Scaled(1, 10**9), "A size.")
    old: int | None = declared(3, Days(10**9), "An age.", key="old_days", default=None, nil=True)

    def __post_init__(self) -> None:
        check_fields(self, PolicyRefused)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree(Payload):
    SCHEMA: ClassVar = "example/1"
    CDDL: ClassVar = "tree"
    WHAT: ClassVar = "tree"
    ERROR: ClassVar = PolicyRefused

    kind: str = declared(2, Word({"oak": "a tree", "fir": "another"}), "A kind.", default="oak")
    rate: Fraction = declared(3, Exact(Fraction(0), Fraction(1), above=True, ratio=True), "A rate.", key="growth.rate")
    tall: bool = declared(4, Flag("true"), "Whether it is tall.", key="growth.tall", default=False, optional=True)
    counts: tuple[int, ...] = declared(
        5, Many(Whole(0, 9, "0..9"), 1, 4, "counts", ascending=True, empty=True), "Counts.", default=(), optional=True
    )
    best: Leaf | None = declared(6, Inline(Leaf, "leaf", "leaf"), "The best leaf.", default=None, optional=True)
    leaves: tuple[Leaf, ...] = declared(7, Many(Tables(Leaf, "leaf", "leaf"), 1, 9, "leaves"), key="leaf")


def parse(text: str) -> Tree:
    return parse_document(Tree, text, what="tree", error=PolicyRefused)


LEAVES = st.builds(
    Leaf,
    name=st.sampled_from(["a", "b-c", "d/e", "0._"]),
    size_micro=st.integers(1, 10**9),
    old=st.none() | st.integers(1, 11_000).map(lambda days: days * 86400),
)
TREES = st.builds(
    Tree,
    kind=st.sampled_from(["oak", "fir"]),
    rate=st.integers(1, 1000).map(lambda count: Fraction(1, count)) | st.integers(1, 10**6).map(lambda n: Fraction(n, 10**6)),
    tall=st.booleans(),
    counts=st.sets(st.integers(0, 9), max_size=4).map(lambda found: tuple(sorted(found))),
    best=st.none() | LEAVES,
    leaves=st.lists(LEAVES, min_size=1, max_size=3, unique_by=lambda leaf: leaf.name).map(tuple),
)
OAK = Tree(rate=Fraction(1, 3), leaves=(Leaf(name="a", size_micro=1_500_000),))


QUICK = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@QUICK
@given(TREES)
def test_every_declared_document_is_read_back_from_its_bytes_and_its_text(tree):
    data = tree.to_cbor()
    assert Tree.from_cbor(data) == tree and Tree.from_cbor(data).to_cbor() == data
    assert parse(write_document(tree)) == tree


@QUICK
@given(TREES, st.data())
def test_no_other_bytes_read_as_a_document(tree, data):
    encoded = bytearray(tree.to_cbor())
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] ^= data.draw(st.integers(1, 255))
    try:
        found = Tree.from_cbor(bytes(encoded))
    except PolicyRefused:
        return
    assert found != tree and found.to_cbor() == bytes(encoded)


@pytest.mark.parametrize(
    "changes",
    [
        {1: "example/2"}, {2: None}, {2: "elm"}, {3: [2, 6]}, {3: [0, 1]}, {3: 0.5}, {4: False}, {4: None}, {4: 1}, {5: []},
        {5: [2, 1]}, {5: [10]}, {5: None}, {6: None}, {6: {}}, {7: []}, {7: None}, {7: [{1: "a", 2: 1}]}, {8: 1},
        {7: [{1: "a", 2: 0, 3: None}]}, {7: [{1: "a", 2: True, 3: None}]}, {7: [{1: "a", 2: 1, 3: None, 4: None}]},
    ],
    ids=str,
)  # fmt: skip
def test_bytes_are_strict(changes):
    plain = cbor.decode(OAK.to_cbor())
    with pytest.raises(PolicyRefused):
        Tree.from_cbor(cbor.encode(plain | changes))


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("", "KEY", "leaf"),
        ("[growth]\n[[leaf]]\nname = 'a'\nsize = 1", "KEY", "[growth] lacks rate"),
        ("[[leaf]]\nname = 'a'\nsize = 1", "KEY", "[growth] lacks rate"),
        ("rate = 1", "KEY", "which belongs into [growth]"),
        ("old_days = 1", "KEY", "which belongs into [[leaf]]"),
        ("knid = 'oak'\n[[leaf]]\nname = 'a'\nsize = 1", "KEY", "'kind'"),
        ("[growth]\nrate = '1/0'\n[[leaf]]\nname = 'a'\nsize = 1", "TYPE", "growth.rate"),
        ("[growth]\nrate = 1\n[[leaf]]\nname = 'a'\nsize = 0.0000001", "RANGE", "size of leaf a"),
        ("[growth]\nrate = 1\n[[leaf]]\nname = 'a'\nsize = 1e4", "RANGE", "size of leaf a in 1e-6"),
        ("[growth]\nrate = 1\n[[leaf]]\nname = 'a'\nsize = 1\nold_days = 1.5", "TYPE", "whole days"),
        ("[growth]\nrate = 1\n[leaf]\nname = 'a'", "TYPE", "double brackets"),
    ],
)
def test_a_mistake_in_the_text_is_told_by_key_and_owner(text, code, told):
    with pytest.raises(PolicyRefused) as caught:
        parse(text)
    assert caught.value.code == code and told in caught.value.sentence


def test_what_follows_from_a_declaration():
    assert write_document(replace(OAK, tall=True)).splitlines() == [
        'kind = "oak"', "", "[growth]", 'rate = "1/3"', "tall = true", "", "[[leaf]]", 'name = "a"', "size = 1.5",
    ]  # fmt: skip
    assert as_json(OAK)["leaves"] == [{"name": "a", "size": 1.5, "old_seconds": None}]
    assert settings_table(Tree, "growth").splitlines()[2:] == [
        "| `rate` | required | A rate. |", "| `tall` | false | Whether it is tall. |",
    ]  # fmt: skip
    assert "| 5 | `counts` | `[1*4 0..9]` | where stated |" in bytes_table(Tree)
    assert '  2 => "oak" / "fir",' in cddl_map(Tree) and "  ? 6 => leaf," in cddl_map(Tree)
    assert '  1 => "example/1",' in cddl_map(Tree) and '| 1 | `schema` | `"example/1"` | always |' in bytes_table(Tree)


def test_a_refusal_of_a_document_that_is_signed_by_itself_says_what_it_is_and_what_was_found():
    with pytest.raises(PolicyRefused) as caught:
        replace(OAK, rate=1)
    assert caught.value.sentence == "growth.rate of the tree is int, expected an exact Fraction"
    for data, code, told in (
        (b"", "CBOR", "tree is not strict CBOR"),
        (b"\x01", "SCHEMA", "tree is int, expected a map"),
        (bytes(cbor.MAX_SIZE + 1), "SIZE", "expected at most 16384"),
        (cbor.encode(cbor.decode(OAK.to_cbor()) | {1: "example/2"}), "SCHEMA", "'example/2', expected 'example/1'"),
        (cbor.encode(cbor.decode(OAK.to_cbor()) | {9: 1}), "SCHEMA", "with the labels 1, 2, 3, 7, and perhaps 4, 5, 6"),
        (cbor.encode(cbor.decode(OAK.to_cbor()) | {4: False}), "CBOR_NONCANONICAL", "tree does not encode to the bytes"),
    ):
        with pytest.raises(PolicyRefused) as caught:
            Tree.from_cbor(data)
        assert caught.value.code == code and told in caught.value.sentence


def test_a_document_that_text_cannot_say_exactly_is_written_with_a_remark():
    odd = replace(OAK, rate=Fraction(2, 7), best=Leaf(name="b", size_micro=1, old=86401))
    written = write_document(odd)
    assert 'rate = "2/7"\n' in written and "# exactly 86401 seconds" in written
    assert tomllib.loads(written)["best"]["old_days"] == 1, "the remark spoils no line"


DOCUMENTS = (
    Policy, ClassRule, DepthRule, NoisePhase, ReadRule, DecodingRule,
    Bands, Buffers, Groups, Truncation, Bins, Separation, Sizes,
)  # fmt: skip


@pytest.mark.parametrize("cls", DOCUMENTS)
def test_every_field_of_a_policy_is_declared_and_explained(cls):
    assert [item.name for item in declarations(cls)] == [item.name for item in fields(cls)]
    for item in declarations(cls):
        assert item.sentence.endswith(".") or item.name == "classes", item.name
        assert not item.optional or not item.required, f"{item.name} is left out at no default"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_is_declared(name):
    page = (ROOT / "docs" / name).read_text()
    assert PAGES[name](page) == page, "write it again: python -m tests.pages"


def imports(path: Path) -> set[str]:
    """Modules that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_no_two_modules_of_schema_and_policy_import_each_other_however_far_around():
    paths = [path for room in ("schema", "policy") for path in (ROOT / "attest" / room).glob("*.py")]
    modules = {f"attest.{path.parent.name}.{path.stem}": path for path in paths if path.stem != "__init__"}
    graph = {name: imports(path) & set(modules) for name, path in modules.items()}
    while graph:
        free = {name for name, others in graph.items() if not others & set(graph)}
        assert free, f"a circle among {sorted(graph)}"
        graph = {name: others for name, others in graph.items() if name not in free}
