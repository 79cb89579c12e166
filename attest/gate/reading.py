"""Remembers the attestations that a gate verified, for its next reading or for that of another process.

Signatures take nearly all the time of a reading. What is remembered of an attestation is a tag: that its descriptor, message,
opening and content passed once, signature included. It spares the signature and nothing else. The content is hashed again at
each reading; decoding, audience, purpose, class and bounds, validity and revocation at the time of the use, withdrawals,
repetitions and caps are judged again.

The file is the CBOR array `[schema, policy, registry root, largest root, build, purpose]`, the tags in corpus order, 16 bytes
each, and a message authentication code over both. Its key is derived from a private key of whoever judges.
"""

import hashlib
import hmac
import os
import platform
import secrets
from dataclasses import dataclass, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from attest import cbor
from attest.attestation import Attestation
from attest.corpus.digests import DigestTable
from attest.descriptor import TRAIN
from attest.errors import CborError, FileRefused
from attest.files import atomic_write, read_limited
from attest.keys import public_bytes
from attest.policy import SignedPolicy
from attest.registry import Registry

SCHEMA: Final = "dptrain.reading/2"
"""Format of the file, and the domain in which its key is derived."""

SUFFIX: Final = ".reading"
"""Ends the name of such a file: `ledger.db.reading` beside a ledger."""

TAG_SIZE: Final = 16
MAC_SIZE: Final = 32
MAX_SIZE: Final = 256 << 20
"""Bytes of such a file; more than sixteen million contributions."""

_MAX_HEAD: Final = 512


@dataclass(frozen=True, slots=True)
class Context:
    """Says what a reading was made under; under anything else the whole corpus is verified again.

    Args:
        registry: Root of the state of the registry that the corpus was judged against.
        largest: Root of the largest state that was known then.
        purpose: What the contributions were to be used for.
    """

    policy: bytes
    registry: bytes
    largest: bytes
    build: str
    purpose: str = TRAIN

    @classmethod
    def of(
        cls, signed: SignedPolicy, registry: Registry, largest: Registry | None = None, *, purpose: str = TRAIN
    ) -> "Context":
        """Returns the context of a reading by this program."""
        return cls(signed.digest, registry.root(), (largest or registry).root(), build_of(), purpose)

    def differs_in(self, other: "Context") -> str:
        """Returns the words for the first thing in which another context differs; "" if it does not."""
        words = (
            *("policy", "state of the registry", "state of the registry as the largest known"),
            *("version of this program", "purpose"),
        )
        found = zip(fields(self), words, strict=True)
        return next((word for field, word in found if getattr(self, field.name) != getattr(other, field.name)), "")


@cache
def build_of() -> str:
    """Returns versions of this package, of Python and of the library that verifies, and a digest of the source of `attest`.

    The source is read as this module is imported. Without one, as in a frozen program, the versions stand alone.
    """
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        data = path.read_bytes()
        digest.update(b"%s\x00%d\x00" % (path.relative_to(root).as_posix().encode(), len(data)) + data)
    return f"{_version('dptrain')} {platform.python_version()} {_version('cryptography')} {digest.hexdigest()}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "-"


build_of()  # while the modules are loaded: what is on disk later may be another version than the one that runs


class Verified:
    """Holds attestations that verified, by tags under a secret of this process; takes 16 bytes each.

    Guarantee: `holds` is true only for a descriptor, message, opening and content that were given to `add` before, all four of
    them, byte for byte. Others are confused with them with probability at most n^2 / 2^129 for n of them, whoever chose them,
    since nobody without the key can compute a tag.

    Args:
        key: 32 secret bytes, fresh ones without. tags: What verified before, under that key.
        purpose: What passes is to be used for; a gate takes what was remembered for its own purpose alone.

    Attributes:
        spared: Signatures of the present reading, or of the last one, that were verified before.
        checked: Attestations of it that passed and had to be verified.
    """

    def __init__(self, key: bytes | None = None, tags: bytes = b"", *, purpose: str = TRAIN) -> None:
        self.purpose = purpose
        self._keyed = hashlib.blake2b(digest_size=TAG_SIZE, key=secrets.token_bytes(32) if key is None else key)
        self._tags = tags
        self._fresh, self._seen = bytearray(), bytearray()
        self._places: DigestTable | None = None
        self._registry: bytes | None = None
        self._at = 0
        self._lengths = (0, 0, 0), b""
        self.spared = self.checked = 0

    def __len__(self) -> int:
        return (len(self._tags) + len(self._fresh)) // TAG_SIZE

    def begin(self, registry: bytes) -> None:
        """Begins a reading of the corpus from its start; under another root of the registry than before, with nothing known."""
        if self._registry not in (None, registry):
            self._tags = b""
        elif self._fresh:
            self._tags += self._fresh
        self._fresh, self._seen, self._places = bytearray(), bytearray(), None
        self._at, self.spared, self.checked, self._registry = 0, 0, 0, registry

    def tag(self, attestation: Attestation, content_hash: bytes) -> bytes:
        """Returns the tag of an attestation whose parts have admissible sizes, with the hash of its content as it was read just
        now."""
        descriptor, message, opening = attestation.descriptor, attestation.sign1, attestation.opening
        sizes = len(descriptor), len(message), len(opening)
        if self._lengths[0] != sizes:
            self._lengths = sizes, b"%d %d %d " % sizes
        keyed = self._keyed.copy()
        keyed.update(b"".join((self._lengths[1], descriptor, message, opening, content_hash)))
        return keyed.digest()

    def holds(self, tag: bytes) -> bool:
        """Tells whether an attestation verified in an earlier reading; fastest in the order of that reading."""
        end = self._at + TAG_SIZE
        if self._tags[self._at : end] == tag:
            self._at = end
            return True
        if not self._tags:
            return False
        if self._places is None:
            self._places = DigestTable(1 << 18, 1 << 15)
            for at in range(0, len(self._tags), TAG_SIZE):
                self._places.set(self._tags[at : at + TAG_SIZE], at)
        place = self._places.get(tag)
        if place is not None:
            self._at = place + TAG_SIZE
        return place is not None

    def add(self, tag: bytes, known: bool) -> None:
        """Takes the tag of an attestation that passed, in corpus order, and what `holds` said of it."""
        self._seen += tag
        if known:
            self.spared += 1
            return
        self.checked += 1
        self._fresh += tag


