"""Retrieval of references: neighbours differ in one of them, whatever the query, and the corpus pays before it is looked at."""

import copy
import json
import math
import random
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dptrain.errors import ConfigError, NotPaid
from dptrain.inference.invisibleink import InvisibleInk, Plan, Task, probabilities
from dptrain.inference.invisibleink.formulas import bounded_range
from dptrain.inference.invisibleink.paying import BudgetMeter, PaidBefore
from dptrain.inference.invisibleink.plan import mechanism
from dptrain.inference.invisibleink.references import References
from dptrain.inference.invisibleink.retrieval import CORPUS, MOST_QUERY, Lexical, Retrieval, words_of
from dptrain.inference.invisibleink.retrieval.scores import MOST_LENGTH, MOST_WEIGHT
from ledger.budget.log import BudgetLog, BudgetSpec
from ledger.errors import BudgetExhausted
from tests.worlds.ink import Meter, Receipt, model, tokenizer
from tests.worlds.ledgers import SIGNER

WORDS = ("fever", "cough", "ward", "rash", "pain", "sleep", "tea", "night")
TASK = Task("Of {query}: say it.", "[[Of {reference}: ]]Of {query}: say it.", 20, labels=("query",))
PLAN = Plan.for_epsilon(8.0, delta=1e-6, batch=3, tokens=5, adjacency="retrieval")


def corpus(folder: Path, texts: list[str | None]) -> References:
    path = folder / "corpus.jsonl"
    path.write_text("".join(f"{json.dumps({'id': f'd{place:03}', 'text': text})}\n" for place, text in enumerate(texts)))
    return References.read(path, salt=bytes(16))


def of_chance(numbers: random.Random, most: int = 14) -> list[str | None]:
    """Returns a corpus in which some documents are alike, some are null, and lengths differ much."""
    lengths = (0, 1, 2, 3, 5, 8, 13, 40)
    return [
        " ".join(numbers.choices(WORDS, weights=range(1, 9), k=numbers.choice(lengths))) or numbers.choice(["", None])
        for _ in range(numbers.randint(1, most))
    ]


def differences(one: tuple[str | None, ...], other: tuple[str | None, ...]) -> int:
    """Returns in how many references two sets differ: in what is left of the larger when what both have is gone."""
    assert len(one) == len(other)
    return sum((Counter(one) - Counter(other)).values())


def by_the_centre(references: References):
    """Clusters, in the smallest form: who is near the middle of the corpus comes first."""
    lengths = [len(words_of(one.text)) for one in references if one.text]
    centre = sum(lengths) / max(1, len(lengths))
    return lambda query, text: -abs(len(words_of(text)) - centre)


def most_moved(folder: Path, score, worlds: int, gone: int = 1) -> int:
    """Returns the most references in which a query of neighbours differs, over worlds of chance."""
    numbers, most = random.Random(7), 0
    for _ in range(worlds):
        texts = of_chance(numbers)
        nulled = list(texts)
        for place in numbers.sample(range(len(texts)), min(gone, len(texts))):
            nulled[place] = numbers.choice(["", None])
        here, there = ([corpus(folder, one)] for one in (texts, nulled))
        query, batch = " ".join(numbers.choices(WORDS, k=numbers.randint(1, 4))), numbers.randint(1, 5)
        found = [Retrieval(*one, score(one[0])).best(query, batch) for one in (here, there)]
        most = max(most, differences(*found))
    return most


def by_the_corpus(references: References):
    """A scorer as it stands in libraries: its weights of words are learned from the corpus."""
    texts = [set(words_of(one.text)) for one in references if one.text]

    def score(query: str, text: str) -> float:
        found = set(words_of(text))
        weight = {one: math.log(1 + len(texts) / (1 + sum(one in each for each in texts))) for one in words_of(query)}
        return sum(weight[one] for one in weight if one in found)

    return score


def by_the_average_length(references: References):
    average = sum(len(words_of(one.text)) for one in references) / len(references)
    return Lexical(length=max(1, round(average)))


