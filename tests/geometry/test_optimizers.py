"""Optimizers that move pairs go on from a saved state bit for bit, drive the other one, and refuse what cannot be moved."""

import copy
import io

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain.errors import ConfigError, UnsupportedModule  # noqa: E402
from dptrain.geometry import LoraTangent, TangentAdam, TangentSGD  # noqa: E402
from tests.geometry.points import Adapted, draw, of_dense, point  # noqa: E402
from tests.reference.tangent import Adaptive, truncated  # noqa: E402


class Model(nn.Module):
    """Two pairs of one shape, one of another, and a head."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        shapes = ((8, 8, 2), (8, 8, 2), (6, 8, 3))
        self.layers = nn.ModuleList([Adapted(*point(s, seed=place, dtype=dtype)) for place, s in enumerate(shapes)])
        self.head = nn.Linear(6, 2, dtype=dtype)
        for layer in self.layers:
            layer.base_layer.requires_grad_(False)


MAKERS = {
    "adam": lambda model: TangentAdam(model, lr=0.05),
    "adam over adam": lambda model: TangentAdam(model, others=torch.optim.Adam, lr=0.05, exact=False, debias=True),
    "momentum": lambda model: TangentSGD(model, others=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), momentum=0.9),
    "plain": lambda model: TangentSGD(model, others=lambda p: torch.optim.SGD(p, lr=0.1)),
}


def advance(model: Model, optimizer, steps: range, *, plain: int = -1) -> None:
    """Makes steps with directions of all pairs but one, which takes plain ones, and gradients of the head."""
    for step in steps:
        for place, layer in enumerate(model.layers):
            m, n = layer.Z.shape
            if place == plain:
                for factor in (layer.lora_A, layer.lora_B):
                    weight = factor["default"].weight
                    weight.grad = draw(*weight.shape, seed=step).to(weight)
                continue
            at = LoraTangent(*layer.factors)
            optimizer.take(place, of_dense(at, draw(m, n, seed=100 * step + place).to(at.A)), 0.1)
        model.head.weight.grad = draw(2, 6, seed=step).to(model.head.weight)
        optimizer.step()
        optimizer.zero_grad()


def bits(model: Model) -> list[torch.Tensor]:
    return [value.clone() for value in model.state_dict().values()]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_run_goes_on_from_its_saved_state_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    model = Model(dtype)
    optimizer = MAKERS[name](model)
    advance(model, optimizer, range(2))
    kept = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, kept)
    kept.seek(0)
    saved = torch.load(kept, weights_only=True)
    advance(model, optimizer, range(2, 5))

    again = Model(dtype)
    again.load_state_dict(saved["model"])
    other = MAKERS[name](again)
    other.load_state_dict(saved["optimizer"])
    advance(again, other, range(2, 5))
    assert all(torch.equal(one, two) for one, two in zip(bits(model), bits(again), strict=True))


@pytest.mark.parametrize(
    "options",
    [{}, {"floor": 0.0, "betas": (0.5, 0.6)}, {"floor": 4.0}, {"debias": True, "floor": 0.1}],
    ids=["as it comes", "no floor", "high floor", "debiased"],
)
def test_adaptive_steps_are_those_of_dense_matrices(options: dict) -> None:
    """Three steps against a transcription that has no frames and no factors: projectors and matrices of Z alone."""
    model = Adapted(*point((9, 8, 3)))
    optimizer = TangentAdam(model, lr=0.05, **options)
    dense, Z, tau = Adaptive(rank=3, **options), model.Z.clone(), 0.5
    for step in range(3):
        G = draw(9, 8, seed=step)
        optimizer.take(0, of_dense(LoraTangent(*model.factors), G), tau)
        optimizer.step()
        optimizer.zero_grad()
        Z = truncated(Z - 0.05 * dense.direction(Z, G, tau), 3)
        torch.testing.assert_close(model.Z, Z, rtol=1e-8, atol=1e-9)


def test_momentum_is_that_of_dense_matrices() -> None:
    model = Adapted(*point((9, 8, 3)))
    optimizer = TangentSGD(model, lr=0.2, momentum=0.9)
    dense, Z, mean = Adaptive(rank=3), model.Z.clone(), torch.zeros(9, 8, dtype=torch.float64)
    for step in range(3):
        G = draw(9, 8, seed=step)
        optimizer.take(0, of_dense(LoraTangent(*model.factors), G), 0.0)
        optimizer.step()
        onto = dense.tangent(Z)
        mean = 0.9 * onto(mean) + onto(G)
        Z = truncated(Z - 0.2 * mean, 3)
        torch.testing.assert_close(model.Z, Z, rtol=1e-8, atol=1e-9)


def test_a_state_that_was_left_out_is_seen() -> None:
    """The control of the test above: without its state the run goes another way."""
    model = Model()
    optimizer = MAKERS["adam"](model)
    advance(model, optimizer, range(2))
    again = copy.deepcopy(model)
    advance(model, optimizer, range(2, 3))
    advance(again, MAKERS["adam"](again), range(2, 3))
    assert any(not torch.equal(one, two) for one, two in zip(bits(model), bits(again), strict=True))


@pytest.mark.parametrize("name", ["adam", "momentum"])
def test_pairs_of_one_shape_move_as_each_would_alone(name: str) -> None:
    together, model = Model(torch.float64), Model(torch.float64)
    advance(together, MAKERS[name](together), range(3))
    optimizers = [MAKERS[name](layer) for layer in model.layers]
    for step in range(3):
        for place, (layer, own) in enumerate(zip(model.layers, optimizers, strict=True)):
            at = LoraTangent(*layer.factors)
            own.take(0, of_dense(at, draw(*layer.Z.shape, seed=100 * step + place)), 0.1)
            own.step()
            own.zero_grad()
    for one, two in zip(together.layers, model.layers, strict=True):
        torch.testing.assert_close(one.Z, two.Z, rtol=1e-10, atol=1e-10)


def test_a_pair_without_a_direction_is_moved_by_the_other_optimizer() -> None:
    model = Model()
    optimizer = MAKERS["plain"](model)
    before = [layer.Z.clone() for layer in model.layers]
    weight = model.layers[1].lora_A["default"].weight.detach().clone()
    advance(model, optimizer, range(1), plain=1)
    expected = weight - 0.1 * draw(2, 8, seed=0).float()
    torch.testing.assert_close(model.layers[1].lora_A["default"].weight.detach(), expected)
    assert all(not torch.equal(old, layer.Z) for old, layer in zip(before, model.layers, strict=True))


def test_a_pair_moves_in_batches_of_its_age() -> None:
    """A pair that took a plain step first has no moments, and does not get those of another."""
    model, alone = Model(torch.float64), Model(torch.float64)
    optimizer = MAKERS["adam"](model)
    advance(model, optimizer, range(1), plain=1)
    advance(model, optimizer, range(1, 3))
    assert int(optimizer.state[optimizer.pairs[0].A]["step"]) == 3 and int(optimizer.state[optimizer.pairs[1].A]["step"]) == 2
    assert all(layer.Z.isfinite().all() for layer in [*model.layers, *alone.layers])


def test_a_scheduler_drives_pairs_and_the_rest() -> None:
    model = Model()
    optimizer = TangentAdam(model, others=lambda parameters: torch.optim.SGD(parameters, lr=0.4), lr=0.2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    optimizer.step()
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]
    assert optimizer.others.param_groups[0]["lr"] == 0.2
    again = TangentAdam(model, others=lambda parameters: torch.optim.SGD(parameters, lr=0.4), lr=0.2)
    again.load_state_dict(optimizer.state_dict())
    assert [group["lr"] for group in again.param_groups] == [0.1, 0.2]
    again.param_groups[1]["lr"] = 0.05
    assert again.others.param_groups[0]["lr"] == 0.05, "behind a saved state too"


def test_weight_decay_takes_a_part_of_the_product_away() -> None:
    model = Adapted(*point((7, 6, 3)))
    before = model.Z.clone()
    optimizer = TangentSGD(model, lr=0.1, weight_decay=0.5)
    at = LoraTangent(*model.factors)
    optimizer.take(0, of_dense(at, torch.zeros(7, 6, dtype=torch.float64)), 0.0)
    optimizer.step()
    torch.testing.assert_close(model.Z, before * 0.95, rtol=1e-12, atol=1e-12)


def test_where_lora_B_is_zero_the_pair_moves_in_the_space_that_there_is() -> None:
    """The default of peft: A is zero, its frame is empty, and the first step moves A alone in the row space of B."""
    A, B = point((7, 6, 3), "zero A")
    model = Adapted(A, B)
    at = LoraTangent(A, B)
    optimizer = TangentAdam(model, lr=0.1)
    for step in range(3):
        at = LoraTangent(*model.factors)
        optimizer.take(0, of_dense(at, draw(7, 6, seed=step)) + at.noise(0.1, torch.Generator().manual_seed(step)), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        assert bool(model.Z.isfinite().all()) and int(LoraTangent(*model.factors).rank_A) == 3
    assert int(at.rank_B) == 3


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    "options",
    [{"lr": -1.0}, {"lr": float("inf")}, {"weight_decay": -0.1}, {"betas": (1.0, 0.9)}, {"floor": -1.0}, {"eps": 0.0}],
)
def test_options_out_of_range_are_refused(options: dict) -> None:
    with pytest.raises(ConfigError, match="expected") as refused:
        TangentAdam(Model(), **options)
    assert refused.value.code == "GEOMETRY"
    with pytest.raises(ConfigError, match="momentum"):
        TangentSGD(Model(), momentum=1.0)


def test_a_model_without_a_pair_and_factors_in_half_precision_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no LoRA pair.*get_peft_model"):
        TangentAdam(nn.Linear(3, 2))
    frozen = Adapted(*point((7, 6, 3)))
    frozen.lora_A.requires_grad_(False)
    with pytest.raises(ConfigError, match="two trainable factors"):
        TangentAdam(frozen)
    with pytest.raises(UnsupportedModule, match="autocast_adapter_dtype") as refused:
        TangentAdam(Model(torch.bfloat16))
    assert refused.value.code == "GEOMETRY_PAIR"


def test_a_pair_of_peft_is_found_with_its_scaling_and_names() -> None:
    peft = pytest.importorskip("peft")
    base = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    config = peft.LoraConfig(r=2, lora_alpha=8, target_modules=["0"], use_rslora=True)
    model = peft.get_peft_model(base, config)
    (pair,) = TangentAdam(model).pairs
    names = dict(model.named_parameters())
    assert names[pair.a] is pair.A and names[pair.b] is pair.Bt
    assert pair.shape == (5, 6, 2) and pair.scaling == pytest.approx(8 / 2**0.5)
