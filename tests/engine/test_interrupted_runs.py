"""Debugging is nearly free: what an exception costs, what is taken over, and a dry run that charges nothing."""

import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain import PrivateTraining  # noqa: E402
from dptrain.errors import NotPrivateUse, ResumeRefused  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from ledger.log import Ledger  # noqa: E402
from tests.guarantees.peers import collate, net, per_example, small_world  # noqa: E402
from tests.worlds.training import World  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return small_world(tmp_path, per_class=4, steps=12, window_steps=8, now=None, policy_extra="redo_steps = 12")


def opened(world: World, **options) -> PrivateTraining:
    return PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, progress=False, **options)


def attempt(world: World, fault: int | None, *, where: str = "forward", raised: type[BaseException] = ZeroDivisionError) -> int:
    """Runs a loop that raises at a step, and returns the last step that the optimizer took."""
    model, last = net(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with opened(world, resume=True) as private:
        _, optimizer, steps = private.prepare(model, optimizer, collate, layers="layers")
        for step in steps:
            for rows in step:
                if step.number == fault and where == "forward" and not private.prepared.probe.active:
                    raise raised
                private.backward(per_example(model, rows), rows)
            if step.number == fault and where == "released":
                raise raised
            optimizer.step()
            last = step.number
            if step.number == fault and where == "stepped":
                raise raised
    return last


def charges(world: World) -> list[tuple[int, int, int]]:
    with Ledger.open(world.ledger, read_only=True) as log:
        return [(window.attempt, window.first_step, window.n_steps) for window in log.state.windows]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("raised", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_a_bug_at_step_two_costs_one_step_each_time(world: World, raised: type[BaseException]) -> None:
    """The first try charges step 1, which is kept, and step 2; every later one charges step 2 again and nothing else."""
    for _ in range(3):
        with pytest.raises(raised):
            attempt(world, 2, raised=raised)
    assert charges(world) == [(0, 1, 1), (0, 2, 1), (1, 2, 1), (2, 2, 1)]
    assert attempt(world, None) == 12
    with Ledger.open(world.ledger, read_only=True) as log:
        assert log.finished and log.state.charged == 12 + 3


BEHIND_7 = [(1, 8, 1), (1, 9, 1), (1, 10, 1), (1, 11, 1), (1, 12, 1)]
BEHIND_8 = [(1, 9, 1), (1, 10, 1), (1, 11, 1), (1, 12, 1)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("where", "later"), [("forward", BEHIND_7), ("released", BEHIND_7), ("stepped", BEHIND_8)])
def test_a_run_goes_on_behind_the_last_whole_step(world: World, where: str, later: list[tuple[int, int, int]]) -> None:
    """Step 8 lies in the window of steps 7 to 10; that window is settled with what was released of it, and stays charged."""
    with pytest.raises(ZeroDivisionError):
        attempt(world, 8, where=where)
    assert charges(world) == [(0, 1, 1), (0, 2, 1), (0, 3, 1), (0, 4, 1), (0, 5, 2), (0, 7, 4)]
    with Ledger.open(world.ledger, read_only=True) as log:
        released = 1 if where == "forward" else 2
        assert log.state.open_window is None and log.state.position == 6 + released
    assert attempt(world, None) == 12
    assert charges(world)[6:] == later


def test_what_is_planned_counts_what_was_charged_in_vain_and_before_a_run_begins_nothing_is_spent(world: World) -> None:
    planned, model = [], net()
    with opened(world) as private:
        private.prepare(model, torch.optim.AdamW(model.parameters()), collate, layers="layers")
        found = private.epsilon()["open"]
        planned.append(found.planned)
        assert found is not None and (found.spent, found.spent_replaced) == (0.0, 0.0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            attempt(world, 3)
        model = net()
        with opened(world, resume=True) as private:
            private.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1), collate, layers="layers")
            planned.append(private.epsilon()["open"].planned)
    assert planned[0] < planned[1] < planned[2]
    attempt(world, None)
    with Ledger.open(world.ledger, read_only=True) as log:
        assert log.state.charged == 14 and log.epsilon(next(iter(log.state.contributions))) == planned[2]


def test_a_run_shows_how_it_stands(world: World) -> None:
    model, shown = net(), []
    with opened(world) as private:
        shown.append(repr(private))
        _, optimizer, steps = private.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), collate, layers="layers")
        shown.append(repr(private))
        for step in steps:
            for rows in step:
                private.backward(per_example(model, rows), rows)
            optimizer.step()
    shown.append(repr(private))
    assert "call prepare()" in shown[0] and "nothing charged yet" in shown[1]
    assert "step 12 of 12, open ε " in shown[2] and shown[2].endswith("delta 1e-05>")


