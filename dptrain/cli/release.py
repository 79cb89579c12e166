"""`dptrain release`: sign what a model is and whose influence may be in it, and check that of somebody else's."""

import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attest.errors import KeyRefused
from attest.files import atomic_write
from attest.fixed_point import MICRO
from attest.keys import p256
from attest.schema.plain import utc, visible
from dptrain.cli.inputs import PassphraseFile, new_passphrase, read_key_with
from dptrain.cli.ledger.place import (
    LedgerKey,
    RegistryAlong,
    StateDirectory,
    WithoutAttestations,
    checked,
    opened_to_sign,
    place_of,
    trusted,
)
from dptrain.cli.options import file_option, folder_argument, folder_option, moment, option, wrong_if
from dptrain.cli.output import counted, counting, spent, styled, table
from dptrain.cli.results import Shown, Told, pick

if TYPE_CHECKING:
    # Loaded in the functions that use them, as what opens a ledger is in `dptrain.cli.ledger.place`.
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from ledger.published import About
    from ledger.release import Manifest, Publish, ReleaseReport, Tie


def release(
    model: Annotated[Path, folder_argument("MODEL", "Directory of the model, and nothing else.")],
    check: Annotated[bool, option("Check a release instead of making one.", "--check")] = False,
    ledger: Annotated[
        str | None, option("Ledger of the run that trained it, a file or a URL.", metavar="LEDGER", callback=checked)
    ] = None,
    registry: RegistryAlong = None,
    without_attestations: WithoutAttestations = False,
    state: StateDirectory = None,
    ledger_key: LedgerKey = None,
    passphrase_file: PassphraseFile = None,
    about: Annotated[
        Path | None,
        file_option(
            "ABOUT.toml",
            "What you say of the model in its card: name, description, license, language, base_model, tags.",
        ),
    ] = None,
    signing_key: Annotated[
        Path | None,
        option(
            "P-256 key that signs for sigstore's tools; made where there is none. Default: LEDGER.release.key.",
            "--signing-key",
            metavar="KEY",
            dir_okay=False,
        ),
    ] = None,
    without_card: Annotated[bool, option("Write no model card (README.md).", "--without-card")] = False,
    without_disclosure: Annotated[
        bool, option("Write no answers to NIST SP 800-226 (DISCLOSURE.md, disclosure.json).", "--without-disclosure")
    ] = False,
    without_bom: Annotated[bool, option("Write no CycloneDX ML-BOM (bom.cdx.json).", "--without-bom")] = False,
    without_signature: Annotated[
        bool,
        option("Sign nothing for sigstore's tools (model.sig, model.pub, release.sigstore.json).", "--without-signature"),
    ] = False,
    key: Annotated[
        list[str] | None, option("With --check: public key of the ledger, a file or the key itself; repeat.", metavar="PUB")
    ] = None,
    owner_key: Annotated[Path | None, file_option("PUB", "With --check: require this owner's policy.")] = None,
    export: Annotated[Path | None, folder_option("EXPORT", "With --check: a newer export than the one in the model.")] = None,
    require_quorum: Annotated[
        bool,
        option(
            "With --check: fail unless the policy's auditors and witnesses have cosigned what records the release.",
            "--require-quorum",
        ),
    ] = False,
    min_size: Annotated[int, option("With --check: refuse a release that cites fewer leaves.", metavar="N", min=1)] = 1,
    signature_only: Annotated[
        bool, option("With --check: be content with SIGNED, where there is no export.", "--signature-only")
    ] = False,
    require_full: Annotated[
        bool, option("With --check: exit with code 1 unless the verdict is FULL.", "--require-full")
    ] = False,
    now: Annotated[
        int | None, moment("With --check: what the clock says, which neither release nor ledger may be ahead of; default: now.")
    ] = None,
) -> Told:
    """Sign what a model is: its files, the ledger it comes from, and whose influence may be in it; or check that.

    Writes the manifest release.cose and the export of the ledger into the directory, with what contributors signed and the
    registry of their keys, and a leaf about it into the ledger. Says of every tensor whether it is the run's: weights TIED,
    PART, CONVERTED, UNTIED, or UNRECORDED.

    Before that it audits the ledger, and writes what the audit found into the directory for others to read: a model card, a
    disclosure that answers NIST SP 800-226, a CycloneDX ML-BOM, and signatures that OpenSSF's model_signing verifies.

    With --check, everything is held against each other, offline: FULL, SUMMARISED, TOLD, SIGNED (no export to check the numbers
    against; exit code 1, unless you say --signature-only) or FAILED (exit code 1). docs/auditors.md explains them, and the
    words that weaken them. Card, disclosure and ML-BOM are written again, and must be the same bytes. An export that does not
    show the leaf about the release fails: the release may be hidden from auditors. That auditors are shown the same ledger,
    only cosignatures tell: --require-quorum.

    As the operator, once the model's directory is as it shall be published, with nothing else in it: before anybody gets the
    model. As whoever gets a model, with `--check`, before using it.

    Example: `dptrain release model --ledger ledger.db`
    """
    from dptrain.cli.ledger.export import contained, contained_text, taken_along
    from ledger.audit.findings import exit_code
    from ledger.release import check_release
    from ledger.release import release as make

    signing = (ledger, registry, without_attestations or None, state, ledger_key, passphrase_file)
    publishing = (about, signing_key, *(flag or None for flag in (without_card, without_disclosure, without_bom)))
    checking = (key or None, owner_key, export, require_quorum or None, require_full or None, signature_only or None, now)
    if check:
        if any(given is not None for given in signing):
            raise typer.BadParameter(
                "--ledger, --registry, --without-attestations, --state, --ledger-key and --passphrase-file do not go with "
                "--check"
            )
        given = without_signature or any(item is not None for item in publishing)
        wrong_if(given, "--about, --signing-key and --without-... say what is written, and do not go with --check")
        wrong_if(not key, "give --key, the ledger's public key, got by another way than the model")
        owner, vkeys = trusted(key, owner_key)
        asked: dict[str, Any] = {"export": export, "owner_key": owner, "require_quorum": require_quorum, "now": now}
        with counting(f"checking {model}"):
            report = check_release(model, vkeys, minimum_size=min_size, **asked)
        # Whoever takes the export out of a release must not get a pass by that.
        code = exit_code(report.verdict, require_full=require_full, signature_only=signature_only)
        told = pick(report, "verdict qualifiers findings notes newer_withdrawals documents") | {
            "weights": None if report.weights is None else _weights(report.weights),
            "manifest": None if report.manifest is None else _told(report.manifest),
        }
        return Told(told, _report_text(report), code)
    if min_size != 1 or any(given is not None for given in checking):
        raise typer.BadParameter(
            "--key, --owner-key, --export, --require-quorum, --require-full, --signature-only, --min-size and --now go "
            "with --check"
        )
    wrong_if(ledger is None, "give --ledger, the ledger of the run that trained the model; or --check")
    place = place_of(ledger, state)
    off = {"card": without_card, "disclosure": without_disclosure, "bom": without_bom}
    kinds = [kind for kind, without in off.items() if not without]
    with opened_to_sign(place, ledger_key, passphrase_file) as log, counting(f"auditing the ledger and digesting {model}"):
        signer = None if without_signature else _signing_key(ledger_key or place.key, signing_key, passphrase_file)
        publish = _publish(kinds, None if about is None else _about(about), signer)
        along = taken_along(place, registry, without_attestations)
        made = make(log, model, now=int(time.time()), publish=publish, **along)
    told = pick(made, "path export", leaf="seq") | {"key": made.manifest.log_vkey}
    told |= contained(made.export) | _told(made.manifest) | {"weights": _weights(made.weights)}
    return Told(
        told,
        [
            *_text(made.manifest, made.weights),
            *_published(made.manifest),
            f"wrote {made.path} and {made.export}; leaf {made.seq} of the ledger tells of it",
            *contained_text(made.export, without=without_attestations),
            f"check with: dptrain release --check {model} --key {made.manifest.log_vkey}",
        ],
    )


