"""Who is let in, and what is read of a request: every route of the document, for every role, and bodies of all kinds."""

import asyncio
import hashlib
import hmac
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from starlette.websockets import WebSocketDisconnect

from dptrain.serve import app as room
from dptrain.serve.access import Access, TokenRow
from dptrain.serve.app import make_app
from dptrain.serve.wire import Refused
from tests.worlds.listening import listening
from tests.worlds.servers import CLASSES, ENCRYPTED, Running, running

OPEN = {("get", "/healthz"), ("get", "/readyz")}
FOR_OPERATORS = {("get", "/metrics"), ("get", "/operator")}
FOR_BOTH = {("get", "/v1/models"), ("get", "/v1/posture"), ("get", "/v1/budgets/{unit}")}
SOCKETS = {"/v1/stream", "/v1/split/{answer}/stream", "/v1/he/stream"}

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"json": {"model": "plain", "prompt": "the boat", "max_tokens": 1}},
    "/v1/chat/completions": {"json": {"model": "plain", "messages": [{"role": "user", "content": "the boat"}]}},
    "/v1/dp/generations": {"json": {"generation": "tales"}},
    "/v1/split": {"json": {"model": "split", "releases": 1}},
    "/v1/he/lora": {"params": {"model": "he"}, "content": b"state"},
    "/v1/he/keys": {"params": {"model": "he"}, "content": b"keys"},
}


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that has all routes there are."""
    pytest.importorskip("tenseal")
    with running(tmp_path_factory.mktemp("every"), classes=CLASSES | ENCRYPTED) as found:
        yield found


def routes(world: Running) -> list[tuple[str, str]]:
    """Returns method and path of every route, as the document lists them."""
    document = world.http.get("/openapi.json").json()
    return [(method, path) for path, operations in document["paths"].items() for method in operations]


def asked(world: Running, method: str, path: str, headers: dict[str, str]) -> Any:
    at = path.replace("{unit}", "self").replace("{answer}", "0" * 32)
    return world.http.request(method.upper(), at, headers=headers, **BODIES.get(path, {}))


def headers_of_strangers(world: Running) -> list[dict[str, str]]:
    token = world.tokens["anna"]
    return [
        {}, {"Authorization": ""}, {"Authorization": "Bearer"}, {"Authorization": "Bearer "}, {"Authorization": token},
        {"Authorization": f"Bearer {token[:-1]}"}, {"Authorization": f"Bearer {token}x"}, {"Authorization": f"Basic {token}"},
        {"Authorization": f"Bearer {token.upper()}"}, {"Authorization": "Bearer " + "a" * 4000}, {"Cookie": f"token={token}"},
        {"Authorization": f"Token {token}"}, {"X-Api-Key": token}, {"Authorization": "Basic =="},
    ]  # fmt: skip


# --- who ----------------------------------------------------------------------------------------------------------------


def test_the_document_lists_every_route_there_is(every: Running) -> None:
    made: list[Any] = make_app(every.service).routes
    known = {(method.lower(), route.path) for route in made for method in getattr(route, "methods", [])}
    told = {(method, path.replace("{unit}", "{unit:path}")) for method, path in routes(every)}
    assert {each for each in known if each[0] != "head" and each[1] != "/openapi.json"} == told
    assert {route.path for route in made if not getattr(route, "methods", None)} == SOCKETS


def test_without_a_token_of_this_server_no_route_answers(every: Running) -> None:
    found, calls = routes(every), len(every.calls)
    assert len(found) >= 16 and set(found) > OPEN | FOR_OPERATORS | FOR_BOTH
    for method, path in found:
        for headers in headers_of_strangers(every) if path == "/v1/completions" else headers_of_strangers(every)[:3]:
            answer = asked(every, method, path, headers)
            if (method, path) in OPEN:
                assert answer.status_code == 200
            else:
                assert answer.status_code == 401 and answer.json()["error"]["code"] == "TOKEN", (method, path, headers)
                assert answer.headers["www-authenticate"].startswith("Basic" if path == "/operator" else "Bearer")
    assert len(every.calls) == calls


def test_what_is_not_there_is_not_told_to_strangers(every: Running) -> None:
    for path in ("/", "/docs", "/redoc", "/v1", "/healthz/", "/metrics/", "/v1/../metrics", "/.env", "//readyz"):
        assert every.http.get(path).status_code == 401
    assert every.http.get("/docs", headers=every.headers()).status_code == 404


def test_each_role_has_its_own_routes(every: Running) -> None:
    for method, path in routes(every):
        if (method, path) in OPEN:
            continue
        client = asked(every, method, path, every.headers("anna")).status_code
        operator = asked(every, method, path, every.headers("op")).status_code
        if (method, path) in FOR_OPERATORS:
            assert (client, operator) == (403, 200), (method, path)
        elif (method, path) in FOR_BOTH:
            assert (client, operator) == (200, 200), (method, path)
        else:
            assert client not in (401, 403, 405, 422, 500), (method, path, client)
            assert operator in ((403, 404) if "split" not in path else (400, 403, 404)), (method, path, operator)
    assert not every.service.encrypted.server._sessions._held  # type: ignore[union-attr]


def test_the_operators_page_takes_the_token_as_a_password(every: Running) -> None:
    page = every.http.get("/operator", auth=("whoever", every.tokens["op"]))
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html") and "<script" not in page.text
    for password in ("", every.tokens["anna"], every.tokens["op"][:-1]):
        assert every.http.get("/operator", auth=("op", password)).status_code in (401, 403)
    assert every.http.get("/metrics", auth=("op", every.tokens["op"])).status_code == 401  # there alone


def test_the_budget_of_another_is_for_an_operator_alone(every: Running) -> None:
    expected = {
        "self": (200, 200), "user:anna": (200, 200), "user:bob": (403, 200), "user:nobody": (403, 200),
        "corpus:anna": (403, 200), "session:s": (400, 400), "user:A B": (400, 400), "x": (400, 400),
    }  # fmt: skip
    for unit, statuses in expected.items():
        found = [every.http.get(f"/v1/budgets/{unit}", headers=every.headers(who)).status_code for who in ("anna", "op")]
        assert tuple(found) == statuses, unit


def test_no_websocket_answers_without_a_token(every: Running) -> None:
    calls = len(every.calls)
    for path in SOCKETS:
        at = path.replace("{answer}", "0" * 32) + ("?model=he" if "he" in path else "")
        for headers in headers_of_strangers(every):
            with every.http.websocket_connect(at, headers=headers) as line:
                if path == "/v1/stream" and "Authorization" not in headers:
                    line.send_json({"completion": {"model": "plain", "prompt": "the boat"}})
                assert line.receive_json()["error"]["code"] == "TOKEN"
                with pytest.raises(WebSocketDisconnect) as closed:
                    line.receive_json()
                assert closed.value.code == 4401
    assert len(every.calls) == calls


def test_a_websocket_takes_the_token_in_its_first_message_too(every: Running) -> None:
    body = {"model": "plain", "prompt": "the boat", "max_tokens": 1}
    with every.http.websocket_connect("/v1/stream") as line:
        line.send_json({"token": every.tokens["anna"], "completion": body})
        assert line.receive_json()["privacy"]["artifact"] == "adapter:pub"
    for token in ("", "wrong", every.tokens["op"]):
        with every.http.websocket_connect("/v1/stream") as line:
            line.send_json({"token": token, "completion": body})
            assert line.receive_json()["error"]["code"] in ("TOKEN", "ROLE")


def test_a_websocket_that_says_who_it_is_cannot_become_another(every: Running) -> None:
    with every.http.websocket_connect("/v1/stream", headers=every.headers("eve")) as line:
        body = {"model": "plain", "prompt": "the boat", "max_tokens": 1}
        line.send_json({"token": every.tokens["anna"], "completion": body})
        assert line.receive_json()["privacy"]["artifact"] == "base"


def test_a_token_is_compared_with_every_entry_by_digests_in_constant_time() -> None:
    """Where the comparison stops, or how long it takes, must not say how much of a token is right, or whose it is."""
    rows = [TokenRow(sha256=hashlib.sha256(f"dpt_{n}".encode()).hexdigest(), client=f"c{n}") for n in range(5)]
    access = Access(rows)
    plain = hmac.compare_digest
    for token, known in (("dpt_0", True), ("dpt_4", True), ("dpt_9", False), ("", False), ("dpt_", False)):
        with mock.patch("dptrain.serve.access.hmac.compare_digest", side_effect=plain) as compared:
            try:
                found = access.client(f"Bearer {token}").name
            except Refused as error:
                assert (error.status, known) == (401, False)
            else:
                assert known and found == f"c{token[4:]}"
        assert compared.call_count == len(rows)
        assert all(len(left) == len(right) == 32 for left, right in (call.args for call in compared.call_args_list))


# --- what is read -------------------------------------------------------------------------------------------------------


def post(world: Running, content: Any, path: str = "/v1/completions", **headers: str) -> Any:
    return world.http.post(path, content=content, headers={**world.headers(), "Content-Type": "application/json", **headers})


GOOD = b'{"model": "plain", "prompt": "the boat", "max_tokens": 1}'

MALFORMED: list[bytes] = [
    b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", GOOD[:-1], GOOD + b"}", b"[" * 30_000, b'{"a":' * 10_000,
    b'{"model": "plain", "prompt": "x", "seed": ' + b"9" * 5000 + b"}", b'{"model": "plain", "prompt": "x", "\\ud800": 1}',
    b'{"model": "plain", "prompt": "\\ud800"}', b'{"model": "plain", "prompt": "x", "stop": ["\\udfff"]}',
    b'{"model": "plain", "prompt": "x", "temperature": NaN}', b'{"model": "plain", "prompt": "x", "max_tokens": 1e400}',
    b'{"model": "plain", "prompt": "x", "max_tokens": 1.5}',
    b'{"model": "plain", "prompt": "x", "rights": "\\ud800"}',
]  # fmt: skip


@pytest.mark.parametrize("content", MALFORMED, ids=[repr(each[:40]) for each in MALFORMED])
def test_a_body_that_is_not_in_form_is_refused_with_a_reason(world: Running, content: bytes) -> None:
    calls = len(world.calls)
    answer = post(world, content)
    assert answer.status_code in (400, 403), answer.text
    assert set(answer.json()) == {"error"} and {"type", "code", "message"} <= set(answer.json()["error"])
    assert len(world.calls) == calls


MESSAGES = [
    "", "{", "[]", "null", '{"completion": {"prompt": "x"}}', '{"completion": null}', '{"what": 1}', '{"token": "\\ud800"}',
    '{"completion": {"model": "plain", "prompt": "\\ud800"}}',
]  # fmt: skip


@pytest.mark.parametrize("text", MESSAGES)
def test_a_message_that_is_not_in_form_closes_the_websocket_with_a_reason(world: Running, text: str) -> None:
    with world.http.websocket_connect("/v1/stream", headers=world.headers()) as line:
        line.send_text(text)
        assert line.receive_json()["error"]["type"] == "invalid_request_error"
        with pytest.raises(WebSocketDisconnect) as closed:
            line.receive_json()
        assert closed.value.code == 4400


def test_of_what_was_sent_no_value_is_repeated(world: Running) -> None:
    said: list[dict[str, Any]] = [{"prompt": {"it": "hunter2"}}, {"temperature": "hunter2"}, {"stop": ["hunter2" * 99]}]
    for body in ({"prompt": "x", **each} for each in said):
        answer = world.post("/v1/completions", {"model": "plain", **body})
        assert answer.status_code in (400, 404) and "hunter2" not in answer.text


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_body_of_another_type_is_refused(world: Running, kind: str) -> None:
    assert post(world, GOOD, **{"Content-Type": kind}).status_code == 400


@pytest.mark.parametrize("told", [True, False], ids=["length-told", "length-not-told"])
def test_a_body_above_the_limit_is_refused_whether_it_says_its_length_or_not(world: Running, told: bool) -> None:
    most = world.config.server.body_bytes
    big = GOOD + b" " * (most + 1 - len(GOOD))
    answer = post(world, big if told else iter([big[:50], big[50:]]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "BODY")
    fits = big[:most]
    assert post(world, fits if told else iter([fits[:50], fits[50:]])).status_code == 200


def asgi(world: Running, headers: list[tuple[bytes, bytes]], messages: list[Any]) -> tuple[int, int]:
    """Sends a request past any HTTP library: (status, how many messages were read)."""
    sent: list[dict[str, Any]] = []
    read = []

    async def receive() -> dict[str, Any]:
        read.append(1)
        if not messages:
            await asyncio.sleep(3600)
        return messages.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    token = world.headers()["Authorization"].encode()
    scope = {
        "type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"/v1/completions",
        "query_string": b"", "http_version": "1.1",
        "headers": [(b"authorization", token), (b"content-type", b"application/json"), *headers], "scheme": "http",
        "server": ("x", 80), "client": ("y", 1), "root_path": "", "asgi": {"version": "3.0", "spec_version": "2.3"},
    }  # fmt: skip
    asyncio.run(make_app(world.service)(scope, receive, send))
    return next(each["status"] for each in sent if each["type"] == "http.response.start"), len(read)


@pytest.mark.parametrize("length", [b"99999999", b"-1", b"1e3", b"", b"0x10", b"9" * 5000, "²".encode("latin-1")])
def test_of_a_body_whose_length_is_too_long_or_none_nothing_is_read(world: Running, length: bytes) -> None:
    assert asgi(world, [(b"content-length", length)], [{"type": "http.request", "body": GOOD}]) == (413, 0)


def test_of_a_body_that_lies_about_its_length_no_more_than_the_limit_is_read(world: Running) -> None:
    chunk = {"type": "http.request", "body": b" " * 32_768, "more_body": True}
    status, read = asgi(world, [(b"content-length", b"10")], [chunk] * 1000)
    assert status == 413 and read <= world.config.server.body_bytes // 32_768 + 1


def test_a_body_that_does_not_come_is_waited_for_no_longer_than_the_limit(world: Running) -> None:
    with mock.patch.object(room, "BODY_SECONDS", 0.1):
        assert asgi(world, [], [{"type": "http.request", "body": GOOD[:9], "more_body": True}])[0] == 408


def test_a_body_that_breaks_off_is_no_request(world: Running) -> None:
    calls = len(world.calls)
    part = {"type": "http.request", "body": GOOD, "more_body": True}
    assert asgi(world, [], [part, {"type": "http.disconnect"}])[0] == 400 and len(world.calls) == calls


def test_huge_headers_are_refused_and_the_server_goes_on(world: Running) -> None:
    with listening(world) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
            found = b""
            try:
                for n in range(40):
                    raw.sendall(b"X-%d: %s\r\n" % (n, b"a" * 8000))
                raw.sendall(b"\r\n")
                found = raw.recv(100)
            except (BrokenPipeError, ConnectionResetError):
                pass
            assert not found or b" 4" in found[:14]
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b" 200 " in raw.recv(100)


# --- how it is answered -------------------------------------------------------------------------------------------------


def test_every_answer_has_the_headers_of_a_careful_server(world: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [
        world.complete("plain"), world.complete("plain", stream=True), world.complete("nothing"), world.http.get("/healthz"),
        world.http.get("/operator", headers=world.headers("op")), world.http.get("/metrics"), world.http.get("/openapi.json"),
        world.http.get("/nowhere", headers=world.headers()), world.http.put("/healthz", headers=world.headers()),
        post(world, b"{"),
    ]  # fmt: skip
    monkeypatch.setattr(type(world.service.gate), "admit", lambda *given, **more: 1 / 0)
    answers.append(world.complete("plain"))
    assert answers[-1].status_code == 500
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["cache-control"] == "no-store"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert not {"server", "x-powered-by", "access-control-allow-origin", "set-cookie"} & set(answer.headers)


def test_a_fault_of_the_server_says_nothing_of_what_it_was(world: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any, **more: Any) -> Any:
        raise ValueError("hunter2")

    monkeypatch.setattr(type(world.service.gate), "admit", fails)
    answer = world.complete("plain")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "INTERNAL") and "hunter2" not in answer.text
    with world.http.websocket_connect("/v1/stream", headers=world.headers()) as line:
        line.send_text(json.dumps({"completion": {"model": "plain", "prompt": "the boat"}}))
        assert line.receive_json()["error"]["code"] == "INTERNAL"


def test_the_document_says_which_statuses_there_are_and_that_a_token_is_needed(every: Running) -> None:
    document = every.http.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert "422" not in operation["responses"] and "200" in operation["responses"]
            if (method, path) not in OPEN:
                assert operation["security"] == [{"HTTPBearer": []}] and "401" in operation["responses"]


def test_a_server_of_plain_answers_alone_needs_no_budget(tmp_path: Path) -> None:
    with running(tmp_path, classes={"plain": CLASSES["plain"]}, budget=None, release=None) as world:
        assert world.complete("plain").status_code == 200 and world.http.get("/readyz").status_code == 200
        assert world.http.get("/v1/budgets/self", headers=world.headers()).status_code == 404
        assert world.post("/v1/split", {"model": "plain", "releases": 1}).status_code == 400
        for method, path in routes(world):
            assert asked(world, method, path, world.headers()).status_code < 500
