"""torch's own attention has a rule without a second run: exact for every option, and the same function as the module."""

import warnings

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain.errors import UnsupportedModule  # noqa: E402
from dptrain.gradients.attention import _SIGNATURE, AttentionRule, serves  # noqa: E402
from dptrain.gradients.generic import GenericRule  # noqa: E402
from dptrain.gradients.registry import Call, rule_of  # noqa: E402
from dptrain.routing import FallbackNotice  # noqa: E402
from dptrain.sandbox import Sandbox  # noqa: E402
from tests.guarantees.test_layer_rules import Stack, batch_of, cross_entropy  # noqa: E402
from tests.reference.compare import compare, names_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched", "ignore:enable_nested_tensor is True")
WIDTH, HEADS, LENGTH = 8, 2, 5


class Attention(nn.Module):
    """Attention from what it is given to something made of it, with masks that follow the example."""

    def __init__(self, *, kind: str = "self", masks: str = "", weights: bool = False, reads: bool = False, **options) -> None:
        super().__init__()
        inner = {"embed_dim": WIDTH, "num_heads": HEADS, "batch_first": True} | options
        self.attention = nn.MultiheadAttention(**inner)
        self.kind, self.masks, self.weights, self.reads = kind, masks, weights, reads

    def arguments(self, x: torch.Tensor) -> tuple[tuple, dict]:
        other = torch.cat([x.square(), x[:, :2]], dim=1)
        key = other[..., : self.attention.kdim]
        value = other.sin()[..., : self.attention.vdim]
        args = {"self": (x, x, x), "cross": (x, other, other), "three": (x, key, value), "query is key": (x, x, x.sin())}[
            self.kind
        ]
        source = args[1].shape[1]
        options: dict = {"need_weights": self.weights or self.reads}
        padding = torch.zeros(len(x), source, dtype=torch.bool)
        padding[:, -1] = x[:, -1, 0] > 0
        causal = torch.ones(LENGTH, source, dtype=torch.bool).triu(1)
        if "padding" in self.masks:
            options["key_padding_mask"] = padding
        if "causal" in self.masks:
            options["attn_mask"] = causal
        if "float" in self.masks:
            options["attn_mask"] = x.new_zeros(causal.shape).masked_fill(causal, -2.5)
        if "heads" in self.masks:
            each = x[:, :1, :1] * torch.linspace(-1, 1, HEADS, dtype=x.dtype)[None, :, None]
            options["attn_mask"] = (each[..., None] * causal).reshape(-1, *causal.shape).contiguous()
        if "hint" in self.masks:
            options["is_causal"] = True
        return args, options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        args, options = self.arguments(x)
        out, weights = self.attention(*args, **options)
        return out * (1.0 + weights.square().sum((1, 2))[:, None, None]) if self.reads else out


CASES = {
    "self": {},
    "self with weights": {"weights": True},
    "without biases": {"bias": False},
    "cross": {"kind": "cross"},
    "cross with weights": {"kind": "cross", "weights": True, "masks": "padding"},
    "three inputs": {"kind": "three"},
    "query is key": {"kind": "query is key"},
    "own widths": {"kind": "three", "kdim": 3, "vdim": 5},
    "own widths without biases": {"kind": "three", "kdim": 3, "vdim": 5, "bias": False, "weights": True},
    "own width of keys": {"kind": "three", "kdim": 3},
    "padding": {"masks": "padding"},
    "causal": {"masks": "causal"},
    "causal by hint": {"masks": "causal hint"},
    "causal by hint with weights": {"masks": "causal hint", "weights": True},
    "causal by hint with padding": {"masks": "causal hint padding"},
    "additive": {"masks": "float padding"},
    "additive with weights": {"masks": "float padding", "weights": True},
    "of every head": {"masks": "heads"},
    "of every head with padding": {"masks": "heads padding", "weights": True},
    "dropout": {"dropout": 0.3},
    "dropout with weights": {"dropout": 0.3, "weights": True, "masks": "padding causal"},
    "dropout of cross": {"dropout": 0.3, "kind": "cross", "masks": "padding"},
    "dropout of a causal hint": {"dropout": 0.3, "masks": "causal hint"},
    "dropout of every head": {"dropout": 0.3, "masks": "heads padding"},
    "one head": {"num_heads": 1},
}  # fmt: skip


