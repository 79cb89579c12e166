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

T_PAYING = "tests/serve/test_serve_paying.py::"
T_BORDER = "tests/serve/test_serve_border.py::"
T_SPLIT = "tests/serve/test_serve_split.py::"
T_SILENCE = "tests/serve/test_serve_silence.py::"
T_WITHDRAWAL = "tests/serve/test_serve_withdrawal.py::"
T_LIMITS = "tests/serve/test_serve_limits.py::"
T_ENCRYPTED = "tests/serve/test_serve_encrypted.py::"

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
        "        self.access = access\n        self._rounds += 1\n", "        self.access = access\n",
        T_WITHDRAWAL + "test_an_answer_that_began_just_before_its_token_was_taken_back_does_not_outlive_it",
    ),
    Mutant(
        "files are read again whatever happened before", PROGRAM, "        except Exception as error:  # an end",
        "        except ZeroDivisionError as error:  # an end",
        T_WITHDRAWAL + "test_what_nobody_expected_when_files_are_read_again_is_said_and_they_are_read_at_the_next_time",
    ),
    Mutant(
        "no time of a release is told", SERVICE, 'waits = "release" not in running.privacy', "waits = True",
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
)  # fmt: skip
