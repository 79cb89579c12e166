"""Refusals before a run starts: policies, accelerators and optimizers under which the release would not be private."""

import math
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from attest.policy import Policy
from dptrain.accounting import unsupported
from dptrain.blocks.forwards import Forwards
from dptrain.clipping.resolver import Schedule, trained
from dptrain.data.sampling import expected_draw
from dptrain.errors import ConfigError, NotPrivateUse, UnsupportedModule, UnsupportedPolicy
from dptrain.geometry.optimizers import TangentOptimizer
from dptrain.geometry.pairs import refuse_sharded, require_matrices
from dptrain.noise import device
from dptrain.parallel.wrapped import refuse_alone, refuse_engine
from dptrain.sandbox.interception import Sandbox
from dptrain.sandbox.isolation import Isolation, Reach, reach, refuse_unusable, weakness
from ledger.accountants.correlated import strategy_of
from ledger.accountants.correlated.costs import Correlated
from ledger.accountants.table import HOST, TABLE
from ledger.errors import AccountantError
from ledger.leaves import HELD


def refuse_policy(policy: Policy) -> None:
    """Raises UnsupportedPolicy for the first setting that this build does not carry, or where no class is for training."""
    policy = trained(policy)
    for sentence in unsupported(policy):
        raise UnsupportedPolicy("NOT_IN_THIS_BUILD", sentence)
    if isinstance(TABLE[policy.mechanism.name], Correlated):
        from dptrain.noise.correlated.gaussian import checked_norm  # loaded by runs that have it

        try:
            checked_norm(strategy_of(policy.mechanism, policy.steps), policy.steps)
        except AccountantError as error:
            raise UnsupportedPolicy(error.code, error.sentence) from error


def refuse_accelerator(accelerator: Any | None) -> None:
    """Raises NotPrivateUse for an accelerator that reduces or scales by private gradients; sets one that accumulates to 1."""
    if accelerator is None:
        return
    refuse_alone(accelerator.num_processes, "the accelerator", "make it Accelerator(cpu=True), or set ACCELERATE_USE_CPU=true")
    refuse_engine(accelerator)
    if accelerator.gradient_accumulation_steps > 1:
        warnings.warn(
            f"gradient_accumulation_steps={accelerator.gradient_accumulation_steps} is 1 from here on: a logical step sums "
            "over its own microbatches, whose size microbatches= of open() bounds, and the optimizer takes it once",
            stacklevel=3,
        )
        accelerator.gradient_accumulation_steps = 1
    if accelerator.scaler is not None or accelerator.mixed_precision in ("fp16", "fp8"):
        raise NotPrivateUse(
            "LOSS_SCALER",
            f"mixed precision {accelerator.mixed_precision!r} skips steps or shares scales by looking at private gradients; "
            "use bf16",
        )


