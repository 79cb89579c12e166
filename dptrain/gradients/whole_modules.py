"""Rules for modules that are more than one operation: attention blocks, and prompts of peft.

Prompt tuning and p-tuning compute virtual tokens for one example and repeat the result. While a microbatch is armed they are
computed for all its examples instead: the same numbers, one row per example, so that each has a gradient of its own.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from dptrain.blocks.adapters import tuner_runs_whole
from dptrain.errors import UnsupportedModule
from dptrain.gradients.attention import AttentionRule, serves
from dptrain.gradients.generic import GenericRule

WHOLE = {
    "OPTDecoderLayer", "DisentangledSelfAttention", "LongformerSelfAttention", "LEDEncoderSelfAttention", "MambaMixer",
    "Mamba2Mixer", "Lfm2ShortConv", "Lfm2MoeShortConv",
}  # fmt: skip
"""Modules of transformers that give inner modules all tokens of a batch in one dimension, time before the example, one row for
the whole batch, or use tensors of inner modules without calling them."""


def composite_rule(name: str, module: nn.Module, scheduled: Callable[[Tensor], bool]) -> GenericRule | None:
    """The rule of a module that is one site with everything below it, or None.

    Args:
        scheduled: whether a parameter is trained; where the part that needs this is frozen, the rest has better rules.
    """
    if not any(scheduled(parameter) for parameter in module.parameters()):
        return None
    if isinstance(module, nn.MultiheadAttention):
        _require_batch_first(name, module, module.batch_first)
        return AttentionRule(name, module) if serves(module) else GenericRule(name, module, whole=True)
    if isinstance(module, nn.RNNBase):
        _require_batch_first(name, module, module.batch_first)
        return GenericRule(name, module, whole=True, other=1)
    if tuner_runs_whole(module) or is_parametrized(module):
        return GenericRule(name, module, whole=True)
    if type(module).__name__ in WHOLE and _from_transformers(module):
        return GenericRule(name, module, whole=True)
    children = dict(module.named_children())
    named = any(_from_transformers(child) and type(child).__name__.endswith("Experts") for child in children.values())
    if "experts" in children or (named and _from_transformers(module)):
        # Experts see the tokens that were routed to them, whoever they belong to: only the block around keeps examples apart.
        return GenericRule(name, module, whole=True)
    if _from_transformers(module) and _mixes_by_weight(children, scheduled):
        return GenericRule(name, module, whole=True)
    bias = children.get("relative_attention_bias")
    if isinstance(bias, nn.Embedding) and scheduled(bias.weight) and not _holds_layers(module):
        return GenericRule(name, module, whole=True)
    return None


def _mixes_by_weight(children: dict[str, nn.Module], scheduled: Callable[[Tensor], bool]) -> bool:
    """Whether this is a state space mixer or a linear attention: the weight of its convolution over time goes to a kernel by
    itself, and its norm sees every head of every token as a row."""
    conv = children.get("conv1d")
    if not isinstance(conv, nn.Conv1d) or conv.groups != conv.in_channels:
        return False
    return any(scheduled(p) for key in ("conv1d", "norm") if key in children for p in children[key].parameters())


def _from_transformers(module: nn.Module) -> bool:
    return type(module).__module__.startswith("transformers.")


def _holds_layers(module: nn.Module) -> bool:
    return any(isinstance(child, (nn.ModuleList, nn.Sequential)) for child in module.modules())


def _require_batch_first(name: str, module: nn.Module, batch_first: bool) -> None:
    if not batch_first:
        raise UnsupportedModule(
            "BATCH_DIMENSION",
            f"module {name!r} ({type(module).__name__}) is built with batch_first=False, so dimension 0 is not the example; "
            "build it with batch_first=True",
        )


SPREAD = {"PROMPT_TUNING", "P_TUNING"}
"""Kinds of prompt learning whose virtual tokens do not depend on the example."""


class SpreadPrompts:
    """Stands in for ``get_prompt`` of one prompt-learning model; :meth:`detach` leaves no trace on it.

    Args:
        armed: whether a microbatch is under way whose gradients will be asked for.
    """

    def __init__(self, model: nn.Module, armed: Callable[[], bool]) -> None:
        self._model = model
        self._armed = armed

    def attach(self) -> None:
        vars(self._model)["get_prompt"] = self.get_prompt

    def detach(self) -> None:
        vars(self._model).pop("get_prompt", None)

    def get_prompt(self, batch_size: int, *args: Any, **kwargs: Any) -> torch.Tensor:
        model: Any = self._model
        name, config = model.active_adapter, model.active_peft_config
        kind = str(getattr(config.peft_type, "value", config.peft_type))
        if kind not in SPREAD or config.inference_mode or not (self._armed() and torch.is_grad_enabled()):
            result: torch.Tensor = type(model).get_prompt(model, batch_size, *args, **kwargs)
            return result
        encoder = model.prompt_encoder[name]
        tokens = model.prompt_tokens[name].unsqueeze(0).expand(batch_size, -1).to(encoder.embedding.weight.device)
        spread: torch.Tensor = encoder(tokens)
        return spread


def prompt_models(model: nn.Module) -> Iterator[nn.Module]:
    """Modules that hold prompt encoders of peft."""
    for module in model.modules():
        if isinstance(module._modules.get("prompt_encoder"), nn.ModuleDict) and hasattr(type(module), "get_prompt"):
            yield module
