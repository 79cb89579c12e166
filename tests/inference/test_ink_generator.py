"""Texts from references: paid before the first forward pass, drawn from public tokens alone, worth what T tokens are worth."""

import copy
import itertools
import os
import pickle
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

from dptrain.errors import ConfigError, NotPaid, NotPrivateUse  # noqa: E402
from dptrain.inference import invisibleink  # noqa: E402
from dptrain.inference.invisibleink import (  # noqa: E402
    BudgetMeter,
    InvisibleInk,
    Plan,
    Task,
    expanded_top_k,
    generator,
    probabilities,
)
from dptrain.inference.invisibleink.forward import Form, Forward  # noqa: E402
from dptrain.inference.invisibleink.plan import mechanism  # noqa: E402
from dptrain.inference.invisibleink.rows import Prompts  # noqa: E402
from ledger.budget import Unit  # noqa: E402
from ledger.budget.log import BudgetLog, BudgetSpec  # noqa: E402
from ledger.errors import BudgetExhausted  # noqa: E402
from tests.worlds.ink import PLAN, REFERENCES, TASK, Meter, model, rotary, tokenizer  # noqa: E402
from tests.worlds.ledgers import SIGNER, START  # noqa: E402


@pytest.fixture
def calls() -> Iterator[list[int]]:
    """Rows of each call of the model, as they happen."""
    found: list[int] = []
    hook = model().register_forward_pre_hook(
        lambda module, args, named: found.append(len(named["input_ids"])), with_kwargs=True
    )
    yield found
    hook.remove()


def ink(plan: Plan = PLAN, task: Task = TASK, **changes: Any) -> InvisibleInk:
    made = InvisibleInk(model(), tokenizer(), task, plan, **changes)
    made.ends = frozenset()
    return made


def seeded(number: int, **changes: Any) -> InvisibleInk:
    return ink(seed=number, unsafe_reproducible=True, **changes)


# ---- what is drawn


def test_tokens_are_drawn_from_what_algorithm_1_says_at_every_step() -> None:
    """Each token's distribution, recomputed from the whole text without a cache, gives the number that the seed drew."""
    from dptrain.inference.invisibleink.sampler import TokenSampler

    stream = seeded(3).generate(REFERENCES, Meter())
    sampler = TokenSampler(seed=3, unsafe_reproducible=True)
    rows = Prompts(tokenizer(), TASK).rows(REFERENCES)
    for number, token in enumerate(stream.tokens):
        forward = Forward(model(), rows, PLAN.tokens)
        logits = [forward.begin(), *(forward.step(one) for one in stream.tokens[:number])][-1]
        assert PLAN.k is not None
        spread = probabilities(logits[1:], logits[0], PLAN.k, PLAN.clip, PLAN.tau)
        kept = expanded_top_k(logits[0], PLAN.k, PLAN.clip, PLAN.batch)
        assert token == kept[sampler.draw(spread[kept])]
    assert len(stream.tokens) == PLAN.tokens == stream.computed and stream.finish == "length"


def test_references_speak_where_the_budget_is_large_and_the_public_model_where_it_is_small() -> None:
    private = ("zzzzzzzzzzzzzzzzzzzz",) * 4
    logits = Forward(model(), Prompts(tokenizer(), TASK).rows(private), 1).begin().astype(np.float64)
    public, theirs = (np.exp(row) / np.exp(row).sum() for row in logits[:2])
    liked = theirs > public  # what is likelier with the references

    def share(epsilon: float) -> float:
        found = ink(Plan.for_epsilon(epsilon, delta=1e-6, batch=4, tokens=1, k=None))
        return float(np.mean([liked[found.generate(private, Meter()).tokens[0]] for _ in range(360)]))

    apart, wide = float(theirs[liked].sum() - public[liked].sum()), 4.9 * 0.5 / 360**0.5
    assert apart > 2 * wide, "the model makes no use of its references"
    assert abs(share(0.001) - public[liked].sum()) < wide
    assert abs(share(20000.0) - theirs[liked].sum()) < wide


