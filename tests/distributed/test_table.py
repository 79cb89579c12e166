"""Every setting trains on two processes as on one, or is refused by name; docs/ranks.md has the rows as a table.

At `certified` parameters and states of the optimizer are the same to the last bit, at `fast` up to rounding, and at both every
process has the same bits.
"""

import math
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from dptrain.engine.draw import Drawing  # noqa: E402
from dptrain.noise import LatticeGaussian  # noqa: E402
from tests.distributed import table_runs as runs  # noqa: E402
from tests.distributed.launched import launched  # noqa: E402
from tests.distributed.table_rows import BY_KEY, CERTIFIED, FAULTY, LEVELS, PAGE, ROWS, TOLERANCE, Row, page  # noqa: E402
from tests.distributed.table_runs import Told, digest  # noqa: E402
from tests.guarantees.test_injection import full_each  # noqa: E402
from tests.worlds.trainer import Trainer  # noqa: E402
from tests.worlds.training import World, make_world  # noqa: E402

EXACT = ("foreseen", "epsilon", "charged", "rates", "left", "cited", "ledger", "kept")
"""What a process says that does not hang on how many there are, to the last bit."""

LIMIT = 540.0
"""Seconds for a launch; compiling to machine code takes long."""

ALARM = 5.0
"""Standard errors; about 6e-7 false alarms per comparison."""


def compared(rows: list[Row], folder: Path) -> list[str]:
    """Runs rows on one process and on two, each with a copy of the same world, and says where they differ."""
    for place, row in enumerate(rows):
        row.make(folder / "worlds" / str(place))

    def on(ranks: int) -> list[dict[str, Told]]:
        wanted = [(place, row) for place, row in enumerate(rows) if ranks == 2 or not row.refused]
        roots = {row.key: str(folder / f"{place}-on-{ranks}") for place, row in wanted}
        for place, row in wanted:
            shutil.copytree(folder / "worlds" / str(place), roots[row.key])
        return launched(runs.ran, ranks, roots, limit=LIMIT) if roots else [{}]

    with ThreadPoolExecutor(2) as both:
        (alone,), several = both.map(on, (1, 2))
    return [
        f"{row.key}: {told}"
        for row in rows
        for told in differences(row, alone.get(row.key), [each[row.key] for each in several])
    ]


def differences(row: Row, alone: Told | None, each: list[Told]) -> list[str]:
    """Says in words what is not as the row promises."""
    if row.refused:
        code, advice = row.refused
        said = [one.get("refused", ("nothing", "")) for one in each]
        return [f"said {found}, expected {code}" for found in said if found[0] != code or advice not in found[1]]
    assert alone is not None
    failed = [one["refused"] for one in (alone, *each) if "refused" in one]
    if failed:
        return [f"refused: {failed}\n{[one.get('trace') for one in (alone, *each)]}"]
    found = [
        f"{key} differs between processes"
        for key in ("bits", "head", "microbatches")
        if len({repr(o.get(key)) for o in each}) > 1
    ]
    found += [f"{key} is not that of one process" for key in EXACT for one in each if one.get(key) != alone.get(key)]
    first = each[0]
    found += [f"{key}: {first.get(key)} against {alone.get(key)}" for key in ("verdict",) if first.get(key) != alone.get(key)]
    found += [] if _lines(first) == _lines(alone) else ["the public numbers differ"]
    if "verdict" in alone and alone["verdict"] != ("FULL", []):
        found.append(f"the audit says {alone['verdict']}")
    if first["microbatches"] > alone["microbatches"]:
        found.append("a process has more microbatches than one alone had")
    if "graphs" in alone and not (alone["graphs"] and sum(one["graphs"] for one in each)):
        found.append("nothing ran in the compiled form")
    if "kept" in alone:
        return found + ([] if alone["kept"] and not alone["ledger"] else ["a dry run changed something"])
    return found + (_parameters(row, alone, first) if row.fixed else [])


