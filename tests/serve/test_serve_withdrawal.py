"""What is withdrawn while it is served: its answers end, its weights leave memory, and everything else goes on."""

import gc
import hashlib
import threading
import tomllib
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dptrain.serve import program
from dptrain.serve.access import Access, TokenRow, add_token
from dptrain.serve.scheduler import Piece
from dptrain.serve.service import Service
from ledger.errors import LedgerBusy, ReleaseRefused
from ledger.release import Rights
from tests.worlds.listening import begun, computed, held, listening, spoken, told_by_events, until
from tests.worlds.servers import Running, running

ADAPTER = "adapter:pub"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path, gate={"export": "export"}, server={"streams": 4}) as world:
        yield world


def withdraw(world: Running) -> None:
    world.service.gate.gone.add(ADAPTER)  # type: ignore[attr-defined]
    world.service.refresh()


def stream(world: Running, url: str, model: str, client: str, into: list[str], tokens: int = 12) -> threading.Thread:
    """Reads an answer by events in a thread; its text, or the code of its error, and at the end a full stop."""
    body = {"model": model, "prompt": "the boat", "max_tokens": tokens, "stream": True, "temperature": 0}
    return told_by_events(world, url, client, "/v1/completions", body, into)


def test_running_answers_of_what_was_withdrawn_end_and_those_of_others_go_on(served: Running) -> None:
    with listening(served) as url, held(served, ADAPTER, "base") as turns:
        gone: list[str] = []
        stays: list[str] = []
        threads = [stream(served, url, "plain", "anna", gone), stream(served, url, "plain", "eve", stays)]
        computed(served, turns, 2)
        withdraw(served)
        turns.release(50)
        for thread in threads:
            thread.join(10)
        assert '"WITHDRAWN"' in gone[-2] and gone[-1] == "." and not any('"usage"' in line for line in gone)
        assert '"usage"' in stays[-2] and stays[-1] == "."  # a whole answer, also where its end was drawn
    answer = served.complete("plain", temperature=0)
    assert answer.json()["privacy"]["artifact"] == "base"  # who may hear of it hears of what is left


@pytest.mark.parametrize("door", ["whole", "websocket"])
def test_who_waits_for_the_whole_or_at_a_websocket_hears_of_it_too(served: Running, door: str) -> None:
    """Also a reader who has everything that was computed, and waits for a turn of the one thread that computes."""
    found: list[Any] = []
    body = {"model": "released", "prompt": "the boat", "max_tokens": 20}

    def ask() -> None:
        found.append(served.post("/v1/completions", body) if door == "whole" else spoken(served, body))

    with held(served) as turns:
        other = threading.Thread(target=lambda: served.complete("plain", "eve", max_tokens=40), daemon=True)
        other.start()
        until(lambda: len(served.service._running) == 1)
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        until(lambda: len(served.service._running) == 2)
        (asked,) = [each for each in served.service._running if each.asked[0].name == "anna"]
        computed = [each.stream.decoding for each in served.service._running]
        while asked.stream.decoding.computed < 3:
            before = sum(each.computed for each in computed)
            turns.release(1)
            until(lambda before=before: sum(each.computed for each in computed) > before)
        withdraw(served)  # while the other has the turn
        turns.release(2)
        thread.join(5)
        heard = bool(found)
        asked.stream._post(Piece("", "cancelled"))  # a test that fails ends, too
        thread.join(5)
    assert heard, "the reader still waits"
    error = found[0].json()["error"] if door == "whole" else found[0][-1]["error"]
    assert error["code"] == "WITHDRAWN" and (door == "websocket" or found[0].status_code == 403)
    told = served.http.get("/v1/budgets/self", headers=served.headers()).json()["spent_nano_rho"]
    assert told == asked.privacy["release"]["nano_rho"]  # what began is spent, whoever ended it


def test_what_was_withdrawn_leaves_memory(served: Running) -> None:
    served.complete("plain")
    model = weakref.ref(served.service.artifacts.model(ADAPTER).model)
    last = weakref.ref(served.service.artifacts.last(ADAPTER))
    served.calls.clear()
    withdraw(served)
    gc.collect()
    assert model() is None and last() is None
    assert "base" in served.service.artifacts._models
    assert served.complete("released").json()["error"]["type"] == "rights_refused" and not served.calls


def test_split_answers_of_what_was_withdrawn_end(served: Running) -> None:
    paid = served.post("/v1/split", {"model": "split", "releases": 3}).json()
    path, state = f"/v1/split/{paid['id']}", bytes(4 * paid["numbers"])
    assert served.http.post(path, headers=served.headers(), content=state).status_code == 200
    other = served.post("/v1/split", {"model": "split", "releases": 2}, "bob").json()
    with mock.patch.object(type(served.service.till.log), "commit", side_effect=LedgerBusy("BUSY", "busy")):  # type: ignore[union-attr]
        withdraw(served)  # whatever the budget does
    for client, answer in (("anna", paid), ("bob", other)):
        found = served.http.post(f"/v1/split/{answer['id']}", headers=served.headers(client), content=state)
        assert (found.status_code, found.json()["error"]["code"]) == (404, "ANSWER")
    assert served.post("/v1/split", {"model": "split", "releases": 1}).status_code == 403