def stacked(*layers: nn.Module) -> nn.Module:
    return Stack(list(layers), WIDTH, lambda x: x.mean(1)).double()


def randomized(model: nn.Module) -> nn.Module:
    for p in model.parameters():
        if p.dim() == 1:
            nn.init.normal_(p, std=0.5)  # torch starts these biases at zero
    return model


@pytest.mark.one_in(7)
@pytest.mark.parametrize("examples", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_every_option_is_exact_and_takes_no_second_run(case: str, examples: int) -> None:
    options = CASES[case]
    torch.manual_seed(0)
    model = randomized(stacked(nn.Linear(WIDTH, WIDTH), Attention(**options), Attention(**options)))
    redraw = 7 if options.get("dropout") else None
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackNotice)
        compare(
            model, batch_of(LENGTH, WIDTH, rows=9 * examples), cross_entropy, examples=examples, layers="layers", redraw=redraw
        )


@pytest.mark.parametrize("case", [case for case in CASES if "dropout" not in case])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_the_rule_computes_is_what_the_module_returns(case: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = randomized(Attention(**CASES[case]).to(dtype))
    attention = module.attention
    rule = AttentionRule("attention", attention)
    args, kwargs = module.arguments(batch_of(LENGTH, WIDTH)["x"].to(dtype))
    call = Call(args, kwargs, 8, 1)
    given = _SIGNATURE.bind(attention, *args, **kwargs)
    given.apply_defaults()
    _, context = rule._between(call, given.arguments, torch.ones(8, LENGTH, WIDTH, dtype=dtype), backward=True)
    torch.testing.assert_close(attention.out_proj(context), attention(*args, **kwargs)[0])


@pytest.mark.parametrize("mask", ["key_padding_mask", "attn_mask", "both"])
@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_row_that_may_attend_to_nothing_gets_zero_where_torch_gives_zero(mask: str, backward: bool, dropout: float) -> None:
    """Without weights torch's product gives zero there, not NaN, forward and backward, and with dropout too."""
    torch.manual_seed(0)
    attention = randomized(nn.MultiheadAttention(WIDTH, HEADS, dropout=dropout, batch_first=True)).double()
    x = batch_of(LENGTH, WIDTH)["x"].double()
    rule = AttentionRule("attention", attention)
    padding = torch.zeros(8, LENGTH, dtype=torch.bool)
    padding[1] = mask != "attn_mask"
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(0)  # the first position sees nothing
    kwargs = {
        "key_padding_mask": None if mask == "attn_mask" else padding,
        "attn_mask": None if mask == "key_padding_mask" else causal,
        "need_weights": False,
    }
    given = _SIGNATURE.bind(attention, x, x, x, **kwargs)
    given.apply_defaults()
    grad = torch.randn(8, LENGTH, WIDTH, dtype=torch.float64)
    sandbox = Sandbox(attention, frozenset(map(id, attention.parameters())), bytes(16))
    for rows in (3, 2):
        with sandbox.enter(0, names_of(rows), learning=True):
            fewer = {k: v[:rows] if k == "key_padding_mask" and v is not None else v for k, v in kwargs.items()}
            attention(x[:rows], x[:rows], x[:rows], **fewer)
    sandbox.layouts.decide()
    with sandbox.enter(1, names_of(8)):
        expected = attention(x, x, x, **kwargs)[0]
        call = Call((x, x, x), kwargs, 8, 1, draws=sandbox.since(0))
    assert rule._fits(call, given.arguments) and bool(call.draws) is (dropout > 0)
    maps, context = rule._between(call, given.arguments, grad, backward=backward)
    assert bool(torch.isfinite(expected).all()), "torch gives zero to such a row"
    torch.testing.assert_close(attention.out_proj(context), expected)
    if backward:
        expected.backward(grad)
        found = sum(b.flatten(0, 1).T @ a.flatten(0, 1) for a, b in maps)
        torch.testing.assert_close(found, attention.in_proj_weight.grad)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("examples", [1, 2])
def test_the_transformer_of_torch_takes_no_generic_path(norm_first: bool, examples: int) -> None:
    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": 12, "dropout": 0.2, "batch_first": True}
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer, norm_first=norm_first), 2)
            self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer, norm_first=norm_first), 2)
            self.head = nn.Linear(WIDTH, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            padding = torch.zeros(x.shape[:2], dtype=torch.bool)
            padding[:, -1] = x[:, -1, 0] > 0
            memory = self.encoder(x, src_key_padding_mask=padding)
            mask = nn.Transformer.generate_square_subsequent_mask(3, dtype=x.dtype)
            out = self.decoder(x[:, :3].sin(), memory, tgt_mask=mask, tgt_is_causal=True, memory_key_padding_mask=padding)
            return self.head(out.mean(1))

    torch.manual_seed(0)
    batch = batch_of(LENGTH, WIDTH, rows=9 * examples)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackNotice)
        compare(Translator().double(), batch, cross_entropy, examples=examples, layers="encoder.layers", redraw=7)


