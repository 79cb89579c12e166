"""Faults by which peers stopped with an error where a run should go on: empty draws, shapes, norms, names, wrappers.

The form is that of test_peer_bugs_privacy.py; the list is in test_peer_bugs.py.
"""

import warnings
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")
from accelerate import Accelerator  # noqa: E402
from torch import nn  # noqa: E402

from dptrain.data.sampling import PoissonSampler  # noqa: E402
from dptrain.errors import UnsupportedModule  # noqa: E402
from dptrain.noise import KeyStream  # noqa: E402
from dptrain.routing import FallbackNotice  # noqa: E402
from tests.guarantees.peers import (  # noqa: E402
    NORMALIZER,
    Run,
    assert_exact,
    first_release,
    net,
    norm,
    per_example,
    signal,
    small_world,
)
from tests.reference.families import FAMILIES  # noqa: E402
from tests.worlds.trainer import Trainer  # noqa: E402


def exact(extra: nn.Module, tolerance: float = 1e-10) -> None:
    """The gradient of a model with ``extra`` in it, and that it takes a rule rather than the fallback."""
    model = net(lambda: extra)
    batch = {"ids": (torch.arange(21) * 5 % 50).view(3, 7), "labels": torch.tensor([0, 1, 2])}
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackNotice)
        assert_exact(model, lambda rows: per_example(model, {k: v[rows] for k, v in batch.items()}), 3, "layers", tolerance)


# --- empty draws -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "gpt2_tied"])
def test_an_empty_draw_is_a_step_without_a_forward(tmp_path, family: str) -> None:
    """BERT and GPT-2 raise inside forward for a batch of 0 (`view(0, T, -1)`); the step must add noise and count."""
    trainer = Trainer(small_world(tmp_path, rate="0.000000001", steps=2, now=None), family)
    forwards = []
    trainer.model.register_forward_pre_hook(lambda *_: forwards.append(trainer.private.prepared.probe.active))
    for step in trainer.steps:
        trainer.one(step)
        assert all(bool((t.parameter.grad != 0).all()) for _, t in trainer.private.prepared.router.tensors)
    assert set(forwards) == {True}, "only the probes run the model"
    assert trainer.private.opened.recorder.ledger.state.charged == 2
    trainer.close()


def test_empty_draws_are_not_left_out_of_the_steps(tmp_path) -> None:
    """Opacus' distributed sampler yields nothing for an empty draw: 7 and 11 of 20 steps on two ranks, then a hang."""
    with Run(small_world(tmp_path, per_class=2, rate="0.3", steps=20), net()) as run:
        taken = sum(1 for _ in run.releases())
        empty = sum(not seeds for seeds in run.drawn)
        assert taken == run.private.opened.recorder.ledger.state.charged == 20
        assert 0 < empty < 20, "the test needs empty draws among others"


@pytest.mark.parametrize("n", [93, 99, 105])
def test_the_number_of_steps_is_the_integer_that_was_signed(tmp_path, n: int) -> None:
    """Opacus: `int(1 / (1 / n))` is not n for 141 of n < 2000, so an epoch is one step short."""
    assert int(1 / (1 / n)) == n - 1, "the fault that this is about"
    with Run(small_world(tmp_path, steps=n), net()) as run:
        run.private.prepared.begin()
        assert len(run.steps) == run.private.opened.recorder.ledger.header.policy.steps == n
    sampler = PoissonSampler(KeyStream("sampling", b"\0" * 16, 0, b"\1" * 32), [Fraction(1, n)], [0])
    assert int(sampler._thresholds[0]) == 2**64 // n, "rates are exact fractions, rounded down once"


# --- shapes and layers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", ["default", "expanded", "explicit"])
@pytest.mark.parametrize("family", ["bert", "gpt2_untied"])
def test_position_ids_of_any_form_are_exact(family: str, ids: str) -> None:
    """Opacus: position ids of shape [1, T] break `stack`, expanded ones break `view`; peers copied whole forwards for it."""
    torch.manual_seed(0)
    made = FAMILIES[family]()
    batch = made.batch(3, 1)
    positions = torch.arange(batch["input_ids"].shape[1])[None]
    if ids == "explicit":
        positions = positions.repeat(3, 1)

    def losses(rows: slice) -> torch.Tensor:
        part = {k: v[rows] for k, v in batch.items() if k != "labels"}
        n = len(part["input_ids"])
        if ids == "expanded":
            part["position_ids"] = positions.expand(n, -1)
        elif ids == "explicit":
            part["position_ids"] = positions[rows]
        logits = made.model(**part).logits.reshape(n, -1)
        return nn.functional.cross_entropy(logits, batch["labels"][rows], reduction="none")

    assert_exact(made.model, losses, 3)


def test_layer_norm_without_bias_is_exact() -> None:
    """Opacus: `nn.LayerNorm(bias=False)` is an AttributeError."""
    exact(nn.LayerNorm(8, bias=False))
    exact(nn.LayerNorm(8, elementwise_affine=False))


class FourDimensional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.view(*x.shape[:2], 4, 2)).reshape(x.shape)


def test_a_linear_layer_on_four_dimensions_is_exact() -> None:
    """Opacus ghost: a Linear on 4-D input is an AttributeError (`_norm_sample`)."""
    exact(FourDimensional())


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Linear(8, 8)
        self.on = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.idle(x) if self.on else x


