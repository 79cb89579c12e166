"""The variants of one logical step: each is a callable that runs it once, end to end."""

import json
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from attest import signed_file
from attest.corpus import SigningTemplate, sign_corpus
from attest.keys import generate, public_bytes, save_public_key
from attest.policy import Policy, sign_policy
from attest.registry import RegistryLog
from benchmarks.bases import BANDS, BASES, Mark, Step, absent_bases, below_band, make_optimizer, unmarked
from benchmarks.configs import Config
from dptrain import Microbatches, NoiseSource, PrivateTraining
from dptrain.engine.step import Steps
from dptrain.geometry import TangentAdam
from dptrain.routing.compiled import CompileNotice
from dptrain.routing.repeated import Loss

SIGMA = 0.5
CLIP = 1.0


def _policy(config: Config, exactness: str = "fast", window: int = 16, tangent: bool = False) -> str:
    head = (
        f'corpus = "benchmark"\ndelta = 1e-6\nsteps = 100000\nnormalizer = {config.contributions}\n'
        f'exactness = "{exactness}"\nwindow_steps = {window}\n' + ('geometry = "lora_tangent"\n' if tangent else "")
    )
    return head + "".join(
        f'[[class]]\nname = "{tier.name}"\nclip_norm = {CLIP}\nnoise_multiplier = {SIGMA}\nsampling_rate = 1\n'
        f"depth = {{ from = {1.0 - tier.share}, to = 1.0 }}\n"
        for tier in config.tiers
    )


