"""What ranks send each other, and when: counted below Python, where every message passes whoever sends it."""

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from dptrain.noise.mechanism import Independent  # noqa: E402
from tests.distributed.jobs import Job, Net, loud, opened, size  # noqa: E402
from tests.distributed.launched import launched  # noqa: E402
from tests.guarantees.peers import Run, small_world  # noqa: E402

STEPS = 4
"""Two windows of two steps, and one epoch."""

MESSAGE, STATUS, EXCHANGE = "broadcast_", "allgather_", "alltoall_base_"
"""Operations of torch.distributed: rank 0 tells or a rank hands out what it released; all say; all exchange."""


class Meter:
    """Counts the messages of this process by what is under way, and the bytes of those that carry gradients."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self.sent: list[tuple[str, torch.dtype, int]] = []
        self._under = ""
        self._profile: Any = None

    def switch(self, under: str) -> None:
        """Counts from here on for something else."""
        if self._profile is not None:
            self._profile.__exit__(None, None, None)
            events = self._profile.profiler.kineto_results.events()
            found = (event.name() for event in events if event.name().startswith("c10d::"))
            self.counts[self._under].update(name.removeprefix("c10d::") for name in found)
        self._under, self._profile = under, None
        if under:
            self._profile = profile(activities=[ProfilerActivity.CPU])
            self._profile.__enter__()

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Keeps type and length of what `all_to_all_single` and `broadcast` send, but for messages of bytes."""
        for name in ("all_to_all_single", "broadcast"):
            patch.setattr(dist, name, self._kept(name, getattr(dist, name)))

    def _kept(self, name: str, send: Callable[..., Any]) -> Callable[..., Any]:
        def sent(first: torch.Tensor, second: Any, *rest: Any, **options: Any) -> Any:
            data = second if isinstance(second, torch.Tensor) else first
            mine = name == "all_to_all_single" or second == dist.get_rank()
            if data.dtype != torch.uint8 and mine:
                self.sent.append((name, data.dtype, data.numel()))
            return send(first, second, *rest, **options)

        return sent


