"""Rows A1, A10, A15, A19, A21, A24, E2 and E4 of the attack lists, where a person reads what a document of somebody else says.

Times at which calendars end, names that move the cursor or turn the line around, headers that cost a gigabyte, a registry dated
ahead: no command breaks off, nothing that others wrote does anything on the screen, and what is wrong is told by name.
"""

import io
import re
import time
import unicodedata
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest

from attest import keys, sign1
from attest.attestation import Attestation
from attest.errors import RegistryRefused
from attest.gate import Refused, run_gate
from attest.registry import Entry, Grant, Registry, RegistryLog, SetClock, open_registry
from attest.registry.entries import join
from attest.schema.plain import AHEAD_SECONDS, MAX_TIME, day, in_words, utc, visible
from dptrain.cli.ledger import proofs as ledger_proofs
from dptrain.cli.ledger import show as ledger_show
from dptrain.cli.output import console
from dptrain.cli.results import print_text
from ledger.audit import verify_export
from ledger.errors import ReleaseRefused
from ledger.leaves import Withdraw
from ledger.log import Ledger
from ledger.note import Checkpoint, Signature
from ledger.release import check_release, release
from ledger.release.files import MAX_HEADER, MAX_TENSORS, digest_tensors, digested
from ledger.report import write_report
from ledger.report.shown import text as html_text
from ledger.report.shown import utc as html_utc
from tests.attacks.scene import descriptor, item_of, signed
from tests.worlds.commands import run_command
from tests.worlds.gate import ALICE, CONTENT, NOW, OWNER, RAW, make_policy
from tests.worlds.ledgers import SIGNER, START, Driver, admission, header_spec

NUMBERS = [0, 1, -1, MAX_TIME - 1, MAX_TIME, 10**12, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400, -(10**5000), 10**5000]
TRICKS = {
    "escape": "notes\x1b[2J\x1b[31m.attest",
    "C1": "notes\x9b31m.attest",
    "right to left": "notes\u202ecod.attest",
    "isolate": "notes\u2066.attest",
    "zero width": "no\u200btes.attest",
    "tag": "notes\U000e0041.attest",
    "line": "notes\u2028FULL.attest",
    "newline": "notes\n\nFULL verified.attest",
    "no text": "notes\udcff.attest",
}


def harmless(printed: str) -> None:
    """Nothing on the screen but letters and ends of lines."""
    printed.encode()
    assert not [char for char in printed if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and char != "\n"]


def run(*arguments: object, code: int = 0) -> str:
    """What a command prints, on both streams."""
    result = run_command([str(argument) for argument in arguments])
    assert result.exit_code == code and (result.exception is None or isinstance(result.exception, SystemExit)), result.output
    return result.output


# --- the formatters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: f"{number:x}"[:20])
def test_A19_every_integer_is_shown_as_a_time_or_as_what_it_is(number):
    for show in (utc, day, in_words, html_utc):
        shown = show(number)
        harmless(shown)
        assert shown == shown.strip() and 0 < len(shown) < 120
    assert ("no time" in utc(number)) == (not 0 <= number < MAX_TIME)


def test_A19_times_at_both_ends_of_the_calendar():
    assert utc(0) == "1970-01-01T00:00:00Z" and utc(MAX_TIME - 1) == "9999-12-31T23:59:59Z"
    assert in_words(0) == "Thursday 1 January 1970, 00:00 UTC" and day(86400) == "1970-01-02"
    assert utc(MAX_TIME).startswith("253402300800 s")


def test_A15_no_character_that_does_something_is_ever_shown_as_it_is():
    shown = visible("".join(map(chr, range(0x110000))))
    assert shown.isprintable() and not {unicodedata.category(char) for char in set(shown)} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    for char in "\x00\x1b\x7f\x9b\xa0\xad\u061c\u200b\u200f\u202e\u2028\u2066\ufeff\ufff9\ud800\udfff\U000e0041":
        assert visible(char) == char.encode("unicode_escape").decode()
    for char in "\u034f\u115f\u1160\u17b4\u180b\u180f\u2800\u3164\ufe0f\uffa0\U000e0100":  # printable, and drawn as nothing
        assert visible(f"a{char}b") == visible(f"a{char}b", longest=9) == f"a{char.encode('unicode_escape').decode()}b"
    for ordinary in ("Zoë Müller", "李小龙", "아름", "हिन्दी", "e\u0301", "naïve-run_1/2"):
        assert visible(ordinary) == ordinary
    assert visible("é\u202e\ud800", plain=True) == "\\xe9\\u202e\\ud800"
    assert visible("a\nb") == "a\\nb" and visible("a\nb", lines=True) == "a\nb"
    assert visible("x" * 100, longest=10) == "xxxxxxxxxx … (100 characters)"


