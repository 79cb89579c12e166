"""What a plan predicts for one rank of several: every figure is its formula, and the bytes sent are those of the exchange."""

import math
from dataclasses import replace
from itertools import product

import pytest

from dptrain.errors import ConfigError
from dptrain.planning.per_rank import COMPARED, PROBES, Amount, Ranks, per_rank, rest_of

GPT2 = 124_439_808
RANKS = Ranks(processes=8, parameters=GPT2, trained=GPT2, contributions=1024)
KINDS = [
    replace(
        RANKS, processes=processes, trained=trained, sharded=sharded, certified=certified, half=half, public=public,
        outside=outside, largest=largest,
    )
    for processes, trained, sharded, certified, half, public, (outside, largest) in product(
        (1, 2, 3, 512), (GPT2, 999), (False, True), (False, True), (False, True), (False, True), ((0, None), (10**7, 900))
    )
]  # fmt: skip


def test_every_figure_is_its_formula_of_the_values_that_are_shown() -> None:
    rest = Amount("rest", 12345, "A", {"A": 12345}, "microbatches")
    for ranks in KINDS:
        found = per_rank(ranks, rest)
        for one in (*found.memory, *found.sent):
            assert eval(one.formula, {"ceil": math.ceil}, dict(one.inputs)) == one.bytes > 0, one


def test_the_letters_of_formulas_have_one_value_each() -> None:
    for ranks in KINDS:
        seen: dict[str, float] = {"P": ranks.parameters, "d": ranks.trained, "W": ranks.processes, "L": ranks.layers}
        found = per_rank(ranks)
        for one in (*found.memory, *found.sent):
            for letter, value in one.inputs.items():
                assert seen.setdefault(letter, value) == value


def test_the_peak_is_what_is_there_always_and_the_most_of_one_moment() -> None:
    for ranks in KINDS:
        found = per_rank(ranks)
        parts = {
            when: sum(one.bytes for one in found.memory if one.when == when) for when in {one.when for one in found.memory}
        }
        others = {when: count for when, count in parts.items() if when != "always"}
        assert found.peak_bytes == parts["always"] + max(others.values())
        assert others[found.peak_at] == max(others.values())
        assert found.sent_bytes == sum(one.bytes for one in found.sent)


@pytest.mark.parametrize("processes", [1, 2, 8, 64, 511])
def test_a_private_step_of_ddp_sends_the_bytes_of_a_ring_all_reduce_at_fast(processes: int) -> None:
    found = per_rank(replace(RANKS, processes=processes))
    exact = 2 * (processes - 1) / processes * 4 * GPT2
    assert found.sent_bytes == found.plain_bytes
    assert exact <= found.sent_bytes <= exact + 8 * processes  # shards are padded to equal size
    certified = per_rank(replace(RANKS, processes=processes, certified=True))
    assert certified.sent_bytes == pytest.approx(1.5 * found.sent_bytes)


def test_shards_divide_all_states_and_cost_their_gathering_in_every_microbatch() -> None:
    whole, found = per_rank(RANKS), per_rank(replace(RANKS, sharded=True))
    always = [sum(one.bytes for one in each.memory if one.when == "always") for each in (whole, found)]
    assert always[1] == pytest.approx((4 + 8) * GPT2 / 8, rel=1e-6)
    assert always[0] == (4 + 8 + 4) * GPT2
    microbatches = math.ceil(1024 / 8 / RANKS.microbatch)
    assert found.sent_bytes == pytest.approx(microbatches * 7 / 8 * (2 * 4 + 4) * GPT2, rel=1e-6)
    half = per_rank(replace(RANKS, sharded=True, half=True))
    assert half.sent_bytes == pytest.approx(microbatches * 7 / 8 * (2 * 2 + 4) * GPT2, rel=1e-6)
    outside = per_rank(replace(RANKS, sharded=True, outside=GPT2))  # nothing is in layers, and gathered once
    assert outside.sent_bytes == pytest.approx(microbatches * 7 / 8 * (4 + 4) * GPT2, rel=1e-6)


def test_probes_hold_gradients_of_all_coordinates_under_ddp_and_of_a_shard_and_one_layer_under_fsdp2() -> None:
    layer = math.ceil(GPT2 / 12)
    for processes in (2, 512):
        whole, shards = (per_rank(replace(RANKS, processes=processes, sharded=one)) for one in (False, True))
        held = [[one.bytes for one in each.memory if one.when == "probes"] for each in (whole, shards)]
        assert held[0] == [PROBES * GPT2, COMPARED * layer]
        assert held[1] == [PROBES * math.ceil(GPT2 / processes), 4 * 2 * layer, COMPARED * layer]
    many = per_rank(replace(RANKS, processes=512, sharded=True, largest=1000))  # no tensor as large as a layer
    assert [one.bytes for one in many.memory if one.when == "probes"][2] == (4 + 4) * layer


