"""What a server answers: the tokens of the artifact that rights admit, in OpenAI's shape, and the same alone or in a crowd."""

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dptrain.serve import decoding
from dptrain.serve.decoding import Served, Text
from tests.worlds.listening import events, said, spoken
from tests.worlds.servers import Running, model_folders

OF = Served.of
"""As the program has it; the tests' own answers do not end at a token."""

PROMPT = "the boat of the harbour"


def reference(prompt: str = PROMPT, tokens: int = 12, *, adapted: bool = True, **how: Any) -> str:
    """Returns what transformers generates greedily from the files of the release, which no code of the server has loaded."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base, release = model_folders()
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    model: Any = AutoModelForCausalLM.from_pretrained(base).eval()
    if adapted:
        model = PeftModel.from_pretrained(model, release / "pub").eval()
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    found = model.generate(input_ids=ids, max_new_tokens=tokens, do_sample=False, pad_token_id=0, **how)
    return tokenizer.decode(found[0], skip_special_tokens=True)[len(tokenizer.decode(ids[0], skip_special_tokens=True)) :]


def text_of(answer: Any) -> str:
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def greedy(world: Running, client: str = "anna", **asked: Any) -> Any:
    return world.complete("plain", client, **{"prompt": PROMPT, "temperature": 0, "max_tokens": 12, **asked})


def test_a_greedy_answer_is_the_greedy_generation_of_the_adapted_model(world: Running) -> None:
    answer = greedy(world)
    assert text_of(answer) == reference() != reference(adapted=False)
    assert answer.json()["privacy"]["artifact"] == "adapter:pub"


def test_who_may_hear_of_no_class_is_answered_by_the_base_and_by_nothing_of_the_adapter(world: Running) -> None:
    answer = greedy(world, "eve")
    assert text_of(answer) == reference(adapted=False)
    assert (answer.json()["privacy"]["artifact"], answer.json()["privacy"]["influenced_by"]) == ("base", {})


def test_what_the_adapter_adds_to_one_answer_is_in_no_other(world: Running) -> None:
    """The base and the adapted model share tensors: an adapter of one answer must not be active in another."""
    for _ in range(2):
        assert text_of(greedy(world, "eve")) == reference(adapted=False)
        assert text_of(greedy(world)) == reference()


@pytest.mark.parametrize("model", ["plain", "released"])
def test_an_answer_has_the_fields_of_openai_and_says_what_it_rests_on(world: Running, model: str) -> None:
    found = world.complete(model, user="somebody").json()
    assert set(found) == {"id", "object", "created", "model", "choices", "usage", "privacy"}
    assert (found["object"], found["model"]) == ("text_completion", model) and found["id"].startswith("cmpl-")
    (choice,) = found["choices"]
    assert set(choice) == {"index", "text", "finish_reason", "logprobs"} and choice["finish_reason"] in ("length", "stop")
    computed = found["usage"]["completion_tokens"]  # 8, or fewer where the end is drawn
    assert computed == 8 if choice["finish_reason"] == "length" else 1 <= computed <= 8
    assert isinstance(found["created"], int)
    assert found["usage"] == {"prompt_tokens": 2, "completion_tokens": computed, "total_tokens": 2 + computed}
    assert found["privacy"]["influenced_by"] == {"pub": 4.0} and found["privacy"]["ledger_size"] == 7


def test_pieces_by_events_and_by_websocket_are_the_whole_answer(world: Running) -> None:
    body = {"model": "plain", "prompt": PROMPT, "temperature": 0, "max_tokens": 12}
    by_events = events(world.post("/v1/completions", {**body, "stream": True}).text)
    by_socket = spoken(world, body)
    for pieces in (by_events, by_socket):
        assert said(pieces) == reference()
        assert [piece["choices"][0]["finish_reason"] for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
        assert len({piece["id"] for piece in pieces}) == 1 and {piece["object"] for piece in pieces} == {"text_completion"}
        assert pieces[0]["privacy"]["artifact"] == pieces[-1]["privacy"]["artifact"] == "adapter:pub"
        assert pieces[-1]["usage"]["completion_tokens"] == 12 and len(pieces) > 6  # as they are computed, not at the end


def test_events_are_named_as_such_and_are_kept_by_no_cache(world: Running) -> None:
    answer = world.complete("plain", stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream") and answer.headers["cache-control"] == "no-store"


def test_one_websocket_answers_one_request_after_another(world: Running) -> None:
    body = {"model": "plain", "prompt": PROMPT, "temperature": 0, "max_tokens": 5}
    with world.http.websocket_connect("/v1/stream", headers=world.headers()) as socket:
        for tokens in (5, 3, 7):
            socket.send_json({"completion": {**body, "max_tokens": tokens}})
            pieces = []
            while (found := socket.receive_json()) != {"done": True}:
                pieces.append(found)
            assert said(pieces) == reference(tokens=tokens)


# --- where an answer ends ---------------------------------------------------------------------------------------------


def test_an_answer_ends_before_a_stop_string_which_is_never_sent(world: Running) -> None:
    whole = reference(tokens=12)
    words = whole.split()
    stop = f"{words[2]} {words[3]}"  # over two tokens: the first is held back until the second has come
    answer = greedy(world, stop=["never", stop]).json()["choices"][0]
    assert answer["text"] == whole[: whole.index(stop)] and answer["finish_reason"] == "stop"
    pieces = events(greedy(world, stop=["never", stop], stream=True).text)
    assert said(pieces) == answer["text"] and pieces[-1]["choices"][0]["finish_reason"] == "stop"


def test_of_several_stop_strings_the_first_in_the_text_ends_it(world: Running) -> None:
    whole = reference(tokens=12)
    words = whole.split()
    assert greedy(world, stop=[words[5], words[1]]).json()["choices"][0]["text"] == whole[: whole.index(words[1])]


def test_what_is_held_back_for_a_stop_string_that_does_not_come_is_sent(world: Running) -> None:
    whole = reference(tokens=12)
    assert said(events(greedy(world, stop=[f"{whole[-6:]}x", "zzz"], stream=True).text)) == whole


def test_an_answer_ends_at_the_end_of_text_token_as_that_of_transformers(world: Running) -> None:
    served = world.service.artifacts.model("adapter:pub")
    ids = served.tokenizer(reference(tokens=12))["input_ids"]
    changed = replace(served, stops=frozenset({ids[3]}))
    with mock.patch.dict(world.service.artifacts._models, {"adapter:pub": changed}):
        answer = greedy(world).json()
    whole = reference(tokens=12, eos_token_id=ids[3])
    kept = " " + served.tokenizer.decode(served.tokenizer(whole)["input_ids"][: ids.index(ids[3])])
    assert answer["choices"][0]["text"] == kept and answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == ids.index(ids[3]) + 1


def test_an_answer_ends_at_the_tokens_that_model_and_tokenizer_name() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = model_folders()[0]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert OF(model, tokenizer).stops == {2}
    model.generation_config.eos_token_id = [7, 9]
    assert OF(model, tokenizer).stops == {2, 7, 9}


class Bytes:
    """A tokenizer of bytes: characters of several bytes come in several tokens."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return bytes(ids).decode("utf-8", "replace")


