"""`dptrain ledger`: show, export, audit and report the record of a run, and enter withdrawals; the rest stands beside."""

import hashlib
import json as json_text
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attest import signed_file
from attest.attestation import read_sequence
from attest.descriptor import ContributionDescriptor
from attest.errors import SignatureRefused
from attest.registry import Registry
from attest.withdrawal import Withdrawal, verify_entitled_withdrawal
from dptrain.cli import exporting
from dptrain.cli.inputs import MemberRecords, PassphraseFile, refuse_to_overwrite
from dptrain.cli.ledger import contributions, wanted
from dptrain.cli.ledger import show as ledger_show
from dptrain.cli.ledger.cosign import auditor_key, cosign, merge, witness_answer, witness_request
from dptrain.cli.ledger.fsck import fsck
from dptrain.cli.ledger.monitor import monitor
from dptrain.cli.ledger.place import LedgerKey, LedgerName, LedgerOrExport, Now, StateDirectory, opened_to_sign, place_of
from dptrain.cli.ledger.proofs import OwnersKey, VerifierKeys, prove, trusted, verify_proof
from dptrain.cli.ledger.retain import retain
from dptrain.cli.ledger.trace import trace
from dptrain.cli.ledger.upkeep import init, rotate_key, set_clock
from dptrain.cli.options import argument, file_argument, file_option, folder_argument, folder_option, option
from dptrain.cli.output import counting, parse_age
from dptrain.cli.results import Told
from dptrain.errors import ConfigError
from ledger.errors import LedgerBusy

if TYPE_CHECKING:
    # SQLAlchemy takes longer to load than everything else together, and help and completion need none of it: the
    # functions below import what they use.
    from ledger.audit import AuditReport
    from ledger.leaves import Header
    from ledger.log import Ledger
    from ledger.replay import Replay
    from ledger.replay.summaries import ShownMember

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="The signed record of a run: keep it, audit it, prove what is in it.\n\nTraining writes the ledger. Who keeps it "
    "hands out an `export`; an auditor needs that and two public keys, got by another way; a contributor needs the export and "
    "the descriptor hash that `dptrain attest show` prints. None of them needs torch.",
)

ExportDirectory = Annotated[Path, folder_argument("EXPORT", "Directory that export wrote.")]
RequireFull = Annotated[
    bool, option("Exit with code 1 unless the verdict is FULL: TOLD and SUMMARISED fail too.", "--require-full")
]


def show(
    ledger: LedgerOrExport,
    key: Annotated[list[str] | None, option("For an export: public key of the ledger; repeat.", metavar="PUB")] = None,
    owner_key: OwnersKey = None,
    content: wanted.Content = None,
    nonce: wanted.Nonce = None,
    anchor: wanted.AnchorFile = None,
    pub: wanted.ContributorKey = None,
    registry: wanted.ContributorRegistry = None,
    withdrawn: contributions.Withdrawn = False,
    header: ledger_show.HeaderAsked = False,
    now: Now = None,
    state: StateDirectory = None,
) -> Told:
    """Show what the ledger says: steps charged, what every class has spent, releases; or of one contribution.

    Takes the ledger, or an export and the ledger's public key: an export is audited first, and asked nothing if it FAILED.
    With --content and --nonce, or with --anchor: where that content was admitted, the windows in whose pool it was, the blocks
    that it could touch, what it has spent, and which releases it may have influenced. With --withdrawn: the statement for
    everybody who withdrew. With --header: whose keys sign.

    Example: `dptrain ledger show ledger.db`
    """
    wanted.check_together(content, nonce, anchor, pub, registry, withdrawn)
    if header and (withdrawn or content is not None or anchor is not None):
        raise typer.BadParameter("give --header, --content, --anchor or --withdrawn, not several")
    with _reading(ledger, state, key, owner_key, now) as (run, root, bodies):
        asked = None
        if anchor is not None:
            asked = wanted.by_anchor(anchor, [run.header], pub=pub, registry=registry, content=content, nonce=nonce)
        elif content is not None and nonce is not None:
            asked = wanted.by_content(content, nonce)
        if asked is not None:
            return contributions.shown_contribution(run, bodies, asked)
        if withdrawn:
            return contributions.shown_withdrawn(run)
        if header:
            return ledger_show.shown_parties(run, ledger)
        data = ledger_show.summary(run, root)
    return Told(data, ledger_show.summary_text(data))


