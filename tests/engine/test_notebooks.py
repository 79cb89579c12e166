"""Cells of a notebook can be run again in any order: a run goes on, or an error says which cell to run."""

import gc
import math
import re
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain import PrivateTraining  # noqa: E402
from dptrain.engine.header import Epsilon, Epsilons  # noqa: E402
from dptrain.errors import StepOrder  # noqa: E402
from ledger.errors import LedgerBusy  # noqa: E402
from ledger.log import Ledger  # noqa: E402
from tests.guarantees.peers import collate, net, per_example, small_world  # noqa: E402
from tests.worlds.training import World  # noqa: E402

STEPS = 8


class Notebook:
    """Three cells over data of one's own, with names that stay, and the last traceback, which holds the frames of a cell."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.data = [{"x": torch.randn(6), "label": number % 2} for number in range(STEPS)]
        self.model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
        self.fault: tuple[int, str] | None = None
        self.taken: list[int] = []
        self.last: BaseException | None = None

    def run(self, *cells: str) -> BaseException | None:
        for cell in cells:
            try:
                getattr(self, cell)()
            except (Exception, KeyboardInterrupt) as error:
                self.last = error
                return error
        return None

    def opens(self) -> None:
        self.private = PrivateTraining.own(
            self.data, epochs=STEPS / 2, batch_size=4, directory=self.folder / "run", progress=False
        )

    def prepares(self) -> None:
        optimizer = torch.optim.Adam(self.model.parameters())
        self.optimizer, self.steps = self.private.prepare(self.model, optimizer)[1:]

    def trains(self) -> None:
        for step in self.steps:
            self.interrupt(step.number, "top")
            for rows in step:
                if not self.private.prepared.probe.active:
                    self.interrupt(step.number, "inside")
                losses = nn.functional.cross_entropy(self.model(rows["x"]), rows["label"], reduction="none")
                self.private.backward(losses, rows)
            self.interrupt(step.number, "released")
            self.optimizer.step()
            self.taken.append(step.number)
            self.interrupt(step.number, "stepped")

    def interrupt(self, number: int, where: str) -> None:
        if self.fault == (number, where):
            self.fault = None
            raise KeyboardInterrupt

    def windows(self) -> list[tuple[int, int, int]]:
        with Ledger.open(self.folder / "run" / "ledger.db", read_only=True) as log:
            return [(window.attempt, window.first_step, window.n_steps) for window in log.state.windows]


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch) -> Notebook:
    from dptrain.data import sampling

    # Every step draws all: so a fault inside a microbatch is met in its step.
    monkeypatch.setattr(sampling.PoissonSampler, "draw", lambda self, step: range(STEPS))
    return Notebook(tmp_path)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("where", ["top", "inside", "released", "stepped"])
def test_all_cells_run_again_go_on_where_they_were_at_the_cost_of_one_step(notebook: Notebook, where: str) -> None:
    notebook.fault = (3, where)
    assert isinstance(notebook.run("opens", "prepares", "trains"), KeyboardInterrupt)
    assert notebook.run("opens", "prepares", "trains") is None
    assert notebook.taken == list(range(1, STEPS + 1))
    again = {"top": [], "inside": [(1, 3, 1)], "released": [(1, 3, 1)], "stepped": []}[where]
    found = notebook.windows()
    assert [window for window in found if window[:2] == (1, 3)][: len(again)] == again
    assert sum(count for _, _, count in found) == STEPS + len(again)
    assert notebook.private.epsilon()["own"].spent <= 8.0


@pytest.mark.parametrize("where", ["top", "stepped"])
def test_the_loop_alone_goes_on_where_it_stood_between_two_steps(notebook: Notebook, where: str) -> None:
    """Nothing is charged, drawn or released twice, and one attempt has all steps."""
    notebook.fault = (6, where)
    assert isinstance(notebook.run("opens", "prepares", "trains"), KeyboardInterrupt)
    assert notebook.run("trains") is None
    assert notebook.taken == list(range(1, STEPS + 1))
    assert {attempt for attempt, _, _ in notebook.windows()} == {0} and sum(n for _, _, n in notebook.windows()) == STEPS


@pytest.mark.parametrize("where", ["inside", "released"])
def test_the_loop_alone_says_which_cells_to_run_where_it_was_left_inside_a_step(notebook: Notebook, where: str) -> None:
    notebook.fault = (6, where)
    assert isinstance(notebook.run("opens", "prepares", "trains"), KeyboardInterrupt)
    found = notebook.run("trains")
    assert isinstance(found, StepOrder) and found.code == "STEP_LEFT"
    assert "run the cells with open(..., resume=True) or own(), with prepare(), and with the loop" in found.sentence
    assert "behind step 5" in found.sentence
    assert notebook.run("opens", "prepares", "trains") is None
    assert notebook.taken == list(range(1, STEPS + 1))


@pytest.mark.parametrize(
    ("cells", "code", "told"),
    [
        (("prepares",), "PREPARED_TWICE", "run the cell with open"),
        (("opens", "trains"), "TAKEN_OVER", "run the cells from open"),
    ],
)
def test_a_cell_that_is_left_out_is_named(notebook: Notebook, cells: tuple[str, ...], code: str, told: str) -> None:
    notebook.fault = (2, "inside")
    notebook.run("opens", "prepares", "trains")
    found = notebook.run(*cells)
    assert isinstance(found, StepOrder) and found.code == code and told in found.sentence
    assert notebook.run("opens", "prepares", "trains") is None and notebook.taken == list(range(1, STEPS + 1))


def test_a_loop_over_steps_that_are_over_says_so(notebook: Notebook) -> None:
    notebook.run("opens", "prepares", "trains")
    found = notebook.run("trains")
    assert isinstance(found, StepOrder) and found.code == "STEPS_OVER"
    assert repr(notebook.steps) == f"<Steps: private training, {STEPS} steps, over>"


def test_of_two_loops_over_the_steps_one_is_refused(notebook: Notebook) -> None:
    notebook.run("opens", "prepares")
    first = iter(notebook.steps)
    next(first)
    assert notebook.run("trains") is None
    with pytest.raises(StepOrder, match="STEPS_IN_ORDER: two loops"):
        next(first)


# --- one ledger, opened twice ------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> World:
    return small_world(tmp_path, steps=6, window_steps=8, now=None, policy_extra="redo_steps = 12")


def prepared(world: World, ledger: Path | None = None, **options: Any) -> tuple[PrivateTraining, nn.Module, Any, Any]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    place = ledger or world.ledger
    private = PrivateTraining.open(world.policy, world.corpus, ledger=place, progress=False, resume=True, **options)
    _, optimizer, steps = private.prepare(model, optimizer, collate, layers="layers")
    return private, model, optimizer, steps


def take(run: tuple[PrivateTraining, nn.Module, Any, Any], count: int | None = None) -> list[int]:
    private, model, optimizer, steps = run
    numbers = []
    for step in steps:
        for rows in step:
            private.backward(per_example(model, rows), rows)
        optimizer.step()
        numbers.append(step.number)
        if len(numbers) == count:
            break
    return numbers


USES: dict[str, Callable[[Any], Any]] = {
    "the loop": take,
    "save": lambda run: run[0].save(),
    "epsilon": lambda run: run[0].epsilon(),
    "export": lambda run: run[0].export("nowhere"),
    "loss": lambda run: run[0].loss(per_example),
    "prepare": lambda run: run[0].prepare(run[1], run[2], collate),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_run_whose_ledger_was_opened_again_says_so_when_it_is_used(world: World, monkeypatch, use: Callable) -> None:
    """The second names the ledger otherwise."""
    first = prepared(world)
    assert take(first, 2) == [1, 2]
    monkeypatch.chdir(world.root)
    second = prepared(world, Path("ledger.db"))
    with pytest.raises(StepOrder, match="TAKEN_OVER"):
        use(first)
    assert "a later run has its ledger" in repr(first[0]) and "a later run has its ledger" in first[0]._repr_html_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first[0].close()
    assert take(second) == [3, 4, 5, 6]


def test_a_run_that_was_closed_says_so_and_still_tells_what_it_spent(world: World) -> None:
    run = prepared(world)
    take(run, 2)
    spent = run[0].epsilon()
    run[0].close()
    run[0].close()
    for use in ("the loop", "save"):
        with pytest.raises(StepOrder, match=r"CLOSED.*open it again"):
            USES[use](run)
    assert run[0].epsilon() == spent
    assert take(prepared(world)) == [1, 2, 3, 4, 5, 6], "nothing was saved"


def test_a_lock_that_this_very_process_holds_is_told_apart_from_that_of_another(world: World) -> None:
    run = prepared(world)
    take(run, 1)
    signer = run[0].opened.recorder.signer
    run[0].close()
    with Ledger.open(world.ledger, signer), pytest.raises(LedgerBusy) as found:
        Ledger.open(world.ledger, signer)
    assert found.value.code == "LOCKED" and "this process has opened" in found.value.sentence
    assert "restart the kernel" in found.value.sentence
    Ledger.open(world.ledger, signer).close()


# --- what a run leaves behind ------------------------------------------------------------------------------------------


def hooks(model: nn.Module, optimizer: Any) -> dict[str, int]:
    """Counts all hooks of modules, parameters and optimizer, and those that torch has for all modules and optimizers."""
    found = {}
    for name, module in [*model.named_modules(), ("optimizer", optimizer), ("all", nn.modules.module)]:
        for key, value in vars(module).items():
            if "hook" in key and hasattr(value, "__len__") and not isinstance(value, str):
                found[f"{name}.{key}"] = len(value)
    for name, parameter in model.named_parameters():
        for key in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            found[f"{name}.{key}"] = len(getattr(parameter, key) or ())
    return found


@pytest.mark.one_in(3)
@pytest.mark.parametrize("how", ["close", "inside a step", "with", "over"])
def test_close_gives_back_every_parameter_as_it_was_and_removes_every_hook(world: World, how: str) -> None:
    """Also of a run that was left inside a microbatch, and of parameters that were not trained before."""
    model = net()
    model.layers[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    own = [hooks(model, optimizer), sorted(vars(model)), type(model), torch.is_grad_enabled()]
    private = PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, progress=False)
    _, optimizer, steps = private.prepare(model, optimizer, collate, layers="layers")
    assert not any(parameter.requires_grad for parameter in model.parameters()) and hooks(model, optimizer) != own[0]
    if how != "close":
        for step in steps:
            for rows in step:
                if how == "inside a step" and step.number == 2:
                    break
                private.backward(per_example(model, rows), rows)
            else:
                optimizer.step()
                continue
            break
    if how == "with":
        with private:
            pass
    private.close()
    gc.collect()
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == flags
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [hooks(model, optimizer), sorted(vars(model)), type(model), torch.is_grad_enabled()] == own
    rows = collate([{"ids": [1, 2, 3], "label": 0, "seed": 0}])
    per_example(model, rows).sum().backward()
    optimizer.step()


@pytest.mark.one_in(4)
@pytest.mark.parametrize("left", ["resumed", "between two steps", "inside a step", "over"])
def test_a_run_that_is_dropped_gives_up_its_ledger_at_once(world: World, left: str) -> None:
    """No cycle of ours waits for the garbage collector, which is off. The program keeps model and optimizer."""
    torch.optim.SGD(net().parameters(), lr=0.1)  # the first one of a process has torch keep the frames that made it
    if left == "resumed":
        run = prepared(world)
        take(run, 2)
        run[0].close()
    gc.collect()
    gc.disable()
    try:
        run = prepared(world)
        kept, signer = run[1:3], run[0].opened.recorder.signer
        if left == "inside a step":
            assert isinstance(leave_inside(run), KeyboardInterrupt)
        elif left != "resumed":
            assert take(run, 2 if left == "between two steps" else None)
        alive = weakref.ref(run[0])
        del run
        assert alive() is None and kept
        Ledger.open(world.ledger, signer).close()
    finally:
        gc.enable()


def leave_inside(run: tuple[PrivateTraining, nn.Module, Any, Any]) -> BaseException | None:
    """Leaves a loop inside its second step by an exception, and returns it without the frames that it passed."""
    try:
        for step in run[3]:
            for rows in step:
                if step.number == 2:
                    raise KeyboardInterrupt
                run[0].backward(per_example(run[1], rows), rows)
            run[2].step()
    except KeyboardInterrupt as error:
        return error.with_traceback(None)
    return None


def test_no_epsilon_is_shown_below_what_it_is(world: World) -> None:
    """On the bar and on cards: a bound that is shown smaller is no bound."""
    below = Epsilon(1.0000004, 2.5, math.inf, 1e-6, math.inf)
    for text in (below._repr_html_(), Epsilons(own=below)._repr_html_()):
        assert "<td>1.00001</td>" in text and "<td>2.5</td>" in text and "<td>inf</td>" in text and "<td>1e-06</td>" in text
    run = prepared(world)
    take(run, 2)
    spent = run[0].epsilon()
    shown = re.findall(r"(\w+) ε (\S+) of ([^,\s]+)", run[0].prepared.told())
    assert {name for name, *_ in shown} == {name for name, found in spent.items() if found is not None} != set()
    for name, now, planned in shown:
        assert spent[name].spent <= float(now) < 1.01 * spent[name].spent
        assert spent[name].planned <= float(planned) < 1.01 * spent[name].planned
