"""Faults by which peers lost their privacy in silence (Opacus 1.6, fastDP 2.0, private-transformers, dp-transformers).

Each test builds the situation in which the peer was wrong. Where the peer's fault can be built into this engine, a control
does so and sees the same check fail. Which test stands for which fault is listed in test_peer_bugs.py.
"""

import math
import random
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from accelerate import Accelerator  # noqa: E402
from accelerate.utils import set_seed  # noqa: E402
from torch import nn  # noqa: E402

from attest.errors import PolicyRefused  # noqa: E402
from attest.policy import Policy  # noqa: E402
from dptrain import Clock, PrivateTraining  # noqa: E402
from dptrain.clipping import fast as sums  # noqa: E402
from dptrain.data.sampling import PoissonSampler  # noqa: E402
from dptrain.engine import draw as drawing  # noqa: E402
from dptrain.engine import prepared  # noqa: E402
from dptrain.engine import prepared as engine  # noqa: E402
from dptrain.engine.release import PrivateGradients  # noqa: E402
from dptrain.errors import CoupledModel, LossShape, ResumeRefused  # noqa: E402
from dptrain.gradients import forms, rules  # noqa: E402
from dptrain.noise import KeyStream, LatticeGaussian  # noqa: E402
from dptrain.routing import Router  # noqa: E402
from tests.guarantees.peers import (  # noqa: E402
    KEY,
    Net,
    Run,
    first_release,
    giant,
    must_fail,
    net,
    norm,
    nothing,
    one_class,
    per_contribution,
    per_example,
    signal,
    small_world,
    whole_schedule,
)
from tests.reference.families import FAMILIES  # noqa: E402
from tests.worlds.bounds import bounds_of  # noqa: E402

# --- one owner of the bound ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", ["0.01", "1.0"])
@pytest.mark.one_in(99)
def test_clip_and_noise_follow_one_bound(tmp_path, monkeypatch, clip: str) -> None:
    """Opacus ghost with a clip schedule: noise for C = 0.01 over gradients clipped to 1, 100 times too little."""
    world = small_world(tmp_path, clip=clip)
    bound = float(clip)

    def check() -> None:
        assert 0.99 * bound <= norm(signal(world, net, giant(1))) <= bound * (1 + 1e-9)
        noise = torch.cat([t.flatten() for t in first_release(world, net(), nothing).values()])
        assert abs(float(noise.std()) / bound - 1) < 5 / math.sqrt(2 * noise.numel())

    check()
    # The whitened clip alone would still hold the bound: a fault must get past both clips.

    def tenfold(rows: list, blocks: int):
        return bounds_of([(10 * own.clip_norm, own.noise_multiplier / 10, profile) for own, profile in rows], blocks)

    monkeypatch.setattr(drawing, "bounds_of", tenfold)
    must_fail(check)


# --- token-mean losses and padding -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["mean", "spread"])
def test_the_token_mean_loss_of_hugging_face_is_refused(tmp_path, form: str) -> None:
    """Opacus, fastDP: with `outputs.loss` the padding of sample 1 moved the gradient of sample 0 by 1.77.

    As it is, the loss is one number; spread over the rows, the probes see through it. A count of tokens alone is refused in
    test_coupling.py, test_a_mean_over_the_tokens_of_the_batch_is_refused.
    """
    torch.manual_seed(0)
    model = FAMILIES["gpt2_tied"]().model

    def losses(model: nn.Module, rows) -> torch.Tensor:
        padded = rows["ids"].masked_fill(rows["ids"] % 5 == 0, -100)
        loss = model(input_ids=rows["ids"], labels=padded).loss
        return loss if form == "mean" else loss.expand(len(rows["ids"]))

    refused = LossShape if form == "mean" else CoupledModel
    with pytest.raises(refused, match=r"LOSS_SHAPE|CROSS_SAMPLE_GRADIENT|REPLACEMENT"):
        first_release(small_world(tmp_path), model, losses, layers=None)


def test_num_items_in_batch_of_the_trainer_is_refused(tmp_path) -> None:
    """transformers 5 divides by the tokens of the whole batch (`num_items_in_batch`): one loss per row, one count for all."""

    def losses(model: nn.Module, rows) -> torch.Tensor:
        return per_example(model, rows) / (rows["ids"] % 5 != 0).sum()

    with pytest.raises(CoupledModel, match="REPLACEMENT"):
        first_release(small_world(tmp_path), net(), losses)


