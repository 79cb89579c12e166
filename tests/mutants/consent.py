"""Mutants of consent: what keeps a contribution from a use that was not signed for, or that its class does not have."""

from tests.mutants.mutant import Mutant

DESCRIPTOR = "attest/descriptor.py"
CLASSES = "attest/policy/classes.py"
RULES = "attest/policy/rules.py"
CHECKS = "attest/gate/checks.py"
GATE = "attest/gate/gate.py"
ADMISSION = "attest/gate/admission.py"
WORKERS = "attest/gate/workers.py"
READING = "attest/gate/reading.py"
VERDICTS = "attest/gate/verdicts.py"
RESOLVER = "dptrain/clipping/resolver.py"
ENGINE = "dptrain/engine/prepared.py"
HEADER = "ledger/leaves/header.py"
CODEC = "ledger/leaves/codec.py"
ATTESTED = "ledger/audit/attested.py"
COMMAND = "dptrain/cli/gate.py"

T = "tests/attest/test_purposes.py::"
T_RUN = "tests/engine/test_consent_of_a_run.py::"
T_LIES = "tests/attacks/test_ledger_attacks_bounds.py::test_what_nobody_signed_is_found"
T_CLI = "tests/cli/test_cli_purposes.py::"

CONSENT = (
    Mutant(
        "who signed no purposes allows training alone", DESCRIPTOR,
        "return purpose in (self.purposes or (TRAIN,))", "return purpose in (self.purposes or BUILT)",
        T + "test_a_contribution_is_admitted_to_what_its_contributor_signed_alone",
    ),
    Mutant(
        "nobody signs for queries", DESCRIPTOR, "            if word not in BUILT:", "            if word not in PURPOSES:",
        T + "test_nobody_signs_for_queries_yet",
    ),
    Mutant(
        "the contributor signed for the use", CHECKS, "    if not descriptor.allows(purpose):", "    if not descriptor.corpus:",
        T + "test_a_contribution_is_admitted_to_what_its_contributor_signed_alone",
    ),
    Mutant(
        "the class has the use", CHECKS, "    if purpose not in rule.purposes:", "    if not rule.purposes:",
        T + "test_a_class_admits_to_what_the_policy_gives_it_alone",
    ),
    Mutant(
        "every examination asks for the use", CHECKS, "        check_purpose(descriptor, rule, purpose)\n", "",
        T + "test_a_contribution_is_admitted_to_what_its_contributor_signed_alone",
    ),
    Mutant(
        "an examiner asks for its own use", CHECKS, "            purpose=self._purpose,\n", "",
        T + "test_a_form_learned_for_one_use_or_class_passes_no_other",
    ),
    Mutant(
        "a gate judges for its own use", GATE,
        "examiner = Examiner(self._policy, self._registry, now, purpose=self._purpose)",
        "examiner = Examiner(self._policy, self._registry, now)",
        T + "test_a_corpus_is_judged_for_one_use_in_every_process",
    ),
    Mutant(
        "workers judge for the use of their gate", GATE, "now, purpose=self._purpose, spare=", "now, spare=",
        T + "test_a_corpus_is_judged_for_one_use_in_every_process",
    ),
    Mutant(
        "a worker judges for the use that it was told", WORKERS,
        "examiner = Examiner(policy, registry, now, purpose=purpose)", "examiner = Examiner(policy, registry, now)",
        T + "test_a_corpus_is_judged_for_one_use_in_every_process",
    ),
    Mutant(
        "a decision is for its use", GATE, "now=now, purpose=purpose)\n    if isinstance", "now=now)\n    if isinstance",
        T + "test_a_contribution_is_admitted_to_what_its_contributor_signed_alone",
    ),
    Mutant(
        "no content decides whether another is a reference", GATE, "descriptor_hash if purpose == GENERATE else content_hash",
        "descriptor_hash if purpose == BUILT else content_hash",
        T + "test_to_generation_equal_contents_are_each_a_contribution_and_an_attestation_is_good_for_once",
    ),
    Mutant(
        "what was noted is known to both uses", ADMISSION,
        "        self.claim(admission.descriptor_hash, admission.descriptor_hash)\n", "",
        T + "test_a_decision_for_generation_compares_no_contents_and_knows_an_attestation_again",
    ),
    Mutant(
        "generation compares no fingerprints", GATE, "if fingerprint is not None and purpose == GENERATE:", "if False:",
        T + "test_no_fingerprint_is_compared_for_generation",
    ),
    Mutant(
        "a gate serves no use that nobody built", GATE, "    if purpose not in BUILT:", "    if purpose == '':",
        T + "test_a_use_that_nobody_serves_is_refused_before_anything_is_judged",
    ),
    Mutant(
        "a gate takes what was remembered for its own use alone", GATE,
        "if remember is not None and remember.purpose != purpose:", "if remember is not None and not remember.purpose:",
        T + "test_what_was_remembered_for_one_use_is_refused_for_another",
    ),
    Mutant(
        "a kept reading is of one use", READING, "registry).root(), build_of(), purpose)", "registry).root(), build_of())",
        T + "test_a_reading_kept_for_one_use_spares_no_signature_for_another",
    ),
    Mutant(
        "a verdict is for one use", VERDICTS,
        "build_of(), extent.digest, purpose, now", "build_of(), extent.digest, TRAIN, now",
        T + "test_a_verdict_for_one_use_counts_for_no_other",
    ),
    Mutant(
        "a merge teaches no reading of another use", VERDICTS,
        "if into is not None and into.purpose != purpose:", "if into is not None and not into.purpose:",
        T + "test_a_verdict_for_one_use_counts_for_no_other",
    ),
    Mutant(
        "a rule of decoding pays for one text", CLASSES, "if self.text_nano > self.max_rho_nano:", "if self.text_nano < 0:",
        T + "test_a_rule_of_decoding_pays_for_one_text_at_least_and_says_the_numbers",
    ),
    Mutant(
        "what a token costs is rounded up", CLASSES, "return -(-(10**9) * self", "return ((10**9) * self",
        T + "test_a_token_costs_something_however_small_and_large_numbers_are_exact",
    ),
    Mutant(
        "a text costs all of its tokens", CLASSES, "return self.tokens * self.token_nano", "return self.token_nano",
        T + "test_a_rule_of_decoding_pays_for_one_text_at_least_and_says_the_numbers",
    ),
    Mutant(
        "a run has the classes that are for training", RULES,
        "trained = tuple(rule for rule in self.classes if rule.trained)", "trained = self.classes",
        T_RUN + "test_a_class_that_is_not_for_training_has_no_profile_adds_nothing_to_the_noise_of_a_block_and_opens_no_tensor",
    ),
    Mutant(
        "a run needs a class that is for training", RULES, "        if not trained:\n", "        if trained is None:\n",
        T_RUN + "test_a_policy_all_of_whose_classes_only_generate_starts_no_training",
    ),
    Mutant(
        "a run protects somebody", RULES, "if trained and all(rule.public for rule in trained):", "if not self.classes:",
        T_RUN + "test_classes_that_are_trained_on_need_one_that_is_not_public",
    ),
    Mutant(
        "a schedule has the classes that are for training", RESOLVER,
        "    policy = trained(policy)\n    if stack", "    if stack",
        T_RUN + "test_a_class_that_is_not_for_training_has_no_profile_adds_nothing_to_the_noise_of_a_block_and_opens_no_tensor",
    ),
    Mutant(
        "what turns bounds into noise asks for the use again", RESOLVER,
        "            check_purpose(descriptor, rule, TRAIN)\n", "",
        T_RUN + "test_nothing_rests_on_the_gate_having_run",
    ),
    Mutant(
        "a run goes by the classes of its schedule", ENGINE, "return self.signed.policy.for_training()",
        "return self.signed.policy",
        T_RUN + "test_a_run_trains_on_what_was_signed_for_it_and_is_audited_by_the_same_rule",
    ),
    Mutant(
        "places in a header count classes that are for training", CODEC, "return policy.for_training()", "return policy",
        T_RUN + "test_a_run_trains_on_what_was_signed_for_it_and_is_audited_by_the_same_rule",
    ),
    Mutant(
        "a header has the classes that are for training", HEADER, "policy = signed.policy.for_training()",
        "policy = signed.policy",
        T_RUN + "test_a_run_trains_on_what_was_signed_for_it_and_is_audited_by_the_same_rule",
    ),
    Mutant(
        "an audit asks what was signed to be trained on", ATTESTED,
        "                check_purpose(self.signed, rule, TRAIN)\n", "",
        T_LIES + "[not_signed_to_be_trained_on]",
    ),
    Mutant(
        "the command judges for the use that it was given", COMMAND,
        "remember=remember, purpose=purpose.value)", "remember=remember)",
        T_CLI + "test_the_gate_judges_for_the_purpose_that_it_is_given",
    ),
    Mutant(
        "the reading beside a ledger is that of training", COMMAND,
        "None if no_kept_reading or not training else", "None if no_kept_reading else",
        T_CLI + "test_a_gate_for_generation_refuses_what_was_withdrawn_in_a_ledger_and_leaves_its_reading_as_it_is",
    ),
)  # fmt: skip
