"""Public classes on the command line: no number about their privacy anywhere, and nobody signs for one unawares."""

import pytest

from attest.keys import load_public_key
from attest.policy import open_policy
from ledger import accountants

POLICY = """
corpus = "clinic-notes-2026"
delta = 1e-6
steps = 20
normalizer = 4
[noise]
injection = "per_microbatch"
microbatches = 3
[floors]
clip_norm = 0.01
noise_multiplier = 0.5
[[class]]
name = "sensitive"
clip_norm = 0.5
noise_multiplier = 1.2
sampling_rate = 1.0
depth = { from = 0.75, to = 1.0 }
[[class]]
name = "encyclopedia"
public = true
sampling_rate = 0.5
depth = { from = 0.0, to = 1.0 }
"""


@pytest.fixture
def world(shell):
    shell.write("policy.toml", POLICY)
    shell.write("notes.jsonl", '{"text": "a"}\n{"text": "b"}\n')
    shell.write("pages.jsonl", '{"text": "c"}\n{"text": "d"}\n{"text": "e"}\n')
    shell.run("attest", "keygen", "owner")
    for name, granted in (("alice", "sensitive"), ("wiki", "encyclopedia")):
        shell.run("attest", "keygen", name)
        shell.run("registry", "add", "registry.cbor", "--pub", f"{name}.pub", "--class", granted)
    shell.run("policy", "sign", "policy.toml", "--key", "owner.key", "--registry", "registry.cbor")
    return shell


def sign(shell, data, name, *arguments, code=0):
    bounds = ("--policy", "policy.cose", "--owner-key", "owner.pub")
    return shell.run("attest", "sign", data, "--key", f"{name}.key", *bounds, *arguments, code=code)


def test_nobody_signs_for_a_public_class_unawares(world):
    pages = ("pages.jsonl", "wiki", "--class", "encyclopedia")
    assert "Repeat with --public" in sign(world, *pages, code=2).output
    assert "has no bounds" in sign(world, *pages, "--public", "--clip-norm", "1", code=2).output
    assert "PUBLIC, neither clipped nor noised" in sign(world, *pages, "--public").output
    assert "is not public" in sign(world, "notes.jsonl", "alice", "--class", "sensitive", "--public", code=2).output
    sign(world, "notes.jsonl", "alice", "--class", "sensitive")
    shown = world.run("attest", "show", "pages.jsonl.attest", "--record", "1").output
    assert "It is signed as PUBLIC" in " ".join(shown.split())


def test_the_gate_refuses_bounds_in_a_public_class_and_the_plan_names_no_number(world):
    sign(world, "pages.jsonl", "wiki", "--class", "encyclopedia", "--public")
    world.run(
        *("attest", "sign", "notes.jsonl", "--key", "wiki.key", "--class", "encyclopedia", "--corpus", "clinic-notes-2026"),
        *("--clip-norm", "0.5", "--noise-multiplier", "1.2"),
    )
    assert world.json("gate", "policy.cose", "pages.jsonl")["admitted"] == {"encyclopedia": 3}
    assert world.json("gate", "policy.cose", "notes.jsonl", code=1)["refused"] == {"BOUNDS_NOT_PUBLIC": 2}
    planned = world.json("plan", "policy.cose", "pages.jsonl")
    assert [item["name"] for item in planned["classes"]] == ["sensitive"]
    assert [item["name"] for item in planned["public"]] == ["encyclopedia"] and "preset" not in planned["public"][0]
    assert planned["signed_bounds"] == {} and planned["unsupported"] == []
    assert [block["std"] == 0.0 for block in planned["blocks"]] == [True] * 10 + [False] * 4
    lines = world.run("plan", "policy.cose", "pages.jsonl").output.splitlines()
    assert sum(line.count("public") >= 5 for line in lines) == 2


def test_check_says_what_a_public_class_is_and_how_often_noise_is_drawn(world):
    answer = world.json("policy", "check", "policy.toml", "--contributions", "encyclopedia=100")
    assert answer["supported"]
    of_class = [item["code"] for item in answer["consequences"] if item["class"] == "encyclopedia"]
    assert of_class == ["REACH", "PUBLIC"]
    text = " ".join(item["sentence"] for item in answer["consequences"])
    assert "No epsilon is claimed for them" in text and "noise is drawn 3 times per step" in text
    assert "encyclopedia 0" not in text


