"""Known modules compute in fewer passes inside a microbatch: the same function, for nobody but those that are known."""

import copy
import io
from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")
from peft.tuners.lora.layer import Linear  # noqa: E402
from torch import nn  # noqa: E402
from transformers.activations import FastGELUActivation, NewGELUActivation  # noqa: E402

from dptrain.gradients import fused  # noqa: E402
from dptrain.gradients.fused import KNOWN, Fused, Known  # noqa: E402
from tests.guarantees.peers import by_autograd, per_contribution  # noqa: E402
from tests.reference.families import FAMILIES  # noqa: E402
from tests.worlds.trainer import Trainer  # noqa: E402
from tests.worlds.training import make_world  # noqa: E402

LORA = "peft.tuners.lora.layer.Linear"
KINDS = (NewGELUActivation, FastGELUActivation, Linear)


def lora_layer(**options: Any) -> Any:
    from peft import LoraConfig

    torch.manual_seed(0)
    layer = Linear(nn.Linear(6, 9), "default", config=LoraConfig(r=2, **options), r=2, lora_alpha=6, **options)
    nn.init.normal_(layer.lora_B["default"].weight)
    return layer.train()


def computes_fused(module: nn.Module, products: str = "fastest") -> bool:
    """Tells whether something stands for its forward; of GELU and LoRA it rounds differently."""
    x = torch.linspace(-3.0, 3.0, 606).view(101, 6)
    own = module(x)
    with Fused(nn.Sequential(module)).inside(products):
        return not torch.equal(module(x), own)


@pytest.mark.one_in(99)
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
            def counted(*args: Any, forward: Any = one.forward, **kwargs: Any) -> torch.Tensor:
                seen.append(forward.__name__)
                return forward(*args, **kwargs)

            monkeypatch.setitem(KNOWN, key, Known(counted, one.sample))
    monkeypatch.setattr(Fused, "unwatched", lambda self, module: True)  # of hooks: the runs below
    faster = Fused(model)
    seen.clear()
    with faster.inside("fastest"):
        norms, sums = per_contribution(model, lambda: made.losses(model, batch))
    assert set(seen) == ({"_gelu"} if "gpt2" in family else set()) | ({"_lora"} if "lora" in family else set())
    assert norms == pytest.approx(own[0], rel=1e-4)
    for name, total in own[1].items():
        assert float((sums[name] - total).norm()) <= 1e-4 * float(total.norm()) + 1e-6, name


@pytest.mark.one_in(99)
@pytest.mark.parametrize("family", ["gpt2_tied", "gpt2_lora"])
def test_a_run_trains_to_the_weights_of_one_that_leaves_all_to_torch(family: str, tmp_path, monkeypatch) -> None:
    found, seen = [], []
    for key, one in KNOWN.items():
        def counted(*args: Any, forward: Any = one.forward, **kwargs: Any) -> torch.Tensor:
            seen.append(forward.__name__)
            return forward(*args, **kwargs)

        monkeypatch.setitem(KNOWN, key, Known(counted, one.sample))
    before = [kind.forward for kind in KINDS]
    for products in ("torch", "fastest"):
        seen.clear()
        trainer = Trainer(make_world(tmp_path / products, steps=2), family, products=products, insecure_test_key=bytes(32))
        trainer.run()
        found.append(torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()]))
        assert [kind.forward for kind in KINDS] == before, "a trace is left on a class"
        assert not any("forward" in vars(module) for module in trainer.model.modules()), "a trace is left on the model"
        trainer.close()
    assert set(seen) == {"_gelu", "_lora"} if family == "gpt2_lora" else {"_gelu"}, "nothing took the shorter way"
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)


def test_what_it_stands_for_is_computed_alike(monkeypatch) -> None:
    x = torch.randn(3, 5, 6, requires_grad=True)
    layer = lora_layer()
    for module in (NewGELUActivation(), FastGELUActivation(), layer):
        own = module(x)
        grads = torch.autograd.grad(own.square().sum(), [x, *module.parameters()])
        with Fused(nn.Sequential(module)).inside("fastest"):
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
    assert torch.equal(module(torch.ones(2)), torch.full((2,), 2.0)), "what the user had put there is gone"
    assert not computes_fused(Mine())
    assert not computes_fused(NewGELUActivation(), "torch")
    assert computes_fused(NewGELUActivation())


def watched_before(layer: Any, part: str, watch: Any) -> None:
    layer.get_submodule(part).register_forward_hook(watch)


def watched_from_below(layer: Any, part: str, watch: Any) -> None:
    layer.get_submodule(part).register_forward_pre_hook(lambda module, args: watch(module, args, args[0]))


def watched_everywhere(layer: Any, part: str, watch: Any) -> None:
    nn.modules.module.register_module_forward_hook(lambda module, args, out: watch(module, args, out))


@pytest.fixture
def no_global_hooks() -> Any:
    yield
    nn.modules.module._global_forward_hooks.clear()


