"""Known modules compute in fewer passes inside a microbatch: the same function, for nobody but those that are known."""

from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")
from torch import nn  # noqa: E402
from transformers.activations import FastGELUActivation, NewGELUActivation  # noqa: E402

from dptrain.gradients import fused  # noqa: E402
from dptrain.gradients.fused import KNOWN, Fused, Known  # noqa: E402
from tests.guarantees.peers import by_autograd, per_contribution  # noqa: E402
from tests.reference.families import FAMILIES  # noqa: E402
from tests.worlds.trainer import Trainer  # noqa: E402
from tests.worlds.training import make_world  # noqa: E402

LORA = "peft.tuners.lora.layer.Linear"


def lora_layer(**options: Any) -> Any:
    from peft import LoraConfig
    from peft.tuners.lora.layer import Linear

    torch.manual_seed(0)
    layer = Linear(nn.Linear(6, 9), "default", config=LoraConfig(r=2, **options), r=2, lora_alpha=6, **options)
    nn.init.normal_(layer.lora_B["default"].weight)
    return layer.train()


def computes_fused(module: nn.Module, products: str = "fastest") -> bool:
    with Fused(nn.Sequential(module)).inside(products):
        return "forward" in vars(module)


@pytest.mark.parametrize("family", ["gpt2_untied", "gpt2_lora", "bert_lora"])
def test_gradients_of_contributions_are_those_of_the_modules_own_forwards(family: str, monkeypatch) -> None:
    torch.manual_seed(1)
    made = FAMILIES[family]()
    batch = made.batch(4, 1)
    own = by_autograd(made.model, lambda i: made.losses(made.model, {key: part[i : i + 1] for key, part in batch.items()}), 4)
    model = made.model.float()
    seen: list[str] = []
    for name in ("_gelu", "_lora"):
        known = {key: one for key, one in KNOWN.items() if one.forward.__name__ == name}
        for key, one in known.items():
            def counted(module: nn.Module, *args: Any, forward: Any = one.forward, **kwargs: Any) -> torch.Tensor:
                seen.append(forward.__name__)
                return forward(module, *args, **kwargs)

            monkeypatch.setitem(KNOWN, key, Known(counted, one.sample))
    faster = Fused(model)
    seen.clear()
    with faster.inside("fastest"):
        norms, sums = per_contribution(model, lambda: made.losses(model, batch))
    assert set(seen) == ({"_gelu"} if "gpt2" in family else set()) | ({"_lora"} if "lora" in family else set())
    assert norms == pytest.approx(own[0], rel=1e-4)
    for name, total in own[1].items():
        assert float((sums[name] - total).norm()) <= 1e-4 * float(total.norm()) + 1e-6, name


@pytest.mark.parametrize("family", ["gpt2_tied", "gpt2_lora"])
def test_a_run_trains_to_the_weights_of_one_that_leaves_all_to_torch(family: str, tmp_path) -> None:
    found = []
    for products in ("torch", "fastest"):
        trainer = Trainer(make_world(tmp_path / products, steps=2), family, products=products, insecure_test_key=bytes(32))
        trainer.run()
        found.append(torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()]))
        assert not any("forward" in vars(module) for module in trainer.model.modules()), "a trace is left on the model"
        trainer.close()
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)