def required_accelerator(accelerator: Any | None, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """Returns the accelerator of a run, which holds its model and optimizer.

    Raises:
        ConfigError: code NO_ACCELERATOR, there is none; NOT_ACCELERATED, it would write states without model or optimizer.
    """
    if accelerator is None:
        raise ConfigError(
            "NO_ACCELERATOR",
            "a state of accelerate is asked for, and the run was opened without accelerator=; give it to open(), or use save()",
        )
    models = [accelerator.unwrap_model(held) for held in accelerator._models]
    optimizers = [getattr(held, "optimizer", held) for held in accelerator._optimizers]
    if not any(held is model for held in models) or not any(held is optimizer for held in optimizers):
        raise ConfigError(
            "NOT_ACCELERATED",
            "the accelerator does not hold this model and optimizer, so that its states would lack them; let "
            "accelerator.prepare(model, optimizer) wrap them, or use save()",
        )
    return accelerator


def refuse_generator(generator: str, policy: Policy, accelerator: Any | None) -> None:
    """Refuses a generator of noise that the family of noise, or the device, does not carry.

    Guarantee: a family that a policy signs is drawn where the run says, or the run is refused by the name of the family before
    anything is admitted, drawn or charged; noise is never drawn elsewhere in silence.

    Raises:
        ConfigError: code NOISE_GENERATOR, noise of this family is drawn on the processor alone; NOISE_DEVICE, the device
            computes otherwise than the noise needs.
    """
    if generator == HOST:
        return
    device.require_family(policy.mechanism.name)
    device.require(accelerator.device if accelerator is not None else torch.device("cpu"))


def refuse_optimizer(optimizer: torch.optim.Optimizer, schedule: Schedule, model: nn.Module) -> None:
    """Raises for an optimizer that cannot take what is released, lacks a scheduled tensor, or trains a foreign one."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            "OPTIMIZER_TYPE",
            f"found an optimizer of type {type(optimizer).__name__}, expected a torch.optim.Optimizer: without its step hooks "
            "nothing ties a step to a release; give prepare() the optimizer that is wrapped",
        )
    if type(optimizer).__module__.startswith("opacus."):
        raise NotPrivateUse(
            "OPACUS",
            f"the optimizer is a {type(optimizer).__name__} of Opacus, which clips and adds noise itself; give prepare() the "
            "optimizer of torch that it was made of, without make_private()",
        )
    refuse_unusable(optimizer)
    _refuse_without_tangents(optimizer, schedule)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [t.name for block in schedule.blocks for t in block.tensors if id(t.parameter) not in held]
    if missing:
        raise ConfigError(
            "OPTIMIZER_PARAMETERS",
            f"the optimizer does not hold {len(missing)} trainable tensors that the policy schedules (first: {missing[0]!r}); "
            "build it from this model's parameters, or freeze the tensors with requires_grad_(False)",
        )
    split = next((t.name for block in schedule.blocks for t in block.tensors if t.part is not None), None)
    if split is not None and reach(optimizer) is not Reach.COORDINATE:
        raise NotPrivateUse(
            "OPTIMIZER_MIXES",
            f"parts of {split!r} belong to different classes (a mask of heads or experts), and {type(optimizer).__name__} is "
            "not known to move every coordinate by its own gradient alone, so one class would move the part of another; use "
            "SGD, AdamW, Adam or another such optimizer of torch.optim",
        )
    own = {id(p) for p in model.parameters()}
    foreign = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad and id(p) not in own]
    if foreign:
        raise ConfigError(
            "OPTIMIZER_FOREIGN",
            f"the optimizer holds {len(foreign)} trainable parameters that are not of the model given to prepare() (first: "
            f"shape {tuple(foreign[0].shape)}); autograd would fill them with raw gradients. Make them part of the model, or "
            "leave them out",
        )


def _refuse_without_tangents(optimizer: torch.optim.Optimizer, schedule: Schedule) -> None:
    """Refuses an optimizer that cannot take directions of pairs, and one that waits for them in vain."""
    tensors = [tensor for block in schedule.blocks for tensor in block.tensors]
    wanted = {id(tensors[up].parameter): tensors[up].name for up, _ in schedule.pairs}
    kind = type(optimizer).__name__
    for up, down in schedule.pairs:
        refuse_sharded(tensors[up].name, tensors[up].parameter)
        require_matrices(tensors[up].name, tensors[down].name, tensors[up].parameter, tensors[down].parameter)
    if not isinstance(optimizer, TangentOptimizer):
        if wanted:
            raise NotPrivateUse(
                "GEOMETRY_OPTIMIZER",
                f"the policy gives {len(wanted)} LoRA pairs a tangent geometry, and {kind} steps on factors, which noise does "
                f"not cover apart; use dptrain.geometry.TangentAdam(model, others=torch.optim.{kind}), or TangentSGD",
            )
        return
    if schedule.policy is not None and not schedule.policy.geometry:
        raise ConfigError(
            "GEOMETRY_OPTIMIZER",
            f"{kind} moves LoRA pairs along their tangent space, and the policy gives them no geometry; sign geometry = "
            f'"lora_tangent", or use {type(optimizer.others).__name__} alone',
        )
    held = {id(pair.A) for pair in optimizer.pairs}
    missing = [name for key, name in wanted.items() if key not in held]
    if missing:
        raise ConfigError(
            "GEOMETRY_OPTIMIZER",
            f"{kind} does not hold {len(missing)} pairs that the policy schedules (first: {missing[0]!r}); make it of this "
            "model, after its adapters were added",
        )


def refuse_narrowed(forwards: Forwards, *, sharded: bool = False, compiled: bool = False) -> None:
    """Raises UnsupportedModule for what forwards that read a part of the adapters do not go with.

    Args:
        sharded: parameters lie over ranks, which gather those of every layer together. compiled: one graph runs all.
    """
    if not forwards.narrows:
        return
    if sharded:
        raise UnsupportedModule(
            "READS_SHARDED",
            "classes of the policy read different adapters, and under fully_shard all ranks gather the same parameters at the "
            "same time, whatever their rows read; train under DistributedDataParallel, or sign a policy without reads",
        )
    if compiled:
        raise UnsupportedModule(
            "READS_COMPILED",
            "classes of the policy read different adapters, and compiled=True makes one graph of the model for all of them; "
            "leave it out, or sign a policy without reads",
        )


def judge_optimizer(given: Any, optimizer: torch.optim.Optimizer, isolation: Isolation) -> None:
    """Takes note of an optimizer under which statement A does not hold; raises NotPrivateUse where the policy requires A."""
    reason = weakness(given, optimizer)
    if reason != HELD:
        isolation.weaken(reason, "use an optimizer of torch.optim (SGD, AdamW, Adafactor, Muon, ...), not a subclass of one")


def refuse_shared_memory(model: nn.Module, trained: Collection[int]) -> None:
    """Raises UnsupportedModule for a trained tensor that shares memory with another tensor of the model.

    Guarantee: a step that moves a trained tensor moves no other parameter or buffer. Else a class would move a block that it
    may not touch, since a block knows a tied tensor by its identity.

    Views of one flat buffer pass if their ranges of bytes do not overlap; columns of one matrix do overlap so.

    Args:
        trained: ids of the parameters that the optimizer moves.
    """
    held = (*model.named_parameters(), *model.named_buffers())
    spans = sorted(
        (str(tensor.device), *span, id(tensor) in trained, id(tensor), name) for name, tensor in held if (span := _span(tensor))
    )
    furthest: dict[bool, tuple[str, int, int, bool, int, str]] = {}  # of those before: which ends last, by whether trained
    for now in spans:
        device, start, end, moves, own, name = now
        for before in furthest.values():
            if before[0] == device and before[2] > start and (moves or before[3]) and before[4] != own:
                raise UnsupportedModule(
                    "SHARED_MEMORY",
                    f"{before[5]!r} and {name!r} are two tensors in the same memory, one of them trained, so that a step on "
                    "one moves the other; expected one Parameter under both names, or memory of their own. To tie two weights "
                    "assign the Parameter itself (head.weight = embed.weight), not its .data, a view or a new Parameter of it; "
                    "to untie them give one a clone()",
                )
        if moves not in furthest or furthest[moves][0] != device or furthest[moves][2] < end:
            furthest[moves] = now


def _span(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Returns the first address of a tensor and the one after its last; None for a tensor without memory of its own."""
    try:
        start = tensor.data_ptr()
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    except (RuntimeError, NotImplementedError):  # sparse tensors, and wrappers of others
        return None
    return (start, start + (last + 1) * tensor.element_size()) if start and tensor.numel() else None


def refuse_gradient_hooks(schedule: Schedule) -> None:
    """Raises NotPrivateUse for hooks on scheduled parameters: they would see, or use, raw gradients while the probes run."""
    for block in schedule.blocks:
        for tensor in block.tensors:
            if tensor.parameter._backward_hooks or getattr(tensor.parameter, "_post_accumulate_grad_hooks", None):
                raise NotPrivateUse(
                    "GRADIENT_HOOK",
                    f"parameter {tensor.name!r} carries a gradient hook (register_hook, or an optimizer that steps inside "
                    "backward), which acts on raw gradients and not on what is released; remove it, and change p.grad in place "
                    "between the last microbatch and optimizer.step()",
                )


MOST_DRAWN = 12_000
"""Contributions drawn in a step that surely fit into one leaf of the ledger, where draws are public."""


def refuse_long_draws(policy: Policy, classes: Sequence[str]) -> None:
    """Raises UnsupportedPolicy for draws, if they are public, that may not fit into one leaf; a public number decides."""
    expected = expected_draw(policy, classes)
    if policy.disclosure == "occurrences_public" and expected + 10 * math.sqrt(expected) > MOST_DRAWN:
        raise UnsupportedPolicy(
            "DRAWS",
            f"a step draws {expected:.0f} contributions on average, and the ledger records at most {MOST_DRAWN} of a step "
            "where occurrences are public; lower sampling_rate, or keep draws secret",
        )


def warn_delta(policy: Policy, contributions: int) -> None:
    """Warns about a delta under which publishing a contribution outright now and then would count as private."""
    if policy.delta * 10 * contributions > 1:
        warnings.warn(
            f"delta {float(policy.delta):g} is large for {contributions} contributions: 1 / (10 N) is "
            f"{0.1 / contributions:.1g}",
            stacklevel=3,
        )


def rates_of(optimizer: torch.optim.Optimizer) -> list[float]:
    """Returns the learning rates of the groups of an optimizer, of those that have one."""
    return [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]


def public_rates(optimizer: torch.optim.Optimizer, first: Sequence[float], states: Sequence[Any]) -> list[float]:
    """Returns the learning rates of an optimizer where they are public, else none.

    They are where they stand as they stood before the run, or as a scheduler among the states of the run set them last. What
    else sets them, as a plateau of a loss or a line of the loop, may follow from private rows. Of a scheduler with a function
    of the user's own, that function is taken to follow from the number of the step alone.

    Args:
        first: learning rates before the run. states: what a checkpoint holds beside model and optimizer.
    """
    found = rates_of(optimizer)
    schedulers = (getattr(state, "scheduler", state) for state in states)
    counting = (
        scheduler for scheduler in schedulers
        if isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)
        and not isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
    )  # fmt: skip
    set_last = [[float(rate) for rate in scheduler.get_last_lr()] for scheduler in counting]
    return found if found in (list(first), *set_last) else []


