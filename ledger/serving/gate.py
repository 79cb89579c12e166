"""The inference gate: checks a release once, then says of every query which artifact may answer it, or refuses with a code.

A release is checked whole when the gate opens, and again when a newer export of its ledger is given. Nothing of that is done
for a query, which costs a look at its rights and, the first time, one signature.
"""

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from attest.errors import AttestError
from attest.files import make_private_directory
from attest.keys import check_public_key
from attest.schema.cards import card_of
from attest.schema.plain import check_id, machine_time
from ledger.audit.findings import headline
from ledger.audit.given import read_export
from ledger.errors import LedgerError, ReleaseRefused, RightsRefused
from ledger.leaves.weights import WeightRecord
from ledger.release.check import ReleaseReport, check_release
from ledger.release.files import CHUNK, opened
from ledger.release.manifest import Manifest
from ledger.release.rights import Rights, choose_artifact
from ledger.serving.envelope import MAX_ENVELOPE, SERIAL_SIZE, Granted, read_rights, require_holder
from ledger.serving.posture import Certified, Posture, ServedFile, epsilons, files_of, posture_of, told

KEPT_ENVELOPES: Final = 4096
"""Verified envelopes that a gate remembers, a few megabytes; of more it verifies those again that were not used for longest."""

FORKED: Final = "FORKED"

Clock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Admission:
    """Admits one query: the artifact that answers it, and on what grounds.

    Attributes:
        files: those that the artifact is loaded from, by digest; none of a base that was not released.
        holder: the client that asked, where one was named. serial, granter: of the envelope; None for configured rights.
        ledger_size: number of leaves of the ledger at which this was judged; a later withdrawal is not in it.
        artifacts_digest: of the release, as its RELEASE leaf has it.
        time: the gate's clock, POSIX seconds.
    """

    generation_class: str
    artifact: str
    files: tuple[ServedFile, ...]
    posture: Posture
    holder: str | None
    serial: bytes | None
    granter: str | None
    ledger_size: int
    artifacts_digest: bytes
    time: int

    _repr_html_ = card_of

    @property
    def certificate(self) -> tuple[Certified, ...]:
        """Returns the classes that may have influenced the artifact, each with its epsilon; it is free of every other one."""
        return self.posture.certificate

    def told(self) -> dict[str, Any]:
        """Returns what a client may be told, as JSON has it: the artifact, its certificate, and what it was judged by."""
        posture = self.posture
        return {
            "artifact": self.artifact,
            "generation_class": self.generation_class,
            "epsilon": epsilons(posture.certificate),
            "delta": posture.delta,
            "verdict": posture.verdict,
            "qualifiers": list(posture.qualifiers),
            "weights": posture.weights,
            "withdrawn_classes": list(posture.withdrawn_classes),
            "artifacts_digest": self.artifacts_digest.hex(),
            "ledger_size": self.ledger_size,
            "serial": None if self.serial is None else self.serial.hex(),
            "time": self.time,
        }


@dataclass(frozen=True, slots=True)
class _Standing:
    """Holds all that queries are judged by, so that a refresh changes it at once.

    Attributes:
        closed: code and sentence of the refresh that was refused; None while the gate is open.
    """

    report: ReleaseReport
    manifest: Manifest
    digest: bytes
    postures: Mapping[str, Posture]
    files: Mapping[str, tuple[ServedFile, ...]]
    size: int
    root: bytes
    closed: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class _Asked:
    """Holds what `check_release` is asked each time."""

    directory: Path
    keys: tuple[str, ...]
    owner_key: bytes | None
    minimum_size: int
    require_quorum: bool

    def check(self, export: Path | None, now: int) -> tuple[ReleaseReport, Manifest]:
        """Checks the release. Raises ReleaseRefused: code of the first finding; NOT_CHECKED, no rights would admit it."""
        report = check_release(
            self.directory,
            self.keys,
            export=export,
            owner_key=self.owner_key,
            minimum_size=self.minimum_size,
            require_quorum=self.require_quorum,
            now=now,
        )
        if report.findings or report.manifest is None:
            # A fork is told before whatever else is wrong: it is the one finding that does not go away.
            found = sorted(report.findings, key=lambda item: item.code != FORKED)
            more = f" ({len(found) - 1} more findings)" if found[1:] else ""
            raise ReleaseRefused(found[0].code, f"the release fails its check: {found[0].where}: {found[0].sentence}{more}")
        if report.verdict not in ("FULL", "TOLD") or "PRUNED" in report.qualifiers:
            sentence = f"the release is {headline(report.verdict, report.qualifiers)}, which no rights admit"
            raise ReleaseRefused("NOT_CHECKED", f"{sentence}; give a whole export of its ledger")
        return report, report.manifest


