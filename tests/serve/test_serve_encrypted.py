"""Adapters for encrypted states: what they answer, what they refuse unread, and what such a server does not have."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tenseal", reason="pip install 'dptrain[he]'")
pytest.importorskip("zstandard", reason="pip install 'dptrain[he]'")

import tenseal

from dptrain.inference import release as releases
from dptrain.inference.gaussian import sigma_analytic
from dptrain.inference.he import scheme
from dptrain.inference.he.client import HEKeys
from dptrain.inference.release import GaussianRelease
from dptrain.inference.remote import Client, Encrypted, ServerRefused, generate
from dptrain.serve import service as services
from dptrain.serve.access import add_token
from ledger.release import Rights
from tests.worlds.elsewhere import adapted, base, client, pair
from tests.worlds.listening import events
from tests.worlds.servers import CLASSES, ENCRYPTED, Running, running

RICH = {"caps": {"user": {"epsilon": 5000.0, "delta": 1e-5}}}


@pytest.fixture(scope="module")
def keys() -> HEKeys:
    return HEKeys.generate(64)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory, keys: HEKeys) -> Iterator[Running]:
    """A server as `dptrain serve --he` makes it, which has anna's keys."""
    with running(tmp_path_factory.mktemp("sealed"), encrypted_only=True, classes=CLASSES | ENCRYPTED) as found:
        assert register(found, keys.public).status_code == 200
        yield found


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("both"), classes=CLASSES | ENCRYPTED, budget=RICH) as found:
        yield found


def register(world: Running, bundle: bytes, who: str = "anna") -> Any:
    return world.http.post("/v1/he/keys?model=he", headers=world.headers(who), content=bundle)


def ask(world: Running, body: bytes, who: str = "anna", model: str = "he") -> Any:
    return world.http.post(f"/v1/he/lora?model={model}", headers=world.headers(who), content=body)


def exact(state: np.ndarray) -> np.ndarray:
    A, B, scaling = pair()
    return scaling * (B @ (A @ state))


def test_an_encrypted_state_is_answered_within_a_millionth(sealed: Running, keys: HEKeys) -> None:
    state = np.random.default_rng(0).normal(size=32)
    for _ in range(2):
        answer = ask(sealed, keys.encrypt(state))
        assert answer.status_code == 200 and np.abs(keys.decrypt(answer.content) - exact(state)).max() < 1e-6


def test_a_websocket_answers_one_encrypted_state_after_another(sealed: Running, keys: HEKeys) -> None:
    with sealed.http.websocket_connect("/v1/he/stream?model=he", headers=sealed.headers()) as line:
        for seed in range(3):
            state = np.random.default_rng(seed).normal(size=32)
            line.send_bytes(keys.encrypt(state))
            assert np.abs(keys.decrypt(line.receive_bytes()) - exact(state)).max() < 1e-6


def test_the_base_here_and_the_adapter_under_encryption_say_what_the_adapted_model_says(both: Running) -> None:
    model, tokenizer = base()
    made = client(both)
    with made.encrypted("he", HEKeys.generate(64)) as remote:
        text = generate(model, tokenizer, "the boat of", remote.delta, max_tokens=8)
    assert text == adapted("the boat of", 8) and len(remote.times) == 8
    assert all(part > 0 for times in remote.times for part in times)
    with pytest.raises(ServerRefused, match="NO_KEYS"):  # they were let go at the end
        remote.delta(np.ones(32))


CLEAR: list[bytes] = [
    b"", json.dumps({"state": [0.5] * 32}).encode(), json.dumps([0.5] * 32).encode(), np.ones(32, "<f4").tobytes(),
    np.ones(32, "<f8").tobytes(), np.ones(8192).tobytes(), b"\x93NUMPY" + np.ones(32).tobytes(), b"0.5 " * 32, bytes(331_000),
]  # fmt: skip