@settings(max_examples=300, deadline=None)
@given(st.text("abé€", max_size=14), st.lists(st.text("abé€", min_size=1, max_size=4), max_size=4))
def test_pieces_are_the_text_before_the_first_stop_string_whatever_both_are(text: str, stops: list[str]) -> None:
    made, pieces, stopped = Text(Bytes(), stops), [], False
    for token in text.encode():
        piece, stopped = made.add(token)
        pieces.append(piece)
        assert "\ufffd" not in piece
        if stopped:
            break
    pieces.append("" if stopped else made.rest())
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    # Which one is complete first ends the answer; of those that end with one token the one that begins first.
    last = min((end for end, _ in ends), default=None)
    expected = text if last is None else text[: min(begin for end, begin in ends if end == last)]
    assert "".join(pieces) == expected and stopped == bool(ends)


# --- sampling ---------------------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_answer_again_and_none_another(world: Running) -> None:
    how = {"temperature": 3.0, "max_tokens": 24}
    assert text_of(world.complete("plain", seed=5, **how)) == text_of(world.complete("plain", seed=5, **how))
    others = [text_of(world.complete("plain", **how)) for _ in range(3)] + [text_of(world.complete("plain", seed=6, **how))]
    assert len(set(others)) == 4


def test_a_small_nucleus_is_greedy(world: Running) -> None:
    assert text_of(greedy(world, temperature=1.0, top_p=1e-6)) == reference()


