"""Says what a token of InvisibleInk is drawn from, and what it costs.

Source: Vinod, Pillutla and Thakurta, "InvisibleInk: High-Utility and Low-Cost Text Generation with Differential Privacy", 2025,
Algorithm 1 and Theorem 2. Section 5.4 there prints the factor of the clip norm inverted; Theorem 2 is what holds.

Letters are the paper's: B references, C clip norm, k of the truncation, tau temperature, T tokens; shapes are marked by V, the
size of the vocabulary. Everything is float64 on the CPU, and goes without torch.

Proof that a token costs what is said. Let s be the most by which one neighbour moves a coordinate of the mean of clipped
differences: C/B where a reference becomes null, whose difference is zero. The set of tokens, and whatever is subtracted to keep
exponents small, follow from the public logits alone. So a log-weight moves by at most s/tau, a log-ratio of probabilities has
a range of at most eta = 2 s/tau, and the draw is (eta^2/8)-zCDP (`ledger.budget.rho.bounded_range_nano`). Cutting log-weights
at `DEEPEST` below the largest moves no log-weight by more, since both of its arguments move by at most s/tau. What float64
rounds is within `ROUNDING` of the range, and is paid for. T tokens, each drawn given those before, add up.
"""

import math
from typing import Final

import numpy as np

from ledger.accountants.phases import check_delta, check_epsilon, is_real
from ledger.budget.rho import bounded_range_nano, epsilon_of_rho
from ledger.errors import AccountantError

ADJACENCIES: Final = {"zero-out": 1, "zero-logits": 2, "replace-one": 2, "retrieval": 2}
"""Sensitivity in units of C/B, by the name of the adjacency. ``zero-out``: a payload is replaced by null (the paper's
replace-by-null); ``zero-logits``: the logits of its row become zeros (the paper's zero-out); ``replace-one``: it becomes
another; ``retrieval``: references are the best of a corpus, where one that goes lets the next one in."""

IN_WORDS: Final = {
    "zero-out": "one reference against none", "zero-logits": "one reference against logits of zero",
    "replace-one": "two references", "retrieval": "one document of the corpus against none",
}  # fmt: skip

DEEPEST: Final = 700.0
"""Nats below the largest log-weight at which others are cut: none is zero, so what can be drawn is what is public."""

ROUNDING: Final = 2.0**-34
"""Bounds what float64 may add to the range of a log-ratio, for B C / tau of at most `MOST`."""

MOST: Final = 2.0**14
"""Largest B C / tau: what is added up grows with it, and so does what is rounded."""


def aggregate(private_logits: np.ndarray, public_logits: np.ndarray, clip: float) -> np.ndarray:
    """Returns the public logits, moved by the mean of the clipped differences that references make (DClip).

    Guarantee: one reference moves no coordinate by more than ``clip / B``, whatever its logits are; one whose logits are the
    public ones moves nothing. A difference that is not a number counts as C.

    Source: Algorithm 1, line 5, which means the clipped difference, and Property 1.

    Args:
        private_logits: shape (B, V). public_logits: shape (V,), not NaN. clip: C, 0 or more; 0 gives the public logits.

    Returns:
        float64, shape (V,).

    Raises:
        AccountantError: code LOGITS, shapes or values that cannot be; CLIP_NORM.
    """
    public = _public(public_logits)
    private = _private(private_logits, public)
    _check_clip(clip)
    return public + _mean(private, public, clip)


def _private(logits: np.ndarray, public: np.ndarray) -> np.ndarray:
    private = np.asarray(logits)
    if private.ndim != 2 or private.shape[0] < 1 or private.shape[1] != public.shape[0]:
        sentence = f"private logits have shape {private.shape}, the public ones {public.shape}; expected (B, V) beside (V,)"
        raise AccountantError("LOGITS", sentence)
    return private


def _mean(private: np.ndarray, public: np.ndarray, clip: float) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        differences = np.subtract(private, public, dtype=np.float64)
    clipped = np.fmax(np.fmin(differences, clip, out=differences), -clip, out=differences)
    return clipped.sum(axis=0) / len(private)


