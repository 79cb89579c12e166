"""Mutants of what an audit promises: bounds held against what was signed, times, blocks, groups, summaries, runs, releases."""

from tests.mutants.mutant import Mutant

AGREED = "ledger/audit/attested.py"
FOLLOW = "ledger/audit/bounds.py"
POOL = "ledger/audit/bounds.py"
REGISTERED = "ledger/audit/attested.py"
REMARKS = "ledger/audit/remarks.py"
CROSSING = "ledger/audit/histories.py"
SUMMARIES = "ledger/audit/signatures.py"
TIMELINE = "ledger/replay/signer.py"
REPLAY = "ledger/replay/replay.py"
BLOCKS = "attest/schedule/blocks.py"
COSIGNING = "ledger/proofs/cosigning.py"
CONTENTS = "ledger/release/contents.py"
PICKLES = "ledger/release/contents.py"
TIED = "ledger/release/tied.py"
CHECK = "ledger/release/check.py"
RIGHTS = "ledger/release/rights.py"
STATEMENTS = "ledger/retention.py"
EARLIER = "ledger/audit/earlier.py"
RETAINING = "ledger/log/retaining.py"

T_FOLDED = "tests/ledger/test_folded.py::"
T_FOLDED_LIES = "tests/attacks/test_ledger_attacks_folded.py::"
T_BOUNDS = "tests/attacks/test_ledger_attacks_bounds.py::"
T_REGISTRY = "tests/attacks/test_ledger_attacks_registry.py::"
T_TIMES = "tests/attacks/test_ledger_attacks_times.py::"
T_DEPTH = "tests/attacks/test_ledger_attacks_depth.py::"
T_DRAWS = "tests/attacks/test_ledger_attacks_draws.py::"
T_CROSSING = "tests/attacks/test_ledger_attacks_crossing.py::"
T_TIED = "tests/attacks/test_ledger_attacks_tied.py::"
T_AUDIT = "tests/attacks/test_ledger_attacks_audit.py::"

BOUNDS = (
    Mutant(
        "a leaf quotes the bounds that were signed", AGREED, "if _quotes(leaf) != self._quoted:", "if not _quotes(leaf):",
        T_BOUNDS + "test_what_nobody_signed_is_found[multiplier_50]",
    ),
    Mutant(
        "a leaf quotes the descriptor that was signed", AGREED, "digest != leaf.descriptor_hash\n            or ", "",
        T_BOUNDS + "test_what_nobody_signed_is_found[invented_descriptor]",
    ),
    Mutant(
        "a contributor signed the attestation", AGREED,
        "self.signing.verify(signature, framing.to_be_signed(descriptor, subject))", "framing.to_be_signed(b\"\", subject)",
        T_BOUNDS + "test_what_nobody_signed_is_found[signed_by_mallory_under_bobs_key_id]",
    ),
    Mutant(
        "the bounds that were signed are within the class", AGREED,
        "                check_bounds(self.signed, rule, self._policy)\n", "",
        T_BOUNDS + "test_what_nobody_signed_is_found[clip_above_its_class]",
    ),
    Mutant(
        "the registry grants the class", AGREED, "if self.signed.admissibility_class not in granted:",
        "if not self.signed.admissibility_class:", T_BOUNDS + "test_what_nobody_signed_is_found[class_not_granted]",
    ),
    Mutant(
        "an admission lies in the validity of attestation and key", AGREED,
        "return None if self._first <= leaf.time < self._end else", "return None if self._first <= self._end else",
        T_BOUNDS + "test_who_is_admitted_under_known_terms_after_their_end_is_found",
    ),
    Mutant(
        "an attestation is valid at every charge", FOLLOW, "in self._pool.ended(leaf.time):", "in self._pool.ended(0):",
        T_BOUNDS + "test_what_nobody_signed_is_found[charged_long_after_the_end]",
    ),
    Mutant(
        "an attestation ends at the first second after it", POOL, "while heap and heap[0][0] <= time:",
        "while heap and heap[0][0] < time:",
        T_BOUNDS + "test_a_charge_at_the_very_end_of_an_attestation_is_too_late_and_a_second_before_is_not[0-FAILED]",
    ),
    Mutant(
        "an attestation has begun by every charge", FOLLOW,
        "early := self._pool.early(leaf.time)", "early := self._pool.early(1 << 60)",
        T_BOUNDS + "test_a_charge_before_an_attestation_begins_is_found_behind_a_clock_that_was_set_back",
    ),
    Mutant(
        "nobody expires before the end", FOLLOW, "not_after is not None and leaf.time < not_after:",
        "not_after is not None and leaf.time < 0:", T_BOUNDS + "test_what_nobody_signed_is_found[said_to_have_expired]",
    ),
    Mutant(
        "FULL takes a registry", FOLLOW, "bounds.attested and bounds.registry_root is not None and", "bounds.attested and",
        T_BOUNDS + "test_without_a_registry_attestations_are_held_against_leaves_and_the_verdict_is_told",
    ),
    Mutant(
        "an attestation stands beside every admission", FOLLOW, "if entry is not None and self._export.attested:",
        "if entry is not None and not self._export.attested:",
        T_BOUNDS + "test_what_nobody_signed_is_found[invented_contribution]",
    ),
    Mutant(
        "nobody has more admissions than its cap", FOLLOW, "        if count > cap:", "        if count < 0:",
        T_BOUNDS + "test_what_nobody_signed_is_found[above_the_cap_of_the_policy]",
    ),
    Mutant(
        "the registry has the state that the policy names", REGISTERED, "if root is None or not admitted.extends(root):",
        "if root is None:", T_BOUNDS + "test_what_nobody_signed_is_found[another_registry_of_the_owner]",
    ),
    Mutant(
        "a run keeps to the state of the registry that it took in", FOLLOW, "barred := self._pool.barred(leaf.time)",
        "barred := self._pool.barred(-1)",
        T_REGISTRY + "test_A24_what_a_run_does_against_the_state_that_it_took_in_is_found",
    ),
    Mutant(
        "nobody is withdrawn for a key that the registry supports", FOLLOW,
        "and barred is False:", "and barred is not barred:",
        T_REGISTRY + "test_A24_what_a_run_does_against_the_state_that_it_took_in_is_found",
    ),
    Mutant(
        "a state that was taken in decides of what is behind its leaf", FOLLOW, "        self._state = Known.of(state)\n", "",
        T_REGISTRY + "test_a_run_that_takes_a_later_state_in_and_goes_by_it_is_full",
    ),
    Mutant(
        "a REGISTRY leaf goes on from the state in force", REPLAY, "if leaf.before != self.registry_roots[-1]:",
        "if not leaf.before:", T_REGISTRY + "test_a_leaf_that_does_not_go_on_from_the_state_in_force_is_found",
    ),
)  # fmt: skip

