"""Adapters: which tensors of a model belong to which adapter of the peft library, and whether a class can be bound to them.

Read off the structure that peft gives its modules, without importing it: a tuner layer lists in ``adapter_layer_names`` the
dictionaries that hold one entry per adapter; a prompt-learning model holds one ``prompt_encoder`` per adapter. A tensor
that is not found there belongs to no adapter, so no class bound to an adapter may touch it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from dptrain.errors import UnsupportedModule, UnsupportedPolicy

CHECKED = {
    "lora_A": "peft.tuners.lora.",
    "lora_B": "peft.tuners.lora.",
    "ln_tuning_layers": "peft.tuners.ln_tuning.",
    "oft_R": "peft.tuners.oft.",
    "modules_to_save": "peft.utils.",
}
"""Dictionaries of adapters whose forward is known to treat every row by itself, and where the modules that hold them are from.

The probes alone do not vouch for others: many adapters start with tensors of zero, behind which gradients vanish, so that a
mismatch with autograd's own does not show before the first step.
"""


WHOLE = {
    "peft.tuners.lora.": ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector"),
    "peft.tuners.adalora.": ("lora_A", "lora_B", "lora_E"),
    "peft.tuners.beft.": ("beft_bias",),
    "peft.tuners.boft.": ("boft_R", "boft_s"),
    "peft.tuners.delora.": ("delora_A", "delora_B", "delora_lambda"),
    "peft.tuners.gralora.": ("gralora_A", "gralora_B", "gralora_A_general", "gralora_B_general"),
    "peft.tuners.hira.": ("hira_A", "hira_B"),
    "peft.tuners.hra.": ("hra_u",),
    "peft.tuners.ia3.": ("ia3_l",),
    "peft.tuners.loha.": ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"),
    "peft.tuners.lokr.": ("lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b"),
    "peft.tuners.miss.": ("miss_block",),
    "peft.tuners.randlora.": ("randlora_lambda", "randlora_gamma"),
    "peft.tuners.road.": ("road_theta", "road_alpha"),
    "peft.tuners.shira.": ("shira_weight",),
    "peft.tuners.trainable_tokens.": ("trainable_tokens_delta",),
    "peft.tuners.vera.": ("vera_lambda_b", "vera_lambda_d"),
    "peft.tuners.waveft.": ("waveft_spectrum",),
}
"""Tuners whose layers use bare tensors in their own forward, so that a layer is one module with all below it, which the
generic path runs again: shown to be exact, and to treat every row by itself, with random weights far from their start."""

VARIANTS = {"DoraLinearVariant", "DoraEmbeddingVariant"}
"""Variants of LoRA of which the same is shown."""


@dataclass(frozen=True)
class Obstacle:
    """Why no class can be bound to an adapter as it stands; ``unchecked``: nor may any other class train its tensors."""

    code: str
    sentence: str
    unchecked: bool = False


@dataclass(frozen=True)
class Adapter:
    """An adapter of a model.

    Attributes:
        name: its name in peft.
        tensors: names of its parameters, every alias of each, trainable or not.
        obstacles: what stands in the way of training it, most telling first; empty if nothing does.
        every_layer: names among ``tensors`` that act on every layer of the stack at once (prefixes of keys and values).
        below: names among ``tensors`` that act below layer 0 (virtual tokens), wherever peft registers them.
    """

    name: str
    tensors: frozenset[str]
    obstacles: tuple[Obstacle, ...] = ()
    every_layer: frozenset[str] = frozenset()
    below: frozenset[str] = frozenset()


def find_adapters(model: nn.Module) -> dict[str, Adapter]:
    """Every adapter of a model by name, in order of name; empty for a model without any.

    Guarantee: a parameter is listed under an adapter only if it lies in that adapter's own entry of a dictionary keyed by
    adapter; one that several adapters share under different names is listed under each and shows as an obstacle of both.
    """
    owners: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), set()).add(name)
    tensors: dict[str, set[str]] = {}
    obstacles: dict[str, list[Obstacle]] = {}
    every_layer: dict[str, set[str]] = {}
    below: dict[str, set[str]] = {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for entry in entries_of(model):
        own = entry.tensors()
        tensors.setdefault(entry.adapter, set()).update(own)
        if entry.kind == "PREFIX_TUNING":
            every_layer.setdefault(entry.adapter, set()).update(own)
        elif entry.kind:
            below.setdefault(entry.adapter, set()).update(own)
        obstacles.setdefault(entry.adapter, []).extend(entry.obstacles(parameters))
    configs = _configs(model)
    for name in configs:
        tensors.setdefault(name, set())
    for name, own in tensors.items():
        found = obstacles.setdefault(name, [])
        found.extend(_whole(name, own, owners, parameters, configs.get(name)))
    return {
        name: Adapter(
            name,
            frozenset(tensors[name]),
            tuple(dict.fromkeys(obstacles[name])),
            frozenset(every_layer.get(name, ())),
            frozenset(below.get(name, ())),
        )
        for name in sorted(tensors)
    }


def require_adapter(adapters: Mapping[str, Adapter], name: str, class_name: str) -> Adapter:
    """The adapter that a class is bound to.

    Raises:
        UnsupportedPolicy: it does not exist; the sentence names those that do.
        UnsupportedModule: it is not active, not trainable, or of a kind without exact gradients.
    """
    found = adapters.get(name)
    if found is None:
        others = ", ".join(repr(other) for other in adapters)
        raise UnsupportedPolicy(
            "ADAPTER_UNKNOWN",
            f"class {class_name!r} is bound to adapter {name!r}, which this model does not have; "
            + (f"it has {others}" if others else "it has no adapters")
            + f"; add it with peft (adapter_name={name!r}) before prepare(), or sign a policy that names one it has",
        )
    for obstacle in found.obstacles:
        raise UnsupportedModule(obstacle.code, f"class {class_name!r} is bound to adapter {name!r}: {obstacle.sentence}")
    return found


@dataclass(frozen=True)
class _Entry:
    """The tensors that one module holds for one adapter."""

    path: str
    module: nn.Module
    attribute: str
    adapter: str
    kind: str = ""
    """Type of a prompt-learning adapter; empty for a tuner layer."""

    def tensors(self) -> set[str]:
        held = getattr(self.module, self.attribute)
        prefix = f"{self.path}.{self.attribute}.{self.adapter}".lstrip(".")
        if isinstance(held, nn.ModuleDict):
            return {f"{prefix}.{name}" for name, _ in held[self.adapter].named_parameters(remove_duplicate=False)}
        return {prefix} if isinstance(held[self.adapter], nn.Parameter) else set()

    def obstacles(self, parameters: Mapping[str, nn.Parameter]) -> Iterator[Obstacle]:
        where = f"{self.path!r} ({type(self.module).__name__})" if self.path else f"the model ({type(self.module).__name__})"
        own = self.tensors()
        if not own:
            return
        active = getattr(self.module, "active_adapter" if self.kind else "active_adapters")
        active = [active] if isinstance(active, str) else list(active)
        if self.adapter not in active:
            one = self.attribute == "modules_to_save" or bool(self.kind)
            yield Obstacle(
                "ADAPTER_INACTIVE",
                f"it is not active at {where}, so nothing would train it; active there: "
                f"{', '.join(map(repr, active)) or 'none'}. "
                + (
                    "A module of this kind serves one active adapter at a time"
                    if one
                    else "Activate every adapter that the policy names: model.base_model.set_adapter([...])"
                ),
            )
        if getattr(self.module, "disable_adapters", False) is True:
            yield Obstacle("ADAPTER_DISABLED", f"adapters are disabled at {where}; enable them before prepare()")
        if self.adapter in (getattr(self.module, "merged_adapters", None) or ()):
            yield Obstacle("ADAPTER_MERGED", f"it is merged into the base weights at {where}; unmerge it before prepare()")
        if self.kind not in ("", "PREFIX_TUNING", "PROMPT_TUNING", "P_TUNING"):
            yield Obstacle(
                "ADAPTER_KIND",
                f"{where} computes virtual tokens of a kind that was not checked ({self.kind}); use prompt tuning, "
                "p-tuning, prefix tuning or LoRA",
                unchecked=True,
            )
        if type(self.module).__name__ == "ParamWrapper":
            yield Obstacle(
                "ADAPTER_KIND",
                f"{where} adapts a bare parameter (target_parameters) without a call of the adapter's modules; adapt modules",
                unchecked=True,
            )
        variant = (getattr(self.module, "lora_variant", None) or {}).get(self.adapter)
        if variant is not None and type(variant).__name__ not in VARIANTS:
            yield Obstacle(
                "ADAPTER_KIND",
                f"{where} computes a variant of LoRA ({type(variant).__name__}), whose forward was not checked to treat every "
                "example by itself; use plain LoRA",
                unchecked=True,
            )
        source = CHECKED.get(self.attribute)
        called = source is not None and type(self.module).__module__.startswith(source)
        bare = isinstance(getattr(self.module, self.attribute), nn.ParameterDict)
        if self.kind or tuner_runs_whole(self.module) or (called and not bare):
            return
        if any(parameters[name].requires_grad for name in own):
            how = "uses the bare tensors of" if bare else "holds it in"
            yield Obstacle(
                "ADAPTER_KIND",
                f"{where} {how} {self.attribute!r}, and its forward was not checked to treat every example by itself; use "
                "LoRA, or freeze these tensors",
                unchecked=True,
            )


def tuner_runs_whole(module: nn.Module) -> bool:
    """Tell if a module is a tuner layer of :data:`WHOLE` that uses tensors without calling the modules that hold them.

    A layer that only calls its modules (LoRA on a linear layer) has better rules for each of them.
    """
    kind = type(module)
    known = next((held for prefix, held in WHOLE.items() if kind.__module__.startswith(prefix)), ())
    names = [name for name in getattr(kind, "adapter_layer_names", ()) if len(module._modules.get(name) or ())]
    if not names or not set(names) <= set(known) or kind.__name__ == "ParamWrapper":
        return False
    if any(type(variant).__name__ not in VARIANTS for variant in (getattr(module, "lora_variant", None) or {}).values()):
        return False
    return any(name == "lora_magnitude_vector" or isinstance(module._modules[name], nn.ParameterDict) for name in names)


def unchecked(model: nn.Module) -> Iterator[Obstacle]:
    """Obstacles of adapters that train somewhere in the model and were not checked, whoever is to train them."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if not any(parameter.requires_grad for parameter in parameters.values()):
        return  # as in every microbatch of a run, which has taken them out of autograd
    for entry in entries_of(model):
        if any(parameters[name].requires_grad for name in entry.tensors()):
            yield from (obstacle for obstacle in entry.obstacles(parameters) if obstacle.unchecked)


