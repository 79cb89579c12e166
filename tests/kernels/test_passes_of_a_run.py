"""Kernels of forward and backward pass in whole runs: who computes, that it is what torch computes, and that probes find one
that is wrong."""

import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dptrain.errors import UnsupportedModule  # noqa: E402
from dptrain.kernels import activations, attention, reductions  # noqa: E402
from tests.reference import families  # noqa: E402
from tests.worlds.trainer import BertTrainer as Trainer  # noqa: E402
from tests.worlds.training import make_world  # noqa: E402

pytestmark = [
    pytest.mark.skipif(attention.library() is None, reason="no C++ compiler here, so torch computes"),
    pytest.mark.filterwarnings("ignore"),
]
KEY = bytes(range(32))


def bert() -> families.Family:
    """A small BERT whose heads are as wide as the kernel asks for."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=families.VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        num_labels=3, max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return families.Family(BertForSequenceClassification(config), families.tokens, families.classify)


def gpt2() -> families.Family:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=families.VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, activation_function="gelu_pytorch_tanh", bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    return families.Family(GPT2LMHeadModel(config), families.tokens, families._next_token)


class Block(nn.Module):
    """Attention and a wide layer in plain torch."""

    def __init__(self) -> None:
        super().__init__()
        self.split, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.wide, self.narrow = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        n, length, _ = x.shape
        q, k, v = (part.view(n, length, 2, 16).transpose(1, 2) for part in self.split(x).chunk(3, 2))
        read = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + self.out(read.transpose(1, 2).reshape(n, length, 32))
        return x + self.narrow(nn.functional.gelu(self.wide(x)))


class Reader(nn.Module):
    """Two blocks; where it is padded, positions of the mask come before rows."""

    def __init__(self, padded: bool) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(families.VOCABULARY, 32), nn.ModuleList([Block(), Block()])
        self.head, self.padded = nn.Linear(32, 3), padded

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, mask = self.words(ids), None
        n, length = ids.shape
        if self.padded:
            seen = (ids.t() % 5 != 0).contiguous() | (torch.arange(length)[:, None] == 0)
            mask = torch.zeros(length, n).masked_fill(~seen, -torch.inf).t()[:, None, None].expand(n, 1, length, length)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x.mean(1))


def reader(padded: bool = False) -> families.Family:
    def losses(model: nn.Module, batch: dict) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch["input_ids"]), batch["labels"], reduction="none")

    return families.Family(Reader(padded), families.tokens, losses)


MODELS: dict[str, Callable[[], families.Family]] = {
    "own bert": bert, "own gpt2": gpt2, "reader": reader, "padded reader": lambda: reader(padded=True),
}  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has kernels serve what these models are small enough for, and no listener of torch."""
    monkeypatch.setattr(activations, "LEAST", 64)
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)
    for name, make in MODELS.items():
        monkeypatch.setitem(families.FAMILIES, name, make)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Counts what kernels computed."""
    found: dict[str, int] = {}

    def counted(module: Any, name: str, told: Callable[..., str]) -> None:
        run = getattr(module, name)

        def call(*given: Any) -> Any:
            key = told(*given)
            found[key] = found.get(key, 0) + 1
            return run(*given)

        monkeypatch.setattr(module, name, call)

    counted(attention, "attend_by", lambda *given: "attention")
    counted(attention, "attend_back_by", lambda *given: "attention back")
    counted(activations, "_run", lambda run, *given: run.__name__)
    return found


FOUR = {"attention", "attention back", "dptrain_gelu", "dptrain_gelu_backward"}


def trained(root: Any, family: str, policy: str = "", **options: Any) -> tuple[torch.Tensor, Trainer]:
    """Trains two steps; returns what was put into p.grad."""
    world = make_world(root, steps=2, rate="0.7", policy_extra=policy)
    trainer = Trainer(world, family, insecure_test_key=KEY, **options)
    found = []
    for step in trainer.steps:
        trainer.one(step)
        found += [tensor.parameter.grad.flatten().clone() for _, tensor in trainer.private.prepared.router.tensors]
    return torch.cat(found), trainer


@pytest.mark.one_in(99)
@pytest.mark.parametrize("family", ["own bert", "own gpt2", "padded reader"])
def test_a_run_computes_by_the_kernels_and_as_torch_would(family: str, calls: dict[str, int], tmp_path) -> None:
    own, trainer = trained(tmp_path / "own", family)
    assert "kernels of dptrain's own" in trainer.private.opened.recorder.ledger.header.exactness_note
    trainer.close()
    assert set(calls) == FOUR and min(calls.values()) > 8
    calls.clear()
    true, trainer = trained(tmp_path / "torch", family, products="torch")
    trainer.close()
    assert calls == {}, "torch alone was asked for"
    torch.testing.assert_close(own, true, rtol=1e-4, atol=1e-5)
    assert not torch.equal(own, true)


CERTIFIED = 'exactness = "certified"'


@pytest.mark.one_in(99)
@pytest.mark.parametrize("family", ["reader", "padded reader"])
def test_a_certified_run_computes_by_them_too(family: str, calls: dict[str, int], tmp_path) -> None:
    own, trainer = trained(tmp_path / "own", family, CERTIFIED)
    trainer.close()
    assert set(calls) == FOUR
    true, trainer = trained(tmp_path / "torch", family, CERTIFIED, products="torch")
    trainer.close()
    torch.testing.assert_close(own, true, rtol=1e-4, atol=1e-5)


@pytest.mark.one_in(99)
@pytest.mark.parametrize("products", ["fastest", "torch"])
def test_a_graph_holds_the_kernel_where_a_run_asks_for_it(products: str, tmp_path, monkeypatch) -> None:
    held: list[int] = []

    def counted(graph: Any, values: Any) -> Any:
        ours = torch.ops.dptrain.attention.default, torch.ops.dptrain.attention_backward.default
        held.append(sum(node.target in ours for node in graph.graph.nodes))
        return graph

    monkeypatch.setattr("torch._inductor.compile", counted)
    found = []
    for compiled in (False, True):
        world = make_world(tmp_path / str(compiled), steps=2, rate="1")
        trainer = Trainer(world, "padded reader", insecure_test_key=KEY, products=products, microbatch=4)
        losses = trainer.family.losses
        loss = trainer.private.loss(losses, compiled=True) if compiled else losses
        for step in trainer.steps:
            for rows in step:
                trainer.private.backward(loss(trainer.model, rows), rows)
            found.append([tensor.parameter.grad.clone() for _, tensor in trainer.private.prepared.router.tensors])
            trainer.optimizer.step()
        trainer.close()
    assert held and (min(held) >= 3 if products == "fastest" else max(held) == 0), "two blocks, there and back"
    for one, other in zip(found[:2], found[2:], strict=True):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------------- contributions by themselves


def gradients(family: str, batch: dict[str, torch.Tensor], tmp_path: Any) -> list[torch.Tensor]:
    """Returns per-sample gradients of a microbatch by autograd under the sandbox's operations, row by row of one backward."""
    from dptrain.gradients import matmul
    from dptrain.sandbox import Sandbox

    torch.manual_seed(0)
    found = MODELS[family]()
    model = found.model.train()
    sandbox = Sandbox(model, frozenset(id(p) for p in model.parameters()), bytes(16), products=matmul.PRODUCTS)
    names = [bytes([at]) for at in range(len(batch["labels"]))]
    with sandbox.enter(1, names):
        embedded = model.words(batch["input_ids"])
        embedded.retain_grad()
        model.words.forward = lambda ids: embedded  # what is before attention has a row for every contribution
        losses = found.losses(model, batch)
        losses.sum().backward()
    return [losses.detach(), embedded.grad]


