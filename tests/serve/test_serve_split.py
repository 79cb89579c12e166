"""Clients that run the base model: what is taken from them, by whom, how often; and what their own side checks and adds."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from dptrain.errors import DptrainError, NotPaid
from dptrain.inference import release as releases
from dptrain.inference import remote
from dptrain.inference.remote import ServerRefused, generate
from dptrain.serve import adapters
from ledger.errors import RightsRefused
from tests.worlds.elsewhere import adapted, base, client, pair
from tests.worlds.servers import Running, model_folders, running


@contextmanager
def without_noise() -> Iterator[None]:
    """Takes clip and noise away on the client's side: what is left must be the adapter, to the last digit of float32."""
    with mock.patch.object(releases, "_noised", lambda values, clip, sigma: values):
        yield


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    release = {"epsilon": 4.0, "space": "rank", "shrink": 0.5}
    rich = {"caps": {"user": {"epsilon": 5000.0, "delta": 1e-5}}}
    with running(tmp_path_factory.mktemp("ranked"), release=release, budget=rich) as found:
        yield found


def paid(world: Running, count: int, who: str = "anna", **more: Any) -> dict[str, Any]:
    answer = world.post("/v1/split", {"model": "split", "releases": count, **more}, who)
    assert answer.status_code == 200, answer.text
    return answer.json()


def send(world: Running, answer: dict[str, Any], state: Any, who: str = "anna") -> Any:
    body = state if isinstance(state, bytes) else np.asarray(state, "<f4").tobytes()
    return world.http.post(f"/v1/split/{answer['id']}", headers=world.headers(who), content=body)


def spent(world: Running, who: str = "anna") -> int:
    return world.http.get("/v1/budgets/self", headers=world.headers(who)).json()["spent_nano_rho"]


# --- what the server takes ----------------------------------------------------------------------------------------------


def test_exactly_the_states_that_were_paid_for_are_taken(world: Running) -> None:
    before = spent(world)
    answer = paid(world, 3)
    assert spent(world) - before == answer["privacy"]["release"]["nano_rho"] and answer["releases"] == 3
    state = np.linspace(-1, 1, answer["numbers"])
    A, B, scaling = pair()
    for _ in range(3):
        found = np.frombuffer(send(world, answer, state).content, "<f4")
        assert np.allclose(found, scaling * (B @ (A @ state)), rtol=1e-5, atol=1e-6)
    refused = send(world, answer, state)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "NOT_RESERVED")


def test_an_answer_is_taken_by_who_paid_and_nobody_else(world: Running) -> None:
    answer = paid(world, 2)
    state = np.zeros(answer["numbers"])
    for who in ("bob", "eve", "op"):
        assert send(world, answer, state, who).json()["error"]["code"] == "ANSWER"
        assert world.http.delete(f"/v1/split/{answer['id']}", headers=world.headers(who)).status_code == 404
        with world.http.websocket_connect(f"/v1/split/{answer['id']}/stream", headers=world.headers(who)) as line:
            line.send_bytes(np.zeros(answer["numbers"], "<f4").tobytes())
            assert line.receive_json()["error"]["code"] == "ANSWER"
    for identity in ("0" * 32, answer["id"][:-1], answer["id"].upper() + "x", "%00", "..", "A"):
        assert send(world, {"id": identity}, state).status_code in (404, 405)
    assert [send(world, answer, state).status_code for _ in range(3)] == [200, 200, 403]  # none of that took one


def test_a_state_of_another_form_is_refused_and_counts_as_one(world: Running) -> None:
    """Who reads the states has it all the same."""
    answer, before = paid(world, 8), spent(world)
    n = answer["numbers"]
    for state in (b"", bytes(4 * n - 1), bytes(4 * n + 4), bytes(8 * n), np.full(n, np.nan), np.full(n, np.inf), b"[1.0, 2.0]"):
        assert send(world, answer, state).json()["error"]["code"] == "STATE"
    assert send(world, answer, np.zeros(n)).status_code == 200
    assert send(world, answer, np.zeros(n)).json()["error"]["code"] == "NOT_RESERVED"
    world.http.delete(f"/v1/split/{answer['id']}", headers=world.headers())
    assert spent(world) == before  # of what was reserved nothing came back


def test_a_websocket_takes_the_states_of_an_answer_and_no_more(world: Running) -> None:
    answer = paid(world, 2)
    state = np.linspace(-1, 1, answer["numbers"]).astype("<f4").tobytes()
    with world.http.websocket_connect(f"/v1/split/{answer['id']}/stream", headers=world.headers()) as line:
        for _ in range(2):
            line.send_bytes(state)
            assert len(line.receive_bytes()) == 4 * answer["scores"]
        line.send_bytes(state)
        assert line.receive_json()["error"]["code"] == "NOT_RESERVED"
    answer = paid(world, 1)
    with world.http.websocket_connect(f"/v1/split/{answer['id']}/stream", headers=world.headers()) as line:
        line.send_json({"state": [0.0]})
        assert line.receive_json()["error"]["code"] == "STATE_IN_CLEAR"