@pytest.mark.parametrize("body", CLEAR, ids=[repr(each[:12]) for each in CLEAR])
def test_a_state_in_clear_is_refused_with_nothing_computed(
    sealed: Running, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = sealed.service.encrypted.server  # type: ignore[union-attr]
    monkeypatch.setattr(type(server), "_product", lambda *given: pytest.fail("it was computed"))
    answer = ask(sealed, body)
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"
    with sealed.http.websocket_connect("/v1/he/stream?model=he", headers=sealed.headers()) as line:
        line.send_bytes(body)
        assert line.receive_json()["error"]["type"] == "invalid_request_error"


def test_a_state_in_clear_as_text_ends_the_conversation(sealed: Running) -> None:
    with sealed.http.websocket_connect("/v1/he/stream?model=he", headers=sealed.headers()) as line:
        line.send_text(json.dumps({"state": [0.5] * 32}))
        assert line.receive_json()["error"]["code"] == "STATE_IN_CLEAR"


def test_keys_that_bring_a_secret_one_are_refused_and_those_that_were_there_stay(sealed: Running, keys: HEKeys) -> None:
    seal = scheme.sealapi()
    generator = seal.KeyGenerator(scheme.context())
    with tempfile.NamedTemporaryFile() as file:
        generator.secret_key().save(file.name)
        secret = Path(file.name).read_bytes()
    whole = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40, 60])
    both = (whole.serialize(save_secret_key=True), keys.public + secret, secret + keys.public)
    for bundle in (secret, *both, b"", keys.public[:-1]):
        answer = register(sealed, bundle)
        assert answer.status_code == 400, answer.text
        assert secret[:40].hex() not in answer.text and len(answer.content) < 1000
    assert ask(sealed, keys.encrypt(np.ones(32))).status_code == 200


def test_states_are_computed_under_the_keys_of_who_asks_alone(sealed: Running, keys: HEKeys) -> None:
    state = keys.encrypt(np.ones(32))
    assert ask(sealed, state, "bob").json()["error"]["code"] == "NO_KEYS"
    other = HEKeys.generate(64)
    assert register(sealed, other.public, "bob").status_code == 200
    assert ask(sealed, state, "bob").json()["error"]["code"] == "WRONG_KEYS"
    assert ask(sealed, other.encrypt(np.ones(32)), "bob").status_code == 200
    assert ask(sealed, other.encrypt(np.ones(32)), "eve").json()["error"]["type"] == "rights_refused"
    sealed.http.delete("/v1/he/keys", headers=sealed.headers("bob"))
    assert ask(sealed, other.encrypt(np.ones(32)), "bob").json()["error"]["code"] == "NO_KEYS"
    assert ask(sealed, state).status_code == 200


def test_a_server_of_encrypted_adapters_has_no_route_for_text_and_no_base_model(sealed: Running) -> None:
    paths = set(sealed.http.get("/openapi.json").json()["paths"])
    assert not {path for path in paths if path.startswith(("/v1/completions", "/v1/chat", "/v1/split"))}
    assert {"/v1/he/keys", "/v1/he/lora"} <= paths
    assert not sealed.service.artifacts._models and sealed.service.till is None and sealed.service.releases is None
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/split"):
        assert sealed.post(path, {"model": "plain", "prompt": "the boat"}).status_code == 404
    with pytest.raises(Exception), sealed.http.websocket_connect("/v1/stream", headers=sealed.headers()) as line:  # noqa: B017
        line.send_json({"completion": {"model": "plain", "prompt": "the boat"}})
        line.receive_json()
    for model in ("plain", "released", "chain", "split"):
        assert ask(sealed, b"x", model=model).status_code == 404
    assert {each["id"] for each in sealed.http.get("/v1/models", headers=sealed.headers()).json()["data"]} == {"he"}
    assert not sealed.service._own_keys  # nothing here has a secret key


def test_states_under_encryption_are_limited_by_the_hour(tmp_path: Path, keys: HEKeys) -> None:
    with running(tmp_path, encrypted_only=True, classes=ENCRYPTED, limits={"adapter_states_per_hour": 2}) as world:
        register(world, keys.public)
        state = keys.encrypt(np.ones(32))
        assert [ask(world, state).status_code for _ in range(3)] == [200, 200, 429]
        with world.http.websocket_connect("/v1/he/stream?model=he", headers=world.headers()) as line:
            line.send_bytes(state)
            assert line.receive_json()["error"]["code"] == "RATE"


# --- noise, and then encryption -----------------------------------------------------------------------------------------


