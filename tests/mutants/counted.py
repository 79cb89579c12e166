"""Mutants of limits over all runs: what texts and runs add up to, who is admitted, and what an audit sees of both."""

from tests.mutants.mutant import Mutant

COUNTED, STATE, LEAVES = "ledger/budget/counted.py", "ledger/budget/state.py", "ledger/budget/leaves.py"
TEXTS, LOG = "ledger/replay/earlier_texts.py", "ledger/budget/log.py"
AUDIT, CONSENTS, VERIFY = "ledger/budget/audit/over_runs.py", "ledger/budget/audit/consents.py", "ledger/budget/audit/verify.py"
ASKED, PURSE = "dptrain/cli/generate/asked.py", "dptrain/inference/invisibleink/run/purse.py"

T = "tests/ledger/test_budget_over_runs.py::"
T_SIGNED = "tests/cli/test_cli_generate_attested.py::"

_EXACT = T + "test_texts_and_earlier_runs_add_up_at_the_order_of_the_filter_and_not_a_millionth_beyond_is_admitted"
_ALONE = T + "test_a_limit_is_held_against_all_that_the_rule_allows_and_not_against_what_is_paid_so_far"
_SHARES = T + "test_nobody_has_more_contributions_in_a_log_than_registry_and_policy_allow_over_any_number_of_turns"
_LIES = T + "test_every_lie_about_a_run_that_counts_is_found"
_TOLD = T + "test_an_auditor_who_has_the_runs_adds_up_and_one_who_has_not_is_told_whose_word_it_is"
_ANOTHER = T + "test_another_budget_that_is_counted_adds_all_that_its_rules_allow"
_UNNAMED = T + "test_nobody_new_is_admitted_without_the_ledgers_that_the_log_counts"
_CLI = T_SIGNED + "test_what_an_earlier_run_spent_counts_and_an_auditor_adds_it_up_again"

