"""Sets up a ledger on a PostgreSQL server: the connection, errors by SQLSTATE, tables and triggers.

Nothing here waits for ever. A server that does not acknowledge is given up by TCP; one that acknowledges and does not answer
(a proxy that swallows what it is given, a commit that waits for a standby that is gone) by `Connection`, whose every wait has
an end. Then the connection is closed, and the call fails as for any lost one: a commit without an answer may have happened.

The triggers stop accidents, as in SQLite: a statement that would change the past fails, whether it updates, deletes,
truncates or inserts out of order. A superuser can switch them off, and is found out by the tree. Positions come from no
sequence, which would leave gaps where a transaction rolls back. ``entry_dense`` runs once per statement, over all rows that
it inserted, and moves the head itself, with the rights of the owner: a writer needs none on ``head.size``.
"""

import re
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict

from ledger.errors import LedgerBusy, LedgerCorrupt, LedgerError, StorageFailed
from ledger.storage.place import Place
from ledger.storage.store import ADMIT_KIND, LOCK_TIMEOUT_SECONDS, PRUNABLE_KINDS, SUMMARY_KIND

_BUSY: Final = frozenset({"40001", "40P01", "55P03"})
"""Serialization failure, deadlock, lock not available within ``lock_timeout``."""

_CORRUPT_CLASSES: Final = frozenset({"23", "42", "XX", "P0"})
"""A constraint or trigger refused, a table or column is not there, an index or page is broken."""

_CONNECTION_CLASSES: Final = frozenset({"08", "57"})
"""The connection failed, the server is shutting down or starting."""

_QUERY: Final = re.compile(r"\nLINE [0-9]+: .*\n *\^")
"""The place in a statement that a server points at: statements are this program's, and say nothing to its user."""

_TIMED_OUT: Final = "57014"
_NO_PRIVILEGE: Final = "42501"


@contextmanager
def translated(doing: str, *, committing: bool = False) -> Iterator[None]:
    """Turns the database's errors into the ledger's.

    Args:
        doing: what is being done, for the sentence.
        committing: a lost connection leaves open whether it happened.
    """
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise _typed(doing, error.orig, committing) from error
    except psycopg.Error as error:
        raise _typed(doing, error, committing) from error
    except OSError as error:
        raise StorageFailed("IO", f"{doing}: {error.strerror or error}") from error


def _typed(doing: str, error: BaseException | None, committing: bool) -> LedgerError:
    state = getattr(error, "sqlstate", None)
    said = " ".join(_QUERY.sub("", str(error)).split())
    if state is None or (state[:2] in _CONNECTION_CLASSES and state != _TIMED_OUT):
        if committing:
            return StorageFailed(
                "COMMIT_UNKNOWN",
                f"{doing}: the connection was lost during the commit ({said}), so the leaves may be in the ledger or not; no "
                "step that they pay for may run; open the ledger again",
            )
        return StorageFailed("CONNECTION", f"{doing}: {said}; restore the connection, then open the ledger again")
    if state in _BUSY:
        return LedgerBusy("LOCKED", f"{doing}: another process holds the database ({said})")
    if state == _NO_PRIVILEGE:
        return StorageFailed("PRIVILEGE", f"{doing}: {said}; docs/storage.md tells what which role may do")
    if state[:2] in _CORRUPT_CLASSES:
        return LedgerCorrupt("DATABASE", f"{doing}: {said}")
    return StorageFailed("STORAGE", f"{doing}: {said}; mend the server, then open the ledger again")


STATEMENT_TIMEOUT_SECONDS: Final = 120
"""Longest time for one statement; reading a ledger is many, a batch each. The server does not apply it to a commit."""

CONNECT_TIMEOUT_SECONDS: Final = 10
"""How long to wait for the server to answer."""

LOST_AFTER_SECONDS: Final = 30
"""A connection over which nothing is acknowledged for so long counts as lost: here, so that a run stops, and at the server, so
that a writer that is gone gives up its lock."""

SILENT_AFTER_SECONDS: Final = STATEMENT_TIMEOUT_SECONDS + LOST_AFTER_SECONDS
"""A server that has not answered one message by then never will: it would have ended the statement itself."""

MUST_BE_ON: Final = ("fsync", "full_page_writes", "synchronous_commit")
"""Settings without which a commit may be forgotten."""

_KEEPALIVES: Final = {
    "keepalives_idle": LOST_AFTER_SECONDS // 3,
    "keepalives_interval": LOST_AFTER_SECONDS // 6,
    "keepalives_count": 4,
}
_SETTINGS: Final = {
    "synchronous_commit": "on",
    "statement_timeout": f"{STATEMENT_TIMEOUT_SECONDS}s",
    "lock_timeout": f"{LOCK_TIMEOUT_SECONDS}s",
    "tcp_user_timeout": f"{LOST_AFTER_SECONDS}s",
    **{f"tcp_{name}": str(value) for name, value in _KEEPALIVES.items()},
}

_Answer = TypeVar("_Answer")


