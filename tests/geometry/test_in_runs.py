"""A run under `geometry = "lora_tangent"`: what is clipped and released, by the door that users take."""

import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

from safetensors.torch import load_file  # noqa: E402

from attest.keys import public_bytes  # noqa: E402
from dptrain.clipping.resolver import UnsupportedPolicy  # noqa: E402
from dptrain.errors import ConfigError, NotPrivateUse, UnsupportedModule  # noqa: E402
from dptrain.geometry import TangentAdam, TangentSGD  # noqa: E402
from dptrain.geometry.pairs import find_pairs  # noqa: E402
from dptrain.record.weights import digest_of  # noqa: E402
from dptrain.sandbox.isolation import IsolationNotice  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from tests.geometry.runs import (  # noqa: E402
    LAYERS,
    LINE,
    adam,
    contribution,
    first,
    net,
    norm,
    released,
    run_of,
    sgd,
    signal,
    tangent_world,
)
from tests.guarantees.peers import NORMALIZER, Net, Run, giant, nothing, per_example, small_world  # noqa: E402
from tests.worlds.training import make_world, token_record  # noqa: E402

RANK_LOST = {"half": lambda factor: factor[:, :1].expand_as(factor), "zero": torch.zeros_like}


def expected(clip: float, scale: float, seeds: Any) -> dict[str, torch.Tensor]:
    """Returns what contributions add after their one clip, from dense matrices."""
    model, total = net(), {}
    for seed in seeds:
        record = token_record(seed)
        loss = torch.nn.functional.cross_entropy(model(torch.tensor([record["ids"]])), torch.tensor([record["label"]]))
        own = contribution(model, scale * loss)
        factor = min(1.0, clip / norm(own))
        for name, value in own.items():
            total[name] = total.get(name, 0.0) + factor * value
    return total


@pytest.mark.one_in(3)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3], ids=["below the clip norm", "near it", "above it"])
def test_the_sum_is_that_of_projected_contributions_clipped_once_over_pairs_and_the_rest(tmp_path: Path, scale: float) -> None:
    world = tangent_world(tmp_path / "world", clip="0.5")
    found = signal(world, net, lambda model, rows: per_example(model, rows) * scale)
    truth = expected(0.5, scale, range(4))
    assert found.keys() == truth.keys() and len(found) == 4
    for name, value in truth.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-7)


def test_microbatches_of_any_size_release_the_same(tmp_path: Path) -> None:
    world = tangent_world(tmp_path / "world", clip="0.5")
    whole = signal(world, net)
    for size in (1, 3):
        for name, value in signal(world, net, microbatch=size).items():
            torch.testing.assert_close(value, whole[name], rtol=1e-6, atol=1e-8)


def test_one_contribution_moves_a_release_by_its_clip_norm_at_most_whatever_its_gradient(tmp_path: Path) -> None:
    world = tangent_world(tmp_path / "world", clip="0.5")
    moved = norm(signal(world, net, giant(2)))
    assert 0.49 < moved <= 0.5


@pytest.mark.parametrize("gauge", [0.01, 100.0])
def test_a_gauge_of_the_factors_changes_nothing_that_is_released(tmp_path: Path, gauge: float) -> None:
    """With the clip in force; the noise of both runs is one draw in frames that a gauge by a number leaves as they are."""
    world = tangent_world(tmp_path / "world", clip="0.5")

    def turned() -> Any:
        model = net()
        for pair in find_pairs(model):
            pair.A.data *= gauge
            pair.Bt.data /= gauge
        return model

    plain, other = first(world, net()), first(world, turned())
    for name, value in plain.items():
        torch.testing.assert_close(other[name], value, rtol=1e-7, atol=1e-9)


def test_the_gradient_of_a_pair_stays_empty_and_its_direction_is_tangent(tmp_path: Path) -> None:
    world = tangent_world(tmp_path / "world")
    with run_of(world, net()) as run:
        grads = run.gradients(next(iter(run.steps)))
        assert [name for name in grads if "lora" in name] == [] and len(grads) == 1
        for pair, direction in zip(run.optimizer.pairs, run.optimizer.released, strict=True):
            assert pair.A.grad is None and pair.Bt.grad is None
            assert float((direction.V.mT @ direction.Y).abs().max()) < 1e-12
            assert direction.X.shape == pair.A.shape and direction.Y.shape == pair.Bt.mT.shape


