"""Statistics of the crowd audit: what a reader of releases concludes, how sure that is, and what epsilon it refutes.

All vectors are whitened: divided, block by block, by the standard deviation of the noise. Letters of one step: ``S_out`` and
``S_in`` are the sums of the others when the audited contribution is not drawn and when it is, ``D = S_in - S_out`` their
separation, ``h`` the audited contribution's own clipped gradient, ``y`` the release, and ``n`` standard normal noise. So
``y = S_out + n`` where it was not drawn, ``y = S_in + n`` where it was drawn with a null payload, and ``y = S_in + h + n``
where it was drawn with its real payload. What is promised holds if ``D`` is zero.
"""

import math
from dataclasses import dataclass, fields

import numpy as np
from scipy import stats

Array = np.ndarray


@dataclass(frozen=True)
class Readings:
    """One entry per draw: the truth, and the inner products on which every likelihood ratio of the adversary rests.

    Attributes:
        step: which release it is read from. number: whose draw it is. drawn, real: what happened, which no reader looks at.
        separation: |D|. own: |h|. product: <D, h>. towards: <y - S_out, D>. along: <y - S_out, h>.
    """

    step: Array
    number: Array
    drawn: Array
    real: Array
    separation: Array
    own: Array
    product: Array
    towards: Array
    along: Array

    def __len__(self) -> int:
        return len(self.drawn)

    def only(self, chosen: Array) -> "Readings":
        """The steps that are chosen."""
        return Readings(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})


def joined(parts: list[Readings]) -> Readings:
    """Several runs, one after the other."""
    return Readings(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Readings)})


def guesses(readings: Readings, coins: np.random.Generator) -> Array:
    """Says of every step whether the audited contribution was drawn, from what the release tells of the others alone.

    The likelihood ratio of both worlds, in the directions that are orthogonal to ``h``: what the audited contribution's own
    gradient tells is allowed, and left out. Where both worlds are equal a coin decides.
    """
    square = np.maximum(readings.own, 1e-300) ** 2
    score = readings.towards - readings.product * readings.along / square
    score -= (readings.separation**2 - readings.product**2 / square) / 2
    return np.where(score == 0.0, coins.integers(0, 2, len(readings)) == 1, score > 0.0)


def chance(right: int, trials: int) -> float:
    """Probability that a coin is right at least so often: the false-alarm rate of ``chance(...) < ALARM`` is ALARM."""
    return float(stats.binom.sf(right - 1, trials, 0.5))


def chance_of_several(answers: Array, number: Array) -> float:
    """The same where several contributions were asked about in each step; ``answers`` says which were right.

    Their answers hang together: which way rounding separates the sums of one may follow from the coins of the others, so that
    all ten of a step are right, or all are wrong. Each contribution by itself is a row of independent coins. Twice the mean of
    their probabilities is one again, whatever hangs on what (Rueschendorf 1982).
    """
    own = [answers[number == one] for one in np.unique(number)]
    several = 2.0 if len(own) > 1 else 1.0
    return min(1.0, several * float(np.mean([chance(int(each.sum()), len(each)) for each in own])))


def fraction(right: int, trials: int, alpha: float) -> tuple[float, float]:
    """Interval of Clopper and Pearson (1934) for a probability: each end is wrong with probability ``alpha`` at most."""
    low = 0.0 if right == 0 else float(stats.beta.ppf(alpha, right, trials - right + 1))
    high = 1.0 if right == trials else float(stats.beta.isf(alpha, right + 1, trials - right))
    return low, high


def detectable(trials: int, alarm: float, power: float = 0.99) -> float:
    """Least separation, in deviations of the noise, at which a reader of one contribution's draws beats chance with so much
    power.

    The reader is right with probability Phi(|D| / 2).
    """
    needed = int(stats.binom.isf(alarm, trials, 0.5)) + 1
    low, high = 0.5, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if stats.binom.sf(needed - 1, trials, middle) >= power else (middle, high)
    return 2.0 * float(stats.norm.ppf(high))


def log_ratios(readings: Readings, rate: float) -> Array:
    """Log likelihood ratio of every step, real payload against null, to somebody who does not know who was drawn.

    Each hypothesis is a mixture of the step without the audited contribution and the step with it, at the public rate.
    """
    null = readings.towards - readings.separation**2 / 2
    with_own = readings.towards + readings.along
    real = with_own - (readings.separation**2 + 2 * readings.product + readings.own**2) / 2
    stay, go = math.log1p(-rate), math.log(rate)
    return np.logaddexp(stay, go + real) - np.logaddexp(stay, go + null)


