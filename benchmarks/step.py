"""Cost of one logical step: ``python -m benchmarks.step --config bert_full --rounds 4 [--json]``.

Time: all variants live in one process and take turns in random order, so that a drifting machine hits all alike; the ratio
is that of medians, CPU time first because cores are shared. Memory: each variant alone in a process of its own, peak resident
size above that of the process before the model was made; two microbatches a step, which reach the same peak.
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
from functools import partial
from pathlib import Path
from typing import Any

import torch

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


def run(config: Config, rounds: int, threads: int, memory: bool, only: Sequence[str] = ()) -> dict[str, dict]:
    """{variant: {cpu_ratio, wall_ratio, rss_ratio, cpu_s, ...}} against the non-private step of the whole model.

    A variant that cannot run, or fails, has null ratios and the reason under ``absent``.
    """
    names = [name for name in names_for(config) if not only or name in only or name == "non_private"]
    taken, failed = take_turns({name: partial(VARIANTS[name], config) for name in names}, rounds, threads)
    if "non_private" in failed:
        raise RuntimeError(f"the step without privacy failed: {failed['non_private']}")
    base = taken["non_private"]
    sizes = memory_of(config, list(taken)) if memory else {}
    table: dict[str, dict[str, Any]] = {}
    for name, times in taken.items():
        walls = [a / b for a, b in zip(times["wall"], base["wall"], strict=True)]
        table[name] = {
            "cpu_ratio": statistics.median(times["cpu"]) / statistics.median(base["cpu"]),
            "wall_ratio": statistics.median(times["wall"]) / statistics.median(base["wall"]),
            "wall_ratio_range": [min(walls), max(walls)],
            "cpu_s": statistics.median(times["cpu"]),
            "wall_s": statistics.median(times["wall"]),
            "rss_ratio": sizes[name] / sizes["non_private"] if memory else None,
            "rss_mib": sizes[name] / 2**20 if memory else None,
        }
    nothing = {"cpu_ratio": None, "wall_ratio": None, "rss_ratio": None}
    return table | {name: nothing | {"absent": reason} for name, reason in (failed | absent_from(config)).items()}


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
    command += [] if matmul.ENABLED else ["--torch-products"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, metavar="NAME", help=", ".join(CONFIGS))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-memory", action="store_true", help="skip the processes that measure memory")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=[], help="measure these beside non_private")
    parser.add_argument("--torch-products", action="store_true", help="leave the products of dptrain to torch, without oneDNN")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--memory-of", choices=list(VARIANTS), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    try:
        config = by_name(options.config)
    except KeyError:
        parser.error(f"no configuration {options.config!r}; there are {', '.join(CONFIGS)}")
    matmul.ENABLED = matmul.ENABLED and not options.torch_products
    if options.memory_of:
        print(measure_memory(config, options.memory_of, options.threads))
        return
    table = run(config, options.rounds, options.threads, not options.no_memory, options.variants)
    if options.json:
        print(json.dumps(table))
        return
    print(render(config.name, table))


def render(name: str, table: dict[str, dict]) -> str:
    """One configuration as a text table."""
    lines = [f"{name:<19}{'cpu ratio':>10}{'wall ratio':>12}{'wall range':>16}{'memory':>9}{'MiB':>7}{'cpu s/step':>12}"]
    for variant, row in table.items():
        if "absent" in row:
            lines.append(f"  {variant:<17} absent: {row['absent']}")
            continue
        low, high = row["wall_ratio_range"]
        memory = f"{row['rss_ratio']:.2f}" if row["rss_ratio"] else "-"
        peak = f"{row['rss_mib']:.0f}" if row["rss_mib"] else "-"
        lines.append(
            f"  {variant:<17}{row['cpu_ratio']:>10.2f}{row['wall_ratio']:>12.2f}{f'{low:.2f}..{high:.2f}':>16}"
            f"{memory:>9}{peak:>7}{row['cpu_s']:>12.2f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
