"""The auditor's part of the demo: a process of its own in which torch cannot be imported."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from attest.keys import load_private_key
from dptrain.record.registry_watch import registry_of_run
from ledger import layout
from ledger.log import Ledger
from ledger.note import NoteSigner, parse_verifier_key
from ledger.release import release
from ledger.storage.place import Place

_AUDITOR = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, NoTorch())
from dptrain.cli import main
sys.argv[0] = "dptrain"
main()
"""


def verify_without_torch(export: Path, log_key: Path, owner_key: Path) -> dict[str, Any]:
    """Return what ``dptrain ledger verify EXPORT --json`` says where torch is not installed."""
    return without_torch("ledger", "verify", str(export), "--key", str(log_key), "--owner-key", str(owner_key), "--json")[1]


def without_torch(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Runs a command of ``dptrain`` that prints JSON where torch is not installed; its exit code and what it said."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", _AUDITOR, *arguments], capture_output=True, text=True, env=environment)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"the auditor's process failed: {done.stderr.strip()[-2000:]}")
    return done.returncode, json.loads(done.stdout)


def released(directory: Path, model: Path, owner_key: Path) -> dict[str, Any]:
    """Releases the model of the ledger in a directory; returns what a check tells whoever gets it, where torch is missing."""
    log_key = (directory / "ledger.pub").read_text().split()
    signer = NoteSigner(parse_verifier_key(log_key[0]).name, load_private_key(directory / "ledger.key"))
    with Ledger.open(directory / "ledger.db", signer) as log:
        release(log, model, now=int(time.time()), registry=registry_of_run(Place.of(directory / "ledger.db")))
    return checked(directory, model, owner_key)


def checked(directory: Path, model: Path, owner_key: Path) -> dict[str, Any]:
    """Return what ``dptrain release --check MODEL --json`` says where torch is not installed."""
    keys = ("--key", str(directory / "ledger.pub"), "--owner-key", str(owner_key))
    return without_torch("release", "--check", str(model), *keys, "--json")[1]


def other_weights(model: Path, directory: Path) -> str:
    """Copies a released model, flips one bit of one weight in it, and returns the name of the file."""
    shutil.copytree(model, directory)
    weights = next(path for path in sorted(directory.rglob("*.safetensors")) if layout.CHECKPOINT not in path.parts)
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    return weights.relative_to(directory).as_posix()


def tampered_copy(export: Path, directory: Path) -> str:
    """Copies an export, flips one bit of one byte in the middle of a record, and returns the name of that file."""
    shutil.copytree(export, directory)
    bundle = min(path for path in (directory / layout.entries_path(0)).parent.rglob("*") if path.is_file())
    content = bytearray(bundle.read_bytes())
    content[len(content) // 2] ^= 1
    bundle.write_bytes(bytes(content))
    return bundle.relative_to(directory).as_posix()