class Connection(psycopg.Connection[Any]):
    """A connection that counts as lost, and is closed, when one exchange takes longer than `SILENT_AFTER_SECONDS`."""

    _given_up = False

    def wait(self, gen: Generator[Any, Any, _Answer], *args: Any, **kwargs: Any) -> _Answer:
        """Waits as psycopg does, which comes by every tenth of a second whether there is an answer or not."""
        if self._given_up:
            raise self._give_up()  # what cleans up after the first failure fails for the same reason
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _give_up(self) -> psycopg.OperationalError:
        self._given_up = True
        self.close()
        return psycopg.OperationalError(f"the server did not answer within {SILENT_AFTER_SECONDS} s")

    def _bounded(self, exchange: Generator[Any, Any, _Answer]) -> Generator[Any, Any, _Answer]:
        deadline = time.monotonic() + SILENT_AFTER_SECONDS
        try:
            awaited = next(exchange)
            while True:
                ready = yield awaited
                # An answer that is there is read, however late: perhaps it was this process that was stopped meanwhile.
                if not ready and time.monotonic() > deadline:
                    raise self._give_up()
                awaited = exchange.send(ready)
        except StopIteration as answered:
            return answered.value


def engine_of(place: Place, *, read_only: bool) -> sa.Engine:
    """Returns an engine of one connection, kept until the store is closed.

    It is never replaced in silence: the lock would be lost with it.
    """
    arguments = _arguments(place)
    made: list[object] = []

    def connect() -> Connection:
        if made:
            raise StorageFailed("CONNECTION", f"the connection to {place.shown} was lost; open the ledger again")
        with translated(f"connecting to {place.shown}"):
            connection = Connection.connect(**arguments)
            made.append(connection)
            _settle(connection)
            connection.read_only = read_only
            return connection

    return sa.create_engine("postgresql+psycopg://", creator=connect, poolclass=sa.pool.StaticPool)


def _arguments(place: Place) -> dict[str, Any]:
    """What to connect with: the URL's own, over our defaults."""
    try:
        given: dict[str, Any] = dict(conninfo_to_dict(place.target))
    except psycopg.ProgrammingError as error:
        # libpq quotes what it cannot read, and that may be the password; a parameter that it does not know is not.
        said = str(error).strip() if "query parameter" in str(error) else "libpq cannot read it"
        raise LedgerError("URL", f"{place.shown} is no URL of a database: {said}") from None
    defaults = {"connect_timeout": CONNECT_TIMEOUT_SECONDS, "application_name": "dptrain ledger"}
    return defaults | {"tcp_user_timeout": LOST_AFTER_SECONDS * 1000} | _KEEPALIVES | given


def _settle(connection: Connection) -> None:
    """Gives the session our settings, over those of role, database and URL, and asserts that its commits last."""
    connection.autocommit = True
    for name, value in _SETTINGS.items():
        connection.execute("SELECT pg_catalog.set_config(%s, %s, false)", (name, value))
    for name in MUST_BE_ON:
        (value,) = connection.execute(f"SHOW {name}").fetchone() or ("",)
        if value != "on":
            raise StorageFailed("NOT_DURABLE", f"the server has {name}={value}, so it may forget what it commits; set it to on")
    connection.autocommit = False


TABLES: Final = ("meta", "entry", "head", "checkpoint", "aggregate", "lease", "terms", "attestation")

_APPENDED: Final = ("entry", "checkpoint", "terms", "attestation")
"""Tables that a run appends rows to."""

FUNCTIONS: Final = tuple(f"{name}_{kind}" for name in TABLES for kind in ("dense", "stays", "grows", "belongs", "goes"))
"""Functions of the triggers; not every table has all."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one schema."""

    meta: sa.Table
    entry: sa.Table
    head: sa.Table
    checkpoint: sa.Table
    aggregate: sa.Table
    lease: sa.Table
    terms: sa.Table
    attestation: sa.Table


def tables(schema: str) -> Tables:
    """Returns the tables of a schema, for building statements."""
    data = sa.MetaData(schema=schema)

    def table(name: str, **columns: Any) -> sa.Table:
        return sa.Table(name, data, *(sa.Column(column, kind) for column, kind in columns.items()))

    return Tables(
        meta=table("meta", key=sa.Text, value=sa.Text),
        entry=table(
            "entry",
            seq=sa.BigInteger,
            kind=sa.Integer,
            leaf=sa.LargeBinary,
            body=sa.LargeBinary,
            level=sa.Integer,
        ),
        head=table(
            "head",
            id=sa.Integer,
            size=sa.BigInteger,
            frontier=sa.LargeBinary,
            pruned_before=sa.BigInteger,
            hashes_before=sa.BigInteger,
        ),
        checkpoint=table("checkpoint", size=sa.BigInteger, note=sa.LargeBinary),
        aggregate=table(
            "aggregate", first=sa.BigInteger, past=sa.BigInteger, summary_seq=sa.BigInteger, record=sa.LargeBinary
        ),
        lease=table("lease", id=sa.Integer, holder=sa.Text, fence=sa.BigInteger),
        terms=table("terms", number=sa.BigInteger, data=sa.LargeBinary),
        attestation=table("attestation", seq=sa.BigInteger, data=sa.LargeBinary),
    )


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
