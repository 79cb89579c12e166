"""The contributor registry: what its log may say, and what a reader refuses."""

import hashlib
from dataclasses import replace

import pytest

from attest import cbor, keys, sign1
from attest.errors import AttestError, RegistryRefused
from attest.keys import ed25519
from attest.registry import (
    Contributor,
    Create,
    Enrol,
    Entry,
    Grant,
    KeyRecord,
    KeyStatement,
    Prove,
    RegistryLog,
    RegistryReader,
    Revoke,
    RevokeOwn,
    Rotate,
    open_registry,
    peek,
)
from attest.registry.entries import MAX_ENTRY, NO_ROOT, join, root_of, split, to_array
from attest.registry.names import Named
from attest.registry.replay import look_alikes

T = 1_800_000_000
YEAR = 365 * 86400


def fresh():
    return keys.public_bytes(keys.generate())


class Town:
    """A registry file, its owner, and one key a contributor: alice and bob are enrolled."""

    def __init__(self, folder):
        self.path = folder / "registry.cbor"
        self.owner = keys.generate()
        self.public = keys.public_bytes(self.owner)
        self.key = {name: keys.generate() for name in ("alice", "bob", "alice-2")}
        self.raw = {name: keys.public_bytes(key) for name, key in self.key.items()}
        self.strangers = {}
        self.log = RegistryLog.create(self.path, self.owner, owner="owner", now=T)
        valid = {"not_before": T, "not_after": T + YEAR, "now": T}
        self.log.enrol("alice", self.raw["alice"], classes=["sensitive", "open"], cap=7, **valid)
        self.log.enrol("bob", self.raw["bob"], classes=["open"], principal="household-3", **valid)

    @property
    def registry(self):
        return self.log.registry

    def items(self):
        return list(split(self.path.read_bytes()))

    def opened(self, data=None, key=None):
        if data is not None:
            self.path.write_bytes(data)
        return open_registry(self.path, key or self.public)

    def refused(self, data=None, key=None):
        with pytest.raises(RegistryRefused) as caught:
            self.opened(data, key)
        assert caught.value.sentence
        return caught.value.code

    def wire(self, action):
        """An action with commitments in place of names, also of such as the owner's own tool would refuse."""
        if isinstance(action, Enrol | Grant | Revoke) and type(action.name) is str:
            known = self.log.names.find(action.name) or self.strangers.setdefault(action.name, Named(action.name))
            action = replace(action, name=known.commitment())
            if isinstance(action, Enrol) and type(action.principal) is str:
                action = replace(action, principal=known.committed_principal(action.principal))
        return action

    def entry(self, *actions, key=None, issuer="owner", typ=sign1.TYP_REGISTRY, change=None, **fields):
        """One more entry, properly signed over whatever it says."""
        last = Entry.from_cbor(self.items()[-1][0])
        root = root_of(self.items()[-1][0])
        arrays = [action if isinstance(action, list) else to_array(self.wire(action)) for action in actions]
        payload = {1: "dptrain.registry-entry/2", 2: last.seq + 1, 3: root, 4: T + 10, 5: arrays}
        payload |= {{"seq": 2, "previous": 3, "time": 4}[name]: value for name, value in fields.items()}
        encoded = cbor.encode(payload | (change or {}))
        return encoded, sign1.sign(encoded, key or self.owner, contributor=issuer, typ=typ)

    def after(self, *actions, **options):
        """The registry's code of refusal after such an entry, or None."""
        data = join([*self.items(), self.entry(*actions, **options)])
        before = self.path.read_bytes()
        try:
            self.opened(data)
        except RegistryRefused as error:
            assert error.sentence.startswith("entry 3 of the registry is refused: "), error.sentence
            return error.code
        finally:
            self.path.write_bytes(before)
        return None

    def rotation(self, old="alice", new="alice-2", **changes):
        fields = {"kind": "rotate", "registry_id": self.registry.registry_id, "time": T + 5}
        return KeyStatement(**fields | {"key": self.raw[old], "new_key": self.raw[new]} | changes)

    def revocation(self, key="alice", **changes):
        raw = self.raw[key] if key else None
        fields = {"kind": "revoke", "registry_id": self.registry.registry_id, "time": T + 5}
        return KeyStatement(**fields | {"key": raw, "revoked_at": T + 7} | changes)

    def possession(self, key="alice", **changes):
        fields = {"kind": "prove", "registry_id": self.registry.registry_id, "time": T + 5}
        return KeyStatement(**fields | {"key": self.raw[key]} | changes)

    def rotate(self, statement, by_old="alice", by_new="alice-2", not_before=T, not_after=T + YEAR, old_not_after=T + 9):
        by_old, by_new = (m if isinstance(m, bytes) else statement.sign(self.key[m]) for m in (by_old, by_new))
        return Rotate(statement.to_cbor(), by_old, by_new, not_before, not_after, old_not_after)


@pytest.fixture
def town(tmp_path):
    return Town(tmp_path)


# --- what the log leads to -------------------------------------------------------------------------------------------


def test_a_file_leads_to_the_state_that_its_writer_saw(town):
    registry = town.opened()
    assert registry == town.registry and hash(registry) == hash(town.registry)
    assert [item.name for item in registry.contributors] == ["alice", "bob"]
    assert registry.find("alice").classes == ("open", "sensitive") and registry.find("alice").cap == 7
    assert registry.find("bob").principal == "household-3" and registry.find("carol") is None
    assert (registry.owner, registry.owner_key, registry.time) == ("owner", town.public, T)
    assert len(registry.registry_id) == 16 and len(registry.roots) == 3


