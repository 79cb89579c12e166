"""Workers that decode ahead: the same rows, errors and ledger as without them, and nothing left behind however a run ends."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from attest import processes  # noqa: E402
from attest.keys import generate, save_private_key  # noqa: E402
from dptrain import Microbatches, PrivateTraining  # noqa: E402
from dptrain.data import loader  # noqa: E402
from dptrain.data.loader import FeedingNotice  # noqa: E402
from dptrain.data.microbatch import Microbatch  # noqa: E402
from dptrain.data.packing import Planned  # noqa: E402
from dptrain.data.reader import Reader  # noqa: E402
from dptrain.data.workers import CannotSend, Done, Task, Workers, _packed, _unpacked  # noqa: E402
from dptrain.engine.draw import Drawing  # noqa: E402
from dptrain.errors import ConfigError, ContentChanged, FeedingFailed, NotPrivateUse  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from ledger.log import Ledger  # noqa: E402
from tests.guarantees import peers  # noqa: E402
from tests.worlds.programs import forked  # noqa: E402
from tests.worlds.trainer import opening  # noqa: E402
from tests.worlds.training import World, chance_of  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")


def plain_collate():
    """A collate that is pickled by value, so that workers need not import the tests."""

    def collate(examples: list[dict]) -> dict[str, Any]:
        return {
            "ids": torch.tensor([e["ids"] for e in examples]),
            "labels": torch.tensor([e["label"] for e in examples]),
            "seeds": torch.tensor([e["seed"] for e in examples]),
        }

    return collate


def plain_decode(content: bytes) -> list[Any]:
    return [json.loads(content)]


def drawing_decode():
    """Draws from all three generators, for every second contribution."""

    def decode(content: bytes) -> list[dict]:
        (example,) = [json.loads(content)]
        if example["seed"] % 2:
            example["seed"] += random.randrange(1000) + int(np.random.randint(1000)) + int(torch.randint(1000, ()))
        return [example]

    return decode


def drawing_collate():
    def collate(examples: list[dict]) -> dict[str, Any]:
        ids = torch.tensor([e["ids"] for e in examples])
        return {
            "ids": (ids + torch.randint(20, ids.shape)) % 50,
            "labels": torch.tensor([e["label"] for e in examples]),
            "seeds": torch.tensor([e["seed"] + random.randrange(1000) for e in examples]),
        }

    return collate


@pytest.fixture
def world(tmp_path: Path) -> World:
    options = {"per_class": 12, "steps": 8, "window_steps": 4, "rate": "0.5", "now": None}
    return peers.small_world(tmp_path / "world", **options, policy_extra="redo_steps = 8")


def run_of(world: World, workers: int, *, decode: Any = plain_decode, collate: Any = None, **options: Any) -> peers.Run:
    """A prepared run whose workers, if any, have started."""
    run = peers.Run(
        world, peers.net(), decode=decode, collate_fn=collate or plain_collate(), microbatch=3, workers=workers, **options
    )
    if workers and run.private.prepared.feeder.workers is not None:
        assert run.private.prepared.feeder.workers.wait_ready(60)
    return run


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forked with what they import. Tests of how they start, and of what is left of them, start interpreters."""
    monkeypatch.setattr(processes, "start", forked)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, pids))


@pytest.fixture
def here(monkeypatch) -> list[int]:
    """Counts the contributions that this process decodes."""
    seen: list[int] = []
    original = Reader.examples

    def examples(self: Reader, entries: Any, *how: Any) -> Any:
        seen.append(len(entries))
        return original(self, entries, *how)

    monkeypatch.setattr(Reader, "examples", examples)
    return seen


# -------------------------------------------------------------------------------------------------------------- the same


