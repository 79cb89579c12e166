"""Mutations of valid attestations, a million of them: none may pass.

    python -m tests.attacks.mutations --count 1000000 --seed 1

Originals are attestations of two contributors for two corpora, among them some whose integers, digests, nonces and salts hold
bytes that look like the heads of other fields. Every mutant is judged by `decide`, and again by a `Gate` that has just admitted
the originals, so that whatever it remembers of them is there to be confused with. The mutant's content is whatever its opening
claims. A mutant fails the run if

* it is admitted, unless descriptor, signature and opening are byte for byte an original and the content is the original's own;
* it is refused for a reason that is looked at after the signature, which means that the signature passed;
* `decide` and the `Gate` do not give the same code and sentence.
"""

import argparse
import hashlib
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from attest import cbor, sign1
from attest.attestation import Attestation
from attest.corpus import Item, Locator
from attest.errors import AttestError
from attest.gate import Admission, Gate, Seen, decide
from attest.gate.admission import Admitted
from attest.gate.reading import Verified
from attest.keys import ed25519
from tests.attacks.scene import (
    OPENED,
    commitments,
    descriptor,
    envelope,
    header_fields,
    issuer_of,
    opening,
    sealed,
    with_fields,
)
from tests.worlds.gate import ALICE, BOB, CORPUS, NOW, OTHER_CORPUS, make_policy, make_registry

BATCH = 500
"""Mutants between two appearances of all originals."""

BEFORE_THE_SIGNATURE = {
    *("SIZE", "CBOR", "CBOR_NONCANONICAL", "HEADER", "SCHEMA", "TYPE", "RANGE", "WINDOW"),
    *("PURPOSE", "PUBLIC_LENGTH", "OPENING"),
    *("KEY_UNKNOWN", "KEY_WEAK", "KEY_REVOKED", "KEY_NOT_VALID", "SIG_BAD"),
}
"""Codes that do not imply that a signature was found good."""

CONTENT_HEAD = b"\x07\x58\x20"
"""Key and head of the commitment to the content in a descriptor."""

NONCE_HEAD, HASH_HEAD = b"\x01\x50", b"\x02\x58\x20"
"""Keys and heads of nonce and content hash in an opening."""

HEADS = (
    *(CONTENT_HEAD, NONCE_HEAD, HASH_HEAD),
    *(b"\x58\x20", b"\x50", b"\xac", b"\x0b\x71", b"\x08\x1a", b"\x58\x40", b"\xd2\x84"),
)


@dataclass(frozen=True)
class Original:
    """A valid attestation, the content it was made for, and its corpus."""

    attestation: Attestation
    content_hash: bytes
    corpus: str

    @property
    def whole(self) -> tuple[bytes, bytes, bytes, bytes]:
        """What makes it this one and no other."""
        return (*parts_of(self.attestation), self.content_hash)


def parts_of(attestation: Attestation) -> tuple[bytes, bytes, bytes]:
    """All that an attestation consists of."""
    return attestation.descriptor, attestation.sign1, attestation.opening


@dataclass(frozen=True)
class Mutant:
    """Something that nobody signed, or not for this place."""

    kind: str
    attestation: Attestation
    corpus: str


