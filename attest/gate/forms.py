"""Common parts of attestations, so that most of them are compared with one that passed instead of being decoded.

A `Pattern` is what attestations of the same terms share, whoever signed them and when: they differ in the four commitments, the
two times, the opening, the key and the signature. A `Form` is what attestations share that one contributor signed in one go:
they differ in content, nonce and signature alone. Patterns are learned from attestations that `attest.gate.checks.examine` let
pass; a form is made of a pattern and of the first attestation of that form, by checking all in which it differs.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidSignature

from attest import cbor
from attest.attestation import SIGNATURE_SIZE, Attestation, CommonTerms, Framing, FramingPattern
from attest.descriptor import SALTS_SIZE, SCHEMA, Parts
from attest.errors import AttestError
from attest.gate.admission import Passed
from attest.keys import verifier
from attest.policy import Policy
from attest.registry import Registry
from attest.schema.plain import COMMITMENT_SIZE, CONTRIBUTOR, DATA_CLASS, PRINCIPAL, SALT_SIZE, check_id, commit, commit_content

_CONTRIBUTOR_AT: Final = len(cbor.encode({1: SCHEMA})) + 3
_DATA_CLASS_AT: Final = _CONTRIBUTOR_AT + COMMITMENT_SIZE + 3
"""Offsets of the two commitments in a descriptor: behind the head of the map, the schema, and the heads of their fields."""

_LEAST_TIME: Final = 1 << 16
"""The least integer that takes four bytes behind its head; all times since 1970 but those of its first day do until 2106."""

_SALTS: Final = b"\x03\x58\x30"
"""Key 3 of an opening and the head of 48 bytes."""


class Form:
    """Holds what is the same for attestations that share all but content, nonce and signature, after the first was checked.

    A descriptor and an opening whose `rest` equals that of a pair that passed hold the same values in every field but the
    commitment to the content, the nonce and the content hash: byte strings of fixed length, which take part in no check but
    that of the content. So decoding, the other commitments, audience, validity, class, purposes, bounds and the choice of the
    key turn out the same; the content's commitment is computed again. The message that the framing makes of the descriptor's
    digest and 64 bytes is the only one that the strict reader accepts for that descriptor and key. What is left is the
    signature, which is verified over the bytes received, under a key that was tested first.
    """

    __slots__ = ("_admissibility_class", "_contributor", "_framing", "_key_id", "_raw", "_verify")

    def __init__(self, framing: Framing, raw: bytes, key_id: bytes, contributor: str, admissibility_class: str) -> None:
        self._framing, self._raw, self._key_id = framing, raw, key_id
        self._contributor, self._admissibility_class = contributor, admissibility_class
        self._verify: Callable[[bytes, bytes], None] | None = None

    def match(self, descriptor: bytes, message: bytes, parts: Parts, verified: bool) -> Passed | None:
        """Returns `Passed` for a descriptor of this form whose message verifies; None leaves the judgement to `examine`."""
        if commit_content(parts.content_hash, parts.nonce) != parts.content:
            return None
        digest, signature, framing = hashlib.sha256(descriptor).digest(), message[-SIGNATURE_SIZE:], self._framing
        subject = b"sha-256:" + digest.hex().encode("ascii")
        if message != framing.message(subject, signature):
            return None
        if not verified:
            try:
                if self._verify is None:
                    self._verify = verifier(self._raw)
                self._verify(signature, framing.to_be_signed(descriptor, subject))
            except (InvalidSignature, AttestError):
                return None
        return Passed(digest, framing.digest(descriptor, message), self._key_id, self._contributor, self._admissibility_class)


class Cut(NamedTuple):
    """The parts of a descriptor, cut further where contributors differ.

    Args:
        shared: What is the same for all who sign these terms.
        contributor: Commitment, 32 bytes.
        data_class: Commitment.
        principal: Commitment.
        not_before: First second of validity, 4 bytes.
        not_after: First second after it.
    """

    shared: tuple[bytes, ...]
    contributor: bytes
    data_class: bytes
    principal: bytes
    not_before: bytes
    not_after: bytes

    @classmethod
    def of(cls, parts: Parts) -> "Cut":
        """Cuts at fixed places; whether the fields are there is for `Pattern.learn` to establish."""
        first, second, _, _ = parts.rest
        one, two = _CONTRIBUTOR_AT + COMMITMENT_SIZE, _DATA_CLASS_AT + COMMITMENT_SIZE
        shared = (first[:_CONTRIBUTOR_AT], first[one:_DATA_CLASS_AT], first[two:], second[:2], second[6:8], second[12:15])
        fields = (first[_CONTRIBUTOR_AT:one], first[_DATA_CLASS_AT:two], second[15:47], second[2:6], second[8:12])
        return cls((*shared, second[47:]), *fields)

    def join(self) -> tuple[bytes, bytes]:
        """Returns the bytes of the descriptor before and after the field of the content."""
        head, between, rest, before, after, principal, end = self.shared
        first = (head, self.contributor, between, self.data_class, rest)
        return b"".join(first), b"".join((before, self.not_before, after, self.not_after, principal, self.principal, end))


class Pattern:
    """Holds what attestations of the same terms share, whoever signed them and when, after one of them passed.

    A descriptor whose `Cut` has the `shared` bytes of one that passed is one that the strict decoder accepts, with the same
    values in all fields but four byte strings of 32 bytes and two integers of 4 bytes. So audience, class of the policy,
    purposes, bounds and whatever else the shared fields say turn out the same, under one policy and for one purpose. `form`
    makes every other check anew: opening, commitments, times, contributor, principal, grant and key.
    """

    def __init__(self, framing: FramingPattern, admissibility_class: str, longest: int) -> None:
        self._framing, self._admissibility_class, self._longest = framing, admissibility_class, longest

    @classmethod
    def learn(cls, attestation: Attestation, parts: Parts, passed: Passed, policy: Policy) -> "Pattern | None":
        """Returns the pattern of an attestation that passed; None if what was cut out is not what contributors differ in."""
        signed, rule = attestation.opened().signed, policy.find_class(passed.admissibility_class)
        first, second, third = (os.urandom(COMMITMENT_SIZE) for _ in range(3))
        drawn = Cut(Cut.of(parts).shared, first, second, third, *_drawn_times())
        other = replace(
            signed,
            contributor=drawn.contributor,
            data_class=drawn.data_class,
            principal=drawn.principal,
            not_before=int.from_bytes(drawn.not_before, "big"),
            not_after=int.from_bytes(drawn.not_after, "big"),
        )
        rest = (*drawn.join(), *parts.rest[2:])
        if rule is None or Parts(rest, signed.content, parts.nonce, parts.content_hash).join()[0] != other.to_cbor():
            return None
        longest = policy.max_window if rule.max_window is None else min(rule.max_window, policy.max_window)
        return cls(FramingPattern(CommonTerms.of(signed, passed.key_id)), rule.name, longest)

    def form(self, parts: Parts, cut: Cut, message: bytes, registry: Registry, now: int) -> Form | None:
        """Returns the form of an attestation of this pattern; None leaves the judgement to `examine`.

        Guarantee: where a form is returned, `examine` refuses no attestation of it for anything but its content, its message or
        its key.

        Args:
            cut: The descriptor's `Cut`, whose shared bytes are this pattern's.
            message: The COSE_Sign1 message; its key id chooses the key.
        """
        opened = _opened(parts, cut)
        not_before, not_after = int.from_bytes(cut.not_before, "big"), int.from_bytes(cut.not_after, "big")
        if opened is None or not _LEAST_TIME <= not_before <= now < not_after <= not_before + self._longest:
            return None
        name, principal = opened
        contributor, key_id = registry.find(name), self._framing.key_id(message)
        if contributor is None or self._admissibility_class not in contributor.classes:
            return None
        if principal is not None and contributor.principal not in (None, principal):
            return None
        records = [record for record in contributor.keys if record.key_id == key_id]
        if len(records) != 1 or not records[0].valid(now):
            return None
        framing = self._framing.framing(parts.around_content(), cut.contributor, key_id)
        return Form(framing, records[0].raw, key_id, contributor.name, self._admissibility_class)


def _drawn_times() -> tuple[bytes, bytes]:
    """Returns two times at random, the earlier one first."""
    start = int.from_bytes(os.urandom(3), "big") + _LEAST_TIME
    return start.to_bytes(4, "big"), (start + 1 + int.from_bytes(os.urandom(3), "big")).to_bytes(4, "big")


def _opened(parts: Parts, cut: Cut) -> tuple[str, str | None] | None:
    """Returns the contributor and principal of an opening that opens the commitments other than the content's; None for any
    other bytes."""
    head, tail = parts.rest[2:]
    names_at = len(_SALTS) + SALTS_SIZE
    if tail[: len(_SALTS)] != _SALTS or head not in (b"\xa5", b"\xa6"):
        return None
    texts: list[str] = []
    try:
        at = names_at
        for key in range(4, 4 + head[0] - 0xA3):
            if tail[at] != key:
                return None
            length, at = tail[at + 1] - 0x60, at + 2
            if length == 24:  # The head that says that the length stands in the next byte.
                length, at = tail[at], at + 1
                if length < 24:
                    return None
            elif not 0 < length < 24:
                return None
            texts.append(check_id(tail[at : at + length].decode("ascii"), "name"))
            at += length
    except (IndexError, UnicodeDecodeError, AttestError):
        return None
    if at != len(tail):
        return None
    salts = [tail[start : start + SALT_SIZE] for start in range(len(_SALTS), names_at, SALT_SIZE)]
    principal = texts[2] if len(texts) == 3 else None
    said = zip((CONTRIBUTOR, DATA_CLASS, PRINCIPAL), (*texts[:2], principal or ""), salts, strict=True)
    found = tuple(commit(domain, text.encode("ascii"), salt) for domain, text, salt in said)
    return (texts[0], principal) if found == (cut.contributor, cut.data_class, cut.principal) else None
