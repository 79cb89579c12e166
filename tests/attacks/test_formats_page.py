"""`docs/formats` says what the code does: its example, its order of checks, its table of attacks."""

import hashlib
import re
from pathlib import Path

import pytest

from attest import cbor, keys
from attest.errors import AttestError
from attest.gate import ReasonCode, Seen
from attest.registry.entries import MAX_ENTRY
from attest.signed_file import MAX_PAYLOAD
from ledger.leaves import Spend, SpendRow, decode_leaf, encode_leaf
from ledger.merkle import root
from tests.attacks.rows import ATTESTATION_ROWS
from tests.attacks.scene import OPENING, descriptor, descriptor_fields, header_fields, opening_fields, signed
from tests.attacks.test_rows_of_the_attack_lists import ROWS, by_row
from tests.pages.attacks import PAGES as ATTACK_PAGES
from tests.worlds.gate import ALICE, BOB, CONTENT, MALLORY, MICRO, NOW, OTHER_CORPUS, RAW, make_registry

PAGES = (Path(__file__).resolve().parents[2] / "docs" / "formats").glob("*.md")
PAGE = "\n".join(page.read_text(encoding="utf-8") for page in sorted(PAGES))


def section(title):
    """The text under a heading, to the next one."""
    return re.split(r"^#{1,3} ", PAGE.split(f"# {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def rows(text):
    """Cells of the rows of the tables of a text."""
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if not set(line) <= set("|-")]


def codes_in(text):
    """What stands in code style in capitals."""
    return re.findall(r"`([A-Z_]{3,})`", text)


# --- the example ---------------------------------------------------------------------------------------------------------


def test_the_example_is_the_attestation_that_the_library_makes():
    block = re.search(r"```hex\n(.*?)```", PAGE, re.DOTALL)[1]
    data = bytes.fromhex("".join(line.split("#")[0].strip() for line in block.splitlines()))
    assert data == signed().to_cbor()
    text = PAGE.partition("## An attestation byte by byte\n")[2].partition("```\n")[0]
    digests = (hashlib.sha256(data).digest() for data in (descriptor(), CONTENT))
    for shown in (RAW["alice"], keys.key_id(RAW["alice"]), *digests):
        assert f" {shown.hex()}\n" in text
    assert ALICE.private_bytes_raw() == b"\x01" * 32 and f"{CONTENT.decode()}, {len(CONTENT)} bytes" in text


def test_the_comments_of_the_example_are_right():
    block = re.search(r"```hex\n(.*?)```", PAGE, re.DOTALL)[1]
    before, message = block.split("tag 18")
    shown = 0
    for fields, text in ((descriptor_fields(), before), (opening_fields(), message.split("the opening")[1])):
        for key, word in re.findall(r"# (\d+): [^\"\n]*\"([^\"\n]*)\"", text):
            assert fields[int(key)] == word
            shown += 1
    assert shown == 5
    protected = cbor.encode(header_fields(descriptor()))
    assert f"byte string of {len(descriptor())}: the descriptor" in block
    assert f"byte string of {len(protected)}: the protected header" in block
    assert f"byte string of {len(signed().sign1)}: the message" in block
    assert f"byte string of {len(OPENING)}: the opening" in block


def test_the_commitments_of_the_example_are_those_that_the_page_computes():
    names = {}
    exec(re.search(r"```python\n(import hashlib\n\n\ndef commitment.*?)```", PAGE, re.DOTALL)[1], names)
    found = names["commitments"](opening_fields())
    assert found == {label: descriptor_fields()[label] for label in (2, 3, 7, 10)}
    with_principal = names["commitments"](opening_fields() | {6: "person-7"})
    assert {label for label in found if found[label] != with_principal[label]} == {10}


# --- the order of checks ---------------------------------------------------------------------------------------------------

TESTS = Path(__file__).resolve().parents[1]
STEPS = rows(section("Judging an attestation"))[1:]


def test_the_steps_name_every_reason_code():
    named = {code for step in STEPS for code in codes_in(step[2])}
    assert named == {str(code) for code in ReasonCode}
    assert [int(step[0]) for step in STEPS] == list(range(1, len(STEPS) + 1))


# Faults in the order in which the page says they are found: each test has the fault itself and all of the later ones.
FAULTS = [
    ("CLOCK", {"now": -1}),
    ("SIZE", {"changes": {18: bytes(17000)}}),
    ("SCHEMA", {"changes": {18: 1}}),
    ("RANGE", {"changes": {12: 2**32}}),
    ("PURPOSE", {"changes": {16: ["query", "train"]}}),
    ("OPENING", {"changes": {7: bytes(32)}}),
    ("HEADER", {"header": {1: -8}}),
    ("SIG_BAD", {"key": MALLORY}),
    ("KEY_REVOKED", {"registry": lambda: registry_with("person-7", revoked=True)}),
    ("AUDIENCE", {"changes": {11: OTHER_CORPUS}}),
    ("PRINCIPAL", {"changes": {"principal": "person-8"}}),
    ("CLASS_NOT_GRANTED", {"changes": {4: "open"}}),
    ("PURPOSE", {"changes": {16: ["generate"]}}),
    ("EXPIRED", {"changes": {8: NOW - 10**8, 9: NOW}}),
    ("WINDOW", {"changes": {8: NOW - 10**8}}),
    ("CLIP_ABOVE_CLASS", {"changes": {5: MICRO + 1}}),
    ("NOISE_BELOW_CLASS", {"changes": {6: 1}}),
    ("EXAMPLES", {"changes": {13: 5}}),
    ("PUBLIC_LENGTH", {"changes": {17: 512}}),
    ("CONTENT_MISMATCH", {"content": b"other"}),
]


SIGNED_BY_ANOTHER = [code for code, _ in FAULTS].index("SIG_BAD")


def registry_with(principal, revoked=False):
    """Alice has a principal, and perhaps her first key is revoked."""
    enrolled = [
        lambda log: log.enrol(
            "alice", RAW["mallory"], classes=(), not_before=NOW, not_after=NOW + 1, principal=principal, now=NOW
        )
    ]
    if revoked:
        enrolled.append(lambda log: log.revoke("alice", RAW["alice"], at=NOW, now=NOW))
    return make_registry(*enrolled)


@pytest.mark.parametrize("first", range(len(FAULTS)), ids=[code for code, _ in FAULTS])
def test_of_several_faults_the_first_by_the_page_gives_the_code(scene, first):
    changes, header, options = {}, {}, {"registry": registry_with("person-7")}
    key, content = ALICE, CONTENT
    for _, fault in reversed(FAULTS[first:]):
        changes |= fault.get("changes", {})
        header |= fault.get("header", {})
        content = fault.get("content", content)
        if "registry" in fault:
            options["registry"] = fault["registry"]()
        options |= {name: fault[name] for name in ("now",) if name in fault}
    if first <= SIGNED_BY_ANOTHER:
        key = BOB  # a key that is none of Alice's
    attestation = signed(changes, key=key, header=header)
    assert scene.code(attestation, content=content, **options) == FAULTS[first][0]


def test_the_last_step_is_checked_in_its_order(scene):
    """Withdrawn before repeated, repeated before the cap."""
    digest = hashlib.sha256(descriptor()).digest()
    registry = make_registry(alice=1)
    pair = (signed(), CONTENT)
    again = (signed(nonce=bytes(16)), CONTENT)
    other = (signed(content=b"2"), b"2")
    assert scene.codes([pair, pair, again, other], registry=registry) == [
        "ADMITTED", "REPLAYED", "DUPLICATE_CONTENT", "CONTRIBUTOR_CAP"
    ]  # fmt: skip
    seen = Seen(withdrawn={digest})
    assert scene.codes([pair], registry=make_registry(alice=0), seen=seen) == ["WITHDRAWN"]


def test_the_limits_on_the_page_are_those_of_the_code():
    from attest import descriptor as document
    from attest import sign1

    assert f"{document.MAX_SIZE:,}".replace(",", " ") in PAGE and f"{sign1.MAX_SIZE:,}".replace(",", " ") in PAGE
    assert f"an opening {document.MAX_OPENING}" in PAGE
    assert MAX_PAYLOAD == 1 << 20 and MAX_ENTRY == 1 << 20 and document.MAX_MICRO == 10**15 and cbor.MAX_DEPTH == 8


def test_the_types_of_the_schemas_are_those_of_the_code():
    from attest import sign1

    known = {value for name, value in vars(sign1).items() if name.startswith("TYP_")}
    text = "".join((TESTS.parent / "docs" / name).read_text() for name in ("attestation.cddl", "ledger.cddl", "serving.cddl"))
    listed = re.findall(r'^(?:document-type /?=|  /) "(application/[a-z.+]+)" +; \w', text, re.MULTILINE)
    assert len(listed) == len(known) and set(listed) == known


# --- the table of attacks --------------------------------------------------------------------------------------------------

def test_the_table_is_written_from_the_rows_and_has_every_one():
    ((name, write),) = ATTACK_PAGES.items()
    page = (TESTS.parent / "docs" / name).read_text(encoding="utf-8")
    assert write(page) == page, "write it again: python -m tests.pages"
    assert list(ATTESTATION_ROWS) == [f"A{number}" for number in ROWS["A"]]
    assert [row[0] for row in rows(section("Attacks and defences"))[1:]] == list(ATTESTATION_ROWS)


@pytest.mark.parametrize("number", ATTESTATION_ROWS)
def test_a_row_has_tests_and_names_codes_that_their_files_assert(number):
    row = ATTESTATION_ROWS[number]
    places = by_row()[number]
    assert row.attack and row.defence and places
    source = "".join((TESTS / path).read_text() for path in {place.partition("::")[0] for place in places})
    for code in row.codes:
        assert code in ReasonCode.__members__ and f'"{code}"' in source, code
    for path in re.findall(r"`(tests/[\w/]+\.py)`", row.defence):
        assert (TESTS.parent / path).is_file()


def test_the_example_is_refused_once_any_byte_of_it_is_changed(scene):
    data = signed().to_cbor()
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 0x20]) + data[at + 1 :]
        try:
            parts = cbor.decode(changed)
            attestation = type(signed())(*parts)
        except (AttestError, TypeError):
            continue
        assert scene.code(attestation) != "ADMITTED"


# --- spending by group ---------------------------------------------------------------------------------------------------


def test_the_example_of_a_SPEND_leaf_is_what_the_library_writes():
    block = re.search(r"```hex\n(.*?)```", PAGE.partition("## Spending by group\n")[2], re.DOTALL)[1]
    data = bytes.fromhex("".join(line.split("#")[0].replace(" ", "") for line in block.splitlines()))
    members = [bytes([place]) * 32 for place in (0x11, 0x22, 0x33)]
    terms = (0, 500_000, 1_200_000, 0, 0, 0, 0, 0, 0)
    active = SpendRow(*terms, None, 0, 0.0, 2, root([members[0], b"", members[2]]), 64, 0.36, 123_456)
    left = SpendRow(*terms, 4, 0, 0.0, 1, root(members[1:2]), 32, 0.36, 87_654)
    assert decode_leaf(data) == Spend(9, 1_800_000_000, (active, left)) and encode_leaf(decode_leaf(data)) == data
