"""Every arm on a regression onto a matrix of rank 4, from several starts and gauges: minutes on one thread.

Contributions are (x, y) with x standard normal and y = (base + Z*) x + noise; the loss is |y - (base + A B^T) x|^2 / 2. A start
that is spectral takes its product from the base. The error is |A B^T - target|^2 less what the nearest matrix of rank 4 leaves,
over |Z*|^2, which is the excess risk on new data.

A gradient of one contribution has rank one, so norms and sums need no gradient of its own; a test holds them to the naive way.
All trials of an arm, pairs of a rate and a clip norm, run as one batch, with draws and noise of their seed in common.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.prism.arms import ARMS, CONTROLS, OURS, Arm, Frozen, Kept, starts
from dptrain.geometry import Geometry, LoraTangent
from recipes.correlated_noise import Results

CHOOSING, REPORTING = (101, 102), (1, 2, 3, 4, 5)
CLIPS = tuple(0.01 * 10.0 ** (k / 2) for k in range(7))
RATES = {True: tuple(2.0**k for k in range(-12, 0)), False: tuple(2.0**k for k in range(-8, 4))}
"""Learning rates of adaptive arms, and rates of the others, whose learning rate is the rate over the clip norm."""
LARGE = 1e3
"""Size of a factor at which a trial counts as failed."""
ALL = ARMS | CONTROLS


@dataclass(frozen=True)
class Setting:
    """Sizes of the problem and its start. Defaults: 64 by 64, rank 4, 2,000 contributions, 300 steps of 64 on average."""

    start: str = "balanced"
    scale: float = 0.1
    gauge: float = 1.0
    m: int = 64
    n: int = 64
    rank: int = 4
    contributions: int = 2000
    q: float = 0.032
    steps: int = 300
    sigma: float = 1.10

    @property
    def label(self) -> str:
        """Returns the start in a few words."""
        return f"balanced {self.scale:g}, gauge {self.gauge:g}" if self.start == "balanced" else self.start


SETTINGS = (
    Setting("zero"), *(Setting("balanced", scale, gauge) for gauge in (1.0, 10.0) for scale in (0.1, 1.0)), Setting("spectral")
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """The data of several seeds. x (S, N, n), y (S, N, m); target, A, B for each seed; scale |Z*|^2 and floor, (S,)."""

    x: torch.Tensor
    y: torch.Tensor
    target: torch.Tensor
    A: torch.Tensor
    B: torch.Tensor
    scale: torch.Tensor
    floor: torch.Tensor


def problem(setting: Setting, seeds: Sequence[int]) -> Problem:
    """Draws the data, the target and the start of every seed; in float32."""
    parts = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int, generator: torch.Generator = generator) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        m, n, r = setting.m, setting.n, setting.rank
        sizes = torch.linspace(2.0, 0.5, r, dtype=torch.float64)
        change = torch.linalg.qr(draw(m, r))[0] * sizes @ torch.linalg.qr(draw(n, r))[0].mT
        spectrum = 2.0 * torch.arange(1, min(m, n) + 1, dtype=torch.float64) ** -0.5
        left, right = (torch.linalg.qr(draw(size, size))[0][:, : len(spectrum)] for size in (m, n))
        base = left * spectrum @ right.mT
        A, B = starts(setting.start, m, n, r, generator, scale=setting.scale, gauge=setting.gauge, base=base)
        target = change + A @ B.mT if setting.start == "spectral" else change
        x = draw(setting.contributions, n)
        y = x @ target.mT + 0.1 * draw(setting.contributions, m)
        floor = torch.linalg.svdvals(target)[r:].square().sum()
        parts.append([value.float() for value in (x, y, target, A, B, change.square().sum(), floor)])
    return Problem(*(torch.stack(values) for values in zip(*parts, strict=True)))


def norms(at: Geometry, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Returns the norm of the coordinates of each contribution's gradient, residual x^T.

    Args:
        residual: (L, b, m). x: (L, b, n).

    Returns:
        (L, b).
    """
    A, B = at.tensors
    squares = x.square().sum(-1)
    if isinstance(at, LoraTangent):
        w, u = x @ at.V, residual @ at.U
        squares = (squares - w.square().sum(-1)).clamp_min(0.0)
    else:
        w, u = x @ B, residual @ A
    second = 0.0 if isinstance(at, Frozen) else squares * u.square().sum(-1)
    return (residual.square().sum(-1) * w.square().sum(-1) + second).sqrt()


