"""`PrivateSFTTrainer`, `PrivateDPOTrainer` and `PrivateRewardTrainer`: trainers of TRL over a private run.

Every contribution is prepared by TRL's own code, and comes into the step as a row of fixed length. Of the other trainers of TRL
this module says why they have no private form (`dptrain.integrations.coupled`).
"""

import hashlib
from abc import abstractmethod
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.functional import logsigmoid

from dptrain.data.microbatch import Decode
from dptrain.errors import ConfigError, NotPrivateUse
from dptrain.integrations.coupled import refuse
from dptrain.integrations.losses import IGNORED, each_token, next_of, of_tokens
from dptrain.integrations.rows import contributions_of
from dptrain.integrations.trainer import Examples, PrivateRun

try:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("trl", "datasets"):
        raise
    raise ImportError(f"this module needs {error.name}; run: pip install 'dptrain[trl]'", name=error.name) from error

ROW = "dptrain_row"
"""Column that says which example of the run a prepared row is."""


def __getattr__(name: str) -> Any:
    """Says of another trainer of TRL why it is not here."""
    refuse(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Prepared(PrivateRun):
    """Lets TRL prepare the contributions of a run as it prepares its training data, and finds each again by its content."""

    def __init__(self, *given: Any, **options: Any) -> None:
        self._rows: dict[bytes, list[dict[str, Any]]] = {}
        super().__init__(*given, **options)
        args = self.args
        if getattr(args, "activation_offloading", False):
            raise ConfigError("TRAINER", "activation_offloading moves what the private step keeps; leave it out")
        if getattr(self, "aux_loss_enabled", False):
            raise NotPrivateUse(
                "AUXILIARY_LOSS",
                "the loss that balances experts is a mean over the batch, which couples contributions; set "
                "router_aux_loss_coef=0.0",
            )
        if self._length is None:
            self._length = args.max_length
        kept = self._kept_columns()
        prepared = {row[ROW]: {key: row[key] for key in kept if key in row} for row in self.train_dataset}
        for own in self._rows.values():
            own[:] = [prepared.get(row[ROW]) or self._dropped() for row in own]
        self.train_dataset = None

    def _trainer_data(self) -> Any:
        """Returns the examples of all contributions, numbered, for TRL to prepare in memory."""
        examples: list[dict[str, Any]] = []
        for content_hash, found in contributions_of(self.private):
            own = [{**_record(example), ROW: number} for number, example in enumerate(found, start=len(examples))]
            self._rows[content_hash] = own
            examples += own
        return Dataset.from_list(examples)

    def _decode(self) -> Decode:
        def prepared(content: bytes) -> list[Any]:
            return self._rows[hashlib.sha256(content).digest()]

        return prepared

    @abstractmethod
    def _kept_columns(self) -> tuple[str, ...]:
        """Returns the columns of a prepared example that its loss takes."""

    @abstractmethod
    def _dropped(self) -> dict[str, Any]:
        """Returns what stands for an example that TRL leaves out: a row that adds nothing."""


class PrivateSFTTrainer(_Prepared, SFTTrainer):
    """Trains as `trl.SFTTrainer` does, with the private step in the place of its own; see `PrivateRun`.

    Raises:
        NotPrivateUse: code PACKING, several contributions would share a row.
    """

    arguments = SFTConfig

    def __init__(self, model: Any = None, args: Any = None, *given: Any, **options: Any) -> None:
        if args is not None and (args.packing or args.padding_free):
            raise NotPrivateUse(
                "PACKING",
                "packing and padding_free put several contributions into one row, which no bound on one of them holds for; set "
                "packing=False and padding_free=False. Records of one contribution may share a row: docs/lengths.md",
            )
        super().__init__(model, args, *given, **options)

    def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, *others: Any, **options: Any) -> Any:
        """Returns the mean over each example's own tokens for private rows; of other rows what TRL returns."""
        if not isinstance(inputs, Examples) or self.args.loss_type == "nll" or self.compute_loss_func is not None:
            return super().compute_loss(model, inputs, return_outputs, *others, **options)
        labels = inputs.pop("labels")
        return of_tokens(model(**inputs).logits.float(), next_of(labels), certain=True)

    def _kept_columns(self) -> tuple[str, ...]:
        return ("input_ids", "labels")

    def _dropped(self) -> dict[str, Any]:
        return {"input_ids": [0], "labels": [IGNORED]}


