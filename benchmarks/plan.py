"""What ``dptrain plan --measure`` says of a step, beside a run on the same machine: ``python -m benchmarks.plan [--json]``.

Each configuration is a whole small corpus, signed, and a run as ``dptrain train`` makes it: gate, ledger on disk, random
draws, decoding and collation. In every round the plan is measured, then some steps of the run are timed, so that a busy moment
falls on both; what is compared are medians over rounds. Peak memory is that of two further processes, one that measures and
one that trains.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from dptrain.engine.one_owner import Contributor, Stage, stage
from dptrain.planning.measure import measure, peak_bytes
from dptrain.programs import quiet_libraries
from dptrain.tasks import task
from dptrain.tasks.classification import make_optimizer
from dptrain.tasks.runconfig import RunConfig
from dptrain.tasks.runs import open_run

BANDS = {"top": 0.75, "half": 0.5, "whole": 0.0}
"""Classes, and where the band of each begins."""

WARM_UP = 3
"""Steps of the run before the first that counts: probes, and lazy state of the optimizer."""


@dataclass(frozen=True)
class Case:
    """Width, layers and side of a vision transformer of patches of 2; contributions per class; what of them a step draws."""

    width: int
    layers: int
    side: int
    per_class: int
    rate: float
    microbatch: int = 16
    policy: str = ""


CASES = {
    "vit": Case(128, 4, 8, per_class=64, rate=0.25),
    "vit, wide": Case(256, 4, 16, per_class=32, rate=0.25),
    "vit, certified": Case(128, 4, 8, per_class=64, rate=0.25, policy='exactness = "certified"\n'),
    "vit, noise in 4 parts": Case(
        128, 4, 8, per_class=64, rate=0.25, policy='[noise]\ninjection = "per_microbatch"\nmicrobatches = 4\n'
    ),
}


def policy_of(case: Case, steps: int) -> str:
    head = f'corpus = "benchmark"\ndelta = 1e-5\nsteps = {steps}\nepoch_steps = {steps}\nnormalizer = {case.per_class}\n'
    return (
        head
        + case.policy
        + "".join(
            f'[[class]]\nname = "{name}"\nclip_norm = 1.0\nnoise_multiplier = 1.0\nsampling_rate = {case.rate}\n'
            f"depth = {{ from = {start}, to = 1.0 }}\n"
            for name, start in BANDS.items()
        )
    )


def run_file(case: Case, threads: int) -> str:
    return (
        'task = "image_classification"\n[model]\nlabels = ["0", "1", "2"]\npatch_size = 2\n'
        f"image_size = {case.side}\nhidden_size = {case.width}\nhidden_layers = {case.layers}\nattention_heads = 4\n"
        '[data]\npolicy = "policy.cose"\ncorpus = "corpus"\nowner_key = "keys/owner.pub"\n[optimizer]\nname = "adamw"\n'
        f'[run]\nledger = "ledger.db"\noutput = "out"\nmicrobatch = {case.microbatch}\nthreads = {threads}\ndevice = "cpu"\n'
    )


def world(root: Path, case: Case, steps: int, threads: int) -> tuple[Stage, RunConfig]:
    """A signed corpus of random pictures and its run file."""
    draw = random.Random(0)
    contributors = [
        Contributor(name, name, [picture(draw, case.side) for _ in range(case.per_class)]) for name in BANDS
    ]  # fmt: skip
    made = stage(root, policy_of(case, steps), contributors, now=int(time.time()))
    (root / "run.toml").write_text(run_file(case, threads))
    return made, RunConfig.load(root / "run.toml")


def picture(draw: random.Random, side: int) -> dict[str, Any]:
    pixels = [[[draw.randrange(256)] for _ in range(side)] for _ in range(side)]
    return {"pixels": pixels, "label": draw.randrange(3)}


@contextmanager
def running(config: RunConfig) -> Iterator[Iterator[float]]:
    """A run as ``dptrain train`` prepares it; the iterator makes its steps, one after the other, and gives their seconds."""
    quiet_libraries()
    assert config.run.threads is not None
    torch.set_num_threads(config.run.threads)
    torch.manual_seed(config.run.seed)
    accelerator = Accelerator(cpu=True)
    tools = task(config.task)
    model, collate = tools.build(config.model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with open_run(config, accelerator) as run:
            if run.policy.exactness == "certified":
                model.set_attn_implementation("eager")
            optimizer = make_optimizer(model, config.optimizer, layers=config.model.layers)
            model, optimizer = accelerator.prepare(model, optimizer)
            model, optimizer, steps = run.prepare(model, optimizer, collate, layers=config.model.layers)
            loss: Any = tools.per_example_loss

            def seconds() -> Iterator[float]:
                iterator = iter(steps)
                while True:
                    start = time.perf_counter()
                    for rows in next(iterator):
                        run.backward(loss(model, rows), rows)
                    optimizer.step()
                    yield time.perf_counter() - start

            yield seconds()


def counts_of(case: Case) -> dict[str, int]:
    return dict.fromkeys(BANDS, case.per_class)


def compare(case: Case, rounds: int, steps: int, threads: int = 1) -> dict[str, Any]:
    """Seconds per step by the plan and of the run, medians over rounds; ``ratio`` is run over plan, pairs are per round."""
    with tempfile.TemporaryDirectory(prefix="dptrain-bench-") as place:
        made, config = world(Path(place), case, WARM_UP + rounds * steps + 1, threads)
        planned: list[float] = []
        found: list[float] = []
        every: list[float] = []
        with running(config) as seconds:
            for _ in range(WARM_UP):
                next(seconds)
            for _ in range(rounds):
                planned.append(measure(made.policy, config, counts_of(case)).seconds_per_step)
                taken = [next(seconds) for _ in range(steps)]
                found.append(statistics.median(taken))
                every += taken
    pairs = sorted(b / a for a, b in zip(planned, found, strict=True))
    return {
        "planned_s": statistics.median(planned),
        "run_s": statistics.median(found),
        "run_mean_s": statistics.fmean(every),
        "ratio": statistics.median(pairs),
        "ratio_range": [pairs[0], pairs[-1]],
        "contributions_per_step": case.per_class * len(BANDS) * case.rate,
    }


def peak_of(name: str, part: str, threads: int) -> int:
    """Peak bytes of a process that measures, or that trains for some steps."""
    case, steps = CASES[name], 8
    with tempfile.TemporaryDirectory(prefix="dptrain-bench-") as place:
        made, config = world(Path(place), case, WARM_UP + steps + 1, threads)
        if part == "plan":
            return measure(made.policy, config, counts_of(case)).peak_bytes
        with running(config) as seconds:
            for _ in range(WARM_UP + steps):
                next(seconds)
            return peak_bytes(torch.device("cpu"))


def peaks(name: str, threads: int) -> dict[str, int]:
    """Peak bytes by the plan and of the run, each in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.plan", "--only", name, "--threads", str(threads), "--peak"]
    return {
        part: int(subprocess.run([*command, part], check=True, capture_output=True, text=True).stdout.split()[-1])
        for part in ("plan", "run")
    }


