"""An interrupt in the release of correlated noise waits until the optimizer has the step, and what it took is saved."""

import os
import signal
import threading

import pytest

torch = pytest.importorskip("torch")

from dptrain.engine import interrupts as room  # noqa: E402
from dptrain.engine.interrupts import Interrupts  # noqa: E402
from dptrain.noise.correlated.gaussian import CorrelatedGaussian  # noqa: E402
from dptrain.noise.lattice import LatticeGaussian  # noqa: E402
from tests.worlds.trainer import Trainer, audited  # noqa: E402
from tests.worlds.training import make_world  # noqa: E402

TURNS = 'disclosure = "occurrences_public"\nsampling = { order = "cyclic" }\n'
BANDS = f'noise = {{ family = "banded_toeplitz", parameters = {{ bands = 2, coefficients = [{1 << 20}, {1 << 19}] }} }}\n'


def interrupt(number: int = signal.SIGINT) -> None:
    """Has this process get a signal now."""
    os.kill(os.getpid(), number)
    for _ in range(1000):  # Python runs the handler between two of its instructions
        pass


@pytest.fixture(autouse=True)
def handlers():
    """The handlers that a program has, whatever a test leaves."""
    before = {number: signal.getsignal(number) for number in room.SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.one_in(99)
@pytest.mark.parametrize(("noise", "saved"), [(BANDS, 3), ("", 2)], ids=["correlated", "independent"])
def test_an_interrupt_in_a_release_saves_the_last_step_that_the_optimizer_took(tmp_path, monkeypatch, noise, saved) -> None:
    """With independent noise it is the step before, at once; with correlated noise that step itself, which then is whole."""
    world = make_world(tmp_path, steps=5, rate='"1/2"', per_class=1, policy_extra=TURNS + noise)
    kind = CorrelatedGaussian if noise else LatticeGaussian
    release, struck = kind.release, []

    def interrupted(own, clipped_sum, state, step):
        if step.number == 3 and step.lane == 1 and not struck:
            struck.append(step)
            interrupt()
        return release(own, clipped_sum, state, step)

    monkeypatch.setattr(kind, "release", interrupted)
    first = Trainer(world)
    with pytest.raises(KeyboardInterrupt), first.private:
        first.run()
    assert struck and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    second = Trainer(world, resume=True)
    assert second.private.prepared.start_step == saved
    second.run()
    audited(second, world, tmp_path / "export")
    second.close()


def test_an_interrupt_that_is_put_off_comes_once_and_a_second_one_at_once() -> None:
    held = Interrupts()
    held.put_off()
    interrupt()
    with pytest.raises(KeyboardInterrupt):
        held.let()
    held.let()
    held.put_off()
    interrupt()
    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    held.let()


def test_nobody_waits_long_for_an_optimizer_that_is_never_called(monkeypatch) -> None:
    held = Interrupts()
    held.put_off()
    held.released()
    interrupt()  # within the time
    with pytest.raises(KeyboardInterrupt):
        held.let()
    monkeypatch.setattr(room, "PATIENCE", -1.0)
    held.put_off()
    held.released()
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_signals_without_a_handler_of_python_and_handlers_that_came_later_are_left_alone() -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "a process that is terminated has no handler by itself"
    held, came = Interrupts(), []
    held.put_off()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))  # as a notebook has one of its own for every cell
    later = signal.getsignal(signal.SIGINT)
    held.let()
    assert signal.getsignal(signal.SIGINT) is later
    interrupt()
    assert came == [signal.SIGINT]


def test_a_handler_of_the_program_gets_the_signal_when_it_is_let_through() -> None:
    came, held = [], Interrupts()
    signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    held.put_off()
    interrupt(signal.SIGTERM)
    assert came == []
    held.let()
    assert came == [signal.SIGTERM]


def test_other_threads_do_nothing() -> None:
    def work() -> None:
        held = Interrupts()
        held.put_off()
        found.append(signal.getsignal(signal.SIGINT))
        held.let()

    found: list = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


@pytest.mark.parametrize("left", ["closed", "raised"])
def test_a_loop_that_is_left_behind_a_release_gets_its_handlers_and_its_interrupt_back(tmp_path, left) -> None:
    trainer = Trainer(make_world(tmp_path, steps=3, rate='"1/2"', per_class=1, policy_extra=TURNS + BANDS))
    step = next(iter(trainer.steps))
    for rows in step:
        trainer.private.backward(trainer.losses(rows), rows)
    interrupt()
    with pytest.raises(KeyboardInterrupt):
        if left == "closed":
            trainer.close()
        else:
            with trainer.private:
                raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
