"""What the probes at the start of a run cost: ``python -m benchmarks.start [--json]``.

Time in forward and backward passes of one full microbatch of the same run, and the process's peak memory after the probes
beside that after a step. By default a decoder of the shape of a 1.1-billion-parameter Llama, with random weights, under LoRA.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.configs import Config, Tier
from benchmarks.variants import prepared
from dptrain.planning.measure import peak_bytes

PASSES = 3.0
"""What all probes together may cost."""


def llama(dropout: float, *, small: bool = False, adapted: bool = True) -> nn.Module:
    """A causal language model of that shape; where it is ``adapted``, with LoRA of rank 16 on queries and values."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
        "num_key_value_heads": 4, "vocab_size": 32000,
    }  # fmt: skip
    if small:
        sizes |= {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=256))
    if not adapted:
        return model
    return get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj"], lora_dropout=dropout))


def measure(config: Config, threads: int) -> dict[str, Any]:
    """Runs the start and one step.

    Returns:
        ``pass_s``: CPU seconds of one full microbatch, the median of the step's. ``start_s``: of all probes. ``passes``: their
        ratio. ``peak_start``, ``peak_step``: bytes, of the process.
    """
    torch.set_num_threads(threads)
    root = Path(tempfile.mkdtemp(prefix="dptrain-bench-"))
    taken: list[float] = []
    try:
        with warnings.catch_warnings(), prepared(config, root) as (private, model, loss, optimizer, steps):
            warnings.simplefilter("ignore")
            before = time.process_time()
            for rows in private.prepared.probe.run():
                private.backward(loss(model, rows), rows)
            start = time.process_time() - before
            peak = peak_bytes(torch.device(config.device))
            private.prepared.begin()
            for rows in next(iter(steps)):
                before = time.process_time()
                private.backward(loss(model, rows), rows)
                taken.append(time.process_time() - before)
            optimizer.step()
            return {
                "pass_s": statistics.median(taken),
                "start_s": start,
                "passes": start / statistics.median(taken),
                "peak_start": peak,
                "peak_step": peak_bytes(torch.device(config.device)),
            }
    finally:
        shutil.rmtree(root, ignore_errors=True)


def render(found: dict[str, Any]) -> str:
    """One line."""
    start, step = (found[key] / 2**20 for key in ("peak_start", "peak_step"))
    return (
        f"start     CPU {found['start_s']:.1f} s, {found['passes']:.2f} passes of a microbatch ({found['pass_s']:.1f} s); "
        f"target {PASSES:g}; peak {start:.0f} MiB after the probes, {step:.0f} MiB after a step"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--microbatch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64, help="tokens")
    parser.add_argument("--small", action="store_true", help="a tiny model of the same kind")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    vocabulary, layers = 32000, 2 if options.small else 22
    config = Config(
        "llama_lora", vocabulary, partial(llama, small=options.small), classify=False, layers=layers, length=options.length,
        tiers=(Tier("all", 2 * options.microbatch),), microbatch=options.microbatch, dropout=0.05,
    )  # fmt: skip
    found = measure(config, options.threads)
    print(json.dumps(found) if options.json else render(found))


if __name__ == "__main__":
    main()
