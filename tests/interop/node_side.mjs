// The other side with Node's own crypto (OpenSSL through another binding) and a Sig_structure put together by hand.
// Reads {"protected": hex, "payload": hex, "signature": hex, "key": hex} per line; answers {"accepted": bool}.
import { createPublicKey, verify } from "node:crypto";
import { createInterface } from "node:readline";

function byteString(data) {
  const n = data.length;
  if (n < 24) return Buffer.concat([Buffer.from([0x40 | n]), data]);
  if (n < 256) return Buffer.concat([Buffer.from([0x58, n]), data]);
  if (n < 65536) return Buffer.concat([Buffer.from([0x59, n >> 8, n & 255]), data]);
  const head = Buffer.alloc(5);
  head[0] = 0x5a;
  head.writeUInt32BE(n, 1);
  return Buffer.concat([head, data]);
}

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  const [protectedHeader, payload, signature, raw] = ["protected", "payload", "signature", "key"].map((k) =>
    Buffer.from(asked[k], "hex"),
  );
  const key = createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x: raw.toString("base64url") }, format: "jwk" });
  const structure = Buffer.concat([
    Buffer.from([0x84, 0x6a]),
    Buffer.from("Signature1"),
    byteString(protectedHeader),
    byteString(Buffer.alloc(0)),
    byteString(payload),
  ]);
  console.log(JSON.stringify({ accepted: verify(null, structure, key, signature) }));
}
