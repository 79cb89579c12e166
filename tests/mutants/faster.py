"""Mutants of what is computed by a shorter way and must give what the longer does: noise, `prv`, and curves.

Who edits a kernel has it built anew; a test that is named for that must not be one that is left out where nothing is built.
"""

from tests.mutants.mutant import Mutant

ROUNDED = "dptrain/noise/rounded.py"
LATTICE = "dptrain/noise/lattice.py"
ADDING = "dptrain/noise/adding.py"
KERNEL = "dptrain/noise/adding.cpp"
NATIVE = "dptrain/native.py"
PRV = "dptrain/opacus_prv.py"

KEYSTREAM = "dptrain/noise/keystream.py"
T_NOISE = "tests/noise/test_rounded.py::"
T_BITS = T_NOISE + "test_every_bit_of_rounded_normals_is_that_of_the_reference"
T_CORNERS = T_NOISE + "test_the_corners_of_the_words_have_the_bits_of_the_reference"
T_PROOF = T_NOISE + "test_the_cheap_transform_is_within_what_its_proof_says"

T_DRAWN = T_NOISE + "test_a_kernel_that_draws_other_words_is_not_used"
T_CIPHER = T_NOISE + "test_words_of_a_cipher_that_does_not_serve_are_not_used"
T_ADDING = "tests/noise/test_adding.py::"
T_EVERY = T_ADDING + "test_every_bit_of_a_release_by_the_kernel_is_numpy_s"
T_MIDDLES = T_ADDING + "test_middles_between_steps_go_to_the_even_one_as_numpy_has_it"
T_WRONG = T_ADDING + "test_a_kernel_that_adds_otherwise_is_not_used"
T_TAKEN = T_ADDING + "test_what_the_kernel_does_not_take_is_numpy_s"
T_MODE = T_ADDING + "test_in_another_rounding_mode_numpy_computes"
T_KEPT = T_ADDING + "test_the_kernel_is_kept_by_what_it_computes_and_other_threads_run_meanwhile"

T_PRV = "tests/accounting/test_prv.py::"
T_OPACUS = T_PRV + "test_every_bit_is_opacus_s_own_on_that_grid"
T_POWER = T_PRV + "test_a_power_has_every_bit_of_opacus_s_composition"

TILTED = "ledger/accountants/pld/tilted.py"
T_DELTAS = "tests/ledger/test_accountants_at_deltas.py::"
T_ALONE = T_DELTAS + "test_every_delta_has_the_figure_that_it_has_alone"
T_STEPS = "tests/ledger/test_accountants_at_steps.py::"

T_PAIRS = "tests/guarantees/test_release_of_adapters.py::"

FUSED = "dptrain/gradients/fused.py"
T_FUSED = "tests/routing/test_fused.py::"

NODES = "dptrain/kernels/nodes.py"
ROUTER = "dptrain/routing/router.py"
MODES = "dptrain/sandbox/modes.py"
T_NODES = "tests/routing/test_nodes.py::"
T_NAIVE = T_NODES + "test_gradients_are_those_of_a_naive_loop"
T_COMPANY = T_NODES + "test_certified_gradients_do_not_go_by_what_others_may_touch"
REPEATED = "dptrain/routing/repeated.py"
T_REPEATED = "tests/engine/test_inside_a_microbatch.py::test_whoever_is_repeated_alone_computes_as_it_does_together"
T_LEFT = T_REPEATED.partition("::")[0] + "::test_a_loop_that_leaves_what_its_loss_was_made_in_is_refused_whatever_rows_hold"

CAPTURE = "dptrain/routing/capture.py"
NORMS = "dptrain/kernels/norms.py"
NORMS_KERNEL = "dptrain/kernels/norms.cpp"
T_NORMS = "tests/kernels/test_norms.py::"

