"""What an audit reports."""

from dataclasses import asdict, dataclass
from typing import Any

from ledger.audit.words import Verdict
from ledger.leaves import HeaderBlock
from ledger.views.released import ReleaseRow
from ledger.views.summary import ClassSummary


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong.

    Attributes:
        code: short upper-case reason.
        where: the file of the export, or ``seq N`` for the meaning of a leaf.
        sentence: what was found and what was expected.
    """

    code: str
    where: str
    sentence: str


@dataclass(frozen=True, slots=True)
class EpochRow:
    """One recorded epoch.

    Attributes:
        number: number of the epoch, from 1.
        step: last released step.
        charged: steps charged so far, over all attempts.
        epsilons: largest epsilon per class, None for a public one.
        seq: position of its EPOCH leaf: a checkpoint of a larger size commits to it.
        time: POSIX seconds of that leaf.
        active: contributions in the pool, per class.
        withdrawn: contributions withdrawn so far, per class.
        model_digest: hex of the digest of the model state.
    """

    number: int
    step: int
    charged: int
    epsilons: tuple[float | None, ...]
    seq: int
    time: int
    active: tuple[int, ...]
    withdrawn: tuple[int, ...]
    model_digest: str


@dataclass(frozen=True, slots=True)
class Signer:
    """A pinned key whose signature on the checkpoint was verified.

    Attributes:
        name: name of the key.
        key_id: hex of the key id in the signature line.
        time: POSIX seconds that a cosignature states; None for a plain signature, as the log's own is.
        of_log: whether it is one of the ledger's own keys.
        counts: whether that time lies where it can (`ledger.rules.timeline.Timeline.counts`); a cosignature that does not count
            is in no quorum. True of a plain signature, and where the audit broke off before it read the leaves.
    """

    name: str
    key_id: str
    time: int | None
    of_log: bool
    counts: bool = True


@dataclass(frozen=True, slots=True)
class IgnoredLine:
    """Signature lines of one key that is neither pinned, nor the ledger's, nor named by the policy: they count for nothing.

    Attributes:
        name: the name that they claim.
        key_id: hex of the key id that they claim.
        lines: how many there are below the checkpoints of the export.
        resembles: verifier key of a known signer that has this name or this key id, not both; None without such. The line is
            then damaged, forged, or by another key of that signer.
    """

    name: str
    key_id: str
    lines: int
    resembles: str | None


@dataclass(frozen=True, slots=True)
class KindRow:
    """How many leaves of a kind there are.

    Attributes:
        kind: its name, as docs/formats.md has it.
        count: how many.
        first: position of the first.
        last: position of the last.
    """

    kind: str
    count: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class WithdrawalCount:
    """How many withdrawals of a class were entered for a reason; the class is None where nothing was ever admitted."""

    class_name: str | None
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class WithdrawalRow:
    """One withdrawal.

    Attributes:
        seq: position of its WITHDRAW leaf.
        time: POSIX seconds of that leaf.
        descriptor_hash: hex of the hash of the descriptor.
        reason: reason code.
        class_name: class of the contribution, None when no such contribution was ever admitted.
        steps: charged steps it was in the pool for, None like the class.
        epsilon: what it had spent and keeps, None like the class and for a public class.
    """

    seq: int
    time: int
    descriptor_hash: str
    reason: str
    class_name: str | None
    steps: int | None
    epsilon: float | None


@dataclass(frozen=True, slots=True)
class WithdrawalEvidence:
    """What became of the evidence that WITHDRAW leaves name, where signed withdrawals were given.

    Attributes:
        signed: leaves whose evidence is a signed withdrawal.
        shown: how many of them were held against the withdrawal that they name, and hold.
        missing: positions of the others, at most `ledger.audit.signed_withdrawals.MAX_MISSING` of them.
    """

    signed: int
    shown: int
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BoundsEvidence:
    """What became of the attestations that ADMIT leaves quote.

    Attributes:
        admits: ADMIT leaves whose bodies are there.
        pruned: ADMIT leaves whose bodies are gone.
        held: how many of them hold against an attestation; under a key of the registry, where that is known.
        attested: whether the export holds attestations at all.
        keys: under how many keys of the registry they verify.
        registry_root: hex of the root of the registry's last state; None where no registry is known.
    """

    admits: int
    pruned: int
    held: int
    attested: bool
    keys: int
    registry_root: str | None


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One SUMMARY leaf.

    Attributes:
        seq: its position.
        first: first leaf of its range.
        end: first leaf after it.
        vouchers: names of the policy's auditors who vouch for it, as far as the export shows.
        pruned: leaves of the range whose bodies are gone.
        hashes_gone: how many of these have no leaf hash either, but lie in subtrees of which the root is kept.
        whole: whether the export has every body that the summary speaks for, ADMIT leaves of earlier ranges among them to whose
            records it commits. Only then may an auditor who audited this export vouch for it.
    """

    seq: int
    first: int
    end: int
    vouchers: tuple[str, ...]
    pruned: int = 0
    hashes_gone: int = 0
    whole: bool = True


@dataclass(frozen=True, slots=True)
class CitedRow:
    """An earlier ledger as the header cites it (`ledger.leaves.Previous`).

    Attributes:
        origin: its origin.
        size: number of leaves.
        root_hex: root over them.
        reason: `ledger.leaves.previous.SPENT` or `COMPROMISED`.
    """

    origin: str
    size: int
    root_hex: str
    reason: str


