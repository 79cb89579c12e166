"""The Python of docs/formats/figures.md is the rule of every figure: it gives the numbers of the conformance vectors."""

import itertools
import json
import re
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ledger.accountants import check
from ledger.accountants.table import RELEASE, TABLE
from ledger.leaves.numerics import FLOAT32, FLOAT64, SUMS32, Numerics
from tests.interop import second_verifier

DOCS = Path(__file__).resolve().parents[2] / "docs" / "formats"
NUMBERS = json.loads((Path(__file__).parent / "conformance" / "numbers.json").read_text())
read = second_verifier.from_json


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names that the blocks of the page make, run in their order."""
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", (DOCS / "figures.md").read_text(encoding="utf-8"), re.M | re.S):
        exec(compile(block, "figures.md", "exec"), names)
    return names


def test_standard_deviations_and_multipliers(page):
    for row in NUMBERS["stds"]:
        std = page["std_of_block"](row["sigma_and_clip"])
        assert (std, std * std) == (read(row["std"]), read(row["variance"]))
        assert [[scale, page["in_phase"](std, scale)] for scale, _ in row["phases"]] == read(row["phases"])
    for row in NUMBERS["effective"]:
        assert page["effective"](read(row["stds"]), row["shares"] or None) == read(row["effective"])
    for row in NUMBERS["multipliers"]:
        z = page["multiplier"](row["sigma"], row["clip"], read(row["effective"]))
        assert (z, 1 / (z * z)) == (read(row["multiplier"]), read(row["loss"]))
    for row in NUMBERS["per_sample"]:
        square, recorded = page["per_sample"](row["sigma_and_clip"])
        assert (str(square), recorded) == (row["variance"], read(row["recorded"]))
        assert page["loss_per_sample"](row["clip"], square) == read(row["loss"])


def test_clip_budgets_bind_where_the_sum_over_blocks_is_within_the_signed_noise(page):
    stds, shares = [1.5, 1.0], [1_000_000, 500_000]
    assert page["budgets_bind"](1_000_000, 1_000_000, stds, shares)  # 0.8 / 2.25 + 0.2 / 1 is 0.556
    assert page["budgets_bind"](1_341_640, 1_000_000, stds, shares)
    assert not page["budgets_bind"](1_341_641, 1_000_000, stds, shares)
    effective = page["effective"](stds, shares)
    assert effective**2 == pytest.approx(1 / (0.8 / 2.25 + 0.2))
    assert page["variance"](effective) == effective * effective and page["loss_added"](2.0) == 0.25


def test_turns(page):
    for row in NUMBERS["turns"]:
        members = [[n for n, place in enumerate(row["classes"]) if place == one] for one in range(len(row["periods"]))]
        for step, expected in enumerate(row["due"], start=1):
            found = []
            for place, (period, own) in enumerate(zip(row["periods"], members, strict=True)):
                due = page["due"](row["order"], len(own), period, step, bytes.fromhex(row["run_id"]), place)
                found += [own[number] for number in due]
            assert sorted(found) == expected
    for row in NUMBERS["permutations"]:
        period = row["members"]  # one step then takes everybody whose place in the period it is
        first = row["period"] * period + 1
        found = [
            page["due"]("shuffled", row["members"], period, first + at, bytes.fromhex(row["run_id"]), row["class"])
            for at in range(period)
        ]
        assert [number for numbers in found for number in numbers] == row["sorted"]


@pytest.mark.parametrize("row", NUMBERS["strategies"], ids=lambda row: row["mechanism"][0])
def test_correlated_noise(page, row):
    (family, parameters, digest), steps = read(row["mechanism"]), row["steps"]
    found = page["Strategy"](family, parameters, steps, None if digest is None else bytes.fromhex(row["file"]))
    assert (found.largest, found.slack) == (read(row["largest"]), read(row["slack"]))
    assert getattr(found, "column", None) == read(row.get("column"))
    page["check_size"](family, parameters, found, [expected["period"] for expected in row["classes"]])
    for expected in row["classes"]:
        period = expected["period"]
        assert [found.occurrence(period, t) for t in range(steps)] == read(expected["occurrences"])
        again = [[found.again(period, t, o) for o in range(min(t + 1, period))] for t in sorted({0, steps // 2, steps - 1})]
        assert again == read(expected["again"])
        assert found.header(period) == [period, read(expected["most"]), read(expected["dearest"])]


def test_noise_beyond_what_readers_add_up_is_refused(page):
    strategy = page["Strategy"]("banded_toeplitz", {1: 2, 2: [2**20, 1]}, 4)
    page["check_size"]("banded_toeplitz", {1: 2, 2: [2**20, 1]}, strategy, [2])
    strategy.n = 2**22 + 1
    with pytest.raises(ValueError, match="refused"):
        page["check_size"]("banded_toeplitz", {1: 2, 2: [2**20, 1]}, strategy, [2])
    many = ("banded_toeplitz", 2**23, 9)
    for family, bands, steps in (("dense", None, 2049), ("banded", 5, 4), ("banded", 2, 2**14 + 1), many):
        with pytest.raises(ValueError, match="refused"):
            page["numbers_in_file"](family, bands, steps)


def test_copies(page):
    for row in NUMBERS["copies"]:
        family, parameters, _ = read(row["mechanism"])
        bands = len(parameters[2]) if family in second_verifier.CORRELATED else 1
        assert (page["copies"](row["groups"], bands, row["life"]) if bands > 1 else []) == row["at_least"]


def test_plans_of_runs(page):
    q, phases = Fraction(1, 4), [(2.0, 10), (1.0, 5)]
    assert page["plan"](phases, q, 3, False) == [(2.0, q, 10), (1.0, q, 8)]
    assert page["plan"](phases, q, 3, True) == [(2.0, q, 4), (1.0, q, 6)]


def test_plans_of_groups(page):
    assert page["plan_of_groups"](10, 3, 2, 1.5, 1) == [(1.5, 6)]
    assert page["plan_of_groups"](10, 3, 1, 1.5, 2) == [(1.5, 3), (1.5 / 2**0.5, 2)]
    page["check_groups"](3, 1, "banded_toeplitz", 3, 100, 5, "secret_draws")
    for wrong in (
        (3, 1, "banded_toeplitz", 4, 100, 5, "secret_draws"),
        (3, 1, "dense", 3, 9, 0, "secret_draws"),
        (4097, 1, "gaussian", 1, 9, 0, "secret_draws"),
        (3, 1, "gaussian", 1, 9, 0, "occurrences_public"),
    ):
        with pytest.raises(ValueError, match="refused"):
            page["check_groups"](*wrong)


def agree(found: float, row: dict[str, Any]) -> bool:
    expected = read(row["epsilon"])
    return abs(found - expected) <= (read(row["within"]) if "within" in row else 1e-9 * expected)


def pld(page: dict[str, Any], schedule: list[Any], delta: float) -> float:
    """The figure that the page describes, with the grid of the second verifier, which adds T h^2 / 6 by itself."""

    def exact(sampled: list[Any], m: float, delta: float) -> float:
        rest, steps, width = page["pld_case"](schedule, delta)
        assert m == pytest.approx(rest + steps * width**2 / 6)
        return second_verifier.grid_epsilon([(q, z, n) for z, q, n in sampled], rest, delta, width)

    return page["pld"](schedule, delta, exact)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("row", NUMBERS["pld"] + NUMBERS["capped"], ids=lambda row: str(read(row["phases"])))
def test_epsilons_of_privacy_loss_distributions(page, row):
    schedule, delta = [tuple(phase) for phase in read(row["phases"])], read(row["delta"])
    found = pld(page, schedule, delta)
    if "occurrences" in row:
        assert agree(page["capped"](found, schedule, row["occurrences"], 1, delta), row)
        return
    assert agree(found, row)
    case = page["pld_case"](schedule, delta)
    if type(case) is tuple:
        small = read(row["within"]) == 1e-6
        assert page["small_error"](schedule, delta, read(row["epsilon"]), case[2]) is small
        recorded = row["recorded"] / 1e6
        assert page["taken"](recorded, found, found if small else read(row["epsilon"]), delta, schedule, case[2], 4e-7)
        assert not page["taken"](recorded - 2e-6, found, found if small else recorded, delta, schedule, case[2], 4e-7)


RUNS = [
    ("pld", "gaussian", [(1.0, 0.02, 300)], 0.0, 0),
    ("pld", "gaussian", [(1.3, 0.05, 100), (2.6, 0.05, 50)], 0.0, 3),
    ("rdp", "gaussian", [(0.9, 0.01, 200)], 0.0, 0),
    ("moments", "gaussian", [(2.0, 0.1, 10)], 0.0, 0),
    ("pld", "gaussian", [], 0.7, 0),
    ("rdp", "skellam", [(3.0, 1, 4)], 0.0, 0),
    ("rdp", "discrete_gaussian", [], 0.4, 0),
]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("chosen", [[0], [1], [0, 1], [0, 4], [0, 2], [2, 3, 4], [5, 6], [5], [6, 6], [1, 2, 5]], ids=str)
def test_several_runs_together(page, chosen):
    runs, delta = [RUNS[place] for place in chosen], 1e-6

    def alone(schedule: list[Any], share: float) -> float:
        return second_verifier.pld_epsilon([(q, z, n) for z, q, n in schedule], share)[0]

    theirs = [second_verifier.Spending(a, f, [(q, z, n) for z, q, n in rows], loss, cap) for a, f, rows, loss, cap in runs]
    assert page["composed"](runs, delta, alone) == pytest.approx(second_verifier.composed(theirs, delta), rel=1e-9)
    if len(runs) > 1:
        limit = (4_000_000, Fraction(1, 10**5))
        accounts = []
        for place, spent in enumerate(theirs):
            run = SimpleNamespace(earlier=[None] * place, began=place)
            accounts.append(second_verifier.Account(run, spent, spent, [limit]))
        expected = second_verifier.reached(limit, accounts)
        assert page["used"](4.0, 1e-5, runs, runs[0]) == pytest.approx(expected, rel=1e-9)


def test_accountants_are_those_of_the_table(page):
    found = {(name, row.library, row.version.replace(RELEASE, "*").replace("\\", "")): row.parameters
             for name in ("pld", "rdp", "moments", "prv") for row in check("gaussian", name).recorders(name)}  # fmt: skip
    assert found == page["ACCOUNTANTS"]
    for family, (name, library, version, parameters) in page["OTHER_FAMILIES"].items():
        (row,) = check(family, name).recorders(name)
        assert (row.library, row.version.replace(RELEASE, "*"), row.parameters) == (library, version, parameters)


LEVELS = [(name, level) for name, cost in sorted(TABLE.items()) for level in cost.exactness]


@pytest.mark.parametrize(("family", "level"), LEVELS)
def test_numerics_are_those_of_the_table(page, family, level):
    rule = SimpleNamespace(public=False, bounds=SimpleNamespace(noise_multiplier=1.1))
    policy: Any = SimpleNamespace(exactness=level, classes=(rule,), mechanism=SimpleNamespace(name=family))
    for coordinates in (1000, 2**23, 2**29):
        bits = page["bits_of"](family, coordinates, 1.1)
        for single in (True, False):
            wires = (FLOAT64, FLOAT32, SUMS32) if level == "fast" and single else (FLOAT64,)
            made = itertools.product([FLOAT32 if single else FLOAT64], TABLE[family].generators, wires)
            ours = [Numerics(*one) for one in made]
            notes, margin = page["numerics"](level, family, bits, single)
            assert {one.margin(policy) for one in ours} == {margin}
            assert {one.note(policy, coordinates) for one in ours} == set(notes)
