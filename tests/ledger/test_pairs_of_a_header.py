"""The geometry of a header: its bytes, the pairs that it says, and the headers that are refused for them."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from attest import cbor
from attest.policy import DepthRule
from attest.policy.mechanism import GeometryRule
from attest.schedule.geometry import FRAMES, pairs_of
from ledger.errors import LeafRefused
from ledger.leaves import Header, HeaderSpec, decode_leaf, encode_leaf
from ledger.leaves.pairs import Geometry, PairRow
from tests.attest.test_geometry import each, pair, whole
from tests.worlds.ledgers import SIGNER, STACK, START, header_spec, ordered, parameter, signed_policy, stack_of

TANGENT = GeometryRule("lora_tangent")
TENSORS = [*pair("0.q", 6, 4, 2), *pair("3.q", 5, 3, 4), parameter("layers.2.weight", 7)]
RANKS = {"layers.0.q.lora_B.clinic.weight": 2, "layers.3.q.lora_B.clinic.weight": 4}
FIRST, SECOND = [1, 0, 2], [4, 3, 4]
"""The rows of the two pairs in these tensors."""


def spec(**changes: Any) -> HeaderSpec:
    rules = changes.pop("geometry", (TANGENT,))
    fields = {"stack": stack_of(4, *TENSORS), "ranks": RANKS} | changes
    return header_spec(policy=signed_policy(geometry=rules, **fields.pop("policy", {})), **fields)


def made(**changes: Any) -> Header:
    return spec(**changes).header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)


def plain(header: Header) -> dict[int, Any]:
    found: dict[int, Any] = cbor.decode(encode_leaf(header), max_size=1 << 16)
    return found


def refused(value: dict[int, Any]) -> LeafRefused:
    with pytest.raises(LeafRefused) as caught:
        decode_leaf(cbor.encode(value))
    return caught.value


def test_a_header_says_its_pairs_and_is_read_back():
    header = made()
    assert decode_leaf(encode_leaf(header)) == header
    assert plain(header)[28] == [] and plain(header)[29] == [FRAMES, [FIRST, SECOND]]
    assert header.pairs == spec().pairs == pairs_of(header.policy, header.stack, RANKS)
    assert [(found.m, found.n) for found in header.pairs] == [(6, 4), (5, 3)]
    assert [header.blocks[found.block].name for found in header.pairs] == ["layer.0", "layer.3"]


def test_a_header_without_a_geometry_has_no_field_of_it():
    header = made(geometry=(), ranks={})
    assert header.geometry is None and header.pairs == () and max(plain(header)) == 27


def test_blocks_numerics_and_lattice_are_those_of_the_factors():
    with_it, without = made(), made(geometry=(), ranks={})
    same = ("blocks", "clip_margin", "exactness_note", "coordinates", "profiles")
    assert [getattr(with_it, name) for name in same] == [getattr(without, name) for name in same]


WRONG: dict[str, tuple[Any, str]] = {
    "another rule of frames": (["dptrain.frames/2", [FIRST, SECOND]], "GEOMETRY"),
    "no rule of frames": ([None, [FIRST, SECOND]], "GEOMETRY"),
    "no pairs": ([FRAMES, []], "TYPE"),
    "a pair too few": ([FRAMES, [FIRST]], "GEOMETRY"),
    "a pair twice": ([FRAMES, [FIRST, FIRST, SECOND]], "GEOMETRY"),
    "pairs out of order": ([FRAMES, [SECOND, FIRST]], "GEOMETRY"),
    "factors the wrong way round": ([FRAMES, [[0, 1, 2], SECOND]], "GEOMETRY"),
    "a partner of another layer": ([FRAMES, [[1, 3, 2], SECOND]], "GEOMETRY"),
    "a tensor that is no factor": ([FRAMES, [FIRST, [2, 3, 1], SECOND]], "GEOMETRY"),
    "a place beyond the stack": ([FRAMES, [FIRST, [5, 3, 4]]], "GEOMETRY"),
    "a partner beyond the stack": ([FRAMES, [FIRST, [4, 5, 4]]], "GEOMETRY"),
    "a rank of nothing": ([FRAMES, [[1, 0, 0], SECOND]], "RANGE"),
    "a rank that does not divide": ([FRAMES, [[1, 0, 3], SECOND]], "GEOMETRY"),
    "a rank of one factor": ([FRAMES, [[1, 0, 12], SECOND]], "GEOMETRY"),
    "a rank that is a float": ([FRAMES, [[1, 0, 2.0], SECOND]], "RANGE"),
    "a place below nothing": ([FRAMES, [[-1, 0, 2], SECOND]], "RANGE"),
    "a row with a field more": ([FRAMES, [[*FIRST, 1], SECOND]], "SCHEMA"),
    "a field more": ([FRAMES, [FIRST, SECOND], 1], "SCHEMA"),
    "pairs that are no array": ([FRAMES, 2], "TYPE"),
    "null": (None, "SCHEMA"),
    "a map": ({1: FRAMES, 2: [FIRST, SECOND]}, "SCHEMA"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_follow_from_policy_and_stack_is_refused(name):
    said, code = WRONG[name]
    assert refused(plain(made()) | {29: said}).code == code


def test_a_rank_that_fits_is_the_trainers_word():
    changed = decode_leaf(cbor.encode(plain(made()) | {29: [FRAMES, [[1, 0, 4], SECOND]]}))
    assert isinstance(changed, Header) and (changed.pairs[0].m, changed.pairs[0].n) == (3, 2)


def test_the_field_stands_exactly_where_the_policy_has_a_geometry():
    with_it, without = plain(made()), plain(made(geometry=(), ranks={}))
    left_out = {key: value for key, value in with_it.items() if key < 28}
    assert refused(left_out).code == refused(without | {28: [], 29: with_it[29]}).code == "GEOMETRY"
    assert "says no pairs" in refused(left_out).sentence
    assert refused(left_out | {28: []}).code in ("GEOMETRY", "SCHEMA")
    assert refused(without | {28: []}).code == "SCHEMA", "an empty field of turns stands before a geometry alone"
    assert refused({key: value for key, value in with_it.items() if key != 28}).code == "SCHEMA"
    assert refused(with_it | {30: []}).code == "SCHEMA"


def test_the_engine_is_refused_what_an_auditor_would_refuse():
    for changes, told in (
        ({"ranks": {}}, "has no rank"),
        ({"ranks": RANKS | {"layers.2.weight": 1}}, "which is no pair"),
        ({"geometry": ()}, "which is no pair"),
        ({"stack": STACK}, "no trained LoRA pair"),
        ({"stack": stack_of(4, *TENSORS[1:])}, "has no partner"),
    ):
        with pytest.raises(LeafRefused, match=told) as caught:
            made(**changes)
        assert caught.value.code == "GEOMETRY"


def test_a_mask_that_splits_a_pair_is_refused_where_the_stack_is_known():
    """The policy may have it: only with the stack it shows that a pair is split."""
    first, second = signed_policy().policy.classes
    masked = replace(first, name="masked", depth=DepthRule(band=(Fraction(0), Fraction(1)), heads=(0,)))
    query, key = pair("0.q", 6, 4, 2)
    cut = stack_of(4, *TENSORS[2:], replace(query, divisions=each()), replace(key, divisions=whole()))
    with pytest.raises(LeafRefused, match="cut by a mask") as caught:
        made(policy={"classes": (first, second, masked)}, stack=cut)
    assert caught.value.code == "GEOMETRY"
    assert made(stack=cut).pairs, "without the mask it is a pair"


def test_a_header_made_by_hand_is_held_to_the_same_rule():
    header = made()
    for geometry in (None, Geometry(FRAMES, (PairRow(*FIRST),)), Geometry(FRAMES, (PairRow(*SECOND), PairRow(*FIRST)))):
        with pytest.raises(LeafRefused) as caught:
            replace(header, geometry=geometry)
        assert caught.value.code == "GEOMETRY"
    assert ordered(*TENSORS) == header.stack.tensors