def simulated(measured: Readings, drawn: Array, real: bool, coins: np.random.Generator) -> Readings:
    """Steps as they were measured, with new noise; ``drawn`` says of each new step whether it has the audited contribution.

    The geometry (|D|, |h|, <D, h>) of each is that of a measured step, picked at random.
    """
    picked = measured.only(coins.integers(0, len(measured), len(drawn)))
    d, h, p = picked.separation, picked.own, picked.product
    slope = np.divide(p, d, out=np.zeros_like(p), where=d > 0)
    first, second = coins.standard_normal((2, len(drawn)))
    rest = np.sqrt(np.maximum(h**2 - slope**2, 0.0))
    towards = d * first + drawn * (d**2 + real * p)
    along = slope * first + rest * second + drawn * (p + real * h**2)
    step, number = np.arange(len(drawn)), np.zeros(len(drawn), dtype=int)
    return Readings(step, number, drawn, np.full(len(drawn), real), d, h, p, towards, along)


def simulated_runs(measured: Readings, runs: int, steps: int, rate: float, real: bool, coins: np.random.Generator) -> Array:
    """Summed log likelihood ratios of whole runs with secret draws at ``rate``, simulated from measured steps."""
    totals = np.zeros(runs)
    for _ in range(steps):
        totals += log_ratios(simulated(measured, coins.random(runs) < rate, real, coins), rate)
    return totals


def released_runs(measured: Readings, steps: int, rate: float, real: bool, coins: np.random.Generator) -> Array:
    """Summed log likelihood ratios of whole runs whose drawn steps are real releases, each used once.

    A run draws the audited contribution in Bin(steps, rate) steps. Those are taken from the measured ones that were drawn with
    this payload; the others, which are the others' sum and noise whatever the payload, are simulated. As many runs come out
    as there are releases for.
    """
    released = log_ratios(measured.only(measured.drawn & (measured.real == real)), rate)
    totals = []
    used = 0
    while True:
        count = int(coins.binomial(steps, rate))
        if used + count > len(released):
            return np.array(totals)
        idle = simulated(measured, np.zeros(steps - count, dtype=bool), real, coins)
        totals.append(released[used : used + count].sum() + log_ratios(idle, rate).sum())
        used += count


def one_a_step(readings: Readings, among: Array, coins: np.random.Generator) -> Readings:
    """At most one reading of every release, picked among some; so no two of them share noise.

    Args:
        among: which readings may be picked, bool.
    """
    order = coins.permutation(np.flatnonzero(among))
    _, first = np.unique(readings.step[order], return_index=True)
    return readings.only(order[first])


def noise_along(readings: Readings) -> Array:
    """What is left of each release along the own gradient if the truth is taken off: standard normal, as the claim has it."""
    expected = readings.drawn * (readings.product + readings.real * readings.own**2)
    return (readings.along - expected) / readings.own


def as_loud_as_claimed(noise: Array, alarm: float) -> bool:
    """Whether independent numbers may be standard normal, by the sum of their squares (chi-square, two sides)."""
    total = float((noise**2).sum())
    return bool(stats.chi2.ppf(alarm / 2, len(noise)) <= total <= stats.chi2.isf(alarm / 2, len(noise)))


def refuted(real: Array, null: Array, threshold: float, delta: float, alpha: float) -> float:
    """Lower bound on epsilon from runs with real and with null payload: wrong with probability ``alpha`` at most.

    For every set E of outcomes ``P_real(E) <= e^epsilon P_null(E) + delta``, and the other way round. E is a score above the
    threshold, or its complement; probabilities are bounded by Clopper and Pearson, each end at alpha / 4. The threshold must
    not come from these runs.
    """
    bounds = [0.0]
    for these, those, sign in ((real, null, 1.0), (null, real, -1.0)):
        if len(these) and len(those):
            hit, _ = fraction(int((sign * these > sign * threshold).sum()), len(these), alpha / 4)
            _, false = fraction(int((sign * those > sign * threshold).sum()), len(those), alpha / 4)
            if hit > delta:
                bounds.append(math.log((hit - delta) / false))
    return max(bounds)


def best_threshold(real: Array, null: Array, runs: int, delta: float, alpha: float) -> float:
    """Threshold at which as many as ``runs`` further runs of each kind are expected to refute most; from simulated runs."""
    candidates = np.quantile(np.concatenate([real, null]), np.linspace(0.001, 0.999, 500))

    def promise(threshold: float) -> float:
        expected = [np.arange(runs) < round(float((scores > threshold).mean()) * runs) for scores in (real, null)]
        return refuted(expected[0].astype(float), expected[1].astype(float), 0.5, delta, alpha)

    return float(max(candidates, key=promise))
