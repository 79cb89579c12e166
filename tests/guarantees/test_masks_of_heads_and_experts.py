"""Classes held to heads or experts: what they may touch, by hand; norms, coefficients and sums against the naive loop."""

import random
import warnings
from dataclasses import replace
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from torch import nn  # noqa: E402

from attest.policy import DepthRule  # noqa: E402
from attest.schedule import blocks  # noqa: E402
from attest.schedule.blocks import mask  # noqa: E402
from dptrain.blocks import heads as heads_module  # noqa: E402
from dptrain.blocks.slices import Part  # noqa: E402
from dptrain.blocks.stack import layer_stack  # noqa: E402
from dptrain.clipping.resolver import bind  # noqa: E402
from dptrain.errors import UnsupportedModule, UnsupportedPolicy  # noqa: E402
from dptrain.gradients.forms import (  # noqa: E402
    Dense,
    Gather,
    Outer,
    add_weighted,
    merge,
    narrow,
    norm_sq,
)
from dptrain.planning.layout import lay_out  # noqa: E402
from dptrain.routing import Router  # noqa: E402
from tests.reference import families  # noqa: E402
from tests.reference.compare import compare  # noqa: E402
from tests.reference.masked import ALL, biased_llama, by_hand_gpt2, by_hand_llama, covered, random_masks, subset  # noqa: E402
from tests.reference.zoo import ZOO  # noqa: E402
from tests.routing.test_depth_and_resolver import policy_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

HEADED = [
    "bert", "roberta", "distilbert", "electra", "modernbert", "gpt2", "gpt_neox", "bloom", "falcon", "llama", "mistral",
    "qwen2", "qwen3", "gemma2", "phi", "mixtral", "gpt_oss", "t5", "bart", "opt", "vit",
]  # fmt: skip
MIXTURES = ["mixtral", "qwen2_moe", "granite_moe", "olmoe", "gpt_oss"]


@pytest.fixture
def in_double(monkeypatch) -> None:
    """As in the test of families: what computes in float32 whatever its type would round the naive loop's own gradient."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


@pytest.mark.one_in(11)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("kinds", "family"), [(("heads",), f) for f in HEADED] + [(("experts",), f) for f in MIXTURES])
def test_sums_norms_and_coefficients_equal_the_naive_loop(kinds, family: str, seed: int, in_double) -> None:
    """Per contribution: masked to its coordinates, clipped by the norm over them, whitened by the noise of every part."""
    entry = ZOO[family]
    model = entry.build()
    schedule = random_masks(model, random.Random(f"{family} {seed}"), entry.layers, kinds)
    assert any(t.part is not None for block in schedule.blocks for t in block.tensors), "something is split"
    found = compare(
        model, entry.batch(7), entry.losses, seed=f"{family} {seed}", schedule=schedule,
        probe_tolerance=1e-6 if entry.single else 1e-9,
    )  # fmt: skip
    assert found.worst <= 1e-10


BY_HAND = {"llama": (biased_llama, by_hand_llama, 4), "gpt2": (lambda: families.gpt2(tied=False), by_hand_gpt2, 2)}


def agrees_with_the_hand(family: str) -> bool:
    build, by_hand, count = BY_HAND[family]
    model = build().model
    for number in range(1, 2**count):
        allowed = {h for h in range(count) if number >> h & 1}
        rules = {"some": DepthRule(band=ALL, heads=tuple(sorted(allowed))), "all": DepthRule(band=ALL)}
        found = covered(model, bind(policy_of(**rules), layer_stack(model)))
        hand = by_hand(model, allowed)
        if any(not torch.equal(found["some"][name], hand[name]) for name in hand):
            return False
        if any(not bool(found["all"][name].all()) for name in hand):
            return False
    return True


@pytest.mark.parametrize("family", list(BY_HAND))
def test_a_mask_permits_what_is_written_out_by_hand(family: str) -> None:
    assert agrees_with_the_hand(family)


def _one_reader(heads, groups):
    return [frozenset({g}) for g in range(int(groups))]


def _any_reader(rule, kind, owners):
    own = mask(rule.depth, kind)
    return own is None or not own.isdisjoint(range(*owners))


def _no_bias(original):
    def rows(self, kind, count, owners):
        found = original(self, kind, count, owners)
        return {name: division for name, division in found.items() if not name.endswith("bias")}

    return rows


@pytest.mark.parametrize(
    "fault", ["kv head by its number", "kv head of any reader", "bias unmasked", "columns unmasked", "columns for rows"]
)
def test_the_hand_sees_every_fault(monkeypatch, fault: str) -> None:
    """Each of these would let a class write what other classes' heads read, or keep it from its own."""
    projection = heads_module._Projection
    if fault == "kv head by its number":
        monkeypatch.setattr(heads_module, "_readers", _one_reader)
    elif fault == "kv head of any reader":
        monkeypatch.setattr(blocks, "_permits", _any_reader)
    elif fault == "bias unmasked":
        monkeypatch.setattr(projection, "rows", _no_bias(projection.rows))
    elif fault == "columns unmasked":
        monkeypatch.setattr(projection, "columns", lambda self, *args: {})
    else:
        monkeypatch.setattr(projection, "columns", projection.rows)
    assert not agrees_with_the_hand("llama")