def test_an_answer_that_ends_is_spent_whole_if_a_state_came_and_not_at_all_if_none_did(world: Running) -> None:
    for came in (0, 1, 3):
        before = spent(world)
        answer = paid(world, 3)
        for _ in range(came):
            send(world, answer, np.zeros(answer["numbers"]))
        ended = world.http.delete(f"/v1/split/{answer['id']}", headers=world.headers())
        assert ended.json() == {"released": came}
        assert spent(world) - before == (answer["privacy"]["release"]["nano_rho"] if came else 0)
        assert send(world, answer, np.zeros(answer["numbers"])).status_code == 404


def test_silent_answers_end_and_their_number_is_bounded(tmp_path: Path) -> None:
    with running(tmp_path) as world:
        splits: Any = world.service.splits
        splits._most = 2
        first = paid(world, 1)
        send(world, first, np.zeros(first["numbers"]))
        paid(world, 1)
        before = spent(world)
        full = world.post("/v1/split", {"model": "split", "releases": 1})
        assert (full.status_code, full.headers["retry-after"]) == (503, "5") and spent(world) == before
        with mock.patch.object(adapters.time, "monotonic", lambda: 1e12):
            splits.sweep()
        assert spent(world) == first["privacy"]["release"]["nano_rho"]  # of which a state came; the other is freed
        assert world.post("/v1/split", {"model": "split", "releases": 1}).status_code == 200


def test_states_are_limited_by_the_hour_because_so_many_as_are_wide_tell_the_adapter(tmp_path: Path) -> None:
    with running(tmp_path, limits={"adapter_states_per_hour": 3}) as world:
        answer = paid(world, 5)
        statuses = [send(world, answer, np.zeros(answer["numbers"])) for _ in range(5)]
        assert [each.status_code for each in statuses] == [200, 200, 200, 429, 429]
        assert 3500 < int(statuses[3].headers["retry-after"]) <= 3601
        world.http.delete(f"/v1/split/{answer['id']}", headers=world.headers())
        assert spent(world) == answer["privacy"]["release"]["nano_rho"]


def test_in_rank_space_coordinates_are_taken_and_A_is_given_to_who_paid(ranked: Running, world: Running) -> None:
    answer = paid(ranked, 2)
    A, B, scaling = pair()
    path = f"/v1/split/{answer['id']}/A"
    found = np.frombuffer(ranked.http.get(path, headers=ranked.headers()).content, "<f4").reshape(A.shape)
    assert np.array_equal(found, A.astype("<f4")) and (answer["space"], answer["numbers"]) == ("rank", A.shape[0])
    assert ranked.http.get(path, headers=ranked.headers("bob")).status_code == 404
    z = np.linspace(-1, 1, A.shape[0])
    assert np.allclose(np.frombuffer(send(ranked, answer, z).content, "<f4"), 0.5 * scaling * (B @ z), rtol=1e-5, atol=1e-6)
    assert send(ranked, answer, np.zeros(A.shape[1])).status_code == 400
    other = paid(world, 1)
    assert world.http.get(f"/v1/split/{other['id']}/A", headers=world.headers()).json()["error"]["code"] == "SPACE"


# --- the client's side --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", ["state", "rank"])
def test_base_here_and_adapter_there_say_what_the_adapted_model_says(world: Running, ranked: Running, space: str) -> None:
    served = world if space == "state" else ranked
    model, tokenizer = base()
    with without_noise(), client(served).split("split", 12, at_most=1e6) as split:
        split.terms["shrink"] = 1.0
        factor = 2.0 if space == "rank" else 1.0  # the server's public factor is a half there
        text = generate(model, tokenizer, "the boat of", lambda state: factor * split.delta(state), max_tokens=12)
    assert text == adapted("the boat of", 12)


def test_the_noise_of_the_client_is_that_of_the_terms_and_of_no_two_states_the_same(world: Running) -> None:
    split = client(world).split("split", 64, epsilon=4.0)
    sent: list[np.ndarray] = []
    plain = split._client._octets

    def watched(method: str, path: str, body: bytes | None = None) -> bytes:
        assert body is not None
        sent.append(np.frombuffer(body, "<f4"))
        return plain(method, path, body)

    split._client._octets = watched  # type: ignore[method-assign]
    state = np.full(32, 1e3)  # far above the clip norm
    for _ in range(64):
        split.delta(state)
    with pytest.raises(NotPaid):
        split.delta(state)
    clipped = np.full(32, 1 / 32**0.5)
    noise = (np.array(sent) - clipped) / float(split.terms["sigma"])
    count = noise.size
    assert abs(noise.mean()) < 5 / count**0.5 and abs(noise.var() - 1) < 5 * (2 / count) ** 0.5
    assert len({each.tobytes() for each in sent}) == 64
    split.end()


