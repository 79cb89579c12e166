"""Makes what readers of the guides for engineers and operators have: a corpus before its run, a model of texts, scripts."""

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.docs.worlds import WORLDS, files, folder_of, names, tiny
from tests.worlds.commands import Shell

if TYPE_CHECKING:
    from tests.docs.running import Page

MINE: Final = '''"""What the reader of a page has: a model of short texts, its rows, and its losses."""

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.relu(self.inner(x))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.bytes, self.layers, self.head = nn.Embedding(256, 8), nn.ModuleList(Layer() for _ in range(2)), nn.Linear(8, 2)

    def forward(self, x):
        x = self.bytes(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def collate(examples):
    texts = [example["text"].encode()[:24].ljust(24, b"\\0") for example in examples]
    x = torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8).reshape(-1, 24).long()
    return {"x": x, "labels": torch.tensor([len(example["text"]) % 2 for example in examples])}


def per_example_loss(model, rows):
    return nn.functional.cross_entropy(model(rows["x"]), rows["labels"], reduction="none")


def make_model():
    return Reader()
'''

PRIVATE: Final = '''"""A private program with nothing to change."""

from dptrain import PrivateTraining
from mine import collate, make_model, per_example_loss
import torch

private = PrivateTraining.own([{"text": f"note {n}"} for n in range(40)], epochs=1, batch_size=8)
model = make_model()
model, optimizer, steps = private.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), collate)
for step in steps:
    for rows in step:
        private.backward(per_example_loss(model, rows), rows)
    optimizer.step()
'''


@files
def opening(shell: Shell) -> None:
    """As `recorded`, before its run: `policy.cose`, `corpus/notes.jsonl`, `owner.pub`; and `mine.py`, a model of texts."""
    shutil.copytree(folder_of(recorded_before), shell.directory, dirs_exist_ok=True)
    shell.write("mine.py", MINE)


def recorded_before(shell: Shell) -> None:
    """Makes what `recorded` has before its run."""
    WORLDS["recorded"](_Folder(shell.directory))  # type: ignore[arg-type]
    for path in (*shell.directory.glob("ledger*"), shell.directory / "export"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


class _Folder:
    """A folder that a world of files is copied into."""

    def __init__(self, work: Any) -> None:
        self.work = work


@files
def served_release(shell: Shell) -> None:
    """`runs/`: a release with an adapter for each of three classes, the base below them, and the public key of its ledger."""
    from dptrain.demo.language import make_world

    make_world(shell.directory / "runs", quick=True)


@files
def texts(shell: Shell) -> None:
    """`model/`, a small language model of random weights, and `notes.jsonl`, 24 references with ids."""
    from tests.worlds.text_runs import model_folder, write_references

    shutil.copytree(model_folder(), shell.directory / "model")
    write_references(shell.directory / "notes.jsonl", 24)


@files
def planned(shell: Shell) -> None:
    """`policy.toml` as the command writes it; `policy.cose`, `corpus/` and `run.toml` of a tiny image model."""
    for world in ("digits", "policy"):
        WORLDS[world](_Folder(shell.directory))  # type: ignore[arg-type]
    shutil.copy("keys/owner.pub", "owner.pub")


@files
def to_check(shell: Shell) -> None:
    """A folder with the configuration of a small BERT, `net.py` that makes a network, `train.py`, a private program."""
    from transformers import BertConfig

    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        architectures=["BertForSequenceClassification"],
    )  # fmt: skip
    config.save_pretrained("bert-base")
    shell.write(
        "net.py",
        "from torch import nn\n\n\ndef make():\n    body = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten()\n"
        "    return nn.Sequential(*body, nn.Linear(7200, 4))\n",
    )
    shell.write("train.py", PRIVATE)


@names
def reader(known: dict[str, Any]) -> None:
    """A model of texts with layers: `model`, `optimizer`, `collate`, `per_example_loss`, `torch`; 600 texts in `dataset`."""
    exec(compile(MINE, "mine.py", "exec"), known)
    model = known["make_model"]()
    known.update(
        model=model, optimizer=known["torch"].optim.AdamW(model.parameters(), lr=1e-3),
        dataset=[{"text": f"note number {n}"} for n in range(600)],
    )  # fmt: skip


@names
def counted(known: dict[str, Any]) -> None:
    """The names of a program that counts earlier runs: `PrivateTraining`, `Earlier`."""
    from dptrain import Earlier, PrivateTraining

    known.update(Earlier=Earlier, PrivateTraining=PrivateTraining)


@names
def in_a_step(known: dict[str, Any]) -> None:
    """As `tiny`, with a run `private` between the last microbatch of its first step and `optimizer`; and `max_grad_norm`."""
    from dptrain import PrivateTraining

    tiny(known)
    data = [{"text": f"note number {n}"} for n in range(40)]
    private = PrivateTraining.own(data, epochs=1, batch_size=40, directory=Path.cwd() / "run", progress=False)
    model, _, steps = private.prepare(known["model"], known["optimizer"], known["collate"])
    for rows in next(iter(steps)):
        private.backward(known["per_example_loss"](model, rows), rows)
    known.update(private=private, steps=steps, max_grad_norm=1.0)


def launching(page: "Page") -> None:
    """As `opening`, and the command torchrun of the interpreter that runs the page."""
    WORLDS["opening"](page)
    script = page.folder / "bin" / "torchrun"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n')
    script.chmod(0o755)


WORLDS["launching"] = launching
