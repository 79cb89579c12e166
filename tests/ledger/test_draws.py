"""Ledgers whose occurrences are public: every occurrence counted in full, recomputed by the auditor, nothing by sampling."""

import math
import re
from dataclasses import replace
from fractions import Fraction

import pytest
from spends import told

from attest.descriptor import PUBLIC_BOUNDS, SignedBounds
from attest.errors import ValueRefused
from attest.policy import ClassRule, DepthRule
from attest.schedule import occurrence_loss, realised_std
from ledger import accountants
from ledger.audit import verify_export
from ledger.errors import LeafRefused
from ledger.leaves import Admit, Draw, Settle, decode_leaf, encode_leaf
from ledger.log import Ledger
from ledger.replay import Replay
from ledger.report import write_report
from tests.worlds.ledgers import SIGNER, START, Driver, admission, descriptor, header_spec, signed_policy

PUBLIC = {"disclosure": "occurrences_public"}
LITERAL = PUBLIC | {"noise_injection": "per_sample"}

# Number, class, and what was signed in 1e-6: clip norm, noise multiplier.
SIGNED = [
    ("open", 10**6, 10**6),
    ("open", 10**6, 2 * 10**6),
    ("sensitive", 500_000, 3_000_000),
    ("sensitive", 250_000, 4_000_000),
]
DRAWS = [(0, 1), (), (2,), (0, 1, 2, 3), (3,), (1,), (0, 2), (0,)]


@pytest.fixture
def driver(tmp_path, request):
    changes = getattr(request, "param", PUBLIC)
    header = header_spec(signed_policy(**changes), caps_enforced=True)
    made = Driver(Ledger.create(tmp_path / "ledger.db", header, SIGNER, now=START))
    made.admit(
        *(
            admission(n, name, clip_micro=clip, sigma_micro=sigma, max_occurrences=6)
            for n, (name, clip, sigma) in enumerate(SIGNED)
        )
    )
    yield made
    made.ledger.close()


def run(driver, draws=DRAWS, windows=2):
    """Windows of four steps, every step drawn, then the close of an epoch."""
    steps = iter(enumerate(draws, start=1))
    for _ in range(windows):
        window = driver.charge(4)
        for step, drawn in (next(steps) for _ in range(4)):
            driver.ledger.draw(step, drawn, now=driver.tick())
        driver.ledger.settle(window, 4, now=driver.tick())
    driver.epoch()


def literal_variances(drawn):
    """V of the blocks of class open alone, and of the block that both may touch, in plain numbers."""
    own = [(SIGNED[n][1] * SIGNED[n][2] / 1e12) ** 2 for n in drawn]
    alone = sum(v for n, v in zip(drawn, own, strict=True) if SIGNED[n][0] == "open")
    return alone, sum(own)


def expected_loss(number, literal):
    """mu^2 from first principles: the sum over occurrences of (C / least noise)^2."""
    name, clip, sigma = SIGNED[number]
    total = 0.0
    for drawn in DRAWS:
        if number in drawn:
            alone, shared = literal_variances(drawn)
            if literal:
                least = min(alone, shared) if name == "open" else shared
                total += (clip / 1e6) ** 2 / least
            else:
                std = 1.0 if name == "open" else 1.5  # the schedule: sigma C of the most demanding class
                total += 1.0 / max(sigma / 1e6, std / (clip / 1e6)) ** 2
    return total


@pytest.mark.parametrize("driver, literal", [(PUBLIC, False), (LITERAL, True)], indirect=["driver"])
def test_epsilon_is_that_of_the_counted_occurrences(driver, literal, tmp_path):
    run(driver)
    delta = 1e-6
    for n in range(4):
        expected = accountants.gaussian.epsilon_of_mu(math.sqrt(expected_loss(n, literal)), delta)
        assert driver.ledger.epsilon(descriptor(n)) == pytest.approx(expected, rel=1e-9)
    # What amplification would have claimed is far less; that it is not claimed is the point.
    assert driver.ledger.epsilon(descriptor(0)) > 2 * accountants.epsilon(1.0, 0.02, 8, delta)
    assert driver.ledger.header.amplification == "none"
    driver.ledger.finish(now=driver.tick())
    exported = driver.ledger.export(tmp_path / "export")
    report = verify_export(exported, [SIGNER.vkey])
    assert report.verdict == "TOLD", report.findings
    assert [c.occurrences for c in report.classes] == [4, 3]
    assert any("public in this ledger" in note for note in report.notes)
    assert any("noise of a step follows its draw" in note for note in report.notes) is literal
    assert report.to_json()["noise_follows_draw"] is literal
    assert report.classes[0].epsilon_replace > report.classes[0].epsilon
    page = write_report(exported, tmp_path / "r.html", report=report).read_text()
    assert re.search(r"<th scope='col'[^>]*>occurrences</th>", page)
    assert ("Fixed before the first step, by the signed policy" in page) is not literal
    assert ("The noise of a step follows its draw" in page) is literal


