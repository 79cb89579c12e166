"""Skellam noise per microbatch: M draws of variance v/M on one lattice are one draw of variance v, exactly (Theorem 11)."""

import math
from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")
mpmath = pytest.importorskip("mpmath")
stats = pytest.importorskip("scipy.stats")

from dptrain.noise import KeyStream  # noqa: E402
from dptrain.noise.exact import CHUNK, ExactSampler  # noqa: E402
from dptrain.noise.families import SKELLAM_BITS, IntegerNoise, Skellam, integer_noise  # noqa: E402  # noqa: E402
from ledger import accountants  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from tests.guarantees.test_injection import ALARM, STEPS, worst_score  # noqa: E402
from tests.reference import streams  # noqa: E402
from tests.reference.naive_families import Naive, integers  # noqa: E402
from tests.worlds.trainer import BertTrainer as Trainer  # noqa: E402
from tests.worlds.training import make_world  # noqa: E402

MASTER = b"k" * 32


def policy(microbatches: int) -> str:
    return (
        'exactness = "certified"\naccountant = "rdp"\n'
        f'noise = {{ family = "skellam", injection = "per_microbatch", microbatches = {microbatches} }}'
    )


def noise(bits: int, draws: int) -> IntegerNoise:
    return integer_noise("skellam", KeyStream("noise", b"r" * 16, 0, MASTER), bits, draws)


# The theorem, in 50 digits.


def folded(weights: list, times: int) -> list:
    """The law of a sum of so many independent integers; lists run from -n to n."""
    found = weights
    for _ in range(times - 1):
        wide, own = len(found), len(weights)
        total = [mpmath.mpf(0)] * (wide + own - 1)
        for i, a in enumerate(found):
            for j, b in enumerate(weights):
                total[i + j] += a * b
        found = total
    return found


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_a_sum_of_draws_of_an_equal_share_of_the_variance_has_the_law_of_one(parts: int) -> None:
    v = mpmath.mpf(4)
    with mpmath.workdps(50):
        part = [mpmath.exp(-v / parts) * mpmath.besseli(abs(k), v / parts) for k in range(-30, 31)]
        whole = folded(part, parts)
        middle = len(whole) // 2
        for k in range(20):
            assert abs(whole[middle + k] / (mpmath.exp(-v) * mpmath.besseli(k, v)) - 1) < mpmath.mpf(10) ** -20


def test_sums_of_discrete_gaussian_draws_have_not_which_is_why_they_are_refused() -> None:
    """So neither are Laplace draws: a sum of two has lighter tails. Both stay refused, with this as the reason."""
    with mpmath.workdps(50):
        weights = [mpmath.exp(-(mpmath.mpf(k) ** 2) * 2) for k in range(-20, 21)]  # sigma = 1/2 each
        part = [w / mpmath.fsum(weights) for w in weights]
        spread = mpmath.fsum(mpmath.mpf(k - 20) ** 2 * w for k, w in enumerate(part))
        whole = folded(part, 2)
        one = [mpmath.exp(-(mpmath.mpf(k) ** 2)) for k in range(-40, 41)]  # sigma^2 = 1/2
        law = [w / mpmath.fsum(one) for w in one]
        assert mpmath.fsum(abs(a - b) for a, b in zip(whole, law, strict=True)) > 0.01 and spread < 0.25
    for family in ("discrete_gaussian", "laplace"):
        assert accountants.TABLE[family].injections == ("scheduled",)
        assert "a sum of" in accountants.TABLE[family].why["injection"]


# The integers.


@pytest.mark.one_in(2)
@pytest.mark.parametrize("draws", [2, 100, *(pytest.param(draws, marks=pytest.mark.slow) for draws in (1, 3, 16))])
def test_the_noise_is_the_sum_of_integers_of_the_definition_each_at_an_address_of_its_own(draws: int) -> None:
    """From 80 digits, one draw at a time; draw g of tensor l at lane l M + g."""
    key, law = streams.stream_key("noise", b"r" * 16, 0, MASTER), Naive("skellam", SKELLAM_BITS, draws)
    count = 12 if draws < 16 else 3
    found = noise(SKELLAM_BITS, draws).integers(3, 2, 0, count)
    own = [integers(law, key, 3, 2 * draws + g, count) for g in range(draws)]
    assert found.tolist() == [sum(values) for values in zip(*own, strict=True)]


def drawn(source: IntegerNoise, count: int) -> np.ndarray:
    return np.concatenate([source.integers(1, 0, s, min(CHUNK, count - s)) for s in range(0, count, CHUNK)])


def p_value(values: np.ndarray, bits: int) -> float:
    """Chi-square against the law of the whole, by scipy's Bessel functions."""
    widest = 6 << bits
    expected = stats.skellam.pmf(np.arange(-widest, widest + 1), 4**bits / 2, 4**bits / 2) * len(values)
    kept = expected >= 10
    counts = np.bincount(np.clip(values, -widest, widest) + widest, minlength=2 * widest + 1)[kept]
    return float(stats.chi2.sf(((counts - expected[kept]) ** 2 / expected[kept]).sum(), kept.sum() - 1))


SIZES = [(4, 2), (4, 3), (5, 4), (6, 7), (7, 16)]


@pytest.mark.parametrize(("bits", "draws"), SIZES)
def test_the_total_has_the_law_of_one_draw(bits: int, draws: int) -> None:
    assert p_value(drawn(noise(bits, draws), 200_000), bits) > 5.7e-7


