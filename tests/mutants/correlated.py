"""Mutants of noise that is correlated between steps: what went wrong in others' privatizers, broken once each."""

from tests.mutants.mutant import Mutant

STRATEGIES = "ledger/accountants/correlated/strategies.py"
SENSITIVITY = "ledger/accountants/correlated/sensitivity.py"
GAUSSIAN = "dptrain/noise/correlated/gaussian.py"
RECURRENCES = "dptrain/noise/correlated/recurrences.py"
PRIVATIZERS = "dptrain/noise/correlated/privatizers.py"

STATE = "ledger/replay/state.py"
CONTRIBUTIONS = "ledger/replay/contributions.py"
REPLAY = "ledger/replay/replay.py"
HEADER = "ledger/leaves/header.py"
STATES = "dptrain/record/pin.py"
PREPARED = "dptrain/engine/prepared.py"

MECHANISM = "attest/policy/mechanism.py"
SIGNED = "ledger/accountants/correlated/signed.py"
COSTS = "ledger/accountants/correlated/costs.py"
SAMPLING = "dptrain/data/sampling.py"

T_SECRET = "tests/guarantees/test_cyclic_poisson.py::"
T_RUNS = "tests/guarantees/test_correlated_runs.py::"
T_SIGNED = "tests/correlated/test_signed_strategies.py::"
T_FILES = "tests/ledger/test_coefficients.py::"
T_STRATEGIES = "tests/correlated/test_strategies.py::"
T_SENSITIVITY = "tests/correlated/test_sensitivity.py::"
T_NOISE = "tests/correlated/test_correlated_noise.py::"
T_ALONE = "tests/correlated/test_privatizers.py::"
T_CANARIES = "tests/correlated/test_canaries.py::"

