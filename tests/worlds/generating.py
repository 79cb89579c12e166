"""A budget log by which contributions make texts under a signed rule, the same at every call, and what can be lied about it."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import keys, sign1, signed_file
from attest.attestation import Attestation
from attest.descriptor import GENERATE, TRAIN, ContributionDescriptor, SignedDescriptor
from attest.policy import SignedPolicy, sign_policy, verify_policy
from attest.policy.classes import DecodingRule
from ledger.budget import GenerationRule, Mechanism, Unit
from ledger.budget.generation import ClassLimit, OverRuns
from ledger.budget.leaves import Leaf, Reference, Reserve, Text, Withdrawn
from ledger.budget.log import BudgetLog, BudgetSpec, Reservation
from ledger.leaves import Previous
from ledger.leaves.header import TEXTS
from ledger.note import NoteSigner
from ledger.replay.earlier_runs import SpentRegistry
from ledger.replay.earlier_texts import EarlierTexts
from tests.worlds.budget_lies import edited, without
from tests.worlds.gate import ALICE, BOB, CORPUS, MALLORY, MICRO, NOW, OWNER, YEAR, make_policy, make_registry, registry_bytes
from tests.worlds.ledgers import OTHER_KEY, SIGNER
from tests.worlds.registries import put

TOKENS = 20
TOKEN = 2_024_794
"""What a token costs by the rule: 10^9 0.14^2 / (2 2^2 1.1^2), rounded up."""

DECODING = DecodingRule(
    references=2,
    clip_norm_micro=140_000,
    temperature_micro=1_100_000,
    tokens=TOKENS,
    max_rho_nano=3 * TOKENS * TOKEN + 5,
    top_k=50,
)
"""Three texts, and nothing more."""


@cache
def signed(**changes: Any) -> SignedPolicy:
    """A policy whose class `sensitive` is for both uses, and `open` for training alone, as its owner signed it."""
    registry = make_registry()
    policy = make_policy(registry)
    rule = replace(DECODING, **changes)
    classes = tuple(
        replace(one, purposes=(GENERATE, TRAIN), generation=rule) if one.name == "sensitive" else one for one in policy.classes
    )
    found = replace(policy, classes=classes)
    return verify_policy(*sign_policy(found, OWNER, owner="owner", registry_root=registry.root()), keys.public_bytes(OWNER))


RULE = GenerationRule.of(signed(), "sensitive")


def attested(number: int, key: Ed25519PrivateKey = ALICE, **changes: Any) -> Attestation:
    """What the contributor `alice` signs of a content of this number, with some fields changed."""
    fields: dict[str, Any] = {
        "contributor": "alice",
        "data_class": "clinic/notes",
        "admissibility_class": "sensitive",
        "clip_norm_micro": MICRO,
        "noise_multiplier_micro": 1_100_000,
        "corpus": CORPUS,
        "not_before": NOW - 1000,
        "not_after": NOW + 1000,
        "purposes": (GENERATE,),
        "content_hash": hashlib.sha256(b"content %d" % number).digest(),
        "nonce": hashlib.sha256(b"nonce %d" % number).digest()[:16],
        "salts": b"".join(hashlib.sha256(b"salt %d" % place).digest()[:16] for place in range(3)),
        **changes,
    }
    descriptor = ContributionDescriptor(**fields)
    payload = descriptor.to_cbor()
    return Attestation(payload, sign1.sign(payload, key, contributor=descriptor.issuer), descriptor.opening())


def unit(attestation: Attestation) -> Unit:
    """The unit of a contribution."""
    return Unit("contribution", hashlib.sha256(attestation.descriptor).hexdigest())


def spec(**changes: Any) -> BudgetSpec:
    """A budget of contributions under the rule."""
    return BudgetSpec(
        **{
            "caps": {"contribution": (10 * MICRO, 10**6)},
            "mechanisms": [Mechanism("invisibleink", 1, True, "tokens drawn from clipped logits")],
            "generation": [RULE],
            "log_id": bytes(16),
            "secret": bytes(32),
            **changes,
        }
    )


def created(place: Any, **changes: Any) -> BudgetLog:
    """A fresh log under the rule."""
    return BudgetLog.create(place, spec(**changes), SIGNER, now=NOW)


def text_of(log: BudgetLog, units: list[Unit], now: int = NOW, tokens: int = TOKENS, rho: int = TOKEN) -> Reservation:
    """Reserves a text."""
    return log.reserve_text(units, "invisibleink", tokens, rho_nano=rho, now=now)


FOUR = (*(attested(number) for number in range(3)), attested(3, BOB, contributor="bob"))
"""Three of Alice's, one of Bob's."""


def generated(path: Path) -> BudgetLog:
    """A log with texts of four contributions, of which one was withdrawn while a text of it was open."""
    log = created(path)
    one, two, three, four = (unit(each) for each in FOUR)
    log.admit(FOUR[:3], now=NOW)
    log.commit(_fixed(log, [one, two], NOW + 1), 12, now=NOW + 2)
    log.admit(FOUR[3:], now=NOW + 3)
    kept = _fixed(log, [two, three], NOW + 4)
    _fixed(log, [one, four], NOW + 4)
    log.withdraw(three, now=NOW + 5)
    log.commit(kept, TOKENS, now=NOW + 6)
    log.close_epoch(SIGNER, now=NOW + 7)
    _fixed(log, [one, two], NOW + 8)
    log.close_epoch(SIGNER, now=NOW + 9)
    return log


BEFORE = NoteSigner("ledger.example/before", OTHER_KEY)
PREVIOUS = Previous(BEFORE.name, 12, bytes(32), bytes(range(32)), BEFORE.vkey, TEXTS)
"""Another budget that a log counts."""

ROOMY = 3_000_000
"""A limit over all runs in which the texts of the rule have room, at delta 1e-6: they are worth 2.38."""

LIMITED = attested(4, max_epsilon_micro=ROOMY, max_delta_pico=10**6)


def counting(path: Path) -> BudgetLog:
    """A log that counts another budget, and admitted somebody who signed a limit over all runs."""
    log = created(path, over_runs=OverRuns((PREVIOUS,), (ClassLimit("sensitive", ROOMY, 10**6),)))
    before = EarlierTexts(PREVIOUS, NOW - 9, NOW - 9, (), {})
    log.admit([FOUR[0], LIMITED], spent=SpentRegistry((), [before]), now=NOW)
    log.commit(_fixed(log, [unit(FOUR[0]), unit(LIMITED)], NOW + 1), 7, now=NOW + 2)
    log.close_epoch(SIGNER, now=NOW + 3)
    return log


def _fixed(log: BudgetLog, units: list[Unit], now: int) -> Reservation:
    """Reserves a text under a request that is the same in every run."""
    name = hashlib.sha256(f"{[unit.name for unit in units]} {now}".encode()).digest()[:16]
    return log.reserve_text(units, "invisibleink", TOKENS, request=name, rho_nano=TOKEN, now=now)


def brought(folder: Path) -> dict[str, Any]:
    """What an auditor brings, as files: the registry, the signed policy, and the owner's key."""
    folder.mkdir(parents=True, exist_ok=True)
    put(folder / "registry.cbor", registry_bytes())
    found = signed()
    signed_file.write(folder / "policy.cose", found.payload, found.sign1)
    keys.save_public_key(folder / "owner.pub", keys.public_bytes(OWNER), "owner")
    return {
        "owner_key": keys.public_bytes(OWNER),
        "policies": [folder / "policy.cose"],
        "registry": folder / "registry.cbor",
    }


