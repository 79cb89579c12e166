"""Leaves after the header, each field declared once; of a leaf the labels are the keys of its map, of a row its columns.

Kinds 6, 7, 10, 13 and 14 are in `ledger.leaves.upkeep`.
"""

from dataclasses import dataclass
from typing import ClassVar

from attest.schema import check_fields, declared
from attest.schema.quick import Array, Row
from ledger.errors import LeafRefused
from ledger.leaves.kinds import (
    ABOVE_0,
    ID,
    KEY_ID,
    MICRO,
    MICRO_ABOVE_0,
    PICO_BELOW_1,
    REAL,
    RUN_ID,
    SHA256,
    UINT,
    WORDS,
    Checked,
    Entry,
    check_limit,
)

MAX_MEMBER = 64
"""Most hashes of a member in a WITHDRAW leaf: a content anchor, and a path in a tree of less than 2^63 leaves."""

SpendKey = tuple[int, int, int, int, int, int, int, int, int, int | None, int, float]
"""What sets a group of contributions apart: the first twelve fields of `SpendRow`."""

SpendFacts = tuple[int, bytes, int, float]
"""Number of members, their root, charged steps and smallest variance of a group."""

_VARIANCES = Array(REAL, 1)


@dataclass(frozen=True, slots=True)
class Admit(Entry):
    """A contribution enters the pool of its class."""

    KIND: ClassVar = 1
    descriptor_hash: bytes = declared(
        3, SHA256, "SHA-256 of the signed descriptor; it holds salted commitments, so the hash cannot be guessed."
    )
    class_name: str = declared(4, ID, "Admissibility class, a name of the policy.")
    profile_id: int = declared(5, UINT, "Place of the class in the policy, and of its depth profile in the header.")
    clip_micro: int = declared(6, MICRO_ABOVE_0, "Signed clip norm.")
    sigma_micro: int = declared(7, MICRO_ABOVE_0, "Signed noise multiplier.")
    max_occurrences: int = declared(8, UINT, "Most steps in which it may take part, 0 for no cap.")
    attestation_hash: bytes = declared(9, SHA256, "SHA-256 of the array of descriptor and message.")
    key_id: bytes = declared(10, KEY_ID, "First 8 bytes of the SHA-256 of the contributor's key.")
    anchor: bytes = declared(11, SHA256, "The signed commitment to its content, field 7 of the descriptor.")
    carried_micro: int = declared(
        12, MICRO, "What it spent in the earlier runs that the header counts, rounded up; 0 without any."
    )
    max_epsilon_micro: int = declared(13, MICRO, "Most epsilon that it may spend over all runs, as it signed; 0 for no limit.")
    max_delta_pico: int = declared(
        14,
        PICO_BELOW_1,
        "The delta of that limit, as it signed; 0 for no limit.",
        rule="0 exactly with 13",
    )

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)
        check_limit(self.max_epsilon_micro, self.max_delta_pico)


@dataclass(frozen=True, slots=True)
class ChargeClass(Checked):
    """What one class is charged in a window, and the pool it is sampled from."""

    CDDL: ClassVar = "charged-class"
    class_name: str = declared(1, ID, "Name of the class.")
    q_num: int = declared(2, UINT, "Numerator of the sampling rate.")
    q_den: int = declared(3, ABOVE_0, "Its denominator.")
    sigma_micro: int = declared(4, MICRO_ABOVE_0, "Preset noise multiplier.")
    clip_micro: int = declared(5, MICRO_ABOVE_0, "Preset clip norm.")
    min_std: float = declared(
        6,
        REAL,
        "Effective noise of the class in the phase of these steps: the smallest standard deviation over the blocks of its"
        " profile, or with budgets S of Theorem 7.",
    )
    pool_count: int = declared(7, UINT, "Number of active contributions.")
    pool_root: bytes = declared(
        8, SHA256, "RFC 6962 root over all ever admitted, in that order: the descriptor hash, or nothing once withdrawn."
    )


@dataclass(frozen=True, slots=True)
class Charge(Entry):
    """A window of steps is paid for, before the first of them runs."""

    KIND: ClassVar = 2
    window: int = declared(3, ABOVE_0, "Number of the window, from 1.")
    attempt: int = declared(4, UINT, "Number of the attempt, 0 until the first RESUME.")
    first_step: int = declared(5, ABOVE_0, "First logical step of the window, from 1.")
    n_steps: int = declared(6, ABOVE_0, "Number of steps.")
    classes: tuple[ChargeClass, ...] = declared(7, Array(Row(ChargeClass), 1), "One row per class of the policy, in its order.")
    noise_stream: bytes = declared(
        8, RUN_ID, "Identifier of the noise stream of this window, used once in the life of the ledger."
    )
    fence: int = declared(9, UINT, "Number of the writer that holds the ledger.")

    @property
    def last_step(self) -> int:
        """Last step of the window."""
        return self.first_step + self.n_steps - 1


