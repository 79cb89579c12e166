"""`dptrain plan` on LoRA pairs: noise on their product over rank, and what a geometry leaves of the noise of blocks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dptrain.geometry.energy import DESIGNS
from dptrain.geometry.over_rank import noise_over_rank
from dptrain.geometry.shapes import FILE, parse_shapes
from tests.cli.test_cli_plan_measure import RUN

GEOMETRY = 'geometry = "lora_tangent"\n'
SHAPES = ("--shapes", "64x32x3,16x64")


@pytest.fixture
def one_noise(shell, policy):
    """A policy whose blocks have one noise: tau is 0.6 / 4."""
    text = policy.read_text().replace("noise_multiplier = 0.8", "noise_multiplier = 1.2")
    return shell.write("policy.toml", text)


def test_shapes_by_hand_are_drawn_and_told(shell, one_noise):
    found = shell.json("plan", "policy.toml", *SHAPES)["noise_over_rank"]
    expected = noise_over_rank(parse_shapes(SHAPES[1]))
    assert [one["rank"] for one in found["at"]] == [one.rank for one in expected.at]
    for told, one in zip(found["at"], expected.at, strict=True):
        for design in DESIGNS:
            assert told["noise"][design] == pytest.approx(0.6 / 4 * getattr(one.noise, design))
    assert (found["pairs"], found["known"], found["relative"], found["policy"]) == (4, False, False, "factors")
    shown = shell.run("plan", "policy.toml", *SHAPES).stdout
    assert "noise over rank, on Z = A B^T of 4 LoRA pairs in one step\n" in shown
    lines = [line for line in shown.splitlines() if line.startswith(tuple(DESIGNS)) and "│" in line]
    assert len(lines) == 3 and all("at rank 32" in line for line in lines) and "count as orthonormal" in shown


def test_noise_that_differs_over_blocks_or_steps_is_told_in_tau(shell, policy):
    shown = shell.run("plan", "policy.toml", *SHAPES).stdout
    assert "in one step, in tau" in shown and " tau at rank 32" in shown and "std of its block over the normalizer" in shown
    text = policy.read_text().replace("noise_multiplier = 0.8", "noise_multiplier = 1.2")
    for line in ('[noise]\nfamily = "laplace"\n', 'disclosure = "occurrences_public"\n[noise]\ninjection = "per_sample"\n'):
        shell.write("other.toml", text.replace("[[class]]", f"{line}[[class]]", 1))
        assert shell.json("plan", "other.toml", *SHAPES)["noise_over_rank"]["relative"]


def test_a_plan_of_no_pairs_has_none(shell, policy):
    assert "noise_over_rank" not in shell.json("plan", "policy.toml")
    assert "noise_over_rank" not in shell.json("plan", "policy.toml", "--processes", "2", "--model", "llama-8b")


def test_a_known_model_with_adapters_is_drawn_at_its_rank(shell, policy):
    found = shell.json("plan", "policy.toml", "--processes", "2", "--model", "llama-8b-lora")["noise_over_rank"]
    assert found["pairs"] == 224 and [one["rank"] for one in found["at"] if one["own"]] == [16]


def test_wrong_use_and_what_is_no_adapter_are_refused(shell, policy):
    (shell.directory / "lora").mkdir()
    assert shell.json("plan", "policy.toml", "--shapes", "8by4", code=1)["error"]["code"] == "SHAPES"
    assert shell.json("plan", "policy.toml", "--adapter", "lora", code=1)["error"]["code"] == "ADAPTER"
    assert shell.json("plan", "policy.toml", "--adapter", "lora", *SHAPES, code=2)["error"]["code"] == "USAGE"
    assert shell.json("plan", "policy.toml", "--adapter", "nowhere", code=2)["error"]["code"] == "USAGE"


def test_pairs_are_drawn_without_torch(shell, policy):
    header = {f"q.lora_{side}.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [at, at + 16]} for side, at in
              (("A", 0), ("B", 16))}  # fmt: skip
    text = json.dumps(header).encode()
    shell.write(f"lora/{FILE}", "").write_bytes(len(text).to_bytes(8, "little") + text + bytes(32))
    script = (
        "import sys; from dptrain.cli.app import app\n"
        "try: app(['plan', 'policy.toml', '--adapter', 'lora', '--json'])\n"
        "except SystemExit as end: print(end.code)\n"
        "print([name for name in ('torch', 'transformers', 'safetensors') if name in sys.modules])"
    )
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, cwd=shell.directory, capture_output=True, text=True)
    assert done.stdout.splitlines()[-2:] == ["0", "[]"], done.stderr


@pytest.fixture
def with_pairs(shell, policy, monkeypatch):
    """A run file whose model comes with a LoRA adapter that trains: returns squares of |B|, by name of ``lora_A``."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    from dptrain.tasks import image_classification as images

    plain, squares = images.build, {}

    def build(config):
        model, collate = plain(config)
        adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
        named = adapted.named_parameters()
        squares.update((name, float(one.detach().square().sum())) for name, one in named if ".lora_A." in name)
        return adapted.train(), collate

    monkeypatch.setattr(images, "build", build)
    shell.write("run.toml", RUN)
    return squares


