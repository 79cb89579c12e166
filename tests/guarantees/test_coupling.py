"""Every channel through which one contribution could reach another's gradient is refused by name."""

import json

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain import PrivateTraining  # noqa: E402
from dptrain.blocks.stack import EMBEDDINGS  # noqa: E402
from dptrain.errors import ConfigError, CoupledModel, NonFinite, NotPrivateUse, UnsupportedModule  # noqa: E402
from tests.worlds.trainer import Trainer  # noqa: E402
from tests.worlds.training import World, make_world, token_record  # noqa: E402


class Net(nn.Module):
    """Token ids -> three like layers -> class; ``extra`` sits between the layers and the head."""

    def __init__(self, extra: nn.Module | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.extra = extra or nn.Identity()
        self.head = nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids).mean(1)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(self.extra(x))


def collate(examples: list[dict]) -> dict[str, torch.Tensor]:
    return {"ids": torch.tensor([e["ids"] for e in examples]), "labels": torch.tensor([e["label"] for e in examples])}


def one_per_example(model: nn.Module, rows) -> torch.Tensor:
    return nn.functional.cross_entropy(model(rows["ids"]), rows["labels"], reduction="none")


@pytest.fixture
def world(tmp_path) -> World:
    return make_world(tmp_path, per_class=3, steps=2, rate="1")


def first_step(world: World, model: nn.Module, losses=one_per_example, collate_fn=collate, probe=None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, progress=False) as private:
        _, _, steps = private.prepare(model, optimizer, collate_fn, layers="layers", probe=probe)
        try:
            for rows in next(iter(steps)):
                private.backward(losses(model, rows), rows)
        except Exception:
            assert not private.opened.recorder.begun, "a refusal at start charges nothing, and leaves no ledger"
            assert all(p.grad is None for p in model.parameters())
            raise
        optimizer.step()


def test_a_clean_model_passes(world: World) -> None:
    first_step(world, Net(nn.LayerNorm(8)))


def test_batch_norm_is_refused_by_name(world: World) -> None:
    with pytest.raises(CoupledModel, match=r"BATCH_NORM.*'extra'.*GroupNorm"):
        first_step(world, Net(nn.BatchNorm1d(8)))


def test_frozen_batch_norm_in_eval_is_allowed(world: World) -> None:
    norm = nn.BatchNorm1d(8, affine=False).eval()
    first_step(world, Net(norm))


def test_spectral_norm_is_refused(world: World) -> None:
    with pytest.raises(CoupledModel, match="SPECTRAL_NORM"):
        first_step(world, Net(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))))


class HomemadeBatchStatistics(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0, keepdim=True)


def test_batch_statistics_without_a_name_are_found_by_the_jacobian_probe(world: World) -> None:
    with pytest.raises(CoupledModel, match="CROSS_SAMPLE_GRADIENT"):
        first_step(world, Net(HomemadeBatchStatistics()))


