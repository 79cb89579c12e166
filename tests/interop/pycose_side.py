"""The other side with `pycose`, which knows algorithm -8 only: runs in an environment of its own.

Reads `{"message": hex, "key": hex, "payload": hex or null}` per line; answers `{"accepted": bool}`, with an error if refused.
"""

import json
import sys

from pycose.headers import Algorithm  # noqa: F401  registers the header attributes
from pycose.keys import OKPKey
from pycose.messages import CoseMessage

for line in sys.stdin:
    asked = json.loads(line)
    try:
        message = CoseMessage.decode(bytes.fromhex(asked["message"]))
        message.key = OKPKey(crv="ED25519", x=bytes.fromhex(asked["key"]))
        payload = asked["payload"]
        detached = {} if payload is None else {"detached_payload": bytes.fromhex(payload)}
        answer = {"accepted": bool(message.verify_signature(**detached))}
    except Exception as error:  # whatever it raises, it did not accept
        answer = {"accepted": False, "error": f"{type(error).__name__}: {error}"[:200]}
    print(json.dumps(answer), flush=True)
