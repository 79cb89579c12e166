"""What the record says of statement A: it never contradicts itself or its policy, and a manifest claims no more."""

import hashlib
from dataclasses import replace

import pytest
from release_models import model

from attest import cbor
from dptrain.cli.ledger.show import summary
from ledger.audit import verify_export
from ledger.errors import LeafRefused
from ledger.leaves import HELD, Epoch, Header, decode_leaf, encode_leaf
from ledger.log import Ledger
from ledger.release import MANIFEST, check_release, release
from ledger.release.create import DIRECT, NOTHING_YET, WEAKER, describe
from ledger.release.files import digested, listed
from ledger.release.manifest import sign_manifest
from ledger.report import write_report
from tests.worlds.ledgers import SIGNER, START, Driver, admission, header_spec, signed_policy
from tests.worlds.retained_ledgers import forged_export, leaves_of

WHY = "step 3: gradients were changed after their release"
COUPLES = "optimizer Prodigy is not known to keep tensors apart"
KEYS = [SIGNER.vkey]


def begun(path, **changes) -> Driver:
    policy = signed_policy(**changes.pop("policy", {}))
    driver = Driver(Ledger.create(path, header_spec(policy, **changes), SIGNER, now=START))
    driver.admit(admission(1), admission(2, "sensitive"))
    return driver


def whole(path, *told: str, **changes) -> Driver:
    """A run of an epoch per word on isolation, closed at once after the last."""
    driver = begun(path, **changes)
    for isolation in told:
        driver.isolation = isolation
        driver.steps()
        driver.epoch()
    driver.ledger.finish(now=driver.tick())
    return driver


def codes(report) -> set[str]:
    return {finding.code for finding in report.findings}


def released(driver, tmp_path):
    """The first statement of a release of what there is, and its check."""
    made = release(driver.ledger, model(tmp_path / "model"), now=driver.tick())
    return made.manifest.statements[0], check_release(tmp_path / "model", KEYS)


# --- the leaves ---------------------------------------------------------------------------------------------------------


def test_isolation_that_held_throughout_is_told_as_the_trainers_word(path, tmp_path):
    driver = whole(path, HELD, HELD)
    report = verify_export(driver.ledger.export(tmp_path / "export"), KEYS)
    assert report.verdict == "TOLD" and report.isolation == "held up to step 8, as the trainer recorded"
    assert report.randomness == "addressed" and report.unprobed == ()
    assert not any("statement A" in note for note in report.notes)
    shown = summary(driver.ledger.state, driver.ledger.root)
    assert (shown["isolation"], shown["isolation_held"]) == (report.isolation, True)


def test_a_weakening_found_during_the_run_is_in_the_record_and_stays_there(path, tmp_path):
    driver = whole(path, HELD, WHY, WHY)
    export = driver.ledger.export(tmp_path / "export")
    report = verify_export(export, KEYS)
    assert report.verdict == "TOLD" and report.isolation == f"weakened, as the trainer recorded: {WHY}"
    assert any(WHY in note and "statement A" in note for note in report.notes)
    page = write_report(export, tmp_path / "report.html", report=report).read_text()
    assert page.count(WHY) >= 2
    assert summary(driver.ledger.state, driver.ledger.root)["isolation_held"] is False


@pytest.mark.parametrize("later", [HELD, "step 9: gradients were changed after their release"])
def test_the_writer_appends_no_epoch_that_takes_a_weakening_back(path, later):
    driver = begun(path)
    driver.steps()
    driver.isolation = WHY
    driver.epoch()
    driver.steps()
    driver.isolation = later
    with pytest.raises(LeafRefused) as refused:
        driver.epoch()
    assert refused.value.code == "ISOLATION"
    driver.ledger.close()


def test_an_auditor_finds_an_epoch_that_takes_a_weakening_back(path, tmp_path):
    leaves = leaves_of(whole(path, WHY, WHY).ledger)
    place = [seq for seq, leaf in enumerate(leaves) if isinstance(leaf, Epoch)][1]
    lied = [replace(leaf, isolation=HELD) if seq == place else leaf for seq, leaf in enumerate(leaves)]
    assert verify_export(forged_export(leaves, tmp_path / "true"), KEYS).verdict == "TOLD"
    report = verify_export(forged_export(lied, tmp_path / "lied"), KEYS)
    found = [(item.code, item.where) for item in report.findings]
    assert report.verdict == "FAILED" and found == [("ISOLATION", f"seq {place}")]


def test_an_epoch_says_no_less_than_the_header_of_its_optimizer(path, tmp_path):
    driver = whole(path, COUPLES, isolation=COUPLES)
    assert verify_export(driver.ledger.export(tmp_path / "export"), KEYS).isolation.endswith(COUPLES)
    leaves = [replace(leaf, isolation=HELD) if isinstance(leaf, Epoch) else leaf for leaf in leaves_of(driver.ledger)]
    assert codes(verify_export(forged_export(leaves, tmp_path / "lied"), KEYS)) == {"ISOLATION"}


