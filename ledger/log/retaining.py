"""Retention: the oldest epochs are summarised, auditors vouch for the summary, and only then do bodies in its range go.

Life of a range: (1) `Retaining.summarise` appends its SUMMARY leaf under a signed checkpoint; (2) auditors audit an export that
has every body of the range, and a quorum of those whom the signed policy names vouches (`ledger.retention.statements`); (3) one
more epoch closes, or the run did; (4) `Retaining.prune` drops the bodies of the ADMIT leaves of contributions that left, and if
that is asked for, once the run is closed, of all others, whose aggregates stay (`ledger.retention.retained`); (5) where the
policy has a second horizon, `Retaining.drop_hashes` drops the leaf hashes of pruned leaves past it, but for the roots of the
subtrees that they fill (`ledger.tiles`). Nothing else is ever dropped: no leaf that was not pruned, nothing of a withdrawal.
"""

from collections.abc import Iterable

from attest.schema.plain import machine_time
from ledger.errors import RetentionRefused, StorageFailed
from ledger.export import Pruned
from ledger.leaves import Admit, Summary, decode_leaf
from ledger.replay.summaries import Aggregate, Member, ShownMember
from ledger.retention.retained import hashes_end, waited
from ledger.retention.statements import statements, vouched_end, vouchers, vouchers_of_close
from ledger.storage.appender import Appender
from ledger.storage.beside import MEMBERS, Members, read_members, write_members
from ledger.storage.store import Aggregated


