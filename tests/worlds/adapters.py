"""A small causal language model with an adapter for each class, policies that narrow forwards, and whole runs of both."""

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dptrain import Microbatches, NoiseSource, PrivateTraining
from dptrain.integrations.losses import losses_of
from tests.worlds.trainer import wrapped
from tests.worlds.training import World, make_world

KEY = b"\x37" * 32
ISOLATED = "[isolation]\nrequired = true\n"
OTHER = 40
"""Is added to the seeds of texts that are swapped."""


def narrowed(extra: str = "", **reads: Iterable[str] | None) -> str:
    """Classes that each are bound to the adapter of their name, by the adapters that they read; None says no reads. `extra`:
    what each says besides."""
    made = ""
    for name, own in reads.items():
        said = "" if own is None else f"reads = {{{{ adapters = {sorted(own)} }}}}\n".replace("'", '"')
        made += (
            f'[[class]]\nname = "{name}"\nclip_norm = 1.0\nnoise_multiplier = 0.5\nsampling_rate = {{q}}\n'
            f'depth = {{{{ adapter = "{name}" }}}}\n{said}{extra}'
        )
    return made


def text(seed: int, length: int = 6) -> dict[str, Any]:
    """A text of the class that its seed tells, of one length."""
    return {"input_ids": [2 + (seed * 31 + 17 * place + seed * place % 13) % 48 for place in range(length)], "seed": seed}


def adapter_world(
    root: Path, classes: str, *, rate: str = "0.6", steps: int = 6, policy_extra: str = ISOLATED, **options: Any
) -> World:
    options = {"per_class": 4, "now": 1_800_000_000, "record": text} | options
    return make_world(root, classes=classes, steps=steps, rate=rate, policy_extra=policy_extra, **options)


def adapted(*names: str, dropout: float = 0.1) -> nn.Module:
    """GPT-2 with the dropout that it comes with, and LoRA of each of these names on its attention, all of them active."""
    import peft
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    base = GPT2LMHeadModel(
        GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=1)
    )
    first, *others = names
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], lora_dropout=dropout, fan_in_fan_out=True, task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, config, adapter_name=first)
    for name in others:
        model.add_adapter(name, config)
    model.base_model.set_adapter(list(names))
    return model.train()


def collated(swapped: int | None = None) -> Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]:
    """Returns a collator; it sees other texts in the place of those of the class with this number.

    So descriptors, slots and draws are what they were, and one class has other payloads.
    """

    def seen(example: dict[str, Any]) -> list[int]:
        seed = example["seed"]
        return list(text(seed + OTHER if swapped is not None and seed // 1000 == swapped else seed)["input_ids"])

    def collate(examples: list[dict[str, Any]], length: int | None = None) -> dict[str, torch.Tensor]:
        ids = torch.tensor([(seen(example) + [0] * (length or 0))[:length] for example in examples])
        return {"input_ids": ids, "labels": ids.clone()}

    return collate


def per_text(model: nn.Module, rows: Any) -> torch.Tensor:
    return losses_of(getattr(model, "module", model), model(input_ids=rows["input_ids"]), rows["labels"])


class AdapterRun:
    """A prepared run over such a world, with AdamW, a schedule that counts steps, and a clip of every block."""

    def __init__(
        self, world: World, model: nn.Module, ledger: str, *, swapped: int | None = None, key: bytes | None = KEY,
        resume: bool = False, microbatch: int = 3, rows: int | None = None, losses: Any = per_text, ranks: bool = False,
        **options: Any,
    ) -> None:  # fmt: skip
        torch.manual_seed(11)
        self.model, self._losses = model, losses
        self.net = wrapped(model) if ranks else model
        self.optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.2, 6)
        self.private = PrivateTraining.open(
            world.policy, world.corpus, ledger=world.root / f"{ledger}.db", resume=resume, progress=False,
            microbatches=Microbatches(microbatch, rows), noise=NoiseSource(insecure_test_key=key),
            clock=_clock(world),
        )  # fmt: skip
        try:
            _, _, self.steps = self.private.prepare(
                self.net, self.optimizer, collated(swapped), states=[self.schedule], **options
            )
        except BaseException:
            self.private.close()
            raise

    def __enter__(self) -> "AdapterRun":
        return self

    def __exit__(self, *_: object) -> None:
        self.private.close()

    def go(self, last: int | None = None) -> "AdapterRun":
        """Trains to a step, whose state it saves, or to the end."""
        for step in self.steps:
            for rows in step:
                self.private.backward(self._losses(self.net, rows), rows)
            self.private.clip_blocks_(0.05)
            self.optimizer.step()
            self.schedule.step()
            if step.number == last:
                self.private.save()
                break
        return self

    def kept(self) -> dict[str, dict[str, torch.Tensor]]:
        """By adapter, its tensors and all that the optimizer keeps of them."""
        return kept(self.model, self.optimizer)


def kept(model: nn.Module, optimizer: Any) -> dict[str, dict[str, torch.Tensor]]:
    """By adapter, its tensors and all that an optimizer keeps of them, by name."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    state = getattr(optimizer, "optimizer", optimizer).state
    for name, parameter in model.named_parameters():
        if ".lora_" not in name:
            continue
        own = found.setdefault(name.split(".")[-2], {})
        own[name] = parameter.detach().clone()
        for key, value in state[parameter].items():
            own[f"{name}/{key}"] = copy.deepcopy(torch.as_tensor(value))
    return found


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """Tells whether all of it is equal to the last bit."""
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def _clock(world: World) -> Any:
    from dptrain import Clock

    return Clock(lambda: world.now)