def test_what_it_stands_for_is_computed_alike(monkeypatch) -> None:
    x = torch.randn(3, 5, 6, requires_grad=True)
    layer = lora_layer()
    for module in (NewGELUActivation(), FastGELUActivation(), layer):
        own = module(x)
        grads = torch.autograd.grad(own.square().sum(), [x, *module.parameters()])
        with Fused(nn.Sequential(module)).inside("fastest"):
            assert "forward" in vars(module)
            out = module(x)
            again = torch.autograd.grad(out.square().sum(), [x, *module.parameters()])
        torch.testing.assert_close(own, out)
        for one, other in zip(grads, again, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_dropout_of_an_adapter_draws_as_ever() -> None:
    layer, x = lora_layer(lora_dropout=0.5), torch.randn(64, 6)
    torch.manual_seed(3)
    own = layer(x)
    with Fused(layer).inside("fastest"):
        torch.manual_seed(3)
        torch.testing.assert_close(layer(x), own)


def merged(layer: Any) -> None:
    layer.merge()


def disabled(layer: Any) -> None:
    layer.enable_adapters(False)


def with_shift(layer: Any) -> None:
    layer.lora_B["default"].bias = nn.Parameter(torch.ones(9))


def in_double(layer: Any) -> None:
    layer.double()


def another_map(layer: Any) -> None:
    class Bent(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input).tanh()

    layer.lora_B["default"] = Bent(2, 9, bias=False)


@pytest.mark.parametrize("change", [merged, disabled, with_shift, in_double, another_map])
def test_an_adapter_of_another_kind_computes_by_itself(change: Callable[[Any], None]) -> None:
    layer = lora_layer()
    faster = Fused(layer)
    change(layer)
    x = torch.randn(4, 6, dtype=layer.base_layer.weight.dtype)
    own = layer(x)
    with faster.inside("fastest"):
        assert torch.equal(layer(x), own)


def test_under_a_transform_of_functions_it_computes_by_itself() -> None:
    """Sums in place have no meaning there for everything, and rules of other modules run inner ones so."""
    layer, x = lora_layer(), torch.randn(3, 4, 6)
    own = torch.func.vmap(layer)(x)
    with Fused(layer).inside("fastest"):
        assert torch.equal(torch.func.vmap(layer)(x), own)


def test_a_module_that_overrides_its_class_computes_by_itself() -> None:
    class Mine(NewGELUActivation):
        pass

    module = NewGELUActivation()
    module.forward = MethodType(lambda self, input: input * 2.0, module)
    with Fused(nn.Sequential(module)).inside("fastest"):
        assert torch.equal(module(torch.ones(2)), torch.full((2,), 2.0))
    assert "forward" in vars(module), "what the user had put there is gone"
    assert not computes_fused(Mine())
    assert not computes_fused(NewGELUActivation(), "torch")
    assert computes_fused(NewGELUActivation())


@pytest.mark.parametrize("part", ["", "lora_A.default", "lora_B.default", "base_layer"])
@pytest.mark.parametrize("before", [True, False], ids=["before", "later"])
def test_a_module_that_somebody_watches_computes_by_itself(part: str, before: bool) -> None:
    layer, x = lora_layer(), torch.randn(2, 6)
    with torch.no_grad():
        own = layer(x)
    seen: list[torch.Tensor] = []
    watch = lambda module, args, out: seen.append(out)  # noqa: E731
    if before:
        layer.get_submodule(part).register_forward_hook(watch)
    faster = Fused(layer)
    with faster.inside("fastest"):
        layer(x)
    if not before:
        layer.get_submodule(part).register_forward_hook(watch)
    with torch.no_grad():
        seen.clear()
        layer(x)
        alone = seen[0].clone()
        with faster.inside("fastest"):
            assert torch.equal(layer(x), own)
    assert torch.equal(seen[1], alone), "who watches sees something else"


def test_a_class_whose_forward_was_replaced_later_computes_by_it(monkeypatch) -> None:
    module = NewGELUActivation()
    faster = Fused(nn.Sequential(module))
    monkeypatch.setattr(NewGELUActivation, "forward", lambda self, input: input * 3.0)
    with faster.inside("fastest"):
        assert torch.equal(module(torch.ones(2)), torch.full((2,), 3.0))
    assert not computes_fused(module), "a replaced forward is taken for the one that is known"


@pytest.mark.parametrize("kind", [NewGELUActivation, FastGELUActivation])
def test_a_library_that_computes_something_else_is_noticed(kind: type, monkeypatch) -> None:
    """Off at one in a thousand inputs, or in the gradient alone."""
    own = kind.forward
    seldom = lambda self, input: own(self, input) + (input.abs() < 0.01) * 1e-3  # noqa: E731
    sideways = lambda self, input: own(self, input) + 0.01 * (input - input.detach())  # noqa: E731
    for other in (seldom, sideways):
        monkeypatch.setattr(kind, "forward", other)
        assert not computes_fused(kind())
    monkeypatch.setattr(kind, "forward", own)
    assert computes_fused(kind())


def test_an_adapter_of_another_library_is_noticed(monkeypatch) -> None:
    from peft.tuners.lora.layer import Linear

    monkeypatch.setattr(fused, "_adapted", lambda kind: (_ for _ in ()).throw(TypeError("another signature")))
    monkeypatch.setitem(KNOWN, LORA, Known(fused._lora, lambda kind: fused._adapted(kind)))
    assert not computes_fused(lora_layer())
    monkeypatch.undo()
    own = Linear.forward
    monkeypatch.setattr(Linear, "forward", lambda self, x, *args, **kwargs: own(self, x, *args, **kwargs) * 1.001)
    assert not computes_fused(lora_layer())


def test_what_is_shown_once_draws_from_no_generator_of_the_users() -> None:
    fused._holds.cache_clear()
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    Fused(nn.Sequential(NewGELUActivation(), lora_layer()))
    torch.manual_seed(5)
    assert torch.equal(torch.random.get_rng_state(), state)
    layer = lora_layer()
    fused._holds.cache_clear()
    state = torch.random.get_rng_state()
    Fused(layer)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_gradients_that_a_layer_sends_back_are_added_where_the_first_lies() -> None:
    """In a tensor that nobody else holds: neither what came in from above, nor the input."""
    layer, x = lora_layer(), torch.randn(4, 6, requires_grad=True)
    held = x.detach().clone()
    above = torch.randn(4, 9)
    kept = above.clone()
    with Fused(layer).inside("fastest"):
        assert "forward" in vars(layer), "the small layer that stands for its class does not compute alike"
        out = layer(x)
    (found,) = torch.autograd.grad(out, x, above)
    whole = layer.base_layer.weight + 3.0 * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    torch.testing.assert_close(found, above @ whole, rtol=1e-4, atol=1e-5)
    assert torch.equal(above, kept) and torch.equal(x, held)
