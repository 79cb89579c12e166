"""Makes the header of a ledger from what the engine knows."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from attest.policy import Policy, SignedPolicy
from attest.schedule.blocks import derive
from attest.schedule.geometry import Pair, pairs_of
from attest.schedule.stack import Stack
from attest.schema.cards import card_of
from ledger import accountants
from ledger.leaves.header import (
    AccountantInfo,
    Header,
    HeaderBlock,
    Previous,
    scheduled_blocks,
    scheduled_coordinates,
    turns_under,
)
from ledger.leaves.kinds import as_leaf
from ledger.leaves.numerics import Numerics
from ledger.leaves.pairs import Geometry
from ledger.leaves.reads import Reads


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderSpec:
    """Brings what the engine knows when it creates a ledger; the ledger fills in the rest of the header.

    Attributes: as in `Header`; ``policy`` is the opened signed policy, with the raw key it was opened under, ``unprobed`` comes
    in any order, ``blocks`` are those of policy and stack where they are None, ``numerics`` gives exactness note and clip
    margin, and ``ranks`` the rank of every pair under the geometry of the policy, by the name of its tensor ``lora_B``.
    """

    policy: SignedPolicy
    owner_key: bytes
    registry_root: bytes
    model_fingerprint: bytes
    stack: Stack
    isolation: str
    randomness: str
    unprobed: tuple[str, ...]
    blocks: tuple[HeaderBlock, ...] | None = None
    frozen_digest: bytes | None = None
    numerics: Numerics = field(default_factory=Numerics)
    ranks: Mapping[str, int] = field(default_factory=dict)
    private: bool = True
    caps_enforced: bool = False
    previous: tuple[Previous, ...] = ()
    run_id: bytes = field(default_factory=lambda: os.urandom(16))

    _repr_html_ = card_of

    @property
    def rules(self) -> Policy:
        """Returns the policy as a run of training goes by it. Raises PolicyRefused: code PURPOSE, no class is for training."""
        return self.policy.policy.for_training()

    @property
    def scheduled(self) -> tuple[HeaderBlock, ...]:
        """Returns the blocks: those given, or those of policy and stack. Raises ValueRefused: as `scheduled_blocks`."""
        return scheduled_blocks(self.rules, self.stack) if self.blocks is None else self.blocks

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Returns the pairs under the geometry of the policy. Raises ValueRefused: as `attest.schedule.geometry.pairs_of`."""
        return pairs_of(self.rules, self.stack, self.ranks)

    @property
    def exactness_note(self) -> str:
        """Says what the numerics guarantee."""
        return self.numerics.note(self.rules, scheduled_coordinates(self.scheduled))

    def header(self, *, origin: str, log_vkey: str, time: int) -> Header:
        """Returns the header leaf. Raises LeafRefused: code POLICY_UNSUPPORTED, nothing accounts for the noise of the policy,
        or no class is for training; or as `Header`."""
        with as_leaf("POLICY_UNSUPPORTED"):
            policy = self.rules
            about = AccountantInfo(*accountants.describe(policy.accountant, policy.mechanism.name))
            turns = turns_under(policy)
        with as_leaf():
            blocks, note = self.scheduled, self.exactness_note
            geometry = Geometry.of(self.pairs)
            reads = Reads.of(policy, self.stack, derive(policy.classes, self.stack))
        header = Header(
            time=time,
            origin=origin,
            policy_payload=self.policy.payload,
            policy_sign1=self.policy.sign1,
            owner=self.policy.owner,
            owner_key=self.owner_key,
            log_vkey=log_vkey,
            run_id=self.run_id,
            registry_root=self.registry_root,
            model_fingerprint=self.model_fingerprint,
            blocks=blocks,
            accountant=about,
            exactness_note=note,
            private=self.private,
            clip_margin=self.numerics.margin(policy),
            caps_enforced=self.caps_enforced,
            isolation=self.isolation,
            randomness=self.randomness,
            unprobed=tuple(sorted(set(self.unprobed))),
            stack=self.stack,
            frozen_digest=self.frozen_digest,
            previous=self.previous,
            turns=turns,
            geometry=geometry,
            reads=reads,
        )
        if not header.complete:
            header.complete_with(policy.mechanism.coefficients or b"")
        return header
