"""Releases the ``r`` numbers that a low-rank adapter reads of a state, in place of the state.

An adapter adds ``delta = scaling B A h``. Whoever applies B needs ``z = A h`` alone, so z is what is clipped and noised. At
equal guarantee the relative error of delta is then ``(sigma / C) sqrt(r)`` and no longer ``(sigma / C) sqrt(d)``: not
because a projection takes noise away, but because the clip spends nothing on the d - r directions that nobody reads. A must
not depend on the query.

Noise that is larger than the signal makes delta worse than none. A public factor shrinks it, so that less privacy budget leads
back to the base model: `shrinkage`, from states of public text.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from dptrain.errors import ConfigError
from dptrain.inference.gaussian import Worth
from dptrain.inference.release import Answer, Released


class RankSpace:
    """Applies an adapter to a private state through a release of its r coordinates.

    Args:
        A: peft's ``lora_A.weight``, shape (r, d). B: ``lora_B.weight``, shape (m, r). Both of numpy, or both of torch.
        scaling: peft's ``lora_alpha / r``, or ``lora_alpha / sqrt(r)`` of rsLoRA.
        shrink: public factor on delta, from `shrinkage`.

    Raises:
        ConfigError: code ADAPTER, the shapes do not fit; SHRINK, no finite number from 0 on.
    """

    def __init__(self, A: Any, B: Any, *, scaling: float = 1.0, shrink: float = 1.0) -> None:
        if A.ndim != 2 or B.ndim != 2 or A.shape[0] != B.shape[1]:
            raise ConfigError("ADAPTER", f"A has shape (r, d) and B (m, r), got {tuple(A.shape)} and {tuple(B.shape)}")
        if not 0.0 <= shrink < float("inf"):
            raise ConfigError("SHRINK", f"a factor of shrinkage is a finite number, 0 or more, got {shrink!r}")
        self.A, self.B = A, B
        self.scaling, self.shrink = scaling, shrink

    @property
    def rank(self) -> int:
        """r, the numbers that a release has."""
        return int(self.A.shape[0])

    def project(self, state: Any) -> Any:
        """Returns ``z = A h`` of a state, shape (d,) to (r,); private, and not to be shown."""
        if state.ndim != 1 or state.shape[0] != self.A.shape[1]:
            raise ConfigError("STATE", f"a state has shape ({self.A.shape[1]},), as A reads it, got {tuple(state.shape)}")
        return self.A @ state

    def expand(self, z: Any) -> Any:
        """Returns ``shrink scaling B z`` of released coordinates, shape (r,) to (m,): a function of what is released."""
        return (self.shrink * self.scaling) * (self.B @ z)

    def release(self, answer: Answer, state: Any) -> Released:
        """Releases z of a state by an answer that is paid for, and returns delta made of it.

        Args:
            state: of the kind and type of A, shape (d,).

        Raises:
            ConfigError: code STATE, another shape. NotPaid: the answer has no release left.
        """
        found = answer.release(self.project(state))
        return replace(found, state=self.expand(found.state))


def shrinkage(public: np.ndarray, worth: Worth) -> float:
    """Returns the factor f that brings noised coordinates nearest to clear ones, in the mean over public ones.

    It minimises ``E |f (clip(z) + noise) - z|^2``: ``f = E <clip(z), z> / (E |clip(z)|^2 + r sigma^2)``.

    Args:
        public: float, shape (n, r); coordinates A h of public text, never of queries. worth: of the releases that it is for.

    Raises:
        ConfigError: code PUBLIC_STATES, no matrix of finite numbers.
    """
    z = np.asarray(public, dtype=np.float64)
    if z.ndim != 2 or not z.size or not np.isfinite(z).all():
        raise ConfigError("PUBLIC_STATES", f"public coordinates are a matrix of finite numbers, got shape {z.shape}")
    lengths = np.linalg.norm(z, axis=1)
    kept = np.minimum(lengths, worth.clip)
    return float(np.mean(kept * lengths) / (np.mean(kept**2) + z.shape[1] * worth.sigma**2))
