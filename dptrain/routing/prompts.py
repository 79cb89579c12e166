"""Prompt tuning and p-tuning of peft: virtual tokens computed for every example, so that each has a gradient of its own.

peft computes them for one example and repeats the result, which is the same for all. While a microbatch is armed they are
computed for all its examples instead, as peft did before it saved that work: the same numbers, one row per example.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

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
