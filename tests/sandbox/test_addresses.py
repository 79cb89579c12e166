"""A random number of a private forward is a function of its address, on every device, and has the law that was asked for."""

import hashlib
import math

import pytest

torch = pytest.importorskip("torch")
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms  # noqa: E402

from dptrain.noise.keystream import chacha_blocks  # noqa: E402
from dptrain.sandbox.addresses import Numbers, forward_seed, keep_level, owner_tag, place_tag, shared_tag  # noqa: E402

CPU = torch.device("cpu")
OWNERS = [owner_tag(3, bytes([i]) * 36) for i in range(5)]
PLACE = place_tag("encoder.layer.3.dropout", 0)


def test_words_are_chacha20_under_the_key_and_nonce_of_the_address() -> None:
    words = Numbers(b"s" * 16).words(OWNERS, PLACE, 40, CPU)
    key = hashlib.sha256(b"dptrain.forward/1\x00" + b"s" * 16).digest()
    for owner, row in zip(OWNERS, words, strict=True):
        nonce = hashlib.blake2b(owner + PLACE, digest_size=12).digest()
        stream = Cipher(algorithms.ChaCha20(key, bytes(4) + nonce), mode=None).encryptor().update(bytes(160))
        assert row.numpy().tobytes() == stream


def test_a_device_makes_the_words_of_the_processor_to_the_bit() -> None:
    """The path of other devices, in torch operations, run on the processor."""
    numbers = Numbers(b"s" * 16)
    nonces = [hashlib.blake2b(owner + PLACE, digest_size=12).digest() for owner in OWNERS]
    assert torch.equal(chacha_blocks(numbers._key, nonces, 9, CPU)[:, :133], numbers.words(OWNERS, PLACE, 133, CPU))


def test_a_row_has_its_numbers_whoever_stands_beside_it_and_wherever_it_stands() -> None:
    numbers = Numbers(b"s" * 16)
    together = numbers.values("normal", (), torch.float32, OWNERS, PLACE, 77, CPU)
    other_company = numbers.values("normal", (), torch.float32, [OWNERS[3], OWNERS[1]], PLACE, 77, CPU)
    assert torch.equal(together[[3, 1]], other_company)


def test_every_part_of_an_address_counts() -> None:
    """Seed, step, descriptor, example, module, number of the draw: two addresses that differ in one of them share nothing."""
    streams = [
        Numbers(seed).words([owner_tag(step, owner)], place_tag(path, nth), 64, CPU)
        for seed, step, owner, path, nth in (
            (b"s" * 16, 3, b"a" * 36, "m", 0),
            (b"t" * 16, 3, b"a" * 36, "m", 0),
            (b"s" * 16, 4, b"a" * 36, "m", 0),
            (b"s" * 16, 3, b"b" + b"a" * 35, "m", 0),  # another descriptor
            (b"s" * 16, 3, b"a" * 35 + b"b", "m", 0),  # another example of it
            (b"s" * 16, 3, b"a" * 36, "n", 0),
            (b"s" * 16, 3, b"a" * 36, "m", 1),
        )
    ] + [Numbers(b"s" * 16).words([shared_tag(3)], place_tag("m", 0), 64, CPU)]
    for i, one in enumerate(streams):
        assert all(int((one == other).sum()) <= 1 for other in streams[i + 1 :])


@pytest.mark.parametrize("probability", [0.0, 2**-16, 0.1, 0.5, 0.9, 1 - 2**-16, 1.0])
def test_a_mask_keeps_at_the_rate_that_is_stated(probability: float) -> None:
    """A multiple of 2^-16; the count over 2^21 numbers is within five deviations of it."""
    mask = Numbers(b"s" * 16).values("keep", (probability,), torch.float32, OWNERS[:2], PLACE, 1 << 20, CPU)
    rate = keep_level(probability) / 65536
    assert abs(rate - probability) <= 2**-17
    assert abs(float(mask.double().mean()) - rate) <= 5 * math.sqrt(rate * (1 - rate) / mask.numel())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("kind", "mean", "std"), [("uniform", 0.5, 12**-0.5), ("normal", 0.0, 1.0), ("exponential", 1.0, 1.0)])
def test_real_numbers_have_the_law_that_was_asked_for(kind: str, mean: float, std: float, dtype: torch.dtype) -> None:
    drawn = Numbers(b"s" * 16).values(kind, (), dtype, OWNERS, PLACE, 100_001, CPU)
    assert drawn.dtype == dtype and drawn.shape == (5, 100_001)
    value = drawn.double()
    slack = 2**-7 if dtype == torch.bfloat16 else 2**-10 if dtype == torch.float16 else 0.0
    assert abs(float(value.mean()) - mean) <= 5 * std / value.numel() ** 0.5 + slack
    assert abs(float(value.std()) / std - 1) <= 0.02
    if kind == "uniform":
        assert float(value.min()) >= 0.0 and float(value.max()) < 1.0
    halves = value[:, :50_000], value[:, 50_000:100_000]
    correlation = float(((halves[0] - mean) * (halves[1] - mean)).mean()) / std**2
    assert abs(correlation) <= 5 / 250_000**0.5 + slack, "the two halves of a row, of pairs of normals say, are independent"


def test_integers_are_even_over_their_range() -> None:
    drawn = Numbers(b"s" * 16).values("integer", (-3, 8), torch.int64, OWNERS, PLACE, 110_000, CPU)
    counts = torch.bincount((drawn + 3).flatten(), minlength=11)
    assert len(counts) == 11 and float((counts / 50_000 - 1).abs().max()) < 0.025


def test_the_seed_of_a_run_follows_that_of_torch_and_leaves_its_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = forward_seed()
    assert torch.equal(torch.get_rng_state(), before) and len(first) == 16
    torch.rand(3)
    assert forward_seed() == first, "what was drawn before does not matter"
    torch.manual_seed(6)
    assert forward_seed() != first
