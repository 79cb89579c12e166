"""Mutations of valid attestations, a million of them: none may pass.

    python -m tests.attacks.mutations --count 1000000 --seed 1

Originals are attestations of two contributors for two corpora, among them some whose integers, digests and nonces hold bytes
that look like the heads of other fields. Every mutant is judged by `decide`, and again by a `Gate` that has just admitted the
originals, so that whatever it remembers of them is there to be confused with. The mutant's content is whatever its descriptor
claims. A mutant fails the run if

* it is admitted, unless descriptor and signature are byte for byte an original and the content is the original's own;
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
from dataclasses import dataclass, field
from typing import Any

from attest import cbor, curve25519, sign1
from attest.admission import Admitted
from attest.attestation import Attestation
from attest.corpus import Item, Locator
from attest.errors import AttestError
from attest.gate import Admission, Gate, Seen, decide
from tests.attacks.scene import (
    ALICE,
    BOB,
    CORPUS,
    NOW,
    OTHER_CORPUS,
    descriptor_fields,
    envelope,
    header_fields,
    make_policy,
    make_registry,
    sealed,
    with_fields,
)

BATCH = 500
"""Mutants between two appearances of all originals."""

BEFORE_THE_SIGNATURE = {
    *("SIZE", "CBOR", "CBOR_NONCANONICAL", "HEADER", "SCHEMA", "TYPE", "RANGE", "WINDOW"),
    *("KEY_UNKNOWN", "KEY_WEAK", "KEY_REVOKED", "KEY_NOT_VALID", "SIG_BAD"),
}
"""Codes that do not imply that a signature was found good."""

CONTENT_HEAD, NONCE_HEAD = b"\x07\x58\x20", b"\x0a\x50"
HEADS = (CONTENT_HEAD, NONCE_HEAD, b"\x58\x20", b"\x50", b"\xac", b"\x0b\x71", b"\x08\x1a", b"\x58\x40", b"\xd2\x84")


@dataclass(frozen=True)
class Original:
    """A valid attestation, the content it was made for, and its corpus."""

    attestation: Attestation
    content_hash: bytes
    corpus: str

    @property
    def pair(self) -> tuple[bytes, bytes, bytes]:
        """What makes it this one and no other."""
        return self.attestation.descriptor, self.attestation.sign1, self.content_hash


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

TRICKY: list[dict[int, Any]] = [
    {},
    {13: "person-7", 14: 3},
    {6: 0x07_58_20_0A_50_01},
    {8: 0x6B0A5000},
    {8: 0x6B075820},
    {10: CONTENT_HEAD + bytes(13)},
    {10: NONCE_HEAD * 8},
    {10: b"\x0b" + b"\x71" + b"clinic-notes-2"},
    {12: 0x0A50},
    {7: NONCE_HEAD + bytes(14) + NONCE_HEAD + bytes(14)},
    {7: CONTENT_HEAD + bytes(29)},
    {7: bytes(29) + CONTENT_HEAD, 10: bytes(14) + NONCE_HEAD},
]
"""Fields of the originals; most of them hold bytes that look like the head of the content hash or of the nonce."""


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
                fields = descriptor_fields(salt, nonce) | {2: name, 4: klass, 11: corpus} | changes
                if 7 in changes:
                    fields[7] = _salted(changes[7], salt)
                payload = cbor.encode(fields)
                protected = cbor.encode(header_fields(payload, raw, name))
                originals.append(Original(sealed(payload, protected, key), fields[7], corpus))
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
        """Change the descriptor, the message, or the descriptor under a header that names it again."""
        found, choice = original.attestation, self._rng.randrange(3)
        if choice == 0:
            return Attestation(found.descriptor, change(found.sign1))
        changed = change(found.descriptor)
        return self._renamed(changed, found) if choice == 1 else Attestation(changed, found.sign1)

    @staticmethod
    def _renamed(descriptor: bytes, source: Attestation) -> Attestation:
        """The signature of `source` under its header with the subject of another descriptor: what a forger would send."""
        old, new = (sign1.subject_of(payload).encode() for payload in (source.descriptor, descriptor))
        return Attestation(descriptor, source.sign1.replace(old, new))

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
        choice = self._rng.randrange(4)
        if choice == 0:
            return Attestation(descriptor, one.sign1)
        if choice == 1:
            return Attestation(one.descriptor, message)
        return self._renamed(descriptor, one) if choice == 2 else Attestation(descriptor, message)

    def _swap(self, original: Original) -> Attestation:
        """Descriptor, header and signature of up to three attestations."""
        one, two, three = original.attestation, self._other().attestation, self._other().attestation
        header = one.sign1[:-64] if self._rng.randrange(2) else two.sign1[:-64]
        mixed = Attestation(one.descriptor, header + three.sign1[-64:])
        return self._renamed(one.descriptor, Attestation(two.descriptor, mixed.sign1)) if self._rng.randrange(2) else mixed

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
            key = self._rng.randrange(1, 16)
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
        return Attestation(found.descriptor, envelope(cbor.encode(fields), found.sign1[-64:]))

    def _malleated(self, original: Original) -> Attestation:
        """Other encodings of S, other signs and points for R, R and S of two signatures."""
        found, choice = original.attestation, self._rng.randrange(6)
        r, s = found.sign1[-64:-32], int.from_bytes(found.sign1[-32:], "little")
        if choice == 0:
            s = (s + self._rng.randrange(1, 16) * curve25519.L) % 2**256
        elif choice == 1:
            s = curve25519.L - s
        elif choice == 2:
            s ^= 1 << self._rng.randrange(252, 256)
        elif choice == 3:
            r = bytes(31) + b"\x80" if self._rng.randrange(2) else r[:31] + bytes((r[31] ^ 0x80,))
        elif choice == 4:
            r = self._other().attestation.sign1[-64:-32]
        else:
            r, s = b"\x01" + bytes(31), 0
        return Attestation(found.descriptor, found.sign1[:-64] + r + s.to_bytes(32, "little"))

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

        found = original.attestation
        if self._rng.randrange(2):
            return self._renamed(shuffled(found.descriptor), found)
        protected = shuffled(cbor.decode(found.sign1[1:])[0])
        return Attestation(found.descriptor, envelope(protected, found.sign1[-64:]))

    # What follows aims at a reader that recognises attestations by the bytes around content hash and nonce.

    def _equal_length(self, original: Original) -> Attestation:
        """A run of bytes replaced by as many others, the rest of the descriptor untouched."""
        found = original.attestation
        data = bytearray(found.descriptor)
        length = self._rng.choice((1, 2, 4, 8, 16, 32))
        at = self._rng.randrange(len(data) - length)
        data[at : at + length] = self._rng.choice((self._rng.randbytes(length), bytes(length), b"\xff" * length))
        return self._renamed(bytes(data), found)

    def _false_heads(self, original: Original) -> Attestation:
        """Bytes that look like heads of fields, written over the descriptor or put in."""
        found = original.attestation
        head = self._rng.choice(HEADS)
        at = self._rng.randrange(len(found.descriptor))
        end = at + len(head) if self._rng.randrange(3) else at
        return self._renamed(found.descriptor[:at] + head + found.descriptor[end:], found)

    def _moved_window(self, original: Original) -> Attestation:
        """The content hash or nonce with its head taken out and put in elsewhere, in its own or in another's descriptor."""
        found, source = original.attestation, self._other().attestation
        head, length = self._rng.choice(((CONTENT_HEAD, 35), (NONCE_HEAD, 18)))
        start = source.descriptor.index(head)
        window = source.descriptor[start : start + length]
        own = found.descriptor.index(head)
        rest = found.descriptor[:own] + found.descriptor[own + length :] if self._rng.randrange(2) else found.descriptor
        at = self._rng.randrange(len(rest) + 1)
        return self._renamed(rest[:at] + window + rest[at:], found)

    def _crossed_parts(self, original: Original) -> Attestation:
        """Content hash, nonce and what lies around them from up to three attestations, under any of their headers."""
        one, two, three = (cbor.decode(o.attestation.descriptor) for o in (original, self._other(), self._other()))
        crossed = one | {7: two[7], 10: three[10]}
        if self._rng.randrange(4) == 0:
            crossed[7] = two[7][:16] + three[10]
        if self._rng.randrange(4) == 0:
            crossed[10] = two[7][self._rng.randrange(16) :][:16]
        descriptor = cbor.encode(crossed)
        return self._renamed(descriptor, self._rng.choice((original, self._other())).attestation)


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


