"""Tasks of `recipes.correlated_noise`: digits, MNIST and SST-2, each with a network that a processor trains in seconds.

A record is what a contributor signs: the numbers that the network takes, in base64, and a label.
"""

import base64
import gzip
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dptrain.errors import ConfigError
from recipes.prepare import read_tsv

Record = Mapping[str, Any]
Rows = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Task:
    """Holds contributions, and public examples: some to choose a learning rate with, others to report an accuracy on.

    Attributes:
        model: makes a network with new weights.
        collate: records to ``x``, what the network takes, and ``y``, labels of shape (B,).
    """

    records: Sequence[Record]
    choosing: Sequence[Record]
    reporting: Sequence[Record]
    model: Callable[[], nn.Module]
    collate: Callable[[Sequence[Record]], Rows]

    @classmethod
    def of(
        cls,
        values: np.ndarray,
        labels: np.ndarray,
        contributions: int,
        choosing: int,
        model: Callable[[], nn.Module],
        inputs: Callable[[np.ndarray], torch.Tensor],
    ) -> "Task":
        """Cuts rows into the three parts, in their order.

        Args:
            values: shape (N, ...). labels: shape (N,). contributions, choosing: rows of the first parts; the rest reports.
            inputs: rows of shape (B, numbers) to what the network takes.

        Raises:
            ConfigError: code ROWS, no rows are left.
        """
        first, second = contributions, contributions + choosing
        if second >= len(values):
            told = f"{contributions} contributions and {choosing} examples to choose with leave none of {len(values)} rows"
            raise ConfigError("ROWS", f"{told}; give fewer --contributions")
        records = [{"x": base64.b64encode(x.tobytes()).decode(), "y": int(y)} for x, y in zip(values, labels, strict=True)]

        def collate(examples: Sequence[Record]) -> Rows:
            rows = np.stack([np.frombuffer(base64.b64decode(example["x"]), values.dtype) for example in examples])
            return {"x": inputs(rows), "y": torch.tensor([example["y"] for example in examples])}

        return cls(records[:first], records[first:second], records[second:], model, collate)


def digits(data: Path, contributions: int) -> Task:
    """Takes the 1,797 digits of scikit-learn, which need no files."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return of_pictures(found.images * 15.9375, found.target, contributions, 300)


def mnist(data: Path, contributions: int) -> Task:
    """Reads MNIST from its four gzipped files: training pictures first, 5,000 to choose with, and all test pictures."""

    def read(name: str, offset: int) -> np.ndarray:
        return np.frombuffer(gzip.decompress((data / "mnist" / name).read_bytes()), np.uint8, offset=offset)

    pictures = [read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28) for part in ("train", "t10k")]
    labels = [read(f"{part}-labels-idx1-ubyte.gz", 8) for part in ("train", "t10k")]
    rest = contributions + 5000
    joined = np.concatenate([pictures[0][:rest], pictures[1]])
    return of_pictures(joined, np.concatenate([labels[0][:rest], labels[1]]), contributions, 5000)


def of_pictures(pictures: np.ndarray, labels: np.ndarray, contributions: int, choosing: int) -> Task:
    """Makes a task of pictures of shape (N, H, H), from 0 to 255, for a network of two convolutions and two linear layers."""
    side = pictures.shape[1]
    kernel, stride = (8, 2) if side >= 16 else (3, 1)

    def model() -> nn.Module:
        front = [nn.Conv2d(1, 16, kernel, stride), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten()]
        wide = nn.Sequential(*front)(torch.zeros(1, 1, side, side)).shape[1]
        return nn.Sequential(*front, nn.Linear(wide, 32), nn.ReLU(), nn.Linear(32, 10))

    def inputs(rows: np.ndarray) -> torch.Tensor:
        pixels = torch.from_numpy(rows.reshape(-1, 1, side, side).astype(np.float32))
        return (pixels / 255.0 - 0.1307) / 0.3081  # public constants

    return Task.of(pictures.astype(np.uint8), labels, contributions, choosing, model, inputs)


def sst2(data: Path, contributions: int) -> Task:
    """Reads phrases of SST-2, 2,000 to choose with, and its development set; a small network on vectors of MiniLM is trained.

    The vector of a phrase is the mean over its first 32 tokens, from the packaged encoder, which is public and stays as it is.
    """
    phrases = [record for record in read_tsv(data / "sst2" / "train.tsv") if len(record["text"].split()) >= 10]
    random.Random(0).shuffle(phrases)
    phrases = phrases[: contributions + 2200]  # a few are equal in their first 32 tokens
    tests = read_tsv(data / "sst2" / "dev.tsv")
    vectors = encoded([row["text"] for row in phrases + tests])
    labels = np.array([row["label"] for row in phrases + tests])
    _, firsts = np.unique(vectors[: len(phrases)], axis=0, return_index=True)
    kept = np.concatenate([np.sort(firsts)[: contributions + 2000], np.arange(len(phrases), len(vectors))])

    def model() -> nn.Module:
        return nn.Sequential(nn.LayerNorm(384, elementwise_affine=False), nn.Linear(384, 64), nn.GELU(), nn.Linear(64, 2))

    def inputs(rows: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(rows.astype(np.float32))

    return Task.of(vectors[kept], labels[kept], contributions, 2000, model, inputs)


@torch.no_grad()
def encoded(texts: Sequence[str]) -> np.ndarray:
    """Returns vectors of texts, shape (N, 384), in float16.

    Raises:
        ConfigError: the encoder is not installed.
    """
    from dptrain.tasks.runconfig import TextModel
    from dptrain.tasks.text_classification import build

    model, collate = build(TextModel(name="minilm", max_length=32, pooling="mean"))
    model.eval().classifier = nn.Identity()
    found = []
    for begin in range(0, len(texts), 64):
        rows = dict(collate([{"text": text, "label": "negative"} for text in texts[begin : begin + 64]]))
        del rows["labels"]
        found.append(model(**rows).logits.numpy().astype(np.float16))
    return np.concatenate(found)


TASKS: dict[str, Callable[[Path, int], Task]] = {"digits": digits, "mnist": mnist, "sst2": sst2}
