"""Mutants of what a private microbatch may do: every promise of the sandbox, the probes and statement A, broken once."""

from tests.mutants.attested import ATTESTED
from tests.mutants.audited import BOUNDS, FIGURES, RELEASES
from tests.mutants.beside import BESIDE, IN_THEIR_PLACE
from tests.mutants.clipped import CLIPPED
from tests.mutants.consent import CONSENT
from tests.mutants.contributions import CONTRIBUTIONS
from tests.mutants.correlated import CORRELATED
from tests.mutants.counted import COUNTS
from tests.mutants.dealt import DEALT_OUT
from tests.mutants.faster import FASTER
from tests.mutants.generating import GENERATED
from tests.mutants.ink import FROM_REFERENCES
from tests.mutants.kernels import COMPUTED
from tests.mutants.mutant import Mutant
from tests.mutants.narrowed import NARROWED
from tests.mutants.ranks import ON_RANKS
from tests.mutants.retrieving import RETRIEVED
from tests.mutants.served import GATED, SERVED
from tests.mutants.serving import SERVING
from tests.mutants.tables import TABLES
from tests.mutants.tangents import TANGENTS
from tests.mutants.texts import TEXTS_BESIDE
from tests.mutants.turned import TURNED

ADDRESSES = "dptrain/sandbox/addresses.py"
INTERCEPTION = "dptrain/sandbox/interception.py"
KINDS = "dptrain/sandbox/modes.py"
MODES = "dptrain/sandbox/modes.py"
PASSES = "dptrain/sandbox/passes.py"
LAYOUTS = "dptrain/sandbox/learnt.py"
DRAWS = "dptrain/sandbox/draws.py"
GENERATORS = "dptrain/sandbox/draws.py"
INDICES = "dptrain/sandbox/indices.py"
TRUTHS = "dptrain/sandbox/learnt.py"
WRITES = "dptrain/sandbox/writes.py"
UNTOUCHED = "dptrain/sandbox/untouched.py"
OPTIMIZERS = "dptrain/sandbox/isolation.py"
ISOLATION = "dptrain/sandbox/isolation.py"
FEEDING = "dptrain/data/loader.py"
READER = "dptrain/data/reader.py"
FEEDING_WORKERS = "dptrain/data/workers.py"
TRAINER = "dptrain/integrations/trainer.py"
PACKING = "dptrain/data/packing.py"
ITEMS = "dptrain/data/items.py"
GATE = "attest/gate/checks.py"
RULES_OF_POLICY = "attest/policy/rules.py"
REPLAY = "dptrain/gradients/generic.py"
ROUTER = "dptrain/routing/router.py"
REGISTRY = "dptrain/gradients/registry.py"
FORMS = "dptrain/gradients/forms.py"
RULE_CHECK = "dptrain/gradients/rule_check.py"
CLIPPING = "dptrain/clipping/fast.py"
COMPILED = "dptrain/routing/compiled.py"
GRAPHS = "dptrain/routing/graphs.py"
REPEATED = "dptrain/routing/repeated.py"
FOLDING = "dptrain/routing/accumulate.py"
SYNTHETIC = "dptrain/routing/synthetic_rows.py"
PROBES = "dptrain/routing/probes.py"
COUPLINGS = "dptrain/routing/couplings.py"
START = "dptrain/engine/start.py"
RELEASE = "dptrain/engine/release.py"
ENGINE = "dptrain/engine/prepared.py"
WEIGHTS = "dptrain/record/weights.py"
TOGETHER = "dptrain/parallel/together.py"
DEPTH = "dptrain/blocks/stack.py"

T_ADDRESSES = "tests/sandbox/test_addresses.py::"
T_DRAWS = "tests/sandbox/test_operations_that_draw.py::"
T_LAYOUTS = "tests/sandbox/test_layouts.py::"
T_INTERCEPTION = "tests/sandbox/test_interception.py::"
T_INDICES = "tests/sandbox/test_indices.py::"
T_WRITES = "tests/sandbox/test_writes.py::"
T_RANDOMNESS = "tests/guarantees/test_addressed_randomness.py::"
T_REPLAYED = "tests/guarantees/test_replayed_draws.py::"
T_CHANNELS = "tests/guarantees/test_coupling_channels.py::"
T_HIDDEN = "tests/guarantees/test_coupling_hidden.py::"
T_A = "tests/guarantees/test_statement_a.py::"
T_WATCH = "tests/engine/test_isolation_watch.py::"
T_NUMBERS = "tests/engine/test_public_numbers.py::"
T_LENGTHS = "tests/engine/test_public_lengths.py::"
T_FEEDING = "tests/engine/test_feeding_workers.py::"
T_READS = "tests/engine/test_device_reads.py::"
T_START = "tests/engine/test_start_of_a_run.py::"
T_INSIDE = "tests/engine/test_inside_a_microbatch.py::"
T_HALF = "tests/engine/test_compiled_runs_in_half_precision.py::"
T_COMPILED = "tests/routing/test_compiled.py::"
T_RULES = "tests/guarantees/test_gradient_rules.py::"
T_MASKS = "tests/guarantees/test_masks_of_heads_and_experts.py::"