@contextmanager
def prepared(
    config: Config, root: Path, *, exactness: str = "fast", window: int = 16, generator: str = "host", tangent: bool = False
) -> Iterator[tuple[PrivateTraining, nn.Module, Loss, torch.optim.Optimizer, Steps]]:
    """A run over a signed corpus, with its gate and a ledger on disk, right after `prepare`."""
    accelerator = None
    if config.device != "cpu" or config.half:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=config.device == "cpu", mixed_precision="bf16" if config.half else "no")
    _world(root, config, _policy(config, exactness, window, tangent))
    model = config.model().train()
    optimizer = make_optimizer(model)
    if tangent:
        optimizer = TangentAdam(model, others=optimizer)

    def collate(examples: list[dict]) -> dict[str, torch.Tensor]:
        inputs = torch.stack([config.inputs.read(e["input"]) for e in examples])
        return {"inputs": inputs, "labels": torch.tensor([e["label"] for e in examples])}

    def losses(model: nn.Module, rows: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return config.losses(model, rows["inputs"], rows["labels"])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        private = PrivateTraining.open(
            root / "policy.cose", root / "corpus", ledger=root / "ledger.db", microbatches=Microbatches(config.microbatch),
            progress=False, accelerator=accelerator, noise=NoiseSource(generator),
        )  # fmt: skip
    with private:
        _, _, steps = private.prepare(model, optimizer, collate)
        yield private, model, losses, optimizer, steps


@contextmanager
def ours(
    config: Config,
    *,
    exactness: str = "fast",
    compiled: bool = False,
    window: int = 16,
    generator: str = "host",
    tangent: bool = False,
) -> Iterator[tuple[PrivateTraining, Step]]:
    """The product as a user runs it, lattice noise from the keyed stream included."""
    root = Path(tempfile.mkdtemp(prefix="dptrain-bench-"))
    try:
        with prepared(config, root, exactness=exactness, window=window, generator=generator, tangent=tangent) as made:
            private, model, losses, optimizer, steps = made
            loss = private.loss(losses, compiled=True) if compiled else losses
            iterator = iter(steps)

            def step(mark: Mark = unmarked) -> None:
                with warnings.catch_warnings():
                    if compiled:  # what falls back to the hook form must not pass for the compiled one
                        warnings.simplefilter("error", CompileNotice)
                    for rows in next(iterator):
                        private.backward(loss(model, rows), rows)
                        mark()
                optimizer.step()

            yield private, step
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def ours_fast(config: Config) -> Iterator[Step]:
    with ours(config) as (_, step):
        yield step


@contextmanager
def ours_certified(config: Config) -> Iterator[Step]:
    """With exactness = "certified": integers per contribution in place of float sums."""
    with ours(config, exactness="certified") as (_, step):
        yield step


@contextmanager
def ours_compiled(config: Config) -> Iterator[Step]:
    """With the compiled form of the loss; compiling belongs to the warm-up."""
    with ours(config, compiled=True) as (_, step):
        yield step


@contextmanager
def ours_tangent(config: Config) -> Iterator[Step]:
    """With LoRA pairs clipped and noised along their tangent space, and moved along it."""
    with ours(config, tangent=True) as (_, step):
        yield step


@contextmanager
def ours_tangent_compiled(config: Config) -> Iterator[Step]:
    """With both."""
    with ours(config, tangent=True, compiled=True) as (_, step):
        yield step


@contextmanager
def ours_device_noise(config: Config) -> Iterator[Step]:
    """With noise drawn on the device of the gradients."""
    with ours(config, generator="device") as (_, step):
        yield step


@contextmanager
def opacus_hooks(config: Config) -> Iterator[Step]:
    """Opacus with materialised per-sample gradients, microbatches by skipped steps."""
    with _opacus(config, "hooks") as (model, optimizer, _):
        inputs, labels = config.batch()
        size = config.microbatch

        def step(mark: Mark = unmarked) -> None:
            for i in range(0, config.contributions, size):
                optimizer.signal_skip_step(do_skip=i + size < config.contributions)
                config.losses(model, inputs[i : i + size], labels[i : i + size]).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                mark()

        yield step


@contextmanager
def opacus_ghost(config: Config) -> Iterator[Step]:
    """Opacus with ghost clipping (two backward passes)."""
    with _opacus(config, "ghost") as (model, optimizer, criterion):
        inputs, labels = config.batch()
        size = config.microbatch

        def step(mark: Mark = unmarked) -> None:
            for i in range(0, config.contributions, size):
                optimizer.signal_skip_step(do_skip=i + size < config.contributions)
                part, target = inputs[i : i + size], labels[i : i + size]
                logits, targets = config.logits(model, part), config.targets(part, target)
                if config.classify:
                    loss = criterion(logits, targets)
                else:
                    shape = logits.shape
                    loss = criterion(logits.reshape(-1, shape[-1]), targets.reshape(-1), shape=shape)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                mark()

        yield step


@contextmanager
def fastdp(config: Config) -> Iterator[Step]:
    """fastDP with its mixed book-keeping: one backward pass, and the optimizer's step alone makes gradients private."""
    from fastDP import PrivacyEngine

    model = config.model().train()
    for parameter in below_band(model, config, max(tier.share for tier in config.tiers)):
        parameter.requires_grad_(False)
    optimizer = make_optimizer(model)
    inputs, labels = config.batch()
    count, size = config.contributions, config.microbatch
    with redirect_stdout(sys.stderr):  # it prints what it found
        PrivacyEngine(
            model, batch_size=count, sample_size=count, epochs=1, noise_multiplier=SIGMA, max_grad_norm=CLIP,
            clipping_mode="MixOpt", clipping_fn="Abadi", loss_reduction="sum",
        ).attach(optimizer)  # fmt: skip

    def step(mark: Mark = unmarked) -> None:
        with redirect_stdout(sys.stderr):
            for i in range(0, count, size):
                config.losses(model, inputs[i : i + size], labels[i : i + size]).sum().backward()
                mark()
            optimizer.step()

    yield step


VARIANTS: dict[str, Callable] = {
    **BASES,
    **BANDS,
    "ours_fast": ours_fast,
    "ours_certified": ours_certified,
    "ours_compiled": ours_compiled,
    "ours_tangent": ours_tangent,
    "ours_tangent_compiled": ours_tangent_compiled,
    "ours_device_noise": ours_device_noise,
    "opacus_hooks": opacus_hooks,
    "opacus_ghost": opacus_ghost,
    "fastdp": fastdp,
}

PACKAGES = {"opacus_hooks": "opacus", "opacus_ghost": "opacus", "fastdp": "fastDP"}
"""Names what a peer is imported from."""

TANGENT = ("ours_tangent", "ours_tangent_compiled")

WARM_UP = {"ours_compiled": 9, "ours_tangent_compiled": 9}
"""Steps before the first round where one, which holds all compiling, is not enough. The private compiled form is compared with
the hook form at every doubling of the runs of a kind of microbatch and of the steps that it met, and at every 128th run: three
rounds after nine steps hold none, and a long run pays for one in 128."""


def names_for(config: Config) -> list[str]:
    """Variants that can run a configuration."""
    return [name for name in VARIANTS if name not in absent_from(config)]


def absent_from(config: Config) -> dict[str, str]:
    """Variants that cannot run a configuration, each with its reason."""
    unbanded = {} if config.banded else dict.fromkeys(BANDS, "every contribution trains the whole model")
    gone = {name: f"{package} is not installed" for name, package in PACKAGES.items() if find_spec(package) is None}
    on_host = {"ours_device_noise": "the gradients lie on the processor"} if config.device == "cpu" else {}
    pairs = {} if "lora" in config.name else dict.fromkeys(TANGENT, "the model has no LoRA pairs")
    compiled = {TANGENT[1]: config.absent["ours_compiled"]} if "ours_compiled" in config.absent else {}
    return absent_bases(config) | gone | config.absent | unbanded | on_host | compiled | pairs


@contextmanager
def _opacus(config: Config, mode: str) -> Iterator[tuple]:
    from opacus import PrivacyEngine

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = config.model().train()
        for parameter in below_band(model, config, max(tier.share for tier in config.tiers)):
            parameter.requires_grad_(False)
        optimizer = make_optimizer(model)
        loader = DataLoader(TensorDataset(*config.batch()), batch_size=config.contributions)
        made = PrivacyEngine(accountant="rdp").make_private(
            module=model, optimizer=optimizer, data_loader=loader, criterion=nn.CrossEntropyLoss(reduction="mean"),
            noise_multiplier=SIGMA, max_grad_norm=CLIP, poisson_sampling=False, grad_sample_mode=mode, loss_reduction="mean",
        )  # fmt: skip
        criterion = made[2] if mode == "ghost" else None
        yield made[0], made[1], criterion


def _world(root: Path, config: Config, text: str) -> None:
    now = int(time.time())
    policy = Policy.from_toml(text)
    owner, contributor = generate(), generate()
    registry = RegistryLog.create(root / "registry.cbor", owner, owner="owner", now=now).enrol(
        "bench", public_bytes(contributor), classes=tuple(tier.name for tier in config.tiers), not_before=now - 86400,
        not_after=now + 86400, now=now,
    )  # fmt: skip
    (root / "corpus").mkdir()
    inputs, labels = config.batch()
    start = 0
    for tier, rule in zip(config.tiers, policy.classes, strict=True):
        template = SigningTemplate(
            contributor="bench", data_class="benchmark", admissibility_class=tier.name, corpus="benchmark", not_before=now - 60,
            not_after=now + 80000, clip_norm_micro=rule.clip_norm_micro, noise_multiplier_micro=rule.noise_multiplier_micro,
        )  # fmt: skip
        rows = (
            {"input": config.inputs.recorded(inputs[place], place), "label": int(labels[place])}
            for place in range(start, start + tier.contributions)
        )
        data = root / "corpus" / f"{tier.name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        sign_corpus(data, None, contributor, template)
        start += tier.contributions
    save_public_key(root / "owner.pub", public_bytes(owner), "owner")
    signed_file.write(root / "policy.cose", *sign_policy(policy, owner, owner="owner", registry_root=registry.root()))
