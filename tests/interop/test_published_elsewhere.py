"""What a release holds for others is read by their tools: `model_signing`, sigstore's models, CycloneDX's validator, the Hub's.

`ModelCard.validate()` asks the Hub and is left out: here the card is parsed as the Hub's library does, its metadata are
compared with what was given, and keys that the Hub does not know would be found.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from attest.keys import p256
from ledger.published import About, bundles
from ledger.release import Publish, check_release, release
from tests.ledger.release_models import model, run_to_the_end
from tests.worlds.ledgers import SIGNER

KEY = ec.derive_private_key(13, ec.SECP256R1())
SAID = 'It says "no": #1\n--- and more.'
ABOUT = About("A small model", SAID, "apache-2.0", ("en", "de"), ("owner/base",), ("a: b", "no", "test"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    base = tmp_path_factory.mktemp("elsewhere")
    driver = run_to_the_end(base / "ledger.db")
    with driver.ledger as ledger:
        directory = model(base / "model")
        (directory / ".gitattributes").write_text("*.safetensors filter=lfs\n")
        (directory / "tokenizer.json").write_text("{}")
        (directory / "tokenizer-x").mkdir()
        (directory / "tokenizer-x" / "a.txt").write_text("a")
        (directory / "tokenizer" / "Größe 1.txt").write_text("a name beyond ASCII")
        release(ledger, directory, now=driver.tick(), publish=Publish(version="0.1.0", about=ABOUT, key=KEY))
    assert check_release(directory, [SIGNER.vkey]).findings == ()
    return directory


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def words(directory: Path) -> list[str]:
    """What whoever gets a model types behind `model_signing`."""
    return [
        *("verify", "key", "--signature", str(directory / "model.sig"), "--public_key", str(directory / "model.pub")),
        str(directory),
    ]


def verified(directory: Path, *more: str) -> tuple[int, str]:
    """Runs `model_signing verify key` in this process."""
    pytest.importorskip("model_signing", reason="needs model-signing and pyopenssl: pip install 'dptrain[dev]'")
    from click.testing import CliRunner
    from model_signing._cli import main

    done = CliRunner().invoke(main, [*words(directory), *more])
    return done.exit_code, done.output


def test_model_signing_verifies_a_release(whole):
    assert verified(whole) == (0, "Verification succeeded\n")
    assert verified(whole, "--no-ignore-git-paths")[0] == 0
    command = [sys.executable, "-m", "model_signing", *words(whole)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=120)
    assert (done.returncode, done.stdout) == (0, "Verification succeeded\n"), done.stderr


def test_model_signing_refuses_one_changed_weight(copy):
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "model.safetensors").write_bytes(data)
    code, said = verified(copy)
    assert code == 1 and "Hash mismatch for 'model.safetensors'" in said


@pytest.mark.parametrize("name", ["README.md", "DISCLOSURE.md", "bom.cdx.json", "tokenizer/vocab.txt"])
def test_model_signing_refuses_another_card_or_any_other_file(copy, name):
    (copy / name).write_text("by hand")
    assert verified(copy)[0] == 1


def test_model_signing_refuses_a_file_too_many_and_another_key(copy):
    (copy / "extra.txt").write_text("not released")
    code, said = verified(copy)
    assert code == 1 and "extra.txt" in said
    (copy / "extra.txt").unlink()
    (copy / "model.pub").write_bytes(p256.public_pem(p256.point(p256.generate())))
    assert verified(copy)[0] == 1


def test_what_model_signing_itself_signs_of_these_files_is_the_same_statement(whole, tmp_path):
    pytest.importorskip("model_signing", reason="needs model-signing and pyopenssl: pip install 'dptrain[dev]'")
    import model_signing

    p256.save_private_key(tmp_path / "key", KEY)
    kept = ["model.sig", "release.cose", "release.sigstore.json", "export"]
    config = model_signing.hashing.Config().set_ignored_paths(paths=kept)
    signing = model_signing.signing.Config().use_elliptic_key_signer(private_key=tmp_path / "key").set_hashing_config(config)
    signing.sign(whole, tmp_path / "theirs.sig")

    def read(path: Path):
        told = json.loads(path.read_text())
        return told, json.loads(base64.b64decode(told["dsseEnvelope"]["payload"]))

    (theirs, their_statement), (ours, our_statement) = read(tmp_path / "theirs.sig"), read(whole / "model.sig")
    assert theirs["verificationMaterial"] == ours["verificationMaterial"] and theirs["mediaType"] == ours["mediaType"]
    assert theirs.keys() == ours.keys() and theirs["dsseEnvelope"].keys() == ours["dsseEnvelope"].keys()
    for statement in (their_statement, our_statement):
        statement["predicate"]["serialization"]["ignore_paths"].sort()
    assert their_statement["predicate"] == our_statement["predicate"]
    assert their_statement["subject"][0]["digest"] == our_statement["subject"][0]["digest"]
    assert {key: our_statement[key] for key in ("_type", "predicateType")} == {
        key: their_statement[key] for key in ("_type", "predicateType")
    }


@pytest.mark.parametrize("name", ["model.sig", "release.sigstore.json"])
def test_sigstore_reads_both_bundles_and_their_signatures_hold(whole, name):
    models = pytest.importorskip("sigstore_models.bundle.v1")
    canonical = pytest.importorskip("rfc8785")
    data = (whole / name).read_bytes()
    found = models.Bundle.from_json(data)
    envelope = found.dsse_envelope
    assert found.media_type == "application/vnd.dev.sigstore.bundle.v0.3+json"
    assert envelope.payload_type == "application/vnd.in-toto+json"
    p256.verify(p256.point(KEY), envelope.signatures[0].sig, bundles._pae(envelope.payload))
    assert canonical.dumps(json.loads(data)) == data and canonical.dumps(json.loads(envelope.payload)) == envelope.payload


def test_in_toto_takes_the_statement_of_the_manifest(whole):
    statements = pytest.importorskip("in_toto_attestation.v1.statement")
    from google.protobuf import json_format
    from in_toto_attestation.v1 import statement_pb2

    models = pytest.importorskip("sigstore_models.bundle.v1")
    payload = models.Bundle.from_json((whole / "release.sigstore.json").read_bytes()).dsse_envelope.payload
    found = statements.Statement.copy_from_pb(json_format.Parse(payload, statement_pb2.Statement()))
    found.validate()
    assert found.pb.subject[0].name == "release.cose"


@pytest.mark.parametrize("version", ["V1_6", "V1_7"])
def test_cyclonedx_takes_the_ml_bom_strictly(whole, version):
    validation = pytest.importorskip("cyclonedx.validation.json", reason="needs cyclonedx-python-lib[validation]")
    from cyclonedx.schema import SchemaVersion

    validator = validation.JsonStrictValidator(SchemaVersion[version])
    text = (whole / "bom.cdx.json").read_text()
    if version == "V1_7":  # every ML-BOM of 1.6 is one of 1.7 but for its number
        text = text.replace('"specVersion": "1.6"', '"specVersion": "1.7"')
    assert validator.validate_str(text) is None
    told = json.loads(text)
    told["metadata"]["component"]["modelCard"]["accuracy"] = 1
    assert validator.validate_str(json.dumps(told)) is not None, "a validator that takes anything shows nothing"


def test_cyclonedx_reads_the_ml_bom_back(whole):
    bom = pytest.importorskip("cyclonedx.model.bom")
    told = json.loads((whole / "bom.cdx.json").read_text())
    found = bom.Bom.from_json(told)
    assert found.metadata.component.type == "machine-learning-model" and len(found.components) == len(told["components"])


def test_the_hub_reads_the_card(whole):
    hub = pytest.importorskip("huggingface_hub")
    card = hub.ModelCard.load(str(whole / "README.md"))
    assert card.data.to_dict() == {
        "license": "apache-2.0",
        "language": ["en", "de"],
        "base_model": ["owner/base"],
        "tags": ["differential-privacy", "dptrain", "a: b", "no", "test"],
    }
    assert card.text.lstrip().startswith("<!-- Written by dptrain release") and "\n---" not in card.text
    known = set(hub.ModelCardData.__init__.__kwdefaults__)
    assert set(card.data.to_dict()) <= known, "keys that the Hub does not know"
