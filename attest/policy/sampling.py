"""What a policy may say of who takes part in which step, beyond a rate: an order in which everybody takes turns."""

from fractions import Fraction
from typing import TYPE_CHECKING

from attest.errors import PolicyRefused

if TYPE_CHECKING:
    from attest.policy.rules import Policy

POISSON = "poisson"
CYCLIC = "cyclic"
SHUFFLED = "shuffled"
SAMPLING_ORDERS = (POISSON, CYCLIC, SHUFFLED)


def check_sampling(policy: "Policy") -> None:
    """Refuse an order that is none, that would have to stay secret, or whose periods are no whole number of steps.

    Raises:
        PolicyRefused: Code RANGE; says what would do, and of a rate the nearest that have a period.
    """
    order = policy.sampling_order
    if type(order) is not str or order not in SAMPLING_ORDERS:
        raise PolicyRefused("RANGE", f"sampling.order is {ascii(order)[:60]}, expected one of {', '.join(SAMPLING_ORDERS)}")
    if order == POISSON:
        return
    if policy.disclosure != "occurrences_public":
        raise PolicyRefused(
            "RANGE",
            f"sampling.order {order!r} is counted occurrence by occurrence, since no amplification is proved for it; set"
            f" disclosure = 'occurrences_public' or use sampling.order = {POISSON!r}",
        )
    for rule in policy.classes:
        if rule.sampling_rate.numerator != 1:
            raise PolicyRefused(
                "RANGE",
                f"sampling_rate of class {rule.name} is {rule.sampling_rate}, and with sampling.order {order!r} a contribution"
                f" takes part once in every 1/sampling_rate steps, a whole number; {_nearest(rule.sampling_rate)}",
            )


def period(rate: Fraction) -> int:
    """Steps P in which a contribution of this rate takes part once under an order.

    Raises:
        PolicyRefused: Code RANGE, the rate is not 1/P.
    """
    if rate.numerator != 1:
        raise PolicyRefused("RANGE", f"a rate of {rate} has no period; {_nearest(rate)}")
    return rate.denominator


def _nearest(rate: Fraction) -> str:
    """The rates 1/P below and above, as policy.toml takes them."""
    less, more = Fraction(1, int(1 / rate) + 1), Fraction(1, int(1 / rate))
    return f'the nearest that have one are "{less}" and ' + (f'"{more}"' if more < 1 else "1")
