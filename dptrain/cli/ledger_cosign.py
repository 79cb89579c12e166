"""`dptrain ledger cosign`, `merge` and `auditor-key`: auditors vouch for one history of a ledger, and that is added to it."""

import time
from pathlib import Path
from typing import Annotated

import typer

from attest import keys
from attest.files import atomic_write, read_limited
from attest.schema.plain import utc, visible
from dptrain.cli.files import KeyFile, PassphraseFile, load_key, refuse_to_overwrite
from dptrain.cli.ledger_place import LedgerKey, LedgerOrExport, StateDirectory, opened_to_sign, place_of
from dptrain.cli.ledger_proofs import print_cosigners, verifier_keys
from dptrain.cli.ledger_show import COLOURS
from dptrain.cli.options import existing_file
from dptrain.cli.output import JsonFlag, console, counted, counting, print_json, styled

Name = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Name of the auditor in signature lines; best a URL without https://. Default: of KEY."),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the group."""
    app.command()(cosign)
    app.command()(merge)
    app.command("auditor-key")(auditor_key)


def cosign(
    export: Annotated[
        Path, typer.Argument(metavar="EXPORT", exists=True, file_okay=False, help="Directory that export wrote.")
    ],
    note: Annotated[Path, typer.Argument(metavar="NOTE", help="New file: the checkpoint with your cosignature.")],
    key: KeyFile,
    log_key: Annotated[
        list[str],
        typer.Option(metavar="PUB", help="Public key of the ledger: a file of verifier keys, or one itself; repeat."),
    ],
    name: Name = None,
    memory: Annotated[
        Path | None,
        typer.Option(metavar="DIR", file_okay=False, help="What you cosigned before; default: KEY.cosigned beside the key."),
    ] = None,
    first: Annotated[
        bool, typer.Option("--first", help="This is the first checkpoint of this ledger that you cosign.")
    ] = False,
    summary: Annotated[
        bool,
        typer.Option("--summary", help="Vouch for the summaries too: what they speak for may then be deleted. Not if TOLD."),
    ] = False,
    owner_key: Annotated[
        Path | None, existing_file("--owner-key", "PUB", "Require a policy signed by this corpus owner.")
    ] = None,
    registry: Annotated[
        Path | None, existing_file("--registry", "REGISTRY", "Contributor registry, in place of the one in the export.")
    ] = None,
    passphrase_file: PassphraseFile = None,
    json: JsonFlag = False,
) -> None:
    """Audit an export, hold it against what you cosigned before, and cosign.

    Your memory keeps the last checkpoint per ledger. A ledger that is smaller, or has another history, is refused, and both
    checkpoints are written to an evidence file that `ledger verify-proof` checks. Keep the memory as you keep the key.
    """
    from ledger.audit.words import headline
    from ledger.note import Cosigner
    from ledger.proofs.cosigning import cosign_export
    from ledger.proofs.memory import Memory

    refuse_to_overwrite(note)
    signer, named = load_key(key, passphrase_file, name, "--name")
    cosigner = Cosigner(named, signer)
    log_keys = [vkey for text in log_key for vkey in verifier_keys(text)]
    owner = None if owner_key is None else keys.load_public_key(owner_key)
    with counting(f"auditing {export}"):
        done = cosign_export(
            export,
            log_keys,
            cosigner,
            Memory(memory or key.with_suffix(".cosigned"), cosigner.vkey),
            now=int(time.time()),
            owner_key=owner,
            first=first,
            summary=summary,
            registry=registry,
        )
    atomic_write(note, done.note)
    before = None if done.before is None else done.before.checkpoint.size
    vouched = [row for row in done.report.summaries if row.seq in done.vouched]
    if json:
        told = {"path": str(note), "key": cosigner.vkey, "origin": done.report.origin, "size": done.report.size}
        told |= {"root": done.report.root_hex, "before": before, "named": cosigner.vkey in done.report.auditors}
        told |= {"verdict": done.report.verdict, "qualifiers": list(done.report.qualifiers)}
        print_json({**told, "vouched": [row.seq for row in vouched], "stayed": done.stayed})
        return
    out = console()
    colour = COLOURS.get(done.report.verdict, "red")
    told = headline(done.report.verdict, done.report.qualifiers)
    out.print(styled(f"bold {colour}", told, f"  {done.report.origin}: {done.report.size} leaves"))
    if done.before is not None:
        out.print(f"extends the {before} leaves that you cosigned at {utc(done.before.time)}")
    for row in vouched:
        gone = f"leaves {row.first} to {row.end - 1} may go"
        out.print(f"vouches for the summary at leaf {row.seq}: once enough auditors do, {gone}")
    if done.stayed:
        out.print("vouches for whoever stayed until the run was closed: once enough auditors do, they may go too")
    if cosigner.vkey in done.report.auditors:
        out.print(f"wrote {note}; its operator adds it with: dptrain ledger merge LEDGER {note}")
        return
    if done.report.auditors:
        out.print(f"note: the policy names other auditors; your key is {cosigner.vkey}")
    out.print(f"wrote {note}; its operator adds it with: dptrain ledger merge LEDGER {note} --key {cosigner.vkey}")