# --- tensors used more than once -------------------------------------------------------------------------------------


def single_norm_by_autograd(model: nn.Module, loss) -> float:
    grads = torch.autograd.grad(loss().sum(), list(model.parameters()), allow_unused=True)
    return norm({str(i): g for i, g in enumerate(grads) if g is not None})


@pytest.mark.parametrize("way", ["materialised", "cross term"])
def test_norm_of_a_tied_head_counts_both_uses(monkeypatch, way: str) -> None:
    """fastDP: the second use overwrote the norm of the first, so a single clipped gradient had 1.140 times its bound."""
    torch.manual_seed(0)
    family = FAMILIES["gpt2_tied"]()
    batch = family.batch(1, 3)
    if way == "cross term":
        monkeypatch.setattr(forms, "_MATERIALIZE_ELEMENTS", 0)

    def check() -> None:
        norms, totals = per_contribution(family.model, lambda: family.losses(family.model, batch))
        exact = single_norm_by_autograd(family.model, lambda: family.losses(family.model, batch))
        # Gram norms carry a bound on their rounding: never below, and above by no more than that.
        assert exact * (1 - 1e-12) <= norms[0] <= exact * (1 + 1e-6)
        assert norm(totals) == pytest.approx(exact, rel=1e-10)

    check()
    monkeypatch.setattr(sums, "merge", lambda pieces, shape: forms.merge(pieces[-1:], shape))
    must_fail(check)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(torch.tanh(self.inner(x))))


def test_a_module_called_twice_has_the_gradient_of_both_calls(tmp_path, monkeypatch) -> None:
    """fastDP: the second call overwrote the activations of the first; the gradient was off by 94 % and no error rose."""
    model = net(Twice)
    batch = {"ids": torch.arange(7).view(1, 7), "labels": torch.tensor([1])}

    def check() -> None:
        norms, _ = per_contribution(model, lambda: per_example(model, batch), "layers")
        assert norms[0] == pytest.approx(single_norm_by_autograd(model, lambda: per_example(model, batch)), rel=1e-9)

    check()
    assert norm(signal(small_world(tmp_path), lambda: net(Twice), giant(1))) <= 1.0 + 1e-9
    monkeypatch.setattr(sums, "merge", lambda pieces, shape: forms.merge(pieces[-1:], shape))
    must_fail(check)


# --- noise and sampling ----------------------------------------------------------------------------------------------


def accelerator(**settings) -> SimpleNamespace:
    plain = {"num_processes": 1, "gradient_accumulation_steps": 1, "scaler": None, "mixed_precision": "no"}
    return SimpleNamespace(device=torch.device("cpu"), distributed_type="NO", **(plain | settings))


def test_noise_is_not_divided_among_processes(tmp_path) -> None:
    """fastDP: `torch_seed_is_fixed` set wrongly divides the noise by N in place of sqrt(N). No flag here.

    Of several processes each coordinate has one owner, who adds its noise whole: tests/distributed/test_noise_over_ranks.py.
    """
    world = small_world(tmp_path)
    torch.manual_seed(7)
    noise = torch.cat([t.flatten() for t in first_release(world, net(), nothing).values()])
    assert abs(float(noise.std()) - 1) < 5 / math.sqrt(2 * noise.numel())


def seeded_keys(monkeypatch) -> None:
    """The peers' source of randomness: torch's global generator, which set_seed fixes. The fresh name of a run, which is part
    of the address of every draw, would still keep two runs apart, so it goes too."""
    monkeypatch.setattr(prepared, "os", SimpleNamespace(urandom=bytes))
    monkeypatch.setattr(
        KeyStream, "fresh_master", staticmethod(lambda: bytes(torch.randint(0, 256, (32,), dtype=torch.uint8).tolist()))
    )


