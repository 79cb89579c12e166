"""Mutants of a run of several processes: what went wrong in others' distributed training, broken once each."""

from tests.mutants.mutant import Mutant

PLACEMENT = "dptrain/parallel/placement.py"
RANKS = "dptrain/parallel/ranks.py"
TOGETHER = "dptrain/parallel/together.py"
WRAPPED = "dptrain/parallel/wrapped.py"
PACKING = "dptrain/data/packing.py"
DRAW = "dptrain/engine/draw.py"
PREPARED = "dptrain/engine/prepared.py"
STEP = "dptrain/engine/step.py"
RELEASE = "dptrain/engine/release.py"
OPEN = "dptrain/engine/private_training.py"
RECORDER = "dptrain/record/recorder.py"
CHECKPOINTS = "dptrain/record/checkpoints.py"
FOLLOWED = "ledger/log/followed.py"

T_SUMS = "tests/distributed/test_fast_sums.py::"
T_NOISE = "tests/distributed/test_noise_over_ranks.py::"
T_MESSAGES = "tests/distributed/test_messages.py::"
T_REFUSED = "tests/distributed/test_refused.py::"
T_ORDER = "tests/distributed/test_order_of_wrapping.py::"
T_KILLED = "tests/distributed/test_killed.py::"
T_WRITER = "tests/distributed/test_one_writer.py::"
T_DEALT = "tests/distributed/test_dealt.py::"
T_RESUMED = "tests/distributed/test_resumed.py::"
T_ONCE_MORE = "tests/distributed/test_guarantees_on_ranks.py::"
T_PROBES = "tests/distributed/test_sharded_probes.py::"
T_KEPT = "tests/distributed/test_float32_sums.py::"
T_FOLLOWED = "tests/ledger/test_followed.py::"