@dataclass
class Report:
    """What became of the mutants."""

    by_code: Counter[str] = field(default_factory=Counter)
    by_kind: Counter[str] = field(default_factory=Counter)
    originals: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Mutants that differ from every original."""
        return sum(self.by_code.values())


# --- originals ---------------------------------------------------------------------------------------------------------

TRICKY: list[dict[Any, Any]] = [
    {},
    {"principal": "person-7", 13: 3, 16: ["train"]},
    {6: 0x07_58_20_01_50_01},
    {8: 0x6B075820},
    {12: 0x075820},
    {"nonce": HASH_HEAD + bytes(13)},
    {"nonce": NONCE_HEAD * 8},
    {"nonce": b"\x04" + b"\x65" + b"alice" + bytes(9)},
    {"content hash": NONCE_HEAD + bytes(14) + NONCE_HEAD + bytes(14)},
    {"content hash": HASH_HEAD + bytes(29)},
    {"content hash": bytes(29) + HASH_HEAD, "nonce": bytes(14) + NONCE_HEAD},
    {"salts": (NONCE_HEAD + bytes(14)) * 3},
    {"salts": HASH_HEAD + bytes(29) + b"\x04\x65alice" + bytes(9)},
]
"""Fields of the originals, by number in the descriptor and by name in the opening; most of them hold bytes that look like the
head of the commitment to the content, of the content hash or of the nonce."""


COPIES = 3
"""Originals that differ in content, nonce and signature alone: the gate learns the form of the second, and uses it after."""


def make_originals() -> list[Original]:
    """Every tricky set of fields some times over, by each contributor and for each corpus."""
    originals = []
    for corpus in (CORPUS, OTHER_CORPUS):
        for name, key, klass in (("alice", ALICE, "sensitive"), ("bob", BOB, "open")):
            raw = key.public_key().public_bytes_raw()
            for number, changes in enumerate(TRICKY * COPIES):
                salt = f"{corpus} {name} {number}".encode()
                nonce = hashlib.sha256(b"nonce " + salt).digest()[:16]
                said = {"contributor": name, 4: klass, 11: corpus, "content hash": hashlib.sha256(salt).digest()} | changes
                if "content hash" in changes:
                    said["content hash"] = _salted(changes["content hash"], salt)
                payload, opened = descriptor(said, nonce=nonce), opening(said, nonce=nonce)
                attestation = sealed(payload, cbor.encode(header_fields(payload, raw)), key, opened)
                originals.append(Original(attestation, said["content hash"], corpus))
    return originals


def _salted(digest: bytes, salt: bytes) -> bytes:
    """A digest with eight bytes of its zeros made its own."""
    at = digest.index(bytes(8))
    return digest[:at] + hashlib.sha256(salt).digest()[:8] + digest[at + 8 :]


# --- mutations ---------------------------------------------------------------------------------------------------------


class Mutator:
    """Makes mutants, the same ones for the same seed."""

    def __init__(self, originals: list[Original], seed: int) -> None:
        self._rng = random.Random(seed)
        self._originals = originals
        self._kinds: list[Callable[[Original], Attestation]] = [
            self._bit_flip,
            self._byte_edit,
            self._insertion,
            self._deletion,
            self._truncation,
            self._splice,
            self._swap,
            self._length_head,
            self._field,
            self._header_field,
            self._malleated,
            self._reordered,
            self._equal_length,
            self._false_heads,
            self._moved_window,
            self._crossed_parts,
            self._opening_of_another,
            self._reopened,
        ]

    def __iter__(self) -> Iterator[Mutant]:
        while True:
            for make in self._kinds:
                original = self._rng.choice(self._originals)
                attestation = make(original)
                corpus = original.corpus if self._rng.random() < 0.9 else self._rng.choice((CORPUS, OTHER_CORPUS))
                yield Mutant(make.__name__.strip("_").replace("_", " "), attestation, corpus)

    def _other(self) -> Original:
        return self._rng.choice(self._originals)

    def _either(self, original: Original, change: Callable[[bytes], bytes]) -> Attestation:
        """Change the message, the opening, the descriptor, or the descriptor under a header that names it again."""
        found, choice = original.attestation, self._rng.randrange(4)
        if choice == 0:
            return replace(found, sign1=change(found.sign1))
        if choice == 1:
            return replace(found, opening=change(found.opening))
        changed = change(found.descriptor)
        return self._renamed(changed, found) if choice == 2 else replace(found, descriptor=changed)

    @staticmethod
    def _renamed(descriptor: bytes, source: Attestation) -> Attestation:
        """The signature of `source` under a header with subject and issuer of another descriptor: what a forger would send."""
        message = source.sign1
        for name in (sign1.subject_of, issuer_of):
            message = message.replace(name(source.descriptor).encode(), name(descriptor).encode())
        return Attestation(descriptor, message, source.opening)

    def _bit_flip(self, original: Original) -> Attestation:
        def change(data: bytes) -> bytes:
            changed = bytearray(data)
            for _ in range(self._rng.choice((1, 1, 1, 2, 3))):
                changed[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
            return bytes(changed)

        return self._either(original, change)

    def _byte_edit(self, original: Original) -> Attestation:
        def change(data: bytes) -> bytes:
            changed = bytearray(data)
            for _ in range(self._rng.choice((1, 1, 2, 4))):
                changed[self._rng.randrange(len(data))] = self._rng.randrange(256)
            return bytes(changed)

        return self._either(original, change)

    def _insertion(self, original: Original) -> Attestation:
        def change(data: bytes) -> bytes:
            at = self._rng.randrange(len(data) + 1)
            return data[:at] + self._rng.randbytes(self._rng.choice((1, 1, 2, 16))) + data[at:]

        return self._either(original, change)

    def _deletion(self, original: Original) -> Attestation:
        def change(data: bytes) -> bytes:
            at = self._rng.randrange(len(data))
            return data[:at] + data[at + self._rng.choice((1, 1, 2, 16)) :]

        return self._either(original, change)

    def _truncation(self, original: Original) -> Attestation:
        return self._either(original, lambda data: data[: self._rng.randrange(len(data))])

    def _splice(self, original: Original) -> Attestation:
        """The start of one and the end of another."""
        one, two = original.attestation, self._other().attestation
        at = self._rng.randrange(1, len(one.descriptor))
        descriptor = one.descriptor[:at] + two.descriptor[at:]
        at = self._rng.randrange(1, len(one.sign1))
        message = one.sign1[:at] + two.sign1[at:]
        at = self._rng.randrange(1, len(one.opening))
        opened = one.opening[:at] + two.opening[at:]
        choice = self._rng.randrange(6)
        if choice == 0:
            return replace(one, descriptor=descriptor)
        if choice == 1:
            return replace(one, sign1=message)
        if choice == 2:
            return replace(one, opening=opened)
        spliced = Attestation(descriptor, message, opened)
        return [self._renamed(descriptor, one), replace(spliced, opening=one.opening), spliced][choice - 3]

    def _swap(self, original: Original) -> Attestation:
        """Descriptor, header, signature and opening of up to three attestations."""
        one, two, three = original.attestation, self._other().attestation, self._other().attestation
        header = one.sign1[:-64] if self._rng.randrange(2) else two.sign1[:-64]
        opened = self._rng.choice((one.opening, one.opening, two.opening, three.opening))
        mixed = Attestation(one.descriptor, header + three.sign1[-64:], opened)
        return self._renamed(one.descriptor, replace(mixed, descriptor=two.descriptor)) if self._rng.randrange(2) else mixed

    def _length_head(self, original: Original) -> Attestation:
        """The head of one item made longer, shorter, of another type, or of another length."""

        def change(data: bytes) -> bytes:
            at = self._rng.choice(_item_starts(data))
            head, choice = data[at], self._rng.randrange(5)
            major, info = head & 0xE0, head & 31
            if choice == 0 and info < 24:
                return data[:at] + bytes((major | 24, info)) + data[at + 1 :]
            if choice == 1:
                return data[:at] + bytes((major | (info + 1) % 32,)) + data[at + 1 :]
            if choice == 2:
                return data[:at] + bytes((major | (info - 1) % 32,)) + data[at + 1 :]
            if choice == 3:
                return data[:at] + bytes(((head + 32) % 256,)) + data[at + 1 :]
            return data[: at + 1] + bytes(((data[at + 1] + self._rng.choice((-1, 1))) % 256,)) + data[at + 2 :]

        return self._either(original, change)

    def _field(self, original: Original) -> Attestation:
        """One or two fields replaced and the descriptor encoded again; nobody signs it again."""
        fields, theirs = (cbor.decode(o.attestation.descriptor) for o in (original, self._other()))
        for _ in range(self._rng.choice((1, 1, 2))):
            key = self._rng.randrange(1, 18)
            fields[key] = self._value(fields.get(key), theirs.get(key))
            if fields[key] is None:
                del fields[key]
        descriptor = cbor.encode(fields)
        return self._renamed(descriptor, original.attestation)

    def _value(self, old: Any, theirs: Any) -> Any:
        choice = self._rng.randrange(6)
        if choice == 0:
            return theirs
        if type(old) is int and choice < 5:
            return max(0, old + self._rng.choice((-1, 1, -1000, 1000, 10**6, -(10**6), 10**12)))
        if type(old) is bytes and choice < 5:
            return self._rng.randbytes(len(old))
        if type(old) is str and choice < 5:
            return self._rng.choice(
                (old + "a", old[:-1], old.upper(), "bob", "alice", "open", "sensitive", CORPUS, OTHER_CORPUS)
            )
        return self._rng.choice((None, True, 0, 1, -1, 1.0, "", b"", [], {}, 2**62))

    def _header_field(self, original: Original) -> Attestation:
        """One field of the protected header replaced; the signature stays."""
        found = original.attestation
        fields = cbor.decode(cbor.decode(found.sign1[1:])[0])
        theirs = cbor.decode(cbor.decode(self._other().attestation.sign1[1:])[0])
        key = self._rng.choice((1, 2, 3, 4, 15, 15, 16, 99, "alg"))
        if key == 15:
            claim = self._rng.choice((1, 2, 3))
            fields[15] = with_fields(fields[15], {claim: self._value(fields[15].get(claim), theirs[15].get(claim))})
        else:
            fields[key] = self._value(fields.get(key), theirs.get(key))
        return replace(found, sign1=envelope(cbor.encode(fields), found.sign1[-64:]))

    def _malleated(self, original: Original) -> Attestation:
        """Other encodings of S, other signs and points for R, R and S of two signatures."""
        found, choice = original.attestation, self._rng.randrange(6)
        r, s = found.sign1[-64:-32], int.from_bytes(found.sign1[-32:], "little")
        if choice == 0:
            s = (s + self._rng.randrange(1, 16) * ed25519.L) % 2**256
        elif choice == 1:
            s = ed25519.L - s
        elif choice == 2:
            s ^= 1 << self._rng.randrange(252, 256)
        elif choice == 3:
            r = bytes(31) + b"\x80" if self._rng.randrange(2) else r[:31] + bytes((r[31] ^ 0x80,))
        elif choice == 4:
            r = self._other().attestation.sign1[-64:-32]
        else:
            r, s = b"\x01" + bytes(31), 0
        return replace(found, sign1=found.sign1[:-64] + r + s.to_bytes(32, "little"))

    def _reordered(self, original: Original) -> Attestation:
        """The pairs of a map in another order, or one of them twice."""

        def shuffled(data: bytes) -> bytes:
            pairs = [cbor.encode(key) + cbor.encode(value) for key, value in cbor.decode(data).items()]
            if self._rng.randrange(2):
                one, two = self._rng.sample(range(len(pairs)), 2)
                pairs[one], pairs[two] = pairs[two], pairs[one]
            else:
                pairs.insert(self._rng.randrange(len(pairs)), self._rng.choice(pairs))
            return bytes((0xA0 | len(pairs),)) + b"".join(pairs)

        found, choice = original.attestation, self._rng.randrange(3)
        if choice == 0:
            return self._renamed(shuffled(found.descriptor), found)
        if choice == 1:
            return replace(found, opening=shuffled(found.opening))
        protected = shuffled(cbor.decode(found.sign1[1:])[0])
        return replace(found, sign1=envelope(protected, found.sign1[-64:]))

    # What follows aims at a reader that recognises attestations by the bytes around what contributions differ in.

    def _equal_length(self, original: Original) -> Attestation:
        """A run of bytes replaced by as many others, the rest of descriptor or opening untouched."""
        found = original.attestation
        opened = self._rng.randrange(2)
        data = bytearray(found.opening if opened else found.descriptor)
        length = self._rng.choice((1, 2, 4, 8, 16, 32))
        at = self._rng.randrange(len(data) - length)
        data[at : at + length] = self._rng.choice((self._rng.randbytes(length), bytes(length), b"\xff" * length))
        return replace(found, opening=bytes(data)) if opened else self._renamed(bytes(data), found)

    def _false_heads(self, original: Original) -> Attestation:
        """Bytes that look like heads of fields, written over descriptor or opening or put in."""
        found = original.attestation
        head, opened = self._rng.choice(HEADS), self._rng.randrange(2)
        data = found.opening if opened else found.descriptor
        at = self._rng.randrange(len(data))
        end = at + len(head) if self._rng.randrange(3) else at
        changed = data[:at] + head + data[end:]
        return replace(found, opening=changed) if opened else self._renamed(changed, found)

    def _moved_window(self, original: Original) -> Attestation:
        """What contributions differ in, with its head taken out and put in elsewhere, in its own or in another's."""
        found, source = original.attestation, self._other().attestation
        head, length, opened = self._rng.choice(((CONTENT_HEAD, 35, False), (HASH_HEAD, 35, True), (NONCE_HEAD, 18, True)))
        ours, theirs = (a.opening if opened else a.descriptor for a in (found, source))
        start, own = theirs.index(head), ours.index(head)
        rest = ours[:own] + ours[own + length :] if self._rng.randrange(2) else ours
        at = self._rng.randrange(len(rest) + 1)
        changed = rest[:at] + theirs[start : start + length] + rest[at:]
        return replace(found, opening=changed) if opened else self._renamed(changed, found)

    def _crossed_parts(self, original: Original) -> Attestation:
        """Commitment, content hash, nonce and what lies around them from up to three attestations, under any header."""
        one, two, three = original.attestation, self._other().attestation, self._other().attestation
        opened, second, third = (cbor.decode(a.opening) for a in (one, two, three))
        opened |= {1: third[1], 2: second[2]}
        if self._rng.randrange(4) == 0:
            opened[2] = second[2][:16] + third[1]
        if self._rng.randrange(4) == 0:
            opened[1] = second[2][self._rng.randrange(16) :][:16]
        committed = self._rng.choice((cbor.decode(two.descriptor)[7], commitments(opened)[7]))
        payload = cbor.encode(cbor.decode(one.descriptor) | {7: committed})
        under = self._rng.choice((original, self._other())).attestation
        return replace(self._renamed(payload, under), opening=cbor.encode(opened))

    # What follows aims at the commitments.

    def _opening_of_another(self, original: Original) -> Attestation:
        """A good attestation with the opening of another, with some fields of one, or with none."""
        found, theirs = original.attestation, self._other().attestation.opening
        own = cbor.decode(found.opening)
        mixed = own | {key: value for key, value in cbor.decode(theirs).items() if self._rng.randrange(3) == 0}
        return replace(found, opening=self._rng.choice((theirs, cbor.encode(mixed), b"", b"\xa0", found.opening * 2)))

    def _reopened(self, original: Original) -> Attestation:
        """One or two fields of an opening replaced, and a descriptor that commits to them; nobody signs it again."""
        found = original.attestation
        opened, theirs = (cbor.decode(a.opening) for a in (found, self._other().attestation))
        for _ in range(self._rng.choice((1, 1, 2))):
            key = self._rng.choice(list(OPENED.values()))
            opened[key] = self._value(opened.get(key), theirs.get(key))
            if opened[key] is None:
                del opened[key]
        payload = cbor.encode(cbor.decode(found.descriptor) | commitments(opened))
        return replace(self._renamed(payload, found), opening=cbor.encode(opened))


