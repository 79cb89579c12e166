"""Channels by which one contribution reaches another that have no other test: each is refused by name, or shown harmless.

The others are in test_coupling.py; the channels are those of docs/mechanism.
"""

import json
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain.data.microbatch import Microbatch  # noqa: E402
from dptrain.engine import start  # noqa: E402
from dptrain.engine.start import Unprobed  # noqa: E402
from dptrain.errors import (  # noqa: E402
    ConfigError,
    CoupledModel,
    DptrainError,
    LossShape,
    NotPrivateUse,
    StepOrder,
    UnsupportedModule,
)
from dptrain.routing import Router, synthetic_rows  # noqa: E402
from dptrain.routing.synthetic_rows import ProbeRows  # noqa: E402
from tests.guarantees.peers import Net, Run, collate, first_release, net, per_example, small_world, whole_schedule  # noqa: E402
from tests.worlds.training import token_record  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")


def refused(tmp_path, extra, code: str, losses=per_example, **options) -> None:
    """Refused at the start, by this code, with nothing charged and no gradient left."""
    model = net(extra)
    with Run(small_world(tmp_path, per_class=5), model, **options) as run:
        with pytest.raises(DptrainError, match=code) as error:
            run.gradients(next(iter(run.steps)), losses)
        assert isinstance(error.value, (CoupledModel, UnsupportedModule))
        assert not run.private.opened.recorder.begun
        assert all(p.grad is None for p in model.parameters())


def prepare_refused(tmp_path, model: nn.Module, code: str) -> None:
    with pytest.raises(CoupledModel, match=code):
        Run(small_world(tmp_path), model)


# --- statistics that forward keeps or takes over the batch -----------------------------------------------------------


class Channels(nn.Module):
    """Puts a norm over channels between (n, T, C) values."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.mT).mT


def test_synchronised_batch_norm_is_refused(tmp_path) -> None:
    prepare_refused(tmp_path, net(lambda: Channels(nn.SyncBatchNorm(8))), r"BATCH_NORM.*extra\.norm")


def test_batch_norm_without_running_statistics_is_refused_even_in_eval(tmp_path) -> None:
    prepare_refused(tmp_path, net(lambda: Channels(nn.BatchNorm1d(8, track_running_stats=False)).eval()), "BATCH_NORM")


def test_instance_norm_with_running_statistics_is_refused_and_without_is_not(tmp_path) -> None:
    made = net(lambda: Channels(nn.InstanceNorm1d(8, affine=True, track_running_stats=True)))
    prepare_refused(tmp_path, made, r"RUNNING_STATISTICS.*extra\.norm")
    first_release(small_world(tmp_path / "b"), net(lambda: Channels(nn.InstanceNorm1d(8, affine=True))))


def test_spectral_norm_as_a_hook_is_refused(tmp_path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepare_refused(tmp_path, net(lambda: nn.utils.spectral_norm(nn.Linear(8, 8))), "SPECTRAL_NORM.*'extra'")


class Memory(nn.Module):
    """An average over past batches, a queue, a cache: state that is no buffer and shows in no state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = [torch.zeros(8, dtype=torch.float64)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x - self.mean[0]
        self.mean[0] = 0.9 * self.mean[0] + 0.1 * x.detach().mean((0, 1))
        return out


def test_a_memory_that_is_no_buffer_is_refused(tmp_path) -> None:
    refused(tmp_path, Memory, "REPLACEMENT")


class DynamicScale(nn.Module):
    """Activation quantisation with one scale per tensor, from the largest value in the batch (FP8, dynamic int8)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.detach().abs().max() / 127
        return x + ((x / scale).round() * scale - x).detach()


def test_one_quantisation_scale_for_the_batch_is_refused(tmp_path) -> None:
    """The largest value belongs to one row alone: only replacing that very row shows it."""
    refused(tmp_path, DynamicScale, "REPLACEMENT")


class MiddlePeeks(nn.Module):
    """Only the second row reads another one, the first."""

    def __init__(self, detach: bool = False) -> None:
        super().__init__()
        self.detach = detach

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        source = x[:1].detach() if self.detach else x[:1]
        return torch.cat([x[:1], x[1:2] + 0.1 * source, x[2:]]) if len(x) > 2 else x


@pytest.mark.parametrize("detach", [False, True])
def test_a_coupling_between_two_rows_alone_is_refused(tmp_path, detach: bool) -> None:
    """Neither the first nor the last row takes part in reading, so no probe of these alone would see it."""
    refused(tmp_path, lambda: MiddlePeeks(detach), "REPLACEMENT" if detach else "CROSS_SAMPLE_GRADIENT|GRADIENT_MISMATCH")


class SequenceFirst(nn.Module):
    """torch's attention reads (T, n, d) unless told otherwise: fed examples first, it attends over examples."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


def test_attention_over_the_examples_of_a_batch_is_refused(tmp_path) -> None:
    with pytest.raises((CoupledModel, UnsupportedModule), match=r"'extra\.attention'"):
        first_release(small_world(tmp_path), net(SequenceFirst))


# --- experts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"router_aux_loss_coef": 0.01, "output_router_logits": True}, "ROUTER_AUX_LOSS.*output_router_logits=False"),
        ({"expert_capacity": 64}, "EXPERT_CAPACITY.*expert_capacity=64"),
        ({"capacity_factor": 1.25}, "EXPERT_CAPACITY.*capacity_factor=1.25"),
        ({"moe_capacity_factor": 2.0}, "EXPERT_CAPACITY.*moe_capacity_factor=2.0"),
    ],
)
def test_the_configuration_of_experts_is_read(tmp_path, config: dict, code: str) -> None:
    model = net()
    model.config = SimpleNamespace(**config)
    prepare_refused(tmp_path, model, code)


