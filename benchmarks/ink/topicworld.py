"""Makes a language model that uses its references, in minutes on one CPU: the world of topics, with prompts of references.

A prompt is ``<ref> reference <gen>``, and ``<ref> <gen>`` without a reference. A tiny Llama learns to continue it with a text
about the reference's topic. Three topics are rare in what it learns from, so a text without a reference is seldom about them.
Which part of a text's topic words are on the references' topic says how much was learnt from the references.
"""

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dptrain.demo import topics

REFERENCE, GENERATE = "<ref>", "<gen>"
"""Words of a prompt: before the reference, and behind it."""

RARE: Final = 0.6
"""Weight of a private topic in public texts; a public topic has 1. With k = 100, about one public text in 15 is about it."""

NULLS: Final = 0.25
"""Part of the prompts of training that have no reference."""

LONGEST: Final = 33
"""Tokens that are generated at most: the longest text of the world, and its end."""

_IGNORED = -100


def tokenizer() -> PreTrainedTokenizerFast:
    """Returns the tokenizer of the world, one token a word, which knows the words of a prompt. It adds no token by itself."""
    made = topics.tokenizer()
    made.add_special_tokens({"additional_special_tokens": [REFERENCE, GENERATE]})
    return made


@dataclass(frozen=True)
class Words:
    """Turns texts into ids and back."""

    ids: dict[str, int]

    @classmethod
    @cache
    def of_the_world(cls) -> "Words":
        """Returns those of `tokenizer`."""
        return cls(tokenizer().get_vocab())

    @property
    def end(self) -> int:
        """Id that ends a text."""
        return self.ids["</s>"]

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text's words."""
        return [self.ids[word] for word in text.split()]

    def prompt(self, reference: str | None) -> list[int]:
        """Returns the ids of a prompt; None is the null reference."""
        return [self.ids[REFERENCE], *self.encode(reference or ""), self.ids[GENERATE]]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the words of ids, up to the end of the text."""
        names = {number: word for word, number in self.ids.items()}
        kept = list(ids)
        return " ".join(names[number] for number in (kept[: kept.index(self.end)] if self.end in kept else kept))


@dataclass(frozen=True)
class Size:
    """Says how large the model is and how long it learns.

    Attributes:
        width: of its states. layers: of it. steps: of training. batch: prompts in one step. rate: largest learning rate.
    """

    width: int = 64
    layers: int = 2
    steps: int = 900
    batch: int = 64
    rate: float = 4e-3


QUICK: Final = Size(width=16, layers=1, steps=3, batch=4)


def examples(numbers: random.Random) -> Iterator[tuple[str | None, str]]:
    """Writes pairs without end: a reference, or None, and a text of the same topic."""
    known = list(topics.TOPICS.items())
    weights = [RARE if name in topics.PRIVATE else 1.0 for name, _ in known]
    while True:
        topic = numbers.choices(known, weights)[0][1]
        reference = None if numbers.random() < NULLS else topics.text(topic, numbers)
        yield reference, topics.text(topic, numbers)


def _batch(source: Iterator[tuple[str | None, str]], words: Words, count: int) -> dict[str, torch.Tensor]:
    rows, labels = [], []
    for _ in range(count):
        reference, text = next(source)
        prompt, answer = words.prompt(reference), [*words.encode(text), words.end]
        rows.append(prompt + answer)
        labels.append([_IGNORED] * len(prompt) + answer)
    longest = max(map(len, rows))
    return {
        "input_ids": torch.tensor([row + [words.end] * (longest - len(row)) for row in rows]),
        "attention_mask": torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows]),
        "labels": torch.tensor([row + [_IGNORED] * (longest - len(row)) for row in labels]),
    }


def train(size: Size = Size(), seed: int = 0) -> LlamaForCausalLM:
    """Trains the model of the world, the same one for the same seed on one machine."""
    words = Words.of_the_world()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(words.ids), hidden_size=size.width, intermediate_size=2 * size.width,
                num_hidden_layers=size.layers, num_attention_heads=4, max_position_embeddings=128, tie_word_embeddings=False,
                bos_token_id=words.ids["<s>"], eos_token_id=words.end, pad_token_id=words.end,
            )
        )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=size.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, size.rate, total_steps=size.steps, pct_start=0.1)
    source = examples(random.Random(seed))
    for _ in range(size.steps):
        model(**_batch(source, words, size.batch)).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model.eval()


def world(folder: Path, size: Size = Size()) -> LlamaForCausalLM:
    """Returns the model that lies in a folder with its tokenizer; trains it, and saves it there, where there is none."""
    if not (folder / "config.json").exists():
        start = time.process_time()
        model = train(size)
        model.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        print(f"trained the topic world in {time.process_time() - start:.0f} s of processor time", flush=True)
    return LlamaForCausalLM.from_pretrained(folder).eval()


@dataclass(frozen=True)
class Case:
    """Holds what one text is written from: references of one private topic, and the topic's name."""

    topic: str
    references: tuple[str, ...]