def test_a_refused_refresh_closes_the_gate_and_ends_every_answer(served: Running) -> None:
    paid = served.post("/v1/split", {"model": "split", "releases": 3}).json()
    with listening(served) as url, held(served, ADAPTER, "base") as base:
        seen: list[str] = []
        thread = stream(served, url, "plain", "eve", seen)
        computed(served, base, 1)
        served.service.gate.refuses = ReleaseRefused("BEHIND", "the export has fewer leaves")  # type: ignore[attr-defined]
        with pytest.raises(ReleaseRefused, match="BEHIND"):
            served.service.refresh()
        base.release(2)
        thread.join(10)
        assert '"WITHDRAWN"' in seen[-2]
    assert not served.service.artifacts._models and not served.service.artifacts._last
    served.calls.clear()
    for model in ("plain", "released"):
        assert served.complete(model).status_code == 403
    found = served.http.post(f"/v1/split/{paid['id']}", headers=served.headers(), content=bytes(4 * paid["numbers"]))
    assert found.status_code == 404 and not served.calls
    ready = served.http.get("/readyz")
    assert ready.status_code == 503 and "BEHIND" in ready.text
    with served.http.websocket_connect("/v1/stream", headers=served.headers()) as socket:
        socket.send_json({"completion": {"model": "plain", "prompt": "the boat"}})
        assert socket.receive_json()["error"]["type"] == "rights_refused"


@pytest.mark.parametrize("model", ["released", "plain"])
def test_an_answer_that_was_admitted_just_before_a_withdrawal_does_not_outlive_it(served: Running, model: str) -> None:
    """Between the gate and the first token an export may be read again: such an answer is none."""
    plain = Service._prepared

    def late(self: Service, *given: Any) -> Any:
        found = plain(self, *given)
        withdraw(served)
        return found

    with mock.patch.object(Service, "_prepared", late):
        answer = served.complete(model, max_tokens=30)
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "WITHDRAWN", answer.text


def test_a_split_answer_that_was_admitted_just_before_a_withdrawal_does_not_outlive_it(served: Running) -> None:
    log = type(served.service.till.log)  # type: ignore[union-attr]
    plain = log.reserve

    def late(self: Any, *given: Any, **more: Any) -> Any:
        paid = plain(self, *given, **more)
        withdraw(served)
        return paid

    with mock.patch.object(log, "reserve", late):
        answer = served.post("/v1/split", {"model": "split", "releases": 2})
    if answer.status_code == 200:
        found = answer.json()
        state = bytes(4 * found["numbers"])
        assert served.http.post(f"/v1/split/{found['id']}", headers=served.headers(), content=state).status_code == 404
    assert not served.service.splits._held  # type: ignore[union-attr]


def test_one_answer_that_cannot_be_judged_does_not_keep_another_running(served: Running) -> None:
    with listening(served) as url, held(served, ADAPTER) as adapted:
        first: list[str] = []
        second: list[str] = []
        threads = [stream(served, url, "plain", "anna", first), stream(served, url, "plain", "bob", second)]
        until(lambda: served.service.scheduler.running == 2)
        served.service.gate.gone.add(ADAPTER)  # type: ignore[attr-defined]
        plain, failed = served.service.gate.admit, []

        def broken(*given: Any, **more: Any) -> Any:
            if not failed:
                failed.append(1)
                raise OSError("a key cannot be read")
            return plain(*given, **more)

        with mock.patch.object(served.service.gate, "admit", broken):
            served.service.refresh()
        adapted.release(50)
        for thread in threads:
            thread.join(10)
        assert '"WITHDRAWN"' in first[-2] and '"WITHDRAWN"' in second[-2]


def test_answers_that_ended_are_not_kept(served: Running) -> None:
    with listening(served) as url:
        for door in ("events", "websocket", "whole"):
            begun(served, url, door, tokens=5)()
            served.complete("plain", stream=door == "events")
        until(lambda: not served.service.scheduler.busy)
    served.complete("plain")
    assert not served.service._running


def test_the_rest_of_a_class_is_served_again_when_an_export_passes(served: Running) -> None:
    gate: Any = served.service.gate
    gate.refuses = ReleaseRefused("BEHIND", "the export has fewer leaves")
    with pytest.raises(ReleaseRefused):
        served.service.refresh()
    gate.refuses, gate.closed = None, None
    served.service.refresh()
    assert served.complete("plain").status_code == served.complete("released").status_code == 200


# --- tokens that are taken back -----------------------------------------------------------------------------------------


def rewrite(world: Running, change: Callable[[dict[str, Any]], bool]) -> None:
    """Writes the file of tokens anew and has it read. ``change``: mends a row, and says whether it stays."""
    rows = [row for row in tomllib.loads(world.config.tokens.read_text())["token"] if change(row)]
    access = Access([TokenRow.model_validate(row) for row in rows])
    with mock.patch.object(Access, "load", lambda path: access):
        world.service.reload(world.config)


