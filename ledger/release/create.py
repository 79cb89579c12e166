"""Makes a release: digests the files, records it in the ledger, and writes the manifest with its true sentences."""

import contextlib
import hashlib
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from attest.files import atomic_write
from attest.keys import p256
from attest.schema.cards import card_of
from ledger.errors import ReleaseRefused, StorageFailed
from ledger.export import read_registry
from ledger.leaves import Header
from ledger.log import Ledger
from ledger.published import ANSWERS, BOM, CARD, MARK, OTHER_CARD, PAGE, About, Publication, written
from ledger.published.bundles import MODEL_KEY, MODEL_SIGNATURE, STATEMENT, sign_bundle
from ledger.published.facts import FORM
from ledger.release.files import digested, listed
from ledger.release.manifest import (
    BESIDE,
    EXPORT,
    MANIFEST,
    SCHEMA,
    BlockRow,
    Manifest,
    ReleasedFile,
    sign_manifest,
)
from ledger.release.publishing import (
    audited,
    document_problems,
    facts_of,
    in_bom,
    manifest_payload,
    model_payload,
    words_of,
)
from ledger.release.tied import Commitment, Tie, tie, told, told_beside
from ledger.replay import Replay
from ledger.replay.influence import Artifact, artifacts, class_figures, is_final, withdrawals_root
from ledger.replay.permits import Isolation

DIRECT: Final = (
    "A (direct isolation): at every step{until} and from every state, with the data, draws and noise of everyone else fixed, "
    "the update of parameters and optimizer state outside the blocks of its class is not a function of a contribution's "
    "payload. That rests on what the trainer recorded and no ledger can show: the optimizer is one that moves every tensor by "
    "its own gradients, nothing changed these after their release but a clip of each block by itself, and nothing else wrote "
    "parameters."
)
NOTHING_YET: Final = (
    "A (direct isolation): the trainer recorded that the optimizer is one that keeps it. Whether gradients were left as they "
    "were released is recorded with an epoch, and none was closed before this release, so nothing is said of it."
)
WEAKER: Final = (
    "A (direct isolation) does not hold of this run, as the trainer recorded: {reason}. Within one step, parameters and "
    "optimizer state outside the blocks of its class may follow from a contribution's payload, through what was released of "
    "other blocks. That influence is indirect, and B bounds it."
)
INDIRECT: Final = (
    "B (indirect influence): the whole trajectory of the run, blocks outside those of its class included, is (epsilon, "
    "delta = {delta})-differentially private with respect to each private contribution, under zero-out adjacency: its payload "
    "against a null of the same public shape. Epsilon is at most that of its class in this manifest."
)
HORIZON: Final = (
    "The run did not go to its signed end when this was released, so epsilon is that of its whole planned horizon: when to "
    "stop may have been decided by looking at the model."
)
NO_PATH: Final = (
    "D (no path): no class may touch a block of artifact {name}, as far as the influence graph of the ledger's header goes: it "
    "holds parameters as they were before the first step, and is exactly independent of every contribution. It is said of "
    "these parameters, not of a file that claims to hold them."
)
NO_PATH_FROM: Final = (
    "D (no path): no path leads from {classes} to artifact {name}, by the blocks that classes may touch and those that their "
    "forwards read, as the ledger's header says: it is exactly independent of the payloads that these contributed. That rests "
    "on what the trainer recorded and no ledger can show: that A holds, that every forward had the adapters switched off that "
    "it does not read, and that no run was broken off, gone on with or chosen among others by these payloads. Of the time "
    "that steps took nothing is said."
)
NARROWED: Final = (
    "Forwards are narrowed by the policy: a class reads the blocks that the ledger's header names, and no other. A path leads "
    "from a class to every block that it may touch, and from a block to every class that reads it."
)
STOPPED: Final = (
    "Forwards are narrowed by the policy, and these are not known to be the weights with which the run went to its signed end: "
    "which step they are of may have followed from any class, so a path is counted from every class that trained anything to "
    "every artifact that a class may have trained."
)
PATHS: Final = (
    "All adapters are active in every forward, so every class reads every block: where a class may have trained any block of "
    "an artifact, a path is counted from every class that trained anything."
)
NOT_SAID: Final = (
    "Not said: that blocks outside those of its class are independent of a contribution after a whole run; that the weights to "
    "which the ledger commits are what training gave, which is its operator's word; what settings, tokenizer and code make of "
    "them when they are loaded, to which no leaf commits; and anything of contributions of public classes."
)


