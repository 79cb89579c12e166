"""One contribution in several exports: its runs, what it spent in all of them, its releases, and exports that contradict."""

import hashlib
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from attest.descriptor import PUBLIC_BOUNDS
from attest.policy import DepthRule
from attest.schema.plain import commit_content
from attest.withdrawal import EXPIRED
from ledger.accountants import Phase, epsilon_of_phases
from ledger.audit.verify import earlier_run
from ledger.errors import AnchorRefused, ExportRefused, LeafRefused, LedgerBehind, LedgerError, LedgerForked
from ledger.leaves.header import COMPROMISED
from ledger.log import Ledger
from ledger.note import NoteSigner
from ledger.proofs.membership import prove_admitted
from ledger.proofs.tracing import ANEW, DRAWS, OTHERS, open_exports, trace_over
from ledger.replay.earlier_runs import SpentRegistry
from ledger.views.trace import Wanted, trace
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START, Driver, admission, descriptor, header_spec, signed_policy
from tests.worlds.retained_ledgers import ANNA, BEN, crowded_and_pruned, vouched_for

SECOND = NoteSigner("ledger.example/run2", OTHER_KEY)
KEYS = [SIGNER.vkey, SECOND.vkey]
CONTENT, NONCE = hashlib.sha256(b"a scan").digest(), b"n" * 16
WANTED = Wanted.of_content(CONTENT, NONCE)
ANCHOR = commit_content(CONTENT, NONCE)


class Made:
    """A ledger under a driver, and its export once `export` is called."""

    def __init__(self, place: Path, signer: NoteSigner = SIGNER, start: int = START, **header):
        policy = header.pop("policy", signed_policy())
        self.place, later = place, signer is not SIGNER
        ledger = Ledger.create(place, header_spec(policy, **header), signer, now=start)
        self.driver = Driver(ledger, now=start, streams=1000 * later)  # no noise stream serves two runs

    def closed(self) -> Path:
        self.driver.epoch()
        self.driver.ledger.finish(now=self.driver.tick())
        return self.export()

    def export(self, name: str = "export") -> Path:
        return self.driver.ledger.export(self.place.with_suffix(f".{name}"))


@pytest.fixture
def make(tmp_path):
    made = []

    def begin(name: str, *signer, **header) -> Made:
        made.append(Made(tmp_path / name, *signer, **header))
        return made[-1]

    yield begin
    for item in made:
        item.driver.ledger.close()


@pytest.fixture
def first(make):
    """A closed run of eight steps with the contribution."""
    made = make("one.db")
    made.driver.admit(admission(1, anchor=ANCHOR, max_epsilon_micro=8_000_000, max_delta_pico=10**6), admission(2))
    made.driver.steps(2)
    return made.closed()


def again(make, first, **changes) -> Path:
    """A run that counts the first one, and admits the contribution for twelve steps more."""
    registry = SpentRegistry([earlier_run(first, KEYS)])
    made = make("two.db", SECOND, START + 1000, previous=registry.previous)
    limit = {"max_epsilon_micro": 8_000_000, "max_delta_pico": 10**6}
    made.driver.admit(replace(admission(1, anchor=ANCHOR, carried_micro=10**6, **limit), **changes))
    made.driver.steps(3)
    return made.closed()


def traced(*exports: Path, wanted: Wanted = WANTED, **options):
    return trace_over(open_exports(exports, KEYS), wanted, **options)


def test_what_was_spent_in_two_runs_is_that_of_one_run_with_all_their_steps(make, first):
    second = again(make, first)
    found = traced(second, first)
    assert [item.origin for item in found.runs] == [SIGNER.name, SECOND.name], "in the order in which they began"
    assert [item.trace.steps for item in found.found] == [8, 12]
    assert found.epsilon == epsilon_of_phases([Phase(1.0, 0.02, 20)], 1e-6) > max(item.trace.epsilon for item in found.found)
    assert found.verdict == "TOLD" and "UNPINNED" in found.qualifiers
    assert not {"EARLIER_TOLD", "LIMITS_ALONE"} & {*found.qualifiers} and found.not_given == ()
    (use,) = found.limits
    assert use.limit.by == "contributor" and 0 < use.used <= use.planned < 8 and use.held
    assert use.used >= epsilon_of_phases([Phase(1.0, 0.02, 20)], 1e-6, "rdp") - 1e-9, "a filter at one order is no tighter"
    (window, *_), (variance, *_) = found.found[0].trace.windows, found.found[0].trace.variances
    assert (window.first_step, window.last_step, variance) == (1, 4, window.classes[0].min_std ** 2)


