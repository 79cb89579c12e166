"""Changing the ledger's key: who signs what, who may follow, who is refused."""

from dataclasses import replace
from pathlib import Path

import cbor2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest.keys import public_bytes
from attest.keys.vkeys import SIGNATURE_COSIGNATURE_V1, VerifierKey
from ledger.audit import verify_export
from ledger.errors import LeafRefused, LedgerBehind, LedgerWrongRun, NoteError
from ledger.leaves import Header, Key, decode_leaf
from ledger.log import Ledger
from ledger.note import Cosigner, NoteSigner, checkpoint_text, open_note, sign_note
from ledger.proofs.cosigning import cosign_export
from ledger.proofs.memory import Memory
from ledger.replay.signer import KeyChain, rotation, statement
from ledger.storage import highwater
from ledger.trust import auditors_policy
from tests.worlds.ledgers import LOG_KEY, OTHER_KEY, SIGNER, START, Driver, admission, header_spec, signed_policy

NEW = NoteSigner(SIGNER.name, Ed25519PrivateKey.from_private_bytes(bytes(range(40, 72))))
NEWER = NoteSigner(SIGNER.name, Ed25519PrivateKey.from_private_bytes(bytes(range(41, 73))))


def header() -> Header:
    return header_spec(run_id=bytes(16)).header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)


def codes(report) -> list[str]:
    return [finding.code for finding in report.findings]


@pytest.fixture
def rotated(tmp_path) -> tuple[Path, int]:
    """A ledger whose key was changed in the middle of its run, and the place of the KEY leaf."""
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1), admission(2))
        driver.steps(1)
        seq = ledger.size
        ledger.rotate_key(NEW, now=driver.tick())
        driver.steps(1)
        driver.epoch()
        ledger.finish(now=driver.tick())
    return tmp_path / "ledger.db", seq


def test_the_checkpoint_at_a_change_is_signed_by_both_keys_and_the_later_ones_by_the_new_key(rotated):
    path, seq = rotated
    with Ledger.open(path, NEW) as ledger:
        chain, notes = ledger.state.keys, ledger._file.checkpoints
        assert chain.vkeys == (SIGNER.vkey, NEW.vkey) and chain.current == NEW.vkey and chain.changes == ((seq, NEW.vkey),)
        for size, note in notes.items():
            signed = {str(item.key) for item in open_note(note, chain.vkeys).signatures}
            assert signed == ({SIGNER.vkey} if size <= seq else {SIGNER.vkey, NEW.vkey} if size == seq + 1 else {NEW.vkey})
        assert {seq + 1, ledger.size} < set(notes)


def test_a_change_of_the_key_on_each_database(begun, backend):
    begun.admit(admission(1))
    begun.ledger.rotate_key(NEW, now=begun.tick())
    begun.steps()
    begun.ledger.close()
    with pytest.raises(LedgerWrongRun) as refused:
        backend.open()
    assert refused.value.code == "WRONG_KEY"
    with Ledger.open(backend.place, NEW) as ledger:
        mark = highwater.read_bytes(backend.place)
        assert mark is not None and highwater.parse(mark, ledger.state.keys).size == ledger.size


@pytest.mark.parametrize("pinned", [[SIGNER], [NEW], [SIGNER, NEW]], ids=["old", "new", "both"])
def test_an_auditor_who_pinned_any_key_of_the_chain_verifies(rotated, tmp_path, pinned):
    path, seq = rotated
    with Ledger.open(path, NEW) as ledger:
        export = ledger.export(tmp_path / "export")
        assert (export / "policy").read_bytes() == ledger.state.keys.trust_policy().text()
    report = verify_export(export, [signer.vkey for signer in pinned])
    assert report.verdict == "TOLD" and report.log_keys == (SIGNER.vkey, NEW.vkey), report.findings
    assert any(f"changed at leaf {seq}" in note for note in report.notes)
    assert [signer.of_log for signer in report.signers] == [True]


