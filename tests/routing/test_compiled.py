"""The compiled form gives the sums of the hook form, for every mask, and is refused where it does not."""

import dataclasses
import itertools
import logging
import random
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest

torch = pytest.importorskip("torch")
from torch._inductor import cpp_builder  # noqa: E402
from torch._inductor.exc import InvalidCxxCompiler  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from dptrain.data.microbatch import Microbatch  # noqa: E402
from dptrain.errors import CompileRefused, LossShape  # noqa: E402
from dptrain.gradients.forms import Dense, Gather  # noqa: E402
from dptrain.routing import building, graphs  # noqa: E402
from dptrain.routing import compiled as form  # noqa: E402
from dptrain.routing.compiled import CompileNotice  # noqa: E402
from dptrain.routing.graphs import NotTraceable, StepGraph  # noqa: E402
from tests.reference.families import Family  # noqa: E402
from tests.routing.compiled_scene import Scene, mlp  # noqa: E402
from tests.worlds.programs import ran  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("error::dptrain.routing.compiled.CompileNotice"),
]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch writes a record per node to whoever listens, and pytest listens."""
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the graph as it was traced: all of the compiled form but inductor's code."""
    monkeypatch.setattr(torch._inductor, "compile", lambda graph, values: graph)


def largest(sums: list) -> float:
    return max(float(total.abs().max()) for total in sums)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "m"), [("bert", 9), ("gpt2_tied", 1), ("bert_lora", 2)])
def test_sums_are_on_the_lattice_of_the_hook_form(family: str, m: int) -> None:
    """By inductor, float64: three classes of random depth, bounds of every size, a microbatch that is not full, two steps."""
    on_the_lattice(family, m)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("family", ["gpt2_tied", "gpt2_untied", "vit", "bert_lora", "gpt2_lora"])
def test_the_graph_as_it_was_traced_is_on_the_lattice_of_the_hook_form(family: str, m: int, traced: None) -> None:
    on_the_lattice(family, m)


