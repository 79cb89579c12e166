"""`dptrain release`: a model is released beside its ledger's export, and checked by whoever gets it."""

import hashlib

import pytest

from ledger.log import Ledger
from tests.worlds.commands import record


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
    assert sorted(path.name for path in model.iterdir()) == [
        "DISCLOSURE.md", "README.md", "bom.cdx.json", "config.json", "disclosure.json", "export", "model.pub", "model.sig",
        "release.cose", "release.sigstore.json",
    ]  # fmt: skip
    assert made["files"][3]["path"] == "config.json" and made["leaf"] == made["size"]
    shown = shell.json("ledger", "show", "ledger.db")["classes"][0]
    assert made["classes"][0]["epsilon"] == pytest.approx(shown["epsilon"], abs=2e-6)
    full = {part["name"]: part for part in made["artifacts"]}["full"]
    assert full["epsilon"]["sensitive"] == made["classes"][0]["epsilon"]
    answer = shell.json(*CHECK, "--owner-key", "owner.pub")
    assert (answer["verdict"], answer["manifest"]["root"]) == ("TOLD", made["root"])
    text = shell.run(*CHECK).stdout
    assert text.startswith("TOLD") and "A (direct isolation)" in text
    with Ledger.open("ledger.db") as log:
        assert log.size == made["leaf"] + 1


def test_a_changed_file_fails_and_is_named(shell, model):
    shell.run("release", "model", "--ledger", "ledger.db")
    (model / "config.json").write_text("[]")
    answer = shell.json(*CHECK, code=1)
    assert [(item["code"], item["where"]) for item in answer["findings"]] == [("CHANGED_FILE", "config.json")]
    assert "CHANGED_FILE config.json" in shell.run(*CHECK, code=1).stdout


def weights(values: bytes, dtype: str = "F32") -> bytes:
    """A safetensors file with the one tensor of the recorded run."""
    header = f'{{"head.weight":{{"dtype":"{dtype}","shape":[2],"data_offsets":[0,{len(values)}]}}}}'.encode()
    return len(header).to_bytes(8, "little") + header + values


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("data", "status", "told"),
    [
        (weights(bytes(8)), "TIED", "model.safetensors: 1 tensor tied"),
        (weights(bytes(4), "BF16"), "CONVERTED", "converted head.weight"),
        (weights(bytes(7) + b"\1"), "UNTIED", "CHANGED head.weight"),
        (weights(bytes(8)).replace(b"head.weight", b"tail.weight"), "UNTIED", "FOREIGN tail.weight"),
    ],
)
def test_of_every_tensor_it_is_told_whether_it_is_the_runs(shell, model, data, status, told):
    (model / "model.safetensors").write_bytes(data)
    made = shell.json("release", "model", "--ledger", "ledger.db")
    assert (made["weights"]["status"], made["weights"]["step"], made["weights"]["trained"]) == (status, 20, 1)
    answer = shell.json(*CHECK)
    assert answer["weights"] == made["weights"] and answer["verdict"] == "TOLD"
    text = " ".join(shell.run(*CHECK).stdout.split())
    assert f"weights {status}" in text and told in text


def test_a_file_whose_weights_are_not_compared_is_named(shell, model):
    (model / "model.safetensors").write_bytes(weights(bytes(8)))
    (model / "pytorch_model.bin").write_bytes(b"pickled")
    shell.run("release", "model", "--ledger", "ledger.db")
    assert shell.json(*CHECK)["weights"]["not_compared"] == ["pytorch_model.bin"]
    assert "NOT COMPARED pytorch_model.bin" in " ".join(shell.run(*CHECK).stdout.split())


def test_a_release_that_is_not_in_the_export_fails_and_tells_what_to_get(shell, model):
    shell.run("ledger", "export", "ledger.db", "before")
    made = shell.json("release", "model", "--ledger", "ledger.db")
    (finding,) = shell.json(*CHECK, "--export", "before", code=1)["findings"]
    assert finding["code"] == "UNRECORDED" and f"at least {made['leaf'] + 1} leaves" in finding["sentence"]


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


def test_the_ledger_and_its_audit_tell_of_releases(shell, model):
    assert shell.json("ledger", "show", "ledger.db")["releases"] == []
    assert "released at leaf" not in shell.run("ledger", "show", "ledger.db").stdout
    made = shell.json("release", "model", "--ledger", "ledger.db")
    shown = shell.json("ledger", "show", "ledger.db")
    audited = shell.json("ledger", "verify", "model/export", "--key", "ledger.pub")
    assert shown["releases"] == audited["releases"] and shown["release_count"] == audited["release_count"] == 1
    (row,) = shown["releases"]
    assert row["seq"] == made["leaf"] and row["root"] == made["root"]
    assert row["manifest_digest"] == hashlib.sha256((model / "release.cose").read_bytes()).hexdigest()
    for text in (
        shell.run("ledger", "show", "ledger.db").stdout,
        shell.run("ledger", "verify", "model/export", "--key", "ledger.pub").stdout,
    ):
        assert f"released at leaf {made['leaf']}," in text and f"release.cose has SHA-256 {row['manifest_digest']}" in text
        assert "  full: epsilon of the whole run: sensitive " in text


def test_a_release_that_the_export_does_not_show_fails_and_names_the_export_that_would_do(shell, model):
    """A manifest signed with the ledger's key that was never logged is a release hidden from auditors."""
    shell.run("ledger", "export", "ledger.db", "before")
    made = shell.json("release", "model", "--ledger", "ledger.db")
    before = made["size"] == shell.json("ledger", "verify", "before", "--key", "ledger.pub")["size"]
    answer = shell.json(*CHECK, "--export", "before", code=1)
    assert [item["code"] for item in answer["findings"]] == ["UNRECORDED" if before else "BEHIND"]
    assert f"at least {made['size'] + 1} leaves" in answer["findings"][0]["sentence"]
    assert "--export" in answer["findings"][0]["sentence"]


def test_a_release_without_its_export_is_no_pass_unless_one_is_content_with_the_signature(shell, model):
    """Else whoever takes the export away has turned a failing check into one that passes."""
    shell.run("release", "model", "--ledger", "ledger.db")
    (model / "export").rename(shell.directory / "elsewhere")
    assert shell.json(*CHECK, code=1)["verdict"] == "SIGNED"
    assert shell.json(*CHECK, "--signature-only")["verdict"] == "SIGNED"
    for asked in (("--owner-key", "owner.pub"), ("--require-quorum",)):
        answer = shell.json(*CHECK, "--signature-only", *asked, code=1)
        assert answer["verdict"] == "FAILED" and [item["code"] for item in answer["findings"]] == ["NO_EXPORT"]
    assert shell.json(*CHECK, "--export", "elsewhere", "--owner-key", "owner.pub")["verdict"] == "TOLD"
    shell.run("release", "model", "--ledger", "ledger.db", "--signature-only", code=2)


def test_only_cosignatures_tell_that_auditors_are_shown_the_ledger_that_records_a_release(shell, model):
    shell.run("release", "model", "--ledger", "ledger.db")
    assert shell.json(*CHECK)["verdict"] == "TOLD"
    answer = shell.json(*CHECK, "--require-quorum", code=1)
    assert [item["code"] for item in answer["findings"]] == ["QUORUM"]
    shell.run("release", "model", "--ledger", "ledger.db", "--require-quorum", code=2)
