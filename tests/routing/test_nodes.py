"""Linear maps that compute as nodes of autograd: the gradients of a naive loop, whatever stands around them."""

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")
from torch import nn  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from transformers.pytorch_utils import Conv1D  # noqa: E402

from dptrain.clipping.resolver import Block, Schedule  # noqa: E402
from dptrain.errors import CoupledModel, NotPrivateUse, UnsupportedModule  # noqa: E402
from dptrain.gradients import fused, matmul  # noqa: E402
from dptrain.kernels import nodes  # noqa: E402
from dptrain.routing import Router, capture  # noqa: E402
from dptrain.sandbox import Sandbox  # noqa: E402
from tests.guarantees.peers import whole_schedule  # noqa: E402
from tests.routing.test_fused import lora_layer  # noqa: E402

ROWS, LENGTH, WIDTH = 4, 5, 6

Losses = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Net(nn.Module):
    """A trained map below, so that gradients are asked of what follows; then what is tested, and a map above."""

    def __init__(self, inner: nn.Module, width: int = WIDTH) -> None:
        super().__init__()
        self.inner = inner
        self.layers = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(width)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[1](self.inner(self.layers[0](x) * 1.0))


def squares(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out = net(x)
    steps = torch.arange(1.0, 1 + out[0].numel(), dtype=out.dtype).view(out[0].shape)
    return ((out * steps.cos()).flatten(1).square() + out.flatten(1) * 0.3).sum(1)


class Scene:
    """A router of a net in its sandbox, which has learnt where rows lie, and counts maps that were nodes."""

    def __init__(
        self, net: nn.Module, monkeypatch: Any, *, schedule: Schedule | None = None, losses: Losses = squares, **options: Any
    ) -> None:
        self.net, self.losses = net, losses
        self.naive = copy.deepcopy(net)
        schedule = schedule or whole_schedule(net, "layers")
        self.names = {id(parameter): name for name, parameter in net.named_parameters()}
        trained = frozenset(id(t.parameter) for block in schedule.blocks for t in block.tensors)
        for parameter in net.parameters():
            parameter.requires_grad_(False)
        self.sandbox = Sandbox(net, trained, bytes(16))
        self.router = Router(net, schedule, sandbox=self.sandbox, **options)
        self.router.attach()
        self.nodes: list[str] = []
        for room, name in ((capture, "multiplied"), (fused, "adapted")):
            own = getattr(nodes, name)
            monkeypatch.setattr(room, name, lambda *given, own=own, name=name: (self.nodes.append(name), own(*given))[1])
        for rows in (2, 3):  # no width or length, so that it is seen which dimension is theirs
            self._pass(torch.randn(rows, *self.inputs().shape[1:], dtype=self._dtype()), learning=True)
        self.sandbox.layouts.decide()
        self.nodes.clear()

    def _dtype(self) -> torch.dtype:
        return next(self.net.parameters()).dtype

    def inputs(self, seed: int = 0) -> torch.Tensor:
        chance = torch.Generator().manual_seed(seed)
        return torch.randn(ROWS, LENGTH, WIDTH, generator=chance, dtype=torch.float64).to(self._dtype())

    def _pass(
        self, x: torch.Tensor, examples: int = 1, permitted: torch.Tensor | None = None, **options: Any
    ) -> dict[int, torch.Tensor]:
        """Returns what every contribution's gradient is, by index of the tensor."""
        count = len(x) // examples
        router, blocks = self.router, len(self.router.schedule.blocks)
        permitted = torch.ones(count, blocks, dtype=torch.bool) if permitted is None else permitted
        matmul.begin(self, "fastest")
        with router.fused.inside("fastest"), self.sandbox.enter(1, [bytes([row]) for row in range(len(x))], **options):
            router.arm(count, examples, permitted)
            router.backward(self.losses(self.net, x), torch.full((len(x),), 1.0 / examples, dtype=torch.float64))
            found = {}
            for index, pieces in router.pieces.items():
                shape = router.tensors[index][1].parameter.shape
                found[index] = sum(piece.dense(shape).double().view(count, *shape) for piece in pieces)
            router.disarm()
        matmul.end(self)
        return found

    def agrees(self, count: int, *, examples: int = 1, permitted: torch.Tensor | None = None, seed: int = 0) -> None:
        """Compares with autograd, contribution by contribution; so many maps were nodes."""
        x = self.inputs(seed)
        self.nodes.clear()
        found = self._pass(x, examples, permitted)
        assert len(self.nodes) == count, self.nodes
        blocks = range(len(self.router.schedule.blocks)) if permitted is None else permitted.any(0).nonzero().flatten().tolist()
        indices = [index for index, (block, _) in enumerate(self.router.tensors) if block in blocks]
        tensors = [self.router.tensors[index][1] for index in indices]
        named = dict(self.naive.named_parameters())
        own = [named[self.names[id(tensor.parameter)]].requires_grad_(True) for tensor in tensors]
        for contribution in range(len(x) // examples):
            rows = x[contribution * examples : (contribution + 1) * examples]
            true = torch.autograd.grad(self.losses(self.naive, rows).mean(), own, allow_unused=True)
            for index, tensor, gradient in zip(indices, tensors, true, strict=True):
                if gradient is None and index not in found:
                    continue
                expected = torch.zeros(tensor.parameter.shape) if gradient is None else gradient
                assert index in found, f"nothing is delivered of {tensor.name}"
                near = 1e-9 if expected.dtype == torch.float64 else 2e-4
                torch.testing.assert_close(found[index][contribution], expected.double(), rtol=near, atol=near)


class Stretch(nn.Module):
    """Calls maps in the ways that models do."""

    def __init__(self, how: Callable[["Stretch", torch.Tensor], torch.Tensor], *maps: nn.Module) -> None:
        super().__init__()
        self.maps, self.how = nn.ModuleList(maps), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.how(self, x)


def residual_in_place(self: Stretch, x: torch.Tensor) -> torch.Tensor:
    y = self.maps[0](x)
    y += x
    return self.maps[1](y).relu_()


def twice(self: Stretch, x: torch.Tensor) -> torch.Tensor:
    return self.maps[0](self.maps[0](x).tanh())


def of_the_middle(self: Stretch, x: torch.Tensor) -> torch.Tensor:
    return x + self.maps[0](x[:, 2])[:, None]


def of_four_dimensions(self: Stretch, x: torch.Tensor) -> torch.Tensor:
    return self.maps[0](x[:, :, None].expand(-1, -1, 3, -1)).sum(2)


def turned(self: Stretch, x: torch.Tensor) -> torch.Tensor:
    return self.maps[0](x.mT.contiguous().mT)


def the_same_of_all(self: Stretch, x: torch.Tensor) -> torch.Tensor:
    return x + self.maps[0](x.mean(1, keepdim=True).expand(-1, LENGTH, -1))


def caught(self: Stretch, x: torch.Tensor) -> torch.Tensor:
    with suppress(RuntimeError):
        self.maps[0](x[..., :3])
    return self.maps[0](x)


def with_evaluation(self: Stretch, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        shift = self.maps[0](x).mean((1, 2), keepdim=True)
    return self.maps[0](x) + shift


def written_views(self: Stretch, x: torch.Tensor) -> torch.Tensor:
    y = self.maps[0](x)
    y[:, 0].mul_(3.0)
    return y


WAYS = {
    residual_in_place: (2, 2), twice: (2, 2), of_the_middle: (1, 0), caught: (2, 1), with_evaluation: (1, 1),
    written_views: (1, 1), of_four_dimensions: (1, None), turned: (1, None), the_same_of_all: (1, None),
}  # fmt: skip
"""How many maps are nodes, of torch's layer and of that of GPT-2, which takes no input that is no view."""

KINDS = (nn.Linear, Conv1D)


@pytest.mark.parametrize("way, kind", [(way, kind) for way in WAYS for kind in (0, 1) if WAYS[way][kind] is not None])
def test_gradients_are_those_of_a_naive_loop(way: Any, kind: int, monkeypatch) -> None:
    torch.manual_seed(0)
    maps = [KINDS[kind](WIDTH, WIDTH) for _ in range(1 + (way is residual_in_place))]
    count = WAYS[way][kind]
    assert count is not None
    Scene(Net(Stretch(way, *maps)).double(), monkeypatch).agrees(count)


def test_of_several_examples_each_and_of_one_contribution(monkeypatch) -> None:
    scene = Scene(Net(nn.Linear(WIDTH, WIDTH)), monkeypatch)
    scene.agrees(1, examples=2)
    scene.agrees(1, examples=ROWS)


def test_a_layer_by_which_a_hook_computes_once_more_is_no_node(monkeypatch) -> None:
    """What a hook of somebody else computes of the same input is no call of the layer."""
    scene = Scene(Net(nn.Linear(WIDTH, WIDTH)), monkeypatch)
    again = lambda module, args, out: nn.functional.linear(args[0], module.weight, module.bias) * 0.0 + out  # noqa: E731
    scene.net.inner.register_forward_hook(again, prepend=True)
    scene.agrees(0)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_of_a_layer_of_which_one_tensor_trains(frozen: str, monkeypatch) -> None:
    net = Net(nn.Linear(WIDTH, WIDTH))
    net.inner.get_parameter(frozen).requires_grad_(False)
    Scene(net, monkeypatch).agrees(1)


def test_where_no_contribution_may_touch_a_layer_it_is_called_and_nothing_is_taken(monkeypatch) -> None:
    net = Net(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)))
    whole = whole_schedule(net, "layers")
    (block,) = whole.blocks
    first = tuple(t for t in block.tensors if t.name.startswith("inner.0"))
    others = tuple(t for t in block.tensors if t not in first)
    blocks = (Block("first", (), first, ("a",), 1.0), Block("rest", (), others, ("a", "b"), 1.0))
    scene = Scene(net, monkeypatch, schedule=Schedule(whole.stack, blocks, {"a": (0, 1), "b": (1,)}, ()))
    scene.agrees(2)
    scene.agrees(1, permitted=torch.tensor([[False, True]]).expand(ROWS, 2))


def test_hooks_of_others_see_and_change_what_they_always_did(monkeypatch) -> None:
    scene = Scene(Net(nn.Linear(WIDTH, WIDTH)), monkeypatch)
    seen: list[torch.Tensor] = []
    for one in (scene.net.inner, scene.naive.inner):
        one.register_forward_hook(lambda module, args, out: seen.append(out))
        one.register_forward_hook(lambda module, args, out: out.sin())
    scene.agrees(1)
    assert seen and all(torch.is_tensor(one) for one in seen)


def test_a_map_that_gets_something_else_than_its_call_began_with_is_called(monkeypatch) -> None:
    scene = Scene(Net(nn.Linear(WIDTH, WIDTH)), monkeypatch)
    inner = scene.net.inner
    inner.forward = lambda x: nn.Linear.forward(inner, x * 1.5)  # which the proofs of the start refuse
    scene._pass(scene.inputs())
    assert not scene.nodes


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_map_that_somebody_computes_by_before_it_is_called_is_no_node(everywhere: bool, monkeypatch) -> None:
    """Of a node that nothing came of, no gradient would be taken; and it would be for the call."""
    scene = Scene(Net(nn.Linear(WIDTH, WIDTH)), monkeypatch)

    def first(module: nn.Module, args: tuple) -> tuple | None:
        if module not in (scene.net.inner, scene.naive.inner):
            return None
        nn.functional.linear(args[0], module.weight, module.bias)
        return (args[0] * 1.5,)

    handles = []
    if everywhere:
        handles.append(nn.modules.module.register_module_forward_pre_hook(first))
    else:
        handles += [one.register_forward_pre_hook(first) for one in (scene.net.inner, scene.naive.inner)]
    try:
        scene.agrees(0)
    finally:
        for handle in handles:
            handle.remove()


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.map, x, use_reentrant=False)


