"""The corpus policy: everything that a guarantee rests on, fixed by the corpus owner and signed.

`rules` and `classes` declare the fields of a policy and of its classes; check, bytes, text and pages follow from that
(`attest.schema`). `mechanism` and `sampling` hold values of them and the rules that these keep. `unbuilt` has what is specified
and refused by name, `signed` the `.cose` file.
"""

from attest.policy.classes import ClassRule, DepthRule
from attest.policy.mechanism import MechanismRule, NoisePhase
from attest.policy.rules import Policy
from attest.policy.sampling import SamplingRule
from attest.policy.signed import SignedPolicy, open_policy, sign_policy, verify_policy

__all__ = [
    "ClassRule", "DepthRule", "MechanismRule", "NoisePhase", "Policy", "SamplingRule", "SignedPolicy", "open_policy",
    "sign_policy", "verify_policy",
]  # fmt: skip


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
