"""Reads real texts for the comparison: beginnings of court cases with a model of their public part, and children's stories.

*tab*: references are the heads of judgments of the European Court of Human Rights (TAB), each from its first line to "In the
case of". There are few: 700 make 100 texts of B = 7. The respondent state is a public label, as the court's register names it.
Heads of other cases are public: a tiny Llama learns from them to continue ``<ref> head <gen>`` with another head against the
same state. Numbers and parties of what it learns from are exchanged, so that it cannot recite them.

*stories*: stories260K, a pretrained model of 260,000 parameters, reads ``<s> story <s>`` and goes on with a story, as in its
training. Its public prompt is ``<s>``. It never learnt to use what stands before a story's beginning.
"""

import hashlib
import json
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dptrain.inference.invisibleink import batches, batches_by_label

STATES: Final = {"TURKEY": 44, "POLAND": 34, "UNITED KINGDOM": 22}
"""Labels of *tab*, and how many texts of B = 7 each has; as many heads of each are held out."""

FILE: Final = Path("tab") / "TAB_all_BK=Public10%.json"
_STATE = re.compile(r"CASE OF (.+?) v\.? (?:THE )?([A-ZÇ][A-ZÇ ]+)")
_SPACES = re.compile(r"\s+")
MOST: Final = 7
"""References of a text at most: where B is less, others of the same number of texts are left over."""


@dataclass(frozen=True)
class Head:
    """Holds the beginning of one judgment: its number in TAB, the respondent state, and the text."""

    id: str
    state: str
    text: str


def heads(path: Path) -> list[Head]:
    """Reads the beginnings of judgments that name one state and end before "In the case of", in the order of a hash of ids."""
    found = []
    for name, text in json.loads(path.read_text(encoding="utf-8")).items():
        head, mark, _ = text.partition("In the case of")
        head = _SPACES.sub(" ", head.lstrip("\ufeff")).strip()
        named = _STATE.search(head)
        if mark and named:
            found.append(Head(name, named[2].replace("APPLICATION", "").strip(), head))
    return sorted(found, key=lambda head: hashlib.sha256(head.id.encode()).digest())


@dataclass(frozen=True)
class Split:
    """Holds heads by role: what is public, the private references, and those held out, of each private state."""

    public: list[Head]
    references: list[Head]
    held_out: list[Head]

    @classmethod
    def of(cls, every: Sequence[Head]) -> "Split":
        """Splits heads in their order.

        Raises:
            ValueError: a state has fewer than its references and held-out heads.
        """
        references: list[Head] = []
        held_out: list[Head] = []
        for state, texts in STATES.items():
            mine = [head for head in every if head.state == state]
            if len(mine) < texts * (MOST + 1):
                sentence = f"{len(mine)} heads against {state}"
                raise ValueError(f"{sentence}; expected {texts * (MOST + 1)}, 8 for each of {texts} texts")
            references += mine[: texts * MOST]
            held_out += mine[texts * MOST : texts * (MOST + 1)]
        taken = {head.id for head in references + held_out}
        return cls([head for head in every if head.id not in taken], references, held_out)


@dataclass
class World:
    """Holds a model, its prompts, and references of one kind.

    Attributes:
        tokens: T. end: id that ends a text. encode, decode: texts to ids and back. prompt: of a reference's ids, or of None.
        public: public texts. references: by id, with a label or None; they are batched by `batches` and `batches_by_label`.
        held_out: texts that were no references, with labels. uses: share of texts that show use of the references.
    """

    name: str
    model: Any
    tokens: int
    end: int
    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    prompt: Callable[[Sequence[int] | None], list[int]]
    public: list[str]
    references: dict[str, tuple[str | None, str]]
    held_out: list[tuple[str | None, str]]
    uses: Callable[[str, str | None, Sequence[str]], float]
    told: dict[str, Any] = field(default_factory=dict)

    def cases(self, count: int, B: int, seed: int) -> list[tuple[str | None, tuple[str, ...]]]:
        """Returns labels and B references of each text, batched by a salted hash within the label; none comes twice.

        Raises:
            ValueError: there are fewer batches.
        """
        salt = hashlib.sha256(f"{self.name} {seed}".encode()).digest()
        labels = {name: label for name, (label, _) in self.references.items()}
        if None in labels.values():
            made = [(None, batch) for batch in batches(list(labels), B, salt=salt)]
        else:
            found = batches_by_label({name: str(label) for name, label in labels.items()}, B, salt=salt)
            quota = {label: round(count * texts / 100) for label, texts in STATES.items()}
            made = [(label, batch) for label, number in quota.items() for batch in found[label][:number]]
        if len(made) < count:
            raise ValueError(f"{len(made)} batches of {B} references; expected {count}")
        return [(label, tuple(self.references[name][1] for name in batch)) for label, batch in made[:count]]

    def prompts(self, references: Sequence[str]) -> list[list[int]]:
        """Returns ids of a text's prompts, the public one last; references are cut to T tokens."""
        return [*(self.prompt(self.encode(text)[: self.tokens]) for text in references), self.prompt(None)]


