"""Honest exports of ledgers that are summarised or pruned, or whose leaves say who left; and lies about both."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from attest.withdrawal import EXPIRED
from ledger import tiles
from ledger.leaves import Admit, Charge, Leaf, Summary, Withdraw, decode_leaf, encode_leaf
from ledger.log import Ledger
from ledger.merkle import leaf_hash, root
from ledger.note import checkpoint_text, sign_note
from ledger.proofs.prover import HashTree, tree_root
from ledger.replay.summaries import Aggregate, Member, set_root
from ledger.retention import is_stand_in
from tests.vectors.conformance.honest import PrunedRun, Run, ended, four, plain
from tests.vectors.conformance.lies import Lie
from tests.vectors.conformance.lying import file_gone, inserted, on_leaves, position_of, say, told
from tests.vectors.conformance.withdrawing import AFTER_EXPIRY, ENDING, LATE_EVIDENCE
from tests.vectors.conformance.written import Files, Pieces
from tests.worlds.attested_ledgers import AttestedDriver, attested_admission, registry, spec_of
from tests.worlds.ledgers import SIGNER, START
from tests.worlds.retained_ledgers import ANNA, BEN, grown, retaining_spec, vouched_for

Change = Callable[[Pieces], Pieces]


def summarised(place: Path, directory: Path, **changes: Any) -> AttestedDriver:
    """A run with a SUMMARY leaf of which nothing was pruned, closed."""
    driver = grown(place, attested=True)
    assert isinstance(driver, AttestedDriver)
    driver.ledger.summarise(now=driver.tick())
    driver.steps(1)
    ended(driver)
    return driver


def _begun(place: Path) -> AttestedDriver:
    """A run whose policy keeps one epoch, and whose auditors vouch."""
    return AttestedDriver(Ledger.create(place, retaining_spec(attested=True), SIGNER, now=START), now=START)


def _ended_and_vouched(driver: AttestedDriver) -> None:
    """Summarises, closes the run behind one more admission, and has two auditors vouch below its last checkpoint."""
    driver.epoch()
    driver.ledger.summarise(now=driver.tick())
    driver.admit(attested_admission(50))
    driver.steps(1)
    ended(driver)
    vouched_for(driver, ANNA, BEN)


def withdrawn_again(place: Path, directory: Path, **changes: Any) -> AttestedDriver:
    """Somebody's attestation ended; its ADMIT leaf went, and then it was withdrawn besides, after the close."""
    driver = _begun(place)
    four(driver)
    driver.admit(spec_of(ENDING))
    driver.steps(1)
    driver.now = START + 50
    driver.ledger.withdraw(ENDING.opened().digest(), EXPIRED, ENDING.digest(), now=driver.now)
    driver.now = START + 60
    driver.steps(1)
    driver.epoch()
    _ended_and_vouched(driver)
    driver.ledger.prune()
    driver.ledger.withdraw(ENDING.opened().digest(), "consent", LATE_EVIDENCE, now=driver.tick())
    return driver


def traded_places(place: Path, directory: Path, **changes: Any) -> AttestedDriver:
    """One came for one who left before any charge, so that a row is new by its members alone; who stayed is gone."""
    driver = _begun(place)
    driver.admit(attested_admission(1), attested_admission(2), attested_admission(3, "sensitive"))
    driver.epoch()
    driver.withdraw(2)
    driver.admit(attested_admission(5))
    driver.epoch()
    driver.epoch()
    driver.steps(1)
    driver.epoch()
    _ended_and_vouched(driver)
    driver.ledger.prune(who_stays=True)
    return driver


RUNS: Final[dict[str, Run]] = {
    "summarised": PrunedRun("a SUMMARY leaf, and every leaf for which it speaks", plain, grow=summarised),
    "withdrawn again": PrunedRun(
        "what expired is gone, and was withdrawn by a second leaf for which nobody vouches",
        plain,
        grow=withdrawn_again,
        withdrawals={"bob.cose": AFTER_EXPIRY},
        verdict="SUMMARISED",
    ),
    "traded places": PrunedRun(
        "of groups whose roots cannot be made any more one changed by its members alone, and later none did",
        plain,
        grow=traded_places,
        verdict="SUMMARISED",
    ),
}
"""Honest exports by name."""


def _aggregates(pieces: Pieces, first: int, end: int) -> list[Aggregate]:
    """Returns an aggregate for each ADMIT leaf of a range, by itself."""
    found = []
    for seq, leaf in enumerate(pieces.leaves):
        if isinstance(leaf, Admit) and first <= seq < end:
            bounds = (leaf.profile_id, leaf.clip_micro, leaf.sigma_micro, leaf.max_occurrences)
            limit = (leaf.carried_micro, leaf.max_epsilon_micro, leaf.max_delta_pico)
            found.append(Aggregate(seq, 1, *bounds, *limit, root([Member.of(leaf).to_bytes()])))
    return found


