"""Admission proofs: who was admitted under which terms is shown from a file, and nobody else's admission is."""

import contextlib
from dataclasses import replace

import pytest

from ledger.errors import ProofError
from ledger.leaves import Summary
from ledger.proofs.membership import Admitted, parse_admitted, prove_admitted, verify_admitted
from ledger.replay.summaries import Member, ShownMember
from tests.worlds.ledgers import Driver, admission, descriptor
from tests.worlds.retained_ledgers import ANNA, BEN, grown, leaves_of, vouched_for


@pytest.fixture
def run(path):
    """Six of two classes, of whom three left; summarised, closed, and whole."""
    driver = grown(path)
    driver.leaf = driver.ledger.summarise(now=driver.tick())
    driver.ledger.finish(now=driver.tick())
    vouched_for(driver, ANNA, BEN)
    yield driver
    driver.ledger.close()


def proof_of(run: Driver, n: int) -> Admitted:
    shown = run.ledger.member(descriptor(n))
    assert shown is not None
    return prove_admitted(run.leaf.seq, [found for found, _ in run.ledger.state.tally.summarised], shown)


def test_everybody_is_shown_its_own_admission_before_and_after_its_leaf_went(run):
    before = {n: proof_of(run, n) for n in range(1, 7)}
    run.ledger.prune(who_stays=True)
    for n, proof in before.items():
        terms = verify_admitted(parse_admitted(proof.to_bytes()), run.leaf)
        assert terms.bounds.clip_micro == {3: 500_000, 4: 250_000}.get(n, 1_000_000) and terms.class_index == (n in (3, 4))
        place = {1: 1, 2: 2, 3: 3, 4: 4, 5: 13, 6: 14}[n]
        assert proof.shown.member == Member(descriptor(n), place, admission(n).anchor)
    for n in (1, 3, 5):
        assert proof_of(run, n) == before[n], "from the members file"
    for n in (2, 4, 6):
        assert run.ledger.member(descriptor(n)) is None, "of who left nothing but a hash is kept"
    assert run.ledger.member(descriptor(99)) is None


def test_nobody_is_shown_the_admission_of_another(run):
    """A record of another, of another place, of one class shown as another, a lowered bound, and another leaf."""
    one, other = proof_of(run, 1), proof_of(run, 3)
    member = one.shown.member
    lowered = replace(one.aggregate, clip_micro=one.aggregate.clip_micro // 2)
    wrong = [
        replace(one, shown=replace(one.shown, member=replace(member, descriptor_hash=descriptor(9)))),
        replace(one, shown=replace(one.shown, member=replace(member, content_anchor=bytes(32)))),
        replace(one, shown=replace(one.shown, member=replace(member, seq=2))),
        replace(one, shown=replace(one.shown, member=replace(member, seq=9))),
        replace(one, shown=ShownMember(member, ())),
        replace(one, aggregate=other.aggregate),
        replace(one, aggregate=other.aggregate, place=other.place, path=other.path),
        replace(one, aggregate=lowered),
        replace(one, aggregate=replace(one.aggregate, class_index=1)),
        replace(one, place=one.place + 1),
        replace(one, leaf=one.leaf + 1),
    ]
    for proof in wrong:
        with pytest.raises(ProofError):
            verify_admitted(proof, run.leaf)
    for leaf in leaves_of(run.ledger):
        if not isinstance(leaf, Summary):
            with pytest.raises(ProofError, match="OTHER_LEAF"):
                verify_admitted(one, leaf)
    with pytest.raises(ProofError, match="NO_LEAF"):
        prove_admitted(run.leaf.seq, [other.aggregate], one.shown)


def test_what_is_read_is_exactly_what_is_written(run):
    data = proof_of(run, 5).to_bytes()
    assert parse_admitted(data).to_bytes() == data
    lines = data.split(b"\n")
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 7
        with contextlib.suppress(ProofError):
            assert parse_admitted(bytes(changed)).to_bytes() == bytes(changed)
    for broken in (b"", data[:-1], data + b"\n", b"\n".join(lines[1:]), data.replace(b"path 1", b"path 9"), bytes(20_000)):
        with pytest.raises(ProofError, match="ADMITTED_FORMAT"):
            parse_admitted(broken)
