"""`dptrain attest show` and `verify`: true words for one attestation, counts for many, and what was not verified is said."""

import re
import tracemalloc
from dataclasses import replace

import pytest

from attest.attestation import read_sequence
from attest.schema.plain import in_words
from attest.schema.rounding import at_most
from ledger import accountants

ATTESTATIONS = "corpus/notes.jsonl.attest"


def flowing(text: str) -> str:
    """A page with its line breaks taken out."""
    return " ".join(text.split())


def test_one_record_is_told_in_words(shell, corpus):
    policy = ("--policy", "policy.cose", "--owner-key", "owner.pub")
    corpus(*policy, "--not-before", "2026-11-01", "--days", "30", "--principal", "patient-7", "--max-occurrences", "20")
    shown = flowing(shell.run("attest", "show", ATTESTATIONS, "--record", "2", "--at", "2026-11-21").stdout)
    assert "alice permits the corpus clinic-notes-2026, and no other" in shown
    assert "as class sensitive. It is about patient-7." in shown
    assert "a length of at most 0.5 (clip norm), and to at most 0.834 standard deviations of the noise" in shown
    assert "It may be drawn 20 times at most." in shown
    assert "Valid from Sunday 1 November 2026, 00:00 UTC until Tuesday 1 December 2026, 00:00 UTC: 10 days left." in shown
    for what in ("signature", "admission", "content", "uniqueness"):
        assert f"– {what} NOT verified" in shown
    answer = shell.json("attest", "show", ATTESTATIONS, "--record", "2")
    for name in ("key_id", "descriptor_hash", "content_hash"):
        assert answer[name] in shown


@pytest.mark.parametrize(
    ("moment", "words"),
    [
        ("2026-10-30", "Not valid yet: from Sunday 1 November 2026, 00:00 UTC (2 days from now)"),
        ("2027-01-01", "Expired: it was"),
    ],
)
def test_an_attestation_out_of_its_time_says_so(shell, corpus, moment, words):
    corpus("--policy", "policy.cose", "--owner-key", "owner.pub", "--not-before", "2026-11-01", "--days", "30")
    assert words in flowing(shell.run("attest", "show", ATTESTATIONS, "--record", "1", "--at", moment).stdout)


def test_epsilon_is_told_as_a_bound_of_one_contribution_under_a_named_policy(shell, corpus):
    corpus()
    shown = flowing(shell.run("attest", "show", ATTESTATIONS, "--record", "1", "--policy", "policy.toml").stdout)
    own, redone = accountants.epsilon(1.2, 0.1, 20, 1e-6), accountants.epsilon(1.2, 0.1, 30, 1e-6)
    replaced = accountants.epsilon(1.2, 0.1, 20, 1e-6, replace=True)
    assert "this draft of a policy, which is not signed" in shown
    assert f"epsilon is at most {at_most(own)} against the contribution being empty" in shown
    assert f"repeated after crashes is, it is at most {at_most(redone)}" in shown
    assert f"other content in its place, without repeated steps, at most {at_most(replaced)}" in shown
    assert "of one contribution: for several of one person epsilon is larger" in shown
    assert "Under the signed policy" in flowing(
        shell.run("attest", "show", ATTESTATIONS, "--record", "1", "--policy", "policy.cose").stdout
    )


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (("--corpus", "other", "--class", "sensitive"), "is for the corpus clinic-notes-2026: it says nothing about this"),
        (("--corpus", "clinic-notes-2026", "--class", "secret"), "has no class secret, only sensitive, public"),
    ],
)
def test_no_epsilon_is_named_under_a_policy_that_does_not_apply(shell, corpus, bounds, words):
    numbers = ("--clip-norm", "0.5", "--noise-multiplier", "1.2")
    shell.write("one.txt", "1")
    shell.run("attest", "sign", "one.txt", "--key", "alice.key", *bounds, *numbers)
    shown = flowing(shell.run("attest", "show", "one.txt.attest", "--record", "1", "--policy", "policy.toml").stdout)
    assert words in shown and "epsilon is at most" not in shown


def test_without_a_policy_no_epsilon_is_named(shell, corpus):
    corpus()
    shown = flowing(shell.run("attest", "show", ATTESTATIONS, "--record", "1").stdout)
    assert "give --policy" in shown and not re.search(r"epsilon is at most", shown)


def outcomes(answer: dict) -> dict[str, tuple[str, str | None]]:
    return {check["what"]: (check["outcome"], check["code"]) for check in answer["checks"]}


