"""The contributor registry: a value with a root; keys that are sound, single and revocable."""

from dataclasses import replace

import pytest

from attest import cbor, keys
from attest.errors import RegistryRefused
from attest.registry import Contributor, KeyRecord, Registry


def fresh():
    return keys.public_bytes(keys.generate())


def refused(call, *arguments, **options):
    with pytest.raises(RegistryRefused) as caught:
        call(*arguments, **options)
    assert caught.value.sentence
    return caught.value.code


@pytest.fixture
def registry():
    base = Registry().add("bob", fresh(), classes=["open"], not_before=10, not_after=20)
    return base.add("alice", fresh(), classes=["sensitive", "open"], not_before=0, not_after=100, cap=7)


def test_file_round_trip_and_root(registry, tmp_path):
    registry.save(tmp_path / "registry.cbor")
    loaded = Registry.load(tmp_path / "registry.cbor")
    assert loaded == registry and loaded.root() == registry.root() and len(registry.root()) == 32
    assert [c.name for c in loaded.contributors] == ["alice", "bob"]
    assert loaded.find("alice").classes == ("open", "sensitive") and loaded.find("alice").cap == 7
    assert loaded.find("carol") is None
    assert Registry.from_cbor(Registry().to_cbor()) == Registry()


def test_add_and_revoke_return_new_registries_with_new_roots(registry):
    grown = registry.add("alice", fresh(), classes=("secret",), not_before=0, not_after=50)
    assert len(grown.find("alice").keys) == 2 and len(registry.find("alice").keys) == 1
    assert grown.find("alice").classes == ("open", "secret", "sensitive") and grown.find("alice").cap == 7
    revoked = grown.revoke("alice", at=40)
    assert len({item.root() for item in (registry, grown, revoked)}) == 3


def test_keys_are_valid_inside_a_half_open_window_until_revoked(registry):
    assert [bool(registry.keys_valid_at("bob", now)) for now in (9, 10, 19, 20)] == [False, True, True, False]
    assert registry.keys_valid_at("carol", 10) == ()
    raw = registry.find("alice").keys[0].raw
    revoked = registry.revoke("alice", raw, at=40)
    assert [bool(revoked.keys_valid_at("alice", now)) for now in (39, 40, 41)] == [True, False, False]
    assert revoked.revoke("alice", at=60) == revoked
    assert revoked.revoke("alice", at=30).find("alice").keys[0].revoked_at == 30


def test_revoke_by_key_id_leaves_the_other_keys(registry):
    grown = registry.add("alice", fresh(), classes=(), not_before=0, not_after=50)
    first, second = grown.find("alice").keys
    left = grown.revoke("alice", second.key_id, at=5).keys_valid_at("alice", 10)
    assert left == (first,)
    assert refused(grown.revoke, "alice", b"nokeyid!", at=5) == "KEY_UNKNOWN"
    assert refused(grown.revoke, "carol", at=5) == "KEY_UNKNOWN"
    assert refused(grown.revoke, "alice", at=-1) == "RANGE"


def test_weak_keys_are_refused_at_enrolment(registry):
    options = {"classes": (), "not_before": 0, "not_after": 1}
    assert refused(registry.add, "eve", bytes(32), **options) == "KEY_WEAK"
    assert refused(registry.add, "eve", b"\x01" + bytes(31), **options) == "KEY_WEAK"
    assert refused(registry.add, "eve", b"short", **options) == "RANGE"


def test_one_key_serves_one_contributor_once(registry):
    raw = registry.find("alice").keys[0].raw
    for name in ("bob", "alice"):
        assert refused(registry.add, name, raw, classes=(), not_before=0, not_after=1) == "KEY_IN_USE"


def test_bad_entries_are_refused(registry):
    options = {"classes": (), "not_before": 0, "not_after": 1}
    assert refused(registry.add, "Alice", fresh(), **options) == "RANGE"
    assert refused(registry.add, "eve", fresh(), **options | {"classes": ("Open",)}) == "RANGE"
    assert refused(registry.add, "eve", fresh(), **options | {"not_after": 0}) == "RANGE"
    assert refused(registry.add, "eve", fresh(), **options | {"not_after": 1.0}) == "TYPE"
    assert refused(registry.add, "eve", fresh(), **options | {"not_before": True}) == "TYPE"
    assert refused(registry.add, "eve", fresh(), **options, cap=-1) == "RANGE"
    assert refused(Registry, tuple(reversed(registry.contributors))) == "RANGE"
    assert refused(Registry, registry.contributors[:1] * 2) == "RANGE"
    assert refused(Contributor, "eve", [], ()) == "TYPE"
    assert refused(Contributor, "eve", (), []) == "TYPE"
    assert refused(Contributor, "eve", (), ("b", "a")) == "RANGE"
    assert refused(KeyRecord, b"x", 0, 1) == "RANGE"


def test_every_byte_of_the_file_is_bound_to_the_root(registry):
    data = registry.to_cbor()
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << (position % 8)
        try:
            other = Registry.from_cbor(bytes(changed))
        except RegistryRefused:
            continue
        assert other.root() != registry.root()


def test_files_of_other_shape_are_refused(registry, tmp_path):
    good = cbor.decode(registry.to_cbor())
    for change in (
        {1: "dptrain.registry/2"},
        {2: {}},
        {2: [1]},
        {3: 1},
        {2: [{1: "a", 2: [], 3: []}]},
        {2: [{1: "a", 2: {}, 3: [], 4: None}]},
        {2: [{1: "a", 2: [{1: b"x" * 32, 2: 0, 3: 1}], 3: [], 4: None}]},
        {2: [{1: "a", 2: [], 3: [], 4: True}]},
        {2: list(reversed(good[2]))},
    ):
        refused(Registry.from_cbor, cbor.encode(good | change))
    refused(Registry.from_cbor, registry.to_cbor() + b"\x00")
    assert refused(Registry.load, tmp_path / "absent") == "FILE"


def test_a_registry_is_compared_by_content(registry):
    same = Registry.from_cbor(registry.to_cbor())
    assert same == registry and hash(same) == hash(registry)
    assert replace(registry.contributors[0], cap=8) != registry.contributors[0]
