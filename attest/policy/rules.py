"""The policy of a corpus, each field declared once: from here follow its check, bytes, text and pages.

A policy names auditors and witnesses who cosign its ledgers. An auditor has audited the export under the checkpoint. A witness
has seen that the tree extends every tree of that log which it cosigned before, and nothing else (C2SP tlog-witness). Of each
kind the policy says how many must have cosigned what readers rely on. It also says when leaves of a ledger may go: first the
bodies of those that old summaries speak for, then their hashes.
"""

import itertools
import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Final

from attest.descriptor import MAX_COUNT, MAX_MICRO, TRAIN, Terms
from attest.errors import KeyRefused, PolicyRefused, Refused
from attest.fixed_point import from_micro
from attest.keys.vkeys import SIGNATURE_COSIGNATURE_V1, VerifierKey, parse_verifier_key
from attest.policy.classes import MAX_WINDOW, ClassRule
from attest.policy.mechanism import (
    MAX_BUDGET_MICRO,
    MAX_MICROBATCHES,
    MAX_PHASES,
    MAX_STEPS,
    GeometryRule,
    MechanismRule,
    NoisePhase,
)
from attest.policy.sampling import DISCLOSURES, OCCURRENCES_PUBLIC, SECRET_POISSON, SamplingRule
from attest.policy.unbuilt import refuse_unbuilt
from attest.schema import check_fields, declared
from attest.schema.cards import listing
from attest.schema.groups import Many, Named, NamedTables, Parts, Tables
from attest.schema.kinds import Days, Exact, Flag, Identifier, Kind, Octets, Scaled, Told, Whole, Word
from attest.schema.plain import check_int
from attest.schema.text import as_json, parse_document, write_document
from attest.schema.wire import Payload
from attest.schema.words import Words
from attest.signed_file import MAX_PAYLOAD

_NAME = re.compile("[A-Za-z0-9._/:~-]{1,128}")

_FIELDS = {"auditor": "auditors", "witness": "witnesses"}

MAX_COSIGNERS = 32
"""Most auditors and witnesses of one policy together: every implementation of C2SP tlog-policy takes as many witnesses."""


@dataclass(frozen=True)
class CosignerKey(Kind):
    """A verifier key of somebody who cosigns, `auditor` or `witness`."""

    kind: str
    cddl: str = "vkey"

    def check(self, value: Any, told: Told, error: Refused) -> None:
        _key(self.kind, value)


AUDITOR: Final = CosignerKey("auditor")
WITNESS: Final = CosignerKey("witness")


def check_cosigners(
    auditors: tuple[str, ...], auditor_quorum: int | None, witnesses: tuple[str, ...], witness_quorum: int | None
) -> None:  # fmt: skip
    """Refuses a quorum that counts one key twice or is never reached.

    Guarantee: no key stands twice among auditors and witnesses together, so nobody is both, and every quorum that is named can
    be reached by different keys.

    Args: as the fields of a policy, each checked by itself.

    Raises:
        PolicyRefused: Code TYPE or RANGE.
    """
    names: dict[bytes, str] = {}
    for kind, vkeys, quorum in (("auditor", auditors, auditor_quorum), ("witness", witnesses, witness_quorum)):
        field = _FIELDS[kind]
        if not vkeys and quorum is not None:
            raise PolicyRefused("RANGE", f"ledger.{kind}_quorum goes with ledger.{field}; name them, or leave it out")
        for vkey in vkeys:
            key = _key(kind, vkey)
            if key.public_key in names:
                sentence = f"{names[key.public_key]} and the {kind} {key.name} have one key, and count once"
                raise PolicyRefused("RANGE", f"{sentence}; a key is named once, as an auditor's or as a witness's")
            names[key.public_key] = f"the {kind} {key.name}"
        if vkeys:
            check_int(quorum, f"ledger.{kind}_quorum", 1, len(vkeys), error=PolicyRefused)
    if len(names) > MAX_COSIGNERS:
        raise PolicyRefused("RANGE", f"[ledger] names {len(names)} auditors and witnesses, expected at most {MAX_COSIGNERS}")


