"""On whose kernels a run computes: the header says it, a run keeps to it, and the probes find one that is wrong."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dptrain.errors import ResumeRefused, UnsupportedModule  # noqa: E402
from dptrain.gradients import matmul  # noqa: E402
from dptrain.gradients.forms import Outer  # noqa: E402
from dptrain.kernels import reductions  # noqa: E402
from tests.worlds.trainer import BertTrainer as Trainer  # noqa: E402
from tests.worlds.trainer import audited  # noqa: E402
from tests.worlds.training import make_world  # noqa: E402

SENTENCE = "Float32 products are by oneDNN, and by kernels of dptrain's own"


@pytest.fixture
def every_product(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.Size, torch.Size]]:
    """Sends products of any size to oneDNN, wherever it is, and lists the shapes of those that came."""
    if not matmul.AVAILABLE:
        pytest.skip("this torch has no kernels of oneDNN")
    monkeypatch.setattr(matmul, "ENABLED", True)
    monkeypatch.setattr(matmul, "WORTHWHILE", 1)
    seen: list[tuple[torch.Size, torch.Size]] = []
    rows = matmul._rows

    def counted(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        seen.append((x.shape, y.shape))
        return rows(x, y, bias)

    monkeypatch.setattr(matmul, "_rows", counted)
    return seen


def test_forward_and_backward_compute_by_onednn_and_the_header_says_so(tmp_path, every_product) -> None:
    world = make_world(tmp_path, steps=2)
    trainer = Trainer(world)
    model = {parameter.shape for parameter in trainer.model.parameters() if parameter.dim() == 2}
    trainer.run()
    forward = {shape for _, shape in every_product}
    assert model & forward, "no weight of the model went through a product of ours"
    assert SENTENCE in trainer.private.opened.recorder.ledger.header.exactness_note
    audited(trainer, world, tmp_path / "export.json")
    trainer.close()


def test_left_to_torch_nothing_goes_elsewhere_and_the_header_is_silent(tmp_path, every_product, monkeypatch) -> None:
    monkeypatch.setattr(reductions, "library", lambda: pytest.fail("a kernel of our own was asked for"))
    world = make_world(tmp_path, steps=2)
    trainer = Trainer(world, products="torch")
    trainer.run()
    assert every_product == []
    assert "oneDNN" not in trainer.private.opened.recorder.ledger.header.exactness_note
    audited(trainer, world, tmp_path / "export.json")
    trainer.close()


@pytest.mark.one_in(99)
@pytest.mark.parametrize("began", ["torch", "fastest"])
def test_a_run_goes_on_with_the_kernels_that_it_began_with(began: str, tmp_path) -> None:
    world = make_world(tmp_path, steps=3)
    trainer = Trainer(world, products=began).begin()
    trainer.one(next(iter(trainer.steps)))
    trainer.close()
    other = {"torch": "fastest", "fastest": "torch"}[began]
    with pytest.raises(ResumeRefused, match="another account of its numerics"):
        Trainer(world, resume=True, products=other)
    again = Trainer(world, resume=True, products=began)
    again.run()
    again.close()


def test_both_train_to_the_same_weights_but_for_rounding(tmp_path, every_product) -> None:
    found = []
    for products in ("torch", "fastest"):
        world = make_world(tmp_path / products, steps=2)
        trainer = Trainer(world, products=products, insecure_test_key=bytes(32))
        trainer.run()
        found.append(torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()]))
        trainer.close()
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)


def one_bit(x: torch.Tensor, y: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """Flips the highest bit of the exponent of the last entry, whatever there is."""
    bits = found.view(torch.int32)
    bits[-1, -1] ^= 1 << 30
    return found


def on_a_pattern(x: torch.Tensor, y: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """Is off where a factor has entries that end in seven zero bits, as do products of small integers, and in no other."""
    seldom = (x.contiguous().view(torch.int32) & 127 == 0).any(1)
    found[seldom, 0] += 1.0
    return found


def doubled_bias(x: torch.Tensor, y: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    found[:, -1] *= 2.0
    return found


@pytest.mark.one_in(99)
@pytest.mark.parametrize("spoil", [one_bit, on_a_pattern, doubled_bias])
@pytest.mark.parametrize("family", ["bert", "gpt2_tied"])
def test_the_probes_find_a_product_that_is_wrong(family: str, spoil: Any, tmp_path, every_product, monkeypatch) -> None:
    rows = matmul._rows
    monkeypatch.setattr(matmul, "_rows", lambda x, y, bias=None: spoil(x, y, rows(x, y, bias)))
    world = make_world(tmp_path, steps=2)
    trainer = Trainer(world, family)
    with pytest.raises(UnsupportedModule) as refused:
        trainer.run()
    assert refused.value.code == "KERNEL_WRONG" and "products='torch'" in refused.value.sentence
    assert not world.ledger.exists(), "something was charged"
    trainer.close()
    with pytest.MonkeyPatch.context() as way:
        way.setattr(matmul, "_rows", rows)
        Trainer(world, family).run()


def test_a_probe_that_was_left_reaches_into_no_other_run(tmp_path, every_product) -> None:
    """Holds nothing private to anything: a refusal would tell of it. Nor does a run compute as another one said."""
    left = Trainer(make_world(tmp_path / "left", steps=2))
    probe = left.private.prepared.probe.run()
    next(probe)
    trainer = Trainer(make_world(tmp_path / "next", steps=2), products="torch").begin()
    every_product.clear()
    for rows in next(iter(trainer.steps)):
        assert reductions.way.holding is None and reductions.way.torch_alone
        probe.close()  # as the collector may do at any time
        assert reductions.way.torch_alone
        trainer.private.backward(trainer.losses(rows), rows)
    assert every_product == []
    left.close()
    trainer.close()


def test_probes_leave_nothing_of_the_weights_behind(tmp_path, every_product) -> None:
    """Weights are others at every round of probes, and what was found of them would pile up."""
    trainer = Trainer(make_world(tmp_path, steps=2)).begin()
    probe = trainer.private.prepared.probe
    for rows in probe.again():
        trainer.private.backward(trainer.losses(rows), rows)
    assert every_product and not probe._holding._known and not probe._holding._met
    trainer.close()


@pytest.mark.one_in(9)
@pytest.mark.parametrize("sums", [False, True], ids=["forward", "sums"])
def test_a_product_that_is_wrong_at_full_size_alone_is_found(sums: bool, tmp_path, every_product, monkeypatch) -> None:
    """Three times too large a sum would be three times the clip; the probes have few rows, and are right."""
    rows = matmul._rows

    def larger(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        found = rows(x, y, bias)
        many = x.shape[1] > 100 if sums else x.shape[0] > 100
        return found * 3.0 if many else found

    monkeypatch.setattr(matmul, "_rows", larger)
    world = make_world(tmp_path, steps=2)
    trainer = Trainer(world, microbatch=16)
    with pytest.raises(UnsupportedModule) as refused:
        trainer.run()
    assert refused.value.code == "KERNEL_WRONG" and not world.ledger.exists()
    trainer.close()


def test_a_column_of_small_numbers_that_is_missing_is_found() -> None:
    x, y = torch.randn(64, 32), torch.randn(32, 48)
    y[:, 7] *= 1e-4
    holding, found = matmul.Holding(), x @ y
    holding.require(found, x, y, None)
    found[:, 7] = 0.0
    with pytest.raises(UnsupportedModule, match="KERNEL_WRONG"):
        holding.require(found, x, y, None)


def test_in_a_probe_norms_of_one_position_whose_squares_vanish_are_no_wrong_kernel(monkeypatch) -> None:
    """They are above the norm there by more than a kernel may be off, and no kernel makes them."""
    a, b = torch.full((2, 1, 16), 0.02), torch.full((2, 1, 96), 1e-16)
    monkeypatch.setattr(reductions.way, "holding", matmul.Holding())
    found = Outer(a, b).norm_sq()
    true = a.double().square().sum((1, 2)) * b.double().square().sum((1, 2))
    assert bool((found >= true).all()) and bool((found <= 1.1 * true).all())


@pytest.mark.one_in(4)
@pytest.mark.skipif(reductions.library() is None, reason="no C++ compiler here, so libraries compute")
@pytest.mark.parametrize("factor", [1.001, 0.0, float("nan")])
@pytest.mark.parametrize("alone", [True, False])
def test_the_probes_find_a_norm_that_is_wrong(factor: float, alone: bool, tmp_path, monkeypatch) -> None:
    """A norm that is too small would let a contribution in under a clip that it exceeds."""
    grams = reductions.grams_of

    def spoiled(groups: Any) -> Any:
        found, row = grams(groups), -1
        for _, several in groups:
            row += len(several)
            if alone == (len(several) == 1):
                found.square[row, -1] *= factor
        return found

    monkeypatch.setattr(reductions, "grams_of", spoiled)
    trainer = Trainer(make_world(tmp_path, steps=2))
    with pytest.raises(UnsupportedModule) as refused:
        trainer.run()
    assert refused.value.code == "KERNEL_WRONG" and "squared norm" in refused.value.sentence
    trainer.close()


@pytest.mark.skipif(reductions.library() is None, reason="no C++ compiler here, so libraries compute")
@pytest.mark.parametrize(
    ("kernel", "exactness"), [("row_squares", "fast"), ("row_squares", "certified"), ("add_rows", "fast")]
)
def test_the_probes_find_a_norm_or_a_sum_of_small_tensors_that_is_wrong(
    kernel: str, exactness: str, tmp_path, monkeypatch
) -> None:
    own = getattr(reductions, kernel)

    def spoiled(first: Any, matrices: Any = None, weights: Any = None) -> Any:
        if kernel == "row_squares":
            found = own(first)
            found[-1, -1] *= 0.999
            return found
        own(first, matrices, weights)
        first[-1][-1] *= 1.001
        return None

    monkeypatch.setattr(reductions, kernel, spoiled)
    world = make_world(tmp_path, steps=2, policy_extra=f'exactness = "{exactness}"')
    trainer = Trainer(world)
    with pytest.raises(UnsupportedModule) as refused:
        trainer.run()
    assert refused.value.code == "KERNEL_WRONG" and not world.ledger.exists()
    trainer.close()