def test_where_modules_compute_in_fewer_passes_graph_and_comparison_do_not(traced: None) -> None:
    """The factors of LoRA carry its scale elsewhere there, and a graph would be refused for it."""
    peft = pytest.importorskip("peft")
    plain = mlp(width=64)
    model = peft.get_peft_model(plain.model, peft.LoraConfig(r=8, lora_alpha=48, target_modules=["inner"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    scene = Scene(dataclasses.replace(plain, model=model), dtype=torch.float32)
    rows = scene.microbatch(3)
    alone = scene.run(rows, compiled=False)
    with scene.router.fused.inside("fastest"):
        shorter = scene.run(rows, compiled=False)
        assert any(not torch.equal(a, b) for a, b in zip(alone, shorter, strict=True)), "nothing took the shorter way"
        for _ in range(3):
            found = scene.run(rows, compiled=True)
    assert scene.compiled.graphs == 1
    for a, b in zip(alone, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5 * largest(alone))


def on_the_lattice(family: str, m: int) -> None:
    scene = Scene(family, m=m)
    for seed in (3, 4):
        rows = scene.microbatch(seed)
        plain, compiled = scene.run(rows, compiled=False), scene.run(rows, compiled=True)
        assert largest(plain) > 1e-3
        assert scene.off_lattice(plain, compiled) == 0
        scene.move()
    assert scene.compiled.graphs == 1


def test_a_model_that_rounds_to_float32_inside_agrees_to_that(traced: None) -> None:
    scene = Scene("llama")
    rows = scene.microbatch()
    plain, compiled = scene.run(rows, compiled=False), scene.run(rows, compiled=True)
    assert max(float((a - b).abs().max()) for a, b in zip(plain, compiled, strict=True)) <= 1e-7 * largest(plain)


@pytest.mark.slow
def test_float32_sums_agree_within_the_margin_that_pays_for_rounding() -> None:
    """By inductor, on the tied head: cross terms, Gram matrices and a table."""
    scene = Scene("gpt2_tied", dtype=torch.float32)
    rows = scene.microbatch()
    plain, compiled = scene.run(rows, compiled=False), scene.run(rows, compiled=True)
    clip = sum(row[0] for row in scene.rows)
    gap = sum(float((a - b).square().sum()) for a, b in zip(plain, compiled, strict=True)) ** 0.5
    assert 0.0 < gap <= 2.0**-9 * clip / 100


def test_certified_integers_are_those_of_the_hook_form(traced: None) -> None:
    """At level certified every contribution is cut to the lattice by itself; not one integer differs."""
    scene = Scene("bert", m=2, exactness="certified")
    rows = scene.microbatch()
    plain, compiled = scene.run(rows, compiled=False), scene.run(rows, compiled=True)
    assert scene.compiled.graphs == 1
    assert largest(plain) > 1e-3
    assert all(torch.equal(a, b) for a, b in zip(plain, compiled, strict=True))


def test_certified_integers_go_through_one_graph_whoever_else_is_there(traced: None) -> None:
    """What the others may touch, and what they hold, decides neither the graph nor an integer."""
    scene = Scene(mlp(), exactness="certified")
    top = len(scene.schedule.blocks) - 1
    rows = scene.microbatch()
    mine = (0.1, 1.0, (top,))
    found = []
    for others in ((0.1, 1.0, (top,)), (1e-9, 1.0, tuple(range(top)))):
        found.append(scene.run(rows, compiled=True, bounds=scene.bounds(rows=[mine, *[others] * 4])))
        rows["x"][1:] = rows["x"][1:].flip(0) * 1e-3
    assert scene.compiled.graphs == 1
    alone = scene.run(rows, compiled=True, bounds=scene.bounds(rows=[mine, *[(1e-9, 1.0, ())] * 4]))
    for (block, _), a, b in zip(scene.router.tensors, alone, found[1], strict=True):
        assert block != top or torch.equal(a, b)


def test_masks_and_bounds_are_no_part_of_a_graph(traced: None) -> None:
    """Two microbatches with the same active blocks but other masks and bounds share one graph, each under its own."""
    scene = Scene(mlp())
    rows = scene.microbatch()
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 1, 3]):
        bounds = scene.bounds(rows=[scene.rows[i] for i in order])
        plain = scene.run(rows, compiled=False, bounds=bounds)
        assert scene.off_lattice(plain, scene.run(rows, compiled=True, bounds=bounds)) == 0
    assert scene.compiled.graphs == 1


def test_coordinates_outside_a_mask_receive_exactly_nothing(traced: None) -> None:
    scene = Scene(mlp())
    rows, bounds = scene.microbatch(), scene.bounds()
    for i in range(scene.n):
        other = dataclasses.replace(rows, inputs={**rows.inputs, "x": rows["x"].clone()})
        other.inputs["x"][i] *= -3.0
        before, after = (scene.run(given, compiled=True, bounds=bounds) for given in (rows, other))
        for (block, _), a, b in zip(scene.router.tensors, before, after, strict=True):
            assert torch.equal(a, b) is not bool(bounds.permitted_NG[i, block])


def test_nothing_is_computed_below_the_lowest_permitted_block(traced: None) -> None:
    scene = Scene(mlp())
    top = len(scene.schedule.blocks) - 1
    rows, bounds = scene.microbatch(), scene.bounds(rows=[(0.1, 1.0, (top,))] * 5)
    everything = scene.bounds(rows=[(0.1, 1.0, tuple(range(top + 1)))] * 5)
    plain, compiled = (scene.run(rows, compiled=c, bounds=bounds) for c in (False, True))
    assert scene.off_lattice(plain, compiled) == 0
    for (block, _), total in zip(scene.router.tensors, compiled, strict=True):
        assert bool((total == 0).all()) is (block != top)
    scene.run(rows, compiled=True, bounds=everything)
    top_graph, whole_graph = (entry.graph.run.graph for entry in scene.compiled._entries.values())
    backward = torch.ops.aten.tanh_backward.default
    assert [sum(node.target is backward for node in graph.nodes) for graph in (top_graph, whole_graph)] == [0, 3]


def test_a_row_that_is_not_finite_contributes_zero(traced: None) -> None:
    scene = Scene(mlp())
    rows = scene.microbatch()
    scene.run(rows, compiled=True)
    rows["x"][1, 0] = float("nan")
    rows["x"][2] = 1e200
    plain, compiled = scene.run(rows, compiled=False), scene.run(rows, compiled=True)
    assert scene.off_lattice(plain, compiled) == 0
    assert all(bool(torch.isfinite(total).all()) for total in compiled)


@pytest.mark.slow
def test_dropout_is_drawn_anew_and_for_every_contribution_by_itself() -> None:
    """By inductor: the numbers of the hook form, which are inputs; other ones in the next step and in the next row."""
    scene = Scene(mlp(dropout=0.5))
    rows = scene.microbatch()
    twins = dataclasses.replace(rows, inputs={key: value[:1].expand_as(value).clone() for key, value in rows.inputs.items()})
    plain = scene.run(twins, compiled=False)
    first = scene.run(twins, compiled=True)
    assert scene.compiled.graphs == 1
    assert scene.off_lattice(plain, first) == 0
    scene.step = 2
    second = scene.run(twins, compiled=True)
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    scene.router.arm(5, 1, torch.ones(5, len(scene.schedule.blocks), dtype=torch.bool))
    with scene.sandbox.enter(1, twins.names):
        losses = scene.compiled(scene.model, twins)
        assert len(set(losses.tolist())) == 5
        assert scene.compiled.deliver(losses)
    norms = scene.router.sums.norms_sq(scene.router.pieces, 5).sum(1)
    assert len(set(norms.tolist())) == 5


def test_state_in_python_makes_a_graph_of_its_own(traced: None) -> None:
    scene = Scene(mlp(dropout=0.5))
    scene.model.eval()
    scale = {"by": 1.0}
    scene.losses = lambda model, rows: scene.family.losses(model, rows) * scale["by"]
    scene.compiled._loss = scene.compiled._function = scene.losses
    rows = scene.microbatch()
    for k, change in enumerate(
        (lambda: None, lambda: setattr(scene.model, "temperature", 0.5), lambda: scale.update(by=2.0), scene.model.train)
    ):
        change()
        plain = scene.run(rows, compiled=False)
        assert scene.off_lattice(plain, scene.run(rows, compiled=True)) == 0
        assert scene.compiled.graphs == k + 1


def test_what_depends_on_values_runs_in_the_hook_form_with_a_notice() -> None:
    def losses(model, rows):
        found = mlp_losses(model, rows)
        return found * 2.0 if bool(rows["x"].sum() > 0) else found

    mlp_losses = mlp().losses
    scene = Scene(mlp(), losses=losses)
    rows = scene.microbatch()
    plain = scene.run(rows, compiled=False)
    with pytest.warns(CompileNotice, match="DataDependent"):
        assert all(torch.equal(a, b) for a, b in zip(plain, scene.run(rows, compiled=True), strict=True))
    scene.run(rows, compiled=True)  # told once
    assert scene.compiled.graphs == 0


@pytest.mark.one_in(4)
@pytest.mark.parametrize("source", ["python", "numpy", "tensor", "counter"])
def test_what_a_graph_would_freeze_runs_in_the_hook_form(source: str) -> None:
    held = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    calls = []

    def losses(model, rows):
        calls.append(0)
        draws = {"python": random.random, "numpy": numpy.random.rand, "tensor": lambda: held[1], "counter": lambda: 1.0}
        factor = draws[source]()
        model.count = getattr(model, "count", 0) + (source == "counter")
        return mlp_losses(model, rows) * factor

    mlp_losses = mlp().losses
    scene = Scene(mlp(), losses=losses)
    calls.clear()
    with pytest.warns(CompileNotice):
        scene.run(scene.microbatch(), compiled=True)
    assert scene.compiled.graphs == 0


def test_a_counter_beside_the_loss_is_no_reason_to_compile_for_ever(traced: None) -> None:
    """State that changes between calls: a few graphs, then the hook form and a notice; state out of sight is no matter."""

    class Trainer:
        def __init__(self) -> None:
            self.step = 0
            self.inside = SimpleNamespace(step=0)

        def losses(self, model, rows):
            return mlp_losses(model, rows)

    mlp_losses, trainer = mlp().losses, Trainer()
    scene = Scene(mlp(), losses=trainer.losses)
    rows = scene.microbatch()
    for trainer.inside.step in range(6):
        scene.run(rows, compiled=True)
    assert scene.compiled.graphs == 1
    with pytest.warns(CompileNotice, match="counter"):
        for trainer.step in range(6):
            scene.run(rows, compiled=True)
    assert scene.compiled.graphs == form.STATES


def test_small_rests_and_other_calls_run_in_the_hook_form(traced: None) -> None:
    scene = Scene(mlp(), full=6)
    rest = scene.microbatch(n=2)
    plain = scene.run(rest, compiled=False)
    assert all(torch.equal(a, b) for a, b in zip(plain, scene.run(rest, compiled=True), strict=True))
    assert scene.compiled(scene.model, scene.microbatch()).shape == (5,)  # no microbatch is armed
    assert scene.compiled.graphs == 0


def test_microbatches_are_filled_up_to_few_sizes_within_their_rows(traced: None) -> None:
    scene = Scene(mlp(), full=16)
    compiled = scene.compiled
    empty = {(n, m): Microbatch({}, n, m, torch.ones(n * m), ()) for n in (1, 9, 16, 20) for m in (1, 3, 9, 33, 64)}
    sizes = {size: compiled._size(rows) for size, rows in empty.items()}
    assert sizes[9, 1] == (16, 1)
    assert sizes[9, 9] == (16, 10)
    assert sizes[16, 33] == (16, 40)
    assert sizes[20, 3] == (20, 3)
    compiled._limit = 36
    for n, m in [(4, 9), (3, 9), (1, 33), (1, 36), (12, 3), (16, 2)]:
        room, examples = compiled._size(Microbatch({}, n, m, torch.ones(n * m), ()))
        assert room >= n
        assert examples >= m
        assert room * examples <= 36


def test_losses_that_were_made_from_compiled_ones_are_refused(traced: None) -> None:
    scene = Scene(mlp())
    rows, bounds = scene.microbatch(), scene.bounds()
    scene.router.arm(5, 1, bounds.permitted_NG)
    losses = scene.compiled(scene.model, rows)
    with pytest.raises(LossShape) as caught:
        scene.compiled.deliver(losses * 2.0)
    assert caught.value.code == "COMPILED_LOSSES"
    losses = scene.compiled(scene.model, rows)
    scene.router.arm(5, 1, bounds.permitted_NG)
    assert not scene.compiled.deliver(losses)  # of the microbatch before
    with pytest.raises(LossShape):
        scene.router.require_losses(losses)


def test_compiled_losses_that_were_changed_in_place_are_refused(traced: None) -> None:
    """The pieces are already there, so a scale or a mask put on the losses afterwards would have no effect."""
    scene = Scene(mlp())
    rows, bounds = scene.microbatch(), scene.bounds()
    scene.router.arm(5, 1, bounds.permitted_NG)
    losses = scene.compiled(scene.model, rows)
    losses[2] = 0.0
    with pytest.raises(LossShape) as caught:
        scene.compiled.deliver(losses)
    assert caught.value.code == "COMPILED_LOSSES"


def test_content_frozen_into_the_graph_is_found_in_the_next_microbatch(traced: None) -> None:
    """A loss that reads labels past the collated rows, as numbers: the graph would train others on those of the first."""
    past = SimpleNamespace(inside=SimpleNamespace(labels=[0] * 6))

    def losses(model, rows):
        labels = torch.tensor(past.inside.labels[: rows.contributions])
        return torch.nn.functional.cross_entropy(model(rows["x"]), labels, reduction="none")

    scene = Scene(mlp(), n=6, losses=losses)
    rows = scene.microbatch()
    for label, refused in ((0, False), (1, True)):
        past.inside.labels = [label] * 6
        if refused:
            with pytest.raises(CompileRefused, match="COMPILED_MISMATCH"):
                scene.run(rows, compiled=True)
        else:
            scene.run(rows, compiled=True)
            assert scene.compiled.graphs == 1


def altered(scene: Scene, change) -> None:
    """Puts a fault into the one graph of a scene."""
    (entry,) = scene.compiled._entries.values()
    true = entry.graph.run
    entry.graph = StepGraph(lambda values: change(true, values), entry.graph.slots, entry.graph.draws)


def test_a_parameter_frozen_into_the_graph_is_found(traced: None) -> None:
    """Mutation: the graph goes on with the parameters of its first run."""
    scene = Scene(mlp())
    rows = scene.microbatch()
    scene.run(rows, compiled=True)
    old = [tensor.parameter.clone() for _, tensor in scene.router.tensors]
    altered(scene, lambda run, values: run([*old, *values[len(old) :]]))
    scene.run(rows, compiled=True)
    scene.move()
    with pytest.raises(CompileRefused) as caught:
        scene.run(rows, compiled=True)
    assert caught.value.code == "COMPILED_MISMATCH"


def test_a_graph_of_other_active_blocks_is_found(traced: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: the active blocks are no part of the key, so the graph of the top block serves all."""
    key = form.CompiledLoss._key
    monkeypatch.setattr(form._Entry, "due", lambda self, version: True)
    monkeypatch.setattr(form.CompiledLoss, "_key", lambda *args: ((*key(*args)[0][:2], *key(*args)[0][4:]), key(*args)[1]))
    scene = Scene(mlp())
    top = len(scene.schedule.blocks) - 1
    rows = scene.microbatch()
    scene.run(rows, compiled=True, bounds=scene.bounds(rows=[(0.1, 1.0, (top,))] * 5))
    with pytest.raises(CompileRefused) as caught:
        scene.run(rows, compiled=True)
    assert caught.value.code == "COMPILED_MISMATCH"


def test_comparisons_come_at_every_doubling_of_runs_and_of_changes_and_every_256th_run() -> None:
    def due(runs: int, per_change: int) -> list[int]:
        entry = form._Entry(None)
        return [k + 1 for k in range(runs) if entry.due(version=3 * (k // per_change))]

    assert due(70, 4) == [1, 2, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65]  # changes 1, 2, 4, 8, 16 come with runs 5, 9, 17, 33, 65
    assert due(800, 1000)[-4:] == [128, 256, 512, 768]
    assert due(20, 5) == [1, 2, 4, 6, 8, 11, 16]
    assert due(70, 1000) == [1, 2, 4, 8, 16, 32, 64]
    for per_change in (1, 7):
        runs = due(10000, per_change)
        assert len(runs) < 0.0075 * 10000
        assert max(b - a for a, b in itertools.pairwise(runs)) <= form.EVERY


def test_state_that_no_key_sees_is_found_within_256_runs(traced: None) -> None:
    """An object inside an object that changes late: no graph of its own, but a refusal."""
    hidden = SimpleNamespace(inside=SimpleNamespace(scale=1.0))
    mlp_losses = mlp().losses
    scene = Scene(mlp(), losses=lambda model, rows: mlp_losses(model, rows) * hidden.inside.scale)
    rows = scene.microbatch()
    for _ in range(33):
        scene.run(rows, compiled=True)
    hidden.inside.scale = 2.0
    with pytest.raises(CompileRefused):
        for _ in range(form.EVERY):
            scene.run(rows, compiled=True)


def test_at_certified_no_history_decides_the_form_of_a_contribution(traced: None) -> None:
    """Refuses what would follow from which microbatches came before, and with them from who was drawn."""
    scale = {"by": 1.0}
    mlp_losses = mlp().losses
    scene = Scene(mlp(), exactness="certified", losses=lambda model, rows: mlp_losses(model, rows) * scale["by"])
    for _ in range(2):
        scene.run(scene.microbatch(), compiled=True)
    scale["by"] = 2.0
    with pytest.raises(CompileRefused, match="COMPILED_STATE"):
        scene.run(scene.microbatch(), compiled=True)


def test_a_key_that_is_not_used_is_not_kept(traced: None) -> None:
    """Keys hold the objects that they speak of; state that changes all the time must not pile them up."""
    scale = {"by": 1.0}
    mlp_losses = mlp().losses
    scene = Scene(mlp(), losses=lambda model, rows: mlp_losses(model, rows) * scale["by"])
    with pytest.warns(CompileNotice, match="counter"):
        for scale["by"] in range(1, 9):
            scene.run(scene.microbatch(), compiled=True)
    assert len(scene.compiled._entries) == form.STATES


@pytest.mark.one_in(3)
@pytest.mark.parametrize("exactness", ["fast", "certified"])
@pytest.mark.parametrize("wrong", [1, 2])
def test_a_minority_with_other_losses_time_and_again_gives_up_the_graph(wrong: int, exactness: str, traced: None) -> None:
    """One contribution of five decides nothing; two, twice in a row, move the kind to the hook form, and stop no run.

    At level certified there is the notice alone.
    """
    scene = Scene(mlp(), exactness=exactness)
    rows = scene.microbatch()
    scene.run(rows, compiled=True)

    def change(run, values):
        losses, *pieces = run(values)
        return [torch.cat([losses[:wrong] * 1.1, losses[wrong:]]), *pieces]

    altered(scene, change)
    scene.run(rows, compiled=True)
    assert scene.compiled.graphs == 1
    scene.move()
    if wrong == 1:
        scene.run(rows, compiled=True)
        assert scene.compiled.graphs == 1
        return
    with pytest.warns(CompileNotice, match="time and again"):
        found = scene.run(rows, compiled=True)
    assert scene.compiled.graphs == (exactness == "certified")
    assert scene.off_lattice(scene.run(rows, compiled=False), found) == 0


def test_disagreements_count_in_a_row_alone() -> None:
    entry = form._Entry(None)
    assert [entry.systematic(k) for k in (2, 1, 5, 0, 2, 2, 2)] == [False] * 5 + [True] * 2


def test_autocast_makes_a_graph_of_its_own(traced: None) -> None:
    """A graph casts where its trace did: that of a run without autocast is not one of a run with it."""
    scene = Scene(mlp(), dtype=torch.float32)
    rows = scene.microbatch()
    scene.run(rows, compiled=True)
    for k, dtype in enumerate((torch.bfloat16, torch.float16)):
        with torch.autocast("cpu", dtype=dtype):
            plain, compiled = scene.run(rows, compiled=False), scene.run(rows, compiled=True)
        assert scene.compiled.graphs == k + 2
        assert max(float((a - b).abs().max()) for a, b in zip(plain, compiled, strict=True)) <= 0.05 * largest(plain)


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (1, 0)])
def test_every_piece_has_a_say_in_the_agreement(place: tuple[int, int]) -> None:
    def pieces() -> dict:
        g = torch.Generator().manual_seed(0)
        return {index: [Dense(torch.randn(3, 4, generator=g)) for _ in range(2)] for index in range(2)}

    truth, found = pieces(), pieces()
    assert form.agreement(found, truth, 1e-3).all()
    found[place[0]][place[1]].g[1] += 1.0
    assert form.agreement(found, truth, 1e-3).tolist() == [True, False, True]


def test_a_row_of_a_table_beside_the_right_one_is_no_rounding() -> None:
    ids, b = torch.arange(40_000, 40_006).view(3, 2), torch.ones(3, 2, 4)
    other = ids.clone()
    other[1, 1] += 1
    assert form.agreement({0: [Gather(ids.clone(), b)]}, {0: [Gather(ids, b)]}, 1e-3).all()
    assert form.agreement({0: [Gather(other, b)]}, {0: [Gather(ids, b)]}, 1e-3).tolist() == [True, False, True]


def test_views_of_what_is_changed_in_place_stay_views() -> None:
    """A copy in their place would take the change away from what is seen through them."""

    def step(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        base = x * 2.0
        base.view(6).add_(1.0)
        return base, (y * 2.0).view(6)

    x, y = torch.randn(2, 3), torch.randn(2, 3)
    graph = make_fx(step)(x, y)
    graphs.free_views(graph)
    targets = [node.target for node in graph.graph.nodes]
    assert torch.ops.aten.view.default in targets and torch.ops.aten.reshape.default in targets
    assert torch.equal(graph(x, y)[0], x * 2.0 + 1.0)


def trace(scene: Scene, losses=None) -> StepGraph:
    rows = scene.microbatch()
    scene.router.arm(rows.contributions, rows.examples, scene.bounds().permitted_NG)
    armed = scene.router._armed
    assert armed is not None
    return graphs.make_graph(scene.router, scene.model, scene.model, losses or scene.losses, rows, armed)


def test_what_a_rule_learns_in_a_trace_is_forgotten(traced: None) -> None:
    scene = Scene(mlp())
    rule = scene.router.sites[0].rule
    rule.learned = 0

    def losses(model, rows):
        rule.learned += 1
        return scene.family.losses(model, rows)

    trace(scene, losses)
    assert rule.learned == 0
    with pytest.raises(NotTraceable):
        trace(scene, lambda model, rows: losses(model, rows) * float(rows["x"].sum()))
    assert rule.learned == 0


def test_a_piece_without_a_row_per_contribution_makes_no_graph(traced: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Filling rows are cut off by their place in dimension 0."""
    scene = Scene(mlp())
    backward = type(scene.router).backward

    def summed(self, losses, weight):
        backward(self, losses, weight)
        self.pieces[0] = [Dense(torch.ones(1, 6))]

    monkeypatch.setattr(type(scene.router), "backward", summed)
    with pytest.raises(NotTraceable, match="no row per contribution"):
        trace(scene)


def test_one_contribution_alone_stops_no_run(traced: None) -> None:
    """A contribution whose own numbers differ (rounding decides about it, say) has one vote of five."""
    for outvoted in (True, False):
        scene = Scene(mlp())
        rows = scene.microbatch()
        scene.run(rows, compiled=True)

        def change(run, values, outvoted=outvoted):
            outputs = [value.clone() for value in run(values)]
            for value in outputs[1:]:
                if value.is_floating_point():
                    value[: 1 if outvoted else 5] *= 1.1
            return outputs

        altered(scene, change)
        scene.move()
        if outvoted:
            scene.run(rows, compiled=True)
        else:
            with pytest.raises(CompileRefused):
                scene.run(rows, compiled=True)


def test_schedules_share_no_graph(traced: None) -> None:
    """Two runs, alike but for their schedules: each compiles its own."""
    one, two = Scene(mlp()), Scene(mlp(), bounds_seed=8)
    assert one.schedule.profiles != two.schedule.profiles
    rows = one.microbatch()
    one.run(rows, compiled=True)
    assert (one.compiled.graphs, two.compiled.graphs) == (1, 0)
    plain = two.run(rows, compiled=False)
    assert two.off_lattice(plain, two.run(rows, compiled=True)) == 0


def test_kinds_of_microbatches_are_limited(traced: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form, "GRAPHS", 1)
    scene = Scene(mlp())
    scene.run(scene.microbatch(), compiled=True)
    scene.model.eval()
    with pytest.warns(CompileNotice, match="1 kinds"):
        scene.run(scene.microbatch(), compiled=True)
    assert scene.compiled.graphs == 1


def test_without_a_compiler_there_is_a_refusal_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    with pytest.raises(CompileRefused, match=r"g\+\+") as caught:
        Scene(mlp())
    assert caught.value.code == "NO_COMPILER"


@pytest.mark.slow
def test_inductor_is_imported_only_when_asked_for() -> None:
    program = (
        "import dptrain.engine, dptrain.routing, sys; assert not any(m.startswith('torch._inductor') for m in sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=120)


def test_warnings_of_others_are_left_alone(traced: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Scene(mlp()).run(Scene(mlp()).microbatch(), compiled=True)


def test_graphs_are_kept_for_one_kind_of_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code of another one would be run before anything could compare what it computes."""
    found = []
    for kind in (b"one", b"other", b"one"):
        graphs._own_folder.cache_clear()
        monkeypatch.setattr(graphs.native, "processor", lambda kind=kind: kind)
        found.append(graphs._own_folder())
    graphs._own_folder.cache_clear()
    assert found[0] == found[2] != found[1]


def test_another_process_finds_the_graphs_that_this_one_kept(tmp_path: Path) -> None:
    """Looks from a process that is no child of this one: what torch says of a processor may name a place in memory."""
    found = ran(["-c", "from dptrain.routing import graphs; print(graphs._own_folder())"], tmp_path)
    assert found.returncode == 0 and found.stdout.strip() == graphs._own_folder(), found.stderr


def shares_of(monkeypatch: pytest.MonkeyPatch, verdict) -> list[int]:
    """Has comparisons over shares say something; returns a list of over how many shares each was."""
    seen, right = [], form.CompiledLoss._voted

    def voted(self, model, rows, losses, pieces, contributions, shares):
        seen.append(len(shares))
        found = right(self, model, rows, losses, pieces, contributions, shares)
        return found if len(shares) == 1 else verdict(found)

    monkeypatch.setattr(form.CompiledLoss, "_voted", voted)
    return seen


def failed(found: tuple[bool, int]) -> tuple[bool, int]:
    raise ValueError("a share alone does not run")


@pytest.mark.one_in(99)
@pytest.mark.parametrize("verdict", [lambda found: (False, 0), lambda found: (True, 1), failed], ids=["no", "others", "raises"])
def test_what_shares_of_a_microbatch_do_not_confirm_is_decided_by_the_whole(
    verdict, traced: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = shares_of(monkeypatch, verdict)
    scene = Scene(mlp(), n=6)
    rows = scene.microbatch()
    for _ in range(3):
        scene.run(rows, compiled=True)
    assert seen == [3, 1] * 2 and scene.compiled.graphs == 1


def test_a_fault_in_any_share_is_seen(traced: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of four of six contributions are off, in whichever shares they lie; where all agree, the whole is not asked."""
    for wrong in ([0, 1, 2, 3], [2, 3, 4, 5], [0, 1, 4, 5]):
        seen = shares_of(monkeypatch, lambda found: found)
        scene = Scene(mlp(), n=6)
        rows = scene.microbatch()
        scene.run(rows, compiled=True)
        assert seen == [3]

        def spoil(run, values, wrong=wrong):
            found = run(values)
            for value in found[1:]:
                if value.is_floating_point():
                    value[wrong] *= 1.5
            return found

        altered(scene, spoil)
        with pytest.raises(CompileRefused, match="COMPILED_MISMATCH"):
            scene.run(rows, compiled=True)
        monkeypatch.undo()
        monkeypatch.setattr(torch._inductor, "compile", lambda graph, values: graph)


def test_graphs_are_not_kept_where_others_may_put_a_file_in_the_place_of_another(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setattr(graphs.native, "folder", lambda: None)
    monkeypatch.setattr(graphs.native.tempfile, "gettempdir", lambda: str(tmp_path))
    for found in (graphs._own_folder, building.own_place):
        monkeypatch.setattr(found.__module__ + "." + found.__name__, cache(found.__wrapped__))
    with pytest.raises(ValueError, match="set TMPDIR"):
        graphs._own_folder()
    tmp_path.chmod(0o700)
    assert graphs._own_folder().startswith(str(tmp_path))


def seeing() -> Family:
    """Features of each row go, as one source, into the places that rows mark; seeds from 10 on shift a mark between rows."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            see, *layers = self.layers
            x = x.masked_scatter(mask[..., None], see(x[:, :2]))
            for layer in layers:
                x = torch.tanh(layer(x))
            return x

    def batch(n: int, seed: int) -> dict:
        g = torch.Generator().manual_seed(seed % 10)
        mask = (torch.arange(5) < 2).repeat(n, 1)
        if seed >= 10:
            mask[1, 2], mask[3, 0] = True, False
        return {"x": torch.randn(n, 5, 4, generator=g, dtype=torch.float64), "mask": mask}

    return Family(Model().double(), batch, lambda model, rows: model(rows["x"], rows["mask"]).square().sum((1, 2)))


def test_a_graph_deals_a_source_out_as_the_hook_form_does(traced: None) -> None:
    """It is made of rows that mark their shares, and gets others then."""
    scene = Scene(seeing())
    for seed in (3, 13):
        rows = scene.microbatch(seed)
        plain, compiled = scene.run(rows, compiled=False), scene.run(rows, compiled=True)
        assert largest(plain) > 1e-3
        for a, b in zip(plain, compiled, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    assert scene.compiled.graphs == 1
    rows = scene.microbatch(13)
    others = scene.run(scene.microbatch(3), compiled=True)
    with torch.no_grad():
        rows.inputs["x"][[1, 3]] = 1e6
    assert not torch.equal(others[0], plain[0])
    for a, b in zip(plain, scene.run(rows, compiled=True), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
