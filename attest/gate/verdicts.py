"""Judges shards of a corpus in processes of their own, and merges what they found.

A process judges one shard and writes a verdict file: a tag for every attestation that has a content, and whether it passed by
itself. The merge reads the whole corpus and judges it as a gate does, so its report is that of one process. It spares the
signatures that a shard verified, and nothing else. What hangs on several contributions (repetitions, caps, withdrawals) is
decided there alone. A shard cannot refuse anything: what did not pass is judged again.

The file is the CBOR array `[schema, policy, registry root, build, corpus, purpose, time, shards, number, entries]`, the
entries of 17 bytes each, and a message authentication code over both. Its key is derived from a private key that shards and
merge share, and that serves for nothing else.
"""

import hashlib
import hmac
import os
from collections.abc import Callable, Iterable, Set
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from attest import cbor
from attest.attestation import Attestation
from attest.corpus import Corpus
from attest.corpus.shards import Extent, Shard, ShardNumber
from attest.descriptor import TRAIN
from attest.errors import CborError, FileRefused, VerdictsRefused
from attest.files import atomic_write, read_limited
from attest.gate.admission import GateReport
from attest.gate.gate import run_gate
from attest.gate.reading import MAC_SIZE, TAG_SIZE, KeptReading, Verified, build_of
from attest.keys import public_bytes
from attest.policy import SignedPolicy
from attest.registry import Registry

SCHEMA: Final = "dptrain.verdicts/2"
"""Format of the file, and the domain in which its keys are derived."""

ENTRY_SIZE: Final = TAG_SIZE + 1
MAX_SIZE: Final = 512 << 20
"""Bytes of such a file; some thirty million contributions in one shard."""

_MAX_HEAD: Final = 512
_REFUSED, _PASSED = b"\x00", b"\x01"


@dataclass(frozen=True, slots=True)
class Setting:
    """Says what a shard was judged under; all shards of one merge, and the merge itself, have the same one.

    Args:
        policy: Digest of the signed policy.
        registry: Root of the registry.
        build: Versions and source of the program (`attest.gate.reading.build_of`).
        corpus: Digest of names and sizes of all files (`attest.corpus.shards.Extent`).
        purpose: What the contributions are to be used for.
        now: Time of the judgement, in seconds since 1970.
        shards: How many there are.
    """

    policy: bytes
    registry: bytes
    build: str
    corpus: bytes
    purpose: str
    now: int
    shards: int

    @classmethod
    def of(
        cls, signed: SignedPolicy, registry: Registry, extent: Extent, now: int, shards: int, *, purpose: str = TRAIN
    ) -> "Setting":
        """Returns the setting of this program."""
        return cls(signed.digest, registry.root(), build_of(), extent.digest, purpose, now, shards)

    def differs_in(self, other: "Setting") -> tuple[str, str] | None:
        """Returns code and words for the first thing in which another setting differs; None if it does not."""
        for field, told in zip(fields(self), _DIFFERS, strict=True):
            if getattr(self, field.name) != getattr(other, field.name):
                return told
        return None


_DIFFERS: Final = (
    ("POLICY", "under another policy; judge the shard under this one"),
    ("REGISTRY_ROOT", "against another state of the registry; give every shard the same file"),
    ("BUILD", "by another version of this program; install the same one everywhere"),
    ("CORPUS", "over a corpus of other files or sizes; judge the shards of the corpus as it is now"),
    ("PURPOSE", "for another purpose; judge the shards of each purpose by themselves"),
    ("TIME", "at another time; give every shard the same --now"),
    ("SHARDS", "as a shard of another number of shards; cut the corpus once"),
)
"""For each field of a setting, the code of a refusal and what the file says instead."""


class VerdictKey:
    """Derives from a private key what authenticates verdict files, and what makes tags under a setting."""

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        derived = HKDF(SHA256(), 64, None, SCHEMA.encode()).derive(private_key.private_bytes_raw())
        self._mac, self._tags = derived[:32], derived[32:]

    def mac(self, data: bytes) -> bytes:
        """Returns the code over a file."""
        return hmac.digest(self._mac, data, "sha256")

    def tags(self, setting: Setting) -> bytes:
        """Returns the key of tags, which are of this setting and of no other."""
        return hashlib.blake2b(cbor.encode(list(astuple(setting))), key=self._tags, digest_size=32).digest()


