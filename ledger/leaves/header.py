"""Leaf 0: everything a guarantee rests on, fixed before the first step."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from typing import ClassVar, Final

from attest import allocation, schedule
from attest.blocks import StackBlock, check_blocks, clip_share, derive
from attest.errors import AttestError
from attest.micro import MICRO
from attest.policy import Policy, SignedPolicy, verify_policy
from attest.policy.unbuilt import NOT_BUILT
from attest.stack import Stack
from ledger import accountants
from ledger.accountants import families
from ledger.errors import AccountantError, LeafRefused, NoteError, TrustError
from ledger.leaves import checks
from ledger.leaves.numerics import Numerics, told
from ledger.leaves.previous import Previous, check_previous
from ledger.note import SIGNATURE_ED25519, parse_verifier_key
from ledger.trust import TrustPolicy, auditors_policy

SCHEMA: Final = "dptrain.ledger/4"
AMPLIFICATION_POISSON: Final = "poisson"
AMPLIFICATION_NONE: Final = "none"
"""Of a run whose occurrences are public, or of a family that sampling is not shown to amplify: each is counted in full."""

HELD: Final = "held"
"""What a leaf says of statement A where nothing is known to weaken it; anything else there is the reason why it is weaker."""

ADDRESSED: Final = "addressed"
UNADDRESSED: Final = "unaddressed"
RANDOMNESS: Final = (ADDRESSED, UNADDRESSED)
"""Whether the random numbers of a forward are a contribution's own, or those of one generator for everybody drawn in a step."""

_SUPPORTED: Final = (
    ("accountant", accountants.ACCOUNTANTS),
    ("adjacency", ("zero-out",)),
    ("disclosure", ("secret_poisson", "occurrences_public")),
    ("mechanism.name", tuple(families.TABLE)),
    ("noise_injection", ("scheduled", "per_microbatch", "per_sample")),  # M draws of s^2/M are one draw of s^2
    ("sampling.name", ("poisson", "cyclic", "shuffled")),
)


@dataclass(frozen=True, slots=True)
class HeaderBlock:
    """A set of parameter coordinates that is masked and noised as one.

    Attributes:
        name: name of the block in the model.
        coordinates: number of parameters in it.
        classes: the classes whose profile has the block, in the policy's order; empty for a frozen block.
        std: standard deviation of the noise on the sum of clipped gradients; 0.0 for a block that is frozen, or that only
            public classes may touch.
        share: weight in 1e-6 by which the clip norm of a class is divided among its blocks; 0 where the policy has no
            budgets, and where std is 0.0.
    """

    name: str
    coordinates: int
    classes: tuple[str, ...]
    std: float
    share: int = 0

    def __post_init__(self) -> None:
        checks.text(self.name, "block name", longest=200)
        checks.uint(self.coordinates, f"coordinates of block {self.name}", low=1)
        checks.rows(self.classes, f"classes of block {self.name}", str)
        checks.real(self.std, f"noise of block {self.name}")
        checks.uint(self.share, f"share of block {self.name}")