def test_a_run_that_is_not_given_is_named_and_its_word_not_taken(make, first):
    second = again(make, first)
    found = traced(second)
    assert [item.origin for item in found.not_given] == [SIGNER.name] and "EARLIER_TOLD" in found.qualifiers
    assert found.epsilon == epsilon_of_phases([Phase(1.0, 0.02, 12)], 1e-6)
    assert f"{OTHERS}, among them {SIGNER.name}" in found.unseen and DRAWS in found.unseen and ANEW in found.unseen


def test_a_run_without_it_is_an_answer_and_none_with_it_an_error(make, first):
    other = make("two.db", SECOND, START + 1000)
    other.driver.admit(admission(9))
    other.driver.steps(1)
    export = other.closed()
    found = traced(first, export)
    assert [item.trace is None for item in found.runs] == [False, True] and len(found.found) == 1
    assert found.epsilon == found.found[0].trace.epsilon
    with pytest.raises(LedgerError, match=f"none of {SIGNER.name}, {SECOND.name} admitted it") as caught:
        traced(first, export, wanted=Wanted(descriptor_hash=descriptor(77)))
    assert caught.value.code == "NOT_FOUND"


def test_content_that_was_signed_again_is_another_contribution(make, first):
    """Same content, another nonce and descriptor: each anchor finds its own run alone, and what it spent."""
    other = make("two.db", SECOND, START + 1000)
    other.driver.admit(admission(50, anchor=commit_content(CONTENT, b"m" * 16)))
    other.driver.steps(1)
    exports = (first, other.closed())
    old, new = traced(*exports), traced(*exports, wanted=Wanted.of_content(CONTENT, b"m" * 16))
    assert [item.trace is None for item in old.runs] == [False, True]
    assert [item.trace is None for item in new.runs] == [True, False]
    assert old.descriptors == (descriptor(1),) and new.descriptors == (descriptor(50),)
    assert new.epsilon == epsilon_of_phases([Phase(1.0, 0.02, 4)], 1e-6) and ANEW in new.unseen


def test_signed_again_with_its_old_nonce_it_is_found_under_both_descriptors(make, first):
    second = again(make, first, descriptor_hash=descriptor(60))
    found = traced(first, second)
    assert found.descriptors == (descriptor(1), descriptor(60))
    assert found.epsilon == epsilon_of_phases([Phase(1.0, 0.02, 20)], 1e-6)


def test_runs_of_several_deltas_are_composed_at_the_smallest(make, first):
    other = make("two.db", SECOND, START + 1000, policy=signed_policy(delta=Fraction(1, 10**5)))
    other.driver.admit(admission(1, anchor=ANCHOR))
    other.driver.steps(1)
    found = traced(first, other.closed())
    assert found.delta == 1e-6 and found.epsilon == epsilon_of_phases([Phase(1.0, 0.02, 12)], 1e-6)


def test_a_limit_is_held_only_if_every_run_had_room_for_it_as_it_was_planned(make):
    """Each run alone has room for its plan. The second stopped so early that both stay below the limit all the same."""
    limit = {"max_epsilon_micro": 2_000_000, "max_delta_pico": 10**6}
    exports = []
    for name, signer in (("one.db", SIGNER), ("two.db", SECOND)):
        made = make(name, signer, START + 1000 * len(exports))
        made.driver.admit(admission(1, anchor=ANCHOR, **limit))
        made.driver.steps(10 if not exports else 1)
        exports.append(made.closed())
    (alone,), (both,) = traced(exports[0]).limits, traced(*exports).limits
    assert alone.held and alone.planned <= 2 < both.planned
    assert both.used <= 2 and not both.held