def _item_starts(data: bytes) -> list[int]:
    """Offsets of the heads of the first items of a descriptor or message, found by reading on from each."""
    at, starts = (1, [0]) if data[0] >> 5 == 5 else (2, [1])
    while at < len(data) - 1:
        try:
            _, end = cbor.decode_prefix(data, at)
        except AttestError:
            break
        starts.append(at)
        at = end
    return starts


def _before_the_signature(outcome: tuple[str, str]) -> bool:
    """Tells whether a code and a sentence do not imply that a signature was found good: of purposes only what is not built."""
    code, sentence = outcome
    return code in BEFORE_THE_SIGNATURE and (code != "PURPOSE" or "not built" in sentence)


# --- judging -----------------------------------------------------------------------------------------------------------


class Judge:
    """Two gates, one for each corpus, that have admitted the originals and remember them."""

    def __init__(self, originals: list[Original], report: Report) -> None:
        registry = make_registry()
        self._registry = registry
        self._policies = {corpus: make_policy(registry, corpus) for corpus in (CORPUS, OTHER_CORPUS)}
        self._gates = {
            corpus: Gate(policy, registry, workers=1, remember=Verified()) for corpus, policy in self._policies.items()
        }
        self._originals = originals
        self._own = {(o.corpus, *o.whole) for o in originals}
        self._genuine = {parts_of(o.attestation) for o in originals}
        self._report = report

    def judge(self, mutants: list[Mutant]) -> None:
        """Judge mutants between originals, each with the content that its opening claims."""
        for corpus in (CORPUS, OTHER_CORPUS):
            originals = [(o.attestation, o.content_hash) for o in self._originals if o.corpus == corpus]
            chosen = [m for m in mutants if m.corpus == corpus]
            offered = [(m.attestation, claimed_content(m.attestation)) for m in chosen]
            outcomes = self._through_the_gate(corpus, [*originals, *offered])
            if any(outcome[0] != "ADMITTED" for outcome in outcomes[: len(originals)]):
                self._report.failures.append(f"an original was refused: {outcomes[: len(originals)]}")
            for mutant, (attestation, content), outcome in zip(chosen, offered, outcomes[len(originals) :], strict=True):
                self._weigh(mutant, attestation, content, outcome)

    def _weigh(self, mutant: Mutant, attestation: Attestation, content: bytes, outcome: tuple[str, str]) -> None:
        corpus = mutant.corpus
        alone = self._alone(corpus, attestation, content)
        if parts_of(attestation) in self._genuine:
            own = (corpus, *parts_of(attestation), content) in self._own
            self._report.originals += 1
            if (alone[0] == "ADMITTED") != own or outcome[0] == "ADMITTED":
                self._fail(mutant, content, f"an original is {alone[0]} alone and {outcome[0]} after itself")
            return
        self._report.by_code[alone[0]] += 1
        self._report.by_kind[mutant.kind] += 1
        if not (_before_the_signature(alone) and _before_the_signature(outcome)):
            self._fail(mutant, content, f"its signature passed: {alone[0]}, {outcome[0]}")
        elif alone != outcome:
            self._fail(mutant, content, f"decide says {alone}, the gate {outcome}")

    def _alone(self, corpus: str, attestation: Attestation, content: bytes) -> tuple[str, str]:
        outcome = decide(attestation, content, policy=self._policies[corpus], registry=self._registry, now=NOW, seen=Seen())
        return ("ADMITTED", "") if isinstance(outcome, Admission) else (str(outcome.code), outcome.sentence)

    def _through_the_gate(self, corpus: str, offered: list[tuple[Attestation, bytes]]) -> list[tuple[str, str]]:
        items = [Item(Locator("x", n, 1), content, attestation) for n, (attestation, content) in enumerate(offered)]
        return [
            ("ADMITTED", "") if isinstance(outcome, Admitted) else (str(outcome.refusal.code), outcome.refusal.sentence)
            for outcome in self._gates[corpus].judge(items, now=NOW)
        ]

    def _fail(self, mutant: Mutant, content: bytes, what: str) -> None:
        self._report.failures.append(
            f"{mutant.kind}, judged for {mutant.corpus}: {what}\n  descriptor {mutant.attestation.descriptor.hex()}\n"
            f"  sign1 {mutant.attestation.sign1.hex()}\n  opening {mutant.attestation.opening.hex()}\n  content {content.hex()}"
        )


