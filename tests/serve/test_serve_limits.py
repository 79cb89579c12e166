"""How much is taken on: requests, answers, pieces that nobody reads; and how a server ends."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from dptrain.serve.access import RateLimit
from dptrain.serve.app import make_app
from dptrain.serve.scheduler import AHEAD
from dptrain.serve.wire import Refused
from tests.worlds.listening import asking, begun, held, listening, until
from tests.worlds.servers import Running, running

RICH = {"caps": {"user": {"epsilon": 5000.0, "delta": 1e-5}}}
BODY = {"model": "plain", "prompt": "the boat", "max_tokens": 4}


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that computes two answers, and lets one wait."""
    server = {"streams": 2, "waiting": 1, "max_tokens": 200}
    with running(tmp_path_factory.mktemp("narrow"), server=server, budget=RICH) as found:
        yield found


# --- requests -----------------------------------------------------------------------------------------------------------


def test_requests_above_the_rate_are_429_and_say_when_to_come_again(tmp_path: Path) -> None:
    with running(tmp_path, limits={"requests_per_minute": 3}) as world:
        doors = ("/v1/completions", "/v1/completions", "/v1/split")
        bodies = (BODY, {**BODY, "stream": True}, {"model": "split", "releases": 1})
        assert [world.post(path, body).status_code for path, body in zip(doors, bodies, strict=True)] == [200] * 3
        calls = len(world.calls)
        for path, body in zip(doors, bodies, strict=True):
            refused = world.post(path, body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "RATE")
            assert 50 < int(refused.headers["retry-after"]) <= 61
        with world.http.websocket_connect("/v1/stream", headers=world.headers()) as line:
            line.send_json({"completion": BODY})
            assert line.receive_json()["error"]["code"] == "RATE"
        assert len(world.calls) == calls
        assert world.post("/v1/completions", BODY, "bob").status_code == 200  # each client has its own
        looks = [world.http.get("/v1/budgets/self", headers=world.headers()) for _ in range(4)]
        assert [look.status_code for look in looks] == [200, 200, 200, 429] and "retry-after" in looks[-1].headers


def test_a_rate_is_of_a_moving_window_and_remembers_no_more_than_it_needs() -> None:
    now = [0.0]
    limit = RateLimit(2, 10.0, lambda: now[0])
    for at, granted in ((0.0, True), (6.0, True), (9.9, False), (10.0, True), (15.9, False), (16.0, True), (16.1, False)):
        now[0] = at
        if granted:
            limit.take("anna", "requests")
        else:
            with pytest.raises(Refused) as refused:
                limit.take("anna", "requests")
            assert at + (refused.value.after or 0) >= (10.0 if at < 10 else 16.0 if at < 16 else 20.0)
    for _ in range(1000):
        with pytest.raises(Refused):
            limit.take("anna", "requests")
    assert len(limit._seen["anna"]) == 2


def test_more_answers_than_places_are_503_uncharged_and_say_when_to_come_again(narrow: Running) -> None:
    with held(narrow) as turns, listening(narrow) as url:
        stay = [begun(narrow, url, "events", tokens=3) for _ in range(3)]
        until(lambda: (narrow.service.scheduler.running, narrow.service.scheduler.waiting) == (2, 1))
        before = narrow.service.till.log.size  # type: ignore[union-attr]
        with asking(narrow, url) as http:
            for body in ({**BODY, "model": "released"}, BODY, {**BODY, "stream": True}):
                refused = http.post("/v1/completions", json=body)
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "BUSY")
                assert refused.headers["retry-after"] == "1"
        assert narrow.service.till.log.size == before  # type: ignore[union-attr]
        turns.release(100)
        until(lambda: not narrow.service.scheduler.busy)
        assert [end() for end in stay] == [None] * 3
    assert narrow.complete("plain").status_code == 200  # places come back


