"""`dptrain ledger init`, `set-clock`, `rotate-key`, `retain` and `fsck`: what an owner does to a ledger between runs."""

import contextlib
import os
import shlex
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest.keys import generate, save_private_key
from attest.schema.plain import utc, visible
from dptrain.cli.inputs import PassphraseFile, read_private_key
from dptrain.cli.ledger.place import LedgerKey, LedgerName, StateDirectory, checked, ledger_key, opened_to_sign, place_of
from dptrain.cli.options import argument, file_option, option, wrong_if
from dptrain.cli.output import counted, counting, styled
from dptrain.cli.results import Shown, Told, pick
from dptrain.record import pin as pinning
from ledger.errors import LeafRefused, PinRefused
from ledger.log import Ledger
from ledger.log.examining import Examination
from ledger.note import NoteSigner, parse_verifier_key
from ledger.storage import highwater
from ledger.storage.beside import NOISE, read_public, write_public
from ledger.storage.place import Place, store_of


def set_clock(
    ledger: LedgerName,
    reason: Annotated[str, option("Why, in at most 200 characters of ASCII; every auditor reads it.", metavar="TEXT")],
    ledger_key: LedgerKey = None,
    passphrase_file: PassphraseFile = None,
    state: StateDirectory = None,
) -> Told:
    """Take back times that a wrong clock put ahead, by a leaf that every audit shows.

    Times in a ledger never run back, so one start under a clock that is ahead would end it until that time has come. Set the
    machine's clock right first. Nothing else is taken back: what was charged counts, and who was withdrawn as expired stays
    withdrawn. Refused where the ledger can go on as it is. No run may hold the ledger.

    When appending is refused with `CLOCK` because an earlier start ran under a clock that was ahead, and the clock is right
    now. The leaf is shown by every audit; nobody who was withdrawn as expired comes back.

    Example: `dptrain ledger set-clock ledger.db --reason clock-was-a-year-ahead`
    """
    with opened_to_sign(place_of(ledger, state), ledger_key, passphrase_file) as log:
        leaf = log.set_clock(reason, now=int(time.time()))
    back = f"leaf {leaf.seq} sets the clock back from {utc(leaf.before)} to {utc(leaf.time)}: {visible(leaf.reason)}"
    return Told(pick(leaf, "before time reason", leaf="seq"), [back])


def init(
    url: Annotated[str, argument("postgresql://OWNER@HOST/DATABASE[?schema=NAME]", metavar="URL", callback=checked)],
    writer: Annotated[str, option("Role that runs write with; it exists.", metavar="ROLE")],
) -> Told:
    """Make the tables of a ledger on a server, for a role that can only append.

    Connect as the role that shall own them. The run then connects as ROLE and begins the ledger. Not needed where the run's own
    role may create a schema: then the run makes the tables itself.

    Example: `dptrain ledger init postgresql://owner@db.example/run7 --writer trainer`
    """
    place = place_of(url, None)
    wrong_if(place.kind != "postgresql", "a ledger in a file needs no preparation; training makes it")
    with contextlib.closing(store_of(place).create(place)) as store:
        store.grant(writer)
    made = f"made the tables of {place.shown} in schema {place.schema}; {writer} may append to them"
    return Told({"ledger": place.shown, "schema": place.schema, "writer": writer}, [made])


