"""Tiny models of the families that people train, with one loss per example; every one runs in float64 without dropout."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Family:
    model: nn.Module
    batch: Callable[[int, int], dict]
    """(examples, seed) -> inputs with examples in dimension 0."""
    losses: Callable[[nn.Module, dict], torch.Tensor]


VOCABULARY = 50
LENGTH = 7


def tokens(n: int, seed: int) -> dict:
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, VOCABULARY, (n, LENGTH), generator=g)
    mask = torch.ones_like(ids)
    mask[:, LENGTH - 1] = 0
    ids[:, LENGTH - 1] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, 3, (n,), generator=g)}


def classify(model: nn.Module, batch: dict) -> torch.Tensor:
    inputs = {k: v for k, v in batch.items() if k != "labels"}
    return nn.functional.cross_entropy(model(**inputs).logits, batch["labels"], reduction="none")


def _next_token(model: nn.Module, batch: dict) -> torch.Tensor:
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    target = batch["input_ids"][:, 1:]
    return nn.functional.cross_entropy(logits.mT, target, reduction="none").mean(1)


def bert() -> Family:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32, num_labels=3,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return Family(BertForSequenceClassification(config).double(), tokens, classify)


def gpt2(tied: bool = True) -> Family:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=3, n_head=2, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        tie_word_embeddings=tied, bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    return Family(GPT2LMHeadModel(config).double(), tokens, _next_token)


def llama() -> Family:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16, bos_token_id=1, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return Family(LlamaForCausalLM(config).double(), tokens, _next_token)


def vit() -> Family:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        num_channels=1, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip

    def batch(n: int, seed: int) -> dict:
        g = torch.Generator().manual_seed(seed)
        return {
            "pixel_values": torch.randn(n, 1, 8, 8, generator=g, dtype=torch.float64),
            "labels": torch.randint(0, 3, (n,), generator=g),
        }

    return Family(ViTForImageClassification(config).double(), batch, classify)


def _with_lora(family: Family, targets: list[str]) -> Family:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, lora_alpha=4, lora_dropout=0.0, target_modules=targets)
    model = get_peft_model(family.model, config).double()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.2)  # at zero the gradient of A vanishes and tests nothing
    return Family(model, family.batch, family.losses)


def bert_lora() -> Family:
    return _with_lora(bert(), ["query", "value", "dense"])


def gpt2_lora() -> Family:
    return _with_lora(gpt2(), ["c_attn", "c_proj", "c_fc"])


FAMILIES: dict[str, Callable[[], Family]] = {
    "bert": bert,
    "gpt2_tied": gpt2,
    "gpt2_untied": lambda: gpt2(tied=False),
    "llama": llama,
    "vit": vit,
    "bert_lora": bert_lora,
    "gpt2_lora": gpt2_lora,
}
