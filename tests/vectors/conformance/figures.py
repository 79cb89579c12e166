"""Vectors of numbers: how noise is rounded, what a multiplier is, who is due in a step, and epsilons."""

import math
from collections.abc import Iterator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

from attest import cbor, schedule
from attest.descriptor import SignedBounds
from attest.policy import MechanismRule, Policy
from attest.policy.mechanism import Bands, Buffers
from attest.schedule import allocation
from attest.schedule.turns import Order, permutation
from ledger import accountants
from ledger.accountants import Phase
from ledger.accountants.correlated import Banded, Dense, strategy_of
from ledger.accountants.correlated.turns import Turns
from ledger.accountants.gaussian import epsilon_of_mu
from ledger.accountants.pld.composed import COARSE_BELOW, INTERVAL, UNSAMPLED_BELOW
from ledger.accountants.pld.contour import LEAST_REACH, LEAST_WIDTH, MOST_RATE
from ledger.replay.state import Copies
from tests.vectors.conformance import correlated, groups
from tests.vectors.conformance.honest import ordered
from tests.vectors.conformance.values import told
from tests.worlds.ledgers import signed_policy

Row = dict[str, Any]

MICRO = 10**6


def stds() -> Iterator[Row]:
    """Yields presets of the private classes of a block, and its std, in phases too."""
    for presets in (
        [(1_000_000, 1_000_000)],
        [(1_100_000, 333_333)],
        [(1_000_000, 1_000_000), (3_000_000, 500_000)],
        [(1_234_567, 7_654_321), (999_999, 9_452_999)],
        [(10**15, 10**15)],
        [(1, 1)],
        [(1_073_619, 995_898)],  # whose square a library's power gets wrong
    ):
        std = schedule.block_std([SignedBounds(clip, sigma) for sigma, clip in presets])
        scales = (1_000_000, 1_250_000, 3_333_333)
        row = {"sigma_and_clip": [list(pair) for pair in presets], "std": {"float": std}, "variance": {"float": std * std}}
        yield row | {"phases": [[scale, {"float": schedule.phase_std(std, scale)}] for scale in scales]}


def effective() -> Iterator[Row]:
    """Yields stds and shares of the blocks of a class, and its effective std."""
    for levels, shares in (
        ([1.5, 1.0, 2.0], []),
        ([1.5, 1.0, 2.0], [1_000_000, 1_000_000, 1_000_000]),
        ([0.7, 0.9], [1_000_000, 2_000_000]),
        ([0.1, 0.3, 0.3], [500_000, 1_000_000, 2_000_000]),
        ([1.0, 1e9], [1, 10**9]),
    ):
        found = allocation.effective_std(levels, shares)
        yield {"stds": [{"float": level} for level in levels], "shares": shares, "effective": {"float": found}}


def multipliers() -> Iterator[Row]:
    """Yields signed bounds and the effective std of their class, and the multiplier."""
    for sigma, clip, std in (
        (1_000_000, 1_000_000, 1.0),
        (1_000_000, 999_999, 1.0),
        (3_000_001, 333_333, 1.5),
        (1_700_000, 1_000_000, 1.0),
        (1_100_000, 7, 0.3666663),
        (10**15, 1, 1e-12),
    ):
        z = schedule.effective_multiplier(SignedBounds(clip, sigma), [std])
        yield {
            "sigma": sigma,
            "clip": clip,
            "effective": {"float": std},
            "multiplier": {"float": z},
            "loss": {"float": 1.0 / (z * z)},
        }


def per_sample() -> Iterator[Row]:
    """Yields bounds of those drawn that may touch a block, with the variance that they bring, and the loss of one clip norm."""
    for bounds, clip in (
        ([(1_000_000, 1_000_000)], 1_000_000),
        ([(1_000_000, 1_000_000), (3_000_000, 500_000)], 500_000),
        ([(1_234_567, 765_432), (3_000_001, 333_333), (4_000_000, 250_000)], 250_000),
    ):
        variance = sum(SignedBounds(own, sigma).variance for sigma, own in bounds)
        std = schedule.realised_std(variance)
        told = {"variance": str(variance), "recorded": {"float": std * std}}
        yield {
            "sigma_and_clip": [list(pair) for pair in bounds],
            **told,
            "clip": clip,
            "loss": {"float": schedule.occurrence_loss(SignedBounds(clip, 1), variance)},
        }


def turns() -> Iterator[Row]:
    """Yields who is due in each step of a run: of two classes with periods of 4 and 3 steps."""
    classes = [0, 1, 0, 0, 1, 1, 0, 1, 0, 0]
    for order in ("cyclic", "shuffled"):
        policy: Policy = signed_policy(**ordered(order)).policy
        for run_id in (bytes(16), bytes(range(16))):
            due = Order(policy, run_id, classes)
            row = {"order": order, "periods": [4, 3], "run_id": run_id.hex(), "classes": classes}
            yield row | {"due": [due.due(step) for step in range(1, 13)]}


