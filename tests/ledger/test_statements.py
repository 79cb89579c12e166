"""Auditors who vouch for summaries: what they sign, who counts, and what never passes for it."""

import base64
from pathlib import Path

import pytest

from attest.keys.vkeys import SIGNATURE_COSIGNATURE_V1, SIGNATURE_SUMMARY_V1, VerifierKey
from ledger.audit import verify_export
from ledger.errors import CosignRefused, NoteError
from ledger.note import Cosigner, cosign, open_note, parse_verifier_key
from ledger.proofs.cosigning import cosign_export
from ledger.proofs.memory import Memory
from ledger.retention import NAME_SUFFIX, statements, summary_key, summary_keys, vouch, vouched_end, vouchers
from tests.worlds.attested_ledgers import put_registry
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START
from tests.worlds.retained_ledgers import ANNA, BEN, CLEO, export_of, grown

KEYS = [SIGNER.vkey]


@pytest.fixture
def run(path):
    driver = grown(path, attested=True)
    yield driver
    driver.ledger.close()


@pytest.fixture
def summarised(run):
    run.leaf = run.ledger.summarise(now=run.tick())
    return run


def vouched(export: Path, who: Cosigner, base: Path, **options):
    memory = Memory(base / who.name.replace("/", "-"), who.vkey)
    return cosign_export(export, KEYS, who, memory, now=START + 1000, first=True, summary=True, **options)


def test_an_auditor_vouches_after_an_audit(summarised, tmp_path):
    export = export_of(summarised, tmp_path / "export")
    done = vouched(export, ANNA, tmp_path)
    keys = [*KEYS, ANNA.vkey, str(summary_key(ANNA.vkey))]
    found = open_note(done.note, keys).signatures
    assert [(item.key.name, item.key.kind, item.since) for item in found] == [
        (SIGNER.name, 1, None),
        (ANNA.name, SIGNATURE_COSIGNATURE_V1, None),
        (ANNA.name + NAME_SUFFIX, SIGNATURE_SUMMARY_V1, summarised.leaf.seq),
    ]
    assert statements(summarised.ledger.header, done.note) == {ANNA.name: summarised.leaf.seq}


def test_without_a_summary_there_is_nothing_to_vouch_for(run, tmp_path):
    with pytest.raises(CosignRefused, match="NO_SUMMARY"):
        vouched(export_of(run, tmp_path / "export"), ANNA, tmp_path)


@pytest.mark.parametrize("lacking", ["attestations", "registry"])
def test_nobody_vouches_for_a_summary_over_bounds_that_are_told(summarised, tmp_path, lacking):
    """What goes must have been held against what contributors signed; a cosignature by itself promises less, and is given."""
    export = summarised.ledger.export(tmp_path / "export", attestations=lacking != "attestations")
    registry = put_registry(tmp_path)
    with pytest.raises(CosignRefused, match="BOUNDS_TOLD") as caught:
        vouched(export, ANNA, tmp_path)
    assert f"has no {lacking}" in caught.value.sentence
    memory = Memory(tmp_path / "auditor.example-anna", ANNA.vkey)
    assert memory.read(SIGNER.name) is None, "nothing is remembered of what was not cosigned"
    done = cosign_export(export, KEYS, BEN, Memory(tmp_path / "ben", BEN.vkey), now=START + 1000, first=True)
    assert done.report.verdict == "TOLD" and statements(summarised.ledger.header, done.note) == {}
    if lacking == "registry":
        assert vouched(export, ANNA, tmp_path, registry=registry).vouched == (summarised.leaf.seq,)


def test_a_faulty_export_is_not_vouched_for(summarised, tmp_path):
    export = export_of(summarised, tmp_path / "export")
    (export / "tile" / "extra").write_bytes(b"")
    with pytest.raises(CosignRefused, match="AUDIT_FAILED"):
        vouched(export, ANNA, tmp_path)


