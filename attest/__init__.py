"""Attestation and admission: what a contributor signs, what an owner signs, and the gate between them.

It needs `cryptography` alone and never imports torch or SQL, so that contributors and auditors get along without.

* `cbor`, `sign1`, `keys`: deterministic encoding, COSE signatures, key hygiene.
* `descriptor`, `attestation`, `anchor`, `policy`, `registry`, `withdrawal`: the signed documents.
* `schedule`: the arithmetic from bounds to noise, shared by training and audit.
* `corpus`, `signing`: data on disk and the attestations beside it.
* `gate`: admit or refuse, with a reason code.
"""
