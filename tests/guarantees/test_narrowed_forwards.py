"""An adapter whose forwards nobody else shares is a function of its own class alone: over whole runs, by the users' doors."""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
pytest.importorskip("transformers")

from torch import nn  # noqa: E402

from attest.keys import public_bytes  # noqa: E402
from dptrain.engine.refusals import refuse_narrowed  # noqa: E402
from dptrain.errors import NotPrivateUse, UnsupportedModule, UnsupportedPolicy  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from ledger.errors import ReleaseRefused  # noqa: E402
from ledger.release import Rights, check_release, choose_artifact, release  # noqa: E402
from tests.worlds.adapters import (  # noqa: E402
    ISOLATED,
    KEY,
    AdapterRun,
    adapted,
    adapter_world,
    collated,
    equal,
    kept,
    narrowed,
    per_text,
    text,
)
from tests.worlds.training import World  # noqa: E402

TWO = narrowed(north=["north"], south=["south"])
NAMES = ("north", "south")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return adapter_world(tmp_path_factory.mktemp("narrowed") / "world", TWO)


_count = iter(range(10_000))


def run(world: World, *names: str, model: nn.Module | None = None, **options: Any) -> AdapterRun:
    return AdapterRun(world, model or adapted(*(names or NAMES)), f"ledger-{next(_count)}", **options)


def after(world: World, *names: str, swapped: int | None = None, stop: int | None = None, **options: Any) -> dict[str, Any]:
    """What a whole run leaves of each adapter; with `stop` one that was ended behind that step, and gone on with."""
    ledger, names = f"ledger-{next(_count)}", names or NAMES
    if stop is not None:
        with AdapterRun(world, adapted(*names), ledger, swapped=swapped, **options) as first:
            first.go(stop)
    with AdapterRun(world, adapted(*names), ledger, swapped=swapped, resume=stop is not None, **options) as last:
        assert last.private.prepared.start_step == (stop or 0)
        last.go()
        assert last.private.opened.recorder.ledger.finished
        return last.kept()


def moved(first: dict[str, Any], second: dict[str, Any]) -> set[str]:
    assert first.keys() == second.keys()
    return {name for name in first if not equal(first[name], second[name])}


@pytest.mark.one_in(99)
@pytest.mark.parametrize("stop", [None, 3], ids=["at once", "with a resume"])
def test_a_swapped_payload_leaves_the_adapter_of_another_class_and_its_optimizer_state_equal_to_the_last_bit(world, stop):
    """With dropout, AdamW, a schedule and a clip of what is released; every payload of a class is another one."""
    honest = after(world, stop=stop)
    assert moved(honest, after(world, swapped=1, stop=stop)) == {"south"}
    assert moved(honest, after(world, swapped=0, stop=stop)) == {"north"}
    assert len(honest["north"]) == 4 * 4, "two factors at two layers, each with a step and two means"


def test_of_three_classes_each_moves_its_own_adapter_alone(tmp_path: Path):
    names = ("north", "south", "west")
    three = adapter_world(tmp_path / "three", narrowed(**{name: [name] for name in names}), steps=4)
    honest = after(three, *names)
    for place, name in enumerate(names):
        assert moved(honest, after(three, *names, swapped=place)) == {name}


def test_influence_goes_where_reads_say_and_nowhere_else(tmp_path: Path):
    """South reads north: what north contributes reaches both adapters, what south contributes its own alone."""
    chain = adapter_world(tmp_path / "chain", narrowed(north=["north"], south=["north", "south"]), steps=4)
    honest = after(chain)
    assert moved(honest, after(chain, swapped=0)) == {"north", "south"}
    assert moved(honest, after(chain, swapped=1)) == {"south"}


def test_without_reads_a_swapped_payload_shows_in_every_adapter(tmp_path: Path):
    """The positive control: the path is there where all adapters are active."""
    plain = adapter_world(tmp_path / "plain", narrowed(north=None, south=None), steps=4)
    assert moved(after(plain), after(plain, swapped=1)) == {"north", "south"}


