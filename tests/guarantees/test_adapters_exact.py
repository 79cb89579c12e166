"""Every tuner of peft that trains here is exact per contribution, with random weights far from its start; others are refused.

Many tuners start with tensors of zero, behind which gradients and couplings vanish: the probes of a run could not tell.
"""

import random
import warnings

import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
pytest.importorskip("transformers")
from torch import nn  # noqa: E402

from dptrain import PrivateTraining  # noqa: E402
from dptrain.blocks.adapters import find_adapters, tuner_runs_whole  # noqa: E402
from dptrain.blocks.stack import EMBEDDINGS, layer_stack  # noqa: E402
from dptrain.errors import CoupledModel, UnsupportedModule  # noqa: E402
from dptrain.routing import FallbackNotice, Router  # noqa: E402
from dptrain.routing.couplings import refuse_coupled  # noqa: E402
from tests.reference.compare import compare, random_schedule, rows_of  # noqa: E402
from tests.reference.families import LENGTH, bert, gpt2  # noqa: E402
from tests.reference.naive import gradients_of_one_forward  # noqa: E402
from tests.worlds.training import make_world  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

LAYERS = "base_model.model.bert.encoder.layer"
TARGETS = ["query", "value"]
TOKENS = list(range(2, 50))


def tuner(name: str, **options):
    return lambda: getattr(peft, name)(**{"target_modules": TARGETS, **options})


EXACT = {
    "lora": tuner("LoraConfig", r=2),
    "dora": tuner("LoraConfig", r=2, use_dora=True),
    "dora with dropout": tuner("LoraConfig", r=2, use_dora=True, lora_dropout=0.3),
    "dora on embeddings": tuner("LoraConfig", r=2, use_dora=True, target_modules=["word_embeddings"]),
    "lora on embeddings": tuner("LoraConfig", r=2, target_modules=["word_embeddings", "query"]),
    "lora and tokens": tuner("LoraConfig", r=2, trainable_token_indices={"word_embeddings": TOKENS}),
    "tokens": tuner("TrainableTokensConfig", target_modules=["word_embeddings"], token_indices=TOKENS),
    "adalora": tuner("AdaLoraConfig", init_r=2, total_step=10),
    "beft": tuner("BeftConfig"),
    "boft": tuner("BOFTConfig", boft_block_size=4),
    "delora": tuner("DeloraConfig", r=2),
    "gralora": tuner("GraloraConfig", r=4, gralora_k=2),
    "gralora of two kinds": tuner("GraloraConfig", r=4, gralora_k=2, hybrid_r=2),
    "hira": tuner("HiraConfig", r=2),
    "hra": tuner("HRAConfig", r=2),
    "ia3": tuner("IA3Config", target_modules=[*TARGETS, "intermediate.dense"], feedforward_modules=["intermediate.dense"]),
    "layer norms": tuner("LNTuningConfig", target_modules=["LayerNorm"]),
    "loha": tuner("LoHaConfig", r=2),
    "loha with dropout": tuner("LoHaConfig", r=2, rank_dropout=0.3, module_dropout=0.3),
    "lokr": tuner("LoKrConfig", r=2),
    "lokr of two factors": tuner("LoKrConfig", r=2, decompose_both=True),
    "miss": tuner("MissConfig", r=2),
    "oft": tuner("OFTConfig", oft_block_size=4, r=0),
    "randlora": tuner("RandLoraConfig", r=2),
    "road": tuner("RoadConfig", group_size=4),
    "shira": tuner("ShiraConfig", r=2),
    "vera": tuner("VeraConfig", r=2),
    "waveft": tuner("WaveFTConfig", n_frequency=20),
}
PROMPTS = {
    "prompt tuning": lambda task: peft.PromptTuningConfig(task_type=task, num_virtual_tokens=3),
    "p-tuning": lambda task: peft.PromptEncoderConfig(task_type=task, num_virtual_tokens=3, encoder_hidden_size=8),
    "p-tuning with an lstm": lambda task: peft.PromptEncoderConfig(
        task_type=task, num_virtual_tokens=3, encoder_hidden_size=8, encoder_reparameterization_type="LSTM", encoder_dropout=0.0
    ),
}
REFUSED = {
    "adamss": tuner("AdamssConfig"),
    "alora": tuner("LoraConfig", r=2, alora_invocation_tokens=[3, 4]),
    "bare parameters": tuner("LoraConfig", r=2, target_modules=[], target_parameters=["query.weight"]),
    "c3a": tuner("C3AConfig", block_size=4),
    "deft": tuner("DeftConfig", r=2),
    "fourierft": tuner("FourierFTConfig", n_frequency=20),
    "frod": tuner("FrodConfig"),
    "glora": tuner("GloraConfig", r=2),
    "lily": tuner("LilyConfig", r=2),
    "osf": tuner("OSFConfig", effective_rank=4),
    "peanut": tuner("PeanutConfig", r=2),
    "poly": tuner("PolyConfig", r=2),
    "pvera": tuner("PveraConfig", r=2),
    "tinylora": tuner("TinyLoraConfig"),
    "unilora": tuner("UniLoraConfig", r=2),
    "vblora": tuner("VBLoRAConfig", r=2, num_vectors=10, vector_length=4, topk=2),
}