def referring(attestation: Attestation, number: int = 0, **changes: Any) -> Callable[[list[Leaf]], list[Leaf]]:
    """Puts another attestation into the n-th REFERENCE leaf."""
    fields = {"descriptor": attestation.descriptor, "sign1": attestation.sign1, **changes}
    return edited(lambda leaf: replace(leaf, **fields), Reference, number)


def ruled(**changes: Any) -> Callable[[list[Leaf]], list[Leaf]]:
    """Changes the rule in the header."""
    return lambda leaves: [replace(leaves[0], generation=(replace(RULE, **changes),)), *leaves[1:]]


def behind(leaf: Callable[[int, int], Leaf]) -> Callable[[list[Leaf]], list[Leaf]]:
    """Adds a leaf at the end, made from its position and time."""
    return lambda leaves: [*leaves, leaf(len(leaves), leaves[-1].time)]


def paying(*attestations: Attestation, tokens: int = TOKENS, rho: int = TOKEN) -> Callable[[int, int], Leaf]:
    """A TEXT leaf of contributions."""
    accounts = tuple(sorted(hashlib.sha256(one.descriptor).digest() for one in attestations))
    return lambda seq, time: Text(seq, time, accounts, "invisibleink", tokens, rho, b"9" * 16)


def admitting(attestation: Attestation, rule: str = "sensitive") -> Callable[[int, int], Leaf]:
    """A REFERENCE leaf."""
    return lambda seq, time: Reference(seq, time, rule, attestation.descriptor, attestation.sign1)


