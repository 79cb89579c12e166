"""Refuses policies that this build cannot train under. Torch-free: the command line says so before anything is signed."""

from attest.policy import Policy
from ledger import accountants


def unsupported(policy: Policy) -> tuple[str, ...]:
    """Says in a sentence what this build does not carry of a policy; empty if it can train under it.

    What a policy may not ask for at all is refused before there is one (`attest.policy.unbuilt`). What is left is carried by
    itself, and may have no accounting together (`ledger.accountants.refusal`).
    """
    together = refusal(policy)
    return () if together is None else (f"the policy asks for what has no accounting together: {together}",)


def refusal(policy: Policy) -> str | None:
    """Says why the family of noise does not go with what else the policy says, and what would; None if it does."""
    return accountants.refusal(
        policy.mechanism.name,
        policy.accountant,
        policy.exactness,
        policy.noise_injection,
        policy.disclosure,
        budgets=policy.noise_budgets is not None,
    )
