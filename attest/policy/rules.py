"""Data classes of a policy, validated on entry."""

from dataclasses import dataclass
from fractions import Fraction

from attest.checks import check_bytes, check_int
from attest.descriptor import MAX_COUNT, MAX_MICRO, PUBLIC_CLIP_MICRO, PUBLIC_NOISE_MICRO
from attest.errors import PolicyRefused
from attest.ids import check_id
from attest.micro import from_micro
from attest.policy.auditors import check_cosigners
from attest.policy.depth import DepthRule, check_fraction
from attest.policy.noise import MAX_STEPS, NoisePhase, check_noise
from attest.policy.retention import check_retention
from attest.policy.sampling import POISSON, check_sampling

ACCOUNTANTS = ("pld", "rdp", "moments", "prv")
DISCLOSURES = ("secret_poisson", "occurrences_public")
EXACTNESS = ("fast", "certified")
NOISE_FAMILIES = ("gaussian", "laplace", "discrete_gaussian", "skellam", "correlated")
NOISE_INJECTIONS = ("scheduled", "per_microbatch", "per_sample")
ADJACENCY = "zero-out"

MIN_DELTA = Fraction(1, 10**12)
"""Below this, privacy-loss distributions lose their tail to truncation."""

DEFAULT_MAX_WINDOW = 2 * 365 * 86400
"""Two years in seconds: the longest validity of an attestation unless the policy says otherwise."""

MAX_WINDOW = 100 * 365 * 86400

FROM_STEPS = -1
"""Stands for a default that is derived from `steps`; replaced on construction."""


