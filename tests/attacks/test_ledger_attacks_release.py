"""Rows E4 and E5 of the attack list, and E2 for releases: what a releaser, or whoever carries a release, may try."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from attest import cbor
from attest.withdrawal import EXPIRED
from ledger import merkle
from ledger.errors import ReleaseRefused
from ledger.leaves import Release, Withdraw
from ledger.leaves.weights import WeightRecord
from ledger.log import Ledger
from ledger.merkle import root
from ledger.note import NoteSigner
from ledger.release import MANIFEST, ReleaseReport, Rights, check_release, choose_artifact, release
from ledger.release.create import describe
from ledger.release.files import Digested, Tensor, digested, listed
from ledger.release.manifest import Manifest, sign_manifest
from ledger.release.tied import Commitment, tie, told
from ledger.replay import Replay
from ledger.replay.influence import withdrawals_root
from tests.worlds.ledgers import (
    OTHER_KEY,
    SIGNER,
    STACK,
    START,
    Driver,
    admission,
    descriptor,
    header_spec,
    parameter,
    stack_of,
)
from tests.worlds.retained_ledgers import leaves_of

KEYS = [SIGNER.vkey]


def model(directory: Path) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    return directory


WEIGHTS = WeightRecord(("w",), None, True, "F32", (2,), hashlib.sha256(bytes(8)).digest())
"""The one tensor of `model`, as the run commits to it."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A ledger released twice, with a withdrawal in between; the key is the ledger's, so that forgeries are well signed."""
    base = tmp_path_factory.mktemp("releases")
    spec = header_spec(stack=stack_of(4, *STACK.tensors, parameter("w", 2)))
    with Ledger.create(base / "ledger.db", spec, SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.digest = ledger.keep_weights([WEIGHTS])
        driver.admit(admission(1), admission(2), admission(3, "sensitive"))
        driver.steps(4)
        driver.epoch()
        driver.steps(6)
        driver.epoch()
        ledger.finish(now=driver.tick())
        release(ledger, model(base / "old"), now=driver.tick())
        driver.withdraw(2)
        release(ledger, model(base / "new"), now=driver.tick())
    return base


@pytest.fixture
def new(scene, tmp_path) -> Path:
    return Path(shutil.copytree(scene / "new", tmp_path / "new"))


def manifest_of(directory: Path) -> Manifest:
    found = check_release(directory, KEYS).manifest
    assert found is not None
    return found


def codes(directory: Path, **options) -> set[str]:
    report = check_release(directory, KEYS, **options)
    assert (report.verdict == "FAILED") == bool(report.findings)
    return {finding.code for finding in report.findings}


def resigned(directory: Path, signer: NoteSigner = SIGNER, **changes) -> None:
    """Puts another manifest in its place, signed by the ledger's own key: only the ledger can tell it apart."""
    (directory / MANIFEST).write_bytes(sign_manifest(replace(manifest_of(directory), **changes), signer))


def test_E4_nothing_is_wrong_with_what_was_really_released(scene):
    assert check_release(scene / "new", KEYS).verdict == "TOLD"
    assert check_release(scene / "old", KEYS).verdict == "TOLD"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "release.cose", "export/checkpoint"])
def test_E4_other_weights_or_another_manifest_are_refused_whatever_bit_differs(new, name):
    whole = (new / name).read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 60)):
        changed = bytearray(whole)
        changed[at] ^= 1
        (new / name).write_bytes(changed)
        report = check_release(new, KEYS)
        assert report.verdict == "FAILED", at
        if name in ("model.safetensors", "config.json"):
            assert {item.where for item in report.findings} == {name}


def test_E4_weights_of_the_same_size_under_a_manifest_of_the_other_release_are_refused(scene, new):
    (new / "model.safetensors").write_bytes((new / "model.safetensors").read_bytes()[:-8] + b"\x01" * 8)
    report = check_release(new, KEYS)
    assert [item.code for item in report.findings] == ["CHANGED_FILE"]
    assert "tensors that differ: 'w' has other values" in report.findings[0].sentence


def test_E4_an_older_release_is_refused_by_who_has_seen_more_of_the_ledger(scene):
    seen = manifest_of(scene / "new").size
    assert codes(scene / "old", minimum_size=seen) == {"OLD"}
    assert codes(scene / "new", minimum_size=seen) == set()


