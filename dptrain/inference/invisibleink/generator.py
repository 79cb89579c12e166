"""Generates texts from private references with a causal language model: Algorithm 1, streamed, and paid for beforehand."""

import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

import numpy as np

from dptrain.errors import ConfigError, NotPaid
from dptrain.inference.invisibleink.formulas import weights
from dptrain.inference.invisibleink.forward import Form, Forward
from dptrain.inference.invisibleink.isolation import check_rows
from dptrain.inference.invisibleink.paying import paid_for
from dptrain.inference.invisibleink.plan import Plan
from dptrain.inference.invisibleink.rows import Prompts, Rows
from dptrain.inference.invisibleink.sampler import NO_PRIVACY, TokenSampler
from dptrain.inference.invisibleink.tasks import Task
from dptrain.inference.release import Receipt

_LOST: Final = "\ufffd"
"""Stands for bytes that are no whole character yet."""

_PATIENCE: Final = 8
"""Tokens that a character is waited for; none has more bytes than four."""

_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
"""Name fields of a model's configuration, as parts of their names, that say how many experts share its tokens."""

_BY_LENGTH: Final = ("longrope", "su")
"""Types of rotary positions whose factors follow from the longest row of a call; those with ``dynamic`` in their name keep them
for calls that follow."""


class Meter(Protocol):
    """Reserves tokens from a budget, and settles what was computed; `dptrain.inference.invisibleink.BudgetMeter` is one."""

    def reserve(self, releases: int, *, mechanism: str, nano_rho: int) -> Receipt:
        """Returns a receipt once the reservation is durable, and raises where the budget does not hold it."""

    def settle(self, receipt: Receipt, computed: int) -> None:
        """Ends a reservation, of which ``computed`` tokens were computed; the others come back."""


@dataclass(frozen=True)
class Token:
    """Holds a token that was released.

    Attributes:
        id: in the vocabulary. text: what it completes of the text, which may be empty. number: from 1 on.
    """

    id: int
    text: str
    number: int


