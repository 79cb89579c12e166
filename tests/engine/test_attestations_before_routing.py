"""Attestations that were signed before any policy had depths train under depth profiles as they are: nobody signs again."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from ledger.audit import verify_export  # noqa: E402
from ledger.note import parse_verifier_key  # noqa: E402
from tests.worlds.commands import run_command  # noqa: E402
from tests.worlds.trainer import Trainer  # noqa: E402
from tests.worlds.training import token_record, write_jsonl  # noqa: E402

STEPS = 4
POLICY = """
corpus = "clinic-notes-2026"
delta = 1e-5
steps = 4
normalizer = 4
window_steps = 2
epoch_steps = 4
[[class]]
name = "sensitive"
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = 0.5
depth = {{ from = {first}, to = 1.0 }}
"""


def dptrain(*words: str) -> str:
    done = run_command(list(words))
    assert done.exit_code == 0, done.output
    return done.stdout


def trained(policy: str, run: str) -> tuple[Path, set[str]]:
    """A whole run under a policy: its export, and the parameters that it changed."""
    world = SimpleNamespace(policy=Path(policy), corpus=Path("corpus"), ledger=Path(f"{run}.db"))
    trainer = Trainer(world)
    before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    trainer.run()
    changed = {name for name, value in trainer.model.named_parameters() if not torch.equal(value, before[name])}
    export = trainer.private.export(run)
    trainer.private.close()
    return export, changed


def test_attestations_signed_before_there_were_depths_are_routed_by_them_without_being_signed_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus").mkdir()
    write_jsonl(Path("corpus/notes.jsonl"), [token_record(seed) for seed in range(4)])
    for name in ("alice", "owner"):
        dptrain("attest", "keygen", name)
    # Signed without any policy: class, corpus and bounds in alice's own words. Depth is nothing that a contributor signs.
    bounds = ("--corpus", "clinic-notes-2026", "--clip-norm", "1", "--noise-multiplier", "1")
    dptrain("attest", "sign", "corpus/notes.jsonl", "--key", "alice.key", "--class", "sensitive", *bounds)
    signed = hashlib.sha256(Path("corpus/notes.jsonl.attest").read_bytes()).digest()
    dptrain("registry", "add", "registry.cbor", "--pub", "alice.pub", "--class", "sensitive")

    changed, exports = {}, {}
    for run, first in (("whole", "0.0"), ("band", "0.67")):
        Path(f"{run}.toml").write_text(POLICY.format(first=first))
        dptrain("policy", "sign", f"{run}.toml", "--key", "owner.key", "--registry", "registry.cbor")
        assert json.loads(dptrain("gate", f"{run}.cose", "corpus", "--json"))["admitted"] == {"sensitive": 4}
        exports[run], changed[run] = trained(f"{run}.cose", run)
    assert hashlib.sha256(Path("corpus/notes.jsonl.attest").read_bytes()).digest() == signed

    keys = {run: Path(f"{run}.pub").read_text().split("\n")[-2] for run in exports}
    reports = {}
    for run, export in exports.items():
        assert parse_verifier_key(keys[run])
        reports[run] = verify_export(export, [keys[run]])
        assert reports[run].verdict == "FULL", reports[run].findings
    whole, band = ({block.name for block in reports[run].blocks if block.classes} for run in ("whole", "band"))
    assert band < whole, "the policy with depths lets the class touch fewer blocks"
    assert changed["band"] and changed["band"] < changed["whole"], "and what it may not touch stays as it was, to the last bit"

    pinned = [word for run in exports for word in ("--key", keys[run])]
    shown = json.loads(dptrain("attest", "show", "corpus/notes.jsonl.attest", "--record", "1", "--json"))
    traced = json.loads(dptrain("ledger", "trace", shown["descriptor_hash"], "whole", "band", *pinned, "--json"))
    blocks = {run["export"]: set(run["found"]["blocks"]) for run in traced["runs"]}
    assert blocks == {"whole": whole, "band": band}, "one descriptor in both"
