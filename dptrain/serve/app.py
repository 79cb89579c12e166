"""Serves over HTTP and WebSockets: routes, who may use them, and how refusals look. Nothing is decided here.

No prompt, state, answer or session is logged or kept. What is logged of a request is its route, its status and its time.
"""

import asyncio
import base64
import binascii
import json
import logging
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import FastAPI, Header, Query, Request, Security, WebSocket
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer
from jinja2 import Environment, select_autoescape
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.websockets import WebSocketDisconnect, WebSocketState

from dptrain.serve.access import Client
from dptrain.serve.adapters import MOST_KEYS
from dptrain.serve.config import ENCRYPTED
from dptrain.serve.metrics import CONTENT_TYPE
from dptrain.serve.service import Running, Service
from dptrain.serve.wire import (
    ERROR_SCHEMA,
    ERRORS,
    Asking,
    Chat,
    Completion,
    Generate,
    Opening,
    Refused,
    SplitStart,
    chunk,
    refused,
    whole,
)

LOG = logging.getLogger("dptrain.serve")

OPEN: Final = frozenset({"/healthz", "/readyz", "/openapi.json"})
"""Routes for everybody."""

BODY_SECONDS: Final = 20.0
"""Longest time that a body may take to come."""

MOST_STATE: Final = 440_000
"""Bytes of a state, in clear or encrypted."""

_DIGITS: Final = 18
"""Longest length of a body that is read as a number."""

_SECURE: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

BY_THE_BORDER: Final = (400, 408, 413)
"""Statuses of any route: what was sent is not in form, too late or too long."""


