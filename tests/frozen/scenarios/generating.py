"""`dptrain generate`: what a plan says, what a run answers, and what is refused by name."""

import shutil
from pathlib import Path

from tests.frozen.scenario import Case, Scenario
from tests.worlds.text_runs import ASK, model_folder, write_labels, write_queries, write_world


def _world(directory: Path) -> None:
    write_world(directory)
    write_labels(directory / "labels.csv")
    (directory / "ask.toml").write_text(ASK)
    write_queries(directory / "queries.jsonl")
    shutil.copytree(model_folder(), directory / "model")


_OWN = "generate task.toml --references refs.jsonl"
_ALL = f"{_OWN} --epsilon 8 --delta 1e-6 --batch 3 --tokens 6"
_RUN = f"{_ALL} --model model --device cpu --out run"

_ASK = _ALL.replace("task.toml", "ask.toml") + " --adjacency retrieval"
_ANSWER = f"{_ASK} --share 2 --queries queries.jsonl --model model --device cpu --out asked"

GENERATING = Scenario(
    "generate",
    _world,
    [
        Case("plan", f"{_ALL} --plan"),
        Case("plan: by labels, for three of one person", f"{_ALL} --labels labels.csv --records 3 --minibatch 3 --plan"),
        Case("plan: two references against each other, from all tokens", f"{_ALL} --adjacency replace-one --top-k all --plan"),
        Case("two texts", f"{_RUN} --texts 2"),
        Case("the same goes on", _RUN),
        Case("nothing is left", f"{_RUN} --one", code=1),
        Case("other references in the folder", f"{_RUN} --labels labels.csv", code=1),
        Case("more texts than the budget holds", f"{_ALL} --model model --device cpu --out other --texts 9", code=1),
        Case("no T", f"{_OWN} --epsilon 8 --delta 1e-6 --batch 3 --plan", code=2),
        Case("add-or-remove", f"{_ALL} --adjacency add-or-remove --plan", code=1),
        Case("clusters", f"{_ALL} --partition clusters --plan", code=1),
        Case("a median", f"{_ALL} --aggregation median --plan", code=1),
        Case("a label of the row", f"{_ALL} --labels ward --plan", code=1),
        Case("no model", f"{_ALL} --out run", code=2),
        Case("a model that is none", f"{_ALL} --model ./nowhere --out third", code=1),
        Case("plan: more texts than references and budget are good for", f"{_ALL} --texts 9 --plan"),
        Case("plan: queries", f"{_ASK} --share 20 --queries queries.jsonl --plan"),
        Case("queries, of which the corpus pays for two", _ANSWER, code=1),
        Case("plan: queries, of which none is left", f"{_ASK} --share 2 --queries queries.jsonl --out asked --plan"),
        Case("no share", f"{_ASK} --queries queries.jsonl --plan", code=2),
        Case("queries by labels", f"{_ASK} --share 2 --labels labels.csv --plan", code=1),
        Case("a state directory beside a file", f"{_ALL} --budget log.db --state here --plan", code=2),
        Case("a task that is none", _ALL.replace("task.toml", "poems") + " --plan", code=1),
    ],
)