RANDOMNESS = (
    Mutant(
        "a number is a function of the example", ADDRESSES,
        'owner_tag(step: int, owner: bytes) -> bytes:\n    """The part of an address that says whose number it is."""\n',
        'owner_tag(step: int, owner: bytes) -> bytes:\n    owner = owner[:32]\n',
        T_RANDOMNESS + "test_spread_over_several_microbatches",
    ),
    Mutant(
        "a number is a function of the descriptor", ADDRESSES,
        "step.to_bytes(8, \"little\") + owner, digest", "step.to_bytes(8, \"little\") + owner[-4:], digest",
        T_ADDRESSES + "test_every_part_of_an_address_counts",
    ),
    Mutant(
        "a number is a function of the step", ADDRESSES,
        'blake2b(step.to_bytes(8, "little") + owner', 'blake2b(bytes(8) + owner',
        T_ADDRESSES + "test_every_part_of_an_address_counts",
    ),
    Mutant(
        "a number is a function of the module", ADDRESSES, '"little") + path.encode()', '"little")',
        T_ADDRESSES + "test_every_part_of_an_address_counts",
    ),
    Mutant(
        "a number is a function of the n-th draw", ADDRESSES, 'blake2b(nth.to_bytes(8, "little") + path', 'blake2b(path',
        T_ADDRESSES + "test_every_part_of_an_address_counts",
    ),
    Mutant(
        "a number is a function of the seed", ADDRESSES, 'b"dptrain.forward/1\\x00" + seed', 'b"dptrain.forward/1\\x00"',
        T_ADDRESSES + "test_every_part_of_an_address_counts",
    ),
    Mutant(
        "rows have numbers of their own", ADDRESSES,
        "[hashlib.blake2b(owner + place, digest_size=_NONCE)", "[hashlib.blake2b(place, digest_size=_NONCE)",
        T_ADDRESSES + "test_words_are_chacha20_under_the_key_and_nonce_of_the_address",
    ),
    Mutant(
        "positions within a row have numbers of their own", ADDRESSES,
        "return torch.from_numpy(out.view(np.int32))[:, :count]",
        "return torch.from_numpy(out.view(np.int32))[:, :1].expand(-1, count).contiguous()",
        T_ADDRESSES + "test_words_are_chacha20_under_the_key_and_nonce_of_the_address",
    ),
    Mutant(
        "a mask keeps at its stated rate", ADDRESSES, "halves < level - _LEVELS // 2", "halves <= level - _LEVELS // 2",
        T_ADDRESSES + "test_a_mask_keeps_at_the_rate_that_is_stated",
    ),
    Mutant(
        "a draw knows its module", INTERCEPTION, 'return "~".join((found, *reversed(outside)))', 'return "everywhere"',
        T_DRAWS + "test_more_draws_in_one_module_do_not_move_those_of_another",
    ),
    Mutant(
        "a draw knows which of its module it is", INTERCEPTION, "counts[path] = nth + 1", "counts[path] = 0",
        T_DRAWS + "test_a_module_that_runs_twice_draws_twice",
    ),
    Mutant(
        "a recomputation is known by where it stands in its program", INTERCEPTION,
        "return place if 0 <= place <= len(self.current.log) else len(self.current.log)", "return len(self.current.log)",
        T_INTERCEPTION + "test_a_checkpoint_computes_the_same_masks_again",
    ),
    Mutant(
        "a recomputation takes the numbers of the first run, of both kinds", INTERCEPTION,
        "        position = self.position()\n        if position < len(now.log):\n            found = now.log[position]\n"
        "            if isinstance(found, Draw)",
        "        position = self.position()\n        if False:\n            found = now.log[position]\n"
        "            if isinstance(found, Draw)",
        T_RANDOMNESS + "test_computed_once_more_by_a_checkpoint",
    ),
    Mutant(
        "a recomputation goes on to the draw behind the one it repeats", INTERCEPTION,
        "found.request == asked:\n                torch.default_generator.manual_seed(now.seed + position + 1)",
        "found.request == asked:\n                torch.default_generator.manual_seed(now.seed + position)",
        T_REPLAYED + "test_masks_inside_a_checkpoint_are_dropped_and_drawn_again_alike",
    ),
    Mutant(
        "what everybody shares belongs to no owner", INTERCEPTION,
        "self.numbers, given)\n        return Draw(place, asked, layout, (shared_tag(now.step),), self.numbers, given)",
        "self.numbers, given)\n        return Draw(place, asked, layout, now.owners[:1], self.numbers, given)",
        T_DRAWS + "test_what_everybody_shares_is_the_same_in_every_microbatch_of_a_step",
    ),
    Mutant(
        "what everybody shares is one for all microbatches of a step", INTERCEPTION,
        "self.numbers, given)\n        return Draw(place, asked, layout, (shared_tag(now.step),), self.numbers, given)",
        "self.numbers, given)\n        return Draw(place, asked, layout, (shared_tag(now.number),), self.numbers, given)",
        T_DRAWS + "test_what_everybody_shares_is_the_same_in_every_microbatch_of_a_step",
    ),
    Mutant(
        "what everybody shares is close to one in the probes", INTERCEPTION,
        'alone = asked.kind == "uniform" and', 'alone = False and asked.kind == "uniform" and',
        T_DRAWS + "test_what_everybody_shares_is_close_to_one_in_the_probes_so_that_skipped_layers_run",
    ),
    Mutant(
        "the dimension of the rows is learnt", LAYOUTS, 'return Layout(dim, each, a.shape), ""',
        'return Layout(0, each, a.shape), ""',
        T_DRAWS + "test_dropout_between_recurrent_layers_belongs_to_rows_though_time_comes_first",
    ),
    Mutant(
        "so is how many entries a row has in it", LAYOUTS, 'return Layout(dim, each, a.shape), ""',
        'return Layout(dim, 1, a.shape), ""',
        T_DRAWS + "test_attention_of_torch_draws_for_rows_times_heads",
    ),
    Mutant(
        "numbers keep their address where a draw is shorter", PASSES, "whole = self.layout.whole(shape)", "whole = shape",
        T_INTERCEPTION + "test_where_padding_is_cut_the_masks_of_what_is_left_stay",
    ),
    Mutant(
        "a draw that is larger than any that the probes saw is refused", LAYOUTS,
        "all(a <= b for a, b in zip(shape, most, strict=True))", "True",
        T_INTERCEPTION + "test_more_numbers_of_a_row_than_any_probe_had_are_refused",
    ),
    Mutant(
        "rows are put where the draw has them", PASSES, "rows.movedim(0, dim).reshape(shape)", "rows.reshape(shape)",
        T_DRAWS + "test_dropout_between_recurrent_layers_belongs_to_rows_though_time_comes_first",
    ),
    Mutant(
        "a layout that two passes leave open is none", LAYOUTS, "if len(differ) > 1 or rest or each == 0",
        "if rest or each == 0",
        T_LAYOUTS + "test_what_two_shapes_leave_open_has_no_layout",
    ),
    Mutant(
        "a secret draw without a layout is refused", INTERCEPTION,
        "that do not follow content\n        return None", "that do not follow content\n        return SHARED",
        T_DRAWS + "test_a_draw_that_no_probe_saw_is_refused_by_name",
    ),
    Mutant(
        "and so is one whose rows were not to be found", INTERCEPTION, "if not self.secret:\n            return SHARED",
        "if True:\n            return SHARED",
        T_DRAWS + "test_what_cannot_be_addressed_is_refused_by_name_where_draws_are_secret",
    ),
    Mutant(
        "an operation that draws in an unknown way is refused", INTERCEPTION,
        "        if self.secret:\n            raise UnsupportedModule(",
        "        if False:\n            raise UnsupportedModule(",
        T_DRAWS + "test_what_cannot_be_addressed_is_refused_by_name_where_draws_are_secret",
    ),
    Mutant(
        "a part of a contribution begins where the last one ended", READER, "planned.examples, first=first, fill",
        "planned.examples, first=0, fill",
        T_RANDOMNESS + "test_spread_over_several_microbatches",
    ),
    Mutant(
        "collate that draws is seeded for every example", READER, "_Apart(collate, 1, seeds, generators)",
        "_Apart(collate, 1)", T_RANDOMNESS + "test_augmentation_in_collate_belongs_to_the_example",
    ),
    Mutant(
        "by a seed of that example", READER, "self._generators.seed(self._seeds[start])",
        "self._generators.seed(self._seeds[0])",
        T_RANDOMNESS + "test_augmentation_in_collate_belongs_to_the_example",
    ),
    Mutant(
        "and of that step", READER, "seed_of(owner_tag(step, name), \"collate\")", "seed_of(owner_tag(0, name), \"collate\")",
        T_RANDOMNESS + "test_augmentation_in_collate_is_drawn_anew_in_every_step",
    ),
    Mutant(
        "a collate with a generator of its own is refused", FEEDING, "if len(slots) == 1 and self._sandbox.secret:",
        "if False:",
        T_RANDOMNESS + "test_collate_that_draws_from_a_generator_of_its_own_is_refused",
    ),
    Mutant(
        "nobody is drawn ahead of the charge", ENGINE, " or self.recorder.needs_charge(coming):", ":",
        T_FEEDING + "test_nobody_is_drawn_before_the_window_of_the_step_is_charged",
    ),
    Mutant(
        "rows that were made before collate was seen to draw are made again", FEEDING,
        "return all(one.draws[1] == reader.collate_draws for one in done)", "return True",
        T_FEEDING + "test_collate_that_begins_to_draw_amid_a_run_is_seeded_from_the_same_microbatch_on",
    ),
    Mutant(
        "a worker draws under the seed of the run", FEEDING_WORKERS, "Numbers(task.seed)", "Numbers(bytes(16))",
        T_FEEDING + "test_a_run_is_the_same_to_the_bit_with_workers_and_without",
    ),
    Mutant(
        "what a worker cannot read is read again where it belongs", FEEDING,
        "            self._tell(failed[0])\n            return None\n", "            raise RuntimeError(failed[0].failed)\n",
        T_FEEDING + "test_content_that_changed_is_refused_where_it_would_be_without_workers",
    ),
    Mutant(
        "workers end with the run", ENGINE, "        self.ended = ended\n        self.feeder.close()\n",
        "        self.ended = ended\n",
        T_FEEDING + "test_no_process_and_no_open_file_is_left_behind_a_run",
    ),
    Mutant(
        "norms come to the host at once", CLIPPING, "    if len({square.device for square in squares}) == 1:", "    if False:",
        T_READS + "test_the_host_reads_a_device_once_a_microbatch",
    ),
    Mutant(
        "Python's generator is put back", GENERATORS, "        random.setstate(self._before[0])\n", "",
        T_INTERCEPTION + "test_generators_stand_where_they_stood_whatever_was_drawn",
    ),
    Mutant(
        "numpy's generator is put back", GENERATORS, "        np.random.set_state(self._before[1])\n", "",
        T_INTERCEPTION + "test_generators_stand_where_they_stood_whatever_was_drawn",
    ),
    Mutant(
        "torch's generator is put back", INTERCEPTION, "                torch.set_rng_state(before)", "                pass",
        T_RANDOMNESS + "test_the_users_generators_stand_where_they_stood_however_many_microbatches_ran",
    ),
    Mutant(
        "what Python and numpy draw in a forward does not follow what they drew before", INTERCEPTION,
        'hosts.seed(self.numbers.seed_of(shared_tag(step), "python and numpy"))', "pass",
        T_INTERCEPTION + "test_python_and_numpy_draw_the_same_in_every_microbatch_of_a_step",
    ),
    Mutant(
        "a forward that draws from Python or numpy is refused where draws are secret", START,
        "if self._sandbox.host_draws and self._sandbox.secret:", "if False:",
        T_RANDOMNESS + "test_a_forward_that_draws_from_python_or_numpy_is_refused_where_draws_are_secret",
    ),
    Mutant(
        "a graph gets the numbers of its own rows", COMPILED,
        "names = tuple(rows.names[place] for place in index.tolist())",
        "names = tuple(rows.names[0] for place in index.tolist())",
        T_COMPILED + "test_dropout_is_drawn_anew_and_for_every_contribution_by_itself",
    ),
    Mutant(
        "in their order", ROUTER, "with sandbox.enter(sandbox.current.step, rows.names, given=given, length=rows.length)",
        "with sandbox.enter(sandbox.current.step, rows.names[::-1], given=given, length=rows.length)",
        T_COMPILED + "test_dropout_is_drawn_anew_and_for_every_contribution_by_itself",
    ),
    Mutant(
        "and of its own step", ROUTER, "with sandbox.enter(sandbox.current.step, rows.names, given=given, length=rows.length)",
        "with sandbox.enter(0, rows.names, given=given, length=rows.length)",
        T_COMPILED + "test_dropout_is_drawn_anew_and_for_every_contribution_by_itself",
    ),
    Mutant(
        "the seed of a run is kept in its checkpoints", ENGINE, "self.states = [self.sandbox, *states]",
        "self.states = [*states]",
        T_RANDOMNESS + "test_in_a_run_that_is_resumed_in_a_process_with_another_seed",
    ),
    Mutant(
        "and goes on from there", INTERCEPTION, 'self.numbers = Numbers(bytes.fromhex(state["seed"]))', "pass",
        T_RANDOMNESS + "test_in_a_run_that_is_resumed_in_a_process_with_another_seed",
    ),
    Mutant(
        "another run of a module for one contribution has its rows of a draw", REPLAY, "draw.of_rows(start, examples)",
        "draw.of_rows((start + examples) % rows, examples)",
        T_REPLAYED + "test_one_contribution_after_the_other_has_its_own_masks",
    ),
    Mutant(
        "and one of all rows has them in their order", REPLAY, "value = draw.by_row()\n        if",
        "value = draw.by_row()\n        value = None if value is None else value.roll(1, 0)\n        if",
        T_REPLAYED + "test_sums_are_those_of_the_same_masks",
    ),
)

