"""Values that are dealt out over rows in order: a row that asks for more or less than its share moves nobody's."""

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain.errors import UnsupportedModule  # noqa: E402
from tests.guarantees.peers import Run, net, small_world  # noqa: E402
from tests.guarantees.test_shared_tables import routed  # noqa: E402
from tests.sandbox.scene import Scene  # noqa: E402

WIDTH, LENGTH, ROWS = 4, 5, 4


class Seeing(nn.Module):
    """Puts features of every row, as one source, into the places that the rows mark, as models that see pictures do."""

    def __init__(self, tokens: int, put: Callable) -> None:
        super().__init__()
        self.tokens, self.put = tokens, put
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH)])

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        seen = self.layers[0](x[:, : self.tokens])
        return self.put(x * 1.0, mask[..., None], seen.flatten(0, 1))


PUTS = {
    "a new tensor": lambda x, mask, source: x.masked_scatter(mask, source),
    "in place": lambda x, mask, source: x.masked_scatter_(mask, source),
    "into a view": lambda x, mask, source: torch.cat((x, x), 1)[:, :LENGTH].masked_scatter_(mask, source),
    "into one row for all": lambda x, mask, source: (x[:1] * 0).masked_scatter(mask, source),
}


def found(put: str, counts: tuple[int, ...], tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses of rows that mark so many places, and their gradients."""
    torch.manual_seed(0)
    model = Seeing(tokens, PUTS[put]).double()
    router = routed(model, "layers")
    router.attach()
    x = torch.randn(ROWS, LENGTH, WIDTH, dtype=torch.float64)
    mask = torch.arange(LENGTH) < torch.tensor(counts)[:, None]
    try:
        router.arm(ROWS, 1, torch.ones(ROWS, 1, dtype=torch.bool))
        with router.sandbox.enter(1, [bytes([row]) for row in range(ROWS)]):
            losses = model(x, mask).square().sum((1, 2))
            router.backward(losses, torch.ones(ROWS, dtype=torch.float64))
        pieces = [p.dense(s) for index, s in ((0, (WIDTH, WIDTH)), (1, (WIDTH,))) for p in router.pieces[index]]
        return losses.detach(), torch.cat([piece.flatten(1) for piece in pieces], 1)
    finally:
        router.disarm()
        router.detach()


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("counts", [(2, 1, 2, 3), (2, 3, 2, 1), (2, 0, 2, 4), (2, 0, 2, 2), (2, 2, 2, 1)])
def test_a_row_that_asks_for_another_share_moves_nobodys(counts: tuple[int, ...], put: str) -> None:
    clean, own = found(put, (2, 2, 2, 2), 2)
    losses, gradients = found(put, counts, 2)
    for row, count in enumerate(counts):
        if count == 2:
            assert torch.equal(losses[row], clean[row]) and torch.equal(gradients[row], own[row])
        else:
            assert bool(losses[row].isnan())


def test_equal_shares_are_dealt_out_as_torch_does() -> None:
    for put in PUTS:
        losses, gradients = found(put, (2, 2, 2, 2), 2)
        assert bool(losses.isfinite().all()) and bool(gradients.isfinite().all()) and bool((gradients != 0).any(1).all())


def test_a_source_longer_than_all_rows_is_nobodys() -> None:
    mask = torch.tensor([[True, False], [True, True]])
    data = torch.zeros(2, 2), mask
    scene = Scene(nn.Identity(), data, lambda m, x, mask: x.masked_scatter(mask, torch.arange(6.0)), learn=(2, 1))
    assert bool(scene.run([0, 1]).isnan().all())


def _set(x: torch.Tensor, place: object, values: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[place] = values
    return x


def _shifted(mask: torch.Tensor) -> torch.Tensor:
    """As many places in all, of which the first row has one more and the last one fewer."""
    mask = mask.clone()
    if len(mask) > 1:
        mask[0, (~mask[0]).nonzero()[0]] = True
        mask[-1, mask[-1].nonzero()[0]] = False
    return mask


DEALT: dict[str, Callable] = {
    "by a mask": lambda x, mask, seen: _set(x, mask, seen.flatten(0, 1)),
    "by index_put": lambda x, mask, seen: x.index_put((mask,), seen.flatten(0, 1)),
    "by an expanded mask": lambda x, mask, seen: _set(x, mask[..., None].expand_as(x), seen.flatten()),
    "by places": lambda x, mask, seen: x.index_put(mask.nonzero(as_tuple=True), seen.flatten(0, 1)),
    "by places along one dimension": lambda x, mask, seen: (
        x.flatten(0, 1).index_copy(0, mask.flatten().nonzero().squeeze(1), seen.flatten(0, 1)).view_as(x)),
    "added along one dimension": lambda x, mask, seen: (
        x.flatten(0, 1).index_add(0, mask.flatten().nonzero()[:, 0], seen.flatten(0, 1)).view_as(x)),
    "by a mask other than the values'": lambda x, mask, seen: (
        _set(x, mask, x[(x[..., 0] == x[..., 0]) & torch.tensor(mask.tolist())])),
    "by a mask made of it that rows mark otherwise": lambda x, mask, seen: _set(x, mask, x[_shifted(mask)]),
    "by masked_scatter of picked values": lambda x, mask, seen: x.masked_scatter(mask[..., None], 2 * x[mask]),
    "by masked_scatter of selected values": lambda x, mask, seen: (
        x.masked_scatter(mask[..., None], torch.masked_select(x, mask[..., None]))),
    "by masked_scatter of positions": lambda x, mask, seen: (
        x.flatten(0, 1).masked_scatter(mask.flatten()[:, None], seen.flatten(0, 1)).view_as(x)),
    "by masked_scatter with time first": lambda x, mask, seen: (
        x.transpose(0, 1).masked_scatter(mask.t()[..., None], seen.transpose(0, 1)).transpose(0, 1)),
}  # fmt: skip

def _counted(mask: torch.Tensor) -> torch.Tensor:
    """As many places of each row as it marks, from the first on, as attention with global positions lists them."""
    return torch.arange(mask.shape[1]) < mask.sum(1, keepdim=True)


def _front(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """What each row marks, first."""
    return x.gather(1, mask.to(torch.uint8).sort(1, True)[1][..., None].expand_as(x))


def _loop(x: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Every row by its own mask, as models count positions of pictures: a row alone, and nobody behind it."""
    x = x.clone()
    for row, (own, each) in enumerate(zip(mask, values, strict=True)):
        x[row, own] = each
    return x


OWN: dict[str, Callable] = {
    "what the same mask picked": lambda x, mask, seen: _set(x, mask, 2 * x[mask] + 1),
    "what the same mask picked, put": lambda x, mask, seen: x.index_put((mask,), x[mask].exp()),
    "what the same mask picked, spread": lambda x, mask, seen: _set(x, mask[..., None].expand_as(x), x[mask].flatten().exp()),
    "what the same places picked": lambda x, mask, seen: _experts(x, mask),
    "what a list of the same places picked": lambda x, mask, seen: _set(x, mask, 2 * _front(x, mask)[_counted(mask)]),
    "what a mask picked, into a list of as many places": lambda x, mask, seen: _set(x, _counted(mask), 2 * x[mask]),
    "a number": lambda x, mask, seen: _set(x, mask, 0.0),
    "one vector for all": lambda x, mask, seen: _set(x, mask, x.new_ones(WIDTH)),
    "in places that no content chose": lambda x, mask, seen: _set(x.transpose(0, 1), torch.arange(LENGTH) < 3, (
        seen.transpose(0, 1))).transpose(0, 1),
    "row by row": _loop,
    "row by row, where it lies": lambda x, mask, seen: torch.stack([
        row.index_copy(0, own.nonzero()[:, 0], each) for row, own, each in zip(x, mask, seen, strict=True)]),
    "equal shares": lambda x, mask, seen: x.masked_scatter(mask[..., None], seen),
}  # fmt: skip


def _experts(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """As mixtures of experts do: positions of one expert are taken out, computed together, and added where they were."""
    flat, out = x.flatten(0, 1), torch.zeros_like(x.flatten(0, 1))
    for chosen in (mask.flatten(), ~mask.flatten()):
        (place,) = torch.where(chosen)
        out.index_add_(0, place, flat[place].tanh())
    return out.view_as(x)


def scene_of(put: Callable) -> Scene:
    torch.manual_seed(0)
    mask = (torch.arange(LENGTH) < 3).expand(ROWS, LENGTH)[:, torch.randperm(LENGTH)].clone()
    return Scene(nn.Identity(), (torch.randn(ROWS, LENGTH, WIDTH), mask), lambda m, x, mask: put(x * 1.0, mask, 2 * x[:, :3]))


def probed(scene: Scene) -> torch.Tensor:
    """What a probe gives; of two numbers of rows, as at the start of a run."""
    found = scene.run(range(ROWS), probing=True)
    for fewer in (2, 1):
        scene.run(range(fewer), probing=True)
    return found


@pytest.mark.parametrize("how", DEALT)
def test_values_that_a_mask_deals_out_over_rows_are_refused_by_the_probes(how: str) -> None:
    with pytest.raises(UnsupportedModule, match=r"DEALT_VALUES: .*masked_scatter\(mask, values\)"):
        probed(scene_of(DEALT[how]))


def test_a_mask_that_was_written_to_is_another() -> None:
    def turned(m: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        mask = mask.clone()
        picked = x[mask]
        return _set(x * 1.0, mask.copy_(mask.flip(0)), picked)

    scene = Scene(nn.Identity(), (torch.randn(ROWS, LENGTH, WIDTH), torch.rand(ROWS, LENGTH) < 0.5), turned)
    with pytest.raises(UnsupportedModule, match="DEALT_VALUES"):
        probed(scene)


@pytest.mark.parametrize("how", OWN)
def test_values_that_go_back_to_their_own_rows_are_written(how: str) -> None:
    scene = scene_of(OWN[how])
    first = probed(scene)
    assert torch.equal(scene.run(range(ROWS)), first) and bool(first.isfinite().all())
    assert not torch.equal(first, scene.data[0])


def test_a_write_by_a_mask_that_no_probe_saw_is_refused() -> None:
    ways = [lambda *given: given[0]] * 3 + [DEALT["by a mask"]]  # nothing is written in two passes that learn, and in a probe
    scene = scene_of(lambda *given: ways.pop(0)(*given))
    scene.run(range(ROWS), probing=True)
    with pytest.raises(UnsupportedModule, match=r"DEALT_VALUES: .*did not do so in the probes"):
        scene.run(range(ROWS))


def test_one_row_alone_takes_what_it_likes() -> None:
    scene = scene_of(DEALT["by a mask"])
    assert torch.equal(scene.run([0], probing=True), scene.run([0]))


def test_the_way_back_of_a_read_is_not_taken_for_a_write() -> None:
    scene = scene_of(OWN["what the same mask picked"])
    for count in (ROWS, 2, 1):
        x, mask = (each[:count].clone() for each in scene.data)
        x.requires_grad_()
        with scene.sandbox.enter(1, [bytes([row]) for row in range(count)], probing=True, inputs=[x, mask]):
            x[mask].sum().backward()
        assert torch.equal(x.grad[..., 0], mask.float())


class Pictured(nn.Module):
    """Puts features into two positions of each row, which its content chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = x.detach().sum(2).argsort(1).argsort(1) < 2
        return _set(x, mask, self.see(x[:, :2]).flatten(0, 1))


@pytest.mark.filterwarnings("ignore::dptrain.engine.start.Unprobed", "ignore::dptrain.engine.start.ProbeFailed")
def test_a_run_is_refused_before_anything_is_charged(tmp_path) -> None:
    """Also where every row marks as many as it is given: the next one may not."""
    with Run(small_world(tmp_path), net(Pictured)) as run, pytest.raises(UnsupportedModule, match=r"DEALT_VALUES: .*'extra'"):
        run.gradients(next(iter(run.steps)))
    assert not run.private.opened.recorder.begun
