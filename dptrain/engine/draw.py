"""Samples the contributions of one step and plans its microbatches."""

from collections.abc import Iterable, Mapping, Sequence

from attest.descriptor import SignedBounds
from attest.fixed_point import MICRO
from attest.policy import Policy
from attest.schedule import Phases, phase_std
from dptrain.clipping.resolver import Resolution, Schedule
from dptrain.data.contributions import Pool
from dptrain.data.packing import Drawn, Planned, plan
from dptrain.data.sampling import groups
from dptrain.engine.streams import Streams
from dptrain.routing import Bounds, bounds_of

NOTHING = (SignedBounds(MICRO, MICRO), ())
"""Bounds and profile of a contribution that only fills up a microbatch: it may touch no block."""


class Drawing:
    """Draws the contributions of every step; the rest follows from a draw by public numbers alone.

    Args:
        contributions: the most in one microbatch. rows: the most rows in one, or None.
    """

    def __init__(
        self,
        policy: Policy,
        schedule: Schedule,
        pool: Pool,
        streams: Streams,
        *,
        contributions: int,
        rows: int | None,
    ) -> None:
        self._pool = pool
        self._schedule = schedule
        self._sampler = streams.sampler
        self._contributions = contributions
        self._rows = rows
        self._groups = policy.noise_microbatches or 1
        self._fill = policy.exactness == "certified"
        self._per_sample = policy.noise_injection == "per_sample"
        self._phases = Phases.of(policy)
        self._scheduled: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = {}
        self._lowest = {name: schedule.lowest_position(name) for name in schedule.profiles}

    def close(self, indices: Iterable[int]) -> None:
        """Draws these slots no more."""
        self._sampler.close(indices)

    def draw(self, number: int) -> list[int]:
        """Slots that take part in a step, those that may reach lowest first."""
        return sorted((int(i) for i in self._sampler.draw(number)), key=lambda i: (self._depth(i), i))

    def planned(self, drawn: Sequence[int]) -> list[Planned]:
        """Microbatches of a draw.

        Public contributions come last, in microbatches of their own; how the others are split does not depend on them.
        """
        found = [Drawn(slot, self._depth(slot), self._pool.size(slot)) for slot in drawn]
        public = {slot: self._resolution(slot).public for slot in drawn}
        return microbatches_of(found, public, self._groups, self._contributions, self._rows, fill=self._fill)

    def noise(self, number: int, drawn: Sequence[int]) -> tuple[tuple[float, ...], tuple[float, ...] | None]:
        """Standard deviations of the noise of a step: per block, and effective ones per class, in the order of the policy.

        They are the schedule's in the phase of the step. With injection per sample those drawn bring them, and there is nothing
        per class to hold against what was charged: None.
        """
        if self._per_sample:
            descriptors = [self._pool.slots.form(slot).descriptor for slot in drawn]
            return self._schedule.realised_stds(descriptors), None
        scale = self._phases.scale_micro(number)
        if scale not in self._scheduled:
            stds = tuple(phase_std(block.std, scale) for block in self._schedule.blocks)
            self._scheduled[scale] = stds, tuple(self._schedule.class_std(name, stds) for name in self._schedule.profiles)
        return self._scheduled[scale]

    def bounds(self, planned: Planned) -> Bounds:
        """Signed bounds and masks of the rows of a microbatch."""
        found = [self._resolution(slot) for slot in planned.slots]
        rows = [(resolution.bounds, resolution.profile) for resolution in found] + [NOTHING] * planned.fill
        return bounds_of(rows, len(self._schedule.blocks))

    def _resolution(self, slot: int) -> Resolution:
        return self._pool.slots.resolution(slot)

    def _depth(self, slot: int) -> int:
        return self._lowest[self._resolution(slot).class_name]


def microbatches_of(
    drawn: Sequence[Drawn],
    public: Mapping[int, bool] | Sequence[bool],
    injections: int,
    contributions: int,
    rows: int | None,
    *,
    fill: bool,
) -> list[Planned]:
    """Plans the microbatches of a draw, public contributions last, in microbatches of their own.

    How private contributions are split does not depend on public ones.

    Args:
        drawn: those that may reach lowest first. public: by slot, whether it is of a public class. injections: how often
            noise comes in per step. contributions, rows, fill: of `dptrain.data.packing.plan`; public ones never fill up.
    """
    private = groups([one for one in drawn if not public[one.slot]], injections)
    planned = [made for group in private for made in plan(group, contributions, rows, fill=fill)]
    return planned + plan([one for one in drawn if public[one.slot]], contributions, rows)
