"""Every operation that draws gives a contribution numbers of its own: the same in every company, and of the law it had."""

import math

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain.errors import UnsupportedModule  # noqa: E402
from tests.sandbox.scene import Scene  # noqa: E402

X = torch.arange(8 * 5 * 6, dtype=torch.float32).reshape(8, 5, 6) / 100.0
F = nn.functional
CHANCE = torch.full((8, 5, 6), 0.25)

DRAWS = {
    "dropout": lambda m, x: F.dropout(x, 0.5),
    "dropout in place": lambda m, x: F.dropout(x.clone(), 0.5, inplace=True),
    "native dropout": lambda m, x: torch.native_dropout(x, 0.5, True)[0],
    "alpha dropout": lambda m, x: F.alpha_dropout(x, 0.3, training=True),
    "feature dropout": lambda m, x: F.dropout2d(x[..., None], 0.5),
    "bernoulli of chances": lambda m, x: torch.bernoulli(CHANCE[: len(x)]),
    "bernoulli_ of chances": lambda m, x: torch.empty_like(x).bernoulli_(CHANCE[: len(x)]),
    "bernoulli p": lambda m, x: torch.bernoulli(x, 0.3),
    "stochastic depth": lambda m, x: x * x.new_empty(len(x), 1, 1).bernoulli_(0.5),
    "rand": lambda m, x: torch.rand(len(x), 5),
    "rand into a tensor": lambda m, x: torch.rand(len(x), 5, out=torch.empty(len(x), 5)),
    "rand_like": lambda m, x: torch.rand_like(x),
    "uniform_": lambda m, x: torch.empty_like(x).uniform_(-2.0, 3.0),
    "randn": lambda m, x: torch.randn(len(x), 5, dtype=torch.float64),
    "randn_like": lambda m, x: x + torch.randn_like(x),
    "normal_": lambda m, x: torch.empty_like(x).normal_(1.0, 2.0),
    "normal of means": lambda m, x: torch.normal(x, 2.0),
    "normal of means and stds": lambda m, x: torch.normal(x, torch.ones_like(x)),
    "normal of stds": lambda m, x: torch.normal(1.0, x + 1.0),
    "normal of numbers": lambda m, x: torch.normal(1.0, 2.0, (len(x), 5)),
    "exponential_": lambda m, x: torch.empty_like(x).exponential_(2.0),
    "log_normal_": lambda m, x: torch.empty_like(x).log_normal_(0.0, 0.5),
    "cauchy_": lambda m, x: torch.empty_like(x).cauchy_(1.0, 2.0),
    "geometric_": lambda m, x: torch.empty_like(x).geometric_(0.25),
    "geometric_ of integers": lambda m, x: torch.empty(len(x), 9, dtype=torch.int64).geometric_(0.25),
    "gumbel softmax": lambda m, x: F.gumbel_softmax(x),
    "randint": lambda m, x: torch.randint(-3, 9, (len(x), 4)),
    "randint_like": lambda m, x: torch.randint_like(x, 7),
    "random_": lambda m, x: torch.empty(len(x), 4).random_(5),
    "random_ from": lambda m, x: torch.empty(len(x), 4).random_(5, 9),
    "multinomial": lambda m, x: torch.multinomial(x.flatten(1) + 0.1, 4),
    "multinomial again": lambda m, x: torch.multinomial(x.flatten(1) + 0.1, 50, replacement=True),
    "randomised relu": lambda m, x: F.rrelu(x - 1.0, training=True),
    "randomised relu in place": lambda m, x: F.rrelu(x - 1.0, training=True, inplace=True),
    "attention": lambda m, x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    "generator of one's own": lambda m, x: torch.rand(len(x), 5, generator=torch.Generator()),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_contribution_has_its_numbers_in_every_company(name: str) -> None:
    scene = Scene(nn.Identity(), X, DRAWS[name])
    wide, narrow, alone = scene.run(range(8)), scene.run([6, 1, 4]), scene.run([4])
    assert torch.equal(wide[[6, 1, 4]], narrow) and torch.equal(wide[[4]], alone)
    assert not torch.equal(scene.run(range(8), step=2), wide), "another step has others"
    if name not in ("bernoulli of chances", "bernoulli_ of chances"):
        assert not torch.equal(wide[1] - X.flatten(1)[1, 0], wide[2] - X.flatten(1)[2, 0]), "and so has another contribution"


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_have_the_type_and_shape_that_torch_gives(name: str) -> None:
    found, plain = Scene(nn.Identity(), X, DRAWS[name]).run(range(8)), DRAWS[name](None, X)
    assert (found.shape, found.dtype, found.stride()) == (plain.shape, plain.dtype, plain.stride())


LAWS = {
    "uniform_": (0.5, 5 / 12**0.5), "normal_": (1.0, 2.0), "exponential_": (0.5, 0.5), "bernoulli p": (0.3, 0.21**0.5),
    "bernoulli of chances": (0.25, 0.1875**0.5), "randint": (2.5, (143 / 12) ** 0.5), "random_ from": (6.5, 1.25**0.5),
    "rand": (0.5, 12**-0.5), "randn": (0.0, 1.0), "rand into a tensor": (0.5, 12**-0.5), "normal of numbers": (1.0, 2.0),
    "log_normal_": (math.exp(0.125), math.sqrt(math.expm1(0.25) * math.exp(0.25))), "geometric_": (4.0, 12**0.5),
    "geometric_ of integers": (4.0, 12**0.5),
}  # fmt: skip


@pytest.mark.one_in(7)
@pytest.mark.parametrize("name", LAWS)
def test_numbers_have_the_law_of_the_operation(name: str) -> None:
    """Mean and deviation over 400 steps, within five standard errors."""
    scene = Scene(nn.Identity(), X, DRAWS[name])
    value = torch.stack([scene.run(range(8), step=step) for step in range(400)]).double()
    mean, std = LAWS[name]
    assert abs(float(value.mean()) - mean) <= 5 * std / value.numel() ** 0.5
    assert abs(float(value.std()) / std - 1) <= 0.05


def test_cauchy_numbers_have_their_quartiles_one_scale_from_the_median() -> None:
    """They have no mean; shares over 96,000 numbers, within five standard errors."""
    scene = Scene(nn.Identity(), X, DRAWS["cauchy_"])
    value = torch.stack([scene.run(range(8), step=step) for step in range(400)])
    for edge, share in ((-1.0, 0.25), (1.0, 0.5), (3.0, 0.75)):
        assert abs(float((value < edge).double().mean()) - share) <= 5 * 0.5 / value.numel() ** 0.5


def test_geometric_numbers_begin_at_one() -> None:
    scene = Scene(nn.Identity(), X, DRAWS["geometric_"])
    value = torch.stack([scene.run(range(8), step=step) for step in range(40)])
    assert float(value.min()) == 1.0 and torch.equal(value, value.round())
    with pytest.raises(ValueError, match="between 0 and 1"):
        Scene(nn.Identity(), X, lambda m, x: torch.empty_like(x).geometric_(1.0))


def test_a_randomised_relu_in_place_is_that_which_is_not_and_so_is_its_way_back() -> None:
    def through(model, x, inplace: bool):
        leaf = x.clone().requires_grad_(True)
        out = F.rrelu(leaf - 1.0, training=True, inplace=inplace)
        return out.detach(), torch.autograd.grad(out.sum(), leaf)[0]

    kept, written = (
        Scene(nn.Identity(), X, lambda m, x, inplace=inplace: through(m, x, inplace)).run(range(8)) for inplace in (False, True)
    )
    assert all(torch.equal(a, b) for a, b in zip(kept, written, strict=True))
    assert torch.equal(written[0], (X - 1.0) * written[1]) and bool((written[1] < 1).any())


def test_numbers_that_are_inputs_of_a_graph_are_left_as_they_were() -> None:
    """A recomputation takes them a second time."""
    for name, draw in DRAWS.items():
        given = []

        def numbers(place, asked, given=given):
            integers = asked.kind in ("integer", "keep")
            value = torch.ones(asked.shape, dtype=torch.int64) if integers else torch.full(asked.shape, 0.5, dtype=asked.dtype)
            given.append((value, value.clone()))
            return value

        Scene(nn.Identity(), X, draw).run(range(8), given=numbers)
        assert given and all(torch.equal(value, before) for value, before in given), name


def test_choices_without_replacement_follow_their_weights() -> None:
    weights = torch.tensor([[1.0, 2.0, 4.0, 1.0]]).expand(8, 4)
    scene = Scene(nn.Identity(), weights, lambda m, w: torch.multinomial(w, 2))
    drawn = torch.cat([scene.run(range(8), step=step) for step in range(800)])
    first = torch.bincount(drawn[:, 0], minlength=4) / len(drawn)
    assert float((first - torch.tensor([1, 2, 4, 1]) / 8).abs().max()) < 0.03
    assert bool((drawn[:, 0] != drawn[:, 1]).all())


def test_what_everybody_shares_is_the_same_in_every_microbatch_of_a_step() -> None:
    """LayerDrop asks once for all; so does an order of positions."""
    scene = Scene(nn.Identity(), X, lambda m, x: (torch.rand([]), torch.randperm(9)))
    first, other, later = scene.run([0, 1, 2]), scene.run([5]), scene.run([0, 1, 2], step=2)
    assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, later, strict=True))
    assert sorted(first[1].tolist()) == list(range(9))


