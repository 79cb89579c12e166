"""A run that goes on on another number of processes: its states, spending, caps and keys go with it."""

import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dptrain.engine.draw import Drawing  # noqa: E402
from ledger.log import Ledger  # noqa: E402
from tests.distributed.jobs import Job, Told, digest, done, opened  # noqa: E402
from tests.distributed.launched import launched  # noqa: E402
from tests.guarantees.peers import per_example, small_world  # noqa: E402

STEPS = 3
CAP = 2
Legs = list[list[list[Told]]]


def legs(root: Path, capped: Path, ways: tuple[int, ...]) -> Legs:
    """A run that is saved after every step and goes on elsewhere; and one with a cap, of which nothing is saved.

    Told by leg, rank and run. The ledger has one name, whoever goes on with it.
    """
    found: Legs = []
    name = "-".join(map(str, ways))
    for leg, ranks in enumerate(ways):
        options = {"name": name, "resume": leg > 0, "microbatch": 2}
        jobs = Job(root, steps=1, save=True, options=options), Job(capped, steps=1, options=options)
        found.append(launched(done, ranks, *jobs))
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Legs]:
    root, capped = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("capped")
    small_world(root, per_class=5, steps=STEPS, window_steps=1, policy_extra='exactness = "certified"\nredo_steps = 4')
    small_world(
        capped, per_class=5, steps=STEPS, window_steps=1, policy_extra="redo_steps = 9", template_extra={"max_occurrences": CAP}
    )
    return {"alone": legs(root, capped, (1, 1, 1)), "moved": legs(root, capped, (2, 1, 2))}


def test_a_run_that_moves_from_two_processes_to_one_and_back_has_the_bits_of_one_that_stays(found: dict[str, Legs]) -> None:
    """Weights, moments of the optimizer, and what was released, behind every leg and at every rank."""
    for leg, (alone, moved) in enumerate(zip(found["alone"], found["moved"], strict=True)):
        expected = alone[0][0]
        for told in (ranks[0] for ranks in moved):
            assert told.begins == leg and told.attempt == expected.attempt == leg
            assert digest(told.grads[0]) == digest(expected.grads[0]), f"released in leg {leg}"
            assert digest(told.weights) == digest(expected.weights) and digest(told.states) == digest(expected.states)


def test_what_was_spent_is_carried_to_any_number_of_processes(found: dict[str, Legs]) -> None:
    spent = []
    for leg, (alone, moved) in enumerate(zip(found["alone"], found["moved"], strict=True)):
        expected = alone[0][0]
        for told in (ranks[0] for ranks in moved):
            assert told.charged == expected.charged == leg + 1 and told.epsilon == expected.epsilon
            assert told.head == moved[0][0].head
        spent.append(expected.epsilon)
    assert 0.0 < spent[0] < spent[1] < spent[2]


def test_caps_count_the_draws_of_attempts_on_other_numbers_of_processes(found: dict[str, Legs]) -> None:
    """Everybody is drawn in each attempt until the cap, and nobody afterwards; every rank counts for itself."""
    for leg, moved in enumerate(found["moved"]):
        told = [ranks[1] for ranks in moved]
        assert {each.begins for each in told} == {0}
        seeds = sorted(seed for each in told for seed in each.seeds[0])
        assert seeds == (list(range(5)) if leg < CAP else [])
        assert digest(told[0].grads[0]) == digest(told[-1].grads[0])


# ------------------------------------------------------------------------------------------ keys, and who draws when


def watched(rank: int, root: Path) -> list[tuple[int, int]]:
    """A run whose rank 0 is slow to charge; tells of every draw here which step it was for, and what the disk said then."""
    charge = Ledger.charge

    def slowly(self: Ledger, *arguments: Any, **options: Any) -> Any:
        time.sleep(0.3)
        return charge(self, *arguments, **options)

    draw, seen = Drawing.draw, list[tuple[int, int]]()

    def drawn(self: Drawing, number: int) -> list[int]:
        with Ledger.open(root / "watched-2.db", read_only=True) as log:
            seen.append((number, log.state.charged))
        return draw(self, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "charge", slowly)
        patch.setattr(Drawing, "draw", drawn)
        run = opened(Job(root, "watched"))
        for step in run.steps:
            for rows in step:
                run.private.backward(per_example(run.net, rows), rows)
            run.optimizer.step()
        run.private.close()
    return seen


def test_no_rank_draws_for_a_step_before_its_charge_is_on_the_disk(tmp_path: Path) -> None:
    small_world(tmp_path, per_class=2, steps=STEPS, window_steps=1)
    for seen in launched(watched, 2, tmp_path):
        assert [number for number, _ in seen] == list(range(1, STEPS + 1))
        assert all(charged >= number for number, charged in seen), seen
