"""Collects what a reader should know of a run though nothing is wrong: plain notes, and qualifiers.

A qualifier weakens what a reader may believe, and is a word of `ledger.audit.findings`; most come with a note that tells the
particulars. A plain note explains.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from attest.fixed_point import from_micro
from attest.schema.plain import utc, visible
from ledger import accountants
from ledger.accountants import MICRO, caveat
from ledger.audit.findings import QUALIFIERS
from ledger.leaves import Header
from ledger.leaves.header import COMPROMISED, UNADDRESSED
from ledger.replay import Replay
from ledger.views.geometry import geometry_of

MAX_CLOCK_NOTES: Final = 10
"""CLOCK leaves that notes tell of one by one; the report has all."""


class Remarks:
    """Collects notes and qualifiers in the order in which an audit comes to them."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._words: set[str] = set()

    def note(self, *sentences: str) -> None:
        """Takes sentences that explain."""
        self.notes += sentences

    def qualify(self, word: str, *sentences: str) -> None:
        """Takes a qualifier, with sentences that tell its particulars. Raises KeyError: the registry has no such word."""
        QUALIFIERS[word]  # one registry: no word is made up here
        self._words.add(word)
        self.notes += sentences

    @property
    def qualifiers(self) -> tuple[str, ...]:
        """Returns the qualifiers, sorted, each once."""
        return tuple(sorted(self._words))


def remark_header(header: Header, owner_key: bytes | None, remarks: Remarks) -> None:
    """Says what the header leaves open: whose policy it is, what earlier runs spent, and which accountant recorded it."""
    if owner_key is None:
        told = f"the policy is signed by key {header.owner_key.hex()} of {header.owner}, which was not pinned"
        remarks.qualify("UNPINNED", told)
    if header.previous:
        counted = ", ".join(f"{item.origin} ({item.reason}, {item.size} leaves)" for item in header.previous)
        remarks.qualify("EARLIER_TOLD", f"the run counts {counted}")
    for item in header.previous:
        if item.reason == COMPROMISED:
            told = f"{item.origin} ended at {item.size} leaves with its key lost"
            remarks.qualify("KEY_LOST", f"{told}: unless it was closed by then, its whole plan is what everybody spent in it")
    for told in accountants.provided(header.accountant.name, header.policy.mechanism.name):
        by = f"{header.accountant.library} {header.accountant.version}"
        remarks.note(f"{told}: its figures are those of {by}, and were computed again by what is installed here")
    here = accountants.describe(header.accountant.name, header.policy.mechanism.name)
    there = (header.accountant.name, header.accountant.library, header.accountant.version, header.accountant.parameters)
    if there != here:
        remarks.note(f"recorded with {' '.join(there)}; recomputed with {' '.join(here)}")


def remark_run(run: Replay, remarks: Remarks) -> None:
    """Says what the leaves behind the header leave open, and explains how the figures count."""
    if not run.closed:
        remarks.qualify("OPEN")
    for sentence in clock_set_back(run):
        remarks.qualify("CLOCK_SET", sentence)
    later = len(run.registry_roots) - 1
    if later:
        told = f"the run took in {later} later states of the contributor registry, and went by each from its REGISTRY leaf on"
        remarks.note(told)
    _remark_counting(run, remarks)
    _remark_blocks(run.header, remarks)
    _remark_geometry(run.header, remarks)
    _remark_forward(run, remarks)
    _remark_noise(run, remarks)
    for told in _caveats(run):
        remarks.note(told)
    unmatched = sum(hash_ not in run.contributions for hash_ in run.withdrawals)
    if unmatched:
        named = "withdrawal names a contribution" if unmatched == 1 else "withdrawals name contributions"
        hidden = any(run.register.unnamed)
        stayed = "; of those that stayed nothing says any more whether they are among these" if hidden else ""
        remarks.note(f"{unmatched} {named} that no ADMIT leaf names{stayed}")


def clock_set_back(run: Replay) -> Iterable[str]:
    """Yields a sentence for each of the last CLOCK leaves, which set the ledger's clock back."""
    sets = run.timeline.sets
    for leaf in sets[-MAX_CLOCK_NOTES:]:
        yield (
            f"leaf {leaf.seq} sets the ledger's clock back from {utc(leaf.before)} to {utc(leaf.time)}, since, as its operator "
            f"says: {visible(leaf.reason)}. Do not rely on times before that leaf; who expired by them stays withdrawn"
        )
    if len(sets) > MAX_CLOCK_NOTES:
        yield f"the clock was set back {len(sets)} times in all"


def _remark_counting(run: Replay, remarks: Remarks) -> None:
    header = run.header
    accounted = run.epochs[-1].charged if run.epochs else 0
    if accounted != run.charged:
        remarks.note(f"{run.charged - accounted} charged steps are in no epoch yet; the figures here count them")
    unsettled = len(run.unsettled) + (run.open_window is not None)
    if unsettled:
        what = "of the steps those with a draw count" if header.occurrences_public else "every step charged counts"
        windows = "1 window was" if unsettled == 1 else f"{unsettled} windows were"
        remarks.note(f"{windows} charged and never settled; {what}")
    limited = sum(bool(run.plans.limits(found)) for found in run.register.by_number)
    if limited:
        remarks.qualify("LIMITS_ALONE", f"contributions with a limit of epsilon over all runs: {limited}")


