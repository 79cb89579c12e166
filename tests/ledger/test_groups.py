"""Groups against contributions: over random runs a row tells of each member what a count for that one contribution alone gives.

The count here is plain and slow: per contribution the windows between its admission and its withdrawal, the attempts that these
lie in, and the steps it was drawn in where draws are public; then one call of an accountant.
"""

import random
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attest.descriptor import PUBLIC_BOUNDS
from attest.policy import ClassRule
from ledger import accountants
from ledger.audit import verify_export
from ledger.leaves import MAX_LEAF_SIZE, Previous, Spend, SpendRow, decode_leaf, encode_leaf, spend_leaves
from ledger.log import Ledger
from ledger.merkle import root
from ledger.note import NoteSigner
from tests.ledger.spends import rows_of, told
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START, Driver, admission, descriptor, header_spec, signed_policy
from tests.worlds.retained_ledgers import leaves_of

RATES = {"open": 0.02, "sensitive": 0.01}
BEFORE = NoteSigner("ledger.example/run0", OTHER_KEY)
EARLIER = Previous(BEFORE.name, 9, bytes(32), b"\x01" * 32, BEFORE.vkey, "spent")
KINDS = [
    ("open", 1.0, {}),
    ("open", 4.0, {"sigma_micro": 4_000_000}),
    ("open", 1.0, {"max_occurrences": 1}),
    ("open", 1.0, {"carried_micro": 7}),
    ("open", 1.0, {"max_epsilon_micro": 10**10, "max_delta_pico": 10**6}),
    ("sensitive", 3.0, {}),
    ("public", None, {"clip_micro": PUBLIC_BOUNDS.clip_micro, "sigma_micro": PUBLIC_BOUNDS.sigma_micro}),
]
"""Class, effective noise multiplier, and what is signed beside the presets; public contributions are never accounted for."""


def policy(**changes: object):
    rules = signed_policy().policy.classes
    bounds = {"clip_norm_micro": PUBLIC_BOUNDS.clip_micro, "noise_multiplier_micro": PUBLIC_BOUNDS.sigma_micro}
    public = ClassRule(name="public", public=True, sampling_rate=rules[0].sampling_rate, depth=rules[0].depth, **bounds)
    return signed_policy(steps=400, redo_steps=400, classes=(*rules, public), **changes)


def spec_of(n: int, kind: int):
    name, _, changes = KINDS[kind]
    if name != "public":
        return admission(n, name, **changes)
    return replace(admission(n, **changes), class_name="public", profile_id=2)


@dataclass
class Naive:
    """One contribution, counted by itself."""

    kind: int
    first_attempt: int
    windows: list[tuple[int, int]] = field(default_factory=list)
    last_attempt: int = 0
    active: bool = True
    drawn: int = 0

    def epsilon(self, public_draws: bool) -> float | None:
        name, z, changes = KINDS[self.kind]
        steps, cap = sum(count for _, count in self.windows), changes.get("max_occurrences", 0)
        if z is None:
            return None
        if public_draws:
            return accountants.epsilon_occurrences(sum(1 / z**2 for _ in range(self.drawn)), 1e-6)
        attempts = max(self.last_attempt, self.first_attempt) - self.first_attempt + 1
        if cap and steps:
            phase = accountants.Phase(z, RATES[name], steps)
            return accountants.epsilon_of_phases_capped([phase], min(cap * attempts, steps), 1e-6)
        return accountants.epsilon(z, RATES[name], steps, 1e-6) if steps else 0.0


class Life:
    """A run, its naive account, and the members of every group as docs/formats has them."""

    def __init__(self, path: Path, *, public_draws: bool) -> None:
        self.public_draws = public_draws
        rules = {"disclosure": "occurrences_public"} if public_draws else {}
        spec = header_spec(policy(**rules), caps_enforced=not public_draws, previous=(EARLIER,))
        self.run = Driver(Ledger.create(path, spec, SIGNER, now=START))
        self.people: list[Naive] = []
        self.attempt = self.charged_attempt = self.windows = 0
        self.joined: dict[tuple, list[bytes]] = {}
        self.keys: dict[int, tuple] = {}

    def admit(self, kind: int) -> None:
        n = len(self.people)
        self.run.admit(spec_of(n, kind))
        self.people.append(Naive(kind, self.attempt, last_attempt=self.charged_attempt))
        self.keys[n] = (kind, self.windows, self.attempt)
        self.joined.setdefault((*self.keys[n], None), []).append(descriptor(n))

    def charge(self, steps: int, chance: random.Random, *, abandoned: bool = False) -> None:
        window = self.run.charge(steps)
        self.windows, self.charged_attempt = self.windows + 1, self.attempt
        for one in self.people:
            if one.active:
                one.windows.append((self.attempt, steps))
                one.last_attempt = self.attempt
        if self.public_draws:
            for step in range(window.first_step, window.first_step + steps):
                drawn = [n for n, one in enumerate(self.people) if one.active and chance.random() < 0.5]
                self.run.ledger.draw(step, drawn, now=self.run.tick())
                for n in drawn:
                    self.people[n].drawn += 1
        if abandoned:
            self.run.ledger.resume(self.run.ledger.state.position, self.run.ledger.pin(), now=self.run.tick())
            self.attempt += 1
        else:
            self.run.ledger.settle(window, steps, now=self.run.tick())

    def withdraw(self, n: int) -> None:
        if self.people[n].active:
            self.run.withdraw(n)
            self.people[n].active = False
            members = self.joined[(*self.keys[n], None)]
            members[members.index(descriptor(n))] = b""
            self.joined.setdefault((*self.keys[n], self.windows), []).append(descriptor(n))

    def check(self) -> None:
        """Holds everybody's row against the count, and the members of every row against who joined."""
        self.run.epoch()
        rows = told(leaves_of(self.run.ledger))
        for n, one in enumerate(self.people):
            exact = one.epsilon(self.public_draws)
            if exact is None:
                assert descriptor(n) not in rows
                continue
            row = rows[descriptor(n)]
            assert exact <= row.epsilon_micro / 1e6 <= exact + 2e-6
            assert row.steps == sum(count for _, count in one.windows)
            assert self.run.ledger.epsilon(descriptor(n)) == pytest.approx(exact, abs=1e-12)
            if not self.public_draws:
                until = row.window_until
                members = self.joined[(*self.keys[n], until)]
                assert (row.count, row.members_root) == (sum(map(bool, members)), root(members))
        private = [n for n, one in enumerate(self.people) if KINDS[one.kind][1] is not None]
        counted = {id(row): row.count for n, row in ((n, rows[descriptor(n)]) for n in private)}
        assert sum(counted.values()) == len(private), "everybody is counted once"


