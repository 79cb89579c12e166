"""Writes the documents and bundles of a release, and finds where those of one are not what manifest, ledger and audit give."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from attest.keys import p256
from ledger.audit import AuditReport, verify_export
from ledger.audit.findings import Finding, Verdict, headline
from ledger.errors import LedgerError, ReleaseRefused
from ledger.leaves import Header
from ledger.log import Ledger
from ledger.published import BOM, CARD, MARK, OTHER_CARD, Facts, Listed, Publication, written
from ledger.published.bundles import (
    MAX_BUNDLE,
    MODEL_KEY,
    MODEL_SIGNATURE,
    STATEMENT,
    check_bundle,
    model_statement,
    release_statement,
)
from ledger.published.facts import decimal
from ledger.release.files import Digested, opened
from ledger.release.manifest import BESIDE, EXPORT, MANIFEST, Manifest
from ledger.release.stack import frozen_note
from ledger.release.tied import tie

READERS: Final = frozenset(("NO_QUORUM", "NO_WITNESS_QUORUM", "UNCOMPARED", "UNPINNED"))
"""Qualifiers that hang on what a reader pins, or on who has cosigned since."""

LATER: Final = frozenset(
    ("CLOCK_SET", "ISOLATION_WEAKENED", "KEY_REVOKED", "PRUNED", "RELEASE_OLDER", "WITHDRAWALS_TOLD", "WITHDRAWAL_UNENTERED")
)
"""Qualifiers that leaves behind a release may bring."""


_SAID: Final = (
    *("origin", "log_vkey", "time", "step", "size", "root", "header_digest", "delta", "horizon", "withdrawn"),
    *("classes", "artifacts", "statements"),
)


def audited(log: Ledger, *, now: int, registry: Path | None, attestations: bool) -> AuditReport:
    """Audits a ledger as it is, as whoever has its key alone would. Raises ReleaseRefused: code AUDIT, something is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        export = log.export(Path(folder) / EXPORT, registry=registry, attestations=attestations)
        report = verify_export(export, [log.signer.vkey], now=max(now, log.state.last_time))
    for finding in report.findings:
        sentence = f"the audit of the ledger says {finding.code}, {finding.where}: {finding.sentence}"
        raise ReleaseRefused("AUDIT", f"{sentence}; no document says a figure of it: mend that, or release without documents")
    return report


def words_of(found: AuditReport, header: Header, manifest: Manifest) -> set[str]:
    """Returns the qualifiers of an export with those of a release of it."""
    weights, words = tie(manifest.weights, manifest.files), set(found.qualifiers)
    records = None if manifest.weights is None else manifest.weights.records
    if weights.status != "TIED":
        words.add("WEIGHTS_NOT_TIED")
    elif frozen_note(header, records) is None:
        words.discard("FROZEN_TOLD")
    return words | ({"CODE_BESIDE"} if weights.code else set())


def facts_of(manifest: Manifest, header: Header, publication: Publication, *, signed: bool) -> Facts:
    """Returns what documents may say: what manifest and header do, and what is recorded for documents."""
    return Facts(
        header=header,
        publication=publication,
        weights=tie(manifest.weights, manifest.files).status,
        signed=signed,
        **{name: getattr(manifest, name) for name in _SAID},
    )


def in_bom(files: Sequence[Digested]) -> list[Listed]:
    """Returns the files that an ML-BOM lists: all but itself, and the signature that comes after it."""
    return [Listed(file.path, file.sha256) for file in files if file.path not in (BOM, MODEL_SIGNATURE)]


def model_payload(files: Sequence[Digested]) -> bytes:
    """Returns what `model.sig` signs: every file of a release but itself and what comes after it."""
    signed = [Listed(file.path, file.sha256) for file in files if file.path != MODEL_SIGNATURE]
    return model_statement(signed, "model", BESIDE)


def manifest_payload(manifest: Manifest, data: bytes) -> bytes:
    """Returns what `release.sigstore.json` signs: the statement of the manifest, in JSON. `data`: the manifest's file."""
    return release_statement(data, MANIFEST, [Listed(file.path, file.sha256) for file in manifest.files], _predicate(manifest))


def _predicate(manifest: Manifest) -> dict[str, Any]:
    publication = manifest.publication
    audit = None if publication is None else {"verdict": publication.verdict, "qualifiers": list(publication.qualifiers)}
    return {
        "schema": manifest.schema,
        "origin": manifest.origin,
        "logVkey": manifest.log_vkey,
        "time": manifest.time,
        "step": manifest.step,
        "size": manifest.size,
        "root": manifest.root.hex(),
        "headerDigest": manifest.header_digest.hex(),
        "delta": manifest.delta,
        "plannedHorizon": manifest.horizon,
        "withdrawn": manifest.withdrawn,
        "withdrawalsRoot": manifest.withdrawals_root.hex(),
        "classes": [
            {
                "name": row.name,
                "contributions": row.contributions,
                "withdrawn": row.withdrawn,
                "epsilon": None if row.epsilon_micro is None else decimal(row.epsilon_micro),
                "epsilonReplace": None if row.replace_micro is None else decimal(row.replace_micro),
            }
            for row in manifest.classes
        ],
        "artifacts": [
            {
                "name": part.name,
                "influencedBy": [row.name for row, path in zip(manifest.classes, part.influenced_by, strict=True) if path],
            }
            for part in manifest.artifacts
        ],
        "statements": list(manifest.statements),
        "weights": tie(manifest.weights, manifest.files).status,
        "audit": audit,
    }


