"""Measures text from references beside a plain cached loop of transformers over the same rows, in the same run.

    OMP_NUM_THREADS=1 python -m benchmarks.inference_ink --out benchmarks/inference_ink.json

The model is a Llama of 1.05 million parameters and random weights, with B = 7 references, on one thread. The plain loop runs
the same B + 1 rows through the model with a growing mask, and draws one token from the softmax of the first row. Ours pays,
aggregates, truncates, draws exactly and makes text besides. All are run in turns, so that a busy machine is busy for all;
the ratio is that of each turn, by processor time of the thread and by the clock, and its median and quartiles are said. Logits
are *peaked* (scaled so that near 60 tokens may be drawn, as of a trained model) or *flat* (as initialised: hundreds may be).
The test of the rows runs before, and is measured by itself. Ours has three arms: keys and values in buffers that are made once,
which is what is served; the model's own cache, which grows by a token; and the compiled step. The compiler's time is that of
the form with it, less that of the form without. The first kind of logits loads the compiler and begins from an empty cache of
kernels; the second has the same graph, and finds its kernels there, as a later program on the same machine does.

A token without privacy is one row of the plain loop; what a token of ours costs in those is said beside B + 1. Memory is the
growth of the resident set, at its peak, in a fresh process for each kind, from before the model is made, beside the bytes of
the model and of the caches of B + 1 rows. The test of the rows is in it, and of the compiled arm the compiler.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from benchmarks.__main__ import versions
from dptrain.inference.invisibleink import InvisibleInk, Plan, Task
from dptrain.inference.invisibleink.forward import Form, form_of
from dptrain.inference.invisibleink.rows import Prompts
from tests.worlds.ink import Meter, tokenizer

VOCABULARY, TOKENS, BATCH = 2048, 200, 7
TASK = Task(public="Write a line.", private="[[Like this: {reference}\n]]Write a line.", reference_tokens=64)
REFERENCES = ["a line of a length that does not matter, since all rows are padded"] * BATCH
KINDS = {"peaked": 24.0, "flat": 1.0}
"""Factors on the head's weights."""


ARMS = ("ours", "own cache", "compiled")

SIZES = {"1M": (128, 344, 4, 4), "25M": (512, 1376, 8, 8)}
"""Width, width of the products, layers and heads of the models whose memory is measured."""


def made(scale: float, size: str = "1M") -> Any:
    """Returns the model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    width, products, layers, heads = SIZES[size]
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=width, intermediate_size=products, num_hidden_layers=layers,
            num_attention_heads=heads, max_position_embeddings=512, tie_word_embeddings=True, pad_token_id=0, eos_token_id=None,
        )
    ).eval()  # fmt: skip
    if scale != 1.0:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * scale)
    return model


def plain(model: Any, count: int = BATCH + 1) -> None:
    """Generates as many tokens from ``count`` of the same rows by the loop that anybody would write."""
    rows = Prompts(tokenizer(), TASK).rows(REFERENCES)
    ids, mask, cache = rows.ids[-count:], rows.mask[-count:], None
    with torch.inference_mode():
        for _ in range(TOKENS):
            out = model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = out.past_key_values
            drawn = torch.multinomial(torch.softmax(out.logits[0, -1].float(), -1), 1)
            ids = drawn.expand(count, 1)
            mask = torch.cat([mask, torch.ones((count, 1), dtype=torch.long)], 1)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Returns seconds of the thread's processor time, and of the clock."""
    used, began = time.thread_time(), time.perf_counter()
    work()
    return time.thread_time() - used, time.perf_counter() - began


def ink_of(model: Any, arm: str) -> InvisibleInk:
    """Returns what generates by one of the arms; texts of it have no end before T."""
    plan = Plan.for_epsilon(10.0, delta=1e-6, batch=BATCH, tokens=TOKENS, tau=1.2)
    ink = InvisibleInk(model, tokenizer(), TASK, plan, compile=arm == "compiled")
    ink.ends = frozenset()
    if arm == "own cache":
        ink._forms[Prompts(tokenizer(), TASK).length] = Form(wide=True)
    return ink


def compiling(model: Any) -> float:
    """Returns the seconds of making the compiled step, and of holding it against the plain form."""
    rows = Prompts(tokenizer(), TASK).rows([None] * BATCH)
    plain, compiled = (timed(partial(form_of, model, rows, TOKENS, compile=one))[1] for one in (False, True))
    return compiled - plain


def spread(found: list[float]) -> dict[str, Any]:
    return {"median": median(found), "quartiles": [quantiles(found)[0], quantiles(found)[2]]}


def over(left: list[tuple[float, float]], right: list[tuple[float, float]]) -> dict[str, Any]:
    """Returns the ratio of times of each turn, by processor time and by the clock."""
    pairs = list(zip(left, right, strict=True))
    return {name: spread([a[place] / b[place] for a, b in pairs]) for place, name in enumerate(("processor", "clock"))}


def made_text(ink: InvisibleInk) -> object:
    """Makes one text, and returns it."""
    return ink.generate(REFERENCES, Meter())