WRITTEN = (
    Mutant(
        "what an operation would write is a copy", WRITES, "copy = value.detach().clone()", "copy = value.detach()",
        T_WRITES + "test_a_write_to_what_the_model_keeps_is_not_carried_out_and_named",
    ),
    Mutant(
        "so are the running statistics that a norm writes without a word", KINDS, "    if func in _STATISTICS:\n",
        "    if False:\n", T_WRITES + "test_a_write_to_what_the_model_keeps_is_not_carried_out_and_named",
    ),
    Mutant(
        "tensors that modules hold as plain attributes count", WRITES,
        "for name, value in vars(module).items():", "for name, value in ():",
        T_WRITES + "test_a_write_to_what_the_model_keeps_is_not_carried_out_and_named",
    ),
    Mutant(
        "and those of their classes", WRITES, "for name, value in vars(kind).items():", "for name, value in ():",
        T_WRITES + "test_a_write_to_what_the_model_keeps_is_not_carried_out_and_named",
    ),
    Mutant(
        "and those of plain objects", WRITES, "if found is None and objects:", "if False:",
        T_WRITES + "test_a_write_to_what_the_model_keeps_is_not_carried_out_and_named",
    ),
    Mutant(
        "and those in dictionaries", WRITES, "if isinstance(value, dict):", "if False:",
        T_WRITES + "test_a_write_to_what_the_model_keeps_is_not_carried_out_and_named",
    ),
    Mutant(
        "the checksum covers them", WRITES, " or self._changed_others()", "",
        T_WRITES + "test_a_write_that_no_operation_announces_is_found_at_the_release",
    ),
    Mutant(
        "a look inside a microbatch takes no checksums", WRITES, " and not _get_current_dispatch_mode_stack()", "",
        T_WRITES + "test_a_look_inside_a_microbatch_takes_no_checksums",
    ),
    Mutant(
        "memory has one tensor's place until the next look", WRITES, "self._alive.append(StorageWeakRef(storage))", "pass",
        T_WRITES + "test_what_took_the_place_of_a_note_of_the_last_call_is_not_taken_for_it",
    ),
    Mutant(
        "the checksum covers buffers", WRITES, "for kind in (self._model.named_parameters, self._model.named_buffers):",
        "for kind in (self._model.named_parameters,):",
        T_WRITES + "test_a_write_that_no_operation_announces_is_found_at_the_release",
    ),
    Mutant(
        "and frozen parameters", WRITES, "for kind in (self._model.named_parameters, self._model.named_buffers):",
        "for kind in (self._model.named_buffers,):",
        T_WRITES + "test_a_write_that_no_operation_announces_is_found_at_the_release",
    ),
    Mutant(
        "buffers and parameters under new names count", WRITES, "for name in {**self._sealed, **now} if",
        "for name in self._sealed if",
        T_WRITES + "test_a_write_that_no_operation_announces_is_found_at_the_release",
    ),
    Mutant(
        "a checksum sees where a word lies", UNTOUCHED,
        "(grid.sum(1) * rows[: len(grid)]).sum() + (grid.sum(0) * columns).sum()", "grid.sum()",
        T_WRITES + "test_a_checksum_sees_any_one_change_and_any_swap",
    ),
    Mutant(
        "a run whose forward wrote ends at the end of its window", ENGINE,
        "        if ended:\n            refusals.refuse_written(self.sandbox)\n", "",
        T_INSIDE + "test_a_forward_that_begins_to_write_writes_a_copy_and_ends_the_run_at_the_end_of_its_window",
    ),
    Mutant(
        "what changed all the same is looked for at every release", TOGETHER, "blank = kept.changed() or ", "blank = ",
        T_INSIDE + "test_once_something_changed_that_no_operation_announced_noise_alone_is_released",
    ),
    Mutant(
        "noise alone is released then", RELEASE, "            if blank:\n                total.zero_()\n", "",
        T_INSIDE + "test_once_something_changed_that_no_operation_announced_noise_alone_is_released",
    ),
    Mutant(
        "a forward that writes in the probes is refused", START,
        "        if name is None:\n            return\n        if name in dict",
        "        if name is not None:\n            return\n        if name in dict",
        T_INSIDE + "test_a_table_with_a_largest_norm_is_refused_at_the_start_and_left_as_it_is",
    ),
    Mutant(
        "digests of what is not trained are those of the start", WEIGHTS, "if name not in self._fixed:", "if True:",
        T_INSIDE + "test_the_digest_of_what_is_not_trained_is_that_of_the_start_whatever_was_written_since",
    ),
)