@pytest.mark.parametrize("worlds", [300, pytest.param(1500, marks=pytest.mark.slow)])
def test_one_document_that_becomes_null_changes_at_most_one_reference_of_a_query(tmp_path: Path, worlds: int) -> None:
    """The claim of `ADJACENCIES` for retrieval, over worlds of chance with ties, nulls, and fewer documents than B."""
    assert most_moved(tmp_path, lambda _: None, worlds) == 1
    assert most_moved(tmp_path, lambda _: lambda query, text: float(len(text)), worlds // 3) == 1
    assert most_moved(tmp_path, lambda _: lambda query, text: 0.0, worlds // 3) == 1


def test_the_documents_of_one_person_change_as_many_references_as_there_are(tmp_path: Path) -> None:
    assert most_moved(tmp_path, lambda _: None, 800, gone=3) == 3


@pytest.mark.one_in(23)
@pytest.mark.parametrize("score", [by_the_corpus, by_the_average_length, by_the_centre])
def test_a_scorer_that_learns_from_the_corpus_is_caught_by_the_same_worlds(tmp_path: Path, score) -> None:
    assert most_moved(tmp_path, score, 1500) > 1


def widest(folder: Path, score, worlds: int) -> float:
    """Returns the widest range of a log-ratio of a token between neighbours, in parts of what the charge allows.

    Each document has logits of its own, far beyond C, and a null one the public ones."""
    numbers, most, tokens = random.Random(11), 0.0, 40
    public = np.linspace(-1.0, 1.0, tokens)

    def law(found: tuple[str | None, ...]) -> np.ndarray:
        signs = [np.random.default_rng(zlib.crc32(one.encode())).choice([-50.0, 50.0], tokens) if one else 0.0 for one in found]
        return np.log(probabilities(np.stack([public + sign for sign in signs]), public, tokens, 0.6, 1.1))

    for _ in range(worlds):
        texts = of_chance(numbers)
        nulled = list(texts)
        nulled[numbers.randrange(len(texts))] = None
        query, batch = " ".join(numbers.choices(WORDS, k=3)), numbers.randint(1, 5)
        here, there = (corpus(folder, one) for one in (texts, nulled))
        ratio = law(Retrieval(here, score(here)).best(query, batch)) - law(Retrieval(there, score(there)).best(query, batch))
        most = max(most, float(np.ptp(ratio)) / bounded_range(0.6, batch, 1.1, adjacency="retrieval"))
    return most


def test_a_token_of_neighbouring_corpora_differs_as_far_as_is_charged_and_one_with_a_learned_scorer_further(
    tmp_path: Path,
) -> None:
    assert 0.999 < widest(tmp_path, lambda _: None, 600) <= 1.0 + 1e-9
    assert widest(tmp_path, by_the_centre, 600) > 1.9


def test_a_document_that_goes_lets_in_exactly_the_next_one(tmp_path: Path) -> None:
    texts = ["fever fever fever", "fever fever", "fever", "fever ward ward ward"]
    best = Retrieval(corpus(tmp_path, texts)).best("fever", 4)
    assert best == tuple(texts)
    assert Retrieval(corpus(tmp_path, [None, *texts[1:]])).best("fever", 2) == tuple(texts[1:3])
    assert Retrieval(corpus(tmp_path, texts)).best("fever", 2) == tuple(texts[:2])


def test_equal_scores_are_decided_by_public_ids_and_not_by_what_stands_in_a_document(tmp_path: Path) -> None:
    alike = Retrieval(corpus(tmp_path, ["zebra fever", "apple fever", "fever mango"]), lambda query, text: 1.0)
    assert alike.best("fever", 2) == ("zebra fever", "apple fever")


def test_a_null_document_comes_last_wherever_it_lies_and_is_the_same_null_reference(tmp_path: Path) -> None:
    for place in range(3):
        texts: list[str | None] = ["tea", "sleep"]
        texts.insert(place, "" if place else None)
        found = Retrieval(corpus(tmp_path, texts), lambda query, text: -1e300)
        assert found.best("fever", 3) == ("tea", "sleep", None)
        assert found.best("fever", 5) == ("tea", "sleep", None, None, None)


def test_there_is_no_threshold_and_as_many_references_come_for_every_query(tmp_path: Path) -> None:
    found = Retrieval(corpus(tmp_path, ["tea", "sleep", "night"]))
    for query in ("nothing of it", "tea", "tea sleep night"):
        assert sorted(filter(None, found.best(query, 3))) == ["night", "sleep", "tea"]


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, "much", None])
def test_a_score_that_is_no_finite_number_is_refused_and_no_word_of_the_document_is_told(tmp_path: Path, score) -> None:
    with pytest.raises(ConfigError) as refused:
        Retrieval(corpus(tmp_path, ["secret tea"]), lambda query, text: score).best("fever", 1)
    assert refused.value.code == "SCORE" and "secret" not in str(refused.value)


