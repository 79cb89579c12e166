"""What a ledger keeps of what contributors signed: refused where it does not fit, stored with the leaf, gone with its body, and
written into exports from which every attestation is made again, byte for byte."""

import hashlib
import os
import secrets
import tracemalloc
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from attest import cbor
from attest.attestation import CommonTerms, Framing, subject_of
from attest.descriptor import SignedDescriptor
from attest.registry.names import beside
from ledger import layout, tiles
from ledger.errors import ExportRefused, LeafRefused, LedgerCorrupt
from ledger.export import _Attestations
from ledger.leaves import Admit, decode_leaf, encode_leaf
from ledger.leaves.attestations import pack, unpack
from ledger.log import Ledger
from ledger.log.examining import check_attestations
from ledger.merkle import Frontier, leaf_hash
from ledger.replay.contributions import AdmitSpec
from ledger.storage.place import Place
from ledger.storage.sql.sqlite import SqliteStore
from ledger.storage.store import Attested, Row
from tests.worlds.attested_ledgers import (
    OWNER_KEY,
    attestation,
    attested_admission,
    attested_run,
    put_registry,
    registry_bytes,
)
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START, admission
from tests.worlds.registries import continued, new_log, taken
from tests.worlds.retained_ledgers import vouched_and_older

SIGNED = {1: attestation(1), 2: attestation(2), 3: attestation(3, "sensitive"), 5: attestation(5)}


@pytest.fixture
def run(backend):
    """A fresh ledger in each database, over the registry."""
    driver = attested_run(backend.place)
    yield driver
    driver.ledger.close()


@pytest.fixture
def file_run(tmp_path):
    """A whole run over signed admissions in a file, closed but for its handle."""
    driver = attested_run(tmp_path / "ledger.db")
    driver.whole_run()
    yield driver
    driver.ledger.close()


def kept(ledger: Ledger) -> tuple[dict[int, bytes], dict[int, tuple[int, bytes]]]:
    """Terms by number, and number and signature by leaf, as they are stored."""
    with ledger._file.store.snapshot() as snapshot:
        return dict(snapshot.terms()), {seq: unpack(data) for seq, data in snapshot.attestations()}


def examined(ledger: Ledger):
    with ledger._file.store.snapshot() as snapshot:
        return check_attestations(snapshot)


def exported(directory) -> tuple[list[bytes], dict[int, bytes]]:
    """Terms by number, and entries by leaf, as the files of an export have them; every file is accounted for."""
    names = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    size = int((directory / "checkpoint").read_bytes().split(b"\n")[1])
    count = layout.count_terms(names)
    terms = [
        entry
        for n, width in layout.tile_widths(count)
        for entry in tiles.split_bundle((directory / layout.terms_path(n, width)).read_bytes(), width)
    ]
    signed, entries = [], {}
    for n, width in layout.tile_widths(size):
        if layout.signed_path(n, width) in names:
            signed.append(n)
            bundle = tiles.split_bundle((directory / layout.signed_path(n, width)).read_bytes(), width)
            entries |= {n * layout.TILE_WIDTH + place: entry for place, entry in enumerate(bundle) if entry}
    assert {name for name in names if name.startswith("attestations/")} == set(layout.attestation_paths(size, count, signed))
    return terms, entries


def made_again(ledger: Ledger, directory) -> dict[int, tuple[bytes, bytes]]:
    """Descriptor and message of every ADMIT leaf, from the files of an export and the anchors of the leaves."""
    terms, entries = exported(directory)
    framings = [Framing(CommonTerms.from_cbor(data)) for data in terms]
    with ledger.rows() as rows:
        leaves = {row.seq: decode_leaf(row.body) for row in rows if row.kind == Admit.KIND and row.body}
    assert leaves.keys() == entries.keys()
    found = {}
    for seq, entry in entries.items():
        number, signature = unpack(entry)
        again = framings[number].attestation(leaves[seq].anchor, signature)
        assert again.digest() == leaves[seq].attestation_hash
        found[seq] = again.descriptor, again.sign1
    return found


