"""`dptrain ledger witness-request` and `witness-answer`: what a witness is posted, and what it answers."""

import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attest.files import atomic_write, read_limited
from attest.schema.plain import utc
from dptrain.cli.files import PassphraseFile, refuse_to_overwrite
from dptrain.cli.ledger_cosign import ignored_lines, merged_into, print_ignored
from dptrain.cli.ledger_place import LedgerKey, LedgerOrExport, StateDirectory, place_of
from dptrain.cli.ledger_proofs import print_cosigners, verifier_keys
from dptrain.cli.output import JsonFlag, console, print_json
from ledger.errors import WitnessRefused

if TYPE_CHECKING:
    # Loaded where they are used, as in `dptrain.cli.ledger`: help and completion need none of them.
    from ledger.proofs.prover import Node

_PIPE = Path("-")
"""Standard input or output in the place of a file."""


def register(app: typer.Typer) -> None:
    """Add the commands to the group."""
    app.command("witness-request")(witness_request)
    app.command("witness-answer")(witness_answer)


def witness_request(
    ledger: LedgerOrExport,
    body: Annotated[Path, typer.Argument(metavar="BODY", help="New file: the body to post; - for standard output.")],
    since: Annotated[
        int, typer.Option("--since", metavar="N", min=0, help="Leaves that the witness cosigned last; 0 for none.")
    ] = 0,
    state: StateDirectory = None,
    json: JsonFlag = False,
) -> None:
    """Write the request for a witness's cosignature on the last checkpoint.

    A witness (C2SP tlog-witness) vouches that the ledger only grows; it reads no leaf. The request holds the size that it
    signed last, a proof that the ledger extends that, and the checkpoint with the ledger's own signature. Nothing is sent: post
    the file to the witness, and give its answer to `ledger witness-answer`. A witness that signed another size than --since
    answers with that.
    """
    from ledger.note import peek_checkpoint
    from ledger.proofs.witnessing import make_request

    if body != _PIPE:
        refuse_to_overwrite(body)
    note, node = _tree(ledger, state)
    data, size = make_request(node, note, since), peek_checkpoint(note).size
    if body == _PIPE:
        if json:
            raise typer.BadParameter("--json and a request on standard output do not go together; name a file")
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return
    atomic_write(body, data)
    if json:
        print_json({"path": str(body), "since": since, "size": size})
        return
    out = console()
    out.print(f"wrote {body}: {size} leaves, from {since} on")
    out.print(f"post it with: curl -i --data-binary @{body} -o answer https://WITNESS/add-checkpoint")
    out.print(f"and then: dptrain ledger witness-answer {ledger} {body} answer")


def witness_answer(
    ledger: LedgerOrExport,
    body: Annotated[Path, typer.Argument(metavar="BODY", exists=True, dir_okay=False, help="The request that was posted.")],
    answer: Annotated[Path, typer.Argument(metavar="ANSWER", help="What came back, as curl -i saves it; - for stdin.")],
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="PUB", help="Public key of a witness whom the policy does not name; repeat."),
    ] = None,
    ledger_key: LedgerKey = None,
    passphrase_file: PassphraseFile = None,
    state: StateDirectory = None,
    json: JsonFlag = False,
) -> None:
    """Take a witness's answer in: verify its cosignature, and add it to the checkpoint.

    Every line is verified under the keys of the policy, or given with --key, and nothing is taken away; exports of the ledger
    that are made later have it. An answer that is no cosignature is refused by what it says: WITNESS_CONFLICT with the size
    that the witness signed before, WITNESS_PROOF, WITNESS_UNKNOWN, WITNESS_FORBIDDEN.
    """
    from ledger.note import SIGNATURE_COSIGNATURE_V1, open_note, peek_checkpoint
    from ledger.proofs.witnessing import MAX_ANSWER_SIZE, MAX_REQUEST_SIZE, read_answer, read_request

    request = read_request(read_limited(body, MAX_REQUEST_SIZE, "request to a witness"))
    if answer != _PIPE and not answer.is_file():
        raise typer.BadParameter(f"there is no file {answer}; give what the witness answered, or - for standard input")
    data = (
        sys.stdin.buffer.read(MAX_ANSWER_SIZE + 1)
        if answer == _PIPE
        else read_limited(answer, MAX_ANSWER_SIZE, "answer of a witness")
    )
    note = read_answer(data, request)
    named = [vkey for text in key or [] for vkey in verifier_keys(text)]
    merged, trusted = merged_into(ledger, [note], named, ledger_key, passphrase_file, state)
    lines = open_note(note, list(dict.fromkeys(trusted))).signatures
    taken = tuple(item for item in lines if item.key.kind == SIGNATURE_COSIGNATURE_V1)
    ignored = ignored_lines([answer], [note], trusted)
    if not taken:
        names = ", ".join(f"{row['name']} (key id {row['key_id']})" for row in ignored) or "nobody"
        sentence = f"the answer is signed by {names}, and the policy names no such key; give it with --key, if you trust it"
        raise WitnessRefused("WITNESS_KEY", sentence)
    size = peek_checkpoint(merged).size
    if json:
        cosigners = [{"name": item.key.name, "time": item.timestamp} for item in taken]
        print_json({"path": ledger, "size": size, "cosigners": cosigners, "ignored": ignored})
        return
    print_ignored(ignored)
    print_cosigners(taken)
    latest = max(item.timestamp or 0 for item in taken)
    console().print(f"the checkpoint of {size} leaves has it since {utc(latest)}; next time: --since {size}")


def _tree(ledger: str, state: Path | None) -> tuple[bytes, "Node"]:
    """The last checkpoint of a ledger, or of an export, and the nodes of the tree under it."""
    if Path(ledger).is_dir():
        from ledger.proofs.reader import ExportReader

        reader = ExportReader(Path(ledger))
        return reader.checkpoint, reader.node
    from ledger.log import Ledger
    from ledger.subtrees import Subtrees

    tree = Subtrees()
    with Ledger.open(place_of(ledger, state), read_only=True) as log, log.rows() as rows:
        note = log.checkpoint
        for row in islice(rows, log.state.keys.open_note(note)[1].size):
            if row.leaf_hash:
                tree.append(row.leaf_hash, row.level)
    return note, tree.node
