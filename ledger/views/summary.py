"""Tells a run in a few numbers: per class, per block of the model, and per release.

The ledger has digests only. Which files they are says the manifest beside the weights (`dptrain release --check`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import ge, le
from typing import Final

from attest.schema.cards import card_of
from ledger.errors import AccountantError, ReleaseRefused
from ledger.leaves import Header
from ledger.replay import Replay
from ledger.replay.contributions import Group, Moment, Terms
from ledger.replay.influence import Artifact, Recorded, artifacts, class_costs


def block_multipliers(header: Header) -> tuple[tuple[float | None, ...], ...]:
    """Returns, per block and class of the policy, the noise multiplier that the class's preset bounds have on that block alone.

    Guarantee: In every step a contribution at the preset bounds C and sigma of its class adds to block l at most ``C_l`` in
    norm, and at most ``s_l / sigma``: the noise of the block is at least ``z_l = max(sigma, s_l / C_l)`` times what it adds,
    and no contribution of the class is admitted with more permissive bounds. ``C_l`` is C, or its part by the shares where the
    policy has budgets; s_l that of the phase with least noise. Where the noise of a step follows its draw only sigma is known
    beforehand, and stands for z_l. It is a statement about the direct update of one block: what a whole run reveals, other
    blocks and later states included, is the epsilon of the class and nothing smaller (docs/mechanism).

    Returns:
        A row per block, an entry per class in the policy's order: None where the class may not touch the block, or is public.
    """
    columns = [_multipliers(header, place) for place in range(len(header.policy.classes))]
    return tuple(tuple(column.get(index) for column in columns) for index in range(len(header.blocks)))


def _multipliers(header: Header, place: int) -> dict[int, float]:
    """Returns these multipliers of one class, by the index of the block."""
    rule, touched = header.policy.classes[place], header.profiles[place].blocks
    if rule.public:
        return {}
    sigma, clip = rule.bounds.noise_multiplier, rule.bounds.clip_norm
    if header.per_sample:
        return dict.fromkeys(touched, sigma)
    own = {index: header.blocks[index] for index in touched}
    whole = math.sqrt(sum(block.share**2 for block in own.values()))
    return {index: max(sigma, block.std / (clip * (block.share / whole if whole else 1.0))) for index, block in own.items()}


MAX_LISTED: Final = 50
"""Releases told one by one; the export has the others."""

Costs = tuple[tuple[float, float] | None, ...]


@dataclass(frozen=True, slots=True)
class ReleasedPart:
    """A part of a released model.

    Attributes:
        name: ``full``, ``base``, or ``adapter:NAME``.
        influenced_by: names of the classes whose contributions may have any influence on it.
        epsilons: per class of the policy the largest epsilon of a contribution, under zero-out adjacency; 0 for a class without
            influence, None for a public one, infinite where no bound is known.
        epsilons_replace: the same under content replacement.
    """

    name: str
    influenced_by: tuple[str, ...]
    epsilons: tuple[float | None, ...]
    epsilons_replace: tuple[float | None, ...]

    _repr_html_ = card_of


@dataclass(frozen=True, slots=True)
class ReleaseRow:
    """One release, as its RELEASE leaf tells of it, with what follows from the leaves before it.

    Attributes:
        time: POSIX seconds of the leaf.
        step: last released step that the weights contain.
        size, root: of the leaves that the manifest cites, the root in hex.
        manifest_digest, artifacts_digest: hex, of `release.cose` and over the rows of its files.
        withdrawn: withdrawals entered before.
        planned_horizon: whether epsilons are those of the planned horizon, since the run had not gone to its signed end.
        parts: the whole model first, then its parts.
    """

    seq: int
    time: int
    step: int
    size: int
    root: str
    manifest_digest: str
    artifacts_digest: str
    withdrawn: int
    planned_horizon: bool
    parts: tuple[ReleasedPart, ...]

    _repr_html_ = card_of


def release_rows(run: Replay) -> tuple[ReleaseRow, ...]:
    """Returns the last releases of a run, at most `MAX_LISTED`, in the order of their leaves."""
    known: dict[tuple[int, bool], Costs] = {}
    parts = artifacts(run.header, final=False) if run.releases.recorded else ()  # of which step the weights are, no leaf says
    rows = []
    for item in run.releases.recorded[-MAX_LISTED:]:
        moment = (item.admitted, item.final)
        if moment not in known:
            known[moment] = _costs(run, item)
        rows.append(_row(run, item, parts, known[moment]))
    return tuple(rows)


def _costs(run: Replay, item: Recorded) -> Costs:
    try:
        return class_costs(run, admitted=item.admitted, final=item.final)
    except (AccountantError, ReleaseRefused):
        unbounded = (math.inf, math.inf)
        return tuple(None if rule.public else unbounded for rule in run.header.policy.classes)


def _row(run: Replay, item: Recorded, parts: tuple[Artifact, ...], costs: Costs) -> ReleaseRow:
    leaf, names = item.leaf, [rule.name for rule in run.header.policy.classes]
    told = []
    for part in parts:
        paths = list(zip(names, costs, part.influenced_by, strict=True))
        both = [(None, None) if cost is None else cost if path else (0.0, 0.0) for _, cost, path in paths]
        epsilons, replaced = zip(*both, strict=True)
        told.append(ReleasedPart(part.name, tuple(name for name, _, path in paths if path), epsilons, replaced))
    return ReleaseRow(
        seq=leaf.seq,
        time=leaf.time,
        step=leaf.step,
        size=leaf.size,
        root=leaf.root.hex(),
        manifest_digest=leaf.manifest_digest.hex(),
        artifacts_digest=leaf.artifacts_digest.hex(),
        withdrawn=item.withdrawn,
        planned_horizon=not item.final,
        parts=tuple(told),
    )


SPREAD_BINS: Final = 20
"""Bins of a distribution: enough to show two groups in a class, few enough to read each as a figure."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Holds the distribution of the epsilons of a class, withdrawn contributions included.

    Attributes:
        contributions: how many there are, at least one.
        quarter, median, three_quarters: as large a part of them, at least, has spent no more than this.
        counts: contributions per bin; `SPREAD_BINS` bins of equal width from 0 to ``most``, each with its lower end and without
            its upper, the last with both.
    """

    contributions: int
    least: float
    quarter: float
    median: float
    three_quarters: float
    most: float
    counts: tuple[int, ...]

    _repr_html_ = card_of


@dataclass(frozen=True, slots=True)
class ClassSummary:
    """One admissibility class at the end of what has been recorded.

    Attributes:
        public: whether it is public, so that nothing is promised: its noise multiplier and epsilons are None then.
        active: contributions in the pool.
        sampling_rate: probability of being drawn per step.
        noise_multiplier: smallest effective noise multiplier over its contributions and the phases charged to them, None
            without any.
        steps: most charged steps of one contribution.
        occurrences: most steps in which one contribution took part; None where draws are secret.
        epsilon: largest epsilon of one contribution, under zero-out adjacency, recomputed from the charges.
        epsilon_replace: largest epsilon of one contribution under content replacement; it may be another one's.
        blocks, coordinates: how many blocks the class touches, and how many parameters these have.
        spread: the distribution of epsilon over its contributions; None for a public class, and without any.
        epsilon_preset: epsilon at the class preset without caps (`preset_epsilon`), which hangs on no ADMIT leaf; None for a
            public class, and where the bounds of contributions are known to be signed.
    """

    name: str
    active: int
    withdrawn: int
    sampling_rate: float
    noise_multiplier: float | None
    steps: int
    epsilon: float | None
    epsilon_replace: float | None
    blocks: int
    coordinates: int
    public: bool = False
    occurrences: int | None = None
    spread: Spread | None = None
    epsilon_preset: float | None = None

    _repr_html_ = card_of


Charged = tuple[tuple[float, ...], tuple[int, ...]]
"""Multiplier and charged steps in each phase of the noise: an accounting group of a class, but for caps."""


def class_summaries(run: Replay) -> tuple[ClassSummary, ...]:
    """Returns one summary per class of the policy, charges after the last epoch included."""
    header, spent = run.header, run.expenditure
    groups: list[dict[Charged, float]] = [{} for _ in header.profiles]
    epsilons: list[Counter[float]] = [Counter() for _ in header.profiles]
    public_steps: dict[int, int] = {}
    occurrences, losses = [0] * len(header.profiles), [0.0] * len(header.profiles)
    for contribution in run.register.by_number:
        place = contribution.class_index
        occurrences[place] = max(occurrences[place], contribution.occurrences)
        losses[place] = max(losses[place], contribution.loss)
        if header.policy.classes[place].public:
            public_steps[place] = max(public_steps.get(place, 0), spent.steps(contribution, run.charged_phases))
            continue
        key = (spent.of_contribution(contribution), spent.phase_steps(contribution, run.charged_phases))
        epsilon = run.epsilon(contribution)
        groups[place][key] = max(groups[place].get(key, 0.0), epsilon)
        epsilons[place][epsilon] += 1
    summaries = []
    for place, (rule, totals) in enumerate(zip(header.policy.classes, run.totals(), strict=True)):
        q, replaced = float(rule.sampling_rate), 0.0
        if groups[place] and header.occurrences_public:
            replaced = spent.of_loss(4 * losses[place])
        elif groups[place]:
            replaced = max(spent.replace_of_group(place, *key) for key in undominated(groups[place]))
        blocks = header.profiles[place].blocks
        summaries.append(
            ClassSummary(
                name=rule.name,
                active=totals.active,
                withdrawn=totals.withdrawn,
                sampling_rate=q,
                noise_multiplier=min((_least(z, steps) for z, steps in groups[place]), default=None),
                steps=public_steps.get(place, max((sum(steps) for _, steps in groups[place]), default=0)),
                epsilon=None if rule.public else max(groups[place].values(), default=0.0),
                epsilon_replace=None if rule.public else replaced,
                blocks=len(blocks),
                coordinates=sum(header.blocks[index].coordinates for index in blocks),
                public=rule.public,
                occurrences=occurrences[place] if header.occurrences_public else None,
                spread=spread_of(epsilons[place]) if epsilons[place] else None,
            )
        )
    return tuple(summaries)


def undominated(groups: Iterable[Charged]) -> list[Charged]:
    """Returns the groups that may cost most, whatever epsilon is asked for.

    Guarantee: Any group that is left out has a returned one with no more noise and no fewer steps in every phase, whose epsilon
    bounds its own. Who costs most under zero-out need not cost most under content replacement: all that is returned counts.
    """
    found: list[Charged] = []
    for z, steps in sorted(groups, key=lambda group: (group[0], [-count for count in group[1]])):  # bounds come first
        if not any(all(map(le, least, z)) and all(map(ge, most, steps)) for least, most in found):
            found.append((z, steps))
    return found


def preset_epsilon(run: Replay, place: int) -> float | None:
    """Returns the epsilon of a contribution at the preset of its class, without a cap, admitted before the first charge.

    Guarantee: No contribution of the class whose signed bounds the policy takes has spent more, whatever its ADMIT leaf says: a
    smaller clip norm, a larger noise multiplier, a cap and a later admission only lower epsilon. Where occurrences are public
    it is that of one which took part as often as any, in each step behind the least noise of all charged phases. It is under
    zero-out adjacency; None for a public class, which promises none.

    Args:
        place: place of the class in the policy.
    """
    rule, spent = run.header.policy.classes[place], run.expenditure
    if rule.public:
        return None
    one = Group(Terms(place, rule.name, rule.bounds, 0, (0, 0), Moment(0, 0, (0,) * len(run.charged_phases))))
    if run.header.occurrences_public:
        one.loss = spent.dearest(run.register.by_number, place) / _least(spent.of_contribution(one), run.charged_in_phases) ** 2
    return run.epsilon(one)


def spread_of(epsilons: Mapping[float, int]) -> Spread:
    """Returns the distribution of these values, of which there is at least one, each with the times it occurs."""
    most, total, below = max(epsilons), sum(epsilons.values()), 0
    counts = [0] * SPREAD_BINS
    ranks: list[float] = []
    for value in sorted(epsilons):
        counts[min(int(value / most * SPREAD_BINS), SPREAD_BINS - 1) if 0 < most < math.inf else 0] += epsilons[value]
        below += epsilons[value]
        ranks += [value] * (4 * below // total - len(ranks))
    quarter, median, three_quarters, _ = ranks
    return Spread(total, min(epsilons), quarter, median, three_quarters, most, tuple(counts))


def _least(z: tuple[float, ...], steps: tuple[int, ...]) -> float:
    """Returns the smallest multiplier over the phases in which steps were charged; over all, if there are none."""
    return min((multiplier for multiplier, count in zip(z, steps, strict=True) if count), default=min(z))
