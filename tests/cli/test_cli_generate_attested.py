"""Texts from contributions that were signed for generation: sign, gate, generate, export, verify, by the commands alone."""

import json
import shutil
import time
from dataclasses import replace
from unittest.mock import patch

import pytest

from attest import keys
from attest.attestation import read_sequence
from attest.corpus import Contents, open_corpus
from attest.policy import open_policy
from attest.registry import open_registry
from dptrain.errors import ContentChanged
from dptrain.inference.invisibleink import Plan
from dptrain.inference.invisibleink.pool import Pool
from dptrain.inference.invisibleink.references import References
from dptrain.inference.invisibleink.run import Purse, Run
from ledger.budget.log import BudgetLog
from ledger.budget.rho import epsilon_of_rho
from ledger.log import Ledger
from ledger.storage.place import Place
from tests.worlds.commands import record
from tests.worlds.ledgers import SIGNER, Driver, admission, header_spec, parameter, stack_of
from tests.worlds.text_runs import TASK, TEXTS, lines_of, model_folder

POLICY = """
corpus = "clinic-notes-2026"
delta = 1e-6
steps = 20
normalizer = 4
epoch_steps = 10
window_steps = 5
redo_steps = 10
[[class]]
name = "notes"
clip_norm = 0.5
noise_multiplier = 1.2
sampling_rate = 0.1
depth = { from = 0.75, to = 1.0 }
purposes = ["generate", "train"]
generation = { references = 3, clip_norm = 0.5, temperature = 1.0, tokens = 6, max_rho = 0.17, top_k = 40 }
[[class]]
name = "other"
clip_norm = 0.5
noise_multiplier = 1.2
sampling_rate = 0.1
depth = { from = 0.75, to = 1.0 }
"""
"""A text costs 6 * 0.5^2 / (2 * 3^2) = 0.0834 of rho, so the rule lets a contribution pay for two."""


@pytest.fixture
def clinic(shell):
    """Keys, registry and a signed policy whose class `notes` is for generation too."""
    for name in ("alice", "owner"):
        shell.run("attest", "keygen", name)
    shell.write("policy.toml", POLICY)
    words = ["--pub", "alice.pub", "--class", "notes", "--class", "other"]
    shell.run("registry", "add", "registry.cbor", *words)
    shell.run("policy", "sign", "policy.toml", "--key", "owner.key", "--registry", "registry.cbor")
    shell.write("task.toml", TASK)
    return shell


def sign(shell, name, texts, *options, purpose=("generate",), class_name="notes"):
    """Alice signs rows as contributions."""
    shell.write(f"corpus/{name}.jsonl", "".join(f"{json.dumps({'text': text})}\n" for text in texts))
    purposes = [word for each in purpose for word in ("--purpose", each)]
    words = ["--key", "alice.key", "--class", class_name, "--policy", "policy.cose", "--owner-key", "owner.pub"]
    shell.run("attest", "sign", f"corpus/{name}.jsonl", *words, *purposes, *options)


def texts(count, word="note"):
    return [f"{word} {number}: {TEXTS[number % len(TEXTS)]}" for number in range(count)]


GENERATE = ("generate", "task.toml", "corpus", "--policy", "policy.cose", "--class", "notes")


def run(shell, *more, code=0):
    return shell.json(*GENERATE, "--model", str(model_folder()), "--out", "run", *more, code=code)


