"""What an operator does at a shell, over a real release: make the budget, serve, ask with signed rights, export, audit."""

import base64
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from dptrain.demo.language import World
from tests.worlds.commands import Shell
from tests.worlds.served import served_world

__all__ = ["served_world"]

FILE = """
tokens = "tokens.toml"
[server]
name = "gate.example"
port = {port}
[gate]
release = "{base}/model"
base = "{base}/base"
keys = ["{base}/ledger.pub"]
granters = ["office.pub"]
[classes.chat]
artifacts = ["adapter:harbour", "base"]
[budget]
log = "budget.db"
key = "budget.key"
caps = {{ user = {{ epsilon = 6.0, delta = 1e-5 }} }}
"""
PORT = 8391


def ready(url: str, process: "subprocess.Popen[bytes]") -> None:
    """Waits until a server takes requests."""
    for _ in range(600):
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            assert process.poll() is None, "the server did not start"
            time.sleep(0.1)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Runs `dptrain serve` in a process of its own until it is ready, and ends it as an operator does."""
    process = subprocess.Popen([sys.executable, "-m", "dptrain", "serve", "serve.toml"], cwd=folder, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{PORT}"
    try:
        ready(url, process)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def prepared(world: World, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Lays the release, the server's file and the key of who signs rights into a folder, and works there."""
    monkeypatch.chdir(folder)
    base = folder / "runs"
    shutil.copytree(world.base.parent, base)
    (folder / "serve.toml").write_text(FILE.format(port=PORT, base=base))
    shell = Shell(folder)
    shell.run("attest", "keygen", "office")
    return shell


def asked(url: str, token: str, rights: bytes | None = None) -> Any:
    headers = {"Authorization": f"Bearer {token}"}
    if rights is not None:
        headers["Dptrain-Rights"] = base64.urlsafe_b64encode(rights).decode().rstrip("=")
    return httpx.post(f"{url}/v1/completions", headers=headers, json={"model": "chat", "prompt": "the boat", "max_tokens": 2})


@pytest.mark.slow
def test_a_release_is_served_by_signed_rights_and_its_budget_is_audited(
    served_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = prepared(served_world, tmp_path, monkeypatch)
    made = shell.json("serve", "serve.toml", "--init")
    token = shell.json("serve", "serve.toml", "--add-token", "bob")["token"]
    signing = ("rights", "sign", "--key", "office.key", "--holder", "bob", "--generation", "chat")
    here, everything = ("--audience", "gate.example"), ("--allow", "harbour", "--allow", "orchard", "--allow", "workshop")
    shell.run(*signing, *here, "--allow", "harbour=2", "--out", "one.rights")
    shell.run(*signing, *here, *everything, "--out", "all.rights")
    shell.run(*signing, "--audience", "other.example", *everything, "--out", "elsewhere.rights")
    with served(tmp_path) as url:
        assert asked(url, token).json()["error"]["code"] == "NO_RIGHTS"
        assert asked(url, token, (tmp_path / "elsewhere.rights").read_bytes()).json()["error"]["code"] == "AUDIENCE"
        by_all = asked(url, token, (tmp_path / "all.rights").read_bytes()).json()["privacy"]
        assert by_all["artifact"] == "adapter:harbour" and "harbour" in by_all["influenced_by"]
        by_one = asked(url, token, (tmp_path / "one.rights").read_bytes()).json()["privacy"]
        assert set(by_one["influenced_by"]) <= {"harbour"}  # the base, or an adapter that no other class has reached
        shell.json("serve", "serve.toml", "--export", "spent")  # beside the running server
    audited = shell.json("ledger", "verify", "spent", "--key", "budget.pub")
    assert audited["verdict"] == "FULL" and made["key"] in audited["log_keys"]
    assert [name for name, _, _ in audited["beside"]] == ["topics/ledger"]


@pytest.mark.slow
def test_a_base_of_which_one_number_was_changed_is_not_served(
    served_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = prepared(served_world, tmp_path, monkeypatch)
    weights = tmp_path / "runs" / "base" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    shell.json("serve", "serve.toml", "--init")
    shell.json("serve", "serve.toml", "--add-token", "bob")
    assert shell.json("serve", "serve.toml", code=1)["error"]["code"] == "BASE_NOT_TIED"


@pytest.mark.slow
def test_at_sighup_a_revoked_client_is_refused_and_a_new_token_answered(
    served_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = prepared(served_world, tmp_path, monkeypatch)
    shell.json("serve", "serve.toml", "--init")
    token = shell.json("serve", "serve.toml", "--add-token", "bob")["token"]
    signing = ("rights", "sign", "--key", "office.key", "--audience", "gate.example", "--holder", "bob", "--generation", "chat")
    serial = shell.json(*signing, "--out", "bob.rights")["serial"]
    rights = (tmp_path / "bob.rights").read_bytes()
    command = [sys.executable, "-m", "dptrain", "serve", "serve.toml"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{PORT}"
    try:
        ready(url, process)
        assert asked(url, token, rights).status_code == 200
        before = (tmp_path / "serve.toml").read_text()
        text = before.replace("[classes.chat]", f'revoked = ["{serial}"]\n[classes.chat]')
        (tmp_path / "serve.toml").write_text(text)
        other = shell.json("serve", "serve.toml", "--add-token", "carl", "--allow", "harbour")["token"]
        assert asked(url, other).status_code == 401
        process.send_signal(signal.SIGHUP)
        for _ in range(100):
            if asked(url, other).status_code == 200:
                break
            time.sleep(0.1)
        assert asked(url, token, rights).json()["error"]["code"] == "REVOKED"
        assert asked(url, other).status_code == 200
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
