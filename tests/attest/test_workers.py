"""The processes of the gate: what they run, what they inherit, how they end, and how far the driver runs ahead of them."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from attest import processes
from attest.attestation import Attestation
from attest.corpus import Item, Locator
from attest.errors import GateFailed
from attest.gate import Gate
from attest.gate import gate as gate_module
from attest.gate import workers as workers_module
from attest.gate.admission import Passed
from attest.gate.workers import Work, Workers
from tests.worlds.gate import NOW

ROOT = Path(__file__).resolve().parents[2]


def answered(world, workers):
    """What a pool says of a valid attestation."""
    attestation = world.sign()
    work = Work([(attestation.descriptor, attestation.sign1, attestation.opening, world.descriptor.content_hash)])
    while not workers.take(work):
        workers.pump(None)
    while work.answer is None:
        workers.pump(None)
    return work.answer


@pytest.fixture
def started(monkeypatch):
    """The pools that a test starts."""
    pools = []
    original = Workers.__init__
    monkeypatch.setattr(Workers, "__init__", lambda self, *args, **more: (pools.append(self), original(self, *args, **more))[1])
    return pools


def test_a_worker_imports_nothing_from_the_current_directory(world, tmp_path, monkeypatch):
    for name in ("json", "struct", "marshal", "pickle", "attest", "selectors"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(ROOT), *(entry for entry in sys.path if entry)])
    with Workers(1, world.policy, world.registry, NOW) as workers:
        assert isinstance(answered(world, workers)[0], Passed)
    assert not (tmp_path / "ran").exists()


def test_entries_of_the_path_that_are_no_strings_are_left_out(world, monkeypatch):
    odd = [Path("/nowhere"), b"/nowhere", None, "/no/\udcff/where", ""]
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path, *odd])
    with Workers(1, world.policy, world.registry, NOW) as workers:
        assert isinstance(answered(world, workers)[0], Passed)


@pytest.mark.one_in(23)
@pytest.mark.parametrize("options", [["-I"], ["-E"], ["-P"], []])
def test_workers_start_under_an_isolated_interpreter(options, tmp_path):
    (tmp_path / "json.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    program = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}]\n"
        "from tests.worlds.gate import make_gate_world; from tests.attest.test_workers import answered, NOW, Passed, Workers\n"
        "world = make_gate_world()\n"
        "with Workers(1, world.policy, world.registry, NOW) as workers:\n"
        "    assert isinstance(answered(world, workers)[0], Passed)\n"
    )
    sibling = tmp_path / "elsewhere"
    sibling.mkdir()
    (sibling / "program.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)} if "-I" in options or "-E" in options else os.environ
    subprocess.run(
        [sys.executable, *options, str(sibling / "program.py")], check=True, timeout=60, cwd=tmp_path, env=environment
    )
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("executable", [None, ""])
def test_an_interpreter_that_does_not_know_itself_is_an_error(world, monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(GateFailed, match=r"WORKER.*no Python interpreter"):
        Workers(1, world.policy, world.registry, NOW)


def test_a_frozen_program_does_not_start_itself_again(world, monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(processes.subprocess, "Popen", lambda *args, **options: pytest.fail("started"))
    with pytest.raises(GateFailed, match=r"WORKER.*no Python interpreter"):
        Workers(1, world.policy, world.registry, NOW)


@pytest.fixture
def stillborn(tmp_path, monkeypatch):
    """An interpreter that ends at once; `True` goes on with as many real ones behind it."""

    def choose(*real):
        original, left = subprocess.Popen, list(real)

        def popen(arguments, **options):
            program = arguments if left and left.pop(0) else ["false"]
            return original(program, **options)

        monkeypatch.setattr(processes.subprocess, "Popen", popen)

    return choose


@pytest.mark.one_in(99)
@pytest.mark.parametrize("real", [(), (False, True), (True, False)])
def test_workers_that_never_start_are_done_without_unless_somebody_insists(world, stillborn, real, monkeypatch):
    monkeypatch.setattr(gate_module, "PARALLEL_FROM", 0)
    monkeypatch.setattr(gate_module, "available_processors", lambda: 2)
    item = Item(Locator("x", 0, 1), world.descriptor.content_hash, world.sign())
    stillborn(*real)
    outcomes = list(Gate(world.policy, world.registry).judge((item for _ in range(6000)), now=NOW))
    assert len(outcomes) == 6000 and sum(hasattr(outcome, "admission") for outcome in outcomes) == 1
    stillborn(*real)
    with pytest.raises(GateFailed, match=r"WORKER.*ended"):
        for _ in Gate(world.policy, world.registry, workers=2).judge((item for _ in range(20_000)), now=NOW):
            pass


def test_a_pool_that_fails_to_start_leaves_no_process_and_no_open_file(world, monkeypatch):
    original, started = subprocess.Popen, []

    def second_fails(*args, **options):
        if started:
            raise KeyboardInterrupt
        started.append(original(*args, **options))
        return started[0]

    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(processes.subprocess, "Popen", second_fails)
    with pytest.raises(KeyboardInterrupt):
        Workers(2, world.policy, world.registry, NOW)
    assert started[0].poll() is not None
    assert set(os.listdir("/proc/self/fd")) == before


def test_workers_that_are_stopped_are_ended(world):
    with Workers(1, world.policy, world.registry, NOW) as workers:
        answered(world, workers)
        process = workers._workers[0]._process
        process.send_signal(signal.SIGSTOP)
        rescued = []
        rescue = threading.Timer(10, lambda: (rescued.append(True), process.send_signal(signal.SIGCONT)))
        rescue.start()
    rescue.cancel()
    assert process.poll() is not None and not rescued


def test_all_workers_are_sent_one_copy_of_the_registry(world):
    with Workers(3, world.policy, world.registry, NOW) as workers:
        setups = {id(part.obj) for worker in workers._workers for part in worker._out if len(part) > 8}
    assert len(setups) == 1


def test_one_slow_worker_lets_the_driver_run_ahead_only_so_far(world, started, monkeypatch):
    monkeypatch.setattr(gate_module, "PARALLEL_FROM", 0)
    monkeypatch.setattr(gate_module, "BATCH", 4)
    attestation = world.sign()
    item = Item(Locator("x", 0, 1), world.descriptor.content_hash, attestation)
    taken, given, furthest, held = 0, 0, 0, 0

    def corpus():
        nonlocal taken, furthest, held
        for taken in range(1, 6001):
            if taken == 100:
                (pool,) = started
                while not all(worker.ready for worker in pool._workers):
                    pool.pump(None)
                process = pool._workers[0]._process
                process.send_signal(signal.SIGSTOP)
                threading.Timer(1.0, process.send_signal, [signal.SIGCONT]).start()
            furthest = max(furthest, taken - given)
            held = max([held, *(len(worker.works) for pool in started for worker in pool._workers)])
            yield item

    for _ in Gate(world.policy, world.registry, workers=2).judge(corpus(), now=NOW):
        given += 1
    assert given == 6000
    assert furthest <= 4 * (2 * gate_module.AHEAD + 2) and 1 < held <= workers_module.QUEUE


def test_batches_are_bounded_in_bytes_whatever_part_is_large(monkeypatch):
    monkeypatch.setattr(gate_module, "BATCH_BYTES", 10_000)
    for attestation in (Attestation(b"d" * 1000, b"s"), Attestation(b"d", b"s" * 1000), Attestation(b"d", b"s", b"o" * 1000)):
        items = [Item(None, None, attestation)] * 100
        assert [len(batch) for batch in gate_module._batches(items)] == [10] * 10


def test_answers_come_in_order_and_go_to_their_questions(world, monkeypatch, started):
    monkeypatch.setattr(gate_module, "PARALLEL_FROM", 0)
    monkeypatch.setattr(gate_module, "BATCH", 3)
    good = world.sign()
    codes = {0: None, 1: "SIG_BAD", 2: "CONTENT_MISMATCH", 3: "CBOR", 4: "CONTENT_MISSING"}
    cases = [
        (good, world.descriptor.content_hash),
        (replace(good, sign1=good.sign1[:-1] + bytes([good.sign1[-1] ^ 1])), world.descriptor.content_hash),
        (good, bytes(32)),
        (replace(good, descriptor=good.descriptor[:-1]), world.descriptor.content_hash),
        (good, None),
    ]

    def corpus():
        for number in range(1000):
            if number == 30:
                while not all(worker.ready for worker in started[0]._workers):
                    started[0].pump(None)
            attestation, content_hash = cases[number % 5]
            yield Item(Locator("x", number, 1), content_hash, attestation)

    outcomes = list(Gate(world.policy, world.registry, workers=3).judge(corpus(), now=NOW))
    assert [outcome.locator.offset for outcome in outcomes] == list(range(1000))
    for number, outcome in enumerate(outcomes[1:], start=1):
        assert str(outcome.refusal.code) == (codes[number % 5] or "REPLAYED")


def test_more_than_a_socket_holds_travels_both_ways(world):
    with Workers(2, world.policy, world.registry, NOW) as workers:
        answered(world, workers)
        # Other bytes in each: what stands twice in a message is sent once.
        works = [Work([(os.urandom(16000), b"s", b"o", None) for _ in range(200)]) for _ in range(8)]
        for work in works:
            while not workers.take(work):
                workers.pump(None)
        for _ in range(100_000):
            if all(work.answer is not None for work in works):
                break
            workers.pump(10)
    assert all(work.answer is not None and len(work.answer) == 200 for work in works)


def test_a_worker_that_ends_while_its_answer_is_awaited_is_noticed(world):
    with Workers(1, world.policy, world.registry, NOW) as workers:
        answered(world, workers)
        process = workers._workers[0]._process
        process.send_signal(signal.SIGSTOP)
        work = Work([(world.sign().descriptor, b"s", None)])
        assert workers.take(work)
        process.kill()
        with pytest.raises(GateFailed, match=r"WORKER.*ended"):
            for _ in range(100):
                workers.pump(1)
        assert work.answer is None


def test_an_interrupt_meant_for_the_driver_does_not_end_a_worker(world):
    with Workers(1, world.policy, world.registry, NOW) as workers:
        assert os.getpgid(workers._workers[0]._process.pid) != os.getpgid(0)
        answered(world, workers)
        workers._workers[0]._process.send_signal(signal.SIGINT)
        assert isinstance(answered(world, workers)[0], Passed)


def test_workers_end_with_a_driver_that_is_killed(tmp_path):
    program = (
        f"import sys, time; sys.path[:0] = [{str(ROOT)!r}]\n"
        "from tests.worlds.gate import make_gate_world; from tests.attest.test_workers import answered, NOW, Workers\n"
        "world = make_gate_world()\n"
        "workers = Workers(2, world.policy, world.registry, NOW)\n"
        "answered(world, workers)\n"
        "print(*(worker._process.pid for worker in workers._workers), flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as driver:
        pids = [int(word) for word in driver.stdout.readline().split()]
        driver.kill()
    assert len(pids) == 2
    deadline = time.monotonic() + 10
    while any(_runs(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in pids)


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_that_ends_while_it_has_nothing_to_do_is_noticed(world):
    with Workers(1, world.policy, world.registry, NOW) as workers:
        answered(world, workers)
        workers._workers[0]._process.kill()
        workers._workers[0]._process.wait()
        with pytest.raises(GateFailed, match=r"WORKER.*ended"):
            workers.pump(5)
