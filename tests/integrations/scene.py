"""A tiny causal language model, rows of token ids of unequal length, and runs over them that draw alike under a test key."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from dptrain import Microbatches, NoiseSource, PrivateTraining

KEY = b"\x35" * 32
LENGTH = 8
STEPS = 6


def rows(count: int = 12, first: int = 0) -> list[dict[str, list[int]]]:
    """Token ids of unequal lengths, with labels for all of them."""
    made = []
    for number in range(first, first + count):
        ids = [2 + (number * 7 + 3 * place) % 48 for place in range(3 + number % 5)]
        made.append({"input_ids": ids, "labels": ids})
    return made


def padded(examples: list[Any]) -> dict[str, torch.Tensor]:
    """A collator that pads to the longest of a batch, as those of transformers do."""
    longest = max(len(example["input_ids"]) for example in examples)
    return {
        key: torch.tensor([list(example[key]) + [0] * (longest - len(example[key])) for example in examples])
        for key in ("input_ids", "labels")
    }


def language_model(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=16, bos_token_id=1, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(dtype)


def run(folder: Path, name: str, data: Any = None, **options: Any) -> PrivateTraining:
    """Opens a run of `STEPS` steps over the rows of a folder, with a ledger of its own, under the test key."""
    given = {"noise": NoiseSource(insecure_test_key=KEY), "microbatches": Microbatches(4), "progress": False} | options
    return PrivateTraining.own(
        rows() if data is None else data, target_epsilon=8.0, epochs=STEPS / 2, batch_size=6, directory=folder / "own",
        ledger=folder / f"{name}.db", **given,
    )  # fmt: skip


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return list(first) == list(second) and all(torch.equal(value, second[name]) for name, value in first.items())
