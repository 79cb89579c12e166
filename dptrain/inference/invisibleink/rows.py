"""Makes the rows of a text: one public prompt, and one prompt for each reference, all padded to one public length.

The length follows from the task, its labels and the tokenizer alone. Every row has at least one place of padding on its left,
so that no mask is ever all ones: for such a mask a library may take another way through its kernels, and the content of one
row would decide how the others are rounded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from dptrain.errors import ConfigError
from dptrain.inference.invisibleink.tasks import Task

MULTIPLE: Final = 16
"""Lengths are multiples of this, so that labels of different length share a shape."""

CHARACTERS: Final = 32
"""Characters of a reference that are looked at, for each of its tokens: far more than a token has."""


@dataclass(frozen=True, repr=False)
class Rows:
    """Holds the prompts of one text; the first row is the public one.

    Attributes:
        ids, mask: shape (B + 1, L). null: places of the references that are null, from 0 on.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    null: tuple[int, ...]


class Prompts:
    """Renders and pads the prompts of a task.

    Guarantee: the shape of the rows is public: it follows from task, labels and number of references. The public row follows
    from task and labels, and the row of a reference from these and that reference. A null reference has the public row.

    A reference is cut on its own side, before it goes into the prompt, so that instructions and the chat template stay whole.
    Of one that is longer, the tokenizer sees a public number of characters: how long it takes over a reference still follows
    from what stands in it, up to that bound.
    """

    def __init__(self, tokenizer: Any, task: Task, labels: Mapping[str, str] | None = None) -> None:
        """Raises ConfigError: code LABELS, as `Task.render`; PROMPT, the public prompt has no tokens."""
        self._tokenizer, self._task, self._labels = tokenizer, task, dict(labels or {})
        self.opening: list[int] = self._plain(task.opening) if task.opening else []
        self._public = self._ids(None)
        if not self._public:
            raise ConfigError("PROMPT", "the public prompt has no tokens; write one")
        least = max(len(self._public), len(self._templated(task.frame(self._labels))) + task.reference_tokens)
        whole = 1 + least + len(self.opening)
        self.length = -(-whole // MULTIPLE) * MULTIPLE
        self._most = self.length - 1 - len(self.opening)
        pad = tokenizer.pad_token_id
        self._pad = int(pad if pad is not None else tokenizer.eos_token_id or 0)

    def rows(self, references: Sequence[str | None]) -> Rows:
        """Returns the rows of references, the public one first. Raises ConfigError: code REFERENCE, one is no text."""
        if not all(one is None or isinstance(one, str) for one in references):
            raise ConfigError("REFERENCE", "a reference is a text, or None where it is null")
        found = [self._public, *(self._ids(one) if one else self._public for one in references)]
        ids = torch.full((len(found), self.length), self._pad)
        mask = torch.zeros((len(found), self.length), dtype=torch.long)
        for place, row in enumerate(found):
            whole = [*row, *self.opening]
            ids[place, self.length - len(whole) :] = torch.tensor(whole)
            mask[place, self.length - len(whole) :] = 1
        return Rows(ids, mask, tuple(place for place, one in enumerate(references) if not one))

    def _ids(self, reference: str | None) -> list[int]:
        """Returns the ids of a prompt, with as much of the reference as there is room for."""
        if not reference:
            return self._templated(self._task.render(None, self._labels))
        cut = self._plain(reference[: CHARACTERS * self._task.reference_tokens])[: self._task.reference_tokens]
        while True:
            text = self._tokenizer.decode(cut) if cut else ""
            found = self._templated(self._task.render(text, self._labels) if text else self._task.frame(self._labels))
            over = len(found) - self._most
            if over <= 0:
                return found
            if not cut:  # the frame has room, by the length
                raise ConfigError("PROMPT", "the prompt without its reference is longer than the length that was computed")
            cut = cut[: max(0, len(cut) - over)]

    def _templated(self, prompt: str) -> list[int]:
        if not getattr(self._tokenizer, "chat_template", None):
            text = f"{self._task.system}\n\n{prompt}" if self._task.system else prompt
            return list(self._tokenizer(text, verbose=False)["input_ids"])
        system = [{"role": "system", "content": self._task.system}] if self._task.system else []
        messages = [*system, {"role": "user", "content": prompt}]
        text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return self._plain(text)

    def _plain(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])  # no lengths in logs
