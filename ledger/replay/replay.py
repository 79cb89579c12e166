"""Applies leaves one after the other, and names every contradiction: the meaning of a ledger.

Writer and auditor run the same replay. The writer refuses to append a leaf that has a problem; the auditor lists them.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from attest.policy.mechanism import COEFFICIENTS
from attest.withdrawal import PASSING, REGISTRY_REASONS
from ledger.accountants import MICRO, leeway, to_micro_up
from ledger.errors import LeafRefused, ProofError
from ledger.leaves import (
    Admit,
    Charge,
    ChargeClass,
    Clock,
    Close,
    Coefficients,
    Draw,
    Epoch,
    EpochClass,
    Header,
    Key,
    Leaf,
    Registry,
    Release,
    Resume,
    Settle,
    Spend,
    SpendFacts,
    SpendRow,
    Summary,
    Withdraw,
)
from ledger.leaves.records import MOST_PART
from ledger.replay.budgets import Plans, budget_problems
from ledger.replay.contributions import Group, Moment, Standing, stand_in_name
from ledger.replay.influence import Releases
from ledger.replay.permits import Isolation, OrderWatch, Reached, admission_problems, window_problems
from ledger.replay.register import order
from ledger.replay.signer import KeyChain, Timeline
from ledger.replay.state import RunState, of_record
from ledger.replay.summaries import Member, Tally

SPEND_TOLERANCE_MICRO: Final = 2
"""A recorded epsilon is the recomputed one plus at most this, in 1e-6: rounded up, and machines differ in last bits. What `prv`
records is held against `pld`, and lies at most 0.02 more above: its own value needs a library that an auditor may lack. What an
earlier version of an accountant recorded may lie above by more (`ledger.accountants.leeway`)."""

MOST_ADMISSIBLE: Final = 4096
"""Bounds and limits that are remembered as admissible."""

_AFTER_CLOSE: Final = (Withdraw, Key, Summary, Release, Clock)
"""Kinds that may still follow in a run that is over: nothing that charges, admits or releases a step."""

Problems = Iterator[LeafRefused]


class Replay(RunState):
    """Applies the leaves of a run, and names what contradicts those before. It alone writes the state that rules read.

    Attributes: those of `RunState`, and
        timeline: the times of the leaves, and the CLOCK leaves among them.
        charged_steps: the farthest step that was charged.
        plans: what contributions could spend over its whole horizon, and their limits over all runs.
        tally: the summaries, and what the next one must say.
        keys: the keys of the ledger's signer.
        order: the order of turns, and how often steps were repeated.
        isolation: how statement A stands, as the trainer recorded it.
        releases: the RELEASE leaves.
    """

    def __init__(self, header: Header, root_at: Callable[[int], bytes], *, recompute: bool = True) -> None:
        """Starts after leaf 0.

        Args:
            root_at: gives the root over the first n leaves; used where a RESUME cites one.
            recompute: whether SPEND leaves are checked against the accountant, or only their order and fields.
        """
        super().__init__(header)
        self.recompute, self.timeline = recompute, Timeline(header)
        self.keys, self.releases = KeyChain(header), Releases(root_at)
        self.plans, self.order = Plans(header), OrderWatch(header)
        self.tally, self.isolation = Tally(header), Isolation(header)
        self._drawn_to = 0
        self._attempt_ended = False
        self._went_by = {header.registry_root}
        self._least = of_record(header, self.expenditure)
        self._leeway = SPEND_TOLERANCE_MICRO + MICRO * leeway(
            header.accountant.name, header.accountant.library, header.accountant.version, header.policy.mechanism.name
        )
        self._root_at, self.charged_steps, self._drawn_steps = root_at, Reached(), Reached()
        self._window_variances: list[tuple[float, ...]] = []
        self._unnamed: set[int] = set()  # ADMIT leaves of whom nothing says any more whom they admitted
        self._noise_streams: set[bytes] = set()
        self._admissible: set[tuple[object, ...]] = set()  # bounds and limits with which nothing is wrong
        self._reached: tuple[tuple[int, int, tuple[int, ...]], Moment] | None = None  # at the last admission
        self._max_epsilon: list[int | None] = [None if rule.public else 0 for rule in header.policy.classes]
        self._spending: list[tuple[Group, SpendFacts]] | None = None  # what rows are still missing, the next one last
        self._places = {rule.name: index for index, rule in enumerate(header.policy.classes)}
        self._coefficients, self._awaited = bytearray(), header.awaited

    @property
    def begins_with(self) -> int:
        """Returns how many leaves a ledger has when it is made: the header, and those with coefficients of its noise."""
        return 1 + -(-self._awaited // MOST_PART)

    @property
    def last_time(self) -> int:
        """Returns the time of the last leaf, POSIX seconds."""
        return self.timeline.last

    def apply(self, leaf: Leaf) -> list[LeafRefused]:
        """Applies the next leaf, and returns what contradicts those before it. The state moves on either way, counting every
        charge in full."""
        problems = list(self._problems(leaf))
        for problem in problems:
            problem.seq = self.size
        self.tally.see(leaf, self)
        self.size += 1
        return problems

    def charge_classes(self) -> tuple[ChargeClass, ...]:
        """Returns the class rows that a CHARGE leaf must carry now, with the noise of the next step's phase."""
        rows = []
        for index, rule in enumerate(self.header.policy.classes):
            count, root = self.register.pool(index)
            q = rule.sampling_rate
            std = self.expenditure.min_std(index, self._next_step)
            sigma, clip = rule.bounds.sigma_micro, rule.bounds.clip_micro
            rows.append(ChargeClass(rule.name, q.numerator, q.denominator, sigma, clip, std, count, root))
        return tuple(rows)

    def scheduled_variances(self) -> tuple[float, ...]:
        """Returns per class the smallest scheduled noise variance over its blocks: of the open window, or of the next."""
        return self.expenditure.stds_squared(None, self._next_step)

    @property
    def _next_step(self) -> int:
        return self.position + 1 if self.open_window is None else self.open_window.first_step

    def epsilon(self, contribution: Standing) -> float:
        """Returns what a contribution, or each of a group, has spent by now."""
        return self.expenditure.epsilon(contribution, self.charged_phases, self.charged_attempt)

    def spend_rows(self) -> Iterator[SpendRow]:
        """Yields the rows that SPEND leaves must carry if an epoch is closed now, in order."""
        for group, facts in reversed(self._changed()):
            yield SpendRow(*group.key, *facts, to_micro_up(self.epsilon(group)))

    def totals(self) -> tuple[EpochClass, ...]:
        """Returns the class rows that an EPOCH leaf must carry now."""
        return tuple(map(EpochClass, self.register.active, self.register.withdrawn, self._max_epsilon))

    def _problems(self, leaf: Leaf) -> Problems:
        if leaf.seq != self.size:
            yield LeafRefused("SEQ", f"the leaf says seq {leaf.seq}, it stands at {self.size}")
        yield from self.timeline.take(leaf, self.size)
        if self.closed and not isinstance(leaf, _AFTER_CLOSE):
            yield LeafRefused("CLOSED", "only withdrawals, summaries, releases and changes of key or clock follow CLOSE")
        if self._spending is not None and not isinstance(leaf, Spend | Epoch):
            yield LeafRefused("EPOCH_ORDER", "SPEND leaves are followed by SPEND or EPOCH only")
            self._spending = None
        if len(self._coefficients) < self._awaited and not isinstance(leaf, Coefficients):
            raise self.header.lacking(len(self._coefficients), self.size)
        yield from _RULES[type(leaf)](self, leaf)

    def _take_coefficients(self, leaf: Coefficients) -> Iterable[LeafRefused]:
        left = self._awaited - len(self._coefficients)
        wanted = min(left, MOST_PART)
        if len(leaf.data) != wanted:
            told = f"expected the next {wanted} bytes of coefficients" if wanted else "all coefficients are there, or none are"
            raise LeafRefused(COEFFICIENTS, f"{told}, the leaf has {len(leaf.data)}", seq=self.size)
        self._coefficients += leaf.data
        if len(self._coefficients) == self._awaited:
            try:
                self.header.complete_with(bytes(self._coefficients))
            except LeafRefused as error:
                error.seq = self.size
                raise
        return ()

    def _admit(self, leaf: Admit) -> Problems:
        place = self._places.get(leaf.class_name)
        if place is None:
            yield LeafRefused("CLASS_UNKNOWN", f"the policy has no class {leaf.class_name}")
            return
        key = (place, leaf.profile_id, leaf.shared())
        if key not in self._admissible:
            # Both look at these fields and the header alone.
            wrong = [*admission_problems(leaf, self.header, place), *budget_problems(leaf, self.plans, place)]
            yield from wrong
            if not wrong and len(self._admissible) < MOST_ADMISSIBLE:
                self._admissible.add(key)
        if leaf.descriptor_hash in self.withdrawals:
            yield LeafRefused("WITHDRAWN", f"{leaf.descriptor_hash.hex()} was withdrawn before")
            return
        if self.register.by_number.find(leaf.descriptor_hash) is not None:
            yield LeafRefused("REPLAYED", f"{leaf.descriptor_hash.hex()} is admitted already")
            return
        yield from self.order.admit()
        reached = (len(self.windows), self.attempt, self.charged_phases)
        if self._reached is None or self._reached[0] != reached:
            self._reached = reached, Moment(*reached)
        self.register.admit(leaf, place, self._reached[1], unnamed=leaf.seq in self._unnamed)

    def _registry(self, leaf: Registry) -> Problems:
        if leaf.before != self.registry_roots[-1]:
            told = f"the run went by the registry root {self.registry_roots[-1].hex()}, the leaf says {leaf.before.hex()}"
            yield LeafRefused("REGISTRY", told)
        if leaf.after in self._went_by:
            yield LeafRefused("REGISTRY", f"the run went by the registry root {leaf.after.hex()} before; a registry only grows")
        self.registry_roots.append(leaf.after)
        self._went_by.add(leaf.after)

    def _charge(self, leaf: Charge) -> Problems:
        if leaf.window != len(self.windows) + 1:
            yield LeafRefused("WINDOW", f"window {leaf.window} follows window {len(self.windows)}")
        if leaf.attempt != self.attempt:
            yield LeafRefused("ATTEMPT", f"attempt {self.attempt} is running, the leaf says {leaf.attempt}")
        if self.open_window is not None:
            yield LeafRefused("WINDOW_OPEN", f"window {self.open_window.window} is still open; settle it first")
            self.unsettled.append(self.open_window)
        elif self._attempt_ended:
            yield LeafRefused("ATTEMPT_ENDED", "the last window released fewer steps than charged; resume first")
        if leaf.first_step != self.position + 1:
            yield LeafRefused("TILE", f"windows tile the run: expected step {self.position + 1}, got {leaf.first_step}")
        yield from window_problems(leaf, self.header, self.position, self.charged)
        yield from self.order.charge(leaf, self.register.by_number)
        if leaf.noise_stream in self._noise_streams:
            sentence = f"noise stream {leaf.noise_stream.hex()} was used before; the noise of two releases would cancel"
            yield LeafRefused("NOISE_REUSED", sentence)
        if self.windows and leaf.fence < self.windows[-1].fence:
            yield LeafRefused("FENCE", f"writer {leaf.fence} had lost the ledger to writer {self.windows[-1].fence}")
        for place, (found, expected) in enumerate(zip(leaf.classes, self.charge_classes(), strict=False)):
            # Of a pool with members whose names are gone the number is known, and the root is what auditors vouch for.
            told = replace(expected, pool_root=found.pool_root) if self.register.unnamed[place] else expected
            if found != told:
                yield LeafRefused("CHARGE_CLASS", f"expected {expected}, got {found}")
        if len(leaf.classes) != len(self._places):
            yield LeafRefused("CHARGE_CLASS", f"{len(leaf.classes)} class rows, the policy has {len(self._places)}")
        self._noise_streams.add(leaf.noise_stream)
        self._drawn_to, self._window_variances = leaf.first_step - 1, []
        self.windows.append(leaf)
        self.charged_steps.take(self.size, leaf.last_step)
        self.open_window = leaf
        counts = self.expenditure.count_steps(leaf.first_step, leaf.n_steps)
        if self.expenditure.copies.charge(leaf.first_step, leaf.last_step):
            self.register.groups.dearer()
        self.charged_phases = tuple(map(int.__add__, self.charged_phases, counts))
        self.charged_attempt = self.attempt

    def draw_variances(self, numbers: Iterable[int], step: int) -> tuple[float, ...]:
        """Returns the variances that the DRAW leaf of a step must carry in which these take part."""
        return self.expenditure.stds_squared(self.expenditure.variances(self.register.numbered(numbers)), step)

    def settle_variances(self) -> tuple[float, ...]:
        """Returns the variances that the SETTLE leaf of the open window must carry: of its steps, the smallest per class."""
        if not self.header.per_sample:
            return self.scheduled_variances()
        return tuple(map(min, zip(*self._window_variances, strict=True))) or (0.0,) * len(self._places)

    def _draw(self, leaf: Draw) -> Problems:
        if not self.header.occurrences_public:
            yield LeafRefused("DRAW_SECRET", "the policy keeps draws secret, and a leaf tells one; no epsilon here holds")
            return
        window = self.open_window
        if window is None or leaf.window != window.window or leaf.step != self._drawn_to + 1 or leaf.step > window.last_step:
            expected = "no window is open" if window is None else f"expected window {window.window}, step {self._drawn_to + 1}"
            yield LeafRefused("DRAW", f"window {leaf.window}, step {leaf.step}: {expected}")
            if window is None:
                return
        self._drawn_to = leaf.step
        self.draws += 1
        again = leaf.step <= self._drawn_steps.most
        self._drawn_steps.take(self.size, leaf.step)
        try:
            drawn = self.register.numbered(leaf.drawn)
        except LeafRefused as error:
            yield error
            return
        yield from self.order.draw(leaf, self.register.by_number)
        variances = self.expenditure.variances(drawn)
        expected_variances = self.expenditure.stds_squared(variances, leaf.step)
        if leaf.variances != expected_variances:
            yield LeafRefused("VARIANCE", f"recorded variances {leaf.variances}, those drawn give {expected_variances}")
        self._window_variances.append(leaf.variances)
        self.register.groups.draw()
        for contribution in drawn:
            if not contribution.active:
                yield LeafRefused("WITHDRAWN", f"{contribution.descriptor_hash.hex()} was drawn after it was withdrawn")
            self.expenditure.count(contribution, variances, leaf.step, again=again)
            most = contribution.terms.bounds.max_occurrences
            if self.header.caps_enforced and 0 < most < contribution.occurrences:
                sentence = f"{contribution.descriptor_hash.hex()} was drawn {contribution.occurrences} times, it signed"
                yield LeafRefused("CAP", f"{sentence} {most} at most")
        if again:
            self.expenditure.again(self.register, leaf.step)

    def _settle(self, leaf: Settle) -> Problems:
        window = self.open_window
        if window is None or leaf.window != window.window:
            yield LeafRefused("SETTLE", f"window {leaf.window} is not the open one")
            return
        if leaf.steps_released > window.n_steps:
            yield LeafRefused("SETTLE", f"{leaf.steps_released} steps released, {window.n_steps} were charged")
        if self.header.occurrences_public and leaf.steps_released > self._drawn_to - window.first_step + 1:
            drawn = self._drawn_to - window.first_step + 1
            yield LeafRefused("DRAW_MISSING", f"{leaf.steps_released} steps released, {drawn} have a DRAW leaf")
        scheduled = self.settle_variances()
        # Scheduled noise has one value; anything else, more noise included, could carry what was drawn.
        if tuple(leaf.variances) != tuple(scheduled):
            yield LeafRefused("VARIANCE", f"realised variances {leaf.variances} are not the charged {scheduled}")
        self.open_window = None
        self.position = window.first_step - 1 + min(leaf.steps_released, window.n_steps)
        self._attempt_ended = leaf.steps_released < window.n_steps

    def _spend(self, leaf: Spend) -> Problems:
        if self._spending is None:
            self._spending = self._changed()
        self.spends += len(leaf.rows)
        for row in leaf.rows:
            if not self._spending:
                yield LeafRefused("SPEND_ORDER", f"every group that changed has its row, and one more follows: {row.key}")
                return
            group, facts = self._spending.pop()
            if row.key != group.key:
                yield LeafRefused("SPEND_ORDER", f"expected the row of the group {group.key}, got {row.key}")
                return
            count, root, steps, variance = facts
            if row.facts != (count, row.members_root if group.unnamed else root, steps, variance):
                sentence = f"group {row.key}: expected (members, root, steps, variance) {_told(facts)}, got {_told(row.facts)}"
                yield LeafRefused("SPEND", sentence)
            least = self._least_micro(group)
            if least is not None and not least <= row.epsilon_micro <= least + self._leeway:
                sentence = f"group {row.key}: recorded {row.epsilon_micro}, recomputed {least:.3f}, expected up to"
                yield LeafRefused("SPEND_EPSILON", f"{sentence} {self._leeway:g} more (1e-6)")
            group.told, group.epsilon_micro = facts, row.epsilon_micro
            place = group.class_index
            self._max_epsilon[place] = max(self._max_epsilon[place] or 0, row.epsilon_micro)

    def _changed(self) -> list[tuple[Group, SpendFacts]]:
        """Returns the groups whose last row does not say what is true now, with what it must say; the last in order first."""
        found = []
        for group in self.register.groups.changed(self.charged_phases):
            steps = self.steps(group)
            variance = self.expenditure.variance(group, self.charged_phases)
            facts = (group.count, group.members.root(), steps, variance)
            if facts != group.told:
                found.append((group, facts))
        return sorted(found, key=lambda item: order(item[0]), reverse=True)

    def _least_micro(self, group: Group) -> float | None:
        """Returns the least epsilon in 1e-6 that the row of a group may say now; None where it is not recomputed."""
        if not self.recompute:
            return None
        return self._least.epsilon(group, self.charged_phases, self.charged_attempt) * MICRO

    def _epoch(self, leaf: Epoch) -> Problems:
        missing = len(self._changed() if self._spending is None else self._spending)
        self._spending = None
        if missing > 0:
            yield LeafRefused("EPOCH_ORDER", f"rows of {missing} groups are missing before this EPOCH")
        if self.open_window is not None:
            yield LeafRefused("WINDOW_OPEN", f"window {self.open_window.window} is still open at the close of an epoch")
        expected = (len(self.epochs) + 1, self.position, self.charged, self.totals())
        if (leaf.number, leaf.step, leaf.charged, leaf.classes) != expected:
            yield LeafRefused("EPOCH", f"expected (number, step, charged, totals) {expected}, got {leaf}")
        if leaf.frozen_digest != self.header.frozen_digest:
            now, then = (digest.hex() if digest else "none" for digest in (leaf.frozen_digest, self.header.frozen_digest))
            told = f"frozen parameters have the digest {now} at the end of the epoch, {then} in the header"
            yield LeafRefused("FROZEN", told)
        yield from self.isolation.epoch(leaf)
        self.epochs.append(leaf)
        self.register.groups.close_epoch(self.charged_phases, whole=not missing)

    def _withdraw(self, leaf: Withdraw) -> Problems:
        if leaf.member is not None:
            yield from self._show_member(leaf)
        contribution = self.contributions.get(leaf.descriptor_hash)
        expected = None if contribution is None else contribution.seq
        if leaf.admit_seq != expected:
            yield LeafRefused("WITHDRAW", f"it was admitted at {expected}, the leaf says {leaf.admit_seq}")
        if leaf.reason in PASSING and (contribution is None or not contribution.active or self.closed):
            where = "after the close" if self.closed else "and the contribution is in no pool"
            yield LeafRefused("WITHDRAW", f"a run takes out what it could still draw; the leaf says {leaf.reason} {where}")
        if leaf.reason in REGISTRY_REASONS and leaf.evidence_hash != self.registry_roots[-1]:
            told = f"the evidence of {leaf.reason} is the registry root by which the run goes, {self.registry_roots[-1].hex()}"
            yield LeafRefused("WITHDRAWAL_EVIDENCE", f"{told}; the leaf says {leaf.evidence_hash.hex()}")
        if leaf.descriptor_hash in self.withdrawals:
            if leaf.reason in PASSING or leaf.descriptor_hash not in self.passing:
                yield LeafRefused("WITHDRAW", f"{leaf.descriptor_hash.hex()} was withdrawn before")
            self.passing.discard(leaf.descriptor_hash)
            return
        if leaf.reason in PASSING:
            self.passing.add(leaf.descriptor_hash)
        self.withdrawals[leaf.descriptor_hash] = self.size
        self.releases.withdrawn(leaf.descriptor_hash)
        if contribution is not None:
            self.register.withdraw(contribution, Moment(len(self.windows), self.charged_attempt, self.charged_phases))

    def _show_member(self, leaf: Withdraw) -> Problems:
        """Holds what a leaf says of an admission that is gone against its aggregate, and takes the name from it.

        Guarantee: a member that is shown has its ADMIT leaf gone, left with this leaf and no other, and was in the run at its
        close. So whose names rest on auditors' word does not hang on how often, or when, something is shown.
        """
        seq, (anchor, *path) = leaf.admit_seq or 0, leaf.member or (b"",)
        aggregate = self.tally.aggregate_of(seq)
        try:
            if not self.closed:
                raise LeafRefused("MEMBER", "the run is not closed, and the ADMIT leaves of who stays are there")
            if leaf.descriptor_hash in self.withdrawals:
                raise LeafRefused("MEMBER", "its first WITHDRAW leaf says whom the ADMIT leaf admitted")
            if not self.is_pruned(seq):
                raise LeafRefused("MEMBER", "the ADMIT leaf is there, and says whom it admitted")
            if aggregate is None:
                raise LeafRefused("MEMBER", f"no summary speaks for an ADMIT leaf {seq}")
            aggregate.require_member(Member(leaf.descriptor_hash, seq, anchor), path)
        except (LeafRefused, ProofError) as error:
            sentence = f"it does not show that leaf {seq} admitted {leaf.descriptor_hash.hex()}: {error.sentence}"
            yield LeafRefused("MEMBER", f"{sentence}; bring the member record that was handed out for it")
            return
        contribution = self.contributions.get(stand_in_name(seq))
        if contribution is not None and contribution.unnamed:
            self.register.name(contribution, leaf.descriptor_hash)
        self.shown_members.add(seq)

    def is_pruned(self, seq: int) -> bool:
        """Returns whether the body of an ADMIT leaf is gone; a replay of whole leaves has all of them."""
        return False

    def _resume(self, leaf: Resume) -> Problems:
        if leaf.attempt != self.attempt + 1:
            yield LeafRefused("ATTEMPT", f"attempt {self.attempt + 1} comes next, the leaf says {leaf.attempt}")
        if leaf.pinned_size is None or leaf.pinned_root is None:
            if leaf.from_step:
                yield LeafRefused("RESUME", f"resuming after step {leaf.from_step} needs the pin of a model checkpoint")
            if leaf.threads is not None:
                yield LeafRefused("RESUME", "there is no model checkpoint that was written with another number of threads")
        elif leaf.pinned_size > self.size or self._root_at(leaf.pinned_size) != leaf.pinned_root:
            yield LeafRefused("RESUME", f"the pinned root at size {leaf.pinned_size} is not this ledger's")
        covered = leaf.pinned_size or 0
        # Charged steps count in full where draws are secret; where they are public only drawn ones do.
        public = self.header.occurrences_public
        if leaf.from_step > (self._drawn_steps if public else self.charged_steps).by(covered):
            told = f"step {leaf.from_step} was not {'drawn' if public else 'charged'} by the pinned size {covered}"
            yield LeafRefused("RESUME", told)
        if self.open_window is not None:
            self.unsettled.append(self.open_window)
        self.open_window = None
        self._attempt_ended = False
        self.isolation.resume(leaf.from_step)
        self.expenditure.copies.resume(leaf.from_step)
        self.attempt, self.position = self.attempt + 1, leaf.from_step

    def _close(self, leaf: Close) -> Problems:
        if self.open_window is not None:
            yield LeafRefused("WINDOW_OPEN", f"window {self.open_window.window} is still open; settle it first")
        accounted = self.epochs[-1].charged if self.epochs else 0
        if accounted != self.charged:
            yield LeafRefused("CLOSE", f"{self.charged - accounted} charged steps are in no epoch; close one first")
        if (leaf.step, leaf.charged) != (self.position, self.charged):
            yield LeafRefused("CLOSE", f"expected (step, charged) {(self.position, self.charged)}, got {leaf}")
        self.closed_at = self.size


def _told(facts: SpendFacts) -> str:
    count, root, steps, variance = facts
    return f"({count}, {root.hex()}, {steps}, {variance})"


_RULES: Final[dict[type[Leaf], Callable[[Replay, Any], Iterable[LeafRefused]]]] = {
    Header: lambda run, leaf: (LeafRefused("KIND", "a second header"),),
    Clock: lambda run, leaf: (),  # the timeline takes it
    Coefficients: Replay._take_coefficients,
    Admit: Replay._admit, Charge: Replay._charge, Draw: Replay._draw, Settle: Replay._settle, Spend: Replay._spend,
    Withdraw: Replay._withdraw, Epoch: Replay._epoch, Resume: Replay._resume, Close: Replay._close, Registry: Replay._registry,
    Key: lambda run, leaf: run.keys.take(leaf),
    Summary: lambda run, leaf: run.tally.judge(leaf),
    Release: lambda run, leaf: run.releases.take(leaf, run),
}  # fmt: skip
"""Yields what is wrong with a leaf, by its kind, and takes it in."""