def test_the_root_is_that_of_the_last_payload_and_names_all_before_it(town):
    payloads = [payload for payload, _ in town.items()]
    prefix = b"dptrain.registry.root/1\x00"
    assert town.registry.roots == tuple(hashlib.sha256(prefix + payload).digest() for payload in payloads)
    assert [Entry.from_cbor(payload).previous for payload in payloads] == [NO_ROOT, *town.registry.roots[:-1]]
    assert town.registry.root() == town.registry.roots[-1]


def test_a_registry_extends_its_own_earlier_states_and_no_later_or_other(town, tmp_path):
    before = town.registry
    after = town.log.grant("bob", classes=["sensitive"], cap=None, now=T + 1)
    assert after.extends(before.root()) and after.extends(after.root()) and not before.extends(after.root())
    assert not after.extends(NO_ROOT)
    (tmp_path / "other").mkdir()
    other = Town(tmp_path / "other").registry
    assert not after.extends(other.root()) and not other.extends(before.roots[0])


def test_an_earlier_state_can_be_opened_by_its_root(town):
    before = town.registry
    town.log.revoke("alice", at=T, now=T + 1)
    assert open_registry(town.path, town.public, at=before.root()) == before
    assert open_registry(town.path, town.public, at=town.registry.root()) == town.registry
    with pytest.raises(RegistryRefused, match="REGISTRY_ROOT"):
        open_registry(town.path, town.public, at=b"\x01" * 32)


def test_enrolling_again_adds_a_key_and_classes_and_leaves_what_is_not_said(town):
    second = fresh()
    town.log.enrol("alice", second, classes=["secret"], not_before=T, not_after=T + 5, now=T)
    alice = town.opened().find("alice")
    assert [record.raw for record in alice.keys] == [town.raw["alice"], second]
    assert (alice.classes, alice.cap, alice.principal) == (("open", "secret", "sensitive"), 7, None)
    town.log.enrol("alice", fresh(), classes=[], not_before=T, not_after=T + 5, cap=0, principal="anna", now=T)
    assert (town.registry.find("alice").cap, town.registry.find("alice").principal) == (0, "anna")


def test_a_grant_is_exact(town):
    town.log.grant("alice", classes=["secret"], cap=None, now=T)
    assert town.opened().find("alice") == replace(town.registry.find("alice"), classes=("secret",), cap=None)
    town.log.grant("alice", classes=[], cap=3, now=T)
    assert (town.opened().find("alice").classes, town.opened().find("alice").cap) == ((), 3)


def test_keys_are_valid_inside_a_half_open_window_until_revoked(town):
    end = T + YEAR
    valid = [bool(town.registry.keys_valid_at("bob", now)) for now in (T - 1, T, end - 1, end)]
    assert valid == [False, True, True, False]
    assert town.registry.keys_valid_at("carol", T) == ()
    revoked = town.log.revoke("alice", town.raw["alice"], at=T + 40, now=T)
    assert [bool(revoked.keys_valid_at("alice", T + now)) for now in (39, 40, 41)] == [True, False, False]


def test_the_earliest_revocation_stands(town):
    for at, stands in ((60, 60), (90, 60), (30, 30), (0, 0), (30, 0)):
        town.log.revoke("alice", at=T + at, now=T)
        assert town.opened().find("alice").keys[0].revoked_at == T + stands
    town.log.revoke("bob", at=0, now=T)
    town.log.revoke("bob", at=50, now=T)
    assert town.opened().find("bob").keys[0].revoked_at == 0


def test_revoking_one_key_by_its_key_id_leaves_the_others(town):
    town.log.enrol("alice", town.raw["alice-2"], classes=[], not_before=T, not_after=T + 50, now=T)
    first, second = town.registry.find("alice").keys
    town.log.revoke("alice", second.key_id, at=T + 5, now=T)
    assert town.opened().keys_valid_at("alice", T + 10) == (first,)
    for unknown in (b"nokeyid!", fresh(), b""):
        with pytest.raises(RegistryRefused, match="KEY_UNKNOWN"):
            town.log.revoke("alice", unknown, at=T, now=T)


def test_a_rotation_ends_the_old_key_and_begins_the_new_one(town):
    statement = town.rotation()
    registry = town.log.rotate(
        statement, statement.sign(town.key["alice"]), statement.sign(town.key["alice-2"]),
        not_before=T, not_after=T + 100, old_not_after=T + 9, now=T + 6,
    )  # fmt: skip
    assert registry == town.opened()
    old, new = registry.find("alice").keys
    assert (old.raw, old.not_after, old.revoked_at) == (town.raw["alice"], T + 9, None)
    assert (new.raw, new.not_before, new.not_after) == (town.raw["alice-2"], T, T + 100)
    assert registry.find("alice").classes == ("open", "sensitive") and registry.find("alice").cap == 7


def test_a_key_is_the_owners_word_until_the_key_itself_has_signed(town):
    """A proof, or either side of a rotation; nothing else, and nobody else's signature."""

    def proved():
        return {record.raw: record.proved for item in town.opened().contributors for record in item.keys}

    assert not any(proved().values())
    statement = town.possession()
    town.log.prove(statement, statement.sign(town.key["alice"]), now=T + 6)
    assert proved() == {town.raw["alice"]: True, town.raw["bob"]: False} and town.opened() == town.registry
    assert peek(town.path).contributors[0].keys[0].proved
    town.log.append([Revoke("alice", town.raw["alice"], T + 50), Grant("alice", ["open"], None)], now=T + 6)
    assert proved()[town.raw["alice"]], "it stays what it was"
    carol = keys.generate()
    town.key["carol"], town.raw["carol"] = carol, keys.public_bytes(carol)
    statement = town.possession("carol")
    enrol = Enrol("carol", town.raw["carol"], T, T + YEAR, ["open"])
    town.log.append([enrol, Prove(statement.to_cbor(), statement.sign(carol))], now=T + 6)
    assert proved()[town.raw["carol"]], "in the entry that enrols it"


