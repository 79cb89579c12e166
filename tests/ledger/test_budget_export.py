"""Exports of budget logs: verified without the store by the same command, and every lie in one is found."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledger import layout
from ledger.audit import verify_export
from ledger.budget.audit import holds_budget, verify_budget
from ledger.budget.export import export_budget
from ledger.budget.leaves import Header, Leaf, Reserve, decode_leaf, encode_leaf
from ledger.budget.state import BudgetState
from ledger.errors import ExportRefused, LeafRefused
from ledger.export import write_tree
from ledger.merkle import root as root_of
from ledger.note import NoteSigner, checkpoint_text, sign_note
from ledger.proofs.prover import ExportReader
from tests.worlds.budget_lies import BEN, LIES, lived
from tests.worlds.budgets import ANNA, UNIT_COST, created
from tests.worlds.commands import Shell
from tests.worlds.ledgers import LOG_KEY, SIGNER, START


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("budget")
    with lived(folder / "b.db") as log:
        return export_budget(log, folder / "export")


@pytest.fixture(scope="module")
def leaves(export: Path) -> list[Leaf]:
    return [decode_leaf(body) for body in ExportReader(export).entries()]


def written(folder: Path, leaves: list[Any], signer: NoteSigner = SIGNER) -> Path:
    """Writes an export of these leaves as a liar with the log's key would; positions are made to follow."""
    folder.mkdir()
    bodies = [leaf if isinstance(leaf, bytes) else encode_leaf(leaf) for leaf in leaves]
    note = sign_note(checkpoint_text(SIGNER.name, len(bodies), root_of(bodies)), signer)
    (folder / layout.CHECKPOINT).write_bytes(note)
    (folder / layout.POLICY).write_text(f"log {SIGNER.vkey}\nquorum none\n")
    write_tree(folder, bodies)
    return folder


def audited(path: Path, **asked: Any) -> Any:
    return verify_budget(path, [SIGNER.vkey], now=START + 60, **asked)


def codes(path: Path, **asked: Any) -> set[str]:
    return {finding.code for finding in audited(path, **asked).findings}


def test_an_honest_export_is_full_and_its_figures_are_those_of_the_leaves(export: Path, leaves: list[Leaf]) -> None:
    report = audited(export, minimum_size=len(leaves))
    assert report.verdict == "FULL" and not report.findings and not report.qualifiers
    paid = [leaf for leaf in leaves if isinstance(leaf, Reserve)]
    assert report.size == len(leaves) and report.reserves == len(paid) == 3 and report.open == 2
    assert report.reserved_nano == sum(leaf.releases * leaf.rho_nano for leaf in paid) and report.freed_nano == 4 * UNIT_COST
    assert {row.unit: (row.units, row.most_nano) for row in report.caps} == {
        "session": (1, 9 * UNIT_COST), "user": (2, 9 * UNIT_COST),
    }  # fmt: skip
    assert all(row.most_epsilon <= row.epsilon for row in report.caps)
    assert (report.budget_epochs, report.behind_epoch, report.origin) == (2, 0, SIGNER.name)
    assert {type(leaf).__name__ for leaf in leaves} == {"Header", "Reserve", "Commit", "Notice", "Delivered", "Epoch"}
    json.dumps(report.to_json())


def test_an_export_names_nobody(export: Path, tmp_path: Path) -> None:
    held = b"".join(path.read_bytes() for path in export.rglob("*") if path.is_file())
    assert b"anna" not in held and b"ben" not in held and bytes(32).hex().encode() not in held