def test_the_whole_way_from_a_signature_to_what_an_auditor_finds_of_it(clinic):
    sign(clinic, "notes", texts(7))
    judged = clinic.json("gate", "policy.cose", "corpus", "--purpose", "generate")
    assert judged["admitted"] == {"notes": 7}
    planned = clinic.json(*GENERATE, "--plan")
    assert (planned["clip_norm"], planned["batch"], planned["tokens"], planned["top_k"]) == (0.5, 3, 6, 40)
    assert (planned["batches"], planned["texts_at_most"]) == (2, 4)
    told = run(clinic)
    assert (told["texts"], told["references"]) == (2, 7)
    assert told["epsilon"] < told["epsilon_cap"]
    found = clinic.json(*told["verify"].split()[1:])
    assert [one["verified"] for one in found["generation"]] == [7]
    assert found["verdict"].startswith("FULL") and found["reserves"] == 2
    signed = ["--attestation", "corpus/notes.jsonl.attest"]
    mine = clinic.json("ledger", "show", told["export"], "--key", told["key"], *signed)
    charged = sorted((one["spent_nano"], [text["computed"] for text in one["texts"]]) for one in mine["contributions"])
    assert charged[0] == (0, []) and len(charged) == 7
    shown = clinic.run("ledger", "show", told["export"], "--key", told["key"], *signed).stdout
    most = charged[-1][0]
    assert f"in all  2 texts of 7 contributions, {told['tokens']} tokens; the most charged to one {most} (1e-9 rho)" in shown
    assert all(nano == sum(computed) * 13_888_889 > 0 for nano, computed in charged[1:])
    with BudgetLog.open(Place.of(clinic.directory / "policy.budget.db"), read_only=True) as log:
        [rule] = log.header.generation
        assert (rule.name, rule.references, rule.tokens, rule.max_rho_nano) == ("notes", 3, 6, 170_000_000)
        assert len(log.state.admitted) == 7
        with open(clinic.directory / "corpus/notes.jsonl.attest", "rb") as stream:
            digests = {one.read().digest() for one in read_sequence(stream)}
        assert log.state.admitted.keys() == digests
        assert len(log.state.accounts) == 6 and log.state.accounts.keys() < digests


def test_the_rule_says_how_much_a_contribution_spends_over_all_texts_and_no_text_is_made_beyond(clinic):
    sign(clinic, "notes", texts(7))
    assert run(clinic)["texts"] == 2
    assert run(clinic, "--texts", "3")["new"] == 1
    again = run(clinic, "--texts", "5", code=1)
    assert (again["texts"], again["exhausted"]) == (4, True)
    numbers = [one["number"] for one in lines_of(clinic.directory / "run/texts.jsonl")]
    assert numbers == [1, 2, 3, 4]
    with BudgetLog.open(Place.of(clinic.directory / "policy.budget.db"), read_only=True) as log:
        assert max(account.spent for account in log.state.accounts.values()) <= 170_000_000


def test_what_was_signed_to_train_alone_or_for_another_class_makes_no_text(clinic):
    sign(clinic, "both", texts(3, "both"), purpose=("generate", "train"))
    sign(clinic, "train", texts(4, "train"), purpose=("train",))
    sign(clinic, "other", texts(2, "other"), purpose=("train",), class_name="other")
    told = run(clinic)
    assert (told["references"], told["texts"], told["refused"]) == (3, 1, {"PURPOSE": 6})


def test_a_contribution_that_is_empty_keeps_its_place_and_pays_as_all_others(clinic):
    sign(clinic, "notes", ["a red boat", "", "tea"])
    clinic.write("corpus/blob.bin", "")
    (clinic.directory / "corpus/blob.bin").write_bytes(b"\xff\xfe no text")
    words = ["--key", "alice.key", "--class", "notes", "--policy", "policy.cose", "--owner-key", "owner.pub"]
    clinic.run("attest", "sign", "corpus/blob.bin", *words, "--purpose", "generate")
    told = run(clinic)
    assert (told["references"], told["texts"]) == (4, 1)


ALONE = epsilon_of_rho(0.17, 1e-6)
"""Says what the texts that the rule allows are worth."""


def limits(clinic, *micro):
    """One contribution for each limit over all runs, in 1e-6."""
    for number, one in enumerate(micro):
        words = ("--max-epsilon", f"{one / 1e6:f}", "--max-delta", "1e-6")
        sign(clinic, f"limited{number}", texts(1, f"limited {number}"), *words)