def test_a_proof_says_no_name_and_is_that_of_the_contributor_whose_key_it_is(town):
    statement = town.possession("bob")
    message = statement.sign(town.key["bob"])
    town.log.prove(statement, message, now=T + 6)
    assert [record.proved for record in town.opened().find("bob").keys] == [True]
    assert b"bob" not in statement.to_cbor() + message and b"bob" not in town.path.read_bytes()


def test_both_keys_of_a_rotation_are_proved_by_it(town):
    town.log.append([town.rotate(town.rotation())], now=T + 6)
    assert [record.proved for record in town.opened().find("alice").keys] == [True, True]
    assert [record.proved for record in town.opened().find("bob").keys] == [False]


def test_a_proof_by_another_key_or_of_a_key_that_is_not_enrolled_is_refused(town):
    """An owner who enrols a key that nobody has shown it has no statement of it."""
    proof = town.possession()
    assert town.after(Prove(proof.to_cbor(), proof.sign(town.key["alice"]))) is None
    assert town.after(Prove(proof.to_cbor(), proof.sign(town.key["bob"]))) == "SIG_BAD"
    assert town.after(Prove(proof.to_cbor(), proof.sign(town.owner))) == "SIG_BAD"
    for changes, signer, code in (
        ({"key": "bob"}, "alice", "SIG_BAD"),
        ({"key": "alice-2"}, "alice-2", "KEY_UNKNOWN"),
        ({"registry_id": bytes(16)}, "alice", "AUDIENCE"),
        ({"time": T - 31 * 86400}, "alice", "STALE"),
    ):
        other = town.possession(**changes)
        assert town.after(Prove(other.to_cbor(), other.sign(town.key[signer]))) == code, changes
    twice = Prove(proof.to_cbor(), proof.sign(town.key["alice"]))
    assert town.after(twice, twice) == "REPLAYED"
    for statement in (town.rotation(), town.revocation()):
        assert town.after(Prove(statement.to_cbor(), statement.sign(town.key["alice"]))) == "SCHEMA"
    for fields in ({"new_key": fresh()}, {"revoked_at": T}):
        with pytest.raises(RegistryRefused, match="SCHEMA"):
            town.possession(**fields)
    with pytest.raises(RegistryRefused, match="TYPE"):
        town.possession(**{"key": "alice"} | {"registry_id": None})


def test_a_new_name_that_looks_like_one_that_is_there_is_refused_naming_both(town):
    valid = {"classes": ["open"], "not_before": T, "not_after": T + YEAR, "now": T}
    for name, other in (("a1ice", "alice"), ("alice", None), ("b0b", "bob"), ("0vvner", "owner"), ("carol", None)):
        if other is None:
            town.log.enrol(name, fresh(), **valid)
            continue
        before = town.path.read_bytes()
        with pytest.raises(RegistryRefused) as refused:
            town.log.enrol(name, fresh(), **valid)
        assert refused.value.code == "LOOK_ALIKE"
        assert repr(name) in refused.value.sentence and repr(other) in refused.value.sentence
        assert town.path.read_bytes() == before
    town.log.enrol("b0b", fresh(), **valid, look_alikes=True)
    town.log.enrol("b0b", fresh(), **valid)
    town.log.enrol("bob", fresh(), **valid)
    assert look_alikes(town.opened().by_name) == (("b0b", "bob"),)


def test_look_alikes_within_one_batch_and_among_principals_are_refused(town):
    def enrol(name, principal=None):
        return Enrol(name, fresh(), T, T + YEAR, ["open"], None, principal)

    for batch in (
        [enrol("modem"), enrol("rnodern")],
        [enrol("x", "household-3"), enrol("y", "househo1d_3")],
        [enrol("x", "household.3")],
    ):
        with pytest.raises(RegistryRefused, match="LOOK_ALIKE"):
            town.log.append(batch, now=T)
    town.log.append([enrol("x", "household-3"), enrol("y", "household-3"), enrol("household_3")], now=T)
    assert town.opened().find("y").principal == "household-3"


def test_a_contributor_revokes_a_key_of_its_own_with_any_valid_key(town):
    town.log.enrol("alice", town.raw["alice-2"], classes=[], not_before=T, not_after=T + YEAR, now=T)
    statement = town.revocation()
    registry = town.log.revoke_own(statement, statement.sign(town.key["alice-2"]), now=T + 6)
    assert [record.revoked_at for record in registry.find("alice").keys] == [T + 7, None]
    statement = town.revocation(key=None)
    registry = town.log.revoke_own(statement, statement.sign(town.key["alice-2"]), now=T + 8)
    assert [record.revoked_at for record in town.opened().find("alice").keys] == [T + 7, T + 7]


def test_a_reader_goes_on_where_it_was_only_if_all_before_is_as_it_was(town):
    """What was verified once is not verified again, and must be the same bytes: not just as many."""
    reader = RegistryReader(town.path, town.public)
    before = reader.read()
    grown = join([*town.items(), town.entry(Grant("bob", ["sensitive"], None))])
    for place in (40, len(join(town.items()[:1])) - 5, len(join(town.items())) - 5):
        changed = bytearray(grown)
        changed[place] ^= 1
        town.path.write_bytes(changed)
        with pytest.raises(RegistryRefused):
            reader.read()
    town.path.write_bytes(grown)
    after = reader.read()
    assert after == town.opened() and after.extends(before.root()) and after.find("bob").classes == ("sensitive",)
    assert before.find("bob").classes == ("open",), "an earlier state stays what it was"
    town.path.write_bytes(join(town.items()[:2]))
    assert reader.read() == town.opened() and not reader.read().extends(before.root())


