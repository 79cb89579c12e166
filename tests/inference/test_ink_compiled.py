"""Texts by one compiled step: the logits of the plain form, rows tested in the very graph that serves, and no other form."""

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch._inductor import cpp_builder  # noqa: E402
from torch._inductor.exc import InvalidCxxCompiler  # noqa: E402

from dptrain.errors import ConfigError, NotPrivateUse  # noqa: E402
from dptrain.inference.invisibleink import InvisibleInk, Task, forward  # noqa: E402
from dptrain.inference.invisibleink.decoding.graph import StepGraph  # noqa: E402
from dptrain.inference.invisibleink.forward import Form, Forward, form_of  # noqa: E402
from dptrain.inference.invisibleink.isolation import check_rows  # noqa: E402
from dptrain.inference.invisibleink.rows import Prompts, Rows  # noqa: E402
from tests.worlds.ink import PLAN, REFERENCES, TASK, Meter, model, tokenizer  # noqa: E402

OTHERS = ("entirely another tale of nothing", "z" * 20, None, "x")
TYPES = [torch.float32, torch.bfloat16]
STEPS = 12


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Runs graphs as they were traced, all of the compiled form but inductor's code; holds those that were made."""
    made: list[Any] = []

    def compiled(graph: Any, values: Any, options: Any = None) -> Any:
        made.append(graph)
        return graph

    monkeypatch.setattr(torch._inductor, "compile", compiled)
    return made


def rows(references: Any = REFERENCES) -> Rows:
    return Prompts(tokenizer(), TASK).rows(references)


def nobodys() -> Rows:
    return rows((None,) * 4)


def begun(form: Form, references: Any = REFERENCES, minibatch: int | None = None, on: Any = None) -> Forward:
    return Forward(on or model(), rows(references), STEPS, minibatch, form)


def all_of(text: Forward) -> np.ndarray:
    """Logits of prompts and all tokens behind them, shape (1 + steps, B + 1, V)."""
    return np.stack([text.begin(), *(text.step(40 + number) for number in range(STEPS))])


def compiled_form(minibatch: int | None = None, on: Any = None) -> Form:
    return form_of(on or model(), nobodys(), STEPS, minibatch, compile=True)


def seeded(number: int, **changes: Any) -> InvisibleInk:
    made = InvisibleInk(model(), tokenizer(), TASK, PLAN, compile=True, seed=number, unsafe_reproducible=True, **changes)
    made.ends = frozenset()
    return made


# ---- what it computes


@pytest.mark.one_in(9)
@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_a_compiled_step_gives_the_logits_of_the_plain_form_whatever_the_size_of_minibatches(traced: Any, kind: str) -> None:
    found = model(kind)
    plain = all_of(begun(Form(), on=found))
    for size in (None, 1, 2, 3, 4, 5):
        form = compiled_form(size, on=found)
        assert form.graph is not None and form.wide and form.kept
        prompts = begun(Form(), minibatch=size, on=found).begin()
        for one in (form, Form(graph=narrow(found, size), kept=True)):
            served = all_of(begun(one, minibatch=size, on=found))
            assert np.array_equal(served[0], prompts), "prompts are not compiled"
            assert np.allclose(served, plain, atol=2e-5)


def narrow(found: Any, minibatch: int | None) -> Any:
    """A graph over masks of two dimensions."""
    names = forward._takes(found)
    return StepGraph(found, *forward._shapes(found, nobodys(), STEPS, minibatch, Form(kept=True)), names)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_buffers_give_the_logits_of_a_cache_that_grows_and_every_model_that_has_none_is_told(dtype: Any) -> None:
    for kind in ("Llama", "GPT2"):
        found = model(kind, dtype)
        assert form_of(found, nobodys(), STEPS) == Form(wide=True, kept=True)
        grown, kept = (all_of(begun(form, on=found)).astype(np.float64) for form in (Form(wide=True), Form(True, True)))
        assert np.abs(grown - kept).max() <= (1e-5 if dtype == torch.float32 else 0.02) * grown.std()
    assert form_of(sliding(), nobodys(), STEPS) == Form()


