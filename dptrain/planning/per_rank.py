"""Predicts what one rank of a run in several processes holds in memory, and what it sends.

Letters: P parameters, E of them outside of layers, d scheduled (trained) coordinates, M of them in the largest tensor, W ranks,
L layers, m microbatches of a rank in a step. Bytes of one number: s of the optimizer's state, w of a sum on the wire, b of a
parameter that is gathered. A figure is its formula in these letters. Nothing is measured here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from dptrain.errors import ConfigError
from ledger.leaves.numerics import FAST, FLOAT32, MARGINS, additions_of, most_of, sums_margin

When = Literal["always", "probes", "microbatches", "exchange", "gather"]
"""Moments of a step. Two of them never fall together, so a peak is what is there always and the most of one moment."""

PROBES: Final = 8
"""Bytes per trained coordinate of a rank that the probes hold before the first step and every some hundred steps: values that
they put back, and gradients of a few rows by autograd. Of all coordinates under DDP, of a shard under FSDP2."""

COMPARED: Final = 16
"""Bytes per coordinate of the one tensor that the probes compare: its sum, in float64, with its gradient."""

_SHARDED_SUMS: Final[tuple[When, When]] = ("microbatches", "gather")
"""Moments at which a rank holds its rows of sums."""

BUCKET: Final = 1 << 21
"""Numbers of a sum that are exchanged at a time, or one tensor if it has more (`dptrain.parallel.placement`)."""

STATES: Final[Mapping[str, int]] = {"adamw": 8, "sgd": 4}
"""Bytes of the optimizer's state per trained coordinate, by the name that a run file gives it; SGD is that with momentum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Sizes of a run in several processes.

    Attributes:
        processes: W, 1 or more.
        parameters: P, all of the model, in float32. trained: d, those in the schedule; at most P.
        contributions: n, the expected number of a step.
        microbatch: Contributions of a full microbatch.
        layers: L, of equal size. outside: E, embeddings, head and what else is in none; 0 where nobody says.
        largest: M, coordinates of the largest trained tensor; where nobody says, those of a layer.
        state_bytes: s, of the optimizer per trained coordinate (`STATES`).
        sharded: Parameters lie in shards (FSDP2), not whole on every rank (DDP).
        certified: Sums are exact integers in float64.
        half: Forward and backward pass gather parameters in bfloat16; DDP gathers none.
        public: Some classes are public, whose sums are apart until the noise is there.

    Raises:
        ConfigError: PROCESSES, fewer than one; SIZES, numbers that no model and no step has.
    """

    processes: int
    parameters: int
    trained: int
    contributions: float
    microbatch: int = 16
    layers: int = 12
    outside: int = 0
    largest: int | None = None
    state_bytes: int = STATES["adamw"]
    sharded: bool = False
    certified: bool = False
    half: bool = False
    public: bool = False

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise ConfigError("PROCESSES", f"{self.processes} processes, expected 1 or more; say how many ranks train")
        _require("parameters", self.parameters, self.parameters >= 1, "1 or more")
        _require("trained parameters", self.trained, 1 <= self.trained <= self.parameters, f"1 to {self.parameters:,}, all")
        _require("contributions a step", self.contributions, 0 < self.contributions < math.inf, "more than 0")
        _require("contributions of a microbatch", self.microbatch, self.microbatch >= 1, "1 or more")
        _require("layers", self.layers, self.layers >= 1, "1 or more")
        _require("parameters outside of layers", self.outside, 0 <= self.outside <= self.parameters, "0 to all parameters")
        largest = self.largest or 1
        _require("coordinates of a tensor", largest, 1 <= largest <= self.trained, "1 to all that are trained")

    @property
    def each(self) -> int:
        """Contributions of the rank that has most: they are dealt whole."""
        return math.ceil(self.contributions / self.processes)

    @property
    def microbatches(self) -> int:
        """Microbatches of a step at every rank: who has fewer contributions runs idle ones, so that all run as many."""
        return math.ceil(self.each / self.microbatch)

    @property
    def widest(self) -> int:
        """Coordinates of the largest trained tensor, M."""
        return self.largest or math.ceil(self.trained / self.layers)

    @property
    def wire_bytes(self) -> int:
        """Bytes of a coordinate of a sum on the wire: float32, or the float64 of exact integers."""
        return 8 if self.certified else 4

    @property
    def kept_bytes(self) -> int:
        """Bytes of a coordinate of a sum over microbatches, at a multiplier of one: float32 where FSDP2 can keep it so."""
        n = most_of(self.contributions)
        margin = sums_margin(n, 1.0, additions_of(n, self.microbatch * self.processes))
        narrow = self.sharded and self.processes > 1 and not self.certified and margin <= MARGINS[FAST][FLOAT32]
        return 4 if narrow else 8


@dataclass(frozen=True, slots=True)
class Amount:
    """One figure of a rank.

    Attributes:
        formula: In the letters of this module, as Python has it, with `ceil` of math.
        inputs: Value of every letter of the formula.
        when: Moment of a step at which memory is held; of what is sent, the moment at which it is sent.
        ring: A ring can send it, in which a number crosses into a node once; otherwise every pair of ranks has its own.
    """

    name: str
    bytes: int
    formula: str
    inputs: Mapping[str, float] = field(repr=False)
    when: When = "always"
    ring: bool = False


@dataclass(frozen=True, slots=True)
class PerRank:
    """Prediction for one rank.

    Attributes:
        memory: What it holds. sent: What it sends in a step, and receives as much.
        complete: The activations of a microbatch are among the memory.
        peak_bytes: What is there always and the most of one moment; a lower bound where it is not complete.
        peak_at: That moment.
        sent_bytes: Of a step.
        plain_bytes: What a step without privacy sends over a ring: under DDP an all-reduce of the gradients, under FSDP2 what
            it gathers and reduces for every microbatch.
    """

    memory: tuple[Amount, ...]
    sent: tuple[Amount, ...]
    complete: bool
    peak_bytes: int
    peak_at: When
    sent_bytes: int
    plain_bytes: int


def per_rank(ranks: Ranks, rest: Amount | None = None) -> PerRank:
    """Predicts memory and communication of one rank.

    Every number is a prediction: allocators round up, and a layer may be larger than others.

    Args:
        rest: What does not depend on W, as `rest_of` finds it; None if nobody measured it, and it is left out.
    """
    memory = list(_sharded(ranks) if ranks.sharded else _replicated(ranks))
    if rest is not None:
        memory.append(rest)
    moments: dict[When, int] = {"probes": 0, "microbatches": 0, "exchange": 0, "gather": 0}
    for amount in memory:
        if amount.when != "always":
            moments[amount.when] += amount.bytes
    worst = max(moments, key=lambda moment: moments[moment])
    always = sum(amount.bytes for amount in memory if amount.when == "always")
    sent = tuple(_sent(ranks))
    reduced = (ranks.processes - 1) * 4 * math.ceil(ranks.trained / ranks.processes)
    gathered = sum(amount.bytes for amount in sent if amount.ring)
    return PerRank(
        memory=tuple(memory),
        sent=sent,
        complete=rest is not None,
        peak_bytes=always + moments[worst],
        peak_at=worst,
        sent_bytes=sum(amount.bytes for amount in sent),
        plain_bytes=ranks.microbatches * reduced + gathered if ranks.sharded else 2 * reduced,
    )


def rest_of(peak: int, ranks: Ranks, *, libraries: bool) -> Amount:
    """Returns what a measured peak of one process holds beside the parts that are predicted.

    The peak is taken to lie in the microbatches. Where it lay at the release instead, this is too much, not too little.

    Args:
        peak: Bytes of one process that ran microbatches as large.
        libraries: The peak is that of a whole process, whose libraries are there always; otherwise that of a device, on which
            the rest is activations, and gone at the release.
    """
    alone = Ranks(
        processes=1, parameters=ranks.parameters, trained=ranks.trained, contributions=ranks.contributions,
        state_bytes=ranks.state_bytes,
    )  # fmt: skip
    known = sum(amount.bytes for amount in _replicated(alone) if amount.when in ("always", "microbatches"))
    left = max(0, peak - known)
    name = "activations and libraries" if libraries else "activations of a microbatch"
    return Amount(name, left, "A", {"A": left}, "always" if libraries else "microbatches")


def _replicated(ranks: Ranks) -> list[Amount]:
    """Returns what a rank holds under DDP, in float32, beside activations."""
    d, s, w, processes = ranks.trained, ranks.state_bytes, ranks.wire_bytes, ranks.processes
    moving = min(d, BUCKET)
    found = [
        Amount("parameters", 4 * ranks.parameters, "4 * P", {"P": ranks.parameters}),
        Amount("optimizer state", s * d, "s * d", {"s": s, "d": d}),
        Amount("probes", PROBES * d, f"{PROBES} * d", {"d": d}, "probes"),
        Amount("largest tensor, compared", COMPARED * ranks.widest, f"{COMPARED} * M", {"M": ranks.widest}, "probes"),
        Amount("sums, float64", 8 * d, "8 * d", {"d": d}, "microbatches"),
    ]
    if ranks.public:
        released: When = "gather" if processes == 1 else "exchange"
        found += [Amount("public sums, float64", 8 * d, "8 * d", {"d": d}, when) for when in ("microbatches", released)]
    if processes == 1:
        return [*found, Amount("sums, which become the gradient", 8 * d, "8 * d", {"d": d}, "gather")]
    return [
        *found,
        Amount("buckets of the wrapper, unused", 4 * d, "4 * d", {"d": d}),
        Amount("sums, which become the gradient", 8 * d, "8 * d", {"d": d}, "exchange"),
        Amount("buckets on their way", 4 * w * moving, f"4 * w * min(d, {BUCKET})", {"w": w, "d": d}, "exchange"),
        Amount("noised gradient", 4 * d, "4 * d", {"d": d}, "gather"),
    ]


def _sharded(ranks: Ranks) -> list[Amount]:
    """Returns what a rank holds under FSDP2: shards; whole layers while they run; and in the probes their gradients."""
    d, s, w, b, processes = ranks.trained, ranks.state_bytes, ranks.wire_bytes, 2 if ranks.half else 4, ranks.processes
    own, shard, k = math.ceil(ranks.parameters / processes), math.ceil(d / processes), ranks.kept_bytes
    of_all, of_trained = {"P": ranks.parameters, "W": processes}, {"d": d, "W": processes}
    found = [
        Amount("parameters", 4 * own, "4 * ceil(P / W)", of_all),
        Amount("optimizer state", s * shard, "s * ceil(d / W)", {"s": s, **of_trained}),
        Amount("probes", PROBES * shard, f"{PROBES} * ceil(d / W)", of_trained, "probes"),
        Amount(f"sums, float{8 * k}", k * shard, f"{k} * ceil(d / W)", of_trained, "microbatches"),
        Amount("sums, which become the gradient", k * shard, f"{k} * ceil(d / W)", of_trained, "gather"),
    ]
    if ranks.public:
        found += [Amount(f"public sums, float{8 * k}", k * shard, f"{k} * ceil(d / W)", of_trained, at) for at in _SHARDED_SUMS]
    if ranks.certified:
        found.append(Amount("sum of a microbatch, and one gradient", 16 * d, "16 * d", {"d": d}, "microbatches"))
    largest = ranks.widest
    if processes == 1:
        return [*found, Amount("largest tensor, compared", COMPARED * largest, f"{COMPARED} * M", {"M": largest}, "probes")]
    layer = math.ceil((ranks.parameters - ranks.outside) / ranks.layers)
    unit = min(d, max(layer, ranks.outside))
    sizes = {"b": b, "P": ranks.parameters, "E": ranks.outside, "L": ranks.layers}
    whole = "b * (2 * ceil((P - E) / L) + E)"
    exchanged = f"(8 + 2 * w) * max(M, {BUCKET})"
    reduced = f"max((4 + b) * min(d, max(ceil((P - E) / L), E)), {COMPARED} * M)"
    both: tuple[When, When] = ("probes", "microbatches")
    gathered = (
        Amount("two layers, and what is in none, gathered", b * (2 * layer + ranks.outside), whole, sizes, at) for at in both
    )
    return [
        *found,
        *gathered,
        Amount(
            "gradients of a layer, or largest tensor", max((4 + b) * unit, COMPARED * largest), reduced,
            {"d": d, "M": largest, **sizes}, "probes",
        ),
        Amount(
            "weighted sums, exchanged", (8 + 2 * w) * max(largest, BUCKET), exchanged, {"w": w, "M": largest}, "microbatches"
        ),
    ]  # fmt: skip


def _sent(ranks: Ranks) -> list[Amount]:
    """Returns what a rank sends in a step, its shards padded to equal size; nothing where it is alone."""
    if ranks.processes == 1:
        return []
    d, w, others = ranks.trained, ranks.wire_bytes, ranks.processes - 1
    shard = math.ceil(d / ranks.processes)
    inputs = {"W": ranks.processes, "d": d}
    kinds = ("sums", "public sums") if ranks.public else ("sums",)
    if not ranks.sharded:
        return [
            *(Amount(kind, others * w * shard, "(W - 1) * w * ceil(d / W)", {"w": w, **inputs}, "exchange") for kind in kinds),
            Amount("noised gradient", others * 4 * shard, "(W - 1) * 4 * ceil(d / W)", inputs, "gather", ring=True),
        ]
    m, b = ranks.microbatches, 2 if ranks.half else 4
    own = math.ceil((2 * ranks.parameters - ranks.outside) / ranks.processes)
    of_all = {"m": m, "b": b, "W": ranks.processes, "P": ranks.parameters, "E": ranks.outside}
    return [
        Amount(
            "layers twice, and what is in none", m * others * b * own, "m * (W - 1) * b * ceil((2 * P - E) / W)", of_all,
            "microbatches", ring=True,
        ),
        *(
            Amount(kind, m * others * w * shard, "m * (W - 1) * w * ceil(d / W)", {"m": m, "w": w, **inputs}, "microbatches")
            for kind in kinds
        ),
    ]  # fmt: skip


def _require(what: str, found: float, good: bool, expected: str) -> None:
    if not good:
        raise ConfigError("SIZES", f"{what}: {found:,}, expected {expected}")
