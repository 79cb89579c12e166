"""``make gpu``: private steps on a CUDA device, beside the same steps without privacy and beside other libraries.

First what must be right, on small models on the device: are the router's sums those of a loop over contributions, in float64
and in float32? Does a contribution move a sum by no more than its bound under bfloat16 autocast? Is a release there the release
that it is on the CPU, and the noise that is drawn there the same? If not, it stops.

Then the table, under bfloat16 autocast: a GPT-2 of 124 million parameters, a Llama of about a billion from its configuration
with LoRA of rank 16, and a ViT-B on pictures. Weights are random; nothing is downloaded. A step of 256 contributions is run.
Steps of 1,024 and 4,096 are not: microbatches of a step are alike, so each further one counts with the median of those inside
the step that was run, and what comes once (draw, ledger, noise, optimizer) as it was there. The JSON says which is which
(``how``), and where time is left one larger step of every configuration is run all the same, beside what was reckoned for it
(``checked``).

Each row is run alone. Rows go by importance, so that all models have our step and the plain one before any is compiled. What
does not fit into ``--budget`` seconds is stopped, and listed under ``left_out``. One JSON object is printed at the end, and
saved; all else goes to standard error. Where memory is short, give ``--microbatch`` a smaller number.

Without CUDA it says so and succeeds; ``--smoke`` runs the same code on the CPU with tiny models, to know that it runs.
"""

import argparse
import gc
import json
import math
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attest.policy import Policy
from benchmarks import exactness
from benchmarks.__main__ import versions
from benchmarks.bases import BASES, Step
from benchmarks.configs import PEERS, TIED, Config, Pictures, Tier, gpt2, lora, opened, vit
from benchmarks.variants import VARIANTS, WARM_UP, _policy, absent_from
from dptrain.noise import speed

LOGICAL = (256, 1024, 4096)
"""Contributions of a logical step: the first is run, the others are reckoned from its parts."""

ORDER = ("non_private", "ours_device_noise", "ours_fast", *PEERS, "non_private_compiled", "ours_compiled")
"""Rows by importance; those that compile come last, for they take longest."""

BUDGET = 540.0
"""Seconds of everything, correctness and setting up included."""

HOW = (
    "step_s of the smallest batch was run whole; of a larger one it is that plus microbatch_s for each further microbatch. "
    "microbatch_s is the median of the microbatches inside the step that was run (neither the first nor the last of them), "
    "release_s what is left of it: the draw, the ledger, the noise, the optimizer"
)


class OutOfTime(BaseException):
    """The budget was spent; no program that handles its own failures takes this for one of them."""


@dataclass
class Budget:
    """Counts the seconds of a run down."""

    seconds: float
    start: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> float:
        return time.monotonic() - self.start

    @property
    def left(self) -> float:
        return self.seconds - self.spent

    @contextmanager
    def limit(self) -> Iterator[None]:
        """Stops what runs inside when nothing is left, and again every two seconds: what is raised in a finalizer is lost.

        Raises:
            OutOfTime: nothing is left, or came to an end while it ran.
        """
        told = f"the budget of {self.seconds:g} s was spent after {{}}"
        if self.left <= 0:
            raise OutOfTime(told.format("earlier rows"))
        began = time.monotonic()

        def stop(*_: object) -> None:
            raise OutOfTime(told.format(f"{time.monotonic() - began:.0f} s of this row"))

        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, self.left, 2.0)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def llama(width: int, layers: int, heads: int, inner: int, vocabulary: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=max(1, heads // 4),
            intermediate_size=inner, vocab_size=vocabulary, max_position_embeddings=2048, tie_word_embeddings=True,
        )
    )  # fmt: skip


