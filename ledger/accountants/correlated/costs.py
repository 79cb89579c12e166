"""Costs noise that is correlated between steps: the rows of its families, for contributions that take turns in one fixed order.

To a contribution that takes part in known steps all releases together are one Gaussian (docs/mechanism, Theorem 15). So its
occurrences are counted one by one, as those of independent noise are, each with what it adds (`turns.Turns`), and whatever
accounts for Gaussian noise accounts for the sum.
"""

from typing import ClassVar

from attest.policy import Policy
from attest.policy.sampling import CYCLIC, CYCLIC_POISSON, period
from ledger.accountants.correlated.signed import numbers_in_file, strategy_of
from ledger.accountants.correlated.turns import MOST_STEPS, MOST_WORK, Turns, turns_of
from ledger.accountants.gaussian import Gaussian
from ledger.accountants.table import HOST, MOST_GROUPS
from ledger.errors import AccountantError


class Correlated(Gaussian):
    """Costs Gaussian noise that a strategy correlates between steps, its columns scaled to a norm of 1 at most.

    The noise multiplier z is that of one occurrence: standard deviation of the noise of the schedule over the clip norm.
    """

    injections: ClassVar[tuple[str, ...]] = ("scheduled",)
    disclosures: ClassVar[tuple[str, ...]] = ("occurrences_public", "secret_draws")
    groups: ClassVar[tuple[str, ...]] = ("occurrences_public",)
    generators: ClassVar[tuple[str, ...]] = (HOST,)
    consequence: ClassVar[str] = (
        "noise of several steps cancels in what they add up to; an occurrence counts with those before it whose noise it shares"
    )
    why: ClassVar = {
        "disclosure": "a contribution may come back while its noise is still there, and no amplification is proved for that",
        "injection": "the noise of a step is one draw per block, and a function of those before it",
    }

    def refuse(self, policy: Policy) -> str | None:
        """Says why nothing accounts for the policy: its order, phases, or a strategy that nothing adds up; None if it is."""
        told, order = f"noise.family {self.name!r} goes with", policy.sampling.name
        if order not in (CYCLIC, CYCLIC_POISSON) or (order == CYCLIC_POISSON and not policy.secret):
            found = f"{order!r} and disclosure {policy.disclosure!r}"
            return (
                f"{told} sampling.order {CYCLIC!r}, or {CYCLIC_POISSON!r} in secret, not with {found} (only there is it known "
                f"which steps of a contribution share noise); set sampling.order = {CYCLIC!r}"
            )
        if policy.noise_phases:
            return f"{told} one level of noise, not with [[noise.phase]], whose sums have another lattice; leave them out"
        try:
            if order == CYCLIC_POISSON:
                bands, groups = self.bands(policy), policy.sampling.groups
                if bands is None or bands > groups:
                    found = "all" if bands is None else str(bands)
                    return (
                        f"{told} sampling.order {CYCLIC_POISSON!r} where a strategy has no more bands than there are groups; "
                        f"it has {found}, and there are {groups}; take fewer bands, more groups, or sampling.order = {CYCLIC!r}"
                    )
                if policy.steps > MOST_STEPS:
                    return f"{told} {MOST_STEPS} steps at most, not with {policy.steps}; sign fewer"
                if policy.redo_steps > MOST_GROUPS:
                    found = f"redo_steps of {MOST_GROUPS} at most, not with {policy.redo_steps}"
                    return f"{told} {found}: each could release the gradients of earlier steps once more; sign a smaller number"
            numbers_in_file(policy.mechanism, policy.steps)
            if not policy.mechanism.at_hand:
                return None  # what is wrong with them is said where they are needed
            if order == CYCLIC_POISSON:
                strategy_of(policy.mechanism, policy.steps)
            else:
                work = 0
                for length in sorted({period(rule.sampling_rate) for rule in policy.classes}):
                    work += self.turns(policy, length).work
                    if work > MOST_WORK:
                        return (
                            f"{told} {MOST_WORK} steps times turns at most, of all periods of its classes together; give them "
                            "the same sampling_rate, or take fewer bands"
                        )
        except AccountantError as error:
            return error.sentence
        return None

    def memory(self, policy: Policy) -> int:
        """Returns how many steps behind its own the noise of a step is felt in; see `Cost.memory`."""
        bands = self.bands(policy)
        return policy.steps if bands is None else bands - 1

    def bands(self, policy: Policy) -> int | None:
        """Returns the diagonals of the strategy of a policy, as it signs them; None where it has all."""
        return policy.mechanism.parameters.bands

    def turns(self, policy: Policy, length: int) -> Turns:
        """Returns what occurrences add, for who takes part in every ``length``-th step; see `Turns`."""
        return turns_of(policy.mechanism, policy.steps, length)


# The sentences of a row stand whole, letter for letter as reports and docs quote them.


class BandedToeplitzCost(Correlated):
    """Costs the noise of a banded Toeplitz strategy."""

    name: ClassVar[str] = "banded_toeplitz"
    sentence: ClassVar[str] = "Gaussian, correlated between steps by a banded Toeplitz strategy"
    noise: ClassVar[str] = "integer Gaussian noise on s*2^-32, correlated by a banded Toeplitz strategy"


class BandedInverseCost(Correlated):
    """Costs the noise of a strategy with a banded Toeplitz inverse."""

    name: ClassVar[str] = "banded_inverse"
    sentence: ClassVar[str] = "Gaussian, correlated between steps by a strategy with a banded inverse"
    noise: ClassVar[str] = "integer Gaussian noise on s*2^-32, correlated by a strategy with a banded inverse"

    def bands(self, policy: Policy) -> None:
        """Returns None: those of its inverse are few, and it has all."""


class BufferedCost(Correlated):
    """Costs the noise of a buffered linear Toeplitz strategy."""

    name: ClassVar[str] = "buffered_toeplitz"
    sentence: ClassVar[str] = "Gaussian, correlated between steps by buffers"
    noise: ClassVar[str] = "integer Gaussian noise on s*2^-32, correlated by a buffered Toeplitz strategy"

    def bands(self, policy: Policy) -> None:
        """Returns None: it has all."""


class BandedCost(Correlated):
    """Costs the noise of a banded strategy with a column of its own for every step."""

    name: ClassVar[str] = "banded"
    sentence: ClassVar[str] = "Gaussian, correlated between steps by a banded strategy, whose coefficients lie in a file"
    noise: ClassVar[str] = "integer Gaussian noise on s*2^-32, correlated by a banded strategy"


class DenseCost(Correlated):
    """Costs the noise of any strategy of a number of steps."""

    name: ClassVar[str] = "dense"
    sentence: ClassVar[str] = "Gaussian, correlated between steps by a dense strategy, whose coefficients lie in a file"
    noise: ClassVar[str] = "integer Gaussian noise on s*2^-32, correlated by a dense strategy"

    def bands(self, policy: Policy) -> None:
        """Returns None: it may have all."""


COSTS = (BandedToeplitzCost(), BandedInverseCost(), BufferedCost(), BandedCost(), DenseCost())
"""Rows of the families, for `ledger.accountants.table`."""
