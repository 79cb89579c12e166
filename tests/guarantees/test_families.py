"""Runs under Laplace, discrete Gaussian and Skellam noise (Theorems 9 to 11): what is released, certified and refused."""

import hashlib
import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from attest.policy import MechanismRule, Policy  # noqa: E402
from attest.policy.rules import ACCOUNTANTS, EXACTNESS, NOISE_INJECTIONS  # noqa: E402
from attest.policy.sampling import OCCURRENCES_PUBLIC, SECRET_DRAWS, SECRET_POISSON  # noqa: E402
from dptrain import PrivateTraining  # noqa: E402
from dptrain.blocks.stack import layer_stack  # noqa: E402
from dptrain.clipping import certified as level  # noqa: E402
from dptrain.clipping.certified import CertifiedSums, Limits, truncate  # noqa: E402
from dptrain.clipping.exactness import sums_for  # noqa: E402
from dptrain.clipping.resolver import bind  # noqa: E402
from dptrain.errors import UnsupportedPolicy  # noqa: E402
from dptrain.noise import KeyStream  # noqa: E402
from dptrain.noise.exact import CHUNK  # noqa: E402
from dptrain.noise.families import (  # noqa: E402
    SKELLAM_BITS,
    IntegerNoise,
    integer_noise,
)
from ledger import accountants  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from tests.reference import naive_certified, streams  # noqa: E402
from tests.reference.families import FAMILIES  # noqa: E402
from tests.reference.naive_families import Naive, integers  # noqa: E402
from tests.worlds.bounds import signed  # noqa: E402
from tests.worlds.trainer import BertTrainer as Trainer  # noqa: E402
from tests.worlds.trainer import collate_tokens  # noqa: E402
from tests.worlds.training import World, make_world, token_record  # noqa: E402

KEY = b"\x21" * 32
BESIDE = {"discrete_gaussian": "rdp", "laplace": "pld", "skellam": "rdp"}
"""Families beside the Gaussian, and the accountant of each."""


def policy_text(family: str, extra: str = "") -> str:
    return f'exactness = "certified"\naccountant = "{BESIDE[family]}"\n{extra}\n[noise]\nfamily = "{family}"\n'


def several(seed: int) -> list[dict]:
    return [token_record(seed + 17 * j) for j in range(1 + seed % 3)]


class Scaled(Trainer):
    """Losses large enough that every clip bound binds."""

    def losses(self, rows):
        return super().losses(rows) * 50.0


def noise(family: str, bits: int, master: bytes = bytes(32)) -> IntegerNoise:
    return integer_noise(family, KeyStream("noise", b"r" * 16, 0, master), bits)


BITS = {"discrete_gaussian": 21, "laplace": 29, "skellam": SKELLAM_BITS}


@pytest.mark.one_in(9)
@pytest.mark.parametrize("family", BESIDE)
def test_a_run_trains_its_record_verifies_and_its_epsilon_is_that_of_the_family(family: str, tmp_path) -> None:
    world = make_world(tmp_path, per_class=3, steps=4, rate="0.7", policy_extra=policy_text(family))
    trainer = Trainer(world)
    before = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    trainer.run()
    ledger = trainer.private.opened.recorder.ledger
    assert any(not torch.equal(v, before[k]) for k, v in trainer.model.state_dict().items())
    header = ledger.header
    assert header.accountant.name == BESIDE[family] and f"family={family}" in header.accountant.parameters
    assert f"s*2^-{BITS[family]}" in header.exactness_note and "drawn exactly" in header.exactness_note
    for slot in trainer.private.prepared.pool.slots:
        z = slot.resolution.multiplier
        steps = [accountants.Phase(z, 0.7, 4)]
        assert ledger.epsilon(slot.descriptor_hash) == accountants.epsilon_of_phases(steps, 1e-5, BESIDE[family], family=family)
    trainer.private.export(world.root / "export")
    trainer.close()
    key = (world.root / "ledger.pub").read_text().split()
    assert verify_export(world.root / "export", key).verdict == "FULL"