@pytest.mark.parametrize("draws", [False, True])
def test_a_run_is_the_same_to_the_bit_with_workers_and_without(
    world: World, tmp_path: Path, here, draws: bool, request: pytest.FixtureRequest
) -> None:
    """Rows, weights and the whole export of a run whose keys are fixed. What the first of three runs imports draws as well.

    Where nothing draws, workers are forked.
    """
    if not draws:
        request.getfixturevalue("imported")
    key, found = generate(), []
    for place, workers in enumerate((0, 0, 2)):
        root = tmp_path / f"world{place}"
        shutil.copytree(world.root, root)
        save_private_key(root / "ledger.key", key)
        own = World(root, root / "policy.cose", root / "corpus", world.owner_key, {}, world.registry, world.now)
        seen = []
        with chance_of("run"):
            options = {"decode": drawing_decode(), "collate": drawing_collate()} if draws else {}
            with run_of(own, workers, key=None, ledger_key=root / "ledger.key", **options) as run:
                here.clear()
                for step in run.steps:
                    for rows in step:
                        if not run.private.prepared.probe.active:
                            kept = {key: value.clone() for key, value in rows.inputs.items()}
                            seen.append(kept | {"weight": rows.weight, "names": rows.names})
                        run.private.backward(peers.per_example(run.model, rows), rows)
                    run.optimizer.step()
                export = run.private.export(tmp_path / f"export{place}")
                log = run.private.opened.recorder.ledger.header.log_vkey
        assert verify_export(export, [log], owner_key=None).verdict != "FAILED"
        assert bool(here) == (not workers), "workers decode, and then this process does not"
        files = {str(path.relative_to(export)): path.read_bytes() for path in sorted(export.rglob("*")) if path.is_file()}
        found.append((seen, files, {name: value.clone() for name, value in run.model.state_dict().items()}))
    _, (rows, files, weights), (other_rows, other_files, other_weights) = found
    assert len(rows) == len(other_rows) > 8
    for one, other in zip(rows, other_rows, strict=True):
        assert one.keys() == other.keys() and one.pop("names") == other.pop("names")
        assert all(torch.equal(one[key], other[key]) and one[key].stride() == other[key].stride() for key in one)
    assert files == other_files
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


@pytest.mark.one_in(9)
@pytest.mark.usefixtures("imported")
@pytest.mark.parametrize("who", [0, -1])
def test_collate_that_begins_to_draw_amid_a_run_is_seeded_from_the_same_microbatch_on(tmp_path: Path, who: int) -> None:
    """Calls it, from there on, for one example at a time. Microbatches that are under way by then are made again."""
    options = {"per_class": 12, "steps": 3, "window_steps": 6, "rate": "1", "now": None}
    world = peers.small_world(tmp_path / "world", **options, policy_extra="[gate]\nmax_examples = 2")
    flag, found, plain = tmp_path / "flag", [], plain_collate()

    def decode(content: bytes) -> list[Any]:
        return [json.loads(content)] * 2

    def collate(examples: list[dict]) -> dict[str, Any]:
        draws = os.path.exists(flag) and any(example["seed"] == int(flag.read_text()) for example in examples)
        late = torch.rand(len(examples)) if draws else torch.zeros(len(examples))
        return plain(examples) | {"late": late, "together": torch.full((len(examples),), len(examples))}

    for workers in (0, 2):
        flag.unlink(missing_ok=True)
        with run_of(world, workers, decode=decode, collate=collate) as run:
            seen = []
            for step in run.steps:
                for rows in step:
                    if not run.private.prepared.probe.active:
                        seen.append([rows[key].tolist() for key in ("seeds", "late", "together")])
                    run.private.backward(peers.per_example(run.model, rows), rows)
                run.optimizer.step()
                flag.write_text(str(seen[0][0][who]))  # of the first microbatch, as every step draws everybody
            found.append(seen)
    assert found[0] == found[1] and any(any(late) for _, late, _ in found[0])
    assert {number for _, _, together in found[0] for number in together} == {1, 2}


def test_tensors_travel_to_the_bit_whatever_their_kind() -> None:
    base = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    shared = torch.arange(3)
    inputs = {
        "float": base, "turned": base.T, "half": base.bfloat16(), "bool": base > 0, "none": torch.empty(0, 3),
        "one": torch.tensor(2.5), "complex": torch.complex(base, base), "first": shared, "second": shared,
        "sparse": base.relu().to_sparse(), "texts": ["a", "b"], "bytes": torch.arange(7, dtype=torch.uint8), "constant": 3,
    }  # fmt: skip
    rows = Microbatch(inputs, 1, 1, torch.ones(1, dtype=torch.float64), (b"name",))
    back = _unpacked(*_packed(Done((1,), (False, True), rows)), CPU).rows
    assert back is not None and back.names == (b"name",) and torch.equal(back.weight, rows.weight)
    for key, value in inputs.items():
        other = back[key]
        if not isinstance(value, torch.Tensor):
            assert other == value
        elif value.is_sparse:
            assert torch.equal(other.to_dense(), value.to_dense())
        else:
            assert (other.dtype, other.shape, other.stride()) == (value.dtype, value.shape, value.stride()), key
            assert torch.equal(other, value), key
    assert back["first"] is back["second"]
    back["float"].add_(1)  # is memory of its own, and can be written
    assert not torch.equal(back["float"], base)


def test_the_answer_for_rows_that_cannot_be_pickled_is_that_it_failed() -> None:
    done = _unpacked(*_packed(Done(looks=(None, threading.Lock()))), CPU)  # type: ignore[arg-type]
    assert done.failed is not None and done.rows is None


