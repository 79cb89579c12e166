"""Models, batches and losses that the step benchmark compares: real shapes, random tokens."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

CONTRIBUTIONS = 64
"""Contributions of one logical step."""

MICROBATCH = 16
LENGTH = 128


@dataclass(frozen=True)
class Config:
    """One benchmark configuration; every variant starts from ``model()`` and sees the same tokens."""

    name: str
    vocabulary: int
    model: Callable[[], nn.Module]
    classify: bool
    opacus_ghost: bool = True

    def tokens(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids (contributions, length) and labels, the same for every variant."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, self.vocabulary, (CONTRIBUTIONS, LENGTH), generator=generator)
        return ids, torch.randint(0, 2, (CONTRIBUTIONS,), generator=generator)

    def logits(self, model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Class logits (B, 2), or next-token logits (B, T-1, V); position ids are explicit, which Opacus needs."""
        positions = torch.arange(ids.shape[1]).expand(ids.shape[0], -1).contiguous()
        out = model(input_ids=ids, position_ids=positions).logits
        return out if self.classify else out[:, :-1]

    def targets(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return labels if self.classify else ids[:, 1:]

    def losses(self, model: nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """One loss per contribution."""
        logits, targets = self.logits(model, ids), self.targets(ids, labels)
        if self.classify:
            return nn.functional.cross_entropy(logits, targets, reduction="none")
        return nn.functional.cross_entropy(logits.mT, targets, reduction="none").mean(1)


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(
            vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def _gpt2(tied: bool) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=8000, n_embd=384, n_layer=6, n_head=6, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            tie_word_embeddings=tied, bos_token_id=1, eos_token_id=1,
        )
    )  # fmt: skip


CONFIGS = {
    config.name: config
    for config in (
        Config("bert_full", 30522, _bert, classify=True),
        Config("gpt2_tied", 8000, lambda: _gpt2(True), classify=False, opacus_ghost=False),
        Config("gpt2_untied", 8000, lambda: _gpt2(False), classify=False),
    )
}
