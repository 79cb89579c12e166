"""A run at exactness level `certified`, end to end: trains, resumes, verifies, and releases what the definition says."""

import hashlib
import warnings

import pytest

torch = pytest.importorskip("torch")

from dptrain import PrivateTraining  # noqa: E402
from dptrain.errors import CoupledModel, UnsupportedPolicy  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from ledger.leaves import Resume, decode_leaf  # noqa: E402
from tests.guarantees import peers  # noqa: E402
from tests.reference import naive_certified, streams  # noqa: E402
from tests.reference.families import FAMILIES  # noqa: E402
from tests.reference.zoo import ZOO  # noqa: E402
from tests.worlds.trainer import BertTrainer as Trainer  # noqa: E402
from tests.worlds.trainer import collate_tokens  # noqa: E402
from tests.worlds.training import World, make_world, token_record  # noqa: E402

KEY = b"\x21" * 32
CERTIFIED = 'exactness = "certified"'


@pytest.fixture
def world(tmp_path) -> World:
    return make_world(tmp_path, per_class=3, steps=4, rate="0.7", policy_extra=CERTIFIED, now=None)


def test_a_run_trains_and_its_record_verifies(world: World) -> None:
    trainer = Trainer(world)
    before = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    trainer.run()
    ledger = trainer.private.opened.recorder.ledger
    assert ledger.finished and ledger.state.charged == 4
    assert any(not torch.equal(v, before[k]) for k, v in trainer.model.state_dict().items())
    header = ledger.header
    assert header.policy.exactness == "certified"
    assert header.exactness_note.startswith("certified: ") and "s*2^-21" in header.exactness_note
    assert header.clip_margin == 2.0**-20
    trainer.private.export(world.root / "export")
    trainer.close()
    key = (world.root / "ledger.pub").read_text().split()
    assert verify_export(world.root / "export", key).verdict == "FULL"


def test_a_run_resumes_at_its_level(world: World) -> None:
    first = Trainer(world)
    iterator = iter(first.steps)
    for _ in range(2):
        first.one(next(iterator))
    first.private.save()
    first.close()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        with pytest.warns(UserWarning, match=f"{threads + 1} threads a process, and its checkpoint was written with {threads}"):
            Trainer(world, resume=True).close()
    finally:
        torch.set_num_threads(threads)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*threads a process")
        second = Trainer(world, resume=True)
    assert second.private.prepared.start_step == 2
    second.run()
    assert second.private.opened.recorder.ledger.finished and resumptions(second) == [(2, None)]
    second.close()


def test_a_run_on_other_threads_says_so_in_its_ledger(world: World) -> None:
    first = Trainer(world)
    first.one(next(iter(first.steps)))
    first.private.save()
    first.close()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        with pytest.warns(UserWarning, match="threads a process"):
            second = Trainer(world, resume=True)
        second.one(next(iter(second.steps)))
        second.private.save()
        second.close()
        third = Trainer(world, resume=True)
        third.one(next(iter(third.steps)))
        assert resumptions(third) == [(1, threads + 1), (2, None)]
        third.close()
    finally:
        torch.set_num_threads(threads)


def resumptions(trainer: Trainer) -> list[tuple[int, int | None]]:
    """Returns from which step, and on which other number of threads, a run went on each time."""
    with trainer.private.opened.recorder.ledger.rows() as rows:
        leaves = [decode_leaf(row.body) for row in rows]
    return [(leaf.from_step, leaf.threads) for leaf in leaves if isinstance(leaf, Resume)]


def several(seed: int) -> list[dict]:
    return [token_record(seed + 17 * j) for j in range(1 + seed % 3)]


class Scaled(Trainer):
    """Losses large enough that every clip bound binds."""

    def losses(self, rows):
        return super().losses(rows) * 50.0


