"""Does Renyi and moments accounting of the Poisson-sampled Gaussian mechanism, from its moments A_alpha.

A_alpha = E over x ~ N(0, z^2) of (1 - q + q exp((2x - 1) / 2z^2))^alpha, and the mechanism is (alpha, log A_alpha /
(alpha - 1))-RDP in both directions (Mironov, Talwar and Zhang 2019, Theorems 4 and 5). A is 1 plus a sum of positive terms, and
A - 1 is what is computed, so small rates lose no digits. Nothing here needs scipy or torch.
"""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final

from ledger.accountants.phases import Counted, Phase, Sampled, check_delta, check_epsilon
from ledger.accountants.table import TABLE, Accountant

ORDERS: Final = (*(k / 10 for k in range(11, 110)), *(float(k) for k in range(12, 64)), 128.0, 256.0, 512.0)
"""Orders alpha of the accountant `rdp`: opacus's own, and three more, without which epsilon is loose where little is spent."""

LAMBDAS: Final = tuple(range(1, 33))
"""Orders of the accountant `moments`; lambda = alpha - 1 (Abadi et al. 2016)."""

UNSAMPLED_BELOW: Final = 0.02
"""Below this noise multiplier sampling is ignored, which is valid: A_alpha grows with q."""

KERNEL: Final = "renyi-2"
"""Changes with every change of these numbers."""

PARAMETERS: Final = {
    "rdp": "orders=1.1..10.9/0.1,12..63,128,256,512 conversion=Asoodeh2021,Balle2020",
    "moments": "lambda=1..32 conversion=Abadi2016,chi2",
}
"""Account of the two accountants in the ledger's header, before the words of `describe`."""

_LOG_2: Final = math.log(2.0)
_SPAN: Final = 12.0
_BLOCK: Final = 1 << 16


class _Renyi(Accountant):
    """Composes moments of the Gaussian mechanism; the two accountants differ in orders and conversion."""

    def describe(self) -> tuple[str, str, str]:
        return "dptrain", KERNEL, f"{PARAMETERS[self.name]} relation=ADD_OR_REMOVE_ONE rounding=up-1e-6"


class Rdp(_Renyi):
    """Takes the least epsilon over Rényi orders."""

    name: ClassVar[str] = "rdp"

    def sampled(self, phases: tuple[Phase, ...], delta: float, family: str, *, replace: bool = False) -> float:
        return epsilon(phases, delta)

    def counted(self, participation: Counted, delta: float, family: str) -> float:
        return epsilon_of_loss(participation.loss, delta)


class Moments(_Renyi):
    """Takes the least epsilon over integer moments (Abadi et al. 2016)."""

    name: ClassVar[str] = "moments"

    def sampled(self, phases: tuple[Phase, ...], delta: float, family: str, *, replace: bool = False) -> float:
        return moments(phases, delta)[0]

    def counted(self, participation: Counted, delta: float, family: str) -> float:
        return moments_of_loss(participation.loss, delta)[0]

    def caveat(self, phases: tuple[Phase, ...], delta: float) -> str | None:
        """Says so where the range of lambda decides the figure, and not the mechanism.

        The bound is valid at every lambda, but at either end of its range the range decides it; not where its bound on chi^2
        does.
        """
        order = moments(phases, delta)[1]
        if order not in (LAMBDAS[0], LAMBDAS[-1]):
            return None
        return (
            f"the moments accountant finds its least epsilon at lambda = {order}, the end of its range: the bound holds, but"
            " says more about the range than about the run; compare mechanisms by another accountant"
        )


def epsilon(phases: Sequence[Phase], delta: float) -> float:
    """Returns epsilon of phases in normal form, the smallest over `ORDERS`.

    Guarantee: An upper bound under zero-out adjacency; goes to 0 with what is spent, and is 0.0 where the second moment shows
    that the total variation distance is at most delta.

    Source: RDP adds up over adaptive steps (Mironov 2017, Proposition 1); conversion: `least_of_order`.
    """
    if not phases:
        return 0.0
    return _least(zip(curve(phases), ORDERS, strict=True), delta)


