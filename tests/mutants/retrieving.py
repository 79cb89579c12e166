"""Mutants of retrieval: what a score may follow from, which rows there are, and that the corpus pays before it is looked at."""

from tests.mutants.mutant import Mutant

INK = "dptrain/inference/invisibleink/"
GENERATOR, FORMULAS, PAYING = (INK + f"{name}.py" for name in ("generator", "formulas", "paying"))
RETRIEVAL, SCORES = INK + "retrieval/corpus.py", INK + "retrieval/scores.py"
PURSE, ANSWERING = INK + "run/purse.py", INK + "run/answering.py"
ASKED, CONFIG, OFFERED = "dptrain/cli/generate/asked.py", "dptrain/serve/config.py", "dptrain/serve/generations/offered.py"

T_RETRIEVAL = "tests/inference/test_retrieval.py::"
T_GENERATOR = "tests/inference/test_ink_generator.py::"
T_TYPED = "tests/cli/test_cli_generate_queries.py::"
T_SERVED = "tests/serve/test_serve_generations_queries.py::"

_ONE = T_RETRIEVAL + "test_one_document_that_becomes_null_changes_at_most_one_reference_of_a_query"
_PAID = T_RETRIEVAL + "test_the_corpus_pays_for_a_query_before_one_document_is_looked_at"
_NULL = T_RETRIEVAL + "test_a_null_document_comes_last_wherever_it_lies_and_is_the_same_null_reference"
_READ = "        self._documents = tuple((one.id, one.text, self._read(one.text)) for one in references if one.text)\n"

