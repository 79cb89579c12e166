"""Lies about coefficients that a policy has the digest of, and that lie in the leaves behind the header."""

import hashlib
from dataclasses import replace
from typing import Final
from unittest.mock import patch

from attest.policy import MechanismRule
from attest.policy.mechanism import Bands
from ledger.accountants.correlated.turns import Turns
from ledger.leaves import Admit, Coefficients
from tests.vectors.conformance.correlated import BANDS_IN_FILE, DENSE
from tests.vectors.conformance.lies import Lie
from tests.vectors.conformance.lies_of_noise import less, signed_otherwise, turns_say, writer
from tests.vectors.conformance.lying import Change, cut_back, inserted, left_out, on_leaves, told
from tests.vectors.conformance.written import Pieces
from tests.worlds.ledgers import START


def other_number(leaf: Coefficients) -> Coefficients:
    """The last coefficient is the next one."""
    return replace(leaf, data=leaf.data[:-1] + bytes([leaf.data[-1] ^ 1]))


def of_other_bands(data: bytes) -> Change:
    """Returns what puts other coefficients behind the header."""
    return told(Coefficients, lambda leaf: replace(leaf, data=data))


def in_two(pieces: Pieces) -> Pieces:
    """The coefficients are cut in two leaves."""
    leaf = pieces.leaves[1]
    assert isinstance(leaf, Coefficients)
    halved = pieces.saying(1, replace(leaf, data=leaf.data[:8]))
    return halved.inserted(2, Coefficients(2, leaf.time, leaf.data[8:]))


def behind_an_admission(pieces: Pieces) -> Pieces:
    """The first ADMIT leaf stands before the coefficients."""
    leaf = pieces.leaves[1]
    assert isinstance(leaf, Coefficients)
    return pieces.without(1).inserted(2, replace(leaf, seq=2, time=pieces.leaves[2].time))


def again(pieces: Pieces, seq: int) -> Coefficients:
    """Returns the coefficients once more."""
    leaf = pieces.leaves[1]
    assert isinstance(leaf, Coefficients)
    return replace(leaf, seq=seq, time=pieces.leaves[seq].time)


def unasked(pieces: Pieces, seq: int) -> Coefficients:
    """Returns coefficients of a policy that has them itself."""
    return Coefficients(seq, START, bytes(16))


def in_a_file(name: str, parameters: Bands | None, *numbers: int) -> MechanismRule:
    """Returns noise whose coefficients are these."""
    data = b"".join(number.to_bytes(4, "big", signed=True) for number in numbers)
    return MechanismRule(name, parameters, hashlib.sha256(data).digest(), data)


NO_DIAGONAL: Final = in_a_file("banded_toeplitz", Bands(bands=4), 0, 1 << 20, 0, 0)


def of_no_strategy(pieces: Pieces) -> Pieces:
    """The owner signed coefficients whose diagonal is zero, and they are there."""
    assert NO_DIAGONAL.coefficients is not None
    signed = signed_otherwise(mechanism=NO_DIAGONAL)(pieces.files())
    return of_other_bands(NO_DIAGONAL.coefficients)(Pieces.of(signed))


LIES: Final[dict[str, Lie]] = {
    "a coefficient in a leaf": Lie(
        "one coefficient behind the header is another", "dense", on_leaves(told(Coefficients, other_number)), "COEFFICIENTS"
    ),
    "a coefficient in a leaf, and what turns add up to": Lie(
        "the coefficients are those of a strategy that costs less, and what turns add up to is theirs",
        "bands in a file",
        on_leaves(of_other_bands((1 << 20).to_bytes(4, "big") + bytes(12))),
        "COEFFICIENTS",
    ),
    "coefficients left out": Lie(
        "no coefficients follow the header", "dense, resumed", on_leaves(left_out(Coefficients)), "COEFFICIENTS"
    ),
    "a header and nothing else": Lie(
        "the export ends with the header, without coefficients", "dense", on_leaves(cut_back(1)), "COEFFICIENTS"
    ),
    "coefficients in two leaves": Lie(
        "the coefficients are cut in two where one leaf has room for them", "bands in a file", on_leaves(in_two), "COEFFICIENTS"
    ),
    "coefficients behind an admission": Lie(
        "somebody is admitted before the coefficients are there", "columns", on_leaves(behind_an_admission), "COEFFICIENTS"
    ),
    "coefficients twice": Lie(
        "the coefficients stand there once more", "columns", on_leaves(inserted(Admit, again)), "COEFFICIENTS"
    ),
    "coefficients that nobody asked for": Lie(
        "coefficients follow a header whose policy has them", "bands", on_leaves(inserted(Admit, unasked)), "COEFFICIENTS"
    ),
    "coefficients of no strategy": Lie(
        "the owner signed coefficients whose first is zero",
        "bands in a file",
        lambda files: of_no_strategy(Pieces.of(files)).files(),
        "POLICY_UNSUPPORTED",
    ),
    "the digest of other coefficients": Lie(
        "the owner signed the digest of other coefficients than those that follow",
        "bands in a file",
        signed_otherwise(mechanism=replace(BANDS_IN_FILE, digest=hashlib.sha256(b"other").digest(), coefficients=None)),
        "COEFFICIENTS",
    ),
    "more bands than steps": Lie(
        "the owner signed columns with more bands than there are steps",
        "columns",
        signed_otherwise(mechanism=in_a_file("banded", Bands(bands=13), 1 << 20)),
        "POLICY_UNSUPPORTED",
    ),
    "more steps than a dense strategy has": Lie(
        "the owner signed a dense strategy of 2049 steps",
        "dense",
        signed_otherwise(mechanism=replace(DENSE, coefficients=None), steps=2_049),
        "POLICY_UNSUPPORTED",
    ),
    "dense turns add up to less": Lie(
        "what the turns of a dense strategy add up to is the double below", "dense", turns_say(0, 1, less), "TURNS"
    ),
    "a dense step once more adds less": Lie(
        "what a step done again adds is the double below", "dense", turns_say(1, 2, less), "TURNS"
    ),
    "dense noise without what its inverse lacks": Lie(
        "occurrences of a dense strategy cost what they would if its inverse were exact",
        "dense",
        writer("dense", patch.object(Turns, "occurrence", lambda self, step: _occurrence(self, step) * (1 - 2.0**-20))),
        "SPEND_ORDER",
    ),
}
"""Lies by name."""

_occurrence = Turns.occurrence