def train(
    arm: Arm, setting: Setting, seeds: Sequence[int], rates: Sequence[float], clips: Sequence[float] | None
) -> torch.Tensor:
    """Trains one trial for each seed and each pair of a rate and a clip norm; returns their errors, (S, K).

    A trial whose factors grow past 1,000 has failed: its error is infinite.

    Args:
        rates, clips: as long as there are trials; clips None trains without clipping and without noise.
    """
    data, S, K = problem(setting, seeds), len(seeds), len(rates)
    L, expected = S * K, setting.q * setting.contributions

    def each(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32).repeat(S)[:, None, None]

    def spread(value: torch.Tensor) -> torch.Tensor:
        return value[:, None].expand(S, K, *value.shape[1:]).reshape(L, *value.shape[1:])

    C = None if clips is None else each(clips)
    lr = each(rates) if arm.adaptive or C is None else each(rates) / C
    tau = 0.0 if C is None else setting.sigma * C / expected
    first = A, B = spread(data.A).clone(), spread(data.B).clone()
    draws = [torch.Generator().manual_seed(1000 + seed) for seed in seeds]
    noise = [torch.Generator().manual_seed(2000 + seed) for seed in seeds]
    alive, kept = torch.ones(L, 1, 1), Kept()
    for _ in range(setting.steps):
        x, y, there = _drawn(data, setting, draws)
        x, y, there = spread(x), spread(y), spread(there)
        A, B = arm.before(A, B)
        at = arm.geometry(A, B)
        residual = ((x @ B) @ A.mT - y) * there[..., None]
        factor = there
        if C is not None:
            factor = there * (C[:, :, 0] / norms(at, residual, x).clamp_min(1e-12)).clamp_max(1.0)
        weighted = residual * factor[..., None]
        released = at.coordinates(weighted.mT @ (x @ B) / expected, x.mT @ (weighted @ A) / expected)
        if C is not None:
            drawn = [torch.stack([torch.randn(f.shape[1:], generator=g) for g in noise]) for f in (A, B)]
            released = at.project(*(value + spread(z) * tau for value, z in zip(released, drawn, strict=True)))
        released = tuple(value * alive for value in released)
        moved = arm.step(kept, at, released, lr, tau)
        largest = torch.stack([value.abs().amax((-2, -1)) for value in moved]).amax(0)
        alive = alive * (largest < LARGE)[:, None, None]  # not a number is not less either
        A, B = (torch.where(alive > 0, value, start) for value, start in zip(moved, first, strict=True))
    left = (A @ B.mT - spread(data.target)).square().sum((-2, -1)) - spread(data.floor)
    error = torch.where(alive[:, 0, 0] > 0, left / spread(data.scale), torch.inf)
    return error.reshape(S, K)


def _drawn(data: Problem, setting: Setting, draws: Sequence[torch.Generator]) -> tuple[torch.Tensor, ...]:
    """Draws each contribution with the sampling rate, for each seed; pads with rows that count 0."""
    masks = [torch.rand(setting.contributions, generator=generator) < setting.q for generator in draws]
    places = [mask.nonzero()[:, 0] for mask in masks]
    longest = max(len(found) for found in places)
    index = torch.zeros(len(places), max(longest, 1), dtype=torch.int64)
    there = torch.zeros(index.shape)
    for row, found in enumerate(places):
        index[row, : len(found)], there[row, : len(found)] = found, 1.0
    rows = torch.arange(len(places))[:, None]
    return data.x[rows, index], data.y[rows, index], there


