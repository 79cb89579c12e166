"""Attestation and admission: what a contributor signs, what an owner signs, and the gate between them.

It needs `cryptography` and `numpy` and never imports torch or SQL, so that contributors and auditors get along without.

* `cbor`, `sign1`, `signed_file`, `keys`: deterministic encoding, COSE signatures, key hygiene.
* `schema`: fields that are declared once, and the forms that follow. `fixed_point`, `files`, `errors`: what all use.
* `descriptor`, `attestation`, `withdrawal`, `policy`, `registry`: the signed documents.
* `schedule`: the arithmetic from bounds to noise, blocks and turns, shared by training and audit.
* `corpus`: data on disk, the attestations beside it, and their signing.
* `gate`: admit or refuse, with a reason code.
* `pages`: what the documentation says of signed documents.

In arguments here and in `ledger`, times are whole seconds since 1970; a public key is its 32 raw bytes; `..._micro` and
`..._pico` count 1e-6 and 1e-12; whoever signs gives a private key, or what signs with it.
"""
