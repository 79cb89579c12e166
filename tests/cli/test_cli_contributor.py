"""`dptrain attest` and `dptrain registry`: keys, attestations, withdrawals, grants."""

import stat

import pytest

BOUNDS = ("--corpus", "clinic-notes-2026", "--clip-norm", "0.5", "--noise-multiplier", "1.2")


def test_keygen_writes_a_private_file_and_never_overwrites(shell):
    answer = shell.json("attest", "keygen", "alice")
    assert stat.S_IMODE((shell.directory / answer["private_key"]).stat().st_mode) == 0o600
    before = (shell.directory / "alice.key").read_bytes()
    shell.run("attest", "keygen", "alice", code=2)
    (shell.directory / "alice.pub").unlink()
    shell.run("attest", "keygen", "alice", code=1)
    assert (shell.directory / "alice.key").read_bytes() == before


def test_a_passphrase_protects_the_key_file(shell):
    shell.write("secret", "correct horse\n")
    shell.write("notes.txt", "text")
    shell.run("attest", "keygen", "alice", "--passphrase-file", "secret")
    sign = ("attest", "sign", "notes.txt", "--key", "alice.key", "--class", "sensitive", *BOUNDS)
    assert shell.json(*sign, code=1)["error"]["code"] == "PASSPHRASE"
    assert shell.json(*sign, "--passphrase-file", "secret")["signed"] == 1


@pytest.mark.parametrize("kind", ["file", "jsonl", "folder"])
def test_what_sign_signs_verify_verifies(shell, kind):
    shell.run("attest", "keygen", "alice")
    name, count = {"file": ("a.txt", 1), "jsonl": ("a.jsonl", 3), "folder": ("a", 2)}[kind]
    if kind == "folder":
        shell.write("a/one.txt", "1"), shell.write("a/deep/two.txt", "2")
    else:
        shell.write(name, "one\ntwo\n\nthree\n")
    assert shell.json("attest", "sign", name, "--key", "alice.key", "--class", "x", *BOUNDS)["signed"] == count
    assert shell.json("attest", "verify", name, "--pub", "alice.pub")["verified"] == count


def test_verify_names_every_failure(shell, corpus):
    corpus()
    shell.write("corpus/notes.jsonl", '{"text": "changed"}\n' + '{"text": "note 1"}\n')
    answer = shell.json("attest", "verify", "corpus/notes.jsonl", "--pub", "alice.pub", code=1)
    assert answer["verified"] == 1
    assert [failure["code"] for failure in answer["failures"]] == ["CONTENT_MISMATCH", *3 * ["CONTENT_MISSING"]]
    answer = shell.json("attest", "verify", "corpus/notes.jsonl", "--pub", "owner.pub", code=1)
    assert answer["failures"][0]["code"] == "SIG_BAD"
    answer = shell.json("attest", "verify", "corpus/notes.jsonl", "--pub", "alice.pub", "--at", "2020-01-01", code=1)
    assert answer["failures"][1]["code"] == "NOT_YET_VALID"


def test_bounds_given_by_hand_are_rounded_to_the_strict_side(shell, corpus):
    corpus("--corpus", "c", "--clip-norm", "0.12345678", "--noise-multiplier", "1.00000001")
    signed = shell.json("attest", "show", "corpus/notes.jsonl.attest")["descriptors"][0]
    assert (signed["clip_norm"], signed["noise_multiplier"]) == (0.123456, 1.000001)


def test_bounds_can_be_taken_from_the_policy(shell, corpus):
    corpus()
    signed = shell.json("attest", "show", "corpus/notes.jsonl.attest", "--limit", "2")
    assert signed["count"] == 5 and len(signed["descriptors"]) == 2
    first = signed["descriptors"][0]
    assert (first["corpus"], first["clip_norm"], first["noise_multiplier"]) == ("clinic-notes-2026", 0.5, 1.2)


def test_sign_without_bounds_is_wrong_use(shell, corpus):
    result = shell.run("attest", "sign", "corpus/notes.jsonl", "--key", "alice.key", "--class", "sensitive", code=2)
    assert "--policy" in result.stderr


def test_signing_with_a_key_that_is_not_the_named_one_is_refused(shell, corpus):
    (shell.directory / "alice.pub").write_bytes((shell.directory / "owner.pub").read_bytes())
    arguments = ("attest", "sign", "corpus/notes.jsonl", "--key", "alice.key", "--class", "sensitive", *BOUNDS)
    assert shell.json(*arguments, code=1)["error"]["code"] == "MISMATCH"


def test_withdraw_signs_one_file_per_contribution(shell, corpus):
    corpus()
    attestations = "corpus/notes.jsonl.attest"
    some = shell.json("attest", "withdraw", attestations, "--key", "alice.key", "--record", "2", "--record", "4")
    hashes = [item["descriptor_hash"] for item in shell.json("attest", "show", attestations)["descriptors"]]
    assert [item["descriptor_hash"] for item in some["withdrawals"]] == [hashes[1], hashes[3]]
    assert all((shell.directory / item["path"]).is_file() for item in some["withdrawals"])
    assert len(shell.json("attest", "withdraw", attestations, "--key", "alice.key", "--all")["withdrawals"]) == 5
    shell.run("attest", "withdraw", attestations, "--key", "alice.key", "--record", "6", code=2)
    shell.run("attest", "withdraw", attestations, "--key", "alice.key", code=2)


