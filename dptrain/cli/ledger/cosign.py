"""`dptrain ledger cosign`, `merge`, `auditor-key` and `witness`: others vouch for the history of a ledger."""

import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from attest import keys
from attest.files import atomic_write, read_limited
from attest.schema.plain import utc, visible
from dptrain.cli.inputs import KeyFile, PassphraseFile, load_key, refuse_to_overwrite
from dptrain.cli.ledger.place import (
    LOG_KEYS,
    ExportDirectory,
    LedgerKey,
    LedgerOrExport,
    OwnersKey,
    StateDirectory,
    opened_to_sign,
    place_of,
    trusted,
    verifier_keys,
)
from dptrain.cli.ledger.proofs import cosigner_lines, cosigners
from dptrain.cli.ledger.show import verdict_line
from dptrain.cli.options import argument, file_argument, file_option, option, wrong_if
from dptrain.cli.output import counted, counting
from dptrain.cli.results import JsonFlag, Shown, Told, pick
from ledger import note as note_format
from ledger.errors import WitnessRefused
from ledger.layout import CHECKPOINT, POLICY
from ledger.log import Ledger
from ledger.proofs.cosigning import MAX_ANSWER_SIZE, MAX_REQUEST_SIZE, cosign_export, make_request, read_answer, read_request
from ledger.proofs.memory import Memory
from ledger.proofs.prover import ExportReader, Node
from ledger.retention import NAME_SUFFIX, summary_key, summary_keys
from ledger.tiles import Subtrees
from ledger.trust import AUDITORS, parse_policy

Name = Annotated[
    str | None, option("Name of the auditor in signature lines; best a URL without https://. Default: of KEY.", metavar="NAME")
]


def cosign(
    export: ExportDirectory,
    note: Annotated[Path, argument("New file: the checkpoint with your cosignature.", metavar="NOTE")],
    key: KeyFile,
    log_key: Annotated[list[str], option(LOG_KEYS, metavar="PUB")],
    name: Name = None,
    memory: Annotated[
        Path | None, option("What you cosigned before; default: KEY.cosigned beside the key.", metavar="DIR", file_okay=False)
    ] = None,
    first: Annotated[bool, option("This is the first checkpoint of this ledger that you cosign.", "--first")] = False,
    summary: Annotated[
        bool, option("Vouch for the summaries too: what they speak for may then be deleted. Not if TOLD.", "--summary")
    ] = False,
    owner_key: OwnersKey = None,
    registry: Annotated[
        Path | None, file_option("REGISTRY", "Contributor registry, in place of the one in the export.")
    ] = None,
    passphrase_file: PassphraseFile = None,
) -> Told:
    """Audit an export, hold it against what you cosigned before, and cosign.

    Your memory keeps the last checkpoint per ledger. A ledger that is smaller, or has another history, is refused, and both
    checkpoints are written to an evidence file that `ledger verify-proof` checks. Keep the memory as you keep the key.

    As an auditor, for every export that you are given: readers whose trust policy asks for you then know that everybody was
    shown the same ledger, and that you found nothing wrong with it.

    Example: `dptrain ledger cosign export/ anna.note --key anna.key --log-key ledger.pub --first`
    """
    refuse_to_overwrite(note)
    signer, named = load_key(key, passphrase_file, name, "--name")
    cosigner = note_format.Cosigner(named, signer)
    owner, log_keys = trusted(log_key, owner_key)
    known = Memory(memory or key.with_suffix(".cosigned"), cosigner.vkey)
    how: dict[str, Any] = {"owner_key": owner, "first": first, "summary": summary, "registry": registry}
    with counting(f"auditing {export}"):
        done = cosign_export(export, log_keys, cosigner, known, now=int(time.time()), **how)
    atomic_write(note, done.note)
    report, before = done.report, done.before
    vouched = [row for row in report.summaries if row.seq in done.vouched]
    is_named = cosigner.vkey in report.auditors
    told = {"path": str(note), "key": cosigner.vkey, **pick(report, "origin size verdict qualifiers", root="root_hex")}
    told |= {"before": None if before is None else before.checkpoint.size, "named": is_named}
    told |= {"vouched": [row.seq for row in vouched], "stayed": done.stayed}
    text: list[Shown] = [verdict_line(report.verdict, report.qualifiers, f"{report.origin}: {report.size} leaves")]
    if before is not None:
        text.append(f"extends the {before.checkpoint.size} leaves that you cosigned at {utc(before.time)}")
    for row in vouched:
        gone = f"leaves {row.first} to {row.end - 1} may go"
        text.append(f"vouches for the summary at leaf {row.seq}: once enough auditors do, {gone}")
    if done.stayed:
        text.append("vouches for whoever stayed until the run was closed: once enough auditors do, they may go too")
    if report.auditors and not is_named:
        text.append(f"note: the policy names other auditors; your key is {cosigner.vkey}")
    also = "" if is_named else f" --key {cosigner.vkey}"
    return Told(told, [*text, f"wrote {note}; its operator adds it with: dptrain ledger merge LEDGER {note}{also}"])