def test_sampling_follows_the_temperature_and_keeps_to_the_nucleus() -> None:
    scores, numbers = torch.tensor([2.0, 1.0, 0.0, -1.0]), torch.Generator().manual_seed(1)
    drawn = [decoding.sample(scores, 2.0, 1.0, numbers) for _ in range(4000)]
    for token, chance in enumerate(torch.softmax(scores / 2.0, 0).tolist()):
        assert abs(drawn.count(token) / 4000 - chance) < 5 * (chance * (1 - chance) / 4000) ** 0.5
    inside = {decoding.sample(scores, 2.0, 0.6, numbers) for _ in range(400)}
    assert inside == {0, 1}  # .46 and .28: the second crosses .6


# --- what is refused --------------------------------------------------------------------------------------------------

UNFIT: list[dict[str, Any]] = [
    {"n": 2}, {"n": 0}, {"best_of": 2}, {"logprobs": 5}, {"echo": True}, {"logit_bias": {"5": 100}}, {"suffix": "x"},
    {"presence_penalty": 1.0}, {"use_beam_search": True}, {"prompt_logprobs": 1}, {"temperature": -0.1}, {"temperature": 101},
    {"top_p": 0}, {"top_p": 1.01}, {"max_tokens": 0}, {"max_tokens": -1}, {"max_tokens": 65}, {"max_tokens": "many"},
    {"seed": -1}, {"seed": 1 << 63}, {"stop": [""]}, {"stop": ["a"] * 5}, {"stop": ["a" * 201]}, {"prompt": ["the", "boat"]},
    {"prompt": [1, 2]}, {"prompt": None}, {"prompt": ""}, {"prompt": "the " * 65}, {"model": "p" * 201}, {"session": "A b"},
    {"epsilon": 1.0}, {"session": "s"}, {"stream": "perhaps"}, {"messages": []}, {"artifact": "adapter:pub"},
]  # fmt: skip


@pytest.mark.parametrize("asked", UNFIT, ids=lambda asked: "-".join(f"{k}={str(v)[:12]}" for k, v in asked.items()))
def test_a_request_that_is_not_in_form_is_refused_and_computes_nothing(world: Running, asked: dict[str, Any]) -> None:
    before = len(world.calls)
    answer = world.post("/v1/completions", {"model": "plain", "prompt": "the boat", **asked})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error" and error["code"] and error["message"]
    assert len(world.calls) == before


def test_a_class_that_is_not_there_is_404_and_one_of_another_mode_says_its_route(world: Running) -> None:
    assert world.complete("nothing").json()["error"]["code"] == "MODEL" and world.complete("nothing").status_code == 404
    answer = world.complete("split")
    assert answer.status_code == 400 and "/v1/split" in answer.json()["error"]["message"]


# --- chat -------------------------------------------------------------------------------------------------------------

HELLO = [{"role": "system", "content": "storm"}, {"role": "user", "content": "the boat"}]
TEMPLATE = "{% for m in messages %}{{ m.content }} . {% endfor %}{% if add_generation_prompt %}crew{% endif %}"