class InvisibleInk:
    """Generates texts with one model, task and plan; threads may share it where they may share the model.

    Guarantee: each text is drawn as the plan says, paid for before the first forward pass. Before the first text, and after
    every ``recheck_every``, rows are tested for independence at the shapes that are served; where it fails, nothing is
    generated. Where tensors of the model were exchanged, its compiled step is made and tested anew before the next text.
    Nothing of a reference decides a shape, or when a text ends, but by the tokens that are drawn.

    Args:
        model: causal language model of transformers. tokenizer: its own; with a chat template that is used.
        task: the prompts. plan: the numbers.
        minibatch: rows that go through the model at a time, None for all B + 1: less memory, more time.
        compile: whether tokens behind the prompts run by one compiled step for each public shape. It takes some seconds, or
            minutes for a large model, before the first text of a shape. Logits are those of the plain form up to rounding, all
            rows of a text have one form, and what a text is worth does not depend on it.
        recheck_every: texts between two tests of the rows.
        seed, unsafe_reproducible: as `TokenSampler`; for tests alone.

    Raises:
        ConfigError: code MINIBATCH, RECHECK, or as `TokenSampler`; ATTENTION or EXPERTS, kernels whose shapes follow from
            what is in the rows; ROTARY, positions whose factors follow from the longest row.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        task: Task,
        plan: Plan,
        *,
        minibatch: int | None = None,
        compile: bool = False,
        recheck_every: int = 256,
        seed: int | None = None,
        unsafe_reproducible: bool = False,
    ) -> None:
        if minibatch is not None and (isinstance(minibatch, bool) or not 1 <= minibatch <= plan.batch + 1):
            raise ConfigError("MINIBATCH", f"a minibatch has 1 to {plan.batch + 1} rows, got {minibatch!r}")
        if isinstance(recheck_every, bool) or recheck_every < 1:
            raise ConfigError("RECHECK", f"rows are tested after a whole number of texts, from 1 on, got {recheck_every!r}")
        if minibatch != 1:  # a row by itself may take what kernels it likes
            _require_public_shapes(model.config.get_text_config())
        _require_own_positions(model, alone=minibatch == 1)
        self.model, self.tokenizer, self.task, self.plan = model.eval(), tokenizer, task, plan
        self.minibatch, self.compile, self.recheck_every = minibatch, compile, recheck_every
        self._sampler = TokenSampler(seed=seed, unsafe_reproducible=unsafe_reproducible)
        self._since: dict[int, int] = {}  # texts since the rows of a length were tested
        self._forms: dict[int, Form] = {}
        self._checking, self._counting = threading.RLock(), threading.Lock()
        self.ends = _ends(model, tokenizer)

    @property
    def privacy(self) -> str:
        """Says what each text is worth: the plan's epsilon, or that there is no privacy."""
        return self.plan.sentence if self._sampler.private else NO_PRIVACY

    def check(self, labels: Mapping[str, str] | None = None) -> None:
        """Tests the rows at the shapes of these labels now; a service calls it before it says that it is ready.

        Raises:
            NotPrivateUse: as `check_rows`. ConfigError: code LABELS, ROOM or WINDOW, or COMPILE as `form_of`.
        """
        self._check_length(self._prompts(labels).length)

    def stream(
        self, references: Sequence[str | None], meter: Meter, *, labels: Mapping[str, str] | None = None
    ) -> "Stream":
        """Pays for a text, and returns the iterator of its tokens.

        Args:
            references: exactly B; None or empty where one is null. meter: pays. labels: public words of the task.

        Raises:
            ConfigError: code BATCH, another number of references; LABELS, REFERENCE, ROOM, WINDOW or COMPILE. NotPaid: code
                RECEIPT.
            NotPrivateUse: as `check_rows`; nothing is spent then. What the meter raises passes through.
        """
        if isinstance(references, str) or len(references) != self.plan.batch:
            sentence = f"the plan has {self.plan.batch} references of one text, got {len(references)}"
            raise ConfigError("BATCH", f"{sentence}; give null ones (None) where there are fewer: B is public")
        prompts = self._prompts(labels)
        if self.plan.adjacency == "retrieval":  # their order follows from private scores: see `retrieval`
            references = secrets.SystemRandom().sample(references, len(references))
        rows = prompts.rows(references)
        receipt = paid_for(meter, self.plan)
        try:
            self._require_tested(prompts.length)
        except BaseException:
            meter.settle(receipt, 0)  # no reference went through the model
            raise
        return Stream(self, rows, prompts.opening, meter, receipt)

    def generate(
        self, references: Sequence[str | None], meter: Meter, *, labels: Mapping[str, str] | None = None
    ) -> "Stream":
        """Returns a stream that has ended. Args, errors: as `stream`."""
        stream = self.stream(references, meter, labels=labels)
        for _ in stream:
            pass
        return stream

    def _prompts(self, labels: Mapping[str, str] | None) -> Prompts:
        prompts = Prompts(self.tokenizer, self.task, labels)
        config, whole = self.model.config.get_text_config(), prompts.length + self.plan.tokens
        room, window = (getattr(config, name, None) for name in ("max_position_embeddings", "sliding_window"))
        if room is not None and whole > room:
            sentence = f"prompts of {prompts.length} tokens and a text of {self.plan.tokens} are more than the model's {room}"
            raise ConfigError("ROOM", f"{sentence}; lower reference_tokens of the task, or tokens of the plan")
        eager = self.minibatch == 1 or getattr(config, "_attn_implementation", None) == "eager"
        if window is not None and window < whole and not eager:
            sentence = f"the model attends to {window} tokens, rows have {whole}, and padding among those would choose kernels"
            raise ConfigError("WINDOW", f"{sentence}; load the model with attn_implementation='eager', or use minibatch=1")
        return prompts

    def _form(self, length: int) -> Form | None:
        """Returns what was tested and may serve again; None where a graph keeps other tensors than the model has now."""
        found = self._forms.get(length)
        return None if found is None or (found.graph is not None and not found.graph.is_of(self.model)) else found

    def _require_tested(self, length: int) -> None:
        """Counts a text, and tests the rows of its length before where it is time to. A text of a length that was tested waits
        for no test of another."""
        if self._counted(length):
            return
        with self._checking:
            while not self._counted(length):
                self._check_length(length)

    def _counted(self, length: int) -> bool:
        """Counts a text of a length whose rows were tested, in a form that may serve still, and tells whether they were."""
        stale = self._form(length) is None
        with self._counting:
            if stale or self._since.get(length, self.recheck_every) >= self.recheck_every:
                return False
            self._since[length] += 1
            return True

    def _check_length(self, length: int) -> None:
        plan = self.plan
        with self._checking:
            with self._counting:
                self._since.pop(length, None)
            form = check_rows(
                self.model, plan.batch, length, plan.tokens, minibatch=self.minibatch, compile=self.compile,
                form=self._form(length),
            )  # fmt: skip
            if form.graph is not None and not form.graph.is_of(self.model):
                from dptrain.inference.invisibleink.decoding.graph import LEAVE

                sentence = "the model exchanges tensors of its own while it runs, and a compiled step keeps those that it had"
                raise ConfigError("COMPILE", f"{sentence}; {LEAVE}")
            self._forms[length] = form
            self._since[length] = 0