def _key(kind: str, vkey: Any) -> VerifierKey:
    """Reads the verifier key of a cosigner."""
    try:
        key = parse_verifier_key(vkey)
    except KeyRefused as error:
        raise PolicyRefused(error.code, f"ledger.{_FIELDS[kind]}: {error.sentence}") from error
    if key.kind != SIGNATURE_COSIGNATURE_V1:
        sentence = f"the key of the {kind} {key.name} signs as a log; 'dptrain ledger auditor-key' prints the one to name"
        raise PolicyRefused("RANGE", sentence)
    if not _NAME.fullmatch(key.name):
        sentence = f"the {kind} is named {ascii(key.name)[:80]}, expected 1 to 128 of A-Z a-z 0-9 . _ / : ~ and -"
        raise PolicyRefused("RANGE", sentence)
    return key


ACCOUNTANTS: Final = Words({
    "pld": "privacy loss distributions; the default, and the tightest that is a bound by itself",
    "rdp": "Rényi divergences",
    "moments": "the moments accountant of Abadi et al. (2016)",
    "prv": "privacy random variables, by opacus",
})  # fmt: skip
EXACTNESS: Final = {"fast": "floating point", "certified": "exact integers per contribution"}
NOISE_INJECTIONS: Final = {
    "scheduled": "one draw per step and block",
    "per_microbatch": "the same noise in several draws per step",
    "per_sample": "every contribution brings noise of its own",
}
ADJACENCY: Final = "zero-out"

MIN_DELTA: Final = Fraction(1, 10**12)
"""Below this, privacy-loss distributions lose their tail to truncation."""

DEFAULT_MAX_WINDOW: Final = 2 * 365 * 86400
"""Two years in seconds: the longest validity of an attestation unless the policy says otherwise."""

FROM_STEPS: Final = -1
"""Stands for a default that is derived from `steps`; replaced on construction."""

