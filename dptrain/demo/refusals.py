"""Attestations that the gate must refuse, each wrong in one way, made with real keys and handed in like any other."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from attest import sign1
from attest.attestation import Attestation, read_sequence
from attest.corpus import SigningTemplate, sign_corpus
from attest.keys import generate
from dptrain.engine.one_owner import DAY, Contributor, Stage, write_records

_PREFIX = "refused"
"""Sorts after the contributors' names: a copy must come after what it copies."""


def plant_refusals(stage: Stage, contributor: Contributor, pictures: list[Mapping[str, Any]]) -> int:
    """Adds data with bad attestations to a corpus; returns how many.

    Args:
        stage: the corpus. contributor: whose name and key they use. pictures: records that nobody contributed, ten or more.
    """
    key = stage.keys[contributor.name]
    honest = stage.template(contributor.name, contributor.admissibility_class)
    spare = iter(pictures)

    def sign(name: str, template: SigningTemplate, signer: Any = key) -> Path:
        data = stage.corpus / f"{_PREFIX}-{name}.jsonl"
        write_records(data, [next(spare)])
        sign_corpus(data, None, signer, template)
        return data

    sign("expired", replace(honest, not_before=stage.now - 60 * DAY, not_after=stage.now - 30 * DAY))
    sign("forged", honest, generate())
    sign("too-permissive", replace(honest, clip_norm_micro=4 * honest.clip_norm_micro))
    sign("too-little-noise", replace(honest, noise_multiplier_micro=honest.noise_multiplier_micro // 2))
    sign("wrong-corpus", replace(honest, corpus="another-corpus"))

    changed = sign("changed-content", honest)
    write_records(changed, [next(spare)])

    replayed = stage.corpus / f"{_PREFIX}-replayed.jsonl"
    original = stage.corpus / f"{contributor.name}.jsonl"
    with open(original.with_name(f"{original.name}.attest"), "rb") as stream:
        first = next(iter(read_sequence(stream)))
    replayed.write_bytes(original.read_bytes().splitlines(keepends=True)[0])
    replayed.with_name(f"{replayed.name}.attest").write_bytes(first.to_cbor())

    loose = stage.corpus / f"{_PREFIX}-non-canonical.jsonl"
    write_records(loose, [next(spare)])
    content = loose.read_bytes().rstrip(b"\n")
    right = honest.descriptor(hashlib.sha256(content).digest())
    payload = _longer_map_header(right.to_cbor())
    message = sign1.sign(payload, key, contributor=right.issuer)
    loose.with_name(f"{loose.name}.attest").write_bytes(Attestation(payload, message, right.opening()).to_cbor())

    write_records(stage.corpus / f"{_PREFIX}-unattested.jsonl", [next(spare)])
    return 9


def _longer_map_header(encoded: bytes) -> bytes:
    """The same map with its size in two bytes instead of one: valid CBOR, but not the one encoding (RFC 8949, 4.2.1)."""
    return bytes([0xB8, encoded[0] & 0x1F]) + encoded[1:]
