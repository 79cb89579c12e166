"""Limits of epsilon over runs: what they count, at which delta, whose they are, and who refuses a run that could exceed one."""

from dataclasses import replace
from fractions import Fraction

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger.accountants import MICRO, Phase, epsilon_of_phases, gaussian, renyi, to_micro_up
from ledger.audit import verify_export
from ledger.audit.verify import earlier_run
from ledger.errors import BudgetExceeded, LeafRefused
from ledger.log import Ledger
from ledger.note import NoteSigner
from ledger.replay import earlier_runs as spent
from ledger.replay.budgets import Account, Limit, Plans, Spending, composed, of_run, reached, repetitions
from ledger.replay.earlier_runs import SpentRegistry
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START, Driver, admission, descriptor, header_spec, signed_policy

SECOND = NoteSigner("ledger.example/run2", OTHER_KEY)
THIRD = NoteSigner("ledger.example/run3", Ed25519PrivateKey.from_private_bytes(bytes(range(3, 35))))
KEYS = [SIGNER.vkey, SECOND.vkey]
DELTA = Fraction(1, 10**6)
PICO = 10**6
"""Delta 1e-6 in 1e-12."""


def spending(z: float = 2.0, q: float = 0.02, steps: int = 500, family: str = "gaussian", name: str = "pld") -> Spending:
    return Spending(name, family, (Phase(z, q, steps),))


def account(place: int, spent: Spending, planned: Spending | None = None, *limits: Limit) -> Account:
    return Account((place, START), spent, planned or spent, limits)


def limit(epsilon: float, delta: Fraction = DELTA) -> Limit:
    return Limit(int(epsilon * MICRO), delta, "contributor")


def test_one_run_is_held_against_its_accountant_at_the_delta_of_the_limit():
    run = spending()
    assert reached(limit(3), []) == reached(limit(3), [account(0, Spending("pld", "gaussian"))]) == 0.0
    for delta in (Fraction(1, 10**9), DELTA, Fraction(1, 100)):
        assert reached(limit(3, delta), [account(0, run)]) == run.epsilon(float(delta))


@pytest.mark.parametrize("family", ["gaussian", "laplace", "discrete_gaussian", "skellam"])
def test_what_several_runs_use_is_more_than_their_composition(family):
    """A filter holds for runs that were chosen one after the other; a composition, for those fixed beforehand, is tighter."""
    name = "rdp" if family in ("discrete_gaussian", "skellam") else "pld"
    runs = [spending(8.0, 0.1, 40, family, name) for _ in range(3)]
    used = reached(limit(6), [account(n, run) for n, run in enumerate(runs)])
    assert used >= composed(runs, 1e-6) - 1e-6 > 0  # the two convert divergences of these families in different ways


def test_runs_of_different_families_and_accountants_add_up_too():
    runs = [spending(8.0, 0.1, 40), spending(8.0, 0.1, 40, "laplace"), spending(8.0, 0.1, 40, "skellam", "rdp")]
    runs.append(Spending("rdp", "discrete_gaussian", loss=0.1))
    used = [reached(limit(6), [account(n, run) for n, run in enumerate(runs[: k + 1])]) for k in range(1, 4)]
    assert used == sorted(used) and used[0] > 0


def test_the_order_of_the_filter_is_that_of_the_first_run_s_plan():
    """Were it chosen by what came later, the filter would be several filters at once, which holds for none of them."""
    first, later = spending(0.7, 0.001, 300), spending(30.0, 1.0, 400)
    place = renyi.roomiest(first.divergences, 6.0, 1e-6)
    assert place != renyi.roomiest(later.divergences, 6.0, 1e-6)
    total = first.divergences[place] + later.divergences[place]
    for accounts in ([account(0, first), account(1, later)], [account(1, later), account(0, first)]):
        assert reached(limit(6), accounts) == renyi.least_of_order(total, renyi.ORDERS[place], 1e-6)


def test_a_first_run_whose_plan_leaves_no_room_is_the_only_one_even_if_it_stopped_early():
    """Whether a second run may follow is settled before the first one's first step, not by where it stopped."""
    planned, stopped = spending(1.0, 0.02, 2000), spending(1.0, 0.02, 20)
    alone = limit(planned.epsilon(1e-6) + 0.01)
    assert reached(alone, [account(0, planned)]) * MICRO <= alone.epsilon_micro
    both = [account(0, stopped, planned), account(1, stopped)]
    assert reached(alone, both) * MICRO > alone.epsilon_micro
    assert repetitions(alone, planned) == 1 and repetitions(limit(100), planned) > 1
    assert repetitions(limit(0.001), planned) == 0 and repetitions(limit(1), Spending("pld", "gaussian")) is None


