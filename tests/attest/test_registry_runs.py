"""Registries read as columns: whatever the strict decoder and the rules say one by one, refusals included."""

import pickle
import random
import subprocess
import sys
from dataclasses import astuple, replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import cbor, keys, sign1
from attest.errors import RegistryRefused
from attest.registry import Enrol, Grant, KeyStatement, RegistryLog, RegistryReader, Revoke, open_registry, peek, read_states
from attest.registry.enrolled import Enrolled, Opened, read_enrolments
from attest.registry.entries import SCHEMA, Entry, join, root_of, split, to_array
from attest.registry.names import DigestIndex, Names, PackedNames, beside
from attest.registry.replay import State
from tests.attest.test_keys import SMALL_ORDER
from tests.worlds.registries import put, taken

T = 1_800_000_000
OWNER = Ed25519PrivateKey.from_private_bytes(bytes([9]) * 32)
KEYS = [Ed25519PrivateKey.from_private_bytes(index.to_bytes(32, "big")) for index in range(1, 61)]
PUBLIC = keys.public_bytes(OWNER)


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    """Runs and names are packed from a few on, so that small registries show what large ones do."""
    monkeypatch.setattr("attest.registry.enrolled.LEAST", 4)
    monkeypatch.setattr("attest.registry.enrolled.LEAST_IN_ENTRY", 4)
    monkeypatch.setattr("attest.registry.names.LEAST", 16)


def one_by_one(monkeypatch):
    """Nothing is read as columns any more."""
    monkeypatch.setattr("attest.registry.replay.read_enrolments", lambda payload: None)
    monkeypatch.setattr("attest.registry.names.LEAST", 1 << 40)


