"""Drops what retention lets go: the oldest epochs are summarised, auditors vouch, and only then do bodies in that range go.

Life of a range: (1) `Ledger.summarise` appends its SUMMARY leaf under a signed checkpoint; (2) auditors audit an export that
has every body of the range, and a quorum of those whom the signed policy names vouches (`ledger.retention`); (3) one
more epoch closes, or the run did; (4) `Ledger.prune` drops the bodies of the ADMIT leaves of contributions that left, and if
that is asked for, once the run is closed, of all others, whose aggregates stay (`ledger.retention`); (5) where the
policy has a second horizon, `Ledger.drop_hashes` drops the leaf hashes of pruned leaves past it, but for the roots of the
subtrees that they fill (`ledger.tiles`). Nothing else is ever dropped: no leaf that was not pruned, nothing of a withdrawal.
"""

from collections.abc import Iterable

from attest.schema.plain import machine_time
from ledger.errors import RetentionRefused, StorageFailed
from ledger.export import Pruned
from ledger.leaves import Admit, decode_leaf
from ledger.replay.summaries import Aggregate, Member, ShownMember
from ledger.retention import hashes_end, statements, vouched_end, vouchers, vouchers_of_close, waited
from ledger.storage.appender import Appender
from ledger.storage.beside import MEMBERS, Members, read_members, write_members
from ledger.storage.store import Aggregated


def vouchers_of(file: Appender) -> dict[int, tuple[str, ...]]:
    """Returns who vouches for each summary; see `Ledger.vouchers`."""
    run = file.replay
    return vouchers(run.header, file.checkpoints, run.tally.summaries, run.timeline, machine_time())


def pruned(file: Appender) -> Pruned | None:
    """Returns what stands in for pruned leaves; see `Ledger.pruned`."""
    if not file.pruned_before:
        return None
    with file.store.snapshot() as snapshot:
        aggregates = [Aggregate.from_bytes(kept.record) for kept in snapshot.aggregates()]
    notes = [note for _, note in sorted(file.checkpoints.items()) if statements(file.replay.header, note)]
    return Pruned(file.pruned_before, aggregates, notes)


def prune(file: Appender, *, who_stays: bool = False) -> int:
    """Drops bodies under the guarantee of `Ledger.prune`, having checked that they may go."""
    run = file.replay
    if who_stays and not run.closed:
        sentence = "the run is not closed: charges to come need to know who is in the pools"
        raise RetentionRefused("RUNNING", f"{sentence}; close it first, or let only those go who left")
    before = _prunable(file, who_stays)
    if who_stays:
        _check_close_is_vouched_for(file)
    admitted = run.contributions
    gone = {admitted[name].seq for name, seq in run.withdrawals.items() if seq < before and name in admitted}
    stay = {item.seq for item in admitted.values() if who_stays and item.active and not item.unnamed and item.seq < before}
    _remember(file, stay, gone)
    gone |= stay
    aggregates = (
        Aggregated(aggregate.first, aggregate.end, seq, aggregate.to_bytes())
        for aggregate, seq in run.tally.summarised
        if not gone.isdisjoint(range(aggregate.first, aggregate.end))
    )
    return file.prune(before, gone, aggregates)


def drop_hashes(file: Appender, *, keep: Iterable[int] = ()) -> int:
    """Drops hashes under the guarantee of `Ledger.drop_hashes`, having checked that they may go."""
    return file.drop_hashes(_droppable(file), keep)


def member(file: Appender, descriptor_hash: bytes) -> ShownMember | None:
    """Returns what shows that a contribution is a member of an aggregate; see `Ledger.member`."""
    run, place = file.replay, file.store.place
    known = run.contributions.get(descriptor_hash)
    if known is None and not any(run.register.unnamed):
        return None
    members = Members() if place.beside is None else read_members(place.side(MEMBERS))
    filed = members.of(descriptor_hash)
    seq = known.seq if known is not None else filed.seq if filed is not None else 0
    aggregate = run.tally.aggregate_of(seq)
    if aggregate is None:
        return None
    with file.store.snapshot() as snapshot:
        leaves = [decode_leaf(row.body) for row in snapshot.rows() if row.body and aggregate.covers(row.seq)]
    members = members.joined((Member.of(leaf) for leaf in leaves if isinstance(leaf, Admit)), ())
    member = members.of(descriptor_hash)
    path = None if member is None else members.path(member, aggregate)
    return None if member is None or path is None else ShownMember(member, tuple(path))


