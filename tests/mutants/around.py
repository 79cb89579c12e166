"""Mutants of tensors that are taken at a module around their own."""

from tests.mutants.mutant import Mutant

START = "dptrain/engine/start.py"
ROUTER = "dptrain/routing/router.py"
PROBES = "dptrain/routing/probes.py"

T_AROUND = "tests/guarantees/test_around.py::"

TAKEN_AROUND = (
    Mutant(
        "nothing is taken elsewhere once the start is over", START,
        "        finally:\n            self._router.noted = None\n", "        finally:\n            pass\n",
        T_AROUND + "test_in_a_private_microbatch_nothing_moves",
    ),
    Mutant(
        "what is taken around a module is no longer taken inside it", ROUTER,
        "if not _within(name, self.around.get(indices[key])))", "if indices[key] is not None)",
        T_AROUND + "test_a_tensor_is_taken_around_its_own_module_and_its_gradient_is_every_contributions_own",
    ),
    Mutant(
        "gradients found around a module are compared with autograd's own", PROBES,
        "floors = torch.where(around, floors + noise, floors)", "floors = torch.where(around, torch.inf, floors)",
        T_AROUND + "test_what_no_module_around_shows_is_refused_with_the_first_cause_and_the_last",
    ),
    Mutant(
        "the fault of somebody else's rule is told", PROBES,
        "tensors=() if any(map(partial(_foreign, router), wrong)) else tuple(wrong),", "tensors=tuple(wrong),",
        T_AROUND + "test_a_wrong_rule_of_somebody_elses_is_told_and_not_passed_over",
    ),
    Mutant(
        "a tensor acts where its place says, whatever ran", PROBES,
        "if used and inside != (place == EMBEDDINGS):", "if False:",
        T_AROUND + "test_a_tensor_that_acts_on_the_other_side_of_the_layers_is_refused",
    ),
)
