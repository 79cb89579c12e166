"""The checkpoints that an export carries, each opened under every key that is known: whose lines count, and whose do not.

Several notes over one tree (origin, size and root are the same, and so is the text) count as one: it does not matter in which
of them an auditor's line stands. A reader of signed notes must ignore lines by keys that it does not know (C2SP signed-note).
It need not be silent about them: a changed byte in a name or a key id makes a known key's line one of these.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from attest.schema.plain import visible
from ledger import layout
from ledger.audit.files import Export, Leaves
from ledger.audit.findings import IgnoredLine
from ledger.errors import ExportChanged, NoteError, ProofError
from ledger.note import Note, VerifierKey, checkpoint_text, open_note, parse_verifier_key
from ledger.replay import Replay
from ledger.retention.statements import summary_keys

MAX_NAMED: Final = 5
"""Keys of ignored lines that a note names; the report has all."""

_LONGEST_NAME: Final = 80

Report = Callable[[str, str, str], None]


@dataclass(frozen=True, slots=True)
class Carried:
    """A checkpoint of the tree under audit.

    Attributes:
        size: the number of leaves that it signs.
        data: the note, as it stands in the export.
        note: the same, opened under all known keys.
    """

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
    the last that is looked at.

    Args:
        run: the run, for the keys that must have signed.
        export: the directory.
        leaves: its leaves.
        signed: the checkpoint under audit, verified under the ledger's key.
        known: all keys whose lines are verified.
        fault: takes (code, where, sentence) of everything wrong.
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
    """A kept checkpoint, which the ledger's key of its time signed, over this tree and nothing else."""
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
