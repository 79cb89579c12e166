"""Costs noise that is correlated between steps: the rows of its families, for contributions that take turns in one fixed order.

To a contribution that takes part in known steps all releases together are one Gaussian (docs/mechanism, Theorem 15). So its
occurrences are counted one by one, as those of independent noise are, each with what it adds (`turns.Turns`), and whatever
accounts for Gaussian noise accounts for the sum.
"""

from typing import ClassVar

from attest.policy import Policy
from attest.policy.sampling import CYCLIC, period
from ledger.accountants.correlated.turns import Turns, turns_of
from ledger.accountants.gaussian import Gaussian
from ledger.accountants.phases import Counted, Participation
from ledger.accountants.table import HOST
from ledger.errors import AccountantError


class Correlated(Gaussian):
    """Costs Gaussian noise that a strategy correlates between steps, its columns scaled to a norm of 1 at most.

    The noise multiplier z is that of one occurrence: standard deviation of the noise of the schedule over the clip norm.
    """

    injections: ClassVar[tuple[str, ...]] = ("scheduled",)
    disclosures: ClassVar[tuple[str, ...]] = ("occurrences_public",)
    groups: ClassVar[tuple[str, ...]] = ("occurrences_public",)
    generators: ClassVar[tuple[str, ...]] = (HOST,)
    consequence: ClassVar[str] = (
        "noise of several steps cancels in what they add up to; an occurrence counts with those before it whose noise it shares"
    )
    why: ClassVar = {
        "disclosure": "no amplification is proved for it here, so that occurrences are counted in full",
        "injection": "the noise of a step is one draw per block, and a function of those before it",
    }

    def epsilon(self, participation: Participation, delta: float, accountant: str, *, replace: bool = False) -> float:
        """Returns epsilon of occurrences that are public; see `ledger.accountants.table.Cost.epsilon`.

        Raises:
            AccountantError: code FAMILY, draws are secret.
        """
        if not isinstance(participation, Counted):
            told = f"noise family {self.name!r} has no epsilon of secret draws; {self.why['disclosure']}"
            raise AccountantError("FAMILY", told)
        return super().epsilon(participation, delta, accountant, replace=replace)

    def refuse(self, policy: Policy) -> str | None:
        """Says why nothing accounts for the policy: its order, phases, or a strategy that nothing adds up; None if it is."""
        told = f"noise.family {self.name!r} goes with"
        if policy.sampling.name != CYCLIC:
            found = f"{policy.sampling.name!r} (only turns that come back in one fixed order are known beforehand)"
            return f"{told} sampling.order {CYCLIC!r}, not with {found}; set sampling.order = {CYCLIC!r}"
        if policy.noise_phases:
            return f"{told} one level of noise, not with [[noise.phase]], whose sums have another lattice; leave the phases out"
        try:
            for rule in policy.classes:
                self.turns(policy, period(rule.sampling_rate))
        except AccountantError as error:
            return error.sentence
        return None

    def turns(self, policy: Policy, length: int) -> Turns:
        """Returns what occurrences add, for who takes part in every ``length``-th step; see `Turns`."""
        return turns_of(policy.mechanism, policy.steps, length)


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


class BufferedCost(Correlated):
    """Costs the noise of a buffered linear Toeplitz strategy."""

    name: ClassVar[str] = "buffered_toeplitz"
    sentence: ClassVar[str] = "Gaussian, correlated between steps by buffers"
    noise: ClassVar[str] = "integer Gaussian noise on s*2^-32, correlated by a buffered Toeplitz strategy"


COSTS = (BandedToeplitzCost(), BandedInverseCost(), BufferedCost())
"""Rows of the families, for `ledger.accountants.table`."""