def test_a_contribution_whose_limit_over_all_runs_its_texts_could_pass_is_left_out_by_name(clinic):
    sign(clinic, "notes", texts(3))
    least = int(ALONE * 1e6) + 1
    limits(clinic, least, least - 1)
    planned = clinic.json(*GENERATE, "--plan")
    assert (planned["references"], planned["refused"]) == (4, {"LIMIT": 1})
    told = run(clinic)
    assert (told["references"], told["refused"]) == (4, {"LIMIT": 1})
    assert clinic.json(*told["verify"].split()[1:])["qualifiers"][-2:] == ["LIMITS_ALONE", "UNCOMPARED"]


def test_a_class_whose_limit_over_all_runs_its_texts_could_pass_makes_none(clinic):
    sign(clinic, "notes", texts(3))
    for epsilon, wrong in ((ALONE + 0.001, False), (ALONE - 0.001, True)):
        limited = POLICY.replace('purposes = ["gen', f'max_epsilon_total = {epsilon:.6f}\npurposes = ["gen')
        name = f"limited{wrong}"
        clinic.write(f"{name}.toml", limited)
        clinic.run("policy", "sign", f"{name}.toml", "--key", "owner.key", "--registry", "registry.cbor")
        words = [f"{name}.cose" if word == "policy.cose" else word for word in GENERATE]
        made = [*words, "--model", str(model_folder()), "--out", name]
        if wrong:
            assert clinic.json(*words, "--plan", code=1)["error"]["code"] == "LIMIT"
            assert clinic.json(*made, code=1)["error"]["code"] == "LIMIT"
            assert not (clinic.directory / f"{name}.budget.db").exists()
            continue
        assert clinic.json(*words, "--plan")["references"] == 3
        told = clinic.json(*made)
        found = clinic.json(*told["verify"].split()[1:])
        assert (found["verdict"], told["texts"]) == ("FULL", 1) and "LIMITS_ALONE" in found["qualifiers"]


def trained(clinic, steps=2):
    """A closed run of the policy, in which everybody who signed took part; returns its ledger, its export and its key."""
    policy = open_policy(clinic.directory / "policy.cose", keys.load_public_key(clinic.directory / "owner.pub"))
    owner = keys.load_public_key(clinic.directory / "owner.pub")
    stack = stack_of(4, *(parameter(f"layers.{number}.weight") for number in range(4)))
    spec = header_spec(policy, owner_key=owner, registry_root=policy.policy.registry_root, stack=stack)
    began = int(time.time()) - 60
    with Ledger.create(clinic.directory / "run.db", spec, SIGNER, now=began) as ledger:
        driver = Driver(ledger, now=began)
        for number, path in enumerate(sorted((clinic.directory / "corpus").glob("*.attest"))):
            with open(path, "rb") as stream:
                for place, one in enumerate(read_sequence(stream)):
                    signed = one.read()
                    terms = {"max_epsilon_micro": signed.limit[0], "max_delta_pico": signed.limit[1]}
                    named = {"descriptor_hash": one.read().digest(), "clip_micro": 500_000, "sigma_micro": 1_200_000}
                    driver.admit(replace(admission(100 * number + place, "open"), class_name="notes", **named, **terms))
        driver.steps(steps)
        driver.epoch()
        ledger.finish(now=driver.tick())
        ledger.export(clinic.directory / "before")
    clinic.write("run.pub", f"{SIGNER.vkey}\n")
    return "run.db", "before", "run.pub"


def test_what_an_earlier_run_spent_counts_and_an_auditor_adds_it_up_again(clinic):
    sign(clinic, "notes", texts(3), purpose=("generate", "train"))
    for number, epsilon in enumerate((3.5, 40.0)):
        words = ("--max-epsilon", f"{epsilon:f}", "--max-delta", "1e-6")
        sign(clinic, f"limited{number}", texts(1, f"limited {number}"), *words, purpose=("generate", "train"))
    ledger, export, key = trained(clinic)
    assert run(clinic, "--earlier", export, code=1)["error"]["code"] == "EARLIER_KEY"
    told = run(clinic, "--earlier", export, "--earlier-key", key)
    assert (told["references"], told["refused"]) == (4, {"BUDGET": 1})
    audit = told["verify"].split()[1:]
    assert {"EARLIER_TOLD", "LIMITS_ALONE"} <= set(clinic.json(*audit)["qualifiers"])
    found = clinic.json(*audit, "--key", key, "--earlier", export)
    assert {"EARLIER_TOLD", "LIMITS_ALONE"}.isdisjoint(found["qualifiers"]) and not found["findings"]
    again = run(clinic)
    assert (again["new"], again["refused"]) == (0, {"EARLIER": 1}), "who goes on and admits nobody new names nothing"
    sign(clinic, "more", texts(1, "more"))
    shutil.move(clinic.directory / "run", clinic.directory / "old")
    assert run(clinic, "--earlier", ledger)["references"] == 5


