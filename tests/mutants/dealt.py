"""Mutants of what keeps values that are dealt out over rows with the rows that they belong to."""

from tests.mutants.mutant import Mutant

DEALT = "dptrain/sandbox/dealt.py"
INDICES = "dptrain/sandbox/indices.py"
COMPILED = "dptrain/routing/compiled.py"
INTERCEPTION = "dptrain/sandbox/interception.py"

T_DEALT = "tests/sandbox/test_dealt_sources.py::"
_REFUSED = T_DEALT + "test_values_that_a_mask_deals_out_over_rows_are_refused_by_the_probes"
_SHARES = T_DEALT + "test_a_row_that_asks_for_another_share_moves_nobodys"
_VERDICT = "return None if any(mask == other or self._akin(mask, other) for mask in marked for other in by) else _WRITTEN"
_UNEQUAL = "    bad = (wanted.sum(1) != share) | (rest > 0)\n"

DEALT_OUT = (
    Mutant("a target that is one row for all is spread", INDICES,
           "if not func._schema.is_mutable:  # torch", "if False:  # torch", _SHARES),
    Mutant("a source longer than all rows is nobody's", INDICES, _UNEQUAL,
           f"    if share > wanted.shape[1]:\n        return None\n{_UNEQUAL}",
           T_DEALT + "test_a_source_longer_than_all_rows_is_nobodys"),
    Mutant("values that a mask deals out are refused", DEALT, _VERDICT, "return None", _REFUSED),
    Mutant("what another mask picked does not fit", DEALT, _VERDICT,
           "return None if by else _WRITTEN", _REFUSED),
    Mutant("what the same mask picked fits", DEALT, _VERDICT, "return _WRITTEN",
           T_DEALT + "test_values_that_go_back_to_their_own_rows_are_written"),
    Mutant("what is selected was picked", DEALT, "[args[1]] if func is _aten.masked_select.default else []", "[]", _REFUSED),
    Mutant("places of a mask are such as the mask", DEALT, "[args[0]] if func is _aten.nonzero.default else", "", _REFUSED),
    Mutant("a list of the same places is such as the mask", DEALT, "mask == other or self._akin(mask, other)",
           "mask == other", T_DEALT + "test_values_that_go_back_to_their_own_rows_are_written"),
    Mutant("a list of as many places in all is another", DEALT, " and marks == others", "",
           _REFUSED),
    Mutant("a mask that is made of nothing in common is another", DEALT,
           "(other in of_one or one in of_other) and", "", _REFUSED),
    Mutant("a mask that was written to is another", DEALT, "mask._version", "0",
           T_DEALT + "test_a_mask_that_was_written_to_is_another"),
    Mutant("values that were picked have no equal shares", DEALT,
           "                return _SCATTERED\n", "                pass\n", _REFUSED),
    Mutant("equal shares are those of dimension 0", DEALT,
           "shape[:1] == (rows,) else _ELSEWHERE", "True else _ELSEWHERE", _REFUSED),
    Mutant("a mask that no probe saw is refused", DEALT,
           "rows > 1 and place[0] not in self._own and", "False and",
           T_DEALT + "test_a_write_by_a_mask_that_no_probe_saw_is_refused"),
    Mutant("a row alone may be written in any order", DEALT, "return any(room not in rooms for rooms in others)", "return True",
           T_DEALT + "test_values_that_go_back_to_their_own_rows_are_written"),
    Mutant("a row of a table beside the right one is no rounding", COMPILED, "elif not b.is_floating_point():", "elif False:",
           "tests/routing/test_compiled.py::test_a_row_of_a_table_beside_the_right_one_is_no_rounding"),
    Mutant("the way back of a read is no write of the model's", INTERCEPTION,
           "if torch._C._current_graph_task_id() != -1:\n            return  # on", "if False:\n            return  # on",
           T_DEALT + "test_the_way_back_of_a_read_is_not_taken_for_a_write"),
)  # fmt: skip
