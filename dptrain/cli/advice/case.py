"""Gather what is known about a run beside its policy: the plan, the corpus, the registry, the pace of training."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from attest.corpus import open_corpus
from attest.descriptor import TRAIN, ContributionDescriptor
from attest.errors import AttestError, CorpusRefused
from attest.gate.admission import GateReport
from attest.policy import ClassRule, Policy
from dptrain.cli.output import number
from dptrain.planning.layout import BlockPlan
from dptrain.planning.plan import ClassPlan, Plan, Reach

_DAY = 86400


@dataclass(slots=True)
class CorpusSize:
    """Counts the contributions of a corpus.

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
    classes: dict[str, int] = field(default_factory=Counter)
    contributors: dict[str, int] = field(default_factory=Counter)
    unknown: dict[str, int] = field(default_factory=Counter)
    too_soft: dict[str, int] = field(default_factory=Counter)
    other_corpus: int = 0
    refused: dict[str, int] = field(default_factory=Counter)
    most_examples: int = 0
    first_expiry: int | None = None

    @property
    def total(self) -> int:
        """Returns contributions of all classes."""
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
        """Returns contributions of a class, None if nobody said: a list given by hand may have gaps."""
        if self.size is None:
            return None
        return self.size.classes.get(name, None if self.size.basis == "given" else 0)

    def draws_per_step(self, planned: Reach) -> float | None:
        """Returns contributions of a class that a step draws on average, None if their number is unknown."""
        count = self.contributions(planned.name)
        return None if count is None else planned.sampling_rate / self.policy.sampling.groups * count

    @property
    def batch(self) -> float | None:
        """Returns contributions that a step draws on average, None if the number of any class is unknown."""
        known = [draws for planned in self.plan.reaches if (draws := self.draws_per_step(planned)) is not None]
        return sum(known) if len(known) == len(self.plan.reaches) else None

    def blocks_of(self, planned: Reach) -> list[BlockPlan]:
        """Returns the blocks that a class may touch."""
        return [block for block in self.plan.blocks if planned.name in block.classes]

    def brings(self, planned: ClassPlan) -> float | None:
        """With noise per sample: the variance that those drawn of a class bring on average, None if their number is unknown."""
        draws = self.draws_per_step(planned)
        return None if draws is None else draws * (planned.preset.noise_multiplier * planned.preset.clip_norm) ** 2

    def noise_of(self, planned: Reach) -> list[BlockPlan] | None:
        """Returns the blocks that a class may touch, with the noise of a step; with noise per sample the root of the variance
        that a step brings on average, None if the number of contributions of any class that may touch them is unknown."""
        found = self.blocks_of(planned)
        if not self.literal:
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

    def too_short(self, seconds: int) -> str:
        """Says that attestations which are valid so long run out while training does not."""
        return (
            f"valid for {seconds / _DAY:g} days at most; at {self.seconds_per_step:g} s per step training takes "
            f"{number(self.days_of_training)} days, and what expires on the way is drawn no more"
        )

    @property
    def literal(self) -> bool:
        """Tells whether those drawn bring the noise of a step."""
        return self.policy.noise_injection == "per_sample"

    @property
    def days_of_training(self) -> float:
        """Tells how long the horizon lasts at the pace assumed."""
        return self.policy.steps * self.seconds_per_step / _DAY

    @property
    def seconds_of_validity(self) -> float:
        """Tells how long an attestation must be valid to last through training that starts within a day."""
        return self.policy.steps * self.seconds_per_step + _DAY

    @property
    def days_proposed(self) -> int:
        """Returns a validity with room for contributions that are signed early and training that takes twice as long."""
        return math.ceil(2 * self.days_of_training) + 30


def attested(path: Path, policy: Policy, progress: Callable[[int], None] | None = None) -> CorpusSize:
    """Count what the attestations of a corpus say of the classes and bounds of a policy, of what may be trained on; nothing is
    verified, and what cannot be read counts as refused. `progress` is called with the number counted so far."""
    size = CorpusSize("attested")
    for count, item in enumerate(open_corpus(path), start=1):
        if progress is not None:
            progress(count)
        try:
            if item.attestation is None:
                raise item.problem or CorpusRefused("UNATTESTED", "nothing was signed for it")
            signed = item.attestation.opened()
        except AttestError as error:
            size.refused[str(error.code)] += 1
            continue
        rule = policy.find_class(signed.admissibility_class)
        if signed.corpus != policy.corpus:
            size.other_corpus += 1
        elif rule is None:
            size.unknown[signed.admissibility_class] += 1
        elif rule.trained and signed.allows(TRAIN):
            size.classes[rule.name] += 1
            size.contributors[signed.contributor] += 1
            size.too_soft[rule.name] += not _within(signed, rule, policy)
            size.most_examples = max(size.most_examples, signed.max_examples or 0)
            size.first_expiry = min(size.first_expiry or signed.not_after, signed.not_after)
    return size


def admitted(report: GateReport) -> CorpusSize:
    """Count what the gate admitted."""
    counts, signed = report.counts(), [item.admission.descriptor for item in report.admitted]
    size = CorpusSize("admitted", counts["admitted"], refused=counts["refused"])
    size.contributors = Counter(item.contributor for item in signed)
    size.first_expiry = min((item.not_after for item in signed), default=None)
    return size


def _within(signed: ContributionDescriptor, rule: ClassRule, policy: Policy) -> bool:
    """Tells whether the gate's comparisons of bounds would pass."""
    if rule.public:
        return signed.public
    (clip, noise, _), (most, least, _) = signed.bounds, rule.bounds  # no preset is below the floor
    return policy.min_clip_norm_micro <= clip <= most and noise >= least
