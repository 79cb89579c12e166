"""`dptrain registry`, and `dptrain attest rotate` and `revoke`: the log of contributor keys, as a person keeps it."""

import base64
import json
import shutil
from dataclasses import fields

import pytest

from attest import keys

REGISTRY = "registry.cbor"


@pytest.fixture
def owner(shell):
    """An owner with an empty registry, and alice with a key."""
    shell.run("attest", "keygen", "owner")
    shell.run("attest", "keygen", "alice")
    return shell.json("registry", "init", REGISTRY)


def contributors(shell):
    return {item["name"]: item for item in shell.json("registry", "show", REGISTRY)["contributors"]}


def code(shell, *arguments):
    return shell.json(*arguments, code=1)["error"]["code"]


def test_a_policy_is_signed_before_anybody_is_enrolled_and_never_again(shell, corpus):
    (shell.directory / REGISTRY).unlink()
    (shell.directory / "policy.cose").unlink()
    first = shell.json("registry", "init", REGISTRY)
    assert first["contributors"] == [] and first["entries"] == 1
    shell.run("policy", "sign", "policy.toml", "--key", "owner.key", "--registry", REGISTRY)
    shell.run("registry", "add", REGISTRY, "--pub", "alice.pub", "--class", "sensitive")
    corpus()
    report = shell.json("gate", "policy.cose", "corpus")
    assert report["admitted"] == {"sensitive": 5}
    assert report["registry_root"] == shell.json("registry", "show", REGISTRY)["root"] != first["root"]


def test_init_never_overwrites(shell, owner):
    assert code(shell, "registry", "init", REGISTRY) == "EXISTS"
    assert shell.json("registry", "show", REGISTRY)["registry_id"] == owner["registry_id"]


def test_add_without_the_owners_key_says_what_to_do(shell, owner):
    (shell.directory / "owner.key").rename(shell.directory / "clinic.key")
    add = ("registry", "add", REGISTRY, "--pub", "alice.pub", "--class", "open")
    answer = " ".join(shell.run(*add, code=2).stderr.replace("│", " ").split())
    assert "there is no owner.key" in answer and "give the owner's private key with --key" in answer
    shell.run(*add, "--key", "clinic.key")
    assert contributors(shell)["alice"]["classes"] == ["open"]


def test_another_key_than_the_owners_is_refused(shell, owner):
    add = ("registry", "add", REGISTRY, "--pub", "alice.pub", "--class", "open", "--key", "alice.key")
    assert code(shell, *add) == "SIG_BAD"
    assert contributors(shell) == {}


def test_add_asks_for_one_source_and_for_classes(shell, owner):
    shell.run("registry", "add", REGISTRY, "--class", "open", code=2)
    shell.run("registry", "add", REGISTRY, "--pub", "alice.pub", code=2)
    shell.write("all.jsonl", "{}")
    shell.run("registry", "add", REGISTRY, "--pub", "alice.pub", "--from", "all.jsonl", "--class", "x", code=2)
    shell.run("registry", "add", REGISTRY, "--from", "all.jsonl", "--contributor", "x", code=2)


def test_a_name_that_looks_like_an_enrolled_one_needs_a_word(shell, owner):
    shell.run("registry", "add", REGISTRY, "--pub", "alice.pub", "--class", "open")
    shell.run("attest", "keygen", "a1ice")
    add = ("registry", "add", REGISTRY, "--pub", "a1ice.pub", "--class", "open")
    error = shell.json(*add, code=1)["error"]
    assert error["code"] == "LOOK_ALIKE" and "'a1ice' looks like 'alice'" in error["sentence"]
    assert "--allow-look-alike" in error["sentence"] and set(contributors(shell)) == {"alice"}
    rows = [{"key": line(shell, name), "contributor": name} for name in ("modem", "rnodern")]
    shell.write("all.jsonl", "\n".join(map(json.dumps, rows)))
    assert code(shell, "registry", "add", REGISTRY, "--from", "all.jsonl", "--class", "open") == "LOOK_ALIKE"
    assert shell.json("registry", "verify", REGISTRY)["look_alikes"] == []
    shell.run(*add, "--allow-look-alike")
    assert set(contributors(shell)) == {"alice", "a1ice"}
    assert shell.json("registry", "verify", REGISTRY)["look_alikes"] == [["a1ice", "alice"]]
    assert "names that look alike: a1ice, alice" in shell.run("registry", "verify", REGISTRY).stdout


