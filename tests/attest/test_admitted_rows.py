"""Admissions in columns: what is appended comes back, from the same bytes, and what is shared is shared by nobody else."""

import hashlib
import secrets
from dataclasses import replace

import pytest

from attest import keys
from attest.attestation import Attestation
from attest.corpus.records import Locator
from attest.corpus.signing import sign_content
from attest.descriptor import Parts, split
from attest.gate.admission import ROW_SIZE, Admission, Admitted, AdmittedRows, GateReport, Passed
from tests.attest.test_framing import TEMPLATE

OTHER = replace(TEMPLATE, contributor="bob", max_epsilon_micro=3_000_000, max_delta_pico=10**6, max_examples=4)


@pytest.fixture(scope="module")
def key():
    return keys.generate()


def admit(
    attestation: Attestation, number: int = 0, holder: str = "alice", source: str = "a.jsonl", key_id: bytes = bytes(8)
) -> Admitted:
    opened = attestation.opened()
    passed = Passed(opened.digest(), attestation.digest(), key_id, opened.contributor, opened.admissibility_class)
    return Admitted(Admission(attestation, passed, holder), Locator(source, 7 * number, number))


def bytes_of(item: Admitted) -> tuple:
    return item.admission.kept, item.admission.holder, item.locator


@pytest.fixture
def mixed(key) -> list[Admitted]:
    found = [
        admit(sign_content(secrets.token_bytes(32), key, template), number, template.contributor, f"{number % 3}.jsonl")
        for number, template in enumerate((TEMPLATE, OTHER, TEMPLATE, TEMPLATE, OTHER, replace(TEMPLATE, principal="p")))
    ]
    return [*found, admit(sign_content(secrets.token_bytes(32), key, TEMPLATE), 9, "somebody else")]


def test_what_is_appended_comes_back_byte_for_byte(mixed) -> None:
    expected = [bytes_of(item) for item in mixed]
    rows = AdmittedRows(mixed)
    assert [bytes_of(item) for item in rows] == expected
    assert rows == mixed and rows[-1] == mixed[-1] and rows[1:3] == mixed[1:3] and len(rows) == len(mixed)
    for place, item in enumerate(mixed):
        opened, admission = item.admission.descriptor, item.admission
        assert rows.descriptor_hash(place) == admission.descriptor_hash and rows.locator(place) == item.locator
        assert rows.content_hash(place) == opened.content_hash
        quoted = (admission.descriptor_hash, admission.attestation_hash, opened.signed.content, admission.signature)
        assert rows.quoted(place) == quoted
        assert rows[place].admission.descriptor == opened
    assert rows != mixed[:-1] and rows != mixed[::-1]


def test_classes_are_counted_by_form_as_by_every_admission(mixed, key) -> None:
    other = [admit(sign_content(secrets.token_bytes(32), key, replace(TEMPLATE, admissibility_class="another")))] * 2
    given = [*mixed, *other]
    by_each, by_form = (GateReport(admitted, [], 0, bytes(32)).counts() for admitted in (given, AdmittedRows(given)))
    assert by_form == by_each and by_form["admitted"]["another"] == 2
    assert sum(by_form["admitted"].values()) == len(given) and AdmittedRows().by_class() == {}


def test_a_form_is_shared_by_those_that_differ_in_content_and_nonce_alone(mixed, key) -> None:
    rows = AdmittedRows(mixed)
    assert list(rows.numbers) == [0, 1, 0, 0, 1, 2, 3], "another person, principal or limit is another form"
    for place, item in enumerate(mixed):
        shared = rows.form(place).descriptor
        theirs = item.admission.descriptor
        assert replace(theirs, content_hash=shared.content_hash, nonce=shared.nonce) == shared
    assert list(AdmittedRows(mixed[:0]).numbers) == []
    several = [admit(sign_content(secrets.token_bytes(32), key, TEMPLATE), n, holder) for n, holder in enumerate("aabbabcc")]
    expected = [bytes_of(item) for item in several]
    rows = AdmittedRows(several)
    assert list(rows.numbers) == [0, 0, 1, 1, 0, 1, 2, 2], "also where those of one person follow another's"
    keys_ = [admit(sign_content(secrets.token_bytes(32), key, TEMPLATE), key_id=bytes([n]) * 8) for n in (1, 1, 2, 2, 1)]
    assert list(AdmittedRows(keys_).numbers) == [0, 0, 1, 1, 0], "nor where another key signed"
    assert [bytes_of(item) for item in rows] == expected
    alone = AdmittedRows()
    for item in mixed:
        alone.append(item, alone=True)
    assert len(alone.forms) == len(mixed) and alone == mixed


