"""The gate of a service: which artifact of a release may answer a query, by rights that are configured or signed.

* `envelope`: rights that somebody signed for one client of one gate, until a time.
* `posture`: what a release says of each artifact, and which of its files hold one.
* `gate`: checks a release once, judges every query, and reads files by the digests that it verified.

Nothing here imports torch.
"""

from ledger.errors import ReleaseRefused, RightsRefused
from ledger.release.rights import Rights
from ledger.serving.envelope import AllowedClass, Granted, RightsEnvelope, open_rights, sign_rights
from ledger.serving.gate import Admission, InferenceGate
from ledger.serving.posture import Certified, Posture, ServedFile

__all__ = [
    "Admission", "AllowedClass", "Certified", "Granted", "InferenceGate", "Posture", "ReleaseRefused", "Rights",
    "RightsEnvelope", "RightsRefused", "ServedFile", "open_rights", "sign_rights",
]  # fmt: skip


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
