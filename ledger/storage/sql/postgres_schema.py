"""Makes the tables of a ledger in a schema of PostgreSQL, their triggers, and the rights of a writer.

The triggers stop accidents, as in SQLite: a statement that would change the past fails, whether it updates, deletes,
truncates or inserts out of order. A superuser can switch them off, and is found out by the tree. Positions come from no
sequence, which would leave gaps where a transaction rolls back. ``entry_dense`` runs once per statement, over all rows that
it inserted, and moves the head itself, with the rights of the owner: a writer needs none on ``head.size``.
"""

from typing import Final

from ledger.storage.sql.tables import TABLES
from ledger.storage.store import ADMIT_KIND, PRUNABLE_KINDS, SUMMARY_KIND

_APPENDED: Final = ("entry", "checkpoint", "terms", "attestation")
"""Tables that a run appends rows to."""

FUNCTIONS: Final = tuple(f"{name}_{kind}" for name in TABLES for kind in ("dense", "stays", "grows", "belongs", "goes"))
"""Functions of the triggers; not every table has all."""


_TABLES = """
CREATE TABLE {s}.meta (key text PRIMARY KEY, value text NOT NULL);
CREATE TABLE {s}.entry (seq bigint PRIMARY KEY, kind integer NOT NULL,
    leaf bytea CHECK (octet_length(leaf) = 32), body bytea, level integer NOT NULL DEFAULT 0 CHECK (level BETWEEN 0 AND 62));
CREATE TABLE {s}.head (id integer PRIMARY KEY CHECK (id = 0), size bigint NOT NULL, frontier bytea NOT NULL,
    pruned_before bigint NOT NULL, hashes_before bigint NOT NULL);
CREATE TABLE {s}.checkpoint (size bigint PRIMARY KEY, note bytea NOT NULL);
CREATE TABLE {s}.aggregate (first bigint PRIMARY KEY, past bigint NOT NULL CHECK (past > first), summary_seq bigint NOT NULL,
    record bytea NOT NULL, EXCLUDE USING gist (int8range(first, past) WITH &&));
CREATE TABLE {s}.lease (id integer PRIMARY KEY CHECK (id = 0), holder text NOT NULL, fence bigint NOT NULL);
CREATE TABLE {s}.terms (number bigint PRIMARY KEY, data bytea);
CREATE UNIQUE INDEX terms_data ON {s}.terms (sha256(data));
CREATE TABLE {s}.attestation (seq bigint PRIMARY KEY, data bytea NOT NULL);
"""

_FUNCTION = """
CREATE FUNCTION {s}.{name}() RETURNS trigger LANGUAGE plpgsql {rights} SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    {body}
END $body$
"""

_REFUSE = "RAISE EXCEPTION '{sentence}' USING ERRCODE = 'integrity_constraint_violation';"

_DENSE = """
    UPDATE {s}.head SET size = size + (SELECT count(*) FROM fresh) WHERE id = 0
        AND (SELECT min(f.seq) = size AND max(f.seq) = size + count(*) - 1 AND count(f.body) = count(*)
            AND count(f.leaf) = count(*) AND max(f.level) = 0 FROM fresh f);
    IF NOT FOUND AND EXISTS (SELECT 1 FROM fresh) THEN
        RAISE EXCEPTION 'entry.seq must be the size of the ledger, and its body and hash there'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;"""

_TERMS_DENSE = """
    IF EXISTS (SELECT 1 FROM fresh) AND NOT (
        SELECT min(f.number) = coalesce((SELECT max(t.number) + 1 FROM {s}.terms t
                WHERE t.number < (SELECT min(g.number) FROM fresh g)), 0)
            AND max(f.number) = min(f.number) + count(*) - 1 AND count(f.data) = count(*) FROM fresh f) THEN
        RAISE EXCEPTION 'terms.number must be the number of terms, and their bytes there'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;"""

_BELONGS = """
    IF EXISTS (SELECT 1 FROM fresh f WHERE NOT EXISTS (
            SELECT 1 FROM {s}.entry e WHERE e.seq = f.seq AND e.kind = {admit} AND e.body IS NOT NULL)) THEN
        RAISE EXCEPTION 'an attestation belongs to an ADMIT leaf that is there'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;"""


_BODY_GOES = """(OLD.kind IN ({kinds}) AND OLD.seq < (SELECT pruned_before FROM {s}.head)
            AND (NEW.leaf, NEW.level) IS NOT DISTINCT FROM (OLD.leaf, OLD.level)
            AND (OLD.kind <> {admit}
                OR EXISTS (SELECT 1 FROM {s}.aggregate a WHERE a.first <= OLD.seq AND OLD.seq < a.past)))"""

# The first row of a subtree is set before the others, which find it by their own level.
_HASH_GOES = """(OLD.body IS NULL AND NEW.level > OLD.level
            AND CASE WHEN NEW.level > 62 THEN false WHEN NEW.leaf IS NOT NULL
            THEN NEW.seq & ((1::bigint << NEW.level) - 1) = 0
                AND NEW.seq + (1::bigint << NEW.level) <= (SELECT hashes_before FROM {s}.head)
                AND (SELECT count(*) FROM {s}.entry e WHERE e.seq >= NEW.seq AND e.seq < NEW.seq + (1::bigint << NEW.level)
                    AND e.body IS NULL) = 1::bigint << NEW.level
            ELSE EXISTS (SELECT 1 FROM {s}.entry e WHERE e.seq = (NEW.seq & ~((1::bigint << NEW.level) - 1))
                AND e.seq <> NEW.seq AND e.level = NEW.level AND e.leaf IS NOT NULL) END)"""