def bundle_problems(directory: Path, manifest: Manifest, data: bytes) -> Iterator[Finding]:
    """Finds what is wrong with the bundles that a manifest names by its signing key: BUNDLE, SIGNING_KEY, MISSING_FILE."""
    raw = manifest.signing_key
    if raw is None:
        return
    for path, payload in ((MODEL_SIGNATURE, model_payload(manifest.files)), (STATEMENT, manifest_payload(manifest, data))):
        try:
            check_bundle(_read(directory, path), payload, raw, path)
        except LedgerError as error:
            code = "MISSING_FILE" if error.code == "UNREADABLE" else error.code
            yield Finding(code, path, error.sentence)
    try:
        found = _read(directory, MODEL_KEY)
    except LedgerError as error:
        yield Finding("MISSING_FILE", MODEL_KEY, error.sentence)
        return
    if found != _pem(raw):
        yield Finding("SIGNING_KEY", MODEL_KEY, "it is another key than the one that the manifest names; trust neither")


def document_problems(directory: Path, manifest: Manifest, header: Header) -> Iterator[Finding]:
    """Writes the documents that a manifest lists again, and finds those that have other bytes: DOCUMENT.

    Guarantee: without a problem every document says what `ledger.published` writes of manifest, header and recorded audit, to
    the byte; and no other file passes for a model card that was written so.
    """
    publication = manifest.publication
    documents = () if publication is None else publication.documents
    if publication is not None:
        facts = facts_of(manifest, header, publication, signed=manifest.signing_key is not None)
        for path in documents:
            expected = written(path, facts, in_bom(manifest.files))
            try:
                found = _read(directory, path)
            except LedgerError as error:
                yield Finding("DOCUMENT", path, error.sentence)
                continue
            if found != expected:
                yield Finding("DOCUMENT", path, f"it says otherwise than manifest and ledger: {_first(found, expected)}")
    for path in (file.path for file in manifest.files):
        if path.endswith(".md") and path not in documents and MARK.encode() in _head(directory, path):
            told = "it passes for a model card from the audit, and the manifest lists no such document: believe nothing of it"
            yield Finding("DOCUMENT", path, told)


def unlisted(manifest: Manifest) -> list[str]:
    """Returns files that have the name of a document and are none."""
    publication = manifest.publication
    documents = () if publication is None else publication.documents
    named = {file.path for file in manifest.files}
    return sorted(named.intersection(("DISCLOSURE.md", "disclosure.json", BOM, CARD, OTHER_CARD)).difference(documents))


def audit_problem(manifest: Manifest, found: AuditReport, header: Header) -> str | None:
    """Says where documents tell more of an audit than one finds in the export of the directory; None where they do not."""
    told = manifest.publication
    if told is None or found.verdict == "FAILED" or found.size is None:
        return None
    order = get_args(Verdict)
    at_once = found.size <= manifest.size + 1
    qualifiers = words_of(found, header, manifest) - READERS - (set() if at_once else LATER)
    pruned = not at_once and "PRUNED" in found.qualifiers
    weaker = order.index(found.verdict) > order.index(told.verdict) and not pruned
    hidden = sorted(qualifiers - set(told.qualifiers))
    if not weaker and not hidden:
        return None
    here, there = headline(found.verdict, sorted(qualifiers)), headline(told.verdict, told.qualifiers)
    return f"documents tell of an audit that said {there}, that of the export says {here}: believe neither"


def weaker_since(told: Publication, found: AuditReport, words: set[str]) -> str | None:
    """Says where an audit finds less than documents tell of theirs, as it may where leaves came since; None where it does not.

    Args:
        words: qualifiers of the release by the export that is audited.
    """
    order = get_args(Verdict)
    more = sorted(words - READERS - {"RELEASE_OLDER"} - set(told.qualifiers))
    if not more and order.index(found.verdict) <= order.index(told.verdict):
        return None
    there = headline(told.verdict, told.qualifiers)
    return f"documents tell of the audit at the release, {there}; this export gives {headline(found.verdict, sorted(words))}"


def _first(found: bytes, expected: bytes) -> str:
    """Names the first line that differs, of both."""
    here, there = found.split(b"\n"), expected.split(b"\n")
    for number, (one, other) in enumerate(zip(here, there, strict=False), 1):
        if one != other:
            return f"line {number} is {one.decode(errors='replace')!a:.120}, expected {other.decode(errors='replace')!a:.120}"
    return f"it has {len(here)} lines, expected {len(there)}"


def _pem(raw: bytes) -> bytes:
    return p256.public_pem(raw)


def _read(directory: Path, path: str) -> bytes:
    with opened(directory, path) as stream:
        data = stream.read(MAX_BUNDLE + 1)
    if len(data) > MAX_BUNDLE:
        raise ReleaseRefused("BUNDLE", f"{path} has more than {MAX_BUNDLE} bytes; 'dptrain release' writes none so long")
    return data


def _head(directory: Path, path: str) -> bytes:
    try:
        with opened(directory, path) as stream:
            return stream.read(MAX_BUNDLE)
    except LedgerError:
        return b""
