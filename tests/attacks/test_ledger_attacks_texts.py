"""Attacks on a run whose contributions pay for texts too: what a log that signs everything may leave out of those."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import signed_file
from attest.attestation import Attestation
from attest.descriptor import SignedDescriptor
from attest.withdrawal import Withdrawal, sign_withdrawal
from ledger.accountants import to_micro_up
from ledger.audit import AuditReport, verify_export
from ledger.audit.texts import GivenTexts
from ledger.audit.verify import earlier_run
from ledger.budget import Mechanism, Unit
from ledger.budget.audit import given_texts
from ledger.budget.export import export_budget
from ledger.budget.generation import OverRuns
from ledger.budget.log import BudgetLog
from ledger.budget.rho import epsilon_of_rho
from ledger.leaves import Previous
from ledger.log import Ledger
from ledger.note import NoteSigner
from ledger.replay.budgets import Plans
from ledger.replay.contributions import AdmitSpec
from ledger.replay.earlier_runs import SpentRegistry
from ledger.replay.earlier_texts import WITHDRAWN, EarlierTexts
from tests.worlds import generating
from tests.worlds.gate import MICRO, NOW
from tests.worlds.generating import RULE, TOKEN, signed, spec, unit
from tests.worlds.ledgers import OTHER_KEY, OWNER_KEY, SIGNER, Driver, admission, header_spec

TEXTS_SIGNER = NoteSigner("ledger.example/texts", Ed25519PrivateKey.from_private_bytes(bytes(range(6, 38))))
SECOND = NoteSigner("ledger.example/run2", OTHER_KEY)
KEYS = [SIGNER.vkey, SECOND.vkey, TEXTS_SIGNER.vkey]
LATER = NOW + 10_000
WHOLE = epsilon_of_rho(RULE.max_rho_nano / 1e9, 1e-6)
"""Says what all texts of a contribution may cost, as epsilon."""
PRESET = admission(1, "sensitive")


def attested(number: int, **changes: Any) -> Attestation:
    """Returns what a contributor signed with the bounds of the class in the run."""
    bounds = {"clip_norm_micro": PRESET.clip_micro, "noise_multiplier_micro": PRESET.sigma_micro}
    return generating.attested(number, **bounds, **changes)


FOUR = tuple(attested(number) for number in range(4))
LIMIT = {"max_epsilon_micro": 90 * MICRO, "max_delta_pico": 10**6}
LIMITED = (attested(10, **LIMIT), attested(11, **LIMIT))


def name_of(one: Attestation) -> bytes:
    return hashlib.sha256(one.descriptor).digest()


class Budget:
    """A budget log that goes on, and exports of it."""

    def __init__(self, base: Path, name: str = "texts", *, admits: Sequence[Attestation] = FOUR[:2], now: int = NOW,
                 signer: NoteSigner = TEXTS_SIGNER, previous: tuple[Previous, ...] = (), **changes: Any) -> None:  # fmt: skip
        self.base, self.name, self.signer, self.now, self.exports = base, name, signer, now, 0
        if changes.get("generation", True):
            changes["over_runs"] = OverRuns.of(signed(), ["sensitive"], previous)
        self.log = BudgetLog.create(base / f"{name}.db", spec(**changes), signer, now=now)
        if admits:
            assert self.log.admit(admits, now=now).refused == {}

    def export(self) -> Path:
        self.exports += 1
        self.log.close_epoch(self.signer, now=self.now)
        return export_budget(self.log, self.base / f"{self.name}{self.exports}")


def given(export: Path, keys: Sequence[str] = KEYS) -> GivenTexts:
    return given_texts(export, keys, now=LATER + 5000)


def texts(export: Path) -> EarlierTexts:
    found = given(export)
    assert found.read is not None, found.report.findings
    return found.read.texts


def member(one: Attestation, registry: SpentRegistry, **changes: Any) -> AdmitSpec:
    """An admission of what was signed, with what it truly carries, unless it says otherwise."""
    said = SignedDescriptor.from_cbor(one.descriptor)
    (clip, sigma, most), (epsilon, delta) = said.bounds, said.limit
    fields: dict[str, Any] = {"clip_micro": clip, "sigma_micro": sigma, "max_occurrences": most, "anchor": said.content}
    fields |= {"attestation_hash": one.digest(), "max_epsilon_micro": epsilon, "max_delta_pico": delta}
    found = replace(admission(1, "sensitive"), descriptor_hash=name_of(one), **{**fields, **changes})
    return found if "carried_micro" in changes else replace(
        found, carried_micro=to_micro_up(registry.carried(found.descriptor_hash, 1e-6, found))
    )  # fmt: skip


def run(
    base: Path,
    name: str,
    *specs: AdmitSpec,
    previous: Sequence[Previous] = (),
    signer: NoteSigner = SIGNER,
    now: int = LATER,
    streams: int = 0,
    withdraws: Sequence[tuple[bytes, str, bytes]] = (),
    **header: Any,
) -> Path:
    """A closed run of two windows."""
    with Ledger.create(base / f"{name}.db", header_spec(previous=tuple(previous), **header), signer, now=now) as ledger:
        driver = Driver(ledger, now=now, streams=streams)
        driver.admit(*specs)
        ledger.withdraw_all(withdraws, now=driver.tick())
        driver.steps(2)
        driver.epoch()
        ledger.finish(now=driver.tick())
        return ledger.export(base / name)


def audited(export: Path, *budgets: Path, earlier: Sequence[Path] = (), **asked: Any) -> AuditReport:
    options = {"now": LATER + 5000, **asked}
    report = verify_export(export, KEYS, earlier=earlier, texts=[given(budget) for budget in budgets], **options)
    assert report.verdict == ("FAILED" if report.findings else "TOLD")
    return report


def codes(export: Path, *budgets: Path, **asked: Any) -> list[str]:
    return [found.code for found in audited(export, *budgets, **asked).findings]


def test_what_texts_may_cost_is_counted_for_everybody_of_the_class_admitted_there_or_not(tmp_path):
    budget = Budget(tmp_path).export()
    registry = SpentRegistry([], [texts(budget)])
    stranger = attested(77)
    carried = [member(one, registry).carried_micro for one in (FOUR[0], stranger)]
    assert carried == [to_micro_up(WHOLE)] * 2
    specs = [member(one, registry) for one in (FOUR[0], stranger)]
    honest = run(tmp_path, "one", *specs, previous=registry.previous)
    report = audited(honest, budget)
    assert report.findings == () and not {"EARLIER_TOLD", "LIMITS_ALONE"} & {*report.qualifiers}
    for n, number in enumerate((0, 1)):
        specs_ = [member(one, registry, carried_micro=0) if place == number else specs[place]
                  for place, one in enumerate((FOUR[0], stranger))]  # fmt: skip
        assert codes(run(tmp_path, f"lie{n}", *specs_, previous=registry.previous), budget) == ["CARRIED"]


def least_limit(registry: SpentRegistry, one: AdmitSpec) -> int:
    """The least limit, in 1e-6, under which a run may begin; the order by which is counted hangs on the limit. Below what texts
    alone may cost a budget takes nobody, and so counts for nobody."""
    low, high = int(WHOLE * MICRO) if registry.of_anybody(one) else 0, 200 * MICRO
    while high - low > 1:
        middle = (low + high) // 2
        said = replace(one, max_epsilon_micro=middle, max_delta_pico=10**6)
        use = registry.worst(registry.accounts(said.descriptor_hash, said), _planned(said), 1e-6)
        low, high = (middle, high) if use is not None and use.too_much() else (low, middle)
    return high


def _planned(spec: AdmitSpec) -> Any:
    header = header_spec().header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=LATER)
    return Plans(header).of(spec.profile_id, spec)


def limited(base: Path, number: int, micro: int) -> tuple[Attestation, Path]:
    """A contribution that signed a limit, and a budget that admitted it."""
    one = attested(number, max_epsilon_micro=micro, max_delta_pico=10**6)
    base.mkdir()
    return one, Budget(base, admits=[one]).export()


def test_a_limit_is_held_against_all_that_texts_may_cost_though_none_was_made(tmp_path):
    probe, budget = limited(tmp_path / "probe", 9, 90 * MICRO)
    registry = SpentRegistry([], [texts(budget)])
    least, alone = (least_limit(found, member(probe, registry)) for found in (registry, SpentRegistry()))
    assert least > alone + 1000
    for name, micro, expected in (("within", least, []), ("beyond", least - 10, ["BUDGET"])):
        one, budget = limited(tmp_path / name, 9, micro)
        registry = SpentRegistry([], [texts(budget)])
        assert codes(run(tmp_path, f"run-{name}", member(one, registry), previous=registry.previous), budget) == expected


def test_a_cited_run_that_had_no_room_beside_the_texts_it_counted_must_not_have_begun(tmp_path):
    """It stopped early, so what both spent fits: whether it had done so may depend on what it saw."""
    probe, budget = limited(tmp_path / "probe", 9, 90 * MICRO)
    registry = SpentRegistry([], [texts(budget)])
    one, budget = limited(tmp_path / "tight", 9, least_limit(registry, member(probe, registry)) - 10)
    registry = SpentRegistry([], [texts(budget)])
    first = run(tmp_path, "one", member(one, registry), previous=registry.previous)
    later = SpentRegistry([earlier_run(first, KEYS, now=LATER + 5000)], [texts(budget)])
    stranger = member(attested(77), later)
    second = run(tmp_path, "two", stranger, previous=later.previous, signer=SECOND, streams=50, now=LATER + 900)
    (found,) = audited(second, budget, earlier=[first]).findings
    assert (found.code, found.where) == ("BUDGET", SIGNER.name) and "it must not have begun" in found.sentence


def test_a_cited_budget_that_is_missing_behind_another_or_failed_is_found(tmp_path):
    budget = Budget(tmp_path)
    early, late = budget.export(), budget.export()
    registry = SpentRegistry([], [texts(late)])
    (cited,) = registry.previous
    one = member(FOUR[0], registry)
    honest = run(tmp_path, "one", one, previous=registry.previous)
    assert codes(honest) == ["EARLIER_MISSING"]
    assert codes(honest, early) == ["EARLIER_BEHIND"]
    assert codes(honest, late) == codes(honest, early, late) == codes(honest, budget.export()) == []
    forked = run(tmp_path, "forked", one, previous=[replace(cited, root=bytes(32))])
    assert codes(forked, late) == ["EARLIER_FORKED"]
    failed = verify_export(honest, KEYS, earlier=[], texts=[given(late, [SIGNER.vkey])], now=LATER + 5000)
    assert {found.code for found in failed.findings} == {"EARLIER", "EARLIER_MISSING"}
    assert codes(honest, tmp_path) == ["EARLIER", "EARLIER_MISSING"]


def test_a_budget_is_cited_under_its_own_name_and_key_and_as_what_it_is(tmp_path):
    budget = Budget(tmp_path).export()
    registry = SpentRegistry([], [texts(budget)])
    (cited,) = registry.previous
    one = member(FOUR[0], registry)
    other = NoteSigner("other.example/texts", SECOND.private_key)
    lies = [replace(cited, origin=other.name, log_vkey=other.vkey), replace(cited, log_vkey=_renamed(SECOND, cited.origin))]
    for n, lie in enumerate(lies):
        assert codes(run(tmp_path, f"lie{n}", one, previous=[lie]), budget) == ["EARLIER_NAME"]
    spent = run(tmp_path, "spent", member(FOUR[0], registry, carried_micro=0), previous=[replace(cited, reason="spent")])
    assert "EARLIER_MISSING" in codes(spent, budget)
    first = run(tmp_path, "first", one, previous=registry.previous)
    (ran,) = SpentRegistry([earlier_run(first, KEYS, now=LATER + 5000)]).previous
    as_texts = [cited, replace(ran, reason="texts")]
    second = run(tmp_path, "second", one, previous=as_texts, signer=SECOND, streams=50, now=LATER + 900)
    assert "EARLIER_MISSING" in codes(second, budget, earlier=[first])


def _renamed(signer: NoteSigner, name: str) -> str:
    return NoteSigner(name, signer.private_key).vkey


def test_a_run_dated_before_the_leaves_of_a_budget_that_it_counts_is_found(tmp_path):
    """By the last cited leaf: what stands behind it may be of any time."""
    budget = Budget(tmp_path)
    early = budget.export()
    budget.now = LATER + 4000
    late = budget.export()
    at_first, at_last = SpentRegistry([], [texts(early)]), SpentRegistry([], [texts(late)])
    began = LATER - 3000
    assert codes(run(tmp_path, "one", member(FOUR[0], at_first), previous=at_first.previous, now=began), late) == []
    false = run(tmp_path, "two", member(FOUR[0], at_last), previous=at_last.previous, now=began)
    assert codes(false, late) == ["EARLIER_TIME"]


def test_a_budget_that_began_before_and_names_who_took_part_may_not_be_left_out(tmp_path):
    budget = Budget(tmp_path).export()
    nothing = SpentRegistry()
    hidden = run(tmp_path, "hidden", member(FOUR[0], nothing))
    assert codes(hidden, budget) == ["EARLIER_LEFT_OUT"]
    stranger = run(tmp_path, "stranger", member(LIMITED[0], nothing))
    report = audited(stranger, budget)  # nobody of these is named there yet
    assert report.findings == () and "LIMITS_ALONE" in report.qualifiers
    assert any("may yet admit some: limits are not held against it" in note for note in report.notes)


def test_a_budget_that_began_after_a_run_is_told_of_and_one_that_counts_it_is_another_audit(tmp_path):
    first = run(tmp_path, "one", member(LIMITED[0], SpentRegistry()), now=NOW - 5000)
    (cited,) = SpentRegistry([earlier_run(first, KEYS, now=LATER)]).previous
    apart, counting = Budget(tmp_path).export(), Budget(tmp_path, "counting", admits=(), previous=(cited,)).export()
    report = audited(first, apart)
    assert report.findings == () and "LIMITS_ALONE" in report.qualifiers
    assert any("began after this run and does not count it" in note for note in report.notes)
    report = audited(first, counting)
    assert report.findings == () and any("counts this run: audit it with --earlier of this" in note for note in report.notes)
    forged = Budget(tmp_path, "forged", admits=(), previous=(replace(cited, root=bytes(32)),)).export()
    assert codes(first, forged) == ["EARLIER_FORKED"]


def test_a_budget_of_other_classes_holds_no_limit_back(tmp_path):
    """Beside one that is counted: it alone would leave the limits held against no other ledger."""
    budget = Budget(tmp_path).export()
    registry = SpentRegistry([], [texts(budget)])
    honest = run(tmp_path, "one", member(LIMITED[0], registry), previous=registry.previous)
    assert "LIMITS_ALONE" in verify_export(honest, KEYS, now=LATER + 5000).qualifiers
    rule = replace(RULE, name="tales")
    other = Budget(tmp_path, "other", admits=(), generation=[rule], signer=SECOND, log_id=bytes(range(16)))
    report = audited(honest, budget, other.export())
    assert report.findings == () and "LIMITS_ALONE" not in report.qualifiers
    assert any("no rule for a private class of this run" in note for note in report.notes)
    same = Budget(tmp_path, "same", admits=(), signer=SECOND, log_id=bytes(range(16))).export()
    assert "LIMITS_ALONE" in audited(honest, budget, same).qualifiers, "of the same class it may yet admit some"


def test_two_histories_of_a_budget_are_found_whichever_of_them_is_cited(tmp_path):
    exports = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        budget = Budget(tmp_path / name)
        budget.log.withdraw(unit(FOUR[0 if name == "one" else 1]), now=NOW)
        exports.append(budget.export())
    one, two = exports
    registry = SpentRegistry([], [texts(one)])
    honest = run(tmp_path, "run", member(FOUR[1], registry), previous=registry.previous)
    assert codes(honest, one) == []
    for both in ((one, two), (two, one)):
        assert "EARLIER_FORKED" in codes(honest, *both)


def test_an_earlier_run_that_counted_another_history_of_a_budget_is_evidence(tmp_path):
    budget = Budget(tmp_path).export()
    registry = SpentRegistry([], [texts(budget)])
    (cited,) = registry.previous
    first = run(tmp_path, "one", member(FOUR[0], registry), previous=[replace(cited, root=bytes(32))])
    later = SpentRegistry([earlier_run(first, KEYS, now=LATER + 5000)], [texts(budget)])
    second = run(
        tmp_path, "two", member(FOUR[0], later), previous=later.previous, signer=SECOND, streams=50, now=LATER + 900
    )
    assert codes(second, budget, earlier=[first]) == ["EARLIER_FORKED"]


def test_whatever_an_earlier_run_or_an_earlier_budget_counted_is_cited_too(tmp_path):
    budget = Budget(tmp_path).export()
    registry = SpentRegistry([], [texts(budget)])
    first = run(tmp_path, "one", member(FOUR[0], registry), previous=registry.previous)
    ran = earlier_run(first, KEYS, now=LATER + 5000)
    alone = SpentRegistry([ran])
    one = member(FOUR[0], alone)
    second = run(tmp_path, "two", one, previous=alone.previous, signer=SECOND, streams=50, now=LATER + 900)
    assert codes(second, budget, earlier=[first]) == ["EARLIER_UNCITED", "EARLIER_LEFT_OUT"]
    plain = run(tmp_path, "plain", member(FOUR[0], SpentRegistry()), now=NOW - 5000, streams=90)
    (cited,) = SpentRegistry([earlier_run(plain, KEYS, now=LATER)]).previous
    counting = Budget(tmp_path, "counting", admits=(), previous=(cited,)).export()
    only = SpentRegistry([], [texts(counting)])
    third = run(tmp_path, "three", member(FOUR[0], only), previous=only.previous, signer=SECOND, streams=130)
    assert "EARLIER_UNCITED" in codes(third, counting, earlier=[plain])


def test_a_run_and_a_budget_that_do_not_count_each_other_are_told_to_whoever_counts_both(tmp_path):
    budget = Budget(tmp_path).export()
    first = run(tmp_path, "one", member(attested(77), SpentRegistry()))
    later = SpentRegistry([earlier_run(first, KEYS, now=LATER + 5000)], [texts(budget)])
    one = member(attested(77), later)
    second = run(tmp_path, "two", one, previous=later.previous, signer=SECOND, streams=50, now=LATER + 900)
    report = audited(second, budget, earlier=[first])
    assert report.findings == () and "EARLIER_APART" in report.qualifiers


def test_a_budget_without_rules_is_no_budget_to_cite(tmp_path):
    budget = Budget(tmp_path, admits=(), generation=[])
    export = budget.export()
    honest = run(tmp_path, "one", member(FOUR[0], SpentRegistry()))
    report = audited(honest, export)
    assert report.findings == () and any("has no rules of generation" in note for note in report.notes)
    registry = SpentRegistry([], [texts(export)])
    assert codes(run(tmp_path, "two", member(FOUR[0], registry), previous=registry.previous), export) == ["EARLIER_RULES"]


def test_that_other_reservations_made_no_texts_is_noted(tmp_path):
    caps = {"contribution": (10 * MICRO, 10**6), "user": (MICRO, 10**6)}
    mechanisms = [Mechanism("answers", 1, True, "answers"), Mechanism("invisibleink", 1, True, "tokens")]
    budget = Budget(tmp_path, caps=caps, mechanisms=mechanisms)
    budget.log.reserve(Unit("user", "anna"), "answers", 1, rho_nano=5, now=NOW)
    export = budget.export()
    registry = SpentRegistry([], [texts(export)])
    report = audited(run(tmp_path, "one", member(FOUR[0], registry), previous=registry.previous), export)
    assert report.findings == ()
    assert any("by reservations which others paid for is the operator's word" in note for note in report.notes)


def test_one_descriptor_says_one_thing_to_runs_and_budgets_and_one_commitment_is_of_one(tmp_path):
    budget = Budget(tmp_path, admits=LIMITED).export()
    registry = SpentRegistry([], [texts(budget)])
    one = member(LIMITED[0], registry)
    assert codes(run(tmp_path, "honest", one, previous=registry.previous), budget) == []
    lies = {
        "class": (replace(one, class_name="open", profile_id=0, carried_micro=0), ["EARLIER_TERMS"]),
        "bounds": (replace(one, sigma_micro=2 * one.sigma_micro), ["EARLIER_TERMS"]),
        "limit": (replace(one, max_epsilon_micro=0, max_delta_pico=0), ["LIMIT"]),
        "renamed": (replace(one, descriptor_hash=bytes(range(32))), ["EARLIER_ANCHOR"]),
    }
    for name, (lie, expected) in lies.items():
        assert codes(run(tmp_path, name, lie, previous=registry.previous), budget) == expected, name


# --- withdrawals --------------------------------------------------------------------------------------------------------------


def withdrawn_from(base: Path) -> tuple[Path, Path]:
    """A budget before and behind a withdrawal of its first contribution."""
    budget = Budget(base)
    early = budget.export()
    budget.log.withdraw(unit(FOUR[0]), now=NOW)
    budget.log.admit(FOUR[2:3], now=NOW)
    text = budget.log.reserve_text([unit(FOUR[1]), unit(FOUR[2])], "invisibleink", 1, rho_nano=TOKEN, now=NOW)
    budget.log.commit(text, 1, now=NOW)
    return early, budget.export()


def test_who_was_withdrawn_in_a_budget_before_a_run_began_takes_no_part_whichever_size_is_cited(tmp_path):
    early, late = withdrawn_from(tmp_path)
    for name, cited in (("cited", late), ("behind", early)):
        registry = SpentRegistry([], [texts(cited)])
        assert codes(run(tmp_path, name, member(FOUR[0], registry), previous=registry.previous), late) == ["EARLIER_WITHDRAWN"]
    registry = SpentRegistry([], [texts(late)])
    entered = list(registry.withdrawn_among([name_of(FOUR[0]), name_of(FOUR[1])]))
    assert [(name, reason) for name, reason, _ in entered] == [(name_of(FOUR[0]), WITHDRAWN)]
    specs = [member(one, registry) for one in FOUR[:2]]
    honest = run(tmp_path, "honest", *specs, previous=registry.previous, withdraws=entered)
    report = audited(honest, late)
    assert report.findings == () and not any("no budget that was given has them" in note for note in report.notes)
    made_up = [(name_of(FOUR[1]), WITHDRAWN, bytes(32))]
    report = audited(run(tmp_path, "made", *specs, previous=registry.previous, withdraws=[*entered, *made_up]), late)
    assert any("1 withdrawals are entered as of a budget log" in note for note in report.notes)


def test_a_withdrawal_of_a_budget_hides_no_reason_where_no_budget_is_counted(tmp_path):
    """The reason of a signed withdrawal is held against the leaf, but where it comes from a budget, which says none."""
    _, late = withdrawn_from(tmp_path)
    registry = SpentRegistry([], [texts(late)])
    owner = header_spec().header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=NOW)
    said = Withdrawal(name_of(FOUR[0]), owner.policy.corpus, NOW - 1, "consent")
    payload, message = sign_withdrawal(said, OWNER_KEY, signer=owner.owner)
    (tmp_path / "signed").mkdir()
    signed_file.write(tmp_path / "signed" / "one.cose", payload, message)
    entered = list(registry.withdrawn_among([name_of(FOUR[0])]))
    one = member(FOUR[0], registry)
    for name, previous, expected in (("counted", registry.previous, []), ("alone", (), ["WITHDRAWAL_REASON"])):
        export = run(tmp_path, name, replace(one, carried_micro=one.carried_micro if previous else 0),
                     previous=previous, withdraws=entered)  # fmt: skip
        report = verify_export(export, KEYS, now=LATER + 5000, withdrawals=tmp_path / "signed")
        assert [found.code for found in report.findings] == expected
        assert ("WITHDRAWALS_TOLD" in report.qualifiers) is bool(expected)


def test_a_limit_below_what_texts_alone_may_cost_is_one_that_the_budget_takes_nobody_with(tmp_path):
    budget = Budget(tmp_path, admits=())
    one = attested(30, max_epsilon_micro=int(WHOLE * MICRO) - 10, max_delta_pico=10**6)
    assert [error.code for error in budget.log.admit([one], now=NOW).refused.values()] == ["LIMIT"]
    registry = SpentRegistry([], [texts(budget.export())])
    assert registry.accounts(name_of(one), member(one, SpentRegistry())) == ()


def test_two_budgets_that_a_run_counts_and_that_do_not_count_each_other_are_told_apart(tmp_path):
    first, second = Budget(tmp_path, "b1"), Budget(tmp_path, "b2", signer=SECOND, log_id=bytes(15) + b"9")
    one, other = first.export(), second.export()
    registry = SpentRegistry([], [texts(one), texts(other)])
    export = run(tmp_path, "r3", member(FOUR[0], registry), previous=registry.previous)
    found = audited(export, one, other)
    assert not found.findings and "EARLIER_APART" in found.qualifiers


def test_a_withdrawal_that_a_run_may_not_have_seen_yet_in_a_budget_that_it_counts_is_a_note(tmp_path):
    """It read the budget, somebody was withdrawn there, and it began: all within seconds."""
    budget = Budget(tmp_path)
    registry = SpentRegistry([], [texts(budget.export())])
    budget.log.withdraw(unit(FOUR[0]), now=NOW + 5)
    budget.now = NOW + 5
    newer = budget.export()
    for now, expected in ((NOW + 6, []), (NOW + 9000, ["EARLIER_WITHDRAWN"])):
        export = run(tmp_path, f"r{now}", member(FOUR[0], registry), previous=registry.previous, now=now)
        assert codes(export, newer) == expected
