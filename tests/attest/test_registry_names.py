"""The names beside a registry: what they open, what goes on without them, and that the registry itself tells none."""

import hashlib
import os
import stat

import pytest

from attest import cbor, keys
from attest.corpus import Item, Locator
from attest.errors import RegistryRefused
from attest.gate import Gate, Seen, decide, run_gate
from attest.registry import Enrol, KeyStatement, RegistryLog, open_registry, peek
from attest.registry.names import Named, Names, beside
from tests.worlds.gate import NOW
from tests.worlds.registries import load, put

T = 1_800_000_000


def fresh():
    return keys.public_bytes(keys.generate())


@pytest.fixture
def owner():
    return keys.generate()


@pytest.fixture
def log(tmp_path, owner):
    """Alice, Bob and Carla; Bob and Carla are one household."""
    log = RegistryLog.create(tmp_path / "registry.cbor", owner, owner="owner", now=T)
    for name, principal in (("alice", None), ("bob", "household-3"), ("carla", "household-3")):
        log.enrol(name, fresh(), classes=["open"], not_before=T, not_after=T + 9, principal=principal, now=T)
    return log


def reopened(log, owner):
    return open_registry(log.path, keys.public_bytes(owner))


def refused(path):
    with pytest.raises(RegistryRefused) as caught:
        Names.read(path)
    return caught.value.code


# --- what the registry tells -----------------------------------------------------------------------------------------


def test_a_registry_holds_no_name_and_no_digest_of_one(log):
    log.grant("alice", classes=["open"], cap=3, now=T)
    log.revoke("bob", at=T + 5, now=T)
    data = log.path.read_bytes()
    for name in (b"alice", b"bob", b"carla", b"household-3"):
        assert name not in data and name in beside(log.path).read_bytes()
        assert hashlib.sha256(name).digest() not in data and name.hex().encode() not in data


def test_a_statement_of_a_contributor_names_nobody(log):
    key = keys.generate()
    log.enrol("dora", keys.public_bytes(key), classes=["open"], not_before=T, not_after=T + 9, now=T)
    registry_id = log.registry.registry_id
    for said in ({"key": keys.public_bytes(key)}, {"key": None}):
        statement = KeyStatement(kind="revoke", registry_id=registry_id, time=T, revoked_at=T + 5, **said)
        message = statement.sign(key)
        assert b"dora" not in statement.to_cbor() + message and keys.public_bytes(key).hex().encode() in message
        assert log.revoke_own(statement, message, now=T).find("dora").keys[0].revoked_at == T + 5
    assert b"dora" not in log.path.read_bytes()


def test_one_contributor_has_one_commitment_and_one_principal_behind_two_has_two(log, owner):
    log.enrol("alice", fresh(), classes=[], not_before=T, not_after=T + 9, now=T)
    enrolled = [action for entry in peek(log.path).entries for action in entry.actions if isinstance(action, Enrol)]
    assert len(enrolled) == 4 and len({action.name for action in enrolled}) == 3
    assert enrolled[1].principal != enrolled[2].principal
    assert reopened(log, owner).find("bob").principal == reopened(log, owner).find("carla").principal == "household-3"


def test_two_registries_commit_to_one_name_by_two_salts(log, owner, tmp_path):
    (tmp_path / "other").mkdir()
    other = RegistryLog.create(tmp_path / "other" / "registry.cbor", owner, owner="owner", now=T)
    other.enrol("alice", fresh(), classes=["open"], not_before=T, not_after=T + 9, now=T)
    assert other.names.find("alice").commitment() != log.names.find("alice").commitment()


# --- the file ----------------------------------------------------------------------------------------------------------


def test_the_file_lies_beside_the_registry_for_its_owner_alone_and_reads_back(log, owner):
    path = beside(log.path)
    assert path.name == "registry.names" and stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert Names.read(path).to_cbor() == path.read_bytes() == log.names.to_cbor()
    assert [item.name for item in reopened(log, owner).contributors] == ["alice", "bob", "carla"]
    assert RegistryLog(log.path, owner).registry == log.registry


def test_files_of_other_form_are_refused(tmp_path):
    path, salt = tmp_path / "registry.names", bytes(16)
    good = [["alice", salt, None], ["bob", salt, "p"]]
    path.write_bytes(b"".join(map(cbor.encode, good)))
    assert Names.read(path).find("bob").principal == "p"
    bad = [
        [good[1], good[0]], [good[0], good[0]], [good[0], ["alice", bytes(range(16)), None]], [["alice", salt]],
        [["alice", salt, None, None]], [["Alice", salt, None]], [[b"alice", salt, None]], [["alice", bytes(15), None]],
        [["alice", salt.hex(), None]], [["alice", salt, ""]], [["alice", salt, 3]], [{1: "alice"}], ["alice"],
    ]  # fmt: skip
    for items in bad:
        path.write_bytes(b"".join(map(cbor.encode, items)))
        assert refused(path) == "NAMES", items
    whole = cbor.encode(good[0])
    for data in (whole[:-1], whole + b"\x83", b"\x83\x78\x05alice" + whole[7:], b"\xff", b"alice"):
        path.write_bytes(data)
        assert refused(path) == "NAMES", data
    assert refused(tmp_path / "absent.names") == "FILE"


def test_a_changed_byte_names_somebody_wrongly_never(log, owner):
    path = beside(log.path)
    good = path.read_bytes()
    known = {item.keys[0].raw: (item.name, item.principal) for item in log.registry.contributors}
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        try:
            found = reopened(log, owner)
        except RegistryRefused as error:
            assert error.code == "NAMES"
            continue
        assert found.names_missing, "a changed name opens nothing"
        for item in found.contributors:
            assert len(item.name) == 64 or (item.name, item.principal) == known[item.keys[0].raw]