def publish_all(ledger_key: Path, name: str) -> "Publish | None":
    """Returns what `dptrain release` writes where nothing is left out: documents under a name, signed by the key beside that of
    the ledger."""
    from ledger.published import About

    return _publish(("card", "disclosure", "bom"), About(name), _signing_key(ledger_key, None, None))


def _publish(kinds: Sequence[Any], about: "About | None", key: "EllipticCurvePrivateKey | None") -> "Publish | None":
    from ledger.release import Publish

    if not kinds and key is None:
        return None
    try:
        version = metadata.version("dptrain")
    except metadata.PackageNotFoundError:
        version = "not installed"
    return Publish(version=version, kinds=kinds, about=about, key=key)


def _about(path: Path) -> "About":
    """Returns what the releaser says of a model, from a TOML file. Raises typer.BadParameter: it is none, or has other keys."""
    from ledger.errors import ReleaseRefused
    from ledger.published import About

    keys = ("name", "description", "license", "language", "base_model", "tags")
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise typer.BadParameter(f"{path} is no TOML: {error}") from error
    wrong_if(unknown := sorted(found.keys() - set(keys)), f"{path} has {', '.join(unknown)}; it may have {', '.join(keys)}")
    wrong_if("name" not in found, f"{path} has no name; give the model one")
    for name in ("language", "base_model", "tags"):
        value = found.get(name, [])
        found[name] = (value,) if type(value) is str else tuple(value) if type(value) is list else value
    try:
        return About(**found)
    except ReleaseRefused as error:
        raise typer.BadParameter(f"{path}: {error.sentence}") from error


