"""The data of the demo: 1,797 handwritten digits that scikit-learn carries, and how they are shared out.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from dptrain.rehearsal import Tier

TIERS = (
    Tier("sensitive", 4.0, "0.75"),
    Tier("internal", 6.0, "0.5"),
    Tier("open", 8.0, "0.0"),
)
"""Classes of contributions: the top quarter of the model, the top half, or all of it."""

WEIGHTS = (0.3, 0.3, 0.4)
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