# --- tampering with the file -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_byte_of_the_file_is_held_by_a_signature(town):
    """Flip each byte of a log with enrolments, a grant, a rotation and revocations, one at a time and in two ways."""
    town.log.append([Grant("bob", ["open"], 5), Revoke("bob", None, T + 50)], now=T + 5)
    town.log.append([town.rotate(town.rotation())], now=T + 6)
    statement = town.revocation(revoked_at=T + 60)
    town.log.append([RevokeOwn(statement.to_cbor(), statement.sign(town.key["alice-2"]))], now=T + 7)
    data = town.path.read_bytes()
    assert town.opened() == town.registry
    for position in range(len(data)):
        for mask in (1 << position % 8, 0xFF):
            changed = bytearray(data)
            changed[position] ^= mask
            town.refused(bytes(changed))


def test_a_file_cut_anywhere_but_between_entries_is_refused(town):
    data = town.path.read_bytes()
    ends = {len(join(town.items()[:count])): count for count in range(1, 4)}
    roots = town.registry.roots
    for length in range(len(data)):
        if length in ends:
            assert town.opened(data[:length]).root() == roots[ends[length] - 1]
        else:
            town.refused(data[:length])
    for short in (1, 100, 400):
        assert town.refused(data[:-short]) == "CBOR"


def test_a_truncated_tail_no_longer_extends_the_pinned_root(town):
    pinned = town.registry.root()
    shorter = town.opened(join(town.items()[:-1]))
    assert not shorter.extends(pinned)
    with pytest.raises(RegistryRefused, match="REGISTRY_ROOT"):
        open_registry(town.path, town.public, at=pinned)


def test_reordered_dropped_repeated_and_inserted_entries_are_refused(town):
    first, second, third = town.items()
    for items in ([first, third, second], [first, third], [second, third], [first, second, second], [third]):
        assert town.refused(join(items)) == "SEQ"
    assert town.refused(join([first, first, second, third])) == "SEQ"


def test_an_entry_renumbered_to_hide_a_gap_is_refused(town):
    first, second, third = town.items()
    entry = Entry.from_cbor(third[0])
    payload = replace(entry, seq=1).to_cbor()
    message = sign1.sign(payload, town.owner, contributor="owner", typ=sign1.TYP_REGISTRY)
    assert town.refused(join([first, (payload, message)])) == "PREVIOUS"
    assert town.refused(join([first, second, (third[0], message)])) == "HEADER"


def test_two_logs_of_one_owner_cannot_be_spliced(town, tmp_path):
    path = tmp_path / "second.cbor"
    other = RegistryLog.create(path, town.owner, owner="owner", now=T)
    other.enrol("eve", fresh(), classes=["sensitive"], not_before=T, not_after=T + 9, now=T)
    eve = list(split(path.read_bytes()))[1]
    assert town.refused(join([*town.items()[:1], eve])) == "PREVIOUS"


def test_signatures_by_others_for_another_purpose_or_under_another_name_are_refused(town):
    grant = Grant("bob", ["sensitive"], None)
    assert town.after(grant) is None
    assert town.after(grant, key=town.key["bob"]) == "SIG_BAD"
    assert town.after(grant, typ=sign1.TYP_POLICY) == "HEADER"
    assert town.after(grant, issuer="bob") == "HEADER"
    assert town.refused(key=town.raw["bob"]) == "SIG_BAD"
    payload, _ = town.entry(grant)
    for message in (b"", b"\xd2", town.items()[-1][1]):
        town.refused(join([*town.items(), (payload, message)]))
        town.path.write_bytes(join(town.items()[:3]))


def test_frames_of_other_shape_are_refused(town):
    data = town.path.read_bytes()
    payload, message = town.items()[-1]
    start = len(join(town.items()[:-1]))
    frames = (
        b"\x83" + data[start + 1 :],
        b"\x82" + cbor.encode(payload) + cbor.encode("text"),
        b"\x82" + b"\x59" + len(payload).to_bytes(2, "big") + payload + cbor.encode(message),
        b"\x82" + b"\x5a" + len(payload).to_bytes(4, "big") + payload + cbor.encode(message),
        b"\x82" + b"\x5b" + len(payload).to_bytes(8, "big") + payload + cbor.encode(message),
        b"\x82\x5f" + cbor.encode(payload) + b"\xff" + cbor.encode(message),
        b"\x82\x5b" + b"\xff" * 8,
        b"\x82\x5a\xff\xff\xff\xff",
        b"\x82\x80\x80",
        cbor.encode([payload, message, b""]),
        cbor.encode([payload, message]) + b"\x00",
    )
    expected = cbor.encode([payload, message])
    for frame in frames:
        if frame != expected:
            town.refused(data[:start] + frame)
    assert town.opened(data) == town.registry


def test_files_that_are_none_are_refused(town, tmp_path):
    assert town.refused(b"") == "SCHEMA"
    with pytest.raises(RegistryRefused) as caught:
        open_registry(tmp_path / "absent", town.public)
    assert caught.value.code == "FILE"


# --- entries that are signed, and wrong all the same -----------------------------------------------------------------


