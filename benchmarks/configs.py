"""Models, batches and losses that the benchmarks compare: real shapes, random tokens or pictures."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Protocol

import torch
from torch import nn


@dataclass(frozen=True)
class Tier:
    """One admissibility class of a configuration: how many contributions, and how much of the depth they may touch."""

    name: str
    contributions: int
    share: float = 1.0
    """Top share of the layers; 1.0 is all of them and the embeddings."""


class Inputs(Protocol):
    """Makes up what a model reads of a contribution: the same for every variant, and small enough for a line of a corpus."""

    unit: str
    """Names what a rate counts."""

    def made(self, config: "Config", generator: torch.Generator) -> torch.Tensor:
        """Those of a logical step, (contributions, ...)."""

    def count(self, config: "Config") -> int:
        """Units of one contribution."""

    def recorded(self, row: torch.Tensor, place: int) -> Any:
        """Returns what a line of the corpus holds of one contribution, the ``place``-th."""

    def read(self, record: Any) -> torch.Tensor:
        """The row of a line."""

    def logits(self, model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        """Class logits (B, classes), or next-token logits (B, T, V)."""


class Tokens:
    """Token ids, (contributions, length)."""

    unit = "tokens"

    def made(self, config: "Config", generator: torch.Generator) -> torch.Tensor:
        return torch.randint(0, config.vocabulary, (config.contributions, config.length), generator=generator)

    def count(self, config: "Config") -> int:
        return config.length

    def recorded(self, row: torch.Tensor, place: int) -> list[int]:
        return row.tolist()

    def read(self, record: Any) -> torch.Tensor:
        return torch.tensor(record)

    def logits(self, model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        """With explicit position ids, which Opacus needs."""
        positions = torch.arange(rows.shape[1], device=rows.device).expand(rows.shape[0], -1).contiguous()
        return model(input_ids=rows, position_ids=positions).logits


@dataclass(frozen=True)
class Pictures:
    """Pictures of three channels, (contributions, 3, side, side); a line of the corpus names one of a few that are kept."""

    side: int
    distinct: int = 64
    unit = "pictures"

    def made(self, config: "Config", generator: torch.Generator) -> torch.Tensor:
        return _pictures(self)[torch.arange(config.contributions) % self.distinct]

    def count(self, config: "Config") -> int:
        return 1

    def recorded(self, row: torch.Tensor, place: int) -> int:
        return place

    def read(self, record: Any) -> torch.Tensor:
        return _pictures(self)[record % self.distinct]

    def logits(self, model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        return model(pixel_values=rows).logits


@lru_cache(maxsize=4)
def _pictures(kind: Pictures) -> torch.Tensor:
    return torch.randn(kind.distinct, 3, kind.side, kind.side, generator=torch.Generator().manual_seed(0))


TOKENS = Tokens()


@dataclass(frozen=True)
class Config:
    """One benchmark configuration; every variant starts from ``model()`` and sees the same inputs.

    Args:
        make: builds the model, with the dropout that it is given.
    """

    name: str
    vocabulary: int
    make: Callable[[float], nn.Module]
    classify: bool
    tiers: tuple[Tier, ...] = (Tier("all", 64),)
    absent: dict[str, str] = field(default_factory=dict)
    """Variants that cannot run it, and why."""
    layers: int = 6
    inputs: Inputs = TOKENS
    length: int = 128
    """Tokens of a contribution, where inputs are tokens."""
    microbatch: int = 16
    device: str = "cpu"
    half: bool = False
    """Forward under bfloat16 autocast."""
    dropout: float = 0.0
    """Probability of dropout: on hidden states, attention weights, and the inputs of LoRA."""
    target: float | None = None
    """CPU ratio to reach."""
    target_of_bands: float | None = None
    """CPU ratio to reach, as a multiple of the bands' own steps without privacy."""

    @property
    def title(self) -> str:
        """Name of the configuration, with its dropout if it has any, and with its precision where that is half."""
        return self.name + f" dropout={self.dropout:g}" * bool(self.dropout) + " bfloat16" * self.half

    def model(self) -> nn.Module:
        """A new model, made on its device: the weights of a large one take long to draw on a processor."""
        with torch.device(self.device):
            return self.make(self.dropout)

    @property
    def contributions(self) -> int:
        """Contributions of one logical step."""
        return sum(tier.contributions for tier in self.tiers)

    @property
    def banded(self) -> bool:
        return any(tier.share < 1.0 for tier in self.tiers)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs (contributions, ...) and labels, the same for every variant."""
        generator = torch.Generator().manual_seed(0)
        inputs = self.inputs.made(self, generator)
        labels = torch.randint(0, 2, (self.contributions,), generator=generator)
        return inputs.to(self.device), labels.to(self.device)

    def logits(self, model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        """Class logits (B, classes), or next-token logits (B, T, V)."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.half):
            return self.inputs.logits(model, rows).float()

    def targets(self, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Classes (B,), or the token after each (B, T) and none after the last, as transformers' own losses take them."""
        return labels if self.classify else nn.functional.pad(rows[:, 1:], (0, 1), value=-100)

    def losses(self, model: nn.Module, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """One loss per contribution."""
        logits, targets = self.logits(model, rows), self.targets(rows, labels)
        if self.classify:
            return nn.functional.cross_entropy(logits, targets, reduction="none")
        each = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
        return each.sum(1) / (targets.shape[1] - 1)


def bert(dropout: float, layers: int = 6, width: int = 384, vocabulary: int = 30522, length: int = 512) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(
            vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers, num_attention_heads=max(1, width // 64),
            intermediate_size=4 * width, max_position_embeddings=length, hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )  # fmt: skip


def gpt2(dropout: float, tied: bool, layers: int = 6, width: int = 384, vocabulary: int = 8000, heads: int = 6) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary, n_embd=width, n_layer=layers, n_head=heads, resid_pdrop=dropout, embd_pdrop=dropout,
            attn_pdrop=dropout, tie_word_embeddings=tied, bos_token_id=1, eos_token_id=1,
        )
    )  # fmt: skip


def vit(dropout: float, layers: int = 12, width: int = 768, heads: int = 12, side: int = 224, patch: int = 16) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * width,
            image_size=side, patch_size=patch, num_labels=1000, hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )  # fmt: skip


