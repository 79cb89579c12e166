"""Checksums by the kernel are those that torch forms, to the bit, whatever the type, the length and the place of the memory."""

import ctypes

import pytest

torch = pytest.importorskip("torch")

from dptrain.kernels import checksums as kernel  # noqa: E402
from dptrain.sandbox import untouched  # noqa: E402

pytestmark = pytest.mark.skipif(kernel.library() is None, reason="no C++ compiler here, so torch computes")

LENGTHS = (0, 1, 7, 8, 9, 4095, 4096, 4097, 512 * 8 + 3, 1 << 20, (1 << 21) + 4096 * 3 + 29, (1 << 22) + 8)
"""Bytes: of no word, of less than one row, of whole rows, of one piece and of several, with and without a rest."""


def drawn(size: int) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(size))


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_the_numbers_are_those_of_torch(threads: int) -> None:
    values = [drawn(size) for size in LENGTHS]
    assert kernel.checksums(values) == [int(untouched._checksum(value)) for value in values]
    assert untouched.checksums(values).tolist() == kernel.checksums(values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.bool, torch.complex64, torch.int8])
def test_types_count_by_their_bytes(dtype: torch.dtype) -> None:
    value = (torch.arange(5001) % 3).to(dtype).view(3, 1667)
    assert kernel.takes(value) and kernel.checksums([value]) == [int(untouched._checksum(value))]


def test_memory_that_begins_anywhere_is_read() -> None:
    whole = drawn(20_000)
    for start in range(9):
        part = whole[start : start + 9_001]
        assert kernel.checksums([part]) == [int(untouched._checksum(part))]


def test_each_word_and_byte_counts() -> None:
    value = drawn((1 << 21) + 4096 + 13)
    before = kernel.checksums([value])
    for place in (0, 4095, 4096, (1 << 21) - 1, 1 << 21, (1 << 21) + 4100, len(value) - 1):
        value[place] ^= 1
        assert kernel.checksums([value]) != before
        value[place] ^= 1
    words = value[: 1 << 21].view(torch.int64)
    words[[3, 700]] = words[[700, 3]]
    assert kernel.checksums([value]) != before


def test_what_it_does_not_take_is_left_to_torch() -> None:
    plain = torch.arange(64.0).view(8, 8)
    others = [plain.t(), plain[:, 1:], torch.view_as_complex(plain.view(32, 2)).conj(), torch.zeros(4).to_sparse()]
    assert not any(kernel.takes(one) for one in others) and kernel.takes(plain)
    shared = torch._lazy_clone(plain)
    assert not kernel.takes(shared) and torch._C._is_cow_tensor(shared), "asked for its place, it would have been copied"
    gone = torch.zeros(1000)[500:]
    gone.untyped_storage().resize_(0)
    assert not kernel.takes(gone), "there is no memory behind it"
    found = untouched.checksums([plain, plain.t(), plain])
    assert found.tolist() == [int(untouched._checksum(one)) for one in (plain, plain.t(), plain)]


def test_sums_lie_on_the_processor_whatever_the_device_of_new_tensors_is() -> None:
    plain = torch.arange(64.0).view(8, 8)
    with torch.device("meta"):
        assert untouched.checksums([plain]).device.type == untouched.checksums([plain, plain.t()]).device.type == "cpu"


def test_a_kernel_that_computes_something_else_is_not_used() -> None:
    class Wrong:
        def __init__(self, off: int) -> None:
            self._off = off

        def dptrain_checksums(self, places: object, words: object, many: int, sums: ctypes.Array) -> None:
            kernel.library().dptrain_checksums(places, words, many, sums)
            sums[self._off] += 1

    assert kernel.works(kernel.library()) and not kernel.works(Wrong(0)) and not kernel.works(Wrong(1))
