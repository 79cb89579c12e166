"""Cosignatures, their merging, and trust policies: the published rows, and what an operator or auditor might try."""

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger import merkle, trust
from ledger.errors import LedgerWrongRun, NoteError, TrustError
from ledger.note import Cosigner, NoteSigner, checkpoint_text, cosign, merge_notes, open_note, parse_verifier_key, sign_note
from tests.vectors.published import vectors
from tests.worlds.ledgers import LOG_KEY, OTHER_KEY, OWNER_KEY, SIGNER, START

TLOG = vectors("tlog")
ANNA, BEN = Cosigner("auditor.example/anna", OTHER_KEY), Cosigner("auditor.example/ben", OWNER_KEY)
CARLA = Cosigner("auditor.example/carla", Ed25519PrivateKey.from_private_bytes(b"\x03" * 32))
ROOT = merkle.root([b"a", b"b"])
NOTE = sign_note(checkpoint_text(SIGNER.name, 2, ROOT), SIGNER)
VKEYS = [SIGNER.vkey, ANNA.vkey, BEN.vkey]


def named(cases):
    return [pytest.param(case, id=case["id"].replace(" ", "-")) for case in cases]


def octets(text: bytes) -> bytes:
    """A policy of the vector file with its keys filled in."""
    for name, vkey in TLOG["keys"].items():
        text = text.replace(b"{%s}" % name.encode(), vkey.encode())
    return text


def refused(call, *arguments, **named_arguments):
    with pytest.raises((NoteError, TrustError, LedgerWrongRun)) as caught:
        call(*arguments, **named_arguments)
    return caught.value.code


def with_last_signature_flipped(data: bytes) -> bytes:
    blob = bytearray(base64.b64decode(data.split()[-1]))
    blob[-1] ^= 1
    return data.replace(data.split()[-1], base64.b64encode(blob))


# --- cosignatures --------------------------------------------------------------------------------------------------------


def test_a_cosigned_note_is_the_note_and_one_line_more():
    cosigned = cosign(NOTE, ANNA, [SIGNER.vkey], time=START)
    assert cosigned.startswith(NOTE) and cosigned[len(NOTE) :].count(b"\n") == 1
    opened = open_note(cosigned, VKEYS)
    assert [(item.key.name, item.timestamp) for item in opened.signatures] == [(SIGNER.name, None), (ANNA.name, START)]
    assert cosign(cosigned, ANNA, [SIGNER.vkey], time=START + 5) == cosigned


def test_the_time_of_a_cosignature_is_signed():
    cosigned = cosign(NOTE, ANNA, [SIGNER.vkey], time=START)
    blob = bytearray(base64.b64decode(cosigned.split()[-1]))
    blob[11] ^= 1
    changed = cosigned.replace(cosigned.split()[-1], base64.b64encode(blob))
    assert refused(open_note, changed, VKEYS) == "SIGNATURE_BAD"


def test_a_cosignature_and_a_log_signature_are_never_taken_for_each_other():
    """One key under both types: neither signature verifies as the other."""
    both = NoteSigner(SIGNER.name, OTHER_KEY)
    as_cosigner = Cosigner(SIGNER.name, OTHER_KEY)
    assert both.vkey != as_cosigner.vkey
    cosigned = cosign(NOTE, as_cosigner, [SIGNER.vkey], time=START)
    assert refused(open_note, cosigned.replace(NOTE.split(b"\n")[-2] + b"\n", b""), [both.vkey]) == "UNSIGNED"


@pytest.mark.parametrize("time", [-1, 1 << 63, 1.0, True, None])
def test_times_that_do_not_fit_are_refused(time):
    assert refused(cosign, NOTE, ANNA, [SIGNER.vkey], time=time) == "TIME"


def test_only_checkpoints_by_the_log_are_cosigned():
    stranger = NoteSigner("ledger.example/run1", OTHER_KEY)
    text = checkpoint_text(SIGNER.name, 2, ROOT)
    assert refused(cosign, sign_note(text, stranger), ANNA, [SIGNER.vkey], time=START) == "UNSIGNED"
    assert refused(cosign, sign_note("any text\n", SIGNER), ANNA, [SIGNER.vkey], time=START) == "CHECKPOINT"
    assert refused(cosign, sign_note(text + "more\n", SIGNER), ANNA, [SIGNER.vkey], time=START) == "CHECKPOINT"
    other = sign_note(checkpoint_text("ledger.example/run2", 2, ROOT), SIGNER)
    assert refused(cosign, other, ANNA, [SIGNER.vkey], time=START) == "ORIGIN"
    assert refused(cosign, NOTE, Cosigner("me", LOG_KEY), [SIGNER.vkey], time=START) == "COSIGNER"