def export(
    ledger: LedgerName,
    directory: Annotated[Path, argument("New directory.", metavar="DIR")],
    registry: exporting.RegistryAlong = None,
    without_attestations: exporting.WithoutAttestations = False,
    state: StateDirectory = None,
    ledger_key: LedgerKey = None,
    passphrase_file: PassphraseFile = None,
) -> Told:
    """Write the ledger as a directory that anybody can audit offline.

    With it goes what contributors signed, and the registry with their keys, so that an audit holds every admission against the
    signature of its contributor. The directory holds no content, no contributor's name, and no draw unless the policy makes
    occurrences public: contents, contributors, data classes and principals stand in it as salted commitments. It appears
    complete or not at all.

    When a run is over, or for an audit in between. Publish the directory with the model; publish ledger.pub elsewhere. With
    `--without-attestations` where your contributors did not let you share what they signed: an audit then repeats what your
    ledger says of them, and is TOLD at best.

    Example: `dptrain ledger export ledger.db export/`
    """
    place = place_of(ledger, state)
    with opened_to_sign(place, ledger_key, passphrase_file) as log:
        with counting(f"exporting {place.shown}"):
            written = log.export(directory, **exporting.taken_along(place, registry, without_attestations))
        size, root, vkey = log.size, log.root.hex(), log.state.keys.current
    return Told(
        {"path": str(written), "size": size, "root": root, "key": vkey} | exporting.contained(written),
        [
            f"wrote {written}: {size} leaves, root {root}",
            *exporting.contained_text(written, without=without_attestations),
            f"verify with: dptrain ledger verify {written} --key {vkey}",
        ],
    )


def verify(
    export: ExportDirectory,
    key: VerifierKeys,
    owner_key: OwnersKey = None,
    require_quorum: Annotated[
        bool, option("Fail unless the auditors and witnesses whom the policy asks for have cosigned.", "--require-quorum")
    ] = False,
    earlier: Annotated[
        list[Path] | None,
        folder_option(
            "EXPORT", "Export of an earlier run that this one counts; then what was spent before is computed again too. Repeat."
        ),
    ] = None,
    min_size: Annotated[
        int | None, option("Fail if there are fewer leaves: an old copy, or a cut tail.", metavar="N", min=1)
    ] = None,
    max_age: Annotated[
        int | None,
        option(
            "Fail if the last leaf, and every auditor's cosignature, is older, such as 7d or 36h; default: any age.",
            parser=parse_age,
            metavar="AGE",
        ),
    ] = None,
    now: Now = None,
    remember: Annotated[
        Path | None,
        option(
            "Keep the largest checkpoint per ledger here, and fail if a later export does not extend it.",
            metavar="DIR",
            file_okay=False,
        ),
    ] = None,
    withdrawals: Annotated[Path | None, folder_option("DIR", "Signed withdrawals: hold WITHDRAW leaves against them.")] = None,
    registry: Annotated[
        Path | None,
        file_option("REGISTRY", "Registry of the contributors' keys, in place of the one in the export, which it must extend."),
    ] = None,
    require_full: RequireFull = False,
) -> Told:
    """Audit an export with the ledger's public key: FULL, SUMMARISED, TOLD or FAILED.

    Every number is derived again from the leaves, and every finding names a file or a leaf. Needs no network, no data, no
    model and no torch. Get the key from the ledger's operator by another way than the export. FULL needs what contributors
    signed in the export, and the registry of their keys, there or with --registry. Behind the verdict stand the
    words that weaken it, such as OPEN or NO_QUORUM; docs/auditors.md has them all. Read the notes too: they say what nothing
    is wrong with and a reader should know. Times are held against the clock of this machine, so see that it is right. Exit
    code 1 for FAILED; with --require-full for whatever is not FULL.

    Example: `dptrain ledger verify export/ --key ledger.pub --owner-key owner.pub --remember seen/`
    """
    from ledger.audit.findings import exit_code

    asked: dict[str, Any] = {"require_quorum": require_quorum, "minimum_size": min_size, "max_age": max_age}
    asked |= {"withdrawals": withdrawals, "registry": registry}
    report = _audit(export, key, owner_key, earlier=earlier or (), remember=remember, now=now, **asked)
    return Told(report.to_json(), ledger_show.audit_text(report), exit_code(report.verdict, require_full=require_full))


