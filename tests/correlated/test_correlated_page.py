"""The page on correlated noise: its program runs as it stands, and its numbers are what it says."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.worlds.commands import run_command

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
    from dptrain.noise.correlated import toeplitz
    from ledger.accountants.correlated import Toeplitz

    page = (DOCS / "mechanism" / "theorem-15-correlated-noise.md").read_text(encoding="utf-8")
    told = float(re.search(r"norms above 1 in a longer matrix: ([\d.]+) at twelve steps", page)[1])
    scaled, longer = Toeplitz(tuple(toeplitz.square_root(4)), 8), Toeplitz(tuple(toeplitz.square_root(4))).matrix(12)
    scales = np.concatenate([scaled.scales(8), np.repeat(scaled.scales(8)[-1], 4)])
    assert np.linalg.norm(longer * scales, axis=0).max() == pytest.approx(told, abs=0.005)
    assert np.linalg.norm(scaled.matrix(8), axis=0).max() == pytest.approx(1.0)


@pytest.mark.slow
def test_the_commands_that_choose_run_and_find_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = [
        line.split("#")[0].split()[1:]
        for text in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)
        for line in text.splitlines()
        if line.startswith("dptrain")
    ]
    assert len(commands) == 7 and run_command(["policy", "init"]).exit_code == 0
    secret = Path("policy.toml").read_text()
    rates = re.sub(r"(?m)^sampling_rate = \S+", "sampling_rate = 0.01", secret)
    Path("policy.toml").write_text(rates)
    found = json.loads(run_command([*commands[0], "--target-epsilon", "4", "--json"]).stdout)
    best = found["strategies"][found["best"]]
    said = re.search(r"(\d+)\s+bands leave (\d\.\d+) of the noise .*? and (\d+) bands by turns (\d\.\d+)", PAGE, re.S)
    assert said is not None
    bands, told, others, by_turns = said.groups()
    assert (best["family"], best["draws"], best["bands"]) == ("banded_toeplitz", "secret", int(bands))
    assert best["worst_ratio"] == pytest.approx(float(told), abs=5e-4)
    turns = [item for item in found["strategies"] if item["draws"] == "turns" and item["bands"] == int(others)]
    assert turns[0]["worst_ratio"] == pytest.approx(float(by_turns), abs=5e-4)
    public = secret.replace('"secret_poisson" ', '"occurrences_public" ').replace("# [sampling]", "[sampling]")
    Path("policy.toml").write_text(public.replace('# order = "cyclic"', 'order = "cyclic"'))
    assert [run_command(words).exit_code for words in commands[:5]] == [0] * 5
    assert Path("noise.svg").exists() and 'family = "banded_toeplitz"\nparameters' in Path("policy.toml").read_text()
    Path("policy.toml").write_text(re.sub(r"(?m)^steps = \d+", "steps = 64", Path("policy.toml").read_text()))
    np.save("own.npy", np.tril(np.full((64, 64), 0.1)) + np.eye(64))
    written = []
    for words, family in zip(commands[5:], ["dense", "banded"], strict=True):
        assert run_command(words).exit_code == 0 and f'family = "{family}"\n' in Path("policy.toml").read_text()
        written.append(Path("policy.coefficients").read_bytes())
    assert written[0] != written[1] and len(written[0]) == len(written[1]) > 0


def test_the_accuracies_are_those_of_the_results_whose_runs_kept_their_epsilon():
    from recipes.correlated_noise import Results, lines_of

    results = Results(DOCS.parent / "benchmarks" / "correlated_noise.json")
    assert "\n".join(lines_of(results)) in PAGE
    for row in results.rows:
        assert row["verdict"] == "FULL" and row["epsilon"] - 1e-4 < row["planned"] <= row["epsilon"]
    noise = {(row["arm"], row["epsilon"], row["epochs"]): row["noise"].split()[0] for row in results.rows}
    said = r"by turns had (\d+) bands.*? groups was\s(\d+) at epsilon 8 over two epochs, (\d+) over eight, .*?(\d+) at"
    found = re.search(said, PAGE, re.S)
    assert found is not None
    assert {value for (arm, *_), value in noise.items() if arm == "correlated"} == {found[1]}
    assert [noise["groups", *key] for key in ((8.0, 2), (8.0, 8), (2.0, 2))] == list(found.groups()[1:])