class Buffered(Net):
    """With a buffer that a wrapper would broadcast, and a layer that no forward uses."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(8))
        self.unused = nn.Linear(24, 24)


def model() -> nn.Module:
    torch.manual_seed(0)
    return Buffered()


def wrapper(inner: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(inner, find_unused_parameters=True, broadcast_buffers=True)


def few_are_most(run: Run) -> None:
    """Lets a draw of more than three be one that hardly ever comes."""
    run.private.prepared.together._most_drawn = 3


def metered(rank: int, *jobs: Job) -> list[tuple[dict[str, Counter[str]], list[tuple[str, torch.dtype, int]], int]]:
    """Runs jobs to their end, and tells what this process sent: counts, what carried gradients, and trained numbers."""
    return [_metered(job) for job in jobs]


def _metered(job: Job) -> Any:
    meter = Meter()
    run = opened(job, model=model, wrap=wrapper)
    trained = sum(tensor.parameter.numel() for _, tensor in run.private.prepared.router.tensors)
    release = Independent.release

    def released(*arguments: Any) -> Any:
        meter.counts["noise"][f"while {meter._under}"] += 1
        return release(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        meter.watch(patch)
        patch.setattr(Independent, "release", released)
        meter.switch("the beginning")
        for step in run.steps:
            meter.switch(f"step {step.number}")
            for rows in step:
                meter.switch("probes" if run.private.prepared.probe.active else "a microbatch")
                run.private.backward(loud(run.net, rows), rows)
                meter.switch(f"step {step.number}")
                raw = [name for name, parameter in run.model.named_parameters() if parameter.grad is not None]
                assert not raw, f"a gradient that nothing was added to lies in {raw}"
            meter.switch("the optimizer")
            run.optimizer.step()
            meter.switch(f"behind step {step.number}")
        meter.switch("")
    run.private.close()
    return dict(meter.counts), meter.sent, trained


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """By rank: a run at `fast`, one at `certified`, and one at `fast` whose draws are larger than it reckoned with."""
    fast, certified = tmp_path_factory.mktemp("fast"), tmp_path_factory.mktemp("certified")
    small_world(fast, per_class=5, steps=STEPS)
    small_world(certified, per_class=5, steps=STEPS, policy_extra='exactness = "certified"')
    jobs = (
        Job(fast, options={"microbatch": 1}),
        Job(certified, options={"microbatch": 1}),
        Job(fast, "more", options={"microbatch": 4}, before=few_are_most),
    )
    return launched(metered, 2, *jobs)


def counts(found: list[Any], rank: int, job: int, under: str) -> dict[str, int]:
    return dict(found[rank][job][0].get(under, {}))


RANKS, JOBS = pytest.mark.parametrize("rank", [0, 1]), pytest.mark.parametrize("job", [0, 1, 2])


@RANKS
@JOBS
def test_nothing_is_sent_between_the_rows_of_a_microbatch_and_its_clipped_sum(found: list[Any], rank: int, job: int) -> None:
    """Neither for the buffers that the wrapper would broadcast, nor for parameters that it would look for, nor in probes."""
    assert counts(found, rank, job, "a microbatch") == {} and counts(found, rank, job, "probes") == {}
    assert counts(found, rank, job, "the optimizer") == {}


@RANKS
@JOBS
def test_a_step_inside_a_window_is_one_word_of_all_one_exchange_and_what_each_rank_released(found, rank: int, job: int) -> None:
    for step in (2, 4):
        assert counts(found, rank, job, f"step {step}") == {STATUS: 1, EXCHANGE: 1, MESSAGE: size_of(found)}


@RANKS
@JOBS
def test_a_window_is_one_message_when_it_is_charged_and_one_when_it_is_settled(found: list[Any], rank: int, job: int) -> None:
    assert counts(found, rank, job, "step 3") == {STATUS: 1, EXCHANGE: 1, MESSAGE: size_of(found) + 1}
    assert counts(found, rank, job, "behind step 1") == {}
    assert counts(found, rank, job, "behind step 2") == {MESSAGE: 1, STATUS: 1}  # whether parameters are finite everywhere


@RANKS
@JOBS
def test_an_epoch_is_two_words_of_all_and_one_message_and_the_end_no_more(found, rank: int, job: int) -> None:
    """Behind step 4: the window is settled, the epoch closed, and the end of the run asked for and written. Ranks say whether
    parameters are finite, how statement A stands (also at the end), and what the weights are."""
    assert counts(found, rank, job, "behind step 4") == {MESSAGE: 4, STATUS: 4}


def size_of(found: list[Any]) -> int:
    return len(found)


def expected_of(trained: int, rank: int, ranks: int, exchanged: torch.dtype) -> list[tuple[str, torch.dtype, int]]:
    """Returns what carries numbers in a step: sums of what others own, and what became of its own; all fit into one bucket."""
    width = -(-trained // ranks)
    own = max(0, min(width, trained - rank * width))
    return [("all_to_all_single", exchanged, trained - own), ("broadcast", torch.float32, width)]


def sent(carried: list[tuple[str, torch.dtype, int]], ranks: int) -> int:
    """Bytes that a rank sends to others: what it hands out goes to each of them."""
    return sum(kind.itemsize * numbers * (ranks - 1 if name == "broadcast" else 1) for name, kind, numbers in carried)


@RANKS
@pytest.mark.parametrize(("job", "exchanged"), [(0, torch.float32), (1, torch.float64), (2, torch.float64)])
def test_bytes_on_the_wire_are_those_of_a_ring_and_half_as_many_again_where_sums_are_sent_as_they_are(
    found: list[Any], rank: int, job: int, exchanged: torch.dtype
) -> None:
    """A ring all-reduce sends 2 (W - 1) / W of what there is. Job 2 draws more than it reckoned with, and falls back."""
    _, carried, trained = found[rank][job]
    ranks = size_of(found)
    assert carried == expected_of(trained, rank, ranks, exchanged) * STEPS
    ring = 2 * (ranks - 1) / ranks * trained * 4
    expected = ring if exchanged is torch.float32 else ring * 1.5
    assert abs(sent(carried, ranks) / STEPS - expected) < 8 * ranks * ranks


@RANKS
def test_noise_is_added_between_the_exchange_and_the_release_and_nowhere_else(found: list[Any], rank: int) -> None:
    noise = counts(found, rank, 0, "noise")
    assert set(noise) == {f"while step {step}" for step in range(1, STEPS + 1)} and len(set(noise.values())) == 1


@pytest.mark.slow
def test_four_processes_send_as_many_messages_but_for_what_each_releases(tmp_path: Path) -> None:
    small_world(tmp_path, per_class=9, steps=STEPS)
    several = launched(metered, 4, Job(tmp_path, options={"microbatch": 1}))
    for rank in range(4):
        assert counts(several, rank, 0, "a microbatch") == {} and counts(several, rank, 0, "probes") == {}
        assert counts(several, rank, 0, "step 2") == {STATUS: 1, EXCHANGE: 1, MESSAGE: 4}
        _, carried, trained = several[rank][0]
        assert carried == expected_of(trained, rank, 4, torch.float32) * STEPS
        assert abs(sent(carried, 4) / STEPS - 2 * 3 / 4 * trained * 4) < 8 * 16


def loudly(rank: int) -> Counter[str]:
    """What the meter counts of a wrapper that nobody silenced: buffers, parameters, and the sum of gradients."""
    meter = Meter()
    net = wrapper(model())
    for _ in range(2):
        meter.switch("unheld")
        net(torch.zeros(3, 7, dtype=torch.int64)).sum().backward()
        meter.switch("")
    return meter.counts["unheld"]


def test_the_meter_sees_what_a_wrapper_sends_that_nobody_silenced() -> None:
    """Negative control of this page."""
    for counted in launched(loudly, 2):
        assert counted["allreduce_"] >= 2 and counted["broadcast_"] >= 1
    assert size() == 1
