"""Isolation of classes bound to an adapter or to name patterns, step for step through the engine, and what is recorded."""

import copy

import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

from dptrain.errors import CoupledModel, NotPrivateUse, ResumeRefused, UnsupportedModule  # noqa: E402
from ledger.leaves.weights import frozen_digest  # noqa: E402
from tests.reference import families  # noqa: E402
from tests.routing.test_towers import batch, clip  # noqa: E402
from tests.routing.test_towers import losses as pair_losses  # noqa: E402
from tests.worlds.trainer import BertTrainer as Trainer  # noqa: E402
from tests.worlds.training import make_world, token_record  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

KEY = b"\x07" * 32

CLASSES = """
[[class]]
name = "clinic"
clip_norm = 0.5
noise_multiplier = 1.5
sampling_rate = {q}
depth = {{ DEPTH_A }}
[[class]]
name = "lab"
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = {q}
depth = {{ DEPTH_B }}
"""


def classes(first: str, second: str) -> str:
    return CLASSES.replace("DEPTH_A", first).replace("DEPTH_B", second)


ADAPTERS = classes('adapter = "clinic-a"', 'adapter = "lab-b"')
BANDS = classes("from = 0.0, to = 1.0", "from = 0.0, to = 1.0")
NAMES = classes('set = ["*.layer.0.*", "*.layer.2.*"]', 'set = ["bert.embeddings.*", "*.layer.1.*", "classifier.*"]')


TOWERS = classes('set = ["vision_model.*", "visual_projection.*"]', 'set = ["text_*"]')


def two_adapters(swapped: bool = False) -> families.Family:
    """BERT with two adapters side by side, both active."""
    family = families.bert()
    first, second = ("lab-b", "clinic-a") if swapped else ("clinic-a", "lab-b")
    config = peft.LoraConfig(r=2, target_modules=["query", "value"])
    model = peft.get_peft_model(family.model, config, adapter_name=first)
    model.add_adapter(second, config)
    model.base_model.set_adapter(["clinic-a", "lab-b"])
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return families.Family(model, family.batch, family.losses)


def two_towers() -> families.Family:
    """CLIP on pairs whose picture is drawn from their words; the loss of a pair is a function of that pair."""

    def losses(model, rows):
        waves = torch.arange(1, 65, dtype=torch.float32) / 9.0
        picture = torch.sin(rows["input_ids"].float().mean(1, keepdim=True) * waves).view(-1, 1, 8, 8)
        pairs = {"input_ids": rows["input_ids"], "attention_mask": rows["attention_mask"], "pixel_values": picture}
        return pair_losses(model, pairs)

    return families.Family(clip().float(), lambda n, seed: batch(n), losses)


@pytest.fixture(autouse=True)
def families_of_this_file(monkeypatch) -> None:
    monkeypatch.setitem(families.FAMILIES, "two_adapters", two_adapters)
    monkeypatch.setitem(families.FAMILIES, "two_towers", two_towers)


def step_once(trainer: Trainer, steps) -> list[dict[str, torch.Tensor]]:
    trainer.one(next(steps))
    return [
        {"param": tensor.parameter.detach().clone()}
        | {k: v.clone() for k, v in trainer.optimizer.state[tensor.parameter].items() if isinstance(v, torch.Tensor)}
        for _, tensor in trainer.private.prepared.router.tensors
    ]


