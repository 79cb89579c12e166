"""A server of the tests behind a real socket, a model that computes when it is let, and pieces of answers put together."""

import json
import logging
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx
import uvicorn
from websockets.sync.client import connect

from dptrain.serve.app import make_app
from dptrain.serve.program import quiet_logs, settings
from tests.worlds.servers import Running

ROOT: Final = str(Path(__file__).resolve().parents[2])


@contextmanager
def listening(world: Running) -> Iterator[str]:
    """Serves over a socket of this machine, with the settings of the program; gives the URL."""
    server = uvicorn.Server(settings(make_app(world.service), world.config, 0))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(20)
        assert not thread.is_alive()


@contextmanager
def held(world: Running, *artifacts: str) -> Iterator[threading.Semaphore]:
    """Keeps models from computing, the base by default; each release of what is given lets one forward pass go, and the end
    lets all go."""
    turns, open_now = threading.Semaphore(0), threading.Event()

    def wait(module: Any, inputs: Any) -> None:
        while not open_now.is_set() and not turns.acquire(timeout=0.01):
            pass

    models = [world.service.artifacts.model(name).model for name in artifacts or ("base",)]
    hooks = [model.register_forward_pre_hook(wait) for model in models]
    try:
        yield turns
    finally:
        open_now.set()
        until(lambda: not world.service.scheduler.busy)
        for hook in hooks:
            hook.remove()


def until(happened: Callable[[], Any], seconds: float = 10.0) -> None:
    """Waits for something, and fails if it does not come."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.003)


@contextmanager
def served_apart(program: str, folder: Path, changes: dict[str, Any]) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    """Runs a server in a process of its own until it is left, and kills it then; gives the process and the URL.

    ``program``: what the process runs, with the root of the project, the folder, a port and changes of the file as arguments.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-c", program, ROOT, str(folder), str(port), json.dumps(changes)]
    environment = {**os.environ, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL, env=environment)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, "the server ended"
        with suppress(httpx.HTTPError):
            return httpx.get(url + "/readyz", timeout=5).status_code == 200
        return False

    try:
        until(answers, 120)
        yield process, url
    finally:
        process.kill()
        process.wait()


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collects all that is logged, at DEBUG, but what clients of the tests log."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not record.name.startswith(("httpx", "httpcore", "websockets.client", "sqlalchemy")):
                lines.append(f"{record.levelname} {record.name} {self.format(record)} {record.args}")

    handler, root = Kept(), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    quiet_logs()
    try:
        yield lines
    finally:
        root.setLevel(before)
        root.removeHandler(handler)


def told_by_events(world: Running, url: str, client: str, path: str, body: dict[str, Any], into: list[str]) -> threading.Thread:
    """Reads an answer by events in a thread: its lines, and at the end a full stop."""

    def read() -> None:
        with asking(world, url, client) as http, http.stream("POST", path, json=body) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    into.append(line)
        into.append(".")

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def computed(world: Running, turns: threading.Semaphore, answers: int) -> None:
    """Lets models compute until so many answers have a first token and none has ended; which thread takes which turn, and
    what is drawn, is then all one."""
    until(lambda: len(world.service._running) == answers)
    ways = [each.stream.decoding for each in world.service._running]
    while not all(each.computed for each in ways):
        before = sum(each.computed for each in ways)
        turns.release(1)
        until(lambda before=before: sum(each.computed for each in ways) > before)
    assert not any(each.finish for each in ways), "an answer ended by itself"


def events(text: str) -> list[dict[str, Any]]:
    """Returns the pieces of an answer by server-sent events, which must end as OpenAI's do."""
    blocks = [block for block in text.split("\n\n") if block]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    assert blocks[-1] == "data: [DONE]"
    return [json.loads(block[6:]) for block in blocks[:-1]]


def said(pieces: list[dict[str, Any]]) -> str:
    """Returns the text of pieces together."""
    choices = [piece["choices"][0] for piece in pieces]
    return "".join(each["text"] if "text" in each else each["delta"].get("content", "") for each in choices)


def spoken(world: Running, body: dict[str, Any], client: str = "anna", kind: str = "completion") -> list[dict[str, Any]]:
    """Returns the messages of one answer over a WebSocket, without the one that says that it is done."""
    with world.http.websocket_connect("/v1/stream", headers=world.headers(client)) as socket:
        socket.send_json({kind: body})
        found = [socket.receive_json()]
        while "error" not in found[-1] and found[-1] != {"done": True}:
            found.append(socket.receive_json())
    return found if "error" in found[-1] else found[:-1]


def asking(world: Running, url: str, client: str = "anna") -> httpx.Client:
    """Returns a client of a listening server."""
    return httpx.Client(base_url=url, headers=world.headers(client), timeout=30)


def begun(world: Running, url: str, door: str, *, tokens: int, client: str = "anna") -> Any:
    """Asks over a socket, and returns what breaks the connection off."""
    body = {"model": "released", "prompt": "the boat", "max_tokens": tokens}
    if door == "websocket":
        line = connect(url.replace("http", "ws") + "/v1/stream", additional_headers=world.headers(client)).__enter__()
        line.send(json.dumps({"completion": body}))
        return line.close
    sent = json.dumps({**body, "stream": door == "events"}).encode()
    host, port = url.removeprefix("http://").split(":")
    raw = socket.create_connection((host, int(port)))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: {world.headers(client)['Authorization']}\r\n"
    raw.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n".encode() + sent)
    return raw.close


def exact_delta(mu: float, epsilon: float) -> float:
    """Returns Balle and Wang's delta, written down apart from the program."""

    def below(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    return below(mu / 2 - epsilon / mu) - math.exp(epsilon) * below(-mu / 2 - epsilon / mu)
