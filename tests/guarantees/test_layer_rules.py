"""Every rule for a layer equals the naive per-contribution loop, in float64, to 1e-10; what has no rule says so."""

import gc
import random
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from dptrain import PrivateTraining  # noqa: E402
from dptrain.errors import UnsupportedModule  # noqa: E402
from dptrain.routing import FallbackNotice, Router  # noqa: E402
from tests.reference.compare import compare, random_schedule  # noqa: E402
from tests.worlds.training import make_world  # noqa: E402

WIDTH = 6


def cross_entropy(model: nn.Module, batch: dict) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["labels"], reduction="none")


class Stack(nn.Module):
    """``layers``, each called in turn; then ``reduce`` to features, then a linear head."""

    def __init__(self, layers: list[nn.Module], features: int, reduce) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(features, 3)
        self.reduce = reduce

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(self.reduce(x))


def batch_of(*shape: int, rows: int = 8, seed: int = 0) -> dict:
    g = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(rows, *shape, generator=g, dtype=torch.float64),
        "labels": torch.randint(0, 3, (rows,), generator=g),
    }


def exact_without_notice(*args, **kwargs):
    """The comparison, with every module served by a rule of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackNotice)
        return compare(*args, **kwargs)


CONVOLUTIONS = {
    "conv1d": (nn.Conv1d, (4, 9), {"kernel_size": 3}),
    "conv1d_same_even": (nn.Conv1d, (4, 9), {"kernel_size": 4, "padding": "same", "dilation": 2}),
    "conv1d_wide": (nn.Conv1d, (4, 4), {"kernel_size": 3, "padding": 1, "stride": 4}),
    "conv2d": (nn.Conv2d, (4, 7, 6), {"kernel_size": 3}),
    "conv2d_strided": (nn.Conv2d, (4, 9, 8), {"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 2)}),
    "conv2d_same_dilated": (nn.Conv2d, (4, 7, 6), {"kernel_size": (3, 2), "padding": "same", "dilation": (2, 3)}),
    "conv2d_valid_no_bias": (nn.Conv2d, (4, 5, 5), {"kernel_size": 2, "padding": "valid", "bias": False}),
    "conv2d_reflect": (nn.Conv2d, (4, 5, 6), {"kernel_size": 3, "padding": (1, 2), "padding_mode": "reflect"}),
    "conv2d_circular": (nn.Conv2d, (4, 5, 6), {"kernel_size": 3, "padding": (2, 1), "padding_mode": "circular"}),
    "conv2d_replicate_same": (nn.Conv2d, (4, 5, 6), {"kernel_size": 4, "padding": "same", "padding_mode": "replicate"}),
    "conv2d_grouped": (nn.Conv2d, (4, 6, 5), {"kernel_size": 3, "groups": 2, "padding": 1}),
    "conv2d_depthwise": (nn.Conv2d, (4, 6, 5), {"kernel_size": 3, "groups": 4, "stride": 2}),
    "conv2d_pointwise": (nn.Conv2d, (4, 6, 5), {"kernel_size": 1}),
    "conv3d": (nn.Conv3d, (4, 4, 5, 4), {"kernel_size": 2, "stride": (1, 2, 1), "dilation": (2, 1, 1), "padding": 1}),
    "conv3d_grouped_circular": (
        nn.Conv3d, (4, 4, 3, 4), {"kernel_size": 3, "groups": 2, "padding": 1, "padding_mode": "circular"},
    ),
}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("examples", [1, 2])
@pytest.mark.parametrize("case", list(CONVOLUTIONS))
def test_convolutions(case: str, examples: int) -> None:
    kind, shape, options = CONVOLUTIONS[case]
    torch.manual_seed(2)
    first = kind(shape[0], 8, **options)
    model = Stack([nn.Identity(), first], 8, lambda x: x.flatten(2).mean(2)).double()
    exact_without_notice(
        model, batch_of(*shape, rows=7 * examples), cross_entropy, examples=examples, seed=case, layers="layers"
    )


def test_a_convolution_used_twice_at_different_sizes_is_the_sum_of_both_uses() -> None:
    """One use is cheaper as a product, the other as patches; their sum has neither form alone."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            once = torch.tanh(self.conv(x))
            return self.conv(once[..., ::8, ::8])

    torch.manual_seed(0)
    model = Stack([Twice()], 3, lambda x: x.flatten(2).mean(2)).double()
    exact_without_notice(model, batch_of(3, 9, 9), cross_entropy, layers="layers")