def configs(smoke: bool) -> list[Config]:
    """The suite, or the same at tiny sizes on the CPU."""
    if smoke:
        small = Config(
            "gpt2_smoke", 64, lambda p: gpt2(p, True, 2, 32, 64, 2), classify=False, tiers=(Tier("all", 8),), layers=2,
            length=16, microbatch=2, half=True, absent=TIED,
        )  # fmt: skip
        pictures = replace(
            small, name="vit_smoke", make=lambda p: vit(p, 2, 32, 2, 16, 8), classify=True, inputs=Pictures(16, 4), absent={},
        )  # fmt: skip
        adapters = replace(
            small, name="llama_lora_smoke", make=lambda p: opened(lora(llama(32, 2, 4, 64, 64), p, False)), absent={},
        )  # fmt: skip
        return [small, adapters, pictures]
    large = Config(
        "gpt2_124m", 50257, lambda p: gpt2(p, True, 12, 768, 50257, 12), classify=False, tiers=(Tier("all", LOGICAL[0]),),
        layers=12, length=512, microbatch=16, device="cuda", half=True, absent=TIED,
    )  # fmt: skip
    billion = replace(
        large, name="llama_1b_lora", vocabulary=128256, make=lambda p: lora(llama(2048, 16, 32, 8192, 128256), p, False),
        layers=16, microbatch=8, absent={},
    )  # fmt: skip
    pictures = replace(large, name="vit_b", make=vit, classify=True, inputs=Pictures(224), microbatch=64, absent={})
    return [large, billion, pictures]


def exact(device: str) -> dict[str, float]:
    """Distance of the router's sums from a naive loop, by model and precision; and what part of its bounds bfloat16 reaches.

    Raises:
        RuntimeError: one is larger than rounding explains, a bound is broken, or a release differs from that on the CPU.
    """
    found = {}
    for config in configs(smoke=True):
        config = replace(config, device=device)
        kind = config.name.removesuffix("_smoke")
        for dtype, tolerance in exactness.TOLERANCE.items():
            name = f"{kind} {str(dtype).removeprefix('torch.')}"
            found[name] = exactness.distance(config, dtype)
            if not found[name] < tolerance:
                raise RuntimeError(f"{name}: sums are {found[name]:.1e} from those of a loop, expected below {tolerance:.0e}")
        name = f"{kind} bfloat16, of the bound"
        found[name] = exactness.reach(config)
        if not found[name] <= 1.0:
            raise RuntimeError(f"{name}: a contribution moves the sums by {found[name]:.6f} of its bound, expected 1 at most")
    if not exactness.same_release(device):
        raise RuntimeError("a sum is released to other numbers on the device than on the CPU")
    if not exactness.same_device_noise(device):
        raise RuntimeError("the generator of noise on the device draws other numbers there than on the CPU")
    return found


