"""Which policies this build can train under. Torch-free: the command line says so before anything is signed."""

from attest.policy import Policy
from attest.policy.sampling import SAMPLING_ORDERS
from ledger import accountants
from ledger.accountants import families

BUILT = {
    "accountant": accountants.ACCOUNTANTS,
    "adjacency": ("zero-out",),
    "disclosure": ("secret_poisson", "occurrences_public"),
    "exactness": ("fast", "certified"),
    "noise_family": tuple(families.TABLE),
    "noise_injection": ("scheduled", "per_microbatch", "per_sample"),
    "sampling_order": SAMPLING_ORDERS,
}
"""What this build carries of what a policy may ask for, by field of the policy."""


def unsupported(policy: Policy) -> tuple[str, ...]:
    """One sentence for every setting that is valid but that this build does not carry; empty if it can train.

    What is carried by itself but has no accounting together is one sentence more, by `ledger.accountants.families.refusal`.
    """
    sentences = [
        f"the policy asks for {_key(name)} = {getattr(policy, name)!r}; this build carries {', '.join(carried)}"
        for name, carried in BUILT.items()
        if getattr(policy, name) not in carried
    ]
    together = refusal(policy)
    if together is not None and policy.noise_family in BUILT["noise_family"]:
        sentences.append(f"the policy asks for what has no accounting together: {together}")
    return tuple(sentences)


def _key(name: str) -> str:
    """A field of the policy as policy.toml names it."""
    return name.replace("noise_", "noise.").replace("sampling_", "sampling.")


def refusal(policy: Policy) -> str | None:
    """Why the family of noise does not go with what else the policy says, and what would; None if it does."""
    return families.refusal(
        policy.noise_family,
        policy.accountant,
        policy.exactness,
        policy.noise_injection,
        policy.disclosure,
        budgets=policy.noise_budgets is not None,
    )
