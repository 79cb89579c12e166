"""How sets of numbers (heads, experts) are written."""

from collections.abc import Iterable


def numbers(values: Iterable[int]) -> str:
    """``0-3``, ``0+2-4``: runs of numbers, cut short where there are many."""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and runs[-1][1] == value - 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    total = sum(b - a + 1 for a, b in runs)
    return "+".join(shown) if len(shown) <= 12 else "+".join([*shown[:10], f"... ({total})"])
