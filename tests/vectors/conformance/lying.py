"""What changes an honest export into one that says something else, and signs it again with the ledger's own key."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attest import cbor
from ledger import layout, tiles
from ledger.leaves import (
    Admit,
    Charge,
    Clock,
    Draw,
    Epoch,
    Header,
    HeaderBlock,
    Key,
    Leaf,
    Registry,
    Settle,
    Spend,
    Withdraw,
    decode_leaf,
    encode_leaf,
)
from ledger.merkle import HASH_SIZE, leaf_hash, root
from ledger.note import checkpoint_text, open_note, sign_note
from ledger.proofs.prover import tree_root
from ledger.replay.summaries import Aggregate
from ledger.retention import MEMBER, is_stand_in
from tests.attacks.test_ledger_attacks_depth import lying as lying_header
from tests.attacks.test_ledger_attacks_spend import less
from tests.attacks.test_ledger_attacks_times import forged_cosignature, shifted
from tests.ledger.spends import with_rows
from tests.reference.hash_tree import HashTree
from tests.vectors.conformance.honest import SUCCESSOR, registered_later
from tests.vectors.conformance.written import Files, Pieces
from tests.worlds.attested_ledgers import registry, registry_bytes
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START, NoteSigner
from tests.worlds.retained_ledgers import ANNA, BEN

YEAR = 365 * 86400
Change = Callable[[Pieces], Pieces]


def on_leaves(change: Change) -> Callable[[Files], Files]:
    """Returns what changes leaves, and signs again."""
    return lambda files: change(Pieces.of(files)).files()


def position_of(pieces: Pieces, kind: type[Leaf], nth: int = 0) -> int:
    """Returns where the n-th leaf of a kind stands."""
    return [seq for seq, leaf in enumerate(pieces.leaves) if isinstance(leaf, kind)][nth]


def say(kind: type[Leaf], nth: int = 0, **fields: Any) -> Change:
    """Returns what lets the n-th leaf of a kind say something else."""
    return told(kind, lambda leaf: replace(leaf, **fields), nth)


def told(kind: type[Leaf], change: Callable[[Any], Leaf], nth: int = 0) -> Change:
    """Returns what changes the n-th leaf of a kind."""

    def apply(pieces: Pieces) -> Pieces:
        seq = position_of(pieces, kind, nth)
        return pieces.saying(seq, change(pieces.leaves[seq]))

    return apply


def left_out(kind: type[Leaf], nth: int = 0) -> Change:
    """Returns what leaves out the n-th leaf of a kind; those behind move up."""
    return lambda pieces: pieces.without(position_of(pieces, kind, nth))


def inserted(kind: type[Leaf], leaf: Callable[[Pieces, int], Leaf], nth: int = 0) -> Change:
    """Returns what puts a leaf before the n-th one of a kind."""

    def apply(pieces: Pieces) -> Pieces:
        seq = position_of(pieces, kind, nth)
        return pieces.inserted(seq, leaf(pieces, seq))

    return apply


def blocks(change: Callable[[list[HeaderBlock]], list[HeaderBlock]]) -> Change:
    """Returns what gives the header other blocks."""

    def apply(pieces: Pieces) -> Pieces:
        header = pieces.leaves[0]
        assert isinstance(header, Header)
        return pieces.saying(0, lying_header(header, change(list(header.blocks))))

    return apply


def at(found: list[HeaderBlock], place: int, **fields: Any) -> list[HeaderBlock]:
    """Returns blocks of which one is another."""
    return [replace(block, **fields) if n == place else block for n, block in enumerate(found)]


def header_says(key: int, value: Callable[[Any], Any]) -> Change:
    """Returns what puts another value at one key of leaf 0."""

    def apply(pieces: Pieces) -> Pieces:
        fields = cbor.decode(pieces.bodies[0], max_size=1 << 16)
        return pieces.saying(0, cbor.encode(fields | {key: value(fields[key])}))

    return apply


def class_row(nth: int, place: int, **fields: Any) -> Change:
    """Returns what lets a row of the n-th CHARGE leaf say something else."""

    def change(leaf: Charge) -> Charge:
        rows = list(leaf.classes)
        rows[place] = replace(rows[place], **fields)
        return replace(leaf, classes=tuple(rows))

    return told(Charge, change, nth)


def same_stream(pieces: Pieces) -> Pieces:
    """The second window has the noise stream of the first."""
    first = pieces.leaves[position_of(pieces, Charge)]
    assert isinstance(first, Charge)
    return say(Charge, 1, noise_stream=first.noise_stream)(pieces)


def pool_of_before(pieces: Pieces) -> Pieces:
    """A charge after a withdrawal repeats the pool of the one before."""
    before = pieces.leaves[position_of(pieces, Charge, 1)]
    assert isinstance(before, Charge)
    return class_row(2, 0, pool_root=before.classes[0].pool_root, pool_count=before.classes[0].pool_count)(pieces)


def dated(seconds: int, first: int = 0) -> Change:
    """Returns what dates all leaves from one on otherwise."""
    return lambda pieces: replace(pieces, bodies=[encode_leaf(leaf) for leaf in shifted(pieces.leaves, seconds, first)])


def cosigned(time: int) -> Callable[[Files], Files]:
    """Returns what dates anna's cosignature at will; ben's is good."""

    def change(files: Files) -> Files:
        note = files[layout.CHECKPOINT]
        bare = note[: note.index(b"\n\n") + 2] + note[note.index(b"\n\n") + 2 :].splitlines(keepends=True)[0]
        good = forged_cosignature(bare, BEN, START + 200)
        return files | {layout.CHECKPOINT: forged_cosignature(good, ANNA, time)}

    return change


def flipped(prefix: str, at: int = -1, mask: int = 1) -> Callable[[Files], Files]:
    """Returns what flips a bit of the first file whose name begins so."""

    def change(files: Files) -> Files:
        name = next(name for name in sorted(files) if name.startswith(prefix))
        data = bytearray(files[name])
        data[at] ^= mask
        return files | {name: bytes(data)}

    return change


def file_gone(prefix: str) -> Callable[[Files], Files]:
    """Returns what takes a file away."""

    def change(files: Files) -> Files:
        name = next(name for name in sorted(files) if name.startswith(prefix))
        return {other: data for other, data in files.items() if other != name}

    return change


def file_cut(prefix: str, by: int = 1) -> Callable[[Files], Files]:
    """Returns what cuts the end of a file off."""

    def change(files: Files) -> Files:
        name = next(name for name in sorted(files) if name.startswith(prefix))
        return files | {name: files[name][:-by]}

    return change


def cut_back(size: int) -> Change:
    """Returns what cuts the tail off, and signs what is left."""
    return lambda pieces: replace(pieces, bodies=pieces.bodies[:size], entries=pieces.entries[:size])


def other_root(files: Files) -> Files:
    """The checkpoint has a root that is not that of the leaves."""
    size = len(Pieces.of(files).bodies)
    return files | {layout.CHECKPOINT: sign_note(checkpoint_text(SIGNER.name, size, bytes(32)), SIGNER)}


def other_signer(files: Files) -> Files:
    """Somebody else signs, under the ledger's name."""
    text = open_note(files[layout.CHECKPOINT], [SIGNER.vkey]).text
    return files | {layout.CHECKPOINT: sign_note(text, NoteSigner(SIGNER.name, OTHER_KEY))}


