"""Says what a private run refuses of Trainers (of TRL those that have no private form), and what it makes of arguments."""

import copy
import os
import warnings
from typing import TYPE_CHECKING, Final

from dptrain.errors import ConfigError, NotPrivateUse

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from dptrain.engine.private_training import PrivateTraining

_GROUPS = (
    "the advantage of a completion is its reward measured against those of others, and tokens are averaged over the batch, so "
    "that one contribution moves the gradients of the rest"
)
_WHITENED = "advantages are whitened over a batch, so that the reward of one contribution moves the gradients of all others"
_SAMPLED = (
    "completions are sampled while the model trains and padded to the longest of a batch; this build has no private step that "
    "samples"
)
_TAUGHT = "the divergence from a teacher is averaged over the tokens of a batch, partly on sampled completions; not built"
_NOT_BUILT = "its loss is one per pair and could be private; this build has it for DPO and reward models alone"

CAUSES: dict[str, str] = {
    "GRPOTrainer": _GROUPS,
    "RLOOTrainer": _GROUPS,
    "A2POTrainer": _GROUPS,
    "GMPOTrainer": _GROUPS,
    "AsyncGRPOTrainer": _GROUPS,
    "SDPOTrainer": _GROUPS,
    "PPOTrainer": _WHITENED,
    "KTOTrainer": (
        "the baseline of its loss is a KL divergence that is estimated over a batch, from prompts with the completions of "
        "others, so that one contribution moves the gradients of the rest"
    ),
    "BCOTrainer": "the reward shift of its loss is a running mean over batches, which is kept from step to step without noise",
    "OnlineDPOTrainer": _SAMPLED,
    "NashMDTrainer": _SAMPLED,
    "XPOTrainer": _SAMPLED,
    "GKDTrainer": _TAUGHT,
    "GOLDTrainer": _TAUGHT,
    "MiniLLMTrainer": _TAUGHT,
    "DistillationTrainer": _TAUGHT,
    "AsyncDistillationTrainer": _TAUGHT,
    "ServerDistillationTrainer": _TAUGHT,
    "IWOPDTrainer": _TAUGHT,
    "SDFTTrainer": _TAUGHT,
    "ORPOTrainer": _NOT_BUILT,
    "CPOTrainer": _NOT_BUILT,
    "TPOTrainer": _NOT_BUILT,
    "PRMTrainer": "its loss is one per token and could be private; not built. Use PrivateTrainer over a token classifier",
}


def refuse(name: str) -> None:
    """Raises NotPrivateUse, code COUPLED_TRAINER, for a trainer of TRL that has no private form.

    Args:
        name: of the class; with or without ``Private`` before it.
    """
    cause = CAUSES.get(name.removeprefix("Private"))
    if cause is not None:
        raise NotPrivateUse(
            "COUPLED_TRAINER",
            f"{name.removeprefix('Private')} has no private form: {cause}. Use PrivateSFTTrainer, PrivateRewardTrainer, or "
            "PrivateDPOTrainer on pairs that were sampled and judged before",
        )


def refuse_arguments(args: "TrainingArguments") -> None:
    """Raises for arguments under which a step would run twice, on several devices of one process, or by another loop."""
    engine = "DeepSpeed" if args.deepspeed else _sharding(args)
    if engine:
        raise NotPrivateUse(
            "ENGINE",
            f"the Trainer is set up for {engine}, which reduces or shards gradients before they are clipped; leave the setting "
            "out, as a Trainer takes DistributedDataParallel by itself where several processes are launched, or set fsdp=True, "
            'fsdp_config={"version": 2}',
        )
    if args.n_gpu > 1:
        raise NotPrivateUse(
            "PROCESSES",
            f"one process sees {args.n_gpu} devices, over which a Trainer spreads batches by nn.DataParallel, which sums "
            "gradients before they are clipped; launch one process a device (accelerate launch, torchrun), or set "
            "CUDA_VISIBLE_DEVICES to one",
        )
    if args.auto_find_batch_size:
        raise NotPrivateUse(
            "RETRIES",
            "auto_find_batch_size runs the training again from its start, and steps that are charged stay charged; set "
            "per_device_train_batch_size to what fits, which changes no result",
        )
    if args.torch_compile:
        raise ConfigError("TRAINER", "torch_compile compiles the model without the private step; set compiled=True instead")


