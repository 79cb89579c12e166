"""The release manifest: `release.cose` beside the weights, a COSE_Sign1 message by the ledger's key over strict CBOR.

The file is the CBOR array `[payload, sign1]` of two byte strings, as every signed document of this project. The payload is a
map with the keys 1, 2, 3, ... in the order of the fields of `Manifest`; rows are arrays of their fields (docs/formats.md).
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final

from attest import cbor, sign1, signed_file
from attest.errors import AttestError, FileRefused
from attest.files import read_limited
from attest.keys import key_id
from attest.vkeys import SIGNATURE_ED25519, VerifierKey
from ledger.errors import LedgerError, ReleaseRefused
from ledger.leaves import checks
from ledger.note import NoteSigner, parse_verifier_key
from ledger.release.contents import FORMS, MAX_NAMES, TENSORS
from ledger.release.files import MAX_FILES, Digested, check_distinct, check_path
from ledger.release.tensors import SUFFIX, Tensor
from ledger.release.tied import Commitment
from ledger.rules.influence import Artifact, ClassFigures
from ledger.rules.weights import WeightRecord, ordered

MANIFEST: Final = "release.cose"
EXPORT: Final = "export"
"""Names directly in the directory of a release that are not among its files: the manifest, and the export of the ledger."""

SCHEMA: Final = "dptrain.release/1"
ISSUER: Final = "ledger"
MAX_MANIFEST: Final = 1 << 26
"""Bytes of a manifest; a tensor takes about a hundred."""

ReleasedFile = Digested

_HASH: Final = 32
_FRACTION: Final = re.compile(r"[1-9][0-9]{0,39}/[1-9][0-9]{0,39}")


@dataclass(frozen=True, slots=True)
class BlockRow:
    """A block of the header: its name, its number of parameters, and the places of the classes that may touch it."""

    name: str
    coordinates: int
    classes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was released.

    Attributes:
        schema: `SCHEMA`.
        origin: the ledger's origin.
        log_vkey: verifier key that signed the manifest, and signs the ledger's checkpoints.
        time: POSIX seconds.
        step: last released step that the weights contain.
        size: size of the checkpoint.
        root: root of that checkpoint.
        header_digest: SHA-256 of leaf 0.
        delta: the policy's delta as a fraction, ``1/1000000``.
        horizon: whether epsilons are those of the planned horizon, since the run did not go to its signed end.
        files: every file of the directory but the manifest and the export.
        withdrawn: number of withdrawals by that size.
        withdrawals_root: RFC 6962 root over their descriptor hashes, in the order of their WITHDRAW leaves.
        classes: the classes of the policy and what is promised to each.
        blocks: the blocks of the header: which classes may have touched which.
        artifacts: the parts of the model, and whose influence may be in them.
        statements: what holds of the release, in words.
        weights: the tensors of the model at the end of an epoch, of that whose weights the files are if there is one; None
            where no epoch was closed, or the records of none were at hand.
    """

    schema: str
    origin: str
    log_vkey: str
    time: int
    step: int
    size: int
    root: bytes
    header_digest: bytes
    delta: str
    horizon: bool
    files: tuple[ReleasedFile, ...]
    withdrawn: int
    withdrawals_root: bytes
    classes: tuple[ClassFigures, ...]
    blocks: tuple[BlockRow, ...]
    artifacts: tuple[Artifact, ...]
    statements: tuple[str, ...]
    weights: Commitment | None

    ROWS: ClassVar = {"classes": ClassFigures, "blocks": BlockRow, "artifacts": Artifact}

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise ReleaseRefused("SCHEMA", f"the manifest has the schema {self.schema!a:.40}, this version reads {SCHEMA}")
        checks.text(self.origin, "origin", longest=200)
        checks.text(self.log_vkey, "log key", longest=400)
        checks.moment(self.time, "time")
        checks.uint(self.step, "step")
        checks.uint(self.size, "checkpoint size", low=1)
        checks.flag(self.horizon, "horizon")
        checks.uint(self.withdrawn, "withdrawals")
        for name in ("root", "header_digest", "withdrawals_root"):
            checks.octets(getattr(self, name), name.replace("_", " "), _HASH)
        self._check_delta()
        self._check_files()
        checks.rows(self.classes, "classes", ClassFigures, least=1)
        checks.rows(self.blocks, "blocks", BlockRow, least=1)
        checks.rows(self.artifacts, "artifacts", Artifact, least=1)
        checks.rows(self.statements, "statements", str, least=1)
        self._check_rows()
        self._check_weights()

    @property
    def artifacts_digest(self) -> bytes:
        """SHA-256 of the canonical CBOR of the rows of its files: what the RELEASE leaf says of them."""
        return files_digest(self.files)

    def epsilon_micro(self, artifact: str, place: int) -> int | None:
        """Returns what an artifact costs the contributions of a class, in 1e-6: 0 without a path, None if it is public.

        Raises:
            ReleaseRefused: code ARTIFACT, there is none of that name.
        """
        for part in self.artifacts:
            if part.name == artifact:
                return self.classes[place].epsilon_micro if part.influenced_by[place] else 0
        raise ReleaseRefused("ARTIFACT", f"the release has {[part.name for part in self.artifacts]}, and no {artifact!a:.80}")

    def to_cbor(self) -> bytes:
        """Returns the payload."""
        values = [_plain(getattr(self, field.name)) for field in fields(self)]
        return cbor.encode(dict(enumerate(values, start=1)))

    @classmethod
    def from_cbor(cls, payload: bytes) -> "Manifest":
        """Reads a payload.

        Guarantee: accepts exactly what `to_cbor` writes.

        Raises:
            ReleaseRefused: code MANIFEST, SCHEMA, or that of the field.
        """
        names = [field.name for field in fields(cls)]
        try:
            value = cbor.decode(payload, max_size=MAX_MANIFEST)
            if type(value) is not dict or list(value) != list(range(1, len(names) + 1)):
                schema = value.get(1) if type(value) is dict else None
                sentence = f"a manifest of the schema {SCHEMA} has the keys 1 to {len(names)}, this one says {schema!a:.40}"
                raise ReleaseRefused("SCHEMA", sentence)
            return cls(*(_read(name, item) for name, item in zip(names, value.values(), strict=True)))
        except ReleaseRefused:
            raise
        except (AttestError, LedgerError) as error:
            raise ReleaseRefused(error.code, f"the manifest is malformed: {error.sentence}") from error
        except (TypeError, ValueError) as error:
            raise ReleaseRefused("MANIFEST", f"the manifest is malformed: {error}") from error

    def _check_delta(self) -> None:
        plain = type(self.delta) is str and _FRACTION.fullmatch(self.delta) is not None
        if not plain or str(Fraction(self.delta)) != self.delta or not Fraction(self.delta) < 1:
            raise ReleaseRefused("MANIFEST", f"delta is a fraction in lowest terms below 1, got {self.delta!a:.40}")

    def _check_files(self) -> None:
        checks.rows(self.files, "files", ReleasedFile)
        paths = [check_path(file.path) for file in self.files]
        if paths != sorted(set(paths)) or len(paths) > MAX_FILES:
            raise ReleaseRefused("MANIFEST", f"the files of a manifest are in order, each once, at most {MAX_FILES}")
        check_distinct(paths)
        for file in self.files:
            checks.uint(file.size, f"size of {file.path}")
            checks.octets(file.sha256, f"digest of {file.path}", _HASH)
            if file.form not in FORMS or (file.form == TENSORS) != (file.tensors is not None):
                raise ReleaseRefused("MANIFEST", f"the form of {file.path} is {file.form!a:.40}; known are {', '.join(FORMS)}")
            checks.rows(file.names, f"names in {file.path}", str)
            if len(file.names) > MAX_NAMES:
                raise ReleaseRefused("MANIFEST", f"{file.path} names {len(file.names)} things, at most {MAX_NAMES} are kept")
            if file.path.split("/")[0].casefold() in (MANIFEST, EXPORT):
                raise ReleaseRefused("MANIFEST", f"{file.path} is no file of a release: the name is taken")
            if (file.form == TENSORS) != file.path.endswith(SUFFIX) or (file.names and file.form == TENSORS):
                raise ReleaseRefused("MANIFEST", f"{file.path}: {SUFFIX} files, and no others, are {TENSORS}, and name nothing")
            _check_tensors(file)

    def _check_rows(self) -> None:
        for what, rows in (("class", self.classes), ("block", self.blocks), ("artifact", self.artifacts)):
            if len({row.name for row in rows}) != len(rows):
                raise ReleaseRefused("MANIFEST", f"a {what} stands twice")
        for row in self.classes:
            checks.identifier(row.name, "class")
            checks.uint(row.contributions, "contributions")
            checks.uint(row.withdrawn, f"withdrawn of class {row.name}", high=row.contributions)
            if row.epsilon_micro is not None or row.replace_micro is not None:
                checks.uint(row.epsilon_micro, f"epsilon of class {row.name}")
                checks.uint(row.replace_micro, f"epsilon of class {row.name} under replacement")
        for block in self.blocks:
            checks.text(block.name, "block", longest=200)
            checks.uint(block.coordinates, "coordinates")
            _check_places(block.classes, "class of a block", len(self.classes))
        for part in self.artifacts:
            checks.text(part.name, "artifact", longest=200)
            _check_places(part.blocks, "block of an artifact", len(self.blocks))
            if len(part.influenced_by) != len(self.classes) or any(type(flag) is not bool for flag in part.influenced_by):
                raise ReleaseRefused("MANIFEST", f"artifact {part.name} does not say of every class whether a path leads to it")

    def _check_weights(self) -> None:
        if self.weights is None:
            return
        if type(self.weights) is not Commitment:
            raise ReleaseRefused("MANIFEST", f"the weights are not those of an epoch: {self.weights!a:.80}")
        checks.uint(self.weights.number, "epoch", low=1)
        checks.uint(self.weights.seq, "place of the epoch", low=1)
        checks.uint(self.weights.step, "step of the epoch")
        checks.rows(self.weights.records, "records of the weights", WeightRecord, least=1)
        if ordered(self.weights.records) != self.weights.records:
            raise ReleaseRefused("MANIFEST", "the records of the weights are not in order of their names")


