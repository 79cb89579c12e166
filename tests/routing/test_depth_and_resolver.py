"""Where tensors lie in a model, and which blocks a class may touch."""

import random
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from attest.policy import ClassRule, DepthRule, Policy  # noqa: E402
from attest.schedule.blocks import band_layers  # noqa: E402
from dptrain.blocks.stack import EMBEDDINGS, HEAD, find_layer_names, layer_stack  # noqa: E402
from dptrain.clipping.resolver import bind  # noqa: E402
from dptrain.errors import UnsupportedModule, UnsupportedPolicy  # noqa: E402
from tests.reference.families import FAMILIES  # noqa: E402


def policy_of(**depths: DepthRule) -> Policy:
    """One class per depth rule; noise grows with the class."""
    return Policy(
        corpus="c", delta=Fraction(1, 10**6), accountant="pld", disclosure="secret_poisson", exactness="fast", steps=10,
        normalizer=4,
        classes=tuple(
            ClassRule(
                name=name.replace("_", "-"), clip_norm_micro=10**6, noise_multiplier_micro=(k + 1) * 10**6,
                sampling_rate=Fraction(1, 10), depth=rule,
            )
            for k, (name, rule) in enumerate(depths.items())
        ),
    )  # fmt: skip


def band(start: str, stop: str, **extra: bool) -> DepthRule:
    return DepthRule(band=(Fraction(start), Fraction(stop)), **extra)


@pytest.mark.parametrize(
    ("family", "layers", "below", "above"),
    [
        ("bert", "bert.encoder.layer", "bert.embeddings.word_embeddings.weight", "classifier.weight"),
        ("gpt2_untied", "transformer.h", "transformer.wpe.weight", "transformer.ln_f.weight"),
        ("llama", "model.layers", "model.embed_tokens.weight", "model.norm.weight"),
        ("vit", None, "vit.embeddings.cls_token", "classifier.weight"),
        ("gpt2_lora", "base_model.model.transformer.h", None, None),
    ],
)
def test_the_stack_of_hugging_face_models_is_found_by_structure(family, layers, below, above) -> None:
    model = FAMILIES[family]().model
    names = find_layer_names(model)
    assert len(names) == 3
    if layers:
        assert names == tuple(f"{layers}.{i}" for i in range(3))
    places = {tensor.name: tensor.positions for tensor in layer_stack(model).tensors}
    assert {p for positions in places.values() for p in positions} >= {0, 1, 2}
    if below:
        assert places[below] == (EMBEDDINGS,) and places[above] == (HEAD,)
    for name, positions in places.items():
        for i, layer in enumerate(names):
            if name.startswith(layer + "."):
                assert positions == (i,)


def test_a_tied_tensor_has_every_position_that_uses_it() -> None:
    places = {t.name: t for t in layer_stack(FAMILIES["gpt2_tied"]().model).tensors}
    tied = places["transformer.wte.weight"]
    assert tied.positions == (EMBEDDINGS, HEAD) and "lm_head.weight" in tied.aliases


def test_experts_inside_a_layer_are_not_the_stack() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList([nn.Linear(2, 2) for _ in range(8)])

    model = nn.Module()
    model.blocks = nn.ModuleList([Layer() for _ in range(3)])
    assert find_layer_names(model) == ("blocks.0", "blocks.1", "blocks.2")


def test_a_tensor_of_a_container_of_the_stack_needs_both_ends_permitted() -> None:
    model = nn.Module()
    model.scale = nn.Parameter(torch.ones(1))
    model.blocks = nn.ModuleList([nn.Linear(2, 2) for _ in range(2)])
    assert next(t for t in layer_stack(model).tensors if t.name == "scale").positions == (EMBEDDINGS, HEAD)


def test_layers_by_name_and_the_errors_for_names_that_are_not_there() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    assert layer_stack(model, ["0", "2"]).layers == ("0", "2")
    with pytest.raises(UnsupportedModule, match="NO_LAYER_STACK"):
        layer_stack(model, "nowhere")
    with pytest.raises(UnsupportedModule, match="NO_LAYER_STACK"):
        layer_stack(nn.Linear(2, 2))
    for p in model.parameters():
        p.requires_grad_(False)
    with pytest.raises(UnsupportedModule, match="NOTHING_TO_TRAIN"):
        layer_stack(model, ["0", "2"])