LEAVES = (
    Mutant(
        "leaves are looked for in every microbatch, of every shape", INTERCEPTION, "        if torch.is_grad_enabled():\n",
        "        if self.current.probing:\n",
        T_INTERCEPTION + "test_a_leaf_behind_a_reentrant_checkpoint_is_found_when_it_is_computed_again_and_keeps_no_gradient",
    ),
    Mutant(
        "a leaf that was met is met again", INTERCEPTION,
        "        now = self.current\n        if not isinstance(leaf, nn.Parameter) or",
        "        now = self.current\n        if id(leaf) in self._anchors or self._anchors.add(id(leaf)) or now.rows == 2:\n"
        "            return\n        if not isinstance(leaf, nn.Parameter) or",
        T_INSIDE + "test_a_leaf_outside_the_model_is_refused_whenever_it_first_takes_part",
    ),
    Mutant(
        "a backward pass is refused before it fills a foreign leaf", ROUTER,
        "        if sandbox is not None:\n            sandbox.refuse_leaves(losses)\n            weight",
        "        if sandbox is not None:\n            weight",
        T_INSIDE + "test_a_leaf_outside_the_model_is_refused_whenever_it_first_takes_part",
    ),
    Mutant(
        "the graph is walked for leaves that no operation showed", INTERCEPTION,
        "for leaf in () if losses is None else untouched.reached(losses):", "for leaf in ():",
        T_INTERCEPTION + "test_leaves_that_no_operation_of_the_microbatch_shows_are_found_in_the_graph",
    ),
    Mutant(
        "a leaf that a backward pass of the user's own has filled is emptied", INTERCEPTION,
        "                leaf.grad = None\n",
        "                pass\n",
        T_INSIDE + "test_a_leaf_that_a_backward_pass_of_the_users_own_has_filled_is_emptied_and_refused",
    ),
)


def _no_handler(operation: str, handler: str, test: str) -> Mutant:
    line = f"            _aten.{operation}: self.{handler},\n"
    return Mutant(f"{operation} is total", INDICES, line, "", T_INDICES + test)


_READ = "test_an_index_out_of_range_gives_its_row_nan_and_moves_nobody"
_WRITTEN = "test_what_is_written_out_of_range_is_dropped_and_the_row_is_marked"

