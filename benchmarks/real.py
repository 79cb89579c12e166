"""``make bench-real``: steps at real sizes, every variant in a process of its own, beside torch's own step.

A GPT-2 of 124 million parameters, tied and fully trained (T = 256, microbatches of 8), and the shape of a 1.1-billion-parameter
Llama with LoRA of rank 16 on all linear layers (T = 128, microbatches of 4); random weights, two microbatches a step. CPU and
wall seconds of a step are the least of a few, since a variant alone in its process meets all that else goes on; ``start`` is
from the first line to the end of the first step, probes and compiling included; the peak is what a process adds to one that has
imported everything.
"""

import argparse
import importlib
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.__main__ import versions
from benchmarks.configs import Config, Tier, gpt2, lora
from benchmarks.start import llama
from benchmarks.step import _status
from benchmarks.variants import VARIANTS, absent_from

RATIOS = ("cpu_s", "wall_s", "peak_gib")
DEFAULT = ("non_private", "non_private_onednn", "ours_fast", "ours_compiled", "opacus_hooks")


def _llama(dropout: float, *, small: bool) -> nn.Module:
    return lora(llama(dropout, small=small, adapted=False), dropout, False)


def configs(small: bool) -> dict[str, Config]:
    """The configurations by name, or tiny ones of the same kind."""
    width, layers, heads, vocabulary = (32, 2, 2, 64) if small else (768, 12, 12, 50257)
    length, microbatch = (16, 2) if small else (256, 8)
    full = Config(
        "gpt2_124m", vocabulary, lambda p: gpt2(p, True, layers, width, vocabulary, heads), classify=False, layers=layers,
        length=length, tiers=(Tier("all", 2 * microbatch),), microbatch=microbatch,
    )  # fmt: skip
    pairs = Config(
        "llama_1b_lora", 32000, partial(_llama, small=small), classify=False, layers=2 if small else 22,
        length=16 if small else 128, tiers=(Tier("all", 4 if small else 8),), microbatch=2 if small else 4,
    )  # fmt: skip
    return {config.name: config for config in (full, pairs)}


def measure(config: Config, name: str, threads: int, steps: int) -> dict[str, float]:
    """Measures one variant in this process."""
    torch.set_num_threads(threads)
    importlib.import_module("torch._inductor.compile_fx")
    Path("/proc/self/clear_refs").write_text("5")
    before, begun = _status("VmRSS"), time.perf_counter()
    cpu, wall = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with VARIANTS[name](config) as step:
            step()
            start = time.perf_counter() - begun
            for _ in range(steps):
                clocks = time.process_time(), time.perf_counter()
                step()
                cpu.append(time.process_time() - clocks[0])
                wall.append(time.perf_counter() - clocks[1])
    return {"cpu_s": min(cpu), "wall_s": min(wall), "start_s": start, "peak_gib": (_status("VmHWM") - before) / 2**30}


def run(config: Config, names: Sequence[str], threads: int, steps: int, small: bool) -> dict[str, dict[str, Any]]:
    """Measures variants one after the other, each in a process of its own; ratios are to torch's own step."""
    found: dict[str, dict[str, Any]] = {}
    absent = absent_from(config)
    for name in names:
        if name in absent:
            found[name] = {"absent": absent[name]}
            continue
        command = [sys.executable, "-m", "benchmarks.real", "--one", config.name, name, "--threads", str(threads)]
        command += ["--steps", str(steps), *(["--small"] if small else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            found[name] = {"absent": (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]}
        else:
            found[name] = json.loads(done.stdout.strip().splitlines()[-1])
    plain = found.get("non_private", {})
    for row in found.values():
        ratios = {f"{key.partition('_')[0]}_ratio": row[key] / plain[key] for key in RATIOS if key in row and key in plain}
        row |= ratios
    return found


def render(title: str, found: dict[str, dict[str, Any]]) -> str:
    """A configuration as a text table."""
    lines = [f"{title:<24}{'cpu s':>8}{'ratio':>7}{'wall s':>8}{'ratio':>7}{'peak GiB':>10}{'ratio':>7}{'start s':>9}"]
    for name, row in found.items():
        if "absent" in row:
            lines.append(f"  {name:<22}absent: {row['absent']}")
            continue
        ratio = {key: f"{row[f'{key}_ratio']:.2f}" if f"{key}_ratio" in row else "-" for key in ("cpu", "wall", "peak")}
        lines.append(
            f"  {name:<22}{row['cpu_s']:>8.2f}{ratio['cpu']:>7}{row['wall_s']:>8.2f}{ratio['wall']:>7}{row['peak_gib']:>10.2f}"
            f"{ratio['peak']:>7}{row['start_s']:>9.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--only", nargs="+", help="configurations by name")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(DEFAULT))
    parser.add_argument("--small", action="store_true", help="tiny models of the same kind: does it run?")
    parser.add_argument("--out", type=Path, default=Path("bench-real.json"))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = configs(options.small)
    if options.one:
        print(json.dumps(measure(known[options.one[0]], options.one[1], options.threads, options.steps)))
        return
    results = {}
    for name, config in known.items():
        if options.only and name not in options.only:
            continue
        results[name] = run(config, options.variants, options.threads, options.steps, options.small)
        print(render(name, results[name]), flush=True)
        options.out.write_text(json.dumps(versions() | {"threads": options.threads, "results": results}, indent=1) + "\n")
    print(f"saved to {options.out}")


if __name__ == "__main__":
    main()
