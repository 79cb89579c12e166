"""What the gate refuses for the sake of what went before: repetitions, copies, floods, withdrawals, a clock set back."""

from typing import NamedTuple

from attest.admission import Passed, Refusal, Seen, descriptor_tag
from attest.clock import BACK_SECONDS, MAX_TIME
from attest.errors import AttestError, RegistryRefused
from attest.examination import refusal_of, refuse
from attest.policy import Policy
from attest.reasons import ReasonCode
from attest.registry import Registry

WITHDRAWN = "contribution was withdrawn; withdrawals stand"
"""Why a withdrawn contribution is refused, for a person."""


class Share(NamedTuple):
    """How many contributions may be admitted, and under whose name they are counted.

    A person who stands behind several contributors, as the registry says, has one share for all of them.
    """

    holder: str
    cap: int

    @classmethod
    def of(cls, contributor: str, policy: Policy, registry: Registry) -> "Share":
        known = registry.find(contributor)
        cap = policy.contributor_cap
        if known is None:
            return cls(contributor, cap)
        # No identifier holds a space, so a principal is never taken for a contributor of the same name.
        holder = contributor if known.principal is None else f"principal {known.principal}"
        return cls(holder, cap if known.cap is None else min(known.cap, cap))


def refused_for_history(passed: Passed, earlier: int | None, share: Share, seen: Seen) -> Refusal | None:
    """Why a contribution is refused for what was admitted or withdrawn before; None if it is not."""
    if passed.descriptor_hash in seen.withdrawn:
        code, sentence = ReasonCode.WITHDRAWN, WITHDRAWN
    elif earlier is not None and earlier == descriptor_tag(passed.descriptor_hash):
        code = ReasonCode.REPLAYED
        sentence = "this attestation was admitted already; each is good for one contribution"
    elif earlier is not None:
        code = ReasonCode.DUPLICATE_CONTENT
        sentence = "this content was admitted already under another attestation"
    elif seen.count(share.holder) >= share.cap:
        code = ReasonCode.CONTRIBUTOR_CAP
        sentence = f"{share.holder} has {share.cap} contributions already, the most allowed"
    else:
        return None
    return Refusal(code, sentence, passed.descriptor_hash, passed.contributor)


def clock_refusal(now: int, seen: Seen, registry: Registry) -> Refusal | None:
    """Why nothing is judged at this reading of the clock; None if it may be."""
    try:
        check_clock(now, seen, registry)
    except AttestError as error:
        return refusal_of(error)
    return None


def check_clock(now: int, seen: Seen, registry: Registry) -> None:
    """Refuse a clock that reads no time, that went back since the last admission, or that lags behind the registry."""
    if type(now) is not int or not 0 <= now < MAX_TIME:
        refuse(ReasonCode.CLOCK, f"clock reads {ascii(now)[:60]}, expected whole seconds since 1970")
    if now < seen.latest - BACK_SECONDS:
        refuse(
            ReasonCode.CLOCK,
            f"clock reads {now}, {seen.latest - now} s before the last admission; set the clock right",
        )
    try:
        registry.require_not_ahead(now)
    except RegistryRefused as error:
        refuse(ReasonCode.CLOCK, error.sentence)