def without(world: Running, name: str) -> None:
    rewrite(world, lambda row: row["client"] != name)


def test_what_is_open_by_a_token_that_was_taken_back_is_answered_no_more(served: Running) -> None:
    asked = {"completion": {"model": "plain", "prompt": "the boat", "max_tokens": 4}}
    names = ("anna", "bob")
    answers = {name: served.post("/v1/split", {"model": "split", "releases": 3}, name).json() for name in names}
    with ExitStack() as opened:

        def talk(path: str, name: str) -> Any:
            return opened.enter_context(served.http.websocket_connect(path, headers=served.headers(name)))

        def says(socket: Any) -> Any:
            socket.send_json(asked)
            while True:
                told = socket.receive_json()
                if "error" in told or told.get("done"):
                    return told.get("error", {}).get("code")

        texts = {name: talk("/v1/stream", name) for name in names}
        states = {name: talk(f"/v1/split/{answers[name]['id']}/stream", name) for name in names}
        for name in names:
            assert says(texts[name]) is None
            states[name].send_bytes(bytes(4 * answers[name]["numbers"]))
            states[name].receive_bytes()
        without(served, "bob")
        assert says(texts["anna"]) is None
        states["anna"].send_bytes(bytes(4 * answers["anna"]["numbers"]))
        states["anna"].receive_bytes()
        assert says(texts["bob"]) == "TOKEN"
        states["bob"].send_bytes(bytes(4 * answers["bob"]["numbers"]))
        assert states["bob"].receive_json()["error"]["code"] == "TOKEN"


def test_a_second_token_of_the_client_that_paid_sends_no_state_once_it_was_taken_back(served: Running) -> None:
    other = add_token(served.config.tokens, "anna", rights=Rights({"pub": 4.0}))
    served.service.reload(served.config)
    paid = served.post("/v1/split", {"model": "split", "releases": 3}).json()
    state = bytes(4 * paid["numbers"])
    second = {"Authorization": f"Bearer {other}"}
    with served.http.websocket_connect(f"/v1/split/{paid['id']}/stream", headers=second) as socket:
        socket.send_bytes(state)
        socket.receive_bytes()
        rewrite(served, lambda row: row["sha256"] != hashlib.sha256(other.encode()).hexdigest())
        socket.send_bytes(state)
        assert socket.receive_json()["error"]["code"] == "TOKEN"
    found = served.http.post(f"/v1/split/{paid['id']}", headers=served.headers(), content=state)
    assert found.status_code == 200  # what was refused was counted neither


def test_rights_that_the_file_of_tokens_narrows_hold_for_what_is_open(served: Running) -> None:
    with served.http.websocket_connect("/v1/stream", headers=served.headers()) as socket:
        for artifact in ("adapter:pub", "base"):
            socket.send_json({"completion": {"model": "plain", "prompt": "the boat", "max_tokens": 2}})
            assert socket.receive_json()["privacy"]["artifact"] == artifact
            while not socket.receive_json().get("done"):
                pass
            rewrite(served, lambda row: row.update(rights={"classes": {}}) is None)


def test_a_running_answer_ends_when_its_token_is_taken_back_and_those_of_others_go_on(served: Running) -> None:
    with listening(served) as url, held(served, ADAPTER) as turns:
        gone: list[str] = []
        stays: list[str] = []
        threads = [stream(served, url, "plain", "bob", gone), stream(served, url, "plain", "anna", stays)]
        computed(served, turns, 2)
        without(served, "bob")
        turns.release(50)
        for thread in threads:
            thread.join(10)
        assert '"WITHDRAWN"' in gone[-2] and gone[-1] == "." and not any('"usage"' in line for line in gone)
        assert '"usage"' in stays[-2] and stays[-1] == "."


def test_an_answer_that_began_just_before_its_token_was_taken_back_does_not_outlive_it(served: Running) -> None:
    plain = Service._prepared

    def late(self: Service, *given: Any) -> Any:
        found = plain(self, *given)
        without(served, "anna")
        return found

    with mock.patch.object(Service, "_prepared", late):
        answer = served.complete("plain", max_tokens=30)
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "WITHDRAWN", answer.text


def test_what_nobody_expected_when_files_are_read_again_is_said_and_they_are_read_at_the_next_time(
    served: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stop, asked = threading.Event(), threading.Event()
    with mock.patch.object(program.ServeConfig, "load", side_effect=[RuntimeError("of the boat"), served.config]):
        thread = threading.Thread(target=program._refresh, args=(served.service, stop, asked, tmp_path / "file"), daemon=True)
        thread.start()
        asked.set()
        until(lambda: served.service.unread == "RuntimeError")
        asked.set()
        until(lambda: served.service.unread is None)
        stop.set()
        thread.join(5)
    assert "RuntimeError" in caplog.text and "of the boat" not in caplog.text
