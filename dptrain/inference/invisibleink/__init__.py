"""Generates text from private references, with a proof: InvisibleInk, on any causal language model of Hugging Face.

Who is trusted holds the weights and the references. What is protected is one reference, or all of one person's (``records``);
what is not: the query, prompts, labels, B, T, their order and number, and what the model was trained on. `formulas`, `plan`,
`partition`, `tasks` and `sampler` go without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dptrain.inference.invisibleink.formulas import aggregate, clip_norm, expanded_top_k, probabilities, rho
from dptrain.inference.invisibleink.partition import batches, batches_by_label, fresh_salt
from dptrain.inference.invisibleink.plan import Plan
from dptrain.inference.invisibleink.tasks import Task

if TYPE_CHECKING:
    from dptrain.inference.invisibleink.generator import InvisibleInk, Stream, Token
    from dptrain.inference.invisibleink.paying import BudgetMeter
    from dptrain.inference.invisibleink.pool import Pool
    from dptrain.inference.invisibleink.references import Reference, References
    from dptrain.inference.invisibleink.retrieval import Lexical, Retrieval
    from dptrain.inference.invisibleink.run import Run

__all__ = [
    "BudgetMeter",
    "InvisibleInk",
    "Lexical",
    "Plan",
    "Pool",
    "Reference",
    "References",
    "Retrieval",
    "Run",
    "Stream",
    "Task",
    "Token",
    "aggregate",
    "batches",
    "batches_by_label",
    "clip_norm",
    "expanded_top_k",
    "fresh_salt",
    "probabilities",
    "rho",
]

_ROOMS = {
    "BudgetMeter": "paying", "InvisibleInk": "generator", "Lexical": "retrieval", "Pool": "pool", "Reference": "references",
    "References": "references", "Retrieval": "retrieval", "Run": "run", "Stream": "generator", "Token": "generator",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Loads what needs torch, or the store of a log, on first use (PEP 562)."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"dptrain.inference.invisibleink.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
