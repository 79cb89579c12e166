"""`docs/releases.md` is run as it is printed, block by block: each of its four tools reads the release that it makes."""

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.worlds.commands import record

PAGE = Path(__file__).resolve().parents[2] / "docs" / "releases.md"
BLOCKS = re.findall(r"^```([a-z]+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def weights() -> bytes:
    header = b'{"head.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    return len(header).to_bytes(8, "little") + header + bytes(8)


@pytest.fixture
def model(shell, corpus):
    corpus()
    record(shell)
    directory = shell.directory / "model"
    directory.mkdir()
    (directory / "model.safetensors").write_bytes(weights())
    return directory


def signing(words: list[str]) -> None:
    """Runs `model_signing` in this process."""
    from click.testing import CliRunner
    from model_signing._cli import main

    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.output) == (0, "Verification succeeded\n")


def test_every_block_of_the_page_does_what_it_says(shell, model):
    left_out, printed = [], io.StringIO()
    assert [language for language, _ in BLOCKS] == ["toml", "sh", "sh", "sh", "python"]
    for language, text in BLOCKS:
        if language == "toml":
            shell.write("about.toml", text)
        elif language == "python":
            pytest.importorskip("cyclonedx.validation.json")
            pytest.importorskip("huggingface_hub")
            with contextlib.redirect_stdout(printed):
                exec(compile(text, PAGE.name, "exec"), {})
        for program, *words in map(shlex.split, text.splitlines() if language == "sh" else ()):
            if program == "dptrain":
                words += ["--registry", "registry.cbor"] if "--ledger" in words else []
                shell.run(*words)
            else:
                assert (program, *words[:2]) == ("python", "-m", "model_signing")
                try:
                    signing(words[2:])
                except ImportError:
                    left_out.append("model_signing")
    assert printed.getvalue() == "apache-2.0\n"
    listed = re.findall(r"`([A-Za-z.]+\.(?:md|json|sig|pub|cose)|export/)`", PAGE.read_text().split("## Check")[0])
    there = {path.name for path in model.iterdir()}
    others = {"MODEL_CARD.md", "ledger.pub", "ledger.release.pem"}
    assert there - {"model.safetensors"} == {name.strip("/") for name in listed} - others
    if left_out:
        pytest.skip("model-signing or pyopenssl is not installed: all blocks ran but that one")


def test_any_edit_makes_its_check_fail_as_the_page_says(shell, model):
    shell.run("release", "model", "--ledger", "ledger.db", "--registry", "registry.cbor")
    text = (model / "README.md").read_text()
    (model / "README.md").write_text(text.replace("apache", "mit") + "\n")
    told = shell.json("release", "--check", "model", "--key", "ledger.pub", code=1)
    assert {item["where"] for item in told["findings"]} == {"README.md"}


def test_a_card_of_ones_own_stays_and_parts_may_be_left_out(shell, model):
    (model / "README.md").write_text("# By hand\n")
    off = ("--without-disclosure", "--without-bom", "--without-signature")
    made = shell.json("release", "model", "--ledger", "ledger.db", *off)
    assert made["publication"]["documents"] == ["MODEL_CARD.md"] and made["signing_key"] is None
    shutil.rmtree(model / "export")
    for name in ("release.cose", "MODEL_CARD.md"):
        (model / name).unlink()
    assert shell.json("release", "model", "--ledger", "ledger.db", "--without-card", *off)["publication"] is None
    assert sorted(path.name for path in model.iterdir()) == ["README.md", "export", "model.safetensors", "release.cose"]
    assert not Path("ledger.release.key").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("name = 3", "name"),
        ("license = 'mit'", "has no name"),
        ("name = 'm'\nepsilon = 0.1", "has epsilon"),
        ("name = 'm'\nlicense = 'MIT License'", "a license as the Hub spells it"),
        ("name = 'm'\ntags = [1]", "tags"),
        ("name =", "no TOML"),
    ],
)
def test_what_cannot_be_said_of_a_model_is_wrong_use_and_releases_nothing(shell, model, text, why):
    shell.write("about.toml", text)
    told = shell.run("release", "model", "--ledger", "ledger.db", "--about", "about.toml", code=2)
    assert why in " ".join(told.stderr.replace("│", " ").split()) and not (model / "release.cose").exists()


def test_the_signing_key_is_made_once_and_is_its_owners(shell, model):
    first = shell.json("release", "model", "--ledger", "ledger.db")
    assert Path("ledger.release.key").stat().st_mode & 0o777 == 0o600
    assert Path("ledger.release.pem").read_bytes() == (model / "model.pub").read_bytes()
    shutil.rmtree(model)
    model.mkdir()
    (model / "model.safetensors").write_bytes(weights())
    assert shell.json("release", "model", "--ledger", "ledger.db")["signing_key"] == first["signing_key"]
    shell.run("release", "--check", "model", "--key", "ledger.pub", "--without-card", code=2)
