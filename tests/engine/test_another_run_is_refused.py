"""Each thing that makes a run another one refuses a resumed one by itself, whatever else agrees."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from dptrain.errors import ResumeRefused
from dptrain.record import recorder as recording

ALIKE = {
    "owner_key": b"owner",
    "model_fingerprint": b"model",
    "stack": ("x", "y"),
    "blocks": ("a", "b"),
    "frozen_digest": None,
    "exactness_note": "fast",
    "private": True,
    "registry_root": b"root",
    "isolation": "held",
    "randomness": "addressed",
}
CHANGES = {
    "policy": b"another policy",
    "owner_key": b"another owner",
    "model_fingerprint": b"another model",
    "stack": ("x",),
    "blocks": ("a",),
    "exactness_note": "fast. Noise is drawn on the device",
    "private": False,
    "registry_root": b"another root",
    "isolation": "optimizer SAM is not known to keep tensors apart",
    "randomness": "unaddressed",
}
SENTENCES = {
    "policy": "another policy",
    "owner_key": "another key of the corpus owner",
    "model_fingerprint": "another model structure",
    "stack": "another layer stack",
    "blocks": "another schedule of blocks",
    "exactness_note": "another account of its numerics",
    "private": "another privacy mode",
    "registry_root": "another state of the registry",
    "isolation": "another word on isolation by its optimizer",
    "randomness": "another randomness of forward passes",
}


def ledger() -> SimpleNamespace:
    return SimpleNamespace(header=SimpleNamespace(policy_payload=b"policy", **ALIKE))


def header(**changes: object) -> SimpleNamespace:
    payload = changes.pop("policy", b"policy")
    return SimpleNamespace(policy=SimpleNamespace(payload=payload), **(ALIKE | changes))


def test_the_same_run_goes_on() -> None:
    recording._require_same(ledger(), header())


@pytest.mark.parametrize("what", CHANGES)
def test_one_difference_alone_makes_it_another_run(what: str) -> None:
    with pytest.raises(ResumeRefused, match=f"ANOTHER_RUN: the ledger was opened with {SENTENCES[what]};"):
        recording._require_same(ledger(), header(**{what: CHANGES[what]}))
