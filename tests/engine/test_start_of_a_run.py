"""What the start of a run may be a function of: rows that are nobody's. It charges nothing, names what it could not see, and
leaves the model as it was."""

import json
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain.engine.start import ProbeFailed, Unprobed  # noqa: E402
from dptrain.errors import ConfigError, CoupledModel  # noqa: E402
from tests.guarantees.peers import Run, net, per_example, small_world  # noqa: E402
from tests.guarantees.test_public_class import CLASSES as PUBLIC_AND_PRIVATE  # noqa: E402
from tests.worlds.training import World, make_world, token_record  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return small_world(tmp_path_factory.mktemp("start"), per_class=6)


def met(world: World, **options: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Ids that the forward met before there was a ledger, and after."""
    model = net()
    found: dict[bool, list[torch.Tensor]] = {False: [], True: []}
    begun = [lambda: False]
    model.embed.register_forward_pre_hook(lambda m, args: found[begun[0]()].append(args[0].clone()))
    with Run(world, model, **options) as run:
        begun[0] = lambda: run.private.prepared.attempt is not None
        run.gradients(next(iter(run.steps)))
    return found[False], found[True]


def rows_of(ids: list[torch.Tensor]) -> set[tuple[int, ...]]:
    return {tuple(row) for found in ids for row in found.tolist()}


def of_records(seeds: Any) -> set[tuple[int, ...]]:
    return {tuple(token_record(seed)["ids"]) for seed in seeds}


def test_no_forward_before_the_charge_meets_a_private_contribution(world: World) -> None:
    """Records have ids from 2 on; rows that are made up have 0 and 1."""
    before, after = met(world)
    assert rows_of(after) == of_records(range(6))
    assert rows_of(before) and all(set(row) <= {0, 1} for row in rows_of(before))


def test_records_given_for_the_probes_are_all_that_they_meet(world: World) -> None:
    records = [json.dumps(token_record(900 + k)).encode() for k in range(8)]
    before, _ = met(world, probe=records)
    assert rows_of(before) and rows_of(before) <= of_records(range(900, 908))


def test_of_a_corpus_with_a_public_class_they_meet_public_contributions_alone(tmp_path) -> None:
    world = make_world(tmp_path, classes=PUBLIC_AND_PRIVATE, per_class=5, rate="1", now=1_800_000_000)
    before, after = met(world, key=None)
    own = {tuple(json.loads(line)["ids"]) for line in (world.corpus / "encyclopedia.jsonl").read_text().splitlines()}
    assert rows_of(before) and rows_of(before) <= own < rows_of(after)


def test_a_loss_in_which_no_trained_tensor_has_a_gradient_asks_for_other_rows(world: World) -> None:
    with Run(world, net()) as run:
        with pytest.raises(ConfigError, match=r"PROBE_NEEDED.*no trained tensor gets a gradient.*probe="):
            run.gradients(next(iter(run.steps)), lambda model, rows: per_example(model, rows) * 0.0)
        assert not run.private.opened.recorder.begun


def misspelt(model: nn.Module, rows: Any) -> torch.Tensor:
    return per_example(model, rows).sumn(1)


def no_such_token(model: nn.Module, rows: Any) -> torch.Tensor:
    raise ValueError(f"no such token in {len(rows)} columns")


@pytest.mark.parametrize("loss", [misspelt, no_such_token])
def test_an_exception_of_the_loop_is_its_own_with_the_hint_on_made_up_rows_below(world: World, loss: Any) -> None:
    with warnings.catch_warnings(), pytest.raises((AttributeError, ValueError)) as raised:
        warnings.simplefilter("error", ProbeFailed)
        with Run(world, net()) as run:
            for rows in next(iter(run.steps)):
                run.private.backward(loss(run.model, rows), rows)
    [note] = raised.value.__notes__
    assert note.startswith("PROBE_NEEDED: the loop ended at ") and __file__ in note and "prepare(probe=[...])" in note


def test_a_private_loss_says_which_exception_on_which_line_before_the_hint(world: World) -> None:
    line = no_such_token.__code__.co_firstlineno + 1
    with Run(world, net()) as run, pytest.raises(ConfigError) as raised:
        run.gradients(next(iter(run.steps)), run.private.loss(no_such_token))
    told = f"PROBE_NEEDED: ValueError at {__file__}:{line}: no such token in "
    assert str(raised.value).startswith(told) and "prepare(probe=[...])" in str(raised.value)


def test_a_fault_of_the_program_in_a_private_loss_is_raised_as_it_is(world: World) -> None:
    with Run(world, net()) as run, pytest.raises(AttributeError, match="sumn") as raised:
        run.gradients(next(iter(run.steps)), run.private.loss(misspelt))
    assert raised.value.__notes__[0].startswith("PROBE_NEEDED")


def test_a_refusal_in_a_probe_gets_no_hint_on_rows(world: World) -> None:
    with warnings.catch_warnings(), pytest.raises(CoupledModel) as raised:
        warnings.simplefilter("error", ProbeFailed)
        with Run(world, net()) as run:
            for rows in next(iter(run.steps)):
                run.private.backward(per_example(run.model, rows) + per_example(run.model, rows).mean(), rows)
    assert not hasattr(raised.value, "__notes__")


class Reads(nn.Module):
    """Trains a layer that this loss never reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_tensors_in_whose_gradient_the_probes_saw_nothing_are_named_in_the_header(world: World) -> None:
    names = ("extra.idle.bias", "extra.idle.weight")
    with Run(world, net(Reads)) as run:
        with pytest.warns(Unprobed, match="2 trained tensors"):
            run.gradients(next(iter(run.steps)))
        assert run.private.opened.recorder.ledger.header.unprobed == names
    with Run(world, net()) as run:
        run.gradients(next(iter(run.steps)))
        assert run.private.opened.recorder.ledger.header.unprobed == ()
