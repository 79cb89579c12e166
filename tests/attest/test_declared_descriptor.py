"""The fields of a descriptor are declared for the pages and checked by the reader; both say one thing."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from attest import cbor
from attest.descriptor import SignedDescriptor
from attest.documents import declarations
from attest.documents.declare import told_of
from attest.documents.pages import labelled
from attest.errors import AttestError, DescriptorRefused
from attest.pages import PAGES

DOCS = Path(__file__).resolve().parents[2] / "docs"
PLAIN = SignedDescriptor(
    contributor=bytes(32), data_class=bytes(32), content=bytes(32), principal=bytes(32), admissibility_class="open",
    clip_norm_micro=1, noise_multiplier_micro=1, not_before=5, not_after=10**6, corpus="notes", max_examples=1,
    max_epsilon_micro=1, max_delta_pico=1, purposes=("train",),
)  # fmt: skip
VALUES = [
    -1, 0, 1, 7, 2**32 - 1, 2**32, 10**12 - 1, 10**12, 10**15, 10**15 + 1, 253402300799, 253402300800, True, 1.0, "",
    "open", "Open", "a" * 65, b"", bytes(31), bytes(32), bytes(33), ("train",), ("generate",), (),
    ("train", "generate"), ("sell",), ["train"],
]  # fmt: skip
BETWEEN_FIELDS = ("WINDOW", "PURPOSE", "PUBLIC_LENGTH")
"""Codes of rules over several fields, and of what is specified and not built."""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_is_declared(name):
    page = (DOCS / name).read_text()
    assert PAGES[name](page) == page, "write it again: python -m attest.pages docs"


def test_every_field_has_the_label_under_which_it_is_written():
    assert {item.name for item in declarations(SignedDescriptor)} | {"schema"} == {
        item.name for item in fields(SignedDescriptor)
    }
    everything = cbor.decode(PLAIN.to_cbor())
    assert [item.label for item in labelled(SignedDescriptor)] == list(range(1, 18))
    for item in declarations(SignedDescriptor):
        value = getattr(PLAIN, item.name)
        assert item.optional is (item.label > 12) and item.sentence.endswith("."), item.name
        assert everything.get(item.label) == (list(value) if type(value) is tuple else value), item.name


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