def _check_tensors(file: ReleasedFile) -> None:
    names = [tensor.name for tensor in file.tensors or ()]
    if names != sorted(set(names)):
        raise ReleaseRefused("MANIFEST", f"the tensors of {file.path} are in order of their names, each once")
    for tensor in file.tensors or ():
        for size in tensor.shape:
            checks.uint(size, f"size in a shape of {file.path}")


def _check_places(places: Sequence[int], what: str, count: int) -> None:
    """Accepts places among so many rows, ascending, each once."""
    for place in places:
        checks.uint(place, what, high=count - 1)
    if any(one >= other for one, other in pairwise(places)):
        raise ReleaseRefused("MANIFEST", f"{what}: expected places ascending, each once, got {places!r:.80}")


def files_digest(files: Sequence[ReleasedFile]) -> bytes:
    """Returns SHA-256 of the canonical CBOR of the rows of files."""
    return hashlib.sha256(cbor.encode(_plain(tuple(files)))).digest()


def sign_manifest(manifest: Manifest, signer: NoteSigner) -> bytes:
    """Returns the bytes of `release.cose`."""
    payload = manifest.to_cbor()
    return cbor.encode([payload, sign1.sign(payload, signer.private_key, contributor=ISSUER, typ=sign1.TYP_RELEASE)])


