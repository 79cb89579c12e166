"""Measures text from references beside a plain cached loop of transformers over the same rows, in the same run.

    OMP_NUM_THREADS=1 python -m benchmarks.inference_ink --out benchmarks/inference_ink.json

The model is a Llama of 1.05 million parameters and random weights, with B = 7 references, on one thread. The plain loop runs
the same B + 1 rows through the model with a growing mask, and draws one token from the softmax of the first row. Ours pays,
aggregates, truncates, draws exactly and makes text besides. Both are run in turns, so that a busy machine is busy for both;
the ratio is that of each turn, by processor time of the thread and by the clock, and its median and quartiles are said. Logits
are *peaked* (scaled so that near 60 tokens may be drawn, as of a trained model) or *flat* (as initialised: hundreds may be).
The test of the rows runs before, and is measured by itself.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from benchmarks.__main__ import versions
from dptrain.inference.invisibleink import InvisibleInk, Plan, Task
from dptrain.inference.invisibleink.rows import Prompts
from tests.worlds.ink import Meter, tokenizer

VOCABULARY, TOKENS, BATCH = 2048, 200, 7
TASK = Task(public="Write a line.", private="[[Like this: {reference}\n]]Write a line.", reference_tokens=64)
REFERENCES = ["a line of a length that does not matter, since all rows are padded"] * BATCH
KINDS = {"peaked": 24.0, "flat": 1.0}
"""Factors on the head's weights."""


def made(scale: float) -> Any:
    """Returns the model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=128, intermediate_size=344, num_hidden_layers=4, num_attention_heads=4,
            max_position_embeddings=512, tie_word_embeddings=True, pad_token_id=0, eos_token_id=None,
        )
    ).eval()  # fmt: skip
    if scale != 1.0:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * scale)
    return model


def plain(model: Any) -> None:
    """Generates as many tokens from the same rows by the loop that anybody would write."""
    rows = Prompts(tokenizer(), TASK).rows(REFERENCES)
    ids, mask, cache = rows.ids, rows.mask, None
    with torch.inference_mode():
        for _ in range(TOKENS):
            out = model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = out.past_key_values
            drawn = torch.multinomial(torch.softmax(out.logits[0, -1].float(), -1), 1)
            ids = drawn.expand(BATCH + 1, 1)
            mask = torch.cat([mask, torch.ones((BATCH + 1, 1), dtype=torch.long)], 1)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Returns seconds of the thread's processor time, and of the clock."""
    used, began = time.thread_time(), time.perf_counter()
    work()
    return time.thread_time() - used, time.perf_counter() - began


def row(kind: str, turns: int) -> dict[str, Any]:
    """Measures one kind of logits."""
    model = made(KINDS[kind])
    plan = Plan.for_epsilon(10.0, delta=1e-6, batch=BATCH, tokens=TOKENS, tau=1.2)
    ink = InvisibleInk(model, tokenizer(), TASK, plan)
    ink.ends = frozenset()  # ours has no end before T
    tested = timed(ink.check)[1]
    ours, theirs = [], []
    for _ in range(turns):
        ours.append(timed(lambda: ink.generate(REFERENCES, Meter())))
        theirs.append(timed(lambda: plain(model)))
    ratios = {}
    for place, name in enumerate(("processor", "clock")):
        found = [b[place] / a[place] for a, b in zip(ours, theirs, strict=True)]
        ratios[name] = {"median": median(found), "quartiles": [quantiles(found)[0], quantiles(found)[2]]}
    rates = {"ours": TOKENS / median(one[0] for one in ours), "plain": TOKENS / median(one[0] for one in theirs)}
    return {"kind": kind, "tokens_per_processor_second": rates, "ratio": ratios, "rows_tested_seconds": tested, "turns": turns}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    parameters = sum(one.numel() for one in made(1.0).parameters())
    rows = [row(kind, asked.turns) for kind in KINDS]
    found = {**versions(), "parameters": parameters, "B": BATCH, "T": TOKENS, "rows": rows}
    text = json.dumps(found, indent=1)
    print(text)
    if asked.out:
        asked.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
