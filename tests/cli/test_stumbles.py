"""What a new user does wrong, and the sentence that leads on."""

import json

import pytest


def flowing(text: str) -> str:
    """An error panel as one line."""
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("policy", "check", "polcy.toml"), "does not exist; is policy.toml meant?"),
        (("policy", "check", "rules.toml"), "'dptrain policy init' writes one"),
        (("gate", "policy.cos", "corpus"), "is policy.cose meant?"),
        (("attest", "sign", "corpus/notes.jsonl", "--key", "alic.key", "--class", "x"), "is alice.key meant?"),
        (
            ("attest", "sign", "corpus/notes.jsonl", "--key", "bob-2.key", "--class", "x"),
            "'dptrain attest keygen NAME' writes one",
        ),
        (("attest", "show", "corpus/notes.jsonl"), "is data; its attestations are in corpus/notes.jsonl.attest"),
        (("attest", "show", "corpus"), "corpus is a folder; give one .attest file"),
        (("attest", "show", "scan.attest"), "'dptrain attest sign DATA' writes it"),
        (("attest", "verify", "corpus/notes.jsonl"), "Missing option '--pub'. The signer's key."),
        (("registry", "show", "elsewhere.cbor"), "'dptrain registry init' starts one"),
        (("attest", "sing", "x"), "Did you mean 'sign'?"),
        (("attest", "sign", "x", "--clipnorm", "1"), "--clip-norm"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
@pytest.mark.one_in(3)
def test_wrong_use_says_what_was_likely_meant_or_where_the_file_comes_from(shell, corpus, arguments, sentence):
    corpus()
    assert sentence in flowing(shell.run(*arguments, code=2).stderr)


def test_wrong_use_is_json_too_where_json_is_asked_for(shell):
    result = shell.run("attest", "sign", "x", "--key", "y.key", "--class", "z", "--json", code=2)
    assert json.loads(result.stdout)["error"]["code"] == "USAGE"


def test_the_owner_signs_with_what_lies_beside_the_policy(shell, corpus):
    (shell.directory / "policy.cose").unlink()
    assert shell.json("policy", "sign", "policy.toml")["owner"] == "owner"
    (shell.directory / "registry.cbor").unlink()
    assert "--registry" in flowing(shell.run("policy", "sign", "policy.toml", "--out", "x.cose", code=2).stderr)
