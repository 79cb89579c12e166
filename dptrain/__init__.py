"""Differentially private training with signed bounds, depth-selective routing and an auditable ledger.

Importing this package does not import torch, so that the contributor's and the auditor's commands run on the base
install; what needs torch is loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dptrain.accounting import register as _register_prv
from dptrain.errors import how_to_install, is_missing_extra

if TYPE_CHECKING:
    from dptrain.checks.model import check
    from dptrain.data.items import pack_examples
    from dptrain.engine import Clock, Earlier, Metrics, Microbatches, NoiseSource, PrivateTraining, RunLedger
    from dptrain.gradients import check_gradient_rule, gradient_rule
    from dptrain.integrations.losses import losses_of
    from dptrain.routing import fix

__version__ = "0.1.0"
__all__ = [
    "Clock",
    "Earlier",
    "Metrics",
    "Microbatches",
    "NoiseSource",
    "PrivateTraining",
    "RunLedger",
    "__version__",
    "check",
    "check_gradient_rule",
    "fix",
    "gradient_rule",
    "losses_of",
    "pack_examples",
]

_ROOMS = {
    "check": "checks.model", "check_gradient_rule": "gradients", "fix": "routing", "gradient_rule": "gradients",
    "losses_of": "integrations.losses", "pack_examples": "data.items",
}  # fmt: skip

_register_prv()


def __getattr__(name: str) -> Any:
    """Loads what needs torch lazily (PEP 562).

    Raises:
        ImportError: if the training dependencies are not installed; says which extra to install.
        AttributeError: for any other name.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = import_module(f"dptrain.{_ROOMS.get(name, 'engine')}")
    except ModuleNotFoundError as error:
        if not is_missing_extra(error):
            raise
        raise ImportError(how_to_install(error), name=error.name) from error
    return getattr(found, name)


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
