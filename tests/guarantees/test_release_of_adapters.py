"""LoRA through the users' door: what a step adds is the sum of clipped gradients of contributions, where pairs are nodes.

A naive loop over a copy of the model computes every contribution's gradient alone, with the random numbers that it has in the
run, masks and clips it, and adds up. The noise of the test key is subtracted from what the run releases.
"""

import copy
import hashlib
from collections import Counter
from contextlib import closing
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")
from torch import nn  # noqa: E402

from dptrain import PrivateTraining  # noqa: E402
from dptrain.sandbox import Sandbox  # noqa: E402
from tests.reference import streams  # noqa: E402
from tests.reference.graphs import PAIR, count_nodes  # noqa: E402
from tests.worlds.trainer import opening  # noqa: E402
from tests.worlds.training import make_world, token_record  # noqa: E402

KEY = b"\x29" * 32
LAYERS, NORMALIZER = 3, 4
SCALE = 50.0
"""Of the losses: large enough that every bound binds."""

KEPT = 1.0 - 2.0**-9
"""Of the bounds: the rest is left for the rounding of float32."""


class Profile(NamedTuple):
    """A class: its clip norm and noise multiplier, its lowest layer, and the depth that says so."""

    clip: float
    sigma: float
    lowest: int
    depth: float


OPEN, UPPER = Profile(1.0, 0.6, 0, 0.0), Profile(0.5, 1.5, 2, 0.67)

SIZES: dict[str, Any] = {
    "gpt2": {"n_embd": 16, "n_layer": LAYERS, "n_head": 2, "n_positions": 16, "bos_token_id": 1, "eos_token_id": 1},
    "bert": {"hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "intermediate_size": 32},
}
TARGETS = {"gpt2": ["c_attn", "c_proj", "c_fc"], "bert": ["query", "value", "attention.output.dense", "intermediate.dense"]}


def model_of(kind: str, dropout: float) -> nn.Module:
    """Builds a small model with the dropout of its library, and LoRA far from its start."""
    import peft
    import transformers

    torch.manual_seed(0)
    if kind == "gpt2":
        base = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=50, **SIZES[kind]))
    else:
        config = transformers.BertConfig(vocab_size=50, max_position_embeddings=16, num_labels=3, **SIZES[kind])
        base = transformers.BertForSequenceClassification(config)
    lora = peft.LoraConfig(
        r=2, lora_alpha=6, lora_dropout=dropout, target_modules=TARGETS[kind], fan_in_fan_out=kind == "gpt2",
        task_type="CAUSAL_LM" if kind == "gpt2" else "SEQ_CLS", modules_to_save=[],
    )  # fmt: skip
    model = peft.get_peft_model(base, lora).train()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.2)
    return model


def collate(examples: list[dict]) -> dict[str, torch.Tensor]:
    return {key: torch.tensor([example[key] for example in examples]) for key in ("ids", "label", "seed")}


def losses_of(model: nn.Module, rows: Any) -> torch.Tensor:
    logits = model(input_ids=rows["ids"]).logits
    if logits.dim() == 2:
        return nn.functional.cross_entropy(logits, rows["label"], reduction="none") * SCALE
    return nn.functional.cross_entropy(logits[:, :-1].mT, rows["ids"][:, 1:], reduction="none").mean(1) * SCALE


def several(seed: int) -> list[dict]:
    return [token_record(seed + 17 * place) | {"seed": seed} for place in range(1 + seed % 2)]


def lowest_of(name: str) -> int:
    """The layer that a tensor lies in, from its name; the head lies above all."""
    return next((int(part) for part in name.split(".") if part.isdigit()), LAYERS)


class Naive:
    """A copy of a model, of which every contribution's gradient is computed alone."""

    def __init__(self, model: nn.Module, seed: bytes, rows: Any) -> None:
        self.model = model
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.sandbox = Sandbox(model, frozenset(map(id, self.trained.values())), seed)
        for count in (3, 2):
            with self.sandbox.enter(1, rows.names[:count], learning=True):
                losses_of(model, {key: value[:count] for key, value in rows.items()})
        self.sandbox.layouts.decide()

    def gradient(self, rows: Any, contribution: int, step: int) -> dict[str, torch.Tensor]:
        """Returns the mean of the gradients of its examples, under the random numbers of that step."""
        places = range(contribution * rows.examples, (contribution + 1) * rows.examples)
        own = [place for place in places if rows.weight[place] != 0]
        with self.sandbox.enter(step, [rows.names[place] for place in own]):
            loss = losses_of(self.model, {key: value[own] for key, value in rows.items()}).mean()
            found = torch.autograd.grad(loss, list(self.trained.values()))
        return {name: gradient.double() for name, gradient in zip(self.trained, found, strict=True)}