@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 1e-6), (1.0, 1e-5), (3.0, 1e-9), (20.0, 1e-2)])
def test_what_has_room_at_an_order_is_within_the_limit(epsilon, delta):
    """Against the exact epsilon of the Gaussian that uses up all the room."""
    for place, room in enumerate(renyi.room(epsilon, delta)):
        mu = (2.0 * room / renyi.ORDERS[place]) ** 0.5
        assert gaussian.epsilon_of_mu(mu, delta) <= epsilon + 1e-9
        assert renyi.least_of_order(room * (1 + 1e-9) + 1e-12, renyi.ORDERS[place], delta) > epsilon - 1e-6
    assert max(renyi.room(epsilon, delta)) > 0


@pytest.mark.one_in(4)
@pytest.mark.parametrize("q", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("z", [0.8, 2.0, 20.0])
def test_the_divergence_of_a_laplace_step_bounds_the_exact_one(z, q):
    """Both directions of the sampled pair, integrated."""
    import numpy as np

    x = np.linspace(-60 * z, 60 * z + 1, 2_000_001)
    null, shifted = np.exp(-np.abs(x) / z) / (2 * z), np.exp(-np.abs(x - 1) / z) / (2 * z)
    mixed = (1 - q) * null + q * shifted
    values = renyi.divergences_of_phases((Phase(z, q, 1),), "laplace")
    for order in (1.5, 4.0, 32.0):
        found = values[renyi.ORDERS.index(order)]
        for p, other in ((mixed, null), (null, mixed)):
            exact = np.log(np.trapezoid(other * (p / other) ** order, x)) / (order - 1)
            assert exact <= found + 1e-6


def header(steps: int = 40, **changes):
    spec = header_spec(signed_policy(steps=steps, **changes))
    return spec.header(origin=SECOND.name, log_vkey=SECOND.vkey, time=START)


def finished(base, name, signer, *specs, streams=0, windows=2, **fields):
    with Ledger.create(base / f"{name}.db", header_spec(**fields), signer, now=START) as ledger:
        driver = Driver(ledger, streams=streams)
        driver.admit(*specs)
        driver.steps(windows)
        driver.epoch()
        ledger.finish(now=driver.tick())
        return ledger.export(base / name)


@pytest.fixture
def first(tmp_path):
    return finished(tmp_path, "one", SIGNER, admission(1), admission(2), admission(3, "sensitive"))


def signing(n: int, epsilon_micro: int, **changes):
    return admission(n, max_epsilon_micro=epsilon_micro, max_delta_pico=changes.pop("pico", PICO), **changes)


def least_limit(registry: SpentRegistry, header, spec) -> int:
    """The smallest limit in 1e-6 under which a run may begin."""
    low, high = 0, 10**8
    while high - low > 1:
        middle = (low + high) // 2
        try:
            registry.require_within(header, [replace(spec, max_epsilon_micro=middle, max_delta_pico=PICO)])
            high = middle
        except BudgetExceeded:
            low = middle
    return high


def test_a_run_that_could_exceed_a_signed_limit_is_refused_with_the_steps_that_would_not(first):
    registry = SpentRegistry([earlier_run(first, KEYS)])
    least = least_limit(registry, header(), admission(1))
    alone = least_limit(SpentRegistry(), header(), admission(1))
    assert abs(alone - MICRO * epsilon_of_phases([Phase(1.0, 0.02, 50)], 1e-6)) <= 2 and alone < least
    registry.require_within(header(), [signing(1, least), admission(9)])
    with pytest.raises(BudgetExceeded) as refused:
        registry.require_within(header(), [signing(1, least - 2000)])
    nearest = refused.value.nearest
    assert refused.value.code == "BUDGET" and 0 < nearest < 40 and f"{nearest} steps" in refused.value.sentence
    registry.require_within(header(nearest), [signing(1, least - 2000)])
    with pytest.raises(BudgetExceeded):
        registry.require_within(header(nearest + 1), [signing(1, least - 2000)])
    with pytest.raises(BudgetExceeded) as refused:
        registry.require_within(header(), [signing(1, to_micro_up(registry.carried(descriptor(1), 1e-6)))])
    assert refused.value.nearest == 0 and "not one step" in refused.value.sentence


def test_the_steps_that_are_named_would_do_for_everybody(first):
    """Three groups exceed their limits; the one with the fewest steps left is named, whoever comes first."""
    registry = SpentRegistry([earlier_run(first, KEYS)])
    least = least_limit(registry, header(), admission(1))
    alone = least_limit(SpentRegistry(), header(), admission(9))
    specs = [signing(9, alone - 500), signing(1, least - 2000), signing(2, least - 20_000), signing(8, 90 * MICRO)]
    with pytest.raises(BudgetExceeded) as refused:
        registry.require_within(header(), specs)
    assert descriptor(2).hex() in refused.value.sentence and "as do 2 others" in refused.value.sentence
    registry.require_within(header(refused.value.nearest), specs)


def test_a_limit_holds_at_its_own_delta_whatever_the_policies_say(first):
    """At delta 1e-2 nearly nothing is spent in a run that spends more than was signed for at 1e-6."""
    registry = SpentRegistry([earlier_run(first, KEYS)])
    least = least_limit(registry, header(), admission(1))
    generous = header(delta=Fraction(1, 100))
    assert epsilon_of_phases([Phase(1.0, 0.02, 50)], 0.01) * MICRO < least / 4
    with pytest.raises(BudgetExceeded):
        registry.require_within(generous, [signing(1, least - 2000)])
    registry.require_within(generous, [signing(1, least)])
    # Nor does a smaller delta than the one signed make a run dearer than it is.
    registry.require_within(header(delta=Fraction(1, 10**9)), [signing(1, least)])


def limited(epsilon: float | None, **changes):
    """The usual policy with a limit for the class open."""
    policy = signed_policy().policy
    micro = None if epsilon is None else int(epsilon * MICRO)
    classes = (replace(policy.classes[0], max_epsilon_total_micro=micro), policy.classes[1])
    return signed_policy(classes=classes, **changes)


def of_policy(policy):
    return header_spec(policy).header(origin=SECOND.name, log_vkey=SECOND.vkey, time=START)


def test_a_class_may_have_a_limit_over_all_runs_and_the_stricter_one_holds(first):
    registry = SpentRegistry([earlier_run(first, KEYS)])
    least = least_limit(registry, header(), admission(1))
    registry.require_within(of_policy(limited((least + 10) / MICRO)), [admission(1), admission(3, "sensitive")])
    tight, wide = least - 2000, 50 * MICRO
    for epsilon, spec in ((tight / MICRO, admission(1)), (50, signing(1, tight)), (0.5, signing(1, wide))):
        with pytest.raises(BudgetExceeded) as refused:
            registry.require_within(of_policy(limited(epsilon)), [spec])
        who = "the policy of ledger.example/run2 allows its class" if epsilon < 50 else "its contributor signed"
        assert who in refused.value.sentence
    registry.require_within(of_policy(limited((least - 2000) / MICRO)), [admission(9)])  # was in no earlier run


def test_the_limit_of_an_earlier_policy_binds_a_later_run_that_has_none(tmp_path):
    """Else whoever writes the next policy would take back what contributors of the first were promised."""
    alone = to_micro_up(epsilon_of_phases([Phase(1.0, 0.02, 50)], 1e-6))
    export = finished(tmp_path, "one", SIGNER, admission(1), policy=limited((alone + 10) / MICRO))
    registry = SpentRegistry([earlier_run(export, KEYS)])
    for policy in (signed_policy(), limited(None), limited(60.0), signed_policy(delta=Fraction(1, 100))):
        with pytest.raises(BudgetExceeded) as refused:
            registry.require_within(of_policy(policy), [admission(1)])
        assert "the policy of ledger.example/run1 allows its class" in refused.value.sentence
        registry.require_within(of_policy(policy), [admission(2)])
    carried = to_micro_up(registry.carried(descriptor(1), 1e-6))
    spec = admission(1, carried_micro=carried)
    two = finished(tmp_path, "two", SECOND, spec, streams=1000, previous=registry.previous)
    assert [found.code for found in verify_export(two, KEYS, earlier=[export]).findings] == ["BUDGET"]


def test_a_ledger_takes_nobody_whose_limit_its_own_plan_exceeds(tmp_path):
    for name, policy, spec in (("a", limited(1.0), admission(1)), ("b", signed_policy(), signing(1, MICRO))):
        with Ledger.create(tmp_path / f"{name}.db", header_spec(policy), SIGNER, now=START) as ledger:
            with pytest.raises(LeafRefused) as refused:
                Driver(ledger).admit(spec)
            assert refused.value.code == "BUDGET" and "by itself" in refused.value.sentence
    with Ledger.create(tmp_path / "c.db", header_spec(limited(50.0)), SIGNER, now=START) as ledger:
        Driver(ledger).admit(admission(1), signing(2, 50 * MICRO))


def test_an_auditor_of_one_export_finds_a_plan_beyond_a_limit(tmp_path, monkeypatch):
    """The writer's refusal is switched off; the auditor's is the same rule."""
    from ledger.replay import replay

    with monkeypatch.context() as patch:
        patch.setattr(replay, "budget_problems", lambda *args: iter(()))
        exports = [
            finished(tmp_path, "a", SIGNER, admission(1), policy=limited(1.0)),
            finished(tmp_path, "b", SIGNER, signing(1, MICRO)),
            finished(tmp_path, "c", SIGNER, signing(1, 50 * MICRO), policy=limited(50.0)),
        ]
    reports = [verify_export(export, KEYS) for export in exports]
    assert [[found.code for found in report.findings] for report in reports] == [["BUDGET"], ["BUDGET"], []]
    assert "LIMITS_ALONE" in reports[2].qualifiers
    assert any("limit of epsilon over all runs: 1" in note for note in reports[2].notes)


def test_a_limit_that_was_exceeded_all_the_same_fails_the_audit_of_both_runs(tmp_path, first):
    registry = SpentRegistry([earlier_run(first, KEYS)])
    least = least_limit(registry, header(), admission(1))
    before = to_micro_up(registry.carried(descriptor(1), 1e-6))
    for beyond, codes in ((-2000, ["LIMIT", "BUDGET"]), (10, ["LIMIT"])):
        spec = signing(1, least + beyond, carried_micro=before)
        export = finished(tmp_path, f"two{beyond}", SECOND, spec, streams=1000, previous=registry.previous)
        assert verify_export(export, KEYS).verdict == "TOLD"
        found = [finding.code for finding in verify_export(export, KEYS, earlier=[first]).findings]
        assert sorted(found) == sorted(codes)  # the first run says that it signed no limit


def test_a_run_that_had_no_room_as_planned_fails_the_audit_of_a_later_one_too_though_it_stopped_early(tmp_path):
    """What was spent in the end is within the limit; but whether it would be was not settled before the second run began."""
    spec = signing(1, 50 * MICRO)
    first = finished(tmp_path, "one", SIGNER, spec)
    registry = SpentRegistry([earlier_run(first, KEYS)])
    least = least_limit(registry, header(), admission(1))
    for n, beyond in enumerate((10, -2000)):
        base = tmp_path / str(n)
        base.mkdir()
        spec = signing(1, least + beyond)
        one = finished(base, "one", SIGNER, spec)
        registry = SpentRegistry([earlier_run(one, KEYS)])
        carried = replace(spec, carried_micro=to_micro_up(registry.carried(descriptor(1), 1e-6)))
        two = finished(base, "two", SECOND, carried, streams=1000, previous=registry.previous)
        registry = SpentRegistry([earlier_run(one, KEYS), earlier_run(two, KEYS)])
        carried = replace(spec, carried_micro=to_micro_up(registry.carried(descriptor(1), 1e-6)))
        policy = signed_policy(steps=4, redo_steps=0)
        registry.require_within(header_spec(policy).header(origin=THIRD.name, log_vkey=THIRD.vkey, time=START), [carried])
        fields = {"policy": policy, "previous": registry.previous}
        three = finished(base, "three", THIRD, carried, streams=2000, windows=1, **fields)
        found = verify_export(three, [*KEYS, THIRD.vkey], earlier=[one, two])
        assert [(item.code, item.where) for item in found.findings] == [("BUDGET", SECOND.name)][: beyond < 0], found.findings


def test_carried_epsilon_needs_an_earlier_run_and_uses_up_a_limit(tmp_path, first):
    with Ledger.create(tmp_path / "a.db", header_spec(), SECOND, now=START) as ledger:
        with pytest.raises(LeafRefused) as refused:
            Driver(ledger).admit(admission(1, carried_micro=5))
        assert refused.value.code == "CARRIED"
    previous = SpentRegistry([earlier_run(first, KEYS)]).previous
    with Ledger.create(tmp_path / "b.db", header_spec(previous=previous), SECOND, now=START) as ledger:
        with pytest.raises(LeafRefused) as refused:
            Driver(ledger).admit(signing(1, 50 * MICRO, carried_micro=50 * MICRO + 1))
        assert refused.value.code == "BUDGET"
        Driver(ledger).admit(signing(1, 50 * MICRO, carried_micro=50 * MICRO))
        # What was spent at delta 1e-6 says nothing of a limit at 1e-3, where it is less.
        Driver(ledger).admit(signing(2, 50 * MICRO, carried_micro=50 * MICRO + 1, pico=10**9))


def test_the_plan_of_a_run_bounds_what_it_spends(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        specs = admission(1), admission(2, "sensitive", clip_micro=250_000)
        driver.admit(*specs)
        driver.steps(10)
        plans = Plans(ledger.header)
        for spec in specs:
            found = of_run(ledger.state, ledger.state.contributions[spec.descriptor_hash])
            planned = plans.of(spec.profile_id, spec).planned
            assert found.epsilon(1e-6) < planned.epsilon(1e-6)
            assert all(a < b for a, b in zip(found.divergences, planned.divergences, strict=True))


def test_contributions_with_equal_histories_share_one_computation(tmp_path, monkeypatch):
    """300 contributions, two groups: what they spent, and whether it is within their limits, is computed twice."""
    specs = [signing(n, 60 * MICRO) if n % 2 else admission(n) for n in range(300)]
    export = finished(tmp_path, "one", SIGNER, *specs)
    registry = SpentRegistry([earlier_run(export, KEYS)])
    counts = {"composed": 0, "reached": 0}

    def counting(name):
        original = getattr(spent, name)

        def counted(*args):
            counts[name] += 1
            return original(*args)

        return counted

    for name in counts:
        monkeypatch.setattr(spent, name, counting(name))
    registry.require_within(header(steps=4), specs)
    assert len({registry.carried(spec.descriptor_hash, 1e-6) for spec in specs}) == 1
    assert counts == {"composed": 2, "reached": 2}


def test_a_limit_holds_against_who_chooses_the_second_run_by_the_first_one_s_output():
    """Exactly: for every output of the first release the dearest of many second ones, or none, that the filter lets through."""
    import numpy as np

    allowed = limit(1.5, Fraction(1, 1000))
    first = spending(2.0, 0.3, 1)
    fitting = []
    for q in (0.01, 0.1, 0.5, 1.0):  # at each rate the least noise that fits
        noise = [0.4 * 1.05**k for k in range(80)]
        fits = [z for z in noise if reached(allowed, [account(0, first), account(1, spending(z, q, 1))]) <= 1.5]
        fitting.append((min(fits), q))
    assert len({z for z, _ in fitting}) > 2  # the second releases differ in more than their rates

    def pair(z: float, q: float) -> tuple[np.ndarray, np.ndarray]:
        x = np.linspace(-9 * z, 9 * z + 1, 3001)
        null, shifted = (np.exp(-0.5 * ((x - mean) / z) ** 2) for mean in (0.0, 1.0))
        step = (x[1] - x[0]) / (z * np.sqrt(2 * np.pi))
        return ((1 - q) * null + q * shifted) * step, null * step

    worst = 0.0
    for swap in (False, True):
        p1, q1 = pair(2.0, 0.3)[:: -1 if swap else 1]
        growth = np.exp(1.5) * q1 / p1  # what the second release must make up for, given the first
        dearest = np.maximum(1.0 - growth, 0.0)  # no second release
        for z, q in fitting:
            p2, q2 = pair(z, q)[:: -1 if swap else 1]
            dearest = np.maximum(dearest, np.array([np.maximum(p2 - ratio * q2, 0.0).sum() for ratio in growth]))
        worst = max(worst, float((p1 * dearest).sum()))
    assert 1e-5 < worst <= 1e-3
