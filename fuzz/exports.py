"""Fuzz targets of what auditors, recipients of models, gates and resumed runs read: leaves, bundles, manifests, rights.

Beside what every target holds: nothing comes out of a reader but a typed `LedgerError`, what is accepted is written in no other
way, and no manifest, no pinned file and no rights are accepted that the key here did not sign.
"""

import hashlib
import io
import itertools
import tempfile
from pathlib import Path

from attest.keys import public_bytes
from fuzz.invariants import Target, require
from ledger import tiles
from ledger.errors import LedgerError
from ledger.leaves import decode_leaf, encode_leaf
from ledger.log.pinned import open_pinned
from ledger.merkle import HASH_SIZE
from ledger.note import NoteSigner
from ledger.release.create import release
from ledger.release.files import digest_tensors
from ledger.release.manifest import Manifest, open_manifest
from ledger.replay.signer import KeyChain
from ledger.replay.summaries import Aggregate
from ledger.serving import RightsEnvelope, open_rights
from ledger.tiles import KeptNodes, Subtree, nodes_file
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START, Driver
from tests.worlds.retained_ledgers import grown
from tests.worlds.serving import GRANTER, HOLDER, NAME, NOW, envelope, signed

NEXT = NoteSigner(SIGNER.name, OTHER_KEY)
SIZE = 1_000
"""Leaves of the tree in which nodes are kept."""


KIND = "dptrain.fuzz/1"


def _bodies() -> tuple[dict[int, bytes], list[bytes], bytes, list[bytes], KeyChain]:
    """Makes a leaf of every kind that a run with retention writes, aggregates, a signed manifest, pinned files and keys."""
    with tempfile.TemporaryDirectory() as folder:
        driver: Driver = grown(Path(folder) / "ledger.db")
        with driver.ledger as ledger:
            _, records = ledger.state.tally.propose(ledger.size, START)
            ledger.summarise(now=driver.tick())
            ledger.resume(0, ledger.pin(), now=driver.tick())
            driver.steps(1)
            pinned = [ledger.sign_pinned(KIND, [1, 0, "held", 6, bytes(32)])]
            ledger.rotate_key(NEXT, now=driver.tick())
            pinned.append(ledger.sign_pinned(KIND, [[[0, bytes(32)], [1, bytes(32)]]]))
            driver.epoch()
            model = Path(folder) / "model"
            model.mkdir()
            (model / "weights.bin").write_bytes(b"weights")
            manifest = release(ledger, model, now=driver.tick()).path.read_bytes()
            ledger.finish(now=driver.tick())
            ledger.set_clock("a clock that was ahead", now=driver.now - 1000)
            with ledger.rows() as rows:
                leaves = {row.kind: row.body for row in rows}
            return leaves, [record.to_bytes() for record in records], manifest, pinned, ledger.state.keys


LEAVES, RECORDS, MANIFEST, PINNED, _CHAIN = _bodies()
_KEYS = [SIGNER.vkey, NEXT.vkey]
_PAYLOAD = open_manifest(MANIFEST, _KEYS).to_cbor()


def run_leaf(data: bytes) -> None:
    """A leaf as it is hashed."""
    try:
        leaf = decode_leaf(data)
    except LedgerError:
        return
    require(encode_leaf(leaf) == data, "an accepted leaf is written otherwise")


def run_bundle(data: bytes) -> None:
    """An entry bundle."""
    try:
        entries = tiles.split_bundle(data, None)
    except LedgerError:
        return
    require(tiles.entry_bundle(entries) == data, "an accepted bundle is written otherwise")


def run_aggregate(data: bytes) -> None:
    """What stands for pruned ADMIT leaves."""
    try:
        record = Aggregate.from_bytes(data)
        require(record.to_bytes() == data, "an accepted aggregate is written otherwise")
        restored = record.admission(record.first, bytes(32), "open", START)
    except LedgerError:
        return
    require(restored.seq == record.first and restored.clip_micro == record.clip_micro, "another one is restored")


def run_nodes(data: bytes) -> None:
    """Kept subtrees, under the digest that damage alone would not have."""
    try:
        nodes = KeptNodes(data + hashlib.sha256(data).digest(), SIZE)
    except LedgerError:
        return
    held = list(nodes)
    require(nodes_file(held) == data + hashlib.sha256(data).digest(), "accepted nodes are written otherwise")
    require(all(left.end <= right.first for left, right in itertools.pairwise(held)), "two subtrees overlap")
    for node in held:
        require(nodes.around(node.first) == node == nodes.around(node.end - 1), "a subtree is not found by its leaves")


def run_manifest(data: bytes) -> None:
    """A release manifest, signed and not."""
    try:
        open_manifest(data, _KEYS)
        require(data == MANIFEST, "a manifest is accepted that nobody signed")
    except LedgerError:
        pass
    try:
        manifest = Manifest.from_cbor(data)
    except LedgerError:
        return
    require(manifest.to_cbor() == data, "an accepted manifest is written otherwise")


def run_pinned(data: bytes) -> None:
    """Reads a file beside a ledger that its key signs."""
    try:
        open_pinned(data, KIND, _CHAIN)
    except LedgerError:
        return
    require(data in PINNED, "a pinned file is accepted that nobody signed")


def run_rights(data: bytes) -> None:
    """Reads a rights envelope, signed and not."""
    try:
        open_rights(data, [public_bytes(GRANTER)], NAME, NOW, holder=HOLDER)
        require(data in RIGHTS, "rights are accepted that nobody signed")
    except LedgerError:
        pass
    try:
        found = RightsEnvelope.from_cbor(data)
    except LedgerError:
        return
    require(found.to_cbor() == data, "accepted rights are written otherwise")


def run_safetensors(data: bytes) -> None:
    """A file of weights."""
    try:
        tensors = digest_tensors(io.BytesIO(data).read, len(data), "weights.safetensors")
    except LedgerError:
        return
    require([tensor.name for tensor in tensors] == sorted({tensor.name for tensor in tensors}), "names are out of order")


def _safetensors(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


RIGHTS = [signed(), signed({"open": 4_000_000, "sensitive": None}, withdrawn=True), signed({}, generation=())]
_NODES = [Subtree(first, level, bytes([first]) * HASH_SIZE) for first, level in ((0, 7), (128, 6), (192, 6))]
_WEIGHTS = b'{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
_WEIGHTS += b'"b":{"dtype":"BOOL","shape":[],"data_offsets":[8,9]}}'

EXPORT_TARGETS: dict[str, Target] = {
    "leaf": Target(run_leaf, list(LEAVES.values())),
    "bundle": Target(run_bundle, [tiles.entry_bundle(list(LEAVES.values())[1:6]), tiles.entry_bundle([b"", b"x"])]),
    "aggregate": Target(run_aggregate, RECORDS, 300),
    "nodes": Target(run_nodes, [b"".join(nodes_file([node])[:-HASH_SIZE] for node in _NODES)]),
    "manifest": Target(run_manifest, [MANIFEST, _PAYLOAD]),
    "pinned": Target(run_pinned, PINNED, 1_000),
    "rights": Target(run_rights, [*RIGHTS, envelope({"open": 4_000_000}).to_cbor(), envelope({}).to_cbor()], 1_200),
    "safetensors": Target(run_safetensors, [_safetensors(_WEIGHTS, bytes(9)), _safetensors(b"{}", b"")], 600),
}
"""The readers of exports, releases and pinned files, by name."""
