"""`dptrain policy`: what is written can be read, explained, signed and shown."""

from dataclasses import replace

import pytest

from attest.keys import load_public_key
from attest.policy import Policy, open_policy
from attest.schema.rounding import at_most


def sentences(answer: dict) -> str:
    return "\n".join(item["sentence"] for item in answer["consequences"])


def test_the_template_is_a_policy_that_this_build_can_train_under(shell):
    shell.run("policy", "init", "--corpus", "clinic-notes-2026")
    answer = shell.json("policy", "check", "policy.toml")
    assert answer["supported"] and not any(item["level"] == "warning" for item in answer["consequences"])
    shell.run("policy", "init", code=2)


def test_check_says_in_words_what_each_class_is_promised(shell):
    shell.run("policy", "init")
    text = sentences(shell.json("policy", "check", "policy.toml", "--layers", "8"))
    run = ["--sampling-rate", "0.01", "--steps", "1000", "--delta", "1e-6"]
    epsilon = shell.json("account", "--noise-multiplier", "1.2", *run)["epsilon"]
    assert f"({at_most(epsilon)}, 1e-06)-indistinguishable" in text
    assert "only layer.6, layer.7, head" in text
    assert "10 times in all on average" in text
    assert "never too few" in text


def test_check_warns_of_what_promises_little_or_wastes_noise(shell, corpus):
    policy = (shell.directory / "policy.toml").read_text()
    shell.write("weak.toml", policy.replace("noise_multiplier = 0.8", "noise_multiplier = 0.3").replace("1e-6", "1e-3"))
    found = shell.json("policy", "check", "weak.toml")["consequences"]
    warnings = {(item["code"], item["class"]): item["changes"] for item in found if item["level"] == "warning"}
    assert warnings["EPSILON_WEAK", "public"][0]["setting"] == "noise_multiplier of class public"
    assert warnings["DELTA_LARGE", None] == [{"setting": "delta", "value": "1e-6"}]


def test_check_fails_for_a_policy_that_this_build_cannot_honour(shell, corpus):
    policy = (shell.directory / "policy.toml").read_text()
    together = 'exactness = "certified"\ndisclosure = "occurrences_public"\nnoise = { injection = "per_sample" }'
    shell.write("other.toml", policy.replace("steps = 20", f"steps = 20\n{together}"))
    answer = shell.json("policy", "check", "other.toml", code=1)
    assert not answer["supported"] and len(answer["unsupported"]) == 1
    assert "no accounting together" in answer["unsupported"][0]


@pytest.mark.parametrize("verb", ["check", "sign"])
def test_what_is_specified_and_not_built_is_refused_by_name_before_it_is_signed(shell, corpus, verb):
    policy = (shell.directory / "policy.toml").read_text()
    said = 'disclosure = "secret_draws"\nsampling = { order = "balls_in_bins", parameters = { bins = 5 } }'
    shell.write("later.toml", policy.replace("steps = 20", f"steps = 20\n{said}"))
    error = shell.json("policy", verb, "later.toml", code=1)["error"]
    assert error["code"] == "NOT_BUILT" and "balls_in_bins" in error["sentence"]
    assert "specified, not built yet" in error["sentence"] and not (shell.directory / "later.cose").exists()


def test_an_unknown_key_is_refused_with_the_nearest_known_one(shell, corpus):
    policy = (shell.directory / "policy.toml").read_text()
    shell.write("typo.toml", policy.replace("clip_norm", "clipnorm", 1))
    assert "'clip_norm'" in shell.json("policy", "check", "typo.toml", code=1)["error"]["sentence"]


def test_a_signed_policy_shows_what_was_signed_and_by_whom(shell, corpus):
    answer = shell.json("policy", "show", "policy.cose")
    assert answer["owner"] == "owner"
    assert answer["policy"]["registry_root"] == shell.json("registry", "show", "registry.cbor")["root"]
    assert answer["policy"]["classes"][0]["depth"] == {"from": 0.75, "to": 1.0}
    shown = shell.run("policy", "show", "policy.cose").stdout
    assert "signed by owner" in shown
    signed = open_policy(shell.directory / "policy.cose", load_public_key(shell.directory / "owner.pub"))
    assert replace(signed.policy, registry_root=None) == Policy.from_toml(shown)