def test_possession_is_proved_by_the_key_or_the_owners_word_and_said_for_every_key(shell, corpus):
    corpus()
    shell.run("attest", "keygen", "carol")
    proof = shell.json("attest", "prove", "--key", "carol.key", "--registry", REGISTRY)
    assert (proof["kind"], proof["path"]) == ("prove", "carol-possession.cose")
    shell.run("registry", "add", REGISTRY, "--pub", "carol.pub", "--class", "public", "--statement", proof["path"])
    found = {name: [key["proved"] for key in item["keys"]] for name, item in contributors(shell).items()}
    assert found == {"alice": [False], "carol": [True]}
    show = " ".join(shell.run("registry", "show", REGISTRY).stdout.split())
    assert "owner's word" in show and "proved" in show
    history = shell.run("registry", "show", REGISTRY, "--history").stdout
    assert "on the owner's word" in history and "carol proved that it holds key" in history
    attestations = ("attest", "show", "corpus/notes.jsonl.attest", "--record", "1", "--registry", REGISTRY)
    checks = {check["what"]: check for check in shell.json(*attestations)["checks"]}
    assert checks["possession"]["outcome"] == "unchecked" and "the owner's word" in checks["possession"]["sentence"]
    shell.run("attest", "prove", "--key", "alice.key", "--registry", REGISTRY, "--out", "mine.cose")
    shell.run("registry", "prove", REGISTRY, "--statement", "mine.cose")
    checks = {check["what"]: check for check in shell.json(*attestations)["checks"]}
    assert checks["possession"]["outcome"] == "passed"
    assert shell.json("registry", "verify", REGISTRY)["proved"] == 2
    assert code(shell, "registry", "prove", REGISTRY, "--statement", "mine.cose") == "REPLAYED"
    assert code(shell, "registry", "rotate", REGISTRY, "--statement", "mine.cose") == "SCHEMA"
    shell.run("attest", "revoke", "--key", "alice.key", "--registry", REGISTRY)
    assert code(shell, "registry", "prove", REGISTRY, "--statement", "alice-revocation.cose") == "SCHEMA"


def test_A24_an_older_registry_than_one_that_was_used_is_refused_by_the_gate(shell, corpus):
    """Nobody needs a key to cut a registry back, and a revoked key is good again in what is left."""
    corpus()
    before = (shell.directory / REGISTRY).read_bytes()
    judge = ("gate", "policy.cose", "corpus")
    assert shell.json(*judge)["admitted"] == {"sensitive": 5}
    shell.run("registry", "revoke", REGISTRY, "--contributor", "alice")
    after = (shell.directory / REGISTRY).read_bytes()
    assert shell.json(*judge, code=1)["refused"] == {"KEY_REVOKED": 5}
    (shell.directory / "old.cbor").write_bytes(before)
    shutil.copy(shell.directory / "registry.names", shell.directory / "old.names")
    for older in ((), ("--registry", "old.cbor")):
        (shell.directory / REGISTRY).write_bytes(after if older else before)
        error = shell.json(*judge, *older, code=1)["error"]
        assert error["code"] == "REGISTRY_OLDER"
        assert "has 2 entries" in error["sentence"] and "one with 3 entries" in error["sentence"]
        assert "it was cut back" in error["sentence"] and ".corpus.registry" in error["sentence"]
    assert code(shell, "policy", "check", "policy.cose", "--corpus", "corpus", "--registry", "old.cbor") == "REGISTRY_OLDER"
    shell.run("registry", "add", "old.cbor", "--pub", "owner.pub", "--class", "public")
    error = shell.json(*judge, "--registry", "old.cbor", code=1)["error"]
    assert error["code"] == "REGISTRY_OLDER" and "another continuation of the same log" in error["sentence"]
    shell.run("registry", "grant", REGISTRY, "--contributor", "alice", "--none")
    assert shell.json(*judge, code=1)["refused"] == {"KEY_REVOKED": 5}, "a later one is remembered in its place"
    (shell.directory / REGISTRY).write_bytes(after)
    assert code(shell, *judge) == "REGISTRY_OLDER"