def one_each(pieces: Pieces) -> Pieces:
    """A summary commits to an aggregate for every ADMIT leaf, equal neighbours too."""
    return told(Summary, lambda leaf: replace(leaf, set_root=set_root(_aggregates(pieces, leaf.first, leaf.end))))(pieces)


def summary_class(**fields: Any) -> Change:
    """Returns what lets the first class row of the SUMMARY leaf say something else."""

    def change(leaf: Summary) -> Summary:
        return replace(leaf, classes=(replace(leaf.classes[0], **fields), *leaf.classes[1:]))

    return told(Summary, change)


def less_spent(pieces: Pieces) -> Pieces:
    """A summary says that a class spent 1e-6 less in sum."""
    leaf = pieces.leaves[position_of(pieces, Summary)]
    assert isinstance(leaf, Summary) and leaf.classes[0].sum_epsilon_micro is not None
    return summary_class(sum_epsilon_micro=leaf.classes[0].sum_epsilon_micro - 1)(pieces)


def a_leaf_less(leaf: Summary) -> Summary:
    """A summary leaves out the first ADMIT leaf of its range."""
    kinds = tuple(replace(row, count=row.count - (row.kind == Admit.KIND)) for row in leaf.kinds)
    return replace(leaf, first=2, kinds=kinds)


def shown_with_its_leaf(pieces: Pieces) -> Pieces:
    """A withdrawal after the close shows the member record of an ADMIT leaf that is there."""
    admits = [pieces.leaves[seq] for seq in (1, 2)]
    assert all(isinstance(admit, Admit) for admit in admits)
    one, other = (Member.of(admit) for admit in admits if isinstance(admit, Admit))
    shown = (one.content_anchor, leaf_hash(other.to_bytes()))
    return after_the_end(one.descriptor_hash, 1, "contributor", bytes(32), shown)(pieces)


def after_the_end(
    name: bytes, seq: int | None, reason: str, evidence: bytes, shown: tuple[bytes, ...] | None = None, later: int = 0
) -> Change:
    """Returns what adds a WITHDRAW leaf behind the last one."""

    def apply(pieces: Pieces) -> Pieces:
        size, time = len(pieces.bodies), pieces.leaves[-1].time + later
        leaf = encode_leaf(Withdraw(size, time, name, seq, reason, evidence, shown))
        return replace(pieces, bodies=[*pieces.bodies, leaf], entries=[*pieces.entries, b""])

    return apply


def expired_after_the_close(_: Files) -> Files:
    """An attestation ends after the close, and a leaf takes it out of a pool that there is no more."""

    def life(driver: AttestedDriver) -> None:
        four(driver)
        driver.admit(spec_of(ENDING))
        driver.steps(2)
        ended(driver)

    run = Run("", life)
    change = after_the_end(ENDING.opened().digest(), 5, EXPIRED, ENDING.digest(), later=100)
    return change(Pieces.of(run.files())).files()


def stranger(reason: str, evidence: bytes) -> Change:
    """Returns what puts a WITHDRAW leaf of one who never was in the run before the second charge."""
    def leaf(pieces: Pieces, seq: int) -> Leaf:
        return Withdraw(seq, pieces.leaves[seq].time, bytes([5]) * 32, None, reason, evidence)

    return inserted(Charge, leaf, 1)


def attested_anchor() -> bytes:
    """Returns the content anchor of the attestation that ends."""
    return spec_of(ENDING).anchor


def retained_says(last: bool, change: Callable[[Withdraw], Withdraw]) -> Callable[[Files], Files]:
    """Returns what changes the first or last WITHDRAW leaf of a pruned export, and signs the tree again."""

    def apply(files: Files) -> Files:
        (name,) = (name for name in files if name.startswith("retained/0"))
        entries = list(tiles.split_bundle(files[name], None))
        read = [decode_leaf(entry) for entry in entries if not is_stand_in(entry)]
        left = [leaf for leaf in read if isinstance(leaf, Withdraw)]
        chosen = left[-1 if last else 0]
        entries[chosen.seq] = encode_leaf(change(chosen))
        tile = next(other for other in files if other.startswith("tile/0/"))
        hashes = [files[tile][at : at + 32] for at in range(0, len(files[tile]), 32)]
        hashes[chosen.seq] = leaf_hash(entries[chosen.seq])
        note = checkpoint_text(SIGNER.name, len(hashes), tree_root(HashTree(hashes).node, len(hashes)))
        made = {name: tiles.entry_bundle(entries), tile: b"".join(hashes), "checkpoint": sign_note(note, SIGNER)}
        return files | made

    return apply


