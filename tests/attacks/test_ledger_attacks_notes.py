"""Rows B7 to B11 and E6 of the attack list: what a log, an operator or a forger may try with notes and proofs."""

import base64
import shutil
from pathlib import Path

import pytest

from ledger import merkle
from ledger.errors import LedgerError, LedgerForked, LedgerWrongRun, NoteError, ProofError, TrustError
from ledger.log import Ledger
from ledger.note import Cosigner, NoteSigner, checkpoint_text, cosign, open_note, parse_checkpoint, sign_note
from ledger.proofs import prover
from ledger.proofs.cosigning import cosign_export
from ledger.proofs.memory import Memory, judge, parse_evidence
from ledger.proofs.prover import ExportReader
from ledger.proofs.single_leaf import TlogProof, verify_proof
from ledger.trust import auditors_policy
from tests.worlds.ledgers import LOG_KEY, OTHER_KEY, OWNER_KEY, SIGNER, START, Driver, admission, header_spec

ANNA, BEN = Cosigner("auditor.example/anna", OTHER_KEY), Cosigner("auditor.example/ben", OWNER_KEY)
ROOT = merkle.root([b"a", b"b"])
TEXT = checkpoint_text(SIGNER.name, 2, ROOT)
NOTE = sign_note(TEXT, SIGNER)


def code_of(call, *arguments, kind: type[LedgerError] = NoteError, **named) -> str:
    with pytest.raises(kind) as caught:
        call(*arguments, **named)
    return caught.value.code


@pytest.fixture
def histories(tmp_path) -> dict[str, Path]:
    """Exports of one ledger that was copied with its signer's memory, and went on in two ways."""
    with Ledger.create(tmp_path / "a.db", header_spec(), SIGNER, now=START) as ledger:
        Driver(ledger).admit(admission(1))
    for suffix in ("", ".highwater"):
        shutil.copy(tmp_path / f"a.db{suffix}", tmp_path / f"b.db{suffix}")
    made = {}
    for name, n in (("a", 2), ("b", 3)):
        with Ledger.open(tmp_path / f"{name}.db", SIGNER) as ledger:
            Driver(ledger, now=START + 10).admit(admission(n))
            made[name] = ledger.export(tmp_path / name)
    return made


def test_B7_the_signer_does_not_sign_a_second_history(histories, tmp_path):
    """Ledger b put in the place of ledger a, whose high-water file stays."""
    for suffix in ("", "-wal", "-shm"):
        if (tmp_path / f"b.db{suffix}").exists():
            shutil.copy(tmp_path / f"b.db{suffix}", tmp_path / f"a.db{suffix}")
    with pytest.raises(LedgerForked) as caught:
        Ledger.open(tmp_path / "a.db", SIGNER)
    assert caught.value.code == "FORKED"
    assert judge(parse_evidence((tmp_path / "a.db.fork-evidence").read_bytes()), [SIGNER.vkey]).kind == "FORK"


def test_B7_a_ledger_that_went_on_after_a_fork_shows_it_too(histories, tmp_path):
    """An auditor's note of the other history, of a smaller tree: the evidence has the proof that tells them apart."""
    note = cosign((histories["b"] / "checkpoint").read_bytes(), ANNA, [SIGNER.vkey], time=START)
    with Ledger.open(tmp_path / "a.db", SIGNER) as ledger:
        Driver(ledger, now=START + 20).admit(*(admission(n) for n in range(4, 9)))
        ledger.export(tmp_path / "later")
        with pytest.raises(LedgerForked):
            ledger.add_signatures(note, [ANNA.vkey])
    found = judge(parse_evidence((tmp_path / "a.db.fork-evidence").read_bytes()), [SIGNER.vkey])
    assert found.kind == "FORK" and found.offered.size > found.remembered.size


