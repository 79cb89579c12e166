"""What an audit and a ledger tell of releases: every RELEASE leaf, whose influence is in the weights, and what that costs."""

import math
from dataclasses import replace

import pytest

from attest.descriptor import PUBLIC_BOUNDS
from attest.policy import DepthRule
from ledger.audit import verify_export
from ledger.log import Ledger
from ledger.release import release
from ledger.replay.influence import class_costs
from ledger.views.summary import MAX_LISTED, release_rows
from tests.ledger.release_models import model, run_to_the_end
from tests.worlds.ledgers import SIGNER, START, Driver, admission, header_spec, parameter, signed_policy, stack_of

KEYS = [SIGNER.vkey]


def test_a_ledger_without_releases_tells_of_none(run, tmp_path):
    run.whole_run()
    report = verify_export(run.ledger.export(tmp_path / "export"), KEYS)
    assert (report.release_count, report.releases) == (0, ())


def test_the_audit_tells_of_a_release_what_its_manifest_says(path, tmp_path):
    driver = run_to_the_end(path)
    with driver.ledger:
        made = release(driver.ledger, model(tmp_path / "model"), now=driver.tick())
    report = verify_export(made.export, KEYS)
    assert report.verdict == "TOLD" and report.release_count == 1
    (row,) = report.releases
    manifest = made.manifest
    assert (row.seq, row.step, row.size, row.root) == (made.seq, manifest.step, manifest.size, manifest.root.hex())
    assert row.artifacts_digest == manifest.artifacts_digest.hex() and row.withdrawn == manifest.withdrawn == 2
    assert row.planned_horizon is manifest.horizon is False
    assert [part.name for part in row.parts] == [part.name for part in manifest.artifacts]
    for part in row.parts:
        for place, (epsilon, replaced) in enumerate(zip(part.epsilons, part.epsilons_replace, strict=True)):
            stated = manifest.epsilon_micro(part.name, place)
            assert stated - 2 <= epsilon * 1e6 <= stated
            assert manifest.classes[place].replace_micro - 2 <= replaced * 1e6 <= manifest.classes[place].replace_micro
    assert report.to_json()["releases"][0]["parts"][0]["influenced_by"] == ("open", "sensitive")


def test_a_release_before_the_end_is_told_with_the_cost_of_the_planned_horizon_also_later(path, tmp_path):
    """What was charged afterwards changes nothing, and who was admitted afterwards is none of its business."""
    with Ledger.create(path, header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1))
        driver.steps(2)
        driver.epoch()
        then = class_costs(ledger.state)
        early = release(ledger, model(tmp_path / "early"), now=driver.tick())
        assert early.manifest.horizon
        driver.admit(admission(2, "sensitive"))
        for _ in range(4):
            driver.steps(2)
            driver.epoch()
        ledger.finish(now=driver.tick())
        late = release(ledger, model(tmp_path / "late"), now=driver.tick())
        rows = release_rows(ledger.state)
        assert rows == verify_export(late.export, KEYS).releases
    assert [row.planned_horizon for row in rows] == [True, False]
    assert [row.seq for row in rows] == [early.seq, late.seq]
    assert rows[0].parts[0].epsilons == (then[0][0], 0.0) and rows[0].parts[0].epsilons_replace == (then[0][1], 0.0)
    assert rows[1].parts[0].epsilons[1] > 0


def test_a_public_class_has_no_figure_and_a_part_without_influence_costs_nothing(path):
    rules = signed_policy().policy.classes
    bounds = {"clip_norm_micro": PUBLIC_BOUNDS.clip_micro, "noise_multiplier_micro": PUBLIC_BOUNDS.sigma_micro}
    public = replace(rules[0], depth=DepthRule(adapter="one"), public=True, **bounds)
    own = replace(rules[1], depth=DepthRule(adapter="two"))
    adapters = (parameter(f"layers.0.{name}", adapter=name) for name in ("one", "two"))
    stack = stack_of(1, *adapters, parameter("head.weight", 5))
    with Ledger.create(path, header_spec(signed_policy(classes=(public, own)), stack=stack), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1, **PUBLIC_BOUNDS._asdict()), admission(2, "sensitive"))
        driver.steps(1)
        ledger.sign_checkpoint()
        ledger.record_release(bytes(32), bytes(32), 4, now=driver.tick())
        (row,) = release_rows(ledger.state)
    parts = {part.name: part for part in row.parts}
    assert parts["full"].influenced_by == ("open", "sensitive") and parts["base"].influenced_by == ()
    assert parts["base"].epsilons == parts["base"].epsilons_replace == (None, 0.0)
    assert parts["full"].epsilons[0] is None and 0 < parts["full"].epsilons[1] < parts["full"].epsilons_replace[1]


def test_where_no_horizon_has_an_epsilon_none_is_claimed(monkeypatch, path):
    from ledger.errors import ReleaseRefused
    from ledger.views import summary as released

    def refuse(*_, **__):
        raise ReleaseRefused("HORIZON", "the run stopped early and its occurrences are public")

    monkeypatch.setattr(released, "class_costs", refuse)
    driver = run_to_the_end(path)
    with driver.ledger as ledger:
        ledger.sign_checkpoint()
        ledger.record_release(bytes(32), bytes(32), 40, now=driver.tick())
        (row,) = release_rows(ledger.state)
    assert all(math.isinf(epsilon) for epsilon in row.parts[0].epsilons)


@pytest.mark.parametrize("count", [MAX_LISTED + 3])
def test_of_many_releases_all_are_counted_and_the_last_are_told(path, tmp_path, count):
    driver = run_to_the_end(path)
    with driver.ledger as ledger:
        for number in range(count):
            ledger.sign_checkpoint()
            ledger.record_release(number.to_bytes(32, "big"), bytes(32), 40, now=driver.tick())
        report = verify_export(ledger.export(tmp_path / "export"), KEYS)
    assert report.release_count == count and len(report.releases) == MAX_LISTED
    assert int(report.releases[-1].manifest_digest, 16) == count - 1
