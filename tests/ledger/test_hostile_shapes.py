"""Ledgers made to be slow: what an audit does for one more leaf must not grow with the leaves before it."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger import merkle
from ledger.accountants import core
from ledger.accountants.pld import contour, tilted
from ledger.audit import verify_export
from ledger.audit.bounds import AttestedPool
from ledger.audit.given import Export, Roots
from ledger.errors import LeafRefused
from ledger.leaves import HELD, Admit, Epoch, Resume, encode_leaf
from ledger.merkle import SlotTree, leaf_hash, root_of_hashes
from ledger.note import NoteSigner
from ledger.replay import Replay
from ledger.replay import signer as rotation
from ledger.replay.contributions import EMPTY_SLOT, Moment
from ledger.replay.permits import Reached
from ledger.replay.register import Register
from ledger.replay.state import Expenditure
from ledger.replay.summaries import Tally
from tests.worlds.ledgers import SIGNER, START, Driver, Ledger, admission, descriptor, header_spec, signed_policy
from tests.worlds.retained_ledgers import leaves_of

START_OF_RUN, FIRST_WINDOW = Moment(0, 0, (0,)), Moment(1, 0, (4,))


@dataclass(eq=False)
class Standing:
    """A contribution, as far as a pool looks at it."""

    slot: int
    class_index: int = 0


class Counter:
    """Counts the calls of a function."""

    def __init__(self, function):
        self.calls, self.function = 0, function

    def __call__(self, *arguments):
        self.calls += 1
        return self.function(*arguments)


def admit(n, class_name="open"):
    spec = admission(n, class_name)
    fields = {name: getattr(spec, name) for name in Admit.__dataclass_fields__ if hasattr(spec, name)}
    return Admit(seq=n + 1, time=START, **fields)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 100)), max_size=120), st.integers(1, 9))
def test_a_tree_that_changes_in_place_has_the_root_of_its_leaves(changes, every):
    """None appends, a number replaces; the root is asked for now and then."""
    tree, leaves = SlotTree(), []
    assert tree.root() == merkle.EMPTY_ROOT
    for n, change in enumerate(changes):
        hash_ = leaf_hash(b"%d" % n)
        if change is None or not leaves:
            assert tree.append(hash_) == len(leaves)
            leaves.append(hash_)
        else:
            tree.replace(change % len(leaves), hash_)
            leaves[change % len(leaves)] = hash_
        if n % every == 0:
            assert tree.root() == root_of_hashes(leaves)
    assert tree.root() == root_of_hashes(leaves) and tree.size == len(leaves)
    for index, hash_ in enumerate(leaves):
        merkle.verify_inclusion_hash(hash_, index, len(leaves), tree.inclusion_proof(index), tree.root())


def test_a_pool_root_after_one_change_costs_one_path(monkeypatch):
    """An ADMIT or WITHDRAW between all charges made 100,000 contributions 10^10 hashes."""
    register, count = Register(signed_policy().policy.classes), 1024
    for n in range(count):
        register.admit(admit(n), 0, START_OF_RUN)
    _, before = register.pool(0)
    counter = Counter(merkle._pair_hash)
    monkeypatch.setattr(merkle, "_pair_hash", counter)
    assert register.pool(0) == (count, before) and counter.calls == 0
    for n in range(0, count, 8):
        register.withdraw(register.by_number[n], FIRST_WINDOW)
        register.admit(admit(count + n), 0, FIRST_WINDOW)
        register.pool(0)
    assert counter.calls <= 2 * 12 * count // 8
    members = [leaf_hash(c.descriptor_hash) if c.active else EMPTY_SLOT for c in register.by_number]
    assert register.pool(0) == (count, root_of_hashes(members))


def test_a_pool_root_tells_who_is_in_it_and_in_which_order():
    first, second, third = (Register(signed_policy().policy.classes) for _ in range(3))
    for register, order in ((first, (1, 2, 3)), (second, (2, 1, 3)), (third, (1, 3))):
        for n in order:
            register.admit(admit(n), 0, START_OF_RUN)
    first.withdraw(first.by_hash[descriptor(2)], START_OF_RUN)
    second.withdraw(second.by_hash[descriptor(2)], START_OF_RUN)
    assert [pool.pool(0)[0] for pool in (first, second, third)] == [2, 2, 2]
    assert len({pool.pool(0)[1] for pool in (first, second, third)}) == 3


def test_an_epoch_costs_nothing_for_those_who_left_before():
    """A group of its own for everybody who left; an epoch looks at none of them again."""
    register = Register(signed_policy().policy.classes)
    for n in range(100):
        register.admit(admit(n), 0, START_OF_RUN)
        if n:
            register.withdraw(register.by_number[n], Moment(n, 0, (4 * n,)))
    charged = (400,)
    assert len([*register.groups.changed(charged)]) == 100
    register.groups.close_epoch(charged, whole=True)
    for n in range(50):
        assert [group.count for group in register.groups.changed((401 + n,))] == [1]
        register.groups.close_epoch((401 + n,), whole=True)


@pytest.mark.parametrize("disclosure", ["secret_poisson", "occurrences_public"])
def test_an_epoch_without_a_charge_looks_at_the_groups_alone_that_somebody_joined_or_left(tmp_path, monkeypatch, disclosure):
    """400 groups and 400 empty epochs, or 400 in which one was admitted each, cost their product."""
    with Ledger.create(tmp_path / "ledger.db", header_spec(signed_policy(disclosure=disclosure)), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(*(admission(n, clip_micro=1_000_000 - n) for n in range(60)))
        for n in range(60):
            driver.epoch()
            driver.admit(admission(60 + n, clip_micro=900_000 - n))
            driver.epoch()
        ledger.export(tmp_path / "export")
        assert ledger.state.spends == 120
    counter = Counter(Expenditure.variance)
    monkeypatch.setattr(Expenditure, "variance", lambda *arguments: counter(*arguments))
    assert verify_export(tmp_path / "export", [SIGNER.vkey]).verdict == "TOLD"
    assert counter.calls == 120, "once for every row"


def test_what_was_told_of_no_group_is_asked_for_by_the_next_epoch_too(tmp_path):
    """An auditor goes on behind a finding: a row that is missing once is missing until it is there."""
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1), admission(2))
        run: Replay = ledger.state
        missing = []
        for number in (1, 2):
            leaf = Epoch(run.size, START + 99, number, 0, 0, run.totals(), bytes(32), HELD, None)
            missing.append([problem.code for problem in run.apply(leaf)])
        assert missing == [["EPOCH_ORDER"], ["EPOCH_ORDER"]]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 7), st.integers(0, 40)), max_size=40))
def test_who_is_in_the_pool_before_an_attestation_begins_is_counted_whoever_came_and_went(events):
    """Behind a CLOCK leaf every charge looked at the terms of all."""
    pool, starts, inside = AttestedPool(1), (5, 10, 10, 15, 20, 25, 30, 35), {}
    for first in starts:
        pool.add_terms(first, 100)
    for slot, (enters, number, time) in enumerate(events):
        if enters:
            inside[slot] = number, Standing(slot)
            pool.enter(inside[slot][1], number)
        elif inside:
            pool.leave(inside.pop(min(inside))[1])
        assert pool.early(time) == sum(starts[number] > time for number, _ in inside.values())


def test_a_charge_behind_a_clock_that_was_set_back_looks_at_the_latest_beginning_alone(monkeypatch):
    pool = AttestedPool(1)
    for number in range(100):
        pool.add_terms(number, 1000)
        pool.enter(Standing(number), number)

    class Untouchable:
        def __iter__(self):
            raise AssertionError("all terms are looked at")

    monkeypatch.setattr(pool, "_not_before", Untouchable())
    assert [pool.early(time) for time in range(99, 200)] == [0] * 101


def test_a_summary_finds_the_end_of_its_range_among_the_closed_epochs_without_a_look_at_each(tmp_path):
    looks = []

    class Segment:
        def __init__(self, end):
            self._end = end

        @property
        def end(self):
            looks.append(self._end)
            return self._end

    with Ledger.create(tmp_path / "l.db", header_spec(signed_policy(retention_epochs=1)), SIGNER, now=START) as ledger:
        tally = Tally(ledger.header)
    tally._closed = [Segment(10 * n) for n in range(1, 1001)]
    found = tally._range(SimpleNamespace(first=tally.start, end=20))
    assert [item._end for item in found] == [10, 20] and len(looks) <= 15
    for end in (0, 5, 25, 10_001):
        with pytest.raises(LeafRefused, match="a range ends behind an EPOCH leaf"):
            tally._range(SimpleNamespace(first=tally.start, end=end))
    with pytest.raises(LeafRefused, match="keeps 1 epochs, 0 follow"):
        tally._range(SimpleNamespace(first=tally.start, end=10_000))


def test_what_was_reached_by_a_size_is_looked_up():
    reached, leaves = Reached(), [(3, 4), (5, 8), (9, 8), (12, 2), (20, 11)]
    assert reached.by(10**6) == reached.most == 0
    for seq, step in leaves:
        reached.take(seq, step)
    for size in range(25):
        assert reached.by(size) == max((step for seq, step in leaves if seq < size), default=0)
    assert reached.most == 11


def test_a_resumption_does_not_look_at_every_window(tmp_path):
    """Alternating CHARGE and RESUME leaves cost their product."""
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1))
        driver.steps(3)
        run: Replay = ledger.state

        class Untouchable(list):
            def __iter__(self):
                raise AssertionError("all windows are looked at")

        run.windows = Untouchable(run.windows)
        good = Resume(run.size, START + 99, 1, 12, run.size, bytes(32), None)
        run._root_at = lambda size: bytes(32)
        assert run.apply(good) == []
        assert [p.code for p in run.apply(Resume(run.size, START + 99, 2, 13, run.size, bytes(32), None))] == ["RESUME"]


def test_a_change_of_the_key_does_not_read_all_keys_before(tmp_path, monkeypatch):
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        run: Replay = ledger.state
        old, counts = SIGNER, []
        parse = Counter(rotation.parse_verifier_key)
        monkeypatch.setattr(rotation, "parse_verifier_key", parse)
        for n in range(20):
            private = Ed25519PrivateKey.from_private_bytes(bytes([100 + n]) * 32)
            new = NoteSigner(run.header.origin, private)
            before = parse.calls
            assert run.apply(rotation.rotation(run.header, run.size, START, old, new)) == []
            counts.append(parse.calls - before)
            old = new
        assert counts[0] == counts[-1]
        assert [run.keys.at(size) for size in (0, 1, 2, 3, 21)] == [run.keys.vkeys[n] for n in (0, 0, 1, 2, 20)]
        again = rotation.rotation(run.header, run.size, START, old, SIGNER)
        assert [problem.code for problem in run.apply(again)] == ["LOG_KEY"]


def test_roots_that_leaves_cite_read_a_bundle_once(tmp_path):
    """One root per RESUME leaf, of whatever size, was one bundle read, split and hashed twice, and all tiles before it."""
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(*(admission(n) for n in range(700)))
        size = ledger.size
        ledger.export(tmp_path / "export")
        hashes = [leaf_hash(encode_leaf(leaf)) for leaf in leaves_of(ledger)]
    faults = []
    export = Export(tmp_path / "export", lambda *fault: faults.append(fault))
    assert export.scan()
    _, checkpoint = export.checkpoint([SIGNER.vkey])
    assert export.check_names(size)
    leaves = export.leaves(checkpoint)
    roots, cited = Roots(leaves), [size, 0, 1, 255, 256, 257, 511, 512, 513, 600, 300, 2, size]
    assert [roots.at(n) for n in cited] == [root_of_hashes(hashes[:n]) for n in cited]
    read, export.names = export.names, set()  # nothing more can be read
    assert [roots.at(n) for n in range(0, size + 1, 7)] == [root_of_hashes(hashes[:n]) for n in range(0, size + 1, 7)]
    assert not faults and read


def test_personal_bounds_cost_one_short_sum_each_and_epoch(tmp_path, monkeypatch):
    """A hundred signed noise multipliers were a hundred transforms of 2^17 points for each epoch, in 30 KB of export."""
    policy = signed_policy(steps=256, redo_steps=0, window_steps=128)
    with Ledger.create(tmp_path / "ledger.db", header_spec(policy), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(*(admission(n, sigma_micro=1_000_001 + n) for n in range(8)))
        # What the noise of others gives them is more than any of these asks for: they are one group.
        driver.admit(*(admission(n, clip_micro=500_000, sigma_micro=1_000_001 + n) for n in range(8, 16)))
        for _ in range(2):
            driver.steps(1, 128)
            driver.epoch()
        ledger.finish(now=driver.tick())
        ledger.export(tmp_path / "export")
    core.cached.cache_clear()
    short, transforms = Counter(contour.epsilon), Counter(tilted.epsilon)
    monkeypatch.setattr(contour, "epsilon", short)
    monkeypatch.setattr(tilted, "epsilon", transforms)
    assert verify_export(tmp_path / "export", [SIGNER.vkey]).verdict == "TOLD"
    assert short.calls == 2 * (8 + 1) + 2, "and one at the preset of each class"
    assert transforms.calls <= 1, "content replaced, of the dearest of a class alone"
