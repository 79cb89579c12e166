
"""Content anchors and traces by the user's commands: signed beside the content, found in ledgers, refused where they lie."""

import shutil
import time

import pytest

from attest import cbor
from tests.worlds.commands import record

NOTE = "corpus/first.json"
BOUNDS = ("--corpus", "elsewhere", "--clip-norm", "1", "--noise-multiplier", "1")
RECORD = "corpus/.first.json.anchor"


@pytest.fixture
def anchored(shell, corpus):
    """A finished run over five notes and a file of its own, with the export, and what the file's attestation says."""
    corpus()
    shell.write(NOTE, '{"text": "a scan"}')
    signed = ("--key", "alice.key", "--class", "sensitive", "--policy", "policy.cose", "--owner-key", "owner.pub")
    shell.run("attest", "sign", NOTE, *signed)
    record(shell)
    shell.run("ledger", "export", "ledger.db", "export")
    return shell.json("attest", "show", f"{NOTE}.attest", "--record", "1")


def show(shell, *options, code=0, export=("export", "--key", "ledger.pub")):
    return shell.json("ledger", "show", *export, "--anchor", RECORD, *options, code=code)


def trace(shell, *words, code=0):
    return shell.json("ledger", "trace", *words, "--key", "ledger.pub", code=code)


def test_an_anchor_leads_from_the_content_to_what_became_of_it(shell, anchored):
    made = shell.json("attest", "anchor", NOTE, "--key", "alice.key", "--with-nonce")
    assert made["path"] == RECORD and made["descriptor_hash"] == anchored["descriptor_hash"]
    assert made["with_nonce"] and made["key_of_attestation"]
    for place in (("export", "--key", "ledger.pub"), ("ledger.db",)):
        for key in (("--pub", "alice.pub"), ("--registry", "registry.cbor")):
            found = show(shell, *key, "--content", NOTE, export=place)
            assert found["descriptor_hash"] == anchored["descriptor_hash"] and found["steps"] == 20
            assert found["anchor"]["content_compared"] and found["anchor"]["contributor"] == "alice"
    text = shell.run("ledger", "show", "ledger.db", "--anchor", RECORD, "--pub", "alice.pub").stdout
    assert "signed by alice" in text and "which content it is of was not looked at" in text


def test_a_record_in_the_corpus_is_no_data(shell, anchored):
    """Neither to the gate, nor to whoever signs the folder that it lies in."""
    shell.run("attest", "anchor", NOTE, "--key", "alice.key")
    judged = shell.json("gate", "policy.cose", "corpus")
    assert judged["admitted"] == {"sensitive": 6} and judged["refused"] == {}
    folder = shell.json("attest", "sign", "corpus", "--key", "alice.key", "--class", "sensitive", *BOUNDS)
    assert folder["signed"] == 4, "two contents and their attestations, and no record"


def test_without_the_nonce_it_still_leads_there_and_confirms_no_content(shell, anchored):
    made = shell.json("attest", "anchor", NOTE, "--key", "alice.key")
    record_ = (shell.directory / RECORD).read_bytes()
    assert not made["with_nonce"] and bytes.fromhex(anchored["nonce"]) not in record_
    assert bytes.fromhex(anchored["content_hash"]) not in record_ and b"alice" not in record_
    assert show(shell, "--pub", "alice.pub")["descriptor_hash"] == anchored["descriptor_hash"]
    asked = ("--pub", "alice.pub", "--content", NOTE)
    assert show(shell, *asked, code=1)["error"]["code"] == "NONCE"
    assert show(shell, *asked, "--nonce", anchored["nonce"])["anchor"]["content_compared"]


def test_a_changed_content_is_named(shell, anchored):
    shell.run("attest", "anchor", NOTE, "--key", "alice.key", "--with-nonce")
    shell.write("changed.json", '{"text": "a scan."}')
    error = show(shell, "--pub", "alice.pub", "--content", "changed.json", code=1)["error"]
    assert error["code"] == "CONTENT_MISMATCH" and "changed since it was signed" in error["sentence"]
    traced = trace(shell, RECORD, "export", "--pub", "alice.pub", "--content", "changed.json", code=1)
    assert traced["error"]["code"] == "CONTENT_MISMATCH"
    shell.write(NOTE, '{"text": "another scan"}')
    for command in (
        ("attest", "anchor", NOTE, "--key", "alice.key", "--out", "new.anchor"),
        ("ledger", "trace", NOTE, "export", "--key", "ledger.pub"),
    ):
        assert shell.json(*command, code=1)["error"]["code"] == "CONTENT_MISMATCH"
    assert not (shell.directory / "new.anchor").exists()