RETRIEVED = (
    Mutant(
        "no length is learned from the corpus", RETRIEVAL, _READ,
        "        if isinstance(self.score, Lexical):\n"
        "            many = [len(one.text.split()) for one in references]\n"
        "            self._lexical = Lexical(length=max(1, round(sum(many) / len(many))))\n" + _READ, _ONE,
    ),
    Mutant(
        "no weight is learned from the corpus", RETRIEVAL, _READ,
        "        if isinstance(self.score, Lexical):\n"
        "            there = [set(one.text.split()) for one in references]\n"
        "            words = set().union(*there)\n"
        "            self._lexical = Lexical({word: 1 / sum(word in one for one in there) for word in words})\n" + _READ, _ONE,
    ),
    Mutant("a null document has no score", RETRIEVAL, " for one in references if one.text)", " for one in references)", _NULL),
    Mutant(
        "ids decide between equal scores", RETRIEVAL, "sorted((-self._scored(query, read), one, text) for one, text, read",
        "sorted((-self._scored(query, read), text, text) for one, text, read",
        T_RETRIEVAL + "test_equal_scores_are_decided_by_public_ids_and_not_by_what_stands_in_a_document",
    ),
    Mutant(
        "there is no threshold", RETRIEVAL, "return (*found, *[None] * (batch - len(found)))",
        "return (*found, *[None] * (batch - len(found)))[: max(1, sum(score < 0 for score, _, _ in scored))]",
        T_RETRIEVAL + "test_there_is_no_threshold_and_as_many_references_come_for_every_query",
    ),
    Mutant("null references fill up to B", RETRIEVAL, "(*found, *[None] * (batch - len(found)))", "tuple(found)", _NULL),
    Mutant(
        "a score is a finite number", RETRIEVAL, "        if not math.isfinite(found):\n", "        if False:\n",
        T_RETRIEVAL + "test_a_score_that_is_no_finite_number_is_refused_and_no_word_of_the_document_is_told",
    ),
    Mutant(
        "what a scorer says stays here", RETRIEVAL, "with {type(error).__name__} on", "with {error} on",
        T_RETRIEVAL + "test_what_a_scorer_says_when_it_ends_is_told_to_nobody",
    ),
    Mutant(
        "the corpus pays before it is looked at", RETRIEVAL,
        "        receipt = paid_for(meter, plan)\n"
        "        return ink.stream(self.best(query, plan.batch), PaidBefore(meter, receipt), labels=labels)\n",
        "        found = self.best(query, plan.batch)\n        return ink.stream(found, meter, labels=labels)\n", _PAID,
    ),
    Mutant("and nobody else pays", PAYING,
           '        if " retrieval " in mechanism and any(', "        if False and any(", _PAID),
    Mutant(
        "a plan of another adjacency costs too little", RETRIEVAL, "        if plan.adjacency != ADJACENCY:\n",
        "        if False:\n",
        T_RETRIEVAL + "test_a_plan_of_another_adjacency_costs_too_little_and_is_refused",
    ),
    Mutant(
        "a rank chooses no row", GENERATOR, "references = secrets.SystemRandom().sample(references, len(references))", "pass",
        T_GENERATOR + "test_a_retrieved_reference_has_a_row_that_was_drawn_at_random_since_its_rank_is_private",
    ),
    Mutant(
        "queries cost twice the sensitivity", FORMULAS, '"retrieval": 2}', '"retrieval": 1}',
        T_TYPED + "test_the_plan_has_the_charge_of_a_sensitivity_of_2C_over_B",
    ),
    Mutant(
        "a log has one corpus", PURSE, "return CORPUS.kind if plan.adjacency == ADJACENCY else CONTRIBUTION",
        "return CONTRIBUTION",
        T_TYPED + "test_each_query_has_one_text_and_an_auditor_verifies_that_the_corpus_paid",
    ),
    Mutant(
        "each attempt is noted before it is paid", ANSWERING, "        self.texts.note(number + 1, {})\n", "",
        T_TYPED + "test_a_query_whose_text_a_crash_cut_is_asked_again_and_paid_again",
    ),
    Mutant(
        "an id stands for one query", ANSWERING, "if known.get(one, text) != text]", "if False]",
        T_TYPED + "test_the_same_command_goes_on_with_queries_that_have_no_text_and_new_ones_can_be_added",
    ),
    Mutant(
        "attested references are not retrieved", ASKED, '            raise ConfigError("ADJACENCY", ATTESTED)\n',
        "            pass\n",
        T_TYPED + "test_attested_references_are_not_retrieved_and_the_reason_is_told",
    ),
    Mutant(
        "nor behind a server", CONFIG, '            yield f"generations.{name} retrieves: {ATTESTED}"\n', "            pass\n",
        T_SERVED + "test_what_does_not_go_with_queries_is_refused_when_the_file_is_read",
    ),
    Mutant(
        "a log is for queries or for batches", CONFIG, "if len({each.retrieve for each in self.generations.values()}) > 1:",
        "if False:",
        T_SERVED + "test_one_log_is_for_queries_or_for_batches",
    ),
    Mutant(
        "a corpus that was read again ends all its texts", OFFERED, "        if self._now is not corpus:\n",
        "        if False:\n",
        T_SERVED + "test_every_reading_of_a_corpus_ends_all_its_texts_so_that_none_tells_what_a_document_was",
    ),
    Mutant(
        "and that they end tells of no document", OFFERED, "        if self._now is not corpus:\n",
        "        if [one.text for one in self._now.references] != [one.text for one in corpus.references]:\n",
        T_SERVED + "test_every_reading_of_a_corpus_ends_all_its_texts_so_that_none_tells_what_a_document_was",
    ),
    Mutant(
        "no public number makes a score overflow", SCORES, "all(0.0 <= one <= MOST_WEIGHT for", "all(0.0 <= one < math.inf for",
        T_SERVED + "test_no_list_of_weights_that_is_read_makes_a_score_overflow",
    ),
    Mutant(
        "a document without a score is told to no client", OFFERED, '            if error.code != "SCORE":\n',
        "            if True:\n", T_SERVED + "test_a_document_without_a_score_is_told_to_no_client",
    ),
    Mutant(
        "a receipt pays for one text", PAYING, "        if not self._given.acquire(blocking=False):\n", "        if False:\n",
        T_RETRIEVAL + "test_a_receipt_of_what_was_paid_before_is_of_one_text",
    ),
    Mutant(
        "a query is looked at on a receipt alone", RETRIEVAL, "        receipt = paid_for(meter, plan)\n",
        "        receipt = meter.reserve(plan.tokens, mechanism=plan.mechanism, nano_rho=plan.nano_rho)\n",
        T_RETRIEVAL + "test_no_document_is_looked_at_on_a_receipt_of_less",
    ),
    Mutant(
        "the query of the prompts is the one that retrieves", RETRIEVAL,
        "        if (labels or {}).get(QUERY, checked(query)) != query:\n", "        if checked(query) != query:\n",
        T_RETRIEVAL + "test_what_is_wrong_with_the_words_of_a_query_is_told_before_it_is_paid_for",
    ),
    Mutant(
        "what others spent is told to nobody", OFFERED,
        '            raise Refused(403, "privacy_budget_exhausted", "EXHAUSTED", NO_QUERIES) from None\n',
        "            raise\n",
        T_SERVED + "test_the_corpus_has_paid_before_a_document_is_looked_at_and_nothing_runs_without_money",
    ),
)  # fmt: skip
