"""Leaves after the header. The order of the fields of each class is its wire format: keys 0, 2, 3, 4, ... of the map.

Key 1 is the kind, ``KIND``. Kinds 6, 7, 10, 13 and 14 are in `ledger.leaves.upkeep`.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from attest.clock import EARLIEST, MAX_TIME
from attest.micro import PICO
from ledger.errors import LeafRefused
from ledger.leaves import checks

HASH = 32

MAX_MEMBER = 64
"""Most hashes of a member in a WITHDRAW leaf: a content anchor, and a path in a tree of less than 2^63 leaves."""

SpendKey = tuple[int, int, int, int, int, int, int, int, int, int | None, int, float]
"""What sets a group of contributions apart: the first twelve fields of `SpendRow`."""

SpendFacts = tuple[int, bytes, int, float]
"""Number of members, their root, charged steps and smallest variance of a group."""


@dataclass(frozen=True, slots=True)
class Admit:
    """A contribution enters the pool of its class.

    Attributes:
        seq: position in the ledger.
        time: POSIX seconds.
        descriptor_hash: SHA-256 of the signed descriptor; it holds salted commitments, so the hash cannot be guessed.
        class_name: admissibility class, a name of the policy.
        profile_id: index of the class's depth profile in the header.
        clip_micro: signed clip norm in 1e-6.
        sigma_micro: signed noise multiplier in 1e-6.
        max_occurrences: most steps in which it may take part, 0 for no cap.
        attestation_hash: SHA-256 of the attestation message.
        key_id: first 8 bytes of the SHA-256 of the contributor's key.
        anchor: The signed commitment to its content (`attest.commitments.commit_content`).
        carried_micro: what it spent in the earlier runs that the header counts, in 1e-6, rounded up; 0 without any.
        max_epsilon_micro: most that it may spend over all runs, as it signed, in 1e-6; 0 for no limit.
        max_delta_pico: the delta of that limit, as it signed, in 1e-12; 0 for no limit.
    """

    KIND: ClassVar = 1
    seq: int
    time: int
    descriptor_hash: bytes
    class_name: str
    profile_id: int
    clip_micro: int
    sigma_micro: int
    max_occurrences: int
    attestation_hash: bytes
    key_id: bytes
    anchor: bytes
    carried_micro: int
    max_epsilon_micro: int
    max_delta_pico: int

    def __post_init__(self) -> None:
        if not self._plainly_right():
            self._check()

    def _plainly_right(self) -> bool:
        """Tells whether `_check` passes, in one expression: a ledger has a leaf for everybody."""
        seq, clip, sigma, carried = self.seq, self.clip_micro, self.sigma_micro, self.carried_micro
        mine, theirs, anchor, key_id = self.descriptor_hash, self.attestation_hash, self.anchor, self.key_id
        profile, most, epsilon, delta = self.profile_id, self.max_occurrences, self.max_epsilon_micro, self.max_delta_pico
        return (
            type(mine) is type(theirs) is type(anchor) is type(key_id) is bytes
            and len(mine) == len(theirs) == len(anchor) == HASH
            and len(key_id) == 8
            and type(seq) is type(clip) is type(sigma) is type(carried) is type(self.time) is int
            and type(profile) is type(most) is type(epsilon) is type(delta) is int
            and 1 <= seq <= checks.MAX_UINT
            and EARLIEST <= self.time < MAX_TIME
            and 1 <= clip <= checks.MAX_UINT
            and 1 <= sigma <= checks.MAX_UINT
            and 0 <= carried <= checks.MAX_UINT
            and 0 <= profile <= checks.MAX_UINT
            and 0 <= most <= checks.MAX_UINT
            and 0 <= epsilon <= checks.MAX_UINT
            and 0 <= delta < PICO
            and bool(epsilon) is bool(delta)
            and checks.is_identifier(self.class_name)
        )

    def _check(self) -> None:
        checks.identifier(self.class_name, "class")
        checks.place(self.seq, self.time)
        checks.octets(self.descriptor_hash, "descriptor hash", HASH)
        checks.uint(self.profile_id, "profile id")
        checks.uint(self.clip_micro, "clip norm", low=1)
        checks.uint(self.sigma_micro, "noise multiplier", low=1)
        checks.uint(self.max_occurrences, "max occurrences")
        checks.octets(self.attestation_hash, "attestation hash", HASH)
        checks.octets(self.key_id, "key id", 8)
        checks.octets(self.anchor, "anchor", HASH)
        checks.uint(self.carried_micro, "carried epsilon")
        checks.limit(self.max_epsilon_micro, self.max_delta_pico)


@dataclass(frozen=True, slots=True)
class ChargeClass:
    """What one class is charged in a window, and the pool it is sampled from.

    Attributes:
        class_name: name of the class.
        q_num: numerator of the sampling rate.
        q_den: its denominator.
        sigma_micro: preset noise multiplier in 1e-6.
        clip_micro: preset clip norm in 1e-6.
        min_std: effective noise of the class: the smallest standard deviation over the blocks of its profile, or what budgets
            make of all of them.
        pool_count: number of active contributions.
        pool_root: RFC 6962 root over all ever admitted, in that order: the descriptor hash, or nothing once withdrawn.
    """

    class_name: str
    q_num: int
    q_den: int
    sigma_micro: int
    clip_micro: int
    min_std: float
    pool_count: int
    pool_root: bytes

    def __post_init__(self) -> None:
        checks.identifier(self.class_name, "class")
        checks.uint(self.q_num, "sampling rate numerator")
        checks.uint(self.q_den, "sampling rate denominator", low=1)
        checks.uint(self.sigma_micro, "noise multiplier", low=1)
        checks.uint(self.clip_micro, "clip norm", low=1)
        checks.real(self.min_std, "noise standard deviation")
        checks.uint(self.pool_count, "pool count")
        checks.octets(self.pool_root, "pool root", HASH)


@dataclass(frozen=True, slots=True)
class Charge:
    """A window of steps is paid for, before the first of them runs.

    Attributes:
        seq: position in the ledger.
        time: POSIX seconds.
        window: number of the window, from 1.
        attempt: number of the attempt, 0 until the first resume.
        first_step: first logical step of the window, from 1.
        n_steps: number of steps.
        classes: one row per class of the policy, in its order.
        noise_stream: identifier of the noise stream of this window, used once in the life of the ledger.
        fence: number of the writer that holds the ledger.
    """

    KIND: ClassVar = 2
    seq: int
    time: int
    window: int
    attempt: int
    first_step: int
    n_steps: int
    classes: tuple[ChargeClass, ...]
    noise_stream: bytes
    fence: int

    def __post_init__(self) -> None:
        checks.place(self.seq, self.time)
        checks.uint(self.window, "window", low=1)
        checks.uint(self.attempt, "attempt")
        checks.uint(self.first_step, "first step", low=1)
        checks.uint(self.n_steps, "number of steps", low=1)
        checks.rows(self.classes, "classes", ChargeClass, least=1)
        checks.octets(self.noise_stream, "noise stream id", 16)
        checks.uint(self.fence, "fence")

    @property
    def last_step(self) -> int:
        """Last step of the window."""
        return self.first_step + self.n_steps - 1


@dataclass(frozen=True, slots=True)
class Settle:
    """A window has run.

    Attributes:
        seq: position in the ledger.
        time: POSIX seconds.
        window: number of the window.
        steps_released: steps whose noised result was used; the rest were charged and not run.
        variances: per class, the smallest noise variance that was realised over its blocks.
    """

    KIND: ClassVar = 3
    seq: int
    time: int
    window: int
    steps_released: int
    variances: tuple[float, ...]

    def __post_init__(self) -> None:
        checks.place(self.seq, self.time)
        checks.uint(self.window, "window", low=1)
        checks.uint(self.steps_released, "steps released")
        checks.rows(self.variances, "variances", float, least=1)
        for variance in self.variances:
            checks.real(variance, "realised variance")


@dataclass(frozen=True, slots=True)
class SpendRow:
    """What each member of a group has spent: contributions with equal terms that came and left between equal windows.

    The first twelve fields set the group apart from all others of its run.

    Attributes:
        profile_id: index of the depth profile of the class in the header.
        clip_micro: signed clip norm in 1e-6.
        sigma_micro: signed noise multiplier in 1e-6.
        max_occurrences: most steps in which a member may take part, 0 for no cap.
        carried_micro: what a member had spent in earlier runs, in 1e-6.
        max_epsilon_micro: most that a member may spend over all runs, in 1e-6; 0 for no limit.
        max_delta_pico: the delta of that limit, in 1e-12; 0 for no limit.
        window_before: number of the last window charged before the members were admitted, 0 for none.
        attempt_before: attempt that was running at their admission.
        window_until: number of the last window charged before they were withdrawn, 0 for none; None while they are active.
        occurrences: in how many steps a member took part, where occurrences are public; else 0.
        loss: sum over these of 1/z^2, where occurrences are public; else 0.0.
        count: number of members.
        members_root: RFC 6962 root over the members (`ledger.rules.groups.Group`).
        steps: charged steps in whose pool a member was.
        variance: smallest noise variance over the blocks of a member.
        epsilon_micro: cumulative epsilon of a member in 1e-6, rounded up.
    """

    profile_id: int
    clip_micro: int
    sigma_micro: int
    max_occurrences: int
    carried_micro: int
    max_epsilon_micro: int
    max_delta_pico: int
    window_before: int
    attempt_before: int
    window_until: int | None
    occurrences: int
    loss: float
    count: int
    members_root: bytes
    steps: int
    variance: float
    epsilon_micro: int

    def __post_init__(self) -> None:
        checks.uint(self.profile_id, "profile id")
        checks.uint(self.clip_micro, "clip norm", low=1)
        checks.uint(self.sigma_micro, "noise multiplier", low=1)
        checks.uint(self.max_occurrences, "max occurrences")
        checks.uint(self.carried_micro, "carried epsilon")
        checks.limit(self.max_epsilon_micro, self.max_delta_pico)
        checks.uint(self.window_before, "window before the admission")
        checks.uint(self.attempt_before, "attempt at the admission")
        if self.window_until is not None:
            checks.uint(self.window_until, "window before the withdrawal", low=self.window_before)
        checks.uint(self.occurrences, "occurrences")
        checks.real(self.loss, "loss")
        checks.uint(self.count, "members", low=1)
        checks.octets(self.members_root, "root over the members", HASH)
        checks.uint(self.steps, "steps")
        checks.real(self.variance, "variance")
        checks.uint(self.epsilon_micro, "epsilon")

    @property
    def key(self) -> SpendKey:
        """The fields that set the group apart."""
        bounds = (self.profile_id, self.clip_micro, self.sigma_micro, self.max_occurrences)
        limits = (self.carried_micro, self.max_epsilon_micro, self.max_delta_pico)
        times = (self.window_before, self.attempt_before, self.window_until)
        return *bounds, *limits, *times, self.occurrences, self.loss

    @property
    def facts(self) -> SpendFacts:
        """The fields that follow from the key, the members and the charges: all others but the epsilon."""
        return self.count, self.members_root, self.steps, self.variance


@dataclass(frozen=True, slots=True)
class Spend:
    """What contributions have spent, in groups, at the close of an epoch. Contributions of public classes are in none.

    Attributes:
        seq: position in the ledger.
        time: POSIX seconds.
        rows: the groups whose row changed since it was last written, in order.
    """

    KIND: ClassVar = 4
    seq: int
    time: int
    rows: tuple[SpendRow, ...]

    def __post_init__(self) -> None:
        checks.place(self.seq, self.time)
        checks.rows(self.rows, "rows", SpendRow, least=1)


@dataclass(frozen=True, slots=True)
class Withdraw:
    """A contribution leaves its pool; what it has spent stays spent.

    Attributes:
        seq: position in the ledger.
        time: POSIX seconds.
        descriptor_hash: the contribution.
        admit_seq: where it was admitted, or None when no such contribution was ever admitted, or none that can be shown.
        reason: reason code.
        evidence_hash: SHA-256 of the signed withdrawal, or of the operator's record.
        member: what shows that it was admitted there, where its ADMIT leaf is gone while it stayed: the content anchor of its
            member record, and the path to the root over the members of its aggregate; else None.
    """

    KIND: ClassVar = 5
    seq: int
    time: int
    descriptor_hash: bytes
    admit_seq: int | None
    reason: str
    evidence_hash: bytes
    member: tuple[bytes, ...] | None = None

    def __post_init__(self) -> None:
        checks.place(self.seq, self.time)
        checks.octets(self.descriptor_hash, "descriptor hash", HASH)
        if self.admit_seq is not None:
            checks.uint(self.admit_seq, "admit seq", low=1)
        checks.identifier(self.reason, "reason")
        checks.octets(self.evidence_hash, "evidence hash", HASH)
        if self.member is not None:
            checks.rows(self.member, "member", bytes, least=1)
            for hash_ in self.member:
                checks.octets(hash_, "hash of a member", HASH)
            if self.admit_seq is None or len(self.member) > MAX_MEMBER:
                raise LeafRefused("RANGE", f"a member has a position, and {MAX_MEMBER} hashes at most")


@dataclass(frozen=True, slots=True)
class EpochClass:
    """Totals of one class at the close of an epoch: active and withdrawn contributions, largest epsilon in 1e-6.

    The epsilon is None in a public class, which promises none; null there, and nowhere else.
    """

    active: int
    withdrawn: int
    max_epsilon_micro: int | None

    def __post_init__(self) -> None:
        checks.uint(self.active, "active")
        checks.uint(self.withdrawn, "withdrawn")
        if self.max_epsilon_micro is not None:
            checks.uint(self.max_epsilon_micro, "largest epsilon")


@dataclass(frozen=True, slots=True)
class Epoch:
    """The close of an epoch, after the SPEND leaves of all groups that changed in it.

    Attributes:
        seq: position in the ledger.
        time: POSIX seconds.
        number: number of the epoch, from 1.
        step: last released step.
        charged: steps charged so far, over all attempts.
        classes: totals per class of the policy, in its order.
        model_digest: over the tensors of the model (`ledger.rules.weights`).
        isolation: `ledger.leaves.header.HELD` if statement A held in every step so far, else the first reason why it did not:
            the trainer's word.
        frozen_digest: over the frozen parameters (`ledger.rules.weights.frozen_digest`): that of the header.
    """

    KIND: ClassVar = 8
    seq: int
    time: int
    number: int
    step: int
    charged: int
    classes: tuple[EpochClass, ...]
    model_digest: bytes
    isolation: str
    frozen_digest: bytes | None

    def __post_init__(self) -> None:
        checks.place(self.seq, self.time)
        checks.uint(self.number, "epoch", low=1)
        checks.uint(self.step, "step")
        checks.uint(self.charged, "charged steps")
        checks.rows(self.classes, "classes", EpochClass, least=1)
        checks.octets(self.model_digest, "model digest", HASH)
        checks.text(self.isolation, "isolation", longest=checks.REASON)
        if self.frozen_digest is not None:
            checks.octets(self.frozen_digest, "digest of frozen parameters", HASH)


@dataclass(frozen=True, slots=True)
class Resume:
    """A new attempt starts from a model checkpoint; steps after it will be charged again, under fresh noise.

    Attributes:
        seq: position in the ledger.
        time: POSIX seconds.
        attempt: number of the new attempt.
        from_step: last step that the model checkpoint contains.
        pinned_size: ledger size that the model checkpoint pins, or None when starting from step 0 without one.
        pinned_root: ledger root that it pins, or None.
    """

    KIND: ClassVar = 9
    seq: int
    time: int
    attempt: int
    from_step: int
    pinned_size: int | None
    pinned_root: bytes | None

    def __post_init__(self) -> None:
        checks.place(self.seq, self.time)
        checks.uint(self.attempt, "attempt", low=1)
        checks.uint(self.from_step, "from step")
        if self.pinned_size is not None or self.pinned_root is not None:
            checks.uint(self.pinned_size, "pinned size", low=1)
            checks.octets(self.pinned_root, "pinned root", HASH)


@dataclass(frozen=True, slots=True)
class Draw:
    """Who takes part in a step, written before the step runs; in a ledger whose policy makes occurrences public, and no other.

    Attributes:
        seq: position in the ledger.
        time: POSIX seconds.
        window: number of the window that pays for the step.
        step: the logical step.
        drawn: who was drawn, ascending: contributions by the number of their admission, counted from 0.
        variances: per class, the smallest noise variance of the step over its blocks.
    """

    KIND: ClassVar = 12
    seq: int
    time: int
    window: int
    step: int
    drawn: tuple[int, ...]
    variances: tuple[float, ...]

    def __post_init__(self) -> None:
        checks.place(self.seq, self.time)
        checks.uint(self.window, "window", low=1)
        checks.uint(self.step, "step", low=1)
        checks.rows(self.drawn, "drawn", int)
        for number in self.drawn:
            checks.uint(number, "number of a contribution")
        if any(a >= b for a, b in pairwise(self.drawn)):
            raise LeafRefused("ORDER", f"step {self.step}: those drawn are not in ascending order, each once")
        checks.rows(self.variances, "variances", float, least=1)
        for variance in self.variances:
            checks.real(variance, "realised variance")


@dataclass(frozen=True, slots=True)
class Close:
    """The run is over: nothing more will be charged. Only withdrawals may follow.

    Attributes:
        seq: position in the ledger.
        time: POSIX seconds.
        step: last released step.
        charged: steps charged over all attempts.
    """

    KIND: ClassVar = 11
    seq: int
    time: int
    step: int
    charged: int

    def __post_init__(self) -> None:
        checks.place(self.seq, self.time)
        checks.uint(self.step, "step")
        checks.uint(self.charged, "charged steps")