def test_an_interrupted_run_ends_in_an_export_that_verifies(world: World, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        attempt(world, 3)
    attempt(world, None)
    with Ledger.open(world.ledger, read_only=False) as log:
        key = log.header.log_vkey
        export = log.export(tmp_path / "export")
    assert verify_export(export, [key], owner_key=None).verdict != "FAILED"


def test_a_checkpoint_of_another_optimizer_is_refused_by_name(world: World) -> None:
    with pytest.raises(ZeroDivisionError):
        attempt(world, 2)
    model = net()
    with opened(world, resume=True) as private, pytest.raises(ResumeRefused, match=r"CHECKPOINT_MISFIT.*optimizer"):
        private.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), collate, layers="layers")


def test_half_a_step_of_an_optimizer_is_not_saved(world: World) -> None:
    class Halfway(torch.optim.SGD):
        def step(self, closure=None):  # type: ignore[override]
            super().step()
            raise ZeroDivisionError

    model = net()
    with pytest.raises(ZeroDivisionError), opened(world) as private:
        _, optimizer, steps = private.prepare(model, Halfway(model.parameters(), lr=0.1), collate, layers="layers")
        for step in steps:
            for rows in step:
                private.backward(per_example(model, rows), rows)
            optimizer.step()
    assert not list(world.root.glob("*.checkpoints/*"))
    with Ledger.open(world.ledger, read_only=True) as log:
        assert log.state.position == 1, "its release began"


def test_what_is_not_finite_is_not_saved(world: World) -> None:
    model = net()
    with pytest.raises(ZeroDivisionError), opened(world) as private:
        _, optimizer, steps = private.prepare(model, torch.optim.SGD(model.parameters(), lr=1e308), collate, layers="layers")
        for step in steps:
            for rows in step:
                private.backward(per_example(model, rows), rows)
            optimizer.step()
            with torch.no_grad():
                model.head.bias.fill_(float("nan"))
            raise ZeroDivisionError
    assert not list(world.root.glob("*.checkpoints/*"))


def test_a_cell_of_a_notebook_can_be_run_again(world: World) -> None:
    """The first run is still open in this process, and holds the ledger's lock."""

    def cell(fault: int | None) -> None:
        global kept
        model = net()
        kept = private = opened(world, resume=True)
        _, optimizer, steps = private.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), collate, layers="layers")
        for step in steps:
            for rows in step:
                if step.number == fault and not private.prepared.probe.active:
                    raise KeyboardInterrupt
                private.backward(per_example(model, rows), rows)
            optimizer.step()

    with pytest.raises(KeyboardInterrupt):
        cell(2)
    cell(None)
    assert charges(world)[:3] == [(0, 1, 1), (0, 2, 1), (1, 2, 1)]


