"""Mutants of runs that make texts: whose references they are, what pays for them, and what a crash leaves."""

from tests.mutants.mutant import Mutant

INK = "dptrain/inference/invisibleink/"
READ, POOL, PARTITION, PLAN = INK + "references.py", INK + "pool.py", INK + "partition.py", INK + "plan.py"
PURSE, TEXTS, RUN, SETTING = INK + "run/purse.py", INK + "run/texts.py", INK + "run/run.py", INK + "run/setting.py"
WITHDRAWING = INK + "run/withdrawing.py"
MODELS, ASKED = INK + "run/models.py", "dptrain/cli/generate/asked.py"

T_READ = "tests/inference/test_generate_references.py::"
T_POOL = "tests/inference/test_generate_pool.py::"
T_RUN = "tests/inference/test_generate_run.py::"
T_TYPED = "tests/cli/test_cli_generate.py::"
T_SIGNED = "tests/cli/test_cli_generate_attested.py::"

_CRASHED = T_RUN + "test_a_text_that_a_crash_cut_is_spent_and_its_batch_is_not_drawn_from_again"
_PINNED = T_RUN + "test_a_log_is_for_one_adjacency_and_one_number_of_records_because_rho_under_two_has_no_sum"
_SALTED = T_RUN + "test_another_salt_beside_the_same_log_is_refused_because_ids_would_be_fresh_units"