class KeptReading(Verified):
    """Keeps attestations that verified in a file from one process to the next.

    Guarantee: what the file says is believed only if somebody with the private key wrote it, under this policy, these states of
    the registry, this build and for this purpose; the key of each tag is derived from all of these. A file that was changed in
    any byte, that another key wrote, or that is stale counts as none: everything is verified, and `told` says why. Whoever can
    write the file and has no key can only cost time; an older file of the same context that is put back says what is still
    true.

    What is trusted: the holder of the private key, who could have the gate pass anything without this file. No auditor believes
    it: exports hold what contributors signed, and every signature is verified from there.

    Attributes:
        path: Where the file lies. public_key: Raw public key of whoever keeps it.
    """

    def __init__(self, path: str | os.PathLike[str], private_key: Ed25519PrivateKey, context: Context) -> None:
        """Reads what is kept, if it is there, under the private key of the ledger that the corpus is read for."""
        self.path, self.public_key = Path(path), public_bytes(private_key)
        self._head = cbor.encode([SCHEMA, *(getattr(context, field.name) for field in fields(context))])
        derived = HKDF(SHA256(), 64, None, SCHEMA.encode()).derive(private_key.private_bytes_raw())
        self._mac_key = derived[:32]
        self._why = self._unwritten = ""
        self._before = self._kept(context)
        # A tag of one context is none of another.
        key = hashlib.blake2b(self._head, key=derived[32:], digest_size=32).digest()
        super().__init__(key, self._before, purpose=context.purpose)
        self._registry = context.registry

    @property
    def told(self) -> str:
        """Returns a sentence on what had to be verified again although a reading was kept; "" if nothing had to be."""
        if self._unwritten:
            return f"the reading cannot be kept in {self.path}: {self._unwritten}"
        if self._why:
            return f"the reading kept in {self.path} does not count, {self._why}: all signatures were verified"
        if self._before and self.checked:
            what = f"{self.checked} of {self.checked + self.spared} attestations"
            return f"{what} are not in the reading kept in {self.path}, being new or changed: their signatures were verified"
        return ""

    def keep(self) -> None:
        """Writes what passed in the present reading, readable by its owner alone; nothing if it is what the file holds.

        A place that cannot be written is told in `told`, and stops nothing.
        """
        if self._seen == self._before and not self._why:
            return
        data = self._head + self._seen
        try:
            atomic_write(self.path, data + self._mac(data), mode=0o600)
        except OSError as error:
            self._unwritten = error.strerror or str(error)

    def _kept(self, context: Context) -> bytes:
        """Returns the tags of the file, none if it does not count."""
        if not os.path.lexists(self.path):
            return b""
        try:
            data = read_limited(self.path, MAX_SIZE, "kept reading")
            head, at = cbor.decode_prefix(data, 0, max_size=_MAX_HEAD)
        except (FileRefused, CborError) as error:
            self._why = f"since it cannot be read ({error.sentence})"
            return b""
        end = len(data) - MAC_SIZE
        if type(head) is not list or head[:1] != [SCHEMA]:
            self._why = "since it was made under another format"
        elif end < at or not hmac.compare_digest(self._mac(data[:end]), data[end:]):
            self._why = "since something changed it, or another key wrote it"
        elif data[:at] != self._head:
            self._why = f"since it was made under another {context.differs_in(Context(*head[1:]))}"
        return b"" if self._why else data[at:end]

    def _mac(self, data: bytes) -> bytes:
        return hmac.digest(self._mac_key, data, "sha256")