def test_a_text_ends_where_an_end_token_is_drawn_and_that_is_never_one_outside_of_what_may_be_drawn() -> None:
    plan = Plan.for_epsilon(8.0, delta=1e-6, batch=4, tokens=40, k=5)
    forward = Forward(model(), Prompts(tokenizer(), TASK).rows(REFERENCES), 1)
    public = forward.begin()[0]
    within = expanded_top_k(public, 5, plan.clip, 4)
    outside = set(range(259)) - set(within.tolist())
    ended = ink(plan)
    ended.ends = frozenset(outside)
    firsts = {ended.generate(REFERENCES, Meter()).tokens[0] for _ in range(25)}
    assert firsts.isdisjoint(outside)
    ended.ends = frozenset(within.tolist())
    meter = Meter()
    stream = ended.generate(REFERENCES, meter)
    assert (stream.finish, stream.computed, meter.settled) == ("stop", 1, [1])
    assert ended.ends != InvisibleInk(model(), tokenizer(), TASK, plan).ends == frozenset([2])


def test_opening_words_begin_every_text_and_are_free_of_charge(calls: list[int]) -> None:
    task = Task(public=TASK.public, private=TASK.private, reference_tokens=20, opening="Once upon")
    meter = Meter()
    found = ink(task=task)
    found.check()
    calls.clear()
    stream = found.generate(REFERENCES, meter)
    assert stream.text.startswith("Once upon") and len(stream.tokens) == PLAN.tokens == len(calls)
    assert meter.events[0][:2] == ("reserve", PLAN.tokens)


def test_pieces_of_a_stream_join_to_its_text_in_whole_characters() -> None:
    """Random bytes are mostly no characters; what is one is sent whole."""
    for number in range(4):
        stream = seeded(number, plan=Plan.for_epsilon(8.0, delta=1e-6, batch=4, tokens=40, k=None)).stream(REFERENCES, Meter())
        pieces = list(stream)
        assert [token.number for token in pieces] == list(range(1, 41))
        assert "".join(piece.text for piece in pieces).replace("\ufffd", "") == stream.text.replace("\ufffd", "")
        assert [piece.id for piece in pieces] == stream.tokens