def test_earlier_ledgers_are_of_attested_references_alone(clinic):
    clinic.write("own.jsonl", '{"id": "a", "text": "b"}\n')
    own = ["generate", "task.toml", "--references", "own.jsonl", "--epsilon", "1", "--delta", "1e-3", "--batch", "1"]
    told = clinic.json(*own, "--tokens", "4", "--plan", "--earlier", "run.db", code=2)["error"]
    assert "--earlier goes with --policy" in told["sentence"]


def test_a_contributor_has_no_more_contributions_over_several_corpora_than_the_policy_allows(clinic):
    capped = POLICY.replace("[[class]]", "[gate]\ncontributor_cap = 4\n[[class]]", 1)
    clinic.write("policy.toml", capped)
    (clinic.directory / "policy.cose").unlink()
    clinic.run("policy", "sign", "policy.toml", "--key", "owner.key", "--registry", "registry.cbor")
    sign(clinic, "notes", texts(3))
    assert run(clinic)["references"] == 3
    shutil.move(clinic.directory / "run", clinic.directory / "old")
    shutil.move(clinic.directory / "corpus", clinic.directory / "first")
    sign(clinic, "other", texts(3, "other"))
    told = run(clinic, code=1)["error"]
    assert told["code"] == "BATCH", "one of three is left"
    found = [word if word != "corpus" else "first" for word in GENERATE]
    told = clinic.json(*found, "corpus", "--model", str(model_folder()), "--out", "both")
    assert (told["references"], told["refused"]) == (4, {"CONTRIBUTOR_CAP": 2})
    for name in ("a", "b"):  # before the others by name
        sign(clinic, name, texts(2, name))
    again = clinic.json(*found, "corpus", "--model", str(model_folder()), "--out", "both")
    assert (again["references"], again["gone"], again["refused"]) == (4, 0, {"CONTRIBUTOR_CAP": 6}), "nobody is pushed out"


def test_the_signed_data_class_is_a_public_label(clinic):
    sign(clinic, "a", texts(3, "calm"), "--data-class", "calm")
    sign(clinic, "b", texts(4, "loud"), "--data-class", "loud")
    told = run(clinic, "--labels", "data-class")
    assert told["texts"] == 2
    assert [one["label"] for one in lines_of(clinic.directory / "run/texts.jsonl")] == ["calm", "loud"]
    refused = clinic.json(*GENERATE, "--plan", "--labels", "list.csv", code=2)["error"]
    assert "--labels data-class" in refused["sentence"]


def test_a_contribution_that_was_withdrawn_in_the_training_ledger_is_refused(clinic):
    sign(clinic, "notes", texts(4), purpose=("generate", "train"))
    record(clinic)
    words = ("attest", "withdraw", "corpus/notes.jsonl.attest", "--key", "owner.key", "--record", "1")
    clinic.run("ledger", "withdraw", "ledger.db", clinic.json(*words)["withdrawals"][0]["path"])
    told = run(clinic, "--ledger", "ledger.db")
    assert (told["references"], told["refused"]) == (3, {"WITHDRAWN": 1})


