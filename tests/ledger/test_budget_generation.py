"""Contributions make texts only behind what their contributors signed, under the rule that the owner signed, not beyond it."""

import hashlib
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attest import keys, signed_file
from attest.attestation import Attestation
from attest.descriptor import MAX_MICRO, TRAIN
from attest.policy import sign_policy, verify_policy
from attest.withdrawal import Withdrawal, sign_withdrawal
from ledger import layout
from ledger.budget import GenerationRule, Mechanism, Unit
from ledger.budget.audit import verify_budget
from ledger.budget.export import export_budget
from ledger.budget.generation import CONTRIBUTIONS, INK
from ledger.budget.leaves import Header, Leaf, Notice, Reference, Text, Withdrawn, decode_leaf, encode_leaf
from ledger.budget.log import Admissions, BudgetLog
from ledger.budget.notices import told
from ledger.budget.rho import NANO, bounded_range_nano
from ledger.budget.state import BudgetState
from ledger.errors import BudgetExhausted, LeafRefused
from ledger.export import write_tree
from ledger.merkle import root as root_of
from ledger.note import checkpoint_text, sign_note
from ledger.proofs.prover import ExportReader
from ledger.storage.place import Place
from tests.worlds import budgets
from tests.worlds.commands import Shell
from tests.worlds.gate import ALICE, BOB, CORPUS, MICRO, NOW, OWNER, make_registry, registry_bytes
from tests.worlds.generating import (
    BY_PAPERS,
    FOUR,
    LIES,
    RULE,
    TOKEN,
    TOKENS,
    attested,
    brought,
    created,
    generated,
    signed,
    text_of,
    unit,
)
from tests.worlds.ledgers import SIGNER
from tests.worlds.registries import continued, put

ROOT = Path(__file__).parents[2]
ONE, TWO, THREE, FOURTH = (unit(each) for each in FOUR)


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated")
    with generated(folder / "b.db") as log:
        return export_budget(log, folder / "export")


@pytest.fixture(scope="module")
def leaves(export: Path) -> list[Leaf]:
    return [decode_leaf(body) for body in ExportReader(export).entries()]


def written(folder: Path, leaves: list[Leaf]) -> Path:
    """An export of these leaves, as a liar with the log's key writes it."""
    folder.mkdir()
    bodies = [encode_leaf(leaf) for leaf in leaves]
    note = sign_note(checkpoint_text(SIGNER.name, len(bodies), root_of(bodies)), SIGNER)
    (folder / layout.CHECKPOINT).write_bytes(note)
    (folder / layout.POLICY).write_text(f"log {SIGNER.vkey}\nquorum none\n")
    write_tree(folder, bodies)
    return folder


def audited(path: Path, **asked: Any) -> Any:
    return verify_budget(path, [SIGNER.vkey], now=NOW + 60, minimum_size=1, **asked)


def kinds(log: BudgetLog, kind: type) -> list[Any]:
    return [leaf for row in log.rows(log.size) if isinstance(leaf := decode_leaf(row.body), kind)]


def refused(code: str, act: Any, *args: Any, **more: Any) -> None:
    with pytest.raises(LeafRefused) as caught:
        act(*args, **more)
    assert caught.value.code == code, caught.value


def count(found: Admissions) -> int:
    """How many were admitted, and nobody refused but who withdrew."""
    assert {error.code for error in found.refused.values()} <= {"WITHDRAWN"}
    return len(found.admitted)


# --- the rule -------------------------------------------------------------------------------------------------------------


@given(st.integers(1, CONTRIBUTIONS), st.integers(1, MAX_MICRO), st.integers(1, MAX_MICRO))
def test_a_token_costs_c_squared_over_2_b_squared_tau_squared_rounded_up(references: int, clip: int, temperature: int) -> None:
    rule = replace(RULE, references=references, clip_norm_micro=clip, temperature_micro=temperature)
    exact = NANO * Fraction(clip, temperature) ** 2 / (2 * references**2)
    assert exact <= rule.token_nano < exact + 1 and rule.token_nano >= 1


def test_what_a_token_costs_is_what_a_choice_of_bounded_range_costs() -> None:
    assert RULE.token_nano == TOKEN == bounded_range_nano(2 * 0.14 / (2 * 1.1))


def test_a_rule_is_copied_from_the_policy_that_was_signed() -> None:
    assert RULE.policy == signed().digest and (RULE.references, RULE.tokens, RULE.top_k) == (2, TOKENS, 50)
    refused("RULE", GenerationRule.of, signed(), "open")
    refused("RULE", GenerationRule.of, signed(), "nobody")


def test_a_header_with_rules_caps_contributions_and_one_without_keeps_its_bytes(path: Path) -> None:
    with budgets.created(path) as log:
        body = encode_leaf(log.header)
    assert body[0] == 0xAD and decode_leaf(body) == log.header and log.header.generation == ()
    refused("RULE_CAP", created, path.with_name("c.db"), caps={"user": budgets.cap_of(10)})
    refused("ORDER", replace, log.header, caps=created(path.with_name("d.db")).header.caps, generation=(RULE, RULE))


def test_an_empty_list_of_rules_is_no_header(leaves: list[Leaf]) -> None:
    header = leaves[0]
    assert isinstance(header, Header)
    body = encode_leaf(header)
    assert body[0] == 0xAE and decode_leaf(body) == header
    bare = encode_leaf(replace(header, generation=()))
    refused("SCHEMA", decode_leaf, bytes([0xAE]) + bare[1:] + b"\x0d\x80")