def test_the_chain_of_noise_and_encryption_answers_and_says_its_times(both: Running) -> None:
    body = {"model": "chain", "prompt": "the boat", "max_tokens": 3}
    whole = both.post("/v1/completions", body).json()
    pieces = events(both.post("/v1/completions", {**body, "stream": True}).text)
    for told in (whole["privacy"], pieces[-1]["privacy"]):
        assert set(told["times_ms"]) == {"encrypt", "product", "decrypt"} and min(told["times_ms"].values()) > 0
        assert told["release"]["releases"] == 3 and told["release"]["nano_rho"] > 0
    assert whole["usage"]["completion_tokens"] == 3


def test_the_chain_gives_what_the_adapter_gives_of_the_noised_state(both: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    plain = services._Reading._under_encryption

    def watched(self: Any, noised: np.ndarray) -> np.ndarray:
        found = plain(self, noised)
        seen.append((noised.copy(), found))
        return found

    kept: list[np.ndarray] = []
    noise = releases._noised
    monkeypatch.setattr(releases, "_noised", lambda *given: kept.append(noise(*given)) or kept[-1])
    monkeypatch.setattr(services._Reading, "_under_encryption", watched)
    assert both.complete("chain", max_tokens=3).status_code == 200
    assert len(seen) == 3
    for (noised, found), released in zip(seen, kept[:3], strict=True):
        assert np.array_equal(noised, released.astype(noised.dtype)) and np.abs(found - exact(noised)).max() < 1e-5


def test_in_split_mode_a_client_noises_and_then_encrypts(both: Running) -> None:
    class Paid:
        releases = 4

    class Meter:
        def reserve(self, count: int, **said: Any) -> Paid:
            return Paid()

    answer = GaussianRelease(1.0, adjacency="replace_one", delta=1e-5, epsilon=500.0, tokens=4).answer(Meter())
    model, tokenizer = base()
    with client(both).encrypted("he", HEKeys.generate(64)) as remote:
        chained = Encrypted(remote.client, remote.model, remote.keys, noise=answer)
        text = generate(model, tokenizer, "the boat", chained.delta, max_tokens=4)
    assert answer.made == 4 and len(chained.times) == 4 and text
    assert sigma_analytic(500.0, 1e-5, 2.0, 4) == answer.worth.sigma


def test_an_answer_that_cannot_be_encrypted_is_refused_before_it_is_paid(tmp_path: Path, keys: HEKeys) -> None:
    """Clients may hold all places for keys; the server's own are taken before any client comes."""
    with running(tmp_path, classes=CLASSES | ENCRYPTED, limits={"key_sessions": 1}) as world:
        register(world, keys.public)
        answer = world.complete("chain", max_tokens=1)
        spent = world.http.get("/v1/budgets/self", headers=world.headers()).json()["spent_nano_rho"]
        assert (answer.status_code == 200) == (spent > 0), answer.text


def test_no_client_can_take_the_place_of_the_servers_own_keys(tmp_path: Path, keys: HEKeys) -> None:
    with running(tmp_path, classes=CLASSES | ENCRYPTED) as world:
        token = add_token(world.config.tokens, "/64", rights=Rights({"pub": 4.0}))
    with running(tmp_path, classes=CLASSES | ENCRYPTED) as world:
        world.tokens["/64"] = token
        assert world.complete("chain", max_tokens=1).status_code == 200
        register(world, keys.public, "/64")
        assert world.complete("chain", max_tokens=1).status_code == 200


def test_the_client_of_the_package_sends_no_state_in_clear(both: Running) -> None:
    sent: list[bytes] = []
    made: Client = client(both)
    plain = made._octets

    def watched(method: str, path: str, body: bytes | None = None) -> bytes:
        sent.append(body or b"")
        return plain(method, path, body)

    made._octets = watched  # type: ignore[method-assign]
    state = np.random.default_rng(3).normal(size=32)
    with made.encrypted("he", HEKeys.generate(64)) as remote:
        remote.delta(state)
        remote.delta(state)
    whole = b"".join(sent)
    for each in state:
        assert np.float64(each).tobytes() not in whole
    assert sent[1] != sent[2]  # two encryptions of one state differ
