"""Mutants of what a served model releases: sensitivity, clip, noise, figures, and what is paid."""

from tests.mutants.mutant import Mutant

FIGURES_OF_NOISE = "dptrain/inference/gaussian.py"
PRESET = "dptrain/inference/preset.py"
STATES = "dptrain/inference/release.py"
RANK = "dptrain/inference/rank_space.py"

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