def claimed_content(attestation: Attestation) -> bytes:
    """The content hash that an opening claims, however badly: a forger brings the content that fits."""
    opened = attestation.opening
    try:
        found = cbor.decode(opened)[2]
    except (AttestError, LookupError, TypeError):
        found = None
    if type(found) is bytes and len(found) == 32:
        return found
    at = opened.find(HASH_HEAD) + 3
    return opened[at : at + 32].ljust(32, b"\x00")


def run(count: int, seed: int, progress: Callable[[int], None] | None = None) -> Report:
    """Judge `count` mutants that differ from every original."""
    originals, report = make_originals(), Report()
    judge, mutants = Judge(originals, report), iter(Mutator(originals, seed))
    while report.total < count and len(report.failures) < 10:
        judge.judge([next(mutants) for _ in range(min(BATCH, count - report.total))])
        if progress is not None:
            progress(report.total)
    return report


def main() -> int:
    """The command; exit code 1 if any mutant passed."""
    parser = argparse.ArgumentParser(description="Judge mutations of valid attestations; none may pass.")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    started = time.perf_counter()

    def progress(done: int) -> None:
        if done % 50_000 < BATCH and sys.stderr.isatty():
            print(f"{done} judged", end="\r", file=sys.stderr)

    report = run(options.count, options.seed, progress)
    seconds = time.perf_counter() - started
    for title, counts in (("kind of mutation", report.by_kind), ("refused with", report.by_code)):
        print(f"{title}:")
        for name, number in sorted(counts.items(), key=lambda pair: -pair[1]):
            print(f"  {name:<20} {number:>9}")
    print(f"mutants that came out as originals, and were judged as such: {report.originals}")
    admitted = report.by_code["ADMITTED"]
    print(f"{report.total} mutants, {admitted} admitted, {len(report.failures)} failures, seed {options.seed}, {seconds:.0f} s")
    for failure in report.failures:
        print(failure)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
