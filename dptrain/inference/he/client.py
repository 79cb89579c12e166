"""Keeps a secret key in one process, encrypts states, and reads answers.

Zeroing: SEAL clears the memory of a secret key when its last owner goes, and `close` lets all owners here go. Arrays that this
module fills, and SEAL's plaintexts, are set to zero after use. Not cleared: lists of Python numbers between numpy and SEAL, the
copies that the bindings make of them, the caller's own state and delta, and what the system wrote out (swap, core dumps).
"""

from types import TracebackType
from typing import Any, Final, NoReturn, Self

import numpy as np

from dptrain.inference.he import packing, wire
from dptrain.inference.he.adapter import Array, as_array
from dptrain.inference.he.scheme import NORM, SCALE, WIDTHS, EncryptionRefused, context, element, rotations, sealapi


class HEKeys:
    """A secret key, and the public bundle that goes to a server.

    Guarantee: the secret key leaves the process in no method, and the object can be neither pickled nor copied.

    What `decrypt` gives must not go back to the server, nor what follows from it (`dptrain.inference.he` says why).

    Attributes:
        width: Of states, zeros included. public: Bytes for `register_keys`, 17 MB at a width of 2048.
    """

    insecure_test_only: Final = False

    def __init__(self, secret: Any, width: int, public: bytes) -> None:
        """Takes a secret key of SEAL; `generate` makes one."""
        seal = sealapi()
        self.width, self.public, self._name = width, public, wire.key_name(public)
        self._encoder: Any = seal.CKKSEncoder(context())
        self._encryptor: Any = seal.Encryptor(context(), secret)
        self._decryptor: Any = seal.Decryptor(context(), secret)

    @classmethod
    def generate(cls, width: int = WIDTHS[-1]) -> Self:
        """Makes keys from the system's entropy.

        Args:
            width: `Adapter.width` of the adapter, or more: fewer keys go with a smaller one, and products are faster.

        Raises:
            ConfigError: `NO_TENSEAL` where TenSEAL is not installed.
            EncryptionRefused: `WRONG_WIDTH`.
        """
        seal = sealapi()
        if width not in WIDTHS:
            raise EncryptionRefused("WRONG_WIDTH", f"a width of {width}; take one of {', '.join(map(str, WIDTHS))}")
        generator = seal.KeyGenerator(context())
        galois = seal.GaloisKeys()
        generator.create_galois_keys([element(steps) for steps in rotations(width)], galois)
        return cls(generator.secret_key(), width, wire.pack_keys(galois, width))

    def encrypt(self, state: Any) -> bytes:
        """Returns an encryption of a state; two of one state differ.

        Args:
            state: n numbers (a list, numpy, or torch), n at most the width, of Euclidean norm at most 2^14.

        Raises:
            EncryptionRefused: `CLOSED`, `WRONG_LENGTH`, `NOT_FINITE` or `TOO_LARGE`.
        """
        self._refuse_closed()
        values = as_array(state)
        if values.ndim != 1 or not 0 < len(values) <= self.width:
            raise EncryptionRefused(
                "WRONG_LENGTH", f"a state of shape {values.shape}; one vector of at most {self.width} numbers is taken"
            )
        with np.errstate(over="ignore"):
            norm = float(np.linalg.norm(values))
        if not np.isfinite(norm):
            raise EncryptionRefused("NOT_FINITE", "the state, or its norm, is not finite; give finite numbers")
        if norm > NORM:
            raise EncryptionRefused("TOO_LARGE", f"the state is {norm:.4g} long, more than {NORM:g}; scale it and the answer")
        slots, plain, vector = packing.repeated(values, self.width), sealapi().Plaintext(), sealapi().Ciphertext()
        self._encoder.encode(slots.tolist(), SCALE, plain)
        self._encryptor.encrypt_symmetric(plain, vector)
        for each in (values, slots):
            each.fill(0.0)
        plain.set_zero()
        return wire.pack_vector(wire.STATE, self._name, len(values), self.width, vector)

    def decrypt(self, answer: bytes) -> Array:
        """Returns delta, m numbers, of what a server answered.

        The server decides what it answers: nothing shows that delta is what the adapter gives.

        Raises:
            EncryptionRefused: `CLOSED`, `WRONG_KEYS`, and as `wire.unpack_vector`.
        """
        self._refuse_closed()
        came = wire.unpack_vector(wire.DELTA, answer)
        if (came.keys, came.width) != (self._name, self.width):
            raise EncryptionRefused("WRONG_KEYS", "the answer is under other keys; decrypt it with those of the request")
        plain = sealapi().Plaintext()
        self._decryptor.decrypt(came.vector, plain)
        values = np.array(self._encoder.decode_double(plain)[: came.length])
        plain.set_zero()
        return values

    def close(self) -> None:
        """Lets the secret key go; SEAL clears its memory. The keys are of no use after that."""
        self._encryptor = self._decryptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"HEKeys(width={self.width}, {'closed' if self._decryptor is None else 'open'})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise EncryptionRefused("SECRET_STAYS", "a secret key is neither pickled nor copied; make keys where they are used")

    def _refuse_closed(self) -> None:
        if self._decryptor is None:
            raise EncryptionRefused("CLOSED", "these keys are closed; make new ones by HEKeys.generate")
