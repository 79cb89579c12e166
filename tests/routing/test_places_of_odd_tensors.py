"""Tensors that lie between, around and across what a policy names: nothing may land where fewer classes are asked for."""

import pytest

torch = pytest.importorskip("torch")

from fractions import Fraction  # noqa: E402

from torch import nn  # noqa: E402

from attest.policy import ClassRule, DepthRule  # noqa: E402
from attest.schedule.blocks import pieces  # noqa: E402
from attest.schedule.stack import Division, StackTensor  # noqa: E402
from dptrain.blocks import stack as depth  # noqa: E402
from dptrain.blocks.adapters import Adapter  # noqa: E402
from dptrain.blocks.stack import EMBEDDINGS, HEAD, LayerStack, layer_stack  # noqa: E402
from dptrain.clipping.resolver import require_masks  # noqa: E402
from dptrain.errors import UnsupportedPolicy  # noqa: E402


def positions(stack: LayerStack) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tensor.positions for tensor in stack.tensors}


def test_a_module_between_the_layers_is_not_below_them() -> None:
    """Layers by name, with a norm registered between them: only what comes before all of them counts as embeddings."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 2), nn.Linear(2, 2))
    found = positions(layer_stack(model, ["1", "3"]))
    assert {name: at for name, at in found.items() if name.endswith("weight")} == {
        "0.weight": (EMBEDDINGS,), "1.weight": (0,), "2.weight": (HEAD,), "3.weight": (1,), "4.weight": (HEAD,),
    }  # fmt: skip


class Towers(nn.Module):
    """Two stacks, with a projection registered between them, one before both and one after."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.vision = nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])})
        self.projection = nn.Linear(2, 2)
        self.text = nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])})
        self.last = nn.Linear(2, 2)


def test_a_module_between_two_towers_needs_both_ends() -> None:
    """It may act above one and below the other, so a class must have embeddings and head to touch it."""
    found = positions(layer_stack(Towers(), ["vision.blocks", "text.blocks"]))
    assert found["projection.weight"] == (EMBEDDINGS, HEAD)
    assert found["first.weight"] == (EMBEDDINGS,) and found["last.weight"] == (HEAD,)


def test_a_tensor_that_an_adapter_shares_with_the_model_is_not_the_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that is bound to an adapter would else move the model itself."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[2].weight = model[1].weight
    adapters = {"tied": Adapter("tied", frozenset({"2.weight"})), "own": Adapter("own", frozenset({"0.weight", "x"}))}
    monkeypatch.setattr(depth, "find_adapters", lambda of: adapters)
    stack = layer_stack(model, ["0", "1", "2"])
    assert {tensor.aliases: tensor.adapter for tensor in stack.tensors} == {
        ("0.weight",): "own", ("1.weight", "2.weight"): None,
    }  # fmt: skip


def masked(*heads: int) -> ClassRule:
    depth_rule = DepthRule(band=(Fraction(0), Fraction(1)), heads=heads or None)
    name = "heads" + "".join(f"-{head}" for head in heads)
    bounds = {"clip_norm_micro": 10**6, "noise_multiplier_micro": 10**6}
    return ClassRule(name=name, sampling_rate=Fraction(1, 2), depth=depth_rule, **bounds)


def test_a_tensor_that_two_attentions_share_is_open_to_who_has_all_heads_of_both() -> None:
    def whole(count: int) -> Division:
        return Division("heads", count, ((0, count, 1),))

    few, all_of_one, all_of_both, unmasked = masked(0), masked(0, 1), masked(0, 1, 2, 3), masked()
    for order in ((whole(2), whole(4)), (whole(4), whole(2))):
        tensor = StackTensor(("tied", "other"), 4, (("", 0), ("", 1)), divisions=order)
        (piece,) = pieces(0, tensor, [few, all_of_one, all_of_both, unmasked])
        assert piece.classes == (all_of_both.name, unmasked.name)


def test_a_mask_of_heads_needs_known_heads_in_every_layer_that_its_class_may_touch() -> None:
    """One layer without them, and the class would touch all of that layer."""
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))
    placed = layer_stack(model, ["0", "1", "2"])
    rule = masked(0)

    def stack(*known: str) -> LayerStack:
        return LayerStack(placed.layers, placed.tensors, owners={"heads": dict.fromkeys(known, 4), "experts": {}})

    require_masks(rule, stack("0", "1", "2"), lambda *_: True)
    require_masks(rule, stack("0"), lambda tensor: tensor.name.startswith("0."))
    with pytest.raises(UnsupportedPolicy, match=r"HEADS_UNKNOWN.*no heads are known in '1'"):
        require_masks(rule, stack("0", "2"), lambda *_: True)
