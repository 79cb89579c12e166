"""Say whom a policy names to watch the ledger's operator, and what their quorum and retention come to."""

import math
from collections.abc import Callable, Iterator

from attest.keys.vkeys import parse_verifier_key
from attest.policy import Policy
from dptrain.cli.advice.case import Case
from dptrain.cli.advice.findings import Change, Consequence, fact, warning
from dptrain.cli.output import counted


def named_auditors(case: Case) -> Iterator[Consequence]:
    """Says who holds the operator to one history."""
    policy = case.policy
    yield fact("CHECKPOINT", f"the ledger signs a checkpoint every {policy.epoch_steps} steps; {_auditors(policy)}")


def agreed_retention(case: Case) -> Iterator[Consequence]:
    """Says what may be deleted, and when."""
    policy = case.policy
    if policy.retention_epochs and policy.auditor_quorum is not None:
        yield fact(
            "RETENTION",
            f"what was spent in epochs older than the last {policy.retention_epochs}, and who had left by then, may be deleted "
            f"once {policy.auditor_quorum} of the auditors vouch for a summary of it",
        )


def unvouched_retention(case: Case) -> Iterator[Consequence]:
    """Nothing goes without auditors who vouch for it."""
    if case.policy.retention_epochs and case.policy.auditor_quorum is None:
        yield warning(
            "RETENTION_UNVOUCHED",
            f"retention_epochs is {case.policy.retention_epochs}, and no auditors are named who could vouch for what goes: the "
            "ledger will keep everything. Name them in [ledger]",
        )


def idle_retention(case: Case) -> Iterator[Consequence]:
    """Finds a horizon that no epoch of the run ever passes."""
    policy = case.policy
    kept, epochs = policy.retention_epochs, math.ceil(policy.steps / policy.epoch_steps)
    if kept and kept >= epochs:
        change = [Change("retention_epochs", str(max(1, epochs // 2)))] if epochs > 1 else []
        yield warning(
            "RETENTION_IDLE",
            f"retention_epochs {kept} keeps as many epochs as the run has ({epochs}, of {policy.epoch_steps} steps each): "
            "nothing is ever old enough to be summarised, and the ledger will keep everything",
            *change,
        )


def split_quorum(case: Case) -> Iterator[Consequence]:
    """Two quorums without a common member can cosign two histories, and nobody lied."""
    policy = case.policy
    for field, quorum, count in (
        ("auditor_quorum", policy.auditor_quorum, len(policy.auditors)),
        ("witness_quorum", policy.witness_quorum, len(policy.witnesses)),
    ):
        if quorum is not None and 2 * quorum <= count:
            yield warning(
                "QUORUM_SPLIT",
                f"{field} {quorum} of {count} is not more than half: two quorums may have nobody in common, and cosign two "
                "different histories of one ledger without any of them noticing",
                Change(f"{field} in [ledger]", str(count // 2 + 1)),
            )


def whole_quorum(case: Case) -> Iterator[Consequence]:
    """Finds an auditor without whom nothing goes on, for as long as the run lasts: its policy is signed once."""
    quorum, count = case.policy.auditor_quorum, len(case.policy.auditors)
    if quorum != count:
        return
    stops = ", and nothing is deleted any more" if case.policy.retention_epochs else ""
    if count == 1:
        yield fact(
            "QUORUM_ONE",
            "readers rely on one auditor: what it overlooks, or agrees to, nobody else is bound to see; if it loses its key or "
            f"stops answering, no later checkpoint satisfies who asks for the quorum{stops}",
        )
    else:
        yield fact(
            "QUORUM_ALL",
            f"all {count} auditors must cosign: if a single one loses its key or stops answering, no later checkpoint "
            f"satisfies who asks for the quorum{stops}",
        )


def partial_auditors(case: Case) -> Iterator[Consequence]:
    """Finds somebody who audits what is its own business, with a key that signs other things too."""
    named = [("auditor", vkey) for vkey in case.policy.auditors] + [("witness", vkey) for vkey in case.policy.witnesses]
    for kind, vkey in named:
        key = parse_verifier_key(vkey)
        party = case.parties.get(key.public_key)
        if party is not None:
            yield warning(
                "AUDITOR_PARTY",
                f"the {kind} {key.name} has the key of {party}: whoever is to be convinced gains nothing from its "
                "cosignature. Name somebody independent, with a key that is used for nothing else",
            )


def _auditors(policy: Policy) -> str:
    of_witnesses = f"{policy.witness_quorum} of {len(policy.witnesses)} named as witnesses"
    if policy.auditor_quorum is None:
        told = "the policy names no auditor, so nobody is bound to notice that different people are shown different histories"
        if policy.witness_quorum is not None:
            told = f"{of_witnesses} must cosign what readers rely on; the policy names no auditor, so nobody reads what it says"
        return told if policy.retention_epochs else f"{told}, and nothing of the ledger can ever be deleted"
    others = "" if policy.witness_quorum is None else f", and {of_witnesses}"
    return f"{policy.auditor_quorum} of {counted(len(policy.auditors), 'auditor')}{others} must cosign what readers rely on"


AUDITOR_RULES: tuple[Callable[[Case], Iterator[Consequence]], ...] = (
    named_auditors,
    agreed_retention,
    whole_quorum,
    split_quorum,
    partial_auditors,
    unvouched_retention,
    idle_retention,
)