def other_name(files: Files) -> Files:
    """A tile under a width that it has not."""
    name = next(name for name in files if name.startswith("tile/0/"))
    return {(f"{name}0" if other == name else other): data for other, data in files.items()}


def encoding(pieces: Pieces) -> Pieces:
    """The last leaf has an integer in a longer head."""
    body = pieces.bodies[-1]
    assert body[:3] == b"\xa5\x00\x0b"
    return pieces.saying(len(pieces.bodies) - 1, b"\xa5\x00\x18\x0b" + body[3:])


def one_more_field(pieces: Pieces) -> Pieces:
    """The last leaf has a field too much."""
    fields = cbor.decode(pieces.bodies[-1])
    return pieces.saying(len(pieces.bodies) - 1, cbor.encode(fields | {len(fields): 0}))


def other_position(pieces: Pieces) -> Pieces:
    """Two leaves trade places, and keep their positions."""
    bodies = list(pieces.bodies)
    bodies[1], bodies[2] = bodies[2], bodies[1]
    return replace(pieces, bodies=bodies)


def row(place: int, nth: int = 0, **fields: Any) -> Change:
    """Returns what lets a row of the n-th SPEND leaf say something else."""
    return told(Spend, lambda leaf: with_rows(leaf, lambda one: replace(one, **fields), place), nth)


