"""No row depends on another: public shapes, a public row of its own, and a test that refuses a model that couples rows."""

import copy
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dptrain.errors import ConfigError, NotPrivateUse  # noqa: E402
from dptrain.inference.invisibleink import Task  # noqa: E402
from dptrain.inference.invisibleink.forward import Form, Forward, reads_wide_masks  # noqa: E402
from dptrain.inference.invisibleink.isolation import check_rows  # noqa: E402
from dptrain.inference.invisibleink.rows import CHARACTERS, MULTIPLE, Prompts, Rows  # noqa: E402
from tests.worlds.ink import REFERENCES, TASK, model, rotary, tokenizer  # noqa: E402

OTHERS = ("an entirely different and rather long tale of nothing", "", None, "x")
TYPES = [torch.float32, torch.bfloat16]


def logits(model: Any, references: Any, minibatch: int | None = None, steps: int = 6, task: Task = TASK) -> np.ndarray:
    """Of prompts and some tokens behind them, shape (1 + steps, B + 1, V)."""
    forward = Forward(model, Prompts(tokenizer(), task).rows(references), steps, minibatch)
    return np.stack([forward.begin(), *(forward.step(40 + number) for number in range(steps))])


# ---- prompts


def test_every_row_has_one_public_length_and_a_place_of_padding_whatever_the_references() -> None:
    prompts = Prompts(tokenizer(), TASK)
    for references in (REFERENCES, OTHERS, ("z" * 5000, "\u00e9" * 900, "  ", "a\0b"), (None,) * 4):
        rows = prompts.rows(references)
        assert rows.ids.shape == rows.mask.shape == (5, prompts.length) and prompts.length % MULTIPLE == 0
        assert not rows.mask[:, 0].any() and rows.mask[:, -1].all()
        assert torch.equal(rows.mask, rows.mask.cummax(1).values), "padding is on the left alone"
        assert torch.equal(rows.ids[0], prompts.rows(REFERENCES).ids[0])
        for place in rows.null:
            assert torch.equal(rows.ids[1 + place], rows.ids[0]) and torch.equal(rows.mask[1 + place], rows.mask[0])
        assert rows.null == tuple(place for place, one in enumerate(references) if not one)


@pytest.mark.parametrize("chat", [False, True])
def test_a_long_reference_is_cut_on_its_own_side_and_instructions_stay_whole(chat: bool) -> None:
    task = Task(public="Say it.", private="[[Of {reference}: ]]Say it.", reference_tokens=20, system="Be brief.", opening="So")
    words = tokenizer(chat)
    rows = Prompts(words, task).rows(["abcdefghij" * 2 + "Z" * 500])
    said = words.decode(rows.ids[1][rows.mask[1].bool()])
    assert said == ("<system>Be brief.\n<user>" if chat else "Be brief.\n\n") + "Of abcdefghijabcdefghij: Say it." + (
        "\n<assistant>So" if chat else "So"
    )
    assert words.decode(rows.ids[0][rows.mask[0].bool()]).replace("Say it.", "").startswith("<system>" if chat else "Be brief.")


def test_a_reference_that_becomes_longer_in_its_prompt_is_cut_further() -> None:
    """What is cut in the middle of a character decodes to more bytes than it had."""
    for count in range(1, 40):
        prompts = Prompts(tokenizer(), Task(public=TASK.public, private=TASK.private, reference_tokens=count))
        rows = prompts.rows(["a" + "\U0001f600" * 40])
        assert rows.ids.shape == (2, prompts.length) and not rows.mask[:, 0].any()


def test_the_tokenizer_sees_a_public_number_of_characters_of_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight megabytes took it 33 seconds, before anything was paid."""
    words, seen = tokenizer(), []
    called = type(words).__call__

    def watched(self: Any, text: str, **how: Any) -> Any:
        seen.append(len(text))
        return called(self, text, **how)

    monkeypatch.setattr(type(words), "__call__", watched)
    prompts = Prompts(words, TASK)
    long = prompts.rows(["tea " * 1_000_000])
    assert max(seen) <= CHARACTERS * TASK.reference_tokens
    assert torch.equal(long.ids, prompts.rows(["tea " * 100]).ids)


def test_a_reference_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="REFERENCE"):
        Prompts(tokenizer(), TASK).rows(["a", 3])  # type: ignore[list-item]


def test_no_log_and_no_repr_tells_of_a_reference(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library warns of a text that is longer than it likes, and says its length."""
    words, logger = tokenizer(), logging.getLogger("transformers")
    monkeypatch.setattr(words, "model_max_length", 8)
    monkeypatch.setattr(words, "deprecation_warnings", {})
    monkeypatch.setattr(logger, "level", logging.WARNING)  # other tests may have made the library quiet
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    logger.addHandler(caplog.handler)
    try:
        rows = Prompts(words, TASK).rows(["a secret of many words"] * 4)
        assert not caplog.records and "tensor" not in repr(rows)
        words("a secret of many words")
        assert "longer than" in caplog.text
    finally:
        logger.removeHandler(caplog.handler)


# ---- bits


