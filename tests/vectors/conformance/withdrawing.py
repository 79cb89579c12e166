"""Honest exports whose reader gives signed withdrawals besides."""

import hashlib
from collections.abc import Callable
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import cbor
from attest.withdrawal import EXPIRED, Withdrawal, sign_withdrawal
from tests.vectors.conformance.honest import Run, ended, expired, four, plain
from tests.vectors.conformance.written import Files
from tests.worlds.attested_ledgers import CONTRIBUTORS, AttestedDriver, attestation, attested_admission, spec_of
from tests.worlds.ledgers import OTHER_KEY, OWNER_KEY, START

ALICE, BOB = CONTRIBUTORS["alice"], CONTRIBUTORS["bob"]
SIGNED_AT: Final = START + 4


def descriptor_of(n: int, class_name: str = "open") -> bytes:
    """Returns the descriptor hash of an attested contribution."""
    return attested_admission(n, class_name).descriptor_hash


ENDING: Final = attestation(9, not_after=START + 50)
"""The attestation of bob that ends in the run `expiry`."""


def signed(
    name: bytes,
    key: Ed25519PrivateKey,
    signer: str,
    *,
    reason: str = "consent",
    time: int = SIGNED_AT,
    corpus: str = "notes",
    flip: bool = False,
) -> tuple[bytes, bytes]:
    """Returns the file of a signed withdrawal, and its evidence hash.

    Args:
        name: descriptor hash of what is withdrawn.
        key: that signs. signer: under this name.
        reason: as signed. time: POSIX seconds. corpus: of which it is withdrawn.
        flip: whether a bit of the signature is another.
    """
    payload, message = sign_withdrawal(Withdrawal(name, corpus, time, reason), key, signer=signer)
    message = message[:-1] + bytes([message[-1] ^ flip])
    return cbor.encode([payload, message]), hashlib.sha256(message).digest()


BY_ALICE, ALICE_EVIDENCE = signed(descriptor_of(2), ALICE, "alice")
BY_OWNER, OWNER_EVIDENCE = signed(descriptor_of(3, "sensitive"), OWNER_KEY, "owner", reason="error")
AFTER_EXPIRY, LATE_EVIDENCE = signed(ENDING.opened().digest(), BOB, "bob", time=START + 55)
BY_STRANGER, STRANGER_EVIDENCE = signed(descriptor_of(2), OTHER_KEY, "mallory")

Leaving = tuple[bytes, str, bytes]
"""Descriptor hash, reason and evidence hash of a WITHDRAW leaf."""


def leaving(*leaves: Leaving) -> Callable[[AttestedDriver], None]:
    """Returns a run in which some leave between two windows."""

    def life(driver: AttestedDriver) -> None:
        four(driver)
        driver.steps(1)
        for name, reason, evidence in leaves:
            driver.ledger.withdraw(name, reason, evidence, now=driver.tick())
        driver.steps(1)
        ended(driver)

    return life


def expired_and_withdrawn(driver: AttestedDriver) -> None:
    """The attestation of somebody ends; who signed it withdraws it besides."""
    four(driver)
    driver.admit(spec_of(ENDING))
    driver.steps(1)
    driver.now = START + 50
    name = ENDING.opened().digest()
    driver.ledger.withdraw(name, EXPIRED, ENDING.digest(), now=driver.now)
    driver.now = START + 60
    driver.steps(1)
    driver.ledger.withdraw(name, "consent", LATE_EVIDENCE, now=driver.tick())
    ended(driver)


SHOWN: Final[Files] = {"alice.cose": BY_ALICE, "owner.cose": BY_OWNER}

RUNS: Final[dict[str, Run]] = {
    "withdrawals shown": Run(
        "a contributor and the owner withdraw, and the reader has what they signed",
        leaving((descriptor_of(2), "consent", ALICE_EVIDENCE), (descriptor_of(3, "sensitive"), "error", OWNER_EVIDENCE)),
        withdrawals=SHOWN,
    ),
    "withdrawals shown in part": Run(
        "the reader has one of two", plain, withdrawals={"alice.cose": BY_ALICE}, of="withdrawals shown"
    ),
    "withdrawals without a registry": Run(
        "who may sign for a contributor the registry tells, which is not there",
        leaving((descriptor_of(2), "consent", ALICE_EVIDENCE)),
        withdrawals={"alice.cose": BY_ALICE},
        beside=(True, False),
        verdict="TOLD",
    ),
    "other files among the withdrawals": Run(
        "what cannot be read as a withdrawal counts for nothing",
        plain,
        withdrawals=SHOWN | {"letter.txt": b"please forget me", "empty.cose": b""},
        of="withdrawals shown",
    ),
    "withdrawal not entered": Run(
        "a contributor signed a withdrawal that no leaf enters", plain, withdrawals={"alice.cose": BY_ALICE}, of="poisson"
    ),
    "withdrawal by another": Run(
        "bob signed a withdrawal of what alice contributed: it shows nothing",
        plain,
        withdrawals={"bob.cose": signed(descriptor_of(2), BOB, "bob")[0]},
        of="poisson",
    ),
    "withdrawal from another corpus": Run(
        "a contributor withdrew from another corpus: it is nothing of this run",
        plain,
        withdrawals={"alice.cose": signed(descriptor_of(2), ALICE, "alice", corpus="letters")[0]},
        of="poisson",
    ),
    "withdrawal by nobody enrolled": Run(
        "a leaf enters what a key signed that the registry does not have: who withdrew is told",
        leaving((descriptor_of(2), "consent", STRANGER_EVIDENCE)),
        withdrawals={"mallory.cose": BY_STRANGER},
        like="withdrawals shown",
    ),
    "withdrawal after expiry": Run(
        "what expired was withdrawn after that, and no leaf enters it",
        expired,
        withdrawals={"bob.cose": AFTER_EXPIRY},
        of="expiry",
    ),
    "expired and withdrawn": Run(
        "what expired was withdrawn after that, and a second leaf enters it",
        expired_and_withdrawn,
        withdrawals={"bob.cose": AFTER_EXPIRY},
        like="expiry",
    ),
}
"""Honest exports by name."""