def people(start, count, **changes):
    said = {"not_before": T, "not_after": T + 900, "classes": ["open"]} | changes
    return [Enrol(f"person-{n:03}", keys.public_bytes(KEYS[n]), **said) for n in range(start, start + count)]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Runs with and without principals, a few contributors by themselves, and later changes to those of the runs."""
    log = RegistryLog.create(tmp_path_factory.mktemp("written") / "registry.cbor", OWNER, owner="owner", now=T)
    log.append(people(0, 12), now=T, look_alikes=True)
    log.append(people(12, 3), now=T, look_alikes=True)
    mixed = [*people(15, 6, classes=["open", "shut"], cap=7), *people(21, 5)]
    log.append(mixed, now=T + 1, look_alikes=True)
    log.append(people(26, 6, principal="household"), now=T + 1, look_alikes=True)
    log.enrol("person-002", keys.public_bytes(KEYS[50]), classes=["shut"], not_before=T, not_after=T + 9, now=T + 2)
    log.append([Grant("person-016", ["shut"], 3), Revoke("person-001", keys.public_bytes(KEYS[1]), T + 3)], now=T + 3)
    old, new = KEYS[4], KEYS[51]
    rotation = KeyStatement(
        kind="rotate",
        registry_id=log.registry.registry_id,
        key=keys.public_bytes(old),
        time=T + 4,
        new_key=keys.public_bytes(new),
    )
    messages = [
        sign1.sign(rotation.to_cbor(), key, contributor=keys.public_bytes(key).hex(), typ=sign1.TYP_KEY) for key in (old, new)
    ]
    log.rotate(rotation, *messages, not_before=T + 4, not_after=T + 99, old_not_after=T + 50, now=T + 4)
    return taken(log.path)


@pytest.fixture
def log(written, tmp_path):
    """The registry that was written, with nobody beside it."""
    put(tmp_path / "registry.cbor", written)
    return RegistryLog(tmp_path / "registry.cbor", OWNER)


def state_of(registry):
    """Everything that a registry says, in order."""
    holders = {key: (found := registry.holder(key)) and found.name for key in map(keys.public_bytes, KEYS)}
    head = (registry.registry_id, registry.owner, registry.time, registry.roots, registry.names_missing)
    return head, list(registry.by_name.items()), registry.contributors, holders, dict(registry.revocations)


def test_a_registry_read_as_columns_says_what_it_says_read_one_by_one(log, monkeypatch):
    registry = open_registry(log.path, PUBLIC)
    assert isinstance(registry.by_name, Opened) and registry == log.registry
    found = state_of(registry)
    data = log.path.read_bytes()
    nameless = state_of(read_states(data, PUBLIC, registry.root())[1])
    runs = [entry.runs for payload, _ in split(data) if (entry := read_enrolments(payload))]
    assert [[len(run) for run in part] for part in runs] == [[12], [6, 5], [6]]
    one_by_one(monkeypatch)
    again = open_registry(log.path, PUBLIC)
    assert isinstance(again.by_name, dict) and again == registry
    assert state_of(again) == found
    assert state_of(read_states(data, PUBLIC, registry.root())[1]) == nameless


def test_contributors_are_found_by_every_name_and_by_nothing_else(log):
    registry = open_registry(log.path, PUBLIC)
    for name in registry.by_name:
        assert registry.find(name).name == name and name in registry.by_name
        assert registry.find(name.upper()) is registry.find(name + " ") is registry.find(name[:-1]) is None
    assert registry.find("person-026").principal == "household" and registry.find("\ud800") is None
    nameless = read_states(log.path.read_bytes(), PUBLIC, registry.root())[1]
    assert isinstance(nameless.by_name, Enrolled)
    for name in nameless.by_name:
        assert nameless.find(name).name == name and nameless.find(name.upper()) is None
        assert nameless.find(name[:-2] + "zz") is None is nameless.find(name[:-1])


def test_every_state_stays_what_it_was_when_the_log_grows(log):
    data, reader = log.path.read_bytes(), RegistryReader(log.path, PUBLIC)
    before = reader.read()
    said = state_of(before)
    log.append(people(33, 6), now=T + 9, look_alikes=True)
    log.revoke("person-005", at=T + 9, now=T + 9)
    after = reader.read()
    assert state_of(before) == said and after == open_registry(log.path, PUBLIC) != before
    assert before.find("person-034") is None and after.find("person-034") is not None
    middle, last = read_states(log.path.read_bytes(), PUBLIC, before.root(), names=Names.read(beside(log.path)))
    assert middle == before and last == after
    log.path.write_bytes(data[:-1])
    with pytest.raises(RegistryRefused):
        reader.read()
    log.path.write_bytes(data)
    assert reader.read() == before


def test_a_registry_travels_to_other_processes(log):
    registry = open_registry(log.path, PUBLIC)
    again = pickle.loads(pickle.dumps(registry))
    assert again == registry and state_of(again) == state_of(registry)


def test_whoever_looks_contributors_up_needs_no_library_for_arrays(log, tmp_path):
    """As a worker of the gate does, which is sent the registry."""
    (tmp_path / "registry.pickle").write_bytes(pickle.dumps(open_registry(log.path, PUBLIC)))
    program = (
        "import pickle, sys; sys.modules['numpy'] = None\n"
        "registry = pickle.load(open(sys.argv[1], 'rb'))\n"
        "assert registry.find('person-008').keys and registry.find('nobody') is None and len(registry.contributors) == 32\n"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", program, tmp_path / "registry.pickle"], check=True, timeout=120, cwd=root)


def signed_on(data, *payloads):
    """A registry with more entries, whatever they hold, which the owner signed."""
    items = [(payload, sign1.sign(payload, OWNER, contributor="owner", typ=sign1.TYP_REGISTRY)) for payload in payloads]
    return data + join(items)


def entry_on(data, actions, changed=None):
    last, _ = list(split(data))[-1]
    fields = {1: SCHEMA, 2: Entry.from_cbor(last).seq + 1, 3: root_of(last), 4: T + 9, 5: [to_array(a) for a in actions]}
    return cbor.encode(fields | (changed or {}))


def outcome(data):
    """What a reader finds, or why it refuses."""
    try:
        return state_of(read_states(data, PUBLIC, bytes(32))[1])
    except RegistryRefused as error:
        return error.code, error.sentence


def committed(count=9, **changes):
    """Enrolments as they are signed, of contributors whom nobody enrolled yet."""
    rng, said = random.Random(count), {"not_before": T, "not_after": T + 9, "classes": ["open"]} | changes
    return [Enrol(rng.randbytes(32), keys.public_bytes(KEYS[n]), **said) for n in range(41, 41 + count)]


def tricks(data):
    """Entries of which something is wrong, or unusual."""
    good = committed()
    first = next(entry.runs[0] for payload, _ in split(data) if (entry := read_enrolments(payload)))
    for text in SMALL_ORDER:
        yield [*good[:5], replace(good[5], key=bytes.fromhex(text)), *good[6:]]
    for place in (0, 4, 8):
        yield [*good[:place], replace(good[place], key=good[place - 1].key), *good[place + 1 :]]
        yield [*good[:place], replace(good[place], key=first.key(2)), *good[place + 1 :]]
        yield [*good[:place], replace(good[place], key=keys.public_bytes(KEYS[13])), *good[place + 1 :]]
        yield [*good[:place], replace(good[place], name=good[place - 1].name), *good[place + 1 :]]
        yield [*good[:place], replace(good[place], name=bytes.fromhex(first.name(3))), *good[place + 1 :]]
        yield [*good[:place], replace(good[place], cap=place), *good[place + 1 :]]
        yield [*good[:place], Grant(bytes.fromhex(first.name(1)), ["a", "b"], 5), *good[place:]]
        yield [*good[:place], Grant(good[0].name, ["a"], None), *good[place:]]
    for changes in (
        {"not_before": T + 9},
        {"not_before": -1},
        {"not_after": 2**62},
        {"not_after": "soon"},
        {"classes": ["b", "a"]},
        {"classes": ["a", "a"]},
        {"classes": ["A"]},
        {"classes": "open"},
        {"classes": []},
        {"classes": [f"c{n:03}" for n in range(257)]},
        {"cap": -1},
        {"cap": True},
        {"cap": 2**40},
        {"principal": "house"},
        {"principal": b"short"},
        {"principal": bytes(32)},
        {"principal": bytes(33)},
        {},
    ):
        yield committed(**changes)
    yield []
    yield [good[0], *good]
    yield [replace(item, name="alice") for item in good]


def test_entries_that_enrol_many_are_taken_or_refused_as_one_by_one(log, monkeypatch):
    data = log.path.read_bytes()
    entries = [entry_on(data, actions) for actions in tricks(data)]
    wrong = ((2, 99), (3, bytes(32)), (4, T), (4, -1), (1, "x"))
    entries += [entry_on(data, committed(), {key: value}) for key, value in wrong]
    entries += [entry_on(data, committed()) + b"\x00", entry_on(data, committed())[:-1]]
    found = [outcome(signed_on(data, payload)) for payload in entries]
    read = [read_enrolments(payload) is not None for payload in entries]
    one_by_one(monkeypatch)
    again = [outcome(signed_on(data, payload)) for payload in entries]
    assert found == again
    codes = {one[0] for one in found if type(one[0]) is str}
    assert codes >= {"KEY_WEAK", "KEY_IN_USE", "TYPE", "RANGE", "SCHEMA", "SEQ", "PREVIOUS", "CLOCK", "CBOR"}
    taken = sum(type(one[0]) is not str for one in found)
    assert taken >= 12 and sum(read) >= 10


@pytest.mark.slow
def test_mutants_of_entries_that_enrol_many_are_judged_as_one_by_one(log, monkeypatch):
    rng, data = random.Random(1), log.path.read_bytes()
    good = entry_on(data, committed(principal=bytes(32), cap=300))
    mutants = []
    for _ in range(700):
        at, end = rng.randrange(len(good)), rng.randrange(len(good))
        flipped = bytearray(good)
        flipped[at] ^= 1 << rng.randrange(8)
        mutants += [bytes(flipped), good[:at] + rng.randbytes(1) + good[at:]]
        mutants += [good[:at] + good[at + 1 :], good[:at] + good[end:]]
    start, message = State(), sign1.sign(good, OWNER, contributor="owner", typ=sign1.TYP_REGISTRY)
    for item in split(data):
        start.accept(*item, PUBLIC)

    def accepted(mutant):
        state = start.copy()
        try:
            state.accept(mutant, message, None)  # Who signed it is not looked at.
        except RegistryRefused as error:
            return error.code, error.sentence
        return list(state.by_name.items()), state.roots, [state.by_name.holder(keys.public_bytes(key)) for key in KEYS]

    found = [accepted(mutant) for mutant in mutants]
    one_by_one(monkeypatch)
    for mutant, said in zip(mutants, found, strict=True):
        assert accepted(mutant) == said
    assert sum(type(said[0]) is not str for said in found) > 200


def test_the_owner_must_have_signed_the_entry(log):
    data = log.path.read_bytes()
    payload = entry_on(data, committed())
    forged = sign1.sign(payload, KEYS[0], contributor="owner", typ=sign1.TYP_REGISTRY)
    stranger = sign1.sign(payload, OWNER, contributor="somebody", typ=sign1.TYP_REGISTRY)
    assert [outcome(data + join([(payload, message)]))[0] for message in (forged, stranger)] == ["SIG_BAD", "HEADER"]
    assert type(outcome(signed_on(data, payload))[0]) is tuple


def test_peek_shows_every_action(log, monkeypatch):
    shown = peek(log.path)
    one_by_one(monkeypatch)
    assert peek(log.path) == shown and len(shown.entries[1].actions) == 12


# --- the names beside a registry -----------------------------------------------------------------------------------------


def read_names(path):
    """The names of a file one by one, or why it is refused."""
    try:
        names = Names.read(path)
    except RegistryRefused as error:
        return error.code, error.sentence
    return names.to_cbor(), [names.find(f"person-{n:03}") for n in range(0, 60, 7)]


def test_files_of_names_are_read_or_refused_as_one_by_one(log, monkeypatch):
    rng, path = random.Random(2), beside(log.path)
    good = path.read_bytes()
    assert PackedNames.read(good) is not None
    long = cbor.encode(["p" * 40, bytes(16), "q" * 64])
    files = [good, long, good[:0], long + good, good + cbor.encode(["z", bytes(16), None]), good + b"\x00", good + good]
    files += [good.replace(b"\x50", b"\x51", 1), good.replace(b"\xf6", b"\xf7", 1), good.replace(b"person", b"Person", 1)]
    for _ in range(120):
        at = rng.randrange(len(good))
        flipped = bytearray(good)
        flipped[at] ^= 1 << rng.randrange(8)
        files += [bytes(flipped), good[:at] + good[at + 1 :], good[:at] + rng.randbytes(1) + good[at:]]

    def all_read():
        found = []
        for data in files:
            path.write_bytes(data)
            found.append(read_names(path))
        return found

    found = all_read()
    monkeypatch.setattr("attest.registry.names.LEAST", 1 << 40)
    assert all_read() == found
    assert 40 < sum(type(said[0]) is str for said in found) < len(files) - 40


def test_names_that_do_not_open_the_registry_are_found_missing_as_one_by_one(log, monkeypatch):
    path = beside(log.path)
    good = path.read_bytes()
    items = [cbor.encode(astuple(Names.read(path).packed.entry(number))) for number in range(32)]
    salted = cbor.encode(["person-003", bytes(16), None])
    other_house = cbor.encode([*cbor.decode(items[28])[:2], "elsewhere"])
    files = [
        b"".join(items[:3] + items[4:]),
        b"".join([*items[:3], salted, *items[4:]]),
        b"".join([*items[:28], other_house, *items[29:]]),
        b"".join(items[:-1]),
        b"".join([cbor.encode(["a-stranger", bytes(16), None]), *items]),
    ]

    def all_read():
        found = []
        for data in files:
            path.write_bytes(data)
            registry = open_registry(log.path, PUBLIC)
            found.append((registry.names_missing, sorted(registry.by_name), registry.by_name.get("person-028")))
        return found

    found = all_read()
    one_by_one(monkeypatch)
    assert all_read() == found and good == b"".join(items)
    assert [bool(missing) for missing, _, _ in found] == [True, True, True, True, False]


def test_names_are_added_to_a_packed_file(log):
    grown = RegistryLog(log.path, OWNER)
    grown.enrol("zoe", keys.public_bytes(KEYS[40]), classes=["open"], not_before=T, not_after=T + 9, now=T + 9)
    grown.grant("person-007", classes=["shut"], cap=1, now=T + 9)
    again = open_registry(log.path, PUBLIC)
    assert again == grown.registry and again.find("zoe") is not None and again.find("person-007").cap == 1
    assert isinstance(grown.registry.by_name, Opened)
    with pytest.raises(RegistryRefused, match="person-007"):
        grown.enrol("yan", keys.public_bytes(KEYS[7]), classes=["open"], not_before=T, not_after=T + 9, now=T + 9)


# --- the index ---------------------------------------------------------------------------------------------------------------


def test_an_index_takes_no_row_twice_and_finds_every_row():
    rng = random.Random(3)
    rows = [rng.randbytes(32) for _ in range(900)]
    index, start = DigestIndex(), 0
    for size in (1, 2, 500, 3, 3, 100, 291):
        part = rows[start : start + size]
        assert index.extended(b"".join([*part, part[0]]), start) is None
        assert start == 0 or index.extended(b"".join([*part, rows[rng.randrange(start)]]), start) is None
        index = index.extended(b"".join(part), start)
        start += size
    assert [index.row(row) for row in rows] == list(range(900)) == index.rows(b"".join(rows), 7000).tolist()
    strangers = [rng.randbytes(32) for _ in range(50)]
    assert {index.row(row) for row in strangers} == {None}
    assert set(index.rows(b"".join(strangers), 7000).tolist()) == {7000}
    assert DigestIndex().row(rows[0]) is None and index.row(b"") is None


def twin(row):
    """Another row of the same hash: the factors are odd, so that two flipped highest bits cancel each other."""
    other = bytearray(row)
    other[7] ^= 0x80
    other[15] ^= 0x80
    return bytes(other)


def test_rows_of_one_hash_are_told_apart(log, monkeypatch):
    registry, data = open_registry(log.path, PUBLIC), log.path.read_bytes()
    key = registry.find("person-008").keys[0].raw
    assert DigestIndex().extended(key, 3).row(twin(key)) == 3
    assert registry.holder(key).name == "person-008" and registry.holder(twin(key)) is None
    packed = Names.read(beside(log.path)).packed
    commitment = Names.read(beside(log.path)).find("person-008").commitment()
    number = packed.find_commitment(commitment)
    assert packed.at(number) == "person-008" and packed.find_commitment(twin(commitment)) is None
    assert packed.numbers(commitment + twin(commitment), 7000).tolist() == [number, 7000]
    nameless = read_states(data, PUBLIC, bytes(32))[1]
    assert nameless.find(commitment.hex()) is not None and nameless.find(twin(commitment).hex()) is None
    good = committed()
    twins = {"key": twin(key)}, {"name": twin(good[2].name)}, {"key": twin(good[2].key)}
    for changed in (replace(good[3], **said) for said in twins):
        longer = signed_on(data, entry_on(data, [*good[:3], changed, *good[4:]]))
        found = outcome(longer)
        assert type(found[0]) is tuple, "both are there"
        with monkeypatch.context() as patch:
            one_by_one(patch)
            assert outcome(longer) == found