def statements(
    artifacts: Sequence[Artifact],
    delta: str,
    weights: Tie,
    isolation: Isolation,
    *,
    step: int,
    horizon: bool,
    narrowed: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """Returns what holds of a release with these artifacts at this delta.

    Args:
        narrowed: the classes of the policy where it narrows what forwards read; none of them where these are not the weights at
            the signed end; None for a policy that does not narrow it.
        isolation: how statement A stands at the end of the leaves that the manifest cites.
        horizon: whether epsilons are those of the planned horizon.
    """
    free = [part.name for part in artifacts if part.blocks and not any(part.influenced_by)]
    said = [direct(isolation, step), INDIRECT.format(delta=delta)]
    said += [HORIZON] if horizon else []
    said += [NO_PATH.format(name=name) for name in free]
    for part in artifacts if narrowed else ():
        out = [name for name, path in zip(narrowed or (), part.influenced_by, strict=True) if not path]
        if out and any(part.influenced_by):
            classes = f"class{'es' if len(out) > 1 else ''} {', '.join(out)}"
            said.append(NO_PATH_FROM.format(name=part.name, classes=classes))
    paths = PATHS if narrowed is None else NARROWED if narrowed else STOPPED
    return (*said, paths, told(weights), *told_beside(weights), NOT_SAID)


def direct(isolation: Isolation, step: int) -> str:
    """Returns statement A as it stands: whole, up to the last epoch that speaks for it, or the weaker sentence by name."""
    if not isolation.held:
        return WEAKER.format(reason=isolation.told)
    if not isolation.until:
        return NOTHING_YET
    if isolation.until < step:
        return DIRECT.format(until=f" up to step {isolation.until}, of later ones nothing is said,")
    return DIRECT.format(until="")


Kind = Literal["card", "disclosure", "bom"]

DOCUMENTS: Final[dict[Kind, tuple[str, ...]]] = {"card": (CARD,), "disclosure": (PAGE, ANSWERS), "bom": (BOM,)}
"""Kinds of documents, each with its paths, in the order in which they are written; the last one lists the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Says what is written beside the weights before they are released.

    Attributes:
        kinds: documents to write, from an audit of the ledger as it is.
        about: what the releaser types; None for the ledger's origin as the name, and nothing else.
        key: what signs `model.sig` and `release.sigstore.json`; None for neither.
        version: version of dptrain, which the documents tell.
    """

    version: str
    kinds: Collection[Kind] = tuple(DOCUMENTS)
    about: About | None = None
    key: EllipticCurvePrivateKey | None = None

    _repr_html_ = card_of


STAMP: Final = "NOT_PRIVATE"
"""File that marks the model of a run without privacy, kept for comparison."""


@dataclass(frozen=True, slots=True)
class Released:
    """Tells of a release that was made: its manifest, the export beside it, the RELEASE leaf in that, and what the files have
    to do with the weights of the run, tensor by tensor."""

    path: Path
    export: Path
    seq: int
    manifest: Manifest
    weights: Tie

    _repr_html_ = card_of


def release(
    log: Ledger,
    directory: Path,
    *,
    now: int,
    registry: Path | None = None,
    attestations: bool = True,
    publish: Publish | None = None,
) -> Released:
    """Releases the files of a directory as the model of a ledger.

    Guarantee: The ledger has a RELEASE leaf with the digest of the manifest, durably, before the manifest exists; the manifest
    appears whole or not at all, and after it the export that it is checked against. A crash in between leaves a RELEASE leaf
    without a manifest, which says too much and never too little: release again. Whether the files are the weights of an epoch
    is found out and said, not demanded: a release of converted or other weights says that it is one.

    Args:
        directory: where the weights lie, and nothing that is not to be released.
        registry, attestations: what goes into the export, as `ledger.log.ledger.Ledger.export` has them.
        publish: documents and signatures to write into the directory first; None for none.

    Raises:
        ExportRefused: code REGISTRY, it is not the registry of the run; nothing is recorded then.
        ReleaseRefused: the run was not private, released no step or has an open window; something of an earlier release is in
            the way; the directory has what a release cannot have (`ledger.release.files`); or the ledger does not pass the
            audit that documents are written from (code AUDIT).
        LedgerClosed, LedgerBusy, StorageFailed: as for appending.
    """
    _check_run(log)
    if registry is not None:
        read_registry(log.header, registry, log.state.registry_roots)
    for name in BESIDE:
        if os.path.lexists(directory / name):
            raise ReleaseRefused("EXISTS", f"{directory / name} exists: it was released already; move it away to do so again")
    paths = listed(directory)
    if STAMP in paths:
        raise ReleaseRefused("NOT_PRIVATE", f"{directory / STAMP} says that this model was trained without privacy")
    if not paths:
        raise ReleaseRefused("EMPTY", f"there is no file in {directory}; give the directory of a model")
    files = tuple(digested(directory, path) for path in paths)
    with contextlib.ExitStack() as undo:
        if publish is None:
            manifest = describe(log, files, now=now)
        else:
            manifest = _published(log, directory, files, publish, undo, now=now, registry=registry, attestations=attestations)
        data = sign_manifest(manifest, log.signer)
        seq = log.record_release(hashlib.sha256(data).digest(), manifest.artifacts_digest, manifest.step, now=now)
        undo.pop_all()
    try:
        atomic_write(directory / MANIFEST, data)
        if publish is not None and publish.key is not None:
            atomic_write(directory / STATEMENT, sign_bundle(manifest_payload(manifest, data), publish.key))
    except OSError as error:
        sentence = f"cannot write {directory / MANIFEST}: {error.strerror or error}; leaf {seq} tells of a release without it"
        raise StorageFailed("STORAGE", sentence) from error
    export = log.export(directory / EXPORT, registry=registry, attestations=attestations)
    return Released(directory / MANIFEST, export, seq, manifest, tie(manifest.weights, manifest.files))


def _published(
    log: Ledger,
    directory: Path,
    files: tuple[ReleasedFile, ...],
    publish: Publish,
    undo: contextlib.ExitStack,
    *,
    now: int,
    registry: Path | None,
    attestations: bool,
) -> Manifest:
    """Writes documents and signature into the directory, and returns the manifest with them; ``undo`` takes them away again.

    The order is that of who covers whom: documents say nothing of files but the ML-BOM, which lists all but itself; `model.sig`
    signs all of them; the manifest has all of these.
    """
    paths = [path for kind, own in DOCUMENTS.items() if kind in publish.kinds for path in own]
    if CARD in paths and any(file.path == CARD for file in files):
        paths[paths.index(CARD)] = OTHER_CARD
    _check_free(directory, [*paths, *((MODEL_KEY, MODEL_SIGNATURE) if publish.key is not None else ())])
    draft, publication = describe(log, files, now=now), None

    def add(path: str, data: bytes) -> None:
        nonlocal files
        undo.callback((directory / path).unlink, missing_ok=True)
        atomic_write(directory / path, data)
        files = tuple(sorted((*files, digested(directory, path)), key=lambda file: file.path))

    try:
        if paths:
            found = audited(log, now=now, registry=registry, attestations=attestations)
            publication = Publication(
                form=FORM,
                version=publish.version,
                documents=tuple(sorted(paths)),
                verdict=found.verdict,
                qualifiers=tuple(sorted(words_of(found, log.header, draft))),
                about=publish.about or About(name=log.header.origin[:96]),
            )
        if publish.key is not None:
            add(MODEL_KEY, p256.public_pem(p256.point(publish.key)))
        for path in paths:
            assert publication is not None
            facts = facts_of(draft, log.header, publication, signed=publish.key is not None)
            add(path, written(path, facts, in_bom(files)))
        if publish.key is not None:
            add(MODEL_SIGNATURE, sign_bundle(model_payload(files), publish.key))
    except OSError as error:
        sentence = f"cannot write into {directory}: {error.strerror or error}; nothing was released"
        raise StorageFailed("STORAGE", sentence) from error
    key = None if publish.key is None else p256.point(publish.key)
    manifest = describe(log, files, now=now, signing_key=key, publication=publication)
    for finding in document_problems(directory, manifest, log.header):
        raise ReleaseRefused("DOCUMENT", f"{finding.where}: {finding.sentence}")
    return manifest


def _check_free(directory: Path, paths: Sequence[str]) -> None:
    """Refuses what lies where something is to be written, and the model card of an earlier release."""
    for path in paths:
        if os.path.lexists(directory / path):
            raise ReleaseRefused("EXISTS", f"{directory / path} exists; move it away, or release without it")
    if OTHER_CARD in paths and MARK.encode() in (directory / CARD).read_bytes():
        raise ReleaseRefused("EXISTS", f"{directory / CARD} is the model card of an earlier release; move it away")


def describe(
    log: Ledger,
    files: tuple[ReleasedFile, ...],
    *,
    now: int,
    signing_key: bytes | None = None,
    publication: Publication | None = None,
) -> Manifest:
    """Returns the manifest of a release of these files now; signs a checkpoint for it to cite."""
    log.sign_checkpoint()
    header, run, weights = log.header, log.state, closest(log, files)
    return Manifest(
        schema=SCHEMA,
        origin=header.origin,
        log_vkey=log.signer.vkey,
        time=max(now, run.last_time),
        size=log.size,
        root=log.root,
        header_digest=log.header_digest,
        files=files,
        classes=class_figures(run),
        weights=weights,
        signing_key=signing_key,
        publication=publication,
        **record_of(run, tie(weights, files)),
    )


def record_of(run: Replay, weights: Tie) -> dict[str, Any]:
    """Returns what a manifest must say of a run that has the leaves that it cites, and no more: its fields by name."""
    header, horizon = run.header, not is_final(run)
    final = not horizon and weights.commitment is not None and weights.commitment.step == run.position
    parts = artifacts(header, final=final)
    delta, (withdrawn, gone) = str(header.policy.delta), withdrawals_root(run.withdrawals, run.size)
    return {
        "step": run.position,
        "delta": delta,
        "horizon": horizon,
        "withdrawn": withdrawn,
        "withdrawals_root": gone,
        "blocks": block_rows(header),
        "artifacts": parts,
        "statements": statements(
            parts, delta, weights, run.isolation, step=run.position, horizon=horizon,
            narrowed=None if header.reads is None else [rule.name for rule in header.policy.classes] if final else (),
        ),
    }


def closest(log: Ledger, files: tuple[ReleasedFile, ...]) -> Commitment | None:
    """Returns the epoch whose weights the files are, else the one that they share most tensors with; the later of equal ones.
    Raises LedgerCorrupt: the records of an epoch are not what its leaf commits to."""
    best, most = None, (-1, -1)
    for epoch in reversed(log.state.epochs):
        records = log.weights_of(epoch.model_digest)
        if records is None:
            continue
        found = Commitment(epoch.number, epoch.seq, epoch.step, records)
        told = tie(found, files)
        if told.status == "TIED":
            return found
        shared = (sum(len(file.tied) for file in told.files), told.present)
        if shared > most:
            best, most = found, shared
    return best


def block_rows(header: Header) -> tuple[BlockRow, ...]:
    """Returns the posture of every block: which classes may have touched it."""
    order = {rule.name: place for place, rule in enumerate(header.policy.classes)}
    return tuple(
        BlockRow(block.name, block.coordinates, tuple(order[name] for name in block.classes)) for block in header.blocks
    )


def _check_run(log: Ledger) -> None:
    run = log.state
    if not log.header.private:
        raise ReleaseRefused("NOT_PRIVATE", "this run used a fixed test key, so its noise protects nobody")
    if run.position == 0:
        raise ReleaseRefused("NOTHING", "the run has released no step yet; train first")
    if run.open_window is not None:
        raise ReleaseRefused("WINDOW_OPEN", f"window {run.open_window.window} is still open; resume the run, or wait for it")
