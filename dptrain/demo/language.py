"""Make the world that the language demo serves: a small public language model, and one private adapter of its head per class.

The base learns public texts. Each class of contributions trains a LoRA adapter of the head alone: it reads the last state of
the base, which a server can release with noise or under encryption.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from attest.gate import GateReport
from attest.keys import load_private_key
from dptrain.cli.release import publish_all
from dptrain.demo.rehearsal import Tier
from dptrain.demo.topics import LONGEST, PRIVATE, public_texts, texts, tokenizer
from dptrain.engine.one_owner import Contributor, Stage, stage
from dptrain.engine.options import Microbatches, RunLedger
from dptrain.engine.private_training import PrivateTraining
from dptrain.errors import ConfigError
from dptrain.integrations.losses import IGNORED, losses_of
from dptrain.record.registry_watch import registry_of_run
from ledger.accountants import calibrate
from ledger.audit import verify_export
from ledger.log import Ledger
from ledger.note import NoteSigner, parse_verifier_key
from ledger.release import release as release_model
from ledger.storage.place import Place

CORPUS: Final = "topics"
DELTA: Final = 1e-5

TIERS: Final = (Tier("harbour", 2.0, "0.0", 1.0), Tier("orchard", 4.0, "0.0", 1.0), Tier("workshop", 8.0, "0.0", 1.0))
"""Classes of contributions, each with the topic and the adapter of its name."""

RANK: Final = 4
"""Is the rank of each adapter."""

WIDTH: Final = 64
"""Is the width of the model's states."""

_PROBES: Final = 8
_BATCH: Final = 32


@dataclass(frozen=True)
class Size:
    """The size of the world; constants, chosen without looking at any contribution.

    Attributes:
        public_texts, public_steps: what the base learns from, and for how long.
        contributions: of each class. contributors: of each class.
        steps, rate: horizon of the policy, and the probability that a contribution is drawn. learning_rate: of the adapters.
        repeats: answers to each beginning of a text, to see what an adapter has learnt.
    """

    public_texts: int = 6000
    public_steps: int = 1200
    contributions: int = 800
    contributors: int = 4
    steps: int = 40
    rate: float = 0.25
    learning_rate: float = 0.012
    repeats: int = 6


QUICK: Final = Size(public_texts=1000, public_steps=80, contributions=24, contributors=2, steps=3, rate=0.5, repeats=1)


@dataclass(frozen=True)
class World:
    """Says where the parts of a world lie.

    Attributes:
        directory: of everything. classes: epsilon by class.
    """

    directory: Path
    classes: Mapping[str, float]

    @property
    def base(self) -> Path:
        """Directory of the public model, with its tokenizer."""
        return self.directory / "base"

    @property
    def release(self) -> Path:
        """Directory of the release: an adapter per class, in a folder of its name, and the tokenizer."""
        return self.directory / "model"

    @property
    def export(self) -> Path:
        """Directory of the export of the run, made before the release."""
        return self.directory / "export"

    @property
    def ledger(self) -> Path:
        """Ledger of the run; its private key lies beside it."""
        return self.directory / "ledger.db"

    @property
    def ledger_key(self) -> Path:
        """Public key of the ledger."""
        return self.directory / "ledger.pub"

    @property
    def owner_key(self) -> Path:
        """Public key of the corpus owner."""
        return self.directory / "keys" / "owner.pub"


def make_world(directory: Path, *, quick: bool = False) -> World:
    """Makes a world in a new directory: public model, contributions, private training, release.

    Args:
        quick: take a few steps only, where it does not matter what the adapters have learnt.

    Raises:
        ConfigError: code OUTPUT, the directory holds a corpus already.
        DptrainError, AttestError, LedgerError: as training and releasing.
    """
    size = QUICK if quick else Size()
    made = contribute(directory, size)
    base_model(directory / "base", size)
    trained(directory, made, size)
    publish(directory)
    return World(directory, {tier.name: tier.epsilon for tier in TIERS})


def base_model(directory: Path, size: Size, *, seed: int = 0) -> Path:
    """Trains a language model on public texts, without privacy since nobody is in them, and saves it with its tokenizer.

    Returns:
        ``directory``.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)  # so small a model is slower on several cores, and far slower on busy ones
    words = tokenizer()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words), hidden_size=WIDTH, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, max_position_embeddings=256, tie_word_embeddings=False, bos_token_id=words.bos_token_id,
            eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id,
        )
    )  # fmt: skip
    rows = Rows(words)([{"text": line} for line in public_texts(size.public_texts, seed)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=size.public_steps, pct_start=0.1)
    order = torch.Generator().manual_seed(seed)
    for _ in range(size.public_steps):
        chosen = torch.randint(size.public_texts, (_BATCH,), generator=order)
        optimizer.zero_grad()
        per_example_loss(model, {name: value[chosen] for name, value in rows.items()}).mean().backward()
        optimizer.step()
        schedule.step()
    model.save_pretrained(directory)
    words.save_pretrained(directory)
    return directory


@dataclass(frozen=True)
class Rows:
    """Records ``{"text": ...}`` to tokens, each row of exactly `LONGEST`: padding to the longest would couple contributions."""

    tokenizer: Any

    def __call__(self, examples: Sequence[Any]) -> dict[str, torch.Tensor]:
        rows = [self._row(example) for example in examples]
        return {key: torch.tensor([row[key] for row in rows]) for key in ("input_ids", "attention_mask", "labels")}

    def _row(self, example: Any) -> dict[str, list[int]]:
        try:
            line = example["text"]
        except (KeyError, TypeError):
            raise ConfigError("EXAMPLE", "an example has no 'text'; expected one") from None
        ids = [*self.tokenizer(line)["input_ids"], self.tokenizer.eos_token_id][:LONGEST]
        empty = LONGEST - len(ids)
        return {
            "input_ids": ids + [self.tokenizer.pad_token_id] * empty,
            "attention_mask": [1] * len(ids) + [0] * empty,
            "labels": ids + [IGNORED] * empty,
        }


def per_example_loss(model: nn.Module, rows: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns the mean over the tokens of each text, shape (B,)."""
    return losses_of(model, model(input_ids=rows["input_ids"], attention_mask=rows["attention_mask"]), rows["labels"])