@pytest.mark.parametrize("driver", [PUBLIC, LITERAL], indirect=True)
def test_spend_leaves_hold_the_epsilon_and_are_recomputed(driver, tmp_path):
    run(driver)
    with driver.ledger.rows() as rows:
        leaves = [decode_leaf(row.body) for row in rows]
    spent = {name: row.epsilon_micro for name, row in told(leaves).items()}
    for n in range(4):
        exact = driver.ledger.epsilon(descriptor(n)) * 1e6
        assert exact <= spent[descriptor(n)] <= exact + 2
    settled = [leaf.variances for leaf in leaves if isinstance(leaf, Settle)]
    if driver.ledger.header.per_sample:
        # In step 2 nobody was drawn, in step 5 nobody of class open.
        assert settled == [(0.0, 0.0), (0.0, pytest.approx(1.0))]
    else:
        assert settled == [(1.0, 2.25)] * 2


def test_the_variance_of_a_step_is_that_of_those_drawn():
    assert realised_std(0) == 0.0
    variance = SignedBounds(10**6, 10**6).variance + SignedBounds(500_000, 3_000_000).variance
    assert realised_std(variance) == pytest.approx(math.sqrt(1 + 2.25))
    assert occurrence_loss(SignedBounds(500_000, 3_000_000), variance) == pytest.approx(0.25 / 3.25)
    with pytest.raises(ValueRefused):
        occurrence_loss(SignedBounds(500_000, 3_000_000), 0)


@pytest.mark.parametrize("driver", [LITERAL], indirect=True)
def test_an_occurrence_never_costs_more_than_was_signed(driver):
    """z >= sigma_i at every occurrence, since a contribution that is drawn brings its own variance."""
    run(driver)
    for n, (_, _, sigma) in enumerate(SIGNED):
        found = driver.ledger.state.contributions[descriptor(n)]
        assert found.loss <= found.occurrences / (sigma / 1e6) ** 2 * (1 + 1e-12)


def refused(driver, *arguments):
    with pytest.raises(LeafRefused) as caught:
        driver.ledger.draw(*arguments, now=driver.tick())
    return caught.value.code


def test_draws_are_recorded_step_by_step_inside_an_open_window(driver):
    assert refused(driver, 1, (0,)) == "DRAW"
    driver.charge(4)
    assert refused(driver, 2, (0,)) == "DRAW"
    assert refused(driver, 1, (0, 4)) == "DRAW"
    assert refused(driver, 1, (-1,)) == "DRAW"
    driver.ledger.draw(1, (0,), now=driver.tick())
    assert refused(driver, 1, (0,)) == "DRAW"
    for step in (2, 3, 4):
        driver.ledger.draw(step, (), now=driver.tick())
    assert refused(driver, 5, (0,)) == "DRAW"


def test_a_released_step_without_a_draw_is_refused(driver):
    window = driver.charge(4)
    driver.ledger.draw(1, (0,), now=driver.tick())
    with pytest.raises(LeafRefused) as caught:
        driver.ledger.settle(window, 2, now=driver.tick())
    assert caught.value.code == "DRAW_MISSING"
    driver.ledger.settle(window, 1, now=driver.tick())


def test_what_was_drawn_counts_after_a_crash_and_what_was_not_does_not(driver):
    driver.charge(4)
    driver.ledger.draw(1, (0,), now=driver.tick())
    driver.ledger.resume(0, None, now=driver.tick())
    driver.charge(4)
    driver.ledger.draw(1, (0, 1), now=driver.tick())
    state = driver.ledger.state.contributions
    assert [state[descriptor(n)].occurrences for n in range(4)] == [2, 1, 0, 0]
    assert state[descriptor(0)].loss == 2.0
    assert driver.ledger.epsilon(descriptor(2)) == 0.0


