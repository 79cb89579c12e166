"""Write the texts of the language demo: a small world of topics, and a tokenizer that knows all its words.

Each text is about one topic. Three topics are rare in public texts, and are those of the contributions. How a text begins does
not tell its topic, so what a model writes behind a beginning shows which topics it has learnt.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class Topic:
    """Holds the words that texts of one topic are made of, and no other topic has."""

    nouns: tuple[str, ...]
    verbs: tuple[str, ...]
    adjectives: tuple[str, ...]

    @classmethod
    def of(cls, nouns: str, verbs: str, adjectives: str) -> "Topic":
        """Reads words that spaces divide."""
        return cls(tuple(nouns.split()), tuple(verbs.split()), tuple(adjectives.split()))

    @property
    def words(self) -> frozenset[str]:
        """All of them."""
        return frozenset((*self.nouns, *self.verbs, *self.adjectives))


PUBLIC: Mapping[str, Topic] = {
    "kitchen": Topic.of(
        "cook pot oven spoon soup table bread kettle pan plate", "stirs bakes tastes serves boils salts",
        "hot sweet bitter fresh spicy warm",
    ),
    "railway": Topic.of(
        "train driver station track signal tunnel bridge ticket carriage platform",
        "passes reaches leaves follows crosses stops",
        "late fast express crowded northern local",
    ),
    "school": Topic.of(
        "teacher pupil lesson book board pencil question answer page classroom", "reads writes explains learns asks repeats",
        "clever curious difficult young quiet patient",
    ),
    "weather": Topic.of(
        "storm cloud wind rain sun fog frost thunder sky snow", "covers darkens chases cools meets hides",
        "grey windy icy bright heavy pale",
    ),
    "market": Topic.of(
        "seller buyer stall price coin basket cloth scale crowd bargain", "sells weighs counts buys offers carries",
        "cheap noisy colourful honest rich busy",
    ),
}  # fmt: skip
"""Topics that public texts are about."""

PRIVATE: Mapping[str, Topic] = {
    "harbour": Topic.of(
        "ship sailor anchor pier net captain rope lighthouse gull cargo", "moors sails hauls loads tows steers",
        "salty wooden tidal rusty deep foreign",
    ),
    "orchard": Topic.of(
        "apple pear ladder branch blossom gardener bee cider trunk harvest", "picks prunes ripens plants shakes presses",
        "ripe green juicy crooked sunny golden",
    ),
    "workshop": Topic.of(
        "hammer carpenter saw bench nail plank chisel drill vice apprentice", "saws planes drills glues measures sharpens",
        "dusty oiled blunt steel precise sturdy",
    ),
}  # fmt: skip
"""Topics that contributions are about, by the class of the contribution."""

TOPICS: Mapping[str, Topic] = {**PUBLIC, **PRIVATE}

BEGINNINGS = ("today the", "at noon the", "in the morning the", "once again the")
"""Begin texts, whatever their topic."""

_ON = (
    "{adjective} {noun} {verb} the {other} .", "{noun} {verb} this {adjective} {other} .", "{noun} {verb} with the {other} .",
    "{adjective} {noun} {verb} near this {other} .",
)  # fmt: skip
_BEHIND = ("then the", "and each", "later every")

SENTENCES = 3
"""Is how many a text has."""

LONGEST = 32
"""Tokens of a text at most, with those at its ends."""


def text(topic: Topic, numbers: random.Random) -> str:
    """Writes a text about a topic."""
    parts = []
    for place in range(SENTENCES):
        noun, other = numbers.sample(topic.nouns, 2)
        verb, adjective = numbers.choice(topic.verbs), numbers.choice(topic.adjectives)
        parts.append(numbers.choice(_BEHIND if place else BEGINNINGS))
        parts.append(numbers.choice(_ON).format(noun=noun, other=other, verb=verb, adjective=adjective))
    return " ".join(parts)


def texts(topic: Topic, count: int, seed: int) -> list[str]:
    """Writes texts about a topic, the same ones for the same seed; no two are alike."""
    numbers, found = random.Random(seed), dict[str, None]()
    while len(found) < count:
        found[text(topic, numbers)] = None
    return list(found)


def public_texts(count: int, seed: int, *, rare: float = 0.02) -> list[str]:
    """Writes public texts. ``rare``: the share of those about a topic of `PRIVATE`."""
    numbers = random.Random(seed)
    often, seldom = list(PUBLIC.values()), list(PRIVATE.values())
    return [text(numbers.choice(seldom if numbers.random() < rare else often), numbers) for _ in range(count)]


def share(written: Sequence[str], topic: Topic) -> float:
    """Returns which part of the words of some topic, in these texts, are this topic's."""
    known = frozenset(word for each in TOPICS.values() for word in each.words)
    found = [word for line in written for word in line.split() if word in known]
    return sum(word in topic.words for word in found) / max(1, len(found))


def _vocabulary() -> Iterator[str]:
    yield from ("<unk>", "<s>", "</s>")
    common = (*BEGINNINGS, *_BEHIND, *_ON)
    yield from dict.fromkeys(word for part in common for word in part.split() if "{" not in word)
    for topic in TOPICS.values():
        yield from (*topic.nouns, *topic.verbs, *topic.adjectives)


@cache
def _ids() -> Mapping[str, int]:
    return {word: number for number, word in enumerate(_vocabulary())}


def tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer with one token a word, which `AutoTokenizer` reads once it is saved."""
    ids = dict(_ids())
    made = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", ids["<s>"])])
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=256, clean_up_tokenization_spaces=False, **names)
