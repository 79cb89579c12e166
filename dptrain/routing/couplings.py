"""Module scan: known channels through which one contribution reaches another's gradient, refused by name.

The channels are listed in docs/mechanism; the probes find what has no name here.
"""

import warnings
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils import parametrize

from dptrain.blocks.adapters import unchecked
from dptrain.blocks.shards import local
from dptrain.errors import CoupledModel, UnsupportedModule
from dptrain.sandbox.library.states import held_states, keeps_state, knows
from dptrain.sandbox.writes import clipped_in_place

QUANTISED = {
    "Linear8bitLt": "tells outlier columns by all rows of the batch",
    "SwitchBackLinear": "scales a whole batch by its largest entry",
    "Float8Linear": "scales a whole batch by its largest entry",
    "FakeQuantize": "keeps the range of what it has seen",
    "FusedMovingAvgObsFakeQuantize": "keeps the range of what it has seen",
}
"""Modules that quantise activations by more than the row at hand, by the name of their class, and how."""

_COMPILED = "{!r} is compiled: what its graph keeps of the routing hooks is not checked; give prepare() the module itself"


def refuse_coupled(model: nn.Module) -> None:
    """Raises for the first coupling that the modules or the configuration show.

    Raises:
        CoupledModel: with a code per channel, the module's name, and the way out.
        UnsupportedModule: an adapter trains whose forward was not checked. Many start with tensors of zero, behind which
            gradients vanish, so that neither coupling nor mismatch would show in the probes.
    """
    for obstacle in unchecked(model):
        raise UnsupportedModule(obstacle.code, obstacle.sentence)
    for code, sentence in couplings(model):
        raise CoupledModel(code, sentence)


def refuse_compiled(model: nn.Module) -> None:
    """Raises CoupledModel: code COMPILED_MODEL, where a model, a part of it or what wraps it is compiled."""
    for name, module in model.named_modules():
        if _compiled(module):
            raise CoupledModel("COMPILED_MODEL", _COMPILED.format(name or "the model"))