class DetachedBatchStatistics(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.detach().abs().mean()


def test_detached_batch_statistics_are_found_by_the_replacement_probe(world: World) -> None:
    """The Jacobian probe is blind to this one."""
    with pytest.raises(CoupledModel, match="REPLACEMENT"):
        first_step(world, Net(DetachedBatchStatistics()))


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x


def test_a_buffer_that_forward_changes_is_refused_by_name(world: World) -> None:
    with pytest.raises(CoupledModel, match=r"BUFFER_CHANGES.*extra\.mean"):
        first_step(world, Net(Remembers()))


def test_in_batch_negatives_are_refused(world: World) -> None:
    def contrastive(model, rows):
        z = model(rows["ids"])
        return nn.functional.cross_entropy(z @ z.detach().T, torch.arange(len(z)), reduction="none")

    with pytest.raises(CoupledModel, match=r"REPLACEMENT|CROSS_SAMPLE"):
        first_step(world, Net(), contrastive)


def test_a_mean_over_the_tokens_of_the_batch_is_refused(world: World) -> None:
    """Hugging Face's token-mean loss couples contributions through the count (docs/mechanism, Separability)."""

    def token_mean(model, rows):
        counted = (rows["ids"] > 20).sum()
        return one_per_example(model, rows) * len(rows["ids"]) / counted.clamp_min(1)

    with pytest.raises(CoupledModel, match="REPLACEMENT"):
        first_step(world, Net(), token_mean)


def test_padding_to_the_longest_of_the_batch_is_refused(tmp_path) -> None:
    world = make_world(
        tmp_path, per_class=3, steps=2, rate="1", record=lambda s: token_record(s, length=5 if s in (0, 2002) else 4 + s % 7)
    )

    def longest(examples):
        width = max(len(e["ids"]) for e in examples)
        ids = torch.tensor([e["ids"] + [0] * (width - len(e["ids"])) for e in examples])
        return {"ids": ids, "labels": torch.tensor([e["label"] for e in examples])}

    with pytest.raises(CoupledModel, match=r"PADDING.*fixed length"):
        first_step(world, Net(), collate_fn=longest)


def test_a_parameter_used_without_its_module_is_refused_by_name(world: World) -> None:
    """Its gradient would be missing without a word (torch's own attention does this to out_proj)."""

    class Bypass(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, self.inner.weight, self.inner.bias)

    with pytest.raises(UnsupportedModule, match=r"GRADIENT_MISMATCH.*extra\.inner"):
        first_step(world, Net(Bypass()))


def test_a_module_that_does_not_keep_examples_first_is_refused_by_name(world: World) -> None:
    class Flattens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x.reshape(-1, 4)).reshape(x.shape)

    with pytest.raises(UnsupportedModule, match=r"BATCH_DIMENSION.*extra\.inner"):
        first_step(world, Net(Flattens()))


def test_one_dimensional_position_ids_are_not_taken_for_a_batch(world: World) -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(16, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.table(torch.arange(5)).mean(0)

    with pytest.raises(UnsupportedModule, match="BATCH_DIMENSION"):
        first_step(world, Net(Positions()))


def test_nan_losses_before_the_first_step_are_refused_and_nothing_is_charged(world: World) -> None:
    with pytest.raises(ConfigError, match=r"PROBE_NEEDED.*NaN or infinite"):
        first_step(world, Net(), lambda m, r: one_per_example(m, r) * float("nan"))
    records = [json.dumps(token_record(k)).encode() for k in range(4)]
    with pytest.raises(NonFinite, match=r"LOSS_NOT_FINITE.*nothing was charged"):
        first_step(world, Net(), lambda m, r: one_per_example(m, r) * float("nan"), probe=records)


class HeadFirst(Net):
    """Its head, registered after the layers, runs before them."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids).mean(1)
        early = self.head(x)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return early + x[:, :3]


class HiddenHeadFirst(HeadFirst):
    """The same, called in a way that nobody can guess beforehand."""

    def forward(self, ids: torch.Tensor, how: str) -> torch.Tensor:
        assert how == "so"
        return super().forward(ids)


def test_depth_follows_what_runs_and_not_what_is_registered(world: World) -> None:
    model = HeadFirst()
    with PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, progress=False) as private:
        private.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), collate, layers="layers")
        lowest = [block for block in private.prepared.schedule.blocks if block.positions == (EMBEDDINGS,)]
        below = {tensor.name for block in lowest for tensor in block.tensors}
    assert below == {"embed.weight", "head.weight", "head.bias"}
    first_step(make_world(world.root / "other", per_class=3, steps=2, rate="1"), HeadFirst())


def test_layers_that_run_in_another_order_than_could_be_found_out_are_refused(world: World) -> None:
    """Where a forward before the first step cannot tell, the order of registration counts, and the probes hold it."""
    with pytest.raises(UnsupportedModule, match=r"DEPTH_ORDER.*'head'"):
        first_step(world, HiddenHeadFirst(), lambda m, r: nn.functional.cross_entropy(
            m(r["ids"], "so"), r["labels"], reduction="none"
        ))  # fmt: skip


def test_scan_runs_at_every_step_not_only_at_start(world: World) -> None:
    norm = nn.BatchNorm1d(8, affine=False).eval()
    model = Net(norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, progress=False) as private:
        _, _, steps = private.prepare(model, optimizer, collate, layers="layers")
        iterator = iter(steps)
        for rows in next(iterator):
            private.backward(one_per_example(model, rows), rows)
        optimizer.step()
        norm.train()
        with pytest.raises(CoupledModel, match="BATCH_NORM"):
            list(next(iterator))


def test_a_compiled_model_is_refused(world: World) -> None:
    with pytest.raises(CoupledModel, match="COMPILED_MODEL"):
        first_step(world, torch.compile(Net()))


@pytest.mark.parametrize("place", ["", "mkldnn", "mkldnn.matmul", "cuda.matmul", None])
def test_reduced_matmul_precision_is_refused(world: World, place: str | None) -> None:
    """By whichever of torch's interfaces it was set: norms in bfloat16 are off by more than the margin."""
    holder = torch.backends
    for part in filter(None, (place or "").split(".")):
        holder = getattr(holder, part)
    if place is not None and not hasattr(holder, "fp32_precision"):
        pytest.skip("this torch has no such setting")
    try:
        if place is None:
            torch.set_float32_matmul_precision("medium")
        else:
            holder.fp32_precision = "tf32" if place in ("", "cuda.matmul") else "bf16"
        with pytest.raises(NotPrivateUse, match="MATMUL_PRECISION"):
            first_step(world, Net())
    finally:
        if place is None:
            torch.set_float32_matmul_precision("highest")
        else:
            holder.fp32_precision = "none"


def test_a_module_that_the_probes_never_saw_run_is_refused_when_it_runs(world: World) -> None:
    """Nothing shows that its rows are examples: tokens of one contribution could be taken for contributions."""

    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)
            self.on = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) if self.on else x

    extra = Sometimes()
    model = Net(extra)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, progress=False) as private:
        _, _, steps = private.prepare(model, optimizer, collate, layers="layers")
        with pytest.raises(UnsupportedModule, match=r"UNVERIFIED_MODULE.*extra\.inner"):
            for rows in next(iter(steps)):
                extra.on = not private.prepared.probe.active
                private.backward(one_per_example(model, rows), rows)