def test_an_answer_that_ends_early_is_filled_up_with_released_zeros(world: Running) -> None:
    before = len(world.service.splits._held)  # type: ignore[union-attr]
    with client(world).split("split", 9, at_most=4.0) as split:
        split.delta(np.ones(32))
        split.delta(np.ones(32))
        identity = split.terms["id"]
        held = world.service.splits._held[identity]  # type: ignore[union-attr]
    assert (split.answer.made, held.left) == (9, 0) and len(world.service.splits._held) == before  # type: ignore[union-attr]


LIES: list[dict[str, Any]] = [
    {"sigma": 0.02}, {"sigma": 0.0}, {"sigma": float("nan")}, {"clip": 100.0}, {"delta": 0.4}, {"releases": 500},
    {"adjacency": "replace_null", "sigma": 4.6}, {"adjacency": "none"}, {"sigma": 3.0}, {"sigma": 3.0, "epsilon": 4.0},
]  # fmt: skip


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_a_client_takes_no_terms_that_are_worth_less_than_it_asked_for(world: Running, lie: dict[str, Any]) -> None:
    """Who reads the states is the server: it must not choose how little hides them."""
    made = client(world)
    plain = made._json

    def lying(method: str, path: str, **asked: Any) -> Any:
        found = plain(method, path, **asked)
        return {**found, **lie} if path == "/v1/split" else found

    with mock.patch.object(made, "_json", lying), pytest.raises(DptrainError):
        made.split("split", 5, epsilon=2.0).delta(np.ones(32))


def test_a_client_says_the_most_that_it_takes_and_no_server_chooses_it(world: Running) -> None:
    made = client(world)
    before = spent(world)
    with pytest.raises(DptrainError, match="EPSILON"):
        made.split("split", 5)
    assert spent(world) == before
    assert made.split("split", 5, at_most=4.0).answer.worth.epsilon == pytest.approx(4.0, rel=1e-6)
    with pytest.raises(ServerRefused, match="TERMS"):
        made.split("split", 5, at_most=3.9)


def test_a_client_hears_why_it_was_refused(world: Running) -> None:
    made = client(world)
    with pytest.raises(ServerRefused, match="MODEL") as refused:
        made.complete("nothing", "the boat")
    assert (refused.value.status, refused.value.kind) == (404, "invalid_request_error")
    with pytest.raises(ServerRefused, match="PROMPT"):
        list(made.stream("plain", ""))
    said = "".join(piece["choices"][0]["text"] for piece in made.stream("plain", "the boat", temperature=0, max_tokens=6))
    whole = made.complete("plain", "the boat", temperature=0, max_tokens=6)["choices"][0]["text"]
    assert said == whole == adapted("the boat", 6)
    assert made.budget()["unit"] == "user:anna" and {each["id"] for each in made.models()} == {"plain", "released", "split"}


def test_a_client_sends_its_token_to_no_other_server() -> None:
    asked: list[httpx.Request] = []

    def elsewhere(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(307, headers={"location": "http://elsewhere.example/v1/models"})

    made = remote.Client("http://here.example", "dpt_x", transport=httpx.MockTransport(elsewhere))
    with pytest.raises(ServerRefused):
        made.models()
    assert [request.url.host for request in asked] == ["here.example"]


def test_a_state_is_answered_only_while_rights_admit_its_adapter(tmp_path: Path) -> None:
    with running(tmp_path) as world:
        answer, gate = paid(world, 3), world.service.gate
        state = np.zeros(answer["numbers"])
        assert send(world, answer, state).status_code == 200
        with mock.patch.object(gate, "admit", side_effect=RightsRefused("REVOKED", "the rights were revoked")):
            late = send(world, answer, state)
        assert (late.status_code, late.json()["error"]["code"]) == (403, "REVOKED")
        assert send(world, answer, state).status_code == 200
        assert send(world, answer, state).json()["error"]["code"] == "NOT_RESERVED"  # the late one came all the same


@pytest.mark.parametrize("ends", [None, 1, 3])
def test_as_many_states_leave_a_client_wherever_its_text_ends(ends: int | None) -> None:
    """One after each run of the model, so that times tell nothing either."""
    base = model_folders()[0]
    model, words = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    order: list[str] = []
    model.register_forward_pre_hook(lambda *given: order.append("run"))

    def delta(state: np.ndarray) -> np.ndarray:
        order.append("state")
        found = np.zeros(model.config.vocab_size)
        found[words.eos_token_id if ends is not None and order.count("state") >= ends else 5] = 1e6
        return found

    text = generate(model, words, "the boat", delta, max_tokens=6)
    assert order == ["run", "state"] * 6 and len(text.split()) == (6 if ends is None else ends - 1)
