"""Judges signatures: who signed the checkpoint under audit, those carried beside it, and the summaries.

Several notes over one tree (origin, size and root are the same, and so is the text) count as one: it does not matter in which
of them an auditor's line stands. A reader of signed notes must ignore lines by keys that it does not know (C2SP signed-note).
It need not be silent about them: a changed byte in a name or a key id makes a known key's line one of these.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from attest.keys.vkeys import SIGNATURE_COSIGNATURE_V1, SIGNATURE_ED25519, SIGNATURE_SUMMARY_V1, VerifierKey
from attest.schema.plain import utc, visible
from ledger import layout
from ledger.audit.findings import IgnoredLine, Report, Signer, SummaryRow
from ledger.audit.given import Export, Leaves
from ledger.audit.remarks import Remarks
from ledger.errors import ExportChanged, NoteError, ProofError
from ledger.leaves import Header
from ledger.note import Note, checkpoint_text, open_note, parse_verifier_key
from ledger.replay import Replay
from ledger.replay.signer import KeyChain
from ledger.retention import RetainedReplay, hashes_end, summary_keys, vouched_end, vouchers, vouchers_of_close
from ledger.tiles import KeptNodes
from ledger.trust import AUDITORS, WITNESSES

MAX_NAMED: Final = 5
"""Keys of ignored lines that a note names; the report has all."""

_LONGEST_NAME: Final = 80


@dataclass(frozen=True, slots=True)
class Carried:
    """Holds a checkpoint of the tree under audit: its size, its bytes, and the note opened under all known keys."""

    size: int
    data: bytes
    note: Note


def known_keys(run: Replay, pinned: Sequence[str]) -> list[str]:
    """Returns the keys whose lines are verified wherever they stand: pinned ones, the ledger's, and the policy's auditors'."""
    return list(dict.fromkeys([*pinned, *run.keys.vkeys, *run.keys.trust_policy().vkeys, *summary_keys(run.header)]))


def carried_notes(
    run: Replay, export: Export, leaves: Leaves, signed: Carried, known: Sequence[str], fault: Report
) -> tuple[Carried, ...]:
    """Returns the checkpoint under audit, and behind it those that a pruned export keeps, all of this very tree.

    The kept ones stand in order of size, and each adds a signature to those of its size before it: whoever carries an export
    could repeat a note without end, and each costs several signatures and a root. The first that does not hold is a fault, and
    the last that is looked at. `signed`: the checkpoint under audit, verified under the ledger's key.
    """
    found = [signed]
    try:
        found = [Carried(signed.size, signed.data, open_note(signed.data, known))]
    except NoteError as error:
        fault(error.code, layout.CHECKPOINT, error.sentence)
    last, seen = 0, set[VerifierKey]()
    for data in export.notes():
        try:
            item = _kept(run, leaves, data, known)
            if item.size < last:
                raise NoteError("NOTES", f"kept checkpoints never fall in size: {item.size} leaves follow {last}")
            if item.size > last:
                last, seen = item.size, set()
            signed_by = {signature.key for signature in item.note.signatures}
            if signed_by <= seen:
                raise NoteError("NOTES", f"a kept checkpoint of {last} leaves adds no signature to those before it")
            seen |= signed_by
            found.append(item)
        except (NoteError, ExportChanged, ProofError) as error:
            fault(error.code, layout.RETAINED_NOTES, error.sentence)
            break
    return tuple(found)


def _kept(run: Replay, leaves: Leaves, data: bytes, known: Sequence[str]) -> Carried:
    """Returns a kept checkpoint, which the ledger's key of its time signed, over this tree and nothing else."""
    note, checkpoint = run.keys.open_note(data)
    if checkpoint.size > leaves.size or leaves.root_at(checkpoint.size) != checkpoint.root:
        raise NoteError("ROOT", f"a kept checkpoint of {checkpoint.size} leaves is not of this tree")
    if note.text != checkpoint_text(checkpoint.origin, checkpoint.size, checkpoint.root):
        raise NoteError("CHECKPOINT", "a kept checkpoint has extension lines, which nothing vouches for")
    return Carried(checkpoint.size, data, open_note(data, known))


def ignored_lines(notes: Iterable[Note], known: Sequence[str]) -> tuple[IgnoredLine, ...]:
    """Returns the lines that were ignored, key by key; first those that resemble the line of a known one."""
    keys = [parse_verifier_key(vkey) for vkey in known]
    counts = Counter(line for note in notes for line in note.ignored)
    found = []
    for (name, key_id), lines in counts.items():
        like = next((str(key) for key in keys if key.name == name or key.key_id == key_id), None)
        found.append(IgnoredLine(name, key_id.hex(), lines, like))
    return tuple(sorted(found, key=lambda row: row.resembles is None))


