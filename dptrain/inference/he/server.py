"""Applies an adapter to encrypted states, with public keys alone.

`dptrain.inference.he` says what that protects, and what it does not.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from dptrain.inference.he import packing, wire
from dptrain.inference.he.adapter import Adapter
from dptrain.inference.he.scheme import SCALE, EncryptionRefused, context, copies, dropped, element, levels, sealapi
from dptrain.inference.he.sessions import Sessions


@dataclass(frozen=True, slots=True)
class _Encoded:
    """An adapter at a width: diagonals of A and of B as plaintexts of SEAL, None where one is zero."""

    rank: int
    inward: list[Any]
    outward: list[Any]


@dataclass(frozen=True, slots=True)
class _Session:
    """Public keys of a client: their name, their width, and what turns ciphertexts."""

    name: bytes
    width: int
    galois: Any


class AdapterServer:
    """Keeps public keys by session, and adapters encoded once.

    Guarantee: nothing here, or in what this module takes from others of the project, has a secret key or reads a ciphertext.
    The format of keys has no field for a secret one, and bytes that bring one are refused unread. A state is taken under
    encryption alone. It holds of a server that is handed nothing but `public` and `encrypt` of a client that keeps its key.

    Keys of a session take 19 MB at a width of 2048, and an encoded adapter up to 230 kB for each rank there.
    """

    insecure_test_only: Final = False

    def __init__(self, sessions: int = 16) -> None:
        """Makes a server.

        Args:
            sessions: how many have keys at a time.

        Raises:
            ConfigError: `NO_TENSEAL` where TenSEAL is not installed.
        """
        seal = sealapi()
        self._sessions: Sessions[_Session] = Sessions(sessions)
        self._encoded: WeakKeyDictionary[Adapter, dict[int, _Encoded]] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self._encoder = seal.CKKSEncoder(context())
        self._evaluator = seal.Evaluator(context())

    def register_keys(self, session: str, bundle: bytes, *, replace: bool = False) -> None:
        """Takes the public keys of a session.

        Args:
            replace: take them in place of those that the session has; a bundle that is refused changes nothing.

        Raises:
            EncryptionRefused: as `wire.unpack_keys` (`SECRET_IN_BUNDLE` among them), `SESSION_TAKEN` where the session has
                keys, and `SESSIONS_FULL`.
        """
        if not (replace and self._sessions.has(session)):
            self._sessions.refuse(session)
        width, galois = wire.unpack_keys(bundle)
        self._sessions.add(session, _Session(wire.key_name(bundle), width, galois), replace=replace)

    def forget(self, session: str) -> None:
        """Lets the keys of a session go; it may register others."""
        self._sessions.forget(session)

    def prepare(self, adapter: Adapter, width: int | None = None) -> None:
        """Encodes an adapter ahead of its first state, by default at its own width.

        Raises:
            EncryptionRefused: `WRONG_WIDTH` where the adapter is wider.
        """
        self._encode(adapter, width or adapter.width)

    def apply(self, session: str, adapter: Adapter, state: bytes) -> bytes:
        """Returns an encryption of scaling · B A h under the keys of the session.

        Args:
            session: whose keys are registered.
            adapter: is encoded on its first use at the width of the session.
            state: what `HEKeys.encrypt` gave.

        Raises:
            EncryptionRefused: `NO_KEYS`, `WRONG_KEYS`, `WRONG_LENGTH`, `WRONG_WIDTH`, `NO_ANSWER`, and as
                `wire.unpack_vector`: `STATE_IN_CLEAR` among them.
        """
        keys = self._sessions.of(session)
        came = wire.unpack_vector(wire.STATE, state)
        if (came.keys, came.width) != (keys.name, keys.width):
            raise EncryptionRefused(
                "WRONG_KEYS", "the state is under keys that are not the session's; encrypt it with those"
            )
        outputs, inputs = adapter.B.shape[0], adapter.A.shape[1]
        if came.length != inputs:
            raise EncryptionRefused("WRONG_LENGTH", f"the state is {came.length} long, the adapter takes {inputs}; ask another")
        encoded = self._encode(adapter, keys.width)
        try:
            delta = self._product(came.vector, encoded, keys)
        except (RuntimeError, ValueError) as error:  # a product that shows its content to anybody, by keys made for that
            raise EncryptionRefused("NO_ANSWER", f"SEAL refuses the product ({error}); make new keys, and send them") from error
        return wire.pack_vector(wire.DELTA, keys.name, outputs, keys.width, delta)

    def _encode(self, adapter: Adapter, width: int) -> _Encoded:
        with self._lock:
            known = self._encoded.setdefault(adapter, {})
            if width in known:
                return known[width]
        if adapter.width > width:
            raise EncryptionRefused(
                "WRONG_WIDTH", f"keys are of width {width}, the adapter needs {adapter.width}; make keys of that width"
            )
        inner, outer = adapter.balanced
        rank = inner.shape[0]
        a_RP, b_PR = np.zeros((rank, width)), np.zeros((width, rank))
        a_RP[:, : inner.shape[1]], b_PR[: outer.shape[0]] = inner, outer
        made = _Encoded(rank, self._plaintexts(packing.inward(a_RP), 0), self._plaintexts(packing.outward(b_PR), 1))
        with self._lock:
            return known.setdefault(width, made)

    def _plaintexts(self, diagonals: Iterable[packing.Array], level: int) -> list[Any]:
        """Encodes diagonals at the scale of the prime that goes after the product; SEAL refuses to multiply by zero ones."""
        made = []
        for diagonal in diagonals:
            plain = sealapi().Plaintext()
            self._encoder.encode(diagonal.tolist(), levels()[level].parms_id(), dropped(level), plain)
            made.append(None if plain.is_zero() else plain)
        if all(plain is None for plain in made):
            raise EncryptionRefused("ADAPTER_ZERO", "a factor of the adapter vanishes at scale 2^40; serve the base without it")
        return made

    def _product(self, state: Any, encoded: _Encoded, keys: _Session) -> Any:
        inside = self._by_diagonals(state, encoded.inward, copies(keys.width), keys)
        for steps in packing.folds(encoded.rank, keys.width):
            self._evaluator.add_inplace(inside, self._turned(inside, steps, keys))
        return self._by_diagonals(inside, encoded.outward, 1, keys)

    def _by_diagonals(self, vector: Any, diagonals: list[Any], stride: int, keys: _Session) -> Any:
        """Returns the sum over i of the vector turned by i strides times diagonal i: one prime lower, at the same scale."""
        baby = packing.baby_steps(len(diagonals))
        turned = [vector]
        while len(turned) < baby:
            turned.append(self._turned(turned[-1], stride, keys))
        total = None
        for start in range(len(diagonals) - baby, -1, -baby):
            if total is not None:
                total = self._turned(total, baby * stride, keys)
            for copy, plain in zip(turned, diagonals[start : start + baby], strict=True):
                if plain is None:
                    continue
                part = sealapi().Ciphertext()
                self._evaluator.multiply_plain(copy, plain, part)
                if total is None:
                    total = part
                else:
                    self._evaluator.add_inplace(total, part)
        assert total is not None  # some diagonal is not zero
        self._evaluator.rescale_to_next_inplace(total)
        total.scale = SCALE  # exact but for rounding of doubles: the plaintext's scale is the prime that went
        return total

    def _turned(self, vector: Any, steps: int, keys: _Session) -> Any:
        made = sealapi().Ciphertext()
        self._evaluator.apply_galois(vector, element(steps), keys.galois, made)
        return made