def test_an_auditor_who_pinned_the_key_in_the_middle_follows_it_both_ways(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        Driver(ledger).admit(admission(1))
        ledger.rotate_key(NEW, now=START + 5)
        ledger.rotate_key(NEWER, now=START + 6)
        export = ledger.export(tmp_path / "export")
    for signer in (SIGNER, NEW, NEWER):
        assert verify_export(export, [signer.vkey]).verdict == "TOLD"
    stranger = NoteSigner(SIGNER.name, OTHER_KEY)
    report = verify_export(export, [stranger.vkey])
    assert codes(report) == ["LOG_KEY"] and report.size is None


def test_a_cosigner_who_knows_the_old_key_goes_on(tmp_path):
    anna = Cosigner("auditor.example/anna", OTHER_KEY)
    memory = Memory(tmp_path / "anna", anna.vkey)
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1))
        cosign_export(ledger.export(tmp_path / "one"), [SIGNER.vkey], anna, memory, now=START, first=True)
        ledger.rotate_key(NEW, now=driver.tick())
        driver.admit(admission(2))
        done = cosign_export(ledger.export(tmp_path / "two"), [SIGNER.vkey], anna, memory, now=START + 9)
        assert ledger.add_signatures(done.note, [anna.vkey]) == done.note
    with Ledger.open(tmp_path / "ledger.db", NEW) as ledger:
        assert anna.vkey in {str(item.key) for item in open_note(ledger.checkpoint, [NEW.vkey, anna.vkey]).signatures}


def test_the_key_is_changed_after_the_close_too_and_a_closed_ledger_takes_nothing_else_but_withdrawals(run, tmp_path):
    run.whole_run()
    run.ledger.rotate_key(NEW, now=run.tick())
    run.withdraw(1)
    for refused in (lambda: run.admit(admission(7)), lambda: run.charge(), lambda: run.epoch()):
        with pytest.raises(Exception, match="no admission, charge"):
            refused()
    report = verify_export(run.ledger.export(tmp_path / "export"), [SIGNER.vkey])
    assert report.verdict == "TOLD" and report.finished


def test_a_ledger_that_lost_the_change_of_its_key_is_behind_for_the_new_key(tmp_path):
    path = tmp_path / "ledger.db"
    with Ledger.create(path, header_spec(), SIGNER, now=START) as ledger:
        Driver(ledger).admit(admission(1))
    backup = path.read_bytes()
    with Ledger.open(path, SIGNER) as ledger:
        ledger.rotate_key(NEW, now=START + 5)
    for old in tmp_path.glob("ledger.db-*"):
        old.unlink()
    path.write_bytes(backup)
    with pytest.raises(LedgerBehind) as refused:
        Ledger.open(path, NEW)
    assert refused.value.code == "BEHIND" and "introduces that key" in refused.value.sentence
    with pytest.raises(Exception, match="HIGHWATER"):
        Ledger.open(path, SIGNER)


def test_a_handle_goes_on_after_a_refused_change(run):
    run.admit(admission(1))
    for bad in (SIGNER, NoteSigner("ledger.example/run2", NEW.private_key)):
        with pytest.raises(LeafRefused) as refused:
            run.ledger.rotate_key(bad, now=run.tick())
        assert refused.value.code == "LOG_KEY"
    run.steps()
    assert run.ledger.state.keys.vkeys == (SIGNER.vkey,)


@pytest.mark.parametrize(("field", "quorum"), [("auditors", "auditor_quorum"), ("witnesses", "witness_quorum")])
def test_an_auditor_or_witness_of_the_policy_cannot_become_the_log(tmp_path, field, quorum):
    anna = Cosigner("cosigner.example/anna", OTHER_KEY)
    policy = signed_policy(**{field: (anna.vkey,), quorum: 1})
    with Ledger.create(tmp_path / "ledger.db", header_spec(policy), SIGNER, now=START) as ledger:
        with pytest.raises(LeafRefused) as refused:
            ledger.rotate_key(NoteSigner(SIGNER.name, OTHER_KEY), now=START)
        assert refused.value.code == "LOG_KEY"