@pytest.mark.one_in(4)
@pytest.mark.parametrize("family", BESIDE)
def test_every_release_is_noise_and_integers_of_the_definition_to_the_last_integer(family: str, tmp_path) -> None:
    """In float64: the release is a whole number of lattice steps; less the naive noise, it is the sum of naive integers."""
    extra = policy_text(family, "[gate]\nmax_examples = 3")
    world = make_world(tmp_path, per_class=2, steps=3, rate="0.3", record=several, policy_extra=extra)
    trainer = Scaled(world, insecure_test_key=KEY, dtype=torch.float64, microbatch=2)
    private = trainer.private
    named = [(private.prepared.schedule.blocks[g].std, g, t) for g, t in private.prepared.router.tensors]
    bits = private.prepared.router.sums.bits
    law, most = Naive(family, bits), 40 if family == "skellam" else 200  # quotients of Bessel functions take their time
    naive = naive_certified.integers_of_l1 if family == "laplace" else naive_certified.integers_of
    run = hashlib.sha256(KEY).digest()[:16]
    sampling, noise_key = (streams.stream_key(purpose, run, 0, KEY) for purpose in ("sampling", "noise"))
    rates = [private.policy.class_rule(s.resolution.class_name).sampling_rate for s in private.prepared.pool.slots]
    compared = empty = 0
    for step in trainer.steps:
        expected = [torch.zeros(t.shape, dtype=torch.int64) for _, _, t in named]
        drawn = streams.draw(sampling, step.number, rates)
        for slot in drawn:
            resolution = private.prepared.pool.slots[slot].resolution
            for _, _, t in named:
                t.parameter.requires_grad_(True)
            loss = (trainer.family.losses(trainer.model, collate_tokens(private.prepared.pool.examples(slot))) * 50.0).mean()
            grads = torch.autograd.grad(loss, [t.parameter for _, _, t in named], allow_unused=True)
            for _, _, t in named:
                t.parameter.requires_grad_(False)
            inside = [j for j, (_, g, _) in enumerate(named) if g in resolution.profile]
            own = [torch.zeros(named[j][2].shape, dtype=torch.float64) if grads[j] is None else grads[j] for j in inside]
            stds = [named[j][0] for j in inside]
            clip, sigma, _ = resolution.bounds
            k = naive(own, stds, clip / 1e6, sigma / 1e6, bits, 2.0**-40)
            for j, whole in zip(inside, k, strict=True):
                expected[j] += whole
        trainer.one(step)
        empty += not drawn
        for lane, (std, _, t) in enumerate(named):
            if t.coordinates > 600 and drawn:
                continue  # naive noise takes 0.2 ms a coordinate
            steps = t.parameter.grad * private.policy.normalizer / (std * 2.0**-bits)
            whole = torch.round(steps)
            assert float((steps - whole).abs().max()) <= 2.0**-12, "a release lies between lattice points"
            own = torch.tensor(integers(law, noise_key, step.number, lane, min(t.coordinates, most)))
            gap = (whole.flatten()[: len(own)].long() - own - expected[lane].flatten()[: len(own)]).abs()
            assert int(gap.max()) <= 0 if not drawn else int(gap.max()) <= 2
            assert float((gap > 0).float().mean()) <= 1e-2
            compared += len(own)
    assert compared > 1000
    trainer.close()


@pytest.mark.parametrize("family", BESIDE)
def test_releases_are_whole_lattice_steps_and_follow_the_address_alone(family: str) -> None:
    bits, n, std, normalizer = BITS[family], CHUNK + 777, 0.37, 8.0
    gamma = std * 2.0**-bits
    generator = torch.Generator().manual_seed(1)
    total = torch.randint(-(1 << bits), 1 << bits, (n,), generator=generator).double() * gamma
    found = noise(family, bits).release_(total.clone(), std, normalizer, step=3, lane=2)
    drawn = torch.from_numpy(np.concatenate([noise(family, bits).integers(3, 2, s, min(CHUNK, n - s)) for s in (0, CHUNK)]))
    assert torch.equal(found, (torch.round(total / gamma) + drawn) * (gamma / normalizer))
    before = torch.get_num_threads()
    try:
        for threads in (2, 4):
            torch.set_num_threads(threads)
            assert torch.equal(found, noise(family, bits).release_(total.clone(), std, normalizer, step=3, lane=2))
    finally:
        torch.set_num_threads(before)
    for step, lane, master in ((4, 2, bytes(32)), (3, 1, bytes(32)), (3, 2, b"k" * 32)):
        other = noise(family, bits, master).release_(torch.zeros(n, dtype=torch.float64), 1.0, 1.0, step=step, lane=lane)
        assert abs(float((other * (drawn / 2.0**bits)).mean())) < 5 * (2.0 if family == "laplace" else 1.0) / math.sqrt(n)


