"""``make gpu``: private steps on a CUDA device, beside the same steps without privacy.

bfloat16 autocast, logical batches of 256 contributions, T = 512: a GPT-2 of 124 million parameters, fully trained, and a
Llama of about a billion from its configuration, with LoRA. Weights are random; nothing is downloaded. Prints seconds per
step, their ratio, tokens per second and peak device memory.

Without CUDA it says so and succeeds; ``--smoke`` runs the same code on the CPU with tiny models, to know that it runs.
"""

import argparse
import json
import random
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.__main__ import versions
from benchmarks.configs import Config, Tier, gpt2, lora
from benchmarks.variants import VARIANTS


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
            "gpt2_smoke", 64, lambda: gpt2(True, 2, 32, 64, 2), classify=False, tiers=(Tier("all", 8),), layers=2, length=16,
            microbatch=4, half=True,
        )  # fmt: skip
        return [small, replace(small, name="llama_lora_smoke", model=lambda: lora(llama(32, 2, 4, 64, 64), False))]
    large = Config(
        "gpt2_124m", 50257, lambda: gpt2(True, 12, 768, 50257, 12), classify=False, tiers=(Tier("all", 256),), layers=12,
        length=512, microbatch=16, device="cuda", half=True,
    )  # fmt: skip
    billion = replace(
        large, name="llama_1b_lora", vocabulary=128256, model=lambda: lora(llama(2048, 16, 32, 8192, 128256), False),
        layers=16, microbatch=4,
    )  # fmt: skip
    return [large, billion]


def measure(config: Config, rounds: int) -> dict[str, dict[str, float]]:
    """Each variant alone on the device: median step seconds after a warm-up, tokens per second, peak memory."""
    cuda = config.device == "cuda"
    found: dict[str, dict[str, float]] = {}
    for name in random.sample(["non_private", "ours_fast"], 2):
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        seconds = []
        with VARIANTS[name](config) as step:
            for _ in range(rounds + 1):
                if cuda:
                    torch.cuda.synchronize()
                start = time.perf_counter()
                step()
                if cuda:
                    torch.cuda.synchronize()
                seconds.append(time.perf_counter() - start)
        median = statistics.median(seconds[1:])
        found[name] = {
            "step_s": median,
            "tokens_per_s": config.contributions * config.length / median,
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0,
        }
    for row in found.values():
        row["ratio"] = row["step_s"] / found["non_private"]["step_s"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="tiny models on the CPU: does the suite run?")
    parser.add_argument("--out", type=Path, default=Path("bench-gpu.json"))
    options = parser.parse_args()
    if not options.smoke and not torch.cuda.is_available():
        print("no CUDA device here: the GPU suite did not run (--smoke runs its code on the CPU with tiny models)")
        return
    results: dict[str, Any] = {}
    for config in configs(options.smoke):
        results[config.name] = measure(config, options.rounds)
        for name, row in results[config.name].items():
            print(
                f"{config.name:<18}{name:<13}{row['step_s']:>9.3f} s/step  ratio {row['ratio']:.2f}  "
                f"{row['tokens_per_s']:>10.0f} tokens/s  {row['peak_gib']:.1f} GiB",
                flush=True,
            )
    if options.smoke:
        print("smoke run only: these figures mean nothing")
        return
    device = {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    options.out.write_text(json.dumps(versions() | device | {"results": results}, indent=1) + "\n")
    print(f"saved to {options.out}")


if __name__ == "__main__":
    main()
