"""Makes two models with random weights, and made-up data of their shapes, for all programs here.

``BESIDE_SMALL=1`` in the environment makes both small, for tests.
"""

import os
from typing import Any

import torch
from torch import nn

SMALL = os.environ.get("BESIDE_SMALL") == "1"
LENGTH = 16 if SMALL else 64
VOCABULARY = 200 if SMALL else 30_522
CONTRIBUTIONS = 48 if SMALL else 2_048
BATCH = 12 if SMALL else 64
PART = 4 if SMALL else 16
"""Examples that are computed at a time, a matter of memory."""
EPOCHS = 3
CLIP = 1.0
MULTIPLIER = 1.0
DELTA = 1e-6

_WIDTH, _LAYERS, _HEADS = (32, 2, 2) if SMALL else (384, 6, 6)


def bert() -> nn.Module:
    """Returns a classifier of the shape of MiniLM: 6 layers of width 384, dropout 0.1."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": _WIDTH, "num_hidden_layers": _LAYERS, "num_attention_heads": _HEADS}
    config = BertConfig(vocab_size=VOCABULARY, intermediate_size=4 * _WIDTH, max_position_embeddings=128, **sizes)
    return BertForSequenceClassification(config).train()


def gpt2_lora() -> nn.Module:
    """Returns a GPT-2 of 6 layers of width 384, dropout 0.1, with LoRA of rank 8 on queries, keys and values."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=128, n_embd=_WIDTH, n_layer=_LAYERS, n_head=_HEADS, bos_token_id=0, eos_token_id=0
    )
    lora = LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn"], fan_in_fan_out=True)
    return get_peft_model(GPT2LMHeadModel(config), lora).train()


def reviews() -> list[dict[str, Any]]:
    """Returns token ids (T,) with a label each, which says in which half of the vocabulary they lie."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (CONTRIBUTIONS,), generator=draw)
    words = torch.randint(0, VOCABULARY // 2, (CONTRIBUTIONS, LENGTH), generator=draw)
    shifted = words + labels[:, None] * (VOCABULARY // 2)
    return [{"input_ids": ids, "labels": label} for ids, label in zip(shifted, labels, strict=True)]


def texts() -> list[dict[str, Any]]:
    """Returns token ids (T,), each text an arithmetic sequence of its own, so that the next token can be learnt."""
    draw = torch.Generator().manual_seed(0)
    numbers = torch.randperm(VOCABULARY * 8, generator=draw)[:CONTRIBUTIONS, None]
    return [{"input_ids": ids} for ids in (numbers // 8 + torch.arange(LENGTH) * (1 + numbers % 8)) % VOCABULARY]