def test_noise_has_the_energy_of_the_tangent_space(tmp_path: Path) -> None:
    """One step of noise alone over many pairs would do; here over steps, whose noise is drawn anew."""
    world = tangent_world(tmp_path / "world", steps=40, sigma="2.0")
    energy, pairs = 0.0, 0
    with run_of(world, net(), optimizer=lambda m: TangentSGD(m, others=torch.optim.SGD, lr=0.0)) as run:
        for step in run.steps:
            run.gradients(step, nothing)
            energy += sum(float(direction.norm_sq()) for direction in run.optimizer.released) * NORMALIZER**2
            pairs += len(run.optimizer.released)
            run.optimizer.step()
    dim, expected_energy = 2 * (8 + 8 - 2), energy / pairs / 4.0
    assert expected_energy == pytest.approx(dim, rel=4 * (2 / (dim * pairs)) ** 0.5)


@pytest.mark.one_in(99)
@pytest.mark.parametrize("optimizer", [adam, sgd])
def test_a_swapped_payload_moves_no_block_outside_its_class_in_a_step(tmp_path: Path, optimizer: Any) -> None:
    """Statement A under an optimizer that keeps means, over pairs and over what others move."""
    classes = (
        '\n[[class]]\nname = "low"\nclip_norm = 1.0\nnoise_multiplier = 1.0\nsampling_rate = 1\n'
        "depth = {{ from = 0.0, to = 1.0 }}"
        '\n[[class]]\nname = "top"\nclip_norm = 1.0\nnoise_multiplier = 1.0\nsampling_rate = 1\n'
        "depth = {{ from = 0.67, to = 1.0 }}\n"
    )
    found = []
    world = make_world(tmp_path / "w", classes=classes, per_class=3, steps=2, rate="1", now=1_800_000_000, policy_extra=LINE)
    for shift in (0.0, 1.0):
        with run_of(world, net(), optimizer=optimizer) as run:
            step = next(iter(run.steps))
            run.gradients(step, lambda m, rows, s=shift: per_example(m, rows) * (1 + s * (rows["seeds"] >= 1000)))
            run.optimizer.step()
            assert run.private.prepared.isolation.held
        found.append({name: p.detach().clone() for name, p in run.model.named_parameters()})
    below = [name for name in found[0] if "layers.0" in name or "layers.1" in name]
    assert below and all(torch.equal(found[0][name], found[1][name]) for name in below)
    assert not torch.equal(*(one["base_model.model.layers.2.lora_A.default.weight"] for one in found))


@pytest.mark.one_in(7)
@pytest.mark.parametrize("lost", ["half", "zero"])
@pytest.mark.parametrize("side", ["A", "Bt"])
def test_a_pair_that_has_lost_rank_takes_a_plain_step_and_one_with_a_factor_of_zero_does_not(
    tmp_path: Path, lost: str, side: str
) -> None:
    world = tangent_world(tmp_path / "world")
    model = net()
    pair = find_pairs(model)[1]
    factor = getattr(pair, side)
    turned = factor.data if side == "A" else factor.data.mT
    turned.copy_(RANK_LOST[lost](turned.clone()))
    with run_of(world, model) as run:
        run.gradients(next(iter(run.steps)))
        moved = [direction is not None for direction in run.optimizer.released]
        assert moved == [True, lost == "zero", True]
        assert (pair.A.grad is None) is (lost == "zero")
        before = pair.A.detach().clone()
        run.optimizer.step()
        assert not torch.equal(pair.A, before)


def test_a_run_of_public_classes_alone_takes_plain_steps(tmp_path: Path) -> None:
    classes = (
        '\n[[class]]\nname = "open"\npublic = true\nsampling_rate = {q}\ndepth = {{ from = 0.0, to = 0.5 }}\n'
        '\n[[class]]\nname = "shut"\nclip_norm = 1.0\nnoise_multiplier = 1.0\nsampling_rate = {q}\n'
        "depth = {{ from = 0.67, to = 1.0 }}\n"
    )
    world = make_world(tmp_path / "w", classes=classes, per_class=3, steps=1, rate="1", now=1_800_000_000, policy_extra=LINE)
    with run_of(world, net()) as run:
        run.gradients(next(iter(run.steps)))
        assert run.optimizer.released[0] is None and run.optimizer.released[2] is not None
        assert run.optimizer.pairs[0].A.grad is not None and run.optimizer.pairs[2].A.grad is None