# --- admitting ------------------------------------------------------------------------------------------------------------


def test_a_contribution_pays_only_behind_what_its_contributor_signed(place: Place) -> None:
    with created(place) as log:
        refused("REFERENCE", text_of, log, [ONE, TWO])
        assert count(log.admit(FOUR[:2], now=NOW)) == 2
        text_of(log, [ONE, TWO])
        refused("REFERENCE", text_of, log, [ONE, THREE])
        assert log.balance(ONE).spent == log.balance(TWO).spent == TOKENS * TOKEN and log.balance(THREE).spent == 0
        assert [leaf.account for leaf in kinds(log, Reference)] == [bytes.fromhex(one.name) for one in (ONE, TWO)]


def test_who_was_admitted_is_admitted_once_and_by_one_turn(place: Place) -> None:
    with created(place) as log:
        assert count(log.admit(FOUR[:3], now=NOW)) == 3 and count(log.admit([*FOUR, FOUR[3]], now=NOW)) == 1
        assert count(log.admit(FOUR, now=NOW)) == 0 and log.size == 5


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"purposes": None}, "PURPOSE"),
        ({"purposes": (TRAIN,)}, "PURPOSE"),
        ({"admissibility_class": "open"}, "RULE"),
        ({"not_after": NOW}, "EXPIRED"),
        ({"not_before": NOW + 1}, "NOT_YET_VALID"),
        ({"max_epsilon_micro": 1, "max_delta_pico": 1}, "LIMIT"),
        ({"content_hash": hashlib.sha256(b"content 0").digest(), "nonce": hashlib.sha256(b"nonce 0").digest()[:16],
          "not_after": NOW + 9},
         "DUPLICATE_CONTENT"),
    ],
)  # fmt: skip
def test_one_who_cannot_be_admitted_keeps_nobody_else_out(place: Place, wrong: dict[str, Any], code: str) -> None:
    with created(place) as log:
        bad = attested(9, **wrong)
        found = log.admit([FOUR[0], bad, FOUR[1], bad], now=NOW)
        assert found.admitted == tuple(log.account(one) for one in (ONE, TWO)) and log.size == 3
        assert {account: error.code for account, error in found.refused.items()} == {log.account(unit(bad)): code}
        assert set(log.state.admitted) == set(found.admitted)
        text_of(log, [ONE, TWO])
    with BudgetLog.open(place) as log:
        refused("REFERENCE", text_of, log, [ONE, unit(bad)])


def test_who_signs_a_content_anew_gives_another_contribution(path: Path) -> None:
    """The commitment is salted, so a log cannot tell: the unit is what was signed, and each time that is one."""
    again = attested(9, content_hash=hashlib.sha256(b"content 0").digest())
    with created(path) as log:
        assert count(log.admit([FOUR[0], again], now=NOW)) == 2
        text_of(log, [ONE, unit(again)])


def test_the_message_is_one_over_this_descriptor_by_its_own_contributor(path: Path) -> None:
    with created(path) as log:
        for bad, code in (
            (replace(FOUR[0], sign1=FOUR[1].sign1), "ISSUER"),
            (replace(FOUR[0], sign1=FOUR[3].sign1), "ISSUER"),
            (replace(FOUR[0], sign1=b"\xd2\x80"), "HEADER"),
            (replace(FOUR[0], descriptor=FOUR[0].descriptor + b"\0"), "CBOR"),
            (replace(FOUR[0], sign1=bytes(2000)), "TYPE"),
        ):
            found = log.admit([bad], now=NOW)
            assert [error.code for error in found.refused.values()] == [code] and not found.admitted
        assert log.size == 1


def test_a_log_without_rules_admits_nobody_and_its_contributions_are_records_of_the_operator(path: Path) -> None:
    with created(path, generation=()) as log:
        refused("RULE", log.admit, FOUR, now=NOW)
        text_of(log, [ONE], tokens=10**3, rho=1)
        log.close_epoch(SIGNER, now=NOW)
        report = audited(export_budget(log, path.with_name("export")))
    assert (report.verdict, report.qualifiers) == ("FULL", ("RECORDS_TOLD",))


# --- paying ---------------------------------------------------------------------------------------------------------------


def test_no_text_is_longer_than_the_rule_and_no_token_costs_less(place: Place) -> None:
    with created(place) as log:
        log.admit(FOUR, now=NOW)
        refused("TOKENS", text_of, log, [ONE, TWO], tokens=TOKENS + 1)
        refused("RHO", text_of, log, [ONE, TWO], rho=TOKEN - 1)
        assert log.balance(ONE).spent == 0 and not log.state.open
        text_of(log, [ONE, TWO], tokens=1, rho=TOKEN + 1)


def test_every_text_has_as_many_contributions_as_its_rule_has_references(place: Place) -> None:
    with created(place) as log:
        log.admit(FOUR, now=NOW)
        for units in ([ONE], [ONE, TWO, THREE]):
            refused("REFERENCES", text_of, log, units, tokens=1)
        assert not log.state.open and log.balance(ONE).spent == 0


