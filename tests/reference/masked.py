"""Models and schedules with masks of heads and experts, and what the masks permit, written out by hand."""

import copy
import random
from dataclasses import replace
from fractions import Fraction

import torch
from torch import nn

from attest.policy import DepthRule
from dptrain.blocks.stack import layer_stack
from dptrain.clipping.resolver import Schedule, bind
from tests.reference import families
from tests.reference.zoo import ZOO
from tests.routing.test_depth_and_resolver import policy_of

ALL = (Fraction(0), Fraction(1))


def subset(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(sorted(rng.sample(range(count), rng.randint(1, max(1, count - 1)))))


def random_masks(model: nn.Module, rng: random.Random, layers: str | None, kinds: tuple[str, ...]) -> Schedule:
    """Three classes with random masks, sometimes none; the first is sure to have one of each kind."""
    stack = layer_stack(model, layers)
    counts = {kind: min(stack.owners[kind].values()) for kind in kinds}
    rules = {}
    for k, name in enumerate("abc"):
        drawn = {kind: subset(rng, count) for kind, count in counts.items() if k == 0 or rng.random() < 0.6}
        rules[name] = DepthRule(band=ALL, **drawn)
    return bind(policy_of(**rules), stack)


def covered(model: nn.Module, schedule: Schedule) -> dict[str, dict[str, torch.Tensor]]:
    """What every class may touch, and what is frozen: a mask per parameter, from the parts of the schedule."""
    names = [*schedule.profiles, "frozen"]
    found = {c: {n: torch.zeros_like(p, dtype=torch.bool) for n, p in model.named_parameters()} for c in names}
    times = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for block_classes, tensors in [*((b.classes, b.tensors) for b in schedule.blocks), (("frozen",), schedule.frozen)]:
        for tensor in tensors:
            one = torch.zeros_like(tensor.parameter)
            (tensor.part.write if tensor.part else torch.Tensor.copy_)(one, torch.ones(tensor.shape).to(one))
            times[tensor.name] += one
            for c in block_classes:
                found[c][tensor.name] |= one.bool()
    assert all(bool((count == 1).all()) for count in times.values()), "every coordinate lies in exactly one block"
    return found


def by_hand_llama(model: nn.Module, allowed: set[int]) -> dict[str, torch.Tensor]:
    """The coordinates of a Llama with 4 query and 2 key-value heads that a class with these heads may touch, written out."""
    found = {}
    for name, parameter in model.named_parameters():
        permitted = torch.ones_like(parameter, dtype=torch.bool)
        if ".self_attn." in name:
            permitted[:] = False
            width = model.config.hidden_size // 4
            for head in range(4):
                if "q_proj" in name and head in allowed:
                    permitted[head * width : (head + 1) * width] = True
                if "o_proj.weight" in name and head in allowed:
                    permitted[:, head * width : (head + 1) * width] = True
            for group in range(2):
                if ("k_proj" in name or "v_proj" in name) and {2 * group, 2 * group + 1} <= allowed:
                    permitted[group * width : (group + 1) * width] = True
            if "o_proj.bias" in name:
                permitted[:] = allowed == {0, 1, 2, 3}
        found[name] = permitted
    return found


def by_hand_gpt2(model: nn.Module, allowed: set[int]) -> dict[str, torch.Tensor]:
    """The same of a GPT-2 with 2 heads: columns of its Conv1D, in three thirds."""
    found = {}
    for name, parameter in model.named_parameters():
        permitted = torch.ones_like(parameter, dtype=torch.bool)
        if ".attn." in name:
            permitted[:] = False
            width = model.config.n_embd // 2
            for head in allowed:
                for third in range(3) if "c_attn" in name else ():
                    start = third * model.config.n_embd + head * width
                    permitted[..., start : start + width] = True
                if "c_proj.weight" in name:
                    permitted[head * width : (head + 1) * width] = True
            if "c_proj.bias" in name:
                permitted[:] = allowed == {0, 1}
        found[name] = permitted
    return found


def biased_llama() -> families.Family:
    family = families.llama()
    config = copy.deepcopy(family.model.config)
    config.attention_bias = True
    torch.manual_seed(0)
    model = type(family.model)(config).double()
    for name, parameter in model.named_parameters():
        if "norm" not in name:  # so large that attention attends
            nn.init.normal_(parameter, std=0.3)
    return families.Family(model, family.batch, family.losses)


def mixture() -> families.Family:
    entry = replace(ZOO["mixtral"], options={**ZOO["mixtral"].options, "vocab_size": families.VOCABULARY})
    return families.Family(entry.build(), families.tokens, families._next_token)
