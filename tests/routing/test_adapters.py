"""Classes bound to adapters: which tensors they may touch, how their blocks are named, and what is refused by name."""

import copy
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

from attest.policy import DepthRule  # noqa: E402
from attest.schedule import block_std  # noqa: E402
from dptrain.blocks.adapters import find_adapters  # noqa: E402
from dptrain.blocks.stack import layer_stack  # noqa: E402
from dptrain.clipping.resolver import bind  # noqa: E402
from dptrain.errors import DptrainError, UnsupportedModule, UnsupportedPolicy  # noqa: E402
from dptrain.routing import Router  # noqa: E402
from dptrain.routing.probes import check_exact, check_order  # noqa: E402
from tests.reference.compare import block_squares  # noqa: E402
from tests.reference.families import bert, gpt2  # noqa: E402
from tests.routing.test_depth_and_resolver import policy_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def bound(name: str) -> DepthRule:
    return DepthRule(adapter=name)


def lora(**options):
    return peft.LoraConfig(**({"r": 2, "target_modules": ["query", "value"]} | options))


def adapted(*configs, both: bool = False, family=bert, names=("clinic", "lab")):
    model = peft.get_peft_model(family().model, configs[0], adapter_name=names[0])
    for name, config in zip(names[1:], configs[1:], strict=False):
        model.add_adapter(name, config)
    if both:
        model.base_model.set_adapter(list(names[: len(configs)]))
    return model


def names_of(schedule, class_name: str) -> set[str]:
    return {t.name for i in schedule.profiles[class_name] for t in schedule.blocks[i].tensors}


def test_each_class_may_touch_exactly_the_tensors_of_its_adapter() -> None:
    model = adapted(lora(), lora(target_modules=["query"], r=4), both=True)
    schedule = bind(policy_of(clinic=bound("clinic"), lab=bound("lab")), layer_stack(model))
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    assert names_of(schedule, "clinic") == {name for name in trainable if ".clinic." in name}
    assert names_of(schedule, "lab") == {name for name in trainable if ".lab." in name}
    assert names_of(schedule, "clinic") | names_of(schedule, "lab") == trainable and not schedule.frozen
    assert [block.name for block in schedule.blocks] == [f"layer.{k} adapter {a}" for k in range(3) for a in ("clinic", "lab")]
    assert {block.adapter for block in schedule.blocks} == {"clinic", "lab"}


def test_an_adapter_whose_name_begins_like_another_is_not_that_one() -> None:
    model = adapted(lora(), lora(), both=True, names=("clinic", "clinic2"))
    schedule = bind(policy_of(clinic=bound("clinic")), layer_stack(model))
    assert all(".clinic." in name for name in names_of(schedule, "clinic"))
    assert schedule.frozen and all(".clinic2." in tensor.name for tensor in schedule.frozen)


def test_noise_is_the_largest_demand_of_the_classes_that_share_an_adapter() -> None:
    """Corollary 1: a block's noise depends on its classes alone, so an adapter is accounted as a band would be."""
    model = adapted(lora(), lora(), both=True)
    rules = {"clinic": bound("clinic"), "lab": bound("lab"), "everywhere": DepthRule(band=(Fraction(0), Fraction(1)))}
    policy = policy_of(**rules)
    presets = {rule.name: rule.bounds for rule in policy.classes}
    schedule = bind(policy, layer_stack(model))
    for block in schedule.blocks:
        assert block.classes == (block.adapter, "everywhere")
        assert block.std == block_std([presets[name] for name in block.classes])
    plain = bind(
        policy_of(clinic=rules["everywhere"], lab=rules["everywhere"], everywhere=rules["everywhere"]), layer_stack(model)
    )
    assert {block.std for block in plain.blocks} == {block.std for block in schedule.blocks}


def test_a_band_without_bound_classes_keeps_the_blocks_it_had() -> None:
    schedule = bind(policy_of(top=DepthRule(band=(Fraction(0), Fraction(1)))), layer_stack(adapted(lora())))
    assert [block.name for block in schedule.blocks] == ["layer.0", "layer.1", "layer.2"]


