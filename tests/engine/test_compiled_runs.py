"""Whole runs in the compiled form: the same releases, bit for bit, as runs in the hook form under the same test key."""

import logging

import pytest

torch = pytest.importorskip("torch")

from dptrain.errors import CompileRefused, LossShape, StepOrder  # noqa: E402
from dptrain.routing import graphs  # noqa: E402
from tests.guarantees.test_public_class import CLASSES as PUBLIC_AND_PRIVATE  # noqa: E402
from tests.worlds.trainer import BertTrainer as Trainer  # noqa: E402
from tests.worlds.training import World, make_world, token_record  # noqa: E402

KEY = bytes(range(32))

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.filterwarnings("error::dptrain.routing.compiled.CompileNotice")]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch writes a record per node to whoever listens, and pytest listens."""
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the graph as it was traced: all of the compiled form but inductor's code."""
    monkeypatch.setattr("torch._inductor.compile", lambda graph, values: graph)


def examples_of(seed: int) -> list:
    return [token_record(seed + 100 * k) for k in range(1 + seed % 3)]


def releases(world: World, tmp_path, *, compiled: bool, **options) -> tuple[list, Trainer]:
    """What every step puts into p.grad."""
    world.root.joinpath("ledger.db").unlink(missing_ok=True)
    ledger = tmp_path / ("compiled" if compiled else "plain")
    ledger.mkdir()
    trainer = Trainer(world, dtype=torch.float64, insecure_test_key=KEY, checkpoint_dir=ledger, **options)
    loss = trainer.family.losses
    if compiled:
        loss = trainer.private.loss(lambda model, rows: trainer.family.losses(model, dict(rows)), compiled=True)
    found = []
    for step in trainer.steps:
        for rows in step:
            trainer.private.backward(loss(trainer.model, rows), rows)
        found.append([t.parameter.grad.clone() for _, t in trainer.private.prepared.router.tensors])
        trainer.optimizer.step()
    made = loss.graphs if compiled else 0
    trainer.close()
    for path in world.root.glob("ledger.*"):
        if path.is_file():
            path.unlink()
    return found, made


@pytest.mark.parametrize("family", ["bert", pytest.param("gpt2_tied", marks=pytest.mark.slow)])
def test_every_release_of_a_run_is_the_same_bit_for_bit(family: str, traced: None, tmp_path) -> None:
    """Three classes of different depth, draws of every size, contributions of one to three examples, AdamW between steps."""
    world = make_world(
        tmp_path / "world", per_class=4, steps=4, rate="0.7", record=examples_of, policy_extra="[gate]\nmax_examples = 4\n"
    )
    plain, _ = releases(world, tmp_path, compiled=False, family=family)
    compiled, made = releases(world, tmp_path, compiled=True, family=family)
    assert made >= 2
    assert len(plain) == 4
    for one, other in zip(plain, compiled, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_compile_comes_after_prepare_and_takes_its_losses_as_they_are(traced: None, tmp_path) -> None:
    world = make_world(tmp_path, per_class=3, steps=2, rate="1")
    trainer = Trainer(world)
    loss = trainer.private.loss(trainer.family.losses, compiled=True)
    step = iter(next(iter(trainer.steps)))
    for rows in step:
        losses = loss(trainer.model, rows)
        if losses.requires_grad:  # a probe: the hook form vouches for the model
            trainer.private.backward(losses, rows)
            continue
        assert loss.graphs == 1
        with pytest.raises(LossShape) as caught:
            trainer.private.backward(losses + 1.0, rows)
        assert caught.value.code == "COMPILED_LOSSES"
        break
    trainer.close()
    unprepared = object.__new__(type(trainer.private))
    unprepared._prepared = unprepared._ended = None
    with pytest.raises(StepOrder) as early:
        unprepared.loss(trainer.family.losses, compiled=True)
    assert early.value.code == "COMPILE_EARLY"


@pytest.mark.parametrize("progress", [True, False])
def test_that_compiling_takes_a_while_is_said_at_once_and_says_nothing_of_what_is_drawn(
    progress: bool, traced: None, tmp_path, capfd: pytest.CaptureFixture[str]
) -> None:
    trainer = Trainer(make_world(tmp_path, per_class=3, steps=2, rate="1"), progress=progress)
    capfd.readouterr()
    trainer.private.loss(trainer.family.losses, compiled=True)
    said = capfd.readouterr()
    trainer.close()
    assert said.out == "" and ("compiling" in said.err and said.err.count("\n") == 1 if progress else said.err == "")


def test_a_mismatch_ends_the_run_before_anything_is_released(traced: None, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph, values):
        return lambda given: [value * 1.5 if value.is_floating_point() else value for value in graph(given)]

    monkeypatch.setattr("torch._inductor.compile", broken)
    world = make_world(tmp_path, per_class=3, steps=2, rate="1")
    trainer = Trainer(world)
    loss = trainer.private.loss(trainer.family.losses, compiled=True)
    before = [p.clone() for p in trainer.model.parameters()]
    with pytest.raises(CompileRefused) as caught:
        for step in trainer.steps:
            for rows in step:
                trainer.private.backward(loss(trainer.model, rows), rows)
            trainer.optimizer.step()
    assert caught.value.code == "COMPILED_MISMATCH"
    assert not any(character.isdigit() for character in caught.value.sentence)
    assert all(p.grad is None and torch.equal(p, old) for p, old in zip(trainer.model.parameters(), before, strict=True))
    trainer.close()


def test_public_microbatches_run_in_the_hook_form(traced: None, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sums carry no noise, and which graphs there are tells which private microbatches came before."""
    world = make_world(tmp_path / "world", classes=PUBLIC_AND_PRIVATE, per_class=4, steps=2, rate="1")
    trainer = Trainer(world, dtype=torch.float64, insecure_test_key=KEY, microbatch=2)
    loss = trainer.private.loss(lambda model, rows: trainer.family.losses(model, dict(rows)), compiled=True)
    ran: list[bool] = []
    run = graphs.StepGraph.__call__

    def watched(self: graphs.StepGraph, *values: object) -> tuple:
        ran.append(trainer.private.prepared.folding.holds_public())
        return run(self, *values)

    monkeypatch.setattr(graphs.StepGraph, "__call__", watched)
    public = 0
    for step in trainer.steps:
        for rows in step:
            public += trainer.private.prepared.folding.holds_public() and not trainer.private.prepared.probe.active
            trainer.private.backward(loss(trainer.model, rows), rows)
        trainer.optimizer.step()
    trainer.close()
    assert public == 4
    assert ran and not any(ran)