def test_show_gives_back_the_policy(world):
    signed = open_policy(world.directory / "policy.cose", load_public_key(world.directory / "owner.pub"))
    text = world.run("policy", "show", "policy.cose").output
    assert "public = true" in text and "microbatches = 3" in text and "1000000000" not in text
    assert type(signed.policy).from_toml(signed.policy.to_toml()) == type(signed.policy).from_toml(POLICY)
    shown = world.json("policy", "show", "policy.cose")["policy"]
    assert shown["noise_microbatches"] == 3
    assert [(rule["public"], rule["clip_norm"]) for rule in shown["classes"]] == [(False, 0.5), (True, None)]


def test_nothing_is_amplified_where_occurrences_are_public(world):
    """The same policy with public draws: each occurrence in full, and not a word about secrecy."""
    private = POLICY.split("[noise]")[0] + "\n".join(["[[class]]" + part for part in POLICY.split("[[class]]")[1:2]])
    secret = private.replace("sampling_rate = 1.0", "sampling_rate = 0.1")
    world.write("secret.toml", secret)
    world.write("open.toml", secret.replace("steps = 20", 'steps = 20\ndisclosure = "occurrences_public"'))
    literal = secret.replace("steps = 20", 'steps = 20\ndisclosure = "occurrences_public"\nnoise.injection = "per_sample"')
    world.write("literal.toml", literal)
    hidden, told, each = (
        world.json("plan", name)["classes"][0]["preset"]["epsilon"] for name in ("secret.toml", "open.toml", "literal.toml")
    )
    assert told > 3 * hidden and each == told
    told_all = world.json("plan", "open.toml")["classes"][0]["preset"]
    likely, redone = (accountants.likely_occurrences(0.1, steps) for steps in (20, 40))
    assert redone > likely > 2
    assert told_all["epsilon"] == accountants.epsilon_occurrences(likely / 1.2**2, 1e-6)
    assert told_all["epsilon_replace"] == accountants.epsilon_occurrences(4 * likely / 1.2**2, 1e-6)
    assert told_all["epsilon_with_redo"] == accountants.epsilon_occurrences(redone / 1.2**2, 1e-6)
    for name in ("open.toml", "literal.toml"):
        text = " ".join(item["sentence"] for item in world.json("policy", "check", name)["consequences"])
        assert "each occurrence counts in full" in text and "draws staying secret" not in text
    assert "brings its own noise" in text


MODES = {
    "secret": ("secret_poisson", "scheduled", ""),
    "open": ("occurrences_public", "scheduled", 'disclosure = "occurrences_public"'),
    "literal": ("occurrences_public", "per_sample", 'disclosure = "occurrences_public"\nnoise.injection = "per_sample"'),
}


@pytest.mark.parametrize("mode", MODES)
def test_plan_says_who_sees_the_draws_and_what_the_noise_follows(shell, mode):
    disclosure, injection, extra = MODES[mode]
    private = POLICY.split("[noise]")[0] + "[[class]]" + POLICY.split("[[class]]")[1]
    shell.write("policy.toml", private.replace("steps = 20", f"steps = 20\n{extra}"))
    planned = shell.json("plan", "policy.toml")
    assert (planned["disclosure"], planned["noise_injection"]) == (disclosure, injection)
    text = " ".join(shell.run("plan", "policy.toml").output.split())
    public, literal = mode != "secret", mode == "literal"
    assert ("occurrences are public" in text) is public
    assert ("as many draws as one contribution in a million exceeds" in text) is public
    assert ("the noise of a step follows its draw" in text) is literal
    assert ("of that of uniform noise" in text) is not literal
    assert ("z: what the schedule gives" in text) is not literal
    checked = " ".join(item["sentence"] for item in shell.json("policy", "check", "policy.toml")["consequences"])
    assert ("count up to 16 steps that never ran" in checked) is not public
    assert ("count the occurrences of at most one step that never ran" in checked) is public