def rotate_key(
    ledger: LedgerName,
    new_key: Annotated[
        Path | None,
        option("New private key, made if it is not there; default: replaces the old.", metavar="KEY", dir_okay=False),
    ] = None,
    key: LedgerKey = None,
    passphrase_file: PassphraseFile = None,
    state: StateDirectory = None,
) -> Told:
    """Let a new key sign the ledger from now on.

    A leaf says so that both keys sign.
    Without --new-key the new key takes the place of the old one, which stays beside it as KEY.retired-ID. Whoever pinned the
    old key can follow the change in any export; publish the new line of LEDGER.pub all the same. No run may hold the ledger.
    If the command is interrupted, run it again. After a theft of the key this does not help, since the thief holds it too:
    begin a new ledger under another origin.

    Example: `dptrain ledger rotate-key ledger.db`
    """
    place = place_of(ledger, state)
    old_file = key or place.key
    new_file = new_key or Path(f"{old_file}.next")
    old = ledger_key(place, old_file, passphrase_file)
    if not new_file.exists():
        _require_current(place, old)
        save_private_key(new_file, generate())
    known = read_public(place.public)
    seq, vkeys = _change(place, old, read_private_key(new_file, None if new_key is None else passphrase_file))
    write_public(place.public, vkeys, known)
    retired, current = vkeys[-2:]
    if new_key is None:
        kept = old_file.with_name(f"{old_file.name}.retired-{parse_verifier_key(retired).key_id.hex()}")
        if not kept.exists():
            os.link(old_file, kept)
        new_file.replace(old_file)  # at no moment is there no key: a run that began then would make itself another
    where = str(old_file if new_key is None else new_file)
    named = f"name it where the ledger is written to: --ledger-key {shlex.quote(where)}, or ledger_key in the run file"
    return Told(
        {"leaf": seq, "key": current, "retired": retired, "path": where},
        [
            f"leaf {seq} hands the ledger over; {where} signs it from now on",
            *([named] if Path(where) != place.key else []),
            f"publish: {current}",
        ],
    )


def _require_current(place: Place, old: Ed25519PrivateKey) -> None:
    """Opens the ledger with the old key once, so that a wrong one is refused before a new key lies about."""
    with Ledger.open(place, read_only=True) as log:
        origin = log.header.origin
    Ledger.open(place, NoteSigner(origin, old)).close()


def _change(place: Place, old: Ed25519PrivateKey, new: Ed25519PrivateKey) -> tuple[int, tuple[str, ...]]:
    """Changes the key, unless an earlier call that was interrupted did; returns the KEY leaf and all keys, the new one last."""
    with Ledger.open(place, read_only=True) as log:
        origin, keys = log.header.origin, log.state.keys
    successor = NoteSigner(origin, new)
    if keys.changes and keys.current == successor.vkey:
        return keys.changes[-1][0], keys.vkeys
    with Ledger.open(place, NoteSigner(origin, old)) as log:
        seq = log.size
        log.rotate_key(successor, now=int(time.time()))
    return seq, (*keys.vkeys, successor.vkey)


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
    wrong_if(prune and drop_hashes, "give --prune or --drop-hashes, not both: bodies go first, and hashes epochs later")
    wrong_if(who_stays and not prune, "--who-stays goes with --prune")
    place = place_of(ledger, state)
    with opened_to_sign(place, ledger_key, passphrase_file) as log:
        doing = "pruning" if prune else "dropping hashes of" if drop_hashes else "summarising"
        with counting(f"{doing} {place.shown}"):
            told: dict[str, Any] = {
                "pruned": log.prune(who_stays=who_stays) if prune else None,
                # The sizes that the model checkpoints beside the ledger pin stay, each held against it.
                "hashes_gone": log.drop_hashes(
                    keep=[pinning.read_record(log, folder).pin.size for folder in _checkpoints(place)]
                )
                if drop_hashes
                else None,
                "summary": None if prune or drop_hashes else _summarise(log),
            }
        told |= {"pruned_before": log.pruned_before, "hashes_before": log.hashes_before} | _summaries(log)
    return Told(told, _retained_text(told, ledger, state))