def test_a_cut_that_is_not_where_the_fields_are_shares_nothing(key) -> None:
    """`split` cuts by lengths; what it makes of bytes that are no descriptor must not pass for what two of them share."""
    signed = sign_content(secrets.token_bytes(32), key, TEMPLATE)
    item = admit(signed)
    parts = split(signed.descriptor, signed.opening)
    other = Parts(parts.rest, secrets.token_bytes(32), secrets.token_bytes(16), secrets.token_bytes(32))
    forged = Attestation(other.join()[0], signed.sign1, other.join()[1])
    passed = Passed(hashlib.sha256(forged.descriptor).digest(), bytes(32), *item.admission.kept[1][2:])
    rows = AdmittedRows([item, Admitted(Admission(forged, passed, "alice"), item.locator)])
    assert rows[1].admission.kept[0] == (forged.descriptor, forged.opening), "the bytes stay what they were, to be refused"
    # A descriptor inside a longer opening: the rest is equal, and another field than the cut one holds the content.
    broken = Admission(Attestation(b"\x00" * 80, signed.sign1, signed.opening), item.admission.kept[1], "alice")
    rows = AdmittedRows([Admitted(broken, item.locator)] * 2)
    assert len(rows.forms) == 2 and [bytes_of(found) for found in rows] == [bytes_of(Admitted(broken, item.locator))] * 2


def test_the_second_of_a_form_asks_whether_the_cut_is_right(mixed, monkeypatch) -> None:
    from attest.gate import admission as admitted

    monkeypatch.setattr(admitted, "commit_content", lambda content, nonce: bytes(32))
    rows = AdmittedRows(mixed)
    assert len(rows.forms) == len(mixed) and rows == mixed


def test_admissions_take_the_memory_of_a_row_each(key) -> None:
    rows = AdmittedRows()
    for number in range(300):
        rows.append(admit(sign_content(secrets.token_bytes(32), key, TEMPLATE), number))
    assert len(rows.forms) == 1 and len(rows.packed) == 300 * ROW_SIZE and ROW_SIZE <= 210
    with pytest.raises(ValueError, match="digests of 3 and 32 bytes"):
        rows.append(Admitted(Admission(Attestation(b"", b""), Passed(b"abc", bytes(32), b"", "", ""), ""), Locator("a", 0, 0)))
    assert len(rows) == len(rows.packed) // ROW_SIZE == 300


def test_contents_are_read_from_one_file_after_the_other(tmp_path) -> None:
    from attest.corpus import Contents, Corpus
    from attest.errors import CorpusRefused

    (tmp_path / "a").write_bytes(b"0123456789")
    (tmp_path / "b").write_bytes(b"abcdef")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    wanted = [Locator("a", 3, 4), Locator("a", 0, 2), Locator("b", 1, 2), Locator("a", 8, 2), Locator("a", 4, 0)]
    with Contents(tmp_path) as contents:
        assert [contents.read(place) for place in wanted] == [b"3456", b"01", b"bc", b"89", b""]
        for wrong in (("a", 8, 3), ("a", -1, 2), ("gone", 0, 1), ("link", 0, 1), ("../a", 0, 1)):
            with pytest.raises(CorpusRefused, match="CONTENT_MISSING"):
                contents.read(Locator(*wrong))
            assert contents.read(wanted[0]) == b"3456", "one that cannot be read ends no reading"
    assert [Corpus(tmp_path).read(place) for place in wanted] == [b"3456", b"01", b"bc", b"89", b""]
