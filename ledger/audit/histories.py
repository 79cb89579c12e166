"""Whether all exports that an auditor holds, and all that runs in them cite, tell one history of every ledger.

A log can sign two histories of one run, and show the one in which less was spent to whoever counts it. Exports of one ledger,
and the roots under which other runs counted it, are what shows that: where two that contradict each other meet in one auditor's
hands, that is a finding, whichever of them the run under audit cites.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ledger import layout
from ledger.audit.files import Export, Leaves
from ledger.errors import ExportChanged, LeafRefused, NoteError
from ledger.leaves import Header, decode_leaf
from ledger.leaves.previous import COMPROMISED
from ledger.note import peek_checkpoint
from ledger.retention.retained import is_stand_in

Fault = Callable[[str, str, str], None]


@dataclass(frozen=True, slots=True)
class Given:
    """An export that was given.

    Attributes:
        path: the directory.
        leaves: its leaves, under the root that it claims.
        header: leaf 0.
        digest: SHA-256 of leaf 0, by which a ledger is known.
    """

    path: Path
    leaves: Leaves
    header: Header
    digest: bytes

    @property
    def gone(self) -> int:
        """Counts its leaves that have lost their bodies."""
        return sum(map(is_stand_in, islice(self.leaves, self.leaves.retained)))

    def require(self, size: int | None, root_hex: str | None) -> None:
        """Holds the leaves against those of which an audit said that they are signed: others may write there.

        Raises:
            ExportChanged: code CHANGED, they are others.
        """
        if (size, root_hex) != (self.leaves.size, self.leaves.root_at(self.leaves.size).hex()):
            raise ExportChanged("CHANGED", f"{self.path} changed while it was audited; audit a copy that nobody writes")


def read_export(path: Path) -> Given:
    """Reads an export under the root that it claims; who signed that is for the audit.

    Raises:
        LeafRefused: code EARLIER, it is no whole export; HEADER, its first leaf is no header.
    """
    faults: list[str] = []
    export = Export(path, lambda code, where, sentence: faults.append(f"{where}: {sentence}"))
    data = export.read(layout.CHECKPOINT) if export.scan() else None
    try:
        checkpoint = None if data is None else peek_checkpoint(data)
    except NoteError as error:
        raise LeafRefused("EARLIER", f"{path} is no whole export: {layout.CHECKPOINT}: {error.sentence}") from error
    leaves = export.leaves(checkpoint) if checkpoint is not None and export.check_names(checkpoint.size) else None
    first = None if leaves is None else next(iter(leaves), None)
    if leaves is None or first is None:
        raise LeafRefused("EARLIER", f"{path} is no whole export: {faults[0] if faults else 'it has no leaf'}")
    header = decode_leaf(first)
    if not isinstance(header, Header):
        raise LeafRefused("HEADER", f"the first leaf of {path} is not a header", seq=0)
    return Given(path, leaves, header, hashlib.sha256(first).digest())


def longest(given: Sequence[Given], fault: Fault) -> list[Given]:
    """Returns the longest export of each ledger, of equals that with most leaves; reports every one that is no beginning of it.

    Args:
        given: all exports.
        fault: takes (code, where, sentence) of everything wrong.

    Raises:
        ExportChanged, ProofError: roots cannot be made.
    """
    found: dict[bytes, Given] = {}
    for item in given:
        top = found.setdefault(item.digest, item)
        longer = item.leaves.size - top.leaves.size
        if longer > 0 or (item is not top and not longer and item.gone < top.gone):
            found[item.digest] = item
    for item in given:
        top, size = found[item.digest], item.leaves.size
        if top.leaves.root_at(size) != item.leaves.root_at(size):
            sentence = f"its {size} leaves are not the first of {top.path}: two histories of {item.header.origin}"
            fault("EARLIER_FORKED", str(item.path), f"{sentence}; publish both checkpoints")
    return list(found.values())


def judge_citations(shown: Iterable[Given], own: Given, fault: Fault) -> None:
    """Holds what every run counts against the exports of the ledgers that it names; what ``own`` counts is judged elsewhere.

    So no run forgets that a key was lost, as another one says: behind the leaves for which that one vouches nothing counts.

    Args:
        shown: the longest export of each ledger, without that of the run under audit.
        own: the run under audit.
        fault: takes (code, where, sentence) of everything wrong.

    Raises:
        ExportChanged, ProofError: roots cannot be made.
    """
    known = {item.digest: item for item in shown}
    for citing in known.values():
        for cited in citing.header.previous:
            found = own if cited.header_digest == own.digest else known.get(cited.header_digest)
            if found is None:
                continue
            counted = f"{citing.header.origin} counted {cited.size} leaves of {cited.origin}"
            if cited.size <= found.leaves.size:
                if found.leaves.root_at(cited.size) != cited.root:
                    sentence = f"{counted}, which are not the first of this export: two histories of it"
                    fault("EARLIER_FORKED", str(found.path), sentence)
                elif cited.reason == COMPROMISED and cited.size < found.leaves.size:
                    sentence = f"{counted}, where its key was lost, and {found.leaves.size} are here"
                    fault("EARLIER_COMPROMISED", str(found.path), sentence)
            elif found is not own:  # of the run under audit an older checkpoint may be audited
                sentence = f"{counted}, {found.leaves.size} are here; give a longer export of it"
                fault("EARLIER_BEHIND", str(found.path), sentence)