def cases(count: int, B: int, seed: int = 1) -> list[Case]:
    """Returns what ``count`` texts are written from, B references each; private topics take turns, no reference comes twice."""
    names = list(topics.PRIVATE)
    each = -(-count // len(names)) * B
    found = {name: topics.texts(topics.PRIVATE[name], each, seed * 100 + place) for place, name in enumerate(names)}
    made = []
    for place in range(count):
        name, turn = names[place % len(names)], place // len(names)
        made.append(Case(name, tuple(found[name][turn * B : (turn + 1) * B])))
    return made


def share(text: str, topic: str) -> float:
    """Returns which part of a text's topic words are on a topic; 0 where it has none."""
    return topics.share([text], topics.TOPICS[topic])


def _kind(word: str) -> str:
    return _kinds().get(word, word)


@cache
def _kinds() -> dict[str, str]:
    found = {}
    for topic in topics.TOPICS.values():
        for kind, words in (("noun", topic.nouns), ("verb", topic.verbs), ("adjective", topic.adjectives)):
            found.update(dict.fromkeys(words, kind))
    return found


@cache
def _pairs() -> frozenset[tuple[str, str]]:
    written = topics.public_texts(3000, 7, rare=0.3)
    return frozenset(pair for text in written for pair in _neighbours(text))


def _neighbours(text: str) -> list[tuple[str, str]]:
    kinds = ["", *map(_kind, text.split())]
    return list(pairwise(kinds))


def grammar(written: Sequence[str]) -> float:
    """Returns which part of neighbouring words, taken by kind, are neighbours in texts of the world; 0 without a word."""
    found = [pair in _pairs() for text in written for pair in _neighbours(text)]
    return sum(found) / max(1, len(found))


@cache
def _patterns() -> frozenset[str]:
    return frozenset(part for text in topics.public_texts(3000, 7, rare=0.3) for part in _sentences(text))


def _sentences(text: str) -> list[str]:
    return [" ".join(map(_kind, part.split())) for part in text.split(" .") if part.strip()]


def sentences(written: Sequence[str]) -> float:
    """Returns which part of the sentences have the pattern of a sentence of the world; the last of a text may be cut off."""
    found = [part in _patterns() for text in written for part in _sentences(text)]
    return sum(found) / max(1, len(found))


def features(written: Sequence[str]) -> Any:
    """Returns which words come in each text, weighted by how rare they are in public texts, of unit length, (n, words).

    An encoder of the world that needs no model, and no private text.
    """
    return _unit(_counts(written) * _rarity())


def _counts(written: Sequence[str]) -> Any:
    words = Words.of_the_world()
    return np.stack([np.bincount(words.encode(text), minlength=len(words.ids)).astype(float) for text in written])


@cache
def _rarity() -> Any:
    counts = _counts(topics.public_texts(3000, 7, rare=0.3))
    return np.log(len(counts) / np.maximum((counts > 0).sum(0), 1))


def _unit(rows: Any) -> Any:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