def test_what_a_scorer_says_when_it_ends_is_told_to_nobody(tmp_path: Path) -> None:
    def score(query: str, text: str) -> float:
        raise ValueError(f"cannot read {text}")

    with pytest.raises(ConfigError) as refused:
        Retrieval(corpus(tmp_path, ["secret tea"]), score).best("fever", 1)
    assert "ValueError" in str(refused.value) and "secret" not in str(refused.value)
    assert refused.value.__cause__ is None and refused.value.__suppress_context__


@pytest.mark.parametrize("query", ["", "  ", "a\0b", "\ud800", "x" * (MOST_QUERY + 1), None])
def test_a_query_that_no_prompt_can_have_is_refused(tmp_path: Path, query) -> None:
    with pytest.raises(ConfigError, match="QUERY"):
        Retrieval(corpus(tmp_path, ["tea"])).best(query, 1)


@pytest.mark.parametrize("batch", [0, -1, True, 1.5])
def test_the_number_of_references_is_a_public_number(tmp_path: Path, batch) -> None:
    with pytest.raises(ConfigError, match="BATCH"):
        Retrieval(corpus(tmp_path, ["tea"])).best("tea", batch)


def test_the_score_of_a_document_follows_from_query_and_document_and_saturates() -> None:
    score = Lexical()
    once, twice, often = (score("Fever!", " ".join(["fever"] * count)) for count in (1, 2, 50))
    assert 0 < once < twice < often < score.k1 + 1
    assert twice - once > score("fever", "fever " * 3) - twice
    assert score("fever", "tea") == 0 and score("fever fever", "fever") == once
    assert score("ﬁebre Émile", "FIEBRE E\u0301MILE") == 2 * score("fiebre", "fiebre émile")
    assert score("fever", "fever") > score("fever", "fever " + "tea " * 200) > 0


def test_the_written_form_of_the_score_is_that_of_saturated_counts() -> None:
    text, score = "fever tea tea night", Lexical({"fever": 2.0, "the": 0.0, "tea": 0.5})
    long = 1.2 * (0.25 + 0.75 * 4 / 100)
    assert score("the fever, tea; owl", text) == pytest.approx(2.0 * 2.2 / (1 + long) + 0.5 * 2 * 2.2 / (2 + long))
    assert score("night", text) == pytest.approx(2.0 * 2.2 / (1 + long))  # a word that is not in the list is rare


def test_public_weights_are_read_from_a_list(tmp_path: Path) -> None:
    path = tmp_path / "weights.csv"
    path.write_text("word,weight\nThe,0\nfever,3.5\n")
    found = Lexical.read(path)
    assert found.weights == {"the": 0.0, "fever": 3.5} and found.digest != Lexical().digest
    for text in ("word\nthe\n", "word,weight\nthe,much\n", "word,weight\nthe,nan\n", "word,weight\nthe,-1\n",
                 "word,weight\nthe,1\nTHE,2\n", "word,weight\ntwo words,1\n", "word,weight\nthe\n", "\xff"):  # fmt: skip
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(ConfigError, match="WEIGHTS"):
            Lexical.read(path)
    beyond = ({"k1": 2e6}, {"length": MOST_LENGTH + 1}, {"weights": {"tea": 1e308}}, {"weights": {"tea": 10**400}})
    for changes in ({"b": 1.5}, {"b": math.nan}, {"k1": -1.0}, {"length": 0}, {"length": 1.5}, {"k1": math.nan}, *beyond):
        with pytest.raises(ConfigError, match="WEIGHTS"):
            Lexical(**changes)


