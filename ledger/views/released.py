"""The releases of a run: which weights left the house, whose influence may be in them, and what that costs each class.

The ledger has digests only. Which files they are says the manifest beside the weights (`dptrain release --check`).
"""

import math
from dataclasses import dataclass
from typing import Final

from ledger.errors import AccountantError, ReleaseRefused
from ledger.replay import Replay
from ledger.rules.influence import Artifact, artifacts, class_costs
from ledger.rules.releases import Recorded

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


@dataclass(frozen=True, slots=True)
class ReleaseRow:
    """One release, as its RELEASE leaf tells of it, with what follows from the leaves before it.

    Attributes:
        seq: position of the leaf.
        time: POSIX seconds of the leaf.
        step: last released step that the weights contain.
        size: number of leaves that the manifest cites.
        root: hex of the root of these.
        manifest_digest: hex of the SHA-256 of `release.cose`.
        artifacts_digest: hex of the digest over the rows of its files.
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


def release_rows(run: Replay) -> tuple[ReleaseRow, ...]:
    """Returns the last releases of a run, at most `MAX_LISTED`, in the order of their leaves."""
    known: dict[tuple[int, bool], Costs] = {}
    parts = artifacts(run.header) if run.releases.recorded else ()
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
        own = [
            None if cost is None else cost if path else (0.0, 0.0) for cost, path in zip(costs, part.influenced_by, strict=True)
        ]
        told.append(
            ReleasedPart(
                name=part.name,
                influenced_by=tuple(name for name, path in zip(names, part.influenced_by, strict=True) if path),
                epsilons=tuple(None if cost is None else cost[0] for cost in own),
                epsilons_replace=tuple(None if cost is None else cost[1] for cost in own),
            )
        )
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
