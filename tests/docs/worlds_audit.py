"""Makes what readers of the pages on publishing and extending have: a version that was published, an accountant."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from attest.schema.words import ENTRY_POINTS
from tests.docs.blocks import ROOT, blocks_of
from tests.docs.worlds import WORLDS
from tests.worlds.commands import Shell

if TYPE_CHECKING:
    from tests.docs.running import Page

_INSTALLED = """import site

_of_the_environment = site.getsitepackages
site.getsitepackages = lambda *given: [*_of_the_environment(*given), {folder!r}]
"""


def world(make: "Callable[[Page], None]") -> "Callable[[Page], None]":
    """Registers a world that needs more than files and names."""
    WORLDS[make.__name__] = make
    return make


@world
def zcdp(page: "Page") -> None:
    """The package of the page on accountants, installed; and a `policy.toml` that names its accountant."""
    code = next(block.text for block in blocks_of((ROOT / "docs/extending/accountant.md").read_text(encoding="utf-8")))
    folder = page.folder / "installed"
    told = folder / "example_zcdp-1.0.dist-info"
    told.mkdir(parents=True)
    (folder / "example_zcdp.py").write_text(code)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: example-zcdp\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\nexample.zcdp = example_zcdp\n")
    (folder / "sitecustomize.py").write_text(_INSTALLED.format(folder=str(folder)))
    page.environment["PYTHONPATH"] = f"{folder}:{page.environment['PYTHONPATH']}"
    Shell(page.work).run("policy", "init", "policy.toml", "--corpus", "clinic-notes-2026")
    policy = page.work / "policy.toml"
    text, count = re.subn(r'^accountant = "pld"', 'accountant = "example.zcdp"', policy.read_text(), flags=re.MULTILINE)
    assert count == 1, "policy.toml names no accountant any more"
    policy.write_text(text)


@world
def published(page: "Page") -> None:
    """A checkout with a signed tag, `SHA256SUMS` and `SHA256SUMS.sig` of a version; `allowed_signers` has the maintainer's key.

    The address of the maintainer is the word that the page has in its place.
    """
    key = _checkout(page)
    _run(page, "git", "-c", "gpg.format=ssh", "-c", f"user.signingkey={key}.pub", "tag", "-s", "v0.1.0", "-m", "dptrain 0.1.0")
    _run(page, "ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", "dptrain-release", "SHA256SUMS")


@world
def unpublished(page: "Page") -> None:
    """A checkout without a tag, with the `dist/SHA256SUMS` that the build has left, in a folder of its own."""
    page.work = page.folder / "unpublished"
    page.work.mkdir()
    _checkout(page)
    (page.work / "dist").mkdir()
    shutil.move(page.work / "SHA256SUMS", page.work / "dist")


def _checkout(page: "Page") -> Path:
    """Makes a repository with a commit, and once the maintainer's key, whose path it returns."""
    if shutil.which("ssh-keygen") is None or shutil.which("git") is None:
        pytest.skip("needs ssh-keygen and git")
    key = Path(page.environment["HOME"]) / ".ssh" / "id_ed25519"
    if not key.exists():
        key.parent.mkdir()
        _run(page, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    _run(page, "git", "init", "-q")
    for name, value in {"user.name": "M", "user.email": "m@publisher.example"}.items():
        _run(page, "git", "config", name, value)
    (page.work / "allowed_signers").write_text(f"ADDRESS {Path(f'{key}.pub').read_text()}")
    (page.work / "dptrain-0.1.0-py3-none-any.whl").write_text("stands for a wheel")
    sums = subprocess.run(["sha256sum", "dptrain-0.1.0-py3-none-any.whl"], cwd=page.work, check=True, capture_output=True)
    (page.work / "SHA256SUMS").write_bytes(sums.stdout)
    _run(page, "git", "add", "--all")
    _run(page, "git", "commit", "-qm", "Begin")
    return key


def _run(page: "Page", *words: str) -> None:
    subprocess.run(words, cwd=page.work, env=page.environment, check=True, capture_output=True, stdin=subprocess.DEVNULL)