class TestRefusals:
    @pytest.mark.parametrize("kind", ["SGD", "AdamW", "Adafactor"])
    def test_an_optimizer_of_torch_alone(self, tmp_path: Path, kind: str) -> None:
        world = tangent_world(tmp_path / "world")
        with pytest.raises(NotPrivateUse, match=fr"GEOMETRY_OPTIMIZER.*others=torch.optim.{kind}"):
            run_of(world, net(), optimizer=lambda m: getattr(torch.optim, kind)(m.parameters(), lr=0.1))

    def test_a_tangent_optimizer_without_geometry(self, tmp_path: Path) -> None:
        world = small_world(tmp_path / "world")
        with pytest.raises(ConfigError, match=r'GEOMETRY_OPTIMIZER.*geometry = "lora_tangent"'):
            run_of(world, net())

    def test_a_tangent_optimizer_of_another_model(self, tmp_path: Path) -> None:
        world = tangent_world(tmp_path / "world")
        with pytest.raises(ConfigError, match=r"GEOMETRY_OPTIMIZER|OPTIMIZER_"):
            Run(world, net(), layers=LAYERS, optimizer=adam(net()))

    def test_a_model_without_pairs(self) -> None:
        with pytest.raises(ConfigError, match="GEOMETRY: found no LoRA pair"):
            TangentAdam(torch.nn.Linear(3, 3))

    def test_factors_in_half_precision(self) -> None:
        with pytest.raises(UnsupportedModule, match=r"GEOMETRY_PAIR.*bfloat16"):
            adam(net().to(torch.bfloat16))

    def test_a_frozen_partner(self, tmp_path: Path) -> None:
        model = net()
        find_pairs(model)[0].Bt.requires_grad_(False)
        with pytest.raises(UnsupportedPolicy, match=r"GEOMETRY.*has no partner"):
            run_of(tangent_world(tmp_path / "world"), model)

    def test_an_option_out_of_range(self) -> None:
        with pytest.raises(ConfigError, match="GEOMETRY"):
            TangentAdam(net(), betas=(1.0, 0.9))
        with pytest.raises(ConfigError, match="GEOMETRY"):
            TangentSGD(net(), lr=float("nan"))

    def test_a_direction_that_was_replaced(self, tmp_path: Path) -> None:
        with run_of(tangent_world(tmp_path / "world"), net()) as run:
            run.gradients(next(iter(run.steps)))
            run.optimizer.take(0, run.optimizer.released[1])
            with pytest.raises(NotPrivateUse, match="GRADIENT_REPLACED"):
                run.optimizer.step()

    def test_a_pair_of_factors_in_the_place_of_a_direction(self, tmp_path: Path) -> None:
        optimizer = adam(net())
        with pytest.raises(NotPrivateUse, match=r"GEOMETRY_DIRECTION: found a tuple"):
            optimizer.take(0, (torch.zeros(8, 2), torch.zeros(8, 2)))

    def test_a_gradient_put_on_a_factor(self, tmp_path: Path) -> None:
        with run_of(tangent_world(tmp_path / "world"), net()) as run:
            run.gradients(next(iter(run.steps)))
            run.optimizer.pairs[0].A.grad = torch.ones_like(run.optimizer.pairs[0].A)
            with pytest.raises(NotPrivateUse, match="FOREIGN_GRADIENT"):
                run.optimizer.step()

    def test_zero_grad_before_the_step(self, tmp_path: Path) -> None:
        with run_of(tangent_world(tmp_path / "world"), net()) as run:
            run.gradients(next(iter(run.steps)))
            run.optimizer.zero_grad()
            with pytest.raises(NotPrivateUse, match="GRADIENT_REPLACED"):
                run.optimizer.step()


def test_a_direction_that_was_changed_weakens_statement_a(tmp_path: Path) -> None:
    with run_of(tangent_world(tmp_path / "world"), net()) as run:
        run.gradients(next(iter(run.steps)))
        run.optimizer.released[0].X.mul_(0.5)
        with pytest.warns(IsolationNotice, match="gradients were changed"):
            run.optimizer.step()


def test_blocks_are_clipped_over_directions_and_the_noise_that_the_optimizer_knows_with_them(tmp_path: Path) -> None:
    with run_of(tangent_world(tmp_path / "world"), net()) as run:
        grads = released(run, run.gradients(next(iter(run.steps))))
        before = list(run.optimizer.stds)
        norms = run.private.clip_blocks_(1e-3)
        assert sum(value**2 for value in norms.values()) ** 0.5 == pytest.approx(norm(grads) / NORMALIZER)
        after = released(run, {n: p.grad.double() * NORMALIZER for n, p in run.model.named_parameters() if p.grad is not None})
        assert norm(after) == pytest.approx(1e-3 * NORMALIZER * len(norms) ** 0.5)
        for place, pair in enumerate(run.optimizer.pairs):
            ratio = float(after[pair.module].norm() / grads[pair.module].norm())
            assert run.optimizer.stds[place] == pytest.approx(before[place] * ratio)
        run.optimizer.step()


