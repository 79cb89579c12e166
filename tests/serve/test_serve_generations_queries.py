"""Generations that retrieve: each request has a public query, and the corpus pays for it before a document is looked at."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dptrain.errors import ConfigError, NotPrivateUse
from dptrain.inference.invisibleink import Plan, generator
from dptrain.inference.invisibleink.forward import Form
from dptrain.inference.invisibleink.retrieval import CORPUS, Lexical, Retrieval
from dptrain.inference.remote import Client, ServerRefused
from dptrain.serve.config import ServeConfig
from ledger.budget.log import BudgetLog
from tests.worlds.listening import held, listening, said, spoken
from tests.worlds.postgres import Cluster, require_server
from tests.worlds.servers import Running, table
from tests.worlds.texts import BATCH, GENERATION, TOKENS, changes, tell, telling

TASK = """
public = "the {kind} {query} of"
private = "[[the crew sees {reference} . ]]the {kind} {query} of"
labels = ["kind", "query"]
reference_tokens = 6
"""
PLAN = Plan.for_epsilon(3.0, delta=1e-5, batch=BATCH, tokens=TOKENS, k=20, adjacency="retrieval")
COST = TOKENS * PLAN.nano_rho
ASKING: dict[str, Any] = {"retrieve": True, "salt": None, "most_query": 40}


def caps(queries: int) -> dict[str, Any]:
    """Caps the corpus at so many queries, and a little."""
    from ledger.budget.rho import epsilon_of_rho

    whole = round(epsilon_of_rho((queries + 0.5) * COST / 1e9, 1e-5), 6)
    return {"user": {"epsilon": 20.0, "delta": 1e-5}, "corpus": {"epsilon": whole, "delta": 1e-5}}


@contextmanager
def asking(folder: Path, queries: int = 1000, **more: Any) -> Iterator[Running]:
    """Runs a server that retrieves."""
    (folder / "tale.toml").write_text(TASK)
    rows = [{"id": f"note-{n}", "text": text} for n, text in enumerate(["gull rope mast", "apple pear plum", "", "salt net"])]
    (folder / "references.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with telling(folder, caps(queries), generation={**ASKING, **more.pop("generation", {})}, **more) as world:
        yield world


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with asking(tmp_path_factory.mktemp("corpus")) as world:
        yield world


def spent(world: Running) -> int:
    log = world.service.till.log  # type: ignore[union-attr]
    return log.balance(CORPUS).spent


def refusal(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_query_is_answered_and_the_answer_says_what_it_is_worth_to_a_document(corpus: Running) -> None:
    answer = tell(corpus, query="apple tree")
    assert answer.status_code == 200, answer.text
    told = answer.json()["privacy"]["generation"]
    assert told["statement"] == PLAN.sentence and "one document of the corpus against none" in told["statement"]
    assert (told["adjacency"], told["protects"], told["epsilon"]) == ("retrieval", "one document of the corpus", PLAN.epsilon)
    assert "query" in told["does_not_protect"] and told["all_texts"]["epsilon"] > 3.0
    (listed,) = [each for each in corpus.http.get("/v1/models", headers=corpus.headers()).json()["data"] if "query" in each]
    assert (listed["id"], listed["query"], set(listed["labels"])) == ("tales", 40, {"kind"})


def test_the_references_of_a_text_are_those_that_the_query_retrieves(corpus: Running) -> None:
    with mock.patch.object(generator.Prompts, "rows", autospec=True, side_effect=generator.Prompts.rows) as rows:
        tell(corpus, query="apple plum")
        tell(corpus, query="rope net")
    assert "apple pear plum" in rows.call_args_list[0].args[1]
    assert {*rows.call_args_list[1].args[1]} == {"gull rope mast", "salt net"}
    assert rows.call_args_list[0].args[0]._labels == {"kind": "boat", "query": "apple plum"}


def test_the_corpus_has_paid_before_a_document_is_looked_at_and_nothing_runs_without_money(tmp_path: Path) -> None:
    with asking(tmp_path, queries=2) as world:
        at: list[int] = []
        best = Retrieval.best

        def look(retrieval: Retrieval, query: str, batch: int) -> Any:
            at.append(spent(world))
            return best(retrieval, query, batch)

        with mock.patch.object(Retrieval, "best", look):
            assert [tell(world, query="rope").status_code for _ in range(2)] == [200, 200]
            assert at == [COST, 2 * COST]
            world.calls.clear()
            answer = tell(world, "bob", query="rope")
            assert refusal(answer) == (403, "EXHAUSTED") and len(at) == 2 and not world.calls
            assert set(answer.json()["error"]) == {"type", "code", "message"}  # what others spent is told to nobody
            assert answer.json()["error"]["type"] == "privacy_budget_exhausted"
        assert world.service.generations.told()[0]["left"] == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "asked, code",
    [
        ({}, "QUERY"), ({"query": ""}, "QUERY"), ({"query": "x" * 41}, "QUERY"), ({"query": "a\0b"}, "QUERY"),
        ({"query": "x" * 5000}, "REQUEST"), ({"query": 7}, "REQUEST"), ({"query": "tea", "labels": {}}, "LABELS"),
        ({"query": "tea", "labels": {"kind": "boat", "query": "tea"}}, "LABELS"), ({"query": "tea", "epsilon": 9}, "REQUEST"),
        ({"query": "tea", "batch": 1}, "REQUEST"), ({"query": "tea", "seed": 1}, "REQUEST"),
        ({"query": "tea", "references": ["x"]}, "REQUEST"), ({"query": "tea", "score": "x"}, "REQUEST"),
    ],
)  # fmt: skip
def test_a_request_has_a_query_and_nothing_else_of_privacy(corpus: Running, asked: dict[str, Any], code: str) -> None:
    before, calls = spent(corpus), len(corpus.calls)
    assert refusal(tell(corpus, **asked)) == (400, code)
    assert (spent(corpus), len(corpus.calls)) == (before, calls)


def test_half_of_a_character_is_no_query(corpus: Running) -> None:
    body = b'{"generation": "tales", "labels": {"kind": "boat"}, "query": "a \\ud800"}'
    headers = {**corpus.headers(), "Content-Type": "application/json"}
    before = spent(corpus)
    assert corpus.http.post("/v1/dp/generations", headers=headers, content=body).status_code == 400
    assert spent(corpus) == before


def test_a_generation_of_batches_takes_no_query(tmp_path: Path) -> None:
    with telling(tmp_path) as world:
        assert refusal(tell(world, query="tea")) == (400, "QUERY")


def test_the_client_and_the_socket_ask_queries(corpus: Running) -> None:
    pieces = spoken(corpus, {"generation": "tales", "labels": {"kind": "boat"}, "query": "rope"}, kind="generation")
    assert pieces[-1]["usage"]["completion_tokens"] == TOKENS
    with listening(corpus) as url, Client(url, corpus.tokens["anna"]) as client:
        pieces = list(client.generate("tales", labels={"kind": "boat"}, query="rope mast"))
        assert said(pieces) is not None and pieces[-1]["privacy"]["generation"]["adjacency"] == "retrieval"
        with pytest.raises(ServerRefused) as refused:
            next(client.generate("tales", labels={"kind": "boat"}))
        assert refused.value.code == "QUERY"


def test_rows_of_a_length_that_no_query_had_are_tested_before_they_draw(tmp_path: Path) -> None:
    with asking(tmp_path, queries=3, generation={"most_query": 400}) as world:
        with mock.patch.object(generator, "check_rows", return_value=Form()) as check:
            for _ in range(2):
                assert tell(world, query="boat " * 40).status_code == 200
                assert check.call_count == 1
        before = spent(world)
        coupled = NotPrivateUse("ROWS_COUPLED", "another row moved")
        with mock.patch.object(generator, "check_rows", side_effect=coupled):
            assert refusal(tell(world, query="boat " * 70)) == (503, "ROWS_COUPLED")
        assert refusal(tell(world, query="boat")) == (503, "ROWS_COUPLED")  # and it is closed
        assert spent(world) == before  # made-up rows were tested, and nothing of a document was drawn from


@pytest.mark.one_in(4)
@pytest.mark.parametrize("before, after", [("salt net", ""), ("", ""), ("salt net", "salt net"), ("salt net", "gull")])
def test_every_reading_of_a_corpus_ends_all_its_texts_so_that_none_tells_what_a_document_was(
    tmp_path: Path, before: str, after: str
) -> None:
    every = mock.patch.object(generator._Text, "add", lambda text, token: ".")  # some tokens complete no text
    with asking(tmp_path) as world, listening(world) as url, every:
        path = tmp_path / "references.jsonl"
        rows = path.read_text()

        def read(text: str) -> None:
            path.write_text(rows.replace("salt net", text))  # of no document of this query
            world.service.reread()

        read(before)
        with held(world, "adapter:pub") as turns, Client(url, world.tokens["anna"]) as client:
            text = client.generate("tales", labels={"kind": "boat"}, query="apple")
            next(text)
            turns.release(1)
            next(text)
            read(after)
            turns.release(TOKENS)
            with pytest.raises(ServerRefused) as refused:
                list(text)
            assert (refused.value.code, refused.value.sentence) == (
                "WITHDRAWN", "the corpus was read again while this text was computed; ask again",
            )  # fmt: skip
        assert tell(world, query="apple").status_code == 200


def test_no_list_of_weights_that_is_read_makes_a_score_overflow(tmp_path: Path) -> None:
    weights = tmp_path / "weights.csv"
    weights.write_text("word,weight\napple,1e308\n")
    with pytest.raises(ConfigError, match="WEIGHTS"), asking(tmp_path, generation={"weights": "weights.csv"}):
        pass
    weights.write_text("word,weight\napple,1000000\n")
    with asking(tmp_path, generation={"weights": "weights.csv"}) as world:
        assert tell(world, query="apple pear plum").status_code == 200


def test_a_document_without_a_score_is_told_to_no_client(
    corpus: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = Lexical.of_terms
    monkeypatch.setattr(Lexical, "of_terms", lambda *of: math.inf if "pear" in of[2] else plain(*of))
    answer = tell(corpus, query="rope")
    assert refusal(answer) == (503, "RETRIEVAL")
    told = answer.text + caplog.text
    assert not any(word in told for word in ("score", "document", "finite", "inf;", "pear")), "what was found is told"
    assert "SCORE" not in answer.text and "could not retrieve: SCORE" in caplog.text


@pytest.mark.parametrize(
    "changed, said_",
    [
        ({"label_list": "labels.csv"}, "whole corpus"),
        ({"labels": {"kind": ["boat"], "query": ["tea"]}}, "has no list"),
        ({"compile": True}, "compiled for each length"),
        ({"retrieve": None, "salt": "salt"}, "goes with retrieve"),
        ({"references": None, "attested": {"policy": "p", "owner_key": "o", "registry": "r", "class": "c", "corpus": ["c"]}},
         "rule of its own"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_queries_is_refused_when_the_file_is_read(
    tmp_path: Path, changed: dict[str, Any], said_: str
) -> None:
    attested = dict.fromkeys(("epsilon", "batch", "tokens", "top_k")) if "attested" in changed else {}
    with pytest.raises(ConfigError) as refused:
        ServeConfig.of(table(**changes(caps(1), {**ASKING, **attested, **changed})), tmp_path)
    assert said_ in str(refused.value)


def test_one_log_is_for_queries_or_for_batches(tmp_path: Path) -> None:
    both = changes({**caps(1), "contribution": {"epsilon": 3.0, "delta": 1e-5}}, ASKING)
    both["generations"]["others"] = GENERATION
    with pytest.raises(ConfigError, match="run two servers"):
        ServeConfig.of(table(**both), tmp_path)
    with pytest.raises(ConfigError, match=r"budget\.caps\.corpus"):
        ServeConfig.of(table(**changes({"user": {"epsilon": 1.0, "delta": 1e-5}}, ASKING)), tmp_path)
    batches = {"contribution": {"epsilon": 3.0, "delta": 1e-5}}
    with telling(tmp_path, {**caps(1), **batches}):
        pass
    (tmp_path / "tale.toml").write_text(TASK)
    with pytest.raises(ConfigError, match="MECHANISM"), telling(tmp_path, {**caps(1), **batches}, generation=ASKING):
        pass


def test_a_task_without_a_place_for_the_query_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no place for the query"), telling(tmp_path, caps(1), generation=ASKING):
        pass


def test_a_server_keeps_the_budget_of_its_corpus_in_a_database(tmp_path: Path) -> None:
    require_server()
    cluster = Cluster()
    try:
        (tmp_path / "state").mkdir()
        place = {"log": cluster.url(), "state": "state"}
        with asking(tmp_path, queries=2, budget=place) as world:
            assert [tell(world, query="rope").status_code for _ in range(3)] == [200, 200, 403]
        with BudgetLog.open(cluster.url(), state=tmp_path / "state", read_only=True) as log:
            assert log.state.spent(log.account(CORPUS)) == 2 * COST
    finally:
        cluster.stop()
