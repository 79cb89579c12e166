"""When no text is drawn: before rows were tested, after a test failed, and of what was withdrawn while it was computed."""

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from dptrain.errors import NotPrivateUse
from dptrain.inference.invisibleink import generator
from dptrain.inference.invisibleink.forward import Form
from dptrain.serve.scheduler import Scheduler
from tests.serve.test_serve_withdrawal import ADAPTER, withdraw, without
from tests.worlds.listening import held, listening, told_by_events, until
from tests.worlds.servers import Running
from tests.worlds.texts import RICH, TOKENS, offered, spent, tell, telling

CHECK = generator.check_rows


def reading(world: Running, url: str, into: list[str], client: str = "anna") -> threading.Thread:
    """Reads a text by events in a thread, and at the end a full stop."""
    body = {"generation": "tales", "labels": {"kind": "boat"}, "stream": True}
    return told_by_events(world, url, client, "/v1/dp/generations", body, into)


@contextmanager
def halfway(world: Running, client: str = "anna") -> Iterator[tuple[Any, Any, list[str], Any]]:
    """A text of which two tokens were drawn, while its reader waits: (URL, turns of the model, what came, end of reading)."""
    seen: list[str] = []
    with listening(world) as url, held(world, ADAPTER) as turns:
        thread = reading(world, url, seen, client)
        until(lambda: len(world.service._running) == 1)
        (running,) = world.service._running
        turns.release(2)
        until(lambda: running.stream.decoding.computed == 2)

        def ended() -> str:
            turns.release(TOKENS)
            thread.join(10)
            assert seen[-1] == "."
            return seen[-2]

        yield url, turns, seen, ended


# --- before rows were tested --------------------------------------------------------------------------------------------


def test_no_text_is_drawn_and_no_traffic_is_asked_for_before_the_rows_of_all_shapes_were_tested(tmp_path: Path) -> None:
    go = threading.Event()
    lengths: list[int] = []

    def slow(model: Any, batch: int, length: int, *given: Any, **more: Any) -> bool:
        go.wait(20)
        lengths.append(length)
        return CHECK(model, batch, length, *given, **more)

    long = ["boat", "orchard " * 20]  # another shape
    labels = {"labels": {"kind": long}}
    with mock.patch.object(generator, "check_rows", slow), telling(tmp_path, wait=False, generation=labels) as world:
        ready = world.http.get("/readyz")
        assert ready.status_code == 503 and "generation tales: NOT_CHECKED" in ready.text
        answer = tell(world)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "NOT_CHECKED") and "retry-after" in answer.headers
        assert not world.calls and spent(world) == [0] * 4
        assert world.complete("plain").status_code == 200  # what is drawn from no references
        go.set()
        until(lambda: world.http.get("/readyz").status_code == 200, 60)
        assert len(lengths) == 2 and len(set(lengths)) == 2
        assert tell(world).status_code == 200


def test_a_generation_whose_rows_are_coupled_never_opens(tmp_path: Path) -> None:
    """The real test sees a model whose rows hang together by what a kernel might do: a shift by the mean of all rows."""
    before = generator.Forward._joined

    def coupled(self: Any, found: Any) -> Any:
        logits = before(self, found)
        return logits + 1e-3 * logits.mean(0, keepdims=True)

    with mock.patch.object(generator.Forward, "_joined", coupled), telling(tmp_path, wait=False) as world:
        until(lambda: offered(world).closed is not None, 60)
        world.calls.clear()
        for answer in (tell(world), tell(world, stream=True)):
            error = answer.json()["error"]
            assert (answer.status_code, error["type"], error["code"]) == (503, "server_refuses", "ROWS_COUPLED")
        assert not world.calls and spent(world) == [0] * 4
        assert "generation tales: ROWS_COUPLED" in world.http.get("/readyz").text
        assert "ROWS_COUPLED" in world.http.get("/operator", headers=world.headers("op")).text
        assert world.complete("plain").status_code == 200


def test_a_model_that_the_mechanism_cannot_run_closes_the_generation_by_name(tmp_path: Path) -> None:
    with telling(tmp_path, wait=False, generation={"tokens": 250, "epsilon": 3.0}) as world:  # the model has 256 places
        until(lambda: offered(world).closed is not None, 60)
        assert tell(world).json()["error"]["code"] == "ROOM"


# --- a test that fails later --------------------------------------------------------------------------------------------


def test_rows_are_tested_again_now_and_then(tmp_path: Path) -> None:
    tested: list[int] = []

    def counted(*given: Any, **more: Any) -> bool:
        tested.append(1)
        return CHECK(*given, **more)

    with mock.patch.object(generator, "check_rows", counted), telling(tmp_path, RICH, generation={"recheck_every": 3}) as world:
        assert len(tested) == 1
        for _ in range(7):
            assert tell(world).status_code == 200
        assert len(tested) == 3