ON_RANKS = (
    Mutant(
        "each rank draws noise at its own place in a tensor", PLACEMENT,
        "yield Share(piece.lane, values, piece.first, self._sizes[piece.lane], unclipped)",
        "yield Share(piece.lane, values, 0, self._sizes[piece.lane], unclipped)",
        T_NOISE + "test_noise_is_that_of_one_process_to_the_bit",
    ),
    Mutant(
        "noise is added once, behind the sum over ranks", PLACEMENT,
        "        kind = torch.float64 if wide else torch.float32\n        sums =",
        "        if not getattr(self, '_inside', False):\n"
        "            noised, self._inside = list(totals), True\n"
        "            for lane, total in enumerate(noised):\n"
        "                yield Share(lane, total, 0, total.numel())\n"
        "            for _ in self.shares(iter(noised), wide=True):\n"
        "                pass\n"
        "            self._inside = False\n"
        "            return\n"
        "        kind = torch.float64 if wide else torch.float32\n        sums =",
        T_NOISE + "test_noise_is_that_of_one_process_to_the_bit",
    ),
    Mutant(
        "the noise of a part of a tensor is as large as that of the whole", RELEASE,
        "Step(step, share.lane, std, self._normalizer",
        "Step(step, share.lane, std * (share.values.numel() / share.size) ** 0.5, self._normalizer",
        T_NOISE + "test_noise_is_that_of_one_process_to_the_bit",
    ),
    Mutant(
        "caps count what earlier attempts drew, at every rank", DRAW, "        if drawn:\n", "        if drawn and leads:\n",
        T_RESUMED + "test_caps_count_the_draws_of_attempts_on_other_numbers_of_processes",
    ),
    Mutant(
        "every rank hears of what was charged", RECORDER, "            self._followed.take(news)\n", "            pass\n",
        T_RESUMED + "test_what_was_spent_is_carried_to_any_number_of_processes",
    ),
    Mutant(
        "every rank runs as many microbatches", PACKING, "for place in range(len(own), max(map(len, plans))):",
        "for place in range(len(own), 0):",
        T_SUMS + "test_ranks_run_as_many_microbatches_and_every_contribution_counts_on_one_of_them",
    ),
    Mutant(
        "a step that draws nobody is a step", STEP,
        "        for planned in parts.draw(number):\n",
        "        plans = parts.draw(number)\n        if not plans:\n            return\n        for planned in plans:\n",
        T_DEALT + "test_a_step_that_draws_nobody_is_a_step_of_every_rank",
    ),
    Mutant(
        "what was released is gathered from all ranks", PLACEMENT,
        "        self._wholes.append(gather(own, self._ranks))\n",
        "        self._wholes.append((own.repeat(self._ranks.size), []))\n",
        T_SUMS + "test_ranks_have_the_same_bits_at_every_step",
    ),
    Mutant(
        "every rank takes the optimizer's states from a checkpoint", CHECKPOINTS,
        "            optimizer.load_state_dict(moments)\n",
        "            optimizer.load_state_dict(moments) if recorder.ranks.leads else None\n",
        T_RESUMED + "test_a_run_that_moves_from_two_processes_to_one_and_back_has_the_bits_of_one_that_stays",
    ),
    Mutant(
        "a contribution falls to one rank with all its parts", PACKING, "        if one.last:\n            units.append([])",
        "        if one.slots:\n            units.append([])",
        T_DEALT + "test_a_contribution_that_is_spread_over_microbatches_is_clipped_once_on_one_rank",
    ),
    Mutant(
        "all ranks draw with one key", DRAW, "parted(recorder.ranks.first(begin))", "parted(begin())",
        T_NOISE + "test_without_a_test_key_runs_have_noise_of_their_own",
    ),
    Mutant(
        "a contribution counts on one rank", DRAW, "sorted(own, key=in_order)[rank::ranks]",
        "sorted(own, key=in_order)",
        T_SUMS + "test_ranks_run_as_many_microbatches_and_every_contribution_counts_on_one_of_them",
    ),
    Mutant(
        "sums of ranks are added and not averaged", PLACEMENT,
        "into.add_(sent.to(torch.float64))", "into.add_(sent.to(torch.float64)).mul_(0.5)",
        T_SUMS + "test_the_sum_over_ranks_is_that_of_a_naive_loop",
    ),
    Mutant(
        "sums of shards are added and not averaged", PLACEMENT,
        "        own += pieces[rank * width : (rank + 1) * width]\n    return own",
        "        own += pieces[rank * width : (rank + 1) * width]\n    return own / size",
        T_KEPT + "test_sums_are_those_of_one_process_within_what_is_paid_for",
    ),
    Mutant(
        "no rank draws before the charge", PREPARED,
        "        self.gradients.clear()\n        if self.recorder.needs_charge(number):\n",
        "        self.gradients.clear()\n        if not self.ranks.leads:\n            self._going.drawing.draw(number)\n"
        "        if self.recorder.needs_charge(number):\n",
        T_RESUMED + "test_no_rank_draws_for_a_step_before_its_charge_is_on_the_disk",
    ),
    Mutant(
        "a follower holds the root of the writer", FOLLOWED, "if (self.size, self.root) != (size, root):", "if self.size < 0:",
        T_FOLLOWED + "test_news_that_are_not_what_was_written_are_refused",
    ),
    Mutant(
        "a follower holds leaves against the run", FOLLOWED, "            if problems:\n", "            if not body:\n",
        T_FOLLOWED + "test_leaves_that_contradict_the_run_are_refused_though_size_and_root_are_right",
    ),
    Mutant(
        "what is idle counts as nothing", "dptrain/routing/accumulate.py", "        if planned.idle:\n",
        "        if planned.idle and not planned.slots:\n", T_SUMS + "test_the_sum_over_ranks_is_that_of_a_naive_loop",
    ),
    Mutant(
        "clip bounds pay for float32 between ranks", TOGETHER, "sums.wire = added if", "sums.wire = added * 2.0**-20 if",
        T_SUMS + "test_clip_bounds_shrink_by_what_the_wire_can_add",
    ),
    Mutant(
        "clip bounds pay for float32 over microbatches", TOGETHER, "self._most_microbatches if kind == SUMS32 else 0", "0",
        T_KEPT + "test_clip_bounds_pay_for_every_addition_in_float32",
    ),
    Mutant(
        "steps of more microbatches than were reckoned with keep float64", TOGETHER, "microbatches > self._most_microbatches",
        "microbatches < 0", T_KEPT + "test_a_step_of_more_microbatches_than_were_reckoned_with_keeps_float64",
    ),
    Mutant(
        "draws above the bound are sent as they are", TOGETHER, "drawn > self._most_drawn", "drawn < 0",
        T_MESSAGES + "test_bytes_on_the_wire_are_those_of_a_ring_and_half_as_many_again_where_sums_are_sent_as_they_are",
    ),
    Mutant(
        "a wrapper sends no buffers in a private forward", WRAPPED, "self._wrapper.require_forward_param_sync = False",
        "self._wrapper.require_forward_param_sync = True",
        T_MESSAGES + "test_nothing_is_sent_between_the_rows_of_a_microbatch_and_its_clipped_sum",
    ),
    Mutant(
        "a wrapper is told not to reduce", WRAPPED, "self._held.enter_context(self._wrapper.no_sync())", "self._held.pop_all()",
        T_ORDER + "test_a_wrapper_reduces_again_once_the_run_is_closed",
    ),
    Mutant(
        "who waits for tensors of a process that is gone is told", RANKS,
        "            return collective()\n        except RuntimeError as error:",
        "            return collective()\n        except FloatingPointError as error:",
        T_KILLED + "test_who_waits_for_tensors_of_a_process_that_is_gone_hears_that_a_rank_is_lost",
    ),
    Mutant(
        "what rank 0 is refused is refused everywhere", RECORDER, "        if failure:\n", "        if not news:\n",
        T_WRITER + "test_a_charge_that_rank_0_is_refused_is_refused_at_every_rank_and_nobody_draws",
    ),
    Mutant(
        "what rank 0 cannot open no rank opens", RANKS, "self._tell(_FAILED, named(error))", "self._tell(_DONE, b\"\")",
        T_WRITER + "test_a_second_writer_is_fenced_out_while_several_processes_train",
    ),
    Mutant(
        "what one rank must keep back none releases", TOGETHER, "return self.mixed or any(one[0] for one in found)",
        "return blank",
        T_ONCE_MORE + "test_a_forward_that_writes_at_one_rank_leaves_noise_alone_at_all_and_ends_all",
    ),
    Mutant(
        "probes compare rows of shards and hold no whole gradients", TOGETHER,
        "return Truth(router) if self._shards is None else Reduced(router, self._shards, self.ranks)", "return Truth(router)",
        T_PROBES + "test_probes_hold_as_many_bytes_a_coordinate_as_shards_have_and_one_tensor_more",
    ),
    Mutant(
        "no rank's own gradients are those of all in a probe", TOGETHER, "self.factor = 2.0 ** (ranks.rank % 2)",
        "self.factor = 1.0", T_PROBES + "test_what_is_wrong_at_one_rank_is_refused_at_all_by_the_same_tensor",
    ),
    Mutant(
        "a probe has one verdict at all ranks", TOGETHER, "self._ranks.carry(lambda: dist.all_reduce(carried))",
        "carried.mul_(self._ranks.size)", T_PROBES + "test_what_is_wrong_at_one_rank_is_refused_at_all_by_the_same_tensor",
    ),
    Mutant(
        "learning rates are compared at every step", TOGETHER,
        "((\"the draw of a step\", 3, ()), (\"learning rates\", 35, (_RATES,)))",
        "((\"the draw of a step\", 3, ()),)", T_REFUSED + "test_both_ranks_refuse_with_the_same_code_and_say_what_and_where",
    ),
    Mutant(
        "a rank that does not lead makes no inbox", OPEN, "            if ranks.leads:\n                inbox.make()\n",
        "            inbox.make()\n", T_WRITER + "test_a_rank_that_does_not_lead_writes_no_file",
    ),
    Mutant(
        "weights are compared before an epoch is closed", RECORDER,
        "self.ranks.agree({\"the weights\": b\"\".join(record.sha256 for record in records)})", "pass",
        T_REFUSED + "test_both_ranks_refuse_with_the_same_code_and_say_what_and_where",
    ),
    Mutant(
        "replicas are wrapped before a run is prepared", WRAPPED, "if ranks.size > 1 and _replicated(model) is None:",
        "if ranks.size > 9:", T_REFUSED + "test_both_ranks_refuse_with_the_same_code_and_say_what_and_where",
    ),
)  # fmt: skip
