"""Predicts seconds of a step on many GPUs: compute, communication, noise and ledger, each by its formula.

Nobody has measured these seconds. The inputs say where each comes from (`Inputs`), and what `make gpu` would measure is open
until somebody runs it there. What overlaps in truth is added up here, so that no sum is too small for that.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

from dptrain.errors import ConfigError
from dptrain.geometry.shapes import Shape
from dptrain.planning.per_rank import PerRank, Ranks, per_rank

TOKENS: Final = 512
"""T of the contributions that the page and `dptrain plan` predict for, as in `make gpu`."""

RANK: Final = 16
"""R of LoRA, on every linear map but the head."""


class Source(StrEnum):
    """Where an input comes from."""

    SHEET = "vendor's sheet"
    GPU = "make gpu"
    HERE = "measured here"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder by its linear maps.

    Attributes:
        parameters: P, all of them.
        layers: L. width: Of attention, all heads together.
        maps: Linear maps with their frozen or trained weight, as (how many, D in, P out); the head is the last.
        beside: Trained parameters that are in no linear map: embeddings, norms, biases. With adapters nothing of it trains.
        adapters: Only LoRA of rank `RANK` trains.
        microbatch: Contributions of a microbatch.
    """

    parameters: int
    layers: int
    width: int
    maps: tuple[tuple[int, int, int], ...]
    beside: int
    adapters: bool = False
    microbatch: int = 4

    @property
    def products(self) -> int:
        """Weights that a token is multiplied with, adapters aside."""
        return sum(count * rows * columns for count, rows, columns in self.maps)

    @property
    def learned(self) -> tuple[tuple[int, int, int], ...]:
        """Linear maps that train: all of them, or the two of each adapter."""
        if not self.adapters:
            return self.maps
        inner = self.maps[:-1]
        return tuple(one for count, rows, columns in inner for one in ((count, rows, RANK), (count, RANK, columns)))

    @property
    def pairs(self) -> tuple[Shape, ...]:
        """Shapes of the LoRA pairs that train, none where weights do; how long their factors are nobody knows."""
        return tuple(Shape(out, into, count, RANK) for count, into, out in self.maps[:-1]) if self.adapters else ()

    @property
    def trained(self) -> int:
        """d, scheduled coordinates."""
        return sum(count * rows * columns for count, rows, columns in self.learned) + (0 if self.adapters else self.beside)

    @property
    def outside(self) -> int:
        """Parameters in no layer: embeddings and head; norms of layers are counted among them."""
        inner = sum(count * rows * columns for count, rows, columns in self.maps[:-1])
        return self.parameters - inner - (self.trained if self.adapters else 0)

    @property
    def largest(self) -> int:
        """Coordinates of the largest trained tensor."""
        return max(rows * columns for _, rows, columns in self.learned)


def _llama(width: int, layers: int, inner: int, kv: int, vocabulary: int, *, tied: bool, adapters: bool) -> Model:
    """Returns a Llama by its sizes; kv is the width of keys, and of values."""
    square, turned, keys = (2 * layers, width, width), (layers, inner, width), (2 * layers, width, kv)
    maps = (square, keys, (2 * layers, width, inner), turned, (1, width, vocabulary))
    beside = (2 * layers + 1) * width + (0 if tied else vocabulary * width)
    whole = sum(count * rows * columns for count, rows, columns in maps) + beside
    model = Model(whole, layers, width, maps, beside, adapters)
    return Model(whole + model.trained, layers, width, maps, beside, adapters) if adapters else model


_GPT2: Final = ((12, 768, 2304), (12, 768, 768), (12, 768, 3072), (12, 3072, 768), (1, 768, 50257))

MODELS: Final[Mapping[str, Model]] = {
    "gpt2-124m": Model(124_439_808, 12, 768, _GPT2, 124_439_808 - sum(n * a * b for n, a, b in _GPT2), microbatch=16),
    "llama-1b": _llama(2048, 16, 8192, 512, 128256, tied=True, adapters=False),
    "llama-8b-lora": _llama(4096, 32, 14336, 1024, 128256, tied=False, adapters=True),
    "llama-8b": _llama(4096, 32, 14336, 1024, 128256, tied=False, adapters=False),
}
"""Models by name; `tests/planning` holds their counts to those of transformers and peft."""