def test_what_is_given_is_verified_and_the_rest_is_not(shell, corpus):
    corpus()
    show = ("attest", "show", ATTESTATIONS, "--record", "1")
    bare = outcomes(shell.json(*show))
    assert set(bare.values()) == {("unchecked", None)}
    assert outcomes(shell.json(*show, "--pub", "alice.pub"))["signature"] == ("passed", None)
    assert outcomes(shell.json(*show, "--pub", "owner.pub", code=1))["signature"] == ("failed", "SIG_BAD")
    assert outcomes(shell.json(*show, "--registry", "registry.cbor"))["signature"] == ("passed", None)
    full = outcomes(shell.json(*show, "--policy", "policy.cose"))
    assert full["signature"] == full["admission"] == ("passed", None)
    assert full["content"] == full["uniqueness"] == ("unchecked", None)
    draft = outcomes(shell.json(*show, "--policy", "policy.toml"))
    assert draft["admission"] == ("unchecked", None)


def test_a_draft_of_a_policy_verifies_nothing_and_claims_nothing(shell, corpus):
    corpus()
    answer = shell.json("attest", "show", ATTESTATIONS, "--policy", "policy.toml")
    assert answer["verified"] is None
    shown = shell.run("attest", "show", ATTESTATIONS, "--policy", "policy.toml").stdout
    assert "✓" not in shown and "NOT verified" in shown


def test_a_registry_that_the_policy_does_not_name_is_refused(shell, corpus):
    corpus()
    shell.run("registry", "init", "other.cbor", "--key", "owner.key")
    shell.run("registry", "add", "other.cbor", "--pub", "alice.pub", "--class", "sensitive", "--key", "owner.key")
    show = ("attest", "show", ATTESTATIONS, "--policy", "policy.cose", "--registry")
    assert shell.json(*show, "other.cbor", code=1)["error"]["code"] == "REGISTRY_ROOT"
    assert shell.json(*show, "registry.cbor")["verified"] == 5


def test_terms_that_the_gate_would_refuse_carry_its_code(shell, corpus):
    corpus("--corpus", "clinic-notes-2026", "--clip-norm", "9", "--noise-multiplier", "1.2")
    answer = shell.json("attest", "show", ATTESTATIONS, "--record", "1", "--policy", "policy.cose", code=1)
    assert outcomes(answer)["signature"] == ("passed", None)
    assert outcomes(answer)["admission"] == ("failed", "CLIP_ABOVE_CLASS")


def test_many_are_counted_and_the_first_rows_shown(shell, corpus):
    corpus()
    answer = shell.json("attest", "show", ATTESTATIONS, "--limit", "2")
    assert (answer["count"], answer["classes"], answer["contributors"]) == (5, {"sensitive": 5}, {"alice": 5})
    assert [item["record"] for item in answer["descriptors"]] == [1, 2] and answer["verified"] is None
    shown = shell.run("attest", "show", ATTESTATIONS, "--limit", "2").stdout
    assert "... and 3 more" in shown and "5 attestations, NOT verified here" in shown
    verified = shell.json("attest", "show", ATTESTATIONS, "--pub", "owner.pub", code=1)
    assert (verified["verified"], verified["failures"]) == (0, {"SIG_BAD": 5})


def test_a_single_attestation_is_told_in_words_by_itself(shell, corpus):
    shell.run("attest", "keygen", "bob")
    shell.write("scan.txt", "one")
    bounds = ("--corpus", "c", "--clip-norm", "0.5", "--noise-multiplier", "1.2")
    shell.run("attest", "sign", "scan.txt", "--key", "bob.key", "--class", "x", *bounds)
    assert "bob permits the corpus c, and no other" in flowing(shell.run("attest", "show", "scan.txt.attest").stdout)


def test_a_number_that_the_file_does_not_have_says_how_many_there_are(shell, corpus):
    corpus()
    assert "holds 5" in flowing(shell.run("attest", "show", ATTESTATIONS, "--record", "6", code=2).stderr)


def test_a_broken_item_is_reported_after_what_could_be_read(shell, corpus):
    corpus()
    path = shell.directory / ATTESTATIONS
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 10])
    result = shell.run("attest", "show", ATTESTATIONS, code=1)
    assert "4 attestations" in result.stdout
    assert result.stderr.startswith("CBOR: item 5 of corpus/notes.jsonl.attest is damaged")
    shell.write("notes.txt", "no attestations at all")
    result = shell.run("attest", "show", "notes.txt", code=1)
    assert result.stdout == "" and "notes.txt is not a file of attestations" in result.stderr


def test_verify_counts_failures_by_reason_and_lists_the_first(shell, corpus):
    corpus()
    shell.write("corpus/notes.jsonl", "".join(f'{{"text": "other {index}"}}\n' for index in range(4)))
    answer = shell.json("attest", "verify", "corpus/notes.jsonl", "--pub", "alice.pub", "--limit", "1", code=1)
    assert answer["codes"] == {"CONTENT_MISMATCH": 4, "CONTENT_MISSING": 1}
    assert (answer["failed"], len(answer["failures"])) == (5, 1)
    shown = shell.run("attest", "verify", "corpus/notes.jsonl", "--pub", "alice.pub", "--limit", "1", code=1).stdout
    assert "... and 4 more" in shown and "CONTENT_MISMATCH 4, CONTENT_MISSING 1" in shown