def test_what_no_release_may_be_asked_for_is_refused() -> None:
    source = noise("discrete_gaussian", 21)
    whole = torch.zeros(4, dtype=torch.float64)
    for std in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="finite and positive"):
            source.release_(whole, std, 1.0, step=1, lane=0)
    with pytest.raises(ValueError, match="float64"):
        source.release_(torch.zeros(4), 1.0, 1.0, step=1, lane=0)
    with pytest.raises(ValueError, match="made for 1 draws per step, got 2"):
        source.release_(whole, 1.0, 1.0, step=1, lane=0, draws=2)
    for family in ("discrete_gaussian", "laplace"):
        with pytest.raises(ValueError, match="once per step, got 2 draws, whose sum has another law"):
            integer_noise(family, KeyStream("noise", b"r" * 16, 0, bytes(32)), 20, 2)
    source.release_(whole, 1.0, 1.0, step=2, lane=0)
    for step, lane in ((2, 0), (1, 5)):
        with pytest.raises(ValueError, match="never used twice"):
            source.release_(whole, 1.0, 1.0, step=step, lane=lane)
    source.destroy()
    with pytest.raises(AttributeError):
        source.release_(whole, 1.0, 1.0, step=3, lane=0)
    with pytest.raises(ValueError, match="no noise family 'cauchy'"):
        integer_noise("cauchy", KeyStream("noise", b"r" * 16, 0, bytes(32)), 20)


# The L1 certificate.


def l1_sums(dtype: torch.dtype = torch.float64) -> tuple[CertifiedSums, list]:
    """Sums for Laplace noise over the tensors of a tiny model."""
    model = FAMILIES["bert"]().model.to(dtype)
    text = (
        'corpus = "c"\ndelta = 1e-5\nsteps = 4\nnormalizer = 4\nexactness = "certified"\n[noise]\nfamily = "laplace"\n'
        '[[class]]\nname = "low"\nclip_norm = 1.0\nnoise_multiplier = 1.5\nsampling_rate = 0.5\ndepth = {from = 0.0, to = 1}\n'
        '[[class]]\nname = "top"\nclip_norm = 2.0\nnoise_multiplier = 3.0\nsampling_rate = 0.5\ndepth = {from = 0.67, to = 1}\n'
    )
    schedule = bind(Policy.from_toml(text), layer_stack(model))
    tensors = [(g, tensor) for g, block in enumerate(schedule.blocks) for tensor in block.tensors]
    return sums_for("certified", schedule, tensors, dtype, 1.5, "laplace"), tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_integers_for_laplace_noise_keep_both_bounds_in_the_l1_norm(dtype: torch.dtype) -> None:
    """For random, sparse, huge and lopsided gradients; a contribution reaches its bound."""
    sums, tensors = l1_sums(dtype)
    rng = random.Random(0)
    closest = 0.0
    for kind in ("dense", "sparse", "huge", "one", "tiny"):
        for clip, sigma in ((1.0, 1.5), (0.25, 3.7), (1.999999, 1.6)):
            profile = tuple(sorted({g for g, _ in tensors if rng.random() < 0.7})) or (0,)
            inside = [j for j, (g, _) in enumerate(tensors) if g in profile]
            gradients = {}
            for j in inside:
                g = torch.randn(tensors[j][1].shape, dtype=torch.float64)
                if kind == "sparse":
                    g *= torch.rand(g.shape) < 0.01
                if kind == "one":
                    g *= 0
                    g.view(-1)[0] = 1e3 if j == inside[0] else 0.0
                gradients[j] = (g * {"huge": 1e25, "tiny": 1e-9}.get(kind, 1.0)).to(dtype)
            original = {j: g.clone() for j, g in gradients.items()}
            limits = sums.limits(signed(clip, sigma), profile)
            assert limits.power == 1
            steps = sums.certify(gradients, limits)
            assert steps is not None
            truncate(gradients, steps)
            k = [gradients[j].double().long() for j in inside]
            stds = [sums._stds[tensors[j][0]] for j in inside]
            c, s = (Fraction(round(v * 10**6), 10**6) for v in (clip, sigma))
            assert naive_certified.holds_l1(k, stds, c, s, sums.bits)
            z = naive_certified.multiplier(c, s, stds)
            assert sum(int(v.abs().sum()) for v in k) * z <= 1 << sums.bits
            if kind not in ("tiny",):
                closest = max(closest, float(sum(int(v.abs().sum()) for v in k) * z / (1 << sums.bits)))
            if dtype is torch.float64:
                true = naive_certified.integers_of_l1([original[j] for j in inside], stds, clip, sigma, sums.bits, 2.0**-40)
                gaps = [int((a - b).abs().max()) for a, b in zip(k, true, strict=True)]
                assert max(gaps) <= 1, (kind, clip, sigma, profile, max(gaps), max(int(a.abs().max()) for a in k))
    assert closest > 0.999


