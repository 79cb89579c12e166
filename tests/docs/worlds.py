"""Makes what a page's reader has already: files in the folder, names in the Python of the page.

A page asks for a world in a comment above a block. Worlds of files are made once in a session and copied; names anew for
each page. Files that stand in the folder already are written over, so a page asks for a world where it begins with it.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.worlds.commands import Shell, record

if TYPE_CHECKING:
    from tests.docs.running import Page

WORLDS: Final[dict[str, Callable[["Page"], None]]] = {}
"""What a page may ask for, by name."""

_KEPT: dict[str, Path] = {}


def names(make: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """Registers a world that only adds names to the page's Python."""

    def added(page: "Page") -> None:
        make(page.names)

    WORLDS[make.__name__] = added
    added.__doc__ = make.__doc__
    return make


def files(make: Callable[[Shell], None]) -> Callable[[Shell], None]:
    """Registers a world of files: made once, then copied into the folder in which the page is."""

    def copied(page: "Page") -> None:
        shutil.copytree(folder_of(make), page.work, dirs_exist_ok=True)

    WORLDS[make.__name__] = copied
    copied.__doc__ = make.__doc__
    return make


def folder_of(make: Callable[[Shell], None]) -> Path:
    """Returns the folder of a world of files, which nobody may change."""
    name = make.__name__
    if name not in _KEPT:
        folder = Path(tempfile.mkdtemp(prefix=f"world-{name}-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        before = Path.cwd()
        os.chdir(folder)
        try:
            make(Shell(folder))
        finally:
            os.chdir(before)
        _KEPT[name] = folder
    return _KEPT[name]


# Files ---------------------------------------------------------------------------------------------------------------------


@files
def own_data(shell: Shell) -> None:
    """`data.jsonl`: 60 short texts with `label` "good" or "bad" and an `author`."""
    lines = []
    for n in range(60):
        words, label = (("a calm bright film", "good") if n % 2 else ("a slow dull film", "bad"))
        lines.append(f'{{"text": "{words}, number {n}", "label": "{label}", "author": "p{n % 20}"}}\n')
    shell.write("data.jsonl", "".join(lines))


@files
def own_numbers(shell: Shell) -> None:
    """`data.csv`: 60 rows with two columns of numbers and a `label`."""
    rows = "".join(f"{n % 7},{n % 5 + (n % 2) * 3},{'yes' if n % 2 else 'no'}\n" for n in range(60))
    shell.write("data.csv", f"width,height,label\n{rows}")


@files
def policy(shell: Shell) -> None:
    """`policy.toml` as the command writes it, with the classes `sensitive` and `general`."""
    shell.run("policy", "init", "policy.toml", "--corpus", "clinic-notes-2026")


def _keys(shell: Shell) -> None:
    for name in ("owner", "alice"):
        shell.run("attest", "keygen", name)
    shell.run("policy", "init", "policy.toml", "--corpus", "clinic-notes-2026")
    shell.run("registry", "init", "registry.cbor")
    shell.run("registry", "add", "registry.cbor", "--pub", "alice.pub", "--class", "sensitive", "--class", "general")
    shell.run("policy", "sign", "policy.toml")


@files
def letters(shell: Shell) -> None:
    """Keys `owner` and `alice`, `registry.cbor`, `policy.toml`, `policy.cose`; `notes.jsonl`, `letters.jsonl`, not signed."""
    _keys(shell)
    for name in ("notes", "letters"):
        shell.write(f"{name}.jsonl", "".join(f'{{"text": "{name} {index}"}}\n' for index in range(6)))


@files
def offered(shell: Shell) -> None:
    """What an owner has before anybody was enrolled: `owner.key`, `owner.pub`, `registry.cbor`, `policy.toml`, `policy.cose`.

    And `notes.jsonl` of somebody who has no key yet.
    """
    shell.run("attest", "keygen", "owner")
    shell.run("policy", "init", "policy.toml", "--corpus", "clinic-notes-2026")
    shell.run("registry", "init", "registry.cbor")
    shell.run("policy", "sign", "policy.toml")
    shell.write("notes.jsonl", "".join(f'{{"text": "notes {index}"}}\n' for index in range(6)))


@files
def clinic(shell: Shell) -> None:
    """As `letters`, and `corpus/notes.jsonl` with alice's attestations for the class `sensitive`."""
    shutil.copytree(folder_of(letters), shell.directory, dirs_exist_ok=True)
    (shell.directory / "corpus").mkdir()
    shutil.copy("notes.jsonl", "corpus")
    shell.run("attest", "sign", "corpus/notes.jsonl", "--key", "alice.key", "--class", "sensitive", "--policy", "policy.cose")


_SHORT = """
corpus = "clinic-notes-2026"
delta = 1e-6
steps = 20
normalizer = 4
epoch_steps = 10
window_steps = 5
redo_steps = 10
[[class]]
name = "sensitive"
clip_norm = 0.5
noise_multiplier = 1.2
sampling_rate = 0.1
depth = { from = 0.5, to = 1.0 }
[[class]]
name = "general"
clip_norm = 0.5
noise_multiplier = 0.8
sampling_rate = 0.1
depth = { from = 0.0, to = 1.0 }
"""


@files
def recorded(shell: Shell) -> None:
    """As `clinic` with a policy of 20 steps, and what its run left: `ledger.db`, `ledger.key`, `ledger.pub`, `export/`.

    The ledger is one of a run without a model: nothing was trained, which no command that reads it can tell. `letters.jsonl` is
    alice's too, outside of the corpus, and `letters.attest` what she signed for the notes.
    """
    for name in ("owner", "alice"):
        shell.run("attest", "keygen", name)
    shell.write("policy.toml", _SHORT)
    shell.run("registry", "init", "registry.cbor")
    shell.run("registry", "add", "registry.cbor", "--pub", "alice.pub", "--class", "sensitive", "--class", "general")
    shell.run("policy", "sign", "policy.toml")
    shell.write("corpus/notes.jsonl", "".join(f'{{"text": "notes {index}"}}\n' for index in range(6)))
    shell.run("attest", "sign", "corpus/notes.jsonl", "--key", "alice.key", "--class", "sensitive", "--policy", "policy.cose")
    shutil.copy("corpus/notes.jsonl", "letters.jsonl")
    shutil.copy("corpus/notes.jsonl.attest", "letters.attest")
    record(shell)
    shell.run("ledger", "export", "ledger.db", "export", "--registry", "registry.cbor")


@files
def shards(shell: Shell) -> None:
    """As `clinic`, with a second signed file `corpus/more.jsonl`, a key `shards` and a folder `verdicts/`."""
    shutil.copytree(folder_of(clinic), shell.directory, dirs_exist_ok=True)
    shell.run("attest", "keygen", "shards")
    (shell.directory / "verdicts").mkdir()
    shell.write("corpus/more.jsonl", "".join(f'{{"text": "more {index}"}}\n' for index in range(6)))
    shell.run("attest", "sign", "corpus/more.jsonl", "--key", "alice.key", "--class", "general", "--policy", "policy.cose")


@files
def trained(shell: Shell) -> None:
    """A real run over `data.jsonl` by its one owner in `run/`, three steps, its `run/export/`, and `model/` with its weights.

    Keys are in `run/keys`, `run/ledger.pub` names the ledger's.
    """
    import torch
    from safetensors.torch import save_file

    from dptrain import PrivateTraining

    shutil.copytree(folder_of(own_data), shell.directory, dirs_exist_ok=True)
    known: dict[str, Any] = {}
    tiny(known)
    torch.manual_seed(0)
    own = PrivateTraining.own("data.jsonl", target_epsilon=8, epochs=1, batch_size=20, directory="run", progress=False)
    with own as private:
        model, optimizer, steps = private.prepare(known["model"], known["optimizer"], known["collate"])
        for step in steps:
            for rows in step:
                private.backward(known["per_example_loss"](model, rows), rows)
            optimizer.step()
        (shell.directory / "model").mkdir()
        save_file({name: value.contiguous() for name, value in model.state_dict().items()}, "model/model.safetensors")
        private.export("run/export")


@files
def digits(shell: Shell) -> None:
    """`run.toml`, `policy.cose`, `corpus/` of a tiny image model over handwritten digits, ready for training."""
    from tests.worlds.digits import make_digits

    make_digits(shell.directory)


# Names ---------------------------------------------------------------------------------------------------------------------


@names
def tiny(known: dict[str, Any]) -> None:
    """A classifier of texts by their bytes: `model`, `optimizer`, `collate`, `per_example_loss`, `dataset`, `torch`, `nn`."""
    import torch
    from torch import nn

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bytes, self.inner, self.head = nn.Embedding(256, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x: Any) -> Any:
            return self.head(torch.relu(self.inner(self.bytes(x))).mean(1))

    def collate(examples: Any) -> dict[str, Any]:
        texts = [example["text"].encode()[:24].ljust(24, b"\0") for example in examples]
        x = torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8).reshape(-1, 24).long()
        return {"x": x, "labels": torch.tensor([len(str(example.get("label", ""))) % 2 for example in examples])}

    def per_example_loss(model: Any, rows: Any) -> Any:
        return nn.functional.cross_entropy(model(rows["x"]), rows["labels"], reduction="none")

    torch.manual_seed(0)
    model = Reader()
    dataset = [{"text": f"note number {n}", "label": "good" if n % 2 else "bad", "author": f"p{n % 8}"} for n in range(40)]
    known.update(
        model=model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3), collate=collate, dataset=dataset,
        per_example_loss=per_example_loss, torch=torch, nn=nn,
    )  # fmt: skip


@names
def prepared(known: dict[str, Any]) -> None:
    """As `tiny`, and `private`: a run over `dataset` in `run/`, opened, not prepared yet. The world closes it at the end."""
    from dptrain import PrivateTraining

    tiny(known)
    known["PrivateTraining"] = PrivateTraining
    known["private"] = PrivateTraining.own(
        known["dataset"], target_epsilon=8, epochs=1, batch_size=20, directory="run", progress=False
    )
    atexit.register(known["private"].close)


@names
def small_llm(known: dict[str, Any]) -> None:
    """A causal language model of two layers: `model`, `tokenizer` of letters, `texts`, `tokens`, `collator`."""
    import torch

    from tests.integrations.scene import language_model, padded, rows
    from tests.integrations.words import TEXTS
    from tests.integrations.words import tokenizer as letters_of

    model = language_model()
    words = letters_of()
    model.resize_token_embeddings(len(words))
    known.update(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), tokenizer=words, torch=torch, tokens=rows(),
        collator=padded, texts=[row["text"] for row in TEXTS],
    )  # fmt: skip


from tests.docs import worlds_audit, worlds_guides  # noqa: E402, F401  their worlds stand beside these
