"""The notes that an export carries: several of one tree count as one, and no line is passed over in silence."""

import shutil
from pathlib import Path

import pytest

from attest.keys import generate
from ledger import layout, tiles
from ledger.audit import verify_export
from ledger.note import Cosigner, cosign, merge_notes, sign_note
from ledger.retention import summary_keys, vouch
from tests.worlds.ledgers import SIGNER, START
from tests.worlds.retained_ledgers import ANNA, AUDITORS, BEN, CLEO, grown, is_pruned, pruned_run

KEYS = [SIGNER.vkey]


@pytest.fixture(scope="module")
def pruned(tmp_path_factory) -> Path:
    base = tmp_path_factory.mktemp("pruned")
    driver = pruned_run(base / "ledger.db")
    with driver.ledger as ledger:
        ledger.add_signatures(cosigned(ledger.checkpoint, ANNA, BEN), list(AUDITORS) + KEYS)
        return ledger.export(base / "export")


@pytest.fixture
def export(pruned, tmp_path) -> Path:
    return Path(shutil.copytree(pruned, tmp_path / "export"))


def cosigned(note: bytes, *who: Cosigner) -> bytes:
    for auditor in who:
        note = cosign(note, auditor, KEYS, time=START + 900)
    return note


def kept(export: Path) -> list[bytes]:
    return tiles.split_bundle((export / layout.RETAINED_NOTES).read_bytes(), None)


def keep(export: Path, *notes: bytes) -> None:
    (export / layout.RETAINED_NOTES).write_bytes(tiles.entry_bundle(list(notes)))


def bare(note: bytes, lines: int = 1) -> bytes:
    """A note with its first signature lines only."""
    text, _, signatures = note.partition(b"\n\n")
    return text + b"\n\n" + b"".join(signatures.splitlines(keepends=True)[:lines])


def codes(report) -> list[str]:
    return [finding.code for finding in report.findings]


def about_lines(report) -> list[str]:
    return [note for note in report.notes if "signature line" in note]


@pytest.mark.parametrize("order", [(ANNA, BEN), (BEN, ANNA)])
def test_two_notes_of_one_tree_with_one_voucher_each_are_a_quorum(export, order):
    (note,) = kept(export)
    since = verify_export(export, KEYS).summaries[0].seq
    apart = [vouch(bare(note), who, KEYS, since=since, time=START + 900) for who in order]
    keep(export, apart[0])
    assert "UNVOUCHED" in codes(verify_export(export, KEYS))
    keep(export, *apart)
    report = verify_export(export, KEYS)
    assert is_pruned(report) and report.summaries[0].vouchers == (ANNA.name, BEN.name)
    keep(export, apart[0], apart[0])
    assert codes(verify_export(export, KEYS)) == ["NOTES", "UNVOUCHED"], "one auditor twice is one auditor"


def test_kept_notes_cannot_be_repeated_without_end(export):
    """Each costs several signatures and a root: what adds nothing, or goes back in size, ends the reading."""
    (note,) = kept(export)
    later = (export / layout.CHECKPOINT).read_bytes()
    for notes in ([note, note], [later, note], [note, later, bare(later)]):
        keep(export, *notes)
        assert codes(verify_export(export, KEYS)).count("NOTES") == 1
    keep(export, note, *[note] * 1000)
    assert codes(verify_export(export, KEYS)) == ["NOTES"]


def test_cosignatures_below_two_notes_of_one_tree_are_a_quorum(export):
    both = (export / layout.CHECKPOINT).read_bytes()
    alone = bare(both)
    (export / layout.CHECKPOINT).write_bytes(cosigned(alone, ANNA))
    assert codes(verify_export(export, KEYS, require_quorum=True)) == ["QUORUM"]
    keep(export, *kept(export), cosigned(alone, BEN))
    report = verify_export(export, KEYS, require_quorum=True)
    assert is_pruned(report) and report.quorum_met
    assert [signer.name for signer in report.signers] == [SIGNER.name, ANNA.name, BEN.name]


def test_a_cosignature_of_a_smaller_tree_does_not_count_for_the_one_audited(export):
    (note,) = kept(export)
    (export / layout.CHECKPOINT).write_bytes(bare((export / layout.CHECKPOINT).read_bytes()))
    keep(export, cosigned(note, ANNA, BEN, CLEO))
    report = verify_export(export, KEYS, require_quorum=True)
    assert codes(report) == ["QUORUM"] and [signer.name for signer in report.signers] == [SIGNER.name]


def test_a_kept_note_with_another_text_over_the_same_tree_is_refused(export):
    """What is cosigned below extension lines is another statement than a cosignature of the checkpoint."""
    text = (export / layout.CHECKPOINT).read_bytes().partition(b"\n\n")[0].decode() + "\n"
    keep(export, *kept(export), sign_note(f"{text}and more\n", SIGNER))
    assert codes(verify_export(export, KEYS)) == ["CHECKPOINT"]


def test_merging_makes_one_note_of_two(export):
    note = bare((export / layout.CHECKPOINT).read_bytes())
    merged = merge_notes(note, [cosigned(note, ANNA), cosigned(note, BEN)], [*KEYS, ANNA.vkey, BEN.vkey])
    assert merged == cosigned(note, ANNA, BEN)