@dataclass(frozen=True, slots=True)
class Settle(Entry):
    """A window has run."""

    KIND: ClassVar = 3
    window: int = declared(3, ABOVE_0, "Number of the window.")
    steps_released: int = declared(4, UINT, "Steps whose noised result was used; the rest were charged and not run.")
    variances: tuple[float, ...] = declared(
        5,
        _VARIANCES,
        "Per class, the smallest noise variance that was realised over its blocks: with injection per sample over the steps"
        " drawn, else that of the schedule in the phase of the window.",
    )


@dataclass(frozen=True, slots=True)
class SpendRow(Checked):
    """What each member of a group has spent: contributions with equal terms that came and left between equal windows.

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
    attempt_before: int = declared(9, UINT, "Attempt that was running at their admission.")
    window_until: int | None = declared(
        10,
        UINT,
        "Number of the last window charged before they were withdrawn, 0 for none; null while they are active.",
        nil=True,
        rule="at least window-before",
    )
    occurrences: int = declared(11, UINT, "In how many steps a member took part, where occurrences are public; else 0.")
    loss: float = declared(12, REAL, "Sum over these of 1/z^2, where occurrences are public; else 0.0.")
    count: int = declared(13, ABOVE_0, "Number of members.")
    members_root: bytes = declared(14, SHA256, "RFC 6962 root over the members.")
    steps: int = declared(15, UINT, "Charged steps in whose pool a member was.")
    variance: float = declared(16, REAL, "Smallest noise variance over the blocks of a member.")
    epsilon_micro: int = declared(17, MICRO, "Cumulative epsilon of a member, rounded up.")

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)
        check_limit(self.max_epsilon_micro, self.max_delta_pico)
        if self.window_until is not None and self.window_until < self.window_before:
            sentence = f"a group was withdrawn after window {self.window_until}, before it came after {self.window_before}"
            raise LeafRefused("RANGE", sentence)

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
class Spend(Entry):
    """What contributions have spent, in groups, at the close of an epoch. Contributions of public classes are in none."""

    KIND: ClassVar = 4
    rows: tuple[SpendRow, ...] = declared(
        3, Array(Row(SpendRow), 1), "The groups whose row changed since it was last written, in order."
    )


@dataclass(frozen=True, slots=True)
class Withdraw(Entry):
    """A contribution leaves its pool; what it has spent stays spent."""

    KIND: ClassVar = 5
    descriptor_hash: bytes = declared(3, SHA256, "The contribution.")
    admit_seq: int | None = declared(
        4,
        ABOVE_0,
        "Position of its ADMIT leaf; null where no such contribution was ever admitted, or none that can be shown.",
        nil=True,
    )
    reason: str = declared(5, ID, "Reason code.")
    evidence_hash: bytes = declared(6, SHA256, "SHA-256 of the signed withdrawal, or of the operator's record.")
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
        3, MICRO, "Largest epsilon so far; null in a public class, which promises none, and in no other.", nil=True
    )


@dataclass(frozen=True, slots=True)
class Epoch(Entry):
    """The close of an epoch, after the SPEND leaves of all groups that changed in it."""

    KIND: ClassVar = 8
    number: int = declared(3, ABOVE_0, "Number of the epoch, from 1.")
    step: int = declared(4, UINT, "Last released step.")
    charged: int = declared(5, UINT, "Steps charged so far, over all attempts.")
    classes: tuple[EpochClass, ...] = declared(6, Array(Row(EpochClass), 1), "Totals per class of the policy, in its order.")
    model_digest: bytes = declared(7, SHA256, "Over the tensors of the model ([Weights](#weights)).")
    isolation: str = declared(
        8,
        WORDS,
        "`held` if statement A held in every step so far, else the first reason why it did not: the trainer's word.",
    )
    frozen_digest: bytes | None = declared(
        9, SHA256, "Over the frozen parameters ([Weights](#weights)): that of the header.", nil=True
    )


@dataclass(frozen=True, slots=True)
class Resume(Entry):
    """A new attempt starts from a model checkpoint; steps after it will be charged again, under fresh noise."""

    KIND: ClassVar = 9
    attempt: int = declared(3, ABOVE_0, "Number of the new attempt.")
    from_step: int = declared(4, UINT, "Last step that the model checkpoint contains.")
    pinned_size: int | None = declared(
        5,
        ABOVE_0,
        "Ledger size that the model checkpoint pins; null when starting from step 0 without one.",
        nil=True,
        needs="pinned_root",
    )
    pinned_root: bytes | None = declared(6, SHA256, "Ledger root that it pins, or null.", nil=True, needs="pinned_size")


@dataclass(frozen=True, slots=True)
class Draw(Entry):
    """Who takes part in a step, written before it runs; in ledgers whose policy makes occurrences public, and no other."""

    KIND: ClassVar = 12
    window: int = declared(3, ABOVE_0, "Number of the window that pays for the step.")
    step: int = declared(4, ABOVE_0, "The logical step.")
    drawn: tuple[int, ...] = declared(
        5,
        Array(UINT, ascending=True),
        "Who was drawn, ascending: contributions by the number of their admission, counted from 0.",
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
    """The run is over: nothing more will be charged. Only withdrawals may follow."""

    KIND: ClassVar = 11
    step: int = declared(3, UINT, "Last released step.")
    charged: int = declared(4, UINT, "Steps charged over all attempts.")