def test_B7_two_checkpoints_of_one_size_are_evidence_that_convinces_a_stranger(histories, tmp_path):
    memory = Memory(tmp_path / "anna", ANNA.vkey)
    cosign_export(histories["a"], [SIGNER.vkey], ANNA, memory, now=START, first=True)
    with pytest.raises(LedgerForked) as caught:
        cosign_export(histories["b"], [SIGNER.vkey], ANNA, memory, now=START)
    (path,) = (tmp_path / "anna").glob("*.evidence")
    assert str(path) in caught.value.sentence
    assert judge(parse_evidence(path.read_bytes()), [SIGNER.vkey]).kind == "FORK"


def test_B8_two_auditors_shown_different_trees_never_make_one_quorum(histories, tmp_path):
    """Anna sees a, Ben sees b: neither checkpoint has the two cosignatures that readers ask for, and lines do not move."""
    policy = auditors_policy(SIGNER.vkey, [ANNA.vkey, BEN.vkey], 2)
    notes = {
        name: cosign_export(
            histories[name], [SIGNER.vkey], who, Memory(tmp_path / who.name, who.vkey), now=START, first=True
        ).note
        for name, who in (("a", ANNA), ("b", BEN))
    }
    for note in notes.values():
        assert code_of(policy.open_checkpoint, note, kind=TrustError) == "QUORUM"
    moved = notes["a"] + notes["b"].split(b"\n\n")[1].split(b"\n")[1] + b"\n"
    assert code_of(policy.open_checkpoint, moved) == "SIGNATURE_BAD"


def test_B9_a_checkpoint_of_another_run_under_the_same_key_is_refused():
    other = sign_note(checkpoint_text("ledger.example/run2", 2, ROOT), SIGNER)
    assert code_of(auditors_policy(SIGNER.vkey).open_checkpoint, other, kind=LedgerWrongRun) == "ORIGIN"
    assert code_of(cosign, other, ANNA, [SIGNER.vkey], time=START) == "ORIGIN"
    renamed = NoteSigner("ledger.example/run2", LOG_KEY)
    note = sign_note(TEXT, renamed)
    assert code_of(auditors_policy(SIGNER.vkey).open_checkpoint, note) == "UNSIGNED", "under another name it is another key"


def line(name: str, blob: bytes) -> bytes:
    return f"— {name} {base64.b64encode(blob).decode()}\n".encode()


BLOB = base64.b64decode(NOTE.split()[-1])
EDITS = {
    "carriage returns": NOTE.replace(b"\n", b"\r\n"),
    "a control character": NOTE.replace(b"run1\n2", b"run1\x00\n2"),
    "a tab": NOTE.replace(b"\n2\n", b"\n2\t\n"),
    "101 signatures": NOTE + b"".join(line(f"other{n}", bytes(68)) for n in range(100)),
    "a hyphen for the dash": NOTE.replace("—".encode(), b"-"),
    "an en dash": NOTE.replace("—".encode(), "–".encode()),
    "a key id of three bytes": TEXT.encode() + b"\n" + line(SIGNER.name, BLOB[:3]),
    "a known key with a bad signature": TEXT.encode() + b"\n" + line(SIGNER.name, BLOB[:-1] + b"\x00"),
    "a known key with no signature": TEXT.encode() + b"\n" + line(SIGNER.name, BLOB[:4] + b"\x00"),
    "the same line twice": NOTE + line(SIGNER.name, BLOB),
    "text after the signatures": NOTE + b"text\n",
    "no last newline": NOTE[:-1],
    "no empty line": NOTE.replace(b"\n\n", b"\n"),
    "another base64": NOTE.replace(NOTE.split()[-1], NOTE.split()[-1][:-1]),
    "two spaces": NOTE.replace("— ".encode(), "—  ".encode()),
}


@pytest.mark.parametrize("edit", EDITS, ids=lambda name: name.replace(" ", "-"))
def test_B10_an_edited_note_is_refused(edit):
    assert EDITS[edit] != NOTE
    code_of(open_note, EDITS[edit], [SIGNER.vkey])
    code_of(auditors_policy(SIGNER.vkey).open_checkpoint, EDITS[edit])