CORRELATED = (
    Mutant(
        "steps behind the last that a strategy is made for are released", GAUSSIAN,
        "        if step.number > self.steps:", "        if step.number > 2 * self.steps:",
        T_NOISE + "test_steps_come_in_order_and_end",
    ),
    Mutant(
        "the scale of noise is the norm of the coefficients", GAUSSIAN,
        "    norm = math.sqrt(float(strategy.norms_squared(steps).max()))",
        "    norm = float(np.linalg.norm(getattr(strategy, 'coefficients', 1.0)))",
        T_NOISE + "test_column_norms_are_those_of_the_matrix_and_not_of_its_coefficients",
    ),
    Mutant(
        "columns that are normalised for some steps go on behind them", STRATEGIES,
        "    if strategy.longest is not None and steps > strategy.longest:",
        "    if strategy.longest is not None and steps > 2 * strategy.longest:",
        T_STRATEGIES + "test_what_is_no_strategy_is_refused",
    ),
    Mutant(
        "noise is drawn in the type of the gradients", PRIVATIZERS,
        "noisy[name] = total.to(leaf.device, leaf.dtype)", "noisy[name] = leaf + (total - leaf).to(leaf.device, leaf.dtype)",
        T_ALONE + "test_types_and_forms_stay_and_noise_is_drawn_in_float64",
    ),
    Mutant(
        "the key has 31 bits", PRIVATIZERS,
        "os.urandom(32) if key is None else key",
        "int(torch.randint(2**31 - 1, ())).to_bytes(32, 'big') if key is None else key",
        T_ALONE + "test_keys_are_fresh_and_long",
    ),
    Mutant(
        "a contribution that comes back counts once", PRIVATIZERS,
        "return sensitivity(self.strategy, self.steps, participation).value / self._noise.norm",
        "return sensitivity(self.strategy, self.steps, ONCE).value / self._noise.norm",
        T_CANARIES + "test_what_canaries_show_is_what_is_claimed_and_no_more",
    ),
    Mutant(
        "columns that overlap count as if they were orthogonal", SENSITIVITY,
        "if strategy.bands is not None and strategy.bands <= participation.gap:", "if strategy.bands is not None:",
        T_SENSITIVITY + "test_bounds_hold_and_are_attained_where_they_say_so",
    ),
    Mutant(
        "signs of products are left to cancel", SENSITIVITY,
        "np.asarray(np.abs(strategy.gram(steps, lag)) + lost)", "np.maximum(strategy.gram(steps, lag), 0.0)",
        T_SENSITIVITY + "test_bounds_hold_and_are_attained_where_they_say_so",
    ),
    Mutant(
        "rows that were lost count as one", SENSITIVITY,
        "rounded_up(math.fsum(weight * weight for weight in weights), steps,",
        "rounded_up(max((weight * weight for weight in weights), default=0.0), steps,",
        T_SENSITIVITY + "test_lost_tails_add_what_their_rows_can",
    ),
    Mutant(
        "a state is released from twice", PRIVATIZERS,
        "        if state.spent:\n            told", "        if state.spent and False:\n            told",
        T_ALONE + "test_a_state_is_good_for_one_release",
    ),
    Mutant(
        "the state of another strategy is taken", PRIVATIZERS,
        "return digest(self.strategy) + struct.pack(", "return bytes(32) + struct.pack(",
        T_ALONE + "test_states_of_others_are_refused",
    ),
    Mutant(
        "buffers of a part begin at the place of the part in the tensor", GAUSSIAN,
        "noise, self._now.numpy()[:, first : first + len(noise)]", "noise, self._now.numpy()[:, :len(noise)]",
        T_NOISE + "test_bits_do_not_depend_on_the_parts_in_which_a_tensor_comes",
    ),
    Mutant(
        "an output takes the place of one that is needed still", RECURRENCES,
        "                held[t % self.buffers, here] = part\n\n\nclass MovingAverage",
        "                held[(t + 1) % self.buffers, here] = part\n\n\nclass MovingAverage",
        T_NOISE + "test_the_noise_is_that_of_the_matrix",
    ),
    Mutant(
        "buffers decay behind the sum and not before", RECURRENCES,
        "                buffer[here] *= decay\n                buffer[here] += part",
        "                buffer[here] += part\n                buffer[here] *= decay",
        T_NOISE + "test_the_noise_is_that_of_the_matrix",
    ),
    Mutant(
        "the state of a run with less noise is taken", PRIVATIZERS,
        'struct.pack(">Qdd", self.steps, self.noise_multiplier, self.clip_norm)',
        'struct.pack(">Qdd", self.steps, 1.0, self.clip_norm)',
        T_ALONE + "test_states_of_others_are_refused",
    ),
    Mutant(
        "a saved state goes on under the key that it had", PRIVATIZERS,
        '            if self._mark() in marks:', '            if b"" in marks:',
        T_ALONE + "test_states_of_others_are_refused",
    ),
    Mutant(
        "a dense strategy goes on with new numbers for the steps before", GAUSSIAN,
        "stream = next(stream for begin, stream in reversed(self._streams) if begin <= place)",
        "stream = self._streams[-1][1]",
        T_ALONE + "test_a_run_that_goes_on_elsewhere_has_the_covariance_of_one_that_stays",
    ),
    Mutant(
        "two states of one object are released from", PRIVATIZERS,
        "        if state.step < self._released:\n            told = \"one Privatizer",
        "        if False:\n            told = \"one Privatizer",
        T_ALONE + "test_two_states_of_one_privatizer_are_not_both_released_from",
    ),
    Mutant(
        "a saved state changes with the next release", GAUSSIAN,
        "held.clone() for (lane, offset), held", "held for (lane, offset), held",
        T_ALONE + "test_a_saved_state_is_a_copy",
    ),
    Mutant(
        "a key comes back by a third hand", PRIVATIZERS,
        "(*marks, self._mark()))", "(self._mark(),))",
        T_ALONE + "test_a_key_does_not_come_back_by_a_third_hand",
    ),
    Mutant(
        "what rounding leaves of an inverse is not added", SENSITIVITY,
        "* ((1.0 + share) * (1.0 + share))\n", "* 1.0\n",
        T_SENSITIVITY + "test_the_matrix_of_the_noise_is_what_is_bounded_and_not_its_rounding",
    ),
    Mutant(
        "an occurrence counts by itself", STATE,
        "turns.occurrence(step - 1) / _square", "1.0 / _square",
        T_RUNS + "test_what_everybody_spends_is_what_they_move_the_releases_by",
    ),
    Mutant(
        "a row that is released once more costs nothing", REPLAY,
        "        if again:\n            self.expenditure.again", "        if False:\n            self.expenditure.again",
        T_RUNS + "test_two_forks_of_one_checkpoint_pay_for_every_row_that_was_executed",
    ),
    Mutant(
        "who left stands with those who paid less for rows done again", CONTRIBUTIONS,
        "        left = np.fromiter(self.until, dtype=np.int64, count=len(self.until))\n",
        "        left = np.zeros(0, dtype=np.int64)\n",
        "tests/ledger/test_register.py::test_who_left_and_spends_more_changes_the_row_of_those_with_whom_it_left",
    ),
    Mutant(
        "any state of the noise is taken up", STATES,
        "    if hashlib.sha256(data).digest() != digest:", "    if False:",
        T_RUNS + "test_another_state_of_the_noise_is_refused_before_anything_is_charged",
    ),
    Mutant(
        "a resumed run begins its noise anew", PREPARED,
        "begin_noise(streams.noise, saved)", "begin_noise(streams.noise, None)",
        T_RUNS + "test_a_resumed_run_goes_on_with_the_noise_that_it_had_and_pays_for_rows_done_again",
    ),
    Mutant(
        "a header says of its turns what it likes", HEADER,
        "        if self.turns != expected:", "        if len(self.turns) != len(expected):",
        T_RUNS + "test_a_header_says_what_policy_and_strategy_give",
    ),
    Mutant(
        "coefficients are taken whatever the policy has the digest of", MECHANISM,
        "        if found != self.digest:", "        if False:",
        T_SIGNED + "test_coefficients_are_those_of_the_digest_or_said_to_be_missing",
    ),
    Mutant(
        "leaves are judged before the coefficients are there", REPLAY,
        "        if len(self._coefficients) < self._awaited and not isinstance(leaf, Coefficients):", "        if False:",
        T_FILES + "test_leaves_are_judged_once_the_coefficients_are_there_in_parts_of_their_size",
    ),
    Mutant(
        "a leaf has as many coefficients as it likes", REPLAY,
        "        if len(leaf.data) != wanted:", "        if not wanted:",
        T_FILES + "test_leaves_are_judged_once_the_coefficients_are_there_in_parts_of_their_size",
    ),
    Mutant(
        "an inverse that is known badly makes noise", GAUSSIAN,
        "    if isinstance(strategy, Dense) and not strategy.known_slack(steps) <= strategy.slack(steps):", "    if False:",
        T_SIGNED + "test_who_makes_noise_knows_the_inverse_as_well_as_readers_count_on",
    ),
    Mutant(
        "what the inverse of a dense strategy lacks costs nothing", SIGNED,
        "SHARE: Final = 2.0**-20", "SHARE: Final = 0.0",
        T_SIGNED + "test_who_makes_noise_knows_the_inverse_as_well_as_readers_count_on",
    ),
    Mutant(
        "a resumed dense run has the keys of this attempt alone", GAUSSIAN,
        "            for begin, attempt, master in sorted(keys)", "            for begin, attempt, master in sorted(keys)[1:]",
        T_RUNS + "test_a_resumed_run_goes_on_with_the_noise_that_it_had_and_pays_for_rows_done_again",
    ),
    Mutant(
        "rows that were released again show no draw before them", STATE,
        "        more = bool(self.memory) and", "        more = False and",
        T_SECRET + "test_no_draw_shows_in_more_copies_than_are_counted",
    ),
    Mutant(
        "a draw has one copy more however often its rows were released again", STATE,
        "self._more[step] = self._more.get(step, 0) + 1", "self._more[step] = 1",
        T_SECRET + "test_no_draw_shows_in_more_copies_than_are_counted",
    ),
    Mutant(
        "strategies of more bands than there are groups are taken", COSTS,
        "                if bands is None or bands > groups:", "                if bands is None:",
        T_SECRET + "test_what_is_not_proved_is_refused_by_name",
    ),
    Mutant(
        "a contribution pays for the steps of the group that had least", STATE,
        "        return tuple(max(held[begin", "        return tuple(min(held[begin",
        T_SECRET + "test_a_contribution_pays_for_the_draws_of_its_group",
    ),
    Mutant(
        "a step draws from all groups", SAMPLING,
        "        return slots[group_of[slots] == (step - 1) % groups]", "        return slots",
        T_SECRET + "test_a_step_draws_from_its_group_alone_each_by_itself_at_the_rate",
    ),
)  # fmt: skip