def test_E4_the_withdrawals_of_an_older_size_are_refused(scene, new):
    old = manifest_of(scene / "old")
    resigned(new, withdrawn=old.withdrawn, withdrawals_root=old.withdrawals_root)
    assert "WITHDRAWALS" in codes(new)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"size": 1}, "FORKED"),
        ({"size": 10**6}, "BEHIND"),
        ({"root": bytes(32)}, "FORKED"),
        ({"header_digest": bytes(32)}, "HEADER"),
        ({"step": 39}, "RECORD"),
        ({"delta": "1/100000000"}, "RECORD"),
        ({"horizon": True}, "RECORD"),
        ({"statements": ("The model holds no trace of anybody.",)}, "RECORD"),
    ],
)
def test_E4_a_manifest_that_the_ledger_contradicts_is_refused_though_its_key_signed_it(new, changes, code):
    resigned(new, **changes)
    assert code in codes(new)


def test_E4_an_epsilon_below_the_recomputed_one_is_refused(new):
    first, second = manifest_of(new).classes
    resigned(new, classes=(replace(first, epsilon_micro=first.epsilon_micro - 3), second))
    assert "EPSILON" in codes(new)


def test_E4_an_influence_that_is_left_out_is_refused(new):
    parts = manifest_of(new).artifacts
    resigned(new, artifacts=(replace(parts[0], influenced_by=(True, False)), *parts[1:]))
    assert "RECORD" in codes(new)


def test_E4_a_release_that_the_ledger_does_not_record_is_refused(new):
    resigned(new, time=START)
    assert codes(new) == {"RELEASE"}


def test_E4_a_manifest_of_another_purpose_or_key_is_refused(new):
    payload, message = cbor.decode((new / MANIFEST).read_bytes(), max_size=1 << 20)
    resigned(new, NoteSigner(SIGNER.name, OTHER_KEY))
    assert "UNSIGNED" in codes(new)
    for data in (cbor.encode([payload, payload]), cbor.encode([message, message]), b"", payload):
        (new / MANIFEST).write_bytes(data)
        assert check_release(new, KEYS).verdict == "FAILED"


def test_E2_what_is_not_in_the_manifest_is_named_and_links_are_not_followed(new, tmp_path):
    (new / "pytorch_model.bin").write_bytes(b"code")
    assert codes(new) == {"UNKNOWN_FILE"}
    (new / "pytorch_model.bin").unlink()
    (new / "config.json").rename(tmp_path / "config.json")
    assert codes(new) == {"MISSING_FILE"}
    (new / "config.json").symlink_to(tmp_path / "config.json")
    assert codes(new) == {"NOT_A_FILE"}
    (new / "config.json").unlink()
    shutil.copy(tmp_path / "config.json", new / "config.json")
    (new / "Config.JSON").write_text("{}")
    assert codes(new) == {"CASE"}
    (new / "Config.JSON").unlink()
    (new / "export" / "more").write_text("")
    assert codes(new) == {"UNKNOWN_FILE"}


@pytest.mark.parametrize(
    "path", ["../secret", "/etc/passwd", "a/../b", "a//b", "./a", "con", "a\\b", "release.cose", "Export/x"]
)
def test_E2_a_manifest_with_a_path_out_of_the_directory_is_refused_unread(new, path):
    manifest = manifest_of(new)
    with pytest.raises(ReleaseRefused):
        replace(manifest, files=(replace(manifest.files[0], path=path),))
    forged = cbor.decode(manifest.to_cbor(), max_size=1 << 20)
    forged[11][0][0] = path
    with pytest.raises(ReleaseRefused):
        Manifest.from_cbor(cbor.encode(forged))


def refusal(report: ReleaseReport | None, rights: Rights, *artifacts: str, **options) -> str:
    with pytest.raises(ReleaseRefused) as caught:
        choose_artifact(report, rights, artifacts or ("full",), **options)
    return caught.value.code


def test_E5_no_ledger_no_manifest_or_an_unchecked_one_serves_nobody(scene, new):
    everything = Rights({"open": None, "sensitive": None}, withdrawn=True, told=True)
    assert refusal(None, everything) == "NO_RELEASE"
    (new / "export").rename(new.parent / "export")
    assert refusal(check_release(new, KEYS), everything) == "NOT_CHECKED"
    (new / MANIFEST).unlink()
    assert refusal(check_release(new, KEYS), everything) == "NO_RELEASE"
    assert choose_artifact(check_release(scene / "new", KEYS), everything, ["full"]) == "full"