def test_lines_of_unknown_keys_are_named_and_count_for_nothing(export):
    dora = Cosigner("auditor.example/dora", generate())
    path = export / layout.CHECKPOINT
    path.write_bytes(cosigned(path.read_bytes(), dora))
    report = verify_export(export, KEYS)
    assert is_pruned(report) and len(report.signers) == 3
    assert [(row.name, row.key_id, row.lines, row.resembles) for row in report.ignored] == [
        (dora.name, dora.verifier.key_id.hex(), 1, None)
    ]
    told = f"1 signature line by keys neither pinned nor named by the policy counts for nothing: {dora.name} (key id "
    assert [note.startswith(told) for note in about_lines(report)] == [True]
    assert report.to_json()["ignored"][0]["name"] == dora.name
    assert verify_export(export, [*KEYS, dora.vkey]).ignored == ()


def test_a_line_under_a_known_auditors_name_with_another_key_is_named_as_such(export):
    other = Cosigner(CLEO.name, generate())
    path = export / layout.CHECKPOINT
    path.write_bytes(cosigned(path.read_bytes(), other))
    report = verify_export(export, KEYS)
    assert [row.resembles for row in report.ignored] == [CLEO.vkey]
    (told,) = about_lines(report)
    assert other.verifier.key_id.hex() in told and CLEO.verifier.key_id.hex() in told and "damaged, forged" in told


def test_a_made_up_name_cannot_hide_or_reorder_what_is_told(export):
    evil = Cosigner("a\u202eb" + "x" * 500, generate())
    path = export / layout.CHECKPOINT
    path.write_bytes(cosigned(path.read_bytes(), evil))
    (told,) = about_lines(verify_export(export, KEYS))
    assert "\u202e" not in told and "a\\u202eb" in told and len(told) < 300


def test_lines_of_many_unknown_keys_are_counted_and_a_few_named(export):
    path = export / layout.CHECKPOINT
    path.write_bytes(cosigned(path.read_bytes(), *(Cosigner(f"stranger.example/{n}", generate()) for n in range(40))))
    report = verify_export(export, KEYS)
    (told,) = about_lines(report)
    assert len(report.ignored) == 40 and told.startswith("40 signature lines by keys") and told.endswith("and 35 more")


def test_a_bad_cosignature_below_a_kept_note_fails_though_nobody_asked_for_it(export):
    (note,) = kept(export)
    good = cosigned(note, CLEO)
    keep(export, good)
    assert is_pruned(verify_export(export, KEYS))
    bad = bytearray(good)
    bad[-20] ^= 1
    keep(export, bytes(bad))
    report = verify_export(export, KEYS)
    assert report.verdict == "FAILED" and codes(report)[0] in ("SIGNATURE_BAD", "BASE64")


def flipped_unseen(export: Path, name: str, bits: int) -> tuple[int, list[int]]:
    """Changes each byte of a file, so many bits of it, one at a time; returns how often, and where nothing was said of it."""
    target, unseen, flips = export / name, [], 0
    original = target.read_bytes()
    honest = about_lines(verify_export(export, KEYS))
    for position in range(len(original)):
        for bit in range(bits) if bits > 1 else (position % 7,):
            changed = bytearray(original)
            changed[position] ^= 1 << bit
            target.write_bytes(bytes(changed))
            report = verify_export(export, KEYS)
            flips += 1
            if report.verdict != "FAILED" and (about_lines(report) == honest or not report.ignored):
                unseen.append(position)
    target.write_bytes(original)
    return flips, unseen


@pytest.mark.slow
@pytest.mark.parametrize("bits", [1, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [layout.CHECKPOINT, pytest.param(layout.RETAINED_NOTES, marks=pytest.mark.slow)])
def test_E1_every_changed_byte_of_cosigned_notes_fails_or_is_told(export, name, bits):
    """One auditor more than the quorum asks for has signed everything, so that by the quorum alone nobody would notice."""
    since = verify_export(export, KEYS).summaries[0].seq
    keep(export, vouch(cosigned(kept(export)[0], ANNA, BEN, CLEO), CLEO, KEYS, since=since, time=START + 900))
    (export / layout.CHECKPOINT).write_bytes(cosigned((export / layout.CHECKPOINT).read_bytes(), CLEO))
    assert is_pruned(verify_export(export, KEYS)) and about_lines(verify_export(export, KEYS)) == []
    flips, unseen = flipped_unseen(export, name, bits)
    assert flips > 500 * bits and unseen == []


def test_the_statements_of_auditors_below_the_checkpoint_are_no_unknown_lines(tmp_path):
    driver = grown(tmp_path / "ledger.db")
    with driver.ledger as ledger:
        leaf = ledger.summarise(now=driver.tick())
        note = vouch(ledger.checkpoint, ANNA, KEYS, since=leaf.seq, time=leaf.time)
        ledger.add_signatures(note, [*KEYS, *summary_keys(ledger.header)])
        report = verify_export(ledger.export(tmp_path / "export"), KEYS)
    assert report.verdict == "TOLD" and report.ignored == () and about_lines(report) == []
    assert [signer.name for signer in report.signers] == [SIGNER.name] and report.summaries[0].vouchers == (ANNA.name,)
