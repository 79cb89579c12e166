"""Where a command finds the key it signs with: a file, a passphrase that it asks for, an SSH agent."""

import shutil
import stat
import subprocess

import pytest

from attest import keys
from tests.cli.terminals import on_terminal
from tests.worlds.commands import POLICY
from tests.worlds.ssh_agents import fake_agent, identities_answer, key_blob, needs_openssh, openssh_agent, ssh_add

BOUNDS = ("--corpus", "clinic-notes-2026", "--clip-norm", "0.5", "--noise-multiplier", "1.2")


def signing(key, *more):
    return ("attest", "sign", "notes.jsonl", "--key", key, "--class", "sensitive", *BOUNDS, *more)


@pytest.fixture
def notes(shell):
    """A shell beside five notes."""
    shell.write("notes.jsonl", "".join(f'{{"n": {number}}}\n' for number in range(5)))
    return shell


@pytest.fixture
def agent(monkeypatch):
    """OpenSSH's agent, empty, in the environment; yields its socket."""
    with openssh_agent() as path:
        monkeypatch.setenv("SSH_AUTH_SOCK", path)
        yield path


@needs_openssh
def test_a_key_of_keygen_goes_into_the_agent_and_signs_there(notes, agent):
    notes.run("attest", "keygen", "carol", "--format", "openssh")
    ssh_add(agent, notes.directory / "carol.key")
    (notes.directory / "carol.key").unlink()
    answer = notes.json(*signing("carol.pub"))
    assert (answer["signed"], answer["contributor"]) == (5, "carol")
    assert notes.json("attest", "verify", "notes.jsonl", "--pub", "carol.pub")["verified"] == 5
    withdrawn = notes.json("attest", "withdraw", "notes.jsonl.attest", "--key", "carol.pub", "--record", "2")
    assert withdrawn["signer"] == "carol" and len(withdrawn["withdrawals"]) == 1
    assert notes.json(*signing("carol.pub", "--contributor", "carol/home"))["contributor"] == "carol/home"


@needs_openssh
def test_the_owner_signs_registry_and_policy_through_the_agent(shell, agent):
    shell.write("policy.toml", POLICY)
    for name in ("owner", "alice"):
        shell.run("attest", "keygen", name, "--format", "openssh")
        ssh_add(agent, shell.directory / f"{name}.key")
        (shell.directory / f"{name}.key").unlink()
    shell.run("registry", "init", "registry.cbor", "--key", "owner.pub")
    shell.run("registry", "add", "registry.cbor", "--key", "owner.pub", "--pub", "alice.pub", "--class", "sensitive")
    shell.run("registry", "verify", "registry.cbor", "--owner-key", "owner.pub")
    shell.run("policy", "sign", "policy.toml", "--key", "owner.pub", "--registry", "registry.cbor")
    shell.write("corpus/notes.jsonl", '{"text": "note"}\n')
    sign = ("attest", "sign", "corpus/notes.jsonl", "--key", "alice.pub", "--class", "sensitive")
    shell.run(*sign, "--policy", "policy.cose", "--owner-key", "owner.pub")
    assert shell.json("gate", "policy.cose", "corpus")["admitted"] == {"sensitive": 1}


@needs_openssh
def test_an_agent_without_the_key_says_which_file_to_load(notes, agent):
    notes.run("attest", "keygen", "alice", "--format", "openssh")
    error = notes.json(*signing("alice.pub"), code=1)["error"]
    assert error["code"] == "AGENT_KEY" and "ssh-add alice.key" in error["sentence"]
    assert "9.6" not in error["sentence"]
    notes.run("attest", "keygen", "bob")
    error = notes.json(*signing("bob.pub"), code=1)["error"]
    assert "OpenSSH before 9.6 loads only keys of keygen --format openssh" in error["sentence"]
    assert not (notes.directory / "notes.jsonl.attest").exists()