def test_a_gradient_clipped_in_the_l2_norm_fails_the_l1_certificate() -> None:
    """L2 clipping under Laplace noise would be off by sqrt(d): no integers of such a norm are ever admitted."""
    sums, tensors = l1_sums()
    profile = tuple(sorted({g for g, _ in tensors}))
    limits = sums.limits(signed(1.0, 1.5), profile)
    count = sum(t.coordinates for _, t in tensors)
    each = int((1 << sums.bits) / limits.multiplier / math.sqrt(count))  # L2 norm 1/z over all coordinates
    sizes: dict[int, float] = dict.fromkeys(profile, 0.0)
    for g, t in tensors:
        sizes[g] += float(each * t.coordinates)
    assert not limits.admit(sizes)
    assert limits.admit({g: size / math.sqrt(count) / 4 for g, size in sizes.items()})
    assert limits.excess(sizes) < 2 / math.sqrt(count)


def test_either_bound_alone_refuses_in_the_l1_norm() -> None:
    limits = Limits(whitened=100, euclidean=1000, weights={0: 1, 1: 20}, clip=1.0, multiplier=1.0, power=1)
    assert limits.admit({0: 100.0, 1: 0.0}) and not limits.admit({0: 101.0, 1: 0.0})
    assert limits.admit({0: 0.0, 1: 50.0}) and not limits.admit({0: 0.0, 1: 51.0})
    assert limits.excess({0: 200.0, 1: 0.0}) == pytest.approx(0.5, rel=1e-5)


def test_what_is_not_finite_counts_as_zero_in_the_l1_norm() -> None:
    sums, tensors = l1_sums()
    for value in (math.inf, -math.inf, math.nan):
        gradient = torch.zeros(tensors[0][1].shape, dtype=torch.float64)
        gradient.view(-1)[0] = value
        assert sums.certify({0: gradient}, sums.limits(signed(1.0, 1.5), (tensors[0][0],))) is None


def test_no_gradient_raises_in_the_l1_norm_however_large_or_small() -> None:
    """Whether a run goes on must not follow from content: magnitudes that overflow together, subnormal norms."""
    sums, tensors = l1_sums()
    place = max(range(len(tensors)), key=lambda j: tensors[j][1].coordinates)
    profile, shape = (tensors[place][0],), (3, 1 << 16)
    huge = torch.zeros(shape, dtype=torch.float64)
    huge[0, 0] = huge[2, 0] = 1.7e308  # in different chunks
    assert sums.certify({place: huge}, sums.limits(signed(1.0, 1.5), profile)) is None
    for value in (5e-324, 1e-310, 1e-300, 1e300, 1.7e308):
        single = torch.zeros(shape, dtype=torch.float64)
        single[1, 5] = value
        steps = sums.certify({place: single}, sums.limits(signed(10.0, 0.1), profile))
        assert steps is not None
        truncate({place: single}, steps)
        assert int(single.count_nonzero()) == (value > 1.0)


