"""The page of Trainers: its scripts run, and few lines lie between a plain one and a private one."""

import difflib
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dptrain import PrivateTraining  # noqa: E402
from tests.integrations.scene import language_model, padded, rows  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs" / "trainers.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def run(block: str, **more: Any) -> dict[str, Any]:
    names = {"model": language_model(), "tokens": rows(), "public": rows(4, first=100), "collator": padded} | more
    exec(compile(block, str(PAGE), "exec"), names)
    return names


def changed(before: str, after: str) -> int:
    return sum(line.startswith("+ ") for line in difflib.ndiff(before.splitlines(), after.splitlines()))


def test_few_lines_lie_between_the_scripts() -> None:
    plain, private, plain_sft, private_sft, _ = BLOCKS
    assert changed(plain, private) == 3 and changed(plain_sft, private_sft) == 2


def test_the_script_of_transformers_before_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(BLOCKS[0])["trainer"].state.global_step == 6
    trainer = run(BLOCKS[1])["trainer"]
    assert trainer.state.global_step == 6 and 4.0 < trainer.private.epsilon()["own"].spent <= 8.0
    assert (tmp_path / "out" / "private" / "ledger.db").exists()
    trainer.private.close()


def test_the_script_of_trl_before_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl", reason="trl is not installed: pip install 'dptrain[trl]'")
    from datasets import Dataset

    from tests.integrations.words import TEXTS, tokenizer

    monkeypatch.chdir(tmp_path)
    given = {"texts": Dataset.from_list(TEXTS), "tokenizer": tokenizer()}
    assert run(BLOCKS[2], **given)["trainer"].state.global_step == 6
    trainer = run(BLOCKS[3], **given)["trainer"]
    assert trainer.state.global_step == 6 and 4.0 < trainer.private.epsilon()["own"].spent <= 8.0
    trainer.private.close()


def test_the_script_over_contributions_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import TrainingArguments

    from dptrain.integrations.transformers import PrivateTrainer

    monkeypatch.chdir(tmp_path)
    PrivateTraining.own(rows(), epochs=3, batch_size=6, directory=tmp_path / "made", progress=False).close()
    for name in ("policy.cose", "registry.cbor", "registry.names", "corpus"):
        (tmp_path / "made" / name).rename(tmp_path / name)
    (tmp_path / "made" / "keys" / "owner.pub").rename(tmp_path / "owner.pub")
    run(
        BLOCKS[4], PrivateTraining=PrivateTraining, PrivateTrainer=PrivateTrainer, args=TrainingArguments("out", report_to=[])
    )["private"].close()
    assert (tmp_path / "export").exists()