EVENTS = (
    Mutant("a row takes its own share of a source", INDICES, "_aten.masked_scatter.default: self._scatter_masked,", "",
           "tests/sandbox/test_dealt_sources.py::test_a_row_that_asks_for_another_share_moves_nobodys"),
    Mutant("the gradient of a share goes to whose it is", INDICES,
           "_aten.masked_scatter_backward.default: self._scatter_masked_backward,", "",
           "tests/sandbox/test_dealt_sources.py::test_a_row_that_asks_for_another_share_moves_nobodys"),
    Mutant(
        "rows that were kept of a table are added to its sum once", CLIPPING, "rows = self._tables.pop(index, None)",
        "rows = self._tables.get(index)",
        "tests/routing/test_table_sums.py::test_a_table_is_the_sum_of_its_rows_to_the_bit",
    ),
    Mutant(
        "beside a sum none are kept", CLIPPING, "or self._sums[index] is not None or not isinstance(piece, Gather)",
        "or not isinstance(piece, Gather)",
        "tests/routing/test_table_sums.py::test_rows_are_kept_while_they_take_a_quarter_of_the_room_of_the_sum",
    ),
    Mutant(
        "ranks hand on the sums of tables too", CLIPPING, "if self.sink is not None or self._sums[index]",
        "if self._sums[index]",
        "tests/routing/test_table_sums.py::test_where_ranks_keep_parts_of_sums_every_microbatch_hands_its_own_on",
    ),
    Mutant("a row that asks for another share counts as zero", INDICES,
           "self._stained(_aten.masked_scatter.default(target, own, source), bad.view(-1, *(1,) * (target.dim() - 1)))",
           "_aten.masked_scatter.default(target, own, source)",
           "tests/sandbox/test_dealt_sources.py::test_a_row_that_asks_for_another_share_moves_nobodys"),
    _no_handler("embedding.default", "_embedding", _READ + "[embedding-1000]"),
    _no_handler("gather.default", "_along", _READ + "[gather-1000]"),
    _no_handler("index_select.default", "_along", _READ + "[index_select-1000]"),
    _no_handler("nll_loss_forward.default", "_nll", _READ + "[cross entropy of rows-1000]"),
    _no_handler("nll_loss2d_forward.default", "_nll", _READ + "[cross entropy-1000]"),
    _no_handler("nll_loss2d_backward.default", "_nll_backward", "test_the_way_back_is_total_too[cross entropy]"),
    _no_handler("index.Tensor", "_index", _READ + "[index-1000]"),
    _no_handler("take.default", "_take", _READ + "[take-1000]"),
    _no_handler("scatter.src", "_write_along", _WRITTEN + "[scatter src-10]"),
    _no_handler("index_put.default", "_put", _WRITTEN + "[index_put-10]"),
    Mutant(
        "one_hot is total", MODES, "    torch.nn.functional.one_hot: _one_hot,\n", "",
        T_INDICES + _WRITTEN + "[one_hot-10]",
    ),
    Mutant(
        "labels that are to be ignored are not out of range", INDICES, "return _outside(target, classes) & (target != ignored)",
        "return _outside(target, classes)", T_INDICES + "test_labels_that_are_to_be_ignored_are_ignored",
    ),
    Mutant(
        "what was out of range shows in its row alone", INDICES, "return out.masked_fill(bad[..., None], torch.nan)",
        "return out.masked_fill(bad.any(), torch.nan)", T_INDICES + _READ + "[embedding-1000]",
    ),
    Mutant(
        "a row that counts as zero is struck", INTERCEPTION, "return weight.masked_fill(out, torch.nan)", "return weight",
        T_INDICES + "test_weights_of_rows_that_count_as_zero_are_nan",
    ),
    Mutant(
        "so is one that was marked", INTERCEPTION, "            out = out | self.current.bad\n", "            pass\n",
        T_INDICES + "test_weights_of_rows_that_count_as_zero_are_nan",
    ),
    Mutant(
        "what a payload raises stays inside", REPEATED, "            losses = self.failed(model, rows, error)\n",
        "            raise error\n",
        T_INSIDE + "test_a_hostile_payload_counts_as_zero_and_moves_no_other[5-raises]",
    ),
    Mutant(
        "who raises alone counts as zero, and not the others", FOLDING, "                self._add(pieces, bounds)\n",
        "                self._add({}, bounds)\n",
        T_INSIDE + "test_a_hostile_payload_counts_as_zero_and_moves_no_other[5-raises]",
    ),
    Mutant(
        "a contribution is repeated once", REPEATED, "            yield pieces, own\n",
        "            yield pieces, own\n            yield pieces, own\n",
        T_INSIDE + "test_a_hostile_payload_counts_as_zero_and_moves_no_other[5-raises]",
    ),
    Mutant(
        "a contribution that is repeated has the random numbers that it had", "dptrain/data/microbatch.py",
        "names = self.names[own] + row_names((), self.examples, fill=contributions - 1)",
        "names = row_names((), self.examples, fill=contributions)",
        T_INSIDE + "test_whoever_is_repeated_alone_has_the_masks_that_it_has_together",
    ),
    Mutant(
        "what raises on rows of nobody is raised", REPEATED, "            raise own from None\n", "            pass\n",
        T_INSIDE + "test_a_program_that_raises_on_rows_of_nobody_raises",
    ),
    Mutant(
        "a truth that the probes saw one way is told that way", INTERCEPTION,
        "answer = bool(func(*args, **kwargs)) if told is None else told",
        "answer = bool(func(*args, **kwargs))",
        T_INTERCEPTION + "test_a_truth_that_the_probes_saw_one_way_is_told_that_way_whatever_a_row_says",
    ),
    Mutant(
        "a truth that follows no content is counted", INTERCEPTION,
        "            self.truths.see(", "            if content:\n                self.truths.see(",
        T_INTERCEPTION + "test_a_truth_that_follows_no_content_does_not_move_those_behind_it",
    ),
    Mutant(
        "truths whose number follows the rows are told alike", TRUTHS,
        "        if not counted:\n            return answers[0]\n", "",
        T_INTERCEPTION + "test_truths_of_a_loop_over_rows_are_told_alike_whatever_the_place_of_a_row",
    ),
    Mutant(
        "losses made from those of private.loss are refused", REPEATED,
        "        if losses is not self._made.losses():", "        if False:",
        T_CHANNELS + "test_losses_made_from_those_of_private_loss_are_refused_at_the_start",
    ),
)

START_UP = (
    Mutant(
        "the probes read no private row", ENGINE,
        "                if form.descriptor.admissibility_class in public\n", "",
        T_START + "test_no_forward_before_the_charge_meets_a_private_contribution",
    ),
    Mutant(
        "where there are public ones too", ENGINE,
        "                if form.descriptor.admissibility_class in public\n", "                if public\n",
        T_START + "test_of_a_corpus_with_a_public_class_they_meet_public_contributions_alone",
    ),
    Mutant(
        "made-up rows show gradients, or others are asked for", START,
        "        if not self._dead:\n            return", "        if True:\n            return",
        T_START + "test_a_loss_in_which_no_trained_tensor_has_a_gradient_asks_for_other_rows",
    ),
    Mutant(
        "losses of the probes are finite", START, "if bool(torch.isfinite(losses).all()):", "if True:",
        "tests/guarantees/test_coupling.py::test_nan_losses_before_the_first_step_are_refused_and_nothing_is_charged",
    ),
    Mutant(
        "tensors that the probes saw nothing of are in the header", ENGINE,
        "unprobed=self.probe.unprobed, ", "",
        T_START + "test_tensors_in_whose_gradient_the_probes_saw_nothing_are_named_in_the_header",
    ),
    Mutant(
        "those whose gradient is rounding alone are among them", START, "tuple(sorted({*self._exact.silent, *never}))",
        "tuple(sorted(never))",
        T_HIDDEN + "test_a_gradient_that_is_rounding_noise_alone_is_no_mismatch",
    ),
    Mutant(
        "what the probes move is put back bit for bit", PROBES,
        "            for parameter, before in zip(parameters, kept, strict=True):\n"
        "                local(parameter).copy_(before)",
        "            for parameter, before in zip(parameters, kept, strict=True):\n"
        "                local(parameter).copy_(before.add(0.0))",
        T_HIDDEN + "test_gates_without_anything_behind_them_pass_and_are_shut_again_to_the_bit",
    ),
    Mutant(
        "and what they stretch", PROBES,
        "            for parameter, before in zip(vectors, kept, strict=True):\n"
        "                local(parameter).copy_(before)",
        "            for parameter, before in zip(vectors, kept, strict=True):\n                pass",
        T_HIDDEN + "test_gates_without_anything_behind_them_pass_and_are_shut_again_to_the_bit",
    ),
)

