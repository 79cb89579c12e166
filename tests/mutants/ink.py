"""Mutants of text from references: what a token is drawn from, how, from which rows, and what is paid for it."""

from tests.mutants.mutant import Mutant

FORMULAS = "dptrain/inference/invisibleink/formulas.py"
PLANS = "dptrain/inference/invisibleink/plan.py"
SAMPLER = "dptrain/inference/invisibleink/sampler.py"
TASKS = "dptrain/inference/invisibleink/tasks.py"
BATCHES = "dptrain/inference/invisibleink/partition.py"
ROWS = "dptrain/inference/invisibleink/rows.py"
FORWARD = "dptrain/inference/invisibleink/forward.py"
BUFFERS = "dptrain/inference/invisibleink/decoding/buffers.py"
GRAPH = "dptrain/inference/invisibleink/decoding/graph.py"
ISOLATION = "dptrain/inference/invisibleink/isolation.py"
GENERATOR = "dptrain/inference/invisibleink/generator.py"
PAYING = "dptrain/inference/invisibleink/paying.py"

T_FORMULAS = "tests/inference/test_ink_formulas.py::"
T_SAMPLER = "tests/inference/test_ink_sampler.py::"
T_TASKS = "tests/inference/test_ink_tasks.py::"
T_ROWS = "tests/inference/test_ink_rows.py::"
T_COMPILED = "tests/inference/test_ink_compiled.py::"
T_GENERATOR = "tests/inference/test_ink_generator.py::"

_EXACT = T_FORMULAS + "test_a_step_passes_every_exact_check_and_the_checks_reach_their_bounds"
_DIFFERENCES = "        differences = np.subtract(private, public, dtype=np.float64)\n"
_MEAN = "    return clipped.sum(axis=0) / len(private)\n"
_EDGE = "smallest - 2.0 * clip / batch)"
_TEMPERED = "_mean(private[:, ids], kept, clip)) / tau"

