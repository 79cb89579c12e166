"""The inference gate against whoever serves, carries or asks: nothing opens, admits or loads that the ledger does not cover."""

import dataclasses
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attest import cbor
from attest.errors import KeyRefused
from attest.keys import public_bytes
from ledger.errors import ReleaseRefused, RightsRefused
from ledger.note import NoteSigner
from ledger.release import MANIFEST, Rights, release
from ledger.release.manifest import sign_manifest
from ledger.serving import InferenceGate
from ledger.serving import gate as room
from tests.worlds.ledgers import OTHER_KEY, SIGNER, admission
from tests.worlds.serving import (
    ALL,
    BOTH,
    CHAT,
    HOLDER,
    NAME,
    NOW,
    STRANGER,
    Served,
    driver_of,
    gate_of,
    model,
    safetensors,
    serve,
    signed,
    values,
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return serve(tmp_path_factory.mktemp("served"))


@pytest.fixture
def copied(served: Served, tmp_path: Path) -> Path:
    """A release that a test may spoil."""
    return Path(shutil.copytree(served.adapters, tmp_path / "copied"))


@pytest.fixture
def gate(served: Served) -> InferenceGate:
    return gate_of(served.adapters)


def refusal(call: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    with pytest.raises((ReleaseRefused, RightsRefused)) as caught:
        call(*arguments, **named)
    assert caught.value.sentence
    return caught.value.code


def asked(gate: InferenceGate, rights: Rights | bytes | None = None, generation: str = "chat", **named: Any) -> str:
    """The code of a refusal."""
    given = {"holder": HOLDER} | named
    return refusal(gate.admit, generation, signed() if rights is None else rights, **given)


# --- opening ----------------------------------------------------------------------------------------------------------------


def test_a_gate_opens_over_a_release_that_its_ledger_covers_and_says_what_it_admits(served: Served) -> None:
    gate = gate_of(served.whole)
    admission = gate.admit("chat", signed(), holder=HOLDER)
    assert (admission.artifact, admission.generation_class, admission.holder) == ("adapter:one", "chat", HOLDER)
    assert (admission.serial, admission.granter, admission.time) == (bytes(range(16)), "data-office", NOW)
    told = json.loads(json.dumps(admission.told()))
    assert (told["artifact"], told["serial"], told["ledger_size"]) == ("adapter:one", bytes(range(16)).hex(), gate.ledger_size)
    assert told["epsilon"] == {one.name: one.epsilon_micro / 1e6 for one in admission.certificate}
    assert [one.name for one in admission.certificate] == ["open", "sensitive"]
    assert all(one.epsilon_micro for one in admission.certificate), "all adapters are active in every forward"
    assert [file.path for file in admission.files] == [
        "config.json", "one/adapter_config.json", "one/adapter_model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    base = gate.admit("public", Rights(told=True))
    assert (base.artifact, base.certificate, base.serial, base.holder) == ("base", (), None, None)
    assert [file.path for file in base.files] == ["config.json", "model.safetensors", "tokenizer.json"]


def test_the_base_of_a_release_of_adapters_alone_has_no_files(gate: InferenceGate) -> None:
    assert gate.admit("public", Rights(told=True)).files == ()


def no_manifest(directory: Path) -> None:
    (directory / MANIFEST).unlink()


def another_manifest(directory: Path) -> None:
    (directory / MANIFEST).write_bytes((directory / MANIFEST).read_bytes()[:-1] + b"\0")


def another_schema(directory: Path) -> None:
    payload = cbor.decode(cbor.decode((directory / MANIFEST).read_bytes(), max_size=1 << 20)[0], max_size=1 << 20)

    class Later:
        def to_cbor(self) -> bytes:
            return cbor.encode(payload | {1: "dptrain.release/2"})

    (directory / MANIFEST).write_bytes(sign_manifest(Later(), SIGNER))  # type: ignore[arg-type]


def changed_weights(directory: Path) -> None:
    path = directory / "one" / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")


def traded_weights(directory: Path) -> None:
    one, two = (directory / name / "adapter_model.safetensors" for name in ("one", "two"))
    one.write_bytes(two.read_bytes())


def missing_weights(directory: Path) -> None:
    (directory / "one" / "adapter_model.safetensors").unlink()


def linked_weights(directory: Path) -> None:
    path = directory / "one" / "adapter_model.safetensors"
    path.rename(directory.parent / "elsewhere")
    path.symlink_to(directory.parent / "elsewhere")


def another_file(directory: Path) -> None:
    (directory / "one" / "pytorch_model.bin").write_bytes(b"code")


def no_export(directory: Path) -> None:
    shutil.rmtree(directory / "export")


def changed_export(directory: Path) -> None:
    (path,) = (directory / "export" / "tile" / "entries").rglob("*.p/*")
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")


SPOILED = {
    no_manifest: {"NO_MANIFEST"},
    another_manifest: {"SIG_BAD", "MANIFEST"},
    another_schema: {"SCHEMA"},
    changed_weights: {"CHANGED_FILE"},
    traded_weights: {"CHANGED_FILE"},
    missing_weights: {"MISSING_FILE"},
    linked_weights: {"NOT_A_FILE"},
    another_file: {"UNKNOWN_FILE"},
    no_export: {"NOT_CHECKED"},
    changed_export: {"LEAF", "TILE", "ROOT", "BUNDLE"},
}


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda spoil: spoil.__name__)
def test_a_gate_does_not_open_over_what_is_missing_changed_or_unknown(copied: Path, spoil: Callable[[Path], None]) -> None:
    assert gate_of(copied)
    spoil(copied)
    assert refusal(gate_of, copied) in SPOILED[spoil]


def test_a_gate_does_not_open_below_the_size_it_pinned_ahead_of_its_clock_or_under_other_keys(served: Served) -> None:
    size = gate_of(served.adapters).posture()["size"]
    assert gate_of(served.adapters, minimum_size=size)
    assert refusal(gate_of, served.adapters, minimum_size=size + 1) == "OLD"
    assert refusal(gate_of, served.adapters, now=NOW - 20_000) in {"CLOCK", "TIME"}
    assert refusal(gate_of, served.adapters, require_quorum=True)
    assert refusal(gate_of, served.adapters, owner_key=public_bytes(STRANGER))
    other = SIGNER.vkey.replace(SIGNER.name, "ledger.example/other")
    for keys in ([], [other]):
        refusal(InferenceGate.open, served.adapters, keys, name=NAME, classes=CHAT, now=NOW)
    assert refusal(gate_of, served.base / "nowhere") == "NO_MANIFEST"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"classes": {}}, "CLASSES"),
        ({"classes": {"chat": []}}, "CLASSES"),
        ({"classes": {"chat": ["adapter:three"]}}, "ARTIFACT"),
        ({"classes": {"Chat": ["base"]}}, "RANGE"),
        ({"name": "My gate"}, "RANGE"),
        ({"revoked": [bytes(15)]}, "TYPE"),
        ({"revoked": ["00" * 16]}, "TYPE"),
    ],
)
def test_a_gate_does_not_open_with_settings_that_say_nothing(served: Served, changes: dict[str, Any], code: str) -> None:
    assert refusal(gate_of, served.adapters, **changes) == code