class Border:
    """Stands before all routes: knows who asks, reads bodies up to their limit, and counts what goes out."""

    def __init__(self, app: Any, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request; WebSockets and the server's own events pass."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, started = time.monotonic(), 500, False

        async def sending(message: dict[str, Any]) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                named = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in _SECURE if pair[0] not in named)]
            await send(message)

        try:
            try:
                if scope["path"] not in OPEN:
                    scope.setdefault("state", {})["client"] = self._client(scope)
                body = await asyncio.wait_for(self._body(scope, receive), BODY_SECONDS)
            except Refused as error:
                self._service.metrics.refused(error.code)
                await _answer(error, basic=scope["path"] == "/operator")(scope, receive, sending)
            except TimeoutError:
                late = Refused(408, "invalid_request_error", "SLOW", f"the body took over {BODY_SECONDS:g} s; send it faster")
                self._service.metrics.refused(late.code)
                await _answer(late)(scope, receive, sending)
            else:
                await self._app(scope, _again(body, receive), sending)
        except Exception as error:
            log_fault("a request failed", error)
            if started:
                raise RuntimeError("an answer broke off") from None
            self._service.metrics.refused("INTERNAL")
            await _answer(refused(error))(scope, receive, sending)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._service.metrics.requests.labels(route, str(status)).inc()
            LOG.info("%s %s %d %.1f ms", scope["method"], route, status, 1e3 * (time.monotonic() - began))

    def _client(self, scope: Scope) -> Client:
        found = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        if scope["path"] == "/operator" and found[:6].lower() == "basic ":
            try:
                found = "Bearer " + base64.b64decode(found[6:], validate=True).decode().partition(":")[2]
            except (binascii.Error, ValueError):
                found = ""
        return self._service.access.client(found)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        most = MOST_KEYS if scope["path"] == "/v1/he/keys" else self._service.config.server.body_bytes
        if scope["path"] == "/v1/he/lora" or scope["path"].startswith("/v1/split/"):
            most = max(most, MOST_STATE)
        long = Refused(413, "invalid_request_error", "BODY", f"the body has more than {most} bytes; send less")
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if not told.isdigit() or len(told) > _DIGITS or int(told) > most:
            raise long
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "invalid_request_error", "BODY", "the body did not come whole; send it again")
            body += message.get("body", b"")
            if len(body) > most:
                raise long
            if not message.get("more_body"):
                return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """Returns what gives a body that was read, and then what comes behind it: that the client went."""
    given = False

    async def giving() -> dict[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return giving


def log_fault(what: str, error: BaseException) -> None:
    """Logs where a fault is, and not what it says: that may be a prompt, or a state."""
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    places = " < ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames))
    LOG.error("%s: %s at %s", what, type(error).__name__, places)


def _answer(error: Refused, *, basic: bool = False) -> Response:
    headers = {} if error.after is None else {"Retry-After": str(error.after)}
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Basic realm="operator"' if basic else "Bearer"
    return JSONResponse(error.body, error.status, headers)


def make_app(service: Service) -> FastAPI:
    """Returns the application of a service; one of encrypted adapters alone has no route for text or a state in clear."""
    app = FastAPI(
        title="dptrain serve",
        version="1",
        docs_url=None,
        redoc_url=None,
        description="Gated, budgeted inference. Answers have OpenAI's shape, and say what they cost.",
    )
    app.add_middleware(Border, service=service)
    _handle_errors(app, service)
    _tell(app, service)
    if not service.encrypted_only:
        _answer_text(app, service)
        _split(app, service)
    if service.encrypted is not None and any(each.mode == ENCRYPTED for each in service.classes.values()):
        _encrypted(app, service)
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        document = plain()
        document["components"]["schemas"]["Error"] = ERROR_SCHEMA
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
                for status in BY_THE_BORDER:
                    operation["responses"].setdefault(str(status), ERRORS[status])
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        return document

    app.openapi = openapi
    return app


def _handle_errors(app: FastAPI, service: Service) -> None:
    async def told(request: Request, error: Exception) -> Response:
        found = refused(error)
        service.metrics.refused(found.code)
        if found.status >= 500 and not isinstance(error, Refused):
            LOG.error("refused: %s", getattr(error, "code", type(error).__name__))
        return _answer(found)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        found = _unfit(error.errors())
        service.metrics.refused(found.code)
        return _answer(found)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        sentence = f"{error.detail}: {request.method} is not answered here; GET /openapi.json lists what is"
        return JSONResponse(
            Refused(error.status_code, "invalid_request_error", "ROUTE", sentence).body, error.status_code, error.headers
        )

    from attest.errors import AttestError
    from dptrain.errors import DptrainError
    from ledger.errors import LedgerError

    for kind in (DptrainError, LedgerError, AttestError, OSError):
        app.add_exception_handler(kind, told)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


def _unfit(errors: Any) -> Refused:
    """Returns the first thing that is wrong with a request; of its values nothing is repeated."""
    first = errors[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
    return Refused(400, "invalid_request_error", "REQUEST", f"{where}: {first['msg']}; GET /openapi.json says what is taken")


Bearer = Security(HTTPBearer(auto_error=False))
RightsHeader = Annotated[str | None, Header(alias="dptrain-rights", max_length=20_000)]


def _client(request: Request) -> Client:
    found: Client = request.state.client
    return found


def _tell(app: FastAPI, service: Service) -> None:
    """Adds what tells of the server itself."""

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Says that the process lives."""
        return {"status": "ok"}

    @app.get("/readyz", responses={503: ERRORS[503]})
    async def readyz() -> Response:
        """Says whether requests should be sent here: budget and gate can be used, and the server does not end."""
        problems = await asyncio.to_thread(service.ready)
        if problems:
            return _answer(Refused(503, "server_refuses", "NOT_READY", "; ".join(problems)))
        return JSONResponse({"status": "ready"})

    @app.get("/metrics", responses={200: {"content": {"text/plain": {}}}, **_only(401, 403)}, dependencies=[Bearer])
    async def metrics(request: Request) -> Response:
        """Gives the numbers for Prometheus, to an operator."""
        _require_operator(request)
        return Response(await asyncio.to_thread(service.measure), media_type=CONTENT_TYPE)

    @app.get("/v1/models", responses=_only(401), dependencies=[Bearer])
    async def models() -> dict[str, Any]:
        """Lists the generation classes, and the generations with the words that their labels may have."""
        rows = [
            {"id": name, "object": "model", "created": 0, "owned_by": service.config.server.name, "mode": each.mode}
            for name, each in sorted(service.classes.items())
        ]
        return {"object": "list", "data": rows + service.offered()}

    @app.get("/v1/posture", responses=_only(401), dependencies=[Bearer])
    async def posture() -> Response:
        """Gives what the release says of each artifact: who may have influenced it, at which epsilon."""
        return JSONResponse(service.gate.posture())

    @app.get("/v1/budgets/{unit:path}", responses=_only(400, 401, 403, 404, 429, 503), dependencies=[Bearer])
    async def budgets(request: Request, unit: Annotated[str, InPath(max_length=200)]) -> Response:
        """Gives what a unit has spent: `self`, or `KIND:NAME`, which of another unit is for an operator alone."""
        return JSONResponse(await asyncio.to_thread(service.budget, _client(request), unit))

    template = Environment(autoescape=select_autoescape(default=True)).from_string(
        (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    )

    @app.get("/operator", responses={200: {"content": {"text/html": {}}}, **_only(401, 403)}, dependencies=[Bearer])
    async def operator(request: Request) -> Response:
        """Shows budgets, refusals and posture to an operator, who gives the token as the password."""
        _require_operator(request)
        return HTMLResponse(template.render(await asyncio.to_thread(service.overview)))


def _only(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: ERRORS[status] for status in statuses}


def _require_operator(request: Request) -> None:
    if _client(request).role != "operator":
        raise Refused(403, "permission_error", "ROLE", "this is for an operator; use an operator's token")


def _require_client(request: Request) -> Client:
    found = _client(request)
    if found.role != "client":
        raise Refused(403, "permission_error", "ROLE", "an operator has no keys and no answers here; use a client's token")
    return found


def _answer_text(app: FastAPI, service: Service) -> None:
    """Adds what generates text."""
    both = {200: {"content": {"application/json": {}, "text/event-stream": {}}}, **ERRORS}

    @app.post("/v1/completions", responses=both, dependencies=[Bearer])
    async def completions(request: Request, asked: Completion, rights: RightsHeader = None) -> Response:
        """Continues a prompt; with `stream`, as server-sent events."""
        return await answered(request, asked, rights)

    @app.post("/v1/chat/completions", responses=both, dependencies=[Bearer])
    async def chat(request: Request, asked: Chat, rights: RightsHeader = None) -> Response:
        """Answers a chat; with `stream`, as server-sent events."""
        return await answered(request, asked, rights)

    @app.post("/v1/dp/generations", responses=both, dependencies=[Bearer])
    async def generations(request: Request, asked: Generate, rights: RightsHeader = None) -> Response:
        """Draws a text from private references, which pay for it beforehand; with `stream`, as server-sent events."""
        return await answered(request, asked, rights)

    async def answered(request: Request, asked: Asking | Generate, rights: str | None) -> Response:
        running = await service.answer(_client(request), asked, rights)
        if asked.stream:
            return _Events(service, asked, running)
        try:
            told = await _unless_gone(request, _whole(service, asked, running))
        finally:
            service.left(running)
        return Response(status_code=499) if told is None else JSONResponse(told)

    @app.websocket("/v1/stream")
    async def stream(socket: WebSocket) -> None:
        """Answers one request after another, each as pieces and a last message with `done`."""
        await _socket(service, socket, lambda: _converse(service, socket))


async def _whole(service: Service, asked: Asking | Generate, running: Running) -> dict[str, Any]:
    text, finish = "", "length"
    async for piece in service.pieces(running):
        text += piece.text
        finish = piece.finish or finish
    return whole(asked, running.identity, text, finish, running.usage, running.told())


class _Events(StreamingResponse):
    """Sends an answer as server-sent events, and lets it go whatever becomes of its reader."""

    def __init__(self, service: Service, asked: Asking | Generate, running: Running) -> None:
        super().__init__(_events(service, asked, running), media_type="text/event-stream")
        self._let_go = lambda: service.left(running)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Sends it; it is let go also where no piece was asked for."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._let_go()


async def _unless_gone(request: Request, work: Any) -> Any:
    """Waits for an answer, and ends it when its reader goes; None then."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return None
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _chunks(
    service: Service, asked: Asking | Generate, running: Running
) -> AsyncIterator[dict[str, Any]]:
    """Yields the pieces of an answer as JSON; the first says what it rests on, the last why it ended and what it cost."""
    yield chunk(asked, running.identity, "", privacy=running.privacy)
    async for piece in service.pieces(running):
        if piece.finish is None:
            yield chunk(asked, running.identity, piece.text)
        else:
            yield chunk(asked, running.identity, piece.text, piece.finish, usage=running.usage, privacy=running.told())


async def _events(service: Service, asked: Asking | Generate, running: Running) -> AsyncIterator[str]:
    try:
        async for each in _chunks(service, asked, running):
            yield f"data: {json.dumps(each)}\n\n"
        yield "data: [DONE]\n\n"
    except Exception as error:
        found = refused(error)
        service.metrics.refused(found.code)
        yield f"data: {json.dumps(found.body)}\n\n"
    finally:
        running.stream.cancel()


# ------------------------------------------------------------------------------------------------------------ WebSockets


async def _socket(service: Service, socket: WebSocket, work: Callable[[], Awaitable[None]]) -> None:
    """Runs a conversation, and closes it with the code of a refusal."""
    await socket.accept()
    try:
        await work()
        await socket.close()
    except WebSocketDisconnect:
        return
    except Exception as error:
        if WebSocketState.DISCONNECTED in (socket.client_state, socket.application_state):
            return  # it went while something was sent
        found = _unfit(error.errors()) if isinstance(error, ValidationError) else refused(error)
        service.metrics.refused(found.code)
        if found.status == 500:
            log_fault("a conversation failed", error)
        with suppress(RuntimeError, WebSocketDisconnect):
            await socket.send_json(found.body)
            await socket.close(found.close_code, found.code)


async def _opening(coming: "asyncio.Task[Any]") -> Opening:
    try:
        message = await asyncio.wait_for(coming, BODY_SECONDS)
    except TimeoutError:
        raise Refused(408, "invalid_request_error", "SLOW", "no request came; send one as JSON") from None
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1000))
    text = message.get("text")
    if text is None:
        raise Refused(400, "invalid_request_error", "STATE_IN_CLEAR", "this conversation takes JSON, and no bytes")
    return Opening.model_validate_json(text)