def test_a_contribution_that_was_withdrawn_in_the_budget_log_makes_no_text_any_more(clinic):
    sign(clinic, "notes", texts(4))
    with open(clinic.directory / "corpus/notes.jsonl.attest", "rb") as stream:
        first = next(read_sequence(stream)).read().digest()
    assert run(clinic)["references"] == 4
    with BudgetLog.open(Place.of(clinic.directory / "policy.budget.db")) as log:
        log.withdraw(first)
        paid = first in log.state.accounts
    told = run(clinic, "--texts", "2", code=1 if paid else 0)
    assert told["new"] == (0 if paid else 1) and told["gone"] == 1
    other = clinic.json(*GENERATE, "--model", str(model_folder()), "--out", "other", code=0 if paid else 1)
    assert (other["references"], other["refused"], other["gone"]) == (3, {"WITHDRAWN": 1}, 0)


def judged(shell, now=None, **how):
    """What the library reads of the corpus."""
    owner = keys.load_public_key("owner.pub")
    signed, known = open_policy("policy.cose", owner), open_registry("registry.cbor", owner)
    return References.admitted(open_corpus("corpus"), signed, known, "notes", now=now or int(time.time()), **how)


def test_bytes_that_changed_after_the_gate_saw_them_are_read_by_nobody(clinic):
    sign(clinic, "notes", texts(3))
    assert [one.text for one in judged(clinic)] == texts(3)
    other = patch.object(Contents, "read", lambda self, locator: b'{"text": "another"}')
    with other, pytest.raises(ContentChanged, match="changed after the gate saw it"):
        judged(clinic)


def test_what_was_withdrawn_is_not_among_the_references(clinic):
    sign(clinic, "notes", texts(4))
    first = bytes.fromhex(judged(clinic).rows[0].id)
    found = judged(clinic, withdrawn={first})
    assert len(found) == 3 and found.refused == {"WITHDRAWN": 1}


def test_the_text_of_a_row_stands_in_the_field_that_is_named_and_a_row_without_it_is_null(clinic):
    sign(clinic, "notes", ["a red boat"])
    assert [one.text for one in judged(clinic)] == ["a red boat"]
    assert [one.text for one in judged(clinic, field="note")] == [""]
    assert (judged(clinic).absent, judged(clinic, field="note").absent) == (None, "note")
    assert clinic.json(*GENERATE, "--field", "note", "--plan", code=1)["error"]["code"] == "BATCH"


def test_several_corpora_are_judged_as_one_so_that_no_attestation_comes_twice(clinic):
    sign(clinic, "notes", texts(3))
    shutil.copytree(clinic.directory / "corpus", clinic.directory / "again")
    told = clinic.json(*GENERATE[:3], "again", *GENERATE[3:], "--plan")
    assert (told["references"], told["refused"]) == (3, {"REPLAYED": 3})


@pytest.mark.parametrize(
    "options", [["--epsilon", "3"], ["--delta", "1e-5"], ["--batch", "2"], ["--tokens", "9"], ["--tau", "2"], ["--top-k", "7"],
                ["--records", "2"], ["--adjacency", "replace-one"]]
)  # fmt: skip
def test_no_number_of_a_signed_rule_is_given_by_who_runs_it(clinic, options):
    sign(clinic, "notes", texts(3))
    refused = clinic.json(*GENERATE, "--plan", *options, code=2)["error"]
    assert "signed for the numbers of their class" in refused["sentence"] and options[0] in refused["sentence"]


def test_a_class_without_a_generation_rule_is_refused_and_so_is_a_corpus_of_which_nothing_was_admitted(clinic):
    sign(clinic, "train", texts(3), purpose=("train",))
    refused = clinic.json(*GENERATE, "--plan", code=1)["error"]
    assert refused["code"] == "REFERENCES" and "3 PURPOSE" in refused["sentence"]
    for name in ("other", "nothing"):
        words = [name if word == "notes" else word for word in GENERATE]
        assert clinic.json(*words, "--plan", code=1)["error"]["code"] == "CLASS"


def test_an_attestation_that_has_ended_makes_no_text(clinic):
    sign(clinic, "notes", texts(3), "--days", "1")
    later = str(int(time.time()) + 3 * 86400)
    refused = clinic.json(*GENERATE, "--plan", "--now", later, code=1)["error"]
    assert refused["code"] == "REFERENCES" and "EXPIRED" in refused["sentence"]