def row(kind: str, turns: int) -> dict[str, Any]:
    """Measures one kind of logits."""
    model = made(KINDS[kind])
    seconds = compiling(model)
    inks = {arm: ink_of(model, arm) for arm in ARMS}
    tested = {arm: timed(ink.check)[1] for arm, ink in inks.items()}
    works: dict[str, Callable[[], object]] = {arm: partial(made_text, ink) for arm, ink in inks.items()}
    works |= {"plain": lambda: plain(model), "one row": lambda: plain(model, 1)}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(turns):
        for name, work in works.items():
            times[name].append(timed(work))
    costs = {arm: spread([a[0] / b[0] for a, b in zip(times[arm], times["one row"], strict=True)]) for arm in ARMS}
    return {
        "kind": kind,
        "tokens_per_processor_second": {name: TOKENS / median(one[0] for one in found) for name, found in times.items()},
        "ratio": over(times["plain"], times["ours"]),
        "ratio_of_own_cache": over(times["plain"], times["own cache"]),
        "ratio_of_compiled": over(times["plain"], times["compiled"]),
        "compiled_beside_ours": over(times["ours"], times["compiled"]),
        "cost_in_tokens_of_one_row": {**costs["ours"], "bound": BATCH + 1},
        "cost_of_compiled_in_tokens_of_one_row": {**costs["compiled"], "bound": BATCH + 1},
        "rows_tested_seconds": tested["ours"],
        "compiled_rows_tested_seconds": tested["compiled"],
        "compile_seconds": seconds,
        "turns": turns,
    }


def _resident(name: str) -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) << 10


def tensors(work: Callable[[], object]) -> int:
    """Returns how many bytes of tensors that work made were there at once, at most, by the profiler of torch."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    events = sorted((one for one in seen.profiler.kineto_results.events() if one.name() == "[memory]"), key=_start)
    return max(accumulate(one.nbytes() for one in events))


def _start(event: Any) -> int:
    return int(event.start_ns())


def grown(size: str, way: str) -> dict[str, Any]:
    """Generates one text in this process, and returns by how many bytes the resident set grew at most."""
    prompts = Prompts(tokenizer(), TASK)
    prompts.rows(REFERENCES)
    warm = made(1.0)  # what is loaded on first use is not the model's
    plain(warm)
    del warm
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # the peak counts from here
    before = _resident("VmRSS")
    model = made(KINDS["peaked"], size)
    counted, arm = None, way.removesuffix(", tensors")
    if arm in ARMS:
        ink = ink_of(model, arm)
        if arm == way:
            ink.generate(REFERENCES, Meter())
        else:
            ink.check()
            counted = tensors(lambda: ink.generate(REFERENCES, Meter()))
    elif way == "plain":
        plain(model)
    width, _, layers, _ = SIZES[size]
    bytes_of_model = sum(one.numel() * one.element_size() for one in model.parameters())
    caches = (BATCH + 1) * 2 * layers * width * 4 * (prompts.length + TOKENS)
    most = _resident("VmHWM") - before if counted is None else bytes_of_model + counted
    return {
        "model": size, "way": way, "grown": most, "bytes_of_model": bytes_of_model, "caches": caches,
        "over": most / (bytes_of_model + (caches if way != "model" else 0)),
    }  # fmt: skip


def memory() -> list[dict[str, Any]]:
    """Returns `grown` of each size and way, in fresh processes: making the model alone, the plain loop, each arm; and two arms
    by bytes of tensors, the rows tested before, in place of the resident set.

    A cache that grows by a token leaves freed blocks behind, which the C library keeps by default and gives back where the size
    of what it maps by itself is fixed. Both are measured; they are the same program.
    """
    ways = {"default": ("model", "plain", "own cache", "ours")}
    ways["fixed"] = (*ways["default"], "compiled", "ours, tensors", "compiled, tensors")
    found = []
    for allocator, more in (("default", {}), ("fixed", {"MALLOC_MMAP_THRESHOLD_": "131072"})):
        for size in SIZES:
            for way in ways[allocator]:
                asked = [sys.executable, "-m", "benchmarks.inference_ink", "--grown", size, way]
                env = {**os.environ, "OMP_NUM_THREADS": "1", **more}
                done = subprocess.run(asked, capture_output=True, text=True, check=True, env=env)
                found.append({"allocator": allocator, **json.loads(done.stdout.splitlines()[-1])})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--grown", nargs=2, metavar=("SIZE", "WAY"), help="measure the memory of this process and end")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="inductor-")  # nothing that was compiled before
    if asked.grown:
        print(json.dumps(grown(*asked.grown)))
        return
    parameters = sum(one.numel() for one in made(1.0).parameters())
    rows = [row(kind, asked.turns) for kind in KINDS]
    found = {**versions(), "parameters": parameters, "B": BATCH, "T": TOKENS, "rows": rows, "memory": memory()}
    text = json.dumps(found, indent=1)
    print(text)
    if asked.out:
        asked.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
