"""What an audit says of bounds: of pruned ledgers, of public classes, and where it has nothing but the operator's word."""

import json
import shutil
from pathlib import Path

import pytest

from attest.descriptor import PUBLIC_BOUNDS
from attest.policy import ClassRule
from dptrain.cli.ledger.show import audit_text
from dptrain.cli.results import print_text
from ledger import layout, tiles
from ledger.audit import AuditReport, verify_export
from ledger.log import Ledger
from ledger.report import write_report
from tests.ledger.told_runs import Told, write
from tests.worlds.attested_ledgers import attestation, attested_policy, put_registry
from tests.worlds.ledgers import SIGNER, START, Driver, admission, header_spec, signed_policy
from tests.worlds.retained_ledgers import crowded_and_pruned, hashes_gone

KEYS = [SIGNER.vkey]


def codes(report: AuditReport) -> set[str]:
    return {found.code for found in report.findings}


# --- Pruned ledgers --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pruned(tmp_path_factory) -> Path:
    """An export of a pruned ledger whose contributions were signed, with the registry."""
    base = tmp_path_factory.mktemp("pruned")
    with crowded_and_pruned(base / "ledger.db", base, people=20, attested=True).ledger as ledger:
        return ledger.export(base / "export", registry=put_registry(base))


def test_a_pruned_ledger_whose_other_contributions_signed_is_summarised(pruned):
    report = verify_export(pruned, KEYS)
    assert (report.verdict, report.findings) == ("SUMMARISED", ()) and "PRUNED" in report.qualifiers
    assert report.bounds.held == report.bounds.admits == 4, "16 of 20 have left, and their leaves are gone"
    assert any(note.startswith("16 ADMIT leaves were pruned with their attestations") for note in report.notes)


def test_a_ledger_whose_hashes_are_gone_too_is_summarised(tmp_path):
    with hashes_gone(tmp_path / "ledger.db", tmp_path, people=20, attested=True, retention_hash_epochs=1).ledger as ledger:
        export = ledger.export(tmp_path / "export", registry=put_registry(tmp_path))
    assert verify_export(export, KEYS).verdict == "SUMMARISED"


def test_nothing_stands_beside_a_leaf_that_was_pruned(pruned, tmp_path):
    export = shutil.copytree(pruned, tmp_path / "export")
    (path,) = (export / "attestations" / "signed").rglob("000.p/*")
    entries = tiles.split_bundle(path.read_bytes(), None)
    there = [seq for seq, entry in enumerate(entries) if entry]
    gone = next(seq for seq in range(there[0], there[-1]) if seq not in there)
    entries[gone] = entries[there[0]]
    write(path, tiles.entry_bundle(entries))
    assert {(found.code, found.where) for found in verify_export(export, KEYS).findings} == {("ATTESTATION", f"seq {gone}")}
    entries[gone] = entries[there[1]] = b""
    write(path, tiles.entry_bundle(entries))
    assert "ATTESTATION_MISSING" in codes(verify_export(export, KEYS))


def test_without_the_registry_a_pruned_ledger_is_told(pruned, tmp_path):
    export = shutil.copytree(pruned, tmp_path / "export")
    (export / layout.REGISTRY).unlink()
    report = verify_export(export, KEYS)
    assert report.verdict == "TOLD" and "PRUNED" in report.qualifiers


# --- Public classes --------------------------------------------------------------------------------------


PUBLIC = {"clip_norm_micro": PUBLIC_BOUNDS.clip_micro, "noise_multiplier_micro": PUBLIC_BOUNDS.sigma_micro}
LIMIT = {"max_epsilon_micro": 50_000_000, "max_delta_pico": 1_000_000}
QUOTED = {**PUBLIC_BOUNDS._asdict(), "max_epsilon_micro": 0, "max_delta_pico": 0}


def public_run() -> Told:
    """A run in which the class that touches everything is public; its first contribution signed a limit, which says nothing."""
    rules = signed_policy().policy.classes
    fields = {name: getattr(rules[0], name) for name in ("name", "sampling_rate", "depth")}
    told = Told.honest()
    told.header["policy"] = attested_policy(classes=(ClassRule(**fields, **PUBLIC, public=True), rules[1]))
    told.put(0, attestation(1, **PUBLIC, **LIMIT), **QUOTED)
    told.put(1, attestation(2, **PUBLIC), **QUOTED)
    return told


def test_contributions_of_public_classes_are_held_against_what_was_signed_too(tmp_path):
    report = verify_export(public_run().export(tmp_path), KEYS)
    assert (report.verdict, report.findings, report.bounds.held) == ("FULL", (), 4)
    assert report.classes[0].public and report.classes[0].epsilon_preset is None


