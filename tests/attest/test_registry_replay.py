"""Random lives of a registry: what the file replays to is what its writer held, and what a plain model says."""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from attest.errors import AttestError, RegistryRefused
from attest.keys import public_bytes
from attest.registry import (
    Enrol,
    Grant,
    KeyStatement,
    RegistryLog,
    RegistryReader,
    Revoke,
    RevokeOwn,
    Rotate,
    open_registry,
    peek,
)

OWNER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in range(1, 17)]
RAW = [public_bytes(key) for key in KEYS]
NAMES = ("alice", "bob", "carol")
T = 1_800_000_000

times = st.sampled_from((T - 5, T, T + 3, T + 10, T + 20, T + 40))
classes = st.lists(st.sampled_from(("open", "secret", "sensitive")), unique=True).map(sorted)
caps = st.none() | st.integers(0, 3)
places = st.integers(0, len(KEYS) - 1)
spans = st.sampled_from(((T, T + 40), (T - 5, T + 20), (T + 3, T + 10), (T + 10, T + 10), (T + 20, T + 3)))
names = st.sampled_from(NAMES)
steps = st.one_of(
    st.tuples(st.just("enrol"), names, places, spans, classes, caps, st.sampled_from((None, "p", "q"))),
    st.tuples(st.just("grant"), names, classes, caps),
    st.tuples(st.just("revoke"), names, st.none() | places, times),
    st.tuples(st.just("rotate"), names, places, places, spans, times),
    st.tuples(st.just("revoke-own"), names, st.none() | places, places, times),
)
lives = st.lists(st.tuples(st.integers(0, 8), st.lists(steps, min_size=1, max_size=2)), max_size=12).map(
    # Two are enrolled from the start: most steps would be about nobody otherwise.
    lambda life: [(0, [("enrol", name, n, (T, T + 40), ["open"], None, None)]) for n, name in enumerate(NAMES[:2])] + life
)


@dataclass
class Person:
    keys: dict[int, list] = field(default_factory=dict)
    """Place of the key to [not before, not after, revoked at], in the order of enrolment."""
    classes: set[str] = field(default_factory=set)
    cap: int | None = None
    principal: str | None = None


class Model:
    """The rules of docs/formats, told once more and differently."""

    def __init__(self) -> None:
        self.people: dict[str, Person] = {}
        self.now = T

    def meant(self, step: tuple) -> tuple:
        """A step in which most numbers of keys mean a key that fits: one of the contributor's own, or one that is free."""
        kind, name, *rest = step
        own = list(self.people[name].keys) if name in self.people else []
        taken = {place for other in self.people.values() for place in other.keys}
        free = [place for place in range(len(KEYS)) if place not in taken]

        def pick(place: int | None, fitting: list[int]) -> int | None:
            return fitting[place % len(fitting)] if place is not None and place < 13 and fitting else place

        if kind == "enrol":
            rest[0] = pick(rest[0], free)
        elif kind == "rotate":
            rest[0], rest[1] = pick(rest[0], own), pick(rest[1], free)
        elif kind == "revoke-own":
            rest[0], rest[1] = pick(rest[0], own), pick(rest[1], own)
        elif kind == "revoke":
            rest[0] = pick(rest[0], own)
        return (kind, name, *rest)

    def may(self, step: tuple) -> bool:
        kind, name, *rest = step
        person = self.people.get(name)
        taken = {place for other in self.people.values() for place in other.keys}
        if kind in ("rotate", "revoke-own"):
            person = self.holder(rest[0] if kind == "rotate" else rest[1])
        if kind == "enrol":
            place, (start, end), _, _, principal = rest
            stays = person is None or person.principal is None or principal in (None, person.principal)
            return place not in taken and start < end and stays
        if person is None:
            return False
        if kind == "grant":
            return True
        if kind == "revoke":
            return rest[0] is None or rest[0] in person.keys
        if kind == "rotate":
            old, new, (start, end), old_end = rest
            return (
                self.valid(person, old) and new not in taken and start < end
                and person.keys[old][0] < old_end <= person.keys[old][1]
            )  # fmt: skip
        place, signer, _ = rest
        return self.valid(person, signer) and (place is None or place in person.keys)

    def holder(self, place: int) -> Person | None:
        """Whose key it is: a statement names nobody, the key acted on or the one that signs says who it is."""
        return next((person for person in self.people.values() if place in person.keys), None)

    def valid(self, person: Person, place: int) -> bool:
        if place not in person.keys:
            return False
        start, end, revoked = person.keys[place]
        return start <= self.now < end and (revoked is None or self.now < revoked)

    def do(self, step: tuple) -> None:
        kind, name, *rest = step
        person = self.holder(rest[0] if kind == "rotate" else rest[1]) if kind in ("rotate", "revoke-own") else None
        person = person or self.people.setdefault(name, Person())
        if kind == "enrol":
            place, (start, end), granted, cap, principal = rest
            person.keys[place] = [start, end, None]
            person.classes |= set(granted)
            person.cap = person.cap if cap is None else cap
            person.principal = principal or person.principal
        elif kind == "grant":
            person.classes, person.cap = set(rest[0]), rest[1]
        elif kind == "rotate":
            old, new, (start, end), old_end = rest
            person.keys[old][1] = old_end
            person.keys[new] = [start, end, None]
        else:
            place, at = rest[0], rest[-1]
            for key in person.keys if place is None else (place,):
                known = person.keys[key][2]
                person.keys[key][2] = at if known is None else min(at, known)

    def facts(self) -> dict:
        return {
            name: (
                [(RAW[place], *facts) for place, facts in person.keys.items()],
                sorted(person.classes), person.cap, person.principal,
            )
            for name, person in self.people.items()
        }  # fmt: skip