def test_a_router_loss_that_is_switched_off_is_no_coupling(tmp_path) -> None:
    model = net()
    model.config = SimpleNamespace(router_aux_loss_coef=0.01, output_router_logits=False)
    first_release(small_world(tmp_path), model)


def test_a_load_balancing_loss_of_ones_own_is_refused(tmp_path) -> None:
    """The share of each expert over the batch, times its mean probability: the loss of Switch."""

    def balanced(model: nn.Module, rows) -> torch.Tensor:
        p = model.embed(rows["ids"])[..., :4].softmax(-1)
        share = nn.functional.one_hot(p.argmax(-1), 4).double().mean((0, 1))
        return per_example(model, rows) + 4 * (share * p.mean((0, 1))).sum()

    refused(tmp_path, None, "CROSS_SAMPLE_GRADIENT", balanced)


class CapacityDrop(nn.Module):
    """Tokens beyond the capacity of an expert are dropped, first come first served over the whole batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = (x.detach()[..., 0] > 0).double().flatten()
        kept = (chosen.cumsum(0) <= 4).double().view(*x.shape[:2], 1)
        return x * (1 + kept)


class ExpertChoice(nn.Module):
    """Experts choose their k tokens over the whole batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = x.detach()[..., 0].flatten()
        chosen = torch.zeros_like(score)
        chosen[score.topk(8).indices] = 1.0
        return x * (1 + chosen.view(*x.shape[:2], 1))


@pytest.mark.parametrize("extra", [CapacityDrop, ExpertChoice])
def test_experts_that_share_a_capacity_over_the_batch_are_refused(tmp_path, extra) -> None:
    """No gradient crosses, so the Jacobian probe is blind."""
    refused(tmp_path, extra, "REPLACEMENT")


# --- losses and inputs -----------------------------------------------------------------------------------------------


