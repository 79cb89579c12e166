"""`PrivateTrainer`: the Trainer of transformers over a private run."""

from transformers import Trainer, TrainingArguments

from dptrain.integrations.trainer import PrivateRun


class PrivateTrainer(PrivateRun, Trainer):
    """Trains as `transformers.Trainer` does, with the private step in the place of its own; see `PrivateRun`."""

    arguments = TrainingArguments
