"""Models of two layer stacks: places, name patterns, bands per tower, and messages for patterns that match nothing."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from attest.policy import DepthRule  # noqa: E402
from attest.schedule.stack import places_name  # noqa: E402
from dptrain.blocks.stack import EMBEDDINGS, HEAD, layer_stack  # noqa: E402
from dptrain.clipping.resolver import bind  # noqa: E402
from dptrain.errors import UnsupportedModule, UnsupportedPolicy  # noqa: E402
from dptrain.routing import Router  # noqa: E402
from dptrain.routing.probes import check_exact, check_order  # noqa: E402
from tests.reference.compare import block_squares  # noqa: E402
from tests.reference.families import FAMILIES  # noqa: E402
from tests.routing.test_depth_and_resolver import band, policy_of, profile_names  # noqa: E402
from tests.worlds.bounds import bounds_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

LISTS = ["vision_model.encoder.layers", "text_model.encoder.layers"]


def names(*patterns: str) -> DepthRule:
    return DepthRule(patterns=patterns)


def clip() -> nn.Module:
    from transformers import CLIPConfig, CLIPModel

    shared = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "attention_dropout": 0.0}
    config = CLIPConfig(
        text_config={
            **shared, "vocab_size": 50, "num_hidden_layers": 2, "max_position_embeddings": 16, "bos_token_id": 0,
            "eos_token_id": 1, "pad_token_id": 1,
        },
        vision_config={**shared, "num_hidden_layers": 3, "image_size": 8, "patch_size": 4, "num_channels": 1},
        projection_dim=8,
    )  # fmt: skip
    torch.manual_seed(0)
    return CLIPModel(config).double().train()


def batch(n: int) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(3)
    ids = torch.randint(2, 50, (n, 6), generator=g)
    ids[:, -1] = 1
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(n, 1, 8, 8, generator=g, dtype=torch.float64),
    }


def losses(model: nn.Module, rows: dict[str, torch.Tensor]) -> torch.Tensor:
    """One pair, one loss: no negatives from the batch."""
    out = model(**rows)
    return 1.0 - nn.functional.cosine_similarity(out.image_embeds, out.text_embeds)


def test_both_towers_are_placed_and_what_lies_outside_belongs_to_none() -> None:
    stack = layer_stack(clip(), LISTS)
    assert [(tower.name, len(tower.layers)) for tower in stack.towers] == [("vision_model", 3), ("text_model", 2)]
    places = {tensor.name: tensor.places for tensor in stack.tensors}
    assert places["vision_model.embeddings.class_embedding"] == (("vision_model", EMBEDDINGS),)
    assert places["vision_model.encoder.layers.2.mlp.fc1.weight"] == (("vision_model", 2),)
    assert places["vision_model.post_layernorm.weight"] == (("vision_model", HEAD),)
    assert places["text_model.embeddings.token_embedding.weight"] == (("text_model", EMBEDDINGS),)
    assert places["text_model.final_layer_norm.bias"] == (("text_model", HEAD),)
    assert places["text_projection.weight"] == (("", HEAD),)
    assert places["logit_scale"] == (("", EMBEDDINGS), ("", HEAD))


def test_a_policy_of_name_patterns_gets_blocks_per_layer_of_each_tower_by_itself() -> None:
    schedule = bind(
        policy_of(images=names("vision_model.*", "visual_projection.*"), texts=names("text_*")), layer_stack(clip())
    )
    vision = {f"vision_model.layer.{k}" for k in range(3)} | {"vision_model.embeddings", "vision_model.head", "head"}
    assert set(profile_names(schedule, "images")) == vision
    text = {"text_model.layer.0", "text_model.layer.1", "text_model.embeddings", "text_model.head", "head#2"}
    assert set(profile_names(schedule, "texts")) == text
    assert [tensor.name for tensor in schedule.frozen] == ["logit_scale"]
    for block in schedule.blocks:
        assert block.std == (1.0 if block.classes == ("images",) else 2.0)


def test_a_sparse_set_touches_the_layers_it_names_in_either_tower() -> None:
    schedule = bind(policy_of(ends=names("*.encoder.layers.0.*", "vision_model.encoder.layers.2.mlp.*")), layer_stack(clip()))
    assert profile_names(schedule, "ends") == ["text_model.layer.0", "vision_model.layer.0", "vision_model.layer.2"]
    touched = {tensor.name for tensor in schedule.blocks[-1].tensors}
    assert touched and all(".mlp." in name for name in touched)


def test_a_band_covers_the_same_share_of_every_tower_that_is_named() -> None:
    schedule = bind(policy_of(top=band("0.5", "1")), layer_stack(clip(), LISTS))
    assert profile_names(schedule, "top") == [
        "text_model.layer.1", "vision_model.layer.1", "vision_model.layer.2", "head", "text_model.head", "vision_model.head",
    ]  # fmt: skip


def test_layers_by_number_say_nothing_in_two_stacks() -> None:
    with pytest.raises(UnsupportedPolicy, match=r"LAYERS_OF_SEVERAL_STACKS.*vision_model, text_model.*layers\.1\.\*"):
        bind(policy_of(one=DepthRule(layers=(1,))), layer_stack(clip(), LISTS))


def test_lists_that_are_empty_or_given_twice_are_refused() -> None:
    with pytest.raises(UnsupportedModule, match="NO_LAYER_STACK"):
        layer_stack(clip(), [LISTS[0], LISTS[0]])


@pytest.mark.one_in(7)
@pytest.mark.parametrize("rules", [
    {"images": names("vision_model.*", "visual_projection.*"), "texts": names("text_*")},
    {"top": band("0.5", "1"), "all": names("vision_model.*", "visual_projection.*", "text_*")},
    {"only-text": names("text_model.embeddings.*")},
    {"mixed": names("text_model.embeddings.*", "vision_model.encoder.*")},
])  # fmt: skip
def test_gradients_are_autograds_own_and_the_order_of_towers_does_not_matter(rules) -> None:
    model = clip()
    schedule = bind(policy_of(**{k.replace("-", "_"): v for k, v in rules.items()}), layer_stack(model, LISTS))
    router = Router(model, schedule)
    router.attach()
    router.arm(4, 1, torch.ones(4, len(schedule.blocks), dtype=torch.bool))
    found = losses(model, batch(4))
    check_order(router.order, schedule.stack, router)
    norms = block_squares(router, check_exact(router, found, torch.ones(4, dtype=torch.float64)))
    assert bool((norms > 0).all())


def test_a_class_of_one_tower_leaves_the_other_exactly_alone() -> None:
    """The masks of docs/mechanism, Theorem 1, over two towers: nothing of a contribution is summed elsewhere."""
    model = clip()
    schedule = bind(policy_of(images=names("vision_model.*"), texts=names("text_model.*")), layer_stack(model))
    router = Router(model, schedule)
    router.attach()
    for name in ("images", "texts"):
        bounds = bounds_of([(1.0, 1.0, schedule.profiles[name])] * 3, len(schedule.blocks))
        router.arm(3, 1, bounds.permitted_NG)
        router.backward(losses(model, batch(3)), torch.ones(3, dtype=torch.float64))
        router.fold(bounds)
        for (block, tensor), total in zip(router.tensors, list(router.sums.take()), strict=True):
            assert bool((total != 0).any()) == (name in schedule.blocks[block].classes), tensor.name


def test_an_order_that_contradicts_the_depths_of_a_tower_is_refused() -> None:
    model = clip()
    inner = model.vision_model.encoder.forward
    late = model.vision_model.pre_layrnorm

    def forward(*args, **kwargs):
        out = inner(*args, **kwargs)
        out.last_hidden_state = late(out.last_hidden_state)
        return out

    model.vision_model.encoder.forward = forward
    schedule = bind(policy_of(images=names("vision_model.*")), layer_stack(model))
    router = Router(model, schedule)
    router.attach()
    router.arm(2, 1, torch.ones(2, len(schedule.blocks), dtype=torch.bool))
    losses(model, batch(2))
    with pytest.raises(UnsupportedModule, match=r"DEPTH_ORDER.*pre_layrnorm"):
        check_order(router.order, schedule.stack, router)


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("vision.*", "'vision_model.*'"),
        ("text_model.encoder.layer.0.*", "'text_model.encoder.layers.0.*'"),
        ("vision_model.encoder.layers.7.*", "'vision_model.encoder.layers"),
        ("visual_projektion.weight", "'visual_projection"),
        ("Vision_model.*", "'vision_model.*'"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused_with_the_nearest(pattern: str, near: str) -> None:
    with pytest.raises(UnsupportedPolicy, match="PATTERN_MATCHES_NOTHING") as caught:
        bind(policy_of(images=names("vision_model.*", pattern)), layer_stack(clip()))
    assert near in str(caught.value) and repr(pattern) in str(caught.value)


def test_a_pattern_that_matches_only_what_is_frozen_says_so() -> None:
    model = clip()
    model.text_model.requires_grad_(False)
    with pytest.raises(UnsupportedPolicy, match=r"PATTERN_UNTRAINED.*text_model"):
        bind(policy_of(texts=names("text_model.*")), layer_stack(model))


def test_a_pattern_that_names_one_use_of_a_tied_tensor_says_which_is_missing() -> None:
    with pytest.raises(UnsupportedPolicy, match=r"EMPTY_PROFILE.*is tied to .lm_head"):
        bind(policy_of(words=names("transformer.wte.*")), layer_stack(FAMILIES["gpt2_tied"]().model))


def test_an_encoder_decoder_with_a_band_keeps_one_stack() -> None:
    """Two lists alone do not make towers: depth may run through both. Only a policy without depths sees them so."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.ModuleList([nn.Linear(2, 2) for _ in range(2)])
            self.decoder = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])

    schedule = bind(policy_of(top=band("0.5", "1")), layer_stack(Model()))
    assert [block.name for block in schedule.blocks] == ["layer.1", "layer.2"]
    schedule = bind(policy_of(some=names("encoder.1.*", "decoder.0.*")), layer_stack(Model()))
    assert [block.name for block in schedule.blocks] == ["decoder.layer.0", "encoder.layer.1"]


def test_places_are_named_shortly() -> None:
    assert places_name((("", EMBEDDINGS), ("", HEAD))) == "embeddings+head"
    assert places_name((("", 0), ("", 1))) == "layer.0+layer.1"
    assert places_name(tuple(("", k) for k in (EMBEDDINGS, *range(80), HEAD))) == "embeddings+layer.0-79+head"
    assert places_name((("a", 2), ("b", HEAD))) == "a.layer.2+b.head"
