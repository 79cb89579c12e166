"""Differentially private training with signed bounds, depth-selective routing and an auditable ledger.

Importing this package does not import torch, so that the contributor's and the auditor's commands run on the base
install; `PrivateTraining` is loaded on first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dptrain.engine import PrivateTraining

__version__ = "0.1.0"
__all__ = ["PrivateTraining", "__version__"]

# The packages of the `train` extra; any of them missing means that the extra is not installed.
_TRAIN_EXTRA = frozenset({"torch", "transformers", "accelerate", "peft", "opacus", "safetensors"})


def __getattr__(name: str) -> Any:
    """Load `PrivateTraining` lazily (PEP 562).

    Raises:
        ImportError: if the training dependencies are not installed; says which extra to install.
        AttributeError: for any other name.
    """
    if name != "PrivateTraining":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from dptrain.engine import PrivateTraining
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _TRAIN_EXTRA:
            raise
        raise ImportError(
            f"training needs {error.name}, which is not installed; run: pip install 'dptrain[train]'", name=error.name
        ) from error
    return PrivateTraining