def test_mixup_is_refused(tmp_path) -> None:
    class Mixup(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 0.7 * x + 0.3 * x.flip(0)

    refused(tmp_path, Mixup, "CROSS_SAMPLE_GRADIENT")


@pytest.mark.parametrize("kind", ["whitened", "baseline"])
def test_rewards_compared_over_the_batch_are_refused(tmp_path, kind: str) -> None:
    """Whitened advantages, or a baseline over the batch: detached, so only the replacement probe sees them."""

    def policy_gradient(model: nn.Module, rows) -> torch.Tensor:
        reward = rows["ids"].double().mean(1)
        advantage = reward - reward.mean()
        if kind == "whitened":
            advantage = advantage / (reward.std() + 1e-6)
        return per_example(model, rows) * advantage

    refused(tmp_path, None, "REPLACEMENT", policy_gradient)


def test_collate_never_sees_two_contributions_so_nothing_of_one_gets_into_the_rows_of_another(tmp_path) -> None:
    """Packing, padding to the longest, mixing and filling from the next row: there is nobody else to do it with."""
    seen: list[int] = []

    def watching(examples: list[dict]) -> dict[str, torch.Tensor]:
        seen.append(len({example["seed"] for example in examples}))
        return collate(examples)

    world = small_world(
        tmp_path, record=lambda s: [token_record(s + 3 * j) | {"seed": s} for j in range(3)],
        policy_extra="[gate]\nmax_examples = 3\n",
    )  # fmt: skip
    with Run(world, net(), collate_fn=watching, microbatch=4) as run:
        for _ in run.releases():
            pass
    assert set(seen) == {1}


def test_packing_the_examples_of_a_contribution_into_one_sequence_is_refused(tmp_path) -> None:
    def packed(examples: list[dict]) -> dict[str, torch.Tensor]:
        return {k: v.reshape(1, -1) for k, v in collate(examples).items()}

    world = small_world(
        tmp_path, record=lambda s: [token_record(s + 3 * j) | {"seed": s} for j in range(3)],
        policy_extra="[gate]\nmax_examples = 3\n",
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"COLLATE.*dimension 0 must be the example"):
        Run(world, net(), collate_fn=packed)


# --- what happens to gradients before and after the noise ------------------------------------------------------------


@pytest.mark.parametrize("kind", ["hook", "step in backward"])
def test_hooks_on_raw_gradients_are_refused(tmp_path, kind: str) -> None:
    """Centralisation, compression, an optimizer that steps inside backward: the probes would hand them raw gradients."""
    model = net()
    weight = model.layers[1].weight
    if kind == "hook":
        weight.register_hook(lambda g: g - g.mean())
    else:
        inside = torch.optim.SGD([weight], lr=0.1)
        weight.register_post_accumulate_grad_hook(lambda _: inside.step())
    before = weight.detach().clone()
    with pytest.raises(NotPrivateUse, match=r"GRADIENT_HOOK.*'layers\.1\.weight'.*in place"):
        first_release(small_world(tmp_path), model)
    assert torch.equal(weight, before)


def test_a_hook_cannot_be_added_later(tmp_path) -> None:
    with Run(small_world(tmp_path), net()) as run:
        for register in ("register_hook", "register_post_accumulate_grad_hook"):
            with pytest.raises(RuntimeError, match="require"):
                getattr(run.model.head.weight, register)(lambda *_: None)


@pytest.mark.parametrize("precision", ["fp16", "fp8"])
def test_loss_scalers_and_shared_scales_are_refused(tmp_path, precision: str) -> None:
    accelerator = SimpleNamespace(
        device=torch.device("cpu"), distributed_type="NO", num_processes=1, gradient_accumulation_steps=1, scaler=None,
        mixed_precision=precision,
    )  # fmt: skip
    with pytest.raises(NotPrivateUse, match=r"LOSS_SCALER.*use bf16"):
        Run(small_world(tmp_path), net(), accelerator=accelerator)


def test_a_scaler_of_any_precision_is_refused(tmp_path) -> None:
    accelerator = SimpleNamespace(
        device=torch.device("cpu"), distributed_type="NO", num_processes=1, gradient_accumulation_steps=1, scaler=object(),
        mixed_precision="no",
    )  # fmt: skip
    with pytest.raises(NotPrivateUse, match="LOSS_SCALER"):
        Run(small_world(tmp_path), net(), accelerator=accelerator)


def test_a_step_skipped_for_its_loss_is_refused(tmp_path) -> None:
    """Skipping the optimizer where the loss jumps would make the number of updates a function of the data."""
    with Run(small_world(tmp_path), net()) as run:
        steps = iter(run.steps)
        run.gradients(next(steps))
        with pytest.raises(StepOrder, match="the loop left step 1"):
            next(steps)


def test_dropout_is_no_coupling(tmp_path) -> None:
    """The probes compare runs under the same masks, so a model with dropout passes them."""
    first_release(small_world(tmp_path), net(lambda: nn.Dropout(0.5)))


# --- shapes inside the model that follow content ------------------------------------------------------------------------


class Padded(nn.Module):
    """Adds a bias where an example is padded, with one row for all where no example is: whether one is padded, another's shape
    follows."""

    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(8))

        def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x * self.scale + bias) * self.scale

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.biased = self.Biased()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = -3.0 * (x[..., :1] > 100.0).to(x)
        return self.biased(self.layers[1](self.layers[0](x)), bias if bool(bias.any()) else bias[:1]).mean((1, 2))


