"""Computes who may have influenced a part of the model and at what cost, and judges RELEASE leaves.

Source: docs/guarantee.md, statement D. An edge leads from class k to every block that k may write, and from a block to every
class whose forward reads it. Without a path from k to any block of an artifact, the artifact is a function of everything but
the contributions of k.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from attest.schema import declared
from attest.schema.quick import Array
from ledger.accountants import to_micro_up
from ledger.errors import LeafRefused, ReleaseRefused
from ledger.leaves import Header, Release
from ledger.leaves.kinds import ID, MICRO, TRUTH, UINT, WORDS, Checked
from ledger.merkle import Frontier, leaf_hash, root
from ledger.replay.contributions import Contribution
from ledger.replay.state import Expenditure, RunState


@dataclass(frozen=True, slots=True)
class ClassFigures(Checked):
    """Promises to the contributions of a class in a released model; epsilons are null for a public class."""

    CDDL: ClassVar = "released-class"
    TELLS: ClassVar = ("name", " of class {}")
    name: str = declared(1, ID, "Name of the class.")
    contributions: int = declared(2, UINT, "How many were ever admitted.")
    withdrawn: int = declared(3, UINT, "How many of them were withdrawn.")
    epsilon_micro: int | None = declared(
        4,
        MICRO,
        "Epsilon of the contribution that spent most, rounded up, under zero-out adjacency; of a run that stopped early that of"
        " its whole planned horizon with all redo steps.",
        nil=True,
        needs="replace_micro",
    )
    replace_micro: int | None = declared(
        5, MICRO, "The most if content is replaced, likewise.", nil=True, needs="epsilon_micro"
    )


@dataclass(frozen=True, slots=True)
class Artifact(Checked):
    """A part of the model that can be released by itself."""

    CDDL: ClassVar = "artifact"
    TELLS: ClassVar = ("name", " of artifact {}")
    name: str = declared(1, WORDS, "`full`, `base`, or `adapter:NAME` for every adapter that a class is bound to.")
    blocks: tuple[int, ...] = declared(2, Array(UINT), "Places of the blocks of the header that it has.")
    influenced_by: tuple[bool, ...] = declared(
        3, Array(TRUTH), "Per class of the policy, in its order, whether its influence may be in it."
    )


def influenced(
    writes: Mapping[str, Collection[int]], reads: Mapping[str, Collection[int]], blocks: Collection[int]
) -> frozenset[str]:
    """Returns the classes from which a path leads to one of these blocks, by the blocks that each may write and reads.

    Guarantee: of a class that is not returned, no contribution has any influence on the blocks, at any step: exactly, if no
    contribution of a class reads or writes other blocks than are said here.
    """
    reached = {name for name, written in writes.items() if not frozenset(blocks).isdisjoint(written)}
    pending = list(reached)
    while pending:
        seen = frozenset(reads[pending.pop()])
        found = {name for name, written in writes.items() if name not in reached and not seen.isdisjoint(written)}
        reached |= found
        pending += found
    return frozenset(reached)


def artifacts(header: Header, *, final: bool) -> tuple[Artifact, ...]:
    """Returns the full model, its base without the adapters that classes are bound to, and each of these adapters.

    Guarantee: Computed from the header alone, by the blocks that it says each class to read: all of them where the policy does
    not narrow forwards, since all adapters are active then. A part is free of the influence of a class only if no path leads to
    it. Of one that some class may touch this takes statement A, which a policy that narrows forwards requires, and weights with
    which the run went to its signed end: which step is taken may have been decided by looking at all of the model.

    Args:
        final: whether the weights are known to be those at the signed end. Else every class counts as one that reads every
            block.
    """
    classes = header.policy.classes
    writes = {profile.class_name: frozenset(profile.blocks) for profile in header.profiles}
    everything = frozenset(range(len(header.blocks)))
    reads = header.reading if final else dict.fromkeys(writes, everything)
    adapters: dict[str, frozenset[int]] = {}
    for rule in classes:
        if rule.depth.adapter is not None:
            adapters[rule.depth.adapter] = adapters.get(rule.depth.adapter, frozenset()) | writes[rule.name]
    parts = {"full": everything, "base": everything.difference(*adapters.values())}
    parts |= {f"adapter:{name}": own for name, own in sorted(adapters.items())}
    found = []
    for name, own in parts.items():
        reached = influenced(writes, reads, own)
        found.append(Artifact(name, tuple(sorted(own)), tuple(rule.name in reached for rule in classes)))
    return tuple(found)


def is_final(run: RunState) -> bool:
    """Tells whether a run went to its signed end, so that what it charged is what it was planned to charge or more."""
    return run.closed and run.position == run.header.policy.steps


def class_costs(
    run: RunState, spent: Expenditure | None = None, *, admitted: int | None = None, final: bool | None = None
) -> tuple[tuple[float, float] | None, ...]:
    """Returns what a model of this run costs the contributions of each class: the largest epsilon, and with content replaced.

    Guarantee: Upper bounds for every contribution of the class, at the policy's delta; None for a public class, of which
    nothing is promised. Of a run that has not gone to its signed end they are those of the planned horizon and all steps that
    may be done again: when to stop may have been decided by looking at the model, and an epsilon up to there would say nothing.
    So the figures of an earlier release can be had later too; where steps were done again since, in a phase of more noise than
    the least, they may be above those of its moment, and never below.

    Args:
        admitted: count the first contributions only, as many as had been admitted by a release; by default all.
        final: whether the run had gone to its signed end by then; by default whether it has.

    Raises:
        ReleaseRefused: code HORIZON, the run stopped early and its occurrences are public, so that no horizon has an epsilon.
    """
    header = run.header
    if final is None:
        final = is_final(run)
    if header.occurrences_public and not final:
        raise ReleaseRefused(
            "HORIZON",
            f"the run is at step {run.position} of {header.policy.steps}, {'closed' if run.closed else 'open'}, and "
            "occurrences are public, so that what its horizon costs is not known; go on to the last step and close the run",
        )
    counting = spent or run.expenditure
    most = [None if rule.public else (0.0, 0.0) for rule in header.policy.classes]
    alike = {(one.terms, one.until, one.loss): one for one in run.register.by_number[:admitted]}
    for contribution in alike.values():
        found = most[contribution.class_index]
        if found is not None:
            own, replaced = _cost(run, counting, contribution, final=final)
            most[contribution.class_index] = max(found[0], own), max(found[1], replaced)
    return tuple(most)


def class_figures(run: RunState) -> tuple[ClassFigures, ...]:
    """Returns the same, rounded up, with the number of contributions of each class."""
    counts, withdrawn = Counter(c.class_index for c in run.register.by_number), run.register.withdrawn
    rounded = [(None, None) if cost is None else tuple(map(to_micro_up, cost)) for cost in class_costs(run)]
    return tuple(
        ClassFigures(rule.name, counts[place], withdrawn[place], *rounded[place])
        for place, rule in enumerate(run.header.policy.classes)
    )


def _cost(run: RunState, spent: Expenditure, contribution: Contribution, *, final: bool) -> tuple[float, float]:
    if run.header.occurrences_public:
        return spent.of_loss(contribution.loss), spent.of_loss(4 * contribution.loss)
    place, z = contribution.class_index, spent.of_contribution(contribution)
    if final:
        steps = spent.phase_steps(contribution, run.charged_phases)
        own = spent.epsilon(contribution, run.charged_phases, run.charged_attempt)
    else:
        steps = ahead(run, spent, contribution)
        levels = spent.copies.most(run.header.policy.redo_steps)
        return spent.of_group(place, z, steps, levels=levels), spent.replace_of_group(place, z, steps, levels)
    return own, spent.replace_of_group(place, z, steps)


def planned(run: RunState, contribution: Contribution) -> float:
    """Returns what a contribution had spent at the end of the horizon, with all steps that may be done again, had it stayed."""
    spent = run.expenditure
    z, levels = spent.of_contribution(contribution), spent.copies.most(run.header.policy.redo_steps)
    return spent.of_group(contribution.class_index, z, ahead(run, spent, contribution), levels=levels)


def ahead(run: RunState, spent: Expenditure, contribution: Contribution) -> tuple[int, ...]:
    """Returns the steps per phase that a contribution can ever be charged for, had it stayed to the end; of secret draws."""
    until = run.charged_phases if contribution.until is None else contribution.until.charged
    since, planned = contribution.terms.since.charged, planned_steps(run)
    most = (max(whole - before, so_far - before) for whole, before, so_far in zip(planned, since, until, strict=True))
    return spent.dearest_steps(most)


def planned_steps(run: RunState) -> tuple[int, ...]:
    """Returns the steps that the policy can ever charge: its horizon, and what may be redone where noise is least, all of it in
    the turn of any group; per phase and group (`RunState.charged_phases`)."""
    phases, policy = run.header.phases, run.header.policy
    steps, groups = list(run.expenditure.count_steps(1, policy.steps)), policy.sampling.groups
    weakest = min(range(len(phases.scales)), key=lambda phase: phases.scales[phase])
    for place in range(weakest * groups, (weakest + 1) * groups):
        steps[place] += policy.redo_steps
    return tuple(steps)


def withdrawals_root(withdrawals: Mapping[bytes, int], size: int) -> tuple[int, bytes]:
    """Returns how many contributions were withdrawn by a size of the ledger, and the RFC 6962 root over their hashes.
    `withdrawals`: position of the WITHDRAW leaf by descriptor hash, in order, those that matched nothing included."""
    found = [descriptor_hash for descriptor_hash, seq in withdrawals.items() if seq < size]
    return len(found), root(found)


@dataclass(frozen=True, slots=True)
class Recorded:
    """Tells of a release, as far as the ledger does. `final`: whether the run had gone to its signed end, so that what it had
    charged is all that it ever charges."""

    leaf: Release
    admitted: int
    withdrawn: int
    final: bool


class Releases:
    """Judges the RELEASE leaves of a run: each stands right behind the checkpoint that it cites, and tells of it truly."""

    def __init__(self, root_at: Callable[[int], bytes]) -> None:
        """Takes what returns the root over the first leaves, as many as it is asked for."""
        self.recorded: list[Recorded] = []
        self._root_at = root_at
        self._withdrawn = Frontier()

    def withdrawn(self, descriptor_hash: bytes) -> None:
        """Takes the hash of a WITHDRAW leaf, each once."""
        self._withdrawn.append(leaf_hash(descriptor_hash))

    @property
    def withdrawals_root(self) -> bytes:
        """Returns the root over all withdrawals so far, as `withdrawals_root` computes it."""
        return self._withdrawn.root()

    def take(self, leaf: Release, run: RunState) -> Iterator[LeafRefused]:
        """Yields what is wrong with a RELEASE leaf, and records it either way."""
        self.recorded.append(Recorded(leaf, len(run.register.by_number), len(run.withdrawals), is_final(run)))
        if leaf.size != leaf.seq:
            yield LeafRefused("RELEASE", f"a release cites the {leaf.seq} leaves before it, this one cites {leaf.size}")
            return
        if self._root_at(leaf.size) != leaf.root:
            yield LeafRefused("RELEASE", f"the root at size {leaf.size} is not the one that the release cites")
        expected = self.withdrawals_root
        if leaf.withdrawals_root != expected:
            told = f"the root over the withdrawals is {expected.hex()}, not {leaf.withdrawals_root.hex()}"
            yield LeafRefused("RELEASE", told)
        if leaf.step != run.position:
            yield LeafRefused("RELEASE", f"the last released step is {run.position}, the leaf says {leaf.step}")