@dataclass(frozen=True, slots=True)
class ClockRow:
    """One CLOCK leaf: the ledger's operator took back times that a wrong clock had put into the leaves before it.

    Attributes:
        seq: its position.
        before: time of the leaf before it, POSIX seconds.
        time: time from which the ledger went on.
        reason: why, in the operator's words.
    """

    seq: int
    before: int
    time: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The result of an audit.

    Attributes:
        verdict: FULL, SUMMARISED, TOLD or FAILED (`ledger.audit.words.VERDICTS`, `ledger.audit.verify_export`).
        qualifiers: what weakens it, as words of `ledger.audit.words.QUALIFIERS`, sorted.
        findings: what is wrong; empty unless FAILED.
        notes: what a reader should know though nothing is wrong, the particulars of the qualifiers among it.
        origin: the ledger's origin, as signed; None when the checkpoint itself was refused, and so are the rest.
        size: number of leaves, as signed.
        root_hex: root of the tree, as signed.
        now: what the auditor's clock said, POSIX seconds: times were held against it.
        last_time: time of the last leaf, None where the leaves were not read.
        clock_sets: the CLOCK leaves.
        finished: whether the run was closed.
        corpus: corpus of the policy.
        cited: the earlier ledgers that the header cites.
        delta: the policy's delta.
        accountant: name, library and version that this audit computed with; a note says where the run recorded another.
        steps: the policy's horizon.
        charged: steps charged over all attempts.
        attempts: number of attempts.
        classes: per class, recomputed from the leaves.
        epochs: the recorded epochs.
        blocks: the noise schedule, derived from the signed policy and the stack that the header names.
        stack_parameters: parameters of that stack, whose names, order and coordinates are the operator's word.
        isolation: how statement A stands, in words: the trainer's word.
        randomness: whose the random numbers of a forward are, likewise (`ledger.leaves.header.RANDOMNESS`).
        unprobed: names of the trained tensors in whose gradient the start-up probes saw nothing, likewise.
        multipliers: per block and class, the noise multiplier of the class's preset bounds on that block alone, as
            `ledger.views.posture.block_multipliers` defines it.
        noise_follows_draw: whether the noise of a step is what those drawn brought, rather than the schedule's.
        noise_phases: first step, factor on the schedule, and charged steps of each phase, where the noise varies over the run.
        owner: id of the policy's owner.
        owner_pinned: whether the owner's key was given by whoever audits, rather than read from the header.
        kinds: the leaves by kind.
        model_digest: hex of the model digest in the last epoch, None without one.
        signers: who signed the checkpoint, of the pinned keys, the ledger's own and the cosigners whom the policy names.
        ignored: signature lines by keys that nobody knows, below the checkpoint and below those that a pruned export keeps.
        log_keys: the ledger's verifier keys in the order in which they signed it, the current one last.
        auditors: verifier keys of the auditors whom the policy names.
        quorum: how many of them the policy asks for, None without auditors.
        quorum_met: whether as many have cosigned, None without auditors.
        witnesses: verifier keys of the witnesses whom the policy names.
        witness_quorum: how many of them the policy asks for, None without witnesses.
        witness_quorum_met: whether as many have cosigned, None without witnesses.
        withdrawal_counts: withdrawals by class and reason, all of them.
        withdrawals: the last ones, at most `ledger.audit.withdrawals.MAX_LISTED`.
        withdrawal_evidence: what became of their evidence, None where no signed withdrawals were given.
        bounds: what became of the attestations of the contributions; None where the leaves were not read.
        summaries: the SUMMARY leaves.
        folded: number of ADMIT leaves that are gone of contributions that had not left when the run was closed.
        release_count: number of RELEASE leaves.
        releases: the last of them, at most `ledger.views.released.MAX_LISTED`, with what they cost each class.
    """

    verdict: Verdict
    findings: tuple[Finding, ...]
    qualifiers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    origin: str | None = None
    size: int | None = None
    root_hex: str | None = None
    now: int | None = None
    last_time: int | None = None
    clock_sets: tuple[ClockRow, ...] = ()
    finished: bool = False
    corpus: str | None = None
    cited: tuple[CitedRow, ...] = ()
    delta: float | None = None
    accountant: str | None = None
    steps: int | None = None
    charged: int = 0
    attempts: int = 0
    classes: tuple[ClassSummary, ...] = ()
    epochs: tuple[EpochRow, ...] = ()
    blocks: tuple[HeaderBlock, ...] = ()
    stack_parameters: int = 0
    isolation: str | None = None
    randomness: str | None = None
    unprobed: tuple[str, ...] = ()
    multipliers: tuple[tuple[float | None, ...], ...] = ()
    noise_follows_draw: bool = False
    noise_phases: tuple[tuple[int, float, int], ...] = ()
    owner: str | None = None
    owner_pinned: bool = False
    kinds: tuple[KindRow, ...] = ()
    model_digest: str | None = None
    signers: tuple[Signer, ...] = ()
    ignored: tuple[IgnoredLine, ...] = ()
    log_keys: tuple[str, ...] = ()
    auditors: tuple[str, ...] = ()
    quorum: int | None = None
    quorum_met: bool | None = None
    witnesses: tuple[str, ...] = ()
    witness_quorum: int | None = None
    witness_quorum_met: bool | None = None
    withdrawal_counts: tuple[WithdrawalCount, ...] = ()
    withdrawals: tuple[WithdrawalRow, ...] = ()
    withdrawal_evidence: WithdrawalEvidence | None = None
    bounds: BoundsEvidence | None = None
    summaries: tuple[SummaryRow, ...] = ()
    folded: int = 0
    release_count: int = 0
    releases: tuple[ReleaseRow, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns a form that ``json.dumps`` takes."""
        return asdict(self)