def _remark_blocks(header: Header, remarks: Remarks) -> None:
    """Says what of the blocks was derived, and what of them is the operator's word."""
    remarks.note(
        "which blocks a class may touch, and behind how much noise, was derived from the signed policy and the stack that the "
        f"header names; names, order and coordinates of its {len(header.stack.tensors):,} parameters, and which head, expert "
        "or adapter has them, are the operator's word"
    )
    frozen = [block for block in header.blocks if not block.classes]
    if frozen:
        commits = "the header commits" if header.frozen_digest is not None else "the header does not commit"
        remarks.qualify(
            "FROZEN_TOLD",
            f"frozen, as told: {sum(block.coordinates for block in frozen):,} coordinates in blocks without noise "
            f"({len(frozen)}); {commits} to what they were before the first step, and only a release shows what they are now",
        )


def _remark_geometry(header: Header, remarks: Remarks) -> None:
    """Says what of the geometry was derived, and what of it is the trainer's word."""
    geometry = geometry_of(header)
    if geometry is not None:
        remarks.note(
            f"{geometry.sentence}. Which pairs these are was derived from the signed policy and the names of the stack. Their "
            "ranks, and that frames follow from the factors as they are at the start of a step by that rule, are the trainer's "
            "word: what noise is left after the projection hangs on ranks, and no epsilon does"
        )


def _remark_forward(run: Replay, remarks: Remarks) -> None:
    """Says what the trainer recorded of optimizer and forward that makes a statement weaker."""
    header = run.header
    if not run.isolation.held:
        told = f"statement A (direct isolation) does not hold of this run, as the trainer recorded: {run.isolation.told}"
        remarks.qualify("ISOLATION_WEAKENED", f"{told}; B, and so every epsilon here, does not hang on it")
    if header.randomness == UNADDRESSED and not header.occurrences_public:
        remarks.qualify("UNADDRESSED")
    if header.unprobed:
        remarks.qualify(
            "UNPROBED",
            f"the start-up probes saw no gradient in {len(header.unprobed)} trained tensors (first: {header.unprobed[0]})",
        )


def _remark_noise(run: Replay, remarks: Remarks) -> None:
    """Says how draws and noise are counted where a policy asks for more than one level of noise over secret draws."""
    header, policy = run.header, run.header.policy
    if header.occurrences_public:
        remarks.note("who was drawn is public in this ledger: every occurrence is counted in full, nothing by sampling")
        _remark_draws(run, remarks)
    if policy.sampling.turns:
        remarks.note(
            f"contributions take turns in {policy.sampling.name} order, once in each period of 1/q steps: every recorded draw "
            "was held against it"
        )
    if policy.sampling.groups > 1:
        remarks.note(
            f"every step draws from one of {policy.sampling.groups} groups of each class, in turn: a contribution is charged "
            "for the steps of the group that had most"
        )
    phases = charged_noise_phases(run)
    if phases:
        told = ", ".join(f"{scale:g} times from step {first} ({charged} charged)" for first, scale, charged in phases)
        remarks.note(f"noise varies over the run, by signed policy: {told}; epsilon counts every step at its own noise")
    if header.per_sample:
        remarks.note(
            "the noise of a step follows its draw: everybody drawn brings (sigma C)^2 of variance to every block that they may "
            "touch, and a block that nobody drawn may touch has none; epsilon counts the noise of each step as it was drawn"
        )
    for rule in policy.classes:
        if rule.public:
            alone = sum(block.classes != () and block.std == 0 and rule.name in block.classes for block in header.blocks)
            remarks.note(
                f"class {rule.name} is public: its contributions are neither clipped nor noised and no epsilon is claimed for "
                f"them; {alone} blocks that it may touch carry no noise, since no private class may touch them"
            )


def _remark_draws(run: Replay, remarks: Remarks) -> None:
    """Says what of public draws is the trainer's record alone: who was drawn at random, and steps of which nobody is recorded.

    Under a signed order those due are derived, and a DRAW leaf with others is a finding; a charged step without any is none,
    since a run that was interrupted leaves such steps behind.
    """
    if not run.header.policy.sampling.turns:
        remarks.qualify("DRAWS_TOLD")
    missing = run.charged - run.draws
    if missing:
        steps = "1 charged step has" if missing == 1 else f"{missing} charged steps have"
        told = "were they run, whoever took part has an occurrence that no epsilon counts"
        remarks.qualify("DRAWS_TOLD", f"{steps} no DRAW leaf, as after an interruption: {told}")


def charged_noise_phases(run: Replay) -> tuple[tuple[int, float, int], ...]:
    """Returns first step, factor on the schedule, and charged steps of each phase; nothing where the noise does not vary."""
    phases = run.header.phases
    if phases.scales == (MICRO,):
        return ()
    return tuple(zip(phases.firsts, map(from_micro, phases.scales), run.charged_in_phases, strict=True))


def _caveats(run: Replay) -> Iterator[str]:
    """Says what belongs beside the figures of the accountant, per class: of a contribution at its presets over all charged
    steps or, where occurrences are public, of the one that took part most."""
    header = run.header
    for index, rule in enumerate(header.policy.classes):
        if rule.public:
            continue
        if header.occurrences_public:
            loss = max((item.loss for item in run.register.by_number if item.class_index == index), default=0.0)
            phases = accountants.released_once(loss)
        else:
            multipliers = run.expenditure.multipliers(index, rule.bounds)
            steps = run.expenditure.dearest_steps(run.charged_phases)
            phases = tuple(run.expenditure.charged_phases(index, multipliers, steps))
        told = caveat(phases, header.delta, header.accountant.name)
        if told:
            yield f"class {rule.name}: {told}"
