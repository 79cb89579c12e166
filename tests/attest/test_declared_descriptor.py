"""A field of what contributors sign is declared once: bytes, CDDL and tables follow, and its check says what is declared."""

from dataclasses import fields, replace

import pytest

from attest import cbor
from attest.corpus.anchor import ContentAnchor
from attest.descriptor import ContributionDescriptor, Opening, SignedDescriptor, Terms
from attest.errors import AttestError, DescriptorRefused, RegistryRefused
from attest.registry import Create, Entry, KeyStatement, SetClock
from attest.registry.entries import ACTIONS, to_array
from attest.schema import declarations
from attest.schema.declare import told_of
from attest.withdrawal import Withdrawal
from tests.pages.documents import labelled

PLAIN = SignedDescriptor(
    contributor=bytes(32), data_class=bytes(32), content=bytes(32), principal=bytes(32), admissibility_class="open",
    clip_norm_micro=1, noise_multiplier_micro=1, not_before=5, not_after=10**6, corpus="notes", max_examples=1,
    max_epsilon_micro=1, max_delta_pico=1, purposes=("train",),
)  # fmt: skip
VALUES = [
    -1, 0, 1, 7, 2**32 - 1, 2**32, 10**12 - 1, 10**12, 10**15, 10**15 + 1, 253402300799, 253402300800, True, 1.0, "",
    "open", "Open", "a" * 65, b"", bytes(31), bytes(32), bytes(33), ("train",), ("generate",), (),
    ("query",), ("generate", "train"), ("train", "generate"), ("sell",), ["train"],
]  # fmt: skip

OPENED = ContributionDescriptor(
    admissibility_class="open", clip_norm_micro=1, noise_multiplier_micro=1, not_before=5, not_after=10**6, corpus="notes",
    contributor="alice", data_class="notes", content_hash=bytes(32), nonce=bytes(16), salts=bytes(48), principal="group",
)  # fmt: skip
BETWEEN_FIELDS = ("WINDOW", "PURPOSE")
"""Codes of rules over several fields, and of what is specified and not built."""


def test_every_field_has_the_label_under_which_it_is_written():
    assert {item.name for item in declarations(SignedDescriptor)} == {item.name for item in fields(SignedDescriptor)}
    everything = cbor.decode(PLAIN.to_cbor())
    assert [item.label for item in labelled(SignedDescriptor)] == list(range(1, 18))
    for item in declarations(SignedDescriptor):
        value = getattr(PLAIN, item.name)
        assert item.optional is (item.label > 12) and item.sentence.endswith("."), item.name
        assert everything.get(item.label) == (list(value) if type(value) is tuple else value), item.name


@pytest.mark.one_in(4)
@pytest.mark.parametrize("item", declarations(SignedDescriptor), ids=lambda item: item.name)
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_the_declaration_takes_what_the_reader_takes(item, value):
    try:
        replace(PLAIN, **{item.name: value})
        read = True
    except DescriptorRefused as refused:
        read = refused.code in BETWEEN_FIELDS
    try:
        item.kind.check(value, told_of(SignedDescriptor, item.key, None), DescriptorRefused)
        said = True
    except AttestError:
        said = False
    assert said is read


def test_a_descriptor_with_its_opening_has_the_fields_of_both_and_each_stands_in_its_own_bytes():
    opening, terms = declarations(Opening), declarations(Terms)
    assert {item.name for item in (*opening, *terms)} == {item.name for item in fields(ContributionDescriptor)}
    assert sorted(item.label for item in opening) == list(range(1, 7))
    assert cbor.decode(OPENED.opening()) == {item.label: getattr(OPENED, item.name) for item in opening}
    assert ContributionDescriptor.open(OPENED.to_cbor(), OPENED.opening()) == OPENED
    shown = repr(OPENED)
    assert "alice" in shown and "nonce" not in shown and "salts" not in shown