@pytest.mark.one_in(99)
@pytest.mark.parametrize(("family", "text"), [("two_adapters", ADAPTERS), ("bert", NAMES), ("two_towers", TOWERS)])
@pytest.mark.parametrize("changed", ["clinic", "lab"])
def test_a_payload_changes_no_bit_outside_what_its_class_is_bound_to(tmp_path, family: str, text: str, changed: str) -> None:
    """Teacher-forced: at every step both runs start from the same state; parameters and Adam's state are compared."""
    index = 0 if changed == "clinic" else 1000

    def other_payload(seed: int) -> dict:
        return token_record(777 if seed == index else seed)

    world_a = make_world(tmp_path / "a", steps=4, rate="1", per_class=2, classes=text)
    world_b = make_world(tmp_path / "b", steps=4, rate="1", per_class=2, classes=text, record=other_payload, now=world_a.now)
    assert token_record(index) != other_payload(index)
    a, b = (Trainer(world, family, insecure_test_key=KEY) for world in (world_a, world_b))
    schedule = a.private.prepared.schedule
    permitted = [changed in schedule.blocks[g].classes for g, _ in a.private.prepared.router.tensors]
    base = {name: value.clone() for name, value in a.model.named_parameters()}
    steps_a, steps_b = iter(a.steps), iter(b.steps)
    inside = 0
    for _ in range(4):
        model_state, optimizer_state = copy.deepcopy(a.model.state_dict()), copy.deepcopy(a.optimizer.state_dict())
        b.model.load_state_dict(model_state)
        b.optimizer.load_state_dict(optimizer_state)
        after_a, after_b = step_once(a, steps_a), step_once(b, steps_b)
        for (_, tensor), mine, x, y in zip(a.private.prepared.router.tensors, permitted, after_a, after_b, strict=True):
            assert x.keys() == y.keys() and len(x) >= 3
            same = all(torch.equal(x[k], y[k]) for k in x)
            assert same or mine, f"{tensor.name} lies outside the profile and changed"
            inside += mine and not same
    assert inside > 4, "positive control: inside the profile the payload must show"
    scheduled = {alias for _, tensor in a.private.prepared.router.tensors for alias in tensor.aliases}
    for name, value in a.model.named_parameters():
        assert name in scheduled or torch.equal(value, base[name]), f"{name} belongs to no class and changed"
        assert name in scheduled or value not in a.optimizer.state
    a.close()
    b.close()


def test_the_ledger_names_the_adapter_and_accounts_it_as_a_band(tmp_path) -> None:
    bound = Trainer(make_world(tmp_path / "a", steps=2, rate="1", per_class=2, classes=ADAPTERS), "two_adapters")
    plain = Trainer(make_world(tmp_path / "b", steps=2, rate="1", per_class=2, classes=BANDS), "two_adapters")
    for trainer in (bound, plain):
        trainer.run()
    header = bound.private.opened.recorder.ledger.header
    assert [block.name for block in header.blocks if block.classes] == [
        f"layer.{k} adapter {name}" for k in range(3) for name in ("clinic-a", "lab-b")
    ]
    assert [(block.classes, block.std) for block in header.blocks[:2]] == [(("clinic",), 0.75), (("lab",), 1.0)]
    lone, shared = bound.private.prepared.summary(), plain.private.prepared.summary()
    assert lone[1]["epsilon"] == shared[1]["epsilon"], "the most demanding class has the same noise either way"
    assert [row["effective_multiplier"] for row in lone] == [1.5, 1.0], "alone in its blocks a class has what it asked for"
    assert shared[0]["effective_multiplier"] == 2.0, "in shared blocks it has the noise of the other class"
    bound.close()
    plain.close()


def test_a_run_with_adapters_resumes_and_another_binding_is_refused(tmp_path, monkeypatch) -> None:
    world = make_world(tmp_path, steps=4, rate="1", per_class=2, classes=ADAPTERS)
    first = Trainer(world, "two_adapters")
    steps = iter(first.steps)
    first.one(next(steps))
    first.one(next(steps))
    first.private.save()
    kept = {name: value.clone() for name, value in first.model.state_dict().items()}
    print_of = first.private.opened.recorder.ledger.header.model_fingerprint
    first.close()
    monkeypatch.setitem(families.FAMILIES, "swapped", lambda: two_adapters(swapped=True))
    again = Trainer(world, "swapped", resume=True, seed=5)  # adapters added in another order are the same adapters
    assert again.private.opened.recorder.ledger.header.model_fingerprint == print_of
    assert all(torch.equal(value, kept[name]) for name, value in again.model.state_dict().items())
    again.run()
    again.close()

    def wider() -> families.Family:
        family = two_adapters()
        family.model.base_model.model.classifier.requires_grad_(True)
        query = family.model.base_model.model.bert.encoder.layer[0].attention.self.query
        query.lora_A["clinic-a"].weight.requires_grad_(False)
        return family

    monkeypatch.setitem(families.FAMILIES, "wider", wider)
    with pytest.raises(ResumeRefused, match="ANOTHER_RUN"):
        Trainer(world, "wider", resume=True)


def test_a_header_commits_to_the_frozen_base_and_no_run_goes_on_over_another(tmp_path, monkeypatch) -> None:
    """The run was ended before its first checkpoint, so the weights are those that the user brings."""
    world = make_world(tmp_path, steps=4, rate="1", per_class=2, classes=ADAPTERS)
    first = Trainer(world, "two_adapters").begin()
    header = first.private.opened.recorder.ledger.header
    assert header.frozen_digest == frozen_digest(first.private.prepared.weights.records(), header.stack.names)
    assert header.frozen_digest is not None and any(block.name == "layer.0 (untrained)" for block in header.blocks)
    first.close()

    def other() -> families.Family:
        family = two_adapters()
        with torch.no_grad():
            family.model.base_model.model.bert.encoder.layer[0].output.dense.bias[0] += 1
        return family

    monkeypatch.setitem(families.FAMILIES, "other", other)
    again = Trainer(world, "other", resume=True)
    with pytest.raises(ResumeRefused, match="FROZEN"):
        again.begin()
    again.close()
    Trainer(world, "two_adapters", resume=True).begin().close()