def test_a_gate_takes_no_unsound_key_of_who_grants_rights(served: Served) -> None:
    with pytest.raises(KeyRefused):
        gate_of(served.adapters, granters=[bytes(32)])


def test_an_adapter_that_no_file_holds_alone_has_no_gate(tmp_path: Path) -> None:
    """Whoever loads the one would load the other, which the rights may not allow."""
    directory = tmp_path / "both"
    directory.mkdir()
    tensors = {name: values(name) for name in ("layers.0.one", "layers.0.two")}
    (directory / "model.safetensors").write_bytes(safetensors(tensors))
    driver = driver_of(tmp_path / "ledger.db")
    with driver.ledger as ledger:
        ledger.finish(now=driver.tick())
        release(ledger, directory, now=driver.tick())
    assert gate_of(directory, classes={"chat": ["full"]}).admit("chat", ALL).artifact == "full"
    assert refusal(gate_of, directory, classes={"chat": ["adapter:one"]}) == "FILES"


# --- asking -----------------------------------------------------------------------------------------------------------------


def test_a_query_is_routed_to_what_its_rights_allow(gate: InferenceGate) -> None:
    for classes in ({}, {"open": None}, {"open": None, "sensitive": 1}):
        assert gate.admit("chat", signed(classes), holder=HOLDER).artifact == "base"
        assert asked(gate, signed(classes), "one") in {"CLASS", "EPSILON"}
    spent = {one.name: one.epsilon_micro for one in gate.admit("one", ALL).certificate}
    assert gate.admit("one", signed(spent), holder=HOLDER).artifact == "adapter:one"
    for name in spent:
        assert asked(gate, signed(spent | {name: spent[name] - 1}), "one") == "EPSILON"
    assert asked(gate, signed(told=False)) == "NOT_CHECKED", "without told, no release whose bounds are its operator's word"


