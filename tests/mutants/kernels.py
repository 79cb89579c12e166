"""Mutants of the kernels that norms, sums and passes of a private microbatch are computed by, and of who feeds them."""

from tests.mutants.mutant import Mutant

KERNELS = "dptrain/kernels/reductions.py"
NATIVE = "dptrain/native.py"
PRODUCTS = "dptrain/gradients/matmul.py"
FORMS = "dptrain/gradients/forms.py"
START = "dptrain/engine/start.py"
STEP = "dptrain/engine/step.py"
ENGINE = "dptrain/engine/prepared.py"
GRAPHS = "dptrain/routing/graphs.py"
BUILDING = "dptrain/routing/building.py"
LOADER = "dptrain/data/loader.py"
ATTENTION = "dptrain/kernels/attention.py"
ACTIVATIONS = "dptrain/kernels/activations.py"
THREADS = "dptrain/noise/threads.py"
CHECKSUMS = "dptrain/kernels/checksums.py"

T_KERNELS = "tests/routing/test_kernels.py::"
T_ATTENTION = "tests/kernels/test_attention_kernel.py::"
T_THREADS = "tests/noise/test_normals_and_threads.py::"
T_CHECKSUMS = "tests/kernels/test_checksum_kernel.py::"
T_GELU = "tests/kernels/test_activation_kernel.py::"
T_PAIRS = "tests/kernels/test_pairs_kernel.py::"
T_PASSES = "tests/kernels/test_passes_of_a_run.py::"
T_SERVES = T_ATTENTION + "test_what_the_kernel_does_not_serve_is_left_to_torch"
T_RIGHT = T_ATTENTION + "test_a_right_kernel_is_refused_for_no_numbers"
T_TRUE = T_KERNELS + "test_norms_and_narrow_gradients_are_the_float64_ones"
T_KEPT = T_KERNELS + "test_what_was_kept_and_is_not_what_was_built_is_built_anew"
T_BUILDING = "tests/routing/test_building.py::"
T_RUN = "tests/engine/test_kernels_of_a_run.py::"
T_PRODUCT = T_RUN + "test_the_probes_find_a_product_that_is_wrong"
T_FULL = T_RUN + "test_a_product_that_is_wrong_at_full_size_alone_is_found"
T_NORM = T_RUN + "test_the_probes_find_a_norm_that_is_wrong"
T_LEFT = T_RUN + "test_left_to_torch_nothing_goes_elsewhere_and_the_header_is_silent"
T_SAYS = T_RUN + "test_forward_and_backward_compute_by_onednn_and_the_header_says_so"

