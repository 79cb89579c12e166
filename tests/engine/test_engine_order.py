"""The step's state machine: what is refused, and that nothing private-less ever stands in p.grad."""

import stat

import pytest

torch = pytest.importorskip("torch")
from accelerate import Accelerator  # noqa: E402

from attest.errors import PolicyRefused, RegistryRefused  # noqa: E402
from attest.registry import RegistryLog  # noqa: E402
from dptrain import Clock, NoiseSource, PrivateTraining  # noqa: E402
from dptrain.errors import (  # noqa: E402
    ConfigError,
    ContentChanged,
    LossShape,
    NonFinite,
    NotPrivateUse,
    ResumeRefused,
    StepOrder,
    UnsupportedPolicy,
)
from dptrain.record.pin import read_record  # noqa: E402
from dptrain.sandbox.isolation import IsolationNotice  # noqa: E402
from ledger.errors import LedgerError  # noqa: E402
from tests.worlds.trainer import Trainer, collate_tokens  # noqa: E402
from tests.worlds.training import World, make_world, token_record, write_jsonl  # noqa: E402


@pytest.fixture
def world(tmp_path) -> World:
    return make_world(tmp_path, per_class=3, steps=4, rate="1")


def test_a_run_takes_exactly_t_steps_and_charges_each_once(world: World) -> None:
    trainer = Trainer(world)
    numbers = []
    for step in trainer.steps:
        numbers.append(step.number)
        trainer.one(step)
    assert numbers == [1, 2, 3, 4]
    assert trainer.private.opened.recorder.ledger.state.charged == 4
    assert trainer.private.opened.recorder.ledger.finished
    trainer.close()


def test_p_grad_is_private_or_nothing_at_every_moment(world: World) -> None:
    trainer = Trainer(world)
    scheduled = [t.parameter for _, t in trainer.private.prepared.router.tensors]
    for step in trainer.steps:
        for rows in step:
            assert all(p.grad is None for p in trainer.model.parameters())
            losses = trainer.losses(rows)
            trainer.private.backward(losses, rows)
            assert all(p.grad is None for p in trainer.model.parameters())
        assert all(p.grad is not None for p in scheduled)
        trainer.optimizer.step()
    trainer.close()
    assert all(p.requires_grad for p in scheduled)


def test_a_backward_of_the_users_own_leaves_no_gradient(world: World) -> None:
    trainer = Trainer(world)
    for rows in next(iter(trainer.steps)):
        trainer.losses(rows).sum().backward(retain_graph=True)
        assert all(p.grad is None for p in trainer.model.parameters())
        break
    trainer.close()


def test_the_optimizer_is_refused_before_a_release_and_twice_after_one(world: World) -> None:
    trainer = Trainer(world)
    with pytest.raises(StepOrder, match=r"optimizer\.step\(\) was called"):
        trainer.optimizer.step()
    trainer.one(next(iter(trainer.steps)))
    with pytest.raises(StepOrder, match=r"the optimizer has stepped"):
        trainer.optimizer.step()
    trainer.close()


def test_zero_grad_before_step_is_refused(world: World) -> None:
    trainer = Trainer(world)
    for rows in next(iter(trainer.steps)):
        trainer.private.backward(trainer.losses(rows), rows)
    trainer.optimizer.zero_grad()
    with pytest.raises(NotPrivateUse, match="GRADIENT_REPLACED"):
        trainer.optimizer.step()
    trainer.close()


def test_clipping_all_gradients_together_ends_isolation_and_clipping_blocks_does_not(tmp_path) -> None:
    """Epsilon is the same under both. Before, the first was allowed without a word."""
    for together in (False, True):
        trainer = Trainer(make_world(tmp_path / str(together), steps=4))
        for rows in next(iter(trainer.steps)):
            trainer.private.backward(trainer.losses(rows), rows)
        if together:
            torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 0.1)
            with pytest.warns(IsolationNotice, match=r"step 1: gradients were changed.*private\.clip_blocks_"):
                trainer.optimizer.step()
        else:
            trainer.private.clip_blocks_(0.1)
            trainer.optimizer.step()
        assert (trainer.private.prepared.isolation.told == "held") is not together
        trainer.close()