def test_numbers_roots_and_times_of_entries(town):
    grant = Grant("bob", ["sensitive"], None)
    assert [town.after(grant, seq=seq) for seq in (2, 3, 4)] == ["SEQ", None, "SEQ"]
    assert town.after(grant, previous=NO_ROOT) == "PREVIOUS"
    assert town.after(grant, previous=town.registry.roots[0]) == "PREVIOUS"
    assert [town.after(grant, time=time) for time in (T - 1, T, T + 1)] == ["CLOCK", None, None]
    assert town.after(grant, time=True) == "TYPE" and town.after(grant, seq=3.0) == "TYPE"


def test_entries_of_other_form(town):
    grant = Grant("bob", ["sensitive"], None)
    assert town.after(grant, change={1: "dptrain.registry-entry/1"}) == "SCHEMA"
    assert town.after(grant, change={6: 0}) == "SCHEMA"
    assert town.after() == "SCHEMA"
    assert town.after(grant, change={5: {}}) == "TYPE"
    for action in ([], [6], [-1, "bob"], [True, "bob", ["open"], None], ["grant"], {}, "grant", None):
        assert town.after(grant, change={5: [action]}) == "SCHEMA"


@pytest.mark.parametrize("kind", [Create, Enrol, Grant, Rotate, Revoke, RevokeOwn, Prove])
def test_actions_have_neither_more_nor_fewer_fields(town, kind):
    right = {
        Enrol: [1, bytes(32), fresh(), T, T + 1, ["open"], None, None],
        Grant: [2, town.log.names.find("bob").commitment(), ["sensitive"], None],
        Revoke: [4, town.log.names.find("bob").commitment(), None, T],
        Rotate: to_array(town.rotate(town.rotation())),
        RevokeOwn: to_array(RevokeOwn(town.revocation().to_cbor(), town.revocation().sign(town.key["alice"]))),
        Prove: to_array(Prove(town.possession().to_cbor(), town.possession().sign(town.key["alice"]))),
        Create: [0, bytes(16), "owner"],
    }[kind]
    assert town.after(right) == ("SCHEMA" if kind is Create else None)
    assert town.after([*right, None]) == "SCHEMA"
    assert town.after(right[:-1]) == "SCHEMA"


def test_a_registry_begins_with_create_and_has_no_other(town, tmp_path):
    def only(*actions, seq=0):
        payload = Entry(seq, NO_ROOT, T, actions).to_cbor()
        return join([(payload, sign1.sign(payload, town.owner, contributor="owner", typ=sign1.TYP_REGISTRY))])

    create, enrol = Create(bytes(16), "owner"), town.wire(Enrol("carol", fresh(), T, T + 1, ["open"]))
    assert [item.classes for item in town.opened(only(create, enrol)).contributors] == [("open",)]
    for actions in ((enrol,), (enrol, create), (create, create), (create, enrol, create)):
        assert town.refused(only(*actions)) == "SCHEMA"
    assert town.refused(only(Create(bytes(15), "owner"))) == "RANGE"
    assert town.refused(only(Create(None, "owner"))) == "TYPE"
    assert town.refused(only(Create(bytes(16), "Owner"))) == "RANGE"
    assert town.refused(only(Create(bytes(16), "other"))) == "HEADER"
    assert town.refused(only(create, seq=1)) == "SEQ"


def test_an_entry_that_is_too_large_is_refused(town):
    with pytest.raises(RegistryRefused, match="SIZE"):
        Entry(3, NO_ROOT, T, (Revoke(bytes(32), bytes(MAX_ENTRY), T),)).to_cbor()
    many = ["x" * 60 + f"{n:04}" for n in range(20_000)]
    assert town.refused(join([*town.items(), town.entry(Grant("bob", many, None))])) == "SIZE"


def test_enrolments_that_are_refused(town):
    def enrol(**changes):
        fields = {"name": "eve", "key": fresh(), "not_before": T, "not_after": T + 1, "classes": ["open"]}
        return town.after(Enrol(**fields | changes))

    assert enrol() is None
    assert enrol(name=bytes(31)) == "RANGE" and enrol(name=7) == "TYPE" and enrol(name=None) == "TYPE"
    assert enrol(classes=["Open"]) == "RANGE" and enrol(classes="open") == "TYPE" and enrol(classes=[["open"]]) == "TYPE"
    assert enrol(classes=["open", "open"]) == "RANGE" and enrol(classes=["open", "closed"]) == "RANGE"
    assert enrol(classes=[f"c{n:03}" for n in range(257)]) == "TYPE"
    assert enrol(not_after=T) == "RANGE" and enrol(not_after=float(T + 1)) == "TYPE" and enrol(not_before=True) == "TYPE"
    assert enrol(not_before=-1) == "RANGE" and enrol(not_after=2**60) == "RANGE"
    assert enrol(cap=-1) == "RANGE" and enrol(cap=True) == "TYPE" and enrol(cap=2**32) == "RANGE"
    assert enrol(principal=bytes(33)) == "RANGE" and enrol(principal=3) == "TYPE"
    for name, code in (("Eve", "RANGE"), (7, "TYPE")):
        with pytest.raises(RegistryRefused, match=code):
            town.log.enrol(name, fresh(), classes=["open"], not_before=T, not_after=T + 1, now=T)
        with pytest.raises(RegistryRefused, match=code):
            town.log.enrol("eve", fresh(), classes=["open"], not_before=T, not_after=T + 1, principal=name, now=T)
    assert enrol(key=b"short") == "RANGE" and enrol(key="x" * 32) == "TYPE" and enrol(key=None) == "TYPE"
    assert enrol(name="bob", principal="household-4") == "RANGE" and enrol(name="bob", principal="household-3") is None


