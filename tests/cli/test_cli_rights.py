"""`dptrain rights`: what it signs opens the gate for the one it names, and it says what was granted."""

from pathlib import Path

import pytest

from attest import keys
from ledger.errors import RightsRefused
from ledger.serving import InferenceGate
from tests.worlds.commands import Shell
from tests.worlds.serving import CHAT, HOLDER, KEYS, NAME, serve

SIGN = ("rights", "sign", "--key", "office.key", "--audience", NAME, "--holder", HOLDER, "--told")


@pytest.fixture
def office(shell: Shell) -> Shell:
    """A shell beside the key of who grants rights."""
    shell.run("attest", "keygen", "office")
    return shell


def test_what_the_command_signs_admits_its_holder_to_what_it_names(office: Shell, tmp_path: Path) -> None:
    made = office.json(*SIGN, "--allow", "open", "--allow", "sensitive=1000", "--generation", "chat")
    (tmp_path / "served").mkdir()
    granters = [keys.load_public_key("office.pub")]
    gate = InferenceGate.open(serve(tmp_path / "served").adapters, KEYS, name=NAME, classes=CHAT, granters=granters)
    data = Path(made["path"]).read_bytes()
    admission = gate.admit("chat", data, holder=HOLDER)
    assert (admission.artifact, admission.granter, admission.serial.hex()) == ("adapter:one", "office", made["serial"])
    gate.revoke([bytes.fromhex(made["serial"])])
    with pytest.raises(RightsRefused, match="REVOKED"):
        gate.admit("chat", data, holder=HOLDER)


def test_epsilons_are_rounded_down_and_what_is_not_said_is_not_allowed(office: Shell) -> None:
    made = office.json(*SIGN[:-1], "--allow", "open=1.2345678")
    assert made["classes"] == {"open": 1.234567} and made["generation"] == []
    assert not any(made[flag] for flag in ("withdrawn", "untied", "told", "code"))
    assert made["expires"] - made["not_before"] == 30 * 86400


def test_a_person_reads_who_may_be_answered_from_what_and_until_when(office: Shell) -> None:
    allowed = ("--allow", "open=4", "--allow", "sensitive", "--generation", "chat", "--withdrawn")
    said = office.run(*SIGN, *allowed, "--not-before", "2026-11-30", "--days", "2").stdout
    assert f"rights of {HOLDER} at the gate {NAME}, from 2026-11-30T00:00:00Z up to 2026-12-02T00:00:00Z" in said
    assert "may ask: chat" in said and "also allowed: a release whose bounds are its operator's word (TOLD)" in said
    assert "also allowed: classes of which a contribution was withdrawn" in said and "can carry code" not in said
    shown = office.run("rights", "show", f"{HOLDER}.rights").stdout
    assert "not verified" in shown and "any" in shown
    known = ("rights", "verify", f"{HOLDER}.rights", "--key", "office.pub", "--audience", NAME)
    assert "holds at 2026-11-30" in office.run(*known, "--at", "2026-11-30").stdout
    assert "EXPIRED" in office.run(*known, "--at", "2026-12-02", code=1).output


def test_rights_that_allow_nothing_say_so(office: Shell) -> None:
    said = office.run(*SIGN[:-1]).stdout
    assert "may ask: nothing" in said and "no class may have had influence" in said and "also allowed" not in said


def test_what_nobody_signed_is_shown_to_nobody_as_verified(office: Shell) -> None:
    office.run("attest", "keygen", "mallory")
    office.run(*SIGN)
    path = Path(f"{HOLDER}.rights")
    assert office.json("rights", "show", str(path))["verified"] is False
    known = ("rights", "verify", str(path), "--key", "mallory.pub", "--audience", NAME)
    assert office.json(*known, code=1)["error"]["code"] == "KEY"
    assert office.json(*known, "--key", "office.pub")["verified"] is True
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert office.json(*known, "--key", "office.pub", code=1)["error"]["code"] == "SIGNATURE"