class Stream:
    """Iterates over the tokens of one text; `InvisibleInk.stream` makes it.

    Guarantee: at most T tokens are drawn, each from weights of which neighbours differ as the plan says. When the text has
    ended, by its end token, at T or by `close`, the tokens that were never computed go back, and no others: this follows from
    released tokens, and from who reads them. After an error nothing goes back. The epsilon that is quoted is that of T.

    Attributes:
        tokens: ids that were released, the end token among them. finish: ``stop``, ``length``, ``cancelled``, or None before.
        computed: tokens whose forward pass was begun. receipt: what the meter gave.
    """

    def __init__(self, ink: InvisibleInk, rows: Rows, opening: list[int], meter: Meter, receipt: Receipt) -> None:
        self._ink, self._meter, self.receipt = ink, meter, receipt
        form = ink._forms[rows.ids.shape[1]]  # the one that was tested
        self._forward: Forward | None = Forward(ink.model, rows, max(2, ink.plan.tokens), ink.minibatch, form)
        self._null = np.array(rows.null, dtype=np.intp)
        self._opening, self._text = opening, _Text(ink.tokenizer, opening)
        self.tokens: list[int] = []
        self.finish: str | None = None
        self.computed = 0
        self._process = os.getpid()
        self._failed = False

    @property
    def text(self) -> str:
        """The text so far, with its opening words."""
        return str(self._ink.tokenizer.decode([*self._opening, *self.tokens], skip_special_tokens=True))

    @property
    def privacy(self) -> str:
        """Says what the text is worth, whatever its length."""
        return self._ink.privacy

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> Token:
        """Computes and draws the next token.

        Raises:
            NotPaid: code OTHER_PROCESS, the text was paid for in another process; FAILED, it ended with an error before.
        """
        if self.finish is not None:
            raise StopIteration
        if os.getpid() != self._process:
            raise NotPaid("OTHER_PROCESS", "this text was paid for in another process, which counts it; stream one here")
        if self._failed:
            raise NotPaid("FAILED", "this text ended with an error, and is spent; stream another")
        plan, forward = self._ink.plan, self._forward
        assert forward is not None
        self._failed = True
        self.computed += 1
        logits = forward.step(self.tokens[-1]) if self.tokens else forward.begin()
        token = self._drawn(logits, plan)
        self.tokens.append(token)
        piece = self._text.add(token)
        self._failed = False
        if token in self._ink.ends:
            self._end("stop")
        elif self.computed >= plan.tokens:
            self._end("length")
        return Token(token, piece if self.finish is None else piece + self._text.rest(), len(self.tokens))

    def close(self) -> None:
        """Ends the text here. What was computed is spent, what never was comes back; after an error nothing does."""
        if self.finish is None and not self._failed and os.getpid() == self._process:
            self._end("cancelled")

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.close()

    def __reduce__(self) -> NoReturn:
        """Refuses: two copies would count apart."""
        raise TypeError("a text that is streamed cannot be pickled or copied: what is paid once would be drawn twice")

    def _drawn(self, logits: np.ndarray, plan: Plan) -> int:
        public, private = logits[0], logits[1:]
        private[self._null] = public  # a null reference moves nothing, however its row is rounded
        ids, found = weights(private, public, plan.k or len(public), plan.clip, plan.tau)
        return int(ids[self._ink._sampler.draw(found)])

    def _end(self, finish: str) -> None:
        self.finish, self._forward = finish, None
        self._meter.settle(self.receipt, self.computed)


