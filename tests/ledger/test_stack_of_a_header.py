"""The stack in a header: one encoding, and a reader that takes nothing else, however large it claims to be."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attest import cbor
from attest.errors import ValueRefused
from attest.schedule.stack import EMBEDDINGS, HEAD, NO_TOWER, Stack, StackTensor, Tower
from ledger.errors import LeafRefused
from ledger.leaves import decode_leaf, encode_leaf
from ledger.leaves.stack import MAX_DIVIDED, read_stack, stack_row
from tests.stacks import stacks
from tests.worlds.ledgers import SIGNER, STACK, START, header_spec

JUNK = st.sampled_from([None, True, -1, -2, 0, 1, 2, 7, 2**62, 1.5, "", "x", b"x", [], [0], [[]], {}])


def places(value: Any, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """Every place in nested arrays."""
    own = [path] if path else []
    return own + [found for k, item in enumerate(value) for found in places(item, (*path, k))] if type(value) is list else own


@settings(max_examples=300, deadline=None)
@given(stacks(), st.data())
@pytest.mark.slow
def test_a_stack_with_something_else_in_it_is_refused_or_another_stack(stack, data):
    """Never another exception; and what is read is written so, unless a word, division or form is unused or out of order."""
    row = cbor.decode(cbor.encode(stack_row(stack)))
    path = data.draw(st.sampled_from(places(row)))
    inner = row
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = data.draw(JUNK)
    try:
        found = read_stack(row)
    except LeafRefused:
        return
    assert read_stack(stack_row(found)) == found


def header_with(row: Any) -> bytes:
    value = cbor.decode(encode_leaf(header_spec().header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)))
    return cbor.encode(value | {26: row})


def test_a_header_has_one_stack_encoding():
    assert decode_leaf(header_with(stack_row(STACK))).stack == STACK
    words, towers, divisions, forms, rows = stack_row(STACK)
    spelled = [rows[2][0], [0, *map(words.index, ("layers", "1", "weight"))]]
    wrong = {
        "a word that nobody uses": [[*words, "x"], towers, divisions, forms, rows],
        "a form that nobody uses": [words, towers, divisions, [*forms, [1, True, None, [], []]], rows],
        "a division that nobody uses": [words, towers, [[0, 1, [[0, 1, 1]]]], forms, rows],
        "less shared with the name before": [words, towers, divisions, forms, [*rows[:2], spelled, *rows[3:]]],
        "parameters in another order": [words, towers, divisions, forms, rows[::-1]],
    }  # fmt: skip
    for what, row in wrong.items():
        with pytest.raises(LeafRefused):
            decode_leaf(header_with(row))
            pytest.fail(what)


def test_a_model_may_be_its_own_only_layer():
    """As a bare ``nn.LSTM``, whose parameters lie in no module inside; beside other layers it would hold all of them."""
    tensors = tuple(StackTensor((name,), 4, ((NO_TOWER, 0),)) for name in ("bias", "inner.weight", "weight"))
    stack = Stack((Tower(NO_TOWER, "", ("",)),), tensors)
    assert read_stack(stack_row(stack)) == stack
    with pytest.raises(ValueRefused, match="stands alone"):
        Stack((Tower(NO_TOWER, "", ("", "inner")),), tensors)
    with pytest.raises(ValueRefused, match="lies in a layer"):
        Stack(stack.towers, (StackTensor(("weight",), 4, ((NO_TOWER, HEAD),)),))


def test_positions_of_the_wire_are_those_of_the_docs():
    words, towers, divisions, forms, rows = stack_row(STACK)
    (embedding,) = (form for form in forms if form[0] == 1000)
    assert embedding == [1000, False, None, [[0, -1]], []]
    embedding[3] = [[0, -2]]
    assert read_stack([words, towers, divisions, forms, rows]).tensors[0].places == (("", HEAD),)
    embedding[3] = [[0, -1], [0, -2]]
    assert read_stack([words, towers, divisions, forms, rows]).tensors[0].places == (("", EMBEDDINGS), ("", HEAD))
    for bad in ([[0, -3]], [[1, -1]], [[0, 1 << 30]], [[0, True]], [[0, -2], [0, -1]]):
        embedding[3] = bad
        with pytest.raises(LeafRefused):
            read_stack([words, towers, divisions, forms, rows])


def test_a_stack_that_claims_to_be_huge_costs_little():
    tower = ["", "", [[0, 0]]]
    form = [1, True, None, [[0, -2]], []]
    deep = ["", "", [[0, 0, 2 + n] for n in range(3_000)]]
    wide = [1, True, "lora", [[0, n] for n in range(3_000)], []]
    many = [[0, 65_536, [[0, 65_536, 1]]]] * (MAX_DIVIDED // 65_536 + 1)
    bombs = {
        "long words": [["x" * 30_000], [tower], [], [form], [[0, [0, 0]]] * 5_000],
        "long names": [["x"], [tower], [], [form], [[0, [0, *[0] * 20_000]], *[[0, [20_000, 0]]] * 5_000]],
        "many owners": [["x"], [tower], many, [form], [[0, [0, 0, 0]]]],
        "overlapping": [["x"], [tower], [[1, 65_536, [[k, 65_536, 1] for k in range(1_000)]]], [form], [[0, [0, 0, 0]]]],
        "many places": [["x", "y", *map(str, range(3_000))], [deep], [], [wide], [[0, [0, 1, 2 + n]] for n in range(3_000)]],
    }  # fmt: skip
    for what, row in bombs.items():
        begun = time.process_time()
        with pytest.raises(LeafRefused):
            read_stack(row)
        assert time.process_time() - begun < 2, what