def require_apart(private_key: Ed25519PrivateKey, registry: Registry, kept: Verified | None = None) -> None:
    """Refuses a key of verdicts that serves for anything else.

    Guarantee: where it returns, the key is not the owner's, no contributor's of this registry, revoked ones included, and not
    the one under which a reading is kept.

    Raises:
        VerdictsRefused: Code KEY, it is one of them.
    """
    raw = public_bytes(private_key)
    if registry.holder(raw) is not None:
        whose = "a contributor's, who could have forged signatures passed"
    elif raw == registry.owner_key:
        whose = "the corpus owner's, which belongs on no machine that judges"
    elif isinstance(kept, KeptReading) and raw == kept.public_key:
        whose = "the ledger's, which belongs on no machine that judges"
    else:
        return
    raise VerdictsRefused("KEY", f"the verdict key is {whose}; make one for shards alone with 'dptrain attest keygen'")


class ShardReading(Verified):
    """Notes what passed in one shard, for its verdict file; give it to a gate as `remember`.

    Args:
        shard: The contributions that the gate judges. path: Where the file goes.
    """

    def __init__(
        self,
        shard: Shard,
        signed: SignedPolicy,
        registry: Registry,
        now: int,
        path: Path,
        key: Ed25519PrivateKey,
        *,
        purpose: str = TRAIN,
    ) -> None:
        require_apart(key, registry)
        self.path, self.shard = path, shard.shard
        self.setting = Setting.of(signed, registry, shard.extent, now, shard.shard.of, purpose=purpose)
        self._key = VerdictKey(key)
        self._entries, self._marked = bytearray(), 0
        super().__init__(self._key.tags(self.setting), purpose=purpose)

    def __len__(self) -> int:
        return len(self._entries) // ENTRY_SIZE

    def begin(self, registry: bytes) -> None:
        """Begins a reading of the shard from its start."""
        super().begin(registry)
        self._entries, self._marked = bytearray(), 0

    def tag(self, attestation: Attestation, content_hash: bytes) -> bytes:
        """Returns the tag, and notes it as of an attestation that has not passed."""
        tag = super().tag(attestation, content_hash)
        self._entries += tag + _REFUSED
        return tag

    def holds(self, tag: bytes) -> bool:
        """Tells that every signature is verified."""
        return False

    def add(self, tag: bytes, known: bool) -> None:
        """Notes that an attestation passed; in the order of the tags."""
        at, entries = self._marked, self._entries
        while entries[at : at + TAG_SIZE] != tag:
            at += ENTRY_SIZE
        entries[at + TAG_SIZE : at + ENTRY_SIZE] = _PASSED
        self._marked = at + ENTRY_SIZE
        self.checked += 1

    def keep(self) -> None:
        """Writes the verdict file, whole or not at all, readable by its owner alone. Raises VerdictsRefused: code FILE."""
        head = [SCHEMA, *astuple(self.setting), self.shard.number, len(self)]
        data = cbor.encode(head) + self._entries
        try:
            atomic_write(self.path, data + self._key.mac(data), mode=0o600)
        except OSError as error:
            sentence = f"cannot write the verdicts of shard {self.shard} to {self.path}: {error.strerror or error}"
            raise VerdictsRefused("FILE", sentence) from error