GENERATED = (
    Mutant(
        "an empty reference keeps its place", READ, "                yield one, (_told(",
        "                if row[_FIELD]:\n                    yield one, (_told(",
        T_READ + "test_every_row_keeps_its_place_and_one_that_is_empty_or_null_is_a_null_reference",
    ),
    Mutant(
        "what is no text is null", READ, 'isinstance(found, str) and encodes(found) else ""',
        "_encodes(str(found)) else str(1 / 0)",
        T_READ + "test_what_is_no_text_is_a_null_reference_and_ends_the_run_for_nobody",
    ),
    Mutant(
        "what is wrong beside an id is null", READ, "sound = sound and len(line", "sound = True or len(line",
        T_READ + "test_a_row_with_an_id_is_null_whatever_else_is_wrong_with_it",
    ),
    Mutant(
        "a unit is an id under the salt", READ, "hmac.new(salt, one.encode(), hashlib.sha256).hexdigest()",
        "hashlib.sha256(one.encode()).hexdigest()",
        T_READ + "test_a_unit_is_the_id_under_the_salt_and_another_salt_makes_other_units",
    ),
    Mutant(
        "a text stands in no picture of its reference", READ, "text: str = field(repr=False)", "text: str",
        T_READ + "test_the_text_of_a_reference_stands_in_no_picture_of_it",
    ),
    Mutant(
        "no label comes out of a row", READ, "        if path.exists() and path.samefile(rows_path):\n", "        if False:\n",
        T_READ + "test_a_label_of_the_row_itself_is_refused_because_it_is_part_of_the_payload",
    ),
    Mutant(
        "every reference has a label, or none", READ, "    if missing:\n", "    if False:\n",
        T_READ + "test_every_reference_has_a_label_or_none_has",
    ),
    Mutant(
        "the digest of references follows from labels too", READ,
        "sorted(((one.id, one.label) for", "sorted(((one.id, None) for",
        T_READ + "test_the_digest_follows_from_ids_and_labels",
    ),
    Mutant(
        "contributions are judged for generation", READ, ", seen=_Uncounted(), purpose=GENERATE)", ", seen=_Uncounted())",
        T_SIGNED + "test_what_was_signed_to_train_alone_or_for_another_class_makes_no_text",
    ),
    Mutant(
        "several corpora are one to the gate", READ,
        "                for outcome, attestation in _judged(gate, part, now, withdrawn):\n",
        "                gate = Gate(policy.policy, registry, seen=Seen(), purpose=GENERATE)\n"
        "                for outcome, attestation in _judged(gate, part, now, withdrawn):\n",
        T_SIGNED + "test_several_corpora_are_judged_as_one_so_that_no_attestation_comes_twice",
    ),
    Mutant(
        "what is read is what the gate saw", READ,
        "if hashlib.sha256(content).digest() != outcome.admission.descriptor.content_hash:", "if False:",
        T_SIGNED + "test_bytes_that_changed_after_the_gate_saw_them_are_read_by_nobody",
    ),
    Mutant(
        "a contribution that is no text is null", READ, '    except (ValueError, RecursionError):\n        return ""\n',
        "    except RecursionError:\n        return \"\"\n",
        T_SIGNED + "test_a_contribution_that_is_empty_keeps_its_place_and_pays_as_all_others",
    ),
    Mutant(
        "batches look at no payload", PARTITION, "    if partition == PARTITION:\n        return\n", "    return\n",
        T_READ + "test_every_partition_that_looks_at_payloads_is_refused_by_name",
    ),
    Mutant(
        "references are averaged", INK + "formulas.py", '    if aggregation == "median":\n', "    if False:\n",
        T_TYPED + "test_what_has_no_proof_is_refused_by_name_before_anything_is_paid",
    ),
    Mutant(
        "every contribution of a batch can pay", POOL, "least = min((left for", "least = max((left for",
        T_POOL + "test_a_batch_of_which_one_contribution_cannot_pay_is_passed_over_whole",
    ),
    Mutant(
        "for all T tokens", POOL, "return self.plan.tokens * self.plan.nano_rho", "return self.plan.nano_rho",
        T_POOL + "test_what_a_finished_text_gives_back_pays_for_another_only_where_it_is_T_tokens",
    ),
    Mutant(
        "a batch comes when its turn is", POOL, "self._next[label] = (place + 1) % len(found)", "self._next[label] = place",
        T_POOL + "test_a_larger_cap_pays_for_more_texts_of_every_batch_one_round_after_the_other",
    ),
    Mutant(
        "what another process has spent is passed over", POOL, "                if not self.overtaken(batch, error):\n",
        "                if True:\n",
        T_POOL + "test_a_batch_that_another_process_pays_with_meanwhile_is_passed_over",
    ),
    Mutant(
        "and what was withdrawn meanwhile", POOL, "(isinstance(error, BudgetExhausted) or error.code in _GONE)",
        "isinstance(error, BudgetExhausted)",
        T_POOL + "test_a_batch_of_which_one_contribution_is_withdrawn_meanwhile_is_passed_over",
    ),
    Mutant(
        "a text costs no more than its rule lets it", PLAN, "if (cost := made.tokens * made.nano_rho) > rule.max_rho_nano:",
        "if (cost := made.tokens * made.nano_rho) > 2 * rule.max_rho_nano:",
        T_RUN + "test_the_numbers_of_a_signed_rule_are_those_of_the_plan_and_a_text_that_costs_more_is_refused",
    ),
    Mutant("a log has one salt", PURSE,
           "elif plan.adjacency != ADJACENCY and not pinned(", "elif False and not pinned(", _SALTED),
    Mutant("a log has one adjacency", PURSE, "if not pinned(relation(plan.adjacency, plan.records), known):", "if False:",
           _PINNED),
    Mutant("a pin is a whole word", PLAN, 'in stated.parameters.split("; ")', "in stated.parameters", _PINNED),
    Mutant("a lost salt is not made anew", PURSE, "if not path.exists() and self.exists and not path.exists():",
           "if False:", _SALTED),
    Mutant("a log that cannot be reached is not absent", "ledger/budget/log.py",
           '        if error.code == "MISSING":\n            return False\n        raise\n    try:\n        with store',
           "        return False\n    try:\n        with store",
           T_RUN + "test_while_a_server_is_down_its_log_does_not_count_as_absent"),
    Mutant("nobody opens a log while it is made", PURSE, "        with self._alone():\n            there = self.exists\n",
           "        there = self.exists\n", T_RUN + "test_who_asks_what_a_log_counts_waits_until_it_is_made"),
    Mutant("a held directory is waited for, not passed", PURSE, "    except BlockingIOError:\n        return False\n",
           "    except BlockingIOError:\n        return True\n",
           T_RUN + "test_who_holds_the_directory_of_a_log_keeps_nobody_waiting_for_ever"),
    Mutant("and not for ever", PURSE, "if time.monotonic() > deadline:", "if False:",
           T_RUN + "test_who_holds_the_directory_of_a_log_keeps_nobody_waiting_for_ever"),
    Mutant("a salt replaces none", PURSE, "        os.link(aside, path)  #", "        os.replace(aside, path)  #",
           T_RUN + "test_a_salt_is_there_whole_or_not_at_all_and_replaces_none"),
    Mutant("a salt is never there in part", PURSE,
           '    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")\n', "    aside = path\n",
           T_RUN + "test_a_salt_is_there_whole_or_not_at_all_and_replaces_none"),
    Mutant("a salt is for its owner alone", PURSE, "os.O_CREAT | os.O_EXCL, 0o600)", "os.O_CREAT | os.O_EXCL, 0o644)",
           T_RUN + "test_the_folder_tells_no_id_of_a_reference_and_the_salt_is_for_its_owner_alone"),
    Mutant(
        "attested references stand in the log with what was signed", PURSE, "log.admit(references.attestations, spent",
        "log.admit(references.attestations[:2], spent",
        T_SIGNED + "test_the_whole_way_from_a_signature_to_what_an_auditor_finds_of_it",
    ),
    Mutant(
        "who is not in the log makes no text", PURSE,
        "        return references.leaving({account.hex(): str(error.code) for account, error in refused.items()})\n",
        "        return references\n",
        T_SIGNED + "test_one_contribution_that_the_log_refuses_is_left_out_and_the_others_make_texts",
    ),
    Mutant(
        "who withdrew is not admitted", PURSE,
        '        references = references.leaving({one.hex(): "WITHDRAWN" for one in log.state.withdrawn})\n', "",
        T_SIGNED + "test_a_contribution_that_was_withdrawn_in_the_budget_log_makes_no_text_any_more",
    ),
    Mutant(
        "a budget is for all classes of its policy", PURSE, "generation=references.rules,",
        "generation=() if rule is None else (references.signed_rule,),",
        T_SIGNED + "test_the_budget_of_a_policy_is_for_all_its_classes_that_generate",
    ),
    Mutant(
        "a policy has one budget", ASKED, "return Purse.of(folder, self.budget or shared, self.budget_key, self.state)",
        "return Purse.of(folder, self.budget, self.budget_key, self.state)",
        T_SIGNED + "test_all_folders_of_a_policy_pay_from_one_budget_beside_it",
    ),
    Mutant(
        "a withdrawal is entered before each text", RUN, "            self._before()\n", "",
        T_SIGNED + "test_a_withdrawal_beside_the_budget_is_entered_before_the_next_text_of_a_run",
    ),
    Mutant(
        "withdrawals beside the log are read", WITHDRAWING,
        "for path in (*self._files, *self._lying())]", "for path in self._files]",
        T_SIGNED + "test_a_withdrawal_beside_the_budget_is_entered_before_the_next_text_of_a_run",
    ),
    Mutant(
        "what is hidden among them is told", WITHDRAWING, "        if strays:\n", "        if False:\n",
        T_SIGNED + "test_a_withdrawal_counts_whatever_its_name_is_and_what_is_hidden_or_a_folder_is_told",
    ),
    Mutant(
        "nobody withdraws for others", WITHDRAWING, "                self._require_entitled(path, one, leaf)\n", "",
        T_SIGNED + "test_a_file_that_is_no_withdrawal_or_that_others_signed_is_passed_over_by_nobody",
    ),
    Mutant(
        "a withdrawal that is nobody's here is told", WITHDRAWING, "                    if path in self._files:\n",
        "                    if False:\n",
        T_SIGNED + "test_a_withdrawal_of_a_contribution_that_is_not_here_is_told_where_it_was_given_by_name",
    ),
    Mutant(
        "who is gone keeps a place", READ, "return replace(self, gone=tuple(", "return replace(self, gone=() and tuple(",
        T_SIGNED + "test_a_batch_of_which_a_reference_is_gone_is_passed_over_and_no_other_changes",
    ),
    Mutant(
        "and makes no text", POOL, "        if not self._gone.isdisjoint(one.id for one in batch):\n", "        if False:\n",
        T_SIGNED + "test_a_batch_of_which_a_reference_is_gone_is_passed_over_and_no_other_changes",
    ),
    Mutant(
        "more references are another run", READ, "        if not mine.items() <= there.items():\n", "        if False:\n",
        T_SIGNED + "test_a_batch_of_which_a_reference_is_gone_is_passed_over_and_no_other_changes",
    ),
    Mutant(
        "a log has the rule that admitted its references", PURSE,
        "            if references.signed_rule not in log.header.generation:\n", "            if False:\n",
        T_SIGNED + "test_another_policy_does_not_pay_from_a_log_that_has_not_its_rule",
    ),
    Mutant(
        "a text is synced before it counts", TEXTS,
        "        self._stream.flush()\n        os.fsync(self._stream.fileno())\n        self.whole += 1\n",
        "        self.whole += 1\n", T_RUN + "test_a_text_is_synced_before_it_counts",
    ),
    Mutant("half a line goes away", TEXTS, "        if self._stream.tell() > end:\n", "        if False:\n",
           T_RUN + "test_a_line_that_a_crash_cut_is_taken_away_and_no_other"),
    Mutant("a text that was cut is counted as lost", RUN, "                self.texts.note(number + 1, self.pool.places)\n", "",
           _CRASHED),
    Mutant("one that was never paid for is not", RUN, "if self.texts.begun > number and not self._paid(request):", "if False:",
           T_RUN + "test_a_text_that_began_and_was_not_paid_for_is_not_lost"),
    Mutant(
        "a text that is stopped is settled", RUN, "                stream.close()\n", "",
        T_RUN + "test_a_text_that_is_stopped_is_spent_for_what_was_computed_and_is_not_written",
    ),
    Mutant("and is not written", RUN, "                stream.close()\n                return True\n",
           "                stream.close()\n                break\n",
           T_RUN + "test_a_text_that_is_stopped_is_spent_for_what_was_computed_and_is_not_written"),
    Mutant("a folder is of one run", SETTING, "            if _unnamed(there) != _unnamed(mine):\n", "            if False:\n",
           T_RUN + "test_another_plan_task_model_or_references_is_refused_by_name"),
    Mutant(
        "a model is named by its tensors", MODELS, "        hashed.update(json.dumps([name, str(tensor.dtype)",
        "        continue\n        hashed.update(json.dumps([name, str(tensor.dtype)",
        T_RUN + "test_a_model_is_loaded_from_its_folder_and_named_by_what_it_computes",
    ),
    Mutant(
        "nobody gives the numbers of a signed rule", ASKED, '            wrong_if(given, f"{sentence}; leave out',
        '            wrong_if(False, f"{sentence}; leave out',
        T_SIGNED + "test_no_number_of_a_signed_rule_is_given_by_who_runs_it",
    ),
    Mutant(
        "T, B, epsilon and delta have no default", ASKED, '            wrong_if(missing, f"', '            wrong_if(False, f"',
        T_TYPED + "test_epsilon_delta_B_and_T_have_no_default",
    ),
)  # fmt: skip
