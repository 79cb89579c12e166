"""What is known about a run beside its policy: the plan, the size of the corpus, the registry, the pace of training."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from attest.policy import Policy
from dptrain.planning.layout import BlockPlan
from dptrain.planning.plan import ClassPlan, Plan, Reach

_DAY = 86400


@dataclass(frozen=True, slots=True)
class CorpusSize:
    """How many contributions there are.

    Attributes:
        basis: `given` by hand, `attested` (signed for this corpus; nothing verified), or `admitted` by the gate.
        classes: Contributions per class.
        contributors: Contributions per contributor; empty if they were given by hand.
        unknown: Attested contributions per class that the policy does not have.
        too_soft: Attested contributions per class whose signed bounds the gate will refuse.
        other_corpus: Attestations that are meant for another corpus.
        refused: Refusals of the gate per reason code.
        most_examples: The most examples that an attestation lets one contribution hold.
        first_expiry: Second at which the first attestation expires, None if none was read.
    """

    basis: Literal["given", "attested", "admitted"]
    classes: Mapping[str, int]
    contributors: Mapping[str, int] = field(default_factory=dict)
    unknown: Mapping[str, int] = field(default_factory=dict)
    too_soft: Mapping[str, int] = field(default_factory=dict)
    other_corpus: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    most_examples: int = 0
    first_expiry: int | None = None

    @property
    def total(self) -> int:
        """Contributions of all classes."""
        return sum(self.classes.values())


@dataclass(frozen=True, slots=True)
class Case:
    """A policy and what it will meet.

    Attributes:
        size: None if nobody said how large the corpus is.
        granted: Classes that the registry grants to anybody, None if there is no registry to look at.
        enrolled: Contributors in it.
        parties: Who holds a key, in words, of the keys in the registry: the corpus owner and the contributors.
        seconds_per_step: How long a logical step is taken to last; validity of attestations is compared with it.
        now: Seconds since 1970.
    """

    policy: Policy
    plan: Plan
    size: CorpusSize | None = None
    granted: frozenset[str] | None = None
    enrolled: int = 0
    parties: Mapping[bytes, str] = field(default_factory=dict)
    seconds_per_step: float = 10.0
    now: int = 0

    def contributions(self, name: str) -> int | None:
        """Contributions of a class, None if nobody said: a corpus was counted whole, a list given by hand may have gaps."""
        if self.size is None:
            return None
        return self.size.classes.get(name, None if self.size.basis == "given" else 0)

    def draws_per_step(self, planned: Reach) -> float | None:
        """Contributions of a class that a step draws on average, None if their number is unknown."""
        count = self.contributions(planned.name)
        return None if count is None else planned.sampling_rate * count

    @property
    def batch(self) -> float | None:
        """Contributions that a step draws on average, None if the number of any class is unknown."""
        known = [draws for planned in self.plan.reaches if (draws := self.draws_per_step(planned)) is not None]
        return sum(known) if len(known) == len(self.plan.reaches) else None

    def blocks_of(self, planned: Reach) -> list[BlockPlan]:
        """The blocks that a class may touch."""
        return [block for block in self.plan.blocks if planned.name in block.classes]

    def brings(self, planned: ClassPlan) -> float | None:
        """With noise per sample: the variance that those drawn of a class bring on average, None if their number is unknown."""
        draws = self.draws_per_step(planned)
        return None if draws is None else draws * (planned.preset.noise_multiplier * planned.preset.clip_norm) ** 2

    def noise_of(self, planned: Reach) -> list[BlockPlan] | None:
        """The blocks that a class may touch, with the noise of a step.

        With noise per sample it grows with those drawn: the root of the variance that a step brings on average; None if the
        number of contributions of any class that may touch such a block is unknown.
        """
        found = self.blocks_of(planned)
        if self.policy.noise_injection != "per_sample":
            return found
        brought = {item.name: self.brings(item) for item in self.plan.classes}
        brought |= {item.name: 0.0 for item in self.plan.public}
        blocks = []
        for block in found:
            own = [variance for name in block.classes if (variance := brought[name]) is not None]
            if len(own) < len(block.classes):
                return None
            blocks.append(replace(block, std=math.sqrt(sum(own))))
        return blocks

    @property
    def days_of_training(self) -> float:
        """How long the horizon lasts at the pace assumed."""
        return self.policy.steps * self.seconds_per_step / _DAY

    @property
    def seconds_of_validity(self) -> float:
        """How long an attestation must be valid to last through training that starts within a day."""
        return self.policy.steps * self.seconds_per_step + _DAY

    @property
    def days_proposed(self) -> int:
        """A validity with room for contributions that are signed early and training that takes twice as long."""
        return math.ceil(2 * self.days_of_training) + 30