@pytest.mark.parametrize("known", [True, False])
def test_an_input_that_has_a_row_per_example_only_sometimes_is_refused(known: bool) -> None:
    """Else all rows would go to everybody as what the microbatch shares, and spread over each one's gradient."""
    torch.manual_seed(0)
    model = Padded().double()
    schedule = whole_schedule(model, "layers")
    model.requires_grad_(False)
    router = Router(model, schedule)
    router.attach()
    x = torch.randn(4, 5, 8, dtype=torch.float64)

    def backward() -> None:
        router.arm(4, 1, torch.ones(4, 1, dtype=torch.bool))
        router.backward(model(x), torch.ones(4, dtype=torch.float64))

    backward()
    x[0, 3:, 0] = 200.0
    if not known:
        next(site.rule for site in router.sites if site.module is model.biased)._one.clear()
    with pytest.raises(UnsupportedModule, match="BATCH_DIMENSION.*follows content" if known else "NO_RULE"):
        backward()
    router.detach()


# --- couplings that one size of microbatch, or one side of a number, does not show ------------------------------------


class OtherWhenAlone(nn.Module):
    """As after a ``squeeze()`` without a dimension: a row alone is taken for something else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if len(x) > 1 else 2.0 * x


def raises_alone(model: nn.Module, rows) -> torch.Tensor:
    losses = per_example(model, rows)
    if losses.squeeze().dim() == 0:
        raise ValueError("one row")
    return losses


@pytest.mark.parametrize("microbatch", [2, 6, 16])
def test_a_forward_that_takes_a_row_alone_for_something_else_is_refused(tmp_path, microbatch: int) -> None:
    refused(tmp_path, OtherWhenAlone, "REPLACEMENT", microbatch=microbatch)


def test_a_loss_that_raises_for_a_row_alone_is_refused_and_counts_nobody_as_zero(tmp_path) -> None:
    with Run(small_world(tmp_path, per_class=5), net(nn.Identity)) as run:
        with pytest.raises(CoupledModel, match=r"REPLACEMENT.*one example alone"):
            run.gradients(next(iter(run.steps)), run.private.loss(raises_alone))
        assert not run.private.opened.recorder.begun


def test_a_loss_that_raises_on_made_up_rows_asks_for_others_where_every_row_is_alone(tmp_path) -> None:
    def raises(model: nn.Module, rows) -> torch.Tensor:
        raise ValueError("no such token")

    run = Run(small_world(tmp_path, per_class=5), net(nn.Identity), microbatch=1)
    with run, pytest.raises(ConfigError, match="PROBE_NEEDED"):
        run.gradients(next(iter(run.steps)), run.private.loss(raises))


@pytest.mark.parametrize("microbatch", [2, 16])
def test_dropout_in_a_layer_that_is_skipped_now_and_then_trains_in_small_microbatches(tmp_path, microbatch: int) -> None:
    with Run(small_world(tmp_path, per_class=5), net(SkippedDropout), microbatch=microbatch) as run:
        for _ in run.releases():
            pass


class OwnNumbers(nn.Module):
    """Noise from a generator that nobody seeds for the contribution."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.from_numpy(self.generator.random(x.shape)).to(x)


class Evaluated(nn.Module):
    """Features of a frozen part under inference mode, where nothing is addressed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            mask = torch.rand(x.shape, dtype=x.dtype)
        return x * mask.clone()


@pytest.mark.one_in(7)
@pytest.mark.parametrize("microbatch", [1, 8])
@pytest.mark.parametrize("extra", [OwnNumbers, Evaluated])
def test_numbers_that_have_no_address_are_refused_in_microbatches_of_one_as_well(tmp_path, extra, microbatch: int) -> None:
    refused(tmp_path, extra, "REPLACEMENT", microbatch=microbatch)


class Mixed(nn.Module):
    """Rows are mixed where one number for all of them falls on one side."""

    def __init__(self, low: bool) -> None:
        super().__init__()
        self.low = low

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.9 * x + 0.1 * x.flip(0) if (torch.rand(()) < 0.5) == self.low else x


@pytest.mark.parametrize("low", [True, False])
def test_a_coupling_behind_a_number_of_all_is_refused_on_either_side_of_it(tmp_path, low: bool) -> None:
    refused(tmp_path, lambda: Mixed(low), "CROSS_SAMPLE_GRADIENT|REPLACEMENT")


class SkippedDropout(nn.Module):
    """LayerDrop around dropout: high numbers let the layer run."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.dropout(x, 0.5) if torch.rand(()) > 0.5 else x