class MergedReading(Verified):
    """Spares the signatures that shards verified; give it to a gate over the whole corpus as `remember`, then `finish`.

    Guarantee: a signature is spared only if a verdict file says that this descriptor, message, opening and content passed,
    under this policy, registry, build, corpus, purpose and time, and somebody with the private key wrote that file, or if
    `into` spares it. Where `finish` returns, the gate met exactly the attestations that shards 1 to N of N judged, in their
    order.

    What is trusted is whoever has the key: they could have the merge pass a forged signature. Nothing else is taken from files.

    Args:
        paths: Verdict files, in any order. extent: Of the corpus as it is now.
        now: Time that the shards must have been judged at; None for that of the first of them.
        into: What verified before and is to learn what passes, such as the reading kept beside a ledger.
        purpose: What the contributions are to be used for.

    Attributes:
        now: The time of the judgement.

    Raises:
        VerdictsRefused: Code FILE, FORMAT, TRUNCATED or KEY, a file or the key cannot be believed; POLICY, REGISTRY_ROOT,
            BUILD, CORPUS, PURPOSE, TIME or SHARDS, it belongs elsewhere; DOUBLED or MISSING, shards are there twice, or not.
            While the corpus is read, code CORPUS: it is not what a shard judged.
    """

    def __init__(
        self,
        paths: Iterable[Path],
        signed: SignedPolicy,
        registry: Registry,
        extent: Extent,
        key: Ed25519PrivateKey,
        *,
        now: int | None = None,
        into: Verified | None = None,
        purpose: str = TRAIN,
    ) -> None:
        require_apart(key, registry, into)
        if into is not None and into.purpose != purpose:
            sentence = f"the reading that is to learn is of what may {into.purpose}, asked for is {purpose}; give one of that"
            raise VerdictsRefused("PURPOSE", sentence)
        self._key, self._into = VerdictKey(key), into
        found: dict[int, Path] = {}
        setting: Setting | None = None
        for path in paths:
            file = _read(path, self._key)
            if setting is None:
                time = file.setting.now if now is None else now
                setting = Setting.of(signed, registry, extent, time, file.setting.shards, purpose=purpose)
            if (told := setting.differs_in(file.setting)) is not None:
                raise VerdictsRefused(told[0], f"the verdict file {path} was made {told[1]}")
            if file.number in found:
                twice = f"{found[file.number]} and {path} are both of shard {file.number}/{setting.shards}"
                raise VerdictsRefused("DOUBLED", f"{twice}; give one of them")
            found[file.number] = path
        if setting is None:
            raise VerdictsRefused("MISSING", "no verdict file is given; judge every shard and give the files of all")
        missing = [str(number) for number in range(1, setting.shards + 1) if number not in found]
        if missing:
            told_missing = ", ".join(missing[:8]) + (" and more" if len(missing) > 8 else "")
            sentence = f"of {setting.shards} shards there is no verdict file of {told_missing}; judge them and give all files"
            raise VerdictsRefused("MISSING", sentence)
        self.setting, self.now = setting, setting.now
        self._paths = [found[number] for number in range(1, setting.shards + 1)]
        self._body, self._place, self._number = b"", 0, 0
        super().__init__(self._key.tags(setting), purpose=purpose)

    def begin(self, registry: bytes) -> None:
        """Begins a reading of the corpus from its start."""
        super().begin(registry)
        self._body, self._place, self._number = b"", 0, 0
        if self._into is not None:
            self._into.begin(registry)

    def tag(self, attestation: Attestation, content_hash: bytes) -> bytes:
        """Returns the tag and whether it passed, then whether the other reading holds it, and its tag there. Raises
        VerdictsRefused: code CORPUS, it is not the next one that a shard judged."""
        tag = super().tag(attestation, content_hash)
        while self._place == len(self._body) and self._number < len(self._paths):
            self._next()
        entry = self._body[self._place : self._place + ENTRY_SIZE]
        if entry[:TAG_SIZE] != tag:
            self._refuse()
        self._place += ENTRY_SIZE
        if self._into is None:
            return entry
        other = self._into.tag(attestation, content_hash)
        return b"".join((entry, _PASSED if self._into.holds(other) else _REFUSED, other))

    def holds(self, tag: bytes) -> bool:
        """Tells whether an attestation passed in its shard, or verified before in the other reading."""
        return _PASSED in (tag[TAG_SIZE:ENTRY_SIZE], tag[ENTRY_SIZE : ENTRY_SIZE + 1])

    def add(self, tag: bytes, known: bool) -> None:
        """Takes an attestation that passed, in corpus order, and what `holds` said of it."""
        self.spared += known
        self.checked += not known
        if self._into is not None:
            self._into.add(tag[ENTRY_SIZE + 1 :], tag[ENTRY_SIZE : ENTRY_SIZE + 1] == _PASSED)

    def finish(self) -> None:
        """Checks that the corpus held all that the shards judged. Raises VerdictsRefused: code CORPUS."""
        while self._place == len(self._body) and self._number < len(self._paths):
            self._next()
        if self._place < len(self._body):
            self._refuse()

    def _next(self) -> None:
        # Read and checked again, so that memory holds one shard, and what changed since the start is not believed.
        path = self._paths[self._number]
        file = _read(path, self._key)
        if (file.setting, file.number) != (self.setting, self._number + 1):
            raise VerdictsRefused("SHARDS", f"the verdict file {path} was replaced during the merge; merge again")
        self._body, self._place, self._number = file.entries, 0, self._number + 1

    def _refuse(self) -> NoReturn:
        where = f"{max(self._number, 1)}/{len(self._paths)}, at its attestation {self._place // ENTRY_SIZE + 1}"
        sentence = f"the corpus is not what was judged by shard {where}: data or attestations changed; judge the shards again"
        raise VerdictsRefused("CORPUS", sentence)