@pytest.mark.slow
def test_sampling_does_not_follow_set_seed(tmp_path, monkeypatch) -> None:
    """Opacus under accelerate's set_seed: both ranks drew [15, 10, 17, 11]; inclusion of records was wholly correlated."""
    world = small_world(tmp_path, per_class=40, rate="0.5", steps=2)

    def draws(seed: int, key: bytes | None) -> list[list[int]]:
        set_seed(seed)
        with Run(world, net(), key=key) as run:
            for _ in run.releases(nothing):
                set_seed(seed)
            return run.drawn

    def check() -> None:
        assert draws(42, None) != draws(42, None)

    check()  # equal by chance once in 2^80
    assert draws(1, KEY) == draws(2, KEY), "only the keyed stream decides"
    seeded_keys(monkeypatch)
    must_fail(check)


def test_noise_does_not_follow_set_seed(tmp_path, monkeypatch) -> None:
    """Opacus, fastDP, PT: noise from torch's generator, so set_seed(42) on resume gives the same noise once more.

    The resumed run itself is in test_null_batch.py, test_a_resumed_run_draws_fresh_noise_and_pays_again.
    """
    world = small_world(tmp_path)

    def noise() -> torch.Tensor:
        set_seed(42)
        with Run(world, net(), key=None) as run:
            step = next(iter(run.steps))
            before = torch.get_rng_state()
            for rows in step:
                losses = per_example if run.private.prepared.probe.active else nothing
                run.private.backward(losses(run.model, rows), rows)
            released = torch.cat([p.grad.flatten() for p in run.model.parameters()])
            assert torch.equal(before, torch.get_rng_state()), "a release takes nothing from torch's generator"
            return released

    def check() -> None:
        first, second = noise(), noise()
        assert abs(float((first * second).mean()) / float(first.square().mean())) < 5 / math.sqrt(len(first))

    check()
    with monkeypatch.context() as patched:
        patched.setattr(
            LatticeGaussian,
            "noise",
            lambda self, step, lane, start, count, draws: (torch.randn(count, dtype=torch.float64) * 2.0**32).round_().numpy(),
        )
        must_fail(check)
    seeded_keys(monkeypatch)
    must_fail(check)


