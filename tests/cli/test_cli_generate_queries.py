"""`dptrain generate --adjacency retrieval`: a text for each public query; the corpus pays before a document is looked at."""

import json

import pytest

from dptrain.inference.invisibleink import Plan
from dptrain.inference.invisibleink.forward import Form, Forward
from dptrain.inference.invisibleink.retrieval import CORPUS, Retrieval
from ledger.budget.log import BudgetLog
from ledger.budget.rho import epsilon_of_rho
from ledger.storage.place import Place
from tests.worlds.text_runs import QUERIES, lines_of, write_corpus, write_labels, write_queries, write_references

WHOLE = Plan.for_epsilon(8.0, delta=1e-6, batch=3, tokens=18, adjacency="retrieval")
COST = 6 * WHOLE.nano_rho


@pytest.fixture
def typed(shell):
    return write_corpus(shell.directory)


def without(words, *flags):
    drop = {place + more for place, word in enumerate(words) if word in flags for more in (0, 1)}
    return [word for place, word in enumerate(words) if place not in drop]


def plan_of(words):
    return [*without(words, "--model"), "--plan"]


def spent(path) -> int:
    with BudgetLog.open(Place.of(path), read_only=True) as log:
        return log.state.spent(log.account(CORPUS))


@pytest.fixture
def seen(monkeypatch):
    """Notes what happens in order: a query retrieves, and a forward pass begins."""
    found: list = []
    best, begin = Retrieval.best, Forward.begin

    def look(retrieval, query, batch):
        found.append(("retrieved", query))
        return best(retrieval, query, batch)

    def run(forward):
        found.append("forward")
        return begin(forward)

    monkeypatch.setattr(Retrieval, "best", look)
    monkeypatch.setattr("dptrain.inference.invisibleink.generator.check_rows", lambda *shape, **named: Form())
    monkeypatch.setattr(Forward, "begin", run)
    return found


def test_each_query_has_one_text_and_an_auditor_verifies_that_the_corpus_paid(shell, typed):
    told = shell.json(*typed, "--out", "run")
    assert (told["texts"], told["new"], told["unanswered"], told["exhausted"]) == (3, 3, 0, False)
    texts = lines_of(shell.directory / "run/texts.jsonl")
    assert [(one["number"], one["query"]) for one in texts] == [(1, "a"), (2, "b"), (3, "c")]
    found = shell.json("ledger", "verify", told["export"], "--key", told["key"])
    assert found["verdict"].startswith("FULL") and found["reserves"] == 3
    assert spent(shell.directory / "run/budget.db") == 3 * COST and told["queries_left"] == 0
    assert 7.999 < told["epsilon_cap"] <= 8.0
    assert told["epsilon"] == epsilon_of_rho(COST / 1e9, 1e-6) < told["epsilon_cap"]
    shown = shell.run(*typed, "--out", "run").stdout
    assert "for one document of the corpus against none" in shown and "over all queries" in shown
    assert "the corpus pays for 0 queries more" in shown


def test_the_same_command_goes_on_with_queries_that_have_no_text_and_new_ones_can_be_added(shell, typed):
    write_queries(shell.directory / "queries.jsonl", {"b": QUERIES["b"]})
    assert shell.json(*typed, "--out", "run")["new"] == 1
    write_queries(shell.directory / "queries.jsonl")
    told = shell.json(*typed, "--out", "run", "--one")
    assert (told["texts"], told["new"], told["unanswered"]) == (2, 1, 1)
    assert shell.json(*typed, "--out", "run")["new"] == 1
    assert shell.json(*typed, "--out", "run")["new"] == 0
    assert [one["query"] for one in lines_of(shell.directory / "run/texts.jsonl")] == ["b", "a", "c"]
    assert spent(shell.directory / "run/budget.db") == 3 * COST
    write_queries(shell.directory / "queries.jsonl", {"b": "another"})
    refused = shell.json(*typed, "--out", "run", code=1)["error"]
    assert refused["code"] == "RUN_QUERIES" and "'b'" in refused["sentence"]