def withdraw(
    ledger: LedgerName,
    withdrawals: Annotated[list[Path], file_argument("WITHDRAWAL", "As attest withdraw wrote them.")],
    attestations: Annotated[list[Path] | None, file_option("DATA.attest", "Attestations that are withdrawn; repeat.")] = None,
    registry: Annotated[Path | None, file_option("REGISTRY", "Registry with the signers' keys.")] = None,
    members: MemberRecords = None,
    state: StateDirectory = None,
    ledger_key: LedgerKey = None,
    passphrase_file: PassphraseFile = None,
) -> Told:
    """Enter withdrawals, each signed by its contributor or by the corpus owner.

    A contributor's signature is checked against the registry and against the attestation it withdraws; the owner's
    against the ledger's header. From the next charge on the contribution is drawn no more. What was spent stays spent.
    While a run holds the ledger, put the files into LEDGER.db.withdrawals/ instead (with --state, into
    DIR/ledger.withdrawals/): the run takes them in by itself.

    Example: `dptrain ledger withdraw ledger.db withdrawals/*.cose --attestations notes.jsonl.attest --registry registry.cbor`
    """
    from ledger.audit.attested import registry_of
    from ledger.proofs.membership import read_admitted

    now, place = int(time.time()), place_of(ledger, state)
    descriptors = _descriptors(attestations or [])
    try:
        with opened_to_sign(place, ledger_key, passphrase_file) as log:
            known = None if registry is None else registry_of(log.header, registry)
            if known is not None:
                known.require_names()
            checked = [_check_withdrawal(path, log.header, descriptors, known, now) for path in withdrawals]
            shown = {item.shown.member.descriptor_hash: item.shown for item in map(read_admitted, members or [])}
            entered = [_enter(log, found, evidence, now, shown.get(found.descriptor_hash)) for found, evidence in checked]
    except LedgerBusy as error:
        raise ConfigError(
            error.code,
            f"a run holds {place.shown}; put the files into {place.side('.withdrawals')}/ and it takes them in at its next "
            "charge",
        ) from error
    unmatched = "  (no leaf names such a contribution; recorded all the same)"
    lines = (f"withdrawn {row['descriptor_hash']}, leaf {row['seq']}{'' if row['matched'] else unmatched}" for row in entered)
    return Told({"withdrawn": entered}, lines)


def report(
    export: ExportDirectory,
    out: Annotated[Path, argument("New file.", metavar="REPORT.html")],
    key: VerifierKeys,
    owner_key: OwnersKey = None,
    extras: Annotated[Path | None, file_option("JSON", "Gate counts and results to show, unverified.")] = None,
    now: Now = None,
) -> Told:
    """Audit an export and write one HTML page about it, for people.

    The page fetches and runs nothing, prints, and can be read on a phone; docs/report.md says what is in it.

    Example: `dptrain ledger report export/ report.html --key ledger.pub --owner-key owner.pub`
    """
    refuse_to_overwrite(out)
    told = _extras(extras)
    audited = _audit(export, key, owner_key, now=now)
    from ledger.audit.findings import exit_code, headline
    from ledger.report import write_report

    write_report(export, out, report=audited, extras=told)
    return Told(
        {"path": str(out), "verdict": audited.verdict, "qualifiers": list(audited.qualifiers)},
        [f"wrote {out}: {headline(audited.verdict, audited.qualifiers)}"],
        exit_code(audited.verdict),
    )


