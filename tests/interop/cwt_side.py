"""The other side: runs in an environment of its own, with `cwt` and without this project.

Reads one JSON object per line from standard input and answers each with one:

    {"do": "verify", "message": hex, "payload": hex, "key": hex}   ->  {"accepted": true} or {"accepted": false, "error": text}
    {"do": "sign", "payload": hex, "seed": hex, "header": ...}     ->  {"message": hex}, payload detached
    {"do": "versions"}                                             ->  {"cwt": text, "cbor2": text}
"""

import hashlib
import json
import sys
from importlib.metadata import version

import cbor2
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cwt import COSE, COSEKey
from cwt.enums import COSEKeyParams

OKP, ED25519 = 1, 6


def cose_key(algorithm: int, x: bytes, d: bytes | None = None) -> object:
    """A key of RFC 9053 section 7.2."""
    kid = hashlib.sha256(x).digest()[:8]
    parameters = {COSEKeyParams.KTY: OKP, COSEKeyParams.KID: kid, COSEKeyParams.ALG: algorithm, -1: ED25519, -2: x}
    return COSEKey.new(parameters if d is None else parameters | {-4: d})


def verify(request: dict) -> dict:
    """Whether `cwt` takes a message."""
    message, payload, key = (bytes.fromhex(request[name]) for name in ("message", "payload", "key"))
    try:
        read = cbor2.loads(message)
        attached = getattr(read, "value", read)[2] is not None
        found = COSE.new().decode(
            message, cose_key(request.get("algorithm", -19), key), **({} if attached else {"detached_payload": payload})
        )
        return {"accepted": found == payload}
    except Exception as error:  # whatever it raises, it did not accept
        return {"accepted": False, "error": f"{type(error).__name__}: {error}"[:200]}


def sign(request: dict) -> dict:
    """A message by `cwt` with a given protected header, its payload then taken out."""
    seed = bytes.fromhex(request["seed"])
    x = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    header = {
        1: request["algorithm"],
        4: bytes.fromhex(request["kid"]),
        15: {1: request["issuer"], 2: request["subject"]},
        16: request["typ"],
    }
    made = COSE.new().encode_and_sign(
        bytes.fromhex(request["payload"]), cose_key(request["algorithm"], x, seed), protected=header, unprotected={}
    )
    tag = cbor2.loads(made)
    tag.value[2] = None
    return {"message": cbor2.dumps(tag).hex()}


def versions(request: dict) -> dict:
    """What answers."""
    return {name: version(name) for name in ("cwt", "cbor2", "cryptography")}


for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"verify": verify, "sign": sign, "versions": versions}[asked["do"]](asked)), flush=True)