def adapted(config, family=bert) -> nn.Module:
    torch.manual_seed(0)
    model = peft.get_peft_model(family().model, config).double().train()
    for p in model.parameters():
        if p.requires_grad:
            nn.init.normal_(p, std=0.3)
    return model


@pytest.mark.one_in(9)
@pytest.mark.parametrize("examples", [1, 2])
@pytest.mark.parametrize("case", EXACT)
def test_a_tuner_is_exact_with_random_weights(case: str, examples: int) -> None:
    model = adapted(EXACT[case]())
    adapter = find_adapters(model)["default"]
    assert not adapter.obstacles
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert adapter.tensors == {n for n in trained if ".ranknum." not in n}  # AdaLoRA's ranks are no adapter's own
    compare(
        model,
        bert().batch(9 * examples, 1),
        bert().losses,
        examples=examples,
        layers=LAYERS,
        redraw=5 if "dropout" in case else None,
    )


@pytest.mark.one_in(4)
@pytest.mark.parametrize("case", [case for case in EXACT if "dropout" not in case])
def test_another_contribution_in_the_batch_changes_nothing(case: str) -> None:
    """P2 with weights far from their start: one row replaced, losses and gradients of all others as they were."""
    model = adapted(EXACT[case]())
    family = bert()
    batch, other = family.batch(4, 1), family.batch(4, 2)
    mixed = {key: torch.cat([other[key][:1], value[1:]]) for key, value in batch.items()}
    schedule = random_schedule(model, random.Random(0), 1, LAYERS)
    found = []
    for each in (batch, mixed):
        losses = family.losses(model, each)
        found.append((losses, gradients_of_one_forward(lambda kept=losses: kept, schedule, 4, 1)))
    assert torch.allclose(found[0][0][1:], found[1][0][1:], rtol=1e-12) and not torch.allclose(found[0][0][0], found[1][0][0])
    for a, b in zip(found[0][1][1:], found[1][1][1:], strict=True):
        assert all(torch.allclose(x, y, rtol=1e-9, atol=1e-12) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("case", REFUSED)
def test_other_tuners_are_refused_by_name_whoever_is_to_train_them(case: str) -> None:
    """Bound to a class or not: what the probes cannot see at the start of an adapter, they cannot see for a band either."""
    model = adapted(REFUSED[case]())
    with pytest.raises(UnsupportedModule, match="ADAPTER_KIND"):
        refuse_coupled(model)
    model.requires_grad_(False)
    refuse_coupled(model)  # what does not train may compute as it likes


def test_a_tuner_that_couples_rows_is_why_others_are_refused() -> None:
    """Lily mixes its experts by a mean over the batch: seen by P1 with random weights, invisible at its start."""
    model = adapted(REFUSED["lily"]())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dptrain.routing.couplings.unchecked", lambda model: [])
        with pytest.raises(CoupledModel, match="CROSS_SAMPLE_GRADIENT"):
            compare(model, bert().batch(9, 1), bert().losses, layers=LAYERS)


def test_plain_lora_keeps_the_rules_of_its_modules() -> None:
    model = adapted(EXACT["lora"]())
    assert not any(tuner_runs_whole(module) for module in model.modules())
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackNotice)
        compare(model, bert().batch(9, 1), bert().losses, layers=LAYERS)


def test_two_adapters_of_a_bare_kind_side_by_side_are_exact() -> None:
    torch.manual_seed(0)
    model = peft.get_peft_model(bert().model, EXACT["vera"](), adapter_name="clinic")
    model.add_adapter("lab", EXACT["vera"]())
    model.base_model.set_adapter(["clinic", "lab"])
    model.double().train()
    for p in model.parameters():
        if p.requires_grad:
            nn.init.normal_(p, std=0.3)
    assert all(not adapter.obstacles for adapter in find_adapters(model).values())
    compare(model, bert().batch(9, 1), bert().losses, layers=LAYERS)