def test_a_test_that_fails_later_closes_the_generation_spends_nothing_and_ends_what_runs(tmp_path: Path) -> None:
    with telling(tmp_path, generation={"recheck_every": 1}) as world:
        assert tell(world).status_code == 200
        with mock.patch.object(generator, "check_rows", return_value=Form()), halfway(world) as (_, _, seen, ended):
            with mock.patch.object(generator, "check_rows", side_effect=NotPrivateUse("ROWS_COUPLED", "a row moved")):
                answer = tell(world, "bob")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "ROWS_COUPLED")
            last = ended()
        assert '"ROWS_COUPLED"' in last and not any('"usage"' in line for line in seen)
        calls = len(world.calls)
        assert tell(world).status_code == 503 and len(world.calls) == calls  # though the rows would pass now
        assert world.http.get("/readyz").status_code == 503
        until(lambda: sorted(spent(world)) == [0, 0, 3, TOKENS] or sorted(spent(world)) == [0, 0, 2, TOKENS])


def test_a_generation_compiles_one_step_before_it_opens_or_stays_closed(tmp_path: Path) -> None:
    made: list[Any] = []

    def compiled(graph: Any, values: Any, options: Any = None) -> Any:
        made.append(graph)
        return graph

    with mock.patch("torch._inductor.compile", compiled), telling(tmp_path, generation={"compile": True}) as world:
        assert len(made) == 1
        calls = len(world.calls)
        assert tell(world).status_code == 200 and len(made) == 1
        assert len(world.calls) == calls + 1, "all but the prompts is compiled"
    (tmp_path / "other").mkdir()
    with (
        mock.patch("torch._inductor.compile", side_effect=RuntimeError("no")),
        telling(tmp_path / "other", wait=False, generation={"compile": True}) as world,
    ):
        until(lambda: offered(world).closed is not None)
        assert tell(world).json()["error"]["code"] == "COMPILE" and not any(spent(world))


# --- what was withdrawn -------------------------------------------------------------------------------------------------


def test_a_text_of_an_artifact_that_was_withdrawn_ends_and_the_model_leaves_memory(tmp_path: Path) -> None:
    with telling(tmp_path, gate={"export": "export"}) as world:
        with halfway(world) as (_, _, seen, ended):
            withdraw(world)
            last = ended()
        assert '"WITHDRAWN"' in last and not any('"usage"' in line for line in seen)
        assert ADAPTER not in world.service.artifacts._models
        calls = len(world.calls)
        assert tell(world).json()["error"]["type"] == "rights_refused" and len(world.calls) == calls
        assert world.http.get("/readyz").status_code == 200  # the rest is served
        (row,) = [each for each in spent(world) if each]
        assert 2 <= row <= 3


def test_no_model_of_a_generation_outlives_its_withdrawal(tmp_path: Path) -> None:
    with telling(tmp_path, gate={"export": "export"}) as world:
        assert tell(world).status_code == 200
        model = weakref.ref(offered(world)._ink.model)
        withdraw(world)
        until(lambda: not world.service.scheduler.busy)
        gc.collect()
        assert model() is None


def test_a_model_that_comes_back_is_tested_before_it_draws(tmp_path: Path) -> None:
    with telling(tmp_path, gate={"export": "export"}) as world:
        gate: Any = world.service.gate
        withdraw(world)
        assert tell(world).status_code == 403
        gate.gone.clear()
        tested: list[Any] = []
        with mock.patch.object(generator, "check_rows", lambda *given, **more: tested.append(1) or CHECK(*given, **more)):
            assert tell(world).status_code == 200 and tested == [1]
            assert tell(world).status_code == 200 and tested == [1]


def test_a_text_ends_when_the_token_that_asked_for_it_is_taken_back(tmp_path: Path) -> None:
    with telling(tmp_path) as world, halfway(world, "bob") as (_, _, seen, ended):
        without(world, "bob")
        assert '"WITHDRAWN"' in ended() and not any('"usage"' in line for line in seen)


def test_a_draining_server_lets_its_texts_end_and_takes_on_no_more(tmp_path: Path) -> None:
    with telling(tmp_path) as world, halfway(world) as (_, _, _, ended):
        world.service.draining = True
        assert tell(world).json()["error"]["code"] == "DRAINING"
        assert '"finish_reason": "length"' in ended()


def test_places_and_limits_are_those_of_all_answers_and_are_asked_before_anything_is_paid(tmp_path: Path) -> None:
    with telling(tmp_path, server={"streams": 1, "waiting": 0}) as world, halfway(world) as (_, _, _, ended):
        paid = sum(spent(world))
        answer = tell(world, "bob")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "BUSY") and sum(spent(world)) == paid
        ended()


def test_a_reader_who_does_not_read_holds_up_its_own_text_alone(tmp_path: Path) -> None:
    """Back-pressure as for other answers: a text waits with the rest of its tokens uncomputed."""
    long = {"tokens": 120, "epsilon": 3.0}
    with ExitStack() as opened:
        world = opened.enter_context(telling(tmp_path, generation=long))
        opened.enter_context(mock.patch.object(generator._Text, "add", lambda text, token: "."))
        socket = opened.enter_context(world.http.websocket_connect("/v1/stream", headers=world.headers()))
        opened.enter_context(mock.patch("dptrain.serve.scheduler.AHEAD", 4))
        opened.enter_context(mock.patch.object(Scheduler, "taken", lambda self, stream: None))
        socket.send_json({"generation": {"generation": "tales", "labels": {"kind": "boat"}}})
        until(lambda: any(each.stream._parked for each in world.service._running))
        (running,) = world.service._running
        assert running.stream.decoding.computed == 4
        assert world.complete("plain", max_tokens=2).status_code == 200
        assert running.stream.decoding.computed == 4
