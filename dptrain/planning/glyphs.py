"""Characters of pictures on a terminal, and plain ones for a screen that takes no Unicode."""

from dataclasses import dataclass

Line = list[tuple[str, str]]
"""Pieces of one line, each with its style."""


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters of a picture; `levels` ascend."""

    touched: str
    partly: str
    public: str
    outside: str
    wall: str
    levels: str
    epsilon: str


UNICODE = Glyphs("█", "▒", "░", "·", "│", "▁▂▃▄▅▆▇█", "ε")
ASCII = Glyphs("#", "+", "o", ".", "|", "12345678", "epsilon")

PLAIN = {"∞": "inf", "ε": "epsilon", "δ": "delta", "σ": "sigma", "✗": "x", "×": "x", "–": "-", "—": "-", "…": "...", "µ": "u"}
"""What stands for a character that a screen does not take."""