class Marks:
    """Notes when the device is done with each microbatch of a step, without waiting for it."""

    def __init__(self, cuda: bool) -> None:
        self._cuda = cuda
        self._noted: list[Any] = []
        self()

    def __call__(self) -> None:
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._noted.append(event)
        else:
            self._noted.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Between marks, once the device has caught up."""
        pairs = zip(self._noted, self._noted[1:], strict=False)
        return [a.elapsed_time(b) / 1e3 if self._cuda else b - a for a, b in pairs]


def measured(config: Config, name: str, rounds: int) -> dict[str, Any]:
    """One variant alone: a step of the configuration run whole, the time of a microbatch in it, memory and waits."""
    cuda = config.device == "cuda"
    gc.collect()  # what the variant before held is gone before the peak is reset
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    steps, inside, warm_up = [], [], WARM_UP.get(name, 1)
    began = time.perf_counter()
    with VARIANTS[name](config) as step:
        setting_up = time.perf_counter() - began
        for turn in range(warm_up + rounds):
            _wait(cuda)
            start, marks = time.perf_counter(), Marks(cuda)
            step(marks)
            _wait(cuda)
            steps.append(time.perf_counter() - start)
            if turn >= warm_up:
                each = marks.seconds()
                inside += each[1:-1] or each[-1:]  # the first waits for the draw, and in some the last releases
        waits = _waits(step) if cuda else None
    median, microbatches = statistics.median(steps[warm_up:]), math.ceil(config.contributions / config.microbatch)
    microbatch = statistics.median(inside)
    return {
        "contributions": config.contributions,
        "microbatch": config.microbatch,
        "microbatches": microbatches,
        "step_s": median,
        "microbatch_s": microbatch,
        "release_s": max(0.0, median - microbatches * microbatch),
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0,
        "waits": waits,
        "setting_up_s": setting_up,
        "first_step_s": steps[0],
    }


def _wait(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()


def reckoned(row: dict[str, Any], logical: int) -> float:
    """Seconds of a step of so many contributions, from the parts of the one that was run."""
    return row["step_s"] + (math.ceil(logical / row["microbatch"]) - row["microbatches"]) * row["microbatch_s"]


def with_batches(config: Config, rows: dict[str, dict[str, Any]], logical: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Adds to each row every logical batch: seconds, units per second, and the ratio to the fastest step without privacy."""
    ran = {name: row for name, row in rows.items() if "step_s" in row}
    for size in logical:
        seconds = {name: reckoned(row, size) for name, row in ran.items()}
        bases = [name for name in BASES if name in ran]
        base = min(bases, key=lambda name: seconds[name]) if bases else None
        for name, row in ran.items():
            row.setdefault("batches", {})[str(size)] = {
                "step_s": seconds[name],
                "how": "run" if size == row["contributions"] else "reckoned",
                f"{config.inputs.unit}_per_s": size * config.inputs.count(config) / seconds[name],
                "ratio": seconds[name] / seconds[base] if base else None,
                "base": base,
            }
    return rows


