"""`dptrain ledger`: the record of a run is shown, exported, verified and reported, and withdrawals are entered."""

import pytest

from attest import keys
from attest.registry import open_registry
from attest.registry.log import RegistryMemory
from ledger.log import Ledger
from ledger.note import NoteSigner
from tests.worlds.commands import record

VERIFY = ("ledger", "verify", "export", "--key", "ledger.pub")


@pytest.fixture
def run(shell, corpus):
    """A finished run of 20 steps over five admitted notes; returns its ledger's verifier key."""
    corpus()
    return record(shell)


def test_show_tells_what_was_charged_and_spent(shell, run):
    answer = shell.json("ledger", "show", "ledger.db")
    assert (answer["charged_steps"], answer["steps"], answer["finished"]) == (20, 20, True)
    sensitive = answer["classes"][0]
    assert (sensitive["active"], sensitive["steps"], sensitive["blocks"]) == (5, 20, 2)
    planned = shell.json("plan", "policy.toml")["classes"][0]["preset"]["epsilon"]
    assert sensitive["epsilon"] == planned
    assert "20 steps charged of 20" in shell.run("ledger", "show", "ledger.db").stdout


def test_an_export_verifies_with_the_key_alone(shell, run):
    assert shell.json("ledger", "export", "ledger.db", "export")["key"] == run
    for pinned in ("ledger.pub", run):
        answer = shell.json("ledger", "verify", "export", "--key", pinned)
        assert answer["verdict"] == "TOLD" and answer["findings"] == []
    assert shell.json(*VERIFY, "--owner-key", "owner.pub")["verdict"] == "TOLD"
    printed = shell.run(*VERIFY).stdout
    assert printed.startswith("TOLD (NO_AUDITORS, UNCOMPARED, UNPINNED)  clinic-notes-2026/ledger\n")
    assert "\nUNPINNED " in printed and "--owner-key" in printed
    assert printed.rstrip().endswith("docs/auditors.md, What an audit cannot find")


def test_anything_but_full_ends_with_an_error_where_full_is_asked_for(shell, run):
    shell.run("ledger", "export", "ledger.db", "export")
    assert shell.json(*VERIFY, code=0)["verdict"] == "TOLD"
    assert shell.json(*VERIFY, "--require-full", code=1)["verdict"] == "TOLD"


def test_an_older_export_fails_where_its_size_or_a_later_one_is_known(shell, run):
    size = shell.json("ledger", "export", "ledger.db", "export")["size"]
    seen = (*VERIFY, "--remember", "seen")
    assert "UNCOMPARED" not in shell.json(*VERIFY, "--min-size", str(size))["qualifiers"]
    assert shell.json(*VERIFY, "--min-size", str(size + 1), code=1)["findings"][0]["code"] == "OLD"
    assert "nothing was remembered" in shell.run(*seen).stdout
    sign = ("attest", "withdraw", "corpus/notes.jsonl.attest", "--key", "owner.key", "--record", "1")
    made = shell.json(*sign)["withdrawals"][0]
    shell.run("ledger", "withdraw", "ledger.db", made["path"])
    shell.run("ledger", "export", "ledger.db", "later")
    assert f"extends the {size} leaves" in shell.run(*seen[:2], "later", *seen[3:]).stdout
    finding = shell.json(*seen, code=1)["findings"][0]
    assert finding["code"] == "BEHIND"
    evidence = next((shell.directory / "seen").glob("*.evidence"))
    assert str(evidence.name) in finding["sentence"]
    assert shell.json("ledger", "verify-proof", str(evidence), "--key", "ledger.pub")["verdict"] == "ROLLBACK"