LEAF = rotation(header(), 5, START, SIGNER, NEW)
OTHER_RUN = replace(header(), run_id=b"\x01" * 16)
BAD_LEAVES = {
    "the old key's signature is another's": replace(LEAF, old_signature=LEAF.new_signature),
    "the new key did not sign": replace(LEAF, new_signature=LEAF.old_signature),
    "nobody signed": replace(LEAF, old_signature=bytes(64), new_signature=bytes(64)),
    "another place": replace(LEAF, seq=6),
    "another new key": replace(LEAF, new_vkey=NEWER.vkey),
    "a key that does not sign now": rotation(header(), 5, START, NEWER, NEW),
    "the same key again": rotation(header(), 5, START, SIGNER, SIGNER),
    "another origin": rotation(header(), 5, START, SIGNER, NoteSigner("ledger.example/run2", NEW.private_key)),
    "another run of the same name": rotation(OTHER_RUN, 5, START, SIGNER, NEW),
    "no key": replace(LEAF, new_vkey="nonsense"),
}


@pytest.mark.parametrize("leaf", BAD_LEAVES.values(), ids=BAD_LEAVES.keys())
def test_a_change_that_is_not_signed_by_both_keys_for_this_ledger_changes_nothing(leaf: Key):
    chain = KeyChain(header())
    (problem,) = chain.take(leaf)
    assert problem.code in ("LOG_KEY", "KEY_SIGNATURE") and chain.vkeys == (SIGNER.vkey,)
    assert list(chain.take(LEAF)) == [] and chain.current == NEW.vkey


def test_a_key_never_comes_back():
    chain = KeyChain(header())
    assert list(chain.take(LEAF)) == []
    (problem,) = chain.take(rotation(header(), 6, START, NEW, SIGNER))
    assert problem.code == "LOG_KEY" and chain.current == NEW.vkey


def test_a_retired_key_hands_over_to_nobody():
    """Its thief has a signature for every statement that begins with it."""
    chain = KeyChain(header())
    assert list(chain.take(LEAF)) == []
    (problem,) = chain.take(rotation(header(), 6, START, SIGNER, NEWER))
    assert problem.code == "LOG_KEY" and chain.vkeys == (SIGNER.vkey, NEW.vkey)


def test_a_key_that_cosigns_is_no_key_of_a_log():
    """By name and position it would do; but what it signs are statements about other people's checkpoints."""
    cosigner = str(VerifierKey(SIGNER.name, SIGNATURE_COSIGNATURE_V1, public_bytes(NEW.private_key)))
    message = statement(header(), 5, SIGNER.vkey, cosigner)
    leaf = Key(5, START, SIGNER.vkey, cosigner, SIGNER.private_key.sign(message), NEW.private_key.sign(message))
    chain = KeyChain(header())
    (problem,) = chain.take(leaf)
    assert problem.code == "LOG_KEY" and chain.current == SIGNER.vkey


@pytest.mark.parametrize("quorum", [1, 2])
def test_a_ledger_s_trust_policy_asks_for_the_quorum_of_the_signed_policy_after_a_change_too(quorum):
    auditors = (Cosigner("auditor.example/anna", OTHER_KEY).vkey, Cosigner("auditor.example/ben", NEWER.private_key).vkey)
    spec = header_spec(signed_policy(auditors=auditors, auditor_quorum=quorum))
    made = spec.header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)
    chain = KeyChain(made)
    assert chain.trust_policy() == auditors_policy(SIGNER.vkey, auditors, quorum)
    assert not chain.trust_policy().satisfied(set())
    assert list(chain.take(rotation(made, 5, START, SIGNER, NEW))) == []
    assert chain.trust_policy() == auditors_policy(NEW.vkey, auditors, quorum)