STATEMENT_A = (
    Mutant(
        "clip_blocks_ goes by the norm of each block", RELEASE,
        "[torch.stack([torch.linalg.vector_norm(piece).double() for piece in own]) for own in pieces.values()]",
        "[torch.stack([torch.linalg.vector_norm(g).double() for _, g in self._released]) for own in pieces.values()]",
        T_WATCH + "test_every_block_is_scaled_by_its_own_norm_and_a_small_one_is_left_to_the_bit",
    ),
    Mutant(
        "a weakening is in the EPOCH leaf", ENGINE,
        "self.recorder.close_epoch(number, self.weights.records(), self.isolation.told, self.opened.now())",
        "self.recorder.close_epoch(number, self.weights.records(), HELD, self.opened.now())",
        T_WATCH + "test_a_weakening_found_during_a_run_is_in_its_ledger_and_its_audit",
    ),
    Mutant(
        "a weakening is in the checkpoint", ENGINE, "told, noise = self.isolation.told, None",
        "told, noise = HELD, None", T_WATCH + "test_a_weakening_survives_a_crash_before_its_epoch_was_closed",
    ),
    Mutant(
        "once weakened it stays weakened", ISOLATION,
        "        if not self.held:\n            return\n        self.told = reason",
        "        self.told = reason", T_WATCH + "test_a_second_reason_of_another_kind_does_not_replace_the_first",
    ),
    Mutant(
        "where the policy requires A, what weakens it is refused", ISOLATION, "        if self._required:\n",
        "        if False:\n",
        T_WATCH + "test_where_the_policy_requires_a_it_is_refused_before_the_optimizer_moves_anything",
    ),
    Mutant(
        "a subclass of an optimizer is not its base", OPTIMIZERS, "return KNOWN.get(type(optimizer), Reach.UNKNOWN)",
        "return next((far for kind, far in KNOWN.items() if isinstance(optimizer, kind)), Reach.UNKNOWN)",
        T_A + "test_a_subclass_is_not_its_base_even_if_it_changes_nothing",
    ),
    Mutant(
        "SparseAdam is refused before the charge", OPTIMIZERS, "    torch.optim.SparseAdam: (\n", "    type(None): (\n",
        T_A + "test_optimizers_that_cannot_take_what_is_released_are_refused_before_anything_is_charged[SparseAdam]",
    ),
    Mutant(
        "LBFGS is refused before the charge", OPTIMIZERS, "    torch.optim.LBFGS: (\n", "    type(None): (\n",
        T_A + "test_optimizers_that_cannot_take_what_is_released_are_refused_before_anything_is_charged[LBFGS]",
    ),
    Mutant(
        "gradients that were changed after their release are seen", RELEASE,
        "if self._isolation.held and (not told or self._gradients.changed()):", "if False:",
        T_WATCH + "test_whatever_writes_a_gradient_after_its_release_weakens_a",
    ),
    Mutant(
        "so are parameters that something else wrote", RELEASE, "if self._step and found != self._versions:", "if False:",
        T_WATCH + "test_whatever_writes_parameters_beside_the_optimizer_weakens_a",
    ),
)

