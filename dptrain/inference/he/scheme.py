"""Fixes the one set of CKKS parameters that client and server use, and hands objects of SEAL over as bytes."""

import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from dptrain.errors import ConfigError, DptrainError

DEGREE: Final = 8192
"""N, the degree of the polynomial modulus."""
SLOTS: Final = DEGREE // 2
MODULI: Final = (60, 40, 40, 60)
"""Bits of the primes: the last one is for switching keys, and each of two products takes one of 40."""
SCALE: Final = 2.0**40
WIDTHS: Final = (64, 128, 256, 512, 1024, 2048)
"""Widths to which states and answers are filled up. The last is the widest that an adapter may be on either side."""
RANK: Final = 64
"""The largest rank of an adapter."""
NORM: Final = 2.0**14
"""The longest state, by its Euclidean norm."""
GAIN: Final = 2.0**4
"""How much longer than the state an entry of the answer may be. NORM · GAIN is 2^18; a last prime of 60 bits leaves room for
2^19 above a scale of 2^40, beyond which an answer would wrap around unseen."""
HOW: Final = "run: pip install 'dptrain[he]'"


class EncryptionRefused(DptrainError):
    """Keys, a state or an answer that cannot be used under encryption."""


@cache
def sealapi() -> ModuleType:
    """Returns the bindings of SEAL.

    Raises:
        ConfigError: `NO_TENSEAL` where TenSEAL is not installed.
    """
    try:
        from tenseal import sealapi as bindings
    except ImportError as error:
        raise ConfigError("NO_TENSEAL", f"encrypted adapters need tenseal, which is not installed ({error}); {HOW}") from error
    return bindings


@cache
def context() -> Any:
    """Returns the context of the parameters above: never of parameters that somebody sent.

    Raises:
        ConfigError: `NO_TENSEAL` where TenSEAL is not installed; `HE_PARAMETERS` where SEAL does not find them secure.
    """
    seal = sealapi()
    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
    parameters.set_poly_modulus_degree(DEGREE)
    parameters.set_coeff_modulus(seal.CoeffModulus.Create(DEGREE, list(MODULI)))
    made = seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.TC128)
    if not made.parameters_set():
        why = made.parameters_error_message()
        raise ConfigError("HE_PARAMETERS", f"SEAL refuses the parameters ({why}); use tenseal 0.3.18")
    return made


@cache
def levels() -> tuple[Any, ...]:
    """Returns the contexts of data with 3, 2 and 1 primes: a fresh state, the state in rank space, the answer."""
    fresh = context().first_context_data()
    inside = fresh.next_context_data()
    return fresh, inside, inside.next_context_data()


def dropped(level: int) -> float:
    """Returns the prime that rescaling drops at a level: a plaintext at this scale leaves that of a ciphertext as it was."""
    return float(levels()[level].parms().coeff_modulus()[-1].value())


def copies(width: int) -> int:
    """Returns how many turned copies of a state stand in the slots: as many as fit, at most 8."""
    return min(SLOTS // width, 8)


def rotations(width: int) -> tuple[int, ...]:
    """Returns by how many slots a state of this width is turned: powers of two below that of its copies, whatever the rank."""
    return tuple(1 << power for power in range((copies(width) * width).bit_length() - 1))


def element(steps: int) -> int:
    """Returns the Galois element of a rotation to the left, 3^steps mod 2N."""
    return pow(3, steps, 2 * DEGREE)


def saved(thing: Any) -> bytes:
    """Returns what SEAL writes of a thing. The bindings write to a path; this one lies in memory where the system has such."""
    return _by_path(lambda path: thing.save(path), b"")


def loaded(thing: Any, data: bytes) -> Any:
    """Fills a thing of SEAL with bytes, and returns it. SEAL holds them against the context: levels, sizes, coefficients.

    Raises:
        RuntimeError, ValueError, IndexError: as the bindings raise where SEAL refuses them.
    """
    _by_path(lambda path: thing.load(context(), path), data)
    return thing


def _by_path(use: Callable[[str], object], data: bytes) -> bytes:
    """Puts bytes where a path leads, has them used, and returns what lies there after that."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("dptrain", os.MFD_CLOEXEC), "r+b") as file:
            file.write(data)
            file.flush()
            use(f"/proc/self/fd/{file.fileno()}")
            file.seek(0)
            return b"" if data else file.read()
    with tempfile.TemporaryDirectory() as folder:  # open to this user alone
        path = Path(folder, "object")
        path.write_bytes(data)
        use(str(path))
        return b"" if data else path.read_bytes()
