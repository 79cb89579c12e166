"""Take withdrawals into a running ledger: signed files dropped beside it, read before the next charge.

A ledger has one writer, the run. Whoever wants to withdraw while it trains puts the file that ``dptrain attest withdraw``
wrote into ``LEDGER.db.withdrawals/``. The run verifies what is new there before every charge, and stops the contribution.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from attest import signed_file
from attest.descriptor import ContributionDescriptor
from attest.errors import AttestError
from attest.files import make_private_directory
from attest.policy import SignedPolicy
from attest.registry import Registry
from attest.schema.plain import utc, visible
from attest.withdrawal import EXPIRED, verify_entitled_withdrawal
from dptrain.data.contributions import Descriptors, Pool
from dptrain.errors import ResumeRefused
from dptrain.record.recorder import Recorder
from dptrain.record.registry_watch import RegistryWatch
from ledger.errors import StorageFailed


class WithdrawalIgnored(UserWarning):
    """A file in the withdrawal folder that does not verify; it is renamed, and changes nothing."""


class Inbox:
    """Verifies withdrawals and hands each to the ledger once.

    Guarantee: a withdrawal is taken only if it is signed by the contributor of the contribution that it names, with a key
    valid now, or by the corpus owner. A file is renamed to ``.taken`` after the ledger has it durably, so a crash repeats it
    (which the ledger ignores) and never loses it.
    """

    def __init__(self, folder: Path, signed: SignedPolicy, owner_public: bytes) -> None:
        self._folder = folder
        self._signed = signed
        self._owner_public = owner_public

    def make(self) -> None:
        """Makes the folder, for its owner alone, so that a withdrawal can be put there before a run charges anything.

        One that is there stays as it is: its owner may have let others write there.

        Raises:
            StorageFailed: code INBOX, it cannot be made.
        """
        if self._folder.is_dir():
            return
        try:
            make_private_directory(self._folder)
        except OSError as error:
            sentence = f"cannot make {self._folder}, where a run takes in withdrawals: {error.strerror or error}; mend the disk"
            raise StorageFailed("INBOX", sentence) from error

    def take(
        self,
        descriptors: Mapping[bytes, ContributionDescriptor],
        registry: Registry,
        record: Callable[[bytes, str, bytes], object],
        now: int,
    ) -> None:
        """Calls ``record(descriptor_hash, reason_code, evidence_hash)`` for every new withdrawal that verifies.

        Args:
            descriptors: contributions of the run by their hash. registry: keys of the contributors, as they are now.
            record: enters a withdrawal durably. now: POSIX seconds.
        """
        for path in self._waiting():
            try:
                payload, message = signed_file.read(path, what="withdrawal")
                found = verify_entitled_withdrawal(
                    payload,
                    message,
                    owner=self._signed.owner,
                    owner_key=self._owner_public,
                    corpus=self._signed.policy.corpus,
                    descriptors=descriptors,
                    registry=registry,
                    now=now,
                )
            except AttestError as error:
                warnings.warn(visible(f"{path}: {error}"), WithdrawalIgnored, stacklevel=2)
                path.rename(path.with_name(path.name + ".refused"))
                continue
            record(found.descriptor_hash, found.reason_code, hashlib.sha256(message).digest())
            path.rename(path.with_name(path.name + ".taken"))

    def _waiting(self) -> Iterator[Path]:
        if self._folder.is_dir():
            yield from sorted(path for path in self._folder.iterdir() if path.suffix == ".cose" and path.is_file())


def settle_pool(pool: Pool, registry: RegistryWatch, inbox: Inbox, recorder: Recorder, now: int) -> None:
    """Records, before a charge, a later registry, and what was withdrawn, has expired, or lost the support of the registry.

    Raises:
        LeafRefused: code CLOCK_JUMP, the clock ran so far ahead since the last leaf that it may be wrong: what a false clock
            lets expire would stay withdrawn, so nothing is recorded by it.
        RegistryRefused: the registry changed to one that does not verify or extend the last one, or lies ahead of the clock.
        ResumeRefused: code NOT_YET_VALID, what somebody's attestation allows has not begun at this time.
    """
    recorder.require_clock(now)
    registry.refresh(now)
    known = registry.current
    ledger = recorder.writer
    ledger.take_registry(known.root(), now=now)
    inbox.take(Descriptors(pool.slots), known, lambda *what: ledger.withdraw(*what, now=now), now)
    # Where the clock stepped back the charge is dated as the last leaf: nothing may have ended by then.
    charged_at = max(now, ledger.state.last_time)
    expired = ((one.descriptor_hash, EXPIRED, one.attestation_hash) for one in pool.expired(charged_at))
    barred = ((one.descriptor_hash, reason, known.root()) for one, reason in registry.barred(pool, charged_at))
    ledger.withdraw_all(expired, now=now)
    ledger.withdraw_all(barred, now=now)
    gone = ledger.state.withdrawals
    early = [one for one in pool.not_yet_valid(charged_at) if one.descriptor_hash not in gone]
    if early:
        begins = max(admission.descriptor.not_before for admission in early)
        raise ResumeRefused(
            "NOT_YET_VALID",
            f"{len(early)} contributions were admitted by a clock that was ahead: their attestations are valid from "
            f"{utc(begins)} on at the latest, and it is {utc(charged_at)}. Resume then, or withdraw them "
            f"({early[0].descriptor_hash.hex()[:16]}... first)",
        )