def test_every_release_is_the_noise_plus_the_integers_of_the_definition(tmp_path) -> None:
    """In float64, per step: release * B0 - noise, in lattice steps, is the sum of naively certified integers."""
    world = make_world(
        tmp_path, per_class=3, steps=3, rate="0.5", record=several,
        policy_extra=CERTIFIED + "\n[gate]\nmax_examples = 3\n",
    )  # fmt: skip
    trainer = Scaled(world, insecure_test_key=KEY, dtype=torch.float64, microbatch=2)
    private = trainer.private
    named = [(private.prepared.schedule.blocks[g].std, g, t) for g, t in private.prepared.router.tensors]
    bits = private.prepared.router.sums.bits
    sampling = streams.stream_key("sampling", hashlib.sha256(KEY).digest()[:16], 0, KEY)
    noise = streams.stream_key("noise", hashlib.sha256(KEY).digest()[:16], 0, KEY)
    rates = [private.policy.class_rule(s.resolution.class_name).sampling_rate for s in private.prepared.pool.slots]
    compared = 0
    for step in trainer.steps:
        expected = [torch.zeros(t.shape, dtype=torch.int64) for _, _, t in named]
        for slot in streams.draw(sampling, step.number, rates):
            resolution = private.prepared.pool.slots[slot].resolution
            batch = collate_tokens(private.prepared.pool.examples(slot))
            for _, _, t in named:
                t.parameter.requires_grad_(True)
            loss = (trainer.family.losses(trainer.model, batch) * 50.0).mean()
            grads = torch.autograd.grad(loss, [t.parameter for _, _, t in named], allow_unused=True)
            for _, _, t in named:
                t.parameter.requires_grad_(False)
            inside = [j for j, (_, g, _) in enumerate(named) if g in resolution.profile]
            own = [torch.zeros(named[j][2].shape, dtype=torch.float64) if grads[j] is None else grads[j] for j in inside]
            bounds = (resolution.bounds.clip_norm, resolution.bounds.noise_multiplier)
            k = naive_certified.integers_of(own, [named[j][0] for j in inside], *bounds, bits, 2.0**-40)
            for j, integers in zip(inside, k, strict=True):
                expected[j] += integers
            compared += 1
        trainer.one(step)
        for lane, (std, _, t) in enumerate(named):
            drawn = torch.tensor(streams.normals(noise, step.number, lane, t.coordinates), dtype=torch.float64).view(t.shape)
            found = torch.round((t.parameter.grad * private.policy.normalizer - std * drawn) / (std * 2.0**-bits)).long()
            gap = (found - expected[lane]).abs()
            assert int(gap.max()) <= 1 and float((gap > 0).float().mean()) <= 1e-3
    assert compared > 3
    trainer.close()


def test_the_levels_release_the_same_up_to_their_margins(tmp_path) -> None:
    """The same run at both levels, on the same noise: what differs is the clip margin of the fast one."""
    grads = []
    for name, extra in (("fast", ""), ("certified", CERTIFIED)):
        world = make_world(tmp_path / name, per_class=3, steps=1, rate="1", policy_extra=extra, now=1_800_000_000)
        trainer = Scaled(world, insecure_test_key=KEY, clock=lambda: 1_800_000_000)
        trainer.one(next(iter(trainer.steps)))
        grads.append([t.parameter.grad.clone() for _, t in trainer.private.prepared.router.tensors])
        trainer.close()
    for a, b in zip(*grads, strict=True):
        assert float((a - b).norm()) * 4 <= 9 * 1.0 * (2.0**-9 + 1e-4)  # normalizer 4, nine contributions of norm 1 at most
    assert any(not torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "olmoe", "granite_moe", "gpt_oss"])
def test_experts_are_refused_by_name_even_if_frozen(world: World, name: str) -> None:
    """Which tokens meet in an expert follows everybody's content; rounding would carry it into others' integers."""
    model = ZOO[name].build()
    for key, parameter in model.named_parameters():
        parameter.requires_grad_("expert" not in key and "gate" not in key and "router" not in key)
    with (
        PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, progress=False) as private,
        pytest.raises(UnsupportedPolicy, match="EXPERTS_CERTIFIED"),
    ):
        private.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), collate_tokens)


def test_attention_that_skips_masks_is_refused_by_name(world: World) -> None:
    """One contribution's padding would decide which kernel computes the others; eager attention always takes the mask."""
    torch.manual_seed(0)
    model = FAMILIES["llama"]().model
    assert model.config._attn_implementation == "sdpa"
    with (
        PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, progress=False) as private,
        pytest.raises(UnsupportedPolicy, match=r"MASK_SKIPPED.*eager"),
    ):
        private.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), collate_tokens)


def test_attention_that_is_switched_during_a_run_is_refused(world: World) -> None:
    trainer = Trainer(world)
    iterator = iter(trainer.steps)
    trainer.one(next(iterator))
    trainer.model.set_attn_implementation("sdpa")
    with pytest.raises(UnsupportedPolicy, match="MASK_SKIPPED"):
        trainer.one(next(iterator))
    trainer.close()


class Faint(torch.nn.Module):
    """Adds a trace of the batch mean that no gradient shows: below every tolerance, and not nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1e-13 * x.mean(0, keepdim=True).detach()


def test_at_this_level_contributions_must_not_move_each_other_by_one_bit(tmp_path) -> None:
    for level in ("fast", "certified"):
        world = peers.small_world(tmp_path / level, policy_extra=f'exactness = "{level}"')
        with peers.Run(world, peers.net(Faint)) as run:
            if level == "fast":
                run.gradients(next(iter(run.steps)))
                continue
            with pytest.raises(CoupledModel, match=r"ROW_ROUNDING.*last bits.*MKL_CBWR=AUTO"):
                run.gradients(next(iter(run.steps)))


def test_a_pool_beyond_capacity_is_refused_before_there_is_a_ledger(tmp_path, monkeypatch) -> None:
    world = make_world(tmp_path, steps=1, per_class=1, policy_extra='exactness = "certified"')
    with monkeypatch.context() as changed:
        changed.setattr("dptrain.clipping.certified.MOST_CONTRIBUTIONS", 2)
        with pytest.raises(UnsupportedPolicy) as refused:
            Trainer(world)
    assert refused.value.code == "CAPACITY" and not world.ledger.exists()
    Trainer(world).close()
