"""Private answers are paid: whole, beforehand, durably, by the unit that is protected; and never again from the start."""

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from unittest import mock

import pytest
from starlette.websockets import WebSocketDisconnect

from dptrain.errors import ConfigError
from dptrain.inference import release as releases
from dptrain.serve.access import add_token
from ledger.budget import Unit
from ledger.budget.log import BudgetLog
from ledger.budget.rho import epsilon_of_rho
from ledger.release import Rights
from tests.worlds.listening import asking, begun, events, exact_delta, held, listening, spoken, until
from tests.worlds.servers import Running, running

SIGMA = 4.0
PRICE = 125_000_000
"""Of one release at clip norm 1 and sigma 4 between two inputs: (2 / 4)^2 / 2 of rho, in 1e-9."""

ANNA = Unit("user", "anna")


def budget_of(count: int, **more: Any) -> dict[str, Any]:
    """Returns a budget of so many releases at that price, and half of one more."""
    return {"caps": {"user": {"epsilon": epsilon_of_rho((count + 0.5) * PRICE / 1e9, 1e-5), "delta": 1e-5}}, **more}


@contextmanager
def paid_for(folder: Path, count: int, **changes: Any) -> Iterator[Running]:
    """Runs a server whose users can pay for so many tokens; a token costs the same in every answer."""
    changes = {"release": {"sigma": SIGMA, "clip": 1.0, "delta": 1e-5}, "budget": budget_of(count), **changes}
    with running(folder, **changes) as found:
        yield found


def spent(world: Running, client: str = "anna") -> int:
    """Returns how many tokens a client has paid for."""
    found = world.http.get("/v1/budgets/self", headers=world.headers(client)).json()["spent_nano_rho"]
    assert found % PRICE == 0
    return found // PRICE


