"""Noise drawn on the device of the sum: the RFC's cipher to the bit, and the release of a plain transcription in numpy."""

import math
import os
import pickle
from collections.abc import Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dptrain.engine.options import NoiseSource  # noqa: E402
from dptrain.errors import ConfigError, ResumeRefused  # noqa: E402
from dptrain.noise import DeviceGaussian, KeyStream, device, keystream  # noqa: E402
from dptrain.noise.keystream import ChaChaStream  # noqa: E402
from dptrain.noise.lattice import LATTICE_BITS  # noqa: E402
from dptrain.noise.normals import TAIL_LANE  # noqa: E402
from tests.worlds.trainer import Trainer  # noqa: E402
from tests.worlds.training import make_world  # noqa: E402

RUN = b"r" * 16
MASTER = bytes(range(32))


def stream(purpose: str = "noise on a device", attempt: int = 0, master: bytes = MASTER, run: bytes = RUN) -> ChaChaStream:
    return ChaChaStream(purpose, run, attempt, master)


def with_key(key: bytes) -> ChaChaStream:
    """A stream of this very key, whatever it would be derived from."""
    found = stream()
    object.__setattr__(found, "_key", key)
    return found


def rfc_bytes(key: bytes, counter: int, nonce: bytes) -> bytes:
    """A block of ours, addressed as the RFC addresses it."""
    first, lane, step = (int.from_bytes(nonce[i : i + 4], "little") for i in (0, 4, 8))
    words = with_key(key).words(step, lane, torch.tensor([first << 32 | counter]))
    return words.flatten().numpy().astype("<i4").tobytes()


