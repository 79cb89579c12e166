"""Ready-made tasks: models, collation, losses and evaluation that `dptrain train` and the recipes share."""

import importlib
from types import ModuleType
from typing import Literal

__all__ = ["task"]


def task(name: Literal["text_classification", "image_classification"]) -> ModuleType:
    """The module of a task; each has ``build``, ``per_example_loss``, ``evaluate`` and ``read_examples``."""
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
