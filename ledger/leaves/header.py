"""Defines leaf 0: everything a guarantee rests on, fixed before the first step, earlier ledgers included."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, ClassVar, Final

from attest import schedule
from attest.errors import AttestError, Refused
from attest.fixed_point import MICRO as ONE
from attest.policy import Policy, verify_policy
from attest.policy.mechanism import COEFFICIENTS
from attest.policy.unbuilt import NOT_BUILT
from attest.schedule import allocation
from attest.schedule.blocks import StackBlock, check_blocks, clip_share, derive
from attest.schedule.geometry import Pair
from attest.schedule.stack import SCHEMA as DEPTH_SCHEMA
from attest.schedule.stack import Stack
from attest.schema import check_fields, declared, derived
from attest.schema.cards import card_of
from attest.schema.kinds import Told
from attest.schema.quick import Array, Blob, Held, OneOf, Row
from attest.schema.words import NOT_INSTALLED
from ledger import accountants
from ledger.accountants.correlated.signed import numbers_in_file
from ledger.errors import LeafRefused
from ledger.leaves.kinds import (
    ABOVE_0,
    ID,
    LOG_VKEY,
    MICRO,
    MOMENT,
    ORIGIN,
    RAW_KEY,
    REAL,
    RUN_ID,
    SHA256,
    TRUTH,
    WORDS,
    Checked,
    as_leaf,
    words,
)
from ledger.leaves.numerics import Numerics, told
from ledger.leaves.pairs import Geometry, check_pairs
from ledger.leaves.reads import Reads, check_reads
from ledger.leaves.stack import read_stack, stack_row
from ledger.note import SIGNATURE_ED25519, parse_verifier_key
from ledger.trust import TrustPolicy, auditors_policy

SPENT: Final = "spent"
"""Spending of the earlier run counts in this one."""

COMPROMISED: Final = "compromised"
"""The key of the earlier ledger is lost to others: it ends with the checkpoint cited, and this one continues it elsewhere."""

TEXTS: Final = "texts"
"""The earlier log is a budget from which contributions pay for texts, and may go on: it counts with what its rules allow."""


@dataclass(frozen=True, slots=True)
class Previous(Checked):
    """An earlier ledger, at a checkpoint of it."""

    CDDL: ClassVar = "earlier"
    origin: str = declared(1, ORIGIN, "Its origin.")
    size: int = declared(2, ABOVE_0, "Number of leaves.")
    root: bytes = declared(3, SHA256, "Root over them.")
    header_digest: bytes = declared(4, SHA256, "SHA-256 of its leaf 0.")
    log_vkey: str = declared(5, LOG_VKEY, "Verifier key of its signer at that size.")
    reason: str = declared(
        6,
        OneOf((SPENT, COMPROMISED, TEXTS), "TYPE", "how"),
        "`spent`: what contributions spent in it is counted in this one. `compromised`: besides, its key is lost to others, and"
        " this ledger continues it. `texts`: it is a budget log, which may go on, and whoever has a class with a rule of"
        " generation there counts with all rho that the rule allows.",
    )

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)
        _public_key(self.log_vkey, self.origin)


def check_previous(previous: Sequence[Previous], origin: str, log_vkey: str) -> None:
    """Refuses earlier ledgers that a ledger of this origin and key may not cite.

    Guarantee: None is cited twice; a compromised one is cited once at most, and neither its origin nor its key is used on, so
    that who holds the lost key can write nothing that passes for this ledger.
    """
    if len({(item.origin, item.header_digest) for item in previous}) != len(previous):
        raise LeafRefused("PREVIOUS", "an earlier ledger is cited twice; cite each once")
    lost = [item for item in previous if item.reason == COMPROMISED]
    if len(lost) > 1:
        raise LeafRefused("PREVIOUS", f"a ledger continues one compromised ledger at most, this one cites {len(lost)}")
    for item in lost:
        if item.origin == origin:
            raise LeafRefused("PREVIOUS", f"the key of {origin!r} is compromised: go on under another origin")
        if _public_key(item.log_vkey, item.origin) == _public_key(log_vkey, origin):
            raise LeafRefused("PREVIOUS", f"the key of {item.origin!r} is compromised: go on with another key")


def _public_key(vkey: str, name: str) -> bytes:
    with as_leaf("LOG_KEY", f"the log key {vkey!r:.100} is refused: "):
        key = parse_verifier_key(vkey)
    if (key.name, key.kind) != (name, SIGNATURE_ED25519):
        raise LeafRefused("LOG_KEY", f"the log key is named {key.name!r}, the origin is {name!r}")
    return key.public_key


SCHEMA: Final = "dptrain.ledger/4"
AMPLIFICATION_POISSON: Final = "poisson"
AMPLIFICATION_NONE: Final = "none"
"""Of a run whose occurrences are public, or of a family that sampling is not shown to amplify: each is counted in full."""

HELD: Final = "held"
"""Word of statement A where nothing is known to weaken it; anything else there is the reason why it is weaker."""

ADDRESSED: Final = "addressed"
UNADDRESSED: Final = "unaddressed"
RANDOMNESS: Final = (ADDRESSED, UNADDRESSED)
"""Randomness of a forward: a contribution's own, or one generator's for everybody drawn in a step."""

_SUPPORTED: Final = (("adjacency", ("zero-out",)), ("sampling.name", ("poisson", "cyclic", "shuffled", "cyclic_poisson")))
"""Words of a policy that are accounted for, beside those that `accountants.refusal` knows."""


@dataclass(frozen=True, slots=True)
class HeaderBlock(Checked):
    """A set of parameter coordinates that is masked and noised as one.

    Its bytes are an array of name, coordinates and the place of a group, which has the other fields: a model has many blocks
    and few groups.
    """

    CDDL: ClassVar = "block"
    TELLS: ClassVar = ("name", " of block {}")
    name: str = declared(1, WORDS, "Name of the block in the model.")
    coordinates: int = declared(2, ABOVE_0, "Number of parameters in it.")
    classes: tuple[str, ...] = declared(
        3, Array(ID), "The classes whose profile has the block, in the policy's order; empty for a frozen block."
    )
    std: float = declared(
        4,
        REAL,
        "Standard deviation of the noise on the sum of clipped gradients; 0.0 for a block that is frozen, or that only public"
        " classes may touch.",
    )
    share: int = declared(
        5,
        MICRO,
        "Weight by which the clip norm of a class is divided among its blocks; 0 where the policy has no budgets, and where std"
        " is 0.0.",
        default=0,
    )


@dataclass(frozen=True, slots=True)
class Profile:
    """The depth profile of a class: the indices of the blocks that its contributions may touch."""

    class_name: str
    blocks: tuple[int, ...]

    _repr_html_ = card_of


@dataclass(frozen=True, slots=True)
class AccountantInfo(Checked):
    """The accountant of record."""

    CDDL: ClassVar = "accountant"
    name: str = declared(1, WORDS, "Name of the accountant, as the policy has it.")
    library: str = declared(2, WORDS, "Library that computes.")
    version: str = declared(3, WORDS, "Version of it.")
    parameters: str = declared(4, WORDS, "What it computes with, letter by letter.")


@dataclass(frozen=True, slots=True)
class ClassTurns(Checked):
    """Says what the turns of a class add up to under noise that is correlated between steps, at a noise multiplier of 1."""

    CDDL: ClassVar = "class-turns"
    period: int = declared(1, ABOVE_0, "Steps from one turn of a contribution to the next.")
    most: float = declared(2, REAL, "Squared sensitivity: what all turns of the contribution that has most add up to.")
    again: float = declared(3, REAL, "The most that a step done once more adds.")


def turns_under(policy: Policy) -> tuple[ClassTurns, ...]:
    """Returns what turns add up to by class; nothing where the noise of every step is drawn by itself.

    Raises:
        AccountantError: code STRATEGY, nothing adds them up.
    """
    found = [accountants.turns_under(policy, rule.sampling_rate) for rule in policy.classes]
    return tuple(ClassTurns(turns.period, turns.most(), turns.dearest_again()) for turns in found if turns is not None)


class Blocks(Array):
    """The blocks of a header. `ledger.leaves.codec` writes and reads them, together with their groups."""

    def encode(self, value: Any) -> Any:
        return value

    def decode(self, plain: Any, told: Told, error: Refused) -> Any:
        return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Header(Checked):
    """Everything that a guarantee rests on, fixed before the first step: leaf 0.

    Guarantee: A header exists only if its policy is signed by ``owner_key`` under ``owner``, its blocks are those that the
    classes of the policy make of its stack (`attest.schedule.blocks.derive`), the noise of every block is the max rule's over
    the presets of the private classes that touch it (with budgets, what `attest.schedule.allocation.check_budgets` demands),
    every class that is for training touches a block, and no other class does, the policy asks for a mechanism that this version
    can account for, and accountant, exactness note and clip margin are what this code derives from the policy. Names, order and
    coordinates of what is in the stack are the operator's word.

    Precision and generator that note and margin give are `numerics`: the trainer's word.
    """

    KIND: ClassVar = 0
    DERIVED: ClassVar = (
        derived(0, "seq", "0", "Position in the ledger."),
        derived(3, "schema", f'"{SCHEMA}"', "Format of the ledger."),
        derived(
            11,
            "amplification",
            f'"{AMPLIFICATION_POISSON}" / "{AMPLIFICATION_NONE}"',
            "Whether the accounting counts on secret draws: `none` where the policy makes occurrences public, and with the"
            " families `discrete_gaussian` and `skellam`.",
        ),
        derived(
            13,
            "groups",
            "[1* group]",
            "What blocks have in common, in the order in which they first use it: `[[places of classes], std]`, with budgets"
            " `[[places of classes], std, share in 1e-6]`; of frozen blocks `[[], 0.0]`, and nothing else of them.",
        ),
        derived(25, "depth schema", f'"{DEPTH_SCHEMA}"', "The rule by which blocks follow from policy and stack."),
    )
    time: int = declared(2, MOMENT, "Seconds since 1970, by the writer's clock.")
    origin: str = declared(4, ORIGIN, "The ledger's name: origin line of its checkpoints and key name of its signer.")
    policy_payload: bytes = declared(5, Blob("policy-bytes"), "The signed policy.")
    policy_sign1: bytes = declared(6, Blob("message"), "Its COSE_Sign1 message, by field 8.")
    owner: str = declared(7, ID, "Identifier of the corpus owner, the issuer of field 6.")
    owner_key: bytes = declared(8, RAW_KEY, "Raw Ed25519 public key of the corpus owner.")
    log_vkey: str = declared(9, LOG_VKEY, "Verifier key of the ledger's signer, whose name is field 4.")
    run_id: bytes = declared(10, RUN_ID, "16 random bytes that tell this run from every other.")
    model_fingerprint: bytes = declared(
        12, SHA256, "SHA-256 over the model's structure: names, shapes and types of parameters, and their blocks."
    )
    blocks: tuple[HeaderBlock, ...] = declared(
        14,
        Blocks(Row(HeaderBlock), 1),
        "The schedule, block by block: `[name, coordinates, place of its group]`. In a phase of the policy every standard"
        " deviation has that factor. Every class that is for training touches a block, and no other class does (`BLOCK`):"
        " places of classes count those that are for training.",
    )
    accountant: AccountantInfo = declared(
        15,
        Row(AccountantInfo),
        "The accountant of record, a row of [Accountants and numerics](figures.md#accountants-and-numerics) (`ACCOUNTANT`,"
        " `ACCOUNTANT_VERSION`).",
    )
    exactness_note: str = declared(
        16,
        words(1000),
        "What the numerics guarantee ([Accountants and numerics](figures.md#accountants-and-numerics)); other words are refused"
        " (`NUMERICS`). Which of those that fit is the trainer's word.",
    )
    private: bool = declared(17, TRUTH, "False for a run with a fixed test key: such a ledger is never exported.")
    clip_margin: float = declared(
        18,
        REAL,
        "Fraction by which clip norms are shrunk for numerical safety, as the numerics ask; it never enters the accounting.",
        rule="below 1",
    )
    caps_enforced: bool = declared(
        19,
        TRUTH,
        "Whether the sampler stops drawing a contribution that has reached its own max occurrences within an attempt. Only then"
        " does the accountant use the cap.",
    )
    registry_root: bytes = declared(
        20,
        SHA256,
        "Root of the contributor registry under which contributions were admitted: the one that the policy names or a later"
        " state of the same log, which only who has the registry can tell.",
    )
    previous: tuple[Previous, ...] = declared(
        21,
        Array(Row(Previous), code="SCHEMA"),
        "Earlier ledgers that this one counts or continues: none twice, and one `compromised` at most, whose origin and key its"
        " own are not (`PREVIOUS`).",
        default=(),
    )
    isolation: str = declared(22, WORDS, "`held`, or why the optimizer of the run weakens statement A: the trainer's word.")
    randomness: str = declared(
        23,
        OneOf(RANDOMNESS, "RANGE"),
        "Whose the random numbers of the forward passes are: `addressed`, a contribution's own; `unaddressed`, those of one"
        " generator for everybody drawn in a step. The trainer's word.",
    )
    unprobed: tuple[str, ...] = declared(
        24,
        Array(words(400), ascending=True),
        "Names of the trained tensors in whose gradient the start-up probes saw nothing: the trainer's word.",
        rule="ascending, each once",
    )
    stack: Stack = declared(
        26, Held(Stack, "stack", stack_row, read_stack), "Layers of the model and its parameters, by name ([Blocks](#blocks))."
    )
    frozen_digest: bytes | None = declared(
        27,
        SHA256,
        "Over the parameters that are frozen, as they are before the first step ([Weights](release.md#weights)); null where the"
        " header does not commit to them, or there are none.",
        default=None,
        nil=True,
    )
    turns: tuple[ClassTurns, ...] = declared(
        28,
        Array(Row(ClassTurns)),
        "With noise that is correlated between steps, of every class what its turns add up to, in the policy's order"
        " ([Noise that is correlated](figures.md#noise-that-is-correlated-between-steps)).",
        default=(),
        optional=True,
        rule="absent where every step has noise of its own, but empty before 29",
    )
    geometry: Geometry | None = declared(
        29,
        Row(Geometry),
        "Pairs of LoRA factors under the geometry of the policy: all trained tensors `P.lora_B.ADAPTER.weight` and"
        " `P.lora_A.ADAPTER.weight` of its adapters, by the last such word of a name, ascending by the first. Each has one"
        " name, is of that adapter in the stack, and lies whole in the block of its partner. Every adapter that the policy"
        " names has a pair, and there is one. No other trained tensor of these adapters has a word `lora_A`, `lora_B`,"
        " `lora_embedding_A`, `lora_embedding_B` or `lora_magnitude_vector` in a name, but for `P.lora_B.ADAPTER.bias`; no"
        " trained one of another adapter, or of none, has the name of a factor of these (`GEOMETRY`). Coordinates of a pair are"
        " as many as those of its factors: blocks, lattice, capacity and clip margin are as without a geometry.",
        default=None,
        optional=True,
        nil=True,
        rule="exactly where the policy has a geometry, but null before 30",
    )
    reads: Reads | None = declared(
        30,
        Row(Reads),
        "What the forward of each class reads, where the policy narrows it (`READS`): all blocks, but those that hold nothing"
        " but parameters of adapters that its `reads` leave out. A class touches no block that it does not read. Every adapter"
        " in them is in the stack, and there the names of a parameter have that of its adapter as a word. Field 23 is"
        " `addressed`.",
        default=None,
        optional=True,
        rule="exactly where a class of the policy has reads",
    )
    policy: Policy = field(init=False, repr=False, compare=False)
    derived: tuple[StackBlock, ...] = field(init=False, repr=False, compare=False)
    phases: schedule.Phases = field(init=False, repr=False, compare=False)
    profiles: tuple[Profile, ...] = field(init=False, repr=False, compare=False)
    numerics: Numerics = field(init=False, repr=False, compare=False)
    pairs: tuple[Pair, ...] = field(init=False, repr=False, compare=False)
    reading: dict[str, frozenset[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)
        if not self.clip_margin < 1.0:
            raise LeafRefused("RANGE", f"clip margin: expected a fraction in [0, 1), got {self.clip_margin}")
        _public_key(self.log_vkey, self.origin)
        check_previous(self.previous, self.origin, self.log_vkey)
        object.__setattr__(self, "policy", self._open_policy())
        if self.policy.isolation_required and self.isolation != HELD:
            raise LeafRefused("ISOLATION_REQUIRED", f"the policy requires A, the header says: {self.isolation}")
        with as_leaf("AUDITORS", "an auditor or witness of the policy cannot cosign this log: "):
            self.trust_policy()
        object.__setattr__(self, "phases", schedule.Phases.of(self.policy))
        if self.accountant.name != self.policy.accountant:
            found, expected = self.accountant.name, self.policy.accountant
            raise LeafRefused("ACCOUNTANT", f"the header accounts with {found}, the policy with {expected}")
        about, family = self.accountant, self.policy.mechanism.name
        with as_leaf():
            accountants.check_recorder(about.name, about.library, about.version, about.parameters, family)
        if self.complete:
            self._check_turns()
        object.__setattr__(self, "derived", derive(self.policy.classes, self.stack))
        object.__setattr__(self, "profiles", self._check_schedule())
        object.__setattr__(self, "pairs", check_pairs(self.geometry, self.policy, self.stack, self.derived))
        if self.reads is not None and self.randomness != ADDRESSED:
            sentence = "the header says reads, and that random numbers of a forward are those of everybody drawn in a step"
            raise LeafRefused("READS", f"{sentence}; whoever reads apart has numbers of its own")
        object.__setattr__(self, "reading", check_reads(self.reads, self.policy, self.stack, self.derived))
        numerics = told(self.policy, self.coordinates, self.exactness_note, self.clip_margin)
        object.__setattr__(self, "numerics", numerics)

    @property
    def seq(self) -> int:
        """Always 0."""
        return 0

    @property
    def complete(self) -> bool:
        """Tells whether all of the policy is here: false where coefficients of its noise lie in the leaves behind the header,
        and were not taken in (`complete_with`)."""
        return self.policy.mechanism.at_hand

    @property
    def awaited(self) -> int:
        """Returns how many bytes of coefficients the leaves behind the header hold. Raises LeafRefused: more than a ledger
        takes."""
        with as_leaf("POLICY_UNSUPPORTED"):
            return 4 * numbers_in_file(self.policy.mechanism, self.policy.steps)

    def lacking(self, have: int, seq: int) -> LeafRefused:
        """Returns the refusal of a leaf at ``seq`` that stands where coefficients have to, of which so many bytes are there."""
        told = f"{self.awaited} bytes of coefficients follow the header, and these are {have}"
        return LeafRefused(COEFFICIENTS, f"{told}; nothing behind can be judged without them", seq=seq)

    def complete_with(self, coefficients: bytes) -> None:
        """Takes in the coefficients whose digest the policy signs.

        Guarantee: afterwards the header is what it would be if the policy held them: what they make of its turns is what the
        header says, or it was refused.

        Raises:
            LeafRefused: code COEFFICIENTS, they are others. POLICY_UNSUPPORTED, nothing accounts for such noise. TURNS, the
                header says that turns add up to something else.
        """
        with as_leaf():
            mechanism = self.policy.mechanism.with_coefficients(coefficients)
        policy = replace(self.policy, mechanism=mechanism)
        refused = accountants.refusal_of(policy)
        if refused is not None:
            raise LeafRefused("POLICY_UNSUPPORTED", f"the policy asks for what has no accounting together: {refused}")
        object.__setattr__(self, "policy", policy)
        self._check_turns()

    def _check_turns(self) -> None:
        with as_leaf():
            expected = turns_under(self.policy)
        if self.turns != expected:
            sentence = f"the header says that turns add up to {self.turns}, policy and strategy give {expected}"
            raise LeafRefused("TURNS", sentence)

    @property
    def amplification(self) -> str:
        """Tells whether the accounting counts on draws that stay secret; it must not where the ledger publishes them."""
        unamplified = self.occurrences_public or not accountants.TABLE[self.policy.mechanism.name].amplified
        return AMPLIFICATION_NONE if unamplified else AMPLIFICATION_POISSON

    @property
    def occurrences_public(self) -> bool:
        """Tells whether DRAW leaves say who was drawn."""
        return self.policy.disclosure == "occurrences_public"

    @property
    def per_sample(self) -> bool:
        """Tells whether every occurrence brings noise of its own, so that a step has the variance of those drawn in it."""
        return self.policy.noise_injection == "per_sample"

    @property
    def delta(self) -> float:
        """Returns the policy's delta, as the accountant takes it."""
        return float(self.policy.delta)

    def min_std(self, class_index: int, scale_micro: int = ONE) -> float:
        """Returns the effective noise of a class in a phase of this scale: the S in its multiplier, max(sigma_i, S / C_i).

        It is the smallest standard deviation over the blocks of its profile, or what budgets make of all of them.
        """
        own = [self.blocks[index] for index in self.profiles[class_index].blocks]
        shares = [] if self.policy.classes[class_index].public else [block.share for block in own]
        return allocation.effective_std([schedule.phase_std(block.std, scale_micro) for block in own], shares)

    def trust_policy(self, log_vkey: str | None = None) -> TrustPolicy:
        """Returns the C2SP trust policy of this ledger: its key, and the quorums that its policy asks for. `log_vkey`: the key
        that signs it by now; that of the header without."""
        policy = self.policy
        quorums = (policy.auditors, policy.auditor_quorum or 0, policy.witnesses, policy.witness_quorum or 0)
        return auditors_policy(log_vkey or self.log_vkey, *quorums)

    @property
    def coordinates(self) -> int:
        """Returns the number of scheduled coordinates: of all blocks that a class may touch."""
        return scheduled_coordinates(self.blocks)

    def _open_policy(self) -> Policy:
        try:
            signed = verify_policy(self.policy_payload, self.policy_sign1, self.owner_key)
        except AttestError as error:
            code = error.code if error.code in (NOT_BUILT, NOT_INSTALLED) else "POLICY"
            raise LeafRefused(code, f"the policy in the header is refused: {error.sentence}") from error
        if signed.owner != self.owner:
            raise LeafRefused("POLICY", f"the policy is signed by {signed.owner}, the header says {self.owner}")
        for name, supported in _SUPPORTED:
            found = attrgetter(name)(signed.policy)
            if found not in supported:
                sentence = f"{name} {found!r} has no accounting in this version, expected {' or '.join(map(repr, supported))}"
                raise LeafRefused("POLICY_UNSUPPORTED", sentence)
        with as_leaf("POLICY_UNSUPPORTED"):
            policy = signed.policy.for_training()
        refused = accountants.refusal_of(policy)
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
        with as_leaf():
            check_blocks(self.policy.classes, self.derived, self.blocks)
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
            with as_leaf("SCHEDULE"):
                allocation.check_budgets(self.policy.classes, self.policy.noise_budgets, self.blocks)
        for block, std, share in zip(self.blocks, stds, _shares(self.policy, self.derived), strict=True):
            if (block.std, block.share) != (std, share):
                found, expected = f"noise {block.std} and share {block.share}", f"{std} and {share}"
                raise LeafRefused("SCHEDULE", f"block {block.name} has {found}, the policy gives {expected}")


def scheduled_coordinates(blocks: Iterable[HeaderBlock]) -> int:
    """Returns the coordinates of blocks that a class may touch."""
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
    """Returns the blocks of a model under a policy, each with its noise: what a header has to say. Raises ValueRefused: with
    budgets that cannot be settled, as `attest.schedule.allocation.budget_stds`."""
    derived = derive(policy.classes, stack)
    told = zip(derived, _max_rule(policy, derived), _shares(policy, derived), strict=True)
    rows = [HeaderBlock(block.name, block.coordinates, block.classes, std, share) for block, std, share in told]
    if policy.noise_budgets is not None:
        stds = allocation.budget_stds(policy.classes, rows).stds
        rows = [replace(row, std=std) for row, std in zip(rows, stds, strict=True)]
    return tuple(rows)