class _Pairs(_Prepared):
    """Trains on pairs of a chosen and a rejected text; both are rows of one contribution."""

    def _collate(self) -> Any:
        assert self.processing_class is not None
        if self._length is None:
            raise ConfigError("TRAINER", "pairs need a fixed length, and max_length is None; set max_length in the arguments")
        end = getattr(self.args, "truncation_mode", "keep_start") == "keep_end"
        return PairRows(self._length, self.processing_class.pad_token_id or 0, end)

    def _dropped(self) -> dict[str, Any]:
        return {"chosen_ids": [0], "rejected_ids": [0], "counts": 0.0}


class PairRows:
    """Collates pairs into rows of one length: tokens, masks, and which tokens belong to the completion."""

    def __init__(self, length: int, pad: int, end: bool) -> None:
        self._length = length
        self._pad = pad
        self._end = end

    def __call__(self, examples: list[Any], length: int | None = None) -> dict[str, torch.Tensor]:
        """Collates pairs, in the public length of their contributions where they have one."""
        length = length or self._length
        kept = slice(-length, None) if self._end else slice(length)
        found: dict[str, torch.Tensor] = {}
        for side in ("chosen", "rejected"):
            prompts = [list(example.get("prompt_ids", ())) for example in examples]
            texts = [list(example[f"{side}_ids"]) for example in examples]
            ids = [(prompt + text)[kept] for prompt, text in zip(prompts, texts, strict=True)]
            ends = [([0] * len(prompt) + [1] * len(text))[kept] for prompt, text in zip(prompts, texts, strict=True)]
            found[f"{side}_input_ids"] = _filled(ids, length, self._pad)
            found[f"{side}_attention_mask"] = _filled([[1] * len(each) for each in ids], length, 0)
            found[f"{side}_completion"] = _filled(ends, length, 0)
        for key, default in (("counts", 1.0), ("margin", 0.0), ("ref_chosen_logps", 0.0), ("ref_rejected_logps", 0.0)):
            found[key] = torch.tensor([float(example.get(key, default)) for example in examples])
        return found


class PrivateRewardTrainer(_Pairs, RewardTrainer):
    """Trains as `trl.RewardTrainer` does, with the private step in the place of its own; see `PrivateRun`."""

    arguments = RewardConfig

    def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, *others: Any, **options: Any) -> Any:
        """Returns the loss of each private pair; of other rows what TRL returns."""
        if not isinstance(inputs, Examples):
            return super().compute_loss(model, inputs, return_outputs, *others, **options)
        chosen, rejected = (model(**_side(inputs, side)).logits.float().squeeze(-1) for side in ("chosen", "rejected"))
        losses = -logsigmoid(chosen - rejected - inputs["margin"])
        if self.args.center_rewards_coefficient is not None:
            losses = losses + self.args.center_rewards_coefficient * (chosen + rejected) ** 2
        return losses * inputs["counts"]

    def _kept_columns(self) -> tuple[str, ...]:
        return ("chosen_ids", "rejected_ids", "margin")


