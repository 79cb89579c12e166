"""Sets up a server for the language demo, runs it as a process of its own, and asks it over HTTP.

For the demo alone: it starts and kills on this machine what an operator leaves to a supervisor.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from attest.files import atomic_write
from dptrain.demo.language import World
from dptrain.errors import ConfigError
from ledger.release import Rights

FILE: Final = """\
# The server of the demo. Start it again with: dptrain serve serve.toml

tokens = "tokens.toml"

[server]
name = "demo"
max_tokens = 32
max_prompt = 32

[gate]
release = "model"
keys = ["ledger.pub"]
owner_key = "keys/owner.pub"
base = "base"                     # the release has adapters alone
{classes}
[release]                         # of states, in the classes that say so
epsilon = 4.0                     # of a whole answer
delta = 1e-5
clip = 8.0                        # the states of this model have norms of about 10
shrink = 0.02                     # of what the adapter adds: most of what it reads is noise

[budget]
log = "budget.db"
key = "budget.key"

[budget.caps.user]                # of each client, over all its answers
epsilon = 10.0
delta = 1e-5
"""

START_SECONDS: Final = 60.0
END_SECONDS: Final = 30.0

PRIVATE: Final = "private-"
"""Begins the names of generation classes whose adapters read noised states."""


def write_file(world: World) -> Path:
    """Writes the file of a server: for each class of contributions one of plain answers, and one of private ones."""
    parts = []
    for name in world.classes:
        parts.append(f'\n[classes.{name}]\nartifacts = ["adapter:{name}", "base"]\n')
        parts.append(f'\n[classes.{PRIVATE}{name}]\nartifacts = ["adapter:{name}"]\nmode = "released"\n')
    path = world.directory / "serve.toml"
    path.write_text(FILE.format(classes="".join(parts)), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Answer:
    """Is what came back.

    Attributes:
        status: of HTTP. body: JSON.
    """

    status: int
    body: dict[str, Any]

    @property
    def text(self) -> str:
        """Returns the text of a completion."""
        return str(self.body["choices"][0]["text"]).strip()


class DemoServer:
    """A server of a world: its file, its clients, its budget, and its process.

    Attributes:
        file: of the server. tokens: of the clients, by name.
    """

    def __init__(self, world: World, clients: Mapping[str, Rights]) -> None:
        """Writes the file of the server, its tokens, and a new budget log beside the ledger.

        Raises:
            ConfigError, LedgerError: as `dptrain serve`.
        """
        from dptrain.serve.access import add_token
        from dptrain.serve.config import ServeConfig
        from dptrain.serve.paying import create_log

        self.file, self._place = write_file(world), world.directory
        config = ServeConfig.load(self.file)
        self.tokens = {name: add_token(config.tokens, name, rights=rights) for name, rights in clients.items()}
        for name, token in self.tokens.items():
            atomic_write(self._place / f"{name}.token", f"{token}\n".encode(), mode=0o600)
        with create_log(config) as log:
            (self._place / "budget.pub").write_text(f"{log.header.log_vkey}\n", encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""

    def start(self) -> str:
        """Starts the server on a free port, and waits until it is ready; returns where it listens.

        Raises:
            ConfigError: code SERVER, it ended or was not ready in time.
        """
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "dptrain", "serve", str(self.file), "--port", str(port)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HF_HUB_OFFLINE": "1"}
        said = self._place / "server.log"
        with said.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
        self._url = f"http://127.0.0.1:{port}"
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            try:
                if self.ask("GET", "/readyz").status == 200:
                    return self._url
            except OSError:
                time.sleep(0.05)
        self.kill()
        last = said.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
        raise ConfigError("SERVER", f"the server did not become ready: {last:.300}; {said} says more")

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, client: str | None = None) -> Answer:
        """Sends a request of a client. Raises OSError: nobody answers."""
        headers = {"Content-Type": "application/json"}
        if client is not None:
            headers["Authorization"] = f"Bearer {self.tokens[client]}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as came:
                return Answer(came.status, json.loads(came.read()))
        except urllib.error.HTTPError as refused:
            with refused:
                return Answer(refused.code, json.loads(refused.read()))

    def complete(self, client: str, model: str, prompt: str, tokens: int, *, seed: int | None = None) -> Answer:
        """Asks for the continuation of a prompt."""
        asked: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": tokens}
        return self.ask("POST", "/v1/completions", asked if seed is None else asked | {"seed": seed}, client)

    def kill(self) -> None:
        """Kills the process, which can do nothing about it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def end(self) -> int:
        """Asks the process to end, as a supervisor does, and returns its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            sentence = f"the server did not end within {END_SECONDS:g} s of SIGTERM; server.log says more"
            raise ConfigError("SERVER", sentence) from None
        self._process = None
        return code

    def __enter__(self) -> "DemoServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
