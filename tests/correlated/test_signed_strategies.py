"""Strategies as a policy signs them: whole numbers, a file where there are many, and the loss of the optimum kept."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from attest.errors import PolicyRefused
from attest.policy.mechanism import GRID_BITS, Bands, MechanismRule
from dptrain.noise.correlated import CorrelatedGaussian, blt, choice, dense, toeplitz
from dptrain.noise.keystream import KeyStream
from ledger.accountants.correlated import (
    Banded,
    BandedInverse,
    Buffered,
    Dense,
    Participation,
    Toeplitz,
    identity,
    rule_of,
    sensitivity,
    strategy_of,
)
from ledger.errors import AccountantError

N = 64
COLUMN = tuple(toeplitz.optimal_coefficients(N, 8))
STRATEGIES = {
    "banded_toeplitz": Toeplitz(COLUMN),
    "normalised": Toeplitz(COLUMN, N),
    "scaled": Toeplitz(tuple(3.0 * c for c in COLUMN)),
    "banded_inverse": BandedInverse(tuple(toeplitz.banded_inverse_square_root(N, 8))),
    "buffered_toeplitz": blt.optimize(N, 3),
    "banded": Banded(tuple(tuple(row) for row in 1.0 + np.random.default_rng(2).random((N, 3)))),
    "dense": dense.optimize(N, 16),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_comes_back_within_the_grid_and_loses_nothing(name):
    strategy = STRATEGIES[name]
    rule = rule_of(strategy)
    file = rule.coefficients
    assert rule.name == (name if name in MechanismRule.PARAMETERS else "banded_toeplitz")
    assert (file is None) == (rule.digest is None) and (file is None or rule.digest == hashlib.sha256(file).digest())
    found = strategy_of(rule, N)
    matrix, back = strategy.matrix(N), found.matrix(N)
    first = matrix[0, 0] / back[0, 0]
    assert np.abs(first * back - matrix).max() <= max(first, 1.0) * 1.01 * 2.0**-GRID_BITS
    participation = Participation(16)
    loss = [sensitivity(one, N, participation).value ** 2 * choice.error(one, N) for one in (strategy, found)]
    assert loss[1] == pytest.approx(loss[0], rel=1e-5)
    again = rule_of(found)
    assert again == rule and again.coefficients == file  # on the grid already


def test_a_file_has_rows_up_to_the_diagonal():
    banded = Banded(((1.0, 2.0, 4.0), (8.0, 6.0, 5.0), (3.0, 8.0, 9.0)), normalized=False)
    matrix = [[1.0, 0, 0], [2.0, 8.0, 0], [4.0, 6.0, 3.0]]
    assert banded.matrix(3).tolist() == matrix
    for strategy in (banded, Dense(matrix)):  # the largest becomes 1
        file = rule_of(strategy).coefficients
        assert np.frombuffer(file, ">i4").tolist() == [value << 17 for value in (1, 2, 8, 4, 6, 3)]
    file = rule_of(Banded(((1.0, 2.0), (8.0, 5.0), (7.0, 8.0)))).coefficients
    assert np.frombuffer(file, ">i4").tolist() == [value << 17 for value in (1, 2, 8, 5, 7)]


def test_numbers_are_those_of_the_policy():
    rule = MechanismRule("banded_toeplitz", Bands(bands=3, coefficients=(1 << 20, 1 << 19, -1)))
    assert strategy_of(rule, N) == Toeplitz((1.0, 0.5, -(2.0**-20)))
    assert strategy_of(replace(rule, parameters=replace(rule.parameters, normalized=True)), N).longest == N
    many = Toeplitz(tuple(np.linspace(1.0, 0.0, 5000)))
    rule = rule_of(many)
    assert len(rule.coefficients) == 20_000 and rule.parameters == Bands(bands=5000)
    assert strategy_of(rule, 6000).coefficients[1] == pytest.approx(many.coefficients[1], abs=2.0**-20)


def in_file(name, parameters, data):
    return MechanismRule(name, parameters, hashlib.sha256(data).digest(), data)


@pytest.mark.parametrize(
    ("rule", "steps", "told"),
    [
        (MechanismRule(), N, "not correlated"),
        (in_file("dense", None, b"abc"), N, r"3 bytes, expected 8320"),
        (in_file("dense", None, bytes(8320)), N, "diagonal"),
        (in_file("banded", Bands(bands=2), bytes(508)), N, "diagonal"),
        (in_file("banded", Bands(bands=N + 1), bytes(508)), N, "as many bands at most"),
        (in_file("dense", None, b"abc"), 2049, "2048 steps at most"),
        (in_file("banded", Bands(bands=2), b"abc"), (1 << 14) + 1, "16384 steps at most"),
        (in_file("banded", Bands(bands=1 << 10), b"abc"), 1 << 14, "4194304 at most"),
        (in_file("banded_toeplitz", Bands(bands=(1 << 22) + 1), b"abc"), N, "4194304 at most"),
        (MechanismRule("banded_inverse", Bands(bands=2, coefficients=(1 << 20, 5), normalized=True)), N, "not normalised"),
    ],
)
def test_what_is_no_signed_strategy_is_refused(rule, steps, told):
    with pytest.raises(AccountantError, match=told) as refused:
        strategy_of(rule, steps)
    assert refused.value.code == "STRATEGY"


def test_coefficients_are_those_of_the_digest_or_said_to_be_missing():
    rule = rule_of(STRATEGIES["dense"])
    alone = replace(rule, coefficients=None)
    assert alone == rule and rule.coefficients not in repr(rule).encode()
    with pytest.raises(AccountantError, match="put it beside the policy") as refused:
        strategy_of(alone, N)
    assert refused.value.code == "COEFFICIENTS"
    assert (strategy_of(alone.with_coefficients(rule.coefficients), N).rows == strategy_of(rule, N).rows).all()
    for wrong in (alone, MechanismRule()):
        with pytest.raises(PolicyRefused) as refused:
            wrong.with_coefficients(rule.coefficients[:-1] + b"\x01")
        assert refused.value.code == "COEFFICIENTS"


def test_products_are_sums_in_the_order_of_rows_and_no_librarys():
    """Two readers on two machines have to find the same bits."""
    for name in ("banded", "dense"):
        strategy = strategy_of(rule_of(STRATEGIES[name]), N)
        rows = strategy.rows if name == "dense" else None
        for lag in (0, 1, 2, 16):
            found = strategy.gram(N, lag)
            for j in (0, 5, N - 1 - lag):
                total = 0.0
                for i in range(j + lag, N):
                    if name == "dense":
                        total += float(rows[i, j + lag]) * float(rows[i, j])
                    elif i - j < strategy.bands:
                        total += float(strategy.rows[j, i - j]) * float(strategy.rows[j + lag, i - j - lag])
                if name == "banded":
                    total = total * float(strategy._factors[j]) * float(strategy._factors[j + lag])
                assert found[j] == total


def test_who_makes_noise_knows_the_inverse_as_well_as_readers_count_on():
    known = strategy_of(rule_of(STRATEGIES["dense"]), N)
    assert known.known_slack(N) < 1e-9 < known.slack(N) == 2.0**-20
    rough = np.eye(N) - np.tril(np.full((N, N), 0.12), -1)
    rough[-1, -1] = 2.0**-6
    found = strategy_of(rule_of(Dense(rough, share=0.1)), N)
    assert found.apart < 1e-9 and 2.0**-20 < found.known_slack(N) < 1e-4  # ten digits, which are not enough here
    with pytest.raises(AccountantError, match="cannot be turned over so well") as refused:
        CorrelatedGaussian(KeyStream("noise", b"alone", 0, bytes(32)), found, N)
    assert refused.value.code == "STRATEGY"


def test_what_has_no_word_is_refused():
    for strategy in (identity(), Buffered((), ())):
        with pytest.raises(AccountantError, match="no strategy to sign"):
            rule_of(strategy)
    with pytest.raises(AccountantError, match="scale the strategy"):
        rule_of(Toeplitz((1.0, 5000.0)))
    with pytest.raises(PolicyRefused):  # a column that grows has no place in a policy
        rule_of(Toeplitz((1.0, 1.5)))