@dataclass(slots=True, eq=False)
class InferenceGate:
    """Judges queries by one release; `open` makes one. Its methods may be called from many threads.

    Attributes:
        name: the gate's name, the audience of rights that are for it.
        classes: by generation class the artifacts that may answer, the most wanted first.
    """

    name: str
    classes: Mapping[str, tuple[str, ...]]
    _asked: _Asked = field(repr=False)
    _granters: tuple[bytes, ...] = field(repr=False)
    _clock: Clock = field(repr=False)
    _standing: _Standing = field(repr=False)
    _revoked: frozenset[bytes] = field(repr=False)
    _latest: int = field(default=0, repr=False)
    _verified: OrderedDict[bytes, Granted] = field(default_factory=OrderedDict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _refreshing: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def open(
        cls,
        directory: Path,
        keys: Sequence[str],
        *,
        name: str,
        classes: Mapping[str, Sequence[str]],
        export: Path | None = None,
        minimum_size: int = 1,
        owner_key: bytes | None = None,
        require_quorum: bool = False,
        granters: Sequence[bytes] = (),
        revoked: Iterable[bytes] = (),
        now: int | Clock | None = None,
    ) -> "InferenceGate":
        """Checks a release and opens a gate over it.

        Guarantee: fails closed. Without a manifest that a pinned key signed, with a file that is not the released one byte for
        byte, a checkpoint below ``minimum_size``, another schema, or an export that does not show the release there is no gate.

        Args:
            directory: of the release. keys: verifier keys of the ledger, got from a place that the releaser does not control.
            name: of the gate. classes: by generation class the artifacts that may answer, the most wanted first.
            export: a newer export of the ledger; by default the one in the directory.
            minimum_size, owner_key, require_quorum: as for `ledger.release.check_release`.
            granters: raw public keys of who may sign rights. revoked: serials of rights that hold no more.
            now: a clock that gives POSIX seconds, or one time for good; this machine's clock without.

        Raises:
            ReleaseRefused: code of the first finding of the check; NOT_CHECKED, no rights would admit it; CLASSES, `classes`
                names none, or no artifact for one; ARTIFACT or FILES, an artifact is not in the release, or in no file alone.
            RightsRefused: code TYPE or RANGE, name, class or serial is none. KeyRefused: a key of `granters` is unsound.
        """
        check_id(name, "name of the gate", error=RightsRefused)
        served = {check_id(each, "generation class", error=RightsRefused): tuple(parts) for each, parts in classes.items()}
        if not served or not all(served.values()):
            sentence = f"a gate has generation classes with an artifact each at least, got {served!r:.200}"
            raise ReleaseRefused("CLASSES", sentence)
        for raw in granters:
            check_public_key(raw)
        clock = machine_time if now is None else now if callable(now) else lambda: now
        asked = _Asked(Path(directory), tuple(keys), owner_key, minimum_size, require_quorum)
        standing = _standing(*asked.check(export, clock()), served)
        return cls(name, served, asked, tuple(granters), clock, standing, _serials(revoked))

    @property
    def closed(self) -> str | None:
        """Returns the code of the refusal that closed the gate; None while it is open."""
        closed = self._standing.closed
        return None if closed is None else closed[0]

    @property
    def ledger_size(self) -> int:
        """Returns how many leaves the ledger had that queries are judged by."""
        return self._standing.size

    @property
    def artifacts(self) -> tuple[str, ...]:
        """Returns the names of all artifacts that a generation class names."""
        return tuple(self._standing.files)

    @property
    def weights(self) -> tuple[WeightRecord, ...]:
        """Returns the tensors of the run to which its ledger commits, frozen ones too; none where it has no epoch."""
        found = self._standing.manifest.weights
        return () if found is None else found.records

    def withdrawn(self, artifact: str) -> bool:
        """Tells whether a contribution that may have influenced an artifact was withdrawn since the release."""
        found = self._standing.postures.get(artifact)
        return found is not None and bool(found.withdrawn_classes)

    def admit(self, generation_class: str, rights: Rights | bytes, *, holder: str | None = None) -> Admission:
        """Admits a query to the first artifact of its generation class that its rights allow.

        Guarantee: as `ledger.release.choose_artifact`, by the newest export that this gate has seen. Rights that are signed
        hold only if a granter signed them for this gate and for `holder`, they name the generation class, and they have begun,
        not ended and not been revoked at this very query; what was verified before is judged by the clock again. An answer is
        an `Admission` or a refusal with a code, and a gate that a refresh closed refuses everybody.

        Args:
            generation_class: a key of `classes`. rights: configured for the client, or the bytes of an envelope.
            holder: the client, as the service authenticated it; an envelope is refused without it.

        Raises:
            RightsRefused: code GENERATION, or as `ledger.serving.open_rights`.
            ReleaseRefused: code GATE_CLOSED, NO_SUCH_CLASS, or as `ledger.release.choose_artifact`.
        """
        standing = self._standing
        if standing.closed is not None:
            code, sentence = standing.closed
            raise ReleaseRefused("GATE_CLOSED", f"the gate was closed when a newer export was refused ({code}): {sentence}")
        artifacts = self.classes.get(generation_class)
        if artifacts is None:
            named = ", ".join(sorted(self.classes))
            sentence = f"there is no generation class {generation_class!a:.80}"
            raise ReleaseRefused("NO_SUCH_CLASS", f"{sentence}; this gate has {named:.200}")
        now, latest = self._time()
        granted = None if isinstance(rights, Rights) else self._opened(rights)
        if granted is not None:
            require_holder(granted, holder)
            granted.require(now, self._revoked, latest=latest)
            if generation_class not in granted.envelope.generation:
                sentence = f"the rights let {granted.envelope.holder} ask {', '.join(granted.envelope.generation) or 'nothing'}"
                raise RightsRefused("GENERATION", f"{sentence:.200}, not {generation_class}; ask {granted.granter} for more")
        allowed = rights if isinstance(rights, Rights) else granted.rights if granted is not None else Rights()
        artifact = choose_artifact(standing.report, allowed, artifacts)
        return Admission(
            generation_class=generation_class,
            artifact=artifact,
            files=standing.files[artifact],
            posture=standing.postures[artifact],
            holder=holder,
            serial=None if granted is None else granted.envelope.serial,
            granter=None if granted is None else granted.granter,
            ledger_size=standing.size,
            artifacts_digest=standing.digest,
            time=now,
        )

    def revoke(self, serials: Iterable[bytes]) -> None:
        """Ends rights by their serials, from the next query on. Raises RightsRefused: code TYPE, one is not 16 bytes."""
        more = _serials(serials)
        with self._lock:
            self._revoked |= more

    def posture(self) -> dict[str, Any]:
        """Returns what the release says of itself, of every artifact and of every block, as plain data for JSON."""
        standing = self._standing
        closed = None if standing.closed is None else {"code": standing.closed[0], "sentence": standing.closed[1]}
        served = {name: list(artifacts) for name, artifacts in self.classes.items()}
        return {"gate": self.name, "closed": closed, "classes": served} | told(standing.report, standing.manifest)

    def refresh(self, export: Path) -> None:
        """Checks the release again, against a newer export of the same ledger, and judges by that from then on.

        Guarantee: the ledger behind the gate only grows. A refresh that is refused closes the gate, whatever was wrong, until
        one passes; a fork closes it for good, since nobody knows then which history is true.

        It closes because a withdrawal may be in what could not be read: whoever can spoil or hold back exports could keep a
        withdrawn contribution in use, unseen, if the gate went on by the old one. An export of as many leaves as before, and
        the same, passes.

        Raises:
            ReleaseRefused: code of the first finding; BEHIND, the export has fewer leaves than the last; FORKED, it is another
                history; OTHER_RELEASE, another release lies in the directory; INTERNAL.
        """
        with self._refreshing:
            try:
                self._standing = self._refreshed(Path(export))
            except Exception as error:
                refused = _as_refusal(error)
                self._standing = _closed(self._standing, refused)
                raise refused from error

    def load(self, admission: Admission, path: str) -> bytes:
        """Reads a file of an admission.

        Guarantee: what is returned are bytes of the size and SHA-256 that the manifest names, or nothing is.

        Raises:
            ReleaseRefused: code NOT_ADMITTED, it is no file of this admission; CHANGED_FILE, it was changed, or cannot be read.
        """
        file = self._file(admission, path)
        return b"".join(self._chunks(file))

    def resolve(self, admission: Admission) -> dict[str, Path]:
        """Compares every file of an admission where it lies, and returns their places by path.

        Nothing keeps a file from being exchanged between this and a loader that opens it: where others may write into the
        directory, take `copy` or `load`. Raises ReleaseRefused: as `load`.
        """
        for file in admission.files:
            for _ in self._chunks(self._file(admission, file.path)):
                pass
        return {file.path: self._asked.directory / file.path for file in admission.files}

    def files(self, artifact: str) -> tuple[ServedFile, ...]:
        """Returns the released files from which an artifact is loaded. Raises ReleaseRefused: code ARTIFACT or FILES."""
        standing = self._standing
        return standing.files.get(artifact) or files_of(standing.manifest, standing.report.weights, artifact)

    def fetch(self, artifact: str, into: Path) -> Path:
        """Copies the files of an artifact as `copy` does, ahead of the first query that it answers; admits nobody to it.

        Raises:
            ReleaseRefused: code GATE_CLOSED, or as `files` and `copy`.
        """
        if self.closed is not None:
            raise ReleaseRefused("GATE_CLOSED", "the gate was closed when a newer export was refused; nothing is loaded")
        return self._copied(self.files(artifact), into)

    def copy(self, admission: Admission, into: Path) -> Path:
        """Copies the files of an admission into a new directory that its owner alone may enter, for loaders that take a path.

        Guarantee: what lies there are the files of the manifest: what was compared is what was written, byte for byte.

        Raises:
            ReleaseRefused: as `load`; the directory is left as far as it came, without the file that differs.
            OSError: the directory exists, or cannot be written.
        """
        return self._copied([self._file(admission, file.path) for file in admission.files], into)

    def _copied(self, files: Iterable[ServedFile], into: Path) -> Path:
        make_private_directory(into)
        for file in files:
            target = into / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with open(target, "xb") as stream:
                    for chunk in self._chunks(file):
                        stream.write(chunk)
            except ReleaseRefused:
                with suppress(FileNotFoundError):
                    os.unlink(target)
                raise
        return into

    def _opened(self, data: bytes) -> Granted:
        """Returns a verified envelope, of those that were verified before without verifying it again."""
        if type(data) is not bytes or len(data) > MAX_ENVELOPE:
            return read_rights(data, self._granters, self.name)  # which refuses it, before anything is hashed
        digest = hashlib.sha256(data).digest()
        with self._lock:
            granted = self._verified.get(digest)
            if granted is not None:
                self._verified.move_to_end(digest)
                return granted
        granted = read_rights(data, self._granters, self.name)
        with self._lock:
            self._verified[digest] = granted
            while len(self._verified) > KEPT_ENVELOPES:
                self._verified.popitem(last=False)
        return granted

    def _time(self) -> tuple[int, int]:
        """Returns what the clock says, and the latest that it ever said."""
        now = self._clock()
        with self._lock:
            self._latest = max(self._latest, now)
            return now, self._latest

    def _refreshed(self, export: Path) -> _Standing:
        """Returns how things stand by a newer export."""
        before = self._standing
        if before.closed is not None and before.closed[0] == FORKED:
            sentence = "this ledger showed two histories; find out which is true, and open a gate over that"
            raise ReleaseRefused(FORKED, sentence)
        report, manifest = self._asked.check(export, self._clock())
        if manifest != before.manifest:
            sentence = f"{self._asked.directory} holds another release than the gate was opened over"
            raise ReleaseRefused("OTHER_RELEASE", f"{sentence}; open a new gate for it")
        found = _standing(report, manifest, self.classes)
        if found.size < before.size:
            sentence = f"the export has {found.size} leaves, this gate has seen {before.size} of its ledger"
            raise ReleaseRefused("BEHIND", f"{sentence}; get a newer one: it may lack a withdrawal")
        leaves = read_export(export).leaves
        if (leaves.size, leaves.root_at(leaves.size)) != (found.size, found.root):
            raise ReleaseRefused("CHANGED", f"{export} changed while it was read; give a copy that nobody writes")
        if leaves.root_at(before.size) != before.root:
            sentence = f"the first {before.size} leaves of the export are not those that this gate has seen: two histories"
            raise ReleaseRefused(FORKED, f"{sentence} of one ledger, both signed; publish both checkpoints")
        return found

    def _file(self, admission: Admission, path: str) -> ServedFile:
        """Returns a file of an admission that this gate gave."""
        standing = self._standing
        known = standing.files.get(admission.artifact, ()) if admission.artifacts_digest == standing.digest else ()
        for file in known:
            if file.path == path:
                return file
        raise ReleaseRefused("NOT_ADMITTED", f"{path!a:.100} is no file of {admission.artifact!a:.80} in this release")

    def _chunks(self, file: ServedFile) -> Iterator[bytes]:
        """Yields a file, and refuses at its end what is not the released one: nothing of it may be used before."""
        digest, left = hashlib.sha256(), file.size
        try:
            with opened(self._asked.directory, file.path) as stream:
                while chunk := stream.read(min(CHUNK, left + 1)):
                    left -= len(chunk)
                    if left < 0:
                        break
                    digest.update(chunk)
                    yield chunk
        except (LedgerError, OSError) as error:
            why = error.sentence if isinstance(error, LedgerError) else error.strerror or str(error)
            raise ReleaseRefused("CHANGED_FILE", f"{file.path} is no longer the released file: {why}") from error
        if left or digest.digest() != file.sha256:
            sentence = f"{file.path} is not the released file of {file.size} bytes with SHA-256 {file.sha256.hex()} any more"
            raise ReleaseRefused("CHANGED_FILE", f"{sentence}; restore it, and open the gate again")


def _standing(report: ReleaseReport, manifest: Manifest, classes: Mapping[str, tuple[str, ...]]) -> _Standing:
    """Returns what queries are judged by, from a release that passed its check."""
    names = dict.fromkeys(name for artifacts in classes.values() for name in artifacts)
    assert report.ledger_size is not None and report.ledger_root is not None  # else it would be SIGNED
    return _Standing(
        report=report,
        manifest=manifest,
        digest=manifest.artifacts_digest,
        postures={name: posture_of(report, manifest, name) for name in names},
        files={name: files_of(manifest, report.weights, name) for name in names},
        size=report.ledger_size,
        root=report.ledger_root,
    )


def _as_refusal(error: Exception) -> ReleaseRefused:
    """Returns a refusal for what went wrong: what breaks a refresh must not pass it."""
    if isinstance(error, ReleaseRefused):
        return error
    if isinstance(error, LedgerError | AttestError):
        return ReleaseRefused(error.code, error.sentence)
    return ReleaseRefused("INTERNAL", f"the refresh broke off: {type(error).__name__}: {error}")


def _closed(standing: _Standing, refused: ReleaseRefused) -> _Standing:
    """Returns the same, closed."""
    return _Standing(
        standing.report, standing.manifest, standing.digest, standing.postures, standing.files, standing.size, standing.root,
        (refused.code, refused.sentence),
    )  # fmt: skip


def _serials(serials: Iterable[bytes]) -> frozenset[bytes]:
    found = frozenset(serials)
    for serial in found:
        if type(serial) is not bytes or len(serial) != SERIAL_SIZE:
            raise RightsRefused("TYPE", f"a serial of rights has {SERIAL_SIZE} bytes, got {serial!r:.80}")
    return found