def test_one_key_serves_one_contributor_once(town):
    for name in ("alice", "bob", "carol"):
        assert town.after(Enrol(name, town.raw["alice"], T, T + 1, ["open"])) == "KEY_IN_USE"
    twice = Enrol("carol", fresh(), T, T + 1, ["open"])
    assert town.after(twice, replace(twice, name="dora")) == "KEY_IN_USE"
    with pytest.raises(RegistryRefused, match="is enrolled for alice already"):
        town.log.enrol("eve", town.raw["alice"], classes=["open"], not_before=T, not_after=T + 1, now=T)
    assert town.after(Revoke("alice", None, T), Enrol("alice", town.raw["alice"], T, T + 1, ["open"])) == "KEY_IN_USE"
    assert town.after(town.rotate(town.rotation(new="bob"), by_new="bob")) == "KEY_IN_USE"


def test_actions_on_the_unknown_are_refused(town):
    for action in (Grant("carol", ["open"], None), Revoke("carol", None, T), Revoke("alice", fresh(), T)):
        assert town.after(action) == "KEY_UNKNOWN"
    assert town.after(Revoke("alice", town.raw["bob"], T)) == "KEY_UNKNOWN"
    assert town.after(Revoke(None, None, T)) == "TYPE" and town.after(Grant([], [], None)) == "TYPE"
    for action in (Grant("carol", ["open"], None), Revoke(None, None, T), Revoke([], None, T)):
        with pytest.raises(RegistryRefused, match="KEY_UNKNOWN"):
            town.log.append([action], now=T)
    assert town.after(Revoke("alice", None, -1)) == "RANGE" and town.after(Revoke("alice", None, None)) == "TYPE"
    assert town.after(Grant("bob", ["open"], -1)) == "RANGE" and town.after(Grant("bob", None, 1)) == "TYPE"


def test_a_refused_action_takes_the_whole_entry_with_it(town):
    good = Enrol("carol", fresh(), T, T + 1, ["open"])
    with pytest.raises(RegistryRefused, match="KEY_UNKNOWN"):
        town.log.append([good, Revoke("dora", None, T)], now=T)
    assert town.registry.find("carol") is None and town.opened() == town.registry
    assert town.log.append([good], now=T).find("carol") is not None


# --- statements of contributors --------------------------------------------------------------------------------------


def test_a_rotation_needs_the_old_key_and_proof_of_the_new_one(town):
    statement = town.rotation()
    assert town.after(town.rotate(statement)) is None
    assert town.after(town.rotate(statement, by_old="bob")) == "SIG_BAD"
    assert town.after(town.rotate(statement, by_new="bob")) == "SIG_BAD"
    assert town.after(town.rotate(statement, by_old="alice-2")) == "SIG_BAD"
    assert town.after(town.rotate(statement, by_new="alice")) == "SIG_BAD"
    for missing in (b"", b"\xf6"):
        assert town.after(town.rotate(statement, by_new=missing)) is not None
    by_owner = statement.sign(town.owner)
    assert town.after(town.rotate(statement, by_old=by_owner)) == "SIG_BAD"
    other = town.rotation(time=T + 6)
    assert town.after(town.rotate(statement, by_new=other.sign(town.key["alice-2"]))) == "HEADER"


def test_a_statement_is_for_one_registry(town):
    elsewhere = {"registry_id": bytes(16)}
    assert town.after(town.rotate(town.rotation(**elsewhere))) == "AUDIENCE"
    statement = town.revocation(**elsewhere)
    assert town.after(RevokeOwn(statement.to_cbor(), statement.sign(town.key["alice"]))) == "AUDIENCE"


def test_a_statement_is_for_the_holder_of_the_key_that_it_names(town):
    town.raw["stranger"], town.key["stranger"] = fresh(), None
    assert town.after(town.rotate(town.rotation(old="stranger"))) == "KEY_UNKNOWN"
    assert town.after(town.rotate(town.rotation(old="bob"))) == "SIG_BAD"
    assert town.after(town.rotate(town.rotation(old="bob"), by_old="bob")) is None
    statement = town.revocation(key="bob")
    assert town.after(RevokeOwn(statement.to_cbor(), statement.sign(town.key["alice"]))) == "KEY_UNKNOWN"
    assert town.after(RevokeOwn(statement.to_cbor(), statement.sign(town.key["bob"]))) is None
    assert town.after(RevokeOwn(statement.to_cbor(), statement.sign(keys.generate()))) == "KEY_UNKNOWN"


def test_the_signing_key_is_the_issuer_and_no_name_serves(town):
    """For all keys the signing key says whose they are: whoever signs as another key is refused."""
    for statement in (town.revocation(), town.revocation(key=None)):
        payload = statement.to_cbor()
        for issuer, code in (
            ("alice", "HEADER"),
            (town.raw["bob"].hex(), "SIG_BAD"),
            (town.raw["alice"].hex()[:-1], "HEADER"),
            (fresh().hex(), "KEY_UNKNOWN"),
        ):
            message = sign1.sign(payload, town.key["alice"], contributor=issuer, typ=sign1.TYP_KEY)
            assert town.after(RevokeOwn(payload, message)) == code
        assert town.after(RevokeOwn(payload, statement.sign(town.key["alice"]))) is None
    rotation = town.rotation()
    by_name = sign1.sign(rotation.to_cbor(), town.key["alice"], contributor="alice", typ=sign1.TYP_KEY)
    assert town.after(town.rotate(rotation, by_old=by_name)) == "HEADER"


def test_a_statement_is_good_once(town):
    rotation = town.rotate(town.rotation())
    assert town.after(rotation, rotation) == "REPLAYED"
    statement = town.revocation(revoked_at=T + 50)
    revocation = RevokeOwn(statement.to_cbor(), statement.sign(town.key["alice"]))
    town.log.append([revocation], now=T + 6)
    with pytest.raises(RegistryRefused, match="REPLAYED"):
        town.log.append([revocation], now=T + 7)


