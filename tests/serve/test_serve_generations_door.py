"""Texts from what contributors signed: served from a shell over a real release, and as an auditor sees them."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dptrain.demo.language import World
from dptrain.inference.remote import Client, ServerRefused
from tests.serve.test_serve_door import PORT, prepared, ready
from tests.serve.test_serve_generations_sources import withdraw
from tests.worlds.listening import said
from tests.worlds.served import served_world
from tests.worlds.texts import NOTES, write_attested

__all__ = ["served_world"]

GENERATION = """
[generations.tales]
task = "tale.toml"
artifact = "adapter:harbour"
delta = 1e-6
salt = "salt"
labels = { kind = ["boat", "orchard"] }
[generations.tales.attested]
policy = "policy.cose"
owner_key = "owner.pub"
registry = "registry.cbor"
class = "sensitive"
corpus = ["corpus"]
withdrawals = "withdrawals"
"""


@pytest.mark.slow
def test_what_contributors_signed_is_served_by_rights_charged_to_each_and_audited(
    served_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = prepared(served_world, tmp_path, monkeypatch)
    write_attested(tmp_path, [*NOTES, "tide net"])
    (tmp_path / "withdrawals").mkdir()
    text = (tmp_path / "serve.toml").read_text()
    caps = "caps = { contribution = { epsilon = 9.0, delta = 1e-6 }, user ="
    (tmp_path / "serve.toml").write_text(text.replace("caps = { user =", caps).replace("[budget]", GENERATION + "[budget]"))
    shell.json("serve", "serve.toml", "--init")
    token = shell.json("serve", "serve.toml", "--add-token", "bob")["token"]
    signing = ("rights", "sign", "--key", "office.key", "--holder", "bob", "--audience", "gate.example")
    allowed = ("--allow", "harbour", "--allow", "orchard", "--allow", "workshop")
    shell.run(*signing, *allowed, "--generation", "chat", "--out", "chat.rights")
    shell.run(*signing, *allowed, "--generation", "tales", "--out", "tales.rights")
    command = [sys.executable, "-m", "dptrain", "serve", "serve.toml"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=(tmp_path / "server.log").open("w"))
    url = f"http://127.0.0.1:{PORT}"
    try:
        ready(url, process)
        with Client(url, token, rights=(tmp_path / "chat.rights").read_bytes()) as client:
            with pytest.raises(ServerRefused) as refused:
                next(client.generate("tales", labels={"kind": "boat"}))
            assert (refused.value.status, refused.value.code) == (403, "GENERATION")
        with Client(url, token, rights=(tmp_path / "tales.rights").read_bytes()) as client:
            pieces = list(client.generate("tales", labels={"kind": "boat"}))
            assert pieces[0]["privacy"]["artifact"] == "adapter:harbour"
            withdraw(tmp_path, 0)
            process.send_signal(signal.SIGHUP)
            time.sleep(2)
            texts = 1
            with pytest.raises(ServerRefused) as refused:
                while True:
                    pieces = list(client.generate("tales", labels={"kind": "boat"}))
                    texts += 1
            # Two of each of two batches; of that one of which a reference was withdrawn perhaps one more before.
            assert refused.value.code == "EXHAUSTED" and 4 <= texts <= 5 and said(pieces).strip()
        shell.json("serve", "serve.toml", "--export", "spent")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    log = (tmp_path / "server.log").read_text()
    assert "generation tales is open" in log and not any(note in log for note in NOTES if " " in note)
    audited = shell.json(
        "ledger", "verify", "spent", "--key", "budget.pub", "--policy", "policy.cose", "--owner-key", "owner.pub",
        "--registry", "registry.cbor",
    )  # fmt: skip
    (rule,) = audited["generation"]
    assert audited["verdict"] == "FULL" and rule["signed"]
    assert (rule["admitted"], rule["verified"], rule["withdrawn"]) == (5, 5, 1)
    assert 0 < rule["most_nano"] <= rule["rule"]["max_rho_nano"]
