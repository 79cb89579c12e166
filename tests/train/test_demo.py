"""The demo: every stage on real data, in a reduced form."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from attest.errors import ReasonCode
from attest.keys import load_public_key
from attest.policy import Policy
from dptrain.demo.public import digits, draw_digits
from dptrain.demo.stages import main
from ledger.audit import verify_export
from ledger.release import check_release
from tests.interop import second_verifier


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict]]:
    import contextlib
    import io

    directory = tmp_path_factory.mktemp("demo") / "demo"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["--quick", "--json", "--dir", str(directory)]) == 0
    yield directory, json.loads(printed.getvalue())


def test_the_record_verifies_and_its_tampered_copy_does_not(told: tuple[Path, dict]) -> None:
    directory, result = told
    assert result["verdict"] == "FULL"
    assert result["tampered"]["verdict"] == "FAILED"
    assert (result["release"]["verdict"], result["release"]["findings"]) == ("FULL", [])
    assert any(result["tampered"]["file"] in finding["where"] for finding in result["tampered"]["findings"])
    keys = (directory / "ledger.pub").read_text().split()
    assert verify_export(directory / "export", keys).verdict == "FULL"
    owner = load_public_key(directory / "keys" / "owner.pub")
    second = [second_verifier.verify(directory / name, keys, owner) for name in ("export", "export-tampered")]
    assert [found["verdict"] for found in second] == ["FULL", "FAILED"]


def test_the_released_weights_are_those_of_the_last_epoch_and_a_changed_one_is_named(told: tuple[Path, dict]) -> None:
    """Under the names of their original files, which `transformers` writes and the model does not have."""
    directory, result = told
    release = result["release"]
    assert (release["weights"], release["step"]) == ("TIED", 2)
    assert release["documents"] == ["DISCLOSURE.md", "README.md", "bom.cdx.json", "disclosure.json"]
    report = check_release(directory / "model", (directory / "ledger.pub").read_text().split())
    assert report.weights is not None and report.weights.left_out == () and report.weights.trained == release["tensors"] > 30
    assert release["other"]["verdict"] == "FAILED"
    (finding,) = release["other"]["findings"]
    assert finding["where"] == release["other"]["file"] == "model.safetensors" and "has other values" in finding["sentence"]


def test_everything_lies_where_it_is_said_to(told: tuple[Path, dict]) -> None:
    directory, result = told
    assert [path.name for path in directory.glob("*.pub")] == ["ledger.pub"]
    for path in result["files"].values():
        assert Path(path).exists()
    assert (directory / "export" / "checkpoint").is_file()
    assert "NOT PRIVATE" in (directory / "model-not-private" / "NOT_PRIVATE").read_text()
    page = (directory / "report.html").read_text()
    assert "FULL" in page
    assert all(code in page for code in result["gate"]["refused"])


def test_each_bad_attestation_is_refused_for_its_own_reason(told: tuple[Path, dict]) -> None:
    _, result = told
    reasons = {Path(item["where"]).stem.removeprefix("refused-"): item["code"] for item in result["gate"]["examples"]}
    assert reasons == {
        "expired": ReasonCode.EXPIRED,
        "forged": ReasonCode.SIG_BAD,
        "too-permissive": ReasonCode.CLIP_ABOVE_CLASS,
        "too-little-noise": ReasonCode.NOISE_BELOW_CLASS,
        "wrong-corpus": ReasonCode.AUDIENCE,
        "changed-content": ReasonCode.CONTENT_MISMATCH,
        "replayed": ReasonCode.REPLAYED,
        "non-canonical": ReasonCode.CBOR_NONCANONICAL,
        "unattested": ReasonCode.UNATTESTED,
    }
    assert set(result["gate"]["refused"].values()) == {1}


def test_three_classes_spend_at_most_what_is_stated(told: tuple[Path, dict]) -> None:
    _, result = told
    assert [row["class"] for row in result["classes"]] == ["sensitive", "internal", "open"]
    assert all(0 < row["epsilon"] <= 8.0 for row in result["classes"])
    assert [row["band"] for row in result["classes"]] == [[0.75, 1.0], [0.5, 1.0], [0.0, 1.0]]


def test_depth_is_compared_by_the_noise_that_audits_derive(told: tuple[Path, dict]) -> None:
    """Energies follow from the exports' signed policies: sums over blocks of parameters times the max rule's variance."""
    directory, result = told
    blocks = {block["name"]: block["parameters"] for block in result["depth"]["blocks"]}
    strictest, unbanded, own = result["depth"]["arms"]
    assert [arm["name"] for arm in (strictest, unbanded, own)] == ["strictest", "without_bands", "with_bands"]
    assert set(strictest["energy_by_block"].values()) == {1.0} and len(set(unbanded["energy_by_block"].values())) == 1
    assert own["energy"] <= 0.4 and own["energy"] < unbanded["energy"] <= 1.0
    total = sum(blocks.values()) * strictest["noise_std"]["head"] ** 2
    assert own["energy"] == pytest.approx(sum(blocks[name] * std**2 for name, std in own["noise_std"].items()) / total)
    assert len(set(strictest["epsilon"].values())) == 1 and len(set(own["epsilon"].values())) == 3
    assert own["accuracy"] == result["accuracy"]["private"]
    policy = Policy.from_toml((directory / "policy.toml").read_text())
    loudest = max(float(rule.clip_norm_micro * rule.noise_multiplier_micro) / 1e12 for rule in policy.classes)
    assert own["noise_std"]["head"] == pytest.approx(loudest, rel=1e-6)
    page = (directory / "report.html").read_text()
    assert all(arm["sentence"] in page for arm in (strictest, unbanded, own))


def test_a_directory_that_is_not_a_demo_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert main(["--quick", "--dir", str(tmp_path)]) == 1
    assert "OUTPUT" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.slow
def test_a_second_demo_moves_the_first_aside(told: tuple[Path, dict], capsys: pytest.CaptureFixture[str]) -> None:
    directory, _ = told
    first = (directory / "ledger.pub").read_text()
    assert main(["--quick", "--dir", str(directory)]) == 0
    assert "earlier/001" in capsys.readouterr().out
    assert (directory / "earlier" / "001" / "ledger.pub").read_text() == first
    assert (directory / "ledger.pub").read_text() != first


def test_drawn_digits_are_reproducible_and_have_the_form_of_written_ones() -> None:
    pictures, labels = draw_digits(50, seed=3)
    again, _ = draw_digits(50, seed=3)
    assert pictures.shape == (50, 8, 8) and labels.shape == (50,)
    assert np.array_equal(pictures, again)
    assert pictures.min() >= 0.0 and pictures.max() <= 16.0
    assert set(labels) == set(range(10))


def test_validation_pictures_are_contributed_by_nobody() -> None:
    data = digits()
    contributed = {json.dumps(record) for record in data.contributed}
    assert not contributed & {json.dumps(record) for record in [*data.validation, *data.spare]}
    assert len(data.validation) == 360