def test_places_come_back_however_an_answer_ends(narrow: Running) -> None:
    for _ in range(4):  # more than there are places
        narrow.complete("plain", prompt="the " * 100)
        narrow.complete("released", epsilon=1e6)
        narrow.complete("plain", stop=["a", "e"])
    with listening(narrow) as url:
        for door in ("events", "websocket", "whole") * 3:
            begun(narrow, url, door, tokens=3)()
    until(lambda: not narrow.service.scheduler.busy)
    scheduler = narrow.service.scheduler
    assert (scheduler._held, len(scheduler._running), len(scheduler._waiting), len(scheduler._ready)) == (0, 0, 0, 0)


# --- readers ------------------------------------------------------------------------------------------------------------


def scope(world: Running, client: str, body: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns a request as an HTTP server hands it on."""
    token = world.headers(client)["Authorization"].encode()
    found = {
        "type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"/v1/completions", "query_string": b"",
        "headers": [(b"authorization", token), (b"content-type", b"application/json")], "http_version": "1.1",
        "scheme": "http", "server": ("x", 80), "client": ("y", 1), "root_path": "",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
    }  # fmt: skip
    return found, [{"type": "http.request", "body": json.dumps(body).encode()}]


def test_a_reader_who_does_not_read_holds_up_nobody_else_and_only_so_much_is_kept_for_it(narrow: Running) -> None:
    """The HTTP server lets `send` wait while the buffers of a connection are full; here it waits for ever."""
    app = make_app(narrow.service)

    async def ask(client: str, body: dict[str, Any], full: bool) -> list[dict[str, Any]]:
        found, messages = scope(narrow, client, body)
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return messages.pop() if messages else await asyncio.sleep(3600, {})

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)
            if full and len(sent) > 3:
                await asyncio.sleep(3600)

        await app(found, receive, send)
        return sent

    async def work() -> None:
        stuck = asyncio.ensure_future(ask("anna", {**BODY, "max_tokens": 200, "temperature": 0, "stream": True}, True))
        while not any(each._parked for each in list(narrow.service.scheduler._running)):
            await asyncio.sleep(0.01)
        (parked,) = list(narrow.service.scheduler._running)
        computed = parked.decoding.computed
        assert parked._ahead == parked._box.qsize() == AHEAD and computed <= AHEAD + 4
        for _ in range(5):
            others = await asyncio.wait_for(ask("bob", {**BODY, "max_tokens": 60}, False), 20)
            assert others[0]["status"] == 200
        assert parked.decoding.computed == computed
        stuck.cancel()
        await asyncio.gather(stuck, return_exceptions=True)

    asyncio.run(asyncio.wait_for(work(), 60))
    until(lambda: not narrow.service.scheduler.busy)


def test_an_answer_that_nobody_reads_ends_at_its_deadline_also_on_a_server_that_is_never_idle(narrow: Running) -> None:
    scheduler = narrow.service.scheduler
    busy, ended = threading.Event(), []

    class Endless:
        finish, computed, prompt = None, 0, 1
        over = property(lambda self: self.finish is not None)

        def step(self) -> str:
            time.sleep(0.002)
            self.finish = "stop" if busy.is_set() else None
            return ""

        def forget(self) -> None:
            pass

        def silently(self) -> bool:
            return False

    class Wordy(Endless):
        def step(self) -> str:
            return "word "

    async def work() -> None:
        for made, seconds in ((Endless(), 60.0), (Wordy(), 0.3)):
            scheduler.hold("anna", 8)
            scheduler.start(made, ended.append, seconds, "anna")  # type: ignore[arg-type]
        for _ in range(300):
            await asyncio.sleep(0.01)
            if ended:
                break
        busy.set()

    asyncio.run(work())
    until(lambda: not scheduler.busy)
    assert [type(each).__name__ for each in ended] == ["Wordy", "Endless"]


def test_what_comes_out_of_turn_ends_a_conversation_and_what_comes_right_behind_does_not(narrow: Running) -> None:
    headers = narrow.headers()
    with listening(narrow) as url, connect(url.replace("http", "ws") + "/v1/stream", additional_headers=headers) as line:
        for _ in range(20):  # sent as soon as the answer before is done
            line.send(json.dumps({"completion": BODY}))
            while (found := json.loads(line.recv(10))) != {"done": True}:
                assert "error" not in found
        line.send(json.dumps({"completion": {**BODY, "max_tokens": 150}}))
        line.send(json.dumps({"completion": BODY}))
        kept = []
        with pytest.raises(Exception):  # noqa: B017 - closed, whatever the library calls it
            while True:
                kept.append(line.recv(10))
        assert len(kept) < 150


# --- the end ------------------------------------------------------------------------------------------------------------


def test_a_draining_server_refuses_new_requests_and_says_so(narrow: Running) -> None:
    narrow.service.draining = True
    try:
        calls = len(narrow.calls)
        split = narrow.post("/v1/split", {"model": "split", "releases": 1})
        for answer in (narrow.complete("plain"), narrow.complete("released"), split):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "DRAINING") and answer.headers["retry-after"]
        assert narrow.http.get("/readyz").status_code == 503 and narrow.http.get("/healthz").status_code == 200
        assert len(narrow.calls) == calls
    finally:
        narrow.service.draining = False


def test_a_service_that_closes_settles_what_runs_and_lets_its_readers_know(tmp_path: Path) -> None:
    with running(tmp_path, server={"streams": 1, "waiting": 1}) as world:
        with ThreadPoolExecutor(2) as pool, listening(world) as url, held(world) as turns:
            body = {**BODY, "model": "released", "max_tokens": 20}
            with asking(world, url) as http, asking(world, url, "bob") as other:
                first = pool.submit(http.post, "/v1/completions", json=body)
                until(lambda: world.service.scheduler.running == 1)
                second = pool.submit(other.post, "/v1/completions", json=body)
                until(lambda: world.service.scheduler.waiting == 1)
                turns.release(1)
                until(lambda: next(iter(world.service.scheduler._running)).decoding.computed == 1)
                closing = threading.Thread(target=world.service.scheduler.close)
                closing.start()
                until(lambda: world.service.scheduler._stopped)
                turns.release(1)
                closing.join(20)
                answers = [first.result(10), second.result(10)]
        assert [each.json()["error"]["code"] for each in answers] == ["STOPPED", "STOPPED"]
        told = [world.http.get("/v1/budgets/self", headers=world.headers(who)).json() for who in ("anna", "bob")]
        assert told[0]["spent_nano_rho"] > 0 == told[1]["spent_nano_rho"]
        assert not world.service.till.log.state.open  # type: ignore[union-attr]


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import time
from pathlib import Path
from unittest import mock
from dptrain.serve import program, service as services
from dptrain.serve.config import ServeConfig
from dptrain.serve.decoding import Decoding
from tests.worlds.servers import OpenGate, table
import json
folder = Path(sys.argv[2])
changes = json.loads(sys.argv[4])
plain = Decoding.step
def slow(self):
    time.sleep(0.05)
    return plain(self)
Decoding.step = slow
with mock.patch.object(services, "open_gate", OpenGate):
    raise SystemExit(program.serve(ServeConfig.of(table(**changes), folder), port=int(sys.argv[3])))
"""


@pytest.mark.slow
def test_at_a_signal_running_answers_end_new_ones_are_refused_and_the_log_is_signed(tmp_path: Path) -> None:
    with running(tmp_path) as world:
        token = world.headers()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    root = str(Path(__file__).parents[2])
    words = [sys.executable, "-c", PROGRAM, root, str(tmp_path), str(port), "{}"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root})
    try:
        http = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=token, timeout=30)

        def answers() -> bool:
            try:
                return http.get("/healthz").status_code == 200
            except httpx.HTTPError:
                return False

        until(answers, 60)
        body = {**BODY, "model": "released", "max_tokens": 60, "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=token) as other:
                refused = other.post("/v1/completions", json=BODY)
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "DRAINING")
                assert other.get("/readyz").status_code == 503
            rest = list(lines)
        assert rest[-2] == "data: [DONE]" and '"usage"' in rest[-4]
        assert process.wait(20) == 0
    finally:
        process.kill()
    assert process.stderr is not None
    told = process.stderr.read().decode()
    assert "ending: no more requests, 1 answers run" in told and "Traceback" not in told
    with running(tmp_path) as world:
        log = world.service.till.log  # type: ignore[union-attr]
        assert not log.state.open and log.state.epochs >= 2
