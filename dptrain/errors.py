"""Errors of the training layer: one tree, each with a stable code and a sentence that says how to go on."""

import traceback


class DptrainError(Exception):
    """A refusal or failure that a person can act on.

    Attributes:
        code: Stable machine-readable code, for example `LOSS_SHAPE`.
        sentence: What was found, what was expected, and what to do.
    """

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(code, sentence)
        self.code = str(code)
        self.sentence = sentence

    def __str__(self) -> str:
        return f"{self.code}: {self.sentence}"


class ConfigError(DptrainError):
    """A run configuration or an argument that cannot be used."""


class NotPrivateUse(DptrainError):
    """A use of the library under which a gradient or a release would not be private."""


class LossShape(DptrainError):
    """The losses handed to `backward` are not one finite-typed number per example."""


class CoupledModel(DptrainError):
    """One contribution's gradient depends on another contribution of the same batch."""


class UnsupportedModule(DptrainError):
    """A module for which no exact per-contribution gradient norm is known."""


class WrongGradientRule(DptrainError):
    """A gradient rule that does not give what autograd gives for each sample by itself.

    Attributes:
        parameter: Name of the tensor, None where the fault concerns no single one.
        sample: Number of the sample, None where it concerns no single one.
        found: The norm of the gradient that the rule gave, or another short account of what was found.
        expected: The norm that autograd gives for this sample alone, or what was expected.
    """

    def __init__(
        self, code: str, sentence: str, *, parameter: str | None, sample: int | None, found: object, expected: object
    ) -> None:
        super().__init__(code, sentence)
        self.parameter = parameter
        self.sample = sample
        self.found = found
        self.expected = expected


class UnsupportedPolicy(DptrainError):
    """The signed policy asks for something this build does not carry."""


class StepOrder(DptrainError):
    """`steps`, `backward` and `optimizer.step` were not called in the order that the charge pays for."""


class NonFinite(DptrainError):
    """A parameter or a released gradient is not finite."""


class ContentChanged(DptrainError):
    """The bytes of a contribution are no longer those that were attested and admitted."""


class NotPaid(DptrainError):
    """A private answer for which no budget is reserved, or of which all that was reserved has been released."""


class RanksError(DptrainError):
    """The processes of a run do not agree, or cannot reach each other."""


class FeedingFailed(DptrainError):
    """A process that decodes contributions beside the run has ended."""


class ResumeRefused(DptrainError):
    """A model checkpoint and the ledger do not belong together, or the ledger is behind the checkpoint."""


class CompileRefused(DptrainError):
    """The compiled form of the step cannot be made here, or does not give what the hook form gives."""


class TargetUnreachable(DptrainError):
    """No value of what was solved for reaches the target.

    Attributes:
        nearest: The nearest epsilon that can be reached.
    """

    def __init__(self, code: str, sentence: str, *, nearest: float) -> None:
        super().__init__(code, sentence)
        self.nearest = nearest


def without_text(error: BaseException) -> str:
    """Says of what type an exception is and where the user's code raised it.

    Guarantee: the text of the exception, which may repeat a private payload, is not in it.

    The line is the innermost one in the user's own file, not in a library that this calls.
    """
    lines = [(frame.f_code.co_filename, number, frame.f_globals) for frame, number in traceback.walk_tb(error.__traceback__)]
    users = [line for line in lines if str(line[2].get("__name__")).partition(".")[0] not in ("dptrain", "torch")]
    own = [line for line in users if line[0] == users[0][0]] or lines
    return f"{type(error).__name__} at {own[-1][0]}:{own[-1][1]}" if own else type(error).__name__


# The packages of an extra; any of them missing means that the extra is not installed.
_TRAIN = frozenset({"torch", "transformers", "accelerate", "peft", "opacus", "safetensors", "sklearn"})
_SERVE = frozenset({"fastapi", "starlette", "pydantic", "uvicorn", "websockets", "prometheus_client", "httpx"})


def is_missing_extra(error: ModuleNotFoundError) -> bool:
    """True if the module that was not found belongs to the `train` or the `serve` extra."""
    return (error.name or "").partition(".")[0] in _TRAIN | _SERVE


def how_to_install(error: ModuleNotFoundError) -> str:
    """The sentence that says what is missing and what to run."""
    if (error.name or "").partition(".")[0] in _SERVE:
        return f"serving needs {error.name}, which is not installed; run: pip install 'dptrain[serve]'"
    return f"training needs {error.name}, which is not installed; run: pip install 'dptrain[train]'"