def test_without_the_l1_norm_the_bound_of_laplace_noise_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that the table of families exists for: an L2 clip under Laplace noise."""
    monkeypatch.setattr(accountants.laplace.Laplace, "norm", 2)
    sums, tensors = l1_sums()
    gradients = {j: torch.randn(t.shape, dtype=torch.float64) * 100 for j, (_, t) in enumerate(tensors)}
    profile = tuple(sorted({g for g, _ in tensors}))
    steps = sums.certify(gradients, sums.limits(signed(1.0, 1.5), profile))
    assert steps is not None
    truncate(gradients, steps)
    k = [g.long() for g in gradients.values()]
    stds = [sums._stds[g] for g, _ in tensors]
    assert not naive_certified.holds_l1(k, stds, Fraction(1), Fraction(3, 2), sums.bits)


def test_capacity_follows_the_widest_integer() -> None:
    sums, _ = l1_sums()
    sums.require_capacity(1 << 22)
    with pytest.raises(UnsupportedPolicy, match=f"expected at most {1 << 22} "):
        sums.require_capacity((1 << 22) + 1)
    assert (1 << 22) * level.WIDEST_L1 * 2 <= level.EXACT


# The table of combinations.

DISCLOSURES = (SECRET_POISSON, OCCURRENCES_PUBLIC, SECRET_DRAWS)
COUNTED = (SECRET_POISSON, OCCURRENCES_PUBLIC)
CORRELATED = ("banded_toeplitz", "banded_inverse", "buffered_toeplitz", "banded", "dense")
VALID = {
    **{("gaussian", a, e, i, d): None for a in ACCOUNTANTS for e in EXACTNESS for i in NOISE_INJECTIONS for d in DISCLOSURES},
    ("laplace", "pld", "certified", "scheduled", "secret_poisson"): None,
    **{(f, "rdp", "certified", "scheduled", d): None for f in ("discrete_gaussian", "skellam") for d in COUNTED},
    **{("skellam", "rdp", "certified", "per_microbatch", d): None for d in COUNTED},
    **{(f, a, e, "scheduled", d): None for f in CORRELATED for a in ACCOUNTANTS for e in EXACTNESS for d in DISCLOSURES[1:]},
}


def test_the_table_refuses_everything_that_is_not_accounted_for_and_names_what_is() -> None:
    for combination in itertools.product(MechanismRule.PARAMETERS, ACCOUNTANTS, EXACTNESS, NOISE_INJECTIONS, DISCLOSURES):
        family, accountant, exactness, injection, disclosure = combination
        sentence = accountants.refusal(*combination)
        valid = combination in VALID and not (injection == "per_sample" and exactness == "certified")
        assert (sentence is None) is valid, combination
        if sentence is not None and family in accountants.TABLE and family != "gaussian":
            wanted = accountants.TABLE[family]
            for name, found, possible in (
                ("accountant", accountant, wanted.accountants), ("exactness", exactness, wanted.exactness),
                ("noise.injection", injection, wanted.injections), ("disclosure", disclosure, wanted.disclosures),
            ):  # fmt: skip
                assert (f"{name} = {possible[0]!r}" in sentence) is (found not in possible), sentence
    assert "budgets" in (accountants.refusal("laplace", "pld", "certified", "scheduled", "secret_poisson", budgets=True) or "")
    assert accountants.refusal("gaussian", "pld", "fast", "scheduled", "secret_poisson", budgets=True) is None


REFUSED = {
    "laplace, L2 clip": ('[noise]\nfamily = "laplace"', "L1 norm.*sqrt"),
    "laplace by rdp": ('exactness = "certified"\naccountant = "rdp"\n[noise]\nfamily = "laplace"', "set accountant = 'pld'"),
    "laplace in public": (
        'exactness = "certified"\ndisclosure = "occurrences_public"\n[noise]\nfamily = "laplace"',
        "disclosure = 'secret_poisson'",
    ),
    "discrete gaussian by pld": ('exactness = "certified"\n[noise]\nfamily = "discrete_gaussian"', "set accountant = 'rdp'"),
    "discrete gaussian, fast": (
        'accountant = "rdp"\n[noise]\nfamily = "discrete_gaussian"',
        "set exactness = 'certified', or noise.family = 'gaussian'",
    ),
    "discrete gaussian per microbatch": (
        'exactness = "certified"\naccountant = "rdp"\n[noise]\nfamily = "discrete_gaussian"\n'
        'injection = "per_microbatch"\nmicrobatches = 2',
        "sum of discrete Gaussian draws is not .*set noise.injection = 'scheduled'",
    ),
    "laplace per microbatch": (
        'exactness = "certified"\n[noise]\nfamily = "laplace"\ninjection = "per_microbatch"\nmicrobatches = 2',
        "sum of Laplace draws is not a Laplace draw.*set noise.injection = 'scheduled'",
    ),
    "skellam with budgets": (
        'exactness = "certified"\naccountant = "rdp"\n[noise]\nfamily = "skellam"\n'
        "[noise.budgets]\nembeddings = 0.2\nlayers = 1.0\nhead = 2.0",
        "budgets",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_run_without_accounting_is_refused_before_it_has_a_ledger(case: str, tmp_path) -> None:
    extra, match = REFUSED[case]
    world = make_world(tmp_path, per_class=1, steps=2, policy_extra=extra)
    with pytest.raises(UnsupportedPolicy, match=match) as refused:
        PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, progress=False)
    assert refused.value.code == "NOT_IN_THIS_BUILD" and not world.ledger.exists()


def test_occurrences_in_public_count_in_full_and_caps_limit_them(tmp_path) -> None:
    """Nothing is amplified, so a run in public costs what its draws cost, one in secret what its steps cost."""
    extra = policy_text("discrete_gaussian", 'disclosure = "occurrences_public"')
    world = make_world(tmp_path / "public", per_class=3, steps=6, rate="0.5", policy_extra=extra)
    trainer = Trainer(world)
    trainer.run()
    ledger = trainer.private.opened.recorder.ledger
    for slot in trainer.private.prepared.pool.slots:
        drawn = ledger.state.contributions[slot.descriptor_hash].occurrences
        steps = [accountants.Phase(slot.resolution.multiplier, 1.0, drawn)]
        own = accountants.epsilon_of_phases(steps, 1e-5, "rdp", family="discrete_gaussian")
        assert ledger.epsilon(slot.descriptor_hash) == pytest.approx(own, rel=1e-12)
    trainer.private.export(world.root / "export")
    trainer.close()
    assert verify_export(world.root / "export", (world.root / "ledger.pub").read_text().split()).verdict == "FULL"


@pytest.mark.one_in(5)
@pytest.mark.parametrize("family", BESIDE)
def test_a_cap_limits_what_a_contribution_spends(family: str, tmp_path) -> None:
    world = make_world(
        tmp_path, per_class=2, steps=6, rate="0.9", policy_extra=policy_text(family), template_extra={"max_occurrences": 2},
    )  # fmt: skip
    trainer = Trainer(world)
    trainer.run()
    ledger = trainer.private.opened.recorder.ledger
    for slot in trainer.private.prepared.pool.slots:
        z = slot.resolution.multiplier
        full, two = ([accountants.Phase(z, q, n)] for q, n in ((0.9, 6), (1.0, 2)))
        spent = ledger.epsilon(slot.descriptor_hash)
        assert spent == pytest.approx(accountants.epsilon_of_phases(two, 1e-5, BESIDE[family], family=family), rel=1e-12)
        assert spent < accountants.epsilon_of_phases(full, 1e-5, BESIDE[family], family=family)
    trainer.close()


@pytest.mark.slow
def test_noise_that_varies_over_the_run_goes_with_every_family(tmp_path) -> None:
    phases = "[[noise.phase]]\nfrom_step = 1\nscale = 2.0\n[[noise.phase]]\nfrom_step = 3\nscale = 1.0\n"
    for family, accountant in BESIDE.items():
        world = make_world(tmp_path / family, per_class=2, steps=4, rate="0.6", policy_extra=policy_text(family) + phases)
        trainer = Trainer(world)
        trainer.run()
        ledger = trainer.private.opened.recorder.ledger
        for slot in trainer.private.prepared.pool.slots:
            z = slot.resolution.multiplier
            own = [accountants.Phase(2 * z, 0.6, 2), accountants.Phase(z, 0.6, 2)]
            found = ledger.epsilon(slot.descriptor_hash)
            assert found == pytest.approx(accountants.epsilon_of_phases(own, 1e-5, accountant, family=family), rel=1e-9)
        trainer.private.export(world.root / "export")
        trainer.close()
        assert verify_export(world.root / "export", (world.root / "ledger.pub").read_text().split()).verdict == "FULL"


def test_a_world_has_its_families(tmp_path) -> None:
    """A guard for the tests above: their worlds sign what they say."""
    world: World = make_world(tmp_path, per_class=1, steps=1, policy_extra=policy_text("laplace"))
    with PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, progress=False) as private:
        assert (private.policy.mechanism.name, private.policy.accountant) == ("laplace", "pld")
