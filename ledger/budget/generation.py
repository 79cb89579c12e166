"""Holds generation from contributions to what was signed: the rule of their class, what a token costs by it, and consent.

A rule is copied from a signed policy into the header of a log, so that whoever has an export and the policy compares the two.
From a token to a text, costs are computed from the rule's own whole numbers: a log cannot say that less was spent.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import ClassVar, Final

from attest import sign1
from attest.attestation import Attestation
from attest.descriptor import GENERATE, MAX_COUNT, MAX_MICRO, TRAIN, SignedDescriptor
from attest.descriptor import MAX_SIZE as MAX_DESCRIPTOR
from attest.fixed_point import MICRO, PICO
from attest.policy import SignedPolicy
from attest.schema import declared
from attest.schema.plain import utc
from attest.schema.quick import Array, Blob, Count, Row
from ledger.budget.rho import NANO, epsilon_of_rho
from ledger.errors import LeafRefused
from ledger.leaves import Previous
from ledger.leaves.kinds import ID, MICRO_ABOVE_0, SHA256, Checked, as_leaf

RULES: Final = 100
"""Most rules of one log."""

CONTRIBUTIONS: Final = 1900
"""Most contributions of one text: a leaf names all of them, and a leaf takes less than 64 KiB."""

INK: Final = "invisibleink"
"""Mechanism by which contributions make texts: under rules of generation nobody else pays for it. A log cannot say whether
another mechanism, under whatever name, makes texts too; where others pay by one, an audit says USE_TOLD."""

REFERENCES: Final = Count(1, CONTRIBUTIONS, f"1..{CONTRIBUTIONS}")
SCALED: Final = Count(1, MAX_MICRO, "micro", "1e-6")
COUNT: Final = Count(1, MAX_COUNT, "count")
RHO: Final = Count(1, 10**15, "nano", "1e-9")
BELOW_1: Final = Count(1, 10**12 - 1, "1..999999999999", "1e-12")
DESCRIPTOR: Final = Blob("descriptor-bytes", 1, MAX_DESCRIPTOR)
MESSAGE: Final = Blob("message", 1, sign1.MAX_SIZE)


@dataclass(frozen=True, slots=True)
class GenerationRule(Checked):
    """Says by which signed rule contributions of a class make texts: the owner's numbers, copied from the policy."""

    CDDL: ClassVar = "budget-generation"
    policy: bytes = declared(1, SHA256, "SHA-256 of the signed policy, as it was signed.")
    name: str = declared(2, ID, "Class of the policy.")
    references: int = declared(3, REFERENCES, "References B of one text, empty ones included: so many contributions pay.")
    clip_norm_micro: int = declared(4, SCALED, "Largest difference C that a reference makes in a logit.")
    temperature_micro: int = declared(5, SCALED, "Temperature tau of the softmax from which a token is drawn.")
    tokens: int = declared(6, COUNT, "Most tokens T of one text.")
    top_k: int | None = declared(7, COUNT, "Tokens out of which one is drawn; null for the whole vocabulary.", nil=True)
    max_rho_nano: int = declared(8, RHO, "Most rho of a contribution, over all texts.")

    @classmethod
    def of(cls, signed: SignedPolicy, name: str) -> "GenerationRule":
        """Returns the rule of a class of a signed policy. Raises LeafRefused: code RULE, it has none; REFERENCES, a text of it
        has more references than a leaf names."""
        found = signed.policy.find_class(name)
        rule = None if found is None else found.generation
        if found is None or rule is None:
            has = ", ".join(one.name for one in signed.policy.classes if one.generation is not None) or "none"
            sentence = f"class {name!r:.80} of the policy has no rule of generation"
            raise LeafRefused("RULE", f"{sentence}; classes that have one: {has}")
        if rule.references > CONTRIBUTIONS:
            sentence = f"a text of class {name} has {rule.references} references, and a leaf names at most {CONTRIBUTIONS}"
            raise LeafRefused("REFERENCES", f"{sentence} contributions; have a policy signed with fewer")
        numbers = rule.references, rule.clip_norm_micro, rule.temperature_micro, rule.tokens, rule.top_k, rule.max_rho_nano
        return cls(signed.digest, name, *numbers)

    @property
    def token_nano(self) -> int:
        """Returns what a token costs by the numbers of the rule, C^2 / (2 B^2 tau^2), in 1e-9 of rho.

        Guarantee: it is no less than the rho of a token that is drawn with these C, B and tau: whole numbers, rounded up.

        Source: a choice whose log-ratio between neighbours has a range of at most eta = 2 C / (B tau) is (eta^2 / 8)-zCDP
        (`ledger.budget.rho.bounded_range_nano`). Neighbours differ by one reference that is null in one of them.
        """
        return -(-NANO * self.clip_norm_micro**2 // (2 * self.references**2 * self.temperature_micro**2))


@dataclass(frozen=True, slots=True)
class ClassLimit(Checked):
    """Says what the signed policy lets a contribution of a class spend over all runs, texts among them."""

    CDDL: ClassVar = "budget-limit"
    name: str = declared(1, ID, "Class that has a rule of generation.")
    epsilon_micro: int = declared(2, MICRO_ABOVE_0, "Most epsilon over all runs.")
    delta_pico: int = declared(3, BELOW_1, "Delta of the policy, rounded down.")

    @classmethod
    def of(cls, signed: SignedPolicy, name: str) -> "ClassLimit | None":
        """Returns the limit of a class of a signed policy; None where it has none."""
        found = signed.policy.find_class(name)
        if found is None or found.max_epsilon_total_micro is None:
            return None
        return cls(name, found.max_epsilon_total_micro, math.floor(signed.policy.delta * PICO))


@dataclass(frozen=True, slots=True)
class OverRuns(Checked):
    """Says which runs a log counts, and the limits of classes over all runs: with it, who signed a limit is admitted too."""

    CDDL: ClassVar = "budget-over-runs"
    previous: tuple[Previous, ...] = declared(
        1, Array(Row(Previous), 0, 100), "Runs that were closed before, and other budgets from which contributions make texts."
    )
    limits: tuple[ClassLimit, ...] = declared(
        2, Array(Row(ClassLimit), 0, RULES), "Limits of classes, by class in ascending order, of those that have one."
    )

    @classmethod
    def of(cls, signed: SignedPolicy, names: Iterable[str], previous: Sequence[Previous] = ()) -> "OverRuns":
        """Returns what a log for these classes of a policy says."""
        found = (ClassLimit.of(signed, name) for name in sorted(names))
        return cls(tuple(previous), tuple(limit for limit in found if limit is not None))


@dataclass(frozen=True, slots=True)
class Admitted:
    """Says where a contribution was admitted to generation.

    Attributes:
        seq: position of its REFERENCE leaf. rule: its class. content: the commitment that was signed. corpus: as signed.
        key_id: of the key that the message names. until: first second at which its attestation is valid no more.
    """

    seq: int
    rule: str
    content: bytes
    corpus: str
    key_id: bytes
    until: int


def require_room(rho_nano: int, epsilon_micro: int, delta_pico: int, whose: str, seq: int | None = None) -> None:
    """Refuses a limit of epsilon over all runs that the texts of this log alone could pass.

    Raises:
        LeafRefused: code LIMIT.
    """
    worth = epsilon_of_rho(rho_nano / NANO, delta_pico / PICO)
    if worth * MICRO > epsilon_micro:
        sentence = f"{whose} allows epsilon {epsilon_micro / MICRO:g} at delta {delta_pico / PICO:g} over all runs together"
        raise LeafRefused("LIMIT", f"{sentence}, and texts of this log alone could bring it to {worth:.6g}", seq=seq)


def admitted_by(
    signed_as: Attestation,
    name: str,
    rules: Mapping[str, GenerationRule],
    *,
    seq: int,
    time: int,
    allowed_nano: int | None = None,
) -> Admitted:
    """Judges a REFERENCE leaf by itself.

    Guarantee: on return its descriptor is one that names the purpose `generate` and the class of the rule; it is valid at the
    time of the leaf; the message is one over exactly this descriptor, by the issuer to whom that commits; and a limit of
    epsilon over all runs that its contributor signed is one that texts of this log alone stay within, in a log that counts
    runs. Whether the message verifies under a key of the contributor is for who has the registry, and whether texts stay within
    the limit together with runs for who has those.

    Args:
        signed_as: descriptor and message of the leaf. name: class that the leaf says. seq, time: of the leaf.
        allowed_nano: the most that a contribution of the class may spend in the log, in 1e-9 of rho; None in one that counts no
            runs.

    Raises:
        LeafRefused: code RULE, CLASS, PURPOSE, LIMIT, NOT_YET_VALID, EXPIRED or ISSUER, or that of the strict reader of the
            descriptor or the message.
    """

    def refused(code: str, sentence: str) -> LeafRefused:
        return LeafRefused(code, sentence, seq=seq)

    if name not in rules:
        has = ", ".join(rules) or "none"
        raise refused("RULE", f"the header has no rule of generation for class {name!r}; it has {has}")
    with as_leaf(what="the descriptor of a reference: "):
        signed = SignedDescriptor.from_cbor(signed_as.descriptor)
    with as_leaf(what="the signature of a reference: "):
        said = sign1.read(signed_as.sign1).headers
    if signed.admissibility_class != name:
        raise refused("CLASS", f"its contributor signed for class {signed.admissibility_class}, the leaf says {name}")
    if not signed.allows(GENERATE):
        signed_for = " and ".join(signed.purposes or (TRAIN,))
        sentence = f"its contributor signed for {signed_for}, not to {GENERATE}"
        raise refused("PURPOSE", f"{sentence}; who allows that signs anew ('dptrain attest sign --purpose {GENERATE}')")
    if signed.limit != (0, 0):
        if allowed_nano is None:
            sentence = "its contributor limits what it spends over all runs together, and this log counts no run"
            raise refused("LIMIT", f"{sentence}; begin a log that does, or leave the contribution out")
        require_room(allowed_nano, *signed.limit, "its contributor", seq)
    if not signed.not_before <= time < signed.not_after:
        code = "NOT_YET_VALID" if time < signed.not_before else "EXPIRED"
        sentence = f"its attestation is valid from {utc(signed.not_before)} to {utc(signed.not_after)}"
        raise refused(code, f"{sentence}, not at {utc(time)}")
    if (said.issuer, said.typ, said.subject) != (signed.issuer, sign1.TYP_ATTESTATION, sign1.subject_of(signed_as.descriptor)):
        sentence = f"the message is of type {said.typ!a:.60} by {said.issuer} over {said.subject!a:.90}"
        raise refused("ISSUER", f"{sentence}; the descriptor commits to {signed.issuer}")
    return Admitted(seq, name, signed.content, signed.corpus, said.key_id, signed.not_after)


def class_of(attestation: Attestation) -> str:
    """Returns the class that a descriptor names. Raises LeafRefused: it is no descriptor, with the code of its reader."""
    with as_leaf(what="the descriptor of a reference: "):
        return SignedDescriptor.from_cbor(attestation.descriptor).admissibility_class


def require_new(found: Admitted, contents: Set[bytes], seq: int) -> None:
    """Refuses a commitment to a content that was admitted before, under whatever descriptor.

    The commitment is salted: who signs one content anew with another nonce gives another contribution, with a budget of its
    own. What a budget bounds is what is learned of one signed descriptor.

    Raises:
        LeafRefused: code DUPLICATE_CONTENT.
    """
    if found.content in contents:
        sentence = "another descriptor with this very commitment to a content was admitted before"
        raise LeafRefused("DUPLICATE_CONTENT", f"{sentence}; one commitment has one budget", seq=seq)
