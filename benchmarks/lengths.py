"""Steps over texts of several lengths: padded to public lengths that contributions signed, and all padded to the longest.

``python -m benchmarks.lengths --data e2e_train.jsonl.gz --bpe gpt2_bpe`` trains a small GPT-2 under LoRA on E2E NLG, twice at
the same noise. Steps of both runs take turns in one process. Prints CPU seconds per drawn contribution, their ratio, the tokens
that a row has on average, and the epsilon of both.
"""

import argparse
import gzip
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dptrain import Microbatches, PrivateTraining


def model_of(vocabulary: int, longest: int) -> nn.Module:
    """A GPT-2 of 6 layers and width 256 with random weights, LoRA of rank 8 on attention."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_embd": 256, "n_layer": 6, "n_head": 4, "n_positions": longest}
    config = GPT2Config(vocab_size=vocabulary, **sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    return get_peft_model(GPT2LMHeadModel(config), LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True))


def losses(model: nn.Module, rows: Any) -> torch.Tensor:
    """Mean loss of the next token of every example, over its own tokens."""
    logits = model(input_ids=rows["input_ids"], attention_mask=rows["mask"]).logits[:, :-1]
    each = nn.functional.cross_entropy(logits.mT, rows["input_ids"][:, 1:], reduction="none")
    shown = rows["mask"][:, 1:].to(each.dtype)
    return (each * shown).sum(1) / shown.sum(1).clamp(min=1)


def collate_to(longest: int) -> Callable[..., dict[str, torch.Tensor]]:
    """Pads to the length that it is told, else to the longest."""

    def collate(examples: list[dict], length: int = longest) -> dict[str, torch.Tensor]:
        ids = [example["input_ids"][:length] for example in examples]
        mask = [[1] * len(each) + [0] * (length - len(each)) for each in ids]
        return {"input_ids": torch.tensor([each + [0] * (length - len(each)) for each in ids]), "mask": torch.tensor(mask)}

    return collate


def steps_of(folder: Path, records: list[dict], lengths: tuple[int, ...], longest: int, vocabulary: int, batch: int) -> Any:
    """Opens a run; yields of every step its CPU seconds, the contributions that it drew and their tokens, and first the run."""
    own = {"public_lengths": lengths} if lengths else {}
    private = PrivateTraining.own(
        records, batch_size=batch, directory=folder, progress=False, microbatches=Microbatches(16), **own
    )
    model = model_of(vocabulary, longest)
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-3)
    _, _, steps = private.prepare(model, optimizer, collate_to(longest))

    def each() -> Iterator[tuple[float, int, int]]:
        for step in steps:
            drawn = tokens = 0
            before = time.process_time()
            for rows in step:
                if private.prepared.probe.active:
                    private.backward(losses(model, rows), rows)
                    before = time.process_time()
                    continue
                drawn += rows.contributions
                tokens += rows["input_ids"].numel()
                private.backward(losses(model, rows), rows)
            optimizer.step()
            yield time.process_time() - before, drawn, tokens

    return private, each()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--bpe", type=Path, required=True, help="folder with vocab.json and merges_noheader.txt")
    parser.add_argument("--records", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--lengths", type=int, nargs="+", default=[40, 48, 56, 64, 80, 96])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    from transformers import GPT2TokenizerFast

    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    tokenizer = GPT2TokenizerFast(str(options.bpe / "vocab.json"), str(options.bpe / "merges_noheader.txt"))
    with gzip.open(options.data, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(options.records), strict=False)]
    records = [{"input_ids": tokenizer(f"{row['mr']} | {row['ref']}")["input_ids"]} for row in rows]
    counts = sorted(len(record["input_ids"]) for record in records)
    longest, lengths = max(options.lengths), tuple(options.lengths)
    median = statistics.median(counts)
    print(f"{len(records)} texts of {counts[0]} to {counts[-1]} tokens, median {median:g}; longest row {longest}")
    with tempfile.TemporaryDirectory(prefix="dptrain-bench-") as root:
        size = (longest, len(tokenizer), options.batch_size)
        given = {"lengths": lengths, "longest": ()}
        runs = {name: steps_of(Path(root) / name, records, own, *size) for name, own in given.items()}
        found: dict[str, list[tuple[float, int, int]]] = {name: [] for name in runs}
        for _ in range(options.steps):
            for name, (_, steps) in runs.items():
                found[name].append(next(steps))
        each = {name: [seconds / max(drawn, 1) for seconds, drawn, _ in taken[1:]] for name, taken in found.items()}
        for name, (private, _) in runs.items():
            drawn, tokens = (sum(one[place] for one in found[name]) for place in (1, 2))
            print(
                f"{name}: {1e3 * statistics.median(each[name]):.2f} ms of CPU a contribution ({1e3 * min(each[name]):.2f} to "
                f"{1e3 * max(each[name]):.2f}), {tokens / drawn:.1f} tokens a row, epsilon "
                f"{private.epsilon()['own'].planned:.4f}"
            )
            private.close()
        ratios = [one / other for one, other in zip(each["longest"], each["lengths"], strict=True)]
        print(f"longest / lengths: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