def of_order(spent: float, order: float, delta: float) -> float:
    """Returns epsilon at delta of a mechanism that is (order, spent)-RDP; may be negative (Balle et al. 2020, Theorem 21)."""
    return spent - (math.log(delta) + math.log(order)) / (order - 1.0) + math.log1p(-1.0 / order)


def least_of_order(spent: float, order: float, delta: float) -> float:
    """Returns epsilon at delta of a mechanism that is (order, spent)-RDP: the least that two points of one curve give.

    With t = dP/dQ and A = E_Q t^a <= exp((a - 1) spent), every tangent of t^a, at any c >= 0, gives a bound: for
    phi(t) = t^a - c^a - a c^(a-1) (t - c) >= 0 and g = max over t of t - r phi(t), (t - g)+ <= r phi(t), so the hockey-stick
    divergence at g is at most r E_Q phi, which is delta for the right r. The least over c is what Asoodeh et al. (2021),
    Theorem 3, shows to be optimal. c = 0 is `of_order`, whose r has A where c = 1 has A - 1: so it has a floor, 0.013 at delta
    1e-5, however little is spent, and c = 1 has none. c = 1 is within about order * delta of the optimum; at order 2, where
    the optimum is log(1 + (A - 1) / 4 delta - delta), that is taken. It says 0 as soon as half the root of chi^2 = A - 1,
    which bounds the total variation distance, is at most delta (Tsybakov 2009, section 2.4; half of what
    Bretagnolle and Huber's bound asks for).

    Guarantee: An upper bound, 0.0 at least; grows with ``spent``; never above `of_order` where that is not negative.
    """
    if spent == 0.0:
        return 0.0
    if math.isinf(spent):
        return math.inf
    moment = max((order - 1.0) * spent, 1e-300)
    log_excess = moment + math.log(-math.expm1(-moment))  # log(A - 1)
    if order == 2.0 and delta <= 0.5:
        ratio = log_excess - math.log(4.0 * delta)
        return max(0.0, ratio if ratio > 60.0 else math.log1p(math.exp(ratio) - delta))
    # phi'(t) = 1 / r at t = (1 + u)^(1 / (a - 1)), u = (A - 1) / (a delta), and there g = t (1 - 1/a) (1 + (1 - 1/t) / u).
    log_u = log_excess - math.log(order * delta)
    log_t = _log_1p_exp(log_u) / (order - 1.0)
    if log_u < -27.0:  # where what is below cancels: phi(t) >= a (a - 1) (t - 1)^2 / 2 there, to 1e-10
        tangent = 0.5 * log_t * (1.0 + 1e-9)
    else:
        tangent = log_t + math.log1p(-1.0 / order) + math.log1p(-math.expm1(-log_t) * math.exp(-log_u))
    return max(0.0, min(tangent, of_order(spent, order, delta)))


def curve(phases: Sequence[Phase]) -> tuple[float, ...]:
    """Returns the RDP of phases at every order of `ORDERS`, the same bits for every order of the phases."""
    rows = [[p.steps * value for value in _step_curve(p.noise_multiplier, p.sampling_rate)] for p in phases]
    return tuple(_sum(column) for column in zip(*rows, strict=True))


def moments(phases: Sequence[Phase], delta: float) -> tuple[float, int]:
    """Returns (epsilon, lambda) of the moments accountant: the least (sum of log A + log 1/delta) / lambda over `LAMBDAS`.

    Guarantee: An upper bound under zero-out adjacency, whatever lambda turns out best; never below `epsilon`. Where the best
    lambda is the first or the last, a wider range could give less. Lambda is 0 where chi^2 <= 1 and the first moment gives less
    as a bound on chi^2, which has no floor (`least_of_order` at order 2).

    Source: Abadi et al. (2016), Theorem 2 with the moments of the mixture in closed form.
    """
    return _of_moments([
        _sum([p.steps * log_moment(p.noise_multiplier, p.sampling_rate, order + 1) for p in phases]) for order in LAMBDAS
    ], delta)  # fmt: skip


def epsilon_of_loss(loss: float, delta: float) -> float:
    """Returns epsilon of unsampled Gaussian releases with this mu^2; they are (alpha, alpha mu^2 / 2)-RDP."""
    return _least(((order * (0.5 * loss), order) for order in ORDERS), delta)


