"""The attacks on the gate that tests try, by the numbers of the design's list: what is tried, what stops it, under which codes.

A test bears the number of its row in its name. The page of the attacks is written from these rows and the tests' names.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Row:
    """An attack, the defence, and the reason codes that tests of the row assert."""

    attack: str
    defence: str
    codes: tuple[str, ...] = ()


ATTESTATION_ROWS: Final = {
    "A1": Row(
        "enrol a small-order or non-canonical key, under which forgeries verify",
        "keys are checked when made, read, enrolled, and before every signature",
        ("KEY_WEAK",),
    ),
    "A2": Row(
        "malleate a signature: S + L, other lengths; sign one descriptor twice",
        "S < L and 64 bytes; repetition is judged by descriptor hash",
        ("SIG_BAD", "REPLAYED"),
    ),
    "A3": Row(
        "keys or commitments with a small-order component, on which verifiers differ",
        "such keys are refused; one cofactorless verification",
        ("KEY_WEAK", "SIG_BAD"),
    ),
    "A4": Row(
        "sign in another's name, or under another's key id",
        "the key is found by contributor; the issuer must be the contributor",
        ("SIG_BAD", "HEADER", "KEY_UNKNOWN"),
    ),
    "A5": Row(
        "offer an attestation with other content",
        "the gate hashes the content itself, and again whenever it is read",
        ("CONTENT_MISMATCH", "CONTENT_MISSING"),
    ),
    "A6": Row("replay in another corpus", "the corpus is signed", ("AUDIENCE",)),
    "A7": Row(
        "present a withdrawal, a policy or a note as an attestation, or the reverse",
        "the type is signed and fixed by the verifier; a note is UTF-8, a Sig_structure begins with 0x84",
        ("HEADER", "SCHEMA", "SIG_BAD", "CBOR"),
    ),
    "A8": Row(
        "another algorithm: absent, unprotected, as text, ES256", "-19 in the protected header, nothing else", ("HEADER",)
    ),
    "A9": Row(
        "`crit`, unknown labels, a filled unprotected header, another envelope",
        "exactly the four labels, an empty map, nil",
        ("HEADER", "CBOR", "CBOR_NONCANONICAL"),
    ),
    "A10": Row(
        "protected bytes or descriptor in another encoding, correctly signed",
        "strict scan before the signature, which is over the received bytes",
        ("CBOR_NONCANONICAL", "CBOR"),
    ),
    "A11": Row(
        "the same content under two contributors or two attestations",
        "content hashes count once per run",
        ("DUPLICATE_CONTENT", "REPLAYED"),
    ),
    "A12": Row(
        "the same record in another spelling, a near duplicate",
        "the gate compares contents byte for byte; a `fingerprint` that the owner gives to `attest.gate.Gate` finds near"
        " copies, none by default",
        ("DUPLICATE_CONTENT",),
    ),
    "A13": Row(
        "flood: many contributions, several keys, several names of one person",
        "caps per contributor, of registry and policy, shared by a principal",
        ("CONTRIBUTOR_CAP", "PRINCIPAL"),
    ),
    "A14": Row(
        "attest sensitive data as public, or have it taken for public",
        "classes are granted per contributor in the registry; a public class admits only who signed the bounds that say public",
        ("CLASS_NOT_GRANTED", "CLASS_UNKNOWN", "BOUNDS_NOT_PUBLIC"),
    ),
    "A15": Row(
        "identifiers that look alike; names that move the cursor or turn a line around",
        "ASCII alphabet without capitals, no normalization; within it, names of one skeleton are refused at enrolment"
        " (LOOK_ALIKE); what others wrote is printed with every character visible",
        ("RANGE", "TYPE"),
    ),
    "A16": Row(
        "a bound looser than the class by 1e-6, or below a floor",
        "integers, both sides checked, equality passes; checked again where bounds become noise, whoever admitted",
        ("CLIP_ABOVE_CLASS", "NOISE_BELOW_CLASS", "CLIP_BELOW_FLOOR", "NOISE_BELOW_FLOOR", "EXAMPLES"),
    ),
    "A17": Row(
        "NaN as a bound",
        "no floats in a descriptor; elsewhere finite, and compared as `not (x >= floor)`",
        ("RANGE", "TYPE"),
    ),
    "A18": Row(
        "infinities, zero, negatives, booleans, floats, texts, bignums for numbers",
        "exact types and ranges per field",
        ("TYPE", "RANGE", "CBOR_NONCANONICAL"),
    ),
    "A19": Row(
        "huge, deep or lying input",
        "sizes first, then counts against the bytes left, depth 8",
        ("SIZE", "CBOR", "CBOR_NONCANONICAL"),
    ),
    "A20": Row(
        "validity: at its edges, empty, too long, in milliseconds",
        "half-open, whole seconds, longest window of class and policy",
        ("NOT_YET_VALID", "EXPIRED", "WINDOW", "RANGE", "TYPE"),
    ),
    "A21": Row(
        "set the clock back, or far ahead, so that everything expires; date leaves as it suits",
        "one reading per batch, recorded; more than 60 s back stops, more than 14 days ahead of the last leaf asks"
        " ([Ledger](ledger.md#times)); leaves never run back but at a CLOCK leaf, and do not lie ahead of the auditor's clock",
        ("CLOCK",),
    ),
    "A22": Row(
        "expiry or withdrawal while a verdict is remembered",
        "both are judged again before every charge",
        ("EXPIRED", "WITHDRAWN"),
    ),
    "A23": Row(
        "poison what the gate remembers, or what it keeps beside the ledger",
        "remembered under a keyed digest of the whole attestation and its content; the file has a code under a key of the"
        " ledger's (`tests/attest/test_reading.py`)",
        ("SIG_BAD", "HEADER"),
    ),
    "A24": Row(
        "use a key revoked after admission; keep revocations away by an entry dated ahead",
        "the gate and every charge ask the registry again; earlier charges stand; an older registry than one that was used"
        " before is refused (REGISTRY_OLDER); a registry ahead of the clock is refused, and its owner can take the time back",
        ("KEY_REVOKED", "CLOCK"),
    ),
    "A25": Row(
        "swap, change, drop or blow up the opening beside an attestation; copy commitments of another",
        "every commitment is opened each time, strictly; domains and salts of one length leave one reading",
        ("OPENING", "SIZE", "CBOR", "CBOR_NONCANONICAL", "TYPE", "RANGE"),
    ),
    "A26": Row(
        "sign for a purpose that no version serves, or a public length that no class offers",
        "both have their fields, and are refused by name",
        ("PURPOSE", "PUBLIC_LENGTH"),
    ),
    "A27": Row(
        "confirm a guessed content, contributor, data class or principal from what an export shows of attestations and"
        " registry",
        "salted commitments; nonces, salts and `registry.names` are in no export",
    ),
    "A28": Row(
        "lay a record beside a content that was never attested, or that leads to somebody else's contribution; sign it with"
        " another key, for another purpose, or with one that was revoked",
        "a record is signed as an anchor and as nothing else, strict, under a key that was valid then; with the nonce it opens"
        " to one content",
        ("SIG_BAD", "HEADER", "KEY_UNKNOWN", "KEY_NOT_VALID", "CONTENT_MISMATCH"),
    ),
    "A29": Row(
        "strip, swap or append a purpose that was signed; present consent to train to generation, or the reverse; reuse what a"
        " gate kept of the other use",
        "purposes are in the signed bytes; gate, trainer and auditor each ask contributor and class for the use, and what is"
        " kept is kept for one use",
        ("PURPOSE", "SIG_BAD", "HEADER"),
    ),
}
"""Rows of the list of attacks on attestations, by number."""