def _droppable(file: Appender) -> int:
    """Returns where the leaves end whose hashes may go now."""
    run = file.replay
    horizon, summaries = run.header.policy.retention_hash_epochs, run.tally.summaries
    if not horizon:
        raise RetentionRefused("RETENTION", "the policy says retention_hash_epochs = 0: leaf hashes are kept for ever")
    due = [leaf.end for leaf in summaries if file.hashes_before < leaf.end <= file.pruned_before]
    if not due:
        sentence = "there is no range whose bodies were pruned and whose hashes are still there; prune first"
        raise RetentionRefused("NOT_PRUNED", sentence)
    end = hashes_end(run.header, summaries, run.epochs)
    old = [found for found in due if found <= end]
    if not old:
        follow = sum(epoch.seq >= due[0] for epoch in run.epochs)
        sentence = f"the policy keeps hashes for {horizon} epochs, and {follow} follow leaf {due[0] - 1}"
        raise RetentionRefused("TOO_EARLY", f"{sentence}; {horizon - follow} more must close first")
    return old[-1]


def _remember(file: Appender, stay: set[int], left: set[int]) -> None:
    """Writes into the members file whom these ADMIT leaves admitted, as far as they are there."""
    place = file.store.place
    if place.beside is None and not stay:
        return
    path = place.side(MEMBERS)
    with file.store.snapshot() as snapshot:
        leaves = [decode_leaf(row.body) for row in snapshot.rows() if row.body and (row.seq in stay or row.seq in left)]
    records = [Member.of(leaf) for leaf in leaves if isinstance(leaf, Admit)]
    stayed = (record for record in records if record.seq in stay)
    found = read_members(path).joined(stayed, (record for record in records if record.seq in left))
    try:
        write_members(path, found)
    except OSError as error:
        raise StorageFailed("IO", f"cannot write {path}: {error.strerror or error}; nothing was pruned") from error


def _check_close_is_vouched_for(file: Appender) -> None:
    """Refuses to let go who stayed before a quorum held them against what they signed, through the last charge."""
    run, quorum = file.replay, file.replay.header.policy.auditor_quorum or 0
    named = vouchers_of_close(run.header, file.checkpoints, run.closed_at, run.timeline, machine_time())
    if len(named) < quorum:
        sentence = f"{quorum} auditors must vouch for who stays behind the close, leaf {run.closed_at}"
        how = "export the ledger, let them run 'dptrain ledger cosign --summary' on it, and merge what they write"
        raise RetentionRefused("UNVOUCHED", f"{sentence}; {', '.join(sorted(named)) or 'nobody'} does; {how}")


def _prunable(file: Appender, who_stays: bool) -> int:
    """Returns where the leaves end whose bodies may go now."""
    run = file.replay
    policy, summaries = run.header.policy, run.tally.summaries
    if not policy.retention_epochs:
        raise RetentionRefused("RETENTION", "the policy says retention_epochs = 0: nothing is ever pruned")
    if not policy.auditors:
        sentence = "the policy names no auditors, so that nobody can vouch for a summary and nothing may be pruned"
        how = "sign the policy of the next run with 'auditors' and 'auditor_quorum' under [ledger]"
        raise RetentionRefused("NO_AUDITORS", f"{sentence}; {how}")
    there = any(item.active and not item.unnamed and item.seq < file.pruned_before for item in run.contributions.values())
    due = [leaf for leaf in summaries if leaf.end > file.pruned_before or (who_stays and there)]
    if not due:
        raise RetentionRefused("NO_SUMMARY", "no summary speaks for bodies that are still there; summarise first")
    names = vouchers_of(file)
    end = vouched_end(run.header, summaries, names)
    if end < due[0].end:
        given = ", ".join(names[due[0].seq]) or "nobody"
        sentence = f"{policy.auditor_quorum} auditors must vouch for the summary at {due[0].seq}, {given} does"
        how = "export the ledger, let them run 'dptrain ledger cosign --summary' on it, and merge what they write"
        raise RetentionRefused("UNVOUCHED", f"{sentence}; {how}")
    old = [leaf.end for leaf in due if leaf.end <= end and waited(leaf, run.epochs, run.closed)]
    if not old:
        sentence = f"no epoch has closed since the summary at {due[0].seq}"
        raise RetentionRefused("TOO_EARLY", f"{sentence}; prune after the next one, or when the run is closed")
    return old[-1]