class _Text:
    """Turns tokens into text as they come, in whole characters."""

    def __init__(self, tokenizer: Any, before: list[int]) -> None:
        self._tokenizer, self._ids, self._start, self._said = tokenizer, list(before), 0, len(before)

    def add(self, token: int) -> str:
        self._ids.append(token)
        piece = self._new()
        if piece.endswith(_LOST) and len(self._ids) - self._said < _PATIENCE:
            return ""
        self._start, self._said = self._said, len(self._ids)
        return piece

    def rest(self) -> str:
        """Returns what was held back."""
        return self._new()

    def _new(self) -> str:
        known, now = self._decoded(self._said), self._decoded(len(self._ids))
        return now[len(known) :]

    def _decoded(self, end: int) -> str:
        return str(self._tokenizer.decode(self._ids[self._start : end], skip_special_tokens=True))


def _require_public_shapes(config: Any) -> None:
    kernel = str(getattr(config, "_attn_implementation", None))
    if "flash" in kernel:
        sentence = f"attention is {kernel!r}, which drops padding, so that lengths of references decide its shapes"
        raise ConfigError("ATTENTION", f"{sentence}; load the model with attn_implementation='sdpa', or use minibatch=1")
    if _has_experts(config):
        sentence = "the model has experts, and what is in a reference decides how many tokens each of them takes"
        raise ConfigError("EXPERTS", f"{sentence}; use minibatch=1, which runs every row by itself")


def _has_experts(found: Any) -> bool:
    """Tells whether a field of a configuration, or of one within it, is of more than one expert."""
    if isinstance(found, (list, tuple)):
        return any(_has_experts(one) for one in found)
    if not isinstance(found, Mapping) and not hasattr(found, "to_dict"):
        return False
    fields = found if isinstance(found, Mapping) else vars(found)
    named = (value for name, value in fields.items() if any(part in str(name) for part in _EXPERTS))
    return any(map(_several, named)) or any(map(_has_experts, fields.values()))


def _several(count: Any) -> bool:
    return any(map(_several, count)) if isinstance(count, (list, tuple)) else isinstance(count, (int, float)) and count > 1


def _require_own_positions(model: Any, *, alone: bool) -> None:
    """Refuses rotary factors that a call chooses by the largest position in it, which private lengths decide."""
    config = model.config.get_text_config()
    named = [getattr(config, name, None) for name in ("rope_parameters", "rope_scaling")]
    kinds = _words([*named, *(getattr(module, "rope_type", None) for module in model.modules())])
    sentence = "the longest row of a call decides how the model places the tokens of all rows"
    for kind in sorted(kinds):
        if "dynamic" in kind:
            raise ConfigError("ROTARY", f"{sentence} (rope type {kind!r}), and of later calls; use a model without it")
        if kind in _BY_LENGTH and not alone:
            raise ConfigError("ROTARY", f"{sentence} (rope type {kind!r}); use minibatch=1, which runs every row by itself")


def _words(found: Any) -> set[str]:
    """Returns the words within settings, those of each type of layer too."""
    if isinstance(found, Mapping):
        found = list(found.values())
    if isinstance(found, (list, tuple)):
        return {word for one in found for word in _words(one)}
    return {found} if isinstance(found, str) else set()


def _ends(model: Any, tokenizer: Any) -> frozenset[int]:
    found = getattr(model.generation_config, "eos_token_id", None)
    ends = [found] if isinstance(found, int) else list(found or ())
    return frozenset([*ends, *([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id])])
