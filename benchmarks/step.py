"""Cost of one logical step: ``python -m benchmarks.step --config bert_full --rounds 4 [--dropout 0.1] [--half] [--json]``.

Time: all variants live in one process and take turns in random order, so that a drifting machine hits all alike. The ratio is
that of medians, CPU time first because cores are shared, and its base is the fastest step without privacy of the same run
(:mod:`benchmarks.bases`), chosen for CPU time and for wall time by themselves. Memory: each variant alone in a process of its
own, peak resident size above that of the process before the model was made; two microbatches a step, which reach the same
peak. Its base is torch's own step, whatever is fastest, and that of the other steps without privacy is not measured.
"""

import argparse
import importlib
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.bases import BANDS, BASES
from benchmarks.configs import CONFIGS, Config, by_name, few
from benchmarks.variants import VARIANTS, WARM_UP, Step, absent_from, names_for
from dptrain.gradients import matmul


def take_turns(
    makers: dict[str, Callable[[], AbstractContextManager[Step]]], rounds: int, threads: int
) -> tuple[dict[str, dict[str, list[float]]], dict[str, str]]:
    """CPU and wall seconds of every variant's step, round by round; and why a variant failed before its first round."""
    torch.set_num_threads(threads)
    taken: dict[str, dict[str, list[float]]] = {}
    failed = {}
    with ExitStack() as stack:
        steps = {}
        for name, make in makers.items():
            try:
                step = stack.enter_context(make())
                for _ in range(WARM_UP.get(name, 1)):
                    step()  # lazy state of optimizers, probes at start, compilation
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                continue
            steps[name], taken[name] = step, {"cpu": [], "wall": []}
        for _ in range(rounds):
            for name in random.sample(list(steps), len(steps)):
                wall, cpu = time.perf_counter(), time.process_time()
                steps[name]()
                taken[name]["cpu"].append(time.process_time() - cpu)
                taken[name]["wall"].append(time.perf_counter() - wall)
    return taken, failed


def measure_memory(config: Config, name: str, threads: int) -> int:
    """Peak resident bytes that a variant adds to a process that has imported everything; run in a fresh process (Linux)."""
    torch.set_num_threads(threads)
    importlib.import_module("torch._inductor.compile_fx")
    # A new process starts with the peak of the one that started it; 5 resets it (proc_pid_clear_refs(5)).
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    with VARIANTS[name](few(config)) as step:
        for _ in range(2):
            step()
    return _status("VmHWM") - before


def run(
    config: Config, rounds: int, threads: int, memory: bool, only: Sequence[str] = (), bases: Sequence[str] = ()
) -> dict[str, Any]:
    """Measures the variants of a configuration against the fastest of its steps without privacy.

    Args:
        only: these variants beside the bases; empty for all. bases: these steps without privacy; empty for all. One that is
            left out is listed as absent, for a slower base makes every ratio look better.

    Returns:
        {config, dropout, half, rounds, threads, base: {cpu, wall}, target, variants: {name: {cpu_ratio, wall_ratio, rss_ratio,
        cpu_s, ...}}}. ``base`` names the fastest for each clock. A variant that cannot run, or fails, has null ratios and the
        reason under ``absent``.

    Raises:
        RuntimeError: no step without privacy ran.
    """
    left_out = [name for name in BASES if bases and name not in bases]
    names = [name for name in names_for(config) if (name not in left_out if name in BASES else not only or name in only)]
    taken, failed = take_turns({name: partial(VARIANTS[name], config) for name in names}, rounds, threads)
    absent = absent_from(config) | failed
    absent = dict.fromkeys(left_out, "left out by --bases, so the base may not be the fastest") | absent
    measured = [name for name in BASES if name in taken]
    if not measured:
        raise RuntimeError(f"no step without privacy ran: {'; '.join(f'{name}: {absent[name]}' for name in BASES)}")
    base = {clock: min(measured, key=lambda name: statistics.median(taken[name][clock])) for clock in ("cpu", "wall")}
    sizes = memory_of(config, [name for name in taken if name not in MEMORY_UNMEASURED]) if memory else {}
    table = {}
    for name, times in taken.items():
        row: dict[str, Any] = {}
        for clock, fastest in base.items():
            row |= _ratio(clock, times[clock], taken[fastest][clock])
        size, plain = sizes.get(name), sizes.get("non_private")
        row["rss_ratio"] = size / plain if size and plain else None
        row["rss_mib"] = size / 2**20 if size else None
        table[name] = row
    nothing = {"cpu_ratio": None, "wall_ratio": None, "rss_ratio": None}
    table |= {name: nothing | {"absent": reason} for name, reason in absent.items()}
    return {
        "config": config.name,
        "dropout": config.dropout,
        "half": config.half,
        "rounds": rounds,
        "threads": threads,
        "base": base,
        "target": _target(config, table),
        "variants": table,
    }


MEMORY_UNMEASURED = {*BASES, *BANDS} - {"non_private", "non_private_bands"}