def test_a_model_that_is_measured_has_its_own_noise_in_every_block(shell, policy, with_pairs):
    """Noise is 0.6 in the last layer, which both classes touch, and 0.4 in the three below it."""
    answer = shell.json("plan", "policy.toml", "--measure", "run.toml", "--contributions", "sensitive=20")
    assert not {"pairs", "pair_blocks"} & answer["measured"].keys()
    found = answer["noise_over_rank"]
    (own,) = (one for one in found["at"] if one["own"])
    energy = 2 * 2 * (8 + 8 - 2) * (3 * 0.4**2 + 0.6**2) / 4**2
    assert own["rank"] == 2 and own["noise"]["tangent"] == pytest.approx(energy**0.5) and not found["relative"]
    frozen = 8 * sum(square * (0.6 if "layers.3." in name else 0.4) ** 2 for name, square in with_pairs.items()) / 4**2
    assert own["noise"]["frozen"] == own["noise"]["factors"] == pytest.approx(frozen**0.5)
    assert len(with_pairs) == found["pairs"] == found["zero"] == 8 and found["blocks"] == []


def test_under_a_geometry_every_block_is_told_after_projection(shell, policy, with_pairs):
    shell.write("policy.toml", GEOMETRY + policy.read_text())
    found = shell.json("plan", "policy.toml", "--measure", "run.toml", "--contributions", "sensitive=20")["noise_over_rank"]
    assert found["policy"] == "tangent" and (found["coordinates"], found["energy"]) == (8 * 32, 8 * 28)
    told = [(one["name"], one["pairs"], one["coordinates"], one["energy"]) for one in found["blocks"]]
    assert told == [(f"layer.{layer}", 2, 64, 56) for layer in range(4)]
    assert [one["std"] for one in found["blocks"]] == [0.4, 0.4, 0.4, 0.6]
    shown = shell.run("plan", "policy.toml", "--measure", "run.toml", "--contributions", "sensitive=20").stdout
    rows = [line.split() for line in shown.splitlines() if "std^2" in line]
    assert rows == [
        ["layer.0", "to", "2", "2", "0.4", "64", "56", "std^2"], ["layer.3", "2", "0.6", "64", "56", "std^2"]
    ] and "projection leaves 224 of 256" in shown  # fmt: skip


def test_pairs_that_are_given_stand_for_those_of_a_model(shell, policy, with_pairs):
    found = shell.json("plan", "policy.toml", "--measure", "run.toml", *SHAPES, "--contributions", "sensitive=20")
    assert found["noise_over_rank"]["pairs"] == 4 and found["noise_over_rank"]["blocks"] == []