def moments_of_loss(loss: float, delta: float) -> tuple[float, int]:
    """Returns (epsilon, lambda) of unsampled Gaussian releases with this mu^2 by the moments accountant."""
    return _of_moments([(k + 1.0) * (k * (0.5 * loss)) for k in LAMBDAS], delta)


def _least(spent: Iterable[tuple[float, float]], delta: float) -> float:
    """Returns the least epsilon over (RDP, order)."""
    return min(least_of_order(value, order, delta) for value, order in spent)


def _of_moments(logs: Sequence[float], delta: float) -> tuple[float, int]:
    """Returns (epsilon, lambda) from log A at every lambda of `LAMBDAS`."""
    least = min(((log - math.log(delta)) / order, order) for log, order in zip(logs, LAMBDAS, strict=True))
    return min(least, (least_of_order(logs[0], 2.0, delta), 0)) if logs[0] <= _LOG_2 else least


@lru_cache(maxsize=4096)
def _step_curve(z: float, q: float) -> tuple[float, ...]:
    whole = [order.is_integer() for order in ORDERS]
    if q == 1.0 or z < UNSAMPLED_BELOW:
        half = 0.5 / z / z
        return tuple(order * half for order in ORDERS)
    fractional = iter(_fractional(z, q, [order for order, is_whole in zip(ORDERS, whole, strict=True) if not is_whole]))
    values = (
        log_moment(z, q, int(order)) if is_whole else next(fractional) for order, is_whole in zip(ORDERS, whole, strict=True)
    )
    curve = [value / (order - 1.0) for value, order in zip(values, ORDERS, strict=True)]
    return tuple(math.inf if math.isnan(value) else value for value in curve)  # no comparison would see a NaN


@lru_cache(maxsize=65536)
def log_moment(z: float, q: float, order: int) -> float:
    """Returns log A_alpha at an integer alpha >= 2.

    With the binomial theorem A = sum over i of B(i) exp((i^2 - i) / 2z^2), B the probabilities of Binomial(alpha, q), which add
    up to 1; so A - 1 = sum over i >= 2 of B(i) (exp((i^2 - i) / 2z^2) - 1). Summed in logarithms.
    """
    if q == 0.0:
        return 0.0
    if q == 1.0 or z < UNSAMPLED_BELOW:
        return (order - 1.0) * (order * (0.5 / z / z))
    import numpy as np

    i = np.arange(2, order + 1, dtype=np.float64)
    growth = (i * i - i) / (2.0 * z * z)
    logs = _log_binomials(order) + i * math.log(q) + (order - i) * math.log1p(-q) + growth + np.log(-np.expm1(-growth))
    return float(np.logaddexp(0.0, _log_sum(logs)))


def _fractional(z: float, q: float, orders: Sequence[float]) -> list[float]:
    """Returns log A_alpha at fractional orders, by the trapezoid rule on the real line.

    A - 1 = E f(w) with w = q (exp u - 1), u = (2x - 1) / 2z^2 and f(w) = (1 + w)^alpha - 1 - alpha w >= 0, since E w = 0.
    The integrand is analytic in the strip |Im x| < pi z^2 and falls off like a Gaussian around [0, alpha], so at a spacing
    of min(z / 4, 0.35 z^2) the rule is exact to about e^-50 of the value (Trefethen and Weideman 2014, Theorem 5.1), and 12
    standard deviations on either side leave out less than 1e-30 of it.
    """
    import numpy as np

    spacing = min(0.25 * z, 0.35 * z * z)
    first = -_SPAN * z
    count = math.ceil((max(orders) + 2.0 * _SPAN * z) / spacing) + 1
    parts: list[list[Any]] = [[] for _ in orders]
    for start in range(0, count, _BLOCK):
        x = first + spacing * np.arange(start, min(count, start + _BLOCK), dtype=np.float64)
        u = (2.0 * x - 1.0) / (2.0 * z * z)
        far = math.log(q) + u > 600.0  # where w would overflow
        w = np.where(u < 1.0, q * np.expm1(np.minimum(u, 1.0)), np.exp(np.minimum(u + math.log(q), 600.0)) - q)
        log_1w = np.where(far, u + math.log(q), np.log1p(w))
        density = -0.5 * (x / z) ** 2
        for place, alpha in enumerate(orders):
            parts[place].append(_log_sum(density + _log_excess(alpha, w, log_1w)))
    scale = math.log(spacing / z) - 0.5 * math.log(2.0 * math.pi)
    return [float(np.logaddexp(0.0, _log_sum(np.array(values)) + scale)) for values in parts]