def table(
    chosen: Sequence[Config], variants: Sequence[str], rounds: int, logical: Sequence[int], budget: Budget,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Every variant of every configuration, as far as the budget goes.

    Returns:
        {results: {configuration: {variant: row, or {absent: reason}, or {left_out: reason}}}, left_out, checked}. Whatever was
        asked for is in it.
    """
    results: dict[str, dict[str, Any]] = {config.name: {} for config in chosen}
    left_out: list[dict[str, str]] = []
    for name in variants:
        for config in chosen:
            absent = absent_from(config).get(name)
            walked = name == "ours_device_noise" and config.device == "cpu"  # no row of the CPU's table, and yet it runs there
            row = {"absent": absent} if absent and not walked else _tried(config, name, rounds, budget)
            if "left_out" in row:
                left_out.append({"config": config.name, "variant": name, "reason": row["left_out"]})
            results[config.name][name] = row
            told = next((f"{kind}: {row[kind]}" for kind in ("absent", "left_out") if kind in row), None)
            say(f"{config.name:<18}{name:<22}" + (told or _row(row)))
    for config in chosen:
        with_batches(config, results[config.name], logical)
    checked = [found for config in chosen if (found := _checked(config, results[config.name], logical, budget, left_out))]
    return {"results": results, "checked": checked, "left_out": left_out}


def _tried(config: Config, name: str, rounds: int, budget: Budget) -> dict[str, Any]:
    try:
        with budget.limit():
            return measured(config, name, rounds)
    except OutOfTime as error:
        return {"left_out": str(error)}
    except Exception as error:
        return {"absent": f"{type(error).__name__}: {error}".splitlines()[0]}


def _checked(
    config: Config, rows: dict[str, Any], logical: Sequence[int], budget: Budget, left_out: list[dict[str, str]]
) -> dict[str, Any] | None:
    """One step of the second batch, run whole, beside what was reckoned for it; of our fastest row that is not compiled."""
    larger = [size for size in logical if size > config.contributions]
    ran = [name for name in rows if name.startswith("ours") and "step_s" in rows[name] and name not in WARM_UP]
    if not larger or not ran:
        return None
    name, size = min(ran, key=lambda name: rows[name]["step_s"]), larger[0]
    expected = reckoned(rows[name], size)
    needed = 3.0 * expected + 2.0 * rows[name]["setting_up_s"] + rows[name]["first_step_s"]
    if needed > budget.left:
        told = f"a step of {size} run whole needs some {needed:.0f} s, and {max(0.0, budget.left):.0f} s of the budget are left"
        left_out.append({"config": config.name, "variant": f"{name}, {size} contributions run whole", "reason": told})
        return None
    row = _tried(replace(config, tiers=(Tier("all", size),)), name, 1, budget)
    if "step_s" not in row:
        told = row.get("left_out") or row["absent"]
        left_out.append({"config": config.name, "variant": f"{name}, {size} contributions run whole", "reason": told})
        return None
    told = {"config": config.name, "variant": name, "contributions": size, "run_s": row["step_s"], "reckoned_s": expected}
    return told | {"off": row["step_s"] / expected - 1.0}


def _waits(step: Step) -> int:
    """How many operations of a step make the CPU wait for the device."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="tiny models on the CPU: does the suite run?")
    parser.add_argument("--variants", nargs="+", default=list(ORDER), choices=list(VARIANTS), help="rows, in this order")
    parser.add_argument("--microbatch", type=int, help="contributions per microbatch, in place of each configuration's own")
    parser.add_argument("--only", nargs="+", help="configurations by name")
    parser.add_argument("--batches", nargs="+", type=int, help=f"contributions of a step; default: {LOGICAL}")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds of everything; default: %(default)g")
    parser.add_argument("--out", type=Path, default=Path("bench-gpu.json"))
    options = parser.parse_args()
    with redirect_stdout(sys.stderr):
        saved = run(options)
    if saved.get("results") and not options.smoke:
        options.out.write_text(json.dumps(saved, indent=1) + "\n")
        print(f"saved to {options.out}", file=sys.stderr)
    print(json.dumps(saved))


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Correctness, the noise of the device, and the table; or why nothing was run."""
    if not options.smoke and not torch.cuda.is_available():
        told = "no CUDA device here: the GPU suite did not run (--smoke runs its code on the CPU with tiny models)"
        print(told)
        return {"device": None, "absent": told}
    budget, device = Budget(options.budget), "cpu" if options.smoke else "cuda"
    distances = exact(device)
    print("sums beside a loop over contributions: " + ", ".join(f"{name} {value:.4g}" for name, value in distances.items()))
    chosen = [config for config in configs(options.smoke) if not options.only or config.name in options.only]
    if options.microbatch:
        chosen = [replace(config, microbatch=options.microbatch) for config in chosen]
    logical = sorted(options.batches or ((8, 16, 32) if options.smoke else LOGICAL))
    chosen = [replace(config, tiers=(Tier("all", logical[0]),)) for config in chosen]
    families = speed.survey(Policy.from_toml(_policy(chosen[0])), speed.device_of(device)).as_json()
    correct = budget.spent
    found = table(chosen, options.variants, options.rounds, logical, budget, print)
    cuda = {} if options.smoke else {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return {
        **versions(), "device": "cpu", **cuda, "smoke": options.smoke, "exactness": distances, "noise": families, "how": HOW,
        "logical": logical, "budget_s": options.budget, "correctness_s": correct, "spent_s": budget.spent, **found,
    }  # fmt: skip


def _row(row: dict[str, Any]) -> str:
    waits = "" if row["waits"] is None else f"  {row['waits']} waits"
    return (
        f"{row['step_s']:>9.3f} s for {row['contributions']}  {row['microbatch_s']:.4f} s a microbatch of {row['microbatch']}  "
        f"{row['release_s']:.3f} s besides  {row['peak_gib']:.1f} GiB{waits}"
    )


if __name__ == "__main__":
    main()
