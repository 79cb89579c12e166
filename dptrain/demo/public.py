"""Prepare the public part of the demo: digits that scikit-learn carries, and a model trained on drawn strokes.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from dptrain.demo.rehearsal import Tier
from dptrain.tasks.image_classification import build
from dptrain.tasks.runconfig import ImageModel

TIERS = (
    Tier("sensitive", 0.5, "0.75", 0.5),
    Tier("internal", 4.0, "0.5", 1.0),
    Tier("open", 8.0, "0.0", 1.0),
)
"""Classes of contributions: the top quarter of the model, the top half, or all of it. What a stricter class asks for, louder
noise, stays in the blocks that it may touch."""

WEIGHTS = (0.1, 0.3, 0.6)
CONTRIBUTORS_PER_TIER = 4
DELTA = 1e-5
CORPUS = "handwritten-digits"


@dataclass(frozen=True)
class Digits:
    """Records to contribute, public ones to validate on, and a few that only bad attestations use."""

    contributed: list[Mapping[str, Any]]
    validation: list[Mapping[str, Any]]
    spare: list[Mapping[str, Any]]


def digits(*, validation: int = 360, spare: int = 12, seed: int = 1) -> Digits:
    """The pictures in a fixed random order; a picture that occurs twice is kept once."""
    data = load_digits()
    seen: set[bytes] = set()
    records = []
    for index in np.random.default_rng(seed).permutation(len(data.target)):
        pixels = data.images[index].astype(int)
        if pixels.tobytes() not in seen:
            seen.add(pixels.tobytes())
            records.append({"pixels": pixels.tolist(), "label": int(data.target[index])})
    return Digits(records[validation + spare :], records[:validation], records[validation : validation + spare])


Strokes = list[np.ndarray]


def _arc(x: float, y: float, rx: float, ry: float, start: float, stop: float, points: int = 30) -> np.ndarray:
    """Part of an ellipse; degrees, 0 is right and 90 is down."""
    t = np.radians(np.linspace(start, stop, points))
    return np.stack([x + rx * np.cos(t), y + ry * np.sin(t)], 1)


def _line(*corners: tuple[float, float]) -> np.ndarray:
    pairs = zip(np.array(corners[:-1]), np.array(corners[1:]), strict=True)
    return np.concatenate([a + (b - a) * np.linspace(0, 1, 12)[:, None] for a, b in pairs])


# Ways to write each digit in a unit square, y downwards.
_WAYS: tuple[tuple[Strokes, ...], ...] = (
    ([_arc(0.5, 0.5, 0.35, 0.5, 0, 360, 40)], [_arc(0.5, 0.5, 0.28, 0.5, 0, 360, 40)]),
    (
        [_line((0.5, 0), (0.5, 1)), _line((0.46, 0), (0.46, 0.3))],
        [_line((0.2, 0.35), (0.55, 0), (0.55, 1)), _line((0.35, 0.3), (0.55, 0.15))],
        [_line((0.3, 0.25), (0.55, 0), (0.55, 1))],
        [_line((0.3, 0.25), (0.5, 0), (0.5, 1)), _line((0.25, 1), (0.75, 1))],
        [_line((0.6, 0), (0.45, 1))],
    ),
    (
        [_arc(0.5, 0.27, 0.32, 0.27, 190, 380), _line((0.8, 0.38), (0.2, 1), (0.85, 1))],
        [_arc(0.5, 0.25, 0.3, 0.25, 200, 400), _line((0.7, 0.45), (0.2, 0.95)), _line((0.2, 0.95), (0.85, 0.95))],
        [_arc(0.5, 0.25, 0.3, 0.25, 200, 410), _line((0.65, 0.47), (0.3, 0.8)), _arc(0.32, 0.88, 0.12, 0.1, 270, 90),
         _line((0.35, 0.8), (0.85, 1))],
    ),
    (
        [_arc(0.45, 0.26, 0.32, 0.26, 200, 450), _arc(0.45, 0.74, 0.36, 0.26, 270, 520)],
        [_line((0.2, 0.02), (0.75, 0.02), (0.45, 0.4)), _arc(0.45, 0.7, 0.33, 0.3, 270, 510)],
    ),
    (
        [_line((0.6, 0), (0.15, 0.62), (0.9, 0.62)), _line((0.65, 0.35), (0.65, 1))],
        [_line((0.25, 0), (0.2, 0.5), (0.8, 0.5)), _line((0.75, 0), (0.7, 1))],
        [_line((0.45, 0), (0.15, 0.6), (0.85, 0.6)), _line((0.7, 0.4), (0.55, 1))],
    ),
    (
        [_line((0.8, 0), (0.25, 0), (0.22, 0.45)), _arc(0.45, 0.68, 0.34, 0.32, 235, 500)],
        [_line((0.85, 0.02), (0.3, 0.02), (0.25, 0.42), (0.5, 0.38)), _arc(0.47, 0.69, 0.33, 0.31, 270, 500)],
    ),
    (
        [_arc(0.75, 0.55, 0.55, 0.55, 260, 180), _arc(0.5, 0.72, 0.3, 0.28, 0, 360, 36)],
        [_line((0.55, 0), (0.22, 0.65)), _arc(0.48, 0.73, 0.28, 0.27, 0, 360, 36)],
    ),
    (
        [_line((0.15, 0.02), (0.85, 0.02), (0.4, 1))],
        [_line((0.15, 0.05), (0.85, 0.05), (0.45, 1)), _line((0.3, 0.5), (0.8, 0.5))],
        [_line((0.2, 0.1), (0.8, 0.0), (0.65, 0.4), (0.5, 1)), _line((0.35, 0.5), (0.85, 0.45))],
    ),
    (
        [_arc(0.5, 0.25, 0.17, 0.25, 0, 360, 36), _arc(0.5, 0.75, 0.2, 0.25, 0, 360, 36)],
        [_arc(0.5, 0.25, 0.27, 0.25, 0, 360, 36), _arc(0.5, 0.75, 0.32, 0.25, 0, 360, 36)],
        [_arc(0.5, 0.26, 0.22, 0.26, 0, 360, 36), _arc(0.5, 0.76, 0.25, 0.24, 0, 360, 36)],
        [_line((0.75, 0.1), (0.3, 0.75)), _line((0.3, 0.15), (0.75, 0.8)), _arc(0.5, 0.12, 0.25, 0.12, 180, 360),
         _arc(0.5, 0.85, 0.25, 0.15, 0, 180)],
    ),
    (
        [_arc(0.48, 0.25, 0.26, 0.25, 0, 360, 36), _arc(0.4, 0.5, 0.36, 0.5, -30, 130)],
        [_arc(0.48, 0.25, 0.26, 0.25, 0, 360, 36), _line((0.74, 0.25), (0.74, 0.75)), _arc(0.45, 0.75, 0.29, 0.25, 0, 170)],
        [_arc(0.48, 0.27, 0.28, 0.27, 0, 360, 36), _arc(0.4, 0.5, 0.38, 0.5, -30, 100)],
        [_arc(0.5, 0.27, 0.27, 0.27, 0, 360, 36), _line((0.77, 0.3), (0.55, 0.75), (0.3, 1))],
    ),
)  # fmt: skip

_DOTS = np.stack(np.meshgrid(np.arange(16) + 0.5, np.arange(16) + 0.5, indexing="xy"), -1).reshape(-1, 2) * 2.0
"""Every second dot of the 32 x 32 raster; partial cover makes up for the others."""


def draw_digits(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draws digits.

    Returns:
        Pictures of shape (count, 8, 8) with values 0 to 16, and their labels of shape (count,).
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    pictures = np.stack([_draw(_WAYS[label], rng) for label in labels])
    return pictures, labels


def _draw(ways: tuple[Strokes, ...], rng: np.random.Generator) -> np.ndarray:
    points = np.concatenate([_bend(stroke, rng) for stroke in ways[rng.integers(len(ways))]]) - 0.5
    turn, slant = rng.normal(0.0, 0.12), rng.normal(-0.1, 0.2)
    rotate = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    points = points @ (rotate @ np.array([[1.0, slant], [0.0, 1.0]])).T
    low, high = points.min(0), points.max(0)
    pen = rng.uniform(1.9, 3.6)
    height = (32.0 - 2.0 * pen) / (high[1] - low[1])
    # A single upright stroke keeps its proportions; anything wider is fitted to the raster as a person would.
    wide = high[0] - low[0] > 0.15
    width = min(height * rng.uniform(0.6, 0.95), (25.0 - 2.0 * pen) / (high[0] - low[0])) if wide else height
    on_raster = (points - (low + high) / 2.0) * np.array([width, height]) + 16.0 + np.array([rng.normal(0.0, 1.2), 0.0])
    distance = np.sqrt(((_DOTS[:, None] - on_raster[None]) ** 2).sum(-1).min(1))
    cover = np.clip((pen - distance) / 2.0 + 0.5, 0.0, 1.0)
    return cover.reshape(8, 2, 8, 2).sum((1, 3)) * 4.0


def _bend(stroke: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    knots = rng.normal(0.0, 0.035, (4, 2))
    along = np.linspace(0.0, 3.0, len(stroke))
    return stroke + np.stack([np.interp(along, np.arange(4), knots[:, axis]) for axis in (0, 1)], 1)


SIZES = ImageModel(
    labels=tuple("0123456789"), image_size=8, patch_size=2, channels=1, pixel_max=16.0, hidden_size=32, hidden_layers=4
)
"""About 35,000 parameters: noise grows with their number, and 8 x 8 pixels need no more."""

_BATCH = 64


def public_model(directory: Path, *, pictures: int = 6000, epochs: int = 15, seed: int = 0) -> Path:
    """Trains on drawn digits, without privacy since nobody is in them, and saves the model.

    Returns:
        ``directory``, which holds a model that ``transformers`` loads.
    """
    torch.set_num_threads(1)  # so small a model is slower on several cores, and far slower on busy ones
    drawn, answers = draw_digits(pictures, seed)
    inputs = torch.tensor(drawn, dtype=torch.float32)[:, None] / 8.0 - 1.0
    labels = torch.tensor(answers)
    torch.manual_seed(seed)
    model, _ = build(SIZES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=epochs * (pictures // _BATCH), pct_start=0.05)
    for _ in range(epochs):
        order = torch.randperm(pictures)
        for start in range(0, pictures - _BATCH + 1, _BATCH):
            chosen = order[start : start + _BATCH]
            optimizer.zero_grad()
            # Smoothed labels keep the model unsure: drawn digits are only like the written ones.
            nn.functional.cross_entropy(model(inputs[chosen]).logits, labels[chosen], label_smoothing=0.1).backward()
            optimizer.step()
            schedule.step()
    model.save_pretrained(directory)
    return directory
