"""`dptrain check`: exit codes, one JSON object, and scripts without torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_layering import BLOCK_TORCH

ROOT = Path(__file__).resolve().parents[2]

NET = """\
from torch import nn

def make():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(7200, 4))

def normed():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))

def loss(model, rows):
    return model(rows["x"]).square().mean(1)
"""


@pytest.fixture
def net(shell) -> None:
    pytest.importorskip("torch")
    shell.write("net.py", NET)


def test_a_model_that_a_run_takes_is_exit_code_0(shell, net):
    told = shell.run("check", "net.py:make").stdout
    assert "A private run takes this model as it is." in told and "input float32:3,32,32" in told
    assert "not seen: your rows" in told


def test_a_model_that_a_run_refuses_is_exit_code_1_with_its_repair(shell, net):
    told = shell.run("check", "net.py:normed", "--inputs", "x=float32:4", "--loss", "net.py:loss", code=1).stdout
    assert "BATCH_NORM at 1" in told and told.count("model = dptrain.fix(model)") == 2
    answer = shell.json("check", "net.py:normed", code=1)
    assert (answer["kind"], answer["accepted"], answer["mended"]) == ("model", False, True)
    assert answer["repairs"] == ["model = dptrain.fix(model)"]


@pytest.mark.parametrize(
    "words",
    [
        ("net.py:gone",),
        ("nowhere/",),
        ("net.py:make", "--inputs", "x=float99:3"),
        ("net.py:make", "--inputs", "x=float32:5"),
        ("net.py:make", "--optimizer", "Adamant"),
        ("net.py:make", "--rows", "train.py", "--inputs", "x=float32:4"),
        ("train.py", "--inputs", "x=float32:4"),
        ("gone.py",),
    ],
    ids=" ".join,
)
def test_what_cannot_be_checked_is_wrong_use(shell, net, words):
    shell.write("train.py", "x = 1\n")
    assert shell.json("check", *words, code=2)["error"]["code"] == "USAGE"


def test_a_script_is_read_where_torch_is_missing(tmp_path):
    (tmp_path / "train.py").write_text("loss.backward()\n")
    program = "from dptrain.cli import main\nsys.argv = ['dptrain', 'check', 'train.py', '--json']\nmain()\n"
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", BLOCK_TORCH + program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    assert '"code": "OUTSIDE_BACKWARD"' in done.stdout and '"where": "train.py:1"' in done.stdout


def test_what_is_weakened_is_exit_code_1_and_what_is_done_otherwise_is_0(shell):
    shell.write("log.py", "print(loss)\n")
    assert "weakened" in shell.json("check", "log.py", code=1)["findings"][0]["effect"]
    shell.write("load.py", "from torch.utils.data import DataLoader\nx = DataLoader(d)\n")
    answer = shell.json("check", "load.py")
    assert answer["accepted"] and [item["effect"] for item in answer["findings"]] == ["changed"]
    assert "1 changed" in shell.run("check", "load.py").stdout
