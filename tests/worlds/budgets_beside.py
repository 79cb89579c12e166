"""A budget of texts over the corpus of a training world: its rule and its contributions are those of the world."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest.attestation import Attestation, read_sequence
from attest.keys import public_bytes
from attest.policy import open_policy
from ledger.budget import GenerationRule, Mechanism, Unit
from ledger.budget.generation import OverRuns
from ledger.budget.log import BudgetLog, BudgetSpec
from ledger.leaves import Previous
from ledger.note import NoteSigner
from tests.worlds.training import CLASSES, World, make_world

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(5, 37)))
SIGNER = NoteSigner("test-corpus/texts", KEY)
MAX_RHO = 0.05
"""The most rho of a contribution of class `open`, over all texts."""

GENERATING = (
    CLASSES
    + f"""purposes = ["generate", "train"]
generation = {{{{ references = 2, clip_norm = 0.14, temperature = 1.1, tokens = 20, max_rho = {MAX_RHO} }}}}
"""
)
"""The three classes of every world, of which `open` makes texts too."""

BOTH = ("generate", "train")


def world_with_texts(root: Path, *, total: float | None = None, limit: int | None = None, **options: Any) -> World:
    """A world whose contributors sign for both uses. `total`: what the policy lets the class spend over all runs. `limit`: what
    contributors sign, in 1e-6, at the delta of the policy."""
    classes = GENERATING + ("" if total is None else f"max_epsilon_total = {total:.6f}\n")
    signed = {} if limit is None else {"max_epsilon_micro": limit, "max_delta_pico": 10**7}
    options = {"per_class": 2, "classes": classes, **options}
    return make_world(root, template_extra={"purposes": BOTH, **signed}, **options)


def attested(world: World, name: str = "open") -> list[Attestation]:
    """What the contributors of a class signed."""
    with (world.corpus / f"{name}.jsonl.attest").open("rb") as stream:
        return list(read_sequence(stream))


def budget_beside(
    world: World,
    place: Path,
    *,
    previous: Sequence[Previous] | None = (),
    rules: bool = True,
    caps: dict[str, tuple[int, int]] | None = None,
    signer: NoteSigner = SIGNER,
    now: int | None = None,
    log_id: bytes = bytes(16),
) -> BudgetLog:
    """A fresh log under the rule of the world's policy, which counts these ledgers; None for one that counts no runs."""
    signed = open_policy(world.policy, public_bytes(world.owner_key))
    found = BudgetSpec(
        caps=caps or {"contribution": (10**7, 10**7)},
        mechanisms=[Mechanism("invisibleink", 1, True, "tokens drawn from clipped logits")],
        generation=[GenerationRule.of(signed, "open")] if rules else [],
        over_runs=OverRuns.of(signed, ["open"], previous) if rules and previous is not None else None,
        log_id=log_id,
        secret=bytes(32),
    )
    return BudgetLog.create(place, found, signer, now=world.now if now is None else now)


def unit(attestation: Attestation) -> Unit:
    """The unit of a contribution."""
    return Unit("contribution", name_of(attestation).hex())


def name_of(attestation: Attestation) -> bytes:
    """The descriptor hash of a contribution."""
    return hashlib.sha256(attestation.descriptor).digest()
