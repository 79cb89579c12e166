"""Defines the tables of a ledger once, and guards them by triggers, in the words of SQLite and in those of PostgreSQL.

The triggers stop accidents: a statement that would change the past fails, whether it updates, deletes, replaces, truncates or
inserts out of order. Who owns the database can drop them, or switch them off, and is found out by the tree.

In SQLite ``REPLACE`` fires no DELETE trigger unless ``recursive_triggers`` is on, so every table also refuses to insert over a
row. In PostgreSQL positions come from no sequence, which would leave gaps where a transaction rolls back; ``entry_dense`` runs
once per statement, over all rows that it inserted, and moves the head itself, with the rights of the owner: a writer needs none
on ``head.size``.
"""

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from ledger.storage.store import ADMIT_KIND, PRUNABLE_KINDS, SUMMARY_KIND

METADATA: Final = sa.MetaData()

_NUMBER: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""A position, a size or a count. SQLite calls every integer INTEGER, and a key of that type is the number of its row."""


def _key(name: str) -> "sa.Column[int]":
    return sa.Column(name, _NUMBER, primary_key=True, autoincrement=False)


def _only_row() -> "sa.Column[int]":
    return sa.Column("id", sa.Integer, sa.CheckConstraint("id = 0"), primary_key=True, autoincrement=False)


def _table(name: str, *columns: "sa.Column[int] | sa.Column[bytes] | sa.Column[str]") -> sa.Table:
    return sa.Table(name, METADATA, *columns, sqlite_strict=True)


_table("meta", sa.Column("key", sa.Text, primary_key=True), sa.Column("value", sa.Text, nullable=False))
_table(
    "entry",
    _key("seq"),
    sa.Column("kind", sa.Integer, nullable=False),
    sa.Column("leaf", sa.LargeBinary, sa.CheckConstraint("length(leaf) = 32")),
    sa.Column("body", sa.LargeBinary),
    sa.Column("level", sa.Integer, sa.CheckConstraint("level BETWEEN 0 AND 62"), nullable=False, server_default="0"),
)
_table(
    "head",
    _only_row(),
    sa.Column("size", _NUMBER, nullable=False),
    sa.Column("frontier", sa.LargeBinary, nullable=False),
    sa.Column("pruned_before", _NUMBER, nullable=False),
    sa.Column("hashes_before", _NUMBER, nullable=False),
)
_table("checkpoint", _key("size"), sa.Column("note", sa.LargeBinary, nullable=False))
_table(
    "aggregate",
    _key("first"),
    sa.Column("past", _NUMBER, sa.CheckConstraint("past > first"), nullable=False),
    sa.Column("summary_seq", _NUMBER, nullable=False),
    sa.Column("record", sa.LargeBinary, nullable=False),
)
_table("terms", _key("number"), sa.Column("data", sa.LargeBinary))
_table("attestation", _key("seq"), sa.Column("data", sa.LargeBinary, nullable=False))
_table("lease", _only_row(), sa.Column("holder", sa.Text, nullable=False), sa.Column("fence", _NUMBER, nullable=False))

TABLES: Final = ("meta", "entry", "head", "checkpoint", "aggregate", "lease", "terms", "attestation")


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one ledger."""

    meta: sa.Table
    entry: sa.Table
    head: sa.Table
    checkpoint: sa.Table
    aggregate: sa.Table
    lease: sa.Table
    terms: sa.Table
    attestation: sa.Table


def tables(schema: str | None = None) -> Tables:
    """Returns the tables of a ledger, in a schema of the database where it has one."""
    if schema is None:
        return Tables(**{name: METADATA.tables[name] for name in TABLES})
    moved = sa.MetaData()
    return Tables(**{name: METADATA.tables[name].to_metadata(moved, schema=schema) for name in TABLES})


# What is refused, whichever database refuses it.
_ENTRY: Final = "entry rows never change; only bodies below pruned_before may go, and hashes below hashes_before into subtrees"
_HEAD: Final = "the head of the ledger never shrinks, pruned_before never passes the last summary, nor hashes_before that"
_LEASE: Final = "the fence of the ledger only grows"
_CHECKPOINT: Final = "a checkpoint note is never changed; only signature lines may be appended"
_TERMS: Final = "terms rows are never changed; only what nothing is left of after pruning may be emptied"
_NEVER: Final = "{} rows are never changed or removed"
_KINDS: Final = ", ".join(map(str, PRUNABLE_KINDS))


def _refused(name: str, before: str, when: str, sentence: str) -> str:
    return f"CREATE TRIGGER {name} BEFORE {before} WHEN {when}\nBEGIN SELECT RAISE(ABORT, '{sentence}'); END"


