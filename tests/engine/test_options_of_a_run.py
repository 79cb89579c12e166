"""Options of a run that check themselves, one owner of everything, and epsilons that say what they promise."""

import math
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

from dptrain import Clock, Earlier, Microbatches, NoiseSource, PrivateTraining, RunLedger  # noqa: E402
from dptrain.engine.step import Parts, Steps  # noqa: E402
from dptrain.errors import ConfigError, StepOrder  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from tests.guarantees.test_coupling import Net, collate, one_per_example  # noqa: E402
from tests.worlds.trainer import BertTrainer as Trainer  # noqa: E402
from tests.worlds.training import CLASSES, make_world, token_record  # noqa: E402

POLICY = 'corpus = "own"\ndelta = 1e-5\nsteps = 3\nnormalizer = 4\nepoch_steps = 2\n' + CLASSES.format(q="0.5")


@pytest.mark.parametrize("made, code", [
    (lambda: Microbatches(0), "MICROBATCH"), (lambda: Microbatches(rows=0), "MICROBATCH"),
    (lambda: Microbatches(products="mine"), "PRODUCTS"),
    (lambda: NoiseSource("cloud"), "NOISE_GENERATOR"), (lambda: Earlier("ledger.db"), "EARLIER"),
])  # fmt: skip
def test_an_option_that_cannot_be_used_is_refused_when_it_is_made(made, code: str) -> None:
    with pytest.raises(ConfigError) as refused:
        made()
    assert refused.value.code == code


def test_a_ledger_is_named_by_its_path_or_by_its_options() -> None:
    named = RunLedger("x.db", origin="o")
    assert RunLedger.of(named) is named and RunLedger.of("x.db") == RunLedger("x.db")
    assert Clock(lambda: 5).now() == 5 and not Clock().jump_ok


def test_before_it_is_prepared_a_run_says_what_to_call(tmp_path) -> None:
    world = make_world(tmp_path, per_class=1)
    with PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, progress=False) as private:
        codes = []
        for early in (
            lambda: private.prepared, lambda: private.loss(max), lambda: private.loss(max, compiled=True), private.save,
            lambda: private.clip_blocks_(1.0), private.epsilon,
        ):  # fmt: skip
            with pytest.raises(StepOrder) as refused:
                early()
            codes.append(refused.value.code)
    assert codes == ["NOT_PREPARED", "LOSS_EARLY", "COMPILE_EARLY", "NOT_PREPARED", "CLIP_EARLY", "NOT_PREPARED"]


def test_a_prepared_run_has_all_its_attributes_from_the_start_to_the_end(tmp_path) -> None:
    trainer = Trainer(make_world(tmp_path, per_class=2, steps=2))
    before = (set(vars(trainer.private)), set(vars(trainer.private.prepared)))
    trainer.run()
    trainer.close()
    assert (set(vars(trainer.private)), set(vars(trainer.private.prepared))) == before


def test_epsilons_are_those_of_the_ledger_and_grow_to_the_planned_ones(tmp_path) -> None:
    trainer = Trainer(make_world(tmp_path, per_class=2, steps=4, window_steps=2))
    first = trainer.private.epsilon()["open"]
    assert (first.spent, first.spent_replaced) == (0.0, 0.0)
    spent = []
    for step in trainer.steps:
        trainer.one(step)
        spent.append(trainer.private.epsilon()["open"])
    rows = {row["class"]: row for row in trainer.private.prepared.summary()}
    assert [one.spent for one in spent] == sorted(one.spent for one in spent) and spent[0].spent < spent[-1].spent
    assert first.planned == spent[0].planned == spent[-1].planned == spent[-1].spent == rows["open"]["epsilon"]
    assert spent[-1].spent_replaced == rows["open"]["epsilon_replace"] > spent[-1].spent and spent[-1].delta == 1e-5
    assert all(math.isfinite(one.planned) for one in trainer.private.epsilon().values())
    trainer.close()


def records() -> dict[str, list[dict]]:
    return {"open": [token_record(seed) for seed in range(6)], "internal": [token_record(seed) for seed in range(9, 12)]}


def train(private: PrivateTraining, stop: int = 0) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _, _, steps = private.prepare(model, optimizer, collate, layers="layers")
    for step in steps:
        for rows in step:
            private.backward(one_per_example(model, rows), rows)
        optimizer.step()
        if step.number == stop:
            private.save()
            return


def test_one_owner_of_data_and_keys_trains_goes_on_and_is_audited(tmp_path) -> None:
    with PrivateTraining.one_owner(tmp_path / "own", POLICY, records(), progress=False) as private:
        assert len(private.opened.gate.admitted) == 9
        train(private, stop=2)
    with PrivateTraining.one_owner(tmp_path / "own", POLICY, records(), progress=False, resume=True) as private:
        train(private)
        assert private.epsilon()["open"].spent > 0
        export = private.export(tmp_path / "export")
        key = private.opened.recorder.ledger.header.log_vkey
    assert verify_export(export, [key], owner_key=private.opened.recorder.owner_public).verdict == "FULL"


def test_a_folder_of_one_owner_is_not_taken_for_another(tmp_path) -> None:
    PrivateTraining.one_owner(tmp_path, POLICY, records(), progress=False).close()
    others = records() | {"internal": [token_record(77)]}
    for policy, found in ((POLICY, others), (POLICY.replace("steps = 3", "steps = 4"), records()), (POLICY, {"no": []})):
        with pytest.raises(ConfigError) as refused:
            PrivateTraining.one_owner(tmp_path, policy, found, progress=False)
        assert refused.value.code == "ONE_OWNER"


def test_a_step_charges_draws_loads_releases_and_settles_in_this_order() -> None:
    done = []

    class Listening(Parts):
        def charge(self, number):
            done.append(f"charge {number}")

        def draw(self, number):
            done.append(f"draw {number}")
            return range(number)

        def load(self, planned, number):
            @contextmanager
            def loaded():
                done.append(f"load {planned}")
                yield planned
                done.append(f"leave {planned}")

            return loaded()

        def release(self, number):
            done.append(f"release {number}")

        def settle(self, number):
            done.append(f"settle {number}")

        def finish(self):
            done.append("finish")

    for step in Steps(Listening(), 1, 2, "", shown=False):
        for rows in step:
            done.append(f"backward {rows}")
        done.append("optimizer")
    one = "charge 1, draw 1, load 0, backward 0, leave 0, release 1, optimizer, settle 1"
    two = "charge 2, draw 2, load 0, backward 0, leave 0, load 1, backward 1, leave 1, release 2, optimizer, settle 2, finish"
    assert ", ".join(done) == f"{one}, {two}"
