"""Tell a missing optional dependency from a fault of our own."""

# The packages of the `train` extra; any of them missing means that the extra is not installed.
_TRAIN = frozenset({"torch", "transformers", "accelerate", "peft", "opacus", "safetensors", "sklearn"})


def is_missing_extra(error: ModuleNotFoundError) -> bool:
    """True if the module that was not found belongs to the `train` extra."""
    return (error.name or "").partition(".")[0] in _TRAIN


def how_to_install(error: ModuleNotFoundError) -> str:
    """The sentence that says what is missing and what to run."""
    return f"training needs {error.name}, which is not installed; run: pip install 'dptrain[train]'"
