"""Readers of released states are right no more often than epsilon allows, are as good as that, and catch too little noise."""

import json
import math
import sys
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from benchmarks import inference_places, inference_readers  # noqa: E402
from benchmarks.inference_readers import DELTA, READERS, SETTINGS, TOKENS, Channel, allowed, allowed_exactly  # noqa: E402
from dptrain.inference.gaussian import epsilon_of  # noqa: E402

ROOT = Path(__file__).parents[2]
FOUND: dict[str, Any] = json.loads((ROOT / "benchmarks" / "inference_readers.json").read_text(encoding="utf-8"))
ROWS = {(one["reader"], one["setting"], one["tokens"]): one for one in FOUND["rows"]}
SIGMA = 4.8448


def share(reader: str, setting: str, tokens: int) -> float:
    one = ROWS[reader, setting, tokens]
    return one["right"] / one["asked"]


def doubt(most: float, asked: int) -> float:
    """Returns four standard deviations of a share."""
    return 4.0 * math.sqrt(most * (1.0 - most) / asked)


# --- what epsilon allows ---


@pytest.mark.parametrize("k", [2, 4, 16])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 8.0, 900.0])
def test_what_epsilon_allows_is_what_randomised_response_reaches(epsilon: float, k: int) -> None:
    """It answers the truth e^epsilon times as often as each other answer; so the bound is met with equality."""
    truth = 1.0 / (1.0 + (k - 1) * math.exp(-epsilon))
    assert allowed(epsilon, 0.0, k) == pytest.approx(truth, rel=1e-12)
    assert truth < allowed(epsilon, 1e-5, k) <= truth + 1e-5 or truth == 1.0
    assert k != 2 or epsilon > 700 or allowed(epsilon, 0.0, 2) == pytest.approx(math.exp(epsilon) / (1 + math.exp(epsilon)))


@pytest.mark.parametrize("releases", [1, 16, 256])
def test_of_two_inputs_all_epsilons_together_allow_what_the_likelihood_ratio_reaches(releases: int) -> None:
    exactly = NormalDist().cdf(math.sqrt(releases) / SIGMA)  # neighbours are 2 apart
    assert allowed_exactly(SIGMA, 2.0, releases, 2) == pytest.approx(exactly, abs=1e-6)
    for k in (2, 4, 16):
        assert allowed_exactly(SIGMA, 2.0, releases, k) <= allowed(epsilon_of(SIGMA, DELTA, 2.0, releases), DELTA, k) + 1e-9


# --- the readers ---


def opposite(count: int, width: int = 6, tokens: int = 4) -> torch.Tensor:
    """Returns states of two queries as far apart as a clip allows, alternating: shape (count, tokens, width)."""
    states = torch.zeros(count, tokens, width)
    states[..., 0] = 7.0
    states[1::2] *= -1.0
    return states


@pytest.mark.one_in(7)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("sigma", [SIGMA, SIGMA / 4])
def test_every_reader_is_as_good_as_epsilon_allows_and_catches_a_quarter_of_the_noise(reader: str, sigma: float) -> None:
    """A build that adds less noise than it says would be seen."""
    states = opposite(1600)
    channel = Channel("published", None, 1.0, sigma)
    truth, seen = np.arange(1600) % 2, channel.seen(states)
    own, kinds = channel.clean(opposite(40)), np.arange(40) % 2
    guesses = {
        "clusters": lambda: inference_readers.clusters(own.mean(1), kinds, seen.mean(1)),
        "coordinates": lambda: inference_readers.coordinates(own.mean(1), kinds, seen.mean(1), sigma**2 / 4 * np.eye(6)),
        "dictionary": lambda: inference_readers.dictionary(own[:2], seen),
    }
    right = float(np.mean(guesses[reader]() == truth))
    most = allowed_exactly(SIGMA, 2.0, 4, 2)
    if sigma == SIGMA:
        assert right <= most + doubt(most, 1600)
        assert reader == "clusters" or right >= most - doubt(most, 1600)
    else:
        assert right > most + doubt(most, 1600)


@pytest.mark.slow
def test_measuring_gives_a_row_for_every_reader_setting_and_number_of_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    states = 3.0 * torch.randn(3, 14, 64, 10, generator=generator) + 5.0 * torch.randn(3, 1, 1, 10, generator=generator)
    rows = list(inference_readers.measured(states, torch.randn(8, 10, generator=generator), 2, 1))
    assert [(one["reader"], one["setting"], one["tokens"]) for one in rows] == [
        (reader, setting, tokens) for tokens in TOKENS for setting in SETTINGS for reader in READERS
    ]
    for one in rows:
        token, all_of_them = (epsilon_of(SIGMA, DELTA, 2.0, count) for count in (1, one["tokens"]))
        worth = {"clear": None, "published": all_of_them, "equal": all_of_them, "answer": token}[one["setting"]]
        assert one["epsilon"] == (worth and pytest.approx(worth))
    assert all(one["right"] == one["asked"] for one in rows if one["setting"] == "clear" and one["tokens"] == 64)
    assert len(list(inference_readers.lines_of(rows))) == 2 + len(READERS) * len(TOKENS)