@pytest.mark.parametrize("trick", TRICKS)
def test_A15_the_screen_of_every_command_lets_nothing_through(trick):
    screen = io.StringIO()
    with redirect_stdout(screen):
        console().print(f"wrote {TRICKS[trick]}")
    harmless(screen.getvalue())
    assert "wrote notes" in screen.getvalue() or "wrote no" in screen.getvalue()


# --- attestations -------------------------------------------------------------------------------------------------------


def attest_file(path: Path, **fields: int) -> Path:
    payload = descriptor({{"begin": 8, "end": 9}[name]: value for name, value in fields.items()})
    path.write_bytes(Attestation(payload, sign1.sign(payload, ALICE, contributor="alice")).to_cbor())
    return path


def test_A19_an_attestation_until_the_last_second_before_the_year_10000_is_shown(tmp_path):
    shown = run("attest", "show", attest_file(tmp_path / "x.attest", end=MAX_TIME - 1))
    assert "Friday 31 December 9999, 23:59 UTC" in " ".join(shown.split())
    (tmp_path / "y.attest").write_bytes(signed().to_cbor() + attest_file(tmp_path / "z", end=MAX_TIME - 1).read_bytes())
    assert "9999-12-31" in run("attest", "show", tmp_path / "y.attest")
    assert "RANGE" in run("attest", "show", attest_file(tmp_path / "v.attest", end=MAX_TIME), "--record", 1, code=1)


@pytest.mark.parametrize("trick", TRICKS)
def test_A15_a_file_name_that_moves_the_cursor_is_shown_and_does_nothing(tmp_path, trick):
    path = tmp_path / TRICKS[trick]
    path.write_bytes(signed().to_cbor() + signed(nonce=bytes(16)).to_cbor())
    for shown in (run("attest", "show", path), run("attest", "show", f"{path}x", code=2)):
        harmless(shown)
        assert "\nFULL verified" not in shown
    path.write_bytes(b"\x00")
    harmless(run("attest", "show", path, code=1))