def test_who_lies_about_an_anchor_is_refused_with_a_code(shell, anchored):
    shell.run("attest", "anchor", NOTE, "--key", "alice.key", "--with-nonce")
    shell.run("attest", "keygen", "mallory")
    assert show(shell, "--pub", "mallory.pub", code=1)["error"]["code"] == "SIG_BAD"
    path = shell.directory / RECORD
    payload, message = cbor.decode(path.read_bytes())
    path.write_bytes(cbor.encode([payload.replace(bytes.fromhex(anchored["descriptor_hash"]), bytes(32)), message]))
    assert show(shell, "--pub", "alice.pub", code=1)["error"]["code"] == "HEADER"
    path.write_bytes(b"no record")
    assert show(shell, "--pub", "alice.pub", code=1)["error"]["code"] == "FORMAT"
    assert show(shell, code=2)["error"]["code"] == "USAGE"
    assert show(shell, "--pub", "alice.pub", "--registry", "registry.cbor", code=2)["error"]["code"] == "USAGE"


def test_another_registrys_key_and_another_contributors_are_refused(shell, anchored, monkeypatch):
    shell.run("attest", "anchor", NOTE, "--key", "alice.key", "--with-nonce")
    (shell.directory / "other").mkdir()
    keys = ("--key", "owner.key", "--class", "sensitive")
    shell.run("registry", "add", "other/registry.cbor", "--pub", "alice.pub", *keys)
    assert show(shell, "--registry", "other/registry.cbor", code=1)["error"]["code"] == "REGISTRY_ROOT"
    shell.run("attest", "keygen", "bob")
    (shell.directory / RECORD).unlink()
    forged = ("attest", "anchor", NOTE, "--key", "bob.key")
    assert shell.json(*forged, code=1)["error"]["code"] == "HEADER"
    shell.run(*forged, "--contributor", "alice")  # bob says that he is alice, with a key of his own
    assert show(shell, "--registry", "registry.cbor", code=1)["error"]["code"] == "KEY_UNKNOWN"
    wrong = show(shell, "--pub", "bob.pub", code=1)["error"]
    assert wrong["code"] == "KEY" and "names the key" in wrong["sentence"]
    later = time.time() + 2.0  # the key is valid from the second of its enrolment on
    monkeypatch.setattr(time, "time", lambda: later)
    shell.run("registry", "add", "registry.cbor", "--pub", "bob.pub", "--class", "sensitive")
    assert show(shell, "--registry", "registry.cbor", code=1)["error"]["code"] == "KEY_NOT_VALID"  # it was not by then
    (shell.directory / RECORD).unlink()
    shell.run(*forged, "--contributor", "alice")
    enrolled = show(shell, "--registry", "registry.cbor", code=1)["error"]
    assert enrolled["code"] == "KEY", "a key of the registry, and of another contributor"


def test_a_contributor_who_changed_keys_signs_an_anchor_that_the_registry_vouches_for(shell, anchored):
    shell.run("attest", "keygen", "alice", "--dir", str(shell.write("new/x", "").parent))
    change = ("--new-key", "new/alice.key", "--registry", "registry.cbor")
    shell.run("attest", "rotate", "--key", "alice.key", *change)
    shell.run("registry", "rotate", "registry.cbor", "--statement", "alice-rotation.cose")
    made = shell.json("attest", "anchor", NOTE, "--key", "new/alice.key")
    assert not made["key_of_attestation"]
    assert show(shell, "--registry", "registry.cbor")["steps"] == 20
    assert show(shell, "--pub", "new/alice.pub", code=1)["error"]["code"] == "KEY"


