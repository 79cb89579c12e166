"""The common generators of torch, Python and numpy: where they stand, put aside, seeded, put back."""

import random
from typing import Any

import numpy as np
import torch


class Generators:
    """Where the common generators stood when this was made.

    Args:
        with_torch: whether torch's generator on the processor is among them.
    """

    def __init__(self, *, with_torch: bool = True) -> None:
        self._with_torch = with_torch
        self._before = self._now()
        self._seeded = self._before

    def seed(self, seed: int, *, watched: bool = True) -> None:
        """Seeds all of them.

        Args:
            seed: 0 or more, below 2^63.
            watched: whether `moved` will be asked; to look where they stand takes as long as to seed them.
        """
        random.seed(seed)
        np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
        if self._with_torch:
            torch.default_generator.manual_seed(seed)
        if watched:
            self._seeded = self._now()

    def moved(self) -> bool:
        """Tells whether anybody drew since they were looked at, or seeded, last."""
        now, before = self._now(), self._seeded
        if now[0] != before[0] or now[1][2:] != before[1][2:] or not np.array_equal(now[1][1], before[1][1]):
            return True
        return self._with_torch and not torch.equal(now[2], before[2])

    def restore(self) -> None:
        """Puts them back to where they stood."""
        random.setstate(self._before[0])
        np.random.set_state(self._before[1])
        if self._with_torch:
            torch.set_rng_state(self._before[2])

    def _now(self) -> tuple[Any, Any, Any]:
        # (name, key, position, has_gauss, cached_gaussian) of numpy
        return random.getstate(), np.random.get_state(), torch.get_rng_state() if self._with_torch else None