def test_the_witnesses_of_the_policy_are_asked_for_after_a_change_of_the_key_too():
    wim = Cosigner("witness.example/wim", OTHER_KEY).vkey
    spec = header_spec(signed_policy(witnesses=(wim,), witness_quorum=1))
    made = spec.header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)
    chain = KeyChain(made)
    assert chain.trust_policy() == auditors_policy(SIGNER.vkey, witnesses=(wim,), witness_quorum=1) == made.trust_policy()
    assert list(chain.take(rotation(made, 5, START, SIGNER, NEW))) == []
    assert chain.trust_policy() == auditors_policy(NEW.vkey, witnesses=(wim,), witness_quorum=1)


def test_what_a_signer_committed_to_in_a_file_of_another_ledger_is_nothing():
    """One key may, against all advice, sign two ledgers; the origin in the text tells whose file it is."""
    own, other = (sign_note(checkpoint_text(name, 9, bytes(32)), SIGNER) for name in (SIGNER.name, "ledger.example/run2"))
    assert highwater.committed(own, SIGNER) == 9
    assert highwater.committed(other, SIGNER) is highwater.committed(own, NEW) is highwater.committed(None, SIGNER) is None


def test_a_record_of_another_ledger_is_of_the_wrong_run_even_where_its_tree_is_the_same(run, path):
    run.admit(admission(1))
    size, root = run.ledger.size, run.ledger.root
    run.ledger.close()
    highwater.path_of(path).write_bytes(sign_note(checkpoint_text("ledger.example/run2", size, root), SIGNER))
    with pytest.raises(LedgerWrongRun) as refused:
        Ledger.open(path, SIGNER)
    assert refused.value.code == "WRONG_RUN"
    highwater.path_of(path).write_bytes(sign_note(checkpoint_text(SIGNER.name, size, root), SIGNER))
    Ledger.open(path, SIGNER).close()


def test_what_both_keys_sign_is_what_the_formats_page_says():
    """Origin, run, place and both keys, in this order and nothing else, behind the domain."""
    found = statement(header(), 5, SIGNER.vkey, NEW.vkey)
    domain = b"dptrain/rotate-ledger-key/1\0"
    assert found.startswith(domain)
    assert cbor2.loads(found[len(domain) :]) == [SIGNER.name, bytes(16), 5, SIGNER.vkey, NEW.vkey]


def test_who_signs_a_checkpoint_of_which_size():
    chain = KeyChain(header())
    assert list(chain.take(LEAF)) == [] and list(chain.take(rotation(header(), 6, START, NEW, NEWER))) == []
    assert [chain.at(size) for size in (1, 5, 6, 7, 99)] == [SIGNER.vkey, SIGNER.vkey, NEW.vkey, NEWER.vkey, NEWER.vkey]
    assert [len(chain.required(size)) for size in (1, 5, 6, 7, 8)] == [1, 1, 2, 2, 1]
    text = checkpoint_text(SIGNER.name, 6, bytes(32))
    chain.open_note(sign_note(text, NEW, SIGNER))
    for signers in ([SIGNER], [NEW], [NEWER], [SIGNER, NEWER]):
        with pytest.raises(NoteError) as refused:
            chain.open_note(sign_note(text, *signers))
        assert refused.value.code == "LOG_KEY"


def test_the_leaf_is_read_back_from_the_ledger(rotated):
    path, seq = rotated
    with Ledger.open(path) as ledger, ledger.rows() as rows:
        leaf = next(decode_leaf(row.body) for row in rows if row.seq == seq)
    assert isinstance(leaf, Key) and (leaf.old_vkey, leaf.new_vkey) == (SIGNER.vkey, NEW.vkey)
    assert NoteSigner(SIGNER.name, LOG_KEY).vkey == leaf.old_vkey