def clipped(gradient: dict[str, torch.Tensor], profile: Profile, stds: dict[str, float]) -> dict[str, torch.Tensor]:
    """Masks a gradient and clips it: by its norm, and by its norm in units of the noise."""
    own = {name: g for name, g in gradient.items() if lowest_of(name) >= profile.lowest}
    norm = sum(float(g.square().sum()) for g in own.values()) ** 0.5
    white = sum(float(g.square().sum()) / stds[name] ** 2 for name, g in own.items()) ** 0.5
    factor = min(1.0, KEPT * profile.clip / norm, KEPT / (profile.sigma * white))
    assert factor < 1.0, "no bound binds"
    return {name: factor * g for name, g in own.items()}


@pytest.mark.parametrize(
    ("kind", "dropout", "profiles"),
    [("gpt2", 0.3, (OPEN,)), ("gpt2", 0.0, (OPEN, UPPER)), ("bert", 0.3, (OPEN, UPPER))],
    ids=["dropout", "two classes", "both"],
)
def test_what_a_step_adds_by_pairs_that_are_nodes_is_the_sum_of_clipped_gradients(
    kind: str, dropout: float, profiles: tuple[Profile, ...], tmp_path
) -> None:
    classes = "".join(
        f"""
[[class]]
name = "class{number}"
clip_norm = {one.clip}
noise_multiplier = {one.sigma}
sampling_rate = {{q}}
depth = {{{{ from = {one.depth}, to = 1.0 }}}}
"""
        for number, one in enumerate(profiles)
    )
    world = make_world(
        tmp_path, per_class=6 // len(profiles), rate="1", classes=classes, record=several,
        policy_extra="[gate]\nmax_examples = 2\n",
    )  # fmt: skip
    options = opening(world.ledger, progress=False, microbatch=4, insecure_test_key=KEY)
    with closing(PrivateTraining.open(world.policy, world.corpus, **options)) as private:
        compare(private, model_of(kind, dropout), profiles)


def compare(private: PrivateTraining, model: nn.Module, profiles: tuple[Profile, ...]) -> None:
    """Holds the first release of a run to the naive loop."""
    model_alone = copy.deepcopy(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    _, _, steps = private.prepare(model, optimizer, collate)
    microbatches, made = [], Counter()
    step = next(iter(steps))
    for rows in step:
        losses = losses_of(model, rows)
        if not private.prepared.probe.active:
            microbatches.append(rows)
            made += count_nodes(losses)
        private.backward(losses, rows)
    assert made[PAIR] >= 4 * len(microbatches) >= 8, "pairs are no nodes, and nothing is shown"
    assert any(len(set((rows["seed"] // 1000).tolist())) == len(profiles) for rows in microbatches), "no two classes meet"

    named = [(tensor.name, tensor.parameter) for _, tensor in private.prepared.router.tensors]
    stds = {name: max(p.clip * p.sigma for p in profiles if lowest_of(name) >= p.lowest) for name, _ in named}
    expected = {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in named}
    naive = Naive(model_alone, private.prepared.sandbox.numbers.seed, microbatches[0])
    owners = 0
    for rows in microbatches:
        for contribution in range(rows.contributions):
            profile = profiles[int(rows["seed"][contribution * rows.examples]) // 1000]
            for name, g in clipped(naive.gradient(rows, contribution, step.number), profile, stds).items():
                expected[name] += g
            owners += 1
    assert owners == 6 and set(expected) == set(naive.trained)
    key = streams.stream_key("noise", hashlib.sha256(KEY).digest()[:16], 0, KEY)
    for lane, (name, p) in enumerate(named):
        noise = torch.tensor(streams.normals(key, step.number, lane, p.numel()), dtype=torch.float64).view(p.shape)
        released = p.grad.double() * NORMALIZER
        gap = float((released - stds[name] * noise - expected[name]).norm())
        assert gap < 1e-4 * float(expected[name].norm()) + 2.0**-23 * float(released.norm()), f"{name} is off by {gap:.1e}"