@pytest.mark.parametrize("driver", [PUBLIC, LITERAL], indirect=True)
def test_a_run_does_not_resume_after_a_step_that_nobody_saw_drawn(driver):
    """A charge costs nobody anything here: were it enough, whole windows could be passed over without one DRAW leaf."""
    driver.charge(4)
    driver.ledger.draw(1, (0,), now=driver.tick())
    early = driver.ledger.pin()
    driver.ledger.draw(2, (1,), now=driver.tick())
    for step, pin in ((4, driver.ledger.pin()), (3, driver.ledger.pin()), (2, early)):
        with pytest.raises(LeafRefused) as caught:
            driver.ledger.resume(step, pin, now=driver.tick())
        assert caught.value.code == "RESUME"
    driver.ledger.resume(2, driver.ledger.pin(), now=driver.tick())
    driver.charge(4)
    driver.ledger.draw(3, (), now=driver.tick())
    driver.ledger.resume(2, driver.ledger.pin(), now=driver.tick())
    driver.ledger.resume(3, driver.ledger.pin(), now=driver.tick())


@pytest.mark.parametrize("driver", [PUBLIC], indirect=True)
def test_an_auditor_says_what_a_window_without_an_end_costs(driver, tmp_path):
    driver.charge(4)
    driver.ledger.draw(1, (0,), now=driver.tick())
    driver.ledger.resume(0, None, now=driver.tick())
    run(driver)
    report = verify_export(driver.ledger.export(tmp_path / "export"), [SIGNER.vkey])
    assert report.verdict == "TOLD", report.findings
    assert any("never settled; of the steps those with a draw count" in note for note in report.notes)


def test_who_was_withdrawn_or_has_reached_its_cap_is_drawn_no_more(driver):
    driver.withdraw(2)
    window = driver.charge(4)
    assert refused(driver, 1, (2,)) == "WITHDRAWN"
    driver.ledger.draw(1, (0,), now=driver.tick())
    for step in (2, 3, 4):
        driver.ledger.draw(step, (0,), now=driver.tick())
    driver.ledger.settle(window, 4, now=driver.tick())
    driver.charge(4)
    driver.ledger.draw(5, (0,), now=driver.tick())
    driver.ledger.draw(6, (0,), now=driver.tick())
    assert refused(driver, 7, (0,)) == "CAP"


def test_a_ledger_that_keeps_draws_secret_takes_none(tmp_path):
    """H12: a leaf that told a draw would void every epsilon of the ledger."""
    driver = Driver(Ledger.create(tmp_path / "l.db", header_spec(), SIGNER, now=START))
    driver.admit(admission(0))
    driver.charge(4)
    assert refused(driver, 1, (0,)) == "DRAW_SECRET"
    driver.ledger.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"drawn": (1, 0)},
        {"drawn": (0, 0)},
        {"drawn": (True,)},
        {"drawn": (-1,)},
        {"drawn": [0]},
        {"step": 0},
        {"variances": ()},
        {"variances": (float("nan"),)},
    ],
    ids=str,
)
def test_malformed_draws_are_refused(changes):
    fields = {"seq": 3, "time": START, "window": 1, "step": 1, "drawn": (0, 1), "variances": (1.0, 2.25)}
    leaf = Draw(**fields)
    assert decode_leaf(encode_leaf(leaf)) == leaf
    with pytest.raises(LeafRefused):
        Draw(**fields | changes)


@pytest.mark.parametrize("driver", [PUBLIC, LITERAL], indirect=True)
@pytest.mark.parametrize("changes, code", [({"variances": (9.0, 9.0)}, "VARIANCE"), ({"drawn": (0, 4)}, "DRAW")])
def test_an_auditor_finds_a_draw_that_contradicts_the_record(driver, changes, code):
    from ledger.replay import Replay

    run(driver)
    with driver.ledger.rows() as rows:
        leaves = [decode_leaf(row.body) for row in rows]
    again, found = Replay(leaves[0], lambda size: b""), []
    first = next(leaf for leaf in leaves if isinstance(leaf, Draw))
    for leaf in leaves[1:]:
        if leaf is first:
            leaf = replace(leaf, **changes)
        found += [problem.code for problem in again.apply(leaf)]
    assert code in found


