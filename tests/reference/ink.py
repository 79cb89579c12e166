"""InvisibleInk as the paper writes it, in exact numbers; checks of a step against its proof, and steps that are wrong."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import mpmath
import numpy as np

Step = Callable[[np.ndarray, np.ndarray, int, float, float], np.ndarray]
"""Takes private logits (B, V), public logits (V,), k, C and tau; returns the distribution of a token (V,)."""

mpmath.mp.dps = 50


# ---- Algorithm 1 and Theorem 2, naively


def expanded(public: Sequence[float], k: int, C: float, B: int) -> list[int]:
    kth = sorted(map(mpmath.mpf, public), reverse=True)[min(k, len(public)) - 1]
    if k >= len(public):
        return list(range(len(public)))
    return [y for y, value in enumerate(public) if mpmath.mpf(value) >= kth - 2 * mpmath.mpf(C) / B]


def aggregated(private: Sequence[Sequence[float]], public: Sequence[float], C: float) -> list[mpmath.mpf]:
    moved = []
    for y, value in enumerate(public):
        total = mpmath.mpf(0)
        for row in private:
            total += max(-mpmath.mpf(C), min(mpmath.mpf(C), mpmath.mpf(row[y]) - mpmath.mpf(value)))
        moved.append(mpmath.mpf(value) + total / len(private))
    return moved


def naive(private: np.ndarray, public: np.ndarray, k: int, C: float, tau: float) -> np.ndarray:
    private, public = private.tolist(), public.tolist()
    moved, kept = aggregated(private, public, C), expanded(public, k, C, len(private))
    raised = {y: mpmath.exp(moved[y] / mpmath.mpf(tau)) for y in kept}
    total = mpmath.fsum(raised.values())
    return np.array([float(raised[y] / total) if y in raised else 0.0 for y in range(len(public))])


def epsilon(rho: float, delta: float) -> float:
    """The infimum over a > 1, by golden section in log(a - 1): it is unimodal there."""
    rho, delta = mpmath.mpf(rho), mpmath.mpf(delta)

    def at(x: mpmath.mpf) -> mpmath.mpf:
        a = 1 + mpmath.exp(x)
        return a * rho + mpmath.log(1 / (a * delta)) / (a - 1) + mpmath.log(1 - 1 / a)

    low, high, golden = mpmath.mpf(-15), mpmath.mpf(25), (mpmath.sqrt(5) - 1) / 2
    for _ in range(160):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if at(left) < at(right) else (left, high)
    return at(low)


def clip(eps: float, delta: float, T: int, B: int, tau: float) -> float:
    low, high = mpmath.mpf(0), mpmath.mpf(eps) + 1
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon(middle, delta) <= eps else (low, middle)
    return float(B * mpmath.mpf(tau) * mpmath.sqrt(2 * low / T))


# ---- checks: each is true of a sound step


def adversarial(B: int, V: int, seed: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Public logits, private logits, and those where the last reference has become null."""
    rng = np.random.default_rng(seed)
    for number in range(24):
        public = rng.normal(0.0, (0.0, 0.5, 3.0)[number % 3], V)
        private = public + rng.choice([-50.0, 0.0, 50.0], (B, V))
        if number % 4 == 1:
            private = np.tile(public, (B, 1))
            private[-1] = public - 50.0
            private[-1, rng.integers(V)] += 100.0
        if number % 4 == 2:
            private = rng.normal(0.0, 4.0, (B, V))
        null = private.copy()
        null[-1] = public
        yield public, private, null


SETTINGS = ((1, 5, 1.0, 1.0, 5), (3, 6, 0.6, 1.2, 3), (7, 8, 0.66, 1.2, 3), (7, 4, 0.08, 0.9, 2))
"""B, V, C, tau and k."""


def cases() -> Iterator[tuple[int, float, float, int, np.ndarray, np.ndarray, np.ndarray]]:
    for B, V, C, tau, k in SETTINGS:
        for public, private, null in adversarial(B, V, seed=B):
            yield B, C, tau, k, public, private, null