def test_a_program_that_ends_in_a_traceback_settles(world: World) -> None:
    """Without a with block, as people write it first."""
    program = f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        import torch
        from dptrain import PrivateTraining
        from tests.guarantees.peers import collate, net, per_example
        private = PrivateTraining.open({str(world.policy)!r}, {str(world.corpus)!r}, ledger={str(world.ledger)!r})
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        model, optimizer, steps = private.prepare(model, optimizer, collate, layers="layers")
        for step in steps:
            for rows in step:
                if step.number == 3:
                    raise ZeroDivisionError("a bug")
                private.backward(per_example(model, rows), rows)
            optimizer.step()
        """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1 and done.stderr.rstrip().endswith("ZeroDivisionError: a bug")
    with Ledger.open(world.ledger, read_only=True) as log:
        assert log.state.open_window is None and log.state.position == 2
    assert attempt(world, None) == 12


def test_a_ledger_that_pays_for_nothing_is_taken_over(world: World, monkeypatch) -> None:
    """It began, and ended before its first charge; the next run has another model, and does not ask to resume."""
    monkeypatch.setattr(Ledger, "charge", lambda *_, **__: (_ for _ in ()).throw(ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        attempt(world, None)
    monkeypatch.undo()
    with Ledger.open(world.ledger, read_only=True) as log:
        first = log.header_digest
    model = nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(28, 3)).double()
    with opened(world) as private:
        _, optimizer, steps = private.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), collate, layers=["0", "2"])
        for step in steps:
            for rows in step:
                private.backward(per_example(model, rows), rows)
            optimizer.step()
    with Ledger.open(world.ledger, read_only=True) as log:
        assert log.header_digest != first and log.finished
    assert len(list(world.root.glob("ledger.db.unfinished-*"))) >= 1, "nothing is deleted"


def test_a_ledger_whose_export_is_out_or_that_charged_is_not_taken_over(world: World, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Ledger, "charge", lambda *_, **__: (_ for _ in ()).throw(ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        attempt(world, None)
    monkeypatch.undo()
    with opened(world, resume=True) as private:
        private.export(tmp_path / "export")
    with pytest.raises(ResumeRefused, match="LEDGER_EXISTS"):
        opened(world)


def test_a_ledger_of_a_header_alone_is_gone_on_with_and_not_taken_over(world: World, monkeypatch) -> None:
    """Its one leaf is signed, so an export of it may be out; nothing tells."""
    monkeypatch.setattr(Ledger, "admit", lambda *_, **__: (_ for _ in ()).throw(ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        attempt(world, None)
    monkeypatch.undo()
    with pytest.raises(ResumeRefused, match="LEDGER_EXISTS"):
        opened(world)
    assert attempt(world, None) == 12


def test_a_ledger_that_was_rolled_back_to_before_its_charges_is_not_taken_over(world: World, monkeypatch) -> None:
    """An old copy pays for nothing; the signer's own record says that there was more."""
    monkeypatch.setattr(Ledger, "charge", lambda *_, **__: (_ for _ in ()).throw(ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        attempt(world, None)
    monkeypatch.undo()
    files = [path for path in world.root.glob("ledger.db*") if path.is_file() and "highwater" not in path.name]
    old = {path: path.read_bytes() for path in files}
    with pytest.raises(ZeroDivisionError):
        attempt(world, 2)
    for path in world.root.glob("ledger.db-*"):
        path.unlink()
    for path, data in old.items():
        path.write_bytes(data)
    with pytest.raises(ResumeRefused, match="LEDGER_EXISTS"):
        opened(world)


@pytest.fixture
def dry(world: World) -> Iterator[list[list[int]]]:
    seen: list[list[int]] = []
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    decoded: list[bytes] = []

    def counted(content: bytes) -> list:
        import json

        decoded.append(content)
        return [json.loads(content)]

    with opened(world) as private:
        _, optimizer, steps = private.prepare(model, optimizer, collate, layers="layers", decode=counted, dry_run=True)
        for step in steps:
            for rows in step:
                seen.append(rows["seeds"].tolist())
                private.backward(per_example(model, rows), rows)
            optimizer.step()
            private.save()
        assert len(steps) == 3
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not optimizer.state
    assert len(set(decoded)) == 4, "every record was decoded"
    yield seen


def test_a_dry_run_sees_nobody_charges_nothing_and_leaves_the_model(world: World, dry: list[list[int]], capsys) -> None:
    assert not world.ledger.exists() and not list(world.root.glob("*.checkpoints"))
    assert all(seed in (0, 1) for seeds in dry for seed in seeds), "rows are made up of zeros and ones"
    assert attempt(world, None) == 12


def test_a_dry_run_refuses_what_a_run_refuses(world: World) -> None:
    class Mixes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - x.mean(0, keepdim=True)

    model = net(Mixes)
    with opened(world) as private, warnings.catch_warnings(), pytest.raises(Exception, match=r"CROSS_SAMPLE|REPLACEMENT"):
        warnings.simplefilter("ignore")
        _, optimizer, steps = private.prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.1), collate, layers="layers", dry_run=True
        )
        for step in steps:
            for rows in step:
                private.backward(per_example(model, rows), rows)
            optimizer.step()
    assert not world.ledger.exists()


def test_an_error_of_the_guard_settles_too(world: World) -> None:
    model = net()
    with pytest.raises(NotPrivateUse), opened(world) as private:
        _, optimizer, steps = private.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), collate, layers="layers")
        for step in steps:
            for rows in step:
                private.backward(per_example(model, rows), rows)
            if step.number == 2:
                model.head.weight.grad = torch.zeros_like(model.head.weight)
            optimizer.step()
    with Ledger.open(world.ledger, read_only=True) as log:
        assert log.state.open_window is None and log.state.position == 2