async def _converse(service: Service, socket: WebSocket) -> None:
    header = socket.headers.get("authorization")
    client = None if header is None else service.access.client(header)
    rights = socket.headers.get("dptrain-rights")
    coming = asyncio.ensure_future(socket.receive())
    try:
        while True:
            opening = await _opening(coming)
            coming = asyncio.ensure_future(socket.receive())
            if client is None:
                client = service.access.client(f"Bearer {opening.token or ''}")
            asked: Asking | Generate | None = opening.completion or opening.chat or opening.generation
            if asked is None:
                if opening.token is None:
                    raise Refused(400, "invalid_request_error", "REQUEST", "send {'completion': ...}, chat or generation")
                continue
            await _spoken(service, socket, asked, await service.answer(client, asked, rights), coming)
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


async def _spoken(
    service: Service, socket: WebSocket, asked: Asking | Generate, running: Running, coming: "asyncio.Task[Any]"
) -> None:
    """Sends one answer. It ends, at once, when its reader goes, or speaks before it is done."""
    coming.add_done_callback(lambda _: running.stream.cancel())
    try:
        async for each in _chunks(service, asked, running):
            if coming.done():
                raise WebSocketDisconnect(1000)
            await socket.send_json(each)
        await socket.send_json({"done": True})
    finally:
        service.left(running)