def test_a_chat_without_a_template_is_refused_and_one_with_it_is_answered(world: Running) -> None:
    body = {"model": "plain", "messages": HELLO, "temperature": 0, "max_tokens": 12}
    refused = world.post("/v1/chat/completions", body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "CHAT")
    tokenizer = world.service.artifacts.model("adapter:pub").tokenizer
    with mock.patch.object(tokenizer, "chat_template", TEMPLATE):
        answer = world.post("/v1/chat/completions", body).json()
        pieces = events(world.post("/v1/chat/completions", {**body, "stream": True}).text)
        by_socket = spoken(world, body, kind="chat")
    expected = reference("storm . the boat . crew")
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": expected}
    assert answer["object"] == "chat.completion" and answer["usage"]["prompt_tokens"] == 6
    assert said(pieces) == said(by_socket) == expected and {piece["object"] for piece in pieces} == {"chat.completion.chunk"}


def test_a_message_of_an_unknown_role_or_with_more_fields_is_refused(world: Running) -> None:
    for message in ({"role": "tool", "content": "x"}, {"role": "user", "content": "x", "name": "y"}, {"role": "user"}):
        assert world.post("/v1/chat/completions", {"model": "plain", "messages": [message]}).status_code == 400


# --- a crowd ----------------------------------------------------------------------------------------------------------


def test_answers_in_a_crowd_are_those_alone_to_the_last_bit_of_every_score(world: Running) -> None:
    """No batch, no cache and no prefix is shared: what others ask changes no score of an answer."""
    asked = [
        ("anna", {"prompt": PROMPT, "temperature": 0.0, "max_tokens": 20}),
        ("bob", {"prompt": PROMPT + " storm", "temperature": 0.9, "seed": 3, "max_tokens": 24}),  # shares a prefix
        ("eve", {"prompt": "calm dawn", "temperature": 0.7, "seed": 4, "max_tokens": 32}),
        ("anna", {"prompt": "salt", "temperature": 0.0, "max_tokens": 9}),
    ]
    kept: dict[int, list[bytes]] = defaultdict(list)
    order: list[int] = []
    lock, plain = threading.Lock(), decoding.sample

    def watched(scores: torch.Tensor, temperature: float, top_p: float, numbers: torch.Generator) -> int:
        with lock:
            if id(numbers) not in kept:
                order.append(id(numbers))
                alive.append(numbers)
            kept[id(numbers)].append(scores.numpy().tobytes())
        return plain(scores, temperature, top_p, numbers)

    alive: list[torch.Generator] = []

    def ask(item: tuple[str, dict[str, Any]]) -> str:
        return text_of(world.complete("plain", item[0], **item[1]))

    with mock.patch.object(decoding, "sample", watched):
        alone = [ask(item) for item in asked]
        scores_alone = sorted(b"".join(kept[key]) for key in order)
        kept.clear(), order.clear()
        with ThreadPoolExecutor(4) as pool:
            crowd = list(pool.map(ask, asked))
        assert crowd == alone and sorted(b"".join(kept[key]) for key in order) == scores_alone


def test_clients_of_openai_are_understood_where_they_say_nothing_else(world: Running) -> None:
    plain = greedy(world).json()["choices"][0]["text"]
    for more in (
        {"prompt": [PROMPT]}, {"stop": None}, {"stop": "never"}, {"presence_penalty": 0, "frequency_penalty": 0},
        {"stream_options": {"include_usage": True}}, {"user": "somebody"},
    ):  # fmt: skip
        assert greedy(world, **more).json()["choices"][0]["text"] == plain, more
    body = {"model": "plain", "prompt": PROMPT, "temperature": 0}
    short = world.post("/v1/completions", {**body, "max_completion_tokens": 3}).json()
    assert short["usage"]["completion_tokens"] == 3
    assert world.post("/v1/completions", {**body, "max_completion_tokens": 3, "max_tokens": 4}).status_code == 400
