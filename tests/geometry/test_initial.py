"""Pairs begin at full rank without data, and what was trained from there is released, tied, and read by plain peft."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

from attest.keys import load_private_key  # noqa: E402
from dptrain import Microbatches, PrivateTraining  # noqa: E402
from dptrain.errors import ConfigError, UnsupportedModule  # noqa: E402
from dptrain.geometry import LoraTangent, TangentAdam, balanced, spectral, stacked  # noqa: E402
from dptrain.geometry.pairs import find_pairs  # noqa: E402
from ledger.log import Ledger  # noqa: E402
from ledger.note import NoteSigner, parse_verifier_key  # noqa: E402
from ledger.release import check_release, release  # noqa: E402
from tests.geometry.runs import LINE, net  # noqa: E402
from tests.worlds.trainer import collate_tokens  # noqa: E402
from tests.worlds.training import make_world  # noqa: E402

STORIES = Path(os.environ.get("DPTRAIN_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")) / "stories260K" / "hf"
CLASSES = (
    '\n[[class]]\nname = "open"\nclip_norm = 1.0\nnoise_multiplier = 1.0\nsampling_rate = {q}\n'
    "depth = {{ from = 0.0, to = 1.0 }}\n"
)


def gpt2() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=50, n_embd=24, n_layer=2, n_head=2, n_positions=16)
    model = transformers.GPT2LMHeadModel(config)
    return peft.get_peft_model(model, peft.LoraConfig(r=3, lora_alpha=9, target_modules="all-linear", fan_in_fan_out=True))


def stories() -> Any:
    if not STORIES.is_dir():
        pytest.skip(f"no pretrained model at {STORIES}; set DPTRAIN_DATA")
    model = transformers.LlamaForCausalLM.from_pretrained(STORIES)
    config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, use_rslora=True, target_modules=["q_proj", "down_proj"])
    return peft.get_peft_model(model, config)


def logits(model: Any) -> torch.Tensor:
    return model.eval()(input_ids=torch.arange(2, 14)[None]).logits.detach()


def test_balanced_pairs_have_full_rank_and_hardly_change_the_model() -> None:
    model = gpt2()
    before = logits(model)
    balanced(model)
    for pair in find_pairs(model):
        A, B = pair.A.double(), pair.Bt.double().mT
        torch.testing.assert_close(A.mT @ A, 4e-4 * torch.eye(3, dtype=torch.float64), atol=1e-9, rtol=0)
        torch.testing.assert_close(B.mT @ B, A.mT @ A, atol=1e-9, rtol=0)
    assert 0 < float((logits(model) - before).abs().max()) < 1e-2
    again = gpt2()
    balanced(again)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("make", [gpt2, stories])
def test_spectral_pairs_are_the_largest_singular_directions_and_leave_the_model_as_it_was(make: Any) -> None:
    model = make()
    before, trained = logits(model), sum(p.requires_grad for p in model.parameters())
    assert spectral(model) == ("default_origin",)
    torch.testing.assert_close(logits(model), before, atol=1e-4, rtol=1e-4)
    assert sum(p.requires_grad for p in model.parameters()) == trained
    for pair in find_pairs(model):
        layer = model.get_submodule(pair.module)
        weight = layer.get_base_layer().weight.detach().double()
        weight = weight.mT if getattr(layer, "fan_in_fan_out", False) else weight
        s, r = torch.linalg.svdvals(weight / pair.scaling), pair.rank
        left = (weight / pair.scaling - (pair.A @ pair.Bt).detach().double()).norm()
        assert 1.0 <= float(left / s[r:].norm()) < 1.01
        assert int(LoraTangent(pair.A, pair.Bt.mT).rank_A) == r


def test_pairs_are_begun_once_and_not_of_what_is_no_weight() -> None:
    model = gpt2()
    spectral(model)
    with pytest.raises(ConfigError, match="GEOMETRY: adapter 'default' has an origin already"):
        spectral(model)
    for scale in (0.0, float("nan")):
        with pytest.raises(ConfigError, match="GEOMETRY: scale"):
            balanced(model, scale=scale)
    with pytest.raises(ConfigError, match="found no LoRA pair"):
        balanced(torch.nn.Linear(2, 2))
    quantised = net()
    layer = quantised.get_submodule(find_pairs(quantised)[0].module)
    layer.get_base_layer().weight = torch.nn.Parameter(torch.zeros(8, 8, dtype=torch.int8), requires_grad=False)
    with pytest.raises(UnsupportedModule, match=r"GEOMETRY_PAIR.*int8"):
        spectral(quantised)


def next_tokens(model: Any, rows: Any) -> torch.Tensor:
    found = model(input_ids=rows["input_ids"]).logits[:, :-1]
    return torch.nn.functional.cross_entropy(found.mT, rows["input_ids"][:, 1:], reduction="none").mean(1)


def test_what_began_spectral_is_released_tied_tensor_by_tensor_and_read_by_plain_peft(tmp_path: Path) -> None:
    world = make_world(tmp_path / "world", classes=CLASSES, per_class=4, steps=3, policy_extra=LINE)
    model = stories()
    spectral(model)
    with PrivateTraining.open(
        world.policy, world.corpus, ledger=world.ledger, progress=False, microbatches=Microbatches(4)
    ) as run:
        _, optimizer, steps = run.prepare(model, TangentAdam(model, lr=1e-2), collate_tokens)
        for step in steps:
            for rows in step:
                run.backward(next_tokens(model, rows), rows)
            optimizer.step()
    after = logits(model)
    model.save_pretrained(tmp_path / "out")
    vkey = (world.root / "ledger.pub").read_text().split()
    signer = NoteSigner(parse_verifier_key(vkey[0]).name, load_private_key(world.root / "ledger.key"))
    with Ledger.open(world.ledger, signer) as log:
        release(log, tmp_path / "out", now=int(time.time()))
    report = check_release(tmp_path / "out", vkey)
    assert report.verdict == "TOLD" and report.weights.status == "TIED", report.findings

    plain = peft.PeftModel.from_pretrained(transformers.LlamaForCausalLM.from_pretrained(STORIES), tmp_path / "out")
    plain.load_adapter(tmp_path / "out" / "default_origin", "default_origin")
    plain.base_model.set_adapter(["default", "default_origin"])
    assert torch.equal(logits(plain), after)

    before = {name: p.requires_grad for name, p in model.named_parameters()}
    name = stacked(model)
    assert torch.equal(logits(model), after)
    assert {key: p.requires_grad for key, p in model.named_parameters() if key in before} == before
    with pytest.raises(ConfigError, match="GEOMETRY: adapter 'default_origin' has no origin"):
        stacked(model, "default_origin")
    model.save_pretrained(tmp_path / "one", selected_adapters=[name])
    one = peft.PeftModel.from_pretrained(transformers.LlamaForCausalLM.from_pretrained(STORIES), tmp_path / "one" / name)
    torch.testing.assert_close(logits(one), after, atol=1e-4, rtol=1e-4)
    assert one.peft_config["default"].r == 8