def merge(
    ledger: LedgerOrExport,
    notes: Annotated[list[Path], file_argument("NOTE", "As cosign wrote them.")],
    key: Annotated[
        list[str] | None, option("Public key of an auditor whom the policy does not name; repeat.", metavar="PUB")
    ] = None,
    ledger_key: LedgerKey = None,
    passphrase_file: PassphraseFile = None,
    state: StateDirectory = None,
) -> Told:
    """Add auditors' cosignatures to the ledger, or to an export of it.

    Every line is verified first, and nothing is taken away. Exports of a ledger that are made later have them too.

    As the operator, when auditors have sent their notes: an export with cosignatures satisfies trust policies that ask for
    them, and so do the proofs made from it.

    Example: `dptrain ledger merge ledger.db anna.note ben.note`
    """
    given = [read_limited(path, note_format.MAX_NOTE_SIZE, "note") for path in notes]
    merged, trusted = _merged(ledger, given, key or [], ledger_key, passphrase_file, state)
    ignored = _ignored(notes, given, trusted)
    lines = [item for item in note_format.open_note(merged, trusted).signatures if item.timestamp is not None]
    cosigned = tuple(item for item in lines if item.key.kind == note_format.SIGNATURE_COSIGNATURE_V1)
    vouched = [item.key.name.removesuffix(NAME_SUFFIX) for item in lines if item not in cosigned]
    return Told(
        {"path": ledger, "cosigners": cosigners(cosigned), "vouchers": vouched, "ignored": ignored},
        [
            *_ignored_text(ignored),
            f"the checkpoint of {ledger} has {counted(len(cosigned), 'cosignature')}",
            *cosigner_lines(cosigned),
            *([f"its summaries are vouched for by {', '.join(map(visible, vouched))}"] if vouched else []),
        ],
    )


def _merged(
    ledger: str, given: list[bytes], keys: list[str], key: Path | None, passphrase_file: Path | None, state: Path | None
) -> tuple[bytes, list[str]]:
    """Merges the lines of notes into a ledger's checkpoint, or that of an export; returns it and the keys that count."""
    named = [vkey for text in keys for vkey in verifier_keys(text)]
    if Path(ledger).is_dir():
        reader = ExportReader(Path(ledger))
        policy = parse_policy(reader.read(POLICY))
        trusted = [*policy.vkeys, *(str(summary_key(auditor)) for auditor in policy.keys_of(AUDITORS)), *named]
        merged = note_format.merge_notes(reader.checkpoint, given, list(dict.fromkeys(trusted)))
        if merged != reader.checkpoint:
            atomic_write(Path(ledger) / CHECKPOINT, merged)
    else:
        with opened_to_sign(place_of(ledger, state), key, passphrase_file) as log:
            trusted = [*log.state.keys.trust_policy().vkeys, *named, *summary_keys(log.header)]
            for note in given:
                merged = log.add_signatures(note, trusted)
    return merged, list(dict.fromkeys(trusted))


def _ignored_text(ignored: list[dict[str, str]]) -> Iterator[str]:
    """Yields a line for each line that was not taken over."""
    for row in ignored:
        name = visible(row["name"], plain=True)
        yield (
            f"note: {row['path']} has a line by {name}, key id {row['key_id']}: not taken over, since the "
            "policy does not name that key; give it with --key, if you trust it"
        )


def _ignored(paths: list[Path], given: list[bytes], trusted: list[str]) -> list[dict[str, str]]:
    """Returns the lines that are by none of the keys, and so were not taken over; the ledger's own are no news to it."""
    found = []
    for path, note in zip(paths, given, strict=True):
        own, lines = note_format.peek_checkpoint(note).origin, note_format.open_note(note, trusted).ignored
        found += [{"path": str(path), "name": name, "key_id": key_id.hex()} for name, key_id in lines if name != own]
    return found


def auditor_key(
    key: Annotated[Path, file_argument("PUB", "Public key file, as attest keygen wrote it.")], name: Name = None
) -> Told:
    """Print the line that names you as an auditor in policies: name, key id and key.

    As an auditor, once: corpus owners name this key in their policies, readers in their trust policies. Use a key for nothing
    else.

    Example: `dptrain ledger auditor-key anna.pub --name auditor.example/anna`
    """
    found, raw = keys.load_named_public_key(key)
    vkey = str(
        note_format.parse_verifier_key(str(note_format.VerifierKey(name or found, note_format.SIGNATURE_COSIGNATURE_V1, raw)))
    )
    return Told({"key": vkey}, [vkey])