def test_a_null_reference_has_the_public_logits_in_the_compiled_form_too(traced: Any) -> None:
    found = all_of(begun(compiled_form(), (None, "tea", "", "milk")))
    assert np.array_equal(found[:, 1], found[:, 0]) and np.array_equal(found[:, 3], found[:, 0])


def test_one_graph_is_made_for_a_public_shape_and_no_text_or_test_makes_another(traced: list[Any]) -> None:
    calls: list[tuple[int, ...]] = []
    hook = model().register_forward_pre_hook(
        lambda module, args, named: calls.append(tuple(named["input_ids"].shape)), with_kwargs=True
    )
    try:
        found = seeded(1, recheck_every=2)
        found.check()
        for number in range(5):
            calls.clear()
            found.generate(REFERENCES if number % 2 else OTHERS, Meter())
            if number not in (2, 4):  # rows are tested before these
                assert calls == [(5, found._prompts(None).length)], "all but the prompts is compiled"
        assert len(traced) == 1
        found.task = Task(public=TASK.public, private=TASK.private, reference_tokens=60)
        found.generate(REFERENCES, Meter())
        assert len(traced) == 2
    finally:
        hook.remove()


def test_no_text_sees_keys_and_values_of_another_in_turn_or_at_once(traced: Any) -> None:
    """Both forms: the second text of a shape is bit by bit what it is as the first, and so are two that take turns."""
    for form in (compiled_form(), Form(wide=True, kept=True)):
        alone = all_of(begun(form, OTHERS)), all_of(begun(form, REFERENCES))
        assert not np.array_equal(*alone)
        assert np.array_equal(all_of(begun(form, OTHERS)), alone[0])
        pair = begun(form, OTHERS), begun(form, REFERENCES)
        found = [[one.begin()] for one in pair]
        for number in range(STEPS):
            for one, logits in zip(pair, found, strict=True):
                logits.append(one.step(40 + number))
        assert all(np.array_equal(np.stack(logits), one) for logits, one in zip(found, alone, strict=True))
        places = [{tensor.data_ptr() for tensor in one.buffers(0)} for one in pair]
        assert len(places[0]) == len(places[1]) == 4 and not places[0] & places[1]


def test_a_model_is_used_by_others_while_its_step_is_traced(traced: Any) -> None:
    found, over = [all_of(begun(Form()))], threading.Event()

    def others() -> int:
        while not over.is_set():
            found.append(all_of(begun(Form())))
        return len(found)

    with ThreadPoolExecutor(1) as pool:
        count = pool.submit(others)
        try:
            for _ in range(5):
                narrow(model(), None)
        finally:
            over.set()
        assert count.result() > 2 and all(np.array_equal(one, found[0]) for one in found)


# ---- the test before serving


@pytest.mark.one_in(23)
@pytest.mark.parametrize("minibatch", [None, 1, 3])
@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_rows_are_kept_apart_in_the_compiled_form(traced: Any, kind: str, minibatch: int | None) -> None:
    for dtype in TYPES:
        form = check_rows(model(kind, dtype), 4, 32, 8, minibatch=minibatch, compile=True)
        assert form.graph is not None
        assert check_rows(model(kind, dtype), 4, 32, 8, minibatch=minibatch, compile=True, form=form) is form


