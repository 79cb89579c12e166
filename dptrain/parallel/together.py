"""What a prepared run does with other ranks: compares, sends sums, hears how they stand. With one process, next to nothing."""

import hashlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from attest.policy import Policy
from dptrain.blocks.shards import local
from dptrain.clipping.fast import FastSums, Sums
from dptrain.data.sampling import most_drawn
from dptrain.errors import NotPrivateUse, UnsupportedModule
from dptrain.geometry.charts import Charts
from dptrain.parallel.placement import Exchanged, Placement, Sharded, Shards
from dptrain.parallel.ranks import Ranks, differs
from dptrain.parallel.sharded import ShardedModel, is_sharded, shards_inside
from dptrain.parallel.wrapped import Silenced
from dptrain.routing import Router
from dptrain.routing.accumulate import Folding
from dptrain.routing.probes import Truth
from dptrain.sandbox import Sandbox
from dptrain.sandbox.isolation import Isolation
from ledger.leaves.numerics import FAST, FLOAT32, FLOAT64, SUMS32, Numerics, additions_of, least_multiplier, sums_margin

LAYOUT_TOLERANCE = 1e-2
"""Relative distance of two reductions of a probe, one of them perhaps in half precision; rows of others are further away."""


_RATES = "let them follow from the number of the step alone, or from what every process knows; each sees other losses"


