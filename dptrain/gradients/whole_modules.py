"""Registers modules that are one site with everything below them, and spreads the prompts of peft.

Prompt tuning and p-tuning compute virtual tokens for one example and repeat the result. While a microbatch is armed they are
computed for all its examples instead: the same numbers, one row per example, so that each has a gradient of its own.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from dptrain.blocks.adapters import tuner_runs_whole
from dptrain.gradients.forms import Dense, Form
from dptrain.gradients.generic import GenericRule
from dptrain.gradients.registry import Call, gradient_rule

Trained = frozenset[str]

@gradient_rule(
    *(f"transformers.*.{kind}" for kind in (
        "OPTDecoderLayer", "DisentangledSelfAttention", "LongformerSelfAttention", "LEDEncoderSelfAttention", "MambaMixer",
        "Mamba2Mixer", "Lfm2ShortConv", "Lfm2MoeShortConv", "Gemma3nAudioRelativePositionEmbedding",
    )),
    whole=True,
)  # fmt: skip
class WholeRule(GenericRule):
    """Runs again modules that give inner modules rows that are not examples.

    Those named give them all tokens of a batch in one dimension, time before the example, or one row for the whole batch; or
    they use tensors of inner modules without calling them. The others are known by their structure, below.
    """


@gradient_rule(nn.RNNBase, whole=True, subclasses=True)
class RecurrentRule(GenericRule):
    """Runs recurrent modules again, whose states have the example in dimension 1, and all else if time is in dimension 0."""

    anywhere = False
    other = 1

    def __init__(self, name: str, module: nn.RNNBase, *, whole: bool = True) -> None:
        super().__init__(name, module, whole=whole)
        self.first = 0 if module.batch_first else 1


@gradient_rule("transformers.*.XLNetModel")
class QueryStreamRule(GenericRule):
    """Splits the embedding with which the stream of queries begins; a model that is given no mapping to targets has none."""

    slow = False
    anywhere = False

    def __call__(self, module: Any, call: Call, grad: torch.Tensor) -> dict[str, Form]:
        given = inspect.signature(type(module).forward).bind_partial(module, *call.inputs, **call.kwargs).arguments
        if given.get("target_mapping") is not None:
            return super().__call__(module, call, grad)
        return {"mask_emb": Dense(grad.new_zeros(call.contributions, *module.mask_emb.shape))}


def _uses_inner_tensors(module: nn.Module, trained: Trained) -> bool:
    """Tells whether tensors of inner modules are used without calling these: parametrized ones, and some tuners of peft."""
    return tuner_runs_whole(module) or is_parametrized(module)


def _routes_to_experts(module: nn.Module, trained: Trained) -> bool:
    """Tells whether a module holds experts.

    They see the tokens that were routed to them, whoever they belong to: only the block around keeps examples apart.
    """
    children = dict(module.named_children())
    named = any(_from_transformers(child) and type(child).__name__.endswith("Experts") for child in children.values())
    return "experts" in children or (named and _from_transformers(module))


def _mixes_by_weight(module: nn.Module, trained: Trained) -> bool:
    """Tells whether a module is a state space mixer or a linear attention of which these tensors are trained.

    The weight of its convolution over time goes to a kernel by itself, and its norm sees every head of every token as a row.
    """
    conv = dict(module.named_children()).get("conv1d")
    if not _from_transformers(module) or not isinstance(conv, nn.Conv1d) or conv.groups != conv.in_channels:
        return False
    return any(name.startswith(("conv1d.", "norm.")) for name in trained)


def _adds_relative_bias(module: nn.Module, trained: Trained) -> bool:
    """Tells whether an attention trains a table of biases that is looked up once for the whole batch."""
    bias = dict(module.named_children()).get("relative_attention_bias")
    if not isinstance(bias, nn.Embedding) or "relative_attention_bias.weight" not in trained:
        return False
    return not any(isinstance(child, (nn.ModuleList, nn.Sequential)) for child in module.modules())


def _trains_distances(module: nn.Module, trained: Trained) -> bool:
    """Tells whether an attention trains the table of distances that it looks up once for the whole batch."""
    return "distance_embedding.weight" in trained


gradient_rule("transformers.*.Wav2Vec2BertSelfAttention", when=_trains_distances, whole=True)(WholeRule)

for _told in (_uses_inner_tensors, _routes_to_experts, _mixes_by_weight, _adds_relative_bias):
    gradient_rule(nn.Module, when=_told, whole=True)(WholeRule)


def _from_transformers(module: nn.Module) -> bool:
    return type(module).__module__.startswith("transformers.")


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
