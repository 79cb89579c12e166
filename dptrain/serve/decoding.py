"""Computes the tokens of one answer: a prefill, then one token a step, with a cache of its own.

No two answers share a batch or a cache, so that none of them can be told from the time or the rounding of another. What is
added to the scores by an adapter that reads a released state is added where the head ends, as LoRA on the head would add it.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

from dptrain.serve.wire import Asking, Refused

Reader = Callable[[torch.Tensor], torch.Tensor]
"""Takes the last state, shape (D,), and returns what is added to the scores, shape (V,)."""

_BEFORE: Final = 4

_LOST: Final = "\ufffd"
"""Stands for bytes that are no whole character yet."""


class Head:
    """Lets the answer that a thread computes read the state before the head, and add to the scores."""

    def __init__(self, model: nn.Module) -> None:
        """Raises ConfigError: code HEAD, the model has no output embeddings to which something could be added."""
        head = model.get_output_embeddings()
        self._now = threading.local()
        head.register_forward_hook(self._add)

    def _add(self, module: nn.Module, inputs: tuple[torch.Tensor, ...], scores: torch.Tensor) -> torch.Tensor | None:
        reader: Reader | None = getattr(self._now, "reader", None)
        if reader is None:
            return None
        return scores + reader(inputs[0].reshape(-1)).to(scores.dtype).to(scores.device)

    def __deepcopy__(self, memo: object) -> "Head":
        """Stays one: a copy of the model gets a head of its own when it is served."""
        return self

    def reading(self, reader: Reader | None) -> None:
        """Sets who reads in this thread, None for nobody."""
        self._now.reader = reader


@dataclass(frozen=True)
class Served:
    """Is a model that is loaded: of one artifact.

    Attributes:
        vocabulary: number of scores. stops: ids at which an answer ends.
    """

    model: Any
    tokenizer: Any
    head: Head
    vocabulary: int
    stops: frozenset[int]

    @classmethod
    def of(cls, model: Any, tokenizer: Any) -> "Served":
        """Wraps a causal language model of transformers, or one of peft, in evaluation."""
        found = getattr(model.generation_config, "eos_token_id", None)
        ends = [found] if isinstance(found, int) else list(found or ())
        if tokenizer.eos_token_id is not None:
            ends.append(tokenizer.eos_token_id)
        return cls(model.eval(), tokenizer, Head(model), int(model.config.get_text_config().vocab_size), frozenset(ends))

    def ids(self, request: Any, most: int, tokens: int) -> list[int]:
        """Returns the ids of a prompt.

        Args:
            most: ids of a prompt. tokens: of the answer.

        Raises:
            Refused: 400, code PROMPT, too long or empty; CHAT, the model has no chat template.
        """
        if hasattr(request, "messages"):
            if not getattr(self.tokenizer, "chat_template", None):
                sentence = "this model has no chat template; use /v1/completions with a prompt"
                raise Refused(400, "invalid_request_error", "CHAT", sentence)
            messages = [message.model_dump() for message in request.messages]
            how = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
            found = self.tokenizer.apply_chat_template(messages, **how)["input_ids"]
        else:
            found = self.tokenizer(request.prompt)["input_ids"]
        room = getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or most + tokens
        if not 0 < len(found) <= most or len(found) + tokens > room:
            sentence = f"the prompt has {len(found)} tokens and the answer {tokens}"
            most_told = f"at most {most} of a prompt, and {room} of both together, are taken"
            raise Refused(400, "invalid_request_error", "PROMPT", f"{sentence}; {most_told}")
        return list(found)


class Decoding:
    """Computes one answer, a token at a time; of one thread at a time.

    An answer with a reader is computed to its last token, wherever its text ends: how many states are released, and when, then
    follows from nothing that a state in clear decides.

    Attributes:
        computed: tokens so far. text_tokens: those of them that its text has. prompt: number of tokens of the prompt.
        finish: why its text ended, None before.
    """

    def __init__(
        self, served: Served, ids: Sequence[int], request: Asking, tokens: int, reader: Reader | None = None
    ) -> None:
        """``tokens``: most of the answer. ``reader``: reads the state behind each token."""
        self._served: Served | None = served
        self._request, self._reader, self._most = request, reader, tokens
        self._given, self._cache = torch.tensor([list(ids)]), None
        self._text = Text(served.tokenizer, request.stop, list(ids[-_BEFORE:]))
        self._numbers = torch.Generator()
        if request.seed is None:
            self._numbers.seed()
        else:
            self._numbers.manual_seed(request.seed)
        self.prompt, self.computed, self.text_tokens = len(ids), 0, 0
        self.finish: str | None = None

    @property
    def over(self) -> bool:
        """Tells whether nothing more is computed."""
        return self.finish is not None and (self._reader is None or self.computed >= self._most)

    @torch.inference_mode()
    def step(self) -> str:
        """Computes the next token, and returns the text that it completes, which may be empty. Sets `finish` at the end."""
        served = self._served
        assert served is not None, "an answer that ended goes on"
        served.head.reading(self._reader)
        try:
            found = served.model(
                input_ids=self._given, past_key_values=self._cache, use_cache=True, logits_to_keep=1, return_dict=True
            )
        finally:
            served.head.reading(None)
        self._cache = found.past_key_values
        token = sample(found.logits[0, -1].float(), self._request.temperature, self._request.top_p, self._numbers)
        self.computed += 1
        self._given = torch.tensor([[token]])
        if self.finish is not None:
            return ""
        self.text_tokens = self.computed
        if token in served.stops:
            self.finish = "stop"
            return self._text.rest()
        piece, stopped = self._text.add(token)
        if stopped:
            self.finish = "stop"
        elif self.computed >= self._most:
            self.finish = "length"
            piece += self._text.rest()
        return piece

    def silently(self) -> bool:
        """Lets the text end here, as nobody reads it. Returns whether the rest is computed all the same."""
        if self._reader is None or not self.computed:
            return False
        self.finish = self.finish or "cancelled"
        return not self.over

    def forget(self) -> None:
        """Lets the model, the cache and the prompt go."""
        self._served = self._reader = None
        self._cache, self._given = None, torch.empty((1, 0), dtype=torch.long)


def sample(scores: torch.Tensor, temperature: float, top_p: float, numbers: torch.Generator) -> int:
    """Returns a token drawn from scores, shape (V,); the likeliest at temperature 0."""
    if temperature == 0.0:
        return int(scores.argmax())
    chances = torch.softmax(scores.double() / temperature, dim=-1)
    if top_p < 1.0:
        ordered, order = chances.sort(descending=True)
        ordered[ordered.cumsum(-1) - ordered >= top_p] = 0.0
        return int(order[torch.multinomial(ordered, 1, generator=numbers)])
    return int(torch.multinomial(chances, 1, generator=numbers))


@dataclass
class Text:
    """Turns tokens into text as they come: whole characters alone, and nothing from a stop string on."""

    tokenizer: Any
    stops: Sequence[str]
    before: Sequence[int] = ()
    """The last ids of the prompt: tokenizers write a text by itself without its leading space."""
    _ids: list[int] = field(default_factory=list)
    _sent: int = 0
    _ended: bool = False

    def add(self, token: int) -> tuple[str, bool]:
        """Takes a token; returns the text that is sure now, and whether a stop string came."""
        self._ids.append(token)
        text = self._decoded()
        found = [at for at in (text.find(stop) for stop in self.stops) if at >= 0]
        if found:
            self._ended = True
            return self._upto(text, min(found)), True
        sure = len(text.rstrip(_LOST))
        for stop in self.stops:
            sizes = range(min(len(stop) - 1, sure), 0, -1)
            sure -= next((size for size in sizes if stop.startswith(text[sure - size : sure])), 0)
        return self._upto(text, sure), False

    def rest(self) -> str:
        """Returns what was held back."""
        text = self._decoded()
        return "" if self._ended else self._upto(text, len(text))

    def _decoded(self) -> str:
        whole = str(self.tokenizer.decode([*self.before, *self._ids], skip_special_tokens=True))
        known = str(self.tokenizer.decode(list(self.before), skip_special_tokens=True)) if self.before else ""
        if whole.startswith(known):
            return whole[len(known) :]
        return str(self.tokenizer.decode(self._ids, skip_special_tokens=True))

    def _upto(self, text: str, end: int) -> str:
        piece = text[self._sent : max(end, self._sent)]
        self._sent += len(piece)
        return piece
