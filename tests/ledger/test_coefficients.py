"""Coefficients of a policy's noise that lie in the leaves behind the header: whole, in order, and those of the digest."""

import hashlib
from dataclasses import replace

import pytest

from attest.policy.mechanism import COEFFICIENTS, Bands, MechanismRule
from ledger.errors import LeafRefused
from ledger.leaves import Close, Coefficients, coefficient_leaves, decode_leaf, encode_leaf, read_header
from ledger.leaves.records import MOST_PART
from ledger.log import Ledger
from ledger.log.followed import Followed, contents_of
from ledger.replay import Replay
from ledger.storage.fsck import set_unfinished_aside, set_unused_aside
from ledger.storage.highwater import path_of
from tests.vectors.conformance.correlated import BANDS, DENSE, drawn, seven, under
from tests.worlds.attested_ledgers import AttestedDriver, attested_header, attested_policy
from tests.worlds.ledgers import SIGNER, START

LONG = [1 << 20, *(1 << 19 for _ in range(19_999))]
DATA = b"".join(number.to_bytes(4, "big") for number in LONG)
LARGE = MechanismRule("banded_toeplitz", Bands(bands=len(LONG)), hashlib.sha256(DATA).digest(), DATA)


def spec(rule=DENSE, **changes):
    return attested_header(attested_policy(**under(rule, **changes)))


def header_of(rule=DENSE):
    return spec(rule).header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)


def test_a_header_takes_the_coefficients_of_its_digest_and_no_others() -> None:
    whole = header_of()
    alone = decode_leaf(encode_leaf(whole))
    assert whole.complete and not alone.complete and alone == whole
    assert alone.awaited == len(DENSE.coefficients) == 4 * 12 * 13 // 2
    for wrong in (DENSE.coefficients[:-1] + b"\xff", DENSE.coefficients[:-4], b""):
        with pytest.raises(LeafRefused) as refused:
            alone.complete_with(wrong)
        assert refused.value.code == COEFFICIENTS and not alone.complete
    alone.complete_with(DENSE.coefficients)
    assert alone.complete and alone.policy.mechanism.coefficients == DENSE.coefficients
    lying = decode_leaf(encode_leaf(replace(decode_leaf(encode_leaf(whole)), turns=(whole.turns[0], whole.turns[0]))))
    with pytest.raises(LeafRefused) as refused:
        lying.complete_with(DENSE.coefficients)
    assert refused.value.code == "TURNS"
    assert header_of(BANDS).complete and header_of(BANDS).awaited == 0


def test_a_ledger_begins_with_as_many_leaves_as_hold_them(tmp_path) -> None:
    with Ledger.create(tmp_path / "run.db", spec(LARGE), SIGNER, now=START) as ledger:
        assert ledger.size == 3 == ledger.state.begins_with and ledger.checkpoint_sizes == [3]
        with ledger.rows() as rows:
            bodies = [row.body for row in rows]
    leaves = [decode_leaf(body) for body in bodies[1:]]
    assert [(type(leaf), leaf.seq, len(leaf.data)) for leaf in leaves] == [
        (Coefficients, 1, MOST_PART),
        (Coefficients, 2, len(DATA) - MOST_PART),
    ]
    assert list(coefficient_leaves(read_header(bodies))) == leaves and not list(coefficient_leaves(header_of(BANDS)))
    for gone in ([bodies[0]], bodies[:2], [bodies[0], bodies[2]], bodies[1:], []):
        with pytest.raises(LeafRefused):
            read_header(gone)
    with Ledger.open(tmp_path / "run.db", SIGNER) as ledger:
        assert ledger.header.complete and ledger.header.policy.mechanism.coefficients == DATA
        driver = AttestedDriver(ledger, now=START)
        seven(driver)
        drawn(driver)
        followed = Followed(contents_of(ledger))
        assert followed.size == ledger.size and followed.header.complete
    assert set_unused_aside(ledger.place, SIGNER) is None


def test_without_them_no_ledger_begins(tmp_path) -> None:
    whole = attested_policy(**under(DENSE))
    policy = replace(whole, policy=replace(whole.policy, mechanism=replace(DENSE, coefficients=None)))
    with pytest.raises(LeafRefused, match="put it beside the policy"):
        Ledger.create(tmp_path / "run.db", attested_header(policy), SIGNER, now=START)
    assert not (tmp_path / "run.db").exists()


def test_a_ledger_that_was_just_begun_is_set_aside_like_one_of_a_header_alone(tmp_path) -> None:
    for rule in (LARGE, BANDS):
        path = tmp_path / f"{rule.parameters.bands}.db"
        with Ledger.create(path, spec(rule), SIGNER, now=START) as ledger:
            place = ledger.place
        assert set_unused_aside(place, SIGNER) is None  # an export could hold all of it
        path_of(place).unlink()
        assert set_unfinished_aside(place) is not None and not path.exists()


def test_leaves_are_judged_once_the_coefficients_are_there_in_parts_of_their_size() -> None:
    whole = header_of(LARGE)
    first, second = coefficient_leaves(whole)
    close = Close(1, START, 0, 0)
    for leaves, code in (
        ((close,), COEFFICIENTS),
        ((first, replace(close, seq=2)), COEFFICIENTS),
        ((replace(first, data=first.data[:-4]),), COEFFICIENTS),
        ((first, replace(second, data=second.data + bytes(4))), COEFFICIENTS),
        ((first, replace(second, data=second.data[:-4] + bytes(4))), COEFFICIENTS),
        ((first, second, replace(second, seq=3)), COEFFICIENTS),
    ):
        run = Replay(decode_leaf(encode_leaf(whole)), lambda size: bytes(32))
        for leaf in leaves[:-1]:
            assert run.apply(leaf) == []
        with pytest.raises(LeafRefused) as refused:
            run.apply(leaves[-1])
        assert refused.value.code == code and refused.value.seq == len(leaves)
