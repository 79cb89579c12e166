"""Holds what a hook keeps of a call, and who sees what it does: inputs as autograd keeps them, content followed through it."""

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack  # noqa: E402

from dptrain.blocks.stack import layer_stack  # noqa: E402
from dptrain.routing import Router, capture  # noqa: E402
from dptrain.sandbox import Sandbox  # noqa: E402
from tests.reference.compare import names_of, random_schedule  # noqa: E402

WAYS = [capture._kept_by_a_node] + [capture._kept_alone] * hasattr(torch._C._autograd, "_make_saved_tensor")


class Branching(nn.Module):
    """Goes by what a linear layer says, whose output over three dimensions is a view that a hook replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers[1](self.layers[0](x))
        if bool((y > 1e6).any()):
            y = y * 2.0
        return self.layers[2](y).sum((1, 2))


def routed() -> tuple[Branching, Sandbox, Router]:
    torch.manual_seed(0)
    model = Branching()
    schedule = random_schedule(model, random.Random(0), 1, "layers")
    assert layer_stack(model, "layers").tensors
    trained = frozenset(id(parameter) for parameter in model.parameters())
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    sandbox = Sandbox(model, trained, b"0123456789abcdef")
    router = Router(model, schedule, sandbox=sandbox)
    router.attach()
    return model, sandbox, router


def microbatch(model: nn.Module, sandbox: Sandbox, router: Router, x: torch.Tensor, **how: Any) -> None:
    with sandbox.enter(1, names_of(len(x)), **how):
        router.arm(len(x), 1, torch.ones(len(x), len(router.schedule.blocks), dtype=torch.bool))
        router.backward(model(x), torch.ones(len(x)))
        router.disarm()


def test_content_is_followed_through_what_a_hook_makes_of_an_output() -> None:
    model, sandbox, router = routed()
    x = torch.randn(3, 5, 4)
    microbatch(model, sandbox, router, x, probing=True, inputs=[x])
    microbatch(model, sandbox, router, x + 1.0, probing=True, inputs=[x])
    assert sandbox.truths.decided == {"": False}, "what decides the branch is content"


def test_hooks_of_the_program_on_what_is_saved_run_as_the_program_does() -> None:
    """Lets nothing by that they write or draw."""
    model, sandbox, router = routed()
    seen: list[bool] = []

    def packed(value: torch.Tensor) -> torch.Tensor:
        seen.append(sandbox._mode in _get_current_dispatch_mode_stack())
        return value

    with torch.autograd.graph.saved_tensors_hooks(packed, lambda value: value):
        microbatch(model, sandbox, router, torch.randn(3, 5, 4))
    assert len(seen) >= 3 and all(seen)


@pytest.mark.parametrize("keep", WAYS)
def test_inputs_come_back_and_one_that_was_written_is_an_error(keep: Any) -> None:
    anchor = torch.zeros((), requires_grad=True)
    x, ids = torch.randn(3, requires_grad=True).exp(), torch.arange(3)
    kept = keep(anchor, [x.detach(), ids.detach()])
    found = kept()
    assert torch.equal(found[0], x) and torch.equal(found[1], ids) and not found[0].requires_grad
    assert torch.equal(kept()[0], x)
    with torch.no_grad():
        x.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept()


@pytest.mark.parametrize("keep", WAYS)
def test_hooks_on_what_is_saved_may_put_it_elsewhere(keep: Any) -> None:
    anchor, x, store = torch.zeros((), requires_grad=True), torch.randn(3), []

    def packed(value: torch.Tensor) -> int:
        store.append(value.clone())
        return len(store) - 1

    with torch.autograd.graph.saved_tensors_hooks(packed, store.__getitem__):
        kept = keep(anchor, [x])
    store[0] += 1.0
    assert torch.equal(kept()[0], x + 1.0)