def full_each(source: IntegerNoise) -> None:
    """Every draw with the variance of the whole."""
    source._sampler = ExactSampler(Skellam(source._bits))


def next_whole_share(source: IntegerNoise) -> None:
    """Shares of a power of four, whatever the number of draws: for three draws a third too much."""
    source._sampler = ExactSampler(Skellam(source.law.bits))


def one_less(source: IntegerNoise) -> None:
    """A draw left out, as where a group without contributions brings none."""
    source._draws -= 1


def same_address(source: IntegerNoise) -> None:
    whole = source._sampler.integers
    source._sampler.integers = lambda stream, step, lane, start, count: whole(stream, step, 0, start, count)


@pytest.mark.parametrize("fault", [full_each, next_whole_share, one_less, same_address])
def test_the_test_of_the_law_sees(fault: Callable[[IntegerNoise], None]) -> None:
    source = noise(5, 3)
    fault(source)
    assert p_value(drawn(source, 200_000), 5) < 5.7e-7


@pytest.mark.one_in(9)
@pytest.mark.parametrize("draws", [3, 4])
def test_a_release_lies_on_the_lattice_of_the_sums_and_not_on_that_of_a_draw(draws: int) -> None:
    std, normalizer, n = 0.37, 8.0, CHUNK + 77
    gamma = std * 2.0**-SKELLAM_BITS
    total = torch.randint(-(1 << 16), 1 << 16, (n,), generator=torch.Generator().manual_seed(1)).double() * gamma
    total[:2] = torch.tensor([1e300, -1e300])
    expected = torch.round(total / gamma).clamp(-(2.0**34), 2.0**34)
    expected += torch.from_numpy(np.concatenate([noise(16, draws).integers(3, 2, s, min(CHUNK, n - s)) for s in (0, CHUNK)]))
    found = noise(16, draws).release_(total, std, normalizer, step=3, lane=2, draws=draws)
    assert torch.equal(found, expected * (gamma / normalizer))
    source = noise(16, draws)
    for other in (1, draws + 1):
        with pytest.raises(ValueError, match=f"made for {draws} draws per step, got {other}"):
            source.release_(torch.zeros(4, dtype=torch.float64), std, 1.0, step=1, lane=0, draws=other)


def test_no_draw_of_a_group_meets_another_one() -> None:
    seen: set[tuple[int, int, int]] = set()
    inner = KeyStream("noise", b"r" * 16, 0, MASTER)

    class Watched:
        def read(self, step: int, lane: int, first: int, blocks: int) -> bytes:
            for index in range(first, first + blocks):
                assert (step, lane, index) not in seen
                seen.add((step, lane, index))
            return inner.read(step, lane, first, blocks)

    source = integer_noise("skellam", Watched(), 16, 4)
    for lane in range(3):
        source.release_(torch.zeros(500, dtype=torch.float64), 1.0, 1.0, step=3, lane=lane, draws=4)
    assert {lane for _, lane, _ in seen if lane < 1 << 31} == set(range(12))


# Runs.


@pytest.mark.one_in(9)
@pytest.mark.parametrize("microbatches", [3, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 8))])
@pytest.mark.parametrize("rate", ["0.000000001", "0.5"])
def test_the_total_variance_is_the_scheduled_one_however_many_were_drawn(tmp_path, microbatches, rate) -> None:
    world = make_world(tmp_path, steps=STEPS, rate=rate, per_class=2, policy_extra=policy(microbatches))
    assert worst_score(Trainer(world, microbatch=2)) < ALARM


@pytest.mark.one_in(9)
@pytest.mark.parametrize("fault", [full_each, one_less])
@pytest.mark.slow
def test_the_test_of_the_variance_sees(tmp_path, monkeypatch, fault) -> None:
    whole = IntegerNoise.integers

    def broken(self: IntegerNoise, *address: int) -> np.ndarray:
        other = noise(self._bits, self._draws)
        other._stream = self._stream
        fault(other)
        return whole(other, *address)

    monkeypatch.setattr(IntegerNoise, "integers", broken)
    world = make_world(tmp_path, steps=STEPS, rate="0.5", per_class=2, policy_extra=policy(4))
    assert worst_score(Trainer(world, microbatch=2)) > 2 * ALARM


@pytest.mark.slow
def test_the_accounting_is_that_of_scheduled_noise_and_an_auditor_agrees(tmp_path) -> None:
    spent = []
    scheduled = 'exactness = "certified"\naccountant = "rdp"\nnoise = { family = "skellam" }'
    for name, extra in (("scheduled", scheduled), ("three", policy(3))):
        world = make_world(tmp_path / name, steps=4, policy_extra=extra)
        trainer = Trainer(world)
        trainer.run()
        spent.append([row["epsilon"] for row in trainer.private.prepared.summary()])
        trainer.private.export(tmp_path / name / "export")
        ledger = trainer.private.opened.recorder.ledger
        for slot in trainer.private.prepared.pool.slots:
            steps = [accountants.Phase(slot.resolution.multiplier, 0.5, 4)]
            own = accountants.epsilon_of_phases(steps, 1e-5, "rdp", family="skellam")
            assert math.isclose(ledger.epsilon(slot.descriptor_hash), own, rel_tol=1e-12)
        trainer.close()
        report = verify_export(tmp_path / name / "export", (world.root / "ledger.pub").read_text().split())
        assert report.verdict == "FULL", report.findings
    assert spent[0] == spent[1]
