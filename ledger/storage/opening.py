"""Creates and opens the store of a ledger by its place. A store is imported when a ledger of its kind is met."""

from ledger.errors import LedgerCorrupt
from ledger.storage import fsck, highwater
from ledger.storage.place import Place, store_of
from ledger.storage.store import Store


def create_store(place: Place) -> Store:
    """Creates an empty ledger at a place; see `Store.create`."""
    return store_of(place).create(place)


def open_store(place: Place, *, read_only: bool) -> Store:
    """Opens the ledger at a place; see `Store.open`."""
    return store_of(place).open(place, read_only=read_only)


def exists(place: Place) -> bool:
    """Tells whether there is anything at the place of a ledger."""
    return store_of(place).exists(place)


def set_unfinished_aside(place: Place) -> str | None:
    """Renames a ledger whose creation was interrupted, so that it can be created anew.

    Only a ledger without the signer's high-water file, which creation writes last, and with at most its header counts: it
    cannot hold a charge. Nothing is deleted.

    Returns:
        The new name, or None if the ledger is not an unfinished one.
    """
    if not exists(place) or highwater.exists(place) or not _unfinished(place):
        return None
    return store_of(place).set_aside(place)


def _unfinished(place: Place) -> bool:
    try:
        store = open_store(place, read_only=True)
        try:
            return fsck.load(store, recompute=False).frontier.size == 1
        finally:
            store.close()
    except LedgerCorrupt as error:
        return error.code == "HEADER" or store_of(place).is_blank(place)