def entries_of(model: nn.Module) -> Iterator[_Entry]:
    """Yields what each module of a model holds for each adapter."""
    for path, module in model.named_modules(remove_duplicate=False):
        if hasattr(type(module), "adapter_layer_names") and hasattr(type(module), "active_adapters"):
            for attribute in module.adapter_layer_names:
                held = module._modules.get(attribute)
                if isinstance(held, (nn.ModuleDict, nn.ParameterDict)):
                    for adapter in held:
                        yield _Entry(path, module, attribute, adapter)
        encoders = module._modules.get("prompt_encoder")
        if isinstance(encoders, nn.ModuleDict) and (configs := _own_configs(module)):
            for adapter in encoders:
                config = configs.get(adapter)
                kind = str(getattr(getattr(config, "peft_type", None), "value", "PROMPT"))
                yield _Entry(path, module, "prompt_encoder", adapter, kind)


def _configs(model: nn.Module) -> dict[str, object]:
    """Configuration of every adapter that the model says it has."""
    found: dict[str, object] = {}
    for module in model.modules():
        found.update(_own_configs(module))
    return found


def _own_configs(module: nn.Module) -> dict[str, object]:
    """Return the configurations that a module holds; a prompt-learning model keeps them under another name than tuners do."""
    for key in ("peft_config", "_peft_config"):
        configs = vars(module).get(key)
        if isinstance(configs, dict):
            return {str(name): config for name, config in configs.items()}
    return {}