def test_the_contributions_of_a_text_were_admitted_under_one_rule(path: Path) -> None:
    other = attested(9, admissibility_class="open")
    with created(path, generation=[RULE, replace(RULE, name="open")]) as log:
        log.admit([*FOUR, other], now=NOW)
        refused("RULE", text_of, log, [ONE, unit(other)])
        text_of(log, [ONE, TWO])


def test_no_rule_is_of_more_references_than_a_leaf_names(path: Path) -> None:
    refused("REFERENCES", GenerationRule.of, signed(references=CONTRIBUTIONS + 1), "sensitive")
    most = GenerationRule.of(signed(references=CONTRIBUTIONS), "sensitive")
    units = [Unit("contribution", hashlib.sha256(b"%d" % number).hexdigest()) for number in range(CONTRIBUTIONS)]
    with created(path, generation=()) as log:
        text_of(log, units, tokens=1, rho=1)
        assert log.state.spent(log.account(units[-1])) == 1 and most.references == len(units)


def test_under_rules_nobody_but_contributions_pays_for_texts(path: Path) -> None:
    """A user, a corpus or a session would pay by the operator's own numbers, at whatever rho the header calls the least."""
    corpus = Unit("corpus", "letters")
    caps = {"contribution": (10**7, 10**6), "corpus": (10**7, 10**6), "user": (10**7, 10**6)}
    mechanisms = [Mechanism(name, 1, True, "noise") for name in (INK, "gaussian")]
    with created(path, caps=caps, mechanisms=mechanisms) as log:
        for payer in (corpus, budgets.ANNA, Unit("session", "s", budgets.ANNA)):
            refused("MECHANISM", log.reserve, payer, INK, 1, rho_nano=10**6, now=NOW)
        log.reserve(corpus, "gaussian", 1, rho_nano=1, now=NOW)
    with created(path.with_name("c.db"), caps=caps, mechanisms=mechanisms, generation=()) as log:
        log.reserve(corpus, INK, 1, rho_nano=1, now=NOW)


def test_a_contribution_spends_what_its_rule_allows_and_not_one_more(place: Place) -> None:
    """The cap of the kind, ten times as much, binds nobody here."""
    with created(place) as log:
        log.admit(FOUR, now=NOW)
        for _ in range(3):
            text_of(log, [ONE, TWO])
        with pytest.raises(BudgetExhausted) as caught:
            text_of(log, [ONE, THREE], tokens=1)
        assert (caught.value.unit, caught.value.cap) == ("contribution", RULE.max_rho_nano)
        assert log.balance(ONE).cap == RULE.max_rho_nano and log.balance(THREE).spent == 0
        assert log.state.left("contribution", log.account(ONE), now=NOW) == 5
        assert log.state.left("contribution", log.account(THREE), now=NOW) == RULE.max_rho_nano


def test_the_cap_of_contributions_binds_where_it_is_lower_than_the_rule(path: Path) -> None:
    with created(path, caps={"contribution": (10**6, 10**6)}) as log:
        log.admit(FOUR, now=NOW)
        assert log.balance(ONE).cap == log.header.cap("contribution") < RULE.max_rho_nano


def test_thresholds_are_those_of_the_rule(path: Path) -> None:
    with created(path) as log:
        log.admit(FOUR[:2], now=NOW)
        text_of(log, [ONE, TWO])
        assert not kinds(log, Notice)
        text_of(log, [ONE, TWO])
        notice, other = kinds(log, Notice)
        assert sorted([log.account(ONE), log.account(TWO)]) == [notice.account, other.account]
        assert (notice.percent, notice.spent_nano) == (50, 2 * TOKENS * TOKEN)
        assert told(log.header, notice)["cap_nano_rho"] is None


def test_what_was_signed_pays_for_nothing_once_it_is_valid_no_more(path: Path) -> None:
    short = attested(9, not_after=NOW + 10)
    with created(path) as log:
        log.admit([short, *FOUR], now=NOW)
        text_of(log, [unit(short), ONE], now=NOW + 9)
        refused("EXPIRED", text_of, log, [unit(short), ONE], now=NOW + 10)
        account = log.account(unit(short))
        assert (log.state.left("contribution", account, now=NOW + 9) or 0) > 0
        assert log.state.left("contribution", account, now=NOW + 10) == 0


# --- withdrawing ----------------------------------------------------------------------------------------------------------


def test_nothing_is_reserved_for_a_contribution_that_was_withdrawn_and_what_is_open_may_end(place: Place) -> None:
    with created(place) as log:
        log.admit(FOUR, now=NOW)
        paid = text_of(log, [ONE, TWO])
        log.withdraw(ONE, now=NOW)
        refused("WITHDRAWN", text_of, log, [ONE, THREE])
        refused("WITHDRAWN", text_of, log, [TWO, ONE])
        log.commit(paid, 3, now=NOW)
        assert log.balance(ONE).spent == log.balance(TWO).spent == 3 * TOKEN
        assert log.state.left("contribution", log.account(ONE), now=NOW) == 0
        text_of(log, [TWO, THREE])
    with BudgetLog.open(place) as log:
        refused("WITHDRAWN", text_of, log, [ONE, TWO])