def test_a_cosigner_does_not_add_a_line_beside_a_forged_one_of_its_own():
    forged = with_last_signature_flipped(cosign(NOTE, ANNA, [SIGNER.vkey], time=START))
    assert refused(cosign, forged, ANNA, [SIGNER.vkey], time=START) == "SIGNATURE_BAD"


def test_merging_keeps_every_byte_of_the_base_and_adds_each_line_once():
    by_anna, by_ben = (cosign(NOTE, who, [SIGNER.vkey], time=START) for who in (ANNA, BEN))
    merged = merge_notes(NOTE, [by_anna, by_ben, by_anna], VKEYS)
    assert merged.startswith(NOTE)
    assert [item.key.name for item in open_note(merged, VKEYS).signatures] == [SIGNER.name, ANNA.name, BEN.name]
    assert merge_notes(merged, [by_ben, merged, NOTE], VKEYS) == merged
    again = cosign(NOTE, ANNA, [SIGNER.vkey], time=START + 9)
    assert merge_notes(by_anna, [again], VKEYS) == by_anna, "the first cosignature stands"


def test_lines_by_keys_that_nobody_named_are_not_merged():
    by_carla = cosign(NOTE, CARLA, [SIGNER.vkey], time=START)
    assert merge_notes(NOTE, [by_carla], VKEYS) == NOTE


def test_notes_over_other_texts_or_with_bad_lines_are_not_merged():
    fork = sign_note(checkpoint_text(SIGNER.name, 2, merkle.root([b"a", b"c"])), SIGNER)
    assert refused(merge_notes, NOTE, [fork], VKEYS) == "OTHER_TEXT"
    line = cosign(NOTE, ANNA, [SIGNER.vkey], time=START)[len(NOTE) :]
    other = sign_note(checkpoint_text(SIGNER.name, 3, ROOT), SIGNER) + line
    assert refused(merge_notes, NOTE, [other], VKEYS) == "SIGNATURE_BAD"


def test_merging_never_makes_a_note_that_a_reader_refuses():
    many = [Cosigner(f"auditor/{n}", Ed25519PrivateKey.from_private_bytes(n.to_bytes(32, "big"))) for n in range(1, 101)]
    notes = [cosign(NOTE, who, [SIGNER.vkey], time=START) for who in many]
    keys = [SIGNER.vkey, *(who.vkey for who in many)]
    assert len(open_note(merge_notes(NOTE, notes[:99], keys), keys).signatures) == 100
    assert refused(merge_notes, NOTE, notes, keys) == "NOTE"


@pytest.mark.parametrize("vector", TLOG["vkey"], ids=lambda vector: vector["vkey"][:20])
def test_published_verifier_keys(vector):
    if vector["expect"] == "accept":
        assert str(parse_verifier_key(vector["vkey"])) == vector["vkey"]
    else:
        assert refused(parse_verifier_key, vector["vkey"]) in ("VKEY", "BASE64")


def test_published_cosignature_carries_its_time_after_the_key_id():
    vector = TLOG["cosignature_time"]
    blob = base64.b64decode(vector["line"])
    assert len(blob) == 4 + 8 + 64 and int.from_bytes(blob[4:12], "big") == vector["time"]


# --- policies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", named(TLOG["policy_accept"]))
def test_published_policies_are_read(vector):
    policy = trust.parse_policy(octets(bytes.fromhex(vector["policy_hex"])))

    def raw(name: str) -> str:
        return name.encode("utf-8", "surrogateescape").hex()

    assert len(policy.logs) == vector["logs"]
    assert [raw(witness.name) for witness in policy.witnesses] == vector["witnesses"]
    assert [[group.name, group.threshold, list(group.members)] for group in policy.groups] == vector["groups"]
    assert raw(policy.quorum) == vector["quorum_hex"]
    assert trust.parse_policy(policy.text()) == policy


@pytest.mark.parametrize("vector", named(TLOG["policy_reject"]))
def test_published_policies_with_faults_are_refused(vector):
    refused(trust.parse_policy, octets(bytes.fromhex(vector["policy_hex"])))


