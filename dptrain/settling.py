"""Settles the pool before every charge: records who may not be in it any more, and takes out whom the record names."""

from attest.schema.plain import utc
from dptrain.errors import ResumeRefused
from dptrain.inbox import Inbox
from dptrain.pool import Pool
from dptrain.recording import Recorder
from dptrain.registry_watch import RegistryWatch


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
    recorder.take_registry(known.root(), now)
    inbox.take(pool.descriptors, known, lambda *what: recorder.withdraw(*what, now=now), now)
    # Where the clock stepped back the charge is dated as the last leaf: nothing may have ended by then.
    charged_at = max(now, recorder.ledger.state.last_time)
    recorder.expire(pool.expired(charged_at), now)
    recorder.bar(registry.barred(pool, charged_at), known.root(), now)
    gone = recorder.withdrawn()
    early = [admission for admission in pool.not_yet_valid(charged_at) if admission.descriptor_hash not in gone]
    if early:
        begins = max(admission.descriptor.not_before for admission in early)
        raise ResumeRefused(
            "NOT_YET_VALID",
            f"{len(early)} contributions were admitted by a clock that was ahead: their attestations are valid from "
            f"{utc(begins)} on at the latest, and it is {utc(charged_at)}. Resume then, or withdraw them "
            f"({early[0].descriptor_hash.hex()[:16]}... first)",
        )