class OnHost(Checkpointed):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu():
            return self.map(x)


@pytest.mark.parametrize("inner", [Checkpointed, OnHost])
def test_where_a_call_is_more_than_its_input_it_is_made(inner: Any, monkeypatch) -> None:
    Scene(Net(inner()), monkeypatch).agrees(0)


def test_left_to_torch_no_map_is_a_node(monkeypatch) -> None:
    scene = Scene(Net(nn.Linear(WIDTH, WIDTH)), monkeypatch)
    own = matmul.begin
    monkeypatch.setattr(matmul, "begin", lambda owner, products: own(owner, "torch"))
    scene.agrees(0)


def test_a_copy_of_the_model_computes_by_itself_and_is_nobodys(monkeypatch) -> None:
    copies: list[nn.Module] = []

    def losses(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if net is scene.net:
            copies.append(copy.deepcopy(net.inner))
            with torch.no_grad():
                copies[-1].weight.add_(7.0)
            return squares(net, x) + 0.0 * copies[-1](x.clone().requires_grad_(False)).sum((1, 2))
        return squares(net, x)

    scene = Scene(Net(nn.Linear(WIDTH, WIDTH)), monkeypatch)
    scene.losses = losses
    scene.agrees(1)
    assert len(copies) == 1


def test_a_graph_of_an_earlier_microbatch_is_refused(monkeypatch) -> None:
    kept: list[torch.Tensor] = []

    def losses(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        kept.append(net.inner(x * net.layers[0].weight))
        return squares(net, x) + sum(one.sum((1, 2)) for one in kept)

    scene = Scene(Net(nn.Linear(WIDTH, WIDTH)), monkeypatch)
    scene.losses = losses
    x = scene.inputs().requires_grad_()
    with pytest.raises((CoupledModel, NotPrivateUse, RuntimeError)) as refused:
        for _ in range(2):
            scene._pass(x)
    assert getattr(refused.value, "code", "") in ("STALE_GRAPH", "FOREIGN_LEAF")


def test_what_went_in_may_not_be_written_afterwards(monkeypatch) -> None:
    def spoiled(self: Stretch, x: torch.Tensor) -> torch.Tensor:
        y = self.maps[0](x)
        x.mul_(2.0)
        return y

    def kept(self: Stretch, x: torch.Tensor) -> torch.Tensor:
        return self.maps[0](x)

    inner = Stretch(kept, nn.Linear(WIDTH, WIDTH))
    scene = Scene(Net(inner), monkeypatch)
    scene.agrees(1)
    inner.how = spoiled
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        scene.agrees(1)


def test_a_gradient_of_a_gradient_is_that_of_the_map(monkeypatch) -> None:
    """Of inputs alone: one that reaches weights twice is refused by the proofs of the start."""
    taken = fused._Shown()
    taken.parts = (nn.Linear(WIDTH, 3),)
    weight, bias = taken.parts[0].weight.detach(), taken.parts[0].bias.detach()
    x = torch.randn(ROWS, LENGTH, WIDTH, requires_grad=True)
    found = []
    for way in (
        lambda: nodes.multiplied(x, x.shape, nodes.Map(weight.t(), bias), matmul.product, taken),
        lambda: nn.functional.linear(x, weight, bias),
    ):
        (first,) = torch.autograd.grad(way().pow(3).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), x)[0])
    torch.testing.assert_close(*found)


