"""What a trainer runs with is what an auditor derives: random models and rules, bound, recorded and read again."""

import pytest

torch = pytest.importorskip("torch")

from fractions import Fraction  # noqa: E402

from hypothesis import assume, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from attest.policy import ClassRule, DepthRule  # noqa: E402
from attest.schedule.blocks import derive  # noqa: E402
from dptrain.blocks.stack import layer_stack  # noqa: E402
from dptrain.clipping.resolver import bind  # noqa: E402
from dptrain.engine.header import block_rows  # noqa: E402
from dptrain.errors import UnsupportedPolicy  # noqa: E402
from ledger.leaves import decode_leaf, encode_leaf  # noqa: E402
from tests.worlds.ledgers import SIGNER, START, header_spec, signed_policy  # noqa: E402


class Layer(nn.Module):
    """Attention of torch, experts in a list, and a router."""

    def __init__(self, attention: bool, experts: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 2) if attention else None
        self.mixture = nn.Module()
        if experts:
            self.mixture.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(experts))
            self.mixture.gate = nn.Linear(4, experts)


class Model(nn.Module):
    """Embeddings, layers, a head that may be tied, a tensor of its own; some of it not trained."""

    def __init__(self, layers: int, attention: bool, experts: int, tied: bool, kept: frozenset[str]) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.layers = nn.ModuleList(Layer(attention, experts) for _ in range(layers))
        self.head = nn.Linear(4, 5, bias=False)
        self.scale = nn.Parameter(torch.ones(2))
        if tied:
            self.head.weight = self.embed.weight
            self.layers[-1].linear.weight = self.layers[0].linear.weight
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(not any(part in name for part in kept))


@st.composite
def models(draw) -> nn.Module:
    kept = draw(st.sets(st.sampled_from(["embed", "linear.bias", "layers.0", "experts.0", "scale"]), max_size=2))
    attention, tied = draw(st.booleans()), draw(st.booleans())
    return Model(draw(st.integers(1, 4)), attention, draw(st.sampled_from([0, 3])), tied, frozenset(kept))


@st.composite
def depths(draw) -> DepthRule:
    ends = {end: draw(st.none() | st.booleans()) for end in ("embeddings", "head")}
    numbers = st.none() | st.sets(st.integers(0, 2), min_size=1).map(lambda found: tuple(sorted(found)))
    form = draw(st.sampled_from(["band", "layers", "set"]))
    if form == "set":
        patterns = st.sampled_from(["*", "embed.*", "layers.0.*", "layers.*.bias", "*.weight", "head.*", "layers.[01].*"])
        return DepthRule(patterns=tuple(sorted(draw(st.sets(patterns, min_size=1)))))
    masks = {"heads": draw(numbers), "experts": draw(numbers)}
    if form == "layers":
        return DepthRule(layers=tuple(sorted(draw(st.sets(st.integers(0, 3), min_size=1)))), **ends, **masks)
    low, high = sorted(draw(st.tuples(st.integers(0, 3), st.integers(4, 6))))
    return DepthRule(band=(Fraction(low, 6), Fraction(high, 6)), **ends, **masks)


@settings(max_examples=30, deadline=None)
@given(models(), st.lists(depths(), min_size=1, max_size=3))
def test_the_blocks_that_a_trainer_binds_are_those_that_an_auditor_derives(model, rules):
    classes = tuple(
        ClassRule(
            name="abc"[place], clip_norm_micro=10**6, noise_multiplier_micro=(place + 1) * 10**6, sampling_rate=Fraction(1, 50),
            depth=depth,
        )
        for place, depth in enumerate(rules)
    )  # fmt: skip
    signed = signed_policy(classes=classes)
    try:
        schedule = bind(signed.policy, layer_stack(model))
    except UnsupportedPolicy:
        assume(False)
    rows = block_rows(signed.policy, schedule)
    spec = header_spec(signed, stack=schedule.stack.named(), blocks=rows)
    header = decode_leaf(encode_leaf(spec.header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)))
    assert header.blocks == rows and header.stack == schedule.stack.named()
    assert sum(block.coordinates for block in rows) == sum(p.numel() for p in model.parameters())
    for tensor in header.stack.tensors:
        assert {model.get_parameter(name).requires_grad for name in tensor.names} == {tensor.trained}
    by_name = {block.name: block for block in derive(signed.policy.classes, header.stack)}
    for block in schedule.blocks:
        assert (by_name[block.name].classes, by_name[block.name].coordinates) == (block.classes, block.coordinates)
        assert all(tensor.parameter.requires_grad for tensor in block.tensors)
