"""Asks a server: for text, or for an adapter that is applied to states of a model which runs here.

`Client` asks for text, in whole or as it is computed, and for texts from private references. `generate` runs a base model
of this process: the server has the adapter alone, and gets of every state what was released of it with noise (`Client.split`),
an encryption (`Client.encrypted`), or an encryption of what was released (both). Needs httpx, of the extra ``serve``.
"""

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dptrain.errors import ConfigError, DptrainError, NotPaid
from dptrain.inference.gaussian import Worth
from dptrain.inference.release import Answer
from ledger.errors import LedgerError

if TYPE_CHECKING:
    from dptrain.inference.he.client import HEKeys


class ServerRefused(DptrainError):
    """Tells that a server refused.

    Attributes:
        status: HTTP status. kind: ``type`` of the error. error: all that the server said of it.
    """

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(str(error.get("code", "ANSWER")), str(error.get("message", f"the server answered {status}")))
        self.status, self.kind, self.error = status, str(error.get("type", "")), error


def _told(code: str, sentence: str) -> ServerRefused:
    """Returns what this side says of an answer that began well."""
    return ServerRefused(200, {"code": code, "message": sentence})


class Client:
    """Asks one server as one client.

    Args:
        url: of the server. token: of the client. rights: a signed envelope that goes with every request.
        transport: of httpx, for tests.
    """

    def __init__(
        self, url: str, token: str, *, rights: bytes | None = None, timeout: float = 120.0, transport: Any = None
    ) -> None:
        import httpx

        headers = {"Authorization": f"Bearer {token.strip()}"}
        if rights is not None:
            headers["Dptrain-Rights"] = base64.urlsafe_b64encode(rights).decode().rstrip("=")
        self._http: httpx.Client = httpx.Client(base_url=url, headers=headers, timeout=timeout, transport=transport)

    def complete(self, model: str, prompt: str, **asked: Any) -> dict[str, Any]:
        """Returns a whole answer. ``asked``: other fields of the request, as ``max_tokens`` or ``epsilon``.

        Raises:
            ServerRefused: code EXHAUSTED where the budget does not hold it, and others.
        """
        return self._json("POST", "/v1/completions", json={"model": model, "prompt": prompt, **asked})

    def chat(self, model: str, messages: list[dict[str, str]], **asked: Any) -> dict[str, Any]:
        """Returns a whole answer to a chat. Raises ServerRefused."""
        return self._json("POST", "/v1/chat/completions", json={"model": model, "messages": messages, **asked})

    def stream(self, model: str, prompt: str, **asked: Any) -> Iterator[dict[str, Any]]:
        """Yields an answer as it is computed: chunks as OpenAI has them. Raises ServerRefused, in the middle too."""
        return self._events("/v1/completions", {"model": model, "prompt": prompt, "stream": True, **asked})

    def generate(
        self, generation: str, *, labels: dict[str, str] | None = None, query: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yields a text that the server draws from private references, token by token: chunks as OpenAI has them.

        Each chunk has its text in ``choices``; the first one and the last one say in ``privacy`` what the text is worth to a
        reference. Whoever stops reading ends the text, and what was never computed goes back to the references.

        Args:
            generation: its name. labels: a word for each of its labels, of the server's lists; `models` has both.
            query: public, where the generation retrieves its references; nothing protects it.

        Raises:
            ServerRefused: code EXHAUSTED where no references are left that can pay, and others, in the middle too.
        """
        asked = {"generation": generation, "labels": labels or {}, "stream": True}
        return self._events("/v1/dp/generations", asked if query is None else {**asked, "query": query})

    def budget(self, unit: str = "self") -> dict[str, Any]:
        """Returns what a unit has spent of its cap. Raises ServerRefused."""
        return self._json("GET", f"/v1/budgets/{unit}")

    def models(self) -> list[dict[str, Any]]:
        """Returns the generation classes. Raises ServerRefused."""
        found: list[dict[str, Any]] = self._json("GET", "/v1/models")["data"]
        return found

    def split(
        self,
        model: str,
        releases: int,
        *,
        epsilon: float | None = None,
        at_most: float | None = None,
        delta: float = 1e-5,
        adjacency: str = "replace_one",
        **asked: Any,
    ) -> "Split":
        """Pays for the states of one answer that is generated here.

        Args:
            releases: most tokens of the answer; all are paid. epsilon: of the answer, where the server lets a request choose.
            at_most: largest epsilon that is taken, by default ``epsilon``. One of the two is given: who reads the states is the
                server, so its word for their noise does not do. delta, adjacency: at which it is judged. asked: ``session``.

        Raises:
            ConfigError: code EPSILON, neither is given.
            ServerRefused: code EXHAUSTED, and others; TERMS, the noise of the server is worth less than was asked for.
        """
        if epsilon is None and at_most is None:
            sentence = "the server would choose its own noise"
            raise ConfigError("EPSILON", f"{sentence}; give epsilon, or at_most, the most that you take")
        body = {"model": model, "releases": releases, **({} if epsilon is None else {"epsilon": epsilon}), **asked}
        terms = self._json("POST", "/v1/split", json=body)
        most = epsilon if at_most is None else at_most
        assert most is not None
        return Split(self, terms, _judged(terms, releases, most, delta, adjacency))

    @contextmanager
    def encrypted(self, model: str, keys: "HEKeys") -> Iterator["Encrypted"]:
        """Registers the public keys of a client, and lets them go at the end. Raises ServerRefused."""
        self._octets("POST", f"/v1/he/keys?model={model}", keys.public)
        try:
            yield Encrypted(self, model, keys)
        finally:
            self._json("DELETE", "/v1/he/keys")

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

    def _events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        with self._http.stream("POST", path, json=body) as answer:
            if answer.status_code != 200:
                answer.read()
                raise _refusal(answer)
            whole = False
            for line in answer.iter_lines():
                whole |= line == "data: [DONE]"
                if not line.startswith("data: ") or whole:
                    continue
                found = json.loads(line[6:])
                if "error" in found:
                    raise ServerRefused(200, found["error"])
                yield found
        if not whole:
            sentence = "the answer broke off before its end; what came of it is no whole text"
            raise _told("BROKEN_OFF", f"{sentence}, and is paid for; ask again")

    def _json(self, method: str, path: str, **asked: Any) -> Any:
        answer = self._http.request(method, path, **asked)
        if answer.status_code != 200:
            raise _refusal(answer)
        return answer.json()

    def _octets(self, method: str, path: str, body: bytes | None = None) -> bytes:
        answer = self._http.request(method, path, content=body, headers={"Content-Type": "application/octet-stream"})
        if answer.status_code != 200:
            raise _refusal(answer)
        return answer.content


def _refusal(answer: Any) -> ServerRefused:
    try:
        error = {**answer.json()["error"]}
    except (ValueError, KeyError, TypeError):
        error = {"code": "ANSWER", "message": f"the server answered {answer.status_code} and no reason"}
    return ServerRefused(answer.status_code, error)


def _judged(terms: dict[str, Any], releases: int, most: float, delta: float, adjacency: str) -> Worth:
    """Returns what the releases of an answer are worth, by this package's own figures.

    Guarantee: the noise that a server chooses is used only if it is worth what was asked for: who reads the states is the
    server.

    Raises:
        ServerRefused: code TERMS.
    """
    try:
        clip, sigma, chance = (float(terms[name]) for name in ("clip", "sigma", "delta"))
        worth = Worth(clip, sigma, chance, int(terms["releases"]), str(terms["adjacency"]))
        said, found = float(terms["epsilon"]), worth.of(adjacency)
    except (LedgerError, KeyError, TypeError, ValueError) as error:
        raise ServerRefused(200, {"code": "TERMS", "message": f"the server's terms are no release: {error}"}) from error
    limit = most * (1.0 + 1e-6)
    if worth.releases != releases or chance > delta or not (found <= limit and worth.epsilon <= said * (1.0 + 1e-6)):
        asked = f"{releases} releases, at most epsilon {limit:.6g} at delta {delta:g} ({adjacency})"
        sentence = f"the server's terms are: {worth.sentence}; they say epsilon {said:.6g}, and {asked} was asked for"
        raise ServerRefused(200, {"code": "TERMS", "message": f"{sentence}; nothing is released"})
    return worth


@dataclass
class _Paid:
    """Says that the server holds the reservation; each is for one answer."""

    releases: int

    def reserve(self, releases: int, *, mechanism: str, nano_rho: int) -> "_Paid":
        """Returns itself: it was reserved before this was made."""
        return self


class Split:
    """Is one answer in split mode: states are released here, under the noise that was paid for, and sent.

    Guarantee: no state leaves this process but as `Answer.release` gives it, and `end` fills the answer up with releases of
    zeros, so that their number tells nothing.
    """

    def __init__(self, client: Client, terms: dict[str, Any], worth: Worth) -> None:
        """``terms``: what the server answered. ``worth``: what their noise was found to be worth; `Client.split` judges it."""
        self._client, self.terms, self.privacy = client, terms, terms["privacy"]
        self.answer = Answer(worth, _Paid(worth.releases))
        self._inner = None
        if terms["space"] == "rank":
            found = np.frombuffer(client._octets("GET", f"/v1/split/{terms['id']}/A"), "<f4").astype(np.float64)
            self._inner = found.reshape(int(terms["numbers"]), -1)

    @property
    def left(self) -> int:
        """States that are paid for and not released."""
        return self.answer.worth.releases - self.answer.made

    def delta(self, state: np.ndarray) -> np.ndarray:
        """Returns what the adapter adds to the scores, of a state of shape (D,). Raises ServerRefused, NotPaid."""
        clear = np.asarray(state, dtype=np.float64)
        return self._sent(clear if self._inner is None else self._inner @ clear)

    def _sent(self, values: np.ndarray) -> np.ndarray:
        noised = self.answer.release(values).state
        found = self._client._octets("POST", f"/v1/split/{self.terms['id']}", noised.astype("<f4").tobytes())
        return np.frombuffer(found, "<f4").astype(np.float64)

    def end(self) -> None:
        """Fills the answer up, and ends it."""
        while 0 < self.answer.made < self.answer.worth.releases:
            self._sent(np.zeros(int(self.terms["numbers"])))
        self._client._json("DELETE", f"/v1/split/{self.terms['id']}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self.end()


@dataclass
class Encrypted:
    """Applies the adapter of a server to states that leave this process encrypted alone.

    Attributes:
        noise: what is released in place of a state before it is encrypted, None for the state itself.
        times: seconds of encryption, of the way and the product, and of decryption, for each state.
    """

    client: Client
    model: str
    keys: "HEKeys"
    noise: Answer | None = None
    times: list[tuple[float, float, float]] = field(default_factory=list)

    def delta(self, state: np.ndarray) -> np.ndarray:
        """Returns what the adapter adds to the scores, of a state of shape (D,). Raises ServerRefused, EncryptionRefused."""
        values = np.asarray(state, dtype=np.float64)
        marks = [time.perf_counter()]
        sent = self.keys.encrypt(values if self.noise is None else self.noise.release(values).state)
        marks.append(time.perf_counter())
        came = self.client._octets("POST", f"/v1/he/lora?model={self.model}", sent)
        marks.append(time.perf_counter())
        found = self.keys.decrypt(came)
        marks.append(time.perf_counter())
        self.times.append((marks[1] - marks[0], marks[2] - marks[1], marks[3] - marks[2]))
        return found


def generate(
    model: Any,
    tokenizer: Any,
    prompt: str,
    delta: Callable[[np.ndarray], np.ndarray],
    *,
    max_tokens: int = 64,
    temperature: float = 0.0,
    seed: int | None = None,
) -> str:
    """Generates with a model of this process, and an adapter that is elsewhere.

    Guarantee: exactly ``max_tokens`` states are given to ``delta``, one after each run of the model, wherever the text ends: so
    neither their number nor their times tell whoever applies the adapter of it.

    Args:
        model: causal language model of transformers, the base below the adapter. delta: `Split.delta` or `Encrypted.delta`.

    Returns:
        The text behind the prompt.

    Raises:
        NotPaid: code NOT_RESERVED, fewer states are paid for than tokens asked.
    """
    import torch

    paid = getattr(getattr(delta, "__self__", None), "left", max_tokens)
    if max_tokens > paid:
        sentence = f"max_tokens is {max_tokens}, and {paid} states are paid for"
        raise NotPaid("NOT_RESERVED", f"{sentence}; ask for fewer tokens, or pay for as many by Client.split(releases=)")
    numbers = torch.Generator()
    if seed is None:
        numbers.seed()
    else:
        numbers.manual_seed(seed)

    def add(module: Any, inputs: tuple[Any, ...], scores: Any) -> Any:
        found = delta(inputs[0].detach().reshape(-1).cpu().double().numpy())
        return scores + torch.from_numpy(found).to(scores.device, scores.dtype)

    hook = model.get_output_embeddings().register_forward_hook(add)
    try:
        given, cache, ids = torch.tensor([tokenizer(prompt)["input_ids"]]), None, []
        with torch.inference_mode():
            while len(ids) < max_tokens:
                found = model(input_ids=given, past_key_values=cache, use_cache=True, logits_to_keep=1, return_dict=True)
                cache, scores = found.past_key_values, found.logits[0, -1].double()
                if temperature:
                    ids.append(int(torch.multinomial(torch.softmax(scores / temperature, -1), 1, generator=numbers)))
                else:
                    ids.append(int(scores.argmax()))
                given = torch.tensor([[ids[-1]]])
    finally:
        hook.remove()
    if tokenizer.eos_token_id in ids:
        ids = ids[: ids.index(tokenizer.eos_token_id)]
    before = tokenizer(prompt)["input_ids"]  # by itself a text is written without its leading space
    whole: str = tokenizer.decode([*before, *ids], skip_special_tokens=True)
    return whole[len(tokenizer.decode(before, skip_special_tokens=True)) :]
