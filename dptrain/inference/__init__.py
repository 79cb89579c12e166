"""Serve a trained model: what is released of a private query, and what that costs.

`gaussian` and `preset` are figures and go without torch; `release` and `rank_space` take states of numpy or torch, and load it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dptrain.inference.gaussian import Worth, delta_of, epsilon_of, sigma_analytic, sigma_classical
from dptrain.inference.preset import Parameters

if TYPE_CHECKING:
    from dptrain.inference.rank_space import RankSpace
    from dptrain.inference.release import Answer, GaussianRelease, Meter, Receipt, Released

__all__ = [
    "Answer",
    "GaussianRelease",
    "Meter",
    "Parameters",
    "RankSpace",
    "Receipt",
    "Released",
    "Worth",
    "delta_of",
    "epsilon_of",
    "sigma_analytic",
    "sigma_classical",
]

_ROOMS = {
    "Answer": "release", "GaussianRelease": "release", "Meter": "release", "RankSpace": "rank_space", "Receipt": "release",
    "Released": "release",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Loads what needs torch on first use (PEP 562)."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"dptrain.inference.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
