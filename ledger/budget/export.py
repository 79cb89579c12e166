"""Writes an export of a budget log: the directory that `ledger.export` writes of a run, with these leaves in it.

It names nobody: units are keyed hashes, and the secret that makes them stays in the database.
"""

from pathlib import Path

from ledger import layout
from ledger.budget.log import BudgetLog
from ledger.errors import LedgerCorrupt
from ledger.export import building, write_tree
from ledger.note import open_note, parse_checkpoint
from ledger.trust import auditors_policy


def export_budget(log: BudgetLog, directory: Path) -> Path:
    """Writes everything under the last checkpoint of a log; close an epoch first for all of it.

    Guarantee: the directory is there whole or not at all, and when this returns it is on disk.

    Args:
        directory: where to put it; must not exist.

    Raises:
        ExportRefused: code EXISTS. LedgerCorrupt: the leaves are not those under the checkpoint. StorageFailed: the disk
            refused.
    """
    note = log.checkpoint()
    found = parse_checkpoint(open_note(note, [log.header.log_vkey]).text)
    with building(directory) as temporary:
        (temporary / layout.CHECKPOINT).write_bytes(note)
        (temporary / layout.POLICY).write_bytes(auditors_policy(log.header.log_vkey).text())
        root = write_tree(temporary, (row.body for row in log.rows(found.size)))
        if root != found.root:
            raise LedgerCorrupt("EXPORT", "the leaves are not those under the checkpoint; open the log again")
    return directory