def _compiled(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def couplings(model: nn.Module) -> Iterator[tuple[str, str]]:
    """(code, sentence) of every coupling channel that can be seen without running the model."""
    modules = list(model.named_modules())
    held = held_states([module for _, module in modules])
    for name, module in modules:
        kind = type(module).__name__
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            yield (
                "BATCH_NORM",
                f"{name!r} ({kind}) normalises with statistics of the batch, so every contribution enters every gradient; "
                "dptrain.fix(model) puts GroupNorm in its place; or put it in eval() with its running statistics frozen",
            )
        elif isinstance(module, _InstanceNorm) and module.track_running_stats and module.training:
            yield (
                "RUNNING_STATISTICS",
                f"{name!r} ({kind}) updates running statistics in forward; build it with track_running_stats=False",
            )
        elif kind in {"_SpectralNorm", "SpectralNorm"} and module.training:
            yield (
                "SPECTRAL_NORM",
                f"{name!r} ({kind}) updates its power iteration in forward; remove spectral_norm or put it in eval()",
            )
        elif kind in {"DistributedDataParallel", "FullyShardedDataParallel", "DataParallel"}:
            yield (
                "REPLICATED_MODEL",
                f"{name or 'the model'!r} is wrapped in {kind}, which reduces raw gradients; the whole model alone may be "
                "wrapped, in DistributedDataParallel, and before prepare()",
            )
        elif kind.startswith("GradSampleModule") and type(module).__module__.startswith("opacus."):
            yield (
                "OPACUS",
                f"{name or 'the model'!r} is wrapped in {kind} of Opacus, whose hooks keep raw gradients of every sample; give "
                "prepare() the module itself, without make_private()",
            )
        elif kind in QUANTISED or _quantises_by_the_batch(module):
            how = QUANTISED.get(kind, "scales a whole batch by its largest entry")
            yield (
                "BATCH_QUANTISATION",
                f"{name!r} ({kind}) {how}, so that one contribution's activations change how others are rounded; quantise "
                "weights alone (4-bit LoRA does), or train in bfloat16",
            )
        elif _compiled(module):
            yield "COMPILED_MODEL", _COMPILED.format(name or "the model")
        elif keeps_state(module) and not (knows(module) and id(module) in held):
            yield (
                "KEPT_STATE",
                f"{name!r} ({kind}) keeps its last state in or under code that is not known here, of another version of "
                "transformers or your own, and may go on from it in the next microbatch, so that a contribution would reach "
                "the rows of others, trained or frozen; use another model (Mamba, say)",
            )
        for hook in module._forward_pre_hooks.values():
            if type(hook).__name__ == "SpectralNorm" and module.training:
                yield (
                    "SPECTRAL_NORM",
                    f"{name!r} carries spectral_norm, whose power iteration changes in forward; remove it or use eval()",
                )
    clips = [one for one in clipped_in_place(modules) if not one[1].is_meta]
    beyond = [~(local(weight).detach().abs() <= bound).all().to(clips[0][1].device) for _, weight, bound in clips]
    for (name, _, bound), outside in zip(clips, torch.stack(beyond).tolist() if beyond else (), strict=True):
        if outside:
            yield (
                "CLIPPED_WEIGHT",
                f"the forward clips {name!r} in place to {bound:g}, and the weight lies beyond it, so that a microbatch would "
                "write it; raise that bound in the configuration, or freeze the weight before prepare()",
            )
    config = getattr(model, "config", None)
    coefficient = getattr(config, "router_aux_loss_coef", None)
    if coefficient and getattr(config, "output_router_logits", False):
        yield (
            "ROUTER_AUX_LOSS",
            f"the model adds a load-balancing loss over the batch (router_aux_loss_coef={coefficient}, "
            "output_router_logits=True); set output_router_logits=False",
        )
    for option in ("expert_capacity", "capacity_factor", "moe_capacity_factor"):
        if getattr(config, option, None):
            yield (
                "EXPERT_CAPACITY",
                f"experts drop tokens by a capacity shared by the batch ({option}={getattr(config, option)}); use "
                "dropless routing",
            )


class Repaired(UserWarning):
    """Something of a model that would be refused was replaced."""


def fix(model: nn.Module) -> nn.Module:
    """Replaces in place what a run would refuse and what has a usual stand-in; warns of every change.

    Batch normalisation becomes group normalisation with its scale and shift, in at most 32 groups, and of vectors in groups of
    8 features or more: its statistics are lost, so a pretrained model wants some training after it. Instance normalisation
    keeps no running statistics, weights stay as spectral normalisation left them, routers add no loss over the batch, and
    wrappers are taken off. Make the optimizer after it, since parameters are others.

    Returns:
        The model; another object where it was wrapped. What has no stand-in is left, and refused by name in `prepare`.
    """
    while type(model).__name__ in _WRAPPERS:
        kind = type(model).__name__
        model = model._orig_mod if kind == "OptimizedModule" else model.module
        _tell(f"the model was taken out of {kind}")
    for name, module in list(model.named_modules()):
        kind = type(module).__name__
        if isinstance(module, _BatchNorm):
            width = module.num_features
            least = min(width, _LEAST if isinstance(module, nn.BatchNorm1d) else 1)
            groups = max(number for number in range(1, 33) if width % number == 0 and width // number >= least)
            own = nn.GroupNorm(groups, module.num_features, module.eps, module.affine).train(module.training)
            if module.affine:
                own.weight, own.bias = module.weight, module.bias
            if not name:
                model = own
            else:
                holder, _, key = name.rpartition(".")
                setattr(model.get_submodule(holder), key, own)
            _tell(f"{name!r}, a {kind}, is a GroupNorm of {groups} groups")
        elif isinstance(module, _InstanceNorm) and module.track_running_stats:
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
            _tell(f"{name!r}, a {kind}, keeps no running statistics")
        for key in [key for key, made in getattr(module, "parametrizations", {}).items() if _is_spectral(made)]:
            parametrize.remove_parametrizations(module, key)
            _tell(f"{name!r} has lost the spectral normalisation of its {key}")
        for hook in [hook for hook in module._forward_pre_hooks.values() if type(hook).__name__ == "SpectralNorm"]:
            nn.utils.remove_spectral_norm(module, hook.name)
            for key, left in list(module._load_state_dict_pre_hooks.items()):  # torch leaves it, and no state is loaded then
                if type(getattr(left, "hook", left)).__name__ == "SpectralNormLoadStateDictPreHook":
                    del module._load_state_dict_pre_hooks[key]
            _tell(f"{name!r} has lost the spectral normalisation of its {hook.name}")
    config = getattr(model, "config", None)
    if getattr(config, "router_aux_loss_coef", None) and getattr(config, "output_router_logits", False):
        config.output_router_logits = False
        _tell("output_router_logits is False")
    return model


_LEAST = 8
"""Features of a group in the place of ``BatchNorm1d``: a vector in groups of one is constant, and has no gradient."""

_WRAPPERS = frozenset({"DistributedDataParallel", "DataParallel", "OptimizedModule"})


def _is_spectral(made: nn.Module) -> bool:
    return any(type(part).__name__ == "_SpectralNorm" for part in made.modules())


def _tell(sentence: str) -> None:
    warnings.warn(f"dptrain.fix: {sentence}", Repaired, stacklevel=3)


def _quantises_by_the_batch(module: nn.Module) -> bool:
    """Dynamic quantisation of torch takes its scale from the whole input, FP8 of transformer_engine from earlier batches."""
    home = type(module).__module__
    return home.startswith(("torch.ao.nn.quantized.dynamic", "torch.ao.nn.intrinsic.quantized.dynamic", "transformer_engine"))


class Program:
    """Lists what a model runs beside the forwards of its classes: hooks, and forwards of single modules.

    Guarantee: what was added after the probes ran is refused, since no probe has seen it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._seen = dict(_programs(model))

    def require(self) -> None:
        """Raises CoupledModel, code HOOK_ADDED, for the first module whose program changed."""
        now = dict(_programs(self._model))
        changed = next((name for name in now if now[name] != self._seen.get(name)), None)
        if changed is not None:
            raise CoupledModel(
                "HOOK_ADDED",
                f"module {changed!r} has got a hook or a forward of its own since the start of the run, and no probe has "
                f"seen what it does to others; add it before the first step, and take hooks for an evaluation out again",
            )


def _programs(model: nn.Module) -> Iterator[tuple[str, tuple[object, ...]]]:
    # Functions and methods themselves: held, so that no other gets their identity.
    yield "of all modules", tuple(hook for name in _EVERYWHERE for hook in getattr(nn.modules.module, name).values())
    for name, module in model.named_modules():
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
        forwards = type(module).forward, vars(module).get("forward")
        yield name, (type(module), *forwards, *(hook for held in hooks for hook in held.values()))


_EVERYWHERE = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks"
)  # fmt: skip
"""Torch keeps the hooks of all modules here."""