def test_a_statement_grows_stale_and_is_not_taken_in_early(town):
    month = 30 * 86400
    for statement_at, entry_at, code in (
        (T + 10, T + 10 + month, None),
        (T + 10, T + 11 + month, "STALE"),
        (T + 10 + 3600, T + 10, None),
        (T + 11 + 3600, T + 10, "STALE"),
    ):
        assert town.after(town.rotate(town.rotation(time=statement_at)), time=entry_at) == code


def test_a_revoked_or_ended_key_states_nothing_any_more(town):
    town.log.enrol("alice", town.raw["alice-2"], classes=[], not_before=T, not_after=T + 8, now=T)
    revocation = town.revocation(key="alice-2")
    signed = RevokeOwn(revocation.to_cbor(), revocation.sign(town.key["alice-2"]))
    with pytest.raises(RegistryRefused, match="SIG_BAD"):
        town.log.append([signed], now=T + 8)
    town.log.append([signed], now=T + 7)
    town.log.revoke("alice", town.raw["alice"], at=T + 7, now=T + 7)
    town.raw["new"], town.key["new"] = fresh(), None
    rotation = town.rotation(new="new")
    with pytest.raises(RegistryRefused, match="KEY_UNKNOWN"):
        town.log.append([town.rotate(rotation, by_new=rotation.sign(town.key["alice"]))], now=T + 7)


def test_validities_of_a_rotation(town):
    statement = town.rotation()
    assert town.after(town.rotate(statement, old_not_after=T + YEAR)) is None
    assert town.after(town.rotate(statement, old_not_after=T + YEAR + 1)) == "RANGE"
    assert town.after(town.rotate(statement, old_not_after=T)) == "RANGE"
    assert town.after(town.rotate(statement, not_before=T + YEAR)) == "RANGE"
    assert town.after(town.rotate(statement, not_after=None)) == "TYPE"


def test_a_statement_of_one_kind_does_not_serve_as_the_other(town):
    rotation, revocation = town.rotation(), town.revocation()
    assert town.after(RevokeOwn(rotation.to_cbor(), rotation.sign(town.key["alice"]))) == "SCHEMA"
    assert town.after(town.rotate(revocation)) == "SCHEMA"


def test_statements_of_other_form_are_refused(town):
    right = cbor.decode(town.rotation().to_cbor())

    def code(changes, without=()):
        value = {key: item for key, item in (right | changes).items() if key not in without}
        with pytest.raises(AttestError) as caught:
            KeyStatement.from_cbor(cbor.encode(value))
        return caught.value.code

    assert code({1: "dptrain.key-statement/1"}) == "SCHEMA"
    assert code({8: None}) == "SCHEMA" and code({}, without=(7,)) == "SCHEMA"
    assert code({2: "enrol"}) == "SCHEMA" and code({2: 1}) == "SCHEMA"
    assert code({3: bytes(15)}) == "RANGE" and code({4: None}) == "TYPE"
    assert code({5: -1}) == "RANGE" and code({6: b""}) == "RANGE" and code({7: T}) == "SCHEMA"
    assert code({2: "revoke"}) == "SCHEMA" and code({2: "revoke", 6: None}) == "TYPE"
    for data in (b"", town.rotation().to_cbor() + b"\x00", cbor.encode([])):
        with pytest.raises(AttestError):
            KeyStatement.from_cbor(data)


def test_an_attestation_or_policy_signature_is_no_statement(town):
    statement = town.revocation()
    for typ in (sign1.TYP_ATTESTATION, sign1.TYP_WITHDRAWAL, sign1.TYP_POLICY, sign1.TYP_REGISTRY):
        message = sign1.sign(statement.to_cbor(), town.key["alice"], contributor=town.raw["alice"].hex(), typ=typ)
        assert town.after(RevokeOwn(statement.to_cbor(), message)) == "HEADER"


# --- weak keys -------------------------------------------------------------------------------------------------------


def sound(raw):
    """Whether a key has prime order, by the curve's arithmetic."""
    point = ed25519.decompress(raw)
    return point is not None and ed25519.is_identity(ed25519.multiply(ed25519.L, point)) and raw[0] != 1


def small_order():
    """The fourteen encodings that OpenSSL loads and that have small order (docs/formats, Keys)."""
    p = 2**255 - 19
    y8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
    ys = (0, 1, p - 1, y8, p - y8, p, p + 1)
    return [(y | sign << 255).to_bytes(32, "little") for y in ys for sign in (0, 1)]


def test_small_order_and_non_canonical_keys_are_refused_by_every_reader(town):
    for raw in small_order():
        assert town.after(Enrol("eve", raw, T, T + 1, ["open"])) == "KEY_WEAK"
        with pytest.raises(RegistryRefused, match="KEY_WEAK"):
            KeyRecord(raw, T, T + 1)
        with pytest.raises(RegistryRefused, match="KEY_WEAK"):
            town.log.enrol("eve", raw, classes=["open"], not_before=T, not_after=T + 1, now=T)


def test_the_writer_refuses_every_unsound_key(town, vectors):
    raws = {bytes.fromhex(case["pub_key"]) for case in vectors("ed25519")["speccheck"]} | {bytes([3]) + bytes(31)}
    unsound = [raw for raw in raws if not sound(raw)]
    assert len(unsound) >= 4
    for raw in unsound:
        with pytest.raises(RegistryRefused, match="KEY_WEAK"):
            town.log.enrol("eve", raw, classes=["open"], not_before=T, not_after=T + 1, now=T)