def test_a_line_of_many_has_an_anchor_of_its_own(shell, anchored):
    lines = ("attest", "anchor", "corpus/notes.jsonl", "--key", "alice.key")
    assert "--record" in shell.json(*lines, code=2)["error"]["sentence"]
    made = shell.json(*lines, "--record", "3", "--with-nonce")
    assert made["path"] == "corpus/.notes.jsonl.3.anchor"
    third = shell.json("attest", "show", "corpus/notes.jsonl.attest", "--record", "3")
    assert made["descriptor_hash"] == third["descriptor_hash"] != anchored["descriptor_hash"]
    found = trace(shell, "corpus/notes.jsonl", "export", "--record", "3")
    assert found["descriptors"] == [made["descriptor_hash"]]
    assert trace(shell, made["path"], "export", "--pub", "alice.pub")["descriptors"] == [made["descriptor_hash"]]
    shell.run(*lines, "--record", "9", code=2)


def test_a_trace_over_two_runs_says_the_verdict_beside_every_figure(shell, anchored):
    record(shell, ledger="second.db", run="second")
    shell.run("ledger", "export", "second.db", "export-2", "--ledger-key", "second.key")
    exports = ("export", "export-2", "--key", "second.pub")
    by_content = trace(shell, NOTE, *exports)
    one, two = by_content["runs"]
    assert {one["origin"], two["origin"]} == {"clinic-notes-2026/ledger", "clinic-notes-2026/second"}
    assert by_content["composed"]["epsilon"] > max(run["found"]["epsilon"] for run in by_content["runs"])
    for figure in (one, two, by_content["composed"]):
        assert figure["verdict"] == "TOLD"
    assert [window["variance"] > 0 for window in one["found"]["windows"]] == [True] * 4
    shell.run("attest", "anchor", NOTE, "--key", "alice.key")
    same = [
        trace(shell, anchored["descriptor_hash"], *exports),
        trace(shell, RECORD, *exports, "--registry", "registry.cbor"),
        trace(shell, anchored["content_hash"], *exports, "--nonce", anchored["nonce"]),
    ]
    for other in same:
        assert (other["runs"], other["composed"]) == (by_content["runs"], by_content["composed"])
    text = shell.run("ledger", "trace", NOTE, *exports, "--key", "ledger.pub").stdout
    spent = [line for line in text.splitlines() if line.startswith(("spent: epsilon", "over 2 runs: epsilon"))]
    assert len(spent) == 3 and all("[TOLD (" in line for line in spent)
    assert "what none of these exports can show:" in text and "counts as another contribution" in text


def test_signed_again_it_is_another_contribution_and_that_is_said(shell, anchored):
    """The same content, signed anew: its new attestation finds it in the new run alone, the old one in the old alone."""
    shutil.copy(f"{NOTE}.attest", "old.attest")
    signed = ("--key", "alice.key", "--class", "sensitive", "--policy", "policy.cose", "--owner-key", "owner.pub")
    shell.run("attest", "sign", NOTE, *signed)
    record(shell, ledger="second.db", run="second")
    shell.run("ledger", "export", "second.db", "export-2", "--ledger-key", "second.key")
    exports = ("export", "export-2", "--key", "second.pub")
    for options, places in (((), [False, True]), (("--attestations", "old.attest"), [True, False])):
        found = trace(shell, NOTE, *exports, *options)
        assert sorted((run["export"], run["found"] is not None) for run in found["runs"]) == list(
            zip(("export", "export-2"), places, strict=True)
        )
        assert any("signed again" in sentence for sentence in found["unseen"])
    nowhere = trace(shell, NOTE, "export", code=1)["error"]
    assert nowhere["code"] == "NOT_FOUND" and "signed again" in nowhere["sentence"]


def test_wrong_use_of_a_trace_is_told_before_anything_is_audited(shell, anchored):
    shell.run("attest", "anchor", NOTE, "--key", "alice.key")
    shell.write("export/tile/entries/x000/000", "an audit would find this")
    assert "--pub or --registry" in trace(shell, RECORD, "export", code=2)["error"]["sentence"]
    assert "go with an anchor" in trace(shell, NOTE, "export", "--pub", "alice.pub", code=2)["error"]["sentence"]
    assert "no descriptor hash" in trace(shell, "nowhere.png", "export", code=2)["error"]["sentence"]
    assert "give --attestations" in trace(shell, "owner.pub", "export", code=2)["error"]["sentence"]