def test_a_graph_kept_from_an_earlier_microbatch_is_refused(world: World) -> None:
    kept: list[torch.Tensor] = []

    def with_past(model, rows):
        losses = one_per_example(model, rows)
        total = losses + (kept[-1].sum() if kept else 0.0)
        kept.append(losses)
        return total

    with pytest.raises(CoupledModel, match=r"STALE_GRAPH|REPLACEMENT|CROSS_SAMPLE"):
        first_step(world, Net(), with_past)


def test_parameters_given_back_to_autograd_are_refused_before_a_gradient_forms(world: World) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, progress=False) as private:
        _, _, steps = private.prepare(model, optimizer, collate, layers="layers")
        with pytest.raises(NotPrivateUse, match="REQUIRES_GRAD"):
            for rows in next(iter(steps)):
                if not private.prepared.probe.active:
                    model.requires_grad_(True)
                private.backward(one_per_example(model, rows), rows)
        assert all(p.grad is None for p in model.parameters())


def test_one_unreadable_contribution_is_named_before_the_ledger_opens(tmp_path) -> None:
    """Found later it would stop the run at the step that drew it, and so tell who was drawn."""
    world = make_world(
        tmp_path, per_class=3, steps=2, rate="1", record=lambda s: {"label": 0} if s == 1001 else token_record(s)
    )
    with pytest.raises(ConfigError, match=r"COLLATE.*internal\.jsonl' at byte"):
        first_step(world, Net())
    assert not world.ledger.exists()


def test_trainer_families_pass_the_probes(tmp_path) -> None:
    for family in ("bert", "gpt2_tied", "llama", "bert_lora", "gpt2_lora"):
        trainer = Trainer(make_world(tmp_path / family, per_class=2, steps=1, rate="1"), family)
        trainer.run()
        trainer.close()