def test_attested_references_and_the_owners_own_do_not_share_a_log(clinic):
    sign(clinic, "notes", texts(3))
    run(clinic, "--budget", "safe.db")
    clinic.write("refs.jsonl", "".join(f'{{"id": "r{number}", "text": "x"}}\n' for number in range(3)))
    words = ["--references", "refs.jsonl", "--epsilon", "3", "--delta", "1e-6", "--batch", "3", "--tokens", "6"]
    own = ["generate", "task.toml", *words, "--model", str(model_folder()), "--out", "own", "--budget", "safe.db"]
    refused = clinic.json(*own, code=1)["error"]
    assert refused["code"] == "BUDGET" and "your own were not" in refused["sentence"]
    assert "goes with --policy" in clinic.json(*own, "corpus", code=2)["error"]["sentence"]
    assert "--withdrawal goes with --policy" in clinic.json(*own, "--withdrawal", "task.toml", code=2)["error"]["sentence"]


def test_another_policy_does_not_pay_from_a_log_that_has_not_its_rule(clinic):
    sign(clinic, "notes", texts(3))
    run(clinic, "--budget", "safe.db")
    clinic.write("second.toml", POLICY.replace("max_rho = 0.17", "max_rho = 0.9"))
    clinic.run("policy", "sign", "second.toml", "--key", "owner.key", "--registry", "registry.cbor")
    words = ["second.cose" if word == "policy.cose" else word for word in GENERATE]
    refused = clinic.json(*words, "--model", str(model_folder()), "--out", "two", "--budget", "safe.db", code=1)["error"]
    assert refused["code"] == "BUDGET" and "knows nothing of what was spent here" in refused["sentence"]


def log_of(shell, name="policy.budget.db"):
    return BudgetLog.open(Place.of(shell.directory / name), read_only=True)


def test_all_folders_of_a_policy_pay_from_one_budget_beside_it(clinic):
    sign(clinic, "notes", texts(7))
    assert run(clinic)["budget"] == "policy.budget.db"
    generate = [*GENERATE, "--model", str(model_folder())]
    assert clinic.json(*generate, "--plan")["texts_left"] == 2
    refused = clinic.json(*generate, "--out", "more", "--texts", "4", code=1)["error"]
    assert refused["code"] == "TEXTS" and "2 at most" in refused["sentence"]
    assert clinic.json(*generate, "--out", "more")["texts"] == 2
    last = clinic.json(*generate, "--out", "last", code=1)
    assert (last["texts"], last["exhausted"]) == (0, True)
    with log_of(clinic) as log:
        assert max(account.spent for account in log.state.accounts.values()) <= 170_000_000
    sign(clinic, "later", texts(1, "later"))
    refused = run(clinic, code=1)["error"]
    assert refused["code"] == "RUN_REFERENCES" and "policy.budget.db pays for that too" in refused["sentence"]


def test_the_budget_of_a_policy_is_for_all_its_classes_that_generate(clinic):
    rule = POLICY[POLICY.index("purposes") : POLICY.index("[[class]]", POLICY.index("purposes"))]
    (clinic.directory / "policy.cose").unlink()
    clinic.write("policy.toml", POLICY + rule.replace("references = 3", "references = 2").replace("0.17", "0.5"))
    clinic.run("policy", "sign", "policy.toml", "--key", "owner.key", "--registry", "registry.cbor")
    sign(clinic, "notes", texts(3))
    sign(clinic, "other", texts(2, "other"), class_name="other")
    assert run(clinic)["texts"] == 1
    words = ["other" if word == "notes" else word for word in GENERATE]
    told = clinic.json(*words, "--model", str(model_folder()), "--out", "two")
    assert (told["texts"], told["references"]) == (1, 2)
    with log_of(clinic) as log:
        assert {rule.name for rule in log.header.generation} == {"notes", "other"} and len(log.state.accounts) == 5