_PIPE = Path("-")
"""Standard input or output in the place of a file."""


def witness_request(
    ledger: LedgerOrExport,
    body: Annotated[Path, argument("New file: the body to post; - for standard output.", metavar="BODY")],
    since: Annotated[int, option("Leaves that the witness cosigned last; 0 for none.", metavar="N", min=0)] = 0,
    state: StateDirectory = None,
    json: JsonFlag = False,
) -> Told | None:
    """Write the request for a witness's cosignature on the last checkpoint.

    A witness (C2SP tlog-witness) vouches that the ledger only grows; it reads no leaf. The request holds the size that it
    signed last, a proof that the ledger extends that, and the checkpoint with the ledger's own signature. Nothing is sent: post
    the file to the witness, and give its answer to `ledger witness-answer`. A witness that signed another size than --since
    answers with that.

    Example: `dptrain ledger witness-request ledger.db w1.body --since 120`
    """
    if body != _PIPE:
        refuse_to_overwrite(body)
    note, node = _tree(ledger, state)
    data, size = make_request(node, note, since), note_format.peek_checkpoint(note).size
    if body == _PIPE:
        wrong_if(json, "--json and a request on standard output do not go together; name a file")
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return None
    atomic_write(body, data)
    return Told(
        {"path": str(body), "since": since, "size": size},
        [
            f"wrote {body}: {size} leaves, from {since} on",
            f"post it with: curl -i --data-binary @{body} -o answer https://WITNESS/add-checkpoint",
            f"and then: dptrain ledger witness-answer {ledger} {body} answer",
        ],
    )


def witness_answer(
    ledger: LedgerOrExport,
    body: Annotated[Path, file_argument("BODY", "The request that was posted.")],
    answer: Annotated[Path, argument("What came back, as curl -i saves it; - for stdin.", metavar="ANSWER")],
    key: Annotated[
        list[str] | None, option("Public key of a witness whom the policy does not name; repeat.", metavar="PUB")
    ] = None,
    ledger_key: LedgerKey = None,
    passphrase_file: PassphraseFile = None,
    state: StateDirectory = None,
) -> Told:
    """Take a witness's answer in: verify its cosignature, and add it to the checkpoint.

    Every line is verified under the keys of the policy, or given with --key, and nothing is taken away; exports of the ledger
    that are made later have it. An answer that is no cosignature is refused by what it says: WITNESS_CONFLICT with the size
    that the witness signed before, WITNESS_PROOF, WITNESS_UNKNOWN, WITNESS_FORBIDDEN.

    Example: `dptrain ledger witness-answer ledger.db w1.body w1.answer`
    """
    request = read_request(read_limited(body, MAX_REQUEST_SIZE, "request to a witness"))
    if answer != _PIPE and not answer.is_file():
        raise typer.BadParameter(f"there is no file {answer}; give what the witness answered, or - for standard input")
    data = (
        sys.stdin.buffer.read(MAX_ANSWER_SIZE + 1)
        if answer == _PIPE
        else read_limited(answer, MAX_ANSWER_SIZE, "answer of a witness")
    )
    note = read_answer(data, request)
    merged, trusted = _merged(ledger, [note], key or [], ledger_key, passphrase_file, state)
    taken = tuple(
        item
        for item in note_format.open_note(note, trusted).signatures
        if item.key.kind == note_format.SIGNATURE_COSIGNATURE_V1
    )
    ignored = _ignored([answer], [note], trusted)
    if not taken:
        names = ", ".join(f"{row['name']} (key id {row['key_id']})" for row in ignored) or "nobody"
        sentence = f"the answer is signed by {names}, and the policy names no such key; give it with --key, if you trust it"
        raise WitnessRefused("WITNESS_KEY", sentence)
    size, latest = note_format.peek_checkpoint(merged).size, max(item.timestamp or 0 for item in taken)
    return Told(
        {"path": ledger, "size": size, "cosigners": cosigners(taken), "ignored": ignored},
        [
            *_ignored_text(ignored),
            *cosigner_lines(taken),
            f"the checkpoint of {size} leaves has it since {utc(latest)}; next time: --since {size}",
        ],
    )


def _tree(ledger: str, state: Path | None) -> tuple[bytes, Node]:
    """Returns the last checkpoint of a ledger, or of an export, and the nodes of the tree under it."""
    if Path(ledger).is_dir():
        reader = ExportReader(Path(ledger))
        return reader.checkpoint, reader.node

    tree = Subtrees()
    with Ledger.open(place_of(ledger, state), read_only=True) as log, log.rows() as rows:
        note = log.checkpoint
        for row in islice(rows, log.state.keys.open_note(note)[1].size):
            if row.leaf_hash:
                tree.append(row.leaf_hash, row.level)
    return note, tree.node