def expanded_top_k(public_logits: np.ndarray, k: int, clip: float, batch: int) -> np.ndarray:
    """Returns the tokens that may be drawn (Top-k+): those within 2C/B of the k-th largest public logit, ties kept.

    Guarantee: they follow from the public logits alone, and hold the top k of the public logits as moved by any one reference.

    Source: Algorithm 1, ExpandedTopVocabulary.

    Args:
        public_logits: shape (V,); a token at minus infinity is never drawn. k: 1 or more; V or more means all tokens.
        clip: C, 0 or more. batch: B, number of references; not B + 1.

    Returns:
        Ids in ascending order, shape (V',).

    Raises:
        AccountantError: code LOGITS, TOP_K, CLIP_NORM or BATCH.
    """
    public = _public(public_logits)
    _check_clip(clip)
    _count("BATCH", "a batch of references", batch)
    _count("TOP_K", "k of the truncation", k)
    return _expanded(public, k, clip, batch)


def _expanded(public: np.ndarray, k: int, clip: float, batch: int) -> np.ndarray:
    smallest = np.partition(public, public.size - k)[public.size - k] if k < public.size else -np.inf
    if smallest > -np.inf:
        return np.flatnonzero(public >= smallest - 2.0 * clip / batch)
    finite = np.flatnonzero(public > -np.inf)
    if not finite.size:
        raise AccountantError("LOGITS", "no public logit is finite, so nothing can be drawn; look at the model")
    return finite