def test_a_query_is_paid_for_before_it_retrieves_and_without_money_nothing_is_retrieved(shell, typed, seen, monkeypatch):
    reserve = BudgetLog.reserve
    monkeypatch.setattr(BudgetLog, "reserve", lambda log, *a, **k: (reserve(log, *a, **k), seen.append("paid"))[0])
    write_queries(shell.directory / "queries.jsonl", {**QUERIES, "d": "too many"})
    told = shell.json(*typed, "--out", "run", code=1)
    assert (told["texts"], told["unanswered"], told["exhausted"]) == (3, 1, True)
    assert seen == [each for text in QUERIES.values() for each in ("paid", ("retrieved", text), "forward")]
    seen.clear()
    told = shell.json(*typed, "--out", "run", code=1)
    assert (told["new"], seen) == (0, []), "no document was looked at, and the model did not run"
    assert "the corpus can pay for no further query" in shell.run(*typed, "--out", "run", code=1).stdout


def test_a_query_whose_text_a_crash_cut_is_asked_again_and_paid_again(shell, typed, monkeypatch):
    step, steps = Forward.step, []

    def broken(forward, token):
        steps.append(token)
        if len(steps) == 7:  # in the second text; the test of the rows was made before
            raise SystemError("the machine fails")
        return step(forward, token)

    monkeypatch.setattr("dptrain.inference.invisibleink.generator.check_rows", lambda *shape, **named: Form())
    monkeypatch.setattr(Forward, "step", broken)
    with pytest.raises((SystemError, AssertionError)):
        shell.json(*typed, "--out", "run")
    assert [one["query"] for one in lines_of(shell.directory / "run/texts.jsonl")] == ["a"]
    assert spent(shell.directory / "run/budget.db") == 2 * COST
    told = shell.json(*typed, "--out", "run", code=1)
    assert (told["texts"], told["lost"], told["exhausted"], told["unanswered"]) == (2, 1, True, 1)
    assert [one["query"] for one in lines_of(shell.directory / "run/texts.jsonl")] == ["a", "b"]


def test_a_query_takes_the_documents_that_answer_it_and_the_prompt_has_its_words(shell, typed, monkeypatch):
    from dptrain.inference.invisibleink.rows import Prompts

    prompts: list = []
    rows = Prompts.rows
    monkeypatch.setattr(Prompts, "rows", lambda self, found: prompts.append((self._labels, {*found})) or rows(self, found))
    shell.json(*typed, "--out", "run")
    texts = ("a red boat", "the long, wet road home", "rain on the roof")
    assert prompts[0][0] == {"query": "a red boat"} and texts[0] in prompts[0][1]
    assert prompts[1][0] == {"query": "rain on the road"} and {texts[1], texts[2]} <= prompts[1][1]


def test_one_query_is_answered_as_it_comes(shell, typed):
    words = [*without(typed, "--queries"), "--query", "a red boat", "--out", "run"]
    shell.run(*words)
    [text] = lines_of(shell.directory / "run/texts.jsonl")
    assert text["query"].startswith("q-") and len(lines_of(shell.directory / "run/queries.jsonl")) == 1
    assert shell.json(*words)["new"] == 0
    assert shell.json(*without(words, "--query"), "--query", "tea")["new"] == 1


def test_a_corpus_smaller_than_B_gives_null_references(shell, typed):
    write_references(shell.directory / "refs.jsonl", 2)
    assert shell.json(*typed, "--out", "run")["texts"] == 3
    (shell.directory / "nulls.jsonl").write_text('{"id": "n", "text": null}\n')
    words = [*without(typed, "--references"), "--references", "nulls.jsonl"]
    assert shell.json(*words, "--out", "other")["texts"] == 3  # the number of texts does not follow from what is there


