"""`dptrain release`: a model is released beside its ledger's export, and checked by whoever gets it."""

import pytest
from recorded import record

from ledger.log import Ledger


@pytest.fixture
def model(shell, corpus):
    """A finished run's ledger, and a directory that stands for its model."""
    corpus()
    record(shell)
    directory = shell.directory / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    return directory


CHECK = ("release", "--check", "model", "--key", "ledger.pub")


def test_a_model_is_released_and_whoever_gets_it_checks_it_offline(shell, model):
    made = shell.json("release", "model", "--ledger", "ledger.db")
    assert sorted(path.name for path in model.iterdir()) == ["config.json", "export", "release.cose"]
    assert made["files"][0]["path"] == "config.json" and made["leaf"] == made["size"]
    shown = shell.json("ledger", "show", "ledger.db")["classes"][0]
    assert made["classes"][0]["epsilon"] == pytest.approx(shown["epsilon"], abs=2e-6)
    full = {part["name"]: part for part in made["artifacts"]}["full"]
    assert full["epsilon"]["sensitive"] == made["classes"][0]["epsilon"]
    answer = shell.json(*CHECK, "--owner-key", "owner.pub")
    assert (answer["verdict"], answer["manifest"]["root"]) == ("FULL", made["root"])
    text = shell.run(*CHECK).stdout
    assert text.startswith("FULL") and "A (direct isolation)" in text
    with Ledger.open("ledger.db") as log:
        assert log.size == made["leaf"] + 1


def test_a_changed_file_fails_and_is_named(shell, model):
    shell.run("release", "model", "--ledger", "ledger.db")
    (model / "config.json").write_text("[]")
    answer = shell.json(*CHECK, code=1)
    assert [(item["code"], item["where"]) for item in answer["findings"]] == [("CHANGED_FILE", "config.json")]
    assert "CHANGED_FILE config.json" in shell.run(*CHECK, code=1).stdout


def test_an_older_release_than_asked_for_fails(shell, model):
    size = shell.json("release", "model", "--ledger", "ledger.db")["size"]
    shell.run(*CHECK, "--min-size", str(size))
    assert shell.json(*CHECK, "--min-size", str(size + 1), code=1)["findings"][0]["code"] == "OLD"


def test_a_second_release_into_one_directory_is_refused(shell, model):
    shell.run("release", "model", "--ledger", "ledger.db")
    assert shell.json("release", "model", "--ledger", "ledger.db", code=1)["error"]["code"] == "EXISTS"


def test_options_of_the_two_ways_do_not_mix(shell, model):
    shell.run("release", "model", code=2)
    shell.run("release", "--check", "model", code=2)
    shell.run("release", "model", "--ledger", "ledger.db", "--key", "ledger.pub", code=2)
    shell.run(*CHECK, "--ledger", "ledger.db", code=2)
