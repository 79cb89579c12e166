"""Mutants of budgets of texts that runs count: what keeps texts from being spent beside every limit."""

from tests.mutants.mutant import Mutant

TEXTS = "ledger/replay/earlier_texts.py"
REGISTRY = "ledger/replay/earlier_runs.py"
COUNTED = "ledger/budget/counted.py"
BESIDE = "ledger/audit/texts.py"
HISTORIES = "ledger/audit/histories.py"
EARLIER, AMONG = "ledger/audit/earlier.py", "ledger/audit/among.py"
GIVEN = "ledger/budget/audit/given.py"
HISTORIES = "ledger/audit/histories.py"
WITHDRAWALS = "ledger/audit/withdrawals.py"
MONITORING = "ledger/proofs/monitoring.py"
DOOR = "dptrain/record/earlier_runs.py"

T = "tests/engine/test_earlier_texts.py::"
T_LIES = "tests/attacks/test_ledger_attacks_texts.py::"
T_TOLD = "tests/ledger/test_texts_beside_runs.py::"
T_LIMITS = T + "test_texts_count_toward_a_limit_over_all_runs_with_what_their_rule_allows"
T_RESUMED = T + "test_a_resumed_run_takes_a_budget_that_grew_and_no_shorter_or_other_one"
T_EVERYBODY = T_LIES + "test_what_texts_may_cost_is_counted_for_everybody_of_the_class_admitted_there_or_not"
T_WITHDRAWN = T_LIES + "test_who_was_withdrawn_in_a_budget_before_a_run_began_takes_no_part_whichever_size_is_cited"
T_CITED = T_LIES + "test_a_cited_budget_that_is_missing_behind_another_or_failed_is_found"
T_NAMED = T_LIES + "test_a_budget_is_cited_under_its_own_name_and_key_and_as_what_it_is"
T_LEFT_OUT = T_LIES + "test_a_budget_that_began_before_and_names_who_took_part_may_not_be_left_out"
T_SAID = T_LIES + "test_one_descriptor_says_one_thing_to_runs_and_budgets_and_one_commitment_is_of_one"

