"""What one contribution has spent: a function of its admission, the charges, and its withdrawal. Nothing else."""

from dataclasses import dataclass

from attest import schedule
from ledger import accountants
from ledger.errors import LeafRefused
from ledger.leaves import Admit, Header


@dataclass(slots=True)
class Contribution:
    """An admitted contribution as the replay sees it.

    Attributes:
        admit: its ADMIT leaf.
        class_index: place of its class in the policy.
        charged_before: steps charged in the ledger before it was admitted.
        attempt_before: attempt that was running when it was admitted.
        charged_until: steps charged when it was withdrawn, None while active.
        attempt_until: last attempt that had charged a step when it was withdrawn, None while active.
    """

    admit: Admit
    class_index: int
    charged_before: int
    attempt_before: int
    charged_until: int | None = None
    attempt_until: int | None = None

    @property
    def active(self) -> bool:
        """Whether it is still in its pool."""
        return self.charged_until is None


class Expenditure:
    """Epsilon per contribution, computed once per group of contributions with equal bounds and equal charges."""

    def __init__(self, header: Header) -> None:
        """Takes schedule, sampling rates, delta and accountant from the header."""
        self._header = header
        self._min_std = [header.min_std(index) for index in range(len(header.profiles))]
        self._rates = [float(rule.sampling_rate) for rule in header.policy.classes]
        self._multipliers: dict[tuple[int, int, int], float] = {}
        self._epsilons: dict[tuple[float, int, int, int], float] = {}

    def min_std(self, class_index: int) -> float:
        """Smallest noise standard deviation over the blocks of a class."""
        return self._min_std[class_index]

    def multiplier(self, class_index: int, sigma_micro: int, clip_micro: int) -> float:
        """Effective noise multiplier z = max(sigma_i, min over the blocks of s_l / C_i)."""
        key = (class_index, sigma_micro, clip_micro)
        found = self._multipliers.get(key)
        if found is None:
            found = schedule.effective_multiplier(sigma_micro, clip_micro, [self._min_std[class_index]])
            self._multipliers[key] = found
        return found

    def steps(self, contribution: Contribution, charged: int) -> int:
        """Charged steps in whose pool the contribution was, re-executed and unsettled ones included."""
        until = contribution.charged_until
        return (charged if until is None else until) - contribution.charged_before

    def epsilon(self, contribution: Contribution, charged: int, attempt: int) -> float:
        """Returns what a contribution has spent.

        Guarantee:
            An upper bound on its epsilon at the policy's delta under zero-out adjacency, for a sampler that draws it
            with its class's rate from the steps charged between its admission and its withdrawal, and a mechanism that
            clips to its signed norm and, whitened, to 1/sigma. Steps that were charged and not run, or run twice,
            count each time. If the header says that caps are enforced, its cap counts anew in every attempt, since
            what was drawn in an abandoned attempt is not known afterwards.

        Args:
            contribution: the contribution.
            charged: steps charged in the ledger so far.
            attempt: last attempt that has charged a step.

        Raises:
            LeafRefused: its class is public: nothing is promised, and no number says so.
        """
        admit = contribution.admit
        if self._header.policy.classes[contribution.class_index].public:
            raise LeafRefused("PUBLIC", f"class {admit.class_name} is public: no epsilon is claimed for its contributions")
        z = self.multiplier(contribution.class_index, admit.sigma_micro, admit.clip_micro)
        steps = self.steps(contribution, charged)
        occurrences = 0
        if self._header.caps_enforced and admit.max_occurrences and steps:
            first = contribution.attempt_before
            last = attempt if contribution.attempt_until is None else contribution.attempt_until
            occurrences = admit.max_occurrences * (max(last, first) - first + 1)
        return self.of_group(contribution.class_index, z, steps, min(occurrences, steps))

    def of_group(self, class_index: int, z: float, steps: int, occurrences: int = 0) -> float:
        """Epsilon of all contributions of a class with this multiplier, step count and occurrence cap (0: none)."""
        key = (z, class_index, steps, occurrences)
        found = self._epsilons.get(key)
        if found is None:
            q, delta, name = self._rates[class_index], self._header.delta, self._header.accountant.name
            if occurrences:
                found = accountants.epsilon_capped(z, q, steps, occurrences, delta, name)
            else:
                found = accountants.epsilon(z, q, steps, delta, name)
            self._epsilons[key] = found
        return found