WITH = {
    "budgets": "[noise.budgets]\nembeddings = 1\nlayers = 2\nhead = 1\n",
    "phases": "[[noise.phase]]\nfrom_step = 2\nscale = 1.5\n",
    "per_sample": 'disclosure = "occurrences_public"\n[noise]\ninjection = "per_sample"\n',
    "per_microbatch": '[noise]\ninjection = "per_microbatch"\nmicrobatches = 3\n',
    "public occurrences": 'disclosure = "occurrences_public"\n',
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", WITH)
def test_what_a_policy_says_besides_goes_with_it_and_its_record_is_full(tmp_path: Path, name: str) -> None:
    world = tangent_world(tmp_path / "world", policy=LINE + WITH[name], clip="0.5", steps=3, now=int(time.time()))
    with run_of(world, net(), key=None) as run:
        for _ in run.releases():
            pass
        export = run.private.export(tmp_path / "export")
        key = run.private.opened.recorder.ledger.header.log_vkey
    report = verify_export(export, [key], owner_key=public_bytes(world.owner_key))
    assert report.verdict == "FULL", report.findings


def test_a_stricter_bound_of_one_contributor_is_kept_with_budgets_of_blocks(tmp_path: Path) -> None:
    """The signal of a contribution that signed less than its class, over pairs and the rest, in the presence of budgets."""
    policy = LINE + WITH["budgets"]
    world = tangent_world(tmp_path / "world", policy=policy, signed_bounds=lambda name: {"clip_norm_micro": "0.25"})
    assert 0.0 < norm(signal(world, net, giant(2))) <= 0.25


def test_a_run_goes_on_behind_its_checkpoint_with_means_and_frames(tmp_path: Path) -> None:
    world = tangent_world(tmp_path / "world", steps=4, window_steps=1)
    with run_of(world, net()) as run:
        for step in run.steps:
            run.gradients(step)
            run.optimizer.step()
            if step.number == 2:
                run.private.save()
                kept = {name: value.clone() for name, value in run.model.state_dict().items()}
                means = [run.optimizer.state[pair.A]["X"].clone() for pair in run.optimizer.pairs]
                break
    model = net()
    with run_of(world, model, resume=True) as run:
        assert run.private.prepared.start_step == 2
        assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
        for pair, mean in zip(run.optimizer.pairs, means, strict=True):
            assert torch.equal(run.optimizer.state[pair.A]["X"], mean) and run.optimizer.state[pair.A]["step"] == 2
        steps = list(run.releases())
        assert len(steps) == 2 and run.private.opened.recorder.ledger.finished


def test_weights_are_tied_to_the_ledger_and_plain_peft_reads_them(tmp_path: Path) -> None:
    """The ledger's record of the factors is of the bytes that peft saves; without dptrain a model computes the same of them."""
    world = tangent_world(tmp_path / "world", steps=2)
    model = net(dtype=torch.float32)
    with run_of(world, model, key=None) as run:
        for _ in run.releases():
            pass
        records = {name: one for one in run.private.prepared.weights.records() for name in one.names}
    model.save_pretrained(tmp_path / "adapter")
    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    factors = {name: value for name, value in saved.items() if "lora_" in name}
    assert len(factors) == 6
    for name, value in factors.items():
        assert records[name].sha256 == digest_of(value)
    plain = peft.PeftModel.from_pretrained(Net().float(), tmp_path / "adapter")
    base = {name: value for name, value in model.get_base_model().state_dict().items() if "lora_" not in name}
    plain.get_base_model().load_state_dict(base, strict=False)
    ids = torch.tensor([token_record(seed)["ids"] for seed in range(4)])
    assert torch.equal(model.eval()(ids), plain.eval()(ids))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_compiled_form_releases_the_same_coordinates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph as it was traced; what maps gradients to coordinates stands behind both forms."""
    monkeypatch.setattr("torch._inductor.compile", lambda graph, values: graph)
    world = tangent_world(tmp_path / "world", clip="0.5")
    plain = first(world, net())
    with run_of(world, net(), microbatch=4) as run:
        loss = run.private.loss(per_example, compiled=True)
        compiled = released(run, run.gradients(next(iter(run.steps)), loss))
        assert loss.graphs == 1
    for name, value in plain.items():
        torch.testing.assert_close(compiled[name], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_contribution_that_is_spread_over_microbatches_is_charted_and_clipped_once(tmp_path: Path, rows: int) -> None:
    def several(seed: int) -> list[dict]:
        return [token_record(seed + 3 * j) | {"seed": seed} for j in range(4)]

    policy = LINE + "[gate]\nmax_examples = 4\n"
    world = tangent_world(tmp_path / "world", policy=policy, record=several, clip="0.5")
    whole, split = signal(world, net), signal(world, net, microbatch_rows=rows)
    for name, value in whole.items():
        torch.testing.assert_close(split[name], value, rtol=1e-6, atol=1e-8)
    assert norm(signal(world, net, giant(1), microbatch_rows=rows)) <= 0.5