def weights(
    private_logits: np.ndarray, public_logits: np.ndarray, k: int, clip: float, tau: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens that may be drawn and their weights, of which the largest is 1.

    Guarantee: neighbours have the same tokens, all of positive weight, and log-ratios of their probabilities whose range is at
    most ``2 s / tau + ROUNDING``, where s is C/B times `ADJACENCIES`.

    Args:
        private_logits: shape (B, V). public_logits: shape (V,). k: of the truncation. clip: C. tau: temperature above 0.

    Returns:
        Ids in ascending order and float64 weights, both of shape (V',).

    Raises:
        AccountantError: as `aggregate` and `expanded_top_k`; TAU.
    """
    _check_tau(tau)
    _check_clip(clip)
    _count("TOP_K", "k of the truncation", k)
    public = _public(public_logits)
    private = _private(private_logits, public)
    ids = _expanded(public, k, clip, len(private))
    top = public.max()  # subtracted from all, which changes no probability: exponents, and what is rounded, stay small
    kept = public[ids]
    moved = ((kept - top) + _mean(private[:, ids], kept, clip)) / tau
    return ids, np.exp(np.maximum(moved - moved.max(), -DEEPEST))


def probabilities(private_logits: np.ndarray, public_logits: np.ndarray, k: int, clip: float, tau: float) -> np.ndarray:
    """Returns the distribution of a token, shape (V,): zero outside of what may be drawn. Args, errors: as `weights`."""
    ids, found = weights(private_logits, public_logits, k, clip, tau)
    spread = np.zeros(np.shape(public_logits))
    spread[ids] = found / found.sum()
    return spread


def bounded_range(clip: float, batch: int, tau: float, *, adjacency: str = "zero-out", records: int = 1) -> float:
    """Returns eta: the range of the log-ratio of a token's probabilities between neighbours, 2 s / tau.

    Args:
        clip: C above 0. batch: B. tau: temperature. adjacency: a name of `ADJACENCIES`.
        records: m, most references that one person has among all; neighbours differ in all of them.

    Raises:
        AccountantError: code ADJACENCY, CLIP_NORM, BATCH, TAU or RECORDS; ROUNDING, B C / tau is above `MOST`.
    """
    steps = sensitivity_of(adjacency)
    _check_clip(clip, least=5e-324)
    _count("BATCH", "a batch of references", batch)
    _count("RECORDS", "the most records of one person", records)
    _check_tau(tau)
    if batch * clip / tau > MOST:
        raise AccountantError(
            "ROUNDING", f"B C / tau is {batch * clip / tau:.6g}; above {MOST:g} rounding is not paid for: lower C, or raise tau"
        )
    return 2.0 * steps * records * clip / (batch * tau)


def rho(clip: float, batch: int, tau: float, tokens: int = 1, *, adjacency: str = "zero-out", records: int = 1) -> float:
    """Returns the zCDP parameter of T tokens: ``T C^2 / (2 B^2 tau^2)``, times 4 where the sensitivity is 2C/B, times m^2.

    Source: Theorem 2; Remark 7 and Property 12 for the other adjacencies.

    Args, errors: as `bounded_range`; tokens: T, 1 or more (code TOKENS). T is what was asked for, whatever the text's length.
    """
    _count("TOKENS", "a number of tokens", tokens)
    return tokens * bounded_range(clip, batch, tau, adjacency=adjacency, records=records) ** 2 / 8.0


def nano_rho(clip: float, batch: int, tau: float, *, adjacency: str = "zero-out", records: int = 1) -> int:
    """Returns the charge of one token, in 1e-9 of rho, rounded up, with what float64 may add. Args, errors: as `rho`."""
    return bounded_range_nano(bounded_range(clip, batch, tau, adjacency=adjacency, records=records) + ROUNDING)


def rho_of_epsilon(epsilon: float, delta: float) -> float:
    """Returns the largest rho whose epsilon at delta is at most ``epsilon``, from below (`ledger.budget.rho.epsilon_of_rho`).

    Raises:
        AccountantError: code EPSILON or DELTA.
    """
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    low, high = 0.0, epsilon + 1.0
    while epsilon_of_rho(high, delta) <= epsilon:
        high *= 2.0
    while high - low > 1e-14 * high:
        middle = (low + high) / 2.0
        if not low < middle < high:
            break
        low, high = (middle, high) if epsilon_of_rho(middle, delta) <= epsilon else (low, middle)
    return low


def clip_norm(
    epsilon: float, delta: float, tokens: int, batch: int, tau: float, *, adjacency: str = "zero-out", records: int = 1
) -> float:
    """Returns the clip norm at which T tokens are (epsilon, delta)-DP: ``C = B tau sqrt(2 rho / T)``.

    Source: Theorem 2, solved for C. Under a sensitivity of 2C/B it is half of that; for m records of one person, an m-th.

    Args:
        epsilon, delta: of all tokens together. tokens: T. batch: B. tau: temperature. adjacency, records: as `bounded_range`.

    Raises:
        AccountantError: an argument is out of range; the code is its name.
    """
    _count("TOKENS", "a number of tokens", tokens)
    _count("BATCH", "a batch of references", batch)
    _count("RECORDS", "the most records of one person", records)
    _check_tau(tau)
    return batch * tau * math.sqrt(2.0 * rho_of_epsilon(epsilon, delta) / tokens) / (sensitivity_of(adjacency) * records)


def sensitivity_of(adjacency: str) -> int:
    """Returns the sensitivity in units of C/B. Raises AccountantError: code ADJACENCY."""
    if adjacency == "add-or-remove":
        sentence = "under add-or-remove the number of references would be private, and the mean is divided by it"
        raise AccountantError("ADJACENCY", f"{sentence}; name one of {', '.join(ADJACENCIES)}")
    if adjacency not in ADJACENCIES:
        raise AccountantError("ADJACENCY", f"an adjacency is one of {', '.join(ADJACENCIES)}, got {adjacency!r:.40}")
    return ADJACENCIES[adjacency]


def require_mean(aggregation: str) -> None:
    """Refuses every aggregation of references but the mean of clipped differences. Raises AccountantError: code AGGREGATION."""
    if aggregation == "median":
        sentence = "one reference moves a median by up to 2C, whatever B is: nothing is divided by B"
        raise AccountantError("AGGREGATION", f"{sentence}, so a token would cost B^2 times as much or more; take the mean")
    if aggregation != "mean":
        raise AccountantError("AGGREGATION", f"references are aggregated by their mean, got {aggregation!r:.40}")


def _public(logits: np.ndarray) -> np.ndarray:
    found = np.asarray(logits, dtype=np.float64)
    if found.ndim != 1 or not found.size or not found.max() < np.inf:
        sentence = f"public logits have shape {found.shape}; expected (V,), none of them NaN or infinite"
        raise AccountantError("LOGITS", f"{sentence}; look at the model and its type")
    return found


def _check_clip(clip: object, least: float = 0.0) -> None:
    if not (is_real(clip) and least <= clip < math.inf):
        what = "a finite number of 0 or more" if not least else "a positive finite number"
        raise AccountantError("CLIP_NORM", f"a clip norm is {what}, got {clip!r}")


def _check_tau(tau: object) -> None:
    if not (is_real(tau) and 0.0 < tau < math.inf):
        raise AccountantError("TAU", f"a temperature is a positive finite number, got {tau!r}; 1 is usual")


def _count(code: str, what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value < 1 << 40:
        raise AccountantError(code, f"{what} is a whole number from 1 on, got {value!r}; give one")
