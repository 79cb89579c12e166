"""Mutants of tables that a forward reads once for all rows, and of masks of SpecAugment."""

from tests.mutants.mutant import Mutant

LISTS = "dptrain/gradients/shared_tables.py"
GENERIC = "dptrain/gradients/generic.py"
ROUTER = "dptrain/routing/router.py"
SPECTRUM = "dptrain/sandbox/library/spectrum.py"
KNOWN = "dptrain/sandbox/library/known.py"
STATES = "dptrain/sandbox/library/states.py"
WRITES = "dptrain/sandbox/writes.py"
COUPLINGS = "dptrain/routing/couplings.py"

T = "tests/guarantees/test_shared_tables.py::"
T_MASKS = "tests/sandbox/test_spectrum.py::"

_EXACT = T + "test_listed_classes_train_exactly_through_the_start_of_a_run"
_SAME = T + "test_a_forward_gives_the_same_numbers_whether_a_microbatch_is_armed_or_not"
_METHOD = T + "test_a_listed_method_is_that_of_the_start_in_every_microbatch"
_BESIDE = T + "test_what_is_called_beside_a_listed_method_is_refused_only_where_a_gradient_would_be_lost"
T_STATES = "tests/sandbox/test_states.py::"
_NEXT = T_STATES + "test_no_microbatch_reaches_the_next_and_no_forward_before_a_microbatch"
_BOUND = T + "test_a_weight_that_its_forward_clips_is_compared_with_the_bound_before_every_step"
_CLIP = T + "test_a_clip_that_changes_nothing_is_no_write_and_any_other_write_of_the_weight_is"
_LIKE = T_MASKS + "test_masks_are_distributed_as_the_librarys"
_FRAMES = T_MASKS + "test_a_rows_mask_lies_on_its_own_frames_whatever_padding_is_around"
_WIDTH = T_MASKS + "test_without_an_attention_mask_only_the_width_of_the_probes_is_taken"
_SAYS = T_MASKS + "test_a_way_to_draw_that_says_it_is_the_librarys_is_left_as_it_is"
_ALONE = T_MASKS + "test_a_row_has_the_same_mask_whoever_else_is_there"

