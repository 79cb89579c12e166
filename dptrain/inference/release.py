"""Releases states of a model with Gaussian noise, each paid for before anything leaves.

A state is clipped to the L2 norm C, brought to the lattice ``gamma = sigma 2^-32``, and given rounded noise N(0, sigma^2)
there, as sums in training are (docs/mechanism, Theorem 2): what is released is gamma times a whole number, whatever the
state, so that no bit of a floating-point number tells of it. The bound holds in whole numbers: coordinates are cut towards
zero, and the sum of their squares is compared exactly. Every release has a key of its own from the operating system, which
is forgotten with it.

It protects a query from whoever reads what is released, and from nobody who runs this code or computes the state.
"""

import logging
import math
import os
import threading
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn, Protocol, runtime_checkable

import numpy as np
import torch

from dptrain.errors import ConfigError, NotPaid
from dptrain.inference.gaussian import Worth, sensitivity_of, sigma_analytic
from dptrain.inference.preset import Parameters
from dptrain.noise.keystream import KeyStream
from dptrain.noise.lattice import CHUNK, LatticeGaussian
from ledger.accountants.table import LATTICE_BITS

LOG = logging.getLogger("dptrain.inference")

_INSIDE = 1.0 - 2.0**-40
"""Share of the clip norm to which a state that is longer is brought, and again until its whole numbers are within the norm."""


@runtime_checkable
class Receipt(Protocol):
    """Says that a budget holds what is about to be released; each call of `Meter.reserve` gives one of its own."""

    @property
    def releases(self) -> int:
        """Number of releases that are paid for."""


class Meter(Protocol):
    """Reserves from the budget of one privacy unit."""

    def reserve(self, releases: int, *, mechanism: str, nano_rho: int) -> Receipt:
        """Returns a receipt once the reservation is durable, and raises where the budget does not hold it.

        Args:
            releases: their number, which will never be exceeded. mechanism: its law and parameters, in words.
            nano_rho: charge of each release, a zCDP parameter in 1e-9, rounded up.
        """


@dataclass(frozen=True)
class Released:
    """Holds what may leave, and what it is worth.

    Attributes:
        state: the clipped state with noise; of the kind, shape, type and device of the state that was given.
        worth: of the whole answer that this belongs to, whether or not all of its releases are made.
        number: of the release in its answer, from 1 on.
    """

    state: Any
    worth: Worth
    number: int


class GaussianRelease:
    """Releases clipped states with Gaussian noise, in answers that are charged whole.

    Either ``epsilon`` is given, of a whole answer of ``tokens`` releases, and sigma is calibrated (`sigma_analytic`); or
    ``sigma``, of one release. Neither a state in clear nor one that is not charged can be asked for.

    Args:
        clip: L2 norm C > 0 to which every state is clipped.
        adjacency: ``replace_one`` (sensitivity 2C) or ``replace_null`` (C); it says what is charged.
        delta: of every (epsilon, delta) that is said.
        epsilon: of one answer. sigma: standard deviation of the noise on each number of a state.
        tokens: T; releases of one answer at most, each of a whole state.

    Raises:
        ConfigError: code SIGMA_OR_EPSILON, both are given or none.
        AccountantError: a number is out of range, or so little noise is asked for that nothing would be hidden
        (NOTHING_HIDDEN).
    """

    def __init__(
        self,
        clip: float,
        *,
        adjacency: str,
        delta: float,
        epsilon: float | None = None,
        sigma: float | None = None,
        tokens: int = 1,
    ) -> None:
        if (epsilon is None) == (sigma is None):
            given = "both" if sigma is not None else "none"
            raise ConfigError("SIGMA_OR_EPSILON", f"a release has epsilon or sigma, got {given}; give one of them")
        if sigma is None:
            assert epsilon is not None
            sigma = sigma_analytic(epsilon, delta, sensitivity_of(clip, adjacency), tokens)
        self.worth = Worth(clip, sigma, delta, tokens, adjacency)
        if not 2.0**-900 <= sigma <= 2.0**900:
            raise ConfigError("SIGMA", f"sigma must leave room for its lattice, between 2^-900 and 2^900, got {sigma}")
        LOG.info("%s", self.worth.sentence)

    @classmethod
    def of(cls, parameters: Parameters, tokens: int = 1) -> "GaussianRelease":
        """Makes a release of parameters that were read, at their sigma for each release; logs their statement."""
        level = logging.WARNING if parameters.preset else logging.INFO
        LOG.log(level, "%s", parameters.statement)
        return cls(
            parameters.clip, adjacency=parameters.adjacency, delta=parameters.delta, sigma=parameters.sigma, tokens=tokens
        )

    def answer(self, meter: Meter) -> "Answer":
        """Reserves all releases of one answer, and returns what makes them; call it before the model is run.

        Raises:
            NotPaid: code RECEIPT, the meter gave none, or one of fewer releases. What the meter raises passes through.
        """
        return Answer(self.worth, meter)


