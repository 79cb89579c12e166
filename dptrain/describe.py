"""What the record says of a run: the ledger's header, digests of the model, and public figures per class."""

import hashlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from attest.policy import ClassRule
from attest.schedule import waste
from dptrain.depth import places_name
from dptrain.noise.device import NOTE as DEVICE_NOTE
from dptrain.pool import Slot
from dptrain.resolver import Schedule
from dptrain.routing import Router
from ledger.accountants import epsilon, epsilon_occurrences, epsilon_replace, likely_occurrences
from ledger.leaves import HeaderBlock, HeaderSpec

if TYPE_CHECKING:
    from dptrain.engine import PrivateTraining

def header_for(engine: "PrivateTraining", test_key: bytes | None) -> HeaderSpec:
    """What the ledger's first leaf says: policy, model structure, and the schedule of every block.

    The tensors of an adapter that the policy binds a class to are blocks of their own, with its name in theirs.

    With a fixed test key the run id is fixed too, so that two runs draw the same numbers, and the header says NOT PRIVATE.
    """
    blocks = [HeaderBlock(block.name, block.coordinates, block.classes, block.std) for block in engine.schedule.blocks]
    untouched: dict[str, int] = {}
    for tensor in engine.schedule.frozen:
        name = places_name(tensor.places) + " (frozen)"
        untouched[name] = untouched.get(name, 0) + tensor.coordinates
    blocks += [HeaderBlock(name, coordinates, (), 0.0) for name, coordinates in untouched.items()]
    return HeaderSpec(
        policy=engine.signed,
        owner_key=engine.recorder.owner_public,
        registry_root=engine.gate.registry_root,
        model_fingerprint=fingerprint(engine.model, engine.schedule),
        blocks=tuple(blocks),
        exactness_note=engine.router.sums.note + (DEVICE_NOTE if engine.noise_generator == "device" else ""),
        private=test_key is None,
        clip_margin=engine.router.sums.float_margin,
        caps_enforced=True,
        run_id=os.urandom(16) if test_key is None else hashlib.sha256(test_key).digest()[:16],
    )


def fingerprint(model: nn.Module, schedule: Schedule) -> bytes:
    """SHA-256 over names, shapes and types of all parameters and the block of each: the structure, not the values.

    Of a parameter that is split, the block of every part, with its slice.
    """
    places: dict[str, list[str]] = {}
    for block in schedule.blocks:
        for tensor in block.tensors:
            where = block.name if tensor.part is None else f"{tensor.part} {block.name}"
            for alias in tensor.aliases:
                places.setdefault(alias, []).append(where)
    named = model.named_parameters(remove_duplicate=False)
    lines = sorted(f"{name} {tuple(p.shape)} {p.dtype} {'; '.join(places.get(name, ['-']))}\n" for name, p in named)
    return hashlib.sha256("".join(lines).encode()).digest()


def model_digest(router: Router) -> bytes:
    """SHA-256 over the released parameters, in the order of the schedule; one that is split whole, at its first part."""
    digest = hashlib.sha256()
    seen: set[int] = set()
    for _, tensor in router.tensors:
        if id(tensor.parameter) in seen:
            continue
        seen.add(id(tensor.parameter))
        digest.update(tensor.name.encode() + b"\x00")
        digest.update(tensor.parameter.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.digest()


def summary(engine: "PrivateTraining") -> list[dict[str, Any]]:
    """Public figures per class, for tables: epsilon of a contribution with the class's preset bounds.

    Those of a public class about privacy are None: no number would be true. Where occurrences are public, epsilons so far are
    those of the contribution that spent most, and the planned one is for as many draws as one in a million exceeds.
    """
    policy = engine.policy
    charged = engine.recorder.ledger.charged_steps
    rows = []
    for rule in policy.classes:
        members = [slot for slot in engine.pool.slots if slot.resolution.class_name == rule.name]
        row = {
            "class": rule.name,
            "public": rule.public,
            "admitted": len(members),
            "blocks": [engine.schedule.blocks[index].name for index in engine.schedule.profiles[rule.name]],
            "sampling_rate": float(rule.sampling_rate),
            "steps_charged": charged,
            "delta": float(policy.delta),
        }
        rows.append(row | (dict.fromkeys(PROMISES) if rule.public else _promises(engine, rule, members, charged)))
    return rows


PROMISES = (
    "clip_norm",
    "noise_multiplier",
    "effective_multiplier",
    "waste",
    "epsilon",
    "epsilon_replace",
    "epsilon_planned",
)
"""Figures of :func:`summary` about the privacy of a class: None in a public one, which has none."""


def _promises(engine: "PrivateTraining", rule: ClassRule, members: Sequence[Slot], charged: int) -> dict[str, float]:
    policy = engine.policy
    stds = [engine.schedule.blocks[index].std for index in engine.schedule.profiles[rule.name]]
    z = max(rule.noise_multiplier, min(stds) / rule.clip_norm)
    weakest = min((slot.resolution.multiplier or z for slot in members), default=z)
    q, delta = float(rule.sampling_rate), float(policy.delta)
    if policy.noise_injection == "per_sample":
        z = weakest = rule.noise_multiplier
    if policy.disclosure == "occurrences_public":
        found = engine.recorder.ledger.state.contributions
        loss = max((found[slot.descriptor_hash].loss for slot in members), default=0.0)
        planned = likely_occurrences(q, policy.steps) / weakest**2
        spent = [epsilon_occurrences(value, delta, policy.accountant) for value in (loss, 4 * loss, planned)]
    else:
        spent = [
            epsilon(weakest, q, charged, delta, policy.accountant),
            epsilon_replace(weakest, q, charged, delta),
            epsilon(weakest, q, policy.steps, delta, policy.accountant),
        ]
    values = (
        rule.clip_norm,
        rule.noise_multiplier,
        weakest,
        waste(z, rule.noise_multiplier),
        *spent,
    )
    return dict(zip(PROMISES, values, strict=True))