def ask(world: Running, tokens: int, client: str = "anna", **more: Any) -> Any:
    return world.complete("released", client, max_tokens=tokens, **more)


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server at that price whose budget no test uses up; its answers are computed one after another."""
    limits = {"server": {"streams": 1, "waiting": 3}, "budget": {"caps": {"user": {"epsilon": 5000.0, "delta": 1e-5}}}}
    with paid_for(tmp_path_factory.mktemp("rich"), 0, **limits) as found:
        yield found


# --- before anything is computed ----------------------------------------------------------------------------------------


def test_the_whole_answer_is_paid_in_the_log_on_disk_before_the_first_forward_pass(rich: Running) -> None:
    seen: list[tuple[int, int]] = []
    before = spent(rich)

    def look(module: Any, inputs: Any) -> None:
        if not seen:
            with BudgetLog.open(rich.service.till.log.place, read_only=True) as log:  # type: ignore[union-attr]
                seen.append((log.balance(ANNA).spent // PRICE - before, len(log.state.open)))

    hook = rich.service.artifacts.model("base").model.register_forward_pre_hook(look)
    try:
        assert ask(rich, 6).status_code == 200
    finally:
        hook.remove()
    assert seen == [(6, 1)] and spent(rich) - before == 6


def test_a_refused_request_computes_nothing_and_sends_no_token_by_any_door(tmp_path: Path) -> None:
    with paid_for(tmp_path, 5) as world:
        assert ask(world, 5).status_code == 200
        calls = len(world.calls)
        for answer in (ask(world, 1), ask(world, 1, stream=True)):
            error = answer.json()["error"]
            assert (answer.status_code, error["type"], error["code"]) == (403, "privacy_budget_exhausted", "EXHAUSTED")
            assert (error["unit"], error["spent"], error["asked"]) == ("user", 5 * PRICE, PRICE) and error["cap"] < 6 * PRICE
            assert "choices" not in answer.text and "retry-after" not in answer.headers
        found = spoken(world, {"model": "released", "prompt": "the boat", "max_tokens": 1})
        assert [set(each) for each in found] == [{"error"}] and found[0]["error"]["type"] == "privacy_budget_exhausted"
        assert world.post("/v1/split", {"model": "split", "releases": 1}).status_code == 403
        assert len(world.calls) == calls and spent(world) == 5
        assert ask(world, 5, "bob").status_code == 200  # another unit has a budget of its own
        assert world.complete("plain").status_code == 200  # and what releases nothing costs nothing


def test_a_refusal_by_the_budget_closes_a_websocket_with_4403(tmp_path: Path) -> None:
    with paid_for(tmp_path, 1) as world, world.http.websocket_connect("/v1/stream", headers=world.headers()) as socket:
        socket.send_json({"completion": {"model": "released", "prompt": "the boat", "max_tokens": 2}})
        assert socket.receive_json()["error"]["code"] == "EXHAUSTED" and not world.calls
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
        assert closed.value.code == 4403


def test_an_answer_that_the_budget_holds_in_part_is_refused_whole(tmp_path: Path) -> None:
    with paid_for(tmp_path, 7) as world:
        assert ask(world, 4).status_code == 200
        calls = len(world.calls)
        assert ask(world, 4).status_code == 403
        assert (len(world.calls), spent(world)) == (calls, 4)
        assert ask(world, 3).status_code == 200 and spent(world) == 7


@pytest.mark.parametrize(
    "asked",
    [{"prompt": "the " * 65}, {"max_tokens": 65}, {"epsilon": 2.0}, {"session": "s"}, {"n": 2}, {"prompt": ""}],
    ids=lambda asked: next(iter(asked)),
)
def test_what_is_refused_for_another_reason_is_not_charged(rich: Running, asked: dict[str, Any]) -> None:
    before, calls, size = spent(rich), len(rich.calls), rich.service.till.log.size  # type: ignore[union-attr]
    assert ask(rich, **{"tokens": asked.pop("max_tokens", 4), **asked}).status_code == 400
    assert (spent(rich), len(rich.calls), rich.service.till.log.size) == (before, calls, size)  # type: ignore[union-attr]


def test_whose_rights_admit_no_adapter_is_refused_uncharged(rich: Running) -> None:
    size = rich.service.till.log.size  # type: ignore[union-attr]
    answer = ask(rich, 2, "eve")
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "rights_refused")
    assert rich.service.till.log.size == size  # type: ignore[union-attr]


# --- what it costs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [None, 0.5, 8.0])
def test_an_answer_of_T_tokens_is_charged_as_T_releases_of_the_noise_that_its_epsilon_asks_for(world, epsilon) -> None:
    def balance() -> int:
        return world.http.get("/v1/budgets/self", headers=world.headers()).json()["spent_nano_rho"]

    for tokens in (1, 9):
        before = balance()
        told = ask(world, tokens, epsilon=epsilon).json()["privacy"]["release"]
        sigma, wanted = told["sigma"], epsilon or 4.0
        mu = math.sqrt(tokens) * 2.0 / sigma  # two inputs, clip norm 1
        assert exact_delta(mu, wanted) <= 1e-5 < exact_delta(mu * 1.0001, wanted)  # sigma = sqrt(T) sens / mu, and no less
        assert told["releases"] == tokens and told["epsilon"] == pytest.approx(wanted, rel=1e-6)
        assert told["nano_rho"] == balance() - before == tokens * math.ceil((2 / sigma) ** 2 / 2 * 1e9)
        assert f"epsilon {wanted:.4f} for two inputs" in told["statement"] and "delta 1e-5" in told["statement"]


def test_an_epsilon_above_that_of_an_answer_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, release={"epsilon": 1.0, "max_epsilon": 2.0}) as world:
        assert world.complete("released", epsilon=2.0).status_code == 200
        refused = world.complete("released", epsilon=2.0001)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "EPSILON")
        assert world.post("/v1/split", {"model": "split", "releases": 1, "epsilon": 3}).status_code == 400


def test_an_epsilon_that_hides_nothing_is_refused_uncharged(world: Running) -> None:
    size, calls = world.service.till.log.size, len(world.calls)  # type: ignore[union-attr]
    for each in (10_000.0, 1e308, float("inf"), float("nan"), 0.0):
        body = f'{{"model": "released", "prompt": "the boat", "max_tokens": 1, "epsilon": {each}}}'.replace("inf", "Infinity")
        headers = {**world.headers(), "content-type": "application/json"}
        assert world.http.post("/v1/completions", headers=headers, content=body.replace("nan", "NaN")).status_code == 400
    assert (world.service.till.log.size, len(world.calls)) == (size, calls)  # type: ignore[union-attr]


def test_a_session_needs_a_cap_and_opens_no_new_money(tmp_path: Path) -> None:
    with paid_for(tmp_path, 4) as world:
        assert ask(world, 1, session="s1").json()["error"]["code"] == "SESSION" and spent(world) == 0
    (tmp_path / "two").mkdir()
    caps = {"user": budget_of(6)["caps"]["user"], "session": budget_of(4)["caps"]["user"]}
    with paid_for(tmp_path / "two", 0, budget={"caps": caps}) as world:
        assert ask(world, 3, session="s1").status_code == 200
        refused = ask(world, 2, session="s1")  # the session's cap
        assert (refused.status_code, refused.json()["error"]["unit"]) == (403, "session")
        assert ask(world, 3, session="s2").status_code == 200
        for fresh in ("s3", "s4", None):  # the user's cap
            refused = ask(world, 1, session=fresh)
            assert (refused.status_code, refused.json()["error"]["unit"]) == (403, "user")
        assert spent(world) == 6
        assert ask(world, 1, "bob", session="s1").status_code == 200  # a session of that name is another one under bob


# --- early ends ---------------------------------------------------------------------------------------------------------


@contextmanager
def counted() -> Iterator[list[int]]:
    """Counts the states that leave."""
    made: list[int] = []
    plain = releases.Answer.release

    def released(self: releases.Answer, state: Any) -> Any:
        made.append(1)
        return plain(self, state)

    with mock.patch.object(releases.Answer, "release", released):
        yield made


def test_an_answer_that_ends_early_is_spent_whole_and_makes_all_its_releases(rich: Running) -> None:
    """When an answer ends follows from states in clear; neither the charge nor the number of releases may tell of it."""
    served = rich.service.artifacts.model("base")
    every = [served.tokenizer.decode([n]) for n in range(3, len(served.tokenizer))]
    stops = {word[0] for word in every}
    for how in ({"stop": sorted(stops)[:4], "temperature": 2.0}, {"stop": ["a", "e", "i", "o"]}):
        before = spent(rich)
        with counted() as made:
            answer = ask(rich, 60, **how).json()
            assert answer["choices"][0]["finish_reason"] == "stop" and answer["usage"]["completion_tokens"] < 60
            until(lambda: not rich.service.scheduler.busy)
        assert (len(made), spent(rich) - before) == (60, 60)


def test_an_end_of_text_token_frees_nothing(rich: Running) -> None:
    served = rich.service.artifacts.model("base")
    before = spent(rich)
    with mock.patch.dict(rich.service.artifacts._models, base=replace(served, stops=frozenset(range(len(served.tokenizer))))):
        answer = ask(rich, 20).json()
    assert answer["choices"][0] == {"index": 0, "text": "", "finish_reason": "stop", "logprobs": None}
    assert answer["usage"]["completion_tokens"] == 1 and spent(rich) - before == 20


def test_a_deadline_in_the_middle_frees_nothing_and_before_the_first_token_all(tmp_path: Path) -> None:
    server = {"request_seconds": 0.15, "streams": 1}
    with paid_for(tmp_path, 60, server=server) as world, counted() as made:
        plain = world.service.artifacts.model("base").model.register_forward_hook(lambda *given: time.sleep(0.06))
        answer = ask(world, 20).json()
        plain.remove()
        assert answer["choices"][0]["finish_reason"] == "timeout" and 1 <= answer["usage"]["completion_tokens"] < 20
        assert spent(world) == 20 and len(made) < 20  # when it was, everybody may know
        with held(world) as turns, listening(world) as url, asking(world, url) as one, asking(world, url, "bob") as two:
            body = {"model": "released", "prompt": "the boat", "max_tokens": 7}
            first = Thread(target=lambda: one.post("/v1/completions", json=body), daemon=True)
            first.start()
            until(lambda: world.service.scheduler.running == 1)
            late: list[Any] = []
            second = Thread(target=lambda: late.append(two.post("/v1/completions", json=body)), daemon=True)
            second.start()
            until(lambda: world.service.scheduler.waiting == 1 and spent(world, "bob") == 7)
            time.sleep(0.2)
            turns.release(50)
            second.join(10)
            assert late[0].json()["choices"][0] == {"index": 0, "text": "", "finish_reason": "timeout", "logprobs": None}
            until(lambda: spent(world, "bob") == 0)


@pytest.mark.parametrize("door", ["events", "websocket", "whole"])
def test_a_reader_who_goes_away_in_the_middle_has_spent_the_whole_answer(rich: Running, door: str) -> None:
    before = spent(rich)
    with counted() as made, held(rich) as turns, listening(rich) as url:
        end = begun(rich, url, door, tokens=30)
        turns.release(3)
        until(lambda: len(made) == 3)
        end()
        turns.release(30)
        until(lambda: not rich.service.scheduler.busy)
        assert len(made) == 30  # who stops reading may have read why
    assert spent(rich) - before == 30


@pytest.mark.parametrize("door", ["events", "websocket", "whole"])
def test_an_answer_whose_reader_goes_away_before_its_turn_is_freed(rich: Running, door: str) -> None:
    before, first = spent(rich, "bob"), spent(rich)
    with counted() as made, held(rich) as turns, listening(rich) as url:
        stays = begun(rich, url, "events", tokens=2)
        until(lambda: rich.service.scheduler.running == 1)
        end = begun(rich, url, door, tokens=30, client="bob")
        until(lambda: rich.service.scheduler.waiting == 1 and spent(rich, "bob") - before == 30)
        end()
        until(lambda: rich.service.scheduler.waiting == 0)
        turns.release(2)
        until(lambda: not rich.service.scheduler.busy)
        assert len(made) == 2
        stays()
    assert (spent(rich, "bob"), spent(rich)) == (before, first + 2)


# --- and never anew -----------------------------------------------------------------------------------------------------


def test_a_restart_of_the_server_resets_nothing(tmp_path: Path) -> None:
    with paid_for(tmp_path, 5) as world:
        assert ask(world, 4).status_code == 200
    with paid_for(tmp_path, 5) as world:
        assert spent(world) == 4 and ask(world, 2).status_code == 403 and not world.calls
        assert ask(world, 1).status_code == 200
    with paid_for(tmp_path, 5) as world:
        assert ask(world, 1).status_code == 403 and spent(world) == 5


def test_a_new_token_of_the_same_user_opens_no_new_money(tmp_path: Path) -> None:
    with paid_for(tmp_path, 5) as world:
        assert ask(world, 5).status_code == 200
        add = add_token(world.config.tokens, "anna", rights=Rights({"pub": 4.0}))
    with paid_for(tmp_path, 5) as world:
        world.tokens["again"] = add
        assert ask(world, 1, "again").status_code == 403


def test_caps_of_the_file_cannot_be_raised_over_those_of_the_log(tmp_path: Path) -> None:
    with paid_for(tmp_path, 5):
        pass
    for changed in (budget_of(50), {"caps": {"user": {"epsilon": 20.0, "delta": 1e-4}}}):
        with pytest.raises(ConfigError, match="CAPS"), paid_for(tmp_path, 5, budget=changed):
            pass


# --- who is told --------------------------------------------------------------------------------------------------------


def test_the_officer_is_told_at_thresholds_and_at_exhaustion(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with paid_for(tmp_path, 10, budget=budget_of(10, thresholds=[50, 80])) as world:
        for tokens in (4, 2, 3, 5, 5):
            ask(world, tokens)
        until(lambda: len([line for line in caplog.messages if line.startswith("budget notice: ")]) == 3)
        told = [line for line in caplog.messages if line.startswith("budget notice: ")]
        assert ["50 %" in told[0], "80 %" in told[1], "refused for the first time" in told[2]] == [True] * 3
        assert "anna" not in caplog.text


def test_a_webhook_that_fails_gets_its_notices_later_and_holds_up_no_answer(tmp_path: Path) -> None:
    came: list[dict[str, Any]] = []
    broken = [True]

    class Officer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if not broken[0]:
                came.append(json.loads(body))
            self.send_response(500 if broken[0] else 204)
            self.end_headers()

        def log_message(self, *given: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Officer) as officer:
        Thread(target=officer.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{officer.server_port}/notices"
        with paid_for(tmp_path, 4, budget=budget_of(4, webhook=url)) as world:
            assert ask(world, 2).status_code == 200 and ask(world, 2).status_code == 200
            time.sleep(0.2)
            assert ask(world, 1).status_code == 403 and not came
            broken[0] = False
            until(lambda: len(came) == 3)
            assert [each["event"] for each in came] == ["threshold-50", "threshold-80", "exhausted"]
            assert {each["unit"] for each in came} == {world.service.till.log.account(ANNA).hex()}  # type: ignore[union-attr]
        officer.shutdown()


def test_events_say_the_charge_before_the_first_token(rich: Running) -> None:
    pieces = events(ask(rich, 3, stream=True).text)
    assert pieces[0]["privacy"]["release"]["nano_rho"] == 3 * PRICE and not pieces[0]["choices"][0]["text"]


def test_the_log_says_that_an_answer_is_spent_when_it_began_and_never_when_it_ended(rich: Running) -> None:
    """The time of a COMMIT leaf, which auditors read, would tell how long an answer is."""
    log = rich.service.till.log  # type: ignore[union-attr]
    with counted() as made, held(rich) as turns, listening(rich) as url:
        end = begun(rich, url, "events", tokens=30)
        turns.release(2)
        until(lambda: len(made) >= 2)
        log.refresh()
        assert not log.state.open
        metrics = rich.service.metrics.tokens.labels("released")._value.get()
        turns.release(40)
        until(lambda: not rich.service.scheduler.busy)
        assert rich.service.metrics.tokens.labels("released")._value.get() == metrics  # counted whole at its beginning
        end()


def test_what_was_settled_is_in_the_log_soon_on_an_idle_server_too(rich: Running) -> None:
    """An answer that never began is freed for others without waiting for the next request."""
    log = rich.service.till.log  # type: ignore[union-attr]
    with BudgetLog.open(log.place) as other:
        assert ask(rich, 3).status_code == 200

        def ended() -> bool:
            other.refresh()
            return not other.state.open

        until(ended)
