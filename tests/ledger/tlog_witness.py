"""A witness as a stranger would write it from C2SP tlog-witness, signed-note and RFC 6962; nothing of this project in it."""

import base64
import hashlib
import time

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat


def node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def consistent(first: int, second: int, first_hash: bytes, second_hash: bytes, proof: list[bytes]) -> bool:
    """RFC 9162, 2.1.4.2, step by step."""
    if first == second:
        return not proof and first_hash == second_hash
    path = list(proof)
    if first & (first - 1) == 0:
        path.insert(0, first_hash)
    if not path:
        return False
    fn, sn = first - 1, second - 1
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    fr = sr = path[0]
    for c in path[1:]:
        if sn == 0:
            return False
        if fn & 1 or fn == sn:
            fr, sr = node(c, fr), node(c, sr)
            while not fn & 1 and fn != 0:
                fn, sn = fn >> 1, sn >> 1
        else:
            sr = node(sr, c)
        fn, sn = fn >> 1, sn >> 1
    return fr == first_hash and sr == second_hash and sn == 0


class Witness:
    """Knows some logs by origin, and the latest checkpoint of each that it cosigned."""

    def __init__(self, name: str, logs: dict[str, bytes], now: int | None = None) -> None:
        self.name, self.logs, self.now = name, logs, now
        self.key = Ed25519PrivateKey.generate()
        self.latest: dict[str, tuple[int, bytes]] = {}
        raw = self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.id = hashlib.sha256(name.encode() + b"\n\x04" + raw).digest()[:4]
        self.vkey = f"{name}+{self.id.hex()}+{base64.b64encode(bytes([4]) + raw).decode()}"

    def answer(self, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer to an add-checkpoint request."""
        head, blank, note = body.partition(b"\n\n")
        lines = head.decode("ascii").split("\n")
        old = lines[0].removeprefix("old ")
        if not blank or not lines[0].startswith("old ") or not old.isdigit() or (old[0] == "0" and old != "0"):
            return 400, b"bad old size line\n"
        hashes = [base64.b64decode(line, validate=True) for line in lines[1:]]
        if len(hashes) > 63 or any(len(item) != 32 for item in hashes):
            return 400, b"bad proof lines\n"
        text, _, signatures = note.decode().rpartition("\n\n")
        text += "\n"
        origin, decimal, encoded = text.split("\n")[:3]
        size, root, first = int(decimal), base64.b64decode(encoded, validate=True), int(old)
        if origin not in self.logs:
            return 404, b""
        raw, good = self.logs[origin], False
        key_id = hashlib.sha256(origin.encode() + b"\n\x01" + raw).digest()[:4]
        for line in signatures.rstrip("\n").split("\n"):
            _, name, blob = line.split(" ")
            data = base64.b64decode(blob, validate=True)
            if name == origin and data[:4] == key_id:
                try:
                    Ed25519PublicKey.from_public_bytes(raw).verify(data[4:], text.encode())
                except InvalidSignature:
                    return 403, b""
                good = True
        if not good:
            return 403, b""
        if first > size:
            return 400, b"old size beyond the checkpoint\n"
        known, known_root = self.latest.get(origin, (0, b""))
        if first != known:
            return 409, f"{known}\n".encode()
        if size == 0 and root != hashlib.sha256(b"").digest():
            return 422, b""
        if (first == 0 and hashes) or (first and not consistent(first, size, known_root, root, hashes)):
            return 422, b""
        self.latest[origin] = (size, root)
        stamp = int(time.time()) if self.now is None else self.now
        signed = f"cosignature/v1\ntime {stamp}\n{text}".encode()
        blob = base64.b64encode(self.id + stamp.to_bytes(8, "big") + self.key.sign(signed)).decode()
        return 200, f"\u2014 {self.name} {blob}\n".encode()

    def curl(self, body: bytes) -> bytes:
        """The answer as ``curl -i`` writes it."""
        status, answer = self.answer(body)
        head = f"HTTP/1.1 100 Continue\r\n\r\nHTTP/2 {status} \r\ncontent-length: {len(answer)}\r\n\r\n"
        return head.encode() + answer
