"""The keyed stream: standard AES-CTR, addressed by position, never the same bytes at two addresses."""

import ctypes

import pytest

torch = pytest.importorskip("torch")

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: E402

from dptrain.noise import KeyStream, keystream  # noqa: E402

MASTER = bytes(range(32))
RUN = b"r" * 16


def stream(purpose: str = "noise", attempt: int = 0, master: bytes = MASTER, run: bytes = RUN) -> KeyStream:
    return KeyStream(purpose, run, attempt, master)


def test_a_range_does_not_depend_on_how_it_is_cut() -> None:
    whole = stream().read(3, 5, 0, 64)
    assert whole == b"".join(stream().read(3, 5, start, 16) for start in range(0, 64, 16))


def test_blocks_are_the_cipher_applied_to_the_address() -> None:
    s = stream()
    counter = (3).to_bytes(4, "big") + (5).to_bytes(4, "big") + (9).to_bytes(8, "big")
    expected = Cipher(algorithms.AES(s._key), modes.ECB()).encryptor().update(counter)
    assert s.read(3, 5, 9, 1) == expected


@pytest.mark.parametrize(
    "other",
    [stream("sampling"), stream(attempt=1), stream(master=bytes(32)), stream(run=b"s" * 16)],
    ids=["purpose", "attempt", "master", "run"],
)
def test_every_part_of_the_address_changes_the_bytes(other: KeyStream) -> None:
    assert stream().read(1, 1, 0, 4) != other.read(1, 1, 0, 4)
    assert stream().read(1, 1, 0, 4) != stream().read(1, 2, 0, 4)
    assert stream().read(1, 1, 0, 4) != stream().read(2, 1, 0, 4)


def test_addresses_outside_the_stream_are_refused() -> None:
    for step, lane, block in ((-1, 0, 0), (1 << 32, 0, 0), (0, 1 << 32, 0), (0, 0, -1)):
        with pytest.raises(ValueError, match="outside the stream"):
            stream().read(step, lane, block, 1)


def test_what_kernels_read_by_is_the_same_stream_wherever_it_is_cut() -> None:
    if keystream.evp() is None:
        pytest.skip("no OpenSSL beside the interpreter")
    for step, lane, first in ((3, 5, 9), ((1 << 32) - 1, (1 << 32) - 1, (1 << 64) - 64), (0, 0, (1 << 32) - 7)):
        with stream().running(step, lane, first, 64) as (address, cipher):
            update = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3, ctypes.c_char_p, ctypes.c_int)(address)
            found = b""
            for blocks in (1, 17, 46):
                room, written = ctypes.create_string_buffer(16 * 64), ctypes.c_int()
                assert update(cipher, ctypes.addressof(room), ctypes.addressof(written), keystream.ZEROS, 16 * blocks) == 1
                assert written.value == 16 * blocks
                found += room.raw[: written.value]
        assert found == stream().read(step, lane, first, 64)


def test_kernels_read_no_address_that_is_none() -> None:
    for step, lane, block, blocks in ((-1, 0, 0, 1), (1 << 32, 0, 0, 1), (0, 1 << 32, 0, 1), (0, 0, (1 << 64) - 1, 2)):
        with pytest.raises(ValueError, match="outside the stream"), stream().running(step, lane, block, blocks):
            pass


def test_the_key_does_not_show_in_a_representation() -> None:
    assert MASTER.hex() not in repr(stream()) and "master" not in repr(stream())