def test_a_score_is_finite_at_the_bounds_of_all_public_numbers_whatever_the_document_is() -> None:
    query = " ".join(f"w{number}" for number in range(MOST_QUERY // 6))
    documents = ("", "w0", query, "w0 " * 10**5, f"{query} " * 50)
    for k1 in (0, 5e-324, MOST_WEIGHT):
        for b in (0.0, 5e-324, 1.0):
            for length in (1, MOST_LENGTH):
                score = Lexical({"w0": MOST_WEIGHT, "w1": 0}, k1, b, length)
                assert all(0.0 <= score(query, one) < 1e16 for one in documents)


def test_a_class_of_its_own_scores_as_it_says(tmp_path: Path) -> None:
    class Longest(Lexical):
        def __call__(self, query: str, text: str) -> float:
            return float(len(text))

    class Shortest(Lexical):
        def of_terms(self, query: str, terms: Mapping[str, float]) -> float:
            return -float(len(terms))

    documents = corpus(tmp_path, ["tea", "a very long text of a document", "ward ward"])
    assert Retrieval(documents, Longest()).best("tea", 1) == ("a very long text of a document",)
    assert Retrieval(documents, Shortest()).best("night", 2) == ("tea", "ward ward")


def log_of(folder: Path, texts: int) -> BudgetLog:
    cap = (8_000_000 if texts == 1 else 0, 10**6)
    spec = BudgetSpec(caps={"corpus": cap}, mechanisms=[mechanism(adjacency="retrieval")])
    return BudgetLog.create(folder / "budget.db", spec, SIGNER)


def test_the_corpus_pays_for_a_query_before_one_document_is_looked_at(tmp_path: Path) -> None:
    said: list[str] = []
    with log_of(tmp_path, 1) as log:

        def score(query: str, text: str) -> float:
            said.append(f"scored at {log.balance(CORPUS).spent}")
            return 0.0

        retrieval = Retrieval(corpus(tmp_path, ["tea", "night"]), score)
        ink = InvisibleInk(model(), tokenizer(), TASK, PLAN)
        labels = {"query": "tea"}
        stream = retrieval.stream(ink, "tea", BudgetMeter(log, [CORPUS]), labels=labels)
        assert said == [f"scored at {PLAN.tokens * PLAN.nano_rho}"] * 2
        assert len(list(stream)) <= PLAN.tokens
        said.clear()
        with pytest.raises(BudgetExhausted):
            retrieval.stream(ink, "tea", BudgetMeter(log, [CORPUS]), labels=labels)
        assert not said, "a query that nothing paid for looked at documents"
        with pytest.raises(ConfigError, match="CORPUS_PAYS"):
            retrieval.stream(ink, "tea", BudgetMeter(log, [next(iter(retrieval.references)).unit]), labels=labels)
        assert not said


@pytest.mark.parametrize("given", [None, 5, Receipt(PLAN.tokens - 1), Receipt(True)])
def test_no_document_is_looked_at_on_a_receipt_of_less(tmp_path: Path, given: Any) -> None:
    seen: list[str] = []
    retrieval = Retrieval(corpus(tmp_path, ["tea"]), lambda query, text: float(seen.append(text) or 0))
    meter = Meter()
    meter.reserve = lambda *of, **named: given  # type: ignore[method-assign]
    with pytest.raises(NotPaid, match="RECEIPT"):
        retrieval.stream(InvisibleInk(model(), tokenizer(), TASK, PLAN), "tea", meter, labels={"query": "tea"})
    assert not seen


def test_a_receipt_of_what_was_paid_before_is_of_one_text(tmp_path: Path) -> None:
    ink, references, labels = InvisibleInk(model(), tokenizer(), TASK, PLAN), ("tea", "ward", None), {"query": "tea"}
    with log_of(tmp_path, 1) as log:
        meter = BudgetMeter(log, [CORPUS])
        paid = PaidBefore(meter, meter.reserve(PLAN.tokens, mechanism=PLAN.mechanism, nano_rho=PLAN.nano_rho))
        ink.stream(references, paid, labels=labels).close()  # what was never computed comes back
        for again in (paid, paid, copy.copy(paid)):
            with pytest.raises(NotPaid, match="RECEIPT"):
                ink.stream(references, again, labels=labels)
        with pytest.raises(TypeError):
            copy.deepcopy(paid)
        log.refresh()
        assert not log.state.open


def test_a_plan_of_another_adjacency_costs_too_little_and_is_refused(tmp_path: Path) -> None:
    ink = InvisibleInk(model(), tokenizer(), TASK, Plan.for_epsilon(8.0, delta=1e-6, batch=3, tokens=5))
    with log_of(tmp_path, 1) as log, pytest.raises(ConfigError, match="ADJACENCY"):
        Retrieval(corpus(tmp_path, ["tea"])).stream(ink, "tea", BudgetMeter(log, [CORPUS]), labels={"query": "tea"})


def test_what_is_wrong_with_the_words_of_a_query_is_told_before_it_is_paid_for(tmp_path: Path) -> None:
    ink = InvisibleInk(model(), tokenizer(), TASK, PLAN)
    retrieval = Retrieval(corpus(tmp_path, ["tea"]))
    with log_of(tmp_path, 1) as log:
        long = "tea " * 200
        for query, word, code in (("tea", None, "LABELS"), (long, long, "ROOM"), ("tea", "rash", "QUERY")):
            labels = {} if word is None else {"query": word}
            with pytest.raises(ConfigError, match=code):
                retrieval.stream(ink, query, BudgetMeter(log, [CORPUS]), labels=labels)
        assert log.balance(CORPUS).spent == 0