async def _states(socket: WebSocket, apply: Callable[[bytes], bytes]) -> None:
    """Answers each binary message by one."""
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        data = message.get("bytes")
        if data is None:
            raise Refused(400, "invalid_request_error", "STATE_IN_CLEAR", "this conversation takes bytes alone, and no text")
        await socket.send_bytes(await asyncio.to_thread(apply, data))


# ------------------------------------------------------------------------------------------------------ adapters elsewhere

_OCTETS: Final = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_OCTETS_BACK: Final = {200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}}


def _split(app: FastAPI, service: Service) -> None:
    """Adds what serves clients that run the base model and send states that they released."""

    @app.post("/v1/split", responses=ERRORS, dependencies=[Bearer])
    async def start(request: Request, asked: SplitStart, rights: RightsHeader = None) -> Response:
        """Pays for the states of one answer, and says by which noise they are to be released."""
        return JSONResponse(await asyncio.to_thread(service.split, _client(request), asked, rights))

    @app.post("/v1/split/{answer}", responses={**_OCTETS_BACK, **ERRORS}, openapi_extra=_OCTETS, dependencies=[Bearer])
    async def state(request: Request, answer: Annotated[str, InPath(max_length=64)]) -> Response:
        """Applies the adapter to one released state: float32, little-endian; gives what it adds to the scores."""
        body = await request.body()
        found = await asyncio.to_thread(service.state, _client(request), answer, body)
        return Response(found, media_type="application/octet-stream")

    @app.get("/v1/split/{answer}/A", responses={**_OCTETS_BACK, **_only(400, 401, 404)}, dependencies=[Bearer])
    async def inner(request: Request, answer: Annotated[str, InPath(max_length=64)]) -> Response:
        """Gives A of the adapter, float32, row by row, where coordinates are released in place of states."""
        found = await asyncio.to_thread(service.inner, _client(request), answer)
        return Response(found, media_type="application/octet-stream")

    @app.delete("/v1/split/{answer}", responses=_only(401, 404, 503), dependencies=[Bearer])
    async def end(request: Request, answer: Annotated[str, InPath(max_length=64)]) -> Response:
        """Ends an answer. It is spent whole if a state came, and not at all if none did."""
        if service.splits is None:
            raise Refused(404, "invalid_request_error", "ANSWER", "there is no such answer of yours")
        came = await asyncio.to_thread(service.splits.end, answer, _client(request))
        return JSONResponse({"released": came})

    @app.websocket("/v1/split/{answer}/stream")
    async def stream(socket: WebSocket, answer: str) -> None:
        """Applies the adapter to one released state after another."""

        async def work() -> None:
            client = service.access.client(socket.headers.get("authorization"))
            await _states(socket, lambda data: service.state(client, answer, data))

        await _socket(service, socket, work)