def test_contributions_are_dealt_whole() -> None:
    for contributions, processes in product((0.5, 1, 7, 8, 1024.5), (1, 2, 8, 100)):
        ranks = replace(RANKS, contributions=contributions, processes=processes)
        assert ranks.each * processes >= contributions > (ranks.each - 1) * processes
        assert ranks.microbatches * ranks.microbatch >= ranks.each > (ranks.microbatches - 1) * ranks.microbatch


def test_what_was_measured_in_one_process_is_what_one_process_is_predicted_to_hold() -> None:
    alone = replace(RANKS, processes=1)
    peak = 20 * GPT2 + 1_000_000_000
    for libraries, when in ((True, "always"), (False, "microbatches")):
        rest = rest_of(peak, RANKS, libraries=libraries)
        assert (rest.bytes, rest.when) == (1_000_000_000, when)
        held = [one for one in per_rank(alone, rest).memory if one.when in ("always", "microbatches")]
        assert sum(one.bytes for one in held) == peak
    assert rest_of(5, RANKS, libraries=True).bytes == 0
    assert per_rank(RANKS, rest).complete and not per_rank(RANKS).complete


@pytest.mark.parametrize(
    ("wrong", "code", "found"),
    [
        ({"processes": 0}, "PROCESSES", "0 processes, expected 1 or more"),
        ({"parameters": 0}, "SIZES", "parameters: 0"),
        ({"trained": GPT2 + 1}, "SIZES", "expected 1 to 124,439,808"),
        ({"trained": 0}, "SIZES", "trained parameters: 0"),
        ({"contributions": 0.0}, "SIZES", "contributions a step: 0.0"),
        ({"contributions": math.nan}, "SIZES", "contributions a step: nan"),
        ({"microbatch": 0}, "SIZES", "contributions of a microbatch: 0"),
        ({"layers": 0}, "SIZES", "layers: 0"),
        ({"outside": GPT2 + 1}, "SIZES", "parameters outside of layers: 124,439,809"),
        ({"largest": GPT2 + 1}, "SIZES", "coordinates of a tensor: 124,439,809"),
    ],
)
def test_sizes_that_no_run_has_are_refused_by_name(wrong: dict, code: str, found: str) -> None:
    with pytest.raises(ConfigError, match=code) as refused:
        replace(RANKS, **wrong)
    assert found in refused.value.sentence


@pytest.mark.parametrize(("processes", "wide"), [(2, False), (3, False), (4, True)])
def test_the_exchange_of_a_release_moves_the_bytes_that_are_predicted(processes: int, wide: bool, monkeypatch) -> None:
    torch = pytest.importorskip("torch")
    from dptrain.blocks.stack import Tensor
    from dptrain.parallel import placement

    sizes = [7, 100, 13]
    tensors = [Tensor(f"t{size}", (), (), torch.nn.Parameter(torch.zeros(size))) for size in sizes]
    moved: dict[str, int] = {}

    class Done:
        def wait(self) -> None:
            """Waits for nothing."""

    def exchanged(theirs: torch.Tensor, mine: torch.Tensor, takes: list[int], gives: list[int], async_op: bool) -> Done:
        assert sum(takes) == theirs.numel() and sum(gives) == mine.numel() and async_op
        moved["exchange"] = mine.nbytes
        theirs.fill_(1.0)
        return Done()

    def gathered(own: torch.Tensor, ranks: object) -> tuple[torch.Tensor, list[Done]]:
        moved["gather"] = own.nbytes * (processes - 1)
        return own.repeat(processes), [Done()]

    monkeypatch.setattr(placement.dist, "all_to_all_single", exchanged)
    monkeypatch.setattr(placement, "gather", gathered)
    group = type("Group", (placement.Ranks,), {"size": processes})()
    place = placement.Exchanged(group, tensors)
    totals = (torch.ones(size, dtype=torch.float64) for size in sizes)
    assert list(place.shares(totals, wide=wide))
    assert all(bool((value == processes).all()) for _, value in place.rest())
    predicted = per_rank(Ranks(processes=processes, parameters=sum(sizes), trained=sum(sizes), contributions=4, certified=wide))
    assert moved == {one.when: one.bytes for one in predicted.sent}
