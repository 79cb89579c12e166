"""Mutants of the budget of contributions: who is admitted to generation, what a text of them costs, and what an audit sees."""

from tests.mutants.mutant import Mutant

RULES = "ledger/budget/generation.py"
STATE = "ledger/budget/state.py"
LOG = "ledger/budget/log.py"
UNITS = "ledger/budget/units.py"
AUDIT = "ledger/budget/audit/consents.py"
VERIFY = "ledger/budget/audit/verify.py"

T_EACH = "tests/ledger/test_budget_each.py::"
T = "tests/ledger/test_budget_generation.py::"

_LIES = T + "test_every_lie_about_consent_is_found"
_COST = T + "test_a_token_costs_c_squared_over_2_b_squared_tau_squared_rounded_up"
_ONE = T + "test_where_one_cannot_be_admitted_nobody_is"

CONTRIBUTIONS = (
    Mutant("a contribution is found by its digest alone", UNITS, "        if self.kind == CONTRIBUTION:\n",
           "        if False:\n", T_EACH + "test_a_contribution_is_found_in_the_leaves_by_its_digest_alone"),
    Mutant("a contribution is named by 64 hex digits", UNITS, 're.compile("[0-9a-f]{64}")', 're.compile("[0-9a-z.-]*")',
           T_EACH + "test_a_contribution_is_named_by_64_hex_digits_and_nothing_else"),
    Mutant("what one text costs a unit above counts for all of them", STATE, "leaf.cost + (planned or {}).get(account, 0)",
           "leaf.cost", T_EACH + "test_what_units_pay_together_counts_once_more_for_who_stands_above_several_of_them"),
    Mutant(
        "all of a text pay, or none", LOG,
        "                self._tell_refused(asked.unit, error, leaf.time, append)\n                return error\n"
        "            leaves.append(leaf)\n",
        "                continue\n            leaves.append(leaf)\n", T_EACH + "test_where_one_cannot_pay_none_has",
    ),
    Mutant("the cost of a token is rounded up", RULES, "return -(-NANO * self.clip_norm_micro**2 //", "return (NANO * "
           "self.clip_norm_micro**2 //", _COST),
    Mutant("the cost of a token is that of the square of the clip norm", RULES, "NANO * self.clip_norm_micro**2",
           "NANO * self.clip_norm_micro", _COST),
    Mutant("no token costs less than the rule says", STATE, "        if leaf.rho_nano < rule.token_nano:\n",
           "        if False:\n", T + "test_no_text_is_longer_than_the_rule_and_no_token_costs_less"),
    Mutant("no text is longer than the rule says", STATE, "leaf.releases > rule.tokens", "False",
           T + "test_no_text_is_longer_than_the_rule_and_no_token_costs_less"),
    Mutant("a contribution spends no more than its rule", STATE,
           "        return min(cap, self.rules[found.rule].max_rho_nano)\n", "        return cap\n",
           T + "test_a_contribution_spends_what_its_rule_allows_and_not_one_more"),
    Mutant("the lower of two caps binds", STATE, "        return min(cap, self.rules[found.rule].max_rho_nano)\n",
           "        return self.rules[found.rule].max_rho_nano\n",
           T + "test_the_cap_of_contributions_binds_where_it_is_lower_than_the_rule"),
    Mutant("only who was admitted pays", STATE, "        if not self.rules:\n            return\n        found = self.admitted",
           "        if leaf.account not in self.admitted:\n            return\n        found = self.admitted",
           T + "test_a_contribution_pays_only_behind_what_its_contributor_signed"),
    Mutant("what is valid no more pays for nothing", STATE, "        if leaf.time >= found.until:\n", "        if False:\n",
           T + "test_what_was_signed_pays_for_nothing_once_it_is_valid_no_more"),
    Mutant("nothing is reserved behind a withdrawal", STATE,
           "        self._require_not_withdrawn(leaf.account, leaf.seq)\n        if not self.rules:",
           "        if not self.rules:",
           T + "test_nothing_is_reserved_for_a_contribution_that_was_withdrawn_and_what_is_open_may_end"),
    Mutant("who withdrew is never admitted", STATE, "        self._require_not_withdrawn(account, leaf.seq)\n", "",
           T + "test_who_withdrew_is_never_admitted_and_withdraws_once"),
    Mutant("a contribution is admitted once", STATE, "        if account in self.admitted:\n", "        if False:\n", _LIES),
    Mutant("one content has one budget", RULES, "    if found.content in contents:\n", "    if False:\n", _ONE),
    Mutant("who signed to train is not admitted", RULES,
           "    if not signed.allows(GENERATE):\n", "    if False:\n", _ONE),
    Mutant("who limits all runs together is not admitted", RULES,
           "    if signed.limit != (0, 0):\n", "    if False:\n", _ONE),
    Mutant("the class is the one that was signed", RULES,
           "    if signed.admissibility_class != name:\n", "    if False:\n", _LIES),
    Mutant("what is not valid admits nobody", RULES, "signed.not_before <= time < signed.not_after", "True", _ONE),
    Mutant("the message is over this descriptor", RULES,
           "sign1.subject_of(signed_as.descriptor)):", "said.subject):", _LIES),
    Mutant("the message is its contributor's", RULES,
           "    if (said.issuer, said.typ", "    if (signed.issuer, said.typ", _LIES),
    Mutant("the message is an attestation", RULES,
           "(signed.issuer, sign1.TYP_ATTESTATION,", "(signed.issuer, said.typ,", _LIES),
    Mutant("where one cannot be admitted nobody is", LOG,
           "                    contents.add(found.content)\n                    leaves.append(leaf)\n",
           "                    contents.add(found.content)\n                    append(leaf)\n", _ONE),
    Mutant("an audit compares rules with the policy", AUDIT,
           "            if expected != rule:\n", "            if False:\n", _LIES),
    Mutant("an audit wants the policy that is named", AUDIT,
           "if any(rule.policy not in self._brought.policies for rule in rules):",
           "if not self._brought.policies:", T + "test_a_rule_of_a_policy_that_was_not_given_is_told"),
    Mutant("an audit verifies signatures", AUDIT,
           "            message.verify(leaf.descriptor, record.raw, typ=sign1.TYP_ATTESTATION)\n", "            pass\n", _LIES),
    Mutant("an audit wants keys that are enrolled", AUDIT,
           "    if not found:\n        return \"KEY_UNKNOWN\",",
           "    if not found:\n        return next(iter(known.by_key.values()))[0]\n        return \"KEY_UNKNOWN\",", _LIES),
    Mutant("an audit wants keys that were not revoked", AUDIT, "        if record.revoked(leaf.time):\n", "        if False:\n",
           T + "test_a_key_that_was_revoked_before_the_leaf_consents_to_nothing"),
    Mutant("an audit holds what was signed against the policy", AUDIT,
           "                check_audience(signed, policy.policy)\n", "", _LIES),
    Mutant("an audit tells of texts under a key that is revoked", AUDIT, "        if self._late:\n", "        if False:\n",
           T + "test_a_key_that_was_revoked_before_the_leaf_consents_to_nothing"),
    Mutant("a withdrawal counts by whom it is signed", AUDIT, "(late if proved else unproven)", "late",
           T + "test_a_signed_withdrawal_that_no_leaf_enters_is_told"),
    Mutant("a withdrawal is of one corpus", AUDIT, "if corpus is None or given.withdrawal.corpus != corpus:",
           "if False:", T + "test_a_signed_withdrawal_that_no_leaf_enters_is_told"),
    Mutant("a withdrawal is signed by who may", AUDIT, "            sign1.verify(given.message, given.payload, raw,",
           "            True or sign1.verify(given.message, given.payload, raw,",
           T + "test_the_command_enters_what_a_contributor_or_the_owner_signed_while_others_write"),
    Mutant("an audit adds up several logs", VERIFY, "sum(log.spent(account) for log in logs)", "state.spent(account)",
           T + "test_what_a_contribution_spent_in_several_logs_is_added_up"),
    Mutant("no log is added up twice", VERIFY, "    if len({log.header.log_id for log in logs}) < len(logs):\n",
           "    if False:\n", T + "test_what_a_contribution_spent_in_several_logs_is_added_up"),
    Mutant("an audit says whose word it is", AUDIT, '        if state.admitted and self._brought.known is None:\n',
           "        if False:\n",
           T + "test_an_auditor_with_policy_and_registry_says_full_and_one_without_says_whose_word_it_is"),
)  # fmt: skip