def open_manifest(data: bytes, keys: Sequence[str]) -> Manifest:
    """Reads and verifies `release.cose`.

    Guarantee: one of the pinned keys, a log key of the origin that the manifest names, signed exactly this manifest.

    Args:
        data: the file.
        keys: verifier keys of the ledger, obtained from a place that the releaser does not control.

    Raises:
        ReleaseRefused: code MANIFEST, SCHEMA, KEYS, UNSIGNED, or that of what is wrong with signature or fields.
    """
    try:
        payload, message = signed_file.split(data, "the manifest", max_size=MAX_MANIFEST)
    except FileRefused as error:
        raise ReleaseRefused("MANIFEST", error.sentence) from error
    try:
        read = sign1.read(message)
        pinned = [parse_verifier_key(key) for key in keys]
        signers = [key for key in pinned if key.kind == SIGNATURE_ED25519 and key_id(key.public_key) == read.headers.key_id]
        if not signers:
            raise ReleaseRefused("UNSIGNED", f"the manifest is signed by key {read.headers.key_id.hex()}, which is not pinned")
        headers = read.verify(payload, signers[0].public_key, typ=sign1.TYP_RELEASE)
    except (AttestError, LedgerError) as error:
        raise ReleaseRefused(error.code, f"the manifest is not signed by a pinned key: {error.sentence}") from error
    manifest = Manifest.from_cbor(payload)
    _check_signer(manifest, signers, headers.issuer)
    return manifest


