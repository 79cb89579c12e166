"""Holds generation from contributions to what was signed: the rule of their class, what a token costs by it, and consent.

A rule is copied from a signed policy into the header of a log, so that whoever has an export and the policy compares the two.
From a token to a text, costs are computed from the rule's own whole numbers: a log cannot say that less was spent.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import ClassVar, Final

from attest import sign1
from attest.attestation import Attestation
from attest.descriptor import GENERATE, MAX_COUNT, MAX_MICRO, TRAIN, SignedDescriptor
from attest.descriptor import MAX_SIZE as MAX_DESCRIPTOR
from attest.policy import SignedPolicy
from attest.schema import declared
from attest.schema.plain import utc
from attest.schema.quick import Blob, Count
from ledger.budget.rho import NANO
from ledger.errors import LeafRefused
from ledger.leaves.kinds import ID, SHA256, Checked, as_leaf

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
        """Returns the rule of a class of a signed policy. Raises LeafRefused: code RULE, it has none; LIMIT, the class limits
        what a contribution spends over all runs together, which a budget of texts does not see; REFERENCES, a text of it has
        more references than a leaf names."""
        found = signed.policy.find_class(name)
        rule = None if found is None else found.generation
        if found is None or rule is None:
            has = ", ".join(one.name for one in signed.policy.classes if one.generation is not None) or "none"
            sentence = f"class {name!r:.80} of the policy has no rule of generation"
            raise LeafRefused("RULE", f"{sentence}; classes that have one: {has}")
        if found.max_epsilon_total_micro is not None:
            sentence = f"class {name} limits what a contribution spends over all runs together, which no budget of texts sees"
            raise LeafRefused("LIMIT", f"{sentence}; take a class without max_epsilon_total")
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
class Admitted:
    """Says where a contribution was admitted to generation.

    Attributes:
        seq: position of its REFERENCE leaf. rule: its class. content: the commitment that was signed.
        until: first second at which its attestation is valid no more.
    """

    seq: int
    rule: str
    content: bytes
    until: int


def admitted_by(
    signed_as: Attestation, name: str, rules: Mapping[str, GenerationRule], *, seq: int, time: int
) -> Admitted:
    """Judges a REFERENCE leaf by itself.

    Guarantee: on return its descriptor is one that names the purpose `generate`, the class of the rule, and no limit of epsilon
    over all runs; it is valid at the time of the leaf; and the message is one over exactly this descriptor, by the issuer to
    whom that commits. Whether the message verifies under a key of the contributor is for who has the registry.

    Args:
        signed_as: descriptor and message of the leaf. name: class that the leaf says. seq, time: of the leaf.

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
        sentence = "its contributor limits what it spends over all runs together, and a budget of texts sees no other run"
        raise refused("LIMIT", f"{sentence}; leave it out, or have it signed anew without max_epsilon")
    if not signed.not_before <= time < signed.not_after:
        code = "NOT_YET_VALID" if time < signed.not_before else "EXPIRED"
        sentence = f"its attestation is valid from {utc(signed.not_before)} to {utc(signed.not_after)}"
        raise refused(code, f"{sentence}, not at {utc(time)}")
    if (said.issuer, said.typ, said.subject) != (signed.issuer, sign1.TYP_ATTESTATION, sign1.subject_of(signed_as.descriptor)):
        sentence = f"the message is of type {said.typ!a:.60} by {said.issuer} over {said.subject!a:.90}"
        raise refused("ISSUER", f"{sentence}; the descriptor commits to {signed.issuer}")
    return Admitted(seq, name, signed.content, signed.not_after)


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
