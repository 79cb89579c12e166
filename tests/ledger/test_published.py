"""Documents and bundles of a release: they say what the audit found, and `check_release` finds every byte that differs."""

import base64
import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from release_models import model, run_to_the_end

from attest.keys import p256
from ledger.audit.findings import Finding
from ledger.errors import LedgerBusy, ReleaseRefused
from ledger.log import Ledger
from ledger.published import MARK, About, bundles, disclosure, written
from ledger.published.facts import FORM, PATHS, recognised
from ledger.release import MANIFEST, Publish, check_release, create, publishing, release
from ledger.release.publishing import facts_of
from ledger.views.attacker import hits
from tests.worlds.attested_ledgers import attested_admission, attested_run, put_registry
from tests.worlds.ledgers import SIGNER, START, Driver, admission
from tests.worlds.retained_ledgers import ANNA, BEN, is_pruned, retaining_spec, vouched_for

KEYS = [SIGNER.vkey]
KEY = ec.derive_private_key(11, ec.SECP256R1())
ABOUT = About("A small model", "Two lines.\nFor tests.", "apache-2.0", ("en",), ("owner/base",), ("test",))
PUBLISH = Publish(version="0.1.0", about=ABOUT, key=KEY)
WRITTEN = ("DISCLOSURE.md", "README.md", "bom.cdx.json", "disclosure.json", "model.pub", "model.sig", "release.sigstore.json")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    driver = run_to_the_end(tmp_path_factory.mktemp("published") / "ledger.db")
    with driver.ledger:
        yield driver


def published(run, directory: Path, publish: Publish = PUBLISH) -> Path:
    release(run.ledger, model(directory), now=run.tick(), publish=publish)
    return directory


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory) -> Path:
    return published(run, tmp_path_factory.mktemp("whole") / "model")


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def found(directory: Path, **options) -> set[tuple[str, str]]:
    return {(item.code, item.where) for item in check_release(directory, KEYS, **options).findings}


def test_a_release_with_all_of_them_passes_and_the_check_names_what_it_wrote_again(whole):
    report = check_release(whole, KEYS)
    assert (report.verdict, report.findings, report.weights.status) == ("TOLD", (), "TIED")
    assert report.documents == ("DISCLOSURE.md", "README.md", "bom.cdx.json", "disclosure.json")
    assert report.manifest.signing_key == p256.point(KEY)
    assert report.qualifiers == report.manifest.publication.qualifiers, "to who has the key alone, as the card says"


def test_the_card_has_the_figures_of_the_check_and_no_others(whole):
    report, text = check_release(whole, KEYS), (whole / "README.md").read_text()
    for row in report.manifest.classes:
        assert f"| `{row.name}` | {row.contributions} | {row.withdrawn} | {row.epsilon_micro / 1e6:.6f} | " in text
    assert f"`{report.manifest.delta}`" in text and report.manifest.root.hex() in text
    for word in report.qualifiers:
        assert word.replace("_", "\\_") in text
    for sentence in report.manifest.statements:
        assert sentence[:60] in text
    assert "dptrain release --check . --key LEDGER.pub --owner-key OWNER.pub" in text and SIGNER.vkey not in text
    answers = {item["topic"]: item for item in json.loads((whole / "disclosure.json").read_text())["answers"]}
    figures = {item["name"]: item["value"] for item in answers["Privacy parameters (epsilon and delta)"]["figures"]}
    assert [row["epsilon_micro"] for row in figures["classes"]] == [row.epsilon_micro for row in report.manifest.classes]


def test_every_answer_says_whose_word_it_is_and_the_page_says_the_same_as_the_json(whole):
    page, told = (whole / "DISCLOSURE.md").read_text(), json.loads((whole / "disclosure.json").read_text())
    assert [item["topic"] for item in told["answers"]] == re.findall(r"^## (.*)$", page, re.MULTILINE)[:-1]
    assert {item["source"] for item in told["answers"]} <= set(disclosure.SOURCES)
    assert {item["topic"] for item in told["answers"] if item["source"] == disclosure.NOBODY} == {
        "Side channels", "Hyperparameter tuning", "Utility and bias",
    }  # fmt: skip