def _input(default: float | None, what: str, unit: str, source: Source, where: str) -> Any:
    """Declares an input with the sentence that the page says of it."""
    return field(default=default, metadata={"what": what, "unit": unit, "source": source, "where": where})


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Everything that the formulas take beside sizes, in SI units. The metadata of a field say what it is, and its source.

    None is an input that is open. `utilisation` has to be given; without `ratio` the products say what a private step costs.
    """

    bf16: float = _input(989e12, "products in bfloat16, dense", "FLOP/s", Source.SHEET, "H100 SXM; H200 has as many")
    fp32: float = _input(67e12, "products in float32, without TF32", "FLOP/s", Source.SHEET, "H100 SXM; H200 has as many")
    bandwidth: float = _input(3.35e12, "memory of the GPU", "bytes/s", Source.SHEET, "H100 SXM; H200 4,800 GB/s")
    capacity: float = _input(80e9, "memory of the GPU", "bytes", Source.SHEET, "H100 SXM; H200 141 GB")
    nvlink: float = _input(450e9, "NVLink, one way", "bytes/s", Source.SHEET, "H100 SXM: 900 GB/s both ways")
    fabric: float = _input(50e9, "network of a GPU, one way", "bytes/s", Source.SHEET, "DGX H100: a port of 400 Gb/s each")
    node: float = _input(8, "GPUs of a node", "", Source.SHEET, "HGX H100")
    utilisation: float | None = _input(
        None, "part of the FLOP/s that products reach", "", Source.GPU, "performance.md: not run yet"
    )
    ratio: float | None = _input(None, "compute, private over not private", "", Source.GPU, "performance.md: not run yet")
    cpu_ratio: float = _input(1.27, "the same on a CPU, float32 on both sides", "", Source.HERE, "performance.md, `bert_full`")
    noise: float = _input(6.6e-9, "noise of a coordinate, on two threads of the host", "ns", Source.HERE, "performance.md")
    window: float = _input(3.0e-3, "charge and settle of a window, SQLite", "ms", Source.HERE, "performance.md")
    steps: float = _input(16, "steps of a window", "", Source.ASSUMED, "default of `window_steps`")
    hop: float = _input(0.4e-3, "message from rank to rank, once a step", "ms", Source.HERE, "below: two processes, gloo")


ASSUMED: Final = Inputs(utilisation=0.4)
"""Inputs of the page's tables: what is open is set to a guess that somebody has to replace."""


@dataclass(frozen=True, slots=True)
class Step:
    """Predicted seconds of one step at one rank.

    Attributes:
        plain_compute, plain_communication: Of the same step without privacy, gradients reduced over a ring.
    """

    compute: float
    communication: float
    noise: float
    ledger: float
    plain_compute: float
    plain_communication: float

    @property
    def seconds(self) -> float:
        """Of the whole step, nothing overlapped."""
        return self.compute + self.communication + self.noise + self.ledger

    @property
    def plain(self) -> float:
        """Of the whole step without privacy."""
        return self.plain_compute + self.plain_communication

    @property
    def ratio(self) -> float:
        """Of the two: how much longer the private step takes."""
        return self.seconds / self.plain


def ranks_of(model: Model, contributions: float, processes: int, *, sharded: bool) -> Ranks:
    """Returns the sizes of a run of a known model, under bfloat16, at exactness `fast` with AdamW."""
    return Ranks(
        processes=processes, parameters=model.parameters, trained=model.trained, contributions=contributions,
        microbatch=model.microbatch, layers=model.layers, outside=model.outside, largest=model.largest, sharded=sharded,
        half=True,
    )  # fmt: skip


def fits(ranks: Ranks, inputs: Inputs) -> bool:
    """Tells whether what a rank holds beside activations leaves room on its GPU."""
    return per_rank(ranks).peak_bytes < inputs.capacity


def communication(ranks: Ranks, inputs: Inputs) -> float:
    """Predicts the seconds in which a rank sends what a step sends, over the links of the sheet."""
    return sum((_ring if one.ring else _pairs)(one.bytes, ranks, inputs) for one in per_rank(ranks).sent)