@pytest.mark.parametrize("family", ["reader", "padded reader"])
def test_a_row_is_the_same_to_the_bit_whoever_else_is_there(family: str, calls: dict[str, int], tmp_path) -> None:
    batch = families.tokens(4, 3)
    alone = gradients(family, batch, tmp_path)
    other = {key: value.clone() for key, value in batch.items()}
    other["input_ids"][1:] = families.tokens(3, 9)["input_ids"].flip(1)
    other["labels"][1:] = 1
    for own, changed in zip(alone, gradients(family, other, tmp_path), strict=True):
        assert torch.equal(own[0], changed[0]) and not torch.equal(own[1], changed[1])
    assert set(calls) == FOUR


class Poisoned(Trainer):
    """Gives one row of private microbatches a loss that is no number, and weights of attention with it."""

    spoiled = 0

    def losses(self, rows: Any) -> torch.Tensor:
        if rows.weight.shape[0] > 1 and type(rows.weight) is torch.Tensor and self.begun:
            embed = self.model.words
            own = type(embed).forward

            def one_nan(ids: torch.Tensor) -> torch.Tensor:
                spoil = torch.zeros(ids.shape[0], 1, 1)
                spoil[0] = torch.nan
                return own(embed, ids) + spoil

            embed.forward = one_nan
            try:
                self.spoiled += 1
                return super().losses(rows)
            finally:
                del embed.forward
        return super().losses(rows)

    begun = False


