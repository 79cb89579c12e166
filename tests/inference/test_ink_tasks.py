"""A task's file, its prompts, and the batches of a run: a null reference is the public prompt, and content chooses nothing."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrain.errors import ConfigError
from dptrain.inference.invisibleink import Plan, Task, batches, batches_by_label, fresh_salt, probabilities
from dptrain.inference.invisibleink.tasks import names

WHOLE = {"public": "Write a {kind} note.", "private": "[[Here: {reference}\n]]Write a [[similar ]]{kind} note.",
         "reference_tokens": 40, "labels": ("kind",)}  # fmt: skip
SALT = bytes(range(32))


def refused(**changes: object) -> str:
    with pytest.raises(ConfigError) as error:
        Task(**{**WHOLE, **changes})  # type: ignore[arg-type]
    return error.value.code


# ---- prompts


def test_a_null_reference_renders_the_public_prompt_byte_for_byte() -> None:
    task = Task(**WHOLE)  # type: ignore[arg-type]
    assert task.render(None, {"kind": "sad"}) == task.render("", {"kind": "sad"}) == "Write a sad note."
    assert task.render("it rains", {"kind": "sad"}) == "Here: it rains\nWrite a similar sad note."
    assert task.frame({"kind": "sad"}) == "Here: \nWrite a similar sad note."


@pytest.mark.parametrize("private", [
    "Here: {reference}\nWrite a {kind} note.", "[[Here: {reference}]] Write a {kind} note.",
    "[[Here: {reference}||none ]]Write a {kind} note.", "[[Here: {reference}\n]]Write a similar {kind} note.",
])  # fmt: skip
def test_a_task_whose_null_reference_is_another_prompt_is_refused_at_load(private: str, tmp_path: Path) -> None:
    assert refused(private=private) in ("NULL_REFERENCE", "TASK")
    file = tmp_path / "task.toml"
    quoted = private.replace("\n", "\\n")
    file.write_text(f'public = "Write a {{kind}} note."\nprivate = "{quoted}"\nreference_tokens = 4\nlabels = ["kind"]\n')
    with pytest.raises(ConfigError, match=r"have to be equal|stands outside of"):
        Task.read(file)


@pytest.mark.parametrize("name", names())
def test_the_tasks_of_the_paper_come_along_and_their_null_is_their_public_prompt(name: str) -> None:
    task = Task.shipped(name)
    labels = {one: "x" for one in task.labels}
    assert task.render(None, labels) == task.render("", labels)
    assert "MARK" in task.render("MARK", labels) and "{" not in task.render("MARK", labels)
    assert name in ("mimic", "mimic-augpe", "tab", "yelp")


def test_no_text_of_a_reference_or_a_label_is_read_as_a_template() -> None:
    task = Task(**WHOLE)  # type: ignore[arg-type]
    odd = "{kind} {reference} [[a||b]] ]] \\1"
    assert task.render(odd, {"kind": "{reference}"}) == f"Here: {odd}\nWrite a similar {{reference}} note."


def test_what_is_no_task_is_refused_by_name(tmp_path: Path) -> None:
    assert refused(public="") == refused(public="Write {what}.", private="[[{reference}]]Write {what}.") == "TASK"
    assert refused(private="Write a {kind} note.") == refused(reference_tokens=0) == refused(reference_tokens=True) == "TASK"
    assert refused(private="[[{reference}{reference}]]Write a {kind} note.") == refused(labels=("reference",)) == "TASK"
    assert refused(public="[[x", private="[[{reference}]][[x") == refused(labels=("kind", "kind")) == "TASK"
    said = {
        "{refrence}": "write {reference}", "{reference}": "outside of", "[[{reference} {reference}]]": "2 places",
        "[[no place]]": "0 places", "[[{reference} of {colour}]]": "add it to labels",
    }  # fmt: skip
    for place, words in said.items():
        with pytest.raises(ConfigError, match=re.escape(words)):
            Task(**{**WHOLE, "private": f"{place}Write a {{kind}} note."})  # type: ignore[arg-type]
    task = Task(**WHOLE)  # type: ignore[arg-type]
    for labels in (None, {"kind": "a", "other": "b"}, {"kind": 3}):
        with pytest.raises(ConfigError, match="LABELS"):
            task.render("x", labels)  # type: ignore[arg-type]
    file = tmp_path / "task.toml"
    for text in ("public = 3", 'public = "a"\nprivate = "[[{reference}]]a"\nreference_tokens = 3\nlength = "auto"', "[["):
        file.write_text(text)
        with pytest.raises(ConfigError, match="TASK"):
            Task.read(file)
    file.write_text('public = "a"\nprivate = "a"\nreference_token = 3\n')
    with pytest.raises(ConfigError, match="reference_tokens is known"):
        Task.read(file)
    file.write_text('public = "a"\nprivate = "a"\n')
    with pytest.raises(ConfigError, match="lacks reference_tokens"):
        Task.read(file)
    with pytest.raises(ConfigError, match="there are mimic"):
        Task.shipped("../tab")


# ---- batches


def test_batches_follow_from_ids_and_salt_and_records_keep_their_place_when_a_payload_is_null() -> None:
    """Texts of other batches have the same logits then, to the bit: dropping what is empty would shift them all."""
    rng = np.random.default_rng(0)
    ids = [f"record-{number}" for number in range(30)]
    payloads = {one: rng.normal(0, 2, 6) for one in ids}
    public = rng.normal(0, 1, 6)
    plan = Plan.for_epsilon(3.0, delta=1e-6, batch=4, tokens=5)

    def texts(payloads: dict) -> list[np.ndarray]:
        rows = [np.stack([payloads[one] for one in batch]) for batch in batches(list(payloads), 4, salt=SALT)]
        return [probabilities(batch, public, 6, plan.clip, 1.0) for batch in rows]

    before, after = texts(payloads), texts({**payloads, "record-7": public})
    changed = [number for number, pair in enumerate(zip(before, after, strict=True)) if not np.array_equal(*pair)]
    mine = [number for number, batch in enumerate(batches(ids, 4, salt=SALT)) if "record-7" in batch]
    assert changed == mine and len(before) == 7


@given(st.permutations([f"r{number}" for number in range(12)]), st.integers(1, 12))
def test_batches_are_disjoint_of_one_size_and_know_no_order_of_the_records(ids: list[str], B: int) -> None:
    found = batches(ids, B, salt=SALT)
    members = [one for batch in found for one in batch]
    assert len(found) == 12 // B and all(len(batch) == B for batch in found) and len(set(members)) == len(members)
    assert found == batches(sorted(ids), B, salt=SALT)


def test_another_salt_makes_other_batches_and_a_guess_at_them_is_no_better_than_chance() -> None:
    ids = [f"record-{number}" for number in range(400)]
    one, other = (dict(enumerate(batches(ids, 4, salt=salt))) for salt in (SALT, fresh_salt()))
    assert one != other
    neighbours = sum(abs(int(a[7:]) - int(b[7:])) == 1 for batch in one.values() for a, b in pairwise(batch))
    assert neighbours < 10


def test_batches_are_formed_within_a_public_label() -> None:
    labels = {f"r{number}": "left" if number % 3 else "right" for number in range(10)}
    found = batches_by_label(labels, 4, salt=SALT)
    assert {name: len(rows) for name, rows in found.items()} == {"left": 1, "right": 1}
    assert all(labels[one] == name for name, rows in found.items() for batch in rows for one in batch)
    assert batches_by_label({"a": "x"}, 4, salt=SALT) == {"x": []}


def test_records_that_cannot_be_told_apart_and_weak_salts_are_refused() -> None:
    for ids, batch, salt, code in (
        (["a", "a"], 1, SALT, "RECORD_ID"), (["a", ""], 1, SALT, "RECORD_ID"), (["a"], 2, SALT, "BATCH"),
        (["a"], True, SALT, "BATCH"), (["a"], 1, b"short", "SALT"),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as refused:
            batches(ids, batch, salt=salt)
        assert refused.value.code == code