def test_a_quorum_vouches_and_the_audit_names_it(summarised, tmp_path):
    ledger = summarised.ledger
    export = export_of(summarised, tmp_path / "export")
    header, summaries = ledger.header, ledger.state.tally.summaries
    trusted = [*summary_keys(header), ANNA.vkey, BEN.vkey]
    for count, who in enumerate((ANNA, BEN), start=1):
        note = ledger.add_signatures(vouched(export, who, tmp_path).note, trusted)
        names = vouchers(header, {ledger.size: note}, summaries, ledger.state.timeline, None)
        assert len(names[summarised.leaf.seq]) == count
        assert vouched_end(header, summaries, names) == (summarised.leaf.end if count == 2 else 0)
    report = verify_export(export_of(summarised, tmp_path / "again"), KEYS)
    assert report.verdict == "FULL"
    assert [(row.first, row.end, row.vouchers, row.pruned) for row in report.summaries] == [
        (1, summarised.leaf.end, (ANNA.name, BEN.name), 0)
    ]


def test_a_cosignature_never_passes_for_a_statement(summarised):
    """C2SP cosignatures do not sign the name: were the message the same, one would verify under the other name too."""
    note = summarised.ledger.checkpoint
    renamed = Cosigner(ANNA.name + NAME_SUFFIX, ANNA.key)
    assert statements(summarised.ledger.header, cosign(note, renamed, KEYS, time=START)) == {}
    line = cosign(note, ANNA, KEYS, time=START)[len(note) :].decode()
    blob = base64.b64decode(line.split(" ")[2])
    key = summary_key(ANNA.vkey)
    for padding in (b"", (1).to_bytes(8, "big")):
        forged = f"— {key.name} ".encode()
        forged += base64.b64encode(key.key_id + blob[4:12] + padding + blob[12:]) + b"\n"
        with pytest.raises(NoteError, match="SIGNATURE_BAD"):
            statements(summarised.ledger.header, note + forged)


def test_a_statement_signs_the_summary_that_it_begins_with(summarised):
    """Whoever moves ``since`` back, to have an auditor vouch for what it never saw, breaks the signature."""
    note = summarised.ledger.checkpoint
    made = vouch(note, ANNA, KEYS, since=40, time=START)
    head, _, encoded = made.rstrip(b"\n").rpartition(b" ")
    blob = bytearray(base64.b64decode(encoded))
    blob[19] -= 1
    with pytest.raises(NoteError, match="SIGNATURE_BAD"):
        statements(summarised.ledger.header, head + b" " + base64.b64encode(bytes(blob)) + b"\n")
    assert statements(summarised.ledger.header, made) == {ANNA.name: 40}


def test_who_counts(summarised):
    ledger, leaf = summarised.ledger, summarised.leaf
    header, summaries, note = ledger.header, ledger.state.tally.summaries, ledger.checkpoint
    stranger = Cosigner("auditor.example/dora", OTHER_KEY)

    def names(*made: bytes, size: int = ledger.size) -> tuple[str, ...]:
        return vouchers(header, dict.fromkeys([size], made[0]), summaries, ledger.state.timeline, None)[leaf.seq]

    assert names(vouch(note, stranger, KEYS, since=1, time=leaf.time)) == ()
    assert names(vouch(note, CLEO, KEYS, since=leaf.seq + 1, time=leaf.time)) == (), "vouches for later summaries only"
    uncovered = names(vouch(note, CLEO, KEYS, since=leaf.seq, time=leaf.time), size=leaf.seq)
    assert uncovered == (), "the checkpoint does not cover it"
    early = vouch(note, CLEO, KEYS, since=leaf.seq, time=leaf.time - 1)
    assert names(early) == (), "nobody recomputed a summary before it was written"
    made = vouch(note, CLEO, KEYS, since=leaf.seq, time=leaf.time)
    assert names(made) == (CLEO.name,)
    assert vouch(made, CLEO, KEYS, since=leaf.seq, time=leaf.time + 5) == made, "one line per auditor"


def test_verifier_keys_of_statements_read_back():
    key = summary_key(ANNA.vkey)
    assert parse_verifier_key(str(key)) == key
    for kind in (0xFF, 0x02, 0xFE):
        other = VerifierKey("x", kind, ANNA.verifier.public_key)
        text = f"x+{other.key_id.hex()}+" + base64.b64encode(bytes([kind]) + key.public_key).decode()
        with pytest.raises(NoteError):
            parse_verifier_key(text)