# --- admitting ---------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(99)
def test_attestations_are_stored_with_their_leaves_and_terms_once(run):
    run.admit(attested_admission(1), attested_admission(3), attested_admission(2))
    run.admit(attested_admission(5), attested_admission(4, "sensitive"))
    terms, signed = kept(run.ledger)
    assert [number for number, _ in signed.values()] == [0, 0, 1, 0, 2] and list(signed) == [1, 2, 3, 4, 5]
    alice = CommonTerms.of(SignedDescriptor.from_cbor(attestation(2).descriptor), attested_admission(2).key_id)
    assert list(terms) == [0, 1, 2] and terms[1] == alice.to_cbor()
    assert signed[1][1] == attestation(1).sign1[-64:]


WRONG = {
    "a signature that is too short": lambda terms, signature: (terms, signature[:-1]),
    "a signature that is too long": lambda terms, signature: (terms, signature + b"\0"),
    "no signature": lambda terms, signature: (terms, b""),
    "another signature": lambda terms, signature: (terms, signature[:-1] + bytes([signature[-1] ^ 1])),
    "terms of another key": lambda terms, signature: (replace(terms, key_id=bytes(8)), signature),
    "other bounds": lambda terms, signature: (
        replace(terms, signed=replace(terms.signed, clip_norm_micro=terms.signed.clip_norm_micro + 1)),
        signature,
    ),
    "another contributor": lambda terms, signature: (
        replace(terms, signed=replace(terms.signed, contributor=bytes(32))),
        signature,
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_attestation_that_is_not_what_its_leaf_quotes_is_refused_before_anything_is_written(tmp_path, what):
    with attested_run(tmp_path / "ledger.db").ledger as ledger:
        size, good = ledger.size, attested_admission(2)
        bad = replace(attested_admission(1), attestation=WRONG[what](*attested_admission(1).attestation))
        with pytest.raises(LeafRefused) as refused:
            ledger.admit([good, bad, attested_admission(3)], now=START + 1)
        assert refused.value.code == "ATTESTATION" and bad.descriptor_hash.hex() in refused.value.sentence
        assert ledger.size == size and kept(ledger) == ({}, {})
        ledger.admit([good], now=START + 1)
        assert list(kept(ledger)[1]) == [size]


def test_a_leaf_that_quotes_a_message_with_a_signature_of_another_length_is_refused(tmp_path):
    """The framing would make such a message, and no reader accepts it."""
    good = attested_admission(1)
    terms, signature = good.attestation
    framing = Framing(terms)
    descriptor = framing.descriptor(good.anchor)
    for short in (signature[:-1], b"", signature + b"\0"):
        quoted = framing.digest(descriptor, framing.message(subject_of(descriptor), short))
        with attested_run(tmp_path / f"{len(short)}.db").ledger as ledger:
            with pytest.raises(LeafRefused, match="expected 64"):
                ledger.admit([replace(good, attestation_hash=quoted, attestation=(terms, short))], now=START + 1)
            assert ledger.size == 1


@pytest.mark.parametrize("field", ["anchor", "descriptor_hash", "attestation_hash"])
def test_a_leaf_that_quotes_something_else_than_was_signed_is_refused(tmp_path, field):
    with attested_run(tmp_path / "ledger.db").ledger as ledger:
        with pytest.raises(LeafRefused, match="ATTESTATION"):
            ledger.admit([replace(attested_admission(1), **{field: bytes(32)})], now=START + 1)
        assert ledger.size == 1 and kept(ledger) == ({}, {})


def test_a_refused_admission_leaves_no_attestation_for_the_next_leaves(run):
    """The queue is emptied with the leaves that it belongs to."""
    with pytest.raises(LeafRefused):
        run.admit(attested_admission(1), attested_admission(1))
    run.admit(admission(7))
    assert kept(run.ledger) == ({}, {}) and examined(run.ledger).first_missing == (1,)


# --- in the database -----------------------------------------------------------------------------------------------------


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE attestation SET data = x'00' WHERE seq = 1",
        "UPDATE attestation SET seq = 17 WHERE seq = 1",
        "DELETE FROM attestation WHERE seq = 1",
        "DELETE FROM attestation",
        "INSERT INTO attestation SELECT * FROM attestation WHERE seq = 1",
        "INSERT INTO attestation SELECT 0, data FROM attestation WHERE seq = 1",
        "INSERT INTO attestation SELECT 5, data FROM attestation WHERE seq = 1",
        "INSERT INTO attestation SELECT 1000, data FROM attestation WHERE seq = 1",
        "UPDATE terms SET data = x'00' WHERE number = 0",
        "UPDATE terms SET data = NULL WHERE number = 0",
        "UPDATE terms SET number = 9 WHERE number = 0",
        "DELETE FROM terms WHERE number = 3",
        "DELETE FROM terms",
        "INSERT INTO terms VALUES (5, x'00')",
        "INSERT INTO terms VALUES (-1, x'00')",
        "INSERT INTO terms VALUES (4, NULL)",
        "INSERT INTO terms SELECT 4, data FROM terms WHERE number = 1",
        "INSERT INTO terms SELECT 1, x'00' FROM head",
    ],
)
def test_the_database_refuses_every_way_to_change_what_was_signed(closed, statement):
    both = ("SELECT * FROM attestation ORDER BY seq", "SELECT * FROM terms ORDER BY number")
    before = [closed.fetch(query) for query in both]
    with pytest.raises(closed.refused):
        closed.execute(statement)
    assert before == [closed.fetch(query) for query in both] and all(before)


