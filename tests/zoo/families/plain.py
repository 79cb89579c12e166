"""Modules of torch itself, as somebody puts them together who uses no library of models."""

import torch
from torch import nn

from tests.zoo import losses, records
from tests.zoo.family import Family, Layers, Rows
from tests.zoo.records import LABELS, PAD, VOCABULARY

KIND = "torch itself"


class Tokens(nn.Module):
    """Embeds ids, applies ``body``, and classifies the mean over tokens; ``whole`` keeps every position."""

    def __init__(self, body: nn.Module, width: int = 16, classes: int = LABELS, *, whole: bool = False, positions: int = 0):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width, padding_idx=PAD)
        self.positions = nn.Parameter(0.02 * torch.randn(positions, width)) if positions else None
        self.body = body
        self.head = nn.Linear(width, classes)
        self.whole = whole

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embed(input_ids)
        if self.positions is not None:
            x = x + self.positions[: x.shape[1]]
        x = self.body(x, None if attention_mask is None else attention_mask == 0)
        return self.head(x if self.whole else x.mean(1))


class Transformed(nn.Module):
    """Layers of ``nn.TransformerEncoder``."""

    def __init__(self, *, batch_first: bool = True, norm_first: bool = False, causal: bool = False):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=batch_first, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(16), enable_nested_tensor=False)
        self.batch_first, self.causal = batch_first, causal

    def forward(self, x: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if self.causal else None
        if padding is not None:
            padding = torch.zeros(padding.shape).masked_fill(padding, -torch.inf)
        if self.batch_first:
            return self.encoder(x, mask=mask, src_key_padding_mask=padding)
        return self.encoder(x.transpose(0, 1), mask=mask, src_key_padding_mask=padding).transpose(0, 1)


class Recurrent(nn.Module):
    """A recurrent module that returns its outputs alone."""

    def __init__(self, kind: type[nn.RNNBase], **options):
        super().__init__()
        options = {"batch_first": True, **options}
        self.rnn = kind(16, 16 // (2 if options.get("bidirectional") else 1), **options)

    def forward(self, x: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        return self.rnn(x)[0] if self.rnn.batch_first else self.rnn(x.transpose(0, 1))[0].transpose(0, 1)


class Convolved(nn.Module):
    """Convolutions over time, causal by padding."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(16, 16, 3, padding=2, dilation=1) for _ in range(2))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        x = x.mT
        for layer in self.layers:
            x = x + self.drop(torch.relu(layer(x)[..., : x.shape[-1]]))
        return x.mT


class Attending(nn.Module):
    """Bare ``nn.MultiheadAttention`` with a residual."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True) for _ in range(2))

    def forward(self, x: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        return x


class Mixing(nn.Module):
    """Feed-forward layers over tokens whose additions and activations are written in place."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(16), "up": nn.Linear(16, 24), "down": nn.Linear(24, 16)}) for _ in range(2)
        )

    def forward(self, x: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        for layer in self.layers:
            y = layer["down"](layer["up"](layer["norm"](x)).relu_())
            y += x
            x = y
        return x


class Whole(nn.Module):
    """``nn.Transformer``, encoder and decoder."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16, padding_idx=PAD)
        self.both = nn.Transformer(16, 2, 2, 2, 24, batch_first=True)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.head(self.both(self.embed(source), self.embed(target), tgt_mask=mask, tgt_is_causal=True))


class Block(nn.Module):
    """A residual block of a small network for pictures."""

    def __init__(self, width: int, norm):
        super().__init__()
        self.one = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.two = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.first, self.second = norm(width), norm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(self.one(x)))
        return torch.relu(x + self.second(self.two(y)))


class InPlace(Block):
    """The same with additions and activations in place, as torchvision writes them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.relu(self.first(self.one(x)), inplace=True)
        y = self.second(self.two(y))
        y += x
        return nn.functional.relu(y, inplace=True)


def residual(norm, block: type[Block] = Block):
    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Sequential(block(8, norm), block(8, norm)),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, LABELS),
        )  # fmt: skip

    return make


class Unet(nn.Module):
    """A small U-Net with group normalisation: a label for every pixel."""

    def __init__(self):
        super().__init__()
        norm = lambda width: nn.GroupNorm(4, width)  # noqa: E731
        self.into = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList([Block(8, norm), Block(8, norm)])
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = torch.relu(self.into(x))
        low = torch.relu(self.down(high))
        for block in self.blocks:
            low = block(low)
        return self.out(torch.cat([high, self.up(low)], 1))


class Table(nn.Module):
    """Embedded categories beside numbers, then a perceptron."""

    def __init__(self):
        super().__init__()
        self.embeds = nn.ModuleList([nn.Embedding(6, 4), nn.Embedding(4, 4)])
        self.layers = nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, LABELS)

    def forward(self, categories: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        known = [embed(categories[:, i]) for i, embed in enumerate(self.embeds)]
        return self.head(self.layers(torch.cat([*known, numbers], 1)))


class Columns(nn.Module):
    """A transformer over the columns of a table, as FT-Transformer has it."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 16)
        self.scale, self.shift = nn.Parameter(torch.randn(5, 16)), nn.Parameter(torch.zeros(5, 16))
        self.cls = nn.Parameter(torch.zeros(1, 1, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, LABELS)

    def forward(self, categories: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        places = categories + torch.tensor([0, 6])
        known = numbers[..., None] * self.scale + self.shift
        x = torch.cat([self.cls.expand(len(numbers), 1, 16), self.embed(places), known], 1)
        return self.head(self.body(x)[:, 0])


def _paint(model: nn.Module, rows: Rows) -> torch.Tensor:
    return nn.functional.cross_entropy(model(rows["pixel_values"]), rows["labels"], reduction="none").mean((1, 2))


def _translate(model: nn.Module, rows: Rows) -> torch.Tensor:
    return losses.each(model(rows["input_ids"], rows["decoder_input_ids"]), rows["labels"])


def _forecast(model: nn.Module, rows: Rows) -> torch.Tensor:
    found = model(rows["past_values"])[0][:, -1].view(-1, 4, 2)
    return (found - rows["future"]).square().flatten(1).mean(1)


def tokens(name: str, body, *, layers: tuple[Layers, ...] = (None,), **options) -> Family:
    """A classifier of texts made of torch's modules."""
    return Family(name, KIND, lambda: Tokens(body(), **options), records.text, records.labelled, losses.plain, layers,
                  model="nn.Module")  # fmt: skip


def pictures(name: str, make, *, layers: tuple[Layers, ...] = (None,), loss=losses.plain, collate=records.pictures) -> Family:
    return Family(name, KIND, make, records.picture, collate, loss, layers, model="nn.Module")


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(768, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, LABELS)
    )


LINEARS: tuple[Layers, ...] = (None, ("1", "4", "6"))

PLAIN = (
    tokens("nn.TransformerEncoder", Transformed, positions=8),
    tokens("nn.TransformerEncoder, norm first", lambda: Transformed(norm_first=True), positions=8),
    tokens("nn.TransformerEncoder, batch second", lambda: Transformed(batch_first=False), positions=8),
    Family("nn.TransformerEncoder as a language model", KIND,
           lambda: Tokens(Transformed(causal=True), classes=VOCABULARY, whole=True, positions=8), records.text, records.tokens,
           losses.plain_tokens, model="nn.Module"),
    Family("nn.Transformer", KIND, Whole, records.text, records.translated, _translate,
           (None, ("both.encoder.layers", "both.decoder.layers")), model="nn.Module"),
    tokens("nn.MultiheadAttention", Attending),
    tokens("feed-forward layers over tokens, in place", Mixing),
    tokens("nn.LSTM", lambda: Recurrent(nn.LSTM), layers=(None, ("body.rnn",))),
    tokens("nn.LSTM, two layers with dropout", lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.1),
           layers=(None, ("body.rnn",))),
    tokens("nn.LSTM, both directions", lambda: Recurrent(nn.LSTM, bidirectional=True), layers=(None, ("body.rnn",))),
    tokens("nn.LSTM, batch second", lambda: Recurrent(nn.LSTM, batch_first=False), layers=(None, ("body.rnn",))),
    tokens("nn.GRU", lambda: Recurrent(nn.GRU), layers=(None, ("body.rnn",))),
    tokens("nn.RNN", lambda: Recurrent(nn.RNN), layers=(None, ("body.rnn",))),
    tokens("convolutions over time", Convolved),
    Family("nn.LSTM forecast", KIND, lambda: nn.LSTM(2, 16, proj_size=8, batch_first=True), records.series, records.forecasts,
           _forecast, (None, ("",)), model="nn.LSTM"),
    pictures("perceptron", perceptron, layers=LINEARS),
    pictures("convolutions with group normalisation", lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.GroupNorm(4, 8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.GroupNorm(4, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, LABELS)),
        layers=(None, ("0", "3", "8"))),
    pictures("ResNet with group normalisation", residual(lambda width: nn.GroupNorm(4, width))),
    pictures("ResNet with group normalisation, in place", residual(lambda width: nn.GroupNorm(4, width), InPlace)),
    pictures("convolutions with activations in place", lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(inplace=True), nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, LABELS)),
        layers=(None, ("0", "2", "6"))),
    pictures("ResNet with instance normalisation", residual(lambda width: nn.InstanceNorm2d(width, affine=True))),
    pictures("ResNet with batch normalisation", residual(nn.BatchNorm2d)),
    pictures("U-Net with group normalisation", Unet, loss=_paint, collate=records.segmented),
    Family("perceptron over a table", KIND, Table, records.table, records.tables, losses.plain,
           (None, ("layers.0", "layers.3")), model="nn.Module"),
    Family("transformer over a table's columns", KIND, Columns, records.table, records.tables, losses.plain, model="nn.Module"),
    Family("logistic regression", KIND, lambda: nn.Sequential(nn.Flatten(), nn.Linear(768, LABELS)), records.picture,
           records.pictures, losses.plain, (None, ("1",)), model="nn.Module"),
)  # fmt: skip