def too_low(pieces: Pieces) -> Pieces:
    """One row 2e-6 below what is recomputed, and the EPOCH leaf with it."""
    lower = told(Spend, lambda leaf: replace(leaf, rows=less(0)(leaf.rows)))(pieces)
    return told(
        Epoch,
        lambda leaf: replace(
            leaf, classes=(replace(leaf.classes[0], max_epsilon_micro=leaf.classes[0].max_epsilon_micro - 2), *leaf.classes[1:])
        ),
    )(lower)


def too_high(pieces: Pieces) -> Pieces:
    """One row 3e-6 above what was recorded."""
    return told(Spend, lambda leaf: replace(leaf, rows=less(0, -3)(leaf.rows)))(pieces)


def recorded(more: int) -> Change:
    """Returns what raises the first row by so many 1e-6, and the total of its class with it."""

    def apply(pieces: Pieces) -> Pieces:
        leaf = pieces.leaves[position_of(pieces, Spend)]
        assert isinstance(leaf, Spend)
        micro = leaf.rows[0].epsilon_micro + more
        rows = [micro, *(one.epsilon_micro for one in leaf.rows[1:] if one.profile_id == leaf.rows[0].profile_id)]
        return total(max_epsilon_micro=max(rows))(row(0, epsilon_micro=micro)(pieces))

    return apply


def total(**fields: Any) -> Change:
    """Returns what changes the first total of the first EPOCH leaf."""
    return told(Epoch, lambda leaf: replace(leaf, classes=(replace(leaf.classes[0], **fields), *leaf.classes[1:])))


def settled(share: float) -> Change:
    """Returns what lets the first SETTLE leaf say a share of the variance."""
    return told(Settle, lambda leaf: replace(leaf, variances=tuple(value * share for value in leaf.variances)))


def withdrawn_from_order(reason: str) -> Change:
    """Returns what invents a withdrawal before the second window; the turns behind it stay as they were."""

    def leaf(pieces: Pieces, seq: int) -> Leaf:
        admit = pieces.leaves[1]
        assert isinstance(admit, Admit)
        return Withdraw(seq, pieces.leaves[seq].time, admit.descriptor_hash, 1, reason, bytes(32))

    return inserted(Charge, leaf, 1)


def withdrawn_consistently(pieces: Pieces) -> Pieces:
    """A withdrawal that a run enters by itself, whose reason does not hold, with pool and row as if it were true."""
    seq = position_of(pieces, Charge, 1)
    leaves = pieces.leaves
    admit = leaves[1]
    assert isinstance(admit, Admit)
    leaf = Withdraw(seq, leaves[seq].time, admit.descriptor_hash, 1, "expired", admit.attestation_hash)
    moved = pieces.inserted(seq, leaf)
    charge = moved.leaves[seq + 1]
    assert isinstance(charge, Charge)
    other = moved.leaves[2]
    assert isinstance(other, Admit)
    gone = replace(charge.classes[0], pool_count=1, pool_root=root([b"", other.descriptor_hash]))
    return moved.saying(seq + 1, replace(charge, classes=(gone, *charge.classes[1:])))