def vectors(step: Step) -> bool:
    """It is the naive transcription, to 1e-9."""
    for _, C, tau, k, public, private, null in cases():
        for rows in (private, null):
            if not np.allclose(step(rows, public, k, C, tau), naive(rows, public, k, C, tau), rtol=1e-9, atol=1e-15):
                return False
    return True


def support(step: Step) -> bool:
    """Neighbours have the same tokens."""
    return all(
        ((step(private, public, k, C, tau) > 0) == (step(null, public, k, C, tau) > 0)).all()
        for _, C, tau, k, public, private, null in cases()
    )


def largest_range(step: Step) -> float:
    """The largest range of a log-ratio over 2C/(B tau): at most 1, and near 1 or the check says nothing."""
    most = 0.0
    for B, C, tau, k, public, private, null in cases():
        one, other = step(private, public, k, C, tau), step(null, public, k, C, tau)
        both = (one > 0) & (other > 0)
        ratio = np.log(one[both]) - np.log(other[both])
        most = max(most, float(ratio.max() - ratio.min()) / (2 * C / (B * tau)))
    return most


def renyi_of(p: np.ndarray, q: np.ndarray, alpha: float) -> float:
    if ((p > 0) & (q == 0)).any():
        return math.inf
    both = p > 0
    return float(np.logaddexp.reduce(alpha * np.log(p[both]) + (1 - alpha) * np.log(q[both])) / (alpha - 1))