def test_who_withdrew_is_never_admitted_and_withdraws_once(path: Path) -> None:
    with created(path) as log:
        log.withdraw(bytes.fromhex(ONE.name), now=NOW)
        log.withdraw(ONE, now=NOW)
        assert [leaf.account.hex() for leaf in kinds(log, Withdrawn)] == [ONE.name]
        found = log.admit(FOUR, now=NOW)
        assert [error.code for error in found.refused.values()] == ["WITHDRAWN"] and count(found) == 3
        refused("UNIT", log.withdraw, Unit("user", "anna"), now=NOW)


def test_records_of_the_operator_are_withdrawn_too(path: Path) -> None:
    with created(path, generation=()) as log:
        log.withdraw(ONE, now=NOW)
        refused("WITHDRAWN", text_of, log, [ONE])


# --- races ----------------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(99)
def test_processes_that_race_for_one_contribution_are_granted_its_texts_and_not_one_more(place: Place) -> None:
    with created(place) as log:
        log.admit(FOUR, now=NOW)
    context = get_context("spawn")
    barrier = context.Barrier(2)
    with ProcessPoolExecutor(2, context, budgets.wait_for, (barrier,)) as pool:
        pairs = ([ONE, TWO], [ONE, THREE])
        futures = [pool.submit(texts_granted, place, 5, pair) for pair in pairs]
        counts = [future.result(120) for future in futures]
    with BudgetLog.open(place) as log:
        spent = [log.balance(one).spent // (TOKENS * TOKEN) for one in (ONE, TWO, THREE)]
        assert sum(counts) == 3 and spent == [3, *counts]


def texts_granted(place: Place, asked: int, units: list[Unit]) -> int:
    """Asks for texts in a process of its own; returns how many were granted."""
    count = 0
    with BudgetLog.open(place) as log:
        if budgets.together is not None:
            budgets.together.wait(120)
        for _ in range(asked):
            try:
                text_of(log, units)
            except BudgetExhausted:
                continue
            count += 1
    return count


def test_a_process_that_is_killed_leaves_whole_texts_and_admissions_that_hold(path: Path) -> None:
    created(path).close()
    program = (
        "import sys; from tests.worlds.generating import *; from ledger.budget.log import BudgetLog\n"
        f"log = BudgetLog.open({str(path)!r}); log.admit(FOUR, now=NOW); print(1, flush=True)\n"
        "text_of(log, [unit(one) for one in FOUR[:2]]); print(2, flush=True)\n"
        "sys.stdin.read()\n"
    )
    for lines in (1, 2):
        running = subprocess.Popen(
            [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        assert running.stdout is not None
        for _ in range(lines):
            assert running.stdout.readline()
        running.kill()
        running.communicate()
    with BudgetLog.open(path) as log:
        [spent] = {log.balance(unit(one)).spent // (TOKENS * TOKEN) for one in FOUR[:2]}
        assert 1 <= spent <= 2 and len(log.state.admitted) == 4
        log.close_epoch(SIGNER, now=NOW)
        report = audited(export_budget(log, path.with_name("export")), **brought(path.with_name("papers")))
    assert report.verdict == "FULL" and report.open == spent


# --- audit ----------------------------------------------------------------------------------------------------------------


def test_an_auditor_with_policy_and_registry_says_full_and_one_without_says_whose_word_it_is(
    export: Path, tmp_path: Path
) -> None:
    papers = brought(tmp_path)
    report = audited(export, **papers)
    assert (report.verdict, report.qualifiers, report.findings) == ("FULL", ("FREED_TOLD",), ())
    [row] = report.generation
    assert (row.policy, row.signed, row.admitted, row.withdrawn, row.verified) == (RULE.policy.hex(), True, 4, 1, 4)
    assert row.most_nano == (12 + 2 * TOKENS) * TOKEN and row.rule == RULE
    for left, expected in (
        ({"registry": None}, ("CONSENT_TOLD", "FREED_TOLD")),
        ({"policies": ()}, ("FREED_TOLD", "RULES_TOLD")),
        ({"registry": None, "policies": (), "owner_key": None}, ("CONSENT_TOLD", "FREED_TOLD", "RULES_TOLD")),
    ):
        report = audited(export, **{**papers, **left})
        assert (report.verdict, report.qualifiers) == ("TOLD", expected)
    assert {one.code for one in audited(export, **{**papers, "owner_key": None}).findings} == {"OWNER_KEY"}


def test_a_rule_of_a_policy_that_was_not_given_is_told(tmp_path: Path) -> None:
    """Two rules, and the policy of one of them."""
    other = GenerationRule.of(signed(tokens=TOKENS + 1), "sensitive")
    with created(tmp_path / "b.db", generation=[RULE, replace(other, name="zeal")]) as log:
        report = audited(export_budget(log, tmp_path / "export"), **brought(tmp_path / "papers"))
    assert (report.verdict, report.qualifiers) == ("TOLD", ("RULES_TOLD",))
    assert [row.signed for row in report.generation] == [True, False]


def test_what_a_contribution_spent_in_several_logs_is_added_up(tmp_path: Path) -> None:
    """Each log holds its own cap; the owner signed one for all texts together."""
    papers = brought(tmp_path / "papers")

    def log(name: str, texts: int) -> Path:
        with created(tmp_path / f"{name}.db", log_id=name.encode() * 16) as made:
            made.admit(FOUR[:2], now=NOW)
            for _ in range(texts):
                text_of(made, [ONE, TWO])
            made.close_epoch(SIGNER, now=NOW)
            return export_budget(made, tmp_path / name)

    two, one, more = log("a", 2), log("b", 1), log("c", 1)
    alone = audited(two, **papers)
    assert alone.verdict == "FULL" and any("no other log" in note and "(--earlier)" in note for note in alone.notes)
    both = audited(two, **papers, others=[one])
    assert both.verdict == "FULL" and any("no other log" in note and "1 more" in note for note in both.notes)
    found, other = audited(two, **papers, others=[one, more]).findings
    assert ONE.name in found.sentence and TWO.name in other.sentence
    assert found.code == "TOGETHER" and str(4 * TOKENS * TOKEN) in found.sentence
    assert {one.code for one in audited(two, **papers, others=[two]).findings} == {"OTHER"}
    assert {one.code for one in audited(two, **papers, others=[tmp_path]).findings} == {"OTHER"}


def one_of_several(path: Path, texts: list[tuple[Unit, Unit]], *, commit: int | None = None, **changes: Any) -> Path:
    """The export of one log among several: four contributions admitted, and these texts."""
    rho = changes.pop("rho", TOKEN)
    with created(path.with_suffix(".db"), log_id=path.name.encode() * 16, **changes) as made:
        made.admit(FOUR, now=NOW)
        for pair in texts:
            paid = text_of(made, list(pair), rho=rho)
            if commit is not None:
                made.commit(paid, commit, now=NOW)
        made.close_epoch(SIGNER, now=NOW)
        return export_budget(made, path)


def test_what_weakens_another_log_weakens_what_is_said_of_all_together(tmp_path: Path) -> None:
    papers = brought(tmp_path / "papers")
    honest = one_of_several(tmp_path / "a", [(ONE, TWO)])
    freed = one_of_several(tmp_path / "b", [(ONE, TWO)] * 9, commit=0)
    cheap = replace(RULE, policy=b"x" * 32, clip_norm_micro=1)
    unsigned = one_of_several(tmp_path / "c", [(ONE, TWO)] * 9, generation=[cheap], rho=cheap.token_nano)
    assert (audited(honest, **papers).verdict, audited(honest, **papers).qualifiers) == ("FULL", ())
    found = audited(honest, **papers, others=[freed])
    assert (found.verdict, found.qualifiers, found.findings) == ("FULL", ("FREED_TOLD",), ())
    found = audited(honest, **papers, others=[freed, unsigned])
    assert (found.verdict, found.qualifiers, found.findings) == ("TOLD", ("FREED_TOLD", "RULES_TOLD"), ())
    assert any(note.startswith(f"{unsigned}: 9 reservations have no COMMIT") for note in found.notes)
    assert any("2 other logs are the newest" in note for note in found.notes)


def test_what_one_log_withdrew_and_another_paid_with_later_is_told(tmp_path: Path) -> None:
    papers = brought(tmp_path / "papers")

    def log(name: str, text: int, withdrawn: int | None) -> Path:
        with created(tmp_path / f"{name}.db", log_id=name.encode() * 16) as made:
            made.admit(FOUR, now=NOW)
            text_of(made, [ONE, TWO], now=NOW + text)
            if withdrawn is not None:
                made.withdraw(ONE, now=NOW + withdrawn)
            made.close_epoch(SIGNER, now=NOW + 30)
            return export_budget(made, tmp_path / name)

    left, later, before = log("a", 1, 4), log("b", 20, None), log("c", 4, None)
    for first, other in ((left, later), (later, left)):
        found = audited(first, **papers, others=[other])
        assert (found.verdict, found.qualifiers) == ("FULL", ("WITHDRAWAL_LATE",))
        assert any(ONE.name in note and "another log" in note for note in found.notes)
    assert audited(left, **papers, others=[before]).qualifiers == ()
    withdrawal = Withdrawal(bytes.fromhex(ONE.name), CORPUS, NOW + 3, "consent")
    (tmp_path / "given").mkdir()
    signed_file.write(tmp_path / "given" / "one.withdrawal", *sign_withdrawal(withdrawal, ALICE, signer="alice"))
    found = audited(left, **papers, others=[before], withdrawals=tmp_path / "given")
    assert found.qualifiers == ("WITHDRAWAL_LATE", "WITHDRAWAL_UNENTERED")
    with created(tmp_path / "d.db", log_id=b"d" * 16, generation=()) as ruleless:
        text_of(ruleless, [ONE, TWO], now=NOW + 4)
        ruleless.close_epoch(SIGNER, now=NOW + 5)
        without_rules = export_budget(ruleless, tmp_path / "d")
    found = audited(left, **papers, others=[without_rules], withdrawals=tmp_path / "given")
    assert found.qualifiers == ("RECORDS_TOLD", "WITHDRAWAL_LATE")


def test_a_sum_over_logs_is_of_every_contribution_that_one_of_them_admitted(tmp_path: Path) -> None:
    """Whichever log is told first, and whether or not the contribution paid in it, or stands in it at all."""
    papers = brought(tmp_path / "papers")
    first = one_of_several(tmp_path / "a", [(ONE, TWO)])
    second, third = (one_of_several(tmp_path / name, [(THREE, FOURTH)] * 3) for name in "bc")
    with created(tmp_path / "d.db", log_id=b"d" * 16) as empty:
        empty.close_epoch(SIGNER, now=NOW)
        nobody = export_budget(empty, tmp_path / "d")
    for asked, others in ((first, [second, third]), (second, [first, third]), (nobody, [second, third])):
        found = audited(asked, **papers, others=others).findings
        assert [one.code for one in found] == ["TOGETHER"] * 2
        assert all(any(name in one.sentence for one in found) for name in (THREE.name, FOURTH.name))


def test_a_sum_over_logs_is_held_to_the_lowest_of_their_rules(tmp_path: Path) -> None:
    papers = brought(tmp_path / "papers")
    lower = signed(max_rho_nano=TOKENS * TOKEN)
    signed_file.write(tmp_path / "papers" / "lower.cose", lower.payload, lower.sign1)
    papers["policies"] = [*papers["policies"], tmp_path / "papers" / "lower.cose"]
    most = one_of_several(tmp_path / "a", [(ONE, TWO)])
    least = one_of_several(tmp_path / "b", [(ONE, TWO)], generation=[GenerationRule.of(lower, "sensitive")])
    for asked, other in ((most, least), (least, most)):
        assert [one.code for one in audited(asked, **papers, others=[other]).findings] == ["TOGETHER"] * 2


@pytest.mark.parametrize("name", LIES)
def test_every_lie_about_consent_is_found(name: str, leaves: list[Leaf], tmp_path: Path) -> None:
    change, expected = LIES[name]
    lie = written(tmp_path / "lie", change(list(leaves)))
    found = {finding.code for finding in audited(lie, **brought(tmp_path / "papers")).findings}
    assert found and found <= expected, found
    alone = audited(lie)
    if name in BY_PAPERS:
        assert (alone.verdict, alone.qualifiers) == ("TOLD", ("CONSENT_TOLD", "FREED_TOLD", "RULES_TOLD"))
    else:
        assert alone.verdict == "FAILED"


def test_a_key_that_was_revoked_before_the_leaf_consents_to_nothing(leaves: list[Leaf], tmp_path: Path) -> None:
    papers = brought(tmp_path / "papers")
    honest = written(tmp_path / "export", leaves)
    for name, at, expected in (("alice", NOW - 1, {"KEY_REVOKED"}), ("bob", NOW + 3, {"KEY_REVOKED"}), ("bob", NOW + 4, set())):
        file = continued(registry_bytes(), OWNER, lambda log, name=name, at=at: log.revoke(name, at=at, now=NOW + 5))
        put(tmp_path / "papers" / "registry.cbor", file)
        report = audited(honest, **papers)
        assert {finding.code for finding in report.findings} == expected, report.findings
    # Bob's contribution was admitted before, and pays for a text at the very second from which his key is revoked.
    assert (report.verdict, report.qualifiers) == ("FULL", ("FREED_TOLD", "KEY_REVOKED"))


def test_a_signed_withdrawal_that_no_leaf_enters_is_told(export: Path, tmp_path: Path) -> None:
    papers = brought(tmp_path / "papers")

    def given(name: str, attestation: Attestation, key: Any, signer: str, corpus: str = CORPUS, at: int = NOW + 8) -> Any:
        withdrawal = Withdrawal(hashlib.sha256(attestation.descriptor).digest(), corpus, at, "consent")
        folder = tmp_path / name
        folder.mkdir()
        signed_file.write(folder / "one.withdrawal", *sign_withdrawal(withdrawal, key, signer=signer))
        report = audited(export, **papers, withdrawals=folder)
        assert not report.findings
        assert "FREED_TOLD" in report.qualifiers
        told = tuple(word for word in report.qualifiers if word != "FREED_TOLD")
        return told, [note for note in report.notes if "withdrawal" in note]

    told, notes = given("entered", FOUR[2], ALICE, "alice")
    assert (told, notes) == ((), [])
    told, [note] = given("late", FOUR[1], ALICE, "alice")
    assert told == ("WITHDRAWAL_UNENTERED",) and TWO.name in note
    assert given("owner", FOUR[1], OWNER, "owner")[0] == ("WITHDRAWAL_UNENTERED",)
    for name, key, corpus in (("another contributor", BOB, CORPUS), ("another corpus", ALICE, "another")):
        told, [note] = given(name, FOUR[1], key, "alice", corpus)
        assert told == () and "nothing shows" in note
    assert given("not admitted", attested(9), ALICE, "alice", at=NOW) == ((), [])
    # A text of the third was paid for at NOW + 4, of the second at NOW + 4 and NOW + 8.
    assert given("in its second", FOUR[2], ALICE, "alice", at=NOW + 4) == ((), [])
    told, [note] = given("before it", FOUR[2], ALICE, "alice", at=NOW + 3)
    assert told == ("WITHDRAWAL_LATE",) and THREE.name in note and "operator's word" in note
    told, notes = given("before two", FOUR[1], ALICE, "alice", at=NOW + 1)
    assert told == ("WITHDRAWAL_LATE", "WITHDRAWAL_UNENTERED") and any("paid 2 times" in note for note in notes)
    assert given("by who may not", FOUR[2], BOB, "alice", at=NOW + 3) == ((), [])


def test_what_contributions_got_back_is_shown_and_told_as_the_operators_word(path: Path) -> None:
    with created(path, generation=()) as log:
        paid = text_of(log, [ONE, TWO])
        log.commit(paid, TOKENS, now=NOW)
        log.close_epoch(SIGNER, now=NOW)
        whole = audited(export_budget(log, path.with_name("whole")))
        assert whole.qualifiers == ("RECORDS_TOLD",)
        log.commit(text_of(log, [ONE, TWO]), 7, now=NOW)
        log.close_epoch(SIGNER, now=NOW)
        report = audited(export_budget(log, path.with_name("export")), contributions=[log.account(ONE)])
    assert report.qualifiers == ("FREED_TOLD", "RECORDS_TOLD") and report.freed_nano == 2 * (TOKENS - 7) * TOKEN
    [one] = report.contributions
    assert (one.reserved_nano, one.freed_nano) == (2 * TOKENS * TOKEN, (TOKENS - 7) * TOKEN)
    assert one.spent_nano == one.reserved_nano - one.freed_nano


def test_what_others_pay_for_under_rules_of_generation_is_told_and_so_is_what_they_got_back(tmp_path: Path) -> None:
    """By whatever name and price: a log says who paid, and not what was computed."""
    papers = brought(tmp_path / "papers")
    mechanisms = [
        Mechanism("answers", 1000, False, "something else"),
        Mechanism("invisibleink", 1, True, "tokens"),
        Mechanism("invisibleink2", 1, True, "tokens again"),
    ]
    caps = {"contribution": (10 * MICRO, 10**6), "corpus": (10 * MICRO, 10**6)}
    for name, mechanism in (("a", "answers"), ("b", "invisibleink2")):
        changes = {"log_id": name.encode() * 16, "mechanisms": mechanisms, "caps": caps}
        with created(tmp_path / f"{name}.db", **changes) as log:
            log.admit(FOUR, now=NOW)
            paid = log.reserve(Unit("corpus", "c"), mechanism, 10, rho_nano=1000, now=NOW)
            log.close_epoch(SIGNER, now=NOW)
            found = audited(export_budget(log, tmp_path / f"{name} open"), **papers)
            assert (found.verdict, found.qualifiers) == ("FULL", ("USE_TOLD",))
            assert any(note.startswith("1 reservations were paid for by no contribution") for note in found.notes)
            log.commit(paid, 0, now=NOW)
            log.close_epoch(SIGNER, now=NOW)
            found = audited(export_budget(log, tmp_path / f"{name} freed"), **papers)
            assert (found.verdict, found.qualifiers) == ("FULL", ("FREED_TOLD", "USE_TOLD"))


def test_a_contributor_has_no_more_contributions_than_registry_and_policy_allow(tmp_path: Path) -> None:
    papers = brought(tmp_path / "papers")

    def found(cap: int, **left: Any) -> list[tuple[str, str]]:
        policy = replace(signed().policy, contributor_cap=cap)
        root = policy.registry_root
        assert root is not None
        made = verify_policy(*sign_policy(policy, OWNER, owner="owner", registry_root=root), keys.public_bytes(OWNER))
        file = tmp_path / f"{cap}.cose"
        if not file.exists():
            signed_file.write(file, made.payload, made.sign1)
        place = tmp_path / f"{cap} {[str(one)[-20:] for one in left.values()]}".replace("/", "")
        with created(place.with_suffix(".db"), generation=[GenerationRule.of(made, "sensitive")]) as log:
            log.admit(FOUR, now=NOW)
            log.withdraw(ONE, now=NOW)
            log.close_epoch(SIGNER, now=NOW)
            report = audited(export_budget(log, place), **{**papers, "policies": [file], **left})
        return [(one.code, one.where) for one in report.findings]

    # Alice has the first three leaves behind the header, Bob the fourth; who withdraws counts on.
    assert found(3) == []
    assert found(2) == [("CONTRIBUTOR_CAP", "seq 3")]
    assert found(1) == [("CONTRIBUTOR_CAP", "seq 2"), ("CONTRIBUTOR_CAP", "seq 3")]
    assert found(1, registry=None) == []
    # What the registry says of caps later takes nothing back, and what it said before counts.
    name = make_registry().find("alice")
    assert name is not None
    for moment, expected in ((NOW + 5, []), (NOW - 5, [("CONTRIBUTOR_CAP", "seq 3")])):
        terms = {"classes": name.classes, "cap": 2, "now": moment}
        lower = continued(registry_bytes(), OWNER, lambda log, terms=terms: log.grant("alice", **terms))
        put(tmp_path / f"at {moment}.cbor", lower)
        assert found(4, registry=tmp_path / f"at {moment}.cbor") == expected


def test_what_was_charged_to_a_contribution_is_found_by_its_digest_alone(export: Path) -> None:
    wanted = [bytes.fromhex(one.name) for one in (TWO, THREE, unit(attested(9)))]
    two, three, nobody = audited(export, contributions=wanted).contributions
    assert [(text.releases, text.computed) for text in two.texts] == [(TOKENS, 12), (TOKENS, TOKENS), (TOKENS, None)]
    assert {(text.rho_nano, text.mechanism) for text in two.texts} == {(TOKEN, "invisibleink")}
    assert (two.spent_nano, two.cap_nano) == ((12 + 2 * TOKENS) * TOKEN, RULE.max_rho_nano)
    assert (two.rule, two.withdrawn) == ("sensitive", None)
    assert [text.computed for text in three.texts] == [TOKENS] and three.spent_nano == TOKENS * TOKEN
    assert three.withdrawn is not None and three.withdrawn > (three.admitted or 0)
    assert (nobody.rule, nobody.admitted, nobody.texts, nobody.spent_nano) == (None, None, (), 0)


def test_the_commands_say_what_was_charged_and_whether_signatures_were_checked(export: Path, tmp_path: Path) -> None:
    shell, folder = Shell(tmp_path), tmp_path / "papers"
    brought(folder)
    files = {"--owner-key": "owner.pub", "--policy": "policy.cose", "--registry": "registry.cbor"}
    papers = [word for name, file in files.items() for word in (name, str(folder / file))]
    asked = [str(export), "--key", SIGNER.vkey, "--now", str(NOW + 60)]
    found = shell.json("ledger", "verify", *asked, *papers, "--require-full", "--min-size", "1")
    assert (found["verdict"], found["generation"][0]["verified"]) == ("FULL", 4)
    shown = shell.run("ledger", "verify", *asked).stdout
    assert shown.startswith("TOLD (CONSENT_TOLD, FREED_TOLD, RULES_TOLD, UNCOMPARED)") and "operator's word" in shown
    shell.run("ledger", "verify", *asked, "--require-full", code=1)
    shell.run("ledger", "verify", *asked, "--policy", str(folder / "policy.cose"), code=2)
    (tmp_path / "mine.attest").write_bytes(FOUR[1].to_cbor() + FOUR[2].to_cbor())
    mine = ["--attestation", str(tmp_path / "mine.attest")]
    shown = shell.run("ledger", "show", *asked, *mine).stdout
    assert f"{TWO.name}  admitted to generation by leaf" in shown and "12 computed" in shown and "withdrawn by leaf" in shown
    found = shell.json("ledger", "show", *asked, *mine)
    assert [row["account"] for row in found["contributions"]] == [TWO.name, THREE.name]
    shell.run("ledger", "show", *asked, "--withdrawn", code=2)


def test_the_command_enters_what_a_contributor_or_the_owner_signed_while_others_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW + 5.0)
    shell, folder = Shell(tmp_path), tmp_path / "papers"
    brought(folder)

    def signed_by(name: str, key: Any, signer: str, attestation: Attestation = FOUR[0]) -> str:
        withdrawal = Withdrawal(hashlib.sha256(attestation.descriptor).digest(), CORPUS, NOW, "consent")
        signed_file.write(tmp_path / name, *sign_withdrawal(withdrawal, key, signer=signer))
        return str(tmp_path / name)

    database = str(tmp_path / "b.db")
    asked = ["ledger", "withdraw", database]
    owner, registry = ["--owner-key", str(folder / "owner.pub")], ["--registry", str(folder / "registry.cbor")]
    mine, other = signed_by("mine", ALICE, "alice"), signed_by("other", BOB, "alice")
    owners, nobodys = signed_by("owners", OWNER, "owner", FOUR[1]), signed_by("nobodys", OWNER, "owner", attested(9))
    with created(tmp_path / "b.db") as log:
        log.admit(FOUR, now=NOW)
        shell.run(*asked, mine, *registry, code=2)
        for path, more, code in (
            (mine, owner, "WITHDRAWAL_UNPROVEN"),
            (other, [*owner, *registry], "WITHDRAWAL_UNPROVEN"),
            (nobodys, owner, "WITHDRAWAL_UNMATCHED"),
        ):
            assert shell.json(*asked, path, *more, code=1)["error"]["code"] == code
        refused_whole = shell.json(*asked, owners, mine, *owner, code=1)
        assert refused_whole["error"]["code"] == "WITHDRAWAL_UNPROVEN" and not kinds(log, Withdrawn)
        found = shell.json(*asked, mine, owners, *owner, *registry)["withdrawn"]
        assert [row["descriptor_hash"] for row in found] == [ONE.name, TWO.name]
        refused("WITHDRAWN", text_of, log, [THREE, ONE], now=NOW + 5)
        text_of(log, [THREE, FOURTH], now=NOW + 5)
        assert {leaf.account.hex() for leaf in kinds(log, Withdrawn)} == {ONE.name, TWO.name}


def test_a_refused_leaf_of_consent_changes_nothing(leaves: list[Leaf]) -> None:
    assert isinstance(leaves[0], Header)
    state = BudgetState(leaves[0])
    for leaf in leaves[1:]:
        state.apply(leaf)

    def held() -> tuple[Any, ...]:
        return dict(state.admitted), set(state.contents), dict(state.withdrawn), state.size, state.accounts_root()

    before = held()
    for name, (change, _) in LIES.items():
        if name not in BY_PAPERS and len(lied := change(list(leaves))) == len(leaves) + 1:
            with pytest.raises((LeafRefused, BudgetExhausted)):
                state.apply(lied[-1])
            assert held() == before


def test_a_changed_leaf_of_consent_is_refused_or_has_these_very_bytes(leaves: list[Leaf]) -> None:
    seen = {Reference: 0, Withdrawn: 0, Header: 0, Text: 0}
    for leaf in leaves:
        if type(leaf) in seen and not seen[type(leaf)]:
            seen[type(leaf)] += 1
            body = encode_leaf(leaf)
            for at in range(len(body)):
                for bit in (1, 0x20, 0x80):
                    changed = body[:at] + bytes([body[at] ^ bit]) + body[at + 1 :]
                    try:
                        found = decode_leaf(changed)
                    except LeafRefused:
                        continue
                    assert encode_leaf(found) == changed
    assert all(seen.values())
