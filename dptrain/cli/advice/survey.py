"""Count the contributions of a corpus on disk, class by class."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from attest.corpus import open_corpus
from attest.descriptor import ContributionDescriptor
from attest.errors import AttestError
from attest.gate.admission import GateReport
from attest.policy import ClassRule, Policy
from dptrain.cli.advice.case import CorpusSize


def attested(path: Path, policy: Policy, progress: Callable[[int], None] | None = None) -> CorpusSize:
    """Count what the attestations of a corpus say; nothing is verified, and what cannot be read counts as refused.

    Args:
        path: A corpus as the gate takes it.
        policy: Tells which classes there are and which bounds are admitted.
        progress: Called with the number counted so far.
    """
    classes, contributors, unknown, soft, refused = Counter(), Counter(), Counter(), Counter(), Counter()
    elsewhere, examples, expiry = 0, 0, None
    for count, item in enumerate(open_corpus(path), start=1):
        if progress is not None:
            progress(count)
        if item.attestation is None:
            refused[item.problem.code if item.problem else "UNATTESTED"] += 1
            continue
        try:
            signed = item.attestation.opened()
        except AttestError as error:
            refused[str(error.code)] += 1
            continue
        rule = policy.find_class(signed.admissibility_class)
        if signed.corpus != policy.corpus:
            elsewhere += 1
        elif rule is None:
            unknown[signed.admissibility_class] += 1
        else:
            classes[rule.name] += 1
            contributors[signed.contributor] += 1
            soft[rule.name] += not _within(signed, rule, policy)
            examples = max(examples, signed.max_examples or 0)
            expiry = signed.not_after if expiry is None else min(expiry, signed.not_after)
    return CorpusSize(
        "attested",
        _sorted(classes),
        _sorted(contributors),
        unknown=_sorted(unknown),
        too_soft=_sorted(+soft),
        other_corpus=elsewhere,
        refused=_sorted(refused),
        most_examples=examples,
        first_expiry=expiry,
    )


def admitted(report: GateReport) -> CorpusSize:
    """Count what the gate admitted."""
    counts = report.counts()
    descriptors = [item.admission.descriptor for item in report.admitted]
    return CorpusSize(
        "admitted",
        counts["admitted"],
        _sorted(Counter(signed.contributor for signed in descriptors)),
        refused=counts["refused"],
        first_expiry=min((signed.not_after for signed in descriptors), default=None),
    )


def _within(signed: ContributionDescriptor, rule: ClassRule, policy: Policy) -> bool:
    """Whether the gate's comparisons of bounds would pass."""
    if rule.public:
        return signed.public
    clip, noise = signed.clip_norm_micro, signed.noise_multiplier_micro
    return (
        policy.min_clip_norm_micro <= clip <= rule.clip_norm_micro
        and noise >= rule.noise_multiplier_micro
        and noise >= policy.min_noise_multiplier_micro
    )


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items()))