class SometimesRuns(nn.Module):
    """Stochastic depth, written so that low numbers let the layer run."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x) if torch.rand(()) < 0.5 else x


def test_a_layer_that_low_numbers_let_run_is_probed_and_trains(tmp_path) -> None:
    model = net(SometimesRuns)
    with Run(small_world(tmp_path, per_class=5), model) as run:
        for _ in run.releases():
            pass
        assert not run.private.prepared.probe.unprobed


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_losses_made_from_those_of_private_loss_are_refused_at_the_start(tmp_path, scale: float) -> None:
    """Whatever the content: in a microbatch that raises a repetition would not know of the factor."""
    with Run(small_world(tmp_path, per_class=5), net(nn.Identity)) as run:
        safe = run.private.loss(per_example)
        with pytest.raises(LossShape, match="LOSS_CHANGED"):
            run.gradients(next(iter(run.steps)), lambda model, rows: scale * safe(model, rows))
        assert not run.private.opened.recorder.begun


# --- labels that a loss leaves out -----------------------------------------------------------------------------------


class Tagger(Net):
    """A class for every token."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.extra(self.embed(ids))
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


def tagged(examples: list[dict]) -> dict[str, torch.Tensor]:
    """Labels of tokens, of which a third is left out, as in every corpus of spans or masked words."""
    ids = torch.tensor([e["ids"] for e in examples])
    return {"ids": ids, "labels": (ids % 3).masked_fill(ids % 3 == 2, -100)}


def by_token(model: nn.Module, rows: Any) -> torch.Tensor:
    scores = model(rows["ids"]).transpose(1, 2)
    return nn.functional.cross_entropy(scores, rows["labels"], reduction="none").sum(1)


def by_own_count(model: nn.Module, rows: Any) -> torch.Tensor:
    return by_token(model, rows) / (rows["labels"] != -100).sum(1)


def by_common_count(model: nn.Module, rows: Any) -> torch.Tensor:
    """As in loops for language models: over the mean number of tokens that count in the microbatch."""
    return by_token(model, rows) / (rows["labels"] != -100).sum(1, dtype=torch.float64).mean()


def knows_no_such_label(model: nn.Module, rows: Any) -> torch.Tensor:
    """To which every label that is below zero is out of range."""
    scores = torch.log_softmax(model(rows["ids"]), -1)
    return -scores.gather(2, rows["labels"].clamp(-100, 50)[..., None]).sum((1, 2))


@pytest.mark.one_in(99)
@pytest.mark.parametrize("microbatch", [2, 4, 8])
def test_a_loss_over_the_number_of_labels_in_the_microbatch_is_refused(tmp_path, microbatch: int, monkeypatch) -> None:
    """Were all labels of made-up rows to count, every microbatch would count as many."""
    world = small_world(tmp_path)
    torch.manual_seed(0)
    model = Tagger().double()
    with Run(world, model, collate_fn=tagged, microbatch=microbatch) as run:
        run.gradients(next(iter(run.steps)), by_own_count)
    with pytest.raises(CoupledModel, match="REPLACEMENT"), Run(world, model, collate_fn=tagged, microbatch=microbatch) as run:
        run.gradients(next(iter(run.steps)), by_common_count)
    monkeypatch.setattr(synthetic_rows, "IGNORING", ())
    with Run(world, model, collate_fn=tagged, microbatch=microbatch) as run:
        run.gradients(next(iter(run.steps)), by_common_count)


def whole(examples: list[dict]) -> dict[str, torch.Tensor]:
    """Labels of tokens that all count."""
    ids = torch.tensor([e["ids"] for e in examples])
    return {"ids": ids, "labels": ids % 3}


@pytest.mark.parametrize("microbatch", [1, 4])
def test_a_loss_that_knows_no_label_to_leave_out_is_probed_without(tmp_path, microbatch: int) -> None:
    torch.manual_seed(0)
    with Run(small_world(tmp_path), Tagger().double(), collate_fn=whole, microbatch=microbatch) as run:
        assert run.private.prepared.probe_rows.ignores
        with pytest.warns(Unprobed, match="labels of -100"):
            run.gradients(next(iter(run.steps)), knows_no_such_label)
        assert not run.private.prepared.probe_rows.ignores


def test_a_loss_that_raises_at_a_label_to_leave_out_is_probed_without(tmp_path) -> None:
    """And what it drew until then shows nothing of where rows lie."""

    def asks_first(model: nn.Module, rows: Any) -> torch.Tensor:
        losses = by_own_count(model, rows)
        if bool((rows["labels"] < 0).any()):
            raise ValueError("a label")
        return losses

    torch.manual_seed(0)
    with Run(small_world(tmp_path), Tagger(nn.Dropout(0.5)).double(), collate_fn=whole, microbatch=4) as run:
        loss = run.private.loss(asks_first)
        with pytest.warns(Unprobed, match="labels of -100"):
            for rows in next(iter(run.steps)):
                run.private.backward(loss(run.model, rows), rows)
        assert not run.private.prepared.probe_rows.ignores


