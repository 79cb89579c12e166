"""What an audit says of the auditors and witnesses whom the signed policy names."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from attest.keys import generate, public_bytes
from ledger import layout, tiles
from ledger.audit import verify_export
from ledger.audit.given import Export
from ledger.errors import LeafRefused
from ledger.leaves import decode_leaf, encode_leaf
from ledger.log import Ledger
from ledger.merkle import leaf_hash, root
from ledger.note import Cosigner, NoteSigner, checkpoint_text, cosign, merge_notes, sign_note
from ledger.proofs.prover import ExportReader
from ledger.trust import AUDITORS, BOTH, WITNESSES, Group, parse_policy
from tests.reference.hash_tiles import hash_tiles
from tests.worlds.ledgers import LOG_KEY, OTHER_KEY, OWNER_KEY, SIGNER, START, Driver, admission, header_spec, signed_policy

KEYS = [SIGNER.vkey]
ANNA, BEN, CARLA = (
    Cosigner(f"auditor.example/{name}", key) for name, key in (("anna", OTHER_KEY), ("ben", OWNER_KEY), ("carla", generate()))
)
NAMED = {"auditors": (ANNA.vkey, BEN.vkey, CARLA.vkey), "auditor_quorum": 2}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    base = tmp_path_factory.mktemp("run")
    spec = header_spec(signed_policy(**NAMED))
    with Ledger.create(base / "ledger.db", spec, SIGNER, now=START) as ledger:
        Driver(ledger).admit(admission(1))
        return ledger.export(base / "export")


@pytest.fixture
def export(source, tmp_path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "export"))


def add(export: Path, *cosigners: Cosigner) -> None:
    note = (export / "checkpoint").read_bytes()
    keys = [SIGNER.vkey, *(who.vkey for who in cosigners)]
    (export / "checkpoint").write_bytes(merge_notes(note, [cosign(note, who, KEYS, time=START + 9) for who in cosigners], keys))


def codes(report) -> list[str]:
    return [finding.code for finding in report.findings]


def test_an_audit_tells_who_of_the_policys_auditors_has_cosigned(export):
    add(export, ANNA)
    report = verify_export(export, KEYS)
    assert report.verdict == "TOLD" and (report.auditors, report.quorum, report.quorum_met) == (*NAMED.values(), False)
    assert [(signer.name, signer.time, signer.of_log) for signer in report.signers] == [
        (SIGNER.name, None, True),
        (ANNA.name, START + 9, False),
    ]
    told = "cosigned by 1 of the 3 auditors whom the policy names: auditor.example/anna; it asks for 2, so that readers"
    assert any(note.startswith(told) for note in report.notes)
    add(export, CARLA)
    report = verify_export(export, KEYS, require_quorum=True)
    assert report.verdict == "TOLD" and report.quorum_met
    assert any(note.endswith("it asks for 2, and has them") for note in report.notes)


def test_a_quorum_that_was_asked_for_and_not_reached_fails(export):
    for cosigners in ((), (ANNA,)):
        if cosigners:
            add(export, *cosigners)
        report = verify_export(export, KEYS, require_quorum=True)
        assert report.verdict == "FAILED" and codes(report) == ["QUORUM"]
    assert verify_export(export, KEYS).verdict == "TOLD"


def test_cosignatures_of_strangers_are_no_quorum(export):
    add(export, Cosigner("auditor.example/anna", generate()), Cosigner("auditor.example/dora", generate()))
    report = verify_export(export, KEYS, require_quorum=True)
    assert codes(report) == ["QUORUM"] and [signer.name for signer in report.signers] == [SIGNER.name]


def test_a_line_of_a_named_auditor_that_does_not_verify_fails_the_audit(export):
    add(export, ANNA)
    path = export / "checkpoint"
    data = bytearray(path.read_bytes())
    data[-8] ^= 1
    path.write_bytes(bytes(data))
    for required in (False, True):
        report = verify_export(export, KEYS, require_quorum=required)
        assert report.verdict == "FAILED" and codes(report)[0] in ("SIGNATURE_BAD", "BASE64", "SIGNATURE_LINE")


def test_the_exports_trust_policy_asks_for_the_quorum(export):
    policy = parse_policy((export / "policy").read_bytes())
    assert [str(witness.key) for witness in policy.witnesses] == list(NAMED["auditors"])
    assert policy.groups[0].threshold == 2 and policy.quorum == policy.groups[0].name
    (export / "policy").write_bytes(f"log {SIGNER.vkey}\nquorum none\n".encode())
    assert codes(verify_export(export, KEYS)) == ["POLICY_FILE"]


def test_a_ledger_without_auditors_has_no_quorum_to_ask_for(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        Driver(ledger).admit(admission(1))
        export = ledger.export(tmp_path / "export")
    assert (export / "policy").read_bytes() == f"log {SIGNER.vkey}\nquorum none\n".encode()
    report = verify_export(export, KEYS)
    assert (report.verdict, report.auditors, report.quorum, report.quorum_met) == ("TOLD", (), None, None)
    assert codes(verify_export(export, KEYS, require_quorum=True)) == ["QUORUM"]
    add(export, ANNA)
    report = verify_export(export, [*KEYS, ANNA.vkey])
    assert [signer.name for signer in report.signers] == [SIGNER.name, ANNA.name]
    assert "the policy names no auditors; the cosignatures are by keys that were pinned" in report.notes


def test_a_log_whose_key_is_an_auditors_is_not_created(tmp_path):
    own = Cosigner("auditor.example/somebody", LOG_KEY)
    spec = header_spec(signed_policy(auditors=(own.vkey,), auditor_quorum=1))
    with pytest.raises(LeafRefused) as refused:
        Ledger.create(tmp_path / "ledger.db", spec, SIGNER, now=START)
    assert refused.value.code == "AUDITORS"


def test_cosignatures_of_another_checkpoint_do_not_count_for_the_one_audited(export, monkeypatch):
    """A checkpoint that is changed while it is audited, for one with a quorum: what was audited is not what they cosigned."""
    other = sign_note(checkpoint_text(SIGNER.name, 1, bytes(32)), SIGNER)
    for who in (ANNA, BEN):
        other = cosign(other, who, KEYS, time=START)
    whole, asked = Export.read, []

    def read(self, name):
        asked.append(name)
        return other if name == "checkpoint" and asked.count(name) > 1 else whole(self, name)

    monkeypatch.setattr(Export, "read", read)
    report = verify_export(export, KEYS, require_quorum=True)
    assert report.verdict == "FAILED" and "CHANGED" in codes(report)


def test_leaves_that_nobody_signed_do_not_pass_under_a_checkpoint_that_is_put_there_later(export, monkeypatch):
    """Forged leaves under a claim that no pinned key signed; the genuine note is shown only when signatures are checked."""
    genuine = (export / "checkpoint").read_bytes()
    reader = ExportReader(export)
    leaves = [reader.leaf(seq) for seq in range(reader.size)]
    admitted = decode_leaf(leaves[1])
    leaves[1] = encode_leaf(replace(admitted, time=admitted.time + 1))
    (export / layout.entries_path(0, len(leaves))).write_bytes(tiles.entry_bundle(leaves))
    for name, data in hash_tiles([leaf_hash(leaf) for leaf in leaves]):
        (export / name).write_bytes(data)
    stranger = NoteSigner(SIGNER.name, generate())
    forged = sign_note(checkpoint_text(SIGNER.name, len(leaves), root(leaves)), stranger)
    (export / "checkpoint").write_bytes(forged)
    assert verify_export(export, KEYS).verdict == "FAILED"
    whole, asked = Export.read, []

    def read(self, name):
        asked.append(name)
        return genuine if name == "checkpoint" and asked.count(name) > 1 else whole(self, name)

    monkeypatch.setattr(Export, "read", read)
    report = verify_export(export, KEYS)
    assert report.verdict == "FAILED" and codes(report) == ["CHANGED"] and report.root_hex is None


WANDA, WIM = (Cosigner(f"witness.example/{name}", generate()) for name in ("wanda", "wim"))
WITNESSED = {"auditors": (ANNA.vkey,), "auditor_quorum": 1, "witnesses": (WANDA.vkey, WIM.vkey), "witness_quorum": 1}


@pytest.fixture(params=[True, False], ids=["auditors-too", "witnesses-alone"])
def witnessed(request, tmp_path) -> tuple[Path, bool]:
    """An export whose policy names witnesses, and whether it names an auditor too."""
    names = WITNESSED if request.param else {key: WITNESSED[key] for key in ("witnesses", "witness_quorum")}
    with Ledger.create(tmp_path / "ledger.db", header_spec(signed_policy(**names)), SIGNER, now=START) as ledger:
        Driver(ledger).admit(admission(1))
        return ledger.export(tmp_path / "export"), request.param


def test_witnesses_and_auditors_are_counted_apart(witnessed):
    """No cosignature of one kind counts for the quorum of the other; each missing quorum has its own word."""
    export, audited = witnessed
    report = verify_export(export, KEYS)
    assert (report.witnesses, report.witness_quorum, report.witness_quorum_met) == (WITNESSED["witnesses"], 1, False)
    assert {"NO_WITNESS_QUORUM", "NO_QUORUM" if audited else "NO_AUDITORS"} <= set(report.qualifiers)
    assert codes(verify_export(export, KEYS, require_quorum=True)) == ["QUORUM"] * (1 + audited)
    if audited:
        add(export, ANNA)
        report = verify_export(export, KEYS)
        assert (report.quorum_met, report.witness_quorum_met) == (True, False)
        assert "NO_WITNESS_QUORUM" in report.qualifiers and "NO_QUORUM" not in report.qualifiers
        assert codes(verify_export(export, KEYS, require_quorum=True)) == ["QUORUM"]
    add(export, WIM)
    report = verify_export(export, KEYS, require_quorum=True)
    assert report.verdict == "TOLD" and report.witness_quorum_met and report.quorum_met is (True if audited else None)
    assert "NO_WITNESS_QUORUM" not in report.qualifiers and ("NO_AUDITORS" in report.qualifiers) == (not audited)


def test_witnesses_do_not_stand_in_for_auditors(witnessed):
    export, audited = witnessed
    add(export, WANDA, WIM)
    report = verify_export(export, KEYS, require_quorum=True)
    assert codes(report) == (["QUORUM"] if audited else []) and report.quorum_met is (False if audited else None)
    assert report.witness_quorum_met


def test_the_exports_trust_policy_asks_for_both_quorums(witnessed):
    export, audited = witnessed
    policy = parse_policy((export / "policy").read_bytes())
    assert [str(key) for key in policy.keys_of(WITNESSES)] == list(WITNESSED["witnesses"])
    assert policy.quorum == (BOTH if audited else WITNESSES)
    if audited:
        assert policy.groups[-1] == Group(BOTH, 2, (AUDITORS, WITNESSES))
        assert not policy.satisfied({ANNA.verifier}) and not policy.satisfied({WANDA.verifier, WIM.verifier})
    assert policy.satisfied({ANNA.verifier, WIM.verifier})
    add(export, WIM, *([ANNA] if audited else []))
    cosigned = policy.open_checkpoint((export / "checkpoint").read_bytes(), now=START + 10).cosigned
    assert len(cosigned) == 1 + audited


def test_a_log_whose_key_is_a_witnesss_is_not_created(tmp_path):
    own = Cosigner("witness.example/somebody", LOG_KEY)
    spec = header_spec(signed_policy(witnesses=(own.vkey,), witness_quorum=1))
    with pytest.raises(LeafRefused) as refused:
        Ledger.create(tmp_path / "ledger.db", spec, SIGNER, now=START)
    assert refused.value.code == "AUDITORS"


def test_the_auditors_of_a_policy_are_the_owners_word(export):
    """Pinning the owner's key is what makes them so; a header with another owner's policy is found out."""
    assert verify_export(export, KEYS, owner_key=public_bytes(OWNER_KEY)).verdict == "TOLD"
    assert "OWNER" in codes(verify_export(export, KEYS, owner_key=public_bytes(LOG_KEY)))
    assert verify_export(export, [NoteSigner(SIGNER.name, OTHER_KEY).vkey]).verdict == "FAILED"