class Torchs(nn.Module):
    """Torch's own encoder, whose attention has one packed projection."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        layer = nn.TransformerEncoderLayer(8, 4, 12, dropout=0.0, batch_first=True)
        self.embed = nn.Embedding(families.VOCABULARY, 8)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.classifier = nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.encoder(self.embed(ids)).mean(1))


def torchs_losses(model: nn.Module, batch: dict) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["input_ids"]), batch["labels"], reduction="none")


@pytest.mark.one_in(9)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_torchs_own_attention_equals_the_naive_loop(seed: int) -> None:
    model = Torchs().double()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, std=0.2)
    schedule = random_masks(model, random.Random(seed), None, ("heads",))
    compare(model, families.tokens(7, seed), torchs_losses, seed=seed, schedule=schedule)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("family", "targets"), [("gpt2_untied", ["c_attn", "c_proj", "c_fc"]), ("llama", ["q_proj", "k_proj", "o_proj"])]
)
def test_lora_around_masked_heads_equals_the_naive_loop(family: str, targets: list[str], seed: int, in_double) -> None:
    pytest.importorskip("peft")
    adapted = families._with_lora(families.FAMILIES[family](), targets)
    schedule = random_masks(adapted.model, random.Random(seed), None, ("heads",))
    assert any(t.part is not None for block in schedule.blocks for t in block.tensors)
    compare(adapted.model, adapted.batch(7, seed), adapted.losses, seed=seed, schedule=schedule, probe_tolerance=1e-6)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("family", ["llama", "gpt2_untied", "gpt2_tied", "bert"])
def test_factored_gradients_are_narrowed_as_instantiated_ones(family: str, seed: int, monkeypatch, in_double) -> None:
    """No gradient is instantiated where a tensor is small, as none is where it is large."""
    monkeypatch.setattr(Outer, "settled", lambda self, shape, *, alone: self)
    own = families.FAMILIES[family]()
    schedule = random_masks(own.model, random.Random(f"{family} {seed}"), None, ("heads",))
    compare(own.model, own.batch(7, seed), own.losses, seed=seed, schedule=schedule, probe_tolerance=1e-6)


@pytest.mark.parametrize("part", [Part(0, ((1, 3),)), Part(0, ((0, 1), (3, 5))), Part(1, ((2, 4),)), Part(1, ((0, 1), (3, 4)))])
def test_a_narrowed_piece_is_the_slice_of_the_whole_gradient(part: Part) -> None:
    a, b = torch.randn(3, 6, 4).double(), torch.randn(3, 6, 5).double()
    ids = torch.tensor([[0, 2, 4], [1, 1, 3], [4, 0, 2]])
    table = torch.randn(3, 3, 4).double()
    table[1, 1] = 0.0
    shape = torch.Size((5, 4))
    pieces = [Outer(a, b), Outer(b, a, transposed=True), Dense(torch.randn(3, 5, 4).double())]
    for piece in pieces + ([Gather(ids, table)] if part.dim == 1 else []):
        whole, sliced = torch.zeros(shape).double(), torch.zeros(part.shape(shape)).double()
        weight = torch.tensor([0.5, -2.0, 1.0]).double()
        add_weighted([piece], weight, whole)
        add_weighted([narrow(piece, part, shape)], weight, sliced)
        assert torch.allclose(sliced, part.select(whole), rtol=1e-12, atol=1e-14)
        target = torch.full(shape, 7.0).double()
        part.write(target, sliced)
        assert torch.equal(part.select(target), sliced) and int((target == 7.0).sum()) == 20 - sliced.numel()
    if part.dim == 0:
        with pytest.raises(UnsupportedModule, match="PART_OF_PIECE"):
            narrow(Gather(ids, table), part, shape)


def test_a_slice_that_nobody_may_touch_is_not_captured() -> None:
    own = families.FAMILIES["llama"]()
    schedule = random_masks(own.model, random.Random(0), None, ("heads",))
    router = Router(own.model, schedule)
    split = [g for g, block in enumerate(schedule.blocks) if any(tensor.part is not None for tensor in block.tensors)]
    assert len(split) > 1
    router.attach()
    for permitted in split:
        mask = torch.zeros(2, len(schedule.blocks), dtype=torch.bool)
        mask[:, permitted] = True
        router.arm(2, 1, mask)
        router.backward(own.losses(own.model, own.batch(2, 0)), torch.ones(2))
        assert router.pieces and {router.tensors[index][0] for index in router.pieces} == {permitted}
        router.disarm()
    router.detach()


def test_a_gradient_that_is_not_finite_in_foreign_heads_costs_its_own_heads_nothing() -> None:
    """Mask by leaving out, not by multiplication with zero: what lies outside the mask may be NaN."""
    weight = nn.Parameter(torch.zeros(6, 4, dtype=torch.float64))
    own, other = Part(0, ((0, 2), (4, 6))), Part(0, ((2, 4),))
    a, b = torch.randn(3, 5, 4).double(), torch.randn(3, 5, 6).double()
    b[1, :, 2:4] = float("nan")
    for whole in (Outer(a, b), Dense(torch.einsum("ntp,ntd->npd", b, a))):
        norms = norm_sq(merge([narrow(whole, own, weight.shape)], own.shape(weight.shape)))
        assert bool(torch.isfinite(norms).all())
        expected = torch.einsum("ntp,ntd->npd", own.select(b, 2), a).square().sum((1, 2))
        assert torch.allclose(norms, expected, rtol=1e-12)
        assert not bool(torch.isfinite(norm_sq([narrow(whole, other, weight.shape)])[1]))


def refused(model: nn.Module, **settings) -> str:
    if "layers" not in settings:
        settings["band"] = ALL
    with pytest.raises(UnsupportedPolicy) as refusal:
        bind(policy_of(one=DepthRule(**settings), two=DepthRule(band=ALL)), layer_stack(model))
    return str(refusal.value)


def test_masks_that_a_model_cannot_honour_are_refused_by_name() -> None:
    llama = families.llama().model
    assert "HEAD_RANGE" in refused(llama, heads=(0, 4)) and "has 4" in refused(llama, heads=(0, 4))
    assert "EXPERTS_UNKNOWN" in refused(llama, experts=(0,))
    assert "HEADS_UNKNOWN" in refused(ZOO["olmoe"].build(), heads=(0,))
    assert "EXPERT_RANGE" in refused(ZOO["mixtral"].build(), experts=(4,))
    plain = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)])
    assert "HEADS_UNKNOWN" in refused(plain, heads=(0,)) and "no heads are known in '0'" in refused(plain, heads=(0,))
    assert "HEADS_UNKNOWN" in refused(plain, layers=(1,), heads=(0,))


def test_without_a_mask_nothing_is_split_and_no_name_changes() -> None:
    for family in ("llama", "mixtral"):
        model = ZOO[family].build()
        rules = {"low": DepthRule(band=(Fraction(0), Fraction(1, 2))), "high": DepthRule(band=(Fraction(1, 2), Fraction(1)))}
        schedule = bind(policy_of(**rules), layer_stack(model))
        assert all(t.part is None for block in schedule.blocks for t in block.tensors)
        assert {block.name for block in schedule.blocks} == {"embeddings", "layer.0", "layer.1", "head"}


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_without_a_model_promises_no_more_noise_than_there_is(seed: int) -> None:
    """Its blocks are a guess at those of the model; the least noise of a class's blocks must not be guessed too high."""
    rng = random.Random(seed)
    model = ZOO["mixtral"].build()
    depths = {}
    for name in "abcd":
        low = Fraction(rng.randint(0, 1), 2)
        own = {what: subset(rng, 4) for what in ("heads", "experts") if rng.random() < 0.6}
        depths[name] = DepthRule(band=(low, low + Fraction(1, 2) if rng.random() < 0.5 else Fraction(1)), **own)
    policy = policy_of(**depths)
    policy = replace(policy, classes=tuple(rng.sample(policy.classes, 4)))
    schedule = bind(policy, layer_stack(model))
    touched, blocks = lay_out(policy, 2)
    planned = {block.name: block.std for block in blocks}
    for name, profile in schedule.profiles.items():
        least = min(schedule.blocks[index].std for index in profile)
        assert min(planned[block] for block in touched[name]) <= least