STRATEGIES: list[tuple[MechanismRule, int, tuple[int, ...]]] = [
    (correlated.BANDS, 12, (4, 3)),
    (correlated.BANDS, 40, (1, 2, 5, 60)),
    (correlated.BANDS, 3, (2,)),
    (correlated.BANDS, 1, (1,)),
    (correlated.NORMALIZED, 11, (4, 3)),
    (correlated.NORMALIZED, 40, (1, 2, 7)),
    (correlated.NORMALIZED, 4, (2,)),
    (correlated.INVERSE, 12, (4, 3)),
    (correlated.INVERSE, 40, (1, 7, 60)),
    (correlated.BUFFERS, 12, (4, 3)),
    (correlated.BUFFERS, 40, (1, 7)),
    (correlated.INDEPENDENT, 6, (2,)),
    (correlated.BANDS_IN_FILE, 12, (4, 3)),
    (correlated.COLUMNS, 12, (4, 3, 1)),
    (correlated.PLAIN_COLUMNS, 12, (1, 5)),
    (correlated.DENSE, 12, (4, 3, 1)),
    (correlated.NARROW, 12, (4, 2)),
    (MechanismRule("banded_toeplitz", Bands(bands=3, coefficients=(1 << 20, -1_048_575, 3))), 30, (1, 2, 3)),
    (MechanismRule("banded_toeplitz", Bands(bands=3, coefficients=(1 << 20, -1_048_575, 3), normalized=True)), 30, (1, 2)),
    (MechanismRule("banded_inverse", Bands(bands=4, coefficients=(1 << 20, 900_001, 0, -77_777))), 20, (1, 3)),
    (MechanismRule("buffered_toeplitz", Buffers(decays=(1, (1 << 40) - 1, 1 << 39), scales=(1, 1 << 38, 1 << 38))), 30, (2, 5)),
]
"""Strategies, the steps of the policy, and periods of classes."""