# --- judging -----------------------------------------------------------------------------------------------------------


class Judge:
    """Two gates, one for each corpus, that have admitted the originals and remember them."""

    def __init__(self, originals: list[Original], report: Report) -> None:
        registry = make_registry()
        self._registry = registry
        self._policies = {corpus: make_policy(registry, corpus) for corpus in (CORPUS, OTHER_CORPUS)}
        self._gates = {corpus: Gate(policy, registry, workers=1, remember=True) for corpus, policy in self._policies.items()}
        self._originals = originals
        self._own = {(corpus, *o.pair) for o in originals for corpus in [o.corpus]}
        self._pairs = {o.pair[:2] for o in originals}
        self._report = report

    def judge(self, mutants: list[Mutant]) -> None:
        """Judge mutants between originals, each with the content that its descriptor claims."""
        for corpus in (CORPUS, OTHER_CORPUS):
            originals = [(o.attestation, o.content_hash) for o in self._originals if o.corpus == corpus]
            chosen = [m for m in mutants if m.corpus == corpus]
            offered = [(m.attestation, claimed_content(m.attestation.descriptor)) for m in chosen]
            outcomes = self._through_the_gate(corpus, [*originals, *offered])
            if any(outcome[0] != "ADMITTED" for outcome in outcomes[: len(originals)]):
                self._report.failures.append(f"an original was refused: {outcomes[: len(originals)]}")
            for mutant, (attestation, content), outcome in zip(chosen, offered, outcomes[len(originals) :], strict=True):
                self._weigh(mutant, attestation, content, outcome)

    def _weigh(self, mutant: Mutant, attestation: Attestation, content: bytes, outcome: tuple[str, str]) -> None:
        corpus = mutant.corpus
        alone = self._alone(corpus, attestation, content)
        if (attestation.descriptor, attestation.sign1) in self._pairs:
            own = (corpus, attestation.descriptor, attestation.sign1, content) in self._own
            self._report.originals += 1
            if (alone[0] == "ADMITTED") != own or outcome[0] == "ADMITTED":
                self._fail(mutant, content, f"an original is {alone[0]} alone and {outcome[0]} after itself")
            return
        self._report.by_code[alone[0]] += 1
        self._report.by_kind[mutant.kind] += 1
        if alone[0] not in BEFORE_THE_SIGNATURE or outcome[0] not in BEFORE_THE_SIGNATURE:
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
            f"  sign1 {mutant.attestation.sign1.hex()}\n  content {content.hex()}"
        )


def claimed_content(descriptor: bytes) -> bytes:
    """The content hash that a descriptor claims, however badly: a forger brings the content that fits."""
    try:
        found = cbor.decode(descriptor)[7]
    except (AttestError, LookupError, TypeError):
        found = None
    if type(found) is bytes and len(found) == 32:
        return found
    at = descriptor.find(CONTENT_HEAD) + 3
    return descriptor[at : at + 32].ljust(32, b"\x00")


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