@pytest.mark.parametrize(
    ("signed", "leaf", "code"),
    [
        ({"clip_norm_micro": 1_000_000, "noise_multiplier_micro": 1_000_000}, {}, "BOUNDS_NOT_PUBLIC"),
        (PUBLIC, {"max_occurrences": 3}, "QUOTED"),
    ],
)
def test_who_signed_other_bounds_is_not_public(tmp_path, signed, leaf, code):
    told = public_run()
    told.put(0, attestation(1, **signed), **(QUOTED | leaf))
    report = verify_export(told.export(tmp_path), KEYS)
    assert report.verdict == "FAILED" and code in codes(report)


# --- The epsilon that hangs on no ADMIT leaf --------------------------------------------------------------


def told_report(base: Path, *specs, late=(), policy=None, draws=None, **header) -> AuditReport:
    """An audit of two windows over these admissions, and later ones after the first."""
    base.mkdir()
    with Ledger.create(base / "ledger.db", header_spec(policy, **header), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(*specs)
        for some in (late, ()):
            window = driver.charge()
            for step in range(window.first_step, window.first_step + 4) if draws is not None else ():
                ledger.draw(step, draws(step), now=driver.tick())
            ledger.settle(window, 4, now=driver.tick())
            if some:
                driver.admit(*some)
        driver.epoch()
        report = verify_export(ledger.export(base / "export"), KEYS)
    assert report.verdict == "TOLD", report.findings
    return report


def test_the_epsilon_at_the_preset_is_that_of_a_contribution_at_the_preset(tmp_path):
    report = told_report(tmp_path / "run", admission(1), admission(2, "sensitive"))
    assert all(row.epsilon_preset == row.epsilon > 0 for row in report.classes)


def test_no_invented_bound_lowers_the_epsilon_at_the_preset(tmp_path):
    """A multiplier of 50, a cap, a smaller clip norm, an admission after half of the steps: told, and not signed."""
    honest = told_report(tmp_path / "honest", admission(1), admission(2, "sensitive"), caps_enforced=True)
    told = [
        told_report(tmp_path / "noise", admission(1), admission(2, "sensitive", sigma_micro=50_000_000), caps_enforced=True),
        told_report(tmp_path / "clip", admission(1), admission(2, "sensitive", clip_micro=1_000), caps_enforced=True),
        told_report(tmp_path / "cap", admission(1), admission(2, "sensitive", max_occurrences=1), caps_enforced=True),
        told_report(tmp_path / "late", admission(1), late=[admission(2, "sensitive")], caps_enforced=True),
        told_report(tmp_path / "nobody", admission(1), caps_enforced=True),
    ]
    assert sum(report.classes[1].epsilon < honest.classes[1].epsilon for report in told) >= 4
    for report in told:
        assert report.classes[1].epsilon_preset == honest.classes[1].epsilon_preset == honest.classes[1].epsilon


def test_where_occurrences_are_public_it_is_that_of_who_was_drawn_most(tmp_path):
    policy = signed_policy(disclosure="occurrences_public")
    drawn = {"draws": lambda step: (0, 1) if step < 3 else (1,)}
    honest = told_report(tmp_path / "honest", admission(1), admission(2), policy=policy, **drawn)
    told = told_report(tmp_path / "told", admission(1), admission(2, sigma_micro=50_000_000), policy=policy, **drawn)
    assert told.classes[0].epsilon < honest.classes[0].epsilon == honest.classes[0].epsilon_preset
    assert told.classes[0].epsilon_preset == pytest.approx(honest.classes[0].epsilon, rel=1e-9)


def test_page_json_and_terminal_say_it_of_what_is_told_and_not_of_what_is_signed(tmp_path, capsys):
    report = told_report(tmp_path / "told", admission(1), admission(2, "sensitive", sigma_micro=50_000_000))
    assert json.loads(json.dumps(report.to_json()))["classes"][1]["epsilon_preset"] == report.classes[1].epsilon_preset
    page = tmp_path / "told.html"
    print_text(audit_text(report))
    assert "at preset" in capsys.readouterr().out
    write_report(tmp_path / "told" / "export", page, report=report)
    assert "at the preset, no caps" in page.read_text(encoding="utf-8")
    (tmp_path / "signed").mkdir()
    full = verify_export(Told.honest().export(tmp_path / "signed"), KEYS)
    assert full.verdict == "FULL" and all(row.epsilon_preset is None for row in full.classes)
    print_text(audit_text(full))
    assert "at preset" not in capsys.readouterr().out
    write_report(tmp_path / "signed" / "export", tmp_path / "full.html", report=full)
    assert "4 attestations verify under 2 keys" in (tmp_path / "full.html").read_text(encoding="utf-8")
    assert "attestations verify" not in page.read_text(encoding="utf-8")
