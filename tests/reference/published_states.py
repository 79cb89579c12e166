"""Transcribes the published release of hidden states, to show by tests where it does not hold what it says.

From the page "Differential Privacy: Post-Transformer Gaussian Mechanism" of TenSafe, in our letters: a state h of d numbers, an
adapter B A of rank r, and the page's epsilon, delta and clip norm. The page's code calls the global generator of numpy; here
one is handed over, which changes nothing but who else draws from it. Nothing of the product uses this file.
"""

import math
from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray

EPSILON, DELTA, CLIP, CAP = 1.0, 1e-5, 1.0, 10.0
WIDTH, RANK, NORM = 1536, 32, 177.5
"""Of the model that the page tells of: numbers of a state, rank of the adapter, the middle of the norms 165 to 190."""


def sigma_of(epsilon: float = EPSILON, delta: float = DELTA, sensitivity: float = CLIP) -> float:
    """Returns the page's standard deviation of the noise, by its formula, at whatever epsilon."""
    return sensitivity * math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon


SIGMA = sigma_of()


def total_of(queries: int, epsilon: float = EPSILON, delta: float = DELTA) -> float:
    """Returns the epsilon of several queries by the page's advanced composition."""
    root = math.sqrt(2.0 * queries * math.log(1.0 / delta))
    return root * epsilon + queries * epsilon * (math.exp(epsilon) - 1.0)


def clipped(h: Array) -> Array:
    """Returns a state that is brought to the norm 1 where it is longer."""
    norm = float(np.linalg.norm(h))
    return h * (CLIP / norm) if norm > CLIP else h


@dataclass
class Tracker:
    """Counts queries of sessions, and says whether the cap holds."""

    spent: dict[str, int] = field(default_factory=dict)

    def consume(self, session: str) -> bool:
        """Adds one query and returns whether the total is below the cap."""
        self.spent[session] = self.spent.get(session, 0) + 1
        return total_of(self.spent[session]) < CAP


@dataclass
class Server:
    """Runs the page's chain for a token: state, noise, encryption, adapter, decryption, output.

    Attributes:
        A: (r, d). B: (d, r). tracker: of its sessions. key: the one secret key of the encryption, which the server makes.
        seen: all that its memory held in clear, by name, in order. warnings: what the log says.
    """

    A: Array
    B: Array
    tracker: Tracker = field(default_factory=Tracker)
    key: Array = field(default_factory=lambda: np.random.default_rng().integers(0, 2**62, 4))
    seen: list[tuple[str, object]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def noised(self, h: Array, session: str = "default", *, track_budget: bool = True, draw: object = np.random) -> Array:
        """Returns the noised state, as `_add_dp_noise` does, whatever the tracker says."""
        noised = clipped(h) + draw.normal(0.0, SIGMA, size=h.shape)  # type: ignore[attr-defined]
        if track_budget and not self.tracker.consume(session):
            self.warnings.append(f"budget of {session} is exceeded")
        return noised

    def token(self, prompt: str, h: Array, session: str) -> Array:
        """Returns y = h + B A (noised state), as `generate_stream` and `split_forward` do; both ask for no tracking."""
        noised = self.noised(h, session, track_budget=False)
        delta = self.B @ (self.A @ noised)  # under encryption, and decrypted here by the server's own key
        self.seen += [("prompt", prompt), ("state", h), ("key", self.key), ("delta", delta)]
        return h + delta