_STEPS: Final = Whole(1, MAX_STEPS, "positive")
_EPOCHS: Final = Whole(0, MAX_STEPS, "uint")
_COUNT: Final = Whole(1, MAX_COUNT, "count")
_BOUND: Final = Scaled(1, MAX_MICRO)
_QUORUM: Final = Whole(1, MAX_COSIGNERS, f"1..{MAX_COSIGNERS}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy(Payload):
    """The rules of one corpus and one training run. The sentences of the fields say what each means.

    Guarantee: a policy exists only if every field is of its kind and in its range, the fields go with one another, and it asks
    for nothing that this version does not serve.

    Raises:
        PolicyRefused: Code TYPE, RANGE, that of a verifier key, or `attest.policy.unbuilt.NOT_BUILT`.
    """

    SCHEMA: ClassVar = "dptrain.policy/2"
    CDDL: ClassVar = "policy"
    WHAT: ClassVar = "policy"
    ERROR: ClassVar = PolicyRefused
    MAX_SIZE: ClassVar = MAX_PAYLOAD
    OF: ClassVar = ""

    corpus: str = declared(
        2,
        Identifier(),
        "Identifier of the corpus. An attestation names the corpus it is meant for and is refused in any other.",
    )
    delta: Fraction = declared(
        3,
        Exact(MIN_DELTA, Fraction(1), below=True),
        "The delta of every contribution's (epsilon, delta). At least 1e-12, below 1. Keep it at most 1e-6 and at"
        " most 1/(10 N) for N contributions: with probability delta the epsilon may fail, and a delta near 1/N "
        "would permit publishing one contribution whole.",
    )
    steps: int = declared(
        8,
        _STEPS,
        "Horizon T: the number of logical steps that run, empty draws included. Epsilon is known from it before "
        "the first step. A run may stop earlier and is charged less; if the moment was chosen by looking at the "
        "model, quote the epsilon of the whole horizon all the same. Going further needs a new policy.",
    )
    normalizer: int = declared(
        12,
        _COUNT,
        "Public constant by which the noised sum of clipped gradients is divided. Choose about the expected "
        "number of contributions per step (`dptrain plan` prints it). It scales the learning rate and touches no "
        "guarantee. Never derived from the realised batch, which is secret.",
    )
    accountant: str = declared(
        4,
        Word(ACCOUNTANTS),
        'Who computes epsilon: `"pld"` (the tightest, and the one to take), `"rdp"`, `"moments"` or `"prv"`, '
        'compared in [accounting](mechanism/accounting.md). `"prv"` needs the training extra to compute its '
        "own figures; without it, and for auditors, it is `pld` + 0.02 at most. An installed package adds others, as "
        "`provider.name` ([extending](extending/accountant.md)).",
        default="pld",
    )
    adjacency: str = declared(
        5,
        Word({ADJACENCY: "a payload is replaced by nothing"}),
        "The neighbouring relation; there is one. See [guarantee.md](guarantee.md).",
        default=ADJACENCY,
    )
    disclosure: str = declared(
        6,
        Word(DISCLOSURES),
        'Who was drawn stays secret, and the accounting counts on it. With `"occurrences_public"` the ledger '
        "tells in which steps each contribution took part, and every occurrence counts in full, without "
        "amplification: at equal noise epsilon is far larger (`dptrain account --sampling-rate 1 --steps N` for N"
        " occurrences). For runs whose draws cannot be kept secret.",
        default=SECRET_POISSON,
    )
    exactness: str = declared(
        7,
        Word(EXACTNESS),
        'What the numerics guarantee: `"fast"`, or `"certified"` (exact integers per contribution, no assumption '
        "on rounding, somewhat slower). What each assumes is in [guarantee.md](guarantee.md).",
        default="fast",
    )
    redo_steps: int = declared(
        9,
        _EPOCHS,
        "How many steps may be charged beyond `steps` when a run is resumed and steps are done again, over the "
        "life of the ledger. `policy check` prints the epsilon if all are used. 0 forbids doing any step again.",
        default=FROM_STEPS,
        shown="`steps`",
    )
    window_steps: int = declared(
        10,
        _STEPS,
        "Steps that one charge pays for. A charge is durable before its first step; a crash can leave up to so "
        "many steps charged that never ran. Larger windows cost fewer commits. A withdrawal takes effect at the "
        "next window.",
        default=16,
    )
    epoch_steps: int = declared(
        11,
        _STEPS,
        "Steps between signed checkpoints of the ledger; each also records what every contribution has spent.",
        default=FROM_STEPS,
        shown="`steps` / 10, at least 1",
    )
    retention_epochs: int = declared(
        20,
        _EPOCHS,
        "Closed epochs that stay whole; what is older `dptrain ledger retain` may summarise and, once a quorum of"
        " `auditors` vouches, prune ([formats](formats/runs.md#retention)). 0 for never.",
        default=0,
    )
    retention_hash_epochs: int = declared(
        30,
        Whole(0, MAX_STEPS, "positive"),
        "With `retention_epochs`, and at least that: closed epochs after which the leaf hashes of pruned leaves "
        "may go as well (`dptrain ledger retain --drop-hashes`), but for the roots of the subtrees that they "
        "fill. Every root and every proof of a leaf that stays is as before; of a pruned leaf only a proof file "
        "made earlier still shows that it was there. 0 keeps hashes for ever.",
        default=0,
        optional=True,
        rule="with 27, at least 20, which is not 0",
    )
    mechanism: MechanismRule = declared(
        13,
        Named(MechanismRule, "mechanism", "family", "noise"),
        "Law of the noise. `gaussian`, on an integer lattice, is the one to take. `laplace`, `discrete_gaussian` "
        'and `skellam` take `exactness = "certified"`, `injection = "scheduled"` (`skellam` also '
        "`per_microbatch`), no `[noise.budgets]`, and an accountant: `pld` for `laplace` (and `disclosure = "
        '"secret_poisson"`), `rdp` for the others, which sampling does not amplify. **Under `laplace` every clip '
        "norm is a bound on the sum of magnitudes (L1)**, and a noise multiplier is the scale of the noise over "
        "it. `banded_toeplitz`, `banded_inverse` and `buffered_toeplitz` are Gaussian, and [correlated between "
        "steps](#noise-that-is-correlated-between-steps). The whole table: "
        "[the mechanism](mechanism/families.md). An installed package adds others, as `provider.name` "
        "([extending](extending/noise.md)).",
        key="noise",
        default=MechanismRule(),
    )
    noise_injection: str = declared(
        14,
        Word(NOISE_INJECTIONS),
        "One draw per step and block, with a standard deviation fixed before step 1. `per_sample` requires "
        '`disclosure = "occurrences_public"`, since its variance shows who was drawn: every contribution drawn '
        "then brings noise of its own, with variance (sigma C)^2 as it signed, and a block has the sum over those"
        " who may touch it, none if there is nobody. `per_microbatch` draws the scheduled noise in several parts;"
        ' see `microbatches`. `per_sample` goes with `exactness = "fast"` only.',
        key="noise.injection",
        default="scheduled",
    )
    noise_microbatches: int | None = declared(
        23,
        Whole(1, MAX_MICROBATCHES, f"1..{MAX_MICROBATCHES}"),
        'M, the number of injections per step, 1 to 65536: required with `injection = "per_microbatch"` and '
        "refused otherwise. The draw is cut into M groups, empty ones included, each with a draw of noise of "
        "variance s²/M. The total is that of `scheduled`, so is epsilon; each injection costs as much time as all"
        " noise of a scheduled step.",
        key="noise.microbatches",
        default=None,
        optional=True,
        shown="with `per_microbatch`",
        rule="exactly with per_microbatch",
    )
    noise_phases: tuple[NoisePhase, ...] = declared(
        24,
        Many(Tables(NoisePhase, "noise-phase", "noise phase", row=True), 1, MAX_PHASES, "phases", empty=True),
        "Phases of the run with more noise; see [below](#noise-that-varies-over-the-run).",
        key="noise.phase",
        default=(),
        optional=True,
        rule="steps ascending, none beyond the horizon; not with per_sample",
    )
    noise_budgets: tuple[int, int, int] | None = declared(
        25,
        Parts(
            ("embeddings", "layers", "head"),
            Scaled(1, MAX_BUDGET_MICRO, "weight"),
            "noise-budgets",
            "three weights, for embeddings, layers and head",
        ),
        "Clip norms divided among blocks; see [below](#clip-budgets-of-blocks).",
        key="noise.budgets",
        default=None,
        optional=True,
        rule="not with per_sample",
    )
    sampling: SamplingRule = declared(
        26,
        Named(SamplingRule, "sampling", "order", "sampling"),
        'How a step comes by its contributions. `"poisson"`: each is drawn by itself, with the rate of its class.'
        ' `"cyclic"` and `"shuffled"`: everybody takes turns, once in each period of 1/`sampling_rate` steps. '
        '`"cyclic_poisson"`: each is drawn by itself, with the rate of its class, in the steps of its group.',
        key="sampling",
        default=SamplingRule(),
        optional=True,
        rule="absent for Poisson draws; turns with occurrences_public, cyclic and shuffled with rates 1/P",
    )
    min_clip_norm_micro: int = declared(
        15,
        _BOUND,
        "Minimum clip norm. A contribution clipped to next to nothing costs time and teaches nothing; this floor "
        "is for usefulness, it protects nobody.",
        key="floors.clip_norm",
        default=1,
        shown="0.000001",
    )
    min_noise_multiplier_micro: int = declared(
        16,
        _BOUND,
        "Minimum noise multiplier: no class, and no contribution, may go below.",
        key="floors.noise_multiplier",
        default=1,
        shown="0.000001",
    )
    max_window: int = declared(
        17, Days(MAX_WINDOW), "Longest validity of an attestation.", key="gate.max_window_days", default=DEFAULT_MAX_WINDOW
    )
    contributor_cap: int = declared(
        18,
        _COUNT,
        "Contributions admitted from one contributor. A cap in the registry can only be stricter.",
        key="gate.contributor_cap",
        default=1_000_000,
    )
    max_examples: int = declared(
        19,
        _COUNT,
        "Examples that one contribution may hold. All of them together are clipped once.",
        key="gate.max_examples",
        default=1,
    )
    auditors: tuple[str, ...] = declared(
        27,
        Many(AUDITOR, 1, MAX_COSIGNERS, "verifier keys", empty=True),
        "Verifier keys of those who audit ledgers under this policy, as `dptrain ledger auditor-key` prints them.",
        key="ledger.auditors",
        default=(),
        optional=True,
        rule="no key twice",
    )
    auditor_quorum: int | None = declared(
        28,
        _QUORUM,
        "How many of them must have cosigned what readers rely on.",
        key="ledger.auditor_quorum",
        default=None,
        optional=True,
        shown="required with `auditors`",
        beside="ledger.auditors",
        rule="at most as many as 27; exactly with it",
    )
    witnesses: tuple[str, ...] = declared(
        32,
        Many(WITNESS, 1, MAX_COSIGNERS, "verifier keys", empty=True),
        "Verifier keys of witnesses (C2SP tlog-witness), of type 0x04. No key may be a witness's and an "
        "auditor's; at most 32 of both together.",
        key="ledger.witnesses",
        default=(),
        optional=True,
        rule="no key twice and none of 27; both together at most 32",
    )
    witness_quorum: int | None = declared(
        33,
        _QUORUM,
        "How many of them must have cosigned what readers rely on, besides the auditors.",
        key="ledger.witness_quorum",
        default=None,
        optional=True,
        shown="required with `witnesses`",
        beside="ledger.witnesses",
        rule="at most as many as 32; exactly with it",
    )
    isolation_required: bool = declared(
        31,
        Flag("true"),
        "Whether the run must keep statement A of [guarantee.md](guarantee.md): in every step the update outside "
        "the blocks of a contribution's class is not a function of its content.",
        key="isolation.required",
        default=False,
        optional=True,
        shown="`false`",
    )
    geometry: tuple[GeometryRule, ...] = declared(
        34,
        Many(NamedTables(GeometryRule, "geometry-rule", "chart", "geometry"), 1, 64, "geometries", empty=True),
        'The space in which adapters are clipped and noised; `geometry = "lora_tangent"` is short for one table with that '
        "`chart`. `lora_tangent`: each pair of LoRA factors A and B takes part with its gradient's projection onto the tangent "
        "space of A Bᵀ, in coordinates that keep its norm; after the noise, what left that space is dropped. `adapters` names "
        "those meant, ascending; left out, all. Takes `gaussian` noise and `exactness = \"fast\"` (`GEOMETRY`).",
        default=(),
        optional=True,
        rule="no adapter in two of them; with gaussian noise, not certified",
    )
    classes: tuple[ClassRule, ...] = declared(
        22, Many(Tables(ClassRule, "class-rule", "class"), 1, 256, "classes"), key="class"
    )
    registry_root: bytes | None = declared(
        21,
        Octets(32, "sha256"),
        "Root of the contributor registry; set when the policy is signed.",
        written=False,
        default=None,
        rule="null only before it is signed",
    )

    def __post_init__(self) -> None:
        if type(self.steps) is int:
            if self.redo_steps == FROM_STEPS:
                object.__setattr__(self, "redo_steps", self.steps)
            if self.epoch_steps == FROM_STEPS:
                object.__setattr__(self, "epoch_steps", max(1, self.steps // 10))
        check_fields(self, PolicyRefused)
        if self.noise_injection == "per_sample" and self.disclosure != OCCURRENCES_PUBLIC:
            raise PolicyRefused(
                "RANGE",
                "noise.injection 'per_sample' shows in its variance who was drawn; set disclosure ="
                " 'occurrences_public' or use noise.injection = 'scheduled'",
            )
        self._check_noise()
        self._check_classes()
        self.sampling.check_beside(self.disclosure, ((rule.name, rule.sampling_rate) for rule in self.classes))
        check_cosigners(self.auditors, self.auditor_quorum, self.witnesses, self.witness_quorum)
        self._check_retention()
        for one, other in itertools.combinations(self.geometry, 2):
            if one.adapters is None or other.adapters is None or not set(one.adapters).isdisjoint(other.adapters):
                raise PolicyRefused("RANGE", "two [[geometry]] tables speak of one adapter; name each in one of them")
        for rule in self.geometry:
            rule.check_beside(self.mechanism, self.exactness)
        refuse_unbuilt(self._asked())

    @property
    def secret(self) -> bool:
        """Tells whether who was drawn stays secret, and the accounting counts on it."""
        return self.disclosure != OCCURRENCES_PUBLIC

    def class_rule(self, name: str) -> ClassRule:
        """Returns the rule of a class. Raises PolicyRefused: code CLASS_UNKNOWN."""
        rule = self.find_class(name)
        if rule is None:
            known = ", ".join(rule.name for rule in self.classes)
            raise PolicyRefused("CLASS_UNKNOWN", f"class {ascii(name)[:80]} is not in the policy; it has {known}")
        return rule

    def find_class(self, name: str) -> ClassRule | None:
        """Returns the rule of a class, or None."""
        return next((rule for rule in self.classes if rule.name == name), None)

    def for_training(self) -> "Policy":
        """Returns the policy as a run of training goes by it: with the classes that are for training, and no others.

        Guarantee: no class of the result lacks `TRAIN` among its purposes; where all have it, the result is this policy. Places
        of classes, in a ledger and beside it, count these alone.

        Raises:
            PolicyRefused: Code PURPOSE, no class is for training.
        """
        trained = tuple(rule for rule in self.classes if rule.trained)
        if len(trained) == len(self.classes):
            return self
        if not trained:
            told = ", ".join(f"{rule.name} for {' and '.join(rule.purposes)}" for rule in self.classes)
            sentence = f"no class of the policy is for training ({told}); add {TRAIN!r} to the purposes of one"
            raise PolicyRefused("PURPOSE", sentence)
        return replace(self, classes=trained)

    def length_of(self, signed: Terms) -> int | None:
        """Returns the tokens to which every example of a contribution is padded or cut; None where no class offers lengths.

        It follows from what was signed alone: the public length or, without one, the longest of the class; in a class without
        lengths the longest of all.
        """
        own = self.class_rule(signed.admissibility_class).public_lengths
        longest = max((length for rule in self.classes for length in own or rule.public_lengths), default=None)
        return signed.public_length or longest

    @classmethod
    def from_toml(cls, text: str) -> "Policy":
        """Reads the file that a person writes; unknown keys are refused, with the nearest known one.

        Decimals become exact fractions or fixed-point integers; no float is formed. Bounds take at most six decimals.

        Raises:
            PolicyRefused: Code TOML for text that is no TOML, KEY for an unknown or missing key, or one of the class.
        """
        read: Policy = parse_document(cls, text, what="policy", error=PolicyRefused)
        return read

    def _repr_html_(self) -> str:
        return listing(type(self).__name__, self.to_toml())

    def to_toml(self) -> str:
        """Writes the policy as a person would; read again it is the same policy but for the registry root."""
        return write_document(self)

    def as_json(self) -> dict[str, Any]:
        """Returns every field as JSON shows it."""
        return as_json(self)

    def _asked(self) -> list[tuple[str, str]]:
        return [
            ("noise.family", self.mechanism.name),
            ("sampling.order", self.sampling.name),
            *(("geometry", rule.name) for rule in self.geometry),
            *(pair for rule in self.classes for pair in rule.asked()),
        ]

    def _check_classes(self) -> None:
        names = set()
        for rule in self.classes:
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
        narrowed = next((rule.name for rule in self.classes if rule.reads is not None), None)
        if narrowed is not None and not self.isolation_required:
            raise PolicyRefused(
                "RANGE",
                f"class {narrowed} has reads, which keep others out only as long as no optimizer carries their updates over;"
                " set [isolation] required = true, or leave reads out",
            )
        if all(rule.public for rule in self.classes):
            sentence = "every class of the policy is public, so that it protects nobody; add a class that is not"
            raise PolicyRefused("RANGE", sentence)
        trained = [rule for rule in self.classes if rule.trained]
        if trained and all(rule.public for rule in trained):
            sentence = "every class that is for training is public, so that a run protects nobody; add one that is not"
            raise PolicyRefused("RANGE", sentence)

    def _check_noise(self) -> None:
        """Refuses injections without a number, phases out of order, and what goes with no such injection."""
        injection = self.noise_injection
        if (self.noise_microbatches is not None) != (injection == "per_microbatch"):
            raise PolicyRefused(
                "RANGE",
                "noise.injection 'per_microbatch' needs noise.microbatches, the number of injections per step: were it the"
                " number of microbatches that a draw happens to fill, the noise would show who was drawn"
                if self.noise_microbatches is None
                else f"noise.microbatches goes with noise.injection = 'per_microbatch', not with {injection!r}; leave it out",
            )
        last = 0
        for phase in self.noise_phases:
            if phase.first_step <= last:
                raise PolicyRefused(
                    "RANGE",
                    f"a noise phase from step {phase.first_step} follows one from step {last}; write them in the order of the"
                    " run, each step once",
                )
            last = phase.first_step
        if last > self.steps:
            steps = self.steps
            sentence = f"a noise phase begins at step {last}, the run has {steps} steps; begin it at {steps} or before"
            raise PolicyRefused("RANGE", sentence)
        for name, found in (("[[noise.phase]]", self.noise_phases), ("[noise.budgets]", self.noise_budgets)):
            if injection == "per_sample" and found:
                raise PolicyRefused(
                    "RANGE",
                    f"{name} goes with scheduled noise, and with noise.injection 'per_sample' the noise of a step is that of"
                    " the contributions drawn in it; use noise.injection = 'scheduled', or leave it out",
                )

    def _check_retention(self) -> None:
        """Refuses horizons that let hashes go before bodies do, or without anybody who could vouch for them."""
        bodies, hashes = self.retention_epochs, self.retention_hash_epochs
        if hashes and not 0 < bodies <= hashes:
            raise PolicyRefused(
                "RANGE",
                f"retention_hash_epochs is {hashes}, and retention_epochs {bodies}: hashes go after bodies, so it takes"
                " retention_epochs above 0 and at least as many epochs as that; or 0, to keep hashes for ever",
            )
        if hashes and not self.auditors:
            sentence = "retention_hash_epochs goes with ledger.auditors: nothing is pruned that nobody vouches for"
            raise PolicyRefused("RANGE", sentence)