COUNTS = (
    Mutant("what runs spent counts", COUNTED, "before = self._spent.accounts(descriptor_hash, said)", "before = ()", _EXACT),
    Mutant("texts add to what runs spent", COUNTED, "        return tuple(order * self.rho_nano / NANO for",
           "        return tuple(0.0 * order * self.rho_nano / NANO for", _EXACT),
    Mutant("at an order a text counts that often", COUNTED, "(order * self.rho_nano / NANO for", "(self.rho_nano / NANO for",
           _EXACT),
    Mutant("a limit is held at admission", COUNTED, "if use is not None and use.too_much():", "if False:", _EXACT),
    Mutant("texts count with all that the rule allows", COUNTED, "Allowed(spending_of(header.allowed(name)),",
           "Allowed(spending_of(1),", _ANOTHER),
    Mutant("several budgets add up", COUNTED, "sum(member.rho_nano for member", "max(member.rho_nano for member",
           T + "test_texts_of_several_budgets_compose_as_their_rho_adds_up"),
    Mutant("texts alone stay within a limit", STATE, "        allowed = self.header.allowed(leaf.rule)",
           "        allowed = 1 or self.header.allowed(leaf.rule)", _ALONE),
    Mutant("who limits all runs is in no log that counts none", STATE, "counts = self.header.over_runs is not None and",
           "counts =", T + "test_a_log_that_counts_no_run_admits_nobody_who_signed_a_limit_over_all_runs"),
    Mutant("texts alone stay within the limit of a class", LEAVES,
           "            require_room(self.allowed(limit.name), limit.epsilon_micro",
           "            require_room(1, limit.epsilon_micro",
           T + "test_a_limit_of_the_class_stands_in_the_header_and_a_log_whose_texts_could_pass_it_is_not_made"),
    Mutant("who withdrew from a run makes no text", COUNTED, "        if leaf.account in self._spent.withdrawn:\n",
           "        if False:\n", T + "test_who_was_withdrawn_in_a_run_that_counts_is_not_admitted"),
    Mutant("ledgers that count are named", COUNTED, "        if self._unnamed:\n", "        if False:\n", _UNNAMED),
    Mutant("and are those of the header", COUNTED,
           "    if {one.header_digest for one in cites} != {one.header_digest for one in spent.previous}:\n", "    if False:\n",
           _UNNAMED),
    Mutant("a share is full at its cap", COUNTED, "if self._held[held] >= (most", "if self._held[held] > (most", _SHARES),
    Mutant("who was admitted before has a share", COUNTED,
           "            self._held.update(shares.holder(found.corpus, found.key_id) for found in state.admitted.values())\n",
           "            pass\n", _SHARES),
    Mutant("who was admitted in this turn too", COUNTED,
           "            self._held[self._shares.holder(found.corpus, found.key_id)] += 1\n", "            pass\n", _SHARES),
    Mutant("a run of contributions counts shares", PURSE, "spent=spent, shares=references.shares", "spent=spent",
           T_SIGNED + "test_a_contributor_has_no_more_contributions_over_several_corpora_than_the_policy_allows"),
    Mutant("a run of contributions counts what was spent", PURSE, "OverRuns(tuple(previous), references.limits)",
           "OverRuns((), references.limits)", _CLI),
    Mutant("and the limits of classes", PURSE, "OverRuns(tuple(previous), references.limits)", "OverRuns(tuple(previous), ())",
           T_SIGNED + "test_a_class_whose_limit_over_all_runs_its_texts_could_pass_makes_none"),
    Mutant("a plan says who is beyond a limit", ASKED, "asked.rows(salt).within_limits()", "asked.rows(salt)",
           T_SIGNED + "test_a_contribution_whose_limit_over_all_runs_its_texts_could_pass_is_left_out_by_name"),
    Mutant("an audit holds limits", AUDIT, "if use is not None and use.too_much(TOLERANCE_MICRO):", "if False:",
           T + "test_who_is_admitted_above_a_limit_is_found"),
    Mutant("an audit wants the cited size", AUDIT, "        if size < cited.size:\n",
           "        if False:\n", _LIES),
    Mutant("an audit wants the cited root", AUDIT, "        elif leaves.root_at(cited.size) != cited.root:\n",
           "        elif False:\n", _LIES),
    Mutant("an audit wants a run that was closed", AUDIT, "if cited.reason == SPENT and not run.closed:", "if False:", _LIES),
    Mutant("an audit wants a run of before", AUDIT, "        if wrong := earlier.misdates(self._state.header.time):\n",
           "        if wrong := None:\n", _LIES),
    Mutant("an audit wants the cited name", AUDIT,
           "        if (cited.origin, cited.log_vkey) != named:\n",
           "        if False:\n", _LIES),
    Mutant("an audit wants runs that pass their own", AUDIT, '        if report.verdict == "FAILED":\n', "        if False:\n",
           T + "test_a_run_whose_own_audit_failed_counts_for_nothing"),
    Mutant("an audit finds the run that is left out", AUDIT,
           "            elif before:\n", "            elif False:\n",
           T + "test_a_log_that_leaves_out_a_run_that_was_before_it_is_found"),
    Mutant("an audit finds who withdrew from a run", AUDIT, "if found is not None and leaf.reason not in PASSING:",
           "if False:", T + "test_who_was_withdrawn_in_a_run_and_makes_texts_is_found"),
    Mutant("an audit finds a content under another name", AUDIT, "and register[number].descriptor_hash != account:",
           "and False:", T + "test_a_content_that_goes_by_another_name_in_a_run_is_found"),
    Mutant("an audit holds a budget that counts too", AUDIT,
           "if own.header_digest == cited.header_digest and self._extends(read.leaves, cited, str(path)):",
           "if own.header_digest == cited.header_digest:",
           T + "test_an_auditor_holds_a_budget_against_another_one_that_it_counts"),
    Mutant("and finds one that was left out", AUDIT, "            elif shared and own.began <= self._state.header.time:\n",
           "            elif False:\n",
           T + "test_a_budget_that_is_left_out_is_found_where_somebody_in_both_has_a_limit"),
    Mutant("an audit says which ledgers were not given", AUDIT, "            if missing:\n", "            if False:\n", _TOLD),
    Mutant("an audit says that limits were held alone", AUDIT,
           "if limited and not (self._limits and all(self._limits)):", "if False:", _TOLD),
    Mutant("a later run that does not count the log leaves limits alone", AUDIT,
           "self._limits.append(before and run.closed and", "self._limits.append(run.closed and",
           T + "test_a_run_that_began_later_and_does_not_count_the_log_is_told_and_its_limits_stay_alone"),
    Mutant("a cited run is no stronger than its own verdict", VERIFY, "            verdicts += over.verdicts\n",
           "            pass\n", _TOLD),
    Mutant("a run tells when it entered a withdrawal", VERIFY, "entered: dict[bytes, int] = dict(over.withdrawn)",
           "entered: dict[bytes, int] = {}",
           T + "test_a_withdrawal_that_a_run_entered_before_a_text_was_paid_is_told"),
    Mutant("the limit of a class is the owner's", CONSENTS,
           "            if (owed := ClassLimit.of(signed, rule.name)) != stated:\n",
           "            if (owed := None) is not None:\n", T + "test_a_header_that_hides_the_limit_of_a_class_is_found"),
)  # fmt: skip
