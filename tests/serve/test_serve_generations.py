"""Texts from private references: who may ask for what, how it is answered, and that references have paid before it is drawn."""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest
from starlette.websockets import WebSocketDisconnect
from websockets.sync.client import connect

from dptrain.inference.invisibleink import generator, sampler
from dptrain.inference.remote import Client, ServerRefused
from dptrain.serve.access import add_token
from ledger.budget.log import BudgetLog
from tests.worlds.listening import events, held, listening, said, spoken, until
from tests.worlds.servers import Running
from tests.worlds.texts import BATCH, COST, PLAN, REFERENCES, RICH, TOKENS, batches, offered, spent, tell, telling

ASKED = {"generation": "tales", "labels": {"kind": "boat"}}


@pytest.fixture(scope="module")
def tales(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose references pay for many texts."""
    with telling(tmp_path_factory.mktemp("tales"), RICH) as world:
        yield world


def sizes(world: Running) -> tuple[int, int]:
    """Returns how often was paid, and how many forward passes there were."""
    world.service.till.log.refresh()  # type: ignore[union-attr]
    return world.service.till.log.state.reserves, len(world.calls)  # type: ignore[union-attr]


# --- the answer ---------------------------------------------------------------------------------------------------------


def test_an_answer_has_openais_shape_and_says_what_the_text_is_worth_to_a_reference(tales: Running) -> None:
    answer = tell(tales)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert set(found) == {"id", "object", "created", "model", "choices", "usage", "privacy"}
    assert (found["object"], found["model"]) == ("text_completion", "tales") and found["id"].startswith("gen-")
    (choice,) = found["choices"]
    assert set(choice) == {"index", "text", "finish_reason", "logprobs"} and choice["finish_reason"] == "length"
    assert len(choice["text"].split()) >= 1 and found["usage"]["completion_tokens"] == TOKENS
    told = found["privacy"]["generation"]
    assert told["statement"] == PLAN.sentence and "epsilon 3.0000 for one reference against none" in told["statement"]
    assert (told["epsilon"], told["delta"], told["adjacency"]) == (PLAN.epsilon, 1e-5, "zero-out")
    assert told["protects"] == "one reference" and all(word in told["does_not_protect"] for word in ("request", "labels"))
    assert told["all_texts"] == {"epsilon": 400.0, "delta": 1e-5}
    assert found["privacy"]["artifact"] == "adapter:pub" and found["privacy"]["influenced_by"] == {"pub": 4.0}


def test_events_and_websocket_send_each_token_as_it_is_drawn(tales: Running) -> None:
    with mock.patch.object(generator._Text, "add", lambda text, token: "."):  # some tokens complete no text
        by_events = events(tell(tales, stream=True).text)
        by_socket = spoken(tales, ASKED, kind="generation")
    for pieces in (by_events, by_socket):
        assert [piece["choices"][0]["finish_reason"] for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
        assert said(pieces) == "." * TOKENS and len(pieces) == 1 + TOKENS
        assert pieces[0]["privacy"]["generation"]["statement"] == PLAN.sentence and not pieces[0]["choices"][0]["text"]
        assert pieces[-1]["usage"]["completion_tokens"] == TOKENS
        assert {piece["model"] for piece in pieces} == {"tales"} and len({piece["id"] for piece in pieces}) == 1


def test_a_token_is_sent_before_the_next_one_is_drawn(tmp_path: Path) -> None:
    with telling(tmp_path) as world, listening(world) as url, held(world, "adapter:pub") as turns, ExitStack() as opened:
        opened.enter_context(mock.patch.object(generator._Text, "add", lambda text, token: "."))
        client = opened.enter_context(Client(url, world.tokens["anna"]))
        text = client.generate("tales", labels={"kind": "boat"})
        assert next(text)["choices"][0]["text"] == ""  # what it is worth, before anything is drawn
        for number in range(1, TOKENS + 1):
            turns.release(1)
            assert next(text)["choices"][0]["text"] == "."
            assert len(world.calls) <= number + 1  # the next one waits before the model
        assert list(text) == [] and len(world.calls) == TOKENS


def test_the_client_yields_a_text_and_raises_what_the_server_refuses(tmp_path: Path) -> None:
    with telling(tmp_path) as world, listening(world) as url, Client(url, world.tokens["anna"]) as client:
        (listed,) = [each for each in client.models() if each["mode"] == "generation"]
        assert (listed["id"], listed["labels"]) == ("tales", {"kind": ["boat", "orchard"]})
        for _ in range(4):
            pieces = list(client.generate(listed["id"], labels={"kind": "orchard"}))
            assert said(pieces).strip() and pieces[-1]["privacy"]["generation"]["epsilon"] == PLAN.epsilon
        with pytest.raises(ServerRefused) as refused:
            next(client.generate("tales", labels={"kind": "boat"}))
        assert (refused.value.status, refused.value.kind, refused.value.code) == (403, "privacy_budget_exhausted", "EXHAUSTED")


@pytest.mark.parametrize("end", ["data: [DONE]\n\n", ""], ids=["whole", "broken off"])
def test_a_client_takes_no_text_that_broke_off_for_a_whole_one(end: str) -> None:
    """A stream that ends by itself, without a length, looks like any other to HTTP."""
    body = 'data: {"choices": [{"text": "the boat"}]}\n\n' + end
    answers = httpx.MockTransport(lambda request: httpx.Response(200, text=body))
    with Client("http://here.example", "dpt_x", transport=answers) as client:
        text = client.generate("tales")
        assert next(text)["choices"][0]["text"] == "the boat"
        if end:
            assert list(text) == []
        else:
            with pytest.raises(ServerRefused) as refused:
                next(text)
            assert refused.value.code == "BROKEN_OFF"


def test_a_text_is_drawn_from_the_references_of_its_batch_and_no_others(tales: Running) -> None:
    """What goes through the model is the public prompt, and one prompt for each reference of the batch that paid."""
    rows: list[list[str]] = []
    served = tales.service.artifacts.model("adapter:pub")

    def look(module: Any, given: Any, named: Any) -> None:
        if named["input_ids"].shape[1] > 1:
            ids, mask = named["input_ids"], named["attention_mask"]
            rows.append([served.tokenizer.decode(row[kept.bool()]) for row, kept in zip(ids, mask, strict=True)])

    before = spent(tales)
    hook = served.model.register_forward_pre_hook(look, with_kwargs=True)
    try:
        assert tell(tales).status_code == 200
    finally:
        hook.remove()
    (drawn,) = rows
    (batch,) = [batch for batch, old, new in zip(batches(tales), before, spent(tales), strict=True) if new != old]
    assert len(drawn) == 1 + BATCH and drawn[0] == "the boat of"
    for row, reference in zip(drawn[1:], batch, strict=True):
        if reference.text:
            assert row == f"the crew sees {reference.text} . the boat of"
        else:
            assert row == drawn[0]  # a null reference is the public prompt


def test_answers_share_no_entropy_and_no_cache(tmp_path: Path) -> None:
    """The same batch, the same labels: texts differ, each prompt is computed anew, and each draw asks the system for bits."""
    one = {"batch": len(REFERENCES), "epsilon": 0.5}
    with telling(tmp_path, RICH, generation=one) as world:
        prompts: list[int] = []

        def look(module: Any, given: Any, named: Any) -> None:
            prompts.append(named["input_ids"].shape[1])

        hook = world.service.artifacts.model("adapter:pub").model.register_forward_pre_hook(look, with_kwargs=True)
        with mock.patch.object(sampler.os, "urandom", side_effect=os.urandom) as bits:
            texts = {tell(world).json()["choices"][0]["text"] for _ in range(4)}
        hook.remove()
        assert len(texts) == 4
        assert [length > 1 for length in prompts] == ([True] + [False] * (TOKENS - 1)) * 4
        assert sum(call.args == (8,) for call in bits.call_args_list) >= 4 * TOKENS


# --- before anything is drawn -------------------------------------------------------------------------------------------


def test_all_references_of_a_text_have_paid_in_the_log_on_disk_before_the_first_forward_pass(tmp_path: Path) -> None:
    with telling(tmp_path) as world:
        seen: list[list[int]] = []

        def look(module: Any, inputs: Any) -> None:
            if not seen:
                with BudgetLog.open(world.service.till.log.place, read_only=True) as log:  # type: ignore[union-attr]
                    seen.append([log.state.spent(log.account(one.unit)) for one in batches(world)[0]])

        hook = world.service.artifacts.model("adapter:pub").model.register_forward_pre_hook(look)
        assert tell(world).status_code == 200
        hook.remove()
        assert seen == [[COST] * BATCH]


def test_where_no_references_can_pay_nothing_is_computed_by_any_door(tmp_path: Path) -> None:
    with telling(tmp_path) as world:
        for _ in range(4):
            assert tell(world).status_code == 200
        assert spent(world) == [TOKENS] * 4
        before = sizes(world)
        for answer in (tell(world), tell(world, stream=True), tell(world, "bob")):
            assert answer.status_code == 403 and "choices" not in answer.text and "retry-after" not in answer.headers
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("privacy_budget_exhausted", "EXHAUSTED")
            assert set(error) == {"type", "code", "message"}  # no figure of any reference
        with world.http.websocket_connect("/v1/stream", headers=world.headers()) as socket:
            socket.send_json({"generation": ASKED})
            assert socket.receive_json()["error"]["code"] == "EXHAUSTED"
            with pytest.raises(WebSocketDisconnect) as closed:
                socket.receive_json()
            assert closed.value.code == 4403
        assert sizes(world) == before
        assert world.complete("plain").status_code == 200  # what has nothing to do with references


UNFIT: list[dict[str, Any]] = [
    {"labels": {"kind": "harbour"}}, {"labels": {}}, {"labels": {"kind": "boat", "tone": "calm"}}, {"labels": {"tone": "boat"}},
    {"labels": {"kind": ["boat"]}}, {"labels": "boat"}, {"labels": {"kind": "boat" * 100}}, {"labels": None},
    {"max_tokens": 3}, {"epsilon": 9.0}, {"seed": 1}, {"temperature": 0.0}, {"tau": 0.1}, {"batch": 1}, {"clip": 9.0},
    {"top_k": 1}, {"prompt": "the boat"}, {"references": ["x"]}, {"n": 2}, {"stream": "perhaps"}, {"generation": 5},
    {"generation": "t" * 201}, {"delta": 0.5}, {"session": "s"}, {"user": "ophelia"},
]  # fmt: skip


@pytest.mark.parametrize("asked", UNFIT, ids=lambda asked: "-".join(f"{k}={str(v)[:12]}" for k, v in asked.items()))
def test_nothing_of_privacy_and_no_word_of_its_own_can_be_asked_for(tales: Running, asked: dict[str, Any]) -> None:
    before = sizes(tales)
    answer = tell(tales, **asked)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error" and error["code"] in ("REQUEST", "LABELS")
    for value in ("harbour", "calm", "ophelia", "boatboat"):
        assert value not in error["message"]
    assert sizes(tales) == before


def test_what_there_is_not_is_404_and_a_class_is_no_generation_nor_a_generation_a_class(tales: Running) -> None:
    for name in ("nothing", "plain"):
        answer = tell(tales, generation=name)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "GENERATION")
    assert tales.complete("tales").json()["error"]["code"] == "MODEL"


def test_whose_rights_do_not_admit_the_artifact_gets_no_text_and_an_operator_none_either(tales: Running) -> None:
    before = sizes(tales)
    answer = tell(tales, "eve")
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "rights_refused")
    assert tell(tales, "op").json()["error"]["code"] == "ROLE"
    bare = add_token(tales.config.tokens, "carl")
    tales.service.reload(tales.config)
    body = {"generation": "tales", "labels": {"kind": "boat"}}
    found = tales.http.post("/v1/dp/generations", headers={"Authorization": f"Bearer {bare}"}, json=body)
    assert found.json()["error"]["code"] == "NO_RIGHTS"
    assert sizes(tales) == before


def test_requests_for_texts_count_as_requests(tmp_path: Path) -> None:
    with telling(tmp_path, RICH, limits={"requests_per_minute": 2}) as world:
        assert [tell(world).status_code for _ in range(3)] == [200, 200, 429]
        assert world.complete("plain").status_code == 429


# --- what comes back, and what does not ---------------------------------------------------------------------------------


def test_a_text_that_ends_by_itself_gives_back_what_was_never_computed(tmp_path: Path) -> None:
    with telling(tmp_path) as world:
        ink = offered(world)._ink
        drawn: list[int] = []

        class Ends:
            """Is the end of a text from the third token on."""

            def __contains__(self, token: int) -> bool:
                drawn.append(token)
                return len(drawn) % 3 == 0

        with mock.patch.object(ink, "ends", Ends()):
            answer = tell(world).json()
        assert answer["choices"][0]["finish_reason"] == "stop" and answer["usage"]["completion_tokens"] == 3
        assert len(world.calls) == 3
        until(lambda: spent(world) == [3, 0, 0, 0])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("door", ["events", "whole", "websocket"])
def test_a_reader_who_goes_away_has_spent_what_was_computed_and_no_more(tmp_path: Path, door: str) -> None:
    with telling(tmp_path) as world, listening(world) as url:
        with held(world, "adapter:pub") as turns:
            leave = begun(world, url, door)
            until(lambda: len(world.service._running) == 1)
            (running,) = world.service._running
            turns.release(2)
            until(lambda: running.stream.decoding.computed == 2)
            leave()
            until(lambda: running.stream._cancelled)
        until(lambda: not world.service.scheduler.busy)
        computed = running.stream.decoding.computed
        assert 2 <= computed <= 3  # one may have been under way
        until(lambda: spent(world) == [computed, 0, 0, 0])


def begun(world: Running, url: str, door: str) -> Any:
    """Asks over a socket, and returns what breaks the connection off."""
    if door == "websocket":
        line = connect(url.replace("http", "ws") + "/v1/stream", additional_headers=world.headers()).__enter__()
        line.send(json.dumps({"generation": ASKED}))
        return line.close
    sent = json.dumps({**ASKED, "stream": door == "events"}).encode()
    host, port = url.removeprefix("http://").split(":")
    raw = socket.create_connection((host, int(port)))
    head = f"POST /v1/dp/generations HTTP/1.1\r\nHost: x\r\nAuthorization: {world.headers()['Authorization']}\r\n"
    raw.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n".encode() + sent)
    return raw.close


def test_a_text_whose_reader_goes_away_before_its_turn_costs_nothing(tmp_path: Path) -> None:
    with telling(tmp_path, server={"streams": 1}) as world, listening(world) as url:
        with held(world, "adapter:pub"):
            first = begun(world, url, "events")
            until(lambda: world.service.scheduler.running == 1)
            second = begun(world, url, "events")
            until(lambda: world.service.scheduler.waiting == 1)
            assert sum(spent(world)) == 2 * TOKENS  # both have paid
            second()
            until(lambda: world.service.scheduler.waiting == 0)
        until(lambda: not world.service.scheduler.busy)
        first()
        until(lambda: sorted(spent(world)) == [0, 0, 0, TOKENS])


def test_a_text_that_fails_gives_nothing_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with telling(tmp_path) as world:
        calls: list[int] = []

        def fails(module: Any, inputs: Any) -> None:
            calls.append(1)
            if len(calls) == 3:
                raise RuntimeError("of " + REFERENCES[0])

        hook = world.service.artifacts.model("adapter:pub").model.register_forward_pre_hook(fails)
        answer = tell(world)
        hook.remove()
        assert answer.status_code == 500 and REFERENCES[0] not in answer.text and REFERENCES[0] not in caplog.text
        until(lambda: not world.service.scheduler.busy)
        world.service.till.log.refresh()  # type: ignore[union-attr]
        assert spent(world) == [TOKENS, 0, 0, 0]


def test_a_text_over_its_time_ends_and_has_spent_what_was_computed(tmp_path: Path) -> None:
    with telling(tmp_path, server={"request_seconds": 0.2}) as world, held(world, "adapter:pub") as turns:
        turns.release(2)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(tell(world)))
        thread.start()
        until(lambda: world.service._running and next(iter(world.service._running)).stream.decoding.computed >= 2)
        until(lambda: time.monotonic() > next(iter(world.service._running)).stream.deadline)
        turns.release(1)
        thread.join(10)
        assert found[0].json()["choices"][0]["finish_reason"] == "timeout"
        until(lambda: spent(world)[0] == found[0].json()["usage"]["completion_tokens"] < TOKENS)


def test_a_restart_resets_nothing_and_goes_on_with_the_references_that_are_left(tmp_path: Path) -> None:
    with telling(tmp_path) as world:
        order = [[one.id for one in batch] for batch in batches(world)]
        for _ in range(3):
            assert tell(world).status_code == 200
    with telling(tmp_path) as world:
        assert [[one.id for one in batch] for batch in batches(world)] == order and spent(world) == [TOKENS] * 3 + [0]
        assert tell(world).status_code == 200 and spent(world) == [TOKENS] * 4
        assert tell(world).status_code == 403


def test_a_request_that_another_server_was_quicker_than_takes_the_next_batch(tmp_path: Path) -> None:
    with telling(tmp_path) as world:
        pool, log = offered(world).pool, world.service.till.log  # type: ignore[union-attr]
        plain, taken = pool.take, []

        def slower(label: str | None = None) -> Any:
            batch, meter = plain(label)
            taken.append(batch)
            if len(taken) < 3:  # as if by another process, between this look at the log and its reservation
                meter.settle(meter.reserve(TOKENS, mechanism=PLAN.mechanism, nano_rho=PLAN.nano_rho), TOKENS)
            return batch, meter

        with mock.patch.object(pool, "take", slower):
            assert tell(world).status_code == 200
        assert taken == batches(world)[:3] and spent(world) == [TOKENS] * 3 + [0]
        assert log.state.reserves == 3