def test_what_everybody_shares_is_close_to_one_in_the_probes_so_that_skipped_layers_run() -> None:
    scene = Scene(nn.Identity(), X, lambda m, x: torch.rand([]))
    assert float(scene.run([0, 1, 2], step=0, probing=True)) > 0.999


class Recurrent(nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        self.inner = kind(6, 4, 2, dropout=0.5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)[0]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_dropout_between_recurrent_layers_belongs_to_rows_though_time_comes_first(kind: type) -> None:
    torch.manual_seed(0)
    scene = Scene(Recurrent(kind), X)
    assert next(iter(scene.sandbox.layouts._known.values()))[0].dim == 1
    torch.testing.assert_close(scene.run(range(8))[[6, 1]], scene.run([6, 1]), rtol=0, atol=1e-6)


def test_attention_of_torch_draws_for_rows_times_heads() -> None:
    attention = nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True)
    scene = Scene(attention, X, lambda m, x: m(x, x, x)[0])
    assert [layout.each for layout, _ in scene.sandbox.layouts._known.values()] == [2]
    torch.testing.assert_close(scene.run(range(8))[[6, 1]], scene.run([6, 1]), rtol=0, atol=1e-6)


def test_a_module_that_runs_twice_draws_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([self.drop(torch.ones_like(x)), self.drop(torch.ones_like(x))], 1)

    scene = Scene(Twice(), X)
    both = scene.run(range(8))
    assert not torch.equal(both[:, 0], both[:, 1]) and torch.equal(both[[3]], scene.run([3]))