def tell_ignored(rows: Sequence[IgnoredLine]) -> list[str]:
    """Returns what a reader of the audit should know of such lines."""
    told = []
    for row in rows[: 2 * MAX_NAMED]:
        if row.resembles is not None:
            key = parse_verifier_key(row.resembles)
            told.append(
                f"a signature line of {_visible(row.name)} with key id {row.key_id} counts for nothing: the key that is known "
                f"is {key.name} with key id {key.key_id.hex()}; the line is damaged, forged, or by another key"
            )
    strangers = [row for row in rows if row.resembles is None]
    if strangers:
        named = ", ".join(f"{_visible(row.name)} (key id {row.key_id})" for row in strangers[:MAX_NAMED])
        more = f" and {len(strangers) - MAX_NAMED} more" if len(strangers) > MAX_NAMED else ""
        lines = sum(row.lines for row in strangers)
        told.append(
            f"{lines} signature {'line' if lines == 1 else 'lines'} by keys neither pinned nor named by the policy "
            f"{'counts' if lines == 1 else 'count'} for nothing: {named}{more}"
        )
    return told


def _visible(name: str) -> str:
    """Shows a name that anybody may have made up, perhaps to look like that of a known key."""
    return visible(name, longest=_LONGEST_NAME, plain=True)


def judge_keys(
    data: bytes | None,
    origin: str,
    chain: KeyChain,
    pinned: Sequence[str],
    fault: Report,
    remarks: Remarks,
) -> Note | None:
    """Follows the changes of the ledger's key from the pinned ones, and verifies the checkpoint under the key that signs now.

    Guarantee: Nothing is told to ``fault`` only if a pinned key stands in the ledger's chain of keys, so does every other that
    was pinned for this ledger, and all keys that must have signed a checkpoint of this size did, whose note is returned. An old
    key alone never suffices.
    """
    log_keys = [vkey for vkey in dict.fromkeys(pinned) if _is_log_key(vkey, origin)]
    strangers = [vkey for vkey in log_keys if vkey not in chain.vkeys]
    if len(strangers) == len(log_keys):
        fault("LOG_KEY", layout.CHECKPOINT, f"the ledger is signed by {' and then '.join(chain.vkeys)}, and none was pinned")
        return None
    for vkey in strangers:
        sentence = f"the pinned key {vkey} never signs this ledger: it was cut back to before its key was changed, or forked"
        fault("LOG_KEY", layout.CHECKPOINT, sentence)
    for seq, vkey in chain.changes:
        remarks.note(f"the ledger's key was changed at leaf {seq}, which both keys signed; since then {vkey} signs")
    try:
        note, _ = chain.open_note(data or b"")
    except NoteError as error:
        fault(error.code, layout.CHECKPOINT, error.sentence)
        return None
    return note


def _is_log_key(vkey: str, origin: str) -> bool:
    key = parse_verifier_key(vkey)
    return (key.name, key.kind) == (origin, SIGNATURE_ED25519)


def pinned_signers(note: Note, origin: str) -> tuple[Signer, ...]:
    """Returns the pinned keys that signed, before the leaves say which of them are the ledger's: those of its name."""
    found = ((signature.key, signature.timestamp) for signature in note.signatures)
    return tuple(Signer(key.name, key.key_id.hex(), time, time is None and key.name == origin) for key, time in found)


def judge_signers(
    notes_of_tree: Iterable[Carried],
    header: Header,
    chain: KeyChain,
    counts: Callable[[int], bool],
    required: bool,
    fault: Report,
    remarks: Remarks,
) -> dict[str, Any]:
    """Says who signed the checkpoint under audit, and whether auditors and witnesses among them are the quorums asked for.

    Guarantee: ``quorum_met`` is True only if as many of the policy's auditors as it asks for have cosigned this checkpoint,
    each by a line that verifies, at a time that counts; ``witness_quorum_met`` says that of its witnesses. Neither kind counts
    for the other.

    Args:
        notes_of_tree: the notes over the checkpoint under audit, all with its text; their lines count together.
        counts: tells whether that checkpoint can have been signed at a time, in POSIX seconds.
        required: whether a quorum that the policy names and that was not reached is a fault, and a policy that names none.

    Returns:
        The fields ``signers``, ``auditors``, ``quorum``, ``quorum_met``, ``witnesses``, ``witness_quorum`` and
        ``witness_quorum_met`` of an audit report.
    """
    trust, policy, found = chain.trust_policy(), header.policy, _times(notes_of_tree, counts)
    good = {key for key, time in found.items() if time is None or counts(time)}
    asked = {AUDITORS: policy.auditor_quorum, WITNESSES: policy.witness_quorum}
    met = {kind: trust.has_cosigned(kind, good) if quorum else None for kind, quorum in asked.items()}
    for key, time in found.items():
        if key not in good:
            remarks.note(
                f"the cosignature of {visible(key.name)} counts for nothing: it is dated {utc(time or 0)}, which is before the "
                "last leaf that it covers, or ahead of the clock here"
            )
    for kind, word in ((AUDITORS, "NO_QUORUM"), (WITNESSES, "NO_WITNESS_QUORUM")):
        named = trust.keys_of(kind)
        if not named:
            continue
        cosigned = [visible(key.name) for key in named if key in good]
        told = (
            f"cosigned by {len(cosigned)} of the {len(named)} {kind} whom the policy names"
            f"{': ' if cosigned else ''}{', '.join(cosigned)}; it asks for {asked[kind]}"
        )
        if met[kind]:
            remarks.note(f"{told}, and has them")
        else:
            remarks.qualify(word, f"{told}, so that readers who ask for the quorum refuse this checkpoint")
            if required:
                fault("QUORUM", layout.CHECKPOINT, f"{asked[kind]} {kind} must have cosigned")
    if not policy.auditors:
        strangers = good.difference(trust.keys_of(WITNESSES))
        if any(key.kind == SIGNATURE_COSIGNATURE_V1 for key in strangers):
            remarks.note("the policy names no auditors; the cosignatures are by keys that were pinned")
        else:
            remarks.qualify("NO_AUDITORS")
    if required and not any(asked.values()):
        fault("QUORUM", layout.CHECKPOINT, "the policy names no auditors, and no witnesses")
    return {
        "signers": tuple(
            Signer(key.name, key.key_id.hex(), time, str(key) in chain.vkeys, key in good) for key, time in found.items()
        ),
        "auditors": policy.auditors,
        "quorum": policy.auditor_quorum,
        "quorum_met": met[AUDITORS],
        "witnesses": policy.witnesses,
        "witness_quorum": policy.witness_quorum,
        "witness_quorum_met": met[WITNESSES],
    }