def test_a_rotation_to_a_weak_key_is_refused_by_every_reader(town):
    """The universal forgery for the identity: no proof of possession can be had for such a key."""
    identity = b"\x01" + bytes(31)
    statement = town.rotation(new_key=identity)
    honest = statement.sign(town.key["alice-2"])
    forged = honest[: -64 - 2] + cbor.encode(identity + bytes(32))
    forged = forged.replace(keys.key_id(town.raw["alice-2"]), keys.key_id(identity))
    assert town.after(town.rotate(statement, by_new=forged)) == "KEY_WEAK"


# --- writing ---------------------------------------------------------------------------------------------------------


def test_only_the_owner_appends(town):
    with pytest.raises(RegistryRefused, match="SIG_BAD"):
        RegistryLog(town.path, town.key["alice"])


def test_an_existing_file_is_never_started_anew(town):
    before = town.path.read_bytes()
    with pytest.raises(RegistryRefused, match="EXISTS"):
        RegistryLog.create(town.path, town.owner, owner="owner", now=T)
    assert town.path.read_bytes() == before


def test_two_writers_never_overwrite_each_other(town):
    other = RegistryLog(town.path, town.owner)
    other.revoke("alice", at=T, now=T)
    with pytest.raises(RegistryRefused, match="CONFLICT"):
        town.log.grant("bob", classes=[], cap=None, now=T)
    assert town.opened() == other.registry
    assert RegistryLog(town.path, town.owner).grant("bob", classes=[], cap=None, now=T).find("bob").classes == ()


def test_a_write_that_fails_leaves_file_and_writer_as_they_were(town, monkeypatch):
    before, state = town.path.read_bytes(), town.registry

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("attest.files.os.replace", full)
        with pytest.raises(OSError, match="No space"):
            town.log.revoke("alice", at=T, now=T)
    assert (town.path.read_bytes(), town.registry) == (before, state)
    assert sorted(path.name for path in town.path.parent.iterdir()) == ["registry.cbor", "registry.names"]
    assert town.log.revoke("bob", at=T, now=T) == town.opened()


class Token:
    """A key outside this process, as the log sees it."""

    def __init__(self, key, *, honest=True):
        self.public_key = keys.public_bytes(key)
        self._key, self._honest = key, honest

    def sign(self, message):
        return self._key.sign(message if self._honest else message + b"!")


def test_a_token_may_hold_the_owners_key_and_the_contributors(town, tmp_path):
    log = RegistryLog(town.path, Token(town.owner))
    statement = town.rotation()
    log.rotate(
        statement, statement.sign(Token(town.key["alice"])), statement.sign(Token(town.key["alice-2"])),
        not_before=T, not_after=T + 9, old_not_after=T + 5, now=T + 5,
    )  # fmt: skip
    assert town.opened() == log.registry and len(log.registry.find("alice").keys) == 2
    before = town.path.read_bytes()
    with pytest.raises(AttestError, match="SIGNER"):
        RegistryLog(town.path, Token(town.owner, honest=False)).revoke("bob", at=T, now=T + 5)
    with pytest.raises(AttestError, match="SIGNER"):
        RegistryLog.create(tmp_path / "new.cbor", Token(town.owner, honest=False), owner="owner", now=T)
    assert town.path.read_bytes() == before and not (tmp_path / "new.cbor").exists()


def test_the_writers_clock_may_step_back_a_minute_and_no_more(town):
    assert town.log.grant("bob", classes=["open"], cap=1, now=T - 60).time == T
    with pytest.raises(RegistryRefused, match="CLOCK"):
        town.log.grant("bob", classes=["open"], cap=2, now=T - 61)


def test_many_actions_become_few_entries_that_an_agent_can_sign(town):
    raws = [fresh() for _ in range(50)]
    names = [f"{'x' * 55}-{n:02}" for n in range(50)]
    long_names = [f"{'c' * 60}-{n:03}" for n in range(100)]
    counts = []
    actions = [Enrol(name, raw, T, T + 9, long_names) for name, raw in zip(names, raws, strict=True)]
    registry = town.log.append(actions, now=T, progress=counts.append)
    assert town.opened() == registry and len(registry.by_name) == 52 and counts[-1] == 50
    sizes = [len(payload) for payload, _ in town.items()[3:]]
    assert len(sizes) == 2 and max(sizes) < 200 << 10
    assert [entry.seq for entry in peek(town.path).entries] == [0, 1, 2, 3, 4]


def test_appending_nothing_is_refused(town):
    with pytest.raises(RegistryRefused, match="SCHEMA"):
        town.log.append([], now=T)


def test_peek_shows_without_verifying_and_is_no_registry(town):
    payload, message = town.items()[-1]
    town.path.write_bytes(join([*town.items()[:-1], (payload, message[:-1] + bytes([message[-1] ^ 1]))]))
    seen = peek(town.path)
    assert seen.contributors == town.registry.contributors and seen.roots == town.registry.roots
    assert not hasattr(seen, "find") and not hasattr(seen, "extends")
    assert town.refused() == "SIG_BAD"


def test_contributors_and_keys_are_checked_values():
    for arguments in (("eve", [], ()), ("eve", (), []), ("eve", (b"",), ())):
        with pytest.raises(RegistryRefused, match="TYPE"):
            Contributor(*arguments)
    with pytest.raises(RegistryRefused, match="RANGE"):
        Contributor("eve", (), ("b", "a"))
    with pytest.raises(RegistryRefused, match="TYPE"):
        KeyRecord(b"\x05" * 32, T, T + 1, revoked_at=1.0)
