"""Exports in which something is wrong: each differs from an honest one in one lie, and hashes and signatures fit again.

The liar has the ledger's key. What it cannot do is sign for a contributor, for the owner, or for an auditor.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from attest.keys import public_bytes
from attest.schema.plain import EARLIEST, MAX_TIME
from ledger.leaves import Admit, Charge, Close, Draw, Epoch, Registry, Release, Resume, Spend, Withdraw
from ledger.note import NoteSigner
from tests.attacks import test_ledger_attacks_bounds as bounds
from tests.ledger.told_runs import Told
from tests.vectors.conformance.honest import QUORUM, Pins
from tests.vectors.conformance.lying import (
    YEAR,
    admitted_twice,
    after_the_close,
    aggregate_repeated,
    aggregate_says,
    at,
    blocks,
    class_row,
    clock_leaf,
    cosigned,
    cut_back,
    dated,
    drawn,
    empty_tree,
    encoding,
    file_cut,
    file_gone,
    first_stand_in_gone,
    flipped,
    header_says,
    left_out,
    member_says,
    no_draws,
    no_first_turn,
    on_leaves,
    one_more_field,
    other_kind,
    other_name,
    other_position,
    other_root,
    other_signer,
    pool_of_before,
    recorded,
    registry_cut_back,
    rekeyed,
    row,
    same_stream,
    say,
    secret_draw,
    settled,
    taken_back,
    taken_in_and_ignored,
    told,
    too_high,
    too_low,
    total,
    vouched_before_the_close,
    vouched_by_one,
    withdrawn_consistently,
    withdrawn_from_order,
    without_witnesses,
)
from tests.vectors.conformance.written import Files, read
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START


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
        earlier: the other exports that the reader is given, where these are not those of the base: honest ones by name, and
            changes of these.
        withdrawals: likewise the signed withdrawals.
    """

    title: str
    base: str
    change: Callable[[Files], Files]
    code: str
    pins: Pins | None = None
    verdict: str = "FAILED"
    earlier: tuple[str | tuple[str, Callable[[Files], Files]], ...] | None = None
    withdrawals: Files | None = None


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