def test_more_draws_in_one_module_do_not_move_those_of_another() -> None:
    class Two(nn.Module):
        def __init__(self, more: int) -> None:
            super().__init__()
            self.a, self.b, self.more = nn.Dropout(0.5), nn.Dropout(0.5), more

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(self.more):
                self.a(x)
            return self.b(x)

    assert torch.equal(Scene(Two(1), X).run(range(8)), Scene(Two(4), X).run(range(8)))


@pytest.mark.parametrize(
    ("draw", "code"),
    [
        (lambda m, x: torch.rand(len(x), len(x)), "DRAW_ROWS"),
        (lambda m, x: torch.rand(len(x) ** 2, 3), "DRAW_ROWS"),
        (lambda m, x: torch.poisson(x), "DRAW_UNKNOWN"),
        (lambda m, x: torch.empty_like(x).random_(), "DRAW_UNKNOWN"),
    ],
)
def test_what_cannot_be_addressed_is_refused_by_name_where_draws_are_secret(draw, code: str) -> None:
    with pytest.raises(UnsupportedModule, match=code):
        Scene(nn.Identity(), X, draw).run(range(8))
    assert Scene(nn.Identity(), X, draw, secret=False).run(range(8)) is not None


def test_a_draw_that_no_probe_saw_is_refused_by_name() -> None:
    scene = Scene(nn.Identity(), X, lambda m, x: F.dropout(x, 0.5) if len(x) == 8 else x)
    with pytest.raises(UnsupportedModule, match="UNSEEN_DRAW"):
        scene.run(range(8))


def test_numbers_without_any_seam_are_those_of_a_generator_whose_order_of_rows_counts() -> None:
    """The negative control: what the tests above find, they do not find in torch's own."""
    torch.manual_seed(0)
    wide = F.dropout(X, 0.5)
    torch.manual_seed(0)
    assert not torch.equal(wide[[6, 1, 4]], F.dropout(X[[6, 1, 4]], 0.5))
