"""The page on lengths and people: every block runs as it stands, one after the other, and its run ends."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain import PrivateTraining, pack_examples  # noqa: E402

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "lengths.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)


def tokenizer(texts: Any, padding: str = "", truncation: bool = False, max_length: int = 0, return_tensors: str = "") -> Any:
    """Stands for a tokenizer of transformers: a token for each word."""
    single = isinstance(texts, str)
    ids = [[1 + len(word) for word in text.split()] for text in ([texts] if single else texts)]
    if truncation:
        ids = [each[:max_length] for each in ids]
    if padding == "max_length":
        ids = [each + [0] * (max_length - len(each)) for each in ids]
    return {"input_ids": ids[0] if single else torch.tensor(ids) if return_tensors else ids}


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(40, 6), nn.Linear(6, 40)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(input_ids))


def collate_tokens(examples: list[dict]) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.tensor([(row["input_ids"] + [0] * 32)[:32] for row in examples])}


def collate_texts(examples: list[dict]) -> dict[str, torch.Tensor]:
    return dict(tokenizer([row["text"] for row in examples], "max_length", True, 16, "pt"))


def run(namespace: dict[str, Any]) -> None:
    private, model = namespace["private"], namespace["model"]
    with private:
        for step in namespace["steps"]:
            for rows in step:
                ids = rows["input_ids"]
                losses = nn.functional.cross_entropy(model(ids)[:, :-1].mT, ids[:, 1:], reduction="none").mean(1)
                private.backward(losses, rows)
            namespace["optimizer"].step()


def test_every_block_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(BLOCKS) == 3
    monkeypatch.chdir(tmp_path)
    words = ["a", "quiet", "river", "takes", "every", "stone", "it", "meets", "along", "with", "it"]
    texts = [" ".join(words[n % 4 : n % 4 + 2 + n % 7] * (1 + n % 5)) for n in range(40)]
    dataset = [{"author": f"p{n % 12}", "text": text, "n": n} for n, text in enumerate(texts)]
    shared = {"PrivateTraining": PrivateTraining, "pack_examples": pack_examples, "json": json}
    for block in BLOCKS:
        torch.manual_seed(0)
        model = Reader()
        names = {"model": model, "optimizer": torch.optim.Adam(model.parameters()), "dataset": dataset, "tokenizer": tokenizer}
        namespace = shared | names | {"collate": collate_texts, "collate_tokens": collate_tokens}
        exec(compile(block, "docs/lengths.md", "exec"), namespace)
        run(namespace)
    lengths = PrivateTraining.own(
        dataset, public_lengths=(8, 16, 32), length_of=lambda item: len(item["text"].split()), epochs=4, batch_size=8,
        directory=tmp_path / "again", progress=False,
    )  # fmt: skip
    assert {one.descriptor.public_length for one in (form.sample for form in lengths.opened.gate.admitted.forms)} == {8, 16, 32}
    lengths.close()
