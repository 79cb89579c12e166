"""Mutants of what a served model releases (sensitivity, clip, noise, figures, what is paid), and of the gate before it."""

from tests.mutants.mutant import Mutant

FIGURES_OF_NOISE = "dptrain/inference/gaussian.py"
PRESET = "dptrain/inference/preset.py"
STATES = "dptrain/inference/release.py"
RANK = "dptrain/inference/rank_space.py"

ENVELOPE = "ledger/serving/envelope.py"
QUERIES = "ledger/serving/gate.py"
CHOICE = "ledger/release/rights.py"
GONE = "ledger/release/check.py"

T_RIGHTS = "tests/ledger/test_serving_rights.py::"
T_QUERIES = "tests/attacks/test_serving_gate.py::"
T_FIGURES = "tests/inference/test_calibration.py::"
T_STATES = "tests/inference/test_states.py::"
T_RANK = "tests/inference/test_rank_space.py::"

_STEPS = (
    "        steps = np.trunc(direction * (reach / step))\n"
    "        if sum(each * each for each in map(int, steps.tolist())) <= most:\n"
)
_NOISED = "(clipped_steps(values, clip, step) + normal_steps(len(values))) * step"
_KEY = 'KeyStream("inference.gaussian", os.urandom(16), 0, KeyStream.fresh_master())'

T_NORM = T_STATES + "test_the_norm_of_any_state_is_within_the_clip_norm_in_whole_numbers"
T_COVARIANCE = T_STATES + "test_what_leaves_is_the_clipped_state_in_the_mean_and_sigma_squared_in_the_covariance"
T_LATTICE = T_STATES + "test_every_release_is_a_whole_number_of_steps_with_all_its_low_bits_drawn"

SERVED = (
    Mutant(
        "two inputs are twice the clip norm apart", FIGURES_OF_NOISE, '"replace_one": 2}', '"replace_one": 1}',
        T_FIGURES + "test_two_inputs_are_twice_as_far_apart_as_one_and_none",
    ),
    Mutant(
        "the classical formula ends at epsilon 1", FIGURES_OF_NOISE, "if epsilon >= 1.0:", "if epsilon > 10.0:",
        T_FIGURES + "test_the_classical_formula_is_false_where_it_is_refused",
    ),
    Mutant(
        "of a bracket the noisier end is taken", FIGURES_OF_NOISE, "    return low\n", "    return high * (1.0 + 1e-7)\n",
        T_FIGURES + "test_the_exact_delta_of_an_analytic_sigma_is_at_most_delta_and_hardly_less",
    ),
    Mutant(
        "an answer of T tokens is T releases", FIGURES_OF_NOISE, "mu_of(epsilon, delta) / math.sqrt(_count(releases))",
        "mu_of(epsilon, delta)", T_FIGURES + "test_the_sigma_of_an_answer_of_256_tokens_is_that_of_the_vectors",
    ),
    Mutant(
        "charges are rounded up", FIGURES_OF_NOISE, "math.ceil(apart * apart / 2 * 10**9)", "int(apart * apart / 2 * 10**9)",
        T_FIGURES + "test_a_charge_is_a_whole_number_and_never_below_half_the_square_of_the_distance",
    ),
    Mutant(
        "noise in name alone is refused", FIGURES_OF_NOISE, "        if mu > MOST_MU:\n", "        if False:\n",
        T_STATES + "test_no_option_releases_in_clear",
    ),
    Mutant(
        "a preset has its own numbers", PRESET, "if name in numbers and not math.isclose(", "if False and not math.isclose(",
        T_FIGURES + "test_the_preset_goes_by_the_names_of_the_page_too_and_not_with_other_numbers",
    ),
    Mutant(
        "a state is clipped by its norm, not by its coordinates", STATES, _STEPS,
        "        steps = np.trunc(np.clip(values, -clip, clip) / step)\n        if True:\n", T_NORM,
    ),
    Mutant("norms are compared in whole numbers", STATES, _STEPS,
           _STEPS.replace("trunc", "ceil").replace("<= most", "> 0"), T_NORM),
    Mutant(
        "what is not finite counts as zero", STATES, "if peak == 0.0 or not math.isfinite(peak):", "if peak == 0.0:",
        T_STATES + "test_a_state_that_is_not_finite_counts_as_none",
    ),
    Mutant(
        "a state is clipped before the noise", STATES, _NOISED,
        "clipped_steps(values + normal_steps(len(values)) * step, clip, step) * step", T_COVARIANCE,
    ),
    Mutant("the noise has the standard deviation that is said", STATES, _NOISED, _NOISED.replace(
        "+ normal_steps(len(values))", "+ np.rint(0.9 * normal_steps(len(values)))"), T_COVARIANCE),
    Mutant(
        "noise is drawn anew for every release", STATES, _KEY,
        'KeyStream("inference.gaussian", bytes(16), 0, globals().setdefault("_KEPT", KeyStream.fresh_master()))',
        T_STATES + "test_noise_is_normal_and_that_of_one_release_says_nothing_of_the_next",
    ),
    Mutant(
        "nothing can set the noise", STATES, _KEY, 'KeyStream("inference.gaussian", bytes(16), 0, np.random.bytes(32))',
        T_STATES + "test_no_seed_of_any_library_reaches_the_noise",
    ),
    Mutant(
        "noise has all bits of the lattice", STATES, _NOISED, _NOISED.replace(
            "+ normal_steps(len(values))", "+ (normal_steps(len(values)) * 2.0**-32).astype(np.float16) * np.float64(2.0**32)"),
        T_LATTICE,
    ),
    Mutant(
        "what leaves lies on the lattice", STATES, _STEPS, _STEPS.replace("np.trunc(direction * (reach / step))",
                                                                           "direction * (reach / step)"), T_LATTICE,
    ),
    Mutant(
        "an answer has a receipt", STATES, "or paid < asked:", "or False:",
        T_STATES + "test_without_a_receipt_of_as_many_there_is_no_answer",
    ),
    Mutant(
        "no more leaves than was reserved", STATES, "            if self._made >= self.worth.releases:\n",
        "            if self._made >= 2 * self.worth.releases:\n",
        T_STATES + "test_no_more_states_leave_than_were_reserved_however_many_threads_ask",
    ),
    Mutant(
        "a forked process has no part in an answer", STATES, "if os.getpid() != self._process:", "if False:",
        T_STATES + "test_an_answer_is_counted_in_one_place_and_not_in_copies_of_it",
    ),
    Mutant(
        "an answer is charged whole", STATES, "meter.reserve(asked,", "meter.reserve(1,",
        T_STATES + "test_an_answer_is_reserved_whole_before_anything_is_released",
    ),
    Mutant(
        "an adapter sees released coordinates", RANK, "found = answer.release(self.project(state))",
        "found = replace(answer.release(self.project(state)), state=self.project(state))",
        T_RANK + "test_what_comes_out_is_a_function_of_r_released_numbers",
    ),
    Mutant(
        "the factor knows the noise of all coordinates", RANK, "z.shape[1] * worth.sigma**2", "worth.sigma**2",
        T_RANK + "test_the_factor_is_the_best_there_is_and_goes_to_zero_with_the_budget",
    ),
)  # fmt: skip

