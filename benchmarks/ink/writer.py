"""Writes texts with an arm: one loop over tokens for all arms, which counts model calls and time.

Every row of the model has one prompt. All rows of a text get the token that its arm chose. Many texts are written side by side,
which saves time. What an arm costs is counted in rows of the model times tokens.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from benchmarks.ink.baselines import Arm, Step

Prompts = Sequence[list[int]]
"""Ids of prompts: those of the references, and the public one last."""

ROWS = 1024
"""Rows of the model that are run side by side."""


@dataclass
class Written:
    """Holds what an arm wrote.

    Attributes:
        ids: of each text, the end of the text left in. calls: rows of the model times tokens, over all texts.
        private: part of the tokens that references moved. seconds: of processor time, of model and arm. clock: of the wall.
    """

    ids: list[list[int]]
    calls: int
    private: float
    seconds: float
    clock: float = 0.0


def write(model: Any, arm: Arm, prompts: Sequence[Prompts], tokens: int, end: int, seed: int) -> Written:
    """Writes one text for each group of prompts.

    Args:
        prompts: of each text B prompts with references, and the public prompt last; B is the arm's.
        tokens: T, the most tokens of a text. end: the id that ends a text. seed: of the sampling, which has no privacy.

    Raises:
        ValueError: a text has other than B references.
    """
    for group in prompts:
        if len(group) != arm.B + 1:
            raise ValueError(f"a text has {len(group) - 1} references; expected {arm.B}, those of the arm")
    start, began, calls, moved = time.process_time(), time.perf_counter(), 0, 0
    ids: list[list[int]] = []
    side = max(1, ROWS // max(1, arm.reads))
    numbers = np.random.default_rng(seed)
    for first in range(0, len(prompts), side):
        part = prompts[first : first + side]
        texts = [_Text(arm.begin(numbers), []) for _ in part]
        rows = _Rows(model, part, private=arm.reads >= arm.B and arm.B > 0, public=arm.reads != arm.B)
        for private, public in rows.logits(tokens):
            for place, text in enumerate(texts):
                if not text.done:
                    calls += arm.reads
                    moved += text.go_on(private[place], public[place], numbers, end)
            rows.last = [text.ids[-1] if text.ids else end for text in texts]
            if all(text.done for text in texts):
                break
        ids += [text.ids for text in texts]
    used, waited = time.process_time() - start, time.perf_counter() - began
    return Written(ids, calls, moved / max(1, sum(map(len, ids))), used, waited)


@dataclass
class _Text:
    step: Step
    ids: list[int]
    done: bool = False

    def go_on(self, private: Any, public: Any, numbers: np.random.Generator, end: int) -> bool:
        """Adds a token, or ends the text. Returns whether a token was added that references moved."""
        choice = self.step(private, public)
        if choice is None:
            self.done = True
            return False
        summed = np.cumsum(choice.probabilities)
        token = int(np.searchsorted(summed, numbers.random() * summed[-1], side="right"))
        self.ids.append(token)
        self.done = token == end
        return choice.private


class _Rows:
    """Runs the rows that an arm reads, all texts side by side, with a cache; prompts are padded on the left."""

    def __init__(self, model: Any, prompts: Sequence[Prompts], *, private: bool, public: bool) -> None:
        self.model, self.texts, self.private, self.public = model, len(prompts), private, public
        chosen = [row for group in prompts for row in (group[:-1] if private else []) + (group[-1:] if public else [])]
        longest = max(map(len, chosen))
        self.each = len(chosen) // len(prompts)
        self.ids = torch.tensor([[0] * (longest - len(row)) + row for row in chosen])
        self.mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in chosen])
        self.last: list[int] = []

    @torch.no_grad()
    def logits(self, tokens: int) -> Iterator[tuple[Any, Any]]:
        """Yields (texts, B, V) and (texts, V) for each token; zeros stand for what is not read. Set ``last`` between two."""
        cache, ids, mask = DynamicCache(), self.ids, self.mask
        at = (mask.cumsum(-1) - 1).clamp(min=0)
        for _ in range(tokens):
            found = self.model(
                input_ids=ids, attention_mask=mask, position_ids=at, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
            values = found.logits[:, -1].double().view(self.texts, self.each, -1).numpy()
            nothing = np.zeros_like(values[:, :1])
            yield values[:, : self.each - self.public] if self.private else nothing, (values if self.public else nothing)[:, -1]
            ids = torch.tensor(self.last).repeat_interleave(self.each)[:, None]
            mask = torch.cat([mask, torch.ones_like(ids)], 1)
            at = at[:, -1:] + 1