def _log_excess(alpha: float, w: Any, log_1w: Any) -> Any:
    """Returns log((1 + w)^alpha - 1 - alpha w), by its series where w is small and by exponents where it is large."""
    import numpy as np

    exponent = alpha * log_1w
    small = np.abs(w) < 1e-4
    large = exponent > 30.0
    middle = ~(small | large)
    result = np.full_like(log_1w, -np.inf)
    v = w[small]
    series = 1.0 + (alpha - 2.0) / 3.0 * v * (1.0 + (alpha - 3.0) / 4.0 * v * (1.0 + (alpha - 4.0) / 5.0 * v))
    with np.errstate(divide="ignore"):  # w = 0 adds nothing: log 0
        result[small] = np.log(0.5 * alpha * (alpha - 1.0)) + 2.0 * np.log(np.abs(v)) + np.log(series)
    result[middle] = np.log(np.expm1(exponent[middle]) - alpha * w[middle])
    # (1 + alpha w) / (1 + w)^alpha with w = e^L - 1: alpha e^((1 - alpha) L) + (1 - alpha) e^(-alpha L).
    big = log_1w[large]
    result[large] = exponent[large] + np.log1p(-alpha * np.exp((1.0 - alpha) * big) - (1.0 - alpha) * np.exp(-alpha * big))
    return result


@lru_cache(maxsize=1024)
def _log_binomials(order: int) -> Any:
    import numpy as np

    return np.array([math.log(math.comb(order, i)) for i in range(2, order + 1)])


def _log_sum(logs: Any) -> float:
    import numpy as np

    top = float(np.max(logs))
    return top if math.isinf(top) else top + math.log(float(np.sum(np.exp(logs - top))))


def _log_1p_exp(x: float) -> float:
    """Returns log(1 + e^x)."""
    return x + math.log1p(math.exp(-x)) if x > 0.0 else math.log1p(math.exp(x))


def _sum(values: Sequence[float]) -> float:
    return math.inf if math.inf in values else math.fsum(values)


def divergences_of_phases(phases: Sequence[Phase], family: str) -> tuple[float, ...]:
    """Returns the divergence of phases in normal form at every order of `ORDERS`, an upper bound in both directions.

    Source: Those of `Cost.divergences`; of noise that is not amplified as unsampled releases.
    """
    if not phases:
        return (0.0,) * len(ORDERS)
    if phases[0].noise_multiplier == 0.0:
        return (math.inf,) * len(ORDERS)
    return TABLE[family].divergences(Sampled(tuple(phases)))


def divergences_of_loss(loss: float, family: str) -> tuple[float, ...]:
    """Returns the same for unsampled releases whose 1/z^2 add up to ``loss``; not for Laplace noise, which has no such sum."""
    return TABLE[family].divergences(Counted(loss))


@lru_cache(maxsize=1024)
def room(epsilon: float, delta: float) -> tuple[float, ...]:
    """Returns at every order the largest divergence that is within (epsilon, delta), from below.

    Guarantee: A mechanism with at most this divergence at an order is (epsilon, delta)-DP (`least_of_order`).
    """
    epsilon, delta = check_epsilon(epsilon, "a limit"), check_delta(delta)
    return tuple(_room(order, epsilon, delta) for order in ORDERS)


def roomiest(planned: Sequence[float], epsilon: float, delta: float) -> int:
    """Returns the place in `ORDERS` at which releases of this divergence could be repeated most often."""
    ratios = [have / need if need else math.inf for have, need in zip(room(epsilon, delta), planned, strict=True)]
    return max(range(len(ratios)), key=ratios.__getitem__)


def _room(order: float, epsilon: float, delta: float) -> float:
    low, high = 0.0, 1.0
    while least_of_order(high, order, delta) <= epsilon:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        if least_of_order(middle, order, delta) <= epsilon:
            low = middle
        else:
            high = middle
    return low