def test_an_adapter_that_does_not_exist_is_refused_and_those_that_do_are_named() -> None:
    with pytest.raises(UnsupportedPolicy, match=r"ADAPTER_UNKNOWN.*'ward'.*it has 'clinic', 'lab'"):
        bind(policy_of(ward=bound("ward")), layer_stack(adapted(lora(), lora())))
    with pytest.raises(UnsupportedPolicy, match=r"ADAPTER_UNKNOWN.*no adapters"):
        bind(policy_of(ward=bound("ward")), layer_stack(bert().model))


def test_an_adapter_that_is_not_active_is_refused() -> None:
    with pytest.raises(UnsupportedModule, match=r"ADAPTER_INACTIVE.*active there: 'clinic'.*set_adapter"):
        bind(policy_of(lab=bound("lab")), layer_stack(adapted(lora(), lora())))


def test_an_adapter_with_nothing_to_train_is_refused() -> None:
    model = adapted(lora())
    model.requires_grad_(False)
    model.base_model.model.classifier.requires_grad_(True)
    with pytest.raises(UnsupportedModule, match="ADAPTER_FROZEN"):
        bind(policy_of(clinic=bound("clinic")), layer_stack(model))


def test_a_merged_or_disabled_adapter_is_refused() -> None:
    merged = adapted(lora())
    merged.merge_adapter()
    with pytest.raises(UnsupportedModule, match="ADAPTER_MERGED"):
        bind(policy_of(clinic=bound("clinic")), layer_stack(merged))
    disabled = adapted(lora())
    disabled.base_model.disable_adapter_layers()
    disabled.requires_grad_(True)
    with pytest.raises(UnsupportedModule, match="ADAPTER_DISABLED"):
        bind(policy_of(clinic=bound("clinic")), layer_stack(disabled))


@pytest.mark.parametrize(
    ("code", "config"),
    [
        ("ADAPTER_KIND.*target_parameters", lambda: lora(target_modules=[], target_parameters=["query.weight"])),
        ("ADAPTER_KIND.*variant of LoRA", lambda: lora(alora_invocation_tokens=[3, 4])),
        ("ADAPTER_BIAS.*bias='none'", lambda: lora(bias="lora_only")),
        ("ADAPTER_KIND.*fourierft_spectrum", lambda: peft.FourierFTConfig(n_frequency=20, target_modules=["query"])),
        ("ADAPTER_KIND.*peanut_A", lambda: peft.PeanutConfig(r=2, target_modules=["query"])),
    ],
)
def test_adapters_without_a_rule_are_refused_by_name(code: str, config) -> None:
    with pytest.raises(UnsupportedModule, match=code):
        bind(policy_of(clinic=bound("clinic")), layer_stack(adapted(config())))


@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PromptEncoderConfig"])
def test_virtual_tokens_are_one_block_below_the_layers(kind: str) -> None:
    config = getattr(peft, kind)(task_type="CAUSAL_LM", num_virtual_tokens=3)
    schedule = bind(policy_of(clinic=bound("clinic")), layer_stack(adapted(config, family=lambda: gpt2(tied=False))))
    assert [block.name for block in schedule.blocks] == ["embeddings adapter clinic"]


def test_a_tensor_shared_with_the_model_or_another_adapter_is_refused() -> None:
    model = adapted(lora(), lora(), both=True)
    query = model.base_model.model.bert.encoder.layer[0].attention.self.query
    query.lora_A["lab"].weight = query.lora_A["clinic"].weight
    with pytest.raises(UnsupportedModule, match=r"ADAPTER_SHARED.*lora_A"):
        bind(policy_of(clinic=bound("clinic"), lab=bound("lab")), layer_stack(model))


def test_an_adapted_layer_that_stands_in_two_places_is_one_adapters_all_the_same() -> None:
    model = adapted(lora())
    layers = model.base_model.model.bert.encoder.layer
    layers[2].attention.self.query = layers[1].attention.self.query
    schedule = bind(policy_of(clinic=bound("clinic")), layer_stack(model))
    assert [block.name for block in schedule.blocks] == [
        "layer.0 adapter clinic", "layer.1 adapter clinic", "layer.1+layer.2 adapter clinic", "layer.2 adapter clinic",
    ]  # fmt: skip