def _times(notes_of_tree: Iterable[Carried], counts: Callable[[int], bool]) -> dict[VerifierKey, int | None]:
    """Tells who signed, and when: each key once, at a time that counts if it has one. Leaves out statements on summaries."""
    found: dict[VerifierKey, int | None] = {}
    for item in notes_of_tree:
        for signature in item.note.signatures:
            if signature.key.kind == SIGNATURE_SUMMARY_V1:
                continue
            known = found.setdefault(signature.key, signature.timestamp)
            if known is not None and signature.timestamp is not None and not counts(known):
                found[signature.key] = signature.timestamp
    return found


def judge_summaries(
    run: RetainedReplay, nodes: KeptNodes | None, carried: Sequence[Carried], now: int, fault: Report, remarks: Remarks
) -> tuple[SummaryRow, ...]:
    """Returns a row per SUMMARY leaf, and reports what is pruned though no quorum of auditors vouches for it. `carried`: the
    checkpoints of the export; what auditors say below any of them counts together."""
    summaries = run.tally.summaries
    try:
        notes = [{item.size: item.data} for item in carried]
        said = [vouchers(run.header, note, summaries, run.timeline, now) for note in notes]
        at_close = [vouchers_of_close(run.header, note, run.closed_at, run.timeline, now) for note in notes]
    except NoteError:
        return ()  # told already, when the note was opened under all keys
    names = {leaf.seq: tuple(sorted({name for found in said for name in found[leaf.seq]})) for leaf in summaries}
    end = vouched_end(run.header, summaries, names)
    wrong = run.unvouched(end, frozenset().union(*at_close))
    if wrong is not None:
        fault("UNVOUCHED", layout.RETAINED_NOTES, wrong)
    early = run.too_early()
    if early is not None:
        fault("TOO_EARLY", layout.RETAINED_NOTES, early)
    allowed = hashes_end(run.header, summaries, run.epochs)
    if nodes is not None and nodes.gone_before > allowed:
        sentence = f"hashes below {nodes.gone_before} are gone, and the policy lets those below {allowed} go by now"
        fault("HORIZON", layout.RETAINED_NODES, sentence)
    rows = []
    for leaf in summaries:
        gone = bisect_left(run.pruned, leaf.end) - bisect_left(run.pruned, leaf.first)
        hashes = 0 if nodes is None else nodes.count_gone(leaf.first, leaf.end)
        whole = not gone and not run.restored(leaf)
        rows.append(SummaryRow(leaf.seq, leaf.first, leaf.end, names[leaf.seq], gone, hashes, whole))
        if gone:
            remarks.qualify(
                "PRUNED",
                f"leaves {leaf.first} to {leaf.end - 1} are summarised by leaf {leaf.seq}: the bodies of {gone} are gone, and "
                f"what they said is vouched for by {', '.join(names[leaf.seq]) or 'nobody'}; all figures were recomputed from "
                "what stays",
            )
        if hashes:
            remarks.note(
                f"the hashes of {hashes} of these are gone too, but for the roots of their subtrees: that such a leaf was "
                "there can be shown only by a proof file made before; every other proof is as good as ever"
            )
    if unnamed := sum(run.register.unnamed):
        remarks.note(
            f"of {unnamed} contributions that stayed nothing says any more who they are: whether one is among them only its "
            "member record shows, and roots over them are what auditors vouch for"
        )
    return tuple(rows)
