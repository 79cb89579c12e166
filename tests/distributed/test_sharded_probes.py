"""Under FSDP2 probes compare what each rank keeps: memory falls with the ranks, and one verdict is that of all."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain.clipping.fast import FastSums, Sums  # noqa: E402
from dptrain.errors import UnsupportedModule  # noqa: E402
from dptrain.parallel import placement  # noqa: E402
from tests.distributed.jobs import NOW, Net  # noqa: E402
from tests.distributed.launched import launched  # noqa: E402
from tests.guarantees.peers import Run, per_example, small_world  # noqa: E402
from tests.worlds.trainer import wrapped  # noqa: E402
from tests.worlds.training import World  # noqa: E402

WIDTH, BLOCKS = 640, 8
"""Set the size of the model whose memory is counted: layers of equal size hold nearly all of its 3.3 million parameters."""


def sharded(model: nn.Module) -> nn.Module:
    return wrapped(model, sharded=True)


def half(model: nn.Module) -> nn.Module:
    """Shards a model whose gradients torch would add up in bfloat16."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    fully_shard(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
    return model


def divided(model: nn.Module) -> nn.Module:
    """Shards a model whose gradients torch would divide by three, not by the number of ranks."""
    for module in sharded(model).modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(3.0)
            module.set_force_sum_reduction_for_comms(True)
    return model


def begun(root: Path, wrap: Callable[[nn.Module], nn.Module], width: int = 16) -> str:
    """Runs the probes of the start, and returns the code of a refusal and the tensor that it names."""
    torch.manual_seed(0)
    world = World.at(root)
    world.now = NOW
    with Run(world, Net(width, BLOCKS), wrap=wrap, microbatch=4) as run:
        try:
            for rows in run.private.prepared.probe.run():
                run.private.backward(per_example(run.net, rows), rows)
        except UnsupportedModule as error:
            return f"{error.code} {str(error).partition(chr(39))[2].partition(chr(39))[0]}"
    return "begun"


def alive() -> int:
    """Returns the bytes of all tensors that Python can reach, each storage once."""
    found: dict[int, int] = {}
    for one in gc.get_objects():
        if type(one) in (torch.Tensor, nn.Parameter) and one.layout is torch.strided:
            storage = one.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def held(rank: int, root: Path) -> float:
    """Returns the most bytes per coordinate that the probes of the start hold beside the model, where sums are compared."""
    most, before, take = 0, 0, Sums.take_one

    def counted(self: Sums, index: int) -> Any:
        nonlocal most
        if index % 4 == 0:
            most = max(most, alive() - before)
        return take(self, index)

    def wrap(model: nn.Module) -> nn.Module:
        nonlocal before
        net = sharded(model)
        gc.collect()
        before = alive()
        return net

    Sums.take_one = counted  # type: ignore[method-assign]
    assert begun(root, wrap, WIDTH) == "begun"
    return most / (BLOCKS * WIDTH**2)


def wrong(rank: int, root: Path, what: str) -> str:
    """Begins a run in which rank 1 counts gradients too much, ranks keep their own sums, or rows at rank 1 alone are off."""
    if what == "gradients" and rank == 1:
        accumulate = FastSums.accumulate

        def more(self: FastSums, pieces: Any, coefficients_NG: torch.Tensor) -> None:
            accumulate(self, pieces, coefficients_NG * 1.05)

        FastSums.accumulate = more  # type: ignore[method-assign]
    if what == "sums":

        def own(pieces: torch.Tensor, width: int, size: int) -> torch.Tensor:
            return pieces[rank * width : (rank + 1) * width].double() * size

        placement.summed = own
    if what == "rows" and rank == 1:
        summed = placement.summed
        placement.summed = lambda *given: summed(*given) * 1.05
    return begun(root, sharded)


def told(rank: int, root: Path) -> list[str]:
    return [begun(root, wrap) for wrap in (sharded, half, divided)]


@pytest.mark.parametrize("numbers", [(2, 1), pytest.param((4, 2, 1), marks=pytest.mark.slow)])
def test_probes_hold_as_many_bytes_a_coordinate_as_shards_have_and_one_tensor_more(
    tmp_path: Path, numbers: tuple[int, ...]
) -> None:
    """Values to come back to and gradients are 8 bytes of a shard; a tensor here is an eighth of the model."""
    small_world(tmp_path)
    found = {ranks: max(launched(held, ranks, tmp_path)) for ranks in numbers}
    assert all(6.0 / ranks < each < 8.0 / ranks + 2.0 for ranks, each in found.items()), found
    assert list(found.values()) == sorted(set(found.values()))


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    ("what", "code"), [("gradients", "GRADIENT_MISMATCH"), ("sums", "SHARD_LAYOUT"), ("rows", "SHARD_LAYOUT")]
)
def test_what_is_wrong_at_one_rank_is_refused_at_all_by_the_same_tensor(tmp_path: Path, what: str, code: str) -> None:
    small_world(tmp_path)
    found = launched(wrong, 2, tmp_path, what)
    assert found[0] == found[1] and found[0].startswith(f"{code} "), found


@pytest.mark.slow
def test_how_torch_would_divide_gradients_or_round_them_refuses_no_model(tmp_path: Path) -> None:
    small_world(tmp_path)
    assert launched(told, 2, tmp_path) == [["begun"] * 3] * 2