def drawn(nth: int, numbers: tuple[int, ...]) -> Change:
    """Returns what lets the n-th DRAW leaf name others."""
    return say(Draw, nth, drawn=numbers)


def clock_leaf(pieces: Pieces) -> Pieces:
    """A CLOCK leaf that takes back another time than that of the leaf before it."""
    return told(Clock, lambda leaf: replace(leaf, before=leaf.before + 1))(pieces)


def first_turn(pieces: Pieces) -> int:
    """The first DRAW leaf in which anybody is drawn, counted among them."""
    draws = [leaf for leaf in pieces.leaves if isinstance(leaf, Draw)]
    return next(nth for nth, leaf in enumerate(draws) if leaf.drawn)


def rekeyed(files: Files) -> Files:
    """The files with a KEY leaf whose second signature is the first."""
    pieces = replace(Pieces.of(files), signer=SUCCESSOR)
    return told(Key, lambda leaf: replace(leaf, new_signature=leaf.old_signature))(pieces).files()


def vouched_by_one(files: Files) -> Files:
    """The files with the kept notes as they were before the second auditor vouched."""
    notes = []
    for note in tiles.split_bundle(files[layout.RETAINED_NOTES], None):
        lines = note.splitlines(keepends=True)
        notes.append(b"".join(line for line in lines if b"auditor.example/ben/summary-v1" not in line))
    note = b"".join(
        line for line in files[layout.CHECKPOINT].splitlines(keepends=True) if b"auditor.example/ben/summary-v1" not in line
    )
    return files | {layout.RETAINED_NOTES: tiles.entry_bundle(notes), layout.CHECKPOINT: note}


def vouched_before_the_close(files: Files) -> Files:
    """The files with what auditors said before the run was closed, and nothing of what they said after."""
    notes = tiles.split_bundle(files[layout.RETAINED_NOTES], None)
    early = [note for note in notes if _size(note) < _size(files[layout.CHECKPOINT])]
    lines = files[layout.CHECKPOINT].splitlines(keepends=True)
    note = b"".join(line for line in lines if b"/summary-v1" not in line)
    return files | {layout.RETAINED_NOTES: tiles.entry_bundle(early), layout.CHECKPOINT: note}


def _size(note: bytes) -> int:
    return int(note.splitlines()[1])


def aggregate_says(nth: int = 0, **fields: Any) -> Callable[[Files], Files]:
    """Returns what lets the n-th aggregate of an export say something else."""

    def change(files: Files) -> Files:
        name, entries = _retained(files)
        place = [seq for seq, entry in enumerate(entries) if is_stand_in(entry) and entry != MEMBER][nth]
        entries[place] = replace(Aggregate.from_bytes(entries[place]), **fields).to_bytes()
        return files | {name: tiles.entry_bundle(entries)}

    return change


def first_stand_in_gone(files: Files) -> Files:
    """The first aggregate is missing: the empty array stands in its place."""
    name, entries = _retained(files)
    entries[next(seq for seq, entry in enumerate(entries) if is_stand_in(entry))] = MEMBER
    return files | {name: tiles.entry_bundle(entries)}


def aggregate_repeated(files: Files) -> Files:
    """The first aggregate stands at its second leaf too, where the empty array belongs."""
    name, entries = _retained(files)
    place = next(seq for seq, entry in enumerate(entries) if is_stand_in(entry))
    entries[place + 1] = entries[place]
    return files | {name: tiles.entry_bundle(entries)}