def _signing_key(ledgers: Path, path: Path | None, passphrase_file: Path | None) -> "EllipticCurvePrivateKey":
    """Returns the key that signs for sigstore's tools, from its file; a new one, beside the ledger's, where there is none.

    It is encrypted where that of the ledger is. Raises KeyRefused: as for other keys; typer.BadParameter: nobody is there to
    say its passphrase.
    """
    found = path or ledgers.with_suffix(".release.key")
    wrong_if(str(passphrase_file) == "-", "standard input is read once; give --passphrase-file a file, or --without-signature")
    if found.exists():
        return read_key_with(p256.load_private_key, found, passphrase_file)
    encrypted = b"ENCRYPTED" in ledgers.read_bytes()[:100]
    made = p256.generate()
    p256.save_private_key(found, made, new_passphrase(encrypted and passphrase_file is None, passphrase_file))
    try:
        atomic_write(found.with_suffix(".pem"), p256.public_pem(p256.point(made)))
    except OSError as error:
        raise KeyRefused("FILE", f"cannot write {found.with_suffix('.pem')}: {error.strerror or error}") from error
    return made


def _published(manifest: "Manifest") -> Iterator[Shown]:
    """Yields what was written for others to read."""
    if manifest.publication is not None:
        yield f"wrote {', '.join(manifest.publication.documents)} from the audit, which --check writes again"
    if manifest.signing_key is not None:
        yield "signed model.sig and release.sigstore.json; model_signing verifies them by model.pub"


def _weights(found: "Tie") -> dict[str, Any]:
    """Returns what the files have to do with the weights of the run, as JSON."""
    at = found.commitment
    epoch = dict.fromkeys(("epoch", "step", "leaf")) if at is None else pick(at, "step", epoch="number", leaf="seq")
    files = [
        pick(file, "path tied converted changed foreign")
        | {"as": pick(file.view, "adapter") | {"without": file.view.drop, "with": file.view.add}}
        for file in found.files
    ]
    counts = {"trained_in_files": "present", "untrained_in_files": "untrained", "untrained_elsewhere": "elsewhere"}
    told = pick(found, "status trained left_out aside astray code templates", not_compared="opaque", **counts)
    return told | epoch | {"files": files}


