"""Module scan: known channels through which one contribution reaches another's gradient, refused by name.

The channels are listed in docs/mechanism.md; the probes find what has no name here.
"""

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from dptrain.adapters import unchecked
from dptrain.errors import CoupledModel, UnsupportedModule


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


def couplings(model: nn.Module) -> Iterator[tuple[str, str]]:
    """(code, sentence) of every coupling channel that can be seen without running the model."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            yield (
                "BATCH_NORM",
                f"{name!r} ({kind}) normalises with statistics of the batch, so every contribution enters every gradient; "
                "replace it by GroupNorm or LayerNorm, or put it in eval() with its running statistics frozen",
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
                f"{name or 'the model'!r} is wrapped in {kind}, which reduces raw gradients; give prepare() the module itself "
                "and train in one process",
            )
        elif kind == "OptimizedModule":
            yield (
                "COMPILED_MODEL",
                f"{name or 'the model'!r} is compiled: what its graph keeps of the routing hooks is not checked; give "
                "prepare() the module itself",
            )
        for hook in module._forward_pre_hooks.values():
            if type(hook).__name__ == "SpectralNorm" and module.training:
                yield (
                    "SPECTRAL_NORM",
                    f"{name!r} carries spectral_norm, whose power iteration changes in forward; remove it or use eval()",
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