GATED = (
    Mutant(
        "rights are signed as rights", ENVELOPE, "read.verify(payload, raw, typ=sign1.TYP_RIGHTS)",
        "read.verify(payload, raw, typ=read.headers.typ)",
        T_RIGHTS + "test_rights_signed_for_another_purpose_are_none_and_serve_no_other_purpose",
    ),
    Mutant(
        "rights are for one gate", ENVELOPE, "    if envelope.audience != audience:\n", "    if not audience:\n",
        T_RIGHTS + "test_rights_are_for_one_gate_and_one_client",
    ),
    Mutant(
        "rights are for one client", ENVELOPE, "if holder is None or granted.envelope.holder != holder:", "if holder is None:",
        T_RIGHTS + "test_rights_are_for_one_gate_and_one_client",
    ),
    Mutant(
        "the second of expiry is no second of the rights", ENVELOPE, ">= envelope.expires:", "> envelope.expires:",
        T_RIGHTS + "test_rights_hold_from_their_first_second_up_to_the_one_before_they_expire",
    ),
    Mutant(
        "nothing lasts for ever", ENVELOPE, "if not 0 < lasts <= MAX_LIFETIME:", "if not 0 < lasts:",
        T_RIGHTS + "test_nothing_lasts_longer_than_the_limit_or_not_at_all",
    ),
    Mutant(
        "what is remembered is judged again", QUERIES, "granted.require(now, self._revoked, latest=latest)", "pass",
        T_QUERIES + "test_rights_are_judged_at_every_query_though_their_signature_is_remembered",
    ),
    Mutant(
        "a clock that was put back revives nothing", QUERIES, "self._latest = max(self._latest, now)", "self._latest = now",
        T_QUERIES + "test_rights_are_judged_at_every_query_though_their_signature_is_remembered",
    ),
    Mutant(
        "rights name what may be asked", QUERIES, "if generation_class not in granted.envelope.generation:", "if False:",
        T_QUERIES + "test_rights_that_do_not_hold_admit_nobody",
    ),
    Mutant(
        "a refused refresh closes the gate", QUERIES, "                self._standing = _closed(self._standing, refused)\n", "",
        T_QUERIES + "test_a_refresh_that_fails_for_any_reason_closes_the_gate",
    ),
    Mutant(
        "a ledger only grows", QUERIES, "if found.size < before.size:", "if False:",
        T_QUERIES + "test_an_older_export_is_refused_and_closes_the_gate_until_a_newer_one_passes",
    ),
    Mutant(
        "a newer export has the history that was seen", QUERIES, "if leaves.root_at(before.size) != before.root:", "if False:",
        T_QUERIES + "test_a_fork_closes_the_gate_for_good",
    ),
    Mutant(
        "a fork is for good", QUERIES, "if before.closed is not None and before.closed[0] == FORKED:", "if False:",
        T_QUERIES + "test_a_fork_closes_the_gate_for_good",
    ),
    Mutant(
        "a file is compared when it is loaded", QUERIES, "if left or digest.digest() != file.sha256:", "if left:",
        T_QUERIES + "test_a_file_that_was_swapped_after_the_check_is_not_loaded",
    ),
    Mutant(
        "an admission names files, and does not choose them", QUERIES, "for file in known:", "for file in admission.files:",
        T_QUERIES + "test_nothing_is_loaded_that_was_not_admitted",
    ),
    Mutant(
        "epsilons are compared to the millionth", CHOICE, "not spent / MICRO <= most", "not spent <= most * MICRO",
        T_RIGHTS + "test_an_epsilon_is_allowed_up_to_the_very_millionth_that_was_signed",
    ),
    Mutant(
        "a withdrawal counts for its class", GONE, "            found.add(contribution.class_index)\n", "            pass\n",
        T_QUERIES + "test_a_withdrawal_refuses_what_its_class_may_have_influenced_from_the_refresh_on",
    ),
    Mutant(
        "of whom nothing is known may have been anybody", GONE, "            return tuple(names)\n        if contribution.seq",
        "            continue\n        if contribution.seq",
        T_QUERIES + "test_who_was_admitted_after_a_release_and_withdrew_is_not_in_it",
    ),
)  # fmt: skip