FROM_REFERENCES = (
    Mutant("what may be drawn widens by B, not B + 1", FORMULAS, _EDGE, "smallest - 2.0 * clip / (batch + 1))", _EXACT),
    Mutant(
        "what may be drawn follows from public logits", FORMULAS, "    ids = _expanded(public, k, clip, len(private))\n",
        "    ids = _expanded(public + _mean(private, public, clip), k, clip, len(private))\n", _EXACT,
    ),
    Mutant("differences are clipped, not logits", FORMULAS, _DIFFERENCES,
           "        differences = np.clip(private.astype(np.float64), -clip, clip) - public\n", _EXACT),
    Mutant("clipped differences are averaged, not added", FORMULAS, _MEAN, "    return clipped.sum(axis=0)\n", _EXACT),
    Mutant(
        "differences are clipped before they are averaged", FORMULAS, _DIFFERENCES,
        "        differences = (private.astype(np.float64) - public).mean(0, keepdims=True).repeat(len(private), 0)\n", _EXACT,
    ),
    Mutant("the sum is divided by B", FORMULAS, _MEAN,
           "    return clipped.sum(axis=0) / max(len(private) - 1, 0.5)\n", _EXACT),
    Mutant("the temperature is the accounted one", FORMULAS, _TEMPERED,
           "_mean(private[:, ids], kept, clip)) / (0.6 * tau)", _EXACT),
    Mutant(
        "public logits are those without references", FORMULAS, "    ids = _expanded(public, k, clip, len(private))\n",
        "    public = private.astype(np.float64).mean(0)\n    ids = _expanded(public, k, clip, len(private))\n", _EXACT,
    ),
    Mutant(
        "each coordinate is clipped, not a rescaled norm", FORMULAS,
        "    clipped = np.fmax(np.fmin(differences, clip, out=differences), -clip, out=differences)\n",
        "    lengths = np.linalg.norm(differences, axis=1, keepdims=True)\n"
        "    clipped = differences * np.minimum(1.0, clip * private.shape[1] ** 0.5 / np.maximum(lengths, 1e-300))\n", _EXACT,
    ),
    Mutant(
        "logits that are no numbers move nobody further", FORMULAS,
        "np.fmax(np.fmin(differences, clip, out=differences), -clip, out=differences)",
        "np.clip(differences, -clip, clip)",
        T_FORMULAS + "test_one_reference_moves_no_coordinate_by_more_than_C_over_B_whatever_its_logits",
    ),
    Mutant("no weight is zero", FORMULAS, "np.maximum(moved - moved.max(), -DEEPEST)", "moved - moved.max()",
           T_FORMULAS + "test_no_weight_is_zero_however_deep_a_logit_is"),
    Mutant("ties are kept", FORMULAS, "return np.flatnonzero(public >= smallest", "return np.flatnonzero(public > smallest",
           T_FORMULAS + "test_ties_at_the_k_th_logit_are_kept_and_so_is_what_lies_on_the_edge"),
    Mutant(

        "two references are twice as far apart", FORMULAS, '"replace-one": 2, "retrieval"', '"replace-one": 1, "retrieval"',
        T_FORMULAS + "test_each_adjacency_reaches_its_sensitivity_and_none_exceeds_it",
    ),
    Mutant(
        "logits of zero are no null", FORMULAS, '"zero-logits": 2, ', '"zero-logits": 1, ',
        T_FORMULAS + "test_each_adjacency_reaches_its_sensitivity_and_none_exceeds_it",
    ),
    Mutant(
        "records of one person cost their square", FORMULAS, "2.0 * steps * records * clip",
        "2.0 * steps * records**0.5 * clip",
        T_FORMULAS + "test_rho_is_that_of_theorem_2_and_four_times_that_where_the_sensitivity_doubles",
    ),
    Mutant("a token pays for rounding", FORMULAS, "records=records) + ROUNDING)", "records=records))",
           T_FORMULAS + "test_the_charge_of_a_token_pays_for_what_float64_rounds"),
    Mutant("the factor of the clip norm stands upright", FORMULAS, "batch * tau * math.sqrt(2.0 *",
           "batch * tau / math.sqrt(2.0 *",
           T_FORMULAS + "test_clip_norms_are_the_published_ones"),
    Mutant(

        "charges of a plan fit their cap", PLANS,
        "        clip = min(clip, (math.sqrt(8.0 * each / NANO) - formulas.ROUNDING) / unit)\n"
        "        while clip > 0 and formulas.nano_rho(clip, batch, tau, **how) > each:\n            clip *= 1.0 - 2.0**-40\n",
        "",
        T_FORMULAS + "test_the_charges_of_a_calibrated_plan_fit_a_cap_of_its_epsilon",
    ),
    Mutant("no seed is fixed", SAMPLER, "return int.from_bytes(os.urandom(_BITS // 8))",
           "return random.Random(42).getrandbits(_BITS)",
           T_SAMPLER + "test_fresh_processes_draw_differently_whatever_seeds_are_set"),
    Mutant("a seed is asked for by its name", SAMPLER, "if (seed is not None) is not unsafe_reproducible:", "if False:",
           T_SAMPLER + "test_a_seed_is_refused_unless_it_is_called_unsafe_and_then_there_is_no_privacy"),
    Mutant("a seed says that nothing is private", GENERATOR, "self.plan.sentence if self._sampler.private else NO_PRIVACY",
           "self.plan.sentence", T_GENERATOR + "test_a_seed_says_that_there_is_no_privacy"),
    Mutant("draws follow the weights", SAMPLER, "bisect_right(ends, low - slack), bisect_right(ends, high + slack)",
           "bisect_right(ends, 0.97 * (low - slack)), bisect_right(ends, 0.97 * (high + slack))",
           T_SAMPLER + "test_draws_follow_the_probabilities_at_a_vocabulary_of_2000"),
    Mutant("rounding decides no token", SAMPLER, "if first == last < len(ends):", "if first < len(ends):",
           T_SAMPLER + "test_a_number_that_rounding_could_place_either_way_is_decided_by_whole_numbers"),
    Mutant("a null reference has the public prompt", TASKS, "if _chosen(self.private, null=True) != self.public:", "if False:",
           T_TASKS + "test_a_task_whose_null_reference_is_another_prompt_is_refused_at_load"),
    Mutant("an empty reference is null", TASKS, "text = self.private if reference else self.public",
           "text = self.public if reference is None else self.private",
           T_TASKS + "test_a_null_reference_renders_the_public_prompt_byte_for_byte"),
    Mutant("batches are formed by a salted hash", BATCHES, "hmac.new(salt, one.encode(), hashlib.sha256).digest(), one)",
           "one)",
           T_TASKS + "test_another_salt_makes_other_batches_and_a_guess_at_them_is_no_better_than_chance"),
    Mutant("rows have a public length", ROWS, "        ids = torch.full((len(found), self.length), self._pad)\n",
           "        self.length = 1 + len(self.opening) + max(map(len, found))\n"
           "        ids = torch.full((len(found), self.length), self._pad)\n",
           T_ROWS + "test_every_row_has_one_public_length_and_a_place_of_padding_whatever_the_references"),
    Mutant("every row has a place of padding", ROWS, "self._most = self.length - 1 - len", "self._most = self.length - len",
           T_ROWS + "test_a_reference_that_becomes_longer_in_its_prompt_is_cut_further"),
    Mutant("a reference is cut before it goes into its prompt", ROWS,
           "* self._task.reference_tokens])[: self._task.reference_tokens]",
           "* self._task.reference_tokens])[-self._task.reference_tokens :]",
           T_ROWS + "test_a_long_reference_is_cut_on_its_own_side_and_instructions_stay_whole"),
    Mutant("every logit is compared", FORWARD, "found[0]).max() <= NEAR", "found[0]).max() >= 0 * NEAR",
           T_COMPILED + "test_a_form_is_compared_over_a_whole_text_of_the_longest_row"),
    Mutant("masks that a model does not read are not used", FORWARD,
           'return None if near and _distance(truth[1], found[1]) <= GRAPH_NEAR[not _exact(model)] else "other logits"',
           "return None", T_ROWS + "test_masks_that_are_made_once_give_the_same_logits_and_a_model_that_reads_none_is_told"),
    Mutant("a tokenizer sees a public number of characters", ROWS, "reference[: CHARACTERS * self._task.reference_tokens]",
           "reference", T_ROWS + "test_the_tokenizer_sees_a_public_number_of_characters_of_a_reference"),
    Mutant("no log tells of a reference", ROWS, "add_special_tokens=False, verbose=False)", "add_special_tokens=False)",
           T_ROWS + "test_no_log_and_no_repr_tells_of_a_reference"),
    Mutant("experts are no public shapes", GENERATOR, "        if minibatch != 1:  # a row", "        if False:  # a row",
           T_GENERATOR + "test_what_cannot_be_is_refused_by_name"),
    Mutant("no row of a minibatch is dropped", FORWARD, "range(-(-count // self._size) * self._size)",
           "range(count // self._size * self._size)",
           T_ROWS + "test_no_row_is_dropped_or_exchanged_whatever_the_size_of_minibatches"),
    Mutant("positions count what is no padding", FORWARD, "(mask.cumsum(1) - 1).clamp(min=0)", "mask.cumsum(1) * 0",
           T_ROWS + "test_a_cache_gives_what_the_whole_text_at_once_gives"),
    Mutant("every text has buffers of its own", BUFFERS, "layers[number] = Kept(layers[number], room)",
           'layers[number] = globals().setdefault(f"{number} of {room}", Kept(layers[number], room))',
           T_COMPILED + "test_no_text_sees_keys_and_values_of_another_in_turn_or_at_once"),
    Mutant("buffers are new", BUFFERS, "    long = short.new_zeros((*short.shape[:2], room, short.shape[3]))\n",
           "    long = short.new_zeros((*short.shape[:2], room, short.shape[3]))\n"
           '    long = globals().setdefault(f"{name} {short.shape}", long)\n',
           T_COMPILED + "test_no_text_sees_keys_and_values_of_another_in_turn_or_at_once"),
    Mutant("places ahead are closed", FORWARD, "    closed[..., length:] = torch", "    closed[..., mask.shape[-1] :] = torch",
           T_COMPILED + "test_a_compiled_step_gives_the_logits_of_the_plain_form_whatever_the_size_of_minibatches"),
    Mutant("rows are tested in the form that serves", ISOLATION, "Forward(model, rows, room, minibatch, served)",
           "Forward(model, rows, room, minibatch)",
           T_COMPILED + "test_a_compiler_that_couples_rows_is_refused_though_the_model_keeps_them_apart"),
    Mutant("and in the graph that serves", GENERATOR, "form=self._form(length),", "form=None,",
           T_COMPILED + "test_one_graph_is_made_for_a_public_shape_and_no_text_or_test_makes_another"),
    Mutant("a text runs in the form that was tested", GENERATOR, "max(2, ink.plan.tokens), ink.minibatch, form)",
           "max(2, ink.plan.tokens), ink.minibatch)",
           T_COMPILED + "test_one_graph_is_made_for_a_public_shape_and_no_text_or_test_makes_another"),
    Mutant("a step that computes something else is refused", FORWARD, "    if far > GRAPH_NEAR[not _exact(model)]:",
           "    if False:",
           T_COMPILED + "test_a_step_that_gives_other_logits_is_refused_early_and_late"),
    Mutant("and over a whole text", FORWARD, "truth[1], _columns(_tokens(model, rows, steps, minibatch, found)))",
           "truth[1][:3], _columns(_tokens(model, rows, min(3, steps), minibatch, found)))",
           T_COMPILED + "test_a_step_that_gives_other_logits_is_refused_early_and_late"),
    Mutant("and in the longest rows", FORWARD, "    rows, why = _of_all_lengths(rows), dict", "    rows, why = rows, dict",
           T_COMPILED + "test_a_step_that_gives_other_logits_in_long_rows_alone_is_refused"),
    Mutant("every form is compared over a whole text", FORWARD, "if near and _distance(", "if near or _distance(",
           T_COMPILED + "test_a_form_is_compared_over_a_whole_text_of_the_longest_row"),
    Mutant("a graph of other tensors makes no text", GENERATOR, "stale = self._form(length) is None",
           "stale = False",
           T_COMPILED + "test_where_a_tensor_of_the_model_was_exchanged_the_step_is_made_and_tested_anew"),
    Mutant("and is not tested again", GENERATOR, "form=self._form(length),", "form=self._forms.get(length),",
           T_COMPILED + "test_where_a_tensor_of_the_model_was_exchanged_the_step_is_made_and_tested_anew"),
    Mutant("a graph that is of other tensors at once serves nobody", GENERATOR,
           "if form.graph is not None and not form.graph.is_of(self.model):",
           "if form.graph is not None and not form.graph.is_of(self.model) and length in self._forms:",
           T_COMPILED + "test_a_model_that_exchanges_tensors_while_it_runs_is_refused_and_not_made_anew_for_ever"),
    Mutant("a tensor is known by where it lies", GRAPH, "return tensor.data_ptr(), tensor.device,", "return tensor.device,",
           T_COMPILED + "test_where_a_tensor_of_the_model_was_exchanged_the_step_is_made_and_tested_anew"),
    Mutant("what has no compiled form is refused, and served in no other", FORWARD,
           "    if not compile:\n        return form\n",
           "    if not compile or why is not None:\n        return form\n",
           T_COMPILED + "test_what_has_no_compiled_form_is_refused_by_name_and_generates_nothing"),
    Mutant("a model keeps its tensors while its step is traced", GRAPH,
           "copy.deepcopy(model, {id(tensor): tensor for _, tensor in tensors})", "model",
           T_COMPILED + "test_a_model_is_used_by_others_while_its_step_is_traced"),
    Mutant("every row is changed in the test of rows", ISOLATION, "for place in range(1, batch + 1):\n        for kept",
           "for place in range(1, 1):\n        for kept", T_ROWS + "test_a_model_that_couples_rows_is_refused"),
    Mutant("rows are tested over a whole text", ISOLATION, "tokens if place in whole and kept == length - 1 else SHALLOW",
           "SHALLOW", T_ROWS + "test_a_model_that_couples_rows_is_refused"),
    Mutant("so is the last row of each call", ISOLATION, " | {min(batch, start + size - 1) for start in starts} - {0}", "",
           T_ROWS + "test_rows_that_move_others_late_are_found_at_both_ends_of_every_call"),
    Mutant("and the first", ISOLATION, "{max(1, start) for start in starts} | ", "{1} | ",
           T_ROWS + "test_rows_that_move_others_late_are_found_at_both_ends_of_every_call"),
    Mutant("experts are found within", GENERATOR, " or any(map(_has_experts, fields.values()))", "",
           T_GENERATOR + "test_experts_are_refused_wherever_the_configuration_names_them"),
    Mutant("a changed row can be the longest", ISOLATION, "{1, int(base.mask[place].sum()), length - 1}",
           "{int(base.mask[place].sum())}", T_ROWS + "test_a_model_that_couples_rows_is_refused"),
    Mutant("a row can be the longest among short ones", ISOLATION,
           "    compare(short, seen(short, tokens), 1, length - 1, tokens,", "    (short, tokens,",
           T_ROWS + "test_positions_that_follow_from_the_longest_row_are_found_wherever_they_change"),
    Mutant("and among short ones over a whole text", ISOLATION, '1, length - 1, tokens, " among',
           '1, length - 1, SHALLOW, " among',
           T_ROWS + "test_a_model_that_couples_rows_is_refused"),
    Mutant("a row can be the shortest among long ones", ISOLATION,
           "    compare(long, seen(long, SHALLOW), 1, 1, SHALLOW,", "    (long,",
           T_ROWS + "test_a_model_that_couples_rows_is_refused"),
    Mutant("positions follow from no other row", GENERATOR, "if kind in _BY_LENGTH and not alone:", "if False:",
           T_GENERATOR + "test_positions_that_a_call_chooses_by_its_longest_row_are_refused_by_name"),
    Mutant("nor from an earlier call", GENERATOR, 'if "dynamic" in kind:', 'if "dynamic" in kind and not alone:',
           T_GENERATOR + "test_positions_that_a_call_chooses_by_its_longest_row_are_refused_by_name"),
    Mutant("rows are tested before a text", GENERATOR, "                self._check_length(length)\n",
           "                self._since[length], self._forms[length] = 0, Form()\n",
           T_GENERATOR + "test_a_model_that_couples_rows_generates_nothing_and_nothing_is_spent"),
    Mutant("rows are tested now and then", GENERATOR, "self._since[length] += 1", "self._since[length] += 0",
           T_GENERATOR + "test_rows_are_tested_before_the_first_text_and_now_and_then_after"),
    Mutant("a test of rows holds up its own length alone", GENERATOR,
           "        if self._counted(length):\n            return\n        with self._checking:\n",
           "        with self._checking:\n",
           T_GENERATOR + "test_a_text_of_a_length_that_was_tested_waits_for_no_test_of_another"),
    Mutant("T tokens are paid for", PAYING, "meter.reserve(plan.tokens,", "meter.reserve(1,",
           T_GENERATOR + "test_all_tokens_are_paid_before_the_first_forward_pass_and_a_refused_text_makes_none"),
    Mutant("what is computed never comes back", GENERATOR, "self._meter.settle(self.receipt, self.computed)",
           "self._meter.settle(self.receipt, max(0, self.computed - 1))",
           T_GENERATOR + "test_a_text_that_ends_gives_back_what_was_never_computed_and_one_that_fails_nothing"),
    Mutant("a text that failed gives nothing back", GENERATOR, "if self.finish is None and not self._failed and",
           "if self.finish is None and",
           T_GENERATOR + "test_a_text_that_ends_gives_back_what_was_never_computed_and_one_that_fails_nothing"),
    Mutant("a null reference moves nothing", GENERATOR, "        private[self._null] = public  #",
           "        private[self._null] = 0.0  #",
           T_GENERATOR + "test_tokens_are_drawn_from_what_algorithm_1_says_at_every_step"),
    Mutant("the public row is the first", GENERATOR, "public, private = logits[0], logits[1:]",
           "public, private = logits[-1], logits[:-1]",
           T_GENERATOR + "test_tokens_are_drawn_from_what_algorithm_1_says_at_every_step"),
    Mutant("every contribution of a text pays", PAYING, "self.log.reserve_text(self.units,",
           "self.log.reserve_text(self.units[:1],",
           T_GENERATOR + "test_every_contribution_of_a_text_pays_and_none_does_where_one_cannot"),
    Mutant("retrieval is paid by a corpus", PAYING, 'if " retrieval " in mechanism and', "if False and",
           T_GENERATOR + "test_what_is_retrieved_is_paid_for_by_its_corpus"),
)  # fmt: skip