def withdraw(shell, number=1, key="alice.key"):
    """Signs the withdrawal of a row, and returns its file and digest."""
    words = ("attest", "withdraw", "corpus/notes.jsonl.attest", "--key", key, "--record", str(number))
    path = shell.directory / shell.json(*words)["withdrawals"][0]["path"]
    with open(shell.directory / "corpus/notes.jsonl.attest", "rb") as stream:
        return path, [one.read().digest() for one in read_sequence(stream)][number - 1]


def lay(shell, path):
    """Lays a withdrawal beside the budget."""
    folder = shell.directory / "policy.budget.db.withdrawals"
    folder.mkdir(exist_ok=True)
    shutil.copy(path, folder / path.name)
    return folder / path.name


@pytest.mark.parametrize("key", ["alice.key", "owner.key"])
def test_a_signed_withdrawal_is_entered_before_a_reference_is_admitted_and_an_auditor_finds_it(clinic, key):
    sign(clinic, "notes", texts(4))
    path, digest = withdraw(clinic, key=key)
    told = run(clinic, "--withdrawal", str(path))
    assert (told["texts"], told["references"], told["refused"], told["gone"]) == (1, 3, {"WITHDRAWN": 1}, 0)
    with log_of(clinic) as log:
        assert digest in log.state.withdrawn and digest not in log.state.accounts and digest not in log.state.admitted


def test_a_withdrawal_beside_the_budget_is_entered_before_the_next_text_of_a_run(clinic):
    sign(clinic, "notes", texts(3))
    path, digest = withdraw(clinic)
    made = Run._made

    def laid(*given):
        lay(clinic, path)
        return made(*given)

    with patch.object(Run, "_made", laid):
        told = run(clinic, "--texts", "2", code=1)
    assert (told["texts"], told["exhausted"]) == (1, True)
    with log_of(clinic) as log:
        assert log.state.withdrawn.keys() == {digest} and len(log.state.accounts) == 3
    (clinic.directory / "w").mkdir()
    shutil.copy(path, clinic.directory / "w")
    found = clinic.json(*told["verify"].split()[1:], "--withdrawals", "w")
    assert "WITHDRAWAL_UNENTERED" not in found["qualifiers"]


def test_a_file_that_is_no_withdrawal_or_that_others_signed_is_passed_over_by_nobody(clinic):
    sign(clinic, "notes", texts(3))
    clinic.run("attest", "keygen", "mallory")
    path, _ = withdraw(clinic, key="mallory.key")
    for given in ("--withdrawal", None):
        there = [] if given is None else [given, str(path)]
        laid = None if there else lay(clinic, path)
        refused = run(clinic, *there, code=1)["error"]
        assert refused["code"] == "WITHDRAWAL_UNPROVEN" and "passed over" in refused["sentence"]
    laid.write_bytes(b"nothing")
    assert run(clinic, code=1)["error"]["code"] == "WITHDRAWALS"
    renamed = laid.rename(laid.with_name(laid.name + ".refused"))
    assert run(clinic, code=1)["error"]["code"] == "WITHDRAWALS"
    renamed.unlink()
    assert run(clinic)["texts"] == 1


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["{}.taken", "{}.refused", "{}~"])
def test_a_withdrawal_counts_whatever_its_name_is_and_what_is_hidden_or_a_folder_is_told(clinic, name):
    sign(clinic, "notes", texts(4))
    path, digest = withdraw(clinic)
    laid = lay(clinic, path)
    hidden, folder = laid.with_name("." + laid.name), laid.with_name("more")
    laid.rename(hidden)
    refused = run(clinic, code=1)["error"]
    assert refused["code"] == "WITHDRAWALS" and hidden.name in refused["sentence"]
    folder.mkdir()
    hidden.rename(folder / laid.name)
    refused = run(clinic, code=1)["error"]
    assert refused["code"] == "WITHDRAWALS" and "more" in refused["sentence"]
    (folder / laid.name).rename(laid.with_name(name.format(laid.name)))
    folder.rmdir()
    told = run(clinic)
    assert (told["texts"], told["references"], told["refused"]) == (1, 3, {"WITHDRAWN": 1})
    with log_of(clinic) as log:
        assert log.state.withdrawn.keys() == {digest}
    assert run(clinic, "--texts", "1")["new"] == 0, "entered twice it is harmless"