def test_of_a_gradient_of_it_that_is_asked_for_kernels_are_those_with_a_derivative(monkeypatch) -> None:
    """Kernels of our own have none, and torch would go on without."""
    monkeypatch.setattr(matmul, "ENABLED", matmul.AVAILABLE)
    x_MK, y_KN = torch.randn(256, 128, requires_grad=True), torch.randn(128, 96)
    found = matmul.product(x_MK, y_KN).sum() + matmul.product(x_MK, y_KN, torch.ones(96)).sum()
    torch.testing.assert_close(torch.autograd.grad(found, x_MK)[0], 2.0 * y_KN.sum(1).expand(256, -1))


def test_a_call_by_name_after_one_that_raised_has_its_gradient(monkeypatch) -> None:
    def twice(self: Stretch, x: torch.Tensor) -> torch.Tensor:
        with suppress(RuntimeError):
            self.maps[0](x[..., :3])
        return self.maps[0](input=x)

    Scene(Net(Stretch(twice, nn.Linear(WIDTH, WIDTH))), monkeypatch).agrees(1)


def test_a_call_that_raises_in_a_hook_of_another_one_leaves_that_its_gradient(monkeypatch) -> None:
    net = Net(nn.Linear(WIDTH, WIDTH))

    def raises(module: nn.Module, args: tuple, out: torch.Tensor) -> None:
        with suppress(TypeError):
            module(args[0], 3)

    net.inner.register_forward_hook(raises)  # before those of the router
    Scene(net, monkeypatch).agrees(0)


