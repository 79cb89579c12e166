"""Runs `dptrain` in this process; a clinic that is kept by commands: policy, directory, and a finished run over its notes."""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import typer.main
import typer.testing
from typer.testing import CliRunner, Result

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


@cache
def command_tree() -> Any:
    """Returns the commands as typer builds them: 30 ms each time, which is most of what a short command takes."""
    from dptrain.cli.app import app

    return typer.main.get_command(app)


def run_command(words: Sequence[object], **options: Any) -> Result:
    """Runs one command; `options` are those of `CliRunner.invoke`, such as ``input`` and ``env``."""
    tree = command_tree()
    with patch.object(typer.testing, "_get_command", lambda app: tree):
        return CliRunner().invoke(tree, [str(word) for word in words], **options)


# The public class is drawn in every step: its epsilon has a closed form, which keeps these tests fast.
POLICY = """
corpus = "clinic-notes-2026"
delta = 1e-6
steps = 20
normalizer = 4
epoch_steps = 10
window_steps = 5
redo_steps = 10
[[class]]
name = "sensitive"
clip_norm = 0.5
noise_multiplier = 1.2
sampling_rate = 0.1
depth = { from = 0.75, to = 1.0 }
[[class]]
name = "public"
clip_norm = 0.5
noise_multiplier = 0.8
sampling_rate = 1.0
depth = { from = 0.0, to = 1.0 }
"""


@dataclass(frozen=True)
class Shell:
    """Runs `dptrain` in one directory."""

    directory: Path

    def run(self, *arguments: str, code: int = 0) -> Result:
        """Run a command and require its exit code."""
        result = run_command(arguments)
        assert result.exit_code == code, result.output
        return result

    def json(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """Run a command with `--json` and read the one object that it prints."""
        return json.loads(self.run(*arguments, "--json", code=code).stdout)

    def write(self, name: str, text: str) -> Path:
        """Write a file below the directory."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


WEIGHTS = WeightRecord(("head.weight",), None, True, "F32", (2,), hashlib.sha256(bytes(8)).digest())
"""The one tensor with which every epoch of the run ends."""


def record(shell, *, private: bool = True, ledger: str = "ledger.db", state: str | None = None, run: str = "ledger") -> str:
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
        **signed.bounds._asdict(),
        attestation_hash=admission.attestation_hash,
        key_id=admission.key_id,
        anchor=commit_content(signed.content_hash, signed.nonce),
        attestation=(terms.of(admission), admission.signature),
    )