def _retained_text(told: dict[str, Any], ledger: str, state: Path | None) -> Iterator[Shown]:
    if told["pruned"] is not None:
        yield f"{told['pruned']} bodies are gone, all of leaves below {told['pruned_before']}; their hashes stay"
    elif told["hashes_gone"] is not None:
        below = f"all of leaves below {told['hashes_before']}"
        yield f"{told['hashes_gone']} hashes are gone, {below}; the roots of their subtrees stay"
    elif told["summary"] is None:
        yield "no epoch is past the horizon that is not summarised yet"
    for row in told["summaries"]:
        names = ", ".join(row["vouchers"]) or "nobody"
        yield f"leaf {row['leaf']} summarises leaves {row['first']} to {row['end'] - 1}: {row['state']}, vouched for by {names}"
    if any(row["state"] == "waiting" for row in told["summaries"]):
        named = shlex.join((ledger, *(() if state is None else ("--state", str(state)))))
        yield f"{told['quorum'] or 'none'} of the policy's auditors must vouch for a summary before its leaves are pruned:"
        yield f"  you export it for them:  dptrain ledger export {named} DIR"
        yield "  each of them runs:       dptrain ledger cosign DIR NOTE --key KEY --name NAME --log-key PUB --summary"
        yield f"  you take in their notes: dptrain ledger merge {named} NOTE ..."


def _summarise(log: Ledger) -> int | None:
    """Appends the SUMMARY leaf and returns its position; None when all that is due was summarised before."""
    try:
        return log.summarise(now=int(time.time())).seq
    except LeafRefused as error:
        if error.code != "NOTHING_DUE" or not log.state.tally.summaries:
            raise
        return None


def _summaries(log: Ledger) -> dict[str, Any]:
    names, quorum = log.vouchers, log.header.policy.auditor_quorum
    rows = []
    for leaf in log.state.tally.summaries:
        state = "ready to be pruned" if quorum is not None and len(names[leaf.seq]) >= quorum else "waiting"
        if leaf.end <= log.pruned_before:
            state = "pruned, hashes too" if leaf.end <= log.hashes_before else "pruned"
        rows.append(pick(leaf, "first end", leaf="seq") | {"state": state, "vouchers": list(names[leaf.seq])})
    return {"summaries": rows, "quorum": quorum}


def fsck(
    ledger: LedgerName,
    pin: Annotated[
        list[Path] | None,
        file_option(
            "PIN.cose",
            "A pin that the ledger must extend; repeat. Default: the model checkpoints beside the ledger, states and all.",
        ),
    ] = None,
    state: StateDirectory = None,
) -> Told:
    """Check a ledger where it is kept: every byte, every signature, every number.

    Re-derives the tree from the leaves, every leaf from the leaves before it, every recorded epsilon from the charges, and the
    index from the leaves; then compares with what remembers an earlier state: the signer's record beside the ledger, and the
    model checkpoints, whose states must be the bytes that their signed pins name. Makes every attestation again that is kept,
    and holds it against its ADMIT leaf. Has SQLite check its own pages, and checks the file of verifier keys and the weights
    of the epochs beside the ledger, and that a run that is over left none of its secrets there. Changes nothing, and may run
    beside a training run.

    Exit code 0 if all of it is whole, 1 if anything is wrong.

    After a crash, a full disk or a restored backup, before a run goes on; and now and then on a ledger that you keep for long.

    Example: `dptrain ledger fsck ledger.db`
    """
    place = place_of(ledger, state)
    folders = _checkpoints(place) if pin is None else []
    with counting(f"checking {place.shown}"), Ledger.open(place, read_only=True, recompute=True) as log:
        for path in pin or ():
            pinning.open_record(log, path)
        held = len(pin or ()) + sum(_holds(log, folder, place) for folder in folders)
        examined = log.examine()
        found = _examined(log, examined, place, held)
    return Told(found, _examined_text(found, place), exit_code=bool(examined.findings))