def test_a_map_with_a_forward_of_its_own_may_compute_what_it_does_not_use(monkeypatch) -> None:
    """A straight-through estimate, say: the first product has no gradient, and another one has."""
    net = Net(nn.Linear(WIDTH, WIDTH))
    scene = Scene(net, monkeypatch)
    for one in (scene.net.inner, scene.naive.inner):
        own = one.forward
        one.forward = lambda x, own=own: (own(x).round() - own(x)).detach() + own(x)
    scene.agrees(0)


class Twice(TorchFunctionMode):
    """Calls every linear map twice, and uses the second result."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is nn.functional.linear:
            func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def test_a_mode_of_others_may_compute_a_map_twice(monkeypatch) -> None:
    def how(self: Stretch, x: torch.Tensor) -> torch.Tensor:
        with Twice():
            return self.maps[0](x)

    Scene(Net(Stretch(how, nn.Linear(WIDTH, WIDTH))), monkeypatch).agrees(2)


def test_where_tangents_are_asked_for_no_map_is_a_node(monkeypatch) -> None:
    def how(self: Stretch, x: torch.Tensor) -> torch.Tensor:
        with forward_ad.dual_level():
            y, tangent = forward_ad.unpack_dual(self.maps[0](forward_ad.make_dual(x, torch.ones_like(x))))
            return y + tangent.detach()

    Scene(Net(Stretch(how, nn.Linear(WIDTH, WIDTH))), monkeypatch).agrees(0)


@pytest.mark.parametrize("pair", [False, True])
def test_a_backward_pass_under_autocast_goes_back_in_the_type_of_a_map(pair: bool, monkeypatch) -> None:
    def how(self: Stretch, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.maps[0](x)

    inner = Stretch(how, adapter() if pair else nn.Linear(WIDTH, 9))
    scene = Scene(Net(inner, 9), monkeypatch)
    own = scene.router.backward

    def backward(*given: Any) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            own(*given)

    scene.router.backward = backward
    scene.agrees(1)


@pytest.mark.parametrize("pair", [False, True])
def test_a_loop_may_ask_a_batch_of_gradients_of_a_map(pair: bool, monkeypatch) -> None:
    def losses(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        h = net.layers[0](x) * 1.0
        y = net.inner(h)
        seeds = torch.stack([torch.ones_like(y), torch.full_like(y, 2.0)])
        (rows,) = torch.autograd.grad(y, h, seeds, is_grads_batched=True, retain_graph=True)
        return net.layers[1](y).square().flatten(1).sum(1) + (rows.sum(0).detach() * h).flatten(1).sum(1)

    monkeypatch.setattr(matmul, "ENABLED", matmul.AVAILABLE)
    monkeypatch.setattr(matmul, "WORTHWHILE", 1)
    Scene(Net(adapter() if pair else nn.Linear(WIDTH, 9), 9), monkeypatch, losses=losses).agrees(1)


def test_a_call_within_a_hook_of_another_one_is_no_node(monkeypatch) -> None:
    net, within = Net(nn.Linear(WIDTH, WIDTH)), [False]

    def again(module: nn.Module, args: tuple, out: torch.Tensor) -> torch.Tensor | None:
        if within[0]:
            return None
        within[0] = True
        try:
            return out + module(args[0] * 0.5).sin()
        finally:
            within[0] = False

    net.inner.register_forward_hook(again)  # before those of the router
    Scene(net, monkeypatch).agrees(0)


def test_a_leaf_of_others_that_goes_into_a_map_is_seen(monkeypatch) -> None:
    """Also where no loss reaches it, and the loop asks for its gradient by itself."""
    leaf, asking = torch.randn(ROWS, WIDTH, requires_grad=True), [False]

    def losses(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if asking[0]:
            (net.inner(leaf) * x.mean(1)).sum().backward()
        return squares(net, x)

    scene = Scene(Net(nn.Linear(WIDTH, WIDTH)), monkeypatch, losses=losses)
    asking[0] = True
    scene._pass(scene.inputs())  # it may be an activation of the model's own
    with pytest.raises(NotPrivateUse) as refused:
        scene._pass(scene.inputs())
    assert refused.value.code == "FOREIGN_LEAF" and leaf.grad is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_rows_are_refused_by_name(monkeypatch) -> None:
    def nested(self: Stretch, x: torch.Tensor) -> torch.Tensor:
        if len(x) < ROWS:
            return self.maps[0](x)
        out = self.maps[0](torch.nested.as_nested_tensor([one[: 2 + row % 2] for row, one in enumerate(x)]))
        return torch.nested.to_padded_tensor(out, 0.0, x.shape)

    scene = Scene(Net(Stretch(nested, nn.Linear(WIDTH, WIDTH))), monkeypatch)
    with pytest.raises(UnsupportedModule) as refused:
        scene._pass(scene.inputs())
    assert refused.value.code == "NESTED_TENSOR"


class Doubled(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out * 2.0 if func in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default) else out


def test_a_mode_of_others_meets_what_a_map_computes(monkeypatch) -> None:
    def within(self: Stretch, x: torch.Tensor) -> torch.Tensor:
        with Doubled():
            return self.maps[0](x)

    scene = Scene(Net(Stretch(within, nn.Linear(WIDTH, WIDTH))), monkeypatch)
    seen: list[torch.Tensor] = []
    for one in (scene.net, scene.naive):
        one.inner.register_forward_hook(lambda module, args, out: seen.append(out.detach()))
    scene.agrees(0)
    torch.testing.assert_close(seen[0][:1], seen[1])


# ------------------------------------------------------------------------------------------------------------------- LoRA

def adapter(**options: Any) -> Any:
    layer = lora_layer(**options)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_("lora_" in name)
    return layer


def test_a_pair_is_one_node(monkeypatch) -> None:
    scene = Scene(Net(adapter(), 9), monkeypatch)
    scene.agrees(1)
    assert scene.nodes == ["adapted"]
    scene.agrees(1, examples=2, seed=1)


def test_a_pair_on_a_layer_of_gpt2_is_one_node(monkeypatch) -> None:
    from peft import LoraConfig
    from peft.tuners.lora.layer import Linear

    torch.manual_seed(0)
    options: dict[str, Any] = {"r": 2, "fan_in_fan_out": True}
    layer = Linear(Conv1D(9, WIDTH), "default", config=LoraConfig(**options), lora_alpha=6, **options)
    nn.init.normal_(layer.lora_B["default"].weight)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_("lora_" in name)
    scene = Scene(Net(layer, 9), monkeypatch)
    scene.agrees(1)
    assert scene.nodes == ["adapted"]


@pytest.mark.parametrize("inplace", [False, True])
def test_a_pair_with_dropout_drops_what_its_modules_drop(inplace: bool, monkeypatch) -> None:
    """By the same numbers, which belong to contributions: of a node, and of modules that are called. In place it is called
    after the layer, which would get what is dropped."""
    layer, seen = adapter(lora_dropout=0.5), []
    layer.lora_dropout["default"].inplace = inplace
    scene = Scene(Net(layer, 9).train(), monkeypatch)
    scene.net.layers[1].register_forward_pre_hook(lambda module, args: seen.append(args[0].detach().clone()))
    x = scene.inputs()
    found = scene._pass(x)
    assert ("adapted" in scene.nodes) != inplace
    nodes = list(scene.nodes)
    with monkeypatch.context() as patch:
        scene.router.fused.passing = lambda modules, x, others: None
        patch.setattr(scene.sandbox, "multiplied", None)
        true = scene._pass(x)
    assert scene.nodes == nodes and found.keys() == true.keys()
    torch.testing.assert_close(*seen, rtol=2e-4, atol=2e-4)
    for index, gradient in true.items():
        torch.testing.assert_close(found[index], gradient, rtol=2e-4, atol=2e-4)


def with_hook(layer: Any) -> None:
    layer.lora_A["default"].register_forward_hook(lambda module, args, out: None)


def with_forward(layer: Any) -> None:
    own = layer.base_layer.forward
    layer.base_layer.forward = lambda x: own(x)


def of_another_class(layer: Any) -> None:
    class Mine(nn.Linear):
        pass

    layer.base_layer.__class__ = Mine


@pytest.mark.parametrize("change", [with_hook, with_forward, of_another_class])
def test_a_pair_of_which_a_part_is_more_than_a_map_is_called(change: Callable[[Any], None], monkeypatch) -> None:
    layer = adapter()
    change(layer)
    scene = Scene(Net(layer, 9), monkeypatch)
    scene.agrees(1 if change is with_hook else 2)
    assert "adapted" not in scene.nodes


@pytest.mark.parametrize("tensor", ["weight", "bias"])
def test_a_pair_on_a_layer_that_trains_itself_is_called(tensor: str, monkeypatch) -> None:
    layer = adapter()
    layer.base_layer.get_parameter(tensor).requires_grad_(True)
    scene = Scene(Net(layer, 9), monkeypatch)
    scene.agrees(3)
    assert "adapted" not in scene.nodes
    assert any(one.name == f"inner.base_layer.{tensor}" for _, one in scene.router.tensors)


class Branches(nn.Module):
    """Two pairs that take the same input, which is of a map below."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.a, self.b = nn.Linear(WIDTH, WIDTH), adapter(), adapter()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.low(x).tanh()
        return self.a(x) * self.b(x)


