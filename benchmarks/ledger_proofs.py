"""Third part of ``make bench-ledger``: making and checking single proofs, notes and receipts, over trees of growing size.

A proof is made from a tree held in memory, as a server of proofs would, and from the tiles of an export, as a contributor
does: with the tiles at hand, and with each read anew. Checking a Merkle path is pure hashing; a proof file adds reading the
file and one signature, a cosigned one a signature per auditor.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterator

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger import merkle
from ledger.leaves import Withdraw, encode_leaf
from ledger.note import Checkpoint, Cosigner, NoteSigner, checkpoint_text, cosign, merge_notes, sign_note
from ledger.proofs import prover
from ledger.proofs.single_leaf import make_proof, make_receipt, verify_proof, verify_receipt
from ledger.trust import auditors_policy
from tests.reference.hash_tiles import hash_tiles

ROUNDS = 400
LOG = NoteSigner("benchmark/run", Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
AUDITORS = [Cosigner(f"auditor.example/{n}", Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32)) for n in (1, 2, 3)]


def leaves(size: int) -> Iterator[bytes]:
    """WITHDRAW leaves, about 90 bytes each."""
    for seq in range(1, size + 1):
        yield encode_leaf(Withdraw(seq, 1_750_000_000, hashlib.sha256(b"%d" % seq).digest(), seq, "consent", bytes(32)))


def microseconds(call: Callable[[int], object], size: int) -> float:
    """Time of a call per leaf, over places all across the tree; the median of five goes."""
    places = [(place * 7_919_000_003) % size for place in range(ROUNDS)]
    times = []
    for _ in range(5):
        started = time.perf_counter()
        for place in places:
            call(place)
        times.append((time.perf_counter() - started) / ROUNDS * 1e6)
    return sorted(times)[2]


def measure(size: int) -> dict[str, float]:
    """Microseconds of everything at one size."""
    data = [b"no header", *leaves(size - 1)]
    hashes = list(map(merkle.leaf_hash, data))
    started = time.perf_counter()
    tree = prover.HashTree(hashes)
    built = (time.perf_counter() - started) / size * 1e6
    files = dict(hash_tiles(hashes))
    warm = prover.TileTree(files.__getitem__, size)
    root = prover.tree_root(tree.node, size)
    paths = {place: prover.inclusion_proof(tree.node, place, size) for place in range(0, size, max(1, size // 1000))}
    near = sorted(paths)
    note = sign_note(checkpoint_text(LOG.name, size, root), LOG)
    cosigned = merge_notes(
        note,
        [cosign(note, who, [LOG.vkey], time=1_750_000_000) for who in AUDITORS],
        [LOG.vkey, *(who.vkey for who in AUDITORS)],
    )
    alone, quorum = auditors_policy(LOG.vkey), auditors_policy(LOG.vkey, [who.vkey for who in AUDITORS], 2)
    checkpoint, place = Checkpoint(LOG.name, size, root), size // 3
    plain = make_proof(tree.node, place, size, note, data[place]).to_bytes()
    full = make_proof(tree.node, place, size, cosigned, data[place]).to_bytes()
    receipt = make_receipt(LOG, tree.node, place, checkpoint, data[place])

    def check(n: int) -> None:
        index = near[n % len(near)]
        merkle.verify_inclusion_hash(hashes[index], index, size, paths[index], root)

    def consistency(n: int) -> None:
        old = n + 1
        path = prover.consistency_proof(tree.node, old, size)
        merkle.verify_consistency(old, size, path, prover.tree_root(tree.node, old), root)

    def cold(n: int) -> None:
        prover.inclusion_proof(prover.TileTree(files.__getitem__, size).node, n, size)

    return {
        "tree in memory, per leaf": built,
        "inclusion, made in memory": microseconds(lambda n: prover.inclusion_proof(tree.node, n, size), size),
        "inclusion, made from tiles at hand": microseconds(lambda n: prover.inclusion_proof(warm.node, n, size), size),
        "inclusion, made from tiles read anew": microseconds(cold, size),
        "inclusion, checked": microseconds(check, size),
        "consistency, made and checked": microseconds(consistency, size),
        "proof file, checked": microseconds(lambda n: verify_proof(plain, alone), size),
        "proof file with three cosignatures, checked": microseconds(lambda n: verify_proof(full, quorum), size),
        "receipt, made": microseconds(lambda n: make_receipt(LOG, tree.node, place, checkpoint, data[place]), size),
        "receipt, checked": microseconds(lambda n: verify_receipt(receipt, data[place], alone), size),
    }


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {size: measure(size) for size in options.sizes}
    if options.json:
        print(json.dumps(found))
        return
    print(f"{'microseconds':<46}" + "".join(f"{size:>12,}" for size in found))
    for name in next(iter(found.values())):
        print(f"{name:<46}" + "".join(f"{row[name]:>12.1f}" for row in found.values()))


if __name__ == "__main__":
    main()