HEAD = f"{'ms per step':<24}{'planned':>9}{'run':>8}{'ratio':>7}{'range':>15}{'mean':>8}{'planned MiB':>13}{'run':>6} load"


def render(name: str, row: Mapping[str, Any]) -> str:
    """A row of the table: what was planned and what it took."""
    low, high = row["ratio_range"]
    memory = "".join(f"{row['peak_bytes'][part] / 2**20:>{width}.0f}" for part, width in (("plan", 13), ("run", 6)))
    return (
        f"{name:<24}{1e3 * row['planned_s']:>9.0f}{1e3 * row['run_s']:>8.0f}{row['ratio']:>7.2f}"
        f"{f'{low:.2f} to {high:.2f}':>15}{1e3 * row['run_mean_s']:>8.0f}{memory}{row['load']:>6.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="steps of the run in every round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=list(CASES), help="this configuration alone")
    parser.add_argument("--peak", choices=("plan", "run"), help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.peak:
        print(peak_of(options.only, options.peak, options.threads))
        return
    cases = {name: case for name, case in CASES.items() if options.only in (None, name)}
    rows: dict[str, Any] = {}
    if not options.json:
        print(HEAD, flush=True)
    for name, case in cases.items():
        timed = compare(case, options.rounds, options.steps, options.threads)
        rows[name] = timed | {"peak_bytes": peaks(name, options.threads), "load": os.getloadavg()[0]}
        if not options.json:
            print(render(name, rows[name]), flush=True)
    if options.json:
        print(json.dumps({"threads": options.threads, "rounds": options.rounds, "cases": rows}))


if __name__ == "__main__":
    main()
