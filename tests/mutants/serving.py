"""Mutants of the server: who is let in, what is paid and when, what is told of it, and what a withdrawal ends."""

from tests.mutants.mutant import Mutant

ACCESS = "dptrain/serve/access.py"
ADAPTERS = "dptrain/serve/adapters.py"
APP = "dptrain/serve/app.py"
PAYING = "dptrain/serve/paying.py"
PROGRAM = "dptrain/serve/program.py"
SCHEDULER = "dptrain/serve/scheduler.py"
SERVICE = "dptrain/serve/service.py"
REMOTE = "dptrain/inference/remote.py"
CONFIG = "dptrain/serve/config.py"
METRICS = "dptrain/serve/metrics.py"
WIRE = "dptrain/serve/wire.py"
DRAWING = "dptrain/serve/generations/drawing.py"
OFFERED = "dptrain/serve/generations/offered.py"
SOURCES = "dptrain/serve/generations/sources.py"
WITHDRAWING = "dptrain/inference/invisibleink/run/withdrawing.py"

T_PAYING = "tests/serve/test_serve_paying.py::"
T_BORDER = "tests/serve/test_serve_border.py::"
T_SPLIT = "tests/serve/test_serve_split.py::"
T_SILENCE = "tests/serve/test_serve_silence.py::"
T_WITHDRAWAL = "tests/serve/test_serve_withdrawal.py::"
T_LIMITS = "tests/serve/test_serve_limits.py::"
T_ENCRYPTED = "tests/serve/test_serve_encrypted.py::"
T_TEXTS = "tests/serve/test_serve_generations.py::"
T_CLOSING = "tests/serve/test_serve_generations_closing.py::"
T_SOURCES = "tests/serve/test_serve_generations_sources.py::"
T_AGAIN = "tests/serve/test_serve_generations_again.py::"
T_QUIET = "tests/serve/test_serve_generations_silence.py::"

_PAY = "                paid = release.answer(self.till.meter("
_SPENT = "answer.worth.releases if answer.made else 0)"

