"""An index out of range stops nothing: its row gets NaN or is marked, the others get what they had, to the bit."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from tests.sandbox.scene import Scene  # noqa: E402

F = nn.functional
TABLE = torch.arange(40.0).reshape(10, 4)
LEARNT = TABLE.clone().requires_grad_(True)
IDS = torch.arange(32).reshape(8, 4) % 9
IDS[0, 0] = 0
SCORES = torch.linspace(-1, 1, 8 * 4 * 9).reshape(8, 4, 9)
ONES = torch.ones(8, 4, 1)
ONE, FLAT = torch.ones(()), torch.ones(32)


def widened(ids: torch.Tensor) -> torch.Tensor:
    return torch.linspace(0, 1, ids.numel() * 9).reshape(*ids.shape, 9)


def flat(loss, ids: torch.Tensor) -> torch.Tensor:
    return loss(widened(ids).flatten(0, 1), ids.flatten(), reduction="none").view(ids.shape)


def place(ids: torch.Tensor) -> torch.Tensor:
    """Of every id its place in all numbers of ``widened``, which none out of range has."""
    inside = torch.arange(ids.numel()).view(ids.shape) * 9 + ids
    return torch.where((ids >= 0) & (ids < 9), inside, ids * 1000)


def zeros(ids: torch.Tensor) -> torch.Tensor:
    return torch.zeros(ids.numel() * 9)


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
    "take of scores": lambda m, ids: widened(ids).take(place(ids)),
    "bag": lambda m, ids: F.embedding_bag(ids.reshape(-1, 1), TABLE).view(*ids.shape, 4),
    "bag of maxima": lambda m, ids: F.embedding_bag(ids.reshape(-1, 1), TABLE, mode="max").view(*ids.shape, 4),
    "bag of a table that learns": lambda m, ids: F.embedding_bag(ids.reshape(-1, 1), LEARNT, mode="sum").view(*ids.shape, 4),
    "bag of bags": lambda m, ids: F.embedding_bag(ids, TABLE, padding_idx=0),
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
    whole = name in ("cross entropy of rows", "bag of bags")
    assert whole or torch.equal(found[5, 2:], right[5, 2:]), "and of the row its own place alone"


@pytest.mark.parametrize("name", READS)
def test_torch_raises_where_nothing_stands_between(name: str) -> None:
    """The negative control."""
    with pytest.raises((IndexError, RuntimeError)):
        READS[name](None, broken(5, 1000))


def test_labels_that_are_to_be_ignored_are_ignored() -> None:
    scene = Scene(nn.Identity(), IDS, READS["cross entropy"])
    found = scene.run(range(8), data=[broken(5, -100)])
    assert float(found[5, 1]) == 0.0 and not bool(found.isnan().any())


WAYS_BACK = ["cross entropy", "gather", "index of two", "multi margin", "smoothed cross entropy", "take of scores"]


@pytest.mark.parametrize("name", WAYS_BACK)
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


LABELS = torch.tensor([[1, 3, -1, -1, -1, -1, -1, -1, -1]]).repeat(8, 1)


def test_labels_of_a_margin_loss_that_are_out_of_range_give_their_row_nan_and_so_does_the_way_back() -> None:
    scores = SCORES[:, 0].clone().requires_grad_(True)

    def through(model, labels, scores):
        losses = F.multilabel_margin_loss(scores * 1.0, labels, reduction="none")
        return losses.detach(), torch.autograd.grad(losses.sum(), scores)[0]

    scene = Scene(nn.Identity(), (LABELS, scores), through)
    right = scene.run(range(8), data=[LABELS, scores])
    assert not any(bool(value.isnan().any()) for value in right), "-1 ends the labels of a row and is none"
    for value in (9, -2, 1 << 40):
        labels = LABELS.clone()
        labels[5, 1] = value
        with pytest.raises(RuntimeError):
            through(None, labels, scores)
        found = scene.run(range(8), data=[labels, scores])
        assert found[0].isnan().tolist() == [row == 5 for row in range(8)]
        assert all(torch.equal(a[:5], b[:5]) and torch.equal(a[6:], b[6:]) for a, b in zip(found, right, strict=True))


def bags(ids: torch.Tensor, learnt: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    """The bags of the rows, and gradients of those that are finite."""
    out = F.embedding_bag(ids, learnt, mode="sum", per_sample_weights=weights)
    weight = torch.where(out.isfinite(), 1.0, 0.0).detach()
    return [out.detach(), *torch.autograd.grad(out, [learnt, weights], weight)]


def test_the_way_back_of_bags_leaves_out_the_one_that_is_out_of_range() -> None:
    weights = torch.ones(8, 4, requires_grad=True)
    scene = Scene(nn.Identity(), IDS, lambda m, ids: bags(ids, LEARNT, weights[: len(ids)] * 1.0))
    found = scene.run(range(8), data=[broken(5, 10)])
    others = [0, 1, 2, 3, 4, 6, 7]
    right = bags(IDS[others], LEARNT, weights[others])
    assert bool(found[0][5].isnan().all())
    for one, other in zip((found[0][others], found[1], found[2][others]), right, strict=True):
        torch.testing.assert_close(one, other)
    assert float(found[1].abs().sum()) > 0


def test_the_way_back_to_the_weights_of_a_bag_reads_nothing_behind_its_table() -> None:
    longer = torch.cat((TABLE, torch.full((1, 4), 1000.0)))

    def through(model, ids):
        weights = torch.ones(ids.shape, requires_grad=True)
        out = F.embedding_bag(ids, longer[:10], mode="sum", per_sample_weights=weights)
        return torch.autograd.grad(out.sum(), weights)[0]

    found = Scene(nn.Identity(), IDS, through).run(range(8), data=[broken(5, 10)])
    assert float(found.max()) < 1000.0 and torch.equal(found[:5], through(None, IDS)[:5])


@pytest.mark.parametrize("offsets", [[0, 9, 4, 6], [1, 2, 4, 6], [0, 2, 4, 90], [0, -3, 4, 6]])
def test_bags_that_do_not_begin_one_after_another_are_nobodys(offsets: list[int]) -> None:
    ids = torch.arange(8)

    def held(model, offsets):
        out = F.embedding_bag(ids[: 2 * len(offsets)], LEARNT, offsets, mode="sum")
        return out.detach(), torch.autograd.grad(out.sum(), LEARNT)[0]

    right = torch.arange(0, 8, 2)
    scene = Scene(nn.Identity(), right, held)
    assert not bool(scene.run(range(4))[0].isnan().any())
    found = scene.run(range(4), data=[torch.tensor(offsets)])
    assert bool(found[0].isnan().all()) and float(found[1].abs().sum()) == 0


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
    "scatter and add": lambda m, ids: torch.zeros(*ids.shape, 9).scatter(2, ids[..., None], ONES[: len(ids)], reduce="add"),
    "scatter_ and add": lambda m, ids: torch.zeros(*ids.shape, 9).scatter_(2, ids[..., None], ONES[: len(ids)], reduce="add"),
    "scatter and add one": lambda m, ids: torch.zeros(*ids.shape, 9).scatter(2, ids[..., None], 1.0, reduce="add"),
    "scatter_ and add one": lambda m, ids: torch.zeros(*ids.shape, 9).scatter_(2, ids[..., None], 1.0, reduce="add"),
    "put": lambda m, ids: zeros(ids).put(place(ids), torch.ones(ids.shape)).view(*ids.shape, 9),
    "put_": lambda m, ids: zeros(ids).view(*ids.shape, 9).put_(place(ids), torch.ones(ids.shape), accumulate=True),
    "index_fill": lambda m, ids: zeros(ids).index_fill(0, place(ids).flatten(), 1.0).view(*ids.shape, 9),
    "index_fill_": lambda m, ids: zeros(ids).index_fill_(0, place(ids).flatten(), 1.0).view(*ids.shape, 9),
    "index_fill by a tensor": lambda m, ids: zeros(ids).index_fill(0, place(ids).flatten(), ONE).view(*ids.shape, 9),
    "index_fill_ by a tensor": lambda m, ids: zeros(ids).index_fill_(0, place(ids).flatten(), ONE).view(*ids.shape, 9),
    "index_reduce": lambda m, ids: (
        zeros(ids).index_reduce(0, place(ids).flatten(), FLAT[: ids.numel()], "amax").view(*ids.shape, 9)
    ),
    "index_reduce_": lambda m, ids: (
        zeros(ids).index_reduce_(0, place(ids).flatten(), FLAT[: ids.numel()], "mean", include_self=False).view(*ids.shape, 9)
    ),
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


@pytest.mark.parametrize("name", [name for name in WRITES if name != "one_hot"])
def test_torch_raises_at_a_write_where_nothing_stands_between(name: str) -> None:
    """The negative control."""
    with pytest.raises((IndexError, RuntimeError)):
        WRITES[name](None, broken(5, 10))


def test_a_number_below_zero_is_not_counted_and_its_row_is_marked() -> None:
    marks = []

    def counted(model, ids):
        out = torch.bincount(ids.flatten(), minlength=9), torch.bincount(ids.flatten(), torch.ones(ids.numel()), minlength=9)
        marks.append(scene.sandbox.current.bad) if scene else None
        return out

    scene = None
    scene = Scene(nn.Identity(), IDS, counted)
    rest = torch.cat((IDS[:5].flatten(), IDS[5, [0, 2, 3]], IDS[6:].flatten()))
    for found in scene.run(range(8), data=[broken(5, -1)]):
        assert torch.equal(found, torch.bincount(rest, minlength=9).to(found.dtype))
    assert marks[-1] is not None and marks[-1].tolist() == [row == 5 for row in range(8)]
    with pytest.raises(RuntimeError):
        torch.bincount(broken(5, -1).flatten())


def test_places_that_index_fill_counts_from_the_end_are_in_range() -> None:
    marks = []

    def filled(model, ids):
        out = torch.zeros(len(ids), 9).index_fill(1, ids[0] - 9, 1.0)
        marks.append(scene.sandbox.current.bad) if scene else None
        return out

    scene = None
    scene = Scene(nn.Identity(), IDS, filled)
    assert torch.equal(scene.run(range(8)), torch.zeros(8, 9).index_fill(1, IDS[0] - 9, 1.0)) and marks == [None]


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
    assert not scene.sandbox.truths.decided
    marks = []
    scene.function = lambda m, ids: (WRITES[name](m, ids), marks.append(scene.sandbox.current.bad))[0]
    scene.run(range(8), data=[broken(5, 10)])
    assert marks[0] is not None and marks[0].tolist() == [row == 5 for row in range(8)]


CLASSES, LONG = 6, 5
SAID = torch.tensor([[1, 2, 3], [3, 1, 4], [5, 5, 2], [2, 4, 1]])
HEARD = torch.randn(4, LONG, CLASSES, generator=torch.Generator().manual_seed(0))
OTHERS = [0, 2, 3]
SPELT = {"in rows": lambda said: said, "one after another": lambda said: said.flatten()}
LENGTHS = {"tensors": lambda value: value, "numbers": lambda value: value.tolist()}


def transcribed(said, frames, counts, heard, lengths="tensors"):
    """Losses by row, and their gradients."""
    scores = heard.clone().requires_grad_(True)
    steps = scores.log_softmax(-1).transpose(0, 1).contiguous()
    losses = F.ctc_loss(steps, said, LENGTHS[lengths](frames), LENGTHS[lengths](counts), reduction="none", zero_infinity=True)
    return losses.detach(), torch.autograd.grad(losses.sum(), scores)[0]


def full(said: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((len(said),), LONG), torch.full((len(said),), 3)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("spelt", SPELT)
@pytest.mark.parametrize("label", [CLASSES, CLASSES + 1, -1, 1 << 40])
def test_a_label_of_a_ctc_loss_that_is_out_of_range_gives_its_row_nan_and_moves_nobody(
    label: int, spelt: str, lengths: str
) -> None:
    scene = Scene(nn.Identity(), (SAID, HEARD), lambda m, s, h: transcribed(SPELT[spelt](s), *full(s), h, lengths))
    right = scene.run(range(4))
    assert all(torch.equal(a, b) for a, b in zip(right, transcribed(SAID, *full(SAID), HEARD), strict=True))
    said = SAID.clone()
    said[1, 1] = label
    losses, way_back = scene.run(range(4), data=[said, HEARD])
    assert losses.isnan().tolist() == [False, True, False, False] and not bool(way_back[1].isfinite().any())
    assert torch.equal(losses[OTHERS], right[0][OTHERS]) and torch.equal(way_back[OTHERS], right[1][OTHERS])


def test_torch_lets_a_label_of_one_row_move_the_gradient_of_another() -> None:
    """The negative control."""
    said = SAID.clone()
    said[1, 1] = CLASSES + 1
    assert not torch.equal(transcribed(said, *full(said), HEARD)[1][2], transcribed(SAID, *full(SAID), HEARD)[1][2])


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("frames", "count"), [(LONG + 1, 3), (-1, 3), (1 << 40, 3), (LONG, 4), (LONG, -1), (LONG, 1 << 40)])
def test_a_length_of_a_ctc_loss_that_is_out_of_range_gives_its_row_nan_and_moves_nobody(
    frames: int, count: int, lengths: str
) -> None:
    scene = Scene(
        nn.Identity(), (SAID, *full(SAID), HEARD), lambda m, *values: transcribed(*values, lengths=lengths)
    )  # fmt: skip
    right = scene.run(range(4))
    heard, spelt = full(SAID)
    heard[1], spelt[1] = frames, count
    with pytest.raises(RuntimeError):
        transcribed(SAID, heard, spelt, HEARD)
    losses, way_back = scene.run(range(4), data=[SAID, heard, spelt, HEARD])
    assert losses.isnan().tolist() == [False, True, False, False]
    assert torch.equal(losses[OTHERS], right[0][OTHERS]) and torch.equal(way_back[OTHERS], right[1][OTHERS])


def test_labels_behind_the_length_of_a_row_are_none() -> None:
    said = SAID.clone()
    said[1, 2], said[3, 1:] = -100, CLASSES
    counts = torch.tensor([3, 2, 3, 1])
    scene = Scene(nn.Identity(), (SAID, HEARD), lambda m, s, h: transcribed(s, full(s)[0], counts[: len(s)], h))
    found = scene.run(range(4), data=[said, HEARD])
    assert all(torch.equal(a, b) for a, b in zip(found, scene.run(range(4)), strict=True))
    assert bool(found[0].isfinite().all())


def test_shapes_of_a_ctc_loss_that_do_not_fit_are_refused_by_torch() -> None:
    scene = Scene(nn.Identity(), SAID, lambda m, said: said)
    for said, count in ((SAID[:2], 4), (SAID[:1], 4), (SAID, 3)):
        with pytest.raises(RuntimeError, match="size"), scene.sandbox.enter(1, [b"a", b"b", b"c", b"d"]):
            transcribed(said, torch.full((4,), LONG), torch.full((count,), 3), HEARD)


@pytest.mark.parametrize("count", [2, 4, -1, 1 << 40])
def test_lengths_of_labels_one_after_another_that_do_not_add_up_are_nobodys(count: int) -> None:
    """Whose label is whose cannot be said, so all rows count as zero."""
    scene = Scene(
        nn.Identity(), (SAID, *full(SAID), HEARD), lambda m, s, *values: transcribed(s.flatten(), *values)
    )  # fmt: skip
    frames, counts = full(SAID)
    counts[1] = count
    with pytest.raises(RuntimeError):
        transcribed(SAID.flatten(), frames, counts, HEARD)
    assert bool(scene.run(range(4), data=[SAID, frames, counts, HEARD])[0].isnan().all())


def test_a_row_by_itself_has_a_ctc_loss_that_is_total() -> None:
    def each(model, said, counts, heard):
        return torch.stack([
            F.ctc_loss(h.log_softmax(-1), s, torch.tensor(LONG), n, reduction="none")
            for s, n, h in zip(said, counts, heard, strict=True)
        ])  # fmt: skip

    scene = Scene(nn.Identity(), (SAID, full(SAID)[1], HEARD), each)
    said, counts = SAID.clone(), full(SAID)[1]
    said[1, 0], counts[3] = CLASSES, 7
    found = scene.run(range(4), data=[said, counts, HEARD])
    assert found.isnan().tolist() == [False, True, False, True]
    torch.testing.assert_close(found[[0, 2]], each(None, SAID, full(SAID)[1], HEARD)[[0, 2]], rtol=0, atol=0)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_the_kernel_of_a_ctc_loss_follows_from_no_length(lengths: str) -> None:
    """Were it asked, cuDNN would take the loss of all rows or leave it, by the lengths of one."""
    steps, said = HEARD.transpose(0, 1), SAID.flatten().int()
    frames, counts = (LENGTHS[lengths](value) for value in full(SAID))
    with Scene(nn.Identity(), SAID).sandbox.enter(1, [b"a", b"b", b"c", b"d"]):
        assert torch._use_cudnn_ctc_loss(steps, said, frames, counts, 0) is False
    with pytest.raises(NotImplementedError):
        torch._use_cudnn_ctc_loss(steps, said, frames, counts, 0)