def _sharding(args: "TrainingArguments") -> str:
    """Returns how arguments shard a model, "" where they do not or as FSDP2 does."""
    if not args.fsdp:
        return ""
    config = args.fsdp_config or {}
    if config.get("xla"):
        return "FSDP of XLA"
    options = getattr(args, "fsdp_plugin_args", None) or {}
    version = int(options.get("fsdp_version", config.get("version", 1)))
    return "" if version == 2 else f"FSDP of version {version}"


def translated(args: "TrainingArguments", *, own: bool) -> int:
    """Puts what a private run does by itself in the place of arguments that would do it otherwise; says what changed.

    Args:
        own: whether the arguments decide how many examples a step draws, as of data that are all the user's.

    Returns:
        How many examples the optimizer was to see in a step, in all processes together.
    """
    accumulated = args.gradient_accumulation_steps
    settings = args.accelerator_config
    if (settings.gradient_accumulation_kwargs or {}).get("num_steps", 1) != 1:
        accumulated = settings.gradient_accumulation_kwargs["num_steps"]
        args.accelerator_config = settings = copy.copy(settings)
        settings.gradient_accumulation_kwargs = {**settings.gradient_accumulation_kwargs, "num_steps": 1}
    if accumulated > 1:
        args.gradient_accumulation_steps = 1
        _notice(
            args,
            f"gradient_accumulation_steps={accumulated}: a logical step sums over its own microbatches of at most "
            f"{args.per_device_train_batch_size} contributions, and the optimizer takes it once",
        )
    if str(getattr(args, "include_num_input_tokens_seen", "no")).lower() not in ("no", "false"):
        args.include_num_input_tokens_seen = "no"
        _notice(args, "include_num_input_tokens_seen is off: how many tokens were seen tells who was drawn")
    args.ignore_data_skip = True
    if args.max_grad_norm:
        _notice(
            args,
            f"max_grad_norm={args.max_grad_norm:g} clips the release of every block by its own norm, where a Trainer clips all "
            "gradients by one. The noise is in these norms, so that it may clip every step. clip_norm= bounds contributions; "
            "max_grad_norm=0 switches this off",
        )
    else:
        args.max_grad_norm = 0.0
    drawn = args.per_device_train_batch_size * accumulated
    if own and args.world_size > 1:
        _notice(
            args,
            f"a step draws {drawn} contributions on average, over all {args.world_size} processes together, so that the policy "
            f"is the same on any number of them; a Trainer would take {drawn * args.world_size}, which "
            f"gradient_accumulation_steps={accumulated * args.world_size} asks for",
        )
    return drawn


def _notice(args: "TrainingArguments", sentence: str) -> None:
    """Warns the caller of a Trainer; of several processes the first one does."""
    if args.process_index == 0:
        warnings.warn(sentence, stacklevel=4)


def require_steps(args: "TrainingArguments", private: "PrivateTraining", *, signed: bool) -> None:
    """Takes the number of steps from the policy; raises ConfigError where the arguments ask for another one."""
    steps = private.policy.steps
    if signed and args.max_steps > 0 and args.max_steps != steps:
        raise ConfigError(
            "TRAINER",
            f"max_steps is {args.max_steps}, and the signed policy has {steps} steps; leave max_steps out, or sign a policy "
            "with as many",
        )
    args.max_steps = steps


PACE: Final = {"WANDB_X_DISABLE_STATS": "true", "WANDB_CONSOLE": "off"}
"""Settings under which W&B neither samples the load of the machine nor keeps what a terminal shows, bars among it."""


def hide_pace(args: "TrainingArguments") -> None:
    """Keeps a service that reports by itself from telling the pace of steps; settings of the user stay as they are."""
    if "wandb" in args.report_to:
        for name, value in PACE.items():
            os.environ.setdefault(name, value)
