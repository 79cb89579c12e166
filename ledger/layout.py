"""Names the files of an export and bounds their sizes: pure functions of the tree's size, and of what of it is gone.

Source: C2SP tlog-tiles v1.0.0. A directory holds ``checkpoint``, ``policy``, ``tile/<L>/<N>[.p/<W>]`` and
``tile/entries/<N>[.p/<W>]``. Of a pruned ledger the first bundles are not there ("Pruning": entries below a minimum index may
be missing, hashes stay); in their place are ``retained/<N>[.p/<W>]``, in the same format, with what stands in for pruned leaves
(`ledger.retention`), and ``retained/notes``, the checkpoints below which auditors vouch for summaries. Where leaf
hashes are gone too, tiles that had them are not there either, and ``retained/nodes`` is (`ledger.tiles`).

What contributors signed lies beside the leaves that quote it, unless it was left out: ``attestations/terms/<N>[.p/<W>]``,
bundles of common terms (`attest.attestation.CommonTerms`) by number, from 0 in the order in which contributions first use them;
``attestations/signed/<N>[.p/<W>]``, beside every bundle of entries with the body of an ADMIT leaf, an entry per leaf: the CBOR
array of number of terms and signature, empty for other leaves; and ``registry``, the contributor registry as its owner signed
it.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from typing import Final

from attest.registry.entries import MAX_SIZE as MAX_REGISTRY_SIZE

TILE_WIDTH: Final = 256
TILE_HEIGHT: Final = 8
"""Levels of the tree in one tile: 2^8 = 256 hashes wide."""

HASH_SIZE: Final = 32
MAX_ENTRY_SIZE: Final = 65_535
MAX_BUNDLE_SIZE: Final = (MAX_ENTRY_SIZE + 2) * TILE_WIDTH
MAX_TILE_SIZE: Final = HASH_SIZE * TILE_WIDTH
MAX_SIGNED_SIZE: Final = (128 + 2) * TILE_WIDTH
"""Largest bundle of signatures; an entry has 76 bytes at most."""

MAX_TEXT_SIZE: Final = 1_000_000

CHECKPOINT: Final = "checkpoint"
POLICY: Final = "policy"
RETAINED_NOTES: Final = "retained/notes"
RETAINED_NODES: Final = "retained/nodes"
REGISTRY: Final = "registry"
ATTESTATIONS: Final = "attestations"
TERMS: Final = f"{ATTESTATIONS}/terms/"
SIGNED: Final = f"{ATTESTATIONS}/signed/"
NODE_SIZE: Final = 8 + 1 + HASH_SIZE
"""Bytes of one node in ``retained/nodes``: first leaf, level, root."""

MAX_NODES_SIZE: Final = 1 << 28
"""Largest ``retained/nodes``, whatever size a checkpoint claims: six million nodes."""

HasTile = Callable[[int, int], bool]
"""Tells of a row of tiles (level / 8) and a number in it whether that tile is there."""


def index_path(n: int) -> str:
    """Writes a tile index in groups of three digits, all but the last marked: 1234067 is ``x001/x234/067``."""
    parts = [f"{n % 1000:03d}"]
    while n >= 1000:
        n //= 1000
        parts.append(f"x{n % 1000:03d}")
    return "/".join(reversed(parts))


def tile_path(level: int, n: int, width: int = TILE_WIDTH) -> str:
    """Returns the name of a hash tile; a width below 256 makes it a partial tile."""
    return f"tile/{level}/{index_path(n)}{_partial(width)}"


def entries_path(n: int, width: int = TILE_WIDTH) -> str:
    """Returns the name of an entry bundle."""
    return f"tile/entries/{index_path(n)}{_partial(width)}"


def retained_path(n: int, width: int = TILE_WIDTH) -> str:
    """Returns the name of the bundle that is there in place of an entry bundle with pruned leaves."""
    return f"retained/{index_path(n)}{_partial(width)}"


def terms_path(n: int, width: int = TILE_WIDTH) -> str:
    """Returns the name of a bundle of common terms of attestations."""
    return f"{TERMS}{index_path(n)}{_partial(width)}"


def signed_path(n: int, width: int = TILE_WIDTH) -> str:
    """Returns the name of the bundle with the signatures of contributors beside an entry bundle."""
    return f"{SIGNED}{index_path(n)}{_partial(width)}"


def bundle_path(n: int, width: int, retained: int) -> str:
    """Returns the name of a bundle, of which the first ``retained`` have pruned leaves, or lie before one that has."""
    return retained_path(n, width) if n < retained else entries_path(n, width)


def level_count(size: int) -> int:
    """Returns how many levels of tiles a tree has."""
    levels = 0
    while size:
        levels += 1
        size //= TILE_WIDTH
    return levels


def tile_widths(size: int, level: int = 0) -> Iterator[tuple[int, int]]:
    """Yields (index, width) of the tiles at a level: full ones, then at most one partial one."""
    hashes = size // TILE_WIDTH**level
    for n in range(hashes // TILE_WIDTH):
        yield n, TILE_WIDTH
    if hashes % TILE_WIDTH:
        yield hashes // TILE_WIDTH, hashes % TILE_WIDTH


def width_of(n: int, size: int) -> int:
    """Returns how many leaves the n-th tile of level 0 holds in a tree of ``size`` leaves."""
    return min(TILE_WIDTH, size - n * TILE_WIDTH)


def file_paths(size: int, retained: int = 0, has_tile: HasTile | None = None) -> Iterator[str]:
    """Yields the names of all files of an export but `REGISTRY` and those of `attestation_paths`, which may be left out.
    `has_tile`: tells the hash tiles that are there, where leaf hashes are gone."""
    yield CHECKPOINT
    yield POLICY
    if retained:
        yield RETAINED_NOTES
    if has_tile is not None:
        yield RETAINED_NODES
    for n, width in tile_widths(size):
        yield bundle_path(n, width, retained)
    for level in range(level_count(size)):
        for n, width in tile_widths(size, level):
            if has_tile is None or has_tile(level, n):
                yield tile_path(level, n, width)


def attestation_paths(size: int, terms: int, signed: Iterable[int]) -> Iterator[str]:
    """Yields the names of the files with what contributors signed."""
    for n, width in tile_widths(terms):
        yield terms_path(n, width)
    for n in signed:
        yield signed_path(n, width_of(n, size))


def count_terms(names: Container[str]) -> int:
    """Returns how many common terms an export with files of these names has: its full bundles, then at most one partial one.

    Names of bundles that do not continue these are left over: `attestation_paths` of the result lacks them.
    """
    full = 0
    while terms_path(full) in names:
        full += 1
    widths = (width for width in range(1, TILE_WIDTH) if terms_path(full, width) in names)
    return full * TILE_WIDTH + next(widths, 0)


def max_file_size(path: str, size: int = 0) -> int:
    """Returns the largest size, in bytes, of a file of an export of so many leaves; only ``retained/nodes`` grows with them."""
    if path == RETAINED_NODES:
        return min(NODE_SIZE * size + HASH_SIZE, MAX_NODES_SIZE)
    if path == REGISTRY:
        return MAX_REGISTRY_SIZE
    if path.startswith(SIGNED):
        return MAX_SIGNED_SIZE
    if path.startswith(("tile/entries/", "retained/", TERMS)):
        return MAX_BUNDLE_SIZE
    return MAX_TILE_SIZE if path.startswith("tile/") else MAX_TEXT_SIZE


def _partial(width: int) -> str:
    return "" if width == TILE_WIDTH else f".p/{width}"