CHANGES = {
    "ATTESTATION": (
        "UPDATE attestation SET data = x'00' WHERE seq = 1",
        "UPDATE attestation SET data = (SELECT data FROM attestation WHERE seq = 2) WHERE seq = 1",
        "UPDATE terms SET data = x'80' WHERE number = 1",
        "UPDATE terms SET data = NULL WHERE number = 1",
        "DELETE FROM terms WHERE number = 3",
    ),
    "ATTESTATION_LEFT": (
        "INSERT INTO attestation SELECT 0, data FROM attestation WHERE seq = 1",
        "INSERT INTO attestation SELECT 5, data FROM attestation WHERE seq = 1",
        "INSERT INTO attestation SELECT 1000, data FROM attestation WHERE seq = 1",
    ),
    "TERMS": ("INSERT INTO terms VALUES (4, x'80')", "INSERT INTO terms VALUES (7, x'81')"),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("code", "statement"), [(code, item) for code, items in CHANGES.items() for item in items])
def test_what_was_changed_around_the_triggers_is_found_by_fsck(closed, code, statement):
    with closed.open(read_only=True) as ledger:
        assert examined(ledger).findings == () and examined(ledger).fitting == 5
    closed.edit(statement)
    with closed.open(read_only=True) as ledger:
        assert code in {item.code for item in ledger.examine().findings}


def test_every_bit_of_what_is_kept_is_held_against_the_leaf(file_run):
    """One bit of each byte of an attestation and of its terms."""
    terms, signed = kept(file_run.ledger)
    whole = pack(*signed[1])

    class Changed:
        def __init__(self, snapshot, data, first):
            self._snapshot, self._data, self._first = snapshot, data, first
            self.rows = snapshot.rows

        def attestations(self):
            return ((seq, self._data if seq == 1 else data) for seq, data in self._snapshot.attestations())

        def terms(self):
            return self._snapshot.terms()

        def terms_at(self, numbers):
            found = dict(zip(numbers, self._snapshot.terms_at(numbers), strict=True))
            return list((found | ({0: self._first} if 0 in found else {})).values())

    with file_run.ledger._file.store.snapshot() as snapshot:
        for data, first in [(data, terms[0]) for data in flipped(whole)] + [(whole, first) for first in flipped(terms[0])]:
            assert check_attestations(Changed(snapshot, data, first)).findings


def flipped(data: bytes):
    """Bytes with one bit changed, for one bit of each."""
    return (data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :] for at in range(len(data)))


def test_what_is_kept_is_what_the_general_encoder_writes():
    for number in (0, 23, 24, 255, 256, 65_535, 65_536, 2**32, 2**63 - 1):
        signature = secrets.token_bytes(64)
        assert pack(number, signature) == cbor.encode([number, signature])
        assert unpack(pack(number, signature)) == (number, signature)
    assert pack(1, bytes(63)) == cbor.encode([1, bytes(63)])


def test_leaves_without_an_attestation_are_a_remark_and_no_finding(tmp_path):
    driver = attested_run(tmp_path / "ledger.db")
    driver.admit(*map(admission, range(10, 18)), attested_admission(1))
    with driver.ledger as ledger:
        found = ledger.examine()
    assert not found.findings and (found.signed.fitting, found.signed.missing) == (1, 8)
    assert any("ADMIT leaves 1, 2, 3, 4, 5 and 3 more" in note for note in found.notes)