def test_without_an_agent_the_sentence_says_so(notes, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    notes.run("attest", "keygen", "alice")
    error = notes.json(*signing("alice.pub"), code=1)["error"]
    assert error["code"] == "AGENT" and "SSH_AUTH_SOCK is not set" in error["sentence"]
    assert "--key alice.key" in error["sentence"]
    notes.write("secret", "x\n")
    assert "alice.pub has no passphrase" in notes.run(*signing("alice.pub", "--passphrase-file", "secret"), code=2).stderr


def test_a_lying_agent_leaves_no_attestations(notes, monkeypatch):
    notes.run("attest", "keygen", "alice")
    listing = identities_answer(key_blob(keys.load_public_key(notes.directory / "alice.pub")))
    zeros = b"\x0e" + b"\0\0\0\x53" + b"\0\0\0\x0bssh-ed25519" + b"\0\0\0\x40" + bytes(64)
    with fake_agent(lambda request: listing if request[0] == 11 else zeros) as path:
        monkeypatch.setenv("SSH_AUTH_SOCK", path)
        assert notes.json(*signing("alice.pub"), code=1)["error"]["code"] == "SIGNER"
    assert not (notes.directory / "notes.jsonl.attest").exists()


@pytest.mark.parametrize("form", ["pem", "openssh"])
def test_keygen_writes_either_form_and_both_sign(notes, form):
    answer = notes.json("attest", "keygen", "alice", "--format", form)
    text = (notes.directory / "alice.key").read_bytes()
    assert text.startswith(b"-----BEGIN OPENSSH PRIVATE KEY" if form == "openssh" else b"-----BEGIN PRIVATE KEY")
    assert stat.S_IMODE((notes.directory / answer["private_key"]).stat().st_mode) == 0o600
    assert notes.json(*signing("alice.key"))["signed"] == 5
    notes.run("attest", "keygen", "bob", "--format", "putty", code=2)


def test_keygen_takes_a_key_from_another_file_into_the_other_form(shell):
    shell.run("attest", "keygen", "alice")
    shell.write("new/.keep", ""), shell.write("secret", "correct horse\n")
    taken = ("attest", "keygen", "alice", "--dir", "new", "--from", "alice.key", "--format", "openssh")
    shell.run(*taken, "--passphrase-file", "secret")
    assert (shell.directory / "new/alice.pub").read_bytes() == (shell.directory / "alice.pub").read_bytes()
    loaded = keys.load_private_key(shell.directory / "new/alice.key", "correct horse")
    assert keys.public_bytes(loaded) == keys.load_public_key(shell.directory / "alice.pub")
    assert shell.json("attest", "keygen", "bob", "--from", "new/alice.key", code=1)["error"]["code"] == "PASSPHRASE"


@needs_openssh
def test_keygen_takes_the_public_half_of_a_key_that_lives_in_an_agent(notes, agent):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", notes.directory / "id_ed25519"], check=True)
    ssh_add(agent, notes.directory / "id_ed25519")
    assert "keygen NAME --from" in notes.json(*signing("id_ed25519.pub"), code=1)["error"]["sentence"]
    notes.write("secret", "x\n")
    notes.run("attest", "keygen", "alice", "--from", "id_ed25519.pub", "--passphrase-file", "secret", code=2)
    answer = notes.json("attest", "keygen", "alice", "--from", "id_ed25519.pub")
    assert answer["private_key"] is None and not (notes.directory / "alice.key").exists()
    assert notes.json(*signing("alice.pub"))["signed"] == 5
    assert notes.json("attest", "verify", "notes.jsonl", "--pub", "alice.pub")["verified"] == 5


@pytest.mark.slow
def test_a_new_passphrase_is_asked_for_twice(shell):
    keygen = ("attest", "keygen", "alice", "--passphrase", "--format", "openssh")
    asked = [("Passphrase of the new key: ", "correct horse"), ("Once more: ", "correct horse")]
    code, shown = on_terminal(shell.directory, keygen, asked)
    assert code == 0 and "wrote alice.key" in shown and "correct horse" not in shown
    keys.load_private_key(shell.directory / "alice.key", "correct horse")
    bob = ("attest", "keygen", "bob", "--passphrase")
    code, shown = on_terminal(shell.directory, bob, [asked[0], ("Once more: ", "other")])
    assert code == 2 and "differ" in shown and not (shell.directory / "bob.key").exists()
    code, shown = on_terminal(shell.directory, bob, [(text, "") for text, _ in asked])
    assert code == 1 and "PASSPHRASE" in shown and not (shell.directory / "bob.key").exists()


def test_nobody_to_ask_for_a_new_passphrase_is_wrong_use(shell):
    assert "--passphrase-file" in shell.run("attest", "keygen", "alice", "--passphrase", code=2).stderr
    shell.write("secret", "x\n")
    shell.run("attest", "keygen", "alice", "--passphrase", "--passphrase-file", "secret", code=2)
    assert not (shell.directory / "alice.key").exists()


@pytest.mark.slow
def test_the_passphrase_of_a_key_is_asked_for_three_times_at_most(notes):
    notes.write("secret", "correct horse\n")
    notes.run("attest", "keygen", "alice", "--passphrase-file", "secret")
    question = "Passphrase of alice.key: "
    code, shown = on_terminal(notes.directory, signing("alice.key"), [(question, "wrong"), (question, "correct horse")])
    assert code == 0 and "signed 5 contributions as alice" in shown and "correct horse" not in shown
    (notes.directory / "notes.jsonl.attest").unlink()
    code, shown = on_terminal(notes.directory, signing("alice.key"), 3 * [(question, "wrong")])
    assert code == 1 and "PASSPHRASE" in shown and not (notes.directory / "notes.jsonl.attest").exists()


def test_a_passphrase_file_that_is_no_text_is_refused_with_a_code(notes):
    notes.run("attest", "keygen", "alice")
    (notes.directory / "secret").write_bytes(b"\xff\xfe\n")
    assert notes.json(*signing("alice.key", "--passphrase-file", "secret"), code=1)["error"]["code"] == "PASSPHRASE"


@pytest.mark.skipif(shutil.which("ssh-add") is None, reason="ssh-add is not installed (package openssh-client)")
def test_ssh_add_asks_for_the_passphrase_that_keygen_was_given(shell, agent):
    shell.write("secret", "correct horse\n")
    shell.run("attest", "keygen", "alice", "--format", "openssh", "--passphrase-file", "secret")
    helper = shell.write("askpass", "#!/bin/sh\necho correct horse\n")
    helper.chmod(0o700)
    ssh_add(agent, shell.directory / "alice.key", SSH_ASKPASS=str(helper), SSH_ASKPASS_REQUIRE="force")
    shell.write("notes.jsonl", '{"n": 1}\n')
    assert shell.json(*signing("alice.pub"))["signed"] == 1