class Together:
    """The other ranks of a run, and the wrapper that holds the model over them.

    Guarantee: no rank releases a step before all have told that they stand at it, with one draw, one noise and one learning
    rate; what one of them must keep back, none releases.

    Args:
        model: inside its wrapper. given: as the user gave it.

    Attributes:
        ranks: the processes. sharded: whether parameters lie over ranks.
        wide: whether sums of the step under way are sent as float64.
        mixed: whether ranks gathered layers in different orders.
    """

    def __init__(self, ranks: Ranks, model: nn.Module, given: nn.Module) -> None:
        self.ranks = ranks
        self.wide = True
        self.mixed = False
        self._shards = ShardedModel(model) if is_sharded(model) else None
        self._silenced = Silenced(given)
        self._sandbox: Sandbox | None = None
        self._router: Router | None = None
        self._most_drawn = 0
        self._most_microbatches = 0
        self._sinks: list[Shards] = []

    @property
    def sharded(self) -> bool:
        """Tells whether parameters lie over ranks (FSDP2)."""
        return self._shards is not None

    def inside(self, sandbox: Sandbox) -> None:
        """Lets a wrapper gather and free parameters in private microbatches."""
        self._sandbox = sandbox
        if self._shards is not None:
            self._shards.count_as_ours(sandbox.aside)
            sandbox.kept.rest = self.rest

    def bind(self, router: Router, folding: Folding) -> Placement:
        """Binds the sums of a run, and returns where they get their noise.

        Raises:
            UnsupportedPolicy: code SPLIT_SHARDED, classes share tensors of which every rank has some rows.
        """
        self._router, held = router, [tensor for _, tensor in router.tensors]
        if self._shards is None:
            return Placement() if self.ranks.size == 1 else Exchanged(self.ranks, held)
        placement = Sharded(self.ranks, held)
        for site in router.sites:
            if site.rule.again and shards_inside(site.rule.module):
                raise UnsupportedModule(
                    "AGAIN_SHARDED",
                    f"module {site.name or 'the model itself'!r} ({type(site.module).__name__}) has no rule of its own, so "
                    "that it runs once more for its gradient, and a module inside it was given to fully_shard; "
                    "give fully_shard this one or what is around it, register a rule (docs/extending/layers.md), or use "
                    "DistributedDataParallel",
                )
        router.leaf = self._shards.leaf
        if self._sandbox is not None:
            self._sandbox.trains(self._shards.leaves())
        self._sinks = [Shards(self.ranks, held), Shards(self.ranks, held)]
        router.sums.sink, folding.public.sink = self._sinks
        return placement

    def rest(self) -> None:
        """Brings parameters back to where they lie between microbatches, if none is under way."""
        if self._shards is not None and not (self._sandbox is not None and self._sandbox.active):
            self._shards.rest()

    def wire(
        self, policy: Policy, sums: Sums, precision: torch.dtype, classes: Sequence[str], rows: int, begun: Numerics | None
    ) -> str:
        """Returns how sums are sent and kept, for the header of the run, and has clip bounds shrunk for it.

        Sums of a new run go as float32 at level ``fast``, and under FSDP2 those over microbatches are float32 as well, unless a
        step draws so many that rounding would cost more than the margin for products. A run that began goes on as its header
        says, or more exactly.

        Args:
            classes: of the contributions, by slot. rows: of a microbatch. begun: what the header of a run says that goes on.
        """
        self._most_drawn = most_drawn(policy, classes)
        self._most_microbatches = additions_of(self._most_drawn, rows * self.ranks.size)
        word = FLOAT64 if begun is None else begun.wire
        if policy.exactness != FAST or precision is not torch.float32 or (begun is None and self.ranks.size == 1):
            return word
        kinds = (SUMS32, FLOAT32) if self.sharded else (FLOAT32,)
        allowed = {FLOAT64: (), FLOAT32: (FLOAT32,), SUMS32: (SUMS32, FLOAT32)}[SUMS32 if begun is None else word]
        least = least_multiplier(policy)
        largest = max(rule.bounds.noise_multiplier for rule in policy.classes if not rule.public)
        for kind in (kind for kind in kinds if kind in allowed):
            added = sums_margin(self._most_drawn, least, self._most_microbatches if kind == SUMS32 else 0)
            if added * largest <= sums.float_margin or (begun is not None and kind == FLOAT32):
                sums.wire = added if self.ranks.size > 1 else 0.0
                for sink in self._sinks:
                    sink.narrow = kind == SUMS32
                return kind if begun is None else word
        return word

    def begin(self, step: int) -> None:
        """Hears that every rank begins the same step, where they gather parameters together: one elsewhere would be waited for.

        Raises:
            RanksError: code RANKS_DIFFER, one of them does something else, as writing a checkpoint.
        """
        if self._shards is not None:
            self.ranks.all(b"", f"step {step} begins")

    def chart(self, charts: Charts) -> None:
        """Has the charts of the step that begins made of the factors of its pairs: by the first rank, which sends them.

        Guarantee: every rank has the same charts, to the bit, of the same factors.

        Raises:
            RanksError: code RANKS_DIFFER, ranks hold other factors.
        """
        if not charts:
            return
        if self.ranks.size == 1:
            charts.refresh(charts.computed())
            return
        self.ranks.agree({"the factors of the adapters": charts.digest()})
        charts.refresh(charts.read(self.ranks.first(charts.written)))

    def draw(self, sums: Sums, drawn: int, microbatches: int) -> None:
        """Chooses how the sums of a step are sent and kept, for which so many contributions are drawn."""
        many = any(sink.narrow for sink in self._sinks) and microbatches > self._most_microbatches
        self.wide = sums.wire == 0.0 or drawn > self._most_drawn or many

    def stand(
        self, step: int, drawn: Sequence[int], stds: Sequence[float], rates: Sequence[float], isolation: Isolation
    ) -> bool:
        """Hears how every rank stands before a release, and returns whether one of them must release noise alone.

        Args:
            stds: noise per block. rates: learning rates.

        Raises:
            RanksError: code RANKS_DIFFER, another rank stands at another step, draw, learning rate or noise; RANK_LOST.
        """
        assert self._sandbox is not None
        sandbox, kept = self._sandbox, self._sandbox.kept
        blank = kept.changed() or sandbox.late_host_draws
        if self.ranks.size == 1:
            return blank
        flags = bytes([blank, kept.written is not None, sandbox.late_host_draws])
        where = hashlib.sha256(repr((step, list(drawn), tuple(stds))).encode()).digest()
        learning = hashlib.sha256(repr(list(rates)).encode()).digest()
        told = hashlib.sha256(isolation.told.encode()).digest()
        order = bytes(32) if self._shards is None else self._shards.order.digest()
        found = self.ranks.all(flags + where + learning + told + order, "the release of a step")
        for what, place, do in (("the draw of a step", 3, ()), ("learning rates", 35, (_RATES,))):
            other = [rank for rank, one in enumerate(found) if one[place : place + 32] != found[0][place : place + 32]]
            if other:
                raise differs(what, other, *do)
        if len({one[67:99] for one in found}) > 1:
            self.share(isolation)
        if len({one[99:] for one in found}) > 1:
            self.mixed = True
        if any(one[1] for one in found) and kept.written is None:
            kept.written = "a tensor of another rank"
        sandbox.late_host_draws = any(one[2] for one in found)
        return self.mixed or any(one[0] for one in found)

    def refuse_mixed(self) -> None:
        """Ends a run, at the end of a window, whose ranks gathered layers in different orders; noise alone was released since.

        Raises:
            NotPrivateUse: code GATHER_ORDER.
        """
        if self.mixed:
            raise NotPrivateUse(
                "GATHER_ORDER",
                "in this window ranks gathered layers in different orders, so that a forward ran with parameters of others: "
                "the model goes another way by what is in a microbatch. Noise alone was released from there on. Take the model "
                "from the last checkpoint before this window, and let every microbatch run the same layers, or use "
                "DistributedDataParallel",
            )

    def share(self, isolation: Isolation) -> None:
        """Hears how statement A stands at other ranks: what weakens it at one of them weakens it in the record."""
        if self.ranks.size > 1:
            for text in self.ranks.texts(isolation.told):
                isolation.carry(text)

    def truth(self, router: Router) -> Truth:
        """Returns what takes autograd's own gradients in the probes."""
        return Truth(router) if self._shards is None else Reduced(router, self._shards, self.ranks)

    def close(self) -> None:
        """Lets the wrapper reduce again."""
        self._silenced.close()
        if self._shards is not None:
            self._shards.close()


