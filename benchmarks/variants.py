"""The variants of one logical step: each is a callable that runs it once, end to end."""

import json
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from attest import signed_file
from attest.corpus import SigningTemplate, sign_corpus
from attest.keys import generate, public_bytes, save_public_key
from attest.policy import Policy, sign_policy
from attest.registry import RegistryLog
from benchmarks.configs import CONTRIBUTIONS, MICROBATCH, Config
from dptrain import PrivateTraining

SIGMA = 0.5
CLIP = 1.0
LEARNING_RATE = 1e-4

POLICY = f"""
corpus = "benchmark"
delta = 1e-6
steps = 100000
normalizer = {CONTRIBUTIONS}
[[class]]
name = "all"
clip_norm = {CLIP}
noise_multiplier = {SIGMA}
sampling_rate = 1
depth = {{ from = 0.0, to = 1.0 }}
"""

Step = Callable[[], None]


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)


@contextmanager
def non_private(config: Config) -> Iterator[Step]:
    """The same loop without privacy: gradients of all microbatches, one optimizer step."""
    model = config.model().train()
    optimizer = _optimizer(model)
    ids, labels = config.tokens()

    def step() -> None:
        for i in range(0, CONTRIBUTIONS, MICROBATCH):
            (config.losses(model, ids[i : i + MICROBATCH], labels[i : i + MICROBATCH]).sum() / CONTRIBUTIONS).backward()
        optimizer.step()
        optimizer.zero_grad()

    yield step


@contextmanager
def ours_fast(config: Config) -> Iterator[Step]:
    """The product as a user runs it: signed corpus, gate, ledger on disk, lattice noise from the keyed stream."""
    root = Path(tempfile.mkdtemp(prefix="dptrain-bench-"))
    try:
        _world(root, config)
        model = config.model().train()
        optimizer = _optimizer(model)

        def collate(examples: list[dict]) -> dict[str, torch.Tensor]:
            return {"ids": torch.tensor([e["ids"] for e in examples]), "labels": torch.tensor([e["label"] for e in examples])}

        with PrivateTraining.open(
            root / "policy.cose", root / "corpus", ledger=root / "ledger.db", microbatch=MICROBATCH, progress=False
        ) as private:
            _, _, steps = private.prepare(model, optimizer, collate)
            iterator = iter(steps)

            def step() -> None:
                for rows in next(iterator):
                    private.backward(config.losses(model, rows["ids"], rows["labels"]), rows)
                optimizer.step()

            yield step
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def opacus_hooks(config: Config) -> Iterator[Step]:
    """Opacus with materialised per-sample gradients, microbatches by skipped steps."""
    with _opacus(config, "hooks") as (model, optimizer, _):
        ids, labels = config.tokens()

        def step() -> None:
            for i in range(0, CONTRIBUTIONS, MICROBATCH):
                optimizer.signal_skip_step(do_skip=i + MICROBATCH < CONTRIBUTIONS)
                config.losses(model, ids[i : i + MICROBATCH], labels[i : i + MICROBATCH]).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

        yield step


@contextmanager
def opacus_ghost(config: Config) -> Iterator[Step]:
    """Opacus with ghost clipping (two backward passes)."""
    with _opacus(config, "ghost") as (model, optimizer, criterion):
        ids, labels = config.tokens()

        def step() -> None:
            for i in range(0, CONTRIBUTIONS, MICROBATCH):
                optimizer.signal_skip_step(do_skip=i + MICROBATCH < CONTRIBUTIONS)
                part, target = ids[i : i + MICROBATCH], labels[i : i + MICROBATCH]
                logits, targets = config.logits(model, part), config.targets(part, target)
                if config.classify:
                    loss = criterion(logits, targets)
                else:
                    shape = logits.shape
                    loss = criterion(logits.reshape(-1, shape[-1]), targets.reshape(-1), shape=shape)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

        yield step


VARIANTS: dict[str, Callable] = {
    "non_private": non_private,
    "ours_fast": ours_fast,
    "opacus_hooks": opacus_hooks,
    "opacus_ghost": opacus_ghost,
}


def names_for(config: Config) -> list[str]:
    """Variants that can run a configuration (Opacus' ghost clipping has no tied parameters)."""
    return [name for name in VARIANTS if name != "opacus_ghost" or config.opacus_ghost]


@contextmanager
def _opacus(config: Config, mode: str) -> Iterator[tuple]:
    from opacus import PrivacyEngine

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = config.model().train()
        optimizer = _optimizer(model)
        loader = DataLoader(TensorDataset(*config.tokens()), batch_size=CONTRIBUTIONS)
        made = PrivacyEngine(accountant="rdp").make_private(
            module=model, optimizer=optimizer, data_loader=loader, criterion=nn.CrossEntropyLoss(reduction="mean"),
            noise_multiplier=SIGMA, max_grad_norm=CLIP, poisson_sampling=False, grad_sample_mode=mode, loss_reduction="mean",
        )  # fmt: skip
        criterion = made[2] if mode == "ghost" else None
        yield made[0], made[1], criterion


def _world(root: Path, config: Config) -> None:
    now = int(time.time())
    policy = Policy.from_toml(POLICY)
    owner, contributor = generate(), generate()
    registry = RegistryLog.create(root / "registry.cbor", owner, owner="owner", now=now).enrol(
        "bench", public_bytes(contributor), classes=("all",), not_before=now - 86400, not_after=now + 86400, now=now
    )
    rule = policy.classes[0]
    template = SigningTemplate(
        contributor="bench", data_class="benchmark", admissibility_class="all", corpus="benchmark", not_before=now - 60,
        not_after=now + 80000, clip_norm_micro=rule.clip_norm_micro, noise_multiplier_micro=rule.noise_multiplier_micro,
    )  # fmt: skip
    (root / "corpus").mkdir()
    ids, labels = config.tokens()
    data = root / "corpus" / "records.jsonl"
    lines = (json.dumps({"ids": row.tolist(), "label": int(label)}) for row, label in zip(ids, labels, strict=True))
    data.write_text("".join(line + "\n" for line in lines))
    sign_corpus(data, None, contributor, template)
    save_public_key(root / "owner.pub", public_bytes(owner), "owner")
    signed_file.write(root / "policy.cose", *sign_policy(policy, owner, owner="owner", registry_root=registry.root()))
