"""Folders of models, tasks and references for runs that make texts, and what a person types for one."""

import atexit
import copy
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ledger.budget import Unit
from ledger.budget.log import BudgetLog
from tests.worlds.ink import model, tokenizer

TEXTS = ("a red boat", "", None, "the long, wet road home", "tea", "a cold morning", "rain on the roof")
TASK = 'public = "Say it."\nprivate = "[[Of {reference}: ]]Say it."\nreference_tokens = 20\n'
ASK = """
public = "On {query}: say it."
private = "[[Of {reference}: ]]On {query}: say it."
reference_tokens = 20
labels = ["query"]
"""
QUERIES = {"a": "a red boat", "b": "rain on the road", "c": "tea"}
SALT = bytes(range(32))
NUMBERS = {"--epsilon": "8", "--delta": "1e-6", "--batch": "3", "--tokens": "6"}


@cache
def model_folder(ends: bool = False) -> Path:
    """Returns a folder as `save_pretrained` writes it; with ``ends`` half of all tokens end a text, else none does."""
    made = Path(tempfile.mkdtemp(prefix="generating-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    found, words = copy.deepcopy(model()), copy.deepcopy(tokenizer())
    found.generation_config.eos_token_id = [2, *range(130, 259)] if ends else None
    if not ends:
        found.config.eos_token_id = words.eos_token = None
    found.save_pretrained(made)
    words.save_pretrained(made)
    return made


def write_references(path: Path, count: int = 10, texts: Sequence[str | None] = TEXTS) -> Path:
    """Writes rows ``r0`` ... with texts in turn."""
    rows = [{"id": f"r{number}", "text": texts[number % len(texts)], "ward": "north"} for number in range(count)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def write_labels(path: Path, count: int = 10, labels: Sequence[str] = ("calm", "loud")) -> Path:
    """Writes a public list that gives the rows labels in turn."""
    path.write_text("id,label\n" + "".join(f"r{number},{labels[number % len(labels)]}\n" for number in range(count)))
    return path


def write_world(folder: Path, count: int = 10, **numbers: str) -> list[str]:
    """Writes a task and references; returns what a person types, but for the folder of the run."""
    (folder / "task.toml").write_text(TASK)
    write_references(folder / "refs.jsonl", count)
    given = {**NUMBERS, **{f"--{name}": value for name, value in numbers.items()}}
    words = ["generate", "task.toml", "--references", "refs.jsonl", "--model", str(model_folder())]
    return [*words, *(word for pair in given.items() for word in pair)]


def write_queries(path: Path, queries: Mapping[str, str] = QUERIES) -> Path:
    """Writes public queries."""
    path.write_text("".join(f"{json.dumps({'id': one, 'text': text})}\n" for one, text in queries.items()))
    return path


def write_corpus(folder: Path, count: int = 10, **numbers: str) -> list[str]:
    """Writes a task with a place for a query, a corpus and queries; returns what a person types to have them answered."""
    words = write_world(folder, count, share="3", **numbers)
    (folder / "task.toml").write_text(ASK)
    write_queries(folder / "queries.jsonl")
    return [*words, "--adjacency", "retrieval", "--queries", "queries.jsonl"]


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a JSONL file. As bytes, for a text may hold other ends of lines, such as U+2028."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def spent_by(log: BudgetLog, units: Sequence[Unit]) -> list[int]:
    """Returns what units have spent, in 1e-9 of rho."""
    log.refresh()
    return [log.state.spent(log.account(unit)) for unit in units]