@pytest.mark.parametrize("accountant", ["pld", "rdp", "moments"])
def test_an_occurrence_behind_more_noise_than_an_accountant_reads_fails_no_audit(tmp_path, accountant):
    """A tiny signed clip norm under an ordinary class: the audit broke off as it looked for what to say beside the figure."""
    loud, other = signed_policy().policy.classes
    rules = replace(loud, clip_norm_micro=10**12, noise_multiplier_micro=2 * 10**6), other
    policy = signed_policy(**PUBLIC, classes=rules, accountant=accountant)
    with Ledger.create(tmp_path / "ledger.db", header_spec(policy), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1, clip_micro=1, sigma_micro=2 * 10**6))
        run(driver, draws=[(0,), *[()] * 7])
        assert 0 < ledger.state.contributions[descriptor(1)].loss < 1e-24
        ledger.finish(now=driver.tick())
        ledger.export(tmp_path / "export")
    report = verify_export(tmp_path / "export", [SIGNER.vkey])
    assert (report.verdict, report.findings) == ("TOLD", ())


def test_hiding_an_occurrence_is_found_by_the_row_of_the_group(driver):
    """Whoever leaves a contribution out of a DRAW leaf has to lower its SPEND too, and the variances say what was drawn."""
    from ledger.replay import Replay

    run(driver)
    with driver.ledger.rows() as rows:
        leaves = [decode_leaf(row.body) for row in rows]
    again, found = Replay(leaves[0], lambda size: b""), []
    for leaf in leaves[1:]:
        if isinstance(leaf, Draw) and leaf.step == 1:
            leaf = Draw(leaf.seq, leaf.time, leaf.window, leaf.step, leaf.drawn[1:], leaf.variances)
        found += [problem.code for problem in again.apply(leaf)]
    assert "SPEND_ORDER" in found


@pytest.mark.parametrize("q, steps", [(0.01, 1000), (0.5, 40), (0.001, 100), (1.0, 7), (1e-9, 10)])
def test_likely_occurrences_are_rarely_exceeded(q, steps):
    from scipy.stats import binom

    likely = accountants.likely_occurrences(q, steps)
    assert q * steps <= likely + 1 <= steps + 1
    assert binom.sf(likely, steps, q) <= 1e-6
    assert accountants.likely_occurrences(0.0, steps) == 0


def test_counted_occurrences_are_dearer_than_secret_ones():
    """docs/mechanism, Theorem 6: z = 1, q = 0.01, T = 1000, delta 1e-5: 1.83 secret; ten occurrences in public are 17.86."""
    assert accountants.epsilon_occurrences(10.0, 1e-5) == pytest.approx(17.86, abs=0.01)
    assert accountants.epsilon_occurrences(0.0, 1e-5) == 0.0
    for bad in (-1.0, math.nan, "1", True):
        with pytest.raises(accountants.AccountantError):
            accountants.epsilon_occurrences(bad, 1e-5)


@pytest.mark.parametrize("clip, sigma, codes", [(0, 0, []), (-1, 0, ["PUBLIC"]), (0, 1, ["PUBLIC"]), (-1, 1, ["PUBLIC"])])
def test_an_auditor_admits_to_a_public_class_only_who_signed_that(tmp_path, clip, sigma, codes):
    """Bounds one unit stricter than those that say public would do in a private class: they ask for a clip and for noise."""
    private = signed_policy().policy.classes[0]
    bounds = PUBLIC_BOUNDS[:2]
    band = DepthRule(band=(Fraction(1, 2), Fraction(1)))
    public = ClassRule(
        name="sensitive",
        clip_norm_micro=bounds[0],
        noise_multiplier_micro=bounds[1],
        sampling_rate=Fraction(1, 100),
        depth=band,
        public=True,
    )
    header = header_spec(signed_policy(classes=(private, public)))
    with Ledger.create(tmp_path / "ledger.db", header, SIGNER, now=START) as ledger:
        run = Replay(ledger.header, lambda size: b"")
    signed = (bounds[0] + clip, bounds[1] + sigma, 0)
    leaf = Admit(1, START, descriptor(9), "sensitive", 1, *signed, bytes(32), b"key00009", bytes(32), 0, 0, 0)
    assert [problem.code for problem in run.apply(leaf)] == codes