def test_withdrawals_are_held_against_what_was_signed(shell, run):
    attestations = "corpus/notes.jsonl.attest"
    entitled = ("--attestations", attestations, "--registry", "registry.cbor")
    for key, number in (("alice.key", "2"), ("owner.key", "1")):
        made = shell.json("attest", "withdraw", attestations, "--key", key, "--record", number)["withdrawals"][0]
        shell.run("ledger", "withdraw", "ledger.db", made["path"], *entitled)
        (shell.directory / "withdrawals").mkdir(exist_ok=True)
        (shell.directory / made["path"]).rename(shell.directory / "withdrawals" / f"{number}.taken")
    shell.run("ledger", "export", "ledger.db", "export")
    assert "WITHDRAWALS_TOLD" in shell.json(*VERIFY)["qualifiers"]
    owners = shell.json(*VERIFY, "--withdrawals", "withdrawals")
    assert (owners["withdrawal_evidence"]["signed"], owners["withdrawal_evidence"]["shown"]) == (2, 1)
    both = shell.json(*VERIFY, "--withdrawals", "withdrawals", "--registry", "registry.cbor")
    assert both["withdrawal_evidence"] == {"signed": 2, "shown": 2, "missing": []}
    assert "WITHDRAWALS_TOLD" not in both["qualifiers"]
    assert [shell.json(*VERIFY, *more)["verdict"] for more in ((), ("--registry", "registry.cbor"))] == ["TOLD", "FULL"]
    shell.run("registry", "add", "other.cbor", "--pub", "alice.pub", "--class", "sensitive")
    other = shell.json(*VERIFY, "--withdrawals", "withdrawals", "--registry", "other.cbor", code=1)
    assert [finding["code"] for finding in other["findings"]] == ["REGISTRY_ROOT"]