def test_an_unused_parameter_does_not_stop_a_run_and_is_named_when_it_is_used(tmp_path) -> None:
    """Opacus: an unused parameter is a ValueError that does not name it."""
    with Run(small_world(tmp_path), net(Unused)) as run:
        releases = run.releases()
        assert float(next(releases)["extra.idle.weight"].abs().min()) > 0
        run.model.extra.on = True
        with pytest.raises(UnsupportedModule, match=r"UNVERIFIED_MODULE.*'extra\.idle'"):
            next(releases)
    found = signal(small_world(tmp_path / "b"), lambda: net(Unused), per_example)
    assert norm({"idle": found["extra.idle.weight"]}) < 1e-6 < norm(found)


def rms_norms() -> dict:
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.mistral.modeling_mistral import MistralRMSNorm
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    return {c.__name__: c for c in (LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, GemmaRMSNorm, T5LayerNorm, nn.RMSNorm)}


@pytest.mark.parametrize("name", list(rms_norms()))
def test_rms_norms_of_any_class_have_a_rule(name: str) -> None:
    """206 classes of transformers match RMSNorm, none is nn.RMSNorm: Opacus' sampler never applies."""
    made = rms_norms()[name](8)
    nn.init.normal_(made.weight)
    made.weight.data = made.weight.data.double()
    exact(made, tolerance=1e-5)  # these classes compute in float32 whatever they are given


def test_the_norm_of_t5_sums_over_positions() -> None:
    """fastDP: `_clip_t5_layer_norm_grad` returns [B, d], an AssertionError: one norm per contribution, over all of d."""
    made = rms_norms()["T5LayerNorm"](8)
    exact(made, tolerance=1e-5)  # these classes compute in float32 whatever they are given


# --- optimizers and wrappers -----------------------------------------------------------------------------------------


def test_step_hooks_and_schedulers_see_private_gradients(tmp_path) -> None:
    """Opacus: DPOptimizer never calls Optimizer.__init__, so `register_step_pre_hook` is an AttributeError."""
    world = small_world(tmp_path, steps=4)
    with Run(world, net()) as run:
        seen: list[float] = []
        run.optimizer.register_step_pre_hook(lambda o, *_: seen.append(float(o.param_groups[0]["params"][0].grad.norm())))
        after: list[int] = []
        run.optimizer.register_step_post_hook(lambda *_: after.append(1))
        scheduler = torch.optim.lr_scheduler.LambdaLR(run.optimizer, lambda step: 0.5**step)
        expected = []
        for released in run.releases():
            expected.append(float(released["embed.weight"].norm()) / NORMALIZER)
            rate = run.optimizer.param_groups[0]["lr"]
        scheduler.step()
        assert rate == 0.1 and run.optimizer.param_groups[0]["lr"] == 0.05
    assert seen == pytest.approx(expected) and len(seen) == len(after) == 4


def test_state_dict_keys_and_save_pretrained_are_those_of_the_model(tmp_path) -> None:
    """Opacus: keys of the wrapped state dict start with `_module.`, and the wrapper has no save_pretrained."""
    from transformers import BertForSequenceClassification

    plain = FAMILIES["bert"]().model
    keys, kind = list(plain.state_dict()), type(plain)
    trainer = Trainer(small_world(tmp_path, steps=1, now=None), "bert")
    prepared = trainer.private.prepared.model
    assert prepared is trainer.model and type(prepared) is kind
    trainer.run()
    assert list(prepared.state_dict()) == keys
    prepared.save_pretrained(tmp_path / "saved")
    loaded = BertForSequenceClassification.from_pretrained(tmp_path / "saved").state_dict()
    assert all(torch.equal(loaded[k], v) for k, v in prepared.state_dict().items())
    trainer.close()


def test_clip_grad_norm_of_accelerate_acts_on_the_noised_gradient_alone(tmp_path) -> None:
    """Opacus hooks overwrite p.grad, so accelerator.clip_grad_norm_ has no effect; on raw gradients it would couple them."""
    world = small_world(tmp_path, steps=2)
    plain = first_release(world, net())
    accelerator = Accelerator(cpu=True)
    with Run(world, net(), accelerator=accelerator) as run:
        parameters = list(run.model.parameters())
        step = next(iter(run.steps))
        for rows in step:
            run.private.backward(per_example(run.model, rows), rows)
            assert float(accelerator.clip_grad_norm_(parameters, 1e-3)) == 0.0, "before the release there is nothing to clip"
        released = torch.cat([p.grad.flatten() for p in parameters]) * NORMALIZER
        assert torch.equal(released, torch.cat([v.flatten() for v in plain.values()]))
        before = [p.detach().clone() for p in parameters]
        accelerator.clip_grad_norm_(parameters, 1e-3)
        run.optimizer.step()
        moved = sum(float((p - b).square().sum()) for p, b in zip(parameters, before, strict=True)) ** 0.5
        assert moved == pytest.approx(0.1 * 1e-3, rel=1e-3), "the clip held for the step that was taken"
    accelerator.free_memory()


def test_the_last_microbatch_is_neither_dropped_nor_padded(tmp_path) -> None:
    """Opacus: drop_last is ignored with a warning. Every drawn contribution is in exactly one microbatch, however short."""
    with Run(small_world(tmp_path, per_class=7), net(), microbatch=3) as run:
        step = next(iter(run.steps))
        sizes, seeds = [], []
        for rows in step:
            if not run.private.prepared.probe.active:
                sizes.append(rows.contributions)
                seeds += rows["seeds"].tolist()
            run.private.backward(per_example(run.model, rows), rows)
    assert sizes == [3, 3, 1] and sorted(seeds) == list(range(7))