# ------------------------------------------------------------------------------------------------------ only what is charged


@pytest.mark.one_in(99)
@pytest.mark.usefixtures("imported")
@pytest.mark.parametrize("workers", [0, 1])
def test_nobody_is_drawn_before_the_window_of_the_step_is_charged(world: World, monkeypatch, workers: int) -> None:
    """With workers, a step is drawn while the one before it runs, but never the first of a window."""
    drawn: list[tuple[int, int]] = []
    original = Drawing.draw
    with run_of(world, workers) as run:
        prepared = run.private.prepared

        def draw(self: Drawing, number: int) -> list[int]:
            assert not prepared.recorder.needs_charge(number)
            window = prepared.recorder.ledger.state.open_window
            assert window is not None and window.first_step <= number < window.first_step + window.n_steps
            drawn.append((number, prepared.step))
            return original(self, number)

        monkeypatch.setattr(Drawing, "draw", draw)
        for _ in run.releases():
            pass
    assert [number for number, _ in drawn] == list(range(1, 9)), "each step is drawn once, in order"
    early = [number for number, step in drawn if step < number]
    assert bool(early) == bool(workers)


@pytest.mark.usefixtures("imported")
def test_a_microbatch_that_is_waited_for_is_split_among_workers_and_is_the_same(world: World, monkeypatch) -> None:
    sent: list[int] = []
    original = Workers.ask

    def ask(self: Workers, task: Task) -> Any:
        sent.append(len(task.entries))
        return original(self, task)

    monkeypatch.setattr(Workers, "ask", ask)
    with run_of(world, 2, decode=drawing_decode(), collate=drawing_collate()) as run:
        feeder = run.private.prepared.feeder
        for planned in (Planned((0, 3, 1, 2, 7), 1, length=None), Planned((4,), 1), Planned((5, 6), 1, fill=2)):
            sent.clear()
            feeder.expect([planned], 3)
            parts, rows = list(sent), feeder.planned(planned, 3)
            assert parts == {5: [2, 3], 1: [1], 2: [2]}[len(planned.slots)]
            alone = feeder._collated(planned, feeder._examples(planned.slots, 3), 3)
            assert rows.names == alone.names and torch.equal(rows.weight, alone.weight)
            assert all(torch.equal(rows[key], alone[key]) for key in alone)
            assert (rows.contributions, rows.examples, rows.length) == (alone.contributions, alone.examples, alone.length)


# ---------------------------------------------------------------------------------------------------------------- errors