def _lines(told: Told) -> list[dict[str, Any]]:
    """Public numbers of all steps but for the time."""
    return [{key: value for key, value in line.items() if key != "time"} for line in told.get("lines", ())]


def _parameters(row: Row, alone: Told, first: Told) -> list[str]:
    """Compares where parameters and states of the optimizer ended; what was released was never zero."""
    assert bool(alone["moved"].any()), "no parameter moved, so nothing is compared"
    exact = row.level == CERTIFIED and not row.rounding
    if exact and (first["bits"], first.get("norms")) != (alone["bits"], alone.get("norms")):
        return ["bits are not those of one process"]
    off = float((first["moved"] - alone["moved"]).norm() / alone["moved"].norm())
    found = [] if off <= TOLERANCE else [f"parameters are off by {off:.1e} of their way"]
    for norms, others in zip(first.get("norms", ()), alone.get("norms", ()), strict=True):
        found += [f"norm of {b}" for b, norm in norms.items() if not math.isclose(norm, others[b], rel_tol=TOLERANCE)]
    return found


@pytest.mark.parametrize("turn", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_settings_train_on_two_processes_as_on_one(tmp_path: Path, turn: int) -> None:
    """The most different ones, in one launch; the others are slow."""
    rows = [row for row in ROWS if row.quick == turn]
    assert len(rows) >= 3
    assert compared(rows, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("group", dict.fromkeys(row.group for row in ROWS))
def test_every_setting_trains_on_two_processes_as_on_one(tmp_path: Path, group: str, level: str) -> None:
    rows = [row for row in ROWS if (row.group, row.level) == (group, level) and not row.refused]
    assert compared(rows, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("key", [row.key for row in ROWS if row.refused])
def test_what_does_not_train_is_refused_by_name(tmp_path: Path, key: str) -> None:
    assert compared([BY_KEY[key]], tmp_path) == []


@pytest.mark.parametrize("fault", ["losing", *(pytest.param(f, marks=pytest.mark.slow) for f in FAULTY if f != "losing")])
def test_the_comparison_sees(tmp_path: Path, fault: str) -> None:
    """What one process dealt itself is lost; noise follows the process; learning rates run ahead."""
    found = compared([FAULTY[fault]], tmp_path)
    assert any("off by" in one for one in found), found


@pytest.mark.slow
@pytest.mark.parametrize(("before", "behind"), [(1, 2), (2, 1), (2, 3)])
@pytest.mark.parametrize(
    "key",
    [
        "depth profiles: contiguous band",
        "budgets: max_occurrences, with resume",
        "noise: banded_toeplitz, with resume",
        "noise: dense, with resume",
    ],
)
def test_a_run_goes_on_on_another_number_of_processes(tmp_path: Path, key: str, before: int, behind: int) -> None:
    for level in ("certified", "fast"):
        row = BY_KEY[f"{key}, {level}"]
        row.make(tmp_path / level)
        ended = {}
        for name, first, second in (("same", 1, 1), ("other", before, behind)):
            root = {row.key: str(tmp_path / f"{level}-{name}")}
            shutil.copytree(tmp_path / level, root[row.key])
            halves = [launched(runs.ran, n, root, way)[0] for n, way in ((first, runs.first_half), (second, runs.second_half))]
            ended[name] = [half[row.key] for half in halves]
        for same, other in zip(ended["same"], ended["other"], strict=True):
            assert "refused" not in same and "refused" not in other, (same, other)
            assert same["epsilon"] == other["epsilon"] and same["charged"] == other["charged"]
            assert _parameters(row, same, other) == []


# --------------------------------------------------------------------------------------------------- noise per microbatch

M, STEPS, PER_CLASS = 4, 6, 3


def injected(rank: int, root: Path, fault: str) -> dict[str, Any]:
    """A run of which every gradient was made zero: how far its noise is from that of the schedule, and how it was split."""
    if fault:
        LatticeGaussian.gaussian = full_each  # type: ignore[method-assign]
    planned: list[list[int]] = []
    drawn: list[int] = []
    plan = Drawing.planned

    def listening(self: Drawing, slots: Any) -> Any:
        found = plan(self, slots)
        drawn.append(len(slots))
        planned.append([len(one.slots) for one in found if not one.idle])
        return found

    Drawing.planned = listening  # type: ignore[method-assign]
    trainer = Trainer(World.at(root), "bert", insecure_test_key=b"\x19" * 32, microbatch=16)
    run = trainer.private.prepared
    squares = [[0.0, 0] for _ in run.schedule.blocks]
    released = {}
    for step in trainer.steps:
        for rows in step:
            losses = trainer.losses(rows)
            trainer.private.backward(losses if run.probe.active else 0.0 * losses, rows)
        for g, tensor in run.router.tensors:
            value = tensor.parameter.grad.double() * trainer.private.policy.normalizer / run.schedule.blocks[g].std
            squares[g][0] += float(value.square().sum())
            squares[g][1] += value.numel()
            released[f"{step.number} {tensor.name}"] = tensor.parameter.grad.clone()
        trainer.optimizer.step()
    draws = run.gradients._draws
    trainer.close()
    scores = [abs(total - count) / math.sqrt(2 * count) for total, count in squares]
    return {"score": max(scores), "draws": draws, "planned": planned, "drawn": drawn, "bits": digest(released)}


def _injected(folder: Path, ranks: int, fault: str = "") -> list[dict[str, Any]]:
    root = folder / "world"
    if not root.exists():
        extra = f'noise = {{ injection = "per_microbatch", microbatches = {M} }}'
        make_world(root, steps=STEPS, rate="0.4", per_class=PER_CLASS, policy_extra=extra)
    shutil.copytree(root, folder / f"on-{ranks}{fault}")
    return launched(injected, ranks, folder / f"on-{ranks}{fault}", fault)


def check_injections(each: list[dict[str, Any]]) -> None:
    """The policy's M is that of all processes together, and their noise is the scheduled one."""
    assert len({one["bits"] for one in each}) == 1
    for one in each:
        assert one["draws"] == M
        assert one["score"] < ALARM
    for step, drawn in enumerate(each[0]["drawn"]):
        sizes = [size for one in each for size in one["planned"][step]]
        assert len(sizes) == min(M, drawn), "groups of the draw, of which none is empty"
        assert sum(sizes) == drawn, "a contribution was lost, or dealt twice"
        assert not sizes or max(sizes) - min(sizes) <= 1


@pytest.mark.slow
def test_noise_per_microbatch_is_that_of_the_policy_on_two_processes(tmp_path: Path) -> None:
    check_injections(_injected(tmp_path, 2))


@pytest.mark.slow
def test_noise_per_microbatch_is_the_same_on_one_two_and_three_processes(tmp_path: Path) -> None:
    found = {ranks: _injected(tmp_path, ranks) for ranks in (1, 2, 3)}
    for each in found.values():
        check_injections(each)
        assert each[0]["bits"] == found[1][0]["bits"]
        assert each[0]["drawn"] == found[1][0]["drawn"] and len(set(each[0]["drawn"])) > 1


@pytest.mark.slow
def test_noise_of_every_microbatch_with_the_variance_of_the_step_is_seen(tmp_path: Path) -> None:
    assert all(one["score"] > 2 * ALARM for one in _injected(tmp_path, 2, "full"))


# ------------------------------------------------------------------------------------------------------------------ page


def test_the_page_has_the_table_of_these_rows() -> None:
    assert page(PAGE.read_text()) == PAGE.read_text(), "run: python -m tests.distributed.table_rows"


def test_every_setting_is_a_row_once_and_every_refusal_says_what_to_do() -> None:
    assert len(BY_KEY) == len(ROWS)
    assert all(code.isupper() and advice for code, advice in (row.refused for row in ROWS if row.refused))
