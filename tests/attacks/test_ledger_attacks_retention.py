"""Attacks on retention by the numbers of the design's list, and the failure cases of its section on it, by name.

Each is tried against the defence that it names: what is altered here is altered with the log's own key, so that hashes and
signatures hold and nothing but that defence can refuse.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from ledger.audit import verify_export
from ledger.errors import LeafRefused
from ledger.leaves import Charge, Epoch, Leaf, Summary, SummaryKind, Withdraw
from tests.ledger.ledger_runs import SIGNER, Driver, descriptor
from tests.ledger.retained_runs import forged_export, grown, leaves_of

KEYS = [SIGNER.vkey]


@pytest.fixture
def run(tmp_path: Path):
    """Three closed epochs, of which the policy lets the first two be summarised."""
    driver = grown(tmp_path / "ledger.db")
    yield driver
    driver.ledger.close()


def judged(leaves: list[Leaf], directory: Path) -> tuple[str, list[tuple[str, str]]]:
    """What an auditor says of leaves under a checkpoint that the log signed."""
    report = verify_export(forged_export(leaves, directory), KEYS)
    return report.verdict, [(found.code, found.where) for found in report.findings]


def refused_by_writer(run: Driver, leaf: Summary) -> LeafRefused:
    """What the writer's own replay says of a SUMMARY leaf; nothing is appended."""
    size = run.ledger.size
    with pytest.raises(LeafRefused) as caught, run.ledger._file.appending(run.now):
        run.ledger._file.stage(leaf)
    assert run.ledger.size == size
    return caught.value


def proposed(run: Driver) -> Summary:
    return run.ledger.state.tally.propose(run.ledger.size, run.now)[0]


def lowered(row):
    return replace(row, sum_epsilon_micro=row.sum_epsilon_micro - 1)


FORGED = {
    "class_total_lowered": lambda s: replace(s, classes=(lowered(s.classes[0]), *s.classes[1:])),
    "largest_epsilon_lowered": lambda s: replace(
        s, classes=(replace(s.classes[0], max_epsilon_micro=s.classes[0].max_epsilon_micro - 1), *s.classes[1:])
    ),
    "largest_epsilon_raised": lambda s: replace(
        s, classes=(replace(s.classes[0], max_epsilon_micro=s.classes[0].max_epsilon_micro + 1), *s.classes[1:])
    ),
    "epsilon_of_a_private_class_left_out": lambda s: replace(
        s, classes=(replace(s.classes[0], sum_epsilon_micro=None, max_epsilon_micro=None), *s.classes[1:])
    ),
    "fewer_contributions": lambda s: replace(s, classes=(replace(s.classes[0], contributions=3), *s.classes[1:])),
    "more_active": lambda s: replace(s, classes=(replace(s.classes[0], active=3), *s.classes[1:])),
    "more_variance": lambda s: replace(s, classes=(replace(s.classes[0], max_variance=2.0), *s.classes[1:])),
    "less_variance": lambda s: replace(s, classes=(replace(s.classes[0], min_variance=0.5), *s.classes[1:])),
    "fewer_steps_charged": lambda s: replace(s, classes=(replace(s.classes[0], charged=8), *s.classes[1:])),
    "fewer_occurrences": lambda s: replace(s, classes=(replace(s.classes[0], occurrences=1), *s.classes[1:])),
    "a_class_left_out": lambda s: replace(s, classes=s.classes[:1]),
    "leaves_of_another_kind": lambda s: replace(
        s,
        kinds=tuple(
            SummaryKind(row.kind, row.count + (row.kind == Charge.KIND) - (row.kind == Withdraw.KIND)) for row in s.kinds
        ),
    ),
    "another_set": lambda s: replace(s, set_root=bytes(32)),
    "another_subtree": lambda s: replace(s, subtree_roots=(bytes(32), *s.subtree_roots[1:])),
    "a_subtree_left_out": lambda s: replace(s, subtree_roots=s.subtree_roots[:-1]),
    "a_summary_before_the_first": lambda s: replace(s, previous=1),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_B25_a_forged_summary_is_refused_by_writer_and_auditor(run, tmp_path, forgery):
    """A forged total under the right root: the root is the log's own, what the leaves say is not what it says."""
    forged = FORGED[forgery](proposed(run))
    assert refused_by_writer(run, forged).code == "SUMMARY"
    assert judged([*leaves_of(run.ledger), forged], tmp_path / "e") == ("FAILED", [("SUMMARY", f"seq {forged.seq}")])


def resized(leaf: Summary, first: int, end: int) -> Summary:
    kinds = (SummaryKind(1, end - first),)
    return replace(leaf, first=first, end=end, kinds=kinds)


def test_a_range_with_an_open_window_is_refused(run, tmp_path):
    """A range ends behind an EPOCH leaf and nowhere else: behind none of them is a window open."""
    leaf, leaves = proposed(run), leaves_of(run.ledger)
    charge = next(found.seq for found in leaves if isinstance(found, Charge))
    forged = resized(leaf, 1, charge + 1)
    assert refused_by_writer(run, forged).code == "SUMMARY_RANGE"
    assert judged([*leaves, forged], tmp_path / "e") == ("FAILED", [("SUMMARY_RANGE", f"seq {forged.seq}")])


def test_a_range_past_the_horizon_is_refused(run, tmp_path):
    """P beyond H: the policy keeps one epoch, so that the last one may not be summarised."""
    leaf, leaves = proposed(run), leaves_of(run.ledger)
    forged = resized(leaf, 1, next(found.seq for found in reversed(leaves) if isinstance(found, Epoch)) + 1)
    assert refused_by_writer(run, forged).code == "SUMMARY_HORIZON"
    assert judged([*leaves, forged], tmp_path / "e") == ("FAILED", [("SUMMARY_HORIZON", f"seq {forged.seq}")])


@pytest.mark.parametrize("first", [2, 5])
def test_a_gap_before_the_first_range_is_refused(run, first):
    leaf = proposed(run)
    assert refused_by_writer(run, resized(leaf, first, leaf.end)).code == "SUMMARY_RANGE"


def test_overlapping_and_gapped_ranges_are_refused(run, tmp_path):
    done = run.ledger.summarise(now=run.tick())
    run.steps(1)
    run.epoch()
    run.steps(1)
    run.epoch()
    leaf, leaves = proposed(run), leaves_of(run.ledger)
    middle = next(found.seq for found in leaves if isinstance(found, Epoch) and found.number == 3) + 1
    for n, (first, end) in enumerate(((1, leaf.end), (done.end - 1, leaf.end), (done.end + 1, leaf.end), (middle, leaf.end))):
        forged = resized(leaf, first, end)
        assert refused_by_writer(run, forged).code == "SUMMARY_RANGE"
        assert judged([*leaves, forged], tmp_path / str(n)) == ("FAILED", [("SUMMARY_RANGE", f"seq {forged.seq}")])


def test_a_second_summary_for_one_range_is_refused(run, tmp_path):
    done = run.ledger.summarise(now=run.tick())
    again = replace(done, seq=done.seq + 1, previous=done.seq)
    assert refused_by_writer(run, again).code == "SUMMARY_RANGE"
    leaves = leaves_of(run.ledger)
    assert judged([*leaves, again], tmp_path / "e") == ("FAILED", [("SUMMARY_RANGE", f"seq {again.seq}")])


def test_B27_a_summary_names_nobody(run, tmp_path):
    """Nothing in it is of one person: counts, sums, and a root over records that are not in it."""
    body = repr(run.ledger.summarise(now=run.tick()))
    for n in (1, 2, 3, 4, 5, 6, 99):
        assert repr(descriptor(n)) not in body
