"""Mutants of the geometry of pairs: what is clipped, what is left of the noise, who moves, and what ranks share."""

from tests.mutants.mutant import Mutant

CHARTS = "dptrain/geometry/charts.py"
PAIR = "dptrain/geometry/lora_tangent.py"
RELEASE = "dptrain/engine/release.py"
OPTIMIZERS = "dptrain/geometry/optimizers.py"
REFUSALS = "dptrain/engine/refusals.py"
TOGETHER = "dptrain/parallel/together.py"
SUMS = "dptrain/clipping/fast.py"

T_RUNS = "tests/geometry/test_in_runs.py::"
T_SUM = T_RUNS + "test_the_sum_is_that_of_projected_contributions_clipped_once_over_pairs_and_the_rest"
T_RANKS = "tests/geometry/test_on_ranks.py::"
T_PLAIN = T_RUNS + "test_a_pair_that_has_lost_rank_takes_a_plain_step_and_one_with_a_factor_of_zero_does_not"
AROUND = "tests/geometry/test_around_the_optimizer.py::"
T_REFUSED = T_RUNS + "TestRefusals::"

TANGENTS = (
    Mutant("gradients of A are brought to an orthonormal frame", CHARTS, "Dense(g @ frames.PB.to(g))", "Dense(g)", T_SUM),
    Mutant("gradients of B lose what those of A carry", CHARTS, "Dense(g - (g @ V) @ V.mT)", "Dense(g)", T_SUM),
    Mutant("norms are those of coordinates", SUMS, "pieces = self._charts.of(pieces)", "pass", T_SUM),
    Mutant(
        "only the projected tangent leaves the release", CHARTS, "X, Y = space.project(X, Y)", "pass",
        T_RUNS + "test_noise_has_the_energy_of_the_tangent_space",
    ),
    Mutant("a pair that lost rank takes plain steps", CHARTS, "if not lost]", "]", T_PLAIN),
    Mutant("a factor of zero has not lost it", PAIR, "(rank > 0) & (rank < min", "(rank < min", T_PLAIN),
    Mutant(
        "so do pairs that nothing noises", CHARTS, "            if pair.noised:\n", "            if True:\n",
        T_RUNS + "test_a_run_of_public_classes_alone_takes_plain_steps",
    ),
    Mutant(
        "other optimizers of a pair are refused", REFUSALS, "        if wanted:\n            raise NotPrivateUse(",
        "        if False:\n            raise NotPrivateUse(", T_REFUSED + "test_an_optimizer_of_torch_alone",
    ),
    Mutant(
        "a direction is the one that was released", RELEASE, "if moved or any(parameter.grad", "if any(parameter.grad",
        T_REFUSED + "test_a_direction_that_was_replaced",
    ),
    Mutant(
        "directions are watched", RELEASE, "*(local(grad) for _, grad in self._released), *moved]",
        "*(local(grad) for _, grad in self._released)]", T_RUNS + "test_a_direction_that_was_changed_weakens_statement_a",
    ),
    Mutant(
        "the optimizer hears that noise was scaled", RELEASE, "self._stds_told[place] * float(factor)",
        "self._stds_told[place]",
        T_RUNS + "test_blocks_are_clipped_over_directions_and_the_noise_that_the_optimizer_knows_with_them",
    ),
    Mutant(
        "step hooks of the other optimizer are refused", OPTIMIZERS, "if self.others._optimizer_step_pre_hooks or",
        "if False and",
        AROUND + "test_step_hooks_of_the_other_optimizer_are_refused",
    ),
    Mutant(
        "it is stepped without hooks", OPTIMIZERS, 'getattr(step_of, "__wrapped__", step_of)(self.others)',
        "self.others.step()",
        AROUND + "test_hooks_of_all_optimizers_do_not_reach_the_other_one",
    ),
    Mutant(
        "an optimizer is judged at every step", RELEASE, "reason = weakness(optimizer, optimizer)", "reason = HELD",
        AROUND + "test_an_optimizer_that_is_changed_behind_prepare_is_judged_again",
    ),
    Mutant(
        "no pair holds a direction that was not released", RELEASE, "direction is not expected.get(place) for", "False for",
        AROUND + "test_a_direction_for_a_pair_that_no_class_may_touch_is_refused_and_an_earlier_one_forgotten",
    ),
    Mutant(
        "frames are those of the first rank", TOGETHER, "charts.read(self.ranks.first(charts.written))", "charts.computed()",
        T_RANKS + "test_two_processes_release_what_one_does_and_hold_the_same_bits",
    ),
    Mutant(
        "of the same factors", TOGETHER, 'self.ranks.agree({"the factors of the adapters": charts.digest()})', "pass",
        T_RANKS + "test_processes_whose_factors_have_drifted_apart_are_refused",
    ),
)