def _examined(log: Ledger, examined: Examination, place: Place, pins: int) -> dict[str, Any]:
    """Returns what was found, as JSON."""
    run, pruned = log.state, 0
    if log.pruned_before:
        with log.rows() as rows:
            pruned = sum(not row.body for row in islice(rows, log.pruned_before))
    return {
        **pick(log, "size root pruned_before"),
        "origin": log.header.origin,
        "checkpoints": len(log.checkpoint_sizes),
        "signed": log.checkpoint_sizes[-1],
        "windows": len(run.windows),
        "unsettled": len(run.unsettled) + (run.open_window is not None),
        "epsilons": run.spends,
        "pruned": pruned,
        "record": place.beside is not None and highwater.path_of(place).exists(),
        "pins": pins,
        **pick(examined, "notes pages"),
        **pick(examined.signed, "", attested="fitting", unattested="missing"),
        **pick(examined.beside, "keys weights", weights_let_go="let_go", weights_unused="unused"),
        "verdict": "FAILED" if examined.findings else "OK",
        "findings": [pick(item, "code sentence", file="where") for item in examined.findings],
    }


def _examined_text(found: dict[str, Any], place: Place) -> Iterator[Shown]:
    style = "bold red" if found["findings"] else "bold green"
    yield styled(style, found["verdict"], f"  {found['origin']}: {found['size']} leaves, root {found['root']}")
    for item in found["findings"]:
        yield styled("red", f"  {item['code']}", f" {item['file']}: {item['sentence']}")
    yield (
        f"{found['checkpoints']} signed checkpoints, the last over {found['signed']} leaves; {found['windows']} windows, "
        f"{found['unsettled']} of them never settled; {found['epsilons']} recorded epsilons computed again"
    )
    if found["pruned"]:
        which = f"{found['pruned']} leaves below {found['pruned_before']}"
        yield f"the bodies of {which} are gone; what stands for them was checked"
    yield (
        "the pages of the database were checked by SQLite"
        if found["pages"]
        else "PostgreSQL checks no pages for a reader of the ledger; the keeper of the server runs pg_amcheck"
    )
    yield (
        f"{counted(found['attested'], 'attestation')} made again, and found to be what the ADMIT leaves quote"
        if found["attested"] or found["unattested"]
        else "no attestations are kept: no ADMIT leaf is there that quotes one"
    )
    yield _files(found, place)
    for note in found["notes"]:
        yield styled("yellow", "note", f": {note}")
    pins = f"compared with {counted(found['pins'], 'pin')} of model checkpoints"
    if found["record"]:
        yield f"{pins} and with the signer's record"
        return
    why = "give --state, where it lies"
    if place.beside is not None:
        why = f"there is no {highwater.path_of(place)}, and no run goes on without it"
    yield styled("bold yellow", "NOT compared with the signer's record", f": {why}; {pins}")


def _files(found: dict[str, Any], place: Place) -> str:
    """Tells what was checked beside the ledger, and what is not there."""
    if place.beside is None:
        return "the verifier keys, weights and model checkpoints in the state directory were not looked at: give --state"
    held = "no file of verifier keys"
    if found["keys"] is not None:
        held = f"{counted(found['keys'], 'verifier key')} in its public file"
    if found["weights"] is None:
        return f"beside it: {held}, no weights of epochs (a release from here would be UNRECORDED)"
    less = f", {found['weights_let_go']} let go by the policy's retention" if found["weights_let_go"] else ""
    unused = found["weights_unused"]
    more = f", and {counted(unused, 'file')} of weights that no epoch cites" if unused else ""
    return f"beside it: {held}, the weights of {counted(found['weights'], 'epoch')}{less}{more}"


def _holds(log: Ledger, folder: Path, place: Place) -> bool:
    """Holds a checkpoint against its pin, and that against the ledger; False if the run beside removed it meanwhile."""
    try:
        noise = None if log.finished else place.side(NOISE)  # a run that is over has deleted it
        pinning.require_files(folder, pinning.read_record(log, folder), noise)
        return True
    except PinRefused:
        if folder.exists():
            raise
        return False


def _checkpoints(place: Place) -> list[Path]:
    """Lists the model checkpoints beside a ledger; none of one on a server without a state directory."""
    return [] if place.beside is None else [path for _, path in pinning.found(place.side(".checkpoints"))]