def test_the_same_command_verifies_it(export: Path, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    asked = ["ledger", "verify", str(export), "--key", SIGNER.vkey, "--now", str(START + 60)]
    assert holds_budget(export)
    found = shell.json(*asked, "--remember", str(tmp_path / "seen"))
    assert (found["verdict"], found["schema"], found["reserves"]) == ("FULL", "dptrain.budget/1", 3)
    shown = shell.run(*asked, "--min-size", "2", "--require-full").stdout
    assert shown.startswith("FULL  ledger.example/run1\nbudget log of ") and "user: cap epsilon" in shown
    assert "OLD checkpoint: " in shell.run(*asked, "--min-size", "500", code=1).stdout
    shell.run(*asked, "--require-quorum", code=2)
    assert verify_export(export, [SIGNER.vkey]).verdict == "FAILED"  # it is no run


def test_an_older_export_and_another_history_are_found_by_who_remembers(tmp_path: Path) -> None:
    shell = Shell(tmp_path)

    def verify(export: Path, code: int) -> None:
        remembered = ["--remember", str(tmp_path / "seen")]
        shell.run("ledger", "verify", str(export), "--key", SIGNER.vkey, "--now", str(START + 60), *remembered, code=code)

    with created(tmp_path / "b.db") as log:
        log.reserve(ANNA, "token", 1, now=START)
        log.close_epoch(SIGNER, now=START)
        first = export_budget(log, tmp_path / "first")
        log.reserve(ANNA, "token", 2, now=START)
        log.close_epoch(SIGNER, now=START)
        second = export_budget(log, tmp_path / "second")
    for export, code in ((first, 0), (second, 0), (first, 1), (second, 0)):
        verify(export, code)
    with created(tmp_path / "c.db") as log:
        for _ in range(5):
            log.reserve(BEN, "token", 1, now=START)
        log.close_epoch(SIGNER, now=START)
        verify(export_budget(log, tmp_path / "fork"), 1)


def test_no_byte_of_an_export_of_a_budget_can_be_flipped(export: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(export, copy)
    for path in (path for path in copy.rglob("*") if path.is_file()):
        data = path.read_bytes()
        for at in range(0, len(data), max(1, len(data) // 40)):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            assert audited(copy).verdict == "FAILED", (path.name, at)
        path.write_bytes(data)
    assert audited(copy).verdict == "FULL"
    (copy / "more").write_text("x")
    assert codes(copy) == {"UNKNOWN_FILE"}


def test_another_key_an_old_and_a_stale_export_are_found(export: Path, tmp_path: Path) -> None:
    other = NoteSigner("another.example", LOG_KEY)
    assert verify_budget(export, [other.vkey], now=START).verdict == "FAILED"
    assert verify_budget(export, [], now=START).verdict == "FAILED"
    assert codes(export, minimum_size=500) == {"OLD"} and codes(export, max_age=1) == {"STALE"}
    assert {finding.code for finding in verify_budget(export, [SIGNER.vkey], now=START - 90_000).findings} == {"AHEAD"}
    assert codes(tmp_path / "nowhere") == {"MISSING"}


@pytest.mark.parametrize("name", LIES)
def test_every_lie_of_a_holder_of_the_key_is_found(name: str, leaves: list[Leaf], tmp_path: Path) -> None:
    change, expected = LIES[name]
    assert codes(written(tmp_path / "honest", leaves)) == set()
    found = codes(written(tmp_path / "lie", change(list(leaves))))
    assert found and found <= expected, found


def test_the_key_of_the_header_must_have_signed_whatever_the_policy_says(leaves: list[Leaf], tmp_path: Path) -> None:
    change, _ = LIES["another key"]
    lie = change(list(leaves))
    written(tmp_path / "lie", lie)
    (tmp_path / "lie" / layout.POLICY).write_text(f"log {lie[0].log_vkey}\nquorum none\n")
    assert codes(tmp_path / "lie") == {"ORIGIN"}


def test_the_last_reservation_does_not_hide_its_threshold(leaves: list[Leaf], tmp_path: Path) -> None:
    at = next(place for place, leaf in enumerate(leaves) if isinstance(leaf, Reserve))
    assert codes(written(tmp_path / "lie", leaves[: at + 1])) == {"NOTICE"}


def test_bytes_that_are_no_leaf_are_a_finding(leaves: list[Leaf], tmp_path: Path) -> None:
    for n, body in enumerate((b"", b"\xa0", encode_leaf(leaves[1])[:-1], encode_leaf(leaves[1]) + b"\0")):
        assert audited(written(tmp_path / str(n), [leaves[0], body])).verdict == "FAILED"


def test_a_refused_leaf_changes_nothing(leaves: list[Leaf]) -> None:
    assert isinstance(leaves[0], Header)
    state = BudgetState(leaves[0])
    for leaf in leaves[1:3]:
        state.apply(leaf)
    before = (state.accounts_root(), state.size, state.reserved, dict(state.open))
    for wrong in (leaves[0], leaves[2], replace(leaves[1], seq=3, releases=99, request=b"9" * 16)):
        with pytest.raises(Exception, match=r"KIND|SEQ|EXHAUSTED"):
            state.apply(wrong)
    assert (state.accounts_root(), state.size, state.reserved, dict(state.open)) == before


def test_a_changed_leaf_of_a_budget_is_refused_or_has_these_very_bytes(leaves: list[Leaf]) -> None:
    for leaf in leaves:
        body = encode_leaf(leaf)
        assert decode_leaf(body) == leaf
        for at in range(len(body)):
            for bit in (1, 0x20, 0x80):
                changed = body[:at] + bytes([body[at] ^ bit]) + body[at + 1 :]
                try:
                    found = decode_leaf(changed)
                except LeafRefused:
                    continue
                assert encode_leaf(found) == changed


def test_nothing_is_exported_over_something_else(export: Path, tmp_path: Path) -> None:
    with created(tmp_path / "b.db") as log, pytest.raises(ExportRefused, match="EXISTS"):
        export_budget(log, export)