def withdrawing(attestation: Attestation) -> Callable[[int, int], Leaf]:
    """A WITHDRAWN leaf."""
    return lambda seq, time: Withdrawn(seq, time, hashlib.sha256(attestation.descriptor).digest())


def _both(*changes: Callable[[list[Leaf]], list[Leaf]]) -> Callable[[list[Leaf]], list[Leaf]]:
    def change(leaves: list[Leaf]) -> list[Leaf]:
        for one in changes:
            leaves = one(leaves)
        return leaves

    return change


def _by_a_user(seq: int, time: int) -> Leaf:
    return Reserve(seq, time, "user", bytes(32), None, None, "invisibleink", 1, 1, b"9" * 16)


NEW = attested(9)
SHORT = attested(9, not_after=NOW + 10)

LIES: dict[str, tuple[Callable[[list[Leaf]], list[Leaf]], set[str]]] = {
    "a reference left out": (without(Reference), {"REFERENCE"}),
    "never admitted": (behind(paying(NEW, FOUR[3])), {"REFERENCE"}),
    "admitted behind it": (_both(behind(paying(NEW, FOUR[3])), behind(admitting(NEW))), {"REFERENCE"}),
    "a token below the floor": (edited(lambda leaf: replace(leaf, rho_nano=TOKEN - 1), Text), {"RHO"}),
    "a longer text": (edited(lambda leaf: replace(leaf, releases=TOKENS + 1), Text), {"TOKENS"}),
    "a text of fewer references than the rule says": (behind(paying(FOUR[3])), {"REFERENCES"}),
    "a text that one of its contributions does not pay for": (
        edited(lambda leaf: replace(leaf, accounts=leaf.accounts[:1]), Text),
        {"REFERENCES"},
    ),
    "a text of more": (behind(paying(FOUR[0], FOUR[1], FOUR[3], tokens=1)), {"REFERENCES"}),
    "a text that somebody else pays for": (behind(_by_a_user), {"MECHANISM"}),
    "more than the rule": (behind(paying(FOUR[1], FOUR[3], rho=3 * TOKEN)), {"EXHAUSTED"}),
    "behind the withdrawal": (behind(paying(FOUR[2], FOUR[3])), {"WITHDRAWN"}),
    "withdrawn twice": (behind(withdrawing(FOUR[2])), {"WITHDRAWN"}),
    "admitted twice": (behind(admitting(FOUR[0])), {"REPEATED"}),
    "admitted again after the withdrawal": (
        _both(behind(withdrawing(NEW)), behind(admitting(NEW))),
        {"WITHDRAWN"},
    ),
    "another budget for the same commitment": (behind(admitting(attested(0, not_after=NOW + 999))), {"DUPLICATE_CONTENT"}),
    "signed to train": (behind(admitting(attested(9, purposes=(TRAIN,)))), {"PURPOSE"}),
    "signed without purposes": (behind(admitting(attested(9, purposes=None))), {"PURPOSE"}),
    "signed for another class": (behind(admitting(attested(9, admissibility_class="open"))), {"CLASS"}),
    "no such rule": (behind(admitting(attested(9, admissibility_class="open"), "open")), {"RULE"}),
    "a limit over all runs": (
        behind(admitting(attested(9, max_epsilon_micro=MICRO, max_delta_pico=10**6))),
        {"LIMIT"},
    ),
    "valid no more": (behind(admitting(attested(9, not_after=NOW + 1))), {"EXPIRED"}),
    "not valid yet": (behind(admitting(attested(9, not_before=NOW + 500))), {"NOT_YET_VALID"}),
    "paying behind its validity": (
        _both(behind(admitting(SHORT)), behind(lambda seq, _: paying(SHORT, FOUR[3])(seq, NOW + 10))),
        {"EXPIRED"},
    ),
    "the message of another": (referring(FOUR[0], sign1=FOUR[3].sign1), {"ISSUER"}),
    "the message over another": (referring(FOUR[0], sign1=FOUR[1].sign1), {"ISSUER"}),
    "the message by another issuer": (lambda leaves: _issued(bytes(32).hex())(leaves), {"ISSUER"}),
    "a message for another use": (lambda leaves: _issued(None, typ=sign1.TYP_ANCHOR)(leaves), {"ISSUER"}),
    "a message that is none": (referring(FOUR[0], sign1=b"\xd2\x80"), {"HEADER"}),
    "a descriptor that is none": (referring(FOUR[0], descriptor=FOUR[0].descriptor + b"\0"), {"CBOR"}),
    "a rule with a lower floor": (ruled(clip_norm_micro=130_000), {"RULE"}),
    "a rule with more": (ruled(max_rho_nano=RULE.max_rho_nano + 1), {"RULE"}),
    "a rule of another policy": (ruled(policy=bytes(32)), {"POLICY"}),
    "signed by somebody else": (referring(attested(0, MALLORY)), {"KEY_UNKNOWN"}),
    "signed by nobody": (lambda leaves: referring(_forged(FOUR[0]))(leaves), {"SIG_BAD"}),
    "signed for another corpus": (behind(admitting(attested(9, corpus="another"))), {"AUDIENCE"}),
    "signed for longer than the policy takes": (behind(admitting(attested(9, not_after=NOW + YEAR))), {"WINDOW"}),
}
"""Each with the codes by which an auditor who has policy and registry finds it."""