@pytest.mark.parametrize(
    "depth",
    [
        "{ from = 0.125, to = 1.0, embeddings = true }",
        "{ layers = [0, 3, 11], head = false }",
        '{ set = ["vision.*", "text.[ab]?"] }',
        '{ adapter = "clinic" }',
    ],
)
def test_every_policy_is_shown_as_text_that_reads_back_as_the_same(shell, depth):
    shell.run("policy", "init")
    text = (shell.directory / "policy.toml").read_text().replace("{ from = 0.75, to = 1.0 }", depth)
    text = text.replace("delta = 1e-6", "delta = 0.00000123456").replace("sampling_rate = 0.01", "sampling_rate = 0.000123")
    policy = Policy.from_toml(text.replace("clip_norm = 0.5 ", "max_window_days = 7\nclip_norm = 123456.000001 "))
    assert Policy.from_toml(policy.to_toml()) == policy


def test_a_class_bound_to_an_adapter_or_to_names_is_told_in_words(shell, corpus):
    policy = (shell.directory / "policy.toml").read_text()
    shell.write("bound.toml", policy.replace("{ from = 0.0, to = 1.0 }", '{ adapter = "clinic" }'))
    assert shell.json("policy", "check", "bound.toml")["supported"]
    told = " ".join(shell.run("policy", "check", "bound.toml").stdout.split())
    assert "only the parameters of adapter 'clinic'" in told and "only the model tells" in told
    planned = " ".join(shell.run("plan", "bound.toml").stdout.split())
    assert "parameters of adapter 'clinic'" in planned and "adapter clinic" in planned
    shell.write("named.toml", policy.replace("{ from = 0.0, to = 1.0 }", '{ set = ["vision_model.*"] }'))
    assert "only parameters whose names match 'vision_model.*'" in " ".join(
        shell.run("policy", "check", "named.toml").stdout.split()
    )


def test_an_unsigned_policy_or_a_foreign_signature_is_refused(shell, corpus):
    assert shell.json("policy", "show", "policy.toml", code=1)["error"]["code"] == "UNSIGNED"
    assert shell.json("policy", "show", "policy.cose", "--owner-key", "alice.pub", code=1)["error"]["code"] == "SIG_BAD"


def test_sign_says_which_granted_classes_the_policy_lacks(shell, corpus):
    shell.run("registry", "add", "registry.cbor", "--pub", "owner.pub", "--class", "secret")
    sign = ("policy", "sign", "policy.toml", "--key", "owner.key", "--registry", "registry.cbor")
    shell.run(*sign, code=2)
    assert shell.json(*sign, "--out", "again.cose")["unknown_classes"] == ["secret"]


def test_only_a_text_policy_can_be_signed(shell, corpus):
    shell.run("policy", "sign", "policy.cose", "--key", "owner.key", "--registry", "registry.cbor", "--out", "x", code=2)


def test_the_owners_key_must_be_found_or_given(shell, corpus):
    (shell.directory / "owner.pub").rename(shell.directory / "clinic.pub")
    assert "--owner-key" in shell.run("policy", "show", "policy.cose", code=2).stderr
    shell.run("policy", "show", "policy.cose", "--owner-key", "clinic.pub")


def test_check_says_what_a_geometry_does_and_what_it_does_not_go_with(shell, corpus):
    policy = (shell.directory / "policy.toml").read_text()
    shell.write("tangent.toml", policy.replace("steps = 20", 'steps = 20\ngeometry = "lora_tangent"'))
    answer = shell.json("policy", "check", "tangent.toml")
    (told,) = [item["sentence"] for item in answer["consequences"] if item["code"] == "GEOMETRY"]
    assert "of all adapters" in told and "every epsilon is the same" in told
    shell.write("exact.toml", policy.replace("steps = 20", 'steps = 20\ngeometry = "lora_tangent"\nexactness = "certified"'))
    error = shell.json("policy", "check", "exact.toml", code=1)["error"]
    assert error["code"] == "GEOMETRY" and "'certified'" in error["sentence"]