def test_accounting_for_poisson_comes_with_poisson_draws(tmp_path, monkeypatch) -> None:
    """fastDP, PT, DPT account for Poisson and train on shuffled batches of one size."""
    n, steps = 40, 12
    world = small_world(tmp_path, per_class=n, rate="0.5", steps=steps)

    def check() -> None:
        with Run(world, net()) as run:
            for _ in run.releases(nothing):
                pass
            sizes = np.array([len(seeds) for seeds in run.drawn])
            times = np.bincount(np.concatenate([np.array(s, dtype=int) for s in run.drawn]), minlength=n)
            assert {rule.sampling_rate for rule in run.private.policy.classes} == {0.5}
        assert 0.3 < sizes.var() / (n / 4) < 2.5, "the size of a batch is binomial"
        assert 0.3 < times.var() / (steps / 4) < 2.5, "so is how often a contribution is drawn"
        assert all(len(set(seeds)) == len(seeds) for seeds in run.drawn)

    check()

    def shuffled(self: PoissonSampler, step: int) -> np.ndarray:
        order = np.random.default_rng(step // 2).permutation(n)
        return np.sort(order[: n // 2] if step % 2 else order[n // 2 :])

    monkeypatch.setattr(PoissonSampler, "draw", shuffled)
    must_fail(check)


def test_the_normalizer_is_a_public_constant(tmp_path, monkeypatch) -> None:
    """Opacus #571, #819: neighbouring data of 63 and 64 records gave expected batch sizes of 7 and 8, so noise told N."""
    worlds = [small_world(tmp_path / str(n), per_class=n) for n in (7, 8)]

    def check() -> None:
        first, second = (first_release(world, net(), nothing) for world in worlds)
        assert all(torch.equal(first[name], second[name]) for name in first)

    check()
    with pytest.raises(PolicyRefused, match="normalizer"):
        Policy.from_toml('corpus = "c"\ndelta = 1e-5\nsteps = 2\n' + one_class().format(q="0.5"))
    sizes = iter((7, 8))
    monkeypatch.setattr(
        engine,
        "PrivateGradients",
        lambda model, optimizer, router, _, *rest: PrivateGradients(model, optimizer, router, next(sizes), *rest),
    )
    must_fail(check)


# --- low precision ---------------------------------------------------------------------------------------------------


def influences(model: nn.Module, batch: dict, losses, clip: float, autocast: bool) -> list[float]:
    """Norm of what each contribution alone adds to the sums."""
    schedule = whole_schedule(model)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    made = Router(model, schedule)
    made.attach()
    n = len(batch["labels"])
    bounds = bounds_of([(clip, 1e-3, (0,))] * n, 1)
    found = []
    for i in range(n):
        made.arm(n, 1, bounds.permitted_NG)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            rows = losses(model, batch).float() * 100.0
        made.backward(rows, torch.ones(n, dtype=torch.float64))
        coefficients = made.sums.coefficients(made.sums.norms_sq(made.pieces, made.contributions), bounds)
        alone = torch.zeros_like(coefficients)
        alone[i] = coefficients[i]
        made.sums.accumulate(made.pieces, alone)
        made.disarm()
        found.append(norm(dict(enumerate(made.sums.take()))))
    made.detach()
    return found


@pytest.mark.one_in(2)
@pytest.mark.parametrize("form", ["parameters", "autocast"])
@pytest.mark.slow
def test_bfloat16_never_exceeds_the_bound(monkeypatch, form: str) -> None:
    """Opacus: with bf16 parameters a clipped gradient had 1.0062 (hooks) and 1.0054 (ghost) times its bound."""
    dtype = torch.bfloat16 if form == "parameters" else torch.float32

    def check() -> None:
        largest = []
        for seed in range(8):
            torch.manual_seed(seed)
            family = FAMILIES["bert"]()
            model = family.model.to(dtype)
            largest += influences(model, family.batch(4, seed), family.losses, 1.0, form == "autocast")
        assert max(largest) <= 1.0
        assert min(largest) > 0.99, "the bound must bind"

    check()
    low = random.Random(0)

    def rounded(self: sums.FastSums, norms, bounds, exact=sums.FastSums.coefficients):
        """Coefficients from norms that were formed in bf16: off by up to one part in 256."""
        return exact(self, norms * (1 + low.uniform(-1, 1) / 128), bounds)

    monkeypatch.setattr(sums.FastSums, "coefficients", rounded)
    must_fail(check)


def test_norms_and_sums_are_formed_in_full_precision(monkeypatch) -> None:
    """The same fault, where it starts: a captured bf16 gradient is promoted before any norm, whatever autocast says."""
    torch.manual_seed(0)
    family = FAMILIES["bert"]()
    model = family.model.bfloat16()
    seen: set[torch.dtype] = set()

    def spy(merged, exact=sums.norms_sq):
        values = [value for pieces in merged for piece in pieces for value in vars(piece).values()]
        seen.update(v.dtype for v in values if isinstance(v, torch.Tensor) and v.is_floating_point())
        return exact(merged)

    monkeypatch.setattr(sums, "norms_sq", spy)
    _, totals = per_contribution(model, lambda: family.losses(model, family.batch(3, 0)).float())
    assert seen == {torch.float32}
    assert {t.dtype for t in totals.values()} == {torch.float64}
    assert rules.promote(torch.ones(1, dtype=torch.float16)).dtype == torch.float32


# --- what was spent --------------------------------------------------------------------------------------------------


def test_the_spend_survives_save_state_and_load_state(tmp_path) -> None:
    """Opacus under accelerate: save_state and load_state into a fresh engine, epsilon 3.793 becomes 0.000."""
    world = small_world(tmp_path, steps=4)
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model, optimizer = accelerator.prepare(Net(), torch.optim.SGD(Net().parameters(), lr=0.1))
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))

    def spent(run: Run) -> float:
        return run.private.opened.recorder.ledger.epsilon(run.private.prepared.pool.slots[0].descriptor_hash)

    with Run(world, model, optimizer=optimizer, accelerator=accelerator, key=None) as run:
        releases = run.releases()
        next(releases)
        next(releases)
        next(releases)
        accelerator.save_state(str(tmp_path / "state"))
        before = spent(run)
    assert before > 1
    accelerator.load_state(str(tmp_path / "state"))
    with pytest.raises(ResumeRefused, match="LEDGER_EXISTS"):
        PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, clock=Clock(lambda: world.now), progress=False)
    with Run(world, model, optimizer=optimizer, accelerator=accelerator, key=None, resume=True) as again:
        assert spent(again) >= before
        next(again.releases())
        assert spent(again) > before
    accelerator.free_memory()