@pytest.mark.parametrize("vector", named(TLOG["quorum"]["cases"]))
def test_published_quorums(vector):
    """The reference's own keys cosign; the policy of nested groups is satisfied exactly where the reference says."""
    log = NoteSigner("example.com/log", Ed25519PrivateKey.from_private_bytes(b"\x51" * 32))
    assert log.vkey == TLOG["keys"]["log"]
    text = octets(bytes.fromhex(TLOG["quorum"]["policy_hex"])) + f"log {log.vkey}\n".encode()
    data = sign_note(checkpoint_text(log.name, 42, bytes(32)), log)
    for name in vector["signers"]:
        key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(TLOG["seeds"][name]))
        data = cosign(data, Cosigner(name.capitalize(), key), [log.vkey], time=START)
    policy = trust.parse_policy(text)
    if vector["satisfied"]:
        assert [item.key.name for item in policy.open_checkpoint(data).cosigned] == [n.capitalize() for n in vector["signers"]]
    else:
        assert refused(policy.open_checkpoint, data) == "QUORUM"


def policy_of(quorum: int) -> trust.TrustPolicy:
    return trust.auditors_policy(SIGNER.vkey, [ANNA.vkey, BEN.vkey, CARLA.vkey], quorum)


def test_a_quorum_counts_auditors_and_not_lines():
    once = cosign(NOTE, ANNA, [SIGNER.vkey], time=START)
    assert policy_of(1).open_checkpoint(once).checkpoint.size == 2
    assert refused(policy_of(2).open_checkpoint, once) == "QUORUM"
    twice = once + cosign(NOTE, ANNA, [SIGNER.vkey], time=START + 1)[len(NOTE) :]
    assert refused(policy_of(2).open_checkpoint, twice) == "SIGNATURE_LINE"
    assert policy_of(2).open_checkpoint(cosign(once, CARLA, [SIGNER.vkey], time=START)).log == SIGNER.verifier


def test_auditors_without_the_log_are_no_checkpoint():
    text, lines = cosign(NOTE, ANNA, [SIGNER.vkey], time=START).split(b"\n\n")
    unsigned = text + b"\n\n" + lines.split(b"\n")[1] + b"\n"
    assert refused(policy_of(1).open_checkpoint, unsigned) == "LOG_UNSIGNED"


def test_a_bad_line_of_a_known_auditor_refuses_the_note_even_where_the_quorum_would_stand():
    data = merge_notes(NOTE, [cosign(NOTE, who, [SIGNER.vkey], time=START) for who in (ANNA, BEN)], VKEYS)
    assert refused(policy_of(1).open_checkpoint, with_last_signature_flipped(data)) == "SIGNATURE_BAD"


def test_a_checkpoint_of_another_log_is_refused_though_its_key_is_known():
    other = sign_note(checkpoint_text("ledger.example/run2", 2, ROOT), SIGNER)
    assert refused(policy_of(0).open_checkpoint, other) == "ORIGIN"


def test_the_policy_of_a_ledger_without_auditors_has_the_bytes_that_it_always_had():
    assert trust.auditors_policy(SIGNER.vkey).text() == f"log {SIGNER.vkey}\nquorum none\n".encode()


def test_the_policy_of_a_ledger_with_auditors_reads_back():
    policy = policy_of(2)
    assert trust.parse_policy(policy.text()) == policy
    assert policy.groups == (trust.Group("auditors", 2, ("auditor-1", "auditor-2", "auditor-3")),)


@pytest.mark.parametrize("quorum", [4, -1])
def test_a_quorum_that_no_set_of_auditors_reaches_is_refused(quorum):
    assert refused(policy_of, quorum) == "THRESHOLD"


def test_a_log_that_would_witness_itself_is_refused():
    own = Cosigner("auditor.example/somebody", LOG_KEY)
    assert refused(trust.auditors_policy, SIGNER.vkey, [own.vkey], 1) == "DUPLICATE_KEY"


def test_refusals_name_the_line():
    with pytest.raises(TrustError, match="line 3 of the trust policy"):
        trust.parse_policy(b"# one\n\nquibble\n")


def test_names_that_are_no_text_do_not_reach_the_keys():
    broken = b"log exa\xffmple+00000000+" + base64.b64encode(b"\x01" + bytes(32)) + b"\nquorum none\n"
    assert refused(trust.parse_policy, broken) == "NAME"


@pytest.mark.parametrize("data", [b"", b"quorum \xc2\xa0none\n", b"quorum none\x7f\n", b"q" * 1_000_001, "quorum none\n"])
def test_other_things_are_no_policy(data):
    refused(trust.parse_policy, data)


def test_a_policy_without_a_log_opens_nothing():
    assert refused(trust.parse_policy(b"quorum none\n").open_checkpoint, NOTE) == "NO_LOG"