TEXTS_BESIDE = (
    Mutant(
        "texts count in limits of a run", REGISTRY, "        for texts in self._texts:\n", "        for texts in ():\n",
        T_LIMITS,
    ),
    Mutant(
        "the filter adds texts up at its order", COUNTED,
        "tuple(order * self.rho_nano / NANO", "tuple(self.rho_nano / NANO",
        T_LIMITS,
    ),
    Mutant(
        "whoever is of the class counts, admitted or not", REGISTRY,
        "found = [ledger.of(descriptor_hash, signed, named=named) for ledger in self._ledgers]\n"
        "        return tuple(account for account in (*found, *self._for_texts(signed))",
        "found = [ledger.of(descriptor_hash, signed, named=named) for ledger in self._ledgers]\n"
        "        return tuple(account for account in (*found, *(self._for_texts(signed) if any("
        "descriptor_hash in one.admitted for one in self._texts) else ()))",
        T_EVERYBODY,
    ),
    Mutant(
        "a log that counts runs takes who signed a limit", TEXTS,
        "rule is None or (self.previous is None and limit[0])", "rule is None or (not self.previous and limit[0])",
        T_LIMITS,
    ),
    Mutant(
        "a budget that is named is counted", DOOR, "return SpentRegistry(runs, texts)", "return SpentRegistry(runs)",
        T_LIMITS,
    ),
    Mutant(
        "whatever a named budget counts is named too", DOOR, "in left_out(counted):", "in left_out(runs):",
        T + "test_a_budget_that_counts_a_run_asks_for_that_run_too",
    ),
    Mutant(
        "a budget without rules is not counted", GIVEN, "    if not texts.allowed:", "    if texts.allowed is None:",
        T + "test_a_budget_without_rules_and_one_that_a_run_would_replace_are_refused_by_name",
    ),
    Mutant(
        "an export of a budget is audited before it is counted", GIVEN,
        'if report.verdict == "FAILED":', 'if report.verdict == "NONE":',
        T + "test_an_export_of_a_budget_is_audited_before_it_is_counted",
    ),
    Mutant(
        "a resumed run takes no shorter budget", GIVEN, "if texts.cited.size < cited.size:", "if not cited.size:",
        T_RESUMED,
    ),
    Mutant(
        "a resumed run takes no other history of a budget", GIVEN,
        "if root_at(cited.size) != cited.root:", "if not root_at(cited.size):",
        T_RESUMED,
    ),
    Mutant(
        "the cited root is compared", HISTORIES, "elif leaves.root_at(cited.size) != cited.root:", "elif not cited.root:",
        T_CITED,
    ),
    Mutant(
        "a budget that is cited is as long", HISTORIES, "    if leaves.size < cited.size:", "    if not leaves.size:",
        T_CITED,
    ),
    Mutant(
        "a budget that FAILED counts nothing", BESIDE,
        'fault("EARLIER", str(item.path),', 'print("EARLIER", str(item.path),',
        T_CITED,
    ),
    Mutant(
        "a budget is cited under its own key", BESIDE,
        "if (cited.origin, cited.log_vkey) != (own.origin, own.log_vkey):", "if cited.origin != own.origin:",
        T_NAMED,
    ),
    Mutant(
        "a run is dated behind the leaves that it counts", BESIDE,
        "match.texts.at(cited, match.read.times[cited.size - 1])", "match.texts.at(cited)",
        T_LIES + "test_a_run_dated_before_the_leaves_of_a_budget_that_it_counts_is_found",
    ),
    Mutant(
        "what an auditor recomputes has texts in it", EARLIER,
        "spent = SpentRegistry(runs, texts)", "spent = SpentRegistry(runs)",
        T_EVERYBODY,
    ),
    Mutant(
        "a cited run had room beside the texts that it counted", AMONG,
        "[other for other in texts if other.cited.header_digest in counted],", "[],",
        T_LIES + "test_a_cited_run_that_had_no_room_beside_the_texts_it_counted_must_not_have_begun",
    ),
    Mutant(
        "whatever an earlier budget counted is cited", EARLIER, "in left_out([*runs, *counted]):", "in left_out(runs):",
        T_LIES + "test_whatever_an_earlier_run_or_an_earlier_budget_counted_is_cited_too",
    ),
    Mutant(
        "a budget that names who took part is not left out", BESIDE, "if before and named:", "if before and not named:",
        T_LEFT_OUT,
    ),
    Mutant(
        "a budget that may yet admit somebody leaves limits unheld", BESIDE,
        "        self._limits.append(False)\n        named", "        named",
        T_LIES + "test_a_budget_of_other_classes_holds_no_limit_back",
    ),
    Mutant(
        "two histories of a budget are evidence", EARLIER,
        "longest(shown_texts(texts, together.fault), together.fault)", "longest(shown_texts(texts, together.fault), print)",
        T_LIES + "test_two_histories_of_a_budget_are_found_whichever_of_them_is_cited",
    ),
    Mutant(
        "what an earlier run says of a budget is compared", EARLIER,
        "judge_citations([*given, *budgets], own", "judge_citations(given, own",
        T_LIES + "test_an_earlier_run_that_counted_another_history_of_a_budget_is_evidence",
    ),
    Mutant(
        "who was withdrawn in a budget behind the cited leaves takes no part", EARLIER,
        "together.judge_left(budget.texts.withdrawn, budget.origin, spent)", "pass",
        T_WITHDRAWN,
    ),
    Mutant(
        "who was withdrawn in the cited leaves of a budget takes no part", REGISTRY,
        "in self._counted:\n            for leaf", "in self._runs:\n            for leaf",
        T + "test_what_a_budget_has_withdrawn_takes_no_part_and_the_audit_finds_nothing_wrong_with_it",
    ),
    Mutant(
        "a run and a budget apart are told", BESIDE, "if shared and linked", "if not shared and linked",
        T_LIES + "test_a_run_and_a_budget_that_do_not_count_each_other_are_told_to_whoever_counts_both",
    ),
    Mutant(
        "one descriptor has one limit in a run and a budget", BESIDE,
        "                if terms.limit != signed.limit:", "                if terms.limit is None:",
        T_SAID,
    ),
    Mutant(
        "one descriptor has one class in a run and a budget", BESIDE,
        "if (terms.class_name, terms.bounds) != (signed.class_name, signed.bounds):", "if terms.bounds != signed.bounds:",
        T_SAID,
    ),
    Mutant(
        "a commitment that a budget has is of one descriptor", BESIDE,
        "not other.unnamed and other.descriptor_hash != name:", "other.unnamed and other.descriptor_hash != name:",
        T_SAID,
    ),
    Mutant(
        "only a run that counts a budget enters withdrawals without their reason", WITHDRAWALS,
        "return leaf.reason == WITHDRAWN and counts_texts(self._header)", "return leaf.reason == WITHDRAWN",
        T_LIES + "test_a_withdrawal_of_a_budget_hides_no_reason_where_no_budget_is_counted",
    ),
    Mutant(
        "only such a run spares its contributors an alarm", MONITORING,
        "if end.reason == WITHDRAWN and counts_texts(run.header):", "if end.reason == WITHDRAWN:",
        T_TOLD + "test_a_withdrawal_that_came_by_a_budget_is_no_alarm_to_its_contributor",
    ),
)  # fmt: skip