FASTER = (
    Mutant(
        "the kernel of normalisation sums every column", NORMS_KERNEL, "for (; c < width; ++c) {", "for (; false;) {",
        T_NORMS + "test_where_kernels_are_built_this_one_is",
    ),
    Mutant(
        "a probe holds the kernel of normalisation to torch", NORMS, "    if way.holding is not None:\n        _require(",
        "    if way.holding is None:\n        _require(", T_NORMS + "test_a_probe_finds_a_kernel_that_is_off_in_one_number",
    ),
    Mutant(
        "a contribution's normalisation is its own", NORMS, "apart, to = 4 * one * t * d, 4 * one * d",
        "apart, to = 4 * first * t * d, 4 * one * d",
        T_NORMS + "test_it_gives_what_torch_gives_in_float64",
    ),
    Mutant(
        "what a node took is not taken again", ROUTER, "if site.name in armed.passed:", "if False:",
        T_NODES + "test_hooks_of_others_see_and_change_what_they_always_did",
    ),
    Mutant(
        "a node takes what its call began with", CAPTURE, "if x is not into and not _turned_over(x, into):", "if False:",
        T_NODES + "test_a_map_that_gets_something_else_than_its_call_began_with_is_called",
    ),
    Mutant(
        "who computes by a map before it is called takes no node", ROUTER,
        "if site.rule.product and self.fused.ours_alone(module):", "if site.rule.product:",
        T_NODES + "test_a_map_that_somebody_computes_by_before_it_is_called_is_no_node",
    ),
    Mutant(
        "a map that a mode computes twice is a node twice", CAPTURE, "            armed.passed.add(site.name)  #",
        "            armed.entering = None\n            armed.passed.add(site.name)  #",
        T_NODES + "test_a_mode_of_others_may_compute_a_map_twice",
    ),
    Mutant(
        "whose own forward computes by a map takes no node", FUSED,
        'and "forward" not in vars(module)\n            and not _has', "and not _has",
        T_NODES + "test_a_map_with_a_forward_of_its_own_may_compute_what_it_does_not_use",
    ),
    Mutant(
        "a map has its tangents", NODES, " or forward_ad._current_level >= 0:", ":",
        T_NODES + "test_where_tangents_are_asked_for_no_map_is_a_node",
    ),
    Mutant(
        "a batch of gradients is none of a microbatch", ROUTER, " or is_legacy_batchedtensor(grad):", ":",
        T_NODES + "test_a_loop_may_ask_a_batch_of_gradients_of_a_map",
    ),
    Mutant(
        "a map goes back in its own type", NODES,
        "if torch.is_autocast_enabled(kind) else nullcontext()", "if False else nullcontext()",
        T_NODES + "test_a_backward_pass_under_autocast_goes_back_in_the_type_of_a_map",
    ),
    Mutant(
        "what a call that raised left is not another's", ROUTER,
        "armed.passed.discard(site.name)  #", "pass  #",
        T_NODES + "test_a_call_by_name_after_one_that_raised_has_its_gradient",
    ),
    Mutant(
        "whose hook comes first may call a map again, which takes no node", FUSED,
        "and (first is None or first in self._ours)\n            and", "and",
        T_NODES + "test_a_call_that_raises_in_a_hook_of_another_one_leaves_that_its_gradient",
    ),
    Mutant(
        "a leaf goes into no node unseen", NODES, "if x.is_leaf or x.is_nested or", "if x.is_nested or",
        T_NODES + "test_a_leaf_of_others_that_goes_into_a_map_is_seen",
    ),
    Mutant(
        "nested rows go into no node", NODES, "if x.is_leaf or x.is_nested or", "if x.is_leaf or",
        T_NODES + "test_nested_rows_are_refused_by_name",
    ),
    Mutant(
        "no node under a mode of others", CAPTURE, " or not sandbox.innermost(functions=bool(others)):", ":",
        T_NODES + "test_a_mode_of_others_meets_what_a_map_computes",
    ),
    Mutant(
        "a pair on a layer that trains itself is called", CAPTURE, "any(id(module) in self._trained for module in others)",
        "False",
        T_NODES + "test_a_pair_on_a_layer_that_trains_itself_is_called",
    ),
    *(
        Mutant(f"certified bits do not go by company: {what}", ROUTER, "if self._whole or g in blocks", "if g in blocks", test)
        for what, test in (
            ("of a pair", T_COMPANY + "[True-Branches-low]"),
            ("of a shift", T_COMPANY + "[True-InPieces-shift]"),
            ("of what comes once for all rows", T_COMPANY + "[True-OfPlaces-low]"),
            ("of attention by a mask that trains", T_COMPANY + "[True-Biased-all but a table]"),
        )
    ),
    Mutant(
        "a pair that drops in place drops after its layer", FUSED, " or not _keeps_its_input(module.lora_dropout[names[0]]):",
        ":", T_NODES + "test_a_pair_with_dropout_drops_what_its_modules_drop[True]",
    ),
    *(
        Mutant(
            f"a loop that leaves the {what} of its loss is refused", REPEATED, found, changed,
            f"{T_LEFT}[False-{what}]",
        )
        for what, found, changed in (
            ("state", "return tuple(pystate.of_model(model)), others", "return (), others"),
            ("mode", 'if not mode.__module__.startswith("dptrain."))', "if False)"),
            ("setting", "settings = torch.get_default_dtype(),", "settings = None,"),
        )
    ),
    Mutant(
        "who is repeated alone computes under the autocast of all", REPEATED,
        "with around.enter():", "with nullcontext():", T_REPEATED + "[around0]",
    ),
    Mutant(
        "who is repeated alone has the kernels of attention of all", REPEATED, "sdpa_kernel(self._kernels)", "nullcontext()",
        T_REPEATED + "[around1]",
    ),
    Mutant(
        "what autograd saves of who is repeated alone is seen by who saw it of all", REPEATED,
        "if self._hooks else", "if False else", T_REPEATED + "[save_on_cpu]",
    ),
    Mutant(
        "a kernel without a derivative is asked for none", "dptrain/gradients/matmul.py",
        "enabled() and not torch.is_grad_enabled() and", "enabled() and",
        T_NODES + "test_of_a_gradient_of_it_that_is_asked_for_kernels_are_those_with_a_derivative",
    ),
    Mutant(
        "what autograd does not keep is computed again by its module", CAPTURE,
        " or torch._C._autograd._top_saved_tensors_default_hooks(True):\n            return None\n        if x.dim()",
        ":\n            return None\n        if x.dim()", T_NODES + "test_where_a_call_is_more_than_its_input_it_is_made",
    ),
    Mutant(
        "no node where all is left to torch", CAPTURE, " or way.torch_alone:\n", ":\n",
        T_NODES + "test_left_to_torch_no_map_is_a_node",
    ),
    Mutant(
        "a node keeps what went in as autograd keeps it", NODES, "ctx.save_for_backward(x, linear.w_DP)",
        "ctx.save_for_backward(x.detach().clone(), linear.w_DP)",
        T_NODES + "test_what_went_in_may_not_be_written_afterwards",
    ),
    Mutant(
        "what flows back through a pair", NODES, "back_KD.addmm_(to_a_KR, a_DR.t())", "pass",
        T_NODES + "test_a_pair_is_one_node",
    ),
    Mutant(
        "the scale of a pair counts once on each way", NODES, "b_RP.t(), None) * ctx.scale", "b_RP.t(), None)",
        T_NODES + "test_a_pair_is_one_node",
    ),
    Mutant(
        "the zoo compares what nodes hand over", NODES, "_alone(grad).reshape(*ctx", "_alone(grad).flip(0).reshape(*ctx",
        "tests/zoo/test_zoo.py::test_the_comparison_in_float32_goes_by_the_nodes_of_a_step",
    ),
    Mutant(
        "what goes into A is what dropout left", NODES, "ctx.save_for_backward(into, narrow", "ctx.save_for_backward(x, narrow",
        T_PAIRS + "test_what_a_step_adds_by_pairs_that_are_nodes_is_the_sum_of_clipped_gradients",
    ),
    Mutant(
        "what was dropped goes back the way it came", NODES, "apart = ctx.product(to_a_KR, a_DR.t(), None).view(into.shape)",
        "apart = None", T_NODES + "test_a_pair_with_dropout_drops_what_its_modules_drop",
    ),
    Mutant(
        "an output of a node may be written", NODES, "torch.ops.aten._unsafe_view(y_KP, (*x.shape[:-1], y_KP.shape[1]))",
        "y_KP.view(*x.shape[:-1], y_KP.shape[1])", T_NAIVE,
    ),
    Mutant(
        "a pair of which a part is more than a map is called", FUSED,
        "if turned is None or _overridden(base) or _overridden(a) or _overridden(b):", "if turned is None:",
        T_NODES + "test_a_pair_of_which_a_part_is_more_than_a_map_is_called",
    ),
    Mutant(
        "a forward stands for one that is the same", FUSED, "and _holds(kind, own, known):", "and True:",
        T_FUSED + "test_a_library_that_computes_something_else_is_noticed",
    ),
    Mutant(
        "who watches a module sees what it computes", FUSED, "self._ours.issuperset(part._forward_hooks)", "True",
        T_FUSED + "test_a_module_that_somebody_watches_computes_by_itself",
    ),
    Mutant(
        "who watches what goes in, too", FUSED, "and self._ours.issuperset(part._forward_pre_hooks)", "and True",
        T_FUSED + "test_a_module_that_somebody_watches_computes_by_itself",
    ),
    Mutant(
        "who watches all modules, too", FUSED, "or _has_any_global_hook():", "or False:",
        T_FUSED + "test_a_module_that_somebody_watches_computes_by_itself",
    ),
    Mutant(
        "what somebody holds is not written", FUSED, " and _free(_held(wide), _fresh())\n", "\n",
        T_FUSED + "test_a_constant_that_an_adapter_answers_stays_what_it_is",
    ),
    Mutant(
        "content is followed through what a hook makes of an output", "dptrain/routing/router.py",
        "or sandbox.marking or torch", "or torch",
        "tests/routing/test_capture.py::test_content_is_followed_through_what_a_hook_makes_of_an_output",
    ),
    Mutant(
        "hooks on what is saved run as the program does", "dptrain/routing/router.py",
        "sandbox.marking or torch._C._autograd._top_saved_tensors_default_hooks(True)", "sandbox.marking",
        "tests/routing/test_capture.py::test_hooks_of_the_program_on_what_is_saved_run_as_the_program_does",
    ),
    Mutant(
        "memory that the user has tuned is left alone", "dptrain/native.py", "self._own = not _tuned()", "self._own = True",
        "tests/engine/test_memory_of_a_run.py::test_freed_memory_is_kept_inside_unless_the_user_has_tuned_it",
    ),
    Mutant(
        "others of a class compute as ever", FUSED, "if of is None or module is not self or", "if False or",
        T_FUSED + "test_copies_made_inside_and_others_of_a_class_compute_by_themselves",
    ),
    Mutant(
        "a sandbox that was left takes it along", FUSED, "or not self._active() or", "or",
        T_FUSED + "test_a_sandbox_that_was_left_takes_it_along",
    ),
    Mutant(
        "nothing is left on a class", FUSED, 'elif vars(kind).get("forward") is asking:', "elif False:",
        T_FUSED + "test_a_run_trains_to_the_weights_of_one_that_leaves_all_to_torch",
    ),
    Mutant(
        "an adapter of another kind is another", FUSED, "return all(_linear(one) for one in maps) and", "return",
        T_FUSED + "test_an_adapter_of_another_kind_computes_by_itself",
    ),
    Mutant(
        "a graph is compared with what it was made of", FUSED, "if self._left or not", "if not",
        "tests/routing/test_compiled.py::test_where_modules_compute_in_fewer_passes_graph_and_comparison_do_not",
    ),
    Mutant(
        "a sample is in float32 whatever the default", FUSED, "3001, dtype=torch.float32)", "3001)",
        T_FUSED + "test_under_another_default_type_it_is_shown_all_the_same",
    ),
    Mutant(
        "a composition is read where it is as good", TILTED, "_CLOSE_SHARE: Final = 1e-9", "_CLOSE_SHARE: Final = 0.5", T_ALONE,
    ),
    Mutant(
        "it is made a few times alone", TILTED, "if kept is not None and key in kept:", "if False:",
        T_DELTAS + "test_a_sum_is_composed_for_few_of_the_deltas",
    ),
    Mutant(
        "sums of other steps are others", TILTED, "((id(part), steps) for", "((0, 0) for",
        T_DELTAS + "test_what_is_read_at_another_delta_is_not_below_the_exact_gaussian",
    ),
    Mutant(
        "steps are transformed for few of the points", TILTED, "if near != tilt and max(", "if False and max(",
        T_STEPS + "test_steps_are_transformed_for_few_of_the_points",
    ),
    Mutant(
        "a transform belongs to its tilt", TILTED, "if held is None or held[:2] != (tilt, size):", "if held is None:",
        T_STEPS + "test_every_number_of_steps_has_the_figure_that_it_has_alone",
    ),
    Mutant(
        "what is near a middle is asked of the reference", ROUNDED, "UNSURE: Final = 2.0**-10", "UNSURE: Final = 0.0", T_BITS,
    ),
    Mutant(
        "a kernel that draws says of every part where it lies", "dptrain/noise/rounded.cpp", "unsure[count] += start;", ";",
        T_KEPT,
    ),
    Mutant("and is tried", ROUNDED, "return right and _draws(kernels, own)", "return right", T_DRAWN),
    Mutant(
        "a cipher that failed is not believed", "dptrain/noise/rounded.cpp",
        "!= 1 || written != bytes) return -1", "!= 1) return -1", T_CIPHER,
    ),
    Mutant("nor what it said before", ROUNDED, "None if count < 0 else", "None if count < -1 else", T_CIPHER),
    Mutant("nor is another stream", KEYSTREAM, "        if parts != Cipher(", "        if not parts and Cipher(", T_CIPHER),
    Mutant(
        "threads have even shares of a tensor", LATTICE, "(threads * max(1, turns)))", "max(1, turns))",
        "tests/noise/test_lattice.py::test_threads_have_even_shares_of_a_tensor",
    ),
    Mutant("on both sides", ROUNDED, "np.less(normals, UNSURE - 0.5", "np.less(normals, -0.5", T_PROOF),
    Mutant("and so is the tail", ROUNDED, "np.concatenate([tail, close >> 1])", "close >> 1", T_CORNERS),
    Mutant("as far as its proof says", ROUNDED, "_TAIL: Final = 2.0**-10", "_TAIL: Final = 2.0**-20", T_PROOF),
    Mutant("with the bits of its own blocks", ROUNDED, "first + int(unsure[place])", "first + place", T_CORNERS),
    Mutant("angles have the bits of the reference and no others", ROUNDED, " - (1 << 11))", ")", T_PROOF),
    Mutant("constants of the short series are right", ROUNDED, "3.0 / 64.0", "3.0 / 64.0 + 1e-13", T_PROOF),
    Mutant(
        "the second quarter of a turn is the first, turned", ROUNDED, "[quarter, 1j * quarter]", "[quarter, quarter]", T_PROOF,
    ),
    Mutant(
        "a kernel that rounds otherwise is not used", ROUNDED, "0.95 and np.array_equal(", "0.95 or np.array_equal(",
        T_NOISE + "test_a_kernel_that_rounds_otherwise_is_not_used",
    ),
    Mutant(
        "what a kernel is not sure of is asked of the reference", ROUNDED, "self._places[:count]", "self._places[:0]",
        T_KEPT,
    ),
    Mutant(
        "noise of several draws is added up before it is rounded", LATTICE, "if draws == 1:", "if draws:",
        T_NOISE + "test_a_release_is_the_same_as_it_ever_was",
    ),
    Mutant("a kernel releases the quotient", KERNEL, "/ gamma", "* (1.0 / gamma)", T_MIDDLES),
    Mutant("rounded to even steps in the middle", KERNEL, "std::rint(", "std::round(", T_MIDDLES),
    Mutant("cut at the lower limit", KERNEL, "-limit > steps ? -limit : steps", "steps", T_EVERY),
    Mutant("and at the upper one", KERNEL, "steps > limit ? limit : steps", "steps", T_EVERY),
    Mutant(
        "what is not a number stays none", KERNEL, "-limit > steps ? -limit : steps",
        "steps > -limit ? steps : -limit", T_ADDING + "test_what_is_not_finite_is_released_as_numpy_releases_it",
    ),
    Mutant("with all bits of its noise", KERNEL, "<double>(noise[i])", "<float>(noise[i])", T_EVERY),
    Mutant("of every coordinate and no other", KERNEL, "i < count;", "i < count - count % 2;", T_EVERY),
    Mutant(
        "a kernel that adds otherwise is not used", ADDING,
        "if not taken or not np.array_equal(found.view(np.uint64), true.view(np.uint64)):", "if not taken:", T_WRONG,
    ),
    Mutant(
        "a kernel takes noise of the length of its sums", ADDING, "sums.shape != noise.shape or ", "",
        T_ADDING + "test_noise_of_another_length_is_refused_and_a_sum_that_must_not_be_written_is_not",
    ),
    Mutant("sums that lie side by side", ADDING, "sums.flags.carray and ", "", T_TAKEN),
    Mutant("and noise too", ADDING, "noise.flags.c_contiguous and ", "", T_TAKEN),
    Mutant("in the mode of rounding in which it was tried", ADDING, " and native.to_nearest()", "", T_MODE),
    Mutant("as does the transform", ROUNDED, "library() if native.to_nearest() else None", "library()", T_MODE),
    Mutant("and lets other threads run", NATIVE, "ctypes.CDLL(str(path))", "ctypes.PyDLL(str(path))", T_KEPT),
    Mutant(
        "a kernel says of every pair that it is not sure of it", "dptrain/noise/rounded.cpp", "gap[i] <= sure ? 0 : 1",
        "gap[i] <= sure ? 0 : i & 1", T_KEPT,
    ),
    Mutant(
        "one that says so of some is not used", ROUNDED, "told = not (unsure & sure).any()", "told = True",
        T_NOISE + "test_a_kernel_that_rounds_otherwise_is_not_used",
    ),
    Mutant("a loss is 1 only where the library says so", PRV, "self._most = most if", "self._most = 0.5 * most if", T_OPACUS),
    Mutant("below its least value too", PRV, "math.log1p(-q) - 1e-9", "math.log1p(-q) + 1e-4", T_OPACUS),
    Mutant("epsilon below the middle is read off the whole", PRV, "except RuntimeError:", "except OSError:", T_OPACUS),
    Mutant("a power is 0 where it is less than any number", PRV, "_NOTHING: Final = -760.0", "_NOTHING: Final = -5.0", T_POWER),
    Mutant("and moved to its place", PRV, "if times % 2 == 0 else 0", "if times % 2 else 0", T_POWER),
)
