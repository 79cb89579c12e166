"""Purposes at the commands: signed with `attest sign`, shown by `attest show` and `verify`, and asked for by `gate`."""

import pytest

from tests.worlds.commands import POLICY, record

RULE = "{ references = 7, clip_norm = 0.5, temperature = 1.0, tokens = 100, max_rho = 1.0, top_k = 50 }"
BOTH = POLICY.replace('name = "sensitive"\n', f'name = "sensitive"\npurposes = ["generate", "train"]\ngeneration = {RULE}\n')
ALONE = BOTH.replace('["generate", "train"]', '["generate"]')


def ruled(shell, text):
    """Lets the owner sign a policy in place of the one that is there."""
    shell.write("policy.toml", text)
    (shell.directory / "policy.cose").unlink(missing_ok=True)
    shell.run("policy", "sign", "policy.toml", "--key", "owner.key", "--registry", "registry.cbor")


@pytest.fixture
def signing(shell, corpus):
    """Signs the notes for some purposes, under a policy of some text that is signed first."""
    assert BOTH != POLICY != ALONE

    def sign(*purposes, text=BOTH, code=0):
        ruled(shell, text)
        options = [part for word in purposes for part in ("--purpose", word)]
        given = ("--key", "alice.key", "--class", "sensitive", "--policy", "policy.cose", *options)
        return shell.run("attest", "sign", "corpus/notes.jsonl", *given, code=code)

    return sign


@pytest.mark.parametrize(
    ("signed", "admitted"),
    [
        ((), {"train"}),
        (("train",), {"train"}),
        (("generate",), {"generate"}),
        (("train", "generate", "train"), {"train", "generate"}),
    ],
    ids=["none", "train", "generate", "both"],
)
def test_the_gate_judges_for_the_purpose_that_it_is_given(shell, signing, signed, admitted):
    signing(*signed)
    for purpose in ("train", "generate"):
        found = shell.json("gate", "policy.cose", "corpus", "--purpose", purpose, code=int(purpose not in admitted))
        assert found["purpose"] == purpose
        assert (found["admitted"], found["refused"]) == (
            ({"sensitive": 5}, {}) if purpose in admitted else ({}, {"PURPOSE": 5})
        )
    plain = shell.json("gate", "policy.cose", "corpus", code=int("train" not in admitted))
    assert plain["purpose"] == "train"


def test_the_summary_says_for_what_was_judged_and_why_was_refused(shell, signing):
    signing("generate")
    assert "5 admitted to generate, 0 refused" in shell.run("gate", "policy.cose", "corpus", "--purpose", "generate").stdout
    refused = shell.run("gate", "policy.cose", "corpus", code=1).stdout
    assert "refused PURPOSE: 5. The contributor did not sign for this use, or the class does not have it." in refused
    assert "'query' is not one of" in shell.run("gate", "policy.cose", "corpus", "--purpose", "query", code=2).stderr


def test_a_gate_for_generation_leaves_the_reading_of_a_run_as_it_is(shell, signing):
    signing("generate", "train")
    shell.run("gate", "policy.cose", "corpus", "--for", "ledger.db")
    kept = shell.directory / "ledger.db.reading"
    before = kept.read_bytes()
    wrong = shell.run("gate", "policy.cose", "corpus", "--purpose", "generate", "--for", "ledger.db", code=2)
    assert "--for keeps a reading for a run of training" in wrong.stderr
    assert "kept_reading" not in shell.json("gate", "policy.cose", "corpus", "--purpose", "generate")
    assert kept.read_bytes() == before
    assert shell.json("gate", "policy.cose", "corpus", "--for", "ledger.db")["kept_reading"]["spared"] == 5


def test_a_gate_for_generation_refuses_what_was_withdrawn_in_a_ledger_and_leaves_its_reading_as_it_is(shell, signing):
    signing("generate", "train")
    record(shell)
    shell.run("gate", "policy.cose", "corpus", "--ledger", "ledger.db")
    kept = shell.directory / "ledger.db.reading"
    before = kept.read_bytes()
    given = ("gate", "policy.cose", "corpus", "--ledger", "ledger.db")
    found = shell.json(*given, "--purpose", "generate")
    assert found["admitted"] == {"sensitive": 5} and "kept_reading" not in found
    assert kept.read_bytes() == before and shell.json(*given)["kept_reading"]["spared"] == 5
    attestations = "corpus/notes.jsonl.attest"
    made = shell.json("attest", "withdraw", attestations, "--key", "alice.key", "--record", "2")["withdrawals"][0]
    entitled = ("--attestations", attestations, "--registry", "registry.cbor")
    shell.run("ledger", "withdraw", "ledger.db", made["path"], *entitled)
    gone = shell.json(*given, "--purpose", "generate", code=1)
    assert (gone["admitted"], gone["refused"]) == ({"sensitive": 4}, {"WITHDRAWN": 1})


def test_signing_says_the_purposes_and_refuses_what_the_class_does_not_have(shell, signing):
    assert "class sensitive, to generate and train: clip norm" in signing("train", "generate").stdout
    assert "class sensitive: clip norm" in signing().stdout
    for purposes, text, said in (
        (("generate",), POLICY, "class sensitive is for train in policy.cose, asked for is generate"),
        ((), ALONE, "class sensitive is for generate in policy.cose, asked for is train"),
        (("generate", "train"), ALONE, "class sensitive is for generate in policy.cose, asked for is train"),
    ):
        assert said in " ".join(signing(*purposes, text=text, code=2).stderr.replace("│", " ").split())


