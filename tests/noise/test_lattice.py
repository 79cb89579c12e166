"""Lattice Gaussian: integers, the right variance, one draw per address."""

import math

import pytest

torch = pytest.importorskip("torch")

from dptrain.noise import KeyStream, LatticeGaussian  # noqa: E402
from dptrain.noise.lattice import CHUNK, LATTICE_BITS, LEAST, rounding_margin  # noqa: E402


def gaussian(master: bytes = bytes(32)) -> LatticeGaussian:
    return LatticeGaussian(KeyStream("noise", b"r" * 16, 0, master))


def chi_square_z(values: torch.Tensor) -> float:
    """Standard score of sum of squares of supposed unit normals (Laurent-Massart scale)."""
    d = values.numel()
    return (float(values.double().square().sum()) - d) / math.sqrt(2 * d)


def test_release_is_an_integer_multiple_of_the_lattice() -> None:
    total = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    std, normalizer = 0.37, 8.0
    released = gaussian().release_(total.clone(), std, normalizer, step=1, lane=0)
    integers = released * normalizer / (std * 2.0**-LATTICE_BITS)
    assert torch.allclose(integers, integers.round(), rtol=0, atol=1e-3)


def test_release_is_sum_plus_noise_over_normalizer() -> None:
    total = torch.linspace(-3, 3, 5001, dtype=torch.float64)
    std, normalizer = 2.5, 16.0
    noise = gaussian().normals(4, 2, 0, total.numel()) * std
    released = gaussian().release_(total.clone(), std, normalizer, step=4, lane=2)
    assert float((released - (total + noise) / normalizer).abs().max()) < std * 2.0 ** -(LATTICE_BITS - 1)


def test_noise_is_standard_normal_to_the_fourth_moment() -> None:
    """False alarm rate about 1e-6 per check (|z| < 5)."""
    x = gaussian(b"k" * 32).normals(1, 0, 0, 1 << 20)
    n = x.numel()
    assert abs(float(x.mean())) * math.sqrt(n) < 5
    assert abs(chi_square_z(x)) < 5
    assert abs(float(x.pow(3).mean())) * math.sqrt(n / 15) < 5
    assert abs(float(x.pow(4).mean()) - 3) * math.sqrt(n / 96) < 5
    pairs = x.view(-1, 2)
    assert abs(float((pairs[:, 0] * pairs[:, 1]).mean())) * math.sqrt(n / 2) < 5


def test_noise_follows_the_normal_distribution_function() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    x = gaussian(b"q" * 32).normals(2, 0, 0, 200_000).numpy()
    assert scipy_stats.kstest(x, "norm").pvalue > 1e-6


def test_chunks_and_offsets_do_not_change_a_draw() -> None:
    whole = gaussian().normals(1, 3, 0, 2 * CHUNK + 11)
    part = gaussian().normals(1, 3, CHUNK, 100)
    assert torch.equal(whole[CHUNK : CHUNK + 100], part)
    long = torch.zeros(2 * CHUNK + 11, dtype=torch.float64)
    released = gaussian().release_(long, 1.0, 1.0, step=1, lane=3)
    assert float((released - whole).abs().max()) < 2.0**-31


def test_noise_of_different_addresses_is_uncorrelated() -> None:
    """H4: alarm at 5/sqrt(d)."""
    d = 100_000
    base = gaussian().normals(1, 0, 0, d)
    others = [gaussian().normals(2, 0, 0, d), gaussian().normals(1, 1, 0, d), gaussian(b"z" * 32).normals(1, 0, 0, d)]
    for other in others:
        assert abs(float((base * other).mean())) < 5 / math.sqrt(d)


