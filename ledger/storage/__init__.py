"""Keeps a ledger: the stores and what they promise, the signer's own record beside them, and the checks of both.

The first lines of its interface (`Place`, `register_store`, `file_place`) are for who writes a store (docs/extending/store.md).
"""

from ledger.storage.place import Place, file_place, register_store, server_place

__all__ = ["Place", "file_place", "register_store"]

register_store(
    "sqlite",
    "ledger.storage.sql.sqlite:SqliteStore",
    needs="a ledger in a file needs SQLAlchemy ({error}): pip install 'dptrain[store]'",
)
register_store(
    "postgresql",
    "ledger.storage.sql.postgres:PostgresStore",
    place=server_place,
    aliases=("postgres",),
    needs="a ledger on PostgreSQL needs SQLAlchemy and psycopg ({error}): pip install 'dptrain[postgres]'",
)


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