def lora(model: nn.Module, dropout: float, transposed: bool) -> nn.Module:
    """LoRA of rank 16 on every linear layer but the head; nothing else trains."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=16, target_modules="all-linear", lora_dropout=dropout, fan_in_fan_out=transposed)
    return get_peft_model(model, config)


def opened(model: nn.Module) -> nn.Module:
    """LoRA starts with one factor of zero, where half of the gradients are zero; here it does not."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    return model


TIED = {"opacus_ghost": "Opacus' ghost clipping refuses tied parameters"}
PEERS = ("opacus_hooks", "opacus_ghost", "fastdp")
"""Other libraries: they take a fifth of the time of all, and change least."""

MASKS = dict.fromkeys(PEERS, "it has no masks per contribution")

SKIPPED = dict.fromkeys((*PEERS, "ours_certified", "ours_compiled"), "not part of the scaling runs")
UNCOMPILED = SKIPPED | {
    f"{name}_compiled{also}": "the scaling runs compare what is not compiled"
    for name in ("non_private", "non_private_bands")
    for also in ("", "_onednn")
}

THIRDS = (Tier("full", 16), Tier("half", 16, 0.5), Tier("quarter", 16, 0.25))

EIGHT = partial(bert, layers=8)

CONFIGS = {
    config.name: config
    for config in (
        Config("bert_full", 30522, bert, classify=True, target=1.15),
        Config("gpt2_tied", 8000, lambda p: gpt2(p, True), classify=False, absent=TIED, target=1.20),
        Config("gpt2_untied", 8000, lambda p: gpt2(p, False), classify=False, target=1.12),
        Config("bert_lora", 30522, lambda p: lora(bert(p), p, False), classify=True, target=1.03),
        Config("gpt2_lora", 8000, lambda p: lora(gpt2(p, True), p, True), classify=False, target=1.03),
        Config("bert_band25", 30522, EIGHT, classify=True, tiers=(Tier("quarter", 64, 0.25),), layers=8, target=0.55),
        Config("mixed3", 30522, EIGHT, classify=True, tiers=THIRDS, layers=8, absent=MASKS, target_of_bands=1.10),
    )
}


ONE = (Tier("all", 32),)


def _small(name: str, layers: int = 4, width: int = 128, length: int = 64, tiers: tuple[Tier, ...] = ONE) -> Config:
    return Config(
        name, 2000, lambda p: bert(p, layers, width, 2000), classify=True, tiers=tiers, layers=layers, length=length,
        absent=UNCOMPILED,
    )  # fmt: skip


def _tiers(count: int) -> tuple[Tier, ...]:
    return tuple(Tier(f"class-{k}", 64 // count, 1.0 - k / 8) for k in range(count))


SCALING: dict[str, dict[str, Config]] = {
    "contributions": {str(n): _small(f"contributions={n}", tiers=(Tier("all", n),)) for n in (16, 32, 64, 128)},
    "T": {str(t): _small(f"T={t}", length=t) for t in (32, 64, 128, 256)},
    "width": {str(d): _small(f"width={d}", width=d) for d in (64, 128, 256, 384)},
    "depth share": {str(s): _small(f"depth={s}", 8, tiers=(Tier("all", 32, s),)) for s in (1.0, 0.75, 0.5, 0.25)},
    "classes": {str(n): _small(f"classes={n}", 8, tiers=_tiers(n)) for n in (1, 2, 4, 8)},
}
"""What ``make bench-scaling`` varies, one thing at a time, on small models."""


ROUTING = {
    "one class": Config("routing=1", 30522, bert, classify=True, absent=SKIPPED),
    "three classes": Config(
        "routing=3", 30522, bert, classify=True, absent=SKIPPED,
        tiers=(Tier("first", 22), Tier("second", 21), Tier("third", 21)),
    ),
}  # fmt: skip
"""The same contributions in one class, and in three of equal depth and bounds: what routing itself costs."""


def by_name(name: str) -> Config:
    """A configuration of the table or of the scaling runs.

    Raises:
        KeyError: no such name.
    """
    every = CONFIGS | {config.name: config for group in SCALING.values() for config in group.values()}
    return every[name]


def few(config: Config) -> Config:
    """The same configuration with two microbatches per class and step at most: for memory, whose peak they reach."""
    most = 2 * config.microbatch
    return replace(config, tiers=tuple(replace(tier, contributions=min(tier.contributions, most)) for tier in config.tiers))
