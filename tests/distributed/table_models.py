"""Models, losses and worlds that rows of the table train on, and what users do to them."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from attest import signed_file
from attest.corpus import open_corpus
from attest.gate import run_gate
from attest.keys import public_bytes
from attest.policy import open_policy
from attest.withdrawal import Withdrawal, sign_withdrawal
from dptrain.engine import draw
from dptrain.noise.lattice import OnHost
from dptrain.parallel import together
from dptrain.parallel.placement import Exchanged
from tests.distributed.table_runs import Subject
from tests.reference.families import FAMILIES, Family
from tests.worlds.trainer import collate_tokens
from tests.worlds.training import World, token_record

WAVES = torch.arange(1, 65, dtype=torch.float32) / 9.0


def _of(found: Family, collate: Any = collate_tokens) -> Subject:
    return Subject(found.model.float(), lambda net, rows: found.losses(net, dict(rows)), collate)


def family(name: str) -> Subject:
    """A model of `tests.reference.families`, in float32."""
    return _of(FAMILIES[name](), pictures if name == "vit" else collate_tokens)


def pictures(examples: list[dict]) -> dict[str, Any]:
    """Pictures that are drawn from the tokens of a record."""
    rows = collate_tokens(examples)
    drawn = torch.sin(rows["input_ids"].float().mean(1, keepdim=True) * WAVES).view(-1, 1, 8, 8)
    return {"pixel_values": drawn, "labels": rows["labels"]}


def zoo(name: str) -> Subject:
    """A family of `tests.zoo` as its library initialises it, with the layers that it needs to be told."""
    from tests.zoo.families import ZOO

    found = ZOO[name]
    return Subject(found.build(), found.loss, found.collate, found.layers[-1])


def zoo_world(name: str) -> dict[str, Any]:
    from tests.zoo.families import ZOO

    return {"record": ZOO[name].record}


def masked(name: str) -> Subject:
    from tests.reference import masked as models

    return _of(getattr(models, name)())


def profiled(name: str) -> Subject:
    from tests.guarantees import test_isolation_of_profiles as profiles

    return _of(getattr(profiles, name)())


def reader() -> Subject:
    from tests.engine import test_public_lengths as lengths

    return Subject(lengths.Reader(), lengths.losses, lengths.collate)


def lengthy() -> dict[str, Any]:
    from tests.engine import test_public_lengths as lengths

    return {"record": lengths.record, "length_of": lengths.length_of}


def several(seed: int) -> list[dict]:
    """A contribution of one to five examples."""
    return [token_record(seed + 17 * k) for k in range((1, 3, 5)[seed % 3])]


def dropping() -> Subject:
    found = family("bert")
    for module in found.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3
    return found


class To(nn.Module):
    """Goes on in another type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype)


def of_two_types() -> Subject:
    """A net whose last weights are bfloat16."""
    last = nn.Linear(8, 3).to(torch.bfloat16)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), To(torch.bfloat16), last, To(torch.float32))
    return Subject(net, lambda net, rows: _classify(net(rows["pixel_values"]), rows["labels"]), pictures)


def small() -> Subject:
    """A net that is soon compiled to machine code."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 3))
    return Subject(net, lambda net, rows: _classify(net(rows["pixel_values"]), rows["labels"]), pictures)


def _classify(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits, labels, reduction="none")


def raising() -> Subject:
    """A loss that raises for one contribution."""
    found = family("bert")
    refused = token_record(1001)["ids"][0]

    def losses(net: nn.Module, rows: Any) -> torch.Tensor:
        if refused in rows["input_ids"][:, 0].tolist():  # by numbers: a truth of a tensor would be that of the probes
            raise ValueError("a content that the loss does not take")
        return found.losses(net, rows)

    return Subject(found.model, losses, found.collate)


# ---------------------------------------------------------------------------------------------- what users do to a model


def hooked(model: nn.Module) -> None:
    """One hook changes what a part returns, one looks."""
    layer = model.get_submodule("bert.encoder.layer.1")
    layer.get_submodule("output").register_forward_hook(lambda module, args, out: 0.5 * out)
    layer.register_forward_pre_hook(lambda module, args: None)


def checkpointed(model: nn.Module, *, reentrant: bool = False) -> None:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})


def in_half() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16)


def in_wrapper(model: nn.Module, **options: Any) -> nn.Module:
    """DistributedDataParallel with options, where there are several processes."""
    return DistributedDataParallel(model, **options) if torch.distributed.is_initialized() else model


def bare(model: nn.Module) -> nn.Module:
    """No wrapper at all."""
    return model


def in_hooked_wrapper(model: nn.Module) -> nn.Module:
    net = in_wrapper(model)
    net.register_forward_pre_hook(lambda module, args: None)
    return net


def compiled_wrapper(model: nn.Module) -> nn.Module:
    net: Any = torch.compile(in_wrapper(model), backend="eager")
    return net


def wrapper_compiled_in_place(model: nn.Module) -> nn.Module:
    net = in_wrapper(model)
    net.compile(backend="eager")
    return net


def sharded_optimizer(parameters: Any) -> torch.optim.Optimizer:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.AdamW, lr=1e-2)


def withdrawals(world: World) -> None:
    """Signs a withdrawal of one contribution, which the run gets while it goes on."""
    policy = open_policy(world.policy, public_bytes(world.owner_key)).policy
    gate = run_gate(open_corpus(world.corpus), policy, world.registry, now=world.now)
    named = Withdrawal(gate.admitted[0].admission.descriptor_hash, policy.corpus, world.now, "consent")
    folder = world.root / "withdrawals"
    folder.mkdir()
    signed_file.write(folder / "one.cose", *sign_withdrawal(named, world.owner_key, signer="owner"))


# ------------------------------------------------------------------------------------------- in which a whole run may go


@contextmanager
def _changed(owner: Any, name: str, value: Any) -> Iterator[None]:
    kept = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def as_traced() -> AbstractContextManager[None]:
    """Runs a graph as it was traced: all of the compiled form but inductor's code."""
    import torch._inductor as inductor

    return _changed(inductor, "compile", lambda graph, values: graph)


def few_expected() -> AbstractContextManager[None]:
    """Every step draws more than the rounding on the wire is paid for."""
    return _changed(together, "most_drawn", lambda policy, classes: 1)


def unaddressed() -> AbstractContextManager[None]:
    """A mechanism that does not say that it draws by address."""
    return _changed(OnHost, "addressed", False)


def losing() -> AbstractContextManager[None]:
    """A fault: what is dealt to the second process counts for nothing."""
    dealt = draw.in_step

    def idle(plans: Any, rank: int, *others: Any) -> Any:
        kept = [plan if place != 1 else [] for place, plan in enumerate(plans)]
        return dealt(kept, rank, *others)

    return _changed(draw, "in_step", idle)


def noise_by_rank() -> AbstractContextManager[None]:
    """A fault: a coordinate gets the noise of another one, by the process that owns it."""
    shares = Exchanged.shares

    def shifted(self: Exchanged, totals: Any, **how: Any) -> Any:
        return (replace(share, offset=0) for share in shares(self, totals, **how))

    return _changed(Exchanged, "shares", shifted)


def scheduled_by_processes() -> AbstractContextManager[None]:
    """A fault: accelerate's scheduler steps once for every process."""
    from dptrain.engine import prepared

    return _changed(prepared, "step_once", lambda *about: None)


FAULTS = {"losing": losing, "noise_by_rank": noise_by_rank, "scheduled_by_processes": scheduled_by_processes}

REENTRANT = partial(checkpointed, reentrant=True)