def test_a_row_of_nan_counts_as_zero_and_spoils_no_other(calls: dict[str, int], tmp_path) -> None:
    world = make_world(tmp_path, steps=2, rate="1")
    trainer = Poisoned(world, "reader", insecure_test_key=KEY).begin()
    trainer.begun = True
    step = next(iter(trainer.steps))
    trainer.one(step)
    for parameter in trainer.model.parameters():
        assert bool(parameter.grad.isfinite().all())
    assert trainer.spoiled and set(calls) == FOUR
    trainer.close()


# ------------------------------------------------------------------------------------------------------ probes find a wrong one


def on_a_pattern(found: torch.Tensor, given: torch.Tensor) -> None:
    """Is off in one entry, where an entry of what came in ends in two zero bits."""
    seldom = (given.contiguous().view(torch.int32) & 3 == 0).nonzero()
    if len(seldom):
        found[tuple(seldom[0].tolist())] += 0.25


def tail(found: torch.Tensor, given: torch.Tensor) -> None:
    """Leaves the last column of all heads out."""
    found[..., -1] = 0.0


def one_head(found: torch.Tensor, given: torch.Tensor) -> None:
    """Gives the last head what is the first's."""
    found[-1, -1] = found[0, 0].clone()


def one_bit(found: torch.Tensor, given: torch.Tensor) -> None:
    """Flips the highest bit of the exponent of an entry."""
    found[-1, -1, -1, -1:].view(torch.int32).bitwise_xor_(1 << 30)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("spoil", [on_a_pattern, tail, one_head, one_bit])
@pytest.mark.parametrize(("name", "which"), [("attend_by", 0), *(("attend_back_by", which) for which in range(3))])
def test_the_probes_find_attention_that_is_wrong(name: str, which: int, spoil: Any, tmp_path, monkeypatch) -> None:
    own = getattr(attention, name)

    def spoiled(*given: Any) -> Any:
        found = own(*given)
        spoil(found[which], given[1] if name == "attend_back_by" else given[0])
        return found

    monkeypatch.setattr(attention, name, spoiled)
    refused(tmp_path)


@pytest.mark.parametrize("which", ["dptrain_gelu", "dptrain_gelu_backward"])
def test_the_probes_find_a_gelu_that_is_wrong(which: str, tmp_path, monkeypatch) -> None:
    """In one entry of all that a probe has, and there by a thousandth."""
    own = activations._run

    def spoiled(run: Any, given: list[torch.Tensor], form: str, out: torch.Tensor) -> None:
        own(run, given, form, out)
        if run.__name__ == which:
            out.view(-1)[-1] *= 1.001

    monkeypatch.setattr(activations, "_run", spoiled)
    refused(tmp_path)


def refused(tmp_path: Any) -> None:
    world = make_world(tmp_path, steps=2)
    trainer = Trainer(world, "reader")
    with pytest.raises(UnsupportedModule) as found:
        trainer.run()
    assert found.value.code == "KERNEL_WRONG" and not world.ledger.exists(), "something was charged"
    trainer.close()


def test_without_kernels_a_run_is_torchs(calls: dict[str, int], tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(reductions, "ENABLED", False)
    _, trainer = trained(tmp_path, "reader")
    trainer.close()
    assert calls == {}


@pytest.mark.one_in(9)
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_compute_in_memory_of_the_processor_whatever_a_program_makes_its_tensors_of(device, dtype) -> None:
    """In a process of its own: pointers into memory that is not there would end it."""
    program = f"""
import torch
from dptrain.kernels import activations, attention, reductions
x, rows = torch.randn(2, 64, 32), torch.randn(3, 64)
true = torch.bmm(x.mT, x), attention.multiply_by(x, x.mT), reductions.row_squares([rows]), reductions.grams(x, x).square
torch.set_default_device("{device}"), torch.set_default_dtype({dtype})
for room in (attention, activations, reductions):
    room.library.cache_clear()
    assert room.library() is not None
found = reductions.outer_of(x, x), attention.multiply_by(x, x.mT), reductions.row_squares([rows]), reductions.grams(x, x).square
assert all(bool(((one - other).abs() <= 1e-4 * (1.0 + other.abs())).all()) for one, other in zip(found, true))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