# --- pruning -----------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(99)
def test_pruning_takes_the_attestation_with_the_body_and_empties_terms_that_nobody_needs(backend, tmp_path):
    driver = vouched_and_older(backend.place, tmp_path, people=20, attested=True)
    terms, signed = kept(driver.ledger)
    driver.ledger.prune()
    left, still = kept(driver.ledger)
    with driver.ledger.rows() as rows:
        there = [row.seq for row in rows if row.kind == Admit.KIND and row.body]
    assert list(still) == there and 0 < len(still) < len(signed) and still.items() <= signed.items()
    assert left == terms | {2: b""} and examined(driver.ledger).findings == ()
    driver.admit(attested_admission(30, max_occurrences=30), attested_admission(31))
    assert [number for number, _ in list(kept(driver.ledger)[1].values())[-2:]] == [3, 1]
    assert kept(driver.ledger)[0].keys() == {0, 1, 2, 3}
    driver.ledger.close()
    with Ledger.open(backend.place, SIGNER) as ledger:
        assert examined(ledger).findings == ()
    with pytest.raises(backend.refused):
        backend.execute("DELETE FROM attestation WHERE seq = (SELECT max(seq) FROM attestation)")
    with pytest.raises(backend.refused):
        backend.execute("UPDATE terms SET data = x'00' WHERE number = 2")


def test_no_byte_of_a_pruned_attestation_is_left_in_the_file(tmp_path):
    driver = vouched_and_older(tmp_path / "ledger.db", tmp_path, people=20, attested=True)
    terms, signed = kept(driver.ledger)
    driver.ledger.prune()
    gone = [signature for seq, (_, signature) in signed.items() if seq not in kept(driver.ledger)[1]]
    driver.ledger.close()
    data = (tmp_path / "ledger.db").read_bytes()
    assert len(gone) == 16 and not any(signature in data or signature[:24] in data for signature in gone)
    assert terms[2] not in data and terms[0] in data
    assert not os.path.exists(tmp_path / "ledger.db-wal")


def test_a_pruned_ledger_is_exported_with_the_attestations_that_are_left(tmp_path):
    """Terms are numbered by their first use in the export, which is not their order in the ledger any more."""
    driver = vouched_and_older(tmp_path / "ledger.db", tmp_path, people=20, attested=True)
    driver.ledger.prune()
    again = made_again(driver.ledger, driver.ledger.export(tmp_path / "export"))
    assert len(again) == 4 and set(again.values()) <= {
        (found.descriptor, found.sign1) for found in map(attestation, range(20))
    }
    driver.ledger.close()


def test_terms_are_numbered_by_first_use_where_pruning_took_an_earlier_one(tmp_path):
    driver = vouched_and_older(tmp_path / "ledger.db", tmp_path, people=20, attested=True, leaving=[0, 3, 4])
    terms, _ = kept(driver.ledger)
    driver.ledger.prune()
    found, entries = exported(driver.ledger.export(tmp_path / "export"))
    assert found == [terms[1], terms[0]] and [unpack(entry)[0] for entry in entries.values()][:4] == [0, 1, 0, 1]
    assert len(made_again(driver.ledger, tmp_path / "export")) == 17
    driver.ledger.close()


# --- exporting -----------------------------------------------------------------------------------------------------------


def test_every_attestation_is_made_again_from_an_export_byte_for_byte(file_run, tmp_path):
    again = made_again(file_run.ledger, file_run.ledger.export(tmp_path / "export"))
    fourth = attestation(4, "sensitive", clip_micro=250_000, sigma_micro=4_000_000)
    signed = [SIGNED[1], SIGNED[2], SIGNED[3], fourth, SIGNED[5]]
    assert list(again.values()) == [(found.descriptor, found.sign1) for found in signed]