_WRITES = {"attestation": "UPDATE OR TRUNCATE"}
"""Verbs that a table refuses whatever the row, where a row may be removed with what it belongs to."""

_GOES = """
    IF NOT EXISTS (SELECT 1 FROM {s}.entry e WHERE e.seq = OLD.seq AND e.body IS NULL) THEN
        RAISE EXCEPTION 'attestation rows are removed with the body of their leaf alone'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN OLD;"""


def _guard(when: str, sentence: str) -> str:
    return f"IF {when} THEN {_REFUSE.format(sentence=sentence)} END IF; RETURN NEW;"


def statements(schema: str) -> list[str]:
    """Returns what makes the tables and triggers of a ledger in a schema, which exists.

    Args:
        schema: its name, as `ledger.storage.place` lets through: it needs no quoting.
    """
    kinds = ", ".join(map(str, PRUNABLE_KINDS))
    guards = {
        "entry": _guard(
            f"""NEW.body IS NOT NULL OR (NEW.seq, NEW.kind) IS DISTINCT FROM (OLD.seq, OLD.kind)
            OR NOT coalesce({_BODY_GOES.format(s=schema, kinds=kinds, admit=ADMIT_KIND)}, false)
            AND NOT coalesce({_HASH_GOES.format(s=schema)}, false)""",
            "entry rows never change; only bodies below pruned_before may go, and hashes below hashes_before into subtrees",
        ),
        "head": _guard(
            f"""NEW.size < OLD.size OR NEW.id <> OLD.id OR NEW.pruned_before < OLD.pruned_before
            OR NEW.hashes_before < OLD.hashes_before OR NEW.hashes_before > NEW.pruned_before
            OR (NEW.pruned_before > OLD.pruned_before AND NOT EXISTS (
                SELECT 1 FROM {schema}.entry WHERE kind = {SUMMARY_KIND} AND seq >= NEW.pruned_before))""",
            "the head of the ledger never shrinks, pruned_before never passes the last summary, nor hashes_before that",
        ),
        "lease": _guard("NEW.fence <= OLD.fence OR NEW.id <> OLD.id", "the fence of the ledger only grows"),
        # What is appended begins like a signature line and holds no empty line, so the text of the note stays what it was.
        "checkpoint": _guard(
            r"""NEW.size <> OLD.size OR substring(NEW.note FROM 1 FOR octet_length(OLD.note)) <> OLD.note
            OR substring(NEW.note FROM octet_length(OLD.note) + 1 FOR 4) <> '\xe2809420'::bytea
            OR substring(NEW.note FROM octet_length(NEW.note)) <> '\x0a'::bytea
            OR position('\x0a0a'::bytea IN substring(NEW.note FROM octet_length(OLD.note) + 1)) > 0""",
            "a checkpoint note is never changed; only signature lines may be appended",
        ),
        "terms": _guard(
            f"""NEW.number <> OLD.number OR NEW.data IS NOT NULL
            OR NOT EXISTS (SELECT 1 FROM {schema}.head WHERE pruned_before > 0)""",
            "terms rows are never changed; only what nothing is left of after pruning may be emptied",
        ),
    }
    made = [part.strip() for part in _TABLES.format(s=schema).split(";\n") if part.strip()]
    made.append(_function(schema, "entry_dense", _DENSE.format(s=schema), "SECURITY DEFINER"))
    made.append(f"REVOKE ALL ON FUNCTION {schema}.entry_dense() FROM PUBLIC")
    made.append(_function(schema, "terms_dense", _TERMS_DENSE.format(s=schema)))
    made.append(_function(schema, "attestation_belongs", _BELONGS.format(s=schema, admit=ADMIT_KIND)))
    made += [
        f"CREATE TRIGGER {name}_{kind} AFTER INSERT ON {schema}.{name} REFERENCING NEW TABLE AS fresh "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {schema}.{name}_{kind}()"
        for name, kind in (("entry", "dense"), ("terms", "dense"), ("attestation", "belongs"))
    ]
    for name in TABLES:
        sentence = f"{name} rows are never changed or removed"
        made.append(_function(schema, f"{name}_stays", _REFUSE.format(sentence=sentence)))
        verbs = "DELETE OR TRUNCATE" if name in guards else _WRITES.get(name, "UPDATE OR DELETE OR TRUNCATE")
        made.append(
            f"CREATE TRIGGER {name}_stays BEFORE {verbs} ON {schema}.{name} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION {schema}.{name}_stays()"
        )
    for name, body in guards.items():
        made.append(_function(schema, f"{name}_grows", body))
        made.append(
            f"CREATE TRIGGER {name}_grows BEFORE UPDATE ON {schema}.{name} "
            f"FOR EACH ROW EXECUTE FUNCTION {schema}.{name}_grows()"
        )
    made.append(_function(schema, "attestation_goes", _GOES.format(s=schema)))
    made.append(
        f"CREATE TRIGGER attestation_goes BEFORE DELETE ON {schema}.attestation "
        f"FOR EACH ROW EXECUTE FUNCTION {schema}.attestation_goes()"
    )
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


def _function(schema: str, name: str, body: str, rights: str = "") -> str:
    return _FUNCTION.format(s=schema, name=name, body=body, rights=rights)