COMPUTED = (
    Mutant(
        "a piece that an interrupt took is missed", THREADS, "len(done) != len(pieces)", "False",
        T_THREADS + "test_a_piece_that_an_interrupt_took_is_not_passed_over",
    ),
    Mutant(
        "a failure in a thread of torch is raised", THREADS, "failures.append(failure)", "done.append(number)",
        T_THREADS + "test_a_failure_in_any_thread_is_raised_and_no_thread_is_left_waiting",
    ),
    Mutant(
        "pieces are shared among threads that are there already", THREADS, "partial(found.dptrain_share, parallel)", "None",
        T_THREADS + "test_work_is_shared_among_threads_that_torch_has_already",
    ),
    Mutant(
        "a thread of torch computes on one thread inside a piece", THREADS, "                torch.set_num_threads(1)\n", "",
        T_THREADS + "test_products_round_alike_in_every_thread",
    ),
    Mutant(
        "what a signal handler raised is not forgotten", THREADS, "    sys.unraisablehook = lost\n", "",
        T_THREADS + "test_what_a_signal_handler_raises_is_raised_wherever_it_came",
    ),
    Mutant(
        "what is at work serves nobody else", THREADS, "found = self._idle.pop()", "found = self._idle[-1]",
        T_THREADS + "test_what_is_idle_serves_again_and_what_is_at_work_serves_nobody_else",
    ),
    Mutant(
        "what leaves a piece out is not used", THREADS, "sorted(done) == list(range(7))", "set(done) <= set(range(7))",
        T_THREADS + "test_a_team_that_leaves_a_piece_out_or_does_one_twice_is_not_used",
    ),
    Mutant(
        "sizes that bound rounding are not below the truth", KERNELS, "_ROUNDED = 1.0 + 2.0**-10", "_ROUNDED = 0.999",
        T_TRUE,
    ),
    Mutant(
        "what underflows counts", KERNELS, "yield (a.shape[2] * tiny) ** 0.5, (b.shape[2] * tiny) ** 0.5,", "yield 0.0, 0.0,",
        T_KERNELS + "test_lengths_whose_squares_vanish_count",
    ),
    Mutant(
        "probes hold the norm of every tensor", PRODUCTS, "for row, (a_NTD, b_NTP) in enumerate(factors):",
        "for row, (a_NTD, b_NTP) in enumerate(factors[:0]):", T_RUN + "test_the_probes_find_a_norm_that_is_wrong",
    ),
    Mutant(
        "norms of several tensors are those of each", FORMS, "return dict(zip(ordered, found, strict=True))",
        "return dict(zip(sorted(ordered), found, strict=True))",
        T_KERNELS + "test_queries_keys_and_values_share_what_they_were_made_of_and_others_do_not",
    ),
    Mutant(
        "the bound on rounding is each tensor's own", FORMS, "(found.reach.new_tensor(of)[:, None] for of in columns)",
        "(found.reach.new_tensor(of).flip(0)[:, None] for of in columns)",
        T_KERNELS + "test_queries_keys_and_values_share_what_they_were_made_of_and_others_do_not",
    ),
    Mutant(
        "kernels that compute something else are not used", KERNELS, "bool((gap[:-1].abs() <= 1e-5).all())", "True",
        T_KERNELS + "test_kernels_that_compute_something_else_are_not_used",
    ),
    Mutant(
        "nor those that form other integers", KERNELS, "_truncates(found, count) and _turns", "True and _turns",
        T_KERNELS + "test_kernels_that_compute_something_else_are_not_used",
    ),
    Mutant(
        "nor those that form other norms of rows", KERNELS, " and _adds_rows(found, count) for", " for",
        T_KERNELS + "test_kernels_that_compute_something_else_are_not_used",
    ),
    Mutant(
        "checksums count every byte behind the last word", CHECKSUMS, "if x.nbytes % 8 else", "if False else",
        T_CHECKSUMS + "test_each_word_and_byte_counts",
    ),
    Mutant(
        "memory that is not in one piece has its checksum by torch", CHECKSUMS, " or not x.is_contiguous()", "",
        T_CHECKSUMS + "test_what_it_does_not_take_is_left_to_torch",
    ),
    Mutant(
        "a kernel whose checksums are others is not used", CHECKSUMS, "[grid & _MASK, rest & _MASK]", "list(sums)",
        T_CHECKSUMS + "test_a_kernel_that_computes_something_else_is_not_used",
    ),
    Mutant(
        "one tensor has the norm that it has as a row", KERNELS, "ctypes.byref(width), 1, 1", "ctypes.byref(width), 1, 0",
        T_KERNELS + "test_rows_have_the_norms_and_weighted_sums_of_float64_whatever_their_company",
    ),
    Mutant(
        "norms of small tensors are held to torch's", PRODUCTS, "2.0**-40 * true) | (~true", "1.0 * true) | (~true",
        T_RUN + "test_the_probes_find_a_norm_or_a_sum_of_small_tensors_that_is_wrong",
    ),
    Mutant(
        "and their sums", PRODUCTS, "if not bool(((found - true).abs() <= near).all()):", "if False:",
        T_RUN + "test_the_probes_find_a_norm_or_a_sum_of_small_tensors_that_is_wrong",
    ),
    Mutant(
        "norms beside one another are of what was made of the same", FORMS, "alike.setdefault((a.data_ptr(), a.shape",
        "alike.setdefault((a.shape",
        T_KERNELS + "test_queries_keys_and_values_share_what_they_were_made_of_and_others_do_not",
    ),
    Mutant(
        "rows of a matrix that lies in several pieces are left to torch", KERNELS,
        "return matrix.is_contiguous() and serves(matrix)", "return serves(matrix)",
        T_KERNELS + "test_norms_and_sums_of_many_tensors_are_those_of_each",
    ),
    Mutant(
        "of a file that nobody else may write",
        NATIVE, "found.st_uid == os.getuid() and not found.st_mode & 0o022\n        return",
           "found.st_uid == os.getuid()\n        return", T_KEPT),
    Mutant("and no link", NATIVE, "os.O_RDONLY | os.O_NOFOLLOW", "os.O_RDONLY", T_KEPT),
    Mutant(
        "in a directory that nobody else may write", NATIVE,
        "(not each.st_mode & 0o022 or each.st_mode & stat.S_ISVTX)", "True",
        T_KERNELS + "test_a_directory_that_others_may_write_is_not_loaded_from",
    ),
    Mutant("products of probes are held to torch's", PRODUCTS, "TOLERANCE = 2.0**-17", "TOLERANCE = 2.0**17", T_PRODUCT),
    Mutant("entry by entry", PRODUCTS, "ENTRY = 2.0**-14", "ENTRY = 2.0**20", T_PRODUCT),
    Mutant(
        "columns of small numbers too", PRODUCTS, "/ lengths.clamp_min(1e-30)", "/ lengths.amax()",
        T_RUN + "test_a_column_of_small_numbers_that_is_missing_is_found",
    ),
    Mutant("and those of a full microbatch", START, "self._holding.rehearse(full)", "pass", T_FULL),
    Mutant(
        "sums among them", PRODUCTS, "return _held(found.t() if narrow is a_KD else found, x_PK, y_KD, sums=True)",
        "return found.t() if narrow is a_KD else found", T_FULL,
    ),
    Mutant(
        "machine code is built and loaded where nobody else may put other in its place", NATIVE,
        "if not _trusted(place):\n        raise", "if False:\n        raise",
        T_KERNELS + "test_nothing_is_built_or_loaded_where_others_may_put_a_file_in_the_place_of_another",
    ),
    Mutant(
        "a header counts among the sources", NATIVE, '(source, *sorted(source.parent.glob("*.h")))', "(source,)",
        T_KERNELS + "test_a_header_that_changed_is_compiled_anew",
    ),
    Mutant(
        "one that does not compute is not kept", NATIVE, "    if not _computes(found, works):\n        return None",
        "    if False:\n        pass",
        T_KERNELS + "test_what_does_not_compute_is_not_kept",
    ),
    Mutant(
        "nor one that changes how the process computes", NATIVE, "if _flushes() and not flushed:", "if False:",
        T_KERNELS + "test_what_a_compiler_built_to_flush_subnormal_numbers_is_not_used",
    ),
    Mutant(
        "a view of minus a tensor is not read as the tensor", KERNELS, " and not x.is_neg() for", " for",
        T_KERNELS + "test_views_of_minus_a_tensor_are_left_to_libraries",
    ),
    Mutant(
        "a microbatch that was left does not end the way of another", PRODUCTS, "if way.owner is owner:", "if True:",
        T_RUN + "test_a_probe_that_was_left_reaches_into_no_other_run",
    ),
    Mutant("norms are held to torch's", FORMS, "return matmul.held_grams(found, a, b)", "return found", T_NORM),
    Mutant(
        "a run that leaves all to torch does", STEP, "self._entered, self._products, holding",
        "self._entered, FASTEST, holding", T_LEFT,
    ),
    Mutant(
        "forward and backward pass are by the fastest kernels", ENGINE, "products=matmul.products_of(products)", "products={}",
        T_SAYS,
    ),
    Mutant(
        "and the header says so", ENGINE, "opened.noise.generator, wire, products)", "opened.noise.generator, wire)",
        T_SAYS,
    ),
    Mutant(
        "another process finds what was kept", GRAPHS, "{type(found).__name__} {found}", "{id(found)} {found!r}",
        "tests/routing/test_compiled.py::test_another_process_finds_the_graphs_that_this_one_kept",
    ),
    Mutant(
        "vector instructions are tried where nobody else may write", BUILDING,
        'with kept_in(lambda: str(own_place() / "instructions")):', "if True:",
        T_BUILDING + "test_nothing_is_tried_where_others_may_write",
    ),
    Mutant(
        "no headers are read that were compiled where others may write", BUILDING, "cpp_cache_precompile_headers=False",
        "cpp_cache_precompile_headers=True", T_BUILDING + "test_no_header_is_read_that_was_compiled_before",
    ),
    Mutant(
        "a kernel of a unit is the one of its name", BUILDING, '{"entry_function": f"kernel_{k}"}',
        '{"entry_function": f"kernel_{len(self._kernels) - 1 - k}"}',
        T_BUILDING + "test_one_call_of_the_compiler_builds_the_very_kernels",
    ),
    Mutant(
        "the whole decides what shares do not confirm", "dptrain/routing/compiled.py",
        "if (agrees and not others) or", "if True or",
        "tests/routing/test_compiled.py::test_what_shares_of_a_microbatch_do_not_confirm_is_decided_by_the_whole",
    ),
    Mutant(
        "every share has its votes", "dptrain/routing/compiled.py", "return 2 * int(agrees_N[:contributions].sum())",
        "return 2 * int(agrees_N[:2].sum()) * 3",
        "tests/routing/test_compiled.py::test_a_fault_in_any_share_is_seen",
    ),
    Mutant(
        "graphs are kept for one kind of processor", GRAPHS, "native.processor() + told.encode()", "b''",
        "tests/routing/test_compiled.py::test_graphs_are_kept_for_one_kind_of_processor",
    ),
    Mutant(
        "a worker that makes other rows is done without", LOADER, "if done.rows is not None and not _same(rows, done.rows):",
        "if False:",
        "tests/engine/test_feeding_workers.py::test_a_decoder_that_uses_hashes_of_strings_runs_in_this_process",
    ),
    Mutant(
        "a mask is read in its strides, for what lies between is another contribution's", ATTENTION,
        "mask.stride(-1) in (0, 1)", "True",
        T_ATTENTION + "test_a_mask_of_which_positions_come_before_rows_is_that_of_its_row_alone",
    ),
    Mutant(
        "room of attention is as large as the kernel writes", ATTENTION, "query.new_empty(floats)", "torch.empty(floats)",
        T_ATTENTION + "test_room_is_of_float32_whatever_the_default_type",
    ),
    Mutant(
        "results of attention lie as torch's do", ATTENTION, "out = torch.empty_like(query)", "out = _beside(query)",
        T_ATTENTION + "test_all_lies_as_torchs_does_in_a_graph_too",
    ),
    Mutant(
        "attention is held to torch's", ATTENTION, "_require(found, true, _sizes(*given), _reach(query, key, scale))", "pass",
        T_PASSES + "test_the_probes_find_attention_that_is_wrong",
    ),
    Mutant(
        "and on the way back", ATTENTION,
        "_require(found, true, _sizes_back(grad_out, query, key, value, scale), _reach(query, key, scale))", "pass",
        T_PASSES + "test_the_probes_find_attention_that_is_wrong",
    ),
    Mutant(
        "entry by entry, closely", ATTENTION, "NEAR = 2.0**-18", "NEAR = 2.0**-12",
        T_ATTENTION + "test_one_entry_that_is_wrong_is_found",
    ),
    Mutant("small numbers are no wrong attention", ATTENTION, ".clamp_min_(2.0**-60)", "", T_RIGHT),
    Mutant("nor are those that overflow at torch's", ATTENTION, "BEYOND = 2.0**16", "BEYOND = 2.0**160", T_RIGHT),
    Mutant(
        "heads that are shared are left to torch", ATTENTION, "value.shape == (n, heads, keys, width)", "value.shape", T_SERVES
    ),
    Mutant(
        "results of other shapes are left to torch", ATTENTION, "x.shape[:3] == query.shape[:3] for x in values[3:]",
        "True for x in values[3:]", T_SERVES,
    ),
    Mutant("a mask fits scores", ATTENTION, "all(one in (1, other) for one, other in like)", "True", T_SERVES),
    Mutant(
        "a kernel leaves to torch what a run leaves to it", KERNELS, "held and ENABLED and not way.torch_alone",
        "held and ENABLED", T_SERVES,
    ),
    Mutant(
        "attention that drops is torch's", ATTENTION, "if dropout_p or not serves(*given, causal=is_causal, mask=attn_mask):",
        "if not serves(*given, causal=is_causal, mask=attn_mask):",
        T_ATTENTION + "test_attention_that_drops_is_not_the_kernels",
    ),
    Mutant(
        "attention that computes something else is not used", ATTENTION, "<= 1e-5 * (1.0 + queries**0.5)",
        "<= 1e5 * (1.0 + queries**0.5)", T_ATTENTION + "test_a_library_that_computes_something_else_is_not_used",
    ),
    Mutant(
        "a graph holds the kernel", GRAPHS, "_attended(node) or _multiplied", "_multiplied",
        T_PASSES + "test_a_graph_holds_the_kernel_where_a_run_asks_for_it",
    ),
    Mutant(
        "GELU is held to torch's", ACTIVATIONS, "NEAR = 2.0**-18", "NEAR = 2.0**-4",
        T_PASSES + "test_the_probes_find_a_gelu_that_is_wrong",
    ),
    Mutant(
        "numbers below the normal ones are no wrong GELU", ACTIVATIONS, "torch.finfo(sizes.dtype).tiny", "0.0",
        T_GELU + "test_a_right_kernel_is_refused_for_no_numbers",
    ),
    Mutant(
        "what does not lie in one piece is not read as if it did", ACTIVATIONS, "x.is_contiguous() and x.shape", "x.shape",
        T_GELU + "test_what_the_kernel_does_not_serve_is_left_to_torch",
    ),
    Mutant(
        "slopes of GELU cancel nothing", "dptrain/kernels/activations.cpp", "x < 0.0f ? 1.0f - share : e * share",
        "1.0f - share", T_GELU + "test_values_and_slopes_are_those_of_float64_for_numbers_of_all_sizes",
    ),
    Mutant(
        "GELU that computes something else is not used", ACTIVATIONS, "(own - other).abs() <= 1e-5",
        "(own - other).abs() <= 1e5",
        T_GELU + "test_a_library_that_computes_something_else_is_not_used",
    ),
    Mutant(
        "room of pairs is as large as the kernel writes", ATTENTION, "x.new_empty((n + 2 * WIDTH) * k)",
        "torch.empty((n + 2 * WIDTH) * k)", T_PAIRS + "test_room_is_of_float32_whatever_the_default_type",
    ),
    Mutant(
        "pairs are held to torch's", ATTENTION, "NEAR * (sizes + true.abs())", "1e9 * (sizes + true.abs())",
        T_PAIRS + "test_one_entry_that_is_wrong_is_found",
    ),
)  # fmt: skip
