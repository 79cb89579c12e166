"""Row B12 of the attack list, and what several runs over one corpus add: stolen, retired and replaced keys of a ledger."""

import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger import tiles
from ledger.audit import AuditReport, verify_export
from ledger.errors import LeafRefused, LedgerClosed, LedgerForked, LedgerWrongRun
from ledger.leaves import Previous, decode_leaf, encode_leaf
from ledger.log import Ledger
from ledger.merkle import leaf_hash, root_of_hashes
from ledger.note import NoteSigner, checkpoint_text, sign_note
from ledger.proofs.prover import ExportReader
from tests.worlds.ledgers import SIGNER, START, Driver, admission, header_spec

NEW = NoteSigner(SIGNER.name, Ed25519PrivateKey.from_private_bytes(bytes(range(40, 72))))
THIEF = NoteSigner(SIGNER.name, Ed25519PrivateKey.from_private_bytes(bytes(range(50, 82))))


def codes(report: AuditReport) -> list[str]:
    assert report.verdict == "FAILED"
    return [finding.code for finding in report.findings]


@pytest.fixture
def exports(tmp_path: Path) -> dict[str, Path]:
    """A ledger before and after its key was changed, and the copy that a thief of the old key went on with instead."""
    path, copy = tmp_path / "ledger.db", tmp_path / "stolen.db"
    with Ledger.create(path, header_spec(), SIGNER, now=START) as ledger:
        Driver(ledger).admit(admission(1))
        before = ledger.export(tmp_path / "before")
    for suffix in ("", ".highwater"):
        shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    with Ledger.open(path, SIGNER) as ledger:
        ledger.rotate_key(NEW, now=START + 5)
        at_change = ledger.export(tmp_path / "at_change")
        Driver(ledger, now=START + 6).admit(admission(2))
        after = ledger.export(tmp_path / "after")
    with Ledger.open(copy, SIGNER) as ledger:
        Driver(ledger, now=START + 5).admit(admission(2), admission(3), admission(4))
        stolen = ledger.export(tmp_path / "stolen")
    return {"before": before, "at_change": at_change, "after": after, "stolen": stolen}


def sign_again(export: Path, *signers: NoteSigner) -> None:
    claimed = ExportReader(export).claimed
    (export / "checkpoint").write_bytes(sign_note(checkpoint_text(claimed.origin, claimed.size, claimed.root), *signers))


@pytest.mark.parametrize("pinned", [[SIGNER], [NEW], [SIGNER, NEW]])
def test_B12_a_checkpoint_that_only_the_retired_key_signed_is_refused(exports, pinned):
    for name in ("at_change", "after"):
        sign_again(exports[name], SIGNER)
        assert codes(verify_export(exports[name], [signer.vkey for signer in pinned])) == ["LOG_KEY"]


def test_B12_the_checkpoint_at_the_change_carries_both_signatures(exports):
    assert verify_export(exports["at_change"], [SIGNER.vkey]).verdict == "TOLD"
    sign_again(exports["at_change"], NEW)
    assert codes(verify_export(exports["at_change"], [NEW.vkey])) == ["LOG_KEY"]


def test_B12_whoever_pinned_the_new_key_refuses_what_a_thief_of_the_old_one_wrote(exports):
    assert verify_export(exports["after"], [NEW.vkey]).verdict == "TOLD"
    for pinned in ([NEW.vkey], [SIGNER.vkey, NEW.vkey]):
        assert codes(verify_export(exports["stolen"], pinned)) == ["LOG_KEY"]
    assert verify_export(exports["before"], [SIGNER.vkey]).verdict == "TOLD"  # it was signed before the change


def test_B12_a_change_that_the_old_key_did_not_sign_is_no_change(exports):
    """A thief of nothing but the files: the KEY leaf rewritten to the thief's key, everything signed again by it."""
    export = exports["after"]
    reader = ExportReader(export)
    leaves = [reader.leaf(seq) for seq in range(reader.size)]
    seq = next(seq for seq, data in enumerate(leaves) if decode_leaf(data).KIND == 7)
    leaf = decode_leaf(leaves[seq])
    forged = type(leaf)(seq, leaf.time, leaf.old_vkey, THIEF.vkey, leaf.old_signature, leaf.new_signature)
    leaves[seq] = encode_leaf(forged)
    hashes = list(map(leaf_hash, leaves))
    (export / "tile/entries" / f"000.p/{len(leaves)}").write_bytes(tiles.entry_bundle(leaves))
    (export / "tile/0" / f"000.p/{len(leaves)}").write_bytes(b"".join(hashes))
    text = checkpoint_text(SIGNER.name, len(leaves), root_of_hashes(hashes))
    (export / "checkpoint").write_bytes(sign_note(text, THIEF))
    assert {"KEY_SIGNATURE", "LOG_KEY"} <= set(codes(verify_export(export, [SIGNER.vkey])))
    assert set(codes(verify_export(export, [THIEF.vkey]))) >= {"LOG_KEY"}


def test_B12_the_retired_key_cannot_append(exports, tmp_path):
    with pytest.raises(LedgerWrongRun) as refused:
        Ledger.open(tmp_path / "ledger.db", SIGNER)
    assert refused.value.code == "WRONG_KEY" and NEW.vkey in refused.value.sentence


def test_B12_the_new_key_does_not_take_over_what_a_thief_of_the_old_one_wrote(exports, tmp_path):
    shutil.copy(tmp_path / "stolen.db", tmp_path / "ledger.db")
    with pytest.raises(LedgerForked) as refused:
        Ledger.open(tmp_path / "ledger.db", NEW)
    assert refused.value.code == "FORKED" and (tmp_path / "ledger.db.fork-evidence").exists()


def test_B12_a_compromised_key_goes_on_under_no_ledger_that_cites_it(exports):
    claimed = ExportReader(exports["before"]).claimed
    lost = Previous(claimed.origin, claimed.size, claimed.root, bytes(32), SIGNER.vkey, "compromised")
    spec = header_spec(previous=(lost,))
    other = "ledger.example/run2"
    for signer in (NEW, NoteSigner(other, SIGNER.private_key)):
        with pytest.raises(LeafRefused) as refused:
            spec.header(origin=signer.name, log_vkey=signer.vkey, time=START)
        assert refused.value.code == "PREVIOUS"
    heir = NoteSigner(other, NEW.private_key)
    assert spec.header(origin=other, log_vkey=heir.vkey, time=START).previous == (lost,)


def test_a_closed_ledger_refuses_every_append_but_withdrawals_and_a_change_of_its_key(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.whole_run()
        refused = (
            lambda: driver.admit(admission(9)),
            driver.charge,
            driver.epoch,
            lambda: ledger.resume(0, None, now=driver.tick()),
            lambda: ledger.finish(now=driver.tick()),
        )
        for append in refused:
            with pytest.raises(LedgerClosed) as caught:
                append()
            assert caught.value.code == "FINISHED"
        size = ledger.size
        driver.withdraw(1)
        ledger.rotate_key(NEW, now=driver.tick())
        assert ledger.size == size + 2 and ledger.finished
