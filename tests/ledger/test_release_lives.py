"""A release in the life of its ledger: after a withdrawal, after the close, twice, after a rollback, and of a run that another
one continues. Each says what the check tells whoever got the model."""

import shutil
from pathlib import Path

import pytest
from release_models import WEIGHTS, model, records, run_to_the_end

from ledger.leaves.header import COMPROMISED, SPENT, Previous
from ledger.log import Ledger
from ledger.note import NoteSigner
from ledger.release import Rights, check_release, choose_artifact, release
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START, Driver, admission, header_spec
from tests.worlds.retained_ledgers import ANNA, BEN, is_pruned, retaining_spec, vouched_for

KEYS = [SIGNER.vkey]
BOTH = Rights({"open": None, "sensitive": None}, told=True)
SUCCESSOR = NoteSigner("ledger.example/run2", OTHER_KEY)


def codes(report) -> set[str]:
    return {finding.code for finding in report.findings}


@pytest.fixture
def finished(path):
    driver = run_to_the_end(path)
    with driver.ledger:
        yield driver


def test_a_release_before_a_withdrawal_stays_true_and_tells_of_it_once_an_export_does(finished, tmp_path):
    old = release(finished.ledger, model(tmp_path / "old"), now=finished.tick())
    finished.withdraw(1)
    new = release(finished.ledger, model(tmp_path / "new"), now=finished.tick())
    assert (old.manifest.withdrawn, new.manifest.withdrawn) == (2, 3)
    assert old.manifest.withdrawals_root != new.manifest.withdrawals_root
    told = check_release(tmp_path / "old", KEYS, export=new.export)
    assert (told.verdict, told.newer_withdrawals) == ("TOLD", 1)
    assert (told.weights.status, check_release(tmp_path / "new", KEYS).newer_withdrawals) == ("TIED", 0)


def test_a_release_from_before_the_close_is_promised_the_horizon_and_stays_so_after_it(path, tmp_path):
    driver = Driver(Ledger.create(path, header_spec(), SIGNER, now=START))
    with driver.ledger as ledger:
        driver.admit(admission(1), admission(3, "sensitive"))
        for _ in range(10):
            driver.steps(1)
        driver.epoch()
        early = release(ledger, model(tmp_path / "early"), now=driver.tick())
        ledger.finish(now=driver.tick())
        late = release(ledger, model(tmp_path / "late"), now=driver.tick())
    assert (early.manifest.horizon, late.manifest.horizon) == (True, False)
    for made in (early, late):
        assert check_release(made.path.parent, KEYS, export=late.export).verdict == "TOLD"
    assert all(a.epsilon_micro > b.epsilon_micro for a, b in zip(early.manifest.classes, late.manifest.classes, strict=True))


def test_the_same_files_released_twice_are_two_releases_and_each_names_both(finished, tmp_path):
    first = release(finished.ledger, model(tmp_path / "first"), now=finished.tick())
    second = release(finished.ledger, model(tmp_path / "second"), now=finished.tick())
    assert first.manifest.artifacts_digest == second.manifest.artifacts_digest
    (told,) = check_release(tmp_path / "first", KEYS).notes
    assert told.startswith("what is frozen is so as told"), "nobody can know of the second by then"
    for made in (first, second):
        report = check_release(made.path.parent, KEYS, export=second.export)
        assert report.verdict == "TOLD"
        assert any(
            f"leaves {first.seq} and {second.seq}; this manifest is that of leaf {made.seq}" in note for note in report.notes
        )
    shutil.copy(first.path, second.path)
    assert check_release(tmp_path / "second", KEYS).verdict == "TOLD", "one release in two places, since all bytes are the same"


@pytest.fixture
def earlier(finished, path, tmp_path) -> Path:
    """The ledger as it was before the release that a test makes: what a rollback of disk and memory would bring back."""
    finished.ledger.sign_checkpoint()
    finished.ledger.close()
    place = tmp_path / "earlier"
    place.mkdir()
    for item in path.parent.iterdir():
        if item.name.startswith(path.name) and item.is_file():
            shutil.copy(item, place / item.name)
    finished.ledger = Ledger.open(path, SIGNER)
    return place / path.name


def test_a_release_of_which_a_rolled_back_ledger_knows_nothing_fails(finished, earlier, tmp_path):
    finished.withdraw(1)
    made = release(finished.ledger, model(tmp_path / "model"), now=finished.tick())
    with Ledger.open(earlier, SIGNER) as rolled:
        behind = check_release(tmp_path / "model", KEYS, export=rolled.export(tmp_path / "behind"))
        other = Driver(rolled, now=finished.now)
        other.withdraw(4)
        other.withdraw(5)
        forked = check_release(tmp_path / "model", KEYS, export=rolled.export(tmp_path / "forked"))
    assert codes(behind) == {"BEHIND"} and f"at least {made.seq + 1} leaves" in behind.findings[0].sentence
    assert codes(forked) == {"FORKED"}


