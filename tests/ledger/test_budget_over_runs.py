"""Texts count in limits of epsilon over all runs, beside the runs that a log counts, and an auditor adds the two up again."""

import hashlib
import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from attest import keys, signed_file
from attest.attestation import Attestation
from attest.descriptor import SignedDescriptor
from attest.policy import SignedPolicy, sign_policy, verify_policy
from dptrain.record.earlier_runs import Earlier as NamedEarlier
from ledger.accountants import Phase, renyi
from ledger.audit.given import read_export
from ledger.audit.verify import earlier_run
from ledger.budget import GenerationRule
from ledger.budget.audit import verify_budget
from ledger.budget.counted import Shares, counted_as, spending_of
from ledger.budget.export import export_budget
from ledger.budget.generation import ClassLimit, OverRuns
from ledger.budget.leaves import Header, Withdrawn, decode_leaf, encode_leaf
from ledger.budget.log import BudgetLog
from ledger.budget.rho import NANO, epsilon_of_rho
from ledger.errors import LeafRefused
from ledger.leaves.header import COMPROMISED, SPENT, TEXTS
from ledger.log import Ledger
from ledger.note import NoteSigner
from ledger.replay.budgets import Spending, composed
from ledger.replay.earlier_runs import SpentRegistry
from tests.worlds.gate import BOB, CORPUS, MICRO, NOW, OWNER, make_registry
from tests.worlds.generating import DECODING, FOUR, attested, brought, created, signed, spec, text_of, unit
from tests.worlds.ledgers import OTHER_KEY, SIGNER, Driver, admission, header_spec, signed_policy
from tests.worlds.retained_ledgers import ANNA, AUDITORS, BEN, vouched_for

RUN = NoteSigner("ledger.example/before", OTHER_KEY)
DELTA = 1e-6
NOISE = 1_100_000
RHO = DECODING.max_rho_nano / NANO
TEXTS_ALONE = epsilon_of_rho(RHO, DELTA)
"""Says what all texts of a contribution are worth at DELTA."""


def limited(number: int, micro: int, **changes: Any) -> Attestation:
    """A contribution whose contributor signed a limit over all runs, at DELTA."""
    return attested(number, max_epsilon_micro=micro, max_delta_pico=10**6, **changes)


def digest(signed_as: Attestation) -> bytes:
    return hashlib.sha256(signed_as.descriptor).digest()


def run_policy(**changes: Any) -> SignedPolicy:
    """The policy of a run over the same corpus, of the same owner; noise is low, so that it costs something."""
    whole = {name: changes.pop(name) for name in ("retention_epochs", "auditors", "auditor_quorum") if name in changes}
    found = signed_policy(**whole).policy
    first, second = found.classes
    bounds = {"clip_norm_micro": MICRO, "noise_multiplier_micro": NOISE, "sampling_rate": Fraction(1, 40)}
    tight = replace(second, **bounds, **changes)
    policy, root = replace(found, classes=(first, tight), corpus=CORPUS), make_registry().root()
    return verify_policy(*sign_policy(policy, OWNER, owner="owner", registry_root=root), keys.public_bytes(OWNER))


def trained(folder: Path, *who: Attestation, name: str = "one", windows: int = 2, signer: NoteSigner = RUN, **how: Any) -> Path:
    """The export of a run in which these took part, by the word of its operator, closed before NOW."""
    said = {"close": True, "now": NOW - 1000, "withdraw": (), "limits": True, "anchors": {}, "bounds": {}} | how
    previous = tuple(said.get("previous", ()))
    spec = header_spec(
        run_policy(), owner_key=keys.public_bytes(OWNER), registry_root=make_registry().root(), previous=previous
    )
    with Ledger.create(folder / f"{name}.db", spec, signer, now=said["now"]) as ledger:
        driver = Driver(ledger, now=said["now"], streams=1000)
        for number, one in enumerate(who):
            terms = SignedDescriptor.from_cbor(one.descriptor)
            limit = {"max_epsilon_micro": terms.limit[0], "max_delta_pico": terms.limit[1]} if said["limits"] else {}
            named = said["anchors"].get(number, digest(one))
            known = admission(number, "sensitive", clip_micro=MICRO, sigma_micro=NOISE)
            known = replace(known, descriptor_hash=named, anchor=terms.content, **{**limit, **said["bounds"]})
            driver.admit(known)
        driver.steps(windows)
        for one in said["withdraw"]:
            ledger.withdraw(digest(one), "consent", bytes(32), now=driver.tick())
        driver.epoch()
        if said["close"]:
            ledger.finish(now=driver.tick())
        return ledger.export(folder / name)


