"""The page on correlated noise: its program runs as it stands, and its numbers are what it says."""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "correlated.md").read_text(encoding="utf-8")


def test_the_programs_run_to_their_last_step(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)
    names: dict = {}
    for program in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S):
        exec(compile(program, "docs/correlated.md", "exec"), names)
    assert names["state"].step == names["steps"] == 120
    (told,) = re.findall(r"# (epsilon \d.\d\d)$", PAGE, re.M)
    assert capsys.readouterr().out == f"{told}\n"
    right = (names["model"](names["inputs"])[:, 0] > 0).float() == names["labels"]
    assert right.float().mean() > 0.7
    assert names["again"].epsilon(1e-6, names["everybody"], lost=[(40, 47)]) > 3.05


def test_every_strategy_has_a_row():
    from ledger.accountants import correlated

    kinds = {name for name in correlated.__all__ if isinstance(getattr(correlated, name), type)}
    kinds -= {"Strategy", "Participation", "Sensitivity", "Turns"}
    assert kinds | {"identity"} == set(re.findall(r"^\| `(\w+)\(", PAGE, re.M))


def test_columns_run_past_their_steps_grow_as_the_theorem_says():
    import numpy as np

    from dptrain.noise.correlated import toeplitz
    from ledger.accountants.correlated import Toeplitz

    page = (DOCS / "mechanism" / "theorem-15-correlated-noise.md").read_text(encoding="utf-8")
    told = float(re.search(r"norms above 1 in a longer matrix: ([\d.]+) at twelve steps", page)[1])
    scaled, longer = Toeplitz(tuple(toeplitz.square_root(4)), 8), Toeplitz(tuple(toeplitz.square_root(4))).matrix(12)
    scales = np.concatenate([scaled.scales(8), np.repeat(scaled.scales(8)[-1], 4)])
    assert np.linalg.norm(longer * scales, axis=0).max() == pytest.approx(told, abs=0.005)
    assert np.linalg.norm(scaled.matrix(8), axis=0).max() == pytest.approx(1.0)