def test_a_release_that_was_rolled_back_out_of_its_ledger_fails_whatever_took_its_place(finished, earlier, tmp_path):
    release(finished.ledger, model(tmp_path / "model"), now=finished.tick())
    with Ledger.open(earlier, SIGNER) as rolled:
        short = check_release(tmp_path / "model", KEYS, export=rolled.export(tmp_path / "short"))
        Driver(rolled, now=finished.now).withdraw(4)
        instead = check_release(tmp_path / "model", KEYS, export=rolled.export(tmp_path / "instead"))
        again = release(rolled, model(tmp_path / "again"), now=finished.tick())
    assert codes(short) == {"UNRECORDED"}
    assert codes(instead) == {"RELEASE", "FORKED"}
    assert codes(check_release(tmp_path / "model", KEYS, export=again.export)) == {"RELEASE", "FORKED"}


def continued(ledger: Ledger, path: Path, reason: str, **changes) -> Driver:
    """A ledger of another origin and key that cites this one, as it stands."""
    cited = {"size": ledger.size, "root": ledger.root} | changes
    previous = Previous(ledger.header.origin, cited["size"], cited["root"], ledger.header_digest, SIGNER.vkey, reason)
    spec = header_spec(previous=(previous,), run_id=b"2" * 16)
    driver = Driver(Ledger.create(path, spec, SUCCESSOR, now=1_750_001_000), now=1_750_001_000)
    driver.admit(admission(1), admission(3, "sensitive"))
    driver.steps(10)
    driver.epoch()
    driver.ledger.finish(now=driver.tick())
    return driver


def test_a_release_with_a_key_that_was_lost_is_refused_by_the_export_of_the_run_that_continues(finished, tmp_path):
    before = release(finished.ledger, model(tmp_path / "before"), now=finished.tick())
    finished.ledger.sign_checkpoint()
    next_run = continued(finished.ledger, tmp_path / "next.db", COMPROMISED)
    stolen = release(finished.ledger, model(tmp_path / "stolen"), now=finished.tick())
    export = next_run.ledger.export(tmp_path / "next")
    keys = [*KEYS, SUCCESSOR.vkey]
    report = check_release(tmp_path / "stolen", keys, export=export)
    assert codes(report) == {"COMPROMISED"} and f"behind leaf {stolen.manifest.size - 1}" in report.findings[0].sentence
    earlier = check_release(tmp_path / "before", keys, export=export)
    assert codes(earlier) == {"ORIGIN"} and "(compromised)" in earlier.findings[0].sentence
    assert check_release(tmp_path / "before", keys, export=before.export).verdict == "TOLD"
    assert check_release(tmp_path / "stolen", keys, export=stolen.export).verdict == "TOLD", "who shows only the old ledger"


@pytest.mark.parametrize("reason", [SPENT, COMPROMISED])
def test_a_release_of_a_run_that_counts_another_says_that_its_epsilons_are_its_own(finished, tmp_path, reason):
    finished.ledger.sign_checkpoint()
    next_run = continued(finished.ledger, tmp_path / "next.db", reason)
    release(next_run.ledger, model(tmp_path / "model"), now=next_run.tick())
    report = check_release(tmp_path / "model", [SUCCESSOR.vkey])
    assert report.verdict == "TOLD", report.findings
    assert any(f"ledger.example/run1 ({reason})" in note and "this run alone" in note for note in report.notes)
    assert check_release(tmp_path / "model", [SUCCESSOR.vkey]).weights.status == "UNRECORDED"
    with pytest.raises(Exception, match="NOT_TIED"):
        choose_artifact(report, BOTH, ["full"])


def test_a_release_outlives_bodies_and_hashes_of_the_leaves_around_it(path, tmp_path):
    """Its checkpoint keeps its root, its leaf and the EPOCH leaf stay: the weights are tied as before."""
    driver = Driver(Ledger.create(path, retaining_spec(retention_hash_epochs=1), SIGNER, now=START))
    with driver.ledger as ledger:
        driver.digest = ledger.keep_weights(records(WEIGHTS))
        driver.admit(*map(admission, range(20)))
        driver.steps(1)
        for n in range(3, 19):
            driver.withdraw(n)
        driver.epoch()
        release(ledger, model(tmp_path / "model"), now=driver.tick())
        for _ in range(2):
            driver.steps(1)
            driver.epoch()
        ledger.summarise(now=driver.tick())
        vouched_for(driver, ANNA, BEN)
        driver.steps(1)
        driver.epoch()
        ledger.prune()
        driver.steps(1)
        driver.epoch()
        assert ledger.drop_hashes() > 0
        lean = ledger.export(tmp_path / "lean")
    report = check_release(tmp_path / "model", KEYS, export=lean)
    assert is_pruned(report) and (report.findings, report.weights.status) == ((), "TIED")
