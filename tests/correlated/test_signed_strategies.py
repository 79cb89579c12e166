"""Strategies as a policy signs them: whole numbers, a file where there are many, and the loss of the optimum kept."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from attest.errors import PolicyRefused
from attest.policy.mechanism import GRID_BITS, Bands, MechanismRule
from dptrain.noise.correlated import blt, choice, dense, toeplitz
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
    rule, file = rule_of(strategy)
    assert rule.name == (name if name in MechanismRule.PARAMETERS else "banded_toeplitz")
    assert (file is None) == (rule.digest is None) and (file is None or rule.digest == hashlib.sha256(file).digest())
    found = strategy_of(rule, N, file)
    matrix, back = strategy.matrix(N), found.matrix(N)
    first = matrix[0, 0] / back[0, 0]
    assert np.abs(first * back - matrix).max() <= max(first, 1.0) * 1.01 * 2.0**-GRID_BITS
    participation = Participation(16)
    loss = [sensitivity(one, N, participation).value ** 2 * choice.error(one, N) for one in (strategy, found)]
    assert loss[1] == pytest.approx(loss[0], rel=1e-5)
    again, file_again = rule_of(found)
    assert again == rule and file_again == file  # on the grid already


def test_a_file_has_rows_up_to_the_diagonal():
    banded = Banded(((1.0, 2.0, 3.0), (4.0, 5.0, 6.0), (7.0, 8.0, 9.0)), normalized=False)
    matrix = [[1.0, 0, 0], [2.0, 4.0, 0], [3.0, 5.0, 7.0]]
    assert banded.matrix(3).tolist() == matrix
    for strategy in (banded, Dense(matrix)):
        _, file = rule_of(strategy)
        assert np.frombuffer(file, ">i4").tolist() == [value << 20 for value in (1, 2, 4, 3, 5, 7)]
    _, file = rule_of(Banded(((1.0, 2.0), (4.0, 5.0), (7.0, 8.0))))
    assert np.frombuffer(file, ">i4").tolist() == [value << 20 for value in (1, 2, 4, 5, 7)]


def test_numbers_are_those_of_the_policy():
    rule = MechanismRule("banded_toeplitz", Bands(bands=3, coefficients=(1 << 20, 1 << 19, -1)))
    assert strategy_of(rule, N) == Toeplitz((1.0, 0.5, -(2.0**-20)))
    assert strategy_of(replace(rule, parameters=replace(rule.parameters, normalized=True)), N).longest == N
    many = Toeplitz(tuple(np.linspace(1.0, 0.0, 5000)))
    rule, file = rule_of(many)
    assert len(file) == 20_000 and rule.parameters == Bands(bands=5000)
    assert strategy_of(rule, 6000, file).coefficients[1] == pytest.approx(many.coefficients[1], abs=2.0**-20)


@pytest.mark.parametrize(
    ("rule", "file", "told"),
    [
        (MechanismRule(), None, "not correlated"),
        (rule_of(STRATEGIES["dense"])[0], None, "in a file"),
        (rule_of(STRATEGIES["dense"])[0], b"\x00" * 8, "not those of noise.digest"),
        (MechanismRule("dense", None, hashlib.sha256(b"abc").digest()), b"abc", r"3 bytes, expected 8320"),
        (MechanismRule("dense", None, hashlib.sha256(bytes(8320)).digest()), bytes(8320), "diagonal"),
        (MechanismRule("banded", Bands(bands=2), hashlib.sha256(bytes(508)).digest()), bytes(508), "diagonal"),
        (
            MechanismRule("banded_inverse", Bands(bands=2, coefficients=(1 << 20, 5), normalized=True)),
            None,
            "not normalised",
        ),
    ],
)
def test_what_is_no_signed_strategy_is_refused(rule, file, told):
    with pytest.raises(AccountantError, match=told) as refused:
        strategy_of(rule, N, file)
    assert refused.value.code == "STRATEGY"


def test_what_has_no_word_is_refused():
    for strategy in (identity(), Buffered((), ())):
        with pytest.raises(AccountantError, match="no strategy to sign"):
            rule_of(strategy)
    with pytest.raises(AccountantError, match="scale the strategy"):
        rule_of(Dense(np.diag([1.0, 5000.0])))
    with pytest.raises(PolicyRefused):  # a column that grows has no place in a policy
        rule_of(Toeplitz((1.0, 1.5)))