@pytest.mark.one_in(23)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_content_and_length_of_a_reference_move_no_bit_of_any_other_row(kind: str, dtype: Any) -> None:
    for minibatch in (None, 2):
        before = logits(model(kind, dtype), REFERENCES, minibatch)
        for place in range(4):
            for changed in OTHERS:
                references = [changed if number == place else one for number, one in enumerate(REFERENCES)]
                after = logits(model(kind, dtype), references, minibatch)
                others = [row for row in range(5) if row != place + 1]
                assert np.array_equal(before[:, others], after[:, others])
                if changed and changed != REFERENCES[place]:
                    assert not np.array_equal(before[:, place + 1], after[:, place + 1])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_null_reference_has_the_public_logits(dtype: Any) -> None:
    found = logits(model(dtype=dtype), (None, "tea", "", "milk"))
    assert np.array_equal(found[:, 1], found[:, 0]) and np.array_equal(found[:, 3], found[:, 0])


def test_no_row_is_dropped_or_exchanged_whatever_the_size_of_minibatches() -> None:
    whole = logits(model(), REFERENCES)
    for size in range(1, 6):
        found = logits(model(), REFERENCES, size)
        assert found.shape == whole.shape and np.allclose(found, whole, atol=2e-5)
    alone = [logits(model(), [one]) for one in REFERENCES]
    for row, one in enumerate(alone):
        assert np.allclose(whole[:, row + 1], one[:, 1], atol=2e-5) and np.allclose(whole[:, 0], one[:, 0], atol=2e-5)


