"""Mutants of narrowed forwards: what a class reads, who shares its microbatches, and what a release certifies of it."""

from tests.mutants.mutant import Mutant

FORWARDS = "dptrain/blocks/forwards.py"
STEP = "dptrain/engine/step.py"
ENGINE = "dptrain/engine/prepared.py"
START = "dptrain/engine/start.py"
PACKING = "dptrain/data/packing.py"
REFUSALS = "dptrain/engine/refusals.py"
RULES = "attest/policy/rules.py"
READS = "attest/schedule/reads.py"
SAID = "ledger/leaves/reads.py"
INFLUENCE = "ledger/replay/influence.py"

T_RUNS = "tests/guarantees/test_narrowed_forwards.py::"
T_SWAP = T_RUNS + "test_a_swapped_payload_leaves_the_adapter_of_another_class_and_its_optimizer_state_equal_to_the_last_bit"
T_OWN = T_RUNS + "test_a_microbatch_runs_the_adapter_of_its_contributions_and_of_nobody_else"
T_SPLIT = "tests/test_batching.py::test_how_those_who_read_alike_are_split_does_not_follow_from_who_else_was_drawn"
T_HEADER = "tests/ledger/test_reads_of_a_header.py::"

NARROWED = (
    Mutant(
        "private microbatches run under the adapters of their class", ENGINE,
        "reads = self.schedule.read_sets[planned.reads]", "reads = None", T_SWAP,
    ),
    Mutant("adapters are switched off", FORWARDS, "layer.module._active_adapter = layer.narrowed(reads)", "pass", T_SWAP),
    Mutant(
        "an adapter that is not read does not run", FORWARDS, "if reads is not None and adapter not in reads:", "if False:",
        T_RUNS + "test_a_loop_that_runs_another_adapter_is_refused",
    ),
    Mutant(
        "tensors that are not read are looked for", START, "with spoiled(self._router, self._reads) as adapters:",
        "with spoiled(self._router, None) as adapters:",
        T_RUNS + "test_a_loss_that_uses_tensors_of_an_adapter_that_it_does_not_read_is_refused_before_the_first_charge",
    ),
    Mutant("every set of reads is probed", START, "sets = self._sets[1:]", "sets = self._sets[:0]", T_SWAP),
    Mutant("adapters are active again behind a microbatch", FORWARDS, "layer.module._active_adapter = active", "pass", T_OWN),
    Mutant(
        "those who read otherwise share no microbatch", PACKING,
        "if waiting and (item.reads, item.length) != (waiting[0].reads, waiting[0].length):",
        "if waiting and item.length != waiting[0].length:", T_SPLIT,
    ),
    Mutant(
        "those who read alike are taken one after the other", PACKING, "return item.reads, -(item.length or 0),",
        "return 0, -(item.length or 0),", T_SPLIT,
    ),
    Mutant(
        "adapters stay as they were bound", FORWARDS, "        self._require_as_bound()\n        before", "        before",
        T_RUNS + "test_adapters_that_are_changed_during_a_run_end_it",
    ),
    Mutant(
        "other kinds of adapters are refused", FORWARDS,
        "if not _switched(module, entry.attribute, entry.adapter, entry.kind):", "if False:",
        T_RUNS + "test_adapters_that_are_not_known_to_be_switched_off_are_refused",
    ),
    Mutant(
        "learning rates that a loss may have set are refused", ENGINE, "if self.forwards.narrows and self._rates != rates:",
        "if False:", T_RUNS + "test_learning_rates_that_no_scheduler_set_are_refused_since_a_loss_may_have",
    ),
    Mutant(
        "no class shows in the probes", ENGINE, "if rule.public and not narrows(self.policy.classes)}", "if rule.public}",
        T_RUNS + "test_so_it_is_beside_a_public_class_that_reads_no_adapter_of_theirs",
    ),
    Mutant(
        "weights of an earlier epoch certify nothing free", "ledger/release/create.py",
        "weights.commitment.step == run.position", "True",
        T_HEADER + "test_the_weights_of_an_earlier_epoch_certify_no_adapter_free",
    ),
    Mutant(
        "one graph for all is refused", REFUSALS, "    if compiled:\n", "    if False:\n",
        T_RUNS + "test_one_graph_for_all_and_parameters_over_ranks_are_refused_by_name",
    ),
    Mutant(
        "reads require statement A", RULES, "if narrowed is not None and not self.isolation_required:", "if False:",
        "tests/attest/test_policy_words.py::test_what_is_malformed_is_refused_as_that_and_not_as_unbuilt",
    ),
    Mutant(
        "no class touches what it does not read", READS, "if blind is not None:", "if False:",
        T_HEADER + "test_what_reads_cannot_be_of_is_refused_where_the_stack_is_known",
    ),
    Mutant(
        "a parameter is of its adapter by its names", READS, "        if name is not None:\n", "        if False:\n",
        T_HEADER + "test_what_reads_cannot_be_of_is_refused_where_the_stack_is_known",
    ),
    Mutant(
        "the base is read by everybody", READS, "open_to = {None, *rule.reads.adapters}", "open_to = {*rule.reads.adapters}",
        T_HEADER + "test_a_base_that_a_class_trains_leads_to_every_adapter",
    ),
    Mutant(
        "what a header says of reads is what follows", SAID, "        if row != due:", "        if False:",
        T_HEADER + "test_what_does_not_follow_from_policy_and_stack_about_reads_is_refused",
    ),
    Mutant(
        "influence follows the reads", INFLUENCE, "reads = header.reading if final else", "reads = header.reading if True else",
        T_RUNS + "test_a_run_that_stopped_early_certifies_no_adapter_free",
    ),
)