class Mixed(torch.nn.Module):
    """A model that couples rows by products of tensors alone, which a graph can hold."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner, self.how = model(), how
        self.config, self.device = self.inner.config, self.inner.device

    def get_input_embeddings(self) -> Any:
        return self.inner.get_input_embeddings()

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, logits_to_keep: int = 1, **more: Any) -> Any:
        out = self.inner(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, logits_to_keep=logits_to_keep, **more
        )
        move = {
            "mean": lambda: 1e-6 * out.logits.mean(0, keepdim=True),
            "late": lambda: 1e-6 * (position_ids[:, -1].max() >= 34) * out.logits[1:2],
        }
        out.logits = out.logits + move[self.how]()
        return out


@pytest.mark.one_in(99)
@pytest.mark.parametrize("how", ["mean", "late"])
def test_a_model_that_couples_rows_is_refused_in_the_compiled_form(traced: Any, how: str) -> None:
    with pytest.raises(NotPrivateUse, match="ROWS_COUPLED"):
        check_rows(Mixed(how), 4, 32, 12, compile=True)
    assert len(traced) == 1


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A compiler whose graphs add to the logits what ``wrong.by`` makes of them; the model has no part in it."""
    found = SimpleNamespace(by=lambda logits, values: 0.0, made=0)

    def compiled(graph: Any, values: Any, options: Any = None) -> Callable[[Any], Any]:
        found.made += 1

        def run(given: Any) -> Any:
            logits = graph(given)[0]
            return [logits + found.by(logits, given)]

        return run

    monkeypatch.setattr(torch._inductor, "compile", compiled)
    return found


def test_a_compiler_that_couples_rows_is_refused_though_the_model_keeps_them_apart(wrong: Any) -> None:
    """At the start, and where it begins to between two texts: what is tested is the very graph that serves."""
    found, meter = seeded(1, recheck_every=2), Meter()
    wrong.by = lambda logits, values: 1e-6 * logits.mean(0)
    with pytest.raises(NotPrivateUse, match=r"ROWS_COUPLED.*, compiled\)"):
        found.stream(REFERENCES, meter)
    assert meter.settled == [0]
    check_rows(model(), 4, 32, 8)
    wrong.by = lambda logits, values: 0.0
    for _ in range(2):
        assert found.generate(REFERENCES, Meter()).finish == "length"
    made, wrong.by = wrong.made, lambda logits, values: 1e-6 * logits.mean(0)
    with pytest.raises(NotPrivateUse, match="ROWS_COUPLED"):
        found.stream(REFERENCES, meter)
    assert wrong.made == made


# ---- refusals


def sliding() -> Any:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(5)
    return MistralForCausalLM(
        MistralConfig(
            vocab_size=259, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, sliding_window=96, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    ).eval()  # fmt: skip


class Asking(Mixed):
    """A model that asks its inputs for a number."""

    def __init__(self) -> None:
        super().__init__("mean")
        self.generation_config = self.inner.generation_config

    def forward(self, position_ids: Any, **more: Any) -> Any:  # type: ignore[override]
        assert int(position_ids.max()) >= 0
        return self.inner(position_ids=position_ids, **more)


@pytest.mark.one_in(99)
@pytest.mark.parametrize(("of", "words"), [(sliding, "DynamicSlidingWindowLayer"), (Asking, "DataDependent")])
def test_what_has_no_compiled_form_is_refused_by_name_and_generates_nothing(traced: Any, of: Any, words: str) -> None:
    found = InvisibleInk(of(), tokenizer(), TASK, PLAN, compile=True)
    meter = Meter()
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf"COMPILE.*{words}.*leave the option compile out"):
            found.stream(REFERENCES, meter)
    assert meter.settled == [0, 0] and not traced
    InvisibleInk(of(), tokenizer(), TASK, PLAN).check()


def test_without_a_compiler_nothing_is_generated_and_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    meter = Meter()
    with pytest.raises(ConfigError, match=r"COMPILE.*g\+\+.*leave the option compile out"):
        seeded(1).stream(REFERENCES, meter)
    assert meter.settled == [0]


