"""Two server processes over one log: as many texts as the references pay for, and one that is killed takes nothing back."""

import signal
import subprocess
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from ledger.budget.log import BudgetLog
from tests.worlds.listening import served_apart, until
from tests.worlds.texts import BATCH, BUDGET, COST, changes, telling, write

pytestmark = pytest.mark.slow

ROOT = str(Path(__file__).parents[2])
REFERENCES = 60
ROOM: dict[str, Any] = {"streams": 16, "waiting": 64}

SERVER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from unittest import mock
from dataclasses import replace
from dptrain.serve import program, service as services
from dptrain.serve.config import ServeConfig
from dptrain.serve.decoding import Served
from tests.worlds.servers import OpenGate, table
plain = Served.of
endless = lambda model, tokenizer: replace(plain(model, tokenizer), stops=frozenset())
with mock.patch.object(services, "open_gate", OpenGate), mock.patch.object(Served, "of", endless):
    raise SystemExit(program.serve(ServeConfig.of(table(**json.loads(sys.argv[4])), Path(sys.argv[2])), port=int(sys.argv[3])))
"""


def server(folder: Path) -> AbstractContextManager[tuple["subprocess.Popen[bytes]", str]]:
    return served_apart(SERVER, folder, changes(BUDGET, server=ROOM))


@pytest.fixture
def folder(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A folder of a server that was there once, with sixty references, and what anna sends."""
    write(tmp_path, [f"gull rope {'mast ' * (n % 3)}" for n in range(REFERENCES)])
    with telling(tmp_path, server=ROOM) as world:
        return tmp_path, world.headers()


def asked(url: str, headers: dict[str, str], heard: Counter[str], ended: threading.Event, stream: bool) -> None:
    """Asks for texts until none is left, or the server is gone; counts what was heard whole."""
    body = {"generation": "tales", "labels": {"kind": "boat"}, "stream": stream}
    with suppress(httpx.HTTPError), httpx.Client(base_url=url, headers=headers, timeout=60) as http:
        while not ended.is_set():
            answer = http.post("/v1/dp/generations", json=body)
            if answer.status_code == 200:
                heard["text" if not stream or "[DONE]" in answer.text else "broken"] += 1
                continue
            code = answer.json()["error"]["code"]
            if code != "BUSY":
                heard[code] += 1
            if code == "EXHAUSTED":
                return


def test_two_servers_draw_exactly_the_texts_that_the_references_pay_for(folder: tuple[Path, dict[str, str]]) -> None:
    place, headers = folder
    heard: Counter[str] = Counter()
    with server(place) as (_, one), server(place) as (_, two), ThreadPoolExecutor(6) as pool:
        for each in [pool.submit(asked, (one, two)[n % 2], headers, heard, threading.Event(), n % 3 == 0) for n in range(6)]:
            each.result(200)
    assert heard == {"text": REFERENCES // BATCH, "EXHAUSTED": 6}
    with BudgetLog.open(str(place / "budget.db")) as log:
        assert len(log.state.accounts) == REFERENCES and log.state.reserves == REFERENCES // BATCH  # none twice
        assert {each.spent for each in log.state.accounts.values()} == {COST}


def test_a_server_that_is_killed_gives_nothing_back_and_no_batch_is_drawn_twice(folder: tuple[Path, dict[str, str]]) -> None:
    place, headers = folder
    heard: Counter[str] = Counter()
    for life in range(4):
        ended = threading.Event()
        with server(place) as (process, url), ThreadPoolExecutor(3) as pool:
            before = heard["text"]
            each = [pool.submit(asked, url, headers, heard, ended, n == 0) for n in range(3)]
            if life < 3:
                until(lambda before=before: heard["text"] >= before + 2, 60)
                process.send_signal(signal.SIGKILL)
                ended.set()
            for one in each:
                one.result(100)
    assert heard["EXHAUSTED"] >= 3 and 6 <= heard["text"] <= REFERENCES // BATCH
    with BudgetLog.open(str(place / "budget.db")) as log:
        assert {each.spent for each in log.state.accounts.values()} == {COST} and len(log.state.accounts) == REFERENCES
        assert log.state.reserves == REFERENCES // BATCH  # what died between payment and text is spent all the same