def test_E5_a_class_or_an_epsilon_that_the_rights_do_not_allow_is_refused(scene):
    report = check_release(scene / "new", KEYS)
    spent = report.manifest.epsilon_micro("full", 1) / 1e6
    assert refusal(report, Rights(told=True)) == "CLASS"
    assert refusal(report, Rights({"open": None}, told=True)) == "CLASS"
    assert refusal(report, Rights({"open": None, "sensitive": spent - 1e-6}, told=True)) == "EPSILON"
    assert refusal(report, Rights({"open": None, "sensitive": float("nan")}, told=True)) == "EPSILON"
    assert choose_artifact(report, Rights({"open": None, "sensitive": spent}, told=True), ["full"]) == "full"
    assert refusal(report, Rights({"open": None}, told=True), "adapter:none") == "ARTIFACT"
    rights = Rights({"open": None}, told=True)
    assert refusal(report, rights, "full", "base") == "CLASS", "in an ordinary stack the base is no way out"


def test_E5_bounds_that_are_told_and_leaves_that_were_pruned_serve_nobody_unless_the_rights_say_so(scene):
    """Nothing but FULL by default; and the operator's word for the bounds is no auditors' word for what was pruned."""
    report, both = check_release(scene / "new", KEYS), {"open": None, "sensitive": None}
    assert report.verdict == "TOLD" and not {"RELEASE_OLDER", "WEIGHTS_NOT_TIED"} & set(report.qualifiers)
    assert refusal(report, Rights(both)) == "NOT_CHECKED"
    assert choose_artifact(report, Rights(both, told=True), ["full"]) == "full"
    assert choose_artifact(replace(report, verdict="FULL"), Rights(both), ["full"]) == "full"
    for other in ({"verdict": "SUMMARISED"}, {"qualifiers": ("PRUNED",)}, {"verdict": "SIGNED"}, {"verdict": "FAILED"}):
        assert refusal(replace(report, **other), Rights(both, told=True)) == "NOT_CHECKED"


def test_E5_weights_that_the_run_did_not_commit_to_serve_nobody_unless_the_rights_say_so(scene, tmp_path):
    """The manifest is signed, logged and true: it says that the weights are others."""
    with Ledger.open(shutil.copytree(scene, tmp_path / "scene") / "ledger.db", SIGNER) as ledger:
        directory = model(tmp_path / "other")
        (directory / "model.safetensors").write_bytes((directory / "model.safetensors").read_bytes()[:-1] + b"\x01")
        release(ledger, directory, now=START + 10_000)
    report = check_release(directory, KEYS)
    both = {"open": None, "sensitive": None}
    assert (report.verdict, report.weights.status) == ("TOLD", "UNTIED") and "WEIGHTS_NOT_TIED" in report.qualifiers
    assert refusal(report, Rights(both, told=True)) == "NOT_TIED"
    assert choose_artifact(report, Rights(both, untied=True, told=True), ["full"]) == "full"
    assert refusal(replace(report, weights=None), Rights(both, told=True)) == "NOT_TIED"


def test_E5_a_withdrawal_since_the_release_is_refused_unless_the_rights_say_otherwise(scene, tmp_path):
    """The old release beside the export of the new one, which has the withdrawal of a contribution to the class open."""
    report = check_release(scene / "old", KEYS, export=scene / "new" / "export")
    assert (report.verdict, report.newer_withdrawals) == ("TOLD", 1) and "RELEASE_OLDER" in report.qualifiers
    both = {"open": None, "sensitive": None}
    assert refusal(report, Rights(both, told=True)) == "WITHDRAWN"
    assert refusal(report, Rights(both, told=True), withdrawn_classes={"open"}) == "WITHDRAWN"
    assert choose_artifact(report, Rights(both, withdrawn=True, told=True), ["full"]) == "full"
    assert choose_artifact(report, Rights(both, told=True), ["full"], withdrawn_classes=()) == "full"