def _ratio(clock: str, seconds: Sequence[float], of_base: Sequence[float]) -> dict[str, Any]:
    """Ratio of the medians, its range over the rounds, and the seconds behind them."""
    pairs = [a / b for a, b in zip(seconds, of_base, strict=True)]
    return {
        f"{clock}_ratio": statistics.median(seconds) / statistics.median(of_base),
        f"{clock}_ratio_range": [min(pairs), max(pairs)],
        f"{clock}_s": statistics.median(seconds),
        f"{clock}_s_range": [min(seconds), max(seconds)],
    }


def _target(config: Config, table: dict[str, dict[str, Any]]) -> float | None:
    """CPU ratio that a private step is to reach in float32; where it hangs on the bands' own steps, on the fastest of those."""
    if config.half:
        return None
    if config.target_of_bands is None:
        return config.target
    bands = [table[name]["cpu_ratio"] for name in BANDS if table.get(name, {}).get("cpu_ratio")]
    return config.target_of_bands * min(bands) if bands else None


def _status(field: str) -> int:
    """A figure of this process in bytes: VmRSS now, VmHWM at its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def memory_of(config: Config, names: Sequence[str]) -> dict[str, int]:
    """Peak bytes of every variant, each in a process of its own, two at a time with one thread each."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(names, pool.map(partial(_memory_of, config), names), strict=True))


def _memory_of(config: Config, name: str) -> int:
    command = [sys.executable, "-m", "benchmarks.step", "--config", config.name, "--memory-of", name, "--threads", "1"]
    command += ["--dropout", str(config.dropout)]
    command += ["--half"] if config.half else []
    command += ["--products", "onednn" if matmul.ENABLED else "torch"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, metavar="NAME", help=", ".join(CONFIGS))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-memory", action="store_true", help="skip the processes that measure memory")
    parser.add_argument("--dropout", type=float, default=0.0, help="probability of dropout in the model; default 0")
    parser.add_argument("--half", action="store_true", help="forward passes under bfloat16 autocast, of all variants")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=[], help="measure these beside the bases")
    parser.add_argument("--bases", nargs="+", choices=list(BASES), default=[], help="of the steps without privacy, these alone")
    parser.add_argument("--products", choices=("torch", "onednn"), help="kernels of dptrain's products; default: by processor")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--memory-of", choices=list(VARIANTS), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    try:
        config = replace(by_name(options.config), dropout=options.dropout, half=options.half)
    except KeyError:
        parser.error(f"no configuration {options.config!r}; there are {', '.join(CONFIGS)}")
    if options.products:
        matmul.ENABLED = matmul.AVAILABLE and options.products == "onednn"
    if options.memory_of:
        print(measure_memory(config, options.memory_of, options.threads))
        return
    found = run(config, options.rounds, options.threads, not options.no_memory, options.variants, options.bases)
    print(json.dumps(found) if options.json else render(found))


def render(found: dict[str, Any]) -> str:
    """One configuration as a text table; its first line says what the ratios are formed with."""
    table, base = found["variants"], found["base"]
    title = found["config"] + (f" dropout={found['dropout']:g}" if found["dropout"] else "") + " bfloat16" * found["half"]
    target = f"; target {found['target']:.2f} of CPU time" if found["target"] else ""
    lines = [
        f"{title}: ratios to the fastest step without privacy, {base['cpu']} by CPU time, {base['wall']} by wall time{target}",
        f"{'':<31}{'cpu ratio':>10}{'cpu range':>13}{'wall ratio':>11}{'wall range':>13}{'memory':>8}{'MiB':>6}"
        f"{'cpu s/step':>12}{'range':>14}",
    ]
    for variant, row in table.items():
        if "absent" in row:
            lines.append(f"  {variant:<29} absent: {row['absent']}")
            continue
        memory = f"{row['rss_ratio']:.2f}" if row["rss_ratio"] else "-"
        peak = f"{row['rss_mib']:.0f}" if row["rss_mib"] else "-"
        lines.append(
            f"  {variant:<29}{row['cpu_ratio']:>10.2f}{_span(row['cpu_ratio_range']):>13}{row['wall_ratio']:>11.2f}"
            f"{_span(row['wall_ratio_range']):>13}{memory:>8}{peak:>6}{row['cpu_s']:>12.2f}{_span(row['cpu_s_range']):>14}"
        )
    return "\n".join(lines)


def headline(results: dict[str, dict[str, Any]]) -> str:
    """Every configuration in one line: its base, and what ours cost against it in CPU time."""
    names = [name for name in VARIANTS if name.startswith("ours") and any(_measured(found, name) for found in results.values())]
    lines = [f"{'cpu ratio to the fastest':<28}{'base':<29}{'target':>7}" + "".join(f"{name:>18}" for name in names)]
    for title, found in results.items():
        target = f"{found['target']:.2f}" if found["target"] else "-"
        cells = [f"{_measured(found, name):.2f}" if _measured(found, name) else "absent" for name in names]
        lines.append(f"{title:<28}{found['base']['cpu']:<29}{target:>7}" + "".join(f"{cell:>18}" for cell in cells))
    return "\n".join(lines)


def _measured(found: dict[str, Any], name: str) -> float | None:
    return found["variants"].get(name, {}).get("cpu_ratio")


def _span(ends: Sequence[float]) -> str:
    return f"{ends[0]:.2f}..{ends[1]:.2f}"


if __name__ == "__main__":
    main()