CASES = {
    "two lora": (bert, (lambda: lora(), lambda: lora(target_modules=["query"], lora_bias=True, use_rslora=True))),
    "modules_to_save": (bert, (lambda: lora(modules_to_save=["classifier"]),)),
    "gpt2": (lambda: gpt2(tied=True), (lambda: lora(target_modules=["c_attn", "c_proj"]),)),
    "layer norm": (bert, (lambda: peft.LNTuningConfig(target_modules=["LayerNorm"]),)),
    "oft": (bert, (lambda: peft.OFTConfig(oft_block_size=4, r=0, target_modules=["query"]),)),
    "prefix": (lambda: gpt2(tied=False), (lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),)),
    "projected prefix": (
        lambda: gpt2(tied=False),
        (
            lambda: peft.PrefixTuningConfig(
                task_type="CAUSAL_LM", num_virtual_tokens=3, prefix_projection=True, encoder_hidden_size=8
            ),
        ),
    ),
}


@pytest.mark.one_in(7)
@pytest.mark.parametrize("case", CASES)
def test_the_gradients_of_bound_adapters_are_autograds_own(case: str) -> None:
    """P0 in float64, and per contribution against a backward pass for each alone."""
    make, configs = CASES[case]
    family = make()
    base = copy.copy(family)
    model = adapted(*(config() for config in configs), both=len(configs) > 1, family=lambda: base).double()
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)  # peft starts many at zero, where other gradients vanish
    bound_names = ("clinic", "lab")[: len(configs)]
    schedule = bind(policy_of(**{name: bound(name) for name in bound_names}), layer_stack(model))
    assert sorted(find_adapters(model)) == sorted(bound_names)
    router = Router(model, schedule)
    router.attach()
    batch, n = family.batch(4, 1), 4
    router.arm(n, 1, torch.ones(n, len(schedule.blocks), dtype=torch.bool))
    losses = family.losses(model, batch)
    assert losses.shape == (n,)
    check_order(router.order, schedule.stack, router)
    norms = block_squares(router, check_exact(router, losses, torch.ones(n, dtype=torch.float64)))
    router.detach()
    for i in range(n):
        one = {key: value[i : i + 1] for key, value in batch.items()}
        model.zero_grad()
        family.losses(model, one).sum().backward()
        for g, block in enumerate(schedule.blocks):
            truth = sum(float(t.parameter.grad.square().sum()) for t in block.tensors if t.parameter.grad is not None)
            assert truth > 0 and float(norms[i, g]) == pytest.approx(truth, rel=1e-6)


def test_dropout_of_an_adapter_is_drawn_once_for_forward_and_gradient() -> None:
    model = adapted(lora(lora_dropout=0.5)).double().train()
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    family = bert()
    schedule = bind(policy_of(clinic=bound("clinic")), layer_stack(model))
    router = Router(model, schedule)
    router.attach()
    router.arm(4, 1, torch.ones(4, len(schedule.blocks), dtype=torch.bool))
    found = check_exact(router, family.losses(model, family.batch(4, 1)), torch.ones(4, dtype=torch.float64))
    norms = block_squares(router, found)
    assert bool((norms > 0).all())


def test_a_tuner_of_unknown_make_is_refused_even_if_it_looks_like_lora() -> None:
    """At its start (B = 0) the gradient of A is zero, so the probes alone could not vouch for it."""
    model = adapted(lora())
    query = model.base_model.model.bert.encoder.layer[0].attention.self.query
    query.__class__ = type("Linear", (type(query),), {"__module__": "elsewhere"})
    with pytest.raises(UnsupportedModule, match=r"ADAPTER_KIND.*not checked"):
        bind(policy_of(clinic=bound("clinic")), layer_stack(model))


def test_the_last_word_is_the_comparison_with_autograd() -> None:
    """A tuner that uses its modules' weights past their calls is caught by P0, whatever its name."""
    model = adapted(lora()).double()
    layer = model.base_model.model.bert.encoder.layer[0].attention.self.query
    inner = layer.forward
    layer.forward = lambda x: inner(x) + x @ layer.lora_A["clinic"].weight.sum(0)[:, None]
    family = bert()
    schedule = bind(policy_of(clinic=bound("clinic")), layer_stack(model))
    router = Router(model, schedule)
    router.attach()
    router.arm(4, 1, torch.ones(4, len(schedule.blocks), dtype=torch.bool))
    with pytest.raises(DptrainError, match="GRADIENT_MISMATCH"):
        check_exact(router, family.losses(model, family.batch(4, 1)), torch.ones(4, dtype=torch.float64))