@settings(max_examples=15, deadline=None)
@given(
    events=st.lists(
        st.sampled_from(["admit", "admit", "charge", "charge", "abandon", "withdraw", "epoch"]), min_size=3, max_size=14
    ),
    public_draws=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_what_a_group_is_told_to_have_spent_is_what_each_member_has(events, public_draws, seed):
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        life = Life(Path(folder) / "ledger.db", public_draws=public_draws)
        for event in events:
            if event == "admit":
                life.admit(chance.randrange(len(KINDS)))
            elif event == "withdraw":
                if life.people:
                    life.withdraw(chance.randrange(len(life.people)))
            elif event == "epoch":
                life.check()
            else:
                life.charge(chance.randint(1, 4), chance, abandoned=event == "abandon")
        life.check()
        ledger = life.run.ledger
        ledger.finish(now=life.run.tick())
        assert verify_export(ledger.export(Path(folder) / "export"), [SIGNER.vkey]).findings == ()
        state = ledger.state
        place, root_of_all = ledger.place, ledger.root
        ledger.close()
        with Ledger.open(place, SIGNER, recompute=True) as again:
            assert again.root == root_of_all and again.state.spends == state.spends


def test_an_epoch_in_which_nothing_was_charged_and_nobody_came_or_left_has_no_row(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        run = Driver(ledger)
        run.admit(admission(1), admission(2), admission(3, "sensitive"))
        run.steps(1)
        run.epoch()
        size = ledger.size
        run.epoch()
        assert ledger.size == size + 1, "an EPOCH leaf and nothing before it"
        run.admit(admission(4))
        run.epoch()
        assert [row.window_before for row in rows_of(leaves_of(ledger)[size:])] == [1]


def test_an_epoch_writes_a_row_per_group_however_many_members_it_has(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        run = Driver(ledger)
        run.admit(*(admission(n, "open" if n % 2 else "sensitive") for n in range(500)))
        run.steps(1)
        run.epoch()
        (leaf,) = (leaf for leaf in leaves_of(ledger) if isinstance(leaf, Spend))
    assert [row.count for row in leaf.rows] == [250, 250] and len(encode_leaf(leaf)) < 200


def test_an_epoch_hashes_no_member_again_who_stayed(tmp_path, monkeypatch):
    """Only the paths of those who came or left are hashed: at 200 000 contributions all of them would take a second."""
    from ledger import merkle

    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        run = Driver(ledger)
        run.admit(*map(admission, range(1024)))
        run.steps(1)
        run.epoch()
        calls, pair = [], merkle._pair_hash
        monkeypatch.setattr(merkle, "_pair_hash", lambda data: calls.append(data) or pair(data))
        run.steps(1)
        run.epoch()
        assert calls == []
        run.withdraw(5)
        run.epoch()
        assert len(calls) <= 10


def test_rows_are_cut_into_leaves_that_an_entry_bundle_holds():
    row = SpendRow(1, 10**15, 10**15, 2**31, 2**62, 2**62, 10**11, 2**40, 5, 2**41, 9, 0.1, 77, bytes(32), 99, 0.1, 2**60)
    rows = [replace(row, carried_micro=2**62 + n) for n in range(1500)]
    leaves = list(spend_leaves(2**62, START, rows))
    assert [row for leaf in leaves for row in leaf.rows] == rows
    assert [leaf.seq for leaf in leaves] == [2**62 + n for n in range(len(leaves))] and len(leaves) == 4
    for leaf in leaves:
        data = encode_leaf(leaf)
        assert len(data) <= MAX_LEAF_SIZE and decode_leaf(data) == leaf
    assert all(len(encode_leaf(leaf)) > MAX_LEAF_SIZE - 200 for leaf in leaves[:-1])
    assert list(spend_leaves(1, START, [])) == []