OTHERWISE: dict[str, dict[str, Any]] = {
    "exact integers": {"policy_extra": 'exactness = "certified"\n' + ISOLATED},
    "noise in parts": {"policy_extra": ISOLATED + '[noise]\ninjection = "per_microbatch"\nmicrobatches = 3\n'},
    "noise per sample": {
        "policy_extra": 'disclosure = "occurrences_public"\n' + ISOLATED + '[noise]\ninjection = "per_sample"\n'
    },
    "budgets": {"policy_extra": ISOLATED + "[noise.budgets]\nembeddings = 1\nlayers = 2\nhead = 1\n"},
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", OTHERWISE)
def test_so_it_is_under_every_kind_of_noise(tmp_path: Path, name: str):
    other = adapter_world(tmp_path / "world", TWO, steps=3, **OTHERWISE[name])
    assert moved(after(other), after(other, swapped=1)) == {"south"}


@pytest.mark.slow
def test_so_it_is_beside_a_public_class_that_reads_no_adapter_of_theirs(tmp_path: Path):
    public = (
        '[[class]]\nname = "open"\npublic = true\nsampling_rate = {q}\ndepth = {{ adapter = "west" }}\n'
        'reads = {{ adapters = ["west"] }}\n'
    )
    names = ("north", "south", "west")
    three = adapter_world(tmp_path / "world", TWO + public, steps=3)
    with run(three, *names) as private:
        assert private.private.prepared.probe_rows.made_up, "what probes see decides how forwards go"
    honest = after(three, *names)
    assert moved(honest, after(three, *names, swapped=2)) == {"west"}
    assert moved(honest, after(three, *names, swapped=1)) == {"south"}


def several(seed: int) -> list[dict[str, Any]]:
    """A contribution of several examples, as many as its seed says."""
    return [text(seed)] * (1 + seed % 3)


@pytest.mark.slow
def test_so_it_is_with_contributions_of_several_examples_that_microbatches_part(tmp_path: Path):
    extra = ISOLATED + "[gate]\nmax_examples = 3\n"
    many = adapter_world(tmp_path / "many", TWO, steps=3, record=several, policy_extra=extra)
    assert moved(after(many, rows=2), after(many, rows=2, swapped=1)) == {"south"}


@pytest.mark.slow
def test_so_it_is_with_public_lengths(tmp_path: Path):
    lengths = narrowed("public_lengths = [3, 6]\n", north=["north"], south=["south"])
    own = adapter_world(tmp_path / "world", lengths, steps=3, length_of=lambda content: 3 if content[-3:-2] in b"02468" else 6)
    assert moved(after(own), after(own, swapped=1)) == {"south"}


# --- what a narrowed forward is -----------------------------------------------------------------------------------------------


def watched(model: nn.Module, seen: list[tuple[str, ...]]) -> None:
    """Notes which adapters run, forward by forward."""
    now: list[str] = []
    model.register_forward_pre_hook(lambda *_: now.clear())
    for name, module in model.named_modules():
        if ".lora_A." in name:
            module.register_forward_hook(partial(_note, now, name.rsplit(".", 1)[1]))
    model.register_forward_hook(lambda *_: seen.append(tuple(sorted(set(now)))))


def _note(seen: list[str], name: str, *_: object) -> None:
    seen.append(name)


def test_a_microbatch_runs_the_adapter_of_its_contributions_and_of_nobody_else(world):
    model, seen = adapted(*NAMES), []
    watched(model, seen)
    layers = lora_layers(model)
    with run(world, model=model) as private:
        prepared = private.private.prepared
        for step in private.steps:
            counts: list[int] = []
            for rows in step:
                if not prepared.probe.active:
                    seen[:] = seen if counts else []
                    counts.append(rows.contributions)
                private.private.backward(per_text(model, rows), rows)
            classes = [prepared.pool.slots.resolution(slot).class_name for slot in prepared._drawn]
            expected = [(name,) for name in NAMES for _ in range(-(-classes.count(name) // 3))]
            assert seen == expected and sum(counts) == len(classes)
            assert all(module.active_adapters == list(NAMES) for module in layers), "outside of microbatches all are active"
            private.optimizer.step()
            private.schedule.step()
    trained = [parameter.requires_grad for name, parameter in model.named_parameters() if ".lora_" in name]
    assert trained and all(trained), "the run gave the parameters back as they were"


def silent(private: AdapterRun) -> float:
    """What makes losses without a gradient, but in the probes."""
    return 1.0 if private.private.prepared.probe.active else 0.0


def test_reads_change_neither_who_is_drawn_nor_the_noise(tmp_path: Path):
    """What is released of losses without gradient is the noise: the same with reads and without, bit for bit."""
    found = []
    for reads in (TWO, narrowed(north=None, south=None)):
        own = adapter_world(tmp_path / str(len(found)), reads, steps=3)
        with run(own) as private:
            released = []
            for step in private.steps:
                for rows in step:
                    private.private.backward(per_text(private.model, rows) * silent(private), rows)
                released.append((
                    tuple(private.private.prepared._drawn),
                    {name: p.grad.clone() for name, p in private.model.named_parameters() if p.grad is not None},
                ))
                private.optimizer.step()
                private.schedule.step()
        found.append(released)
    for (drawn, noise), (other, same) in zip(*found, strict=True):
        assert drawn == other and equal(noise, same)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("microbatch", [1, 3, 16])
def test_the_sum_of_a_step_is_that_of_gradients_under_the_own_adapter_alone(tmp_path: Path, microbatch: int):
    """Held to autograd's own gradients of a model in which the other adapter is switched off by peft itself."""
    own = adapter_world(tmp_path / "world", TWO, steps=1, rate="1", per_class=3)

    def released(factor: Any) -> dict[str, Any]:
        model = perturbed(adapted(*NAMES, dropout=0.0).eval())
        with run(own, model=model, microbatch=microbatch) as private:
            for rows in next(iter(private.steps)):
                private.private.backward(per_text(model, rows) * factor(private), rows)
            return {name: p.grad.double() * 4 for name, p in model.named_parameters() if p.grad is not None}

    signal, noise = released(lambda private: 1.0), released(silent)
    expected: dict[str, Any] = {}
    for place, name in enumerate(NAMES):
        model = perturbed(adapted(*NAMES, dropout=0.0).eval())
        model.base_model.set_adapter([name])
        for number in range(3):
            rows = collated()([text(1000 * place + number)])
            model.zero_grad()
            per_text(model, rows).sum().backward()
            grads = {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}
            size = sum(float(g.square().sum()) for g in grads.values()) ** 0.5
            for n, g in grads.items():
                expected[n] = expected.get(n, 0.0) + g * min(1.0, 1.0 / size)
    assert expected.keys() == signal.keys()
    for name, value in expected.items():
        torch.testing.assert_close(signal[name] - noise[name], value, rtol=1e-4, atol=1e-5)


def perturbed(model: nn.Module) -> nn.Module:
    """Moves adapters away from their start, where half of their gradients are zero."""
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.data.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


# --- what is refused ----------------------------------------------------------------------------------------------------------


def refused(world: World, code: str, error: type[Exception] = UnsupportedModule, **options: Any) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(error) as caught, run(world, **options) as private:
            private.go(1)
    assert caught.value.code == code
    return str(caught.value)


def with_norm(model: nn.Module) -> float:
    """Something of the other adapter, cut off from the graph."""
    return sum(p.detach().square().sum() for name, p in model.named_parameters() if ".south." in name)


def test_a_loss_that_uses_tensors_of_an_adapter_that_it_does_not_read_is_refused_before_the_first_charge(world):
    told = refused(world, "READS", losses=lambda model, rows: per_text(model, rows) * (1 + 0.0 * with_norm(model)))
    assert "north" in told or "south" in told


def test_a_loop_that_runs_another_adapter_is_refused(world):
    def both(model: nn.Module, rows: Any) -> Any:
        for layer in lora_layers(model):
            layer._active_adapter = list(NAMES)
        return per_text(model, rows)

    assert "lora_" in refused(world, "READS", losses=both)


def test_adapter_names_of_peft_are_refused_by_what_they_run(world):
    def named(model: nn.Module, rows: Any) -> Any:
        from dptrain.integrations.losses import losses_of

        model.eval()  # peft takes them so alone
        output = model(input_ids=rows["input_ids"], adapter_names=["north", "south"] * len(rows["input_ids"]))
        return losses_of(model, output, rows["labels"])

    with pytest.raises(Exception, match=r"READS|adapter_names"), run(world, losses=named) as private:
        private.go(1)


KINDS = {
    "DoRA": {"use_dora": True},
    "modules_to_save": {"modules_to_save": ["lm_head"]},
    "an embedding": {"target_modules": ["wte"], "fan_in_fan_out": False},
}


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_that_are_not_known_to_be_switched_off_are_refused(world, kind: str):
    def made(*names: str) -> nn.Module:
        model = adapted(*names)
        config = peft.LoraConfig(**{"r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True} | KINDS[kind])
        model.add_adapter("extra", config)
        model.base_model.set_adapter([*names, "extra"] if kind == "DoRA" else list(names))
        return model

    told = refused(world, "READS_KIND", model=made(*NAMES))
    assert "extra" in told


def test_an_adapter_that_is_read_and_not_active_is_refused(tmp_path: Path):
    beside = adapter_world(tmp_path / "world", narrowed(north=["north", "west"], south=["south"]), steps=1)
    model = adapted("north", "south", "west")
    model.base_model.set_adapter(["north", "south"])
    assert "'west'" in refused(beside, "READS_INACTIVE", model=model)


def test_an_adapter_that_no_model_has_is_refused(tmp_path: Path):
    beside = adapter_world(tmp_path / "world", narrowed(north=["north", "west"], south=["south"]), steps=1)
    assert "'west'" in refused(beside, "READS", UnsupportedPolicy)


def lora_layers(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if hasattr(type(module), "adapter_layer_names")]


CHANGES = {
    "merged": lambda layer: layer.merged_adapters.append("north"),
    "switched off": lambda layer: setattr(layer, "_disable_adapters", True),
    "activated otherwise": lambda layer: setattr(layer, "_active_adapter", ["south"]),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("how", CHANGES)
def test_adapters_that_are_changed_during_a_run_end_it(world, how: str):
    with run(world) as private, pytest.raises(NotPrivateUse) as caught:
        for step in private.steps:
            for rows in step:
                private.private.backward(per_text(private.model, rows), rows)
            private.optimizer.step()
            private.schedule.step()
            CHANGES[how](lora_layers(private.model)[1])
    assert caught.value.code == "READS_CHANGED"


def test_learning_rates_that_no_scheduler_set_are_refused_since_a_loss_may_have(world):
    with run(world) as private, pytest.raises(NotPrivateUse) as caught:
        for step in private.steps:
            for rows in step:
                private.private.backward(per_text(private.model, rows), rows)
            private.optimizer.step()
            private.optimizer.param_groups[0]["lr"] = 0.01
    assert caught.value.code == "READS_RATE"


def test_a_clip_over_all_adapters_is_refused_since_the_policy_requires_statement_a(world):
    with run(world) as private, pytest.raises(NotPrivateUse) as caught:
        for step in private.steps:
            for rows in step:
                private.private.backward(per_text(private.model, rows), rows)
            nn.utils.clip_grad_norm_(private.model.parameters(), 0.01)
            private.optimizer.step()
    assert caught.value.code == "ISOLATION"


def test_one_graph_for_all_and_parameters_over_ranks_are_refused_by_name(world):
    with run(world) as private:
        with pytest.raises(UnsupportedModule, match="READS_COMPILED"):
            private.private.loss(per_text, compiled=True)
        with pytest.raises(UnsupportedModule, match="READS_SHARDED"):
            refuse_narrowed(private.private.prepared.forwards, sharded=True)


# --- the record ---------------------------------------------------------------------------------------------------------------


def test_a_release_of_such_a_run_certifies_an_adapter_free_of_the_other_class(tmp_path: Path):
    """From the signed policy to who may be answered: audited in full, released, checked, chosen."""
    import time

    own = adapter_world(tmp_path / "world", TWO, steps=3, now=int(time.time()))
    with run(own, key=None) as private:
        private.go()
        recorder = private.private.opened.recorder
        export = private.private.export(tmp_path / "export")
        key = recorder.ledger.header.log_vkey
        private.model.save_pretrained(tmp_path / "model", selected_adapters=list(NAMES))
        made = release(recorder.ledger, tmp_path / "model", now=int(time.time()), registry=own.root / "registry.cbor")
    owner = public_bytes(own.owner_key)
    assert verify_export(export, [key], owner_key=owner).verdict == "FULL"
    report = check_release(tmp_path / "model", [key], owner_key=owner)
    assert report.verdict == "FULL", report.findings
    parts = {part.name: part.influenced_by for part in made.manifest.artifacts}
    assert parts["adapter:north"] == (True, False) and parts["adapter:south"] == (False, True)
    assert made.manifest.epsilon_micro("adapter:north", 1) == 0 < made.manifest.epsilon_micro("adapter:north", 0)
    rights = Rights({"north": None})
    assert choose_artifact(report, rights, ["adapter:north"]) == "adapter:north"
    with pytest.raises(ReleaseRefused) as caught:
        choose_artifact(report, rights, ["adapter:south"])
    assert caught.value.code == "CLASS"


def test_a_run_that_stopped_early_certifies_no_adapter_free(tmp_path: Path):
    """When to stop may have followed from what another class released."""
    import time

    own = adapter_world(tmp_path / "world", TWO, steps=6, now=int(time.time()))
    with run(own, key=None) as private:
        private.go(2)
        private.steps.finish()
        ledger = private.private.opened.recorder.ledger
        private.model.save_pretrained(tmp_path / "model", selected_adapters=list(NAMES))
        made = release(ledger, tmp_path / "model", now=int(time.time()))
    parts = {part.name: part.influenced_by for part in made.manifest.artifacts}
    assert parts["adapter:north"] == (True, True) and parts["base"] == (False, False)
    assert any("not known to be the weights with which" in sentence for sentence in made.manifest.statements)


# --- by a Trainer -------------------------------------------------------------------------------------------------------------


def by_trainer(world: World, folder: Path, *, swapped: int | None = None, stop: int | None = None) -> dict[str, Any]:
    """A whole run by `PrivateTrainer` with its own settings: AdamW, a linear schedule, gradients clipped; resumed at `stop`."""
    from transformers import TrainerCallback, TrainingArguments

    from dptrain import Clock, Microbatches, NoiseSource, PrivateTraining
    from dptrain.integrations.transformers import PrivateTrainer

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = control.should_training_stop or state.global_step == stop

    found: dict[str, Any] = {}
    for resume in (False, True) if stop is not None else (False,):
        torch.manual_seed(11)
        private = PrivateTraining.open(
            world.policy, world.corpus, ledger=folder / "run.db", resume=resume, progress=False,
            microbatches=Microbatches(3), noise=NoiseSource(insecure_test_key=KEY), clock=Clock(lambda: world.now),
        )  # fmt: skip
        arguments = TrainingArguments(
            str(folder / "out"), use_cpu=True, report_to=[], learning_rate=0.05, disable_tqdm=True, save_strategy="steps",
            save_steps=1, remove_unused_columns=False,
        )  # fmt: skip
        assert arguments.max_grad_norm == 1.0
        trainer = PrivateTrainer(
            adapted(*NAMES), arguments, private=private, data_collator=collated(swapped),
            callbacks=[Stop()] if stop is not None and not resume else [],
        )  # fmt: skip
        trainer.train(resume_from_checkpoint=resume or None)
        found = kept(trainer.model, trainer.optimizer)
        private.close()
    return found


@pytest.mark.parametrize("stop", [None, pytest.param(3, marks=pytest.mark.slow)], ids=["at once", "with a resume"])
def test_a_trainer_with_its_own_settings_keeps_them_apart_to_the_last_bit(world, tmp_path: Path, stop: int | None):
    for name in ("honest", "swapped"):
        (tmp_path / name).mkdir()
    honest = by_trainer(world, tmp_path / "honest", stop=stop)
    assert moved(honest, by_trainer(world, tmp_path / "swapped", swapped=1, stop=stop)) == {"south"}