VECTORS = {
    "2.3.2": (
        bytes(range(32)), 1, "000000090000004a00000000",
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4ed2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    "A.1 1": (
        bytes(32), 0, "00" * 12,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    "A.1 2": (
        bytes(32), 1, "00" * 12,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    "A.1 3": (
        bytes(31) + b"\x01", 1, "00" * 12,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    "A.1 4": (
        b"\x00\xff" + bytes(30), 2, "00" * 12,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    "A.1 5": (
        bytes(32), 0, "00" * 11 + "02",
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c78a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
}  # fmt: skip


@pytest.mark.parametrize("vector", VECTORS)
def test_blocks_are_those_of_rfc_8439(vector: str) -> None:
    key, counter, nonce, expected = VECTORS[vector]
    assert rfc_bytes(key, counter, bytes.fromhex(nonce)).hex() == expected


def plain_words(key: bytes, step: int, lane: int, block: int) -> list[int]:
    """The block function in Python's integers, word by word, as the RFC writes it."""
    low = (1 << 32) - 1
    head = [int.from_bytes((b"expand 32-byte k" + key)[i : i + 4], "little") for i in range(0, 48, 4)]
    start = [*head, block & low, block >> 32, lane, step]
    s = list(start)

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for x, y, z, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            s[x] = (s[x] + s[y]) & low
            s[z] ^= s[x]
            s[z] = (s[z] << bits & low) | s[z] >> 32 - bits

    for _ in range(10):
        for column in range(4):
            quarter(column, 4 + column, 8 + column, 12 + column)
        for column in range(4):
            quarter(column, 4 + (column + 1) % 4, 8 + (column + 2) % 4, 12 + (column + 3) % 4)
    return [(a + b) & low for a, b in zip(s, start, strict=True)]


@pytest.mark.parametrize(
    ("step", "lane", "first"), [(0, 0, 0), (5, 3, 7), (1 << 31, TAIL_LANE | 9, (1 << 32) - 2), (2**32 - 1, 2**32 - 1, 2**40)]
)
def test_blocks_are_the_rfcs_at_every_kind_of_address(step: int, lane: int, first: int) -> None:
    s, count = stream(), 4
    found = s.words(step, lane, torch.arange(first, first + count))
    expected = [plain_words(s._key, step, lane, first + k) for k in range(count)]
    assert (found.T.numpy().astype(np.int64) & 0xFFFFFFFF).tolist() == expected
    assert torch.equal(found, device.openssl_words(s, step, lane, first, count))


def plain_normals(s: ChaChaStream, step: int, lane: int, offset: int, count: int) -> np.ndarray:
    """The transform by itself, in numpy and Python's integers, one pair after the other."""
    values = []
    for pair in range(offset // 2, (offset + count + 1) // 2):
        words = plain_words(s._key, step, lane, pair // 4)
        first, second = (words[4 * (pair % 4) + 2 * half] | words[4 * (pair % 4) + 2 * half + 1] << 32 for half in (0, 1))
        fine = ((first & 0x7FF) << 10 | second >> 1 & 0x3FF) + 1
        x = np.float64(first >> 11) * 2.0**-54 + np.float64(fine) * 2.0**-75
        if x < 2.0**-21:
            more = plain_words(s._key, step, lane | TAIL_LANE, pair)
            x += np.float64((more[0] | more[1] << 32) >> 11) * 2.0**-128
        radius = np.sqrt(-2.0 * (np.log1p(-x) if second & 1 else np.log(x)))
        angle = np.float64(second >> 11) * (2.0**-53 * 2.0 * np.pi)
        values += [radius * np.cos(angle), radius * np.sin(angle)]
    return np.array(values)[offset % 2 :][:count]


@pytest.mark.parametrize(("offset", "count"), [(0, 2000), (6, 1), (40, 333), (1001, 12)])
def test_normals_are_those_of_a_plain_transcription_to_a_few_units_in_the_last_place(offset: int, count: int) -> None:
    found = DeviceGaussian(stream()).normals(3, 1, offset, count).numpy()
    expected = plain_normals(stream(), 3, 1, offset, count)
    assert found.shape == expected.shape
    assert np.all(np.abs(found - expected) <= 2.0**-49 * np.abs(expected) + 2.0**-60)  # of equal angles


class Low:
    """A stream whose words of radii start with many zeros, so that tails are read."""

    def words(self, step: int, lane: int, block: torch.Tensor) -> torch.Tensor:
        found = stream().words(step, lane, block)
        if lane < TAIL_LANE:
            found[1::4] &= 0x1FF  # x below 2^-24
        return found


def test_further_bits_of_the_tail_are_read_at_the_pairs_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = plain_words

    def low(key: bytes, step: int, lane: int, block: int) -> list[int]:
        words = whole(key, step, lane, block)
        return [w & 0x1FF if lane < TAIL_LANE and k % 4 == 1 else w for k, w in enumerate(words)]

    monkeypatch.setitem(globals(), "plain_words", low)
    found = DeviceGaussian(Low()).normals(2, 7, 16, 400).numpy()
    expected = plain_normals(stream(), 2, 7, 16, 400)
    assert np.all(np.abs(found - expected) <= 2.0**-49 * np.abs(expected) + 2.0**-60)


def test_a_release_is_integers_of_the_sum_plus_integers_of_the_noise() -> None:
    total = torch.randn(1001, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gamma = 0.3 * 2.0**-LATTICE_BITS
    expected = (total / gamma).round() + (torch.from_numpy(plain_normals(stream(), 2, 4, 0, 1001)) * 2.0**LATTICE_BITS).round()
    released = DeviceGaussian(stream()).release_(total, 0.3, 7.0, step=2, lane=4)
    assert released is total
    integers = released * 7.0 / gamma
    off = (integers.round() - expected).abs()
    assert float(off.max()) <= 1 and int((off > 0).sum()) <= 2, "another last bit of a logarithm may turn a rounding"
    assert float((integers - integers.round()).abs().max()) < 1e-3


@pytest.mark.one_in(7)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("draws", [1, 3])
def test_a_release_does_not_depend_on_how_it_is_cut(dtype: torch.dtype, draws: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def released() -> torch.Tensor:
        total = torch.linspace(-2.0, 3.0, 20_003, dtype=dtype)
        return DeviceGaussian(stream()).release_(total, 0.3, 7.0, step=2, lane=4, draws=draws)

    whole = released()
    monkeypatch.setitem(device.BLOCKS, "cpu", 64)
    pieces = released()
    assert int((whole != pieces).sum()) <= 2 and float((whole - pieces).abs().max()) < 1e-6


def test_draws_of_a_step_have_addresses_of_their_own_and_unit_variance_together() -> None:
    g = DeviceGaussian(stream())
    together = g.gaussian(1, 5, 0, 4000, draws=3)
    single = sum(g.normals(1, 15 + k, 0, 4000) for k in range(3)) * 3**-0.5
    assert torch.allclose(together, single, rtol=1e-12)
    assert abs(float(together.square().sum()) - 4000) < 5 * math.sqrt(2 * 4000)


def test_sums_beyond_the_lattice_are_cut_as_on_the_processor() -> None:
    total = torch.tensor([1e300, -1e300, 0.0, 1.0], dtype=torch.float64)
    released = DeviceGaussian(stream()).release_(total, 1.0, 1.0, step=1, lane=0)
    assert torch.equal((released / 2.0**19).round(), torch.tensor([1.0, -1.0, 0.0, 0.0], dtype=torch.float64))


@pytest.mark.parametrize(
    "other",
    [stream("noise"), stream(attempt=1), stream(master=bytes(32)), stream(run=b"s" * 16)],
    ids=["purpose", "attempt", "master", "run"],
)
def test_every_part_of_the_address_changes_the_words(other: ChaChaStream) -> None:
    block = torch.arange(2)
    base = stream().words(1, 1, block)
    for found in (other.words(1, 1, block), stream().words(1, 2, block), stream().words(2, 1, block), base.flip(1)):
        assert not bool((base == found).any())


def test_the_key_is_not_that_of_the_processors_stream() -> None:
    assert stream()._key != KeyStream("noise", RUN, 0, MASTER)._key


def test_an_address_is_never_released_twice_and_others_are_refused() -> None:
    g = DeviceGaussian(stream())
    g.release_(torch.zeros(4), 1.0, 1.0, step=3, lane=0)
    for step, lane in ((3, 0), (2, 5)):
        with pytest.raises(ValueError, match="never used twice"):
            g.release_(torch.zeros(4), 1.0, 1.0, step=step, lane=lane)
    g.release_(torch.zeros(4), 1.0, 1.0, step=3, lane=0, offset=4)
    with pytest.raises(ValueError, match="never used twice"):
        g.release_(torch.zeros(4), 1.0, 1.0, step=3, lane=0, offset=7)
    with pytest.raises(ValueError, match="standard deviation"):
        g.release_(torch.zeros(4), math.nan, 1.0, step=4, lane=0)
    with pytest.raises(ValueError, match="contiguous"):
        g.release_(torch.zeros(4, 4).T[:2], 1.0, 1.0, step=4, lane=0)
    with pytest.raises(ValueError, match="lane"):
        g.normals(1, TAIL_LANE, 0, 2)
    with pytest.raises(ValueError, match="outside the stream"):
        g.normals(1 << 32, 0, 0, 2)


def test_the_key_is_neither_shown_nor_pickled_nor_used_in_a_forked_process_nor_kept_after_destroy() -> None:
    s = stream()
    g = DeviceGaussian(s)
    assert MASTER.hex() not in repr(s) and "master" not in repr(s)
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(g)
    g.normals(1, 0, 0, 2)
    child = os.fork()
    if child == 0:
        try:
            g.normals(1, 0, 0, 2)
        except RuntimeError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (held,) = s._heads.values()
    g.destroy()
    assert not bool(held.any()) and not s._heads
    with pytest.raises(AttributeError):
        g.normals(1, 0, 0, 2)


def test_a_release_works_in_inference_mode_and_after_it() -> None:
    g = DeviceGaussian(stream())
    with torch.inference_mode():
        assert bool((g.release_(torch.zeros(64), 1.0, 1.0, step=1, lane=0) != 0).all())
    assert bool((g.release_(torch.zeros(64), 1.0, 1.0, step=1, lane=1) != 0).all())
    g.destroy()


@pytest.fixture
def untested() -> Iterator[None]:
    before = set(device._passed)
    device._passed.clear()
    yield
    device._passed.clear()
    device._passed.update(before)


def _rounds_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    def eighteen(state: torch.Tensor) -> torch.Tensor:
        a, b, c, d = state.view(4, 4, -1)
        spare = torch.empty_like(a)
        for _ in range(9):
            keystream._quarter_round(a, b, c, d, spare)
            b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)
            keystream._quarter_round(a, b, c, d, spare)
            b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
        return torch.cat((a, b, c, d))

    monkeypatch.setattr(keystream, "_twenty_rounds", eighteen)


def _shift_with_the_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    def turn(x: torch.Tensor, other: torch.Tensor, bits: int, spare: torch.Tensor) -> None:
        x ^= other
        x.copy_(x << bits | x >> (32 - bits))

    monkeypatch.setattr(keystream, "_xor_and_turn", turn)


def _sine_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    sine = torch.sin
    monkeypatch.setattr(torch, "sin", _second_time(sine, lambda x: sine(x.float()).double()))


def _logarithm_six_units_off(monkeypatch: pytest.MonkeyPatch) -> None:
    logarithm = torch.log
    monkeypatch.setattr(torch, "log", _second_time(logarithm, lambda x: logarithm(x) * (1 + 6 * 2.0**-52)))


def _second_time(first, second):
    """The processor's value, then the device's."""
    calls: list[int] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return (second if len(calls) % 2 == 0 else first)(x)

    return function


@pytest.mark.parametrize("fault", [_rounds_too_few, _shift_with_the_sign, _sine_of_float32, _logarithm_six_units_off])
def test_a_device_that_computes_otherwise_is_refused(fault, untested: None, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises(ConfigError, match="noise cannot be drawn on device 'cpu'") as caught:
        DeviceGaussian(stream()).release_(torch.zeros(8), 1.0, 1.0, step=1, lane=0)
    assert caught.value.code == "NOISE_DEVICE" and "host" in caught.value.sentence


def test_a_device_without_float64_is_refused_by_name(untested: None) -> None:
    with pytest.raises(ConfigError, match="cannot compute what is needed"):
        device.require(torch.device("meta"))


@pytest.mark.slow
def test_a_run_with_noise_of_the_device_says_so_in_its_header_and_resumes_with_it_alone(tmp_path) -> None:
    world = make_world(tmp_path, steps=4)
    trainer = Trainer(world, noise_generator="device").begin()
    assert isinstance(trainer.private.prepared.attempt.streams.noise, DeviceGaussian)
    step = next(iter(trainer.steps))
    trainer.one(step)
    note = trainer.private.opened.recorder.ledger.header.exactness_note
    assert note.startswith("fast: ") and "float64 functions within 4 units in the last place." in note
    trainer.close()
    with pytest.raises(ResumeRefused, match="another account of its numerics"):
        Trainer(world, resume=True)
    again = Trainer(world, resume=True, noise_generator="device")
    again.run()
    assert all(bool(p.isfinite().all()) for p in again.model.parameters())
    again.close()


def test_the_default_header_says_nothing_of_generators(tmp_path) -> None:
    trainer = Trainer(make_world(tmp_path, steps=1)).begin()
    assert "device" not in trainer.private.opened.recorder.ledger.header.exactness_note
    assert not isinstance(trainer.private.prepared.attempt.streams.noise, DeviceGaussian)
    trainer.close()


@pytest.mark.parametrize("level", ["fast", "certified"])
@pytest.mark.one_in(3)
def test_what_a_run_releases_with_noise_of_the_device_lies_on_the_lattice(level: str, tmp_path, monkeypatch) -> None:
    release, seen = DeviceGaussian.release_, []

    def listening(self: DeviceGaussian, total: torch.Tensor, std: float, normalizer: float, **address: int) -> torch.Tensor:
        found = release(self, total, std, normalizer, **address)
        integers = found * normalizer / (std * 2.0**-LATTICE_BITS)
        seen.append(float((integers - integers.round()).abs().max()))
        return found

    monkeypatch.setattr(DeviceGaussian, "release_", listening)
    trainer = Trainer(make_world(tmp_path, steps=2, policy_extra=f'exactness = "{level}"'), noise_generator="device")
    trainer.run()
    trainer.close()
    assert len(seen) == 2 * len(trainer.private.prepared.router.tensors) and max(seen) < 1e-3


def test_a_generator_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected 'host' or 'device'"):
        NoiseSource("philox")


@pytest.mark.gpu
def test_a_release_on_cuda_is_that_of_the_processors_tensors_but_for_last_bits() -> None:
    total = torch.linspace(-2.0, 3.0, 1 << 20, dtype=torch.float64)
    there = DeviceGaussian(stream()).release_(total.to("cuda", copy=True), 0.3, 7.0, step=2, lane=4).cpu()
    here = DeviceGaussian(stream()).release_(total, 0.3, 7.0, step=2, lane=4)
    step = 0.3 * 2.0**-LATTICE_BITS / 7.0
    assert float((there - here).abs().max()) < 1.5 * step and int((there != here).sum()) < 200