def worst_pair(B: int, C: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two tokens of which one reference moves one up and the other down, around equal chances."""
    public = np.array([-C / B / 2, C / B / 2])
    private = np.tile(public, (B, 1))
    null = private.copy()
    private[-1] += [50.0, -50.0]
    return public, private, null


def largest_renyi(step: Step) -> float:
    """The largest Renyi divergence over alpha rho, both ways and over orders: at most 1, and near 1."""
    most = 0.0
    rows = [(B, C, tau, k, *found) for B, C, tau, k, *found in cases()]
    rows += [(7, 0.05, 1.0, 2, *worst_pair(7, 0.05)), (7, 1.4, 1.0, 2, *worst_pair(7, 1.4))]
    for B, C, tau, k, public, private, null in rows:
        one, other = step(private, public, k, C, tau), step(null, public, k, C, tau)
        rho = C**2 / (2 * B**2 * tau**2)
        for alpha in (1.5, 2.0, 4.0, 16.0, 64.0):
            for p, q in ((one, other), (other, one)):
                most = max(most, renyi_of(p, q, alpha) / (alpha * rho))
    return most


def sequences(step: Step, rows: Callable[[tuple[int, ...], int], np.ndarray], B: int, k: int, C: float, tau: float, T: int):
    """Distribution over all texts of T tokens of a language model of three tokens, by enumeration; row 0 is the public one."""
    found = {(): 1.0}
    for _ in range(T):
        longer = {}
        for prefix, chance in found.items():
            logits = np.stack([rows(prefix, row) for row in range(B + 1)])
            for token, one in enumerate(step(logits[1:], logits[0], k, C, tau)):
                longer[(*prefix, token)] = chance * one
        found = longer
    return np.array([found[text] for text in itertools.product(range(3), repeat=T)])


def sequence(step: Step) -> bool:
    """Texts of a three-token language model: the distribution, its Renyi divergence and its hockey stick are within what is
    charged."""
    T, tau, alpha = 4, 1.1, 8.0
    for B, k, C, spread in ((3, 3, 0.9, 0.5), (3, 1, 0.9, 0.5), (5, 2, 0.4, 0.3)):
        table: dict[tuple[tuple[int, ...], int], np.ndarray] = {}

        def rows(prefix: tuple[int, ...], row: int, null: bool = False, table=table, B=B, spread=spread) -> np.ndarray:
            if null and row == B:
                row = 0
            if (prefix, row) not in table:
                rng = np.random.default_rng([row, len(prefix), *prefix])
                table[prefix, row] = rng.normal(0.0, spread if row == 0 else 5.0, 3)
            return table[prefix, row]

        one, other = (
            sequences(step, lambda prefix, row, null=null, rows=rows: rows(prefix, row, null), B, k, C, tau, T)
            for null in (False, True)
        )
        exact = sequences(naive, rows, B, k, C, tau, T)
        rho = T * C**2 / (2 * B**2 * tau**2)
        sound = np.allclose(one, exact, rtol=1e-9, atol=1e-15)
        for p, q in ((one, other), (other, one)):
            sound &= renyi_of(p, q, alpha) <= alpha * rho * (1 + 1e-9)
            for delta in (0.3, 0.01):
                sound &= float(np.maximum(p - np.exp(float(epsilon(rho, delta))) * q, 0.0).sum()) <= delta
        if not sound:
            return False
    return True


def judged(step: Step) -> set[str]:
    """Names of the checks that a step fails."""
    failed = set()
    if not vectors(step):
        failed.add("vectors")
    if not support(step):
        failed.add("support")
    if not 0.999 <= largest_range(step) <= 1 + 1e-9:
        failed.add("range")
    if not 0.99 <= largest_renyi(step) <= 1 + 1e-9:
        failed.add("renyi")
    if not sequence(step):
        failed.add("sequence")
    return failed


# ---- steps that are wrong


def written(
    private: np.ndarray, public: np.ndarray, k: int, C: float, tau: float, *, batch=None, moved=None, top=None
) -> np.ndarray:
    """The sound step, of which a part can be replaced."""
    B = len(private)
    moved = public + np.clip(private - public, -C, C).mean(0) if moved is None else moved
    top = public if top is None else top
    kept = top >= np.sort(top)[::-1][min(k, len(top)) - 1] - 2 * C / (batch or B)
    if k >= len(top):
        kept[:] = True
    raised = np.where(kept, np.exp((moved - moved[kept].max()) / tau), 0.0)
    return raised / raised.sum()


def _sum(private, public, k, C, tau):
    return written(private, public, k, C, tau, moved=public + np.clip(private - public, -C, C).sum(0))


def _scaled(private, public, C):
    differences = private - public
    lengths = np.linalg.norm(differences, axis=1, keepdims=True)
    reach = C * math.sqrt(public.size)
    return public + (differences * np.minimum(1.0, reach / np.maximum(lengths, 1e-300))).mean(0)


def _of_private(private, public, k, C, tau):
    top = (public + np.clip(private - public, -C, C).mean(0)).copy()
    return written(private, public, k, C, tau, top=top)


WRONG: dict[str, tuple[Step, set[str]]] = {
    "V_k+ with B + 1": (lambda p, q, k, C, t: written(p, q, k, C, t, batch=len(p) + 1), {"vectors", "sequence"}),
    "top-k from private logits": (_of_private, {"vectors", "support", "renyi", "sequence"}),
    "clip logits, not the difference": (
        lambda p, q, k, C, t: written(p, q, k, C, t, moved=np.clip(p, -C, C).mean(0)),
        {"vectors", "range", "renyi", "sequence"},
    ),
    "sum in place of mean": (_sum, {"vectors", "range", "renyi", "sequence"}),
    "clip after averaging": (
        lambda p, q, k, C, t: written(p, q, k, C, t, moved=q + np.clip((p - q).mean(0), -C, C)),
        {"vectors", "range", "renyi", "sequence"},
    ),
    "divide by B - 1": (
        lambda p, q, k, C, t: written(
            p, q, k, C, t, moved=q + np.clip(p - q, -C, C).sum(0) / max(len(p) - 1, 0.5)
        ),
        {"vectors", "range", "renyi", "sequence"},
    ),
    "temperature below the accounted one": (
        lambda p, q, k, C, t: written(p, q, k, C, 0.6 * t), {"vectors", "range", "renyi", "sequence"},
    ),
    "public logits are the mean of the private ones": (
        lambda p, q, k, C, t: written(p, p.mean(0), k, C, t), {"vectors", "support", "range", "renyi", "sequence"},
    ),
    "L2 clip, rescaled": (
        lambda p, q, k, C, t: written(p, q, k, C, t, moved=_scaled(p, q, C)), {"vectors", "range", "renyi", "sequence"},
    ),
}  # fmt: skip
"""Mutants of a step, and the checks that have to see them."""