@pytest.mark.parametrize("name", [".", "..", "...", "./a", "/etc", "-x", "_", ".hidden"])
def test_A1_a_key_is_made_in_the_directory_or_not_at_all(tmp_path, name):
    inside = tmp_path / "keys"
    inside.mkdir()
    run("attest", "keygen", "--dir", inside, "--", name, code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["keys"] and not list(inside.iterdir())
    run("attest", "keygen", "--dir", inside, "clinic/alice")
    assert sorted(path.name for path in inside.iterdir()) == ["clinic-alice.key", "clinic-alice.pub"]


# --- ledgers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [MAX_TIME, 10**12, 2**62], ids=str)
def test_A19_a_leaf_and_a_cosignature_at_any_time_are_shown(number, capsys):
    leaf = Withdraw(1, START, bytes(32), None, "consent", bytes(32))
    object.__setattr__(leaf, "time", number)
    key = replace(SIGNER.verifier, name="anna\x1b[2J")
    ledger_proofs.LeafShown(leaf, Checkpoint("a\u202erun", 2, bytes(32)), (Signature(key, number),)).print(as_json=False)
    printed = capsys.readouterr().out
    harmless(printed)
    assert f"{number} s" in printed


@pytest.fixture(scope="module")
def export(tmp_path_factory) -> Path:
    base = tmp_path_factory.mktemp("shown")
    with Ledger.create(base / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        Driver(ledger).whole_run()
        return ledger.export(base / "export")


def test_A19_an_audit_with_any_times_and_words_makes_a_page_and_a_screen(export, tmp_path, capsys):
    report = verify_export(export, [SIGNER.vkey])
    word = "".join(TRICKS.values()) + "<script>"
    report = replace(
        report,
        origin=word,
        notes=(word,),
        epochs=tuple(replace(row, time=10**12, model_digest=word) for row in report.epochs),
        signers=tuple(replace(row, name=word, time=2**62) for row in report.signers),
        withdrawals=tuple(replace(row, time=10**400, reason=word) for row in report.withdrawals),
    )
    print_text(ledger_show.audit_text(report))
    harmless(capsys.readouterr().out)
    page = write_report(export, tmp_path / "report.html", report=report).read_text(encoding="utf-8")
    harmless(page)
    assert "<script>" not in page and "1000000000000 s" in page
    assert html_text("\x1b\u202e<") == "\\x1b\\u202e&lt;"


def test_A21_commands_say_what_time_it_is_for_an_auditor(export):
    key = ("--key", SIGNER.vkey)
    for command in (("verify", export), ("show", export)):
        assert "CLOCK" in run("ledger", *command, *key, "--now", "2025-01-02", code=1)
        run("ledger", *command, *key, "--now", "2026-01-01")
    assert "STALE" in run("ledger", "verify", export, *key, "--now", "2026-01-01", "--max-age", "7d", code=1)
    run("ledger", "verify", export, *key, "--now", "2025-06-16", "--max-age", "48h")
    run("ledger", "verify", export, *key, "--now", "9" * 5000, code=2)


# --- releases -----------------------------------------------------------------------------------------------------------


def weights(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def empty_tensors(count: int, word: str = "data_offsets") -> bytes:
    tail = '":{"dtype":"F32","shape":[0],"' + word + '":[0,0]}'
    return ("{" + ",".join(f'"{n:x}{tail}' for n in range(count)) + "}").encode()


def test_E4_a_header_of_a_million_empty_tensors_is_refused_before_it_is_read():
    claimed = (MAX_HEADER + 1).to_bytes(8, "little")
    stream = io.BytesIO(claimed + bytes(64))
    with pytest.raises(ReleaseRefused, match=f"{MAX_HEADER} at most"):
        digest_tensors(stream.read, 1 << 40, "model.safetensors")
    assert stream.tell() == 8
    data = weights(empty_tensors(MAX_TENSORS + 1))
    started = time.thread_time()
    with pytest.raises(ReleaseRefused, match=f"{MAX_TENSORS} at most in one file"):
        digest_tensors(io.BytesIO(data).read, len(data), "model.safetensors")
    assert time.thread_time() - started < 0.5, "the names are not read first"
    data = weights(empty_tensors(MAX_TENSORS + 1, "d\\u0061ta_offsets"))
    assert len(data) < MAX_HEADER
    with pytest.raises(ReleaseRefused, match=f"{MAX_TENSORS} at most in one file"):
        digest_tensors(io.BytesIO(data).read, len(data), "model.safetensors")
    good = weights(empty_tensors(100))
    assert len(digest_tensors(io.BytesIO(good).read, len(good), "model.safetensors")) == 100


def test_E4_half_a_character_in_the_name_of_a_tensor_does_not_hide_the_file(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    good = b'{"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    (model / "adapter.safetensors").write_bytes(weights(good.replace(b"w", b"\\ud800")))
    with pytest.raises(ReleaseRefused) as caught:
        digested(model, "adapter.safetensors")
    assert caught.value.code == "SAFETENSORS" and "adapter.safetensors" in caught.value.sentence
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1))
        driver.steps(2)
        driver.epoch()
        with pytest.raises(ReleaseRefused, match=re.escape("adapter.safetensors")):
            release(ledger, model, now=driver.tick())
        (model / "adapter.safetensors").write_bytes(weights(good))
        release(ledger, model, now=driver.tick())
    (model / "adapter.safetensors").write_bytes(weights(good.replace(b"w", b"\\ud800")))
    found = check_release(model, [SIGNER.vkey]).findings
    assert [(item.code, item.where) for item in found] == [("CHANGED_FILE", "adapter.safetensors")]
    harmless(run("release", "--check", model, "--key", SIGNER.vkey, code=1))


def test_E4_a_release_dated_ahead_of_the_readers_clock_is_FAILED(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1))
        driver.steps(2)
        driver.epoch()
        release(ledger, model, now=driver.tick())
    late = driver.now + 10
    assert check_release(model, [SIGNER.vkey], now=late).verdict == "TOLD"
    found = check_release(model, [SIGNER.vkey], now=START - AHEAD_SECONDS - 10)
    assert found.verdict == "FAILED" and {item.code for item in found.findings} == {"CLOCK"}


# --- the registry -------------------------------------------------------------------------------------------------------


@pytest.fixture
def ahead(tmp_path) -> tuple[RegistryLog, Path]:
    """A registry whose owner granted something while its clock was fifty years ahead."""
    path = tmp_path / "registry.cbor"
    log = RegistryLog.create(path, OWNER, owner="owner", now=NOW - 10)
    log.enrol("alice", RAW["alice"], classes=("sensitive",), not_before=NOW - 1000, not_after=NOW + 10**6, now=NOW - 9)
    log.grant("alice", classes=("open", "sensitive"), cap=None, now=NOW + 50 * 365 * 86400)
    return log, path


def test_A24_a_registry_dated_ahead_admits_nobody_and_says_the_way_out(ahead, tmp_path):
    log, path = ahead
    policy = replace(make_policy(log.registry), registry_root=log.registry.root())
    (refused,) = run_gate([item_of(signed(), CONTENT)], policy, log.registry, now=NOW).refused
    assert isinstance(refused, Refused) and str(refused.refusal.code) == "CLOCK"
    assert "registry set-clock" in refused.refusal.sentence
    with pytest.raises(RegistryRefused) as caught:
        log.revoke("alice", at=NOW, now=NOW)
    assert caught.value.code == "CLOCK" and "registry set-clock" in caught.value.sentence
    keys.save_public_key(tmp_path / "owner.pub", keys.public_bytes(OWNER), "owner")
    assert "CLOCK" in run("registry", "verify", path, "--now", NOW, code=1)
    run("registry", "verify", path, "--now", NOW + 51 * 365 * 86400)


def test_A24_the_owner_takes_a_time_back_by_an_entry_that_says_so_and_revokes(ahead):
    log, path = ahead
    before = log.registry
    log.set_clock("the owner's clock was fifty years ahead", now=NOW)
    log.revoke("alice", at=NOW, now=NOW + 1)
    read = open_registry(path, keys.public_bytes(OWNER))
    assert read == log.registry and read.time == NOW + 1 and read.extends(before.root())
    assert not read.keys_valid_at("alice", NOW + 1)
    read.require_not_ahead(NOW)
    with pytest.raises(RegistryRefused) as caught:
        log.set_clock("again", now=NOW)
    assert caught.value.code == "CLOCK_UNNEEDED"


def entry_of(registry: Registry, moment: int, *actions: object) -> bytes:
    payload = Entry(len(registry.roots), registry.root(), moment, actions).to_cbor()
    return join([(payload, sign1.sign(payload, OWNER, contributor="owner", typ=sign1.TYP_REGISTRY))])


@pytest.mark.parametrize(
    ("moment", "actions", "code"),
    [
        (NOW, lambda last: [Grant("alice", ["open"], None)], "CLOCK"),
        (NOW, lambda last: [SetClock(last - 1, "another time before")], "CLOCK"),
        (None, lambda last: [SetClock(last, "no step at all")], "CLOCK"),
        (None, lambda last: [Grant("alice", ["open"], None), SetClock(last, "not the first")], "SCHEMA"),
        (NOW, lambda last: [SetClock(last, "twice"), SetClock(last, "in one")], "SCHEMA"),
        (NOW, lambda last: [SetClock(last, "")], "TYPE"),
        (NOW, lambda last: [SetClock(last, "x\x1b[2J")], "TYPE"),
        (NOW, lambda last: [SetClock(last, "x" * 201)], "TYPE"),
        (NOW, lambda last: [SetClock(float(last), "a float")], "CBOR"),
    ],
)
def test_A24_a_registry_whose_time_runs_back_otherwise_is_refused(ahead, moment, actions, code):
    log, path = ahead
    last = log.registry.time
    try:
        data = entry_of(log.registry, last if moment is None else moment, *actions(last))
    except ValueError:
        return
    path.write_bytes(path.read_bytes() + data)
    with pytest.raises(RegistryRefused) as caught:
        open_registry(path, keys.public_bytes(OWNER))
    assert caught.value.code in (code, "TYPE")
