"""The corpus policy: everything that a guarantee rests on, fixed by the corpus owner and signed.

`rules`, `depth`, `noise`, `sampling`, `auditors` and `retention` hold the data classes and their checks, `codec` their CBOR
form, `toml` the file that a person writes, `signed` the `.cose` file.
"""

from attest.policy.depth import DepthRule
from attest.policy.noise import NoisePhase
from attest.policy.rules import ClassRule, Policy
from attest.policy.signed import SignedPolicy, open_policy, sign_policy, verify_policy

__all__ = ["ClassRule", "DepthRule", "NoisePhase", "Policy", "SignedPolicy", "open_policy", "sign_policy", "verify_policy"]