def test_the_plan_says_what_a_query_costs_how_many_are_paid_and_what_epsilon_they_add_up_to(shell, typed):
    told = shell.json(*plan_of(typed))
    assert told["clip_norm"] == WHOLE.clip and told["nano_rho_per_text"] == COST
    assert (told["queries"], told["queries_at_most"], told["references"]) == (3, 3, 10)
    after = {one["queries"]: one["epsilon"] for one in told["epsilon_after"]}
    assert set(after) == {1, 3} and after[1] == told["epsilon"] and 7.999 < after[3] <= 8.0
    assert not list(shell.directory.glob("*budget*"))
    shown = shell.run(*plan_of(typed)).stdout
    assert "queries paid for" in shown and "after queries" in shown and "epsilon 8.0000" in shown
    many = shell.json(*without(plan_of(typed), "--share"), "--share", "250")
    assert [one["queries"] for one in many["epsilon_after"]] == [1, 10, 100, 250] and many["queries_at_most"] == 250
    few = shell.json(*without(plan_of(typed), "--share"), "--share", "2")
    assert any("pays for 2 of T tokens each" in one for one in few["cautions"])
    shell.run(*typed, "--out", "run", "--one")
    assert shell.json(*plan_of(typed), "--out", "run")["queries_left"] == 2


def test_the_plan_has_the_charge_of_a_sensitivity_of_2C_over_B(shell, typed):
    """One document that goes moves the mean twice as far as one that becomes null in its batch: four times the rho."""
    told = shell.json(*plan_of(typed))
    moved = 2 * 2 * told["clip_norm"] / (3 * 1.0)  # 2 s / tau, of s = 2 C / B
    assert told["rho_per_token"] == pytest.approx(moved**2 / 8, rel=1e-6)


def test_the_documents_of_one_person_cost_their_square(shell, typed):
    told = shell.json(*plan_of(typed), "--records", "2")
    assert told["clip_norm"] == pytest.approx(WHOLE.clip / 2, rel=1e-6) and told["queries_at_most"] == 3


def test_a_log_is_for_queries_or_for_batches_and_its_header_says_which(shell, typed):
    shell.run(*typed, "--out", "run", "--budget", "log.db")
    batches = without(typed, "--adjacency", "--queries", "--share")
    (shell.directory / "task.toml").write_text('public = "Say."\nprivate = "[[Of {reference}: ]]Say."\nreference_tokens = 20\n')
    refused = shell.json(*batches, "--out", "other", "--budget", "log.db", code=1)["error"]
    assert refused["code"] in ("BUDGET", "SALT")
    shell.run(*batches, "--out", "third", "--budget", "batches.db")
    write_corpus(shell.directory)
    refused = shell.json(*typed, "--out", "fourth", "--budget", "batches.db", code=1)["error"]
    assert refused["code"] == "BUDGET" and "no cap for the corpus" in refused["sentence"]
    refused = shell.json(*typed, "--records", "2", "--out", "fifth", "--budget", "log.db", code=1)["error"]
    assert refused["code"] == "BUDGET" and "retrieval records=1" in refused["sentence"]


def test_another_corpus_pays_from_the_budget_of_its_log_and_has_no_new_money(shell, typed):
    shell.run(*typed, "--out", "run", "--budget", "log.db")
    write_references(shell.directory / "refs.jsonl", 30)
    told = shell.json(*typed, "--out", "other", "--budget", "log.db", code=1)
    assert (told["texts"], told["exhausted"]) == (0, True)


def test_weights_of_words_are_public_and_a_run_keeps_them(shell, typed):
    (shell.directory / "weights.csv").write_text("word,weight\na,0\nthe,0\nboat,3\n")
    assert shell.json(*typed, "--weights", "weights.csv", "--out", "run", "--one")["new"] == 1
    refused = shell.json(*typed, "--out", "run", code=1)["error"]
    assert refused["code"] == "RUN_REFERENCES" and "score" in refused["sentence"]
    for text in ("word;weight\n", "word,weight\nboat,1e308\n"):
        (shell.directory / "weights.csv").write_text(text)
        assert shell.json(*typed, "--weights", "weights.csv", "--plan", code=1)["error"]["code"] == "WEIGHTS"