@pytest.mark.parametrize(
    ("start", "stop", "layers", "expected"),
    [("0.75", "1", 12, [9, 10, 11]), ("0.75", "1", 6, [4, 5]), ("0", "1", 3, [0, 1, 2]), ("0.5", "0.75", 4, [2]),
     ("0.3", "0.7", 10, [3, 4, 5, 6])],
)  # fmt: skip
def test_a_band_covers_the_layers_it_meets(start, stop, layers, expected) -> None:
    assert list(band_layers(Fraction(start), Fraction(stop), layers)) == expected


def profile_names(schedule, name: str) -> list[str]:
    return [schedule.blocks[i].name for i in schedule.profiles[name]]


def test_bands_layers_and_sets_become_blocks() -> None:
    stack = layer_stack(FAMILIES["bert"]().model)
    schedule = bind(
        policy_of(
            top=band("0.66", "1"),
            middle=DepthRule(layers=(1,)),
            attention=DepthRule(patterns=("*.attention.*",)),
            all_of_it=band("0", "1"),
        ),
        stack,
    )
    assert "head" in profile_names(schedule, "top") and "embeddings" not in profile_names(schedule, "top")
    attention = {t.name for i in schedule.profiles["attention"] for t in schedule.blocks[i].tensors}
    assert attention and all(".attention." in name for name in attention)
    middle = {t.positions for i in schedule.profiles["middle"] for t in schedule.blocks[i].tensors}
    assert middle == {(1,)}
    assert len(schedule.profiles["all-of-it"]) == len(schedule.blocks)
    assert sorted(t.name for b in schedule.blocks for t in b.tensors) == sorted(t.name for t in stack.tensors)


def test_a_tied_tensor_is_out_of_a_band_that_covers_only_one_of_its_uses() -> None:
    stack = layer_stack(FAMILIES["gpt2_tied"]().model)
    schedule = bind(policy_of(top=band("0.66", "1"), full=band("0", "1")), stack)
    names = {t.name for i in schedule.profiles["top"] for t in schedule.blocks[i].tensors}
    assert "transformer.wte.weight" not in names and "transformer.ln_f.weight" in names


def test_tensors_that_no_class_may_touch_are_frozen() -> None:
    stack = layer_stack(FAMILIES["bert"]().model)
    schedule = bind(policy_of(top=band("0.66", "1")), stack)
    assert {t.positions for t in schedule.frozen} == {(EMBEDDINGS,), (0,)}
    with pytest.raises(UnsupportedPolicy, match="PATTERN_MATCHES_NOTHING"):
        bind(policy_of(nothing=DepthRule(patterns=("no.such.*",))), stack)
    with pytest.raises(UnsupportedPolicy, match="LAYER_RANGE"):
        bind(policy_of(far=DepthRule(layers=(7,))), stack)
    with pytest.raises(UnsupportedPolicy, match="ADAPTER"):
        bind(policy_of(bound=DepthRule(adapter="clinic")), stack)


def test_noise_of_every_block_honours_every_class_that_may_touch_it() -> None:
    """Corollary 1 and 2 over random policies: feasible, and no block could carry less."""
    stack = layer_stack(FAMILIES["bert"]().model)
    rng = random.Random(0)
    for _ in range(50):
        rules = []
        for k in range(rng.randint(1, 4)):
            cuts = sorted([Fraction(rng.randint(0, 3), 3), Fraction(rng.randint(0, 3), 3)])
            cuts = cuts if cuts[0] < cuts[1] else [Fraction(0), Fraction(1)]
            rules.append(
                ClassRule(
                    name=f"c{k}", clip_norm_micro=rng.randint(1, 3 * 10**6), noise_multiplier_micro=rng.randint(1, 5 * 10**6),
                    sampling_rate=Fraction(1, 10), depth=DepthRule(band=tuple(cuts)),
                )
            )  # fmt: skip
        policy = Policy(
            corpus="c", delta=Fraction(1, 10**6), accountant="pld", disclosure="secret_poisson", exactness="fast", steps=10,
            normalizer=4, classes=tuple(rules),
        )  # fmt: skip
        schedule = bind(policy, stack)
        for block in schedule.blocks:
            presets = [policy.class_rule(n).bounds for n in block.classes]
            needs = [preset.noise_multiplier * preset.clip_norm for preset in presets]
            assert block.std == pytest.approx(max(needs), rel=1e-12)
        for rule in rules:
            least = min(schedule.blocks[i].std for i in schedule.profiles[rule.name])
            assert least / rule.bounds.clip_norm >= rule.bounds.noise_multiplier * (1 - 1e-12)