def test_what_a_gate_remembers_is_bound_to_the_corpus_and_to_the_registry(shell, corpus):
    corpus()
    old = (shell.directory / REGISTRY).read_bytes()
    shell.run("registry", "grant", REGISTRY, "--contributor", "alice", "--class", "sensitive", "--cap", "9")
    shell.run("gate", "policy.cose", "corpus")
    memory = shell.directory / ".corpus.registry"
    assert list(json.loads(memory.read_text()).values()) == [
        {"entries": 3, "root": shell.json("registry", "show", REGISTRY)["root"]}
    ]
    (shell.directory / REGISTRY).write_bytes(old)
    assert code(shell, "gate", "policy.cose", "corpus") == "REGISTRY_OLDER"
    shell.run("gate", "policy.cose", "corpus/notes.jsonl")  # another path has a memory of its own
    assert (shell.directory / "corpus" / ".notes.jsonl.registry").exists()
    memory.write_text("{")
    assert code(shell, "gate", "policy.cose", "corpus") == "FORMAT"
    memory.unlink()
    shell.run("gate", "policy.cose", "corpus")


def test_grant_replaces_classes_and_cap(shell, owner):
    shell.run("registry", "add", REGISTRY, "--pub", "alice.pub", "--class", "open", "--cap", "5", "--principal", "anna")
    assert contributors(shell)["alice"] | {"keys": 0} == {
        "name": "alice", "classes": ["open"], "cap": 5, "principal": "anna", "keys": 0,
    }  # fmt: skip
    grant = ("registry", "grant", REGISTRY, "--contributor", "alice")
    shell.run(*grant, "--class", "sensitive", "--class", "public", "--cap", "2")
    assert (contributors(shell)["alice"]["classes"], contributors(shell)["alice"]["cap"]) == (["public", "sensitive"], 2)
    shell.run(*grant, "--none")
    assert (contributors(shell)["alice"]["classes"], contributors(shell)["alice"]["cap"]) == ([], None)
    shell.run(*grant, code=2)
    shell.run(*grant, "--none", "--class", "open", code=2)
    assert code(shell, "registry", "grant", REGISTRY, "--contributor", "bob", "--none") == "KEY_UNKNOWN"


def test_a_class_that_the_policy_lacks_is_noted_with_the_one_that_is_meant(shell, corpus):
    grant = ("registry", "grant", REGISTRY, "--contributor", "alice", "--class")
    assert "policy.cose has no class sensitve; is sensitive meant?" in shell.run(*grant, "sensitve").stdout
    assert shell.json(*grant, "zzz", "--class", "public")["unknown_classes"] == ["zzz"]
    assert shell.json(*grant, "sensitive")["unknown_classes"] == [] and "note" not in shell.run(*grant, "public").stdout
    (shell.directory / "policy.cose").write_bytes(b"no policy")
    assert shell.json("registry", "add", REGISTRY, "--pub", "owner.pub", "--class", "publik")["unknown_classes"] == ["publik"]
    (shell.directory / "policy.toml").write_text("no policy")
    assert shell.json(*grant, "sensitve")["unknown_classes"] == []


def line(shell, name):
    shell.run("attest", "keygen", name)
    return (shell.directory / f"{name}.pub").read_text().strip()