def counting(*exports: Path) -> SpentRegistry:
    return SpentRegistry([earlier_run(export, [RUN.vkey, SIGNER.vkey], now=NOW + 60) for export in exports])


def over(spent: SpentRegistry | None = None, policy: SignedPolicy | None = None) -> OverRuns:
    return OverRuns.of(policy or signed(), ["sensitive"], () if spent is None else spent.previous)


def admitted(log: BudgetLog, *who: Attestation, spent: SpentRegistry | None = None, **how: Any) -> list[str | None]:
    """Codes by which they were refused, None for who was admitted."""
    found = log.admit(who, spent=spent, now=NOW, **how).refused
    return [str(found[digest(one)].code) if digest(one) in found else None for one in who]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def where(folder: Path) -> Iterator[Any]:
    """A function that names a new place at every call."""
    names = (folder / f"log{number}.db" for number in range(99))
    yield lambda: next(names)


def with_limit(micro: int) -> SignedPolicy:
    """The policy with a limit over all runs for the class of texts."""
    policy = signed().policy
    classes = tuple(replace(one, max_epsilon_total_micro=micro) if one.name == "sensitive" else one for one in policy.classes)
    made = replace(policy, classes=classes)
    root = policy.registry_root
    assert root is not None
    return verify_policy(*sign_policy(made, OWNER, owner="owner", registry_root=root), keys.public_bytes(OWNER))


# --- admission ------------------------------------------------------------------------------------------------------------


def test_a_log_that_counts_no_run_admits_nobody_who_signed_a_limit_over_all_runs(where: Any) -> None:
    with created(where()) as log:
        assert admitted(log, limited(0, 100 * MICRO), FOUR[1]) == ["LIMIT", None]