def test_a_step_that_gives_other_logits_is_refused_early_and_late(wrong: Any) -> None:
    last = len(rows().ids[0]) + STEPS - 1
    for by in (
        lambda logits, values: 0.02 * logits,
        lambda logits, values: 0.02 * logits * bool((values[-5] == last).any()),  # the place is before four buffers
        lambda logits, values: float("nan"),
    ):
        wrong.by = by
        with pytest.raises(ConfigError, match=r"COMPILE.*other logits.*leave the option compile out"):
            compiled_form()


def windowed() -> Any:
    """A model whose window counts from the end of its buffers, and that says nothing of it in its configuration."""
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    torch.manual_seed(5)
    made = GPTNeoForCausalLM(
        GPTNeoConfig(
            vocab_size=259, hidden_size=48, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]],
            window_size=40, max_position_embeddings=256, bos_token_id=1, eos_token_id=2,
        )
    ).eval()  # fmt: skip
    with torch.no_grad():
        for weight in made.parameters():
            if weight.ndim == 2:
                weight.mul_(6)
    return made


def test_a_step_that_gives_other_logits_in_long_rows_alone_is_refused(traced: Any) -> None:
    """Rows of middle length are shorter than the window, and have the logits of the model."""
    found, meter = windowed(), Meter()
    task, plan = Task(TASK.public, TASK.private, 30), replace(PLAN, tokens=6)
    with pytest.raises(ConfigError, match=r"COMPILE.*other logits.*leave the option compile out"):
        InvisibleInk(found, tokenizer(), task, plan, compile=True).stream(REFERENCES, meter)
    assert len(traced) == 1 and meter.settled == [0]
    InvisibleInk(found, tokenizer(), task, plan).check()


class Late(Mixed):
    """A model that reads masks of four dimensions otherwise from a position on, for some of its logits."""

    def __init__(self, start: int, columns: slice = slice(None)) -> None:
        super().__init__("mean")
        self.start, self.columns = start, columns

    def forward(self, attention_mask: Any, position_ids: Any, **more: Any) -> Any:  # type: ignore[override]
        out = self.inner(attention_mask=attention_mask, position_ids=position_ids, **more)
        if attention_mask.dim() == 4 and int(position_ids.max()) >= self.start:
            out.logits[..., self.columns] *= 1.05
        return out


def test_a_form_is_compared_over_a_whole_text_of_the_longest_row() -> None:
    length = nobodys().ids.shape[1]
    assert form_of(Late(length - 1 + STEPS), nobodys(), STEPS) == Form(wide=True, kept=True), "no row comes so far"
    assert form_of(Late(length - 2 + STEPS), nobodys(), STEPS) == Form(kept=True), "the longest one does, at the last token"
    assert form_of(Late(0, slice(1, 2)), nobodys(), STEPS) == Form(kept=True), "one logit that is compared early alone"


# ---- tensors that are exchanged


def swap_parameter(found: Any) -> None:
    found.lm_head.weight = torch.nn.Parameter(-found.lm_head.weight.detach())


def swap_data(found: Any) -> None:
    found.model.norm.weight.data = found.model.norm.weight.data * torch.linspace(-1, 1, 48)


def swap_buffer(found: Any) -> None:
    found.model.rotary_emb.inv_freq = found.model.rotary_emb.inv_freq * 3


@pytest.mark.one_in(23)
@pytest.mark.parametrize("swap", [swap_parameter, swap_data, swap_buffer])
@pytest.mark.parametrize("asked", [False, True], ids=["text", "check"])
def test_where_a_tensor_of_the_model_was_exchanged_the_step_is_made_and_tested_anew(
    traced: list[Any], swap: Any, asked: bool
) -> None:
    found = copy.deepcopy(model())
    ink = InvisibleInk(found, tokenizer(), TASK, PLAN, compile=True)
    ink.check()
    with torch.no_grad():
        found.model.norm.weight.mul_(1.05)
    length = rows().ids.shape[1]
    ink.generate(REFERENCES, Meter())
    assert len(traced) == 1, "values that change in place are those of the graph too"
    before = all_of(begun(Form(), on=found))
    swap(found)
    truth = all_of(begun(Form(), on=found))
    assert not np.allclose(before, truth, atol=1e-3)
    if asked:
        ink.check()
    else:
        ink.stream(REFERENCES, Meter())
    assert len(traced) == 2 and np.allclose(all_of(begun(ink._forms[length], on=found)), truth, atol=2e-5)
    ink.generate(REFERENCES, Meter())
    assert len(traced) == 2