def test_where_the_policy_requires_it_a_weaker_leaf_is_refused_by_the_writer_and_fails_the_audit(path, tmp_path):
    driver = begun(path, policy={"isolation_required": True})
    driver.steps()
    with pytest.raises(LeafRefused) as refused:
        driver.ledger.close_epoch(4, driver.digest, isolation=WHY, now=driver.tick())
    assert refused.value.code == "ISOLATION_REQUIRED"
    driver.ledger.close()
    with Ledger.open(path, SIGNER) as again:
        run = Driver(again, now=driver.now)
        run.epoch()
        again.finish(now=run.tick())
        leaves = leaves_of(again)
    lied = [replace(leaf, isolation=WHY) if isinstance(leaf, Epoch) else leaf for leaf in leaves]
    assert verify_export(forged_export(leaves, tmp_path / "true"), KEYS).verdict == "TOLD"
    report = verify_export(forged_export(lied, tmp_path / "lied"), KEYS)
    assert report.verdict == "FAILED" and codes(report) == {"ISOLATION_REQUIRED"}


def test_a_header_that_contradicts_its_policy_is_no_header(path, tmp_path):
    with pytest.raises(LeafRefused) as refused:
        begun(path, policy={"isolation_required": True}, isolation=COUPLES)
    assert refused.value.code == "ISOLATION_REQUIRED" and not path.exists()


def test_what_probes_did_not_see_and_shared_randomness_are_told_to_the_auditor(path, tmp_path):
    driver = whole(path, HELD, randomness="unaddressed", unprobed=("layers.3.gate", "layers.1.gate"))
    report = verify_export(driver.ledger.export(tmp_path / "export"), KEYS)
    assert report.verdict == "TOLD" and report.unprobed == ("layers.1.gate", "layers.3.gate")
    assert {"UNADDRESSED", "UNPROBED"} <= set(report.qualifiers)
    assert any("2 trained tensors (first: layers.1.gate)" in note for note in report.notes)


# --- the manifest -------------------------------------------------------------------------------------------------------


def test_a_manifest_of_a_run_that_held_says_statement_a_and_on_whose_word(path, tmp_path):
    said, report = released(whole(path, HELD), tmp_path)
    assert said == DIRECT.format(until="") and "the trainer recorded" in said and report.verdict == "TOLD"


def test_a_manifest_of_a_weakened_run_carries_the_weaker_sentence_by_name(path, tmp_path):
    said, report = released(whole(path, HELD, WHY), tmp_path)
    assert said == WEAKER.format(reason=WHY) and "does not hold" in said and WHY in said
    assert report.verdict == "TOLD", "what it says is true"


def test_a_manifest_says_up_to_which_step_statement_a_is_recorded(path, tmp_path):
    driver = begun(path)
    driver.steps()
    said, report = released(driver, tmp_path / "a")
    assert said == NOTHING_YET and report.verdict == "TOLD"
    driver.epoch()
    driver.steps()
    said, report = released(driver, tmp_path / "b")
    assert said == DIRECT.format(until=" up to step 4, of later ones nothing is said,") and report.verdict == "TOLD"
    assert check_release(tmp_path / "a" / "model", KEYS).verdict == "TOLD"


def test_a_resumed_run_says_nothing_of_steps_that_another_attempt_recorded(path, tmp_path):
    driver = begun(path)
    driver.steps()
    pin = driver.ledger.pin()
    driver.steps()
    driver.epoch()
    driver.ledger.resume(4, pin, now=driver.tick())
    driver.steps()
    said, report = released(driver, tmp_path)
    assert "up to step 4, of later ones nothing is said" in said and report.verdict == "TOLD"


@pytest.mark.parametrize("said", [DIRECT.format(until=""), NOTHING_YET, WEAKER.format(reason="nothing much")])
def test_a_manifest_that_claims_more_than_the_record_fails_its_check(path, tmp_path, said):
    """Signed by the log's key and recorded, so that nothing but the sentence is wrong."""
    driver, place = whole(path, HELD, WHY), model(tmp_path / "model")
    files = tuple(digested(place, name) for name in listed(place))
    true = describe(driver.ledger, files, now=driver.tick())
    lied = replace(true, statements=(said, *true.statements[1:]))
    data = sign_manifest(lied, SIGNER)
    driver.ledger.record_release(hashlib.sha256(data).digest(), lied.artifacts_digest, lied.step, now=driver.now)
    (place / MANIFEST).write_bytes(data)
    report = check_release(place, KEYS, export=driver.ledger.export(tmp_path / "export"))
    assert report.verdict == "FAILED" and codes(report) == {"RECORD"}


def test_older_headers_under_the_same_schema_are_refused_by_the_number_of_their_fields(path):
    header = next(leaf for leaf in leaves_of(whole(path, HELD).ledger) if isinstance(leaf, Header))
    value = cbor.decode(encode_leaf(header), max_size=65_535)
    with pytest.raises(LeafRefused, match=r"28 fields, .* or 30 with a geometry, or 31 with reads, got 22"):
        decode_leaf(cbor.encode({key: item for key, item in value.items() if key < 22}))