def test_who_signed_the_bounds_is_the_contributors_only_where_the_audit_says_so(tmp_path):
    driver = attested_run(tmp_path / "ledger.db")
    with driver.ledger as ledger:
        vkey = ledger.signer.vkey
        driver.admit(attested_admission(1), attested_admission(3, "sensitive"))
        driver.steps(4)
        registry = put_registry(tmp_path)
        made = release(ledger, model(tmp_path / "model"), now=driver.tick(), registry=registry, publish=PUBLISH)
    report = check_release(tmp_path / "model", [vkey])
    assert (report.verdict, report.findings) == ("FULL", ())
    assert made.manifest.publication.verdict == "FULL" and "OPEN" in made.manifest.publication.qualifiers
    answers = json.loads((tmp_path / "model" / "disclosure.json").read_text())["answers"]
    assert answers[0]["source"] == disclosure.CONTRIBUTORS
    assert "the whole planned horizon" in (tmp_path / "model" / "README.md").read_text()


@pytest.mark.one_in(99)
@pytest.mark.parametrize("name", WRITTEN)
def test_every_byte_counts(copy, name):
    data = (copy / name).read_bytes()
    for at in range(0, len(data), max(1, len(data) // 25)):
        changed = bytearray(data)
        changed[at] ^= 1
        (copy / name).write_bytes(changed)
        report = check_release(copy, KEYS)
        assert report.verdict == "FAILED" and name in {item.where for item in report.findings}, at
    for changed in (b"", data + b"\n", data[:-1]):
        (copy / name).write_bytes(changed)
        assert name in {where for _, where in found(copy)}


@pytest.mark.parametrize("name", WRITTEN)
def test_none_may_be_missing(copy, name):
    (copy / name).unlink()
    assert ("MISSING_FILE", name) in found(copy)


def lying(monkeypatch, run, directory: Path, path: str, change) -> Path:
    """A release whose operator wrote a document by hand: all digests and signatures hold, and the ledger records it."""
    monkeypatch.setattr(
        create, "written", lambda name, *about: change(written(name, *about)) if name == path else written(name, *about)
    )
    monkeypatch.setattr(create, "document_problems", lambda *about: ())
    made = published(run, directory)
    monkeypatch.undo()
    return made


@pytest.mark.one_in(3)
@pytest.mark.parametrize("path", ["DISCLOSURE.md", "README.md", "bom.cdx.json", "disclosure.json"])
@pytest.mark.parametrize(
    "change",
    [lambda data: data.replace(b"1.", b"0.", 1), lambda data: data + b" ", lambda data: data.replace(b"TOLD", b"FULL", 1)],
    ids=["a smaller figure", "a byte behind it", "another verdict"],
)
def test_an_operator_who_edits_a_document_and_signs_it_is_found_by_the_document(monkeypatch, run, tmp_path, path, change):
    directory = lying(monkeypatch, run, tmp_path / "model", path, change)
    assert found(directory) == {("DOCUMENT", path)}
    (directory / "export").rename(tmp_path / "export")
    assert found(directory, export=tmp_path / "export") == {("DOCUMENT", path)}


@pytest.mark.parametrize(
    "better",
    [
        {"verdict": "FULL"},
        {"verdict": "SUMMARISED"},
        {"qualifiers": ("FROZEN_TOLD", "NO_AUDITORS", "UNCOMPARED", "UNPINNED")},
        {"qualifiers": ("UNCOMPARED", "UNPINNED")},
    ],
    ids=lambda better: str(*better.values()),
)
def test_an_operator_whose_card_tells_of_a_better_audit_is_found(monkeypatch, run, tmp_path, better):
    audited = publishing.audited
    monkeypatch.setattr(create, "audited", lambda *about, **how: replace(audited(*about, **how), **better))
    directory = published(run, tmp_path / "model")
    assert found(directory) == {("AUDIT", MANIFEST)}


@pytest.mark.parametrize("left", ["UNCOMPARED", "UNPINNED"])
def test_a_card_that_says_more_than_the_ledgers_key_alone_can_show_is_not_written(monkeypatch, run, tmp_path, left):
    audited = publishing.audited

    def better(*about, **how):
        found = audited(*about, **how)
        return replace(found, qualifiers=tuple(word for word in found.qualifiers if word != left))

    monkeypatch.setattr(create, "audited", better)
    with pytest.raises(ReleaseRefused, match=f"MANIFEST: the recorded audit leaves out {left}"):
        published(run, tmp_path / "model")


def test_an_operator_whose_card_leaves_out_what_the_release_itself_weakens_is_found(monkeypatch, run, tmp_path):
    monkeypatch.setattr(create, "words_of", lambda found, header, manifest: set(found.qualifiers))
    directory = model(tmp_path / "model")
    (directory / "run.py").write_text("print('loaded')\n")
    release(run.ledger, directory, now=run.tick(), publish=PUBLISH)
    assert found(directory) == {("AUDIT", MANIFEST)}


def test_a_page_that_passes_for_a_card_and_is_none_is_refused_and_found(monkeypatch, run, tmp_path):
    directory = model(tmp_path / "model")
    (directory / "tokenizer" / "README.md").write_text(f"{MARK}\n# epsilon 0.1, verified\n")
    with pytest.raises(ReleaseRefused, match="DOCUMENT"):
        release(run.ledger, directory, now=run.tick(), publish=PUBLISH)
    assert not (directory / "bom.cdx.json").exists()
    release(run.ledger, directory, now=run.tick())
    assert found(directory) == {("DOCUMENT", "tokenizer/README.md")}


def test_a_readme_that_was_there_stays_and_the_card_has_another_name(run, tmp_path):
    directory = model(tmp_path / "model")
    (directory / "README.md").write_text("# By hand\n")
    made = release(run.ledger, directory, now=run.tick(), publish=PUBLISH)
    assert made.manifest.publication.documents == ("DISCLOSURE.md", "MODEL_CARD.md", "bom.cdx.json", "disclosure.json")
    assert (directory / "README.md").read_text() == "# By hand\n"
    report = check_release(directory, KEYS)
    assert report.verdict == "TOLD" and "not from the audit, and not checked: README.md" in report.notes
    shutil.rmtree(directory / "export")
    for name in (MANIFEST, *WRITTEN[2:], "DISCLOSURE.md"):
        (directory / name).unlink()
    (directory / "MODEL_CARD.md").replace(directory / "README.md")
    with pytest.raises(ReleaseRefused, match="model card of an earlier release"):
        release(run.ledger, directory, now=run.tick(), publish=PUBLISH)


@pytest.mark.parametrize("name", [*WRITTEN, "MODEL_CARD.md"])
def test_nothing_is_written_over(run, tmp_path, name):
    directory = model(tmp_path / "model")
    (directory / "README.md").write_text("by hand")
    (directory / name).write_text("by hand")
    before, size = sorted(directory.iterdir()), run.ledger.size
    if name == "README.md":
        return
    with pytest.raises(ReleaseRefused, match="EXISTS"):
        release(run.ledger, directory, now=run.tick(), publish=PUBLISH)
    assert (sorted(directory.iterdir()), run.ledger.size) == (before, size)


def test_a_ledger_that_fails_its_audit_gets_no_documents_and_is_not_released(monkeypatch, run, tmp_path):
    whole = publishing.verify_export

    def failing(*about, **how):
        return replace(whole(*about, **how), verdict="FAILED", findings=(Finding("SPEND", "seq 3", "a figure is wrong"),))

    monkeypatch.setattr(publishing, "verify_export", failing)
    directory, size = model(tmp_path / "model"), run.ledger.size
    with pytest.raises(ReleaseRefused, match="AUDIT: the audit of the ledger says SPEND"):
        release(run.ledger, directory, now=run.tick(), publish=PUBLISH)
    assert run.ledger.size == size and sorted(path.name for path in directory.iterdir()) == [
        "config.json", "model.safetensors", "tokenizer",
    ]  # fmt: skip
    release(run.ledger, directory, now=run.tick(), publish=replace(PUBLISH, kinds=()))
    assert found(directory) == set(), "signatures say nothing of an audit"


def test_what_was_written_goes_again_where_the_ledger_takes_no_leaf(monkeypatch, run, tmp_path):
    def busy(*about, **how):
        raise LedgerBusy("BUSY", "another writer holds the ledger")

    monkeypatch.setattr(Ledger, "record_release", busy)
    directory = model(tmp_path / "model")
    with pytest.raises(LedgerBusy):
        release(run.ledger, directory, now=run.tick(), publish=PUBLISH)
    assert sorted(path.name for path in directory.iterdir()) == ["config.json", "model.safetensors", "tokenizer"]


@pytest.mark.parametrize("kind", ["card", "disclosure", "bom"])
def test_each_may_be_left_out(run, tmp_path, kind):
    kinds = [other for other in create.DOCUMENTS if other != kind]
    directory = published(run, tmp_path / "model", replace(PUBLISH, kinds=kinds, key=None))
    report = check_release(directory, KEYS)
    assert report.verdict == "TOLD" and not set(create.DOCUMENTS[kind]) & {path.name for path in directory.iterdir()}
    assert set(report.documents) == {path for other in kinds for path in create.DOCUMENTS[other]}


def test_of_a_pruned_ledger_documents_say_so_and_those_from_before_stay_true(tmp_path):
    driver = Driver(Ledger.create(tmp_path / "ledger.db", retaining_spec(), SIGNER, now=START))
    with driver.ledger as ledger:
        driver.admit(*map(admission, range(20)))
        driver.steps(1)
        for n in range(3, 19):
            driver.withdraw(n)
        driver.epoch()
        before = published(driver, tmp_path / "before")
        for _ in range(2):
            driver.steps(1)
            driver.epoch()
        ledger.summarise(now=driver.tick())
        vouched_for(driver, ANNA, BEN)
        driver.steps(1)
        driver.epoch()
        ledger.prune()
        after = published(driver, tmp_path / "after")
    report = check_release(after, KEYS)
    assert is_pruned(report) and report.findings == () and "PRUNED" in report.manifest.publication.qualifiers
    assert "PRUNED" in (after / "README.md").read_text() and "PRUNED" not in (before / "README.md").read_text()
    later = check_release(before, KEYS, export=after / "export")
    assert is_pruned(later) and (later.findings, len(later.documents)) == ((), 4)
    shutil.rmtree(before / "export")
    shutil.copytree(after / "export", before / "export")
    own = check_release(before, KEYS)
    assert is_pruned(own) and own.findings == ()
    assert any(note.startswith("documents tell of the audit at the release") for note in own.notes)


def test_of_a_public_class_every_document_says_that_nothing_is_promised(run, whole):
    manifest = check_release(whole, KEYS).manifest
    rows = (replace(manifest.classes[0], epsilon_micro=None, replace_micro=None), *manifest.classes[1:])
    facts = replace(facts_of(manifest, run.ledger.header, manifest.publication, signed=True), classes=rows)
    assert "| `open` | 3 | 1 | no promise (public) | no promise (public) |" in written("README.md", facts, []).decode()
    assert "- Class open: public, no promise." in written("DISCLOSURE.md", facts, []).decode()
    data = json.loads(written("bom.cdx.json", facts, []))["components"][0]
    assert data["name"] == "open" and {"name": "dptrain:privacy:promise", "value": "none (public class)"} in data["properties"]


def test_a_page_under_the_name_of_a_card_is_said_to_be_none(run, tmp_path):
    directory = model(tmp_path / "model")
    (directory / "README.md").write_text("# epsilon 0.1, verified\n")
    release(run.ledger, directory, now=run.tick())
    report = check_release(directory, KEYS)
    assert (report.verdict, report.documents) == ("TOLD", ())
    assert "not from the audit, and not checked: README.md" in report.notes


def test_without_an_export_nothing_is_written_again_and_the_check_says_so(copy):
    shutil.rmtree(copy / "export")
    report = check_release(copy, KEYS)
    assert (report.verdict, report.documents) == ("SIGNED", ())
    assert any("without an export nothing was written again" in note for note in report.notes)
    (copy / "README.md").write_text("by hand")
    assert found(copy) == {("CHANGED_FILE", "README.md")}


def test_a_later_export_with_withdrawals_leaves_documents_true(copy, run, tmp_path):
    run.withdraw(4)
    newer = run.ledger.export(tmp_path / "newer")
    report = check_release(copy, KEYS, export=newer)
    assert (report.verdict, report.newer_withdrawals, len(report.documents)) == ("TOLD", 1, 4)
    shutil.rmtree(copy / "export")
    shutil.copytree(newer, copy / "export")
    assert check_release(copy, KEYS).verdict == "TOLD"


def test_what_weakened_since_is_noted_and_the_documents_stay_true(tmp_path):
    driver = attested_run(tmp_path / "ledger.db")
    with driver.ledger as ledger:
        vkey = ledger.signer.vkey
        driver.admit(attested_admission(1), attested_admission(3, "sensitive"))
        driver.steps(4)
        registry = put_registry(tmp_path)
        release(ledger, model(tmp_path / "model"), now=driver.tick(), registry=registry, publish=PUBLISH)
        driver.withdraw(1)
        bare = ledger.export(tmp_path / "bare", attestations=False)
    report = check_release(tmp_path / "model", [vkey], export=bare)
    assert (report.verdict, report.findings, len(report.documents)) == ("TOLD", (), 4)
    assert any(note.startswith("documents tell of the audit at the release, FULL") for note in report.notes)
    shutil.rmtree(tmp_path / "model" / "export")
    shutil.copytree(bare, tmp_path / "model" / "export")
    assert {item.code for item in check_release(tmp_path / "model", [vkey]).findings} == {"AUDIT"}, "its own is to show it"


def test_who_covers_whom(whole):
    manifest = check_release(whole, KEYS).manifest
    paths = {file.path: file.sha256.hex() for file in manifest.files}
    listed = {
        item["name"]: item["hashes"][0]["content"]
        for item in json.loads((whole / "bom.cdx.json").read_text())["components"]
        if item["type"] == "file"
    }
    assert listed == {path: digest for path, digest in paths.items() if path not in ("bom.cdx.json", "model.sig")}
    signed = json.loads(publishing.model_payload(manifest.files))["predicate"]
    assert {item["name"]: item["digest"] for item in signed["resources"]} == {
        path: digest for path, digest in paths.items() if path != "model.sig"
    }
    assert {"model.sig", "release.cose", "release.sigstore.json", "export"} <= set(signed["serialization"]["ignore_paths"])
    statement = json.loads(publishing.manifest_payload(manifest, (whole / MANIFEST).read_bytes()))
    digests = {item["name"]: item["digest"]["sha256"] for item in statement["subject"]}
    assert digests == paths | {MANIFEST: hashlib.sha256((whole / MANIFEST).read_bytes()).hexdigest()}


def bundle(directory: Path, name: str) -> dict:
    return json.loads((directory / name).read_text())


def test_a_bundle_by_another_key_is_refused_though_it_says_the_same(copy):
    manifest = check_release(copy, KEYS).manifest
    payload = publishing.manifest_payload(manifest, (copy / MANIFEST).read_bytes())
    (copy / "release.sigstore.json").write_bytes(bundles.sign_bundle(payload, p256.generate()))
    assert found(copy) == {("BUNDLE", "release.sigstore.json")}
    (copy / "release.sigstore.json").write_bytes(bundles.sign_bundle(payload.replace(b"TOLD", b"FULL"), KEY))
    assert found(copy) == {("BUNDLE", "release.sigstore.json")}
    (copy / "release.sigstore.json").write_bytes(bundles.sign_bundle(payload, KEY))
    assert found(copy) == set(), "the key may sign the same again"


def test_the_other_signature_and_another_spelling_are_refused(copy):
    path = copy / "release.sigstore.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps(told, indent=1))
    assert found(copy) == {("BUNDLE", "release.sigstore.json")}
    entry = told["dsseEnvelope"]["signatures"][0]
    r, s = decode_dss_signature(base64.b64decode(entry["sig"]))
    entry["sig"] = base64.b64encode(encode_dss_signature(r, p256.ORDER - s)).decode()
    path.write_bytes(bundles.canonical(told))
    assert found(copy) == {("BUNDLE", "release.sigstore.json")}
    for bad in (b"[]", b"{}", b"[" * 100_000, b'{"dsseEnvelope": {"payload": "", "signatures": []}}'):
        path.write_bytes(bad)
        assert found(copy) == {("BUNDLE", "release.sigstore.json")}


def test_another_key_in_model_pub_is_found_though_the_manifest_has_its_digest(monkeypatch, run, tmp_path):
    other = p256.public_pem(p256.point(p256.generate()))
    monkeypatch.setattr(create.p256, "public_pem", lambda raw: other)
    directory = published(run, tmp_path / "model", replace(PUBLISH, kinds=()))
    monkeypatch.undo()
    assert ("SIGNING_KEY", "model.pub") in found(directory)


def test_a_link_in_place_of_a_bundle_is_refused(copy, tmp_path):
    (copy / "release.sigstore.json").rename(tmp_path / "elsewhere")
    (copy / "release.sigstore.json").symlink_to(tmp_path / "elsewhere")
    assert check_release(copy, KEYS).verdict == "FAILED"


def test_a_bundle_beside_a_release_that_names_no_key_is_an_unknown_file(run, tmp_path):
    directory = published(run, tmp_path / "model", replace(PUBLISH, key=None))
    (directory / "release.sigstore.json").write_text("{}")
    assert found(directory) == {("UNKNOWN_FILE", "release.sigstore.json")}


@pytest.mark.parametrize("micro", [0, 1, 10_000, 500_001, 1_000_000, 2_995_732, 3_999_998, 7_999_986, 40_000_000, 2**62])
def test_the_card_says_of_an_attacker_what_reports_do(micro):
    assert recognised(micro, "1/100000") == hits(micro / 1e6, 1e-5)


def test_the_wording_stays_as_long_as_its_number_does(run, whole):
    """Whoever changes a word of a document raises FORM, once releases are out there, and keeps what writes the form before."""
    manifest = check_release(whole, KEYS).manifest
    facts = facts_of(manifest, run.ledger.header, manifest.publication, signed=True)
    facts = replace(facts, root=bytes(32), header_digest=bytes(32), size=7, time=1_800_000_000, log_vkey="a+b+c")
    digest = hashlib.sha256(b"\0".join(written(path, facts, []) for path in PATHS)).hexdigest()
    assert (FORM, digest[:16]) == ("1", "4a2e25a264383b08")
