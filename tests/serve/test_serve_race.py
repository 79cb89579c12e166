"""Two server processes over one budget: exactly what the cap pays for is granted, and one that is killed takes nothing back."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from ledger.budget import Unit
from ledger.budget.log import BudgetLog
from ledger.budget.rho import epsilon_of_rho
from tests.worlds.listening import served_apart, until
from tests.worlds.servers import running

pytestmark = pytest.mark.slow

PRICE = 125_000_000
CAP, CLIENTS, EACH = 300, 8, 100
ROOT = str(Path(__file__).parents[2])
CHANGES: dict[str, Any] = {
    "release": {"sigma": 4.0},
    "budget": {"caps": {"user": {"epsilon": epsilon_of_rho((CAP + 0.5) * PRICE / 1e9, 1e-5), "delta": 1e-5}}},
    "server": {"streams": 16, "waiting": 64},
}

SERVER = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from unittest import mock
from dptrain.serve import program, service as services
from dptrain.serve.config import ServeConfig
from tests.worlds.servers import OpenGate, table
with mock.patch.object(services, "open_gate", OpenGate):
    raise SystemExit(program.serve(ServeConfig.of(table(**json.loads(sys.argv[4])), Path(sys.argv[2])), port=int(sys.argv[3])))
"""

CLIENT = """
import json, sys
import httpx
from websockets.sync.client import connect
url, token, door, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
headers = {"Authorization": f"Bearer {token}"}
body = {"model": "released", "prompt": "the boat", "max_tokens": 1}
found = {}
sys.stdin.read(1)
def note(what):
    found[what] = found.get(what, 0) + 1
with httpx.Client(base_url=url, headers=headers, timeout=120) as http:
    for n in range(count):
        while True:
            if door == "websocket":
                with connect(url.replace("http", "ws") + "/v1/stream", additional_headers=headers, open_timeout=60) as line:
                    line.send(json.dumps({"completion": body}))
                    got, text = json.loads(line.recv(60)), False
                    while "error" not in got and got != {"done": True}:
                        text, got = True, json.loads(line.recv(60))
                    what = got["error"]["code"] if "error" in got else "granted"
            else:
                answer = http.post("/v1/completions", json={**body, "stream": door == "events"})
                what = "granted" if answer.status_code == 200 else answer.json()["error"]["code"]
                if door == "events" and what == "granted" and "[DONE]" not in answer.text:
                    what = "broken"
            if what != "BUSY":
                break
        note(what)
print(json.dumps(found))
"""


def server(folder: Path) -> AbstractContextManager[tuple["subprocess.Popen[bytes]", str]]:
    return served_apart(SERVER, folder, CHANGES)


@pytest.fixture
def folder(tmp_path: Path) -> tuple[Path, str]:
    """A folder of a server that was there once, and the token of anna."""
    with running(tmp_path, **CHANGES) as world:
        return tmp_path, world.tokens["anna"]


def raced(urls: list[str], token: str, clients: int, count: int) -> Counter[str]:
    """Returns what so many client processes heard, by all doors, of servers in turn."""
    doors = ["whole", "websocket", "events", "websocket"]
    made = [
        subprocess.Popen(
            [sys.executable, "-c", CLIENT, urls[n % len(urls)], token, doors[n // len(urls) % len(doors)], str(count)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for n in range(clients)
    ]  # fmt: skip
    time.sleep(1.5)  # all have imported what they need
    for each in made:
        assert each.stdin is not None
        each.stdin.write(b".")
        each.stdin.close()
    found: Counter[str] = Counter()
    for each in made:
        assert each.stdout is not None
        found.update(json.loads(each.stdout.read()))
        each.wait()
    return found


def test_eight_clients_at_two_servers_are_granted_exactly_three_hundred_answers(folder: tuple[Path, str]) -> None:
    place, token = folder
    with server(place) as (_, one), server(place) as (_, two):
        found = raced([one, two], token, CLIENTS, EACH)
    assert found == {"granted": CAP, "EXHAUSTED": CLIENTS * EACH - CAP}
    with BudgetLog.open(str(place / "budget.db")) as log:
        assert log.balance(Unit("user", "anna")).spent == CAP * PRICE and log.state.reserves == CAP
        assert log.balance(Unit("user", "anna")).cap < (CAP + 1) * PRICE  # type: ignore[operator]


def test_a_server_that_is_killed_again_and_again_grants_no_more_than_the_cap(folder: tuple[Path, str]) -> None:
    """What a client was sent counts; what died between reservation and answer is spent all the same."""
    place, token = folder
    granted, refused = Counter[str](), Counter[str]()
    headers = {"Authorization": f"Bearer {token}"}
    body = {"model": "released", "prompt": "the boat", "max_tokens": 1}
    ended = threading.Event()

    def ask(url: str, door: str) -> None:
        with suppress(Exception), httpx.Client(base_url=url, headers=headers, timeout=20) as http:
            while not ended.is_set():
                if door == "websocket":
                    with connect(url.replace("http", "ws") + "/v1/stream", additional_headers=headers) as line:
                        line.send(json.dumps({"completion": body}))
                        got = json.loads(line.recv(20))
                        while "error" not in got and got != {"done": True}:
                            got = json.loads(line.recv(20))
                    (refused if "error" in got else granted)[door] += 1
                else:
                    answer = http.post("/v1/completions", json=body)
                    (granted if answer.status_code == 200 else refused)[door] += 1

    for life in range(4):
        with server(place) as (process, url), ThreadPoolExecutor(4) as pool:
            ended.clear()
            before = sum(granted.values())
            asked = [pool.submit(ask, url, door) for door in ("whole", "websocket", "whole", "websocket")]
            if life < 3:
                until(lambda before=before: sum(granted.values()) > before + 20, 60)
                process.send_signal(signal.SIGKILL)
            else:
                until(lambda: sum(refused.values()) > 20, 120)
            ended.set()
            for each in asked:
                each.result(60)
    with BudgetLog.open(str(place / "budget.db")) as log:
        spent = log.balance(Unit("user", "anna")).spent
        assert spent == CAP * PRICE and CAP - 3 * 4 - 3 <= sum(granted.values()) <= CAP == log.state.reserves