COUPLING = (
    Mutant(
        "an error counts against its own tensor", PROBES,
        "if not error <= tolerance * size + floor:",
        "if not error <= tolerance * max(1e-300, float(sizes.max())) + floor:",
        T_HIDDEN + "test_a_gradient_that_is_missing_is_refused_however_small_it_is_beside_others",
    ),
    Mutant(
        "rounding of a gradient that is zero in theory is no error", PROBES,
        "if not error <= tolerance * size + floor:",
        "if not error <= tolerance * size:",
        T_HIDDEN + "test_a_gradient_that_is_rounding_noise_alone_is_no_mismatch",
    ),
    Mutant(
        "what a probe compares is no truth of the loop", PROBES, "    noise = _noise_of(truth,",
        "    with router.inside():\n        noise = _noise_of(truth,",
        T_HIDDEN + "test_a_branch_of_the_loss_or_the_loop_goes_the_way_that_the_probes_saw",
    ),
    Mutant(
        "gates are opened", PROBES, "step = 0.1 * size if size > 0.0 else 0.02", "step = 0.0",
        T_HIDDEN + "test_what_hides_behind_a_gate_that_starts_at_zero_is_refused",
    ),
    Mutant(
        "company is changed under stretched activations too", START,
        "if rows > 1 and left >= 2 * self._cost(rows):", "if False:",
        T_HIDDEN + "test_in_smaller_microbatches_decisions_are_refused_as_often_as_stated[OutlierColumns-4-13]",
    ),
    Mutant(
        "and so is that of a whole microbatch", START,
        "                with stretched(self._router, _SEED):\n                    yield from self._compare_losses(",
        "                with nullcontext():\n                    yield from self._compare_losses(",
        T_HIDDEN + "test_decisions_over_the_batch_are_refused_in_each_of_16_corpora[OutlierColumns-8]",
    ),
    Mutant(
        "part of the budget is kept for that", START, "left - (reserved or STRETCHED * left)", "left",
        T_HIDDEN + "test_in_smaller_microbatches_decisions_are_refused_as_often_as_stated[OutlierColumns-4-13]",
    ),
    Mutant(
        "every contribution changes its company", START,
        "        for kept in sorted(range(rows), key=lambda number: _FIRST.index(number % KINDS)):\n",
        "        for kept in (0,):\n",
        T_HIDDEN + "test_decisions_over_the_batch_are_refused_in_each_of_16_corpora[DropsChannels-8]",
    ),
    Mutant(
        "a contribution alone is a company too", START, "        yield [0]\n    for turn", "        pass\n    for turn",
        T_CHANNELS + "test_a_forward_that_takes_a_row_alone_for_something_else_is_refused",
    ),
    Mutant(
        "where everybody is alone the first comes again", START, "(*range(1, KINDS), 0))", "range(1, KINDS))",
        T_CHANNELS + "test_numbers_that_have_no_address_are_refused_in_microbatches_of_one_as_well",
    ),
    Mutant(
        "numbers of all fall on both sides in the probes", START, "            if sandbox.coins:\n", "            if False:\n",
        T_CHANNELS + "test_a_coupling_behind_a_number_of_all_is_refused_on_either_side_of_it",
    ),
    Mutant(
        "where everybody is alone, rows of every kind are asked", START, "(*range(1, KINDS), 0))", "(KINDS, 0))",
        T_CHANNELS + "test_a_question_about_padding_is_answered_truly_where_everybody_is_alone",
    ),
    Mutant(
        "a whole microbatch is compared with a few rows", START, "    yield crowd\n", "    yield crowd[:rows]\n",
        T_CHANNELS + "test_what_shows_in_no_few_rows_is_refused_by_a_whole_microbatch",
    ),
    Mutant(
        "a probe during a run does not tell what private microbatches wrote", START,
        "before, sandbox.kept.written = sandbox.kept.written, None", "before = None",
        T_INSIDE + "test_a_probe_during_a_run_does_not_tell_of_what_a_private_microbatch_wrote",
    ),
    Mutant(
        "nor makes it forgotten", START, "sandbox.kept.written = before or sandbox.kept.written", "pass",
        T_INSIDE + "test_a_probe_during_a_run_does_not_tell_of_what_a_private_microbatch_wrote",
    ),
    Mutant(
        "what a loss drew until it raised at a label shows nothing", START,
        "while made.extremes != before:", "while before is None:",
        T_CHANNELS + "test_a_loss_that_raises_at_a_label_to_leave_out_is_probed_without",
    ),
    Mutant(
        "now and then on the other side too", START, 'sandbox.coin = "low" if', 'sandbox.coin = "high" if',
        T_HIDDEN + "test_the_probes_run_again_now_and_then_on_rows_that_are_nobodys_and_see_what_came_since",
    ),
    Mutant(
        "no loss has a gradient at other rows", PROBES, "bool((others.isfinite() & (others != 0)).any())", "False",
        "tests/guarantees/test_coupling.py::test_batch_statistics_without_a_name_are_found_by_the_jacobian_probe",
    ),
    Mutant(
        "some labels that are made up are left out", SYNTHETIC, "IGNORING = (1, 3)", "IGNORING = ()",
        T_CHANNELS + "test_a_loss_over_the_number_of_labels_in_the_microbatch_is_refused",
    ),
    Mutant(
        "a mask shows one token alone until a loss needs more", SYNTHETIC, "self.shortest = 1 if", "self.shortest = SHOWN if",
        T_CHANNELS + "test_made_up_labels_and_masks_leave_something_whatever_the_length",
    ),
    Mutant(
        "but not from a loss that knows no such label", START, "self._made.give_up()", "pass",
        T_CHANNELS + "test_a_loss_that_knows_no_label_to_leave_out_is_probed_without",
    ),
    Mutant(
        "Linear8bitLt is refused by name", COUPLINGS, '    "Linear8bitLt": "tells outlier columns by all rows of the batch",\n',
        "",
        T_HIDDEN + "test_modules_that_quantise_by_the_batch_are_refused_by_name[Linear8bitLt]",
    ),
    Mutant(
        "hooks and forwards that come after the start are seen", COUPLINGS, "if now[name] != self._seen.get(name)), None)",
        "if False), None)",
        T_HIDDEN + "test_a_hook_or_a_forward_that_comes_after_the_start_is_refused_by_name",
    ),
    Mutant(
        "a forward of a module's own among them", COUPLINGS, 'type(module).forward, vars(module).get("forward")',
        "type(module).forward, None",
        T_HIDDEN + "test_a_hook_or_a_forward_that_comes_after_the_start_is_refused_by_name[forward]",
    ),
    Mutant(
        "and hooks of all modules", COUPLINGS, "for name in _EVERYWHERE for hook", "for name in () for hook",
        T_HIDDEN + "test_a_hook_of_all_modules_that_comes_after_the_start_is_refused",
    ),
    Mutant(
        "the probes run again during a run", START, "return step - self._last >= max(AGAIN, epoch_steps)", "return False",
        T_HIDDEN + "test_the_probes_run_again_now_and_then_on_rows_that_are_nobodys_and_see_what_came_since",
    ),
    Mutant(
        "P2 compares the same contributions", PROBES, "both = [name for name in first if name in second]", "both = []",
        "tests/guarantees/test_coupling.py::test_detached_batch_statistics_are_found_by_the_replacement_probe",
    ),
)

ORDER = (
    Mutant(
        "depth follows what runs, not what is registered", DEPTH,
        "    if owner in ran and all(layer in ran for layer in layers):\n",
        "    if False:\n", "tests/guarantees/test_coupling.py::test_depth_follows_what_runs_and_not_what_is_registered",
    ),
    Mutant(
        "what runs in another order than was found out is refused", PROBES,
        "if (place == HEAD and i < begins) or (place == EMBEDDINGS and i > ends):", "if False:",
        "tests/guarantees/test_coupling.py::test_layers_that_run_in_another_order_than_could_be_found_out_are_refused",
    ),
)

HALF = (
    Mutant(
        "half precision is known by what modules compute in, not by autocast outside", COMPILED,
        "half = half or router.half or found.dtype in HALF", 'half = torch.is_autocast_enabled("cpu")',
        T_HALF + "test_the_comparison_allows_what_half_precision_rounds_wherever_it_is_switched_on[accelerate]",
    ),
    Mutant(
        "no compiler runs under the user's autocast", GRAPHS,
        "with outside, torch.autocast(values[0].device.type, enabled=False), building", "with outside, building",
        T_HALF + "test_it_runs_through_the_real_compiler_and_agrees_with_the_hook_form[autocast]",
    ),
    Mutant(
        "no graph casts but where its trace did", GRAPHS,
        "with torch.no_grad(), torch.autocast(values[0].device.type, enabled=False), aside:", "with torch.no_grad(), aside:",
        T_HALF + "test_a_graph_casts_where_its_trace_did_and_nowhere_else[autocast]",
    ),
    Mutant(
        "a comparison in half precision allows what that rounds, and no more", COMPILED, "HALF_AGREEMENT = 5e-2",
        "HALF_AGREEMENT = 5e-1",
        T_HALF + "test_the_comparison_allows_what_half_precision_rounds_wherever_it_is_switched_on[autocast]",
    ),
)