def test_many_are_enrolled_from_json_lines(shell, owner):
    bob, carol, dora = (line(shell, name) for name in ("bob", "carol", "dora"))
    rows = [
        {"key": bob},
        {"key": carol.split()[2], "contributor": "carol-2", "classes": ["open", "secret"], "cap": 3},
        {"key": dora, "classes": "a b", "principal": "house", "not_before": "2026-01-01", "not_after": 1796083200},
    ]
    shell.write("all.jsonl", "\n".join(json.dumps(row) for row in rows) + "\n\n")
    shell.run("registry", "add", REGISTRY, "--from", "all.jsonl", "--class", "open", "--cap", "9", "--days", "10")
    found = contributors(shell)
    assert {name: (item["classes"], item["cap"], item["principal"]) for name, item in found.items()} == {
        "bob": (["open"], 9, None), "carol-2": (["open", "secret"], 3, None), "dora": (["a", "b"], 9, "house"),
    }  # fmt: skip
    assert found["dora"]["keys"][0]["not_before"] == 1767225600 and found["dora"]["keys"][0]["not_after"] == 1796083200
    assert shell.json("registry", "show", REGISTRY)["entries"] == 2


def test_many_are_enrolled_from_csv(shell, owner):
    bob, carol = line(shell, "bob"), line(shell, "carol")
    shell.write("all.csv", f"contributor,key,classes,cap\nbob-1,{bob},open secret,\n,{carol},,4\n")
    shell.run("registry", "add", REGISTRY, "--from", "all.csv", "--class", "public")
    assert {name: (item["classes"], item["cap"]) for name, item in contributors(shell).items()} == {
        "bob-1": (["open", "secret"], None), "carol": (["public"], 4),
    }  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "change",
    [
        {"kay": 1}, {"key": None}, {"key": 7}, {"key": "AAAA="}, {"contributor": "Bob"}, {"contributor": 3}, {"classes": 3},
        {"classes": ["Open"]}, {"classes": []}, {"cap": "x"}, {"cap": True}, {"cap": 1.5}, {"not_after": "tomorrow"},
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_line_is_named_and_nobody_is_enrolled(shell, owner, change):
    good, bad = ({"key": line(shell, name), "classes": ["open"]} for name in ("bob", "carol"))
    shell.write("all.jsonl", "\n".join(json.dumps(row) for row in (good, bad | change)))
    error = shell.json("registry", "add", REGISTRY, "--from", "all.jsonl", code=1)["error"]
    assert error["code"] == "FORMAT" and "line 2" in error["sentence"]
    assert contributors(shell) == {}


def test_a_weak_or_repeated_key_in_a_file_enrols_nobody(shell, owner):
    bob = line(shell, "bob")
    weak = base64.b64encode(b"\x01" + bytes(31)).decode()
    for key, expected in ((weak, "KEY_WEAK"), (bob, "KEY_IN_USE")):
        shell.write("all.jsonl", json.dumps({"key": bob}) + "\n" + json.dumps({"key": key, "contributor": "eve"}))
        assert code(shell, "registry", "add", REGISTRY, "--from", "all.jsonl", "--class", "open") == expected
    assert contributors(shell) == {}


def test_files_of_nobody_or_of_another_kind_are_refused(shell, owner):
    files = {"empty.csv": "key\n", "empty.jsonl": "\n", "all.txt": "x", "list.jsonl": "[1]", "broken.jsonl": "{"}
    for name, text in files.items():
        shell.write(name, text)
        assert code(shell, "registry", "add", REGISTRY, "--from", name, "--class", "open") == "FORMAT"
    bob = line(shell, "bob")
    shell.write("twice.jsonl", f'{{"key": "{bob}", "contributor": "bob", "contributor": "eve"}}')
    shell.write("twice.csv", f"key,contributor,contributor\n{bob},bob,eve\n")
    for name in ("twice.jsonl", "twice.csv"):
        assert code(shell, "registry", "add", REGISTRY, "--from", name, "--class", "open") == "FORMAT"
    (shell.directory / "latin.csv").write_bytes(b"key\n\xe9")
    assert code(shell, "registry", "add", REGISTRY, "--from", "latin.csv", "--class", "open") == "FORMAT"


# --- a contributor's own statements ----------------------------------------------------------------------------------


@pytest.fixture
def alice(shell, owner):
    """Alice enrolled, with a second key that nobody knows yet."""
    shell.run("registry", "add", REGISTRY, "--pub", "alice.pub", "--class", "sensitive")
    (shell.directory / "new").mkdir()
    shell.run("attest", "keygen", "alice", "--dir", "new")
    return shell


def test_a_contributor_changes_its_key(alice):
    made = alice.json("attest", "rotate", "--key", "alice.key", "--new-key", "new/alice.key", "--registry", REGISTRY)
    assert made["path"] == "alice-rotation.cose"
    alice.run("registry", "rotate", REGISTRY, "--statement", made["path"], "--old-until", "2027-01-01")
    old, new = contributors(alice)["alice"]["keys"]
    assert old["not_after"] == 1798761600 and old["revoked_at"] is None
    assert new["key_id"] == keys.key_id(keys.load_public_key("new/alice.pub")).hex()
    history = alice.run("registry", "show", REGISTRY, "--history").stdout
    assert f"alice followed key {old['key_id']}, ended 2027-01-01T00:00:00Z, by {new['key_id']}" in history
    assert code(alice, "registry", "rotate", REGISTRY, "--statement", made["path"]) in ("REPLAYED", "KEY_UNKNOWN")


def test_an_end_of_the_old_key_that_cannot_be_is_told_with_its_dates(alice):
    alice.run("attest", "rotate", "--key", "alice.key", "--new-key", "new/alice.key", "--registry", REGISTRY)
    rotate = ("registry", "rotate", REGISTRY, "--statement", "alice-rotation.cose", "--old-until")
    for end in ("2099-01-01", "2026-01-01"):
        said = " ".join(alice.run(*rotate, end, code=2).stderr.replace("│", " ").split())
        assert "the old key is valid from 20" in said and "leave it out" in said
    alice.run(*rotate, "+30d")


def test_a_key_enrolled_in_this_very_second_can_be_followed_by_another(alice, monkeypatch):
    now = contributors(alice)["alice"]["keys"][0]["not_before"]
    monkeypatch.setattr("dptrain.cli.registry.commands.time.time", lambda: now)
    alice.run("attest", "rotate", "--key", "alice.key", "--new-key", "new/alice.key", "--registry", REGISTRY)
    alice.run("registry", "rotate", REGISTRY, "--statement", "alice-rotation.cose")
    assert contributors(alice)["alice"]["keys"][0]["not_after"] == now + 1


def test_what_a_new_key_signs_is_admitted_under_the_old_policy(shell, corpus):
    corpus()
    (shell.directory / "new").mkdir()
    shell.run("attest", "keygen", "alice", "--dir", "new")
    shell.run("attest", "rotate", "--key", "alice.key", "--new-key", "new/alice.key", "--registry", REGISTRY)
    shell.run("registry", "rotate", REGISTRY, "--statement", "alice-rotation.cose")
    soon = str(contributors(shell)["alice"]["keys"][0]["not_after"] + 1)
    assert shell.json("gate", "policy.cose", "corpus", "--now", soon, code=1)["refused"] == {"KEY_NOT_VALID": 5}
    sign = ("attest", "sign", "corpus/notes.jsonl", "--class", "sensitive", "--policy", "policy.toml")
    shell.run(*sign, "--key", "new/alice.key", "--not-before", soon)
    assert shell.json("gate", "policy.cose", "corpus", "--now", soon)["admitted"] == {"sensitive": 5}


def test_a_contributor_revokes_its_key(alice):
    made = alice.json("attest", "revoke", "--key", "alice.key", "--registry", REGISTRY, "--at", "2026-11-01")
    assert (made["path"], made["revoked_at"]) == ("alice-revocation.cose", 1793491200)
    alice.run("registry", "revoke", REGISTRY, "--statement", made["path"])
    assert contributors(alice)["alice"]["keys"][0]["revoked_at"] == 1793491200
    assert "alice revoked key" in alice.run("registry", "show", REGISTRY, "--history").stdout


def test_a_second_key_revokes_a_lost_one_or_all(alice):
    alice.run("registry", "add", REGISTRY, "--pub", "new/alice.pub", "--class", "open")
    given = ("attest", "revoke", "--key", "new/alice.key", "--registry", REGISTRY)
    alice.run(*given, "--pub", "alice.pub", "--out", "one.cose")
    alice.run("registry", "revoke", REGISTRY, "--statement", "one.cose")
    assert [key["revoked_at"] is None for key in contributors(alice)["alice"]["keys"]] == [False, True]
    alice.run(*given, "--all", "--out", "all.cose")
    alice.run("registry", "revoke", REGISTRY, "--statement", "all.cose")
    assert [key["revoked_at"] is None for key in contributors(alice)["alice"]["keys"]] == [False, False]
    alice.run(*given, "--all", "--pub", "alice.pub", code=2)
    alice.run(*given, "--all", "--out", "all.cose", code=2)


def test_a_statement_names_its_registry(alice):
    wrong = ("attest", "revoke", "--key", "alice.key")
    alice.run(*wrong, code=2)
    alice.run(*wrong, "--registry", REGISTRY, "--registry-id", "00" * 16, code=2)
    alice.run(*wrong, "--registry-id", "00" * 15, code=2)
    alice.run(*wrong, "--registry-id", "xy" * 16, code=2)
    alice.run(*wrong, "--registry-id", "00" * 16, "--out", "other.cose")
    assert code(alice, "registry", "revoke", REGISTRY, "--statement", "other.cose") == "AUDIENCE"
    alice.run(*wrong, "--registry-id", alice.json("registry", "show", REGISTRY)["registry_id"], "--out", "this.cose")
    alice.run("registry", "revoke", REGISTRY, "--statement", "this.cose")


def test_statements_go_to_their_own_command(alice):
    alice.run("attest", "rotate", "--key", "alice.key", "--new-key", "new/alice.key", "--registry", REGISTRY)
    alice.run("attest", "revoke", "--key", "alice.key", "--registry", REGISTRY)
    assert code(alice, "registry", "rotate", REGISTRY, "--statement", "alice-revocation.cose") == "SCHEMA"
    assert code(alice, "registry", "revoke", REGISTRY, "--statement", "alice-rotation.cose") == "SCHEMA"
    assert code(alice, "registry", "revoke", REGISTRY, "--statement", "alice.pub") == "FORMAT"
    revoke = ("registry", "revoke", REGISTRY)
    alice.run(*revoke, code=2)
    alice.run(*revoke, "--statement", "alice-revocation.cose", "--contributor", "alice", code=2)
    alice.run(*revoke, "--statement", "alice-revocation.cose", "--at", "2026-01-01", code=2)


# --- looking and verifying -------------------------------------------------------------------------------------------


def test_show_without_the_owners_key_says_not_verified_and_exits_with_1(alice):
    (alice.directory / "owner.pub").rename(alice.directory / "clinic.pub")
    shown = alice.run("registry", "show", REGISTRY, code=1).stdout
    assert shown.count("NOT VERIFIED") == 2 and "alice" in shown and "--owner-key" in shown
    assert alice.json("registry", "show", REGISTRY, code=1)["verified"] is False
    assert alice.json("registry", "show", REGISTRY, "--owner-key", "clinic.pub")["verified"] is True
    assert "NOT VERIFIED" not in alice.run("registry", "show", REGISTRY, "--owner-key", "clinic.pub").stdout
    assert code(alice, "registry", "show", REGISTRY, "--owner-key", "alice.pub") == "SIG_BAD"


def test_the_history_tells_what_every_entry_did(alice):
    alice.run("registry", "grant", REGISTRY, "--contributor", "alice", "--class", "open", "--cap", "3")
    alice.run("registry", "revoke", REGISTRY, "--contributor", "alice", "--at", "2027-01-01")
    entries = alice.json("registry", "show", REGISTRY, "--history")["history"]
    assert [entry["actions"][0]["action"] for entry in entries] == ["create", "enrol", "grant", "revoke"]
    assert [entry["seq"] for entry in entries] == [0, 1, 2, 3]
    assert entries[-1]["root"] == alice.json("registry", "show", REGISTRY)["root"]
    shown = alice.run("registry", "show", REGISTRY, "--history").stdout
    for words in (
        "created by owner", "enrolled alice with key", "granted alice exactly open, at most 3 contributions",
        "revoked all keys of alice from 2027-01-01T00:00:00Z on",
    ):  # fmt: skip
        assert words in shown


def test_a_long_entry_is_told_in_part(shell, owner):
    rows = [{"key": line(shell, f"c{n}")} for n in range(25)]
    shell.write("all.jsonl", "\n".join(json.dumps(row) for row in rows))
    assert shell.json("registry", "add", REGISTRY, "--from", "all.jsonl", "--class", "open")["contributors"] == []
    assert "and 5 more" in shell.run("registry", "show", REGISTRY, "--history").stdout
    assert len(shell.json("registry", "show", REGISTRY, "--history")["history"][1]["actions"]) == 25


def test_verify_counts_and_remembers_a_root(alice):
    answer = alice.json("registry", "verify", REGISTRY)
    assert (answer["verified"], answer["entries"], answer["keys"]) == (True, 2, 1)
    before = (alice.directory / REGISTRY).read_bytes()
    alice.run("registry", "revoke", REGISTRY, "--contributor", "alice")
    later = alice.json("registry", "verify", REGISTRY, "--root", answer["root"])["root"]
    (alice.directory / REGISTRY).write_bytes(before)
    assert code(alice, "registry", "verify", REGISTRY, "--root", later) == "REGISTRY_ROOT"
    alice.run("registry", "verify", REGISTRY, "--root", "xyz", code=2)
    changed = bytearray(before)
    changed[-1] ^= 1
    (alice.directory / REGISTRY).write_bytes(changed)
    assert code(alice, "registry", "verify", REGISTRY) == "SIG_BAD"
    (alice.directory / "owner.pub").unlink()
    alice.run("registry", "verify", REGISTRY, code=2)


def test_a_statement_file_says_everything_that_the_statement_says(alice):
    from attest.registry import KeyStatement

    made = alice.json("attest", "rotate", "--key", "alice.key", "--new-key", "new/alice.key", "--registry", REGISTRY)
    assert {field.name for field in fields(KeyStatement)} | {"contributor", "path"} == set(made)


def test_without_the_names_a_registry_is_shown_by_commitments_and_the_gate_refuses(alice):
    alice.run("registry", "grant", REGISTRY, "--contributor", "alice", "--class", "open", "--cap", "3")
    named = alice.json("registry", "show", REGISTRY, "--history")
    (alice.directory / "registry.names").rename(alice.directory / "registry.names.away")
    bare = alice.json("registry", "show", REGISTRY, "--history")
    (one,) = bare["contributors"]
    assert one["name"].startswith("(") and len(one["name"]) == 10 and "alice" not in str(bare)
    assert one["keys"] == named["contributors"][0]["keys"] and bare["root"] == named["root"] and bare["verified"]
    assert {action["name"] for entry in bare["history"][1:] for action in entry["actions"]} == {one["name"]}
    for options in ((), ("--history",)):
        shown = alice.run("registry", "show", REGISTRY, *options).stdout
        assert one["name"] in shown and "alice" not in shown
    assert "registry.names" in " ".join(alice.run("registry", "show", REGISTRY).stdout.split())
    assert alice.run("registry", "verify", REGISTRY).stdout.startswith("verified")
    grant = ("registry", "grant", REGISTRY, "--contributor", "alice", "--none")
    assert code(alice, *grant) == "NAMES"
    (alice.directory / "registry.names.away").rename(alice.directory / "registry.names")
    assert alice.json("registry", "show", REGISTRY, "--history") == named