def test_a_loss_of_the_weights_is_exact_by_the_generic_path() -> None:
    torch.manual_seed(0)
    model = randomized(stacked(nn.Linear(WIDTH, WIDTH), Attention(reads=True, masks="padding")))
    compare(model, batch_of(LENGTH, WIDTH, rows=9), cross_entropy, layers="layers")


class Biased(nn.MultiheadAttention):
    """A subclass with a forward of its own."""

    def forward(self, *args, **kwargs):
        out, weights = super().forward(*args, **kwargs)
        return out * 2.0, weights


class LoraLike(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + x


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, add_bias_kv=True),
        lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, add_zero_attn=True),
        lambda: Biased(WIDTH, HEADS, batch_first=True),
        lambda: nn.utils.parametrizations.weight_norm(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), "in_proj_weight"),
    ],
)
def test_rare_kinds_keep_the_generic_path(make) -> None:
    module = make()
    assert not serves(module)
    rule = rule_of("attention", module, frozenset(name for name, _ in module.named_parameters()))
    assert isinstance(rule, GenericRule) and rule.slow and rule.whole


def test_an_output_projection_of_another_kind_keeps_the_generic_path() -> None:
    module = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    module.out_proj = LoraLike(WIDTH, WIDTH)
    assert not serves(module)


def frozen(part: str) -> nn.Module:
    torch.manual_seed(0)
    model = randomized(stacked(nn.Linear(WIDTH, WIDTH), Attention(), Attention(kind="three", kdim=3, vdim=5)))
    for name, p in model.named_parameters():
        if part in name:
            p.requires_grad_(False)
    return model


@pytest.mark.one_in(3)
@pytest.mark.parametrize("part", ["in_proj", "out_proj", "_proj_weight", "bias", "out_proj.weight", "k_proj_weight"])
def test_parts_of_it_may_be_frozen(part: str) -> None:
    compare(frozen(part), batch_of(LENGTH, WIDTH, rows=9), cross_entropy, layers="layers")


def test_a_module_used_twice_is_the_sum_of_both_uses() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Attention(kind="cross")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(torch.tanh(self.inner(x)))

    torch.manual_seed(0)
    compare(randomized(stacked(Twice())), batch_of(LENGTH, WIDTH, rows=9), cross_entropy, layers="layers")


@pytest.mark.parametrize("fault", ["queries for keys", "an unscaled product", "no mask"])
def test_a_fault_in_the_rule_is_seen(fault: str, monkeypatch) -> None:
    attend, mask = AttentionRule._attend, AttentionRule._mask
    if fault == "queries for keys":
        monkeypatch.setattr(AttentionRule, "_attend", lambda self, call, given, q, k, v: attend(self, call, given, k, q, v))
    elif fault == "an unscaled product":
        monkeypatch.setattr(AttentionRule, "_attend", lambda self, call, given, q, k, v: attend(self, call, given, q * 2, k, v))
    else:
        monkeypatch.setattr(AttentionRule, "_mask", lambda self, *args: (None, mask(self, *args)[1]))
    torch.manual_seed(0)
    model = randomized(stacked(nn.Linear(WIDTH, WIDTH), Attention(masks="padding causal"), Attention(masks="padding causal")))
    with pytest.raises((UnsupportedModule, AssertionError)):
        compare(model, batch_of(LENGTH, WIDTH, rows=9), cross_entropy, layers="layers")