def last_tokens(model: nn.Module, batch: dict) -> torch.Tensor:
    ids = batch["input_ids"]
    logits = model(input_ids=ids, attention_mask=batch["attention_mask"]).logits[:, -LENGTH:]
    return nn.functional.cross_entropy(logits.mT, ids, reduction="none").mean(1)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("examples", [1, 2])
@pytest.mark.parametrize("task", ["CAUSAL_LM", "SEQ_CLS"])
@pytest.mark.parametrize("case", PROMPTS)
def test_virtual_tokens_are_exact(case: str, task: str, examples: int) -> None:
    family = gpt2(tied=False) if task == "CAUSAL_LM" else bert()
    model = adapted(PROMPTS[case](task), lambda: family)
    losses, layers = (
        (last_tokens, "base_model.transformer.h") if task == "CAUSAL_LM" else (family.losses, "base_model.bert.encoder.layer")
    )
    adapter = find_adapters(model)["default"]
    assert not adapter.obstacles
    for tensor in layer_stack(model, layers).tensors:
        if tensor.name in adapter.tensors and not tensor.name.startswith("base_model"):
            assert tensor.positions == (EMBEDDINGS,)
    compare(model, family.batch(9 * examples, 1), losses, examples=examples, layers=layers)
    assert "get_prompt" not in vars(model), "nothing stays on the model"


def test_virtual_tokens_are_the_same_numbers_with_and_without_the_router() -> None:
    family = gpt2(tied=False)
    model = adapted(PROMPTS["p-tuning"]("CAUSAL_LM"), lambda: family)
    batch = family.batch(5, 1)
    plain = last_tokens(model, batch)
    schedule = random_schedule(model, random.Random(0), 1, "base_model.transformer.h")
    router = Router(model, schedule)
    router.attach()
    router.arm(5, 1, torch.ones(5, len(schedule.blocks), dtype=torch.bool))
    torch.testing.assert_close(last_tokens(model, batch), plain, rtol=1e-12, atol=1e-14)
    router.disarm()
    torch.testing.assert_close(last_tokens(model, rows_of(batch, 0, 3)), plain[:3], rtol=1e-12, atol=1e-14)
    router.detach()


@pytest.mark.parametrize(
    "config",
    [
        lambda: peft.MultitaskPromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3, num_tasks=2),
        lambda: peft.CPTConfig(
            task_type="CAUSAL_LM", cpt_token_ids=[3, 4], cpt_mask=[1, 1], cpt_tokens_type_mask=[1, 2], num_virtual_tokens=2
        ),
    ],
)
def test_virtual_tokens_of_other_kinds_are_refused(config) -> None:
    model = adapted(config(), lambda: gpt2(tied=False))
    with pytest.raises(UnsupportedModule, match=r"ADAPTER_KIND.*virtual tokens"):
        refuse_coupled(model)


def collate(examples: list[dict]) -> dict[str, torch.Tensor]:
    return {"ids": torch.tensor([e["ids"] for e in examples]), "labels": torch.tensor([e["label"] for e in examples])}


@pytest.mark.one_in(9)
@pytest.mark.parametrize("case", [*PROMPTS, "ia3", "loha", "dora", "lora on embeddings"])
def test_a_run_with_bands_trains_them_from_their_start(tmp_path, case: str) -> None:
    """The probes pass with peft's own initial weights, and a step moves every tensor of the adapter."""
    world = make_world(tmp_path, per_class=3, steps=1, rate="1")
    torch.manual_seed(0)
    config = PROMPTS[case]("SEQ_CLS") if case in PROMPTS else EXACT[case]()
    model = peft.get_peft_model(bert().model, config).float().train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    with PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, progress=False) as private:
        _, _, steps = private.prepare(model, optimizer, collate)
        for step in steps:
            for rows in step:
                losses = nn.functional.cross_entropy(model(input_ids=rows["ids"]).logits, rows["labels"], reduction="none")
                private.backward(losses, rows)
            optimizer.step()
    after = dict(model.named_parameters())
    assert all(not torch.equal(value, after[name]) for name, value in before.items())


def test_a_run_refuses_other_virtual_tokens_before_anything_is_charged(tmp_path) -> None:
    world = make_world(tmp_path, per_class=3, steps=1, rate="1")
    config = peft.MultitaskPromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3, num_tasks=2)
    model = peft.get_peft_model(bert().model, config)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    opened = PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, progress=False)
    with opened as private, pytest.raises(UnsupportedModule, match="ADAPTER_KIND"):
        private.prepare(model, optimizer, collate)
    assert not world.ledger.exists()