def test_a_changed_byte_fails_verification_and_the_file_is_named(shell, run):
    shell.run("ledger", "export", "ledger.db", "export")
    (bundle,) = (shell.directory / "export/tile/entries").rglob("*.p/*")
    data = bytearray(bundle.read_bytes())
    data[len(data) // 2] ^= 1
    bundle.write_bytes(data)
    answer = shell.json(*VERIFY, code=1)
    assert answer["verdict"] == "FAILED"
    assert any("entries" in finding["where"] for finding in answer["findings"])
    assert shell.run(*VERIFY, code=1).stdout.startswith("FAILED")


def test_another_key_or_another_owner_fails_verification(shell, run):
    shell.run("ledger", "export", "ledger.db", "export")
    other = NoteSigner("clinic-notes-2026/ledger", keys.generate()).vkey
    assert shell.json("ledger", "verify", "export", "--key", other, code=1)["verdict"] == "FAILED"
    assert shell.json(*VERIFY, "--owner-key", "alice.pub", code=1)["verdict"] == "FAILED"


def test_what_is_no_key_is_wrong_use(shell, run):
    shell.run("ledger", "export", "ledger.db", "export")
    shell.run("ledger", "verify", "export", "--key", "nowhere.pub", code=2)


def test_keys_that_were_mistaken_for_each_other_are_wrong_use_and_no_verdict(shell, run):
    shell.run("ledger", "export", "ledger.db", "export")
    told = shell.json("ledger", "verify", "export", "--key", "owner.pub", code=2)["error"]["sentence"]
    assert "the public key of a person" in told and "ledger auditor-key owner.pub" in told
    shell.write("empty.pub", "# nobody yet\n")
    for other in ("empty.pub", "policy.toml"):
        assert "holds no verifier key" in shell.json("ledger", "verify", "export", "--key", other, code=2)["error"]["sentence"]
    swapped = shell.json(*VERIFY, "--owner-key", "ledger.pub", code=1)["error"]
    assert swapped["code"] == "FORMAT" and "key of a ledger" in swapped["sentence"]


def test_an_export_is_never_written_over_something(shell, run):
    shell.run("ledger", "export", "ledger.db", "export")
    assert shell.json("ledger", "export", "ledger.db", "export", code=1)["error"]["code"] == "EXISTS"


def test_a_run_with_a_test_key_is_shown_as_not_private_and_not_exported(shell, corpus):
    corpus()
    record(shell, private=False)
    assert "NOT PRIVATE" in shell.run("ledger", "show", "ledger.db").stdout
    assert shell.json("ledger", "export", "ledger.db", "export", code=1)["error"]["code"] == "NOT_PRIVATE"


def test_a_contributors_withdrawal_is_entered_once_and_exported(shell, run):
    attestations = "corpus/notes.jsonl.attest"
    made = shell.json("attest", "withdraw", attestations, "--key", "alice.key", "--record", "2")["withdrawals"][0]
    enter = ("ledger", "withdraw", "ledger.db", made["path"], "--attestations", attestations, "--registry", "registry.cbor")
    first, again = shell.json(*enter)["withdrawn"][0], shell.json(*enter)["withdrawn"][0]
    assert first == again and first["matched"] and first["descriptor_hash"] == made["descriptor_hash"]
    shown = shell.json("ledger", "show", "ledger.db")["classes"][0]
    assert (shown["active"], shown["withdrawn"]) == (4, 1)
    assert shell.json("gate", "policy.cose", "corpus", "--ledger", "ledger.db", code=1)["refused"] == {"WITHDRAWN": 1}
    shell.run("ledger", "export", "ledger.db", "export")
    assert shell.json(*VERIFY)["verdict"] == "TOLD"


def test_nobody_withdraws_for_another(shell, run):
    attestations = "corpus/notes.jsonl.attest"
    shell.run("attest", "keygen", "mallory")
    made = shell.json("attest", "withdraw", attestations, "--key", "mallory.key", "--record", "1")["withdrawals"][0]
    enter = ("ledger", "withdraw", "ledger.db", made["path"])
    assert shell.json(*enter, code=1)["error"]["code"] == "WITHDRAWAL_UNPROVEN"
    assert "code" in shell.json(*enter, "--attestations", attestations, "--registry", "registry.cbor", code=1)["error"]
    assert shell.json("ledger", "show", "ledger.db")["classes"][0]["withdrawn"] == 0


def test_withdrawals_are_checked_against_a_registry_that_the_run_knows(shell, run):
    attestations = "corpus/notes.jsonl.attest"
    made = shell.json("attest", "withdraw", attestations, "--key", "alice.key", "--record", "1")["withdrawals"][0]
    enter = ("ledger", "withdraw", "ledger.db", made["path"], "--attestations", attestations, "--registry")
    shell.run("registry", "add", "other.cbor", "--pub", "alice.pub", "--class", "sensitive")
    assert shell.json(*enter, "other.cbor", code=1)["error"]["code"] == "REGISTRY_ROOT"
    assert shell.json("ledger", "show", "ledger.db")["registry_root"] == shell.json("registry", "show", "registry.cbor")["root"]
    shell.run("registry", "add", "registry.cbor", "--pub", "owner.pub", "--class", "public")
    assert shell.json(*enter, "registry.cbor")["withdrawn"][0]["matched"]


def test_while_a_run_holds_the_ledger_the_message_says_where_withdrawals_go(shell, run):
    made = shell.json("attest", "withdraw", "corpus/notes.jsonl.attest", "--key", "owner.key", "--record", "1")["withdrawals"][
        0
    ]
    with Ledger.open("ledger.db", NoteSigner("clinic-notes-2026/ledger", keys.load_private_key("ledger.key"))):
        error = shell.json("ledger", "withdraw", "ledger.db", made["path"], code=1)["error"]
    assert "ledger.db.withdrawals/" in error["sentence"]


def test_the_owner_may_withdraw_without_the_attestation(shell, run):
    attestations = "corpus/notes.jsonl.attest"
    made = shell.json("attest", "withdraw", attestations, "--key", "owner.key", "--all", "--reason", "error")["withdrawals"]
    paths = [item["path"] for item in made]
    assert all(item["matched"] for item in shell.json("ledger", "withdraw", "ledger.db", *paths)["withdrawn"])


def test_the_ledgers_key_must_be_found_or_given(shell, run):
    (shell.directory / "ledger.key").rename(shell.directory / "log.key")
    assert "--ledger-key" in shell.run("ledger", "export", "ledger.db", "export", code=2).stderr
    shell.run("ledger", "export", "ledger.db", "export", "--ledger-key", "log.key")


def test_report_writes_one_page_with_the_verdict(shell, run):
    shell.run("ledger", "export", "ledger.db", "export")
    shell.write("extras.json", '{"results": []}')
    report = ("ledger", "report", "export", "report.html", "--key", "ledger.pub")
    assert shell.json(*report, "--extras", "extras.json")["verdict"] == "TOLD"
    page = (shell.directory / "report.html").read_text()
    assert "TOLD" in page and "<html" in page
    shell.run(*report, code=2)


def test_extras_of_another_form_are_refused(shell, run):
    shell.run("ledger", "export", "ledger.db", "export")
    for text in ("[1]", "{", "[" * 100_000, '{"gate": []}', '{"results": [{"a": 1}, 2]}'):
        shell.write("extras.json", text)
        report = ("ledger", "report", "export", "report.html", "--key", "ledger.pub", "--extras", "extras.json")
        assert shell.json(*report, code=1)["error"]["code"] == "EXTRAS"


def test_the_gate_takes_no_older_registry_than_the_run_of_the_ledger_began_with(shell, corpus):
    corpus()
    before = (shell.directory / "registry.cbor").read_bytes()
    shell.run("registry", "grant", "registry.cbor", "--contributor", "alice", "--class", "sensitive")
    record(shell)
    assert shell.json("gate", "policy.cose", "corpus", "--ledger", "ledger.db")["admitted"] == {"sensitive": 5}
    (shell.directory / "registry.cbor").write_bytes(before)
    (shell.directory / ".corpus.registry").unlink()  # what the gate itself remembers, and tells first
    assert shell.json("gate", "policy.cose", "corpus")["admitted"] == {"sensitive": 5}
    answer = shell.json("gate", "policy.cose", "corpus", "--ledger", "ledger.db", code=1)
    assert answer["error"]["code"] == "REGISTRY_ROOT" and "cut back" in answer["error"]["sentence"]


def test_an_export_takes_along_what_contributors_signed_and_the_registry_that_is_named(shell, run):
    answer = shell.json("ledger", "export", "ledger.db", "export", "--registry", "registry.cbor")
    assert answer["attestations"] is answer["registry"] is True
    export = shell.directory / "export"
    assert (export / "registry").read_bytes() == (shell.directory / "registry.cbor").read_bytes()
    assert not [path for path in export.rglob("*") if "names" in path.name]
    assert shell.json(*VERIFY, "--require-full")["verdict"] == "FULL"
    told = shell.json("ledger", "show", "export", "--key", "ledger.pub", "--header")
    named = [(item["role"], item["name"]) for item in told["parties"]]
    assert named == [("owner", "owner"), ("ledger", "clinic-notes-2026/ledger")]
    (contributor,) = told["contributors"]
    assert contributor["classes"] == ["sensitive"] and len(contributor["commitment"]) == 64 and len(contributor["keys"]) == 1
    assert "owner's word" in shell.run("ledger", "show", "export", "--key", "ledger.pub", "--header").stdout
    assert shell.json("ledger", "show", "ledger.db", "--header")["contributors"] is None
    printed = " ".join(shell.run("ledger", "export", "ledger.db", "again", "--registry", "registry.cbor").stdout.split())
    assert "with it: what its contributors signed, and the registry" in printed


def test_an_export_says_that_it_goes_without_a_registry_where_nobody_remembers_one(shell, run):
    printed = " ".join(shell.run("ledger", "export", "ledger.db", "export").stdout.split())
    assert "without a registry: nobody remembers" in printed and "--registry" in printed
    assert not (shell.directory / "export" / "registry").exists()


def test_the_registry_that_the_run_used_goes_along_by_itself(shell, run):
    owner = keys.load_public_key(shell.directory / "owner.pub")
    registry = open_registry(shell.directory / "registry.cbor", owner)
    RegistryMemory(shell.directory / "ledger.db.registry", "this ledger").keep(registry, shell.directory / "registry.cbor")
    assert shell.json("ledger", "export", "ledger.db", "export")["registry"] is True
    without = shell.json("ledger", "export", "ledger.db", "told", "--without-attestations")
    assert without["attestations"] is without["registry"] is False
    named = shell.json("ledger", "export", "ledger.db", "named", "--without-attestations", "--registry", "registry.cbor")
    assert (named["attestations"], named["registry"]) == (False, True)
    printed = " ".join(shell.run("ledger", "export", "ledger.db", "other", "--without-attestations").stdout.split())
    assert "without what contributors signed: an audit of it is TOLD at best" in printed


def test_a_registry_that_is_not_that_of_the_run_is_refused(shell, run):
    shell.write("other.cbor", "no registry")
    refused = shell.json("ledger", "export", "ledger.db", "export", "--registry", "other.cbor", code=1)
    assert refused["error"]["code"] == "REGISTRY" and not (shell.directory / "export").exists()
