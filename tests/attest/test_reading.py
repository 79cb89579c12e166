"""What a gate keeps of a reading: it spares signatures and nothing else, and counts for nobody but who wrote it."""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import attest
from attest import sign1
from attest.corpus import open_corpus, sign_corpus
from attest.gate import Gate, forms, run_gate
from attest.gate.admission import Admitted, Refused
from attest.gate.reading import MAC_SIZE, TAG_SIZE, Context, KeptReading, build_of
from attest.keys import public_bytes, verifier, verify_signature
from attest.policy import sign_policy, verify_policy
from attest.registry import Enrol, Revoke
from tests.worlds.gate import NOW

KEY, OTHER_KEY = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (40, 41))
PEOPLE = 12


@pytest.fixture
def signed(world):
    payload, message = sign_policy(world.policy, world.owner, owner="owner", registry_root=world.registry.root())
    return verify_policy(payload, message, public_bytes(world.owner))


@pytest.fixture
def corpus(world, tmp_path):
    """A dozen records in three files, which one contributor signed."""
    for name in "abc":
        data = tmp_path / "corpus" / f"{name}.jsonl"
        data.parent.mkdir(exist_ok=True)
        data.write_text("".join(f'{{"text": "{name} {n}"}}\n' for n in range(PEOPLE // 3)))
        sign_corpus(data, None, world.alice, world.template)
    return open_corpus(tmp_path / "corpus")


@pytest.fixture
def checks(monkeypatch):
    """The signatures that were verified, one entry each."""
    found: list[bytes] = []

    def counted(raw):
        return lambda *given: (found.append(given[0]), verifier(raw)(*given))

    monkeypatch.setattr(sign1, "verify_signature", lambda *given: (found.append(given[1]), verify_signature(*given))[1])
    monkeypatch.setattr(forms, "verifier", counted)
    return found


class Reader:
    """Reads the corpus as a process of its own would, with what is kept in one file."""

    def __init__(self, world, signed, corpus, path, checks) -> None:
        self.path, self.registry, self.signed, self.corpus = path, world.registry, signed, corpus
        self._checks = checks

    def context(self, **changes):
        return replace(Context.of(self.signed, self.registry), **changes)

    def read(self, *, key=KEY, context=None, now=NOW, registry=None):
        """Codes of the outcomes, and how many signatures were verified."""
        self.reading = KeptReading(self.path, key, context or self.context())
        self._checks.clear()
        report = run_gate(
            self.corpus, self.signed.policy, registry or self.registry, now=now, workers=1, remember=self.reading
        )
        self.reading.keep()
        return ["ADMITTED"] * len(report.admitted) + [str(one.refusal.code) for one in report.refused], len(self._checks)


@pytest.fixture
def reader(world, signed, corpus, tmp_path, checks):
    """A reader of a corpus that was read once."""
    found = Reader(world, signed, corpus, tmp_path / "ledger.db.reading", checks)
    assert found.read() == (["ADMITTED"] * PEOPLE, PEOPLE) and found.reading.told == ""
    return found


def test_signatures_that_verified_are_spared_in_another_process(reader):
    assert reader.read() == (["ADMITTED"] * PEOPLE, 0)
    assert (reader.reading.spared, reader.reading.checked, reader.reading.told) == (PEOPLE, 0, "")


def test_outcomes_are_the_same_with_and_without_a_kept_reading(reader):
    kept = KeptReading(reader.path, KEY, reader.context())
    policy, registry = reader.signed.policy, reader.registry
    with_it = [*Gate(policy, registry, workers=1, remember=kept).judge(reader.corpus, now=NOW)]
    without = [*Gate(policy, registry, workers=1).judge(reader.corpus, now=NOW)]
    assert with_it == without and all(isinstance(one, Admitted) for one in without) and kept.spared == PEOPLE


def test_the_file_is_for_its_owner_alone_and_written_again_only_when_something_changed(reader):
    assert reader.path.stat().st_mode & 0o777 == 0o600
    before = reader.path.stat().st_ino
    reader.read()
    assert reader.path.stat().st_ino == before
    (reader.corpus.root / "b.jsonl").unlink()
    reader.read()
    assert reader.path.stat().st_ino != before and reader.reading.told == ""


@pytest.mark.parametrize("field", [field.name for field in fields(Context) if field.name != "purpose"])
def test_under_any_other_context_all_is_verified_again_with_a_line_that_says_why(reader, field):
    before = getattr(reader.context(), field)
    other = reader.context(**{field: before + "." if isinstance(before, str) else bytes(32)})
    kept = KeptReading(reader.path, KEY, other)
    assert not len(kept) and "was made under another" in kept.told and str(reader.path) in kept.told
    word = {"policy": "policy", "registry": "registry:", "largest": "largest known", "build": "version of this program"}[field]
    assert word in kept.told
    if field != "registry":  # A gate judges against the very registry that its context names.
        assert reader.read(context=other) == (["ADMITTED"] * PEOPLE, PEOPLE) and word in reader.reading.told
        assert reader.read(context=other) == (["ADMITTED"] * PEOPLE, 0)


def test_a_policy_that_was_signed_anew_makes_another_context(world, reader, signed):
    policy = replace(world.policy, delta=Fraction(1, 10**7))
    payload, message = sign_policy(policy, world.owner, owner="owner", registry_root=world.registry.root())
    reader.signed = verify_policy(payload, message, public_bytes(world.owner))
    assert reader.read() == (["ADMITTED"] * PEOPLE, PEOPLE) and "policy" in reader.reading.told


def test_a_later_registry_makes_another_context_in_both_places(world, reader):
    later = world.changed(lambda log: log.enrol(
        "carol", public_bytes(OTHER_KEY), classes=("open",), not_before=NOW - 9, not_after=NOW + 9, now=NOW - 9
    ))  # fmt: skip
    assert reader.read(context=Context.of(reader.signed, reader.registry, later)) == (["ADMITTED"] * PEOPLE, PEOPLE)
    reader.registry = later
    assert reader.read(registry=later) == (["ADMITTED"] * PEOPLE, PEOPLE)


def test_a_gate_of_another_registry_than_the_reading_spares_nothing(world, reader):
    later = world.changed(lambda log: log.append([Revoke("bob", public_bytes(world.bob), NOW)], now=NOW))
    assert reader.read(registry=later, context=Context.of(reader.signed, reader.registry))[1] == PEOPLE


def test_every_flipped_byte_of_the_file_makes_the_gate_verify_all_again(reader):
    data = reader.path.read_bytes()
    for at in range(len(data)):
        reader.path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        kept = KeptReading(reader.path, KEY, reader.context())
        assert not len(kept) and "does not count" in kept.told, at
    assert reader.read() == (["ADMITTED"] * PEOPLE, PEOPLE)
    assert reader.path.read_bytes() == data, "and the reading is kept again"


@pytest.mark.parametrize("cut", [0, 1, MAC_SIZE, TAG_SIZE, MAC_SIZE + TAG_SIZE, -1])
def test_a_file_that_was_cut_or_continued_counts_for_nothing(reader, cut):
    data = reader.path.read_bytes()
    reader.path.write_bytes(data[:cut] if cut >= 0 else data + bytes(TAG_SIZE))
    assert reader.read() == (["ADMITTED"] * PEOPLE, PEOPLE) and "does not count" in reader.reading.told


def test_a_file_of_another_key_counts_for_nothing(reader):
    assert reader.read(key=OTHER_KEY) == (["ADMITTED"] * PEOPLE, PEOPLE)
    assert "another key" in reader.reading.told


def test_what_is_no_file_at_all_counts_for_nothing_and_stops_nothing(reader):
    reader.path.unlink()
    reader.path.mkdir()
    assert reader.read() == (["ADMITTED"] * PEOPLE, PEOPLE) and "cannot be kept" in reader.reading.told


def test_a_data_file_that_changed_is_read_again_and_only_what_changed_is_verified(world, reader):
    data = reader.corpus.root / "b.jsonl"
    whole = data.read_text()
    data.write_text(whole.replace("b 2", "b 9"))
    assert reader.read() == (["ADMITTED"] * (PEOPLE - 1) + ["CONTENT_MISMATCH"], 1)
    sign_corpus(data, None, world.alice, world.template)
    codes, checked = reader.read()
    assert (codes, checked) == (["ADMITTED"] * PEOPLE, PEOPLE // 3)
    assert f"{checked} of {PEOPLE} attestations" in reader.reading.told


def test_a_content_that_changed_in_place_is_found_whatever_the_file_says_of_its_times(reader):
    """Size, times and inode are those of before: contents are hashed at each reading."""
    data = reader.corpus.root / "a.jsonl"
    before = data.stat()
    with data.open("r+b") as stream:
        stream.seek(10)
        stream.write(b"z")
    os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = data.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
    assert reader.read()[0].count("CONTENT_MISMATCH") == 1


def test_every_flipped_byte_of_an_attestation_that_was_kept_is_judged_as_without_it(reader):
    path = reader.corpus.root / "a.jsonl.attest"
    data = path.read_bytes()
    for at in range(0, len(data), 17):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        kept = KeptReading(reader.path, KEY, reader.context())
        policy, registry = reader.signed.policy, reader.registry
        with_it = [*Gate(policy, registry, workers=1, remember=kept).judge(reader.corpus, now=NOW)]
        without = [*Gate(policy, registry, workers=1).judge(reader.corpus, now=NOW)]
        assert with_it == without and any(isinstance(one, Refused) for one in with_it), at


def test_what_expired_since_is_refused_although_it_was_kept(world, reader):
    assert reader.read(now=NOW + 999)[1] == 0
    assert reader.read(now=world.template.not_after) == (["EXPIRED"] * PEOPLE, 0)
    assert reader.read(now=world.template.not_before - 1)[0] == ["NOT_YET_VALID"] * PEOPLE


def test_what_was_withdrawn_since_is_refused_although_it_was_kept(reader):
    first = run_gate(reader.corpus, reader.signed.policy, reader.registry, now=NOW, workers=1).admitted[0].admission
    kept = KeptReading(reader.path, KEY, reader.context())
    report = run_gate(
        reader.corpus, reader.signed.policy, reader.registry, now=NOW, workers=1, remember=kept,
        withdrawn={first.descriptor_hash},
    )  # fmt: skip
    assert [str(one.refusal.code) for one in report.refused] == ["WITHDRAWN"] and kept.checked == 0


def test_a_key_whose_revocation_comes_due_is_refused_although_the_registry_is_the_same(world, reader):
    reader.registry = world.changed(lambda log: log.append([Revoke("alice", public_bytes(world.alice), NOW + 50)], now=NOW))
    assert reader.read() == (["ADMITTED"] * PEOPLE, PEOPLE)
    assert reader.read(now=NOW + 49) == (["ADMITTED"] * PEOPLE, 0)
    assert reader.read(now=NOW + 50) == (["KEY_REVOKED"] * PEOPLE, 0)


def test_a_reading_that_is_put_back_says_what_is_still_true(world, reader):
    old = reader.path.read_bytes()
    data = reader.corpus.root / "c.jsonl"
    data.write_text('{"text": "another"}\n')
    sign_corpus(data, None, world.alice, world.template)
    reader.read()
    reader.path.write_bytes(old)
    assert reader.read() == (["ADMITTED"] * (2 * PEOPLE // 3 + 1), 1)


def test_of_two_keys_with_one_short_name_neither_is_spared(world, reader, monkeypatch):
    """A signature under one of them must not pass for one of the other, whose validity may differ."""
    reader.registry = world.changed(lambda log: log.append(
        [Enrol("alice", public_bytes(OTHER_KEY), NOW - 9, NOW + 9)], now=NOW - 9
    ))  # fmt: skip
    for module in ("attest.sign1", "attest.registry.entries", "attest.corpus.signing"):
        monkeypatch.setattr(f"{module}.key_id", lambda raw: b"same key")
    for path in sorted(reader.corpus.root.glob("*.jsonl")):
        sign_corpus(path, None, world.alice, world.template)
    for _ in range(2):
        assert reader.read() == (["ADMITTED"] * PEOPLE, PEOPLE)


def test_a_build_is_named_by_versions_and_the_digest_of_its_source():
    words = build_of().split(" ")
    assert len(words) == 4 and len(words[-1]) == len(hashlib.sha256().hexdigest())


def test_a_process_is_of_the_build_that_it_loaded_whatever_is_installed_meanwhile(tmp_path):
    """An upgrade under a notebook: what the old code verified is not taken for the word of the new one."""
    shutil.copytree(Path(attest.__file__).parent, tmp_path / "attest", ignore=shutil.ignore_patterns("__pycache__"))
    mine = f"p = attest.gate.reading.Path(attest.gate.__file__); assert str(p).startswith({str(tmp_path)!r})"
    upgrade = f"{mine}; p.write_text(p.read_text() + '# later')"
    script = f"import attest.gate, attest.gate.reading; {upgrade}; print(attest.gate.reading.build_of())"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command, options = [sys.executable, "-c", script], {"env": environment, "cwd": tmp_path}
    old, new = (subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout for _ in range(2))
    assert old != new and old.split()[:3] == new.split()[:3]