def test_an_unbatched_picture_is_refused() -> None:
    class Unbatched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x.transpose(0, 1).reshape(3, -1, 5)).reshape(3, len(x), -1).transpose(0, 1)

    model = Stack([Unbatched()], 75, lambda x: x.flatten(1)).double()
    with pytest.raises(UnsupportedModule, match="BATCH_DIMENSION"):
        compare(model, batch_of(3, 5, 5), cross_entropy, layers="layers")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("examples", [1, 2])
@pytest.mark.parametrize(
    "norm",
    [
        nn.GroupNorm(2, WIDTH),
        nn.InstanceNorm2d(WIDTH, affine=True),
        nn.BatchNorm2d(WIDTH).eval(),
        nn.LayerNorm([WIDTH, 5, 4]),
        nn.LayerNorm(4, bias=False),
        nn.LayerNorm(4, elementwise_affine=False),
        nn.GroupNorm(3, WIDTH, affine=False),
    ],
    ids=lambda n: f"{type(n).__name__}-{sum(1 for _ in n.parameters())}",
)
def test_norms(norm: nn.Module, examples: int) -> None:
    norm.double()
    for p in norm.parameters():
        nn.init.normal_(p)
    for buffer in norm.buffers():
        if buffer.is_floating_point():
            nn.init.uniform_(buffer, 0.5, 2.0)
    model = Stack([nn.Conv2d(3, WIDTH, 1), norm], WIDTH, lambda x: x.flatten(2).square().mean(2)).double()
    exact_without_notice(model, batch_of(3, 5, 4, rows=7 * examples), cross_entropy, examples=examples, layers="layers")


