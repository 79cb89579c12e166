"""`dptrain ledger retain`: summarise past the policy's horizon, prune what auditors have vouched for, drop old hashes."""

import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dptrain.cli.inputs import PassphraseFile
from dptrain.cli.ledger.fsck import checkpoints_beside
from dptrain.cli.ledger.place import LedgerKey, LedgerName, StateDirectory, opened_to_sign, place_of
from dptrain.cli.options import option
from dptrain.cli.output import counting
from dptrain.cli.results import Shown, Told
from ledger.errors import LeafRefused

if TYPE_CHECKING:
    from ledger.log import Ledger
    from ledger.storage.place import Place


def retain(
    ledger: LedgerName,
    prune: Annotated[bool, option("Delete for good the bodies of leaves that enough auditors vouch for.", "--prune")] = False,
    drop_hashes: Annotated[
        bool, option("Delete for good the hashes of leaves that were pruned long ago.", "--drop-hashes")
    ] = False,
    who_stays: Annotated[
        bool, option("With --prune, of a closed run: also the admissions of those who never left.", "--who-stays")
    ] = False,
    ledger_key: LedgerKey = None,
    passphrase_file: PassphraseFile = None,
    state: StateDirectory = None,
) -> Told:
    """Summarise the epochs that the policy keeps no longer; with --prune, delete what auditors vouch for; later, its hashes.

    First, without --prune: a SUMMARY leaf says what all epochs but the last `retention_epochs` said. Then export the ledger,
    let its auditors check the summary (`ledger cosign --summary`), and merge what they write. One epoch later, with --prune:
    the admissions of those who had left by then go. Who is active, every charge, every withdrawal, what was spent and every
    hash stay, and all figures are recomputed from these as before; audits of the ledger say SUMMARISED from then on. No run
    may hold the ledger.

    Once the run is closed, and its auditors have vouched behind the close too (`ledger export`, `ledger cosign --summary` and
    `ledger merge` again), --prune --who-stays lets the admissions of everybody go. Then nothing says any more who was in it:
    hand contributors their proofs first (`ledger prove --kind spend` and `--kind summary`). LEDGER.db.members, for your eyes
    alone, still finds whom a withdrawal is of, for as long as you keep it. A later run counts everybody of the class as having
    spent what the one who spent most did.

    Where the policy has a second horizon, `retention_hash_epochs`, --drop-hashes then deletes the hashes of pruned leaves past
    it, but for the roots of the subtrees that they fill. Every root and every proof of a leaf that stays can still be made;
    that a pruned leaf was there is shown by a proof file made earlier, and by nothing else. Model checkpoints beside the ledger
    can be resumed from as before.

    Example: `dptrain ledger retain ledger.db`
    """
    if prune and drop_hashes:
        raise typer.BadParameter("give --prune or --drop-hashes, not both: bodies go first, and hashes epochs later")
    if who_stays and not prune:
        raise typer.BadParameter("--who-stays goes with --prune")
    place = place_of(ledger, state)
    with opened_to_sign(place, ledger_key, passphrase_file) as log:
        doing = "pruning" if prune else "dropping hashes of" if drop_hashes else "summarising"
        with counting(f"{doing} {place.shown}"):
            gone = log.prune(who_stays=who_stays) if prune else None
            hashes = log.drop_hashes(keep=_pinned(log, place)) if drop_hashes else None
            summary = None if prune or drop_hashes else _summarise(log)
        told: dict[str, Any] = {
            "summary": summary,
            "pruned": gone,
            "pruned_before": log.pruned_before,
            "hashes_gone": hashes,
            "hashes_before": log.hashes_before,
            **_found(log),
        }
    return Told(told, _text(told, ledger, state))


def _text(told: dict[str, Any], ledger: str, state: Path | None) -> Iterator[Shown]:
    if told["pruned"] is not None:
        yield f"{told['pruned']} bodies are gone, all of leaves below {told['pruned_before']}; their hashes stay"
    elif told["hashes_gone"] is not None:
        below = f"all of leaves below {told['hashes_before']}"
        yield f"{told['hashes_gone']} hashes are gone, {below}; the roots of their subtrees stay"
    elif told["summary"] is None:
        yield "no epoch is past the horizon that is not summarised yet"
    for row in told["summaries"]:
        names = ", ".join(row["vouchers"]) or "nobody"
        place = f"leaf {row['leaf']} summarises leaves {row['first']} to {row['end'] - 1}"
        yield f"{place}: {row['state']}, vouched for by {names}"
    if any(row["state"] == "waiting" for row in told["summaries"]):
        named = " ".join(shlex.quote(word) for word in (ledger, *(() if state is None else ("--state", str(state)))))
        yield f"{told['quorum'] or 'none'} of the policy's auditors must vouch for a summary before its leaves are pruned:"
        yield f"  you export it for them:  dptrain ledger export {named} DIR"
        yield "  each of them runs:       dptrain ledger cosign DIR NOTE --key KEY --name NAME --log-key PUB --summary"
        yield f"  you take in their notes: dptrain ledger merge {named} NOTE ..."


def _pinned(log: "Ledger", place: "Place") -> list[int]:
    """Returns the sizes that the model checkpoints beside the ledger pin, each held against it."""
    from dptrain.record.pin import read_record

    return [read_record(log, folder).pin.size for folder in checkpoints_beside(place)]


def _summarise(log: "Ledger") -> int | None:
    """Appends the SUMMARY leaf and returns its position; None when all that is due was summarised before."""
    try:
        return log.summarise(now=int(time.time())).seq
    except LeafRefused as error:
        if error.code != "NOTHING_DUE" or not log.state.tally.summaries:
            raise
        return None


def _found(log: "Ledger") -> dict[str, Any]:
    names, quorum = log.vouchers, log.header.policy.auditor_quorum
    rows = []
    for leaf in log.state.tally.summaries:
        ready = quorum is not None and len(names[leaf.seq]) >= quorum
        state = "ready to be pruned" if ready else "waiting"
        if leaf.end <= log.pruned_before:
            state = "pruned, hashes too" if leaf.end <= log.hashes_before else "pruned"
        rows.append({"leaf": leaf.seq, "first": leaf.first, "end": leaf.end, "state": state, "vouchers": list(names[leaf.seq])})
    return {"summaries": rows, "quorum": quorum}
