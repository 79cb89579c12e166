"""What forwards decide by content, and what is told to them in private microbatches.

A truth is told by its number in its module where the probes read so many of that module in every microbatch. Where the number
follows the rows (a loop over them), the n-th truth is another row's in other company: then all of the module are told alike, or
none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Answer = bool | None
"""What is told; None where it goes by content."""


@dataclass
class _Module:
    """What the probes saw of one module: by microbatch, of every truth in order whether it follows content, and what it was."""

    passes: dict[int, list[tuple[bool, bool]]] = field(default_factory=dict)

    @property
    def counted(self) -> bool:
        """Whether every microbatch had as many."""
        return len({len(seen) for seen in self.passes.values()}) == 1

    def answers(self) -> list[Answer]:
        """What is told of every truth, of the only one where they are not counted."""
        if self.counted:
            return [_told(seen) for seen in zip(*self.passes.values(), strict=True)]
        every = [each for seen in self.passes.values() for each in seen]
        return [_told(every) if all(content for content, _ in every) else None]


def _told(seen: Sequence[tuple[bool, bool]]) -> Answer:
    answers = {answer for _, answer in seen}
    return answers.pop() if len(answers) == 1 and any(content for content, _ in seen) else None


class Truths:
    """Truths of all modules, by path."""

    def __init__(self) -> None:
        self._modules: dict[str, _Module] = {}
        self._answers: dict[str, list[Answer]] = {}

    def see(self, number: int, path: str, content: bool, answer: bool) -> None:
        """Notes a truth that microbatch ``number`` of the probes read, and whether it follows content."""
        self._modules.setdefault(path, _Module()).passes.setdefault(number, []).append((content, answer))
        self._answers.pop(path, None)

    def known(self, path: str) -> bool:
        """Whether truths of this module are told one by one, or all alike."""
        return path in self._modules and (self._modules[path].counted or self.told(path, 0) is not None)

    def told(self, path: str, number: int) -> Answer:
        """What the truth of this number is told, None for its own answer."""
        if path not in self._modules:
            return None
        if path not in self._answers:
            self._answers[path] = self._modules[path].answers()
        answers = self._answers[path]
        if not self._modules[path].counted:
            return answers[0]
        return answers[number] if number < len(answers) else None

    @property
    def decided(self) -> Mapping[str, bool]:
        """Modules of which a truth is told, and what."""
        found = {}
        for path, module in self._modules.items():
            told = [answer for answer in module.answers() if answer is not None]
            if told:
                found[path] = told[-1]
        return found
