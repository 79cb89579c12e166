"""Exports in which something is wrong: each differs from an honest one in one lie, and hashes and signatures fit again.

The liar has the ledger's key. What it cannot do is sign for a contributor, for the owner, or for an auditor.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attest import cbor
from attest.clock import EARLIEST, MAX_TIME
from ledger import layout, tiles
from ledger.leaves import (
    Admit,
    Charge,
    Clock,
    Close,
    Draw,
    Epoch,
    Header,
    HeaderBlock,
    Key,
    Leaf,
    Resume,
    Settle,
    Spend,
    Summary,
    Withdraw,
    encode_leaf,
)
from ledger.merkle import root
from ledger.note import checkpoint_text, open_note, sign_note
from tests.attacks import test_ledger_attacks_bounds as bounds
from tests.attacks.test_ledger_attacks_depth import lying
from tests.attacks.test_ledger_attacks_spend import changed as changed_row
from tests.attacks.test_ledger_attacks_spend import less
from tests.attacks.test_ledger_attacks_times import forged_cosignature, shifted
from tests.ledger.attested import attested_policy
from tests.ledger.ledger_runs import OTHER_KEY, SIGNER, START, NoteSigner
from tests.ledger.retained_runs import ANNA, BEN
from tests.ledger.spends import with_rows
from tests.ledger.told_runs import Told
from tests.vectors.conformance.honest import QUORUM, Pins
from tests.vectors.conformance.written import Files, Pieces, changed, read

YEAR = 365 * 86400
Change = Callable[[Pieces], Pieces]


@dataclass(frozen=True)
class Lie:
    """A change of an honest export.

    Attributes:
        title: what is wrong.
        base: name of the honest export.
        change: makes other files of its files.
        code: what our own auditor answers, at least; information.
        pins: what the reader brings, where that is not what the base says.
        verdict: what an audit says.
    """

    title: str
    base: str
    change: Callable[[Files], Files]
    code: str
    pins: Pins | None = None
    verdict: str = "FAILED"


def _leaves(change: Change) -> Callable[[Files], Files]:
    """Returns what changes leaves, and signs again."""
    return lambda files: change(Pieces.of(files)).files()


def _place(pieces: Pieces, kind: type[Leaf], nth: int = 0) -> int:
    return [seq for seq, leaf in enumerate(pieces.leaves) if isinstance(leaf, kind)][nth]


def say(kind: type[Leaf], nth: int = 0, **fields: Any) -> Change:
    """Returns what lets the n-th leaf of a kind say something else."""
    return told(kind, lambda leaf: replace(leaf, **fields), nth)


def told(kind: type[Leaf], change: Callable[[Any], Leaf], nth: int = 0) -> Change:
    """Returns what changes the n-th leaf of a kind."""

    def apply(pieces: Pieces) -> Pieces:
        seq = _place(pieces, kind, nth)
        return pieces.saying(seq, change(pieces.leaves[seq]))

    return apply


def left_out(kind: type[Leaf], nth: int = 0) -> Change:
    """Returns what leaves out the n-th leaf of a kind; those behind move up."""
    return lambda pieces: pieces.without(_place(pieces, kind, nth))


def inserted(kind: type[Leaf], leaf: Callable[[Pieces, int], Leaf], nth: int = 0) -> Change:
    """Returns what puts a leaf before the n-th one of a kind."""

    def apply(pieces: Pieces) -> Pieces:
        seq = _place(pieces, kind, nth)
        return pieces.inserted(seq, leaf(pieces, seq))

    return apply


def blocks(change: Callable[[list[HeaderBlock]], list[HeaderBlock]]) -> Change:
    """Returns what gives the header other blocks."""

    def apply(pieces: Pieces) -> Pieces:
        header = pieces.leaves[0]
        assert isinstance(header, Header)
        return pieces.saying(0, lying(header, change(list(header.blocks))))

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
    first = pieces.leaves[_place(pieces, Charge)]
    assert isinstance(first, Charge)
    return say(Charge, 1, noise_stream=first.noise_stream)(pieces)


def pool_of_before(pieces: Pieces) -> Pieces:
    """A charge after a withdrawal repeats the pool of the one before."""
    before = pieces.leaves[_place(pieces, Charge, 1)]
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
    seq = _place(pieces, Charge, 1)
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


def told_lie(change: Callable[[Told], None]) -> Callable[[Files], Files]:
    """Returns the files of a run of `tests.ledger.told_runs` that tells a lie; the base is such a run without one."""

    def make(_: Files) -> Files:
        with tempfile.TemporaryDirectory() as folder:
            run = Told.honest()
            change(run)
            return read(run.export(Path(folder)))

    return make


RANDOM = {
    bounds.class_not_granted,
    bounds.granted_only_later,
    bounds.key_of_tomorrow,
    bounds.key_of_yesterday,
    bounds.registry_of_another_owner,
    bounds.another_registry_of_the_owner,
}
"""Lies whose registries have salts, or a name, that are drawn anew each time."""


def _of_bounds() -> Iterator[tuple[str, Lie]]:
    """Yields what contributors and owner did not sign."""
    for change, code, _ in bounds.LIES:
        if change not in RANDOM:
            name = change.__name__.replace("_", " ")
            yield name, Lie(" ".join((change.__doc__ or name).split()).rstrip("."), "poisson", told_lie(change), code)


def _invented_turn(pieces: Pieces) -> Pieces:
    return withdrawn_from_order("contributor")(pieces)


LIES: dict[str, Lie] = dict(_of_bounds()) | {
    # The tree and its files.
    "a root of its own": Lie("the checkpoint has another root than the leaves", "poisson", other_root, "ROOT"),
    "another signer": Lie("somebody else signed under the ledger's name", "poisson", other_signer, "LOG_KEY"),
    "another key pinned": Lie(
        "the reader pinned another key", "poisson", dict, "LOG_KEY", Pins(log=(NoteSigner(SIGNER.name, OTHER_KEY).vkey,))
    ),
    "another owner pinned": Lie("the reader pinned another owner", "poisson", dict, "OWNER", Pins(owner=bytes.fromhex("2152f8d19b791d24453242e15f2eab6cb7cffa7b6a5ed30097960e069881db12"))),
    "flipped in the origin": Lie("a bit of the checkpoint's text", "poisson", flipped("checkpoint", 0), "SIGNATURE_BAD"),
    "flipped in the signature": Lie("a bit of the checkpoint's signature", "poisson", flipped("checkpoint", -20), "SIGNATURE_BAD"),
    "flipped in the trust policy": Lie("a bit of the file policy", "poisson", flipped("policy", 6), "POLICY_FILE"),
    "flipped in a tile": Lie("a bit of a hash", "poisson", flipped("tile/0/", 40), "TILE"),
    "flipped in a leaf": Lie("a bit of a leaf", "poisson", flipped("tile/entries/", -3), "LEAF"),
    "flipped in a length": Lie("a bit of the length of a leaf", "poisson", flipped("tile/entries/", 1), "BUNDLE"),
    "flipped in the registry": Lie("a bit of a signature of the owner", "poisson", flipped("registry"), "SIG_BAD"),
    "flipped in terms": Lie("a bit of the common terms", "poisson", flipped("attestations/terms/", -12), "ATTESTATION"),
    "flipped in a contributor's signature": Lie("a bit of its last byte but one", "poisson", flipped("attestations/signed/", -70), "ATTESTATION"),
    "flipped in a pruned leaf": Lie("a bit of what stands in for a pruned leaf", "pruned", flipped("retained/000", -40), "LEAF"),
    "flipped in kept notes": Lie("a bit of a checkpoint below which auditors vouch", "pruned", flipped("retained/notes", -20), "SIGNATURE_BAD"),
    "flipped in nodes": Lie("a bit of a root of a subtree", "hashes gone", flipped("retained/nodes", 60), "NODES"),
    "a leaf bundle cut": Lie("the last byte of a bundle is missing", "poisson", file_cut("tile/entries/"), "BUNDLE"),
    "signatures cut": Lie("the last byte of the signatures is missing", "poisson", file_cut("attestations/signed/"), "BUNDLE"),
    "a tile cut": Lie("a hash is missing", "poisson", file_cut("tile/0/", 32), "TILE"),
    "a tile gone": Lie("a tile is missing", "two bundles", file_gone("tile/0/001"), "MISSING_FILE"),
    "a bundle gone": Lie("a bundle of leaves is missing", "two bundles", file_gone("tile/entries/000"), "MISSING_FILE"),
    "terms gone": Lie("signatures without their terms", "poisson", file_gone("attestations/terms/"), "TERMS"),
    "signatures gone": Lie("terms without signatures", "poisson", file_gone("attestations/signed/"), "ATTESTATION_MISSING"),
    "nodes gone": Lie("the roots of subtrees are missing", "hashes gone", file_gone("retained/nodes"), "MISSING_FILE"),
    "another width": Lie("a tile under a name that follows from no size", "poisson", other_name, "UNKNOWN_FILE"),
    "a file too many": Lie("a file that belongs to no export", "poisson", lambda files: files | {"extra": b""}, "UNKNOWN_FILE"),
    "tail cut": Lie("the last two leaves are gone, and the reader knows how many there were", "poisson", _leaves(cut_back(10)), "OLD", Pins(minimum_size=12)),
    "no leaf": Lie("a checkpoint of an empty tree", "poisson", lambda files: {layout.CHECKPOINT: sign_note(checkpoint_text(SIGNER.name, 0, root([])), SIGNER), "policy": files["policy"]}, "EMPTY"),
    # Leaves that are none.
    "a longer head": Lie("an integer in a head longer than it needs", "poisson", _leaves(encoding), "CBOR_NONCANONICAL"),
    "a field too many": Lie("a leaf with one field more", "poisson", _leaves(one_more_field), "SCHEMA"),
    "another kind": Lie("a leaf of a kind that is none", "poisson", _leaves(lambda pieces: pieces.saying(11, cbor.encode(cbor.decode(pieces.bodies[11]) | {1: 14}))), "KIND"),
    "another schema": Lie("a header of another schema", "poisson", _leaves(header_says(3, lambda _: "dptrain.ledger/5")), "SCHEMA"),
    "places traded": Lie("two leaves traded places", "poisson", _leaves(other_position), "SEQ"),
    # The header.
    "band widened": Lie("a class touches a block below its band, with the noise that it needs there", "poisson", _leaves(blocks(lambda b: at(b, 1, classes=b[2].classes, std=b[2].std))), "DEPTH_WIDER"),
    "band narrowed": Lie("a class does not touch a block of its band", "poisson", _leaves(blocks(lambda b: at(b, 2, classes=("sensitive",)))), "DEPTH_NARROWER"),
    "block dropped": Lie("a block is left out", "poisson", _leaves(blocks(lambda b: [b[0], *b[2:]])), "DEPTH_DROPPED"),
    "block told frozen": Lie("a layer that classes touch is recorded as frozen, with noise 0", "poisson", _leaves(blocks(lambda b: at(b, 1, classes=(), std=0.0))), "DEPTH_NARROWER"),
    "blocks in another order": Lie("two blocks traded places", "poisson", _leaves(blocks(lambda b: [b[1], b[0], *b[2:]])), "DEPTH_ORDER"),
    "another size of a block": Lie("a block has fewer coordinates than the stack gives", "poisson", _leaves(blocks(lambda b: at(b, 1, coordinates=1))), "COORDINATES"),
    "less noise": Lie("the noise of a block is half of what the policy gives", "poisson", _leaves(blocks(lambda b: at(b, 0, std=b[0].std / 2))), "SCHEDULE"),
    "another accountant": Lie("the header accounts with rdp, the policy with pld", "poisson", _leaves(header_says(15, lambda row: ["rdp", *row[1:]])), "ACCOUNTANT"),
    "unknown accountant version": Lie("a version that never was", "poisson", _leaves(header_says(15, lambda row: [row[0], row[1], "pld-1", row[3]])), "ACCOUNTANT_VERSION"),
    "no clip margin": Lie("another margin than the policy gives", "poisson", _leaves(header_says(18, lambda _: 0.0)), "NUMERICS"),
    "another policy": Lie("the policy says another corpus than the owner signed", "poisson", _leaves(header_says(5, lambda data: data.replace(b"notes", b"other"))), "POLICY"),
    "caps not promised": Lie("amplification of a run whose draws are public", "public draws", _leaves(header_says(11, lambda _: "poisson")), "SCHEMA"),
    "fixed key": Lie("a run with a fixed test key", "poisson", _leaves(header_says(17, lambda _: False)), "NOT_PRIVATE"),
    # Charges, pools, noise.
    "steps skipped": Lie("a window begins a step too late", "poisson", _leaves(say(Charge, 1, first_step=6)), "TILE"),
    "a charge left out": Lie("a window settles that was never charged", "poisson", _leaves(left_out(Charge, 1)), "SETTLE"),
    "another rate": Lie("a sampling rate ten times smaller than signed", "poisson", _leaves(class_row(0, 0, q_den=500)), "CHARGE_CLASS"),
    "another pool root": Lie("a pool root that is none", "poisson", _leaves(class_row(0, 0, pool_root=bytes(32))), "CHARGE_CLASS"),
    "pool of before": Lie("a pool that still holds who was withdrawn", "withdrawal", _leaves(pool_of_before), "CHARGE_CLASS"),
    "noise stream twice": Lie("two windows name one noise stream", "poisson", _leaves(same_stream), "NOISE_REUSED"),
    "window over two phases": Lie("a window that lies in two phases of the noise", "phases", _leaves(say(Charge, 0, n_steps=5)), "PHASE"),
    "beyond the horizon": Lie("more steps than the policy signed, redone ones included", "poisson", _leaves(say(Charge, 1, n_steps=50)), "HORIZON"),
    "less variance": Lie("noise half as large as charged", "poisson", _leaves(settled(0.5)), "VARIANCE"),
    "more variance": Lie("noise by one unit in the last place larger than charged", "poisson", _leaves(settled(1 + 2**-50)), "VARIANCE"),
    # Spending and epochs.
    "a row too low": Lie("an epsilon 2e-6 lower than recorded, and the total with it", "poisson", _leaves(too_low), "SPEND_EPSILON"),
    "a row too high": Lie("an epsilon 3e-6 higher than recorded", "poisson", _leaves(too_high), "SPEND_EPSILON"),
    "a row left out": Lie("a group that changed has no row", "poisson", _leaves(told(Spend, lambda leaf: replace(leaf, rows=leaf.rows[1:]))), "SPEND_ORDER"),
    "rows in another order": Lie("rows in descending order", "poisson", _leaves(told(Spend, lambda leaf: replace(leaf, rows=leaf.rows[::-1]))), "SPEND_ORDER"),
    "a member counted out": Lie("a row with a member less", "poisson", _leaves(row(0, count=1)), "SPEND"),
    "another members root": Lie("a row with another root over its members", "poisson", _leaves(row(0, members_root=bytes(32))), "SPEND"),
    "fewer steps in a row": Lie("a row with fewer steps than were charged", "poisson", _leaves(row(0, steps=7)), "SPEND"),
    "no SPEND leaf": Lie("an epoch without the rows that it needs", "poisson", _leaves(left_out(Spend)), "EPOCH_ORDER"),
    "total too low": Lie("an EPOCH leaf with a smaller epsilon than its rows", "poisson", _leaves(total(max_epsilon_micro=1)), "EPOCH"),
    "total of the pool": Lie("an EPOCH leaf with fewer active contributions", "poisson", _leaves(total(active=1)), "EPOCH"),
    "epoch of another step": Lie("an EPOCH leaf at a step that was never released", "poisson", _leaves(say(Epoch, step=9)), "EPOCH"),
    "epoch with another root": Lie("an EPOCH leaf with other frozen parameters than the header commits to", "poisson", _leaves(say(Epoch, frozen_digest=bytes(32))), "FROZEN"),
    "isolation taken back": Lie("isolation that was weakened holds again", "withdrawal", _leaves(lambda pieces: say(Epoch, 0, isolation="one norm over blocks")(pieces)), "ISOLATION"),
    "closed at another step": Lie("a CLOSE leaf with fewer charged steps", "poisson", _leaves(say(Close, charged=4)), "CLOSE"),
    "after the close": Lie("a charge behind the CLOSE leaf", "poisson", _leaves(lambda pieces: replace(pieces, bodies=[*pieces.bodies, encode_leaf(replace(pieces.leaves[5], seq=12, window=3, first_step=9, noise_stream=bytes(16), time=pieces.leaves[-1].time))], entries=[*pieces.entries, b""])), "CLOSED"),
    # Admissions and withdrawals.
    "admitted twice": Lie("one contribution in two ADMIT leaves", "no attestations", _leaves(inserted(Charge, lambda pieces, seq: replace(pieces.leaves[1], seq=seq, time=pieces.leaves[seq].time))), "REPLAYED"),
    "clip norm above the class": Lie("bounds looser than the class", "no attestations", _leaves(say(Admit, 0, clip_micro=1_000_001)), "CLIP"),
    "withdrawal of another leaf": Lie("a WITHDRAW leaf names another ADMIT leaf", "withdrawal", _leaves(say(Withdraw, 0, admit_seq=1)), "WITHDRAW"),
    "withdrawal left out": Lie("a WITHDRAW leaf is left out, and the pools behind it are as they were", "withdrawal", _leaves(left_out(Withdraw)), "CHARGE_CLASS"),
    "withdrawn too early": Lie("a contribution is said to have expired before it did", "poisson", _leaves(withdrawn_consistently), "NOT_EXPIRED"),
    # Times.
    "in 1970": Lie("all leaves dated in 1970", "poisson", _leaves(dated(1000 - START)), "RANGE"),
    "before ledgers were": Lie("all leaves dated a second before 2020", "poisson", _leaves(dated(EARLIEST - 1 - START)), "RANGE"),
    "in the year 10000": Lie("all leaves dated in the year 10000", "poisson", _leaves(dated(MAX_TIME - START)), "RANGE"),
    "far ahead": Lie("all leaves dated 31 years ahead of the reader's clock", "poisson", _leaves(dated(31 * YEAR)), "CLOCK"),
    "an hour and a second ahead": Lie("the last leaf lies 3601 seconds ahead of the reader's clock", "no attestations", dict, "CLOCK", Pins(now=START + 10 - 3601)),
    "time runs back": Lie("leaves from the fourth on are dated five seconds earlier, without CLOCK", "no attestations", _leaves(dated(-5, 4)), "CLOCK"),
    "clock of another time": Lie("a CLOCK leaf that takes back another time than that of the leaf before", "clock set back", _leaves(clock_leaf), "CLOCK"),
    # Draws and orders.
    "a draw left out": Lie("a step of a window without a DRAW leaf", "public draws", _leaves(left_out(Draw, 7)), "DRAW_MISSING"),
    "no draws": Lie("a window that was charged and settled without a DRAW leaf", "public draws", _leaves(lambda pieces: pieces.without(*range(_place(pieces, Draw, 4), _place(pieces, Draw, 7) + 1))), "DRAW_MISSING"),
    "a secret draw told": Lie("a DRAW leaf where the policy keeps draws secret", "poisson", _leaves(inserted(Settle, lambda pieces, seq: Draw(seq, pieces.leaves[seq].time, 1, 1, (0,), (1.0, 2.25)))), "DRAW_SECRET"),
    "drawn though not due": Lie("somebody takes another's turn", "cyclic order", _leaves(drawn(0, (0, 1, 2))), "TURN"),
    "a turn left out": Lie("somebody who is due is not drawn", "cyclic order", _leaves(drawn(0, (0,))), "TURN"),
    "a turn of a shuffled order left out": Lie("nobody is drawn in the first step", "shuffled order", _leaves(lambda pieces: drawn(_first_turn(pieces), ())(pieces)), "TURN"),
    "an invented withdrawal under an order": Lie("a withdrawal that nobody signed; whoever left goes on taking turns", "cyclic order", _leaves(_invented_turn), "CHARGE_CLASS"),
    "other variance of a draw": Lie("a DRAW leaf with less noise than those drawn bring", "noise per sample", _leaves(say(Draw, 0, variances=(1.0, 1.0))), "VARIANCE"),
    "losses too small": Lie("a row with fewer occurrences than DRAW leaves give", "public draws", _leaves(row(0, occurrences=1)), "SPEND_ORDER"),
    # Attempts, keys.
    "resumed from nowhere": Lie("a RESUME leaf from a step that was never released", "resumed", _leaves(say(Resume, 0, from_step=5)), "RESUME"),
    "a pin of another history": Lie("a RESUME leaf with another root than the ledger had at that size", "resumed", _leaves(say(Resume, 0, pinned_root=bytes(32))), "RESUME"),
    "key change by one key": Lie("a KEY leaf that the new key did not sign", "key changed", lambda files: _rekeyed(files), "LOG_KEY"),
    "signed by the retired key": Lie("a checkpoint behind a KEY leaf by the old key alone", "key changed", _leaves(lambda pieces: pieces), "LOG_KEY"),
    # Auditors and witnesses.
    "cosigned in 1970": Lie("a cosignature dated 0", "auditors", cosigned(0), "QUORUM"),
    "cosigned at 2^62": Lie("a cosignature dated 2^62", "auditors", cosigned(2**62), "QUORUM"),
    "cosigned before the last leaf": Lie("a cosignature dated before the last leaf", "auditors", cosigned(START + 5), "QUORUM"),
    "cosigned ahead": Lie("a cosignature dated more than an hour ahead of the reader's clock", "auditors", cosigned(START + 86400 + 3601), "QUORUM"),
    "quorum missed": Lie("one of three auditors, and the reader asks for the quorum", "one auditor", dict, "QUORUM", QUORUM),
    "witness missed": Lie("auditors have cosigned, and no witness", "auditors and witness", lambda files: files | {layout.CHECKPOINT: b"".join(line for line in files[layout.CHECKPOINT].splitlines(keepends=True) if b"witness.example" not in line)}, "QUORUM"),
    "a cosignature flipped": Lie("a bit of an auditor's signature", "auditors", flipped("checkpoint", -20), "SIGNATURE_BAD"),
    # Pruned ledgers.
    "vouched by one": Lie("one of the two auditors whom the policy asks for vouches for what is gone", "pruned", lambda files: _vouched_by_one(files), "UNVOUCHED"),
}


def _first_turn(pieces: Pieces) -> int:
    """The first DRAW leaf in which anybody is drawn, counted among them."""
    draws = [leaf for leaf in pieces.leaves if isinstance(leaf, Draw)]
    return next(nth for nth, leaf in enumerate(draws) if leaf.drawn)


def _rekeyed(files: Files) -> Files:
    """The files with a KEY leaf whose second signature is the first."""
    from tests.vectors.conformance.honest import SUCCESSOR

    pieces = replace(Pieces.of(files), signer=SUCCESSOR)
    return told(Key, lambda leaf: replace(leaf, new_signature=leaf.old_signature))(pieces).files()


def _vouched_by_one(files: Files) -> Files:
    """The files with the kept notes as they were before the second auditor vouched."""
    notes = []
    for note in tiles.split_bundle(files[layout.RETAINED_NOTES], None):
        lines = note.splitlines(keepends=True)
        notes.append(b"".join(line for line in lines if b"auditor.example/ben/summary-v1" not in line))
    note = b"".join(
        line for line in files[layout.CHECKPOINT].splitlines(keepends=True) if b"auditor.example/ben/summary-v1" not in line
    )
    return files | {layout.RETAINED_NOTES: tiles.entry_bundle(notes), layout.CHECKPOINT: note}