COUNTED_LIES: dict[str, tuple[Callable[[list[Leaf]], list[Leaf]], set[str]]] = {
    "a limit that texts alone could pass": (
        behind(admitting(attested(9, max_epsilon_micro=2_300_000, max_delta_pico=10**6))),
        {"LIMIT"},
    ),
    "a limit in a log that counts no run": (lambda leaves: [replace(leaves[0], over_runs=None), *leaves[1:]], {"LIMIT"}),
}
"""Of a log that counts runs."""

BY_PAPERS = (
    "a rule with a lower floor",
    "a rule with more",
    "a rule of another policy",
    "signed by somebody else",
    "signed by nobody",
    "signed for another corpus",
    "signed for longer than the policy takes",
)
"""Lies that no replay of the leaves finds: whoever has no policy and no registry is told that nothing was held against them."""


def _issued(issuer: str | None, **more: Any) -> Callable[[list[Leaf]], list[Leaf]]:
    """Puts another message over the descriptor of the first reference into it."""
    payload = FOUR[0].descriptor
    named = SignedDescriptor.from_cbor(payload).issuer if issuer is None else issuer
    return referring(FOUR[0], sign1=sign1.sign(payload, ALICE, contributor=named, **more))


def _forged(attestation: Attestation) -> Attestation:
    """The same, with one bit of the signature turned."""
    message = attestation.sign1
    return replace(attestation, sign1=message[:-1] + bytes([message[-1] ^ 1]))
