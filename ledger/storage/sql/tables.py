"""Defines the tables of a ledger once, for SQLite and for PostgreSQL.

SQLite makes its tables from these definitions. PostgreSQL builds its statements from them, and makes its tables by itself
(`ledger.storage.sql.postgres_schema`): with rights, and with a constraint that SQLite has no words for.
"""

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

METADATA: Final = sa.MetaData()

_NUMBER: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""A position, a size or a count. SQLite calls every integer INTEGER, and a key of that type is the number of its row."""


def _key(name: str) -> "sa.Column[int]":
    return sa.Column(name, _NUMBER, primary_key=True, autoincrement=False)


def _only_row() -> "sa.Column[int]":
    return sa.Column("id", sa.Integer, sa.CheckConstraint("id = 0"), primary_key=True, autoincrement=False)


def _table(name: str, *columns: "sa.Column[int] | sa.Column[bytes] | sa.Column[str] | sa.Index") -> sa.Table:
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
_table("terms", _key("number"), sa.Column("data", sa.LargeBinary), sa.Index("terms_data", "data", unique=True))
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