class Reduced(Truth):
    """Takes gradients as FSDP2 reduces them: of each, the rows that this rank keeps, as a mean over ranks.

    Guarantee: no rank holds more whole gradients than those of one unit of ``fully_shard``, or of one tensor.
    """

    sharded = True

    def __init__(self, router: Router, shards: ShardedModel, ranks: Ranks) -> None:
        super().__init__(router)
        self._shards, self._ranks = shards, ranks
        self._held = [tensor for _, tensor in router.tensors]
        self.factor = 2.0 ** (ranks.rank % 2)
        divisors = [shards.divisor(tensor.parameter, ranks.size) for tensor in self._held]
        self.shares = 1.0 / torch.tensor(divisors, dtype=torch.float64)

    @property
    def reducing(self) -> frozenset[int]:
        return self._shards.reducing

    def gradients(self, losses: torch.Tensor, weight: torch.Tensor, indices: Sequence[int]) -> list[torch.Tensor | None]:
        with self._router.muted(), self._router.inside():
            return self._shards.reduced(losses, weight, [self._held[index].parameter for index in indices])

    def sums(self) -> FastSums:
        made = super().sums()
        made.sink = Shards(self._ranks, self._held)
        made.sink.begin(wide=self._router.precision is torch.float64)
        return made

    def comparable(self, index: int, total: torch.Tensor) -> torch.Tensor:
        own = local(self._held[index].parameter)
        return total[: own.numel()].mul_(self.shares[index].item()).view(own.shape)

    def over_ranks(self, numbers: torch.Tensor) -> torch.Tensor:
        with self._router.aside():
            carried = numbers.to(local(self._held[0].parameter).device)
            self._ranks.carry(lambda: dist.all_reduce(carried))
            return carried.cpu()

    def refuse_layout(self, losses: torch.Tensor, weight: torch.Tensor, index: int) -> None:
        """Compares autograd's own gradient of one tensor, sent the way of our sums, with torch's reduction of it.

        Raises:
            UnsupportedModule: code SHARD_LAYOUT, they lie otherwise.
        """
        whole = super().gradients(losses, weight, [index])[0]
        mean = self.gradients(losses, weight, [index])[0]
        sink = self.sums().sink
        assert sink is not None
        sink.add(index, None if whole is None else whole.detach().double())
        sink.flush()
        own = self.comparable(index, sink.take_one(index))
        expected = torch.zeros_like(own) if mean is None else mean.double()
        gap, size = self.over_ranks(torch.stack([(own - expected).square().sum(), expected.square().sum()])).sqrt().tolist()
        if not gap <= LAYOUT_TOLERANCE * size + 1e-12:
            raise UnsupportedModule(
                "SHARD_LAYOUT",
                f"rows of {self._held[index].name!r} lie otherwise over ranks than expected: sums of gradients would go to "
                "rows of others; use fully_shard as it comes, without extensions that change how parameters are cut",
            )