def read_manifest(directory: Path) -> bytes:
    """Returns the bytes of the manifest of a release.

    Raises:
        ReleaseRefused: code NO_MANIFEST.
    """
    try:
        return read_limited(directory / MANIFEST, MAX_MANIFEST, "release manifest")
    except AttestError as error:
        raise ReleaseRefused("NO_MANIFEST", f"{error.sentence}; 'dptrain release' writes it") from error


def _check_signer(manifest: Manifest, signers: Sequence[VerifierKey], issuer: str) -> None:
    named = [str(key) for key in signers]
    if issuer != ISSUER or manifest.log_vkey not in named:
        raise ReleaseRefused("LOG_KEY", f"the manifest says that {manifest.log_vkey} signed it, it was {' or '.join(named)}")
    if parse_verifier_key(manifest.log_vkey).name != manifest.origin:
        raise ReleaseRefused("ORIGIN", f"the manifest is of {manifest.origin!a}, and its key of another ledger")


def _plain(item: Any) -> Any:
    """Returns rows as arrays, and theirs too."""
    if type(item) is tuple:
        return [_plain(part) for part in item]
    if hasattr(item, "__dataclass_fields__"):
        return [_plain(getattr(item, field.name)) for field in fields(item)]
    return item


def _read(name: str, item: Any) -> Any:
    if name == "files":
        return tuple(_file(row) for row in _array(item))
    if name == "weights":
        return None if item is None else _weights(item)
    if name in Manifest.ROWS:
        return tuple(Manifest.ROWS[name](*map(_tuple, _array(row))) for row in _array(item))
    return _tuple(item)


def _file(row: Any) -> ReleasedFile:
    path, size, digest, tensors, form, named = _array(row)
    names = _tuple(named)
    if type(form) is not str:
        raise ReleaseRefused("MANIFEST", f"the form of {path!a:.100} is no text")
    if tensors is None:
        return ReleasedFile(path, size, digest, None, form, names)
    found = tuple(Tensor(*map(_tuple, _array(tensor))) for tensor in _array(tensors))
    for tensor in found:
        if type(tensor.name) is not str or type(tensor.dtype) is not str or type(tensor.shape) is not tuple:
            raise ReleaseRefused("MANIFEST", f"a tensor of {path!a} has no name, dtype and shape")
        checks.octets(tensor.sha256, "digest of a tensor", _HASH)
    return ReleasedFile(path, size, digest, found, form, names)


def _weights(row: Any) -> Commitment:
    number, seq, step, records = _array(row)
    return Commitment(number, seq, step, tuple(map(WeightRecord.of, _array(records))))


def _tuple(item: Any) -> Any:
    return tuple(item) if type(item) is list else item


def _array(item: Any) -> list[Any]:
    if type(item) is not list:
        raise ReleaseRefused("MANIFEST", f"expected an array, got {item!a:.40}")
    return item