_BODY_GOES_SQLITE = f"""(OLD.kind IN ({_KINDS}) AND OLD.seq < (SELECT pruned_before FROM head WHERE id = 0)
        AND NEW.leaf IS OLD.leaf AND NEW.level = OLD.level
        AND (OLD.kind <> {ADMIT_KIND} OR EXISTS (SELECT 1 FROM aggregate WHERE first <= OLD.seq AND OLD.seq < past)))"""
# The first row of a subtree is set before the others, which find it by their own level.
_HASH_GOES_SQLITE = """(OLD.body IS NULL AND NEW.level > OLD.level
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

SQLITE: Final = (
    "CREATE UNIQUE INDEX terms_data ON terms (data)",
    _refused(
        "entry_dense",
        "INSERT ON entry",
        "NEW.seq IS NOT (SELECT size FROM head WHERE id = 0) OR NEW.body IS NULL OR NEW.leaf IS NULL OR NEW.level <> 0",
        "entry.seq must be the size of the ledger, and its body and hash there",
    ),
    "CREATE TRIGGER entry_bump AFTER INSERT ON entry BEGIN UPDATE head SET size = size + 1 WHERE id = 0; END",
    _refused(
        "entry_only_pruned",
        "UPDATE ON entry",
        f"""NEW.body IS NOT NULL OR NEW.seq IS NOT OLD.seq OR NEW.kind IS NOT OLD.kind
        OR NOT ifnull({_BODY_GOES_SQLITE}, 0) AND NOT ifnull({_HASH_GOES_SQLITE}, 0)""",
        _ENTRY,
    ),
    _refused(
        "head_grows",
        "UPDATE ON head",
        f"""NEW.size < OLD.size OR NEW.id IS NOT OLD.id OR NEW.pruned_before < OLD.pruned_before
        OR NEW.hashes_before < OLD.hashes_before OR NEW.hashes_before > NEW.pruned_before
        OR (NEW.pruned_before > OLD.pruned_before
            AND NOT EXISTS (SELECT 1 FROM entry WHERE kind = {SUMMARY_KIND} AND seq >= NEW.pruned_before))""",
        _HEAD,
    ),
    _refused(
        "lease_grows",
        "UPDATE ON lease",
        "NEW.fence <= OLD.fence OR NEW.id IS NOT OLD.id",
        _LEASE,
    ),
    # What is appended begins like a signature line and holds no empty line, so the note's text stays what it was.
    _refused(
        "checkpoint_extends",
        "UPDATE ON checkpoint",
        """NEW.size IS NOT OLD.size OR substr(NEW.note, 1, length(OLD.note)) IS NOT OLD.note
        OR substr(NEW.note, length(OLD.note) + 1, 4) IS NOT x'e2809420' OR substr(NEW.note, -1) IS NOT x'0a'
        OR instr(substr(NEW.note, length(OLD.note) + 1), x'0a0a') > 0""",
        _CHECKPOINT,
    ),
    *(
        _refused(f"{table}_{name}", f"{verb} ON {table}", when, _NEVER.format(table))
        for table, same in _SAME_TABLE_KEYS.items()
        for name, verb, when in (
            ("once", "INSERT", f"EXISTS (SELECT 1 FROM {table} WHERE {same})"),
            ("no_delete", "DELETE", _BODY_THERE if table == "attestation" else "1"),
        )
    ),
    _refused(
        "attestation_of_admit",
        "INSERT ON attestation",
        f"NOT EXISTS (SELECT 1 FROM entry WHERE seq = NEW.seq AND kind = {ADMIT_KIND} AND body IS NOT NULL)",
        "an attestation belongs to an ADMIT leaf that is there",
    ),
    _refused(
        "terms_dense",
        "INSERT ON terms",
        """NEW.number IS NOT (SELECT ifnull(max(number) + 1, 0) FROM terms) OR NEW.data IS NULL
        OR EXISTS (SELECT 1 FROM terms WHERE data = NEW.data)""",
        "terms.number must be the number of terms, and their bytes there and new",
    ),
    _refused(
        "terms_only_emptied",
        "UPDATE ON terms",
        "NEW.number IS NOT OLD.number OR NEW.data IS NOT NULL OR NOT EXISTS (SELECT 1 FROM head WHERE pruned_before > 0)",
        _TERMS,
    ),
    _refused("terms_no_delete", "DELETE ON terms", "1", _NEVER.format("terms")),
    _refused("entry_no_delete", "DELETE ON entry", "1", _NEVER.format("entry")),
    *(
        _refused(f"{table}_no_update", f"UPDATE ON {table}", "1", _NEVER.format(table))
        for table in ("meta", "aggregate", "attestation")
    ),
)
"""Statements that make triggers, and an index of their own, in SQLite."""

_APPENDED: Final = ("entry", "checkpoint", "terms", "attestation")
"""Tables that a run appends rows to."""

FUNCTIONS: Final = tuple(f"{name}_{kind}" for name in TABLES for kind in ("dense", "stays", "grows", "belongs", "goes"))
"""Functions of the triggers; not every table has all."""

_WRITES = {"attestation": "UPDATE OR TRUNCATE"}
"""Verbs that a table refuses whatever the row, where a row may be removed with what it belongs to."""


def _unless(when: str, sentence: str, end: str) -> str:
    """Returns the body of a function that refuses something, and ends so otherwise."""
    return f"""IF {when} THEN
        RAISE EXCEPTION '{sentence}' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    {end};"""


def _guarded(schema: str, table: str, kind: str, event: str, body: str, rights: str = "") -> list[str]:
    """Returns what makes a function, and the trigger that runs it."""
    return [
        f"""CREATE FUNCTION {schema}.{table}_{kind}() RETURNS trigger LANGUAGE plpgsql {rights}
SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    {body}
END $body$""",
        f"CREATE TRIGGER {table}_{kind} {event} EXECUTE FUNCTION {schema}.{table}_{kind}()",
    ]


def postgres_statements(schema: str) -> list[str]:
    """Returns what makes the tables and triggers of a ledger in a schema, which exists. `schema`: its name, as
    `ledger.storage.place` lets through: it needs no quoting."""
    body_goes = f"""(OLD.kind IN ({_KINDS}) AND OLD.seq < (SELECT pruned_before FROM {schema}.head)
            AND (NEW.leaf, NEW.level) IS NOT DISTINCT FROM (OLD.leaf, OLD.level)
            AND (OLD.kind <> {ADMIT_KIND}
                OR EXISTS (SELECT 1 FROM {schema}.aggregate a WHERE a.first <= OLD.seq AND OLD.seq < a.past)))"""
    # The first row of a subtree is set before the others, which find it by their own level.
    hash_goes = f"""(OLD.body IS NULL AND NEW.level > OLD.level
            AND CASE WHEN NEW.level > 62 THEN false WHEN NEW.leaf IS NOT NULL
            THEN NEW.seq & ((1::bigint << NEW.level) - 1) = 0
                AND NEW.seq + (1::bigint << NEW.level) <= (SELECT hashes_before FROM {schema}.head)
                AND (SELECT count(*) FROM {schema}.entry e WHERE e.seq >= NEW.seq
                    AND e.seq < NEW.seq + (1::bigint << NEW.level) AND e.body IS NULL) = 1::bigint << NEW.level
            ELSE EXISTS (SELECT 1 FROM {schema}.entry e WHERE e.seq = (NEW.seq & ~((1::bigint << NEW.level) - 1))
                AND e.seq <> NEW.seq AND e.level = NEW.level AND e.leaf IS NOT NULL) END)"""
    changes = {
        "entry": (
            f"""NEW.body IS NOT NULL OR (NEW.seq, NEW.kind) IS DISTINCT FROM (OLD.seq, OLD.kind)
            OR NOT coalesce({body_goes}, false) AND NOT coalesce({hash_goes}, false)""",
            _ENTRY,
        ),
        "head": (
            f"""NEW.size < OLD.size OR NEW.id <> OLD.id OR NEW.pruned_before < OLD.pruned_before
            OR NEW.hashes_before < OLD.hashes_before OR NEW.hashes_before > NEW.pruned_before
            OR (NEW.pruned_before > OLD.pruned_before AND NOT EXISTS (
                SELECT 1 FROM {schema}.entry WHERE kind = {SUMMARY_KIND} AND seq >= NEW.pruned_before))""",
            _HEAD,
        ),
        "lease": ("NEW.fence <= OLD.fence OR NEW.id <> OLD.id", _LEASE),
        # What is appended begins like a signature line and holds no empty line, so the text of the note stays what it was.
        "checkpoint": (
            r"""NEW.size <> OLD.size OR substring(NEW.note FROM 1 FOR octet_length(OLD.note)) <> OLD.note
            OR substring(NEW.note FROM octet_length(OLD.note) + 1 FOR 4) <> '\xe2809420'::bytea
            OR substring(NEW.note FROM octet_length(NEW.note)) <> '\x0a'::bytea
            OR position('\x0a0a'::bytea IN substring(NEW.note FROM octet_length(OLD.note) + 1)) > 0""",
            _CHECKPOINT,
        ),
        "terms": (
            f"""NEW.number <> OLD.number OR NEW.data IS NOT NULL
            OR NOT EXISTS (SELECT 1 FROM {schema}.head WHERE pruned_before > 0)""",
            _TERMS,
        ),
    }
    dense = f"""UPDATE {schema}.head SET size = size + (SELECT count(*) FROM fresh) WHERE id = 0
        AND (SELECT min(f.seq) = size AND max(f.seq) = size + count(*) - 1 AND count(f.body) = count(*)
            AND count(f.leaf) = count(*) AND max(f.level) = 0 FROM fresh f);
    """ + _unless(
        "NOT FOUND AND EXISTS (SELECT 1 FROM fresh)",
        "entry.seq must be the size of the ledger, and its body and hash there",
        "RETURN NULL",
    )
    terms_dense = _unless(
        f"""EXISTS (SELECT 1 FROM fresh) AND NOT (
        SELECT min(f.number) = coalesce((SELECT max(t.number) + 1 FROM {schema}.terms t
                WHERE t.number < (SELECT min(g.number) FROM fresh g)), 0)
            AND max(f.number) = min(f.number) + count(*) - 1 AND count(f.data) = count(*) FROM fresh f)""",
        "terms.number must be the number of terms, and their bytes there",
        "RETURN NULL",
    )
    belongs = _unless(
        f"""EXISTS (SELECT 1 FROM fresh f WHERE NOT EXISTS (
            SELECT 1 FROM {schema}.entry e WHERE e.seq = f.seq AND e.kind = {ADMIT_KIND} AND e.body IS NOT NULL))""",
        "an attestation belongs to an ADMIT leaf that is there",
        "RETURN NULL",
    )
    goes = _unless(
        f"NOT EXISTS (SELECT 1 FROM {schema}.entry e WHERE e.seq = OLD.seq AND e.body IS NULL)",
        "attestation rows are removed with the body of their leaf alone",
        "RETURN OLD",
    )
    dialect, own = postgresql.dialect(), tables(schema).meta.metadata.sorted_tables
    made = [str(sa.schema.CreateTable(table).compile(dialect=dialect)) for table in own]
    made.append(f"ALTER TABLE {schema}.aggregate ADD EXCLUDE USING gist (int8range(first, past) WITH &&)")
    made.append(f"CREATE UNIQUE INDEX terms_data ON {schema}.terms (sha256(data))")
    inserted = f"AFTER INSERT ON {schema}.{{}} REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT"
    made += _guarded(schema, "entry", "dense", inserted.format("entry"), dense, "SECURITY DEFINER")
    made.append(f"REVOKE ALL ON FUNCTION {schema}.entry_dense() FROM PUBLIC")
    made += _guarded(schema, "terms", "dense", inserted.format("terms"), terms_dense)
    made += _guarded(schema, "attestation", "belongs", inserted.format("attestation"), belongs)
    made += _guarded(schema, "attestation", "goes", f"BEFORE DELETE ON {schema}.attestation FOR EACH ROW", goes)
    for name in TABLES:
        verbs = "DELETE OR TRUNCATE" if name in changes else _WRITES.get(name, "UPDATE OR DELETE OR TRUNCATE")
        never = _unless("true", _NEVER.format(name), "RETURN NULL")
        made += _guarded(schema, name, "stays", f"BEFORE {verbs} ON {schema}.{name} FOR EACH STATEMENT", never)
    for name, (when, sentence) in changes.items():
        body = _unless(when, sentence, "RETURN NEW")
        made += _guarded(schema, name, "grows", f"BEFORE UPDATE ON {schema}.{name} FOR EACH ROW", body)
    return made


def writer_grants(schema: str, role: str) -> list[str]:
    """Returns what gives a role all that a run needs, and no way to change or remove what is recorded.

    Args:
        schema: of a ledger that another role owns.
        role: an existing role, whatever its name.
    """
    name = '"' + role.replace('"', '""') + '"'
    return [
        f"GRANT USAGE ON SCHEMA {schema} TO {name}",
        f"GRANT SELECT ON {', '.join(f'{schema}.{table}' for table in TABLES)} TO {name}",
        f"GRANT INSERT ON {', '.join(f'{schema}.{table}' for table in _APPENDED)} TO {name}",
        f"GRANT UPDATE (frontier) ON {schema}.head TO {name}",
        f"GRANT UPDATE (holder, fence) ON {schema}.lease TO {name}",
        f"GRANT UPDATE (note) ON {schema}.checkpoint TO {name}",
    ]