def _told(manifest: "Manifest") -> dict[str, Any]:
    """Returns the manifest as JSON; epsilons as numbers, null for public classes."""
    classes = manifest.classes
    names = "origin time step size root header_digest delta withdrawn withdrawals_root statements"
    publication = manifest.publication
    return pick(manifest, names, planned_horizon="horizon") | {
        "signing_key": manifest.signing_key and manifest.signing_key.hex(),
        "publication": publication and pick(publication, "form documents verdict qualifiers") | {
            "about": pick(publication.about, "name description license language base_model tags")
        },
        "files": [
            pick(file, "path size sha256 form names")
            | {"tensors": file.tensors and [pick(item, "name dtype shape sha256") for item in file.tensors]}
            for file in manifest.files
        ],
        "classes": [
            pick(row, "name contributions withdrawn")
            | {"epsilon": _number(row.epsilon_micro), "epsilon_replace": _number(row.replace_micro)}
            for row in classes
        ],
        "blocks": [
            pick(block, "name coordinates") | {"classes": [classes[place].name for place in block.classes]}
            for block in manifest.blocks
        ],
        "artifacts": [
            {
                "name": part.name,
                "blocks": [manifest.blocks[index].name for index in part.blocks],
                "epsilon": {row.name: _number(manifest.epsilon_micro(part.name, place)) for place, row in enumerate(classes)},
                "influenced_by": [row.name for row, path in zip(classes, part.influenced_by, strict=True) if path],
            }
            for part in manifest.artifacts
        ],
    }


def _number(micro: int | None) -> float | None:
    return None if micro is None else micro / MICRO


def _report_text(report: "ReleaseReport") -> Iterator[Shown]:
    from dptrain.cli.ledger.show import report_text

    name = "the manifest was refused" if report.manifest is None else report.manifest.origin
    yield from report_text(report, name)
    if report.verdict == "FAILED":
        yield "nothing more is said of a release that fails: do not use the model"
        return
    if report.manifest is not None and report.weights is not None:
        yield from _text(report.manifest, report.weights)
        if report.documents:
            yield f"documents say what this check found: {', '.join(report.documents)}"
        if report.manifest.signing_key is not None and not report.findings:
            yield "model.sig and release.sigstore.json: by the key that the manifest names, which is model.pub"


def _weights_text(found: "Tie") -> Iterator[Shown]:
    at = found.commitment
    colour = {"TIED": "green", "PART": "yellow", "CONVERTED": "yellow"}.get(found.status, "red")
    share = "" if at is None else (
        f"  epoch {at.number}, step {at.step}, leaf {at.seq}: {found.present} of {found.trained} trained tensors and "
        f"{found.untrained} others"
    )  # fmt: skip
    yield styled(f"bold {colour}", f"weights {found.status}", share)
    for file in found.files:
        view = [f"adapter {file.view.adapter}"] if file.view.adapter is not None else []
        view += [f"names behind {file.view.drop!a}"] if file.view.drop else []
        view += [f"the part {file.view.add!a}"] if file.view.add else []
        of = f" of {', '.join(view)}" if view else ""
        yield f"  {visible(file.path, plain=True)}: {counted(len(file.tied), 'tensor')}{of} tied"
        yield from _lines({"converted": file.converted, "CHANGED": file.changed, "FOREIGN": file.foreign})
    yield from _lines(
        {
            "LEFT OUT": found.left_out,
            "NOT COMPARED": found.opaque,
            "NOT LOOKED FOR THERE": found.aside,
            "LEADS ELSEWHERE": found.astray,
            "CODE": found.code,
            "TEMPLATES": found.templates,
        }
    )


def _lines(found: Mapping[str, Sequence[str]]) -> Iterator[Shown]:
    """Yields a line for each word with names, of many names the first ten."""
    for what, names in found.items():
        if names:
            more = f" and {len(names) - 10} more" if len(names) > 10 else ""
            shown = ", ".join(visible(name, plain=True) for name in names[:10])
            yield styled("yellow" if what in ("converted", "TEMPLATES") else "red", f"    {what}", f" {shown}{more}")


def _text(manifest: "Manifest", weights: "Tie") -> Iterator[Shown]:
    files = counted(len(manifest.files), "file")
    yield (
        f"{files}, step {manifest.step}, released {utc(manifest.time)}; cites {manifest.size} leaves of {manifest.origin}, "
        f"root {manifest.root.hex()}"
    )
    rows = table("artifact", *(f"epsilon of {row.name}" for row in manifest.classes))
    for part in manifest.artifacts:
        found = (manifest.epsilon_micro(part.name, place) for place in range(len(manifest.classes)))
        rows.add_row(part.name, *(spent(_number(micro)) for micro in found))
    yield rows
    yield from _weights_text(weights)
    yield from manifest.statements
