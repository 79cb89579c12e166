"""Says of each artifact of a checked release who may have influenced it, at which epsilon, and which files hold it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from attest.fixed_point import MICRO
from attest.schema.cards import card_of
from ledger.audit.findings import Verdict
from ledger.errors import ReleaseRefused
from ledger.release.check import ReleaseReport
from ledger.release.manifest import Manifest
from ledger.release.tied import Status, Tie
from ledger.replay.influence import Artifact

FULL: Final = "full"
BASE: Final = "base"
ADAPTER: Final = "adapter:"


@dataclass(frozen=True, slots=True)
class Certified:
    """Certifies one class: its contributions may have influenced an artifact, at most at an epsilon, at the release's delta.

    Attributes:
        epsilon_micro: in 1e-6; None for a public class, to which nothing is promised.
    """

    name: str
    epsilon_micro: int | None

    _repr_html_ = card_of


@dataclass(frozen=True, slots=True)
class Posture:
    """Says what a release says of one artifact.

    Attributes:
        blocks: names of the blocks of the header that it has.
        certificate: the classes that may have influenced it; of every other class it is independent.
        delta: of all epsilons, as a fraction.
        verdict, qualifiers: of the check of the release. weights: what its files have to do with the weights of the run.
        withdrawn_classes: those of the certificate of which a contribution was withdrawn since the release.
    """

    artifact: str
    blocks: tuple[str, ...]
    certificate: tuple[Certified, ...]
    delta: str
    verdict: Verdict
    qualifiers: tuple[str, ...]
    weights: Status | None
    withdrawn_classes: tuple[str, ...]

    _repr_html_ = card_of

    @property
    def influenced_by(self) -> tuple[str, ...]:
        """Returns the names of the classes that may have influenced it."""
        return tuple(one.name for one in self.certificate)


@dataclass(frozen=True, slots=True)
class ServedFile:
    """Names a released file by its place, its size in bytes and the SHA-256 of all of them."""

    path: str
    size: int
    sha256: bytes

    _repr_html_ = card_of


def posture_of(report: ReleaseReport, manifest: Manifest, artifact: str) -> Posture:
    """Returns what a release says of an artifact. Raises ReleaseRefused: code ARTIFACT, it has none of that name."""
    part = _part(manifest, artifact)
    rows = (row for row, path in zip(manifest.classes, part.influenced_by, strict=True) if path)
    certificate = tuple(Certified(row.name, row.epsilon_micro) for row in rows)
    gone = report.withdrawn_classes or ()
    return Posture(
        artifact=artifact,
        blocks=tuple(manifest.blocks[place].name for place in part.blocks),
        certificate=certificate,
        delta=manifest.delta,
        verdict=report.verdict,
        qualifiers=report.qualifiers,
        weights=None if report.weights is None else report.weights.status,
        withdrawn_classes=tuple(one.name for one in certificate if one.name in gone),
    )


def files_of(manifest: Manifest, weights: Tie | None, artifact: str) -> tuple[ServedFile, ...]:
    """Returns the released files from which an artifact is loaded, in order of their paths.

    The full model has all of them. The base and an adapter have the safetensors files with tensors of theirs and of nothing
    else, and what lies beside these without being another's: settings, tokenizer. A base of which no file is released has none:
    it comes from elsewhere.

    Raises:
        ReleaseRefused: code ARTIFACT, the release has none of that name; FILES, no file holds that adapter and it alone.
    """
    _part(manifest, artifact)
    paths = {file.path for file in manifest.files}
    if artifact != FULL:
        own, others = _own(manifest, weights, artifact)
        if not own and artifact != BASE:
            sentence = f"no released file holds {artifact!a:.80} and nothing else; release every adapter in a folder of its own"
            raise ReleaseRefused("FILES", sentence)
        held = own | others
        folders, mine = set(map(_folder, held)), set(map(_folder, own))
        paths = own | {path for path in paths - held if _home(path, folders) in (*mine, "")} if own else set()
    return tuple(ServedFile(file.path, file.size, file.sha256) for file in manifest.files if file.path in paths)


def _own(manifest: Manifest, weights: Tie | None, artifact: str) -> tuple[set[str], set[str]]:
    """Returns paths of files with tensors of an artifact alone, and of all other files that have, or may have, tensors."""
    bound = {part.name.removeprefix(ADAPTER) for part in manifest.artifacts if part.name.startswith(ADAPTER)}
    wanted = artifact.removeprefix(ADAPTER) if artifact != BASE else None
    compared = {} if weights is None else {file.path: file for file in weights.files}
    aside = () if weights is None else weights.aside
    opaque = () if weights is None else weights.opaque
    own: set[str] = set()
    others = set(opaque)
    for file in (file for file in manifest.files if file.tensors is not None):
        found = compared.get(file.path)
        # Adapters that no class is bound to are part of the base: nobody trained them.
        held = set() if found is None else {name if name in bound else None for name in found.adapters}
        alone = found is not None and not found.foreign and held == {wanted} and file.path not in aside
        (own if alone else others).add(file.path)
    return own, others


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _home(path: str, folders: set[str]) -> str:
    """Returns the folder with tensors that a file lies in or below, the innermost one; none is the directory itself."""
    folder = _folder(path)
    while folder and folder not in folders:
        folder = _folder(folder)
    return folder


def _part(manifest: Manifest, artifact: str) -> Artifact:
    found = next((part for part in manifest.artifacts if part.name == artifact), None)
    if found is None:
        named = ", ".join(part.name for part in manifest.artifacts)
        raise ReleaseRefused("ARTIFACT", f"the release has no artifact {artifact!a:.80}, it has {named:.200}")
    return found


def told(report: ReleaseReport, manifest: Manifest) -> dict[str, Any]:
    """Returns what a release says of itself, of every artifact and of every block, as JSON has it: digests in hex, epsilons as
    numbers, null for public classes."""
    rows = manifest.classes
    return {
        "origin": manifest.origin,
        "time": manifest.time,
        "step": manifest.step,
        "size": manifest.size,
        "root": manifest.root.hex(),
        "header_digest": manifest.header_digest.hex(),
        "artifacts_digest": manifest.artifacts_digest.hex(),
        "delta": manifest.delta,
        "planned_horizon": manifest.horizon,
        "verdict": report.verdict,
        "qualifiers": list(report.qualifiers),
        "weights": None if report.weights is None else report.weights.status,
        "newer_withdrawals": report.newer_withdrawals,
        "withdrawn_classes": None if report.withdrawn_classes is None else list(report.withdrawn_classes),
        "ledger_size": report.ledger_size,
        "artifacts": list(_artifacts(report, manifest)),
        "blocks": [
            {
                "name": block.name,
                "coordinates": block.coordinates,
                "epsilon": {rows[place].name: _number(rows[place].epsilon_micro) for place in block.classes},
            }
            for block in manifest.blocks
        ],
    }


def _artifacts(report: ReleaseReport, manifest: Manifest) -> Iterator[dict[str, Any]]:
    for part in manifest.artifacts:
        found = posture_of(report, manifest, part.name)
        yield {
            "name": part.name,
            "blocks": list(found.blocks),
            "influenced_by": list(found.influenced_by),
            "epsilon": epsilons(found.certificate),
            "withdrawn_classes": list(found.withdrawn_classes),
            "served": report.weights is not None and report.weights.serves(part.name),
        }


def epsilons(certificate: Iterable[Certified]) -> dict[str, float | None]:
    """Returns epsilons by class, as JSON has them: null for public classes."""
    return {one.name: _number(one.epsilon_micro) for one in certificate}


def _number(micro: int | None) -> float | None:
    return None if micro is None else micro / MICRO
