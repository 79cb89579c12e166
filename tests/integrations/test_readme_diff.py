"""The change of a program that the README shows is small: before it the program trains, after it it trains privately."""

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from tests.integrations.scene import language_model  # noqa: E402
from tests.integrations.words import tokenizer  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
LINES = re.findall(r"^```diff\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)[0].splitlines()


def program(mark: str) -> str:
    """Returns the lines of one side."""
    return "\n".join(line[1:] for line in LINES if line[:1] in ("", " ", mark))


def trained(mark: str) -> dict[str, Any]:
    """Runs one side over a few texts, and returns its names."""
    from accelerate import Accelerator
    from transformers import get_linear_schedule_with_warmup

    words = tokenizer()
    model = language_model()
    model.resize_token_embeddings(len(words))
    kept = {name: value.detach().clone() for name, value in model.state_dict().items()}
    names: dict[str, Any] = {
        "Accelerator": lambda: Accelerator(cpu=True), "get_linear_schedule_with_warmup": get_linear_schedule_with_warmup,
        "tokenizer": words, "model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2),
        "texts": [f"the {word} sat on number {number}" for number, word in enumerate(("cat", "dog") * 8)],
    }  # fmt: skip
    source = program(mark).replace("max_length=64", "max_length=16")
    exec(compile(source, "README.md", "exec"), names)
    assert any(not torch.equal(value, kept[name]) for name, value in names["model"].state_dict().items())
    return names


@pytest.mark.filterwarnings("ignore")
def test_the_change_that_the_readme_shows_makes_a_run_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "dptrain" not in program("-") and trained("-")["scheduler"].scheduler.last_epoch == 4
    names = trained("+")
    private = names["private"]
    assert names["scheduler"].last_epoch == private.policy.steps == 4
    found = private.epsilon()["own"]
    assert 0 < found.spent == found.planned <= 8
    assert (tmp_path / "run" / "ledger.db").exists()


def test_ten_lines_change_at_most() -> None:
    """Lines that are indented otherwise do not count, nor do empty ones."""
    before, after = ([line[1:].strip() for line in LINES if line[:1] == mark] for mark in "-+")
    assert len([line for line in after if line not in before]) <= 10