def test_a_failed_export_is_asked_nothing(make, first):
    second = again(make, first)
    bundle = next(path for path in (first / "tile" / "entries").rglob("*") if path.is_file())
    data = bytearray(bundle.read_bytes())
    data[len(data) // 2] ^= 1
    bundle.write_bytes(data)
    with pytest.raises(ExportRefused, match="nothing that it says can be relied on") as caught:
        traced(second, first)
    assert caught.value.code == "FAILED"


def test_two_histories_of_one_ledger_are_refused_and_of_two_copies_the_longer_is_asked(make, tmp_path):
    made = make("one.db")
    made.driver.admit(admission(1, anchor=ANCHOR))
    made.driver.steps(1)
    early = made.export("early")
    (tmp_path / "other").mkdir()
    made.driver.ledger.close()
    shutil.copytree(tmp_path, tmp_path / "other", dirs_exist_ok=True, ignore=lambda *_: ["other", "one.early"])
    exports = []
    for place, windows in ((tmp_path / "one.db", 3), (tmp_path / "other" / "one.db", 2)):
        with Ledger.open(place, SIGNER) as ledger:
            driver = Driver(ledger, now=START + 100 * windows, streams=100)
            driver.ledger.resume(ledger.state.position, ledger.pin(), now=driver.tick())
            driver.steps(windows)
            exports.append(ledger.export(place.with_suffix(".late")))
    found = traced(early, exports[0])
    assert [item.opened.given.path for item in found.runs] == [exports[0]] and found.found[0].trace.steps == 16
    with pytest.raises(LedgerForked, match="two histories"):
        traced(*exports)


def test_an_export_shorter_than_another_run_says_is_refused(make, tmp_path):
    made = make("one.db")
    made.driver.admit(admission(1, anchor=ANCHOR))
    made.driver.steps(1)
    early = made.export("early")
    second = again(make, made.closed())
    with pytest.raises(LedgerBehind, match="give a longer export"):
        traced(early, second)


@pytest.mark.parametrize("admitted", [True, False])
def test_a_run_whose_key_was_lost_counts_with_its_whole_plan(make, admitted):
    """Whoever had the key may have charged it, and admitted others: so far as nobody shows, it is as the plan says."""
    one = make("one.db")
    one.driver.admit(admission(1, anchor=ANCHOR) if admitted else admission(2))
    one.driver.steps(1)
    if admitted:
        one.driver.withdraw(1)
    lost, policy = one.export(), signed_policy().policy
    whole = policy.steps + policy.redo_steps
    registry = SpentRegistry([earlier_run(lost, KEYS, reason=COMPROMISED)])
    two = make("two.db", SECOND, START + 1000, previous=registry.previous)
    two.driver.admit(admission(1, anchor=ANCHOR, carried_micro=10**8))
    two.driver.steps(1)
    two.driver.withdraw(1)
    heir = two.closed()
    found = traced(lost, heir)
    by_then = whole if admitted else whole + 4
    assert found.epsilon == epsilon_of_phases([Phase(1.0, 0.02, whole + 4)], 1e-6)
    assert found.withdrawal.epsilon == epsilon_of_phases([Phase(1.0, 0.02, by_then)], 1e-6)
    assert [item.lost for item in found.runs] == [True, False] and "KEY_LOST" in found.qualifiers
    assert len(found.found) == 1 + admitted and len(found.composed) == 2
    one.driver.steps(1)
    with pytest.raises(LedgerForked, match="where its key was lost"):
        traced(one.export("later"), heir)


def test_limits_of_one_export_alone_are_held_against_no_other_run(make, first):
    assert "LIMITS_ALONE" in traced(first).qualifiers
    made = make("two.db", SECOND, START + 1000)
    made.driver.admit(admission(9))
    assert "LIMITS_ALONE" in traced(first, made.export("open")).qualifiers, "an open one may admit it still"
    assert "LIMITS_ALONE" not in traced(first, made.closed()).qualifiers


def test_what_was_charged_elsewhere_after_a_withdrawal_is_told_apart(make):
    """The second run began before the withdrawal and went on after it: nobody had brought it there."""
    one, two = make("one.db"), make("two.db", SECOND, START + 3)
    for made in (one, two):
        made.driver.admit(admission(1, anchor=ANCHOR))
        made.driver.steps(1)
    one.driver.now = two.driver.now = START + 500
    one.driver.withdraw(1)
    two.driver.now += 10
    two.driver.steps(2)
    one.driver.steps(1)
    found = traced(one.closed(), two.closed())
    gone = found.withdrawal
    assert gone.origin == SIGNER.name and gone.leaf.reason == "contributor" and gone.steps_after == 8
    assert gone.epsilon == epsilon_of_phases([Phase(1.0, 0.02, 8)], 1e-6)
    assert found.epsilon == epsilon_of_phases([Phase(1.0, 0.02, 16)], 1e-6) > gone.epsilon
    assert [item.trace.steps for item in found.found] == [4, 12]


def test_an_end_that_nobody_signed_is_no_withdrawal(make):
    made = make("one.db")
    made.driver.admit(admission(1, anchor=ANCHOR))
    made.driver.steps(1)
    made.driver.ledger.withdraw(descriptor(1), EXPIRED, admission(1).attestation_hash, now=made.driver.tick())
    found = traced(made.closed())
    assert found.withdrawal is None and found.found[0].trace.withdraw.reason == EXPIRED


def test_releases_that_it_may_have_influenced_are_those_after_a_charge_to_it(make):
    made = make("one.db")
    run, released = made.driver, []

    def release(step: int) -> None:
        digest = bytes([len(released)]) * 32
        released.append(run.ledger.record_release(digest, bytes(32), step, now=run.tick()))

    run.admit(admission(2))
    run.steps(1)
    release(4)  # before it was admitted
    run.admit(admission(1, anchor=ANCHOR))
    release(4)  # admitted, and nothing charged to it
    run.steps(1)
    release(8)
    run.withdraw(1)
    run.steps(1)
    release(12)  # what was learned stays
    found = traced(made.closed()).found[0].trace
    assert [row.seq for row in found.releases] == released[2:]
    assert {row.parts for row in found.releases} == {("full", "base")}
    assert found.releases[0].manifest_digest == bytes([2]) * 32 and [row.step for row in found.releases] == [8, 12]


def test_no_word_of_the_operator_keeps_weights_from_who_may_have_influenced_them(make):
    """A release is of the last released step, which goes back where a run is resumed; the weights at hand need not."""
    made = make("one.db")
    run, keys = made.driver, (bytes(32), bytes(32))
    run.admit(admission(2))
    run.steps(1)
    run.admit(admission(1, anchor=ANCHOR))
    run.steps(1)
    for step in (0, 4, 7, 9):
        with pytest.raises(LeafRefused, match="the last released step is 8") as caught:
            run.ledger.record_release(*keys, step, now=run.tick())
        assert caught.value.code == "RELEASE"
    run.ledger.resume(4, run.ledger.pin(), now=run.tick())
    seq = run.ledger.record_release(*keys, 4, now=run.tick())
    (row,) = traced(made.export()).found[0].trace.releases
    assert (row.seq, row.step) == (seq, 4)


def test_a_release_from_before_steps_were_done_again_is_not_one_that_it_influenced(make):
    """Its only window redoes steps that the release had: of a lower number, and charged later."""
    run = make("one.db").driver
    run.admit(admission(2))
    run.steps(2)
    run.ledger.record_release(bytes(32), bytes(32), 8, now=run.tick())
    run.admit(admission(1, anchor=ANCHOR))
    run.ledger.resume(4, run.ledger.pin(), now=run.tick())
    run.steps(1)
    with run.ledger.rows() as rows:
        bodies = [row.body for row in rows]
    found, other = (trace(run.ledger.state, bodies, wanted) for wanted in (WANTED, Wanted(descriptor_hash=descriptor(2))))
    assert [window.first_step for window in found.windows] == [5] and found.releases == ()
    assert [row.step for row in other.releases] == [8]


def test_a_contribution_that_was_never_drawn_in_public_influenced_nothing(make):
    made = make("one.db", policy=signed_policy(disclosure="occurrences_public"))
    run = made.driver
    run.admit(admission(1, anchor=ANCHOR), admission(2))
    window = run.charge()
    for step, drawn in zip(range(1, 5), ([1], [1], [], [1]), strict=True):
        run.ledger.draw(step, drawn, now=run.tick())
    run.ledger.settle(window, 4, now=run.tick())
    run.ledger.record_release(bytes(32), bytes(32), 4, now=run.tick())
    export = made.closed()
    never, drawn = (traced(export, wanted=wanted) for wanted in (WANTED, Wanted(descriptor_hash=descriptor(2))))
    assert never.found[0].trace.releases == () and never.epsilon == 0.0 and never.found[0].trace.occurrences == 0
    assert len(drawn.found[0].trace.releases) == 1 and drawn.epsilon > 0
    assert DRAWS not in never.unseen


def test_a_public_class_in_one_run_leaves_no_bound_over_all(make, first):
    rules = signed_policy().policy.classes
    bounds = {"clip_norm_micro": PUBLIC_BOUNDS.clip_micro, "noise_multiplier_micro": PUBLIC_BOUNDS.sigma_micro}
    public = replace(rules[0], public=True, depth=DepthRule(layers=(0,)), **bounds)
    made = make("two.db", SECOND, START + 1000, policy=signed_policy(classes=(public, rules[1])))
    limits = {"clip_micro": PUBLIC_BOUNDS.clip_micro, "sigma_micro": PUBLIC_BOUNDS.sigma_micro}
    made.driver.admit(admission(1, anchor=ANCHOR, **limits), admission(3, "sensitive"))
    made.driver.steps(1)
    found = traced(first, made.closed())
    assert found.epsilon is None and [item.trace.epsilon is None for item in found.found] == [False, True]


def test_an_anchor_that_pairs_two_contributions_or_names_another_key_is_refused(make, first):
    right = Wanted(ANCHOR, descriptor(1))
    assert traced(first, wanted=right, signers=lambda header: {b"key00001"}).descriptors == (descriptor(1),)
    for wrong in (Wanted(ANCHOR, descriptor(2)), Wanted(ANCHOR, descriptor(99)), Wanted(bytes(32), descriptor(1))):
        with pytest.raises(AnchorRefused) as caught:
            traced(first, wanted=wrong)
        assert caught.value.code == "DESCRIPTOR"
    with pytest.raises(AnchorRefused, match="give the registry, which knows both") as caught:
        traced(first, wanted=right, signers=lambda header: {b"key00002"})
    assert caught.value.code == "KEY"


def test_a_ledger_and_its_export_say_one_thing(make):
    made = make("one.db")
    made.driver.admit(admission(1, anchor=ANCHOR))
    made.driver.steps(2)
    export = made.closed()
    with made.driver.ledger.rows() as rows:
        own = trace(made.driver.ledger.state, (row.body for row in rows), WANTED)
    assert traced(export).found[0].trace == own


def test_a_run_that_names_nobody_is_told_and_a_member_record_lets_it_count(make, first, tmp_path):
    """The figure over both runs leaves out a run in which the contribution may have stayed: it says so, until it is shown."""
    policy = signed_policy(retention_epochs=1, auditors=(ANNA.vkey, BEN.vkey), auditor_quorum=2)
    spec = header_spec(policy, previous=SpentRegistry([earlier_run(first, KEYS)]).previous)
    driver = Driver(Ledger.create(tmp_path / "two.db", spec, SECOND, now=START + 1000), now=START + 1000)
    driver.admit(admission(1, anchor=ANCHOR, carried_micro=10**6), admission(3))
    for _ in range(2):
        driver.steps(1)
        driver.epoch()
    with driver.ledger as ledger:
        summary = ledger.summarise(now=driver.tick())
        ledger.finish(now=driver.tick())
        vouched_for(driver, ANNA, BEN)
        whole = traced(first, ledger.export(tmp_path / "whole"))
        shown = ledger.member(descriptor(1))
        record = prove_admitted(summary.seq, [found for found, _ in ledger.state.tally.summarised], shown)
        ledger.prune(who_stays=True)
        folded = ledger.export(tmp_path / "folded")
    hidden = traced(first, folded)
    assert hidden.epsilon < whole.epsilon and [item.unnamed for item in hidden.runs] == [0, 2]
    assert "one of the 2 contributions that stayed in" in hidden.unseen[0]
    for wanted in (WANTED, Wanted(descriptor_hash=descriptor(1))):
        found = traced(first, folded, wanted=wanted, members=[record])
        assert found.epsilon == whole.epsilon and not any(item.unnamed for item in found.runs)
        assert found.found[1].trace.pruned and found.found[1].trace.steps == whole.found[1].trace.steps
    with pytest.raises(LedgerError, match=r"NOT_FOUND.*give its member record"):
        traced(folded, wanted=Wanted(descriptor_hash=descriptor(1)))
    for wrong in (Wanted(bytes(32), descriptor(1)), Wanted(ANCHOR, descriptor(3))):
        with pytest.raises(AnchorRefused) as caught:
            traced(folded, wanted=wrong, members=[record])
        assert caught.value.code == "DESCRIPTOR", "the record says both names"


def test_of_a_pruned_contribution_a_trace_says_what_is_left_and_on_whose_word(tmp_path):
    """Its bounds and charges stay; the id of its contributor's key went with the ADMIT leaf, so no signer contradicts it."""
    made = crowded_and_pruned(tmp_path / "ledger.db", tmp_path, people=24, retention_hash_epochs=0)
    with made.ledger:
        made.ledger.export(tmp_path / "export")
        key = made.ledger.state.keys.current
    exports = open_exports([tmp_path / "export"], [key])
    opened = exports[0].run
    left = next(item for item in opened.contributions.values() if item.seq == opened.pruned[0])
    found = trace_over(exports, Wanted(None, left.descriptor_hash), lambda header: ())
    (run,) = found.found
    assert run.trace.pruned and run.trace.withdraw is not None and "PRUNED" in found.qualifiers
    assert 0 <= left.group.epsilon_micro - run.trace.epsilon * 1e6 <= 2 and found.epsilon == run.trace.epsilon