def _check_choice(value: object, name: str, choices: tuple[str, ...]) -> None:
    if type(value) is not str or value not in choices:
        raise PolicyRefused("RANGE", f"{name} is {ascii(value)[:60]}, expected one of {', '.join(choices)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassRule:
    """One admissibility class.

    Args:
        name: Identifier.
        clip_norm_micro: Preset clip norm in 1e-6; a contribution may sign less, never more.
        noise_multiplier_micro: Preset noise multiplier in 1e-6; a contribution may sign more, never less.
        sampling_rate: Probability q with which each contribution is drawn per step, 0 < q <= 1.
        depth: Blocks that the class may touch.
        max_window: Longest validity of an attestation in seconds; None for the policy's.
        public: Whether contributions of the class are public: neither clipped nor noised, and nothing promised to them.
            Their bounds are then `PUBLIC_CLIP_MICRO` and `PUBLIC_NOISE_MICRO`, which say so, and no others.
        max_epsilon_total_micro: Most epsilon in 1e-6 that a contribution of the class may spend over all runs together, at the
            policy's delta; None for no limit. It binds every later run that uses the contribution, whatever its policy says.
    """

    name: str
    clip_norm_micro: int
    noise_multiplier_micro: int
    sampling_rate: Fraction
    depth: DepthRule
    max_window: int | None = None
    public: bool = False
    max_epsilon_total_micro: int | None = None

    def __post_init__(self) -> None:
        check_id(self.name, "class name", error=PolicyRefused)
        check_int(self.clip_norm_micro, f"clip_norm of class {self.name} in 1e-6", 1, MAX_MICRO, error=PolicyRefused)
        check_int(
            self.noise_multiplier_micro,
            f"noise_multiplier of class {self.name} in 1e-6",
            1,
            MAX_MICRO,
            error=PolicyRefused,
        )
        if type(self.public) is not bool:
            raise PolicyRefused("TYPE", f"public of class {self.name} is {type(self.public).__name__}, expected true or false")
        says_public = (self.clip_norm_micro, self.noise_multiplier_micro) == (PUBLIC_CLIP_MICRO, PUBLIC_NOISE_MICRO)
        if says_public and not self.public:
            raise PolicyRefused(
                "RANGE", f"class {self.name} has the bounds by which contributors sign that data is public; set public = true"
            )
        if self.public and not says_public:
            raise PolicyRefused(
                "RANGE",
                f"class {self.name} is public and has a clip_norm or noise_multiplier; a public class is neither clipped nor"
                " noised: leave both out, or leave out public",
            )
        self._check_limit()
        if not 0 < check_fraction(self.sampling_rate, f"sampling_rate of class {self.name}") <= 1:
            raise PolicyRefused(
                "RANGE", f"sampling_rate of class {self.name} is {self.sampling_rate}, expected above 0 and at most 1"
            )
        if type(self.depth) is not DepthRule:
            raise PolicyRefused("TYPE", f"depth of class {self.name} is {type(self.depth).__name__}, expected a DepthRule")
        if self.max_window is not None:
            check_int(self.max_window, f"max_window of class {self.name} in seconds", 1, MAX_WINDOW, error=PolicyRefused)

    def _check_limit(self) -> None:
        limit = self.max_epsilon_total_micro
        if limit is None:
            return
        check_int(limit, f"max_epsilon_total of class {self.name} in 1e-6", 1, MAX_MICRO, error=PolicyRefused)
        if self.public:
            raise PolicyRefused(
                "RANGE", f"class {self.name} is public, with no claim of an epsilon; leave out max_epsilon_total, or public"
            )

    @property
    def clip_norm(self) -> float:
        """Preset clip norm as a double; says nothing in a public class."""
        return from_micro(self.clip_norm_micro)

    @property
    def noise_multiplier(self) -> float:
        """Preset noise multiplier as a double."""
        return from_micro(self.noise_multiplier_micro)


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """The rules of one corpus and one training run.

    Args:
        corpus: Identifier; attestations name it as their audience.
        delta: Target delta per contribution, 1e-12 <= delta < 1.
        steps: Horizon T, the number of logical steps.
        normalizer: Public constant by which noised sums are divided.
        classes: The admissibility classes.
        accountant: One of `ACCOUNTANTS`.
        adjacency: Always `zero-out`.
        disclosure: Whether participations stay secret.
        exactness: Level of numerical exactness.
        redo_steps: Steps beyond `steps` that may be charged for work repeated after crashes; defaults to `steps`.
        window_steps: Steps per charge window.
        epoch_steps: Steps per epoch of the ledger; defaults to a tenth of `steps`.
        noise_family: One of `NOISE_FAMILIES`.
        noise_injection: One of `NOISE_INJECTIONS`.
        noise_microbatches: Noise injections per logical step, M; stated exactly with `per_microbatch` injection, else None.
        noise_phases: Phases of the run with more noise than the presets ask for; steps before the first have scale 1.
        noise_budgets: Weights in 1e-6 of embeddings, layers and head, by which the clip norm of a class is divided among its
            blocks; None for one clip over all of them.
        sampling_order: One of `SAMPLING_ORDERS`: independent draws, or turns in an order that everybody may know.
        auditors: Verifier keys of the auditors of its ledgers, and
        auditor_quorum: how many of them must cosign what readers rely on; None without auditors.
        witnesses: Verifier keys of the witnesses of its ledgers, who vouch for one append-only history and for nothing else.
        witness_quorum: How many of them must cosign what readers rely on; None without witnesses.
        min_clip_norm_micro: Smallest clip norm that any contribution may sign, in 1e-6.
        min_noise_multiplier_micro: Smallest noise multiplier that any contribution may sign, in 1e-6.
        max_window: Longest validity of an attestation in seconds.
        contributor_cap: Contributions admitted per contributor.
        max_examples: Examples that one contribution may hold.
        retention_epochs: Epochs after which bodies may be pruned, 0 for never.
        retention_hash_epochs: Epochs after which the leaf hashes of pruned leaves may go as well, 0 for never.
        isolation_required: Whether a run must keep every update inside the blocks of a contribution's class (statement A),
            so that optimizers and clips that couple blocks are refused.
        registry_root: Root of the contributor registry; set when the policy is signed.
    """

    corpus: str
    delta: Fraction
    steps: int
    normalizer: int
    classes: tuple[ClassRule, ...]
    accountant: str = "pld"
    adjacency: str = ADJACENCY
    disclosure: str = "secret_poisson"
    exactness: str = "fast"
    redo_steps: int = FROM_STEPS
    window_steps: int = 16
    epoch_steps: int = FROM_STEPS
    noise_family: str = "gaussian"
    noise_injection: str = "scheduled"
    min_clip_norm_micro: int = 1
    min_noise_multiplier_micro: int = 1
    max_window: int = DEFAULT_MAX_WINDOW
    contributor_cap: int = 1_000_000
    max_examples: int = 1
    retention_epochs: int = 0
    registry_root: bytes | None = None
    noise_microbatches: int | None = None
    noise_phases: tuple[NoisePhase, ...] = ()
    noise_budgets: tuple[int, int, int] | None = None
    sampling_order: str = POISSON
    auditors: tuple[str, ...] = ()
    auditor_quorum: int | None = None
    retention_hash_epochs: int = 0
    isolation_required: bool = False
    witnesses: tuple[str, ...] = ()
    witness_quorum: int | None = None

    def __post_init__(self) -> None:
        check_id(self.corpus, "corpus", error=PolicyRefused)
        if not MIN_DELTA <= check_fraction(self.delta, "delta") < 1:
            raise PolicyRefused("RANGE", f"delta is {float(self.delta)}, expected at least 1e-12 and below 1")
        check_int(self.steps, "steps", 1, MAX_STEPS, error=PolicyRefused)
        if self.redo_steps == FROM_STEPS:
            object.__setattr__(self, "redo_steps", self.steps)
        if self.epoch_steps == FROM_STEPS:
            object.__setattr__(self, "epoch_steps", max(1, self.steps // 10))
        self._check_integers()
        self._check_choices()
        self._check_classes()
        check_sampling(self)
        check_cosigners(self)
        check_retention(self)
        if type(self.isolation_required) is not bool:
            found = type(self.isolation_required).__name__
            raise PolicyRefused("TYPE", f"isolation.required is {found}, expected true or false")
        if self.registry_root is not None:
            check_bytes(self.registry_root, "registry_root", 32, error=PolicyRefused)

    def class_rule(self, name: str) -> ClassRule:
        """The rule of a class.

        Raises:
            PolicyRefused: Code CLASS_UNKNOWN.
        """
        rule = self.find_class(name)
        if rule is None:
            known = ", ".join(rule.name for rule in self.classes)
            raise PolicyRefused("CLASS_UNKNOWN", f"class {ascii(name)[:80]} is not in the policy; it has {known}")
        return rule

    def find_class(self, name: str) -> ClassRule | None:
        """The rule of a class, or None."""
        return next((rule for rule in self.classes if rule.name == name), None)

    def to_cbor(self) -> bytes:
        """The bytes that are signed."""
        from attest.policy.codec import encode_policy

        return encode_policy(self)

    @classmethod
    def from_cbor(cls, data: bytes) -> "Policy":
        """Read a policy strictly; an accepted byte string is exactly `to_cbor()` of the result."""
        from attest.policy.codec import decode_policy

        return decode_policy(data)

    @classmethod
    def from_toml(cls, text: str) -> "Policy":
        """Read the file that a person writes; unknown keys are refused."""
        from attest.policy.toml import parse_policy

        return parse_policy(text)

    def _check_integers(self) -> None:
        check_int(self.redo_steps, "redo_steps", 0, MAX_STEPS, error=PolicyRefused)
        check_int(self.window_steps, "window_steps", 1, MAX_STEPS, error=PolicyRefused)
        check_int(self.epoch_steps, "epoch_steps", 1, MAX_STEPS, error=PolicyRefused)
        check_int(self.normalizer, "normalizer", 1, MAX_COUNT, error=PolicyRefused)
        check_int(self.min_clip_norm_micro, "floors.clip_norm in 1e-6", 1, MAX_MICRO, error=PolicyRefused)
        check_int(self.min_noise_multiplier_micro, "floors.noise_multiplier in 1e-6", 1, MAX_MICRO, error=PolicyRefused)
        check_int(self.max_window, "gate.max_window in seconds", 1, MAX_WINDOW, error=PolicyRefused)
        check_int(self.contributor_cap, "gate.contributor_cap", 1, MAX_COUNT, error=PolicyRefused)
        check_int(self.max_examples, "gate.max_examples", 1, MAX_COUNT, error=PolicyRefused)

    def _check_choices(self) -> None:
        _check_choice(self.accountant, "accountant", ACCOUNTANTS)
        _check_choice(self.adjacency, "adjacency", (ADJACENCY,))
        _check_choice(self.disclosure, "disclosure", DISCLOSURES)
        _check_choice(self.exactness, "exactness", EXACTNESS)
        _check_choice(self.noise_family, "noise.family", NOISE_FAMILIES)
        _check_choice(self.noise_injection, "noise.injection", NOISE_INJECTIONS)
        if self.noise_injection == "per_sample" and self.disclosure != "occurrences_public":
            raise PolicyRefused(
                "RANGE",
                "noise.injection 'per_sample' shows in its variance who was drawn; set disclosure ="
                " 'occurrences_public' or use noise.injection = 'scheduled'",
            )
        check_noise(self)

    def _check_classes(self) -> None:
        if type(self.classes) is not tuple or not 1 <= len(self.classes) <= 256:
            raise PolicyRefused("TYPE", "classes is not a tuple of 1 to 256 class rules; write at least one [[class]]")
        names = set()
        for rule in self.classes:
            if type(rule) is not ClassRule:
                raise PolicyRefused("TYPE", f"classes holds {type(rule).__name__}, expected ClassRule")
            if rule.name in names:
                raise PolicyRefused("RANGE", f"class {rule.name!r} is defined twice; give each class its own name")
            names.add(rule.name)
            if rule.public:
                continue  # the floors bind what is private; a public class has no bounds
            for what, preset, floor in (
                ("clip_norm", rule.clip_norm_micro, self.min_clip_norm_micro),
                ("noise_multiplier", rule.noise_multiplier_micro, self.min_noise_multiplier_micro),
            ):
                if preset < floor:
                    raise PolicyRefused(
                        "RANGE",
                        f"{what} of class {rule.name} is {from_micro(preset):g}, below {from_micro(floor):g} in [floors];"
                        " lower the floor or raise the preset",
                    )
        if all(rule.public for rule in self.classes):
            raise PolicyRefused(
                "RANGE", "every class of the policy is public, so that it protects nobody; add a class that is not"
            )