class InPieces(nn.Module):
    """A wide map of rows that do not lie in one piece."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.a = nn.Linear(WIDTH, 768), nn.Linear(768, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.pad(self.a(self.low(x).tanh()[:, 1:]), (0, 0, 1, 0))


class OfPlaces(nn.Module):
    """Maps of places, which come once for all rows: few rows have another kernel than many."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Sequential(nn.Linear(96, 600), nn.Tanh(), nn.Linear(600, WIDTH))
        self.a = nn.Linear(WIDTH, 9)
        self.register_buffer("places", torch.randn(1, LENGTH, 96))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x * self.map(self.places))


class Biased(nn.Module):
    """Attention whose mask is a table that trains."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.a, self.out = nn.Embedding(LENGTH**2, 1), nn.Linear(WIDTH, 48), nn.Linear(16, 9)
        self.register_buffer("places", torch.arange(LENGTH**2).view(1, LENGTH, LENGTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.a(x)[:, None].split(16, -1)
        mask = self.table(self.places.expand(len(x), -1, -1)).permute(0, 3, 1, 2)
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v, mask)[:, 0])


LOWER = {
    "low": ("inner.low", "layers.0"),
    "shift": ("inner.low.bias", "inner.a.bias", "layers.0.bias", "layers.1.bias"),
    "all but a table": ("inner.a", "inner.out", "layers"),
}
CASES = ((Branches, "low"), (InPieces, "low"), (InPieces, "shift"), (OfPlaces, "low"), (Biased, "all but a table"))


@pytest.mark.parametrize("inner, lower", CASES)
@pytest.mark.parametrize("exact", [True, False])
def test_certified_gradients_do_not_go_by_what_others_may_touch(exact: bool, inner: Any, lower: str, monkeypatch) -> None:
    """A pair adds up what flows back in another order than its modules do, and torch a bias, and sums of a shift alone; few
    rows have another kernel than many, and so has attention that no gradient of its mask is asked of; and in a microbatch
    whose contributions may touch only what lies below, modules are called."""
    torch.manual_seed(0)
    net = Net(inner(), 9)
    whole = whole_schedule(net, "layers")
    (block,) = whole.blocks
    low = tuple(one for one in block.tensors if one.name.startswith(LOWER[lower]))
    rest = tuple(one for one in block.tensors if one not in low)
    blocks = (Block("low", (), low, ("a", "b"), 1.0), Block("rest", (), rest, ("b",), 1.0))
    schedule = Schedule(whole.stack, blocks, {"a": (0,), "b": (0, 1)}, ())
    scene = Scene(net, monkeypatch, schedule=schedule, exactness="certified" if exact else "fast")
    like = torch.tensor([[True, False]]).repeat(ROWS, 1)
    others = like.clone()
    others[1:] = True
    for seed in range(4):
        alone, beside = (scene._pass(scene.inputs(seed), permitted=permitted) for permitted in (like, others))
        assert alone and all(torch.equal(gradient[0], beside[index][0]) or not exact for index, gradient in alone.items())
    assert scene.nodes