@pytest.mark.parametrize(
    "options, code, said",
    [
        (["--labels", "labels.csv"], "LABELS", "whole corpus"),
        (["--word", "query=tea"], "QUERY", "leave --word query out"),
    ],
)
def test_what_has_no_proof_with_queries_is_refused_by_name(shell, typed, options, code, said):
    write_labels(shell.directory / "labels.csv")
    for last in (["--plan"], ["--out", "run"]):
        refused = shell.json(*typed, *options, *last, code=1)["error"]
        assert refused["code"] == code and said in refused["sentence"]
    assert not list(shell.directory.glob("run/budget.db"))


def test_attested_references_are_not_retrieved_and_the_reason_is_told(shell, typed):
    (shell.directory / "policy.cose").write_bytes(b"")
    words = ["generate", "task.toml", ".", "--policy", "policy.cose", "--class", "notes", "--adjacency", "retrieval", "--plan"]
    refused = shell.json(*words, code=1)["error"]
    assert refused["code"] == "ADJACENCY" and "rule of its own" in refused["sentence"]


@pytest.mark.parametrize(
    "drop, options, said",
    [
        (["--share"], [], "--share missing"),
        (["--queries"], [], "give --queries"),
        ([], ["--query", "tea"], "give one"),
        ([], ["--texts", "2"], "each query has one text"),
        (["--adjacency"], [], "goes with --adjacency retrieval"),
    ],
)
def test_options_of_queries_that_do_not_go_together_are_wrong_use(shell, typed, drop, options, said):
    assert said in shell.json(*without(typed, *drop), *options, "--out", "run", code=2)["error"]["sentence"]


@pytest.mark.parametrize(
    "text, code",
    [
        ("", "QUERIES"), ('{"id": "a"}\n', "QUERIES"), ('{"id": "a", "text": "tea"}\n' * 2, "QUERIES"), ("[]\n", "QUERIES"),
        ('{"id": "a", "text": ""}\n', "QUERY"), ('{"id": "a", "text": "a\\u0000b"}\n', "QUERY"),
        ('{"id": "\\ud800", "text": "tea"}\n', "QUERIES"), ('{"id": "a", "text": "\\ud800"}\n', "QUERY"),
        (json.dumps({"id": "a", "text": "tea " * 2000}) + "\n", "QUERY"),
        (json.dumps({"id": "a", "text": "tea " * 200}) + "\n", "ROOM"),
    ],
)  # fmt: skip
def test_what_is_no_query_is_told_by_its_line_before_anything_is_paid(shell, typed, text, code):
    (shell.directory / "queries.jsonl").write_text(text)
    refused = shell.json(*typed, "--out", "run", code=1)["error"]
    assert refused["code"] == code
    path = shell.directory / "run/budget.db"
    assert not path.exists() or spent(path) == 0
    assert code != "QUERIES" or not (shell.directory / "run/queries.jsonl").exists()


def test_a_task_without_a_place_for_the_query_is_told_how_to_make_one(shell, typed):
    (shell.directory / "task.toml").write_text('public = "Say."\nprivate = "[[Of {reference}: ]]Say."\nreference_tokens = 20\n')
    refused = shell.json(*plan_of(typed), code=1)["error"]
    assert refused["code"] == "QUERY" and "labels = ['query']" in refused["sentence"]


def test_a_compiled_step_is_made_for_each_length_of_the_queries_to_come_and_not_for_answered_ones(shell, typed, monkeypatch):
    from dptrain.inference.invisibleink import InvisibleInk

    told: list = []
    monkeypatch.setattr("dptrain.inference.invisibleink.generator.check_rows", lambda *shape, **named: Form())
    monkeypatch.setattr(InvisibleInk, "check", lambda ink, words=None: told.append(words["query"]))
    long = {"long": "a red boat " * 12}
    write_queries(shell.directory / "queries.jsonl", {"a": QUERIES["a"]})
    shell.json(*typed, "--out", "run", "--compile")
    assert told == [QUERIES["a"]]
    write_queries(shell.directory / "queries.jsonl", {"a": QUERIES["a"], **long})
    shell.json(*typed, "--out", "run", "--compile")
    assert told[1:] == [long["long"]]
    shell.json(*typed, "--out", "run", "--compile")
    assert len(told) == 2