def test_rows_sent_through_adapters_of_their_own_are_refused_before_anything_is_charged(tmp_path, monkeypatch) -> None:
    """peft's mixed batches split a batch by adapter, so a module no longer sees one row per example.

    Where a part has a single row, peft itself stops, since the router takes it for one that serves the whole batch.
    """

    def mixed() -> families.Family:
        family = two_adapters()

        def losses(model, batch):
            rows = len(batch["labels"])
            inputs = {k: v for k, v in batch.items() if k != "labels"}
            names = ["clinic-a" if i % 2 else "lab-b" for i in range(rows)]
            model.eval()
            logits = model(**inputs, adapter_names=names).logits
            return torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="none")

        return families.Family(family.model, family.batch, losses)

    monkeypatch.setitem(families.FAMILIES, "mixed", mixed)
    trainer = Trainer(make_world(tmp_path, steps=2, rate="1", per_class=2, classes=ADAPTERS), "mixed")
    with pytest.raises((UnsupportedModule, RuntimeError), match=r"BATCH_DIMENSION|doesn't match the broadcast shape"):
        trainer.run()
    assert not trainer.private.opened.recorder.begun
    trainer.close()


def test_an_adapter_that_mixes_examples_is_refused_though_it_starts_at_zero(tmp_path, monkeypatch) -> None:
    """With B = 0 no loss depends on A; the gradient of B does, and P2 compares its norms. Probes move B a little, so that P0
    may see it before: the gradient of A, next to nothing, differs by more than what the processor at hand rounds off."""

    def coupled() -> families.Family:
        family = two_adapters()
        for name, parameter in family.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.zeros_(parameter)
        inner = family.model.base_model.model.bert.encoder.layer[1].attention.self.query.lora_A["clinic-a"]
        inner.forward = lambda x: torch.nn.functional.linear(x - x.mean(0, keepdim=True), inner.weight)
        return family

    monkeypatch.setitem(families.FAMILIES, "coupled", coupled)
    trainer = Trainer(make_world(tmp_path, steps=2, rate="1", per_class=4, classes=ADAPTERS), "coupled")
    with pytest.raises((CoupledModel, UnsupportedModule)) as refused:
        trainer.run()
    assert isinstance(refused.value, CoupledModel) or "lora_A.clinic-a" in refused.value.sentence
    assert not trainer.private.opened.recorder.begun
    trainer.close()


def test_a_prefix_trains_and_is_one_block_over_all_layers(tmp_path, monkeypatch) -> None:
    def prefix() -> families.Family:
        family = families.gpt2(tied=False)
        config = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
        return families.Family(peft.get_peft_model(family.model, config, adapter_name="clinic-a"), family.batch, family.losses)

    monkeypatch.setitem(families.FAMILIES, "prefix", prefix)
    both = classes('adapter = "clinic-a"', 'adapter = "clinic-a"')
    trainer = Trainer(make_world(tmp_path, steps=2, rate="1", per_class=2, classes=both), "prefix")
    before = {name: value.clone() for name, value in trainer.model.named_parameters()}
    trainer.run()
    changed = {name for name, value in trainer.model.named_parameters() if not torch.equal(value, before[name])}
    assert changed == {"prompt_encoder.clinic-a.embedding.weight"}
    header = trainer.private.opened.recorder.ledger.header
    assert [block.name for block in header.blocks if block.classes] == ["layer.0-2 adapter clinic-a"]
    trainer.close()


def test_switching_the_active_adapter_in_the_loop_is_refused(tmp_path) -> None:
    trainer = Trainer(make_world(tmp_path, steps=2, rate="1", per_class=2, classes=ADAPTERS), "two_adapters")
    step = next(iter(trainer.steps))
    with pytest.raises(NotPrivateUse, match="REQUIRES_GRAD"):
        for rows in step:
            if not trainer.private.prepared.probe.active:
                trainer.model.base_model.set_adapter(["lab-b"])
            trainer.private.backward(trainer.losses(rows), rows)
    trainer.close()