def in_two(files: Files) -> Files:
    """An aggregate stands as two of equal terms, next to each other."""
    (name,) = (name for name in files if name.startswith("retained/0"))
    entries = list(tiles.split_bundle(files[name], None))
    seq, whole = next(
        (seq, Aggregate.from_bytes(entry))
        for seq, entry in enumerate(entries)
        if is_stand_in(entry) and len(entry) > 1 and Aggregate.from_bytes(entry).count > 1
    )
    entries[seq] = replace(whole, count=1).to_bytes()
    entries[seq + 1] = replace(whole, first=seq + 1, count=whole.count - 1).to_bytes()
    return files | {name: tiles.entry_bundle(entries)}


def evidence_of_another_state(pieces: Pieces) -> Pieces:
    """A key was revoked by the state in force, and the leaf names the one before, which supported it."""
    return say(Withdraw, evidence_hash=registry().root())(pieces)


LIES: Final[dict[str, Lie]] = {
    "a summary of aggregates that are not maximal": Lie(
        "a SUMMARY leaf commits to neighbours of equal terms one by one", "summarised", on_leaves(one_each), "SUMMARY"
    ),
    "an aggregate in two": Lie(
        "two aggregates of equal terms stand next to each other", "everybody gone", in_two, "SUMMARY"
    ),
    "a summary of less": Lie(
        "a SUMMARY leaf says less epsilon than was recorded", "summarised", on_leaves(less_spent), "SUMMARY"
    ),
    "a summary of more variance": Lie(
        "a SUMMARY leaf says more noise than there was", "summarised", on_leaves(summary_class(max_variance=9.0)), "SUMMARY"
    ),
    "a summary of fewer steps": Lie(
        "a SUMMARY leaf says fewer steps than were charged", "summarised", on_leaves(summary_class(charged=1)), "SUMMARY"
    ),
    "a summary of other leaves": Lie(
        "a SUMMARY leaf says another range", "summarised", on_leaves(told(Summary, a_leaf_less)), "SUMMARY_RANGE"
    ),
    "a summary of another tree": Lie(
        "a SUMMARY leaf says other roots of subtrees",
        "summarised",
        on_leaves(told(Summary, lambda leaf: replace(leaf, subtree_roots=(bytes(32), *leaf.subtree_roots[1:])))),
        "SUMMARY",
    ),
    "a member shown beside its leaf": Lie(
        "a withdrawal shows the member record of an ADMIT leaf that is there",
        "summarised",
        on_leaves(shown_with_its_leaf),
        "MEMBER",
    ),
    "a member shown before the close": Lie(
        "a withdrawal shows the member record while the run goes on",
        "withdrawn again",
        retained_says(False, lambda leaf: replace(leaf, member=(attested_anchor(),))),
        "MEMBER",
    ),
    "a member shown by a second leaf": Lie(
        "a second withdrawal shows the member record of who left before",
        "withdrawn again",
        retained_says(True, lambda leaf: replace(leaf, member=(attested_anchor(),))),
        "MEMBER",
    ),
    "a second withdrawal of another leaf": Lie(
        "a second withdrawal names another ADMIT leaf than the first",
        "withdrawn again",
        retained_says(True, lambda leaf: replace(leaf, admit_seq=2)),
        "WITHDRAW",
    ),
    "evidence of another state": Lie(
        "a revoked key is shown by a state of the registry in which it was not",
        "registry changed",
        on_leaves(evidence_of_another_state),
        "WITHDRAWAL_EVIDENCE",
    ),
    "evidence of no state": Lie(
        "a revoked key is shown by a root that the registry never had",
        "registry changed",
        on_leaves(say(Withdraw, evidence_hash=bytes([0x77]) * 32)),
        "WITHDRAWAL_EVIDENCE",
    ),
    "evidence of no state, without a registry": Lie(
        "the root of a revocation is not that by which the run goes, and the registry is not there",
        "registry changed",
        lambda files: file_gone("registry")(on_leaves(say(Withdraw, evidence_hash=bytes([0x77]) * 32))(files)),
        "WITHDRAWAL_EVIDENCE",
    ),
    "a stranger expired": Lie(
        "one who never was in the run is said to have expired", "poisson", on_leaves(stranger(EXPIRED, bytes(32))), "WITHDRAW"
    ),
    "a stranger's key revoked": Lie(
        "one who never was in the run is said to have lost its key",
        "poisson",
        on_leaves(stranger("key-revoked", registry().root())),
        "WITHDRAW",
    ),
    "expired after the close": Lie(
        "one is taken out of the pool of a run that is over", "poisson", expired_after_the_close, "WITHDRAW"
    ),
}
"""Lies by name."""