def _encrypted(app: FastAPI, service: Service) -> None:
    """Adds what serves clients that run the base model and encrypt its states."""
    encrypted = service.encrypted
    assert encrypted is not None

    @app.post("/v1/he/keys", responses=ERRORS, openapi_extra=_OCTETS, dependencies=[Bearer])
    async def keys(
        request: Request, model: Annotated[str, Query(max_length=64)], rights: RightsHeader = None
    ) -> Response:
        """Takes the public keys of a client in place of those it had; a bundle with a secret key is refused unread."""
        await asyncio.to_thread(service.register, _require_client(request), model, rights, await request.body())
        return JSONResponse({"registered": True})

    @app.delete("/v1/he/keys", responses=_only(401, 403), dependencies=[Bearer])
    async def forget(request: Request) -> Response:
        """Lets the keys of a client go."""
        encrypted.forget(_require_client(request))
        return JSONResponse({"registered": False})

    @app.post("/v1/he/lora", responses={**_OCTETS_BACK, **ERRORS}, openapi_extra=_OCTETS, dependencies=[Bearer])
    async def lora(
        request: Request, model: Annotated[str, Query(max_length=64)], rights: RightsHeader = None
    ) -> Response:
        """Applies an adapter to an encrypted state; a state in clear is refused."""
        body = await request.body()
        found, name = await asyncio.to_thread(service.encrypted_state, _client(request), model, rights, body)
        return Response(found, media_type="application/octet-stream", headers={"Dptrain-Artifact": name})

    @app.websocket("/v1/he/stream")
    async def stream(socket: WebSocket, model: str) -> None:
        """Applies an adapter to one encrypted state after another."""

        async def work() -> None:
            client = service.access.client(socket.headers.get("authorization"))
            rights = socket.headers.get("dptrain-rights")
            await _states(socket, lambda data: service.encrypted_state(client, model, rights, data)[0])

        await _socket(service, socket, work)