def test_B10_unknown_keys_are_ignored_and_a_known_bad_one_refuses_the_whole_note():
    stranger = line("ledger.example/run1", b"\x00\x01\x02\x03" + bytes(64))
    assert open_note(NOTE + stranger, [SIGNER.vkey]).text == TEXT
    bad = bytearray(cosign(NOTE, ANNA, [SIGNER.vkey], time=START))
    bad[-8] ^= 1
    assert open_note(bytes(bad), [SIGNER.vkey]).text == TEXT
    code_of(open_note, bytes(bad), [SIGNER.vkey, ANNA.vkey])


def test_B10_an_alias_of_a_key_id_verifies_nothing():
    """Another key under the log's name and key id: the pinned key decides, and the line does not verify under it."""
    forger = NoteSigner(SIGNER.name, OTHER_KEY)
    blob = SIGNER.verifier.key_id + forger.private_key.sign(TEXT.encode())
    assert code_of(open_note, TEXT.encode() + b"\n" + line(SIGNER.name, blob), [SIGNER.vkey]) == "SIGNATURE_BAD"
    name, _, key = forger.vkey.split("+", 2)
    assert code_of(open_note, NOTE, [f"{name}+{SIGNER.verifier.key_id.hex()}+{key}"]) == "VKEY"


GOOD_ROOT = base64.b64encode(ROOT).decode()


@pytest.mark.parametrize(
    ("size", "root"),
    [
        *(
            (size, GOOD_ROOT)
            for size in ("042", "+42", "4_2", " 42", "42 ", "\u0664\u0662", "-1", "0x2a", "4e1", "", str(1 << 63))
        ),
        ("42", base64.b64encode(ROOT[:31]).decode()),
        ("42", base64.b64encode(ROOT + b"\x00").decode()),
        ("42", GOOD_ROOT[:-2] + chr(ord(GOOD_ROOT[-2]) + 1) + "="),
        ("42", GOOD_ROOT.rstrip("=")),
        ("42", GOOD_ROOT + " "),
        ("42", GOOD_ROOT.replace(GOOD_ROOT[3], "-", 1)),
        ("0", GOOD_ROOT),
    ],
)
def test_B11_other_spellings_of_size_and_root_are_refused_though_correctly_signed(size, root):
    text = f"{SIGNER.name}\n{size}\n{root}\n"
    code_of(parse_checkpoint, text)
    code_of(auditors_policy(SIGNER.vkey).open_checkpoint, sign_note(text, SIGNER))
    code_of(cosign, sign_note(text, SIGNER), ANNA, [SIGNER.vkey], time=START)


def test_E6_a_path_that_also_holds_for_another_position_proves_only_the_leafs_own(histories):
    """Every (size, index) under which the same leaf, path and root verify: the leaf's own number and the signed size decide."""
    export = ExportReader(histories["a"])
    policy = auditors_policy(SIGNER.vkey)
    aliases = 0
    for seq in range(export.size):
        path = tuple(prover.inclusion_proof(export.node, seq, export.size))
        for size in range(1, 40):
            for index in range(size):
                if (index, size) == (seq, export.size):
                    continue
                try:
                    merkle.verify_inclusion(export.leaf(seq), index, size, path, export.claimed.root)
                except ProofError:
                    continue
                aliases += 1
                lying = TlogProof(index, path, export.checkpoint, export.leaf(seq)).to_bytes()
                if index != seq:
                    assert code_of(verify_proof, lying, policy, kind=ProofError) in ("INDEX", "INCLUSION", "SEQ")
    assert aliases > 0, "there are such readings, so that the test says something"


def test_E6_a_log_that_signs_the_root_under_another_size_does_not_move_a_leaf(histories):
    """Even with the log's help: leaf 1 of 2 as leaf 4 of 5 has the right path and root, and states another number."""
    leaves = [ExportReader(histories["a"]).leaf(n) for n in (0, 1)]
    path, root = (merkle.leaf_hash(leaves[0]),), merkle.root(leaves)
    merkle.verify_inclusion(leaves[1], 4, 5, path, root)
    note = sign_note(checkpoint_text(SIGNER.name, 5, root), SIGNER)
    policy = auditors_policy(SIGNER.vkey)
    assert code_of(verify_proof, TlogProof(4, path, note, leaves[1]).to_bytes(), policy, kind=ProofError) == "SEQ"
