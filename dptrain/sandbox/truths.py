"""Learn what forwards decide by content, and answer such questions in private microbatches.

A truth is told by its number in its module where the probes read so many of that module in every microbatch. Where the number
follows the rows (a loop over them), the n-th truth is another row's in other company: then all of the module are told alike, or
none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Answer = bool | None
"""An answer that is given; None where it goes by content."""


@dataclass
class _Module:
    """The truths of one module in the probes: by microbatch, in order, whether each follows content, and its value."""

    passes: dict[int, list[tuple[bool, bool]]] = field(default_factory=dict)

    def counted(self, sides: Mapping[int, str]) -> bool:
        """Tell if every microbatch had as many: all those in which numbers that decide for all samples fell on one side."""
        ran = {sides[number] for number in self.passes}
        return len({len(self.passes.get(number, ())) for number, side in sides.items() if side in ran}) == 1

    def answers(self, counted: bool) -> list[Answer]:
        """Return the answer to every truth, or to the only one where they are not counted."""
        if counted:
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
        self._sides: dict[int, str] = {}
        self._answers: dict[str, tuple[bool, list[Answer]]] = {}

    def begin(self, number: int, side: str) -> None:
        """Begins microbatch ``number`` of the probes, in which single numbers fall on this side."""
        self._sides[number] = side
        self._answers.clear()

    def see(self, number: int, path: str, content: bool, answer: bool) -> None:
        """Notes a truth that microbatch ``number`` of the probes read, and whether it follows content."""
        self._modules.setdefault(path, _Module()).passes.setdefault(number, []).append((content, answer))

    def known(self, path: str) -> bool:
        """Tell if truths of this module are answered one by one, or all alike."""
        return path in self._modules and (self._found(path)[0] or self.told(path, 0) is not None)

    def told(self, path: str, number: int) -> Answer:
        """Return the answer to the truth of this number, None for its own."""
        if path not in self._modules:
            return None
        counted, answers = self._found(path)
        if not counted:
            return answers[0]
        return answers[number] if number < len(answers) else None

    def _found(self, path: str) -> tuple[bool, list[Answer]]:
        """Tell if truths of a module are counted, and return the answers; found anew after a probe."""
        if path not in self._answers:
            module = self._modules[path]
            counted = module.counted(self._sides)
            self._answers[path] = counted, module.answers(counted)
        return self._answers[path]

    @property
    def decided(self) -> Mapping[str, bool]:
        """Modules of which a truth is told, and what."""
        found = {}
        for path in self._modules:
            told = [answer for answer in self._found(path)[1] if answer is not None]
            if told:
                found[path] = told[-1]
        return found