def policy_text(size: Size) -> str:
    """Returns the policy: each class trains and reads the adapter of its name alone, with noise for its epsilon."""
    lines = [
        f'corpus = "{CORPUS}"',
        f"delta = {DELTA:g}",
        f"steps = {size.steps}",
        f"normalizer = {round(size.rate * size.contributions)}",
        f"epoch_steps = {max(1, size.steps // 4)}",
        "",
        "[isolation]",
        "required = true",
    ]
    for tier in TIERS:
        lines += [
            "",
            f"[[class]]                      # epsilon {tier.epsilon:g} per contribution over the whole run",
            f'name = "{tier.name}"',
            f"clip_norm = {tier.clip_norm:g}",
            f"noise_multiplier = {calibrate(tier.epsilon, size.rate, size.steps, DELTA) + 1e-6:.6f}",
            f"sampling_rate = {size.rate:g}",
            f'depth = {{ adapter = "{tier.name}" }}',
            f'reads = {{ adapters = ["{tier.name}"] }}',
        ]
    return "\n".join(lines) + "\n"


def contributors_of(size: Size) -> list[Contributor]:
    """Returns who contributes: texts about the topic of one class each."""
    contributors = []
    for seed, tier in enumerate(TIERS):
        found = [{"text": line} for line in texts(PRIVATE[tier.name], size.contributions, seed=1000 + seed)]
        contributors += [
            Contributor(f"{tier.name}-{place + 1}", tier.name, found[place :: size.contributors])
            for place in range(size.contributors)
        ]
    return contributors


def contribute(directory: Path, size: Size) -> Stage:
    """Lets all contributors sign their texts, under a policy that their owner signed."""
    directory.mkdir(parents=True, exist_ok=True)
    return stage(directory, policy_text(size), contributors_of(size), now=int(time.time()))


@dataclass(frozen=True)
class Trained:
    """Says what came of the training.

    Attributes:
        gate: who was admitted. classes: what each class spent, by `dptrain.engine.header.summary`. verdict: of the audit.
        qualifiers: what weakens it.
    """

    gate: GateReport
    classes: tuple[dict[str, Any], ...]
    verdict: str
    qualifiers: tuple[str, ...]


def adapted(base: Path, *, seed: int = 0) -> nn.Module:
    """Loads the base and adds the adapter of each class, all active."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)  # first weights of the adapters; noise and draws never come from a seed
    lora = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=["lm_head"], task_type="CAUSAL_LM")
    first, *others = (tier.name for tier in TIERS)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), lora, first)
    for name in others:
        model.add_adapter(name, lora)
    model.base_model.set_adapter([first, *others])
    for settings in model.peft_config.values():
        settings.base_model_name_or_path = base.name  # the whole path would tell of this machine
    return model.train()


def trained(directory: Path, made: Stage, size: Size) -> Trained:
    """Trains the adapters privately, saves them in ``directory / "model"``, and exports and audits the record."""
    torch.set_num_threads(1)
    model, words = adapted(directory / "base"), tokenizer()
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=size.learning_rate)
    probe = [{"text": line} for line in public_texts(_PROBES, seed=1)]
    with PrivateTraining.open(
        policy=made.signed_policy, corpus=made.corpus, owner_key=made.owner_key, registry=made.registry,
        ledger=RunLedger(str(directory / "ledger.db")), microbatches=Microbatches(64),
    ) as run:  # fmt: skip
        model, optimizer, steps = run.prepare(model, optimizer, Rows(words), probe=_records(probe))
        loss = run.loss(per_example_loss)
        for step in steps:
            for rows in step:
                run.backward(loss(model, rows), rows)
            optimizer.step()
        folder = directory / "model"
        # The head is the base's, which lies outside: peft would save a copy of it beside an adapter of the head.
        model.save_pretrained(folder, save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)  # an empty form of peft; the release has a card of its own
        words.save_pretrained(folder)
        export = run.export(directory / "export")
        recorder = run.opened.recorder
        audited = verify_export(export, [recorder.ledger.header.log_vkey], owner_key=recorder.owner_public)
        return Trained(run.opened.gate, tuple(run.prepared.summary()), audited.verdict, audited.qualifiers)


def publish(directory: Path) -> None:
    """Releases the adapters, as ``dptrain release`` does."""
    place = directory / "ledger.db"
    log_key = (directory / "ledger.pub").read_text(encoding="utf-8").split()
    signer = NoteSigner(parse_verifier_key(log_key[0]).name, load_private_key(directory / "ledger.key"))
    documents = publish_all(directory / "ledger.key", "Topics of the demo")
    with Ledger.open(place, signer) as log:
        registry = registry_of_run(Place.of(place))
        release_model(log, directory / "model", now=int(time.time()), registry=registry, publish=documents)


def _records(examples: Sequence[Mapping[str, Any]]) -> list[bytes]:
    return [json.dumps(example).encode() for example in examples]