def test_leaving_a_step_without_the_optimizer_is_refused(world: World) -> None:
    trainer = Trainer(world)
    iterator = iter(trainer.steps)
    for rows in next(iterator):
        trainer.private.backward(trainer.losses(rows), rows)
    with pytest.raises(StepOrder, match="the loop left step 1"):
        next(iterator)
    trainer.close()


def test_a_microbatch_without_backward_is_refused(world: World) -> None:
    trainer = Trainer(world)
    with pytest.raises(StepOrder, match="BACKWARD_MISSING"):
        for _ in next(iter(trainer.steps)):
            pass
    trainer.close()


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda losses: losses.mean(), "LOSS_SHAPE"),
        (lambda losses: losses[:, None].expand(-1, 2), "LOSS_SHAPE"),
        (lambda losses: losses.detach(), "LOSS_DETACHED"),
        (lambda losses: 0.5, "LOSS_SHAPE"),
    ],
    ids=["mean", "matrix", "detached", "number"],
)
def test_losses_that_are_not_one_per_example_are_refused(world: World, spoil, code: str) -> None:
    trainer = Trainer(world)
    with pytest.raises(LossShape, match=code):
        for rows in next(iter(trainer.steps)):
            trainer.private.backward(spoil(trainer.losses(rows)), rows)
    trainer.close()


def test_a_parameter_that_diverges_is_named_after_its_window(world: World) -> None:
    trainer = Trainer(world, optimizer=lambda ps: torch.optim.SGD(ps, lr=float("inf")))
    with pytest.raises(NonFinite, match="PARAMETER_NOT_FINITE"):
        trainer.run()
    trainer.close()


@pytest.mark.slow
def test_accelerator_before_and_after_prepare_are_both_right(tmp_path) -> None:
    results = []
    for order in ("before", "after"):
        world = make_world(tmp_path / order, per_class=3, steps=2, rate="1", now=1_800_000_000)
        torch.manual_seed(0)
        from tests.reference.families import FAMILIES

        family = FAMILIES["bert"]()
        model = family.model.float()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        accelerator = Accelerator(cpu=True)
        private = PrivateTraining.open(
            world.policy, world.corpus, ledger=world.ledger, accelerator=accelerator, progress=False,
            noise=NoiseSource(insecure_test_key=b"k" * 32), clock=Clock(lambda: 1_800_000_000),
        )  # fmt: skip
        if order == "before":
            model, optimizer = accelerator.prepare(model, optimizer)
        model, optimizer, steps = private.prepare(model, optimizer, collate_tokens)
        if order == "after":
            model, optimizer = accelerator.prepare(model, optimizer)
        for step in steps:
            for rows in step:
                private.backward(family.losses(model, dict(rows)), rows)
            optimizer.step()
        private.close()
        results.append({k: v.clone() for k, v in accelerator.unwrap_model(model).state_dict().items()})
        accelerator.free_memory()
    assert all(torch.equal(results[0][k], results[1][k]) for k in results[0])