def refuse_private_rates(step: int) -> None:
    """Raises NotPrivateUse: a learning rate may carry what one class released over to an adapter that it may not reach."""
    raise NotPrivateUse(
        "READS_RATE",
        f"the learning rates of step {step} are not those that a scheduler among the states of the run set last, so that they "
        "may follow from the loss of any class, and the policy keeps classes apart by what they read; let a scheduler that "
        "counts steps set them, and give it to prepare(states=[scheduler])",
    )


def warn_schedule(optimizer: torch.optim.Optimizer, states: Sequence[Any]) -> None:
    """Warns where a checkpoint is written without the schedule that drives the optimizer."""
    kinds = (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
    held = any(isinstance(getattr(state, "scheduler", state), kinds) for state in states)
    if getattr(optimizer.step, "_wrapped_by_lr_sched", False) and not held:
        warnings.warn(
            "a scheduler drives the optimizer, and checkpoints do not hold it, so that a resumed run would begin its schedule "
            "anew; give it to prepare(states=[scheduler])",
            stacklevel=4,
        )


def other_threads(saved: int, policy: Policy, leads: bool) -> int | None:
    """Returns the threads of this process where a checkpoint was written with another number, for the RESUME leaf; else None.

    Warns of it where results are promised to the bit.
    """
    now = torch.get_num_threads()
    if saved == now:
        return None
    if policy.exactness == "certified" and leads:
        warnings.warn(
            f"this run goes on with {now} threads a process, and its checkpoint was written with {saved}: products may round "
            "otherwise, so that weights are no longer those of a run on one number of threads to the last bit; guarantee and "
            f"epsilon are the same. torch.set_num_threads({saved}) before prepare() keeps the bits",
            stacklevel=4,
        )
    return now


def refuse_low_precision() -> None:
    """Raises NotPrivateUse where float32 products may be rounded to TF32 or bfloat16: the clip margin pays for float32."""
    for name, found in _product_precisions():
        if found not in ("highest", "ieee", "none"):
            raise NotPrivateUse(
                "MATMUL_PRECISION",
                f"float32 matrix products run at precision {found!r} ({name}), under which clip norms are off by more than the "
                "margin; call torch.set_float32_matmul_precision('highest') and leave the settings fp32_precision alone",
            )


def _product_precisions() -> Iterator[tuple[str, str]]:
    """Yields every setting under which torch rounds the factors of a float32 product, by its new interface and its old one."""
    for path in ((), ("mkldnn",), ("mkldnn", "matmul"), ("cuda", "matmul")):
        holder: Any = torch.backends
        for part in path:
            holder = getattr(holder, part, None)
        found = getattr(holder, "fp32_precision", None)
        if found is not None:
            yield ".".join(("torch.backends", *path, "fp32_precision")), found
    try:
        yield "torch.get_float32_matmul_precision()", torch.get_float32_matmul_precision()
    except RuntimeError:  # Set by the new interface, so that the old one declines to read it; it was read above.
        return


def refuse_written(sandbox: Sandbox) -> None:
    """Ends a run, at the end of a window, if a private microbatch wrote what is not trained, or drew beside torch.

    The message says the same whatever was written or drawn, and when: both may follow from content.

    Raises:
        NotPrivateUse: code HOST_RANDOMNESS or FORWARD_WROTE.
    """
    if sandbox.late_host_draws:
        raise NotPrivateUse(
            "HOST_RANDOMNESS",
            "in this window a private microbatch drew from Python's random or numpy.random, whose numbers belong to no "
            "contribution, and in the probes none did. Noise alone was released from that step on. Take the model from the "
            "last checkpoint before this window, and draw with torch",
        )
    if sandbox.kept.written is not None:
        raise NotPrivateUse(
            "FORWARD_WROTE",
            "in this window a private microbatch wrote something that the model keeps and does not train (a table, a "
            "buffer, a counter), which it did not do in the probes. Operations of torch wrote a copy instead; whatever "
            "was changed all the same was seen before the next release, and noise alone was released from there on. Take "
            "the model from the last checkpoint before this window, and switch off what writes",
        )