SERVING = (
    Mutant(
        "a request is refused before the model is called", SERVICE, _PAY,
        "                served.model(input_ids=torch.tensor([ids]))\n" + _PAY,
        T_PAYING + "test_a_refused_request_computes_nothing_and_sends_no_token_by_any_door",
    ),
    Mutant(
        "an answer is charged what its noise is worth", PAYING, "releases, rho_nano=nano_rho)",
        "releases, rho_nano=max(1, nano_rho // 2))",
        T_PAYING + "test_an_answer_of_T_tokens_is_charged_as_T_releases_of_the_noise_that_its_epsilon_asks_for",
    ),
    Mutant("an answer that began is spent whole", PAYING, _SPENT, "0)",
           T_PAYING + "test_an_answer_that_ends_early_is_spent_whole_and_makes_all_its_releases"),
    Mutant(
        "how many releases are made tells nothing", SCHEDULER, "stream._cancelled and (stream._at_once or not",
        "stream._cancelled and (True or not", T_PAYING + "test_a_reader_who_goes_away_in_the_middle_has_spent_the_whole_answer",
    ),
    Mutant("an answer that never began is freed", PAYING, _SPENT, "answer.worth.releases)",
           T_PAYING + "test_an_answer_whose_reader_goes_away_before_its_turn_is_freed"),
    Mutant(
        "a session spends its user's money", PAYING, 'Unit("session", session, unit)',
        'Unit("session", session, Unit("user", session))',
        T_PAYING + "test_a_session_needs_a_cap_and_opens_no_new_money",
    ),
    Mutant("a log keeps its caps", PAYING, "if stated != asked:", "if False:",
           T_PAYING + "test_caps_of_the_file_cannot_be_raised_over_those_of_the_log"),
    Mutant(
        "who leaves a WebSocket ends the answer", APP, "    coming.add_done_callback(lambda _: running.stream.cancel())\n", "",
        T_PAYING + "test_an_answer_whose_reader_goes_away_before_its_turn_is_freed[websocket]",
    ),
    Mutant(
        "a WebSocket needs a token", APP, "client = service.access.client(f\"Bearer {opening.token or ''}\")",
        "client = service.access.clients[0]", T_BORDER + "test_no_websocket_answers_without_a_token",
    ),
    Mutant(
        "tokens are compared in constant time", ACCESS, "if hmac.compare_digest(client.digest, digest):",
        "if client.digest == digest:", T_BORDER + "test_a_token_is_compared_with_every_entry_by_digests_in_constant_time",
    ),
    Mutant(
        "a token is compared whole", ACCESS, "if hmac.compare_digest(client.digest, digest):",
        "if hmac.compare_digest(client.digest[:0], digest[:0]):",
        T_BORDER + "test_without_a_token_of_this_server_no_route_answers",
    ),
    Mutant(
        "a body that hides its length has a limit", APP, "            if len(body) > most:\n", "            if False:\n",
        T_BORDER + "test_a_body_above_the_limit_is_refused_whether_it_says_its_length_or_not",
    ),
    Mutant(
        "metrics are an operator's", APP, 'if _client(request).role != "operator":', "if False:",
        T_BORDER + "test_each_role_has_its_own_routes",
    ),
    Mutant(
        "a label is a route and no path", APP, 'getattr(scope.get("route"), "path", "other")', 'scope["path"]',
        T_SILENCE + "test_no_number_names_anybody_or_hangs_on_what_was_asked",
    ),
    Mutant(
        "a log has no message of a fault", APP, "what, type(error).__name__, places)", "what, error, places)",
        T_SILENCE + "test_no_log_has_a_prompt_an_answer_a_session_a_client_a_token_or_an_id",
    ),
    Mutant(
        "no id of an answer is in the log", PROGRAM, '("uvicorn", "uvicorn.error", "uvicorn.access",', '("uvicorn.access",',
        T_SILENCE + "test_no_log_has_a_prompt_an_answer_a_session_a_client_a_token_or_an_id",
    ),
    Mutant(
        "an answer is taken by who paid", ADAPTERS,
        "if found is None or found.asked[0].name != client.name:", "if found is None:",
        T_SPLIT + "test_an_answer_is_taken_by_who_paid_and_nobody_else",
    ),
    Mutant(
        "no state is taken that was not paid", ADAPTERS, "if found.left < 1:", "if found.left < -1:",
        T_SPLIT + "test_exactly_the_states_that_were_paid_for_are_taken",
    ),
    Mutant(
        "a client judges the noise it is told", REMOTE, "or chance > delta or not (found <= limit and", "or not (",
        T_SPLIT + "test_a_client_takes_no_terms_that_are_worth_less_than_it_asked_for",
    ),
    Mutant(
        "an answer admitted just before a withdrawal ends", SERVICE,
        "if rounds != self._rounds:  # the gate was refreshed after it had admitted this,", "if False:  #",
        T_WITHDRAWAL + "test_an_answer_that_was_admitted_just_before_a_withdrawal_does_not_outlive_it",
    ),
    Mutant(
        "what is withdrawn leaves memory", SERVICE, "        self.artifacts.drop(gone)\n", "",
        T_WITHDRAWAL + "test_what_was_withdrawn_leaves_memory",
    ),
    Mutant(
        "who waits hears of the end", SCHEDULER, "        stream._post(piece)  # whoever",
        "        stream._cancelled or stream._post(piece)  # whoever",
        T_WITHDRAWAL + "test_who_waits_for_the_whole_or_at_a_websocket_hears_of_it_too",
    ),
    Mutant(
        "a token that was taken back opens nothing more", SERVICE, "        client = self.access.present(client)\n", "",
        T_WITHDRAWAL + "test_what_is_open_by_a_token_that_was_taken_back_is_answered_no_more",
    ),
    Mutant(
        "rights of a token are those of the file now", SERVICE, "        client = self.access.present(client)\n",
        "        self.access.present(client)\n",
        T_WITHDRAWAL + "test_rights_that_the_file_of_tokens_narrows_hold_for_what_is_open",
    ),
    Mutant(
        "each state needs a token that holds", SERVICE, "        self.access.present(client)\n        held =", "        held =",
        T_WITHDRAWAL + "test_a_second_token_of_the_client_that_paid_sends_no_state_once_it_was_taken_back",
    ),
    Mutant(
        "an answer that began just before its token was taken back ends", SERVICE,
        "            self.access = access\n            self._rounds += 1\n", "            self.access = access\n",
        T_WITHDRAWAL + "test_an_answer_that_began_just_before_its_token_was_taken_back_does_not_outlive_it",
    ),
    Mutant(
        "files are read again whatever happened before", PROGRAM, "        except Exception as error:  # an end",
        "        except ZeroDivisionError as error:  # an end",
        T_WITHDRAWAL + "test_what_nobody_expected_when_files_are_read_again_is_said_and_they_are_read_at_the_next_time",
    ),
    Mutant(
        "no time of a release is told", SERVICE, 'waits = {"release", "generation"}.isdisjoint(',
        'waits = {"generation"}.isdisjoint(',
        T_SILENCE + "test_no_number_tells_how_long_an_answer_took_that_releases_states",
    ),
    Mutant("a draining server takes nothing on", SERVICE, "        if self.draining:\n", "        if False:\n",
           T_LIMITS + "test_a_draining_server_refuses_new_requests_and_says_so"),
    Mutant(
        "what is computed ahead of a reader is bounded", SCHEDULER, "if stream._ahead >= AHEAD and", "if False and",
        T_LIMITS + "test_a_reader_who_does_not_read_holds_up_nobody_else_and_only_so_much_is_kept_for_it",
    ),
    Mutant(
        "a server of encrypted adapters has no route for text", APP, "    if not service.encrypted_only:\n", "    if True:\n",
        T_ENCRYPTED + "test_a_server_of_encrypted_adapters_has_no_route_for_text_and_no_base_model",
    ),
    Mutant(
        "a word of a client's own comes into no prompt", OFFERED,
        "if set(labels) != set(lists) or any(labels[name] not in words for name, words in lists.items()):",
        "if set(labels) != set(lists):", T_TEXTS + "test_nothing_of_privacy_and_no_word_of_its_own_can_be_asked_for",
    ),
    Mutant(
        "nothing is drawn before rows were tested", OFFERED, "                tested: set[int] = set()\n",
        "                self._ink, tested = ink, set()\n",
        T_CLOSING + "test_no_text_is_drawn_and_no_traffic_is_asked_for_before_the_rows_of_all_shapes_were_tested",
    ),
    Mutant(
        "rows of every shape are tested", OFFERED, "                    if length not in tested:\n",
        "                    if not tested:\n",
        T_CLOSING + "test_no_text_is_drawn_and_no_traffic_is_asked_for_before_the_rows_of_all_shapes_were_tested",
    ),
    Mutant(
        "a server is ready once all rows were tested", SERVICE,
        "        return problems + ([] if self.generations is None else self.generations.problems())\n",
        "        return problems\n",
        T_CLOSING + "test_no_text_is_drawn_and_no_traffic_is_asked_for_before_the_rows_of_all_shapes_were_tested",
    ),
    Mutant(
        "a test that failed closes the generation", OFFERED, "        self.closed = Refused(503,",
        "        closed = Refused(503,",
        T_CLOSING + "test_a_test_that_fails_later_closes_the_generation_spends_nothing_and_ends_what_runs",
    ),
    Mutant(
        "a test that failed ends what runs", DRAWING, "        self.require()\n", "",
        T_CLOSING + "test_a_test_that_fails_later_closes_the_generation_spends_nothing_and_ends_what_runs",
    ),
    Mutant(
        "a server tests rows again", OFFERED, "recheck_every=self.table.recheck_every,", "recheck_every=1 << 30,",
        T_CLOSING + "test_rows_are_tested_again_now_and_then",
    ),
    Mutant(
        "a withdrawn model leaves memory with its generation", SERVICE, "            self.generations.drop(gone)\n",
        "            pass\n",
        T_CLOSING + "test_no_model_of_a_generation_outlives_its_withdrawal",
    ),
    Mutant(
        "a text of a withdrawn contribution ends", OFFERED, " or not accounts.isdisjoint(withdrawn):", ":",
        T_SOURCES + "test_a_contribution_that_is_withdrawn_ends_its_running_text_and_pays_for_no_other",
    ),
    Mutant(
        "a text of a reference that is gone ends", OFFERED, " or not accounts <= now.accounts or", " or",
        T_AGAIN + "test_a_text_of_contributions_ends_where_one_of_its_own_is_gone_and_else_goes_on",
    ),
    Mutant(
        "what cannot be read again makes no text", OFFERED,
        "if (refused := self.closed or self._unread) is not None:\n            raise",
        "if (refused := self.closed) is not None:\n            raise",
        T_SOURCES + "test_references_that_cannot_be_read_again_make_no_text_until_they_can",
    ),
    Mutant(
        "a reader who goes ends the text", DRAWING, "            self._text.close()\n", "            pass\n",
        T_TEXTS + "test_a_reader_who_goes_away_has_spent_what_was_computed_and_no_more",
    ),
    Mutant(
        "where nobody reads nothing is drawn", DRAWING, "        return False\n", "        return not self.over\n",
        T_TEXTS + "test_a_reader_who_goes_away_has_spent_what_was_computed_and_no_more",
    ),
    Mutant(
        "a batch that another server paid for is passed over", OFFERED, "            except BudgetExhausted:  # another",
        "            except ZeroDivisionError:  #",
        T_TEXTS + "test_a_request_that_another_server_was_quicker_than_takes_the_next_batch",
    ),
    Mutant(
        "no figure of a reference is in a refusal", WIRE, "        if error.unit == CONTRIBUTION:", "        if False:",
        T_TEXTS + "test_where_no_references_can_pay_nothing_is_computed_by_any_door",
    ),
    Mutant(
        "a signed withdrawal stands in the log", OFFERED,
        "        enter_withdrawals(self.table, references, self._log)\n", "",
        T_SOURCES + "test_a_signed_withdrawal_counts_from_the_next_reading_on_and_for_good",
    ),
    Mutant(
        "a text of a reference that was changed ends", OFFERED, "(now is not read and not read.signed) or ", "",
        T_AGAIN + "test_a_text_ends_whose_reference_was_changed_or_emptied_while_it_was_drawn",
    ),
    Mutant(
        "and that it ends tells of no payload", OFFERED, "(now is not read and not read.signed) or ",
        "(not read.signed and any(one.text != now.pool.references.rows[place].text for place, one in\n"
        "            enumerate(read.pool.references) if self._log.account(one.unit) in accounts)) or ",
        T_AGAIN + "test_a_text_of_references_that_nobody_signed_ends_though_its_own_are_what_they_were",
    ),
    Mutant(
        "what waits for a reader ends with its reference", SERVICE,
        "        if kept and isinstance(running.stream.decoding, Drawing):\n", "        if False:\n",
        T_AGAIN + "test_what_waits_for_a_slow_reader_is_not_sent_once_its_reference_is_gone[read again]",
    ),
    Mutant(
        "what waits for a reader is judged when it is sent", SERVICE,
        "        if isinstance(running.stream.decoding, Drawing):\n            running",
        "        if False:\n            running",
        T_AGAIN + "test_what_waits_for_a_slow_reader_is_not_sent_once_its_reference_is_gone[another process]",
    ),
    Mutant(
        "withdrawals are read though a file is broken", PROGRAM, "                    service.reread()  # nobody's",
        "                    pass  # nobody's",
        T_AGAIN + "test_references_are_read_again_though_the_servers_file_or_its_tokens_cannot_be[file]",
    ),
    Mutant(
        "withdrawals are read though tokens are broken", SERVICE, "        finally:\n            self.reread()\n",
        "        except ZeroDivisionError:\n            pass\n        else:\n            self.reread()\n",
        T_AGAIN + "test_references_are_read_again_though_the_servers_file_or_its_tokens_cannot_be[tokens]",
    ),
    Mutant(
        "the log has the rule of the policy that was read", OFFERED, "        require_rule(references, self._log.header)\n", "",
        T_AGAIN + "test_a_policy_that_was_signed_anew_makes_no_text_until_the_one_of_the_log_is_back",
    ),
    Mutant(
        "whom the log refuses stands in no batch", OFFERED, "[self._log.account(one.unit) in self._log.state.admitted for",
        "[True for", T_SOURCES + "test_who_signs_the_same_content_anew_keeps_its_budget_and_holds_nobody_up",
    ),
    Mutant(
        "withdrawals beside the log count", SOURCES, ", *beside(log)]", "]",
        T_AGAIN + "test_withdrawals_beside_the_log_count_too",
    ),
    Mutant(
        "a withdrawal counts whatever the gate says", WITHDRAWING, "        if account not in self._leaves and admitted and",
        "        if False and",
        T_AGAIN + "test_a_withdrawal_counts_though_the_gate_does_not_take_the_contribution_any_more",
    ),
    Mutant(
        "a withdrawal that nothing proves is not passed over", SOURCES, '"classes": {given.class_}', '"classes": ()',
        T_AGAIN + "test_a_withdrawal_of_what_was_taken_out_of_the_corpus_is_not_passed_over",
    ),
    Mutant(
        "references are made into prompts once they have paid", OFFERED, "                receipt = meter.reserve(",
        "                self.require_open()._prompts({\"kind\": \"boat\"}).rows([one.text for one in batch])\n"
        "                receipt = meter.reserve(",
        T_AGAIN + "test_references_are_made_into_prompts_once_for_a_text_and_behind_its_payment",
    ),
    Mutant(
        "a text that broke off is no whole one", REMOTE, "        if not whole:\n", "        if False:\n",
        T_TEXTS + "test_a_client_takes_no_text_that_broke_off_for_a_whole_one",
    ),
    Mutant(
        "nobody's withdrawal is passed over by a server", WITHDRAWING,
        "                self._require_entitled(path, one, leaf)\n", "                continue\n",
        T_SOURCES + "test_nobodys_withdrawal_is_passed_over",
    ),
    Mutant(
        "another salt gives no new budget", SOURCES, "    if named and stated.parameters not in",
        "    if False and stated.parameters not in",
        T_SOURCES + "test_another_salt_gives_nobody_a_new_budget",
    ),
    Mutant(
        "a log holds charges between one kind of neighbours", SOURCES, '    if not pinned(relation(between, 1), stated):',
        "    if False:", T_SOURCES + "test_a_log_of_charges_between_other_neighbours_is_none_for_these",
    ),
    Mutant(
        "a salt is nobody else's to read", SOURCES, "atomic_write(path, fresh_salt(), mode=0o600)",
        "atomic_write(path, fresh_salt())",
        T_SOURCES + "test_init_makes_a_salt_that_nobody_else_reads_and_a_log_that_knows_it",
    ),
    Mutant(
        "numbers of contributions are those of their rule", CONFIG,
        "for key in (*numbers, \"label_list\"):\n                if key in self.model_fields_set:\n",
        "for key in (*numbers, \"label_list\"):\n                if False:\n",
        T_SOURCES + "test_of_what_contributors_signed_the_file_says_no_number",
    ),
    Mutant(
        "contributions stand in the log behind what was signed", PAYING, "        generation=rules,\n", "",
        T_SOURCES + "test_contributions_that_were_signed_for_generation_make_texts_under_the_rule_of_their_class",
    ),
    Mutant(
        "generations need a cap of contributions", CONFIG, 'if payer not in self.budget.caps:', "if False:",
        T_SOURCES + "test_without_a_budget_or_a_cap_of_contributions_no_server_starts_and_it_says_what_is_missing",
    ),
    Mutant(
        "no two generations have salts of their own", CONFIG, "if len({each.salt for each in given}) > 1:", "if False:",
        T_SOURCES + "test_one_name_is_no_class_and_generation_and_one_reference_has_no_two_budgets",
    ),
    Mutant(
        "no time of a text is measured", SERVICE, 'waits = {"release", "generation"}.isdisjoint(running.privacy)',
        'waits = {"release"}.isdisjoint(running.privacy)',
        T_QUIET + "test_what_numbers_there_are_of_texts_are_counts_by_generation",
    ),
    Mutant(
        "the operator's page shows no reference", METRICS, "        if cap.unit == CONTRIBUTION:  # of",
        "        if False:  # of",
        T_QUIET + "test_the_operators_page_has_one_row_for_a_generation_and_none_for_a_reference",
    ),
    Mutant(
        "no reference has a line in the log", PAYING, "        if notice.unit != CONTRIBUTION:", "        if True:",
        T_QUIET + "test_no_log_has_a_reference_a_text_a_label_or_an_id",
    ),
    Mutant(
        "a reference's unit is no client's to ask for", SERVICE, 'if asked != client.unit and client.role != "operator":',
        "if False:",
        T_QUIET + "test_a_client_hears_nothing_of_a_references_budget",
    ),
)  # fmt: skip
