"""Defines the release manifest: `release.cose` beside the weights, a COSE_Sign1 message by the ledger's key over strict CBOR.

The file is the CBOR array `[payload, sign1]` of two byte strings, as every signed document of this project. The payload is a
map with the keys 1, 2, 3, ... in the order of the fields of `Manifest`; rows are arrays of their fields (docs/formats).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Final

from attest import cbor, sign1, signed_file
from attest.errors import AttestError, FileRefused
from attest.files import read_limited
from attest.keys import key_id, p256
from attest.keys.vkeys import SIGNATURE_ED25519, VerifierKey
from attest.schema import check_fields, declarations, declared, wire
from attest.schema.cards import card_of
from attest.schema.quick import Array, Blob, OneOf, Row, Spelled
from ledger.errors import LedgerError, ReleaseRefused
from ledger.leaves.kinds import ABOVE_0, LOG_VKEY, MOMENT, ORIGIN, SHA256, TEXT, TRUTH, UINT, WORDS, Checked
from ledger.leaves.weights import ordered
from ledger.note import NoteSigner, parse_verifier_key
from ledger.published.bundles import MODEL_KEY, MODEL_SIGNATURE, STATEMENT
from ledger.published.facts import Publication
from ledger.release.contents import MAX_NAMES, TENSORS
from ledger.release.files import MAX_FILES, SUFFIX, Digested, check_distinct, check_path
from ledger.release.tied import Commitment
from ledger.replay.influence import Artifact, ClassFigures

MANIFEST: Final = "release.cose"
EXPORT: Final = "export"
BESIDE: Final = (MANIFEST, EXPORT, STATEMENT)
"""Names directly in the directory of a release that are not among its files: the manifest, the export of the ledger, and the
bundle of the manifest."""

SCHEMA: Final = "dptrain.release/1"
ISSUER: Final = "ledger"
MAX_MANIFEST: Final = 1 << 26
"""Bytes of a manifest; a tensor takes about a hundred."""

ReleasedFile = Digested

_FRACTION: Final = "[1-9][0-9]{0,39}/[1-9][0-9]{0,39}"


@dataclass(frozen=True, slots=True)
class BlockRow(Checked):
    """A block of the header, and who may have touched it."""

    CDDL: ClassVar = "released-block"
    TELLS: ClassVar = ("name", " of block {}")
    name: str = declared(1, WORDS, "Its name.")
    coordinates: int = declared(2, UINT, "Its number of parameters.")
    classes: tuple[int, ...] = declared(3, Array(UINT), "Places of the classes that may touch it.")


def _rows(cls: type[Checked], least: int = 0) -> Array:
    return Array(Row(cls, "MANIFEST"), least, code="MANIFEST")


@dataclass(frozen=True, slots=True)
class Manifest:
    """Says what was released."""

    CDDL: ClassVar = "manifest"
    OF: ClassVar = " of the manifest"
    schema: str = declared(1, OneOf((SCHEMA,), "SCHEMA"), "Format of the manifest.")
    origin: str = declared(2, ORIGIN, "The ledger's origin.")
    log_vkey: str = declared(3, LOG_VKEY, "Verifier key that signed the manifest, and signs the ledger's checkpoints.")
    time: int = declared(4, MOMENT, "When it was released.")
    step: int = declared(5, UINT, "Last released step of the run by then.")
    size: int = declared(6, ABOVE_0, "Size of the checkpoint that is cited.")
    root: bytes = declared(7, SHA256, "Root of that checkpoint.")
    header_digest: bytes = declared(8, SHA256, "SHA-256 of leaf 0.")
    delta: str = declared(
        9,
        Spelled(_FRACTION, "a fraction in lowest terms below 1", f'tstr .regexp "{_FRACTION}"', "MANIFEST"),
        "The policy's delta as a fraction, `1/1000000`.",
        rule="below 1, in lowest terms",
    )
    horizon: bool = declared(
        10, TRUTH, "Whether epsilons are those of the planned horizon, since the run had not gone to its signed end."
    )
    files: tuple[ReleasedFile, ...] = declared(
        11, _rows(ReleasedFile), "Every file of the directory but the manifest and the export.", rule="ascending by path"
    )
    withdrawn: int = declared(12, UINT, "How many contributions were withdrawn by that size.")
    withdrawals_root: bytes = declared(
        13, SHA256, "RFC 6962 root over their descriptor hashes, in the order of their WITHDRAW leaves."
    )
    classes: tuple[ClassFigures, ...] = declared(
        14, _rows(ClassFigures, 1), "The classes of the policy and what is promised to each."
    )
    blocks: tuple[BlockRow, ...] = declared(
        15, _rows(BlockRow, 1), "The blocks of the header: which classes may have touched which."
    )
    artifacts: tuple[Artifact, ...] = declared(
        16, _rows(Artifact, 1), "The parts of the model, and whose influence may be in them."
    )
    statements: tuple[str, ...] = declared(
        17,
        Array(TEXT, 1),
        "What holds of the release, in words; of statement A what header and EPOCH leaves up to that size say, and up to which"
        " step.",
    )
    weights: Commitment | None = declared(
        18,
        Row(Commitment, "MANIFEST"),
        "The tensors of the model at the end of an epoch, of that whose weights the files are if there is one; null where no"
        " epoch was closed, or the records of none were at hand ([Weights](#weights)).",
        nil=True,
    )
    signing_key: bytes | None = declared(
        19,
        Blob("bstr .size 65", p256.POINT_SIZE),
        "Point of P-256, uncompressed: the key under which `model.sig` and `release.sigstore.json` verify; null without them.",
        default=None,
        nil=True,
    )
    publication: Publication | None = declared(
        20,
        Row(Publication, "MANIFEST"),
        "The documents among the files, and what they say beside ledger and manifest; null without any.",
        default=None,
        nil=True,
    )

    _repr_html_ = card_of

    def __post_init__(self) -> None:
        check_fields(self, ReleaseRefused)
        if str(Fraction(self.delta)) != self.delta or not Fraction(self.delta) < 1:
            raise ReleaseRefused("MANIFEST", f"delta is a fraction in lowest terms below 1, got {self.delta!a:.40}")
        self._check_files()
        self._check_places()
        self._check_published()
        if self.weights is not None and ordered(self.weights.records) != self.weights.records:
            raise ReleaseRefused("MANIFEST", "the records of the weights are not in order of their names")

    @property
    def artifacts_digest(self) -> bytes:
        """Returns SHA-256 of the canonical CBOR of the rows of its files: what the RELEASE leaf says of them."""
        return files_digest(self.files)

    def epsilon_micro(self, artifact: str, place: int) -> int | None:
        """Returns what an artifact costs the contributions of a class, in 1e-6: 0 without a path, None if it is public. Raises
        ReleaseRefused: code ARTIFACT, there is none of that name."""
        for part in self.artifacts:
            if part.name == artifact:
                return self.classes[place].epsilon_micro if part.influenced_by[place] else 0
        raise ReleaseRefused("ARTIFACT", f"the release has {[part.name for part in self.artifacts]}, and no {artifact!a:.80}")

    def to_cbor(self) -> bytes:
        """Returns the payload."""
        return cbor.encode(wire.encode_map(self))

    @classmethod
    def from_cbor(cls, payload: bytes) -> "Manifest":
        """Reads a payload.

        Guarantee: accepts exactly what `to_cbor` writes.

        Raises:
            ReleaseRefused: code MANIFEST, SCHEMA, or that of the field.
        """
        last = len(declarations(cls))
        try:
            value = cbor.decode(payload, max_size=MAX_MANIFEST)
            if type(value) is not dict or list(value) != list(range(1, last + 1)):
                schema = value.get(1) if type(value) is dict else None
                sentence = f"a manifest of the schema {SCHEMA} has the keys 1 to {last}, this one says {schema!a:.40}"
                raise ReleaseRefused("SCHEMA", sentence)
            manifest: Manifest = wire.decode_fields(cls, value, ReleaseRefused)
            return manifest
        except ReleaseRefused:
            raise
        except (AttestError, LedgerError) as error:
            raise ReleaseRefused(error.code, f"the manifest is malformed: {error.sentence}") from error

    def _check_files(self) -> None:
        paths = [check_path(file.path) for file in self.files]
        if paths != sorted(set(paths)) or len(paths) > MAX_FILES:
            raise ReleaseRefused("MANIFEST", f"the files of a manifest are in order, each once, at most {MAX_FILES}")
        check_distinct(paths)
        for file in self.files:
            if (file.form == TENSORS) != (file.tensors is not None):
                raise ReleaseRefused("MANIFEST", f"the form of {file.path} is {file.form}, which its tensors contradict")
            if len(file.names) > MAX_NAMES:
                raise ReleaseRefused("MANIFEST", f"{file.path} names {len(file.names)} things, at most {MAX_NAMES} are kept")
            if file.path.split("/")[0].casefold() in BESIDE:
                raise ReleaseRefused("MANIFEST", f"{file.path} is no file of a release: the name is taken")
            if (file.form == TENSORS) != file.path.endswith(SUFFIX) or (file.names and file.form == TENSORS):
                raise ReleaseRefused("MANIFEST", f"{file.path}: {SUFFIX} files, and no others, are {TENSORS}, and name nothing")
            tensors = [tensor.name for tensor in file.tensors or ()]
            if tensors != sorted(set(tensors)):
                raise ReleaseRefused("MANIFEST", f"the tensors of {file.path} are in order of their names, each once")

    def _check_published(self) -> None:
        paths = {file.path for file in self.files}
        named = list(self.publication.documents) if self.publication is not None else []
        if self.signing_key is not None:
            try:
                p256.public_key(self.signing_key)
            except AttestError as error:
                raise ReleaseRefused("SIGNING_KEY", f"the signing key of the manifest: {error.sentence}") from error
            named += [MODEL_KEY, MODEL_SIGNATURE]
        for path in named:
            if path not in paths:
                raise ReleaseRefused("MANIFEST", f"the manifest says that {path} was written, and has no such file")
        if {"README.md", "MODEL_CARD.md"} <= set(named):
            raise ReleaseRefused("MANIFEST", "the manifest has two model cards, expected one")

    def _check_places(self) -> None:
        for what, rows in (("class", self.classes), ("block", self.blocks), ("artifact", self.artifacts)):
            if len({row.name for row in rows}) != len(rows):
                raise ReleaseRefused("MANIFEST", f"a {what} stands twice")
        for row in self.classes:
            if row.withdrawn > row.contributions:
                sentence = f"withdrawn of class {row.name}: expected at most {row.contributions}, got {row.withdrawn}"
                raise ReleaseRefused("RANGE", sentence)
        for block in self.blocks:
            _check_below(block.classes, len(self.classes), f"a class of block {block.name}")
        for part in self.artifacts:
            _check_below(part.blocks, len(self.blocks), f"a block of artifact {part.name}")
            if len(part.influenced_by) != len(self.classes):
                raise ReleaseRefused("MANIFEST", f"artifact {part.name} does not say of every class whether a path leads to it")


def _check_below(places: Sequence[int], end: int, what: str) -> None:
    """Accepts places below an end, ascending, each once."""
    for place in places:
        if place >= end:
            raise ReleaseRefused("RANGE", f"{what} is number {place}, expected a place below {end}")
    if any(one >= other for one, other in pairwise(places)):
        raise ReleaseRefused("MANIFEST", f"{what}: expected places ascending, each once, got {places!r:.80}")


def files_digest(files: Sequence[ReleasedFile]) -> bytes:
    """Returns SHA-256 of the canonical CBOR of the rows of files."""
    return hashlib.sha256(cbor.encode([wire.encode_row(file) for file in files])).digest()


def sign_manifest(manifest: Manifest, signer: NoteSigner) -> bytes:
    """Returns the bytes of `release.cose`."""
    payload = manifest.to_cbor()
    return cbor.encode([payload, sign1.sign(payload, signer.private_key, contributor=ISSUER, typ=sign1.TYP_RELEASE)])


def open_manifest(data: bytes, keys: Sequence[str]) -> Manifest:
    """Reads and verifies `release.cose`.

    Guarantee: one of the pinned keys, a log key of the origin that the manifest names, signed exactly this manifest.

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
    """Returns the bytes of the manifest of a release. Raises ReleaseRefused: code NO_MANIFEST."""
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