@pytest.mark.parametrize("length", [3, 4, 5, 7, 16, 128])
def test_made_up_labels_and_masks_leave_something_whatever_the_length(length: int) -> None:
    """As many tokens as a loss needs that shifts labels by one and takes a token by both."""
    like = Microbatch(
        {
            "input_ids": torch.zeros(1, length, dtype=torch.long), "attention_mask": torch.ones(1, length, dtype=torch.long),
            "masked_lm_labels": torch.zeros(1, length, dtype=torch.long), "labels_mask": torch.ones(1, length).bool(),
            "padding_mask": torch.zeros(1, length, dtype=torch.bool),
        },
        1, 1, torch.ones(1, dtype=torch.float64), (b"like",),
    )  # fmt: skip
    made = ProbeRows([like], torch.device("cpu"))
    first = made.microbatch(range(64), [b"row"] * 64).inputs["attention_mask"].sum(1)
    assert int(first.min()) == 1 and int(first.max()) == length, "one alone, until a loss needs more"
    made.give_up()
    rows = made.microbatch(range(64), [b"row"] * 64).inputs
    counts = rows["masked_lm_labels"] != -100
    for mask in (rows["attention_mask"].bool(), rows["labels_mask"], ~rows["padding_mask"]):
        assert bool((mask & counts)[:, 1:].any(1).all()) and bool(mask[0].all())
    assert bool(counts[0].all()) and not bool(counts[1].all()), "some are left out"


# --- what shows in no few rows ---------------------------------------------------------------------------------------


def hardest(model: nn.Module, rows: Any) -> torch.Tensor:
    """Takes the 8 hardest examples."""
    losses = per_example(model, rows)
    least = losses.detach().topk(min(8, len(losses))).values[-1]
    return losses * (losses.detach() >= least)


def from_8_rows_on(model: nn.Module, rows: Any) -> torch.Tensor:
    losses = per_example(model, rows)
    return losses + (losses.detach().mean() if len(losses) >= 8 else 0.0)


@pytest.mark.parametrize("losses", [hardest, from_8_rows_on])
def test_what_shows_in_no_few_rows_is_refused_by_a_whole_microbatch(tmp_path, losses, monkeypatch) -> None:
    refused(tmp_path, None, "REPLACEMENT", losses, microbatch=16)
    monkeypatch.setattr(start, "crowds", lambda full, rows: ())
    with Run(small_world(tmp_path / "without"), net(), microbatch=16) as run:
        run.gradients(next(iter(run.steps)), losses)


# --- where everybody is alone ----------------------------------------------------------------------------------------


class Pads(Net):
    """Takes a mask that hides nothing for none, as Hugging Face's attention does."""

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        weight = torch.ones_like(mask) if bool(mask.all()) else mask
        self.taken = (weight - mask).abs().sum().item() == 0  # a number: what is asked as a truth is told
        return self.head(torch.tanh(self.embed(ids)).mul(weight[..., None]).sum(1) / weight.sum(1, keepdim=True))


def padded(examples: list[dict]) -> dict[str, torch.Tensor]:
    mask = torch.ones(len(examples), 7, dtype=torch.long)
    mask[:, 4:] = 0
    return {**collate(examples), "attention_mask": mask}


@pytest.mark.one_in(7)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("options", [{"microbatch": 1}, {"microbatch": 8, "microbatch_rows": 1}, {"microbatch": 4}])
def test_a_question_about_padding_is_answered_truly_where_everybody_is_alone(tmp_path, options, given: bool) -> None:
    def losses(model: nn.Module, rows: Any) -> torch.Tensor:
        found = nn.functional.cross_entropy(model(rows["ids"], rows["attention_mask"]), rows["labels"], reduction="none")
        if not run.private.prepared.probe.active:
            taken.append(model.taken)
        return found

    taken: list[bool] = []
    torch.manual_seed(0)
    records = [json.dumps(token_record(k)).encode() for k in range(6)] if given else None
    with Run(small_world(tmp_path), Pads().double(), collate_fn=padded, layers=None, probe=records, **options) as run:
        run.gradients(next(iter(run.steps)), losses)
    assert taken and all(taken)
