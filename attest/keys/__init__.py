"""Keys and signers: sound Ed25519 keys, their files and their names as text, and signing with a key that lies elsewhere.

* `ed25519`: which public keys are sound, how keys lie on disk, how signatures are checked. Its names are exported here.
* `p256`: keys of another curve, for tools that take no Ed25519.
* `vkeys`: verifier keys as text, as notes and policies name them.
* `signers`: a private key in this process, an SSH agent, or anything else that signs.
"""

from attest.keys.ed25519 import (
    check_public_key,
    generate,
    is_openssh,
    key_id,
    load_named_public_key,
    load_openssh_public_key,
    load_private_key,
    load_public_key,
    public_bytes,
    save_private_key,
    save_public_key,
    verifier,
    verify_signature,
)

__all__ = [
    "check_public_key", "generate", "is_openssh", "key_id", "load_named_public_key", "load_openssh_public_key",
    "load_private_key", "load_public_key", "public_bytes", "save_private_key", "save_public_key", "verifier",
    "verify_signature",
]  # fmt: skip


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