def strategies() -> Iterator[Row]:
    """Yields strategies of a policy, and what turns under them add at a multiplier of 1, by the period of a class."""
    for rule, steps, periods in STRATEGIES:
        found = strategy_of(rule, steps)
        signed = cbor.decode(signed_policy(**correlated.under(rule)).policy.to_cbor())
        row: Row = {"mechanism": told(signed[13]), "steps": steps}
        if rule.coefficients is not None:
            row["file"] = rule.coefficients.hex()
        if not isinstance(found, Banded | Dense):
            row["column"] = _floats(found.column(steps))
        row |= {"largest": {"float": float(found.norms_squared(steps).max())}}
        row |= {"slack": {"float": found.slack(steps)}, "classes": []}
        for period in periods:
            turns = Turns(found, steps, period)
            added = [turns.occurrence(step) for step in range(steps)]
            again = [_floats(turns.again(step)) for step in sorted({0, steps // 2, steps - 1})]
            said = {"period": period, "occurrences": _floats(added), "again": again}
            row["classes"].append(said | {"most": {"float": turns.most()}, "dearest": {"float": turns.dearest_again()}})
        yield row


LIVES: list[tuple[MechanismRule, int, list[list[Any]]]] = [
    (groups.THREE, 3, [["charge", 1, 4], ["charge", 5, 8], ["resume", 4], ["charge", 5, 8]]),
    (groups.THREE, 3, [["charge", 1, 4], ["resume", 4], ["charge", 5, 8], ["resume", 0], ["charge", 1, 4]]),
    (groups.THREE, 5, [["charge", 1, 5], ["resume", 1], ["charge", 2, 5], ["resume", 3], ["charge", 4, 4], ["charge", 5, 9]]),
    (groups.THREE, 3, [["charge", 1, 7], *2 * [["resume", 5], ["charge", 6, 6], ["resume", 6], ["charge", 7, 9]]]),
    (groups.THREE, 3, [["charge", 1, 6], ["resume", 2], ["resume", 5], ["charge", 6, 7], ["resume", 0], ["charge", 1, 5]]),
    (groups.TWO_NORMALIZED, 4, [["charge", 1, 4], *3 * [["resume", 3], ["charge", 4, 4]], ["charge", 5, 8]]),
    (groups.GAUSSIAN, 3, [["charge", 1, 4], ["resume", 2], ["charge", 3, 6]]),
]
"""Noise, groups, and what happens in a run."""


def copies() -> Iterator[Row]:
    """Yields how many draws of one contribution have 1, 2, .. copies at least, in runs of which steps are done again."""
    for rule, count, life in LIVES:
        policy: Policy = signed_policy(**groups.under(rule, count)).policy
        found = Copies(SimpleNamespace(policy=policy))  # type: ignore[arg-type]
        for what, *steps in life:
            (found.charge if what == "charge" else found.resume)(*steps)
        row: Row = {"mechanism": told(cbor.decode(policy.to_cbor())[13]), "groups": count, "life": life}
        yield row | {"at_least": [draws for draws, _ in found.levels()]}


def _floats(values: Any) -> list[Row]:
    return [{"float": float(value)} for value in values]


def permutations() -> Iterator[Row]:
    """Yields the order of the members of a class in a period."""
    for run_id, place, number, count in (
        (bytes(16), 0, 0, 5),
        (bytes(16), 1, 0, 5),
        (bytes(16), 0, 1, 5),
        (bytes(range(16)), 2, 70_000, 9),
    ):
        found = permutation(run_id, place, number, count)
        yield {"run_id": run_id.hex(), "class": place, "period": number, "members": count, "sorted": found}


def gaussian() -> Iterator[Row]:
    """Yields G(mu)."""
    for mu, delta in ((0.01, 1e-6), (0.5, 1e-6), (1.0, 1e-5), (1.0, 1e-12), (4.0, 1e-6), (30.0, 1e-6)):
        yield {"mu": {"float": mu}, "delta": {"float": delta}, "epsilon": {"float": epsilon_of_mu(mu, delta)}}


SCHEDULES: list[tuple[list[tuple[float, float, int]], float]] = [
    ([(1.0, 0.02, 8)], 1e-6),
    ([(3.0, 0.01, 8)], 1e-6),
    ([(1.0, 0.01, 1000)], 1e-5),
    ([(0.8, 0.05, 200)], 1e-6),
    ([(2.0, 0.02, 4), (1.25, 0.02, 4), (1.0, 0.02, 4)], 1e-6),
    ([(1.0, 0.02, 100), (2.0, 1.0, 1)], 1e-6),
    ([(1.0, 1.0, 8)], 1e-6),
    ([(5.0, 0.001, 10)], 1e-2),
    ([(3.0, 0.9, 8)], 1e-6),
    ([(0.25, 0.02, 8)], 1e-6),
    ([(0.01, 0.02, 2)], 1e-6),
    ([(1e6, 0.02, 8)], 1e-6),
]
"""Phases (z, q, steps) and delta."""


def epsilons(accountant: str) -> Iterator[Row]:
    """Yields schedules and epsilon by an accountant."""
    for phases, delta in SCHEDULES:
        found = accountants.epsilon_of_phases([Phase(*phase) for phase in phases], delta, accountant)
        row: Row = {"phases": [[{"float": z}, {"float": q}, steps] for z, q, steps in phases], "delta": {"float": delta}}
        row |= {"epsilon": {"float": found}, "recorded": math.ceil(Fraction(found) * MICRO)}
        if accountant == "pld":
            row["within"] = {"float": 1e-6 if ordinary(phases, delta, found) else 5e-5}
        yield row


def ordinary(phases: list[tuple[float, float, int]], delta: float, epsilon: float) -> bool:
    """Whether the error of docs/formats, "Epsilon", is the small one."""
    sampled = [(z, q) for z, q, _ in phases if q < 1.0 and z >= UNSAMPLED_BELOW]
    rest = sum(steps / (z * z) for z, q, steps in phases if q == 1.0 or z < UNSAMPLED_BELOW)
    interval = INTERVAL * max(1.0, rest / 100.0 if len(phases) > 1 else 1.0, *((COARSE_BELOW / z) ** 2 for z, _ in sampled))
    wide = ((z, q, 2.0 * math.pi * q / (z * interval)) for z, q in sampled)
    smooth = all(q <= MOST_RATE and w >= LEAST_WIDTH and z * math.log(w) >= LEAST_REACH for z, q, w in wide)
    return smooth and delta <= 0.01 and epsilon <= 100.0


def capped() -> Iterator[Row]:
    """Yields schedules, a cap on occurrences over all attempts, and epsilon by `pld`."""
    for phases, occurrences, delta in (
        ([(1.0, 0.5, 32)], 2, 1e-6),
        ([(1.0, 0.02, 8)], 2, 1e-6),
        ([(2.0, 0.5, 16), (1.0, 0.5, 16)], 20, 1e-6),
    ):
        found = accountants.epsilon_of_phases_capped([Phase(*phase) for phase in phases], occurrences, delta)
        row: Row = {"phases": [[{"float": z}, {"float": q}, steps] for z, q, steps in phases], "delta": {"float": delta}}
        yield row | {"occurrences": occurrences, "epsilon": {"float": found}, "within": {"float": 1e-6}}


def vectors() -> dict[str, Any]:
    """Returns all vectors of numbers."""
    return {
        "stds": list(stds()),
        "effective": list(effective()),
        "multipliers": list(multipliers()),
        "per_sample": list(per_sample()),
        "turns": list(turns()),
        "strategies": list(strategies()),
        "copies": list(copies()),
        "permutations": list(permutations()),
        "gaussian": list(gaussian()),
        **{name: list(epsilons(name)) for name in ("pld", "rdp", "moments")},
        "capped": list(capped()),
    }
