"""Compares arms on a task: all choose a start and a rate among as many trials, at one epsilon, and train with several seeds.

A trial is a start and a learning rate, at a clip norm that is a fixed part of the median norm of public examples in the arm's
own coordinates. What is chosen by is measured on public examples that are not those of the report.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import torch

from benchmarks.prism.arms import ARMS, OURS
from benchmarks.prism.harness import Plan, Recorder, fit, mean_of, start
from benchmarks.prism.tasks import TASKS, TWELVE, Ready
from ledger.accountants import calibrate
from recipes.correlated_noise import SELECTING, Results

DELTA = 1e-5
EPSILONS = (3.0, 1.0, 6.0)
"""Arms choose at the first."""
STARTS = ("zero", "spectral")
RATES = {True: (4e-3, 1.6e-2, 6.4e-2), False: (0.1, 0.5, 2.5)}
"""Learning rates of adaptive arms, and rates of the others: learning rates times the clip norm."""
CLIP = 0.5


def measured(ready: Ready, key: Mapping[str, Any], head_rate: float = 1e-2) -> dict[str, Any]:
    """Trains once; what came of it on public examples, before and after."""
    began, arm = time.perf_counter(), ARMS[key["arm"]]
    torch.manual_seed(key["seed"])
    model = ready.model()
    start(model, key["start"], 7000 + key["seed"])
    recorder = Recorder(model)
    q = ready.sizes["draws"] / ready.sizes["contributions"]
    sigma = None if key["epsilon"] is None else calibrate(key["epsilon"], q, ready.sizes["steps"], DELTA)
    plan = Plan(key["lr"], CLIP, sigma, q, ready.sizes["steps"], key["seed"], head_rate)
    public = {name: value[:128] for name, value in ready.public.items()}
    found: dict[str, Any] = {"sigma": sigma, **fit(recorder, arm, plan, ready.loss, ready.rows, public)}
    for name, rows in (("choosing", ready.choosing), ("reporting", ready.reporting)):
        value = mean_of(model, ready.measure, rows) if found["finite"] else float("nan")
        found[name] = round(value, 5) if value == value else -1e9
    for name, rows in (("choosing_loss", ready.choosing), ("loss", ready.reporting)):
        value = mean_of(model, ready.loss, rows) if found["finite"] else float("nan")
        found[name] = round(value, 5) if value == value else 1e9
    if ready.sample is not None and key["seed"] == 1:
        found["sample"] = ready.sample(model)
    return found | {"seconds": round(time.perf_counter() - began, 1)}


def run(
    results: Results, ready: Ready, arms: Sequence[str], epsilons: Sequence[float | None], seeds: Sequence[int],
    starts: Sequence[str] = STARTS, measure: Callable[[Ready, Mapping[str, Any]], dict[str, Any]] = measured,
) -> None:  # fmt: skip
    """Measures what is not in the results yet; epsilon None is training without privacy, which chooses for itself."""
    for epsilon in epsilons:
        tuned = epsilon if epsilon is None else next(e for e in epsilons if e is not None)
        for name in arms:
            common = {"part": "task", "task": ready.name, **ready.sizes, "arm": name}
            for begin, lr in product(starts, RATES[ARMS[name].adaptive]):
                key = common | {"epsilon": tuned, "start": begin, "lr": lr, "seed": SELECTING}
                results.once(key, lambda key: measure(ready, key))
            best = chosen(results.rows, common | {"epsilon": tuned})
            for seed in seeds:
                key = common | {"epsilon": epsilon, "start": best["start"], "lr": best["lr"], "seed": seed}
                results.once(key, lambda key: measure(ready, key))


def chosen(rows: Sequence[Mapping[str, Any]], common: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the trial with the best measure on the examples to choose with; the least loss on them decides between equals."""
    found = [row for row in rows if (common | {"seed": SELECTING}).items() <= row.items()]
    return max(found, key=lambda row: (row["choosing"], -row.get("choosing_loss", 0.0)))


def lines_of(rows: Sequence[Mapping[str, Any]], task: str) -> Iterator[str]:
    """Yields a table of a task: a row for each arm, a column for each epsilon, and the lead of ours over the best other arm."""
    own = [row for row in rows if row["part"] == "task" and row["task"] == task]
    last = own[-1]
    percent = bool(TASKS[task].labels)
    sizes = f"{last['contributions']:,} contributions, {last['steps']} steps of {last['draws']}"
    title = f"{TASKS[task].title}: {last['model']}, {sizes}"
    epsilons = [*sorted({row["epsilon"] for row in own if row["epsilon"] is not None}), None]
    yield f"| {title} | trials | " + " | ".join("no privacy" if e is None else f"ε = {e:g}" for e in epsilons) + " |"
    yield "|---" * (len(epsilons) + 2) + "|"
    means: dict[tuple[bool, float | None], list[float]] = {}
    for name, arm in ARMS.items():
        mine = [row for row in own if row["arm"] == name]
        if not mine:
            continue
        cells = []
        for epsilon in epsilons:
            found = [row for row in mine if row["epsilon"] == epsilon and row["seed"] != SELECTING]
            cells.append(cell(found, percent))
            if len(found) > 1:
                means.setdefault((name in OURS, epsilon), []).append(statistics.mean(row["reporting"] for row in found))
        count = sum(row["seed"] == SELECTING and row["epsilon"] is not None for row in mine)
        yield f"| {arm.title} | {count} | " + " | ".join(cells) + " |"
    gaps = []
    for epsilon in epsilons:
        ours, others = means.get((True, epsilon)), means.get((False, epsilon))
        lead = max(ours) - max(others) if ours and others else None
        gaps.append("not run" if lead is None else f"{100 * lead:+.1f}" if percent else f"{lead:+.4f}")
    yield "| best of ours less best other | | " + " | ".join(gaps) + " |"


def cell(rows: Sequence[Mapping[str, Any]], percent: bool) -> str:
    """Writes mean and standard deviation over seeds, of percent or of a loss, with the start that was chosen."""
    if len(rows) < 2:
        return "not run"
    values = [row["reporting"] * (100.0 if percent else -1.0) for row in rows]
    digits = 1 if percent else 4
    told = f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"
    return f"{told} ({len(rows)}; {rows[0]['start']}, {rows[0]['lr']:g})"


def tasks_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the table of tasks: where each is read from, and whether the results hold runs of it."""
    yield "| task | from | measure | run |"
    yield "|---|---|---|---|"
    for name in (*TWELVE, *(other for other in TASKS if other not in TWELVE)):
        task = TASKS[name]
        count = sum(row["part"] == "task" and row["task"] == name for row in rows)
        source = "files" if task.read is not None else "hub " + " ".join(task.hub)
        measure, ran = "accuracy" if task.labels else "loss", f"{count} runs" if count else "not run"
        yield f"| {task.title} | {source} | {measure} | {ran} |"
