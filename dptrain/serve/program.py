"""Runs a server: `dptrain serve SERVE.toml`.

It ends gracefully: no new requests, running answers to their end, then the budget.
"""

import asyncio
import logging
import signal
import socket
import threading
from pathlib import Path
from typing import Any, Final

import uvicorn

from dptrain.errors import ConfigError, DptrainError
from dptrain.programs import print_json, quiet_libraries
from dptrain.serve.access import CLIENT, OPERATOR, add_token
from dptrain.serve.app import log_fault, make_app
from dptrain.serve.artifacts import beside
from dptrain.serve.config import ENCRYPTED, ServeConfig
from dptrain.serve.paying import create_log, export_log
from dptrain.serve.service import Service
from ledger.errors import LedgerError
from ledger.release import Rights

LOG = logging.getLogger("dptrain.serve")

_WAIT: Final = 0.05
_LOOKS: Final = 0.25


class Server(uvicorn.Server):
    """Is uvicorn's server, which first lets running answers end."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._ending: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begins the end at the first signal; the second one ends at once."""
        if self._service.draining:
            super().handle_exit(sig, frame)
            return
        self._service.draining = True
        LOG.warning("ending: no more requests, %d answers run", self._service.scheduler.running)
        self._ending = asyncio.get_event_loop().create_task(self._drain())

    async def _drain(self) -> None:
        left = self._service.config.server.drain_seconds
        while self._service.scheduler.busy and left > 0:
            await asyncio.sleep(_WAIT)
            left -= _WAIT
        self.should_exit = True


def quiet_logs() -> None:
    """Keeps what others would log of a request out of the log, whatever its level: paths with ids, frames, bodies."""
    servers = ("uvicorn", "uvicorn.error", "uvicorn.access", "websockets", "websockets.server", "asyncio")
    for name in ("dptrain.inference", *servers):  # else a line for each answer, and for each WebSocket with its address
        logging.getLogger(name).setLevel(logging.WARNING)