class _File(NamedTuple):
    """A verdict file whose code was checked."""

    setting: Setting
    number: int
    entries: bytes


def _read(path: Path, key: VerdictKey) -> _File:
    try:
        data = read_limited(path, MAX_SIZE, "verdict file")
    except FileRefused as error:
        raise VerdictsRefused("FILE", error.sentence) from error
    try:
        head, at = cbor.decode_prefix(data, 0, max_size=_MAX_HEAD)
    except CborError as error:
        head, at = None, 0
        cause: CborError | None = error
    else:
        cause = None
    if type(head) is not list or [type(part) for part in head] != _TYPES or head[0] != SCHEMA:
        sentence = f"{path} is no verdict file of this version; 'dptrain gate --shard' writes one"
        raise VerdictsRefused("FORMAT", sentence) from cause
    *setting, number, count = head[1:]
    end = at + ENTRY_SIZE * count
    if len(data) < end + MAC_SIZE:
        name = f"{number}/{setting[-1]}"
        sentence = f"the verdict file {path} of shard {name} is cut off: judge that shard again, or copy the file again"
        raise VerdictsRefused("TRUNCATED", sentence)
    if not hmac.compare_digest(key.mac(data[:end]), data[end:]):
        sentence = f"the verdict file {path} was changed, or written under another key; judge with the key of the merge"
        raise VerdictsRefused("KEY", sentence)
    return _File(Setting(*setting), number, data[at:end])


_TYPES: Final = [str, bytes, bytes, str, bytes, str, int, int, int, int]


def judge_shard(
    corpus: Corpus,
    signed: SignedPolicy,
    registry: Registry,
    shard: ShardNumber,
    path: str | os.PathLike[str],
    key: Ed25519PrivateKey,
    *,
    now: int,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
    purpose: str = TRAIN,
) -> GateReport:
    """Judges one shard by itself and writes its verdict file.

    The report is of this shard alone: what repeats a contribution of another shard, or exceeds a cap together with it, is
    admitted here and refused by the merge.

    Args:
        now: One time for all shards. key: Shared with the merge and used for nothing else; not that of the ledger, which
            belongs on no machine of a cluster. workers, progress, purpose: As for `attest.gate.run_gate`.

    Raises:
        CorpusRefused: Code SHARD or CORPUS_CHANGED. VerdictsRefused: Code FILE, or KEY as `require_apart`. As `run_gate`
            besides.
    """
    part = Shard(corpus, ShardNumber.checked(*shard), Extent.of(corpus))
    reading = ShardReading(part, signed, registry, now, Path(path), key, purpose=purpose)
    report = run_gate(
        part, signed.policy, registry, now=now, workers=workers, progress=progress, remember=reading, purpose=purpose
    )
    reading.keep()
    return report


def merge_shards(
    corpus: Corpus,
    signed: SignedPolicy,
    registry: Registry,
    paths: Iterable[str | os.PathLike[str]],
    key: Ed25519PrivateKey,
    *,
    now: int | None = None,
    withdrawn: Set[bytes] = frozenset(),
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
    remember: Verified | None = None,
    purpose: str = TRAIN,
) -> GateReport:
    """Judges the whole corpus, sparing the signatures that its shards verified.

    Guarantee: the report equals that of `attest.gate.run_gate` over the corpus at the time of the shards, if the files were
    written by `judge_shard`.

    Args:
        paths: The verdict files of all shards. now, remember: As `now` and `into` of `MergedReading`. withdrawn, workers,
            progress, purpose: As for `run_gate`.

    Raises:
        VerdictsRefused: As `MergedReading`. As `run_gate` besides.
    """
    extent = Extent.of(corpus)
    merged = MergedReading(map(Path, paths), signed, registry, extent, key, now=now, into=remember, purpose=purpose)
    report = run_gate(
        corpus,
        signed.policy,
        registry,
        now=merged.now,
        withdrawn=withdrawn,
        progress=progress,
        workers=workers,
        remember=merged,
        purpose=purpose,
    )
    merged.finish()
    return report