def test_both_databases_export_alike(run, tmp_path):
    run.whole_run()
    made_again(run.ledger, run.ledger.export(tmp_path / "export", registry=put_registry(tmp_path)))
    other = attested_run(tmp_path / "other.db")
    other.whole_run()
    other.ledger.export(tmp_path / "again", registry=put_registry(tmp_path))
    for name in ("attestations/terms/000.p/4", f"attestations/signed/000.p/{other.ledger.size}", "registry"):
        assert (tmp_path / "export" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    other.ledger.close()


def test_bundles_of_many_leaves_have_their_own_attestations(tmp_path):
    """600 admissions over three bundles, and one bundle without any; terms in more than one bundle."""
    driver = attested_run(tmp_path / "ledger.db")
    people = [replaced_salts(n) for n in range(600)]
    driver.admit(*people)
    for _ in range(150):
        driver.ledger.withdraw(secrets.token_bytes(32), "contributor", bytes(32), now=driver.tick())
    export = driver.ledger.export(tmp_path / "export")
    assert len(made_again(driver.ledger, export)) == 600 and len(exported(export)[0]) == 600
    names = sorted(str(path.relative_to(export)) for path in (export / "attestations").rglob("*") if path.is_file())
    assert names == [
        *(f"attestations/signed/{name}" for name in ("000", "001", "002.p/239" if driver.ledger.size == 751 else "002")),
        *(f"attestations/terms/{name}" for name in ("000", "001", "002.p/88")),
    ]
    driver.ledger.close()


def replaced_salts(n: int) -> AdmitSpec:
    """An admission whose terms are its own."""
    return attested_admission(n, salts=n.to_bytes(48, "big"))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_export_has_the_attestations_of_all_or_of_none(tmp_path, place):
    driver = attested_run(tmp_path / "ledger.db")
    specs = [attested_admission(1), attested_admission(2)]
    specs.insert(place, admission(7))
    driver.admit(*specs)
    export = driver.ledger.export(tmp_path / "export")
    assert not (export / "attestations").exists() and (export / "tile").exists()
    driver.ledger.close()


def test_an_export_without_attestations_has_no_byte_of_them(file_run, tmp_path):
    export = file_run.ledger.export(tmp_path / "export", attestations=False)
    shown = b"".join(path.read_bytes() for path in export.rglob("*") if path.is_file())
    assert not any(found.sign1[-64:] in shown or found.sign1[-64:-40] in shown for found in SIGNED.values())
    terms = CommonTerms.of(SignedDescriptor.from_cbor(SIGNED[1].descriptor), attested_admission(1).key_id)
    assert terms.signed.contributor not in shown and not (export / "attestations").exists()


def test_an_attestation_in_a_strange_place_stops_the_export_and_leaves_nothing(closed, tmp_path):
    closed.edit("INSERT INTO attestation SELECT 5, data FROM attestation WHERE seq = 1")
    with closed.open() as ledger, pytest.raises(LedgerCorrupt, match="fsck"):
        ledger.export(tmp_path / "export")
    assert not [path for path in tmp_path.iterdir() if "export" in path.name]


def test_terms_that_are_gone_stop_the_export_and_leave_nothing(closed, tmp_path):
    closed.edit("UPDATE terms SET data = NULL WHERE number = 2")
    with closed.open() as ledger, pytest.raises(LedgerCorrupt, match="terms 2"):
        ledger.export(tmp_path / "export")
    assert not [path for path in tmp_path.iterdir() if "export" in path.name]


NOT_KEPT = [b"", b"\x80", b"\x82\x00\x40", b"\x82\x20\x58\x40" + bytes(64), b"\x82\x00\x58\x40" + bytes(65)]


@pytest.mark.parametrize("item", NOT_KEPT)
def test_what_is_kept_is_read_strictly(item):
    with pytest.raises(LedgerCorrupt, match="ATTESTATION"):
        unpack(item)
    assert unpack(pack(2**40, bytes(64))) == (2**40, bytes(64))


# --- the registry ----------------------------------------------------------------------------------------------------------


def test_the_registry_goes_along_as_its_owner_signed_it_and_its_names_never(file_run, tmp_path):
    (tmp_path / "corpus").mkdir()
    path = put_registry(tmp_path / "corpus")
    export = file_run.ledger.export(tmp_path / "export", registry=path)
    assert (export / "registry").read_bytes() == path.read_bytes()
    names = beside(path).read_bytes()
    shown = b"".join(found.read_bytes() for found in export.rglob("*") if found.is_file())
    assert names and names not in shown and not any(word in shown for word in (b"alice", b"bob", b"a" * 16, b"b" * 16))


def test_a_later_state_of_the_registry_goes_along_without_its_names_beside_it(file_run, tmp_path):
    later = continued(registry_bytes(), OWNER_KEY, lambda log: log.grant("bob", classes=["open"], cap=None, now=START))
    path = put_registry(tmp_path, later)
    beside(path).unlink()
    export = file_run.ledger.export(tmp_path / "export", registry=path)
    assert (export / "registry").read_bytes() == bytes(later) != bytes(registry_bytes())


def foreign(tmp_path, owner) -> bytes:
    return taken_log(tmp_path / "foreign.cbor", owner)


def taken_log(path, owner) -> bytes:
    new_log(path, owner, now=START - 5000)
    return taken(path)


REGISTRIES = {
    "signed by another owner": partial(foreign, owner=OTHER_KEY),
    "of another corpus of this owner": partial(foreign, owner=OWNER_KEY),
    "cut back": lambda tmp_path: bytes(registry_bytes())[: -len(registry_bytes()) // 3],
    "cut back at an entry": lambda tmp_path: first_entry(),
    "changed": lambda tmp_path: bytes(registry_bytes())[:-9] + bytes([registry_bytes()[-9] ^ 1]) + registry_bytes()[-8:],
    "empty": lambda tmp_path: b"",
    "no registry": lambda tmp_path: b"not a registry",
}


def first_entry() -> bytes:
    from attest.registry.entries import join, split

    return join([next(split(bytes(registry_bytes())))])


@pytest.mark.parametrize("what", REGISTRIES)
def test_a_registry_that_is_not_that_of_the_run_is_refused_and_nothing_is_written(file_run, tmp_path, what):
    path = tmp_path / "registry.cbor"
    path.write_bytes(REGISTRIES[what](tmp_path))
    with pytest.raises(ExportRefused) as refused:
        file_run.ledger.export(tmp_path / "export", registry=path)
    assert refused.value.code == "REGISTRY" and not (tmp_path / "export").exists()


def test_a_registry_that_is_not_there_is_refused(file_run, tmp_path):
    with pytest.raises(ExportRefused, match="check the path"):
        file_run.ledger.export(tmp_path / "export", registry=tmp_path / "nowhere.cbor")


def test_an_export_is_renamed_into_place_with_all_that_was_signed(file_run, tmp_path, monkeypatch):
    """Whatever stops it before leaves nothing."""
    def stop(self):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_Attestations, "write_terms", stop)
    with pytest.raises(Exception, match="No space left"), closing(file_run.ledger):
        file_run.ledger.export(tmp_path / "export")
    assert [path.name for path in tmp_path.iterdir() if "export" in path.name] == []


def test_exporting_attestations_takes_no_memory_for_those_that_were_written(tmp_path):
    """Four times the contributions take some bytes per set of terms more, and none per contribution."""
    peaks = []
    for people in (512, 2048):
        directory = tmp_path / str(people)
        directory.mkdir()
        writer = _Attestations(directory, Many(people))
        tracemalloc.start()
        for n in range(people // 256):
            rows = [Row(seq, Admit.KIND, bytes(32), b"body") for seq in range(n * 256, n * 256 + 256)]
            assert writer.add(n, rows)
        writer.write_terms()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(list(directory.rglob("attestations/signed/*"))) == people // 256
    assert peaks[1] < peaks[0] + 50_000, peaks


class Many:
    """A snapshot with nothing but attestations under two sets of terms."""

    def __init__(self, people: int) -> None:
        self._people = people

    def attestations(self):
        return ((seq, pack(seq % 2, bytes(64))) for seq in range(self._people))

    def terms_at(self, numbers):
        return [b"terms %d" % number for number in numbers]


MOST_BYTES = 300
"""Bytes of `ledger.db` that a contribution takes at most, with what its contributor signed."""


def test_a_contribution_takes_at_most_300_bytes_of_the_database(tmp_path):
    """Body, leaf hash and attestation are stored once each, and no index beside them; 16,384 contributions of one form."""
    people, place = 16_384, Place.of(tmp_path / "ledger.db")
    with closing(SqliteStore.create(place)) as store:
        frontier, rows, attested = Frontier(), [], []
        for seq in range(people):
            names = [hashlib.sha256(b"%d %d" % (seq, which)).digest() for which in range(3)]
            leaf = Admit(10**6 + seq, START, names[0], "sensitive", 1, 10**6, 10**6, 100, names[1], bytes(8), names[2], 0, 0, 0)
            rows.append(Row(seq, Admit.KIND, leaf_hash(encode_leaf(leaf)), encode_leaf(leaf)))
            frontier.append(rows[-1].leaf_hash)
            attested.append(Attested(seq, b"terms", secrets.token_bytes(64)))
        store.append(rows, frontier, attested=attested)
    assert not Path(f"{place.target}-wal").exists(), "what is in the log would not be counted"
    assert Path(place.target).stat().st_size <= MOST_BYTES * people