def trials(arm: Arm, private: bool) -> tuple[list[float], list[float] | None]:
    """Returns rates and clip norms to try: as many for every arm."""
    rates = RATES[arm.adaptive]
    if not private:
        return list(rates), None
    pairs = [(rate, clip) for rate in rates for clip in CLIPS]
    return [rate for rate, _ in pairs], [clip for _, clip in pairs]


def measured(name: str, setting: Setting, private: bool) -> dict[str, Any]:
    """Chooses rate and clip norm of an arm on some seeds, and returns the errors of others."""
    arm = ALL[name]
    rates, clips = trials(arm, private)
    chosen = train(arm, setting, CHOOSING, rates, clips).mean(0)
    best = int(chosen.argmin())
    rate, clip = rates[best], None if clips is None else clips[best]
    errors = train(arm, setting, REPORTING, [rate], None if clip is None else [clip])[:, 0]
    edge = rate in (RATES[arm.adaptive][0], RATES[arm.adaptive][-1]) or clip == CLIPS[-1]
    if clip == CLIPS[0]:  # below every norm it makes no difference any more: no edge
        edge = edge or bool((chosen[best + 1] - chosen[best]).abs() > 0.02 * chosen[best])
    return {
        "trials": len(rates), "rate": rate, "clip": clip, "edge": edge, "chosen": round(float(chosen[best]), 5),
        "errors": [round(float(value), 5) if math.isfinite(value) else None for value in errors],
    }  # fmt: skip


def run(results: Results, arms: Sequence[str] = tuple(ALL), settings: Sequence[Setting] = SETTINGS) -> None:
    """Measures what is not in the results yet."""
    for private in (True, False):
        for setting in settings:
            for name in arms:
                key = {"part": "toy", "arm": name, "private": private, **asdict(setting)}
                results.once(key, lambda key, s=setting, p=private: measured(key["arm"], s, p))


def cell(row: Mapping[str, Any]) -> str:
    """Writes mean error and its spread over seeds; an asterisk says that a choice lies at the edge of the grid."""
    errors = row["errors"]
    if None in errors:
        return "diverged"
    return f"{statistics.mean(errors):.4f} ± {statistics.stdev(errors):.4f}" + ("*" if row["edge"] else "")


def lines_of(rows: Sequence[Mapping[str, Any]], private: bool = True) -> Iterator[str]:
    """Yields a table: a row for each arm, a column for each start, and the ratio of the best baseline to the best of ours."""
    own = [row for row in rows if row["part"] == "toy" and row["private"] is private]
    labels = [setting.label for setting in SETTINGS]
    yield f"| {'private' if private else 'without privacy'} | " + " | ".join(labels) + " |"
    yield "|---" * (len(labels) + 1) + "|"
    finite: dict[str, dict[str, list[float]]] = {label: {} for label in labels}
    for name, arm in ALL.items():
        found = {Setting(row["start"], row["scale"], row["gauge"]).label: row for row in own if row["arm"] == name}
        for label, row in found.items():
            if label in finite and None not in row["errors"]:
                finite[label][name] = row["errors"]
        yield f"| {arm.title} | " + " | ".join(cell(found[label]) if label in found else "not run" for label in labels) + " |"
    for told, middle, rivals in (
        ("means of seeds", statistics.mean, ARMS),
        ("medians of seeds", statistics.median, ARMS),
        ("medians, with combinations", statistics.median, ALL),
    ):
        ratios = []
        for label in labels:
            found = {name: middle(errors) for name, errors in finite[label].items()}
            ours = [value for name, value in found.items() if name in OURS]
            others = [value for name, value in found.items() if name in rivals and name not in OURS]
            ratios.append(f"{min(others) / min(ours):.2f}" if ours and others else "not run")
        yield f"| best other / best of ours, {told} | " + " | ".join(ratios) + " |"