FIGURES = (
    Mutant(
        "what no rule gives to a class it does not touch", BLOCKS,
        'raise ValueRefused("DEPTH_WIDER",', 'ValueRefused("DEPTH_WIDER",',
        T_DEPTH + "test_B20_a_band_widened_by_a_block_below_it_is_found",
    ),
    Mutant(
        "no block is left out", BLOCKS, 'raise ValueRefused("DEPTH_DROPPED", f"block {name} follows',
        'ValueRefused("DEPTH_DROPPED", f"block {name} follows', T_DEPTH + "test_B20_a_frozen_block_left_out_is_found",
    ),
    Mutant(
        "frozen parameters stay what the header says", REPLAY, "if leaf.frozen_digest != self.header.frozen_digest:",
        "if leaf.frozen_digest == 0:", T_DEPTH + "test_B21_an_epoch_with_other_frozen_parameters_than_the_header_is_found",
    ),
    Mutant(
        "times run back at CLOCK leaves alone", TIMELINE, "elif leaf.time < self.last:", "elif leaf.time < 0:",
        T_TIMES + "test_A21_time_runs_back_at_a_clock_leaf_alone",
    ),
    Mutant(
        "no leaf lies ahead of the auditor's clock", TIMELINE, "if not is_ahead(self.last, now):", "if now >= 0:",
        T_TIMES + "test_A21_a_ledger_dated_ahead_of_the_auditors_clock_is_FAILED",
    ),
    Mutant(
        "nobody cosigns a leaf before it is written", TIMELINE, "return self.at(size) <= time and (", "return 0 <= time and (",
        T_TIMES + "test_B8_a_cosignature_counts_only_between_the_last_leaf_and_the_readers_clock",
    ),
    Mutant(
        "nobody cosigns tomorrow", TIMELINE, "(now is None or not is_ahead(time, now))", "(now is None or now >= 0)",
        T_TIMES + "test_B8_a_cosignature_counts_only_between_the_last_leaf_and_the_readers_clock",
    ),
    Mutant(
        "a group has the members that its leaves say", REPLAY,
        "if row.facts != (count, row.members_root", "if not row.facts and (count, row.members_root",
        "tests/attacks/test_ledger_attacks_spend.py::test_a_lie_about_a_group_is_found_by_writer_and_auditor",
    ),
    Mutant(
        "a quorum vouches for what is gone", SUMMARIES, "    if wrong is not None:\n", "    if wrong == 0:\n",
        "tests/attacks/test_ledger_attacks_retention.py::test_B25_the_word_of_a_quorum_is_in_the_export_or_the_audit_fails",
    ),
    Mutant(
        "an epoch follows before anything goes", SUMMARIES, "    if early is not None:\n", "    if early == 0:\n",
        T_TIMES + "test_B26_what_was_pruned_before_another_epoch_closed_is_found",
    ),
    Mutant(
        "nobody vouches for a summary over bounds that are told", COSIGNING, 'if report.verdict == "TOLD":',
        "if not report.verdict:",
        "tests/ledger/test_statements.py::test_nobody_vouches_for_a_summary_over_bounds_that_are_told",
    ),
    Mutant(
        "nobody vouches for who stayed where they are gone", COSIGNING, "if report.folded:", "if report.folded < 0:",
        T_FOLDED + "test_auditors_vouch_for_who_stayed_though_who_left_is_gone_and_for_nobody_who_is_gone",
    ),
    Mutant(
        "who stayed is gone on words from behind the close", STATEMENTS, "if size > closed_at for name", "if size for name",
        "tests/attacks/test_ledger_attacks_members.py::"
        "test_the_logs_key_lets_nobody_go_who_stayed_on_words_from_before_the_close",
    ),
    Mutant(
        "who stayed goes on words from behind the close", RETAINING, "if len(named) < quorum:", "if len(named) < 0:",
        T_FOLDED + "test_who_stayed_goes_only_where_auditors_vouch_behind_the_close",
    ),
    Mutant(
        "what folded runs spent elsewhere is told", EARLIER, "        answered = frozenset()", "        pass",
        T_FOLDED_LIES + "test_what_was_wrong_of_several_runs_before_folding_is_told_after_it[limit-BUDGET]",
    ),
    Mutant(
        "a withdrawal may be of who stayed", "ledger/audit/withdrawals.py",
        "(unnamed and self._given_for(name))", "False",
        T_FOLDED_LIES + "test_a_signed_withdrawal_that_no_leaf_enters_is_told_of_whoever_may_have_stayed",
    ),
    Mutant(
        "a class that is not granted is barred at any time", FOLLOW,
        "in contributor.classes else 0", "in contributor.classes else 1750001000",
        T_REGISTRY + "test_A24_what_a_run_does_against_the_state_that_it_took_in_is_found"
        "[ignored_after_the_clock_was_set_back]",
    ),
    Mutant(
        "draws at random are told to be the trainer's word", REMARKS,
        'turns:\n        remarks.qualify("DRAWS_TOLD")', 'turns:\n        remarks.note("DRAWS_TOLD")',
        T_DRAWS + "test_honest_public_draws_are_full_and_told_only_without_an_order",
    ),
    Mutant(
        "charged steps without a draw are counted", REMARKS, "missing = run.charged - run.draws", "missing = 0",
        T_DRAWS + "test_steps_without_a_draw_are_counted_in_a_note",
    ),
    Mutant(
        "one descriptor says one thing in all runs", CROSSING, "            if wrong:\n", "            if wrong == 0:\n",
        T_CROSSING + "test_one_descriptor_that_says_something_else_in_another_run_is_found",
    ),
    Mutant(
        "one content has one descriptor in all runs", CROSSING, "renamed.append((contribution, told))", "told.strip()",
        T_CROSSING + "test_one_content_under_another_descriptor_carries_nothing_and_is_found",
    ),
)  # fmt: skip

