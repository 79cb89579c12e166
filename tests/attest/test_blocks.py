"""Blocks: one rule for trainer and auditor, which a second implementation along docs/formats finds again."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attest.errors import ValueRefused
from attest.policy import ClassRule, DepthRule
from attest.schedule.blocks import check_blocks, derive
from attest.schedule.stack import EMBEDDINGS, HEAD, NO_TOWER, Division, Stack, StackTensor, Tower
from ledger.leaves.stack import read_stack, stack_row
from tests.reference import second_blocks
from tests.stacks import depths, stacks
from tests.vectors.published import vectors

BOUNDS = {"clip_norm_micro": 10**6, "noise_multiplier_micro": 10**6, "sampling_rate": Fraction(1, 2)}
PUBLIC = {"clip_norm_micro": 10**15, "noise_multiplier_micro": 1, "sampling_rate": Fraction(1, 2), "public": True}


def rule(name: str, depth: DepthRule, public: bool = False) -> ClassRule:
    return ClassRule(name=name, depth=depth, **(PUBLIC if public else BOUNDS))


POLICIES = st.lists(st.tuples(depths(), st.booleans()), min_size=1, max_size=4).map(
    lambda found: tuple(rule("xyzw"[place], depth, public) for place, (depth, public) in enumerate(found))
)


def plain(depth: DepthRule) -> dict[int, Any]:
    """The map that a policy encodes a depth as."""
    fields: dict[int, Any] = {
        1: None if depth.band is None else [[part.numerator, part.denominator] for part in depth.band],
        2: depth.layers, 3: depth.patterns, 4: depth.adapter,
        5: depth.embeddings, 6: depth.head, 7: depth.heads, 8: depth.experts,
    }  # fmt: skip
    return {key: value for key, value in fields.items() if value is not None}


def rows(classes: tuple[ClassRule, ...], stack: Stack) -> list[list[Any]]:
    return [[block.name, block.coordinates, list(block.classes)] for block in derive(classes, stack)]


@settings(max_examples=200, deadline=None)
@given(POLICIES, stacks())
def test_an_auditor_who_reads_the_header_derives_the_blocks_of_the_trainer(classes, stack):
    """By the bytes of the header, and by a second implementation along the docs."""
    wire = stack_row(stack)
    assert read_stack(wire) == stack and stack_row(read_stack(wire)) == wire
    second = second_blocks.blocks(wire, [{"name": r.name, "public": r.public, "depth": plain(r.depth)} for r in classes])
    assert rows(classes, stack) == rows(classes, read_stack(wire)) == second


@settings(max_examples=80, deadline=None)
@given(POLICIES, stacks())
def test_every_coordinate_is_in_one_block_and_what_is_not_trained_in_one_without_classes(classes, stack):
    found = derive(classes, stack)
    assert sum(block.coordinates for block in found) == sum(tensor.coordinates for tensor in stack.tensors)
    for place, tensor in enumerate(stack.tensors):
        own = [(block, piece) for block in found for piece in block.pieces if piece.tensor == place]
        assert sum(piece.coordinates for _, piece in own) == tensor.coordinates
        if not tensor.trained:
            assert [block.classes for block, _ in own] == [()]
    assert len({block.name for block in found}) == len(found)


@settings(max_examples=80, deadline=None)
@given(POLICIES, stacks(), st.data())
def test_one_class_more_never_widens_another(classes, stack, data):
    """What a class may touch hangs on its own depth rule alone."""
    name = data.draw(st.sampled_from([r.name for r in classes]))
    alone = tuple(r for r in classes if r.name == name)

    def touched(found) -> int:
        return sum(block.coordinates for block in found if name in block.classes)

    assert touched(derive(alone, stack)) == touched(derive(classes, stack))


def depth_of(fields: dict[str, Any]) -> DepthRule:
    """The depth rule of a vector."""
    found = {int(key): value for key, value in fields.items()}
    band = found.get(1)
    return DepthRule(
        band=None if band is None else (Fraction(*band[0]), Fraction(*band[1])),
        layers=tuple(found[2]) if 2 in found else None,
        patterns=tuple(found[3]) if 3 in found else None,
        adapter=found.get(4),
        embeddings=found.get(5),
        head=found.get(6),
        heads=tuple(found[7]) if 7 in found else None,
        experts=tuple(found[8]) if 8 in found else None,
    )


@pytest.mark.parametrize("row", vectors("blocks"), ids=lambda row: row["about"])
def test_golden_stacks_and_rules_give_the_blocks_of_the_vectors(row):
    classes = tuple(rule(c["name"], depth_of(c["depth"]), c["public"]) for c in row["classes"])
    stack = read_stack(row["stack"])
    assert rows(classes, stack) == row["blocks"] and stack_row(stack) == row["stack"]
    plainly = [{**c, "depth": {int(key): value for key, value in c["depth"].items()}} for c in row["classes"]]
    assert second_blocks.blocks(row["stack"], plainly) == row["blocks"]


@dataclass(frozen=True)
class Claim:
    """What a header says of a block."""

    name: str
    coordinates: int
    classes: tuple[str, ...]


TWO = Stack(
    (Tower(NO_TOWER, "", ("h.0", "h.1")),),
    (StackTensor(("h.0.w",), 4, ((NO_TOWER, 0),)), StackTensor(("h.1.w",), 6, ((NO_TOWER, 1),))),
)
UPPER = (rule("all", DepthRule(band=(Fraction(0), Fraction(1)))), rule("upper", DepthRule(layers=(1,))))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda a, b: (Claim(a.name, 4, ("all", "upper")), b), "DEPTH_WIDER"),
        (lambda a, b: (a, Claim(b.name, 6, ("all",))), "DEPTH_NARROWER"),
        (lambda a, b: (a,), "DEPTH_DROPPED"),
        (lambda a, b: (a, Claim("layer.2", 6, b.classes)), "DEPTH_DROPPED"),
        (lambda a, b: (a, b, Claim("layer.2", 6, ())), "DEPTH_UNKNOWN"),
        (lambda a, b: (a, b, Claim("layer.2", 6, ("all",))), "DEPTH_WIDER"),
        (lambda a, b: (a, Claim(b.name, 7, b.classes)), "COORDINATES"),
        (lambda a, b: (b, a), "DEPTH_ORDER"),
        (lambda a, b: (a, b, b), "DEPTH_ORDER"),
    ],
)
def test_blocks_that_do_not_follow_are_named_by_what_is_wrong(change, code):
    derived = derive(UPPER, TWO)
    claims = tuple(Claim(block.name, block.coordinates, block.classes) for block in derived)
    check_blocks(UPPER, derived, claims)
    with pytest.raises(ValueRefused) as refused:
        check_blocks(UPPER, derived, change(*claims))
    assert refused.value.code == code


PLACE = (NO_TOWER, 0)


@pytest.mark.parametrize(
    "tensor",
    [
        StackTensor((), 1, (PLACE,)),
        StackTensor(("",), 1, ((NO_TOWER, HEAD),)),
        StackTensor(("x" * 1025,), 1, ((NO_TOWER, HEAD),)),
        StackTensor(("h.0.w",), 1, ((NO_TOWER, 1),)),
        StackTensor(("h.0.w",), 1, ((NO_TOWER, 0), (NO_TOWER, 1))),
        StackTensor(("h.0.w",), 1, ((NO_TOWER, EMBEDDINGS), PLACE)),
        StackTensor(("h.0.w", "h.0.w"), 1, (PLACE,)),
        StackTensor(("head.w",), 1, (PLACE,)),
        StackTensor(("head.w",), 1, ((NO_TOWER, 7),)),
        StackTensor(("head.w",), 1, (("other", HEAD),)),
        StackTensor(("head.w",), 1, ()),
        StackTensor(("head.w",), 1, ((NO_TOWER, HEAD), (NO_TOWER, HEAD))),
        StackTensor(("head.w",), -1, ((NO_TOWER, HEAD),)),
        StackTensor(("head.w",), True, ((NO_TOWER, HEAD),)),
        StackTensor(("head.w",), 1, ((NO_TOWER, HEAD),), ""),
        StackTensor(("head.w",), 5, ((NO_TOWER, HEAD),), None, (Division("heads", 2, ((0, 1, 1), (1, 2, 1))),)),
        StackTensor(("h.1.w",), 1, ((NO_TOWER, 1),)),
        StackTensor(("h.1.z", "h.1.x"), 1, ((NO_TOWER, 1),)),
    ],
)
def test_a_stack_that_contradicts_itself_is_none(tensor):
    """The last two are a name that stands twice, and names that do not ascend."""
    with pytest.raises(ValueRefused) as refused:
        Stack(TWO.towers, tuple(sorted((*TWO.tensors[1:], tensor), key=lambda item: item.names[:1])))
    assert refused.value.code == "STACK"


def test_a_stack_has_one_order_and_layers_that_differ():
    for towers, tensors in (
        (TWO.towers, TWO.tensors[::-1]),
        (TWO.towers, ()),
        ((), TWO.tensors),
        ((Tower(NO_TOWER, "", ("h.0", "h.1", "h.1")),), TWO.tensors),
        ((Tower(NO_TOWER, "", ()),), TWO.tensors),
        ((*TWO.towers, Tower(NO_TOWER, "", ("h.2",))), TWO.tensors),
    ):
        with pytest.raises(ValueRefused) as refused:
            Stack(towers, tensors)
        assert refused.value.code == "STACK"


@pytest.mark.parametrize(
    "fields",
    [
        ("tails", 2, ((0, 1, 1),)),
        ("heads", 0, ()),
        ("heads", 2, ((0, 3, 1),)),
        ("heads", 2, ((1, 1, 1),)),
        ("heads", 2, ((1, 2, 1), (0, 1, 1))),
        ("heads", 2, ((0, 1, 0),)),
        ("heads", 2, ((0, 1, 2), (1, 2, 2))),
        ("heads", 2, ((0, 1),)),
    ],
)
def test_a_division_has_one_form(fields):
    with pytest.raises(ValueRefused) as refused:
        Division(*fields)
    assert refused.value.code == "STACK"