def test_a_cache_gives_what_the_whole_text_at_once_gives() -> None:
    found = logits(model(), REFERENCES)
    rows = Prompts(tokenizer(), TASK).rows(REFERENCES)
    ids = torch.cat([rows.ids, torch.arange(40, 46).expand(5, -1)], 1)
    mask = torch.cat([rows.mask, torch.ones(5, 6, dtype=torch.long)], 1)
    with torch.inference_mode():
        whole = model()(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
    assert np.allclose(found, whole[:, -7:].transpose(0, 1).numpy(), atol=2e-5)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_masks_that_are_made_once_give_the_same_logits_and_a_model_that_reads_none_is_told(kind: str, dtype: Any) -> None:
    rows = Prompts(tokenizer(), TASK).rows((None,) * 4)
    assert reads_wide_masks(model(kind, dtype), rows) and reads_wide_masks(model(kind, dtype), rows, 2)
    config = model(kind, dtype).config
    config.sliding_window = 100
    try:
        assert not reads_wide_masks(model(kind, dtype), rows)
    finally:
        del config.sliding_window
    for how in ("deaf", "narrow"):
        assert not reads_wide_masks(Coupled(how), rows)
    wide = np.stack(list(tokens(model(kind, dtype), REFERENCES, form=Form(wide=True))))
    near = 1e-5 if dtype == torch.float32 else 0.02
    assert np.abs(wide - np.stack(list(tokens(model(kind, dtype), REFERENCES, form=Form())))).max() <= near * wide.std()


def tokens(model: Any, references: Any, **how: Any) -> Iterator[np.ndarray]:
    forward = Forward(model, Prompts(tokenizer(), TASK).rows(references), 6, **how)
    forward.begin()
    return (forward.step(40 + number) for number in range(6))


# ---- the test before serving


class Coupled(torch.nn.Module):
    """A model whose rows depend on each other in one way or another."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner, self.how, self.calls = model(), how, 0
        self.config, self.device = self.inner.config, self.inner.device

    def get_input_embeddings(self) -> Any:
        return self.inner.get_input_embeddings()

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, logits_to_keep: int = 1, **more: Any) -> Any:
        self.calls += 1
        whole = attention_mask.shape[-1]
        if self.how == "narrow" and attention_mask.dim() == 4:
            raise ValueError("a mask has two dimensions")
        if self.how == "deaf" and attention_mask.dim() == 4:
            attention_mask = None
        if self.how == "lengths" and attention_mask.dim() == 2:  # rows padded to the longest one
            longest = int(attention_mask.sum(1).max())
            attention_mask = attention_mask.clone()
            attention_mask[:, : whole - longest] = 1 if longest % 2 else 0
        out = self.inner(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, logits_to_keep=logits_to_keep, **more
        )
        if self.how == "mean":
            out.logits = out.logits + 1e-6 * out.logits.mean(0, keepdim=True)
        if self.how == "last":
            out.logits = out.logits + 1e-6 * out.logits[-1:]
        if self.how == "late" and whole >= 40:  # another kernel from some length on
            out.logits = out.logits + 1e-6 * out.logits[1:2]
        begins, longest, shortest = input_ids.shape[1] > 1, int(position_ids.max()), int(position_ids[:, -1].min())
        if begins:
            self.middle = int(position_ids[0, -1]) >= 8
        by_length = {  # a table that a call chooses by its longest row, or its shortest
            "short": begins and not self.middle and longest >= 24,
            "short, late": not begins and not self.middle and longest >= 34,
            "middle": begins and self.middle and longest >= 30,
            "middle, late": not begins and self.middle and longest >= 34,
            "long": begins and shortest < 24,
        }
        if by_length.get(self.how):
            out.logits = out.logits * 1.01
        if self.how == "unsteady":
            out.logits = out.logits * (1 + 1e-6 * self.calls)
        if self.how == "place":
            out.logits = out.logits + 1e-4 * torch.arange(len(out.logits))[:, None, None]
        if self.how == "infinite":
            out.logits = out.logits / 0.0
        return out


@pytest.mark.one_in(99)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("minibatch", [None, 1, 3])
def test_a_model_that_keeps_rows_apart_passes(dtype: Any, minibatch: int | None) -> None:
    check_rows(model(dtype=dtype), 4, 32, 8, minibatch=minibatch)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("how", "code"), [
    ("mean", "ROWS_COUPLED"), ("last", "ROWS_COUPLED"), ("lengths", "ROWS_COUPLED"), ("late", "ROWS_COUPLED"),
    *((how, "ROWS_COUPLED") for how in ("short", "short, late", "middle", "middle, late", "long")),
    ("unsteady", "UNSTEADY"), ("infinite", "NOT_FINITE"),
])  # fmt: skip
def test_a_model_that_couples_rows_is_refused(how: str, code: str) -> None:
    with pytest.raises(NotPrivateUse) as refused:
        check_rows(Coupled(how), 4, 32, 12)
    assert refused.value.code == code
    assert str(torch.float32) in refused.value.sentence and "cpu" in refused.value.sentence


class Late(torch.nn.Module):
    """A model of which one row, in one call, moves the others of that call once it is long: from the third token on."""

    def __init__(self, call: int, row: int) -> None:
        super().__init__()
        self.inner, self.call, self.row, self.number = model(), call, row, -1
        self.config, self.device = self.inner.config, self.inner.device

    def get_input_embeddings(self) -> Any:
        return self.inner.get_input_embeddings()

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, logits_to_keep: int = 1, **more: Any) -> Any:
        begins = input_ids.shape[1] > 1
        self.number = (self.number + 1 if not hasattr(self, "began") or self.began == begins else 0) % self.calls
        self.began = begins
        out = self.inner(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, logits_to_keep=logits_to_keep, **more
        )
        if self.number == self.call and int(position_ids[self.row].max()) >= 34:
            out.logits = out.logits * 1.01
        return out

    calls = 1


@pytest.mark.one_in(99)
@pytest.mark.parametrize(("minibatch", "calls", "call", "row"), [
    (None, 1, 0, 1), (None, 1, 0, 6), (3, 3, 0, 1), (3, 3, 0, 2), (3, 3, 1, 0), (3, 3, 1, 2),
])  # fmt: skip
def test_rows_that_move_others_late_are_found_at_both_ends_of_every_call(
    minibatch: int | None, calls: int, call: int, row: int
) -> None:
    found = Late(call, row)
    found.calls = calls
    with pytest.raises(NotPrivateUse, match="ROWS_COUPLED"):
        check_rows(found, 6, 32, 12, minibatch=minibatch)


@pytest.mark.one_in(99)
@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
@pytest.mark.parametrize(("length", "tokens"), [(96, 4), (208, 8), (64, 16)])
def test_positions_that_follow_from_the_longest_row_are_found_wherever_they_change(kind: str, length: int, tokens: int) -> None:
    """The factors change at 64 tokens: below, within and above the lengths of rows of middle length."""
    with pytest.raises(NotPrivateUse, match="ROWS_COUPLED"):
        check_rows(rotary(kind), 3, length, tokens)
    if kind == "longrope":
        check_rows(rotary(kind), 3, length, tokens, minibatch=1)


def test_a_row_may_depend_on_the_place_where_it_stands_which_no_reference_decides() -> None:
    """Keeps the place public of batches, and draws that of retrieval at random."""
    check_rows(Coupled("place"), 4, 32, 4)


@pytest.mark.one_in(99)
@pytest.mark.parametrize("dtype", [*TYPES, torch.float16], ids=str)
def test_rows_of_a_length_that_references_decide_move_the_public_logits_and_rows_of_a_public_one_do_not(dtype: Any) -> None:
    """Padding all rows to the longest reference, as others do: measured 5e-7 to 0.016 here."""
    task = Task(public="Say it.", private="[[Of {reference}: ]]Say it.", reference_tokens=120)
    shared, public = [], []
    for count in (3, 9, 17, 64):
        rows = Prompts(tokenizer(), task).rows(["tea", "tea", "tea", "ab c" * count])
        longest = int(rows.mask.sum(1).max())
        cut = Rows(rows.ids[:, -longest:], rows.mask[:, -longest:], ())
        for found, one in ((shared, cut), (public, rows)):
            found.append(Forward(model(dtype=dtype), one, 1).begin()[0])
    assert all(np.array_equal(one, public[0]) for one in public)
    assert not all(np.array_equal(one, shared[0]) for one in shared)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [*TYPES, torch.float16], ids=str)
def test_rows_are_kept_apart_on_a_cuda_device(dtype: Any) -> None:
    check_rows(copy.deepcopy(model(dtype=dtype)).to("cuda"), 7, 128, 64)