def test_a_withdrawal_of_a_contribution_that_is_not_here_is_told_where_it_was_given_by_name(clinic):
    sign(clinic, "notes", texts(4))
    path, _ = withdraw(clinic, 4)
    sign(clinic, "notes", texts(3))
    assert run(clinic, "--withdrawal", str(path), code=1)["error"]["code"] == "WITHDRAWAL_UNMATCHED"
    lay(clinic, path)
    assert run(clinic)["texts"] == 1


def test_a_run_goes_on_with_fewer_references_and_its_batches_are_what_they_were(clinic):
    sign(clinic, "notes", texts(6))
    sign(clinic, "brief", texts(1, "brief"), "--days", "1")
    assert run(clinic, "--texts", "1")["references"] == 7
    later = str(int(time.time()) + 2 * 86400)
    planned = clinic.json(*GENERATE, "--out", "run", "--now", later, "--plan")
    assert (planned["references"], planned["batches"]) == (6, 2) and planned["texts_left"] in (1, 2, 3)
    told = run(clinic, "--texts", "9", "--now", later, code=1)
    assert (told["references"], told["gone"], told["refused"]) == (6, 1, {"EXPIRED": 1})
    listed = json.loads((clinic.directory / "run/references.json").read_text())["references"]
    assert len(listed) == 7
    with log_of(clinic) as log:
        gone = ({one for one, _ in listed} - {one.id for one in judged(clinic, int(later))}).pop()
        assert log.state.spent(bytes.fromhex(gone)) <= 84_000_000
    (clinic.directory / "run/references.json").write_text('{"references": [["00", null]]}')
    assert run(clinic, "--now", later, code=1)["error"]["code"] == "RUN_REFERENCES"
    (clinic.directory / "run/references.json").write_text('{"references": [7]}')
    assert run(clinic, "--now", later, code=1)["error"]["code"] == "RUN_FILE"


def test_a_batch_of_which_a_reference_is_gone_is_passed_over_and_no_other_changes(clinic):
    sign(clinic, "notes", texts(9))
    whole = judged(clinic)
    first = whole.rows[4].id
    fewer = whole.leaving({first: "WITHDRAWN"}).since(whole.listed)
    assert (len(fewer), [one.id for one in fewer.gone], fewer.refused) == (8, [first], {"WITHDRAWN": 1})
    assert fewer.digest == whole.digest != whole.leaving({first: "WITHDRAWN"}).digest
    plan = Plan.of_rule(whole.rule.generation, delta=1e-6)
    with Purse.of(clinic.directory, clinic.directory / "b.db").open(plan, whole, bytes(32)) as log:
        Purse.of(clinic.directory).admit(log, whole)
        pool = Pool(fewer, plan, log, bytes(32))
        assert pool.sizes == {None: 3}
        taken = {one.id for _ in range(2) for one in pool.take()[0]}
        assert len(taken) == 6 and first not in taken and pool.left() == 2 * Pool(whole, plan, log, bytes(32)).left() / 3
    before, after = (
        [[one.id for one in batch] for batch in found.batches(3, bytes(32))[None]] for found in (whole, fewer)
    )
    assert before == after and len(before) == 3
    other = whole.leaving({first: "WITHDRAWN"})
    assert whole.since(other.listed) is whole, "one more is another run"


def test_one_contribution_that_the_log_refuses_is_left_out_and_the_others_make_texts(clinic):
    """By the clock of the log the attestation has ended."""
    sign(clinic, "notes", texts(4))
    sign(clinic, "brief", texts(1, "brief"), "--days", "1")
    later = int(time.time()) + 2 * 86400
    with patch("ledger.budget.log.machine_time", lambda: later):
        told = run(clinic)
    assert (told["texts"], told["references"], told["refused"]) == (1, 4, {"EXPIRED": 1})
