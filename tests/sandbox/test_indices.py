"""An index out of range stops nothing: its row gets NaN or is marked, the others get what they had, to the bit."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from tests.sandbox.scene import Scene  # noqa: E402

F = nn.functional
TABLE = torch.arange(40.0).reshape(10, 4)
IDS = torch.arange(32).reshape(8, 4) % 9
IDS[0, 0] = 0
SCORES = torch.linspace(-1, 1, 8 * 4 * 9).reshape(8, 4, 9)
ONES = torch.ones(8, 4, 1)


def widened(ids: torch.Tensor) -> torch.Tensor:
    return torch.linspace(0, 1, ids.numel() * 9).reshape(*ids.shape, 9)


def flat(loss, ids: torch.Tensor) -> torch.Tensor:
    return loss(widened(ids).flatten(0, 1), ids.flatten(), reduction="none").view(ids.shape)


READS = {
    "embedding": lambda m, ids: F.embedding(ids, TABLE),
    "cross entropy": lambda m, ids: F.cross_entropy(widened(ids).mT, ids, reduction="none"),
    "cross entropy of rows": lambda m, ids: F.cross_entropy(widened(ids)[:, 0], ids[:, 1], reduction="none"),
    "smoothed cross entropy": lambda m, ids: F.cross_entropy(widened(ids).mT, ids, reduction="none", label_smoothing=0.1),
    "weighted cross entropy": lambda m, ids: F.cross_entropy(widened(ids).mT, ids, weight=torch.ones(9), reduction="none"),
    "flat cross entropy": lambda m, ids: flat(F.cross_entropy, ids),
    "gather": lambda m, ids: widened(ids).gather(2, ids[..., None])[..., 0],
    "take": lambda m, ids: TABLE.take(ids),
    "index_select": lambda m, ids: TABLE.index_select(0, ids.flatten()).view(*ids.shape, 4),
    "index": lambda m, ids: TABLE[ids],
    "index of two": lambda m, ids: widened(ids)[torch.arange(len(ids))[:, None], torch.arange(4)[None], ids],
    "index behind": lambda m, ids: TABLE.T[:, ids].permute(1, 2, 0),
    "multi margin": lambda m, ids: flat(F.multi_margin_loss, ids),
}


def broken(row: int, value: int) -> torch.Tensor:
    ids = IDS.clone()
    ids[row, 1] = value
    return ids


@pytest.mark.parametrize("value", [-1, 1000, 1 << 40])
@pytest.mark.parametrize("name", READS)
def test_an_index_out_of_range_gives_its_row_nan_and_moves_nobody(name: str, value: int) -> None:
    if name.startswith(("index", "take")) and value == -1 and name != "index_select":
        value = -1000  # counted from the end a small one is in range
    scene = Scene(nn.Identity(), IDS, READS[name])
    right = scene.run(range(8))
    assert torch.equal(right, READS[name](None, IDS)), "in range it is torch's own"
    found = scene.run(range(8), data=[broken(5, value)])
    assert torch.equal(found[[0, 1, 2, 3, 4, 6, 7]], right[[0, 1, 2, 3, 4, 6, 7]])
    assert bool(found[5].isnan().any())
    assert name == "cross entropy of rows" or torch.equal(found[5, 2:], right[5, 2:]), "and of the row its own place alone"


@pytest.mark.parametrize("name", READS)
def test_torch_raises_where_nothing_stands_between(name: str) -> None:
    """The negative control."""
    with pytest.raises((IndexError, RuntimeError)):
        READS[name](None, broken(5, 1000))


def test_labels_that_are_to_be_ignored_are_ignored() -> None:
    scene = Scene(nn.Identity(), IDS, READS["cross entropy"])
    found = scene.run(range(8), data=[broken(5, -100)])
    assert float(found[5, 1]) == 0.0 and not bool(found.isnan().any())


@pytest.mark.parametrize("name", ["cross entropy", "gather", "index of two", "multi margin", "smoothed cross entropy"])
def test_the_way_back_is_total_too(name: str) -> None:
    scores = SCORES.clone().requires_grad_(True)

    def through(model, ids, scores):
        global widened
        kept, widened = widened, lambda ids: scores * 2.0
        try:
            losses = READS[name](None, ids).reshape(len(ids), -1).sum(1)
        finally:
            widened = kept
        weight = torch.where(losses.isfinite(), 1.0, torch.nan)
        return torch.autograd.grad(losses, scores, weight)[0]

    scene = Scene(nn.Identity(), (IDS, scores), through)
    values = [broken(5, 10), scores]
    clean = scene.run(range(8), data=[IDS, scores])
    found = scene.run(range(8), data=values)
    others = [0, 1, 2, 3, 4, 6, 7]
    assert torch.equal(found[others], clean[others]) and float(clean.abs().sum()) > 0
    assert not bool(found[5].isfinite().all()), "so that the clip makes it zero"


WRITES = {
    "scatter": lambda m, ids: torch.zeros(*ids.shape, 9).scatter(2, ids[..., None], 1.0),
    "scatter_": lambda m, ids: torch.zeros(*ids.shape, 9).scatter_(2, ids[..., None], 1.0),
    "scatter src": lambda m, ids: torch.zeros(*ids.shape, 9).scatter(2, ids[..., None], torch.ones(*ids.shape, 1)),
    "scatter_add": lambda m, ids: torch.zeros(*ids.shape, 9).scatter_add(2, ids[..., None], torch.ones(*ids.shape, 1)),
    "scatter_reduce": lambda m, ids: torch.zeros(*ids.shape, 9).scatter_reduce(2, ids[..., None], ONES[: len(ids)], "amax"),
    "index_put": lambda m, ids: torch.zeros(*ids.shape, 9).index_put(
        (torch.arange(len(ids))[:, None], torch.arange(4)[None], ids), torch.ones(())
    ),
    "assignment": lambda m, ids: _assigned(ids),
    "one_hot": lambda m, ids: F.one_hot(ids, 9),
}


def _assigned(ids: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(*ids.shape, 9)
    out[torch.arange(len(ids))[:, None], torch.arange(4)[None], ids] = 1.0
    return out


@pytest.mark.parametrize("value", [-30, 10, 1 << 40])
@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_out_of_range_is_dropped_and_the_row_is_marked(name: str, value: int) -> None:
    marks = []

    def noting(model, ids):
        out = WRITES[name](model, ids)
        marks.append(scene.sandbox.current.bad) if scene else None
        return out

    scene = None
    scene = Scene(nn.Identity(), IDS, noting)
    right = scene.run(range(8))
    assert torch.equal(right, WRITES[name](None, IDS))
    found = scene.run(range(8), data=[broken(5, value)])
    expected = right.clone()
    expected[5, 1] = 0
    assert torch.equal(found, expected)
    assert marks[-1] is not None and marks[-1].tolist() == [row == 5 for row in range(8)]


def test_a_row_of_integers_that_was_looked_up_out_of_range_is_marked_where_time_comes_first() -> None:
    """By the layout that the probes saw, not by the first dimension."""
    marks = []

    def looked_up(model, ids):
        out = torch.arange(9)[ids.T.contiguous()]
        marks.append(scene.sandbox.current.bad) if scene else None
        return out.T

    scene = None
    scene = Scene(nn.Identity(), IDS[:4], looked_up)  # four rows of four
    ids = IDS[:4].clone()
    ids[2, 1] = 99
    scene.run(range(4), data=[ids])
    assert marks[-1].tolist() == [False, False, True, False]


def test_a_probability_that_is_none_stops_no_binary_cross_entropy() -> None:
    chance = torch.full((8, 4), 0.5)
    scene = Scene(nn.Identity(), chance, lambda m, x: F.binary_cross_entropy(x, torch.ones_like(x), reduction="none").sum(1))
    for value in (torch.nan, 1.5, -0.1, torch.inf):
        bad = chance.clone()
        bad[5, 1] = value
        found = scene.run(range(8), data=[bad])
        assert found.isnan().tolist() == [row == 5 for row in range(8)]
    with pytest.raises(RuntimeError):
        F.binary_cross_entropy(bad, torch.ones_like(bad))


def test_weights_of_rows_that_count_as_zero_are_nan() -> None:
    scene = Scene(nn.Identity(), IDS)
    losses = torch.tensor([1.0, torch.nan, 2.0, torch.inf])
    with scene.sandbox.enter(1, [b"a", b"b", b"c", b"d"]) as entered:
        entered.bad = torch.tensor([True, False, False, False])
        found = scene.sandbox.strike(losses, torch.ones(4))
    assert found.isnan().tolist() == [True, True, False, True]


@pytest.mark.parametrize("name", ["one_hot", "scatter", "assignment"])
def test_a_row_is_marked_after_probes_that_saw_none_out_of_range(name: str) -> None:
    """Whether any is, is a question of our own: it does not get the answer that the probes got."""
    scene = Scene(nn.Identity(), IDS, WRITES[name])
    scene.run(range(8), probing=True)
    assert not scene.sandbox.decided
    marks = []
    scene.function = lambda m, ids: (WRITES[name](m, ids), marks.append(scene.sandbox.current.bad))[0]
    scene.run(range(8), data=[broken(5, 10)])
    assert marks[0] is not None and marks[0].tolist() == [row == 5 for row in range(8)]
