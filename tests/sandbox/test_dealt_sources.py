"""One source that ``masked_scatter`` deals out over rows: a row that asks for more or less than its share moves nobody's."""

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from tests.guarantees.test_shared_tables import routed  # noqa: E402

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


PUTS = {"a new tensor": lambda x, mask, source: x.masked_scatter(mask, source), "in place": lambda x, mask, source: (
    x.masked_scatter_(mask, source))}  # fmt: skip


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