def test_names_of_another_registry_name_nobody(log, owner, tmp_path):
    stranger = Names([Named(name, principal="household-3") for name in ("alice", "bob", "carla")])
    stranger.write(beside(log.path))
    found = reopened(log, owner)
    assert found.find("alice") is None and "does not name" in found.names_missing
    with pytest.raises(RegistryRefused, match="NAMES"):
        RegistryLog(log.path, owner)


def test_names_are_on_disk_before_the_entries_that_commit_to_them(log, owner, monkeypatch):
    """A crash in between leaves names that nobody has, which is no harm; the other way round somebody would be nameless."""
    before = log.registry
    monkeypatch.setattr("attest.registry.log.atomic_write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space"):
        log.enrol("dora", fresh(), classes=["open"], not_before=T, not_after=T + 9, now=T)
    monkeypatch.undo()
    assert Names.read(beside(log.path)).find("dora") is not None
    assert reopened(log, owner) == before == RegistryLog(log.path, owner).registry


def test_an_earlier_state_opens_under_later_names(log, owner):
    before = log.registry
    log.enrol("dora", fresh(), classes=["open"], not_before=T, not_after=T + 9, now=T)
    log.enrol("alice", fresh(), classes=[], not_before=T, not_after=T + 9, principal="anna", now=T)
    assert log.registry.find("alice").principal == "anna"
    assert open_registry(log.path, keys.public_bytes(owner), at=before.root()) == before


def test_a_registry_that_begins_anew_takes_over_no_salt(log, owner):
    old = log.names.find("alice").commitment()
    log.path.unlink()
    anew = RegistryLog.create(log.path, owner, owner="owner", now=T)
    anew.enrol("alice", fresh(), classes=["open"], not_before=T, not_after=T + 9, now=T)
    assert anew.names.find("alice").commitment() != old and anew.names.find("bob") is None


# --- without them ------------------------------------------------------------------------------------------------------


def test_without_names_a_registry_verifies_and_tells_contributors_by_commitments_and_keys(log, owner):
    beside(log.path).unlink()
    found = reopened(log, owner)
    assert found.root() == log.registry.root() and found.extends(log.registry.roots[0])
    named = log.registry.find("bob")
    assert found.holder(named.keys[0].raw).name == log.names.find("bob").commitment().hex()
    assert {item.name for item in found.contributors} == {
        log.names.find(name).commitment().hex() for name in ("alice", "bob", "carla")
    }
    assert found.find("alice") is None
    with pytest.raises(RegistryRefused, match=r"NAMES.*registry\.names"):
        found.require_names()
    with pytest.raises(RegistryRefused, match=r"registry\.names"):
        RegistryLog(log.path, owner)


def test_the_gate_refuses_a_registry_without_names_and_says_which_file_is_missing(world, tmp_path):
    path = tmp_path / "registry.cbor"
    put(path, world.registry_file)
    beside(path).unlink()
    nameless = open_registry(path, keys.public_bytes(world.owner))
    item = Item(Locator("x", 0, 1), world.descriptor.content_hash, world.sign())
    for judge in (
        lambda: Gate(world.policy, nameless, workers=1),
        lambda: run_gate([item], world.policy, nameless, now=NOW),
        lambda: decide(
            item.attestation, item.content_hash, policy=world.policy, registry=nameless, now=NOW, seen=Seen()
        ),
    ):  # fmt: skip
        with pytest.raises(RegistryRefused) as caught:
            judge()
        assert caught.value.code == "NAMES" and "registry.names" in caught.value.sentence
    assert load(world.registry_file, world.owner) == world.registry


def test_an_empty_registry_needs_no_names(tmp_path, owner):
    log = RegistryLog.create(tmp_path / "registry.cbor", owner, owner="owner", now=T)
    beside(log.path).unlink()
    assert reopened(log, owner).names_missing == ""
    assert RegistryLog(log.path, owner).registry == log.registry


def test_a_contributor_named_like_the_commitment_of_another_is_refused_where_names_are_incomplete(log, owner):
    """Else one of them would stand for the other."""
    commitment = log.names.find("alice").commitment().hex()
    log.enrol(commitment, fresh(), classes=["open"], not_before=T, not_after=T + 9, now=T)
    assert log.registry.find(commitment) is not None and log.registry.find("alice") is not None
    Names([log.names.find(commitment), log.names.find("bob"), log.names.find("carla")]).write(beside(log.path))
    with pytest.raises(RegistryRefused, match="NAMES"):
        reopened(log, owner)


def test_a_principal_of_an_enrolment_that_was_cut_short_gives_way_to_the_one_that_is_stated(log, owner, monkeypatch):
    """The names are written first: what stands in them alone binds nobody, and no entry is written that they do not open."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    enrol = {"classes": ["open"], "not_before": T, "not_after": T + 9, "now": T}
    with monkeypatch.context() as patched:
        patched.setattr("attest.registry.log.atomic_write", full)
        with pytest.raises(OSError):
            log.enrol("dora", fresh(), principal="clinic-a", **enrol)
    again = RegistryLog(log.path, owner)
    assert again.enrol("dora", fresh(), principal="clinic-b", **enrol).find("dora").principal == "clinic-b"
    assert reopened(log, owner).find("dora").principal == "clinic-b"
    size = log.path.stat().st_size
    with pytest.raises(RegistryRefused, match="another principal"):
        RegistryLog(log.path, owner).enrol("dora", fresh(), principal="clinic-c", **enrol)
    assert log.path.stat().st_size == size and reopened(log, owner).names_missing == ""