def test_rights_are_judged_at_every_query_though_their_signature_is_remembered(served: Served, monkeypatch) -> None:
    clock, verified = [NOW], []
    straight = room.read_rights
    monkeypatch.setattr(room, "read_rights", lambda *given: verified.append(1) or straight(*given))
    gate = gate_of(served.adapters, now=lambda: clock[0])
    data = signed(expires=NOW + 10)
    for _ in range(5):
        assert gate.admit("chat", data, holder=HOLDER)
    assert len(verified) == 1
    assert asked(gate, data, holder="client-8") == "HOLDER" and asked(gate, data, holder=None) == "HOLDER"
    assert asked(gate, data, "public") == "GENERATION"
    clock[0] = NOW + 10
    assert asked(gate, data) == "EXPIRED"
    clock[0] = NOW
    assert asked(gate, data) == "EXPIRED", "the clock was put back"
    longer = signed(expires=NOW + 100)
    assert gate.admit("chat", longer, holder=HOLDER)
    gate.revoke([bytes(range(16))])
    assert asked(gate, longer) == "REVOKED" and asked(gate, data) == "REVOKED"
    assert refusal(gate.revoke, [b"short"]) == "TYPE"
    assert len(verified) == 2


def test_a_gate_remembers_verified_envelopes_alone_and_not_too_many(served: Served, monkeypatch) -> None:
    monkeypatch.setattr(room, "KEPT_ENVELOPES", 3)
    gate = gate_of(served.adapters)
    for number in range(6):
        gate.admit("chat", signed(serial=bytes([number]) * 16), holder=HOLDER)
        asked(gate, signed(key=STRANGER, serial=bytes([number]) * 16))
    kept = gate._verified.values()
    assert [granted.envelope.serial[0] for granted in kept] == [3, 4, 5]
    gate.admit("chat", signed(serial=bytes([3]) * 16), holder=HOLDER)
    gate.admit("chat", signed(serial=bytes([9]) * 16), holder=HOLDER)
    assert [granted.envelope.serial[0] for granted in kept] == [5, 3, 9], "what was used last stays"


def test_revoked_serials_that_were_given_at_the_opening_count(served: Served) -> None:
    assert asked(gate_of(served.adapters, revoked=[bytes(range(16))])) == "REVOKED"


@pytest.mark.parametrize(
    ("rights", "code"),
    [
        (signed(key=STRANGER), "KEY"),
        (signed(audience="house/other"), "AUDIENCE"),
        (signed(holder="client-8"), "HOLDER"),
        (signed(not_before=NOW + 1), "NOT_YET"),
        (signed(expires=NOW), "EXPIRED"),
        (signed(generation=()), "GENERATION"),
        (signed(generation=["public"]), "GENERATION"),
        (signed() + b"\0", "MALFORMED"),
        (b"", "MALFORMED"),
        (None, "MALFORMED"),
        ({"classes": BOTH}, "MALFORMED"),
        ("signed", "MALFORMED"),
    ],
)
def test_rights_that_do_not_hold_admit_nobody(gate: InferenceGate, rights: Any, code: str) -> None:
    assert refusal(gate.admit, "chat", rights, holder=HOLDER) == code


def test_a_gate_without_granters_takes_no_envelope(served: Served) -> None:
    gate = gate_of(served.adapters, granters=())
    assert asked(gate) == "KEY" and gate.admit("chat", ALL).artifact == "adapter:one"


@pytest.mark.parametrize("generation", ["", "Chat", "chat ", None, "adapter:one"])
def test_a_generation_class_that_the_gate_does_not_have_is_refused(gate: InferenceGate, generation: Any) -> None:
    assert asked(gate, ALL, generation) == "NO_SUCH_CLASS"


def test_an_admission_cannot_be_changed(gate: InferenceGate) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        gate.admit("chat", ALL).artifact = "full"  # type: ignore[misc]