@dataclass(frozen=True, slots=True)
class Profile:
    """The depth profile of a class: the indices of the blocks that its contributions may touch."""

    class_name: str
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AccountantInfo:
    """The accountant of record."""

    name: str
    library: str
    version: str
    parameters: str

    def __post_init__(self) -> None:
        for what in ("name", "library", "version", "parameters"):
            checks.text(getattr(self, what), f"accountant {what}", longest=200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Everything that a guarantee rests on, fixed before the first step: leaf 0.

    Guarantee:
        A header exists only if its policy is signed by ``owner_key`` under ``owner``, its blocks are those that the classes of
        the policy make of its stack (`attest.blocks.derive`), the noise of every block is the max rule's over the presets of
        the private classes that touch it (with budgets, what `attest.allocation.check_budgets` demands), every class touches a
        block, the policy asks for a mechanism that this version can account for, and accountant, exactness note and clip
        margin are what this code derives from the policy. Names, order and coordinates of what is in the stack are the
        operator's word.

    Attributes:
        time: POSIX seconds.
        origin: the ledger's name: origin line of its checkpoints and key name of its signer.
        policy_payload: the signed policy.
        policy_sign1: its COSE_Sign1 message.
        owner: id of the corpus owner.
        owner_key: raw Ed25519 public key of the corpus owner.
        log_vkey: verifier key of the ledger's signer.
        run_id: 16 random bytes that tell this run from every other.
        registry_root: root of the contributor registry under which contributions were admitted; the one that the policy
            names or a later state of the same log, which only who has the registry can tell.
        model_fingerprint: SHA-256 over the model's structure: names, shapes and types of parameters, and their blocks.
        blocks: the schedule, block by block; in a phase of the policy, with that factor on every standard deviation.
        accountant: the accountant of record.
        exactness_note: what the numerics guarantee, in words: those of `ledger.leaves.numerics` for this policy.
        private: False for a run with a fixed test key: such a ledger is never exported.
        clip_margin: fraction by which clip norms are shrunk for numerical safety, likewise; never enters the accounting.
        caps_enforced: whether the sampler stops drawing a contribution that has reached its own max_occurrences
            within an attempt. Only then does the accountant use the cap.
        isolation: `HELD`, or why the optimizer of the run weakens statement A (docs/guarantee.md): the trainer's word.
        randomness: one of `RANDOMNESS`.
        unprobed: names of the trained tensors in whose gradient the start-up probes saw nothing, ascending.
        stack: the layers of the model and its parameters, by name.
        frozen_digest: over the parameters that are frozen, as they are before the first step
            (`ledger.rules.weights.frozen_digest`); None where the header does not commit to them, or there are none.
        previous: earlier ledgers that this one counts or continues (`check_previous`).
        numerics: precision and generator that note and margin give: the trainer's word.
    """

    KIND: ClassVar = 0
    time: int
    origin: str
    policy_payload: bytes
    policy_sign1: bytes
    owner: str
    owner_key: bytes
    log_vkey: str
    run_id: bytes
    registry_root: bytes
    model_fingerprint: bytes
    blocks: tuple[HeaderBlock, ...]
    accountant: AccountantInfo
    exactness_note: str
    private: bool
    clip_margin: float
    caps_enforced: bool
    isolation: str
    randomness: str
    unprobed: tuple[str, ...]
    stack: Stack
    frozen_digest: bytes | None = None
    previous: tuple[Previous, ...] = ()
    policy: Policy = field(init=False, repr=False, compare=False)
    derived: tuple[StackBlock, ...] = field(init=False, repr=False, compare=False)
    phases: schedule.Phases = field(init=False, repr=False, compare=False)
    profiles: tuple[Profile, ...] = field(init=False, repr=False, compare=False)
    numerics: Numerics = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        checks.moment(self.time, "time")
        checks.text(self.origin, "origin", longest=200)
        checks.octets(self.policy_payload, "policy payload")
        checks.octets(self.policy_sign1, "policy signature")
        checks.identifier(self.owner, "owner")
        checks.octets(self.owner_key, "owner key", 32)
        checks.text(self.log_vkey, "log key", longest=400)
        checks.octets(self.run_id, "run id", 16)
        checks.octets(self.registry_root, "registry root", 32)
        checks.octets(self.model_fingerprint, "model fingerprint", 32)
        checks.rows(self.blocks, "blocks", HeaderBlock, least=1)
        checks.rows((self.accountant,), "accountant", AccountantInfo)
        checks.text(self.exactness_note, "exactness note", longest=1000)
        checks.flag(self.private, "private")
        checks.real(self.clip_margin, "clip margin")
        if not self.clip_margin < 1.0:
            raise LeafRefused("RANGE", f"clip margin: expected a fraction in [0, 1), got {self.clip_margin}")
        checks.flag(self.caps_enforced, "caps enforced")
        checks.text(self.isolation, "isolation", longest=checks.REASON)
        checks.rows((self.stack,), "stack", Stack)
        if self.frozen_digest is not None:
            checks.octets(self.frozen_digest, "digest of frozen parameters", 32)
        self._check_forward()
        self._check_log_key()
        check_previous(self.previous, self.origin, self.log_vkey)
        object.__setattr__(self, "policy", self._open_policy())
        if self.policy.isolation_required and self.isolation != HELD:
            raise LeafRefused("ISOLATION_REQUIRED", f"the policy requires A, the header says: {self.isolation}")
        self._check_cosigners()
        object.__setattr__(self, "phases", schedule.Phases.of(self.policy))
        if self.accountant.name != self.policy.accountant:
            found, expected = self.accountant.name, self.policy.accountant
            raise LeafRefused("ACCOUNTANT", f"the header accounts with {found}, the policy with {expected}")
        self._check_accountant()
        object.__setattr__(self, "derived", derive(self.policy.classes, self.stack))
        object.__setattr__(self, "profiles", self._check_schedule())
        numerics = told(self.policy, self.coordinates, self.exactness_note, self.clip_margin)
        object.__setattr__(self, "numerics", numerics)

    @property
    def seq(self) -> int:
        """Always 0."""
        return 0

    @property
    def amplification(self) -> str:
        """Whether the accounting counts on draws that stay secret; it must not where the ledger publishes them."""
        unamplified = self.occurrences_public or self.policy.mechanism.name in families.NOT_AMPLIFIED
        return AMPLIFICATION_NONE if unamplified else AMPLIFICATION_POISSON

    @property
    def occurrences_public(self) -> bool:
        """Whether DRAW leaves say who was drawn."""
        return self.policy.disclosure == "occurrences_public"

    @property
    def per_sample(self) -> bool:
        """Whether every occurrence brings noise of its own, so that a step has the variance of those drawn in it."""
        return self.policy.noise_injection == "per_sample"

    @property
    def delta(self) -> float:
        """The policy's delta, as the accountant takes it."""
        return float(self.policy.delta)

    def min_std(self, class_index: int, scale_micro: int = MICRO) -> float:
        """Returns the effective noise of a class in a phase of this scale: the S in its multiplier, max(sigma_i, S / C_i).

        It is the smallest standard deviation over the blocks of its profile, or what budgets make of all of them.
        """
        own = [self.blocks[index] for index in self.profiles[class_index].blocks]
        shares = [] if self.policy.classes[class_index].public else [block.share for block in own]
        return allocation.effective_std([schedule.phase_std(block.std, scale_micro) for block in own], shares)

    def trust_policy(self, log_vkey: str | None = None) -> TrustPolicy:
        """Returns the C2SP trust policy of this ledger: its key, and the quorums that its policy asks for.

        Args:
            log_vkey: the key that signs it by now; that of the header without.
        """
        policy = self.policy
        quorums = (policy.auditors, policy.auditor_quorum or 0, policy.witnesses, policy.witness_quorum or 0)
        return auditors_policy(log_vkey or self.log_vkey, *quorums)

    @property
    def coordinates(self) -> int:
        """Returns the number of scheduled coordinates: of all blocks that a class may touch."""
        return _scheduled_coordinates(self.blocks)

    def _check_accountant(self) -> None:
        """Holds the accountant that the header names against what the versions known here say of themselves."""
        about = self.accountant
        try:
            accountants.check_recorder(about.name, about.library, about.version, about.parameters, self.policy.mechanism.name)
        except AccountantError as error:
            raise LeafRefused(error.code, error.sentence) from error

    def _check_log_key(self) -> None:
        try:
            key = parse_verifier_key(self.log_vkey)
        except NoteError as error:
            raise LeafRefused("LOG_KEY", error.sentence) from error
        if key.name != self.origin or key.kind != SIGNATURE_ED25519:
            raise LeafRefused("LOG_KEY", f"the log key is named {key.name!r}, expected the origin {self.origin!r}")

    def _check_forward(self) -> None:
        if self.randomness not in RANDOMNESS:
            raise LeafRefused("RANGE", f"randomness: expected {' or '.join(RANDOMNESS)}, got {self.randomness!r:.40}")
        checks.rows(self.unprobed, "unprobed tensors", str)
        for name in self.unprobed:
            checks.text(name, "unprobed tensor", longest=400)
        if any(a >= b for a, b in pairwise(self.unprobed)):
            raise LeafRefused("ORDER", "unprobed tensors are named in ascending order, each once")

    def _check_cosigners(self) -> None:
        try:
            self.trust_policy()
        except TrustError as error:
            sentence = f"an auditor or witness of the policy cannot cosign this log: {error.sentence}"
            raise LeafRefused("AUDITORS", sentence) from error

    def _open_policy(self) -> Policy:
        try:
            signed = verify_policy(self.policy_payload, self.policy_sign1, self.owner_key)
        except AttestError as error:
            code = NOT_BUILT if error.code == NOT_BUILT else "POLICY"
            raise LeafRefused(code, f"the policy in the header is refused: {error.sentence}") from error
        if signed.owner != self.owner:
            raise LeafRefused("POLICY", f"the policy is signed by {signed.owner}, the header says {self.owner}")
        for name, supported in _SUPPORTED:
            found = attrgetter(name)(signed.policy)
            if found not in supported:
                sentence = f"{name} {found!r} has no accounting in this version, expected {' or '.join(map(repr, supported))}"
                raise LeafRefused("POLICY_UNSUPPORTED", sentence)
        policy = signed.policy
        refused = families.refusal(
            policy.mechanism.name,
            policy.accountant,
            policy.exactness,
            policy.noise_injection,
            policy.disclosure,
            budgets=policy.noise_budgets is not None,
        )
        if refused is not None:
            raise LeafRefused("POLICY_UNSUPPORTED", f"the policy asks for what has no accounting together: {refused}")
        return policy

    def _check_schedule(self) -> tuple[Profile, ...]:
        order = {rule.name: index for index, rule in enumerate(self.policy.classes)}
        touched: list[list[int]] = [[] for _ in order]
        names: set[str] = set()
        for index, block in enumerate(self.blocks):
            if block.name in names:
                raise LeafRefused("BLOCK", f"two blocks are named {block.name}")
            names.add(block.name)
            if any(name not in order for name in block.classes):
                raise LeafRefused("BLOCK", f"block {block.name} names a class that the policy has not: {block.classes}")
            places = [order[name] for name in block.classes]
            if places != sorted(set(places)):
                raise LeafRefused("BLOCK", f"block {block.name} lists its classes twice or out of the policy's order")
            for place in places:
                touched[place].append(index)
        try:
            check_blocks(self.policy.classes, self.derived, self.blocks)
        except AttestError as error:
            raise LeafRefused(error.code, error.sentence) from error
        for name, place in order.items():
            if not touched[place]:
                raise LeafRefused("BLOCK", f"class {name} touches no block; its depth rule fits nothing in this model")
        self._check_noise()
        return tuple(Profile(name, tuple(touched[place])) for name, place in order.items())

    def _check_noise(self) -> None:
        if self.policy.noise_budgets is None:
            stds = _max_rule(self.policy, self.derived)
        else:
            stds = [block.std for block in self.blocks]
            try:
                allocation.check_budgets(self.policy.classes, self.policy.noise_budgets, self.blocks)
            except AttestError as error:
                raise LeafRefused("SCHEDULE", error.sentence) from error
        for block, std, share in zip(self.blocks, stds, _shares(self.policy, self.derived), strict=True):
            if (block.std, block.share) != (std, share):
                found, expected = f"noise {block.std} and share {block.share}", f"{std} and {share}"
                raise LeafRefused("SCHEDULE", f"block {block.name} has {found}, the policy gives {expected}")


def _scheduled_coordinates(blocks: Iterable[HeaderBlock]) -> int:
    return sum(block.coordinates for block in blocks if block.classes)


def _max_rule(policy: Policy, derived: Iterable[StackBlock]) -> list[float]:
    """Returns the noise of blocks without budgets."""
    rules = {rule.name: rule for rule in policy.classes}
    return [schedule.scheduled_std([rules[name] for name in block.classes]) for block in derived]


def _shares(policy: Policy, derived: Iterable[StackBlock]) -> list[int]:
    """Returns the weights of blocks: where the policy has budgets, those of the places that a private class may touch."""
    budgets, private = policy.noise_budgets, {rule.name for rule in policy.classes if not rule.public}
    return [0 if budgets is None or private.isdisjoint(b.classes) else clip_share(b, budgets) for b in derived]


def scheduled_blocks(policy: Policy, stack: Stack) -> tuple[HeaderBlock, ...]:
    """Returns the blocks of a model under a policy, each with its noise: what a header has to say.

    Raises:
        ValueRefused: with budgets that cannot be settled, as `attest.allocation.budget_stds`.
    """
    derived = derive(policy.classes, stack)
    told = zip(derived, _max_rule(policy, derived), _shares(policy, derived), strict=True)
    rows = [HeaderBlock(block.name, block.coordinates, block.classes, std, share) for block, std, share in told]
    if policy.noise_budgets is not None:
        stds = allocation.budget_stds(policy.classes, rows).stds
        rows = [replace(row, std=std) for row, std in zip(rows, stds, strict=True)]
    return tuple(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderSpec:
    """What the engine knows when it creates a ledger; the rest of the header the ledger fills in itself.

    Attributes: as in `Header`; ``policy`` is the opened signed policy, with the raw key it was opened under, ``unprobed``
    comes in any order, ``blocks`` are those of policy and stack where they are None, and ``numerics`` gives exactness note and
    clip margin.
    """

    policy: SignedPolicy
    owner_key: bytes
    registry_root: bytes
    model_fingerprint: bytes
    stack: Stack
    isolation: str
    randomness: str
    unprobed: tuple[str, ...]
    blocks: tuple[HeaderBlock, ...] | None = None
    frozen_digest: bytes | None = None
    numerics: Numerics = field(default_factory=Numerics)
    private: bool = True
    caps_enforced: bool = False
    previous: tuple[Previous, ...] = ()
    run_id: bytes = field(default_factory=lambda: os.urandom(16))

    @property
    def scheduled(self) -> tuple[HeaderBlock, ...]:
        """Returns the blocks: those given, or those of policy and stack.

        Raises:
            ValueRefused: as `scheduled_blocks`.
        """
        return scheduled_blocks(self.policy.policy, self.stack) if self.blocks is None else self.blocks

    @property
    def exactness_note(self) -> str:
        """Says what the numerics guarantee."""
        return self.numerics.note(self.policy.policy, _scheduled_coordinates(self.scheduled))

    def header(self, *, origin: str, log_vkey: str, time: int) -> Header:
        """Returns the header leaf.

        Raises:
            LeafRefused: code POLICY_UNSUPPORTED, nothing accounts for the noise of the policy; or as `Header`.
        """
        policy = self.policy.policy
        try:
            about = AccountantInfo(*accountants.describe(policy.accountant, policy.mechanism.name))
            blocks, note = self.scheduled, self.exactness_note
        except AttestError as error:
            raise LeafRefused(error.code, error.sentence) from error
        except AccountantError as error:
            raise LeafRefused("POLICY_UNSUPPORTED", error.sentence) from error
        return Header(
            time=time,
            origin=origin,
            policy_payload=self.policy.payload,
            policy_sign1=self.policy.sign1,
            owner=self.policy.owner,
            owner_key=self.owner_key,
            log_vkey=log_vkey,
            run_id=self.run_id,
            registry_root=self.registry_root,
            model_fingerprint=self.model_fingerprint,
            blocks=blocks,
            accountant=about,
            exactness_note=note,
            private=self.private,
            clip_margin=self.numerics.margin(policy),
            caps_enforced=self.caps_enforced,
            isolation=self.isolation,
            randomness=self.randomness,
            unprobed=tuple(sorted(set(self.unprobed))),
            stack=self.stack,
            frozen_digest=self.frozen_digest,
            previous=self.previous,
        )