def test_a_limit_is_held_against_all_that_the_rule_allows_and_not_against_what_is_paid_so_far(where: Any) -> None:
    least = int(TEXTS_ALONE * MICRO) + 1
    with created(where(), over_runs=over()) as log:
        assert admitted(log, limited(0, least), limited(1, least - 1), limited(2, least // 2)) == [None, "LIMIT", "LIMIT"]
        text_of(log, [unit(limited(0, least)), unit(FOUR[1])]) if not admitted(log, FOUR[1])[0] else pytest.fail()


def test_a_limit_of_the_class_stands_in_the_header_and_a_log_whose_texts_could_pass_it_is_not_made(where: Any) -> None:
    least = int(TEXTS_ALONE * MICRO) + 1
    for micro, code in ((least, None), (least - 1, "LIMIT")):
        policy = with_limit(micro)
        rules = [GenerationRule.of(policy, "sensitive")]
        assert over(policy=policy).limits == (ClassLimit("sensitive", micro, 10**6),)
        if code is None:
            created(where(), generation=rules, over_runs=over(policy=policy)).close()
            continue
        with pytest.raises(LeafRefused) as refused:
            created(where(), generation=rules, over_runs=over(policy=policy))
        assert refused.value.code == code


def expected(steps: int, micro: int) -> float:
    """Returns what a run of so many steps and all texts use of a limit, by divergences of dp_accounting."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    def curve(count: int) -> list[float]:
        event = PoissonSampledDpEvent(1 / 40, GaussianDpEvent(NOISE / MICRO))
        return list(RdpAccountant(list(renyi.ORDERS)).compose(SelfComposedDpEvent(event, count))._rdp)

    spent, planned = curve(steps), curve(50)  # 40 steps, and 10 done again
    have = renyi.room(micro / MICRO, DELTA)
    place = max(range(len(have)), key=lambda at: have[at] / planned[at])
    order = renyi.ORDERS[place]
    both = max(spent[place] + order * RHO, planned[place])
    return renyi.least_of_order(both, order, DELTA)


def test_texts_and_earlier_runs_add_up_at_the_order_of_the_filter_and_not_a_millionth_beyond_is_admitted(
    folder: Path, where: Any
) -> None:
    low, high = MICRO, 20 * MICRO  # a limit that is too low, and one that is not
    runs: dict[int, SpentRegistry] = {}

    def taken(micro: int) -> bool:
        who = limited(0, micro)
        if micro not in runs:
            runs[micro] = counting(trained(folder, who, name=f"of {micro}"))
        with created(where(), over_runs=over(runs[micro])) as log:
            return admitted(log, who, spent=runs[micro]) == [None]

    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if taken(middle) else (middle, high)
    assert expected(8, high) * MICRO <= high and expected(8, low) * MICRO > low
    assert high > (TEXTS_ALONE + 0.1) * MICRO, "the run counts for something"
    with created(where(), over_runs=over()) as log:
        assert admitted(log, limited(0, low)) == [None], "without the run it would be admitted"


def test_a_limit_that_the_policy_of_an_earlier_run_had_for_the_class_binds_texts_too(folder: Path, where: Any) -> None:
    spec = header_spec(
        run_policy(max_epsilon_total_micro=int(TEXTS_ALONE * MICRO) + MICRO // 10),
        owner_key=keys.public_bytes(OWNER),
        registry_root=make_registry().root(),
    )
    with Ledger.create(folder / "tight.db", spec, RUN, now=NOW - 1000) as ledger:
        driver = Driver(ledger, now=NOW - 1000, streams=1000)
        known = admission(0, "sensitive", clip_micro=MICRO, sigma_micro=NOISE)
        driver.admit(replace(known, descriptor_hash=digest(FOUR[0])))
        driver.steps(3)
        driver.epoch()
        ledger.finish(now=driver.tick())
        export = ledger.export(folder / "tight")
    spent = counting(export)
    with created(where(), over_runs=over(spent)) as log:
        assert admitted(log, FOUR[0], FOUR[1], spent=spent) == ["BUDGET", None]


def test_who_was_withdrawn_in_a_run_that_counts_is_not_admitted(folder: Path, where: Any) -> None:
    spent = counting(trained(folder, FOUR[0], FOUR[1], withdraw=[FOUR[1]]))
    with created(where(), over_runs=over(spent)) as log:
        assert admitted(log, *FOUR[:2], spent=spent) == [None, "WITHDRAWN"]


def test_nobody_new_is_admitted_without_the_ledgers_that_the_log_counts(folder: Path, where: Any) -> None:
    spent = counting(trained(folder, FOUR[0]))
    other = counting(trained(folder, FOUR[0], name="two", windows=1, signer=SIGNER))
    with created(where(), over_runs=over(spent)) as log:
        assert admitted(log, FOUR[0], spent=spent) == [None]
        assert log.admit(FOUR[:1], now=NOW).refused == {}, "who was admitted before needs nothing"
        assert admitted(log, FOUR[1], spent=None) == ["EARLIER"]
        for wrong in (SpentRegistry(), other):
            with pytest.raises(LeafRefused) as refused:
                log.admit(FOUR[1:2], spent=wrong, now=NOW)
            assert refused.value.code == "EARLIER"
        assert admitted(log, FOUR[1], spent=spent) == [None], "the handle is whole"


def test_nobody_has_more_contributions_in_a_log_than_registry_and_policy_allow_over_any_number_of_turns(where: Any) -> None:
    policy = replace(signed().policy, contributor_cap=2)
    shares = Shares(policy, make_registry())
    bob = [attested(number, BOB, contributor="bob") for number in (3, 4)]
    with created(where()) as log:
        assert admitted(log, *FOUR[:2], shares=shares) == [None, None]
        log.withdraw(unit(FOUR[0]), now=NOW)
        assert admitted(log, FOUR[2], *bob, shares=shares) == ["CONTRIBUTOR_CAP", None, None], "who withdrew counts on"
    with created(where()) as log:
        assert admitted(log, *FOUR[:3], *bob, shares=shares) == [None, None, "CONTRIBUTOR_CAP", None, None]


# --- bytes ----------------------------------------------------------------------------------------------------------------


def header(where: Any, **changes: Any) -> Header:
    with created(where(), **changes) as log:
        return log.header


def test_a_header_without_runs_keeps_its_bytes_and_one_with_them_is_read_back(folder: Path, where: Any) -> None:
    plain, counts = header(where), header(where, over_runs=over(counting(trained(folder, FOUR[0]))))
    assert plain.over_runs is None and len(encode_leaf(plain)) < len(encode_leaf(counts))
    for one in (plain, counts, header(where, over_runs=over())):
        assert decode_leaf(encode_leaf(one)) == one


@pytest.mark.parametrize(
    "change",
    [
        {"generation": (), "caps": None},
        {"limits": (ClassLimit("nobody", MICRO, 5),)},
        {"limits": (ClassLimit("sensitive", 9 * MICRO, 10**6),) * 2},
        {"previous": 2},
    ],
)
def test_a_header_says_nothing_of_runs_that_has_no_meaning(change: dict[str, Any], folder: Path, where: Any) -> None:
    found = header(where, over_runs=over(counting(trained(folder, FOUR[0]))))
    said = found.over_runs
    assert said is not None
    if "limits" in change:
        said = replace(said, limits=change["limits"])
    if "previous" in change:
        said = replace(said, previous=said.previous * change["previous"])
    with pytest.raises(LeafRefused):
        replace(found, over_runs=said, **({"generation": ()} if "generation" in change else {}))


# --- the audit ------------------------------------------------------------------------------------------------------------


def exported(place: Path, *who: Attestation, spent: SpentRegistry | None = None, policy: Any = None, **how: Any) -> Path:
    """The export of a log that admitted these and made one text of the first two."""
    counts = spent or SpentRegistry()
    rules = {} if policy is None else {"generation": [GenerationRule.of(policy, "sensitive")]}
    fields = {"over_runs": over(counts, policy), **rules, **how}
    with created(place, **fields) as log:
        assert admitted(log, *who, spent=counts) == [None] * len(who)
        log.commit(text_of(log, [unit(one) for one in who[:2]]), 20, now=NOW)
        log.close_epoch(SIGNER, now=NOW)
        return export_budget(log, place.with_suffix(".export"))


def audited(path: Path, *runs: Path, **asked: Any) -> Any:
    found = verify_budget(path, [SIGNER.vkey, RUN.vkey], now=NOW + 60, minimum_size=1, runs=runs, **asked)
    return found.verdict, found.qualifiers, [(one.code, one.where) for one in found.findings]


HIGH = 30 * MICRO
WHO = (limited(0, HIGH), limited(1, HIGH))


def test_an_auditor_who_has_the_runs_adds_up_and_one_who_has_not_is_told_whose_word_it_is(folder: Path, where: Any) -> None:
    run = trained(folder, *WHO)
    export = exported(where(), *WHO, spent=counting(run))
    papers = brought(folder / "papers")
    assert audited(export, **papers) == ("FULL", ("EARLIER_TOLD", "LIMITS_ALONE"), [])
    verdict, qualifiers, findings = audited(export, run, **papers)
    assert (verdict, findings) == ("TOLD", []), "bounds of the run are its operator's word: it has no attestations"
    assert {"EARLIER_TOLD", "LIMITS_ALONE"}.isdisjoint(qualifiers)


def test_with_no_run_at_all_a_signed_limit_says_that_it_was_held_against_these_texts_alone(where: Any, folder: Path) -> None:
    export = exported(where(), *WHO)
    assert audited(export, **brought(folder / "papers")) == ("FULL", ("LIMITS_ALONE",), [])
    assert audited(exported(where(), *FOUR[:2]), **brought(folder / "papers"))[1] == ()


def test_a_log_that_leaves_out_a_run_that_was_before_it_is_found(where: Any, folder: Path) -> None:
    run = trained(folder, *WHO)
    assert audited(exported(where(), *WHO), run)[2] == [("EARLIER_LEFT_OUT", str(run))]
    strangers = trained(folder, attested(9), name="strangers")
    _, qualifiers, findings = audited(exported(where(), *WHO), strangers)
    assert findings == [], "nobody of the log was in it"
    assert "LIMITS_ALONE" in qualifiers, "but by the word of its operator alone, as bounds are: TOLD"


def test_a_run_that_began_later_and_does_not_count_the_log_is_told_and_its_limits_stay_alone(where: Any, folder: Path) -> None:
    early = trained(folder, attested(9), name="early")
    export = exported(where(), *WHO, spent=counting(early))
    assert "LIMITS_ALONE" not in audited(export, early)[1]
    later = trained(folder, *WHO, name="later", now=NOW + 20)
    _, qualifiers, findings = audited(export, early, later)
    assert findings == [] and "LIMITS_ALONE" in qualifiers


@pytest.mark.one_in(7)
@pytest.mark.parametrize("lie", ["behind", "forked", "open", "later", "name"])
def test_every_lie_about_a_run_that_counts_is_found(lie: str, where: Any, folder: Path) -> None:
    run = trained(folder, *WHO)
    spent = counting(run)
    [cited] = spent.previous
    changes: dict[str, Any] = {
        "behind": {"size": cited.size + 1},
        "forked": {"root": bytes(32)},
        "open": {"size": 3},
        "later": {},
        "name": {"log_vkey": SIGNER.vkey.replace(SIGNER.name, "x"), "origin": "x"},
    }[lie]
    if lie == "open":
        changes["root"] = earlier_root(run, 3)
    if lie == "name":
        other = NoteSigner("another.example", OTHER_KEY)
        changes = {"origin": other.name, "log_vkey": other.vkey}
    spent = SpentRegistry([replace(spent._runs[0], cited=replace(cited, **changes))])
    place = where()
    moment = {"later": NOW - 5000}.get(lie, NOW)
    with BudgetLog.create(place, spec_of(spent), SIGNER, now=moment) as log:
        assert admitted(log, *WHO, spent=spent) == [None, None]
        log.close_epoch(SIGNER, now=NOW)
        export = export_budget(log, place.with_suffix(".export"))
    codes = {"behind": "EARLIER_BEHIND", "forked": "EARLIER_FORKED", "open": "EARLIER_OPEN", "later": "EARLIER_TIME",
             "name": "EARLIER_NAME"}  # fmt: skip
    assert codes[lie] in {code for code, _ in audited(export, run)[2]}


def spec_of(spent: SpentRegistry, log_id: bytes = bytes(16)) -> Any:
    return spec(over_runs=over(spent), log_id=log_id)


def earlier_root(export: Path, size: int) -> bytes:
    return read_export(export).leaves.root_at(size)


def test_who_is_admitted_above_a_limit_is_found(where: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    who = (limited(0, int(TEXTS_ALONE * MICRO) + 1), *WHO[1:])
    run = trained(folder, *who)
    spent = counting(run)
    with created(where(), over_runs=over(spent)) as log:
        assert admitted(log, *who, spent=spent) == ["BUDGET", None]
    monkeypatch.setattr("ledger.budget.counted.Admitting.refusal", lambda self, name, signed_as: None)
    export = exported(where(), *who, spent=spent)
    assert audited(export, run)[2] == [("BUDGET", "seq 1")]
    assert audited(export)[2] == [], "without the run nothing shows it"


def test_who_was_withdrawn_in_a_run_and_makes_texts_is_found(
    where: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(folder, *WHO, withdraw=WHO[:1])
    monkeypatch.setattr("ledger.budget.counted.Admitting.refusal", lambda self, name, signed_as: None)
    export = exported(where(), *WHO, spent=counting(run))
    assert audited(export, run)[2] == [("EARLIER_WITHDRAWN", "seq 1")]


def test_a_withdrawal_that_a_run_entered_before_a_text_was_paid_is_told(where: Any, folder: Path) -> None:
    early = trained(folder, attested(9), name="early")
    later = trained(folder, *WHO, name="later", now=NOW - 10, withdraw=WHO[:1], windows=0)
    _, qualifiers, findings = audited(exported(where(), *WHO), early, later)
    assert findings == [] and "WITHDRAWAL_LATE" in qualifiers


def test_a_content_that_goes_by_another_name_in_a_run_is_found(where: Any, folder: Path) -> None:
    run = trained(folder, *WHO, anchors={0: bytes(range(32))})
    export = exported(where(), *WHO, spent=counting(run))
    assert audited(export, run)[2] == [("EARLIER_ANCHOR", "seq 1")]


def test_a_header_that_hides_the_limit_of_a_class_is_found(where: Any, folder: Path) -> None:
    policy = with_limit(9 * MICRO)
    file = folder / "limited.cose"
    signed_file.write(file, policy.payload, policy.sign1)
    papers = {**brought(folder / "papers"), "policies": [file]}
    good = exported(where(), *FOUR[:2], policy=policy)
    assert audited(good, **papers)[2] == []
    for hidden in (None, over()):
        bad = exported(where(), *FOUR[:2], policy=policy, over_runs=hidden)
        assert audited(bad, **papers)[2] == [("RULE", "seq 0")]


def test_a_run_whose_own_audit_failed_counts_for_nothing(where: Any, folder: Path) -> None:
    run = trained(folder, *WHO)
    export = exported(where(), *WHO, spent=counting(run))
    (run / "policy").write_text("log x\nquorum none\n")
    assert "EARLIER" in {code for code, _ in audited(export, run)[2]}


def test_texts_of_several_budgets_compose_as_their_rho_adds_up() -> None:
    one, two = spending_of(10**8), spending_of(3 * 10**8)
    assert composed([one, two], DELTA) == epsilon_of_rho(0.4, DELTA) and composed([one], DELTA) == one.epsilon(DELTA)
    assert not spending_of(0) and composed([spending_of(0)], DELTA) == 0.0
    run = Spending("pld", "gaussian", (Phase(2.0, 0.1, 20),))
    assert max(one.epsilon(DELTA), run.epsilon(DELTA)) < composed([one, run], DELTA) < one.epsilon(DELTA) + run.epsilon(DELTA)


def test_another_budget_that_is_counted_adds_all_that_its_rules_allow(where: Any, folder: Path) -> None:
    two = epsilon_of_rho(2 * RHO, DELTA)
    for micro, codes in ((int(two * MICRO * 1.001) + 1, [None]), (int(two * MICRO * 0.98), ["BUDGET"])):
        place = where()
        with created(place, over_runs=over()) as first:
            assert admitted(first, limited(5, HIGH)) == [None]
            first.withdraw(unit(limited(6, HIGH)), now=NOW)
            leaves = [decode_leaf(row.body) for row in first.rows(first.size)]
            gone = [one for one in leaves if isinstance(one, Withdrawn)]
            spent = SpentRegistry((), [counted_as(first.state, first.root, gone)])
        with created(where(), over_runs=over(spent)) as log:
            assert admitted(log, limited(7, micro), spent=spent) == codes, "nobody has paid there, and may"
            assert admitted(log, limited(6, HIGH), spent=spent) == ["WITHDRAWN"]
            assert admitted(log, limited(5, HIGH), spent=spent) == ["TOGETHER"], "a rule is one over all texts"
    assert SPENT not in {one.reason for one in spent.previous}


def another(place: Path, *who: Attestation, spent: SpentRegistry | None = None, now: int = NOW) -> tuple[Path, SpentRegistry]:
    """The export of another budget that admitted these, and how it is counted."""
    with BudgetLog.create(place, spec_of(spent or SpentRegistry(), bytes(15) + b"2"), RUN, now=now) as log:
        assert admitted(log, *who, spent=spent) == [None] * len(who)
        log.close_epoch(RUN, now=NOW)
        export = export_budget(log, place.with_suffix(".export"))
        return export, SpentRegistry((), [counted_as(log.state, log.root)])


def beside(path: Path, *others: Path) -> Any:
    found = verify_budget(path, [SIGNER.vkey, RUN.vkey], now=NOW + 60, minimum_size=1, others=others)
    return found.verdict, found.qualifiers, [(one.code, one.where) for one in found.findings]


def test_an_auditor_holds_a_budget_against_another_one_that_it_counts(where: Any) -> None:
    export, spent = another(where(), limited(8, HIGH))
    [cited] = spent.previous
    good = exported(where(), *WHO, spent=spent)
    assert beside(good)[1:] == (("CONSENT_TOLD", "EARLIER_TOLD", "LIMITS_ALONE", "RULES_TOLD"), [])
    assert beside(good, export)[1:] == (("CONSENT_TOLD", "RULES_TOLD"), [])
    lies = {"EARLIER_BEHIND": {"size": cited.size + 1}, "EARLIER_FORKED": {"root": bytes(32)}}
    other = NoteSigner("another.example", OTHER_KEY)
    lies["EARLIER_NAME"] = {"origin": other.name, "log_vkey": other.vkey}
    for code, change in lies.items():
        [texts] = spent._texts
        bad = exported(where(), *WHO, spent=SpentRegistry((), [replace(texts, cited=replace(cited, **change))]))
        assert [found for found, _ in beside(bad, export)[2]] == [code], code


def test_a_budget_that_is_left_out_is_found_where_somebody_in_both_has_a_limit(where: Any) -> None:
    before, _ = another(where(), WHO[0], now=NOW - 9)
    assert beside(exported(where(), *WHO), before)[2] == [("EARLIER_LEFT_OUT", str(before))]
    assert beside(exported(where(), *FOUR[:2]), another(where(), FOUR[0], now=NOW - 9)[0])[2] == []
    later, _ = another(where(), WHO[0], now=NOW)
    first = BudgetLog.create(where(), spec_of(SpentRegistry()), SIGNER, now=NOW - 9)
    with first as log:
        assert admitted(log, *WHO) == [None, None]
        log.close_epoch(SIGNER, now=NOW)
        export = export_budget(log, log.place.file.with_suffix(".export"))  # type: ignore[union-attr]
    _, qualifiers, findings = beside(export, later)
    assert findings == [] and "LIMITS_ALONE" in qualifiers


# --- what was found by reading as an attacker does -------------------------------------------------------------------------


def cited_otherwise(place: Path, spent: SpentRegistry, **change: Any) -> Path:
    """The export of a log that cites a run otherwise than it is."""
    [cited] = spent.previous
    return exported(place, *WHO, spent=SpentRegistry([replace(spent._runs[0], cited=replace(cited, **change))]))


def test_a_run_that_is_cited_as_a_budget_which_need_not_be_closed_is_found(where: Any, folder: Path) -> None:
    run = trained(folder, *WHO)
    export = cited_otherwise(where(), counting(run), size=3, root=earlier_root(run, 3), reason=TEXTS)
    assert [code for code, _ in audited(export, run)[2]] == ["EARLIER_NAME"]
    lost = cited_otherwise(where(), counting(run), size=3, root=earlier_root(run, 3), reason=COMPROMISED)
    assert "EARLIER_COMPROMISED" in {code for code, _ in audited(lost, run)[2]}


def test_what_a_run_quotes_is_held_against_what_contributors_signed_to_the_log(where: Any, folder: Path) -> None:
    for name, code, lie in (
        ("clip", "EARLIER_TERMS", {"bounds": {"clip_micro": 10_000}}),
        ("noise", "EARLIER_TERMS", {"bounds": {"sigma_micro": 100 * NOISE}}),
        ("limit", "LIMIT", {"limits": False}),
    ):
        run = trained(folder, *WHO, name=name, **lie)
        assert code in {found for found, _ in audited(exported(where(), *WHO, spent=counting(run)), run)[2]}, name


def test_runs_that_a_log_counts_are_held_against_each_other(where: Any, folder: Path) -> None:
    one, other = (trained(folder, WHO[number], name=f"r{number}", signer=signer) for number, signer in ((0, RUN), (1, SIGNER)))
    export = exported(where(), *WHO, spent=counting(one, other))
    found = verify_budget(export, [SIGNER.vkey, RUN.vkey], now=NOW + 60, minimum_size=1, runs=[one, other])
    assert {one.code for one in found.findings} == {"NOISE_REUSED"}
    apart = trained(folder, *WHO, name="apart", signer=SIGNER, now=NOW - 500)
    qualifiers = audited(exported(where(), *WHO, spent=counting(trained(folder, *WHO), apart)), folder / "one", apart)[1]
    assert "EARLIER_APART" in qualifiers


def pruned(folder: Path, *who: Attestation, name: str = "gone") -> tuple[Path, Path]:
    """The exports of a closed run, whole and without the leaves of who stayed."""
    policy = run_policy(retention_epochs=1, auditors=AUDITORS, auditor_quorum=2)
    spec_ = header_spec(policy, owner_key=keys.public_bytes(OWNER), registry_root=make_registry().root())
    began = NOW - 100 * 86400
    driver = Driver(Ledger.create(folder / f"{name}.db", spec_, RUN, now=began), now=began)
    for number, one in enumerate(who):
        terms = SignedDescriptor.from_cbor(one.descriptor)
        limit = {"max_epsilon_micro": terms.limit[0], "max_delta_pico": terms.limit[1], "anchor": terms.content}
        driver.admit(replace(admission(number, "sensitive", clip_micro=MICRO, sigma_micro=NOISE), descriptor_hash=digest(one),
                             **limit))  # fmt: skip
    with driver.ledger as ledger:
        for _ in range(2):
            driver.steps(3)
            driver.epoch()
        ledger.summarise(now=driver.tick())
        vouched_for(driver, ANNA, BEN)
        driver.steps(1)
        driver.epoch()
        ledger.finish(now=driver.tick())
        vouched_for(driver, ANNA, BEN)
        whole = ledger.export(folder / f"{name} whole")
        ledger.prune(who_stays=True)
        return whole, ledger.export(folder / name)


def test_a_pruned_run_takes_no_word_back_and_makes_no_honest_log_fail(where: Any, folder: Path) -> None:
    low = int(TEXTS_ALONE * MICRO) + 1
    tight = (limited(0, 4 * MICRO), limited(1, 4 * MICRO))
    whole, gone = pruned(folder, *tight)
    assert "EARLIER_LEFT_OUT" in {code for code, _ in audited(exported(where(), *tight), whole)[2]}
    _, qualifiers, findings = audited(exported(where(), *tight), gone)
    assert findings == [] and {"LIMITS_ALONE", "EARLIER_TOLD"} <= {*qualifiers}
    others = (limited(8, low), limited(9, low))  # in no run, but who reads the pruned one does not know
    counted = exported(where(), *others, spent=counting(whole))
    assert audited(counted, whole)[2] == []
    _, qualifiers, findings = audited(counted, gone)
    assert findings == [] and "EARLIER_TOLD" in qualifiers


def test_a_log_in_which_nobody_has_a_limit_is_honest_beside_a_run_that_it_does_not_count(where: Any, folder: Path) -> None:
    run = trained(folder, *FOUR[:2])
    for counts in (over(), None):
        assert audited(exported(where(), *FOUR[:2], over_runs=counts), run)[2] == []


def test_limits_of_another_policy_and_budgets_that_may_admit_more_leave_limits_alone(where: Any, folder: Path) -> None:
    spec_ = header_spec(
        run_policy(max_epsilon_total_micro=9 * MICRO),
        owner_key=keys.public_bytes(OWNER),
        registry_root=make_registry().root(),
    )
    with Ledger.create(folder / "limits.db", spec_, RUN, now=NOW - 1000) as ledger:
        driver = Driver(ledger, now=NOW - 1000, streams=1000)
        terms = SignedDescriptor.from_cbor(FOUR[0].descriptor)
        known = admission(0, "sensitive", clip_micro=MICRO, sigma_micro=NOISE, anchor=terms.content)
        driver.admit(replace(known, descriptor_hash=digest(FOUR[0])))
        driver.steps(1)
        driver.epoch()
        ledger.finish(now=driver.tick())
        run = ledger.export(folder / "limits")
    export = exported(where(), *FOUR[:2], spent=counting(run))

    def found(*others: Path) -> Any:
        told = verify_budget(export, [SIGNER.vkey, RUN.vkey], now=NOW + 60, minimum_size=1, runs=[run], others=others)
        return told.qualifiers, {one.code for one in told.findings}

    assert "LIMITS_ALONE" not in found()[0]
    empty, _ = another(where(), FOUR[2], now=NOW - 5)
    assert "LIMITS_ALONE" in found(empty)[0], "it may admit more"
    assert found(another(where(), FOUR[0], now=NOW - 5)[0])[1] == {"EARLIER_LEFT_OUT"}


def test_who_is_read_again_and_again_and_refused_leaves_nothing_behind(where: Any, folder: Path) -> None:
    low = int(TEXTS_ALONE * MICRO) + 1
    who = [limited(20 + number, low + number) for number in range(5)]
    spent = counting(trained(folder, *who))
    with created(where(), over_runs=over(spent)) as log:
        sizes = set()
        for _ in range(3):
            assert admitted(log, *who, spent=spent) == ["BUDGET"] * 5
            sizes.add(len(spent._worst))
        assert len(sizes) == 1


def test_what_begins_over_another_corpus_or_before_what_it_counts_counts_nothing(folder: Path) -> None:
    spent = counting(trained(folder, *WHO))
    spent.require_countable(CORPUS, NOW)
    for corpus, moment, code in (("another", NOW, "EARLIER_CORPUS"), (CORPUS, NOW - 9000, "EARLIER_TIME")):
        with pytest.raises(LeafRefused) as refused:
            spent.require_countable(corpus, moment)
        assert refused.value.code == code


def test_a_run_whose_key_was_lost_counts_as_the_one_says_that_goes_on_with_it(where: Any, folder: Path) -> None:
    """Who names both need say nothing more, and texts count what either spent, the lost one with its whole plan."""
    began = int(time.time()) - 5000
    first = trained(folder, *WHO, close=False, now=began)
    cited = earlier_run(first, [RUN.vkey], reason=COMPROMISED).cited
    second = trained(folder, *WHO, name="goes on", signer=SIGNER, now=began + 900, previous=[cited])
    (folder / "runs.pub").write_text(f"{RUN.vkey}\n{SIGNER.vkey}\n")
    owner, named = keys.public_bytes(OWNER), [folder / "runs.pub"]
    spent = NamedEarlier([second, first], keys=named).registry(None, owner)
    assert {one.reason for one in spent.previous} == {SPENT, COMPROMISED} and cited in spent.previous
    whole = earlier_run(first, [RUN.vkey], reason=COMPROMISED)
    own = SignedDescriptor.from_cbor(WHO[0].descriptor)
    assert SpentRegistry([whole]).carried(digest(WHO[0]), DELTA, spent_by(own)) < spent.carried(
        digest(WHO[0]), DELTA, spent_by(own)
    )
    for alone in ([first], [first, trained(folder, *WHO, name="another", now=began + 50)]):
        with pytest.raises(LeafRefused) as refused:
            NamedEarlier(alone, keys=named).registry(None, owner)
        assert refused.value.code == "EARLIER_OPEN"


def spent_by(signed_as: SignedDescriptor) -> Any:
    limit = {"max_epsilon_micro": signed_as.limit[0], "max_delta_pico": signed_as.limit[1]}
    return admission(0, "sensitive", clip_micro=MICRO, sigma_micro=NOISE, **limit)
