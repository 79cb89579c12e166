"""What an audit, its report and `ledger show` say of the geometry of a run, and whose word each part is."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from attest import cbor
from attest.descriptor import PUBLIC_BOUNDS
from attest.policy import DepthRule
from attest.schedule.geometry import FRAMES
from dptrain.cli.ledger.show import audit_text, summary, summary_text
from ledger.audit import verify_export
from ledger.audit.findings import BEYOND
from ledger.leaves import encode_leaf
from ledger.replay import Replay
from ledger.report import write_report
from ledger.views.geometry import RankRow, geometry_of
from tests.attacks.test_ledger_attacks_depth import exported, run_of
from tests.ledger.test_pairs_of_a_header import FIRST, SECOND, made, plain, spec
from tests.worlds.ledgers import SIGNER, signed_policy

KEYS = [SIGNER.vkey]


@pytest.fixture(scope="module")
def leaves(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("run") / "ledger.db", spec())


@pytest.fixture(scope="module")
def export(leaves, tmp_path_factory):
    return exported(leaves, encode_leaf(leaves[0]), tmp_path_factory.mktemp("tangent") / "export")


def test_the_energy_of_a_block_stands_beside_that_on_the_factors():
    header = made()
    facts = geometry_of(header)
    assert facts is not None and (facts.rule, facts.pairs) == (FRAMES, 2)
    assert facts.ranks == (RankRow(2, 1), RankRow(4, 1))
    first, second = facts.blocks
    assert (first.name, first.pairs, first.coordinates, first.dimensions) == ("layer.0", 1, 20, 2 * (6 + 4 - 2))
    assert (second.name, second.pairs, second.coordinates, second.dimensions) == ("layer.3", 1, 32, 3 * (5 + 3 - 3))
    for block in facts.blocks:
        (own,) = [item for item in header.blocks if item.name == block.name]
        assert block.std == own.std > 0 and block.coordinates == own.coordinates
        assert (block.factor_energy, block.energy) == (own.std**2 * block.coordinates, own.std**2 * block.dimensions)
    share = sum(block.energy for block in facts.blocks) / sum(block.factor_energy for block in facts.blocks)
    assert f"1 of rank 2, 1 of rank 4; frames by {FRAMES}; noise energy of their blocks: {share:.1%} of" in facts.sentence


def test_without_a_geometry_nothing_is_told_of_one():
    assert geometry_of(made(geometry=(), ranks={})) is None


def test_pairs_that_nothing_noises_have_no_energy():
    """Those that public classes alone may touch, and those that nobody may."""
    _, upper = signed_policy().policy.classes
    bounds = dict(zip(("clip_norm_micro", "noise_multiplier_micro"), PUBLIC_BOUNDS[:2], strict=True))
    public = replace(upper, name="anybody", public=True, depth=DepthRule(band=(Fraction(0), Fraction(1))), **bounds)
    for classes in ((public, upper), (upper,)):
        facts = geometry_of(made(policy={"classes": classes}))
        assert facts is not None and facts.pairs == 2 and [block.name for block in facts.blocks] == ["layer.3"]
    lower = replace(upper, depth=DepthRule(layers=(2,)))
    assert geometry_of(made(policy={"classes": (lower,)})).sentence.endswith("none of them is noised")


def test_an_audit_says_what_was_derived_and_what_is_the_trainers_word(export):
    report = verify_export(export, KEYS)
    assert report.verdict != "FAILED" and report.geometry == geometry_of(made())
    (note,) = [note for note in report.notes if "LoRA" in note]
    assert report.geometry.sentence in note and "was derived from the signed policy and the names" in note
    assert "are the trainer's word" in note and "no epsilon does" in note
    assert any("ranks and frames of LoRA pairs" in sentence for sentence in BEYOND)
    told = json.loads(json.dumps(report.to_json()))["geometry"]
    assert told["ranks"] == [{"rank": 2, "pairs": 1}, {"rank": 4, "pairs": 1}] and told["blocks"][0]["dimensions"] == 16


def test_the_command_says_it_in_one_line(export):
    report = verify_export(export, KEYS)
    line = f"geometry: {report.geometry.sentence}"
    assert line in [*audit_text(report)] and line not in [*audit_text(replace(report, geometry=None))]
    state = Replay(made(), bytes)
    told = summary(state, bytes(32))
    assert line in [*summary_text(told)] and told["geometry"]["pairs"] == 2
    assert summary(Replay(made(geometry=(), ranks={}), bytes), bytes(32))["geometry"] is None


def test_the_page_has_a_row_for_every_block_with_pairs(export, tmp_path):
    report = verify_export(export, KEYS)
    page = write_report(export, tmp_path / "report.html", report=report).read_text()
    assert "Energy of the noise of one step on blocks with pairs of LoRA factors" in page
    assert "energy after the projection" in page and "Ranks, and the frames" in page
    plain = replace(report, geometry=None)
    assert "LoRA factors" not in write_report(export, tmp_path / "plain.html", report=replace(plain, notes=())).read_text()


@pytest.mark.parametrize("said", [[FRAMES, [FIRST]], [FRAMES, [SECOND, FIRST]], ["dptrain.frames/0", [FIRST, SECOND]], None])
def test_an_export_whose_header_says_other_pairs_fails(said, leaves, tmp_path):
    """Leaf 0 is as canonical as an honest one, and signed with the log's own key."""
    value = plain(leaves[0])
    assert verify_export(exported(leaves, cbor.encode(value), tmp_path / "honest"), KEYS).verdict == "TOLD"
    false = {key: item for key, item in value.items() if said or key < 28} | ({29: said} if said else {})
    report = verify_export(exported(leaves, cbor.encode(false), tmp_path / "lie"), KEYS)
    assert report.verdict == "FAILED"
    assert [(found.code, found.where) for found in report.findings] == [("GEOMETRY", "seq 0")]