# --- the figures ---


@pytest.mark.one_in(5)
@pytest.mark.parametrize("key", ROWS, ids=lambda key: "-".join(map(str, key)))
def test_no_reader_was_right_more_often_than_epsilon_allows(key: tuple[str, str, int]) -> None:
    one = ROWS[key]
    if one["setting"] == "clear":
        assert one["sigma"] == 0.0 and one["epsilon"] is one["allowed"] is None
        return
    epsilon = epsilon_of(one["sigma"], DELTA, 2.0 * one["clip"], one["tokens"])
    assert one["epsilon"] == pytest.approx(epsilon) and one["allowed"] == pytest.approx(allowed(epsilon, DELTA, one["among"]))
    exactly = allowed_exactly(one["sigma"], 2.0 * one["clip"], one["tokens"], one["among"])
    assert one["allowed_exactly"] == pytest.approx(exactly, abs=1e-9)
    assert one["right"] / one["asked"] <= exactly + doubt(exactly, one["asked"])


def test_settings_are_compared_at_equal_epsilon_and_an_answer_of_ours_is_worth_what_one_published_token_is() -> None:
    for reader in READERS:
        for tokens in TOKENS:
            published, equal, answer = (ROWS[reader, setting, tokens]["epsilon"] for setting in SETTINGS[1:])
            assert equal == pytest.approx(published) and answer == pytest.approx(1.610, abs=1e-3)
        assert ROWS[reader, "published", 64]["epsilon"] == pytest.approx(18.90, abs=0.01)


def test_readers_read_clear_states_and_a_dictionary_reads_published_sessions_beyond_the_stated_epsilon() -> None:
    for reader in READERS:
        one = ROWS[reader, "clear", 64]
        assert share(reader, "clear", 64) > 2.5 / one["among"]
    assert all(share("dictionary", "clear", tokens) == 1.0 for tokens in TOKENS)
    one, stated = ROWS["dictionary", "published", 64], allowed(1.0, DELTA, 16)
    assert stated == pytest.approx(0.153, abs=1e-3)
    assert share("dictionary", "published", 64) > stated + doubt(stated, one["asked"]), "whose budget is not spent"
    assert share("dictionary", "answer", 64) < stated


# --- where noise is injected, in any model ---


def tiny(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(vocab_size=40, n_positions=32, n_embd=16, n_layer=3, n_head=2)
        return transformers.GPT2LMHeadModel(config).eval()
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=40, num_key_value_heads=2, **sizes)).eval()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_places_of_any_causal_model_by_its_path(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(40)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    model = tiny(kind)
    model.save_pretrained(tmp_path)
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(tmp_path)
    ids = [(7 * number) % 40 for number in range(60)]
    (tmp_path / "text.txt").write_text(" ".join(f"w{number}" for number in ids))
    out = tmp_path / "places.json"
    given = ["--model", str(tmp_path), "--text", str(tmp_path / "text.txt"), "--sequences", "2", "--length", "16"]
    monkeypatch.setattr(sys, "argv", ["places", *given, "--out", str(out)])
    threads = torch.get_num_threads()
    try:
        inference_places.main()
    finally:
        torch.set_num_threads(threads)
    rows = json.loads(out.read_text())["places"]
    assert [one["after"] for one in rows] == ["embeddings", "layer 1", "layer 2", "layer 3", "norm"]
    with torch.no_grad():
        fed = torch.tensor(ids[:32]).view(2, 16)
        assert [one["nll_clear"] for one in inference_places.places(model, fed)] == [one["nll_clear"] for one in rows]
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()), "nothing is left"
        states = model(fed, output_hidden_states=True).hidden_states
    for number in (1, 2):
        assert rows[number]["median_norm"] == pytest.approx(float(states[number].norm(dim=-1).median()), rel=1e-5)
    assert rows[-1]["median_norm"] == pytest.approx(float(states[-1].norm(dim=-1).median()), rel=1e-5)
    assert all(one["noise_norm"] == pytest.approx(SIGMA * 4.0) and one["nll"] != one["nll_clear"] for one in rows)
    assert all(one["snr_after_clip"] <= 1.0 / one["noise_norm"] + 1e-12 for one in rows)
