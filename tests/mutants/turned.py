"""Mutants of layers that hold time, or anything else, before the examples."""

from tests.mutants.mutant import Mutant

DIMENSIONS = "dptrain/gradients/dimensions.py"
REGISTRY = "dptrain/gradients/registry.py"
GENERIC = "dptrain/gradients/generic.py"
ROUTER = "dptrain/routing/router.py"
WHOLE = "dptrain/gradients/whole_modules.py"

T = "tests/guarantees/test_time_first.py::"

_OWN = T + "test_every_contribution_is_clipped_by_its_own_gradient"
_ONE = T + "test_one_number_of_rows_shows_no_other_dimension"
_FITS = T + "test_what_does_not_fit_alone_is_not_found"
_STAYS = T + "test_what_was_used_is_no_other_from_then_on"
_MOVES = T + "test_a_layer_that_moves_examples_with_the_length_is_refused"
_PLACES = T + "test_positions_of_all_rows_are_taken_for_no_time"

TURNED = (
    Mutant("examples lie elsewhere only where two numbers of rows show it", DIMENSIONS, "shown = len(self._counts) > 1 or",
           "shown = True or", _ONE),
    Mutant("one row alone is shown by one number", DIMENSIONS, " or self._counts == {1}", "", _ONE),
    Mutant("examples lie elsewhere only where nothing else fits", DIMENSIONS, "if shown and len(self._fits) == 1 else None",
           "if shown else None", _FITS),
    Mutant("examples lie where every call had them", DIMENSIONS, "fits if self._fits is None else self._fits & fits", "fits",
           _FITS),
    Mutant("a dimension that was used is no other", DIMENSIONS, "        if self.fixed:\n            self.lost",
           "        if False:\n            self.lost", _STAYS),
    Mutant("what a proof used is used from then on", ROUTER, "            self._fix()\n        elif rows == 1",
           "            pass\n        elif rows == 1", T + "test_where_two_dimensions_fitted_the_one_that_was_used_stays"),
    Mutant("a layer whose examples moved is refused", DIMENSIONS, "return not self.lost and not (", "return not (", _MOVES),
    Mutant("a layer whose examples lie nowhere is refused", ROUTER, "if not (rule.open and (", "if not ((", _MOVES),
    Mutant("one position is not one row for all", ROUTER, "(rule.enters != 0 or self._doubts(rule, shape[1], rows))",
           "self._doubts(rule, shape[1], rows)", _OWN),
    Mutant("while it is learnt, one position may be one row for all", ROUTER,
           "            self._doubted.append(rule)\n            return True\n", "            return False\n", _OWN),
    Mutant("what speaks against one position is heard", ROUTER, "if length == rows and rule.given.may_be(1):",
           "if length == rows:", _PLACES),
    Mutant("what was taken for one position is forgotten", ROUTER, "            rule.forget()\n", "", _PLACES),
    Mutant("what was taken for one position is learnt again", "dptrain/engine/start.py", "if self._router.mistaken():",
           "if False:", T + "test_what_such_positions_draw_is_learnt_with_a_row_for_each"),
    Mutant("a formula sees the examples first", REGISTRY, "        if dim:\n            call, grad = call.turned(dim)",
           "        if False:\n            call, grad = call.turned(dim)", _OWN),
    Mutant("what runs again has the rows of every input where they are", GENERIC, "            return seen.where\n",
           "            return 0\n", _OWN),
    Mutant("what runs again is turned as a whole", GENERIC, "turned = self.anywhere and bool(",
           "turned = False and bool(", _OWN),
    Mutant("one position that comes out is not one row for all", GENERIC, "        if self.dimension(output):\n",
           "        if False:\n", T + "test_one_position_that_comes_out_is_not_one_row_for_all"),
    Mutant("attention of torch's may hold time first", "dptrain/gradients/attention.py",
           "self.first = 0 if module.batch_first else 1", "self.first = 0", _OWN),
    Mutant("the gradient of attention is turned with its inputs", "dptrain/gradients/attention.py",
           "            grad = grad.transpose(0, 1)\n", "", _OWN),
    Mutant("a recurrence of torch's may hold time first", WHOLE, "self.first = 0 if module.batch_first else 1",
           "self.first = 0", _OWN),
    Mutant("a stream of queries has a gradient", WHOLE, 'if given.get("target_mapping") is not None:', "if False:",
           T + "test_families_that_hold_time_first_train_exactly"),
)  # fmt: skip