def test_radii_in_the_tail_and_at_the_centre_are_finer_than_the_lattice() -> None:
    """A radius on a coarse grid makes most lattice points impossible, and an impossible point tells two worlds apart.

    Where the first word starts with zeros the stream adds bits from a second block; near zero the other side of the
    logarithm is taken. Both are forced here by a stream of chosen words.
    """

    class Forced:
        def __init__(self, first: int, second: int, more: int) -> None:
            self.words, self.more = first.to_bytes(8, "little") + second.to_bytes(8, "little"), more.to_bytes(8, "little")

        def read(self, step: int, lane: int, first_block: int, blocks: int) -> bytes:
            return (self.more + bytes(8)) if lane >= 1 << 31 else self.words * blocks

    def radius(first: int, second: int, more: int = 0) -> float:
        return float(LatticeGaussian(Forced(first, second, more)).normals(1, 0, 0, 2).norm())

    tail = [radius(3, 0, more << 11) for more in (0, 1 << 40, 2 << 40)]
    assert tail[0] > 8 and tail[2] < tail[1] < tail[0] and tail[0] - tail[2] < 2.0**-10
    centre = [radius(first, 1) for first in (1 << 20, (1 << 20) + 1)]  # the last bit mirrors: u = 1 - x
    assert 0 < centre[0] < 2.0**-21 and 0 < centre[1] - centre[0] < 2.0**-32


def test_a_key_stream_is_not_pickled_and_not_read_in_a_forked_process() -> None:
    import os
    import pickle

    g = gaussian()
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(g)
    child = os.fork()
    if child == 0:
        try:
            g.normals(1, 0, 0, 2)
        except RuntimeError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    g.destroy()
    with pytest.raises(AttributeError):
        g.normals(1, 0, 0, 2)


def test_an_address_is_never_released_twice() -> None:
    g = gaussian()
    g.release_(torch.zeros(4), 1.0, 1.0, step=3, lane=0)
    g.release_(torch.zeros(4), 1.0, 1.0, step=3, lane=1)
    for step, lane in ((3, 0), (2, 5)):
        with pytest.raises(ValueError, match="never used twice"):
            g.release_(torch.zeros(4), 1.0, 1.0, step=step, lane=lane)


def test_parts_of_a_tensor_are_released_one_by_one_and_none_of_their_coordinates_twice() -> None:
    g = gaussian()
    for offset, count in ((10, 4), (0, 10), (14, 0), (14, 3)):
        g.release_(torch.zeros(count), 1.0, 1.0, step=1, lane=0, offset=offset, size=20)
    for offset, count in ((16, 4), (13, 1), (0, 20), (9, 2)):
        with pytest.raises(ValueError, match="never used twice"):
            g.release_(torch.zeros(count), 1.0, 1.0, step=1, lane=0, offset=offset, size=20)


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf])
def test_a_std_that_is_no_std_is_refused(std: float) -> None:
    with pytest.raises(ValueError, match="standard deviation"):
        gaussian().release_(torch.zeros(4), std, 1.0, step=1, lane=0)


def test_rounding_margin_pays_for_one_lattice_step_per_coordinate() -> None:
    """Whitened: a shift of d coordinates by gamma_l = s_l 2^-32 each has norm 2^-32 sqrt(d) = margin / multiplier."""
    assert rounding_margin(10**8, 2.0) == pytest.approx(2.0 * 1e4 * 2.0**-32)


@pytest.mark.parametrize("threads", [1, 2, 3, 6, 40])
def test_threads_have_even_shares_of_a_tensor(threads, monkeypatch):
    """No thread is woken for little, none has more than a turn at a time, and every coordinate has its place."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    made = gaussian()
    for offset in (0, 4, 5):
        for count in (0, 1, 2, 385, LEAST - 1, LEAST, 2 * LEAST + 3, CHUNK, 3 * CHUNK + 11, 50 * CHUNK + 1):
            chunks = made.chunks(offset, offset + count)
            assert list(chunks) == sorted(chunks) and all(start % 2 == 0 for start in chunks) and 0 < chunks.step <= CHUNK
            if count:
                assert chunks[0] in (offset, offset - 1) and chunks[-1] < offset + count <= chunks[-1] + chunks.step
                most = min(threads, 6, max(1, count // LEAST))
                assert len(chunks) <= most * -(-(count + 1) // (CHUNK * most))
                assert len(chunks) == 1 or chunks.step * len(chunks) - count <= 2 * len(chunks)
