"""The faults that made peers silently wrong or stopped them, and the tests here that would have caught each.

Seen in Opacus 1.6.0, fastDP 2.0.0, private-transformers, dp-transformers. A test of the three files beside this one is named
bare, a test elsewhere by file and name.
"""

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent
OWN = ("test_peer_bugs_privacy.py", "test_peer_bugs_training.py", "test_peer_bugs_blocking.py")

PRIVACY_BROKEN = {
    "two owners of the bound: clip by one, noise by the other": ["test_clip_and_noise_follow_one_bound"],
    "token-mean loss and padding; num_items_in_batch": [
        "test_the_token_mean_loss_of_hugging_face_is_refused",
        "test_num_items_in_batch_of_the_trainer_is_refused",
        "test_coupling.py::test_a_mean_over_the_tokens_of_the_batch_is_refused",
    ],
    "tied embedding and head: one norm overwrites the other": ["test_norm_of_a_tied_head_counts_both_uses"],
    "module called twice: activations overwritten": ["test_a_module_called_twice_has_the_gradient_of_both_calls"],
    "noise divided by N or sqrt(N) by a flag": [
        "test_noise_is_not_divided_among_processes",
        "test_null_batch.py::test_noise_of_every_block_has_the_scheduled_variance",
    ],
    "the same seed on all ranks samples the same records": ["test_sampling_does_not_follow_set_seed"],
    "noise from torch's generator repeats after set_seed": [
        "test_noise_does_not_follow_set_seed",
        "test_null_batch.py::test_a_resumed_run_draws_fresh_noise_and_pays_again",
    ],
    "Poisson accounting of shuffled batches": ["test_accounting_for_poisson_comes_with_poisson_draws"],
    "the normalizer tells the size of the data": ["test_the_normalizer_is_a_public_constant"],
    "bf16 parameters exceed the bound": [
        "test_bfloat16_never_exceeds_the_bound",
        "test_norms_and_sums_are_formed_in_full_precision",
    ],
    "the spend is lost with save_state and load_state": ["test_the_spend_survives_save_state_and_load_state"],
}

TRAINING_WRONG = {
    "accelerator.prepare after make_private: nobody reduces": [
        "test_a_model_is_wrapped_for_several_processes_before_prepare_and_not_behind_it",
        "test_a_wrapper_put_around_a_part_later_is_found_at_the_next_step",
        "../engine/test_engine_order.py::test_accelerator_before_and_after_prepare_are_both_right",
    ],
    "accumulation drops all microbatches but the last": ["test_every_microbatch_of_a_step_counts"],
    "accumulate(k): divided by k twice, q k accounted": [
        "test_accelerate_accumulation_is_one_at_open_and_refused_behind",
        "test_microbatches_do_not_count_as_steps",
    ],
    "breaking out of the loop leaves signals behind": [
        "test_breaking_out_of_a_step_leaves_nothing_behind",
        "test_a_step_left_in_the_probe_can_be_taken_again",
    ],
    "padding_idx ignored": ["test_the_padding_row_receives_no_signal"],
    "the norm of an unused module stays from the batch before": [
        "test_a_module_that_does_not_run_adds_nothing_of_the_last_batch"
    ],
    "a forward without backward leaves activations": ["test_a_forward_without_backward_changes_nothing"],
    "unsupported layers frozen with a print()": ["test_an_unknown_layer_is_trained_or_refused_never_frozen"],
    "a tensor without gradient at the first step is dropped": ["test_a_tensor_unused_at_first_stays_in_the_schedule"],
}

BLOCKED = {
    "empty Poisson batch raises inside forward": [
        "test_an_empty_draw_is_a_step_without_a_forward",
        "test_release_from_first_principles.py::test_an_empty_draw_is_released_as_it_is",
    ],
    "a distributed sampler yields nothing for an empty draw": ["test_empty_draws_are_not_left_out_of_the_steps"],
    "position ids of shape [1, T], or expanded": ["test_position_ids_of_any_form_are_exact"],
    "LayerNorm(bias=False), 4-D linear inputs, unused parameters": [
        "test_layer_norm_without_bias_is_exact",
        "test_a_linear_layer_on_four_dimensions_is_exact",
        "test_an_unused_parameter_does_not_stop_a_run_and_is_named_when_it_is_used",
    ],
    "register_step_pre_hook is an AttributeError": ["test_step_hooks_and_schedulers_see_private_gradients"],
    "int(1 / (1 / n)) is not n": ["test_the_number_of_steps_is_the_integer_that_was_signed"],
    "T5LayerNorm norm sampler of the wrong shape": ["test_the_norm_of_t5_sums_over_positions"],
    "RMSNorm classes of transformers match no sampler": ["test_rms_norms_of_any_class_have_a_rule"],
    "state_dict keys start with _module., no save_pretrained": [
        "test_state_dict_keys_and_save_pretrained_are_those_of_the_model"
    ],
    "accelerator.clip_grad_norm_ has no effect": ["test_clip_grad_norm_of_accelerate_acts_on_the_noised_gradient_alone"],
    "drop_last ignored; a short last batch divided by the full size": [
        "test_the_last_microbatch_is_neither_dropped_nor_padded",
        "test_a_short_last_microbatch_weighs_what_its_contributions_weigh",
    ],
}

ALL = PRIVACY_BROKEN | TRAINING_WRONG | BLOCKED


def functions(path: Path) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(path.read_text())
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


OWN_TESTS = {name: node for file in OWN for name, node in functions(HERE / file).items()}


@pytest.mark.parametrize("fault", list(ALL))
def test_every_fault_of_a_peer_has_a_test(fault: str) -> None:
    """The table names tests that exist; a bullet without one fails here."""
    assert ALL[fault], "no test for this fault"
    for name in ALL[fault]:
        file, _, elsewhere = name.rpartition("::")
        assert elsewhere in (functions(HERE / file) if file else OWN_TESTS), name
    assert any("::" not in name for name in ALL[fault]), "a fault has at least one test of its own here"


def test_the_table_is_whole() -> None:
    """Eleven faults broke privacy, nine the training, eleven stopped it; every test is listed and says whom it is about."""
    assert (len(PRIVACY_BROKEN), len(TRAINING_WRONG), len(BLOCKED)) == (11, 9, 11)
    listed = {name for names in ALL.values() for name in names}
    assert sorted(set(OWN_TESTS) - listed) == []
    assert all(ast.get_docstring(node) for node in OWN_TESTS.values())