class Answer:
    """Reserves and makes the releases of one answer; `GaussianRelease.answer` makes it.

    Guarantee: At most as many states leave as were reserved, each clipped in whole numbers and with noise that nothing else
    has. Threads may share it.

    Its worth is that of all releases. That fewer are made may follow from what was released or from what is public, and from
    nothing else; their shapes are public too.

    Attributes:
        worth: of the whole answer. receipt: what the meter gave.
    """

    def __init__(self, worth: Worth, meter: Meter) -> None:
        asked = worth.releases
        receipt = meter.reserve(asked, mechanism=worth.mechanism, nano_rho=worth.nano_rho)
        paid = receipt.releases if isinstance(receipt, Receipt) else None
        if isinstance(paid, bool) or not isinstance(paid, int) or paid < asked:
            raise NotPaid(
                "RECEIPT",
                f"the meter gave {receipt!r}, expected a receipt of {asked} releases; nothing is released before a budget "
                "holds it",
            )
        self.worth = worth
        self.receipt = receipt
        self._made = 0
        self._lock = threading.Lock()
        self._process = os.getpid()

    @property
    def made(self) -> int:
        """Number of releases that were begun; what a meter settles."""
        return self._made

    def release(self, state: Any) -> Released:
        """Clips a state and adds noise to it. Whatever its shape, it counts as one vector, and as one release.

        A state with a number that is not finite counts as zero: to refuse it would tell of it.

        Args:
            state: array of numpy or tensor of torch, of real floating-point numbers, any shape; it is not changed.

        Raises:
            ConfigError: code STATE, it is neither, or has no numbers.
            NotPaid: code NOT_RESERVED, all releases of this answer are made; OTHER_PROCESS, it was reserved in another process,
                which counts them.
        """
        values = _flat(state)
        if os.getpid() != self._process:
            raise NotPaid("OTHER_PROCESS", "this answer was reserved in another process, which counts it; reserve one here")
        with self._lock:
            if self._made >= self.worth.releases:
                raise NotPaid(
                    "NOT_RESERVED",
                    f"all {self.worth.releases} releases of this answer are made, and no more are paid for; reserve another "
                    "answer",
                )
            self._made += 1
            number = self._made
        noised = _noised(values, self.worth.clip, self.worth.sigma)
        return Released(_like(state, noised), self.worth, number)

    def __reduce__(self) -> NoReturn:
        """Refuses: two copies would count apart."""
        raise TypeError("an answer cannot be pickled or copied: what is reserved would be released twice")


def clipped_steps(values: np.ndarray, clip: float, step: float) -> np.ndarray:
    """Returns a vector in whole lattice steps, cut to a norm of at most ``clip``.

    Guarantee: The sum of squares of the whole numbers that are returned is at most ``(clip / step)^2``, compared exactly,
    whatever the values are. So any two results are at most ``2 clip / step`` apart.

    Args:
        values: float64, shape (n,); zero is taken where one is not finite. clip, step: positive; ``clip / step`` below 2^52.

    Returns:
        float64, shape (n,), whole numbers.
    """
    peak = float(np.abs(values).max())
    if peak == 0.0 or not math.isfinite(peak):
        return np.zeros_like(values)
    most = math.floor((Fraction(clip) / Fraction(step)) ** 2)
    direction = values / peak
    length = float(np.linalg.norm(direction))  # from 1 to the root of n
    reach = clip / length if peak >= clip / length else peak
    while True:
        steps = np.trunc(direction * (reach / step))
        if sum(each * each for each in map(int, steps.tolist())) <= most:
            return steps
        reach *= _INSIDE


def normal_steps(count: int) -> np.ndarray:
    """Returns fresh noise N(0, 1) on the lattice: in steps of 2^-32, rounded; float64, shape (count,).

    Guarantee: The key comes from the operating system in this call and is used in no other; nothing can set it.
    """
    noise = LatticeGaussian(KeyStream("inference.gaussian", os.urandom(16), 0, KeyStream.fresh_master()))
    try:
        return np.concatenate([noise.noise(0, 0, start, min(CHUNK, count - start), 1) for start in range(0, count, CHUNK)])
    finally:
        noise.destroy()


def _noised(values: np.ndarray, clip: float, sigma: float) -> np.ndarray:
    step = sigma * 2.0**-LATTICE_BITS
    return (clipped_steps(values, clip, step) + normal_steps(len(values))) * step  # both below 2^51: the sum is exact


def _flat(state: Any) -> np.ndarray:
    """Returns the numbers of a state as a float64 vector of their own."""
    if isinstance(state, torch.Tensor) and state.is_floating_point() and state.numel():
        return state.detach().to("cpu", torch.float64).reshape(-1).numpy().copy()
    if isinstance(state, np.ndarray) and np.issubdtype(state.dtype, np.floating) and state.size:
        with np.errstate(over="ignore"):
            return state.astype(np.float64).reshape(-1)
    kind = f"{type(state).__name__} of {state.dtype}" if hasattr(state, "dtype") else type(state).__name__
    raise ConfigError("STATE", f"a state is an array or tensor of floating-point numbers, at least one, got {kind}")


def _like(state: Any, values: np.ndarray) -> Any:
    """Returns values in the form of a state. Rounding to fewer bits comes after the noise, and tells nothing more."""
    shaped = values.reshape(tuple(state.shape))
    if isinstance(state, torch.Tensor):
        return torch.from_numpy(shaped).to(state.device, state.dtype)
    with np.errstate(over="ignore"):
        return shaped.astype(state.dtype)