class Retaining:
    """Summaries and pruning of an open ledger."""

    _file: Appender

    @property
    def pruned_before(self) -> int:
        """Position below which bodies may be gone; 0 where everything is there."""
        return self._file.pruned_before

    @property
    def hashes_before(self) -> int:
        """Position below which leaf hashes of pruned leaves may be gone; 0 where all are there."""
        return self._file.hashes_before

    @property
    def vouchers(self) -> dict[int, tuple[str, ...]]:
        """By position of each SUMMARY leaf the names of the policy's auditors who vouch for it, as of this machine's clock."""
        run = self._file.replay
        return vouchers(run.header, self._file.checkpoints, run.tally.summaries, run.timeline, machine_time())

    def pruned(self) -> Pruned | None:
        """Returns what stands in for pruned leaves; None where everything is there."""
        if not self.pruned_before:
            return None
        with self._file.store.snapshot() as snapshot:
            aggregates = [Aggregate.from_bytes(kept.record) for kept in snapshot.aggregates()]
        notes = [note for _, note in sorted(self._file.checkpoints.items()) if statements(self._file.replay.header, note)]
        return Pruned(self.pruned_before, aggregates, notes)

    def summarise(self, *, now: int) -> Summary:
        """Appends the SUMMARY leaf over all epochs past the policy's horizon, under a signed checkpoint; also after the close.

        Guarantee:
            When this returns, leaf and checkpoint are durable. Every field of the leaf is recomputed by whoever opens or
            audits the ledger, while the bodies of the range are there.

        Raises:
            LeafRefused: code RETENTION if the policy keeps everything, NOTHING_DUE if no epoch is past the horizon.
            LedgerClosed, LedgerBusy, StorageFailed: as for appending.
        """
        with self._file.appending(now, checkpoint=True) as time:
            leaf, _ = self._file.replay.tally.propose(self._file.size, time)
            self._file.stage(leaf)
        return leaf

    def prune(self, *, who_stays: bool = False) -> int:
        """Drops the bodies that vouched summaries speak for; returns how many went.

        Guarantee:
            A body goes only if it is of an ADMIT leaf whose aggregate stays, and of a contribution that has left, or that never
            did in a run that is closed; if this leaf and the WITHDRAW leaf lie below the end of a summary for which a quorum of
            the policy's auditors vouches, in signatures that this ledger keeps; and if the ledger without it replays to the
            same figures. All go, or none. Who stayed is in the members file beside the ledger before its leaf goes.

        Args:
            who_stays: whether the ADMIT leaves of who never left go too, once the run is closed and a quorum of the auditors
                vouches below a checkpoint that covers the close.

        Raises:
            RetentionRefused: code RETENTION if the policy keeps everything, NO_AUDITORS if it names nobody who could vouch,
                NO_SUMMARY without one that is not pruned yet, UNVOUCHED if too few vouch for it, TOO_EARLY if no epoch closed
                since, RUNNING if who stays in a run that is not closed is to go.
            LedgerError: code STATE, who stays is to go and there is no place for the members file.
            LedgerCorrupt: the ledger could not do without the bodies; nothing is gone.
            LedgerClosed, LedgerBusy, StorageFailed: as for appending.
        """
        run = self._file.replay
        if who_stays and not run.closed:
            sentence = "the run is not closed: charges to come need to know who is in the pools"
            raise RetentionRefused("RUNNING", f"{sentence}; close it first, or let only those go who left")
        before = self._prunable(who_stays)
        if who_stays:
            self._check_close_is_vouched_for()
        admitted = run.contributions
        gone = {admitted[name].seq for name, seq in run.withdrawals.items() if seq < before and name in admitted}
        stay = {item.seq for item in admitted.values() if who_stays and item.active and not item.unnamed and item.seq < before}
        self._remember(stay, gone)
        gone |= stay
        aggregates = (
            Aggregated(aggregate.first, aggregate.end, seq, aggregate.to_bytes())
            for aggregate, seq in run.tally.summarised
            if not gone.isdisjoint(range(aggregate.first, aggregate.end))
        )
        return self._file.prune(before, gone, aggregates)

    def drop_hashes(self, *, keep: Iterable[int] = ()) -> int:
        """Drops hashes of leaves that were pruned long ago, but for the roots of their subtrees; returns how many went.

        Guarantee:
            A hash goes only if the body of its leaf is gone; if the leaf lies in a summarised range that as many closed epochs
            follow as the signed policy asks for (``retention_hash_epochs``); and into an aligned subtree that has leaves of
            that kind alone. So every leaf that is left stays under the signed roots, and every stored checkpoint keeps its
            root, its consistency proofs and the inclusion proofs of what is left. Lost are inclusion proofs of pruned leaves
            that nobody keeps in a file. All go, or none; the ledger without them was replayed whole before.

        Args:
            keep: sizes whose roots must still be made, such as those that model checkpoints pin.

        Raises:
            RetentionRefused: code RETENTION if the policy keeps hashes, NOT_PRUNED if no range has lost its bodies whose hashes
                are still there, TOO_EARLY if too few epochs follow it.
            LedgerCorrupt: the ledger could not do without the hashes; nothing is gone.
            LedgerClosed, LedgerBusy, StorageFailed: as for appending.
        """
        return self._file.drop_hashes(self._droppable(), keep)

    def _droppable(self) -> int:
        """Returns where the leaves end whose hashes may go now."""
        run = self._file.replay
        horizon, summaries = run.header.policy.retention_hash_epochs, run.tally.summaries
        if not horizon:
            raise RetentionRefused("RETENTION", "the policy says retention_hash_epochs = 0: leaf hashes are kept for ever")
        due = [leaf.end for leaf in summaries if self.hashes_before < leaf.end <= self.pruned_before]
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

    def _remember(self, stay: set[int], left: set[int]) -> None:
        """Writes into the members file whom these ADMIT leaves admitted, as far as they are there."""
        place = self._file.store.place
        if place.beside is None and not stay:
            return
        path = place.side(MEMBERS)
        with self._file.store.snapshot() as snapshot:
            leaves = [decode_leaf(row.body) for row in snapshot.rows() if row.body and (row.seq in stay or row.seq in left)]
        records = [Member.of(leaf) for leaf in leaves if isinstance(leaf, Admit)]
        stayed = (record for record in records if record.seq in stay)
        found = read_members(path).joined(stayed, (record for record in records if record.seq in left))
        try:
            write_members(path, found)
        except OSError as error:
            raise StorageFailed("IO", f"cannot write {path}: {error.strerror or error}; nothing was pruned") from error

    def member(self, descriptor_hash: bytes) -> ShownMember | None:
        """Returns what shows that a contribution is a member of an aggregate, from its leaves or from the members file.

        None where neither has it, or no SUMMARY leaf speaks for its ADMIT leaf yet.

        Raises:
            LedgerCorrupt: code MEMBERS, the file cannot be read.
        """
        run, place = self._file.replay, self._file.store.place
        known = run.contributions.get(descriptor_hash)
        if known is None and not any(run.register.unnamed):
            return None
        members = Members() if place.beside is None else read_members(place.side(MEMBERS))
        filed = members.of(descriptor_hash)
        seq = known.seq if known is not None else filed.seq if filed is not None else 0
        aggregate = run.tally.aggregate_of(seq)
        if aggregate is None:
            return None
        with self._file.store.snapshot() as snapshot:
            leaves = [decode_leaf(row.body) for row in snapshot.rows() if row.body and aggregate.covers(row.seq)]
        members = members.joined((Member.of(leaf) for leaf in leaves if isinstance(leaf, Admit)), ())
        member = members.of(descriptor_hash)
        path = None if member is None else members.path(member, aggregate)
        return None if member is None or path is None else ShownMember(member, tuple(path))

    def _check_close_is_vouched_for(self) -> None:
        """Refuses to let go who stayed before a quorum held them against what they signed, through the last charge."""
        run, quorum = self._file.replay, self._file.replay.header.policy.auditor_quorum or 0
        named = vouchers_of_close(run.header, self._file.checkpoints, run.closed_at, run.timeline, machine_time())
        if len(named) < quorum:
            sentence = f"{quorum} auditors must vouch for who stays behind the close, leaf {run.closed_at}"
            how = "export the ledger, let them run 'dptrain ledger cosign --summary' on it, and merge what they write"
            raise RetentionRefused("UNVOUCHED", f"{sentence}; {', '.join(sorted(named)) or 'nobody'} does; {how}")

    def _prunable(self, who_stays: bool) -> int:
        """Returns where the leaves end whose bodies may go now."""
        run = self._file.replay
        policy, summaries = run.header.policy, run.tally.summaries
        if not policy.retention_epochs:
            raise RetentionRefused("RETENTION", "the policy says retention_epochs = 0: nothing is ever pruned")
        if not policy.auditors:
            sentence = "the policy names no auditors, so that nobody can vouch for a summary and nothing may be pruned"
            how = "sign the policy of the next run with 'auditors' and 'auditor_quorum' under [ledger]"
            raise RetentionRefused("NO_AUDITORS", f"{sentence}; {how}")
        there = any(
            item.active and not item.unnamed and item.seq < self.pruned_before for item in run.contributions.values()
        )
        due = [leaf for leaf in summaries if leaf.end > self.pruned_before or (who_stays and there)]
        if not due:
            raise RetentionRefused("NO_SUMMARY", "no summary speaks for bodies that are still there; summarise first")
        names = self.vouchers
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