TABLES = (
    Mutant("lists serve classes of transformers alone", LISTS, ' and kind.__module__.startswith("transformers.") else None',
           " else None", T + "test_a_class_of_ones_own_is_served_by_no_list"),
    Mutant("a method of a user's own is no site", LISTS, "return method not in vars(module) or", "return True or",
           T + "test_a_method_that_a_user_put_on_a_module_is_served_by_no_list"),
    Mutant("a module tells which rows it takes", LISTS, "call.kwargs))[0].long()", "call.kwargs))[0].long().mul(0)", _EXACT),
    Mutant("a tensor that is repeated has the gradient of every example", LISTS,
           "unflatten(0, (call.contributions, call.examples)).sum(1))}",
           "unflatten(0, (call.contributions, call.examples))[:, 0])}", _EXACT),
    Mutant("what is spread is nobody else's", LISTS, "return value.clone() if isinstance(value, torch.Tensor) else None",
           "return None", T + "test_what_is_spread_over_the_rows_may_be_written"),
    Mutant("a module that ran again has its own tensors", GENERIC, "dict({place_of(self.module, key): (key, value)",
           "dict({key: (key, value)", T + "test_a_module_that_ran_again_holds_the_parameters_that_it_held"),
    Mutant("layers that are one module come back as they were", GENERIC, "dict({place_of(self.module, key): (key, value)",
           "dict({(key,): (key, value)", T + "test_layers_that_are_one_module_train_exactly_and_stay_the_models_own"),
    Mutant("a layer runs again with the table of its encoder", LISTS, "{**kwargs, GIVEN: lent}", "{**kwargs}", _EXACT),
    Mutant("no method stays on a module", LISTS, "del vars(self.module)[self.method]", "pass", _SAME),
    Mutant("a method of a user's stays on a module", LISTS, "if above is self and self.below is None:",
           "if self.below is None:", T + "test_a_method_put_on_a_module_in_a_run_is_refused_and_stays_the_users"),
    Mutant("a method is seen in every microbatch", LISTS, "if not seen or getattr(", "if getattr(", _METHOD),
    Mutant("a method is that of its class at the start", LISTS, "is not self._function:", "is None:", _METHOD),
    Mutant("methods are looked at where a microbatch begins", ROUTER, "        self._require_methods()\n        self._taken",
           "        self._taken", _METHOD),
    Mutant("methods are looked at where a backward pass begins", ROUTER,
           "        self._require_methods()\n        self._armed.pieces", "        self._armed.pieces", _METHOD),
    Mutant("a method that lends a table is watched", ROUTER, "for lender, method in lends.values()),",
           "for lender, method in ()),", _METHOD),
    Mutant("a table that is called elsewhere is refused", LISTS, "if any(self._running.get(",
           "if True or any(self._running.get(", T + "test_a_table_that_another_module_comes_to_read_is_refused"),
    Mutant("a call that no gradient is asked of is nobody's", LISTS, "self._armed() or not torch.is_grad_enabled()",
           "self._armed()", _BESIDE),
    Mutant("a copy gives way", LISTS, " or standing_in(module, method) is not None", "",
           T + "test_a_copy_made_in_a_run_can_have_a_run_of_its_own"),
    Mutant("a method that stands below another is seen", LISTS, "if self.below is None else self.below.call\n",
           "if True else None\n", T + "test_runs_that_are_open_at_once_each_find_their_gradients"),
    Mutant("what a method gives back may be written", ROUTER, "if id(value) in given:", "if False:", _EXACT),
    Mutant("code of a module runs in the sandbox", ROUTER, "site.rule.again or site.rule.runs", "site.rule.again",
           T + "test_a_position_out_of_range_counts_as_zero_and_stops_nobody"),
    Mutant("a tensor is taken where it lies", GENERIC, "return id(module.get_submodule(path)), name", "return id(module), key",
           T + "test_what_is_taken_is_taken_under_every_name"),
    Mutant("nothing inside of what runs again is sharded", "dptrain/parallel/together.py", "shards_inside(site.rule.module)",
           "shards_inside(site.module)", T + "test_a_layer_that_runs_again_with_its_encoder_wants_all_of_that_at_one_place"),
    Mutant("a tensor of a method is no site of the module", ROUTER,
           " and not (taken and place_of(module, key) in taken)", "", _EXACT),
    Mutant("what is made of a table is spread over the rows", LISTS,
           "value.expand(*value.shape[:at], rows, *value.shape[at + 1 :]).clone()", "value.clone()", _EXACT),
    Mutant("the gradient of a contribution is that of its examples", LISTS, "sum(at + 1, keepdim=True).to(made.dtype)",
           "narrow(at + 1, 0, 1).to(made.dtype)", _EXACT),
    Mutant("what is spread is so in every microbatch", ROUTER, "if not (wanted or (site.rule.common and",
           "if not (wanted or (False and",
           T + "test_what_is_made_of_a_table_comes_with_as_many_rows_where_nobody_trains_it"),
    Mutant("a stream has the row before its own", LISTS, "table.roll(1, 0)])", "table])", _EXACT),
    Mutant("a bias that is returned has the gradient of every example", LISTS,
           '{"dense_bias": Dense(call.positions(grad, 1).sum(1))}', '{"dense_bias": Dense(call.positions(grad, 1)[:, 0])}',
           _EXACT),
    Mutant("an attention runs again with the biases of the first", LISTS, "{**kwargs, BIASES: biases.expand",
           "{**kwargs, BIASES: biases.detach().expand", _EXACT),
    Mutant("biases that are handed on have no gradient of their own", LISTS, "elsewhere = frozenset([2])",
           "elsewhere = frozenset()", _EXACT),
    Mutant("a method that makes biases is watched", LISTS, "tensors, taken, lends=(lender, method))\n\n\n# ",
           "tensors, taken)\n\n\n# ", _METHOD),
    Mutant("a method has the example where the list says", LISTS, "self.method, self.first = method, first",
           "self.method, self.first = method, 0", _EXACT),
    Mutant("rows are looked for where the example is", ROUTER, "value.shape[at : at + 1] == ", "value.shape[:1] == ", _EXACT),
    Mutant("a module that one method alone calls is watched", LISTS, "if holder != id(site.module) or site.calls:",
           "if holder != id(site.module):", T + "test_a_scale_that_is_called_beside_its_method_is_refused"),
    Mutant("a weight beyond its clip is refused", COUPLINGS, "        if outside:\n", "        if False:\n", _BOUND),
    Mutant("a weight that is no number is refused", COUPLINGS, "~(local(weight).detach().abs() <= bound).all()",
           "(local(weight).detach().abs() > bound).any()", _BOUND),
    Mutant("a clip has the bounds of its class", WRITES, " and args[1:] == (-bound, bound)", "", _CLIP),
    Mutant("a clip of what no class clips is a write", WRITES, "self._clips.get(storage._cdata)",
           "next(iter(self._clips.values()))", _CLIP),
    Mutant("other writes of a clipped weight are spared", WRITES, "if func is not torch.ops.aten.clamp_.default or kwargs or",
           "if kwargs or", _CLIP),
    Mutant("a recurrence that keeps its state by other code is refused", COUPLINGS, "keeps_state(module) and not knows(module)",
           "False", T_STATES + "test_code_that_was_not_read_is_refused"),
    Mutant("methods of a module's own are other code", STATES, "not any(name in vars(module) for name in read) and all(",
           "all(", T_STATES + "test_code_that_was_not_read_is_refused"),
    Mutant("the code of a recurrence is known", STATES, "is_known(vars(kind).get(name), digest, defaults, library)", "True",
           T_STATES + "test_another_version_of_the_code_is_refused"),
    Mutant("no microbatch begins with a state", STATES, "        self._set([None] * len(self._modules))\n", "",
           T_STATES + "test_a_state_that_is_there_when_a_recurrence_is_called_is_refused"),
    Mutant("no microbatch leaves a state", STATES, "        self._set(self._before)\n        self._before = []\n", "", _NEXT),
    Mutant("a recurrence leaves no state for its next call", STATES, "            setattr(module, STATES[RUNS], None)\n",
           "            pass\n", T_STATES + "test_a_state_that_is_there_when_a_recurrence_is_called_is_refused"),
    Mutant("a recurrence that has a state is refused", STATES, "if self._live and getattr(module, STATES[RUNS]) is not None:",
           "if False:", T_STATES + "test_a_state_that_is_there_when_a_recurrence_is_called_is_refused"),
    Mutant("a copy keeps its states", STATES, 'return {"_live": False}', "return vars(self)",
           T_STATES + "test_a_copy_made_in_a_microbatch_is_a_plain_model"),
    Mutant("a pass that is broken off leaves no state", "dptrain/sandbox/interception.py",
           "        self._states.detach()\n        self._passes.clear()", "        self._passes.clear()",
           T_STATES + "test_an_error_in_a_microbatch_leaves_no_state_of_it"),
    Mutant("the mask of a row is rounded by its own number", SPECTRUM, "+ numbers[:, 0])", "+ numbers[:1, 0])", _ALONE),
    Mutant("the mask of a row follows from its own length", SPECTRUM, "starts = lengths - (span - 1)",
           "starts = lengths.amin() - (span - 1) + 0 * lengths", T_MASKS + "test_masks_follow_from_a_rows_own_length_alone"),
    Mutant("a row has as many spans as fit in it, and not in the microbatch", SPECTRUM, "(lengths // span).double())",
           "torch.full_like(lengths, size // span).double())", _FRAMES),
    Mutant("spans lie on frames of the row", SPECTRUM, "time = time.gather(1, (kept.cumsum(-1) - 1).clamp_min(0)) & kept",
           "pass", _FRAMES),
    Mutant("equal numbers are taken in order", SPECTRUM, ".argsort(dim=-1, stable=True)", ".argsort(-1)",
           T_MASKS + "test_numbers_that_are_equal_are_taken_in_order_of_their_places"),
    Mutant("no error tells how wide a private microbatch is", SPECTRUM, "        if public:\n            _require_room",
           "        if True:\n            _require_room",
           T_MASKS + "test_a_microbatch_too_narrow_for_a_span_masks_nothing_and_goes_on"),
    Mutant("without an attention mask a width is learnt", SPECTRUM, "        if width == seen:\n", "        if True:\n",
           _WIDTH),
    Mutant("a width is learnt in the probes alone", SPECTRUM, "if public else self._widths.get(place)", "", _WIDTH),
    Mutant("a width is learnt for a public length", SPECTRUM, "place = self._modules[module], length",
           "place = self._modules[module], None", _WIDTH),
    Mutant("probes of several widths are refused", "dptrain/sandbox/interception.py",
           "now.rows == 1 and not self.layouts.learnt\n\n    def _ours", "True\n\n    def _ours", _WIDTH),
    Mutant("the number of spans is rounded up or down", SPECTRUM, ").floor().clamp_min(least)", ").ceil().clamp_min(least)",
           _LIKE),
    Mutant("no span begins where it does not end", SPECTRUM, ".masked_fill(place >= starts[:, None], 2.0)", "", _LIKE),
    Mutant("masks stand in for code that is known", KNOWN, "return _digest(source) == digest and any", "return any",
           T_MASKS + "test_code_of_another_version_is_left_as_it_is"),
    Mutant("the way to draw is known too", SPECTRUM, "((METHOD, method), (_DRAWS, library.get(_DRAWS)))\n",
           "((METHOD, method),)\n",
           T_MASKS + "test_another_way_to_draw_is_left_as_it_is"),
    Mutant("code is known by what it compiles to", KNOWN, "any(_parts(made) == _parts(code) for made in same)", "any(same)",
           _SAYS),
    Mutant("defaults are known", KNOWN, "if function.__defaults__ != defaults or function.__kwdefaults__:",
           "if False:", _SAYS),
    Mutant("globals are the library's", KNOWN, " or function.__globals__ is not library:", ":", _SAYS),
    Mutant("source is that of the code", KNOWN, "code = function.__code__", "code = inspect.unwrap(function).__code__",
           _SAYS),
    Mutant("outside a microbatch the library masks", "dptrain/sandbox/interception.py",
           "            if hosts is not None and entered in self._passes:\n                self._spectrum.detach()\n",
           "            if hosts is not None and entered in self._passes:\n",
           T_MASKS + "test_outside_a_microbatch_the_library_draws_and_nothing_stays_on_the_model"),
    Mutant("a pass that was left takes no masks away", "dptrain/sandbox/interception.py",
           "            if hosts is not None and entered in self._passes:\n                self._spectrum.detach()\n",
           "            if outermost:\n                self._spectrum.detach()\n"
           "            if hosts is not None and entered in self._passes:\n",
           T_MASKS + "test_a_pass_that_was_left_and_ends_late_takes_nothing_from_the_pass_under_way"),
    Mutant("a copy is a plain model", SPECTRUM, "            vars(module).setdefault(_COPIES, partial(_reduced, module))\n", "",
           T_MASKS + "test_a_copy_that_is_made_in_a_microbatch_masks_as_the_library_does"),
    Mutant("a trace asks for the form of a view and goes on", "dptrain/sandbox/interception.py",
           "if kind is _ASKED:", "if False:", "tests/sandbox/test_interception.py::"
           "test_questions_for_the_form_of_a_tensor_are_answered_without_a_look_at_its_node"),
    Mutant("a method runs what stands in for it", SPECTRUM, "return standing or getattr(type(module), method)",
           "return getattr(type(module), method)", _EXACT),
)  # fmt: skip