@pytest.mark.one_in(5)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_minibatches_of_any_size_run_all_rows(size: int, calls: list[int]) -> None:
    """The public row is the last that a division could drop."""
    found, whole = (seeded(1, minibatch=one) for one in (size, None))
    found.check()
    calls.clear()
    stream = found.generate(REFERENCES, Meter())
    assert calls == [size] * (-(-5 // size) * PLAN.tokens)
    assert stream.tokens == whole.generate(REFERENCES, Meter()).tokens


# ---- what is paid


def test_all_tokens_are_paid_before_the_first_forward_pass_and_a_refused_text_makes_none(calls: list[int]) -> None:
    class Watching(Meter):
        def reserve(self, releases: int, **named: Any) -> Any:
            assert not calls, "the model ran before the budget held the text"
            return super().reserve(releases, **named)

    meter = Watching(cap=PLAN.tokens)
    found = ink()
    found.generate(REFERENCES, meter)
    assert meter.events == [("reserve", PLAN.tokens, PLAN.mechanism, PLAN.nano_rho), ("settle", PLAN.tokens)] and calls
    calls.clear()
    with pytest.raises(PermissionError):
        found.generate(REFERENCES, meter)
    assert not calls and len(meter.events) == 2


def test_a_receipt_of_less_is_none(calls: list[int]) -> None:
    for short in (None, type("Short", (), {"releases": PLAN.tokens - 1})(), type("Yes", (), {"releases": True})()):
        meter = type("Mean", (), {"reserve": lambda self, *args, short=short, **named: short})()
        with pytest.raises(NotPaid) as refused:
            ink().stream(REFERENCES, meter)
        assert refused.value.code == "RECEIPT" and not calls


def test_a_text_that_ends_gives_back_what_was_never_computed_and_one_that_fails_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meter, plan = Meter(), Plan.for_epsilon(8.0, delta=1e-6, batch=4, tokens=30)
    found = ink(plan)
    with found.stream(REFERENCES, meter) as left:
        for _ in range(3):
            next(left)
    assert (left.finish, meter.settled) == ("cancelled", [3]) and list(left) == []
    left.close()
    assert meter.settled == [3]
    broken = found.stream(REFERENCES, meter)
    next(broken)
    monkeypatch.setattr(broken._forward, "step", lambda token: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(broken)
    with pytest.raises(NotPaid, match="FAILED"):
        next(broken)
    broken.close()
    with pytest.raises(KeyError), found.stream(REFERENCES, meter) as other:
        next(other)
        raise KeyError("who reads fails")
    assert meter.settled == [3] and other.finish is None


def test_the_epsilon_that_is_quoted_is_that_of_T_whatever_the_length() -> None:
    found = ink(Plan.for_epsilon(8.0, delta=1e-6, batch=4, tokens=30))
    said = set()
    for length in (1, 7, 30):
        with found.stream(REFERENCES, Meter()) as stream:
            for _ in range(length):
                next(stream)
        said.add(stream.privacy)
    assert said == {found.plan.sentence} and "30 tokens at most" in found.privacy and found.plan.epsilon <= 8.0


def test_a_seed_says_that_there_is_no_privacy() -> None:
    assert "no privacy" in seeded(1).generate(REFERENCES, Meter()).privacy and "epsilon" not in seeded(1).privacy
    with pytest.raises(ConfigError, match="SEED"):
        ink(seed=1)
    texts = {tuple(ink().generate(REFERENCES, Meter()).tokens) for _ in range(4)}
    assert len(texts) == 4


def test_no_copy_of_a_text_and_no_other_process_draws_what_was_paid_once() -> None:
    stream = ink().stream(REFERENCES, Meter())
    for twice in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="paid once"):
            twice(stream)
    stream._process = os.getpid() + 1
    with pytest.raises(NotPaid, match="OTHER_PROCESS"):
        next(stream)


# ---- what is refused


def test_rows_are_tested_before_the_first_text_and_now_and_then_after(monkeypatch: pytest.MonkeyPatch) -> None:
    from dptrain.inference.invisibleink import generator

    asked: list[tuple] = []

    def noted(model: Any, *shape: int, **named: Any) -> Form:
        asked.append((*shape, named))
        return Form()

    monkeypatch.setattr(generator, "check_rows", noted)
    found = ink(recheck_every=3)
    length = Prompts(tokenizer(), TASK).length
    counts = []
    for _ in range(7):
        found.generate(REFERENCES, Meter())
        counts.append(len(asked))
    assert counts == [1, 1, 1, 2, 2, 2, 3] and len(asked) == 3
    assert all(tuple(shape) == (4, length, PLAN.tokens) for *shape, _ in asked)


def test_a_text_of_a_length_that_was_tested_waits_for_no_test_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    go, tested, texts = threading.Event(), [], []

    def slow(model: Any, batch: int, length: int, *more: Any, **named: Any) -> Form:
        tested.append(length)
        assert len(tested) == 1 or go.wait(30)
        return Form()

    monkeypatch.setattr(generator, "check_rows", slow)
    found = ink(task=Task("Of {query}: say.", "[[Of {reference}: ]]Of {query}: say.", 20, labels=("query",)))

    def tell(query: str) -> threading.Thread:
        thread = threading.Thread(target=lambda: texts.append(found.generate(REFERENCES, Meter(), labels={"query": query})))
        thread.start()
        return thread

    tell("tea").join()
    waiting = [tell("tea" * 20), tell("tea" * 20)]
    try:
        while len(tested) < 2:
            time.sleep(0.001)
        tell("tea").join(20)
        assert len(texts) == 2, "a text waited for the test of rows that are none of its own"
    finally:
        go.set()
        for each in waiting:
            each.join()
    assert len(texts) == 4 and len(tested) == 2 == len(set(tested))


def test_a_model_that_couples_rows_generates_nothing_and_nothing_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    found, meter = ink(), Meter()
    coupled = lambda module, args, out: setattr(out, "logits", out.logits + 1e-6 * out.logits.mean(0))  # noqa: E731
    hook = model().register_forward_hook(coupled)
    try:
        for _ in range(2):
            with pytest.raises(NotPrivateUse, match="ROWS_COUPLED"):
                found.stream(REFERENCES, meter)
    finally:
        hook.remove()
    assert meter.settled == [0, 0]
    assert found.generate(REFERENCES, meter).finish == "length"


def test_what_cannot_be_is_refused_by_name(calls: list[int]) -> None:
    def code(call: Any) -> str:
        with pytest.raises(ConfigError) as refused:
            call()
        return refused.value.code

    found = ink()
    assert code(lambda: found.stream(REFERENCES[:3], Meter())) == code(lambda: found.stream("tea!", Meter())) == "BATCH"
    assert code(lambda: found.stream(REFERENCES, Meter(), labels={"a": "b"})) == "LABELS"
    assert code(lambda: ink(minibatch=6)) == code(lambda: ink(minibatch=0)) == "MINIBATCH"
    assert code(lambda: ink(recheck_every=0)) == "RECHECK"
    long = Task(public=TASK.public, private=TASK.private, reference_tokens=250)
    assert code(lambda: ink(task=long).check()) == "ROOM"
    config = model().config
    config.sliding_window = 20
    try:
        assert code(lambda: ink().stream(REFERENCES, Meter())) == "WINDOW"
        ink(minibatch=1).stream(REFERENCES, Meter())
        calls.clear()
    finally:
        del config.sliding_window
    kept, config._attn_implementation = config._attn_implementation, "flash_attention_2"
    try:
        assert code(ink) == "ATTENTION"
    finally:
        config._attn_implementation = kept
    config.num_local_experts = 8
    try:
        assert code(ink) == "EXPERTS"
        ink(minibatch=1)
    finally:
        del config.num_local_experts
    assert not calls and Meter().settled == []


@pytest.mark.parametrize("kind", ["dbrx", "aria_text", "mixtral", "deepseek_v3"])
def test_experts_are_refused_wherever_the_configuration_names_them(kind: str) -> None:
    config = CONFIG_MAPPING[kind]()
    config._attn_implementation = "sdpa"
    with pytest.raises(ConfigError, match="EXPERTS"):
        generator._require_public_shapes(config.get_text_config())


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_positions_that_a_call_chooses_by_its_longest_row_are_refused_by_name(kind: str) -> None:
    """What is dynamic keeps its factors for the next call, which is that of another row."""
    for minibatch in (None, 2):
        with pytest.raises(ConfigError, match=rf"ROTARY.*{kind}"):
            InvisibleInk(rotary(kind), tokenizer(), TASK, PLAN, minibatch=minibatch)
    if kind == "dynamic":
        with pytest.raises(ConfigError, match=r"ROTARY.*later calls"):
            InvisibleInk(rotary(kind), tokenizer(), TASK, PLAN, minibatch=1)
    else:
        InvisibleInk(rotary(kind), tokenizer(), TASK, PLAN, minibatch=1)
    ink()


# ---- a budget log


def cap(texts: float) -> tuple[int, int]:
    from ledger.budget.rho import epsilon_of_rho

    return int(epsilon_of_rho(texts * PLAN.tokens * PLAN.nano_rho / 1e9, 1e-6) * 1e6), 1_000_000


def log_of(tmp_path: Path, texts: float) -> BudgetLog:
    caps = {"contribution": cap(texts), "corpus": cap(texts)}
    spec = BudgetSpec(caps=caps, mechanisms=[mechanism()])
    return BudgetLog.create(tmp_path / "budget.db", spec, SIGNER, now=START)


def test_a_text_is_reserved_whole_in_the_log_and_settled_at_what_was_computed(tmp_path: Path) -> None:
    corpus = Unit("corpus", "letters")
    with log_of(tmp_path, 1.5) as log:
        meter = BudgetMeter(log, [corpus])
        stream = ink().stream(REFERENCES, meter)
        assert log.balance(corpus).spent == PLAN.tokens * PLAN.nano_rho
        for _ in range(4):
            next(stream)
        with pytest.raises(BudgetExhausted):
            ink().stream(REFERENCES, meter)
        stream.close()
        assert log.balance(corpus).spent == 4 * PLAN.nano_rho
        ink().generate(REFERENCES, meter)
        assert log.balance(corpus).spent == (4 + PLAN.tokens) * PLAN.nano_rho


def test_every_contribution_of_a_text_pays_and_none_does_where_one_cannot(tmp_path: Path) -> None:
    people = [Unit("contribution", f"{number:064x}") for number in range(4)]
    with log_of(tmp_path, 1.5) as log:
        ink().generate(REFERENCES, BudgetMeter(log, people[2:]))
        with pytest.raises(BudgetExhausted):
            ink().generate(REFERENCES, BudgetMeter(log, people))
        spent = [log.balance(unit).spent // PLAN.nano_rho for unit in people]
        assert spent == [0, 0, PLAN.tokens, PLAN.tokens]
        for units in ([], [people[0], people[0]], [people[0], Unit("corpus", "letters")]):
            with pytest.raises(ConfigError, match="UNITS"):
                BudgetMeter(log, units)
        with pytest.raises(NotPaid, match="RECEIPT"):
            BudgetMeter(log, people).settle(object(), 1)


def test_what_is_retrieved_is_paid_for_by_its_corpus(tmp_path: Path) -> None:
    plan = Plan.for_epsilon(1.0, delta=1e-6, batch=4, tokens=3, adjacency="retrieval")
    with log_of(tmp_path, 5) as log:
        with pytest.raises(ConfigError, match="CORPUS_PAYS"):
            ink(plan).stream(REFERENCES, BudgetMeter(log, [Unit("user", "anna")]))
        ink(plan).generate(REFERENCES, BudgetMeter(log, [Unit("corpus", "letters")]))


def test_a_retrieved_reference_has_a_row_that_was_drawn_at_random_since_its_rank_is_private(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows by rank would let one document that goes move all below it to other rows, which round otherwise."""
    from dptrain.inference.invisibleink import generator

    seen: list[tuple] = []
    rows = Prompts.rows
    monkeypatch.setattr(Prompts, "rows", lambda prompts, found: seen.append(tuple(found)) or rows(prompts, found))
    monkeypatch.setattr(generator, "check_rows", lambda *shape, **named: Form())
    plan = Plan.for_epsilon(8.0, delta=1e-6, batch=3, tokens=5, adjacency="retrieval")
    retrieved = ink(plan)
    for _ in range(120):  # all six orders come but with probability 6 (5/6)^120 < 2e-9
        retrieved.stream(REFERENCES[:3], Meter()).close()
    assert {*seen} == {*itertools.permutations(REFERENCES[:3])}
    seen.clear()
    fixed = ink(replace(plan, adjacency="zero-out"))
    for _ in range(5):  # public order stays
        fixed.stream(REFERENCES[:3], Meter()).close()
    assert {*seen} == {REFERENCES[:3]}


def test_a_process_that_dies_gets_nothing_back(tmp_path: Path) -> None:
    corpus = Unit("corpus", "letters")
    log_of(tmp_path, 2).close()
    child = os.fork()
    if child == 0:
        try:
            log = BudgetLog.open(tmp_path / "budget.db")
            next(ink().stream(REFERENCES, BudgetMeter(log, [corpus])))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    with BudgetLog.open(tmp_path / "budget.db") as log:
        assert log.balance(corpus).spent == PLAN.tokens * PLAN.nano_rho


def test_the_wing_offers_the_names_that_others_call() -> None:
    assert {"aggregate", "expanded_top_k", "rho", "clip_norm"} <= set(dir(invisibleink))
    with pytest.raises(AttributeError):
        invisibleink.nothing  # noqa: B018
