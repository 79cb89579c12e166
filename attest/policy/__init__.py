"""The corpus policy: everything that a guarantee rests on, fixed by the corpus owner and signed.

`rules` and `classes` declare the fields of a policy and of its classes; check, bytes, text and pages follow from that
(`attest.documents`).
`depth`, `mechanism`, `noise`, `sampling`, `geometry`, `uses`, `auditors` and `retention` hold its values and the rules that
they keep, `unbuilt` what is specified and refused by name, `signed` the `.cose` file, `pages` what the documentation says.
"""

from attest.policy.classes import ClassRule
from attest.policy.depth import DepthRule
from attest.policy.mechanism import MechanismRule
from attest.policy.noise import NoisePhase
from attest.policy.rules import Policy
from attest.policy.sampling import SamplingRule
from attest.policy.signed import SignedPolicy, open_policy, sign_policy, verify_policy

__all__ = [
    "ClassRule",
    "DepthRule",
    "MechanismRule",
    "NoisePhase",
    "Policy",
    "SamplingRule",
    "SignedPolicy",
    "open_policy",
    "sign_policy",
    "verify_policy",
]