def settings(app: Any, config: ServeConfig, port: int) -> uvicorn.Config:
    """Returns how uvicorn serves an application: with limits on what it takes, and no log of who asked for what."""
    return uvicorn.Config(
        app, config.server.host, port, access_log=False, log_config=None, ws_max_size=1 << 19, ws_max_queue=4,
        server_header=False, date_header=False, lifespan="off", timeout_keep_alive=10,
        limit_concurrency=4 * (config.server.streams + config.server.waiting) + 64, timeout_graceful_shutdown=10,
    )  # fmt: skip


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def serve(
    config: ServeConfig,
    *,
    path: Path | None = None,
    encrypted_only: bool = False,
    port: int | None = None,
    as_json: bool = False,
) -> int:
    """Serves until SIGTERM or SIGINT comes; at SIGHUP tokens, revoked rights, references with what was withdrawn of them, and
    the export are read again. Returns 0.

    Args:
        path: of the file, which SIGHUP has read again; without it tokens and revoked rights are not.

    Raises:
        ConfigError, ReleaseRefused, LedgerError: before anything is served.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    quiet_logs()
    quiet_libraries()
    if encrypted_only and ENCRYPTED not in config.modes:
        raise ConfigError("SERVE_VALUE", "--he serves classes of mode = 'encrypted', and the file has none; add one")
    service = Service(config, encrypted_only=encrypted_only)
    stop = threading.Event()
    try:
        wanted = config.server.port if port is None else port
        line = socket.create_server((config.server.host, wanted), family=_family(config.server.host), backlog=1024)
        port = line.getsockname()[1]
        found = settings(make_app(service), config, port)
        asked = threading.Event()
        again = threading.Thread(target=_refresh, args=(service, stop, asked, path), name="refresh", daemon=True)
        again.start()
        signal.signal(signal.SIGHUP, lambda number, frame: asked.set())
        server = Server(found, service)
        told = {"listening": f"http://{found.host}:{found.port}", "classes": sorted(service.classes)}
        if as_json:
            print_json(told)
        LOG.info("%s serves %s at %s", config.server.name, ", ".join(told["classes"]), told["listening"])
        server.run(sockets=[line])
    finally:
        stop.set()
        service.close()
    return 0


def _refresh(service: Service, stop: threading.Event, asked: threading.Event, path: Path | None) -> None:
    """Reads the export again when it is time; and at SIGHUP tokens, revoked rights and references too, the latter whatever
    became of the file."""
    every = service.config.gate.refresh_seconds
    left = every
    while not stop.wait(_LOOKS):
        left -= _LOOKS
        hung_up = asked.is_set()
        try:
            if hung_up:
                asked.clear()
            if hung_up and path is None:
                service.reread()
            elif hung_up and path is not None:
                try:
                    changed = ServeConfig.load(path)
                except BaseException:
                    service.reread()  # nobody's withdrawal waits until the file is mended
                    raise
                service.reload(changed)
                told = len(service.access.clients), len(changed.gate.revoked)
                LOG.warning("read again: %d tokens, %d revoked rights; all else in the file counts after a restart", *told)
            if hung_up:
                service.unread = None
            if service.config.gate.export is not None and (hung_up or (every and left <= 0)):
                left = every
                service.refresh()
        except DptrainError as error:
            service.unread = error.code
            LOG.error("nothing was read again: %s", error)
        except LedgerError as error:
            service.unread = error.code
            LOG.error("the gate is closed: %s", error)
        except Exception as error:  # an end of this thread would leave the server at its last export, and nobody would know
            service.unread = type(error).__name__
            log_fault("nothing was read again", error)


def main(
    path: Path,
    *,
    init: bool = False,
    export: Path | None = None,
    encrypted_only: bool = False,
    token: str | None = None,
    operator: bool = False,
    corpus: bool = False,
    allow: list[str] | None = None,
    port: int | None = None,
    as_json: bool = False,
) -> int:
    """Does what `dptrain serve` was asked: makes or exports the budget log, adds a token, or serves.

    Raises:
        ConfigError, LedgerError, AttestError: with what to do.
    """
    config = ServeConfig.load(path)
    if token is not None:
        rights = None if allow is None else Rights(allowed(allow))
        role = OPERATOR if operator else CLIENT
        made = add_token(config.tokens, token, role=role, unit="corpus" if corpus else "user", rights=rights)
        told = {"client": token, "role": role, "token": made, "file": str(config.tokens)}
        if as_json:
            print_json(told)
        else:
            print(f"token of {token}, shown once and kept nowhere (its hash is in {config.tokens}):\n{made}")
        return 0
    if export is not None:
        size, vkey = export_log(config, export)
        if as_json:
            print_json({"export": str(export), "leaves": size, "key": vkey})
        else:
            print(f"{export}: {size} leaves of the budget log; verify it: dptrain ledger verify {export} --key {vkey}")
        return 0
    if init:
        with create_log(config, beside(config) if config.gate.release.exists() else None) as log:
            told = {"origin": log.header.origin, "key": log.header.log_vkey, "log": log.place.shown}
        if as_json:
            print_json(told)
        else:
            print(f"budget log {told['log']} of {told['origin']}; hand out its public key to auditors:\n{told['key']}")
        return 0
    return serve(config, path=path, encrypted_only=encrypted_only, port=port, as_json=as_json)


def allowed(given: list[str]) -> dict[str, float | None]:
    """Reads rights of the command line, ``CLASS=EPSILON`` or ``CLASS`` for any.

    Raises:
        ConfigError: code ALLOW.
    """
    try:
        return {name: float(most) if most else None for name, _, most in (each.partition("=") for each in given)}
    except ValueError:
        sentence = f"--allow is {' '.join(given)}, expected a class, or a class and an epsilon, as pub=4"
        raise ConfigError("ALLOW", sentence) from None