RELEASES = (
    Mutant(
        "a pickle is one by its bytes", CONTENTS, "if is_pickle(head, self._size):", "if not head and self._size:",
        T_TIED + "test_E4_weights_and_code_under_the_name_of_a_companion_keep_a_release_from_being_tied_or_are_named",
    ),
    Mutant(
        "integers of a pickle have any base", PICKLES, "0[xX][0-9a-fA-F_]++|0[oObB]?", "0",
        T_TIED + "test_E4_weights_and_code_under_the_name_of_a_companion_keep_a_release_from_being_tied_or_are_named",
    ),
    Mutant(
        "a pickle that breaks off behind a call is one", PICKLES,
        "(name in _ACTS or name == \"STOP\")", "name == \"STOP\"",
        T_TIED + "test_E4_weights_and_code_under_the_name_of_a_companion_keep_a_release_from_being_tied_or_are_named",
    ),
    Mutant(
        "what an unpickler may pop is on the stack of the walk", PICKLES, 'opcode.name == "POP" and not items[-1]',
        'opcode.name == "POP" and items[-1]',
        T_TIED + "test_E4_whatever_an_unpickler_does_with_an_object_that_it_obtained_is_a_pickle",
    ),
    Mutant(
        "a companion holds no weights by its bytes", TIED, "return file.form in HARMLESS and (", "return bool(file.form) and (",
        T_TIED + "test_E4_weights_and_code_under_the_name_of_a_companion_keep_a_release_from_being_tied_or_are_named",
    ),
    Mutant(
        "the end of a file is looked at too", CONTENTS, 'if b"PK\\x05\\x06" in self._tail or ', "if ",
        T_TIED + "test_E4_weights_and_code_under_the_name_of_a_companion_keep_a_release_from_being_tied_or_are_named",
    ),
    Mutant(
        "TIED takes every trained tensor", TIED, 'return "PART" if self.left_out else "TIED"', 'return "TIED"',
        T_TIED + "test_E4_one_tensor_of_two_is_a_part_and_serves_nobody_who_asks_for_the_whole",
    ),
    Mutant(
        "TIED takes names that a loader looks for", TIED, "if any(not file.view.known for file in self.files):",
        "if not self.files:", T_TIED + "test_E4_a_prefix_that_no_loader_looks_behind_is_not_tied",
    ),
    Mutant(
        "TIED takes an index that leads to these files", TIED, "self.empty or self.astray or", "self.empty or",
        T_TIED + "test_E4_an_index_that_leads_a_loader_elsewhere_is_not_tied",
    ),
    Mutant(
        "no loader looks into any folder", TIED, "_Reading(view, not folder and plain, None, module)",
        "_Reading(view, plain, None, module)",
        T_TIED + "test_E4_half_a_model_beside_the_rest_of_it_is_a_part_and_serves_nobody",
    ),
    Mutant(
        "what could be taken for the model has all of it", TIED,
        "any(self._having[(*way, name)] < self._groups[way] for way in ways)",
        "any(self._having[(*way, name)] < 0 for way in ways)",
        T_TIED + "test_E4_half_a_model_beside_the_rest_of_it_is_a_part_and_serves_nobody",
    ),
    Mutant(
        "a module is looked for in the place of its name", TIED, "if own in self._modules]", "if own in self._adapters]",
        T_TIED + "test_E4_modules_of_one_shape_are_tied_in_places_of_their_own_and_not_in_those_of_each_other",
    ),
    Mutant(
        "an adapter is looked for in the place of its name", TIED,
        "        if adapter in self._adapters:", "        if not adapter:",
        T_TIED + "test_E4_adapters_are_tied_in_places_of_their_own_and_serve_nobody_in_those_of_each_other",
    ),
    Mutant(
        "settings that are not JSON name code", CONTENTS, "if ending in _SETTINGS:", "if not ending:",
        T_TIED + "test_E4_settings_that_name_code_are_named_in_whatever_format_a_loader_reads",
    ),
    Mutant(
        "a tag of YAML names code", CONTENTS, 'found.add("!")', 'found.discard("!")',
        T_TIED + "test_E4_settings_that_name_code_are_named_in_whatever_format_a_loader_reads",
    ),
    Mutant(
        "a kernel is code", CONTENTS, "sorted(keys & (_NAMING | _KERNELS))", "sorted(keys & _NAMING)",
        T_TIED + "test_E4_settings_that_name_code_are_named_in_whatever_format_a_loader_reads",
    ),
    Mutant(
        "code beside weights is named", CHECK, 'check.words.add("CODE_BESIDE")', "check.words.update()",
        T_TIED + "test_E4_settings_and_code_that_were_changed_and_signed_along_are_named_under_signature",
    ),
    Mutant(
        "a key that names code is found however it is spelled", CONTENTS, 'if b"\\\\" in text or ', "if ",
        T_TIED + "test_E4_settings_and_code_that_were_changed_and_signed_along_are_named_under_signature",
    ),
    Mutant(
        "code beside weights serves nobody unasked", RIGHTS, "if not rights.code and report.weights is not None and",
        "if rights.code and report.weights is not None and",
        T_TIED + "test_E4_settings_and_code_that_were_changed_and_signed_along_are_named_under_signature",
    ),
    Mutant(
        "a form is that of the bytes", "ledger/release/files.py", "    if found == expected:\n",
        "    if found.sha256 == expected.sha256:\n",
        T_TIED + "test_E4_a_manifest_that_calls_a_pickle_text_is_refused_by_who_looks_at_the_file",
    ),
)  # fmt: skip