def seconds(model: Model, ranks: Ranks, inputs: Inputs, tokens: int) -> Step:
    """Predicts the time of one step; a pure function.

    Args:
        model: What is trained. ranks: Its sizes in a run, as `ranks_of` makes them. tokens: T of a contribution, padding too.
        inputs: Rates of the machine and of this program.

    Raises:
        ConfigError: OPEN_INPUT, the utilisation is not given, and nothing has measured it; SIZES, no token.
    """
    if inputs.utilisation is None:
        raise ConfigError("OPEN_INPUT", "nobody has measured the utilisation on a GPU (make gpu); give Inputs(utilisation=...)")
    if tokens < 1:
        raise ConfigError("SIZES", f"{tokens} tokens a contribution, expected 1 or more")
    each = ranks.each * tokens
    through, gradients, float32 = _operations(model, tokens)
    bf16, fp32 = inputs.bf16 * inputs.utilisation, inputs.fp32 * inputs.utilisation
    plain = each * (through + gradients) / bf16
    if inputs.ratio is not None:
        compute = plain * inputs.ratio
    else:
        compute = each * (through / bf16 + float32 / fp32) + ranks.microbatches * _added(ranks) / inputs.bandwidth
    return Step(
        compute=compute,
        communication=communication(ranks, inputs),
        noise=math.ceil(ranks.trained / ranks.processes) * inputs.noise,
        ledger=inputs.window / inputs.steps + (ranks.processes - 1) * inputs.hop,
        plain_compute=plain,
        plain_communication=_ring(per_rank(ranks).plain_bytes, ranks, inputs),
    )


def as_json(ranks: Ranks, per: PerRank, step: Step | None) -> dict[str, Any]:
    """Returns what `--json` prints of a rank: sizes, every part with its formula, and seconds if the model is known."""
    sizes = asdict(ranks) | {"contributions_each": ranks.each, "microbatches": ranks.microbatches}
    found = sizes | asdict(per) | {"sent_seconds_h100": communication(ranks, ASSUMED)}
    if step is not None:
        found["step_h100"] = asdict(step) | {"seconds": step.seconds, "ratio": step.ratio, "tokens": TOKENS}
        found["inputs_h100"] = asdict(ASSUMED)
    return found


def _operations(model: Model, tokens: int) -> tuple[float, float, float]:
    """Returns operations per token: through the model, weight gradients, and what a private step forms in float32 instead.

    Through the model goes a token forward, and its gradient back: 4 for every weight, and 12 L T width for attention. A weight
    gradient is 2 more. In float32 stand the weighted sum, 2, and where the factors are stored, the smaller way at this T, the
    Gram matrices of the norm: 2 T (D + P) of a map.
    """
    learned = sum(count * rows * columns for count, rows, columns in model.learned)
    weights = model.products + (learned if model.adapters else 0)
    factored = sum(
        count * 2 * tokens * (rows + columns) for count, rows, columns in model.learned
        if rows * columns > tokens * (rows + columns)
    )  # fmt: skip
    return 4 * weights + 12 * model.layers * tokens * model.width, 2 * learned, 2 * learned + factored


def _added(ranks: Ranks) -> float:
    """Returns bytes that go through memory where the weighted sum of a microbatch is formed and added to float64."""
    return 8 * ranks.trained + 16 * math.ceil(ranks.trained / (ranks.processes if ranks.sharded else 1))


def _ring(sent: float, ranks: Ranks, inputs: Inputs) -> float:
    """Returns seconds over a ring, which crosses between nodes by all ports of a node together."""
    inside = ranks.processes <= inputs.node
    return sent / (inputs.nvlink if inside else min(inputs.nvlink, inputs.node * inputs.fabric))


def _pairs(sent: float, ranks: Ranks, inputs: Inputs) -> float:
    """Returns seconds where every pair of ranks has bytes of its own: those to other nodes all pass the port of their rank."""
    others = ranks.processes - 1
    if not others:
        return 0.0
    inside = min(inputs.node, ranks.processes) - 1
    return sent * (inside / others / inputs.nvlink + (others - inside) / others / inputs.fabric)