LIES: dict[str, Lie] = dict(_of_bounds()) | {
    # The tree and its files.
    "a root of its own": Lie("the checkpoint has another root than the leaves", "poisson", other_root, "ROOT"),
    "another signer": Lie("somebody else signed under the ledger's name", "poisson", other_signer, "LOG_KEY"),
    "another key pinned": Lie(
        "the reader pinned another key", "poisson", dict, "LOG_KEY", Pins(log=(NoteSigner(SIGNER.name, OTHER_KEY).vkey,))
    ),
    "another owner pinned": Lie(
        "the reader pinned another owner", "poisson", dict, "OWNER", Pins(owner=public_bytes(OTHER_KEY))
    ),
    "flipped in the origin": Lie("a bit of the checkpoint's text", "poisson", flipped("checkpoint", 0), "SIGNATURE_BAD"),
    "flipped in the signature": Lie(
        "a bit of the checkpoint's signature", "poisson", flipped("checkpoint", -20), "SIGNATURE_BAD"
    ),
    "flipped in the trust policy": Lie("a bit of the file policy", "poisson", flipped("policy", 6), "POLICY_FILE"),
    "flipped in a tile": Lie("a bit of a hash", "poisson", flipped("tile/0/", 40), "TILE"),
    "flipped in a leaf": Lie("a bit of a leaf", "poisson", flipped("tile/entries/", -3), "LEAF"),
    "flipped in a length": Lie("a bit of the length of a leaf", "poisson", flipped("tile/entries/", 1), "BUNDLE"),
    "flipped in the registry": Lie("a bit of a signature of the owner", "poisson", flipped("registry"), "SIG_BAD"),
    "flipped in terms": Lie("a bit of the common terms", "poisson", flipped("attestations/terms/", -12), "ATTESTATION"),
    "flipped in a contributor's signature": Lie(
        "a bit of its last byte but one", "poisson", flipped("attestations/signed/", -70), "ATTESTATION"
    ),
    "flipped in a pruned leaf": Lie(
        "a bit of what stands in for a pruned leaf", "pruned", flipped("retained/000", -40), "LEAF"
    ),
    "flipped in kept notes": Lie(
        "a bit of a checkpoint below which auditors vouch", "pruned", flipped("retained/notes", -20), "SIGNATURE_BAD"
    ),
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
    "tail cut": Lie(
        "the last two leaves are gone, and the reader knows how many there were",
        "poisson",
        on_leaves(cut_back(10)),
        "OLD",
        Pins(minimum_size=12),
    ),
    "no leaf": Lie("a checkpoint of an empty tree", "poisson", empty_tree, "EMPTY"),
    # Leaves that are none.
    "a longer head": Lie("an integer in a head longer than it needs", "poisson", on_leaves(encoding), "CBOR_NONCANONICAL"),
    "a field too many": Lie("a leaf with one field more", "poisson", on_leaves(one_more_field), "SCHEMA"),
    "another kind": Lie("a leaf of a kind that is none", "poisson", on_leaves(other_kind), "KIND"),
    "another schema": Lie(
        "a header of another schema", "poisson", on_leaves(header_says(3, lambda _: "dptrain.ledger/5")), "SCHEMA"
    ),
    "places traded": Lie("two leaves traded places", "poisson", on_leaves(other_position), "SEQ"),
    # The header.
    "band widened": Lie(
        "a class touches a block below its band, with the noise that it needs there",
        "poisson",
        on_leaves(blocks(lambda b: at(b, 1, classes=b[2].classes, std=b[2].std))),
        "DEPTH_WIDER",
    ),
    "band narrowed": Lie(
        "a class does not touch a block of its band",
        "poisson",
        on_leaves(blocks(lambda b: at(b, 2, classes=("sensitive",)))),
        "DEPTH_NARROWER",
    ),
    "block dropped": Lie("a block is left out", "poisson", on_leaves(blocks(lambda b: [b[0], *b[2:]])), "DEPTH_DROPPED"),
    "block told frozen": Lie(
        "a layer that classes touch is recorded as frozen, with noise 0",
        "poisson",
        on_leaves(blocks(lambda b: at(b, 1, classes=(), std=0.0))),
        "DEPTH_NARROWER",
    ),
    "blocks in another order": Lie(
        "two blocks traded places", "poisson", on_leaves(blocks(lambda b: [b[1], b[0], *b[2:]])), "DEPTH_ORDER"
    ),
    "another size of a block": Lie(
        "a block has fewer coordinates than the stack gives",
        "poisson",
        on_leaves(blocks(lambda b: at(b, 1, coordinates=1))),
        "COORDINATES",
    ),
    "less noise": Lie(
        "the noise of a block is half of what the policy gives",
        "poisson",
        on_leaves(blocks(lambda b: at(b, 0, std=b[0].std / 2))),
        "SCHEDULE",
    ),
    "another accountant": Lie(
        "the header accounts with rdp, the policy with pld",
        "poisson",
        on_leaves(header_says(15, lambda row: ["rdp", *row[1:]])),
        "ACCOUNTANT",
    ),
    "unknown accountant version": Lie(
        "a version that never was",
        "poisson",
        on_leaves(header_says(15, lambda row: [row[0], row[1], "pld-1", row[3]])),
        "ACCOUNTANT_VERSION",
    ),
    "no clip margin": Lie(
        "another margin than the policy gives", "poisson", on_leaves(header_says(18, lambda _: 0.0)), "NUMERICS"
    ),
    "another policy": Lie(
        "the policy says another corpus than the owner signed",
        "poisson",
        on_leaves(header_says(5, lambda data: data.replace(b"notes", b"other"))),
        "POLICY",
    ),
    "caps not promised": Lie(
        "amplification of a run whose draws are public",
        "public draws",
        on_leaves(header_says(11, lambda _: "poisson")),
        "SCHEMA",
    ),
    "fixed key": Lie("a run with a fixed test key", "poisson", on_leaves(header_says(17, lambda _: False)), "NOT_PRIVATE"),
    # Charges, pools, noise.
    "steps skipped": Lie("a window begins a step too late", "poisson", on_leaves(say(Charge, 1, first_step=6)), "TILE"),
    "a charge left out": Lie("a window settles that was never charged", "poisson", on_leaves(left_out(Charge, 1)), "SETTLE"),
    "another rate": Lie(
        "a sampling rate ten times smaller than signed", "poisson", on_leaves(class_row(0, 0, q_den=500)), "CHARGE_CLASS"
    ),
    "another pool root": Lie(
        "a pool root that is none", "poisson", on_leaves(class_row(0, 0, pool_root=bytes(32))), "CHARGE_CLASS"
    ),
    "pool of before": Lie("a pool that still holds who was withdrawn", "withdrawal", on_leaves(pool_of_before), "CHARGE_CLASS"),
    "noise stream twice": Lie("two windows name one noise stream", "poisson", on_leaves(same_stream), "NOISE_REUSED"),
    "window over two phases": Lie(
        "a window that lies in two phases of the noise", "phases", on_leaves(say(Charge, 0, n_steps=5)), "PHASE"
    ),
    "beyond the horizon": Lie(
        "more steps than the policy signed, redone ones included", "poisson", on_leaves(say(Charge, 1, n_steps=50)), "HORIZON"
    ),
    "less variance": Lie("noise half as large as charged", "poisson", on_leaves(settled(0.5)), "VARIANCE"),
    "more variance": Lie(
        "noise by one unit in the last place larger than charged", "poisson", on_leaves(settled(1 + 2**-50)), "VARIANCE"
    ),
    # Spending and epochs.
    "a row too low": Lie(
        "an epsilon 2e-6 lower than recorded, and the total with it", "poisson", on_leaves(too_low), "SPEND_EPSILON"
    ),
    "a row too high": Lie("an epsilon 3e-6 higher than recorded", "poisson", on_leaves(too_high), "SPEND_EPSILON"),
    "a row of prv too low": Lie(
        "the accountant prv records 3e-6 less than pld gives",
        "prv of a library",
        on_leaves(recorded(-4003)),
        "SPEND_EPSILON",
    ),
    "a row of prv too high": Lie(
        "the accountant prv records 0.0201 more than pld gives",
        "prv of a library",
        on_leaves(recorded(16_100)),
        "SPEND_EPSILON",
    ),
    "a row of prv and public draws too low": Lie(
        "where draws are public prv records 3e-6 less than they give",
        "prv and public draws",
        on_leaves(recorded(-3)),
        "SPEND_EPSILON",
    ),
    "prv by another bracket": Lie(
        "a header says another bracket around what a library gives",
        "prv of a library",
        on_leaves(header_says(15, lambda row: [*row[:3], row[3].replace("0.02 ", "0.2 ")])),
        "ACCOUNTANT_VERSION",
    ),
    "prv by another library": Lie(
        "a header says a library that nobody plugged in",
        "prv of a library",
        on_leaves(header_says(15, lambda row: [row[0], "autodp", *row[2:]])),
        "ACCOUNTANT_VERSION",
    ),
    "a row left out": Lie(
        "a group that changed has no row",
        "poisson",
        on_leaves(told(Spend, lambda leaf: replace(leaf, rows=leaf.rows[1:]))),
        "SPEND_ORDER",
    ),
    "rows in another order": Lie(
        "rows in descending order",
        "poisson",
        on_leaves(told(Spend, lambda leaf: replace(leaf, rows=leaf.rows[::-1]))),
        "SPEND_ORDER",
    ),
    "a member counted out": Lie("a row with a member less", "poisson", on_leaves(row(0, count=1)), "SPEND"),
    "another members root": Lie(
        "a row with another root over its members", "poisson", on_leaves(row(0, members_root=bytes(32))), "SPEND"
    ),
    "fewer steps in a row": Lie("a row with fewer steps than were charged", "poisson", on_leaves(row(0, steps=7)), "SPEND"),
    "no SPEND leaf": Lie("an epoch without the rows that it needs", "poisson", on_leaves(left_out(Spend)), "EPOCH_ORDER"),
    "total too low": Lie(
        "an EPOCH leaf with a smaller epsilon than its rows", "poisson", on_leaves(total(max_epsilon_micro=1)), "EPOCH"
    ),
    "total of the pool": Lie("an EPOCH leaf with fewer active contributions", "poisson", on_leaves(total(active=1)), "EPOCH"),
    "epoch of another step": Lie(
        "an EPOCH leaf at a step that was never released", "poisson", on_leaves(say(Epoch, step=9)), "EPOCH"
    ),
    "epoch with another root": Lie(
        "an EPOCH leaf with other frozen parameters than the header commits to",
        "poisson",
        on_leaves(say(Epoch, frozen_digest=bytes(32))),
        "FROZEN",
    ),
    "isolation taken back": Lie(
        "isolation that was weakened holds again",
        "withdrawal",
        on_leaves(say(Epoch, 0, isolation="one norm over blocks")),
        "ISOLATION",
    ),
    "closed at another step": Lie(
        "a CLOSE leaf with fewer charged steps", "poisson", on_leaves(say(Close, charged=4)), "CLOSE"
    ),
    "after the close": Lie("a charge behind the CLOSE leaf", "poisson", on_leaves(after_the_close), "CLOSED"),
    # Admissions and withdrawals.
    "admitted twice": Lie("one contribution in two ADMIT leaves", "no attestations", on_leaves(admitted_twice), "REPLAYED"),
    "clip norm above the class": Lie(
        "bounds looser than the class", "no attestations", on_leaves(say(Admit, 0, clip_micro=1_000_001)), "CLIP"
    ),
    "withdrawal of another leaf": Lie(
        "a WITHDRAW leaf names another ADMIT leaf", "withdrawal", on_leaves(say(Withdraw, 0, admit_seq=1)), "WITHDRAW"
    ),
    "withdrawal left out": Lie(
        "a WITHDRAW leaf is left out, and the pools behind it are as they were",
        "withdrawal",
        on_leaves(left_out(Withdraw)),
        "CHARGE_CLASS",
    ),
    "withdrawn too early": Lie(
        "a contribution is said to have expired before it did", "poisson", on_leaves(withdrawn_consistently), "NOT_EXPIRED"
    ),
    # Times.
    "in 1970": Lie("all leaves dated in 1970", "poisson", on_leaves(dated(1000 - START)), "RANGE"),
    "before ledgers were": Lie(
        "all leaves dated a second before 2020", "poisson", on_leaves(dated(EARLIEST - 1 - START)), "RANGE"
    ),
    "in the year 10000": Lie("all leaves dated in the year 10000", "poisson", on_leaves(dated(MAX_TIME - START)), "RANGE"),
    "far ahead": Lie("all leaves dated 31 years ahead of the reader's clock", "poisson", on_leaves(dated(31 * YEAR)), "CLOCK"),
    "an hour and a second ahead": Lie(
        "the last leaf lies 3601 seconds ahead of the reader's clock",
        "no attestations",
        dict,
        "CLOCK",
        Pins(now=START + 10 - 3601),
    ),
    "time runs back": Lie(
        "leaves from the fourth on are dated five seconds earlier, without CLOCK",
        "no attestations",
        on_leaves(dated(-5, 4)),
        "CLOCK",
    ),
    "clock of another time": Lie(
        "a CLOCK leaf that takes back another time than that of the leaf before",
        "clock set back",
        on_leaves(clock_leaf),
        "CLOCK",
    ),
    # Draws and orders.
    "a draw left out": Lie(
        "a step of a window without a DRAW leaf", "public draws", on_leaves(left_out(Draw, 7)), "DRAW_MISSING"
    ),
    "no draws": Lie("a window charged and settled without a DRAW leaf", "public draws", on_leaves(no_draws), "DRAW_MISSING"),
    "a secret draw told": Lie("a DRAW leaf where draws are secret", "poisson", on_leaves(secret_draw), "DRAW_SECRET"),
    "drawn though not due": Lie("somebody takes another's turn", "cyclic order", on_leaves(drawn(0, (0, 1, 2))), "TURN"),
    "a turn left out": Lie("somebody who is due is not drawn", "cyclic order", on_leaves(drawn(0, (0,))), "TURN"),
    "a turn of a shuffled order left out": Lie(
        "nobody is drawn in the first step in which somebody is due", "shuffled order", on_leaves(no_first_turn), "TURN"
    ),
    "an invented withdrawal under an order": Lie(
        "a withdrawal that nobody signed; whoever left goes on taking turns",
        "cyclic order",
        on_leaves(withdrawn_from_order("contributor")),
        "CHARGE_CLASS",
    ),
    "other variance of a draw": Lie(
        "a DRAW leaf with less noise than those drawn bring",
        "noise per sample",
        on_leaves(say(Draw, 0, variances=(1.0, 1.0))),
        "VARIANCE",
    ),
    "losses too small": Lie(
        "a row with fewer occurrences than DRAW leaves give", "public draws", on_leaves(row(0, occurrences=1)), "SPEND_ORDER"
    ),
    # Attempts, releases, keys.
    "released before the first step": Lie(
        "a RELEASE leaf says that no step was released before it", "release", on_leaves(say(Release, step=0)), "RELEASE"
    ),
    "released behind the last step": Lie(
        "a RELEASE leaf of a step that was charged later", "release", on_leaves(say(Release, step=12)), "RELEASE"
    ),
    "resumed from nowhere": Lie(
        "a RESUME leaf from a step that was never released", "resumed", on_leaves(say(Resume, 0, from_step=5)), "RESUME"
    ),
    "threads of no checkpoint": Lie(
        "a RESUME leaf from the start, with threads other than those of a model checkpoint that there is none of",
        "order and an unsettled window",
        on_leaves(say(Resume, 0, threads=2)),
        "RESUME",
    ),
    "a pin of another history": Lie(
        "a RESUME leaf with another root than the ledger had at that size",
        "resumed",
        on_leaves(say(Resume, 0, pinned_root=bytes(32))),
        "RESUME",
    ),
    "key change by one key": Lie("a KEY leaf that the new key did not sign", "key changed", rekeyed, "LOG_KEY"),
    "signed by the retired key": Lie(
        "a checkpoint behind a KEY leaf by the old key alone", "key changed", on_leaves(lambda pieces: pieces), "LOG_KEY"
    ),
    # Auditors and witnesses.
    "cosigned in 1970": Lie("a cosignature dated 0", "auditors", cosigned(0), "QUORUM"),
    "cosigned at 2^62": Lie("a cosignature dated 2^62", "auditors", cosigned(2**62), "QUORUM"),
    "cosigned before the last leaf": Lie("a cosignature dated before the last leaf", "auditors", cosigned(START + 5), "QUORUM"),
    "cosigned ahead": Lie(
        "a cosignature dated more than an hour ahead of the reader's clock",
        "auditors",
        cosigned(START + 86400 + 3601),
        "QUORUM",
    ),
    "quorum missed": Lie("one of three auditors, and the reader asks for the quorum", "one auditor", dict, "QUORUM", QUORUM),
    "witness missed": Lie("auditors have cosigned, and no witness", "auditors and witness", without_witnesses, "QUORUM"),
    "a cosignature flipped": Lie("a bit of an auditor's signature", "auditors", flipped("checkpoint", -20), "SIGNATURE_BAD"),
    # Pruned ledgers.
    "vouched by one": Lie(
        "one of the two auditors whom the policy asks for vouches for what is gone", "pruned", vouched_by_one, "UNVOUCHED"
    ),
    "vouched by one for everybody": Lie(
        "one of two auditors vouches for a run of which every ADMIT leaf is gone", "everybody gone", vouched_by_one, "UNVOUCHED"
    ),
    "vouched before the close": Lie(
        "auditors vouch for the summary alone, below a checkpoint from before the run was closed, and who stayed is gone",
        "everybody gone",
        vouched_before_the_close,
        "UNVOUCHED",
    ),
    "an aggregate with more noise": Lie(
        "an aggregate says more noise than was signed", "pruned", aggregate_says(sigma_micro=2_000_000), "SUMMARY"
    ),
    "an aggregate with less clip norm": Lie(
        "an aggregate says less clip norm than was signed", "everybody gone", aggregate_says(clip_micro=500_000), "SUMMARY"
    ),
    "an aggregate of another class": Lie(
        "an aggregate says another class", "everybody gone", aggregate_says(class_index=1), "SUMMARY"
    ),
    "an aggregate of a member less": Lie(
        "an aggregate stands for fewer leaves than are gone", "everybody gone", aggregate_says(2, count=15), "AGGREGATE"
    ),
    "an aggregate of a member more": Lie(
        "an aggregate says a leaf more than it stands for", "everybody gone", aggregate_says(count=4), "AGGREGATE"
    ),
    "an aggregate twice": Lie(
        "an aggregate stands at its second leaf again", "everybody gone", aggregate_repeated, "AGGREGATE"
    ),
    "an aggregate of others": Lie(
        "an aggregate has another root over its members", "everybody gone", aggregate_says(members_root=bytes(32)), "SUMMARY"
    ),
    "an aggregate gone": Lie(
        "nothing says what stood in the first pruned leaf", "everybody gone", first_stand_in_gone, "AGGREGATE"
    ),
    "withdrawn by another's record": Lie(
        "a withdrawal shows the member record of somebody else",
        "a member withdrawn",
        member_says(lambda leaf: replace(leaf, descriptor_hash=bytes(32))),
        "MEMBER",
    ),
    "withdrawn with another content": Lie(
        "a withdrawal shows a member record with another content anchor",
        "a member withdrawn",
        member_says(lambda leaf: replace(leaf, member=(bytes(32), *(leaf.member or ())[1:]))),
        "MEMBER",
    ),
    "withdrawn from another place": Lie(
        "a withdrawal names another pruned ADMIT leaf",
        "a member withdrawn",
        member_says(lambda leaf: replace(leaf, admit_seq=3)),
        "MEMBER",
    ),
    "withdrawn without a record": Lie(
        "a withdrawal names a pruned ADMIT leaf and does not show the member",
        "a member withdrawn",
        member_says(lambda leaf: replace(leaf, member=None)),
        "UNVOUCHED",
    ),
    # Registries.
    "a revocation ignored": Lie(
        "the run took in that a key was revoked, and goes on with what it signed",
        "registry unseen",
        on_leaves(taken_in_and_ignored),
        "BARRED",
    ),
    "barred without a leaf": Lie(
        "the run obeys a state of the registry that no leaf says it took in",
        "registry changed",
        on_leaves(left_out(Registry)),
        "NOT_BARRED",
    ),
    "an invented state": Lie(
        "a REGISTRY leaf names a root that the registry never had",
        "registry changed",
        on_leaves(say(Registry, after=bytes([0x77]) * 32)),
        "REGISTRY_ROOT",
    ),
    "another state before": Lie(
        "a REGISTRY leaf does not go on from the state in force",
        "registry changed",
        on_leaves(say(Registry, before=bytes([0x77]) * 32)),
        "REGISTRY",
    ),
    "a state taken back": Lie(
        "a second REGISTRY leaf goes back to the state of the header", "registry changed", on_leaves(taken_back), "REGISTRY"
    ),
    "the registry cut back": Lie(
        "the registry in the export lacks the state that a leaf names", "registry changed", registry_cut_back, "REGISTRY_ROOT"
    ),
}
