"""What a server tells of those who ask: nothing. All that it emits over a busy hour is searched for what they sent and got."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.sync.client import connect

from tests.worlds.listening import asking, listening, logged, spoken
from tests.worlds.servers import CLASSES, Running, running

SECRETS = {
    "prompt": "gull rope mast crate", "stop": "zanzibar", "session": "s-quokka", "user": "ophelia", "model": "nosuchclass",
    "field": "xylophone", "path": "unmentionable", "chat": "storm dusk gull", "state": "0.123456",
}  # fmt: skip
NAMES = ("anna", "bob", "eve")


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str, dict[str, Any]]]:
    """A server that has seen everything: (server, all its log at DEBUG with that of its libraries, what was sent and got)."""
    caps = {"user": {"epsilon": 400.0, "delta": 1e-5}, "session": {"epsilon": 8.0, "delta": 1e-5}}
    classes = {**CLASSES, "released": {"artifacts": ["adapter:pub"], "mode": "released"}}
    with logged() as lines, running(tmp_path_factory.mktemp("busy"), budget={"caps": caps}, classes=classes) as world:
        got = happened(world)
        yield world, "\n".join(lines), got


def happened(world: Running) -> dict[str, Any]:
    """Asks for all that there is, well and badly, by every door; returns answers, ids and tokens."""
    answers, ids = [], []
    with listening(world) as url:
        for name in NAMES:
            with asking(world, url, name) as http:
                for model in ("plain", "released", SECRETS["model"]):
                    body = {"model": model, "prompt": SECRETS["prompt"], "max_tokens": 9, "temperature": 0}
                    body |= {"user": SECRETS["user"], "stop": [SECRETS["stop"]]}
                    for stream in (False, True):
                        found = http.post("/v1/completions", json={**body, "stream": stream})
                        if found.status_code == 200 and not stream:
                            answers.append(found.json()["choices"][0]["text"])
                            ids.append(found.json()["id"])
                asked = {"model": "released", "prompt": SECRETS["prompt"], "session": SECRETS["session"]}
                http.post("/v1/completions", json=asked)
                http.post("/v1/completions", json={**asked, SECRETS["field"]: SECRETS["prompt"]})
                messages = [{"role": "user", "content": SECRETS["chat"]}]
                http.post("/v1/chat/completions", json={"model": "plain", "messages": messages})
                http.get(f"/{SECRETS['path']}?q={SECRETS['path']}")
                http.get("/v1/budgets/user:anna")
                http.request("PUT", f"/v1/models/{SECRETS['path']}")
                split = http.post("/v1/split", json={"model": "split", "releases": 2, "session": SECRETS["session"]}).json()
                if "id" in split:
                    ids.append(split["id"])
                    http.post(f"/v1/split/{split['id']}", content=np.full(32, 0.123456, "<f4").tobytes())
                    http.post(f"/v1/split/{split['id']}", content=json.dumps([0.123456] * 32).encode())
                    at = f"{url.replace('http', 'ws')}/v1/split/{split['id']}/stream"
                    with connect(at, additional_headers=world.headers(name)) as line:
                        line.send(np.full(32, 0.123456, "<f4").tobytes())
                        line.recv(10)
            spoken(world, {"model": "plain", "prompt": SECRETS["prompt"], "max_tokens": 3}, name)
        with asking(world, url) as http:
            http.headers["Authorization"] = "Bearer dpt_nobody"
            http.post("/v1/completions", json={})
    served = world.service.artifacts._models["base"]
    plain = served.model.forward

    def fails(*given: Any, **more: Any) -> Any:
        raise RuntimeError(SECRETS["prompt"])

    served.model.forward = fails
    gate, admit = type(world.service.gate), type(world.service.gate).admit
    try:
        world.complete("released", prompt=SECRETS["prompt"])
        world.complete("released", prompt=SECRETS["prompt"], stream=True)
        gate.admit = fails  # type: ignore[method-assign]
        assert world.complete("released", prompt=SECRETS["prompt"]).status_code == 500
        spoken(world, {"model": "plain", "prompt": SECRETS["prompt"]})
    finally:
        served.model.forward = plain
        gate.admit = admit  # type: ignore[method-assign]
    return {"answers": answers, "ids": ids}


def test_no_log_has_a_prompt_an_answer_a_session_a_client_a_token_or_an_id(busy: tuple[Running, str, dict[str, Any]]) -> None:
    world, log, got = busy
    assert "dptrain.serve" in log and "/v1/completions 200" in log  # it does log
    for what, secret in SECRETS.items():
        assert secret not in log, what
    for name in NAMES:
        assert not re.search(rf"\b{name}\b", log), name
    assert got["answers"] and got["ids"]
    for each in (*got["answers"], *got["ids"], *world.tokens.values(), "dpt_"):
        assert each not in log
    assert str(np.float32(0.123456))[:6] not in log


def test_what_is_logged_of_a_fault_is_where_it_is(busy: tuple[Running, str, dict[str, Any]]) -> None:
    assert "RuntimeError at test_serve_silence.py" in busy[1] and "Traceback" not in busy[1]


def test_no_number_names_anybody_or_hangs_on_what_was_asked(busy: tuple[Running, str, dict[str, Any]]) -> None:
    world, _, got = busy
    text = world.http.get("/metrics", headers=world.headers("op")).text
    for secret in (*SECRETS.values(), *got["answers"], *got["ids"], *world.tokens.values()):
        assert secret not in text
    assert not re.search(r"\b(anna|bob|eve|op)\b", text)
    allowed = {
        "route": {*world.http.get("/openapi.json").json()["paths"], "/v1/budgets/{unit:path}", "/openapi.json", "other"},
        "status": {str(n) for n in (200, 400, 401, 403, 404, 405, 408, 413, 429, 499, 500, 503)},
        "model": {"plain", "released", "split"}, "kind": {"user", "session"}, "le": None, "reason": None,
    }  # fmt: skip
    names = set()
    for family in text_string_to_metric_families(text):
        names.add(family.name)
        for sample in family.samples:
            for label, value in sample.labels.items():
                if label == "reason":
                    assert re.fullmatch(r"[A-Z_]{2,30}", value), value
                elif label != "le":
                    assert value in (allowed[label] or ()), (family.name, label, value)
    assert {"dptrain_requests", "dptrain_refusals", "dptrain_tokens", "dptrain_rho_cap"} <= names
    told = {name for name in names if re.search("clip|norm|prompt|state_|length|words", name)}
    assert not told


def test_no_number_tells_how_long_an_answer_took_that_releases_states(tmp_path: Path) -> None:
    """Its tokens are counted as those that were paid, whatever its text was."""
    with running(tmp_path) as world:

        def numbers() -> dict[str, float]:
            text = world.http.get("/metrics", headers=world.headers("op")).text
            found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
            return {
                f"{each.name} {each.labels.get('model', '')}".strip(): each.value
                for each in found
                if each.name.endswith("_seconds_count") or each.name == "dptrain_tokens_total"
            }

        world.complete("released", max_tokens=8, stop=["e", "a", "o"])
        told = numbers()
        assert told["dptrain_tokens_total released"] == 8
        assert told["dptrain_first_token_seconds_count"] == told["dptrain_answer_seconds_count"] == 0
        assert told["dptrain_gate_and_budget_seconds_count"] == 1
        world.complete("plain", max_tokens=8)
        told = numbers()
        assert told["dptrain_first_token_seconds_count"] == told["dptrain_answer_seconds_count"] == 1


def test_the_number_of_label_values_does_not_grow_with_what_is_sent(tmp_path: Path) -> None:
    with running(tmp_path, classes={"plain": CLASSES["plain"]}) as world:

        def labels() -> int:
            return len(world.http.get("/metrics", headers=world.headers("op")).text.splitlines())

        def flood(start: int) -> None:
            for n in range(start, start + 15):
                world.http.get(f"/path-{n}", headers=world.headers())
                world.http.get(f"/v1/budgets/user:u{n}", headers=world.headers("op"))
                world.complete(f"model-{n}")
                world.post("/v1/completions", {"model": "plain", f"field-{n}": n})
                world.http.request(f"M{n}", "/healthz", headers=world.headers())
                world.complete("plain", prompt=f"the boat {n}", max_tokens=1, user=f"user-{n}")

        flood(0)
        labels()
        before = labels()
        flood(100)
        assert labels() == before


def test_the_operators_page_shows_units_by_their_names_and_no_texts(busy: tuple[Running, str, dict[str, Any]]) -> None:
    world, _, got = busy
    page = world.http.get("/operator", headers=world.headers("op")).text
    for secret in (*SECRETS.values(), *got["answers"], *got["ids"], *world.tokens.values()):
        assert secret not in page
    assert "anna" in page and "MODEL" in page


def test_nothing_that_was_sent_lies_on_the_disk(busy: tuple[Running, str, dict[str, Any]]) -> None:
    world, _, got = busy
    folder = world.config.tokens.parent
    for path in (each for each in folder.rglob("*") if each.is_file() and each.name != "tokens.kept"):
        content = path.read_bytes()
        for secret in (*SECRETS.values(), *got["answers"], *got["ids"], *world.tokens.values()):
            assert secret.encode() not in content, path
        assert path.name == "tokens.toml" or not re.search(rb"\b(anna|bob)\b", content), path