def test_show_and_verify_say_the_purposes(shell, signing):
    signing("generate", "train")
    listed = shell.json("attest", "show", "corpus/notes.jsonl.attest")
    assert listed["purposes"] == {"generate and train": 5}
    assert [row["purposes"] for row in listed["descriptors"]] == [["generate", "train"]] * 5
    assert "may: generate and train 5" in shell.run("attest", "show", "corpus/notes.jsonl.attest").stdout
    verified = ("attest", "verify", "corpus/notes.jsonl", "--pub", "alice.pub")
    assert shell.json(*verified)["purposes"] == {"generate and train": 5}
    assert "signed to generate and train: 5" in shell.run(*verified).stdout
    signing()
    assert shell.json(*verified)["purposes"] == {"train": 5}


def words(shell, code=0):
    """What `attest show` says of the first attestation, in one line."""
    shown = shell.run("attest", "show", "corpus/notes.jsonl.attest", "--record", "1", "--policy", "policy.cose", code=code)
    return " ".join(shown.stdout.split())


def test_one_attestation_is_told_with_what_may_be_made_of_it_and_what_that_costs(shell, signing):
    signing("generate", "train")
    both = words(shell)
    assert "to train a model on and generate texts from one contribution" in both
    # T C^2 / (2 B^2 tau^2) with T = 100, C = 0.5, B = 7, tau = 1, and the most of the class over it.
    assert "costs each of its references a rho of 0.255102" in both and "all texts together at most 1:" in both
    assert "That is 3 texts at most" in both and "Whenever a step draws it" in both and "epsilon is at most" in both
    assert "the gate would admit it now to generate and train" in both
    signing("generate")
    alone = words(shell)
    assert "to generate texts from one contribution" in alone and "No model is trained on it" in alone
    assert "Whenever a step draws it" not in alone and "drawn with probability" not in alone
    assert "the gate would admit it now to generate," in alone
    signing()
    train = words(shell)
    assert "to train on one contribution" in train and "A text is drawn" not in train
    assert "the gate would admit it now to train," in train


def test_an_attestation_for_more_than_its_class_has_is_told_so(shell, signing):
    signing("generate", "train")
    ruled(shell, POLICY)
    told = words(shell)
    assert "no generation in class sensitive" in told
    assert "admit it now to train, if" in told and "not to generate: class" in told
    signing("generate", text=ALONE)
    ruled(shell, POLICY)
    assert "FAILED PURPOSE" in words(shell, code=1)


def test_a_policy_is_checked_with_what_its_classes_generate(shell):
    shell.write("policy.toml", BOTH)
    found = shell.json("policy", "check", "policy.toml")["consequences"]
    (said,) = [row for row in found if row["code"] == "GENERATION"]
    assert said["class"] == "sensitive" and "a rho of 0.255102" in said["sentence"] and said["level"] == "fact"
    assert "the two are not counted together" in said["sentence"]
    assert {row["code"] for row in found} > {"GENERATION", "REACH"}
    shell.write("policy.toml", POLICY)
    assert not [row for row in shell.json("policy", "check", "policy.toml")["consequences"] if row["code"] == "GENERATION"]


def test_a_plan_lays_out_the_classes_that_are_for_training(shell):
    text = (
        '[[class]]\nname = "texts"\nclip_norm = 9.0\nnoise_multiplier = 9.0\nsampling_rate = 0.5\n'
        f'depth = {{ from = 0.0, to = 1.0 }}\npurposes = ["generate"]\ngeneration = {RULE}\n'
    )
    shell.write("policy.toml", POLICY)
    alone = shell.json("plan", "policy.toml", "--layers", "4")
    shell.write("policy.toml", POLICY.replace("[[class]]", f"{text}[[class]]", 1))
    assert shell.json("plan", "policy.toml", "--layers", "4") == alone
    assert shell.json("policy", "check", "policy.toml", "--contributions", "texts=5")["supported"]


def test_a_policy_that_generates_alone_is_checked_and_plans_no_training(shell):
    head, *classes = POLICY.split("[[class]]")
    only = head + "".join(f"[[class]]{one.rstrip()}\npurposes = [\"generate\"]\ngeneration = {RULE}\n" for one in classes)
    shell.write("policy.toml", only)
    codes = {row["code"] for row in shell.json("policy", "check", "policy.toml")["consequences"]}
    assert codes == {"GENERATION"}
    assert shell.json("plan", "policy.toml", code=1)["error"]["code"] == "PURPOSE"


@pytest.mark.parametrize("text", [BOTH, ALONE], ids=["both", "alone"])
def test_a_signed_policy_shows_what_was_written(shell, signing, text):
    signing("generate", text=text)
    shown = shell.run("policy", "show", "policy.cose").stdout
    assert "[class.generation]" in shown or "generation = {" in shown
    assert 'purposes = ["generate"' in shown and "max_rho = 1" in shown


def test_a_rule_that_pays_for_no_text_is_refused_with_the_numbers(shell):
    shell.write("policy.toml", BOTH.replace("max_rho = 1.0", "max_rho = 0.2"))
    error = shell.json("policy", "check", "policy.toml", code=1)["error"]
    assert error["code"] == "RANGE" and "0.255102100" in error["sentence"] and "0.200000000" in error["sentence"]