def stops(world: World, workers: int, spoil: Any, **options: Any) -> tuple[int, int, BaseException]:
    """Runs until an error; returns step, microbatches done in it, and the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FeedingNotice)
        with run_of(world, workers, **options) as run:
            spoil()
            try:
                for step in run.steps:
                    done = 0
                    for rows in step:
                        run.private.backward(peers.per_example(run.model, rows), rows)
                        done += not run.private.prepared.probe.active
                    run.optimizer.step()
            except Exception as error:
                return step.number, done, error
    raise AssertionError("nothing stopped the run")


@pytest.mark.usefixtures("imported")
def test_a_decoder_that_raises_for_one_contribution_stops_the_run_where_it_would_without(world: World, tmp_path) -> None:
    flag = tmp_path / "flag"

    def decode(content: bytes) -> list[Any]:
        (example,) = [json.loads(content)]
        if example["seed"] == 5 and os.path.exists(flag):
            raise LookupError(f"cannot read {example['seed']}")
        return [example]

    found = []
    for workers in (0, 2):
        flag.unlink(missing_ok=True)
        step, done, error = stops(world, workers, flag.touch, decode=decode)
        found.append((step, done, type(error), str(error)))
    assert found[0] == found[1] and found[0][2] is LookupError


@pytest.mark.usefixtures("imported")
def test_content_that_changed_is_refused_where_it_would_be_without_workers(world: World) -> None:
    """It lies in a file; what a worker read before is what was signed."""
    (source,) = [path for path in world.corpus.rglob("*.jsonl")]
    text, found = source.read_text(), []
    changed = text.replace('"seed": 5', '"seed": 6')
    assert changed != text
    for workers in (0, 1):
        source.write_text(text)
        step, done, error = stops(world, workers, lambda: source.write_text(changed))
        found.append((step, done, type(error), str(error)))
    source.write_text(text)
    assert found[0] == found[1] and found[0][2] is ContentChanged and "CONTENT_CHANGED" in found[0][3]


@pytest.mark.usefixtures("imported")
def test_a_check_by_workers_names_the_culprit_and_reports_in_order(world: World, monkeypatch) -> None:
    """Everybody is tried by workers, but for those that are tried alone."""
    monkeypatch.setattr(loader, "ALONE", 2)
    monkeypatch.setattr(loader, "TOGETHER", 2)

    def decode(content: bytes) -> list[Any]:
        (example,) = [json.loads(content)]
        if example["seed"] in (5, 9):
            raise LookupError("its text is private")
        return [example]

    found, reports = [], []
    for workers in (0, 2):
        told: list[int] = []
        with run_of(world, min(workers, 1)) as run:
            feeder = run.private.prepared.feeder
            feeder._reader._decode = decode
            if feeder.workers is not None:  # those of this decoder
                feeder.workers.close()
                feeder.workers = loader.Workers(workers, 2, feeder.pool.corpus, decode, plain_collate())
                assert feeder.workers.wait_ready(60)
            with pytest.raises(ConfigError) as refused, warnings.catch_warnings():
                warnings.simplefilter("ignore", FeedingNotice)
                feeder.check(told.append)
        found.append(str(refused.value))
        reports.append(told)
    assert found[0] == found[1] and "at byte" in found[0] and "LookupError" in found[0] and "its text is" not in found[0]
    assert reports[0] == reports[1] and len(reports[0]) > 2


@pytest.mark.usefixtures("imported")
def test_a_check_by_workers_decodes_there(world: World, monkeypatch, here) -> None:
    monkeypatch.setattr(loader, "ALONE", 2)
    monkeypatch.setattr(loader, "TOGETHER", 4)
    with run_of(world, 1) as run:
        here.clear()
        told: list[int] = []
        run.private.prepared.feeder.check(told.append)
    assert sum(here) == 4, "two contributions alone, twice each"
    assert told[2:] == [4, 8, 12]


def test_decode_that_keeps_a_generator_of_its_own_is_refused_with_workers_too(world: World) -> None:
    own = random.Random(0)

    def decode(content: bytes) -> list[dict]:
        return [json.loads(content) | {"label": own.randrange(2)}]

    with pytest.raises(NotPrivateUse, match=r"COLLATE_RANDOM"):
        run_of(world, 1, decode=decode)
    assert not [thread for thread in threading.enumerate() if thread.name == "dptrain-feeding"], "its workers are gone"


def test_functions_that_cannot_be_pickled_run_in_this_process_with_a_notice(world: World) -> None:
    lock = threading.Lock()

    def decode(content: bytes) -> list[dict]:
        with lock:
            return [json.loads(content)]

    with pytest.warns(FeedingNotice, match="cannot be pickled"), run_of(world, 2, decode=decode) as run:
        assert run.private.prepared.feeder.workers is None
        for _ in run.releases():
            pass


def test_functions_that_a_new_process_cannot_load_run_in_this_one_with_a_notice(world: World) -> None:
    class Refuses:
        def __reduce__(self):
            return int, ("no number",)

        def __call__(self, content: bytes) -> list[dict]:
            return [json.loads(content)]

    with pytest.warns(FeedingNotice, match="cannot load them"), peers.Run(
        world, peers.net(), decode=Refuses(), collate_fn=plain_collate(), microbatch=3, workers=1
    ) as run:
        with pytest.raises(CannotSend):
            run.private.prepared.feeder.workers.wait_ready(60)
        for _ in run.releases():
            pass
        assert run.private.prepared.feeder.workers is None


@pytest.mark.parametrize(("workers", "prefetch"), [(-1, 2), (1, 0)])
def test_fewer_workers_than_none_are_refused(workers: int, prefetch: int) -> None:
    with pytest.raises(ConfigError, match="WORKERS"):
        Microbatches(workers=workers, prefetch=prefetch)


# ------------------------------------------------------------------------------------------------------------ how it ends


def trained(world: World, kill_at: int | None, workers: int = 2) -> list[int]:
    """Trains with fresh keys, and kills the workers in a step; returns the ids of all workers."""
    private = PrivateTraining.open(
        world.policy, world.corpus,
        **opening(world.ledger, progress=False, microbatch=2, workers=workers, resume=True, clock=lambda: world.now),
    )  # fmt: skip
    with private:
        model = peers.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        _, _, steps = private.prepare(model, optimizer, plain_collate(), decode=plain_decode, layers="layers")
        pool = private.prepared.feeder.workers
        assert pool is not None and pool.wait_ready(60)
        ids = pool.ids
        for step in steps:
            for rows in step:
                if step.number == kill_at and not private.prepared.probe.active:
                    for pid in ids:
                        with suppress(ProcessLookupError):  # rows that were read before may come after its end
                            os.kill(pid, signal.SIGKILL)
                private.backward(peers.per_example(model, rows), rows)
            optimizer.step()
    return ids


@pytest.mark.usefixtures("imported")
def test_a_worker_that_is_killed_ends_the_run_with_a_typed_error_and_the_run_goes_on_behind_it(world: World) -> None:
    with pytest.raises(FeedingFailed, match=r"WORKER: .*exit status -9.*resume=True"):
        trained(world, 3)
    with Ledger.open(world.ledger, read_only=True) as log:
        # Rows of the step may all have been there when the workers were killed; then it is the next one that fails.
        assert log.state.open_window is None and log.state.position in (2, 3), "a step was released by half"
    assert gone(trained(world, None, workers=1))
    with Ledger.open(world.ledger, read_only=True) as log:
        assert log.finished


def test_a_decoder_that_uses_hashes_of_strings_runs_in_this_process(world: World) -> None:
    """Strings have other hashes in every process, so that a contribution would have the rows of whoever was free."""
    def decode(content: bytes) -> list[Any]:
        found = plain_decode(content)
        for one in found:
            one["ids"] = [(value + hash(str(value))) % 20 for value in one["ids"]]
        return found

    with run_of(world, 1, decode=decode) as run, pytest.warns(FeedingNotice, match="other rows in another process"):
        run.gradients(next(iter(run.steps)))
        assert run.private.prepared.feeder.workers is None


def test_no_process_and_no_open_file_is_left_behind_a_run(world: World) -> None:
    before = len(os.listdir("/proc/self/fd"))
    run = run_of(world, 2)
    ids = run.private.prepared.feeder.workers.ids
    assert all(map(alive, ids))
    run.private.close()
    assert gone(ids) and not [thread for thread in threading.enumerate() if thread.name == "dptrain-feeding"]
    assert len(os.listdir("/proc/self/fd")) <= before + 1


PROGRAM = """
import sys, time
import torch
from dptrain import Microbatches, PrivateTraining
import json

