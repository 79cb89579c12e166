"""Membership files: whose row of a SPEND leaf it is, shown beside the proof of the leaf, and refused for anybody else's."""

from dataclasses import replace

import pytest

from ledger.errors import LeafRefused, ProofError
from ledger.leaves import Spend, decode_leaf
from ledger.log import Ledger
from ledger.proofs.membership import MAX_MEMBER_SIZE, Membership, find_membership, parse_membership, verify_membership
from ledger.retention import named_by_withdrawals
from tests.ledger.spends import told
from tests.worlds.ledgers import SIGNER, START, Driver, admission, descriptor, header_spec, signed_policy
from tests.worlds.retained_ledgers import pruned_run


def bodies(ledger: Ledger) -> list[bytes]:
    pruned = ledger.pruned()
    with ledger.rows() as rows:
        return [row.body for row in rows] if pruned is None else list(pruned.entries(rows))


@pytest.fixture
def run(path):
    """Nine of one class, of whom 3 leaves in the first epoch and 5 in the second, one of another class, and a late one."""
    driver = Driver(Ledger.create(path, header_spec(), SIGNER, now=START))
    driver.admit(*map(admission, range(9)), admission(20, "sensitive"))
    driver.steps(1)
    driver.withdraw(3)
    driver.epoch()
    driver.steps(1)
    driver.withdraw(5)
    driver.epoch()
    driver.admit(admission(30))
    yield driver
    driver.ledger.close()


def shown(entries: list[bytes], n: int) -> tuple[Spend, Membership]:
    found = find_membership(entries, descriptor(n), named_by_withdrawals(entries))
    assert found is not None
    leaf = decode_leaf(found[0])
    assert isinstance(leaf, Spend)
    return leaf, found[1]


def test_everybody_is_shown_its_own_last_row(run):
    entries = bodies(run.ledger)
    rows = told([decode_leaf(entry) for entry in entries])
    for n in (*range(9), 20):
        leaf, proof = shown(entries, n)
        assert verify_membership(parse_membership(proof.to_bytes()), leaf) == rows[descriptor(n)]
        assert entries[proof.leaf] and decode_leaf(entries[proof.leaf]) == leaf
    assert find_membership(entries, descriptor(30)) is None, "no epoch has closed since it came"
    assert find_membership(entries, descriptor(99)) is None, "it was never there"


def test_nobody_is_shown_the_row_of_another(run):
    entries = bodies(run.ledger)
    leaf, proof = shown(entries, 1)
    early, left = shown(entries, 3)
    assert leaf.seq != early.seq
    for wrong, code in (
        (replace(proof, descriptor_hash=descriptor(5)), "INCLUSION"),
        (replace(proof, descriptor_hash=descriptor(20)), "INCLUSION"),
        (replace(proof, row=proof.row + 1), "INCLUSION"),
        (replace(proof, place=proof.place + 1), "INCLUSION"),
        (replace(proof, hashes=proof.hashes[:-1]), "INCLUSION"),
        (replace(proof, row=len(leaf.rows)), "OTHER_LEAF"),
        (replace(proof, leaf=proof.leaf + 1), "OTHER_LEAF"),
        (left, "OTHER_LEAF"),
    ):
        with pytest.raises(ProofError) as refused:
            verify_membership(wrong, leaf)
        assert refused.value.code == code, wrong
    with pytest.raises(ProofError, match="OTHER_LEAF"):
        verify_membership(proof, decode_leaf(entries[1]))


def test_no_changed_byte_of_a_membership_file_proves_the_same(run):
    leaf, proof = shown(bodies(run.ledger), 7)
    data = proof.to_bytes()
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(ProofError):
            verify_membership(parse_membership(bytes(changed)), leaf)
    for wrong in (b"", data[:-1], data + b"\n", data * 2, data.replace(b"row ", b"row 0"), data + b"A" * MAX_MEMBER_SIZE):
        with pytest.raises(ProofError, match="MEMBER_FORMAT"):
            parse_membership(wrong)


def test_members_are_shown_where_draws_are_public(path):
    with Ledger.create(path, header_spec(signed_policy(disclosure="occurrences_public")), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(*map(admission, range(5)))
        window = driver.charge(2)
        for step, drawn in ((1, (0, 2, 4)), (2, (4,))):
            ledger.draw(step, drawn, now=driver.tick())
        ledger.settle(window, 2, now=driver.tick())
        driver.withdraw(2)
        driver.epoch()
        entries = bodies(ledger)
    for n, drawn in enumerate((1, 0, 1, 0, 2)):
        leaf, proof = shown(entries, n)
        row = verify_membership(proof, leaf)
        assert (row.occurrences, row.window_until) == (drawn, 1 if n == 2 else None)


def test_members_are_shown_where_admissions_were_pruned(path):
    driver = pruned_run(path)
    with driver.ledger as ledger:
        entries = bodies(ledger)
        for n in (2, 4, 6):
            leaf, proof = shown(entries, n)
            row = verify_membership(proof, leaf)
            assert row.window_until is not None
            assert row.epsilon_micro / 1e6 == pytest.approx(ledger.epsilon(descriptor(n)), abs=2e-6)


def test_what_begins_with_no_header_is_no_ledger():
    for entries in ([], [b"\xa0"]):
        with pytest.raises(LeafRefused):
            find_membership(entries, descriptor(1))
