"""Shows the figures of a plan, and what a run made, to a person."""

import math
from collections.abc import Iterator
from typing import Any

from dptrain.cli.output import counted, table
from dptrain.cli.results import Shown

_RELATIONS = {
    "zero-out": "one reference against none",
    "zero-logits": "its logits against zeros",
    "replace-one": "one reference against another",
    "retrieval": "references that are retrieved from a corpus",
    "k = all": "drawn from all tokens, under this relation",
}


def plan_text(data: dict[str, Any]) -> Iterator[Shown]:
    """Yields the figures of a plan."""
    retrieved = "queries_at_most" in data
    rows: list[tuple[str, str]] = [
        ("epsilon", f"{_up(data['epsilon'])} at delta {data['delta']:g}, {_relation(data)}"),
        ("clip norm C", f"{data['clip_norm']:.6g}"),
        ("rho of a token", f"{data['rho_per_token']:.3g}"),
        ("rho of a text", f"{data['rho_per_text']:.6g}, of {data['tokens']:,} tokens, however few are drawn"),
        ("rows per token", f"{data['forward_rows_per_token']} of the model: {data['batch']} references, and one without"),
    ]
    if _up(data["epsilon_cap"]) != _up(data["epsilon"]):
        whole = "all texts of it", f"epsilon {_up(data['epsilon_cap'])}: what the budget lets each reference spend"
        if retrieved:
            whole = "all queries", f"epsilon {_up(data['epsilon_cap'])}: what the budget lets the corpus spend"
        rows.insert(1, whole)
    if "texts_at_most" in data:
        whose = counted(data["references"], "reference")
        rows.append(("texts at most", f"{data['texts_at_most']:,}, of {data['batches']:,} batches of {whose}"))
    if "texts_left" in data:
        rows.append(("texts left", f"{data['texts_left']:,}, by what the budget that is there has spent"))
    if retrieved:
        asked = f"; {_queries(data['queries'])} given" if data["queries"] else ""
        rows.append(("queries paid for", f"{data['queries_at_most']:,}, of {data['tokens']:,} tokens each{asked}"))
    if "queries_left" in data:
        rows.append(("queries left", f"{data['queries_left']:,}, by what the budget that is there has spent"))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        yield f"{name:{width}}   {value}"
    by_label = data.get("references_by_label", [])
    if any(one["label"] is not None for one in by_label):
        grid = table("label", "batches", "texts at most")
        for one in by_label:
            grid.add_row(one["label"], f"{one['batches']:,}", f"{one['texts_at_most']:,}")
        yield grid
    if retrieved:
        grid = table("after queries", "epsilon of the corpus")
        for one in data["epsilon_after"]:
            grid.add_row(f"{one['queries']:,}", _up(one["epsilon"]))
        yield grid
    grid = table("the same clip norm", "epsilon", "between")
    grid.columns[2].justify = "left"
    for name, value in data["epsilon_under"].items():
        base, _, group = name.partition(", ")
        between = _RELATIONS[base] + (f", all {group.removesuffix(' of one person')} of one person" if group else "")
        grid.add_row(name, _up(value), between)
    yield grid
    yield from data.get("cautions", ())
    yield from _left_out(data)


def made_text(data: dict[str, Any]) -> Iterator[Shown]:
    """Yields what a run made."""
    yield f"{counted(data['texts'], 'text')} in {data['out']}, {data['new']:,} of them new; {data['tokens']:,} tokens"
    if data["lost"]:
        yield f"{counted(data['lost'], 'text')} cut before the end: not there, and what was computed is spent"
    if data["exhausted"]:
        whole = "no batch is left whose references can all pay"
        yield f"{'the corpus can pay for no further query' if 'queries' in data else whole}: what is spent does not come back"
    if data["gone"]:
        yield f"{counted(data['gone'], 'reference')} withdrawn or ended since the run began: their batches make no text"
    yield data["guarantee"]
    if _up(data["epsilon_cap"]) != _up(data["epsilon"]):
        over = "queries for a document of the corpus" if "queries" in data else "texts of a reference"
        yield f"over all {over}: epsilon {_up(data['epsilon_cap'])}, which its budget never passes"
    if "queries_left" in data:
        yield f"the corpus pays for {_queries(data['queries_left'])} more, of T tokens each"
    if data.get("unanswered"):
        yield f"{_queries(data['unanswered'])} of {data['queries']:,} without a text"
    yield from _left_out(data)
    yield from data["cautions"]
    if data["stopped"]:
        yield "stopped; the same command goes on"
    yield f"for auditors: {data['verify']}"


def _queries(count: int) -> str:
    return f"{count:,} {'query' if count == 1 else 'queries'}"


def _left_out(data: dict[str, Any]) -> Iterator[Shown]:
    if data.get("refused"):
        yield "left out: " + ", ".join(f"{count:,} {code}" for code, count in sorted(data["refused"].items()))


def _relation(data: dict[str, Any]) -> str:
    whose = f", {data['records']} of one person at once" if data["records"] > 1 else ""
    return f"{_RELATIONS[data['adjacency']]}{whose}"


def _up(value: float) -> str:
    return f"{math.ceil(value * 1e4 - 1e-9) / 1e4:.4f}"
