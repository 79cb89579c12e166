"""``make gpu``: private steps on a CUDA device, beside the same steps without privacy.

First small models on the device: are the router's sums those of a loop over contributions, in float64 and in float32, and is a
release there the release that it is on the CPU? If not, it stops. Then, under bfloat16 autocast, logical batches of 256
contributions, T = 512: a GPT-2 of 124 million parameters, fully trained, and a Llama of about a billion from its configuration,
with LoRA. Weights are random; nothing is downloaded. Prints seconds per step, their ratio to the fastest step without privacy
(torch's own, or compiled), tokens per second, peak device memory, and how often a step waits for the device. Where memory is
short, give ``--microbatch`` a smaller number.

Without CUDA it says so and succeeds; ``--smoke`` runs the same code on the CPU with tiny models, to know that it runs.
"""

import argparse
import gc
import json
import random
import statistics
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import exactness
from benchmarks.__main__ import versions
from benchmarks.bases import BASES
from benchmarks.configs import Config, Tier, gpt2, lora
from benchmarks.variants import VARIANTS, WARM_UP, Step, absent_from


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
            length=16, microbatch=4, half=True,
        )  # fmt: skip
        return [small, replace(small, name="llama_lora_smoke", make=lambda p: lora(llama(32, 2, 4, 64, 64), p, False))]
    large = Config(
        "gpt2_124m", 50257, lambda p: gpt2(p, True, 12, 768, 50257, 12), classify=False, tiers=(Tier("all", 256),), layers=12,
        length=512, microbatch=16, device="cuda", half=True,
    )  # fmt: skip
    billion = replace(
        large, name="llama_1b_lora", vocabulary=128256, make=lambda p: lora(llama(2048, 16, 32, 8192, 128256), p, False),
        layers=16, microbatch=4,
    )  # fmt: skip
    return [large, billion]


def exact(device: str) -> dict[str, float]:
    """Distance of the router's sums from a naive loop, by model and precision.

    Raises:
        RuntimeError: one is larger than rounding explains, or a release differs from that on the CPU.
    """
    found = {}
    for config in configs(smoke=True):
        for dtype, tolerance in exactness.TOLERANCE.items():
            name = f"{config.name.removesuffix('_smoke')} {str(dtype).removeprefix('torch.')}"
            found[name] = exactness.distance(replace(config, device=device), dtype)
            if not found[name] < tolerance:
                raise RuntimeError(f"{name}: sums are {found[name]:.1e} from those of a loop, expected below {tolerance:.0e}")
    if not exactness.same_release(device):
        raise RuntimeError("a sum is released to other numbers on the device than on the CPU")
    if not exactness.same_device_noise(device):
        raise RuntimeError("the generator of noise on the device draws other numbers there than on the CPU")
    return found


def measure(
    config: Config, rounds: int, variants: Sequence[str] = ("ours_fast",), bases: Sequence[str] = tuple(BASES)
) -> dict[str, dict[str, Any]]:
    """Each variant alone on the device: median step seconds after a warm-up, tokens per second, peak memory, waits per step.

    Raises:
        RuntimeError: no step without privacy ran.
    """
    cuda = config.device == "cuda"
    absent = absent_from(config)
    found: dict[str, dict[str, Any]] = {name: {"absent": absent[name]} for name in bases if name in absent}
    names = [*(name for name in bases if name not in absent), *variants]
    for name in random.sample(names, len(names)):
        gc.collect()  # what the variant before held is gone before the peak is reset
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            found[name] = _measured(config, name, rounds, cuda)
        except Exception as error:
            found[name] = {"absent": f"{type(error).__name__}: {error}".splitlines()[0]}
    seconds = {name: found[name]["step_s"] for name in bases if "step_s" in found[name]}
    if not seconds:
        reasons = "; ".join(f"{name}: {found[name]['absent']}" for name in bases)
        raise RuntimeError(f"no step without privacy ran: {reasons}")
    base = min(seconds, key=lambda name: seconds[name])
    for row in found.values():
        if "absent" not in row:
            row |= {"ratio": row["step_s"] / seconds[base], "base": base}
    return found


def _measured(config: Config, name: str, rounds: int, cuda: bool) -> dict[str, Any]:
    seconds = []
    warm_up = WARM_UP.get(name, 1)
    with VARIANTS[name](config) as step:
        for _ in range(warm_up + rounds):
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
            step()
            if cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        waits = _waits(step) if cuda else None
    median = statistics.median(seconds[warm_up:])
    return {
        "step_s": median,
        "tokens_per_s": config.contributions * config.length / median,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0,
        "waits": waits,
        "warm_up_s": seconds[0],
    }


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
    parser.add_argument(
        "--variants",
        nargs="+",
        default=["ours_fast", "ours_device_noise"],
        choices=[name for name in VARIANTS if "ours" in name],
    )
    parser.add_argument("--microbatch", type=int, help="contributions per microbatch, in place of each configuration's own")
    parser.add_argument("--only", nargs="+", help="configurations by name")
    parser.add_argument("--out", type=Path, default=Path("bench-gpu.json"))
    options = parser.parse_args()
    if not options.smoke and not torch.cuda.is_available():
        print("no CUDA device here: the GPU suite did not run (--smoke runs its code on the CPU with tiny models)")
        return
    distances = exact("cpu" if options.smoke else "cuda")
    print("sums beside a loop over contributions: " + ", ".join(f"{name} {value:.1e}" for name, value in distances.items()))
    results: dict[str, Any] = {}
    for config in configs(options.smoke):
        if options.only and config.name not in options.only:
            continue
        if options.microbatch:
            config = replace(config, microbatch=options.microbatch)
        results[config.name] = measure(config, options.rounds, options.variants)
        for name, row in results[config.name].items():
            print(f"{config.name:<18}{name:<29}" + (f"absent: {row['absent']}" if "absent" in row else _row(row)), flush=True)
    if options.smoke:
        print("smoke run only: these figures mean nothing")
        return
    device = {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    saved = versions() | device | {"exactness": distances, "results": results}
    options.out.write_text(json.dumps(saved, indent=1) + "\n")
    print(f"saved to {options.out}")


def _row(row: dict[str, Any]) -> str:
    waits = "" if row["waits"] is None else f"  {row['waits']} waits"
    return (
        f"{row['step_s']:>9.3f} s/step  {row['ratio']:.2f} of {row['base']}  {row['tokens_per_s']:>10.0f} tokens/s  "
        f"{row['peak_gib']:.1f} GiB{waits}"
    )


if __name__ == "__main__":
    main()