def facts_of(registry) -> dict:
    return {
        item.name: (
            [(key.raw, key.not_before, key.not_after, key.revoked_at) for key in item.keys],
            list(item.classes), item.cap, item.principal,
        )
        for item in registry.contributors
    }  # fmt: skip


def action(step: tuple, registry_id: bytes, serial: int):
    """A step as an action; ``serial`` makes every statement another one."""
    kind, name, *rest = step
    # A statement may have been signed up to 30 days before: its time tells statements apart.
    said = {"registry_id": registry_id, "time": T - serial}
    if kind == "enrol":
        place, (start, end), granted, cap, principal = rest
        return Enrol(name, RAW[place], start, end, granted, cap, principal)
    if kind == "grant":
        return Grant(name, *rest)
    if kind == "revoke":
        return Revoke(name, None if rest[0] is None else RAW[rest[0]], rest[1])
    if kind == "rotate":
        old, new, (start, end), old_end = rest
        statement = KeyStatement(kind="rotate", key=RAW[old], new_key=RAW[new], **said)
        return Rotate(statement.to_cbor(), statement.sign(KEYS[old]), statement.sign(KEYS[new]), start, end, old_end)
    place, signer, at = rest
    statement = KeyStatement(kind="revoke", key=None if place is None else RAW[place], revoked_at=at, **said)
    return RevokeOwn(statement.to_cbor(), statement.sign(KEYS[signer]))


@settings(max_examples=150, deadline=None)
@given(lives)
@pytest.mark.slow
def test_a_file_replays_to_what_its_writer_held_and_the_model_says(life):
    """Every entry that the model allows is accepted and every other is refused whole; readers agree at every state."""
    with tempfile.TemporaryDirectory() as folder:
        path, public = Path(folder) / "registry.cbor", public_bytes(OWNER)
        log, model = RegistryLog.create(path, OWNER, owner="owner", now=T), Model()
        reader = RegistryReader(path, public)
        seen, serial = [reader.read()], 0
        for pause, wanted in life:
            model.now += pause
            trial = Model()
            trial.people = {
                name: Person({place: list(facts) for place, facts in person.keys.items()}, set(person.classes), person.cap,
                             person.principal)
                for name, person in model.people.items()
            }  # fmt: skip
            trial.now, allowed, actions = model.now, True, []
            for step in wanted:
                serial, step = serial + 1, trial.meant(step)
                actions.append(action(step, log.registry.registry_id, serial))
                allowed = allowed and trial.may(step)
                if allowed:
                    trial.do(step)
            if allowed:
                held, model = log.append(actions, now=model.now), trial
                assert facts_of(held) == model.facts() and held.extends(seen[-1].root())
                seen.append(held)
            else:
                with pytest.raises(RegistryRefused):
                    log.append(actions, now=model.now)
                assert log.registry == seen[-1]
            assert reader.read() == log.registry == open_registry(path, public)
        for state in seen:
            assert open_registry(path, public, at=state.root()) == state
        assert peek(path).contributors == seen[-1].contributors and peek(path).roots == seen[-1].roots
        assert [entry.seq for entry in peek(path).entries] == list(range(len(seen)))


