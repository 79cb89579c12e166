"""The other side in Python: runs in an environment of its own, with `pymerkle` and `proofbundle` and without this project.

Reads one JSON object per line from standard input and answers each with one:

    {"do": "root", "leaves": [hex]}                                             ->  {"root": hex}, by pymerkle
    {"do": "proof", "text": hex, "leaf": hex, "log": vkey, "witnesses": [vkey], "threshold": n, "origin": text}
                                                                                ->  what `proofbundle` makes of a proof file
"""

import json
import sys

import pymerkle
from proofbundle.tlogproof import verify_tlog_proof


def root(request: dict) -> dict:
    """The root over leaves of pymerkle's own tree, which hashes as RFC 6962 does."""
    tree = pymerkle.InmemoryTree(algorithm="sha256")
    for leaf in request["leaves"]:
        tree.append_entry(bytes.fromhex(leaf))
    return {"root": tree.get_state().hex()}


def proof(request: dict) -> dict:
    """The verdicts on a proof file: all, log, inclusion, witnesses."""
    found = verify_tlog_proof(
        bytes.fromhex(request["text"]).decode(),
        bytes.fromhex(request["leaf"]),
        request["log"],
        request["witnesses"],
        threshold=request["threshold"],
        expected_origin=request["origin"],
    )
    return {name: bool(found[name]) for name in ("ok", "log_ok", "inclusion_ok", "witnesses_ok")}


for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"root": root, "proof": proof}[asked["do"]](asked)), flush=True)