def _whole(
    name: str, own: set[str], owners: Mapping[int, set[str]], parameters: Mapping[str, nn.Parameter], config: object
) -> Iterator[Obstacle]:
    """Obstacles that only the whole adapter shows."""
    if not own:
        yield Obstacle(
            "ADAPTER_KIND",
            f"peft knows it ({type(config).__name__}), but its tensors are not kept apart from those of other adapters; "
            "use LoRA",
        )
        return
    if not any(parameters[tensor].requires_grad for tensor in own):
        yield Obstacle(
            "ADAPTER_FROZEN",
            f"none of its {len(own)} tensors is trainable; activate it for training (set_adapter, or is_trainable=True when "
            "it is loaded) before prepare()",
        )
    for tensor in sorted(own):
        outside = owners[id(parameters[tensor])] - own
        if outside and parameters[tensor].requires_grad:
            yield Obstacle(
                "ADAPTER_SHARED",
                f"its tensor {tensor!r} is also {sorted(outside)[0]!r}, so it is not the adapter's alone; untie them",
            )
            break
    if getattr(config, "bias", "none") not in ("none", None, False):
        yield Obstacle(
            "ADAPTER_BIAS",
            f"it was built with bias={getattr(config, 'bias', None)!r}, which trains biases of the base model that all "
            "adapters share; build it with bias='none'",
        )
