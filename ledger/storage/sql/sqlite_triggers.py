"""Guards the tables of a ledger in SQLite with triggers.

The triggers stop accidents: a statement that would change the past fails, whether it updates, deletes or replaces.
``REPLACE`` fires no DELETE trigger unless ``recursive_triggers`` is on, so every table also refuses to insert over a row.
"""

from typing import Final

from ledger.storage.store import ADMIT_KIND, PRUNABLE_KINDS, SUMMARY_KIND


def _refuse(name: str, before: str, when: str, sentence: str) -> str:
    return f"CREATE TRIGGER {name} BEFORE {before} WHEN {when}\nBEGIN SELECT RAISE(ABORT, '{sentence}'); END"


_KINDS = ", ".join(map(str, PRUNABLE_KINDS))
_BODY_GOES = f"""(OLD.kind IN ({_KINDS}) AND OLD.seq < (SELECT pruned_before FROM head WHERE id = 0)
        AND NEW.leaf IS OLD.leaf AND NEW.level = OLD.level
        AND (OLD.kind <> {ADMIT_KIND} OR EXISTS (SELECT 1 FROM aggregate WHERE first <= OLD.seq AND OLD.seq < past)))"""
# The first row of a subtree is set before the others, which find it by their own level.
_HASH_GOES = """(OLD.body IS NULL AND NEW.level > OLD.level
        AND CASE WHEN NEW.level > 62 THEN 0 WHEN NEW.leaf IS NOT NULL
        THEN NEW.seq & ((1 << NEW.level) - 1) = 0
            AND NEW.seq + (1 << NEW.level) <= (SELECT hashes_before FROM head WHERE id = 0)
            AND (SELECT count(*) FROM entry WHERE seq >= NEW.seq AND seq < NEW.seq + (1 << NEW.level) AND body IS NULL)
                = 1 << NEW.level
        ELSE EXISTS (SELECT 1 FROM entry WHERE seq = (NEW.seq & ~((1 << NEW.level) - 1)) AND seq <> NEW.seq
            AND level = NEW.level AND leaf IS NOT NULL) END)"""
_BODY_THERE = "NOT EXISTS (SELECT 1 FROM entry WHERE seq = OLD.seq AND body IS NULL)"
_SAME_TABLE_KEYS = {"meta": "key = NEW.key", "head": "id = NEW.id", "lease": "id = NEW.id", "checkpoint": "size = NEW.size",
                    "aggregate": "first < NEW.past AND NEW.first < past", "attestation": "seq = NEW.seq"}  # fmt: skip

TRIGGERS: Final = (
    _refuse(
        "entry_dense",
        "INSERT ON entry",
        "NEW.seq IS NOT (SELECT size FROM head WHERE id = 0) OR NEW.body IS NULL OR NEW.leaf IS NULL OR NEW.level <> 0",
        "entry.seq must be the size of the ledger, and its body and hash there",
    ),
    "CREATE TRIGGER entry_bump AFTER INSERT ON entry BEGIN UPDATE head SET size = size + 1 WHERE id = 0; END",
    _refuse(
        "entry_only_pruned",
        "UPDATE ON entry",
        f"""NEW.body IS NOT NULL OR NEW.seq IS NOT OLD.seq OR NEW.kind IS NOT OLD.kind
        OR NOT ifnull({_BODY_GOES}, 0) AND NOT ifnull({_HASH_GOES}, 0)""",
        "entry rows never change; only bodies below pruned_before may go, and hashes below hashes_before into subtrees",
    ),
    _refuse(
        "head_grows",
        "UPDATE ON head",
        f"""NEW.size < OLD.size OR NEW.id IS NOT OLD.id OR NEW.pruned_before < OLD.pruned_before
        OR NEW.hashes_before < OLD.hashes_before OR NEW.hashes_before > NEW.pruned_before
        OR (NEW.pruned_before > OLD.pruned_before
            AND NOT EXISTS (SELECT 1 FROM entry WHERE kind = {SUMMARY_KIND} AND seq >= NEW.pruned_before))""",
        "the head of the ledger never shrinks, pruned_before never passes the last summary, nor hashes_before that",
    ),
    _refuse(
        "lease_grows",
        "UPDATE ON lease",
        "NEW.fence <= OLD.fence OR NEW.id IS NOT OLD.id",
        "the fence of the ledger only grows",
    ),
    # What is appended begins like a signature line and holds no empty line, so the note's text stays what it was.
    _refuse(
        "checkpoint_extends",
        "UPDATE ON checkpoint",
        """NEW.size IS NOT OLD.size OR substr(NEW.note, 1, length(OLD.note)) IS NOT OLD.note
        OR substr(NEW.note, length(OLD.note) + 1, 4) IS NOT x'e2809420' OR substr(NEW.note, -1) IS NOT x'0a'
        OR instr(substr(NEW.note, length(OLD.note) + 1), x'0a0a') > 0""",
        "a checkpoint note is never changed; only signature lines may be appended",
    ),
    *(
        _refuse(f"{table}_{name}", f"{verb} ON {table}", when, f"{table} rows are never changed or removed")
        for table, same in _SAME_TABLE_KEYS.items()
        for name, verb, when in (
            ("once", "INSERT", f"EXISTS (SELECT 1 FROM {table} WHERE {same})"),
            ("no_delete", "DELETE", _BODY_THERE if table == "attestation" else "1"),
        )
    ),
    _refuse(
        "attestation_of_admit",
        "INSERT ON attestation",
        f"NOT EXISTS (SELECT 1 FROM entry WHERE seq = NEW.seq AND kind = {ADMIT_KIND} AND body IS NOT NULL)",
        "an attestation belongs to an ADMIT leaf that is there",
    ),
    _refuse(
        "terms_dense",
        "INSERT ON terms",
        """NEW.number IS NOT (SELECT ifnull(max(number) + 1, 0) FROM terms) OR NEW.data IS NULL
        OR EXISTS (SELECT 1 FROM terms WHERE data = NEW.data)""",
        "terms.number must be the number of terms, and their bytes there and new",
    ),
    _refuse(
        "terms_only_emptied",
        "UPDATE ON terms",
        "NEW.number IS NOT OLD.number OR NEW.data IS NOT NULL OR NOT EXISTS (SELECT 1 FROM head WHERE pruned_before > 0)",
        "terms rows are never changed; only what nothing is left of after pruning may be emptied",
    ),
    _refuse("terms_no_delete", "DELETE ON terms", "1", "terms rows are never changed or removed"),
    _refuse("entry_no_delete", "DELETE ON entry", "1", "entry rows are never changed or removed"),
    *(
        _refuse(f"{table}_no_update", f"UPDATE ON {table}", "1", f"{table} rows are never changed or removed")
        for table in ("meta", "aggregate", "attestation")
    ),
)