def decode(content):  # of a script, without a guard
    time.sleep(0.01)
    return [json.loads(content)]

def collate(examples):
    return {"ids": torch.tensor([e["ids"] for e in examples]), "labels": torch.tensor([e["label"] for e in examples])}

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(50, 4), torch.nn.Flatten(), torch.nn.Linear(28, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
private = PrivateTraining.open(POLICY, CORPUS, ledger=LEDGER, progress=False, microbatches=Microbatches(3, workers=2))
model, optimizer, steps = private.prepare(model, optimizer, collate, decode=decode, layers=["0", "2"])
private.prepared.feeder.workers.wait_ready(60)
print(*private.prepared.feeder.workers.ids, flush=True)
for step in steps:
    for rows in step:
        losses = torch.nn.functional.cross_entropy(model(rows["ids"]), rows["labels"], reduction="none")
        private.backward(losses, rows)
    optimizer.step()
    print("step", step.number, flush=True)
    time.sleep(WAIT)
print("over", type(private.prepared.feeder.workers).__name__, flush=True)
"""


def program(world: World, wait: float) -> "subprocess.Popen[str]":
    names = {"POLICY": str(world.policy), "CORPUS": str(world.corpus), "LEDGER": str(world.ledger), "WAIT": wait}
    head = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    path = world.root / "program.py"
    path.write_text(head + textwrap.dedent(PROGRAM))
    return subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
    )  # fmt: skip


@pytest.mark.one_in(99)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_interrupted_or_killed_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    world = peers.small_world(tmp_path / "w", per_class=12, steps=8, window_steps=4, now=None)
    with program(world, 0.3) as running:
        assert running.stdout is not None
        ids = [int(word) for word in running.stdout.readline().split()]
        for line in running.stdout:
            if line.startswith("step 2"):
                break
        os.killpg(running.pid, number)  # as the keyboard does, to all of the group
        running.communicate(timeout=60)
    assert len(ids) == 2 and gone(ids)
    if number == signal.SIGINT:
        with Ledger.open(world.ledger, read_only=True) as log:
            assert log.state.open_window is None and log.state.position >= 2


@pytest.mark.slow
def test_functions_of_a_script_without_a_guard_run_in_workers(tmp_path: Path) -> None:
    world = peers.small_world(tmp_path / "w", per_class=12, steps=3, window_steps=2, now=None)
    with program(world, 0.0) as running:
        out, err = running.communicate(timeout=120)
    assert running.returncode == 0 and "FeedingNotice" not in err, err
    ids = [int(word) for word in out.splitlines()[0].split()]
    assert re.search("over Workers", out) and gone(ids)
