"""A finished run, recorded by library calls, for the tests of `dptrain ledger`."""

import hashlib
import time

from attest import keys
from attest.corpus import open_corpus
from attest.gate import run_gate
from attest.gate.admission import SharedTerms
from attest.policy import open_policy
from attest.registry import open_registry
from attest.schedule.stack import HEAD, NO_TOWER, Stack, StackTensor, Tower
from attest.schema.plain import commit_content
from ledger.leaves import HELD, HeaderSpec
from ledger.leaves.header import ADDRESSED
from ledger.leaves.weights import WeightRecord
from ledger.log.ledger import AdmitSpec, Ledger
from ledger.note import NoteSigner

WEIGHTS = WeightRecord(("head.weight",), None, True, "F32", (2,), hashlib.sha256(bytes(8)).digest())
"""The one tensor with which every epoch of the run ends."""


def record(
    shell, *, private: bool = True, ledger: str = "ledger.db", state: str | None = None, run: str = "ledger"
) -> str:
    """A run of 20 steps over the admitted notes, in the files ledger.*; returns the verifier key of its ledger.

    Args:
        shell: where.
        private: whether its noise has fresh keys.
        ledger: the ledger. state: its state directory, where it is on a server.
        run: what its key files and its origin are called.
    """
    now = int(time.time())
    owner_key = keys.load_public_key("owner.pub")
    signed = open_policy("policy.cose", owner_key)
    registry = open_registry("registry.cbor", owner_key)
    admitted = run_gate(open_corpus("corpus"), signed.policy, registry, now=now).admitted
    key = keys.generate()
    keys.save_private_key(f"{run}.key", key)
    signer = NoteSigner(f"clinic-notes-2026/{run}", key)
    shell.write(f"{run}.pub", f"# the run of November\n{signer.vkey}\n")
    header = HeaderSpec(
        policy=signed,
        owner_key=owner_key,
        registry_root=registry.root(),
        model_fingerprint=bytes(32),
        stack=Stack(
            (Tower(NO_TOWER, "", ("layers.0", "layers.1")),),
            (
                StackTensor(("head.weight",), 2, ((NO_TOWER, HEAD),)),
                StackTensor(("layers.0.weight",), 100, ((NO_TOWER, 0),)),
                StackTensor(("layers.1.weight",), 100, ((NO_TOWER, 1),)),
            ),
        ),
        isolation=HELD,
        randomness=ADDRESSED,
        unprobed=(),
        private=private,
    )
    with Ledger.create(ledger, header, signer, now=now, state=state) as log:
        terms = SharedTerms()
        log.admit([specification(item.admission, terms) for item in admitted], now=now)
        for step in range(1, 21, 5):
            window = log.charge(step, 5, now=now, noise_stream=step.to_bytes(16, "big"))
            log.settle(window, 5, now=now)
            if step in (6, 16):
                log.close_epoch(step + 4, log.keep_weights([WEIGHTS]), isolation=HELD, now=now)
        log.finish(now=now)
    return signer.vkey


def specification(admission, terms: SharedTerms) -> AdmitSpec:
    signed = admission.descriptor
    return AdmitSpec(
        descriptor_hash=admission.descriptor_hash,
        class_name=signed.admissibility_class,
        profile_id=0,
        clip_micro=signed.clip_norm_micro,
        sigma_micro=signed.noise_multiplier_micro,
        max_occurrences=signed.max_occurrences,
        attestation_hash=admission.attestation_hash,
        key_id=admission.key_id,
        anchor=commit_content(signed.content_hash, signed.nonce),
        attestation=(terms.of(admission), admission.signature),
    )