@pytest.mark.parametrize("item", declarations(Opening), ids=lambda item: item.name)
@pytest.mark.parametrize("value", [*VALUES, bytes(16), bytes(47), bytes(48), None], ids=repr)
def test_a_field_of_an_opening_is_checked_where_it_is_made_and_where_it_is_read(item, value):
    codes = []
    plain = cbor.decode(OPENED.opening()) | {item.label: value}
    for make in (
        lambda: replace(OPENED, **{item.name: value}),
        lambda: ContributionDescriptor.open(OPENED.to_cbor(), cbor.encode(plain)),
        lambda: item.kind.check(value, told_of(Opening, item.key, None), DescriptorRefused),
    ):
        try:
            make()
            codes.append("")
        except DescriptorRefused as refused:
            codes.append("" if refused.code == "OPENING" else refused.code)
    made, read, said = codes
    if value is None and item.optional:
        assert (made, read) == ("", "CBOR_NONCANONICAL")
    else:
        assert made == read == said


ENTRY = Entry(3, bytes(32), 5, (Create(bytes(16), "owner"), SetClock(5, "the clock was ahead")))
STATEMENTS = [
    KeyStatement(kind="rotate", registry_id=bytes(16), key=bytes(32), time=5, new_key=bytes(32)),
    KeyStatement(kind="revoke", registry_id=bytes(16), key=None, time=5, revoked_at=6),
    KeyStatement(kind="prove", registry_id=bytes(16), key=bytes(32), time=5),
]
PAYLOADS = [
    ContentAnchor(bytes(32), bytes(32), 5, bytes(16)), Withdrawal(bytes(32), "notes", 5, "consent"), ENTRY, *STATEMENTS,
]  # fmt: skip


@pytest.mark.parametrize("made", PAYLOADS, ids=lambda made: getattr(made, "kind", made.CDDL))
def test_what_is_signed_by_itself_has_a_label_for_every_field_and_is_read_strictly(made):
    cls, plain = type(made), cbor.decode(made.to_cbor())
    assert [item.name for item in declarations(cls)] == [item.name for item in fields(cls)]
    assert list(plain) == [item.label for item in labelled(cls)] and plain[1] == cls.SCHEMA
    assert cls.from_cbor(made.to_cbor()) == made
    for item in declarations(cls):
        assert item.sentence.endswith("."), item.name
        for value in [*VALUES, None]:
            try:
                found = cls.from_cbor(cbor.encode(plain | {item.label: value}))
            except AttestError as refused:
                assert type(refused) is cls.ERROR and refused.code in ("TYPE", "RANGE", "SCHEMA", "CBOR_NONCANONICAL")
            else:
                assert cbor.decode(found.to_cbor()) == plain | {item.label: value}
    for changed in (plain | {9: 1}, {label: value for label, value in plain.items() if label != 3}, [], plain | {1: "other/1"}):
        with pytest.raises(cls.ERROR) as caught:
            cls.from_cbor(cbor.encode(changed))
        assert caught.value.code == "SCHEMA"


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.kind)
def test_a_key_statement_states_what_goes_with_its_kind_and_nothing_else(statement):
    _, words = KeyStatement.BY_WORD
    for name, stated in words[statement.kind][1].items():
        value = None if stated == "always" else 6 if name == "revoked_at" else bytes(32)
        with pytest.raises(RegistryRefused) as caught:
            replace(statement, **{name: value})
        assert caught.value.code == ("TYPE" if stated == "always" else "SCHEMA") and name in caught.value.sentence


@pytest.mark.parametrize("act", ACTIONS, ids=lambda act: act.CDDL)
def test_the_place_of_a_field_of_an_action_is_its_place_in_the_array(act):
    items = declarations(act)
    assert [item.label for item in items] == list(range(1, len(items) + 1)) and act is ACTIONS[act.CODE]
    assert [item.name for item in items] == [item.name for item in fields(act)]
    values = [object() for _ in items]
    assert to_array(act(*values)) == [act.CODE, *values]
    assert all(item.sentence.endswith(".") for item in items)