def test_a_tied_tensor_that_its_uses_divide_differently_is_needed_whole() -> None:
    """Two layers share a query projection, one through a module of two heads and one through four."""
    model = families.llama().model
    first, second = (model.model.layers[i].self_attn for i in (0, 1))
    second.q_proj.weight = first.q_proj.weight
    stack = layer_stack(model)
    tied = next(t for t in stack.tensors if len(t.aliases) == 2 and "q_proj" in t.name)
    assert len(tied.divisions) == 1 and tied.divisions[0].dim == 0, "all uses divide it alike, so it can be split"
    model.model.layers[1].mlp.up_proj.weight = nn.Parameter(first.q_proj.weight.detach().clone())
    model.model.layers[1].mlp.up_proj.weight = first.q_proj.weight
    tied = next(t for t in layer_stack(model).tensors if len(t.aliases) == 3)
    assert tied.divisions[0].dim is None and tied.divisions[0].owners == {0, 1, 2, 3}
    rules = {"some": DepthRule(band=ALL, heads=(0, 1)), "all": DepthRule(band=ALL)}
    schedule = bind(policy_of(**rules), layer_stack(model))
    holder = next(block for block in schedule.blocks for t in block.tensors if t.name == tied.name)
    assert holder.classes == ("all",)


def test_shared_experts_are_the_layers_own_and_the_router_is_a_block() -> None:
    model = ZOO["qwen2_moe"].build()
    rules = {"some": DepthRule(band=ALL, experts=(0, 1, 2, 3)), "all": DepthRule(band=ALL)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schedule = bind(policy_of(**rules), layer_stack(model))
    where = {t.name: block for block in schedule.blocks for t in block.tensors}
    router = next(block for name, block in where.items() if name.endswith("mlp.gate.weight"))
    assert router.name.endswith(" router") and router.classes == ("all",), "even with all experts named"
    shared = {block.name for name, block in where.items() if ".shared_expert" in name}
    assert shared == {"layer.0", "layer.1"}
    assert {block.name for name, block in where.items() if ".experts." in name} == {
        "layer.0 experts 0-3",
        "layer.1 experts 0-3",
    }
