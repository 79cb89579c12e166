"""`PrivateTrainer`: the Trainer of transformers over a private run."""

from dptrain.errors import how_to_install, is_missing_extra

try:
    from transformers import Trainer, TrainingArguments

    from dptrain.integrations.trainer import PrivateRun
except ModuleNotFoundError as error:
    if not is_missing_extra(error):
        raise
    raise ImportError(how_to_install(error), name=error.name) from error


class PrivateTrainer(PrivateRun, Trainer):
    """Trains as `transformers.Trainer` does, with the private step in the place of its own; see `PrivateRun`."""

    arguments = TrainingArguments