def test_registry_shows_grants_and_revocations(shell, corpus):
    before = shell.json("registry", "show", "registry.cbor")
    assert before["contributors"][0]["classes"] == ["sensitive"]
    after = shell.json("registry", "revoke", "registry.cbor", "--contributor", "alice", "--at", "2026-12-01")
    assert after["contributors"][0]["keys"][0]["revoked_at"] == 1796083200
    assert after["root"] != before["root"]
    assert "2026-12-01" in shell.run("registry", "show", "registry.cbor").stdout


def test_registry_refuses_an_unknown_key_and_a_malformed_key_id(shell, corpus):
    revoke = ("registry", "revoke", "registry.cbor", "--contributor", "alice", "--key-id")
    assert shell.json(*revoke, "00" * 8, code=1)["error"]["code"] == "KEY_UNKNOWN"
    shell.run(*revoke, "xyz", code=2)


def test_times_may_be_told_from_now(shell, corpus):
    corpus()
    verify = ("attest", "verify", "corpus/notes.jsonl", "--pub", "alice.pub", "--at")
    assert shell.json(*verify, "+364d")["verified"] == 5
    assert shell.json(*verify, "+366d", code=1)["codes"] == {"EXPIRED": 5}
    assert shell.json(*verify, "-1h", code=1)["codes"] == {"NOT_YET_VALID": 5}


def test_a_time_that_is_none_is_wrong_use(shell, corpus):
    shell.run("registry", "revoke", "registry.cbor", "--contributor", "alice", "--at", "tomorrow", code=2)


LENGTHS = "public_lengths = [16, 64]\n"


def offering(shell, corpus):
    """The corpus under a policy whose classes offer lengths; records say their tokens."""
    corpus()
    shell.write("lengths.toml", (shell.directory / "policy.toml").read_text() + LENGTHS)
    name = (shell.directory / "lengths.toml").read_text().rpartition('name = "')[2].partition('"')[0]
    shell.write("said.jsonl", "".join(f'{{"text": "{n}", "tokens": {n}}}\n' for n in (3, 16, 17, 500)))
    return ("attest", "sign", "said.jsonl", "--key", "alice.key", "--class", name, "--policy", "lengths.toml")


def test_every_record_signs_the_shortest_length_that_holds_what_it_says(shell, corpus):
    sign = offering(shell, corpus)
    assert shell.json(*sign, "--length-field", "tokens")["signed"] == 4
    signed = shell.json("attest", "show", "said.jsonl.attest")["descriptors"]
    assert [one["public_length"] for one in signed] == [16, 16, 64, 64]
    assert "padded or cut to 16 tokens, which everybody may know" in " ".join(
        shell.run("attest", "show", "said.jsonl.attest", "--record", "1").stdout.split()
    )
    shell.run(*sign, "--public-length", "64")
    assert {one["public_length"] for one in shell.json("attest", "show", "said.jsonl.attest")["descriptors"]} == {64}


def test_lengths_that_nobody_says_or_offers_are_refused_and_nothing_is_written(shell, corpus):
    sign = offering(shell, corpus)
    assert shell.json(*sign, "--length-field", "words", code=1)["error"]["code"] == "CONTENT_MISSING"
    assert "--length-field chooses among" in shell.run(*sign[:-1], "policy.toml", "--length-field", "tokens", code=2).stderr
    assert "offers the public lengths 16, 64" in shell.run(*sign, "--public-length", "63", code=2).stderr
    assert "give one of them" in shell.run(*sign, "--length-field", "tokens", "--public-length", "16", code=2).stderr
    assert not (shell.directory / "said.jsonl.attest").exists()


def test_repeated_records_are_left_out_of_a_copy_and_the_data_stay(shell):
    shell.run("attest", "keygen", "alice")
    data = shell.write("notes.jsonl", "one\ntwo\n\none\nthree\ntwo")
    before = data.read_bytes()
    sign = ("attest", "sign", "notes.jsonl", "--key", "alice.key", "--class", "x", *BOUNDS)
    told = shell.json(*sign, "--unique", "each.jsonl")
    assert (told["signed"], told["repeated"], told["path"]) == (3, 2, str(shell.directory / "each.jsonl.attest"))
    assert (shell.directory / "each.jsonl").read_bytes() == b"one\ntwo\nthree\n" and data.read_bytes() == before
    assert shell.json("attest", "verify", "each.jsonl", "--pub", "alice.pub")["verified"] == 3
    assert shell.json(*sign, "--unique", "each.jsonl", code=2)["error"]["code"] == "USAGE"
    assert shell.json(*sign, "--unique", "each.txt", code=1)["error"]["code"] == "RANGE"
