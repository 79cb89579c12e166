"""`dptrain generate` as its users call it: the plan without torch, a run, a crash, a signal, and every refusal."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attest.schema.plain import visible
from dptrain.inference.invisibleink import Plan
from dptrain.inference.invisibleink.formulas import nano_rho
from dptrain.inference.invisibleink.tasks import names
from ledger.budget.log import BudgetLog
from ledger.budget.rho import epsilon_of_rho
from ledger.storage.place import Place
from tests.worlds.programs import started, told
from tests.worlds.text_runs import NUMBERS, TASK, lines_of, write_labels, write_references, write_world

PLAN = Plan.for_epsilon(8.0, delta=1e-6, batch=3, tokens=6)
_TREE = str(Path(__file__).resolve().parents[2])
_SLOW = {"tokens": "100"}
"""Tokens of a text that takes long enough to be ended from outside."""


@pytest.fixture
def typed(shell):
    return write_world(shell.directory)


def without(words, *flags):
    """Returns what is typed without some options and their values."""
    drop = {place + more for place, word in enumerate(words) if word in flags for more in (0, 1)}
    return [word for place, word in enumerate(words) if place not in drop]


def plan_of(words):
    return without(words, "--model")


def cut(folder, words, number):
    """Ends a run from outside while a text that is paid for is under way; returns its folder, what was whole, and the exit
    code."""
    for name in ("run0", "run1", "run2"):
        run = folder / name
        process = started(folder, [*words, "--out", name])
        while paid(run) < 2:
            assert process.exitcode is None, told(folder, process)
            time.sleep(0.02)
        os.kill(process.pid, number)
        process.join()
        whole = lines_of(run / "texts.jsonl")
        if begun(run) == paid(run) == len(whole) + 1:
            return name, whole, process.exitcode
    raise AssertionError("each was ended between two texts, or before one was paid for")


def begun(run):
    """Returns how many texts a run has noted that it begins."""
    return json.loads((run / "begun.json").read_text())["begun"] if (run / "begun.json").exists() else 0


def paid(run):
    """Returns how many texts a run has paid for: it notes that one begins before it does."""
    if not begun(run):
        return 0
    with BudgetLog.open(Place.of(run / "budget.db"), read_only=True) as log:
        return log.state.reserves


def test_a_run_makes_a_text_of_every_batch_and_an_auditor_verifies_what_was_charged(shell, typed):
    told = shell.json(*typed, "--out", "run")
    assert (told["texts"], told["new"], told["lost"], told["exhausted"]) == (3, 3, 0, False)
    assert told["epsilon"] == PLAN.epsilon
    assert len(lines_of(shell.directory / "run/texts.jsonl")) == 3
    found = shell.json("ledger", "verify", told["export"], "--key", told["key"])
    assert found["verdict"].startswith("FULL") and found["reserves"] == 3
    again = shell.json(*typed, "--out", "run")
    assert (again["texts"], again["new"]) == (3, 0)


def test_compile_makes_one_step_for_all_texts_before_the_first_is_paid_for(shell, typed, monkeypatch):
    """Two labels, prompts of one public length. Inductor's own code is run by tests/inference/test_ink_compiled.py."""
    import torch._inductor

    made = []

    def compiled(graph, values, options=None):
        made.append((shell.directory / "run/begun.json").exists())
        return graph

    monkeypatch.setattr(torch._inductor, "compile", compiled)
    write_labels(shell.directory / "labels.csv")
    told = shell.json(*typed, "--labels", "labels.csv", "--out", "run", "--compile")
    assert told["texts"] == 2 and made == [False]
    shell.json(*typed, "--labels", "labels.csv", "--out", "run", "--compile")
    assert len(made) == 1, "where no text is left to make, nothing is compiled"
    monkeypatch.setattr(torch._inductor, "compile", lambda *given, **more: 1 // 0)
    refused = shell.json(*typed, "--out", "other", "--compile", code=1)["error"]
    assert refused["code"] == "COMPILE" and "leave the option compile out" in refused["sentence"]
    assert shell.json(*typed, "--out", "other")["texts"] == 3


def test_a_person_is_told_what_was_made_what_it_is_worth_and_how_it_is_verified(shell, typed):
    told = shell.run(*typed, "--out", "run").stdout
    assert "3 texts in run, 3 of them new" in told
    assert "epsilon 8.0000 for one reference against none" in told
    assert "dptrain ledger verify run/export --key run/budget.pub" in told


def test_texts_are_made_one_after_the_other_until_so_many_are_there(shell, typed):
    assert shell.json(*typed, "--out", "run", "--texts", "1")["texts"] == 1
    assert shell.json(*typed, "--out", "run", "--texts", "2")["new"] == 1
    refused = shell.json(*typed, "--out", "other", "--texts", "4", code=1)["error"]
    assert refused["code"] == "TEXTS" and "3 at most" in refused["sentence"]


def test_one_text_is_shown_as_it_comes_and_nothing_in_it_moves_the_cursor(shell, typed):
    shown = shell.run(*typed, "--out", "run", "--one").stdout
    [text] = lines_of(shell.directory / "run/texts.jsonl")
    assert visible(text["text"], lines=True) in shown
    assert not any(ord(char) < 32 and char != "\n" for char in shown)
    assert shell.json(*typed, "--out", "run", "--one")["texts"] == 2
    shell.run(*typed, "--out", "run", "--one")
    assert shell.json(*typed, "--out", "run", "--one", code=1)["exhausted"]


def test_a_killed_run_goes_on_and_says_what_was_lost(shell):
    typed = write_world(shell.directory, 15, **_SLOW)
    name, whole, _ = cut(shell.directory, typed, signal.SIGKILL)
    told = shell.json(*typed, "--out", name)
    assert (told["texts"], told["lost"]) == (4, 1)
    texts = lines_of(shell.directory / name / "texts.jsonl")
    assert texts[: len(whole)] == whole
    assert [one["number"] for one in texts] == [number for number in range(1, 6) if number != len(whole) + 1]
    with BudgetLog.open(Place.of(shell.directory / name / "budget.db"), read_only=True) as log:
        assert [leaf.releases for leaf in log.state.open.values()] == [100]
    shell.run("ledger", "verify", told["export"], "--key", told["key"])


def test_a_signal_ends_a_run_between_two_tokens_and_what_was_never_computed_comes_back(shell):
    typed = write_world(shell.directory, 15, **_SLOW)
    name, whole, code = cut(shell.directory, typed, signal.SIGINT)
    assert code == 130
    with BudgetLog.open(Place.of(shell.directory / name / "budget.db"), read_only=True) as log:
        spent = sorted(account.spent for account in log.state.accounts.values())
        cost = Plan.for_epsilon(8.0, delta=1e-6, batch=3, tokens=100).nano_rho
        assert not log.state.open
        assert spent == sorted([spent[0]] * 3 + [one["tokens"] * cost for one in whole for _ in range(3)])
        assert 0 < spent[0] < 100 * cost and spent[0] % cost == 0
    shell.run("ledger", "verify", f"{name}/export", "--key", f"{name}/budget.pub")  # also what ended early can be verified
    told = shell.json(*typed, "--out", name)
    assert (told["texts"], told["lost"]) == (4, 1)


def test_the_plan_has_the_figures_of_the_calibration_and_of_other_relations(shell, typed):
    told = shell.json(*plan_of(typed), "--plan")
    assert told["clip_norm"] == PLAN.clip and told["epsilon"] == PLAN.epsilon
    assert told["nano_rho_per_token"] == PLAN.nano_rho and told["rho_per_text"] == PLAN.rho
    assert told["forward_rows_per_token"] == 4
    assert (told["batches"], told["texts_at_most"], told["references"]) == (3, 3, 10)
    under = told["epsilon_under"]
    for name in ("zero-out", "replace-one", "retrieval", "zero-logits"):
        charge = 6 * nano_rho(PLAN.clip, 3, 1.0, adjacency=name)
        assert under[name] == epsilon_of_rho(charge / 1e9, 1e-6)
    assert under["k = all"] == under["zero-out"] == PLAN.epsilon < under["replace-one"] == under["retrieval"]
    assert not (shell.directory / "run").exists()


def test_the_plan_of_records_of_one_person_costs_their_square(shell, typed):
    told = shell.json(*plan_of(typed), "--plan", "--records", "3")
    found = Plan.for_epsilon(8.0, delta=1e-6, batch=3, tokens=6, records=3)
    assert told["clip_norm"] == found.clip < PLAN.clip / 2.9
    assert told["epsilon_under"]["zero-out, 3 of one person"] == told["epsilon"] == found.epsilon
    assert told["epsilon_under"]["zero-out"] < told["epsilon"]


def test_the_plan_says_rows_of_minibatches_numbers_of_labels_and_what_a_person_reads(shell, typed):
    write_labels(shell.directory / "labels.csv")
    words = [*plan_of(typed), "--labels", "labels.csv", "--plan"]
    told = shell.json(*words, "--minibatch", "3", "--top-k", "all")
    assert told["forward_rows_per_token"] == 6 and told["top_k"] is None
    rows = [(one["label"], one["batches"], one["texts_at_most"]) for one in told["references_by_label"]]
    assert rows == [("calm", 1, 1), ("loud", 1, 1)]
    shown = shell.run(*words).stdout
    assert "clip norm C" in shown and "calm" in shown and "references that are retrieved" in shown


def test_the_plan_needs_neither_torch_nor_a_model(shell, typed):
    code = (
        "import sys; sys.modules.update(torch=None, transformers=None); sys.argv[0] = 'dptrain';"
        "from dptrain.cli.app import main; main()"
    )
    environment = {**os.environ, "PYTHONPATH": _TREE}
    words = [sys.executable, "-c", code, *plan_of(typed), "--plan", "--json"]
    done = subprocess.run(words, cwd=shell.directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["clip_norm"] == PLAN.clip


@pytest.mark.parametrize("flag", NUMBERS)
def test_epsilon_delta_B_and_T_have_no_default(shell, typed, flag):
    told = shell.json(*without(typed, flag), "--out", "run", code=2)["error"]
    assert flag in told["sentence"] and "none has a default" in told["sentence"]
    assert not (shell.directory / "run").exists()


def test_T_is_a_number_and_never_taken_from_references(shell, typed):
    words = [*without(typed, "--tokens"), "--tokens", "auto", "--plan"]
    assert "auto" in shell.run(*words, code=2).output


def test_there_is_no_seed_at_this_door(shell, typed):
    assert "--seed" in shell.run(*typed, "--out", "run", "--seed", "7", code=2).output


@pytest.mark.parametrize(
    "options, code, said",
    [
        (["--adjacency", "add-or-remove"], "ADJACENCY", "number of references would be private"),
        (["--partition", "clusters"], "PARTITION", "one text moves others"),
        (["--partition", "length"], "PARTITION", "change batches"),
        (["--partition", "content"], "PARTITION", "choose its batch"),
        (["--partition", "label"], "PARTITION", "part of the payload"),
        (["--aggregation", "median"], "AGGREGATION", "whatever B is"),
        (["--labels", "refs.jsonl"], "LABEL_PRIVATE", "part of the payload"),
        (["--labels", "ward"], "LABEL_PRIVATE", "part of the payload"),
        (["--labels", "data-class"], "LABEL_PRIVATE", "no signed data class"),
        (["--batch", "11"], "BATCH", "of 10 records"),
        (["--word", "mood=calm"], "LABELS", "no place for mood"),
    ],
)
def test_what_has_no_proof_is_refused_by_name_before_anything_is_paid(shell, typed, options, code, said):
    for last in (["--plan"], ["--out", "run"]):
        refused = shell.json(*typed, *options, *last, code=1)["error"]
        assert refused["code"] == code and said in refused["sentence"]
    assert not list(shell.directory.glob("run/budget.db"))


@pytest.mark.parametrize(
    "options, said",
    [
        ([], "give --out"),
        (["--out", "run", "--one", "--texts", "2"], "--one makes one text more"),
        (["--out", "run", "--budget-key", "k.key"], "goes with --budget"),
        (["--out", "run", "--class", "sensitive"], "goes with --policy"),
        (["--out", "run", "--top-k", "some"], "--top-k is a whole number or all"),
        (["--out", "run", "--word", "mood"], "NAME=WORD"),
        (["--out", "run", "--label", "north"], "--label goes with --labels"),
        (["--out", "run", "--minibatch", "5"], "of 4 rows"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_use(shell, typed, options, said):
    assert said in shell.json(*typed, *options, code=2)["error"]["sentence"]


def test_without_a_model_or_references_it_says_what_to_give(shell, typed):
    assert "--model" in shell.json(*without(typed, "--model"), "--out", "run", code=2)["error"]["sentence"]
    words = without(typed, "--references")
    assert "--references" in shell.json(*words, "--out", "run", code=2)["error"]["sentence"]
    assert "texts_at_most" not in shell.json(*without(words, "--model"), "--plan")


def test_a_label_that_no_batch_has_is_told_with_those_that_have_one(shell, typed):
    write_labels(shell.directory / "labels.csv")
    for last in (["--plan"], ["--out", "run"]):
        refused = shell.json(*typed, "--labels", "labels.csv", "--label", "north", *last, code=1)["error"]
        assert refused["code"] == "LABEL" and "'calm', 'loud'" in refused["sentence"]
    told = shell.json(*typed, "--labels", "labels.csv", "--label", "loud", "--out", "run")
    assert told["texts"] == 1
    assert [one["label"] for one in lines_of(shell.directory / "run/texts.jsonl")] == ["loud"]
    told = shell.json(*typed, "--labels", "labels.csv", "--label", "calm", "--out", "run")
    assert (told["texts"], told["new"]) == (2, 1)  # texts of other labels do not count as its own


def test_the_help_names_every_task_that_comes_along(shell):
    shown = " ".join(shell.run("generate", "--help").output.replace("│", " ").split())
    assert f".toml file, or {', '.join(names())}." in shown


def test_another_set_of_references_in_the_same_folder_is_refused(shell, typed):
    shell.run(*typed, "--out", "run", "--texts", "1")
    write_references(shell.directory / "refs.jsonl", 11)
    refused = shell.json(*typed, "--out", "run", code=1)["error"]
    assert refused["code"] == "RUN_REFERENCES"
    assert "of other references: number of references 10, now it is 11; digest of ids and labels " in refused["sentence"]
    write_references(shell.directory / "refs.jsonl", 10)
    rows = (shell.directory / "refs.jsonl").read_text()
    (shell.directory / "refs.jsonl").write_text(rows.replace('"r3"', '"s3"'))
    refused = shell.json(*typed, "--out", "run", code=1)["error"]
    assert "there are as many, and ids or labels are others; digest of ids and labels " in refused["sentence"]


def test_another_plan_in_the_same_folder_is_told_in_words_with_what_a_person_typed_first(shell, typed):
    shell.run(*typed, "--out", "run", "--texts", "1")
    words = [*without(typed, "--tokens", "--batch"), "--tokens", "5", "--batch", "4"]
    refused = shell.json(*words, "--out", "run", code=1)["error"]
    assert refused["code"] == "RUN_PLAN" and "of another plan: B 3, now it is 4; T 6, now it is 5;" in refused["sentence"]
    assert "clip norm C 1." in refused["sentence"] and "batch" not in refused["sentence"]


def test_the_plan_says_when_more_texts_are_asked_for_than_can_be_paid(shell, typed):
    [caution] = shell.json(*plan_of(typed), "--plan", "--texts", "9")["cautions"]
    assert "asks for 9 texts" in caution and "good for 3 at most" in caution
    assert caution in shell.run(*plan_of(typed), "--plan", "--texts", "9").stdout.replace("\n", " ")
    assert shell.json(*plan_of(typed), "--plan", "--texts", "3")["cautions"] == []
    shell.run(*typed, "--out", "run", "--texts", "2")
    assert shell.json(*plan_of(typed), "--plan", "--texts", "3", "--out", "run")["cautions"] == []
    [caution] = shell.json(*plan_of(typed), "--plan", "--texts", "4", "--out", "run")["cautions"]
    assert "good for 3 at most" in caution


def test_a_list_of_labels_that_is_a_field_of_the_rows_is_warned_of_and_not_refused(shell, typed):
    rows = lines_of(shell.directory / "refs.jsonl")
    for number, row in enumerate(rows):
        row["mood"] = ("calm", "loud")[number % 2]
    (shell.directory / "refs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    write_labels(shell.directory / "labels.csv")
    words = [*plan_of(typed), "--labels", "labels.csv", "--plan"]
    found = shell.run(*words)
    assert "labels that were taken out of payloads break the guarantee" in found.stderr and "'mood'" in found.stderr
    assert "guarantee: labels" not in found.stdout and json.loads(shell.run(*words, "--json").stdout)["batches"] == 2
    rows[4]["mood"] = "loud"
    (shell.directory / "refs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert "payloads" not in shell.run(*words).stderr


def test_a_budget_elsewhere_outlives_the_run_and_another_run_pays_from_it(shell, typed):
    shell.run(*typed, "--out", "one", "--budget", "safe.db", "--texts", "2")
    assert shell.json(*plan_of(typed), "--plan", "--budget", "safe.db")["texts_left"] == 1
    told = shell.json(*typed, "--out", "two", "--budget", "safe.db", code=0)
    assert (told["texts"], told["exhausted"]) == (1, True)
    assert shell.json(*typed, "--out", "three", "--budget", "safe.db", code=1)["texts"] == 0
    planned = shell.json(*plan_of(typed), "--plan", "--budget", "safe.db")
    assert (planned["texts_at_most"], planned["texts_left"]) == (3, 0)
    shell.run("ledger", "verify", "two/export", "--key", "two/budget.pub")


def test_a_log_whose_key_is_not_there_is_refused_before_anything_is_paid(shell, typed):
    shell.run(*typed, "--out", "one", "--budget", "safe.db", "--budget-key", "far.key", "--texts", "1")
    shell.run("attest", "keygen", "other")
    for key in ([], ["--budget-key", "other.key"]):
        refused = shell.json(*typed, "--out", "two", "--budget", "safe.db", *key, code=1)["error"]
        assert refused["code"] == "BUDGET" and "--budget-key" in refused["sentence"]
    told = shell.json(*typed, "--out", "two", "--budget", "safe.db", "--budget-key", "far.key")
    assert told["texts"] == 2


def test_a_delta_above_one_over_the_references_is_cautioned(shell, typed):
    assert shell.json(*plan_of(typed), "--plan")["cautions"] == []
    words = [*without(plan_of(typed), "--delta"), "--delta", "0.1", "--plan"]
    [caution] = shell.json(*words)["cautions"]
    rows = shell.directory / "refs.jsonl"
    rows.write_text(rows.read_text().replace('"text"', '"note"'))
    [told] = shell.json(*plan_of(typed), "--plan")["cautions"]
    assert told == "no row has the field 'text', so that all references are null: name the right one"
    assert "not below one over 10 references" in caution and caution in shell.run(*words).stdout.replace("\n", " ")


def test_one_text_is_shown_with_its_opening_words(shell, typed):
    shell.write("task.toml", 'opening = "I say: "\n' + TASK)
    shown = shell.run(*typed, "--out", "run", "--one").stdout
    [text] = lines_of(shell.directory / "run/texts.jsonl")
    assert text["text"].startswith("I say: ") and shown.startswith(visible(text["text"], lines=True))


def test_a_shipped_task_asks_for_its_words(shell):
    words = [*plan_of(write_world(shell.directory)), "--plan"]
    words[1] = "yelp"
    assert "category, stars" in shell.json(*words, code=1)["error"]["sentence"]
    said = ["--word", "category=Shopping", "--word", "stars=4.0"]
    assert shell.json(*words, *said)["texts_at_most"] == 3
    words[1] = "nothing"
    assert shell.json(*words, code=1)["error"]["code"] == "TASK"