def test_many_threads_are_judged_as_one_is(served: Served) -> None:
    gate = gate_of(served.adapters)
    envelopes, found = [signed(serial=bytes([number]) * 16) for number in range(8)], []

    def work(own: int) -> None:
        for number in range(200):
            data = envelopes[(own + number) % 8]
            found.append(gate.admit("chat", data, holder=HOLDER).serial == bytes([(own + number) % 8]) * 16)

    threads = [threading.Thread(target=work, args=(own,)) for own in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 800 and all(found)


# --- withdrawals ------------------------------------------------------------------------------------------------------------


def test_a_withdrawal_refuses_what_its_class_may_have_influenced_from_the_refresh_on(served: Served) -> None:
    gate = gate_of(served.adapters)
    before = gate.admit("chat", signed(), holder=HOLDER)
    gate.refresh(served.later[0])
    after = gate.admit("chat", signed(), holder=HOLDER)
    assert (before.artifact, after.artifact) == ("adapter:one", "base")
    assert before.ledger_size < after.ledger_size == gate.ledger_size
    assert asked(gate, None, "one") == "WITHDRAWN"
    assert gate.posture()["withdrawn_classes"] == ["open"]
    kept = gate.admit("one", signed(withdrawn=True), holder=HOLDER)
    assert kept.posture.withdrawn_classes == ("open",)
    gate.refresh(served.later[1])
    assert gate.posture()["withdrawn_classes"] == ["open", "sensitive"]
    assert gate.posture()["newer_withdrawals"] == 2


def test_a_gate_that_opens_by_a_newer_export_knows_its_withdrawals(served: Served) -> None:
    assert asked(gate_of(served.adapters, export=served.later[0]), None, "one") == "WITHDRAWN"


def test_who_was_admitted_after_a_release_and_withdrew_is_not_in_it(tmp_path: Path) -> None:
    driver = driver_of(tmp_path / "ledger.db")
    with driver.ledger as ledger:
        release(ledger, model(tmp_path / "early"), now=driver.tick())
        driver.admit(admission(9))
        driver.withdraw(9)
        quiet = ledger.export(tmp_path / "quiet")
        driver.withdraw(99)
        unknown = ledger.export(tmp_path / "unknown")
    gate = gate_of(tmp_path / "early")
    gate.refresh(quiet)
    told = gate.posture()
    assert (told["newer_withdrawals"], told["withdrawn_classes"]) == (1, [])
    assert gate.admit("one", ALL).artifact == "adapter:one"
    gate.refresh(unknown)
    assert gate.posture()["withdrawn_classes"] == ["open", "sensitive"], "of whom nothing is known may have been anybody"


def test_the_same_export_again_changes_nothing(served: Served) -> None:
    gate = gate_of(served.adapters, export=served.later[0])
    gate.refresh(served.later[0])
    assert gate.closed is None and gate.admit("chat", ALL).artifact == "base"


def test_an_older_export_is_refused_and_closes_the_gate_until_a_newer_one_passes(served: Served) -> None:
    """The old one lacks a withdrawal; so does the gate's own state, for all it knows."""
    gate = gate_of(served.adapters, export=served.later[1])
    assert refusal(gate.refresh, served.later[0]) == "BEHIND" == gate.closed
    assert asked(gate, ALL, "public") == "GATE_CLOSED"
    assert gate.posture()["closed"]["code"] == "BEHIND"
    gate.refresh(served.later[1])
    assert gate.closed is None and gate.admit("public", ALL).artifact == "base"


def test_a_fork_closes_the_gate_for_good(served: Served) -> None:
    gate = gate_of(served.adapters, export=served.later[0])
    assert refusal(gate.refresh, served.forked) == "FORKED"
    assert asked(gate, ALL, "public") == "GATE_CLOSED"
    for export in served.later:
        assert refusal(gate.refresh, export) == "FORKED" == gate.closed
    assert asked(gate, ALL, "public") == "GATE_CLOSED"


@pytest.mark.parametrize("spoil", ["missing", "empty", "changed", "other ledger", "release changed", "fault"])
def test_a_refresh_that_fails_for_any_reason_closes_the_gate(
    served: Served, copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    gate, export = gate_of(copied), tmp_path / "export"
    if spoil == "empty":
        export.mkdir()
    elif spoil in ("changed", "release changed", "fault"):
        shutil.copytree(served.later[0], export)
    elif spoil == "other ledger":
        driver = driver_of(tmp_path / "ledger.db")
        with driver.ledger as ledger:
            ledger.export(export)
    if spoil == "changed":
        (export / "checkpoint").write_bytes(b"nothing")
    elif spoil == "release changed":
        changed_weights(copied)
    elif spoil == "fault":
        monkeypatch.setattr(room, "read_export", lambda path: 1 / 0)
    code = refusal(gate.refresh, export)
    assert gate.closed == code and (code == "INTERNAL") == (spoil == "fault")
    assert asked(gate, ALL, "public") == "GATE_CLOSED"


def test_another_release_in_the_same_place_is_not_taken_for_the_one_that_was_opened(served: Served, copied: Path) -> None:
    gate = gate_of(copied)
    shutil.rmtree(copied)
    shutil.copytree(served.whole, copied)
    assert gate_of(copied, export=served.later[0])
    assert refusal(gate.refresh, served.later[0]) == "OTHER_RELEASE"


def test_an_export_that_another_key_signed_is_no_newer_export(served: Served, tmp_path: Path) -> None:
    gate = gate_of(served.adapters)
    driver = driver_of(tmp_path / "ledger.db", NoteSigner(SIGNER.name, OTHER_KEY))
    with driver.ledger as ledger:
        export = ledger.export(tmp_path / "export")
    assert refusal(gate.refresh, export) and asked(gate, ALL, "public") == "GATE_CLOSED"


# --- loading ----------------------------------------------------------------------------------------------------------------

WEIGHTS = "one/adapter_model.safetensors"


def test_what_is_loaded_is_what_was_released(served: Served, tmp_path: Path) -> None:
    gate = gate_of(served.whole)
    admission = gate.admit("one", ALL)
    places = gate.resolve(admission)
    copy = gate.copy(admission, tmp_path / "copy")
    assert (copy.stat().st_mode & 0o777) == 0o700
    assert {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()} == set(places)
    for file in admission.files:
        data = (served.whole / file.path).read_bytes()
        assert gate.load(admission, file.path) == places[file.path].read_bytes() == (copy / file.path).read_bytes() == data


SWAPS = [changed_weights, traded_weights, missing_weights, linked_weights, "longer", "shorter", "pipe"]


@pytest.mark.parametrize("swap", SWAPS)
def test_a_file_that_was_swapped_after_the_check_is_not_loaded(copied: Path, tmp_path: Path, swap: Any) -> None:
    gate = gate_of(copied)
    admission = gate.admit("one", ALL)
    path = copied / WEIGHTS
    if callable(swap):
        swap(copied)
    elif swap == "pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        data = path.read_bytes()
        path.write_bytes(data + b"\0" if swap == "longer" else data[:-1])
    assert refusal(gate.load, admission, WEIGHTS) == "CHANGED_FILE"
    assert refusal(gate.resolve, admission) == "CHANGED_FILE"
    assert refusal(gate.copy, admission, tmp_path / "copy") == "CHANGED_FILE"
    assert not (tmp_path / "copy" / WEIGHTS).exists()
    assert gate.load(admission, "tokenizer.json") == b"{}"


def test_nothing_is_loaded_that_was_not_admitted(served: Served) -> None:
    gate = gate_of(served.whole)
    one, base = gate.admit("one", ALL), gate.admit("public", ALL)
    for path in ("two/adapter_model.safetensors", "release.cose", "../run/ledger.db", "/etc/passwd", "", "model.safetensors"):
        assert refusal(gate.load, one, path) == "NOT_ADMITTED"
    assert gate.load(base, "model.safetensors")
    forged = dataclasses.replace(base, files=one.files)
    assert refusal(gate.load, forged, WEIGHTS) == refusal(gate.resolve, forged) == "NOT_ADMITTED"
    other = gate_of(served.adapters).admit("one", ALL)
    assert refusal(gate.load, other, WEIGHTS) == "NOT_ADMITTED", "an admission is of one release"


def test_posture_says_of_every_artifact_and_block_who_may_have_influenced_it(served: Served) -> None:
    told = json.loads(json.dumps(gate_of(served.whole).posture()))
    artifacts = {row["name"]: row for row in told["artifacts"]}
    assert set(artifacts) == {"full", "base", "adapter:one", "adapter:two"}
    assert artifacts["base"]["influenced_by"] == [] and artifacts["base"]["epsilon"] == {}
    assert artifacts["adapter:one"]["influenced_by"] == ["open", "sensitive"]
    assert all(row["served"] for row in artifacts.values())
    assert {name for block in told["blocks"] for name in block["epsilon"]} == {"open", "sensitive"}
    assert (told["verdict"], told["weights"], told["newer_withdrawals"], told["closed"]) == ("TOLD", "TIED", 0, None)
    assert (told["gate"], told["classes"]) == (NAME, CHAT)