def merge(
    ledger: LedgerOrExport,
    notes: Annotated[list[Path], typer.Argument(metavar="NOTE", exists=True, dir_okay=False, help="As cosign wrote them.")],
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="PUB", help="Public key of an auditor whom the policy does not name; repeat."),
    ] = None,
    ledger_key: LedgerKey = None,
    passphrase_file: PassphraseFile = None,
    state: StateDirectory = None,
    json: JsonFlag = False,
) -> None:
    """Add auditors' cosignatures to the ledger, or to an export of it.

    Every line is verified first, and nothing is taken away. Exports of a ledger that are made later have them too.
    """
    from ledger.note import MAX_NOTE_SIZE, SIGNATURE_COSIGNATURE_V1, open_note
    from ledger.retention.statements import NAME_SUFFIX

    named = [vkey for text in key or [] for vkey in verifier_keys(text)]
    given = [read_limited(path, MAX_NOTE_SIZE, "note") for path in notes]
    merged, trusted = merged_into(ledger, given, named, ledger_key, passphrase_file, state)
    ignored = ignored_lines(notes, given, trusted)
    lines = [item for item in open_note(merged, list(dict.fromkeys(trusted))).signatures if item.timestamp is not None]
    cosigned = tuple(item for item in lines if item.key.kind == SIGNATURE_COSIGNATURE_V1)
    vouched = [item.key.name.removesuffix(NAME_SUFFIX) for item in lines if item not in cosigned]
    if json:
        cosigners = [{"name": item.key.name, "time": item.timestamp} for item in cosigned]
        print_json({"path": ledger, "cosigners": cosigners, "vouchers": vouched, "ignored": ignored})
        return
    out = console()
    print_ignored(ignored)
    out.print(f"the checkpoint of {ledger} has {counted(len(cosigned), 'cosignature')}")
    print_cosigners(cosigned)
    if vouched:
        out.print(f"its summaries are vouched for by {', '.join(map(visible, vouched))}")


def merged_into(
    ledger: str, given: list[bytes], named: list[str], ledger_key: Path | None, passphrase_file: Path | None, state: Path | None
) -> tuple[bytes, list[str]]:
    """Merges the lines of notes into a ledger's checkpoint, or that of an export; returns it and the keys that count."""
    from ledger.retention.statements import summary_keys

    if Path(ledger).is_dir():
        return _merge_into_export(Path(ledger), given, named)
    with opened_to_sign(place_of(ledger, state), ledger_key, passphrase_file) as log:
        trusted = [*log.state.keys.trust_policy().vkeys, *named, *summary_keys(log.header)]
        for note in given:
            merged = log.add_signatures(note, trusted)
    return merged, trusted


def print_ignored(ignored: list[dict[str, str]]) -> None:
    """Tells of lines that were not taken over."""
    for row in ignored:
        name = visible(row["name"], plain=True)
        console().print(
            f"note: {row['path']} has a line by {name}, key id {row['key_id']}: not taken over, since the "
            "policy does not name that key; give it with --key, if you trust it"
        )


def ignored_lines(paths: list[Path], given: list[bytes], trusted: list[str]) -> list[dict[str, str]]:
    """Returns the lines that are by none of the keys, and so were not taken over; the ledger's own are no news to it."""
    from ledger.note import open_note, peek_checkpoint

    found = []
    for path, note in zip(paths, given, strict=True):
        own, lines = peek_checkpoint(note).origin, open_note(note, list(dict.fromkeys(trusted))).ignored
        found += [{"path": str(path), "name": name, "key_id": key_id.hex()} for name, key_id in lines if name != own]
    return found


def _merge_into_export(export: Path, given: list[bytes], named: list[str]) -> tuple[bytes, list[str]]:
    """Returns the merged note, once it is written, and the keys whose lines count."""
    from ledger.layout import CHECKPOINT, POLICY
    from ledger.note import merge_notes
    from ledger.proofs.reader import ExportReader
    from ledger.retention.statements import summary_key
    from ledger.trust import AUDITORS, parse_policy

    reader = ExportReader(export)
    policy = parse_policy(reader.read(POLICY))
    trusted = [*policy.vkeys, *(str(summary_key(auditor)) for auditor in policy.keys_of(AUDITORS)), *named]
    merged = merge_notes(reader.checkpoint, given, list(dict.fromkeys(trusted)))
    if merged != reader.checkpoint:
        atomic_write(export / CHECKPOINT, merged)
    return merged, trusted


def auditor_key(
    key: Annotated[
        Path, typer.Argument(metavar="PUB", exists=True, dir_okay=False, help="Public key file, as attest keygen wrote it.")
    ],
    name: Name = None,
    json: JsonFlag = False,
) -> None:
    """Print the line that names you as an auditor in policies: name, key id and key."""
    from ledger.note import SIGNATURE_COSIGNATURE_V1, VerifierKey, parse_verifier_key

    found, raw = keys.load_named_public_key(key)
    vkey = str(parse_verifier_key(str(VerifierKey(name or found, SIGNATURE_COSIGNATURE_V1, raw))))
    if json:
        print_json({"key": vkey})
    else:
        typer.echo(vkey)
