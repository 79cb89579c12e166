"""Theorem 7: clip norms divided among blocks, the dual clip at the accounted multiplier, and a ledger that can be checked."""

import math
import random
from dataclasses import replace
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from attest.descriptor import SignedBounds  # noqa: E402
from attest.keys import public_bytes  # noqa: E402
from attest.schedule import effective_multiplier, phase_std  # noqa: E402
from attest.schedule.allocation import effective_std  # noqa: E402
from dptrain.clipping.certified import CertifiedSums  # noqa: E402
from dptrain.clipping.fast import FastSums  # noqa: E402
from dptrain.clipping.resolver import Schedule  # noqa: E402
from dptrain.routing import Bounds, Router  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from ledger.errors import LeafRefused  # noqa: E402
from ledger.leaves import decode_leaf, encode_leaf  # noqa: E402
from tests.guarantees.peers import must_fail  # noqa: E402
from tests.reference import naive  # noqa: E402
from tests.reference.compare import random_schedule  # noqa: E402
from tests.reference.families import FAMILIES  # noqa: E402
from tests.worlds.bounds import bounds_of, signed  # noqa: E402
from tests.worlds.trainer import Trainer  # noqa: E402
from tests.worlds.training import CLASSES, PUBLIC, make_world  # noqa: E402

M = 10**6
BUDGETS = "[noise.budgets]\nembeddings = 0.3\nlayers = 1.0\nhead = 2.0"
CONTRIBUTIONS = 12


