"""Mutants of the way from a gradient to its clipped and noised sum: what rounds, what is certified, what is released."""

from tests.mutants.mutant import Mutant

FORMS = "dptrain/gradients/forms.py"
CERTIFIED = "dptrain/clipping/certified.py"
FOLDING = "dptrain/routing/accumulate.py"
RULES = "dptrain/gradients/rules.py"
RULE_CHECK = "dptrain/gradients/rule_check.py"
RELEASE = "dptrain/engine/release.py"
LATTICE = "dptrain/noise/lattice.py"
REGISTRY = "dptrain/gradients/registry.py"
MATMUL = "dptrain/gradients/matmul.py"
ROUTER = "dptrain/routing/router.py"

T_BOUND = "tests/guarantees/test_clip_bound.py::"
T_EQUAL = T_BOUND + "test_equal_entries_of_a_wide_input_do_not_drift_below_the_norm"
T_POISON = "tests/guarantees/test_poisoned_rows.py::"
T_ROWS = T_BOUND + "test_equal_rows_do_not_drift_from_their_sum_by_a_quarter_of_the_margin"

T_RULES = "tests/guarantees/test_gradient_rules.py::"
T_LOST = "tests/test_extending.py::test_a_sum_that_its_mechanism_did_not_write_or_return_reaches_no_gradient"
T_LIMITS = "tests/guarantees/test_certificate_refusals.py::"

CLIPPED = (
    Mutant(
        "the norm of a position is added up in runs", FORMS, "_sum_sq(value_NTW).sqrt_()",
        "torch.linalg.vector_norm(value_NTW, dim=2).double()", T_EQUAL,
    ),
    Mutant(
        "runs of a Gram product are added up apart", MATMUL,
        "total.add_(found)  # baddbmm", "total.baddbmm_(x, y.mT)  # baddbmm", T_EQUAL,
    ),
    Mutant(
        "rows of factors are added up in runs", MATMUL,
        "zip(*(x.split(ROWS) for x in factors), strict=True)", "(factors,)", T_ROWS,
    ),
    Mutant(
        "so are gradients of contributions", FORMS,
        "zip(flat.split(matmul.ROWS), weight_N.to(flat.dtype).split(matmul.ROWS), strict=True)",
        "((flat, weight_N.to(flat.dtype)),)", T_ROWS,
    ),
    Mutant(
        "the sum over pairs of positions rounds", FORMS, "(t + others) ** 2 * 2.0**-53", "0.0",
        T_BOUND + "test_the_sum_over_pairs_of_positions_has_its_rounding_in_the_bound",
    ),
    Mutant(
        "and so do pairs with the rows of a table", FORMS, "wider, table.b_NTD.shape[1])", "wider)",
        T_BOUND + "test_the_sum_over_pairs_of_positions_has_its_rounding_in_the_bound",
    ),
    Mutant(
        "a rule's forms are at least of the type that the margin goes by", REGISTRY, "widened(form, least)", "form",
        T_RULES + "test_a_rule_that_rounds_to_float32_keeps_the_bounds_of_a_model_in_float64",
    ),
    Mutant("a mechanism returns the sum that it was given", RELEASE, "if found is not total or (", "if (", T_LOST),
    Mutant("and has written it", RELEASE, "total.numel() and total._version == before", "False", T_LOST),
    Mutant("nothing of the step is left in p.grad then", RELEASE, "                    self.clear()\n", "", T_LOST),
    Mutant(
        "what numpy writes counts as written", LATTICE, "torch.autograd.graph.increment_version(clipped_sum)", "pass",
        "tests/test_extending.py::test_noise_that_numpy_adds_in_place_is_seen_as_written",
    ),
    Mutant(
        "a contribution of no positions stops no run", MATMUL, "elements // max(1, t * t)", "elements // (t * t)",
        T_RULES + "test_a_contribution_of_no_positions_adds_nothing",
    ),
    Mutant(
        "positions of a normalisation of channels are counted", RULES, "math.prod(grad.shape[1:]) // channels",
        "math.prod(grad.shape[2:])", T_RULES + "test_every_own_rule_is_held_by_the_check_that_users_have[batch norm, frozen]",
    ),
    Mutant(
        "a rule is held to samples of no positions", RULE_CHECK, "        if none.differentiable():\n", "        if False:\n",
        T_RULES + "test_a_rule_that_needs_a_position_is_found",
    ),
    Mutant(
        "a certificate is for the multiplier that was signed, where its double is less", CERTIFIED,
        "max(Fraction(bounds.sigma_micro, MICRO), Fraction(bounds.noise_multiplier))", "Fraction(bounds.noise_multiplier)",
        T_LIMITS + "test_where_the_double_of_a_multiplier_is_the_smaller_its_decimal_bounds_it",
    ),
    Mutant(
        "and for its double, where that is more", CERTIFIED,
        "max(Fraction(bounds.sigma_micro, MICRO), Fraction(bounds.noise_multiplier))", "Fraction(bounds.sigma_micro, MICRO)",
        T_LIMITS + "test_the_stricter_of_a_decimal_and_its_double_bounds_the_multiplier",
    ),
    Mutant(
        "and for the double that is accounted", CERTIFIED, " * (1 + Fraction(1, 1 << 52))", "",
        T_LIMITS + "test_a_multiplier_that_is_accounted_a_little_above_the_exact_one_bounds_it",
    ),
    Mutant(
        "rows of others are replaced where a module runs again", ROUTER,
        "check_poisoned(site.rule, call, grad, below=kept.below)", "pass",
        T_POISON + "test_what_rows_share_inside_a_module_that_runs_again_is_refused_however_small",
    ),
    Mutant(
        "by numbers of both signs", "dptrain/gradients/poison.py", "poisoned(1.0), one.poisoned(-1.0)", "poisoned(-1.0),",
        T_POISON + "test_what_rows_share_inside_a_module_that_runs_again_is_refused_however_small",
    ),
    Mutant(
        "and rounding is measured by gradients", "dptrain/routing/sites.py", "return min(bound, float(piece",
        "return max(bound, float(piece",
        T_POISON + "test_a_large_input_hides_no_gradient_that_follows_from_the_batch",
    ),
    Mutant(
        "who raises in one part counts as zero in all", FOLDING, "self._spread.spoil()", "pass",
        "tests/engine/test_spread_contributions.py::test_a_part_that_raises_makes_the_whole_contribution_count_as_zero",
    ),
)  # fmt: skip