@given(
    st.one_of(
        st.builds(
            KeyStatement, kind=st.just("rotate"), registry_id=st.binary(min_size=16, max_size=16),
            key=st.binary(min_size=32, max_size=32), time=times, new_key=st.binary(min_size=32, max_size=32),
        ),
        st.builds(
            KeyStatement, kind=st.just("revoke"), registry_id=st.binary(min_size=16, max_size=16),
            key=st.none() | st.binary(min_size=32, max_size=32), time=times, revoked_at=times,
        ),
    ),
    st.integers(0), st.integers(1, 255),
)  # fmt: skip
def test_a_statement_has_one_encoding(statement, place, byte):
    """It reads back as it was written, and any other bytes that are read are the encoding of what they say."""
    data = statement.to_cbor()
    assert KeyStatement.from_cbor(data) == statement
    place %= len(data)
    changed = data[:place] + bytes([data[place] ^ byte]) + data[place + 1 :]
    try:
        other = KeyStatement.from_cbor(changed)
    except AttestError:
        return
    assert other != statement and other.to_cbor() == changed


@settings(max_examples=60, deadline=None)
@given(lives, st.data())
def test_no_change_of_a_byte_passes(life, data):
    """One byte of a random registry changed, dropped or inserted: the file is refused."""
    with tempfile.TemporaryDirectory() as folder:
        path, public = Path(folder) / "registry.cbor", public_bytes(OWNER)
        log = RegistryLog.create(path, OWNER, owner="owner", now=T)
        for number, (pause, wanted) in enumerate(life):
            try:
                wanted = [action(Model().meant(step), log.registry.registry_id, number) for step in wanted]
                log.append(wanted, now=log.registry.time + pause)
            except RegistryRefused:
                continue
        good = path.read_bytes()
        place = data.draw(st.integers(0, len(good) - 1))
        byte = data.draw(st.integers(1, 255))
        for bad in (
            good[:place] + bytes([good[place] ^ byte]) + good[place + 1 :],
            good[:place] + good[place + 1 :],
            good[:place] + bytes([byte]) + good[place:],
        ):
            path.write_bytes(bad)
            with pytest.raises(RegistryRefused):
                open_registry(path, public)
        path.write_bytes(good)
        assert open_registry(path, public) == log.registry


@pytest.mark.slow
def test_a_hundred_thousand_contributors_load_in_seconds(tmp_path, monkeypatch):
    """Bulk enrolment takes few entries, reading is linear, and a reader that knows the file verifies only what is new."""
    import time

    # The full check of a key takes a millisecond; what is tried here is the format, with keys sound by construction.
    monkeypatch.setattr("attest.registry.log.check_public_key", lambda raw: None)
    count = 100_000
    people = [
        Enrol(f"clinic-{n:06}", public_bytes(Ed25519PrivateKey.from_private_bytes(n.to_bytes(32, "big"))), T, T + 9, ["open"])
        for n in range(count)
    ]
    log = RegistryLog.create(tmp_path / "registry.cbor", OWNER, owner="owner", now=T)
    log.append(people, now=T)
    started = time.perf_counter()
    registry = open_registry(tmp_path / "registry.cbor", public_bytes(OWNER))
    took = time.perf_counter() - started
    assert registry == log.registry and len(registry.by_name) == count and len(registry.roots) < 50
    assert took < 20, f"{count} contributors took {took:.1f} s to load"
    reader = RegistryReader(tmp_path / "registry.cbor", public_bytes(OWNER))
    reader.read()
    log.revoke("clinic-000007", at=T, now=T)
    started = time.perf_counter()
    found = reader.read()
    again = time.perf_counter() - started
    assert found == log.registry
    assert again < took, f"what is new took {again:.2f} s, all of it {took:.2f} s"