@contextmanager
def _reading(
    ledger: str, state: Path | None, key: list[str] | None, owner_key: Path | None, now: int | None
) -> Iterator[tuple["Replay", bytes, Iterable[bytes | None]]]:
    """Yields the run in a ledger or a verified export, its root, and its leaves."""
    if Path(ledger).is_dir():
        if not key or state is not None:
            raise typer.BadParameter(f"'{ledger}' is an export: give the ledger's public key with --key, and no --state")
        from ledger.audit.verify import open_export

        owner, vkeys = trusted(key, owner_key)
        with counting(f"auditing {ledger}"):
            opened = open_export(ledger, vkeys, owner_key=owner, now=now)
        yield opened.run, bytes.fromhex(opened.report.root_hex or ""), opened.given.leaves
        return
    if key or owner_key or now is not None:
        raise typer.BadParameter("--key, --owner-key and --now are for exports; a ledger is checked by 'dptrain ledger fsck'")
    from ledger.log import Ledger

    with Ledger.open(place_of(ledger, state), read_only=True) as log:
        pruned = log.pruned()
        with log.rows() as rows:
            yield log.state, log.root, ((row.body for row in rows) if pruned is None else pruned.entries(rows))


def _audit(
    export: Path,
    pinned: list[str],
    owner_key: Path | None,
    *,
    earlier: Sequence[Path] = (),
    remember: Path | None = None,
    **options: Any,
) -> "AuditReport":
    """Returns the audit, with the other options of `verify_export`, and held against what is remembered."""
    from ledger.audit import verify_export

    owner, vkeys = trusted(pinned, owner_key)
    with counting(f"auditing {export}"):
        report = verify_export(export, vkeys, owner_key=owner, earlier=earlier or None, **options)
    if remember is None:
        return report
    from ledger.proofs.memory import hold_against_memory

    return hold_against_memory(report, export, remember, vkeys)


def _enter(log: "Ledger", found: Withdrawal, evidence: bytes, now: int, member: "ShownMember | None" = None) -> dict[str, Any]:
    seq = log.withdraw(found.descriptor_hash, found.reason_code, evidence, now=now, member=member)
    matched = found.descriptor_hash in log.state.contributions
    return {"descriptor_hash": found.descriptor_hash.hex(), "seq": seq, "matched": matched}


def _check_withdrawal(
    path: Path, header: "Header", descriptors: dict[bytes, ContributionDescriptor], registry: Registry | None, now: int
) -> tuple[Withdrawal, bytes]:
    """Returns a withdrawal whose signer may withdraw that contribution, and the digest of its signature as evidence."""
    payload, message = signed_file.read(path, what="withdrawal")
    evidence = hashlib.sha256(message).digest()
    try:
        found = verify_entitled_withdrawal(
            payload,
            message,
            owner=header.owner,
            owner_key=header.owner_key,
            corpus=header.policy.corpus,
            descriptors=descriptors,
            registry=registry,
            now=now,
        )
    except SignatureRefused as error:
        if error.code != "UNPROVEN":
            raise
        raise ConfigError(
            "WITHDRAWAL_UNPROVEN",
            f"{str(path)!r} is signed by a contributor; give --registry with the signer's key and --attestations with the "
            "attestation that it withdraws",
        ) from error
    return found, evidence


def _descriptors(paths: list[Path]) -> dict[bytes, ContributionDescriptor]:
    found = {}
    for path in paths:
        with path.open("rb") as stream:
            for item in read_sequence(stream):
                found[hashlib.sha256(item.descriptor).digest()] = item.opened()
    return found


def _extras(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        value = json_text.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError("EXTRAS", f"{str(path)!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError("EXTRAS", f"{str(path)!r} holds no JSON object")
    from ledger.report.extras import read_extras

    read_extras(value)  # an audit may take a minute: what would be refused after it is refused before
    return value


for panel, functions in (
    (
        "For who keeps the ledger",
        (show, withdraw, export, merge, witness_request, witness_answer, retain, rotate_key, set_clock, fsck, init),
    ),
    ("For auditors", (verify, report, cosign, auditor_key)),
    ("For contributors", (monitor, trace, prove, verify_proof)),
):
    for function in functions:
        app.command(rich_help_panel=panel)(function)