def test_accumulation_by_accelerate_is_translated(world: World) -> None:
    """A logical step sums over its microbatches by itself; `accumulate` would skip steps that are charged."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    with pytest.warns(UserWarning, match="gradient_accumulation_steps=2 is 1 from here on"):
        PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, accelerator=accelerator).close()
    assert accelerator.gradient_accumulation_steps == 1


def test_an_optimizer_of_another_model_is_refused(world: World) -> None:
    with pytest.raises(ConfigError, match="OPTIMIZER_PARAMETERS"):
        Trainer(world, optimizer=lambda ps: torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1))


def test_bare_toml_wrong_owner_key_and_changed_registry_are_refused(world: World, tmp_path) -> None:
    bare = tmp_path / "policy.toml"
    bare.write_text('corpus = "x"\n')
    with pytest.raises(PolicyRefused):
        PrivateTraining.open(bare, world.corpus, ledger=world.ledger, owner_key=world.root / "owner.pub")
    with pytest.raises(PolicyRefused, match="SIG_BAD"):
        from attest.keys import generate, public_bytes

        PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, owner_key=public_bytes(generate()))
    (world.root / "registry.cbor").unlink()
    RegistryLog.create(world.root / "registry.cbor", world.owner_key, owner="owner", now=world.now)
    with pytest.raises(RegistryRefused, match="REGISTRY_ROOT"):
        PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger)
    assert not world.ledger.exists(), "nothing is written before everything verifies"


def test_a_policy_beyond_this_build_is_refused_by_name(tmp_path) -> None:
    certified = 'exactness = "certified"\ndisclosure = "occurrences_public"\nnoise = { injection = "per_sample" }'
    world = make_world(tmp_path, policy_extra=certified)
    with pytest.raises(UnsupportedPolicy, match="per_sample"):
        PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger)


def test_an_empty_admission_is_refused_with_the_reasons(tmp_path) -> None:
    world = make_world(tmp_path)
    for data in world.corpus.glob("*.jsonl"):
        write_jsonl(data, [token_record(5000 + i) for i in range(4)])
    with pytest.raises(ConfigError, match=r"NOTHING_ADMITTED.*CONTENT_MISMATCH 12"):
        PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger)


def test_content_that_changes_after_the_gate_is_refused(world: World) -> None:
    trainer = Trainer(world)
    data = world.corpus / "open.jsonl"
    changed = data.read_text().replace('"label": 0', '"label": 1').replace('"label": 2', '"label": 1')
    assert len(changed) == len(data.read_text())
    data.write_text(changed)
    with pytest.raises(ContentChanged, match="CONTENT_CHANGED"):
        trainer.run()
    trainer.close()


def test_an_existing_ledger_needs_resume(world: World) -> None:
    trainer = Trainer(world)
    trainer.one(next(iter(trainer.steps)))
    trainer.close()
    with pytest.raises(ResumeRefused, match="LEDGER_EXISTS"):
        Trainer(world)


def test_a_run_is_not_resumed_with_a_key_that_is_made_for_it(world: World) -> None:
    Trainer(world).begin().close()
    (key,) = world.corpus.parent.rglob("ledger.key")
    key.rename(key.with_name("elsewhere.key"))
    with pytest.raises(ResumeRefused, match="KEY_MISSING"):
        Trainer(world, resume=True)
    assert not key.exists()


def test_resume_continues_from_the_checkpoint_and_pays_for_redone_steps(world: World) -> None:
    first = Trainer(world)
    iterator = iter(first.steps)
    first.one(next(iterator))
    first.one(next(iterator))
    saved = first.private.save()
    assert read_record(first.private.opened.recorder.ledger, saved).step == 2
    first.one(next(iterator))  # charged, lost
    weights = None
    first.close()
    second = Trainer(world, resume=True, seed=9)
    assert second.private.prepared.start_step == 2 and len(second.steps) == 2
    weights = torch.load(saved / "state.pt", weights_only=True)["model"]
    assert all(torch.equal(v, weights[k]) for k, v in second.model.state_dict().items())
    second.run()
    ledger = second.private.opened.recorder.ledger
    assert ledger.state.charged == 2 + 2 + 2, "windows of two steps: the second was charged twice"
    assert ledger.finished
    second.close()


def test_a_ledger_behind_its_model_checkpoint_is_refused(world: World, tmp_path) -> None:
    import shutil

    first = Trainer(world).begin()
    first.close()
    old = tmp_path / "old"
    old.mkdir()
    kept = [p for p in world.root.glob("ledger.db*") if p.is_file()]
    for path in kept:
        shutil.copy(path, old / path.name)
    second = Trainer(world, resume=True)
    iterator = iter(second.steps)
    second.one(next(iterator))
    second.one(next(iterator))
    second.private.save()
    second.close()
    for path in world.root.glob("ledger.db*"):
        if path.is_file():
            path.unlink()
    for path in kept:
        shutil.copy(old / path.name, path)
    with pytest.raises(LedgerError, match="BEHIND"):
        Trainer(world, resume=True)


def test_resuming_with_another_policy_or_model_is_refused(world: World, tmp_path) -> None:
    Trainer(world).begin().close()
    with pytest.raises(ResumeRefused, match=r"ANOTHER_RUN.*model"):
        Trainer(world, "gpt2_tied", resume=True)
    other = make_world(tmp_path / "other", per_class=3, steps=8, rate="1")
    for name in ("policy.cose", "owner.pub", "registry.cbor", "registry.names"):
        (world.root / name).write_bytes((other.root / name).read_bytes())
    with pytest.raises(Exception, match="REGISTRY_ROOT"):
        Trainer(world, resume=True)


def test_caps_hold_over_restarts_and_the_sealed_store_goes_at_the_end(tmp_path) -> None:
    world = make_world(tmp_path, per_class=3, steps=4, rate="1", template_extra={"max_occurrences": 3})
    first = Trainer(world)
    iterator = iter(first.steps)
    first.one(next(iterator))
    first.one(next(iterator))
    first.private.save()
    first.close()
    sealed = world.root / "ledger.db.sealed"
    assert stat.S_IMODE(sealed.stat().st_mode) == 0o600
    second = Trainer(world, resume=True)
    drawn = []
    for step in second.steps:
        drawn.append(sum(rows.contributions for rows in _consume(second, step)))
        second.optimizer.step()
    assert drawn == [9, 0], "two draws before the restart, one after, then the cap holds"
    assert not sealed.exists()
    second.close()


def _consume(trainer: Trainer, step):
    for rows in step:
        probing = trainer.private.prepared.probe.active
        trainer.private.backward(trainer.losses(rows), rows)
        if not probing:
            yield rows


def test_several_examples_are_clipped_once_as_one_contribution(tmp_path) -> None:
    """H5: m examples in one contribution move the sums by at most C, not m C."""
    many = make_world(
        tmp_path, per_class=2, steps=1, rate="1", record=lambda s: [token_record(s + 7 * j) for j in range(1 + s % 3)],
        policy_extra="[gate]\nmax_examples = 4\n",
    )  # fmt: skip
    trainer = Trainer(many)
    step = next(iter(trainer.steps))
    for rows in step:
        assert rows["labels"].shape == (rows.contributions * rows.examples,)
        assert float(rows.weight.sum()) == pytest.approx(rows.contributions)
        trainer.private.backward(trainer.losses(rows) * 1e6, rows)
    trainer.close()


def test_the_test_key_stamps_the_ledger_not_private_and_refuses_export(world: World, tmp_path) -> None:
    trainer = Trainer(world, insecure_test_key=b"t" * 32)
    trainer.run()
    assert not trainer.private.opened.recorder.ledger.header.private
    with pytest.raises(LedgerError):
        trainer.private.export(tmp_path / "export")
    trainer.close()


def test_an_early_finish_settles_and_closes(world: World) -> None:
    trainer = Trainer(world)
    iterator = iter(trainer.steps)
    trainer.one(next(iterator))
    trainer.private.prepared.finish()
    ledger = trainer.private.opened.recorder.ledger
    assert ledger.finished and ledger.state.charged == 2
    size = ledger.size
    trainer.private.prepared.finish()
    assert ledger.size == size, "there is nothing more to end"
    trainer.close()