def test_E5_a_withdrawal_since_the_release_counts_though_its_contribution_had_expired_before(tmp_path):
    """What a run takes out by itself is no withdrawal that anybody signed: the first that is may come after the release."""
    spec = header_spec(stack=stack_of(4, *STACK.tensors, parameter("w", 2)))
    with Ledger.create(tmp_path / "ledger.db", spec, SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.digest = ledger.keep_weights([WEIGHTS])
        driver.admit(admission(1), admission(2), admission(3, "sensitive"))
        driver.steps(4)
        ledger.withdraw(admission(2).descriptor_hash, EXPIRED, admission(2).attestation_hash, now=driver.tick())
        driver.steps(6)
        driver.epoch()
        ledger.finish(now=driver.tick())
        release(ledger, model(tmp_path / "old"), now=driver.tick())
        driver.withdraw(2)
        later = ledger.export(tmp_path / "later")
    assert check_release(tmp_path / "old", KEYS).newer_withdrawals == 0
    report = check_release(tmp_path / "old", KEYS, export=later)
    assert (report.findings, report.newer_withdrawals) == ((), 1) and "RELEASE_OLDER" in report.qualifiers
    assert refusal(report, Rights({"open": None, "sensitive": None}, told=True)) == "WITHDRAWN"


def test_nothing_of_the_name_of_the_export_is_left_unlooked_at(scene, new, tmp_path):
    """With the export elsewhere, a file or a link of its name would be the one thing in the directory that nobody compares."""
    shutil.move(new / "export", tmp_path / "export")
    assert check_release(new, KEYS, export=tmp_path / "export").verdict == "TOLD"
    (new / "export").write_bytes(b"other weights")
    assert codes(new, export=tmp_path / "export") == {"UNKNOWN_FILE"}
    for target in (new / "config.json", tmp_path / "export"):
        (new / "export").unlink()
        (new / "export").symlink_to(target)
        assert codes(new, export=tmp_path / "export") == {"NOT_A_FILE"}


def test_many_releases_of_many_withdrawals_cost_their_sum_and_not_their_product(tmp_path, monkeypatch):
    """Half a megabyte of such leaves took an auditor ten seconds, and ten megabytes would have taken an hour."""
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        header = leaves_of(ledger)[0]
    run, count, hashed, straight = Replay(header, lambda size: bytes(32)), 200, 0, merkle.node_hash

    def counting(left, right):
        nonlocal hashed
        hashed += 1
        return straight(left, right)

    monkeypatch.setattr(merkle, "node_hash", counting)
    for n in range(count):
        assert run.apply(Withdraw(run.size, START, descriptor(n), None, "contributor", bytes(32))) == []
        gone = run.releases.withdrawals_root
        assert run.apply(Release(run.size, START, 0, run.size, bytes(32), bytes(32), bytes(32), gone)) == []
    assert gone == withdrawals_root(run.withdrawals, run.size)[1] == root([descriptor(n) for n in range(count)])
    assert hashed <= 20 * count, "root after root over all of them would be 20,000"


def test_E4_two_histories_of_the_ledger_are_found_where_one_lies_beside_the_release(scene, new, tmp_path):
    """The one that was given says nothing against the release, nor does the other, but for each other."""
    ends = []
    for name, who in (("one", 1), ("two", 3)):
        place = Path(shutil.copytree(scene, tmp_path / name)) / "ledger.db"
        with Ledger.open(place, SIGNER) as ledger:
            ledger.withdraw(descriptor(who), "contributor", bytes(32), now=START + 10_000)
            ends.append(ledger.export(tmp_path / f"{name}.export"))
    assert codes(new, export=ends[0]) == codes(new, export=ends[1]) == set()
    shutil.rmtree(new / "export")
    shutil.copytree(ends[1], new / "export")
    assert codes(new) == set()
    report = check_release(new, KEYS, export=ends[0])
    assert [(found.code, found.where) for found in report.findings] == [("FORKED", "export")]


def test_E4_a_release_cannot_be_dated_otherwise_than_the_ledger_dates_it(scene, tmp_path):
    """The leaf has the digest of the manifest, so it was the log that told another time to those who have the files."""
    with Ledger.open(shutil.copytree(scene, tmp_path / "scene") / "ledger.db", SIGNER) as ledger:
        directory = model(tmp_path / "model")
        true = describe(ledger, tuple(digested(directory, path) for path in listed(directory)), now=START + 10_000)
        data = sign_manifest(replace(true, time=START), SIGNER)
        ledger.record_release(hashlib.sha256(data).digest(), true.artifacts_digest, true.step, now=START + 10_000)
        (directory / MANIFEST).write_bytes(data)
        ledger.export(directory / "export")
    assert codes(directory) == {"RELEASE"}


def test_a_name_in_a_signed_sentence_is_cut(scene):
    """A tensor may be named by anybody, at any length; the sentence about it is not its own."""
    file = Digested("x.safetensors", 1, bytes(32), (Tensor("n" * 5000, "F32", (2,), bytes(32)),), "tensors")
    assert len(told(tie(Commitment(1, 9, 4, (WEIGHTS,)), [file]))) < 700