class Scene:
    """A tiny model whose blocks have random noise and shares, and contributions of its classes with bounds of their own.

    Nothing here solves a programme: the theorem is for any public noise.
    """

    def __init__(self, seed: int, dtype: torch.dtype = torch.float64) -> None:
        self.rng = random.Random(seed)
        torch.manual_seed(seed)
        self.family = FAMILIES["bert"]()
        self.model = self.family.model.to(dtype).train()
        plain = random_schedule(self.model, self.rng, 3)
        blocks = tuple(replace(block, share=self.rng.choice([300_000, M, 2 * M])) for block in plain.blocks)
        if seed % 2:  # gradients are largest in the head: half of the scenes have the least noise where it hurts most
            blocks = (*blocks[:-1], replace(blocks[-1], std=0.1))
        self.schedule = Schedule(plain.stack, blocks, plain.profiles, ())
        self.batch = {k: v.to(dtype) if v.is_floating_point() else v for k, v in self.family.batch(CONTRIBUTIONS, 3).items()}
        profiles = list(plain.profiles.values())
        self.micro = [
            (
                self.rng.randint(M // 20, 2 * M),
                self.rng.choice([1, self.rng.randint(M // 10, 9 * M)]),
                self.rng.choice(profiles),
            )
            for _ in range(CONTRIBUTIONS)
        ]
        self.scales = [10 ** self.rng.uniform(-2, 5) for _ in range(CONTRIBUTIONS)]
        for block in blocks:
            for tensor in block.tensors:
                tensor.parameter.requires_grad_(False)

    def bounds(self, only: list[int]) -> Bounds:
        rows = [(self.micro[i][0] / M, self.micro[i][1] / M, self.micro[i][2]) for i in only]
        return bounds_of(rows, len(self.schedule.blocks))

    def multiplier(self, i: int, stds: list[float] | None = None) -> Fraction:
        """The accountant's double: of S_k, and of the bounds in units of 1e-6."""
        clip, sigma, profile = self.micro[i]
        own = [self.schedule.blocks[g].std if stds is None else stds[g] for g in profile]
        std = effective_std(own, [self.schedule.blocks[g].share for g in profile])
        return Fraction(effective_multiplier(SignedBounds(clip, sigma), [std]))

    def sums(self, router: Router, only: list[int]) -> list[torch.Tensor]:
        """Sums of a step in which these take part."""
        router.attach()
        bounds = self.bounds(only)
        router.arm(len(only), 1, bounds.permitted_NG)
        losses = self.family.losses(self.model, {k: v[torch.tensor(only)] for k, v in self.batch.items()})
        scales = torch.tensor([self.scales[i] for i in only], dtype=torch.float64).to(losses)
        router.backward(losses * scales, torch.ones(len(only), dtype=torch.float64))
        router.fold(bounds)
        router.detach()
        return list(router.sums.take())

    def caps(self, i: int) -> dict[int, float]:
        clip, _, profile = self.micro[i]
        whole = math.sqrt(sum(self.schedule.blocks[g].share ** 2 for g in profile))
        return {g: clip / M * self.schedule.blocks[g].share / whole for g in profile}

    def naive(self, margins: torch.Tensor) -> list[torch.Tensor]:
        """Per-contribution gradients of autograd, clipped by the definition and added up."""

        def losses_of(i: int) -> torch.Tensor:
            return self.family.losses(self.model, {k: v[i : i + 1] for k, v in self.batch.items()}) * self.scales[i]

        owner = [g for g, block in enumerate(self.schedule.blocks) for _ in block.tensors]
        rows = naive.contribution_gradients(self.model, losses_of, self.schedule, CONTRIBUTIONS)
        sums = [torch.zeros_like(value) for value in rows[0]]
        for i, row in enumerate(rows):
            keep, caps, z = 1 - float(margins[i]), self.caps(i), float(self.multiplier(i))
            norm = {g: math.sqrt(sum(float(v.square().sum()) for v, o in zip(row, owner, strict=True) if o == g)) for g in caps}
            own = {g: min(1.0, keep * caps[g] / norm[g]) if norm[g] else 1.0 for g in caps}
            flat = math.sqrt(sum((own[g] * norm[g]) ** 2 for g in caps))
            white = math.sqrt(sum((own[g] * norm[g] / self.schedule.blocks[g].std) ** 2 for g in caps))
            c = min(1.0, keep * self.micro[i][0] / M / flat, keep / (z * white)) if flat else 1.0
            for total, value, g in zip(sums, row, owner, strict=True):
                if g in caps:
                    total += c * own[g] * value
        return sums


def squares(scene: Scene, router: Router, i: int) -> dict[int, float]:
    """Squared norm per block of what contribution i alone adds to the sums."""
    found: dict[int, float] = {}
    for (g, _), total in zip(router.tensors, scene.sums(router, [i]), strict=True):
        found[g] = found.get(g, 0.0) + float(total.double().square().sum())
    return found


@pytest.mark.parametrize("seed", range(4))
def test_sums_equal_the_definition(seed: int) -> None:
    scene = Scene(seed)
    router = Router(scene.model, scene.schedule)
    found = scene.sums(router, list(range(CONTRIBUTIONS)))
    expected = scene.naive(router.sums.margins(scene.bounds(list(range(CONTRIBUTIONS)))))
    scale = max(float(total.norm()) for total in expected)
    assert max(float((a - b).norm()) for a, b in zip(found, expected, strict=True)) <= 1e-10 * scale


def check_bounds(exactness: str, dtype: torch.dtype, *, blocks: bool = True) -> dict[str, int]:
    """Every contribution alone: its clip norms, and its whitened norm at the accounted multiplier. Counts what binds."""
    bound = dict.fromkeys(("block", "whitened", "own sigma"), 0)
    for seed in range(4):
        scene = Scene(seed, dtype)
        router = Router(scene.model, scene.schedule, exactness=exactness, least_multiplier=0.5)
        for i in range(CONTRIBUTIONS):
            found, caps, z = squares(scene, router, i), scene.caps(i), float(scene.multiplier(i))
            assert all(square == 0.0 for g, square in found.items() if g not in caps), "a block outside the band was touched"
            assert sum(found.values()) <= (scene.micro[i][0] / M) ** 2
            white = math.sqrt(sum(square / scene.schedule.blocks[g].std ** 2 for g, square in found.items()))
            assert white * z <= 1.0, "the whitened norm is above what is accounted"
            if blocks:
                assert all(math.sqrt(found[g]) <= caps[g] * (1 + 1e-9) for g in caps)
            bound["block"] += any(math.sqrt(found[g]) > 0.99 * caps[g] for g in caps)
            bound["whitened"] += white * z > 0.99
            bound["own sigma"] += white * z > 0.99 and z == scene.micro[i][1] / M
    return bound


@pytest.mark.one_in(3)
@pytest.mark.parametrize("exactness", ["fast", "certified"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_one_contribution_keeps_its_norms_and_the_multiplier_that_is_accounted(exactness: str, dtype: torch.dtype) -> None:
    bound = check_bounds(exactness, dtype)
    assert bound["block"] >= 12 and bound["whitened"] >= 8 and bound["own sigma"] >= 4, bound


@pytest.mark.parametrize("exactness", ["fast", "certified"])
def test_no_bound_rests_on_the_clip_of_blocks(monkeypatch: pytest.MonkeyPatch, exactness: str) -> None:
    """Caps that never bind: the dual clip alone keeps every norm, and a test of caps sees that they are gone."""
    loose(monkeypatch)
    check_bounds(exactness, torch.float32, blocks=False)
    must_fail(lambda: check_bounds(exactness, torch.float32))


def loose(monkeypatch: pytest.MonkeyPatch) -> None:
    caps, limits = FastSums._caps, CertifiedSums.limits
    monkeypatch.setattr(FastSums, "_caps", lambda self, *args: caps(self, *args) * 1e30)
    monkeypatch.setattr(CertifiedSums, "limits", lambda self, *args: replace(limits(self, *args), caps={}))


def test_without_either_clip_at_the_accounted_multiplier_the_bound_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clip of blocks gone, and the dual clip at sigma_i and the least noise, as without budgets."""
    monkeypatch.setattr(FastSums, "__init__", without(FastSums.__init__, "_squares", None))
    must_fail(lambda: check_bounds("fast", torch.float32, blocks=False))


def test_a_certificate_at_the_least_noise_breaks_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    right = CertifiedSums.__init__

    def blind(self, schedule, *args, **kwargs):
        right(self, schedule, *args, **kwargs)
        self._shares = [0] * len(self._shares)

    monkeypatch.setattr(CertifiedSums, "__init__", blind)
    must_fail(lambda: check_bounds("certified", torch.float32, blocks=False))


def without(right, name, value):
    def wrong(self, *args, **kwargs):
        right(self, *args, **kwargs)
        setattr(self, name, value)

    return wrong


@pytest.mark.parametrize("exactness", ["fast", "certified"])
def test_noise_of_a_step_moves_the_multiplier_with_it(exactness: str) -> None:
    """Other noise in every block, as a phase sets it: the same bounds hold at the multiplier of that noise."""
    scene = Scene(5, torch.float32)
    router = Router(scene.model, scene.schedule, exactness=exactness, least_multiplier=0.5)
    for scale in (M, 3 * M, 1_700_000):
        stds = [phase_std(block.std, scale) for block in scene.schedule.blocks]
        router.sums.use(stds)
        for i in range(CONTRIBUTIONS):
            white = math.sqrt(sum(square / stds[g] ** 2 for g, square in squares(scene, router, i).items()))
            assert white * float(scene.multiplier(i, stds)) <= 1.0


def test_the_certificate_bounds_the_multiplier_that_is_accounted() -> None:
    for seed in range(20):
        scene = Scene(seed)
        sums = CertifiedSums(scene.schedule, [], torch.float32, 0.5)
        for i, (clip, sigma, profile) in enumerate(scene.micro):
            limits = sums.limits(signed(clip / M, sigma / M), profile)
            assert limits.whitened * max(scene.multiplier(i), Fraction(sigma, M)) ** 2 <= 1 << 2 * sums.bits
            assert limits.caps == pytest.approx(scene.caps(i))


def test_without_shares_nothing_changes() -> None:
    """Equal shares and equal noise: every multiplier is that of flat clipping; no shares: the very same coefficients."""
    scene = Scene(0)
    bare = replace(scene.schedule, blocks=tuple(replace(block, share=0) for block in scene.schedule.blocks))
    sums = FastSums(bare, [], torch.float64)
    bounds = scene.bounds(list(range(CONTRIBUTIONS)))
    norms = torch.rand(CONTRIBUTIONS, len(bare.blocks), dtype=torch.float64) * 100
    found = sums.coefficients(norms, bounds)
    masked = torch.where(bounds.permitted_NG, norms, 0.0)
    stds = torch.tensor([block.std for block in bare.blocks], dtype=torch.float64)
    keep = 1 - sums.margins(bounds)
    flat = keep * bounds.clip_N / masked.sum(1).sqrt()
    white = keep / (bounds.sigma_N * (masked / stds.square()).sum(1).sqrt())
    assert torch.equal(found.amax(1), torch.minimum(flat, white).clamp_max(1.0))
    assert sums._squares is None and CertifiedSums(bare, [], torch.float64).limits(signed(1.0, 1.0), (0, 1)).caps == {}


def test_a_run_records_shares_and_an_auditor_finds_the_same_multipliers(tmp_path) -> None:
    world = make_world(
        tmp_path,
        steps=4,
        policy_extra=BUDGETS,
        signed_bounds=lambda name: {"clip_norm_micro": "0.25"} if name == "open" else {},
    )
    trainer = Trainer(world).begin()
    schedule, private = trainer.private.prepared.schedule, trainer.private
    header = private.opened.recorder.ledger.state.header
    assert {(block.name, block.std, block.share) for block in header.blocks} == {
        (b.name, b.std, b.share) for b in schedule.blocks
    }
    assert {b.share for b in schedule.blocks} == {300_000, M, 2 * M}
    for index, rule in enumerate(private.policy.classes):
        least = min(schedule.blocks[g].std for g in schedule.profiles[rule.name])
        assert header.min_std(index) == schedule.class_std(rule.name) > least
        assert header.min_std(index) >= rule.bounds.noise_multiplier * rule.bounds.clip_norm * (1 - 1e-15)
    trainer.run()
    state = private.opened.recorder.ledger.state
    for slot in private.prepared.pool.slots:
        found = state.contributions[slot.descriptor_hash]
        zs = state.expenditure.multipliers(found.class_index, found.terms.bounds)
        assert zs == (slot.resolution.multiplier,)
    data = encode_leaf(header)
    assert decode_leaf(data) == header
    trainer.close()
    for wrong in (
        {"share": M // 2},
        {"share": 0},
        {"std": schedule.blocks[0].std * 0.99},
        {"std": schedule.blocks[0].std * 2},
        {"std": 0.0},
    ):
        with pytest.raises(LeafRefused):
            replace(header, blocks=(replace(header.blocks[0], **wrong), *header.blocks[1:]))


BESIDE_PUBLIC = PUBLIC + CLASSES[: CLASSES.index('[[class]]\nname = "open"')]
"""A public class in the place of the one that may touch everything."""

MODES = {
    "fast": {},
    "certified": {"policy_extra": 'exactness = "certified"\n'},
    "phases": {"noise": "[[noise.phase]]\nfrom_step = 1\nscale = 2.5\n[[noise.phase]]\nfrom_step = 3\nscale = 1.3\n"},
    "certified phases": {"policy_extra": 'exactness = "certified"\n', "noise": "[[noise.phase]]\nfrom_step = 1\nscale = 3.0\n"},
    "public occurrences": {"policy_extra": 'disclosure = "occurrences_public"\n'},
    "per microbatch": {"noise": '[noise]\ninjection = "per_microbatch"\nmicrobatches = 3\n'},
    "public class": {"classes": BESIDE_PUBLIC},
}


QUICK = ("fast", "certified phases")


@pytest.mark.one_in(9)
@pytest.mark.parametrize("mode", [mode if mode in QUICK else pytest.param(mode, marks=pytest.mark.slow) for mode in MODES])
def test_a_run_with_budgets_is_verified_by_an_auditor(tmp_path, mode: str) -> None:
    """Trained, resumed, exported and audited; the noise of a class is the same double on both sides."""
    options = dict(MODES[mode])
    extra = options.pop("policy_extra", "") + options.pop("noise", "") + BUDGETS
    world = make_world(tmp_path, steps=4, policy_extra=extra, **options)
    first = Trainer(world)
    for step, _ in zip(first.steps, range(2), strict=False):
        first.one(step)
    first.close()
    trainer = Trainer(world, resume=True)
    trainer.run()
    private = trainer.private
    state = private.opened.recorder.ledger.state
    scales = state.header.phases.scales
    for index, rule in enumerate(private.policy.classes):
        for scale in scales:
            stds = [phase_std(block.std, scale) for block in private.prepared.schedule.blocks]
            assert state.header.min_std(index, scale) == private.prepared.schedule.class_std(rule.name, stds)
            asked = rule.bounds.noise_multiplier * rule.bounds.clip_norm * scale / M
            assert rule.public or private.prepared.schedule.class_std(rule.name, stds) >= asked * (1 - 1e-15)
    private.export(tmp_path / "export")
    trainer.close()
    key = world.ledger.with_suffix(".pub").read_text().strip()
    report = verify_export(tmp_path / "export", [key], owner_key=public_bytes(world.owner_key))
    assert report.verdict == "FULL", report.findings
