"""Which policies this build can train under. Torch-free: the command line says so before anything is signed."""

from attest.policy import Policy

BUILT = {
    "accountant": ("pld",),
    "adjacency": ("zero-out",),
    "disclosure": ("secret_poisson", "occurrences_public"),
    "exactness": ("fast", "certified"),
    "noise_family": ("gaussian",),
    "noise_injection": ("scheduled", "per_microbatch", "per_sample"),
}
"""What this build carries of what a policy may ask for, by field of the policy."""


def unsupported(policy: Policy) -> tuple[str, ...]:
    """One sentence for every setting that is valid but that this build does not carry; empty if it can train."""
    sentences = [
        f"the policy asks for {name.replace('noise_', 'noise.')} = {getattr(policy, name)!r}; this build carries "
        f"{', '.join(carried)}"
        for name, carried in BUILT.items()
        if getattr(policy, name) not in carried
    ]
    if (policy.noise_injection, policy.exactness) == ("per_sample", "certified"):
        sentences.append(
            "the policy asks for noise.injection = 'per_sample' at exactness = 'certified', whose lattice is that of scheduled "
            "noise; this build carries it at exactness = 'fast'"
        )
    return tuple(sentences)