class PrivateDPOTrainer(_Pairs, DPOTrainer):
    """Trains as `trl.DPOTrainer` does, with the private step in the place of its own; see `PrivateRun`.

    What the reference model says of a pair is computed once, before the first step. Losses are ``sigmoid``, ``hinge`` and
    ``ipo``, under the reverse KL divergence.

    Raises:
        ConfigError: code TRAINER, a loss or setting that has no private form here.
    """

    arguments = DPOConfig

    def __init__(self, model: Any = None, ref_model: Any = None, args: Any = None, *given: Any, **options: Any) -> None:
        args = args if args is not None else self.arguments("trainer_output")
        others = {
            "loss_type": [each for each in args.loss_type if each not in _LOSSES], "ld_alpha": args.ld_alpha,
            "f_divergence_type": "" if args.f_divergence_type == "reverse_kl" else args.f_divergence_type,
            "label_smoothing": args.label_smoothing, "use_weighting": args.use_weighting, "sync_ref_model": args.sync_ref_model,
            "precompute_ref_log_probs": args.precompute_ref_log_probs,
        }  # fmt: skip
        if asked := next((name for name, value in others.items() if value), None):
            raise ConfigError(
                "TRAINER",
                f"{asked} is {others[asked]!r}, which has no private form here; private are the losses {', '.join(_LOSSES)}, "
                "with all else as TRL has it by default. The reference is always computed before the first step",
            )
        super().__init__(model, args, *given, ref_model=ref_model, **options)

    def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, *others: Any, **options: Any) -> Any:
        """Returns the loss of each private pair; of other rows what TRL returns."""
        if not isinstance(inputs, Examples):
            return super().compute_loss(model, inputs, return_outputs, *others, **options)
        scores = [_logps(model, inputs, side) - inputs[f"ref_{side}_logps"] for side in ("chosen", "rejected")]
        lengths = [inputs[f"{side}_completion"].sum(1).clamp(min=1) for side in ("chosen", "rejected")]
        losses = torch.zeros_like(scores[0])
        for kind, weight in zip(self.args.loss_type, self.args.loss_weights or [1.0] * len(self.args.loss_type), strict=True):
            losses = losses + weight * _LOSSES[kind](scores[0], scores[1], lengths[0], lengths[1], self.args.beta)
        return losses * inputs["counts"]

    def _decode(self) -> Decode:
        """Computes the reference of every pair, while the model still is what it was before the run."""
        reference = self.ref_model if self.ref_model is not None else self.model
        adapted = self.ref_model is None and hasattr(reference, "disable_adapter")
        if adapted and "ref" in reference.peft_config:
            raise ConfigError("TRAINER", "the adapter was trained before, and its copy would be the reference; give ref_model=")
        apart = reference.disable_adapter() if adapted else nullcontext()
        collate, training = self._collate(), reference.training
        pairs = [row for own in self._rows.values() for row in own]
        size = self.args.per_device_train_batch_size
        reference.eval()
        with torch.no_grad(), apart:
            for start in range(0, len(pairs), size):
                some = pairs[start : start + size]
                inputs = {key: value.to(self.args.device) for key, value in collate(some).items()}
                for side in ("chosen", "rejected"):
                    for pair, value in zip(some, _logps(reference, inputs, side).tolist(), strict=True):
                        pair[f"ref_{side}_logps"] = value
        reference.train(training)
        return super()._decode()

    def _kept_columns(self) -> tuple[str, ...]:
        return ("prompt_ids", "chosen_ids", "rejected_ids")


_LOSSES = {
    "sigmoid": lambda chosen, rejected, long, short, beta: -logsigmoid(beta * (chosen - rejected)),
    "hinge": lambda chosen, rejected, long, short, beta: torch.relu(1 - beta * (chosen - rejected)),
    "ipo": lambda chosen, rejected, long, short, beta: (chosen / long - rejected / short - 1 / (2 * beta)) ** 2,
}
"""Losses of a pair, by TRL's names: scores, tokens of the completions, and beta."""


def _filled(rows: list[list[int]], length: int, fill: int) -> torch.Tensor:
    return torch.tensor([row + [fill] * (length - len(row)) for row in rows])


def _side(inputs: Any, side: str) -> dict[str, torch.Tensor]:
    return {"input_ids": inputs[f"{side}_input_ids"], "attention_mask": inputs[f"{side}_attention_mask"]}


def _logps(model: nn.Module, inputs: Any, side: str) -> torch.Tensor:
    """Returns the log-probability of each completion, shape (B,)."""
    rows = _side(inputs, side)
    each = -each_token(model(**rows).logits.float(), next_of(rows["input_ids"]))
    return (each[:, :-1] * inputs[f"{side}_completion"][:, 1:]).sum(1)


def _record(example: Any) -> dict[str, Any]:
    """Returns an example as a record of columns.

    Raises:
        ConfigError: code TRAINER, it is none.
    """
    if isinstance(example, str):
        return {"text": example}
    if not isinstance(example, dict):
        raise ConfigError(
            "TRAINER", f"a contribution decodes to a {type(example).__name__}, expected a record as TRL takes it, or a text"
        )
    return example
