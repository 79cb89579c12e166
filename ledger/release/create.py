"""Makes a release: digests the files, records it in the ledger, and writes the manifest with its true sentences."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from attest.files import atomic_write
from attest.schema.cards import card_of
from ledger.errors import ReleaseRefused, StorageFailed
from ledger.export import read_registry
from ledger.leaves import Header
from ledger.log import Ledger
from ledger.release.files import digested, listed
from ledger.release.manifest import EXPORT, MANIFEST, SCHEMA, BlockRow, Manifest, ReleasedFile, sign_manifest
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
    artifacts: Sequence[Artifact], delta: str, weights: Tie, isolation: Isolation, *, step: int, horizon: bool
) -> tuple[str, ...]:
    """Returns what holds of a release with these artifacts at this delta.

    Args:
        isolation: how statement A stands at the end of the leaves that the manifest cites.
        horizon: whether epsilons are those of the planned horizon.
    """
    free = [part.name for part in artifacts if part.blocks and not any(part.influenced_by)]
    said = [direct(isolation, step), INDIRECT.format(delta=delta)]
    said += [HORIZON] if horizon else []
    said += [NO_PATH.format(name=name) for name in free]
    return (*said, PATHS, told(weights), *told_beside(weights), NOT_SAID)


def direct(isolation: Isolation, step: int) -> str:
    """Returns statement A as it stands: whole, up to the last epoch that speaks for it, or the weaker sentence by name."""
    if not isolation.held:
        return WEAKER.format(reason=isolation.told)
    if not isolation.until:
        return NOTHING_YET
    if isolation.until < step:
        return DIRECT.format(until=f" up to step {isolation.until}, of later ones nothing is said,")
    return DIRECT.format(until="")


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


def release(log: Ledger, directory: Path, *, now: int, registry: Path | None = None, attestations: bool = True) -> Released:
    """Releases the files of a directory as the model of a ledger.

    Guarantee: The ledger has a RELEASE leaf with the digest of the manifest, durably, before the manifest exists; the manifest
    appears whole or not at all, and after it the export that it is checked against. A crash in between leaves a RELEASE leaf
    without a manifest, which says too much and never too little: release again. Whether the files are the weights of an epoch
    is found out and said, not demanded: a release of converted or other weights says that it is one.

    Args:
        directory: where the weights lie, and nothing that is not to be released.
        registry, attestations: what goes into the export, as `ledger.log.ledger.Ledger.export` has them.

    Raises:
        ExportRefused: code REGISTRY, it is not the registry of the run; nothing is recorded then.
        ReleaseRefused: the run was not private, released no step or has an open window; something of an earlier release is in
            the way; or the directory has what a release cannot have (`ledger.release.files`).
        LedgerClosed, LedgerBusy, StorageFailed: as for appending.
    """
    _check_run(log)
    if registry is not None:
        read_registry(log.header, registry, log.state.registry_roots)
    for name in (MANIFEST, EXPORT):
        if os.path.lexists(directory / name):
            raise ReleaseRefused("EXISTS", f"{directory / name} exists: it was released already; move it away to do so again")
    paths = listed(directory)
    if STAMP in paths:
        raise ReleaseRefused("NOT_PRIVATE", f"{directory / STAMP} says that this model was trained without privacy")
    if not paths:
        raise ReleaseRefused("EMPTY", f"there is no file in {directory}; give the directory of a model")
    manifest = describe(log, tuple(digested(directory, path) for path in paths), now=now)
    data = sign_manifest(manifest, log.signer)
    seq = log.record_release(hashlib.sha256(data).digest(), manifest.artifacts_digest, manifest.step, now=now)
    try:
        atomic_write(directory / MANIFEST, data)
    except OSError as error:
        sentence = f"cannot write {directory / MANIFEST}: {error.strerror or error}; leaf {seq} tells of a release without it"
        raise StorageFailed("STORAGE", sentence) from error
    export = log.export(directory / EXPORT, registry=registry, attestations=attestations)
    return Released(directory / MANIFEST, export, seq, manifest, tie(manifest.weights, manifest.files))


def describe(log: Ledger, files: tuple[ReleasedFile, ...], *, now: int) -> Manifest:
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
        **record_of(run, tie(weights, files)),
    )


def record_of(run: Replay, weights: Tie) -> dict[str, Any]:
    """Returns what a manifest must say of a run that has the leaves that it cites, and no more: its fields by name."""
    header, horizon, parts = run.header, not is_final(run), artifacts(run.header)
    delta, (withdrawn, gone) = str(header.policy.delta), withdrawals_root(run.withdrawals, run.size)
    return {
        "step": run.position,
        "delta": delta,
        "horizon": horizon,
        "withdrawn": withdrawn,
        "withdrawals_root": gone,
        "blocks": block_rows(header),
        "artifacts": parts,
        "statements": statements(parts, delta, weights, run.isolation, step=run.position, horizon=horizon),
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
