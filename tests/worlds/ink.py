"""Small language models, a tokenizer of bytes, and a meter that remembers, for texts from references."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from dptrain.inference.invisibleink import Plan, Task

TASK = Task(public="Say it.", private="[[Of {reference}: ]]Say it.", reference_tokens=20)
REFERENCES = ("a red boat", "the long, wet road home again", "", "tea")
PLAN = Plan.for_epsilon(8.0, delta=1e-6, batch=4, tokens=12, k=20)


@cache
def tokenizer(chat: bool = False) -> Any:
    """Returns a tokenizer of 256 bytes and three marks; with ``chat``, one that has a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: number for number, word in enumerate(["<pad>", "<s>", "</s>", *letters])}
    made = Tokenizer(models.BPE(words, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    found = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    if chat:
        found.chat_template = (
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}"
        )
    return found


@cache
def model(kind: str = "Llama", dtype: torch.dtype = torch.float32, scale: float = 8.0) -> Any:
    """Returns a language model of random weights, whose logits are spread like those of a trained one."""
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

    size = {"vocab_size": 259, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    configs = {
        "Llama": lambda: LlamaConfig(
            **size, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=256,
        ),
        "GPT2": lambda: GPT2Config(**size, n_embd=48, n_layer=2, n_head=4, n_positions=256),
    }  # fmt: skip
    torch.manual_seed(5)
    made = AutoModelForCausalLM.from_config(configs[kind]()).to(dtype)
    with torch.no_grad():
        made.get_output_embeddings().weight.mul_(scale)
    return made.eval()


@cache
def rotary(kind: str, scale: float = 8.0) -> Any:
    """Returns a model whose rotary factors follow from the longest row of a call: ``longrope`` or ``dynamic``."""
    from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM

    size = {
        "vocab_size": 259, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4,
    }  # fmt: skip
    factors = {"short_factor": [1.0] * 4, "long_factor": [1.0, 4.0, 16.0, 64.0], "original_max_position_embeddings": 64}
    long = {"rope_type": "longrope", "rope_theta": 10000.0, **factors}
    dynamic = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    torch.manual_seed(5)
    if kind == "longrope":
        config = Phi3Config(**size, max_position_embeddings=512, original_max_position_embeddings=64, rope_parameters=long,
                            sliding_window=None)  # fmt: skip
        made: Any = Phi3ForCausalLM(config)
    else:
        made = LlamaForCausalLM(LlamaConfig(**size, max_position_embeddings=64, rope_parameters=dynamic))
    with torch.no_grad():
        for weight in made.parameters():
            if weight.ndim == 2:
                weight.mul_(scale)
    return made.eval()


@dataclass
class Receipt:
    releases: int


@dataclass
class Meter:
    """Grants up to a number of tokens, and remembers what happened in what order; models may write into ``events`` too."""

    cap: int = 1 << 40
    events: list[Any] = field(default_factory=list)

    def reserve(self, releases: int, *, mechanism: str, nano_rho: int) -> Receipt:
        if releases > self.cap:
            raise PermissionError("exhausted")
        self.cap -= releases
        self.events.append(("reserve", releases, mechanism, nano_rho))
        return Receipt(releases)

    def settle(self, receipt: Receipt, computed: int) -> None:
        assert 0 <= computed <= receipt.releases
        self.cap += receipt.releases - computed
        self.events.append(("settle", computed))

    @property
    def settled(self) -> list[int]:
        return [event[1] for event in self.events if event[0] == "settle"]