class Residual(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(2, out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(2, out)
        self.relu = nn.ReLU(inplace=True)
        self.short = nn.Conv2d(channels, out, 1, stride=stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += self.short(x)
        return self.relu(y)


class ResNet(nn.Module):
    """A residual network with group normalisation and activations in place, as torchvision builds them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(inplace=True))
        self.layers = nn.ModuleList([Residual(4, 4, 1), Residual(4, 8, 2), Residual(8, 16, 2)])
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("frozen", [False, True])
def test_a_residual_network_with_group_norm(frozen: bool) -> None:
    torch.manual_seed(0)
    model = ResNet().double()
    if frozen:
        model.stem.requires_grad_(False)
        model.layers[0].requires_grad_(False)
    exact_without_notice(model, batch_of(3, 8, 8), cross_entropy, layers="layers", seed=frozen)


def test_linear_layers_on_four_dimensions() -> None:
    torch.manual_seed(0)
    model = Stack([nn.Linear(4, 5), nn.Linear(5, 4), nn.LayerNorm(4)], 4, lambda x: x.flatten(1, 2).mean(1)).double()
    exact_without_notice(model, batch_of(2, 3, 4, rows=14), cross_entropy, examples=2, layers="layers")


def test_hugging_faces_conv1d_on_four_dimensions() -> None:
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    model = Stack([Conv1D(5, 4), Conv1D(4, 5)], 4, lambda x: x.flatten(1, 2).mean(1)).double()
    exact_without_notice(model, batch_of(2, 3, 4), cross_entropy, layers="layers")


def test_a_linear_layer_called_by_keyword() -> None:
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(input=x)

    torch.manual_seed(0)
    model = Stack([Keyword(), Keyword()], 4, lambda x: x.mean(1)).double()
    exact_without_notice(model, batch_of(3, 4), cross_entropy, layers="layers")


class Tokens(nn.Module):
    def __init__(self, padding_idx: int | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4, padding_idx=padding_idx)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.head = nn.Linear(4, 3)
        self.skip: set[int] = set()
        self.repeat = 1

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for i, layer in enumerate(self.layers):
            for _ in range(0 if i in self.skip else self.repeat):
                x = torch.tanh(layer(x)) + self.embed(ids.flip(1))
        return self.head(x.mean(1))


def token_batch(rows: int = 8) -> dict:
    g = torch.Generator().manual_seed(4)
    return {"x": torch.randint(0, 9, (rows, 6), generator=g), "labels": torch.randint(0, 3, (rows,), generator=g)}


def test_the_padding_row_receives_nothing() -> None:
    torch.manual_seed(0)
    model = Tokens(padding_idx=2).double()
    nn.init.normal_(model.embed.weight)
    found = exact_without_notice(model, token_batch(), cross_entropy, layers="layers")
    place = next(i for i, (_, t) in enumerate(found.router.tensors) if t.name == "embed.weight")
    assert not bool(found.sums[place][2].any()) and bool(found.sums[place][3].any())


@pytest.mark.parametrize("repeat", [2, 3])
def test_modules_used_several_times(repeat: int) -> None:
    torch.manual_seed(0)
    model = Tokens().double()
    model.repeat = repeat
    exact_without_notice(model, token_batch(14), cross_entropy, examples=2, layers="layers", seed=repeat)


def test_a_layer_that_is_dropped_in_a_step_receives_nothing() -> None:
    """LayerDrop: the draw is the batch's, not the content's."""
    torch.manual_seed(0)
    model = Tokens().double()

    def losses(model: nn.Module, batch: dict) -> torch.Tensor:
        model.skip = set() if len(batch["x"]) == 3 else {1}  # all run in the probes, one is dropped afterwards
        return cross_entropy(model, batch)

    found = exact_without_notice(model, token_batch(), losses, layers="layers")
    for (_, tensor), total in zip(found.router.tensors, found.sums, strict=True):
        assert bool(total.any()) == (not tensor.name.startswith("layers.1."))


class Attention(nn.Module):
    def __init__(self, **options) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)
        self.masked = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype) if self.masked else None
        padding = torch.zeros(x.shape[:2], dtype=torch.bool)
        padding[:, -1] = x[:, -1, 0] > 0
        return self.attention(x, x, x, key_padding_mask=padding, attn_mask=mask)[0]


@pytest.mark.one_in(99)
@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice", "ignore:Support for mismatched key_padding_mask")
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_attention_of_torch_itself(options: dict, training: bool) -> None:
    torch.manual_seed(0)
    layers = [Attention(**options), Attention(**options)]
    layers[1].masked = not options
    model = Stack(layers, 8, lambda x: x.mean(1)).double().train(training)
    compare(model, batch_of(5, 8, rows=14), cross_entropy, examples=2, layers="layers")


@pytest.mark.one_in(99)
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 8, "vdim": 8}], ids=str)
def test_attention_of_torch_may_have_examples_second(options: dict) -> None:
    class Second(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, **options)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.transpose(0, 1)
            return self.attention(x, x, x)[0].transpose(0, 1)

    torch.manual_seed(0)
    model = Stack([Second(), Second()], 8, lambda x: x.mean(1)).double()
    compare(model, batch_of(5, 8, rows=14), cross_entropy, examples=2, layers="layers")


@pytest.mark.one_in(9)
@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice", "ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_the_encoder_layer_of_torch_itself(training: bool, norm_first: bool) -> None:
    """In eval its fast path would pass over every hook inside."""
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, norm_first=norm_first) for _ in range(3)]
    model = Stack(layers, 8, lambda x: x.mean(1)).double().train(training)
    compare(model, batch_of(5, 8, rows=14), cross_entropy, examples=2, layers="layers", seed=(training, norm_first))


@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")
def test_the_encoder_of_torch_is_exact_in_training_and_refused_where_it_nests() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)
            self.head = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            padding = torch.zeros(x.shape[:2], dtype=torch.bool)
            padding[:, -1] = x[:, -1, 0] > 0
            return self.head(self.encoder(x, src_key_padding_mask=padding)[:, 0])

    torch.manual_seed(0)
    compare(Encoder().double().train(), batch_of(5, 8), cross_entropy, layers="encoder.layers")
    with pytest.raises(UnsupportedModule, match=r"NESTED_TENSOR.*enable_nested_tensor=False"):
        nested_in_eval(Encoder().double().eval())


def nested_in_eval(model: nn.Module) -> None:
    """A microbatch after the probes: parameters are out of autograd, so the encoder may nest."""
    router = Router(model, random_schedule(model, random.Random(0), 2, "encoder.layers"))
    model.requires_grad_(False)
    router.attach()
    router.arm(8, 1, torch.ones(8, len(router.schedule.blocks), dtype=torch.bool))
    cross_entropy(model, batch_of(5, 8))


class Recurrent(nn.Module):
    def __init__(self, kind: str, last: bool, **options) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(5, 6, num_layers=2, batch_first=True, **options)
        self.last = last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, state = self.rnn(x)
        hidden = state[0] if isinstance(state, tuple) else state
        return out.mean(1) + (hidden[-1].repeat(1, out.shape[-1] // hidden.shape[-1]) if self.last else 0.0)


@pytest.mark.one_in(8)
@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")
@pytest.mark.parametrize(
    ("kind", "options", "last"),
    [
        ("LSTM", {}, True),
        ("LSTM", {"bidirectional": True}, False),
        ("LSTM", {"proj_size": 3}, False),
        ("GRU", {}, True),
        ("GRU", {"bias": False}, False),
        ("RNN", {"nonlinearity": "relu"}, True),
    ],
    ids=str,
)
@pytest.mark.parametrize("examples", [1, 2])
def test_recurrent_networks(kind: str, options: dict, last: bool, examples: int) -> None:
    torch.manual_seed(0)
    layer = Recurrent(kind, last, **options)
    features = (options.get("proj_size") or 6) * (2 if options.get("bidirectional") else 1)
    model = Stack([layer], features, lambda x: x).double()
    compare(model, batch_of(4, 5, rows=8 * examples), cross_entropy, examples=examples, layers="layers", seed=kind)


@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")
def test_a_length_equal_to_the_number_of_rows_is_not_taken_for_it() -> None:
    """Decided by the probes; eleven contributions of length eight, then eight at once."""

    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(8, 4))

        def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
            return x * self.scale + table[:, None] * self.scale.square()

    class Caller(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Shift()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x, torch.arange(8.0, dtype=x.dtype))

    torch.manual_seed(0)
    compare(Stack([Caller()], 4, lambda x: x.mean(1)).double(), batch_of(8, 4, rows=11), cross_entropy, layers="layers")


def test_packed_sequences_are_refused_and_recurrent_dropout_is_exact() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(5, 6, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            lengths = torch.full((len(x),), x.shape[1])
            return self.rnn(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))[1][-1]

    with pytest.warns(FallbackNotice), pytest.raises(UnsupportedModule):
        compare(Stack([Packed()], 6, lambda x: x).double(), batch_of(4, 5), cross_entropy, layers="layers")
    with pytest.warns(FallbackNotice):
        compare(
            Stack([Recurrent("LSTM", False, dropout=0.1)], 6, lambda x: x).double(),
            batch_of(4, 5),
            cross_entropy,
            layers="layers",
            redraw=1,
        )


class Experts(nn.Module):
    """Dropless top-1 routing, tokens gathered by expert: their rows are nobody's examples."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, 4)
        weight, chosen = self.gate(flat).softmax(-1).max(-1)
        out = torch.zeros_like(flat)
        for k, expert in enumerate(self.experts):
            rows = torch.nonzero(chosen == k).flatten()
            if len(rows):
                out = out.index_add(0, rows, expert(flat[rows]) * weight[rows, None])
        return out.view_as(x)


@pytest.mark.one_in(99)
@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")
@pytest.mark.parametrize("examples", [1, 2])
def test_experts_with_dropless_routing(examples: int) -> None:
    torch.manual_seed(0)
    model = Stack([Experts(), Experts()], 4, lambda x: x.mean(1)).double()
    compare(model, batch_of(5, 4, rows=8 * examples), cross_entropy, examples=examples, layers="layers")


class LowRank(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(4, 2))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.b @ self.a


def low_rank() -> nn.Module:
    module = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(module, "weight", LowRank())
    return module


PARAMETRIZED = {
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    "weight norm of an embedding's kin": lambda: nn.utils.parametrizations.weight_norm(nn.LayerNorm(4), dim=None),
    "orthogonal": lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)),
    "low rank": low_rank,
    "convolution": lambda: nn.utils.parametrizations.weight_norm(nn.Conv1d(5, 5, 3, groups=5, padding=1), dim=2),
}


@pytest.mark.one_in(7)
@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")
@pytest.mark.parametrize("examples", [1, 2])
@pytest.mark.parametrize("case", PARAMETRIZED)
def test_parametrized_modules(case: str, examples: int) -> None:
    """Their tensors are used by modules that make the weight, which see no examples."""
    torch.manual_seed(0)
    model = Stack([nn.Linear(4, 4), PARAMETRIZED[case](), PARAMETRIZED[case]()], 4, lambda x: x.mean(1)).double()
    compare(model, batch_of(5, 4, rows=9 * examples), cross_entropy, examples=examples, layers="layers")


@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")
def test_parametrized_recurrent_networks_are_refused() -> None:
    layer = Recurrent("LSTM", False)
    nn.utils.parametrizations.weight_norm(layer.rnn, "weight_hh_l0")
    with pytest.raises(UnsupportedModule):
        compare(Stack([layer], 6, lambda x: x).double(), batch_of(4, 5), cross_entropy, layers="layers")


class Several(nn.Module):
    """Returns a value and what the value was made of; the caller uses both."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        middle = torch.tanh(x * self.scale)
        return middle * self.scale, {"middle": middle, "table": torch.outer(self.scale, self.scale)}


class UsesSeveral(nn.Module):
    def __init__(self, table: bool) -> None:
        super().__init__()
        self.inner = Several()
        self.table = table

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, rest = self.inner(x)
        return y + 2.0 * rest["middle"] + (rest["table"].sum(0) if self.table else 0.0)


@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")
@pytest.mark.parametrize("rows", [4, 9])
def test_outputs_that_are_made_of_each_other_are_not_counted_twice(rows: int) -> None:
    torch.manual_seed(0)
    model = Stack([UsesSeveral(False), UsesSeveral(False)], 4, lambda x: x.mean(1)).double()
    compare(model, batch_of(5, 4, rows=rows), cross_entropy, layers="layers")


@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")
def test_an_output_without_examples_that_the_loss_uses_is_refused() -> None:
    torch.manual_seed(0)
    model = Stack([UsesSeveral(True)], 4, lambda x: x.mean(1)).double()
    with pytest.raises(UnsupportedModule, match=r"BATCH_DIMENSION.*uses output 2"):
        compare(model, batch_of(5, 4), cross_entropy, layers="layers")


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, 4), nn.LayerNorm(4))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.reentrant = reentrant

    def _inside(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        return x + self.attention(x, x, x, need_weights=False)[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self._inside, x, use_reentrant=self.reentrant)


@pytest.mark.one_in(9)
@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")
@pytest.mark.parametrize("examples", [1, 2])
def test_checkpoints_that_do_not_reenter_are_exact(examples: int) -> None:
    torch.manual_seed(0)
    model = Stack([Checkpointed(False) for _ in range(3)], 4, lambda x: x.mean(1)).double()
    compare(model, batch_of(5, 4, rows=8 * examples), cross_entropy, examples=examples, layers="layers")


@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice", "ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("lowest", [False, True])
def test_checkpoints_that_reenter_are_refused(lowest: bool) -> None:
    """Without an input that requires a gradient they would lose theirs without a word."""
    layers = [Checkpointed(True)] if lowest else [nn.Linear(4, 4), Checkpointed(True)]
    with pytest.raises(UnsupportedModule, match=r"REENTRANT_CHECKPOINT.*use_reentrant=False"):
        compare(Stack(layers, 4, lambda x: x.mean(1)).double(), batch_of(5, 4), cross_entropy, layers="layers")


def test_a_checkpoint_keeps_no_inputs_of_the_modules_inside() -> None:
    """The routing hooks must not hold what the checkpoint was there to drop."""
    seen: list[weakref.ref] = []

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def _inside(self, x: torch.Tensor) -> torch.Tensor:
            hidden = torch.tanh(self.first(x))
            seen.append(weakref.ref(hidden.untyped_storage()))
            return self.second(hidden)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self._inside, x, use_reentrant=False)

    model = Stack([Watched()], 4, lambda x: x.mean(1))
    schedule = random_schedule(model, random.Random(0), 1, "layers")
    model.requires_grad_(False)
    router = Router(model, schedule)
    router.attach()
    router.arm(2, 1, torch.ones(2, len(schedule.blocks), dtype=torch.bool))
    batch = batch_of(5, 4, rows=2)
    losses = cross_entropy(model, {"x": batch["x"].float(), "labels": batch["labels"]})
    gc.collect()
    assert seen[0]() is None, "the checkpoint's inner activation is still alive after the forward"
    router.backward(losses, torch.ones(2, dtype=torch.float64))
    assert bool((router.sums.norms_sq(router.pieces, router.contributions) > 0).all())
    router.detach()


class Pictured(nn.Module):
    """One module of every kind between the layers of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv1d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(inplace=True)
        self.rnn = nn.GRU(4, 4, batch_first=True)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.back = nn.Linear(4, 8)

    def _inside(self, x: torch.Tensor) -> torch.Tensor:
        return self.rnn(self.relu(self.norm(self.conv(x[:, None]))).mT)[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = checkpoint(self._inside, x, use_reentrant=False)
        return x + self.back(self.attention(y, y, y, need_weights=False)[0].mean(1))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.extra = Pictured()
        self.head = nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids).mean(1)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(self.extra(x))


def collate(examples: list[dict]) -> dict[str, torch.Tensor]:
    return {"x": torch.tensor([e["ids"] for e in examples]), "labels": torch.tensor([e["label"] for e in examples])}


@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")
def test_a_run_passes_its_probes_and_releases_with_all_of_them(tmp_path) -> None:
    world = make_world(tmp_path, per_class=3, steps=2, rate="1")
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, progress=False) as private:
        _, _, steps = private.prepare(model, optimizer, collate, layers="layers")
        for step in steps:
            for rows in step:
                private.backward(cross_entropy(model, rows), rows)
            assert all(bool(p.grad.any()) for p in model.parameters())
            optimizer.step()