def test_a_model_that_exchanges_tensors_while_it_runs_is_refused_and_not_made_anew_for_ever(traced: list[Any]) -> None:
    found, meter = copy.deepcopy(model()), Meter()

    def exchange(module: Any, *given: Any) -> None:
        assert len(traced) < 5, "it is made anew for ever"
        module.inv_freq = module.inv_freq.clone()

    found.model.rotary_emb.register_forward_hook(exchange)
    for number in (1, 2):
        with pytest.raises(ConfigError, match=r"COMPILE.*exchanges tensors.*leave the option compile out"):
            InvisibleInk(found, tokenizer(), TASK, PLAN, compile=True).stream(REFERENCES, meter)
        assert len(traced) == number
    assert meter.settled == [0, 0]
    InvisibleInk(found, tokenizer(), TASK, PLAN).generate(REFERENCES, Meter())


# ---- inductor's own code


def in_threads(form: Form) -> list[np.ndarray]:
    """Logits of two texts that two threads compute at once."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda references: all_of(begun(form, references)), (OTHERS, REFERENCES)))


def test_inductors_step_keeps_rows_and_texts_apart_and_is_compiled_once() -> None:
    form, compiler = check_rows(model(), 4, len(rows().ids[0]), STEPS, compile=True), torch._inductor.compile
    torch._inductor.compile = None  # type: ignore[assignment]
    try:
        alone = [all_of(begun(form, one)) for one in (OTHERS, REFERENCES)]
        assert all(map(np.array_equal, in_threads(form), alone))
        assert np.allclose(alone[1], all_of(begun(Form())), atol=1e-4)
    finally:
        torch._inductor.compile = compiler


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_inductors_step_keeps_rows_apart_in_every_size_of_minibatches(kind: str, dtype: Any) -> None:
    for size in (None, 1, 2, 3):
        form = check_rows(model(kind, dtype), 4, 32, 8, minibatch=size, compile=True)
        assert check_rows(model(kind, dtype), 4, 32, 8, minibatch=size, form=form) is form
        thin = Form(graph=narrow(model(kind, dtype), size), kept=True)
        check_rows(model(kind, dtype), 4, len(rows().ids[0]), STEPS, minibatch=size, form=thin)


@pytest.mark.slow
def test_inductors_step_of_a_model_that_couples_rows_is_refused() -> None:
    for how in ("mean", "late"):
        with pytest.raises(NotPrivateUse, match=r"ROWS_COUPLED.*, compiled\)"):
            check_rows(Mixed(how), 4, 32, 12, compile=True)


@pytest.mark.slow
def test_compiled_texts_are_drawn_as_the_plan_says() -> None:
    """Draws the same text by the same seed from both forms, since their logits differ by rounding alone."""
    plain = InvisibleInk(model(), tokenizer(), TASK, PLAN, seed=7, unsafe_reproducible=True)
    plain.ends = frozenset()
    assert [seeded(7).generate(REFERENCES, Meter()).tokens] == [plain.generate(REFERENCES, Meter()).tokens]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [*TYPES, torch.float16], ids=str)
def test_the_compiled_form_keeps_rows_apart_on_a_cuda_device(dtype: Any) -> None:
    on = copy.deepcopy(model(dtype=dtype)).to("cuda")
    check_rows(on, 7, 128, 64, form=check_rows(on, 7, 128, 64, compile=True))