@pytest.mark.slow
def test_show_holds_no_more_than_the_rows_it_shows(shell, corpus):
    corpus()
    path = shell.directory / ATTESTATIONS
    item = path.read_bytes()[: len(path.read_bytes()) // 5]
    with path.open("rb") as stream:
        assert sum(1 for _ in read_sequence(stream)) == 5

    def peak(copies: int) -> int:
        path.write_bytes(item * copies)
        tracemalloc.start()
        try:
            assert shell.json("attest", "show", ATTESTATIONS, "--limit", "3")["count"] == copies
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # A chunk of the file is 1 MiB; 200 and 8000 attestations must both fit into little more than that.
    peak(10)
    assert peak(8000) < peak(200) + (4 << 20)


def test_times_are_written_in_english_and_utc_whatever_the_machine_is_set_to():
    assert in_words(0) == "Thursday 1 January 1970, 00:00 UTC"
    assert in_words(1_796_083_200) == "Tuesday 1 December 2026, 00:00 UTC"


def without_openings(shell, name: str) -> None:
    """The attestations as an export holds them, in a file of their own."""
    with (shell.directory / ATTESTATIONS).open("rb") as stream:
        exported = [replace(item, opening=b"").to_cbor() for item in read_sequence(stream)]
    (shell.directory / name).write_bytes(b"".join(exported))


def test_an_attestation_without_its_opening_is_told_by_its_commitments(shell, corpus):
    corpus("--policy", "policy.cose", "--owner-key", "owner.pub", "--principal", "patient-7", "--data-class", "clinic/notes")
    without_openings(shell, "exported.attest")
    opened, bare = (shell.json("attest", "show", name, "--record", "2") for name in (ATTESTATIONS, "exported.attest"))
    shown = flowing(shell.run("attest", "show", "exported.attest", "--record", "2").stdout)
    assert "A contributor who is not named here permits the corpus clinic-notes-2026" in shown
    assert "They tell nothing without the opening" in shown
    for secret in ("alice", "patient-7", "clinic/notes", opened["content_hash"], opened["nonce"]):
        assert secret not in shown and secret not in str(bare)
    assert opened["opened"] and not bare["opened"] and bare["committed"] == opened["committed"]
    assert sorted(bare["committed"]) == ["content", "contributor", "data_class", "principal"]
    for name in (*bare["committed"].values(), bare["descriptor_hash"], bare["key_id"]):
        assert name in shown
    hidden = {"contributor", "data_class", "principal", "content_hash", "nonce", "opened", "words", "checks"}
    assert {name for name in opened if opened[name] != bare[name]} <= hidden


def test_an_opened_attestation_says_what_stands_in_the_clear_in_an_export(shell, corpus):
    corpus()
    shown = flowing(shell.run("attest", "show", ATTESTATIONS, "--record", "1").stdout)
    assert "In an export everybody reads corpus, class, bounds, caps, limits, validity, key id and descriptor hash." in shown
    assert "Contributor, data class, principal and content stand there as commitments" in shown


def test_signatures_of_attestations_without_openings_are_verified_and_admission_is_not(shell, corpus):
    corpus()
    without_openings(shell, "exported.attest")
    show = ("attest", "show", "exported.attest", "--record", "1")
    for against in (("--pub", "alice.pub"), ("--registry", "registry.cbor"), ("--policy", "policy.cose")):
        assert outcomes(shell.json(*show, *against))["signature"] == ("passed", None)
    assert outcomes(shell.json(*show, "--policy", "policy.cose"))["admission"] == ("unchecked", None)
    assert outcomes(shell.json(*show, "--pub", "owner.pub", code=1))["signature"] == ("failed", "SIG_BAD")
    table = shell.json("attest", "show", "exported.attest", "--pub", "alice.pub")
    assert (table["verified"], table["failures"]) == (5, {})
    assert len(table["contributors"]) == 1 and "alice" not in str(table)
    shell.run("attest", "withdraw", "exported.attest", "--record", "1", "--key", "alice.key", code=1)


def test_an_opening_of_another_attestation_is_told_as_a_failure(shell, corpus):
    corpus()
    with (shell.directory / ATTESTATIONS).open("rb") as stream:
        first, second, *_ = read_sequence(stream)
    (shell.directory / "swapped.attest").write_bytes(replace(first, opening=second.opening).to_cbor() + second.to_cbor())
    table = shell.json("attest", "show", "swapped.attest", code=1)
    assert table["failures"] == {"OPENING": 1} and table["descriptors"][0]["failure"]["code"] == "OPENING"