@dataclass(frozen=True)
class Size:
    """Says how large the model of *tab* is, and how long it learns."""

    vocabulary: int = 1024
    width: int = 96
    layers: int = 3
    steps: int = 700
    batch: int = 32
    rate: float = 3e-3


QUICK: Final = Size(vocabulary=320, width=16, layers=1, steps=2, batch=2)
TOKENS: Final = 72
"""T of *tab*: most heads have fewer tokens at a vocabulary of 1024."""

MARKS: Final = ("<pad>", "<ref>", "<gen>", "</s>")


def pieces(public: Sequence[str], vocabulary: int) -> Any:
    """Returns a tokenizer of byte pairs, learnt from public texts alone, with the marks of a prompt."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    how = {"vocab_size": vocabulary, "special_tokens": list(MARKS), "initial_alphabet": letters, "show_progress": False}
    made.train_from_iterator(public, trainers.BpeTrainer(**how))
    return made


def exchanged(head: Head, others: Sequence[Head], numbers: random.Random) -> str:
    """Returns a public head with other digits, and with the parties of another public head."""
    text = re.sub(r"\d", lambda found: found[0] if found[0] in "012" else str(numbers.randint(0, 9)), head.text)
    mine, theirs = _STATE.search(head.text), _STATE.search(numbers.choice(others).text)
    return text.replace(mine[1], theirs[1]) if mine and theirs else text


def learnt(public: Sequence[Head], made: Any, size: Size, seed: int = 0) -> LlamaForCausalLM:
    """Trains the model of *tab* on public heads."""
    ids = {mark: made.token_to_id(mark) for mark in MARKS}
    numbers = random.Random(seed)
    by_state: dict[str, list[Head]] = {}
    for head in public:
        by_state.setdefault(head.state, []).append(head)

    def row() -> tuple[list[int], list[int]]:
        head = numbers.choice(public)
        other = exchanged(numbers.choice(by_state[head.state]), public, numbers)
        given = [] if numbers.random() < 0.25 else made.encode(other).ids
        text = made.encode(exchanged(head, public, numbers)).ids[: TOKENS - 1]
        return [ids["<ref>"], *given[:TOKENS], ids["<gen>"]], [*text, ids["</s>"]]

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=made.get_vocab_size(), hidden_size=size.width, intermediate_size=2 * size.width,
                num_hidden_layers=size.layers, num_attention_heads=4, max_position_embeddings=256, tie_word_embeddings=True,
                bos_token_id=ids["<ref>"], eos_token_id=ids["</s>"], pad_token_id=ids["<pad>"],
            )
        )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=size.rate, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, size.rate, total_steps=size.steps, pct_start=0.1)
    for _ in range(size.steps):
        rows = [row() for _ in range(size.batch)]
        longest = max(len(prompt) + len(text) for prompt, text in rows)
        each = torch.tensor([prompt + text + [0] * (longest - len(prompt + text)) for prompt, text in rows])
        answer = [[-100] * len(p) + t + [-100] * (longest - len(p + t)) for p, t in rows]
        mask = torch.tensor([[1] * len(p + t) + [0] * (longest - len(p + t)) for p, t in rows])
        model(input_ids=each, attention_mask=mask, labels=torch.tensor(answer)).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model.eval()


def tab(data: Path, folder: Path, size: Size = Size()) -> World:
    """Returns the world of court cases; trains its model, and saves it in ``folder``, where there is none."""
    from tokenizers import Tokenizer

    split = Split.of(heads(data / FILE))
    if not (folder / "config.json").exists():
        start = time.process_time()
        made = pieces([head.text for head in split.public], size.vocabulary)
        learnt(split.public, made, size).save_pretrained(folder)
        made.save(str(folder / "tokenizer.json"))
        print(f"trained the model of tab in {time.process_time() - start:.0f} s of processor time", flush=True)
    made, model = Tokenizer.from_file(str(folder / "tokenizer.json")), LlamaForCausalLM.from_pretrained(folder).eval()
    before, behind, end = (made.token_to_id(mark) for mark in MARKS[1:])
    return World(
        "tab", model, TOKENS, end,
        lambda text: made.encode(text).ids,
        lambda ids: made.decode([one for one in ids if one != end]).strip(),
        lambda ids: [before, *(ids or ()), behind],
        [head.text for head in split.public],
        {head.id: (head.state, head.text) for head in split.references},
        [(head.state, head.text) for head in split.held_out],
        lambda text, label, references: float(named(text) == label),
        {
            "references": len(split.references), "held_out": len(split.held_out), "public": len(split.public),
            "vocabulary": made.get_vocab_size(), "parameters": sum(one.numel() for one in model.parameters()),
            "labels": STATES, "uses": "share of texts against the state of their references",
            "expected": "the state is used, since the model learnt to; names and numbers are not the references'",
        },
    )  # fmt: skip


def named(text: str) -> str | None:
    """Returns the state that a text is against."""
    found = _STATE.search(text)
    return found[2].replace("JUDGMENT", "").strip() if found else None


WORDS: Final = re.compile(r"[a-z']+")
COMMON: Final = 400
"""Words of public stories that are too frequent to tell of a reference."""

STORY_TOKENS: Final = 64
EXPECTED: Final = "the model hardly uses its references: no arm differs from the public one beyond chance"
"""Said before the runs: it was trained on stories that have nothing to do with the one before."""


def stories(data: Path, count: int = 100) -> World:
    """Returns the world of TinyStories and stories260K: 7 ``count`` references, ``count`` held out, and the rest public."""
    from recipes.language.stories import tokenizer_of

    folder = data / "stories260K"
    made, model = tokenizer_of(folder / "tok512.bin"), LlamaForCausalLM.from_pretrained(folder / "hf").eval()
    text = (data / "text" / "tinystories" / "tinystories_sample.txt").read_text(encoding="utf-8", errors="ignore")
    every = [_SPACES.sub(" ", part).strip() for part in text.split("<|endoftext|>")[1:-1]]
    every = [part for part in every if len(part) > 100]
    random.Random(0).shuffle(every)
    private, rest = every[: MOST * count], every[MOST * count :]
    counts: dict[str, int] = {}
    for part in rest[count:]:
        for word in WORDS.findall(part.lower()):
            counts[word] = counts.get(word, 0) + 1
    common = set(sorted(counts, key=lambda word: -counts[word])[:COMMON])
    begin = int(made.bos_token_id)

    def uses(written: str, label: str | None, references: Sequence[str]) -> float:
        there = {word for one in references for word in WORDS.findall(one.lower())} - common
        mine = [word for word in WORDS.findall(written.lower()) if word not in common]
        return sum(word in there for word in mine) / max(1, len(mine))

    return World(
        "stories", model, STORY_TOKENS, begin,
        lambda one: list(made(one, add_special_tokens=False)["input_ids"]),
        lambda ids: made.decode([one for one in ids if one != begin]).strip(),
        lambda ids: [begin, *ids, begin] if ids else [begin],
        rest[count:], {f"story {place}": (None, part) for place, part in enumerate(private)},
        [(None, part) for part in rest[:count]], uses,
        {
            "references": len(private), "held_out": count, "public": len(rest) - count, "vocabulary": 512,
            "parameters": sum(one.numel() for one in model.parameters()),
            "uses": f"share of words outside the {COMMON} most frequent that are in the references", "expected": EXPECTED,
        },
    )  # fmt: skip
