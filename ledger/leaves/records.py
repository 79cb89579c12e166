"""Defines the leaves after the header: those of a run, and those about the ledger itself. Each field is declared once."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Final

from attest.descriptor import SignedBounds
from attest.schema import check_fields, declared
from attest.schema.quick import Array, Blob, Row
from ledger.errors import LeafRefused
from ledger.leaves.kinds import (
    ABOVE_0,
    ID,
    KEY_ID,
    LOG_VKEY,
    MICRO,
    MICRO_ABOVE_0,
    MOMENT,
    PICO_BELOW_1,
    REAL,
    RUN_ID,
    SHA256,
    SIGNATURE,
    UINT,
    WORDS,
    Checked,
    Entry,
    check_limit,
)

MAX_MEMBER = 64
"""Most hashes of a member in a WITHDRAW leaf: a content anchor, and a path in a tree of less than 2^63 leaves."""

SpendKey = tuple[int, int, int, int, int, int, int, int, int, int | None, int, float]
"""Sets a group of contributions apart: the first twelve fields of `SpendRow`."""

SpendFacts = tuple[int, bytes, int, float]
"""Number of members, their root, charged steps and smallest variance of a group."""

_VARIANCES = Array(REAL, 1)


class Quoted:
    """Gives the bounds and the limit that an ADMIT leaf, or what stands for one, quotes of a contribution field by field."""

    __slots__ = ()
    clip_micro: int
    sigma_micro: int
    max_occurrences: int
    carried_micro: int
    max_epsilon_micro: int
    max_delta_pico: int

    @property
    def bounds(self) -> SignedBounds:
        """Returns the signed bounds."""
        return SignedBounds(self.clip_micro, self.sigma_micro, self.max_occurrences)

    @property
    def limit(self) -> tuple[int, int]:
        """Returns the most epsilon over all runs in 1e-6, and its delta in 1e-12; zeros for no limit."""
        return self.max_epsilon_micro, self.max_delta_pico

    def shared(self) -> tuple[int, int, int, int, int, int]:
        """Returns bounds, earlier epsilon and limit as plain numbers: what admissions to one class share, quick to compare."""
        return (
            self.clip_micro,
            self.sigma_micro,
            self.max_occurrences,
            self.carried_micro,
            self.max_epsilon_micro,
            self.max_delta_pico,
        )


@dataclass(frozen=True, slots=True)
class Admit(Entry, Quoted):
    """A contribution enters the pool of its class."""

    KIND: ClassVar = 1
    descriptor_hash: bytes = declared(
        3,
        SHA256,
        "SHA-256 of the signed descriptor; it holds salted commitments, so the hash cannot be guessed. No ADMIT or WITHDRAW"
        " leaf before has it.",
    )
    class_name: str = declared(4, ID, "Admissibility class, a name of the policy.")
    profile_id: int = declared(5, UINT, "Place of the class in the policy, and of its depth profile in the header.")
    clip_micro: int = declared(6, MICRO_ABOVE_0, "Signed clip norm, from the policy's floor to the class preset.")
    sigma_micro: int = declared(7, MICRO_ABOVE_0, "Signed noise multiplier, from the class preset up.")
    max_occurrences: int = declared(8, UINT, "Most steps in which it may take part, 0 for no cap.")
    attestation_hash: bytes = declared(9, SHA256, "SHA-256 of the array of descriptor and message. No other ADMIT leaf has it.")
    key_id: bytes = declared(10, KEY_ID, "First 8 bytes of the SHA-256 of the contributor's key.")
    anchor: bytes = declared(
        11,
        SHA256,
        "The signed commitment to its content, field 7 of the descriptor. No other ADMIT leaf has it (`DUPLICATE_CONTENT`),"
        " since a content has one nonce.",
    )
    carried_micro: int = declared(
        12, MICRO, "What it spent in the earlier runs that the header counts, rounded up; 0 without any."
    )
    max_epsilon_micro: int = declared(13, MICRO, "Most epsilon that it may spend over all runs, as it signed; 0 for no limit.")
    max_delta_pico: int = declared(
        14, PICO_BELOW_1, "The delta of that limit, as it signed; 0 for no limit.", rule="0 exactly with 13"
    )

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)
        check_limit(self.max_epsilon_micro, self.max_delta_pico)


@dataclass(frozen=True, slots=True)
class ChargeClass(Checked):
    """Charges one class in a window, and states the pool it is sampled from."""

    CDDL: ClassVar = "charged-class"
    class_name: str = declared(1, ID, "Name of the class.")
    q_num: int = declared(2, UINT, "Numerator of the sampling rate.")
    q_den: int = declared(3, ABOVE_0, "Its denominator.")
    sigma_micro: int = declared(4, MICRO_ABOVE_0, "Preset noise multiplier, of a public class too.")
    clip_micro: int = declared(5, MICRO_ABOVE_0, "Preset clip norm, of a public class too.")
    min_std: float = declared(
        6,
        REAL,
        "Effective noise of the class in the phase of these steps: the smallest standard deviation over the blocks of its"
        " profile, or of a private class with budgets S of Theorem 7.",
    )
    pool_count: int = declared(7, UINT, "Number of active contributions.")
    pool_root: bytes = declared(
        8,
        SHA256,
        "RFC 6962 root over one leaf for everybody ever admitted to the class, in the order of ADMIT leaves: the descriptor"
        " hash, or the empty string once withdrawn.",
    )


@dataclass(frozen=True, slots=True)
class Charge(Entry):
    """A window of steps is paid for, before the first of them runs: the leaf is durable before that step is drawn."""

    KIND: ClassVar = 2
    window: int = declared(
        3, ABOVE_0, "Number of the window, from 1, over all attempts: one more than before. No other window is open."
    )
    attempt: int = declared(4, UINT, "Number of the running attempt, 0 until the first RESUME.")
    first_step: int = declared(
        5, ABOVE_0, "First logical step of the window: the position of the run ([Order of a run](#order-of-a-run)) plus 1."
    )
    n_steps: int = declared(
        6,
        ABOVE_0,
        "Number of steps: at most the policy's window, in one phase of the noise, within the horizon. Over all attempts at most"
        " steps plus redo steps are charged; where the policy signs an order (`cyclic_poisson` too) or noise has several"
        " phases, at most redo steps of these were charged before.",
    )
    classes: tuple[ChargeClass, ...] = declared(7, Array(Row(ChargeClass), 1), "One row per class of the policy, in its order.")
    noise_stream: bytes = declared(
        8,
        RUN_ID,
        "Identifier of the noise stream of this window, used once in the life of the ledger (`NOISE_REUSED`). Keys are never"
        " recorded.",
    )
    fence: int = declared(9, UINT, "Number of the writer that holds the ledger, no smaller than in the CHARGE before.")

    @property
    def last_step(self) -> int:
        """Returns the last step of the window."""
        return self.first_step + self.n_steps - 1


@dataclass(frozen=True, slots=True)
class Settle(Entry):
    """A window has run."""

    KIND: ClassVar = 3
    window: int = declared(3, ABOVE_0, "Number of the open window.")
    steps_released: int = declared(
        4,
        UINT,
        "Steps whose noised result was used; the rest were charged and not run. Where any are left the attempt is over: no"
        " CHARGE before a RESUME.",
    )
    variances: tuple[float, ...] = declared(
        5,
        _VARIANCES,
        "Per class, the smallest noise variance that was realised over its blocks: with injection per sample over the steps"
        " drawn, else that of the schedule in the phase of the window.",
    )


@dataclass(frozen=True, slots=True)
class SpendRow(Checked, Quoted):
    """States what each member of a group has spent: contributions with equal terms that came and left between equal windows.

    The first twelve fields set the group apart from all others of its run.
    """

    CDDL: ClassVar = "row"
    profile_id: int = declared(1, UINT, "Place of the class in the policy.")
    clip_micro: int = declared(2, MICRO_ABOVE_0, "Signed clip norm.")
    sigma_micro: int = declared(3, MICRO_ABOVE_0, "Signed noise multiplier.")
    max_occurrences: int = declared(4, UINT, "Most steps in which a member may take part, 0 for no cap.")
    carried_micro: int = declared(5, MICRO, "What a member had spent in earlier runs.")
    max_epsilon_micro: int = declared(6, MICRO, "Most that a member may spend over all runs; 0 for no limit.")
    max_delta_pico: int = declared(7, PICO_BELOW_1, "The delta of that limit; 0 for no limit.", rule="0 exactly with the limit")
    window_before: int = declared(8, UINT, "Number of the last window charged before the members were admitted, 0 for none.")
    attempt_before: int = declared(9, UINT, "Attempt that was running at their admission: that of the last RESUME leaf, or 0.")
    window_until: int | None = declared(
        10,
        UINT,
        "Number of the last window charged before they were withdrawn, 0 for none; null while they are active.",
        nil=True,
        rule="at least window-before",
    )
    occurrences: int = declared(11, UINT, "In how many steps a member took part, where occurrences are public; else 0.")
    loss: float = declared(
        12, REAL, "Sum over these of 1/z^2, or of what correlated noise adds, where occurrences are public; else 0.0."
    )
    count: int = declared(13, ABOVE_0, "Number of members.")
    members_root: bytes = declared(
        14,
        SHA256,
        "RFC 6962 root over one leaf for everybody who ever joined, in that order: the descriptor hash, or the empty string"
        " once the member left the group. Where draws are public and `window_until` is null, over the members alone, in the"
        " order of their ADMIT leaves.",
    )
    steps: int = declared(
        15,
        UINT,
        "Steps charged in windows after `window_before` and up to `window_until`, redone and unsettled ones included.",
    )
    variance: float = declared(
        16, REAL, "Smallest noise variance over the blocks of a member in the phases of these steps; in all phases without any."
    )
    epsilon_micro: int = declared(17, MICRO, "Cumulative epsilon of a member, rounded up.")

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)
        check_limit(self.max_epsilon_micro, self.max_delta_pico)
        if self.window_until is not None and self.window_until < self.window_before:
            sentence = f"a group was withdrawn after window {self.window_until}, before it came after {self.window_before}"
            raise LeafRefused("RANGE", sentence)

    @property
    def key(self) -> SpendKey:
        """Returns the fields that set the group apart."""
        times = (self.window_before, self.attempt_before, self.window_until)
        return self.profile_id, *self.shared(), *times, self.occurrences, self.loss

    @property
    def facts(self) -> SpendFacts:
        """Returns the fields that follow from the key, the members and the charges: all others but the epsilon."""
        return self.count, self.members_root, self.steps, self.variance


@dataclass(frozen=True, slots=True)
class Spend(Entry):
    """States what contributions have spent, in groups, at the close of an epoch. Public contributions are in no group. Right
    before an EPOCH leaf stand the rows of all groups that have a member and whose last row does not say what is true now
    (count, root, steps, variance), and no others. They ascend by key, null before 0, and lie in as many SPEND leaves as they
    need."""

    KIND: ClassVar = 4
    rows: tuple[SpendRow, ...] = declared(
        3, Array(Row(SpendRow), 1), "The groups whose row changed since it was last written, in order."
    )


@dataclass(frozen=True, slots=True)
class Withdraw(Entry):
    """A contribution leaves its pool; what it has spent stays spent. It has one such leaf; behind one with a reason that nobody
    signs a second may follow that somebody signed, which names the same position and changes nothing else."""

    KIND: ClassVar = 5
    descriptor_hash: bytes = declared(3, SHA256, "The contribution.")
    admit_seq: int | None = declared(
        4,
        ABOVE_0,
        "Position of its ADMIT leaf; null where no such contribution was ever admitted, or none that can be shown.",
        nil=True,
    )
    reason: str = declared(
        5,
        ID,
        "Reason code. One that nobody signs (`expired`, `key-revoked`, `class-not-granted`) is of a contribution in the pool,"
        " before CLOSE (`WITHDRAW`). `withdrawn-from-texts`: a budget that the header counts had withdrawn it.",
    )
    evidence_hash: bytes = declared(
        6,
        SHA256,
        "SHA-256 of the COSE_Sign1 message of the signed withdrawal, or of the operator's record; with `expired` the"
        " attestation hash; with `key-revoked` and `class-not-granted` the root of the registry in force; with"
        " `withdrawn-from-texts` the SHA-256 of the WITHDRAWN leaf of the budget.",
    )
    member: tuple[bytes, ...] | None = declared(
        7,
        Array(SHA256, 1, MAX_MEMBER),
        "What shows that it was admitted there, where its ADMIT leaf is gone while it stayed: the content anchor of its member"
        " record, and the path to the root over the members of its aggregate; else null.",
        default=None,
        nil=True,
        needs="admit_seq",
    )


@dataclass(frozen=True, slots=True)
class EpochClass(Checked):
    """Totals of one class at the close of an epoch."""

    CDDL: ClassVar = "epoch-class"
    active: int = declared(1, UINT, "Contributions in the pool.")
    withdrawn: int = declared(2, UINT, "Contributions withdrawn.")
    max_epsilon_micro: int | None = declared(
        3,
        MICRO,
        "Largest epsilon that a SPEND row of the class has said so far, also of who left; 0 before the first; null in a public"
        " class, which promises none, and in no other.",
        nil=True,
    )


@dataclass(frozen=True, slots=True)
class Epoch(Entry):
    """The close of an epoch, right after the SPEND leaves of all groups that changed in it. It may follow any window."""

    KIND: ClassVar = 8
    number: int = declared(3, ABOVE_0, "Number of the epoch, from 1.")
    step: int = declared(4, UINT, "Last released step: the position. No window is open.")
    charged: int = declared(5, UINT, "Steps charged so far, over all attempts, redone and unsettled ones included.")
    classes: tuple[EpochClass, ...] = declared(6, Array(Row(EpochClass), 1), "Totals per class of the policy, in its order.")
    model_digest: bytes = declared(7, SHA256, "Over the tensors of the model ([Weights](release.md#weights)).")
    isolation: str = declared(
        8,
        WORDS,
        "`held` if statement A held in every step so far, else the first reason why it did not, which stays (`ISOLATION`): the"
        " trainer's word.",
    )
    frozen_digest: bytes | None = declared(
        9, SHA256, "Over the frozen parameters ([Weights](release.md#weights)): that of the header.", nil=True
    )


@dataclass(frozen=True, slots=True)
class Resume(Entry):
    """A new attempt starts from a model checkpoint; steps after it will be charged again, under fresh noise."""

    KIND: ClassVar = 9
    attempt: int = declared(
        3, ABOVE_0, "Number of the new attempt, one more than before. An open window is never settled, and counts in full."
    )
    from_step: int = declared(
        4,
        UINT,
        "Last step that the model checkpoint contains, the position from here on. Above 0 it takes a pin, and a leaf below the"
        " pin charged it (where draws are public, drew it).",
    )
    pinned_size: int | None = declared(
        5,
        ABOVE_0,
        "Ledger size that the model checkpoint pins; null when starting from step 0 without one.",
        nil=True,
        needs="pinned_root",
    )
    pinned_root: bytes | None = declared(
        6, SHA256, "Ledger root that it pins, that of this tree; or null.", nil=True, needs="pinned_size"
    )
    threads: int | None = declared(
        7,
        ABOVE_0,
        "Threads of a process from here on, where the model checkpoint was written with another number, so that sums may round"
        " otherwise; else null. The trainer's word.",
        nil=True,
    )


@dataclass(frozen=True, slots=True)
class Draw(Entry):
    """Names who takes part in a step, durable before it runs; in ledgers whose policy makes occurrences public, and no other.
    There is one for every released step, and no RESUME after a step without one."""

    KIND: ClassVar = 12
    window: int = declared(3, ABOVE_0, "Number of the window that pays for the step.")
    step: int = declared(4, ABOVE_0, "The logical step; those of a window follow one another from its first.")
    drawn: tuple[int, ...] = declared(
        5,
        Array(UINT, ascending=True),
        "Who was drawn, ascending: contributions by the number of their admission, counted from 0. None was withdrawn, and"
        " where caps are enforced none is beyond its own.",
        rule="ascending, each once",
    )
    variances: tuple[float, ...] = declared(
        6,
        _VARIANCES,
        "Per class, the smallest noise variance of the step over its blocks: with scheduled noise its effective standard"
        " deviation, squared.",
    )


@dataclass(frozen=True, slots=True)
class Close(Entry):
    """The run is over: nothing more will be charged. WITHDRAW, KEY, SUMMARY, RELEASE and CLOCK alone may follow."""

    KIND: ClassVar = 11
    step: int = declared(3, UINT, "Last released step: the position. No window is open.")
    charged: int = declared(4, UINT, "Steps charged over all attempts, as in the EPOCH leaf that it follows.")


@dataclass(frozen=True, slots=True)
class SummaryKind(Checked):
    """Counts the leaves of a kind in a summarised range."""

    CDDL: ClassVar = "summary-kind"
    kind: int = declared(1, UINT, "Kind of leaves.")
    count: int = declared(2, ABOVE_0, "How many of them the range has.")


@dataclass(frozen=True, slots=True)
class SummaryClass(Checked):
    """Totals of one class over a summarised range; epsilons are null in a public class and nowhere else."""

    CDDL: ClassVar = "summary-class"
    contributions: int = declared(
        1, UINT, "Contributions that are active at its end or left in it; in a public class, with an ADMIT leaf in it."
    )
    active: int = declared(2, UINT, "Contributions in the pool at its end.")
    sum_epsilon_micro: int | None = declared(
        3,
        MICRO,
        "Sum over the contributions of the last epsilon that was recorded for each by its end.",
        nil=True,
        needs="max_epsilon_micro",
    )
    max_epsilon_micro: int | None = declared(4, MICRO, "The largest of these.", nil=True, needs="sum_epsilon_micro")
    min_variance: float = declared(
        5,
        REAL,
        "Smallest noise variance that a SETTLE leaf of the range records for the class, or, when an epoch of it is closed, the"
        " last row of a group of these contributions; 0.0 without any.",
    )
    max_variance: float = declared(6, REAL, "The largest.", rule="at least the smallest")
    charged: int = declared(7, UINT, "Steps charged in the range.")
    occurrences: int = declared(
        8,
        UINT,
        "Most steps in which one of these contributions can have taken part by its end, as its last row says; 0 in a public"
        " class.",
    )

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)
        if self.max_variance < self.min_variance:
            sentence = f"the largest variance is {self.max_variance}, expected at least the smallest, {self.min_variance}"
            raise LeafRefused("RANGE", sentence)


@dataclass(frozen=True, slots=True)
class Summary(Entry):
    """Says what a range of leaves held, so that bodies in it may be pruned once an auditor has vouched for it."""

    KIND: ClassVar = 6
    first: int = declared(3, ABOVE_0, "First leaf of the range: 1, or the end of the range before.")
    end: int = declared(
        4,
        ABOVE_0,
        "First leaf after it, behind an EPOCH leaf that at least `retention_epochs` closed epochs follow.",
        rule="larger than 3",
    )
    kinds: tuple[SummaryKind, ...] = declared(
        5, Array(Row(SummaryKind), 1), "Leaves per kind.", rule="ascending by kind; counts add up to the range"
    )
    classes: tuple[SummaryClass, ...] = declared(
        6, Array(Row(SummaryClass), 1), "Totals per class of the policy, in its order."
    )
    subtree_roots: tuple[bytes, ...] = declared(
        7, Array(SHA256, 1), "Roots of the maximal aligned subtrees that tile the range, from left to right."
    )
    set_root: bytes = declared(8, SHA256, "RFC 6962 root over the aggregates of its ADMIT leaves, in order.")
    previous: int | None = declared(9, ABOVE_0, "Position of the SUMMARY leaf before, null in the first.", nil=True)

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)
        if self.end <= self.first:
            raise LeafRefused("RANGE", f"a range from leaf {self.first} ends behind it, expected an end above, got {self.end}")
        if any(a.kind >= b.kind for a, b in pairwise(self.kinds)):
            raise LeafRefused("ORDER", "the kinds of a summary are in ascending order, each once")
        if sum(row.count for row in self.kinds) != self.end - self.first:
            raise LeafRefused("RANGE", f"the kinds of a summary add up to the {self.end - self.first} leaves of its range")


@dataclass(frozen=True, slots=True)
class Key(Entry):
    """The signer of the ledger changes its key: from here on the new one signs; no larger checkpoint by the old one counts. Of
    a leaf at position i, the old key signs checkpoints of up to i leaves, both that of i + 1, the new one larger ones. No key
    comes back, or is an auditor's or a witness's."""

    KIND: ClassVar = 7
    old_vkey: str = declared(3, LOG_VKEY, "Verifier key that signed until now.")
    new_vkey: str = declared(4, LOG_VKEY, "Verifier key that signs from now on, under the same name; used for nothing before.")
    old_signature: bytes = declared(5, SIGNATURE, "Ed25519 signature by the old key ([The ledger's key](#the-ledgers-key)).")
    new_signature: bytes = declared(6, SIGNATURE, "Ed25519 signature by the new key, which shows that it is held.")


@dataclass(frozen=True, slots=True)
class Release(Entry):
    """Weights leave the house: which, under which manifest, and how far the ledger was then."""

    KIND: ClassVar = 10
    step: int = declared(3, UINT, "Last released step that the weights contain: the position.")
    size: int = declared(4, ABOVE_0, "Size of the checkpoint that the manifest cites.")
    root: bytes = declared(5, SHA256, "Root of that checkpoint.")
    manifest_digest: bytes = declared(6, SHA256, "SHA-256 of the signed manifest.")
    artifacts_digest: bytes = declared(7, SHA256, "Digest over the digests of the released files ([Release](release.md)).")
    withdrawals_root: bytes = declared(
        8, SHA256, "RFC 6962 root over the descriptor hashes withdrawn by that size, in the order of their leaves."
    )


@dataclass(frozen=True, slots=True)
class Clock(Entry):
    """The writer's clock was ahead and is set back: the only leaf whose time is earlier than that of the leaf before it. What
    lies more than an hour ahead of the auditor's clock, since the last such leaf, is found (`CLOCK`).

    Its own time is that of the clock that is right, from which the ledger goes on.
    """

    KIND: ClassVar = 13
    before: int = declared(3, MOMENT, "Time of the leaf before this one.", rule="later than 2")
    reason: str = declared(4, WORDS, "Why, as the ledger's operator says it.")

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)
        if self.time >= self.before:
            raise LeafRefused("RANGE", f"a CLOCK leaf steps back: expected a time before {self.before}, got {self.time}")


@dataclass(frozen=True, slots=True)
class Registry(Entry):
    """The run takes in a later state of the contributor registry, and goes by it from here on: the leaf is durable before that.
    The state in force decides of keys, grants and caps of admissions, of who may be in the pool of a CHARGE (`BARRED`: nobody
    with a key revoked by then, or a class not granted), and that a WITHDRAW says so of those alone (`NOT_BARRED`). The registry
    of an export has all these states, in order (`REGISTRY_ROOT`)."""

    KIND: ClassVar = 14
    before: bytes = declared(
        3, SHA256, "Root of the state by which it went until now: that of the header, or of the REGISTRY leaf before."
    )
    after: bytes = declared(
        4, SHA256, "Root of the later state, which was not in force before (`REGISTRY`).", rule="not equal to 3"
    )

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)
        if self.before == self.after:
            raise LeafRefused("RANGE", "a REGISTRY leaf tells of another state: its two roots are equal")


MOST_PART: Final = 64_000
"""Bytes of coefficients in one leaf: 16,000 numbers."""


@dataclass(frozen=True, slots=True)
class Coefficients(Entry):
    """Holds a part of the coefficients whose digest the policy signs; these leaves come behind the header, in order."""

    KIND: ClassVar = 15
    data: bytes = declared(
        3,
        Blob(f"bstr .size (4..{MOST_PART})", 4, MOST_PART),
        f"The next bytes of the coefficients: {MOST_PART} of them, or what is left.",
    )