@pytest.mark.parametrize("part", ["", "lora_A.default", "lora_B.default", "base_layer"])
@pytest.mark.parametrize("how", [watched_before, watched_from_below, watched_everywhere])
@pytest.mark.parametrize("moment", ["before", "between", "inside"])
def test_a_module_that_somebody_watches_computes_by_itself(
    part: str, how: Callable[..., None], moment: str, no_global_hooks
) -> None:
    layer, x = lora_layer(), torch.randn(2, 6)
    with torch.no_grad():
        own = layer(x)
        alone: list[torch.Tensor] = []
        handle = layer.get_submodule(part).register_forward_hook(lambda module, args, out: alone.append(out.clone()))
        layer(x)
        handle.remove()
        seen: list[torch.Tensor] = []
        if moment == "before":
            how(layer, part, lambda module, args, out: seen.append(out))
        faster = Fused(layer)
        if moment == "between":
            how(layer, part, lambda module, args, out: seen.append(out))
        with faster.inside("fastest"):
            if moment == "inside":
                layer(x)
                how(layer, part, lambda module, args, out: seen.append(out))
            assert torch.equal(layer(x), own)
    if how is watched_before:
        assert torch.equal(seen[-1], alone[0]), "who watches sees something else"


def test_hooks_of_the_run_are_no_watchers_and_those_that_are_gone_neither() -> None:
    layer, x = lora_layer(), torch.linspace(-3.0, 3.0, 606).view(101, 6)
    own = layer(x)
    faster = Fused(layer)
    handle = layer.lora_B["default"].register_forward_hook(lambda module, args, out: None)
    with faster.inside("fastest"):
        assert torch.equal(layer(x), own)
        faster.expect([handle])
        assert not torch.equal(layer(x), own)
        other = layer.lora_B["default"].register_forward_hook(lambda module, args, out: None)
        assert torch.equal(layer(x), own)
        other.remove()
        assert not torch.equal(layer(x), own)


def test_a_constant_that_an_adapter_answers_stays_what_it_is() -> None:
    """An ablation answers for B; what stands there once more must not be what a microbatch before had."""
    layer, x = lora_layer(), torch.randn(2, 6)
    constant = torch.zeros(2, 9)
    handle = layer.lora_B["default"].register_forward_hook(lambda module, args, out: constant)
    faster = Fused(layer)
    for expected in (False, True):  # also if it were taken for one of the run's
        if expected:
            faster.expect([handle])
        with faster.inside("fastest"):
            layer(x)
        assert torch.equal(constant, torch.zeros(2, 9))


def test_copies_made_inside_and_others_of_a_class_compute_by_themselves() -> None:
    layer, x = lora_layer(), torch.linspace(-3.0, 3.0, 606).view(101, 6)
    own, other = layer(x), lora_layer()
    with Fused(layer).inside("fastest"):
        deep, flat = copy.deepcopy(layer), copy.copy(layer)
        saved = io.BytesIO()
        torch.save(layer, saved)
        fused_now = layer(x)
        assert torch.equal(other(x), own) and torch.equal(deep(x), own) and torch.equal(flat(x), own)
    assert not torch.equal(fused_now, own)
    saved.seek(0)
    for one in (deep, flat, torch.load(saved, weights_only=False)):
        assert torch.equal(one(x), own) and "forward" not in vars(one)
    flat._modules = dict(flat._modules)
    flat.base_layer = nn.Linear(6, 9)
    with Fused(layer).inside("fastest"):
        assert not torch.allclose(flat(x), own), "a copy computes by the weights of the original"


def test_what_is_put_on_a_module_inside_stays() -> None:
    module = NewGELUActivation()
    with Fused(nn.Sequential(module)).inside("fastest"):
        module.forward = MethodType(lambda self, input: input * 2.0, module)
    assert torch.equal(module(torch.ones(2)), torch.full((2,), 2.0))


def test_two_runs_at_once_leave_a_class_as_it_was() -> None:
    first, second, own = lora_layer(), lora_layer(), Linear.forward
    one, two = Fused(first).inside("fastest"), Fused(second).inside("fastest")
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    assert Linear.forward is not own
    two.__exit__(None, None, None)
    assert Linear.forward is own and not fused._UNDER_WAY and not fused._ASKING


def test_a_sandbox_that_was_left_takes_it_along() -> None:
    active, layer, x = [True], lora_layer(), torch.linspace(-3.0, 3.0, 606).view(101, 6)
    own = layer(x)
    with Fused(layer, lambda: active[0]).inside("fastest"):
        assert not torch.equal(layer(x), own)
        active[0] = False
        assert torch.equal(layer(x), own)


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


def test_under_another_default_type_it_is_shown_all_the_same(monkeypatch) -> None:
    fused._holds.cache_clear()
    own = NewGELUActivation.forward
    monkeypatch.setattr(NewGELUActivation, "forward", lambda self, input: own(self, input) * 1.5)
    torch.set_default_dtype(torch.float64)
    try:
        assert not Fused(nn.Sequential(NewGELUActivation()))._found
    finally:
        torch.set_default_dtype(torch.float32)


def test_an_output_that_somebody_holds_is_not_written() -> None:
    wide = torch.ones(2, 2) @ torch.ones(2, 2)
    assert fused._free(fused._held(wide), fused._fresh())
    view = wide[0]
    assert not fused._free(fused._held(wide), fused._fresh())
    assert not fused._free(fused._held(view), fused._fresh())
    del view
    saved = torch.ones(2, 2, requires_grad=True) * wide  # a graph that holds it, which Python does not see
    assert not fused._free(fused._held(wide), fused._fresh())
    del saved
    assert fused._free(fused._held(wide), fused._fresh())