def member_says(change: Callable[[Withdraw], Withdraw]) -> Callable[[Files], Files]:
    """Returns what lets the WITHDRAW leaf that shows a member say something else, and signs the tree again."""

    def apply(files: Files) -> Files:
        name, entries = _retained(files)
        read = {seq: decode_leaf(entry) for seq, entry in enumerate(entries) if not is_stand_in(entry)}
        seq, leaf = next((seq, leaf) for seq, leaf in read.items() if isinstance(leaf, Withdraw) and leaf.member)
        entries[seq] = encode_leaf(change(leaf))
        tile = next(other for other in files if other.startswith("tile/0/"))
        hashes = [files[tile][at : at + HASH_SIZE] for at in range(0, len(files[tile]), HASH_SIZE)]
        hashes[seq] = leaf_hash(entries[seq])
        note = checkpoint_text(SIGNER.name, len(hashes), tree_root(HashTree(hashes).node, len(hashes)))
        made = {name: tiles.entry_bundle(entries), tile: b"".join(hashes), layout.CHECKPOINT: sign_note(note, SIGNER)}
        return files | made

    return apply


def _retained(files: Files) -> tuple[str, list[bytes]]:
    """Returns the name of the one bundle in which leaves are pruned, and its entries."""
    (name,) = (name for name in files if name.startswith("retained/0"))
    return name, list(tiles.split_bundle(files[name], None))


def registry_cut_back(files: Files) -> Files:
    """The registry as it was when the run began."""
    return files | {layout.REGISTRY: bytes(registry_bytes())}


def taken_in_and_ignored(pieces: Pieces) -> Pieces:
    """A leaf says that the run took in that a key was revoked; what that key signed stays in the pools."""
    return inserted(
        Charge, lambda pieces, seq: Registry(seq, pieces.leaves[seq].time, registry().root(), registered_later()), 1
    )(pieces)


def taken_back(pieces: Pieces) -> Pieces:
    """A second leaf goes back to the state by which the run began."""
    return inserted(Epoch, lambda pieces, seq: Registry(seq, pieces.leaves[seq].time, registered_later(), registry().root()))(
        pieces
    )


def empty_tree(files: Files) -> Files:
    """A checkpoint over no leaves, and no leaves."""
    note = sign_note(checkpoint_text(SIGNER.name, 0, root([])), SIGNER)
    return {layout.CHECKPOINT: note, layout.POLICY: files[layout.POLICY]}


def after_the_close(pieces: Pieces) -> Pieces:
    """A charge behind the CLOSE leaf."""
    leaves, size = pieces.leaves, len(pieces.bodies)
    charge = leaves[position_of(pieces, Charge)]
    assert isinstance(charge, Charge)
    late = replace(charge, seq=size, window=3, first_step=9, noise_stream=bytes(16), time=leaves[-1].time)
    return replace(pieces, bodies=[*pieces.bodies, encode_leaf(late)], entries=[*pieces.entries, b""])


def admitted_twice(pieces: Pieces) -> Pieces:
    """The first ADMIT leaf a second time, before the first charge."""
    return inserted(Charge, lambda pieces, seq: replace(pieces.leaves[1], seq=seq, time=pieces.leaves[seq].time))(pieces)


def no_draws(pieces: Pieces) -> Pieces:
    """The second window without its DRAW leaves."""
    return pieces.without(*range(position_of(pieces, Draw, 4), position_of(pieces, Draw, 7) + 1))


def secret_draw(pieces: Pieces) -> Pieces:
    """A DRAW leaf before the first SETTLE leaf."""
    return inserted(Settle, lambda pieces, seq: Draw(seq, pieces.leaves[seq].time, 1, 1, (0,), (1.0, 2.25)))(pieces)


def without_witnesses(files: Files) -> Files:
    """The checkpoint without the lines of witnesses."""
    lines = files[layout.CHECKPOINT].splitlines(keepends=True)
    return files | {layout.CHECKPOINT: b"".join(line for line in lines if b"witness.example" not in line)}


def no_first_turn(pieces: Pieces) -> Pieces:
    """The first DRAW leaf in which anybody is drawn names nobody."""
    return drawn(first_turn(pieces), ())(pieces)


def other_kind(pieces: Pieces) -> Pieces:
    """The last leaf says a kind that is none."""
    last = len(pieces.bodies) - 1
    return pieces.saying(last, cbor.encode(cbor.decode(pieces.bodies[last]) | {1: 16}))