RULES = (
    Mutant(
        "a rule's form that is not wanted is dropped", REGISTRY, "        if call.wants(name):\n            least",
        "        if True:\n            least",
        T_RULES + "test_what_is_not_wanted_is_dropped",
    ),
    Mutant(
        "an id out of range stays with its contribution", FORMS, "self.ids_NT.clamp(0, shape[0] - 1)", "self.ids_NT",
        T_RULES + "test_an_id_out_of_range_stays_with_its_contribution",
    ),
    Mutant(
        "a form has a row per contribution", REGISTRY, "        if fault:\n", "        if False:\n",
        T_RULES + "test_a_wrong_rule_is_told_by_parameter_and_sample[examples for contributions]",
    ),
    Mutant(
        "a form is one whose norm is known", REGISTRY, "if type(form) not in (Dense, Outer, Gather):",
        "if not isinstance(form, Form):",
        T_RULES + "test_a_wrong_rule_is_told_by_parameter_and_sample[a form of its own]",
    ),
    Mutant(
        "a rule of a base is not that of a subclass with another forward", REGISTRY,
        "steps == 0 or subclasses or kind.forward is named.forward", "True",
        T_RULES + "test_a_kind_that_is_served_needs_replace",
    ),
    Mutant(
        "nor that of a parametrized module", REGISTRY, "if nearest and is_parametrized(module)",
        "if False and is_parametrized(module)",
        T_RULES + "test_a_parametrized_module_is_not_its_base",
    ),
    Mutant(
        "a kind that is served needs replace", REGISTRY, "        if not replace:\n", "        if False:\n",
        T_RULES + "test_a_kind_that_is_served_needs_replace",
    ),
    Mutant(
        "other samples that are NaN do not show", RULE_CHECK, "hostile = poison and", "hostile = False and",
        T_RULES + "test_a_wrong_rule_is_told_by_parameter_and_sample[NaN of other samples]",
    ),
    Mutant(
        "half precision is widened before norms and sums", FORMS, "return value.float() if value.dtype in",
        "return value if value.dtype in",
        "tests/guarantees/test_peer_bugs_privacy.py::test_norms_and_sums_are_formed_in_full_precision",
    ),
    Mutant(
        "what a contribution may not touch has coefficient zero", CLIPPING,
        "return torch.where(self.permitted_NG, table_NG, torch.zeros((), dtype=torch.float64))",
        "return table_NG + 0.0 * self.permitted_NG",
        T_RULES + "test_a_users_rule_serves_the_engine_as_its_own_do[1]",
    ),
    Mutant(
        "a slice that nobody may touch is not captured", ROUTER, "            if i in armed.active:\n",
        "            if True:\n",
        T_MASKS + "test_a_slice_that_nobody_may_touch_is_not_captured",
    ),
)

LENGTHS = (
    Mutant(
        "a microbatch holds one length", PACKING,
        "if waiting and (item.reads, item.length) != (waiting[0].reads, waiting[0].length):", "if False:",
        T_LENGTHS + "test_what_a_contribution_gives_is_the_same_whoever_is_drawn_with_it",
    ),
    Mutant(
        "the probes run in rows of every length", START,
        "for self._length in lengths[1:]:", "for self._length in lengths[1:1]:",
        T_LENGTHS + "test_a_coupling_at_one_length_alone_is_found_before_anything_is_charged[4]",
    ),
    Mutant(
        "rows have the length that was signed", RULES_OF_POLICY, "return signed.public_length or longest", "return longest",
        T_LENGTHS + "test_every_contribution_has_the_length_that_it_signed_or_the_longest",
    ),
    Mutant(
        "a length is one that the class offers", GATE, "descriptor.public_length not in rule.public_lengths:", "False:",
        "tests/attest/test_gate.py::test_code_PUBLIC_LENGTH",
    ),
    Mutant(
        "all records of a person are in one contribution", ITEMS,
        "found.setdefault(by(item) if callable(by) else item[by], [])",
        "found.setdefault((len(found), by(item) if callable(by) else item[by]), [])",
        "tests/train/test_own_people.py::test_all_records_of_a_person_are_one_contribution_which_epsilon_is_for",
    ),
)

NUMBERS = (
    Mutant(
        "an evaluation without privacy is told to nobody", TRAINER, "        if self._asked:\n            return control\n", "",
        "tests/integrations/test_reports.py::"
        "test_an_evaluation_without_privacy_in_the_middle_of_a_window_reaches_no_service",
    ),
    Mutant(
        "a learning rate that the loop set is not told", "dptrain/engine/refusals.py",
        "return found if found in (list(first), *set_last) else []", "return found",
        T_NUMBERS + "test_what_the_loop_sets_is_not_told_beside_a_scheduler_either",
    ),
    Mutant(
        "nor one that a plateau of a loss set", "dptrain/engine/refusals.py",
        "        and not isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)\n", "",
        T_NUMBERS + "test_what_a_plateau_of_a_loss_sets_is_not_told",
    ),
    Mutant(
        "lines come when the ledger settles their window", ENGINE,
        "if ended or self.recorder.ledger.header.occurrences_public:", "if True:",
        T_NUMBERS + "test_where_draws_are_secret_lines_come_when_a_window_is_settled",
    ),
)

GROUPS = {
    "noise that is correlated": CORRELATED,
    "the geometry of pairs": TANGENTS,
    "tables and masks of transformers": TABLES,
    "time before the examples": TURNED,
    "narrowed forwards": NARROWED,
    "gradient rules and masks": RULES,
    "clipped sums and their release": CLIPPED,
    "random numbers": RANDOMNESS,
    "shorter ways to the same bits": FASTER,
    "kernels and workers": COMPUTED,
    "values dealt out over rows": DEALT_OUT,
    "what a forward writes": WRITTEN,
    "foreign leaves": LEAVES,
    "events that follow content": EVENTS,
    "the start": START_UP,
    "lengths and people": LENGTHS,
    "public numbers": NUMBERS,
    "statement A": STATEMENT_A,
    "couplings": COUPLING,
    "order of depth": ORDER,
    "half precision": HALF,
    "beside the ledger": BESIDE,
    "what contributors signed": ATTESTED,
    "consent to a use": CONSENT,
    "the ledger in its place": IN_THEIR_PLACE,
    "bounds in an audit": BOUNDS,
    "figures of an audit": FIGURES,
    "releases": RELEASES,
    "several processes": ON_RANKS,
    "what a served model releases": SERVED,
    "the gate before a model": GATED,
    "the server": SERVING,
    "text from references": FROM_REFERENCES,
    "the budget of contributions": CONTRIBUTIONS,
    "limits over runs": COUNTS,
    "runs of texts": GENERATED,
    "texts beside runs": TEXTS_BESIDE,
    "what queries retrieve": RETRIEVED,
}
"""Mutants by what they break."""
